package real_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// leastRights are those that the documentation asks for.
var leastRights = []string{"+evalsha", "+eval", "+incrby", "+expire", "+ttl", "+get", "+del", "+time",
	"+zadd", "+zremrangebyscore", "+zcard"}

// withRights gives the user of the gateways its password and these rights alone.
func withRights(s *lab.Store, rights []string) {
	command := []any{"ACL", "SETUSER", "gateway", "reset", "on", ">" + password, "~rate:*", "-@all"}
	for _, right := range rights {
		command = append(command, right)
	}
	s.Do(command...)
}

// With the least rights two gateways count and learn of each other; a user without
// the rights to announce counts all the same, and each gateway believes that it is
// alone.
func TestLeastRightsAndThoseToAnnounce(t *testing.T) {
	t.Parallel()
	const limit = 10
	for _, tt := range []struct {
		name  string
		redis bool
		lacks string
		share int // of a newcomer's requests, at each of two gateways without the store
	}{
		{name: "Valkey", share: limit / 2},
		{name: "Redis 7", redis: true, share: limit / 2},
		{name: "without ZADD", lacks: "+zadd", share: limit},
		{name: "without ZREMRANGEBYSCORE", lacks: "+zremrangebyscore", share: limit},
		{name: "without ZCARD", lacks: "+zcard", share: limit},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store, app, client := lab.Valkey(t, lab.StoreOptions{Redis: tt.redis}), lab.NewApp(t, 1), lab.NewClient(t)
			withRights(store, slices.DeleteFunc(slices.Clone(leastRights), func(right string) bool { return right == tt.lacks }))
			window, _ := lab.QuietWindow(time.Now())
			o := shared(store.Addr(), limit, window).with("valkey.username", "gateway", "valkey.password", password)
			all, urls := gateways(t, 2, lab.TraefikOptions{LogLevel: "ERROR"}, only(app, o))
			answers := client.Sequence(lab.Alternate(limit+5, "key", urls...))
			mustDecide(t, tt.name, answers, "shared")
			mustHaveRemaining(t, tt.name, answers, limit)

			const set = "rate:quota@file:gateways"
			if tt.lacks == "" {
				// Each has announced itself once more after both had, and so knows of both.
				first := map[string]float64{}
				lab.Until(t, "both gateways know of each other", func() bool {
					now, err := store.Client().ZRangeWithScores(context.Background(), set, 0, -1).Result()
					if err != nil || len(now) != 2 {
						return false
					}
					later := 0
					for _, each := range now {
						name := fmt.Sprint(each.Member)
						if _, seen := first[name]; !seen {
							first[name] = each.Score
						}
						if each.Score > first[name] {
							later++
						}
					}
					return later == 2
				})
				if ttl := store.Client().TTL(context.Background(), set).Val(); ttl <= 0 || ttl > time.Minute {
					t.Errorf("the gateways' set expires in %v", ttl)
				}
			} else {
				for i, tr := range all {
					lab.Until(t, "the gateway says what it misses", func() bool { return len(pluginLines(tr, 0)) > 0 })
					if lines := pluginLines(tr, 0); len(lines) != 1 || !strings.Contains(lines[0], strings.ToUpper(tt.lacks[1:])) || !strings.Contains(lines[0], "fallback.gateways") {
						t.Errorf("gateway %d logged %q", i+1, lines)
					}
				}
			}
			if stay := store.WithoutExpiry(); tt.lacks == "" && len(stay) > 0 {
				t.Errorf("keys without expiry: %q", stay)
			}
			before := map[int]int{}
			for i, tr := range all {
				before[i] = len(pluginLines(tr, 0))
			}
			if tt.lacks == "" && before[0]+before[1] > 0 {
				t.Errorf("with all rights something was logged: %q, %q", pluginLines(all[0], 0), pluginLines(all[1], 0))
			}

			store.Kill()
			for i, url := range urls {
				lab.Until(t, "the gateway counts by itself", func() bool {
					return client.Get(lab.Keyed(url, fmt.Sprintf("warm-%d-%d", i, time.Now().UnixNano()))).Header.Get("X-RateLimit-Decision") == "local"
				})
				alone := client.Sequence(lab.Alternate(limit+2, "newcomer", url))
				mustDecide(t, url, alone, "local")
				mustHaveRemaining(t, fmt.Sprintf("gateway %d without the store", i+1), alone, tt.share)
			}
			for _, tr := range all {
				if strings.Contains(tr.Log(), password) {
					t.Error("the password is in the log")
				}
			}
		})
	}
}

// What an operator may want of a connection, all at once: a user with the least
// rights, over TLS where the server lets in only who shows a certificate, by IPv6,
// with a name that is not that of the endpoint; and over a unix socket.
func TestTransportsWithTheLeastRights(t *testing.T) {
	t.Parallel()
	const limit = 5
	authority, stranger := lab.NewAuthority(t), lab.NewAuthority(t)
	secure := lab.Valkey(t, lab.StoreOptions{TLS: authority, TLSClient: true, Pair: authority.Issue(t, "store", "127.0.0.1", "valkey.test")})
	socket := lab.Valkey(t, lab.StoreOptions{Unix: true})
	for _, store := range []*lab.Store{secure, socket} {
		withRights(store, append([]string{"+select"}, leastRights...))
	}
	own, other := authority.Issue(t, "gateway", "gateway"), stranger.Issue(t, "gateway", "gateway")
	window, id := lab.QuietWindow(time.Now())
	user := func(endpoint string) options {
		return shared(endpoint, limit, window).with("valkey.username", "gateway", "valkey.passwordFile", lab.PasswordFile(t, password))
	}
	overTLS := user(fmt.Sprintf("[::1]:%d", secure.Port)).with("valkey.tls.ca", authority.CertFile, "valkey.tls.serverName", "valkey.test")
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	cases := map[string]struct {
		o   options
		way string
	}{
		"certificate":       {overTLS.with("valkey.tls.cert", own.CertFile, "valkey.tls.key", own.KeyFile), "shared"},
		"no-certificate":    {overTLS, "local"},
		"wrong-certificate": {overTLS.with("valkey.tls.cert", other.CertFile, "valkey.tls.key", other.KeyFile), "local"},
		"wrong-name":        {overTLS.with("valkey.tls.cert", own.CertFile, "valkey.tls.key", own.KeyFile, "valkey.tls.serverName", "elsewhere.test"), "local"},
		"socket":            {user("unix://" + socket.Socket()), "shared"},
		"socket-db":         {user("unix://"+socket.Socket()).with("valkey.db", 2), "shared"},
	}
	middlewares := map[string]options{}
	for name, c := range cases {
		middlewares[name] = c.o
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, each(app, middlewares).yaml(t))
	for name, c := range cases {
		mark := tr.LogSize()
		answers := client.Sequence(lab.Alternate(limit+3, "key", tr.URL+"/"+name))
		mustBe(t, name, answers, http.StatusOK, http.StatusTooManyRequests)
		mustDecide(t, name, answers, c.way)
		mustHaveRemaining(t, name, answers, limit)
		if lines := pluginLines(tr, mark); (len(lines) > 0) != (c.way == "local") {
			t.Errorf("%s: logged %q", name, lines)
		}
	}
	for _, at := range []struct {
		name string
		db   int
	}{{"socket", 0}, {"socket-db", 2}} {
		if got := countIn(t, socket, at.db, keyOf(at.name+"@file", "key", id)); got != limit {
			t.Errorf("%s: the store has counted %d, want %d", at.name, got, limit)
		}
	}
	if strings.Contains(tr.Log(), password) {
		t.Error("the password is in the log")
	}
}
