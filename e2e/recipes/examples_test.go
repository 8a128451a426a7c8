package recipes_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// The example's router knows the login in one spelling, and the rule of its catch-all in
// the others.
func TestExampleLimitsTheLoginInEachSpelling(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(lab.Root(), "examples", "dynamic.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s := &site{store: lab.Valkey(t, lab.StoreOptions{}), app: lab.NewApp(t, 2), clients: map[string]*http.Client{}}
	s.tr = lab.NewTraefik(t, lab.TraefikOptions{}, strings.NewReplacer(
		"localhost:6379", s.store.Addr(), "http://localhost:9001", s.app.URLs[0], "http://localhost:9002", s.app.URLs[1],
	).Replace(string(content)))
	lab.AwaitRoom(time.Minute, 10*time.Second)
	const host = "example.com"
	s.play(t, host, step{n: 6, method: "POST", target: "/login", want: "200: 5, 429: 1", fields: map[string]string{"RateLimit-Policy": `"login-quota@file";q=5;w=60`}})
	s.play(t, host, step{n: 5, method: "POST", target: "/login/", want: "200: 5"})
	s.play(t, host, step{method: "POST", target: "/x/..//login/", want: "429: 1", fields: map[string]string{"RateLimit-Policy": `"site:login";q=5;w=60`}})
	s.play(t, host, step{target: "/login/", want: "200: 1"})
}
