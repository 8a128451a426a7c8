package suite

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
	"github.com/gatequota/gatequota/internal/meaning"
)

// algorithms is about what the other ways to count have of their own.
var algorithms = tests{
	{"each algorithm is exact, request by request", eachExact},
	{"each algorithm is exact while many ask, over two gateways", eachAtOnce},
	{"each algorithm tells the policy and what is left", eachTells},
	{"whoever waits as an algorithm says gets through", eachWaits},
	{"a sliding window does not forget at its edge", slidingEdge},
	{"a log frees each request on its own", logFrees},
	{"a bucket holds a burst, and refills evenly", bucketRefills},
	{"dear requests of each algorithm take all or nothing", eachDear},
	{"each algorithm has keys of its own", eachKey},
	{"rules count by algorithms of their own", ruleAlgorithms},
	{"several limits of each algorithm", eachSeveral},
	{"plans and overrides of each algorithm", eachPlan},
	{"each algorithm while the store is away", eachAway},
	{"what each algorithm passed without the store is counted once", eachReturns},
	{"each algorithm outlives a reload, and one that changes the limit", eachReload},
	{"refusals of each algorithm cost the store nothing", eachFromMemory},
	{"options that an algorithm cannot keep are refused", algorithmMisfits},
}

// others are the algorithms but for the fixed window, and what stands in their keys.
var others = []struct{ name, key string }{{"sliding-window", "sw"}, {"sliding-log", "log"}, {"token-bucket", "tb"}}

// eachOther runs a test once for each algorithm and each reason to count here or there.
func (t *T) eachOther(run func(t *T, options map[string]any, algorithm, way string)) {
	t.Helper()
	for _, other := range others {
		t.sub(other.name, func(t *T) {
			t.eachWay(func(t *T, options map[string]any, way string) {
				run(t, with(options, "algorithm", other.name), other.name, way)
			})
		})
	}
}

// registerAlgorithms gives a server the scripts of these algorithms.
func (v *valkey) registerAlgorithms() {
	v.algorithms = meaning.New(func() int64 { return v.now().UnixMilli() }, v.t.Errorf)
	for _, script := range meaning.Scripts {
		script := script
		v.Register(script, func(_ *fakevalkey.Server, args []string) string {
			for _, arg := range args {
				if !strings.Contains(arg, "{") {
					break
				}
				if !clientKey.MatchString(arg) {
					v.t.Errorf("key %q is not prefix:scope:algorithm:{sha256}:window", arg)
				}
			}
			v.mu.Lock()
			forbidden := v.forbidden != "" && strings.HasPrefix(args[0], v.forbidden)
			v.mu.Unlock()
			if forbidden {
				return fakevalkey.Error("NOPERM No permissions to access a key")
			}
			return v.algorithms.Call(script, args)
		})
	}
}

// asked is ask for a request that may be told to come again before all is reset.
func (t *T) asked(h http.Handler, key string) answer {
	t.Helper()
	got := t.exchange(h, keyed(key))
	if got.status == http.StatusTooManyRequests && (got.retryAfter < 1 || got.retryAfter > got.reset) {
		t.Errorf("429 with Retry-After %d and the reset %d", got.retryAfter, got.reset)
	}
	return got
}

func eachExact(t *T) {
	t.eachOther(func(t *T, options map[string]any, _, way string) {
		for _, limit := range []int64{1, 2, 30} {
			h := t.handler(t.name(), with(options, "limit", strconv.FormatInt(limit, 10), "window", "1d"))
			for i := int64(1); i <= limit+5; i++ {
				got := t.asked(h, "key")
				status, left := http.StatusOK, limit-i
				if i > limit {
					status, left = http.StatusTooManyRequests, 0
				}
				if got.status != status || got.remaining != left || got.limit != limit || got.decision != way {
					t.Fatalf("limit %d, request %d: %d, %d of %d left, %s; want %d, %d", limit, i, got.status, got.remaining, got.limit, got.decision, status, left)
				}
				if got.reset < 1 || got.reset > 2*86400 || status != http.StatusOK && (got.retryAfter < 1 || got.retryAfter > 2*86400) {
					t.Fatalf("limit %d, request %d: reset %d, Retry-After %d", limit, i, got.reset, got.retryAfter)
				}
			}
			if got := t.asked(h, "another key"); got.status != http.StatusOK || got.remaining != limit-1 {
				t.Errorf("limit %d: another client gets %d, %d left", limit, got.status, got.remaining)
			}
		}
	})
}

func eachAtOnce(t *T) {
	for _, other := range others {
		t.sub(other.name, func(t *T) {
			for _, limit := range []int64{1, 20, 100} {
				v := t.valkey()
				options := with(t.options(v), "algorithm", other.name, "limit", strconv.FormatInt(limit, 10), "window", "1d")
				name := t.name()
				routers := []http.Handler{t.handler(name, gateway(options, 1)), t.handler(name, gateway(options, 2)), t.handler(name, gateway(options, 1))}
				t.exact(rush(16, 300, func(i int) answer { return t.asked(routers[i%3], "key") }), limit, "shared")
			}
			h := t.handler(t.name(), with(t.options(nil), "algorithm", other.name, "limit", "50", "window", "1d"))
			t.exact(rush(16, 300, func(int) answer { return t.asked(h, "key") }), 50, "local")
		})
	}
}

func eachTells(t *T) {
	t.eachOther(func(t *T, options map[string]any, algorithm, _ string) {
		name := t.name()
		got := t.asked(t.handler(name, with(options, "limit", "7", "window", "3600s")), "key")
		if policy := got.header.Get("RateLimit-Policy"); policy != fmt.Sprintf(`"%s";q=7;w=3600`, name) {
			t.Errorf("the policy is %s", policy)
		}
		// A log has all of it again after a window, a sliding one when nothing of the request
		// weighs any more, and a bucket when the token is there.
		least, most := int64(3600), int64(3600)
		switch algorithm {
		case "sliding-window":
			most = 7200
			least = 1
		case "token-bucket":
			least, most = 514, 515
		}
		if got.reset < least || got.reset > most || !regexp.MustCompile(fmt.Sprintf(`^"%s";r=6;t=%d$`, regexp.QuoteMeta(name), got.reset)).MatchString(got.header.Get("RateLimit")) {
			t.Errorf("the reset is %d, want %d to %d; RateLimit %s", got.reset, least, most, got.header.Get("RateLimit"))
		}
	})
}

func eachWaits(t *T) {
	for _, other := range others {
		t.sub(other.name, func(t *T) {
			for _, limit := range []int64{1, 3, 10} {
				v := t.longAgo()
				name := t.name()
				options := with(t.options(v), "algorithm", other.name, "limit", strconv.FormatInt(limit, 10), "window", "1h")
				h := t.handler(name, gateway(options, 1))
				for gate := 2; gate < 8; gate++ {
					got := t.asked(h, "key")
					for i := int64(0); got.status == http.StatusOK && i < limit; i++ {
						got = t.asked(h, "key")
					}
					longest := int64(3600)
					switch other.name {
					case "sliding-window":
						longest = 7200
					case "token-bucket":
						longest = (3600 + limit - 1) / limit
					}
					if got.status != http.StatusTooManyRequests || got.retryAfter < 1 || got.retryAfter > longest {
						t.Fatalf("limit %d: %d with Retry-After %d, at most %d", limit, got.status, got.retryAfter, longest)
					}
					v.advance(time.Duration(got.retryAfter) * time.Second)
					// Another gateway, which learns of the time when it opens its connection.
					h = t.handler(name, gateway(options, gate))
					if after := t.asked(h, "key"); after.status != http.StatusOK {
						t.Fatalf("limit %d: the client waited %d s as it was told, and got %d", limit, got.retryAfter, after.status)
					}
				}
			}
		})
	}
}

// longAgo is a server whose clock is far behind: a gateway that has not asked it yet takes
// all that it knows for over, and learns the time when it asks.
func (t *T) longAgo() *valkey {
	t.Helper()
	v := t.valkey()
	v.setTime(time.Unix(1700000000, 0))
	return v
}

func slidingEdge(t *T) {
	v := t.longAgo()
	v.setTime(time.Unix(1700002800-10, 0)) // 10 s before an hour ends
	name := t.name()
	options := with(t.options(v), "algorithm", "sliding-window", "limit", "10", "window", "1h")
	if got := t.allowed(t.handler(name, gateway(options, 1)), 15, func() *http.Request { return keyed("key") }); got != 10 {
		t.Fatalf("%d of 10 passed before the edge", got)
	}
	for i, tt := range []struct {
		after   time.Duration
		allowed int
	}{{20 * time.Second, 1}, {30 * time.Minute, 5}, {30 * time.Minute, 5}} {
		v.advance(tt.after)
		got := t.allowed(t.handler(name, gateway(options, 2+i)), 15, func() *http.Request { return keyed("key") })
		if got != tt.allowed {
			t.Errorf("%s later %d passed, want %d", tt.after, got, tt.allowed)
		}
	}
}

func logFrees(t *T) {
	v := t.longAgo()
	name := t.name()
	options := with(t.options(v), "algorithm", "sliding-log", "limit", "3", "window", "1h")
	for i := 0; i < 3; i++ {
		if got := t.asked(t.handler(name, gateway(options, 1+i)), "key"); got.status != http.StatusOK {
			t.Fatalf("request %d: %d", i, got.status)
		}
		v.advance(10 * time.Minute)
	}
	h := t.handler(name, gateway(options, 4))
	// The first came half an hour ago.
	if got := t.asked(h, "key"); got.status != http.StatusTooManyRequests || got.retryAfter < 1700 || got.retryAfter > 1800 || got.reset < 2900 || got.reset > 3000 {
		t.Errorf("%d with Retry-After %d, reset %d; want 1800, 3000", got.status, got.retryAfter, got.reset)
	}
	v.advance(30 * time.Minute)
	h = t.handler(name, gateway(options, 5))
	if got := t.allowed(h, 5, func() *http.Request { return keyed("key") }); got != 1 {
		t.Errorf("%d passed when the first left the window, want 1", got)
	}
}

func bucketRefills(t *T) {
	v := t.longAgo()
	name := t.name()
	options := with(t.options(v), "algorithm", "token-bucket", "limit", "6", "window", "1h", "burst", "9")
	count := func(gate int) int {
		return t.allowed(t.handler(name, gateway(options, gate)), 20, func() *http.Request { return keyed("key") })
	}
	if got := count(1); got != 9 {
		t.Fatalf("a burst of %d passed, want 9", got)
	}
	for i, tt := range []struct {
		after   time.Duration
		allowed int
	}{{9 * time.Minute, 0}, {time.Minute, 1}, {30 * time.Minute, 3}, {10 * time.Hour, 9}} {
		v.advance(tt.after)
		if got := count(2 + i); got != tt.allowed {
			t.Errorf("%s later %d passed, want %d", tt.after, got, tt.allowed)
		}
	}
	// In memory too, and a burst below the limit.
	h := t.handler(t.name(), with(t.options(nil), "algorithm", "token-bucket", "limit", "6", "window", "1d", "burst", "2"))
	if got := t.allowed(h, 20, func() *http.Request { return keyed("key") }); got != 2 {
		t.Errorf("a burst of %d passed, want 2", got)
	}
}

func eachDear(t *T) {
	t.eachOther(func(t *T, options map[string]any, _, way string) {
		h := t.handler(t.name(), with(options, "limit", "20", "window", "1d", "cost", "7"))
		for i, left := range []int64{13, 6, 6, 6} {
			got := t.asked(h, "key")
			status := http.StatusOK
			if i > 1 {
				status = http.StatusTooManyRequests
			}
			if got.status != status || got.remaining != left || got.decision != way {
				t.Errorf("request %d: %d, %d left, %s; want %d, %d", i+1, got.status, got.remaining, got.decision, status, left)
			}
		}
	})
}

func eachKey(t *T) {
	v := t.valkey()
	scope := strings.Replace(t.name(), "@", ".", 1)
	options := with(t.options(v), "scope", scope, "window", "1h")
	for _, other := range others {
		t.asked(t.handler(t.name(), with(options, "algorithm", other.name)), "key")
		keys := v.algorithms.Keys(":" + scope + ":" + other.key + ":{")
		if want := 1; len(keys) < want || other.key != "sw" && len(keys) > want {
			t.Errorf("%s: the keys are %q", other.name, keys)
		}
	}
	// None of them is in the way of another.
	if got := t.asked(t.handler(t.name(), options), "key"); got.remaining != 4 {
		t.Errorf("beside other algorithms %d are left, want 4", got.remaining)
	}
}

func ruleAlgorithms(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		rules := []any{}
		for _, other := range others {
			rules = append(rules, entry("name", "by-"+other.key, "path", "/"+other.key, "limit", "3", "window", "1d", "algorithm", other.name))
		}
		h := t.handler(t.name(), with(options, "rules", rules))
		for _, path := range []string{"/", "/sw", "/log", "/tb"} {
			limit := 3
			if path == "/" {
				limit = 5
			}
			if got := t.allowed(h, 10, func() *http.Request { return get(path, "X-Api-Key", "key") }); got != limit {
				t.Errorf("%s: %d passed, want %d, %s", path, got, limit, way)
			}
		}
	})
}

func eachSeveral(t *T) {
	t.eachOther(func(t *T, options map[string]any, _, way string) {
		options = with(options, "limit", absent, "window", absent, "limits", []any{
			entry("name", "short", "limit", "3", "window", "1h"), entry("name", "long", "limit", "5", "window", "1d"),
		})
		h := t.handler(t.name(), options)
		for i := int64(1); i <= 8; i++ {
			got := t.asked(h, "key")
			left, status := 3-i, http.StatusOK
			if i > 3 {
				left, status = 0, http.StatusTooManyRequests
			}
			if lefts := got.lefts(); got.status != status || lefts["short"] != left || lefts["long"] != left+2 || got.decision != way {
				t.Errorf("request %d: %d, %v; want %d, %d and %d", i, got.status, lefts, status, left, left+2)
			}
		}
	})
}

func eachPlan(t *T) {
	t.eachOther(func(t *T, options map[string]any, algorithm, _ string) {
		gold := map[string]any{"limit": "8"}
		key := entry("value", "vip", "limit", "6")
		most := 8
		if algorithm == "token-bucket" {
			gold["burst"] = "12"
			most = 12
		}
		h := t.handler(t.name(), with(options, "limit", "4", "window", "1d",
			"plans", map[string]any{"header": "X-Plan", "values": map[string]any{"gold": gold}}, "overrides", []any{key}))
		for _, tt := range []struct {
			who, plan string
			want      int
		}{{"plain", "", 4}, {"rich", "gold", most}, {"vip", "", 6}} {
			got := t.allowed(h, 20, func() *http.Request {
				req := keyed(tt.who)
				if tt.plan != "" {
					req.Header.Set("X-Plan", tt.plan)
				}
				return req
			})
			if got != tt.want {
				t.Errorf("%s: %d passed, want %d", tt.who, got, tt.want)
			}
		}
		// Another plan is another limit on the same count, also for who was just refused.
		got := t.allowed(h, 20, func() *http.Request {
			req := keyed("plain")
			req.Header.Set("X-Plan", "gold")
			return req
		})
		if got != most-4 {
			t.Errorf("who changed the plan got %d, want %d", got, most-4)
		}
	})
}

func eachAway(t *T) {
	for _, other := range others {
		for _, mode := range []string{"local", "closed", "open"} {
			t.sub(other.name+", "+mode, func(t *T) {
				v := t.valkey()
				h := t.handler(t.name(), with(t.options(v), "algorithm", other.name, "window", "1d", "onStoreFailure", mode, "decisionHeader", "X-RateLimit-Decision"))
				t.asked(h, "key")
				t.asked(h, "key")
				v.Stop()
				statuses := map[int]int{}
				for i := 0; i < 8; i++ {
					got := t.asked(h, "key")
					statuses[got.status]++
					if got.status == http.StatusServiceUnavailable && (got.retryAfter < 1 || got.retryAfter > 5) || got.decision != mode {
						t.Errorf("%d, Retry-After %d, %s", got.status, got.retryAfter, got.decision)
					}
				}
				if want := map[string]int{"local": 3, "open": 8}[mode]; statuses[http.StatusOK] != want || mode == "closed" && statuses[http.StatusServiceUnavailable] != 8 {
					t.Errorf("%v, want %d passed", statuses, want)
				}
			})
		}
	}
}

func eachReturns(t *T) {
	for _, other := range others {
		t.sub(other.name, func(t *T) {
			v := t.valkey()
			name := t.name()
			options := with(t.options(v), "algorithm", other.name, "window", "1d", "limit", "20")
			h := t.handler(name, gateway(options, 1))
			for i := 0; i < 4; i++ {
				t.asked(h, "key")
			}
			v.Stop()
			passed := int64(4)
			for i := 0; i < 6; i++ {
				if got := t.asked(h, "key"); got.status != http.StatusOK || got.decision != "local" {
					t.Fatalf("without the store: %d, %s", got.status, got.decision)
				}
				passed++
			}
			if err := v.Restart(); err != nil {
				t.Fatal(err)
			}
			t.eventually("a shared answer", func() bool {
				got := t.asked(h, "key")
				if got.status == http.StatusOK {
					passed++
				}
				return got.decision == "shared"
			})
			// Another gateway is told what is left.
			got := t.asked(t.handler(name, gateway(options, 2)), "key")
			if got.decision != "shared" || got.status == http.StatusOK && got.remaining != 20-passed-1 || got.status != http.StatusOK && passed < 20 {
				t.Errorf("another gateway after %d passed: %d, %d left", passed, got.status, got.remaining)
			}
		})
	}
}

func eachReload(t *T) {
	t.eachOther(func(t *T, options map[string]any, _, way string) {
		name := t.name()
		options = with(options, "window", "1d")
		h := t.handler(name, options)
		for i := 0; i < 8; i++ {
			t.asked(h, "key")
		}
		if got := t.asked(t.handler(name, options), "key"); got.status != http.StatusTooManyRequests {
			t.Errorf("after a reload: %d", got.status)
		}
		if got := t.allowed(t.handler(name, with(options, "limit", "9")), 20, func() *http.Request { return keyed("key") }); got != 4 {
			t.Errorf("after a reload with a limit of 9 instead of 5: %d passed, want 4 more, %s", got, way)
		}
	})
}

func eachFromMemory(t *T) {
	for _, other := range others {
		t.sub(other.name, func(t *T) {
			v := t.valkey()
			scope := strings.Replace(t.name(), "@", ".", 1)
			h := t.handler(t.name(), with(t.options(v), "algorithm", other.name, "window", "1d", "scope", scope))
			for i := 0; i < 7; i++ {
				t.asked(h, "key")
			}
			before, _ := v.calls(scope)
			for i := 0; i < 20; i++ {
				if got := t.asked(h, "key"); got.status != http.StatusTooManyRequests || got.decision != "shared" || got.remaining != 0 {
					t.Errorf("%d, %s, %d left", got.status, got.decision, got.remaining)
				}
			}
			if after, _ := v.calls(scope); after != before {
				t.Errorf("the store was asked %d times for who is known to be refused", after-before)
			}
		})
	}
}

func algorithmMisfits(t *T) {
	for _, tt := range []struct {
		names   string // that the refusal has in it
		options []any
	}{
		{"algorithm", []any{"algorithm", "leaky-bucket"}},
		{"burst", []any{"burst", "5"}},
		{"burst", []any{"algorithm", "sliding-window", "burst", "5"}},
		{"burst", []any{"algorithm", "token-bucket", "burst", "0"}},
		{"burst", []any{"algorithm", "token-bucket", "burst", "010"}},
		{"limit", []any{"algorithm", "sliding-log", "limit", "10001"}},
		{"maxLog", []any{"algorithm", "sliding-log", "limit", "10001"}},
		{"limit", []any{"algorithm", "sliding-window", "limit", "999999999999999", "window", "366d"}},
		{"999999999999999", []any{"algorithm", "token-bucket", "limit", "5", "burst", "999999999999999", "window", "366d"}},
		{"cost", []any{"algorithm", "token-bucket", "limit", "9", "burst", "3", "cost", "4"}},
		{"cost", []any{"algorithm", "sliding-log", "limit", "3", "cost", "4"}},
	} {
		newHandler, err := t.plugin.Configure(t.ctx, t.name(), with(t.options(nil), tt.options...))
		if err == nil {
			_, err = newHandler(served)
		}
		if err == nil || !strings.Contains(err.Error(), tt.names) {
			t.Errorf("%v: %v, want a refusal that names %s", tt.options, err, tt.names)
		}
	}
	for _, right := range [][]any{
		{"algorithm", "fixed-window"},
		{"algorithm", "sliding-log", "limit", "10001", "maxLog", "20000"},
		{"algorithm", "sliding-window", "limit", "284000", "window", "366d"},
		{"algorithm", "token-bucket", "limit", "1", "window", "366d", "burst", "1"},
		{"algorithm", "token-bucket", "limit", "3", "burst", "9", "cost", "9"},
	} {
		t.asked(t.handler(t.name(), with(t.options(nil), right...)), "key")
	}
}
