package rule

import (
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/gatequota/gatequota/source"
)

// options are the conditions of a rule as an operator writes them.
type options struct {
	path, prefix, regex, methods, host, header, value string
}

// matchOf is the match that the options say.
func matchOf(t testing.TB, o options) *Match {
	t.Helper()
	m := &Match{}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if o.path != "" {
		check(SetPath(m, o.path))
	}
	if o.prefix != "" {
		check(SetPathPrefix(m, o.prefix))
	}
	if o.regex != "" {
		check(SetPathRegex(m, o.regex))
	}
	if o.methods != "" {
		check(SetMethods(m, strings.Split(o.methods, ",")))
	}
	if o.host != "" {
		check(SetHost(m, o.host))
	}
	if o.header != "" {
		check(SetHeader(m, o.header, o.value))
	}
	return m
}

// matchesOf are the matches of rules, and the top level behind them.
func matchesOf(t testing.TB, rules ...options) []*Match {
	t.Helper()
	var matches []*Match
	for _, rule := range rules {
		matches = append(matches, matchOf(t, rule))
	}
	return append(matches, &Match{})
}

// request is one as the server hands it over, with header names as they come over the
// wire.
func request(t testing.TB, method, target string, header ...string) *http.Request {
	t.Helper()
	u, err := url.ParseRequestURI(target)
	if err != nil {
		t.Fatal(err)
	}
	req := &http.Request{Method: method, URL: u, Host: "example.com", Header: http.Header{}}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		} else {
			req.Header.Add(header[i], header[i+1])
		}
	}
	return req
}

func pathOf(req *http.Request) *Path {
	p := &Path{}
	PathOf(req, p)
	return p
}

// fallsUnder returns the rules of the forms of a path: of the clean one, the raw one, and
// the most lenient one.
func fallsUnder(matches []*Match, req *http.Request) [3]int {
	p := pathOf(req)
	lenient := p.Clean
	if forms := Forms(p); forms[len(forms)-1] != p.Raw {
		lenient = forms[len(forms)-1]
	}
	return [3]int{Find(matches, req, p.Clean), Find(matches, req, p.Raw), Find(matches, req, lenient)}
}

// holds says whether a single condition holds for a request by any form of its path.
func holds(t testing.TB, o options, req *http.Request) bool {
	t.Helper()
	rules := fallsUnder(matchesOf(t, o), req)
	return rules[0] == 0 || rules[1] == 0 || rules[2] == 0
}

func TestFormsOfAPath(t *testing.T) {
	tests := []struct {
		url  url.URL
		want []string // the clean form, the raw one if it differs, and the lenient ones
	}{
		{url.URL{Path: "/a/b"}, []string{"/a/b"}},
		{url.URL{Path: "//a/./b/"}, []string{"/a/b", "//a/./b/"}},
		{url.URL{Path: "/a/b", RawPath: "/a%2fb"}, []string{"/a%2Fb", "/a%2fb", "/a/b"}},
		{url.URL{Path: "/a/../b", RawPath: "/a/..%2fb"}, []string{"/a/..%2Fb", "/a/..%2fb", "/b"}},
		{url.URL{Path: "/a b%41"}, []string{"/a b%2541", "/a%20b%2541"}},
		{url.URL{Path: `/a\..\b`}, []string{`/a\..\b`, "/a%5C..%5Cb", "/b"}},
		{url.URL{Path: "/a;x=1/b;y/"}, []string{"/a;x=1/b;y", "/a;x=1/b;y/", "/a/b"}},
		{url.URL{Path: "/a/..;/b"}, []string{"/a/..;/b", "/b"}},
		{url.URL{Path: "/a;x"}, []string{"/a;x", "/a"}},
		{url.URL{Path: "/a;x", RawPath: "/a%3bx"}, []string{"/a;x", "/a%3bx", "/a"}},
		{url.URL{Path: "/x/y/..;/a", RawPath: "/x%2fy/..;/a"}, []string{"/x%2Fy/..;/a", "/x%2fy/..;/a", "/x/y/..;/a", "/a", "/x/a"}},
		{url.URL{Path: "/a", RawPath: "/not/a"}, []string{"/a"}},
		{url.URL{Path: ""}, []string{"/"}},
		{url.URL{Path: "*"}, []string{"*"}},
		{url.URL{Path: "a//b"}, []string{"/a/b", "a//b"}},
	}
	for _, test := range tests {
		u := test.url
		if got := Forms(pathOf(&http.Request{URL: &u})); !reflect.DeepEqual(got, test.want) {
			t.Errorf("the forms of %q (%q) are %q, want %q", u.Path, u.RawPath, got, test.want)
		}
	}
}

func TestPaths(t *testing.T) {
	tests := []struct {
		rule    options
		match   []string
		nomatch []string
	}{
		{options{path: "/login"},
			[]string{"/login", "/login?next=/", "/login/", "//login", "/./login", "/x/../login", "/%6cogin", "/%2e%2e/login", "http://example.com/login",
				"/login%2F", "/%2Flogin", "/login;x", "/;x/login", "/login%3bx", "/login%5C", `/x\..\login`, "/x%2f..%2Flogin", "/x/..;/login", "/x;/..;/login;"},
			[]string{"/", "/logins", "/login/x", "/x/login", "/Login", "/login%2Fx", "/login;x/y", "/%256cogin", "/login%252F", "/login%253b", "/login%00"}},
		{options{path: "/"},
			[]string{"/", "//", "/.", "/..", "/?a=b", "http://example.com", "/x/..", "/%2F", "/%2e%2e%2f", "/;x", "/x/..;/"},
			[]string{"/x", "*", "/%252F"}},
		{options{path: "/login/"}, []string{"/login/", "/login", "//login"}, []string{"/login/x", "/"}},
		{options{path: "/a/../%6cogin//"}, []string{"/login", "/a/../login", "/a/../%6cogin//"}, []string{"/a", "/a/login"}},
		{options{path: "/käse"}, []string{"/k%C3%A4se", "/k%c3%a4se", "/käse"}, []string{"/kase", "/k%E4se"}},
		{options{path: "/k%c3%a4se"}, []string{"/k%C3%A4se", "/käse"}, nil},
		{options{path: "/a b"}, []string{"/a%20b"}, []string{"/a+b"}},
		{options{path: "/a%3Fb"}, []string{"/a%3fb"}, []string{"/a?b", "/a"}},
		{options{path: "/100%25"}, []string{"/100%25"}, []string{"/100"}},

		{options{prefix: "/api"},
			[]string{"/api", "/api/", "/api/x", "/api//x/y", "//api/x", "/%61pi/x", "/api?x", "/x/../api/y", "/api/%2e", "/api/../x", "/api%2Fx", `/api\x`, "/api;x/y", "/x/..%2fapi/y"},
			[]string{"/", "/apix", "/apix/y", "/ap", "/API/x", "/x/api", "/api%2F../x", "/api;/../x", "/api%252Fx", "*"}},
		{options{prefix: "/api/"}, []string{"/api", "/api/", "/api/x"}, []string{"/apix"}},
		{options{prefix: "//api//v1/"}, []string{"/api/v1", "/api/v1/x", "//api//v1/x"}, []string{"/api", "/api/v11"}},
		{options{prefix: "/a b"}, []string{"/a%20b/c"}, []string{"/a/b"}},
		{options{prefix: "/"}, []string{"/", "/x", "//", "/%2F", "*", "http://example.com"}, nil},

		{options{regex: `^/users/[0-9]+$`}, []string{"/users/42", "/users/42/", "/users/%34%32", "//users/42", "/users%2F42", "/users/42;x"}, []string{"/users/x", "/users/42/x", "/users/"}},
		{options{regex: `\.php$`}, []string{"/a/b.php", "/b.php?x"}, []string{"/b.php5"}},
		{options{regex: `/a b$`}, []string{"/a%20b"}, nil},
		{options{prefix: "/api", regex: "export"}, []string{"/api/export", "/api/exports/1"}, []string{"/api", "/export"}},
	}
	for _, test := range tests {
		for _, target := range test.match {
			if !holds(t, test.rule, request(t, "GET", target)) {
				t.Errorf("%+v does not match %s", test.rule, target)
			}
		}
		for _, target := range test.nomatch {
			if holds(t, test.rule, request(t, "GET", target)) {
				t.Errorf("%+v matches %s", test.rule, target)
			}
		}
	}
}

func TestOtherConditions(t *testing.T) {
	tests := []struct {
		name   string
		rule   options
		method string
		header []string
		want   bool
	}{
		{"no condition", options{}, "GET", nil, true},
		{"method", options{methods: "POST"}, "POST", nil, true},
		{"other method", options{methods: "POST"}, "GET", nil, false},
		{"one of several methods", options{methods: "POST, put"}, "PUT", nil, true},
		{"method in lower case", options{methods: "POST"}, "post", nil, true},
		{"method in mixed case", options{methods: "post"}, "PoSt", nil, true},
		{"method that begins so", options{methods: "POST"}, "POSTS", nil, false},
		{"made-up method", options{methods: "PURGE"}, "PURGE", nil, true},
		{"method by override", options{methods: "POST"}, "GET", []string{"X-HTTP-Method-Override", "POST"}, false},

		{"host", options{host: "example.com"}, "GET", nil, true},
		{"host in other case", options{host: "EXAMPLE.com"}, "GET", []string{"Host", "Example.COM"}, true},
		{"host with port", options{host: "example.com"}, "GET", []string{"Host", "example.com:8443"}, true},
		{"host with dot", options{host: "example.com."}, "GET", []string{"Host", "example.com.:80"}, true},
		{"other host", options{host: "example.com"}, "GET", []string{"Host", "example.com.evil.org"}, false},
		{"host below", options{host: "example.com"}, "GET", []string{"Host", "api.example.com"}, false},
		{"no host", options{host: "example.com"}, "GET", []string{"Host", ""}, false},
		{"host by header", options{host: "example.com"}, "GET", []string{"Host", "other.org", "X-Forwarded-Host", "example.com"}, false},
		{"address", options{host: "[2001:db8:0::1]"}, "GET", []string{"Host", "[2001:DB8::1]:80"}, true},

		{"header", options{header: "x-tier", value: "gold"}, "GET", []string{"X-Tier", "gold"}, true},
		{"header in other case", options{header: "X-TIER", value: "gold"}, "GET", []string{"x-tieR", "gold"}, true},
		{"header with blanks", options{header: "X-Tier", value: " gold "}, "GET", []string{"X-Tier", "\tgold "}, true},
		{"value in other case", options{header: "X-Tier", value: "gold"}, "GET", []string{"X-Tier", "Gold"}, false},
		{"other value", options{header: "X-Tier", value: "gold"}, "GET", []string{"X-Tier", "golden"}, false},
		{"list of values", options{header: "X-Tier", value: "gold"}, "GET", []string{"X-Tier", "gold, gold"}, false},
		{"several lines", options{header: "X-Tier", value: "gold"}, "GET", []string{"X-Tier", "gold", "X-Tier", "gold"}, false},
		{"no header", options{header: "X-Tier", value: "gold"}, "GET", nil, false},
		{"name with underscore", options{header: "X-Tier", value: "gold"}, "GET", []string{"X_Tier", "gold"}, false},
		{"any value", options{header: "X-Tier"}, "GET", []string{"X-Tier", "0"}, true},
		{"any value, none there", options{header: "X-Tier"}, "GET", nil, false},
		{"any value, empty", options{header: "X-Tier"}, "GET", []string{"X-Tier", ""}, false},
		{"any value, blank", options{header: "X-Tier"}, "GET", []string{"X-Tier", " \t"}, false},
		{"any value, several lines", options{header: "X-Tier"}, "GET", []string{"X-Tier", "a", "X-Tier", "b"}, false},

		{"all hold", options{prefix: "/a", methods: "GET", host: "example.com", header: "X-Tier", value: "gold", regex: "b$"},
			"GET", []string{"X-Tier", "gold"}, true},
		{"all but the path", options{path: "/a", methods: "GET", host: "example.com", header: "X-Tier", value: "gold", regex: "b$"},
			"GET", []string{"X-Tier", "gold"}, false},
		{"all but the method", options{prefix: "/a", methods: "PUT", host: "example.com", header: "X-Tier", value: "gold", regex: "b$"},
			"GET", []string{"X-Tier", "gold"}, false},
		{"all but the host", options{prefix: "/a", methods: "GET", host: "example.org", header: "X-Tier", value: "gold", regex: "b$"},
			"GET", []string{"X-Tier", "gold"}, false},
		{"all but the header", options{prefix: "/a", methods: "GET", host: "example.com", header: "X-Tier", value: "gold", regex: "b$"},
			"GET", nil, false},
		{"all but the expression", options{prefix: "/a", methods: "GET", host: "example.com", header: "X-Tier", value: "gold", regex: "a$"},
			"GET", []string{"X-Tier", "gold"}, false},
	}
	for _, test := range tests {
		if got := holds(t, test.rule, request(t, test.method, "/a/b", test.header...)); got != test.want {
			t.Errorf("%s: matches: %t, want %t", test.name, got, test.want)
		}
	}
}

func TestFirstMatchWins(t *testing.T) {
	matches := matchesOf(t,
		options{path: "/login", methods: "POST"},
		options{prefix: "/api", header: "X-Tier", value: "gold"},
		options{prefix: "/api/export"},
		options{prefix: "/api"},
		options{path: "/api/never"},
		options{host: "static.example.com"},
	)
	tests := []struct {
		method, target string
		header         []string
		want           int
	}{
		{"POST", "/login", nil, 0},
		{"GET", "/login", nil, 6},
		{"GET", "/api/export", []string{"X-Tier", "gold"}, 1},
		{"GET", "/api/export/all", nil, 2},
		{"GET", "/api/users", nil, 3},
		{"GET", "/api/never", nil, 3},
		{"GET", "/img", []string{"Host", "static.example.com"}, 5},
		{"GET", "/img", nil, 6},
		{"OPTIONS", "*", nil, 6},
	}
	for _, test := range tests {
		req := request(t, test.method, test.target, test.header...)
		if got := Find(matches, req, pathOf(req).Clean); got != test.want {
			t.Errorf("%s %s %v falls under rule %d, want %d", test.method, test.target, test.header, got, test.want)
		}
	}
}

func TestFindWithoutRules(t *testing.T) {
	for _, target := range []string{"/", "//x/../%41"} {
		req := request(t, "GET", target)
		if got := Find(nil, req, pathOf(req).Clean); got != -1 {
			t.Errorf("%s: rule %d of none", target, got)
		}
		if got := Find([]*Match{{}}, req, pathOf(req).Clean); got != 0 {
			t.Errorf("%s: rule %d, want the top level", target, got)
		}
	}
}

// Whatever a server makes of a path, the request falls under the rule of that.
func TestFormsFallUnderTheirRules(t *testing.T) {
	matches := matchesOf(t,
		options{path: "/login"},
		options{prefix: "/docs"},
		options{path: "/feed/"},
		options{prefix: "/my files"},
		options{regex: "^/assets/"},
	)
	const login, docs, feed, files, assets, top = 0, 1, 2, 3, 4, 5
	tests := []struct {
		target              string
		clean, raw, lenient int
	}{
		{"/login", login, login, login},
		{"/login/", login, top, login},
		{"//login", login, top, login},
		{"/%6cogin", login, top, login},
		{"/docs/../login", login, docs, login},
		{"/docs/%2e%2e/login", login, docs, login},
		{"/assets/..//login/.", login, assets, login},
		{"/login;x", top, top, login},
		{"/login%3Bx", top, top, login},
		{"/login%2f", top, top, login},
		{"/login%5c", top, top, login},
		{"/%2Flogin", top, top, login},
		{"/x/..%2flogin", top, top, login},
		{"/x/..%5clogin", top, top, login},
		{`/x/..\login`, top, top, login},
		{"/x/..;/login", top, top, login},
		{"/x/..;a=b/login;c", top, top, login},
		{"/docs/..%2flogin", docs, docs, login},
		{`/docs/..\login`, docs, docs, login},
		{"/docs/..;/login", docs, docs, login},
		{"/docs/%2e%2e%5c/login", docs, docs, login},
		{"/assets/..%2Flogin", assets, assets, login},
		{"/assets/x/..;/..;/login", assets, assets, login},
		{"/docs/../assets/..%2flogin", assets, docs, login},
		{"/docs/../assets%2f..;/login", top, docs, login},
		{"/login%252f", top, top, top},
		{"/login;/x", top, top, top},

		{"/docs", docs, docs, docs},
		{"/docs/a%20b", docs, docs, docs},
		{"//docs", docs, top, docs},
		{"/docs/../x", top, docs, top},
		{"/docs;x/y", top, top, docs},
		{"/docs%2fy", top, top, docs},
		{"/assets/../docs/x", docs, assets, docs},
		{"/./assets/x", assets, top, assets},

		{"/feed/", feed, feed, feed}, // as the rule is written
		{"/feed", feed, feed, feed},  // as it is meant
		{"//feed/", feed, top, feed},
		{"/my%20files/a", files, files, files}, // as a browser sends what the rule says
		{"/%6dy%20files/a", files, top, files},

		{"/", top, top, top},
		{"*", top, top, top},
	}
	for _, test := range tests {
		want := [3]int{test.clean, test.raw, test.lenient}
		if got := fallsUnder(matches, request(t, "GET", test.target)); got != want {
			t.Errorf("%s falls under the rules %d by its forms, want %d", test.target, got, want)
		}
	}
}

func TestUsesRegex(t *testing.T) {
	if UsesRegex(nil) || UsesRegex(matchesOf(t, options{path: "/a", methods: "GET"}, options{host: "a", header: "B"})) {
		t.Error("an expression is found where none is")
	}
	if !UsesRegex(matchesOf(t, options{path: "/a"}, options{regex: "a"})) {
		t.Error("an expression is overlooked")
	}
}

func TestRefusals(t *testing.T) {
	path := func(s string) error { return SetPath(&Match{}, s) }
	prefix := func(s string) error { return SetPathPrefix(&Match{}, s) }
	regex := func(s string) error { return SetPathRegex(&Match{}, s) }
	method := func(s string) error { return SetMethods(&Match{}, []string{"GET", s}) }
	host := func(s string) error { return SetHost(&Match{}, s) }
	header := func(s string) error { return SetHeader(&Match{}, s, "") }
	value := func(s string) error { return SetHeader(&Match{}, "X-Tier", s) }
	exempt := func(s string) error { return AddPath(&Exempt{}, s) }
	exemptMethod := func(s string) error { return AddMethods(&Exempt{}, []string{s}) }
	tests := []struct {
		name  string
		set   func(string) error
		value string
		want  string
	}{
		{"path", path, "", "begins with a slash"},
		{"path", path, "login", "begins with a slash"},
		{"path", path, " /login", "begins with a slash"},
		{"path", path, "*", "begins with a slash"},
		{"path", path, "https://example.com/", "begins with a slash"},
		{"path", path, "/login?a=b", "write %3F"},
		{"path", path, "/login#top", "write %3F"},
		{"path", path, "/100%", "write %25"},
		{"path", path, "/%4", "write %25"},
		{"path", path, "/%zz", "write %25"},
		{"path", path, "/%4\u00e4", "write %25"},
		{"path", path, "/a\nb", "control"},
		{"path", path, "/a\tb", "control"},
		{"path", path, "/users/*", "no wildcards"},
		{"path", path, "/users/{id}", "no wildcards"},
		{"path", path, "/users/:id", "no wildcards"},
		{"path", path, "/users/:id/x", "no wildcards"},
		{"path", path, "/login,/register", "is one path"},
		{"prefix", prefix, "/api/*", "pathPrefix is for all paths below"},
		{"prefix", prefix, "/api/**", "no wildcards"},
		{"prefix", prefix, "/:tenant", "pathRegex for patterns"},
		{"prefix", prefix, "/api,/v2", "is one path"},
		{"prefix", prefix, "api", "begins with a slash"},
		{"prefix", prefix, "/api?", "write %3F"},
		{"regex", regex, "", "matches everything"},
		{"regex", regex, "^/(a", "missing closing )"},
		{"regex", regex, "a{2,1}", "invalid repeat count"},
		{"regex", regex, "(?<!a)b", "Go's syntax"},
		{"method", method, "", "such as POST"},
		{"method", method, "GET POST", "such as POST"},
		{"method", method, "GET/1", "such as POST"},
		{"method", method, "*", "such as POST"},
		{"method", method, "ANY", "without any the rule is for all"},
		{"method", method, "all", "without any the rule is for all"},
		{"method", method, "P0ST", "such as POST"},
		{"method", method, "-", "such as POST"},
		{"host", host, "", "such as api.example.com"},
		{"host", host, ".", "such as api.example.com"},
		{"host", host, "*.example.com", "such as api.example.com"},
		{"host", host, "example.com/x", "such as api.example.com"},
		{"host", host, "müller.example", "xn--"},
		{"host", host, "example.com:443", "without a port"},
		{"host", host, "https://example.com", "without a port"},
		{"host", host, "[2001:db8::1]:443", "without a port"},
		{"host", host, "a:b:c", "without a port"},
		{"header", header, "", "the name of a header"},
		{"header", header, "X Tier", "the name of a header"},
		{"header", header, "X-Tier:", "the name of a header"},
		{"header", header, "host", "match the host"},
		{"header", header, "content-length", "about the connection"},
		{"value", value, "a\r\nb", "control"},
		{"exempt", exempt, "", "begins with a slash"},
		{"exempt", exempt, "assets/*", "begins with a slash"},
		{"exempt", exempt, "/a*", "stands only at the end"},
		{"exempt", exempt, "/*/b", "stands only at the end"},
		{"exempt", exempt, "/a/*/*", "stands only at the end"},
		{"exempt", exempt, "/docs/", "write /docs"},
		{"exempt", exempt, "//*", "write /*"},
		{"exempt", exempt, "/a/../b/*", "write /b/*"},
		{"exempt", exempt, "/%61", "write /a"},
		{"exempt", exempt, "/a%2fb", "write /a%2Fb"},
		{"exempt", exempt, "/a%20b", "never exempt"},
		{"exempt", exempt, "/käse", "never exempt"},
		{"exempt", exempt, "/a;b/*", "never exempt"},
		{"exempt", exempt, "/a?b", "write %3F"},
		{"exempt", exempt, "/users/:id", "no wildcards"},
		{"exempt", exempt, "/{a}", "no wildcards"},
		{"exempt", exempt, "/a,/b", "is one path"},
		{"exempt method", exemptMethod, "any", "such as POST"},
		{"exempt method", exemptMethod, "G(T", "such as POST"},
	}
	for _, test := range tests {
		err := test.set(test.value)
		if err == nil {
			t.Errorf("%s %q is taken", test.name, test.value)
			continue
		}
		text := err.Error()
		quoted := test.value
		if test.name == "exempt" && strings.Contains(test.want, "begins with") {
			quoted = strings.TrimSuffix(quoted, "/*")
		}
		if !strings.HasPrefix(text, strconv.Quote(quoted)) || !strings.Contains(text, test.want) {
			t.Errorf("%s %q: %q does not quote it and say %q", test.name, test.value, text, test.want)
		}
	}
	if err := SetPath(&Match{}, strings.Repeat("x", 1000)); err == nil || len(err.Error()) > 200 {
		t.Errorf("a long value: %v", err)
	}
}

// What is set again holds as it was set last.
func TestPathsAreReplaced(t *testing.T) {
	exact := matchOf(t, options{path: "/a b/"})
	if err := SetPath(exact, "/c"); err != nil {
		t.Fatal(err)
	}
	prefix := matchOf(t, options{prefix: "//a"})
	if err := SetPathPrefix(prefix, "/c"); err != nil {
		t.Fatal(err)
	}
	all := matchOf(t, options{prefix: "//a"})
	if err := SetPathPrefix(all, "/"); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		m      *Match
		target string
		want   int
	}{
		{exact, "/c", 0}, {exact, "/a%20b", 1}, {exact, "/a%20b/", 1},
		{prefix, "/c/d", 0}, {prefix, "//a/d", 1}, {prefix, "/a", 1},
		{all, "/c", 0}, {all, "//a", 0},
	}
	for _, test := range tests {
		req := request(t, "GET", test.target)
		if got := Find([]*Match{test.m, {}}, req, pathOf(req).Raw); got != test.want {
			t.Errorf("%s falls under rule %d, want %d", test.target, got, test.want)
		}
	}
}

func TestPathAndPrefixExcludeEachOther(t *testing.T) {
	if err := SetPathPrefix(matchOf(t, options{path: "/a"}), "/b"); err == nil || !strings.HasPrefix(err.Error(), `"/b": a whole path is set too`) {
		t.Errorf("a prefix besides a path: %v", err)
	}
	if err := SetPath(matchOf(t, options{prefix: "/a"}), "/b"); err == nil || !strings.HasPrefix(err.Error(), `"/b": a prefix of the path is set too`) {
		t.Errorf("a path besides a prefix: %v", err)
	}
}

// firstBy is what Find is held to: the first rule whose path and prefix match one form
// of a path, told segment by segment.
func firstBy(rules []options, form string) int {
	for i, rule := range rules {
		if rule.path != "" && form != rule.path && form != source.CleanPath(rule.path) {
			continue
		}
		under := rule.prefix == ""
		for _, prefix := range []string{rule.prefix, source.CleanPath(rule.prefix)} {
			want := strings.Split(strings.TrimRight(prefix, "/"), "/")
			got := strings.Split(form, "/")
			if prefix == "/" || len(got) >= len(want) && strings.Join(got[:len(want)], "/") == strings.Join(want, "/") {
				under = true
			}
		}
		if under {
			return i
		}
	}
	return len(rules)
}

func FuzzFind(f *testing.F) {
	for _, target := range []string{
		"/", "*", "/login", "//login", "/login/", "/%6cogin", "/docs/../login", "/docs/%2e%2e/login", "/login%2F", "/%252e", `/docs/..\login`,
		"/docs/..;/login", "/login;x", "/docs/..%5clogin", "/x/..%2flogin", "/docs/a%00", "/docs/", "/k%C3%A4se/x", "/a/b/c", "/a//b/", "/api/v1/x/..", "/api%2Fv1",
	} {
		f.Add(target)
	}
	f.Fuzz(func(t *testing.T, target string) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		rules := []options{
			{path: "/login"},
			{path: "/docs/"},
			{prefix: "/docs"},
			{prefix: "/api//v1/"},
			{prefix: "/api"},
			{path: "/a/b"},
			{prefix: "/a"},
		}
		matches := matchesOf(t, rules...)
		req := &http.Request{Method: "GET", URL: u, Header: http.Header{}}
		p := pathOf(req)
		if p.Raw != source.EscapedPath(req) || p.Clean != source.CleanPath(p.Raw) || p.Odd != source.Lenient(p.Raw) {
			t.Errorf("%q has the forms %+v", target, *p)
		}
		for _, form := range append(Forms(p), p.Raw) {
			if got, want := Find(matches, req, form), firstBy(rules, form); got != want {
				t.Errorf("%q falls under rule %d by its form %q, want %d", target, got, form, want)
			}
		}

		e := &Exempt{}
		if AddPath(e, "/docs/*") != nil || AddPath(e, "/login") != nil {
			t.Fatal("refused")
		}
		if Exempted(e, req, p, netip.Addr{}) {
			below := strings.HasPrefix(target, "/docs/") && !strings.ContainsAny(p.Raw, "%;")
			if p.Clean != p.Raw || p.Odd && strings.Contains(p.Raw, ";") && below || p.Raw != "/login" && !below {
				t.Errorf("%q is exempt", target)
			}
		}
	})
}

// benchmarkFind asks for the last of several rules, so that each is looked at.
func benchmarkFind(b *testing.B, rules int, target string) {
	var list []options
	for i := 1; i < rules; i++ {
		list = append(list, options{prefix: "/service" + strconv.Itoa(i)})
	}
	list = append(list, options{path: "/login", methods: "POST"})
	matches := matchesOf(b, list...)
	req := request(b, "POST", target)
	clean := pathOf(req).Clean
	b.ReportAllocs()
	b.ResetTimer()
	found := 0
	for i := 0; i < b.N; i++ {
		found = Find(matches, req, clean)
	}
	if found != rules-1 {
		b.Fatalf("rule %d, want %d", found, rules-1)
	}
}

func BenchmarkFind1(b *testing.B)  { benchmarkFind(b, 1, "/login") }
func BenchmarkFind5(b *testing.B)  { benchmarkFind(b, 5, "/login") }
func BenchmarkFind20(b *testing.B) { benchmarkFind(b, 20, "/login") }

func BenchmarkPathOf(b *testing.B) {
	req := request(b, "GET", "/api/v1/users/4711")
	p := &Path{}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		PathOf(req, p)
	}
}
