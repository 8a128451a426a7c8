package real_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/host"
	"github.com/gatequota/gatequota/e2e/lab"
)

// lateLane is one alternation of heavy and fresh clients, through a plugin's
// connection of its own and a proxy that delays the replies.
type lateLane struct {
	t      *testing.T
	plugin *host.Plugin
	store  *lab.Store
	proxy  *lab.Proxy
	random *rand.Rand
	scope  string
	window time.Duration

	timeout time.Duration // of the connections that are made from now on

	strict, unlimited http.Handler
	end               context.CancelFunc // of these handlers
	newcomers         int
	connections       int // that were made over earlier proxies
}

const (
	// lateTimeout is the time-out at first, and mostTimeout what it may become on a
	// machine that is too slow for it.
	lateTimeout = 20 * time.Millisecond
	mostTimeout = 8 * lateTimeout
	lateLimit   = 100
	heavyCount  = 1_000_000         // of each heavy client, before its first request
	whaleLimit  = 1_000_000_000_000 // of the route on which nobody is refused
	whaleCount  = 500_000_000_000   // of the one client of that route, at the beginning
)

// connect makes handlers whose connection, and whose knowledge of the store's
// health and of clients, nobody else has, and waits until they count in the store.
// It reports whether they do. Where answers that nobody delays come too late time and
// again, the machine is slow, and the lane gives it more time from then on.
func (l *lateLane) connect() bool {
	end := time.Now().Add(time.Minute)
	for attempt := 1; time.Now().Before(end); attempt++ {
		l.leave()
		l.proxy = lab.NewProxy(l.t, l.store.Addr())
		var ctx context.Context
		ctx, l.end = context.WithCancel(context.Background())
		o := shared(l.proxy.Addr(), lateLimit, l.window).with("scope", l.scope, "valkey.timeout", l.timeout.String())
		for _, each := range []struct {
			handler *http.Handler
			options options
		}{{&l.strict, o}, {&l.unlimited, o.with("scope", l.scope+"-unlimited", "limit", strconv.Itoa(whaleLimit))}} {
			h, err := l.plugin.New(ctx, http.NotFoundHandler(), "quota@file", each.options)
			if err != nil {
				l.t.Error(err)
				return false
			}
			*each.handler = h
		}
		if l.counts() {
			return true
		}
		if attempt%5 == 0 {
			l.timeout = min(2*l.timeout, mostTimeout)
		}
		time.Sleep(l.timeout)
	}
	l.t.Errorf("%s: the store does not count", l.scope)
	return false
}

// counts reports whether the store, without any delay, counts.
func (l *lateLane) counts() bool {
	l.proxy.Set(lab.Faults{})
	for range 3 {
		l.newcomers++
		if l.ask(l.strict, fmt.Sprintf("newcomer-%d", l.newcomers)).Header.Get("X-RateLimit-Decision") == "shared" {
			return true
		}
	}
	return false
}

// leave ends the handlers and closes what leads to them.
func (l *lateLane) leave() {
	if l.proxy != nil {
		l.end()
		l.connections += l.proxy.Accepted()
		l.proxy.Close()
		l.proxy.Cut()
	}
}

// ask returns the answer to a request; what comes behind the limiter answers 404.
func (l *lateLane) ask(h http.Handler, key string) lab.Answer {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, &http.Request{Header: http.Header{"X-Api-Key": {key}}, RemoteAddr: "192.0.2.1:4711"})
	return lab.Answer{Status: w.Code, Header: w.Header()}
}

// Heavy clients, far over their limit, and fresh ones take turns at one
// connection, while the replies to the heavy ones arrive around the time-out: a
// little before it, or after it, when the fresh one is already waiting. Nobody
// ever gets what was meant for another.
//
// A client that is known to be over its limit is refused without the store. So
// each heavy client is another one, whose count only the store knows; and every
// other time it is always the same, on a route where its count, which is like no
// other, is far below the limit.
func TestLateAnswersReachNobodyElse(t *testing.T) {
	if !ownProcess(t) {
		return
	}
	const lanes, alternations = 16, 10_000
	store := lab.Valkey(t, lab.StoreOptions{})
	window, id := lab.QuietWindow(time.Now())

	ctx := context.Background()
	pipe := store.Client().Pipeline()
	for n := range lanes {
		for i := range alternations / lanes {
			pipe.Set(ctx, keyOf(fmt.Sprintf("lane-%d", n), fmt.Sprintf("heavy-%d", i), id), heavyCount, time.Hour)
		}
		pipe.Set(ctx, keyOf(fmt.Sprintf("lane-%d-unlimited", n), "whale", id), whaleCount, time.Hour)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}

	// An interpreter each, as if they were gateways. To load them all takes the machine
	// a while.
	all := make([]*lateLane, lanes)
	for n := range all {
		plugin, err := host.Load(lab.Root(), io.Discard, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		all[n] = &lateLane{t: t, plugin: plugin, store: store, timeout: lateTimeout,
			random: rand.New(rand.NewPCG(1, uint64(n))), scope: fmt.Sprintf("lane-%d", n), window: window}
	}

	var late, met, connections atomic.Int64
	timeouts := make([]time.Duration, lanes)
	var wg sync.WaitGroup
	for n, l := range all {
		wg.Go(func() {
			if !l.connect() {
				return
			}
			last := whaleLimit - whaleCount
			for i := range alternations / lanes {
				if t.Failed() {
					return
				}
				l.proxy.Set(lab.Faults{Delay: l.around(0.8, 1.5)})
				var heavy lab.Answer
				if i%2 == 0 {
					heavy = l.ask(l.strict, fmt.Sprintf("heavy-%d", i))
					if way := heavy.Header.Get("X-RateLimit-Decision"); way == "shared" && heavy.Status != http.StatusTooManyRequests {
						t.Errorf("lane %d: heavy client %d, counted %d times, got %d, %v", n, i, heavyCount, heavy.Status, heavy.Header)
					}
				} else {
					heavy = l.ask(l.unlimited, "whale")
					if way, left := heavy.Header.Get("X-RateLimit-Decision"), heavy.Number("X-RateLimit-Remaining"); way == "shared" && (left >= last || left < last-alternations) {
						t.Errorf("lane %d: the client with %d left at most was told %d", n, last-1, left)
					} else if way == "shared" {
						last = left
					}
				}
				// The fresh one's own replies, of which a new connection takes two, come in
				// time, in most cases after the late one.
				l.proxy.Set(lab.Faults{Delay: l.around(0, 0.25)})
				fresh := l.ask(l.strict, fmt.Sprintf("fresh-%d", i))
				way, left := fresh.Header.Get("X-RateLimit-Decision"), fresh.Number("X-RateLimit-Remaining")
				if fresh.Status != http.StatusNotFound || left < 0 || left >= lateLimit || way == "shared" && left != lateLimit-1 {
					t.Errorf("lane %d: the first request of client %d got %d, %v", n, i, fresh.Status, fresh.Header)
				}
				if heavy.Header.Get("X-RateLimit-Decision") != "shared" {
					late.Add(1)
					if way == "shared" {
						met.Add(1)
					}
				}
				// Where the store is spared now there is no time to wait for the end of that.
				if way != "shared" && !l.counts() && !l.connect() {
					return
				}
			}
			l.leave()
			connections.Add(int64(l.connections))
			timeouts[n] = l.timeout
		})
	}
	wg.Wait()
	t.Logf("%d alternations: %d answers to heavy clients came late, after %d of them the fresh one was counted in the store; %d connections; the longest time-out became %s",
		alternations, late.Load(), met.Load(), connections.Load(), slices.Max(timeouts))
	if met.Load() < alternations/100 {
		t.Errorf("a fresh client was counted after %d late answers only: this shows nothing", met.Load())
	}

	// Nothing was sent twice, and nothing was counted for somebody else.
	values := func(prefix string) map[string]int {
		counts := map[string]int{}
		var keys []string
		for n := range lanes {
			for i := range alternations / lanes {
				keys = append(keys, keyOf(fmt.Sprintf("lane-%d", n), fmt.Sprintf("%s-%d", prefix, i), id))
			}
		}
		got, err := store.Client().MGet(ctx, keys...).Result()
		if err != nil {
			t.Fatal(err)
		}
		for i, value := range got {
			if text, ok := value.(string); ok {
				counts[keys[i]], _ = strconv.Atoi(text)
			}
		}
		return counts
	}
	for prefix, most := range map[string]int{"heavy": heavyCount + 1, "fresh": 1} {
		for key, count := range values(prefix) {
			if count > most {
				t.Errorf("%s: the store has counted %s to %d, want %d at most", prefix, key, count, most)
			}
		}
	}
}

// around returns a random time between two multiples of the time-out.
func (l *lateLane) around(low, high float64) time.Duration {
	return time.Duration(float64(l.timeout) * (low + (high-low)*l.random.Float64()))
}
