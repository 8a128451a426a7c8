package k6run_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/k6run"
)

const referenceScript = "../../k6/rate-limit.js"

// gateways imitates two gateways with a limiter and two replicas behind each,
// with the faults that its fields ask for.
type gateways struct {
	servers [2]*httptest.Server

	limit  int
	shared bool // one count, not one for each gateway

	reset     []string // X-RateLimit-Reset of the answers in turn; the last one stays
	replicas  int      // that answer allowed requests; 2 unless set
	broken    int      // answer this many of the run's requests with 500
	tamper    func(http.Header, int)
	replicaOf func(key string, n int) int

	mu     sync.Mutex
	counts map[string]int // by gateway and key, or by key
	total  int
}

func start(t *testing.T, g *gateways) *gateways {
	t.Helper()
	g.counts = map[string]int{}
	if g.replicas == 0 {
		g.replicas = 2
	}
	if g.limit == 0 {
		g.limit = 100
	}
	if g.reset == nil {
		g.reset = []string{"60"}
	}
	for i := range g.servers {
		g.servers[i] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			g.answer(w, r, i)
		}))
		t.Cleanup(g.servers[i].Close)
	}
	return g
}

func (g *gateways) answer(w http.ResponseWriter, r *http.Request, gateway int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.total++

	key := r.Header.Get("X-Api-Key")
	counter := key
	if !g.shared {
		counter = fmt.Sprint(gateway, key)
	}
	g.counts[counter]++
	count := g.counts[counter]

	reset := g.reset[0]
	if len(g.reset) > 1 {
		g.reset = g.reset[1:]
	}
	remaining := max(g.limit-count, 0)
	header := w.Header()
	header.Set("RateLimit-Policy", `"apikey";q=100;w=60`)
	header.Set("RateLimit", fmt.Sprintf(`"apikey";r=%d;t=%s`, remaining, reset))
	header.Set("X-RateLimit-Limit", "100")
	header.Set("X-RateLimit-Remaining", fmt.Sprint(remaining))
	header.Set("X-RateLimit-Reset", reset)

	probe := strings.Contains(key, "-probe-")
	status := http.StatusOK
	switch {
	case !probe && g.broken > 0:
		g.broken--
		status = http.StatusInternalServerError
	case count > g.limit:
		status = http.StatusTooManyRequests
		header.Set("Retry-After", reset)
	case !probe && g.replicaOf != nil:
		header.Set("X-Instance-ID", fmt.Sprint("replica-", g.replicaOf(key, count)))
	default:
		header.Set("X-Instance-ID", fmt.Sprint("replica-", g.total%g.replicas))
	}
	if g.tamper != nil && !probe {
		g.tamper(header, status)
	}
	w.WriteHeader(status)
}

// slept collects how long the script asked to wait, instead of waiting.
type slept struct {
	mu     sync.Mutex
	waited []time.Duration
}

func (s *slept) sleep(ctx context.Context, d time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waited = append(s.waited, d)
	return ctx.Err()
}

func runReference(t *testing.T, g *gateways, mode string) (*k6run.Result, string, *slept, error) {
	t.Helper()
	var log bytes.Buffer
	clock := &slept{}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	result, err := k6run.Run(ctx, k6run.Options{
		Script: referenceScript,
		Env: map[string]string{
			"GATEWAYS": g.servers[0].URL + "," + g.servers[1].URL,
			"MODE":     mode,
		},
		Log:   &log,
		Sleep: clock.sleep,
	})
	return result, log.String(), clock, err
}

func TestReferenceExperimentPassesOnExactLimits(t *testing.T) {
	tests := []struct {
		mode              string
		allowed, rejected int
	}{
		{"shared", 100, 150},
		{"local", 200, 50},
	}
	for _, test := range tests {
		t.Run(test.mode, func(t *testing.T) {
			g := start(t, &gateways{shared: test.mode == "shared"})
			result, log, _, err := runReference(t, g, test.mode)
			if err != nil {
				t.Fatal(err)
			}
			if !result.Passed() {
				t.Errorf("did not pass: %+v\n%s", result.Thresholds, log)
			}
			for metric, want := range map[string]int{
				"iterations": 250, "allowed": test.allowed, "rejected": test.rejected,
				"unexpected": 0, "after_window": 0, "instance_requests": test.allowed,
			} {
				if got := result.Count(metric); got != want {
					t.Errorf("%s is %d, want %d", metric, got, want)
				}
			}
			if result.Metrics["http_req_failed"] != 0 {
				t.Errorf("refusals count as failed requests: %v", result.Metrics["http_req_failed"])
			}
			if each := result.Count("instance_requests{replica:1}"); each+result.Count("instance_requests{replica:2}") != test.allowed {
				t.Errorf("the replicas do not add up: %v", result.Metrics)
			}
		})
	}
}

// A run whose gateways are wrong must fail, and by the threshold that tells why.
func TestReferenceExperimentFailsWhereTheGatewaysAreWrong(t *testing.T) {
	tests := map[string]struct {
		gateways *gateways
		mode     string
		failing  []string
	}{
		"one too many": {
			&gateways{shared: true, limit: 101}, "shared", []string{"allowed", "checks", "rejected"},
		},
		"one too few": {
			&gateways{shared: true, limit: 99}, "shared", []string{"allowed", "rejected"},
		},
		"no limit at all": {
			&gateways{shared: true, limit: 1000}, "shared", []string{"allowed", "checks", "rejected"},
		},
		"a count for each gateway where one was asked for": {
			&gateways{}, "shared", []string{"allowed", "rejected"},
		},
		"one count where each gateway was to have its own": {
			&gateways{shared: true}, "local", []string{"allowed", "rejected"},
		},
		"an error": {
			&gateways{shared: true, broken: 1}, "shared", []string{"allowed", "checks", "unexpected"},
		},
		"no Retry-After": {
			&gateways{shared: true, tamper: func(h http.Header, _ int) { h.Del("Retry-After") }}, "shared", []string{"checks"},
		},
		"a Retry-After beyond the window": {
			&gateways{shared: true, tamper: func(h http.Header, status int) {
				if status == http.StatusTooManyRequests {
					h.Set("Retry-After", "61")
				}
			}}, "shared", []string{"checks"},
		},
		"no RateLimit": {
			&gateways{shared: true, tamper: func(h http.Header, _ int) { h.Del("RateLimit") }}, "shared", []string{"checks"},
		},
		"another policy": {
			&gateways{shared: true, tamper: func(h http.Header, _ int) { h.Set("RateLimit-Policy", `"apikey";q=100;w=1`) }}, "shared", []string{"checks"},
		},
		"fields that contradict each other": {
			&gateways{shared: true, tamper: func(h http.Header, _ int) { h.Set("X-RateLimit-Remaining", "7") }}, "shared", []string{"checks"},
		},
		"a refusal by the application": {
			&gateways{shared: true, tamper: func(h http.Header, _ int) { h.Set("X-Instance-ID", "replica-0") }}, "shared", []string{"checks", "instance_requests{replica:2}"},
		},
		"a replica that gets nothing": {
			&gateways{shared: true, replicaOf: func(string, int) int { return 0 }}, "shared", []string{"instance_requests{replica:2}"},
		},
		"an unknown replica": {
			&gateways{shared: true, replicaOf: func(_ string, n int) int { return n % 3 }}, "shared", []string{"unexpected"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			result, log, _, err := runReference(t, start(t, test.gateways), test.mode)
			if err != nil {
				t.Fatal(err)
			}
			if result.Passed() {
				t.Error("the run passed")
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

func TestReferenceExperimentWaitsForAWindowThatIsLongEnough(t *testing.T) {
	// Two probes find the replicas of each gateway, two ask what is left.
	g := start(t, &gateways{shared: true, reset: []string{"9", "9", "9", "9", "9", "3", "60"}})
	result, log, clock, err := runReference(t, g, "shared")
	if err != nil {
		t.Fatal(err)
	}
	if !result.Passed() {
		t.Errorf("did not pass: %+v", result.Thresholds)
	}
	// The gateway that has the least left decides.
	if want := []time.Duration{4 * time.Second}; fmt.Sprint(clock.waited) != fmt.Sprint(want) {
		t.Errorf("waited %v, want %v", clock.waited, want)
	}
	if !strings.Contains(log, "3 s of the window are left, 15 are needed") {
		t.Errorf("it does not say why it waits:\n%s", log)
	}
}

func TestReferenceExperimentEndsInItsSetUp(t *testing.T) {
	t.Run("without a limiter", func(t *testing.T) {
		_, _, _, err := runReference(t, start(t, &gateways{reset: []string{""}}), "shared")
		if err == nil || !strings.Contains(err.Error(), "is the limiter on this route?") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("without the second replica", func(t *testing.T) {
		_, _, _, err := runReference(t, start(t, &gateways{replicas: 1}), "shared")
		if err == nil || !strings.Contains(err.Error(), "reached 1 of 2 instances") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("with a mode that does not exist", func(t *testing.T) {
		_, _, _, err := runReference(t, start(t, &gateways{}), "global")
		if err == nil || !strings.Contains(err.Error(), `MODE is "global"`) {
			t.Errorf("got %v", err)
		}
	})
}
