package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/gatequota/gatequota/window"
)

// A counter is what is judged: a way to count, and what it is to hold to.
type counter struct {
	name  string
	limit window.Limit
	// new returns what decides the requests of one client, at times in unix milliseconds.
	new func(l *window.Limit) func(now int64) bool
}

// counters are the algorithms of the plugin under the limit of a plan.
func counters(p *plan) []counter {
	of := func(name string, a window.Algorithm, burst int64) counter {
		return counter{name, window.Limit{Algorithm: a, Limit: p.limit, Length: p.window, Burst: burst}, twin}
	}
	return []counter{
		of("fixed-window", window.Fixed, 0),
		of("sliding-window", window.Sliding, 0),
		of("sliding-log", window.Exact, 0),
		of("token-bucket", window.Bucket, p.limit),
		of("token-bucket, burst a tenth", window.Bucket, max(1, p.limit/10)),
	}
}

// twin returns what counts requests of one client in a gateway's memory.
func twin(l *window.Limit) func(now int64) bool {
	take := table(l, 1)
	return func(now int64) bool { return take("client", now) }
}

// table returns what counts the requests of up to max clients in a gateway's memory, in
// the same way as the script does in the store.
func table(l *window.Limit, max int) func(client string, now int64) bool {
	d := &window.Decision{}
	if l.Algorithm == window.Fixed {
		counts := window.NewFixedCounts(l.Length, max)
		return func(client string, now int64) bool {
			*d = window.Decision{}
			window.FixedTake(counts, client, now/1000, l.Limit, d)
			return d.Allowed
		}
	}
	counts := window.NewSlidingCounts(l.Length, max)
	entries := window.NewEntries(l.Algorithm == window.Exact, max)
	account := &window.Account{}
	limits, accounts := []*window.Limit{l}, []*window.Account{account}
	return func(client string, now int64) bool {
		if l.Algorithm == window.Sliding {
			account.Running, account.Before = window.SlidingFind(counts, client, now/1000)
		} else {
			account.Entry = window.EntryFind(entries, client, now)
		}
		*d = window.Decision{}
		window.Take(limits, accounts, 1, now, d)
		return d.Allowed
	}
}

// A truth is all that must be known of what a counter has admitted to say what is right.
// It shares nothing with what it judges.
type truth struct {
	limit, length, burst int64 // length of a window in milliseconds

	log []int64 // times of what was admitted within the last window

	id              int64 // the window on the clock
	running, before int64 // admitted in it, and in the one before

	admitted int64
	// drawn is the largest limit * t - (i - 1) * length, t being the time of the i-th that
	// was admitted: see drawn in mayBucket.
	drawn int64
}

func newTruth(l *window.Limit) *truth {
	return &truth{limit: l.Limit, length: l.Length * 1000, burst: l.Burst}
}

// move brings a truth to a time in milliseconds: after it the log has what lies in the
// half-open interval from a window ago, which is not in it, to now, which is.
func (h *truth) move(now int64) {
	for len(h.log) > 0 && h.log[0] <= now-h.length {
		h.log = h.log[1:]
	}
	if id := now / h.length; id != h.id {
		if id != h.id+1 {
			h.running = 0
		}
		h.id, h.before, h.running = id, h.running, 0
	}
}

// count returns how many were admitted in the interval.
func (h *truth) count() int64 { return int64(len(h.log)) }

// estimate returns what a sliding window takes count for, times the length of a window.
func (h *truth) estimate(now int64) int64 {
	left := (h.id+1)*h.length - now
	return h.running*h.length + h.before*left
}

// may tells whether an algorithm is to admit one more by its own rule.
func (h *truth) may(a window.Algorithm, now int64) bool {
	switch a {
	case window.Fixed:
		return h.running < h.limit
	case window.Sliding:
		return h.estimate(now) < h.limit*h.length
	case window.Bucket:
		return h.mayBucket(now)
	}
	return h.count() < h.limit
}

// mayBucket tells whether with one more no interval, however long, has more than burst +
// rate * its length. With n admitted so far, that from the i-th on would have n + 2 - i,
// so for each of them (n + 2 - i) * length - limit * (now - t) must be at most burst *
// length.
func (h *truth) mayBucket(now int64) bool {
	drawn := h.limit*now - h.admitted*h.length
	if h.admitted > 0 {
		drawn = max(drawn, h.drawn)
	}
	return (h.admitted+1)*h.length-h.limit*now+drawn <= h.burst*h.length
}

// admit notes that one was admitted.
func (h *truth) admit(now int64) {
	h.log = append(h.log, now)
	h.running++
	drawn := h.limit*now - h.admitted*h.length
	if h.admitted == 0 || drawn > h.drawn {
		h.drawn = drawn
	}
	h.admitted++
}

// figures say how a counter decided some requests.
type figures struct {
	Sources, Requests, Admitted int64

	// Admitted where an exact log of what it had admitted was full, and refused where it
	// was not.
	WronglyAllowed, WronglyRefused int64
	// Of these, those that one request more or less would not have made right: the log had
	// more than the limit, or more than one free.
	FarAllowed, FarRefused int64
	// Decided otherwise than by its own rule.
	Broken int64
	// The most that was admitted in any interval of a window's length.
	Most int64

	// How far the estimate of a sliding window was from the count of the log, when a
	// request came that found something in the log: the sum of the differences in
	// millionths of the count, and how many there are.
	Apart, Compared int64
}

func (f *figures) add(g *figures) {
	f.Sources += g.Sources
	f.Requests += g.Requests
	f.Admitted += g.Admitted
	f.WronglyAllowed += g.WronglyAllowed
	f.WronglyRefused += g.WronglyRefused
	f.FarAllowed += g.FarAllowed
	f.FarRefused += g.FarRefused
	f.Broken += g.Broken
	f.Most = max(f.Most, g.Most)
	f.Apart += g.Apart
	f.Compared += g.Compared
}

// replay lets a counter decide the requests of one source, and returns how it did.
func replay(c *counter, times []int64) *figures {
	f := &figures{Sources: 1, Requests: int64(len(times))}
	h := newTruth(&c.limit)
	take := c.new(&c.limit)
	for _, t := range times {
		now := start + t
		h.move(now)
		count := h.count()
		allowed := take(now)
		if allowed != h.may(c.limit.Algorithm, now) {
			f.Broken++
		}
		switch {
		case allowed && count >= h.limit:
			f.WronglyAllowed++
			if count > h.limit {
				f.FarAllowed++
			}
		case !allowed && count < h.limit:
			f.WronglyRefused++
			if count < h.limit-1 {
				f.FarRefused++
			}
		}
		if c.limit.Algorithm == window.Sliding && count > 0 {
			real := count * h.length
			apart := h.estimate(now) - real
			f.Apart += max(apart, -apart) * 1_000_000 / real
			f.Compared++
		}
		if allowed {
			h.admit(now)
			f.Admitted++
			f.Most = max(f.Most, h.count())
		}
	}
	return f
}

// The groups of sources that figures are given for.
const (
	everyone = iota
	near     // see plan.near
	within   // those that never ask for more than the limit in any interval of a window's length
	groups
)

// result is what came of one kind of traffic.
type result struct {
	traffic string
	figures [groups][]figures // by counter
}

// run replays one kind of traffic through all counters, with so many workers. What comes
// of it does not depend on their number.
func run(ctx context.Context, p *plan, kind int, counters []counter, workers int) (*result, error) {
	t := &traffics[kind]
	sum := newResult(t.name, len(counters))
	var next atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			own := newResult(t.name, len(counters))
			var times []int64
			for {
				source := int(next.Add(1)) - 1
				if source >= p.count(t) || ctx.Err() != nil {
					break
				}
				r := rand.New(rand.NewPCG(p.seed, uint64(kind)<<32|uint64(source)))
				times = t.times(p, r, times[:0])
				belongs := [groups]bool{true, p.near(len(times)), p.within(times)}
				for i := range counters {
					f := replay(&counters[i], times)
					for group, in := range belongs {
						if in {
							own.figures[group][i].add(f)
						}
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			sum.add(own)
		})
	}
	wg.Wait()
	return sum, context.Cause(ctx)
}

func newResult(traffic string, counters int) *result {
	r := &result{traffic: traffic}
	for group := range r.figures {
		r.figures[group] = make([]figures, counters)
	}
	return r
}

func (r *result) add(other *result) {
	for group := range r.figures {
		for i := range r.figures[group] {
			r.figures[group][i].add(&other.figures[group][i])
		}
	}
}

// total returns what came of all kinds together.
func total(results []*result) *result {
	sum := newResult("all four", len(results[0].figures[everyone]))
	for _, r := range results {
		sum.add(r)
	}
	return sum
}
