package limiter

import (
	"context"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
	"github.com/gatequota/gatequota/window"
)

func TestAnswerThatIsNoCountIsAFailure(t *testing.T) {
	const most = 1 << 53 // to which the store's Lua counts
	for _, answer := range []int64{0, -2, math.MinInt64, most + 1, math.MaxInt64} {
		for _, together := range []bool{false, true} {
			what := strconv.FormatInt(answer, 10) + ", together " + strconv.FormatBool(together)
			server := fakeStore(t)
			s := settings("no count", server)
			s.OnStoreFailure = Closed
			l := openAlone(t, s)
			newcomer(l)
			server.Register(window.FixedScript, func(_ *fakevalkey.Server, _ []string) string { return fakevalkey.Int(answer) })
			for i := 1; i <= away; i++ {
				var waiting []chan taken
				if together {
					l.store.turn.Lock()
					waiting = join(t, l, start, "a", "b", "a")
					l.store.turn.Unlock()
				} else {
					waiting = append(waiting, begin(l, "a", start))
				}
				for _, done := range waiting {
					if got := <-done; got.Allowed || got.way != Closed {
						t.Errorf("%s: %+v, want it closed", what, got)
					}
				}
				if got := healthOf(l.store); got != int64(i) {
					t.Errorf("%s: after %d failures the health is %d", what, i, got)
				}
				// Whoever sends such things is not heard further.
				eventually(t, what+": the end of the connection", func() bool { return server.Open() == 0 })
			}
			take(l, "a", 10, start)
			if lines := logged.about("store no count:"); len(lines) != 1 || !strings.Contains(lines[0], "away (") {
				t.Errorf("%s: log %q, want one line", what, lines)
			}
		}
	}
}

func TestSenselessNumberOfGatewaysIsNotBelieved(t *testing.T) {
	for _, c := range []struct{ told, believed int64 }{
		{4, 4}, {10000, 10000}, // up to the largest that fallback.gateways may be
		{0, 3}, {-1, 3}, {math.MinInt64, 3}, {10001, 3}, {math.MaxInt64, 3},
	} {
		server := fakeStore(t)
		server.gateways = 3
		l := ledgerOf(t, server, nil)
		newcomer(l)
		look(l.store)
		server.Register(AnnounceScript, func(_ *fakevalkey.Server, _ []string) string { return fakevalkey.Int(c.told) })
		l.store.announced = time.Time{}
		look(l.store)
		if got := l.table.gateways; got != c.believed {
			t.Errorf("told of %d gateways it believes in %d, want %d", c.told, got, c.believed)
		}
		setHealth(l.store, away)
		share := (100 + c.believed - 1) / c.believed
		if allowed, _ := take(l, "client", 50, start); int64(allowed) != share {
			t.Errorf("told of %d gateways it lets %d pass alone, want %d", c.told, allowed, share)
		}
	}
}

// A server may put any word at the head of an error.
func TestWordsThatAreNoneOfOursMakeOneLogLine(t *testing.T) {
	server := fakeStore(t)
	l := ledgerOf(t, server, nil)
	newcomer(l)
	for i := 0; i < 20; i++ {
		server.refuse(keyOf("ledger", "bad", 0), "FOO"+strconv.Itoa(i)+" bar")
		l.store.turn.Lock()
		waiting := join(t, l, start, "bad", "good")
		l.store.turn.Unlock()
		if got := <-waiting[0]; !got.Allowed || got.way != Local {
			t.Errorf("bad: %+v, want allowed, local", got)
		}
		want(t, "good", waiting[1], 100, int64(i)+1)
	}
	if lines := logged.about("store ledger:"); len(lines) != 1 || !strings.Contains(lines[0], `"FOO0"`) {
		t.Errorf("log %q, want one line with the first word", lines)
	}
	if got := len(l.store.said); got != 1 {
		t.Errorf("%d troubles are kept in mind, want 1", got)
	}
}

func TestTimeBeyondAllClocksIsRefused(t *testing.T) {
	for _, c := range []struct {
		unix int64
		way  string
	}{
		{time.Date(2199, 12, 31, 23, 59, 59, 0, time.UTC).Unix(), Shared},
		{time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), Closed},
		{time.Date(2603, 10, 11, 0, 0, 0, 0, time.UTC).Unix(), Closed}, // nanoseconds count to 2262
		{math.MaxInt64, Closed},
		{-1, Closed},
	} {
		server := fakeStore(t)
		server.Handle("TIME", func(_ *fakevalkey.Server, _ []string) string {
			return fakevalkey.Array(fakevalkey.Bulk(strconv.FormatInt(c.unix, 10)), fakevalkey.Bulk("0"))
		})
		server.unix.Store(c.unix)
		s := settings("year", server)
		s.OnStoreFailure = Closed
		l := openAlone(t, s)
		for i := 0; i < 4; i++ {
			if d, way := takeAt(l, "client", time.Now()); way != c.way || d.Allowed != (c.way == Shared) {
				t.Errorf("at %d: %+v by way %s, want %s", c.unix, d, way, c.way)
			}
		}
		if calls := server.since(); c.way == Closed && len(calls) != 0 {
			t.Errorf("at %d: the calls are %+v, want none", c.unix, calls)
		}
		if lines := logged.about("store year:"); c.way == Closed && (len(lines) != 1 || !strings.Contains(lines[0], "reading the store's clock")) {
			t.Errorf("at %d: log %q, want one line", c.unix, lines)
		}
	}
}

// Nobody would close it.
func TestConnectionThatComesUpAfterTheKeeperIsClosed(t *testing.T) {
	server := fakeStore(t)
	s := settings("late", server)
	s.Store.Timeout = 50 * time.Millisecond
	s.Store.DialTimeout = time.Minute
	ctx, cancel := context.WithCancel(context.Background())
	l := New(ctx, s, start)
	l.store.keeperIdle = 0
	server.Pause() // it does not tell the time
	if way := newcomer(l); way != Local {
		t.Errorf("decided by way %s, want local", way)
	}
	cancel()
	eventually(t, "the end of the keeper", func() bool { return !keptOf(l.store) })
	eventually(t, "the connection that is coming up", func() bool { return server.Open() == 1 })
	server.Resume()
	eventually(t, "the end of a connection that nobody waits for", func() bool { return server.Open() == 0 })
	eventually(t, "another for the next request", func() bool { return newcomer(l) == Shared })
}

// The connection that was closed is not used again.
func TestNoCountOfALoneRequestCostsOneRequest(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("one", server))
	newcomer(l)
	server.Register(window.FixedScript, func(_ *fakevalkey.Server, _ []string) string { return fakevalkey.Int(0) })
	takeAt(l, "client", start)
	server.Register(window.FixedScript, server.fixed)
	if way := newcomer(l); way != Shared || healthOf(l.store) != 0 {
		t.Errorf("the next request is decided by way %s, health %d; want shared, 0", way, healthOf(l.store))
	}
}
