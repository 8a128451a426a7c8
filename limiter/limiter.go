// Package limiter says where requests are counted: in the store that all
// gateways share, in this gateway's own memory, and what happens while the store
// fails. Its state belongs to the process and not to a middleware: connections
// are shared by all who use the same store in the same way, counts by all who
// name the same scope, and both outlive a reload of the configuration.
package limiter

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"strconv"
	"time"

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
	// Controlled: by what an operator has set, and no count. See Yield.
	Controlled = "control"
)

// second is one in nanoseconds.
const second = int64(time.Second)

// Settings are what one middleware asks for. They are checked elsewhere; New
// trusts them.
type Settings struct {
	Scope  string // whose count it is: middlewares of one scope share it
	Name   string // of the count, where a scope has several; "" is one too
	Limit  int64  // requests in a window, 1 to window.MaxCount
	Window int64  // length of a window in seconds, at least 1
	// Algorithm says how it is counted. All but window.Fixed are for NewSeveral alone.
	Algorithm  window.Algorithm
	Burst      int64 // tokens of a bucket, at least 1
	MaxClients int   // bound on clients held in memory for the scope, at least 1

	// Store is where all gateways count together; nil counts in memory alone.
	Store *StoreSettings

	// OnStoreFailure is the way of a request while the store fails: Local, Open
	// or Closed.
	OnStoreFailure string

	// FallbackLimit is how many requests of a client in a window this gateway lets
	// pass while the store fails and OnStoreFailure is Local, but never more than are
	// left; 0 leaves it to the number of gateways.
	FallbackLimit int64
	// FallbackGateways is the number of gateways that share then what is left of a
	// client's limit; 0 means as many as have announced themselves in the store.
	FallbackGateways int64
}

// StoreSettings name a store and the manner of its use. Middlewares whose
// settings are equal but for KeyPrefix and KeySecret use the same connection.
type StoreSettings struct {
	Endpoint    string // as the operator wrote it, for the log
	Network     string // "tcp" or "unix"
	Address     string // host:port, or the path of a socket
	Username    string
	Password    string
	DB          int
	TLS         *tls.Config   // nil: plain text
	TLSIdentity string        // what tells TLS settings apart
	Timeout     time.Duration // longest wait of a request, for its turn and its answer together
	DialTimeout time.Duration // longest time to open a connection
	KeyPrefix   string        // what all keys begin with
	KeySecret   string        // keys hold digests made with it; "": plain ones
}

// Limiter holds clients to one limit. It has no state of its own, so that
// throwing it away at a reload loses nothing.
type Limiter struct {
	limit            int64
	onStoreFailure   string
	fallbackLimit    int64  // 0: fallbackGateways says it
	fallbackGateways int64  // 0: as many as are learnt
	store            *store // nil: counted in memory alone
	ledger           *ledger
	table            *table
	counts           *window.FixedCounts // of the table
	yields           *bool               // to a control: guarded by the ledger's mutex
}

// New returns a limiter; now is the time by the clock of this machine. It opens no
// connection. While the context is not done this
// gateway counts as one of those that serve the scope, and keeps up with the store,
// once a request was counted there.
func New(ctx context.Context, s *Settings, now time.Time) *Limiter {
	l := &Limiter{
		limit:            s.Limit,
		onStoreFailure:   s.OnStoreFailure,
		fallbackLimit:    s.FallbackLimit,
		fallbackGateways: s.FallbackGateways,
		yields:           &never,
	}
	if s.Store == nil {
		l.ledger = openLedger("local " + s.Scope)
		l.table = openTable(l.ledger, "local", s.Scope, s, now)
		l.counts = l.table.counts
		return l
	}
	name := s.Store.Network + " " + s.Store.Address + " " + strconv.Itoa(s.Store.DB)
	l.ledger = openLedger(name)
	if s.Store.KeySecret != "" {
		digest := sha256.Sum256([]byte(s.Store.KeySecret))
		name += " " + hex.EncodeToString(digest[:])
	}
	l.table = openTable(l.ledger, name, s.Store.KeyPrefix+":"+s.Scope, s, now)
	l.counts = l.table.counts
	l.store = openStore(s.Store, l.ledger)
	l.ledger.mu.Lock()
	l.table.secret = s.Store.KeySecret // it is a part of the table's identity
	l.table.clock = &l.store.origin
	l.ledger.mu.Unlock()
	serve(ctx, l.store, l.table)
	return l
}

// WithLimit returns a limiter that differs from l in how high its limit is, 1 to
// window.MaxCount. It counts in the same counts.
func WithLimit(l *Limiter, limit int64) *Limiter {
	other := *l
	other.limit = limit
	return &other
}

// An interpreter makes each call pay for all variables of the function, those of
// branches not taken too. So the two ways to take a request are functions of their
// own, what is rare is left to others, and what could be one call less is:
//
//	TakeLocal
//	TakeShared      joins a batch that has its client already, or
//	  refuseKnown   refuses by what is known, or
//	  takeFirst     finds the way of all others:
//	    takeAway    the store is away
//	    takeSingle  the connection is free: the request asks for itself
//	    takeIn      it joins the next batch, or leads it
//	takeUnanswered  where that brings no count at once:
//	  takeAlone     without the store

// TakeLocal counts one request of a client in this gateway's memory and decides it: it
// fills in d, which is zero. The client is an identity as of source.Identify; at is when
// the request came, as the time since Began.
func TakeLocal(l *Limiter, client string, at time.Duration, d *window.Decision) {
	t := l.table
	l.ledger.mu.Lock()
	t.used = true
	window.FixedTake(l.counts, client, (int64(at)+t.origin)/second, l.limit, d)
	l.ledger.mu.Unlock()
	d.Way = Local
}

// TakeShared counts one request of a client in the store and decides it, as TakeLocal
// does. It waits for the store as long as its Timeout at most. The way is Shared or
// Local where the request was counted; for Open and Closed the decision says no more
// than Allowed and RetryAfter, and for Controlled no more than that.
//
// The first request of a batch leads it, the others wait until it is answered. A client
// whose count is known to have reached the limit is refused without the store, since a
// count never falls within its window. So whoever is over its limit costs the store
// nothing.
func TakeShared(l *Limiter, client string, at time.Duration, d *window.Decision) {
	s := l.store
	c := l.counts
	s.ledger.mu.Lock()
	if *l.yields {
		yield(l.ledger, d)
		return
	}
	unix := (int64(at) + s.origin) / second
	f := c.Newest[client]
	if f != nil && unix < c.End && unix >= c.Start {
		if f.Known >= l.limit {
			refuseKnown(l, f, unix, d)
			return
		}
		b := s.next
		if b != nil && b.turn == f.Turn {
			sl := b.slots[f.Slot]
			sl.requests++
			place := sl.requests
			s.ledger.mu.Unlock()
			<-b.done
			if sl.answer < 1 {
				takeUnanswered(l, client, at, b, sl, place, d)
				return
			}
			// What follows is decide, without the call.
			remaining := l.limit - sl.answer + sl.requests - place
			d.Way = Shared
			d.Reset = f.End - unix
			if remaining < 0 {
				d.RetryAfter = d.Reset
				return
			}
			d.Allowed = true
			d.Remaining = remaining
			return
		}
	} else {
		f = nil
	}
	takeFirst(l, f, client, at, unix, d)
}

// takeFirst is TakeShared for the first request of a client in a batch, or of all, and
// for whatever else is rare. f is the client's count, if it is known. Who calls it holds
// the ledger's mutex.
func takeFirst(l *Limiter, f *window.FixedCount, client string, at time.Duration, unix int64, d *window.Decision) {
	s := l.store
	if s.health >= away {
		takeAway(l, client, at, d)
		return
	}
	if f == nil {
		f = window.FixedFind(l.counts, client, unix)
	}
	if s.next == nil && f.Unsettled == 0 && f.Known < l.limit && s.turn.TryLock() {
		if s.conn != nil && !s.rested {
			takeSingle(l, f, at, unix, d)
			return
		}
		s.turn.Unlock()
	}
	takeIn(l, f, at, unix, d)
}

// takeIn has a request take part in a batch. Who calls it holds the ledger's mutex.
func takeIn(l *Limiter, f *window.FixedCount, at time.Duration, unix int64, d *window.Decision) {
	if f.Known >= l.limit {
		refuseKnown(l, f, unix, d)
		return
	}
	b := l.store.next
	leads := b == nil || len(b.slots) == maxBatch
	if leads {
		b = newBatch(l.store)
	}
	sl := slotIn(b, l.table, f, int64(at), unix)
	sl.requests++
	place := sl.requests
	l.ledger.mu.Unlock()
	if leads {
		lead(b)
	} else {
		<-b.done
	}
	decide(l, window.FixedClient(f), at, b, sl, place, unix, d)
}

// decide judges a request by what its batch brought. The requests of a slot were counted
// together, and share the count in the order in which they came, from place 1.
func decide(l *Limiter, client string, at time.Duration, b *batch, sl *slot, place, unix int64, d *window.Decision) {
	if sl.answer < 1 {
		takeUnanswered(l, client, at, b, sl, place, d)
		return
	}
	d.Way = Shared
	d.Reset = sl.count.End - unix
	remaining := l.limit - sl.answer + sl.requests - place
	if remaining < 0 {
		d.RetryAfter = d.Reset
		return
	}
	d.Allowed = true
	d.Remaining = remaining
}

// refuseKnown refuses a client by a count that is known. The way is Local where a
// part of it comes from this gateway alone, or the store is away. Who calls it holds
// the ledger's mutex, which it gives back.
func refuseKnown(l *Limiter, f *window.FixedCount, unix int64, d *window.Decision) {
	d.Way = Shared
	d.Known = true
	if f.Lost+f.Unsettled > 0 || l.store.health >= away {
		d.Way = Local
		d.Known = false
	}
	d.Reset = f.End - unix
	d.RetryAfter = d.Reset
	l.table.used = true
	l.ledger.mu.Unlock()
}

// takeUnanswered decides a request whose slot has no count: by the count of the slot that
// its requests were moved to, or else without the store.
func takeUnanswered(l *Limiter, client string, at time.Duration, b *batch, sl *slot, place int64, d *window.Decision) {
	for sl.move > 0 {
		sl = b.moves[sl.move-1]
	}
	if sl.answer > 0 {
		decide(l, client, at, b, sl, place, sl.unix, d)
		return
	}
	// The wait may have been longer than a window: what counts is when it ended.
	at += time.Since(b.start)
	l.ledger.mu.Lock()
	takeAlone(l, client, at, b.asked && sl.answer != window.FixedOver, d)
}

// takeAway decides a request while the store is away. Who calls it holds the ledger's
// mutex, which it gives back.
func takeAway(l *Limiter, client string, at time.Duration, d *window.Decision) {
	s := l.store
	s.passed++
	if !s.kept {
		startKeeper(s)
	}
	takeAlone(l, client, at, false, d)
}

// takeAlone decides without the store, as the operator chose. asked says that the
// store may have counted the request. Who calls it holds the ledger's mutex, which it
// gives back.
func takeAlone(l *Limiter, client string, at time.Duration, asked bool, d *window.Decision) {
	d.Way = l.onStoreFailure
	if d.Way != Local {
		l.ledger.mu.Unlock()
		refuseOrPass(l.store, d)
		return
	}
	t := l.table
	t.used = true
	unix := (int64(at) + l.store.origin) / second
	gateways := l.fallbackGateways
	if gateways == 0 {
		gateways = t.gateways
	}
	window.FixedAlone(window.FixedFind(l.counts, client, unix), unix, l.limit, l.fallbackLimit, gateways, asked, d)
	if d.Allowed {
		t.outageAllowed++
	}
	l.ledger.mu.Unlock()
}

// refuseOrPass decides a request that is not counted, by its way: Open or Closed.
func refuseOrPass(s *store, d *window.Decision) {
	if d.Way == Open {
		d.Allowed = true
	} else {
		d.RetryAfter = untilProbe(s)
	}
}
