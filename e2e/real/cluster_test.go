package real_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// cluster starts a cluster of n nodes that share the slots.
func cluster(t *testing.T, n int, o lab.StoreOptions) []*lab.Store {
	t.Helper()
	nodes, buses := make([]*lab.Store, n), make([]int, n)
	for i := range nodes {
		buses[i] = lab.FreePort(t)
		o.Args = []string{"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(buses[i]), "--cluster-node-timeout", "5000"}
		nodes[i] = lab.Valkey(t, o)
		nodes[i].Do("CLUSTER", "ADDSLOTSRANGE", i*16384/n, (i+1)*16384/n-1)
		if i > 0 {
			nodes[i].Do("CLUSTER", "MEET", "127.0.0.1", nodes[0].Port, buses[0])
		}
	}
	for _, node := range nodes {
		lab.Until(t, "the cluster has formed", func() bool {
			info := node.Do("CLUSTER", "INFO").(string)
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", n))
		})
	}
	return nodes
}

// A gateway that is led to one node of a cluster counts there what belongs there,
// and decides the rest by itself: nobody passes freely, and the log says why.
func TestNodeOfAClusterNeverLetsPassFreely(t *testing.T) {
	t.Parallel()
	const limit, clients, each = 5, 200, 10
	for name, o := range map[string]lab.StoreOptions{"Valkey": {}, "Redis 7": {Redis: true}} {
		t.Run(name, func(t *testing.T) {
			nodes := cluster(t, 3, o)
			app, client := lab.NewApp(t, 1), lab.NewClient(t)
			window, _ := lab.QuietWindow(time.Now())
			base := shared(nodes[0].Addr(), limit, window).with("fallback.gateways", 1)
			tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, byFailure(app, base).yaml(t))
			var requests []lab.Request
			for range each {
				for i := range clients {
					requests = append(requests, lab.Keyed(tr.URL+"/local", fmt.Sprintf("client-%d", i)))
				}
			}
			answers := client.Burst(4, requests)
			mustBe(t, name, answers, http.StatusOK, http.StatusTooManyRequests)
			for i := range clients {
				allowed := 0
				for n := range each {
					if answers[n*clients+i].Status == http.StatusOK {
						allowed++
					}
				}
				if allowed != limit {
					t.Errorf("client %d: %d of %d requests were allowed, want %d", i, allowed, each, limit)
				}
			}
			if got := app.Hits(); got != clients*limit {
				t.Errorf("%d requests reached the application, want %d", got, clients*limit)
			}
			lines := pluginLines(tr, 0)
			text := strings.Join(lines, "\n")
			if !strings.Contains(text, "MOVED") || !strings.Contains(text, "cluster, which is not supported") || len(lines) > handful {
				t.Errorf("%d lines, want a few that name MOVED and say that a cluster is not supported:\n%s", len(lines), text)
			}
			t.Logf("%s; logged:\n%s", answers.Decisions(), text)
			for _, node := range nodes {
				if stay := node.WithoutExpiry(); len(stay) > 0 {
					t.Errorf("keys without expiry: %q", stay)
				}
			}

			// Without its other nodes it takes no more commands.
			nodes[1].Kill()
			nodes[2].Kill()
			lab.Until(t, "the cluster is down", func() bool {
				return strings.Contains(nodes[0].Do("CLUSTER", "INFO").(string), "cluster_state:fail")
			})
			mustHaveRemaining(t, "down", client.Sequence(lab.Alternate(each, "newcomer", tr.URL+"/local")), limit)
			mustBe(t, "closed", client.Sequence(lab.Alternate(each, "newcomer", tr.URL+"/closed")), http.StatusServiceUnavailable)
		})
	}
}

// Each call of the script names the one key that it touches.
func TestScriptsNameTheirOneKey(t *testing.T) {
	t.Parallel()
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	log, stop := store.Monitor()
	window, _ := lab.QuietWindow(time.Now())
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, only(app, shared(store.Addr(), 5, window)).yaml(t))
	mustDecide(t, "all", client.Burst(20, lab.Alternate(40, "key", tr.URL)), "shared")
	mustDecide(t, "all", client.Sequence(lab.Alternate(1, "other", tr.URL)), "shared")
	lab.Until(t, "the gateway has announced itself", func() bool { return strings.Contains(log.String(), `:gateways"`) })
	stop()
	calls, touched := 0, 0
	var called string // the key of the call before
	for _, line := range strings.Split(log.String(), "\n") {
		_, command, found := strings.Cut(line, "] ")
		if !found {
			continue
		}
		words := strings.Split(strings.Trim(command, `"`), `" "`)
		switch {
		case strings.HasPrefix(strings.ToLower(words[0]), "eval"):
			calls++
			if len(words) < 4 || words[2] != "1" || !strings.HasPrefix(words[3], "rate:quota@file:") {
				t.Errorf("a call with the keys %q", words[2:])
				continue
			}
			called = words[3]
		case strings.Contains(line, " lua] ") && len(words) > 1:
			touched++
			if words[1] != called {
				t.Errorf("a script touches %s, it was called with %s: %s", words[1], called, line)
			}
		}
	}
	if calls < 3 || touched == 0 {
		t.Errorf("%d calls were seen, and %d commands in them", calls, touched)
	}
}
