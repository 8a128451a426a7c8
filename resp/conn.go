package resp

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Options says how a connection is opened.
type Options struct {
	// Network and Address are those of net.Dial, as ParseEndpoint returns them. A
	// name is resolved anew for every connection.
	Network, Address string
	// Username and Password are sent with AUTH: both, the password alone, or, where
	// both are empty, no AUTH at all.
	Username, Password string
	// DB is the number of the database; 0 is where every connection begins and is
	// not selected.
	DB int
	// TLS is the configuration of the handshake; nil means a plain connection. An
	// empty ServerName becomes the host of Address.
	TLS *tls.Config
	// DialTimeout bounds name resolution, connect, handshake, AUTH and SELECT
	// together. It must be positive.
	DialTimeout time.Duration
}

// Conn is one connection. It belongs to one goroutine at a time.
type Conn struct {
	// Usable says that the connection may be used: see answered. It is false from the
	// moment a command is written until its answer was read, and for good after an
	// error. Drop, which comes from outside of the turns, does not touch it. It is read
	// by whoever has the connection, and set by this package alone: it is exported, and
	// no function, because every request reads it, and in an interpreter a call costs
	// as much as ten statements.
	Usable bool

	net net.Conn // what is read and written: raw, or TLS over it
	// raw is what is closed. Closing TLS would write first, and could block for
	// seconds on a server that is gone.
	raw net.Conn
	in  *bufio.Reader
}

// dialUntil opens a connection: connect, TLS handshake, AUTH and SELECT, all of it
// until deadline. Every answer is read and checked, and whatever is not as it should
// be closes the connection. The error wraps ErrDial, ErrRefused, ErrLost, ErrProtocol
// or ErrTimeout, and never has the password in it.
func dialUntil(o *Options, deadline time.Time) (*Conn, error) {
	dialer := net.Dialer{Deadline: deadline}
	raw, err := dialer.Dial(o.Network, o.Address)
	if err != nil {
		return nil, dialError(err)
	}
	c := &Conn{raw: raw, net: raw, Usable: true}
	if o.TLS != nil {
		secured := tls.Client(raw, tlsFor(o))
		if err := raw.SetDeadline(deadline); err != nil {
			closeConn(c)
			return nil, dialError(err)
		}
		if err := secured.Handshake(); err != nil {
			closeConn(c)
			return nil, dialError(fmt.Errorf("TLS handshake: %w", err))
		}
		c.net = secured
	}
	c.in = bufio.NewReaderSize(c.net, maxLine)
	if o.Username != "" {
		err = demandOK(c, o, deadline, "AUTH", o.Username, o.Password)
	} else if o.Password != "" {
		err = demandOK(c, o, deadline, "AUTH", o.Password)
	}
	if err == nil && o.DB != 0 {
		err = demandOK(c, o, deadline, "SELECT", strconv.Itoa(o.DB))
	}
	if err != nil {
		closeConn(c)
		return nil, err
	}
	return c, nil
}

// tlsFor returns o.TLS with a server name to verify.
func tlsFor(o *Options) *tls.Config {
	if o.TLS.ServerName != "" {
		return o.TLS
	}
	host, _, err := net.SplitHostPort(o.Address)
	if err != nil {
		return o.TLS
	}
	config := o.TLS.Clone()
	config.ServerName = host
	return config
}

// demandOK sends a command of the opening, whose only good answer is OK.
func demandOK(c *Conn, o *Options, deadline time.Time, args ...string) error {
	reply, err := Do(c, deadline, args...)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	if reply.Kind == '-' {
		word := Word(reply.Text)
		if o.Password != "" && (strings.Contains(word, o.Password) || strings.Contains(o.Password, word)) {
			word = "a word that is not shown"
		}
		return fmt.Errorf("%w: %s answered with %s", ErrRefused, args[0], word)
	}
	if reply.Kind != '+' || reply.Text != "OK" {
		return fmt.Errorf("%s: %w: it is not OK", args[0], ErrProtocol)
	}
	if !c.Usable {
		return fmt.Errorf("%s: %w: more than one answer", args[0], ErrProtocol)
	}
	return nil
}

// dialError classes an error of the connect or the handshake.
func dialError(err error) error {
	var netErr net.Error
	if errors.As(err, &netErr) && netErr.Timeout() {
		return fmt.Errorf("%w: %w: %w", ErrDial, ErrTimeout, err)
	}
	return fmt.Errorf("%w: %w", ErrDial, err)
}

// closeConn closes the connection. It is for the one goroutine that c belongs to;
// Drop is for everybody.
func closeConn(c *Conn) {
	c.Usable = false
	_ = c.raw.Close()
}

// peekTime is how long Alive listens. It has to be in the future when the read
// begins, and is otherwise lost.
const peekTime = 200 * time.Microsecond

// Alive reports whether a connection that was idle can be used: neither closed by
// the other end nor holding bytes that nobody asked for. It takes a fifth of a
// millisecond, so it is for connections that were idle for long. A connection that
// breaks without a word is not found out.
func Alive(c *Conn) bool {
	if !c.Usable {
		return false
	}
	if err := c.net.SetReadDeadline(time.Now().Add(peekTime)); err != nil {
		return false
	}
	_, err := c.in.Peek(1)
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// Do sends one command and reads its reply, both until deadline. It is for commands
// off the busy path: see EvalAll. An error line is a Reply of kind '-' and no error.
// The error wraps ErrTimeout, ErrLost or ErrProtocol; after it the connection is of
// no more use.
func Do(c *Conn, deadline time.Time, args ...string) (Reply, error) {
	if !c.Usable {
		return Reply{}, usedAgain()
	}
	c.Usable = false
	// On a connection that takes no deadline Write fails too.
	_ = c.net.SetDeadline(deadline)
	if _, err := c.net.Write([]byte(encode(args))); err != nil {
		return Reply{}, broken(err)
	}
	reply, err := readReply(c.in)
	if err != nil {
		return Reply{}, broken(err)
	}
	if reply.Kind == '-' {
		answered(c, reply.Text)
	} else {
		answered(c, "")
	}
	return reply, nil
}

func usedAgain() error {
	return fmt.Errorf("%w: it was given up before", ErrLost)
}

// broken classes an error that ended a command half-way.
func broken(err error) error {
	if errors.Is(err, ErrProtocol) {
		return err
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ErrTimeout
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// answered is the one rule for using a connection again, and the default is no. It
// is called when a reply has been read to its end; refusal is its error line, if it
// was one. The connection stays in use unless the line forbids it, or something
// came behind the reply: that would be taken for the answer to the next command,
// and so on for ever.
func answered(c *Conn, refusal string) {
	c.Usable = c.in.Buffered() == 0 && !forbidsReuse(refusal)
}

// forbidsReuse tells whether an error line says that this server cannot do the work
// for now, while another one behind the same name may: the next connection resolves
// the name again.
func forbidsReuse(refusal string) bool {
	switch Word(refusal) {
	case "READONLY", "LOADING", "MASTERDOWN":
		return true
	}
	return false
}

// headers[n] is header(n), for all that calls usually consist of: numbers, and a key of
// some hundred bytes, 64 of which are a digest. What is longer than 255 bytes costs a
// call of header, and nothing else.
var headers []string

func init() {
	for n := 0; n < 256; n++ {
		headers = append(headers, header(n))
	}
}

// header is what stands between the text before and a bulk string of n bytes: the
// end of the line, and the length.
func header(n int) string {
	return "\r\n$" + strconv.Itoa(n) + "\r\n"
}

// encode returns a command as an array of bulk strings. Lengths count bytes.
func encode(args []string) string {
	text := "*" + strconv.Itoa(len(args))
	for _, arg := range args {
		text += header(len(arg)) + arg
	}
	return text + "\r\n"
}
