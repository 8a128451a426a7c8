package resp

import (
	"fmt"
	"sync"
	"time"
)

// errSilent is what a waiter gets that waited for the server alone.
var errSilent = fmt.Errorf("%w: %w while connecting", ErrPoolTimeout, ErrTimeout)

// Pool keeps connections to one server. It opens them when they are needed, never
// more than its size, and closes those that nobody needs.
type Pool struct {
	o        *Options
	size     int
	idleTime time.Duration
	opened   func(c *Conn, deadline time.Time) error

	mu sync.Mutex
	// idle has the connections that nobody uses. The last one became idle last and
	// is taken first, so that those beyond the need of the hour grow old.
	idle    []*Conn
	open    int // connections open, idle or in use
	dialing int // connections being opened
	waiters []*waiter
	// tick counts the beats of the timer, two in each idleTime. The timer beats
	// while there are idle connections, and once more.
	tick    int
	ticking bool
}

// waiter is a caller of Acquire that found no connection. Its fields are written
// under the pool's mutex, once, before done is closed.
type waiter struct {
	done chan struct{}
	conn *Conn
	err  error
}

// NewPool returns a pool of at most size connections opened with o. A connection is
// closed before it has been idle for idleTime. opened, unless it is nil, runs on
// each new connection before its first use and within the time left of
// o.DialTimeout; its error discards the connection. Nothing is dialled before the
// first Acquire. o must not change afterwards.
func NewPool(o *Options, size int, idleTime time.Duration, opened func(c *Conn, deadline time.Time) error) *Pool {
	if size < 1 {
		size = 1
	}
	return &Pool{o: o, size: size, idleTime: idleTime, opened: opened}
}

// Acquire returns a connection that is the caller's until Release or Discard. It
// takes the one that became idle last. If there is none, it waits until deadline
// for one to be released or opened, in the order of arrival. Opening goes on in the
// background for as long as o.DialTimeout allows, and serves whoever waits then.
//
// The error wraps ErrPoolTimeout, or is that of a failed Dial when no connection is
// open, so that there is none to wait for.
func Acquire(p *Pool, deadline time.Time) (*Conn, error) {
	p.mu.Lock()
	last := len(p.idle) - 1
	if last < 0 {
		w := enqueue(p)
		p.mu.Unlock()
		return wait(p, w, deadline)
	}
	c := p.idle[last]
	p.idle = p.idle[:last]
	p.mu.Unlock()
	return c, nil
}

// enqueue adds a waiter and sees to it that a connection is on its way. The caller
// holds p.mu.
func enqueue(p *Pool) *waiter {
	w := &waiter{done: make(chan struct{})}
	p.waiters = append(p.waiters, w)
	dialForWaiters(p)
	return w
}

// dialForWaiters starts to open a connection for each waiter that has none on its
// way, as far as the size of the pool allows. The caller holds p.mu.
func dialForWaiters(p *Pool) {
	for p.dialing < len(p.waiters) && p.open+p.dialing < p.size {
		p.dialing++
		go dialInBackground(p)
	}
}

// wait returns what w is given until deadline.
func wait(p *Pool, w *waiter, deadline time.Time) (*Conn, error) {
	timer := time.AfterFunc(time.Until(deadline), func() {
		defer func() { _ = recover() }()
		expire(p, w)
	})
	<-w.done
	timer.Stop()
	return w.conn, w.err
}

// expire ends the wait of w, unless it has been served.
func expire(p *Pool, w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.waiters {
		if other == w {
			p.waiters = append(p.waiters[:i], p.waiters[i+1:]...)
			w.err = ErrPoolTimeout
			if p.open == 0 {
				w.err = errSilent
			}
			close(w.done)
			return
		}
	}
}

// dialInBackground opens one connection and hands it over.
func dialInBackground(p *Pool) {
	var c *Conn
	defer func() {
		if r := recover(); r != nil {
			if c != nil {
				Close(c)
			}
			dialled(p, nil, fmt.Errorf("%w: panic: %v", ErrDial, r))
		}
	}()
	deadline := time.Now().Add(p.o.DialTimeout)
	var err error
	c, err = dialUntil(p.o, deadline)
	if err == nil && p.opened != nil {
		err = p.opened(c, deadline)
	}
	if err == nil && !c.ok {
		err = fmt.Errorf("%w: the answers to the opening were not read", ErrProtocol)
	}
	if err != nil && c != nil {
		Close(c)
		c = nil
	}
	dialled(p, c, err)
}

// dialled takes over what dialInBackground has come to: a connection, or an error.
func dialled(p *Pool, c *Conn, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialing--
	if err == nil {
		p.open++
		handOver(p, c)
		return
	}
	if p.open > 0 {
		return
	}
	for _, w := range p.waiters {
		w.err = err
		close(w.done)
	}
	p.waiters = nil
}

// handOver gives a connection to the oldest waiter, or keeps it idle. The caller
// holds p.mu.
func handOver(p *Pool, c *Conn) {
	if len(p.waiters) > 0 {
		w := p.waiters[0]
		p.waiters[0] = nil
		p.waiters = p.waiters[1:]
		w.conn = c
		close(w.done)
		return
	}
	c.tick = p.tick
	p.idle = append(p.idle, c)
	if !p.ticking {
		p.ticking = true
		startTimer(p)
	}
}

// Release gives a connection back. It is kept if it may be used again, for the
// oldest waiter first, and closed otherwise. If it was lost, the idle ones are
// closed with it: they lead to the same server, which is gone or was restarted.
func Release(p *Pool, c *Conn) {
	if !c.ok {
		Discard(p, c)
		return
	}
	p.mu.Lock()
	if len(p.waiters) > 0 || !p.ticking {
		handOver(p, c)
	} else {
		c.tick = p.tick
		p.idle = append(p.idle, c)
	}
	p.mu.Unlock()
}

// Discard closes a connection instead of giving it back.
func Discard(p *Pool, c *Conn) {
	Close(c)
	if c.lost {
		DropIdle(p)
	}
	p.mu.Lock()
	p.open--
	dialForWaiters(p)
	p.mu.Unlock()
}

// DropIdle closes the connections that nobody uses. Those in use stay.
func DropIdle(p *Pool) {
	p.mu.Lock()
	dropped := p.idle
	p.idle = nil
	p.open -= len(dropped)
	p.mu.Unlock()
	for _, c := range dropped {
		Close(c)
	}
}

// Stats returns how many connections are open, and how many of these are idle.
func Stats(p *Pool) (open, idle int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open, len(p.idle)
}

func startTimer(p *Pool) {
	time.AfterFunc(p.idleTime/2, func() {
		defer func() { _ = recover() }()
		beat(p)
	})
}

// beat closes the connections that were idle for a whole beat of the timer, which
// is between a half and the whole of idleTime, and lets the timer go on while there
// are others.
func beat(p *Pool) {
	for _, c := range takeOld(p) {
		Close(c)
	}
}

// takeOld moves the tick on and takes out the connections that are too old. The
// list is in order of age, so they come first.
func takeOld(p *Pool) []*Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tick++
	old := 0
	for old < len(p.idle) && p.idle[old].tick+2 <= p.tick {
		old++
	}
	dropped := append([]*Conn(nil), p.idle[:old]...)
	p.idle = append(p.idle[:0], p.idle[old:]...)
	p.open -= old
	p.ticking = len(p.idle) > 0
	if p.ticking {
		startTimer(p)
	}
	return dropped
}
