// Package judge decides by the twins of the scripts alone, in the memory of one process. It
// runs compiled and interpreted, so what it is asked and what it says are plain numbers.
package judge

import "github.com/gatequota/gatequota/window"

// A judge holds one client to limits of one algorithm.
type judge struct {
	limits  []*window.Limit
	counts  []map[int64]*window.FixedCount // of each limit, by the end of the window
	entries []*window.Entries              // likewise, where there are no windows
}

// New returns what decides a request that costs so much, at a time in unix milliseconds,
// that stands in the windows of a time in unix seconds: whether it passes, the Remaining,
// Reset and RetryAfter of its decision, and then of each limit the Remaining, the Reset, and
// whether it refuses. Of a limit, lengths are those of the windows in seconds, and bursts
// the sizes of buckets.
func New(algorithm int, limits, lengths, bursts []int64) func(cost, now, at int64) []int64 {
	j := &judge{}
	for i := range limits {
		j.limits = append(j.limits, &window.Limit{Algorithm: window.Algorithm(algorithm), Limit: limits[i], Length: lengths[i], Burst: bursts[i]})
		j.counts = append(j.counts, map[int64]*window.FixedCount{})
		j.entries = append(j.entries, window.NewEntries(window.Algorithm(algorithm) == window.Exact, 1))
	}
	return func(cost, now, at int64) []int64 {
		var accounts []*window.Account
		for i := range j.limits {
			accounts = append(accounts, account(j, i, now, at))
		}
		var d window.Decision
		window.Take(j.limits, accounts, cost, now, &d)
		said := []int64{number(d.Allowed), d.Remaining, d.Reset, d.RetryAfter}
		for i := range j.limits {
			said = append(said, d.Several.Remaining[i], d.Several.Reset[i], number(d.Several.Refused[i]))
		}
		return said
	}
}

// account returns where the client stands with limit i. All windows are kept, for clocks
// that are behind.
func account(j *judge, i int, now, at int64) *window.Account {
	l := j.limits[i]
	switch l.Algorithm {
	case window.Fixed:
		return &window.Account{Running: count(j.counts[i], at, l.Length)}
	case window.Sliding:
		return &window.Account{Running: count(j.counts[i], at, l.Length), Before: count(j.counts[i], at-l.Length, l.Length)}
	}
	return &window.Account{Entry: window.EntryFind(j.entries[i], "client", now)}
}

func count(counts map[int64]*window.FixedCount, at, length int64) *window.FixedCount {
	id, left := window.FixedAt(at, length)
	if counts[id] == nil {
		counts[id] = &window.FixedCount{End: at + left}
	}
	return counts[id]
}

func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
