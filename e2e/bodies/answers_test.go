package bodies_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

const (
	text    = "text/plain; charset=utf-8"
	problem = "application/problem+json"
)

// details are the members of a problem that a client goes by.
type details struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Violated []string `json:"violated-policies"`
}

// fetch sends a request without a body over a connection of its own, in any version
// of HTTP/1, and returns the answer with its whole body.
func fetch(t *testing.T, tr *lab.Traefik, method, path, version string, fields ...string) (*http.Response, string) {
	t.Helper()
	conn, err := net.Dial("tcp", lab.Address(t, tr.URL))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	head := append([]string{method + " " + path + " " + version, "Host: gateway", "X-API-Key: SECRET-e3f1", "Connection: close"}, fields...)
	if _, err := io.WriteString(conn, strings.Join(head, "\r\n")+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s %s %v: %v after %q, %v", method, path, version, fields, err, body, resp.Header)
	}
	return resp, string(body)
}

// A refusal has the form that its client can read, and says what is true of itself.
func TestFormsOfRefusals(t *testing.T) {
	t.Parallel()
	app := lab.NewApp(t, 1)
	window, _ := lab.QuietWindow(time.Now())
	nowhere := lab.Map{"endpoints": []string{"127.0.0.1:" + strconv.Itoa(lab.FreePort(t))}}
	source := lab.Map{"requestHeaderName": "X-API-Key"}
	routes := lab.Routes{
		Routers: map[string]lab.Route{}, Services: map[string]string{"app": app.URLs[0]},
		Middlewares: map[string]lab.Map{
			"spent":  lab.Quota(lab.Map{"limit": 1, "window": window.String(), "sourceCriterion": source, "mode": "local"}),
			"closed": lab.Quota(lab.Map{"limit": 1, "window": window.String(), "sourceCriterion": source, "valkey": nowhere, "onStoreFailure": "closed"}),
		},
	}
	for name := range routes.Middlewares {
		routes.Routers[name] = lab.Route{Rule: "Path(`/" + name + "`)", Middlewares: []string{name}, Service: "app"}
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, routes.YAML(t))
	if resp, _ := fetch(t, tr, http.MethodGet, "/spent", "HTTP/1.1"); resp.StatusCode != http.StatusOK {
		t.Fatalf("the first request: status %d", resp.StatusCode)
	}
	refusals := map[string]struct {
		status   int
		kind     string // of the problem
		violated []string
	}{
		"spent":  {status: http.StatusTooManyRequests, kind: "quota-exceeded", violated: []string{"spent@file"}},
		"closed": {status: http.StatusServiceUnavailable, kind: "temporary-reduced-capacity", violated: []string{}},
	}
	for _, client := range []struct{ name, accept, want string }{
		{"one that does not say", "", text},
		{"curl", "*/*", text},
		{"a browser's page", "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8", text},
		{"axios", "application/json, text/plain, */*", problem},
		{"JSON", "application/json", problem},
		{"problems", "application/problem+json", problem},
		{"no JSON", "application/json;q=0, text/plain", text},
	} {
		for path, want := range refusals {
			for _, version := range []string{"HTTP/1.1", "HTTP/1.0"} {
				for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodHead} {
					what := fmt.Sprintf("%s, /%s, %s %s", client.name, path, method, version)
					var fields []string
					if client.accept != "" {
						fields = append(fields, "Accept: "+client.accept)
					}
					resp, body := fetch(t, tr, method, "/"+path, version, fields...)
					h := resp.Header
					if resp.StatusCode != want.status || h.Get("Content-Type") != client.want || h.Get("Retry-After") == "" || h.Get("Cache-Control") != "no-store" {
						t.Errorf("%s: status %d, %v", what, resp.StatusCode, h)
					}
					if varies := strings.Contains(h.Get("Vary"), "Accept"); !varies {
						t.Errorf("%s: Vary is %q", what, h.Get("Vary"))
					}
					if method == http.MethodHead {
						if body != "" {
							t.Errorf("%s: a body: %q", what, body)
						}
						continue
					}
					if h.Get("Content-Length") != strconv.Itoa(len(body)) || body == "" {
						t.Errorf("%s: Content-Length %q, and the body is %q", what, h.Get("Content-Length"), body)
					}
					if all := body + fmt.Sprint(h); strings.Contains(all, "SECRET") || strings.Contains(all, "127.0.0.1") {
						t.Errorf("%s: the answer tells %s", what, all)
					}
					if client.want != problem {
						continue
					}
					var d details
					if err := json.Unmarshal([]byte(body), &d); err != nil {
						t.Errorf("%s: %q: %v", what, body, err)
						continue
					}
					if d.Type != "https://iana.org/assignments/http-problem-types#"+want.kind || d.Title == "" || d.Status != want.status ||
						fmt.Sprint(d.Violated) != fmt.Sprint(want.violated) {
						t.Errorf("%s: %+v", what, d)
					}
				}
			}
		}
	}
}
