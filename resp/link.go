package resp

import (
	"fmt"
	"sync"
	"time"
)

// errConnecting is what a caller of Connect gets whose time ran out.
var errConnecting = fmt.Errorf("%w: %w while connecting", ErrDial, ErrTimeout)

// Link keeps one connection to one server, and opens another when that one is of no
// more use. One caller at a time uses it, from Connect until the answers to its last
// command are read: the turns are the callers' affair. Drop and Connected need no
// turn.
type Link struct {
	o      *Options
	opened func(c *Conn, deadline time.Time) error

	mu sync.Mutex // guards what follows
	// conn is the open connection, or one that its user has used up, or nil.
	conn *Conn
	// opening says that a connection is being opened. There is none meanwhile.
	opening bool
	// retired says that nobody waits for what is being opened, nor will.
	retired bool
	caller  *caller // who waits for the opening, or nil
}

// caller is a caller of Connect that waits. Its fields are written under the link's
// mutex, once, when done is closed.
type caller struct {
	done   chan struct{}
	served bool
	conn   *Conn
	err    error
}

// NewLink returns a link whose connections are opened with o. opened, unless it is
// nil, runs on each new connection before its first use and within the time left of
// o.DialTimeout; its error discards the connection. Nothing is dialled before the
// first Connect. o must not change afterwards.
func NewLink(o *Options, opened func(c *Conn, deadline time.Time) error) *Link {
	return &Link{o: o, opened: opened}
}

// Connect returns the connection of l, which is the caller's until the end of its
// turn. If there is none that may be used, one is opened in the background, and
// Connect waits for it until deadline. The opening goes on for as long as
// o.DialTimeout allows, and a connection that comes up late is there for the next
// Connect. No more than one is opened at a time.
//
// The error is that of the opening: it wraps ErrDial, ErrRefused, ErrLost, ErrProtocol
// or ErrTimeout and never has the password in it, or is that of opened. Where deadline
// came first it wraps ErrDial and ErrTimeout. After an error nothing was sent on behalf
// of the caller.
func Connect(l *Link, deadline time.Time) (*Conn, error) {
	l.mu.Lock()
	c := l.conn
	l.mu.Unlock()
	if c != nil && c.Usable {
		return c, nil
	}
	return await(l, deadline)
}

// await sees to it that a connection is being opened and waits for it until deadline.
func await(l *Link, deadline time.Time) (*Conn, error) {
	w := &caller{done: make(chan struct{})}
	apply(l, w)
	timer := time.AfterFunc(time.Until(deadline), func() {
		defer func() { _ = recover() }()
		giveUp(l, w)
	})
	<-w.done
	timer.Stop()
	return w.conn, w.err
}

// apply makes w the caller that the opening under way serves, or a new one. Where one
// has just ended w is served at once.
func apply(l *Link, w *caller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil && l.conn.Usable {
		serve(w, l.conn, nil)
		return
	}
	if l.conn != nil {
		closeConn(l.conn)
		l.conn = nil
	}
	l.caller = w
	l.retired = false
	if !l.opening {
		l.opening = true
		go open(l)
	}
}

// giveUp ends the wait of w, unless it has been served.
func giveUp(l *Link, w *caller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	serve(w, nil, errConnecting)
}

// serve ends the wait of w, unless it has been served. The caller holds the mutex of
// the link.
func serve(w *caller, c *Conn, err error) {
	if w.served {
		return
	}
	w.served, w.conn, w.err = true, c, err
	close(w.done)
}

// open opens a connection and hands it over.
func open(l *Link) {
	var c *Conn
	defer func() {
		if r := recover(); r != nil {
			if c != nil {
				closeConn(c)
			}
			deliver(l, nil, fmt.Errorf("%w: panic: %v", ErrDial, r))
		}
	}()
	deadline := time.Now().Add(l.o.DialTimeout)
	var err error
	c, err = dialUntil(l.o, deadline)
	if err == nil && l.opened != nil {
		err = l.opened(c, deadline)
	}
	if err == nil && !c.Usable {
		err = fmt.Errorf("%w: the answers to the opening were not read", ErrProtocol)
	}
	if err != nil && c != nil {
		closeConn(c)
		c = nil
	}
	deliver(l, c, err)
}

// deliver takes over what open has come to: a connection, or an error. An error that
// nobody waits for is forgotten: the next Connect tries anew.
func deliver(l *Link, c *Conn, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opening = false
	if l.retired && c != nil {
		closeConn(c)
		c = nil
	}
	l.conn = c
	if l.caller != nil {
		serve(l.caller, c, err)
		l.caller = nil
	}
}

// Retire is Drop for a link that is of no use for now: a connection that is being opened
// is closed when it comes up. Connect brings the link back. Who calls it has the turn.
func Retire(l *Link) {
	Drop(l)
	l.mu.Lock()
	l.retired = true
	l.mu.Unlock()
}

// Drop closes the connection of l, if there is one. Whoever is using it gets an
// error that wraps ErrLost. One that is being opened is new and comes up
// nevertheless.
func Drop(l *Link) {
	l.mu.Lock()
	c := l.conn
	l.conn = nil
	l.mu.Unlock()
	if c != nil {
		// Its user may be at work, so nothing but the socket is touched.
		_ = c.raw.Close()
	}
}

// Connected reports whether l has a connection. After an error it is one that is
// used up, until Drop or the next Connect.
func Connected(l *Link) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil
}
