// Package resp speaks RESP2, the protocol of Valkey and Redis: it keeps a connection
// to a server, and calls Lua scripts over it, many in one write. It knows nothing of
// what the scripts count.
//
// Three rules hold throughout.
//
// After the bytes of a command were written nothing is sent again, with one
// exception: a script that the server answers not to know is sent once more with
// its body.
//
// A connection is used again only if the replies to all its commands were read to
// the end and nothing follows them. Whatever else happens closes it, so that a late
// answer never reaches somebody else's question.
//
// An error line of the server ("-ERR ...") is an answer, not an error of this
// package: Do returns it as a Reply and EvalAll among its refusals.
package resp

import (
	"errors"
	"strings"
)

// ErrEndpoint is wrapped by what ParseEndpoint returns for a text that names no
// server.
var ErrEndpoint = errors.New("resp: invalid endpoint")

// ErrDial is wrapped by every failure to reach the server: name resolution, a
// refused connect, a failed TLS handshake. It is wrapped together with ErrTimeout
// where the time ran out.
var ErrDial = errors.New("resp: cannot connect")

// ErrRefused is wrapped when the server was reached but refused AUTH or SELECT
// while the connection was being opened. The text has the first word of the
// server's answer, such as WRONGPASS, and nothing else of it: servers repeat the
// arguments of a command that they do not know, and a password is one.
var ErrRefused = errors.New("resp: refused by the server")

// ErrTimeout is wrapped when the server was silent until the deadline.
var ErrTimeout = errors.New("resp: no answer in time")

// ErrLost is wrapped when the connection broke: reset, or closed by the server
// before its reply was complete. The command may have been carried out.
var ErrLost = errors.New("resp: connection lost")

// ErrProtocol is wrapped when bytes arrived that are no reply, that are a reply of
// another type than the command has, or that pass one of the size limits.
var ErrProtocol = errors.New("resp: unexpected reply")

// maxWord is the length in bytes beyond which the first word of an error line is
// cut. The longest that Valkey sends has eleven.
const maxWord = 32

// Word returns the first word of a server's error line, by which servers class
// their errors: "READONLY" of "READONLY You can't write against a read only
// replica.". The text behind it differs between products and versions and must
// decide nothing. The word is cut at 32 bytes and before the first byte that is no
// printable ASCII, so it is safe to log.
func Word(refusal string) string {
	end := strings.IndexByte(refusal, ' ')
	if end < 0 {
		end = len(refusal)
	}
	if end > maxWord {
		end = maxWord
	}
	for i := 0; i < end; i++ {
		if refusal[i] < '!' || refusal[i] > '~' {
			end = i
		}
	}
	return refusal[:end]
}
