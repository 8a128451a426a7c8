package operations_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// What becomes of a client's count when its middleware is loaded anew with another option,
// and what of a client that was refused: those who watch over gateways change options at
// daytime, while requests come.
func TestWhatAChangedOptionDoesToCounts(t *testing.T) {
	const used = 60
	changes := []struct {
		name string
		own  options
		left int // of the limit that is in force then
	}{
		{"limit higher", options{"limit": 150}, 150 - used},
		{"limit lower, above what is used", options{"limit": 80}, 80 - used},
		{"limit lower, below what is used", options{"limit": 50}, 0},
		{"window", options{"window": "366d"}, limit},
		{"algorithm", options{"algorithm": "sliding-window"}, limit},
		{"limits in place of limit", options{"limit": nil, "window": nil, "limits": []options{{"name": "hour", "limit": limit, "window": "366d"}}}, limit},
		{"scope", options{"scope": "other"}, limit},
		{"what clients are told apart by", options{"sourceCriterion": options{"requestHeaderName": "X-Other"}}, limit},
		{"mode", options{"mode": "local", "valkey": nil}, limit},
		{"keyPrefix", options{"valkey": options{"keyPrefix": "other"}}, limit},
		{"keySecret", options{"valkey": options{"keySecret": "at least sixteen bytes"}}, limit},
		{"db", options{"valkey": options{"db": 1}}, limit},
		{"timeout", options{"valkey": options{"timeout": "3s"}}, limit - used},
		{"user", options{"valkey": options{"username": "other", "password": password}}, limit - used},
		{"onStoreFailure", options{"onStoreFailure": "closed"}, limit - used},
		{"fallback", options{"fallback": options{"gateways": 2}}, limit - used},
		{"headers", options{"headers": "ietf"}, limit - used},
		{"maxClients", options{"maxClients": 10}, limit - used},
		{"a rule that shares the count", options{"rules": []options{{"name": "shared", "methods": []string{"GET"}}}}, limit - used},
		{"a rule with a count of its own", options{"rules": []options{{"name": "own", "methods": []string{"GET"}, "limit": limit, "window": "366d"}}}, limit},
		{"control", options{"control": true}, limit - used},
		{"metrics", options{"metrics": options{"path": "/m"}}, limit - used},
	}
	s := newSite(t, lab.StoreOptions{})
	s.store.Do("ACL", "SETUSER", "other", "on", ">"+password, "~*", "+@all")
	s.openAlike(2, nil)
	s.acquaint()
	for i, c := range changes {
		client := fmt.Sprint("client-", i)
		mustAllow(t, c.name, s.ask(used, client), used, "shared")
		for _, door := range s.doors {
			door.Reload(s.one(c.own))
		}
		way := "shared"
		if c.own["mode"] != nil {
			way = "local"
		}
		most := c.left
		if way == "local" {
			most *= len(s.doors) // each counts for itself
		}
		mustAllow(t, c.name, s.ask(2*limit+20, client), most, way)
		for _, door := range s.doors {
			door.Reload(s.one(nil))
		}
		s.await("shared")
		if c.left == limit {
			// The count of before is there again.
			mustAllow(t, c.name+", and back", s.ask(2*limit, client), limit-used, "shared")
		}
	}
	s.silent()
}

// An hour's count is refused to its end; a limit that is raised meanwhile lets in at once
// whom each gateway has remembered as refused.
func TestRaisedLimitLetsInAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.StoreOptions{})
	s.openAlike(2, nil)
	s.acquaint()
	mustAllow(t, "before", s.ask(limit+20, "key"), limit, "shared")
	for _, door := range s.doors {
		door.Reload(s.one(options{"limit": 2 * limit}))
	}
	// Refusals before a gateway knew of the limit are counted, one for each of the others.
	after := s.ask(2*limit, "key")
	if passed := after.Count(http.StatusOK); passed > limit || passed < limit-len(s.doors) {
		t.Errorf("%d more requests passed, want %d", passed, limit)
	}
}

// A gateway that is started anew while the store is away knows of nobody and of no other
// gateway: each gives the whole limit out again. With the number of gateways set, it is
// their share.
func TestGatewaysRestartedInAnOutage(t *testing.T) {
	for _, tt := range []struct {
		name   string
		own    options
		passed int // of each gateway
	}{
		{"nothing is set", nil, limit},
		{"fallback.gateways", options{"fallback": options{"gateways": 2}}, limit / 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, lab.StoreOptions{})
			s.openAlike(2, tt.own)
			s.acquaint()
			mustAllow(t, "before", s.ask(limit+10, "key"), limit, "shared")
			s.store.Kill()
			s.await("local")
			mustAllow(t, "the store is away", s.ask(10, "key"), 0, "shared") // by what it said last
			for g, door := range s.doors {
				door.Kill()
				s.doors[g] = s.start(s.one(tt.own), lab.TraefikOptions{})
			}
			s.await("local")
			mustAllow(t, "started anew", s.ask(2*limit+20, "key"), 2*tt.passed, "local")
		})
	}
}

// A gateway that starts obeys what was set before.
func TestStartedGatewayObeys(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.StoreOptions{})
	s.set(1, "block:"+hash("blocked"), time.Now().Add(time.Hour).Unix())
	s.openAlike(1, options{"control": true})
	began := time.Now()
	lab.Until(t, "the gateway obeys", func() bool { return decision(s.ask(1, "blocked")[0]) == "control" })
	t.Logf("%v after the first request", time.Since(began))
}
