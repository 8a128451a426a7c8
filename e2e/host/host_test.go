package host_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/gatequota/gatequota/e2e/host"
)

func load(t *testing.T) (*host.Plugin, *os.File) {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	plugin, err := host.Load("testdata/standin", file, file)
	if err != nil {
		t.Fatal(err)
	}
	return plugin, file
}

var noContent = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })

func ask(h http.Handler) http.Header {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	return w.Result().Header
}

func TestOptionsAreDecodedLoosely(t *testing.T) {
	plugin, _ := load(t)
	for _, tt := range []struct {
		name    string
		options map[string]any
		want    string
	}{
		{"defaults", nil, `m@file|defaultdefault|<nil>|[]|map[]|map[]`},
		{"any case", map[string]any{"WORD": "a", "nested": map[string]any{"List": []any{"x"}}}, `m@file|aa|<nil>|["x"]|map[]|map[]`},
		{"a list from one string, blanks kept", map[string]any{"nested": map[string]any{"list": "x, y"}}, `m@file|defaultdefault|<nil>|["x" " y"]|map[]|map[]`},
		{"a number as the provider has it", map[string]any{"number": "010"}, `m@file|defaultdefault|010|[]|map[]|map[]`},
		{"unknown options reach the remainder", map[string]any{"wrod": 1, "nested": map[string]any{"lits": 2}}, `m@file|defaultdefault|<nil>|[]|map[lits:2]|map[wrod:1]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, err := plugin.New(context.Background(), noContent, "m@file", tt.options)
			if err != nil {
				t.Fatal(err)
			}
			if got := ask(h).Get("X-Text"); !strings.HasPrefix(got, tt.want+"|0x") {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	plugin, _ := load(t)
	_, err := plugin.New(context.Background(), noContent, "m", map[string]any{"word": "bad"})
	if err == nil || err.Error() != `word: "bad" is refused` {
		t.Errorf("New's error is lost: %v", err)
	}
	if _, err := plugin.New(context.Background(), noContent, "m", map[string]any{"word": map[string]any{}}); err == nil {
		t.Error("a map decoded into a string")
	}
	if _, err := host.Load(t.TempDir(), io.Discard, io.Discard); err == nil {
		t.Error("a directory without a manifest was loaded")
	}
}

func TestHandlersOfOneMiddlewareShareConfigAndPackageVariables(t *testing.T) {
	plugin, _ := load(t)
	m, err := plugin.Middleware("m", nil)
	if err != nil {
		t.Fatal(err)
	}
	const routers, requests = 4, 50
	seen := make(chan http.Header, routers*requests)
	var wg sync.WaitGroup
	for range routers {
		h, err := m.NewHandler(context.Background(), noContent)
		if err != nil {
			t.Fatal(err)
		}
		for range requests {
			wg.Go(func() { seen <- ask(h) })
		}
	}
	wg.Wait()
	close(seen)
	texts, counts := map[string]bool{}, map[string]bool{}
	for header := range seen {
		texts[header.Get("X-Text")] = true
		counts[header.Get("X-Count")] = true
	}
	if len(texts) != 1 {
		t.Errorf("the handlers see %d configurations, want 1", len(texts))
	}
	if len(counts) != routers*requests {
		t.Errorf("%d different counts, want %d", len(counts), routers*requests)
	}
}

func TestInterpretersAreApart(t *testing.T) {
	for range 2 {
		plugin, _ := load(t)
		h, err := plugin.New(context.Background(), noContent, "m", nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := ask(h).Get("X-Count"); got != "1" {
			t.Errorf("first count of an interpreter is %s", got)
		}
	}
}

func TestOutputReachesTheStreams(t *testing.T) {
	plugin, file := load(t)
	if _, err := plugin.New(context.Background(), noContent, "m", plugin.TestData()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"printed\n", "logged\n", "written\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("output lacks %q:\n%s", want, text)
		}
	}
}
