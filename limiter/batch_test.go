package limiter

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
	"github.com/gatequota/gatequota/window"
)

// joined returns how many requests wait in the batch that is open to more.
func joined(l *Limiter) (requests int64) {
	l.ledger.mu.Lock()
	defer l.ledger.mu.Unlock()
	if l.store.next != nil {
		for _, sl := range l.store.next.slots {
			requests += sl.requests
		}
	}
	return requests
}

// backdate lets the time of the batch that is open have begun earlier.
func backdate(l *Limiter, by time.Duration) {
	l.ledger.mu.Lock()
	defer l.ledger.mu.Unlock()
	l.store.next.start = l.store.next.start.Add(-by)
}

// taken is what a request is told.
type taken struct {
	window.Decision
	way string
}

// begin makes a request and does not wait for it.
func begin(l *Limiter, client string, now time.Time) chan taken {
	done := make(chan taken, 1)
	go func() {
		d, way := takeAt(l, client, now)
		done <- taken{d, way}
	}()
	return done
}

// join begins requests, each when the one before has its place in the batch.
func join(t *testing.T, l *Limiter, now time.Time, clients ...string) []chan taken {
	t.Helper()
	var all []chan taken
	before := joined(l)
	for i, client := range clients {
		all = append(all, begin(l, client, now))
		eventually(t, "a place in the batch", func() bool { return joined(l) == before+int64(i)+1 })
	}
	return all
}

// underWay lets a batch of one request set out to a store that answers it when it is
// told to by Resume.
func underWay(t *testing.T, server *fake, l *Limiter) chan taken {
	t.Helper()
	if way := newcomer(l); way != Shared {
		t.Fatalf("the store is asked for nothing: %s", way)
	}
	server.ForgetCommands()
	server.Pause()
	first := begin(l, "first", start)
	eventually(t, "a command", func() bool { return len(server.Commands()) == 1 })
	server.since()
	return first
}

// want demands the count of a request that is allowed in a window that ends in 30 s.
func want(t *testing.T, what string, done chan taken, limit, count int64) {
	t.Helper()
	got := <-done
	expected := taken{window.Decision{Allowed: true, Remaining: limit - count, Reset: 30}, Shared}
	if count > limit {
		expected.Decision = window.Decision{Reset: 30, RetryAfter: 30}
	}
	if got != expected {
		t.Errorf("%s: %+v, want %+v", what, got, expected)
	}
}

func TestRequestsTravelWithTheNextRoundTrip(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("merge", server))
	first := underWay(t, server, l)
	waiting := join(t, l, start, "a", "b", "a", "first", "a", "a", "b", "a", "a", "a")
	server.Resume()
	want(t, "the first", first, 5, 1)
	for i, count := range []int64{1, 1, 2, 2, 3, 4, 2, 5, 6, 7} {
		want(t, "waiting request "+strconv.Itoa(i+1), waiting[i], 5, count)
	}
	calls := server.since()
	expected := []call{{"first", 1, 0, 0, 0}, {"a", 7, 0, 0, 0}, {"b", 2, 0, 0, 0}, {"first", 1, 1, 0, 0}}
	if len(calls) != len(expected) {
		t.Fatalf("the calls are %+v, want %d", calls, len(expected))
	}
	for i, e := range expected {
		if c := calls[i]; c.key != keyOf("merge", e.key, 0) || c.n != e.n || c.known != e.known || c.end != start.Unix()+30 {
			t.Errorf("call %d is %+v, want %d of %s with %d known", i+1, c, e.n, e.key, e.known)
		}
	}
}

func TestBatchHoldsAtMost256Counts(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("full", server))
	first := underWay(t, server, l)
	turns := l.ledger.turns
	var waiting []chan taken
	for i := 0; i < 256; i++ {
		waiting = append(waiting, join(t, l, start, "client "+strconv.Itoa(i))...)
	}
	// There is room for more requests of those who have a place, and for nobody else.
	waiting = append(waiting, join(t, l, start, "client 255", "client 0")...)
	next := begin(l, "client 256", start)
	eventually(t, "another batch", func() bool { return joined(l) == 1 })
	others := join(t, l, start, "client 0", "client 257", "client 256")
	if got := l.ledger.turns - turns; got != 2 {
		t.Errorf("they wait in %d batches, want 2", got)
	}
	server.Resume()
	want(t, "the first", first, 5, 1)
	for i := 0; i < 256; i++ {
		want(t, "client "+strconv.Itoa(i), waiting[i], 5, 1)
	}
	want(t, "client 255 again", waiting[256], 5, 2)
	want(t, "client 0 again", waiting[257], 5, 2)
	want(t, "client 256", next, 5, 1)
	want(t, "client 0 in the next batch", others[0], 5, 3)
	want(t, "client 257", others[1], 5, 1)
	want(t, "client 256 again", others[2], 5, 2)
	if got := len(server.since()); got != 1+256+3 {
		t.Errorf("%d calls, want %d", got, 1+256+3)
	}
}

func TestBatchHoldsBothSidesOfAnEdge(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("sides", server))
	underWay(t, server, l)
	var before, after []chan taken
	for i := 0; i < 6; i++ {
		before = append(before, join(t, l, start, "client")...)
		after = append(after, join(t, l, start.Add(time.Minute), "client")...)
	}
	server.Resume()
	for i := int64(0); i < 6; i++ {
		want(t, "before the edge", before[i], 5, i+1)
		want(t, "after the edge", after[i], 5, i+1)
	}
	calls := server.since()
	if len(calls) != 3 || calls[1].key != keyOf("sides", "client", 0) || calls[2].key != keyOf("sides", "client", 1) ||
		calls[1].n != 6 || calls[2].n != 6 || calls[1].end != start.Unix()+30 || calls[2].end != start.Unix()+90 {
		t.Errorf("the calls are %+v, want one of 6 for each window", calls[1:])
	}
	// What was answered for one window is known of no other.
	if d, way := takeAt(l, "client", start.Add(2*time.Minute)); !d.Allowed || d.Remaining != 4 || way != Shared {
		t.Errorf("%+v by way %s in the window after them, want the first", d, way)
	}
}

func TestLimitsOfOneScopeShareASlot(t *testing.T) {
	server := fakeStore(t)
	wide := settings("limits", server)
	wide.Limit = 8
	a, b := openAlone(t, settings("limits", server)), openAlone(t, wide)
	underWay(t, server, a)
	var waiting []chan taken
	for i := 0; i < 5; i++ {
		waiting = append(waiting, join(t, a, start, "client")...)
		waiting = append(waiting, join(t, b, start, "client")...)
	}
	server.Resume()
	for i, done := range waiting {
		want(t, "request "+strconv.Itoa(i+1), done, []int64{5, 8}[i%2], int64(i)+1)
	}
	if calls := server.since(); len(calls) != 2 || calls[1].n != 10 {
		t.Errorf("the calls are %+v, want one of 10", calls)
	}
	server.ForgetCommands()
	for i, l := range []*Limiter{a, b} {
		if d, way := takeAt(l, "client", start); d.Allowed || way != Shared {
			t.Errorf("limiter %d: %+v by way %s, want refused by the known count", i, d, way)
		}
	}
	if got := len(server.Commands()); got != 0 {
		t.Errorf("%d commands for a client that is known to be over both limits", got)
	}
}

// A batch ends when the time of its first request is over: see the alarms, which go
// off long after it and long before the time of a batch that begins anew with its
// turn.
func TestBatchKeepsTheTimeOfItsFirstRequest(t *testing.T) {
	for name, behaviour := range map[string]fakevalkey.Behaviour{
		"waiting for an answer":     {},
		"waiting for a connection":  {Swallow: true},
		"waiting for a first reply": {Greeting: "+", Swallow: true},
	} {
		server := fakeStore(t)
		s := settings("time", server)
		s.Store.Timeout = 3 * time.Second
		s.Store.DialTimeout = time.Minute
		l := openAlone(t, s)
		if name == "waiting for an answer" {
			newcomer(l)
			server.Pause()
		} else {
			server.Usually(behaviour)
		}
		l.store.turn.Lock()
		waiting := join(t, l, start, "a", "b", "a")
		backdate(l, 2*time.Second)
		alarm := time.NewTimer(2500 * time.Millisecond)
		l.store.turn.Unlock()
		for _, done := range waiting {
			select {
			case got := <-done:
				if !got.Allowed || got.way != Local {
					t.Errorf("%s: %+v, want allowed, local", name, got)
				}
			case <-alarm.C:
				t.Fatalf("%s: a request waits when its time is over", name)
			}
		}
		if got := healthOf(l.store); got != 2 {
			t.Errorf("%s: the health is %d, want 2 for a time-out", name, got)
		}
		server.Stop()
	}
}

// The wait for the turn is part of it: a batch behind one that got no answer ends
// with it, and does not wait for as long again.
func TestBatchesBehindASilentStoreEndTogether(t *testing.T) {
	server := fakeStore(t)
	s := settings("silent", server)
	s.Store.Timeout = 1500 * time.Millisecond
	l := openAlone(t, s)
	first := underWay(t, server, l)
	waiting := join(t, l, start, "a", "b", "first")
	if got := <-first; got.way != Local {
		t.Errorf("the first: %+v, want local", got)
	}
	alarm := time.NewTimer(time.Second)
	for _, done := range waiting {
		select {
		case got := <-done:
			if !got.Allowed || got.way != Local {
				t.Errorf("%+v, want allowed, local", got)
			}
		case <-alarm.C:
			t.Fatal("a request waits for its turn and then again")
		}
	}
	if got := healthOf(l.store); got != 2 {
		t.Errorf("the health is %d, want 2 for the one time-out", got)
	}
}

func TestPanicInABatchIsAStoreFailure(t *testing.T) {
	for _, mode := range []string{Local, Open, Closed} {
		server := fakeStore(t)
		s := settings("panic", server)
		s.OnStoreFailure = mode
		l := openAlone(t, s)
		newcomer(l)
		l.store.turn.Lock()
		waiting := join(t, l, start, "a", "b", "a")
		l.ledger.mu.Lock()
		l.store.next.slots = append(l.store.next.slots, &slot{count: &window.FixedCount{}}) // without a table
		l.ledger.mu.Unlock()
		l.store.turn.Unlock()
		for i, done := range waiting {
			if got := <-done; got.way != mode || got.Allowed != (mode != Closed) {
				t.Errorf("%s: request %d: %+v", mode, i+1, got)
			}
		}
		if got := healthOf(l.store); got != 1 {
			t.Errorf("%s: the health is %d, want 1 for one failure", mode, got)
		}
		if lines := logged.about("panic: "); mode == Local && len(lines) != 0 {
			t.Errorf("log %q, want none for a first failure", lines)
		}
		count := map[string]int64{Local: 3, Open: 1, Closed: 1}[mode]
		want(t, mode+": after it", begin(l, "a", start), 5, count)
	}
}

func TestWindowThatIsOverMovesItsRequests(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("over", server))
	underWay(t, server, l)
	waiting := join(t, l, start, "a", "b", "a", "a")
	// Their batch arrives when the window has just ended.
	server.unix.Store(start.Unix() + 30)
	server.Resume()
	left := map[int64]bool{}
	for i, done := range waiting {
		got := <-done
		if !got.Allowed || got.Reset != 60 || got.way != Shared {
			t.Errorf("request %d: %+v, want allowed in a window of 60 s", i+1, got)
		}
		if i != 1 {
			left[got.Remaining] = true
		}
	}
	if len(left) != 3 || !left[4] || !left[3] || !left[2] {
		t.Errorf("three requests were told that %v remain, want 4, 3 and 2", left)
	}
	if a, b := server.countOf("over", "a", 1), server.countOf("over", "b", 1); a != 3 || b != 1 {
		t.Errorf("the next window counts %d and %d, want 3 and 1", a, b)
	}
	if got := server.countOf("over", "a", 0); got != 0 {
		t.Errorf("the window that is over counts %d, want 0", got)
	}
}

func TestRefusalOfOneKeyHurtsThatKeyAlone(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("sick", server))
	for i := int64(1); i <= 2; i++ {
		server.refuse(keyOf("sick", "b", 0), "ERR value is not an integer or out of range")
		underWay(t, server, l)
		waiting := join(t, l, start, "a", "b", "c", "b")
		server.Resume()
		want(t, "a", waiting[0], 5, i)
		want(t, "c", waiting[2], 5, i)
		for _, n := range []int{1, 3} {
			if got := <-waiting[n]; !got.Allowed || got.way != Local {
				t.Errorf("round %d: b: %+v, want allowed, local", i, got)
			}
		}
		if got := healthOf(l.store); got != 0 {
			t.Fatalf("round %d: the health is %d, want 0", i, got)
		}
	}
	if lines := logged.about("store sick:"); len(lines) != 1 || !strings.Contains(lines[0], "refuses to count some keys") {
		t.Errorf("log %q, want one line", lines)
	}
}

func TestFailureCountsOncePerBatch(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("once", server))
	newcomer(l)
	for round, how := range []int{counted, uncounted} {
		server.breakCall(how, 0)
		l.store.turn.Lock()
		var clients []string
		for i := 0; i < 20; i++ {
			clients = append(clients, strconv.Itoa(i%10))
		}
		waiting := join(t, l, start, clients...)
		l.store.turn.Unlock()
		for i, done := range waiting {
			if got := <-done; !got.Allowed || got.way != Local {
				t.Errorf("request %d: %+v, want allowed, local", i+1, got)
			}
		}
		server.through()
		if got := healthOf(l.store); got != int64(round)+1 {
			t.Errorf("after %d batches the health is %d", round+1, got)
		}
	}
	if way := newcomer(l); way != Shared || healthOf(l.store) != 0 {
		t.Errorf("after an answer: way %s, health %d; want shared, 0", way, healthOf(l.store))
	}
}

// Calls that were answered before the connection broke were counted; the others may
// have been.
func TestConnectionThatBreaksInABatch(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("half", server))
	underWay(t, server, l)
	waiting := join(t, l, start, "a", "b", "c", "d")
	server.breakCall(counted, 2)
	server.Resume()
	want(t, "a", waiting[0], 5, 1)
	want(t, "b", waiting[1], 5, 1)
	for _, done := range waiting[2:] {
		if got := <-done; !got.Allowed || got.way != Local {
			t.Errorf("%+v, want allowed, local", got)
		}
	}
	server.through()
	for _, client := range []string{"a", "b", "c", "d"} {
		want(t, client+" again", begin(l, client, start), 5, 2)
	}
}

func TestHalfOpenStoreIsTriedByOneBatch(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("half-open", server))
	newcomer(l)
	setHealth(l.store, away)
	if way := newcomer(l); way != Local {
		t.Errorf("while it is away: %s, want local", way)
	}
	for round := 0; round < 3; round++ {
		if refusal, err := tryScript(l.store); refusal != "" || err != nil {
			t.Fatalf("the probe: %q, %v", refusal, err)
		}
		recovered(l.store)
		server.ForgetCommands()
		server.Pause()
		first := begin(l, "first", start)
		eventually(t, "the batch that tries the store", func() bool { return scripts(server) == 1 })
		waiting := join(t, l, start, "a", "b")
		accepted := server.Accepted()
		server.CloseConnections()
		for _, done := range append(waiting, first) {
			if got := <-done; got.way != Local {
				t.Errorf("round %d: %+v, want local", round, got)
			}
		}
		server.Resume()
		if got := healthOf(l.store); got < away {
			t.Errorf("round %d: the health is %d after a batch that failed, want %d", round, got, away)
		}
		if got := scripts(server); got != 1 {
			t.Errorf("round %d: %d calls, want the first alone", round, got)
		}
		if got := server.Accepted() - accepted; got != 0 {
			t.Errorf("round %d: a batch behind it opened a connection to a store that is away", round)
		}
	}
	recovered(l.store)
	if way := newcomer(l); way != Shared || healthOf(l.store) != 0 {
		t.Errorf("after a batch that was answered: way %s, health %d; want shared, 0", way, healthOf(l.store))
	}
}

// scripts returns how many calls of scripts were received.
func scripts(server *fake) (n int) {
	for _, command := range server.Commands() {
		if strings.HasPrefix(command.Args[0], "EVAL") {
			n++
		}
	}
	return n
}

func TestPanicAfterAPanicKeepsNobodyWaiting(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("no link", server))
	link := l.store.link
	l.store.turn.Lock()
	l.store.link = nil
	waiting := join(t, l, start, "a", "b", "a")
	l.store.turn.Unlock()
	for _, done := range waiting {
		select {
		case got := <-done:
			if !got.Allowed || got.way != Local {
				t.Errorf("%+v, want allowed, local", got)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("a request waits for ever")
		}
	}
	l.store.link = link
	want(t, "after it", begin(l, "b", start), 5, 2)
}

// Whatever breaks while many ask, everybody is answered, the store hands out each place
// once, and what passes without it is told to it once at most.
func TestManyAtOnceWhileConnectionsBreak(t *testing.T) {
	const users, requests, clients = 16, 300, 3
	for _, c := range []struct {
		name  string
		limit int64
		fail  func(server *fake, limiters []*Limiter, n int) // now and then
	}{
		{"connections break", 1500, func(server *fake, limiters []*Limiter, n int) {
			server.breakCall(counted+n%2, n%3)
			recovered(limiters[n%4/2].store)
		}},
		{"stores are away", 1e6, func(_ *fake, limiters []*Limiter, n int) {
			setHealth(limiters[n%4/2].store, int64(n%2*away))
		}},
		{"nothing fails", 1500, nil},
	} {
		server := fakeStore(t)
		s := settings(c.name, server)
		s.Limit = c.limit
		other := settings(c.name, server)
		other.Limit = c.limit
		other.Store.Timeout = 2 * time.Minute // a connection of its own to the same count
		limiters := []*Limiter{openAlone(t, s), openAlone(t, other)}
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
					d, way := takeAt(limiters[u%2], who, start)
					mu.Lock()
					made[who]++
					if d.Allowed && way == Shared {
						shared[who]++
						places[who+" "+strconv.FormatInt(d.Remaining, 10)]++
					} else if d.Allowed {
						alone[who]++
					}
					mu.Unlock()
					if c.fail != nil && i%20 == 0 {
						c.fail(server, limiters, u+i/20)
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
		added := map[string]int64{}
		for _, call := range server.since() {
			added[call.key] += call.n
		}
		for who, n := range made {
			key := keyOf(c.name, who, 0)
			told, count := added[key], server.Count(key)
			if told > n || count > n {
				t.Errorf("%s: client %s made %d requests; the store was told to add %d and counts %d", c.name, who, n, told, count)
			}
			if left := unsettledOf(limiters[0], who); c.limit > n && (count != n-left || told != count) {
				t.Errorf("%s: client %s made %d requests; the store was told to add %d, counts %d, and %d are unsettled", c.name, who, n, told, count, left)
			}
			if c.fail == nil && (shared[who] != c.limit || alone[who] != 0) {
				t.Errorf("%s: client %s got %d from the store and %d besides, want %d and none", c.name, who, shared[who], alone[who], c.limit)
			}
		}
		if c.fail != nil && len(alone) == 0 {
			t.Errorf("%s: nobody passed alone", c.name)
		}
	}
}

// unsettledOf returns what the store is still to be told of a client.
func unsettledOf(l *Limiter, client string) int64 {
	l.ledger.mu.Lock()
	defer l.ledger.mu.Unlock()
	return window.FixedFind(l.counts, client, start.Unix()).Unsettled
}
