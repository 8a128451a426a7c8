// Package operations_test tries on real gateways and real stores what docs/operations.md
// tells an operator, as far as no other package does.
package operations_test

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

const (
	limit = 100 // unless a test says otherwise
	scope = "apikey"
)

// options are a middleware's options as a user writes them.
type options = lab.Map

// site is some gateways in front of one application, and the store that they share. All
// its windows are one long window, whose edges are far away.
type site struct {
	t      testing.TB
	store  *lab.Store
	app    *lab.App
	client *lab.Client
	doors  []*lab.Traefik
	window time.Duration
	id     int64 // of the window
	fresh  int   // clients that newcomer has made up
}

// newSite starts a store and no gateway yet.
func newSite(t testing.TB, o lab.StoreOptions) *site {
	t.Helper()
	s := &site{t: t, store: lab.Valkey(t, o), app: lab.NewApp(t, 1), client: lab.NewClient(t)}
	s.window, s.id = lab.QuietWindow(time.Now())
	return s
}

// quota returns a middleware's options: the usual ones, and those given in their place. A
// nil leaves one out.
func (s *site) quota(own options) options {
	o := options{
		"limit": limit, "window": s.window.String(), "scope": scope,
		"sourceCriterion": options{"requestHeaderName": "X-API-Key"},
		"decisionHeader":  "X-RateLimit-Decision",
		"valkey":          options{"endpoints": []string{s.store.Addr()}, "timeout": "2s", "dialTimeout": "2s"},
	}
	for name, value := range own {
		group, isGroup := value.(options)
		switch {
		case name == "valkey" && isGroup:
			maps.Copy(o["valkey"].(options), group)
		case value == nil:
			delete(o, name)
		default:
			o[name] = value
		}
	}
	return o
}

// dynamic returns a configuration with a router for each of these middlewares, at a path
// of its name.
func (s *site) dynamic(middlewares map[string]options) string {
	s.t.Helper()
	all, routers := options{}, options{}
	for name, o := range middlewares {
		all[name] = lab.Quota(s.quota(o))
		routers[name] = options{"rule": "Path(`/" + name + "`)", "service": "app", "middlewares": []string{name}}
	}
	text, err := yaml.Marshal(options{"http": options{"middlewares": all, "routers": routers,
		"services": options{"app": options{"loadBalancer": options{"servers": []options{{"url": s.app.URLs[0]}}}}}}})
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// one is a configuration with one middleware, at /quota.
func (s *site) one(own options) string { return s.dynamic(map[string]options{"quota": own}) }

// start starts a gateway.
func (s *site) start(dynamic string, o lab.TraefikOptions) *lab.Traefik {
	s.t.Helper()
	o.LogLevel = "ERROR"
	return lab.NewTraefik(s.t, o, dynamic)
}

// open starts one more gateway.
func (s *site) open(dynamic string, o lab.TraefikOptions) *lab.Traefik {
	s.t.Helper()
	door := s.start(dynamic, o)
	s.doors = append(s.doors, door)
	return door
}

// openAlike starts n gateways with one middleware.
func (s *site) openAlike(n int, own options) {
	s.t.Helper()
	for range n {
		s.open(s.one(own), lab.TraefikOptions{})
	}
}

// ask sends n requests of a client one after the other, by turns through these gateways,
// or through all.
func (s *site) ask(n int, key string, through ...int) lab.Answers {
	s.t.Helper()
	return s.askAt("/quota", n, key, through...)
}

func (s *site) askAt(path string, n int, key string, through ...int) lab.Answers {
	s.t.Helper()
	var urls []string
	for _, g := range through {
		urls = append(urls, s.doors[g].URL+path)
	}
	for g := 0; len(through) == 0 && g < len(s.doors); g++ {
		urls = append(urls, s.doors[g].URL+path)
	}
	answers := s.client.Sequence(lab.Alternate(n, key, urls...))
	if a, wrong := answers.Wrong(http.StatusOK, http.StatusTooManyRequests, http.StatusServiceUnavailable); wrong {
		s.t.Fatalf("%s: status %d (%v)", path, a.Status, a.Err)
	}
	return answers
}

// await sends newcomers until all gateways decide them by one way.
func (s *site) await(way string) {
	s.t.Helper()
	for g := range s.doors {
		lab.Until(s.t, fmt.Sprintf("gateway %d decides %s", g+1, way), func() bool {
			s.fresh++
			return decision(s.ask(1, fmt.Sprintf("newcomer-%d", s.fresh), g)[0]) == way
		})
	}
}

// acquaint has the gateways begin their work and waits until each knows of the others. By
// then they have told the store all that they knew before.
func (s *site) acquaint() {
	s.t.Helper()
	s.await("shared")
	const set = "rate:" + scope + ":gateways"
	first := map[any]float64{}
	lab.Until(s.t, "the gateways know of each other", func() bool {
		again := 0
		for _, each := range s.store.Client().ZRangeWithScores(context.Background(), set, 0, -1).Val() {
			if _, seen := first[each.Member]; !seen {
				first[each.Member] = each.Score
			}
			if each.Score > first[each.Member] {
				again++
			}
		}
		return again == len(s.doors)
	})
}

// count returns what the store has counted of a client.
func (s *site) count(key string) int {
	n, err := s.store.Client().Get(context.Background(), s.key(key)).Int()
	if err != nil {
		return 0
	}
	return n
}

// key returns the name under which the store counts a client.
func (s *site) key(key string) string {
	return fmt.Sprintf("rate:%s:{%s}:%d", scope, hash(key), s.id)
}

// control is the hash of what an operator has set.
const control = "rate:" + scope + ":control"

// set sets fields of the control, as a change of a version.
func (s *site) set(version int, fields ...any) {
	s.t.Helper()
	s.store.Do(append([]any{"HSET", control, "version", version}, fields...)...)
}

// fields returns the control.
func (s *site) fields() map[string]string {
	return s.store.Client().HGetAll(context.Background(), control).Val()
}

// obeyed waits until so many gateways report that they obey a version.
func (s *site) obeyed(version, gateways int) {
	s.t.Helper()
	lab.Until(s.t, fmt.Sprintf("%d gateways obey version %d", gateways, version), func() bool {
		n := 0
		for _, report := range s.store.Client().HVals(context.Background(), "rate:"+scope+":reports").Val() {
			if strings.Contains(report, fmt.Sprintf(`{"version":%d,`, version)) {
				n++
			}
		}
		return n == gateways
	})
}

// lines returns what the plugin of a gateway logged but for its settings.
func lines(door *lab.Traefik) []string {
	var all []string
	for _, line := range door.LogLines("gatequota: ") {
		if !strings.HasPrefix(line, "gatequota: middleware") {
			all = append(all, line)
		}
	}
	return all
}

// silent fails the test if a gateway logged anything but its settings.
func (s *site) silent() {
	s.t.Helper()
	for g, door := range s.doors {
		if said := lines(door); len(said) > 0 {
			s.t.Errorf("gateway %d logged:\n%s", g+1, strings.Join(said, "\n"))
		}
	}
}

// hash returns the digest under which the client with an API key is counted.
func hash(key string) string {
	digest := sha256.Sum256([]byte(key))
	return hex.EncodeToString(digest[:])
}

// decision returns by which way an answer was decided.
func decision(a lab.Answer) string { return a.Header.Get("X-RateLimit-Decision") }

// mustAllow fails the test unless so many of the answers let their request pass, and all
// were decided in one way.
func mustAllow(t testing.TB, what string, as lab.Answers, passed int, way string) {
	t.Helper()
	if got := as.Count(http.StatusOK); got != passed {
		t.Errorf("%s: %d of %d requests passed, want %d (%s)", what, got, len(as), passed, as.Tally())
	}
	if want := fmt.Sprintf("%s: %d", way, len(as)); as.Decisions() != want {
		t.Errorf("%s: decided %q, want %q", what, as.Decisions(), want)
	}
}
