// Package real_test shows what the plugin does inside real gateways, over a real
// store, with real faults between them. Every test starts parts of its own.
package real_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"sort"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// keyOf returns the key in the store that counts a client by its API key.
func keyOf(scope, apiKey string, window int64) string {
	digest := sha256.Sum256([]byte(apiKey))
	return fmt.Sprintf("rate:%s:{%s}:%d", scope, hex.EncodeToString(digest[:]), window)
}

// mustHaveRemaining fails the test unless the allowed answers were told
// limit-1, limit-2, ... 0 requests remaining, each once.
func mustHaveRemaining(t testing.TB, what string, as lab.Answers, limit int) {
	t.Helper()
	var told []int
	for _, a := range as {
		if a.Status == http.StatusOK {
			told = append(told, a.Number("X-RateLimit-Remaining"))
		}
	}
	sort.Sort(sort.Reverse(sort.IntSlice(told)))
	if len(told) != limit {
		t.Fatalf("%s: %d allowed, want %d; %s", what, len(told), limit, as.Tally())
	}
	for i, n := range told {
		if n != limit-1-i {
			t.Fatalf("%s: the allowed requests were told %v remaining", what, told)
		}
	}
}

func TestTwoGatewaysAllowExactlyTheLimit(t *testing.T) {
	const limit, concurrent, rounds = 100, 500, 20
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 2), lab.NewClient(t)
	window, id := lab.QuietWindow(time.Now())
	_, urls := gateways(t, 2, lab.TraefikOptions{}, only(app, shared(store.Addr(), limit, window).with("scope", "apikey")))

	for round := range rounds {
		key := fmt.Sprintf("one-%d", round)
		before := app.Hits()
		answers := client.Burst(concurrent, lab.Alternate(concurrent, key, urls...))
		mustBe(t, key, answers, http.StatusOK, http.StatusTooManyRequests)
		mustDecide(t, key, answers, "shared")
		mustHaveRemaining(t, key, answers, limit)
		if got := app.Hits() - before; got != limit {
			t.Errorf("%s: %d requests reached the application, want %d", key, got, limit)
		}

		// Five clients at once, each with a count of its own.
		var requests []lab.Request
		for i := range 5 * 2 * limit {
			requests = append(requests, lab.Keyed(urls[i/5%2], fmt.Sprintf("five-%d-%d", round, i%5)))
		}
		before = app.Hits()
		answers = client.Burst(concurrent, requests)
		mustBe(t, "five clients", answers, http.StatusOK, http.StatusTooManyRequests)
		for c := range 5 {
			var own lab.Answers
			for i := c; i < len(answers); i += 5 {
				own = append(own, answers[i])
			}
			mustHaveRemaining(t, fmt.Sprintf("client %d of five", c), own, limit)
		}
		if got := app.Hits() - before; got != 5*limit {
			t.Errorf("round %d: %d requests of five clients reached the application, want %d", round, got, 5*limit)
		}
	}

	ctx := context.Background()
	for round := range rounds {
		key := keyOf("apikey", fmt.Sprintf("one-%d", round), id)
		count, err := store.Client().Get(ctx, key).Int()
		if err != nil || count <= limit || count > concurrent {
			t.Errorf("%s holds %d, %v", key, count, err)
		}
		left := time.Until(time.Unix(0, (id+1)*int64(window)))
		if ttl := store.Client().PTTL(ctx, key).Val(); ttl <= 0 || ttl > left+time.Second {
			t.Errorf("%s expires in %v, the window ends in %v", key, ttl, left)
		}
	}
	if got := len(store.Keys()); got != rounds*6 {
		t.Errorf("the store holds %d keys, want one for each of %d clients", got, rounds*6)
	}
	if stay := store.WithoutExpiry(); len(stay) > 0 {
		t.Errorf("keys without expiry: %q", stay)
	}
}

func TestBurstAcrossAnEdgeGetsTheLimitOfEachWindow(t *testing.T) {
	const limit, window = 100, 6 * time.Second
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 2), lab.NewClient(t)
	_, urls := gateways(t, 2, lab.TraefikOptions{}, only(app, shared(store.Addr(), limit, window)))
	mustBe(t, "first", client.Burst(2, lab.Alternate(2, "first", urls...)), http.StatusOK)

	lab.AwaitBefore(window, time.Second)
	first := time.Now().UnixNano() / int64(window)
	const workers = 8
	load := client.Steady(t, workers, time.Millisecond, func(n int) lab.Request {
		return lab.Keyed(urls[n/workers%2], "burst")
	})
	sent := map[int64]int{}
	lab.Until(t, "the burst has gone far beyond the limit on both sides of the edge", func() bool {
		clear(sent)
		for _, a := range load.Since(0) {
			sent[a.Window(window)]++
		}
		return sent[first+1] >= 2*limit
	})
	answers := load.Stop()
	mustBe(t, "burst", answers, http.StatusOK, http.StatusTooManyRequests)
	mustDecide(t, "burst", answers, "shared")
	if sent[first] < 2*limit {
		t.Fatalf("only %d answers before the edge", sent[first])
	}
	clear(sent)
	allowed := map[int64]int{}
	for _, a := range answers {
		sent[a.Window(window)]++
		if a.Status == http.StatusOK {
			allowed[a.Window(window)]++
		}
	}
	t.Logf("answers per window: %v, allowed: %v", sent, allowed)
	for id, n := range sent {
		if want := min(n, limit); allowed[id] != want {
			t.Errorf("window %d: %d of %d allowed, want %d", id, allowed[id], n, want)
		}
	}
}

func TestLimitsAreExactToTheLastRequest(t *testing.T) {
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	proxy := lab.NewProxy(t, store.Addr())
	window, _ := lab.QuietWindow(time.Now())
	limits := []int{1, 2, 50}
	config := func(endpoint string) setup {
		middlewares := map[string]options{}
		for _, limit := range limits {
			// Whether a gateway has learnt of the other by the time that it is alone is chance.
			middlewares[fmt.Sprintf("n%d", limit)] = shared(endpoint, limit, window).with("fallback.gateways", 1)
		}
		return each(app, middlewares)
	}
	a := lab.NewTraefik(t, lab.TraefikOptions{}, config(store.Addr()).yaml(t))
	b := lab.NewTraefik(t, lab.TraefikOptions{}, config(proxy.Addr()).yaml(t))

	for _, limit := range limits {
		path := fmt.Sprintf("/n%d", limit)

		answers := client.Sequence(lab.Alternate(limit+3, "sequence", a.URL+path, b.URL+path))
		for i, answer := range answers {
			status, remaining := http.StatusOK, limit-1-i
			if i >= limit {
				status, remaining = http.StatusTooManyRequests, 0
			}
			if answer.Status != status || answer.Number("X-RateLimit-Remaining") != remaining {
				t.Errorf("limit %d, request %d: status %d, remaining %s", limit, i+1, answer.Status, answer.Header.Get("X-RateLimit-Remaining"))
			}
		}

		// First requests ever, all at once, while the store does not know the script.
		store.Do("SCRIPT", "FLUSH", "SYNC")
		answers = client.Burst(500, lab.Alternate(500, "crowd", a.URL+path, b.URL+path))
		mustDecide(t, path, answers, "shared")
		mustHaveRemaining(t, path, answers, limit)
	}

	// One gateway loses the store: each has the limit by itself.
	proxy.Close()
	proxy.Cut()
	for _, limit := range limits {
		path := fmt.Sprintf("/n%d", limit)
		answers := client.Burst(100, lab.Alternate(200, "alone", b.URL+path))
		mustDecide(t, path, answers, "local")
		mustHaveRemaining(t, path+" without the store", answers, limit)
		answers = client.Burst(100, lab.Alternate(200, "alone", a.URL+path))
		mustDecide(t, path, answers, "shared")
		mustHaveRemaining(t, path+" with the store", answers, limit)
	}
}

func TestMiddlewaresOfOnePluginKeepTheirOwnLimits(t *testing.T) {
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	for mode, base := range map[string]options{"shared": shared(store.Addr(), 0, window), "local": local(0, window)} {
		t.Run(mode, func(t *testing.T) {
			middlewares := map[string]options{}
			for _, limit := range []int{5, 10, 20} {
				middlewares[fmt.Sprintf("n%d", limit)] = base.with("limit", limit)
			}
			_, urls := gateways(t, 1, lab.TraefikOptions{}, each(app, middlewares))
			var requests []lab.Request
			for i := range 90 {
				requests = append(requests, lab.Keyed(urls[0]+[]string{"/n5", "/n10", "/n20"}[i%3], "key"))
			}
			answers := client.Burst(90, requests)
			mustDecide(t, mode, answers, mode)
			for i, limit := range []int{5, 10, 20} {
				var own lab.Answers
				for n := i; n < len(answers); n += 3 {
					own = append(own, answers[n])
				}
				mustHaveRemaining(t, fmt.Sprintf("limit %d", limit), own, limit)
			}
		})
	}
}

func TestCountsOfMiddlewaresAndInstallationsAreApart(t *testing.T) {
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	for mode, base := range map[string]options{"shared": shared(store.Addr(), 5, window), "local": local(5, window)} {
		t.Run(mode, func(t *testing.T) {
			s := each(app, map[string]options{
				"strict":   base,
				"twin":     base,
				"generous": base.with("limit", 100),
				"one":      base.with("scope", "common"),
				"other":    base.with("scope", "common"),
			})
			labels := base.with("valkey.endpoints", nil).labels("strict")
			if mode == "shared" {
				labels = base.with("valkey.endpoints", store.Addr()).labels("strict")
			}
			labels["traefik.http.routers.strict.rule"] = "PathPrefix(`/labelled`)"
			labels["traefik.http.routers.strict.middlewares"] = "strict@docker"
			tr := lab.NewTraefik(t, lab.TraefikOptions{Docker: lab.Labels(t, app.URLs[0], labels)}, s.yaml(t))
			allowed := func(path string, n int) int {
				answers := client.Sequence(lab.Alternate(n, "key", tr.URL+path))
				mustBe(t, path, answers, http.StatusOK, http.StatusTooManyRequests)
				mustDecide(t, path, answers, mode)
				return answers.Count(http.StatusOK)
			}
			for _, tt := range []struct {
				path    string
				n, want int
			}{
				{"/generous", 50, 50}, {"/strict", 7, 5}, {"/twin", 7, 5}, {"/labelled", 7, 5},
				{"/one", 3, 3}, {"/other", 7, 2}, // one count, since both name the scope
			} {
				if got := allowed(tt.path, tt.n); got != tt.want {
					t.Errorf("%s: %d of %d allowed, want %d", tt.path, got, tt.n, tt.want)
				}
			}

			// A second installation.
			same, urls := gateways(t, 1, lab.TraefikOptions{}, each(app, map[string]options{
				"strict": base, "prefixed": base.with("scope", "strict@file", "valkey.keyPrefix", "other"),
			}))
			want := map[string]int{"shared": 0, "local": 5}[mode]
			if got := client.Sequence(lab.Alternate(7, "key", urls[0]+"/strict")).Count(http.StatusOK); got != want {
				t.Errorf("a gateway on the same store: %d allowed, want %d", got, want)
			}
			if mode == "shared" {
				if got := client.Sequence(lab.Alternate(7, "key", urls[0]+"/prefixed")).Count(http.StatusOK); got != 5 {
					t.Errorf("another key prefix: %d allowed, want 5\n%s", got, same[0].Log())
				}
			}
		})
	}
}
