// Package limiter says where requests are counted: in the store that all
// gateways share, in this gateway's own memory, and what happens while the store
// fails. Its state belongs to the process and not to a middleware: connections
// are shared by all who use the same store in the same way, counts by all who
// name the same scope, and both outlive a reload of the configuration.
package limiter

import (
	"context"
	"crypto/tls"
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

	// FallbackLimit is how many requests of a client in a window this gateway lets
	// pass while the store fails and OnStoreFailure is Local, but never more than are
	// left; 0 leaves it to the number of gateways.
	FallbackLimit int64
	// FallbackGateways is the number of gateways that share then what is left of a
	// client's limit; 0 means as many as have announced themselves in the store.
	FallbackGateways int64
}

// StoreSettings name a store and the manner of its use. Middlewares whose
// settings are equal but for KeyPrefix use the same connection.
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
}

// Limiter holds clients to one limit. It has no state of its own, so that
// throwing it away at a reload loses nothing.
type Limiter struct {
	limit          int64
	onStoreFailure string
	fallback       window.FixedShare // Gateways is 0 where their number is learnt
	store          *store            // nil: counted in memory alone
	ledger         *ledger
	table          *table
}

// New returns a limiter. It opens no connection. While the context is not done this
// gateway counts as one of those that serve the scope, and keeps up with the store,
// once a request was counted there.
func New(ctx context.Context, s *Settings, now time.Time) *Limiter {
	l := &Limiter{
		limit:          s.Limit,
		onStoreFailure: s.OnStoreFailure,
		fallback:       window.FixedShare{Limit: s.FallbackLimit, Gateways: s.FallbackGateways},
	}
	if s.Store == nil {
		l.ledger = openLedger("local " + s.Scope + " " + strconv.FormatInt(s.Window, 10))
		l.table = openTable(l.ledger, "local", s.Scope, s.Window, s.MaxClients, now)
		return l
	}
	name := s.Store.Network + " " + s.Store.Address + " " + strconv.Itoa(s.Store.DB)
	l.ledger = openLedger(name)
	l.table = openTable(l.ledger, name, s.Store.KeyPrefix+":"+s.Scope, s.Window, s.MaxClients, now)
	l.store = openStore(s.Store, l.ledger)
	serve(l.store, ctx, l.table)
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
		return takeCounted(l, client, now, nil)
	}
	l.ledger.mu.Lock()
	l.table.used = true
	decision := window.FixedTake(l.table.counts, client, now.Unix(), l.limit)
	l.ledger.mu.Unlock()
	return decision, Local
}

// takeCounted decides by the store's count, if it has to and can. The first request
// of a batch leads it, the others wait until it is answered. before is the batch in
// which this request was taken in vain, if it was; its deadline is kept.
//
// A client whose count is known to have reached the limit is refused without the
// store, since a count never falls within its window. So whoever is over its limit
// costs the store nothing.
func takeCounted(l *Limiter, client string, now time.Time, before *batch) (window.Decision, string) {
	s := l.store
	if s.health.Load() >= away {
		passBy(s)
		return takeAlone(l, client, now, false)
	}
	origin := s.origin.Load()
	unix := (int64(now.Sub(began)) + origin) / int64(time.Second)
	l.ledger.mu.Lock()
	f := window.FixedFind(l.table.counts, client, unix)
	if f.Known >= l.limit {
		return refuseKnown(l, f, unix)
	}
	b := s.next
	leads := b == nil || before != nil && b.start.After(before.start)
	if leads {
		b = newBatch(s, origin, before)
	}
	if f.Turn != b.turn {
		if len(b.slots) == maxBatch {
			b = newBatch(s, origin, before)
			leads = true
		}
		addSlot(b, l.table, f)
	}
	sl := b.slots[f.Slot]
	sl.requests++
	place := sl.requests
	l.ledger.mu.Unlock()
	if leads {
		lead(b)
	} else {
		<-b.done
	}
	if sl.answer < 1 {
		return takeUnanswered(l, client, now, b, sl)
	}
	// The requests of the slot were counted together, and share the count in the
	// order in which they came.
	count := sl.answer - sl.requests + place
	left := f.End - unix
	if count > l.limit {
		return window.Decision{Reset: left, RetryAfter: left}, Shared
	}
	return window.Decision{Allowed: true, Remaining: l.limit - count, Reset: left}, Shared
}

// refuseKnown refuses a client by a count that is known. The way is Local where a
// part of it comes from this gateway alone. Who calls it holds the ledger's mutex, and
// does no more after it.
func refuseKnown(l *Limiter, f *window.FixedCount, unix int64) (window.Decision, string) {
	way := Shared
	if f.Lost+f.Unsettled > 0 {
		way = Local
	}
	left := f.End - unix
	l.table.used = true
	l.ledger.mu.Unlock()
	return window.Decision{Reset: left, RetryAfter: left}, way
}

// takeUnanswered decides a request to which its batch brought no count. It is taken
// again where the store did surely not count it, and would now.
func takeUnanswered(l *Limiter, client string, now time.Time, b *batch, sl *slot) (window.Decision, string) {
	waited := time.Since(b.start)
	over := sl.answer == window.FixedOver
	if (over || b.moved) && b.tries < maxTries && waited < l.store.timeout/2 {
		if over {
			// It belongs to the next window.
			left := sl.count.End - (int64(now.Sub(began))+b.origin)/int64(time.Second)
			now = now.Add(time.Duration(left) * time.Second)
		}
		return takeCounted(l, client, now, b)
	}
	if over {
		clockIsWrong(l.store)
	}
	// The wait may have been longer than a window: what counts is when it ended.
	return takeAlone(l, client, now.Add(waited), b.asked && !over)
}

// takeAlone decides without the store, as the operator chose. asked says that the
// store may have counted the request.
func takeAlone(l *Limiter, client string, now time.Time, asked bool) (window.Decision, string) {
	switch l.onStoreFailure {
	case Open:
		return window.Decision{Allowed: true}, Open
	case Closed:
		return window.Decision{RetryAfter: untilProbe(l.store, now)}, Closed
	}
	unix := storeTime(l.store, now) / int64(time.Second)
	share := l.fallback
	t := l.table
	l.ledger.mu.Lock()
	t.used = true
	if share.Gateways == 0 {
		share.Gateways = t.gateways
		if share.Gateways == 0 {
			share.Gateways = 1
		}
	}
	decision := window.FixedAlone(window.FixedFind(t.counts, client, unix), unix, l.limit, share, asked)
	l.ledger.mu.Unlock()
	return decision, Local
}
