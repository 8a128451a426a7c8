package window

import (
	"math/rand"
	"reflect"
	"testing"
)

// ending returns counts that end then, and are known to have reached so much.
func ending(ends []int64, known ...int64) []*FixedCount {
	var counts []*FixedCount
	for i, end := range ends {
		f := &FixedCount{End: end}
		if i < len(known) {
			f.Known = known[i]
		}
		counts = append(counts, f)
	}
	return counts
}

// fixedOf returns limits of fixed windows; their length is of no account here.
func fixedOf(limits []int64) []*Limit {
	var all []*Limit
	for _, limit := range limits {
		all = append(all, &Limit{Limit: limit, Length: 60})
	}
	return all
}

// accountsOf returns accounts of these counts.
func accountsOf(counts []*FixedCount) []*Account {
	var accounts []*Account
	for _, f := range counts {
		accounts = append(accounts, &Account{Running: f})
	}
	return accounts
}

func TestJudge(t *testing.T) {
	const most = MaxCount
	for _, c := range []struct {
		name        string
		ends, lefts []int64 // at 1000
		cost        int64
		want        Decision
	}{
		{"one limit", []int64{1060}, []int64{5}, 2, Decision{Allowed: true, Remaining: 3, Reset: 60,
			Several: &Standings{[]int64{3}, []int64{60}, []bool{false}, 0}}},
		{"the last that fits", []int64{1060}, []int64{2}, 2, Decision{Allowed: true, Reset: 60,
			Several: &Standings{[]int64{0}, []int64{60}, []bool{false}, 0}}},
		{"one that does not fit takes nothing", []int64{1060}, []int64{1}, 2, Decision{Remaining: 1, Reset: 60, RetryAfter: 60,
			Several: &Standings{[]int64{1}, []int64{60}, []bool{true}, 0}}},
		{"nothing is left", []int64{1001}, []int64{0}, 1, Decision{Reset: 1, RetryAfter: 1,
			Several: &Standings{[]int64{0}, []int64{1}, []bool{true}, 0}}},
		{"more than all is gone", []int64{1060}, []int64{-7}, 1, Decision{Reset: 60, RetryAfter: 60,
			Several: &Standings{[]int64{0}, []int64{60}, []bool{true}, 0}}},
		{"the one with least left binds", []int64{1060, 1010}, []int64{5, 4}, 1, Decision{Allowed: true, Remaining: 3, Reset: 10,
			Several: &Standings{[]int64{4, 3}, []int64{60, 10}, []bool{false, false}, 1}}},
		{"the same, in another order", []int64{1010, 1060}, []int64{4, 5}, 1, Decision{Allowed: true, Remaining: 3, Reset: 10,
			Several: &Standings{[]int64{3, 4}, []int64{10, 60}, []bool{false, false}, 0}}},
		{"of two with as much left the one that lasts longer", []int64{1010, 1060}, []int64{4, 4}, 1, Decision{Allowed: true, Remaining: 3, Reset: 60,
			Several: &Standings{[]int64{3, 3}, []int64{10, 60}, []bool{false, false}, 1}}},
		{"the same, in another order", []int64{1060, 1010}, []int64{4, 4}, 1, Decision{Allowed: true, Remaining: 3, Reset: 60,
			Several: &Standings{[]int64{3, 3}, []int64{60, 10}, []bool{false, false}, 0}}},
		{"the one that refuses binds, whatever is left of others", []int64{1060, 1010}, []int64{8, 7}, 8, Decision{Remaining: 7, Reset: 10, RetryAfter: 10,
			Several: &Standings{[]int64{8, 7}, []int64{60, 10}, []bool{false, true}, 1}}},
		{"also where others have less", []int64{1060, 1010}, []int64{-1, 7}, 1, Decision{Reset: 60, RetryAfter: 60,
			Several: &Standings{[]int64{0, 7}, []int64{60, 10}, []bool{true, false}, 0}}},
		{"of two that refuse the one that lasts longer", []int64{1010, 1060, 1030}, []int64{0, 2, 1}, 3, Decision{Remaining: 2, Reset: 60, RetryAfter: 60,
			Several: &Standings{[]int64{0, 2, 1}, []int64{10, 60, 30}, []bool{true, true, true}, 1}}},
		{"large numbers", []int64{1060, 1010}, []int64{most, most}, most, Decision{Allowed: true, Reset: 60,
			Several: &Standings{[]int64{0, 0}, []int64{60, 10}, []bool{false, false}, 0}}},
		{"large numbers that do not fit", []int64{1060, 1010}, []int64{most, most - 1}, most, Decision{Remaining: most - 1, Reset: 10, RetryAfter: 10,
			Several: &Standings{[]int64{most, most - 1}, []int64{60, 10}, []bool{false, true}, 1}}},
		{"far above a limit", []int64{1060}, []int64{1 - 1<<53}, most, Decision{Reset: 60, RetryAfter: 60,
			Several: &Standings{[]int64{0}, []int64{60}, []bool{true}, 0}}},
	} {
		var rests []int64
		for _, end := range c.ends {
			rests = append(rests, end-1000)
		}
		var got Decision
		Judge(c.lefts, rests, rests, c.cost, &got)
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v %+v, want %+v %+v", c.name, got, *got.Several, c.want, *c.want.Several)
		}
	}
}

func TestAdmitted(t *testing.T) {
	const most = MaxCount
	for _, c := range []struct {
		lefts                []int64
		requests, cost, want int64
	}{
		{[]int64{10}, 3, 1, 3},
		{[]int64{10}, 20, 1, 10},
		{[]int64{10}, 20, 3, 3},
		{[]int64{10, 5}, 20, 3, 1},
		{[]int64{5, 10}, 20, 3, 1},
		{[]int64{10, 2}, 20, 3, 0},
		{[]int64{10, -1}, 20, 1, 0},
		{[]int64{-100}, 1, 7, 0},
		{[]int64{0}, 1, 1, 0},
		{[]int64{10}, 0, 1, 0},
		{[]int64{most}, most, 1, most},
		{[]int64{most}, 5, most, 1},
		{[]int64{most}, most, most / 2, 2},
		{[]int64{-1 << 53, most}, most, most, 0},
	} {
		if got := Admitted(c.lefts, c.requests, c.cost); got != c.want {
			t.Errorf("%d requests of cost %d fit into %v %d times, want %d", c.requests, c.cost, c.lefts, got, c.want)
		}
	}
}

func TestTakeTakesAllOrNothing(t *testing.T) {
	const most = MaxCount
	for _, c := range []struct {
		name          string
		known, limits []int64
		cost          int64
		allowed       bool
		after         []int64
	}{
		{"both have room", []int64{3, 5}, []int64{10, 10}, 5, true, []int64{8, 10}},
		{"the first has none", []int64{6, 0}, []int64{10, 10}, 5, false, []int64{6, 0}},
		{"the second has none", []int64{0, 6}, []int64{10, 10}, 5, false, []int64{0, 6}},
		{"neither has", []int64{6, 6}, []int64{10, 10}, 5, false, []int64{6, 6}},
		{"above a limit", []int64{0, 0}, []int64{4, 10}, 5, false, []int64{0, 0}},
		{"beyond the limit", []int64{12, 0}, []int64{10, 10}, 1, false, []int64{12, 0}},
		{"the largest", []int64{0, 0}, []int64{most, most}, most, true, []int64{most, most}},
		{"one more", []int64{most, 0}, []int64{most, most}, 1, false, []int64{most, 0}},
		{"above the largest", []int64{1, 0}, []int64{most, most}, most, false, []int64{1, 0}},
	} {
		counts := ending([]int64{1060, 1010}, c.known...)
		var d Decision
		Take(fixedOf(c.limits), accountsOf(counts), c.cost, 1000e3, &d)
		want := ending([]int64{1060, 1010}, c.after...)
		if d.Allowed != c.allowed || !reflect.DeepEqual(counts, want) {
			t.Errorf("%s: allowed %v, the counts are %+v and %+v; want %v, %d", c.name, d.Allowed, *counts[0], *counts[1], c.allowed, c.after)
		}
		for i, left := range d.Several.Remaining {
			if expected := c.limits[i] - c.after[i]; left != expected && !(expected < 0 && left == 0) {
				t.Errorf("%s: %d remain of limit %d, want %d", c.name, left, i, expected)
			}
		}
	}
}

func TestTakeAlone(t *testing.T) {
	for _, c := range []struct {
		name                string
		known, limits       []int64
		cost, own, gateways int64
		passes              int64
	}{
		{"all that is left", []int64{40, 0}, []int64{100, 200}, 7, 0, 1, 8},
		{"fewer than one gateway count as one", []int64{40, 0}, []int64{100, 200}, 7, 0, 0, 8},
		{"a share of what is left", []int64{40, 0}, []int64{100, 200}, 7, 0, 2, 4},
		{"rounded up", []int64{40, 0}, []int64{100, 200}, 1, 0, 7, 9},
		{"of the tighter one", []int64{40, 180}, []int64{100, 200}, 2, 0, 2, 5},
		{"a share below the cost is one request", []int64{40, 0}, []int64{100, 200}, 20, 0, 4, 1},
		{"an amount of its own", []int64{40, 0}, []int64{100, 200}, 7, 25, 4, 3},
		{"never more than is left", []int64{80, 0}, []int64{100, 200}, 7, 25, 4, 2},
		{"nothing is left", []int64{100, 0}, []int64{100, 200}, 1, 25, 4, 0},
		{"beyond the limit", []int64{120, 0}, []int64{100, 200}, 1, 0, 2, 0},
		{"large numbers", []int64{0, 1}, []int64{MaxCount, MaxCount}, MaxCount / 4, 0, 2, 2},
		{"the largest, all of it", []int64{0, 0}, []int64{MaxCount, MaxCount}, MaxCount, 0, 1, 1},
	} {
		for _, asked := range []bool{false, true} {
			counts := ending([]int64{1060, 1010}, c.known...)
			var d Decision
			passes := int64(0)
			for i := 0; i < 50; i++ {
				d = Decision{}
				TakeAlone(fixedOf(c.limits), accountsOf(counts), &Share{c.own, c.gateways}, c.cost, 1000e3, asked, "", 1, &d)
				if !d.Allowed {
					break
				}
				passes++
			}
			if passes != c.passes || d.Allowed || d.RetryAfter < 10 {
				t.Errorf("%s: %d passed, then %+v; want %d", c.name, passes, d, c.passes)
			}
			for i, f := range counts {
				took := passes * c.cost
				want := FixedCount{End: f.End, Known: c.known[i] + took, Spent: took}
				if asked {
					want.Lost = took
				} else {
					want.Unsettled = took
				}
				if *f != want {
					t.Errorf("%s: count %d is %+v, want %+v", c.name, i, *f, want)
				}
			}
		}
	}
}

// For one limit and a cost of one it is FixedAlone.
func TestTakeAloneOfOneIsFixedAlone(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	for i := 0; i < 5000; i++ {
		f := FixedCount{End: 1060, Lost: random.Int63n(5), Unsettled: random.Int63n(5)}
		f.Spent = f.Lost + f.Unsettled + random.Int63n(5)
		f.Known = f.Lost + f.Unsettled + random.Int63n(30)
		limit, own, gateways, asked := 1+random.Int63n(40), random.Int63n(2)*random.Int63n(20), random.Int63n(6), random.Intn(2) == 0
		one, several := f, f
		want := alone(&one, 1000, limit, own, gateways, asked)
		var got Decision
		TakeAlone(fixedOf([]int64{limit}), accountsOf([]*FixedCount{&several}), &Share{own, gateways}, 1, 1000e3, asked, "", 1, &got)
		if got.Several == nil || got.Several.Refused[0] == got.Allowed || got.Several.Remaining[0] != got.Remaining {
			t.Fatalf("%+v: the standings are %+v", f, got.Several)
		}
		got.Several = nil
		if got != want || one != several {
			t.Fatalf("%+v, limit %d, own %d, gateways %d: %+v and %+v, want %+v and %+v", f, limit, own, gateways, got, several, want, one)
		}
	}
}

// What gateways take alone fits together into what was left.
func TestSharesOfDearRequestsTogetherAreAtMostWhatIsLeft(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	for i := 0; i < 500; i++ {
		gateways, cost := 1+random.Int63n(6), 1+random.Int63n(12)
		limits := []int64{cost + random.Int63n(200), cost + random.Int63n(200)}
		known := []int64{random.Int63n(limits[0] + 1), random.Int63n(limits[1] + 1)}
		passed := int64(0)
		for g := int64(0); g < gateways; g++ {
			counts := ending([]int64{1060, 1010}, known...)
			for d := (Decision{Allowed: true}); d.Allowed; {
				d = Decision{}
				TakeAlone(fixedOf(limits), accountsOf(counts), &Share{0, gateways}, cost, 1000e3, false, "", 1, &d)
				if d.Allowed {
					passed += cost
				}
			}
		}
		for j, limit := range limits {
			if left := limit - known[j]; passed > left+(gateways-1)*cost {
				t.Errorf("%d gateways passed %d at %d each, of %d that were left", gateways, passed, cost, left)
			}
		}
	}
}

// What a call was to settle and did not is settled by the next one.
func TestFixedUnsentIsSettledByTheNextCall(t *testing.T) {
	f := &FixedCount{Known: 20, Unsettled: 7, Lost: 3}
	if got := FixedSettle(f); got != 7 {
		t.Fatalf("%d are settled, want 7", got)
	}
	f.Known += 2
	f.Unsettled += 2 // passed alone meanwhile
	if got := FixedSettle(f); got != 0 {
		t.Errorf("%d are settled while others are on their way, want none", got)
	}
	FixedUnsent(f, 0)
	FixedUnsent(f, 7)
	if want := (FixedCount{Known: 22, Unsettled: 9, Lost: 3}); *f != want {
		t.Errorf("%+v, want %+v", *f, want)
	}
	if got := FixedSettle(f); got != 9 {
		t.Errorf("%d are settled, want 9", got)
	}
	FixedAnswered(f, 30, 9)
	if want := (FixedCount{Known: 30}); *f != want {
		t.Errorf("%+v, want %+v", *f, want)
	}
}
