package reply

import (
	"math"
	"net/http"
	"strings"
	"testing"
)

// several are a short limit, a long one, and one whose name the others begin with.
var several = []Policy{{"apikey:login", 5, 60}, {"apikey:login:day", 1000, 86400}, {"apikey", 50, 3600}}

func TestWriteSeveral(t *testing.T) {
	const policies = `"apikey:login";q=5;w=60, "apikey:login:day";q=1000;w=86400, "apikey";q=50;w=3600`
	tests := []struct {
		name              string
		allowed           bool
		remaining, resets []int64
		refused           []bool
		state             string
		limit, left, wait string
	}{
		{
			"the least remains of the first", true, []int64{4, 999, 49}, []int64{30, 4000, 900}, []bool{false, false, false},
			`"apikey:login";r=4;t=30, "apikey:login:day";r=999;t=4000, "apikey";r=49;t=900`, "5", "4", "30",
		},
		{
			"the least remains of the second", true, []int64{4, 2, 49}, []int64{30, 4000, 900}, []bool{false, false, false},
			`"apikey:login";r=4;t=30, "apikey:login:day";r=2;t=4000, "apikey";r=49;t=900`, "1000", "2", "4000",
		},
		{
			"the least remains of the last", true, []int64{4, 3, 0}, []int64{30, 4000, 900}, []bool{false, false, false},
			`"apikey:login";r=4;t=30, "apikey:login:day";r=3;t=4000, "apikey";r=0;t=900`, "50", "0", "900",
		},
		{
			"as much, the second is later", true, []int64{4, 4, 4}, []int64{30, 4000, 900}, []bool{false, false, false},
			`"apikey:login";r=4;t=30, "apikey:login:day";r=4;t=4000, "apikey";r=4;t=900`, "1000", "4", "4000",
		},
		{
			"as much, at once", true, []int64{4, 4, 4}, []int64{30, 30, 30}, []bool{false, false, false},
			`"apikey:login";r=4;t=30, "apikey:login:day";r=4;t=30, "apikey";r=4;t=30`, "5", "4", "30",
		},
		{
			"one refuses", false, []int64{0, 900, 49}, []int64{30, 4000, 900}, []bool{true, false, false},
			`"apikey:login";r=0;t=30, "apikey:login:day";r=900;t=4000, "apikey";r=49;t=900`, "5", "0", "30",
		},
		{
			"the refusing one, though another has less", false, []int64{0, 900, 3}, []int64{30, 4000, 900}, []bool{false, false, true},
			`"apikey:login";r=0;t=30, "apikey:login:day";r=900;t=4000, "apikey";r=3;t=900`, "50", "3", "900",
		},
		{
			"two refuse, the second resets last", false, []int64{0, 0, 0}, []int64{30, 4000, 9000}, []bool{true, true, false},
			`"apikey:login";r=0;t=30, "apikey:login:day";r=0;t=4000, "apikey";r=0;t=9000`, "1000", "0", "4000",
		},
		{
			"all refuse, the last resets last, though another has less", false, []int64{0, 1, 2}, []int64{30, 4000, 9000}, []bool{true, true, true},
			`"apikey:login";r=0;t=30, "apikey:login:day";r=1;t=4000, "apikey";r=2;t=9000`, "50", "2", "9000",
		},
		{
			"two refuse and reset at once, one has less", false, []int64{3, 2, 7}, []int64{30, 30, 30}, []bool{true, true, false},
			`"apikey:login";r=3;t=30, "apikey:login:day";r=2;t=30, "apikey";r=7;t=30`, "1000", "2", "30",
		},
		{
			"below zero", true, []int64{-3, -9, math.MinInt64}, []int64{30, 4000, 900}, []bool{false, false, false},
			`"apikey:login";r=0;t=30, "apikey:login:day";r=0;t=4000, "apikey";r=0;t=900`, "1000", "0", "4000",
		},
		{
			"allowed though they refuse", true, []int64{0, 900, 49}, []int64{30, 4000, 900}, []bool{false, true, false},
			`"apikey:login";r=0;t=30, "apikey:login:day";r=900;t=4000, "apikey";r=49;t=900`, "5", "0", "30",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			all := http.Header{
				"Ratelimit-Policy":      {policies},
				"Ratelimit":             {test.state},
				"X-Ratelimit-Limit":     {test.limit},
				"X-Ratelimit-Remaining": {test.left},
				"X-Ratelimit-Reset":     {test.wait},
				"X-Ratelimit-Decision":  {"shared"},
			}
			for style, fields := range map[Style][]string{
				Both:   {"Ratelimit-Policy", "Ratelimit", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
				IETF:   {"Ratelimit-Policy", "Ratelimit"},
				Legacy: {"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"},
				None:   {},
			} {
				for _, decision := range []string{"", name} {
					f := New(several, &Settings{Style: style, DecisionHeader: decision})
					h := http.Header{}
					WriteSeveral(f, h, test.allowed, test.remaining, test.resets, binding(test.allowed, test.remaining, test.resets, test.refused), "shared")
					want := http.Header{}
					for _, key := range fields {
						want[key] = all[key]
					}
					if decision != "" {
						want["X-Ratelimit-Decision"] = []string{"shared"}
					}
					compare(t, h, want)
				}
			}
		})
	}
}

// What one policy has Write say, WriteSeveral says too.
func TestWriteSeveralWithOne(t *testing.T) {
	for _, style := range []Style{Both, IETF, Legacy, None} {
		f := one("quota", 5, 60, style, name)
		for _, allowed := range []bool{true, false} {
			for _, remaining := range []int64{-1, 0, 4, 5000} {
				for _, reset := range []int64{1, 60, 5000} {
					for _, outer := range []http.Header{{}, {"Vary": {"Origin"}}, {"Ratelimit": {`"all";r=3;t=9`}, "X-Ratelimit-Limit": {"9"}, "X-Ratelimit-Remaining": {"3"}, "X-Ratelimit-Reset": {"9"}}} {
						want, got := outer.Clone(), outer.Clone()
						Write(f, want, allowed, remaining, reset, "local")
						WriteSeveral(f, got, allowed, []int64{remaining}, []int64{reset}, binding(allowed, []int64{remaining}, []int64{reset}, []bool{!allowed}), "local")
						compare(t, got, want)
					}
				}
			}
		}
	}
}

func TestSeveralBesideAnOuterLimiter(t *testing.T) {
	f := New(several, &Settings{DecisionHeader: name})
	outer := func(remaining, reset int64) http.Header {
		h := http.Header{}
		Write(one("all", 10000, 3600, Both, name), h, true, remaining, reset, "local")
		return h
	}
	state := `"apikey:login";r=4;t=30, "apikey:login:day";r=999;t=4000, "apikey";r=49;t=900`
	for _, test := range []struct {
		name              string
		header            http.Header
		allowed           bool
		limit, left, wait string
	}{
		{"outer looser", outer(9000, 70), true, "5", "4", "30"},
		{"outer tighter", outer(3, 70), true, "10000", "3", "70"},
		{"outer tighter, but we refuse", outer(3, 70), false, "5", "4", "30"},
	} {
		t.Run(test.name, func(t *testing.T) {
			others := test.header.Get("RateLimit")
			// The same middleware twice: its second word stands.
			WriteSeveral(f, test.header, true, []int64{5, 1000, 50}, []int64{31, 4001, 901}, binding(true, []int64{5, 1000, 50}, []int64{31, 4001, 901}, []bool{false, false, false}), "shared")
			WriteSeveral(f, test.header, test.allowed, []int64{4, 999, 49}, []int64{30, 4000, 900}, binding(test.allowed, []int64{4, 999, 49}, []int64{30, 4000, 900}, []bool{!test.allowed, false, false}), "shared")
			compare(t, test.header, http.Header{
				"Ratelimit-Policy":      {`"all";q=10000;w=3600, "apikey:login";q=5;w=60, "apikey:login:day";q=1000;w=86400, "apikey";q=50;w=3600`},
				"Ratelimit":             {others + ", " + state},
				"X-Ratelimit-Limit":     {test.limit},
				"X-Ratelimit-Remaining": {test.left},
				"X-Ratelimit-Reset":     {test.wait},
				"X-Ratelimit-Decision":  {"shared"},
			})
		})
	}
}

func TestWriteUncountedSeveral(t *testing.T) {
	f := New(several, &Settings{DecisionHeader: name})
	h := http.Header{
		"Ratelimit-Policy": {`"apikey:login:night";q=1;w=9, "apikey";q=7;w=1`},
		"Ratelimit":        {`"apikey:login:night";r=1;t=9, "apikey";r=7;t=1, "apikey:login:day";r=7;t=1`},
	}
	WriteUncounted(f, h, "gateway")
	compare(t, h, http.Header{
		"Ratelimit-Policy":     {`"apikey:login:night";q=1;w=9, "apikey:login";q=5;w=60, "apikey:login:day";q=1000;w=86400, "apikey";q=50;w=3600`},
		"Ratelimit":            {`"apikey:login:night";r=1;t=9`},
		"X-Ratelimit-Decision": {"gateway"},
	})
}

// A name that is the beginning of another replaces itself alone, with : as with any
// other byte of a name.
func TestNamesThatBeginOthers(t *testing.T) {
	names := []string{"a", "a:b", "a:b:c", "a.b", "a@b", "a-b", "ab"}
	for _, own := range names {
		h := http.Header{}
		for round := int64(1); round < 3; round++ {
			for _, other := range names {
				Write(one(other, 9, 60, IETF, ""), h, true, round, 5, "shared")
			}
		}
		Write(one(own, 9, 60, IETF, ""), h, true, 8, 5, "shared")
		want := ""
		for _, other := range names {
			if other != own {
				want += `"` + other + `";r=2;t=5, `
			}
		}
		compare(t, http.Header{"Ratelimit": h["Ratelimit"]}, http.Header{"Ratelimit": {want + `"` + own + `";r=8;t=5`}})
	}
}

func TestExpose(t *testing.T) {
	const key = "Access-Control-Expose-Headers"
	for _, test := range []struct {
		style              Style
		decision           string
		counted, uncounted string
	}{
		{Both, "X-RateLimit-Decision", "RateLimit-Policy, RateLimit, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, X-RateLimit-Decision", "RateLimit-Policy, X-RateLimit-Decision"},
		{Both, "", "RateLimit-Policy, RateLimit, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset", "RateLimit-Policy"},
		{IETF, "X-How", "RateLimit-Policy, RateLimit, X-How", "RateLimit-Policy, X-How"},
		{Legacy, "", "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset", ""},
		{Legacy, "X-How", "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, X-How", "X-How"},
		{None, "X-How", "X-How", "X-How"},
		{None, "", "", ""},
	} {
		f := New([]Policy{{"quota", 5, 60}}, &Settings{Style: test.style, DecisionHeader: test.decision, Expose: true, DryRun: true})
		check := func(what string, write func(h http.Header), exposed string) {
			t.Helper()
			for _, before := range [][]string{nil, {"X-Total"}, {"x-ratelimit-limit,X-Total", "Etag"}, {""}} {
				h := http.Header{}
				if before != nil {
					h[key] = append(make([]string, 0, 4), before...)
				}
				write(h)
				write(h) // no name twice
				listed := map[string]bool{}
				for _, line := range h[key] {
					for _, field := range split(line) {
						if listed[http.CanonicalHeaderKey(field)] {
							t.Errorf("%+v, %s after %q: %s is listed twice in %q", test, what, before, field, h[key])
						}
						listed[http.CanonicalHeaderKey(field)] = true
					}
				}
				for field := range h {
					if field != key && !listed[field] {
						t.Errorf("%+v, %s after %q: %s is sent and not listed in %q", test, what, before, field, h[key])
					}
				}
				for _, line := range before {
					for _, field := range split(line) {
						if !listed[http.CanonicalHeaderKey(field)] {
							t.Errorf("%+v, %s after %q: %s is lost in %q", test, what, before, field, h[key])
						}
					}
				}
				if before == nil && h.Get(key) != exposed {
					t.Errorf("%+v, %s: exposes %q, want %q", test, what, h.Get(key), exposed)
				}
			}
		}
		check("Write", func(h http.Header) { Write(f, h, true, 4, 60, "shared") }, test.counted)
		check("WriteSeveral", func(h http.Header) {
			WriteSeveral(f, h, true, []int64{4}, []int64{60}, binding(true, []int64{4}, []int64{60}, []bool{false}), "shared")
		}, test.counted)
		check("WriteUncounted", func(h http.Header) { WriteUncounted(f, h, "open") }, test.uncounted)
		check("WriteDryRun", func(h http.Header) { WriteDryRun(f, h, true) }, "X-RateLimit-Dry-Run")
	}
}

// split returns the members of a list of names.
func split(line string) []string {
	var fields []string
	for _, field := range strings.Split(line, ",") {
		if field = strings.TrimSpace(field); field != "" {
			fields = append(fields, field)
		}
	}
	return fields
}

func TestExposeBesideOthers(t *testing.T) {
	for _, test := range []struct{ before, want []string }{
		{[]string{"X-Total"}, []string{"X-Total, Retry-After"}},
		{[]string{"X-Total, Etag", "Link"}, []string{"X-Total, Etag, Link, Retry-After"}},
		{[]string{"*"}, []string{"*, Retry-After"}}, // * covers no request with credentials
		{[]string{"X-Total,retry-after"}, []string{"X-Total,retry-after"}},
		{[]string{"X-Retry-After"}, []string{"X-Retry-After, Retry-After"}},
		{[]string{""}, []string{"Retry-After"}},
		{[]string{}, []string{"Retry-After"}},
	} {
		h := http.Header{"Access-Control-Expose-Headers": test.before}
		expose(h, retryName)
		compare(t, h, http.Header{"Access-Control-Expose-Headers": test.want})
	}
}

func TestNothingIsExposedUnasked(t *testing.T) {
	f := New([]Policy{{"quota", 5, 60}}, &Settings{DecisionHeader: name, DryRun: true})
	h := http.Header{}
	Write(f, h, true, 4, 60, "shared")
	WriteUncounted(f, h, "open")
	WriteDryRun(f, h, false)
	if got, ok := h["Access-Control-Expose-Headers"]; ok {
		t.Errorf("exposes %q", got)
	}
}

func TestWriteDryRun(t *testing.T) {
	for _, test := range []struct {
		dryRun  bool
		before  []string
		refused bool
		want    []string
	}{
		{true, nil, false, []string{"allowed"}},
		{true, nil, true, []string{"refused"}},
		{true, []string{"allowed"}, true, []string{"refused"}},
		{true, []string{"refused"}, false, []string{"refused"}},
		{true, []string{"allowed"}, false, []string{"allowed"}},
		{true, []string{"maybe"}, false, []string{"allowed"}},
		{false, nil, true, nil},
		{false, []string{"refused"}, false, []string{"refused"}},
	} {
		h, want := http.Header{}, http.Header{}
		if test.before != nil {
			h["X-Ratelimit-Dry-Run"] = test.before
		}
		if test.want != nil {
			want["X-Ratelimit-Dry-Run"] = test.want
		}
		WriteDryRun(New([]Policy{{"quota", 5, 60}}, &Settings{DryRun: test.dryRun}), h, test.refused)
		compare(t, h, want)
	}
}

// binding returns the policy that binds a client: on a refusal, of those that refused the
// one that resets last; else the one with the least remaining, at equality the one that
// resets later.
func binding(allowed bool, remaining, resets []int64, refused []bool) int {
	found := 0
	for i := 1; i < len(remaining); i++ {
		left := remaining[i]
		if left < 0 {
			left = 0
		}
		if binds(allowed, refused[i], refused[found], left, remaining[found], resets[i], resets[found]) {
			found = i
		}
	}
	return found
}

// binds reports whether one policy binds the client more than another.
func binds(allowed, refused, otherRefused bool, left, otherLeft, reset, otherReset int64) bool {
	if otherLeft < 0 {
		otherLeft = 0
	}
	if !allowed {
		if refused != otherRefused {
			return refused
		}
		if refused && reset != otherReset {
			return reset > otherReset
		}
	}
	return left < otherLeft || left == otherLeft && reset > otherReset
}
