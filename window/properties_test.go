package window

import (
	"math/rand"
	"testing"
)

const (
	testDay  = 86400
	testYear = 366 * testDay
)

// An only client under one limit.
type only struct {
	l       *Limit
	counts  *FixedCounts
	entries *Entries
}

func newOnly(l *Limit) *only {
	o := &only{l: l}
	switch l.Algorithm {
	case Fixed:
		o.counts = NewFixedCounts(l.Length, 10)
	case Sliding:
		o.counts = NewSlidingCounts(l.Length, 10)
	default:
		o.entries = NewEntries(l.Algorithm == Exact, 10)
	}
	return o
}

func (o *only) account(now int64) *Account {
	switch o.l.Algorithm {
	case Fixed:
		return &Account{Running: FixedFind(o.counts, "client", now/1000)}
	case Sliding:
		running, before := SlidingFind(o.counts, "client", now/1000)
		return &Account{Running: running, Before: before}
	}
	return &Account{Entry: EntryFind(o.entries, "client", now)}
}

func (o *only) take(cost, now int64) Decision {
	var d Decision
	Take([]*Limit{o.l}, []*Account{o.account(now)}, cost, now, &d)
	return d
}

func (o *only) wait(cost, now int64) int64 { return Wait(o.l, o.account(now), cost, now) }

func (o *only) left(now int64) int64 { return Left(o.l, o.account(now), now) }

// corners are limits that an operator may set, the smallest and the largest among them.
func corners(algorithm Algorithm) []*Limit {
	var all []*Limit
	for _, length := range []int64{1, 2, 7, 60, 3600, testYear} {
		for _, limit := range []int64{1, 2, 3, 10, 97, MaxExact / (length * 1000)} {
			if algorithm == Exact && limit > 10000 {
				continue
			}
			l := &Limit{Algorithm: algorithm, Limit: limit, Length: length, Burst: limit}
			all = append(all, l)
			if algorithm == Bucket {
				all = append(all, &Limit{Algorithm: algorithm, Limit: limit, Length: length, Burst: 1})
				if limit <= 97 {
					all = append(all, &Limit{Algorithm: algorithm, Limit: limit, Length: length, Burst: 3*limit + 1})
				}
			}
		}
	}
	return all
}

var algorithms = []Algorithm{Fixed, Sliding, Exact, Bucket}

// stroll returns a time a little or a lot later.
func stroll(random *rand.Rand, l *Limit, now int64) int64 {
	length := l.Length * 1000
	switch random.Intn(10) {
	case 0, 1:
		return now
	case 2:
		return now + random.Int63n(3)
	case 3:
		return now + random.Int63n(length)
	case 4:
		return (now/length+1)*length + random.Int63n(3) - 1
	case 5:
		if random.Intn(4) == 0 {
			return now + random.Int63n(5*length)
		}
	}
	return now + random.Int63n(2*length/l.Limit+2)
}

// A truth keeps all that passed, and says by the definition of each algorithm what fits.
type truth struct {
	l     *Limit
	times []int64 // of each admission
	units []int64
	lack  int64 // of a bucket, in parts, at the time of the last admission
}

// left is what a request may cost at a time.
func (h *truth) left(now int64) int64 {
	length := h.l.Length * 1000
	if h.l.Algorithm == Bucket {
		lack := int64(0)
		if n := len(h.times); n > 0 {
			lack = h.lack
			if gained := now - h.times[n-1]; gained > lack/h.l.Limit {
				lack = 0
			} else {
				lack -= gained * h.l.Limit
			}
		}
		return (h.l.Burst*length - lack) / length
	}
	var running, before, recent int64
	for i := len(h.times) - 1; i >= 0 && h.times[i] > now-2*length; i-- {
		if h.times[i]/length == now/length {
			running += h.units[i]
		}
		if h.times[i]/length == now/length-1 {
			before += h.units[i]
		}
		if h.times[i] > now-length {
			recent += h.units[i]
		}
	}
	switch h.l.Algorithm {
	case Fixed:
		return h.l.Limit - running
	case Sliding:
		// previous * remaining + current * window < limit * window, for the last of its units
		return h.l.Limit - running - before*(length-now%length)/length
	}
	return h.l.Limit - recent
}

func (h *truth) pass(units, now int64) {
	length := h.l.Length * 1000
	if h.l.Algorithm == Bucket {
		left := h.l.Burst*length - h.lack
		if n := len(h.times); n > 0 {
			if gained := now - h.times[n-1]; gained > h.lack/h.l.Limit {
				left = h.l.Burst * length
			} else {
				left += gained * h.l.Limit
			}
		}
		h.lack = h.l.Burst*length - left + units*length
	}
	h.times = append(h.times, now)
	h.units = append(h.units, units)
}

// bound demands that no interval got more than the limit promises. It knows nothing of how
// that is counted.
func (h *truth) bound(t *testing.T, seed int64) {
	t.Helper()
	length := h.l.Length * 1000
	if h.l.Algorithm == Sliding {
		return // it promises no such thing
	}
	if h.l.Algorithm == Bucket {
		if h.l.Limit > 1000 {
			return // beyond what these sums can hold
		}
		total, lowest := int64(0), int64(1)<<62
		for i, at := range h.times {
			since := at - h.times[0]
			if level := total*length - h.l.Limit*since; level < lowest {
				lowest = level
			}
			total += h.units[i]
			if total*length-h.l.Limit*since-lowest > h.l.Burst*length {
				t.Fatalf("%+v, seed %d: up to %d more than the burst and what flowed in", *h.l, seed, at)
			}
		}
		return
	}
	from, sum := 0, int64(0)
	for i, at := range h.times {
		sum += h.units[i]
		for h.l.Algorithm == Fixed && h.times[from]/length < at/length || h.l.Algorithm == Exact && h.times[from] <= at-length {
			sum -= h.units[from]
			from++
		}
		if sum > h.l.Limit {
			t.Fatalf("%+v, seed %d: %d in one window that ends at %d", *h.l, seed, sum, at)
		}
	}
}

// What passes is what the definition says, no more and no less; a request takes all that it
// costs or nothing.
func TestAlgorithmsAreWhatTheyAreDefinedToBe(t *testing.T) {
	for _, algorithm := range algorithms {
		passed, refused := 0, 0
		for _, l := range corners(algorithm) {
			for seed := int64(1); seed <= 4; seed++ {
				random := rand.New(rand.NewSource(seed))
				o, h := newOnly(l), &truth{l: l}
				now := int64(1764499230500)
				for i := 0; i < 400; i++ {
					now = stroll(random, l, now)
					cost := 1 + random.Int63n([]int64{1, 1, 1, 3, Capacity(l)/2 + 1, Capacity(l) + 2}[random.Intn(6)])
					left := h.left(now)
					d := o.take(cost, now)
					if d.Allowed != (cost <= left) {
						t.Fatalf("%+v, seed %d, step %d, at %d: %d of %d that are left: %+v", *l, seed, i, now, cost, left, d)
					}
					if !d.Allowed {
						refused++
						if d.Remaining != left && (left > 0 || d.Remaining != 0) || d.RetryAfter < 1 {
							t.Fatalf("%+v, seed %d, step %d: refused with %+v, %d are left", *l, seed, i, d, left)
						}
						continue
					}
					passed++
					h.pass(cost, now)
					if d.Remaining != left-cost || d.RetryAfter != 0 || d.Reset < 1 {
						t.Fatalf("%+v, seed %d, step %d: passed with %+v, %d were left", *l, seed, i, d, left)
					}
				}
				h.bound(t, seed)
			}
		}
		if passed < 5000 || refused < 2000 {
			t.Errorf("algorithm %d: %d passed and %d were refused: nothing was put to the test", algorithm, passed, refused)
		}
	}
}

// After the wait a request passes, and a millisecond earlier it does not. In seconds it is
// rounded up, and no longer than the longest that is promised.
func TestWaitIsExact(t *testing.T) {
	for _, algorithm := range algorithms {
		waits := 0
		for _, l := range corners(algorithm) {
			for seed := int64(1); seed <= 4; seed++ {
				random := rand.New(rand.NewSource(seed))
				o := newOnly(l)
				now := int64(1764499230500)
				for i := 0; i < 300; i++ {
					now = stroll(random, l, now)
					cost := 1 + random.Int63n([]int64{1, 1, Capacity(l)/2 + 1, Capacity(l)}[random.Intn(4)])
					d := o.take(cost, now)
					if !d.Allowed {
						waits++
						wait := o.wait(cost, now)
						if wait < 1 || d.RetryAfter != seconds(wait) || d.RetryAfter > LongestWait(l, cost) {
							t.Fatalf("%+v, seed %d, step %d, at %d: a cost of %d is to wait %d ms, %+v, at most %d s", *l, seed, i, now, cost, wait, d, LongestWait(l, cost))
						}
						if d := o.take(cost, now+wait-1); d.Allowed {
							t.Fatalf("%+v, seed %d, step %d, at %d: a cost of %d passes before %d ms", *l, seed, i, now, cost, wait)
						}
						now += wait
						if d := o.take(cost, now); !d.Allowed {
							t.Fatalf("%+v, seed %d, step %d, at %d: a cost of %d does not pass after %d ms: %+v", *l, seed, i, now, cost, wait, d)
						}
						continue
					}
					// The Reset of a fixed window is its end, whatever was taken.
					if reset := o.wait(Capacity(l), now); algorithm != Fixed && (d.Reset != seconds(reset) || reset < 1 ||
						o.left(now) == Capacity(l)) {
						t.Fatalf("%+v, seed %d, step %d: %+v, all is there after %d ms", *l, seed, i, d, reset)
					} else if random.Intn(10) == 0 {
						if o.left(now+reset-1) == Capacity(l) {
							t.Fatalf("%+v, seed %d, step %d: all is there before %d ms", *l, seed, i, reset)
						}
						now += reset
						if got := o.left(now); got != Capacity(l) {
							t.Fatalf("%+v, seed %d, step %d: after %d ms %d are there", *l, seed, i, reset, got)
						}
					}
				}
			}
		}
		if waits < 1000 {
			t.Errorf("algorithm %d: %d waits: nothing was put to the test", algorithm, waits)
		}
	}
}

// obedient makes requests that are within a limit in every interval of a window's length,
// as many as there is room for or fewer, and demands that all pass.
func obedient(t *testing.T, l *Limit, within int64, seed int64) {
	t.Helper()
	random := rand.New(rand.NewSource(seed))
	o := newOnly(l)
	length := l.Length * 1000
	var made []int64
	now := int64(1764499230500) + random.Int63n(length)
	eager := random.Intn(3)
	for i := 0; i < 2000; i++ {
		if eager > 0 && random.Intn(eager) > 0 {
			now = stroll(random, l, now)
		}
		if n := int64(len(made)); n >= within {
			if free := made[n-within] + length; now < free {
				now = free
			}
		}
		made = append(made, now)
		if d := o.take(1, now); !d.Allowed {
			t.Fatalf("%+v, seed %d, request %d at %d: refused within %d: %+v", *l, seed, i, now, within, d)
		}
	}
}

func TestWhoStaysWithinTheLimitIsNeverRefused(t *testing.T) {
	for _, algorithm := range []Algorithm{Fixed, Exact, Bucket} {
		for _, l := range corners(algorithm) {
			if l.Burst < l.Limit || l.Limit > 1000 {
				continue
			}
			for seed := int64(1); seed <= 6; seed++ {
				obedient(t, l, l.Limit, seed)
			}
		}
	}
}

func TestSlidingWindowNeverRefusesWhoStaysWithinHalfTheLimit(t *testing.T) {
	for _, l := range corners(Sliding) {
		if l.Limit < 2 || l.Limit > 1000 {
			continue
		}
		for seed := int64(1); seed <= 6; seed++ {
			obedient(t, l, l.Limit/2, seed)
		}
	}
}

func TestSlidingWindowNeverRefusesEvenRequestsBelowTheRate(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	for _, l := range corners(Sliding) {
		length := l.Length * 1000
		if l.Limit > 1000 {
			continue
		}
		for round := 0; round < 20; round++ {
			o := newOnly(l)
			pause := length/l.Limit + 1 + random.Int63n(1+int64(round)*length/l.Limit/10)
			now := 1764499230500 + random.Int63n(length)
			for i := 0; i < 1000; i++ {
				if d := o.take(1, now); !d.Allowed {
					t.Fatalf("%+v: request %d of one each %d ms is refused: %+v", *l, i, pause, d)
				}
				now += pause
			}
		}
	}
}

// Refusals count nothing: who hammers gets as much, at the same instants.
func TestImpatientClientIsNotLockedOut(t *testing.T) {
	for _, algorithm := range algorithms {
		for _, l := range corners(algorithm) {
			if l.Limit > 1000 {
				continue
			}
			random := rand.New(rand.NewSource(1))
			calm, hammering := newOnly(l), newOnly(l)
			now, last := int64(1764499230500), int64(0)
			for i := 0; i < 300; i++ {
				next := stroll(random, l, now)
				for j := 0; j < 20 && now < next; j++ {
					now += 1 + (next-now)/20
					if now >= next || hammering.left(now) > 0 {
						break
					}
					if d := hammering.take(1, now); d.Allowed {
						t.Fatalf("%+v: passes though nothing is left", *l)
					}
				}
				now = next
				a, b := calm.take(1, now), hammering.take(1, now)
				if a.Allowed != b.Allowed || a.Remaining != b.Remaining || a.RetryAfter != b.RetryAfter || a.Reset != b.Reset {
					t.Fatalf("%+v, step %d at %d: calm %+v, hammering %+v", *l, i, now, a, b)
				}
				if a.Allowed {
					last = now
				}
			}
			if last < now-5*LongestWait(l, 1)*1000-20*l.Length*1000 {
				t.Errorf("%+v: nothing passed since %d, now it is %d", *l, last, now)
			}
		}
	}
}

// A clock that goes back a little and forth mints nothing, and one that steps back far keeps
// nobody out for longer than a window, or two in the case of a sliding one.
func TestClockThatStepsBack(t *testing.T) {
	for _, algorithm := range algorithms {
		for _, l := range corners(algorithm) {
			if l.Limit > 1000 {
				continue
			}
			length := l.Length * 1000
			random := rand.New(rand.NewSource(1))
			o := newOnly(l)
			latest, passed := int64(1764499230500), int64(0)
			now := latest
			for i := 0; i < 2000; i++ {
				latest += random.Int63n(length / 10)
				now = latest
				if random.Intn(3) == 0 {
					now -= random.Int63n(length / 2)
				}
				if o.take(1, now).Allowed {
					passed++
				} else if d := o.take(1, now); d.RetryAfter > LongestWait(l, 1) || d.Reset > LongestWait(l, Capacity(l)) {
					t.Fatalf("%+v: at %d, by a clock that may be late, %+v", *l, now, d)
				} else if i%10 == 0 && (algorithm == Exact || algorithm == Bucket) {
					wait := o.wait(1, now)
					latest = now + wait
					if wait >= length || wait >= LongestWait(l, 1)*1000-1000 {
						continue // as long as it may be
					}
					if o.take(1, latest-1).Allowed || !o.take(1, latest).Allowed {
						t.Fatalf("%+v: at %d, by a clock that may be late, %d ms are not the wait", *l, now, latest-now)
					}
					passed++
				}
			}
			windows := (latest-1764499230500)/length + 2
			if most := l.Burst + windows*l.Limit; passed > most {
				t.Errorf("%+v: %d passed in %d windows", *l, passed, windows)
			}
			for i := 0; i < 20; i++ {
				for o.take(1, now).Allowed {
				}
				now -= 3*length + random.Int63n(100*length)
				o.take(1, now)
				now += length
				if algorithm == Sliding {
					now += length
				}
				if d := o.take(1, now); !d.Allowed {
					t.Fatalf("%+v: a window after a step back by far: %+v", *l, d)
				}
			}
		}
	}
}

// Over a year of taking each token as soon as it is there, not one is gained or lost.
func TestBucketDoesNotDriftOverAYear(t *testing.T) {
	for _, l := range []*Limit{
		{Algorithm: Bucket, Limit: 7, Length: 601, Burst: 3},
		{Algorithm: Bucket, Limit: 1, Length: 97, Burst: 1},
		{Algorithm: Bucket, Limit: 997, Length: testDay, Burst: 10},
	} {
		o := newOnly(l)
		begin := int64(1764499230500)
		now, took := begin, int64(0)
		for now <= begin+testYear*1000 {
			if o.take(1, now).Allowed {
				took++
				continue
			}
			wait := o.wait(1, now)
			if wait < 1 {
				t.Fatalf("%+v: refused at %d, to wait %d ms", *l, now, wait)
			}
			now += wait
		}
		if want := l.Burst + l.Limit*testYear/l.Length; took != want {
			t.Errorf("%+v: %d in a year, want %d", *l, took, want)
		}
	}
}
