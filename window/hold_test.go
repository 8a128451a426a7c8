package window

import (
	"math/rand"
	"strconv"
	"strings"
	"testing"
)

// A crowd is many clients in one gateway's memory.
type crowd struct {
	l       *Limit
	counts  *FixedCounts
	entries *Entries
}

func newCrowd(l *Limit, max int) *crowd {
	c := &crowd{l: l}
	if l.Algorithm == Sliding {
		c.counts = NewSlidingCounts(l.Length, max)
	} else {
		c.entries = NewEntries(l.Algorithm == Exact, max)
	}
	return c
}

func (c *crowd) take(client string, now int64) bool {
	a := &Account{}
	if c.counts != nil {
		a.Running, a.Before = SlidingFind(c.counts, client, now/1000)
	} else {
		a.Entry = EntryFind(c.entries, client, now)
	}
	var d Decision
	Take([]*Limit{c.l}, []*Account{a}, 1, now, &d)
	return d.Allowed
}

func (c *crowd) len() int {
	if c.counts != nil {
		return FixedLen(c.counts)
	}
	return EntriesLen(c.entries)
}

var heldAlgorithms = []Algorithm{Sliding, Exact, Bucket}

// Who is at its limit stays there, however many come and go; and who comes when all room is
// taken is held to its limit too.
func TestCrowdsPushNobodyOutWhoIsAtItsLimit(t *testing.T) {
	const max = 1000
	for _, algorithm := range heldAlgorithms {
		for _, lengths := range []int64{0, 1} { // windows that pass between
			c := newCrowd(&Limit{Algorithm: algorithm, Limit: 20, Length: 3600, Burst: 20}, max)
			now := int64(1764498000000) // 40 minutes before the end of an hour
			for i := 0; i < 20; i++ {
				c.take("busy", now)
			}
			// The second time an estimate holds it where its count no longer stands in the
			// window that runs.
			later := now
			if algorithm == Sliding {
				later += lengths * 2401e3
			} else {
				later += lengths * 60e3
			}
			passed := 0
			for c.take("busy", later) {
				passed++
			}
			for i := 0; i < 20*max; i++ {
				later += 1
				c.take("newcomer "+strconv.Itoa(i), later)
				if c.len() > 2*max {
					t.Fatalf("algorithm %d holds %d", algorithm, c.len())
				}
			}
			// Of a sliding window, it may lose the little that it has in the window that runs.
			regained := 0
			for c.take("busy", later) {
				regained++
			}
			if regained > passed {
				t.Errorf("algorithm %d, %d windows later: a crowd pushed out who was at its limit: %d passed", algorithm, lengths, regained)
			}
			passed = 0
			for i := 0; i < 100; i++ {
				if c.take("late", later) {
					passed++
				}
			}
			if passed != 20 {
				t.Errorf("algorithm %d: of one who comes to a full table %d pass, want 20", algorithm, passed)
			}
		}
	}
}

// What says nothing any more goes first.
func TestWhatIsOverGoesFirst(t *testing.T) {
	for _, algorithm := range []Algorithm{Exact, Bucket} {
		c := newCrowd(&Limit{Algorithm: algorithm, Limit: 20, Length: 60, Burst: 20}, 20)
		now := int64(1764499230500)
		for i := 0; i < 20; i++ {
			for j := 0; j < 20; j++ {
				c.take("old "+strconv.Itoa(i), now)
			}
		}
		now += 60e3
		for i := 0; i < 5; i++ {
			c.take("new "+strconv.Itoa(i), now)
		}
		held := 0
		all, _ := EntriesPart(c.entries, 20, 0)
		for _, e := range all {
			if strings.HasPrefix(EntryClient(e), "new ") {
				held++
			}
		}
		if held != 5 || c.len() != 20 {
			t.Errorf("algorithm %d: of five that count %d are held, of %d", algorithm, held, c.len())
		}
		EntriesSetMax(c.entries, 4)
		for i := 0; i < 20; i++ {
			c.take("last "+strconv.Itoa(i), now)
		}
		if c.len() != 4 {
			t.Errorf("algorithm %d: holds %d, want the 4 that it may", algorithm, c.len())
		}
		seen := map[string]bool{}
		for next := 0; next >= 0; {
			var part []string
			part, next = Clients(nil, c.entries, now, 3, next)
			for _, client := range part {
				seen[client] = true
			}
		}
		if len(seen) != 4 {
			t.Errorf("algorithm %d: a walk finds %v", algorithm, seen)
		}
		if part, _ := Clients(nil, c.entries, now+60e3, 10, 0); len(part) != 0 {
			t.Errorf("algorithm %d: a walk finds %v, which say nothing any more", algorithm, part)
		}
		EntriesClear(c.entries)
		if c.len() != 0 || !c.take("any", now) {
			t.Errorf("algorithm %d: something is left", algorithm)
		}
	}
	c := newCrowd(&Limit{Algorithm: Sliding, Limit: 20, Length: 60}, 10)
	for i := 0; i < 5; i++ {
		c.take(strconv.Itoa(i), 1764499230500)
		c.take(strconv.Itoa(i), 1764499290500)
	}
	seen := map[string]int{}
	for next := 0; next >= 0; {
		var part []string
		part, next = Clients(c.counts, nil, 1764499290500, 3, next)
		for _, client := range part {
			seen[client]++
		}
	}
	if len(seen) != 5 || seen["0"] != 2 {
		t.Errorf("a walk over sliding windows finds %v, want both windows of five", seen)
	}
}

// While the store is away for long, gateways together keep to the limit, each gets its share
// again as its own leaves the window, and obeying Retry-After succeeds.
func TestSharesOverALongOutage(t *testing.T) {
	for _, algorithm := range algorithms {
		for _, limit := range []int64{2, 10, 101} {
			for _, gateways := range []int64{1, 2, 3} {
				for seed := int64(1); seed <= 3; seed++ {
					random := rand.New(rand.NewSource(seed))
					l := &Limit{Algorithm: algorithm, Limit: limit, Length: 60, Burst: limit}
					share := &Share{Gateways: gateways}
					length := l.Length * 1000
					var all []*only
					for g := int64(0); g < gateways; g++ {
						all = append(all, newOnly(l))
					}
					now := int64(1764499230500)
					var times []int64
					mine := make([]int64, gateways)
					for i := 0; i < 3000; i++ {
						now += random.Int63n(2 * length / (limit * gateways))
						g := random.Intn(len(all))
						var d Decision
						name := strconv.Itoa(i)
						TakeAlone([]*Limit{l}, []*Account{all[g].account(now)}, share, 1, now, false, name, 1, &d)
						if d.Allowed {
							times = append(times, now)
							mine[g]++
							continue
						}
						if d.RetryAfter < 1 || d.RetryAfter > 2*l.Length {
							t.Fatalf("%+v, %d gateways: %+v", *l, gateways, d)
						}
						if random.Intn(10) == 0 {
							now += d.RetryAfter * 1000
							d = Decision{}
							TakeAlone([]*Limit{l}, []*Account{all[g].account(now)}, share, 1, now, false, name, 1, &d)
							if !d.Allowed {
								t.Fatalf("%+v, %d gateways, seed %d, step %d: refused after Retry-After: %+v", *l, gateways, seed, i, d)
							}
							times = append(times, now)
							mine[g]++
						}
					}
					// Each rounds its share up.
					most := limit + gateways - 1
					if algorithm == Bucket {
						most = l.Burst + limit + gateways - 1
					}
					for i, from := 0, 0; i < len(times); i++ {
						for algorithm != Fixed && times[from] <= times[i]-length || algorithm == Fixed && times[from]/length < times[i]/length {
							from++
						}
						if got := int64(i - from + 1); got > most && algorithm != Sliding {
							t.Fatalf("%+v, %d gateways, seed %d: %d in a window", *l, gateways, seed, got)
						}
					}
					if algorithm == Sliding {
						slidingBound(t, l, gateways, times)
					}
					windows := (now - times[0]) / length
					for g, n := range mine {
						if n < windows*limit/gateways/4 {
							t.Errorf("%+v, gateway %d of %d: %d passed in %d windows", *l, g, gateways, n, windows)
						}
					}
				}
			}
		}
	}
}

// slidingBound demands that the estimate of all gateways together stays below the limit, but
// for what is rounded.
func slidingBound(t *testing.T, l *Limit, gateways int64, times []int64) {
	t.Helper()
	length := l.Length * 1000
	counts := map[int64]int64{}
	for _, at := range times {
		id := at / length
		counts[id]++
		estimate := counts[id] + counts[id-1]*(length-at%length)/length
		if estimate > l.Limit+gateways*2 {
			t.Fatalf("%+v, %d gateways: an estimate of %d at %d", *l, gateways, estimate, at)
		}
	}
}

// told is what the store is told of a log, call by call.
func told(g *Log, all bool) string {
	if all {
		LogForgotten(g)
	}
	calls, _ := LogUnsent(g)
	return calls
}

func TestLogTellsWhatPassedAloneUntilItIsAnswered(t *testing.T) {
	l := &Limit{Algorithm: Exact, Limit: 10, Length: 60}
	now := int64(1764499230500)
	e := EntryFind(NewEntries(true, 1), "client", now)
	accounts := []*Account{{Entry: e}}
	alone := func(at int64, asked bool, name string, cost, first int64) {
		t.Helper()
		var d Decision
		TakeAlone([]*Limit{l}, accounts, &Share{Gateways: 1}, cost, at, asked, name, first, &d)
		if !d.Allowed {
			t.Fatalf("%s does not pass alone: %+v", name, d)
		}
	}
	alone(now, false, "a", 1, 1)
	alone(now+1, true, "b", 2, 5) // the answer to it was lost
	calls, upTo := LogUnsent(e.Log)
	if calls != "1764499230500/a/1/1 1764499230501/b/5/6 " || !Alone(accounts[0]) {
		t.Fatalf("told %q", calls)
	}
	// What passes while the answer is on its way is told with the next call.
	alone(now+2, false, "c", 1, 1)
	LogAnswered(e, l, &LogAnswer{Now: now + 3, Count: 3, Newest: now + 3}, 1, 1, "d", upTo)
	if got := told(e.Log, false); got != "1764499230502/c/1/1 " || !Alone(accounts[0]) || e.Log.others != 0 || e.Log.alone != 1 {
		t.Fatalf("after the answer: told %q, %+v", got, *e.Log)
	}
	_, upTo = LogUnsent(e.Log)
	LogAnswered(e, l, &LogAnswer{Now: now + 4, Count: 7, Newest: now + 4}, 1, 0, "e", upTo)
	if got := told(e.Log, false); got != "" || Alone(accounts[0]) || e.Log.others != 2 {
		t.Fatalf("when all is answered: told %q, %+v", got, *e.Log)
	}
	if got := told(e.Log, true); strings.Count(got, "/d/1/1 ") != 1 || strings.Count(got, " ") != 4 {
		t.Errorf("of all that passed here it tells %q", got)
	}
	// A store that has less than passed here lost some of it.
	_, upTo = LogUnsent(e.Log)
	LogAnswered(e, l, &LogAnswer{Now: now + 5, Count: 3, Newest: now + 3}, 1, 0, "f", upTo)
	if got := told(e.Log, false); strings.Count(got, " ") != 4 || Alone(accounts[0]) {
		t.Errorf("after a loss it tells %q", got)
	}
	// What left the window is told no more, and weighs on no share.
	alone(now+6, false, "g", 1, 1)
	if LogLeft(e.Log, 10, now+60e3+5, 60e3) != 9 || told(e.Log, false) != "1764499230506/g/1/1 " {
		t.Errorf("a window later it tells %q", told(e.Log, false))
	}
	if LogLeft(e.Log, 10, now+60e3+6, 60e3) != 10 || told(e.Log, true) != "" || e.Log.alone != 0 || e.Log.unsent != 0 {
		t.Errorf("after a window: %+v", *e.Log)
	}
}

// That a log has no room holds for who has the same limit or a lower one, and costs as much
// or more.
func TestRefusalOfALogHoldsForItsLimit(t *testing.T) {
	l := &Limit{Algorithm: Exact, Limit: 10, Length: 60}
	now := int64(1764499230500)
	e := EntryFind(NewEntries(true, 1), "client", now)
	LogAnswered(e, l, &LogAnswer{Now: now, Count: 8, Free: now + 40e3, Newest: now - 5e3}, 3, 0, "a", 0)
	for _, c := range []struct{ limit, cost, left, wait int64 }{
		{10, 3, 2, 40e3}, {10, 2, 2, 0}, {9, 3, 2, 40e3}, {11, 3, 11, 0}, {1000, 3, 1000, 0}, {10, 10, 2, 55e3},
	} {
		if left, wait := LogLeft(e.Log, c.limit, now, 60e3), LogWait(e.Log, c.limit, c.cost, now, 60e3); left != c.left || wait != c.wait {
			t.Errorf("limit %d, cost %d: %d are left, and %d ms to wait; want %d, %d", c.limit, c.cost, left, wait, c.left, c.wait)
		}
	}
	if got := LogLeft(e.Log, 10, now+40e3, 60e3); got != 10 {
		t.Errorf("when it has room again %d are left at most, want 10", got)
	}
}

// Whatever order answers come in, a bucket lacks no more than the store said.
func TestAnswersOfABucketOutOfOrder(t *testing.T) {
	l := &Limit{Algorithm: Bucket, Limit: 10, Length: 60, Burst: 10}
	now := int64(1764499230500)
	e := EntryFind(NewEntries(false, 1), "client", now)
	BucketAnswered(e, l, 3*60e3, now, 2) // the second, which saw what the first took
	BucketAnswered(e, l, 0, now, 3)
	if e.Lack != 5*60e3 || e.At != now {
		t.Errorf("it lacks %d parts, want those of 5 tokens", e.Lack)
	}
}

// Counts that are none of ours do no harm.
func TestHugeCountsOfASlidingWindow(t *testing.T) {
	for _, length := range []int64{1, 60, testYear} {
		ms := length * 1000
		for _, huge := range []int64{MaxExact / ms, MaxExact/ms + 1, MaxCount, MaxExact} {
			limit := MaxExact / ms
			for _, left := range []int64{1, ms / 2, ms, 2 * ms} {
				if got := SlidingLeft(0, huge, 1, left, ms); got > 1 || left >= ms && got > 0 {
					t.Errorf("length %d: before %d with %d ms left: %d of 1 are left", length, huge, left, got)
				}
				for _, cost := range []int64{1, limit} {
					wait := SlidingWait(huge, huge, limit, cost, left, ms)
					if wait < 0 || wait > left+ms {
						t.Errorf("length %d: counts of %d with %d ms left: a cost of %d waits %d ms", length, huge, left, cost, wait)
					}
				}
			}
		}
	}
}

// Gateways without number drain a bucket without end, and nothing overflows.
func TestShareOfABucketOfTheLargestNumbers(t *testing.T) {
	l := &Limit{Algorithm: Bucket, Limit: MaxExact / 60000, Length: 60, Burst: MaxExact / 60000}
	o := newOnly(l)
	now := int64(1764499230500)
	passed := 0
	for i := 0; i < 5; i++ {
		var d Decision
		TakeAlone([]*Limit{l}, []*Account{o.account(now)}, &Share{Gateways: 10000}, l.Burst/2, now, false, "", 1, &d)
		if d.Allowed {
			passed++
		}
		if d.Remaining < 0 || d.RetryAfter < 0 {
			t.Errorf("%+v", d)
		}
	}
	if passed != 1 {
		t.Errorf("%d passed, want one", passed)
	}
}
