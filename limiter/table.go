package limiter

import (
	"strconv"
	"sync"
	"time"

	"github.com/gatequota/gatequota/control"
	"github.com/gatequota/gatequota/window"
)

// A ledger is where scopes are counted: a store, however one logs in there, or the
// memory of this gateway. Its mutex guards the tables of its scopes and the queues
// in front of its connections: a request joins a queue in the same step in which it
// finds its count.
type ledger struct {
	mu    sync.Mutex
	turns int64 // batches made, guarded by mu
	calls int64 // names given to calls, guarded by mu
	// holds are those of scopes, as they begin the store's keys; guarded by mu.
	holds map[string]*control.Hold
}

// A table holds the counts of one name in one scope in this gateway's memory, for one
// ledger and for windows of one length. Windows of different lengths, or by the clocks of
// different stores, have numbers that do not compare.
type table struct {
	name   string // of the scope; "": it is a guard's
	count  string // the name of the count, if it has one
	scope  string // of the store's keys: "rate:apikey"
	head   string // the same with the name of the count, if it has one: "rate:apikey:login"
	secret string // for digests of clients in keys; "": none
	length int64  // of a window, in seconds
	ledger *ledger

	// These are guarded by the ledger's mutex.
	origin     int64               // for a scope that is counted in memory: unix nanoseconds at Began
	counts     *window.FixedCounts // of fixed and sliding windows
	entries    *window.Entries     // of logs and buckets
	clock      *int64              // the origin of the store that it was last counted in; nil: its own
	max        int                 // clients, as it was last set
	limit      window.Limit        // as it was last set
	keep       int64               // after so many seconds without use it says nothing
	used       bool                // counted in since idle was set
	gateways   int64               // that count in this scope, this one included, as last learnt; 0: never
	gatewaysAt time.Time           // when that was learnt
	tail       string              // encoded arguments of the script that are the same for all
	tailEnd    int64               // the end of the window for which they are, in unix seconds
	tailAt     int64               // the time for which they are, in unix seconds
	hold       *control.Hold       // of whom nothing is remembered; nil: all are

	outageAllowed, outageSettled int64 // as of TableReport

	idle time.Time // guarded by tablesMu: no count is younger, unless used
}

var (
	tablesMu sync.Mutex
	tables   = map[string]*table{}  // guarded by tablesMu
	ledgers  = map[string]*ledger{} // guarded by tablesMu
)

// openLedger returns the ledger of that name, always the same one.
func openLedger(name string) *ledger {
	tablesMu.Lock()
	defer tablesMu.Unlock()
	l := ledgers[name]
	if l == nil {
		// The same store may be written in two ways: calls have names of their own all the same.
		l = &ledger{calls: int64(len(ledgers)) << 40, holds: map[string]*control.Hold{}}
		ledgers[name] = l
	}
	return l
}

// openTable returns the table of a name, or none, in a scope in a ledger. It is made at first use and then
// kept, since handlers of an earlier configuration may still count in it; but tables in
// which nothing was counted for so long that they say nothing are emptied. Where several middlewares
// of one scope differ in maxClients, the one that was loaded last is obeyed.
func openTable(l *ledger, where, scope string, s *Settings, now time.Time) *table {
	tablesMu.Lock()
	defer tablesMu.Unlock()
	for _, t := range tables {
		t.ledger.mu.Lock()
		if t.used {
			t.used = false
			t.idle = now
		} else if now.Sub(t.idle) > time.Duration(t.keep)*time.Second {
			empty(t)
		}
		t.ledger.mu.Unlock()
	}
	head := scope
	if s.Name != "" {
		head += ":" + s.Name
	}
	head += suffixes[s.Algorithm]
	identity := where + " " + head + " " + strconv.FormatInt(s.Window, 10)
	t := tables[identity]
	if t == nil {
		t = newTable(l, scope, head, s, now)
		tables[identity] = t
	}
	l.mu.Lock()
	t.origin = now.UnixNano() - int64(now.Sub(Began))
	t.limit = window.Limit{Algorithm: s.Algorithm, Limit: s.Limit, Length: s.Window, Burst: s.Burst}
	t.hold = l.holds[scope]
	keepFor(t, &t.limit)
	setMax(t, s.MaxClients)
	l.mu.Unlock()
	return t
}

// Show has the limit of l be the one by which its clients are reported: the last to be made
// or shown is.
func Show(l *Limiter) {
	l.ledger.mu.Lock()
	l.table.limit.Limit = l.limit
	l.ledger.mu.Unlock()
}

// ShowSeveral is Show for several limits.
func ShowSeveral(q *Several) {
	q.ledger.mu.Lock()
	for i, t := range q.tables {
		t.limit = *q.limits[i]
	}
	q.ledger.mu.Unlock()
}

// suffixes are what stands before the braces of a key, by algorithm.
var suffixes = []string{"", ":sw", ":log", ":tb"}

func newTable(l *ledger, scope, head string, s *Settings, now time.Time) *table {
	t := &table{name: s.Scope, count: s.Name, scope: scope, head: head, length: s.Window, ledger: l, idle: now}
	switch s.Algorithm {
	case window.Fixed:
		t.counts = window.NewFixedCounts(s.Window, s.MaxClients)
	case window.Sliding:
		t.counts = window.NewSlidingCounts(s.Window, s.MaxClients)
	default:
		t.entries = window.NewEntries(s.Algorithm == window.Exact, s.MaxClients)
	}
	return t
}

// empty drops what a table holds. Who calls it holds the ledger's mutex.
func empty(t *table) {
	if t.counts != nil {
		window.FixedClear(t.counts)
	} else {
		window.EntriesClear(t.entries)
	}
}

// keepFor sees to it that a table is kept as long as what is counted under a limit says
// anything: two windows, and longer where a bucket fills slowly. Who calls it holds the
// ledger's mutex.
func keepFor(t *table, l *window.Limit) {
	keep := 2 * l.Length
	if l.Algorithm == window.Bucket {
		keep += window.LongestWait(l, l.Burst)
	}
	if keep > t.keep {
		t.keep = keep
	}
}

// setMax bounds the clients of a table. Who calls it holds the ledger's mutex.
func setMax(t *table, maxClients int) {
	t.max = maxClients
	switch {
	case t.entries != nil:
		window.EntriesSetMax(t.entries, maxClients)
	case t.limit.Algorithm == window.Sliding:
		window.FixedSetMax(t.counts, 2*maxClients)
	default:
		window.FixedSetMax(t.counts, maxClients)
	}
}

// tablesIn returns all tables of a ledger.
func tablesIn(l *ledger) []*table {
	tablesMu.Lock()
	defer tablesMu.Unlock()
	var found []*table
	for _, t := range tables {
		if t.ledger == l {
			found = append(found, t)
		}
	}
	return found
}
