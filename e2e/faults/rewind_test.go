package faults_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// A store that comes back with less than the gateways know: empty after a crash,
// or as a replica that had not heard of the last 50 counts.
var rewinds = []struct {
	name    string
	prepare func(s *site)                  // before the first requests
	freeze  func(s *site)                  // before the last 50 requests
	lose    func(s *site) (now *lab.Store) // all at once, and the store that answers from then on
}{
	{
		name:    "killed and started empty, unnoticed by requests",
		prepare: func(*site) {},
		freeze:  func(*site) {},
		lose: func(s *site) *lab.Store {
			s.store.Kill()
			s.store.Start()
			// A gateway trusts a connection for a second after its last use. This is longer
			// on a slow machine, too.
			time.Sleep(3 * time.Second)
			return s.store
		},
	}, {
		name:    "killed and started empty, while requests come",
		prepare: func(*site) {},
		freeze:  func(*site) {},
		lose: func(s *site) *lab.Store {
			s.store.Kill()
			s.await("local", "local")
			s.store.Start()
			s.await("local", "shared")
			return s.store
		},
	}, {
		name: "failed over to a replica that lags by 50 counts",
		prepare: func(s *site) {
			s.replica = lab.Valkey(s.t, lab.StoreOptions{})
			s.feed = lab.NewProxy(s.t, s.store.Addr())
			s.replica.Do("REPLICAOF", "127.0.0.1", s.feed.Port())
		},
		freeze: func(s *site) {
			inStep(s.store, s.replica)
			s.feed.Set(lab.Faults{LoseReplies: true})
		},
		lose: func(s *site) *lab.Store {
			s.replica.Do("REPLICAOF", "NO", "ONE")
			for _, link := range s.links {
				link.Redirect(s.replica.Addr())
			}
			s.store.Kill()
			return s.replica
		},
	},
}

// What a store has forgotten is not handed out again. The bound on extra requests
// is the difference between the largest and the smallest count that the client's
// gateways knew, and what was under way.
func TestForgottenCountsAreNotHandedOutAgain(t *testing.T) {
	const late, used = 50, 80
	for _, r := range rewinds {
		t.Run(r.name, func(t *testing.T) {
			s := newSite(t, plan{
				timeout: 5 * time.Second,
				routes:  map[string]options{"local": {"limit": limit, "fallback": options{"gateways": gateways}}},
			})
			r.prepare(s)
			s.await("local", "shared")
			clients := []struct {
				key     string
				through []int // the gateways in use before
				then    []int // and afterwards
				most    int   // extra requests, apart from those under way
			}{
				{"alternates over the gateways", []int{0, 1}, []int{0, 1}, 1},
				{"moves from one gateway to the other at once", []int{0}, []int{1}, used},
				{"moves from one gateway to the other later", []int{0}, []int{1}, 0},
			}
			for _, c := range clients {
				mustBe(t, c.key, s.ask(used-late, "local", c.key, c.through...), "shared", http.StatusOK)
			}
			r.freeze(s)
			for _, c := range clients {
				mustBe(t, c.key, s.ask(late, "local", c.key, c.through...), "shared", http.StatusOK)
			}
			now := r.lose(s)
			for _, c := range clients {
				if c.most == 0 {
					// Requests of others let the first gateway notice what happened.
					s.await("local", "shared")
					lab.Until(t, "the first gateway has told what it knows", func() bool { return s.count(now, "local", c.key) >= used })
				}
				answers := s.ask(used+limit, "local", c.key, c.then...)
				if a, wrong := answers.Wrong(http.StatusOK, http.StatusTooManyRequests); wrong {
					t.Errorf("status %d (%v)", a.Status, a.Err)
				}
				flying := 0
				for _, a := range answers {
					if a.Status == http.StatusOK && decision(a) != "shared" {
						flying++
					}
				}
				extra := used + allowed(answers) - limit
				if extra > c.most+flying || extra < 0 || flying > gateways {
					t.Errorf("%s: %d extra requests, want %d and the %d under way at most", c.key, extra, c.most, flying)
				}
				t.Logf("%s: %d extra requests, bound %d and %d under way", c.key, extra, c.most, flying)
			}
			s.calm()
		})
	}
}
