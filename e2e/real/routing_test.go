package real_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

func TestRoutersOfOneMiddlewareShareItsCount(t *testing.T) {
	t.Parallel()
	const limit, routers, each = 100, 20, 15
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	for mode, o := range map[string]options{"shared": shared(store.Addr(), limit, window), "local": local(limit, window)} {
		t.Run(mode, func(t *testing.T) {
			s := setup{app: app, middlewares: map[string]options{"quota": o}, routers: map[string]router{}}
			for r := range routers {
				s.routers[fmt.Sprintf("r%d", r)] = router{rule: fmt.Sprintf("Path(`/r%d`)", r), middlewares: []string{"quota"}}
			}
			tr := lab.NewTraefik(t, lab.TraefikOptions{}, s.yaml(t))
			var requests []lab.Request
			for i := range routers * each {
				requests = append(requests, lab.Keyed(fmt.Sprintf("%s/r%d", tr.URL, i%routers), "key"))
			}
			answers := client.Burst(40, requests)
			mustBe(t, mode, answers, http.StatusOK, http.StatusTooManyRequests)
			mustDecide(t, mode, answers, mode)
			mustHaveRemaining(t, mode, answers, limit)
			if lines := tr.LogLines("gatequota: middleware"); len(lines) != 1 {
				t.Errorf("the settings of one middleware are logged %d times", len(lines))
			}
		})
	}
}

// Reloading the configuration again and again while requests pass loses no count,
// hands out no quota, and leaves nothing behind.
func TestReloadsUnderLoad(t *testing.T) {
	const limit, reloads = 700, 50
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	config := func(n int) string {
		s := setup{
			app: app,
			middlewares: map[string]options{
				"shared": shared(store.Addr(), limit, window),
				"local":  local(limit, window),
				// What changes at every reload; its window is another each time.
				"other": shared(store.Addr(), 10+n, time.Duration(3600+n)*time.Second),
			},
			routers: map[string]router{"other": {rule: "Path(`/other`)", middlewares: []string{"other"}}},
		}
		for r := range 10 {
			for _, mode := range []string{"shared", "local"} {
				s.routers[fmt.Sprintf("%s%d", mode, r)] = router{rule: fmt.Sprintf("Path(`/%s/%d`)", mode, r), middlewares: []string{mode}}
			}
		}
		return s.yaml(t)
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, config(0))

	type figures struct{ goroutines, files, connections, opened int }
	const workers = 8
	request := func(key string) func(int) lab.Request {
		return func(n int) lab.Request {
			return lab.Keyed(fmt.Sprintf("%s/%s/%d", tr.URL, []string{"shared", "local"}[n/workers%2], n%10), key)
		}
	}
	// settled returns the figures at rest, after the same load each time.
	settled := func(key string) figures {
		t.Helper()
		load := client.Steady(t, workers, time.Millisecond, request(key))
		lab.Until(t, "the load has passed", func() bool { return load.Len() >= 50*workers })
		mustBe(t, key, load.Stop(), http.StatusOK)
		client.CloseIdle()
		var now figures
		stable := 0
		lab.Until(t, "the gateway is at rest", func() bool {
			last := now
			now = figures{tr.Goroutines(), tr.Files(), store.Clients(), store.Info("total_connections_received")}
			if now != last {
				stable = 0
			}
			stable++
			return stable > 20
		})
		return now
	}
	before := settled("before")

	load := client.Steady(t, workers, 2*time.Millisecond, request("key"))
	for n := range reloads {
		tr.Reload(config(n + 1))
		if n%10 == 0 {
			mustBe(t, "other", client.Sequence(lab.Alternate(2, "key", tr.URL+"/other")), http.StatusOK)
		}
	}
	lab.Until(t, "the limit is long passed", func() bool { return load.Since(0).Count(http.StatusTooManyRequests) > limit })
	answers := load.Stop()
	after := settled("after")

	mustBe(t, "under reloads", answers, http.StatusOK, http.StatusTooManyRequests)
	for _, mode := range []string{"shared", "local"} {
		var own lab.Answers
		for _, a := range answers {
			if a.Header.Get("X-RateLimit-Decision") == mode {
				own = append(own, a)
			}
		}
		mustHaveRemaining(t, mode, own, limit)
	}
	t.Logf("before: %+v", before)
	t.Logf("after %d reloads: %+v", reloads, after)
	// Idle connections of Traefik to the application come and go: a few more or
	// fewer are no leak, one for each reload would be.
	const some = reloads / 5
	if after.goroutines > before.goroutines+some {
		t.Errorf("%d goroutines, %d before", after.goroutines, before.goroutines)
	}
	if after.files > before.files+some {
		t.Errorf("%d open files, %d before", after.files, before.files)
	}
	if after.connections > before.connections+some || after.opened > before.opened+some+workers {
		t.Errorf("%d connections to the store, %d opened in all; before %d and %d",
			after.connections, after.opened, before.connections, before.opened)
	}
	mustNotPanic(t, tr)
	if lines := pluginLines(tr, 0); len(lines) > 0 {
		t.Errorf("logged: %q", lines)
	}
}

// A middleware that is refused takes its router with it: the route answers 404, or
// falls to a broader one, whose limiter then holds.
func TestRefusedMiddleware(t *testing.T) {
	t.Parallel()
	const limit = 5
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	s := setup{
		app: app,
		middlewares: map[string]options{
			"refused": local(0, window), "broad": local(limit, window), "login": local(2, window),
		},
		routers: map[string]router{
			"login": {rule: "Host(`one.test`) && Path(`/login`)", middlewares: []string{"refused"}},
			"other": {rule: "Host(`one.test`) && Path(`/other`)"},

			"guarded": {rule: "Host(`two.test`) && Path(`/login`)", middlewares: []string{"refused"}},
			"broad":   {rule: "Host(`two.test`)", middlewares: []string{"broad"}},
		},
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, s.yaml(t))
	ask := func(host, path string, n int) lab.Answers {
		requests := make([]lab.Request, n)
		for i := range requests {
			requests[i] = lab.Request{URL: tr.URL + path, Host: host, Header: map[string]string{"X-API-Key": "key"}}
		}
		return client.Sequence(requests)
	}
	mustBe(t, "without a broader route", ask("one.test", "/login", 3), http.StatusNotFound)
	mustBe(t, "another route", ask("one.test", "/other", 3), http.StatusOK)

	answers := ask("two.test", "/login", limit+3)
	mustHaveRemaining(t, "with a broader route", answers, limit)
	if got := answers[0].Header.Get("RateLimit-Policy"); !strings.HasPrefix(got, `"broad@file"`) {
		t.Errorf("the policy is %s", got)
	}
	for _, name := range []string{"login@file", "guarded@file"} {
		if got := tr.RouterError(name); !strings.Contains(got, "option limit") || !strings.Contains(got, `"0"`) {
			t.Errorf("%s: the API says %q", name, got)
		}
	}
	if lines := tr.LogLines("option limit"); len(lines) == 0 {
		t.Error("the refusal is not logged")
	}

	// Once it is right, it holds.
	s.middlewares["refused"] = local(2, window)
	tr.Reload(s.yaml(t))
	for _, host := range []string{"one.test", "two.test"} {
		want := map[string]string{"one.test": "200: 2, 429: 1", "two.test": "429: 3"}[host]
		if got := ask(host, "/login", 3).Tally(); got != want { // both routers share the count
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
}
