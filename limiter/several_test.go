package limiter

import (
	"context"
	"math/rand"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
	"github.com/gatequota/gatequota/resp"
	"github.com/gatequota/gatequota/window"
)

// Each step is one request; places are what it is told.
func TestSeveralStepByStep(t *testing.T) {
	for _, c := range []struct {
		name   string
		cost   int64
		limits limits
		places []place
		stored []int64
	}{
		{"the first limit binds", 1, limits{{2, minute}, {5, hour}}, []place{{1, 4}, {0, 3}, {-1, 3}, {-1, 3}}, []int64{2, 2}},
		{"the second limit binds", 1, limits{{5, minute}, {2, hour}}, []place{{4, 1}, {3, 0}, {3, -1}, {3, -1}}, []int64{2, 2}},
		{"both bind", 1, limits{{2, minute}, {2, hour}}, []place{{1, 1}, {0, 0}, {-1, -1}}, []int64{2, 2}},
		{"dear requests, one limit", 7, limits{{20, minute}}, []place{{13}, {6}, {-7}}, []int64{14}},
		{"dear requests to the last", 5, limits{{10, minute}}, []place{{5}, {0}, {-1}}, []int64{10}},
		{"dear requests, two limits", 3, limits{{10, minute}, {7, hour}}, []place{{7, 4}, {4, 1}, {4, -2}}, []int64{6, 6}},
		{"all of a limit at once", 5, limits{{5, minute}, {100, hour}}, []place{{0, 95}, {-1, 95}}, []int64{5, 5}},
		{"largest numbers", window.MaxCount - 1, limits{{window.MaxCount, minute}, {window.MaxCount, hour}}, []place{{1, 1}, {-2, -2}},
			[]int64{window.MaxCount - 1, window.MaxCount - 1}},
		{"four limits", 2, limits{{9, minute}, {7, hour}, {8, 7200}, {9, 1800}}, []place{{7, 5, 6, 7}, {5, 3, 4, 5}, {3, 1, 2, 3}, {3, -2, 2, 3}}, []int64{6, 6, 6, 6}},
	} {
		server := severalStore(t)
		q := severalOf(t, "steps", server, c.cost, c.limits)
		var local []*Settings
		for _, s := range severalSettings("steps", server.fake, c.limits, nil) {
			s.Store = nil
			local = append(local, s)
		}
		inMemory := openSeveral(t, c.cost, local)
		var resets []int64
		for _, l := range c.limits {
			resets = append(resets, l[1]-start.Unix()%l[1])
		}
		for i, p := range c.places {
			what := c.name + ", request " + strconv.Itoa(i+1)
			wantPlace(t, what, takeSeveralAt(q, "client", start), Shared, resets, p)
			wantPlace(t, what+" in memory", takeSeveralAt(inMemory, "client", start), Local, resets, p)
		}
		if got := storedIn(server, "steps", "client", c.limits); !reflect.DeepEqual(got, c.stored) {
			t.Errorf("%s: the store counts %d, want %d", c.name, got, c.stored)
		}
		// Whoever is known not to fit costs the store nothing.
		server.ForgetCommands()
		takeSeveralAt(q, "client", start)
		if got := scripts(server.fake); got != 0 {
			t.Errorf("%s: the store is asked %d times for who does not fit", c.name, got)
		}
		// Another gateway is told the same.
		forget()
		again := severalOf(t, "steps", server, c.cost, c.limits)
		wantPlace(t, c.name+" at another gateway", takeSeveralAt(again, "client", start), Shared, resets, c.places[len(c.places)-1])
		if got := storedIn(server, "steps", "client", c.limits); !reflect.DeepEqual(got, c.stored) {
			t.Errorf("%s: after another refusal the store counts %d, want %d", c.name, got, c.stored)
		}
	}
}

// Waiting is of no use for what costs more than a limit.
func TestCostAboveALimitIsRefusedWithoutAWait(t *testing.T) {
	for _, mode := range []string{Local, Open, Closed} {
		server := severalStore(t)
		q := openSeveral(t, 6, severalSettings("dear", server.fake, limits{{100, minute}, {5, hour}}, func(s *Settings) { s.OnStoreFailure = mode }))
		for _, health := range []int64{0, away} {
			setHealth(q.store, health)
			way := Shared
			if health == away {
				way = Local
			}
			d := takeSeveralAt(q, "client", start)
			if d.Allowed || d.RetryAfter != -1 || d.Way != way || d.Reset != 1170 || d.Remaining != 5 || !d.Several.Refused[1] || d.Several.Refused[0] {
				t.Errorf("%s, health %d: %+v %+v, want it refused for good by the second limit", mode, health, d, *orNone(d.Several))
			}
		}
		if got := scripts(server.fake); got != 0 {
			t.Errorf("%s: %d calls, want none", mode, got)
		}
	}
	s := settings("dear", nil)
	q := openSeveral(t, 6, []*Settings{s})
	if d := takeSeveralAt(q, "client", start); d.Allowed || d.RetryAfter != -1 || d.Way != Local {
		t.Errorf("in memory: %+v, want it refused for good", d)
	}
}

// pausedBatch lets a batch set out to a store that answers when it is told to.
func pausedBatch(t *testing.T, server *severalFake, q *Several) chan window.Decision {
	t.Helper()
	if d := takeSeveralAt(q, "newcomer", start); d.Way != Shared {
		t.Fatalf("the store is asked for nothing: %+v", d)
	}
	server.ForgetCommands()
	server.Pause()
	first := beginSeveral(q, "first", start)
	eventually(t, "a command", func() bool { return scripts(server.fake) == 1 })
	server.severalSince()
	return first
}

func TestDearRequestsOfAClientTravelAsOneCall(t *testing.T) {
	server := severalStore(t)
	ls := limits{{20, minute}, {100, hour}}
	q := severalOf(t, "merge", server, 7, ls)
	first := pausedBatch(t, server, q)
	waiting := joinSeveral(t, q, start, "a", "b", "a", "a", "first", "a")
	server.Resume()
	wantPlace(t, "first", <-first, Shared, atStart, place{13, 93})
	for i, p := range []place{{13, 93}, {13, 93}, {6, 86}, {-7, 86}, {6, 86}, {-7, 86}} {
		wantPlace(t, "waiting request "+strconv.Itoa(i+1), <-waiting[i], Shared, atStart, p)
	}
	calls := server.severalSince()
	expected := []struct {
		client          string
		requests, known int64
	}{{"first", 1, 0}, {"a", 4, 0}, {"b", 1, 0}, {"first", 1, 7}}
	if len(calls) != len(expected) {
		t.Fatalf("the calls are %+v, want %d", calls, len(expected))
	}
	for i, e := range expected {
		want := severalCall{
			keys:     []string{severalKey("merge", 0, e.client, minute, 0), severalKey("merge", 1, e.client, hour, 0)},
			requests: e.requests, cost: 7,
			args: []severalArgs{{20, 0, e.known, 30, start.Unix() + 30}, {100, 0, e.known, 1170, start.Unix() + 1170}},
		}
		if !reflect.DeepEqual(calls[i], want) {
			t.Errorf("call %d is %+v, want %+v", i+1, calls[i], want)
		}
	}
	if got := storedIn(server, "merge", "a", ls); !reflect.DeepEqual(got, []int64{14, 14}) {
		t.Errorf("the store counts %d, want what passed alone", got)
	}
}

// Requests at one price and plain ones may weigh on one count, in one batch.
func TestDearAndCheapRequestsShareACount(t *testing.T) {
	server := severalStore(t)
	s := settings("weigh", server.fake)
	s.Limit = 100
	cheap, dear := openAlone(t, s), openSeveral(t, 7, []*Settings{s})
	take(cheap, "newcomer", 1, start) // the store knows the script
	first := pausedBatch(t, server, dear)
	cheaper := []chan taken{}
	var dearer []chan window.Decision
	for i := 0; i < 20; i++ {
		dearer = append(dearer, joinSeveral(t, dear, start, "client")...)
		if i < 10 {
			before := joinedSeveral(dear)
			cheaper = append(cheaper, begin(cheap, "client", start))
			eventually(t, "a place in the batch", func() bool { return joinedSeveral(dear) == before+1 })
		}
	}
	server.since()
	server.Resume()
	<-first
	// The cheap ones are asked for first.
	for i, done := range cheaper {
		want(t, "cheap request "+strconv.Itoa(i+1), done, 100, int64(i)+1)
	}
	for i, done := range dearer {
		p := place{100 - 10 - 7*int64(i+1)}
		if i >= 12 {
			p = place{-7} // 6 remain
		}
		wantPlace(t, "dear request "+strconv.Itoa(i+1), <-done, Shared, []int64{30}, p)
	}
	if slots, groups := server.since(), server.severalSince(); len(slots) != 1 || len(groups) != 2 || slots[0].n != 10 || groups[1].requests != 20 {
		t.Errorf("the calls are %+v and %+v, want one of 10 and then one of 20", slots, groups)
	}
	if allowed, ways := take(cheap, "client", 10, start); allowed != 6 || ways[Shared] != 10 {
		t.Errorf("%d of 10 cheap ones by ways %v, want the 6 that are left", allowed, ways)
	}
	if d := takeSeveralAt(dear, "client", start); d.Allowed || d.Remaining != 0 || d.Way != Shared {
		t.Errorf("a dear one behind them: %+v, want it refused with nothing left", d)
	}
}

func TestSeveralAreExactOverGatewaysAndRequestsAtOnce(t *testing.T) {
	const workers, each = 12, 60
	for _, c := range []struct {
		cost   int64
		limits limits
		passes int64
	}{
		{1, limits{{100, minute}, {150, hour}}, 100},
		{1, limits{{150, minute}, {100, hour}}, 100},
		{7, limits{{100, minute}}, 14},
		{3, limits{{1000, minute}, {200, hour}, {500, 7200}}, 66},
	} {
		server := severalStore(t)
		var all []*Several
		for g := 0; g < 2; g++ {
			forget() // each gateway is a process of its own
			all = append(all, severalOf(t, "exact", server, c.cost, c.limits))
			// Another router of the same middleware.
			all = append(all, severalOf(t, "exact", server, c.cost, c.limits))
		}
		var mu sync.Mutex
		passed, places := map[string]int64{}, map[string]int{}
		var group sync.WaitGroup
		for w := 0; w < workers; w++ {
			group.Add(1)
			go func(w int) {
				defer group.Done()
				for i := 0; i < each; i++ {
					client := strconv.Itoa((w + i) % 2)
					d := takeSeveralAt(all[(w+i/2)%4], client, start)
					mu.Lock()
					if d.Allowed {
						passed[client]++
						places[client+" "+strconv.FormatInt(d.Remaining, 10)]++
					}
					if d.Way != Shared {
						t.Errorf("a request is decided by way %s", d.Way)
					}
					mu.Unlock()
				}
			}(w)
		}
		group.Wait()
		for place, times := range places {
			if times > 1 {
				t.Errorf("cost %d, limits %v: the place %q was handed out %d times", c.cost, c.limits, place, times)
			}
		}
		for _, client := range []string{"0", "1"} {
			if passed[client] != c.passes {
				t.Errorf("cost %d, limits %v: %d of client %s passed, want %d", c.cost, c.limits, passed[client], client, c.passes)
			}
			for i, got := range storedIn(server, "exact", client, c.limits) {
				if got != c.passes*c.cost {
					t.Errorf("cost %d, limits %v: count %d is %d, want %d", c.cost, c.limits, i, got, c.passes*c.cost)
				}
			}
		}
	}
}

func TestBatchHoldsAtMost256Groups(t *testing.T) {
	server := severalStore(t)
	q := severalOf(t, "full", server, 2, limits{{5, minute}, {50, hour}})
	first := pausedBatch(t, server, q)
	turns := batchesOf(storeOf(q))
	var waiting []chan window.Decision
	for i := 0; i < 256; i++ {
		waiting = append(waiting, joinSeveral(t, q, start, client(i))...)
	}
	next := beginSeveral(q, client(256), start)
	eventually(t, "another batch", func() bool { return joinedSeveral(q) == 1 })
	others := joinSeveral(t, q, start, client(0), client(256))
	if got := batchesOf(storeOf(q)) - turns; got != 2 {
		t.Errorf("they wait in %d batches, want 2", got)
	}
	server.Resume()
	<-first
	for i, done := range waiting {
		wantPlace(t, client(i), <-done, Shared, atStart, place{3, 48})
	}
	wantPlace(t, "the one too many", <-next, Shared, atStart, place{3, 48})
	wantPlace(t, "the first again", <-others[0], Shared, atStart, place{1, 46})
	wantPlace(t, "the one too many again", <-others[1], Shared, atStart, place{1, 46})
}

func TestSeveralOnBothSidesOfAnEdge(t *testing.T) {
	server := severalStore(t)
	ls := limits{{5, minute}, {50, hour}}
	q := severalOf(t, "sides", server, 2, ls)
	pausedBatch(t, server, q)
	var before, after []chan window.Decision
	for i := 0; i < 4; i++ {
		before = append(before, joinSeveral(t, q, start, "client")...)
		after = append(after, joinSeveral(t, q, start.Add(time.Minute), "client")...)
	}
	server.Resume()
	passed := map[string]int{}
	for i := 0; i < 4; i++ {
		if d := <-before[i]; d.Allowed && d.Way == Shared && d.Several.Reset[0] == 30 {
			passed["before"]++
		}
		if d := <-after[i]; d.Allowed && d.Way == Shared && d.Several.Reset[0] == 30 && d.Several.Reset[1] == 1110 {
			passed["after"]++
		}
	}
	if passed["before"] != 2 || passed["after"] != 2 {
		t.Errorf("%v passed on the sides of the edge, want 2 each", passed)
	}
	if got := storedIn(server, "sides", "client", ls); got[0] != 4 || got[1] != 8 {
		t.Errorf("the store counts %d, want 4 and 8", got)
	}
	if got := server.Count(severalKey("sides", 0, "client", minute, 1)); got != 4 {
		t.Errorf("the store counts %d in the next minute, want 4", got)
	}
}

// Where one of several windows is over by the store's clock, nothing was counted, and the
// request is asked for once more: the short window is new, and the long one goes on.
func TestSeveralMoveToTheNextWindow(t *testing.T) {
	server := severalStore(t)
	ls := limits{{20, minute}, {100, hour}}
	q := severalOf(t, "over", server, 7, ls)
	takeSeveralAt(q, "a", start)
	pausedBatch(t, server, q)
	waiting := joinSeveral(t, q, start, "a", "b", "a", "a", "a")
	server.unix.Store(start.Unix() + 30)
	accepted := server.Accepted()
	server.Resume()
	for i, p := range []place{{13, 86}, {13, 93}, {6, 79}, {-7, 79}, {-7, 79}} {
		wantPlace(t, "waiting request "+strconv.Itoa(i+1), <-waiting[i], Shared, []int64{60, 1140}, p)
	}
	if got := storedIn(server, "over", "a", ls); got[0] != 7 || got[1] != 21 {
		t.Errorf("the store counts %d, want the 7 of before the edge and all 21", got)
	}
	if got := server.Count(severalKey("over", 0, "a", minute, 1)); got != 14 {
		t.Errorf("the store counts %d in the next minute, want 14", got)
	}
	if lines := logged.about("store over:"); len(lines) != 0 || healthOf(q.store) != 0 || server.Accepted() != accepted {
		t.Errorf("log %q, health %d; want none, 0", lines, healthOf(q.store))
	}
}

// A store whose clock is further ahead than that is none to be trusted.
func TestSeveralAtAStoreWhoseClockIsAhead(t *testing.T) {
	server := severalStore(t)
	ls := limits{{20, minute}, {100, hour}}
	q := severalOf(t, "ahead", server, 7, ls)
	takeSeveralAt(q, "newcomer", start)
	server.unix.Store(start.Unix() + 600)
	for i := 0; i < 3; i++ {
		p := []place{{13, 93}, {6, 86}, {-7, 86}}[i]
		wantPlace(t, "request "+strconv.Itoa(i+1), takeSeveralAt(q, "client", start), Local, atStart, p)
	}
	if lines := logged.about("store ahead:"); len(lines) != 1 || !strings.Contains(lines[0], "its clock is ahead") || healthOf(q.store) != 0 {
		t.Errorf("log %q, health %d; want one line, 0", lines, healthOf(q.store))
	}
	// What passed is told to the store when its clock is known: it was never counted.
	l := storeOf(q)
	l.ledger.mu.Lock()
	for i, table := range q.tables {
		f := window.FixedFind(table.counts, "client", start.Unix())
		if f.Unsettled != 14 || f.Lost != 0 || f.Settling != 0 {
			t.Errorf("count %d is %+v, want 14 unsettled", i, *f)
		}
	}
	l.ledger.mu.Unlock()
}

// What a first connection says of the store's clock is heeded in the same turn.
func TestFirstConnectionMovesSeveralToTheStoresClock(t *testing.T) {
	for _, off := range []int64{-7200, -60, 60, 3600} {
		what := strconv.FormatInt(off, 10) + " s off"
		server := severalStore(t)
		server.Advance(time.Duration(off) * time.Second)
		server.unix.Store(start.Unix() + off)
		q := openSeveral(t, 7, severalSettings("moved", server.fake, limits{{20, minute}, {100, hour}}, func(s *Settings) { s.OnStoreFailure = Closed }))
		l := storeOf(q)
		l.store.turn.Lock()
		waiting := joinSeveral(t, q, start, "a", "a", "b")
		l.store.turn.Unlock()
		resets := []int64{30, hour - (start.Unix()+off)%hour}
		for i, p := range []place{{13, 93}, {6, 86}, {13, 93}} {
			wantPlace(t, what+": request "+strconv.Itoa(i+1), <-waiting[i], Shared, resets, p)
		}
		if got := server.Count(severalKey("moved", 0, "a", minute, off/60)); got != 14 {
			t.Errorf("%s: the store counts %d in its minute, want 14; keys: %q", what, got, server.Keys())
		}
		if calls := server.severalSince(); len(calls) != 2 {
			t.Errorf("%s: the calls are %+v, want one of each client", what, calls)
		}
	}
}

// cutOffSeveral and comeBackSeveral are cutOff and comeBack.
func cutOffSeveral(server *severalFake, q *Several) { cutOff(server.fake, storeOf(q)) }

func comeBackSeveral(t *testing.T, server *severalFake, q *Several) {
	t.Helper()
	comeBack(t, server.fake, storeOf(q))
}

func TestDearPassesWhileTheStoreIsAwayAreAddedOnceToAllCounts(t *testing.T) {
	server := severalStore(t)
	ls := limits{{1000, minute}, {2000, hour}}
	q := severalOf(t, "ledger", server, 3, ls)
	passed := int64(0)
	step := func(what, way string, n int) {
		t.Helper()
		for i := 0; i < n; i++ {
			passed += 3
			wantPlace(t, what, takeSeveralAt(q, "client", start), way, atStart, place{1000 - passed, 2000 - passed})
		}
	}
	for round := 0; round < 3; round++ {
		step("before", Shared, 2)
		cutOffSeveral(server, q)
		step("meanwhile", Local, 5)
		comeBackSeveral(t, server, q)
		server.severalSince()
		step("on return", Shared, 1)
		calls := server.severalSince()
		if len(calls) != 1 || calls[0].requests != 1 || calls[0].args[0].settled != 15 || calls[0].args[1].settled != 15 ||
			calls[0].args[0].known != passed-18 || calls[0].args[1].known != passed-18 {
			t.Errorf("round %d: the calls on return are %+v, want one that settles 15 in each count, with %d known", round, calls, passed-18)
		}
		step("after it", Shared, 1)
		if calls := server.severalSince(); len(calls) != 1 || calls[0].args[0].settled != 0 || calls[0].args[0].known != passed-3 {
			t.Errorf("round %d: the calls after it are %+v, want one that settles nothing", round, calls)
		}
		if got := storedIn(server, "ledger", "client", ls); got[0] != passed || got[1] != passed {
			t.Errorf("round %d: the store counts %d, want the %d that passed", round, got, passed)
		}
	}
}

func TestDearPassWhoseAnswerWasLostIsNotAddedAgain(t *testing.T) {
	for name, how := range map[string]int{"it was counted": counted, "it was not": uncounted} {
		server := severalStore(t)
		ls := limits{{100, minute}, {200, hour}}
		q := severalOf(t, "ledger", server, 3, ls)
		takeMany(q, "client", 2, start)
		cutOffSeveral(server, q)
		takeMany(q, "client", 4, start)
		comeBackSeveral(t, server, q)
		takeSeveralAt(q, "newcomer", start) // so that the server knows the script
		server.breakCall(how, 0)
		// With the 12 that are to be settled.
		wantPlace(t, name, takeSeveralAt(q, "client", start), Local, atStart, place{79, 179})
		server.through()
		server.severalSince()
		recovered(q.store)
		wantPlace(t, name, takeSeveralAt(q, "client", start), Shared, atStart, place{76, 176})
		calls := server.severalSince()
		if len(calls) != 1 || calls[0].args[0].settled != 0 || calls[0].args[1].settled != 0 || calls[0].args[0].known != 21 || calls[0].args[1].known != 21 {
			t.Errorf("%s: the calls are %+v, want one that settles nothing, with 21 known", name, calls)
		}
		if got := storedIn(server, "ledger", "client", ls); got[0] != 24 || got[1] != 24 {
			t.Errorf("%s: the store counts %d, want the 24 that passed", name, got)
		}
	}
}

// A store that answers one client and breaks over the next: see who is lost.
func TestConnectionThatBreaksBetweenGroups(t *testing.T) {
	server := severalStore(t)
	q := severalOf(t, "half", server, 2, limits{{10, minute}, {20, hour}})
	pausedBatch(t, server, q)
	waiting := joinSeveral(t, q, start, "a", "b", "c", "d")
	server.breakCall(counted, 2)
	server.Resume()
	for i, way := range []string{Shared, Shared, Local, Local} {
		wantPlace(t, "request "+strconv.Itoa(i+1), <-waiting[i], way, atStart, place{8, 18})
	}
	server.through()
	for _, client := range []string{"a", "b", "c", "d"} {
		wantPlace(t, client+" again", takeSeveralAt(q, client, start), Shared, atStart, place{6, 16})
	}
	if got := server.Count(severalKey("half", 0, "c", minute, 0)); got != 4 {
		t.Errorf("the store counts %d of who was lost, want 4", got)
	}
}

// A refusal of some keys is nobody else's: neither that of one client among others with
// several counts, nor that of one with a single count in the same batch.
func TestRefusalOfSomeKeysHurtsNobodyElse(t *testing.T) {
	for _, refusal := range []string{"NOPERM No permissions to access a key", "ERR value is not an integer or out of range"} {
		for _, sick := range []string{"several", "single"} {
			what := refusal[:6] + ", " + sick
			server := severalStore(t)
			scopes := map[string]string{"well": "well", "sick": "sick"}
			ls := limits{{10, minute}, {20, hour}}
			change := func(s *Settings) { s.Store.TLSIdentity, s.Store.Endpoint = "one", "one" }
			well := openSeveral(t, 2, severalSettings(scopes["well"], server.fake, ls, change))
			other := openSeveral(t, 2, severalSettings(scopes["sick"], server.fake, ls, change))
			single := settings("sick", server.fake)
			change(single)
			alone := openAlone(t, single)
			server.refuse(":sick:", refusal)
			for round := int64(1); round <= 4; round++ {
				takeSeveralAt(well, "newcomer "+strconv.FormatInt(round, 10), start)
				well.store.turn.Lock()
				var first chan taken
				var second []chan window.Decision
				before := joinedSeveral(well)
				if sick == "single" {
					first = begin(alone, "client", start)
					eventually(t, "a place in the batch", func() bool { return joinedSeveral(well) == before+1 })
				} else {
					second = joinSeveral(t, other, start, "client")
				}
				waiting := joinSeveral(t, well, start, "client")
				well.store.turn.Unlock()
				if sick == "single" {
					if got := <-first; got.way != Local {
						t.Errorf("%s, round %d: %+v, want it local", what, round, got)
					}
				} else if got := <-second[0]; got.Way != Local {
					t.Errorf("%s, round %d: %+v, want it local", what, round, got)
				}
				wantPlace(t, what+", round "+strconv.FormatInt(round, 10), <-waiting[0], Shared, atStart, place{10 - 2*round, 20 - 2*round})
				if got := healthOf(well.store); got != 0 {
					t.Errorf("%s, round %d: the health is %d, want 0", what, round, got)
				}
			}
			if lines := logged.about("store one:"); len(lines) != 1 || !strings.Contains(lines[0], `"rate:sick`) {
				t.Errorf("%s: log %q, want one line with the prefix", what, lines)
			}
		}
	}
}

// The first count of those that are refused names the prefix, also where nobody else is
// answered.
func TestPrefixThatIsForbiddenIsNamed(t *testing.T) {
	server := severalStore(t)
	q := severalOf(t, "forbidden", server, 2, limits{{10, minute}, {20, hour}})
	server.refuse(":forbidden:", "NOPERM No permissions to access a key")
	for i := 0; i < 5; i++ {
		if d := takeSeveralAt(q, "client "+strconv.Itoa(i), start); d.Way != Local || !d.Allowed {
			t.Errorf("%+v, want it local", d)
		}
	}
	if lines := logged.about("store forbidden:"); len(lines) != 1 || !strings.Contains(lines[0], `"rate:forbidden:n0"`) || healthOf(q.store) != 0 {
		t.Errorf("log %q, health %d; want one line with the prefix, 0", lines, healthOf(q.store))
	}
}

func TestRefusalsOfTheStoreOpenTheBreaker(t *testing.T) {
	for refusal, closes := range map[string]bool{
		"OOM command not allowed when used memory > 'maxmemory'.":     false,
		"READONLY You can't write against a read only replica.":       true,
		"BUSY Valkey is busy running a script.":                       false,
		"CLUSTERDOWN The cluster is down":                             false,
		"LOADING Valkey is loading the dataset in memory":             true,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale": true,
	} {
		server := severalStore(t)
		q := openSeveral(t, 2, severalSettings("refused", server.fake, limits{{10, minute}, {20, hour}}, func(s *Settings) { s.OnStoreFailure = Closed }))
		takeSeveralAt(q, "newcomer", start)
		server.refuse(":refused:", refusal)
		for i := 1; i <= away; i++ {
			d := takeSeveralAt(q, "client", start)
			if d.Allowed || d.Way != Closed || d.RetryAfter < 1 || d.Reset != 0 || d.Several != nil {
				t.Errorf("%.8s: %+v, want it closed", refusal, d)
			}
			if got := healthOf(q.store); got != int64(i) {
				t.Errorf("%.8s: after %d failures the health is %d", refusal, i, got)
			}
		}
		if got := server.Accepted() > 1; got != closes {
			t.Errorf("%.8s: the connection was given up: %v, want %v", refusal, got, closes)
		}
		if lines := logged.about("store refused: away"); len(lines) != 1 || !strings.Contains(lines[0], strings.Fields(refusal)[0]) {
			t.Errorf("%.8s: log %q, want one line that names it", refusal, lines)
		}
		// Nobody waits for it now.
		server.ForgetCommands()
		takeSeveralAt(q, "client", start)
		if got := scripts(server.fake); got != 0 {
			t.Errorf("%.8s: a store that is away is asked %d times", refusal, got)
		}
	}
}

// A refusal of the store may come from the middle of the script.
func TestRefusedDearSettlementIsNotSentAgain(t *testing.T) {
	server := severalStore(t)
	ls := limits{{100, minute}, {200, hour}}
	q := severalOf(t, "ledger", server, 3, ls)
	cutOffSeveral(server, q)
	takeMany(q, "client", 4, start)
	comeBackSeveral(t, server, q)
	server.refuse(":ledger:", "OOM command not allowed when used memory > 'maxmemory'.")
	takeMany(q, "client", 1, start)
	server.refuse(":ledger:", "")
	recovered(q.store)
	server.severalSince()
	wantPlace(t, "after it", takeSeveralAt(q, "client", start), Shared, atStart, place{82, 182})
	if calls := server.severalSince(); len(calls) != 1 || calls[0].args[0].settled != 0 || calls[0].args[0].known != 15 {
		t.Errorf("the calls are %+v, want one that settles nothing, with 15 known", calls)
	}
}

func TestAnswerThatIsNoneOfSeveralCountsIsAFailure(t *testing.T) {
	for _, answer := range []string{"", "5", "1 2 3", "1  2", "1 x", "-2 1", "1 9007199254740993", "1 2 ", "1e3 2", "99999999999999999999 1"} {
		server := severalStore(t)
		q := openSeveral(t, 2, severalSettings("no counts", server.fake, limits{{10, minute}, {20, hour}}, func(s *Settings) { s.OnStoreFailure = Closed }))
		takeSeveralAt(q, "newcomer", start)
		for i := 1; i <= away; i++ {
			// The other client of the batch is believed in nothing more either.
			server.answer("+" + answer + "\r\n")
			if d := takeSeveralAt(q, "client", start); d.Allowed || d.Way != Closed {
				t.Errorf("%q: %+v, want it closed", answer, d)
			}
			if got := healthOf(q.store); got != int64(i) {
				t.Errorf("%q: after %d failures the health is %d", answer, i, got)
			}
			eventually(t, answer+": the end of the connection", func() bool { return server.Open() == 0 })
		}
	}
	// Of another type.
	for _, answer := range []string{":1\r\n", "$3\r\n1 2\r\n", "*2\r\n:1\r\n:2\r\n", "+1 2\n"} {
		server := severalStore(t)
		q := severalOf(t, "no line", server, 2, limits{{10, minute}, {20, hour}})
		takeSeveralAt(q, "newcomer", start)
		server.answer(answer)
		if d := takeSeveralAt(q, "client", start); d.Way != Local || healthOf(q.store) != 1 {
			t.Errorf("%q: %+v, health %d; want it local, 1", answer, d, healthOf(q.store))
		}
		wantPlace(t, "after "+strconv.Quote(answer), takeSeveralAt(q, "client", start), Shared, atStart, place{6, 16})
	}
}

func TestPanicAmongGroupsIsAStoreFailure(t *testing.T) {
	for _, mode := range []string{Local, Open, Closed} {
		for when, arm := range map[string]func(q *Several, b *batch){
			// Behind those of the requests, so that these are on their way.
			"with the mutex": func(q *Several, b *batch) {
				b.groups = append(b.groups, &group{several: &Several{}, accounts: []*window.Account{{}}})
			},
			"without the mutex": func(q *Several, b *batch) {
				q.store.conn = &resp.Conn{Usable: true}
			},
			"over the answer": func(q *Several, b *batch) {
				free := *q
				free.cost = 0 // the rest is divided by it
				count := &window.FixedCount{End: start.Unix() + 30}
				b.groups = append(b.groups, &group{several: &free, accounts: []*window.Account{{Running: count}, {Running: count}}})
			},
		} {
			what := mode + ", " + when
			server := severalStore(t)
			q := openSeveral(t, 2, severalSettings("panic", server.fake, limits{{20, minute}, {40, hour}}, func(s *Settings) { s.OnStoreFailure = mode }))
			takeSeveralAt(q, "newcomer", start)
			l := storeOf(q)
			l.store.turn.Lock()
			waiting := joinSeveral(t, q, start, "a", "b", "a")
			l.ledger.mu.Lock()
			arm(q, l.store.next)
			l.ledger.mu.Unlock()
			if when == "over the answer" {
				server.answer("+0 0\r\n", "+0 0\r\n", "+0 0\r\n")
			}
			l.store.turn.Unlock()
			for i, done := range waiting {
				if d := decisionOf(t, what, done); when == "over the answer" {
					wantPlace(t, what, d, Shared, atStart, []place{{18, 38}, {18, 38}, {16, 36}}[i])
				} else if d.Way != mode || d.Allowed != (mode != Closed) {
					t.Errorf("%s: request %d: %+v, want it decided by onStoreFailure", what, i+1, d)
				}
			}
			if !l.ledger.mu.TryLock() {
				t.Fatalf("%s: the ledger stays locked", what)
			}
			l.ledger.mu.Unlock()
			if !l.store.turn.TryLock() {
				t.Fatalf("%s: the turn is not given back", what)
			}
			l.store.turn.Unlock()
			if got := healthOf(l.store); got != 1 {
				t.Errorf("%s: the health is %d, want 1 for one failure", what, got)
			}
			server.answer()
			if d := takeSeveralAt(q, "a", start); d.Way != Shared || !d.Allowed || healthOf(l.store) != 0 {
				t.Errorf("%s: after it %+v, health %d; want it shared, 0", what, d, healthOf(l.store))
			}
			// Passes alone are in the count, once.
			if d := takeSeveralAt(q, "a", start); mode == Local && when != "over the answer" && d.Remaining != 12 {
				t.Errorf("%s: and then %+v, want 12 remaining", what, d)
			}
		}
	}
}

func TestPanicAfterAPanicAmongGroupsKeepsNobodyWaiting(t *testing.T) {
	server := severalStore(t)
	q := severalOf(t, "panic", server, 2, limits{{20, minute}, {40, hour}})
	takeSeveralAt(q, "newcomer", start)
	l := storeOf(q)
	l.store.turn.Lock()
	waiting := joinSeveral(t, q, start, "a", "b", "a")
	l.ledger.mu.Lock()
	// What is lost of it is noted where there is no count.
	l.store.next.groups = append(l.store.next.groups, &group{several: &Several{}, accounts: []*window.Account{nil}})
	l.ledger.mu.Unlock()
	l.store.turn.Unlock()
	for i, done := range waiting {
		if d := decisionOf(t, "request "+strconv.Itoa(i+1), done); !d.Allowed || d.Way != Local {
			t.Errorf("request %d: %+v, want it local", i+1, d)
		}
	}
	if d := takeSeveralAt(q, "b", start); d.Way != Shared || d.Remaining != 16 {
		t.Errorf("after it %+v, want the second, shared", d)
	}
}

func TestSeveralWhileTheStoreIsAway(t *testing.T) {
	for _, c := range []struct {
		mode    string
		allowed bool
	}{{Open, true}, {Closed, false}} {
		server := severalStore(t)
		ls := limits{{10, minute}, {20, hour}}
		q := openSeveral(t, 3, severalSettings("mode", server.fake, ls, func(s *Settings) { s.OnStoreFailure = c.mode }))
		takeSeveralAt(q, "client", start)
		cutOffSeveral(server, q)
		for i := 0; i < 10; i++ {
			if d := takeSeveralAt(q, "client", start); d.Allowed != c.allowed || d.Way != c.mode || d.Reset != 0 || d.Several != nil || (d.RetryAfter > 0) == c.allowed {
				t.Errorf("%s: %+v", c.mode, d)
			}
		}
		comeBackSeveral(t, server, q)
		wantPlace(t, c.mode+": what was not counted is never settled", takeSeveralAt(q, "client", start), Shared, atStart, place{4, 14})
	}
}

func TestShareOfSeveralLimitsWhileTheStoreIsAway(t *testing.T) {
	for _, c := range []struct {
		name                    string
		own, gateways, learnt   int64
		cost, answered, passing int64
	}{
		{"nothing is known", 0, 0, 0, 7, 4, 10},                // (100 - 28) / 7
		{"two were learnt", 0, 0, 2, 7, 4, 5},                  // 36 / 7
		{"gateways beat what was learnt", 0, 4, 2, 7, 4, 3},    // a fourth of 72 / 7
		{"a limit beats both", 25, 4, 2, 7, 4, 3},              // 25 / 7
		{"never more than is left", 60, 4, 2, 7, 12, 2},        // 16 / 7
		{"nothing fits", 25, 0, 0, 30, 3, 0},                   // 10
		{"less than one is the share", 0, 10, 0, 20, 1, 1},     // a tenth of 80 / 20
		{"cheap, rounded up", 0, 7, 0, 1, 40, 9},               // 60 / 7
		{"the longer window has less left", 0, 2, 0, 2, 0, 25}, // of 100
	} {
		server := severalStore(t)
		server.gateways = c.learnt
		// The second limit is far.
		q := openSeveral(t, c.cost, severalSettings("share", server.fake, limits{{100, minute}, {1000, hour}}, func(s *Settings) {
			s.FallbackLimit, s.FallbackGateways = c.own, c.gateways
		}))
		takeSeveralAt(q, "newcomer", start)
		takeMany(q, "client", int(c.answered), start)
		if c.learnt > 0 {
			look(q.store)
		}
		cutOffSeveral(server, q)
		if allowed, ways := takeMany(q, "client", 80, start); int64(allowed) != c.passing || c.passing > 0 && ways[Local] != 80 {
			t.Errorf("%s: %d passed by ways %v, want %d", c.name, allowed, ways, c.passing)
		}
		// fallback.limit holds for all failures of a window together.
		comeBackSeveral(t, server, q)
		takeSeveralAt(q, "client", start)
		cutOffSeveral(server, q)
		if allowed, _ := takeMany(q, "client", 80, start); c.own > 0 && allowed != 0 {
			t.Errorf("%s: %d passed in another failure", c.name, allowed)
		}
	}
}

// A store that lost its counts is told all of them, of each limit.
func TestPushCoversSeveralCounts(t *testing.T) {
	server := severalStore(t)
	server.Advance(time.Until(start))
	ls := limits{{100, hour}, {200, 7200}}
	q := severalOf(t, "pushed", server, 3, ls)
	l := storeOf(q)
	for i := 0; i < 10; i++ {
		takeMany(q, client(i), 1+i%3, time.Now())
	}
	pushed(l)
	cutOffSeveral(server, q)
	server.Flush()
	takeMany(q, client(0), 2, time.Now())
	comeBackSeveral(t, server, q)
	server.since()
	pushed(l)
	if calls := server.since(); len(calls) != 20 {
		t.Errorf("%d counts were pushed, want 20", len(calls))
	}
	for i := 0; i < 10; i++ {
		expected := int64(3 * (1 + i%3))
		if i == 0 {
			expected += 6
		}
		if got := storedIn(server, "pushed", client(i), ls); got[0] != expected || got[1] != expected {
			t.Errorf("%s: the store counts %d, want %d", client(i), got, expected)
		}
	}
	pushed(l)
	if calls := server.since(); len(calls) != 0 {
		t.Errorf("%d counts were pushed once more", len(calls))
	}
	d := takeSeveralAt(q, client(0), time.Now())
	if d.Way != Shared || !reflect.DeepEqual(d.Several.Remaining, []int64{88, 188}) {
		t.Errorf("after the push: %+v, want the fourth, shared", d)
	}
}

// While a push settles a count, a request does not settle it again, on another connection
// either.
func TestPushAndRequestSettleOnce(t *testing.T) {
	server := severalStore(t)
	ls := limits{{100, minute}, {200, hour}}
	q := severalOf(t, "once", server, 3, ls)
	other := openSeveral(t, 3, severalSettings("once", server.fake, ls, func(s *Settings) { s.Store.Timeout = 2 * time.Minute }))
	takeSeveralAt(q, "newcomer", start)
	takeSeveralAt(other, "newcomer", start)
	setHealth(q.store, away)
	takeMany(q, "client", 4, start)
	recovered(q.store)
	server.ForgetCommands()
	server.Pause()
	first := beginSeveral(q, "client", start)
	eventually(t, "the one call", func() bool { return scripts(server.fake) == 1 })
	second := beginSeveral(other, "client", start)
	eventually(t, "the other call", func() bool { return scripts(server.fake) == 2 })
	server.Resume()
	<-first
	<-second
	wantPlace(t, "after them", takeSeveralAt(q, "client", start), Shared, atStart, place{79, 179})
	if got := storedIn(server, "once", "client", ls); got[0] != 21 || got[1] != 21 {
		t.Errorf("the store counts %d, want the 21 that passed", got)
	}
}

func TestScopeOfSeveralCountsIsAnnouncedOnce(t *testing.T) {
	server := severalStore(t)
	server.gateways = 3
	q := severalOf(t, "announced", server, 1, limits{{10, minute}, {20, hour}, {30, 7200}})
	takeSeveralAt(q, "client", start)
	look(q.store)
	if got := server.scopes; !reflect.DeepEqual(got, []string{"rate:announced:gateways"}) {
		t.Errorf("announced %q, want the scope once", got)
	}
	for i, table := range q.tables {
		if table.gateways != 3 {
			t.Errorf("count %d knows of %d gateways, want 3", i, table.gateways)
		}
	}
}

// Whatever breaks while many ask, everybody is answered, a place is handed out once, and
// what passes without the store is told to it once at most, in each of the counts.
func TestManyDearOnesAtOnceWhileConnectionsBreak(t *testing.T) {
	const users, requests, clients, cost = 12, 200, 3, 3
	for _, c := range []struct {
		name  string
		limit int64
		fail  func(server *severalFake, stores []*store, n int)
	}{
		{"connections break", 1500, func(server *severalFake, stores []*store, n int) {
			server.breakCall(counted+n%2, n%3)
			recovered(stores[n%4/2])
		}},
		{"stores are away", 1e6, func(_ *severalFake, stores []*store, n int) {
			setHealth(stores[n%4/2], int64(n%2*away))
		}},
		{"nothing fails", 1500, nil},
	} {
		server := severalStore(t)
		ls := limits{{c.limit, minute}, {2 * c.limit, hour}}
		all := []*Several{
			openSeveral(t, cost, severalSettings(c.name, server.fake, ls, nil)),
			openSeveral(t, cost, severalSettings(c.name, server.fake, ls, func(s *Settings) { s.Store.Timeout = 2 * time.Minute })),
		}
		stores := []*store{storeOf(all[0]).store, storeOf(all[1]).store}
		var mu sync.Mutex
		places := map[string]int{}
		made, shared, alone := map[string]int64{}, map[string]int64{}, map[string]int64{}
		var group sync.WaitGroup
		for u := 0; u < users; u++ {
			group.Add(1)
			go func(u int) {
				defer group.Done()
				for i := 0; i < requests; i++ {
					who := strconv.Itoa((u + i) % clients)
					d := takeSeveralAt(all[u%2], who, start)
					mu.Lock()
					made[who]++
					if d.Allowed && d.Way == Shared {
						shared[who]++
						places[who+" "+strconv.FormatInt(d.Remaining, 10)]++
					} else if d.Allowed {
						alone[who]++
					}
					mu.Unlock()
					if c.fail != nil && i%20 == 0 {
						c.fail(server, stores, u+i/20)
					}
				}
			}(u)
		}
		group.Wait()
		for place, times := range places {
			if times > 1 {
				t.Errorf("%s: the place %q was handed out %d times", c.name, place, times)
			}
		}
		for who, n := range made {
			for i, table := range all[0].tables {
				count := server.Count(severalKey(c.name, i, who, ls[i][1], 0))
				table.ledger.mu.Lock()
				left := window.FixedFind(table.counts, who, start.Unix()).Unsettled
				table.ledger.mu.Unlock()
				if count > cost*n {
					t.Errorf("%s: client %s made %d requests, and the store counts %d", c.name, who, n, count)
				}
				if passed := cost * (shared[who] + alone[who]); c.limit > cost*n && count != passed-left {
					t.Errorf("%s: count %d of client %s is %d, with %d unsettled of the %d that passed", c.name, i, who, count, left, passed)
				}
			}
			if c.fail == nil && (shared[who] != c.limit/cost || alone[who] != 0) {
				t.Errorf("%s: client %s got %d from the store and %d besides, want %d and none", c.name, who, shared[who], alone[who], c.limit/cost)
			}
		}
		if c.fail != nil && len(alone) == 0 {
			t.Errorf("%s: nobody passed alone", c.name)
		}
	}
}

// In memory, with any limits and costs, all requests that pass fit, and none that fits is
// refused.
func TestSeveralInMemoryAgreeWithALog(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	for round := 0; round < 50; round++ {
		forget()
		cost := 1 + random.Int63n(9)
		var all []*Settings
		var ls limits
		for i := 0; i <= random.Intn(4); i++ {
			ls = append(ls, [2]int64{cost + random.Int63n(60), []int64{10, minute, hour, 86400}[i]})
			s := settings("log", nil)
			s.Name, s.Limit, s.Window = countName(i), ls[i][0], ls[i][1]
			all = append(all, s)
		}
		q := openSeveral(t, cost, all)
		counts := map[string]int64{}
		now := start
		for i := 0; i < 300; i++ {
			who := strconv.Itoa(random.Intn(2))
			key := func(i int) string {
				return who + " " + strconv.Itoa(i) + " " + strconv.FormatInt(now.Unix()/ls[i][1], 10)
			}
			fits := true
			for i, l := range ls {
				fits = fits && counts[key(i)]+cost <= l[0]
			}
			if fits {
				for i := range ls {
					counts[key(i)] += cost
				}
			}
			if d := takeSeveralAt(q, who, now); d.Allowed != fits || (d.RetryAfter > 0) == fits {
				t.Fatalf("round %d, cost %d, limits %v, request %d: %+v, want it to pass: %v", round, cost, ls, i, d, fits)
			}
			if random.Intn(10) == 0 {
				now = now.Add(time.Duration(random.Intn(20)) * time.Second)
			}
		}
	}
}

// A batch that is cut off before it is written was not asked for.
func TestSeveralBehindASilentStoreEndTogether(t *testing.T) {
	server := severalStore(t)
	q := openSeveral(t, 2, severalSettings("silent", server.fake, limits{{10, minute}, {20, hour}}, func(s *Settings) { s.Store.Timeout = 1500 * time.Millisecond }))
	first := pausedBatch(t, server, q)
	waiting := joinSeveral(t, q, start, "a", "b")
	if d := decisionOf(t, "the first", first); d.Way != Local {
		t.Errorf("the first: %+v, want it local", d)
	}
	for _, done := range waiting {
		if d := decisionOf(t, "behind it", done); d.Way != Local || !d.Allowed {
			t.Errorf("behind it: %+v, want it local", d)
		}
	}
	l := storeOf(q)
	l.ledger.mu.Lock()
	for who, lost := range map[string]int64{"first": 2, "a": 0} {
		if f := window.FixedFind(q.tables[0].counts, who, start.Unix()); f.Lost != lost || f.Unsettled != 2-lost {
			t.Errorf("%s: %+v, want %d lost of 2", who, *f, lost)
		}
	}
	l.ledger.mu.Unlock()
}

// Contexts of configurations that are gone end no count.
func TestSeveralOutliveAReload(t *testing.T) {
	server := severalStore(t)
	ls := limits{{10, minute}, {20, hour}}
	ctx, cancel := context.WithCancel(context.Background())
	q := NewSeveral(ctx, severalSettings("reload", server.fake, ls, nil), 3, start)
	q.store.kept = true
	takeSeveralAt(q, "client", start)
	cancel()
	again := severalOf(t, "reload", server, 2, ls)
	accepted := server.Accepted()
	wantPlace(t, "after a reload that changed the cost", takeSeveralAt(again, "client", start), Shared, atStart, place{5, 15})
	setHealth(storeOf(again).store, away)
	wantPlace(t, "and without the store", takeSeveralAt(again, "client", start), Local, atStart, place{3, 13})
	wantPlace(t, "by a handler of before", takeSeveralAt(q, "client", start), Local, atStart, place{0, 10})
	if server.Accepted() != accepted {
		t.Error("the reload opened a connection")
	}
}

// Bytes behind an answer would be taken for the next one.
func TestSurplusBehindAnAnswerForSeveralCosts(t *testing.T) {
	server := severalStore(t)
	q := severalOf(t, "surplus", server, 2, limits{{10, minute}, {20, hour}})
	takeSeveralAt(q, "newcomer", start)
	server.answer("+0 0\r\n" + fakevalkey.Int(4))
	wantPlace(t, "the answer itself", takeSeveralAt(q, "client", start), Shared, atStart, place{8, 18})
	wantPlace(t, "the next one", takeSeveralAt(q, "client", start), Shared, atStart, place{6, 16})
	if got := server.Accepted(); got != 2 || healthOf(q.store) != 0 {
		t.Errorf("%d connections, health %d; want another one, 0", got, healthOf(q.store))
	}
}

// Requests of other limits or another cost are no part of a client's call, though they
// weigh on the same counts.
func TestLimitsAndCostsAreAskedForApart(t *testing.T) {
	server := severalStore(t)
	dear := severalOf(t, "apart", server, 7, limits{{20, minute}, {100, hour}})
	cheap := severalOf(t, "apart", server, 2, limits{{20, minute}, {100, hour}})
	plan := severalOf(t, "apart", server, 7, limits{{40, minute}, {100, hour}})
	pausedBatch(t, server, dear)
	var waiting []chan window.Decision
	for _, q := range []*Several{dear, cheap, plan, dear, cheap, plan} {
		waiting = append(waiting, joinSeveral(t, q, start, "client")...)
	}
	server.Resume()
	// In the order of their first requests: 14, then 4, then 14.
	for i, p := range []place{{13, 93}, {4, 84}, {15, 75}, {6, 86}, {2, 82}, {8, 68}} {
		wantPlace(t, "request "+strconv.Itoa(i+1), <-waiting[i], Shared, atStart, p)
	}
	if calls := server.severalSince(); len(calls) != 4 {
		t.Errorf("the calls are %+v, want the first and one for each", calls)
	}
}

// Where a request has waited for longer than its window lasts, it counts in the next.
func TestSeveralThatWaitedOverAnEdge(t *testing.T) {
	server := severalStore(t)
	q := severalOf(t, "waited", server, 7, limits{{20, minute}, {100, hour}})
	takeSeveralAt(q, "client", start)
	l := storeOf(q)
	l.store.turn.Lock()
	waiting := joinSeveral(t, q, start, "client")
	backdate(l, 50*time.Second) // of a minute: there is no time left to ask
	l.store.turn.Unlock()
	wantPlace(t, "after 50 s", <-waiting[0], Local, []int64{40, 1120}, place{13, 86})
	if got := server.severalSince(); len(got) != 1 || healthOf(l.store) != 0 {
		t.Errorf("%d calls, health %d; want one, 0", len(got), healthOf(l.store))
	}
}

func TestSeveralThatPassAloneAreTold(t *testing.T) {
	server := severalStore(t)
	q := severalOf(t, "told", server, 7, limits{{20, minute}, {100, hour}})
	takeSeveralAt(q, "client", start)
	for i := 0; i < away; i++ {
		failed(storeOf(q).store, "", "", resp.ErrLost)
	}
	takeMany(q, "client", 1, start)
	takeMany(q, "other", 2, start)
	if got := passedBy(storeOf(q).store); got != 3 {
		t.Errorf("%d requests are told to have been decided without the store, want 3", got)
	}
}

// One group is refused, and the window of another is over.
func TestRefusalAndAnEdgeInOneBatch(t *testing.T) {
	for refusal, way := range map[string]string{
		"NOPERM No permissions to access a key":                 Shared,
		"READONLY You can't write against a read only replica.": Local,
	} {
		server := severalStore(t)
		change := func(s *Settings) { s.Store.TLSIdentity, s.Store.Endpoint = "both", "both" }
		well := openSeveral(t, 2, severalSettings("well", server.fake, limits{{10, minute}, {20, hour}}, change))
		sick := openSeveral(t, 2, severalSettings("sick", server.fake, limits{{10, minute}, {20, hour}}, change))
		takeSeveralAt(well, "newcomer", start)
		l := storeOf(well)
		setHealth(l.store, away-1)
		l.store.turn.Lock()
		waiting := joinSeveral(t, well, start, "client")
		waiting = append(waiting, joinSeveral(t, sick, start, "client")...)
		server.refuse(":sick:", refusal)
		server.unix.Store(start.Unix() + 30)
		l.store.turn.Unlock()
		if got := <-waiting[0]; got.Way != way || !got.Allowed || (way == Shared) != (got.Several.Reset[0] == 60) {
			t.Errorf("%.8s: at the edge %+v %+v, want it %s", refusal, got, *orNone(got.Several), way)
		}
		if got := <-waiting[1]; got.Way != Local {
			t.Errorf("%.8s: %+v, want it local", refusal, got)
		}
		word := strings.Fields(refusal)[0]
		if lines := logged.about("store both:"); len(lines) != 1 || !strings.Contains(lines[0], word) || (healthOf(l.store) >= away) != (way == Local) {
			t.Errorf("%.8s: log %q, health %d", refusal, lines, healthOf(l.store))
		}
	}
}

// What a call was to settle that a panic broke off is neither settled again nor for ever
// on its way.
func TestPanicOverASettlementOfSeveralCounts(t *testing.T) {
	server := severalStore(t)
	q := severalOf(t, "panic", server, 3, limits{{100, minute}, {200, hour}})
	takeSeveralAt(q, "client", start)
	l := storeOf(q)
	setHealth(l.store, away)
	takeMany(q, "client", 4, start)
	recovered(l.store)
	l.store.conn = &resp.Conn{Usable: true}
	takeSeveralAt(q, "client", start)
	l.ledger.mu.Lock()
	for i, part := range q.tables {
		if f := window.FixedFind(part.counts, "client", start.Unix()); f.Settling != 0 || f.Unsettled != 0 || f.Lost != 15 {
			t.Errorf("count %d is %+v, want 15 lost", i, *f)
		}
	}
	l.ledger.mu.Unlock()
	recovered(l.store)
	wantPlace(t, "after it", takeSeveralAt(q, "client", start), Shared, atStart, place{79, 179})
}

// A plain request's window is over, and those of the dear requests beside it run on: only
// the one is asked for again.
func TestEdgeOfPlainRequestsAloneInAMixedBatch(t *testing.T) {
	server := severalStore(t)
	change := func(s *Settings) { s.Store.TLSIdentity, s.Store.Endpoint = "mixed", "mixed" }
	plain := settings("plain", server.fake)
	change(plain)
	cheap := openAlone(t, plain)
	dear := openSeveral(t, 2, severalSettings("dear", server.fake, limits{{20, hour}}, change))
	take(cheap, "newcomer", 1, start) // the store knows the scripts
	takeSeveralAt(dear, "newcomer", start)
	dear.store.turn.Lock()
	waiting := joinSeveral(t, dear, start, "client")
	before := joinedSeveral(dear)
	other := begin(cheap, "client", start)
	eventually(t, "a place in the batch", func() bool { return joinedSeveral(dear) == before+1 })
	server.unix.Store(start.Unix() + 30)
	dear.store.turn.Unlock()
	if got := <-waiting[0]; !got.Allowed || got.Way != Shared || got.Remaining != 18 {
		t.Errorf("the dear request: %+v, want it shared", got)
	}
	if got := <-other; !got.Allowed || got.way != Shared || got.Reset != 60 {
		t.Errorf("the plain request: %+v, want it shared, in the next window", got)
	}
	if lines := logged.about("store mixed:"); len(lines) != 0 || healthOf(dear.store) != 0 {
		t.Errorf("log %q, health %d", lines, healthOf(dear.store))
	}
}
