package bodies_test

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// Who is given an answer of the operator's own gets it whatever he accepts.
func TestRefusedInTheOperatorsWords(t *testing.T) {
	t.Parallel()
	const words = "<h1>Later</h1>"
	app := lab.NewApp(t, 1)
	window, _ := lab.QuietWindow(time.Now())
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, lab.Routes{
		Routers: map[string]lab.Route{"all": {Rule: "PathPrefix(`/`)", Middlewares: []string{"quota"}, Service: "app"}},
		Middlewares: map[string]lab.Map{"quota": lab.Quota(lab.Map{
			"limit": 1, "window": window.String(), "mode": "local",
			"response": lab.Map{"status": 420, "body": words, "contentType": "text/html"},
		})},
		Services: map[string]string{"app": app.URLs[0]},
	}.YAML(t))
	if resp, _ := fetch(t, tr, http.MethodGet, "/", "HTTP/1.1"); resp.StatusCode != http.StatusOK {
		t.Fatalf("the first request: status %d", resp.StatusCode)
	}
	for _, accept := range []string{"*/*", "application/json", "text/plain"} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodHead} {
			resp, body := fetch(t, tr, method, "/", "HTTP/1.1", "Accept: "+accept)
			want := words
			if method == http.MethodHead {
				want = ""
			}
			h := resp.Header
			if resp.StatusCode != 420 || h.Get("Content-Type") != "text/html" || body != want ||
				h.Get("Content-Length") != strconv.Itoa(len(words)) || h.Get("Retry-After") == "" || h.Get("RateLimit") == "" {
				t.Errorf("%s, %s: status %d, %q, %v", method, accept, resp.StatusCode, body, h)
			}
		}
	}
}
