package resp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// The limits of one reply. A server that passes one of them is not the server that
// we believe it to be, and its connection is closed before memory is spent on it.
const (
	maxLine     = 4096    // bytes of one line with its end; the size of the read buffer
	maxBulk     = 1 << 20 // bytes of one bulk string
	maxTotal    = 4 << 20 // bytes of a whole reply
	maxElements = 1 << 16 // elements of a whole reply, at all depths together
	maxDepth    = 16      // arrays inside arrays
)

// Reply is one reply of the server, of any RESP2 type.
type Reply struct {
	// Kind is the byte that announces the type: '+' a simple string, '-' an error
	// line, ':' an integer, '$' a bulk string, '*' an array.
	Kind byte
	// Int is the value of an integer.
	Int int64
	// Text is a simple string, a bulk string, or an error line without its '-',
	// such as "ERR unknown command". An error line is never empty.
	Text string
	// Null is set for the null bulk string and the null array.
	Null bool
	// Array has the elements of an array.
	Array []Reply
}

// budget is what is left of the limits while a reply is read.
type budget struct {
	bytes    int
	elements int
}

// readReply reads one reply to its end and not a byte further. Its error wraps
// ErrProtocol, or is the reader's own.
func readReply(r *bufio.Reader) (Reply, error) {
	return readElement(r, &budget{bytes: maxTotal, elements: maxElements}, 0)
}

func readElement(r *bufio.Reader, left *budget, depth int) (Reply, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, bufio.ErrBufferFull) {
			return Reply{}, fmt.Errorf("%w: a line is longer than %d bytes", ErrProtocol, maxLine)
		}
		return Reply{}, err
	}
	left.bytes -= len(line)
	left.elements--
	if left.bytes < 0 || left.elements < 0 {
		return Reply{}, tooLarge()
	}
	kind, text, err := parseLine(line)
	if err != nil {
		return Reply{}, err
	}
	switch kind {
	case ':':
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return Reply{}, fmt.Errorf("%w: an integer that is none", ErrProtocol)
		}
		return Reply{Kind: kind, Int: n}, nil
	case '$':
		n, err := parseLength(text)
		if err != nil {
			return Reply{}, err
		}
		if n < 0 {
			return Reply{Kind: kind, Null: true}, nil
		}
		if n > maxBulk || n+2 > left.bytes {
			return Reply{}, tooLarge()
		}
		left.bytes -= n + 2
		return readBulk(r, n)
	case '*':
		n, err := parseLength(text)
		if err != nil {
			return Reply{}, err
		}
		if n < 0 {
			return Reply{Kind: kind, Null: true}, nil
		}
		if n > left.elements || depth == maxDepth {
			return Reply{}, tooLarge()
		}
		// Grown as the elements arrive: what is announced costs nothing yet.
		var array []Reply
		for i := 0; i < n; i++ {
			element, err := readElement(r, left, depth+1)
			if err != nil {
				return Reply{}, err
			}
			array = append(array, element)
		}
		return Reply{Kind: kind, Array: array}, nil
	}
	return Reply{Kind: kind, Text: text}, nil
}

// readBulk reads the n bytes of a bulk string and its end.
func readBulk(r *bufio.Reader, n int) (Reply, error) {
	data := make([]byte, n+2)
	if _, err := io.ReadFull(r, data); err != nil {
		return Reply{}, err
	}
	if data[n] != '\r' || data[n+1] != '\n' {
		return Reply{}, fmt.Errorf("%w: a bulk string without its end", ErrProtocol)
	}
	return Reply{Kind: '$', Text: string(data[:n])}, nil
}

// parseLine splits a line, its end included, into the byte that announces the type
// and the text behind it. It demands a known type, the end "\r\n", no other
// carriage return, and some text on an error line. It reads nothing and keeps
// nothing of line.
func parseLine(line []byte) (kind byte, text string, err error) {
	if len(line) == 0 {
		return 0, "", fmt.Errorf("%w: an empty line", ErrProtocol)
	}
	kind = line[0]
	switch kind {
	case '+', '-', ':', '$', '*':
	case 'H':
		return 0, "", fmt.Errorf("%w: it begins with %q, as HTTP does", ErrProtocol, kind)
	case 0x15:
		return 0, "", fmt.Errorf("%w: it begins with 0x15, as a TLS alert does", ErrProtocol)
	default:
		return 0, "", fmt.Errorf("%w: it begins with %q", ErrProtocol, kind)
	}
	end := len(line) - 2
	if end < 1 || line[end] != '\r' || line[end+1] != '\n' {
		return 0, "", fmt.Errorf("%w: a line without its end", ErrProtocol)
	}
	text = string(line[1:end])
	if strings.IndexByte(text, '\r') >= 0 || strings.IndexByte(text, '\n') >= 0 {
		return 0, "", fmt.Errorf("%w: a line end inside a line", ErrProtocol)
	}
	if kind == '-' && text == "" {
		return 0, "", fmt.Errorf("%w: an empty error line", ErrProtocol)
	}
	return kind, text, nil
}

// parseLength reads the length of a bulk string or an array: digits, or -1 for
// null.
func parseLength(text string) (int, error) {
	if text == "-1" {
		return -1, nil
	}
	if text == "" || text[0] < '0' || text[0] > '9' {
		return 0, fmt.Errorf("%w: a length that is no number", ErrProtocol)
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%w: a length that is no number", ErrProtocol)
	}
	return int(n), nil
}

func tooLarge() error {
	return fmt.Errorf("%w: it is too large or too deep", ErrProtocol)
}
