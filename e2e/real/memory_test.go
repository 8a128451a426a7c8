package real_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/host"
	"github.com/gatequota/gatequota/e2e/lab"
)

var longPrefix = strings.Repeat("k", 8<<10-8)

// longKey returns the nth of many values of 8 KB that differ in their last bytes
// alone.
func longKey(n int) string { return longPrefix + fmt.Sprintf("%08d", n) }

// However long the value that tells a client apart, its key in the store costs the
// same.
func TestMemoryOfLongKeysInTheStore(t *testing.T) {
	t.Parallel()
	const clients, most = 2000, 256 // most bytes of one key
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	type cost struct {
		keys, length int
		bytes        int64
	}
	costs := map[string]cost{}
	for name, value := range map[string]func(n int) string{
		"short": func(n int) string { return fmt.Sprint(n) },
		"long":  longKey,
	} {
		store := lab.Valkey(t, lab.StoreOptions{})
		tr := lab.NewTraefik(t, lab.TraefikOptions{}, only(app, shared(store.Addr(), 5, window)).yaml(t))
		requests := make([]lab.Request, clients)
		for i := range requests {
			requests[i] = lab.Keyed(tr.URL, value(i))
		}
		answers := client.Burst(8, requests)
		mustBe(t, name, answers, http.StatusOK)
		mustDecide(t, name, answers, "shared")

		var c cost
		for _, key := range store.Keys() {
			bytes, err := store.Client().MemoryUsage(context.Background(), key).Result()
			if err != nil {
				t.Fatal(err)
			}
			if c.keys > 0 && (len(key) != c.length || bytes != c.bytes) {
				t.Fatalf("%s values: the key %s has %d characters and takes %d bytes, another %d and %d", name, key, len(key), bytes, c.length, c.bytes)
			}
			c = cost{c.keys + 1, len(key), bytes}
		}
		t.Logf("%s values: %d keys, each of %d characters and %d bytes of the store's memory", name, c.keys, c.length, c.bytes)
		if c.keys != clients || c.bytes > most {
			t.Errorf("%s values: %d keys of %d bytes, want %d of at most %d", name, c.keys, c.bytes, clients, most)
		}
		costs[name] = c
	}
	if costs["long"] != costs["short"] {
		t.Errorf("keys cost %+v where values are long, %+v where they are short", costs["long"], costs["short"])
	}
}

// A gateway remembers as many clients as it may and no more, and none of them
// costs much, however long its key is. Not parallel, since it measures this
// process.
func TestMemoryOfTrackedClients(t *testing.T) {
	const most = 1024 // bytes of one client
	plugin, err := host.Load(lab.Root(), io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	window, _ := lab.QuietWindow(time.Now())
	for room, clients := range map[int]int{10_000: 30_000, 65_536: 100_000} {
		t.Run(fmt.Sprint(room), func(t *testing.T) {
			o := local(1, window).with("maxClients", room, "scope", fmt.Sprint(room))
			h, err := plugin.New(context.Background(), http.NotFoundHandler(), "quota@file", o)
			if err != nil {
				t.Fatal(err)
			}
			refused := func(n int) bool {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, &http.Request{Header: http.Header{"X-Api-Key": {longKey(n)}}, RemoteAddr: "192.0.2.1:4711"})
				switch w.Code {
				case http.StatusNotFound: // let in: what comes next
					return false
				case http.StatusTooManyRequests:
					return true
				}
				t.Fatalf("client %d: status %d", n, w.Code)
				return false
			}
			heap := func() uint64 {
				var m runtime.MemStats
				runtime.GC()
				runtime.GC()
				runtime.ReadMemStats(&m)
				return m.HeapAlloc
			}
			refused(clients)
			before := heap()
			for n := range clients {
				if refused(n) {
					t.Fatalf("the first request of client %d is refused", n)
				}
			}
			after := heap()
			bytes := (int64(after) - int64(before)) / int64(room)

			// Those that came last are the likeliest to be there still. Whoever is not
			// takes the place of another.
			remembered := 0
			for n := clients - 1; n >= 0; n-- {
				if refused(n) {
					remembered++
				}
			}
			t.Logf("%d clients came, %d found themselves remembered where %d have room: %d bytes for each that has room",
				clients, remembered, room, bytes)
			if remembered > room || remembered < room/4 {
				t.Errorf("%d clients are remembered where %d have room", remembered, room)
			}
			if bytes > most {
				t.Errorf("a client takes %d bytes, want at most %d", bytes, most)
			}
			if bytes < 32 {
				t.Errorf("a client takes %d bytes, less than its identity: this measures nothing", bytes)
			}
		})
	}
}
