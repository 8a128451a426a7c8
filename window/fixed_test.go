package window

import (
	"math/rand"
	"strconv"
	"testing"
)

func TestFixedAtStartsWindowsOnTheClock(t *testing.T) {
	for _, c := range []struct{ unix, length, id, left int64 }{
		{0, 60, 0, 60},
		{59, 60, 0, 1},
		{60, 60, 1, 60},
		{1764499200, 1, 1764499200, 1},
		{1764499210, 86400, 20422, 47990},
		{31622399, 31622400, 0, 1},
		{-1, 60, -1, 1},
		{-60, 60, -1, 60},
		{-61, 60, -2, 1},
	} {
		id, left := FixedAt(c.unix, c.length)
		if id != c.id || left != c.left {
			t.Errorf("FixedAt(%d, %d) = %d, %d, want %d, %d", c.unix, c.length, id, left, c.id, c.left)
		}
	}
}

func TestFixedTakeJudgesByTheLimit(t *testing.T) {
	for _, c := range []struct {
		before, limit, unix int64
		want                Decision
	}{
		{0, 100, 438, Decision{Allowed: true, Remaining: 99, Reset: 42}},
		{99, 100, 479, Decision{Allowed: true, Remaining: 0, Reset: 1}},
		{100, 100, 438, Decision{Reset: 42, RetryAfter: 42}},
		{0, 1, 420, Decision{Allowed: true, Reset: 60}},
		{MaxCount - 1, MaxCount, 420, Decision{Allowed: true, Reset: 60}},
		{MaxCount, MaxCount, 420, Decision{Reset: 60, RetryAfter: 60}},
	} {
		counts := NewFixedCounts(60, 10)
		FixedAnswered(FixedFind(counts, "client", c.unix), c.before, 0)
		if got := takeAt(counts, "client", c.unix, c.limit); got != c.want {
			t.Errorf("after %d of %d, at %d: %+v, want %+v", c.before, c.limit, c.unix, got, c.want)
		}
	}
}

// takeAt returns what FixedTake fills in.
func takeAt(c *FixedCounts, client string, unix, limit int64) (d Decision) {
	FixedTake(c, client, unix, limit, &d)
	return d
}

// alone returns what FixedAlone fills in.
func alone(f *FixedCount, unix, limit, own, gateways int64, asked bool) (d Decision) {
	FixedAlone(f, unix, limit, own, gateways, asked, &d)
	return d
}

// add counts a request of a client in a window of one second and returns the
// count with it.
func add(c *FixedCounts, client string, id int64) int64 {
	return MaxCount - takeAt(c, client, id, MaxCount).Remaining
}

// raise notes that the store answered count for a client in a window of one second.
func raise(c *FixedCounts, client string, id, count int64) {
	FixedAnswered(FixedFind(c, client, id), count, 0)
}

// A step adds one request to a client's count in a window, or raises the count.
type step struct {
	client string
	id     int64
	raise  int64 // 0: add one
	want   int64 // the count after an addition
}

func TestFixedCountsStepByStep(t *testing.T) {
	for name, steps := range map[string][]step{
		"counts go up": {
			{"a", 7, 0, 1}, {"a", 7, 0, 2}, {"b", 7, 0, 1}, {"a", 7, 0, 3},
		},
		"a new window begins at one": {
			{"a", 7, 0, 1}, {"a", 7, 0, 2}, {"a", 8, 0, 1}, {"a", 8, 0, 2},
		},
		"both sides of an edge are counted apart": {
			{"a", 7, 0, 1}, {"a", 8, 0, 1}, {"a", 7, 0, 2}, {"a", 8, 0, 2}, {"a", 7, 0, 3},
		},
		"a clock that steps back over an edge loses no count": {
			{"a", 7, 0, 1}, {"a", 8, 0, 1}, {"a", 7, 0, 2}, {"a", 7, 0, 3}, {"a", 8, 0, 2}, {"a", 9, 0, 1}, {"a", 8, 0, 3},
		},
		"a clock that jumps back by more starts anew": {
			{"a", 900, 0, 1}, {"a", 7, 0, 1}, {"a", 7, 0, 2}, {"a", 8, 0, 1},
		},
		"a clock that jumps forward starts anew": {
			{"a", 7, 0, 1}, {"a", 900, 0, 1}, {"a", 901, 0, 1},
		},
		"a shared count is gone on from": {
			{"a", 7, 40, 0}, {"a", 7, 0, 41}, {"a", 7, 39, 0}, {"a", 7, 0, 42},
		},
		"a shared count of an older window says nothing of this one": {
			{"a", 8, 0, 1}, {"a", 7, 40, 0}, {"a", 8, 0, 2},
		},
		"a shared count may begin a window": {
			{"a", 7, 0, 1}, {"b", 8, 12, 0}, {"a", 8, 0, 1}, {"b", 8, 0, 13},
		},
	} {
		c := NewFixedCounts(1, 10)
		for i, s := range steps {
			if s.raise > 0 {
				raise(c, s.client, s.id, s.raise)
				continue
			}
			if got := add(c, s.client, s.id); got != s.want {
				t.Errorf("%s: step %d: the count of %q in window %d is %d, want %d", name, i, s.client, s.id, got, s.want)
			}
		}
	}
}

func TestFixedCountsStayWithinTheirBound(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	c := NewFixedCounts(1, 100)
	for i := 0; i < 20000; i++ {
		id := int64(1000 + i/500 - random.Intn(3))
		client := strconv.Itoa(random.Intn(5000))
		if random.Intn(2) == 0 {
			add(c, client, id)
		} else {
			raise(c, client, id, int64(random.Intn(10)+1))
		}
		if n := FixedLen(c); n > 100 {
			t.Fatalf("step %d: %d counts, want at most 100", i, n)
		}
	}
	one := NewFixedCounts(1, 1)
	for i := 0; i < 10; i++ {
		if got := add(one, strconv.Itoa(i), int64(i/2)); got != 1 || FixedLen(one) != 1 {
			t.Fatalf("client %d: count %d of %d clients, want 1 of 1", i, got, FixedLen(one))
		}
	}
}

func TestEvictionSparesClientsAtTheirLimit(t *testing.T) {
	c := NewFixedCounts(1, 1000)
	for i := 0; i < 10; i++ {
		raise(c, "busy"+strconv.Itoa(i), 7, 100)
	}
	for i := 0; i < 100000; i++ {
		add(c, strconv.Itoa(i), 7)
	}
	for i := 0; i < 10; i++ {
		if got := add(c, "busy"+strconv.Itoa(i), 7); got != 101 {
			t.Errorf("busy client %d has count %d after a crowd of newcomers, want 101", i, got)
		}
	}
}

func TestEvictionTakesAnEndedWindowFirst(t *testing.T) {
	c := NewFixedCounts(1, 100)
	for i := 0; i < 50; i++ {
		raise(c, "old"+strconv.Itoa(i), 7, 100)
	}
	for i := 0; i < 100; i++ {
		add(c, "new"+strconv.Itoa(i), 8)
	}
	for i := 0; i < 100; i++ {
		if got := add(c, "new"+strconv.Itoa(i), 8); got != 2 {
			t.Fatalf("client %d of the running window has count %d, want 2", i, got)
		}
	}
}

// Over any history with a clock that does not jump, a decision is what an exact log
// of that client's requests in that window gives.
func TestFixedCountsAgreeWithALog(t *testing.T) {
	random := rand.New(rand.NewSource(2))
	c := NewFixedCounts(60, 1000)
	log := map[string]int64{}
	unix := int64(1764499200)
	for i := 0; i < 50000; i++ {
		unix += int64(random.Intn(40)) * int64(random.Intn(2))
		at := unix
		if random.Intn(10) == 0 {
			at -= int64(random.Intn(59)) // read the clock before, came later
		}
		id, left := FixedAt(at, 60)
		client := strconv.Itoa(random.Intn(20))
		key := client + ":" + strconv.FormatInt(id, 10)
		log[key]++
		want := Decision{Allowed: true, Remaining: 300 - log[key], Reset: left}
		if log[key] > 300 {
			want = Decision{Reset: left, RetryAfter: left}
		}
		if got := takeAt(c, client, at, 300); got != want {
			t.Fatalf("step %d: %+v for request %d of client %s in window %d, want %+v", i, got, log[key], client, id, want)
		}
	}
}

func TestLowerBoundIsReachedStepByStep(t *testing.T) {
	c := NewFixedCounts(1, 100)
	for i := 0; i < 100; i++ {
		add(c, strconv.Itoa(i), 7)
	}
	FixedSetMax(c, 10)
	for i, want := 0, 99; i < 200; i++ {
		add(c, "newcomer "+strconv.Itoa(i), 7)
		if got := FixedLen(c); got != want {
			t.Fatalf("%d counts of at most 10 after %d newcomers, want %d", got, i+1, want)
		}
		if want > 10 {
			want--
		}
	}
}

func TestFixedFindTellsWindowsAndClientsApart(t *testing.T) {
	c := NewFixedCounts(60, 10)
	f := FixedFind(c, "a", 420)
	FixedAnswered(f, 40, 0)
	for _, at := range []struct {
		client     string
		unix       int64
		known, end int64
		same       bool
	}{
		{"a", 420, 40, 480, true},
		{"a", 479, 40, 480, true},
		{"b", 450, 0, 480, false},
		{"a", 480, 0, 540, false},
		{"a", 479, 40, 480, true}, // the clock stepped back over the edge
		{"a", 539, 0, 540, false},
	} {
		got := FixedFind(c, at.client, at.unix)
		if got.Known != at.known || got.End != at.end || (got == f) != at.same || FixedClient(got) != at.client {
			t.Errorf("%s at %d: %d known of %q until %d, want %d until %d", at.client, at.unix, got.Known, FixedClient(got), got.End, at.known, at.end)
		}
	}
	if got := FixedLen(c); got != 3 {
		t.Errorf("%d counts are held, want 3", got)
	}
}

// walk visits a table part by part and returns how often each client was visited.
// between runs after each part.
func walk(c *FixedCounts, unix int64, count int, between func()) map[string]int {
	visits := map[string]int{}
	for next := 0; next >= 0; {
		var part []*FixedCount
		part, next = FixedPart(c, unix, count, next)
		for _, f := range part {
			visits[FixedClient(f)]++
		}
		between()
	}
	return visits
}

func TestFixedPartVisitsEachCountOnce(t *testing.T) {
	for _, clients := range []int{0, 1, 9, 10, 11, 95} {
		c := NewFixedCounts(60, 100)
		for i := 0; i < clients; i++ {
			FixedFind(c, strconv.Itoa(i), 420)
		}
		parts := 0
		visits := walk(c, 479, 10, func() { parts++ })
		if want := (clients + 9) / 10; len(visits) != clients || parts != want && clients > 0 {
			t.Errorf("%d of %d clients were visited in %d parts", len(visits), clients, parts)
		}
		for client, times := range visits {
			if times != 1 {
				t.Errorf("of %d clients %s was visited %d times", clients, client, times)
			}
		}
	}
}

func TestFixedPartLeavesOutWhatIsOver(t *testing.T) {
	c := NewFixedCounts(60, 100)
	FixedFind(c, "old", 420)
	if part, after := FixedPart(c, 480, 10, 0); len(part) != 0 || after >= 0 {
		t.Errorf("%d counts of a window that is over, and then %d; want none, and the end", len(part), after)
	}
	FixedFind(c, "new", 480)
	if visits := walk(c, 480, 10, func() {}); len(visits) != 1 || visits["new"] != 1 {
		t.Errorf("%v were visited, want the client of the running window", visits)
	}
}

// Whoever was there when a walk began, and is still there when it ends, was visited,
// also where others come and go meanwhile. With its window the walk ends.
func TestFixedPartMissesNobodyWhoStays(t *testing.T) {
	random := rand.New(rand.NewSource(4))
	for round := 0; round < 300; round++ {
		c := NewFixedCounts(60, 50)
		first := map[*FixedCount]bool{}
		for i := random.Intn(60); i >= 0; i-- {
			first[FixedFind(c, strconv.Itoa(i), 420)] = true
		}
		visits := walk(c, 420, 1+random.Intn(20), func() {
			for i := random.Intn(10); i > 0; i-- {
				FixedFind(c, "newcomer "+strconv.Itoa(random.Int()), 420)
			}
		})
		for f := range first {
			if c.current.counts[FixedClient(f)] == f && visits[FixedClient(f)] == 0 {
				t.Fatalf("round %d: client %s was left out", round, FixedClient(f))
			}
		}
	}
	c := NewFixedCounts(60, 1000)
	for i := 0; i < 500; i++ {
		FixedFind(c, strconv.Itoa(i), 420)
	}
	parts := 0
	walk(c, 479, 10, func() {
		parts++
		FixedFind(c, "newcomer "+strconv.Itoa(parts), 480)
	})
	if parts != 2 {
		t.Errorf("a walk over 500 whose window ends after 10 of them has %d parts, want 2", parts)
	}
}

func TestFixedAloneTakesAShareOfWhatIsLeft(t *testing.T) {
	for _, c := range []struct {
		name     string
		answered int64 // the last count of the store; 0: none
		own      int64 // as of FixedAlone
		gateways int64
		want     int64 // how many pass
	}{
		{"one gateway takes all", 0, 0, 1, 10},
		{"an unknown number is one", 4, 0, 0, 6},
		{"what is left", 4, 0, 1, 6},
		{"two gateways", 4, 0, 2, 3},
		{"rounded up", 3, 0, 2, 4},
		{"at least one, where one is left", 9, 0, 10000, 1},
		{"nothing is left", 10, 0, 3, 0},
		{"refused requests are counted too", 25, 0, 3, 0},
		{"a limit of its own", 0, 3, 1, 3},
		{"a limit beats the number of gateways", 0, 8, 5, 8},
		{"never more than is left", 7, 8, 1, 3},
	} {
		f := FixedFind(NewFixedCounts(60, 10), "client", 450)
		if c.answered > 0 {
			FixedAnswered(f, c.answered, 0)
		}
		for i := int64(0); i < 30; i++ {
			want := Decision{Reset: 30, RetryAfter: 30}
			if i < c.want {
				want = Decision{Allowed: true, Remaining: c.want - 1 - i, Reset: 30}
			}
			if got := alone(f, 450, 10, c.own, c.gateways, i%2 == 0); got != want {
				t.Errorf("%s: request %d: %+v, want %+v", c.name, i+1, got, want)
			}
		}
		if f.Spent != c.want || f.Lost+f.Unsettled != c.want || f.Known != c.answered+c.want {
			t.Errorf("%s: after %d passes it holds %+v", c.name, c.want, *f)
		}
	}
}

// While several gateways are alone, their shares together are what was left, but for
// the rounding up.
func TestSharesTogetherAreWhatIsLeft(t *testing.T) {
	for limit := int64(1); limit <= 12; limit++ {
		for total := int64(0); total <= limit+1; total++ {
			for gateways := int64(1); gateways <= 5; gateways++ {
				passed := int64(0)
				for g := int64(0); g < gateways; g++ {
					f := FixedFind(NewFixedCounts(60, 10), "client", 0)
					FixedAnswered(f, total, 0)
					for alone(f, 0, limit, 0, gateways, false).Allowed {
						passed++
					}
				}
				left := limit - total
				if left < 0 {
					left = 0
				}
				if passed < left || passed > left+gateways-1 || left == 0 && passed > 0 {
					t.Errorf("limit %d, %d counted, %d gateways: %d pass", limit, total, gateways, passed)
				}
			}
		}
	}
}

func TestAnswersAndLossesStepByStep(t *testing.T) {
	f := FixedFind(NewFixedCounts(60, 10), "client", 0)
	check := func(step string, known, unsettled, lost, spent int64) {
		t.Helper()
		if f.Known != known || f.Unsettled != unsettled || f.Lost != lost || f.Spent != spent {
			t.Errorf("%s: %d known, %d unsettled, %d lost, %d spent; want %d, %d, %d, %d",
				step, f.Known, f.Unsettled, f.Lost, f.Spent, known, unsettled, lost, spent)
		}
	}
	FixedAnswered(f, 10, 0)
	check("an answer", 10, 0, 0, 0)
	FixedAnswered(f, 7, 0)
	check("a count that went back", 10, 0, 0, 0)
	alone(f, 0, 100, 0, 1, true)
	check("a pass that the store may have counted", 11, 0, 1, 1)
	alone(f, 0, 100, 0, 1, false)
	alone(f, 0, 100, 0, 1, false)
	check("two of which it was not told", 13, 2, 1, 3)
	settle := func(want int64) {
		t.Helper()
		if got := FixedSettle(f); got != want {
			t.Errorf("%d are to be settled, want %d", got, want)
		}
	}
	settle(2)
	settle(0) // they are on their way
	FixedAnswered(f, 12, 0)
	check("an answer over another connection", 14, 2, 0, 3)
	settle(0)
	FixedLost(f, 2)
	check("they were told, and no answer came", 14, 0, 2, 3)
	alone(f, 0, 100, 0, 1, false)
	check("one more", 15, 1, 2, 4)
	settle(1)
	FixedAnswered(f, 15, 1)
	check("all is answered", 15, 0, 0, 4)
	alone(f, 0, 100, 0, 1, false)
	FixedAnswered(f, 20, 0)
	check("an answer to a call from before the last pass", 21, 1, 0, 5)
	settle(1)
	alone(f, 0, 100, 0, 1, false)
	settle(0)
	FixedAnswered(f, 21, 1)
	check("and the one that settles it, and not a later one", 22, 1, 0, 6)
	settle(1)
}
