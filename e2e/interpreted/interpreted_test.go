// Package interpreted runs the tests of the middleware against the plugin as
// Traefik runs it: interpreted, with all middlewares of a process in one
// interpreter.
package interpreted

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/gatequota/gatequota/e2e/host"
	"github.com/gatequota/gatequota/internal/suite"
)

// root holds the plugin and its manifest.
const root = "../.."

// load interprets the plugin, and returns what reads all that it logs.
func load(t *testing.T) (*host.Plugin, func() string) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	plugin, err := host.Load(root, file, file)
	if err != nil {
		t.Fatalf("loading the plugin: %v", err)
	}
	return plugin, func() string {
		text, err := os.ReadFile(file.Name())
		if err != nil {
			t.Errorf("reading the output: %v", err)
		}
		return string(text)
	}
}

// underTest makes a loaded plugin one that the suite can test.
func underTest(t *testing.T) suite.Plugin {
	t.Helper()
	plugin, output := load(t)
	return suite.Plugin{
		Configure: func(ctx context.Context, name string, options map[string]any) (suite.New, error) {
			middleware, err := plugin.Middleware(name, options)
			if err != nil {
				return nil, err
			}
			return func(next http.Handler) (http.Handler, error) {
				return middleware.NewHandler(ctx, next)
			}, nil
		},
		Output: output,
	}
}

func TestMiddleware(t *testing.T) {
	suite.Run(t, underTest(t))
}

// A second interpreter has connections and counts of its own, as has a second
// plugin of the same Traefik.
func TestStress(t *testing.T) {
	for range 2 {
		suite.Stress(t, underTest(t), 4000)
	}
}

// The catalog of plugins makes a middleware out of the manifest's example, where no
// store is, and sends it a request.
func TestExampleOfTheManifest(t *testing.T) {
	plugin, _ := load(t)
	options := plugin.TestData()
	if len(options) == 0 {
		t.Fatal("the manifest has no test data")
	}
	served := 0
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served++
		w.WriteHeader(http.StatusNoContent)
	})
	ctx, cancel := context.WithCancel(context.Background())
	h, err := plugin.New(ctx, next, "example@plugin", options)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if served != 1 || w.Code != http.StatusNoContent || w.Header().Get("RateLimit-Policy") == "" {
		t.Errorf("served %d times, %d, %v", served, w.Code, w.Header())
	}
}
