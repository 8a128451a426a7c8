package source

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
)

// full is a request that has every part.
func full() *http.Request {
	req := withSubject([]*x509.Certificate{{Subject: pkix.Name{CommonName: "alice"}}})
	req.Host = "API.example.com:443"
	req.URL = &url.URL{Path: "/acme/users", RawQuery: "key=q"}
	req.Header = http.Header{
		"X-Api-Key":     {" k "},
		"X-Tenant":      {"t"},
		"Cookie":        {"sid=c"},
		"Authorization": {bearer(`{"sub":"s"}`)},
	}
	return req
}

// everything is a criterion of every part.
func everything(onMissing string) *Criterion {
	return &Criterion{
		Headers: []string{"X-Api-Key", "X-Tenant"}, Host: true, Cookie: "sid", Query: "key", Segment: 1, Claim: "sub",
		TLSSubject: true, Address: true, OnMissing: onMissing, IPv6Subnet: 64,
	}
}

func TestPartsTogether(t *testing.T) {
	all := []string{
		part("header", "X-Api-Key", "k"), part("header", "X-Tenant", "t"), part("host", "", "api.example.com"),
		part("cookie", "sid", "c"), part("query", "key", "q"), part("segment:1", "", "acme"), part("claim", "sub", "s"),
		part("subject", "", "CN=alice"), ownAddress,
	}
	tests := []struct {
		name  string
		c     Criterion
		parts []string
	}{
		{"everything", *everything(""), all},
		{"two headers", Criterion{Headers: []string{"X-Api-Key", "X-Tenant"}}, all[:2]},
		{"header and host", Criterion{Headers: []string{"X-Tenant"}, Host: true}, all[1:3]},
		{"header and address", Criterion{Headers: []string{"X-Api-Key"}, Address: true}, []string{all[0], ownAddress}},
		{"host and address", Criterion{Host: true, Address: true}, []string{all[2], ownAddress}},
		{"host", Criterion{Host: true}, all[2:3]},
		{"cookie and query", Criterion{Cookie: "sid", Query: "key"}, all[3:5]},
		{"segment", Criterion{Segment: 1}, all[5:6]},
		{"segment and claim", Criterion{Segment: 1, Claim: "sub"}, all[5:7]},
		{"subject", Criterion{TLSSubject: true}, all[7:8]},
		{"address", Criterion{Address: true}, all[8:]},
		{"nothing", Criterion{}, all[8:]},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, onMissing := range []string{"", MissingAddress, MissingSkip, MissingShared, MissingRefuse} {
				c := test.c
				c.OnMissing = onMissing
				if got := identified(&c, full()); got != hashed("\x00"+strings.Join(test.parts, "")) {
					t.Errorf("onMissing %q: identity %q, want that of %q", onMissing, Identify(&c, full()), test.parts)
				}
			}
		})
	}
}

func TestOneHeaderInTheListIsThatHeader(t *testing.T) {
	long := strings.Repeat("k", 100)
	for _, value := range []string{"k", " k\t", long, "198.51.100.9"} {
		req := request(peer, http.Header{"X-Api-Key": {value}})
		got := identified(&Criterion{Headers: []string{"X-Api-Key"}, IPv6Subnet: 64}, req)
		if got != hashed(strings.Trim(value, " \t")) {
			t.Errorf("%q has not the identity of its value", value)
		}
	}
}

// Each part in turn is taken from a request that has all of them.
func TestMissingPart(t *testing.T) {
	removals := []struct {
		kind   string // with its name
		remove func(*http.Request)
	}{
		{part("header", "X-Api-Key", ""), func(req *http.Request) { req.Header.Del("X-Api-Key") }},
		{part("header", "X-Api-Key", ""), func(req *http.Request) { req.Header["X-Api-Key"] = []string{"k", "k"} }},
		{part("header", "X-Api-Key", ""), func(req *http.Request) { req.Header["X-Api-Key"] = []string{" \t"} }},
		{part("header", "X-Api-Key", ""), func(req *http.Request) { req.Header["X-Api-Key"] = []string{"\x00k"} }},
		{part("header", "X-Tenant", ""), func(req *http.Request) { req.Header["X-Tenant"] = []string{""} }},
		{part("host", "", ""), func(req *http.Request) { req.Host = ":80" }},
		{part("cookie", "sid", ""), func(req *http.Request) { req.Header.Add("Cookie", "sid=c") }},
		{part("query", "key", ""), func(req *http.Request) { req.URL.RawQuery = "key=q&key=q" }},
		{part("segment:1", "", ""), func(req *http.Request) { req.URL.Path = "/" }},
		{part("claim", "sub", ""), func(req *http.Request) { req.Header.Add("Authorization", bearer(`{"sub":"s"}`)) }},
		{part("subject", "", ""), func(req *http.Request) { req.TLS.VerifiedChains = nil }},
	}
	identity := Identify(everything(""), full())
	for i, removal := range removals {
		req := full()
		removal.remove(req)
		whole := strings.Join([]string{
			part("header", "X-Api-Key", "k"), part("header", "X-Tenant", "t"), part("host", "", "api.example.com"),
			part("cookie", "sid", "c"), part("query", "key", "q"), part("segment:1", "", "acme"), part("claim", "sub", "s"),
			part("subject", "", "CN=alice"), ownAddress,
		}, "")
		kind := strings.TrimSuffix(removal.kind, "0:")
		start := strings.Index(whole, kind)
		rest := whole[start+len(kind):]
		length := 0
		if _, err := fmt.Sscanf(rest, "%d:", &length); err != nil || start < 0 {
			t.Fatalf("%q is no part of %q", kind, whole)
		}
		rest = rest[strings.IndexByte(rest, ':')+1+length:]
		byAddress := hashed("\x00" + whole[:start] + ownAddress + rest)
		for _, onMissing := range []string{"", MissingAddress} {
			if got := identified(everything(onMissing), req); got != byAddress {
				t.Errorf("%d %s, %q: not the address in its place", i, kind, onMissing)
			}
		}
		if got := identified(everything(MissingShared), req); got != hashed("\x00"+whole[:start]+kind+"-:"+rest) {
			t.Errorf("%d %s: not the mark of a missing part in its place", i, kind)
		}
		for _, onMissing := range []string{MissingSkip, MissingRefuse} {
			if got := Identify(everything(onMissing), req); got != "" {
				t.Errorf("%d %s, %s: identity %q, want none", i, kind, onMissing, got)
			}
			if got := Identify(everything(onMissing), full()); got != identity {
				t.Errorf("%s: the whole request has the identity %q", onMissing, got)
			}
		}
	}
}

func TestMissingPartAlone(t *testing.T) {
	tests := []struct {
		c      Criterion
		shared string
	}{
		{Criterion{Header: "X-Api-Key"}, "header:9:X-Api-Key:-:"},
		{Criterion{Headers: []string{"X-Api-Key"}}, "header:9:X-Api-Key:-:"},
		{Criterion{Host: true}, "host:-:"},
		{Criterion{Cookie: "sid"}, "cookie:3:sid:-:"},
		{Criterion{Query: "key"}, "query:3:key:-:"},
		{Criterion{Segment: 2}, "segment:2:-:"},
		{Criterion{Claim: "sub"}, "claim:3:sub:-:"},
		{Criterion{TLSSubject: true}, "subject:-:"},
		{Criterion{}, ownAddress},
		{Criterion{Address: true}, ownAddress},
	}
	for _, test := range tests {
		req := request(peer, nil)
		req.URL = &url.URL{Path: "/"}
		for _, prepared := range []bool{false, true} {
			with := func(onMissing string) *Criterion {
				c := test.c
				c.OnMissing = onMissing
				if prepared {
					Prepare(&c)
				}
				return &c
			}
			for onMissing, want := range map[string]string{
				"": ownAddress, MissingAddress: ownAddress, MissingShared: test.shared,
			} {
				if got := identified(with(onMissing), req); got != hashed("\x00"+want) {
					t.Errorf("%+v, %q: identity %q, want that of %q", test.c, onMissing, Identify(with(onMissing), req), want)
				}
			}
			none := ""
			if test.shared == ownAddress {
				none = Identify(&Criterion{}, req)
			}
			for _, onMissing := range []string{MissingSkip, MissingRefuse} {
				if got := Identify(with(onMissing), req); got != none {
					t.Errorf("%+v, %s: identity %q, want %q", test.c, onMissing, got, none)
				}
			}
		}
	}
}

// A request over a unix socket has no address, and is counted all the same.
func TestNoAddressIsNotMissing(t *testing.T) {
	for _, onMissing := range []string{"", MissingAddress, MissingSkip, MissingShared, MissingRefuse} {
		c := &Criterion{OnMissing: onMissing, IPv6Subnet: 64}
		if got := identified(c, request("@", nil)); got != byAddress("") {
			t.Errorf("%q: identity %q", onMissing, Identify(c, request("@", nil)))
		}
	}
}

// tricks are values that look like parts, like the ends of parts, or like what stands
// for a missing part.
var tricks = []string{
	"", "a", "b", "aa", ":", "1:", ":1", "1:a", "-", "-:", "0:", "1", "12", "a1:b", "a:1:b", "%", "=", "&",
	"header:3:X-A:1:a", "1:aheader:3:X-B:1:b", "aheader:3:X-B:1:b", "header:3:X-B:-:", "cookie:3:sid:1:a",
	"query:3:key:1:a", ownAddress, "\x00" + ownAddress, "1:a" + ownAddress, "12:198.51.100.9", "198.51.100.9",
	"sha256:", "\x00sha256:", "\x00", "a\x00", "a\x00b", "\x01", "\xff", strings.Repeat("a", 64), strings.Repeat("a", 65),
}

// Two requests have one identity only if they have the same in every part, whatever
// stands in it.
func TestNoTwoRequestsCollide(t *testing.T) {
	for _, onMissing := range []string{MissingAddress, MissingShared} {
		c := &Criterion{Headers: []string{"X-A", "X-B"}, Query: "key", OnMissing: onMissing, IPv6Subnet: 64}
		seen := map[string]string{}
		for _, first := range tricks {
			for _, second := range tricks {
				for _, third := range tricks {
					req := request(peer, http.Header{"X-A": {first}, "X-B": {second}})
					req.URL = &url.URL{RawQuery: "key=" + url.QueryEscape(third)}
					said := fmt.Sprintf("%q %q %q", usable(first), usable(second), usable(third))
					identity := Digest(Identify(c, req))
					if other, ok := seen[identity]; ok && other != said {
						t.Fatalf("%s: %s and %s have one identity", onMissing, other, said)
					}
					seen[identity] = said
				}
			}
		}
		values := map[string]bool{}
		for _, trick := range tricks {
			values[usable(trick)] = true
		}
		if want := len(values) * len(values) * len(values); len(seen) != want {
			t.Errorf("%s: %d identities, want %d", onMissing, len(seen), want)
		}
	}
}

// What is one value to one criterion is none of another one's parts.
func TestKindsAndNamesAreToldApart(t *testing.T) {
	criteria := []*Criterion{
		{Header: "X-A"}, {Header: "X-B"}, {Cookie: "sid"}, {Cookie: "key"}, {Query: "key"}, {Query: "sid"}, {Query: "3:key"},
		{Segment: 1}, {Segment: 2}, {Claim: "sub"}, {Claim: "key"}, {Host: true}, {TLSSubject: true}, {},
		{Headers: []string{"X-A"}, Cookie: "sid"}, {Headers: []string{"X-A"}, Query: "sid"}, {Headers: []string{"X-B"}, Cookie: "sid"},
		{Headers: []string{"X-A"}, Host: true}, {Headers: []string{"X-A"}, Address: true},
	}
	req := full()
	req.URL = &url.URL{Path: "/v/v", RawQuery: "key=v&sid=v&3:key=v"}
	req.Host = "v"
	req.Header = http.Header{"X-A": {"v"}, "X-B": {"w"}, "Cookie": {"sid=v; key=v"}, "Authorization": {bearer(`{"sub":"v","key":"v"}`)}}
	seen := map[string]int{}
	for i, c := range criteria {
		c.OnMissing = MissingRefuse
		identity := Identify(c, req)
		if other, ok := seen[identity]; ok || identity == "" {
			t.Errorf("criteria %d and %d have the identity %q", other, i, identity)
		}
		seen[identity] = i
	}
}

func TestPrepare(t *testing.T) {
	networks := prefixes(t, "10.0.0.0/8")
	tests := []struct{ c, want Criterion }{
		{Criterion{}, Criterion{plain: true, direct: true}},
		{Criterion{Header: "X-A"}, Criterion{Header: "X-A", plain: true, direct: true}},
		{Criterion{Headers: []string{"X-A"}}, Criterion{Header: "X-A", plain: true, direct: true}},
		{Criterion{Headers: []string{"X-A", "X-A"}}, Criterion{Header: "X-A", plain: true, direct: true}},
		{Criterion{Header: "X-A", Headers: []string{"X-A"}}, Criterion{Header: "X-A", plain: true, direct: true}},
		{Criterion{Headers: []string{"X-B", "X-A", "X-B"}}, Criterion{Headers: []string{"X-A", "X-B"}, direct: true}},
		{Criterion{Header: "X-B", Headers: []string{"X-A"}}, Criterion{Headers: []string{"X-A", "X-B"}, direct: true}},
		{Criterion{Header: "X-A", Host: true}, Criterion{Headers: []string{"X-A"}, Host: true, direct: true}},
		{Criterion{Header: "X-A", Address: true}, Criterion{Headers: []string{"X-A"}, Address: true, direct: true}},
		{Criterion{Header: "X-A", Claim: "sub"}, Criterion{Headers: []string{"X-A"}, Claim: "sub", direct: true}},
		{Criterion{Host: true}, Criterion{Host: true, plain: true, direct: true}},
		{Criterion{Address: true}, Criterion{Address: true, plain: true, direct: true}},
		{Criterion{Host: true, Address: true}, Criterion{Host: true, Address: true, direct: true}},
		{Criterion{OnMissing: MissingAddress}, Criterion{OnMissing: MissingAddress, plain: true, direct: true}},
		{Criterion{Header: "X-A", OnMissing: MissingSkip}, Criterion{Header: "X-A", OnMissing: MissingSkip, direct: true}},
		{Criterion{Depth: 1}, Criterion{Depth: 1, plain: true}},
		{Criterion{Excluded: networks}, Criterion{Excluded: networks, plain: true}},
		{Criterion{Trusted: networks}, Criterion{Trusted: networks, plain: true}},
		{Criterion{IPv4Subnet: 32}, Criterion{IPv4Subnet: 32, plain: true, direct: true}},
		{Criterion{IPv4Subnet: 24}, Criterion{IPv4Subnet: 24, plain: true}},
	}
	for _, test := range tests {
		c := test.c
		given := append([]string{}, test.c.Headers...)
		for times := 1; times <= 2; times++ {
			Prepare(&c)
			if !reflect.DeepEqual(c, test.want) {
				t.Errorf("%+v, prepared %d times: %+v, want %+v", test.c, times, c, test.want)
			}
		}
		if !reflect.DeepEqual(given, append([]string{}, test.c.Headers...)) {
			t.Errorf("the headers %q of the caller became %q", given, test.c.Headers)
		}
	}
}

func TestKeyedDigest(t *testing.T) {
	long := bounded(strings.Repeat("k", 100))
	for _, identity := range []string{"k", "\x00host:1:a", long} {
		mac := hmac.New(sha256.New, []byte("secret"))
		mac.Write([]byte(Digest(identity)))
		got := KeyedDigest("secret", identity)
		if got != string(mac.Sum(nil)) || len(got) != sha256.Size {
			t.Errorf("%q: %x", identity, got)
		}
		if got == Digest(identity) || got == KeyedDigest("Secret", identity) {
			t.Errorf("%q: the secret makes no difference", identity)
		}
	}
	// As by: printf k | sha256sum | xxd -r -p | openssl dgst -sha256 -hmac secret
	const want = "4777847c2ef95fd56eafa85588a532e45c20164dbdc8014bcc3d08f4001aaaf3"
	if got := fmt.Sprintf("%x", KeyedDigest("secret", "k")); got != want {
		t.Errorf("the keyed digest of k is %s, want %s", got, want)
	}
}
