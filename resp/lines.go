package resp

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// CallHead encodes a call of a script by its digest, up to its keys: what follows are
// so many keys and arguments, each encoded by Bulk, strung together.
func CallHead(s *Script, keys, args int) string {
	count := strconv.Itoa(keys)
	return "*" + strconv.Itoa(3+keys+args) + "\r\n" + byDigest(s) + Bulk(count)
}

// byDigest encodes what names a script by its digest, its line end left out.
func byDigest(s *Script) string {
	return "$7\r\nEVALSHA\r\n$40\r\n" + s.SHA
}

// EvalLines is EvalAll for calls of any number of keys and arguments and scripts that
// answer with one line, a simple string or an integer. calls[i] is a whole call of scripts[i], begun with CallHead;
// lines[i] receives the text that it answers. What EvalAll says of refusals, answered,
// err and of calls that are sent once more holds here too.
func EvalLines(c *Conn, deadline time.Time, scripts []*Script, calls, lines []string) (answered int, refusals []string, err error) {
	if !c.Usable || len(calls) == 0 || len(calls) > len(lines) {
		return 0, nil, unwritten(c, 0, len(calls), len(lines))
	}
	refusals = make([]string, len(calls))
	indexes := make([]int, len(calls))
	for i := range calls {
		indexes[i] = i
	}
	answered, unknown, err := sendLines(c, deadline, calls, lines, refusals, indexes)
	if err != nil || len(unknown) == 0 || !c.Usable {
		return answered, some(refusals), err
	}
	again := make([]string, len(calls))
	for _, i := range unknown {
		again[i] = strings.Replace(calls[i], byDigest(scripts[i]), "$4\r\nEVAL"+header(len(scripts[i].Body))+scripts[i].Body, 1)
	}
	answered, _, err = sendLines(c, deadline, again, lines, refusals, unknown)
	for i := answered; i < len(calls); i++ {
		refusals[i] = "" // of the first attempt
	}
	return answered, some(refusals), err
}

// sendLines makes the calls with the given indexes and notes what each is answered.
// It returns the number of calls, from the first, that have an answer then, and which of
// them the server did not know the script for.
func sendLines(c *Conn, deadline time.Time, calls, lines, refusals []string, indexes []int) (answered int, unknown []int, err error) {
	var text strings.Builder
	for _, i := range indexes {
		_, _ = text.WriteString(calls[i])
		_, _ = text.WriteString("\r\n")
	}
	c.Usable = false
	// On a connection that takes no deadline Write fails too.
	_ = c.net.SetDeadline(deadline)
	if _, err = c.net.Write([]byte(text.String())); err != nil {
		return indexes[0], nil, broken(err)
	}
	reusable := true
	unknown = nil
	for _, i := range indexes {
		line, readErr := c.in.ReadSlice('\n')
		lines[i], refusals[i], err = readText(line, readErr)
		if err != nil {
			return i, nil, err
		}
		reusable = reusable && !forbidsReuse(refusals[i])
		if Word(refusals[i]) == "NOSCRIPT" {
			unknown = append(unknown, i)
		}
	}
	c.Usable = reusable && c.in.Buffered() == 0
	return len(calls), unknown, nil
}

// readText makes the best of a line: a simple string is returned, and an error line as
// refusal, anything else is an error.
func readText(line []byte, readErr error) (answer, refusal string, err error) {
	if readErr != nil {
		return "", "", readFailed(readErr)
	}
	kind, text, err := parseLine(line)
	if err != nil {
		return "", "", err
	}
	switch kind {
	case ':':
		if _, err := strconv.ParseInt(text, 10, 64); err != nil {
			return "", "", fmt.Errorf("%w: an integer that is none", ErrProtocol)
		}
		return text, "", nil
	case '+':
		return text, "", nil
	case '-':
		return "", text, nil
	}
	return "", "", fmt.Errorf("%w: a script answered with type %q", ErrProtocol, kind)
}
