package suite

import (
	"fmt"
	"net/http"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
)

// counting is about who is let through, and how many of them.
var counting = tests{
	{"exactly the limit passes, one after another", exactOneByOne},
	{"exactly the limit passes, all at once", exactAtOnce},
	{"exactly the limit passes over several gateways", exactOverGateways},
	{"the routers of a middleware share its count", routersShare},
	{"middlewares do not share a count", middlewaresDoNotShare},
	{"middlewares that name one scope share a count", scopesShare},
	{"key prefixes keep installations apart", prefixesSeparate},
	{"limits may differ on one count", limitsDifferOnOneCount},
	{"a reload loses no count", reloadKeepsCounts},
	{"keys are prefix, scope, digest and window", keysAreAsDocumented},
	{"each client gets its own count while many ask", ownCounts},
	{"several middlewares are exact under load", severalMiddlewaresAtOnce},
	{"on both sides of an edge each window has its limit", burstAcrossEdge},
	{"a request that is late for its window counts in the next", lateRequest},
	{"windows follow the clock of the store", storeClock},
	{"a store clock that jumps ahead refuses nobody", storeClockJumps},
}

// eachWay runs a test once for each way to count a request: in the store, and in
// memory because the mode says so, or because the store cannot be reached.
func (t *T) eachWay(run func(t *T, options map[string]any, way string)) {
	t.Helper()
	t.sub("shared", func(t *T) { run(t, t.options(t.valkey()), "shared") })
	t.inMemory(run)
}

// inMemory runs a test once for each reason to count a request in memory.
func (t *T) inMemory(run func(t *T, options map[string]any, way string)) {
	t.Helper()
	t.sub("local", func(t *T) { run(t, t.options(nil), "local") })
	t.sub("fallback", func(t *T) {
		v := t.valkey()
		v.Stop()
		run(t, t.options(v), "local")
	})
}

var limits = []int64{1, 2, 50}

func exactOneByOne(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		for _, limit := range limits {
			h := t.handler(t.name(), with(options, "limit", strconv.FormatInt(limit, 10)))
			for i := int64(1); i <= limit+3; i++ {
				got := t.ask(h, "key")
				status, remaining := http.StatusOK, limit-i
				if i > limit {
					status, remaining = http.StatusTooManyRequests, 0
				}
				if got.status != status || got.limit != limit || got.remaining != remaining || got.decision != way {
					t.Fatalf("request %d of limit %d: %d, limit %d, remaining %d, %s; want %d, remaining %d, %s",
						i, limit, got.status, got.limit, got.remaining, got.decision, status, remaining, way)
				}
			}
		}
	})
}

func exactAtOnce(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		for _, limit := range limits {
			name := t.name()
			options := with(options, "limit", strconv.FormatInt(limit, 10))
			routers := []http.Handler{t.handler(name, options), t.handler(name, options)}
			got := rush(16, 300, func(i int) answer { return t.ask(routers[i%2], "key") })
			t.exact(got, limit, way)
		}
	})
}

// exact checks that so many answers as the limit allow a request, each with another
// number that remains, and that all were decided in one way.
func (t *T) exact(got []answer, limit int64, way string) {
	t.Helper()
	var remaining []int
	for _, a := range got {
		if a.status == http.StatusOK {
			remaining = append(remaining, int(a.remaining))
		}
	}
	sort.Ints(remaining)
	var want []int
	for i := 0; i < int(limit); i++ {
		want = append(want, i)
	}
	if !reflect.DeepEqual(remaining, want) {
		t.Errorf("%d of limit %d were allowed, and told that these remain: %v", len(remaining), limit, remaining)
	}
	counts := tally(got)
	if counts["200 "+way]+counts["429 "+way] != len(got) {
		t.Errorf("not all of %d were decided %s: %v", len(got), way, counts)
	}
}

// gateway returns options that make a middleware use connections, a health and a
// clock of its own, as in another process.
func gateway(options map[string]any, number int) map[string]any {
	return with(options, "valkey.timeout", strconv.Itoa(9000+number)+"ms")
}

func exactOverGateways(t *T) {
	for _, limit := range limits {
		// Nobody has loaded the script yet.
		v := t.valkey()
		name := t.name()
		options := t.options(v, "limit", strconv.FormatInt(limit, 10))
		gateways := []http.Handler{t.handler(name, gateway(options, 1)), t.handler(name, gateway(options, 2))}
		got := rush(16, 300, func(i int) answer { return t.ask(gateways[i%2], "key") })
		t.exact(got, limit, "shared")
	}
}

func routersShare(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		newHandler := t.configure(t.name(), options)
		var got []answer
		for i := 0; i < 20; i++ {
			h, err := newHandler(served)
			if err != nil {
				t.Fatalf("router %d: %v", i, err)
			}
			got = append(got, t.ask(h, "key"))
		}
		t.exact(got, 5, way)
	})
}

func middlewaresDoNotShare(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		strict, name := t.name(), t.name()
		generous := t.handler(name, with(options, "limit", "100"))
		for i := 0; i < 50; i++ {
			if got := t.ask(generous, "key"); got.status != http.StatusOK {
				t.Fatalf("request %d of limit 100: %d", i+1, got.status)
			}
		}
		// The second is like the first to the letter, the third has its name from
		// another provider.
		for _, name := range []string{strict, t.name(), strings.Replace(strict, "@file", "@docker", 1)} {
			h := t.handler(name, options)
			var got []answer
			for i := 0; i < 8; i++ {
				got = append(got, t.ask(h, "key"))
			}
			t.exact(got, 5, way)
		}
	})
}

func scopesShare(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		options = with(options, "scope", "scope."+strings.TrimSuffix(t.name(), "@file"))
		var got []answer
		for _, h := range []http.Handler{t.handler(t.name(), options), t.handler(t.name(), options)} {
			for i := 0; i < 5; i++ {
				got = append(got, t.ask(h, "key"))
			}
		}
		t.exact(got, 5, way)
	})
}

func prefixesSeparate(t *T) {
	v := t.valkey()
	name := t.name()
	for _, prefix := range []string{"acme:gateway", "rate2", "rate"} {
		h := t.handler(name, t.options(v, "valkey.keyPrefix", prefix))
		var got []answer
		for i := 0; i < 7; i++ {
			got = append(got, t.ask(h, "key"))
		}
		t.exact(got, 5, "shared")
	}
	keys := v.keys(name)
	if len(keys) != 3 || !strings.HasPrefix(keys[0], "acme:gateway:"+name) || !strings.HasPrefix(keys[1], "rate2:") {
		t.Errorf("keys %q", keys)
	}
}

func limitsDifferOnOneCount(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		options = with(options, "scope", t.name())
		five, eight := t.handler(t.name(), options), t.handler(t.name(), with(options, "limit", "8"))
		for i := 0; i < 7; i++ {
			if got, allowed := t.ask(five, "key"), i < 5; (got.status == http.StatusOK) != allowed {
				t.Fatalf("request %d of limit 5: %d", i+1, got.status)
			}
		}
		// Refused requests stay counted, or not, in each way alike: at least the five
		// count, at most all seven.
		got := t.ask(eight, "key")
		if got.status != http.StatusOK || got.remaining > 2 {
			t.Errorf("the sixth to eighth of limit 8: %d, remaining %d", got.status, got.remaining)
		}
	})
}

func reloadKeepsCounts(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		name := t.name()
		h := t.handler(name, options)
		first := []answer{t.ask(h, "key"), t.ask(h, "key")}
		// Another limit, and back to the old one, over handlers that are thrown away.
		for _, limit := range []string{"7", "5", "6"} {
			t.handler(name, with(options, "limit", limit))
		}
		h = t.handler(name, options)
		for i := 0; i < 5; i++ {
			first = append(first, t.ask(h, "key"))
		}
		t.exact(first, 5, way)
	})
}

func keysAreAsDocumented(t *T) {
	v := t.valkey()
	v.setTime(time.Unix(edge+30, 0))
	scope := strings.TrimSuffix(t.name(), "@file")
	h := t.handler(t.name(), t.options(v, "window", "1m", "scope", scope))
	t.ask(h, " api-key-1\t")
	want := []string{headerKey(scope, "api-key-1", time.Unix(edge, 0), 60)}
	if got := v.keys(scope); !reflect.DeepEqual(got, want) {
		t.Errorf("keys %q, want %q", got, want)
	}
	for _, command := range v.Commands() {
		switch command.Args[0] {
		case "TIME", "EVALSHA", "EVAL":
		default:
			t.Errorf("%s is no command that the least rights include", command.Args[0])
		}
	}
}

func ownCounts(t *T) {
	const perClient = 20
	for _, behaviour := range []fakevalkey.Behaviour{{}, {Fragment: true}} {
		v := t.valkey()
		v.Usually(behaviour)
		h := t.handler(t.name(), t.options(v, "limit", "1000"))
		rush(16, 16, func(i int) answer {
			var last answer
			for n := 1; n <= perClient; n++ {
				last = t.ask(h, fmt.Sprintf("client %d", i))
				if want := int64(1000 - n); last.remaining != want || last.decision != "shared" {
					t.Errorf("client %d is told by its request %d that %d remain, %s, want %d", i, n, last.remaining, last.decision, want)
				}
			}
			return last
		})
	}
}

func severalMiddlewaresAtOnce(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		own := []int64{5, 10, 20}
		var handlers []http.Handler
		for _, limit := range own {
			handlers = append(handlers, t.handler(t.name(), with(options, "limit", strconv.FormatInt(limit, 10))))
		}
		const clients = 3
		got := rush(18, 30*len(own)*clients, func(i int) answer {
			return t.ask(handlers[i%len(own)], fmt.Sprintf("client %d", i/len(own)%clients))
		})
		for m, limit := range own {
			for c := 0; c < clients; c++ {
				var mine []answer
				for i, a := range got {
					if i%len(own) == m && i/len(own)%clients == c {
						mine = append(mine, a)
					}
				}
				t.exact(mine, limit, way)
			}
		}
	})
}

// edge is a point of time, in unix seconds, at which a window of a minute begins.
const edge = 30_000_000 * 60

func burstAcrossEdge(t *T) {
	v := t.valkey()
	v.setTime(time.Unix(edge-30, 0))
	name := t.name()
	options := t.options(v, "limit", "10", "window", "60s")
	old := t.handler(name, gateway(options, 1))
	before := rush(10, 30, func(int) answer { return t.ask(old, "key") })
	t.exact(before, 10, "shared")

	// One gateway believes that it is still before the edge, the other one has just
	// asked the store for its time.
	v.advance(31 * time.Second)
	fresh := t.handler(name, gateway(options, 2))
	after := rush(10, 30, func(i int) answer {
		if i%2 == 0 {
			return t.ask(old, "key")
		}
		return t.ask(fresh, "key")
	})
	t.exact(after, 10, "shared")
	want := headerKey(name, "key", time.Unix(edge, 0), 60)
	if keys := v.keys(name); keys[len(keys)-1] != want {
		t.Errorf("keys %q, want the last to be %q", keys, want)
	}
}

func lateRequest(t *T) {
	v := t.valkey()
	v.setTime(time.Unix(edge-30, 0))
	name := t.name()
	h := t.handler(name, t.options(v, "window", "60s"))
	t.ask(h, "another client")
	v.advance(31 * time.Second)
	got := t.ask(h, "key")
	if got.status != http.StatusOK || got.remaining != 4 || got.decision != "shared" || got.reset > 60 {
		t.Errorf("%d, remaining %d, reset %d, %s", got.status, got.remaining, got.reset, got.decision)
	}
	if late := headerKey(name, "key", time.Unix(edge-1, 0), 60); v.countOf(late) != 0 {
		t.Errorf("the window that is over has a count")
	}
	if next := headerKey(name, "key", time.Unix(edge, 0), 60); v.countOf(next) != 1 {
		t.Errorf("the next window has the count %d, want 1", v.countOf(next))
	}
}

func storeClock(t *T) {
	for _, year := range []int{1999, 2040} {
		v := t.valkey()
		now := time.Date(year, 5, 17, 12, 0, 20, 5e8, time.UTC)
		v.setTime(now)
		name := t.name()
		h := t.handler(name, t.options(v, "window", "60s"))
		got := t.ask(h, "key")
		if got.decision != "shared" || got.reset > 40 {
			t.Errorf("20 s into a window of %d: %s, reset %d", year, got.decision, got.reset)
		}
		if want := headerKey(name, "key", now, 60); v.countOf(want) != 1 {
			t.Errorf("keys %q, want %q", v.keys(name), want)
		}
	}
}

func storeClockJumps(t *T) {
	v := t.valkey()
	name := t.name()
	h := t.handler(name, t.options(v))
	for i := 0; i < 8; i++ {
		t.ask(h, "key")
	}
	v.advance(100 * 24 * time.Hour)
	for i := 0; i < 12; i++ {
		if got := t.ask(h, fmt.Sprintf("client %d", i)); got.status != http.StatusOK {
			t.Errorf("client %d is answered %d after the jump", i, got.status)
		}
	}
}
