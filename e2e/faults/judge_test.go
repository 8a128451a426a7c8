package faults_test

import (
	"slices"
	"testing"
)

// An event is an answer that a client got from a gateway.
type event struct {
	gateway int
	shared  bool // decided by the store's count
	told    int  // which was this
	passed  bool
}

// An excess is how many requests a client got beyond its limit, and how many it
// may have got.
type excess struct{ extra, bound int }

// judge judges a client by all that it got, in the order of arrival.
//
// The bound is what the documentation states: how far the count was ahead of what
// the least knowing gateway had been told when the gateways went over to deciding
// alone; what rounding their shares may cost; what a gateway let pass alone while
// another was counting in the store already, or still; and the requests whose fate
// nobody knows, or that the store refused to count. Of these there can be one on
// each connection that broke, since a client sends one request at a time to each
// gateway, and not more than were answered without the store. broken says how many
// connections each gateway had to replace, and refused how many batches it sent to a
// store that answered but did not count.
func judge(events []event, broken [gateways]int, refused int) excess {
	var seen [gateways]struct {
		known   int  // the largest count that it was told
		unasked int  // answers without the store
		alone   bool // the last answer was without the store
		passed  int  // since it is alone
		beside  bool // the store lets others pass while it is alone
		apart   int  // the most that it let pass alone beside others
	}
	passed, behind, flips := 0, 0, 0
	for _, e := range events {
		g := &seen[e.gateway]
		switch {
		case e.shared:
			if g.beside {
				g.apart = max(g.apart, g.passed)
			}
			g.known = max(g.known, e.told)
			g.alone, g.beside, g.passed = false, false, 0
		case !g.alone:
			flips++
			g.alone = true
			counted, together := passed, true
			for _, h := range seen {
				counted -= h.passed
				together = together && h.alone
			}
			for h := range seen {
				if seen[h].alone {
					behind = max(behind, counted-seen[h].known)
				}
				// What the others were told since it is alone is in the difference now.
				seen[h].beside = seen[h].beside && !together
			}
		}
		if !e.shared {
			g.unasked++
		}
		if e.passed {
			passed++
			for h := range seen {
				seen[h].beside = seen[h].beside || e.shared && seen[h].alone
			}
			if g.alone {
				g.passed++
			}
		}
	}
	x := excess{extra: max(0, passed-limit)}
	if flips > 0 {
		x.bound = behind + gateways - 1
	}
	for g, s := range seen {
		if s.beside {
			s.apart = max(s.apart, s.passed)
		}
		x.bound += s.apart + min(s.unasked, broken[g]+refused)
	}
	return x
}

func TestJudge(t *testing.T) {
	// passes returns n requests that pass at a gateway, the first of them as the
	// store's count from on, or without the store where that is 0.
	passes := func(gateway, n, from int) []event {
		var events []event
		for i := range n {
			e := event{gateway: gateway, passed: true, shared: from > 0}
			if e.shared {
				e.told = from + i
			}
			events = append(events, e)
		}
		return events
	}
	join := func(parts ...[]event) []event { return slices.Concat(parts...) }
	for _, tt := range []struct {
		name    string
		events  []event
		broken  [gateways]int
		refused int
		want    excess
	}{
		{"no fault", join(passes(0, 60, 1), passes(1, 40, 61)), [gateways]int{3, 3}, 0, excess{0, 0}},
		{"a fault that no request saw, and one too many", join(passes(0, 60, 1), passes(1, 41, 61)), [gateways]int{3, 3}, 0, excess{1, 0}},
		{"both alone to the end", join(passes(0, 30, 1), passes(1, 10, 31), passes(0, 35, 0), passes(1, 30, 0)), [gateways]int{}, 0, excess{5, 10 + 1}},
		{"with some in flight", join(passes(0, 10, 1), passes(1, 10, 11), passes(0, 40, 0), passes(1, 1, 0)), [gateways]int{2, 2}, 0, excess{0, 10 + 1 + 2 + 1}},
		{"refused batches", join(passes(0, 10, 1), passes(0, 40, 0)), [gateways]int{}, 3, excess{0, 0 + 1 + 3}},
		{"one alone, the other goes on", join(passes(0, 10, 1), passes(1, 10, 11), passes(0, 40, 0), passes(1, 80, 21)), [gateways]int{}, 0, excess{40, 10 + 1 + 40}},
		{"one comes back first", join(passes(0, 20, 1), passes(1, 1, 21), passes(0, 30, 0), passes(1, 40, 0), passes(0, 20, 52)), [gateways]int{}, 0, excess{11, 1 + 1 + 40}},
		{"one goes first", join(passes(0, 20, 1), passes(1, 1, 21), passes(0, 30, 0), passes(1, 9, 22), passes(1, 35, 0)), [gateways]int{}, 0, excess{0, 10 + 1}},
	} {
		if got := judge(tt.events, tt.broken, tt.refused); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
