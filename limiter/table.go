package limiter

import (
	"strconv"
	"sync"
	"time"

	"github.com/gatequota/gatequota/window"
)

// A table holds the counts of one scope in this gateway's memory, for one ledger
// and for windows of one length. A ledger is where the scope is counted: a store,
// however one logs in there, or this memory. Windows of different lengths, or by
// the clocks of different stores, have numbers that do not compare.
type table struct {
	length int64 // seconds

	mu     sync.Mutex
	counts *window.FixedCounts // guarded by mu
	used   bool                // guarded by mu: counted in since idle was set
	alone  bool                // guarded by mu: counted in last because a store that is well did not
	idle   time.Time           // guarded by tablesMu: no count is younger, unless used
}

var (
	tablesMu sync.Mutex
	tables   = map[string]*table{} // guarded by tablesMu
)

// openTable returns the table of a scope in a ledger. It is made at first use and then kept,
// since handlers of an earlier configuration may still count in it; but tables in
// which nothing was counted for two windows are emptied. Where several middlewares
// of one scope differ in maxClients, the one that was loaded last is obeyed.
func openTable(ledger, scope string, length int64, maxClients int, now time.Time) *table {
	tablesMu.Lock()
	defer tablesMu.Unlock()
	for _, t := range tables {
		t.mu.Lock()
		if t.used {
			t.used = false
			t.idle = now
		} else if now.Sub(t.idle) > time.Duration(2*t.length)*time.Second {
			t.counts = window.NewFixedCounts(t.length, window.FixedMax(t.counts))
		}
		t.mu.Unlock()
	}
	name := ledger + " " + scope + " " + strconv.FormatInt(length, 10)
	t := tables[name]
	if t == nil {
		t = &table{length: length, counts: window.NewFixedCounts(length, maxClients), idle: now}
		tables[name] = t
	}
	t.mu.Lock()
	window.FixedSetMax(t.counts, maxClients)
	t.mu.Unlock()
	return t
}
