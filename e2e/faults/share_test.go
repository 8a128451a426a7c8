package faults_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatequota/gatequota/e2e/lab"
)

// announced waits until each gateway of a scope knows of the other: until each
// has announced itself again after both had.
func (s *site) announced(route string) {
	s.t.Helper()
	members := func() []redis.Z {
		return s.store.Client().ZRangeWithScores(context.Background(), "rate:"+route+"@file:gateways", 0, -1).Val()
	}
	lab.Until(s.t, "both gateways have announced themselves", func() bool { return len(members()) == gateways })
	last := members()[gateways-1].Score
	lab.Until(s.t, "both gateways have announced themselves again", func() bool {
		now := members()
		return len(now) == gateways && now[0].Score > last
	})
}

// While the store is away each gateway lets its share of what is left pass, and
// tells it as what remains; the limit that it tells stays what was configured.
func TestShareOfEachGateway(t *testing.T) {
	const limit = 9
	// A client that the gateways know of: the counts that each was told last.
	seen := [gateways]int{4, 5}
	ways := map[string]struct {
		fallback options
		fresh    [gateways]int // passes of a client that is new
		known    [gateways]int // and of the one that the gateways know
	}{
		"learnt":   {nil, [gateways]int{5, 5}, [gateways]int{3, 2}},
		"gateways": {options{"gateways": 4}, [gateways]int{3, 3}, [gateways]int{2, 1}},
		"alone":    {options{"gateways": 1}, [gateways]int{9, 9}, [gateways]int{5, 4}},
		"limit":    {options{"limit": 2}, [gateways]int{2, 2}, [gateways]int{2, 2}},
		"both":     {options{"limit": 8, "gateways": 4}, [gateways]int{8, 8}, [gateways]int{5, 4}},
	}
	routes := map[string]options{}
	for name, w := range ways {
		routes[name] = options{"limit": limit}
		if w.fallback != nil {
			routes[name]["fallback"] = w.fallback
		}
	}
	s := newSite(t, plan{timeout: 5 * time.Second, routes: routes})
	for name := range ways {
		s.await(name, "shared")
	}
	s.announced("learnt")
	for name := range ways {
		mustBe(t, name, s.ask(seen[0], name, "known", 0), "shared", http.StatusOK)
		mustBe(t, name, s.ask(seen[1]-seen[0], name, "known", 1), "shared", http.StatusOK)
	}

	s.store.Kill()
	passed := map[string]int{}
	for name, w := range ways {
		s.await(name, "local")
		for g := range gateways {
			for key, share := range map[string]int{"fresh": w.fresh[g], "known": w.known[g]} {
				answers := s.ask(limit+2, name, key, g)
				mustBe(t, name, answers, "local", http.StatusOK, http.StatusTooManyRequests)
				passed[name+key] += allowed(answers)
				for i, a := range answers {
					status, remaining := http.StatusOK, share-1-i
					if i >= share {
						status, remaining = http.StatusTooManyRequests, 0
					}
					if a.Status != status || a.Number("X-RateLimit-Remaining") != remaining || a.Number("X-RateLimit-Limit") != limit {
						t.Errorf("%s, gateway %d, request %d of a %s client: status %d, %d of %d remaining, want %d and %d of %d", name, g+1, i+1, key,
							a.Status, a.Number("X-RateLimit-Remaining"), a.Number("X-RateLimit-Limit"), status, remaining, limit)
					}
					if wait := a.Number("Retry-After"); a.Status == http.StatusTooManyRequests && wait < 1 {
						t.Errorf("%s: Retry-After %q", name, a.Header.Get("Retry-After"))
					}
				}
			}
		}
	}
	if got, most := passed["learntfresh"], limit+gateways-1; got > most {
		t.Errorf("%d of a new client passed, want %d at most where the gateways are known", got, most)
	}
	if got, most := seen[1]+passed["learntknown"], limit+seen[1]-seen[0]+gateways-1; got > most {
		t.Errorf("%d of a known client passed, want %d at most where the gateways are known", got, most)
	}
	s.calm()
}

// A store's user without the rights to announce costs only what is learnt by it.
func TestWithoutTheRightToAnnounce(t *testing.T) {
	const limit = 6
	s := newSite(t, plan{timeout: 5 * time.Second, routes: map[string]options{"local": {"limit": limit}},
		store: lab.StoreOptions{Args: []string{"--user", "gateway", "on", ">" + password, "~rate:*", "+@all", "-@sortedset"}},
		login: options{"username": "gateway", "password": password},
	})
	s.await("local", "shared")
	for g := range gateways {
		lab.Until(t, "the log says so", func() bool { return len(s.lines(g, 0)) > 0 })
	}
	answers := s.ask(2*limit, "local", "key", 0, 1)
	mustBe(t, "shared", answers, "shared", http.StatusOK, http.StatusTooManyRequests)
	if got := allowed(answers); got != limit {
		t.Errorf("%d allowed over both gateways, want %d", got, limit)
	}
	for g := range gateways {
		if lines := s.lines(g, 0); len(lines) != 1 {
			t.Errorf("gateway %d logged %q, want one line", g+1, lines)
		}
	}

	s.store.Kill()
	s.await("local", "local")
	for g := range gateways {
		answers := s.ask(2*limit, "local", "fresh", g)
		mustBe(t, "local", answers, "local", http.StatusOK, http.StatusTooManyRequests)
		if got := allowed(answers); got != limit {
			t.Errorf("gateway %d let %d pass by itself, want %d: it knows of no other", g+1, got, limit)
		}
	}
	s.calm()
}

// A gateway that alone has lost the store lets its share pass, while the other goes
// on to the limit: that is what a partition costs, and it is settled afterwards.
func TestOneGatewayAlone(t *testing.T) {
	const limit, before, share = 100, 20, 40
	s := newSite(t, plan{timeout: 5 * time.Second,
		routes: map[string]options{"local": {"limit": limit, "fallback": options{"gateways": gateways}}}})
	s.await("local", "shared")
	mustBe(t, "before", s.ask(before, "local", "key", 0, 1), "shared", http.StatusOK)

	s.links[1].Close()
	s.links[1].Cut()
	lab.Until(t, "the second gateway is alone", func() bool { return decision(s.newcomer(1, "local")) == "local" })
	alone := s.ask(limit, "local", "key", 1)
	mustBe(t, "alone", alone, "local", http.StatusOK, http.StatusTooManyRequests)
	others := s.ask(limit, "local", "key", 0)
	mustBe(t, "with the store", others, "shared", http.StatusOK, http.StatusTooManyRequests)
	if got := [...]int{allowed(alone), allowed(others)}; got != [...]int{share, limit - before} {
		t.Errorf("%d let pass alone and %d with the store, want %d and %d", got[0], got[1], share, limit-before)
	}

	s.links[1].Open()
	s.await("local", "shared")
	lab.Until(t, "what passed alone is counted", func() bool { return s.count(s.store, "local", "key") >= limit+share })
	after := s.ask(10, "local", "key", 1)
	mustBe(t, "after", after, "shared", http.StatusTooManyRequests)
	if got := s.count(s.store, "local", "key"); got != limit+share {
		t.Errorf("the store counts %d, want %d", got, limit+share)
	}
	s.calm()
}
