package real_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// handful is how many lines an outage may leave in the log: one when it begins,
// one when it ends, and some room for troubles of more than one kind.
const handful = 6

// byFailure returns a setup with one middleware for each way of onStoreFailure.
// Each has its own window, so that nothing is shared but the store.
func byFailure(app *lab.App, base options) setup {
	middlewares := map[string]options{}
	for _, way := range []string{"local", "closed", "open"} {
		middlewares[way] = base.with("onStoreFailure", way, "decisionHeader", "X-RateLimit-Decision")
	}
	return each(app, middlewares)
}

// mustNotPanic fails the test when the gateway's log speaks of a panic.
func mustNotPanic(t *testing.T, tr *lab.Traefik) {
	t.Helper()
	if lines := tr.LogLines("panic"); len(lines) > 0 || !tr.Running() {
		t.Errorf("the gateway panicked:\n%s", tr.Log())
	}
}

// pluginLines returns what the plugin logged after a mark, other than the
// settings of middlewares.
func pluginLines(tr *lab.Traefik, mark int) []string { return tr.LogSince(mark, "gatequota: store") }

// A fault is something that happens to a store, and the end of it.
type fault struct {
	name  string
	store lab.StoreOptions
	begin func(s *lab.Store, p *lab.Proxy)
	end   func(s *lab.Store, p *lab.Proxy)
	// says is the first word of the store's refusal, which the log must name, or
	// another word that an operator looks for.
	says string
}

func set(name, value string) func(*lab.Store, *lab.Proxy) {
	return func(s *lab.Store, _ *lab.Proxy) { s.Do("CONFIG", "SET", name, value) }
}

var faults = []fault{
	{
		name:  "killed and started empty",
		begin: func(s *lab.Store, _ *lab.Proxy) { s.Kill() },
		end:   func(s *lab.Store, _ *lab.Proxy) { s.Start() },
	}, {
		name:  "stopped and started empty",
		begin: func(s *lab.Store, _ *lab.Proxy) { s.Stop() },
		end:   func(s *lab.Store, _ *lab.Proxy) { s.Start() },
	}, {
		name:  "connections refused",
		begin: func(_ *lab.Store, p *lab.Proxy) { p.Close(); p.Cut() },
		end:   func(_ *lab.Store, p *lab.Proxy) { p.Open() },
		says:  "refused",
	}, {
		name:  "everything lost on the way",
		begin: func(_ *lab.Store, p *lab.Proxy) { p.Set(lab.Faults{LoseRequests: true, LoseReplies: true}) },
		end:   func(_ *lab.Store, p *lab.Proxy) { p.Set(lab.Faults{}); p.Cut() },
		says:  "in time",
	}, {
		name:  "replies lost on the way",
		begin: func(_ *lab.Store, p *lab.Proxy) { p.Set(lab.Faults{LoseReplies: true}) },
		end:   func(_ *lab.Store, p *lab.Proxy) { p.Set(lab.Faults{}); p.Cut() },
		says:  "in time",
	}, {
		name:  "connections accepted and reset",
		begin: func(_ *lab.Store, p *lab.Proxy) { p.Set(lab.Faults{Refuse: true}); p.Cut() },
		end:   func(_ *lab.Store, p *lab.Proxy) { p.Set(lab.Faults{}) },
	}, {
		name:  "paused",
		begin: func(s *lab.Store, _ *lab.Proxy) { s.Pause() },
		end:   func(s *lab.Store, _ *lab.Proxy) { s.Resume() },
		says:  "in time",
	}, {
		name:  "writes held back",
		begin: func(s *lab.Store, _ *lab.Proxy) { s.Do("CLIENT", "PAUSE", "60000", "WRITE") },
		end:   func(s *lab.Store, _ *lab.Proxy) { s.Do("CLIENT", "UNPAUSE") },
		says:  "in time",
	}, {
		name: "password changed",
		begin: func(s *lab.Store, _ *lab.Proxy) {
			s.Do("CONFIG", "SET", "requirepass", "another")
			s.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		},
		end:   set("requirepass", password),
		store: lab.StoreOptions{Password: password},
		says:  "WRONGPASS",
	}, {
		name:  "read-only",
		begin: func(s *lab.Store, _ *lab.Proxy) { s.Do("REPLICAOF", "127.0.0.1", "1") },
		end:   func(s *lab.Store, _ *lab.Proxy) { s.Do("REPLICAOF", "NO", "ONE") },
		says:  "READONLY",
	}, {
		name: "replica without its primary",
		begin: func(s *lab.Store, _ *lab.Proxy) {
			s.Do("CONFIG", "SET", "replica-serve-stale-data", "no")
			s.Do("REPLICAOF", "127.0.0.1", "1")
		},
		end:  func(s *lab.Store, _ *lab.Proxy) { s.Do("REPLICAOF", "NO", "ONE") },
		says: "MASTERDOWN",
	}, {
		name:  "memory full",
		begin: set("maxmemory", "1"),
		end:   set("maxmemory", "0"),
		says:  "OOM",
	}, {
		name:  "too few replicas",
		begin: set("min-replicas-to-write", "1"),
		end:   set("min-replicas-to-write", "0"),
		says:  "NOREPLICAS",
	}, {
		name: "a script blocks it",
		begin: func(s *lab.Store, _ *lab.Proxy) {
			s.Do("CONFIG", "SET", "busy-reply-threshold", "1")
			go s.Client().Eval(context.Background(), "while true do end", nil)
			lab.Until(s.T(), "the script blocks the store", func() bool {
				err := s.Client().Ping(context.Background()).Err()
				return err != nil && strings.HasPrefix(err.Error(), "BUSY")
			})
		},
		end:  func(s *lab.Store, _ *lab.Proxy) { s.EndScript() },
		says: "BUSY",
	}, {
		name: "loading its data",
		begin: func(s *lab.Store, _ *lab.Proxy) {
			s.Do("DEBUG", "POPULATE", "30000")
			s.Do("CONFIG", "SET", "loading-process-events-interval-bytes", "1024")
			s.Do("CONFIG", "SET", "key-load-delay", "1000")
			go s.Client().Do(context.Background(), "DEBUG", "RELOAD")
			lab.Until(s.T(), "the store loads", func() bool {
				err := s.Client().Get(context.Background(), "key:0").Err()
				return err != nil && strings.HasPrefix(err.Error(), "LOADING")
			})
		},
		end:  set("key-load-delay", "0"),
		says: "LOADING",
	}, {
		name:  "a cluster without the slot",
		store: lab.StoreOptions{Cluster: true},
		begin: func(s *lab.Store, _ *lab.Proxy) { s.Do("CLUSTER", "DELSLOTSRANGE", 0, 16383) },
		end:   func(s *lab.Store, _ *lab.Proxy) { s.Do("CLUSTER", "ADDSLOTSRANGE", 0, 16383) },
		says:  "CLUSTERDOWN",
	},
}

const password = "Sesame-7719"

// A store that fails in any way never turns into an error of the gateway: each
// middleware decides as onStoreFailure says, a handful of lines is logged, and
// counting in the store goes on by itself afterwards.
func TestStoreFailures(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			const limit = 5
			store, app, client := lab.Valkey(t, f.store), lab.NewApp(t, 1), lab.NewClient(t)
			proxy := lab.NewProxy(t, store.Addr())
			window, id := lab.QuietWindow(time.Now())
			base := shared(proxy.Addr(), limit, window).with("valkey.timeout", "1s", "valkey.dialTimeout", "1s")
			if f.store.Password != "" {
				base = base.with("valkey.password", f.store.Password)
			}
			tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, byFailure(app, base).yaml(t))
			ask := func(way string, n int, key string) lab.Answers {
				return client.Sequence(lab.Alternate(n, key, tr.URL+"/"+way))
			}

			for _, way := range []string{"local", "closed", "open"} {
				n := 0
				lab.Until(t, "a first count", func() bool { // the machine may be busy
					n++
					return ask(way, 1, fmt.Sprintf("warm-up-%d", n)).Decisions() == "shared: 1"
				})
				answers := ask(way, 3, "key")
				mustBe(t, "before", answers, http.StatusOK)
				mustDecide(t, "before", answers, "shared")
			}

			mark := tr.LogSize()
			f.begin(store, proxy)
			for range 3 {
				closed := ask("closed", 4, "key")
				mustBe(t, "closed", closed, http.StatusServiceUnavailable)
				mustDecide(t, "closed", closed, "closed")
				for _, a := range closed {
					if wait := a.Number("Retry-After"); wait < 1 || wait > 5 {
						t.Errorf("closed: Retry-After is %q", a.Header.Get("Retry-After"))
					}
				}
				open := ask("open", 4, "key")
				mustBe(t, "open", open, http.StatusOK)
				mustDecide(t, "open", open, "open")
				mustDecide(t, "local", ask("local", 4, "key"), "local")
			}
			// Three were allowed before: the gateway goes on from there.
			if got := ask("local", 10, "key"); got.Count(http.StatusTooManyRequests) != 10 {
				t.Errorf("local, a known client beyond its limit: %s", got.Tally())
			}
			newcomer := ask("local", 10, "newcomer")
			mustBe(t, "local", newcomer, http.StatusOK, http.StatusTooManyRequests)
			mustHaveRemaining(t, "local, a new client", newcomer, limit)

			f.end(store, proxy)
			for _, way := range []string{"local", "closed", "open"} {
				var last lab.Answers
				n := 0
				lab.Until(t, "counting in the store goes on for "+way, func() bool {
					n++ // a newcomer each time: whoever is over its limit is refused from memory
					last = ask(way, 1, fmt.Sprintf("probe-%d", n))
					mustBe(t, "meanwhile", last, http.StatusOK, http.StatusTooManyRequests, http.StatusServiceUnavailable)
					return last.Decisions() == "shared: 1"
				})
				again := ask(way, 10, "after")
				mustDecide(t, "afterwards", again, "shared")
				mustHaveRemaining(t, "afterwards", again, limit)
				count, err := store.Client().Get(context.Background(), keyOf(way+"@file", "after", id)).Int()
				if err != nil || count != limit {
					t.Errorf("%s: the store's count is %d, %v, want %d: refusals come from memory", way, count, err, limit)
				}
			}
			if stay := store.WithoutExpiry(); f.name != "loading its data" && len(stay) > 0 {
				t.Errorf("keys without expiry: %q", stay)
			}

			lines := pluginLines(tr, mark)
			if len(lines) < 2 || len(lines) > handful {
				t.Errorf("%d lines were logged, want from 2 to %d", len(lines), handful)
			}
			text := strings.Join(lines, "\n")
			if !strings.Contains(text, f.says) || !strings.Contains(text, "answers again") {
				t.Errorf("the log names neither %q nor the recovery", f.says)
			}
			if strings.Contains(tr.Log(), password) {
				t.Error("the password is in the log")
			}
			mustNotPanic(t, tr)
			t.Logf("logged:\n%s", text)
		})
	}
}

// A gateway that never saw its store works from its first request on.
func TestGatewayThatStartsWithoutStore(t *testing.T) {
	t.Parallel()
	const limit = 5
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	for name, endpoint := range map[string]string{
		"black hole":     lab.Blackhole(t),
		"nobody listens": fmt.Sprintf("127.0.0.1:%d", lab.FreePort(t)),
		"unknown host":   "no-such-host.invalid:6379",
		"no such socket": "unix:///nowhere/store.sock",
	} {
		t.Run(name, func(t *testing.T) {
			base := shared(endpoint, limit, window).with("valkey.timeout", "100ms", "valkey.dialTimeout", "300ms")
			tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, byFailure(app, base).yaml(t))
			answers := client.Burst(20, lab.Alternate(40, "key", tr.URL+"/local"))
			mustDecide(t, name, answers, "local")
			mustHaveRemaining(t, name, answers, limit)
			mustBe(t, "closed", client.Sequence(lab.Alternate(3, "key", tr.URL+"/closed")), http.StatusServiceUnavailable)
			mustBe(t, "open", client.Sequence(lab.Alternate(20, "key", tr.URL+"/open")), http.StatusOK)
			if lines := pluginLines(tr, 0); len(lines) < 1 || len(lines) > handful {
				t.Errorf("%d lines were logged:\n%s", len(lines), strings.Join(lines, "\n"))
			}
			mustNotPanic(t, tr)
		})
	}
}

// While requests keep coming over two gateways, the store is killed, stopped and
// started again. Nobody gets anything but a 200 or a rightful 429.
func TestStoreIsRestartedUnderLoad(t *testing.T) {
	const limit, clients = 20, 8
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 2), lab.NewClient(t)
	window, id := lab.QuietWindow(time.Now())
	base := shared(store.Addr(), limit, window).with("valkey.timeout", "1s")
	all, urls := gateways(t, 2, lab.TraefikOptions{LogLevel: "ERROR"}, only(app, base))
	const workers = 6
	// Newcomers come all the time: whoever is known to be over its limit is refused
	// from memory, and its answers tell nothing of the store.
	var newcomers atomic.Int64
	load := client.Steady(t, workers, 5*time.Millisecond, func(n int) lab.Request {
		key := fmt.Sprintf("client-%d", n%clients)
		if n/workers%3 == 0 {
			key = fmt.Sprintf("newcomer-%d", newcomers.Add(1))
		}
		return lab.Keyed(urls[n/workers%2], key)
	})
	// seen waits for answers that are decided one way on both gateways, from now on.
	seen := func(way string) {
		t.Helper()
		from := load.Len()
		lab.Until(t, "answers are "+way, func() bool {
			got := load.Since(from)
			last := got[max(0, len(got)-2*workers):]
			return len(last) == 2*workers && last.Decisions() == fmt.Sprintf("%s: %d", way, 2*workers)
		})
	}
	seen("shared")
	outages := []func(){store.Kill, store.Stop, store.Kill}
	for _, end := range outages {
		end()
		seen("local")
		store.Start()
		seen("shared")
	}
	// At once, so that the gateways hardly notice.
	store.Kill()
	store.Start()
	seen("shared")
	answers := load.Stop()
	mustBe(t, "under load", answers, http.StatusOK, http.StatusTooManyRequests)

	// Each store that started empty gives the limit again, and each gateway may give
	// the rest of the limit by itself while it is away: that is the bound.
	lives := len(outages) + 2
	if most := int(newcomers.Load()) + clients*limit*(lives+len(outages)*len(all)); app.Hits() > most {
		t.Errorf("%d requests were let through, want %d at most", app.Hits(), most)
	}
	if app.Hits() != answers.Count(http.StatusOK) {
		t.Errorf("%d requests reached the application, %d were answered by it", app.Hits(), answers.Count(http.StatusOK))
	}
	if got := store.Client().Exists(context.Background(), keyOf("quota@file", fmt.Sprintf("newcomer-%d", newcomers.Load()), id)).Val(); got != 1 {
		t.Error("the store does not count again")
	}
	for _, tr := range all {
		mustNotPanic(t, tr)
		if lines := pluginLines(tr, 0); len(lines) > handful+2*len(outages) {
			t.Errorf("%d lines were logged:\n%s", len(lines), strings.Join(lines, "\n"))
		}
	}
	t.Logf("%d answers: %s; %s", len(answers), answers.Tally(), answers.Decisions())
}

// Three kinds of trouble take turns under load; the log stays readable at
// Traefik's default level, and silent while all is well.
func TestLogOfAnUnsteadyStore(t *testing.T) {
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	base := shared(store.Addr(), 1000, window).with("valkey.timeout", "1s")
	tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, only(app, base).yaml(t))
	load := client.Steady(t, 8, 10*time.Millisecond, func(n int) lab.Request {
		return lab.Keyed(tr.URL, fmt.Sprintf("client-%d", n%50))
	})
	enough := func(way string) {
		t.Helper()
		from := load.Len()
		lab.Until(t, "answers are "+way, func() bool {
			got := load.Since(from)
			return len(got) >= 50 && got[len(got)-20:].Decisions() == way+": 20"
		})
	}
	enough("shared")
	if lines := tr.LogLines("gatequota: store"); len(lines) > 0 {
		t.Errorf("lines while all is well: %q", lines)
	}
	for range 2 {
		for _, f := range faults {
			switch f.name {
			case "killed and started empty", "memory full", "read-only":
				f.begin(store, nil)
				enough("local")
				f.end(store, nil)
				enough("shared")
			}
		}
	}
	answers := load.Stop()
	mustBe(t, "all", answers, http.StatusOK)
	lines := pluginLines(tr, 0)
	t.Logf("%d answers, %d lines:\n%s", len(answers), len(lines), strings.Join(lines, "\n"))
	if len(lines) < 2 || len(lines) > handful {
		t.Errorf("%d lines for six outages, want from 2 to %d", len(lines), handful)
	}
	if n := regexp.MustCompile(`\b[1-9][0-9]* further requests were decided without it`).FindString(strings.Join(lines, "\n")); n == "" {
		t.Error("no line says how many requests were decided without the store")
	}
}
