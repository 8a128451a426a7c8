package real_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// A count that lost its expiry, or was put there by somebody else, does not lock
// a client out for ever.
func TestKeyWithoutExpiryHealsItself(t *testing.T) {
	t.Parallel()
	const limit = 5
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	length, id := lab.QuietWindow(time.Now())
	const short = 3 * time.Second
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, each(app, map[string]options{
		"long":  shared(store.Addr(), limit, length),
		"short": shared(store.Addr(), limit, short),
	}).yaml(t))
	ctx := context.Background()

	for name, spoil := range map[string]func(key string){
		"PERSIST":      func(key string) { store.Do("PERSIST", key) },
		"SET":          func(key string) { store.Do("SET", key, 2) },
		"a list":       func(key string) { store.Do("DEL", key); store.Do("LPUSH", key, "x") },
		"no number":    func(key string) { store.Do("SET", key, "many") },
		"below zero":   func(key string) { store.Do("SET", key, "-5") },
		"out of range": func(key string) { store.Do("SET", key, "9223372036854775807") },
	} {
		key := keyOf("long@file", name, id)
		mustBe(t, name, client.Sequence(lab.Alternate(1, name, tr.URL+"/long")), http.StatusOK)
		spoil(key)
		answers := client.Sequence(lab.Alternate(limit+3, name, tr.URL+"/long"))
		mustDecide(t, name, answers, "shared")
		mustBe(t, name, answers, http.StatusOK, http.StatusTooManyRequests)
		if got := answers.Count(http.StatusOK); got < limit-2 || got > limit {
			t.Errorf("%s: %d more requests were allowed, want no more than the limit and hardly less", name, got)
		}
		if ttl := store.Client().PTTL(ctx, key).Val(); ttl <= 0 || ttl > length {
			t.Errorf("%s: the key expires in %v", name, ttl)
		}
	}

	// Far beyond the limit and without expiry: refused now, allowed in a window.
	var refused lab.Answer
	lab.Until(t, "a request meets the count that was put there", func() bool {
		now := lab.AwaitRoom(short, short/2)
		store.Do("SET", keyOf("short@file", "far", now), 999)
		refused = client.Get(lab.Keyed(tr.URL+"/short", "far"))
		return refused.Window(short) == now
	})
	if refused.Status != http.StatusTooManyRequests {
		t.Errorf("status %d with a count of 999", refused.Status)
	}
	lab.Until(t, "the client is let through again", func() bool {
		return client.Get(lab.Keyed(tr.URL+"/short", "far")).Status == http.StatusOK
	})
	if stay := store.WithoutExpiry(); len(stay) > 0 {
		t.Errorf("keys without expiry: %q", stay)
	}
}

// A connection that is cut as soon as a command has been sent leaves a count with
// an expiry, and the command is not sent a second time.
func TestCutConnectionsLeaveNoKeyWithoutExpiryAndCountOnce(t *testing.T) {
	t.Parallel()
	const cuts = 1000
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	proxy := lab.NewProxy(t, store.Addr())
	window, id := lab.QuietWindow(time.Now())
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, only(app, shared(proxy.Addr(), 5, window)).yaml(t))
	mustDecide(t, "before", client.Sequence(lab.Alternate(1, "before", tr.URL)), "shared")

	for i := range cuts {
		key := fmt.Sprintf("cut-%d", i)
		digest := sha256.Sum256([]byte(key))
		proxy.Set(lab.Faults{CutAfter: []byte(hex.EncodeToString(digest[:]))})
		cut := client.Get(lab.Keyed(tr.URL, key))
		if cut.Status != http.StatusOK || cut.Header.Get("X-RateLimit-Decision") != "local" {
			t.Fatalf("cut %d: status %d, decided %q", i, cut.Status, cut.Header.Get("X-RateLimit-Decision"))
		}
		// One failure in a row: the store goes on being asked.
		if whole := client.Get(lab.Keyed(tr.URL, fmt.Sprintf("whole-%d", i))); whole.Header.Get("X-RateLimit-Decision") != "shared" {
			t.Fatalf("after cut %d: decided %q", i, whole.Header.Get("X-RateLimit-Decision"))
		}
	}
	// Now and then the gateway tells the store what it knows of its clients, and is cut
	// at the last of them.
	if got := proxy.Cuts(); got < cuts || got > cuts+cuts/10 {
		t.Errorf("%d connections were cut, want %d and a few", got, cuts)
	}
	for i := range cuts {
		key := keyOf("quota@file", fmt.Sprintf("cut-%d", i), id)
		lab.Until(t, "the command that was under way has arrived", func() bool {
			return store.Client().Exists(context.Background(), key).Val() == 1
		})
		if got := store.Client().Get(context.Background(), key).Val(); got != "1" {
			t.Errorf("%s was counted %s times", key, got)
		}
	}
	if stay := store.WithoutExpiry(); len(stay) > 0 {
		t.Errorf("%d keys without expiry: %q", len(stay), stay)
	}
	mustNotPanic(t, tr)
}

func TestExpiryIsTheRestOfTheWindow(t *testing.T) {
	t.Parallel()
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	middlewares := map[string]options{}
	for _, window := range []string{"100ms", "250ms", "1500ms", "1s", "2s", "86400s", "2592000s", "1d", "31622400", "31622401"} {
		middlewares["w"+window] = shared(store.Addr(), 1, 0).with("window", window)
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, each(app, middlewares).yaml(t))

	for _, refused := range []string{"100ms", "250ms", "1500ms", "31622401"} {
		if got := tr.RouterError("w" + refused + "@file"); !strings.Contains(got, "option window") || !strings.Contains(got, refused) {
			t.Errorf("window %s: %q", refused, got)
		}
	}
	for text, length := range map[string]time.Duration{
		"1s": time.Second, "2s": 2 * time.Second, "86400s": 24 * time.Hour, "1d": 24 * time.Hour,
		"2592000s": 720 * time.Hour, "31622400": 366 * 24 * time.Hour,
	} {
		// Of a window of a second little may be left when the key is looked at.
		lab.Until(t, "the key of a first request is found", func() bool {
			id := lab.AwaitRoom(length, 900*time.Millisecond)
			answer := client.Get(lab.Keyed(tr.URL+"/w"+text, "key"))
			before := lab.UntilEdge(time.Now(), length)
			ttl := store.Client().PTTL(context.Background(), keyOf("w"+text+"@file", "key", id)).Val()
			if ttl == -2 {
				return false
			}
			if answer.Header.Get("X-RateLimit-Decision") != "shared" || ttl <= 0 || ttl > before+time.Second || ttl > length {
				t.Errorf("window %s: status %d, expires in %v, %v left", text, answer.Status, ttl, before)
			}
			return true
		})
		if length > time.Minute {
			continue
		}
		// Used up; 50 ms into the next window it is allowed again.
		lab.Until(t, "a request is refused", func() bool {
			return client.Get(lab.Keyed(tr.URL+"/w"+text, "key")).Status == http.StatusTooManyRequests
		})
		time.Sleep(lab.UntilEdge(time.Now(), length) + 50*time.Millisecond)
		if got := client.Get(lab.Keyed(tr.URL+"/w"+text, "key")).Status; got != http.StatusOK {
			t.Errorf("window %s: status %d in the next window", text, got)
		}
	}
	if stay := store.WithoutExpiry(); len(stay) > 0 {
		t.Errorf("keys without expiry: %q", stay)
	}
}

// Limits and windows up to the largest are counted exactly, on both stores.
func TestLargeNumbersAreCountedExactly(t *testing.T) {
	t.Parallel()
	const most = 999_999_999_999_999
	limits := []int64{1, 1_000_000, 1_000_000_000, 1 << 31, 1 << 53, 1e15, most}
	windows := []time.Duration{time.Second, 24 * time.Hour, 31 * 24 * time.Hour, 366 * 24 * time.Hour}
	for name, o := range map[string]lab.StoreOptions{"Valkey": {}, "Redis 7": {Redis: true}} {
		t.Run(name, func(t *testing.T) {
			store, app, client := lab.Valkey(t, o), lab.NewApp(t, 1), lab.NewClient(t)
			middlewares := map[string]options{}
			for _, limit := range limits {
				for _, window := range windows {
					name := fmt.Sprintf("n%d-%d", limit, window/time.Second)
					middlewares[name] = shared(store.Addr(), 0, window).with("limit", strconv.FormatInt(limit, 10))
				}
			}
			tr := lab.NewTraefik(t, lab.TraefikOptions{}, each(app, middlewares).yaml(t))
			for _, limit := range limits {
				for _, window := range windows {
					name := fmt.Sprintf("n%d-%d", limit, window/time.Second)
					if limit > most {
						if got := tr.RouterError(name + "@file"); !strings.Contains(got, "option limit") || !strings.Contains(got, strconv.FormatInt(most, 10)) {
							t.Errorf("%s: %q", name, got)
						}
						continue
					}
					id := lab.AwaitRoom(window, 700*time.Millisecond)
					for i := range int64(3) {
						a := client.Get(lab.Keyed(tr.URL+"/"+name, "key"))
						if a.Window(window) != id && window == time.Second {
							break // the machine was too slow for a window of a second
						}
						status, remaining := http.StatusOK, limit-1-i
						if remaining < 0 {
							status, remaining = http.StatusTooManyRequests, 0
						}
						if a.Status != status || a.Header.Get("X-RateLimit-Remaining") != strconv.FormatInt(remaining, 10) ||
							a.Header.Get("X-RateLimit-Limit") != strconv.FormatInt(limit, 10) || a.Header.Get("X-RateLimit-Decision") != "shared" {
							t.Errorf("%s, request %d: status %d, %v", name, i+1, a.Status, a.Header)
						}
						for field, values := range a.Header {
							if strings.HasPrefix(field, "Ratelimit") && strings.ContainsAny(strings.TrimPrefix(values[0], `"`+name+`@file"`), "e+") {
								t.Errorf("%s: %s: %q", name, field, values)
							}
						}
					}
				}
			}
			// The largest count that can be, and one beyond.
			key := keyOf(fmt.Sprintf("n%d-%d@file", int64(most), int(windows[3]/time.Second)), "key", time.Now().Unix()/int64(windows[3]/time.Second))
			store.Do("SET", key, strconv.FormatInt(most-1, 10), "KEEPTTL")
			path := fmt.Sprintf("%s/n%d-%d", tr.URL, int64(most), int(windows[3]/time.Second))
			for i, want := range []int{http.StatusOK, http.StatusTooManyRequests, http.StatusTooManyRequests} {
				a := client.Get(lab.Keyed(path, "key"))
				if a.Status != want || a.Number("X-RateLimit-Remaining") != 0 || a.Header.Get("X-RateLimit-Decision") != "shared" {
					t.Errorf("at the largest limit, request %d: status %d, %v", i+1, a.Status, a.Header)
				}
			}
			if stay := store.WithoutExpiry(); len(stay) > 0 {
				t.Errorf("keys without expiry: %q", stay)
			}
		})
	}
}

// commandCalls returns how often a store has executed a command.
func commandCalls(t *testing.T, s *lab.Store, command string) int {
	t.Helper()
	text, err := s.Client().Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(text, "\r\n") {
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":calls="); ok {
			calls, _, _ := strings.Cut(rest, ",")
			n, err := strconv.Atoi(calls)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// A store that forgets its scripts costs one more sending of the script, and no
// request notices.
func TestForgottenScriptIsNoFailure(t *testing.T) {
	const limit = 50
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, only(app, shared(store.Addr(), limit, window)).yaml(t))
	const workers, clients = 100, 20
	load := client.Steady(t, workers, 20*time.Millisecond, func(n int) lab.Request {
		return lab.Keyed(tr.URL, fmt.Sprintf("client-%d", n%clients))
	})
	const flushes = 20
	for range flushes {
		store.Do("SCRIPT", "FLUSH", "SYNC")
		from := load.Len()
		lab.Until(t, "requests are answered", func() bool { return load.Len() >= from+2*workers })
	}
	// Another client that fills the store's memory for scripts.
	for i := range 600 {
		if err := store.Client().Eval(context.Background(), fmt.Sprintf("return %d", i), nil).Err(); err != nil {
			t.Fatal(err)
		}
	}
	from := load.Len()
	lab.Until(t, "requests are answered", func() bool { return load.Len() >= from+2*workers })
	answers := load.Stop()
	mustBe(t, "all", answers, http.StatusOK, http.StatusTooManyRequests)
	mustDecide(t, "all", answers, "shared")
	if got := answers.Count(http.StatusOK); got != clients*limit {
		t.Errorf("%d requests were allowed, want %d", got, clients*limit)
	}
	bodies := commandCalls(t, store, "eval") - 600
	t.Logf("%d answers, %d sendings of the script after %d flushes", len(answers), bodies, flushes)
	// As many connections as were under way when it was forgotten, at most.
	if most := (flushes + 2) * 32; bodies > most {
		t.Errorf("the script was sent %d times, want at most %d", bodies, most)
	}
	if lines := pluginLines(tr, 0); len(lines) > 0 {
		t.Errorf("logged: %q", lines)
	}
}

// The rights that the documentation asks for are enough; without them the
// gateway counts by itself and says why.
func TestRightsOfTheStoresUser(t *testing.T) {
	t.Parallel()
	const limit = 5
	enough := []any{"on", ">" + password, "resetkeys", "~rate:*", "resetchannels", "-@all",
		"+evalsha", "+eval", "+incrby", "+expire", "+ttl", "+get", "+del", "+time", "+zadd", "+zremrangebyscore", "+zcard"}
	for _, tt := range []struct {
		name   string
		redis  bool
		rights []any
		args   []string
		way    string
		says   string
	}{
		{name: "enough on Valkey", rights: enough, way: "shared"},
		{name: "enough on Redis 7", redis: true, rights: enough, way: "shared"},
		{name: "without TIME", rights: append(enough[:len(enough):len(enough)], "-time"), way: "shared", says: "refuses TIME"},
		{name: "without EVALSHA", rights: append(enough[:len(enough):len(enough)], "-evalsha"), way: "local", says: "EVALSHA"},
		{name: "without INCRBY", rights: append(enough[:len(enough):len(enough)], "-incrby"), way: "local", says: "INCRBY"},
		{name: "other keys", rights: append(enough[:len(enough):len(enough)], "resetkeys", "~other:*"), way: "local", says: "NOPERM"},
		{name: "EVALSHA renamed away", rights: enough, args: []string{"--rename-command", "EVALSHA", ""}, way: "local", says: "EVALSHA"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store, app, client := lab.Valkey(t, lab.StoreOptions{Redis: tt.redis, Args: tt.args}), lab.NewApp(t, 1), lab.NewClient(t)
			store.Do(append([]any{"ACL", "SETUSER", "gateway"}, tt.rights...)...)
			window, _ := lab.QuietWindow(time.Now())
			o := shared(store.Addr(), limit, window).with("valkey.username", "gateway", "valkey.password", password)
			tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, only(app, o).yaml(t))
			answers := client.Sequence(lab.Alternate(limit+5, "key", tr.URL))
			mustDecide(t, tt.name, answers, tt.way)
			mustHaveRemaining(t, tt.name, answers, limit)
			if stay := store.WithoutExpiry(); len(stay) > 0 {
				t.Errorf("keys without expiry: %q", stay)
			}
			lines := strings.Join(pluginLines(tr, 0), "\n")
			if n := len(pluginLines(tr, 0)); n > 2 || (n == 0) != (tt.way == "shared" && tt.says == "") {
				t.Errorf("%d lines were logged", n)
			}
			if !strings.Contains(lines, tt.says) || strings.Contains(tr.Log(), password) {
				t.Errorf("the log lacks %q, or holds the password", tt.says)
			}
			t.Logf("logged:\n%s", lines)
		})
	}
}

// Rights that are missing for one prefix are no trouble of another.
func TestMissingRightsForOnePrefixSpareTheOthers(t *testing.T) {
	t.Parallel()
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	store.Do("ACL", "SETUSER", "gateway", "on", ">"+password, "~good:*", "+@all")
	window, _ := lab.QuietWindow(time.Now())
	base := shared(store.Addr(), 30, window).with("valkey.username", "gateway", "valkey.password", password)
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, each(app, map[string]options{
		"good": base.with("valkey.keyPrefix", "good"), "bad": base.with("valkey.keyPrefix", "bad"),
	}).yaml(t))
	for range 5 {
		mustDecide(t, "bad", client.Sequence(lab.Alternate(5, "key", tr.URL+"/bad")), "local")
		mustDecide(t, "good", client.Sequence(lab.Alternate(5, "key", tr.URL+"/good")), "shared")
	}
}

// Replies that arrive byte by byte are the same replies.
func TestSlicedRepliesDecideAlike(t *testing.T) {
	t.Parallel()
	const limit = 20
	store, app, client := lab.Valkey(t, lab.StoreOptions{Password: password}), lab.NewApp(t, 1), lab.NewClient(t)
	proxy := lab.NewProxy(t, store.Addr())
	proxy.Set(lab.Faults{Slice: true})
	window, _ := lab.QuietWindow(time.Now())
	base := shared(proxy.Addr(), limit, window).with("valkey.password", password, "valkey.db", 3)
	tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, each(app, map[string]options{
		"right":    base,
		"password": base.with("valkey.password", "wrong", "valkey.dialTimeout", "4s"),
		"db":       base.with("valkey.db", 999),
	}).yaml(t))
	answers := client.Sequence(lab.Alternate(limit+3, "sequence", tr.URL+"/right"))
	mustDecide(t, "sliced", answers, "shared")
	mustHaveRemaining(t, "sliced", answers, limit)
	answers = client.Burst(20, lab.Alternate(2*limit, "burst", tr.URL+"/right"))
	mustDecide(t, "sliced", answers, "shared")
	mustHaveRemaining(t, "sliced", answers, limit)

	// An error line in slices, in the middle of the work.
	store.Do("CONFIG", "SET", "maxmemory", "1")
	mustDecide(t, "sliced error", client.Sequence(lab.Alternate(1, "newcomer", tr.URL+"/right")), "local")
	store.Do("CONFIG", "SET", "maxmemory", "0")
	mustDecide(t, "after the error", client.Sequence(lab.Alternate(1, "other", tr.URL+"/right")), "shared")

	for path, word := range map[string]string{"password": "WRONGPASS", "db": "ERR"} {
		answers = client.Sequence(lab.Alternate(limit+3, "key", tr.URL+"/"+path))
		mustDecide(t, path, answers, "local")
		mustHaveRemaining(t, path, answers, limit)
		var n int
		for _, line := range pluginLines(tr, 0) {
			if names(line, word) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s: %d lines name %s, want 1", path, n, word)
		}
	}
}

// names tells whether a log names the first word of what a store answered, which
// may be that of Traefik's log level too.
func names(lines, word string) bool {
	if word == "ERR" {
		word = "answered with ERR"
	}
	return strings.Contains(lines, word)
}

// Whatever the store wants and the gateway offers: it works, or the gateway counts
// by itself and names the store's first word, and never the password.
func TestLogIn(t *testing.T) {
	t.Parallel()
	const limit = 3
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	open := lab.Valkey(t, lab.StoreOptions{})
	guarded := lab.Valkey(t, lab.StoreOptions{Password: password})
	users := lab.Valkey(t, lab.StoreOptions{})
	users.Do("ACL", "SETUSER", "gateway", "on", ">"+password, "~*", "+@all")
	closed := lab.Valkey(t, lab.StoreOptions{})
	closed.Do("ACL", "SETUSER", "gateway", "on", ">"+password, "~*", "+@all")
	closed.Do("ACL", "SETUSER", "default", "off")

	const wrong = "Mistaken-4410"
	credentials := map[string]options{
		"nothing":    {},
		"password":   {"password": password},
		"user":       {"username": "gateway", "password": password},
		"wrong":      {"password": wrong},
		"wrong-user": {"username": "nobody", "password": password},
	}
	window, _ := lab.QuietWindow(time.Now())
	for _, server := range []struct {
		name  string
		store *lab.Store
		want  map[string]string // first word of the refusal; empty where it works
	}{
		{"open", open, map[string]string{"nothing": "", "password": "ERR", "user": "WRONGPASS", "wrong": "ERR", "wrong-user": "WRONGPASS"}},
		{"guarded", guarded, map[string]string{"nothing": "NOAUTH", "password": "", "user": "WRONGPASS", "wrong": "WRONGPASS", "wrong-user": "WRONGPASS"}},
		{"users", users, map[string]string{"nothing": "", "password": "ERR", "user": "", "wrong": "ERR", "wrong-user": "WRONGPASS"}},
		{"closed", closed, map[string]string{"nothing": "NOAUTH", "password": "ERR", "user": "", "wrong": "ERR", "wrong-user": "WRONGPASS"}},
	} {
		t.Run(server.name, func(t *testing.T) {
			middlewares := map[string]options{
				"user-only": shared(server.store.Addr(), limit, window).with("valkey.username", "gateway"),
			}
			for name, c := range credentials {
				o := shared(server.store.Addr(), limit, window)
				for option, value := range c {
					o = o.with("valkey."+option, value)
				}
				middlewares[name] = o
			}
			tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, each(app, middlewares).yaml(t))
			if got := tr.RouterError("user-only@file"); !strings.Contains(got, "valkey.username") {
				t.Errorf("a user without a password: %q", got)
			}
			for name, word := range server.want {
				mark := tr.LogSize()
				way := "shared"
				if word != "" {
					way = "local"
				}
				answers := client.Sequence(lab.Alternate(limit+3, "key", tr.URL+"/"+name))
				mustDecide(t, name, answers, way)
				mustHaveRemaining(t, name, answers, limit)
				lines := strings.Join(pluginLines(tr, mark), "\n")
				if !names(lines, word) || (word == "") != (lines == "") {
					t.Errorf("%s: logged %q, want a line that names %q", name, lines, word)
				}
			}
			if log := tr.Log(); strings.Contains(log, password) || strings.Contains(log, wrong) {
				t.Errorf("a password is in the log:\n%s", log)
			}
		})
	}
}

func TestUnusualPasswords(t *testing.T) {
	t.Parallel()
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	store := lab.Valkey(t, lab.StoreOptions{})
	window, _ := lab.QuietWindow(time.Now())
	passwords := map[string]string{
		"blanks":   " a  b ",
		"signs":    `p@s:s/w#o[r]d%"'\$`,
		"umlauts":  "Schlüssel-鍵-🔑",
		"long":     strings.Repeat("0123456789", 20),
		"inner-lf": "line\nline",
		"crlf":     "a\r\n$3\r\nb",
		"number":   "12345",
	}
	middlewares := map[string]options{}
	for name, secret := range passwords {
		store.Do("ACL", "SETUSER", name, "on", ">"+secret, "~*", "+@all")
		base := shared(store.Addr(), 3, window).with("valkey.username", name)
		middlewares[name] = base.with("valkey.password", secret)
		middlewares[name+"-file"] = base.with("valkey.passwordFile", lab.PasswordFile(t, secret))
		middlewares[name+"-file-lf"] = base.with("valkey.passwordFile", lab.PasswordFile(t, secret+"\n"))
		middlewares[name+"-file-crlf"] = base.with("valkey.passwordFile", lab.PasswordFile(t, secret+"\r\n"))
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, each(app, middlewares).yaml(t))
	for name := range middlewares {
		answers := client.Sequence(lab.Alternate(4, "key", tr.URL+"/"+name))
		mustDecide(t, name, answers, "shared")
		mustHaveRemaining(t, name, answers, 3)
	}
	for name, secret := range passwords {
		if len(secret) > 5 && strings.Contains(tr.Log(), secret) {
			t.Errorf("%s: the password is in the log", name)
		}
	}
}

// One side speaks TLS and the other does not, or the certificate is not right:
// the gateway counts by itself at once and names the trouble.
func TestEncryptionMismatches(t *testing.T) {
	t.Parallel()
	const limit = 3
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	authority, stranger := lab.NewAuthority(t), lab.NewAuthority(t)
	plainStore := lab.Valkey(t, lab.StoreOptions{})
	store := lab.Valkey(t, lab.StoreOptions{TLS: authority})
	expired := lab.Valkey(t, lab.StoreOptions{TLS: authority, Pair: authority.IssueExpired(t, "expired", "127.0.0.1")})
	elsewhere := lab.Valkey(t, lab.StoreOptions{TLS: authority, Pair: authority.Issue(t, "elsewhere", "elsewhere.test")})
	window, _ := lab.QuietWindow(time.Now())
	with := func(s string, pairs ...any) options {
		return shared(s, limit, window).with("valkey.dialTimeout", "1s").with(pairs...)
	}
	own := authority.Issue(t, "gateway", "gateway")
	httpAddr := strings.TrimPrefix(app.URLs[0], "http://")
	cases := map[string]struct {
		o    options
		says string // empty where it works
	}{
		"right":           {with(store.Addr(), "valkey.tls.ca", authority.CertFile), ""},
		"client-cert":     {with(store.Addr(), "valkey.tls.ca", authority.CertFile, "valkey.tls.cert", own.CertFile, "valkey.tls.key", own.KeyFile), ""},
		"unchecked":       {with(elsewhere.Addr(), "valkey.tls.insecureSkipVerify", true), ""},
		"named":           {with(elsewhere.Addr(), "valkey.tls.ca", authority.CertFile, "valkey.tls.serverName", "elsewhere.test"), ""},
		"plain-to-tls":    {with(store.Addr()), "resp:"},
		"tls-to-plain":    {with(plainStore.Addr(), "valkey.tls.ca", authority.CertFile), "TLS handshake"},
		"unknown-issuer":  {with(store.Addr(), "valkey.tls.ca", stranger.CertFile), "unknown authority"},
		"system-issuers":  {with(store.Addr(), "valkey.tls.insecureSkipVerify", false), "unknown authority"},
		"expired":         {with(expired.Addr(), "valkey.tls.ca", authority.CertFile), "expired"},
		"wrong-name":      {with(elsewhere.Addr(), "valkey.tls.ca", authority.CertFile), "certificate"},
		"http":            {with(httpAddr), "resp:"},
		"tls-to-http":     {with(httpAddr, "valkey.tls.ca", authority.CertFile), "TLS handshake"},
		"tls-black-hole":  {with(lab.Blackhole(t), "valkey.tls.ca", authority.CertFile), "in time"},
		"plain-blackhole": {with(lab.Blackhole(t)), "in time"},
	}
	middlewares := map[string]options{}
	for name, c := range cases {
		middlewares[name] = c.o
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, each(app, middlewares).yaml(t))
	for name, c := range cases {
		mark, way := tr.LogSize(), "shared"
		if c.says != "" {
			way = "local"
		}
		answers := client.Sequence(lab.Alternate(limit+3, "key", tr.URL+"/"+name))
		mustDecide(t, name, answers, way)
		mustHaveRemaining(t, name, answers, limit)
		lines := strings.Join(pluginLines(tr, mark), "\n")
		if !strings.Contains(lines, c.says) || (c.says == "") != (lines == "") {
			t.Errorf("%s: logged %q, want a line that names %q", name, lines, c.says)
		}
	}
	mustNotPanic(t, tr)
}

func TestAddressForms(t *testing.T) {
	t.Parallel()
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	store := lab.Valkey(t, lab.StoreOptions{Unix: true})
	window, _ := lab.QuietWindow(time.Now())
	port := strconv.Itoa(store.Port)
	accepted := []string{"localhost:" + port, "127.0.0.1:" + port, "[::1]:" + port, "unix://" + store.Socket()}
	// Accepted for their form; nothing listens on the port that they imply.
	implied := []string{"localhost", "127.0.0.1", "::1", "[::1]"}
	refused := []string{
		" localhost:" + port + " ", "redis://user:Sesame-7719@127.0.0.1:" + port + "/1", "localhost:0", "localhost:70000",
		"", "localhost:" + port + ",localhost:6380", "localhost:", ":" + port, "localhost:abc", "unix://relative", "http://localhost",
	}
	middlewares := map[string]options{}
	for prefix, forms := range map[string][]string{"a": accepted, "i": implied, "r": refused} {
		for i, form := range forms {
			middlewares[fmt.Sprintf("%s%d-", prefix, i)] = shared(form, 3, window).with("valkey.dialTimeout", "1s")
		}
	}
	middlewares["two-"] = shared("", 3, window).with("valkey.endpoints", []string{store.Addr(), store.Addr()})
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, each(app, middlewares).yaml(t))
	for i, form := range accepted {
		answers := client.Sequence(lab.Alternate(4, "key", fmt.Sprintf("%s/a%d-", tr.URL, i)))
		mustDecide(t, form, answers, "shared")
		mustHaveRemaining(t, form, answers, 3)
	}
	for i, form := range implied {
		if got := tr.RouterError(fmt.Sprintf("i%d-@file", i)); got != "" {
			t.Errorf("%q is refused: %s", form, got)
		}
	}
	for i, form := range refused {
		if got := tr.RouterError(fmt.Sprintf("r%d-@file", i)); !strings.Contains(got, "valkey.endpoints") {
			t.Errorf("%q: %q", form, got)
		}
	}
	if got := tr.RouterError("two-@file"); !strings.Contains(got, "valkey.endpoints") {
		t.Errorf("two endpoints: %q", got)
	}
	if strings.Contains(tr.Log(), password) {
		t.Error("a password that stands in an address is in the log")
	}
}
