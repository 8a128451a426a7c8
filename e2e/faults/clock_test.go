package faults_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/traefik/yaegi/interp"

	"github.com/gatequota/gatequota/e2e/host"
	"github.com/gatequota/gatequota/e2e/lab"
)

// skew returns a time as a wall clock reads it that is wrong by whole seconds. The
// monotonic clock's reading in it stays right, since setting a machine's clock does
// not touch that; no function of package time changes the one without the other.
func skew(t time.Time, by time.Duration) time.Time {
	// The first word holds the seconds above 30 bits of nanoseconds.
	*(*uint64)(unsafe.Pointer(&t)) += uint64(by/time.Second) << 30
	return t
}

// skewed starts the plugin, interpreted, on a machine whose clock is wrong.
func skewed(t *testing.T, by time.Duration) *host.Plugin {
	t.Helper()
	if now := time.Now(); skew(now, by).Round(0).Sub(now.Round(0)) != by || skew(now, by).Sub(now) != 0 {
		t.Fatal("the clock is not wrong by as much as it should be")
	}
	wrong := interp.Exports{"time/time": {"Now": reflect.ValueOf(func() time.Time { return skew(time.Now(), by) })}}
	plugin, err := host.Load(lab.Root(), io.Discard, io.Discard, wrong)
	if err != nil {
		t.Fatal(err)
	}
	return plugin
}

// Gateways whose clocks are 10 s apart agree on the window and on its end within a
// second, with the store and without it.
func TestGatewaysWithWrongClocksAgree(t *testing.T) {
	const limit = 1000
	s := newSite(t, plan{timeout: 5 * time.Second, routes: map[string]options{"local": {"limit": limit}}})
	s.await("local", "shared")
	app := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	wrong := map[time.Duration]string{}
	for _, by := range []time.Duration{10 * time.Second, -10 * time.Second} {
		handler, err := skewed(t, by).New(context.Background(), app, "local@file", s.middleware(0, "local", nil))
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		wrong[by] = server.URL
	}
	agree := func(way string) {
		t.Helper()
		for by, url := range wrong {
			for range 5 {
				right, other := s.client.Get(s.request(0, "local", "key")), s.client.Get(lab.Keyed(url, "key"))
				mustBe(t, way, lab.Answers{right, other}, way, http.StatusOK)
				end := time.Unix((s.id+1)*int64(s.window/time.Second), 0)
				for _, a := range []lab.Answer{right, other} {
					told := a.At.Add(time.Duration(a.Number("X-RateLimit-Reset")) * time.Second)
					if off := told.Sub(end); off < -time.Second-a.Took || off > time.Second+a.Took {
						t.Errorf("clock wrong by %v: the window ends %v from when an answer says", by, off)
					}
				}
			}
		}
	}
	agree("shared")
	if got := s.count(s.store, "local", "key"); got != 20 {
		t.Errorf("the store counts %d in the window, want 20", got)
	}
	s.store.Kill()
	s.await("local", "local")
	for _, url := range wrong {
		lab.Until(t, "the gateway notices", func() bool {
			return decision(s.client.Get(lab.Keyed(url, time.Now().String()))) == "local"
		})
	}
	agree("local")
}
