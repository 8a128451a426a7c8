package faults_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

const (
	// timeout is how long a request may wait for the store.
	timeout = 300 * time.Millisecond
	// margin is what a request may take besides, at most, beyond what a request
	// that nobody limits takes on the same gateways at the same time.
	margin = 250 * time.Millisecond
	// lasts is how long a fault lasts that does not end by itself.
	lasts = 2 * time.Second
	// handful is how many lines an outage may leave in a gateway's log.
	handful = 6
)

const password = "Sesame-7719"

// A fault is something that happens to the store, or between it and the gateways,
// and the end of it.
type fault struct {
	name    string
	plan    plan
	prepare func(s *site) // before any request
	begin   func(s *site)
	during  func(s *site) // in place of waiting
	end     func(s *site)
	unseen  bool // no request may be decided without the store
	lingers int  // goroutines that end by themselves, long afterwards
	refused int  // batches that the store refuses to count, until it is left alone
}

func config(name, value string) func(*site) {
	return func(s *site) { s.store.Do("CONFIG", "SET", name, value) }
}

func spoiled(f lab.Faults) func(*site) { return func(s *site) { s.spoil(f) } }

func heal(s *site) { s.spoil(lab.Faults{}) }

func late(times float64) fault {
	return fault{
		name:  fmt.Sprintf("replies late by %g times the timeout", times),
		begin: spoiled(lab.Faults{Delay: time.Duration(times * float64(timeout))}),
		end:   heal,
	}
}

// each calls f n times, with a pause after each.
func each(n int, pause time.Duration, f func(*site)) func(*site) {
	return func(s *site) {
		for range n {
			f(s)
			time.Sleep(pause)
		}
	}
}

var guarded = plan{store: lab.StoreOptions{Password: password}, login: options{"password": password}}

var faults = []fault{
	{
		name:  "killed (`kill -9`), started empty",
		begin: func(s *site) { s.store.Kill() },
		end:   func(s *site) { s.store.Start() },
	}, {
		name:  "stopped gracefully, started empty",
		begin: func(s *site) { s.store.Stop() },
		end:   func(s *site) { s.store.Start() },
	}, {
		name:  "`CLIENT PAUSE`",
		begin: func(s *site) { s.store.Do("CLIENT", "PAUSE", lasts.Milliseconds(), "ALL") },
	}, {
		name:   "`DEBUG SLEEP`",
		during: func(s *site) { s.store.Do("DEBUG", "SLEEP", lasts.Seconds()) },
	}, {
		name:  "black hole: nothing arrives on either side",
		begin: spoiled(lab.Faults{LoseRequests: true, LoseReplies: true}),
		end:   func(s *site) { heal(s); s.cut() },
	}, {
		name:  "black hole that swallows new connections too",
		begin: func(s *site) { s.spoil(lab.Faults{LoseRequests: true, LoseReplies: true, Hold: true}) },
		end:   func(s *site) { heal(s); s.cut() },
	}, {
		name:  "one-way loss: commands do not arrive",
		begin: spoiled(lab.Faults{LoseRequests: true}),
		end:   func(s *site) { heal(s); s.cut() },
	}, {
		name:  "one-way loss: replies do not arrive",
		begin: spoiled(lab.Faults{LoseReplies: true}),
		end:   func(s *site) { heal(s); s.cut() },
	}, {
		name:  "replies cut in the middle",
		begin: spoiled(lab.Faults{HalveReplies: true}),
		end:   heal,
	},
	late(0.8), late(1), late(1.5), late(4),
	{
		name:   "replies one byte at a time",
		begin:  spoiled(lab.Faults{SliceReplies: true}),
		end:    heal,
		unseen: true,
	}, {
		name:   "connections reset every 100 ms",
		during: each(20, 100*time.Millisecond, (*site).cut),
	}, {
		name:  "connections reset as soon as they are made",
		begin: func(s *site) { s.spoil(lab.Faults{Refuse: true}); s.cut() },
		end:   heal,
	}, {
		name:   "`SCRIPT FLUSH` each second",
		during: each(3, time.Second, func(s *site) { s.store.Do("SCRIPT", "FLUSH", "SYNC") }),
		unseen: true,
	}, {
		name:    "`maxmemory` reached, `noeviction`",
		begin:   config("maxmemory", "1"),
		end:     config("maxmemory", "0"),
		refused: 3,
	}, {
		name:    "roles swapped with `REPLICAOF`",
		prepare: func(s *site) { s.replica = replicaOf(s.store) },
		begin: func(s *site) {
			s.replica.Do("REPLICAOF", "NO", "ONE")
			s.store.Do("REPLICAOF", "127.0.0.1", s.replica.Port)
		},
		end: func(s *site) {
			for _, link := range s.links {
				link.Redirect(s.replica.Addr())
			}
		},
	}, {
		name:    "wrong password after a reload",
		plan:    guarded,
		begin:   func(s *site) { s.reload(options{"password": "Mistaken-4410"}) },
		end:     func(s *site) { s.reload(guarded.login) },
		lingers: 1, // the probe with the wrong password, for a minute
	}, {
		name:  "`maxclients` reached",
		begin: func(s *site) { s.store.Do("CONFIG", "SET", "maxclients", 1); s.cut() },
		end:   config("maxclients", "10000"),
	},
}

// replicaOf starts a replica and waits until it has what the store has.
func replicaOf(store *lab.Store) *lab.Store {
	replica := lab.Valkey(store.T(), lab.StoreOptions{ReplicaOf: store})
	inStep(store, replica)
	return replica
}

// inStep waits until a replica has what its primary has.
func inStep(store, replica *lab.Store) {
	store.Client().Set(context.Background(), "in-step", replica.Port, time.Minute)
	lab.Until(store.T(), "the replica is in step", func() bool {
		got, err := replica.Client().Get(context.Background(), "in-step").Int()
		return err == nil && got == replica.Port
	})
}

// Whatever happens to the store, a request is answered within its time, and never
// with an error of the gateway; few requests get more than the limit; the log
// stays short; and afterwards all is as before.
//
// With -update the table goes into docs/failures.md.
func TestFaults(t *testing.T) {
	var rows []row
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			rows = append(rows, suffer(t, f))
		})
	}
	table := render(rows)
	t.Logf("\n%s", table)
	if len(rows) == len(faults) {
		publish(t, table)
	}
}

func suffer(t *testing.T, f fault) row {
	f.plan.timeout = timeout
	f.plan.routes = map[string]options{}
	for _, way := range []string{"local", "closed", "open"} {
		f.plan.routes[way] = options{"limit": limit, "onStoreFailure": way, "fallback": options{"gateways": gateways}}
	}
	s := newSite(t, f.plan)
	if f.prepare != nil {
		f.prepare(s)
	}
	shared := func(st stream, as lab.Answers) bool {
		return len(as) > 5 && (st.route == "free" || decision(as[len(as)-1]) == "shared")
	}
	warm := s.start(t, "-warm")
	warm.until(t, "all is well", shared)
	warm.stop()
	r := row{name: f.name}
	for g, door := range s.doors {
		r.connections[g].before = s.links[g].Connections()
		r.goroutines[g].before = door.Goroutines()
		r.plugins[g].before = door.PluginGoroutines()
	}

	var marks, accepted [gateways]int
	all := s.start(t, "")
	all.until(t, "the counts have begun", shared)
	for g, door := range s.doors {
		marks[g], accepted[g] = door.LogSize(), s.links[g].Accepted()
	}
	if f.begin != nil {
		f.begin(s)
	}
	if f.during != nil {
		f.during(s)
	} else {
		time.Sleep(lasts)
	}
	if f.end != nil {
		f.end(s)
	}
	for _, way := range []string{"local", "closed", "open"} {
		s.await(way, "shared")
	}
	all.until(t, "every client is over its limit", func(st stream, as lab.Answers) bool {
		return st.route == "free" || len(as) > 3 && as[len(as)-3:].Count(http.StatusTooManyRequests) == 3
	})
	all.stop()

	for g, door := range s.doors {
		r.lines[g] = len(s.lines(g, marks[g]))
		if r.lines[g] > handful {
			t.Errorf("gateway %d logged %d lines, want %d at most: %q", g+1, r.lines[g], handful, s.lines(g, marks[g]))
		}
		lab.Until(t, "connections and goroutines are as before", func() bool {
			r.connections[g].after = s.links[g].Connections()
			r.goroutines[g].after = door.Goroutines()
			r.plugins[g].after = door.PluginGoroutines()
			return r.connections[g].after <= r.connections[g].before &&
				r.plugins[g].after <= r.plugins[g].before+f.lingers && r.goroutines[g].after <= r.goroutines[g].before+16
		})
	}

	r.statuses = [3]string{all.statuses("local"), all.statuses("closed"), all.statuses("open")}
	for i, way := range []string{"local", "closed", "open"} {
		right := []int{http.StatusOK, http.StatusTooManyRequests}
		if way == "closed" {
			right = append(right, http.StatusServiceUnavailable)
		}
		if a, wrong := all.answers(way).Wrong(right...); wrong {
			t.Errorf("%s: status %d (%v); all: %s", way, a.Status, a.Err, r.statuses[i])
		}
	}
	without := slices.ContainsFunc(all, func(st stream) bool {
		return st.route != "free" && slices.ContainsFunc(st.load.Since(0), func(a lab.Answer) bool { return decision(a) != "shared" })
	})
	if without == f.unseen {
		t.Errorf("decided without the store: %t", without)
	}

	r.worst, r.free = all.slowest("local", "closed", "open"), all.slowest("free")
	if r.worst > timeout+r.free+margin {
		t.Errorf("a request took %v, %v without a limit; the store may cost %v", r.worst, r.free, timeout)
	}

	var broken [gateways]int
	for g := range s.links {
		broken[g] = s.links[g].Accepted() - accepted[g]
	}
	for _, b := range busy {
		if b.route != "local" && b.route != "closed" {
			continue
		}
		x := judge(all.events(b.key), broken, f.refused)
		if x.extra > x.bound {
			t.Errorf("%s got %d more than its limit, want %d at most", b.key, x.extra, x.bound)
		}
		if x.extra > r.excess.extra || x.extra == r.excess.extra && x.bound > r.excess.bound {
			r.excess = x
		}
	}
	s.calm()
	return r
}
