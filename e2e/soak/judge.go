package main

import (
	"fmt"
	"slices"
	"time"
)

// An event is one answered request of one client. Times are since the start of
// the run, by the client's clock: the gateway decided between them.
type event struct {
	client    int32
	gateway   uint8
	allowed   bool
	shared    bool  // decided by the count in the store
	window    int32 // counted from the first of the run
	remaining int32 // what the answer says is left
	sent      time.Duration
	arrived   time.Duration
}

// A span is a time during which the store failed at least one gateway, from
// before the fault began until both were seen to count in the store again.
type span struct {
	from, to time.Duration
	wiped    bool // the store lost its data
}

// rules are what the judge knows of the set-up.
type rules struct {
	limit    int
	gateways int           // how many there are, which is also fallback.gateways
	length   time.Duration // of a window
	first    time.Duration // when the first window of the run began; zero or below
	spans    []span
}

// A verdict is what the judge found.
type verdict struct {
	windows   int // seen in the log
	calm      int // of these without any fault: judged exactly
	disturbed int // of these, those in which a gateway counted by itself before any fault of ours
	counts    int // clients times windows
	limited   int // of these, those in which a client asked for more than its limit
	over      int // of these, those in which more than the limit was allowed

	worst       int // most requests allowed beyond a limit
	worstBound  int // what the bound was there
	worstAt     string
	extra, most int // all requests beyond limits, and what the bounds add up to where any were

	violations []string
	violated   int
}

func (v *verdict) complain(format string, args ...any) {
	v.violated++
	if len(v.violations) < 20 {
		v.violations = append(v.violations, fmt.Sprintf(format, args...))
	}
}

// windowSpan returns when a window begins and ends.
func (r *rules) windowSpan(window int32) (from, to time.Duration) {
	from = r.first + time.Duration(window)*r.length
	return from, from + r.length
}

// A weather is what happened in one window.
type weather struct {
	faulty, wiped bool
	from          time.Duration // when the first fault that reaches into the window began, or the window itself
	failures      []int         // of each gateway: how often it went over to decide alone
}

func (r *rules) weather(window int32) weather {
	from, to := r.windowSpan(window)
	var w weather
	for _, s := range r.spans {
		if s.from >= to || s.to <= from {
			continue
		}
		if !w.faulty || s.from < w.from {
			w.from = max(s.from, from)
		}
		w.faulty, w.wiped = true, w.wiped || s.wiped
	}
	return w
}

// judge holds a whole log against the rules.
//
// It leans on one thing only: an answer that had arrived before another request
// was sent was decided before that one was. From this follows, for each pass, the
// least count that its gateway must have known by then.
func judge(log []event, r rules) verdict {
	var v verdict
	ordered := slices.Clone(log)
	slices.SortFunc(ordered, func(a, b event) int {
		switch {
		case a.window != b.window:
			return int(a.window) - int(b.window)
		case a.client != b.client:
			return int(a.client) - int(b.client)
		}
		return int(a.sent - b.sent)
	})
	for len(ordered) > 0 {
		n := 1
		for n < len(ordered) && ordered[n].window == ordered[0].window {
			n++
		}
		judgeWindow(&v, &r, ordered[:n])
		ordered = ordered[n:]
	}
	return v
}

func judgeWindow(v *verdict, r *rules, log []event) {
	w := r.weather(log[0].window)
	v.windows++
	// Where a gateway decided alone before any fault of ours, the machine held something
	// up. That is no exact window, and no free one.
	disturbed := slices.ContainsFunc(log, func(e event) bool { return !e.shared && (!w.faulty || e.arrived < w.from) })
	switch {
	case disturbed:
		v.disturbed++
		w.faulty = true
		w.from, _ = r.windowSpan(log[0].window)
	case !w.faulty:
		v.calm++
	}
	w.failures = failures(log, r.gateways)
	for len(log) > 0 {
		n := 1
		for n < len(log) && log[n].client == log[0].client {
			n++
		}
		judgeCount(v, r, w, log[:n])
		log = log[n:]
	}
}

// failures returns how often each gateway went over to decide alone, as far as
// anybody can have noticed.
func failures(log []event, gateways int) []int {
	ordered := slices.Clone(log)
	slices.SortFunc(ordered, func(a, b event) int { return int(a.arrived - b.arrived) })
	n, alone := make([]int, gateways), make([]bool, gateways)
	for _, e := range ordered {
		switch {
		case !e.shared && !alone[e.gateway]:
			n[e.gateway]++
			alone[e.gateway] = true
		case e.shared && e.allowed:
			// A refusal comes from memory, whether the store answers or not.
			alone[e.gateway] = false
		}
	}
	return n
}

// judgeCount judges one client in one window. The events are in the order of
// sending.
func judgeCount(v *verdict, r *rules, w weather, log []event) {
	v.counts++
	name := fmt.Sprintf("client %d in window %d", log[0].client, log[0].window)
	allowed := 0
	for _, e := range log {
		if e.allowed {
			allowed++
		}
	}
	if len(log) > r.limit {
		v.limited++
	}
	if !w.faulty {
		if want := min(len(log), r.limit); allowed != want {
			v.complain("%s, without any fault: %d of %d requests were allowed, want exactly %d", name, allowed, len(log), want)
		}
	}
	log = telling(log, r.gateways)
	for g := range r.gateways {
		judgeGateway(v, r, w, name, uint8(g), log)
	}
	extra := allowed - r.limit
	if extra <= 0 {
		return
	}
	bound := r.bound(w, log)
	v.over++
	v.extra += extra
	v.most += bound
	if extra > v.worst {
		v.worst, v.worstBound, v.worstAt = extra, bound, name
	}
	if extra > bound {
		v.complain("%s: %d requests beyond the limit, the bound is %d", name, extra, bound)
	}
}

// telling returns the events that tell what a gateway knew: all that it let pass,
// and the first refusal by a count in the store, since no later one tells more.
func telling(log []event, gateways int) []event {
	var kept []event
	refusals := make([]event, gateways)
	for _, e := range log {
		if e.allowed {
			kept = append(kept, e)
		} else if first := &refusals[e.gateway]; e.shared && (first.arrived == 0 || e.arrived < first.arrived) {
			*first = e
		}
	}
	for _, e := range refusals {
		if e.arrived != 0 {
			kept = append(kept, e)
		}
	}
	return kept
}

// judgeGateway holds each pass of one gateway against what it knew: the count it
// passes a request with is above every count that it knew before, and what it
// passes in one failure by itself stays within its share of what it knew to be left.
func judgeGateway(v *verdict, r *rules, w weather, name string, gateway uint8, log []event) {
	for _, e := range log {
		if e.gateway != gateway || !e.allowed {
			continue
		}
		known, stored, alone := knownAt(r, gateway, log, e.sent)
		if known >= r.limit {
			v.complain("%s: gateway %d lets a request pass though it knew of %d", name, gateway+1, known)
			continue
		}
		if count := r.limit - int(e.remaining); e.shared && count <= known {
			v.complain("%s: gateway %d passes a request as number %d though it knew of %d", name, gateway+1, count, known)
		}
		if share := r.share(stored); !e.shared && w.failures[gateway] < 2 && alone+1 > share {
			v.complain("%s: gateway %d passes %d requests by itself, its share is %d", name, gateway+1, alone+1, share)
		}
	}
}

// share returns how many requests a gateway may pass by itself when it knows a
// count.
func (r *rules) share(known int) int {
	return (r.limit - known + r.gateways - 1) / r.gateways
}

// knownAt returns what a gateway must have known of a client at a time: the
// smallest count that it can have known, the largest that the store had told it,
// and how many requests it had passed by itself.
func knownAt(r *rules, gateway uint8, log []event, at time.Duration) (known, stored, alone int) {
	for _, a := range log {
		if a.gateway != gateway || a.arrived > at {
			continue
		}
		if a.allowed && !a.shared {
			alone++
		}
		count := 0
		switch {
		case a.shared && a.allowed:
			count = r.limit - int(a.remaining)
		case a.shared:
			count = r.limit
		case a.allowed:
			count = 1
		}
		if a.shared {
			stored = max(stored, count)
		}
		// Each of its own passes since has raised it by one at least.
		for _, b := range log {
			if b.gateway == gateway && b.allowed && b.sent >= a.arrived && b.arrived <= at {
				count++
			}
		}
		known = max(known, count)
	}
	return known, stored, alone
}

// bound returns how many requests beyond the limit a client may be allowed in a
// window with faults, by what the gateways knew of it when the first one began.
//
// A gateway never passes more than what the limit leaves of what it knows, so
// whatever happens the passes are at most those until then and what is left to
// each. Where the store lost nothing it passed the limit at most, and each gateway
// its share besides at each failure.
func (r *rules) bound(w weather, log []event) int {
	if !w.faulty {
		return 0
	}
	before, left, shares := 0, 0, 0
	for _, e := range log {
		if e.allowed && e.sent < w.from {
			before++ // under way at that time is counted in
		}
	}
	for g := range r.gateways {
		known, stored, _ := knownAt(r, uint8(g), log, w.from)
		left += r.limit - min(known, r.limit)
		shares += w.failures[g] * r.share(min(stored, r.limit))
	}
	bound := before + left - r.limit
	if !w.wiped {
		bound = min(bound, shares)
	}
	return max(bound, 0)
}
