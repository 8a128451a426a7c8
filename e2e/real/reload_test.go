package real_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatequota/gatequota/e2e/lab"
)

// countIn returns what a store has counted under a key, in one of its databases.
func countIn(t *testing.T, s *lab.Store, db int, key string) int {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), DB: db, Protocol: 2, ClientName: "lab", DisableIdentity: true})
	defer func() { _ = client.Close() }()
	n, err := client.Get(context.Background(), key).Int()
	if err != nil && err != redis.Nil {
		t.Fatalf("reading %s: %v", key, err)
	}
	return n
}

// A reload leads to another store at once, and the connections to the one before
// go away. Middlewares on two stores never touch each other's.
func TestAnotherStoreAfterAReload(t *testing.T) {
	t.Parallel()
	const limit = 100
	a, b := lab.Valkey(t, lab.StoreOptions{}), lab.Valkey(t, lab.StoreOptions{})
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	window, id := lab.QuietWindow(time.Now())
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, only(app, shared(a.Addr(), limit, window)).yaml(t))
	key := keyOf("quota@file", "key", id)
	mustDecide(t, "before", client.Sequence(lab.Alternate(7, "key", tr.URL)), "shared")

	tr.Reload(only(app, shared(b.Addr(), limit, window)).yaml(t))
	after := client.Sequence(lab.Alternate(10, "key", tr.URL))
	mustDecide(t, "after", after, "shared")
	if first := after[0].Number("X-RateLimit-Remaining"); first != limit-1 {
		t.Errorf("the first request after the reload was told %d remaining, want %d", first, limit-1)
	}
	if inA, inB := countIn(t, a, 0, key), countIn(t, b, 0, key); inA != 7 || inB != 10 {
		t.Errorf("the stores have counted %d and %d, want 7 and 10", inA, inB)
	}

	// Both at once.
	tr.Reload(each(app, map[string]options{
		"one":   shared(a.Addr(), limit, window),
		"other": shared(b.Addr(), limit, window),
	}).yaml(t))
	for name, store := range map[string]*lab.Store{"one": a, "other": b} {
		mustDecide(t, name, client.Sequence(lab.Alternate(5, "key", tr.URL+"/"+name)), "shared")
		for _, s := range []*lab.Store{a, b} {
			want := 0
			if s == store {
				want = 5
			}
			if got := countIn(t, s, 0, keyOf(name+"@file", "key", id)); s == store && got != want {
				t.Errorf("%s: its store has counted %d, want %d", name, got, want)
			}
		}
	}
	for name, other := range map[string]*lab.Store{"one": b, "other": a} {
		for _, key := range other.Keys() {
			if strings.Contains(key, ":"+name+"@file:") {
				t.Errorf("%s: the other store holds %s", name, key)
			}
		}
	}

	// And the first one is left alone again.
	tr.Reload(only(app, shared(b.Addr(), limit, window)).yaml(t))
	load := client.Steady(t, 1, 50*time.Millisecond, func(n int) lab.Request { return lab.Keyed(tr.URL, fmt.Sprint("key-", n)) })
	since := time.Now()
	for a.Clients() > 0 {
		// It is kept for half a minute without use.
		if time.Since(since) > 2*time.Minute {
			t.Fatalf("the gateway still has %d connections to a store that no configuration names", a.Clients())
		}
		time.Sleep(250 * time.Millisecond)
	}
	t.Logf("the connection to the former store was closed after %s", time.Since(since).Round(time.Second))
	mustDecide(t, "meanwhile", load.Stop(), "shared")
	if lines := pluginLines(tr, 0); len(lines) > 0 {
		t.Errorf("logged: %q", lines)
	}
}

// Each setting of a store takes effect by a reload that changes it alone.
func TestOneChangedSettingTakesEffect(t *testing.T) {
	const limit = 1000
	ask := func(client *lab.Client, tr *lab.Traefik, n int) lab.Answers {
		return client.Sequence(lab.Alternate(n, "key", tr.URL))
	}

	t.Run("password", func(t *testing.T) {
		t.Parallel()
		const next, third = "Open-8825", "Latch-3307"
		for _, way := range []string{"in the options", "in a file"} {
			t.Run(way, func(t *testing.T) {
				store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
				store.Do("ACL", "SETUSER", "gateway", "on", ">"+password, "~*", "+@all")
				window, id := lab.QuietWindow(time.Now())
				base := shared(store.Addr(), limit, window).with("valkey.username", "gateway")
				file := lab.PasswordFile(t, password)
				with := func(secret string) string {
					if way == "in the options" {
						return only(app, base.with("valkey.password", secret)).yaml(t)
					}
					if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
						t.Fatal(err)
					}
					// The same text as before: what changes is the file, and the
					// configuration around it.
					return only(app, base.with("valkey.passwordFile", file)).yaml(t)
				}
				tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, with(password))
				mustDecide(t, "before", ask(client, tr, 10), "shared")

				// As one rotates: the new one is good as well, then the old one no more.
				store.Do("ACL", "SETUSER", "gateway", ">"+next)
				tr.Reload(with(next))
				mustDecide(t, "while both are good", ask(client, tr, 10), "shared")
				store.Do("ACL", "SETUSER", "gateway", "<"+password)
				mustDecide(t, "with the new one", ask(client, tr, 10), "shared")

				// As one should not: the new one comes before the gateway knows.
				store.Do("ACL", "SETUSER", "gateway", "resetpass", ">"+third)
				store.Do("CLIENT", "KILL", "USER", "gateway")
				mustDecide(t, "with a password that is no longer good", ask(client, tr, 10), "local")
				tr.Reload(with(third))
				mustDecide(t, "after the reload", ask(client, tr, 10), "shared")

				lines := strings.Join(pluginLines(tr, 0), "\n")
				if !strings.Contains(lines, "WRONGPASS") {
					t.Errorf("the log lacks WRONGPASS:\n%s", lines)
				}
				for _, secret := range []string{password, next, third} {
					if strings.Contains(tr.Log(), secret) {
						t.Errorf("a password is in the log")
					}
				}
				// What passed meanwhile is settled by the connection that works.
				lab.Until(t, "everything is counted", func() bool { return countIn(t, store, 0, keyOf("quota@file", "key", id)) == 50 })
			})
		}
	})

	t.Run("db", func(t *testing.T) {
		t.Parallel()
		store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
		window, id := lab.QuietWindow(time.Now())
		base := shared(store.Addr(), limit, window)
		tr := lab.NewTraefik(t, lab.TraefikOptions{}, only(app, base).yaml(t))
		mustDecide(t, "before", ask(client, tr, 3), "shared")
		tr.Reload(only(app, base.with("valkey.db", 5)).yaml(t))
		mustDecide(t, "after", ask(client, tr, 4), "shared")
		key := keyOf("quota@file", "key", id)
		if first, fifth := countIn(t, store, 0, key), countIn(t, store, 5, key); first != 3 || fifth != 4 {
			t.Errorf("the databases have counted %d and %d, want 3 and 4", first, fifth)
		}
	})

	t.Run("timeout", func(t *testing.T) {
		t.Parallel()
		store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
		proxy := lab.NewProxy(t, store.Addr())
		window, _ := lab.QuietWindow(time.Now())
		base := shared(proxy.Addr(), limit, window)
		tr := lab.NewTraefik(t, lab.TraefikOptions{}, only(app, base).yaml(t))
		proxy.Set(lab.Faults{Delay: 300 * time.Millisecond})
		mustDecide(t, "a patient gateway", ask(client, tr, 2), "shared")
		tr.Reload(only(app, base.with("valkey.timeout", "100ms")).yaml(t))
		mustDecide(t, "an impatient one", ask(client, tr, 5), "local")
		tr.Reload(only(app, base.with("valkey.timeout", "4s")).yaml(t))
		mustDecide(t, "a patient one again", ask(client, tr, 2), "shared")
	})
}

// Instances of one middleware that a reload has made anew notice, each of them,
// that the store goes and comes back.
func TestInstancesNoticeTheStoreAfterReloads(t *testing.T) {
	t.Parallel()
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	config := func(n int) string {
		s := setup{app: app, middlewares: map[string]options{
			"quota": shared(store.Addr(), 100_000, window).with("valkey.timeout", "1s"),
			// A sibling that comes and goes.
			fmt.Sprintf("sibling%d", n): shared(store.Addr(), 10, window).with("valkey.timeout", "1s"),
		}, routers: map[string]router{
			"one":     {rule: "Path(`/one`)", middlewares: []string{"quota"}},
			"other":   {rule: "Path(`/other`)", middlewares: []string{"quota"}},
			"sibling": {rule: "Path(`/sibling`)", middlewares: []string{fmt.Sprintf("sibling%d", n)}},
		}}
		return s.yaml(t)
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, config(0))
	until := func(way string) {
		t.Helper()
		for _, path := range []string{"/one", "/other"} {
			lab.Until(t, path+" decides "+way, func() bool {
				a := client.Get(lab.Keyed(tr.URL+path, "key"))
				if a.Status != http.StatusOK {
					t.Errorf("%s: status %d", path, a.Status)
				}
				return a.Header.Get("X-RateLimit-Decision") == way
			})
		}
	}
	until("shared")
	for n := range 5 {
		mustBe(t, "sibling", client.Sequence(lab.Alternate(1, "key", tr.URL+"/sibling")), http.StatusOK)
		tr.Reload(config(n + 1))
	}
	until("shared")
	store.Kill()
	until("local")
	store.Start()
	until("shared")
	// And once more, so that what noticed it is still there.
	store.Stop()
	until("local")
	store.Start()
	until("shared")
	mustNotPanic(t, tr)
}
