package suite

import (
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
)

// severalLimits is about requests that count in several limits, or cost more than one.
var severalLimits = tests{
	{"a request counts in all limits or in none", allOrNothing},
	{"the limit that binds is told, and all others too", bindingLimit},
	{"a client that waits as it is told gets through", waitingHelps},
	{"exactly the least of several limits passes, all at once", severalExact},
	{"up to eight limits are exact, from 1 on", eightLimits},
	{"several limits cost one call of the store", oneCall},
	{"each limit has its own count in the store", limitKeys},
	{"a request that is late for one window counts once in each", lateForOne},
	{"several limits and a store that fails", severalWithoutStore},
	{"maxClients bounds each of several counts", severalBounded},
	{"a gateway alone holds to its share of each limit", severalShares},
	{"garbage in place of several counts is no fault of the client", severalGarbage},
	{"a store that forgets the script counts on", severalForgotten},
	{"rights on one key prefix concern no other, with several limits", severalForbidden},
	{"all counts are settled when the store is back", severalSettled},
	{"counts are settled in the windows that they belong to", settledAcrossEdge},
	{"several limits stay bounded while the store comes and goes", severalStress},
	{"a dear request takes all that it costs or nothing", dearRequests},
	{"dear and cheap requests are exact together", dearAndCheap},
	{"a request above its plan's limit is refused for good", aboveThePlan},
	{"costs near the largest limit are exact", largestCosts},
	{"a dear request weighs on all limits", dearUnderSeveral},
}

// twoLimits returns options with a limit on a short window and one on a long one.
func twoLimits(options map[string]any, short, long int64) map[string]any {
	return with(options, "limit", absent, "window", absent, "limits", []any{
		entry("name", "short", "limit", fmt.Sprint(short), "window", seconds(roomy(600))),
		entry("name", "long", "limit", fmt.Sprint(long), "window", seconds(roomy(900))),
	})
}

var state = regexp.MustCompile(`"[^"]*?:?([^":]*)";r=([0-9]+);t=([0-9]+)`)

// lefts returns what RateLimit says that remains of each limit, by the end of its name.
func (a answer) lefts() map[string]int64 {
	lefts := map[string]int64{}
	for _, match := range state.FindAllStringSubmatch(a.header.Get("RateLimit"), -1) {
		lefts[match[1]], _ = strconv.ParseInt(match[2], 10, 64)
	}
	return lefts
}

func allOrNothing(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		h := t.handler(t.name(), with(twoLimits(options, 3, 5), "rules", []any{
			entry("name", "small", "path", "/small", "limits", []any{
				entry("name", "short", "limit", "5", "window", seconds(roomy(600))), entry("name", "long", "limit", "3", "window", seconds(roomy(900))),
			}),
		}))
		for _, path := range []string{"/", "/small"} {
			one, other := "short", "long"
			if path == "/small" {
				one, other = "long", "short"
			}
			for i := int64(1); i <= 10; i++ {
				got := t.send(h, get(path))
				left, status := 3-i, 200
				if i > 3 {
					left, status = 0, 429
				}
				if want := map[string]int64{one: left, other: left + 2}; got.status != status || !reflect.DeepEqual(got.lefts(), want) || got.decision != way {
					t.Errorf("%s, request %d: %d, %v, %s; want %d, %v, %s", path, i, got.status, got.lefts(), got.decision, status, want, way)
				}
			}
		}
	})
}

func bindingLimit(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		name := t.name()
		options = twoLimits(options, 2, 3)
		h := t.handler(name, options)
		list := options["limits"].([]any)
		policy := fmt.Sprintf(`"%s:short";q=2;w=%s, "%s:long";q=3;w=%s`, name, strings.TrimSuffix(list[0].(map[string]any)["window"].(string), "s"),
			name, strings.TrimSuffix(list[1].(map[string]any)["window"].(string), "s"))
		for i, want := range []answer{{status: 200, limit: 2, remaining: 1}, {status: 200, limit: 2}, {status: 429, limit: 2}, {status: 429, limit: 2}} {
			got := t.send(h, get("/"))
			if got.status != want.status || got.limit != want.limit || got.remaining != want.remaining {
				t.Errorf("request %d: %d, limit %d, remaining %d; want %d, %d, %d", i+1, got.status, got.limit, got.remaining, want.status, want.limit, want.remaining)
			}
			if got.header.Get("RateLimit-Policy") != policy || len(got.header.Values("RateLimit-Policy")) != 1 {
				t.Errorf("request %d has the policies %q, want %q", i+1, got.header.Values("RateLimit-Policy"), policy)
			}
			both := fmt.Sprintf(`^"%s:short";r=%d;t=%d, "%s:long";r=%d;t=[0-9]+$`, regexp.QuoteMeta(name), got.remaining, got.reset, regexp.QuoteMeta(name), got.remaining+1)
			if !regexp.MustCompile(both).MatchString(got.header.Get("RateLimit")) {
				t.Errorf("request %d has RateLimit %q, want %s", i+1, got.header.Get("RateLimit"), both)
			}
			if got.status == 429 && got.retryAfter != got.reset {
				t.Errorf("Retry-After %d and the reset of what refuses %d", got.retryAfter, got.reset)
			}
		}
		// What leaves as little but lasts longer binds.
		h = t.handler(t.name(), twoLimits(options, 3, 3))
		first := t.send(h, get("/"))
		resets := state.FindAllStringSubmatch(first.header.Get("RateLimit"), -1)
		short, _ := strconv.ParseInt(resets[0][3], 10, 64)
		long, _ := strconv.ParseInt(resets[1][3], 10, 64)
		latest := short
		if long > short {
			latest = long
		}
		if first.reset != latest {
			t.Errorf("the reset is %d of %d and %d", first.reset, short, long)
		}
		for i := 0; i < 2; i++ {
			t.send(h, get("/"))
		}
		if got := t.send(h, get("/")); got.status != 429 || got.retryAfter != got.reset || got.reset < latest-60 {
			t.Errorf("both refuse: %d with Retry-After %d, the resets were %d and %d", got.status, got.retryAfter, short, long)
		}
	})
}

func waitingHelps(t *T) {
	for _, tt := range []struct {
		name        string
		short, long string
		left        time.Duration // in the short window
		most        int64
	}{
		{"the short one refuses", "1", "100", 10500 * time.Millisecond, 60},
		{"the long one refuses", "100", "1", 10500 * time.Millisecond, 86400},
		{"both refuse", "1", "1", 59500 * time.Millisecond, 86400},
	} {
		t.sub(tt.name, func(t *T) {
			v := t.valkey()
			v.setTime(time.Unix(edge, 0).Add(-tt.left))
			name := t.name()
			options := t.options(v, "limit", absent, "window", absent, "limits", []any{
				entry("name", "short", "limit", tt.short, "window", "60s"), entry("name", "long", "limit", tt.long, "window", "1d"),
			})
			h := t.handler(name, options)
			got := t.ask(h, "key")
			for tries := 0; got.status == http.StatusOK && tries < 5; tries++ {
				got = t.ask(h, "key")
			}
			if got.status != 429 || got.decision != "shared" || got.retryAfter > tt.most || got.retryAfter != got.reset {
				t.Fatalf("%d, %s, Retry-After %d, reset %d", got.status, got.decision, got.retryAfter, got.reset)
			}
			if tt.long == "1" && got.retryAfter < 60 {
				t.Errorf("Retry-After %d, though the long window refuses", got.retryAfter)
			}
			v.advance(time.Duration(got.retryAfter) * time.Second)
			if again := t.ask(t.handler(name, gateway(options, 1)), "key"); again.status != http.StatusOK {
				t.Errorf("the client waited %d s as it was told, and got %d", got.retryAfter, again.status)
			}
		})
	}
}

func lower(limits [2]int64) int64 {
	if limits[0] < limits[1] {
		return limits[0]
	}
	return limits[1]
}

func severalExact(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		for _, limits := range [][2]int64{{1, 2}, {2, 1}, {4, 7}, {50, 30}} {
			name := t.name()
			options := twoLimits(options, limits[0], limits[1])
			routers := []http.Handler{t.handler(name, options), t.handler(name, options)}
			got := rush(16, 200, func(i int) answer { return t.ask(routers[i%2], "key") })
			t.exact(got, lower(limits), way)
		}
	})
	for _, limits := range [][2]int64{{1, 2}, {30, 20}} {
		v := t.valkey()
		name := t.name()
		options := twoLimits(t.options(v), limits[0], limits[1])
		gateways := []http.Handler{t.handler(name, gateway(options, 1)), t.handler(name, gateway(options, 2))}
		got := rush(16, 200, func(i int) answer { return t.ask(gateways[i%2], "key") })
		t.exact(got, lower(limits), "shared")
		for _, key := range v.keys(name) {
			if v.countOf(key) != lower(limits) {
				t.Errorf("%s has the count %d, want %d in both", key, v.countOf(key), lower(limits))
			}
		}
	}
}

func eightLimits(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		for n := 1; n <= 8; n++ {
			var list []any
			for i := 0; i < n; i++ {
				list = append(list, entry("name", fmt.Sprintf("l%d", i), "limit", float64(n+1-i), "window", seconds(roomy(600+int64(i)))))
			}
			h := t.handler(t.name(), with(options, "limit", absent, "window", absent, "limits", list))
			var got []answer
			for i := 0; i < 6; i++ {
				got = append(got, t.ask(h, "key"))
			}
			t.exact(got, 2, way)
			if other := t.ask(h, "another"); other.remaining != 1 || len(other.lefts()) != n {
				t.Errorf("another client has %d left, %v", other.remaining, other.lefts())
			}
		}
	})
}

// clientCalls returns the calls of scripts that count a client of a scope.
func (v *valkey) clientCalls(scope string) (calls [][]string) {
	for _, command := range v.Commands() {
		if asks(command.Args) && strings.Contains(command.Args[3], ":"+scope+":") {
			calls = append(calls, command.Args)
		}
	}
	return calls
}

// asks reports whether a command is a call of a script for requests of a client: a gateway
// makes itself known, and tells a store what it knows, whenever it likes.
func asks(args []string) bool {
	if !strings.HasPrefix(args[0], "EVAL") || !strings.Contains(args[3], "{") {
		return false
	}
	keys, err := strconv.Atoi(args[2])
	return err == nil && args[3+keys] != "0"
}

func oneCall(t *T) {
	v := t.valkey()
	name := t.name()
	h := t.handler(name, twoLimits(t.options(v), 5, 7))
	t.ask(h, "another")
	v.ForgetCommands()
	for i := 0; i < 10; i++ {
		t.ask(h, "key")
	}
	// Whoever is known to be over a limit costs the store nothing.
	calls := v.clientCalls(name)
	if len(calls) != 5 {
		t.Errorf("ten requests of limit 5 cost %d calls, want 5", len(calls))
	}
	for _, call := range calls {
		if call[0] != "EVALSHA" || call[2] != "2" {
			t.Errorf("a request is counted by %q", call)
		}
	}
	// So does a dear request for which too little is known to be left.
	name = t.name()
	h = t.handler(name, t.options(v, "limit", "8", "cost", "3", "rules", []any{entry("name", "cheap", "path", "/cheap", "cost", "1")}))
	t.exchange(h, asClient("/cheap", 1)) // loads the script of cheap ones
	v.ForgetCommands()
	for i := 0; i < 6; i++ {
		t.exchange(h, get("/"))
	}
	if calls := v.clientCalls(name); len(calls) != 2 {
		t.Errorf("six requests of which two fit cost %d calls", len(calls))
	}
	if got := t.exchange(h, get("/cheap")); got.status != 200 || len(v.clientCalls(name)) != 3 {
		t.Errorf("a cheap one: %d after %d calls", got.status, len(v.clientCalls(name)))
	}
}

func limitKeys(t *T) {
	v := t.valkey()
	now := time.Unix(edge+30, 0)
	v.setTime(now)
	name := t.name()
	h := t.handler(name, t.options(v, "limit", absent, "window", absent, "limits", []any{
		entry("name", "per-minute", "limit", "10", "window", "1m"), entry("name", "per.Day_1", "limit", "1000", "window", "1d"),
	}))
	one := t.handler(name, t.options(v, "limit", absent, "window", absent, "scope", name+".one", "limits", []any{entry("name", "only", "limit", "10", "window", "1m")}))
	for i := 0; i < 3; i++ {
		t.ask(h, "key")
	}
	t.ask(one, "key")
	for key, want := range map[string]int64{
		headerKey(name+":per-minute", "key", now, 60): 3, headerKey(name+":per.Day_1", "key", now, 86400): 3, headerKey(name+".one:only", "key", now, 60): 1,
	} {
		if got := v.countOf(key); got != want {
			t.Errorf("%s has the count %d, want %d; there are %q", key, got, want, v.keys(name))
		}
	}
}

func lateForOne(t *T) {
	v := t.valkey()
	v.setTime(time.Unix(edge-30, 0))
	name := t.name()
	h := t.handler(name, t.options(v, "limit", absent, "window", absent, "limits", []any{
		entry("name", "short", "limit", "5", "window", "60s"), entry("name", "long", "limit", "9", "window", "1d"),
	}))
	t.ask(h, "another client")
	t.ask(h, "known")
	v.advance(31 * time.Second)
	for client, before := range map[string]int64{"key": 0, "known": 1} {
		got := t.ask(h, client)
		if got.status != 200 || got.decision != "shared" || !reflect.DeepEqual(got.lefts(), map[string]int64{"short": 4, "long": 8 - before}) || got.reset > 60 {
			t.Errorf("%s: %d, %v, reset %d, %s", client, got.status, got.lefts(), got.reset, got.decision)
		}
		for key, want := range map[string]int64{
			headerKey(name+":short", client, time.Unix(edge-1, 0), 60): before, headerKey(name+":short", client, time.Unix(edge, 0), 60): 1,
			headerKey(name+":long", client, time.Unix(edge, 0), 86400): before + 1,
		} {
			if v.countOf(key) != want {
				t.Errorf("%s: %s has the count %d, want %d", client, key, v.countOf(key), want)
			}
		}
	}
}

func severalWithoutStore(t *T) {
	for _, mode := range []string{"local", "closed", "open"} {
		v := t.valkey()
		h := t.handler(t.name(), impatient(twoLimits(t.options(v, "onStoreFailure", mode), 4, 3)))
		if got := t.ask(h, "warm"); mode != "open" && got.decision != "shared" {
			t.Logf("the store did not answer in time: %s", got.decision)
		}
		v.Stop()
		for i := int64(1); i <= 6; i++ {
			got := t.ask(h, "key")
			status, decision, remaining := 200, mode, int64(-1)
			switch {
			case mode == "closed":
				status = 503
			case mode == "open":
				decision = ""
			case i <= 3:
				remaining = 3 - i
			default:
				status, remaining = 429, 0
			}
			if got.status != status || got.decision != decision || got.remaining != remaining {
				t.Errorf("%s, request %d: %d, %q, remaining %d; want %d, %q, %d", mode, i, got.status, got.decision, got.remaining, status, decision, remaining)
			}
			if policies := strings.Count(got.header.Get("RateLimit-Policy"), ";q="); policies != 2 || mode != "local" && got.header.Get("RateLimit") != "" {
				t.Errorf("%s, request %d: %v", mode, i, got.header)
			}
		}
	}
}

func severalBounded(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		h := t.handler(t.name(), with(twoLimits(options, 2, 9), "maxClients", "20"))
		for i := 0; i < 3; i++ {
			t.ask(h, "busy")
		}
		for i := 0; i < 150; i++ {
			if got := t.ask(h, fmt.Sprintf("client %d", i)); got.status != 200 || got.remaining != 1 || got.decision != way {
				t.Fatalf("the first request of client %d: %d, remaining %d, %s", i, got.status, got.remaining, got.decision)
			}
			if i%50 == 0 {
				if got := t.ask(h, "busy"); got.status != 429 {
					t.Fatalf("after %d newcomers a client over its limit: %d", i+1, got.status)
				}
			}
		}
	})
}

func severalShares(t *T) {
	for _, tt := range []struct {
		cost        string
		fallback    map[string]any
		short, long int64
		passes      int
	}{
		{"1", map[string]any{"gateways": "2"}, 10, 30, 5},
		{"1", map[string]any{"gateways": "2"}, 30, 9, 5},
		{"1", map[string]any{"gateways": "100"}, 30, 9, 1},
		{"1", map[string]any{"limit": "4"}, 10, 30, 4},
		{"3", map[string]any{"gateways": "2"}, 10, 30, 2},
		{"3", map[string]any{"gateways": "1"}, 10, 30, 3},
		{"3", map[string]any{"limit": "7"}, 10, 30, 2},
		{"3", map[string]any{"gateways": "100"}, 10, 30, 1},
	} {
		v := t.valkey()
		v.Stop()
		h := t.handler(t.name(), with(twoLimits(t.options(v), tt.short, tt.long), "cost", tt.cost, "fallback", tt.fallback))
		passed := 0
		for _, got := range rush(6, 24, func(int) answer { return t.exchange(h, get("/")) }) {
			if got.status == 200 {
				passed++
			} else if got.status != 429 || got.remaining < 0 || got.retryAfter < 1 {
				t.Errorf("%+v: %d, remaining %d, Retry-After %d", tt, got.status, got.remaining, got.retryAfter)
			}
		}
		if passed != tt.passes {
			t.Errorf("%+v: %d passed", tt, passed)
		}
	}
}

func severalGarbage(t *T) {
	for _, line := range []string{
		"+OK\r\n", "+1\r\n", "+1 2 3\r\n", "+\r\n", "+ \r\n", "+1 a\r\n", "+1  2\r\n", "+1 2 \r\n", "+1 -2\r\n", "+1 1.5\r\n", "+1 1e3\r\n", "+99999999999999999999 1\r\n", "+9223372036854775807 1\r\n",
		"+0x1 1\r\n", ":1\r\n", "$-1\r\n", "*2\r\n:1\r\n:1\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n", "+-1 -1\r\n", "+-1 1\r\n", "-OOM no\r\n", "-FOO bar\r\n", "+1 2\n", "",
	} {
		text := line
		t.sub(fmt.Sprintf("%.20q", text), func(t *T) {
			for _, mode := range []string{"local", "closed"} {
				v := t.valkey()
				v.Handle("EVALSHA", func(*fakevalkey.Server, []string) string { return text })
				h := t.handler(t.name(), impatient(twoLimits(t.options(v, "onStoreFailure", mode), 3, 5)))
				for i := int64(1); i <= 5; i++ {
					got := t.ask(h, "key")
					status, remaining := 503, int64(-1)
					if mode == "local" && i <= 3 {
						status, remaining = 200, 3-i
					} else if mode == "local" {
						status, remaining = 429, 0
					}
					if got.status != status || got.remaining != remaining || got.decision != mode {
						t.Errorf("%s, request %d: %d, remaining %d, %s; want %d, %d", mode, i, got.status, got.remaining, got.decision, status, remaining)
						break
					}
				}
			}
		})
	}
}

func severalForgotten(t *T) {
	v := t.valkey()
	h := t.handler(t.name(), with(twoLimits(t.options(v), 50, 90), "cost", "2"))
	for i := int64(1); i <= 6; i++ {
		if got := t.ask(h, "key"); got.decision != "shared" || !reflect.DeepEqual(got.lefts(), map[string]int64{"short": 50 - 2*i, "long": 90 - 2*i}) {
			t.Errorf("request %d: %v, %s", i, got.lefts(), got.decision)
		}
		if i%2 == 0 {
			v.FlushScripts()
		}
	}
}

func severalForbidden(t *T) {
	v := t.valkey()
	v.forbid("secret:")
	allowed := t.handler(t.name(), twoLimits(t.options(v), 5, 9))
	forbidden := t.handler(t.name(), twoLimits(t.options(v, "valkey.keyPrefix", "secret"), 5, 9))
	for i := 0; i < 8; i++ {
		key := fmt.Sprintf("client %d", i)
		if got := t.ask(forbidden, key); got.decision != "local" || got.status != 200 {
			t.Errorf("the forbidden prefix, request %d: %d, %s", i+1, got.status, got.decision)
		}
		if got := t.ask(allowed, key); got.decision != "shared" || got.status != 200 {
			t.Errorf("the allowed prefix, request %d: %d, %s", i+1, got.status, got.decision)
		}
	}
}

func severalSettled(t *T) {
	for _, cost := range []int64{1, 3} {
		v := t.valkey()
		name := t.name()
		h := t.handler(name, twoLimits(t.options(v, "cost", fmt.Sprint(cost)), 1_000_000, 2_000_000))
		t.eventually("a count in the store", func() bool { return t.ask(h, "newcomer").decision == "shared" })
		sent := int64(0)
		ask := func() answer { sent++; return t.ask(h, "key") }
		ask()
		v.Stop()
		for i := 0; i < 5; i++ {
			if got := ask(); got.decision != "local" || got.limit != 1_000_000 || got.remaining != 1_000_000-cost*sent {
				t.Errorf("request %d without the store: %s, remaining %d", sent, got.decision, got.remaining)
			}
		}
		restart(t, v)
		t.eventually("a count in the store again", func() bool { return t.ask(h, "newcomer").decision == "shared" })
		for i := 0; i < 3; i++ {
			if got := ask(); got.decision != "shared" || got.remaining != 1_000_000-cost*sent {
				t.Errorf("request %d with the store back: %s, remaining %d", sent, got.decision, got.remaining)
			}
		}
		digest := headerKey("", "key", time.Unix(0, 0), 60)
		digest = digest[strings.IndexByte(digest, '{') : strings.IndexByte(digest, '}')+1]
		settled := 0
		for _, key := range v.keys(name) {
			if strings.Contains(key, digest) {
				settled++
				if v.countOf(key) != cost*sent {
					t.Errorf("%s has the count %d after %d requests that cost %d", key, v.countOf(key), sent, cost)
				}
			}
		}
		if settled != 2 {
			t.Errorf("the client has %d counts: %q", settled, v.keys(name))
		}
	}
}

func settledAcrossEdge(t *T) {
	v := t.valkey()
	v.setTime(time.Unix(edge-30, 0))
	name := t.name()
	h := t.handler(name, t.options(v, "limit", absent, "window", absent, "limits", []any{
		entry("name", "short", "limit", "50", "window", "60s"), entry("name", "long", "limit", "90", "window", "1d"),
	}))
	t.eventually("a count in the store", func() bool { return t.ask(h, "newcomer").decision == "shared" })
	t.ask(h, "key")
	v.Stop()
	for i := 0; i < 3; i++ {
		if got := t.ask(h, "key"); got.status != 200 || got.decision != "local" {
			t.Errorf("without the store: %d, %s", got.status, got.decision)
		}
	}
	v.advance(31 * time.Second)
	restart(t, v)
	t.eventually("a count in the store again", func() bool { return t.ask(h, "newcomer").decision == "shared" })
	if got := t.ask(h, "key"); got.decision != "shared" || !reflect.DeepEqual(got.lefts(), map[string]int64{"short": 49, "long": 85}) {
		t.Errorf("with the store back in another window: %v, %s", got.lefts(), got.decision)
	}
	for key, want := range map[string]int64{headerKey(name+":short", "key", time.Unix(edge, 0), 60): 1, headerKey(name+":long", "key", time.Unix(edge, 0), 86400): 5} {
		if v.countOf(key) != want {
			t.Errorf("%s has the count %d, want %d", key, v.countOf(key), want)
		}
	}
}

// As in stress, the store and the memory of a gateway each let the limit pass at most,
// however often the store comes and goes.
func severalStress(t *T) {
	const clients, outages, n = 3, 4, 800
	v := t.valkey()
	newHandler := t.configure(t.name(), with(twoLimits(t.options(v), 12, 9), "rules", []any{
		entry("name", "dear", "path", "/dear", "cost", "2"), entry("name", "apart", "path", "/apart", "limit", "7", "window", seconds(roomy(600)), "cost", "3"),
	}))
	var current atomic.Value
	reload := func() {
		h, err := newHandler(served)
		if err != nil {
			t.Errorf("making a handler: %v", err)
			return
		}
		current.Store(&h)
	}
	reload()
	paths := []string{"/", "/dear", "/apart"}
	var turn sync.Mutex
	got := rush(12, n, func(i int) answer {
		switch i % (n / outages) {
		case n / outages / 4:
			turn.Lock()
			v.Stop()
			turn.Unlock()
		case n / outages / 2:
			turn.Lock()
			restart(t, v)
			turn.Unlock()
		}
		if i%50 == 0 {
			reload()
		}
		return t.exchange(*current.Load().(*http.Handler), asClient(paths[i/clients%3], i%clients))
	})
	for c := 0; c < clients; c++ {
		spent, apart := 0, 0
		for i := c; i < n; i += clients {
			if got[i].status == 200 {
				switch i / clients % 3 {
				case 0:
					spent++
				case 1:
					spent += 2
				default:
					apart += 3
				}
			}
		}
		if spent < 1 || spent > 2*9 || apart < 3 || apart > 2*7 {
			t.Errorf("client %d got requests through that cost %d under limits of 12 and 9, and %d under one of 7", c, spent, apart)
		}
	}
	for status, count := range tally(got) {
		if status != "200" && status != "429" && !strings.Contains(status, " ") {
			t.Errorf("%d answers are %s", count, status)
		}
	}
}

func dearRequests(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		h := t.handler(t.name(), with(options, "limit", "10", "cost", "4", "rules", []any{
			entry("name", "cheap", "path", "/cheap", "cost", "1"), entry("name", "all", "path", "/all", "cost", "10"),
		}))
		for _, tt := range []struct {
			path      string
			status    int
			remaining int64
		}{
			{"/", 200, 6}, {"/all", 429, 6}, {"/", 200, 2}, {"/", 429, 2}, {"/", 429, 2}, {"/cheap", 200, 1}, {"/", 429, 1}, {"/cheap", 200, 0}, {"/cheap", 429, 0}, {"/", 429, 0},
		} {
			got := t.exchange(h, get(tt.path))
			if got.status != tt.status || got.remaining != tt.remaining || got.limit != 10 || got.decision != way || (got.retryAfter == got.reset) != (tt.status == 429) {
				t.Errorf("%s: %d, remaining %d of %d, Retry-After %d, reset %d, %s; want %+v", tt.path, got.status, got.remaining, got.limit, got.retryAfter, got.reset, got.decision, tt)
			}
		}
		h = t.handler(t.name(), with(options, "limit", "10", "cost", float64(10)))
		if got := []int{t.ask(h, "key").status, t.ask(h, "key").status}; !reflect.DeepEqual(got, []int{200, 429}) {
			t.Errorf("two requests that cost all: %d", got)
		}
	})
}

func dearAndCheap(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		// All of one cost: 16 of 3 fit into 50.
		name := t.name()
		dear := with(options, "limit", "50", "cost", "3")
		routers := []http.Handler{t.handler(name, dear), t.handler(name, dear)}
		var remaining []int
		for _, got := range rush(16, 200, func(i int) answer { return t.exchange(routers[i%2], get("/")) }) {
			if got.status == 200 {
				remaining = append(remaining, int(got.remaining))
			} else if got.status != 429 || got.remaining > 2 || got.decision != way {
				t.Errorf("%d, remaining %d, %s", got.status, got.remaining, got.decision)
			}
		}
		sort.Ints(remaining)
		var want []int
		for left := 2; left < 50; left += 3 {
			want = append(want, left)
		}
		if !reflect.DeepEqual(remaining, want) {
			t.Errorf("of cost 3 and limit 50 %d passed, and are told that these remain: %v", len(remaining), remaining)
		}
		// Of two costs: the cheap ones fill what the dear ones leave.
		h := t.handler(t.name(), with(dear, "rules", []any{entry("name", "cheap", "path", "/cheap", "cost", "1")}))
		spent := 0
		for i, got := range rush(16, 240, func(i int) answer { return t.exchange(h, get([]string{"/", "/cheap"}[i/16%2])) }) {
			if got.status == 200 {
				spent += []int{3, 1}[i/16%2]
			}
		}
		if spent != 50 {
			t.Errorf("requests passed that cost %d of limit 50 together", spent)
		}
	})
}

func aboveThePlan(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		h := t.handler(t.name(), with(options, "limit", "10", "cost", "5",
			"plans", map[string]any{"header": "X-Plan", "values": map[string]any{"free": map[string]any{"limit": "4"}, "five": map[string]any{"limit": "5"}}}))
		for _, tt := range []struct {
			plan      string
			status    int
			remaining int64
			comesBack bool
		}{{"free", 429, 4, false}, {"free", 429, 4, false}, {"five", 200, 0, false}, {"five", 429, 0, true}, {"free", 429, 0, false}, {"", 200, 0, false}, {"", 429, 0, true}} {
			got := t.exchange(h, get("/", "X-Plan", tt.plan))
			if got.status != tt.status || got.remaining != tt.remaining || (got.retryAfter > 0) != tt.comesBack || tt.plan != "free" && got.decision != way {
				t.Errorf("plan %q: %d, remaining %d, Retry-After %d, %s; want %+v", tt.plan, got.status, got.remaining, got.retryAfter, got.decision, tt)
			}
			if got.status == 429 && !tt.comesBack && len(got.header.Values("Retry-After")) != 0 {
				t.Errorf("plan %q: Retry-After %q", tt.plan, got.header.Values("Retry-After"))
			}
		}
		// The same where one of several limits is too low.
		h = t.handler(t.name(), with(twoLimits(options, 10, 20), "cost", "5", "plans",
			map[string]any{"header": "X-Plan", "values": map[string]any{"free": map[string]any{"limits": []any{entry("name", "long", "limit", "4")}}}}))
		for _, plan := range []string{"free", "", "", "", "free"} {
			if got := t.exchange(h, get("/", "X-Plan", plan)); plan == "free" && (got.status != 429 || got.retryAfter != -1) {
				t.Errorf("plan %q: %d with Retry-After %d", plan, got.status, got.retryAfter)
			}
		}
	})
}

func largestCosts(t *T) {
	const most = 999_999_999_999_999
	t.eachWay(func(t *T, options map[string]any, way string) {
		for _, list := range []bool{false, true} {
			costly := with(options, "limit", fmt.Sprint(most), "cost", fmt.Sprint(most-1))
			if list {
				costly = with(twoLimits(options, most, most), "cost", fmt.Sprint(most-1))
			}
			costly = with(costly, "rules", []any{entry("name", "cheap", "path", "/cheap", "cost", "1")})
			h := t.handler(t.name(), costly)
			passed := 0
			for _, got := range rush(16, 64, func(int) answer { return t.exchange(h, get("/")) }) {
				if got.status == 200 {
					passed++
				}
				if got.remaining != 1 || got.limit != most || got.decision != way {
					t.Errorf("%d, remaining %d of %d, %s", got.status, got.remaining, got.limit, got.decision)
				}
			}
			if passed != 1 {
				t.Errorf("%d passed that cost all but one", passed)
			}
			if got := []int{t.exchange(h, get("/cheap")).status, t.exchange(h, get("/cheap")).status}; !reflect.DeepEqual(got, []int{200, 429}) {
				t.Errorf("two that cost 1: %d", got)
			}
		}
	})
}

func dearUnderSeveral(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		h := t.handler(t.name(), with(twoLimits(options, 10, 12), "cost", "4", "rules", []any{entry("name", "cheap", "path", "/cheap", "cost", "1")}))
		for _, tt := range []struct {
			path        string
			status      int
			short, long int64
		}{{"/", 200, 6, 8}, {"/", 200, 2, 4}, {"/", 429, 2, 4}, {"/cheap", 200, 1, 3}, {"/", 429, 1, 3}, {"/cheap", 200, 0, 2}, {"/cheap", 429, 0, 2}, {"/", 429, 0, 2}} {
			got := t.exchange(h, get(tt.path))
			if got.status != tt.status || !reflect.DeepEqual(got.lefts(), map[string]int64{"short": tt.short, "long": tt.long}) || got.decision != way {
				t.Errorf("%s: %d, %v, %s; want %+v", tt.path, got.status, got.lefts(), got.decision, tt)
			}
		}
	})
}
