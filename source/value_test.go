package source

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func TestValueIdentity(t *testing.T) {
	long := strings.Repeat("k", 100)
	header := func(name, value string) *http.Request { return request(peer, http.Header{name: {value}}) }
	host := func(name string) *http.Request {
		req := request(peer, nil)
		req.Host = name
		return req
	}
	at := func(target string) *http.Request { return asked(t, target, nil) }
	tests := []struct {
		name  string
		c     Criterion
		value string
		req   *http.Request // of the client that is meant
	}{
		{"header", Criterion{Header: "X-A"}, "key", header("X-A", "key")},
		{"header, blanks", Criterion{Header: "X-A"}, " key\t", header("X-A", "key")},
		{"header, long", Criterion{Header: "X-A"}, long, header("X-A", long)},
		{"header, an address", Criterion{Header: "X-A"}, "198.51.100.9", header("X-A", "198.51.100.9")},
		{"one header of the list", Criterion{Headers: []string{"X-A"}}, "key", header("X-A", "key")},
		{"address", Criterion{}, "203.0.113.7", request("203.0.113.7:1", nil)},
		{"address, set", Criterion{Address: true}, "203.0.113.7", request("203.0.113.7:1", nil)},
		{"address in IPv6", Criterion{}, "::ffff:203.0.113.7", request("203.0.113.7:1", nil)},
		{"address, subnet", Criterion{IPv4Subnet: 24}, "203.0.113.7", request("203.0.113.200:1", nil)},
		{"address, IPv6", Criterion{}, "2001:db8::7", request("[2001:db8::ffff]:1", nil)},
		{"address, forwarded", Criterion{Depth: 1}, "203.0.113.7", header("X-Forwarded-For", "203.0.113.7")},
		{"host", Criterion{Host: true}, "API.example.com.", host("api.example.com:443")},
		{"host, IPv6", Criterion{Host: true}, "[2001:DB8::1]", host("[2001:db8::1]:443")},
		{"cookie", Criterion{Cookie: "sid"}, "a:1:b", header("Cookie", "sid=a:1:b")},
		{"cookie, long", Criterion{Cookie: "sid"}, long, header("Cookie", "sid="+long)},
		{"query", Criterion{Query: "key"}, "a&b", at("/?key=a%26b")},
		{"segment", Criterion{Segment: 1}, "acme", at("/%61cme/users")},
		{"claim", Criterion{Claim: "sub"}, "alice", withToken(bearer(`{"sub":"alice"}`))},
		{"claim, number", Criterion{Claim: "sub"}, "42", withToken(bearer(`{"sub":42}`))},
		{"subject", Criterion{TLSSubject: true}, "CN=alice", full()},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, onMissing := range []string{"", MissingShared, MissingRefuse} {
				test.c.IPv6Subnet = 64
				test.c.OnMissing = onMissing
				got, err := ValueIdentity(&test.c, test.value)
				if want := Identify(&test.c, test.req); err != nil || got != want {
					t.Errorf("%q, %v; want %q", got, err, want)
				}
				Prepare(&test.c)
				got, err = ValueIdentity(&test.c, test.value)
				if want := Identify(&test.c, test.req); err != nil || got != want {
					t.Errorf("prepared: %q, %v; want %q", got, err, want)
				}
			}
		})
	}
}

func TestValueThatNamesNobody(t *testing.T) {
	tests := []struct {
		name     string
		c        Criterion
		value    string
		mentions string
	}{
		{"header, empty", Criterion{Header: "X-A"}, "", `""`},
		{"header, blank", Criterion{Header: "X-A"}, " \t", `" \t"`},
		{"header, zero byte", Criterion{Header: "X-A"}, "\x00address:0:", `"\x00address:0:"`},
		{"address, empty", Criterion{}, "", `""`},
		{"address, name", Criterion{}, "example.com", `"example.com"`},
		{"address, range", Criterion{}, "10.0.0.0/8", `"10.0.0.0/8"`},
		{"host, empty", Criterion{Host: true}, ".", `"."`},
		{"cookie, empty", Criterion{Cookie: "sid"}, "", `""`},
		{"two segments", Criterion{Segment: 1}, "a/b", `"a/b"`},
		{"claim, blank", Criterion{Claim: "sub"}, " ", `" "`},
		{"two headers", Criterion{Headers: []string{"X-A", "X-B"}}, "key", "several parts"},
		{"header and address", Criterion{Headers: []string{"X-A"}, Address: true}, "key", "several parts"},
		{"host and address", Criterion{Host: true, Address: true}, "198.51.100.9", "several parts"},
		{"everything", *everything(""), "key", "several parts"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.c.IPv6Subnet = 64
			got, err := ValueIdentity(&test.c, test.value)
			if err == nil || got != "" || !strings.Contains(err.Error(), test.mentions) {
				t.Errorf("%q, %v; want an error that mentions %s", got, err, test.mentions)
			}
		})
	}
}

func FuzzIdentify(f *testing.F) {
	f.Add("key", "sid=abc; theme=dark", "key=q", "/acme/users", bearer(`{"sub":"alice"}`), "example.com:80", "203.0.113.7, 10.0.0.1", "198.51.100.9:1")
	f.Add("", "sid", "key", "/", "Bearer", "[::1", ",,", "@")
	f.Add("\x00address:0:", "sid=\x00", "key=%00", "/%00", bearer(`{"sub":"\u0000"}`), ":", "[,]", "[")
	f.Add(" a:1:b ", "sid=a; sid=a", "key=a;key=b", "//x/../a%2Fb", bearer(`{"sub":1e9}`), "A.", "10.0.0.2", "10.0.0.1:1")
	f.Add("\xff", `sid="`, "%6bey=%zz", "*", "bearer a.e30=.c", "[::1]:1", `"[2001:db8::1]:1"`, "[fe80::1%eth0]:1")
	networks := prefixes(f, "10.0.0.0/8")
	f.Fuzz(func(t *testing.T, key, cookies, query, path, token, host, list, remote string) {
		req := request(remote, http.Header{
			"X-Api-Key": {key}, "Cookie": {cookies}, "Authorization": {token}, "X-Forwarded-For": {list},
		})
		req.Host = host
		req.URL = &url.URL{Path: path, RawQuery: query}
		lone := Criterion{Header: "X-Api-Key", IPv6Subnet: 64}
		own := Identify(&Criterion{IPv6Subnet: 64}, req)
		if HeaderValue(req, "X-Api-Key") == "" {
			if got := Identify(&lone, req); got != own {
				t.Errorf("without the header the identity is %q, want %q", got, own)
			}
		} else if digest := identified(&lone, req); digest != hashed(HeaderValue(req, "X-Api-Key")) {
			t.Errorf("the header has the digest %x", digest)
		}
		for _, onMissing := range []string{"", MissingAddress, MissingSkip, MissingShared, MissingRefuse} {
			for _, c := range []Criterion{
				lone, {Headers: []string{"X-Api-Key", "X-Other"}}, {Headers: []string{"X-Api-Key"}, Address: true}, {Host: true},
				{Cookie: "sid"}, {Query: "key"}, {Segment: 2}, {Claim: "sub"}, {TLSSubject: true}, *everything(onMissing),
				{}, {Depth: 2}, {Excluded: networks}, {Trusted: networks, IPv4Subnet: 24},
			} {
				c.OnMissing = onMissing
				c.IPv6Subnet = 64
				first := Identify(&c, req)
				if first == "" {
					if onMissing != MissingSkip && onMissing != MissingRefuse {
						t.Errorf("%+v: no identity", c)
					}
				} else if len(first) > MaxIdentity || len(Digest(first)) != 32 {
					t.Errorf("%+v: the identity %q has %d bytes", c, first, len(first))
				}
				if Identify(&c, req) != first {
					t.Errorf("%+v: one request has two identities", c)
				}
				if c.Header == "" && first != "" && first[0] != 0 {
					t.Errorf("%+v: the identity %q lies in the name space of headers", c, first)
				}
				if c.Header != "" && first != "" && (first[0] == 0) != (HeaderValue(req, c.Header) == "" || strings.HasPrefix(first, digested)) {
					t.Errorf("%+v: the identity %q lies in the wrong name space", c, first)
				}
				Prepare(&c)
				if got := Identify(&c, req); got != first {
					t.Errorf("%+v: prepared, the identity is %q and not %q", c, got, first)
				}
			}
		}
	})
}
