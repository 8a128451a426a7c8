// Package faults_test shows what two real gateways make of a real store that
// fails. docs/failures.md holds what it found; see TestFaults.
package faults_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/lab"
)

// options are a middleware's options as a user writes them.
type options map[string]any

// plan says what a site is made of. The zero value has no middleware.
type plan struct {
	store   lab.StoreOptions
	timeout time.Duration      // valkey.timeout
	login   options            // more options of the store, such as a password
	routes  map[string]options // the middleware on each path, without its window, source and store
}

// gateways is how many gateways a site has.
const gateways = 2

// site is two gateways in front of one application. Each reaches their store
// through a proxy of its own. All windows of a site are one long window, whose
// edges are far away.
type site struct {
	t       testing.TB
	plan    plan
	store   *lab.Store
	replica *lab.Store // where there is one
	feed    *lab.Proxy // through which it hears of the counts, where that can be spoilt
	app     *lab.App
	client  *lab.Client
	links   []*lab.Proxy
	doors   []*lab.Traefik
	window  time.Duration
	id      int64 // of the window
	fresh   int   // clients that newcomer has made up
}

func newSite(t testing.TB, p plan) *site {
	t.Helper()
	s := &site{t: t, plan: p, store: lab.Valkey(t, p.store), app: lab.NewApp(t, 1), client: lab.NewClient(t)}
	s.window, s.id = lab.QuietWindow(time.Now())
	for g := range gateways {
		s.links = append(s.links, lab.NewProxy(t, s.store.Addr()))
		s.doors = append(s.doors, lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, s.dynamic(g, p.login)))
	}
	return s
}

// middleware returns all options of a route's middleware on a gateway.
func (s *site) middleware(g int, route string, login options) options {
	valkey := options{"endpoints": []string{s.links[g].Addr()}, "timeout": s.plan.timeout.String(), "dialTimeout": "2s"}
	maps.Copy(valkey, login)
	o := options{
		"window":          s.window.String(),
		"sourceCriterion": options{"requestHeaderName": "X-API-Key"},
		"decisionHeader":  "X-RateLimit-Decision",
		"valkey":          valkey,
	}
	maps.Copy(o, s.plan.routes[route])
	return o
}

// dynamic returns the configuration of a gateway: a router for each route, and
// one without a limit at /free.
func (s *site) dynamic(g int, login options) string {
	middlewares, routers := options{}, options{"free": options{"rule": "Path(`/free`)", "service": "app"}}
	for route := range s.plan.routes {
		middlewares[route] = options{"plugin": options{lab.PluginName: s.middleware(g, route, login)}}
		routers[route] = options{"rule": "Path(`/" + route + "`)", "service": "app", "middlewares": []string{route}}
	}
	app := options{"loadBalancer": options{"servers": []options{{"url": s.app.URLs[0]}}}}
	text, err := yaml.Marshal(options{"http": options{"middlewares": middlewares, "routers": routers, "services": options{"app": app}}})
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// reload changes how the gateways log in.
func (s *site) reload(login options) {
	s.t.Helper()
	for g, door := range s.doors {
		door.Reload(s.dynamic(g, login))
	}
}

// cut resets the gateways' connections to the store.
func (s *site) cut() {
	for _, link := range s.links {
		link.Cut()
	}
}

// spoil sets the faults of both gateways' connections.
func (s *site) spoil(f lab.Faults) {
	for _, link := range s.links {
		link.Set(f)
	}
}

// request returns a request of a client for a route of a gateway.
func (s *site) request(g int, route, key string) lab.Request {
	return lab.Keyed(s.doors[g].URL+"/"+route, key)
}

// ask sends n requests of a client one after the other, by turns through the given
// gateways.
func (s *site) ask(n int, route, key string, through ...int) lab.Answers {
	requests := make([]lab.Request, n)
	for i := range requests {
		requests[i] = s.request(through[i%len(through)], route, key)
	}
	return s.client.Sequence(requests)
}

// newcomer sends the only request of a new client, whose answer tells whether the
// gateway asks the store.
func (s *site) newcomer(g int, route string) lab.Answer {
	s.fresh++
	return s.client.Get(s.request(g, route, fmt.Sprintf("newcomer-%d", s.fresh)))
}

// await sends newcomers until both gateways decide them by one way.
func (s *site) await(route, way string) {
	s.t.Helper()
	for g := range s.doors {
		lab.Until(s.t, fmt.Sprintf("gateway %d decides %s", g+1, way), func() bool {
			return decision(s.newcomer(g, route)) == way
		})
	}
}

// count returns what the store has counted of a client.
func (s *site) count(store *lab.Store, route, key string) int {
	digest := sha256.Sum256([]byte(key))
	name := fmt.Sprintf("rate:%s@file:{%s}:%d", route, hex.EncodeToString(digest[:]), s.id)
	n, err := store.Client().Get(context.Background(), name).Int()
	if err != nil {
		return 0
	}
	return n
}

// lines returns what the plugin of a gateway logged about its store after a mark.
func (s *site) lines(g, mark int) []string { return s.doors[g].LogSince(mark, "gatequota: store") }

// calm fails the test when a gateway has panicked.
func (s *site) calm() {
	s.t.Helper()
	for g, door := range s.doors {
		if lines := door.LogLines("panic"); len(lines) > 0 || !door.Running() {
			s.t.Errorf("gateway %d panicked:\n%s", g+1, strings.Join(lines, "\n"))
		}
	}
}

// decision returns by which way an answer was decided.
func decision(a lab.Answer) string { return a.Header.Get("X-RateLimit-Decision") }

// mustBe fails the test unless all answers were decided one way and have one of
// the statuses.
func mustBe(t testing.TB, what string, as lab.Answers, way string, statuses ...int) {
	t.Helper()
	if a, wrong := as.Wrong(statuses...); wrong {
		t.Fatalf("%s: status %d (%v), want one of %v; all: %s", what, a.Status, a.Err, statuses, as.Tally())
	}
	if want := fmt.Sprintf("%s: %d", way, len(as)); as.Decisions() != want {
		t.Fatalf("%s: decisions %q, want %q", what, as.Decisions(), want)
	}
}

// allowed returns how many answers let their request pass.
func allowed(as lab.Answers) int { return as.Count(http.StatusOK) }
