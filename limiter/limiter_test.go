package limiter

import (
	"math/rand"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatequota/gatequota/window"
)

func TestTwoLimitersShareTheCountOfTheStore(t *testing.T) {
	store := fakeStore(t)
	a, b := open(t, settings("two", store)), open(t, settings("two", store))
	for i := 0; i < 8; i++ {
		l := a
		if i%2 == 1 {
			l = b
		}
		d, way := takeAt(l, "client", start)
		want := window.Decision{Reset: 30, RetryAfter: 30, Known: true}
		if i < 5 {
			want = window.Decision{Allowed: true, Remaining: int64(4 - i), Reset: 30}
		}
		if d != want || way != Shared {
			t.Errorf("request %d: %+v by way %s, want %+v", i+1, d, way, want)
		}
	}
	if a.table != b.table || a.store != b.store {
		t.Error("the limiters of one scope have tables or stores of their own")
	}
	key := keyOf("two", "client", 0)
	if got := store.Count(key); got != 5 {
		t.Errorf("the count under %s is %d, want 5, since refusals need no store; keys: %q", key, got, store.Keys())
	}
	if ttl := store.TTL(key); ttl > 30*time.Second || ttl < 10*time.Second {
		t.Errorf("the key lives for %s, want the 30 s that are left of the window", ttl)
	}
}

func TestWindowsFollowTheStoresClock(t *testing.T) {
	store := fakeStore(t)
	store.SetTime(time.Now().Add(time.Hour))
	l := open(t, settings("clock", store))
	d, way := takeAt(l, "client", start)
	if want := []string{keyOf("clock", "client", 60)}; !reflect.DeepEqual(store.Keys(), want) {
		t.Errorf("keys %q, want %q, an hour on from the first request's window", store.Keys(), want)
	}
	if d.Reset != 30 || way != Shared {
		t.Errorf("%+v by way %s, want a reset in 30 s, shared", d, way)
	}
}

func TestRequestOfAnEndedWindowCountsInTheNext(t *testing.T) {
	store := fakeStore(t)
	l := open(t, settings("edge", store))
	// By the store's clock the window ended while the request was on its way.
	store.unix.Store(start.Unix() + 30)
	d, way := takeAt(l, "client", start)
	if !d.Allowed || d.Remaining != 4 || d.Reset != 60 || way != Shared {
		t.Errorf("%+v by way %s, want the first of five in a window of 60 s, shared", d, way)
	}
	if got := store.countOf("edge", "client", 1); got != 1 {
		t.Errorf("the next window counts %d, want 1; keys: %q", got, store.Keys())
	}
	// A store whose clock is a window further on is no store to count with.
	store.unix.Store(start.Unix() + 300)
	if _, way := takeAt(l, "client", start); way != Local {
		t.Errorf("decided by way %s, want local", way)
	}
}

func TestLocalGoesOnFromTheLastSharedCount(t *testing.T) {
	store := fakeStore(t)
	l := open(t, settings("warm", store))
	if allowed, _ := take(l, "client", 3, start); allowed != 3 {
		t.Fatalf("%d allowed, want 3", allowed)
	}
	store.Stop()
	allowed, ways := take(l, "client", 10, start)
	if allowed != 2 || ways[Local] != 10 {
		t.Errorf("%d allowed by ways %v, want the 2 that were left, all local", allowed, ways)
	}
	if err := store.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "counting in the store again", func() bool {
		return newcomer(l) == Shared
	})
}

func TestClosedAndOpen(t *testing.T) {
	store := fakeStore(t)
	store.Stop()
	closes, opens := settings("closed", store), settings("open", store)
	closes.OnStoreFailure, opens.OnStoreFailure = Closed, Open
	l := open(t, closes)
	for i := 0; i < 20; i++ {
		d, way := takeAt(l, "client", time.Now())
		if d.Allowed || way != Closed || d.RetryAfter < 1 || d.RetryAfter > 5 {
			t.Errorf("closed: %+v by way %s, want Retry-After 1 to 5", d, way)
		}
	}
	l = open(t, opens)
	if allowed, ways := take(l, "client", 20, time.Now()); allowed != 20 || ways[Open] != 20 {
		t.Errorf("open: %d allowed by ways %v, want all", allowed, ways)
	}
}

func TestManyAtOnceGetExactlyTheLimit(t *testing.T) {
	store := fakeStore(t)
	for _, c := range []struct {
		name  string
		store *fake
	}{{"crowd shared", store}, {"crowd local", nil}} {
		s := settings(c.name, c.store)
		s.Limit = 50
		var allowed sync.Map
		var group sync.WaitGroup
		for g := 0; g < 20; g++ {
			group.Add(1)
			go func(l *Limiter) {
				defer group.Done()
				for i := 0; i < 25; i++ {
					if d, _ := takeAt(l, "client", start); d.Allowed {
						if _, twice := allowed.LoadOrStore(d.Remaining, true); twice {
							t.Errorf("%s: remaining %d was told twice", c.name, d.Remaining)
						}
					}
				}
			}(open(t, s))
		}
		group.Wait()
		for left := int64(0); left < 50; left++ {
			if _, ok := allowed.Load(left); !ok {
				t.Errorf("%s: nobody was told that %d remain", c.name, left)
			}
		}
	}
}

// Over any history of failures a client gets at most the limit from the store and,
// besides, from each gateway at most the limit less what that gateway had seen when
// it first had to decide alone.
func TestExtraRequestsDuringFailuresAreBounded(t *testing.T) {
	const limit, gateways = 20, 3
	server := fakeStore(t)
	random := rand.New(rand.NewSource(3))
	worst := 0
	for round := 0; round < 100; round++ {
		var ledger [gateways]*Limiter
		for g := range ledger {
			s := settings("bound "+strconv.Itoa(round), server)
			s.Limit = limit
			forget()                    // each gateway is a process of its own
			ledger[g] = openAlone(t, s) // failing and coming back is up to the test
		}
		var shared, total int
		var local, seen [gateways]int
		for i := 0; i < 300; i++ {
			switch random.Intn(20) {
			case 0:
				server.Refuse("OOM command not allowed")
			case 1, 2:
				server.Refuse("")
				for g := range ledger {
					setHealth(ledger[g].store, 0)
				}
			}
			g := random.Intn(gateways)
			d, way := takeAt(ledger[g], "client", start)
			switch {
			case way == Shared:
				if local[g] == 0 {
					seen[g] = limit - int(d.Remaining)
				}
				if d.Allowed {
					shared++
				}
			case d.Allowed:
				local[g]++
				if local[g] > limit-seen[g] {
					t.Fatalf("round %d: gateway %d let %d pass after it had seen %d of %d", round, g, local[g], seen[g], limit)
				}
			}
			if d.Allowed {
				total++
			}
		}
		if shared > limit {
			t.Errorf("round %d: the store let %d pass, want at most %d", round, shared, limit)
		}
		if total > worst {
			worst = total
		}
		server.Refuse("")
		for g := range ledger {
			hangUp(ledger[g].store)
		}
	}
	if worst > limit*(1+gateways) {
		t.Errorf("a client got %d, want at most %d", worst, limit*(1+gateways))
	}
	t.Logf("the worst of 100 rounds: %d requests of one client, limit %d, %d gateways", worst, limit, gateways)
}

// A client over its limit costs the store nothing, and others no connection.
func TestRefusedClientIsNotAskedFor(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("known", server))
	take(l, "client", 5, start)
	server.ForgetCommands()
	for i := 0; i < 100; i++ {
		d, way := takeAt(l, "client", start)
		if want := (window.Decision{Reset: 30, RetryAfter: 30, Known: true}); d != want || way != Shared {
			t.Fatalf("%+v by way %s, want %+v, shared", d, way, want)
		}
	}
	if commands := server.Commands(); len(commands) != 0 {
		t.Errorf("the store got %d commands, want none", len(commands))
	}
	// What is known is the count and not the verdict: another limit on the same
	// count asks, and so does the next window.
	wider := settings("known", server)
	wider.Limit = 10
	if d, way := takeAt(openAlone(t, wider), "client", start); !d.Allowed || d.Remaining != 4 || way != Shared {
		t.Errorf("%+v by way %s under a wider limit, want the sixth of ten, shared", d, way)
	}
	server.unix.Store(start.Unix() + 60)
	if d, way := takeAt(l, "client", start.Add(time.Minute)); !d.Allowed || way != Shared {
		t.Errorf("%+v by way %s in the next window, want allowed, shared", d, way)
	}
}

// A connection that the server closed while it was idle costs no request its count.
func TestConnectionsClosedWhileIdleAreNoticed(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("idle", server))
	take(l, "client", 1, start)
	server.CloseConnections()
	eventually(t, "the end of the connection", func() bool { return server.Open() == 0 })
	letRest(l.store)
	if d, way := takeAt(l, "client", start); way != Shared || d.Remaining != 3 {
		t.Errorf("%+v by way %s, want the second, shared", d, way)
	}
	if lines := logged.about("store idle:"); len(lines) != 0 {
		t.Errorf("log %q, want none", lines)
	}
}

// A batch whose turn comes late is no sign that the store is ill.
func TestLateTurnIsNoStoreFailure(t *testing.T) {
	server := fakeStore(t)
	s := settings("busy", server)
	s.Store.Timeout = 10 * time.Second
	l := openAlone(t, s)
	take(l, "other", 1, start)
	server.ForgetCommands()
	for i := 0; i < 4; i++ {
		l.store.turn.Lock()
		took := begin(l, "client", start)
		eventually(t, "a batch", func() bool { return joined(l) == 1 })
		backdate(l, 9*time.Second)
		l.store.turn.Unlock()
		if got := <-took; !got.Allowed || got.way != Local {
			t.Errorf("%+v, want allowed, local", got)
		}
	}
	if got := len(server.Commands()); got != 0 {
		t.Errorf("%d commands were sent, want none", got)
	}
	if got := healthOf(l.store); got != 0 {
		t.Errorf("the health is %d, want 0", got)
	}
	if lines := logged.about("store busy:"); len(lines) != 1 || !strings.Contains(lines[0], "turn of some requests came too late") {
		t.Errorf("log %q, want one line", lines)
	}
	if d, way := takeAt(l, "client", start); way != Shared || !d.Allowed || d.Remaining != 0 {
		t.Errorf("%+v by way %s when its turn comes in time, want the fifth, shared", d, way)
	}
}

func TestKnownToBeOverTheLimitIsRefusedWithoutTheStore(t *testing.T) {
	for _, way := range []string{Local, Closed, Open} {
		store := fakeStore(t)
		s := settings(way, store)
		s.OnStoreFailure = way
		l := open(t, s)
		now := time.Now()
		take(l, "client", 6, now)
		store.Stop()
		for i := 0; i < 5; i++ {
			takeAt(l, "newcomer "+strconv.Itoa(i), now)
		}
		d, got := takeAt(l, "client", now)
		if d.Allowed || d.RetryAfter != d.Reset || d.Reset < 1 || got != Local {
			t.Errorf("%s: %+v by way %s, want a refusal until the window ends", way, d, got)
		}
		if _, got := takeAt(l, "newcomer", now); got != way {
			t.Errorf("a newcomer is decided by way %s, want %s", got, way)
		}
	}
}
