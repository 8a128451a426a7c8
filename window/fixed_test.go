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

func TestFixedDecide(t *testing.T) {
	for _, c := range []struct {
		count, limit, left int64
		want               Decision
	}{
		{1, 100, 42, Decision{Allowed: true, Remaining: 99, Reset: 42}},
		{100, 100, 1, Decision{Allowed: true, Remaining: 0, Reset: 1}},
		{101, 100, 42, Decision{Reset: 42, RetryAfter: 42}},
		{1, 1, 60, Decision{Allowed: true, Reset: 60}},
		{MaxCount, MaxCount, 60, Decision{Allowed: true, Reset: 60}},
		{MaxCount + 1, MaxCount, 60, Decision{Reset: 60, RetryAfter: 60}},
	} {
		if got := FixedDecide(c.count, c.limit, c.left); got != c.want {
			t.Errorf("FixedDecide(%d, %d, %d) = %+v, want %+v", c.count, c.limit, c.left, got, c.want)
		}
	}
}

// add counts a request of a client in a window of one second and returns the
// count with it.
func add(c *FixedCounts, client string, id int64) int64 {
	return MaxCount - FixedTake(c, client, id, MaxCount).Remaining
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
				FixedRaise(c, s.client, s.id, s.raise)
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
			FixedRaise(c, client, id, int64(random.Intn(10)+1))
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
		FixedRaise(c, "busy"+strconv.Itoa(i), 7, 100)
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
		FixedRaise(c, "old"+strconv.Itoa(i), 7, 100)
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
		if got, want := FixedTake(c, client, at, 300), FixedDecide(log[key], 300, left); got != want {
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
		if got := FixedLen(c); got != want || FixedMax(c) != 10 {
			t.Fatalf("%d counts of at most %d after %d newcomers, want %d of 10", got, FixedMax(c), i+1, want)
		}
		if want > 10 {
			want--
		}
	}
}

func TestFixedKnownTellsOfTheNewestWindowAlone(t *testing.T) {
	c := NewFixedCounts(60, 10)
	FixedRaise(c, "a", 7, 40)
	for unix, want := range map[int64]int64{419: 0, 420: 40, 479: 40, 480: 0} {
		if got := FixedKnown(c, "a", unix); got != want {
			t.Errorf("at %d the count %d is known, want %d", unix, got, want)
		}
	}
	if got := FixedKnown(c, "b", 450); got != 0 || FixedLen(c) != 1 {
		t.Errorf("a stranger has the count %d, and %d clients are held; want 0 and 1", got, FixedLen(c))
	}
}
