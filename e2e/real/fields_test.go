package real_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/gatequota/gatequota/e2e/lab"
)

// parsed holds what the structured fields of an answer say of one policy.
type parsed struct{ quota, window, remaining, reset int64 }

// parse reads RateLimit-Policy and RateLimit with a parser that is not ours.
func parse(t *testing.T, a lab.Answer, policy string) parsed {
	t.Helper()
	find := func(field string, names ...string) []int64 {
		t.Helper()
		list, err := httpsfv.UnmarshalList(a.Header.Values(field))
		if err != nil {
			t.Fatalf("%s: %q: %v", field, a.Header.Values(field), err)
		}
		for _, member := range list {
			item, ok := member.(httpsfv.Item)
			if !ok {
				t.Fatalf("%s: %q has a member that is no item", field, a.Header.Values(field))
			}
			if item.Value != policy {
				continue
			}
			numbers := make([]int64, len(names))
			for i, name := range names {
				value, _ := item.Params.Get(name)
				if numbers[i], ok = value.(int64); !ok {
					t.Fatalf("%s: %q: parameter %s is %v", field, a.Header.Values(field), name, value)
				}
			}
			return numbers
		}
		t.Fatalf("%s: %q does not name %q", field, a.Header.Values(field), policy)
		return nil
	}
	static, current := find("RateLimit-Policy", "q", "w"), find("RateLimit", "r", "t")
	return parsed{quota: static[0], window: static[1], remaining: current[0], reset: current[1]}
}

// The fields mean the same on allowed and refused answers, in every mode, on every
// gateway.
func TestFieldsTellTheTruth(t *testing.T) {
	t.Parallel()
	const limit = 3
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	proxy := lab.NewProxy(t, store.Addr())
	window, id := lab.QuietWindow(time.Now())
	config := func(endpoint string) setup {
		return each(app, map[string]options{
			"shared": shared(endpoint, limit, window), "local": local(limit, window),
			"fallback": shared(endpoint, limit, window), "ietf": local(limit, window).with("headers", "ietf"),
			"legacy": local(limit, window).with("headers", "legacy"), "none": local(limit, window).with("headers", "none"),
		})
	}
	all, urls := gateways(t, 2, lab.TraefikOptions{}, config(proxy.Addr()))
	end := time.Unix(0, (id+1)*int64(window))
	check := func(what, policy string, answers lab.Answers) {
		t.Helper()
		last := int64(window/time.Second) + 1
		for i, a := range answers {
			p := parse(t, a, policy)
			want := int64(max(0, limit-1-i))
			left := int64(end.Sub(a.At)/time.Second) + 1
			if p.quota != limit || p.window != int64(window/time.Second) || p.remaining != want || a.Number("X-RateLimit-Limit") != limit ||
				int64(a.Number("X-RateLimit-Remaining")) != want || int64(a.Number("X-RateLimit-Reset")) != p.reset {
				t.Errorf("%s, request %d: %v", what, i+1, a.Header)
			}
			if p.reset > last || p.reset < left-1 || p.reset > left+2 {
				t.Errorf("%s, request %d: reset in %d s, %d s before, and %d s are left", what, i+1, p.reset, last, left)
			}
			last = p.reset
			switch retry := a.Header.Get("Retry-After"); {
			case i < limit && (a.Status != http.StatusOK || retry != ""):
				t.Errorf("%s, request %d: status %d, Retry-After %q", what, i+1, a.Status, retry)
			case i >= limit && (a.Status != http.StatusTooManyRequests || retry != fmt.Sprint(p.reset)):
				t.Errorf("%s, request %d: status %d, Retry-After %q, reset %d", what, i+1, a.Status, retry, p.reset)
			}
		}
	}
	check("shared", "shared@file", client.Sequence(lab.Alternate(10, "key", urls[0]+"/shared", urls[1]+"/shared")))
	check("local", "local@file", client.Sequence(lab.Alternate(10, "key", urls[0]+"/local")))

	// The fallback begins in the middle.
	begun := client.Sequence(lab.Alternate(1, "key", urls[0]+"/fallback"))
	mustDecide(t, "before", begun, "shared")
	proxy.Close()
	proxy.Cut()
	rest := client.Sequence(lab.Alternate(9, "key", urls[0]+"/fallback"))
	mustDecide(t, "fallback", rest, "local")
	check("fallback", "fallback@file", append(begun, rest...))

	for style, fields := range map[string][2]bool{"ietf": {true, false}, "legacy": {false, true}, "none": {false, false}} {
		for i, a := range client.Sequence(lab.Alternate(limit+1, "key", urls[0]+"/"+style)) {
			for _, field := range []string{"RateLimit", "RateLimit-Policy"} {
				if (a.Header.Get(field) != "") != fields[0] {
					t.Errorf("%s: %s is %q", style, field, a.Header.Get(field))
				}
			}
			for _, field := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"} {
				if (a.Header.Get(field) != "") != fields[1] {
					t.Errorf("%s: %s is %q", style, field, a.Header.Get(field))
				}
			}
			if (a.Header.Get("Retry-After") != "") != (i == limit) {
				t.Errorf("%s, request %d: Retry-After %q", style, i+1, a.Header.Get("Retry-After"))
			}
		}
	}
	for _, tr := range all {
		mustNotPanic(t, tr)
	}
}

// Two limiters in one chain: the lists name both, the older fields the tighter.
func TestFieldsOfTwoLimitersInOneChain(t *testing.T) {
	t.Parallel()
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	s := setup{
		app:         app,
		middlewares: map[string]options{"outer": local(10, window), "inner": local(3, window)},
		routers: map[string]router{
			"a": {rule: "Path(`/a`)", middlewares: []string{"outer", "inner"}},
			"b": {rule: "Path(`/b`)", middlewares: []string{"inner", "outer"}},
		},
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, s.yaml(t))
	for path, want := range map[string]struct{ outer, passed int64 }{"a": {10, 3}, "b": {10, 3}} {
		key := "key-" + path
		answers := client.Sequence(lab.Alternate(3, key, tr.URL+"/"+path))
		mustBe(t, path, answers, http.StatusOK)
		for i, a := range answers {
			outer, inner := parse(t, a, "outer@file"), parse(t, a, "inner@file")
			if outer.quota != want.outer || inner.quota != 3 || outer.remaining != 9-int64(i) || inner.remaining != 2-int64(i) {
				t.Errorf("/%s, request %d: %v", path, i+1, a.Header)
			}
			if a.Number("X-RateLimit-Limit") != 3 || a.Number("X-RateLimit-Remaining") != 2-i {
				t.Errorf("/%s, request %d: the older fields do not show the tighter limit: %v", path, i+1, a.Header)
			}
		}
		refused := client.Get(lab.Keyed(tr.URL+"/"+path, key))
		if refused.Status != http.StatusTooManyRequests || parse(t, refused, "inner@file").remaining != 0 || refused.Number("X-RateLimit-Limit") != 3 {
			t.Errorf("/%s, refused: %d, %v", path, refused.Status, refused.Header)
		}
	}
}

// Whoever is refused, waits as long as Retry-After says and asks again, is let in,
// wherever in a window the refusal came; and the wait is never longer than the
// window.
func TestObeyingRetryAfterLeadsToSuccess(t *testing.T) {
	t.Parallel()
	const window = 2 * time.Second
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	long, _ := lab.QuietWindow(time.Now())
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, each(app, map[string]options{
		"shared": shared(store.Addr(), 1, window), "local": local(1, window),
		"long": shared(store.Addr(), 1, long), "month": local(1, 30*24*time.Hour),
		"short": local(1, 500*time.Millisecond),
	}).yaml(t))
	for _, mode := range []string{"shared", "local"} {
		for _, left := range []time.Duration{105 * time.Millisecond, 999 * time.Millisecond, 1001 * time.Millisecond, 1900 * time.Millisecond} {
			key := fmt.Sprintf("key-%s-%v", mode, left)
			lab.AwaitBefore(window, left)
			var refused lab.Answer
			lab.Until(t, "a request is refused", func() bool {
				refused = client.Get(lab.Keyed(tr.URL+"/"+mode, key))
				return refused.Status == http.StatusTooManyRequests
			})
			wait := refused.Number("Retry-After")
			if wait < 1 || time.Duration(wait)*time.Second > window {
				t.Errorf("%s, %v left: Retry-After is %q", mode, left, refused.Header.Get("Retry-After"))
			}
			time.Sleep(time.Until(refused.At.Add(time.Duration(wait) * time.Second)))
			if again := client.Get(lab.Keyed(tr.URL+"/"+mode, key)); again.Status != http.StatusOK {
				t.Errorf("%s, %v left: status %d after %d s", mode, left, again.Status, wait)
			}
		}
	}
	for path, most := range map[string]time.Duration{"long": long, "month": 30 * 24 * time.Hour} {
		answers := client.Sequence(lab.Alternate(2, "key", tr.URL+"/"+path))
		if wait := answers[1].Number("Retry-After"); answers[1].Status != http.StatusTooManyRequests || wait < 1 || time.Duration(wait)*time.Second > most {
			t.Errorf("%s: status %d, Retry-After %d", path, answers[1].Status, wait)
		}
	}
	if got := tr.RouterError("short@file"); !strings.Contains(got, "500ms") {
		t.Errorf("a window of 500 ms: %q", got)
	}
}

// A window that is idle through ends all the same, and the next starts whole.
func TestNextWindowStartsWhole(t *testing.T) {
	t.Parallel()
	const limit, window = 3, 2 * time.Second
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, each(app, map[string]options{
		"shared": shared(store.Addr(), limit, window), "local": local(limit, window),
	}).yaml(t))
	for _, mode := range []string{"shared", "local"} {
		lab.Until(t, "a request is refused", func() bool {
			return client.Get(lab.Keyed(tr.URL+"/"+mode, "key")).Status == http.StatusTooManyRequests
		})
		time.Sleep(lab.UntilEdge(time.Now(), window) + 20*time.Millisecond)
		a := client.Get(lab.Keyed(tr.URL+"/"+mode, "key"))
		if a.Status != http.StatusOK || a.Number("X-RateLimit-Remaining") != limit-1 || a.Number("X-RateLimit-Reset") > 2 || a.Number("X-RateLimit-Reset") < 1 {
			t.Errorf("%s: status %d, %v", mode, a.Status, a.Header)
		}
	}
}
