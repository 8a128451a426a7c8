package rule

import (
	"net/netip"
	"testing"

	"github.com/gatequota/gatequota/source"
)

// exemptOf exempts what is listed.
func exemptOf(t testing.TB, networks, paths, methods []string, preflight bool) *Exempt {
	t.Helper()
	e := &Exempt{Preflight: preflight}
	for _, network := range networks {
		prefix, err := source.ParsePrefix(network)
		if err != nil {
			t.Fatal(err)
		}
		e.Networks = append(e.Networks, prefix)
	}
	for _, path := range paths {
		if err := AddPath(e, path); err != nil {
			t.Fatal(err)
		}
	}
	if err := AddMethods(e, methods); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestExemptPaths(t *testing.T) {
	e := exemptOf(t, nil, []string{"/health", "/assets/*", "/a%2Fb", "/x;y"}, nil, false)
	all := exemptOf(t, nil, []string{"/*"}, nil, false)
	root := exemptOf(t, nil, []string{"/"}, nil, false)
	tests := []struct {
		e      *Exempt
		target string
		want   bool
	}{
		{e, "/health", true},
		{e, "/health?verbose", true},
		{e, "/assets/logo.png", true},
		{e, "/assets/css/a.css", true},
		{e, "/a%2Fb", true},
		{e, "/x;y", true},
		{e, "/", false},
		{e, "*", false},
		{e, "/assets", false},
		{e, "/assetsx/a", false},
		{e, "/healthx", false},
		{e, "/Health", false},
		{e, "/health/x", false},
		{e, "/a/b", false},

		// Whose two forms differ.
		{e, "//health", false},
		{e, "/health/", false},
		{e, "/assets/", false},
		{e, "/%68ealth", false},
		{e, "/./health", false},
		{e, "/x/../health", false},
		{e, "/assets/../health", false},
		{e, "/assets/../login", false},
		{e, "/assets/%2e%2e/login", false},
		{e, "/assets//logo.png", false},
		{e, "/assets/my%20logo.png", false},
		{e, "/a%2fb", false},
		{e, `/assets/..\login`, false},
		{e, "/assets/%5c..%5clogin", false},
		{e, "/assets/a%00", false},

		// What leads elsewhere in some servers, though it is clean.
		{e, "/assets/..%2Flogin", false},
		{e, "/assets/..;/login", false},
		{e, "/assets/..;x=y/login", false},
		{e, "/assets/%252e%252e/login", false},

		{all, "/", true},
		{all, "/x", true},
		{all, "http://example.com", true},
		{all, "//x", false},
		{all, "*", false},
		{root, "/", true},
		{root, "//", false},
		{root, "/x/..", false},
		{root, "/x", false},
	}
	for _, test := range tests {
		req := request(t, "GET", test.target)
		if got := Exempted(test.e, req, pathOf(req), netip.Addr{}); got != test.want {
			t.Errorf("%s is exempt: %t, want %t", test.target, got, test.want)
		}
	}
}

func TestExemptMethods(t *testing.T) {
	e := exemptOf(t, nil, nil, []string{"GET", " head ", "Purge"}, false)
	for method, want := range map[string]bool{
		"GET": true, "HEAD": true, "PURGE": true,
		"get": false, "Head": false, "Purge": false, "POST": false, "OPTIONS": false, "": false, "GETS": false, " GET": false,
	} {
		req := request(t, method, "/", "X-HTTP-Method-Override", "GET", "X-Method-Override", "GET")
		if got := Exempted(e, req, pathOf(req), netip.Addr{}); got != want {
			t.Errorf("%q is exempt: %t, want %t", method, got, want)
		}
	}
}

func TestExemptNetworks(t *testing.T) {
	e := exemptOf(t, []string{"10.0.0.0/8", "203.0.113.7", " 2001:db8::/32"}, nil, nil, false)
	for text, want := range map[string]bool{
		"10.1.2.3": true, "203.0.113.7": true, "2001:db8:1::2": true,
		"11.0.0.1": false, "203.0.113.8": false, "2001:db9::1": false, "::": false, "0.0.0.0": false, "::a01:203": false,
	} {
		req := request(t, "GET", "/", "X-Forwarded-For", "10.1.2.3", "X-Real-Ip", "10.1.2.3")
		if got := Exempted(e, req, pathOf(req), netip.MustParseAddr(text)); got != want {
			t.Errorf("%s is exempt: %t, want %t", text, got, want)
		}
	}
	everybody := exemptOf(t, []string{"0.0.0.0/0", "::/0"}, nil, nil, false)
	req := request(t, "GET", "/", "X-Forwarded-For", "10.1.2.3")
	req.RemoteAddr = "10.1.2.3:4000"
	if Exempted(e, req, pathOf(req), netip.Addr{}) || Exempted(everybody, req, pathOf(req), netip.Addr{}) {
		t.Error("an unknown address is exempt")
	}
}

func TestExemptPreflights(t *testing.T) {
	e := exemptOf(t, nil, nil, nil, true)
	const origin, method = "Origin", "Access-Control-Request-Method"
	tests := []struct {
		name   string
		method string
		header []string
		want   bool
	}{
		{"as browsers send it", "OPTIONS", []string{origin, "https://example.com", method, "PUT"}, true},
		{"names in lower case", "OPTIONS", []string{"origin", "null", "access-control-request-method", "PUT"}, true},
		{"with more fields", "OPTIONS", []string{origin, "https://example.com", method, "PUT", "Access-Control-Request-Headers", "x-key"}, true},
		{"other method", "GET", []string{origin, "https://example.com", method, "PUT"}, false},
		{"lower case", "options", []string{origin, "https://example.com", method, "PUT"}, false},
		{"override", "POST", []string{origin, "https://example.com", method, "PUT", "X-HTTP-Method-Override", "OPTIONS"}, false},
		{"no origin", "OPTIONS", []string{method, "PUT"}, false},
		{"no method", "OPTIONS", []string{origin, "https://example.com"}, false},
		{"nothing", "OPTIONS", nil, false},
		{"empty origin", "OPTIONS", []string{origin, "", method, "PUT"}, false},
		{"blank origin", "OPTIONS", []string{origin, " \t", method, "PUT"}, false},
		{"empty method", "OPTIONS", []string{origin, "https://example.com", method, ""}, false},
		{"blank method", "OPTIONS", []string{origin, "https://example.com", method, " "}, false},
		{"two origins", "OPTIONS", []string{origin, "https://example.com", origin, "https://example.com", method, "PUT"}, false},
		{"two methods", "OPTIONS", []string{origin, "https://example.com", method, "PUT", method, "PUT"}, false},
		{"only the other field", "OPTIONS", []string{origin, "https://example.com", "Access-Control-Request-Headers", "x-key"}, false},
		{"names with underscores", "OPTIONS", []string{origin, "https://example.com", "Access_Control_Request_Method", "PUT"}, false},
	}
	for _, test := range tests {
		req := request(t, test.method, "/", test.header...)
		if got := Exempted(e, req, pathOf(req), netip.Addr{}); got != test.want {
			t.Errorf("%s: exempt: %t, want %t", test.name, got, test.want)
		}
		e.Preflight = false
		if Exempted(e, req, pathOf(req), netip.Addr{}) {
			t.Errorf("%s: exempt though not asked for", test.name)
		}
		e.Preflight = true
	}
}

func TestEachExemptsByItself(t *testing.T) {
	e := exemptOf(t, []string{"10.0.0.0/8"}, []string{"/health", "/assets/*"}, []string{"HEAD"}, true)
	tests := []struct {
		name, method, target, addr string
		header                     []string
		want                       bool
	}{
		{"nothing", "POST", "/login", "203.0.113.1", nil, false},
		{"network", "POST", "/login", "10.0.0.1", nil, true},
		{"path", "POST", "/health", "203.0.113.1", nil, true},
		{"prefix", "POST", "/assets/a", "203.0.113.1", nil, true},
		{"method", "HEAD", "/login", "203.0.113.1", nil, true},
		{"preflight", "OPTIONS", "/login", "203.0.113.1", []string{"Origin", "null", "Access-Control-Request-Method", "POST"}, true},
		{"network, though the path is a trick", "POST", "//login", "10.0.0.1", nil, true},
	}
	for _, test := range tests {
		req := request(t, test.method, test.target, test.header...)
		if got := Exempted(e, req, pathOf(req), netip.MustParseAddr(test.addr)); got != test.want {
			t.Errorf("%s: exempt: %t, want %t", test.name, got, test.want)
		}
	}
}

func TestEmpty(t *testing.T) {
	none := exemptOf(t, nil, nil, nil, false)
	req := request(t, "GET", "/")
	if !Empty(none) || Exempted(none, req, pathOf(req), netip.MustParseAddr("10.0.0.1")) {
		t.Error("an Exempt without conditions exempts")
	}
	for name, e := range map[string]*Exempt{
		"network":   exemptOf(t, []string{"::1"}, nil, nil, false),
		"path":      exemptOf(t, nil, []string{"/a"}, nil, false),
		"prefix":    exemptOf(t, nil, []string{"/a/*"}, nil, false),
		"method":    exemptOf(t, nil, nil, []string{"GET"}, false),
		"preflight": exemptOf(t, nil, nil, nil, true),
	} {
		if Empty(e) {
			t.Errorf("an Exempt with a %s is empty", name)
		}
	}
}

func BenchmarkExempted(b *testing.B) {
	e := exemptOf(b, []string{"10.0.0.0/8"}, []string{"/health", "/assets/*"}, []string{"HEAD"}, true)
	req := request(b, "GET", "/api/v1/users/4711")
	p, addr := pathOf(req), netip.MustParseAddr("203.0.113.1")
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		if Exempted(e, req, p, addr) {
			b.Fatal("exempt")
		}
	}
}
