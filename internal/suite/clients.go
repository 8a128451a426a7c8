package suite

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
)

// clients is about who is taken for whom.
var clients = tests{
	{"requests without the header count by address", missingHeader},
	{"no value of a header reaches the count of an address", headerCannotForge},
	{"secrets of clients stay out of the store and the log", secretsStaySecret},
	{"long and binary values are told apart", longAndBinary},
	{"one host in its many forms", hostForms},
	{"one address in its many forms", addressForms},
	{"an address rule that finds nothing counts by the peer", nothingFound},
	{"IPv6 addresses count by their network", networks},
	{"peers without an address are limited together", peersWithoutAddress},
}

// bucket sends a request and returns the digest under which the store counted it.
func (t *T) bucket(v *valkey, h http.Handler, req *http.Request) string {
	t.Helper()
	v.ForgetCommands()
	if got := t.send(h, req); got.status != http.StatusOK {
		t.Errorf("%d", got.status)
	}
	digest := ""
	for _, command := range v.Commands() {
		if asks(command.Args) {
			key := command.Args[3]
			digest = key[strings.IndexByte(key, '{')+1 : strings.IndexByte(key, '}')]
		}
	}
	if len(digest) != 64 {
		t.Errorf("counted under the digest %q", digest)
	}
	return digest
}

func missingHeader(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		h := t.handler(t.name(), options)
		forms := [][]string{nil, {""}, {"  "}, {"\t"}, {"a", "a"}, {"a", "b"}, {"", "a"}}
		var got []answer
		for _, form := range forms {
			req := from("192.0.2.1:4711")
			if form != nil {
				req.Header["X-Api-Key"] = form
			}
			got = append(got, t.send(h, req))
		}
		t.exact(got, 5, way)
		if other := t.send(h, from("192.0.2.2:4711")); other.remaining != 4 {
			t.Errorf("another address has %d left", other.remaining)
		}
		// One blank more or less is the same key.
		t.ask(h, "key")
		req := keyed("")
		req.Header["X-Api-Key"] = []string{" \tkey "}
		if got := t.send(h, req); got.remaining != 3 {
			t.Errorf("a key with blanks around it has %d left", got.remaining)
		}
	})
}

func headerCannotForge(t *T) {
	v := t.valkey()
	h := t.handler(t.name(), t.options(v, "limit", "1000"))
	address, other := t.bucket(v, h, from("192.0.2.1:80")), t.bucket(v, h, from("198.51.100.9:80"))
	for _, value := range []string{
		"192.0.2.1", "192.0.2.1:80", "anonymous", "address:9:192.0.2.1", address, "", "\x00", "\x00address:9:192.0.2.1",
		"\x00host:11:example.com", " \x00address:9:192.0.2.1",
	} {
		req := from("198.51.100.9:80")
		req.Header["X-Api-Key"] = []string{value}
		got := t.bucket(v, h, req)
		if got == address {
			t.Errorf("the value %q is counted as somebody else's address", value)
		}
		// HTTP cannot carry a zero byte: a value that begins with one is no value.
		if isMissing := strings.Trim(value, " ") == "" || strings.Contains(value, "\x00"); isMissing != (got == other) {
			t.Errorf("the value %q counts by its sender's address: %t", value, got == other)
		}
	}
}

func secretsStaySecret(t *T) {
	const secret = "SECRET-e3f1"
	v := t.valkey()
	name := t.name()
	for _, header := range []string{"X-Api-Key", "Authorization"} {
		h := t.handler(name, t.options(v, "limit", "3", "sourceCriterion.requestHeaderName", header))
		ask := func(value string) answer {
			req := keyed("")
			req.Header[header] = []string{value}
			return t.send(h, req)
		}
		for i := 0; i < 5; i++ {
			ask(secret)
		}
		if got := ask(secret); got.status != http.StatusTooManyRequests {
			t.Errorf("%d after six of three", got.status)
		}
		v.Refuse("OOM command not allowed")
		for _, value := range []string{secret, secret + "\nSECRET forged line", "\x1b[31m" + secret, secret + strings.Repeat("A", 4096)} {
			ask(value)
		}
		v.Stop()
		for i := 0; i < 5; i++ {
			ask(secret)
		}
		restart(t, v)
		v.Refuse("")
		name = t.name()
	}
	for _, command := range v.Commands() {
		if strings.Contains(strings.Join(command.Args, " "), "SECRET") {
			t.Errorf("the secret is in the command %q", command.Args)
		}
	}
	if lines := t.logged("SECRET"); len(lines) > 0 {
		t.Errorf("the secret is in the log: %q", lines)
	}
}

func longAndBinary(t *T) {
	v := t.valkey()
	h := t.handler(t.name(), t.options(v))
	long := strings.Repeat("k", 8191)
	seen := map[string]string{}
	for _, value := range []string{
		"k", long + "1", long + "2", strings.Repeat("k", 64<<10), strings.Repeat("k", 900<<10), "schlüssel", "\xff\xfe", "\xff",
		"\x01", "a\x00b", "a\x00c", "a b", "a  b", "$1\r\nx", "*1", "key}:1", "A", "a",
	} {
		req := keyed("")
		req.Header["X-Api-Key"] = []string{value}
		digest := t.bucket(v, h, req)
		if before, known := seen[digest]; known {
			t.Errorf("%.20q and %.20q are one client", before, value)
		}
		seen[digest] = value
		if want := fmt.Sprintf("%x", sha256.Sum256([]byte(value))); digest != want {
			t.Errorf("%.20q is counted under %s, its digest is %s", value, digest, want)
		}
	}
}

func hostForms(t *T) {
	v := t.valkey()
	h := t.handler(t.name(), t.options(v, "limit", "1000", "sourceCriterion", map[string]any{"requestHost": "true"}))
	seen := map[string]string{}
	for _, forms := range [][]string{
		{"api.example.com", "API.Example.com", "api.example.com:80", "api.example.com:8443", "api.example.com.", "api.example.com.:443"},
		{"api.example.org"}, {"example.com"}, {"a.api.example.com"},
		{"xn--bcher-kva.example", "XN--BCHER-KVA.example"},
		{"[2001:db8::1]", "[2001:db8::1]:443", "[2001:DB8:0::1]:80"}, {"[2001:db8::2]"},
		{"192.0.2.1", "192.0.2.1:80"}, {"localhost"},
	} {
		first := ""
		for _, host := range forms {
			req := keyed("")
			req.Host = host
			digest := t.bucket(v, h, req)
			if first == "" {
				first = digest
				if other, known := seen[digest]; known {
					t.Errorf("%s and %s are one host", host, other)
				}
				seen[digest] = host
			}
			if digest != first {
				t.Errorf("%s and %s are two hosts", host, forms[0])
			}
		}
	}
	// Without a host the address counts, and not all of these together.
	var without []string
	for _, peer := range []string{"192.0.2.1:1", "192.0.2.2:1"} {
		req := from(peer)
		req.Host = ""
		without = append(without, t.bucket(v, h, req))
	}
	if without[0] == without[1] || seen[without[0]] != "" {
		t.Error("requests without a host are counted together")
	}
}

// forwardedFor is a request by way of proxies.
func forwardedFor(peer string, lines ...string) *http.Request {
	req := from(peer)
	if lines != nil {
		req.Header["X-Forwarded-For"] = lines
	}
	return req
}

func byAddress(pairs ...any) []any {
	strategy := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		strategy[pairs[i].(string)] = pairs[i+1]
	}
	return []any{"limit", "1000", "sourceCriterion", map[string]any{"ipStrategy": strategy}}
}

func addressForms(t *T) {
	v := t.valkey()
	const proxy = "10.0.0.1:999"
	for _, tt := range []struct {
		name     string
		strategy []any
		requests []*http.Request // all of one client
	}{
		{"the peer", byAddress(), []*http.Request{
			from("203.0.113.7:51234"), from("203.0.113.7:51235"), from("203.0.113.7"), from("[::ffff:203.0.113.7]:80"),
			forwardedFor("203.0.113.7:80", "198.51.100.1"),
		}},
		{"by excluded proxies", byAddress("excludedIPs", []any{"10.0.0.0/8", "192.168.0.1"}), []*http.Request{
			forwardedFor(proxy, "203.0.113.7"), forwardedFor(proxy, "203.0.113.7:51234"), forwardedFor(proxy, `"203.0.113.7"`),
			forwardedFor(proxy, "203.0.113.7, 10.1.2.3"), forwardedFor(proxy, "198.51.100.1,203.0.113.7 ,192.168.0.1, 10.1.2.3"),
			forwardedFor(proxy, "198.51.100.1", "203.0.113.7", "10.1.2.3"), forwardedFor(proxy, "::ffff:203.0.113.7"),
			from("203.0.113.7:80"),
		}},
		{"by depth", byAddress("depth", "2"), []*http.Request{
			forwardedFor(proxy, "203.0.113.7, 198.51.100.2"), forwardedFor(proxy, "192.0.2.9, 203.0.113.7:99 , 198.51.100.3"),
			forwardedFor(proxy, "203.0.113.7", "198.51.100.2"), from("203.0.113.7:80"),
		}},
	} {
		t.sub(tt.name, func(t *T) {
			h := t.handler(t.name(), t.options(v, tt.strategy...))
			first := t.bucket(v, h, tt.requests[0])
			for _, req := range tt.requests[1:] {
				if t.bucket(v, h, req) != first {
					t.Errorf("peer %s, X-Forwarded-For %q is another client", req.RemoteAddr, req.Header["X-Forwarded-For"])
				}
			}
			if t.bucket(v, h, forwardedFor("203.0.113.8:80", "203.0.113.8, 203.0.113.8")) == first {
				t.Error("203.0.113.8 is the same client")
			}
		})
	}
}

func nothingFound(t *T) {
	v := t.valkey()
	for _, strategy := range [][]any{byAddress("excludedIPs", "10.0.0.0/8"), byAddress("depth", "2")} {
		h := t.handler(t.name(), t.options(v, strategy...))
		one, two := t.bucket(v, h, from("10.0.0.1:80")), t.bucket(v, h, from("10.0.0.2:80"))
		if one == two {
			t.Error("two peers without X-Forwarded-For are one client")
		}
		for _, lines := range [][]string{{""}, {"10.9.9.9"}, {" , ,"}, {"unknown, _hidden"}, {strings.Repeat(",", 5000)}} {
			if t.bucket(v, h, forwardedFor("10.0.0.1:80", lines...)) != one || t.bucket(v, h, forwardedFor("10.0.0.2:80", lines...)) != two {
				t.Errorf("%q is not counted by the peer", lines)
			}
		}
	}
}

func networks(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		for _, subnet := range []any{absent, "64", float64(64)} {
			h := t.handler(t.name(), with(options, "sourceCriterion", map[string]any{"ipStrategy": with(map[string]any{}, "ipv6Subnet", subnet)}))
			got := rush(8, 200, func(i int) answer { return t.send(h, from(fmt.Sprintf("[2001:db8:0:1::%x]:80", i))) })
			t.exact(got, 5, way)
			if neighbour := t.send(h, from("[2001:db8:0:2::1]:80")); neighbour.remaining != 4 {
				t.Errorf("the neighbouring network has %d left", neighbour.remaining)
			}
		}
	})
	v := t.valkey()
	for _, tt := range []struct {
		subnet   string
		together bool // 2001:db8:0:1::1 and 2001:db8:0:2::1
	}{{"128", false}, {"64", false}, {"63", false}, {"56", true}, {"1", true}} {
		h := t.handler(t.name(), t.options(v, byAddress("ipv6Subnet", tt.subnet)...))
		one := t.bucket(v, h, from("[2001:db8:0:1::1]:80"))
		if same := t.bucket(v, h, from("[2001:db8:0:1::2]:80")) == one; same != (tt.subnet != "128") {
			t.Errorf("/%s: two addresses of one network are one client: %t", tt.subnet, same)
		}
		if together := t.bucket(v, h, from("[2001:db8:0:2::1]:80")) == one; together != tt.together {
			t.Errorf("/%s: two networks are one client: %t", tt.subnet, together)
		}
	}
}

func peersWithoutAddress(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		h := t.handler(t.name(), with(options, "sourceCriterion", absent))
		var got []answer
		for _, peer := range []string{"", "@", "@socket", ":80", "nonsense", "unix", "[::1", "1.2.3:4"} {
			got = append(got, t.send(h, from(peer)))
		}
		t.exact(got, 5, way)
	})
}
