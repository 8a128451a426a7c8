package suite

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"time"
)

// guards is about what one gateway lets through of all clients, and about dry runs.
var guards = tests{
	{"the gateway's limit bounds all clients together, before the store is asked", guardFirst},
	{"the gateway's limit gets back what the quota refuses", guardGivenBack},
	{"the gateway's limit gets back what is held back without the store", guardWithoutStore},
	{"the gateway's limit counts costs", guardCosts},
	{"the gateway's limit belongs to the scope and outlives a reload", guardOfScope},
	{"exempt requests pass the gateway's limit", guardSparesExempt},
	{"waiting as the gateway's limit says helps", guardWaits},
	{"a dry run refuses nothing and tells what it would", dryRunTells},
	{"a dry run counts as if it were none", dryRunCounts},
	{"a dry run is summed up in one line a minute", dryRunLines},
}

// guarded returns options with a limit of the gateway for a window of which more than half
// is left.
func guarded(options map[string]any, limit any, pairs ...any) map[string]any {
	return with(with(options, "gatewayLimit", map[string]any{"limit": limit, "window": seconds(roomy(600))}), pairs...)
}

// isGuarded checks that an answer is that of the gateway's limit.
func (t *T) isGuarded(got answer) {
	t.Helper()
	if got.status != 503 || got.decision != "gateway" || got.retryAfter < 1 || got.retryAfter > 600 {
		t.Errorf("%d, %q with Retry-After %d, want the gateway's 503", got.status, got.decision, got.retryAfter)
	}
	if got.limit != -1 || got.header.Get("RateLimit") != "" || got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("the gateway's 503 has the fields %v", got.header)
	}
}

func guardFirst(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		name := t.name()
		h := t.handler(name, guarded(options, "3", "rules", []any{entry("name", "login", "path", "/login", "limit", "2")}))
		for i, path := range []string{"/", "/login", "/"} {
			if got := t.exchange(h, asClient(path, i)); got.status != 200 || got.decision != way {
				t.Errorf("client %d: %d, %s", i, got.status, got.decision)
			}
		}
		for i, path := range []string{"/", "/login", "/", "/x"} {
			t.isGuarded(t.exchange(h, asClient(path, i)))
		}
	})
	v := t.valkey()
	name := t.name()
	routers := []http.Handler{t.handler(name, guarded(t.options(v), "7")), t.handler(name, guarded(t.options(v), "7"))}
	passed := 0
	for _, got := range rush(16, 200, func(i int) answer { return t.exchange(routers[i%2], asClient("/", i)) }) {
		if got.status == 200 {
			passed++
		} else {
			t.isGuarded(got)
		}
	}
	if passed != 7 || v.counted(name) != 7 {
		t.Errorf("%d of 200 clients passed the gateway's 7, and the store counted %d", passed, v.counted(name))
	}
	v.ForgetCommands()
	t.exchange(routers[0], asClient("/", 1))
	if calls := v.clientCalls(name); len(calls) > 0 {
		t.Errorf("the store was asked: %q", calls)
	}
}

// asClient returns a request of one of many clients.
func asClient(target string, client int) *http.Request {
	req := get(target)
	req.Header.Set("X-Api-Key", fmt.Sprintf("client %d", client))
	return req
}

func guardGivenBack(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		for _, each := range []map[string]any{with(options, "limit", "2"), twoLimits(options, 2, 9)} {
			name := t.name()
			h := t.handler(name, guarded(each, "4"))
			got := t.statuses(h, 20, func() *http.Request { return asClient("/", 1) })
			if fmt.Sprint(got[:4]) != "[200 200 429 429]" || got[19] != 429 {
				t.Errorf("one client gets %d", got)
			}
			if got := t.statuses(h, 3, func() *http.Request { return asClient("/", 2) }); fmt.Sprint(got) != "[200 200 503]" {
				t.Errorf("another client gets %d", got)
			}
			t.isGuarded(t.exchange(h, asClient("/", 3)))
		}
		// By whatever form of its path a request is refused.
		h := t.handler(t.name(), guarded(with(options, "limit", "9", "rules", []any{entry("name", "login", "path", "/login", "limit", "1")}), "3"))
		if got := t.statuses(h, 5, func() *http.Request { return asClient("/login;x", 1) }); fmt.Sprint(got) != "[200 429 429 429 429]" {
			t.Errorf("logins in another form get %d", got)
		}
		if got := t.statuses(h, 3, func() *http.Request { return asClient("/", 2) }); fmt.Sprint(got) != "[200 200 503]" {
			t.Errorf("after refused logins another client gets %d", got)
		}
		// A crowd of refused requests may be in the way for a moment and not for longer.
		h = t.handler(t.name(), guarded(with(options, "limit", "2"), "4"))
		passed := int64(0)
		rush(16, 200, func(int) answer {
			got := t.exchange(h, asClient("/", 1))
			if got.status == 200 {
				atomic.AddInt64(&passed, 1)
			}
			return got
		})
		for client := 2; client < 5; client++ {
			passed += int64(t.allowed(h, 3, func() *http.Request { return asClient("/", client) }))
		}
		if passed != 4 {
			t.Errorf("%d requests passed the gateway's 4", passed)
		}
	})
}

func guardWithoutStore(t *T) {
	v := t.valkey()
	v.Stop()
	h := t.handler(t.name(), guarded(t.options(v, "onStoreFailure", "closed"), "2"))
	for i := 0; i < 8; i++ {
		if got := t.send(h, asClient("/", i)); got.status != 503 || got.decision != "closed" || got.retryAfter > 5 {
			t.Errorf("client %d: %d, %s", i, got.status, got.decision)
		}
	}
	// What passes uncounted is counted by the gateway all the same.
	h = t.handler(t.name(), guarded(t.options(v, "onStoreFailure", "open", "decisionHeader", "X-RateLimit-Decision"), "2"))
	for i, want := range []string{"open", "open", "gateway", "gateway"} {
		if got := t.exchange(h, asClient("/", i)); got.decision != want {
			t.Errorf("client %d: %d, %s, want %s", i, got.status, got.decision, want)
		}
	}
}

func guardCosts(t *T) {
	for _, tt := range []struct{ limit, cost, rest string }{{"7", "3", "1"}, {"999999999999999", "499999999999999", "1"}} {
		h := t.handler(t.name(), guarded(t.options(nil, "limit", "999999999999999", "cost", tt.cost), tt.limit, "rules", []any{entry("name", "cheap", "path", "/cheap", "cost", tt.rest)}))
		for i, each := range []struct {
			path string
			ok   bool
		}{{"/", true}, {"/", true}, {"/", false}, {"/cheap", true}, {"/cheap", false}, {"/", false}} {
			if got := t.exchange(h, asClient(each.path, i)); (got.status == 200) != each.ok {
				t.Errorf("limit %s, cost %s, request %d for %s: %d", tt.limit, tt.cost, i, each.path, got.status)
			}
		}
	}
	// A dear request that the quota refuses gives all of its cost back.
	h := t.handler(t.name(), guarded(t.options(nil, "limit", "4", "cost", "3"), "6"))
	got := t.statuses(h, 5, func() *http.Request { return asClient("/", 1) })
	got = append(got, t.statuses(h, 2, func() *http.Request { return asClient("/", 2) })...)
	if fmt.Sprint(got) != "[200 429 429 429 429 200 503]" {
		t.Errorf("two clients get %d", got)
	}
}

func guardOfScope(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		scope, window := t.name(), seconds(roomy(600))
		options = with(options, "scope", scope, "gatewayLimit", map[string]any{"limit": "4", "window": window})
		name := t.name()
		for i := 0; i < 3; i++ {
			// Each time a handler of another configuration.
			if got := t.exchange(t.handler(name, with(options, "limit", fmt.Sprint(10+i))), asClient("/", i)); got.status != 200 {
				t.Errorf("client %d: %d", i, got.status)
			}
		}
		other := t.handler(t.name(), options)
		if got := t.exchange(other, asClient("/", 3)); got.status != 200 {
			t.Errorf("another middleware of the scope: %d", got.status)
		}
		t.isGuarded(t.exchange(other, asClient("/", 4)))
		t.isGuarded(t.exchange(t.handler(name, options), asClient("/", 5)))
		if got := t.exchange(t.handler(name, with(options, "gatewayLimit.limit", "5")), asClient("/", 6)); got.status != 200 {
			t.Errorf("with a higher limit: %d", got.status)
		}
		if got := t.exchange(t.handler(name, with(options, "gatewayLimit", absent)), asClient("/", 7)); got.status != 200 {
			t.Errorf("without the gateway's limit: %d", got.status)
		}
		if got := t.exchange(t.handler(t.name(), with(options, "scope", absent)), asClient("/", 8)); got.status != 200 {
			t.Errorf("another scope: %d", got.status)
		}
	})
}

func guardSparesExempt(t *T) {
	h := t.handler(t.name(), guarded(t.options(nil, "exempt", map[string]any{"paths": "/free"}, "sourceCriterion.onMissing", "skip"), "2"))
	for i, tt := range []struct {
		req  *http.Request
		want int
	}{
		{get("/free"), 200}, {get("/free"), 200}, {get("/free"), 200}, {get("/"), 200}, {keyed(""), 200}, {get("/"), 503}, {get("/free"), 200},
		{keyed(""), 503}, {get("//free"), 503},
	} {
		if got := t.exchange(h, tt.req); got.status != tt.want {
			t.Errorf("request %d for %s: %d, want %d", i, tt.req.URL, got.status, tt.want)
		}
	}
}

// The gateway's clock is that of the machine: within a short window, what is told is at
// most its length.
func guardWaits(t *T) {
	h := t.handler(t.name(), with(t.options(nil, "limit", "1000000"), "gatewayLimit", map[string]any{"limit": "1", "window": "1s"}))
	t.eventually("a request that is told to wait, and one that passes after it", func() bool {
		for i := 0; i < 1000; i++ {
			if got := t.exchange(h, get("/")); got.status == 503 {
				if got.retryAfter != 1 {
					t.Errorf("Retry-After %d in a window of a second", got.retryAfter)
				}
				break
			}
		}
		told := time.Now()
		for time.Since(told) < time.Second {
			time.Sleep(10 * time.Millisecond)
		}
		return t.exchange(h, get("/")).status == 200
	})
}

func dryRunTells(t *T) {
	const field = "X-RateLimit-Dry-Run"
	t.eachWay(func(t *T, options map[string]any, way string) {
		for _, each := range []map[string]any{with(options, "limit", "2"), twoLimits(options, 2, 4), with(options, "limit", "7", "cost", "3")} {
			h := t.handler(t.name(), with(each, "dryRun", "true"))
			for i := 1; i <= 5; i++ {
				want := "allowed"
				if i > 2 {
					want = "refused"
				}
				got := t.exchange(h, get("/"))
				if got.status != 200 || got.header.Get(field) != want || got.retryAfter != -1 || got.decision != way || got.limit < 2 {
					t.Errorf("request %d: %d, %q, Retry-After %d, %s; want 200, %q", i, got.status, got.header.Get(field), got.retryAfter, got.decision, want)
				}
			}
		}
		for _, dry := range []any{absent, "false", false} {
			h := t.handler(t.name(), with(options, "limit", "1", "dryRun", dry))
			for _, want := range []int{200, 429} {
				if got := t.exchange(h, get("/")); got.status != want || got.header.Get(field) != "" {
					t.Errorf("with dryRun %v: %d, %v", dry, got.status, got.header)
				}
			}
		}
	})
	// 400 and both kinds of 503.
	v := t.valkey()
	v.Stop()
	for _, tt := range []struct {
		options map[string]any
		key     string
		want    string
	}{
		{t.options(v, "dryRun", true, "onStoreFailure", "closed"), "key", "[refused refused refused]"},
		{t.options(v, "dryRun", true, "onStoreFailure", "open"), "key", "[allowed allowed allowed]"},
		{t.options(nil, "dryRun", true, "sourceCriterion.onMissing", "refuse"), "", "[refused refused refused]"},
		{guarded(t.options(nil, "dryRun", true), "2"), "key", "[allowed allowed refused]"},
	} {
		h := t.handler(t.name(), tt.options)
		var got []string
		for i := 0; i < 3; i++ {
			a := t.exchange(h, keyed(tt.key))
			got = append(got, a.header.Get(field))
			if a.status != 200 || a.retryAfter != -1 {
				t.Errorf("%d with Retry-After %d in a dry run", a.status, a.retryAfter)
			}
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("the dry run tells %v, want %s", got, tt.want)
		}
	}
}

func dryRunCounts(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		options = with(options, "scope", t.name())
		dry, real := t.handler(t.name(), with(options, "dryRun", "true")), t.handler(t.name(), options)
		got := rush(8, 40, func(int) answer { return t.exchange(dry, get("/")) })
		told := map[string]int{}
		for _, a := range got {
			told[a.header.Get("X-RateLimit-Dry-Run")]++
		}
		if told["allowed"] != 5 || told["refused"] != 35 {
			t.Errorf("of 40 requests under a limit of 5 the dry run tells %v", told)
		}
		if got := t.exchange(real, get("/")); got.status != 429 {
			t.Errorf("after the dry run: %d", got.status)
		}
	})
	// What would have been refused takes nothing of the gateway's limit.
	h := t.handler(t.name(), guarded(t.options(nil, "limit", "1", "dryRun", "true"), "2"))
	var got []string
	for _, client := range []int{1, 1, 1, 2, 3} {
		got = append(got, t.exchange(h, asClient("/", client)).header.Get("X-RateLimit-Dry-Run"))
	}
	if fmt.Sprint(got) != "[allowed refused refused allowed refused]" {
		t.Errorf("the dry run tells %v", got)
	}
}

func dryRunLines(t *T) {
	name := t.name()
	options := t.options(nil, "dryRun", "true", "rules", []any{entry("name", "login", "path", "/login", "limit", "1")})
	h := t.handler(name, options)
	for i := 0; i < 5; i++ {
		t.exchange(h, get("/"))
	}
	summary := func() (lines []string) {
		for _, line := range t.logged(name) {
			if strings.Contains(line, "dry run: ") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	if lines := summary(); len(lines) > 0 {
		t.Errorf("nothing would have been refused, and the log says %q", lines)
	}
	began := time.Now()
	rush(8, 200, func(i int) answer {
		if i%50 == 0 {
			t.handler(name, options)
		}
		return t.exchange(h, get([]string{"/", "/login"}[i%2]))
	})
	most := 1 + int(time.Since(began)/time.Minute)
	lines := summary()
	for _, where := range []string{name, name + ": rule login"} {
		found := 0
		for _, line := range lines {
			if regexp.MustCompile(`middleware ` + regexp.QuoteMeta(where) + `: dry run: [0-9]+ of [1-9][0-9]* requests would have been refused$`).MatchString(line) {
				found++
			}
		}
		if found < 1 || found > most {
			t.Errorf("200 requests are summed up for %s in %q", where, lines)
		}
	}
}
