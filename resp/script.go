package resp

import (
	"bufio"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Script is a Lua script that takes one key. It is made once and not changed, and
// may be used by any number of goroutines.
type Script struct {
	// Body is the source text.
	Body string
	// SHA is the SHA-1 digest of Body in lower-case hex, by which the server knows
	// the script.
	SHA string

	// prefixes[n] is the encoded call with n arguments up to the key.
	prefixes []string
}

// maxPrefixes is the number of arguments up to which the beginning of a call is
// encoded in advance.
const maxPrefixes = 8

// NewScript computes what is the same for every call of a script.
func NewScript(body string) *Script {
	digest := sha1.Sum([]byte(body))
	s := &Script{Body: body, SHA: hex.EncodeToString(digest[:])}
	for n := 0; n <= maxPrefixes; n++ {
		s.prefixes = append(s.prefixes, prefix(s, n))
	}
	return s
}

// prefix encodes EVALSHA, the digest and the number of keys, for a call with n
// arguments behind the one key. What follows begins with a line end: see header.
func prefix(s *Script, n int) string {
	return "*" + strconv.Itoa(4+n) + "\r\n$7\r\nEVALSHA\r\n$40\r\n" + s.SHA + "\r\n$1\r\n1"
}

// Eval calls a script with one key and returns the integer that it answers. The
// call is sent by the script's digest; only if the server answers NOSCRIPT, and so
// has run nothing, is it sent once more with the body.
//
// refusal is the error line of the server without its '-', or empty: then n is 0
// and err is nil, and the connection can be used again unless the line says
// otherwise. err wraps ErrTimeout, ErrLost, or ErrProtocol for a reply that is
// neither an integer nor an error line; after it the connection is of no more use.
//
// It is written out at length because it runs for every request in an interpreter,
// where a call of a function costs as much as ten statements, and a concatenation
// of strings less than one append.
func Eval(c *Conn, deadline time.Time, s *Script, key string, args []string) (n int64, refusal string, err error) {
	if !c.ok {
		return 0, "", usedAgain()
	}
	text := ""
	if len(args) < len(s.prefixes) {
		text = s.prefixes[len(args)]
	} else {
		text = prefix(s, len(args))
	}
	if len(key) < len(headers) {
		text += headers[len(key)] + key
	} else {
		text += header(len(key)) + key
	}
	for _, arg := range args {
		if len(arg) < len(headers) {
			text += headers[len(arg)] + arg
		} else {
			text += header(len(arg)) + arg
		}
	}

	c.ok = false
	// On a connection that takes no deadline Write fails too.
	_ = c.net.SetDeadline(deadline)
	if _, err := c.net.Write([]byte(text + "\r\n")); err != nil {
		return 0, "", broken(c, err)
	}
	line, err := c.in.ReadSlice('\n')
	if err == nil && line[0] == ':' {
		// The line ends in a line feed, so it has two bytes at least.
		if end := len(line) - 2; line[end] == '\r' {
			n, err = strconv.ParseInt(string(line[1:end]), 10, 64)
			if err == nil {
				c.ok = c.in.Buffered() == 0 // as answered does
				return n, "", nil
			}
			return 0, "", fmt.Errorf("%w: an integer that is none", ErrProtocol)
		}
	}
	refusal, err = refused(c, line, err)
	if err == nil && c.ok && Word(refusal) == "NOSCRIPT" {
		return evalBody(c, deadline, s, key, args)
	}
	return 0, refusal, err
}

// refused makes the best of a line that is no integer: an error line is returned,
// anything else is an error.
func refused(c *Conn, line []byte, readErr error) (refusal string, err error) {
	if readErr != nil {
		if errors.Is(readErr, bufio.ErrBufferFull) {
			return "", fmt.Errorf("%w: a line is longer than %d bytes", ErrProtocol, maxLine)
		}
		return "", broken(c, readErr)
	}
	kind, text, err := parseLine(line)
	if err != nil {
		return "", err
	}
	if kind != '-' {
		return "", fmt.Errorf("%w: a script answered with type %q", ErrProtocol, kind)
	}
	answered(c, text)
	return text, nil
}

// evalBody sends a script with its body, after which the server knows it again.
func evalBody(c *Conn, deadline time.Time, s *Script, key string, args []string) (n int64, refusal string, err error) {
	command := append([]string{"EVAL", s.Body, "1", key}, args...)
	reply, err := Do(c, deadline, command...)
	if err != nil {
		return 0, "", err
	}
	switch reply.Kind {
	case ':':
		return reply.Int, "", nil
	case '-':
		return 0, reply.Text, nil
	}
	c.ok = false
	return 0, "", fmt.Errorf("%w: a script answered with type %q", ErrProtocol, reply.Kind)
}
