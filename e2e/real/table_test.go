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

// While the store is away a gateway remembers as many clients as it may and no
// more, however many come and however long their keys are; and what it remembered
// goes with its window.
func TestTableIsBoundedWhileTheStoreIsAway(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	const room, most = 65_536, 1024 // most bytes of one client
	plugin, err := host.Load(lab.Root(), io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	nobody := fmt.Sprintf("127.0.0.1:%d", lab.FreePort(t))
	quiet, _ := lab.QuietWindow(time.Now())
	for _, tt := range []struct {
		name     string
		requests int
		window   time.Duration
		key      string // what each key begins with
	}{
		{"short windows", 300_000, 3 * time.Second, ""},
		{"a day", 150_000, 24 * time.Hour, ""},
		{"long values", 2_000, quiet, strings.Repeat("k", 900<<10)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			o := shared(nobody, 5, tt.window).with("scope", strings.ReplaceAll(tt.name, " ", "-"), "maxClients", room)
			h, err := plugin.New(ctx, http.NotFoundHandler(), "quota@file", o)
			if err != nil {
				t.Fatal(err)
			}
			var slowest time.Duration
			ask := func(n int) *httptest.ResponseRecorder {
				w := httptest.NewRecorder()
				r := &http.Request{Header: http.Header{"X-Api-Key": {fmt.Sprintf("%s%d", tt.key, n)}}, RemoteAddr: "192.0.2.1:4711"}
				start := time.Now()
				h.ServeHTTP(w, r)
				slowest = max(slowest, time.Since(start))
				return w
			}
			heap := func() int64 {
				var m runtime.MemStats
				runtime.GC()
				runtime.GC()
				runtime.ReadMemStats(&m)
				return int64(m.HeapAlloc)
			}
			for n := range 100 { // until the store is known to be away
				ask(-1 - n)
			}
			before, peak := heap(), int64(0)
			slowest = 0
			start := time.Now()
			for n := range tt.requests {
				if w := ask(n); w.Code != http.StatusNotFound || w.Header().Get("X-RateLimit-Decision") != "local" {
					t.Fatalf("the first request of client %d: %d, %v", n, w.Code, w.Header())
				}
				if n%(tt.requests/10) == tt.requests/10-1 {
					peak = max(peak, heap()-before)
				}
			}
			rate := float64(tt.requests) / time.Since(start).Seconds()
			held := int64(min(room, tt.requests))
			if perClient := peak / held; perClient > most {
				t.Errorf("a client takes %d bytes, want at most %d", perClient, most)
			} else if perClient < 32 {
				t.Errorf("a client takes %d bytes, less than its identity: this measures nothing", perClient)
			}

			// The table still tells clients apart.
			key := tt.requests + 1
			first := ask(key)
			if left := first.Header().Get("X-RateLimit-Remaining"); left != "4" {
				t.Errorf("a newcomer has %s requests left, want 4", left)
			}
			after := peak
			if tt.window < time.Minute {
				// Two more windows, in which hardly anybody comes.
				for range 3 {
					time.Sleep(lab.UntilEdge(time.Now(), tt.window) + 20*time.Millisecond)
					ask(key)
				}
				after = heap() - before
				if after > peak/4 {
					t.Errorf("%d bytes are held after the windows, %d at most before", after, peak)
				}
			}
			t.Logf("%d clients, %.0f a second; %.1f MB more at most, %d bytes for each that has room, %.1f MB at the end; slowest request %s",
				tt.requests, rate, float64(peak)/1e6, peak/held, float64(after)/1e6, slowest.Round(100*time.Microsecond))
		})
	}
}
