package limiter

import (
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/window"
)

// cutOff makes the store unreachable, before anybody writes to it.
func cutOff(server *fake, l *Limiter) {
	server.Stop()
	hangUp(l.store)
}

// comeBack brings a store back as its keeper does.
func comeBack(t *testing.T, server *fake, l *Limiter) {
	t.Helper()
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	if refusal, err := tryScript(l.store); refusal != "" || err != nil {
		t.Fatalf("the probe: %q, %v", refusal, err)
	}
	recovered(l.store)
}

// ledgerOf returns a limiter with a limit of 100 and no keeper.
func ledgerOf(t *testing.T, server *fake, change func(s *Settings)) *Limiter {
	s := settings("ledger", server)
	s.Limit = 100
	if change != nil {
		change(s)
	}
	return openAlone(t, s)
}

// called demands the number and what was known of the one call since the last look.
func called(t *testing.T, what string, server *fake, n, known int64) {
	t.Helper()
	calls := server.since()
	if len(calls) != 1 || calls[0].n != n || calls[0].known != known {
		t.Errorf("%s: the calls are %+v, want one of %d with %d known", what, calls, n, known)
	}
}

func passes(t *testing.T, what string, l *Limiter, n int, way string) {
	t.Helper()
	if allowed, ways := take(l, "client", n, start); allowed != n || ways[way] != n {
		t.Errorf("%s: %d of %d allowed by ways %v, want all, %s", what, allowed, n, ways, way)
	}
}

func TestPassesWhileTheStoreIsAwayAreAddedOnce(t *testing.T) {
	server := fakeStore(t)
	l := ledgerOf(t, server, nil)
	passed := int64(0)
	for round := int64(0); round < 3; round++ {
		passes(t, "before", l, 3, Shared)
		server.since()
		cutOff(server, l)
		passes(t, "meanwhile", l, 10, Local)
		comeBack(t, server, l)
		passed += 13
		want(t, "on return", begin(l, "client", start), 100, passed+1)
		called(t, "on return", server, 11, passed-10)
		want(t, "after it", begin(l, "client", start), 100, passed+2)
		called(t, "after it", server, 1, passed+1)
		passed += 2
		if got := server.countOf("ledger", "client", 0); got != passed {
			t.Errorf("round %d: the store counts %d, want the %d that passed", round, got, passed)
		}
	}
}

func TestPassesWhoseAnswerWasLostAreNotAdded(t *testing.T) {
	for name, how := range map[string]int{"it was counted": counted, "it was not": uncounted} {
		server := fakeStore(t)
		l := ledgerOf(t, server, nil)
		passes(t, name, l, 3, Shared)
		server.breakCall(how, 0)
		passes(t, name, l, 1, Local)
		server.through()
		server.since()
		want(t, name, begin(l, "client", start), 100, 5)
		called(t, name, server, 1, 4)
		if got := server.countOf("ledger", "client", 0); got != 5 {
			t.Errorf("%s: the store counts %d, want the 5 that passed", name, got)
		}
	}
}

func TestSettlementWhoseAnswerWasLostIsNotSentAgain(t *testing.T) {
	for name, how := range map[string]int{"it was counted": counted, "it was not": uncounted} {
		server := fakeStore(t)
		l := ledgerOf(t, server, nil)
		passes(t, name, l, 3, Shared)
		cutOff(server, l)
		passes(t, name, l, 5, Local)
		comeBack(t, server, l)
		server.breakCall(how, 0)
		passes(t, name, l, 1, Local) // with the five
		server.through()
		server.since()
		recovered(l.store)
		want(t, name, begin(l, "client", start), 100, 10)
		called(t, name, server, 1, 9)
		if got := server.countOf("ledger", "client", 0); got != 10 {
			t.Errorf("%s: the store counts %d, want the 10 that passed", name, got)
		}
	}
}

// A refusal of the store may come from the middle of the script.
func TestRefusedSettlementIsNotSentAgain(t *testing.T) {
	server := fakeStore(t)
	l := ledgerOf(t, server, nil)
	cutOff(server, l)
	passes(t, "meanwhile", l, 5, Local)
	comeBack(t, server, l)
	server.refuse("ledger", "OOM command not allowed when used memory > 'maxmemory'.")
	passes(t, "refused", l, 1, Local)
	server.refuse("ledger", "")
	recovered(l.store)
	want(t, "after it", begin(l, "client", start), 100, 7)
	called(t, "after it", server, 1, 6)
}

func TestWhatPassedOpenOrClosedIsNeverSettled(t *testing.T) {
	for _, mode := range []string{Open, Closed} {
		server := fakeStore(t)
		l := ledgerOf(t, server, func(s *Settings) { s.OnStoreFailure = mode })
		take(l, "client", 3, start)
		cutOff(server, l)
		take(l, "client", 10, start)
		comeBack(t, server, l)
		server.since()
		want(t, mode, begin(l, "client", start), 100, 4)
		called(t, mode, server, 1, 3)
	}
}

func TestWhatBelongsToAFinishedWindowIsDropped(t *testing.T) {
	server := fakeStore(t)
	l := ledgerOf(t, server, nil)
	cutOff(server, l)
	passes(t, "meanwhile", l, 10, Local)
	server.unix.Store(start.Unix() + 60)
	comeBack(t, server, l)
	if d, way := takeAt(l, "client", start.Add(time.Minute)); d.Remaining != 99 || way != Shared {
		t.Errorf("%+v by way %s, want the first of a window, shared", d, way)
	}
	called(t, "in the next window", server, 1, 0)
}

func TestCountGoesOnWhenTheStoreLostIt(t *testing.T) {
	server := fakeStore(t)
	l := ledgerOf(t, server, nil)
	passes(t, "before", l, 40, Shared)
	for _, lost := range []int64{40, 15} {
		before := server.countOf("ledger", "client", 0)
		server.SetCount(keyOf("ledger", "client", 0), before-lost, time.Minute)
		want(t, "after a loss of "+strconv.FormatInt(lost, 10), begin(l, "client", start), 100, before+1)
	}
	server.Flush()
	want(t, "after a loss of all", begin(l, "client", start), 100, 43)
	if ttl := server.TTL(keyOf("ledger", "client", 0)); ttl <= 0 || ttl > 30*time.Second {
		t.Errorf("the count lives for %s, want at most the 30 s that are left of its window", ttl)
	}
}

// hourly returns a store whose clock runs from start, and so in the middle of an hour,
// and a limiter without a keeper for windows of an hour. What is done beside the
// requests goes by that clock; requests come at time.Now().
func hourly(t *testing.T) (*fake, *Limiter) {
	server := fakeStore(t)
	server.Advance(time.Until(start))
	return server, ledgerOf(t, server, func(s *Settings) { s.Window = 3600 })
}

func (f *fake) hour(client string) int64 {
	return f.Count(keyIn("ledger", client, start.Unix()/3600))
}

// pushed lets a keeper look after a store that it told nothing lately.
func pushed(l *Limiter) {
	l.store.mu.Lock()
	l.store.pushed = time.Time{}
	l.store.mu.Unlock()
	look(l.store)
}

func client(i int) string {
	return "client " + strconv.Itoa(i)
}

func TestPushTellsTheStoreWhatItLost(t *testing.T) {
	server, l := hourly(t)
	const clients = 600
	for i := 0; i < clients; i++ {
		take(l, client(i), 1+i%3, time.Now())
	}
	// A new connection may lead to another store, or to one that lost what it knew.
	pushed(l)
	if got := server.since(); len(got) != clients/3*6+clients {
		t.Errorf("%d calls, want %d: one for each request, and a push on a new connection", len(got), clients/3*6+clients)
	}
	pushed(l)
	if got := server.since(); len(got) != 0 {
		t.Errorf("%d calls, want none: there is nothing to push before a failure", len(got))
	}
	cutOff(server, l)
	server.Flush()
	for i := 0; i < 10; i++ {
		take(l, client(i), 2, time.Now())
	}
	comeBack(t, server, l)
	server.since()
	pushed(l)
	told := map[string]call{}
	calls := server.since()
	for _, c := range calls {
		told[c.key] = c
	}
	if len(calls) != clients || len(told) != clients {
		t.Errorf("%d counts of %d clients were pushed, want %d", len(calls), len(told), clients)
	}
	for i := 0; i < clients; i++ {
		n, known := int64(0), int64(1+i%3)
		if i < 10 {
			n = 2
		}
		if c := told[keyIn("ledger", client(i), start.Unix()/3600)]; c.n != n || c.known != known || c.end != (start.Unix()/3600+1)*3600 || c.left < 1000 || c.left > 1200 {
			t.Errorf("%s is pushed with %+v, want %d, and %d known", client(i), c, n, known)
		}
		if got := server.hour(client(i)); got != known+n {
			t.Errorf("the store counts %d of %s, want %d", got, client(i), known+n)
		}
	}
	pushed(l)
	if got := server.since(); len(got) != 0 {
		t.Errorf("%d counts were pushed once more", len(got))
	}
	if d, way := takeAt(l, client(0), time.Now()); d.Remaining != 96 || way != Shared {
		t.Errorf("after the push: %+v by way %s, want the fourth, shared", d, way)
	}
	called(t, "after the push", server, 1, 3)
	// Whoever comes by another gateway finds its count.
	forget()
	another := ledgerOf(t, server, func(s *Settings) { s.Window = 3600 })
	if d, way := takeAt(another, client(2), time.Now()); d.Remaining != 94 || way != Shared {
		t.Errorf("at another gateway: %+v by way %s, want the sixth, shared", d, way)
	}
}

// A push is done part by part, with turns for requests in between.
func TestPushGoesInParts(t *testing.T) {
	server, l := hourly(t)
	for i := 0; i < 600; i++ {
		take(l, client(i), 1, time.Now())
	}
	l.store.pushDue = true
	server.since()
	server.ForgetCommands()
	server.Pause()
	done := make(chan bool)
	go func() {
		pushed(l)
		close(done)
	}()
	eventually(t, "the first part", func() bool { return scripts(server) == 1 })
	waiting := begin(l, "waiting", time.Now())
	eventually(t, "a request", func() bool { return joined(l) == 1 })
	server.Resume()
	if got := <-waiting; got.Remaining != 99 || got.way != Shared {
		t.Errorf("between two parts: %+v, want the first, shared", got)
	}
	<-done
	calls := server.since()
	place := 0
	for i, c := range calls {
		if c.key == keyIn("ledger", "waiting", start.Unix()/3600) {
			place = i
		}
	}
	if len(calls) != 601 || place != 256 {
		t.Errorf("of %d calls the request's is number %d, want 601 and 257", len(calls), place+1)
	}
}

func TestPushThatFailsIsDueAgain(t *testing.T) {
	server, l := hourly(t)
	for i := 0; i < 300; i++ {
		take(l, client(i), 1, time.Now())
	}
	cutOff(server, l)
	take(l, client(0), 3, time.Now())
	server.Flush()
	comeBack(t, server, l)
	server.breakCall(uncounted, 270)
	pushed(l)
	server.through()
	sum := int64(0)
	for i := 0; i < 300; i++ {
		sum += server.hour(client(i))
	}
	if sum < 256 || sum >= 303 {
		t.Errorf("the store counts %d after half a push, want at least 256 and less than all 303", sum)
	}
	pushed(l)
	for i := 0; i < 300; i++ {
		expected := int64(1)
		if i == 0 {
			expected = 4
		}
		if got := server.hour(client(i)); got != expected {
			t.Errorf("client %d: the store counts %d, want %d", i, got, expected)
		}
	}
}

// Before the store is away too: a count may be lost with a single connection.
func TestOneFailureMakesAPushDue(t *testing.T) {
	server, l := hourly(t)
	take(l, "client", 7, time.Now())
	server.breakCall(counted, 0)
	take(l, "other", 1, time.Now())
	server.through()
	server.Flush()
	take(l, "other", 1, time.Now())
	pushed(l)
	if got := server.hour("client"); got != 7 {
		t.Errorf("the store counts %d, want the 7 that it lost", got)
	}
}

func TestShareWhileTheStoreIsAway(t *testing.T) {
	for _, c := range []struct {
		name                     string
		limit, gateways, learnt  int64
		answered, passed, remain int64 // remain after the first of them
	}{
		{"nothing is known", 0, 0, 0, 40, 60, 59},
		{"four were learnt", 0, 0, 4, 40, 15, 14},
		{"seven were learnt, rounded up", 0, 0, 7, 40, 9, 8},
		{"gateways beat what was learnt", 0, 2, 4, 40, 30, 29},
		{"one gateway", 0, 1, 4, 40, 60, 59},
		{"a limit beats both", 25, 2, 4, 40, 25, 24},
		{"never more than is left", 25, 2, 4, 90, 10, 9},
		{"the last one", 0, 100, 0, 99, 1, 0},
		{"nothing is left", 25, 2, 4, 100, 0, 0},
	} {
		server := fakeStore(t)
		server.gateways = c.learnt
		l := ledgerOf(t, server, func(s *Settings) { s.FallbackLimit, s.FallbackGateways = c.limit, c.gateways })
		passes(t, c.name, l, int(c.answered), Shared)
		if c.learnt > 0 {
			look(l.store)
		}
		cutOff(server, l)
		passed := int64(0)
		for i := int64(0); i < 80; i++ {
			d, way := takeAt(l, "client", start)
			if i == 0 && c.passed > 0 && (d.Remaining != c.remain || d.Reset != 30) {
				t.Errorf("%s: %+v, want %d remaining", c.name, d, c.remain)
			}
			if d.Allowed {
				passed++
			}
			if c.passed > 0 && way != Local || !d.Allowed && d.RetryAfter != 30 {
				t.Errorf("%s: %+v by way %s", c.name, d, way)
			}
		}
		if passed != c.passed {
			t.Errorf("%s: %d passed, want %d", c.name, passed, c.passed)
		}
		comeBack(t, server, l)
		if c.answered+passed < 100 {
			want(t, c.name+": on return", begin(l, "client", start), 100, c.answered+passed+1)
		}
		// fallback.limit holds for all failures of a window together.
		cutOff(server, l)
		if allowed, _ := take(l, "client", 80, start); c.limit > 0 && allowed != 0 {
			t.Errorf("%s: %d passed in another failure", c.name, allowed)
		}
	}
}

func TestGatewayAnnouncesItselfForEachScope(t *testing.T) {
	server := fakeStore(t)
	server.gateways = 3
	a := ledgerOf(t, server, nil)
	again := ledgerOf(t, server, nil)
	other := settings("other", server)
	other.Store.TLSIdentity = "ledger" // the same store
	other.Store.Endpoint = "ledger"
	b := openAlone(t, other)
	look(a.store)
	if len(server.scopes) != 0 {
		t.Errorf("announced %q before anybody was counted", server.scopes)
	}
	newcomer(a)
	look(a.store)
	look(a.store)
	if want := []string{"rate:ledger:gateways", "rate:other:gateways"}; !reflect.DeepEqual(server.scopes, want) {
		t.Errorf("announced %q, want %q", server.scopes, want)
	}
	if a.store != b.store || a.table.gateways != 3 || b.table.gateways != 3 || again.table != a.table {
		t.Errorf("%d and %d gateways were learnt, want 3", a.table.gateways, b.table.gateways)
	}
	// More is believed at once, and less not before the last word is old: a store that
	// was restarted empty has heard of few.
	for i, step := range []struct {
		told, want int64
		older      time.Duration
	}{{4, 4, 0}, {1, 4, announceEvery}, {1, 1, announcedFor}, {2, 2, 0}} {
		server.gateways = step.told
		a.store.announced = a.store.announced.Add(-announceEvery)
		a.table.gatewaysAt = a.table.gatewaysAt.Add(-step.older)
		look(a.store)
		if a.table.gateways != step.want || len(server.scopes) != 4+2*i {
			t.Errorf("step %d: %d gateways were learnt in %d announcements, want %d", i, a.table.gateways, len(server.scopes), step.want)
		}
	}
}

func TestUserWhoMayNotAnnounceIsToldOnce(t *testing.T) {
	server := fakeStore(t)
	server.refuse(":gateways", "NOPERM User limiter has no permissions to run the 'zadd' command")
	l := ledgerOf(t, server, nil)
	newcomer(l)
	for i := 0; i < 3; i++ {
		l.store.announced = time.Time{}
		look(l.store)
	}
	lines := logged.about("store ledger:")
	if len(lines) != 1 || !strings.Contains(lines[0], "ZADD") || !strings.Contains(lines[0], "fallback.gateways") {
		t.Errorf("log %q, want one line", lines)
	}
	if way := newcomer(l); way != Shared || healthOf(l.store) != 0 {
		t.Errorf("way %s, health %d, want shared, 0", way, healthOf(l.store))
	}
	cutOff(server, l)
	passes(t, "alone", l, 100, Local)
}

// Middlewares with other time-outs or users have connections of their own, but count
// in one table.
func TestPassesAreAddedOnceOverTwoConnections(t *testing.T) {
	server := fakeStore(t)
	a := ledgerOf(t, server, nil)
	b := ledgerOf(t, server, func(s *Settings) { s.Store.Timeout = 2 * time.Minute })
	if a.store == b.store || a.table != b.table {
		t.Fatal("they do not share their table alone")
	}
	newcomer(a)
	newcomer(b)
	setHealth(a.store, away)
	passes(t, "meanwhile", a, 5, Local)
	recovered(a.store)
	server.since()
	server.ForgetCommands()
	server.Pause()
	first := begin(a, "client", start)
	eventually(t, "the one call", func() bool { return scripts(server) == 1 })
	second := begin(b, "client", start)
	eventually(t, "the other call", func() bool { return scripts(server) == 2 })
	server.Resume()
	<-first
	<-second
	want(t, "after them", begin(a, "client", start), 100, 8)
	want(t, "and then", begin(b, "client", start), 100, 9)
	if got := server.countOf("ledger", "client", 0); got != 9 {
		t.Errorf("the store counts %d, want the 9 that passed", got)
	}
}

// And in one batch.
func TestPassesAreAddedOnceWhereQueuesInterleave(t *testing.T) {
	server := fakeStore(t)
	a := ledgerOf(t, server, nil)
	b := ledgerOf(t, server, func(s *Settings) { s.Store.Timeout = 2 * time.Minute })
	newcomer(a)
	newcomer(b)
	setHealth(a.store, away)
	passes(t, "meanwhile", a, 5, Local)
	recovered(a.store)
	a.store.turn.Lock()
	b.store.turn.Lock()
	waiting := join(t, a, start, "client")
	waiting = append(waiting, join(t, b, start, "client")...)
	waiting = append(waiting, join(t, a, start, "client")...)
	waiting = append(waiting, join(t, b, start, "client")...)
	a.store.turn.Unlock()
	<-waiting[0]
	<-waiting[2]
	b.store.turn.Unlock()
	<-waiting[1]
	<-waiting[3]
	want(t, "after them", begin(a, "client", start), 100, 10)
	if got := server.countOf("ledger", "client", 0); got != 10 {
		t.Errorf("the store counts %d, want the 10 that passed", got)
	}
}

// A store that is slow is told what passed without it, and not all that it knows itself.
func TestSlowStoreIsSparedWhatItKnows(t *testing.T) {
	server, l := hourly(t)
	for i := 0; i < 300; i++ {
		take(l, client(i), 1, time.Now())
	}
	pushed(l) // what the first connection is told
	server.since()
	failed(l.store, "", "", errCrowded)
	l.ledger.mu.Lock()
	takeAlone(l, client(7), time.Since(Began), false, &window.Decision{}) // gives the mutex back
	pushed(l)
	calls := server.since()
	if len(calls) != 1 || calls[0].n != 1 || calls[0].known != 1 || server.hour(client(7)) != 2 {
		t.Errorf("the store was told %+v and counts %d, want the one request that passed alone, as the second", calls, server.hour(client(7)))
	}
	pushed(l)
	if calls := server.since(); len(calls) != 0 {
		t.Errorf("it was told once more: %+v", calls)
	}
}
