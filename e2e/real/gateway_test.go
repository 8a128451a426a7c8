package real_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// mustBeFull fails the test unless an answer says that the gateway has no room, for no
// longer than its window.
func mustBeFull(t *testing.T, what string, a lab.Answer, window time.Duration) {
	t.Helper()
	wait := a.Number("Retry-After")
	if a.Status != http.StatusServiceUnavailable || a.Header.Get("X-RateLimit-Decision") != "gateway" || wait < 1 || wait > int(window/time.Second) {
		t.Errorf("%s: status %d, decision %q, Retry-After %q, want 503 by the gateway, and at most %s", what, a.Status, a.Header.Get("X-RateLimit-Decision"), a.Header.Get("Retry-After"), window)
	}
	// Of the client nothing is counted, so nothing is told but what holds for all.
	if a.Header.Get("RateLimit-Policy") == "" || a.Header.Get("RateLimit") != "" || a.Header.Get("X-RateLimit-Remaining") != "" {
		t.Errorf("%s: the fields are %v", what, a.Header)
	}
}

// What a gateway can bear is one sum over all its routers and clients, which reloads
// leave as it is and which shields the store.
func TestGatewayLimitHoldsOverRoutersAndReloads(t *testing.T) {
	t.Parallel()
	const most = 10
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	window, id := lab.QuietWindow(time.Now())
	o := shared(store.Addr(), 1000, window).with("gatewayLimit.limit", most, "gatewayLimit.window", window.String())
	config := func(o options, more ...string) string {
		s := setup{app: app, middlewares: map[string]options{"quota": o}, routers: map[string]router{}}
		for _, name := range append(more, "one", "two") {
			s.routers[name] = router{rule: pathRule(name), middlewares: []string{"quota"}}
		}
		return s.yaml(t)
	}
	all, urls := []*lab.Traefik{}, []string{}
	for range 2 {
		tr := lab.NewTraefik(t, lab.TraefikOptions{}, config(o))
		all, urls = append(all, tr), append(urls, tr.URL)
	}
	n := 0
	ask := func(gateway int, path string) lab.Answer {
		n++
		return client.Get(lab.Keyed(urls[gateway]+path, fmt.Sprint("client-", n)))
	}
	fill := func(what string, gateway, room int) {
		t.Helper()
		for i := range room {
			if a := ask(gateway, []string{"/one", "/two"}[i%2]); a.Status != http.StatusOK || a.Header.Get("X-RateLimit-Decision") != "shared" {
				t.Errorf("%s, request %d: status %d, decision %q", what, i+1, a.Status, a.Header.Get("X-RateLimit-Decision"))
			}
		}
	}
	full := func(what string, gateway int, paths ...string) {
		t.Helper()
		for _, path := range paths {
			mustBeFull(t, what+", "+path, ask(gateway, path), window)
		}
	}
	fill("at first", 0, most)
	commands := store.Info("total_commands_processed")
	for range 20 {
		full("full", 0, "/one", "/two")
	}
	// Each of them would have been a call. INFO itself is a command, and gateways announce
	// themselves now and then.
	if asked := store.Info("total_commands_processed") - commands; asked > 20 {
		t.Errorf("the store was asked %d times while the gateway refused", asked)
	}
	// The other gateway has room of its own.
	fill("the other", 1, most)
	full("the other, full", 1, "/one")

	all[0].Reload(config(o, "three"))
	full("after a reload", 0, "/one", "/three")
	all[0].Reload(config(o.with("limit", 2000, "gatewayLimit.limit", most+4)))
	fill("with four more", 0, 4)
	full("with four more, full", 0, "/two")
	all[0].Reload(config(o.with("gatewayLimit.limit", most-3)))
	full("with less", 0, "/one")

	if counted, keys := store.Sum("rate:quota@file:{*"), len(store.Keys()); counted != 2*most+4 || keys != 2*most+4 {
		t.Errorf("the store has counted %d requests of %d clients, want %d", counted, keys, 2*most+4)
	}
	if hits := app.Hits(); hits != 2*most+4 {
		t.Errorf("%d requests reached the application, want %d", hits, 2*most+4)
	}

	// For a client that reads JSON the refusal says of what kind it is.
	a := client.Get(lab.Request{URL: urls[0] + "/one", Header: map[string]string{"Accept": "application/json", "X-API-Key": "reader"}})
	mustBeFull(t, "JSON", a, window)
	if !strings.Contains(a.Body, "temporary-reduced-capacity") || a.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("the refusal is %s: %s", a.Header.Get("Content-Type"), a.Body)
	}
	if got := store.Client().Exists(context.Background(), keyOf("quota@file", "reader", id)).Val(); got != 0 {
		t.Error("the store has a count of a client that the gateway refused")
	}
}

// What clients' own limits refuse takes nothing from the gateway's, however much it is,
// whether the store refuses it or the gateway knows already.
func TestGatewayLimitIsGivenBack(t *testing.T) {
	t.Parallel()
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	window, id := lab.QuietWindow(time.Now())
	base := shared(store.Addr(), 4, window).with("gatewayLimit.limit", 12, "gatewayLimit.window", window.String())
	middlewares := map[string]options{
		"cheap": base,
		"dear":  base.with("cost", 3),
		"both":  base.with("limit", nil, "window", nil, "limits[0].name", "a", "limits[0].limit", 4, "limits[0].window", window.String(), "limits[1].name", "b", "limits[1].limit", 400, "limits[1].window", "1d"),
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, each(app, middlewares).yaml(t))
	for name, c := range map[string]struct{ allowed, clients int }{
		"cheap": {4, 3}, // of each client, and clients that fill the gateway
		"dear":  {1, 4},
		"both":  {4, 3},
	} {
		// One of them used up its limit on another gateway.
		name, scope := "/"+name, name+"@file"
		elsewhere := keyOf(scope, "elsewhere", id)
		if name == "/both" {
			elsewhere = severalKey(scope, "a", "elsewhere", id)
		}
		store.Do("SET", elsewhere, 4, "EX", 7200)
		mustBe(t, name+" elsewhere", client.Sequence(lab.Alternate(20, "elsewhere", tr.URL+name)), http.StatusTooManyRequests)
		for n := range c.clients {
			as := client.Burst(8, lab.Alternate(30, fmt.Sprint("client-", n), tr.URL+name))
			mustBe(t, name, as, http.StatusOK, http.StatusTooManyRequests, http.StatusServiceUnavailable)
			// At one instant more may be on their way than the gateway bears.
			if got := as.Count(http.StatusOK); got > c.allowed {
				t.Errorf("%s: %d requests of a client passed, want at most %d", name, got, c.allowed)
			}
			as = append(as, client.Sequence(lab.Alternate(c.allowed, fmt.Sprint("client-", n), tr.URL+name))...)
			if got := as.Count(http.StatusOK); got != c.allowed {
				t.Errorf("%s: %d requests of client %d passed, want %d: %s", name, got, n, c.allowed, as.Tally())
			}
		}
		mustBeFull(t, name, client.Get(lab.Keyed(tr.URL+name, "late")), window)
	}
}

// A dry run counts and tells, and whatever is decided the request passes.
func TestDryRunRefusesNothing(t *testing.T) {
	t.Parallel()
	const limit = 3
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	window, id := lab.QuietWindow(time.Now())
	base := shared(store.Addr(), limit, window).with("dryRun", true, "valkey.timeout", "1s")
	middlewares := map[string]options{
		"trial":   base.with("onStoreFailure", "closed"),
		"several": base.with("limit", nil, "window", nil, "limits[0].name", "a", "limits[0].limit", limit, "limits[0].window", window.String(), "limits[1].name", "b", "limits[1].limit", 400, "limits[1].window", "1d"),
		"gateway": base.with("gatewayLimit.limit", 1, "gatewayLimit.window", window.String()),
		"missing": base.with("sourceCriterion.onMissing", "refuse"),
		"rule":    base.with("dryRun", nil, "rules[0].name", "tried", "rules[0].path", "/rule/tried", "rules[0].dryRun", true),
		"sharp":   base.with("rules[0].name", "sharp", "rules[0].path", "/sharp/real", "rules[0].dryRun", false),
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, each(app, middlewares).yaml(t))
	sent := map[string]int{}
	check := func(path, key string, decisions, verdicts string) {
		t.Helper()
		name, _, _ := strings.Cut(path, "/")
		requests := lab.Alternate(strings.Count(verdicts, ",")+1, key, tr.URL+"/"+path)
		as := client.Sequence(requests)
		var ways, told []string
		for _, a := range as {
			if told = append(told, a.Header.Get("X-RateLimit-Dry-Run")); a.Status != http.StatusOK {
				told[len(told)-1] += fmt.Sprint(a.Status)
			}
			ways = append(ways, a.Header.Get("X-RateLimit-Decision"))
		}
		if got := strings.Join(told, ","); got != verdicts {
			t.Errorf("%s: %q, want %q; %s", path, got, verdicts, tr.RouterError(name+"@file"))
		}
		if got := strings.Join(ways, ","); got != decisions {
			t.Errorf("%s: decided %q, want %q", path, got, decisions)
		}
		sent[name] += len(as)
	}
	check("trial", "key", "shared,shared,shared,shared,shared", "allowed,allowed,allowed,refused,refused")
	check("several", "key", "shared,shared,shared,shared,shared", "allowed,allowed,allowed,refused,refused")
	check("gateway", "key", "shared,gateway,gateway", "allowed,refused,refused")
	check("missing", "key", "shared", "allowed")
	check("missing", "", ",", "refused,refused")
	// The rule shares the count of the top level, which is no trial.
	check("rule", "key", "shared,shared", ",")
	check("rule/tried", "key", "shared,shared", "allowed,refused")
	check("rule", "key", "shared", "429")
	check("sharp", "key", "shared,shared,shared,shared", "allowed,allowed,allowed,refused")
	check("sharp/real", "key", "shared", "429")

	if got := store.Client().Get(context.Background(), keyOf("gateway@file", "key", id)).Val(); got != "1" {
		t.Errorf("behind the gateway's own limit %s requests are counted, want 1", got)
	}
	// Refused requests are counted until the gateway knows that they are.
	if got, err := store.Client().Get(context.Background(), keyOf("trial@file", "key", id)).Int(); err != nil || got < limit || got > limit+2 {
		t.Errorf("the trial has counted %d (%v), want at least %d", got, err, limit)
	}

	store.Kill()
	for _, key := range []string{"another", "third"} {
		check("trial", key, "closed", "refused")
	}
	if hits, all := app.Hits(), sent["trial"]+sent["several"]+sent["gateway"]+sent["missing"]+sent["rule"]+sent["sharp"]; hits != all-2 {
		t.Errorf("%d of %d requests reached the application, want all but the two that were no trial", hits, all)
	}
	for name := range middlewares {
		tried := name + "@file"
		if name == "rule" {
			tried += ": rule tried"
		}
		lines := tr.LogLines(name + "@file")
		// One line with the first that would have been refused, and no other for a minute.
		lines = slices.DeleteFunc(lines, func(line string) bool { return !strings.Contains(line, "dry run:") })
		if len(lines) != 1 || !strings.Contains(lines[0], "middleware "+tried+": dry run: 1 of ") {
			t.Errorf("%s: the log says of the dry run: %q", name, lines)
		}
	}
}
