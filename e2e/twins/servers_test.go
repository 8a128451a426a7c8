package twins_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/gatequota/gatequota/e2e/lab"
)

// A server runs the scripts.
type server struct {
	admin  *redis.Client
	client *redis.Client
	clock  clock
	mini   *miniredis.Miniredis
}

// A clock says by which the scripts judge.
type clock int

const (
	gateways clock = iota // by that of the gateway that asks: the user may not call TIME
	set                   // by the server's, which the test sets
	own                   // by the server's, which goes by itself
)

// servers are the ways to run the scripts.
var servers = map[string]func(t *testing.T) *server{
	"Valkey, by the gateways' clocks": func(t *testing.T) *server { return timeless(t, lab.Valkey(t, lab.StoreOptions{})) },
	"Redis, by the gateways' clocks":  func(t *testing.T) *server { return timeless(t, lab.Valkey(t, lab.StoreOptions{Redis: true})) },
	"Valkey, by its own clock": func(t *testing.T) *server {
		s := lab.Valkey(t, lab.StoreOptions{})
		return &server{admin: s.Client(), client: s.Client(), clock: own}
	},
	"miniredis": func(t *testing.T) *server {
		mini := miniredis.RunT(t)
		mini.ClockTTL(true)
		client := redis.NewClient(&redis.Options{Addr: mini.Addr(), Protocol: 2, DisableIdentity: true})
		t.Cleanup(func() { _ = client.Close() })
		return &server{admin: client, client: client, clock: set, mini: mini}
	},
}

// timeless is a server whose user may not call TIME.
func timeless(t *testing.T, s *lab.Store) *server {
	s.Do("ACL", "SETUSER", "timeless", "on", "nopass", "~*", "&*", "+@all", "-time")
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), Protocol: 2, DisableIdentity: true, Username: "timeless", Password: "any"})
	t.Cleanup(func() { _ = client.Close() })
	return &server{admin: s.Client(), client: client, clock: gateways}
}

// run makes a call, and returns its answer and what is left to each key, -2 ms where there
// is none. Where the time is not the server's, no key expires by itself: the time of a test
// and that of the server are not the same.
func (s *server) run(t *testing.T, c call) (answer string, lives []time.Duration) {
	t.Helper()
	ctx := context.Background()
	pipe := s.client.TxPipeline()
	said := pipe.Eval(ctx, c.script, c.keys, c.args...)
	var rests []*redis.DurationCmd
	for _, key := range c.keys {
		rests = append(rests, pipe.PTTL(ctx, key))
		if s.clock == gateways {
			pipe.Persist(ctx, key)
		}
	}
	_, _ = pipe.Exec(ctx)
	answer, err := said.Text()
	if err != nil {
		t.Fatalf("%v: %v", c.keys, err)
	}
	for _, rest := range rests {
		life := rest.Val()
		if life < 0 {
			life *= time.Millisecond / time.Nanosecond
		}
		lives = append(lives, life)
	}
	return answer, lives
}

// spoil does one of many bad things to a key.
func (s *server) spoil(t *testing.T, key string, dice int) {
	t.Helper()
	ctx := context.Background()
	if dice%8 != 7 {
		s.admin.Del(ctx, key)
	}
	var err error
	switch dice % 8 {
	case 0, 1:
	case 2:
		err = s.admin.Set(ctx, key, []string{"x", "-5", "0", "", "1e3", "9007199254740993", "99999999999999999999"}[dice/8%7], 0).Err()
	case 3:
		err = s.admin.LPush(ctx, key, "a", "b").Err()
	case 4:
		err = s.admin.HSet(ctx, key, "lack", []string{"x", "-1", "9999999999999999", "1.5"}[dice/8%4], "at", "5").Err()
	case 5:
		err = s.admin.HSet(ctx, key, "at", "7").Err()
	case 6:
		err = s.admin.SAdd(ctx, key, "a").Err()
	default:
		err = s.admin.Persist(ctx, key).Err()
	}
	if err != nil && !strings.Contains(err.Error(), "nil") {
		t.Fatal(err)
	}
}
