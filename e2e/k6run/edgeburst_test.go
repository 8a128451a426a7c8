package k6run_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/k6run"
	"github.com/gatequota/gatequota/window"
)

const edgeScript = "../../k6/edge-burst.js"

// edgeWindow is the length of a window, in seconds.
const edgeWindow = 10

// limiters imitates two gateways that count together, by a clock which moves only when
// the script sleeps, with the faults that its fields ask for.
type limiters struct {
	servers [2]*httptest.Server

	algorithm window.Algorithm
	limit     int64
	ahead     time.Duration // of the store's clock
	slow      time.Duration // what a request of the run takes
	broken    int           // answer this many of the run's requests with 500
	absent    bool          // answer every request with 404
	tamper    func(http.Header)

	mu      sync.Mutex
	now     time.Time
	counts  *window.FixedCounts
	entries *window.Entries
}

func startLimiters(t *testing.T, g *limiters) *limiters {
	t.Helper()
	if g.limit == 0 {
		g.limit = 100
	}
	const clients = 1000
	switch g.algorithm {
	case window.Fixed:
		g.counts = window.NewFixedCounts(edgeWindow, clients)
	case window.Sliding:
		g.counts = window.NewSlidingCounts(edgeWindow, clients)
	default:
		g.entries = window.NewEntries(g.algorithm == window.Exact, clients)
	}
	g.now = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	for i := range g.servers {
		g.servers[i] = httptest.NewServer(http.HandlerFunc(g.answer))
		t.Cleanup(g.servers[i].Close)
	}
	return g
}

func (g *limiters) clock() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now
}

func (g *limiters) sleep(ctx context.Context, d time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now = g.now.Add(d)
	return ctx.Err()
}

func (g *limiters) answer(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := r.Header.Get("X-Api-Key")
	probe := strings.Contains(key, "-probe-")
	if !probe {
		g.now = g.now.Add(g.slow)
	}
	if g.absent {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if !probe && g.broken > 0 {
		g.broken--
		w.WriteHeader(http.StatusInternalServerError)
		return
	}

	now := g.now.Add(g.ahead).UnixMilli()
	limit := &window.Limit{Algorithm: g.algorithm, Limit: g.limit, Length: edgeWindow, Burst: g.limit}
	account := &window.Account{}
	switch g.algorithm {
	case window.Fixed:
		account.Running = window.FixedFind(g.counts, key, now/1000)
	case window.Sliding:
		account.Running, account.Before = window.SlidingFind(g.counts, key, now/1000)
	default:
		account.Entry = window.EntryFind(g.entries, key, now)
	}
	d := &window.Decision{}
	window.Take([]*window.Limit{limit}, []*window.Account{account}, 1, now, d)

	header := w.Header()
	header.Set("RateLimit-Policy", `"apikey";q=100;w=10`)
	header.Set("X-RateLimit-Decision", "shared")
	header.Set("X-RateLimit-Reset", strconv.FormatInt(d.Reset, 10))
	if !d.Allowed {
		header.Set("Retry-After", strconv.FormatInt(d.RetryAfter, 10))
	}
	if g.tamper != nil {
		g.tamper(header)
	}
	if !d.Allowed {
		w.WriteHeader(http.StatusTooManyRequests)
	}
}

// runEdge runs the script with one user: whoever sleeps moves the clock of all.
func runEdge(t *testing.T, g *limiters, algorithm string, env ...string) (*k6run.Result, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	all := map[string]string{
		"GATEWAYS":       g.servers[0].URL + "," + g.servers[1].URL,
		"ALGORITHM":      algorithm,
		"WINDOW_SECONDS": strconv.Itoa(edgeWindow),
		"VUS":            "1",
	}
	for _, pair := range env {
		name, value, _ := strings.Cut(pair, "=")
		all[name] = value
	}
	var log bytes.Buffer
	result, err := k6run.Run(ctx, k6run.Options{Script: edgeScript, Env: all, Log: &log, Sleep: g.sleep, Now: g.clock})
	return result, log.String(), err
}

var algorithmNames = []string{"fixed-window", "sliding-window", "sliding-log", "token-bucket"}

func TestEdgeBurstShowsWhatEachAlgorithmLetsPass(t *testing.T) {
	// The second half begins some 60 ms after the edge, and more than a second after the
	// first.
	wants := [][2]int{{100, 100}, {100, 1}, {100, 0}, {100, 10}}
	for i, name := range algorithmNames {
		// The clocks of the store and of the script need not agree; three seconds ahead, the next
		// edge is too near.
		for _, ahead := range []time.Duration{0, 1234567 * time.Millisecond, 3 * time.Second, -3 * time.Second} {
			t.Run(fmt.Sprintf("%s, %s ahead", name, ahead), func(t *testing.T) {
				g := startLimiters(t, &limiters{algorithm: window.Algorithm(i), ahead: ahead})
				result, log, err := runEdge(t, g, name)
				if err != nil {
					t.Fatal(err)
				}
				if !result.Passed() {
					t.Errorf("did not pass: %+v\n%s", result.Thresholds, log)
				}
				for metric, want := range map[string]int{
					"iterations": 250, "allowed{side:before}": wants[i][0], "allowed{side:after}": wants[i][1],
					"rejected": 250 - wants[i][0] - wants[i][1], "unexpected": 0, "misplaced": 0,
				} {
					if got := result.Count(metric); got != want {
						t.Errorf("%s is %d, want %d", metric, got, want)
					}
				}
			})
		}
	}
}

// A run that shows something else must fail, and by the threshold that tells what.
func TestEdgeBurstFailsWhereTheGatewaysAreWrong(t *testing.T) {
	const before, after = "allowed{side:before}", "allowed{side:after}"
	tests := map[string]struct {
		limiters  *limiters
		algorithm string
		failing   []string
	}{
		"fixed where sliding was asked for": {&limiters{}, "sliding-window", []string{after}},
		"sliding where fixed was asked for": {&limiters{algorithm: window.Sliding}, "fixed-window", []string{after}},
		"a bucket where a log was asked for": {
			&limiters{algorithm: window.Bucket}, "sliding-log", []string{after},
		},
		"one too many": {&limiters{limit: 101}, "fixed-window", []string{after, before}},
		"one too few":  {&limiters{limit: 99, algorithm: window.Sliding}, "sliding-window", []string{before}},
		"an error":     {&limiters{broken: 1}, "fixed-window", []string{"checks", "unexpected"}},
		"no Retry-After": {
			&limiters{tamper: func(h http.Header) { h.Del("Retry-After") }}, "fixed-window", []string{"checks"},
		},
		"a Retry-After of nothing": {
			&limiters{tamper: func(h http.Header) { h.Set("Retry-After", "0") }}, "fixed-window", []string{"checks"},
		},
		"another policy": {
			&limiters{tamper: func(h http.Header) { h.Set("RateLimit-Policy", `"apikey";q=100;w=60`) }}, "fixed-window", []string{"checks"},
		},
		"a gateway that counts alone": {
			&limiters{tamper: func(h http.Header) { h.Set("X-RateLimit-Decision", "local") }}, "fixed-window", []string{"checks"},
		},
		"gateways that are too slow": {
			&limiters{algorithm: window.Exact, slow: 9 * time.Millisecond}, "sliding-log", []string{"misplaced"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			result, log, err := runEdge(t, startLimiters(t, test.limiters), test.algorithm)
			if err != nil {
				t.Fatal(err)
			}
			var failing []string
			for _, threshold := range result.Thresholds {
				if !threshold.OK {
					failing = append(failing, threshold.Metric)
				}
			}
			if fmt.Sprint(failing) != fmt.Sprint(test.failing) {
				t.Errorf("failing thresholds %v, want %v\n%s", failing, test.failing, log)
			}
		})
	}
}

func TestEdgeBurstEndsInItsSetUp(t *testing.T) {
	tests := map[string]struct {
		limiters  *limiters
		algorithm string
		env       string
		want      string
	}{
		"without a gateway": {&limiters{absent: true}, "fixed-window", "", "does not answer with 200"},
		"without a limiter": {
			&limiters{tamper: func(h http.Header) { h.Del("X-RateLimit-Reset") }}, "fixed-window", "", "is the limiter on this route?",
		},
		"without edges":           {&limiters{algorithm: window.Exact}, "sliding-window", "", "stays at 10"},
		"of an unknown algorithm": {&limiters{}, "leaky-bucket", "", `ALGORITHM is "leaky-bucket"`},
		"in too short a window":   {&limiters{}, "fixed-window", "WINDOW_SECONDS=3", "WINDOW_SECONDS is 3"},
		"with too few requests":   {&limiters{}, "fixed-window", "REQUESTS=100", "REQUESTS is 100"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, _, err := runEdge(t, startLimiters(t, test.limiters), test.algorithm, test.env)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
