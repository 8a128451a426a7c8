package real_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/window"
)

// The script of the fixed window, called as the plugin calls it, on every server that
// it is to run on.
func TestFixedScript(t *testing.T) {
	t.Parallel()
	const key, largest = "rate:script:{client}:1", window.MaxCount
	for name, start := range lookalikes {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			s := start(t)
			now, err := s.client.Time(ctx).Result()
			if err != nil {
				t.Fatal(err)
			}
			end := now.Unix() + 3600
			call := func(n, known, end int64) int64 {
				t.Helper()
				count, err := s.client.Eval(ctx, window.FixedScript, []string{key}, n, known, 30, end).Int64()
				if err != nil {
					t.Fatalf("a call with %d, known %d: %v", n, known, err)
				}
				return count
			}
			value := func() string { return s.client.Get(ctx, key).Val() }
			expires := func() bool {
				ttl := s.client.TTL(ctx, key).Val()
				return ttl > 50*time.Minute && ttl <= time.Hour
			}

			for _, step := range []struct {
				about          string
				before         func() // what happened to the key
				n, known, want int64
			}{
				{"the first request", nil, 1, 0, 1},
				{"seven at once", nil, 7, 0, 8},
				{"less is known than is counted", nil, 1, 5, 9},
				{"more is known", nil, 2, 20, 22},
				{"nothing is added, and less is known", nil, 0, 5, 22},
				{"nothing is added, and more is known", nil, 0, 30, 30},
				{"the key is lost, and nothing is known", func() { s.client.Del(ctx, key) }, 3, 0, 3},
				{"the key is lost", func() { s.client.Del(ctx, key) }, 1, 40, 41},
				{"the key is lost, and nothing is added", func() { s.client.Del(ctx, key) }, 0, 40, 40},
				{"another type", func() { s.client.Del(ctx, key); s.client.LPush(ctx, key, "x") }, 1, 40, 41},
				{"no number", func() { s.client.Set(ctx, key, "x", 0) }, 1, 0, 1},
				{"no number, and more is known", func() { s.client.Set(ctx, key, "x", 0) }, 2, 40, 42},
				{"below zero", func() { s.client.Set(ctx, key, -5, time.Hour) }, 1, 3, 4},
				{"too large", func() { s.client.Set(ctx, key, "9223372036854775807", 0) }, 1, 0, 1},
				{"no expiry", func() { s.client.Persist(ctx, key) }, 1, 0, 2},
				{"no expiry, and nothing is added", func() { s.client.Persist(ctx, key) }, 0, 1, 2},
				{"the largest count", nil, 1, largest, largest + 1},
				{"one above it", nil, 1, 0, largest + 2},
			} {
				if step.before != nil {
					step.before()
				}
				if got := call(step.n, step.known, end); got != step.want || value() != strconv.FormatInt(step.want, 10) {
					t.Errorf("%s: the answer is %d and the value %q, want %d", step.about, got, value(), step.want)
				}
				if !expires() {
					t.Errorf("%s: the key lives for %s, want what is left of the hour", step.about, s.client.TTL(ctx, key).Val())
				}
			}

			// miniredis takes these digits for an integer, as no other server does.
			s.client.Set(ctx, key, "0010", 0)
			if got := call(1, 0, end); got != 1 && name != "miniredis" || !expires() {
				t.Errorf("digits that are no integer to the store: the answer is %d, and the key lives for %s", got, s.client.TTL(ctx, key).Val())
			}

			for _, n := range []int64{1, 0} {
				s.client.Del(ctx, key)
				if got := call(n, 9, now.Unix()-1); got != window.FixedOver || value() != "" {
					t.Errorf("%d requests of a window that is over: the answer is %d and the value %q", n, got, value())
				}
			}
		})
	}
}

// The script by which gateways make themselves known.
func TestAnnounceScript(t *testing.T) {
	t.Parallel()
	const key = "rate:script:gateways"
	for name, start := range lookalikes {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			s := start(t)
			announce := func(gateway string, want int64) {
				t.Helper()
				count, err := s.client.Eval(ctx, limiter.AnnounceScript, []string{key}, gateway, 15, 7).Int64()
				if err != nil || count != want {
					t.Errorf("%s is one of %d gateways (%v), want %d", gateway, count, err, want)
				}
			}
			announce("a", 1)
			announce("a", 1)
			announce("b", 2)
			announce("c", 3)
			// The store's own clock judges, and not the 7 of the caller.
			old := float64(time.Now().Unix() - 16)
			if err := s.client.ZIncrBy(ctx, key, old-s.client.ZScore(ctx, key, "b").Val(), "b").Err(); err != nil {
				t.Fatal(err)
			}
			announce("a", 2)
			if ttl := s.client.TTL(ctx, key).Val(); ttl < time.Second || ttl > 15*time.Second {
				t.Errorf("the gateways are forgotten after %s, want 15 s", ttl)
			}
		})
	}
}
