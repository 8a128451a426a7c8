package docs

import (
	"context"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gatequota/gatequota"
	"github.com/gatequota/gatequota/source"
)

// What the page says is refused is, and what it says to write in its place is not.
func TestWhatCannotBeMeantIsRefused(t *testing.T) {
	twice := []any{map[string]any{"name": "one", "limit": "5"}, map[string]any{"name": "one", "limit": "6"}}
	plan := with("plans.values.<plan>.limit", "1")
	delete(plan, "limit")
	delete(plan, "window")
	plan["limits"] = []any{map[string]any{"name": "one", "limit": "100", "window": "1m"}}
	plan["plans"] = map[string]any{"header": "X-Plan", "values": map[string]any{"<plan>": map[string]any{"limits": twice}}}
	client := with("sourceCriterion.requestHeaderName", "X-API-Key")
	client["overrides"] = []any{
		map[string]any{"value": "alice", "limit": "5"},
		map[string]any{"hash": hex.EncodeToString([]byte(source.Digest("alice"))), "limit": "6"},
	}
	for name, options := range map[string]map[string]any{
		"a plan names a limit twice": plan, "a client has two overrides": client,
	} {
		if accepts(options) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	header := func(value string) map[string]any { return map[string]any{"name": "X-Kind", "value": value} }
	for _, tt := range []struct {
		option string
		value  any
		good   bool
	}{
		{"rules[].path", "/users/*", false}, {"rules[].path", "/users/%2A", true},
		{"rules[].path", "/users/{id}", false}, {"rules[].path", "/users/%7Bid%7D", true},
		{"rules[].path", "/users/:id", false}, {"rules[].path", "/users/%3Aid", true}, {"rules[].path", "/users/a:b", true},
		{"rules[].pathPrefix", "/api/*", false}, {"rules[].pathPrefix", "/{tenant}", false}, {"rules[].pathPrefix", "/:tenant", false},
		{"rules[].methods", "ANY", false}, {"rules[].methods", "all", false}, {"rules[].methods", "*", false}, {"rules[].methods", "post, PUT", true},
		{"exempt.methods", "ANY", false}, {"exempt.methods", "HEAD", true},
		{"rules[].header", header(""), false}, {"rules[].header", header("a"), true}, {"rules[].header", map[string]any{"name": "X-Kind"}, true},
		{"rules[].methods", []any{}, false}, {"rules[].methods", "", false},
		{"exempt.ips", []any{}, false}, {"exempt.paths", "", false},
		{"ipStrategy.excludedIPs", []any{}, false}, {"ipStrategy.trustedIPs", "", false},
	} {
		if err := accepts(with(tt.option, tt.value)); (err == nil) != tt.good {
			t.Errorf("%s: %q: %v", tt.option, tt.value, err)
		}
	}
}

// limited returns a middleware with a rule that is like the page's for a login.
func limited(t *testing.T, rules ...any) http.Handler {
	t.Helper()
	config, err := decode(map[string]any{
		"limit": "100", "window": "1d", "mode": "local", "scope": t.Name(), "rules": rules,
		"sourceCriterion": map[string]any{"requestHeaderName": "X-API-Key"},
		"exempt":          map[string]any{"paths": []any{"/static/*"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	handler, err := gatequota.New(context.Background(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), config, "docs@docs")
	if err != nil {
		t.Fatal(err)
	}
	return handler
}

func ask(handler http.Handler, key, method, target string) *httptest.ResponseRecorder {
	answer, req := httptest.NewRecorder(), httptest.NewRequest(method, target, nil)
	req.Header.Set("X-API-Key", key)
	handler.ServeHTTP(answer, req)
	return answer
}

// The spellings on the page count as log-ins, and besides as what else they are.
func TestAPathCountsInAllForms(t *testing.T) {
	handler := limited(t, map[string]any{"name": "login", "path": "/login", "limit": "5"})
	for _, target := range []string{"/login/", "//login", "/%6Cogin", "/static/..%2flogin", "/login;x"} {
		if !strings.Contains(page(t), "`"+target+"`") {
			t.Errorf("the page does not name %s", target)
		}
		for range 2 {
			if answer := ask(handler, target, http.MethodPost, "http://x"+target); answer.Code != http.StatusOK {
				t.Errorf("%s: %d", target, answer.Code)
			}
		}
		if left := ask(handler, target, http.MethodPost, "http://x/login").Header().Get("X-RateLimit-Remaining"); left != "2" {
			t.Errorf("%s: of 5 log-ins %s are left after three", target, left)
		}
		if left := ask(handler, target, http.MethodGet, "http://x/").Header().Get("X-RateLimit-Remaining"); left != "97" {
			t.Errorf("%s: of 100 requests %s are left after three", target, left)
		}
		for range 2 {
			ask(handler, target, http.MethodPost, "http://x/login")
		}
		if answer := ask(handler, target, http.MethodPost, "http://x"+target); answer.Code != http.StatusTooManyRequests {
			t.Errorf("%s passes beyond the limit: %d", target, answer.Code)
		}
	}
	for _, target := range []string{"/LOGIN", "/static/login"} {
		if ask(handler, "another", http.MethodPost, "http://x"+target).Header().Get("X-RateLimit-Limit") == "5" {
			t.Errorf("%s counts as a login", target)
		}
	}
	if left := ask(handler, "another", http.MethodPost, "http://x/login").Header().Get("X-RateLimit-Remaining"); left != "4" {
		t.Errorf("of 5 log-ins %s are left after the first", left)
	}
}

func TestMethodsAndLongPaths(t *testing.T) {
	handler := limited(t, map[string]any{"name": "reads", "pathRegex": "^/reads", "methods": []any{"GET"}, "limit": "5"})
	for method, limit := range map[string]string{"GET": "5", "get": "5", "HEAD": "100"} {
		if got := ask(handler, method, method, "http://x/reads").Header().Get("X-RateLimit-Limit"); got != limit {
			t.Errorf("%s: the limit is %s, want %s", method, got, limit)
		}
	}
	for length, status := range map[int]int{8 << 10: http.StatusOK, 8<<10 + 1: http.StatusRequestURITooLong} {
		answer := ask(handler, "long", http.MethodGet, "http://x/"+strings.Repeat("a", length-1))
		if answer.Code != status {
			t.Errorf("a path of %d bytes: %d, want %d", length, answer.Code, status)
		}
		if fields := answer.Header()["X-Ratelimit-Decision"]; (len(fields) > 0) != (status == http.StatusOK) {
			t.Errorf("a path of %d bytes: the decision is %q", length, fields)
		}
	}
}
