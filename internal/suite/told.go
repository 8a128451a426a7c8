package suite

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"sort"
	"strings"
)

// told is about the forms of what clients are told.
var told = tests{
	{"response replaces what a refused client gets", responseReplaced},
	{"problem details name the limits that refused", problemDetails},
	{"a refusal in each form that a client may ask for", refusalForms},
	{"exposeHeaders lists the fields that are sent", fieldsExposed},
	{"headers and decisionHeader hold for several limits", fieldsOfSeveral},
	{"two middlewares in one chain list all of their limits", chainOfSeveral},
}

func responseReplaced(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		for _, tt := range []struct {
			name     string
			response map[string]any
			status   int
			kind     string
			body     string // of a client that accepts JSON, "" where it is ours
		}{
			{"all", map[string]any{"status": "420", "body": "<p>slow down</p>\n", "contentType": "text/html; charset=utf-8"}, 420, "text/html; charset=utf-8", "<p>slow down</p>\n"},
			{"JSON", map[string]any{"status": float64(503), "body": `{"error":"%"}`, "contentType": "application/json"}, 503, "application/json", `{"error":"%"}`},
			{"body alone", map[string]any{"body": "wait"}, 429, "text/plain; charset=utf-8", "wait"},
			{"status alone", map[string]any{"status": "400"}, 400, "application/problem+json", ""},
		} {
			h := t.handler(t.name(), with(options, "limit", "1", "response", tt.response, "rules", []any{
				entry("name", "several", "path", "/several", "limits", []any{entry("name", "a", "limit", "1", "window", seconds(roomy(600))), entry("name", "b", "limit", "2", "window", seconds(roomy(600)))}),
			}))
			for _, path := range []string{"/", "/several"} {
				if got := t.exchange(h, get(path)); got.status != 200 {
					t.Errorf("%s: %d", tt.name, got.status)
				}
				for _, method := range []string{"GET", "POST", "HEAD"} {
					got := t.exchange(h, request(method, path, "Accept", "application/json"))
					if got.status != tt.status || got.header.Get("Content-Type") != tt.kind || got.retryAfter < 1 || got.remaining != 0 || got.header.Get("Cache-Control") != "no-store" {
						t.Errorf("%s, %s %s: %d, %v", tt.name, method, path, got.status, got.header)
					}
					if method == "HEAD" {
						if got.body != "" {
							t.Errorf("%s: HEAD has the body %q", tt.name, got.body)
						}
						continue
					}
					if tt.body != "" && got.body != tt.body || got.header.Get("Content-Length") != fmt.Sprint(len(got.body)) {
						t.Errorf("%s: %q of length %s", tt.name, got.body, got.header.Get("Content-Length"))
					}
					var problem struct{ Status int }
					if tt.body == "" && (json.Unmarshal([]byte(got.body), &problem) != nil || problem.Status != tt.status) {
						t.Errorf("%s: %s", tt.name, got.body)
					}
				}
			}
		}
	})
	// It is for who is over a limit and for nobody else.
	response := map[string]any{"status": "420", "body": "own"}
	v := t.valkey()
	v.Stop()
	for _, options := range []map[string]any{
		t.options(v, "onStoreFailure", "closed", "response", response), guarded(t.options(nil, "response", response), "1"),
		t.options(nil, "response", response, "sourceCriterion", map[string]any{"requestHeaderName": "X-None", "onMissing": "refuse"}),
	} {
		h := t.handler(t.name(), options)
		t.exchange(h, get("/"))
		if got := t.exchange(h, get("/")); got.status != 503 && got.status != 400 || got.body == "own" {
			t.Errorf("%d, %q", got.status, got.body)
		}
	}
}

// problem is what clients read of problem details.
type problem struct {
	Type     string
	Title    string
	Status   int
	Violated []string `json:"violated-policies"`
}

func (t *T) problem(a answer) (p problem) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.header.Get("Content-Type") != "application/problem+json" || a.header.Get("Content-Length") != fmt.Sprint(len(a.body)) {
		t.Errorf("no problem details: %v, %v, %q", err, a.header, a.body)
	}
	if p.Status != a.status || p.Title == "" {
		t.Errorf("problem details of %d: %s", a.status, a.body)
	}
	return p
}

func problemDetails(t *T) {
	const exceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	t.eachWay(func(t *T, options map[string]any, way string) {
		for _, tt := range []struct {
			short, long int64
			want        []string
		}{{1, 2, []string{":short"}}, {2, 1, []string{":long"}}, {1, 1, []string{":short", ":long"}}} {
			name := t.name()
			h := t.handler(name, twoLimits(options, tt.short, tt.long))
			t.exchange(h, get("/"))
			p := t.problem(t.exchange(h, get("/", "Accept", "application/json")))
			var want []string
			for _, each := range tt.want {
				want = append(want, name+each)
			}
			if p.Type != exceeded || !reflect.DeepEqual(p.Violated, want) {
				t.Errorf("limits %d and %d: %+v, want %q", tt.short, tt.long, p, want)
			}
		}
		name := t.name()
		h := t.handler(name, with(options, "limit", "1", "rules", []any{entry("name", "login", "path", "/login", "limit", "1")}))
		for path, want := range map[string]string{"/": name, "/login": name + ":login"} {
			t.exchange(h, get(path))
			if p := t.problem(t.exchange(h, get(path, "Accept", "application/problem+json"))); p.Type != exceeded || !reflect.DeepEqual(p.Violated, []string{want}) {
				t.Errorf("%s: %+v, want %q", path, p, want)
			}
		}
	})
	v := t.valkey()
	v.Stop()
	for _, h := range []http.Handler{t.handler(t.name(), t.options(v, "onStoreFailure", "closed")), t.handler(t.name(), guarded(t.options(nil), "1"))} {
		t.exchange(h, get("/"))
		got := t.exchange(h, get("/", "Accept", "application/json"))
		if p := t.problem(got); got.status != 503 || !strings.HasSuffix(p.Type, "#temporary-reduced-capacity") || len(p.Violated) > 0 {
			t.Errorf("%d: %+v", got.status, p)
		}
	}
}

func refusalForms(t *T) {
	v := t.valkey()
	v.Stop()
	for _, tt := range []struct {
		name    string
		options map[string]any
		status  int
		grpc    string
	}{
		{"one limit", t.options(nil, "limit", "1"), 429, "8"},
		{"under rules", ruled(t.options(nil, "rules", absent), entry("name", "all", "pathPrefix", "/", "methods", "GET,POST,HEAD", "limit", "1")), 429, "8"},
		{"several limits", twoLimits(t.options(nil), 1, 2), 429, "8"},
		{"cost above the plan", t.options(nil, "cost", "5", "plans", map[string]any{"header": "X-Plan", "default": "free", "values": allowances("free", "1")}), 429, "8"},
		{"gateway", guarded(t.options(nil), "1"), 503, "14"},
		{"closed", t.options(v, "onStoreFailure", "closed"), 503, "14"},
		{"closed under rules", ruled(t.options(v, "onStoreFailure", "closed"), entry("name", "x", "path", "/x")), 503, "14"},
		{"no part", t.options(nil, "sourceCriterion", map[string]any{"requestHeaderName": "X-None", "onMissing": "refuse"}), 400, "3"},
	} {
		h := t.handler(t.name(), tt.options)
		t.exchange(h, get("/"))
		for _, form := range []struct {
			method, field, value, kind string
			empty                      bool
		}{
			{"GET", "Accept", "", "text/plain; charset=utf-8", false},
			{"GET", "Accept", "text/html", "text/plain; charset=utf-8", false},
			{"GET", "Accept", "*/*", "text/plain; charset=utf-8", false},
			{"GET", "Accept", "application/json", "application/problem+json", false},
			{"POST", "Accept", "text/html, application/json;q=0.5", "application/problem+json", false},
			{"HEAD", "Accept", "*/*", "text/plain; charset=utf-8", true},
			{"HEAD", "Accept", "application/json", "application/problem+json", true},
			{"POST", "Content-Type", "application/grpc", "application/grpc", true},
			{"POST", "Content-Type", "application/grpc+proto", "application/grpc", true},
			{"POST", "Content-Type", "application/json", "text/plain; charset=utf-8", false},
		} {
			got := t.exchange(h, request(form.method, "/", form.field, form.value))
			isGRPC := strings.HasPrefix(form.value, "application/grpc")
			status := tt.status
			if isGRPC {
				status = 200
			}
			if got.status != status || got.header.Get("Content-Type") != form.kind || (got.body == "") != form.empty || got.header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s, %+v: %d, %v, %q", tt.name, form, got.status, got.header, got.body)
			}
			if code := got.header.Get("Grpc-Status"); isGRPC && code != tt.grpc || !isGRPC && code != "" {
				t.Errorf("%s, %+v: gRPC status %q", tt.name, form, code)
			}
			if !form.empty && got.header.Get("Content-Length") != fmt.Sprint(len(got.body)) {
				t.Errorf("%s, %+v: length %s of %q", tt.name, form, got.header.Get("Content-Length"), got.body)
			}
			if vary := strings.Join(got.header.Values("Vary"), ","); !isGRPC && !strings.Contains(vary, "Accept") {
				t.Errorf("%s, %+v: Vary %q", tt.name, form, vary)
			}
			if waits := got.retryAfter > 0; waits != (tt.status != 400 && tt.name != "cost above the plan") {
				t.Errorf("%s, %+v: Retry-After %d", tt.name, form, got.retryAfter)
			}
		}
	}
}

// ours are the fields of an answer that are the middleware's own.
func ours(h http.Header) []string {
	var names []string
	for name := range h {
		if strings.Contains(name, "Ratelimit") || name == "Retry-After" || name == "X-Way" || strings.HasPrefix(name, "Grpc-") {
			names = append(names, strings.ToLower(name))
		}
	}
	sort.Strings(names)
	return names
}

// exposed are the fields that scripts may read.
func exposed(h http.Header) []string {
	var names []string
	for _, line := range h.Values("Access-Control-Expose-Headers") {
		for _, name := range strings.Split(line, ",") {
			names = append(names, strings.ToLower(strings.TrimSpace(name)))
		}
	}
	sort.Strings(names)
	return names
}

func fieldsExposed(t *T) {
	v := t.valkey()
	v.Stop()
	for i, options := range []map[string]any{
		t.options(nil, "limit", "1"), t.options(nil, "limit", "1", "headers", "ietf"), t.options(nil, "limit", "1", "headers", "legacy", "decisionHeader", "X-Way"),
		t.options(nil, "limit", "1", "headers", "none", "decisionHeader", ""), twoLimits(t.options(nil), 1, 2), t.options(nil, "limit", "1", "dryRun", "true"),
		ruled(t.options(nil), entry("name", "all", "pathPrefix", "/", "methods", "GET", "limit", "1")), guarded(t.options(nil), "1"),
		t.options(v, "onStoreFailure", "closed"), t.options(v, "onStoreFailure", "open"), t.options(v),
	} {
		for _, expose := range []any{"true", true, "false", absent} {
			h := t.handler(t.name(), with(options, "exposeHeaders", expose))
			for n := 0; n < 2; n++ {
				got := t.exchange(h, get("/"))
				want := ours(got.header)
				if expose != any("true") && expose != any(true) {
					want = nil
				}
				if !reflect.DeepEqual(exposed(got.header), want) {
					t.Errorf("options %d, exposeHeaders %v: %d exposes %q of %q", i, expose, got.status, exposed(got.header), want)
				}
			}
		}
	}
	// What another middleware exposes stays, and nothing is listed twice.
	limited := t.handler(t.name(), t.options(nil, "limit", "1", "exposeHeaders", "true"))
	outer := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Access-Control-Expose-Headers", "X-Other, retry-after")
		limited.ServeHTTP(w, req)
	})
	for n := 0; n < 2; n++ {
		got := t.exchange(outer, get("/"))
		want := append(ours(got.header), "x-other")
		if n == 0 {
			want = append(want, "retry-after")
		}
		sort.Strings(want)
		if !reflect.DeepEqual(exposed(got.header), want) {
			t.Errorf("%d exposes %q, want %q", got.status, exposed(got.header), want)
		}
	}
}

func fieldsOfSeveral(t *T) {
	for style, want := range map[string][]string{
		"both":   {"ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"},
		"ietf":   {"ratelimit", "ratelimit-policy"},
		"legacy": {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"},
		"none":   nil,
	} {
		for _, decision := range []any{absent, "", "x-way"} {
			h := t.handler(t.name(), with(twoLimits(t.options(nil), 1, 2), "headers", style, "decisionHeader", decision))
			for _, status := range []int{200, 429} {
				got := t.exchange(h, get("/"))
				want := append([]string{}, want...)
				if status == 429 {
					want = append(want, "retry-after")
				}
				switch decision {
				case any(absent):
					want = append(want, "x-ratelimit-decision")
				case any("x-way"):
					want = append(want, "x-way")
				}
				sort.Strings(want)
				if names := ours(got.header); got.status != status || fmt.Sprint(names) != fmt.Sprint(want) {
					t.Errorf("headers %s, decisionHeader %v: %d with %q, want %d with %q", style, decision, got.status, names, status, want)
				}
			}
		}
	}
}

func chainOfSeveral(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		outerName, innerName := t.name(), t.name()
		inner := t.handler(innerName, twoLimits(options, 9, 2))
		outer := t.before(inner, outerName, with(options, "limit", "50", "rules", []any{entry("name", "all", "pathPrefix", "/", "limit", "5", "methods", "GET")}))
		for i := int64(1); i <= 3; i++ {
			got := t.exchange(outer, get("/"))
			if want := fmt.Sprintf("%s:all %s:short %s:long", outerName, innerName, innerName); got.counts("none") != want {
				t.Errorf("request %d: RateLimit-Policy %q, want %s", i, got.header.Values("RateLimit-Policy"), want)
			}
			left := 2 - i
			if i > 2 {
				left = 0
			}
			short := 9 - i
			if i > 2 {
				short = 7
			}
			if want := map[string]int64{"all": 5 - i, "short": short, "long": left}; !reflect.DeepEqual(got.lefts(), want) || got.limit != 2 || got.remaining != left || got.decision != way {
				t.Errorf("request %d: %v, limit %d, remaining %d, want %v", i, got.header.Values("RateLimit"), got.limit, got.remaining, want)
			}
		}
	})
}
