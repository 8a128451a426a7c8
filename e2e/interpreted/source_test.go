package interpreted

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gatequota/gatequota/source"
	"github.com/traefik/yaegi/interp"
	"github.com/traefik/yaegi/stdlib"
)

// sourceScript offers what is tested of the package to the compiled side, which cannot
// make values of interpreted types.
const sourceScript = `package main

import (
	"net/http"
	"net/netip"

	"github.com/gatequota/gatequota/source"
)

func Criterion(header string, headers []string, host bool, cookie, query string, segment int, claim string,
	subject, address bool, onMissing string, depth int, excluded, trusted []netip.Prefix, ipv4, ipv6 int, prepared bool) *source.Criterion {
	c := &source.Criterion{
		Header: header, Headers: headers, Host: host, Cookie: cookie, Query: query, Segment: segment, Claim: claim,
		TLSSubject: subject, Address: address, OnMissing: onMissing, Depth: depth, Excluded: excluded, Trusted: trusted,
		IPv4Subnet: ipv4, IPv6Subnet: ipv6,
	}
	if prepared {
		source.Prepare(c)
	}
	return c
}

func Identify(c *source.Criterion, req *http.Request) string { return source.Identify(c, req) }

func ClientAddr(c *source.Criterion, req *http.Request) (netip.Addr, bool) { return source.ClientAddr(c, req) }

func ValueIdentity(c *source.Criterion, value string) (string, error) { return source.ValueIdentity(c, value) }
`

// interpretedSource calls the package as Traefik runs it.
type interpretedSource struct {
	criterion, identify, clientAddr, valueIdentity reflect.Value
	claim                                          func(*http.Request, string) string
	digest                                         func(string) string
	keyedDigest                                    func(secret, identity string) string
}

func loadSource(t *testing.T) *interpretedSource {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join(root, "source"))
	if err != nil {
		t.Fatal(err)
	}
	goPath := t.TempDir()
	link := filepath.Join(goPath, "src", "github.com", "gatequota", "gatequota", "source")
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	i := interp.New(interp.Options{GoPath: goPath, Env: os.Environ()})
	if err := i.Use(stdlib.Symbols); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Eval(sourceScript); err != nil {
		t.Fatal(err)
	}
	symbol := func(name string) reflect.Value {
		t.Helper()
		value, err := i.Eval(name)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	return &interpretedSource{
		criterion:     symbol("main.Criterion"),
		identify:      symbol("main.Identify"),
		clientAddr:    symbol("main.ClientAddr"),
		valueIdentity: symbol("main.ValueIdentity"),
		claim:         symbol("source.Claim").Interface().(func(*http.Request, string) string),
		digest:        symbol("source.Digest").Interface().(func(string) string),
		keyedDigest:   symbol("source.KeyedDigest").Interface().(func(string, string) string),
	}
}

// call calls a function of the interpreter, whose own values pass as they are.
func call(f reflect.Value, args ...any) []reflect.Value {
	values := make([]reflect.Value, 0, len(args))
	for _, arg := range args {
		value, ok := arg.(reflect.Value)
		if !ok {
			value = reflect.ValueOf(arg)
		}
		values = append(values, value)
	}
	return f.Call(values)
}

// copyOf is the criterion c in the interpreter.
func (s *interpretedSource) copyOf(c source.Criterion, prepared bool) reflect.Value {
	return call(s.criterion, c.Header, c.Headers, c.Host, c.Cookie, c.Query, c.Segment, c.Claim, c.TLSSubject, c.Address,
		c.OnMissing, c.Depth, c.Excluded, c.Trusted, c.IPv4Subnet, c.IPv6Subnet, prepared)[0]
}

func sourceCriteria() []source.Criterion {
	networks := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ffff::/48")}
	return []source.Criterion{
		{}, {Address: true}, {Header: "X-A"}, {Headers: []string{"X-A"}}, {Headers: []string{"X-B", "X-A"}},
		{Headers: []string{"X-A"}, Address: true}, {Host: true}, {Host: true, Address: true}, {Cookie: "sid"}, {Query: "key"},
		{Segment: 1}, {Segment: 2}, {Claim: "sub"}, {TLSSubject: true},
		{
			Headers: []string{"X-A", "X-B"}, Host: true, Cookie: "sid", Query: "key", Segment: 1, Claim: "sub", TLSSubject: true,
			Address: true,
		},
		{Depth: 1}, {Depth: 3}, {Excluded: networks}, {Trusted: networks}, {IPv4Subnet: 24}, {IPv4Subnet: 24, Trusted: networks},
		{IPv4Subnet: 32, Depth: 1},
	}
}

func sourceRequests() []*http.Request {
	var requests []*http.Request
	for _, token := range []string{
		`{"sub":"alice"}`, `{"sub":42}`, `{"sub":"\u0000"}`, `{"sub":"\ud800"}`, `{"sub":["alice"]}`, `{"sub":1e3}`, `null`, `[`, ``,
	} {
		requests = append(requests, &http.Request{Header: http.Header{
			"Authorization": {"bearer e30." + base64.URLEncoding.EncodeToString([]byte(token)) + ".s"},
		}})
	}
	for _, header := range []http.Header{
		{}, {"X-A": {"a"}}, {"X-A": {" a "}, "X-B": {"b"}}, {"X-A": {"a", "a"}, "X-B": {"b"}}, {"X-A": {"\x00address:0:"}}, {"X-A": {""}},
		{"X-A": {strings.Repeat("a", 100)}, "X-B": {"1:a\xff"}}, {"Cookie": {"a=b; sid=c", "d=e"}}, {"Cookie": {"sid=c; sid=d"}},
		{"Cookie": {`sid="c d"`}}, {"Cookie": {strings.Repeat("a=b;", 300) + "sid=c"}},
		{"Authorization": {"Bearer"}}, {"Authorization": {"Basic YTpi"}}, {"Authorization": {"Bearer a.b.c", "Bearer a.b.c"}},
		{"X-Forwarded-For": {"203.0.113.7"}}, {"X-Forwarded-For": {"192.0.2.1, 203.0.113.7:80", "", " 10.0.0.2,"}},
		{"X-Forwarded-For": {"10.0.0.3, 10.0.0.2"}}, {"X-Forwarded-For": {"unknown, 10.0.0.2"}}, {"X-Forwarded-For": {" , ,"}},
		{"X-Forwarded-For": {`"[2001:db8::1%eth0]:443", 2001:db8:ffff::1, ::ffff:10.0.0.1`}},
		{"X-Forwarded-For": {"203.0.113.7" + strings.Repeat(",10.0.0.1", 64)}},
	} {
		requests = append(requests, &http.Request{Header: header})
	}
	for _, target := range []string{
		"/acme/users?key=q", "//a%2Fb/%63?key=%00", "/?key=1&key=2", "/a/?key=1;b=2", "/%00/%20?%6bey=+q", "/x/../y?key=%zz",
	} {
		parsed, err := url.ParseRequestURI(target)
		if err != nil {
			panic(err)
		}
		requests = append(requests, &http.Request{URL: parsed, Header: http.Header{}})
	}
	for _, host := range []string{"API.example.com.:80", "[2001:DB8::1]:80", "[::", ":80", "."} {
		requests = append(requests, &http.Request{Host: host, Header: http.Header{}})
	}
	subject := pkix.Name{CommonName: "alice", Organization: []string{"Acme, Inc."}}
	requests = append(requests, &http.Request{Header: http.Header{}, TLS: &tls.ConnectionState{
		VerifiedChains: [][]*x509.Certificate{{{Subject: subject}}},
	}}, &http.Request{Header: http.Header{}, TLS: &tls.ConnectionState{
		PeerCertificates: []*x509.Certificate{{Subject: subject}},
	}})
	for _, peer := range []string{
		"[2001:db8::1]:1", "[fe80::1%eth0]:1", "[::ffff:203.0.113.7]:1", "2001:db8::1", "@", "203.0.113.256:1", "203.0.113.7:1",
	} {
		requests = append(requests, &http.Request{RemoteAddr: peer, Header: http.Header{"X-Forwarded-For": {"203.0.113.9"}}})
	}
	for _, req := range requests {
		if req.URL == nil {
			req.URL = &url.URL{Path: "/"}
		}
		if req.RemoteAddr == "" {
			req.RemoteAddr = "10.0.0.1:40000"
		}
	}
	return requests
}

// The tables of the package's own tests say what is right; this one says that the
// interpreter finds the same.
func TestSource(t *testing.T) {
	s := loadSource(t)
	missing := []string{"", source.MissingAddress, source.MissingSkip, source.MissingShared, source.MissingRefuse}
	requests := sourceRequests()
	identities := map[string]bool{}
	for _, c := range sourceCriteria() {
		c.IPv6Subnet = 64
		for _, onMissing := range missing {
			c.OnMissing = onMissing
			for _, prepared := range []bool{false, true} {
				compiled := c
				if prepared {
					source.Prepare(&compiled)
				}
				interpreted := s.copyOf(c, prepared)
				for i, req := range requests {
					want := source.Identify(&compiled, req)
					if got := call(s.identify, interpreted, req)[0].String(); got != want {
						t.Errorf("%+v, request %d: identity %q, compiled %q", compiled, i, got, want)
					}
					identities[want] = true
					wantAddr, wantCertain := source.ClientAddr(&compiled, req)
					results := call(s.clientAddr, interpreted, req)
					if results[0].Interface() != any(wantAddr) || results[1].Bool() != wantCertain {
						t.Errorf("%+v, request %d: address %v, %v; compiled %v, %v", compiled, i, results[0], results[1], wantAddr, wantCertain)
					}
				}
				for _, value := range []string{"a", " a ", "", "203.0.113.7", "[2001:db8::1]:80", "A.example.", "a/b", "\x00", strings.Repeat("a", 100)} {
					want, wantErr := source.ValueIdentity(&compiled, value)
					results := call(s.valueIdentity, interpreted, value)
					if got := results[0].String(); got != want || fmt.Sprint(results[1].Interface()) != fmt.Sprint(wantErr) {
						t.Errorf("%+v, value %q: %q, %v; compiled %q, %v", compiled, value, got, results[1], want, wantErr)
					}
				}
			}
		}
	}
	for identity := range identities {
		if got, want := s.digest(identity), source.Digest(identity); got != want {
			t.Errorf("%q: digest %x, compiled %x", identity, got, want)
		}
		if got, want := s.keyedDigest("secret", identity), source.KeyedDigest("secret", identity); got != want {
			t.Errorf("%q: keyed digest %x, compiled %x", identity, got, want)
		}
	}
	claims := 0
	for i, req := range requests {
		want := source.Claim(req, "sub")
		if got := s.claim(req, "sub"); got != want {
			t.Errorf("request %d: claim %q, compiled %q", i, got, want)
		}
		if want != "" {
			claims++
		}
	}
	if claims != 2 || len(identities) < 100 || !identities[""] {
		t.Errorf("the requests have %d claims and %d identities, among them none: %t", claims, len(identities), identities[""])
	}
}
