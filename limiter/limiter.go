// Package limiter says where requests are counted: in the store that all
// gateways share, in this gateway's own memory, and what happens while the store
// fails. Its state belongs to the process and not to a middleware: connections
// are shared by all who use the same store in the same way, counts by all who
// name the same scope, and both outlive a reload of the configuration.
package limiter

import (
	"crypto/tls"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/gatequota/gatequota/resp"
	"github.com/gatequota/gatequota/window"
)

// By which way a request was decided.
const (
	// Shared: by the count in the store.
	Shared = "shared"
	// Local: by the count in this gateway's memory.
	Local = "local"
	// Open: let pass uncounted, because the store failed.
	Open = "open"
	// Closed: held back uncounted, because the store failed.
	Closed = "closed"
)

// Settings are what one middleware asks for. They are checked elsewhere; New
// trusts them.
type Settings struct {
	Scope      string // whose count it is: middlewares of one scope share it
	Limit      int64  // requests in a window, 1 to window.MaxCount
	Window     int64  // length of a window in seconds, at least 1
	MaxClients int    // bound on clients held in memory for the scope, at least 1

	// Store is where all gateways count together; nil counts in memory alone.
	Store *StoreSettings

	// OnStoreFailure is the way of a request while the store fails: Local, Open
	// or Closed.
	OnStoreFailure string
}

// StoreSettings name a store and the manner of its use. Middlewares whose
// settings are equal but for KeyPrefix use the same connections.
type StoreSettings struct {
	Endpoint    string // as the operator wrote it, for the log
	Network     string // "tcp" or "unix"
	Address     string // host:port, or the path of a socket
	Username    string
	Password    string
	DB          int
	TLS         *tls.Config   // nil: plain text
	TLSIdentity string        // what tells TLS settings apart
	Timeout     time.Duration // longest wait of a request, for a connection and its answer together
	DialTimeout time.Duration // longest time to open a connection
	KeyPrefix   string        // what all keys begin with
}

// Limiter holds clients to one limit. It has no state of its own, so that
// throwing it away at a reload loses nothing.
type Limiter struct {
	limit, window  int64
	store          *store
	keyPrefix      string // of the store's keys: "rate"
	keyHead        string // of this scope's keys, up to the client: "rate:apikey:{"
	onStoreFailure string
	table          *table
}

// New returns a limiter. It opens no connection.
func New(s *Settings, now time.Time) *Limiter {
	l := &Limiter{
		limit:          s.Limit,
		window:         s.Window,
		onStoreFailure: s.OnStoreFailure,
	}
	ledger := ""
	if s.Store != nil {
		ledger = s.Store.Network + " " + s.Store.Address + " " + strconv.Itoa(s.Store.DB) + " " + s.Store.KeyPrefix
		l.store = openStore(s.Store)
		l.keyPrefix = s.Store.KeyPrefix
		l.keyHead = s.Store.KeyPrefix + ":" + s.Scope + ":{"
	}
	l.table = openTable(ledger, s.Scope, s.Window, s.MaxClients, now)
	return l
}

// Take counts one request of a client at a time and decides it. It waits for
// the store as long as its Timeout at most. The client is an identity of
// constant size, in bytes. The way is Shared or Local where the request was
// counted; for Open and Closed the decision says no more than Allowed and
// RetryAfter.
//
// An interpreter makes each call pay for all variables of the function, those of
// branches not taken too; so the ways are functions of their own.
func Take(l *Limiter, client string, now time.Time) (window.Decision, string) {
	if l.store != nil {
		return takeCounted(l, client, now)
	}
	return takeLocal(l, client, now.Unix(), false), Local
}

// takeCounted decides by the store's count, if it has to and can.
//
// A client whose count is known to have reached the limit is refused without the
// store, since a count never falls within its window. So whoever is over its limit
// cannot keep the store busy, nor its connections from others.
func takeCounted(l *Limiter, client string, now time.Time) (window.Decision, string) {
	if l.store.health.Load() >= away {
		passBy(l.store)
		return takeAlone(l, client, now, false)
	}
	unix := storeTime(l.store, now) / int64(time.Second)
	l.table.mu.Lock()
	known := window.FixedKnown(l.table.counts, client, unix)
	l.table.mu.Unlock()
	if known >= l.limit {
		return refuseKnown(l, known, unix)
	}
	c := &call{limiter: l, client: client, now: now, start: time.Now()}
	askStore(c)
	if c.answered {
		return takeShared(c), Shared
	}
	// The wait may have been longer than a window: what counts is when it ended.
	return takeAlone(l, client, now.Add(time.Since(c.start)), c.spared)
}

// refuseKnown refuses a client by a count that is known. The way is Local while
// counts come from this gateway alone.
func refuseKnown(l *Limiter, known, unix int64) (window.Decision, string) {
	way := Shared
	l.table.mu.Lock()
	if l.table.alone || l.store.health.Load() > 0 {
		way = Local
	}
	l.table.mu.Unlock()
	_, left := window.FixedAt(unix, l.window)
	return window.FixedDecide(known+1, l.limit, left), way
}

// takeLocal decides by the count in this gateway's memory. unix is the time in
// seconds; alone says that the store did not count though it is well.
func takeLocal(l *Limiter, client string, unix int64, alone bool) window.Decision {
	t := l.table
	t.mu.Lock()
	t.used = true
	t.alone = alone
	decision := window.FixedTake(t.counts, client, unix, l.limit)
	t.mu.Unlock()
	return decision
}

// takeShared decides by the count that the store answered, and notes it for the
// time when the store may not answer.
func takeShared(c *call) window.Decision {
	t := c.limiter.table
	t.mu.Lock()
	t.used = true
	t.alone = false
	window.FixedRaise(t.counts, c.client, c.window, c.count)
	t.mu.Unlock()
	return window.FixedDecide(c.count, c.limiter.limit, c.left)
}

// takeAlone decides without the store, as the operator chose. spared says that the
// store is well, but did not count this.
func takeAlone(l *Limiter, client string, now time.Time, spared bool) (window.Decision, string) {
	switch l.onStoreFailure {
	case Open:
		return window.Decision{Allowed: true}, Open
	case Closed:
		return window.Decision{RetryAfter: untilProbe(l.store, now)}, Closed
	}
	return takeLocal(l, client, storeTime(l.store, now)/int64(time.Second), spared), Local
}

// A call is one request's turn at the store.
type call struct {
	limiter *Limiter
	client  string
	now     time.Time  // of the request, by which its window is found
	start   time.Time  // of this turn, by the clock of this machine
	conn    *resp.Conn // held while the store is asked

	// What came of it. The count is valid where answered is set.
	answered bool
	window   int64
	left     int64
	count    int64
	refusal  string // an answer of the store that is no count
	err      error  // no answer
	spared   bool   // neither of them is held against the store
}

var fixed = resp.NewScript(window.FixedScript)

// askStore makes one attempt at a shared count. The store is asked again only
// when it says that nothing was counted, because the window is over by its
// clock.
func askStore(c *call) {
	defer settle(c)
	l, s := c.limiter, c.limiter.store
	deadline := c.start.Add(s.timeout)
	c.conn, c.err = resp.Acquire(s.pool, deadline)
	if c.err != nil {
		return
	}
	used := int64(c.start.Sub(began))
	if used-c.conn.Used > int64(restless) && !replaceDead(c, used, deadline) {
		return
	}
	c.conn.Used = used
	if used-c.conn.Stamp > int64(s.clockAge) {
		c.refusal, c.err = readClock(s, c.conn, deadline)
		if c.err != nil || c.refusal != "" {
			return
		}
	}
	if time.Since(c.start) > s.timeout/4*3 {
		// What is left would be no fair chance for the store.
		c.err = resp.ErrPoolTimeout
		return
	}
	// Only now is the store's clock known for certain, on a first connection.
	id, left := window.FixedAt(storeTime(s, c.now)/int64(time.Second), l.window)
	key := l.keyHead + hex.EncodeToString([]byte(c.client)) + "}:"
	for try := 0; try < 2; try++ {
		end := (id + 1) * l.window
		count, refusal, err := resp.Eval(c.conn, deadline, fixed, key+strconv.FormatInt(id, 10),
			[]string{"1", strconv.FormatInt(left, 10), strconv.FormatInt(end, 10)})
		c.window, c.left, c.count, c.refusal, c.err = id, left, count, refusal, err
		if err != nil || refusal != "" {
			return
		}
		if count > 0 {
			c.answered = true
			return
		}
		if count != window.FixedOver {
			c.refusal = "ERR a count below one"
			return
		}
		id, left = id+1, l.window
	}
	c.refusal = "ERR the store's clock is ahead by more than a window"
	c.conn.Stamp -= int64(time.Hour) // so that it is read again
}

// replaceDead sees to it that the connection in hand, which was idle, is alive. It
// may have been closed by the server, or by what stands in between, and whoever sends
// on it learns of that too late. It reports whether there is a connection.
func replaceDead(c *call, used int64, deadline time.Time) bool {
	s := c.limiter.store
	for used-c.conn.Used > int64(restless) && !resp.Alive(c.conn) {
		resp.Discard(s.pool, c.conn)
		c.conn, c.err = resp.Acquire(s.pool, deadline)
		if c.err != nil {
			return false
		}
	}
	return true
}

// settle ends a turn at the store, also one that a panic broke off: it gives the
// connection back and tells the store's health.
func settle(c *call) {
	s := c.limiter.store
	if r := recover(); r != nil {
		c.answered = false
		c.err = panicked(r)
	}
	if c.conn != nil {
		resp.Release(s.pool, c.conn)
	}
	if !c.answered {
		c.spared = !failed(s, c.limiter.keyPrefix, c.refusal, c.err)
	} else if s.health.Load() != 0 {
		answered(s)
	}
}
