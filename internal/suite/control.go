package suite

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// controls are about what an operator changes in the store while gateways run. They run all
// at once: most of their time is the seconds in which a gateway comes to know of a change.
var controls = tests{
	{"off lets everything pass, and on limits again", switchedOff},
	{"dry runs are switched on and off over what the options say", dryRunSwitched},
	{"limits and windows are changed, for each algorithm, beside plans and overrides", limitsChanged},
	{"several middlewares of a scope obey one change", scopeObeys},
	{"values that cannot be are ignored and named, and the rest is obeyed", misfitsIgnored},
	{"a client is let through, and what is over ends by itself", clientAllowed},
	{"a client is blocked, and what is over ends by itself", clientBlocked},
	{"who is exempt or in a dry run passes though blocked, and blocked requests cost others nothing", blockedAside},
	{"clients are found by the secret of their keys", controlKeyed},
	{"a reset client is free at once on all gateways, under load", resetUnderLoad},
	{"what is set outlives the store, and requests do not notice", controlOutlives},
	{"control that may not be read concerns no request", controlForbidden},
	{"a reload goes on, and a configuration that is gone is not read for", controlReloads},
	{"changes while requests run", changesUnderLoad},
	{"gateways report what they obey", gatewayReports},
}

// controlled returns options of a middleware of a scope that an operator may change.
func (t *T) controlled(v *valkey, scope string, pairs ...any) map[string]any {
	return with(t.options(v, "scope", scope, "control", "true"), pairs...)
}

// scopeName returns a scope that no other test has.
func (t *T) scopeName() string { return strings.Replace(t.name(), "@", ".", 1) }

// onOtherGateway returns options with which a middleware counts in the same server as
// another gateway would: with a connection and a memory of its own.
func onOtherGateway(options map[string]any, v *valkey) map[string]any {
	return with(options, "valkey.endpoints", []any{strings.Replace(v.Addr(), "127.0.0.1:", "[::ffff:127.0.0.1]:", 1)})
}

// A gatewayReport is what a gateway says of a scope.
type gatewayReport struct {
	Version     int64
	At          int64
	Host        string
	Software    string
	Enabled     bool
	DryRun      bool
	Keyed       bool
	Middlewares []struct {
		Name  string
		Rules []struct {
			Rule   string
			DryRun bool
			Source map[string]any
			Counts []struct {
				Count     string
				Algorithm string
				Limit     int64
				Window    int64
				Burst     int64
			}
		}
	}
}

// note keeps the last report on each middleware.
func (v *valkey) note(_, text string) {
	var report gatewayReport
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		v.t.Errorf("the report %s: %v", text, err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, m := range report.Middlewares {
		v.reports[m.Name] = report
	}
}

// report returns the last report on a middleware.
func (v *valkey) report(name string) (report gatewayReport, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	report, known = v.reports[name]
	return report, known
}

// change sets fields for a scope, and returns the version.
func (v *valkey) change(scope string, pairs ...string) int64 {
	return v.controls.Change("rate:"+scope+":control", pairs...)
}

// obeyed waits until it is reported that these middlewares obey a version.
func (t *T) obeyed(v *valkey, version int64, names ...string) {
	t.Helper()
	for _, name := range names {
		t.eventually("the report that "+name+" obeys", func() bool {
			report, known := v.report(name)
			return known && report.Version >= version
		})
	}
}

// hashOf returns the digits under which the value of a header is counted.
func hashOf(value string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(value))) }

// in returns the unix time so many seconds from now by the server's clock.
func (v *valkey) in(seconds int64) int64 { return v.now().Unix() + seconds }

// until returns the value of a block.
func (v *valkey) until(seconds int64) string { return strconv.FormatInt(v.in(seconds), 10) }

// plain demands that an answer is the application's own.
func (t *T) plain(what string, got answer) {
	t.Helper()
	if got.status != http.StatusOK || got.limit != -1 || got.header.Get("RateLimit-Policy") != "" || got.decision != "" {
		t.Errorf("%s: %d, %v, want the application's answer and nothing else", what, got.status, got.header)
	}
}

func switchedOff(t *T) {
	t.Parallel()
	v := t.valkey()
	kinds := map[string][]any{
		"plain": nil, "bucket": {"algorithm", "token-bucket"}, "log": {"algorithm", "sliding-log"}, "sliding": {"algorithm", "sliding-window"},
		"dear": {"cost", "5", "limit", "25"}, "dry": {"dryRun", "true"}, "closed": {"onStoreFailure", "closed"},
		"rules":   {"limit", "1000", "rules", []any{entry("name", "all", "pathPrefix", "/", "limit", "5")}},
		"several": {"limit", absent, "window", absent, "limits", []any{entry("name", "a", "limit", "5", "window", "1d"), entry("name", "b", "limit", "9", "window", "1d")}},
		"plans":   {"plans", map[string]any{"header": "X-Plan", "values": allowances("gold", "8")}},
		"guard":   {"gatewayLimit", map[string]any{"limit": "5", "window": seconds(roomy(600))}},
		"refuse":  {"sourceCriterion.onMissing", "refuse"},
	}
	handlers, versions, names, scopes := map[string]http.Handler{}, map[string]int64{}, map[string]string{}, map[string]string{}
	for kind, pairs := range kinds {
		names[kind], scopes[kind] = t.name(), t.scopeName()
		handlers[kind] = t.handler(names[kind], t.controlled(v, scopes[kind], append([]any{"window", "1d"}, pairs...)...))
		got := t.statuses(handlers[kind], 6, func() *http.Request { return keyed("key") })
		if (got[5] == http.StatusOK) != (kind == "dry") || got[4] != http.StatusOK {
			t.Errorf("%s: before it is switched off: %d", kind, got)
		}
	}
	for kind := range kinds {
		versions[kind] = v.change(scopes[kind], "enabled", "false")
	}
	for kind, h := range handlers {
		t.obeyed(v, versions[kind], names[kind])
		before := len(v.clientCalls(scopes[kind]))
		for i := 0; i < 20; i++ {
			t.plain(kind, t.exchange(h, keyed("key")))
		}
		t.plain(kind, t.exchange(h, keyed("")))
		if after := len(v.clientCalls(scopes[kind])); after != before {
			t.Errorf("%s: switched off, and yet the store is asked %d times", kind, after-before)
		}
		if report, _ := v.report(names[kind]); report.Enabled {
			t.Errorf("%s: the report says that it is on", kind)
		}
		versions[kind] = v.change(scopes[kind], "enabled", "true")
	}
	for kind, h := range handlers {
		t.obeyed(v, versions[kind], names[kind])
		got := t.exchange(h, keyed("key"))
		if (got.status == http.StatusOK) != (kind == "dry") || got.decision == "" {
			t.Errorf("%s: on again: %d, %s", kind, got.status, got.decision)
		}
		if len(t.logged("scope "+scopes[kind]+": control: switched off")) != 1 || len(t.logged("scope "+scopes[kind]+": control: switched on again")) != 1 {
			t.Errorf("%s: log %q", kind, t.logged("scope "+scopes[kind]+": control"))
		}
	}
}

func dryRunSwitched(t *T) {
	t.Parallel()
	v := t.valkey()
	const field = "X-RateLimit-Dry-Run"
	rules := []any{entry("name", "own", "path", "/own", "limit", "3"), entry("name", "trial", "path", "/trial", "limit", "3", "dryRun", "true")}
	for _, kind := range [][]any{nil, {"algorithm", "token-bucket"}, {"rules", rules}, {"dryRun", "true"}, {"dryRun", "true", "rules", rules}} {
		for _, set := range []string{"true", "false"} {
			what := fmt.Sprint(kind, " with dryRun ", set)
			name, scope := t.name(), t.scopeName()
			version := v.change(scope, "dryRun", set)
			h := t.handler(name, t.controlled(v, scope, append([]any{"window", "1d"}, kind...)...))
			t.obeyed(v, version, name)
			paths := map[string]int{"/": 5}
			if len(kind) > 0 && (kind[0] == "rules" || len(kind) > 2) {
				paths["/own"], paths["/trial"] = 3, 3
			}
			for path, limit := range paths {
				for i := 1; i <= limit+2; i++ {
					got := t.exchange(h, get(path))
					status, told := http.StatusOK, "allowed"
					if i > limit {
						told = "refused"
						if set == "false" {
							status = http.StatusTooManyRequests
						}
					}
					if set == "false" {
						told = ""
					}
					if got.status != status || got.header.Get(field) != told || got.decision != "shared" {
						t.Errorf("%s, %s, request %d: %d, %q, %s; want %d, %q", what, path, i, got.status, got.header.Get(field), got.decision, status, told)
					}
				}
			}
			if report, _ := v.report(name); report.DryRun != (set == "true") {
				t.Errorf("%s: the report says %t", what, report.DryRun)
			}
		}
	}
}

// policyOf returns a policy as the field of an answer has it.
func policyOf(scope, count string, limit, window int64) string {
	if count != "" {
		scope += ":" + count
	}
	return fmt.Sprintf(`"%s";q=%d;w=%d`, scope, limit, window)
}

func limitsChanged(t *T) {
	t.Parallel()
	v := t.valkey()
	for _, algorithm := range []string{"fixed-window", "sliding-window", "sliding-log", "token-bucket", "token-bucket with a burst"} {
		name, scope := t.name(), t.scopeName()
		given := strings.HasSuffix(algorithm, "burst")
		algorithm, _, _ = strings.Cut(algorithm, " ")
		gold := map[string]any{"limit": "8"}
		pairs := []any{"algorithm", algorithm, "limit", "5", "window", "1h",
			"overrides", []any{entry("value", "vip", "limit", "6"), entry("hash", hashOf("hashed"), "limit", "9")},
			"rules", []any{
				entry("name", "own", "path", "/own", "limit", "3", "window", "1h"),
				entry("name", "shares", "path", "/shares", "onStoreFailure", "closed"),
				entry("name", "dear", "path", "/dear", "cost", "2"),
				entry("name", "both", "path", "/both", "limits", []any{entry("name", "short", "limit", "2", "window", "1h"), entry("name", "long", "limit", "9", "window", "1d")}),
				entry("name", "same", "path", "/same", "limit", "3", "window", "2h"),
			}}
		if given {
			pairs = append(pairs, "burst", "2")
			gold["burst"] = "4"
		}
		pairs = append(pairs, "plans", map[string]any{"header": "X-Plan", "values": map[string]any{"gold": gold}})
		window, own, short := roomy(7200), roomy(6600), roomy(6000)
		version := v.change(scope, "limit", "7", "window", seconds(window), "limit:own", "4", "window:own", fmt.Sprint(own), "limit:both:short", "4", "window:both:short", seconds(short))
		h := t.handler(name, t.controlled(v, scope, pairs...))
		t.obeyed(v, version, name)
		for _, tt := range []struct {
			path, key, plan string
			limit, passes   int64
			policy          string
		}{
			{"/", "plain", "", 7, 7, policyOf(scope, "", 7, window)},
			{"/", "rich", "gold", 8, 8, policyOf(scope, "", 8, window)},
			{"/", "vip", "", 6, 6, policyOf(scope, "", 6, window)},
			{"/", "hashed", "", 9, 9, policyOf(scope, "", 9, window)},
			{"/own", "plain", "", 4, 4, policyOf(scope, "own", 4, own)},
			{"/shares", "sharer", "", 7, 7, policyOf(scope, "", 7, window)},
			{"/shares", "rich sharer", "gold", 8, 8, policyOf(scope, "", 8, window)},
			{"/dear", "dear", "", 7, 3, policyOf(scope, "", 7, window)},
			{"/both", "plain", "", 4, 4, policyOf(scope, "both:short", 4, short) + ", " + policyOf(scope, "both:long", 9, 86400)},
			{"/same", "plain", "", 3, 3, policyOf(scope, "same", 3, 7200)},
		} {
			passes := tt.passes
			if given {
				switch {
				case tt.plan == "gold":
					passes = 4
				case tt.path == "/dear":
					passes = 1
				case tt.path == "/" || tt.path == "/shares":
					passes = 2 // the burst was given, and is not the limit's
				}
			}
			got, policy := int64(0), ""
			for i := 0; i < 12; i++ {
				req := get(tt.path)
				req.Header.Set("X-Api-Key", tt.key)
				if tt.plan != "" {
					req.Header.Set("X-Plan", tt.plan)
				}
				a := t.exchange(h, req)
				if a.status == http.StatusOK {
					got++
				}
				policy = a.header.Get("RateLimit-Policy")
			}
			if got != passes || policy != tt.policy {
				t.Errorf("%s, given %t, %s as %s: %d passed by %s, want %d by %s", algorithm, given, tt.path, tt.key, got, policy, passes, tt.policy)
			}
		}
	}
}

func scopeObeys(t *T) {
	t.Parallel()
	v := t.valkey()
	scope := t.scopeName()
	// Middlewares that differ in all but their scope, and two routers of one.
	names := []string{t.name(), t.name(), t.name()}
	newHandler := t.configure(names[0], t.controlled(v, scope, "window", "1d"))
	var handlers []http.Handler
	for i := 0; i < 2; i++ {
		making.Lock()
		h, err := newHandler(served)
		making.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		handlers = append(handlers, h)
	}
	handlers = append(handlers,
		t.handler(names[1], t.controlled(v, scope, "window", "1d", "valkey.timeout", "9s", "rules", []any{entry("name", "own", "path", "/own", "limit", "2")})),
		t.handler(names[2], t.controlled(v, scope, "window", "1d", "dryRun", "true")))
	t.obeyed(v, v.change(scope, "limit", "8", "limit:own", "3", "dryRun", "false"), names...)
	passed := 0
	for i := 0; i < 20; i++ {
		if t.exchange(handlers[i%4], keyed("key")).status == http.StatusOK {
			passed++
		}
	}
	own := t.allowed(handlers[2], 5, func() *http.Request { return get("/own") })
	if passed != 8 || own != 3 {
		t.Errorf("%d passed through all of them, and %d under the rule; want 8 and 3", passed, own)
	}
	if lines := t.logged("scope " + scope + ": control: the field"); len(lines) != 0 {
		t.Errorf("log %q", lines)
	}
}

func misfitsIgnored(t *T) {
	t.Parallel()
	v := t.valkey()
	window := roomy(7200)
	var checks, again []func()
	for _, tt := range []struct {
		what    string
		options []any
		set     []string
		ignored map[string]string // by field: the value
		policy  [2]int64          // limit and window that are in force
		passes  int
	}{
		{"below the cost", []any{"cost", "3", "limit", "9"}, []string{"limit", "2", "window", seconds(window)}, map[string]string{"limit": "2"}, [2]int64{9, 0}, 3},
		{"more than a sliding window counts", []any{"algorithm", "sliding-window"}, []string{"limit", "999999999999999", "window", seconds(window)}, map[string]string{"limit": "999999999999999"}, [2]int64{5, 0}, 5},
		{"a window that a sliding window cannot have", []any{"algorithm", "sliding-window", "limit", "400000"}, []string{"window", "366d"}, map[string]string{"window": "31622400s"}, [2]int64{400000, 3600}, 12},
		{"a window that is right with its limit alone", []any{"algorithm", "sliding-window", "limit", "400000"}, []string{"limit", "6", "window", "366d"}, nil, [2]int64{6, 31622400}, 6},
		{"a limit that is right without its window", []any{"algorithm", "sliding-window"}, []string{"limit", "400000", "window", "366d"}, map[string]string{"limit": "400000"}, [2]int64{5, 31622400}, 5},
		{"a window that one plan cannot have", []any{"algorithm", "token-bucket", "plans", map[string]any{"header": "X-Plan", "values": allowances("huge", "400000")}},
			[]string{"limit", "6", "window", "366d"}, map[string]string{"window": "31622400s"}, [2]int64{6, 3600}, 6},
		{"more than a log may hold", []any{"algorithm", "sliding-log"}, []string{"limit", "10001", "window", seconds(window)}, map[string]string{"limit": "10001"}, [2]int64{5, 0}, 5},
		{"a count that is not there", nil, []string{"limit:nobody", "6", "window:no:body", "1h", "limit", "7"}, map[string]string{"limit:nobody": "6", "window:no:body": "3600s"}, [2]int64{7, 3600}, 7},
		{"what cannot be read", nil, []string{"limit", "7", "window", "1.5h", "enabled", "off", "colour", "blue", "block:" + hashOf("key"), "soon"},
			map[string]string{"window": "1.5h", "enabled": "off", "colour": "blue", "block:" + hashOf("key"): "soon"}, [2]int64{7, 3600}, 7},
	} {
		tt := tt
		name, scope := t.name(), t.scopeName()
		version := v.change(scope, tt.set...)
		h := t.handler(name, t.controlled(v, scope, append([]any{"window", "1h"}, tt.options...)...))
		checks = append(checks, func() {
			t.obeyed(v, version, name)
			if tt.policy[1] == 0 {
				tt.policy[1] = window
			}
			passed, policy := 0, ""
			for i := 0; i < 12; i++ {
				got := t.exchange(h, keyed("key"))
				if got.status == http.StatusOK {
					passed++
				}
				policy = got.header.Get("RateLimit-Policy")
			}
			if want := policyOf(scope, "", tt.policy[0], tt.policy[1]); passed != tt.passes || policy != want {
				t.Errorf("%s: %d passed by %s, want %d by %s", tt.what, passed, policy, tt.passes, want)
			}
			version = v.change(scope, "dryRun", "false")
		})
		again = append(again, func() {
			// Another change does not say it again.
			t.obeyed(v, version, name)
			t.exchange(h, keyed("another"))
			lines := t.logged("scope " + scope + ": control: the field ")
			if len(lines) != len(tt.ignored) {
				t.Errorf("%s: log %q, want one line for each of %v", tt.what, lines, tt.ignored)
			}
			for field, value := range tt.ignored {
				if len(t.logged(fmt.Sprintf("scope %s: control: the field %q is ignored: %q: ", scope, field, value))) != 1 {
					t.Errorf("%s: log %q lacks %s %q", tt.what, lines, field, value)
				}
			}
		})
	}
	for _, check := range append(checks, again...) {
		check()
	}
}

func clientAllowed(t *T) {
	t.Parallel()
	v := t.valkey()
	name, scope := t.name(), t.scopeName()
	options := t.controlled(v, scope, "window", "1d", "overrides", []any{entry("value", "vip", "limit", "6")},
		"plans", map[string]any{"header": "X-Plan", "values": allowances("gold", "7")},
		"rules", []any{
			entry("name", "own", "path", "/own", "limit", "3"),
			entry("name", "shares", "path", "/shares", "dryRun", "false"),
			entry("name", "both", "path", "/both", "limits", []any{entry("name", "a", "limit", "2", "window", "1d"), entry("name", "b", "limit", "9", "window", "1d")}),
			entry("name", "bucket", "path", "/bucket", "algorithm", "token-bucket", "limit", "5", "burst", "2"),
			entry("name", "dear", "path", "/dear", "cost", "4"),
		})
	long := v.until(3600)
	version := v.change(scope,
		"allow:"+hashOf("all"), long+" 10", "allow:"+hashOf("vip"), long+" 10", "allow:"+hashOf("some"), long+" own=8 both:a=4 bucket=6",
		"allow:"+hashOf("lower"), long+" 2", "allow:"+hashOf("mixed"), long+" 9 own=4", "allow:"+hashOf("over"), v.until(-1)+" 10", "allow:"+hashOf("misfit"), long+" 3")
	h := t.handler(name, options)
	t.obeyed(v, version, name)
	for _, tt := range []struct {
		path, key, plan string
		want            int
	}{
		{"/", "all", "", 10}, {"/own", "all", "", 3}, {"/both", "all", "", 2}, {"/", "vip", "", 10}, {"/", "lower", "gold", 2}, {"/", "some", "", 5}, {"/own", "some", "", 8},
		{"/both", "some", "", 4}, {"/bucket", "some", "", 6}, {"/", "mixed", "", 9}, {"/own", "mixed", "", 4}, {"/", "over", "", 5}, {"/", "other", "", 5}, {"/own", "other", "", 3},
		{"/", "rich", "gold", 7}, {"/bucket", "other", "", 2},
		// No request would pass that costs four, so that is left as it was.
		{"/dear", "misfit", "", 1},
	} {
		send := func() *http.Request {
			req := get(tt.path)
			req.Header.Set("X-Api-Key", tt.key)
			if tt.plan != "" {
				req.Header.Set("X-Plan", tt.plan)
			}
			return req
		}
		if got := t.allowed(h, 12, send); got != tt.want {
			t.Errorf("%s at %s: %d passed, want %d", tt.key, tt.path, got, tt.want)
		}
		if got := t.exchange(h, send()); tt.key == "all" && tt.path == "/" && (got.limit != 10 || got.header.Get("RateLimit-Policy") != policyOf(scope, "", 10, 86400)) {
			t.Errorf("%s is told of %d, %v", tt.key, got.limit, got.header)
		}
	}
	// The rule that shares the counts of the top level is as high.
	shares := func() *http.Request {
		req := get("/shares")
		req.Header.Set("X-Api-Key", "sharer")
		return req
	}
	version = v.change(scope, "allow:"+hashOf("sharer"), v.until(6)+" 10", "allow:"+hashOf("all"), "")
	t.obeyed(v, version, name)
	if got := t.allowed(h, 12, shares); got != 10 {
		t.Errorf("under a rule that shares the counts %d passed, want 10", got)
	}
	if got := t.exchange(h, keyed("all")); got.status != http.StatusTooManyRequests || got.limit != 5 {
		t.Errorf("no longer let through: %d, limit %d", got.status, got.limit)
	}
	t.eventually("the end of what was for six seconds", func() bool { return t.exchange(h, shares()).limit == 5 })
	if lines := t.logged("scope " + scope + ": control: the field"); len(lines) != 1 || !strings.Contains(lines[0], "allow:"+hashOf("misfit")[:12]) {
		t.Errorf("log %q, want one line about who was let through too low", lines)
	}
}

func clientBlocked(t *T) {
	t.Parallel()
	v := t.valkey()
	var waits []func()
	for _, kind := range [][]any{nil, {"algorithm", "token-bucket"}, {"rules", []any{entry("name", "own", "path", "/", "limit", "3")}}, {"onStoreFailure", "open"}, {"response.status", "420"}} {
		kind := kind
		name, scope := t.name(), t.scopeName()
		options := t.controlled(v, scope, append([]any{"window", "1d"}, kind...)...)
		until := v.in(6)
		version := v.change(scope, "block:"+hashOf("key"), fmt.Sprint(until), "allow:"+hashOf("key"), v.until(3600)+" 1000 own=1000", "block:"+hashOf("past"), v.until(0))
		h := t.handler(name, options)
		t.obeyed(v, version, name)
		before, asked := len(v.clientCalls(scope)), v.in(0)
		got := t.exchange(h, keyed("key"))
		if v.in(0) < until-1 { // on a machine that is not too busy
			status, decision := http.StatusTooManyRequests, "control"
			if len(kind) > 0 && kind[0] == "response.status" {
				status = 420
			}
			if len(kind) > 0 && kind[0] == "onStoreFailure" {
				decision = "" // which is told nobody
			}
			if got.status != status || got.decision != decision || got.retryAfter > until-asked || got.retryAfter < until-v.in(0) || got.limit != -1 || got.header.Get("RateLimit") != "" {
				t.Errorf("%v: blocked: %d, %q, Retry-After %d, %v; want %d, %q, %d", kind, got.status, got.decision, got.retryAfter, got.header, status, decision, until-asked)
			}
			if after := len(v.clientCalls(scope)); after != before {
				t.Errorf("%v: a blocked request is counted", kind)
			}
		}
		for _, other := range []string{"past", "other"} {
			if got := t.exchange(h, keyed(other)); got.status != http.StatusOK {
				t.Errorf("%v: %s gets %d", kind, other, got.status)
			}
		}
		waits = append(waits, func() {
			t.eventually("the end of the block", func() bool { return t.exchange(h, keyed("key")).status == http.StatusOK })
			if v.in(0) < until {
				t.Errorf("%v: the block ends before its time", kind)
			}
			// Then the client is let through.
			if got := t.exchange(h, keyed("key")); got.limit != 1000 {
				t.Errorf("%v: after the block the limit is %d", kind, got.limit)
			}
		})
	}
	for _, wait := range waits {
		wait()
	}
}

func blockedAside(t *T) {
	t.Parallel()
	v := t.valkey()
	block := []string{"block:" + hashOf("key"), v.until(3600)}
	start := func(pairs ...any) (http.Handler, string, string) {
		name, scope := t.name(), t.scopeName()
		version := v.change(scope, block...)
		h := t.handler(name, t.controlled(v, scope, append([]any{"window", "1d"}, pairs...)...))
		t.obeyed(v, version, name)
		return h, name, scope
	}
	h, _, _ := start("exempt.paths", "/health")
	if got := t.exchange(h, get("/health")); got.status != http.StatusOK {
		t.Errorf("exempt, and yet %d", got.status)
	}
	if got := t.exchange(h, get("/")); got.status != http.StatusTooManyRequests {
		t.Errorf("blocked: %d", got.status)
	}
	h, name, scope := start("dryRun", "true")
	for i := 0; i < 3; i++ {
		if got := t.exchange(h, get("/")); got.status != http.StatusOK || got.header.Get("X-RateLimit-Dry-Run") != "refused" || got.decision != "control" {
			t.Errorf("in a dry run: %d, %v", got.status, got.header)
		}
	}
	t.obeyed(v, v.change(scope, "dryRun", "false"), name)
	if got := t.exchange(h, get("/")); got.status != http.StatusTooManyRequests {
		t.Errorf("the dry run is over: %d", got.status)
	}
	h, _, _ = start("gatewayLimit", map[string]any{"limit": "3", "window": seconds(roomy(600))})
	for i := 0; i < 10; i++ {
		if got := t.exchange(h, get("/")); got.status != http.StatusTooManyRequests || got.decision != "control" {
			t.Errorf("blocked behind a guard: %d, %s", got.status, got.decision)
		}
	}
	for i := 0; i < 4; i++ {
		got := t.exchange(h, keyed(fmt.Sprint("client ", i)))
		if i < 3 && got.status != http.StatusOK || i == 3 && got.status != http.StatusServiceUnavailable {
			t.Errorf("client %d: %d", i, got.status)
		}
	}
	// Of a path that servers read in several ways each form is under its own rule.
	h, _, _ = start("gatewayLimit", map[string]any{"limit": "3", "window": seconds(roomy(600))}, "rules", []any{entry("name", "a", "path", "/a/b", "limit", "4")})
	for i := 0; i < 10; i++ {
		if got := t.exchange(h, get("/a//b")); got.status != http.StatusTooManyRequests || got.decision != "control" {
			t.Errorf("blocked in another form: %d, %s", got.status, got.decision)
		}
	}
	if got := t.exchange(h, keyed("client")); got.status != http.StatusOK {
		t.Errorf("the blocked used up the gateway's limit: %d", got.status)
	}
}

func controlKeyed(t *T) {
	t.Parallel()
	v := t.valkey()
	name, scope := t.name(), t.scopeName()
	const secret = "a secret of sixteen bytes"
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte("key"))
	h := t.handler(name, t.controlled(v, scope, "window", "1d", "valkey.keySecret", secret))
	t.exchange(h, keyed("key"))
	keys := v.keys(scope)
	if len(keys) != 1 {
		t.Fatalf("the keys are %q", keys)
	}
	hash := keys[0][strings.IndexByte(keys[0], '{')+1 : strings.IndexByte(keys[0], '}')]
	if hash == hashOf("key") {
		t.Fatal("the secret changes nothing")
	}
	t.obeyed(v, v.change(scope, "block:"+hash, v.until(3600), "allow:"+hashOf("other"), v.until(3600)+" 9"), name)
	if got := t.exchange(h, keyed("key")); got.status != http.StatusTooManyRequests || got.decision != "control" {
		t.Errorf("%d, %s", got.status, got.decision)
	}
	if got := t.exchange(h, keyed("other")); got.limit != 5 {
		t.Errorf("who is let through by a plain digest has the limit %d", got.limit)
	}
	if report, _ := v.report(name); !report.Keyed {
		t.Error("the report does not say that keys are made with a secret")
	}
}

// known returns what a call of a script tells the store that was known of a client before,
// or passed without the store.
func known(args []string) bool {
	keys := 0
	for keys < len(args) && strings.Contains(args[keys], "{") {
		keys++
	}
	rest := args[keys:]
	switch {
	case strings.Contains(args[0], ":sw:"):
		return rest[6] != "0" || rest[7] != "0" || rest[8] != "0" || rest[9] != "0"
	case strings.Contains(args[0], ":log:"):
		return rest[6] != ""
	case strings.Contains(args[0], ":tb:"):
		return rest[6] != "0"
	}
	return rest[1] != "0"
}

func resetUnderLoad(t *T) {
	t.Parallel()
	var running sync.WaitGroup
	for _, algorithm := range []string{"fixed-window", "sliding-window", "sliding-log", "token-bucket"} {
		for _, all := range []bool{false, true} {
			running.Add(1)
			go func(algorithm string, all bool) {
				defer running.Done()
				resetOnce(t, algorithm, all)
			}(algorithm, all)
		}
	}
	running.Wait()
}

func resetOnce(t *T, algorithm string, all bool) {
	const limit, workers = 5, 4
	v := t.valkey()
	scope, names := t.scopeName(), []string{t.name(), t.name()}
	options := t.controlled(v, scope, "algorithm", algorithm, "limit", strconv.Itoa(limit), "window", "1d")
	gateways := []http.Handler{t.handler(names[0], options), t.handler(names[1], onOtherGateway(options, v))}
	t.obeyed(v, 0, names...)
	passed, stop := atomic.Int64{}, atomic.Bool{}
	var running sync.WaitGroup
	for i := 0; i < workers; i++ {
		running.Add(1)
		go func(h http.Handler) {
			defer running.Done()
			for !stop.Load() {
				if got := t.exchange(h, keyed("key")); got.status == http.StatusOK {
					passed.Add(1)
				}
				time.Sleep(time.Millisecond) // it is a client, and no test of the machine
			}
		}(gateways[i%2])
	}
	t.eventually(algorithm+": the client at its limit", func() bool { return passed.Load() == limit })
	for round := int64(2); round <= 3; round++ {
		field := "epoch:" + hashOf("key")
		if all {
			field = "epoch"
		}
		t.obeyed(v, v.change(scope, field, "VERSION "+v.until(0)), names...)
		// All of them have reported: the command deletes the keys.
		from := len(v.Commands())
		v.forget()
		t.eventually(algorithm+": as many as a free client may", func() bool { return passed.Load() >= limit*round })
		t.eventually(algorithm+": a refusal", func() bool { return t.exchange(gateways[0], keyed("key")).status == http.StatusTooManyRequests })
		for _, command := range v.Commands()[from:] {
			if len(command.Args) > 3 && strings.Contains(command.Args[3], "{"+hashOf("key")+"}") && known(command.Args[3:]) {
				t.Errorf("%s, all %t: in the hold the store is told of %q", algorithm, all, command.Args[3:])
				break
			}
		}
	}
	stop.Store(true)
	running.Wait()
	if got := passed.Load(); got != 3*limit {
		t.Errorf("%s, all %t: %d passed, want %d in each of three rounds", algorithm, all, got, limit)
	}
}

// forget has the server forget all counts.
func (v *valkey) forget() {
	v.mu.Lock()
	v.counts = map[string]count{}
	v.mu.Unlock()
	v.algorithms.Flush()
}

func controlOutlives(t *T) {
	t.Parallel()
	v := t.valkey()
	scope, names := t.scopeName(), []string{t.name(), t.name()}
	options := t.controlled(v, scope, "window", "1d")
	v.change(scope, "limit", "7")
	version := v.change(scope, "block:"+hashOf("key"), v.until(3600))
	handlers := []http.Handler{t.handler(names[0], options), t.handler(names[1], onOtherGateway(options, v))}
	t.obeyed(v, version, names...)
	set := v.controls.Hash("rate:" + scope + ":control")
	check := func(what string) {
		t.Helper()
		for _, h := range handlers {
			if got := t.exchange(h, keyed("key")); got.status != http.StatusTooManyRequests || got.decision != "control" {
				t.Errorf("%s: the blocked get %d, %s", what, got.status, got.decision)
			}
			if got := t.exchange(h, keyed(t.name())); got.status != http.StatusOK || got.limit != 7 {
				t.Errorf("%s: others get %d of the limit %d", what, got.status, got.limit)
			}
		}
	}
	v.Stop()
	check("away")
	v.controls.Flush()
	if err := v.Restart(); err != nil {
		t.Fatal(err)
	}
	t.eventually("what was set is put back", func() bool {
		check("back")
		return fmt.Sprint(v.controls.Hash("rate:"+scope+":control")) == fmt.Sprint(set)
	})
	// A store that is rewound while all of them go on.
	v.controls.Replace("rate:"+scope+":control", map[string]string{"version": "1", "enabled": "false"})
	t.eventually("what was set is put back", func() bool {
		check("rewound")
		return fmt.Sprint(v.controls.Hash("rate:"+scope+":control")) == fmt.Sprint(set)
	})
	check("in the end")
}

func controlForbidden(t *T) {
	t.Parallel()
	var refused, heard []func()
	for what, refusal := range map[string]string{
		"forbidden": "NOPERM No permissions to access a key", "no hash": "WRONGTYPE Operation against a key holding the wrong kind of value", "too large": "CONTROL has more than 4096 fields",
	} {
		what := what
		v := t.valkey()
		name, scope := t.name(), t.scopeName()
		version := v.change(scope, "limit", "7")
		h := t.handler(name, t.controlled(v, scope, "window", "1d"))
		t.obeyed(v, version, name)
		v.controls.Refuse(refusal)
		v.change(scope, "enabled", "false")
		calls := v.controls.Calls()
		refused = append(refused, func() {
			t.eventually("two more looks", func() bool {
				if got := t.exchange(h, keyed(t.name())); got.status != http.StatusOK || got.limit != 7 || got.decision != "shared" {
					t.Errorf("%s: %d, %s, limit %d", what, got.status, got.decision, got.limit)
				}
				return v.controls.Calls() >= calls+2
			})
			if lines := t.logged("store " + v.Addr() + ": refuses to say what is set for the scope " + scope); len(lines) != 1 {
				t.Errorf("%s: log %q", what, lines)
			}
			v.controls.Refuse("")
		})
		heard = append(heard, func() {
			t.eventually("what was set meanwhile", func() bool { return t.exchange(h, keyed("key")).limit == -1 })
		})
	}
	for _, check := range append(refused, heard...) {
		check()
	}
}

func controlReloads(t *T) {
	t.Parallel()
	v := t.valkey()
	name, other := t.name(), t.name()
	scope, otherScope := t.scopeName(), t.scopeName()
	// New succeeds where the store is away, and dials nobody.
	v.Stop()
	first := *t
	ctx, reload := context.WithCancel(t.ctx)
	first.ctx = ctx
	first.handler(name, t.controlled(v, scope, "window", "1d"))
	if err := v.Restart(); err != nil {
		t.Fatal(err)
	}
	t.handler(other, t.controlled(v, otherScope))
	t.obeyed(v, v.change(scope, "limit", "7"), name)

	// A reload: the new ones are made, and then the context of the old ones is done. The
	// new one obeys before it has read anything.
	v.controls.Refuse("NOPERM none")
	second, end := context.WithCancel(t.ctx)
	again := *t
	again.ctx = second
	h := again.handler(name, t.controlled(v, scope, "window", "2d"))
	reload()
	if got := t.exchange(h, keyed("key")); got.limit != 7 || got.status != http.StatusOK {
		t.Errorf("after a reload: %d, limit %d", got.status, got.limit)
	}
	v.controls.Refuse("")
	t.obeyed(v, v.change(scope, "limit", "8"), name)
	if got := t.exchange(h, keyed("key")); got.limit != 8 || got.header.Get("RateLimit-Policy") != policyOf(scope, "", 8, 2*86400) {
		t.Errorf("after a reload the change is obeyed as %v", got.header)
	}

	// The configuration is gone: others are read, and this is not.
	end()
	looks := func(scope string) (n int) {
		for _, command := range v.Commands() {
			if len(command.Args) > 3 && command.Args[3] == "rate:"+scope+":control" {
				n++
			}
		}
		return n
	}
	gone, there := looks(scope), looks(otherScope)
	t.eventually("three more looks at the other scope", func() bool { return looks(otherScope) >= there+3 })
	if n := looks(scope); n > gone+1 {
		t.Errorf("%d looks at a scope whose configuration is gone", n-gone)
	}
	// Requests that are still under way are served.
	if got := t.exchange(h, keyed("key")); got.status != http.StatusOK {
		t.Errorf("a handler of an old configuration: %d", got.status)
	}
}

func changesUnderLoad(t *T) {
	t.Parallel()
	v := t.valkey()
	kinds := [][]any{
		nil, {"algorithm", "token-bucket"}, {"algorithm", "sliding-log"},
		{"rules", []any{entry("name", "own", "path", "/own", "limit", "1000")}, "overrides", []any{entry("value", "vip", "limit", "2000")}, "plans", map[string]any{"header": "X-Plan", "values": allowances("gold", "7000")}},
		{"limit", absent, "window", absent, "limits", []any{entry("name", "a", "limit", "1000", "window", "1h"), entry("name", "b", "limit", "5000", "window", "1d")}},
	}
	scope := t.scopeName()
	var names []string
	var handlers []http.Handler
	for _, kind := range kinds {
		name := t.name()
		names = append(names, name)
		handlers = append(handlers, t.handler(name, t.controlled(v, scope, append([]any{"limit", "1000", "window", "1d"}, kind...)...)))
	}
	t.obeyed(v, 0, names...)
	stop := atomic.Bool{}
	var running sync.WaitGroup
	for g := 0; g < 4; g++ {
		running.Add(1)
		go func(g int) {
			defer running.Done()
			for i := g; !stop.Load(); i++ {
				req := get([]string{"/", "/own"}[i%2])
				req.Header.Set("X-Api-Key", []string{"vip", "blocked", "let through", fmt.Sprint("client ", i%50)}[i%4])
				if i%3 == 0 {
					req.Header.Set("X-Plan", "gold")
				}
				got := t.exchange(handlers[i%len(handlers)], req)
				if got.status != http.StatusOK && got.status != http.StatusTooManyRequests || got.status == http.StatusTooManyRequests && got.decision == "" {
					t.Errorf("%d, %v", got.status, got.header)
				}
				time.Sleep(time.Millisecond)
			}
		}(g)
	}
	for _, set := range [][]string{
		{"limit", "50", "window", "1h", "limit:own", "70", "allow:" + hashOf("let through"), v.until(3600) + " 100000 own=100000", "block:" + hashOf("blocked"), v.until(3600)},
		{"epoch", "VERSION " + v.until(0), "dryRun", "true", "enabled", "false"},
		{"enabled", "true", "dryRun", "false", "window", "", "limit", "1000"},
		{"dryRun", "", "enabled", "", "limit", "", "limit:own", "", "window", "", "allow:" + hashOf("let through"), "", "block:" + hashOf("blocked"), "", "epoch", ""},
	} {
		t.obeyed(v, v.change(scope, set...), names...)
	}
	stop.Store(true)
	running.Wait()
	for i, h := range handlers {
		if got := t.exchange(h, keyed("blocked")); got.status != http.StatusOK || got.decision != "shared" {
			t.Errorf("middleware %d, when nothing is set any more: %d, %s", i, got.status, got.decision)
		}
	}
}

func gatewayReports(t *T) {
	t.Parallel()
	v := t.valkey()
	name, scope := t.name(), t.scopeName()
	version := v.change(scope, "limit", "7", "window:own", "2h", "limit:buckets", "9")
	t.handler(name, t.controlled(v, scope, "window", "1d", "sourceCriterion", map[string]any{"requestHeaderName": "x-API-key", "onMissing": "shared"}, "rules", []any{
		entry("name", "own", "path", "/own", "limit", "3", "dryRun", "true", "sourceCriterion", map[string]any{"requestHost": "true"}),
		entry("name", "buckets", "path", "/b", "algorithm", "token-bucket", "limit", "5"),
	}))
	t.obeyed(v, version, name)
	report, _ := v.report(name)
	host, _ := os.Hostname()
	if report.Version != version || report.Host != host || report.Software == "" || !report.Enabled || report.DryRun || report.Keyed || len(report.Middlewares) != 1 {
		t.Fatalf("the report is %+v", report)
	}
	if now := v.in(0); report.At < now-60 || report.At > now+1 {
		t.Errorf("reported at %d, and it is %d", report.At, now)
	}
	var got []string
	for _, rule := range report.Middlewares[0].Rules {
		for _, c := range rule.Counts {
			got = append(got, fmt.Sprintf("%s|%t|%s|%s|%d|%d|%d", rule.Rule, rule.DryRun, c.Count, c.Algorithm, c.Limit, c.Window, c.Burst))
		}
	}
	want := []string{"own|true|own|fixed-window|3|7200|0", "buckets|false|buckets|token-bucket|9|86400|9", "|false||fixed-window|7|86400|0"}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("the counts are %q, want %q", got, want)
	}
	rules := report.Middlewares[0].Rules
	if rules[0].Source["Host"] != true || rules[2].Source["Header"] != "X-Api-Key" || rules[2].Source["OnMissing"] != "shared" {
		t.Errorf("the sources are %v and %v", rules[0].Source, rules[2].Source)
	}
	key := "rate:" + scope + ":reports"
	if reports := v.controls.Hash(key); len(reports) != 1 {
		t.Errorf("the reports are %v", reports)
	} else {
		for gateway := range reports {
			v.mu.Lock()
			announced := v.gateways["rate:"+scope+":gateways"]
			v.mu.Unlock()
			t.eventually("the announcement without a request", func() bool {
				v.mu.Lock()
				defer v.mu.Unlock()
				announced = v.gateways["rate:"+scope+":gateways"]
				return len(announced) == 1
			})
			if _, same := announced[gateway]; !same {
				t.Errorf("announced as %v, and reported as %s", announced, gateway)
			}
		}
	}
}
