package suite

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// answers is about what a client is told.
var answers = tests{
	{"a refusal says when to come back", refusalSaysWhen},
	{"the time to come back is that to the end of the window", timeToEndOfWindow},
	{"allowed and refused requests have the same fields", fieldsOnEveryAnswer},
	{"the reset never moves away within a window", resetNeverGrows},
	{"headers chooses the fields", headerStyles},
	{"decisionHeader names the field or removes it", decisionHeader},
	{"an open store failure tells nobody by default", openTellsNobody},
	{"headers of outer middlewares stay", outerHeadersStay},
	{"two middlewares in one chain list both policies", chainListsBoth},
	{"the largest numbers are exact", largestNumbers},
	{"a refusal tells nothing of the request", refusalTellsNothing},
}

func refusalSaysWhen(t *T) {
	for _, left := range []time.Duration{59500 * time.Millisecond, 40500 * time.Millisecond, 1500 * time.Millisecond} {
		v := t.valkey()
		v.setTime(time.Unix(edge, 0).Add(-left))
		name := t.name()
		options := t.options(v, "limit", "1", "window", "60s")
		h := t.handler(name, options)
		got := t.ask(h, "key")
		for tries := 0; got.status == http.StatusOK && tries < 5; tries++ {
			got = t.ask(h, "key")
		}
		if got.status != http.StatusTooManyRequests || got.decision != "shared" || got.retryAfter > 60 || got.reset > 60 {
			t.Fatalf("with %s left: %d, %s, Retry-After %d, reset %d", left, got.status, got.decision, got.retryAfter, got.reset)
		}
		// Unless the edge came in between.
		if whole := int64(left/time.Second) + 1; v.now().Unix() < edge && got.retryAfter > whole {
			t.Errorf("with %s left the client shall wait %d s", left, got.retryAfter)
		}
		v.advance(time.Duration(got.retryAfter) * time.Second)
		// A gateway that has just asked the store for its time.
		if again := t.ask(t.handler(name, gateway(options, 1)), "key"); again.status != http.StatusOK {
			t.Errorf("with %s left the client waited %d s as it was told, and got %d", left, got.retryAfter, again.status)
		}
	}
}

func timeToEndOfWindow(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		length := roomy(600)
		h := t.handler(t.name(), with(options, "limit", "1", "window", seconds(length)))
		t.ask(h, "key")
		before := length - time.Now().Unix()%length
		got := t.ask(h, "key")
		after := length - time.Now().Unix()%length
		slack := int64(0)
		if way == "shared" {
			slack = 1 // the store's clock is known to a fraction of a second
		}
		if got.status != http.StatusTooManyRequests || got.retryAfter > before+slack || got.retryAfter < after-slack {
			t.Errorf("%d with Retry-After %d, want 429 with %d to %d", got.status, got.retryAfter, after, before)
		}
	})
}

func fieldsOnEveryAnswer(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		name := t.name()
		h := t.handler(name, with(options, "limit", "3"))
		policy := `"` + name + `";q=3;w=` + strings.TrimSuffix(options["window"].(string), "s")
		for i := 0; i < 10; i++ {
			got := t.ask(h, "key")
			if got.header.Get("RateLimit-Policy") != policy {
				t.Errorf("%d has the policy %q, want %q", got.status, got.header.Get("RateLimit-Policy"), policy)
			}
			state := quota.FindStringSubmatch(got.header.Get("RateLimit"))
			if state == nil || state[1] != name {
				t.Errorf("%d has RateLimit %q", got.status, got.header.Get("RateLimit"))
			}
			if got.limit != 3 || got.remaining < 0 || got.reset < 1 || got.decision != way {
				t.Errorf("%d has the limit %d, remaining %d, reset %d, decision %q", got.status, got.limit, got.remaining, got.reset, got.decision)
			}
		}
	})
}

func resetNeverGrows(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		h := t.handler(t.name(), with(options, "limit", "20"))
		last := t.ask(h, "key")
		for i := 0; i < 40; i++ {
			got := t.ask(h, "key")
			if got.reset > last.reset {
				t.Errorf("the reset is in %d s after it was in %d s", got.reset, last.reset)
			}
			last = got
		}
	})
}

func headerStyles(t *T) {
	for _, tt := range []struct {
		style        string
		ietf, legacy bool
	}{{"both", true, true}, {"ietf", true, false}, {"legacy", false, true}, {"none", false, false}} {
		t.sub(tt.style, func(t *T) {
			h := t.handler(t.name(), t.options(nil, "limit", "1", "headers", tt.style))
			for i := 0; i < 2; i++ {
				got := t.ask(h, "key")
				for field, want := range map[string]bool{
					"RateLimit": tt.ietf, "RateLimit-Policy": tt.ietf,
					"X-RateLimit-Limit": tt.legacy, "X-RateLimit-Remaining": tt.legacy, "X-RateLimit-Reset": tt.legacy,
					"X-RateLimit-Decision": true, "Retry-After": got.status == http.StatusTooManyRequests,
				} {
					if has := got.header.Get(field) != ""; has != want {
						t.Errorf("%d: %s is there: %t, want %t", got.status, field, has, want)
					}
				}
			}
		})
	}
}

func decisionHeader(t *T) {
	const usual = "X-RateLimit-Decision"
	for _, tt := range []struct {
		name    string
		setting any
		field   string
	}{{"default", absent, usual}, {"renamed", "x-how", "X-How"}, {"removed", "", ""}} {
		t.sub(tt.name, func(t *T) {
			for _, mode := range []string{"local", "closed"} {
				v := t.valkey()
				h := t.handler(t.name(), t.options(v, "decisionHeader", tt.setting, "onStoreFailure", mode))
				for _, want := range []string{"shared", mode} {
					got := t.ask(h, "key")
					if tt.field != "" && got.header.Get(tt.field) != want {
						t.Errorf("%s is %q, want %q", tt.field, got.header.Get(tt.field), want)
					}
					if tt.field != usual && got.header.Get(usual) != "" {
						t.Errorf("%s is there", usual)
					}
					v.Stop()
				}
			}
		})
	}
}

func openTellsNobody(t *T) {
	for _, field := range []string{"", "X-RateLimit-Decision"} {
		v := t.valkey()
		options := t.options(v, "onStoreFailure", "open")
		if field != "" {
			options = with(options, "decisionHeader", field)
		}
		h := t.handler(t.name(), options)
		for _, way := range []string{"shared", "open"} {
			want := ""
			if field != "" {
				want = way
			}
			if got := t.ask(h, "key"); got.decision != want || got.status != http.StatusOK {
				t.Errorf("%d, decision %q, want %q", got.status, got.decision, want)
			}
			v.Stop()
		}
	}
}

func outerHeadersStay(t *T) {
	v := t.valkey()
	for _, mode := range []string{"local", "closed"} {
		limited := t.handler(t.name(), t.options(v, "limit", "1", "onStoreFailure", mode))
		outer := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Access-Control-Allow-Origin", "https://example.com")
			w.Header().Add("Vary", "Origin")
			w.Header().Add("Vary", "Accept-Encoding")
			limited.ServeHTTP(w, req)
		})
		for i := 0; i < 2; i++ {
			got := t.ask(outer, "key")
			vary := strings.Join(got.header.Values("Vary"), ", ")
			if got.header.Get("Access-Control-Allow-Origin") != "https://example.com" || !strings.HasPrefix(vary, "Origin, Accept-Encoding") {
				t.Errorf("%d in mode %s lost fields: %v", got.status, mode, got.header)
			}
		}
		v.Stop()
	}
}

func chainListsBoth(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		outerName, innerName := t.name(), t.name()
		inner := t.handler(innerName, with(options, "limit", "3"))
		outer := t.before(inner, outerName, with(options, "limit", "100"))
		for i := int64(1); i <= 5; i++ {
			got := t.ask(outer, "key")
			if policy := got.header.Values("RateLimit-Policy"); len(policy) != 1 ||
				!strings.HasPrefix(policy[0], `"`+outerName+`";q=100;w=`) || !strings.Contains(policy[0], `, "`+innerName+`";q=3;w=`) {
				t.Errorf("RateLimit-Policy %q", policy)
			}
			if state := got.header.Values("RateLimit"); len(state) != 1 ||
				!strings.HasPrefix(state[0], `"`+outerName+`";r=`+strconv.FormatInt(100-i, 10)) || !strings.Contains(state[0], `, "`+innerName+`";r=`) {
				t.Errorf("RateLimit %q", state)
			}
			// The older fields tell of the tighter one.
			if got.limit != 3 || (got.status == http.StatusOK) != (i <= 3) {
				t.Errorf("request %d: %d, limit %d", i, got.status, got.limit)
			}
		}
	})
}

func largestNumbers(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		for _, limit := range []int64{4294967297, 1 << 31, 1_000_000_000, 999_999_999_999_999} {
			for _, window := range []int64{roomy(86400), roomy(31 * 86400), roomy(366 * 86400)} {
				name := t.name()
				h := t.handler(name, with(options, "limit", strconv.FormatInt(limit, 10), "window", seconds(window)))
				for i := int64(1); i <= 3; i++ {
					got := t.ask(h, "key")
					policy := `"` + name + `";q=` + strconv.FormatInt(limit, 10) + `;w=` + strconv.FormatInt(window, 10)
					if got.status != http.StatusOK || got.limit != limit || got.remaining != limit-i || got.decision != way {
						t.Errorf("limit %d in %d s: %d, limit %d, remaining %d, %s", limit, window, got.status, got.limit, got.remaining, got.decision)
					}
					if got.header.Get("RateLimit-Policy") != policy || got.reset > window {
						t.Errorf("limit %d in %d s: %v", limit, window, got.header)
					}
				}
			}
		}
	})
}

func refusalTellsNothing(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		for _, mode := range []string{"local", "closed"} {
			h := t.handler(t.name(), with(options, "limit", "1", "onStoreFailure", mode))
			for i := 0; i < 2; i++ {
				got := t.ask(h, "SECRET-e3f1")
				for field, values := range got.header {
					if strings.Contains(strings.Join(values, " "), "SECRET") {
						t.Errorf("the secret is in %s", field)
					}
				}
				if strings.Contains(got.body, "SECRET") {
					t.Errorf("the secret is in the body")
				}
			}
		}
	})
}
