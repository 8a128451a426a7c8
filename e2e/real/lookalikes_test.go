package real_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/gatequota/gatequota/e2e/lab"
)

// lookalike is a server that speaks as Valkey does.
type lookalike struct {
	addr   string
	client *redis.Client
	stop   func() // ends it
	start  func() // starts it again, empty, on the same address
}

// lookalikes start the servers that the plugin is to work with.
var lookalikes = map[string]func(t *testing.T) lookalike{
	"Valkey 8": func(t *testing.T) lookalike { return realServer(t, lab.StoreOptions{}) },
	"Redis 7":  func(t *testing.T) lookalike { return realServer(t, lab.StoreOptions{Redis: true}) },
	"Valkey 8 in cluster mode, alone": func(t *testing.T) lookalike {
		return realServer(t, lab.StoreOptions{Cluster: true})
	},
	"miniredis": func(t *testing.T) lookalike {
		server := miniredis.RunT(t)
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2, DisableIdentity: true})
		t.Cleanup(func() { _ = client.Close() })
		return lookalike{addr: server.Addr(), client: client, stop: server.Close, start: func() {
			server.FlushAll()
			if err := server.Restart(); err != nil {
				t.Fatal(err)
			}
		}}
	},
}

func realServer(t *testing.T, o lab.StoreOptions) lookalike {
	s := lab.Valkey(t, o)
	return lookalike{addr: s.Addr(), client: s.Client(), stop: s.Kill, start: s.Start}
}

// The same counting on every server that says it is like the one we test with.
func TestLookalikesCountAlike(t *testing.T) {
	t.Parallel()
	const limit = 20
	for name, start := range lookalikes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			ctx := context.Background()
			gateways := []*hosted{newHosted(t), newHosted(t)}
			window, id := lab.QuietWindow(time.Now())
			base := shared(server.addr, limit, window)
			both := func(o options) []func(string) lab.Answer {
				return []func(string) lab.Answer{gateways[0].handler(o), gateways[1].handler(o)}
			}

			t.Run("in turn", func(t *testing.T) {
				ask := both(base)
				var answers lab.Answers
				for i := range limit + 5 {
					answers = append(answers, ask[i%2]("in turn"))
				}
				mustBe(t, name, answers, http.StatusOK, http.StatusTooManyRequests)
				mustDecide(t, name, answers, "shared")
				mustHaveRemaining(t, name, answers, limit)
				for i, a := range answers {
					if want := max(0, limit-1-i); a.Number("X-RateLimit-Remaining") != want {
						t.Errorf("request %d: %d remaining, want %d", i+1, a.Number("X-RateLimit-Remaining"), want)
					}
				}
			})
			t.Run("at once", func(t *testing.T) {
				ask := both(base)
				if err := server.client.ScriptFlush(ctx).Err(); err != nil {
					t.Fatal(err)
				}
				answers := make(lab.Answers, 10*limit)
				var wg sync.WaitGroup
				for i := range answers {
					wg.Go(func() { answers[i] = ask[i%2]("at once") })
				}
				wg.Wait()
				mustDecide(t, name, answers, "shared")
				mustHaveRemaining(t, name, answers, limit)
			})
			t.Run("expiry", func(t *testing.T) {
				ask := both(base)
				ask[0]("expiry")
				ttl := server.client.PTTL(ctx, keyOf("quota@file", "expiry", id)).Val()
				if left := lab.UntilEdge(time.Now(), window); ttl <= 0 || ttl > left+2*time.Second || ttl < left-2*time.Second {
					t.Errorf("the key expires in %s, the window ends in %s", ttl, left)
				}
			})
			t.Run("values that are no counts", func(t *testing.T) {
				for what, spoil := range map[string]func(key string) error{
					"no expiry":    func(key string) error { return server.client.Persist(ctx, key).Err() },
					"a list":       func(key string) error { server.client.Del(ctx, key); return server.client.LPush(ctx, key, "x").Err() },
					"no number":    func(key string) error { return server.client.Set(ctx, key, "many", 0).Err() },
					"below zero":   func(key string) error { return server.client.Set(ctx, key, "-5", 0).Err() },
					"out of range": func(key string) error { return server.client.Set(ctx, key, "9223372036854775807", 0).Err() },
				} {
					ask := both(base)
					key := keyOf("quota@file", what, id)
					ask[0](what)
					if err := spoil(key); err != nil {
						t.Fatal(err)
					}
					var answers lab.Answers
					for i := range limit + 3 {
						answers = append(answers, ask[i%2](what))
					}
					mustDecide(t, what, answers, "shared")
					if got := answers.Count(http.StatusOK); got < limit-2 || got > limit {
						t.Errorf("%s: %d more requests were allowed", what, got)
					}
					if ttl := server.client.PTTL(ctx, key).Val(); ttl <= 0 {
						t.Errorf("%s: the key expires in %s", what, ttl)
					}
				}
			})
			t.Run("windows of a second", func(t *testing.T) {
				ask := both(base.with("window", "1s", "scope", "second"))
				for range 2 {
					lab.Until(t, "a request is refused", func() bool { return ask[0]("key").Status == http.StatusTooManyRequests })
					lab.Until(t, "one of the next window passes", func() bool { return ask[1]("key").Status == http.StatusOK })
				}
			})
			t.Run("restarted empty", func(t *testing.T) {
				ask := both(base.with("valkey.timeout", "1s", "valkey.dialTimeout", "1s"))
				var answers lab.Answers
				for range limit - 5 { // in turn, so that each gateway knows all but one
					answers = append(answers, ask[0]("restarted"), ask[1]("another"))
				}
				mustDecide(t, "before", answers, "shared")
				server.stop()
				for _, each := range ask {
					if way := each("meanwhile").Header.Get("X-RateLimit-Decision"); way != "local" {
						t.Errorf("decided %s without the server", way)
					}
				}
				server.start()
				for _, each := range ask {
					n := 0
					lab.Until(t, "the server counts", func() bool {
						n++
						return each(fmt.Sprintf("newcomer-%d", n)).Header.Get("X-RateLimit-Decision") == "shared"
					})
				}
				// The gateway goes on from what it knows.
				if a := ask[0]("restarted"); a.Number("X-RateLimit-Remaining") != 4 {
					t.Errorf("after a restart %d remain, want 4; decided %s", a.Number("X-RateLimit-Remaining"), a.Header.Get("X-RateLimit-Decision"))
				}
				// And tells the server of whoever does not come back.
				lab.Until(t, "the other client's count is there", func() bool {
					return server.client.Get(ctx, keyOf("quota@file", "another", id)).Val() == fmt.Sprint(limit-5)
				})
			})
			t.Run("gone", func(t *testing.T) {
				ask := gateways[0].handler(base.with("fallback.gateways", 1, "valkey.timeout", "1s", "valkey.dialTimeout", "1s"))
				server.stop()
				var answers lab.Answers
				for range limit + 5 {
					answers = append(answers, ask("gone"))
				}
				mustDecide(t, name, answers, "local")
				mustHaveRemaining(t, name, answers, limit)
			})
		})
	}
}
