package resp

import (
	"bufio"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Script is a Lua script. It is made once and not changed, and
// may be used by any number of goroutines.
type Script struct {
	// Body is the source text.
	Body string
	// SHA is the SHA-1 digest of Body in lower-case hex, by which the server knows
	// the script.
	SHA string

	// prefixes[n] is the encoded call with n arguments up to the key.
	prefixes []string
	// joints[n] is what stands between two such calls: the end of the one and the
	// prefix of the other.
	joints []string
}

// maxArgs is the largest number of arguments of a call.
const maxArgs = 8

// NewScript computes what is the same for every call of a script.
func NewScript(body string) *Script {
	digest := sha1.Sum([]byte(body))
	s := &Script{Body: body, SHA: hex.EncodeToString(digest[:])}
	for n := 0; n <= maxArgs; n++ {
		s.prefixes = append(s.prefixes, prefix(s, n))
		s.joints = append(s.joints, "\r\n"+prefix(s, n))
	}
	return s
}

// prefix encodes EVALSHA, the digest and the number of keys, for a call with n
// arguments behind the one key. What follows begins with a line end: see header.
func prefix(s *Script, n int) string {
	return "*" + strconv.Itoa(4+n) + "\r\n$7\r\nEVALSHA\r\n$40\r\n" + s.SHA + "\r\n$1\r\n1"
}

// Bulk encodes text as a part of a call for EvalAll. It begins with the end of the
// line before and lacks its own, so that parts and calls can be strung together.
func Bulk(text string) string {
	if len(text) < len(headers) {
		return headers[len(text)] + text
	}
	return header(len(text)) + text
}

// EvalAll calls a script len(calls) times, each with one key and args arguments (0 to
// 8), in one write, and reads the answers in order. calls[i] is the key and the
// arguments of one call, each encoded by Bulk and strung together; counts[i] receives
// the integer that it answers. The calls are sent by the script's digest; only those
// that the server answers with NOSCRIPT, and so has not run, are sent once more, with
// the body, after all answers were read.
//
// refusals is nil unless the server answered a call with an error line: then it has
// len(calls) entries, with the line without its '-' where there is one and "" where
// there is a count. The connection can be used again unless a line says otherwise.
// NOSCRIPT remains where the call could not be sent once more: it was not run.
//
// answered is the number of calls, from the first, that have an answer: all of them
// if err is nil. The others were written, may have been carried out, and never get
// one; their counts mean nothing. err wraps ErrTimeout, ErrLost, or ErrProtocol for a
// reply that is neither an integer nor an error line; after it the connection is of
// no more use. Nothing is written to a connection that is used up (ErrLost), and
// nothing if counts is shorter than calls or args out of range.
//
// It is written for an interpreter, where a call of a function costs as much as ten
// statements, and all that is rare is elsewhere.
func EvalAll(c *Conn, deadline time.Time, s *Script, args int, calls []string, counts []int64) (answered int, refusals []string, err error) {
	if !c.Usable || len(calls) == 0 || len(calls) > len(counts) || args < 0 || args > maxArgs {
		return 0, nil, unwritten(c, args, len(calls), len(counts))
	}
	c.Usable = false
	// On a connection that takes no deadline Write fails too.
	_ = c.net.SetDeadline(deadline)
	if _, err = c.net.Write([]byte(s.prefixes[args] + strings.Join(calls, s.joints[args]) + "\r\n")); err != nil {
		return 0, nil, broken(err)
	}
	for i := 0; i < len(calls); i++ {
		line, err := c.in.ReadSlice('\n')
		// The line ends in a line feed, so ":" alone is none.
		if err != nil || line[0] != ':' || line[len(line)-2] != '\r' {
			return unusual(c, deadline, s, args, calls, counts, i, line, err)
		}
		counts[i], err = strconv.ParseInt(string(line[1:len(line)-2]), 10, 64)
		if err != nil {
			return i, nil, fmt.Errorf("%w: an integer that is none", ErrProtocol)
		}
		if len(calls)-i > 6 { // with fewer it costs more than it saves
			i += takeCounts(c, counts[i+1:len(calls)])
		}
	}
	c.Usable = c.in.Buffered() == 0 // as answered does
	return len(calls), nil, nil
}

// Eval is EvalAll for one call: it returns the integer that the script answers, or the
// error line, or an error. n is 0 where there is no integer.
func Eval(c *Conn, deadline time.Time, s *Script, args int, call string) (n int64, refusal string, err error) {
	if !c.Usable || args < 0 || args > maxArgs {
		return 0, "", unwritten(c, args, 0, 0)
	}
	c.Usable = false
	// On a connection that takes no deadline Write fails too.
	_ = c.net.SetDeadline(deadline)
	if _, err = c.net.Write([]byte(s.prefixes[args] + call + "\r\n")); err != nil {
		return 0, "", broken(err)
	}
	line, err := c.in.ReadSlice('\n')
	if err == nil && line[0] == ':' && line[len(line)-2] == '\r' {
		n, err = strconv.ParseInt(string(line[1:len(line)-2]), 10, 64)
		if err == nil {
			c.Usable = c.in.Buffered() == 0 // as answered does
			return n, "", nil
		}
		return 0, "", fmt.Errorf("%w: an integer that is none", ErrProtocol)
	}
	return evalUnusual(c, deadline, s, args, call, line, err)
}

// evalUnusual goes on for Eval where the answer is no integer.
func evalUnusual(c *Conn, deadline time.Time, s *Script, args int, call string, line []byte, readErr error) (n int64, refusal string, err error) {
	counts := make([]int64, 1)
	_, refusals, err := unusual(c, deadline, s, args, []string{call}, counts, 0, line, readErr)
	if err == nil && refusals != nil {
		return counts[0], refusals[0], nil
	}
	return counts[0], "", err
}

// EvalReply calls a script once, with these keys and arguments, until deadline. It is for
// calls off the busy path that answer more than one line: see Do for its errors.
func EvalReply(c *Conn, deadline time.Time, s *Script, keys, args []string) (Reply, error) {
	words := append([]string{"EVALSHA", s.SHA, strconv.Itoa(len(keys))}, keys...)
	words = append(words, args...)
	reply, err := Do(c, deadline, words...)
	if err != nil || reply.Kind != '-' || Word(reply.Text) != "NOSCRIPT" || !c.Usable {
		return reply, err
	}
	words[0] = "EVAL"
	words[1] = s.Body
	return Do(c, deadline, words...)
}

// takeCounts reads the answers that have arrived already, if they are integers and no
// more than counts has room for, and returns their number. Where it returns 0 nothing
// was read. It makes a list of JSON of them, so that the loop over them is not
// interpreted.
func takeCounts(c *Conn, counts []int64) int {
	data, _ := c.in.Peek(c.in.Buffered())
	end := len(data) - 2
	if end < 2 || data[0] != ':' || string(data[end:]) != "\r\n" {
		return 0
	}
	list := strings.ReplaceAll(string(data[1:end]), "\r\n:", ",")
	taken := counts[:0:len(counts)]
	// JSON knows more than integers, among it words and blanks.
	if strings.Trim(list, "0123456789,-") != "" || json.Unmarshal([]byte("["+list+"]"), &taken) != nil || len(taken) > len(counts) {
		return 0
	}
	// A comma of the server's own is no end of a line, which is two bytes longer.
	if end-1-len(list) != 2*(len(taken)-1) {
		return 0
	}
	_, _ = c.in.Discard(len(data))
	return len(taken)
}

// unwritten says why EvalAll writes nothing.
func unwritten(c *Conn, args, calls, room int) error {
	if calls > room || args < 0 || args > maxArgs {
		return fmt.Errorf("resp: %d calls with %d arguments and room for %d answers", calls, args, room)
	}
	if !c.Usable {
		return usedAgain()
	}
	return nil // there are no calls
}

// unusual goes on for EvalAll where answer i is no integer: what was read of it is
// line and readErr.
func unusual(c *Conn, deadline time.Time, s *Script, args int, calls []string, counts []int64, i int, line []byte, readErr error) (answered int, refusals []string, err error) {
	refusals = make([]string, len(calls))
	var unknown []int // the calls that were answered with NOSCRIPT
	reusable := true
	for {
		counts[i], refusals[i], err = readCount(line, readErr)
		if err != nil {
			return i, some(refusals), err
		}
		reusable = reusable && !forbidsReuse(refusals[i])
		if Word(refusals[i]) == "NOSCRIPT" {
			unknown = append(unknown, i)
		}
		i++
		if i == len(calls) {
			break
		}
		line, readErr = c.in.ReadSlice('\n')
	}
	c.Usable = reusable && c.in.Buffered() == 0
	if len(unknown) == 0 || !c.Usable {
		return len(calls), refusals, nil
	}
	answered, err = evalBodies(c, deadline, s, args, calls, counts, refusals, unknown)
	for i = answered; i < len(calls); i++ {
		refusals[i] = "" // of the first attempt
	}
	return answered, some(refusals), err
}

// evalBodies sends once more, with the body of the script, the calls with the given
// indexes, and replaces their answers. It returns the number of calls, from the
// first, that have an answer then.
func evalBodies(c *Conn, deadline time.Time, s *Script, args int, calls []string, counts []int64, refusals []string, indexes []int) (answered int, err error) {
	begin := "*" + strconv.Itoa(4+args) + "\r\n$4\r\nEVAL" + header(len(s.Body)) + s.Body + "\r\n$1\r\n1"
	again := make([]string, len(indexes))
	for n, i := range indexes {
		again[n] = calls[i]
	}
	c.Usable = false
	_ = c.net.SetDeadline(deadline)
	if _, err = c.net.Write([]byte(begin + strings.Join(again, "\r\n"+begin) + "\r\n")); err != nil {
		return indexes[0], broken(err)
	}
	reusable := true
	for _, i := range indexes {
		line, readErr := c.in.ReadSlice('\n')
		counts[i], refusals[i], err = readCount(line, readErr)
		if err != nil {
			return i, err
		}
		reusable = reusable && !forbidsReuse(refusals[i])
	}
	c.Usable = reusable && c.in.Buffered() == 0
	return len(calls), nil
}

// readCount makes the best of a line: an integer is returned, and an error line as
// refusal, anything else is an error.
func readCount(line []byte, readErr error) (n int64, refusal string, err error) {
	if readErr != nil {
		return 0, "", readFailed(readErr)
	}
	kind, text, err := parseLine(line)
	if err != nil {
		return 0, "", err
	}
	switch kind {
	case ':':
		n, err = strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, "", fmt.Errorf("%w: an integer that is none", ErrProtocol)
		}
		return n, "", nil
	case '-':
		return 0, text, nil
	}
	return 0, "", fmt.Errorf("%w: a script answered with type %q", ErrProtocol, kind)
}

// readFailed says why a line could not be read.
func readFailed(err error) error {
	if errors.Is(err, bufio.ErrBufferFull) {
		return fmt.Errorf("%w: a line is longer than %d bytes", ErrProtocol, maxLine)
	}
	return broken(err)
}

// some returns refusals, or nil if there are none.
func some(refusals []string) []string {
	for _, refusal := range refusals {
		if refusal != "" {
			return refusals
		}
	}
	return nil
}
