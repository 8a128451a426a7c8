package compose_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/lab"
)

// example reads a file of the examples and replaces what is elsewhere in a test,
// such as addresses. Each old text must be there.
func example(t *testing.T, name string, replace map[string]string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(lab.Root(), "examples", name))
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	for old, with := range replace {
		if !strings.Contains(text, old) {
			t.Fatalf("%s does not hold %q", name, old)
		}
		text = strings.ReplaceAll(text, old, with)
	}
	return text
}

// answer is what a test wants to know of a response.
type answer struct {
	status int
	policy string // RateLimit-Policy
	way    string // X-RateLimit-Decision
	wait   string // Retry-After
}

func get(t *testing.T, gateway, path string, header http.Header) answer {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, gateway+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		if name == "Host" {
			request.Host = values[0]
		} else {
			request.Header[name] = values
		}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return answer{
		status: response.StatusCode,
		policy: response.Header.Get("RateLimit-Policy"),
		way:    response.Header.Get("X-RateLimit-Decision"),
		wait:   response.Header.Get("Retry-After"),
	}
}

func wantAnswer(t *testing.T, what string, got, want answer) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %+v, want %+v", what, got, want)
	}
}

// dynamicExample is examples/dynamic.yaml with the store and the application of
// the test.
func dynamicExample(t *testing.T, store *lab.Store, app *lab.App, more map[string]string) string {
	t.Helper()
	replace := map[string]string{
		"localhost:6379":        store.Addr(),
		"http://localhost:9001": app.URLs[0],
		"http://localhost:9002": app.URLs[1],
	}
	for old, with := range more {
		replace[old] = with
	}
	return example(t, "dynamic.yaml", replace)
}

func TestFileExampleLimitsEachRouteByItself(t *testing.T) {
	store := lab.Valkey(t, lab.StoreOptions{})
	app := lab.NewApp(t, 2)
	gateway := lab.NewTraefik(t, lab.TraefikOptions{}, dynamicExample(t, store, app, nil))
	for _, router := range []string{"login", "api", "public", "everything-else"} {
		if problem := gateway.RouterError(router + "@file"); problem != "" {
			t.Errorf("the router %s: %s", router, problem)
		}
	}

	const (
		login  = `"login-quota@file";q=5;w=60`
		api    = `"api-quota@file";q=1000;w=3600`
		public = `"public-quota@file";q=6000;w=60`
		site   = `"site";q=600;w=60`
	)
	wantAnswer(t, "login", get(t, gateway.URL, "/login", nil), answer{status: 200, policy: login, way: "shared"})
	wantAnswer(t, "api", get(t, gateway.URL, "/api/orders", nil), answer{status: 200, policy: api, way: "shared"})
	wantAnswer(t, "public", get(t, gateway.URL, "/public/logo", nil), answer{status: 200, policy: public})
	wantAnswer(t, "another spelling of login", get(t, gateway.URL, "/login/", nil), answer{status: 200, policy: site, way: "shared"})

	store.Kill()
	lab.Until(t, "the login is closed", func() bool { return get(t, gateway.URL, "/login", nil).status == 503 })
	closed := get(t, gateway.URL, "/login", nil)
	if wait, err := strconv.Atoi(closed.wait); err != nil || wait < 1 || wait > 5 {
		t.Errorf("login without the store: Retry-After is %q", closed.wait)
	}
	closed.wait = ""
	wantAnswer(t, "login without the store", closed, answer{status: 503, policy: closed.policy, way: "closed"})
	wantAnswer(t, "api without the store", get(t, gateway.URL, "/api/orders", nil), answer{status: 200, policy: api, way: "local"})
	public200 := get(t, gateway.URL, "/public/logo", nil)
	wantAnswer(t, "public without the store", public200, answer{status: 200, policy: public200.policy})
}

// What the comment on the last router of the example promises.
func TestFileExampleKeepsALimiterWhenOneIsRefused(t *testing.T) {
	store := lab.Valkey(t, lab.StoreOptions{})
	app := lab.NewApp(t, 2)
	gateway := lab.NewTraefik(t, lab.TraefikOptions{},
		dynamicExample(t, store, app, map[string]string{"limit: 1000\n": "limit: -1000\n"}))
	if problem := gateway.RouterError("api@file"); !strings.Contains(problem, "limit") {
		t.Errorf("the router api should have been refused for its limit: %q", problem)
	}
	wantAnswer(t, "api", get(t, gateway.URL, "/api/orders", nil), answer{status: 200, policy: `"site";q=600;w=60`, way: "shared"})
}

func TestStaticExampleStartsTraefik(t *testing.T) {
	store := lab.Valkey(t, lab.StoreOptions{})
	app := lab.NewApp(t, 2)
	port := strconv.Itoa(lab.FreePort(t))
	dir := t.TempDir()
	link := filepath.Join(dir, "plugins-local", "src", filepath.FromSlash(lab.PluginModule))
	if err := errors.Join(
		os.MkdirAll(filepath.Dir(link), 0o755),
		os.Symlink(lab.Root(), link),
		os.WriteFile(filepath.Join(dir, "traefik.yaml"), []byte(example(t, "traefik.yaml", map[string]string{`":8080"`: `"127.0.0.1:` + port + `"`})), 0o600),
		os.WriteFile(filepath.Join(dir, "dynamic.yaml"), []byte(dynamicExample(t, store, app, nil)), 0o600),
	); err != nil {
		t.Fatal(err)
	}

	log := new(output)
	cmd := exec.Command(lab.TraefikBinary(t), "--configFile=traefik.yaml")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Traefik's log:\n%s", log.tail(40))
		}
	})
	url := "http://127.0.0.1:" + port
	lab.Until(t, "the routes are there", func() bool {
		response, err := http.Get(url + "/api/orders")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	wantAnswer(t, "login", get(t, url, "/login", nil), answer{status: 200, policy: `"login-quota@file";q=5;w=60`, way: "shared"})
}

func TestKubernetesExampleCountsWithThePasswordOfItsSecret(t *testing.T) {
	store := lab.Valkey(t, lab.StoreOptions{Password: "change-me"})
	app := lab.NewApp(t, 1)
	cluster := startCluster(t,
		example(t, "kubernetes.yaml", map[string]string{"valkey.shop.svc:6379": store.Addr()})+"\n---\n"+serviceOf(t, app))
	gateway := lab.NewTraefik(t, lab.TraefikOptions{Args: []string{"--providers.kubernetescrd.endpoint=" + cluster}}, "")

	host := http.Header{"Host": {"shop.example.com"}}
	lab.Until(t, "the routes are there", func() bool { return get(t, gateway.URL, "/", host).status == 200 })
	host["X-Api-Key"] = []string{"alice"}
	wantAnswer(t, "api", get(t, gateway.URL, "/api/orders", host),
		answer{status: 200, policy: `"shop-api";q=1000;w=3600`, way: "shared"})
	wantAnswer(t, "site", get(t, gateway.URL, "/", host),
		answer{status: 200, policy: `"shop-site-quota@kubernetescrd";q=600;w=60`, way: "shared"})

	// What the example says of the API: the secret is no secret there.
	if shown := gateway.Get("/api/http/middlewares/shop-api-quota@kubernetescrd"); !strings.Contains(shown, "change-me") {
		t.Errorf("the API hides the password, which the example denies: %s", shown)
	}
}

// serviceOf describes the application as Kubernetes would.
func serviceOf(t *testing.T, app *lab.App) string {
	t.Helper()
	host, port, err := net.SplitHostPort(strings.TrimPrefix(app.URLs[0], "http://"))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: app, namespace: shop}
spec: {ports: [{name: http, port: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: app-1, namespace: shop, labels: {kubernetes.io/service-name: app}}
addressType: IPv4
endpoints: [{addresses: [%s], conditions: {ready: true}}]
ports: [{name: http, port: %s}]
`, host, port)
}

// startCluster imitates the API of a Kubernetes cluster that holds the given
// resources and never changes, and returns its address. It answers lists and
// watches, which is all that Traefik asks for.
func startCluster(t *testing.T, manifests string) string {
	t.Helper()
	type object = map[string]any
	byPlural := map[string][]object{}
	documents := yaml.NewDecoder(strings.NewReader(manifests))
	for number := 1; ; number++ {
		var resource object
		if err := documents.Decode(&resource); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if secrets, ok := resource["stringData"].(object); ok {
			// The API server keeps what was written in clear under data, encoded.
			data := object{}
			for key, value := range secrets {
				data[key] = base64.StdEncoding.EncodeToString([]byte(fmt.Sprint(value)))
			}
			delete(resource, "stringData")
			resource["data"] = data
		}
		metadata := resource["metadata"].(object)
		metadata["uid"], metadata["resourceVersion"] = strconv.Itoa(number), "1"
		plural := strings.ToLower(resource["kind"].(string)) + "s"
		byPlural[plural] = append(byPlural[plural], resource)
	}

	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		resources := byPlural[filepath.Base(r.URL.Path)]
		encoder := json.NewEncoder(w)
		if r.FormValue("watch") == "" {
			_ = encoder.Encode(object{"metadata": object{"resourceVersion": "1"}, "items": append([]object{}, resources...)})
			return
		}
		if r.FormValue("sendInitialEvents") != "" {
			// Traefik's client then lists instead.
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = encoder.Encode(object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": http.StatusUnprocessableEntity})
			return
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() {
		close(over)
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}
