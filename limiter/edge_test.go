package limiter

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"
)

// received returns what requests were told.
func received(waiting []chan taken) (all []taken) {
	for _, done := range waiting {
		all = append(all, <-done)
	}
	return all
}

// calledIn demands the windows, as their numbers after that of start, in which a client
// was asked for since the last look, in their order.
func calledIn(t *testing.T, what string, server *fake, scope, client string, windows ...int64) {
	t.Helper()
	calls := server.since()
	ok := len(calls) == len(windows)
	for i := 0; ok && i < len(calls); i++ {
		ok = calls[i].key == keyOf(scope, client, windows[i])
	}
	if !ok {
		t.Errorf("%s: the calls are %+v, want one of %s in each of the windows %d", what, calls, client, windows)
	}
}

// A clock that is ahead by a window or more is none to count with: what is over is asked
// for once more, in the next window, and then decided alone in the window that it is by
// the clock that was read.
func TestStoreThatIsWindowsAheadIsNotFollowed(t *testing.T) {
	for _, ahead := range []int64{90, 150, 210, 3600} {
		for _, together := range []bool{false, true} {
			what := strconv.FormatInt(ahead, 10) + " s ahead, together " + strconv.FormatBool(together)
			server := fakeStore(t)
			l := openAlone(t, settings("ahead", server))
			if allowed, ways := take(l, "known", 5, start); allowed != 5 || ways[Shared] != 5 {
				t.Fatalf("%s: %d of 5 allowed by ways %v, want all, shared", what, allowed, ways)
			}
			server.since()
			server.unix.Store(start.Unix() + ahead)
			allowed := int64(0)
			for i := 0; i < 10; i++ {
				var got []taken
				if together {
					l.store.turn.Lock()
					waiting := join(t, l, start, "client")
					if i == 0 {
						waiting = append(waiting, join(t, l, start, "client", "client", "client", "client", "client", "client")...)
					}
					l.store.turn.Unlock()
					got = received(waiting)
				} else {
					got = received([]chan taken{begin(l, "client", start)})
				}
				for _, g := range got {
					if g.Allowed {
						allowed++
					}
					if g.way != Local || g.Reset > 30 {
						t.Errorf("%s: %+v, want it local in the window that ends in 30 s", what, g)
					}
				}
				if allowed == 5 {
					server.since()
					break
				}
				calledIn(t, what, server, "ahead", "client", 0, 1)
			}
			if more, ways := take(l, "client", 20, start); allowed+int64(more) != 5 || ways[Local] != 20 {
				t.Errorf("%s: %d pass, the last 20 by ways %v; want the limit of 5, all local", what, allowed+int64(more), ways)
			}
			if calls := server.since(); len(calls) != 0 {
				t.Errorf("%s: the calls for a client that is over its limit are %+v, want none", what, calls)
			}
			setHealth(l.store, away)
			if more, _ := take(l, "known", 5, start); more != 0 {
				t.Errorf("%s: %d more pass of a client whose limit was reached before", what, more)
			}
			if lines := logged.about("store ahead:"); len(lines) != 1 || !strings.Contains(lines[0], "its clock is ahead") {
				t.Errorf("%s: log %q, want one line", what, lines)
			}
		}
	}
}

// Requests that came before an edge and are answered after it count in the window that
// it is by the store's clock, also where much of their time is over.
func TestRequestsAtTheEdgeShareTheNextWindowOfAllGateways(t *testing.T) {
	const limit = 5
	for other := int64(0); other <= limit; other++ {
		what := strconv.FormatInt(other, 10) + " passed by the other gateway"
		server := fakeStore(t)
		another := openAlone(t, settings("both", server))
		forget() // each gateway is a process of its own
		l := openAlone(t, settings("both", server))
		late := start.Add(29*time.Second + 400*time.Millisecond)
		if allowed, ways := take(l, "client", 3, late); allowed != 3 || ways[Shared] != 3 {
			t.Fatalf("%s: %d of 3 allowed by ways %v, want all, shared", what, allowed, ways)
		}
		l.store.turn.Lock()
		waiting := join(t, l, late, "client", "client", "client", "client", "client", "client")
		backdate(l, 36*time.Second) // of a minute
		server.unix.Store(start.Unix() + 30)
		after := start.Add(31 * time.Second)
		if allowed, ways := take(another, "client", int(other), after); int64(allowed) != other || ways[Shared] != int(other) {
			t.Fatalf("%s: %d of %d allowed by ways %v, want all, shared", what, allowed, other, ways)
		}
		server.since()
		l.store.turn.Unlock()
		allowed := other
		for _, got := range received(waiting) {
			if got.Allowed {
				allowed++
			}
			if got.way != Shared || got.Reset != 60 {
				t.Errorf("%s: %+v, want it shared in a window of 60 s", what, got)
			}
		}
		calledIn(t, what, server, "both", "client", 0, 1)
		if allowed != limit {
			t.Errorf("%s: %d pass in the next window, want %d", what, allowed, limit)
		}
		for _, gateway := range []*Limiter{l, another} {
			if more, ways := take(gateway, "client", 3, after); more != 0 || ways[Shared] != 3 {
				t.Errorf("%s: then %d more pass by ways %v, want none, shared", what, more, ways)
			}
		}
		if got := server.countOf("both", "client", 0); got != 3 {
			t.Errorf("%s: the window that is over counts %d, want 3", what, got)
		}
		if lines := logged.about("store both:"); len(lines) != 0 || healthOf(l.store) != 0 {
			t.Errorf("%s: log %q, health %d; want none, 0", what, lines, healthOf(l.store))
		}
	}
}

// What a first connection says of the store's clock is heeded in the same turn, however
// much of the time of the requests it took.
func TestFirstConnectionMovesRequestsToTheStoresClock(t *testing.T) {
	for _, off := range []int64{-7200, -60, 60, 3600} {
		for _, clients := range [][]string{{"a"}, {"a", "a", "b", "a"}} {
			what := strconv.FormatInt(off, 10) + " s off, " + strconv.Itoa(len(clients)) + " requests"
			server := fakeStore(t)
			server.Advance(time.Duration(off) * time.Second)
			server.unix.Store(start.Unix() + off)
			s := settings("moved", server)
			s.OnStoreFailure = Closed
			l := openAlone(t, s)
			l.store.turn.Lock()
			waiting := join(t, l, start, clients...)
			backdate(l, 36*time.Second) // of a minute
			l.store.turn.Unlock()
			counts := map[string]int64{}
			for i, client := range clients {
				counts[client]++
				want(t, what+": request "+strconv.Itoa(i+1), waiting[i], 5, counts[client])
			}
			calls := server.since()
			if len(calls) != len(counts) {
				t.Errorf("%s: the calls are %+v, want one of each client", what, calls)
			}
			for client, n := range counts {
				if got := server.countOf("moved", client, off/60); got != n || server.countOf("moved", client, 0) != 0 {
					t.Errorf("%s: the store counts %d of %s in its window, want %d; keys: %q", what, got, client, n, server.Keys())
				}
				want(t, what+": after it", begin(l, client, start), 5, n+1)
			}
			if lines := logged.about("store moved:"); len(lines) != 0 || healthOf(l.store) != 0 {
				t.Errorf("%s: log %q, health %d; want none, 0", what, lines, healthOf(l.store))
			}
		}
	}
}

// A push belongs to the window in which its requests were counted, and to no other: it
// waits for the next time.
func TestPushOverAConnectionThatShowsAnotherClock(t *testing.T) {
	for _, off := range []time.Duration{-time.Hour, 10 * time.Second, time.Hour, 10 * time.Hour} {
		server, l := hourly(t)
		take(l, "client", 7, time.Now())
		pushed(l)
		server.since()
		server.CloseConnections()
		eventually(t, "the end of the connection", func() bool { return server.Open() == 0 })
		server.Flush()
		server.Advance(off)
		server.unix.Store(start.Add(off).Unix())
		letRest(l.store)
		l.store.pushDue = true
		pushed(l)
		if calls := server.since(); len(calls) != 0 {
			t.Errorf("%s off: pushed with %+v before its window was known, want nothing", off, calls)
		}
		pushed(l)
		for _, c := range server.since() {
			if c.n+c.known != 7 || c.key != keyIn("ledger", "client", start.Unix()/3600) {
				t.Errorf("%s off: pushed with %+v, want the 7 of the window in which they were counted", off, c)
			}
		}
		expected := int64(7)
		if off >= time.Hour {
			expected = 0
		}
		if got := server.hour("client"); got != expected {
			t.Errorf("%s off: the store counts %d, want %d", off, got, expected)
		}
		if got := healthOf(l.store); got != 0 {
			t.Errorf("%s off: the health is %d, want 0", off, got)
		}
	}
}

// A push whose window ended meanwhile has nothing to say of the next one.
func TestPushOfAWindowThatIsOverIsDropped(t *testing.T) {
	server, l := hourly(t)
	take(l, "client", 7, time.Now())
	pushed(l)
	server.since()
	accepted := server.Accepted()
	server.unix.Store((start.Unix()/3600 + 1) * 3600)
	l.store.pushDue = true
	pushed(l)
	if calls := server.since(); len(calls) != 1 {
		t.Errorf("the calls are %+v, want one", calls)
	}
	_, way := takeAt(l, "client", time.Now().Add(time.Hour))
	if way != Shared || healthOf(l.store) != 0 || server.Accepted() != accepted {
		t.Errorf("way %s, health %d, %d connections; want shared, 0, the same one", way, healthOf(l.store), server.Accepted())
	}
}

// Counts outlive the middlewares that made them: a reload ends those before it begins
// others.
func TestPushCoversScopesWhoseMiddlewaresAreGone(t *testing.T) {
	for _, gone := range [][]string{{"a"}, {"a", "b"}} {
		server := fakeStore(t)
		server.Advance(time.Until(start))
		limiters := map[string]*Limiter{}
		cancels := map[string]func(){}
		for _, scope := range []string{"a", "b"} {
			s := settings(scope, server)
			s.Store.TLSIdentity = "one store"
			s.Limit, s.Window = 100, 3600
			ctx, cancel := context.WithCancel(context.Background())
			t.Cleanup(cancel)
			cancels[scope] = cancel
			limiters[scope] = New(ctx, s, start)
			limiters[scope].store.kept = true // what a keeper does is up to the test
			takeAt(limiters[scope], "client", time.Now())
		}
		store := limiters["a"].store
		setHealth(store, away)
		for _, l := range limiters {
			if allowed, ways := take(l, "client", 7, time.Now()); allowed != 7 || ways[Local] != 7 {
				t.Fatalf("%d of 7 allowed by ways %v, want all, local", allowed, ways)
			}
		}
		recovered(store)
		for _, scope := range gone {
			cancels[scope]()
		}
		if got := inUse(store); got != (len(gone) < 2) {
			t.Errorf("without %q: a configuration is in force: %t", gone, got)
		}
		pushed(limiters["a"])
		for scope := range limiters {
			if got := server.Count(keyIn(scope, "client", start.Unix()/3600)); got != 8 {
				t.Errorf("without %q: the store counts %d in scope %s, want the 8 that passed", gone, got, scope)
			}
		}
	}
}
