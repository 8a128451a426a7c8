package limiter

import (
	"testing"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
)

func TestOutlyingClockReadingsAreDiscarded(t *testing.T) {
	s := newStore(&StoreSettings{}, &ledger{})
	for i, c := range []struct{ origin, roundTrip, want time.Duration }{
		{10 * time.Second, time.Millisecond, 10 * time.Second},
		{10*time.Second + 400*time.Millisecond, 500 * time.Millisecond, 10 * time.Second},
		{10*time.Second + 1, 2 * time.Millisecond, 10*time.Second + 1},
		{10*time.Second + 90*time.Millisecond, 100 * time.Millisecond, 10*time.Second + 1},
		{10*time.Second + 8*time.Millisecond, 9 * time.Millisecond, 10*time.Second + 8*time.Millisecond}, // slower since, and believed
		{12 * time.Second, 500 * time.Millisecond, 12 * time.Second},                                     // slow, but that is no reason: it is another clock
		{-time.Hour, time.Microsecond, -time.Hour},                                                       // the store's clock was set
	} {
		learnClock(s, int64(c.origin), c.roundTrip)
		if got := time.Duration(s.origin); got != c.want {
			t.Errorf("reading %d: origin %s, want %s", i, got, c.want)
		}
	}
}

func TestUserWithoutTimeIsToldOnce(t *testing.T) {
	store := fakeStore(t)
	store.Handle("TIME", func(_ *fakevalkey.Server, _ []string) string {
		return fakevalkey.Error("NOPERM User limiter has no permissions to run the 'time' command")
	})
	store.unix.Store(0)
	l := open(t, settings("no time", store))
	for i := 0; i < 3; i++ {
		if d, way := takeAt(l, "client", start); !d.Allowed || way != Shared || d.Reset != 30 {
			t.Errorf("request %d: %+v by way %s, want allowed in a window of our own clock, shared", i+1, d, way)
		}
		store.CloseConnections()
		hangUp(l.store)
	}
	if lines := logged.about("refuses TIME"); len(lines) != 1 {
		t.Errorf("log %q, want one line", lines)
	}
}

func TestClockIsReadAgainWhenItIsOld(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("age", server))
	reads := func() (n int) {
		for _, command := range server.Commands() {
			if command.Args[0] == "TIME" {
				n++
			}
		}
		return n
	}
	take(l, "client", 3, start)
	look(l.store)
	if got := reads(); got != 1 {
		t.Errorf("the clock was read %d times for three requests, want once", got)
	}
	server.Advance(time.Hour)
	l.store.mu.Lock()
	l.store.clockRead = l.store.clockRead.Add(-clockAge)
	l.store.mu.Unlock()
	look(l.store)
	if got := reads(); got != 2 {
		t.Errorf("the clock was read %d times, want once more", got)
	}
	if d, way := takeAt(l, "client", start); way != Shared || d.Remaining != 4 {
		t.Errorf("%+v by way %s, want the first in a window of the new time", d, way)
	}
}
