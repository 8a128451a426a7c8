package recipes_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/lab"
)

// site is one gateway with all recipes of the page, and what they need around them.
type site struct {
	tr      *lab.Traefik
	store   *lab.Store
	app     *lab.App
	clients map[string]*http.Client // by the address that they send from
}

const (
	balancers = "127.0.1.0/24" // stands for the network of the page's load balancers
	balancer  = "127.0.1.1"
	direct    = "127.0.0.9" // of a client without a load balancer
)

// newSite starts a gateway with the page, and what it says besides.
func newSite(t *testing.T, p page) *site {
	t.Helper()
	s := &site{store: lab.Valkey(t, lab.StoreOptions{}), app: lab.NewApp(t, 1), clients: map[string]*http.Client{}}
	replace := strings.NewReplacer(
		"valkey:6379", s.store.Addr(),
		"http://app:8080", s.app.URLs[0],
		"http://auth:8080", serve(t, authenticate),
		"http://cost:8080", serve(t, estimate),
		"10.0.0.0/8", balancers,
	)
	tree := p.dynamic(t, replace)
	routers, middlewares := at(tree, "http", "routers"), at(tree, "http", "middlewares")
	route := func(host string, through ...string) {
		routers[host] = lab.Map{"rule": "Host(`" + host + ".example.com`)", "middlewares": through, "service": "app"}
	}
	for name, middleware := range besides(s.store.Addr()) {
		middlewares[name] = middleware
		route(name, name)
	}
	route("exposed", "exposed", "spa-quota")
	route("bucket-two", "bucket")
	middlewares["every-option"] = everyOption(t, p) // which no router uses
	for _, m := range middlewares {
		// A busy machine is not what the recipes are about.
		if store := at(m.(lab.Map), "plugin", lab.PluginName, "valkey"); len(store) > 0 {
			store["timeout"], store["dialTimeout"] = "5s", "5s"
		}
	}
	text, err := yaml.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	s.tr = lab.NewTraefik(t, lab.TraefikOptions{Args: p.static(t, replace)}, string(text))
	for name := range routers {
		if wrong := s.tr.RouterError(name + "@file"); wrong != "" {
			t.Errorf("the router %s: %s", name, wrong)
		}
	}
	for _, line := range s.tr.LogLines(" ERR ") {
		if !strings.Contains(line, "dashboard") { // which is not built here
			t.Errorf("the gateway's log: %s", line)
		}
	}
	return s
}

func serve(t *testing.T, handle http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	return server.URL
}

// authenticate is the service that knows whose a key is, and verifies tokens. A key such
// as gold-anna-1 is of the plan gold and the customer anna; one whose plan is none has
// none. A token is right if it was signed by "right".
func authenticate(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/key":
		parts := strings.Split(r.Header.Get("X-API-Key"), "-")
		if len(parts) == 3 {
			w.Header().Set("X-Customer", parts[1])
			if parts[0] != "none" {
				w.Header().Set("X-Plan", parts[0])
			}
			return
		}
	case "/token":
		if strings.HasSuffix(r.Header.Get("Authorization"), "."+encode("right")) {
			return
		}
	}
	w.WriteHeader(http.StatusUnauthorized)
}

// estimate is the service that understands queries: they say themselves what they cost.
func estimate(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if len(body) > 0 {
		w.Header().Set("X-Query-Cost", string(body))
	}
}

func encode(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// bearer returns a token with these claims, signed by somebody.
func bearer(claims, by string) string {
	return "Bearer " + encode(`{"alg":"none"}`) + "." + encode(claims) + "." + encode(by)
}

// step is some requests alike, one after the other, and what they get.
type step struct {
	host   string // the script's unless given
	n      int    // 1 unless given
	method string
	target string            // / unless given; %d stands for the number of the request
	from   string            // the client's address as the load balancer tells it; %d as above; the peer's own if empty
	header map[string]string // %d as above
	body   string

	refusal int // 429 unless given

	want   string            // how many answers have which status, such as "200: 5, 429: 15"
	fields map[string]string // of the last answer: a value, ~ and a part of it, some or none
	hits   string            // how many reached the application, where given
}

const (
	some = "*"
	none = ""
)

// play makes the requests of a step at a host and checks what they get.
func (s *site) play(t *testing.T, host string, st step) {
	t.Helper()
	if st.host != "" {
		host = st.host
	}
	before := s.app.Hits()
	answers := make(lab.Answers, max(1, st.n))
	for i := range answers {
		answers[i] = s.ask(t, host, st, i)
	}
	what := fmt.Sprintf("%s %s %s %s %v", st.method, host, st.target, st.from, st.header)
	if got := answers.Tally(); got != st.want {
		t.Errorf("%s: %s, want %s", what, got, st.want)
	}
	if hits := fmt.Sprint(s.app.Hits() - before); st.hits != "" && hits != st.hits {
		t.Errorf("%s: %s requests reached the application, want %s", what, hits, st.hits)
	}
	last := answers[len(answers)-1]
	for field, want := range st.fields {
		got := strings.Join(last.Header.Values(field), ", ")
		right := got == want
		if part, is := strings.CutPrefix(want, "~"); is {
			right = strings.Contains(got, part)
		} else if want == some {
			right = got != ""
		}
		if !right {
			t.Errorf("%s, the last answer: %s is %q, want %q; %v", what, field, got, want, last.Header)
		}
	}
}

// ask sends the n-th request of a step.
func (s *site) ask(t *testing.T, host string, st step, n int) lab.Answer {
	t.Helper()
	numbered := func(text string) string { return strings.ReplaceAll(text, "%d", fmt.Sprint(n+1)) }
	method, target, peer := st.method, numbered(st.target), direct
	if method == "" {
		method = http.MethodGet
	}
	if target == "" {
		target = "/"
	}
	if st.from != "" {
		peer = balancer
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.tr.URL+target, strings.NewReader(st.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	if st.from != "" {
		req.Header.Set("X-Forwarded-For", numbered(st.from))
	}
	for field, value := range st.header {
		req.Header.Set(field, numbered(value))
	}
	resp, err := s.client(t, peer).Do(req)
	if err != nil {
		t.Error(err)
		return lab.Answer{Err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return lab.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body), At: time.Now(), Err: err}
}

// client returns one that sends from an address of this machine.
func (s *site) client(t *testing.T, address string) *http.Client {
	t.Helper()
	if s.clients[address] == nil {
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
		transport := &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, network, to string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, to)
		}}
		t.Cleanup(transport.CloseIdleConnections)
		s.clients[address] = &http.Client{Transport: transport, Timeout: 20 * time.Second}
	}
	return s.clients[address]
}
