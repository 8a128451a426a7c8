package interpreted

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/traefik/yaegi/interp"
	"github.com/traefik/yaegi/stdlib"
)

// The tests of package rule are interpreted together with it: what a request falls
// under must be the same as when they are compiled.
func TestRule(t *testing.T) {
	ran := 0
	for name, symbol := range testsOf(t, "github.com/gatequota/gatequota/rule") {
		test, ok := symbol.(func(*testing.T))
		if ok && strings.HasPrefix(name, "Test") {
			t.Run(name, test)
			ran++
		}
	}
	if ran < 10 {
		t.Errorf("only %d tests ran", ran)
	}
}

// BenchmarkRule shows what the interpreter makes of the functions that see requests.
func BenchmarkRule(b *testing.B) {
	for name, symbol := range testsOf(b, "github.com/gatequota/gatequota/rule") {
		benchmark, ok := symbol.(func(*testing.B))
		if ok && strings.HasPrefix(name, "Benchmark") {
			b.Run(name, benchmark)
		}
	}
}

// testsOf interprets a package of the plugin with its tests, and returns what it
// exports.
func testsOf(t testing.TB, path string) map[string]any {
	t.Helper()
	module, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	goPath := t.TempDir()
	link := filepath.Join(goPath, "src", "github.com", "gatequota", "gatequota")
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(module, link); err != nil {
		t.Fatal(err)
	}
	i := interp.New(interp.Options{GoPath: goPath, Stdout: io.Discard, Stderr: io.Discard})
	if err := i.Use(stdlib.Symbols); err != nil {
		t.Fatal(err)
	}
	if err := i.EvalTest(path); err != nil {
		t.Fatalf("interpreting the tests of %s: %v", path, err)
	}
	exported := map[string]any{}
	for name, symbol := range i.Symbols(path)[path] {
		if symbol.CanInterface() {
			exported[name] = symbol.Interface()
		}
	}
	return exported
}
