// Package tally counts what became of requests, by scope and rule, for those who watch
// over the limiter. What it counts belongs to the process and outlives a reload.
package tally

import (
	"sort"
	"sync"
	"sync/atomic"

	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/window"
)

// A kind is what can become of a request, and by which way. They are the places of a
// Tally, in the order of kinds.
const (
	AllowedShared      = iota // by the count in the store
	AllowedLocal              // by the count in this gateway's memory
	AllowedOpen               // uncounted, since the store failed
	RefusedShared             // by the store
	RefusedMemory             // by the known count of the store, without asking it
	RefusedLocal              // by the count in this gateway's memory
	UnavailableClosed         // since the store failed
	UnavailableGateway        // by the limit of the gateway
	RejectedMissing           // it lacks what tells clients apart, or its path is too long
	AllowedDryRun             // in a dry run, within its limits
	WouldRefuse               // in a dry run, let pass and else not
	RefusedControl            // its client is blocked
	AllowedControl            // the limiter is switched off
	Exempt                    // by exempt
	Skipped                   // by onMissing
	kindsCount
)

// kinds say in words what the places of a Tally are.
var kinds = [][2]string{
	{"allowed", "shared"}, {"allowed", "local"}, {"allowed", "open"},
	{"refused", "shared"}, {"refused", "memory"}, {"refused", "local"},
	{"unavailable", "closed"}, {"unavailable", "gateway"}, {"rejected", "none"},
	{"allowed", "dry-run"}, {"would_refuse", "dry-run"},
	{"refused", "control"}, {"allowed", "control"},
	{"exempt", "none"}, {"skipped", "none"},
}

// A Tally is how many requests became what under one rule of a scope. It may be counted in
// by many at once.
type Tally struct {
	scope, rule string
	counts      []int64
}

// A Total is how many requests became one thing.
type Total struct {
	Scope   string
	Rule    string // "" is the top level
	Outcome string // allowed, refused, unavailable, rejected, would_refuse, exempt or skipped
	Way     string // shared, memory, local, open, closed, gateway, dry-run, control or none
	Count   int64
}

var (
	tallysMu sync.Mutex
	tallys   = map[string]*Tally{} // by scope and rule
)

// Open returns the tally of a rule in a scope, always the same one; "" is the top level.
func Open(scope, rule string) *Tally {
	tallysMu.Lock()
	defer tallysMu.Unlock()
	key := scope + " " + rule
	t := tallys[key]
	if t == nil {
		t = &Tally{scope: scope, rule: rule, counts: make([]int64, kindsCount)}
		tallys[key] = t
	}
	return t
}

// Add counts a request of a kind.
func Add(t *Tally, kind int) {
	atomic.AddInt64(&t.counts[kind], 1)
}

// Counter returns where the requests of a kind are counted, by package atomic alone. It is
// for kinds that are so frequent that a call of Add tells.
func Counter(t *Tally, kind int) *int64 {
	return &t.counts[kind]
}

// Count counts a request by what was decided.
func Count(t *Tally, d *window.Decision) {
	Add(t, kindOf(d))
}

// CountDryRun counts a request that passes whatever was decided.
func CountDryRun(t *Tally, refused bool) {
	if refused {
		Add(t, WouldRefuse)
	} else {
		Add(t, AllowedDryRun)
	}
}

func kindOf(d *window.Decision) int {
	switch {
	case d.Allowed && d.Way == limiter.Shared:
		return AllowedShared
	case d.Allowed && d.Way == limiter.Local:
		return AllowedLocal
	case d.Allowed:
		return AllowedOpen
	case d.Known:
		return RefusedMemory
	case d.Way == limiter.Shared:
		return RefusedShared
	case d.Way == limiter.Local:
		return RefusedLocal
	}
	return UnavailableClosed
}

// All returns all totals, of each tally in the order of kinds, sorted by scope and rule.
// What never happened is there with 0.
func All() []Total {
	tallysMu.Lock()
	defer tallysMu.Unlock()
	var keys []string
	for key := range tallys {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	var all []Total
	for _, key := range keys {
		t := tallys[key]
		for kind, words := range kinds {
			all = append(all, Total{
				Scope: t.scope, Rule: t.rule, Outcome: words[0], Way: words[1], Count: atomic.LoadInt64(&t.counts[kind]),
			})
		}
	}
	return all
}
