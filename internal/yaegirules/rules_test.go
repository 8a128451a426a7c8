package yaegirules

import (
	"go/types"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"testing"
)

func TestThePluginObeysTheRules(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	findings, err := CheckModule(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range findings {
		t.Error(finding)
	}
}

// snippets are the good and the bad of each rule: the rules that the text breaks, in
// the order of the lines. What stands before the first line of code is added below.
var snippets = []struct {
	name string
	text string
	want string
}{
	{"select", `func f(c chan int) { select { case <-c: default: } }`, "select"},
	{"select without cases", `func f() { select {} }`, "select"},
	{"receive without select", `func f(c chan int) { v, ok := <-c; _, _ = v, ok }`, ""},
	{"receive of two values from a field", `type T struct { c chan int }
		func f(t *T) { select {
		case v, ok := <-t.c: _, _ = v, ok
		} }`, "select receive"},
	{"receive of one value from a field", `type T struct { c chan int }
		func f(t *T) { select {
		case v := <-t.c: _ = v
		} }`, "select"},
	{"close and receive", `func f(c chan int) { close(c); <-c }`, ""},

	{"parameter without a name", `func f(int) {}`, "parameter"},
	{"method's parameter without a name", `type T struct{}
		func (t T) f(int, string) {}`, "parameter parameter"},
	{"literal's parameter without a name", `var f = func(int) {}`, "parameter"},
	{"receiver without a name", `type T struct{}
		func (T) f() {}`, ""},
	{"blank parameters", `type T struct{}
		func (_ T) f(_ int, _ ...string) {}
		var g = func(_ int) {}`, ""},
	{"results, interfaces and function types without names", `type I interface { f(int) }
		type F func(int) (string, error)
		func f(g func(int)) (int, error) { return 0, nil }`, ""},

	{"assignment of nil among others", `func f(a, b map[string]int) { a, b = nil, b }`, "assign"},
	{"assignment of nil alone", `func f(a map[string]int) { a = nil }`, ""},
	{"assignment of a constant and a call", `func f(a, b string) { a, b = "a", g() }
		func g() string { return "" }`, "assign"},
	{"assignment of a call within an expression", `import "strings"
		func f(a, b string) { a, b = b, "b"+strings.ToLower(a) }`, "assign"},
	{"assignment of a call to fields", `type T struct { a, b int }
		func f(t *T) { t.a, t.b = g(), 1 }
		func g() int { return 1 }`, "assign"},
	{"assignment of the results of one call", `func f(a, b int) { a, b = g(); _, _ = a, b }
		func g() (int, int) { return 1, 2 }`, ""},
	{"definition of a constant and a call", `func f() { a, b := "a", g(); _, _ = a, b }
		func g() string { return "" }`, ""},
	{"assignment of a conversion and a constant", `func f(a int64, b int) { a, b = int64(b), 1 }`, "assign"},
	{"assignment of a builtin and a constant", `func f(a, b int, s []int) { a, b = 1, len(s) }`, "assign"},
	{"exchange", `func f(a, b int, s []int) {
			a, b = b, a+b
			s[0], s[1] = s[1], s[0]
			f, g := func() { h() }, 1
			f, g = func() { h() }, 2
			_, _ = f, g
		}
		func h() {}`, ""},

	{"result that is appended to", `func f(k int) (s []int) { s = append(s, k); return s }`, "result"},
	{"result that is appended to in a loop", `func f(t []int) (s []int, n int) { for _, e := range t { s = append(s, e) }; return s, 1 }`, "result"},
	{"result that is added to", `func f(k int) (n int) { n += k; return n }`, "result"},
	{"result that is counted up", `func f() (n int) { n++; return n }`, "result"},
	{"result that is or'ed", `func f(a bool) (b bool) { b = b || a; return b }`, "result"},
	{"result of which a part is assigned", `func f(k int) (a [3]int) { a[k] = 1; return a }`, "result"},
	{"result of which a field is assigned", `type T struct { a int }
		func f() (t T) { t.a = 1; return t }`, "result"},
	{"result that is asked for nil", `func f() (m map[int]int) { if m == nil { m = map[int]int{} }; return m }`, "result"},
	{"result that is assigned on one way", `func f(b bool) (n int) { if b { n = 1 }; return n }`, "result"},
	{"results that are assigned on one way, and a bare return", `func f(b bool) (n int, e error) { if b { n = 1 }; return }`, "result result"},
	{"result that is assigned in a loop", `func f(t []int) (n int) { for _, e := range t { n = e }; return n }`, "result"},
	{"result that is assigned in some cases", `func f(k int) (n int) { switch k { case 1: n = 1; case 2: n = 2 }; return n }`, "result"},
	{"result that a break leaves as it was", `func f(k int) (n int) { switch { default: if k > 1 { break }; n = 1 }; return n }`, "result"},
	{"result that a literal adds to", `func f(k int) (n int) { g := func() { n += k }; g(); return 1 }`, "result"},
	{"result of a literal", `var f = func(k int) (n int) { n += k; return n }`, "result"},
	{"result whose address is taken", `func f() (n int) { g(&n); return 1 }
		func g(n *int) {}`, "result"},
	{"result that is assigned before", `func f(k int) (s []int, n int) {
			s, n = nil1(), 1
			s = append(s, k)
			n += k
			return
		}
		func nil1() []int { return nil }`, "assign"},
	{"results that are assigned one by one", `func f(k int) (s []int, n int) {
			s = nil
			n = 0
			for i := 0; i < k; i++ { s = append(s, i); n += i }
			return
		}`, ""},
	{"results that are returned as they are not", `func f(k int) (n int, b bool) { m := k; m += 1; return m, false }`, ""},
	{"result that is assigned on all ways", `func f(k int) (n int) {
			if k > 1 { n = 1 } else if k > 0 { return 5 } else { n = 2 }
			switch { case k > 7: n = 2; fallthrough; default: n++ }
			return n
		}`, ""},
	{"result that each case assigns", `func f(k int) (n int) { switch k { case 1: n = 1; case 2: return 7; default: n = 2 }; return n }`, ""},
	{"result that is assigned in a condition", `func f() (err error) { if _, err = g(); err != nil { return err }; return }
		func g() (int, error) { return 1, nil }`, ""},
	{"result that is defined again", `func f() (n int, err error) { m, err := g(); return m, err }
		func g() (int, error) { return 1, nil }`, ""},
	{"result that an endless loop assigns", `func f() (n int) { for { n = 1; if n > 0 { break } }; return n }`, ""},
	{"result of another function", `func f() int { var n int; n += 1; return n }
		func g() (_ int) { return 1 }`, ""},
	{"result that a deferred literal assigns", `func f() (err error) { defer func() { if recover() != nil { err = nil } }(); return nil }`, ""},
	{"result that a deferred literal reads", `func f() (n int) { defer func() { g(n) }(); return 1 }
		func g(n int) {}`, ""},

	{"defer of a literal", `func f() { defer func() { _ = recover() }() }`, ""},
	{"defer of a literal that captures", `func f() (n int) { defer func() { n++; g() }(); return 1 }
		func g() {}`, ""},
	{"defer of a variable that holds a literal", `func f() { g := func() {}; defer g() }`, "defer"},
	{"defer of a variable declared before", `func f() { var g func(); g = func() {}; defer g() }`, "defer"},
	{"defer of a variable declared with its literal", `func f() { var g = (func() {}); defer g() }`, "defer"},
	{"defer of a field that holds a literal", `type T struct { g func() }
		func f() { t := &T{g: func() {}}; defer t.g() }`, "defer"},
	{"defer of a literal that calls a closure", `func f() { g := func() {}; defer func() { g() }() }`, "defer"},
	{"defer of a literal that hands a closure on", `func f() { g := func() {}; defer func() { h(g) }() }
		func h(g func()) { g() }`, "defer"},
	{"defer of a literal that makes a closure", `func f() { defer func() { g := func() {}; g() }() }`, ""},
	{"defer with a literal as argument", `func f() { defer g(func() {}) }
		func g(h func()) { h() }`, "defer"},
	{"defer with a closure as argument", `func f() { h := func() {}; defer g(h) }
		func g(h func()) { h() }`, "defer"},
	{"defer of a method, a function, a cancel function, a package's variable", `import "context"
		import "sync"
		var hook = func() {}
		func f(mu *sync.Mutex) {
			_, cancel := context.WithCancel(context.Background())
			defer cancel()
			mu.Lock()
			defer mu.Unlock()
			defer g()
			defer hook()
		}
		func g() {}`, ""},
	{"closure that is not deferred", `func f() { g := func() {}; g(); defer h() }
		func h() {}`, ""},

	{"min", `func f(a, b int) int { return min(a, b) }`, "builtin"},
	{"max", `func f(a, b int) int { return max(a, b) }`, "builtin"},
	{"clear", `func f(m map[int]int) { clear(m) }`, "builtin"},
	{"own min", `func f(a, b int) int { return min(a, b) }
		func min(a, b int) int { return a }`, ""},
	{"field max", `type T struct { max int }
		func f(t T) int { return t.max }`, ""},

	{"range over a constant", `func f() { for i := range 10 { _ = i } }`, "range"},
	{"range over a variable", `func f(n int64) { for range n { } }`, "range"},
	{"range over a length", `func f(s []int) { for i := range len(s) { _ = i } }`, "range"},
	{"range over a named integer", `type N uint8
		func f(n N) { for range n { } }`, "range"},
	{"range over a function", `func f(g func(func(int) bool)) { for i := range g { _ = i } }`, "range"},
	{"range over the rest", `func f(s []int, m map[int]int, t string, c chan int, a *[3]int) {
			for range s { }
			for range m { }
			for range t { }
			for range c { }
			for range a { }
		}`, ""},

	{"goroutine without recover", `func f() { go g() }
		func g() {}`, "recover"},
	{"goroutine of a literal without recover", `func f() { go func() {}() }`, "recover"},
	{"goroutine that defers something else", `func f() { go g() }
		func g() { defer h() }
		func h() {}`, "recover"},
	{"goroutine that recovers sometimes", `func f(b bool) { go g(b) }
		func g(b bool) { if b { defer h() } }
		func h() { _ = recover() }`, "recover"},
	{"goroutine that recovers too deep", `func f() { go g() }
		func g() { defer h() }
		func h() { i() }
		func i() { _ = recover() }`, "recover"},
	{"goroutine that recovers in a nested literal", `func f() { go g() }
		func g() { defer h() }
		func h() { func() { _ = recover() }() }`, "recover"},
	{"goroutine that calls recover outside of defer", `func f() { go g() }
		func g() { _ = recover() }`, "recover"},
	{"goroutine with a recover of its own making", `func f() { go g() }
		func g() { defer h() }
		func h() { recover() }
		func recover() {}`, "recover"},
	{"goroutine of a variable", `func f(g func()) { go g() }`, "recover"},
	{"goroutine of another package", `import "sync"
		func f(mu *sync.Mutex) { go mu.Lock() }`, "recover"},
	{"goroutine that recovers", `func f() { go g() }
		func g() { defer h(); panic(1) }
		func h() { if r := recover(); r != nil { return } }`, ""},
	{"goroutine of a method that recovers", `type T struct{}
		func f(t *T) { go t.g() }
		func (t *T) g() { defer t.h() }
		func (t *T) h() { _ = recover() }`, ""},
	{"goroutine of a literal that recovers", `func f() { go func(n int) { defer func() { _ = recover() }(); panic(n) }(1) }`, ""},
	{"timer without recover", `import "time"
		func f() { time.AfterFunc(1, func() {}) }`, "recover"},
	{"timer of a function without recover", `import "time"
		func f() { time.AfterFunc(1, g) }
		func g() {}`, "recover"},
	{"timer that recovers", `import "time"
		func f() { time.AfterFunc(1, func() { defer h() }) }
		func h() { _ = recover() }`, ""},
	{"context callback without recover", `import "context"
		func f(c context.Context) { context.AfterFunc(c, func() {}) }`, "recover"},

	{"build constraint", "//go:build linux\n\npackage p", "build"},
	{"older build constraint", "// +build linux\n\npackage p", "build"},
	{"build constraint in the text", "package p\n\n//go:build does nothing here\n", ""},
	{"linkname", `import _ "net/http"
		//go:linkname f runtime.f
		func f() {}`, "build"},
	{"generate", `//go:generate true
		func f() {}`, ""},

	{"unsafe", `import _ "unsafe"`, "import"},
	{"syscall", `import "syscall"
		var e = syscall.EINVAL`, "import"},
	{"embed", `import _ "embed"`, "import"},
	{"iter", `import "iter"
		var s iter.Seq[int]`, "import"},
	{"os/exec", `import _ "os/exec"`, "import"},
	{"os", `import _ "os"`, ""},

	{"atomic.Pointer", `import "sync/atomic"
		var p atomic.Pointer[int]`, "symbol"},
	{"sync.OnceValue", `import "sync"
		var f = sync.OnceValue(func() int { return 1 })`, "symbol"},
	{"slices.Sort", `import "slices"
		func f(s []int) { slices.Sort(s) }`, "symbol"},
	{"maps.Clone under another name", `import m "maps"
		func f(a map[int]int) { m.Clone(a) }`, "symbol"},
	{"what works of these packages", `import "sync"
		import "sync/atomic"
		var n atomic.Int64
		var v atomic.Value
		var f = sync.OnceFunc(func() {})`, ""},

	{"generic type", `type T[E any] struct { e E }`, "generic"},
	{"generic function", `func f[E any](e E) E { return e }`, ""},

	{"errors.As into a type of ours", `import "errors"
		type E struct{}
		func (e *E) Error() string { return "" }
		func f(err error) bool { var e *E; return errors.As(err, &e) }`, "error"},
	{"errors.As into an interface of ours", `import "errors"
		type I interface { Timeout() bool }
		func f(err error) bool { var i I; return errors.As(err, &i) }`, "error"},
	{"errors.As into net.Error", `import "errors"
		import "net"
		func f(err error) bool { var e net.Error; return errors.As(err, &e) && e.Timeout() }`, ""},
	{"errors.Is", `import "errors"
		var errGone = errors.New("gone")
		func f(err error) bool { return errors.Is(err, errGone) }`, ""},
	{"type switch on an error", `import "net"
		func f(err error) { switch err.(type) { case net.Error: } }`, "error"},
	{"type switch on an error, with a variable", `import "net"
		func f(err error) { switch e := err.(type) { case net.Error: _ = e } }`, "error"},
	{"case error", `func f(v interface{}) { switch v.(type) {
		case string:
		case error:
		} }`, "error"},
	{"type switch on the rest", `func f(v interface{}) { switch v.(type) { case string, nil: default: } }`, ""},
	{"error that is a struct", `type E struct{}
		func (e E) Error() string { return "" }`, "error"},

	{"embedded writer", `import "net/http"
		type W struct { http.ResponseWriter }`, "writer"},
	{"writer written out", `import "net/http"
		type W struct { w http.ResponseWriter }
		func (w *W) Header() http.Header { return w.w.Header() }
		func (w *W) Write(b []byte) (int, error) { return w.w.Write(b) }
		func (w *W) WriteHeader(status int) {}`, "writer"},
	{"writer within a function", `import "net/http"
		func f() { type W struct { http.ResponseWriter } }`, "writer"},
	{"writer in a field", `import "net/http"
		type R struct { w http.ResponseWriter; next http.Handler }`, ""},

	{"type error", `var n int = "text"`, "types"},
	{"unknown import", `import _ "example.com/not/vendored"`, "types"},
}

func TestEachRuleCanFail(t *testing.T) {
	imports, err := exported(".", "context", "embed", "errors", "iter", "maps", "net/http", "os/exec", "slices", "sync", "syscall", "time")
	if err != nil {
		t.Fatal(err)
	}
	for _, snippet := range snippets {
		t.Run(snippet.name, func(t *testing.T) {
			text := snippet.text
			if !strings.Contains(text, "package p") {
				text = "package p\n\n" + text
			}
			findings, err := checkPackage(map[string]string{"p.go": text}, imports)
			if err != nil {
				t.Fatal(err)
			}
			if got := rules(findings); got != snippet.want {
				t.Errorf("breaks %q, want %q: %v\n%s", got, snippet.want, findings, text)
			}
		})
	}
}

func rules(findings []Finding) string {
	sort.SliceStable(findings, func(i, j int) bool { return findings[i].Position.Offset < findings[j].Position.Offset })
	var names []string
	for _, finding := range findings {
		names = append(names, finding.Rule)
	}
	return strings.Join(names, " ")
}

func TestFilesOfOnePackageAreSeenTogether(t *testing.T) {
	findings, err := checkPackage(map[string]string{
		"a.go": "package p\nfunc f() { go g() }",
		"b.go": "package p\nfunc g() { defer h() }",
		"c.go": "package p\nfunc h() { _ = recover() }",
	}, types.Importer(nil))
	if err != nil || len(findings) != 0 {
		t.Errorf("findings %v, error %v; want none", findings, err)
	}
}

func TestWhichFilesOfAModuleAreChecked(t *testing.T) {
	const bad = "func f(int) {}\n"
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":                                    "module example.com/m // a comment\n\n// go 1.20\ngo 1.21 // why\n\nrequire example.com/v v1.0.0\n",
		"plugin.go":                                 "package m\n\nimport _ \"example.com/v/internal\"\n\n" + bad,
		"plugin_test.go":                            "package m\n\nfunc g(int) {}\n",
		"window/window.go":                          "package window\n\n" + bad,
		"window/testdata/x.go":                      "package x\n\n" + bad,
		"window/sum_amd64.s":                        "",
		"window/sum.go":                             "package window\n",
		"e2e/e2e.go":                                "package e2e\n\n" + bad,
		"internal/suite/suite.go":                   "package suite\n\n" + bad,
		"examples/app/main.go":                      "package main\n\nfunc main() {}\n" + bad,
		"nested/go.mod":                             "module example.com/nested\n",
		"nested/nested.go":                          "package nested\n\n" + bad,
		".hidden/hidden.go":                         "package hidden\n\n" + bad,
		"vendor/modules.txt":                        "# example.com/v v1.0.0\n## explicit; go 1.22\nexample.com/v/internal\n",
		"vendor/example.com/v/v.go":                 "package v\n\nfunc f() { for range 3 { } }\n",
		"vendor/example.com/v/e2e/e2e.go":           "package e2e\n\n" + bad,
		"vendor/example.com/v/internal/internal.go": "package internal\n\n" + bad,
	} {
		name = filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	findings, err := CheckModule(root)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, finding := range findings {
		name, err := filepath.Rel(root, finding.Position.Filename)
		if err != nil {
			t.Fatal(err)
		}
		if finding.Rule != "types" {
			got[filepath.ToSlash(name)] = finding.Rule
		}
	}
	want := map[string]string{
		"go.mod":                                    "go.mod",
		"plugin.go":                                 "parameter",
		"window/window.go":                          "parameter",
		"window/sum_amd64.s":                        "build",
		"vendor/example.com/v/v.go":                 "range",
		"vendor/example.com/v/e2e/e2e.go":           "parameter",
		"vendor/example.com/v/internal/internal.go": "parameter",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("found\n%v\nwant\n%v", got, want)
	}
}

func TestLanguageVersion(t *testing.T) {
	for text, want := range map[string]int{
		"module m\n\ngo 1.20\n":                     0,
		"module m\n\ngo 1.20 // because\n":          0,
		"module m\n\ngo 1.20.1\n":                   1,
		"module m\n\ngo 1.2\n":                      1,
		"module m\n\ngo 1.21\n":                     1,
		"module m\n":                                1,
		"module m\n\n// go 1.20\ngo 1.26.0\n":       1,
		"module m\n\ngo 1.26\n\ntoolchain go1.20\n": 1,
	} {
		name := filepath.Join(t.TempDir(), "go.mod")
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		findings, err := checkLanguage(name)
		if err != nil || len(findings) != want {
			t.Errorf("%q: findings %v, error %v; want %d", text, findings, err, want)
		}
	}
}
