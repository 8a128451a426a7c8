package source

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// part is a part of an identity as the documentation of the package writes it. A name
// of "" is none.
func part(kind, name, value string) string {
	if name != "" {
		kind += fmt.Sprintf(":%d:%s", len(name), name)
	}
	return fmt.Sprintf("%s:%d:%s", kind, len(value), value)
}

// ownAddress is the part that stands for what request(peer, …) lacks.
var ownAddress = part("address", "", "198.51.100.9")

// asked is a request for a URL.
func asked(t testing.TB, target string, header http.Header) *http.Request {
	t.Helper()
	req := request(peer, header)
	var err error
	req.URL, err = url.ParseRequestURI(target)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// bearer is a token whose payload is as given.
func bearer(payload string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return "Bearer " + encode([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + encode([]byte(payload)) + "." + encode([]byte("signature"))
}

func withToken(token string) *http.Request {
	return request(peer, http.Header{"Authorization": {token}})
}

func withSubject(chains ...[]*x509.Certificate) *http.Request {
	req := request(peer, nil)
	req.TLS = &tls.ConnectionState{VerifiedChains: chains}
	return req
}

// checkAlone checks the identity of a request by one part alone, which is missing where
// want is "".
func checkAlone(t *testing.T, c *Criterion, req *http.Request, kind, name, want string) {
	t.Helper()
	c.IPv6Subnet = 64
	counted := "\x00" + ownAddress
	if want != "" {
		counted = "\x00" + part(kind, name, want)
	}
	if got := identified(c, req); got != hashed(counted) {
		t.Errorf("identity %q, want that of %.80q", Identify(c, req), counted)
	}
}

func TestHeaderValue(t *testing.T) {
	tests := []struct {
		lines []string
		want  string
	}{
		{[]string{"gold"}, "gold"},
		{[]string{" \tgold "}, "gold"},
		{[]string{"a, b"}, "a, b"},
		{[]string{"\x01"}, "\x01"},
		{nil, ""},
		{[]string{""}, ""},
		{[]string{" \t"}, ""},
		{[]string{"\x00gold"}, ""},
		{[]string{" \x00gold"}, ""},
		{[]string{"gold", "gold"}, ""},
		{[]string{"gold", ""}, ""},
		{[]string{"", "gold"}, ""},
	}
	for _, test := range tests {
		if got := HeaderValue(request(peer, http.Header{"X-Plan": test.lines}), "X-Plan"); got != test.want {
			t.Errorf("%q: %q, want %q", test.lines, got, test.want)
		}
	}
}

func TestCookie(t *testing.T) {
	others := strings.Repeat("other=1; ", maxCookies-1)
	tests := []struct {
		name  string
		lines []string
		want  string
	}{
		{"alone", []string{"sid=abc"}, "abc"},
		{"first", []string{"sid=abc; theme=dark"}, "abc"},
		{"last", []string{"theme=dark; sid=abc"}, "abc"},
		{"without blank", []string{"theme=dark;sid=abc;x=y"}, "abc"},
		{"blanks", []string{" \tsid \t=\t abc \t; x=y"}, "abc"},
		{"quotes", []string{`sid="abc"`}, "abc"},
		{"lone quote", []string{`sid="`}, `"`},
		{"equals sign inside", []string{"sid=a=b=="}, "a=b=="},
		{"separators inside", []string{"sid=a:1:b,c"}, "a:1:b,c"},
		{"what the standard library drops", []string{"sid=a\\b\xff"}, "a\\b\xff"},
		{"on another line", []string{"theme=dark", "sid=abc"}, "abc"},
		{"name at the end of another", []string{"xsid=1; sid=abc"}, "abc"},
		{"name at the beginning of another", []string{"sid=abc; sidx=1"}, "abc"},
		{"name in a value", []string{"x=sid; sid=abc; y=sid=def"}, "abc"},
		{"long", []string{"sid=" + strings.Repeat("k", 8191)}, strings.Repeat("k", 8191)},
		{"as many as are read", []string{others + "sid=abc"}, "abc"},

		{"no header", nil, ""},
		{"absent", []string{"theme=dark"}, ""},
		{"name alone", []string{"sid"}, ""},
		{"empty", []string{"sid="}, ""},
		{"blank", []string{"sid= \t; x=y"}, ""},
		{"empty in quotes", []string{`sid=""`}, ""},
		{"blank in quotes", []string{`sid=" "`}, ""},
		{"other letters", []string{"SID=abc"}, ""},
		{"twice", []string{"sid=abc; sid=def"}, ""},
		{"twice the same", []string{"sid=abc; sid=abc"}, ""},
		{"twice on two lines", []string{"sid=abc", "sid=def"}, ""},
		{"twice, once empty", []string{"sid=abc; sid="}, ""},
		{"twice, first empty", []string{"sid=; sid=abc"}, ""},
		{"twice, once invalid", []string{"sid=abc; sid=\\"}, ""},
		{"zero byte", []string{"sid=\x00abc"}, ""},
		{"more than are read", []string{others + "other=1; sid=abc"}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			header := http.Header{}
			if test.lines != nil {
				header["Cookie"] = test.lines
			}
			checkAlone(t, &Criterion{Cookie: "sid"}, request(peer, header), "cookie", "sid", test.want)
		})
	}
}

func TestQueryParameter(t *testing.T) {
	tests := []struct{ name, target, want string }{
		{"alone", "/?key=abc", "abc"},
		{"among others", "/?a=1&key=abc&b=2", "abc"},
		{"escaped value", "/?key=a%26b%3Bc+d", "a&b;c d"},
		{"escaped name", "/?%6bey=abc", "abc"},
		{"blanks around", "/?key=+abc%09", "abc"},
		{"equals sign inside", "/?key=a=b", "a=b"},
		{"line break is no blank", "/?key=abc%0A", "abc\n"},
		{"invalid UTF-8", "/?key=%ff%fe", "\xff\xfe"},
		{"zero byte inside", "/?key=a%00", "a\x00"},
		{"similar names", "/?xkey=1&key=abc&keyx=2&Key=3&key[]=4", "abc"},

		{"no query", "/", ""},
		{"absent", "/?a=1", ""},
		{"name alone", "/?key", ""},
		{"empty", "/?key=", ""},
		{"blank", "/?key=+%09%20", ""},
		{"twice", "/?key=abc&key=def", ""},
		{"twice the same", "/?key=abc&key=abc", ""},
		{"twice, once empty", "/?key&key=abc", ""},
		{"twice, once escaped", "/?%6Bey=abc&key=def", ""},
		{"zero byte", "/?key=%00abc", ""},
		{"semicolon", "/?key=abc;key=def", ""},
		{"semicolon elsewhere", "/?a=1;key=def&key=abc", ""},
		{"malformed", "/?key=%zz", ""},
		{"malformed elsewhere", "/?key=abc&key=%zz", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			checkAlone(t, &Criterion{Query: "key"}, asked(t, test.target, nil), "query", "key", test.want)
		})
	}
}

func TestPathSegment(t *testing.T) {
	tests := []struct {
		target string
		n      int
		want   string
	}{
		{"/acme/users", 1, "acme"},
		{"/acme/users", 2, "users"},
		{"/acme", 1, "acme"},
		{"/acme/", 1, "acme"},
		{"//acme//users", 1, "acme"},
		{"//acme//users", 2, "users"},
		{"/x/../acme/./users", 2, "users"},
		{"/%61cme", 1, "acme"},
		{"/acme?tenant=other", 1, "acme"},
		{"/a%2Fb/c", 1, "a%2Fb"},
		{"/a%2fb/c", 2, "c"},
		{"/a:1:b", 1, "a:1:b"},

		{"/", 1, ""},
		{"/acme", 2, ""},
		{"/acme/", 2, ""},
		{"/acme/..", 1, ""},
		{"/acme", 1000, ""},
		{"/%20/users", 1, ""},
		{"/%00acme", 1, ""},
		{"*", 1, ""},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.n, " of ", test.target), func(t *testing.T) {
			checkAlone(t, &Criterion{Segment: test.n}, asked(t, test.target, nil), fmt.Sprint("segment:", test.n), "", test.want)
		})
	}
}

func TestClaim(t *testing.T) {
	token := bearer(`{"sub":"alice"}`)
	padded := base64.URLEncoding.EncodeToString([]byte(`{"sub":"alice"} `))
	if !strings.HasSuffix(padded, "=") {
		t.Fatalf("the payload %q is not padded", padded)
	}
	fill := strings.Repeat("s", maxToken)
	header, _, _ := strings.Cut(token, ".")
	tests := []struct {
		name   string
		tokens []string
		want   string
	}{
		{"plain", []string{token}, "alice"},
		{"scheme in small letters", []string{"bearer" + token[6:]}, "alice"},
		{"scheme in capital letters", []string{"BEARER" + token[6:]}, "alice"},
		{"blanks around", []string{" " + token + "\t"}, "alice"},
		{"padded", []string{"Bearer e30." + padded + ".s"}, "alice"},
		{"unsigned", []string{"Bearer e30." + padded + "."}, "alice"},
		{"url-safe alphabet", []string{bearer(`{"sub":"alice","x":"???>>>~~~"}`)}, "alice"},
		{"blanks around the claim", []string{bearer(`{"sub":" \talice "}`)}, "alice"},
		{"escapes", []string{bearer(`{"\u0073ub":"al\u0069ce\n"}`)}, "alice\n"},
		{"separators", []string{bearer(`{"sub":"a:1:b"}`)}, "a:1:b"},
		{"UTF-8", []string{bearer(`{"sub":"schlüssel"}`)}, "schlüssel"},
		{"surrogates", []string{bearer(`{"sub":"\ud83d\ude00"}`)}, "\U0001f600"},
		{"number", []string{bearer(`{"sub":42}`)}, "42"},
		{"large number", []string{bearer(`{"sub":12345678901234567890}`)}, "12345678901234567890"},
		{"negative number", []string{bearer(`{"sub":-1.5}`)}, "-1.5"},
		{"the last of two, as RFC 7519 allows", []string{bearer(`{"sub":"bob","sub":"alice"}`)}, "alice"},
		{"other case is another claim", []string{bearer(`{"Sub":"bob","sub":"alice","SUB":"eve"}`)}, "alice"},
		{"the whole token is not looked at", []string{"Bearer ~~~." + strings.Split(token, ".")[1] + ".~~~"}, "alice"},

		{"no header", nil, ""},
		{"empty", []string{""}, ""},
		{"scheme alone", []string{"Bearer"}, ""},
		{"scheme and blank", []string{"Bearer  "}, ""},
		{"two lines", []string{token, token}, ""},
		{"other scheme", []string{"Basic " + token[7:]}, ""},
		{"longer scheme", []string{"Bearers" + token[6:]}, ""},
		{"no blank", []string{"Bearer:" + token[7:]}, ""},
		{"one part", []string{header}, ""},
		{"two parts", []string{header + ".e30"}, ""},
		{"four parts", []string{token + ".e30"}, ""},
		{"encrypted", []string{token + ".e30.e30"}, ""},
		{"no base64", []string{header + ".{}.s"}, ""},
		{"base64 of the other alphabet", []string{header + ".ey/+.s"}, ""},
		{"no JSON", []string{bearer(`sub`)}, ""},
		{"half JSON", []string{bearer(`{"sub":"alice"`)}, ""},
		{"two objects", []string{bearer(`{"sub":"alice"}{"sub":"bob"}`)}, ""},
		{"list", []string{bearer(`["sub","alice"]`)}, ""},
		{"text", []string{bearer(`"sub"`)}, ""},
		{"null", []string{bearer(`null`)}, ""},
		{"empty payload", []string{bearer(``)}, ""},
		{"deep", []string{bearer(strings.Repeat("[", 10000))}, ""},
		{"claim absent", []string{bearer(`{"aud":"alice"}`)}, ""},
		{"claim in another case", []string{bearer(`{"Sub":"alice"}`)}, ""},
		{"claim deeper", []string{bearer(`{"user":{"sub":"alice"}}`)}, ""},
		{"claim empty", []string{bearer(`{"sub":""}`)}, ""},
		{"claim blank", []string{bearer(`{"sub":" \t"}`)}, ""},
		{"claim null", []string{bearer(`{"sub":null}`)}, ""},
		{"claim true", []string{bearer(`{"sub":true}`)}, ""},
		{"claim list", []string{bearer(`{"sub":["alice"]}`)}, ""},
		{"claim object", []string{bearer(`{"sub":{"id":"alice"}}`)}, ""},
		{"claim with exponent", []string{bearer(`{"sub":1e3}`)}, ""},
		{"claim with zero byte", []string{bearer(`{"sub":"\u0000alice"}`)}, ""},
		{"claim of invalid UTF-8", []string{bearer("{\"sub\":\"\xff\"}")}, ""},
		{"claim of half a surrogate", []string{bearer(`{"sub":"\ud83d"}`)}, ""},
		{"too long", []string{token + fill}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			header := http.Header{}
			if test.tokens != nil {
				header["Authorization"] = test.tokens
			}
			if got := Claim(request(peer, header), "sub"); got != test.want {
				t.Errorf("claim %q, want %q", got, test.want)
			}
			checkAlone(t, &Criterion{Claim: "sub"}, request(peer, header), "claim", "sub", test.want)
		})
	}
}

func TestLongestToken(t *testing.T) {
	token := strings.TrimPrefix(bearer(`{"sub":"alice"}`), "Bearer ")
	longest := token + strings.Repeat("s", maxToken-len(token))
	if got := Claim(withToken("Bearer "+longest), "sub"); got != "alice" {
		t.Errorf("of a token of %d bytes: %q", len(longest), got)
	}
	if got := Claim(withToken("Bearer "+longest+"s"), "sub"); got != "" {
		t.Errorf("of a token of %d bytes: %q", len(longest)+1, got)
	}
}

func TestCertificateSubject(t *testing.T) {
	alice := &x509.Certificate{Subject: pkix.Name{CommonName: "alice", Organization: []string{"Acme, Inc."}}}
	bob := &x509.Certificate{Subject: pkix.Name{CommonName: "bob"}}
	authority := &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}}
	unverified := request(peer, nil)
	unverified.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{alice}}
	tests := []struct {
		name string
		req  *http.Request
		want string
	}{
		{"alice", withSubject([]*x509.Certificate{alice, authority}), `CN=alice,O=Acme\, Inc.`},
		{"bob", withSubject([]*x509.Certificate{bob, authority}), "CN=bob"},
		{"two chains", withSubject([]*x509.Certificate{bob, authority}, []*x509.Certificate{bob}), "CN=bob"},
		{"no TLS", request(peer, nil), ""},
		{"no certificate", withSubject(), ""},
		{"empty chain", withSubject(nil), ""},
		{"no subject", withSubject([]*x509.Certificate{{}}), ""},
		{"not verified", unverified, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			checkAlone(t, &Criterion{TLSSubject: true}, test.req, "subject", "", test.want)
		})
	}
}
