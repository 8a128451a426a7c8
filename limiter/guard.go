package limiter

import (
	"time"

	"github.com/gatequota/gatequota/window"
)

// Gateway is the way of a request that a Guard refused.
const Gateway = "gateway"

// everybody is the one client of a guard.
const everybody = "\x00everybody"

// A Guard bounds what all clients of a scope together make of requests on this gateway.
type Guard struct {
	limit int64
	table *table
}

// NewGuard returns the guard of a scope for windows of length seconds, by the clock of
// this machine; now is its time. Its count outlives a reload.
func NewGuard(scope string, limit, length int64, now time.Time) *Guard {
	ledger := openLedger("gateway " + scope)
	// One count for each side of an edge: requests that read the clock before it come
	// among those of the next window.
	return &Guard{limit: limit, table: openTable(ledger, "gateway", scope, &Settings{Window: length, MaxClients: 2}, now)}
}

// TakeGuard lets a request that costs so much, and came at this time since Began, pass
// the guard and returns 0, or the seconds until the next window, at least 1, where there
// is no room for it.
func TakeGuard(g *Guard, at time.Duration, cost int64) int64 {
	retryAfter := int64(0)
	t := g.table
	t.ledger.mu.Lock()
	t.used = true
	unix := (int64(at) + t.origin) / second
	f := window.FixedFind(t.counts, everybody, unix)
	if f.Known+cost > g.limit {
		retryAfter = f.End - unix
	} else {
		f.Known += cost
	}
	t.ledger.mu.Unlock()
	return retryAfter
}

// GiveBack takes a request that TakeGuard let pass out of its count again, unless its
// window is over: something behind the guard refused it.
func GiveBack(g *Guard, at time.Duration, cost int64) {
	t := g.table
	t.ledger.mu.Lock()
	unix := (int64(at) + t.origin) / second
	f := t.counts.Newest[everybody]
	if f != nil && unix < t.counts.End && unix >= t.counts.Start && f.Known >= cost {
		f.Known -= cost
	}
	t.ledger.mu.Unlock()
}
