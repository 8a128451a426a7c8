package orders_test

import (
	"bufio"
	"crypto/sha1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

const (
	limit  = 5
	origin = "https://shop.example"
)

// backend is the application of all trials. The first segment of a path is the
// trial's, by which requests are counted; the second says what the answer is:
//
//	ok    200          big   200 with 4096 bytes that compress well
//	fail  500          hold  200, when release is called
type backend struct {
	*httptest.Server

	mu   sync.Mutex
	hits map[string]int
	held chan struct{}
}

func newBackend(t *testing.T) *backend {
	t.Helper()
	b := &backend{hits: map[string]int{}, held: make(chan struct{})}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		trial, what, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		b.mu.Lock()
		b.hits[trial]++
		b.mu.Unlock()
		w.Header().Set("Content-Type", "text/plain")
		switch what {
		case "fail":
			w.WriteHeader(http.StatusInternalServerError)
		case "big":
			_, _ = io.WriteString(w, strings.Repeat("lorem ip", 512))
		case "hold":
			select {
			case <-b.held:
			case <-r.Context().Done():
			}
		default:
			_, _ = io.WriteString(w, "ok "+r.Header.Get("X-User"))
		}
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *backend) hitsOf(trial string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hits[trial]
}

// release lets the request go on that waits at hold.
func (b *backend) release() { b.held <- struct{}{} }

// newPages starts the service of error pages: "/page/429" is answered by "page 429".
func newPages(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Page", "yes")
		_, _ = io.WriteString(w, "page "+r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:])
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// newAuthority starts the service that forwardAuth asks: whoever bears a token is the
// user of that name.
func newAuthority(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, bears := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !bears {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("X-User", user)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// step is some requests alike, one after the other, and what they get.
type step struct {
	n      int // 1 unless given
	method string
	path   string            // within the trial; ok unless given
	header map[string]string // besides the API key, which it may replace
	each   string            // a field that has another value in each request

	want   string            // how many answers have which status, such as "200: 5, 429: 15"
	fields map[string]string // of the last answer: a value, ~ and a part of it, some or none
	body   string            // of the last answer, where given
}

const (
	some = "*"
	none = ""
)

// trial is one order of middlewares, what is asked, and what comes of it.
type trial struct {
	name    string
	chain   []string // the first one is outermost; "quota" is ours
	quota   lab.Map  // more options
	service string   // app unless given
	hold    bool     // one request is on its way at the application all the time
	steps   []step

	hits    int // requests that reached the application
	counted int // what the store says
	retries int // attempts of Traefik's after the first one
}

// site is one gateway with a route for each trial.
type site struct {
	tr    *lab.Traefik
	app   *backend
	store *lab.Store
	http  *http.Client
}

// name returns the first segment of a trial's paths, which is its scope too.
func name(i int) string { return "t" + strconv.Itoa(i) }

func newSite(t *testing.T, trials []trial) *site {
	t.Helper()
	s := &site{app: newBackend(t), store: lab.Valkey(t, lab.StoreOptions{})}
	transport := &http.Transport{MaxIdleConnsPerHost: 16, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	s.http = &http.Client{Transport: transport, Timeout: 20 * time.Second}

	window, _ := lab.QuietWindow(time.Now())
	nobody := fmt.Sprintf("127.0.0.1:%d", lab.FreePort(t))
	pages, authority := newPages(t), newAuthority(t)
	digest := sha1.Sum([]byte("secret")) // the only form of basicAuth's that the standard library can make
	middlewares := map[string]lab.Map{
		"cors": {"headers": lab.Map{
			"accessControlAllowOriginList": []string{origin}, "accessControlAllowMethods": []string{"GET"},
			"accessControlExposeHeaders": []string{"RateLimit", "RateLimit-Policy", "Retry-After"}, "addVaryHeader": true,
		}},
		"cors-only": {"headers": lab.Map{"accessControlAllowOriginList": []string{origin}, "accessControlAllowMethods": []string{"GET"}}},
		"guard": lab.Quota(lab.Map{
			"limit": 8, "window": window.String(), "mode": "local", "sourceCriterion": lab.Map{"requestHeaderName": "X-API-Key"},
		}),
		"errors":          {"errors": lab.Map{"status": []string{"400-599"}, "service": "pages", "query": "/page/{status}"}},
		"retry":           {"retry": lab.Map{"attempts": 3}},
		"retry-statuses":  {"retry": lab.Map{"attempts": 3, "status": []string{"429", "500-599"}}},
		"breaker":         {"circuitBreaker": breaker("ResponseCodeRatio(400, 600, 0, 600) > 0.5")},
		"breaker-5xx":     {"circuitBreaker": breaker("ResponseCodeRatio(500, 600, 0, 600) > 0.5")},
		"breaker-network": {"circuitBreaker": breaker("NetworkErrorRatio() > 0.5")},
		"compress":        {"compress": lab.Map{}},
		"compress-all":    {"compress": lab.Map{"minResponseBodyBytes": 1}},
		"inflight":        {"inFlightReq": lab.Map{"amount": 1, "sourceCriterion": lab.Map{"requestHeaderName": "X-API-Key"}}},
		"basic":           {"basicAuth": lab.Map{"users": []string{"user:{SHA}" + base64.StdEncoding.EncodeToString(digest[:])}}},
		"forward":         {"forwardAuth": lab.Map{"address": authority, "authResponseHeaders": []string{"X-User"}}},
	}
	routes := lab.Routes{
		Routers: map[string]lab.Route{}, Middlewares: middlewares,
		Services: map[string]string{"app": s.app.URL, "pages": pages, "gone": "http://" + nobody},
	}
	for i, tt := range trials {
		options := lab.Map{
			"limit": limit, "window": window.String(), "scope": name(i),
			"sourceCriterion": lab.Map{"requestHeaderName": "X-API-Key"},
			"valkey":          lab.Map{"endpoints": []string{s.store.Addr()}, "timeout": "5s", "dialTimeout": "5s"},
		}
		maps.Copy(options, tt.quota)
		if options["onStoreFailure"] == "closed" {
			options["valkey"] = lab.Map{"endpoints": []string{nobody}}
		}
		middlewares["quota-"+name(i)] = lab.Quota(options)
		route := lab.Route{Rule: "PathPrefix(`/" + name(i) + "/`)", Service: tt.service}
		if route.Service == "" {
			route.Service = "app"
		}
		for _, m := range tt.chain {
			switch m {
			case "quota":
				m += "-" + name(i)
			case "errors-limited":
				// The page is asked for at the gateway, where it costs this trial's clients
				// as every request of theirs does.
				middlewares[m+"-"+name(i)] = lab.Map{"errors": lab.Map{"status": []string{"400-599"}, "service": "gateway", "query": "/limited/" + name(i) + "/{status}"}}
				routes.Routers["pages-"+name(i)] = lab.Route{Rule: "PathPrefix(`/limited/" + name(i) + "/`)", Middlewares: []string{"quota-" + name(i)}, Service: "pages"}
				m += "-" + name(i)
			}
			route.Middlewares = append(route.Middlewares, m)
		}
		routes.Routers[name(i)] = route
	}
	// Where the gateway listens is known only when it does.
	routes.Services["gateway"] = s.app.URL
	s.tr = lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "DEBUG", Args: []string{"--accesslog=true", "--accesslog.format=json"}}, routes.YAML(t))
	routes.Services["gateway"] = s.tr.URL
	s.tr.Reload(routes.YAML(t))
	for i, tt := range trials {
		if wrong := s.tr.RouterError(name(i) + "@file"); wrong != "" {
			t.Fatalf("%s: %s", tt.name, wrong)
		}
	}
	return s
}

// breaker returns a circuit breaker that looks after each request and, once open,
// stays so for as long as the test runs.
func breaker(expression string) lab.Map {
	return lab.Map{"expression": expression, "checkPeriod": "1ms", "fallbackDuration": "10m"}
}

// ask sends one request of a step. Without an answer the test fails and the status is 0.
func (s *site) ask(t *testing.T, trial string, st step, n int) lab.Answer {
	t.Helper()
	method, path := st.method, st.path
	if method == "" {
		method = http.MethodGet
	}
	if path == "" {
		path = "ok"
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.tr.URL+"/"+trial+"/"+path, nil)
	if err != nil {
		t.Error(err)
		return lab.Answer{Err: err}
	}
	req.Header.Set("X-API-Key", "key")
	for field, value := range st.header {
		req.Header.Set(field, value)
	}
	if st.each != "" {
		req.Header.Set(st.each, strconv.Itoa(n))
	}
	resp, err := s.http.Do(req)
	if err != nil {
		t.Error(err)
		return lab.Answer{Err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
		return lab.Answer{Err: err}
	}
	return lab.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body), At: time.Now()}
}

// take makes the requests of a step and checks what they get.
func (s *site) take(t *testing.T, trial string, st step) lab.Answers {
	t.Helper()
	answers := make(lab.Answers, max(1, st.n))
	for i := range answers {
		answers[i] = s.ask(t, trial, st, i)
	}
	last := answers[len(answers)-1]
	if got := answers.Tally(); st.want != "" && got != st.want {
		t.Errorf("%s %s: %s, want %s", st.method, st.path, got, st.want)
	}
	for field, want := range st.fields {
		got := last.Header.Get(field)
		right := got == want
		if part, is := strings.CutPrefix(want, "~"); is {
			right = strings.Contains(got, part)
		} else if want == some {
			right = got != ""
		}
		if !right {
			t.Errorf("%s %s, the last answer: %s is %q, want %q; %v", st.method, st.path, field, got, want, last.Header)
		}
	}
	if st.body != "" && last.Body != st.body {
		t.Errorf("%s %s, the last answer is %q, want %q", st.method, st.path, last.Body, st.body)
	}
	return answers
}

// retries returns how many attempts after the first one the gateway has made of a
// trial's requests. Its access log does not know.
func (s *site) retries(trial string) int {
	n := 0
	for _, line := range s.tr.LogLines("New attempt") {
		if strings.Contains(line, "/"+trial+"/") {
			n++
		}
	}
	return n
}

// entry is one line of Traefik's access log.
type entry map[string]interface{}

// number returns a field that is a number, and 0 where it is none.
func (e entry) number(field string) int {
	n, _ := e[field].(float64)
	return int(n)
}

// logged returns what the access log says of requests below a path.
func logged(tr *lab.Traefik, prefix string) []entry {
	var entries []entry
	lines := bufio.NewScanner(strings.NewReader(tr.Log()))
	for lines.Scan() {
		var e entry
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		if path, _ := e["RequestPath"].(string); strings.HasPrefix(path, prefix) {
			entries = append(entries, e)
		}
	}
	return entries
}
