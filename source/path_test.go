package source

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// cleanings are paths and their clean forms.
var cleanings = []struct{ name, escaped, want string }{
	{"root", "/", "/"},
	{"plain", "/login", "/login"},
	{"two segments", "/api/v1", "/api/v1"},
	{"empty", "", "/"},
	{"the server itself", "*", "*"},
	{"not the server itself", "*x", "/*x"},
	{"an asterisk escaped", "%2A", "/*"},
	{"no slash in front", "login", "/login"},

	{"slashes in front", "//login", "/login"},
	{"many slashes", "////a///b//", "/a/b"},
	{"slash behind", "/login/", "/login"},
	{"only slashes", "///", "/"},
	{"dot segment", "/./login", "/login"},
	{"dot segment behind", "/login/.", "/login"},
	{"parent", "/x/../login", "/login"},
	{"parent behind", "/login/x/..", "/login"},
	{"above the root", "/../../login", "/login"},
	{"above the root from below", "/a/../../../login", "/login"},
	{"parent of what slashes divide", "/a//../b", "/b"},
	{"three dots are a name", "/.../login", "/.../login"},
	{"dots in names", "/.well-known/a..b/c.", "/.well-known/a..b/c."},
	{"parent without a slash", "..", "/"},

	{"a letter escaped", "/%6cogin", "/login"},
	{"all letters escaped", "/%6C%6f%67%69%6E", "/login"},
	{"dots escaped", "/%2e%2E/login", "/login"},
	{"parent half escaped", "/x/.%2e/login", "/login"},
	{"dot escaped", "/%2e/login", "/login"},
	{"blank", "/a%20b", "/a b"},
	{"plus is no blank", "/a+b", "/a+b"},
	{"question mark and number sign", "/a%3Fb%23c", "/a?b#c"},

	{"slash escaped behind", "/login%2F", "/login%2F"},
	{"slash escaped, lower case", "/a%2fb", "/a%2Fb"},
	{"slash escaped in front", "%2Flogin", "/%2Flogin"},
	{"parent behind an escaped slash", "/a%2Fx/../b", "/b"},
	{"parent glued to an escaped slash is a name", "/a%2F../b", "/a%2F../b"},
	{"parent and an escaped slash are a name", "/a/..%2Fb", "/a/..%2Fb"},
	{"percent escaped", "/%25", "/%25"},
	{"escaped twice", "/%252e%252e/login", "/%252e%252e/login"},
	{"slash escaped twice", "/a%252Fb%252f", "/a%252Fb%252f"},
	{"letter escaped three times", "/%25256c", "/%25256c"},
	{"percent and letter", "/100%25%41", "/100%25A"},

	{"stray percent", "/100%", "/100%25"},
	{"stray percent and one digit", "/%4", "/%254"},
	{"no digits", "/%zz/%6c", "/%25zz/l"},
	{"escape made of escapes", "/%%34%31", "/%2541"},
	{"only percents", "%%%", "/%25%25%25"},

	{"backslashes", `/a\..\login`, `/a\..\login`},
	{"backslashes escaped", "/a%5C..%5clogin", `/a\..\login`},
	{"parameters", "/login;a=b/c", "/login;a=b/c"},
	{"parameters escaped", "/login%3Ba=b", "/login;a=b"},
	{"parent with parameters is a name", "/a/..;/login", "/a/..;/login"},
	{"NUL", "/login%00", "/login\x00"},
	{"line break", "/a%0D%0Ab", "/a\r\nb"},
	{"UTF-8", "/k%C3%A4se", "/käse"},
	{"UTF-8 as it is", "/käse", "/käse"},
	{"overlong slash is none", "/a%C0%AFb", "/a\xc0\xafb"},
	{"fullwidth slash is none", "/a%EF%BC%8Fb", "/a／b"},
	{"case is kept", "/Login", "/Login"},
}

func TestCleanPath(t *testing.T) {
	for _, test := range cleanings {
		got := CleanPath(test.escaped)
		if got != test.want {
			t.Errorf("%s: %q becomes %q, want %q", test.name, test.escaped, got, test.want)
		}
		if again := CleanPath(got); again != got {
			t.Errorf("%s: cleaned again, %q becomes %q", test.name, got, again)
		}
	}
}

func TestCleanPathOfRequests(t *testing.T) {
	tests := []struct{ target, escaped, clean string }{
		{"/login", "/login", "/login"},
		{"/login?a=/b//", "/login", "/login"},
		{"/a%2Fb%20c/", "/a%2Fb%20c/", "/a%2Fb c"},
		{"//host/login", "//host/login", "/host/login"},
		{"http://example.com", "/", "/"},
		{"http://example.com/x/..", "/x/..", "/"},
		{`/a|b\`, "/a%7Cb%5C", `/a|b\`},
		{"*", "*", "*"},
	}
	for _, test := range tests {
		u, err := url.ParseRequestURI(test.target)
		if err != nil {
			t.Fatal(err)
		}
		escaped := EscapedPath(&http.Request{URL: u})
		if escaped != test.escaped {
			t.Errorf("%q: the escaped path is %q, want %q", test.target, escaped, test.escaped)
		}
		if clean := CleanPath(escaped); clean != test.clean {
			t.Errorf("%q: the clean path is %q, want %q", test.target, clean, test.clean)
		}
	}
}

// The allocations tell that a clean path, as most are, is only looked at, and that a
// long one is not copied once for each of its segments.
func TestCleanPathTakesLittle(t *testing.T) {
	const length = 1 << 20
	for _, test := range []struct {
		name, path string
		most       float64
	}{
		{"clean", "/api/v1/users/4711", 0},
		{"long and clean", "/" + strings.Repeat("a/", length/2) + "a", 0},
		{"slashes", strings.Repeat("/", length), 1},
		{"parents", strings.Repeat("/..", length/3), 1},
		{"down and up", strings.Repeat("/a", length/5) + strings.Repeat("/..", length/5), 1},
		{"escapes", "/" + strings.Repeat("%2e", length/3), 16},
		{"kept escapes", "/" + strings.Repeat("%2f", length/3), 16},
	} {
		if got := testing.AllocsPerRun(2, func() { CleanPath(test.path) }); got > test.most {
			t.Errorf("%s: %v allocations, want at most %v", test.name, got, test.most)
		}
	}
}

var (
	strayPercent = regexp.MustCompile(`%([^2]|2[^5F]|2?$)`)
	openSegment  = regexp.MustCompile(`(?s)//|/\.\.?(/|$)|./$`)
)

func FuzzCleanPath(f *testing.F) {
	for _, test := range cleanings {
		f.Add(test.escaped)
	}
	f.Fuzz(func(t *testing.T, escaped string) {
		got := CleanPath(escaped)
		if got == "*" && escaped == "*" {
			return
		}
		if !strings.HasPrefix(got, "/") || openSegment.MatchString(got) || strayPercent.MatchString(got) {
			t.Errorf("%q becomes %q, which is not clean", escaped, got)
		}
		if again := CleanPath(got); again != got {
			t.Errorf("%q becomes %q, and %q when cleaned again", escaped, got, again)
		}
		// No slash comes out of an escape.
		if strings.Count(got, "/") > strings.Count(escaped, "/")+1 {
			t.Errorf("%q becomes %q, which has more slashes", escaped, got)
		}
		// A path that comes over the wire is decoded exactly once.
		decoded, err := url.PathUnescape(escaped)
		if err == nil && !strings.Contains(escaped, ".") && !strings.Contains(decoded, ".") && !strings.Contains(escaped, "//") {
			whole, err := url.PathUnescape(got)
			if err != nil || strings.Trim(whole, "/") != strings.Trim(decoded, "/") {
				t.Errorf("%q becomes %q, which stands for %q in place of %q (%v)", escaped, got, whole, decoded, err)
			}
		}
	})
}

// lenients are paths and what lenient servers make of them.
var lenients = []struct{ name, escaped, want string }{
	{"root", "/", "/"},
	{"plain", "/login", "/login"},
	{"empty", "", "/"},
	{"the server itself", "*", "*"},
	{"an asterisk escaped", "%2A", "/*"},
	{"not clean", "//x/../login/.", "/login"},
	{"a letter escaped", "/%6cogin", "/login"},
	{"dots escaped", "/x/%2e%2E/login", "/login"},

	{"slash escaped behind", "/login%2F", "/login"},
	{"slash escaped in front", "%2flogin", "/login"},
	{"slash escaped between", "/a%2Fb", "/a/b"},
	{"parent glued to an escaped slash", "/x/..%2flogin", "/login"},
	{"parent between escaped slashes", "/x%2F..%2Flogin", "/login"},
	{"above the root", "/..%2f..%2f../login", "/login"},
	{"slash escaped twice", "/x/..%252flogin", "/x/..%252flogin"},
	{"escaped twice", "/%252e%252e/login", "/%252e%252e/login"},
	{"percent and a parameter", "/100%25;x", "/100%25"},
	{"slashes, but no parameters", "/login/;x/..%5c", "/login"},
	{"parameters, but no slashes", "/x%2fy/..;/login", "/login"},

	{"backslash", `/x\..\login`, "/login"},
	{"backslash escaped", "/x/..%5clogin", "/login"},
	{"backslashes in front", "%5C%5clogin", "/login"},
	{"above the root by backslashes", `\..\..\login`, "/login"},
	{"no slash at all", `x\y`, "/x/y"},

	{"parameter", "/login;a=b", "/login"},
	{"parameters", "/login;a=b;c", "/login"},
	{"parameter without a name", "/login;", "/login"},
	{"parameter of a segment before", "/x;a/login", "/x/login"},
	{"parameter that is a segment", "/;a/login", "/login"},
	{"parameter escaped", "/login%3Ba", "/login"},
	{"parent with a parameter", "/x/..;/login", "/login"},
	{"parent with parameters", "/x/..;a=b;c/login;d", "/login"},
	{"dot with a parameter", "/.;/login", "/login"},
	{"parameter that holds a slash, escaped", "/x;a%2flogin", "/x/login"},
	{"parameter that holds a backslash", `/x;a\..\login`, "/login"},
	{"above the root by parameters", "/..;/..;/login", "/login"},
	{"line break in a parameter", "/login;a%0Ab", "/login"},

	{"all of it", "/static/x;y/..%5C..;z%2F/login;w/", "/login"},
	{"stray percent", "/100%;x", "/100%25"},
	{"no digits", "/%zz/%6c", "/%25zz/l"},
	{"NUL", "/login%00", "/login\x00"},
	{"UTF-8", "/k%C3%A4se;x", "/käse"},
	{"overlong slash is none", "/a%C0%AFb", "/a\xc0\xafb"},
	{"case is kept", "/Login;x", "/Login"},
}

func TestLenientPaths(t *testing.T) {
	for _, test := range lenients {
		if test.escaped == "*" {
			if Lenient(test.escaped) {
				t.Errorf("%s: there are others", test.name)
			}
			continue
		}
		if got := LenientPaths(test.escaped); !contains(got, test.want) {
			t.Errorf("%s: %q becomes %q, without %q", test.name, test.escaped, got, test.want)
		}
	}
	for _, test := range cleanings {
		if plain(test.escaped) && Lenient(test.escaped) && !contains(LenientPaths(test.escaped), CleanPath(test.escaped)) {
			t.Errorf("%s: %q becomes %q", test.name, test.escaped, LenientPaths(test.escaped))
		}
	}
}

func contains(list []string, text string) bool {
	for _, each := range list {
		if each == text {
			return true
		}
	}
	return false
}

// plain says that no server reads a path in another way than CleanPath.
func plain(escaped string) bool {
	decoded, err := url.PathUnescape(escaped)
	return err == nil && !strings.ContainsAny(decoded, `;\%`) && strings.Count(decoded, "/") == strings.Count(escaped, "/")
}

func FuzzLenientPaths(f *testing.F) {
	for _, test := range cleanings {
		f.Add(test.escaped)
	}
	for _, test := range lenients {
		f.Add(test.escaped)
	}
	f.Fuzz(func(t *testing.T, escaped string) {
		paths := LenientPaths(escaped)
		if len(paths) < 1 || len(paths) > 7 {
			t.Fatalf("%q becomes %q", escaped, paths)
		}
		done := 0
		for _, path := range paths {
			if !strings.HasPrefix(path, "/") || openSegment.MatchString(path) || CleanPath(strings.ReplaceAll(path, "%", "%25")) == "" {
				t.Errorf("%q becomes %q, which no server is done with", escaped, path)
			}
			if !strings.ContainsAny(path, `;\`) && !strings.Contains(path, "%2F") {
				done++
			}
		}
		if done == 0 {
			t.Errorf("%q becomes %q, and none as the most lenient server has it", escaped, paths)
		}
		if !Lenient(escaped) && escaped != "*" && paths[0] != CleanPath(escaped) {
			t.Errorf("%q becomes %q, and clean %q", escaped, paths, CleanPath(escaped))
		}
	})
}

func BenchmarkCleanPath(b *testing.B) {
	for _, escaped := range []string{"/api/v1/users/4711", "/login/", "/files/my%20file"} {
		b.Run(escaped, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; i < b.N; i++ {
				CleanPath(escaped)
			}
		})
	}
}
