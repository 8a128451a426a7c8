package faults_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// What passed while the store was away is counted afterwards, once, however often
// it comes and goes.
func TestOutagesAreSettledOnce(t *testing.T) {
	const rounds, requests = 4, 10
	for _, tt := range []struct {
		name    string
		timeout time.Duration
		begin   func(s *site)
		end     func(s *site)
		exact   bool // no command is lost that the store has not seen
	}{
		{
			name:    "connections refused",
			timeout: 5 * time.Second,
			begin: func(s *site) {
				for _, link := range s.links {
					link.Close()
					link.Cut()
				}
				// Newcomers find that the connections are broken.
				s.await("local", "local")
			},
			end: func(s *site) {
				for _, link := range s.links {
					link.Open()
				}
			},
			exact: true,
		}, {
			name:    "replies lost",
			timeout: timeout,
			begin:   spoiled(lab.Faults{LoseReplies: true}),
			end:     func(s *site) { heal(s); s.cut() },
			exact:   true,
		}, {
			name:    "commands lost",
			timeout: timeout,
			begin:   spoiled(lab.Faults{LoseRequests: true}),
			end:     func(s *site) { heal(s); s.cut() },
		}, {
			name:    "memory full",
			timeout: 5 * time.Second,
			begin: func(s *site) {
				s.store.Do("CONFIG", "SET", "maxmemory", "1")
				// So many refusals that the store is left alone.
				for range 5 {
					for g := range s.doors {
						s.newcomer(g, "local")
					}
				}
			},
			end:   config("maxmemory", "0"),
			exact: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const limit = 1000
			s := newSite(t, plan{
				timeout: tt.timeout,
				routes:  map[string]options{"local": {"limit": limit, "fallback": options{"gateways": gateways}}},
			})
			s.await("local", "shared")
			passed := 0
			ask := func(way string, n int) {
				t.Helper()
				mustBe(t, way, s.ask(n, "local", "key", 0, 1), way, http.StatusOK)
				passed += n
			}
			for round := range rounds {
				ask("shared", 3)
				tt.begin(s)
				ask("local", requests)
				tt.end(s)
				s.await("local", "shared")
				if tt.exact && round == rounds-1 {
					// Without another request of the client, too.
					lab.Until(t, "all that passed is counted", func() bool { return s.count(s.store, "local", "key") >= passed })
				}
				ask("shared", 4)
				if got := s.count(s.store, "local", "key"); got > passed || tt.exact && got != passed {
					t.Fatalf("the store counts %d after %d requests", got, passed)
				}
			}
			t.Logf("the store counts %d after %d requests", s.count(s.store, "local", "key"), passed)
			s.calm()
		})
	}
}
