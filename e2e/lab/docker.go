package lab

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// labelsMarker is a path that answers 200 once labels are in force.
const labelsMarker = "/lab-labels"

// Labels offers the part of the Docker API that Traefik reads labels from. It
// shows one container with the given labels, whose service, called "labelled",
// is the application at serviceURL. It returns the address for
// TraefikOptions.Docker. No container runs: labels take the same way through
// Traefik whoever tells them.
func Labels(t testing.TB, serviceURL string, labels map[string]string) string {
	t.Helper()
	u, err := url.Parse(serviceURL)
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{
		"traefik.enable": "true",
		"traefik.http.services.labelled.loadbalancer.server.port": port,
		"traefik.http.routers.labels.rule":                        "Path(`" + labelsMarker + "`)",
		"traefik.http.routers.labels.service":                     "ping@internal",
		"traefik.http.routers.labels.priority":                    "1000000",
	}
	for name, value := range labels {
		all[name] = value
	}
	const id = "0123456789ab"
	network := map[string]any{"lab": map[string]any{"IPAddress": "127.0.0.1", "NetworkID": "lab"}}
	answer := func(w http.ResponseWriter, value any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(value)
	}
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.44")
		switch path := r.URL.Path; {
		case strings.HasSuffix(path, "/_ping"):
			_, _ = io.WriteString(w, "OK")
		case strings.HasSuffix(path, "/version"):
			answer(w, map[string]any{"Version": "lab", "ApiVersion": "1.44", "MinAPIVersion": "1.24"})
		case strings.HasSuffix(path, "/containers/json"):
			answer(w, []any{map[string]any{"Id": id, "Names": []string{"/labelled"}, "State": "running"}})
		case strings.HasSuffix(path, "/containers/"+id+"/json"):
			answer(w, map[string]any{
				"Id": id, "Name": "/labelled",
				"State":           map[string]any{"Status": "running", "Running": true},
				"HostConfig":      map[string]any{"NetworkMode": "lab"},
				"Config":          map[string]any{"Labels": all},
				"NetworkSettings": map[string]any{"Networks": network},
			})
		case strings.HasSuffix(path, "/events"):
			// Nothing ever happens to the container.
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
			case <-ended:
			}
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(func() {
		close(ended)
		server.CloseClientConnections()
		server.Close()
	})
	return "tcp://" + strings.TrimPrefix(server.URL, "http://")
}
