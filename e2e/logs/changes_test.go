package logs_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// An outage is one line at its beginning and one at its end, whatever the load; of a store
// that comes and goes not each is told.
func TestOneLineForEachChange(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.TraefikOptions{}, lab.Map{"log": "json"})
	load := s.client.Steady(t, 4, 20*time.Millisecond, func(n int) lab.Request { return lab.Keyed(s.tr.URL, fmt.Sprintf("client-%d", n)) })
	begun := time.Now()
	s.outage(4 * time.Second)
	events := objects(t, own(s.tr.Log()))
	if len(events["store-away"]) != 1 || len(events["store-back"]) != 1 {
		t.Errorf("one outage: %v", events)
	}
	seconds, _ := events["store-back"][0]["seconds"].(float64)
	requests, _ := events["store-back"][0]["requests"].(float64)
	if seconds < 4 || seconds > time.Since(begun).Seconds() || requests < 20 {
		t.Errorf("an outage of four seconds and more, with some 200 requests a second: %v", events["store-back"])
	}
	for range 3 {
		s.outage(0)
	}
	events = objects(t, own(s.tr.Log()))
	// Besides the first, one a minute.
	most := 2 + int(time.Since(begun)/time.Minute)
	if away, back := len(events["store-away"]), len(events["store-back"]); away < 2 || away > most || back > most {
		t.Errorf("four outages, three of them soon after another: %d and %d lines in %s, want up to %d", away, back, time.Since(begun), most)
	}
	if trouble := len(events["store-trouble"]); trouble > 1+4 {
		t.Errorf("%d troubles: %v", trouble, events["store-trouble"])
	}
	if wrong, found := load.Stop().Wrong(200, 429); found {
		t.Errorf("an answer: %+v", wrong)
	}
}

// Of the refusals under each rule the first and then each seventh are logged, also when
// many come at once, over routers and over reloads.
func TestRefusalsAreSampledExactly(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.TraefikOptions{}, lab.Map{
		"log": lab.Map{"refusals": "1/7"}, "rules": []any{lab.Map{"name": "login", "path": "/login", "limit": "2"}},
	})
	s.routes.Routers["other"] = lab.Route{Rule: "PathPrefix(`/other`)", Middlewares: []string{"quota"}, Service: "app"}
	s.tr.Reload(s.routes.YAML(t))
	send := func(path, key string, n, workers int) {
		t.Helper()
		s.client.Burst(workers, lab.Alternate(n, key, s.tr.URL+path))
	}
	lines := func(rule, key string) int {
		digest := sha256.Sum256([]byte(key))
		want := fmt.Sprintf("gatequota: refused: scope=%s rule=%s client=%s way=", scope, rule, hex.EncodeToString(digest[:])[:12])
		n := 0
		for _, line := range own(s.tr.Log()) {
			if strings.HasPrefix(line, want) {
				n++
			}
		}
		return n
	}
	await := func(rule string, want int) {
		t.Helper()
		lab.Until(t, "the refusals are logged", func() bool { return lines(rule, "alice")+lines(rule, "bob") >= want })
		if got := lines(rule, "alice") + lines(rule, "bob"); got != want {
			t.Errorf("rule %q: %d refusals are logged, want %d", rule, got, want)
		}
	}
	send("/", "alice", 3, 1)
	await("", 0)
	send("/", "alice", 1, 1)
	await("", 1)
	send("/", "alice", 6, 1)
	await("", 1)
	send("/other", "alice", 1, 1)
	await("", 2)
	send("/other", "alice", 690, 16) // 698 are refused now
	await("", 100)
	send("/login", "bob", 2+20, 4)
	await("login", 3)
	send("/", "bob", 3+2, 1)
	await("", 100)
	options := s.routes.Middlewares["quota"]["plugin"].(lab.Map)[lab.PluginName].(lab.Map)
	options["maxClients"] = "1000"
	s.tr.Reload(s.routes.YAML(t))
	send("/", "alice", 1, 1) // the 701st
	await("", 101)
	await("login", 3)
	digest := sha256.Sum256([]byte("alice"))
	found := false
	for _, each := range s.store.Keys() {
		found = found || strings.HasPrefix(each, "rate:"+scope+":{"+hex.EncodeToString(digest[:])[:12])
	}
	if !found {
		t.Errorf("no key begins with what is logged: %q", s.store.Keys())
	}
}
