package docs

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatequota/gatequota"
)

// What docs/status.md says to write shows the status to those that it says, and to nobody
// else.
func TestTheStatusPagesConfiguration(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(root, "docs", "status.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := fence.FindAllStringSubmatch(string(content), -1)
	if len(blocks) != 1 {
		t.Fatalf("%d configurations", len(blocks))
	}
	_, middlewares, found := strings.Cut(blocks[0][2], "  middlewares:\n") // routers are Traefik's own
	if !found {
		t.Fatal("there is no middleware")
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("a-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	name, options, err := fromFile("http:\n  middlewares:\n"+strings.ReplaceAll(middlewares, "/run/secrets/status-token", token), ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	config, err := decode(options)
	if err != nil {
		t.Fatal(err)
	}
	noop := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	handler, err := gatequota.New(context.Background(), noop, config, name+"@file")
	if err != nil {
		t.Fatal(err)
	}
	const path, page, metrics = "/-/gatequota", "text/html; charset=utf-8", "text/plain; version=0.0.4; charset=utf-8"
	for _, c := range []struct{ target, peer, token, want string }{
		{path, "10.0.7.3", "a-token", page},
		{path + "?token=a-token", "10.0.7.3", "", page},
		{path + "?format=json", "10.0.7.3", "a-token", "application/json"},
		{path, "10.0.7.3", "", ""},
		{path, "10.0.9.3", "a-token", ""},
		{path, "127.0.0.1", "a-token", ""},
		{path + "/metrics", "10.0.9.3", "", metrics},
		{path + "/metrics", "10.0.7.3", "a-token", ""},
	} {
		req := httptest.NewRequest(http.MethodGet, c.target, nil)
		req.RemoteAddr = c.peer + ":4711"
		if c.token != "" {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, req)
		status := http.StatusOK
		if c.want == "" {
			status = http.StatusTeapot
		}
		if got := w.Header().Get("Content-Type"); w.Code != status || got != c.want {
			t.Errorf("%s from %s with %q: %d, %q", c.target, c.peer, c.token, w.Code, got)
		}
	}
}
