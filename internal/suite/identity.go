package suite

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"strings"
)

// identity is about clients that are told apart by any part of a request or by several,
// about requests that lack one, and about those that are exempt.
var identity = tests{
	{"each part of a request can tell clients apart", eachPart},
	{"a request that lacks a part is served as onMissing says", missingParts},
	{"a request that lacks one of several parts is served as onMissing says", missingOfSeveral},
	{"clients differ if any of several parts does", severalParts},
	{"what parts run together to is no client", partsDoNotRunTogether},
	{"the order in which headers are named does not matter", orderOfHeaders},
	{"a refused request without a part has no quota to tell of", refusedNameless},
	{"requests from exempt addresses pass uncounted", exemptAddresses},
	{"a rule that tells clients apart otherwise exempts the same addresses", exemptUnderRule},
	{"addresses that are no part are found as ipStrategy says", addressesBeside},
	{"true CORS preflights alone pass uncounted", exemptPreflights},
	{"exempt requests do not reach the store", exemptCostNothing},
}

// parts are the ways to tell clients apart by one part of a request.
var parts = []struct {
	name      string
	criterion map[string]any
	set       func(req *http.Request, value string)
	twice     func(req *http.Request) // nil: the part cannot be there twice
}{
	{"header", map[string]any{"requestHeaderName": "X-One"}, func(req *http.Request, value string) { req.Header["X-One"] = []string{value} },
		func(req *http.Request) { req.Header["X-One"] = []string{"a", "a"} }},
	{"header in a list", map[string]any{"requestHeaderNames": []any{"x-one"}}, func(req *http.Request, value string) { req.Header["X-One"] = []string{value} },
		func(req *http.Request) { req.Header["X-One"] = []string{"a", "a"} }},
	{"host", map[string]any{"requestHost": true}, func(req *http.Request, value string) { req.Host = strings.TrimSpace(value) }, nil},
	{"cookie", map[string]any{"cookieName": "id"}, func(req *http.Request, value string) { req.Header["Cookie"] = []string{"x=y; id=" + value + "; z"} },
		func(req *http.Request) { req.Header["Cookie"] = []string{"id=a", "id=a"} }},
	{"query parameter", map[string]any{"queryParameter": "key"}, func(req *http.Request, value string) {
		req.URL.RawQuery = "a=b&key=" + strings.ReplaceAll(value, " ", "+")
	}, func(req *http.Request) { req.URL.RawQuery = "key=a&key=a" }},
	{"path segment", map[string]any{"pathSegment": float64(2)}, func(req *http.Request, value string) { req.URL.Path = "/x/" + value }, nil},
	{"claim", map[string]any{"jwtClaim": "sub"}, func(req *http.Request, value string) {
		req.Header["Authorization"] = []string{bearer(`{"sub":"` + value + `"}`)}
	}, func(req *http.Request) {
		req.Header["Authorization"] = []string{bearer(`{"sub":"a"}`), bearer(`{"sub":"a"}`)}
	}},
	{"certificate", map[string]any{"tlsClientSubject": "true"}, func(req *http.Request, value string) {
		req.TLS = &tls.ConnectionState{}
		if value != "" {
			cert := &x509.Certificate{Subject: pkix.Name{CommonName: value}}
			req.TLS.VerifiedChains = [][]*x509.Certificate{{cert}}
		}
	}, nil},
}

// at returns a request from an address.
func at(peer string) *http.Request {
	req := from(peer)
	req.Host = ""
	req.URL.Path = "/"
	return req
}

func eachPart(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		for _, part := range parts {
			h := t.handler(t.name(), with(options, "limit", "2", "sourceCriterion", part.criterion))
			var got []answer
			for i := 0; i < 4; i++ {
				req := at(fmt.Sprintf("192.0.2.%d:1", i))
				part.set(req, "one")
				got = append(got, t.send(h, req))
			}
			t.exact(got, 2, way)
			for _, value := range []string{"two", "192.0.2.1"} {
				req := at("192.0.2.1:1")
				part.set(req, value)
				if got := t.send(h, req); got.remaining != 1 {
					t.Errorf("%s %q is the same client: %d remain", part.name, value, got.remaining)
				}
			}
		}
	})
}

func missingParts(t *T) {
	for _, part := range parts {
		part := part
		missing := []func(req *http.Request){func(*http.Request) {}, func(req *http.Request) { part.set(req, "") }}
		if part.name != "certificate" && part.name != "path segment" {
			missing = append(missing, func(req *http.Request) { part.set(req, "  ") })
		}
		if part.twice != nil {
			missing = append(missing, part.twice)
		}
		for _, onMissing := range []any{absent, "address", "skip", "shared", "refuse"} {
			name := t.name()
			h := t.handler(name, t.options(nil, "limit", "1000", "sourceCriterion", with(part.criterion, "onMissing", onMissing)))
			present := at("192.0.2.1:1")
			part.set(present, "one")
			if got := t.send(h, present); got.remaining != 999 {
				t.Errorf("%s, onMissing %v: a request that has it: %d, %d remain", part.name, onMissing, got.status, got.remaining)
			}
			for i, take := range missing {
				here, there := at("192.0.2.1:1"), at("192.0.2.2:1")
				take(here)
				take(there)
				one, other := t.exchange(h, here), t.exchange(h, there)
				n := int64(i)
				ok := false
				switch onMissing {
				case "skip":
					ok = one.status == 200 && one.counts(name) == "uncounted" && one.decision == "" && other.counts(name) == "uncounted"
				case "refuse":
					ok = one.status == 400 && one.retryAfter == -1 && other.status == 400
				case "shared":
					ok = one.remaining == 999-2*n && other.remaining == 998-2*n
				default:
					ok = one.remaining == 999-n && other.remaining == 999-n
				}
				if !ok {
					t.Errorf("%s, onMissing %v, form %d: %d, %d remain, and from another address %d, %d remain",
						part.name, onMissing, i, one.status, one.remaining, other.status, other.remaining)
				}
			}
		}
	}
}

func missingOfSeveral(t *T) {
	both := map[string]any{"requestHeaderName": "X-One", "cookieName": "id"}
	for _, onMissing := range []string{"address", "skip", "shared", "refuse"} {
		name := t.name()
		h := t.handler(name, t.options(nil, "limit", "1000", "sourceCriterion", with(both, "onMissing", onMissing)))
		for _, tt := range []struct {
			one, id   string
			remaining map[string]int64 // from two addresses, where it is counted
		}{
			{"a", "b", map[string]int64{"192.0.2.1:1": 999, "192.0.2.2:1": 998}},
			// What is there tells clients apart also where a part is missing.
			{"a", "", map[string]int64{"192.0.2.1:1": 999, "192.0.2.2:1": 999}},
			{"", "b", map[string]int64{"192.0.2.1:1": 999, "192.0.2.2:1": 999}},
			{"c", "", map[string]int64{"192.0.2.1:1": 999, "192.0.2.2:1": 999}},
			{"", "", map[string]int64{"192.0.2.1:1": 999, "192.0.2.2:1": 999}},
		} {
			missing := tt.one == "" || tt.id == ""
			for i, peer := range []string{"192.0.2.1:1", "192.0.2.2:1"} {
				req := from(peer)
				req.Header["X-One"], req.Header["Cookie"] = []string{tt.one}, []string{"id=" + tt.id}
				got := t.exchange(h, req)
				status, remaining := 200, tt.remaining[peer]
				switch {
				case missing && onMissing == "skip":
					remaining = -1
				case missing && onMissing == "refuse":
					status, remaining = 400, -1
				case missing && onMissing == "shared":
					remaining = 999 - int64(i)
				}
				if got.status != status || got.remaining != remaining {
					t.Errorf("onMissing %s, %q and %q from %s: %d, %d remain; want %d, %d", onMissing, tt.one, tt.id, peer, got.status, got.remaining, status, remaining)
				}
			}
		}
	}
}

func severalParts(t *T) {
	all := map[string]any{"requestHeaderNames": "X-Two,X-Three", "ipStrategy": map[string]any{}}
	for _, part := range parts[1:] {
		for option, value := range part.criterion {
			if part.name != "header in a list" {
				all[option] = value
			}
		}
	}
	all["requestHeaderName"] = "X-One"
	full := func() *http.Request {
		req := at("192.0.2.1:1")
		for _, part := range parts {
			part.set(req, "same")
		}
		req.Header.Set("X-Two", "same")
		req.Header.Set("X-Three", "same")
		return req
	}
	for _, v := range []*valkey{nil, t.valkey()} {
		h := t.handler(t.name(), t.options(v, "limit", "1000", "sourceCriterion", all))
		t.send(h, full())
		if got := t.send(h, full()); got.remaining != 998 {
			t.Errorf("the same client again: %d remain", got.remaining)
		}
		var changed []*http.Request
		for _, part := range append(parts[:1:1], parts[2:]...) {
			other, without := full(), full()
			part.set(other, "other")
			part.set(without, "")
			changed = append(changed, other, without)
		}
		for _, header := range []string{"X-Two", "X-Three"} {
			other, without := full(), full()
			other.Header.Set(header, "other")
			without.Header.Del(header)
			changed = append(changed, other, without)
		}
		address := full()
		address.RemoteAddr = "192.0.2.2:1"
		for i, req := range append(changed, address) {
			if got := t.send(h, req); got.remaining != 999 {
				t.Errorf("with change %d it is a client that has %d left", i, got.remaining)
			}
		}
	}
}

func partsDoNotRunTogether(t *T) {
	v := t.valkey()
	h := t.handler(t.name(), t.options(v, "limit", "1000", "sourceCriterion", map[string]any{"requestHeaderNames": []any{"X-One", "X-Two"}, "onMissing": "shared"}))
	seen := map[string][2]string{}
	for _, values := range [][2]string{
		{"a", "b"}, {"b", "a"}, {"ab", ""}, {"", "ab"}, {"a", ""}, {"", "a"}, {"", ""}, {"a,b", ""}, {"a", "bb"}, {"ab", "b"}, {"a:1:b", "c"}, {"a", "1:b:c"},
		{"-", "a"}, {"a", "-"}, {"-:", "a"}, {"a\x00b", "c"}, {"a", "b\x00c"}, {"a\x00header:5:X-Two:1:b", "c"}, {"1:a", "b"}, {"192.0.2.1", ""},
		{strings.Repeat("a", 99), "b"}, {strings.Repeat("a", 98), "ab"},
	} {
		req := from("192.0.2.1:1")
		req.Header["X-One"], req.Header["X-Two"] = []string{values[0]}, []string{values[1]}
		digest := t.bucket(v, h, req)
		if other, known := seen[digest]; known {
			t.Errorf("%q and %q are one client", values, other)
		}
		seen[digest] = values
	}
}

func orderOfHeaders(t *T) {
	v := t.valkey()
	digest := ""
	for _, criterion := range []map[string]any{
		{"requestHeaderNames": []any{"X-One", "X-Two"}}, {"requestHeaderNames": "x-two, x-one"}, {"requestHeaderName": "X-Two", "requestHeaderNames": "X-One"},
		{"requestHeaderName": "X-Two", "requestHeaderNames": "X-One,X-Two"},
	} {
		h := t.handler(t.name(), t.options(v, "sourceCriterion", criterion))
		got := t.bucket(v, h, get("/", "X-One", "a", "X-Two", "b"))
		if digest != "" && got != digest {
			t.Errorf("%v counts under %s, want %s", criterion, got, digest)
		}
		digest = got
	}
}

func refusedNameless(t *T) {
	v := t.valkey()
	name := t.name()
	h := t.handler(name, t.options(v, "sourceCriterion", map[string]any{"requestHeaderName": "X-Api-Key", "onMissing": "refuse"}))
	for _, accept := range []string{"", "application/json"} {
		req := from("192.0.2.1:1")
		req.Header.Set("Accept", accept)
		got := t.exchange(h, req)
		kind := "text/plain"
		if accept != "" {
			kind = "application/problem+json"
		}
		if got.status != 400 || got.counts(name) != "uncounted" || got.limit != -1 || got.retryAfter != -1 || got.header.Get("Cache-Control") != "no-store" ||
			!strings.HasPrefix(got.header.Get("Content-Type"), kind) || got.header.Get("Content-Length") != fmt.Sprint(len(got.body)) {
			t.Errorf("Accept %q: %d, %v, %q", accept, got.status, got.header, got.body)
		}
	}
	head := from("192.0.2.1:1")
	head.Method = "HEAD"
	if got := t.exchange(h, head); got.status != 400 || got.body != "" {
		t.Errorf("HEAD: %d, %q", got.status, got.body)
	}
	if calls := v.clientCalls(name); len(calls) > 0 {
		t.Errorf("the store was asked: %q", calls)
	}
	if got := t.ask(h, "key"); got.remaining != 4 {
		t.Errorf("a client with a key has %d left", got.remaining)
	}
}

func exemptAddresses(t *T) {
	ips := []any{"192.0.2.0/25", " 198.51.100.7 ", "2001:db8::/32", "::ffff:203.0.113.9", "10.0.0.1"}
	for _, tt := range []struct {
		name     string
		strategy any
		exempt   []*http.Request
		counted  []*http.Request
	}{
		{"peer", absent,
			[]*http.Request{from("192.0.2.1:1"), from("192.0.2.127:1"), from("[::ffff:192.0.2.1]:9"), from("198.51.100.7:1"), from("[2001:db8:ffff::1]:1"), from("203.0.113.9:1"), from("192.0.2.1"),
				from("[2001:db8::1%eth0]:1"), forwardedFor("192.0.2.1:1", "203.0.113.1")},
			[]*http.Request{from("192.0.2.128:1"), from("198.51.100.8:1"), from("[2001:db9::1]:1"), from(""), from("@"), from("nonsense"), forwardedFor("203.0.113.1:1", "192.0.2.1")}},
		{"trusted proxies", map[string]any{"trustedIPs": "10.0.0.0/8"},
			[]*http.Request{forwardedFor("10.0.0.1:1", "192.0.2.1"), forwardedFor("10.0.0.1:1", "203.0.113.1, 192.0.2.1"), forwardedFor("10.0.0.1:1", "192.0.2.1, 10.0.0.2"),
				forwardedFor("10.0.0.1:1", "203.0.113.1", "192.0.2.1"), from("192.0.2.1:1"), forwardedFor("192.0.2.1:1", "203.0.113.1")},
			[]*http.Request{from("10.0.0.1:1"), forwardedFor("10.0.0.1:1", ""), forwardedFor("10.0.0.1:1", "unknown"), forwardedFor("10.0.0.1:1", "192.0.2.1, nonsense"),
				forwardedFor("10.0.0.1:1", "192.0.2.1, 203.0.113.1"), forwardedFor("203.0.113.1:1", "192.0.2.1"), forwardedFor("10.0.0.1:1", "192.0.2.1, 203.0.113.1, 10.0.0.2")}},
		{"depth", map[string]any{"depth": "2"},
			[]*http.Request{forwardedFor("10.9.9.9:1", "192.0.2.1, 203.0.113.1"), forwardedFor("10.9.9.9:1", "203.0.113.1, 192.0.2.1, 10.0.0.2")},
			[]*http.Request{from("192.0.2.1:1"), forwardedFor("192.0.2.1:1", "203.0.113.1"), forwardedFor("192.0.2.1:1", "x, 203.0.113.1"), forwardedFor("10.9.9.9:1", "192.0.2.1, 203.0.113.1, 10.0.0.2")}},
		{"excluded proxies", map[string]any{"excludedIPs": "10.0.0.0/8"},
			[]*http.Request{forwardedFor("10.0.0.1:1", "192.0.2.1, 10.0.0.2")},
			[]*http.Request{from("10.0.0.1:1"), from("192.0.2.1:1"), forwardedFor("10.0.0.1:1", "10.0.0.1"), forwardedFor("10.0.0.1:1", "192.0.2.1, x, 10.0.0.2")}},
	} {
		t.sub(tt.name, func(t *T) {
			name := t.name()
			h := t.handler(name, t.options(nil, "limit", "1000", "sourceCriterion", with(map[string]any{}, "ipStrategy", tt.strategy), "exempt", map[string]any{"ips": ips}))
			for i, req := range append(tt.exempt, tt.counted...) {
				if got := t.send(h, req); (got.counts(name) == "uncounted") != (i < len(tt.exempt)) || got.status != 200 {
					t.Errorf("peer %s, X-Forwarded-For %q: %d, exempt: %t", req.RemoteAddr, req.Header["X-Forwarded-For"], got.status, got.counts(name) == "uncounted")
				}
			}
		})
	}
}

func exemptUnderRule(t *T) {
	name := t.name()
	h := t.handler(name, t.options(nil, "sourceCriterion", map[string]any{"ipStrategy": map[string]any{"trustedIPs": "10.0.0.1"}}, "exempt", map[string]any{"ips": "10.0.0.0/8"},
		"rules", []any{entry("name", "login", "path", "/login", "sourceCriterion", map[string]any{"requestHeaderName": "X-Api-Key"})}))
	for _, target := range []string{"/", "/login"} {
		for forwarded, exempt := range map[string]bool{"10.0.0.9": true, "203.0.113.1": false, "": false} {
			req := get(target, "X-Forwarded-For", forwarded)
			req.RemoteAddr = "10.0.0.1:1"
			if got := t.send(h, req); (got.counts(name) == "uncounted") != exempt {
				t.Errorf("%s for %q is exempt: %t", target, forwarded, !exempt)
			}
		}
	}
}

func addressesBeside(t *T) {
	const proxy = "10.0.0.1:1"
	by := func(criterion any) (string, func(req *http.Request) answer) {
		name := t.name()
		h := t.handler(name, t.options(nil, "limit", "1000", "ipStrategy", map[string]any{"trustedIPs": "10.0.0.0/8", "ipv4Subnet": "24"}, "sourceCriterion", criterion,
			"exempt", map[string]any{"ips": "192.0.2.0/24, 10.0.0.0/8"},
			"rules", []any{entry("name", "login", "path", "/login", "limit", "1000", "sourceCriterion", map[string]any{"cookieName": "id"})}))
		return name, func(req *http.Request) answer { return t.send(h, req) }
	}
	for _, criterion := range []any{absent, map[string]any{}, map[string]any{"requestHeaderName": "X-Api-Key"}, map[string]any{"cookieName": "id", "onMissing": "address"}} {
		for _, path := range []string{"/", "/login"} {
			name, send := by(criterion)
			at := func(peer string, lines ...string) *http.Request {
				req := forwardedFor(peer, lines...)
				req.URL.Path = path
				return req
			}
			for i, tt := range []struct {
				req  *http.Request
				want int64 // -1: exempt
			}{
				{at(proxy, "203.0.113.1"), 999}, {at(proxy, "192.0.2.1, 203.0.113.1"), 998}, {at("203.0.113.9:7", "192.0.2.1"), 997}, {at(proxy, "203.0.114.1"), 999},
				{at(proxy, "203.0.113.1, 192.0.2.1"), -1}, {at("192.0.2.1:1", "203.0.113.1"), -1}, {at(proxy, "203.0.113.1, 10.0.0.2"), 996},
				// A proxy that says nothing stands for nobody.
				{at(proxy), 999}, {at(proxy, ""), 998},
			} {
				if got := send(tt.req); got.remaining != tt.want || (got.counts(name) == "uncounted") != (tt.want < 0) {
					t.Errorf("%v, %s, request %d: %d remain, want %d", criterion, path, i, got.remaining, tt.want)
				}
			}
		}
	}
	// With the header it is no part.
	_, send := by(map[string]any{"requestHeaderName": "X-Api-Key"})
	for i, peer := range []string{"203.0.113.1:1", "198.51.100.1:1"} {
		req := get("/")
		req.RemoteAddr = peer
		if got := send(req); got.remaining != 999-int64(i) {
			t.Errorf("a key from %s has %d left", peer, got.remaining)
		}
	}
	// What stands in sourceCriterion is found as it says itself.
	name := t.name()
	h := t.handler(name, t.options(nil, "ipStrategy", map[string]any{"depth": "1"}, "sourceCriterion", map[string]any{"ipStrategy": map[string]any{}}, "exempt", map[string]any{"ips": "192.0.2.1"}))
	if got := t.send(h, forwardedFor("203.0.113.1:1", "192.0.2.1")); got.counts(name) != "" {
		t.Errorf("an address is found as ipStrategy of another level says")
	}
}

func exemptPreflights(t *T) {
	const origin, method = "Origin", "Access-Control-Request-Method"
	name := t.name()
	h := t.handler(name, t.options(nil, "limit", "1000", "exempt", map[string]any{"preflight": "true"}))
	for _, tt := range []struct {
		method string
		header []string
		exempt bool
	}{
		{"OPTIONS", []string{origin, "https://a.example", method, "POST"}, true},
		{"OPTIONS", []string{origin, "null", method, "GET", "Access-Control-Request-Headers", "x"}, true},
		{"OPTIONS", []string{origin, "https://a.example"}, false},
		{"OPTIONS", []string{method, "POST"}, false},
		{"OPTIONS", []string{origin, "", method, "POST"}, false},
		{"OPTIONS", []string{origin, "https://a.example", method, " "}, false},
		{"OPTIONS", []string{origin, "https://a.example", origin, "https://b.example", method, "POST"}, false},
		{"OPTIONS", nil, false},
		{"GET", []string{origin, "https://a.example", method, "POST"}, false},
		{"options", []string{origin, "https://a.example", method, "POST"}, false},
		{"POST", []string{origin, "https://a.example", method, "POST", "X-HTTP-Method-Override", "OPTIONS"}, false},
	} {
		if got := t.send(h, request(tt.method, "/", tt.header...)); (got.counts(name) == "uncounted") != tt.exempt {
			t.Errorf("%s %q is exempt: %t", tt.method, tt.header, !tt.exempt)
		}
	}
	for _, preflight := range []any{absent, "false", false} {
		off := t.name()
		h := t.handler(off, with(t.options(nil, "limit", "1000", "exempt", map[string]any{"paths": "/x"}), "exempt.preflight", preflight))
		if got := t.send(h, request("OPTIONS", "/", origin, "https://a.example", method, "POST")); got.counts(off) != "" {
			t.Errorf("with preflight %v a preflight is exempt", preflight)
		}
	}
}

func exemptCostNothing(t *T) {
	v := t.valkey()
	name := t.name()
	h := t.handler(name, t.options(v, "limit", "1", "sourceCriterion", map[string]any{"requestHeaderName": "X-Api-Key"},
		"exempt", map[string]any{"paths": "/free", "methods": "HEAD", "ips": "192.0.2.99", "preflight": "true"}))
	exempt := get("/")
	exempt.RemoteAddr = "192.0.2.99:1"
	for i := 0; i < 3; i++ {
		for _, req := range []*http.Request{get("/free"), request("HEAD", "/"), exempt, request("OPTIONS", "/", "Origin", "x", "Access-Control-Request-Method", "PUT")} {
			got := t.send(h, req)
			for field := range got.header {
				if strings.Contains(field, "Ratelimit") {
					t.Errorf("an exempt request is told %s", field)
				}
			}
		}
	}
	if calls := v.clientCalls(name); len(calls) > 0 {
		t.Errorf("exempt requests are counted: %q", calls)
	}
	if got := t.statuses(h, 2, func() *http.Request { return get("/") }); got[0] != 200 || got[1] != 429 {
		t.Errorf("others get %d", got)
	}
	v.Stop()
	if got := t.send(h, get("/free")); got.status != 200 {
		t.Errorf("without the store an exempt request gets %d", got.status)
	}
}
