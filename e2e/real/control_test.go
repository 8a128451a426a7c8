package real_test

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatequota/gatequota/control"
	"github.com/gatequota/gatequota/e2e/lab"
	"github.com/gatequota/gatequota/internal/fakevalkey"
	"github.com/gatequota/gatequota/limiter"
)

const (
	controlKey = "rate:script:control"
	reportsKey = "rate:script:reports"
	gateway    = "0123456789abcdef"
)

// A controlCall is one call of the script by which gateways read what an operator has set.
type controlCall struct {
	gateway, report, digest string
	keep, before, version   int64
	fields                  string
}

func (c controlCall) args() []any {
	return []any{c.gateway, c.report, c.keep, c.digest, c.before, c.version, c.fields}
}

// read calls the script as a gateway does that knows nothing, and returns the digest and the
// fields.
func read(t *testing.T, client *redis.Client, c controlCall) (digest string, fields map[string]string) {
	t.Helper()
	if c.gateway == "" {
		c.gateway, c.report, c.keep = gateway, `{"version":0,"at":7}`, 60
	}
	text, err := client.Eval(context.Background(), limiter.ControlScript, []string{controlKey, reportsKey}, c.args()...).Text()
	if err != nil {
		t.Fatalf("%+v: %v", c, err)
	}
	digest, list, more := strings.Cut(text, " ")
	if !more {
		return digest, nil
	}
	sum := sha1.Sum([]byte(list))
	if want := hex.EncodeToString(sum[:]); digest != want {
		t.Errorf("the digest is %s, want %s of %s", digest, want, list)
	}
	var pairs []string
	if err := json.Unmarshal([]byte(list), &pairs); err != nil || len(pairs)%2 != 0 {
		t.Fatalf("the fields are %s: %v", list, err)
	}
	fields = map[string]string{}
	var names []string
	for i := 0; i < len(pairs); i += 2 {
		names = append(names, pairs[i])
		fields[pairs[i]] = pairs[i+1]
	}
	if !slices.IsSorted(names) {
		t.Errorf("the fields are not sorted: %q", names)
	}
	return digest, fields
}

// The script by which gateways read what an operator has set, on every server that it is to
// run on. In a cluster its keys are in two slots.
func TestControlScript(t *testing.T) {
	t.Parallel()
	for name, start := range lookalikes {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			s := start(t)
			if strings.Contains(name, "cluster") {
				err := s.client.Eval(ctx, limiter.ControlScript, []string{controlKey, reportsKey}, controlCall{gateway: gateway, report: "{}", keep: 60}.args()...).Err()
				if err == nil || !strings.HasPrefix(err.Error(), "CROSSSLOT") {
					t.Errorf("%v", err)
				}
				return
			}
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			set := func(fields map[string]string) {
				t.Helper()
				must(s.client.Del(ctx, controlKey).Err())
				for name, value := range fields {
					must(s.client.HSet(ctx, controlKey, name, value).Err())
				}
			}

			// Nothing is set.
			digest, fields := read(t, s.client, controlCall{})
			if len(fields) != 0 || fields == nil || digest != "97d170e1550eee4afc0af065b78cda302a97674c" {
				t.Errorf("nothing is set: %s, %v", digest, fields)
			}
			if again, fields := read(t, s.client, controlCall{gateway: gateway, report: `{"at":7}`, keep: 60, digest: digest}); again != digest || fields != nil {
				t.Errorf("unchanged: %s, %v", again, fields)
			}
			if got := s.client.HGetAll(ctx, reportsKey).Val(); len(got) != 1 || got[gateway] != `{"at":7}` {
				t.Errorf("the reports are %v", got)
			}
			if ttl := s.client.TTL(ctx, reportsKey).Val(); ttl < 30*time.Second || ttl > time.Minute {
				t.Errorf("the reports are kept for %s", ttl)
			}

			// All that can be set, and what cannot be: it comes through as it is.
			hash := strings.Repeat("0123456789abcdef", 4)
			wanted := map[string]string{
				"version": "7", "enabled": "true", "limit": "100", "limit:search:hour": "5", "window": "1h", "allow:" + hash: "1764526000 500 login=9", "block:" + hash: "1764526001",
				"epoch": "6 1764526003", "epoch:" + hash: "5 1764526002", "": "", "empty": "", "quotes": `"a\b/c"`, "ünï": "ço∂é 🙂", "control": "a\x00b\nc\td\x1f\x7f", "<html>": "a&b",
			}
			set(wanted)
			digest, fields = read(t, s.client, controlCall{})
			if !maps.Equal(fields, wanted) {
				t.Errorf("the fields are %q, want %q", fields, wanted)
			}
			if again, _ := read(t, s.client, controlCall{gateway: gateway, report: "{}", keep: 60, digest: digest}); again != digest {
				t.Errorf("unchanged: %s, and before %s", again, digest)
			}
			must(s.client.HSet(ctx, controlKey, "limit", "101").Err())
			if other, _ := read(t, s.client, controlCall{gateway: gateway, report: "{}", keep: 60, digest: digest}); other == digest {
				t.Error("a change is not seen")
			}

			// What the store has lost is put back, byte by byte, by whoever has a newer version.
			for _, tt := range []struct {
				what    string
				has     map[string]string
				version int64
				back    bool
			}{
				{"empty", nil, 7, true},
				{"an older version", map[string]string{"version": "6", "limit": "1", "window": "2"}, 7, true},
				{"no version", map[string]string{"limit": "1"}, 1, true},
				{"a version that is none", map[string]string{"version": "x", "limit": "1"}, 7, true},
				{"the same version", map[string]string{"version": "7", "limit": "1"}, 7, false},
				{"a newer version", map[string]string{"version": "999999999999999", "limit": "1"}, 999999999999998, false},
				{"nothing known", map[string]string{"limit": "1"}, 0, false},
			} {
				set(wanted)
				text, err := s.client.Eval(ctx, limiter.ControlScript, []string{controlKey, reportsKey}, controlCall{gateway: gateway, report: "{}", keep: 60}.args()...).Text()
				must(err)
				known, list, _ := strings.Cut(text, " ")
				for _, restore := range []bool{false, true} {
					set(tt.has)
					c := controlCall{gateway: gateway, report: "{}", keep: 60, digest: known, version: tt.version}
					if restore {
						c.fields = list
					}
					digest, _ := read(t, s.client, c)
					want := tt.has
					if restore && tt.back {
						want = wanted
					}
					if got := s.client.HGetAll(ctx, controlKey).Val(); !maps.Equal(got, want) || (digest == known) != (restore && tt.back) {
						t.Errorf("%s, put back %t: the store has %q, want %q; the answer is %s, known %s", tt.what, restore, got, want, digest, known)
					}
				}
			}
			if ttl := s.client.TTL(ctx, controlKey).Val(); ttl >= 0 {
				t.Errorf("what is set is forgotten after %s", ttl)
			}

			// Bytes that are no text survive as well.
			set(map[string]string{"version": "1", "limit": "\xff\xfe"})
			text, err := s.client.Eval(ctx, limiter.ControlScript, []string{controlKey, reportsKey}, controlCall{gateway: gateway, report: "{}", keep: 60}.args()...).Text()
			must(err)
			known, list, _ := strings.Cut(text, " ")
			set(nil)
			if digest, _ := read(t, s.client, controlCall{gateway: gateway, report: "{}", keep: 60, digest: known, version: 1, fields: list}); digest != known && name != "miniredis" {
				t.Errorf("%q is put back as %q", "\xff\xfe", s.client.HGet(ctx, controlKey, "limit").Val())
			}

			// Old reports go when they are looked for, those from times to come, and what is none;
			// others stay.
			must(s.client.HSet(ctx, reportsKey, "a", `{"version":1,"at":99,"x":"\"at\":500"}`, "b", `{"version":1,"at":100}`, "c", "rubbish", "d", "", "e", `{"at":"x"}`, "f", `{"at":220}`, "g", `{"at":221}`).Err())
			read(t, s.client, controlCall{gateway: gateway, report: `{"at":100}`, keep: 60, before: 0})
			if n := s.client.HLen(ctx, reportsKey).Val(); n != 8 {
				t.Errorf("%d reports are left, want all 8", n)
			}
			read(t, s.client, controlCall{gateway: gateway, report: `{"at":100}`, keep: 60, before: 100})
			if got := slices.Sorted(maps.Keys(s.client.HGetAll(ctx, reportsKey).Val())); !slices.Equal(got, []string{gateway, "b", "f"}) {
				t.Errorf("left are %q", got)
			}
			must(s.client.Persist(ctx, reportsKey).Err())
			read(t, s.client, controlCall{})
			if ttl := s.client.TTL(ctx, reportsKey).Val(); ttl < 0 {
				t.Error("reports without an expiry stay without one")
			}

			// What is too large, or something else, is said so, and harms no other key.
			refused := func(what, word string) {
				t.Helper()
				err := s.client.Eval(ctx, limiter.ControlScript, []string{controlKey, reportsKey}, controlCall{gateway: gateway, report: "{}", keep: 60}.args()...).Err()
				if err == nil || !strings.HasPrefix(err.Error(), word) && !(name == "miniredis" && strings.Contains(err.Error(), word)) {
					t.Errorf("%s: %v, want %s", what, err, word)
				}
			}
			many := map[string]any{}
			for i := range 4096 {
				many["field"+strconv.Itoa(i)] = "x"
			}
			set(nil)
			must(s.client.HSet(ctx, controlKey, many).Err())
			if _, fields := read(t, s.client, controlCall{}); len(fields) != 4096 {
				t.Errorf("of 4096 fields %d are read", len(fields))
			}
			must(s.client.HSet(ctx, controlKey, "one", "more").Err())
			refused("4097 fields", "CONTROL")
			set(map[string]string{"large": strings.Repeat("x", 899_988)})
			if digest, fields := read(t, s.client, controlCall{}); len(fields["large"]) != 899_988 || digest == "" {
				t.Errorf("of 900000 bytes %d are read", len(fields["large"]))
			}
			set(map[string]string{"large": strings.Repeat("x", 899_989)})
			refused("900001 bytes", "CONTROL")
			must(s.client.Del(ctx, controlKey).Err())
			must(s.client.LPush(ctx, controlKey, "x").Err())
			refused("a list", "WRONGTYPE")
			must(s.client.Del(ctx, controlKey, reportsKey).Err())
			must(s.client.Set(ctx, reportsKey, "x", 0).Err())
			refused("reports that are none", "WRONGTYPE")
		})
	}
}

// The fake that other tests use answers as real servers do, whatever is called in whatever
// order.
func TestFakeControlsAnswerAlike(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	client := lab.Valkey(t, lab.StoreOptions{}).Client()
	seed := rand.Int63()
	random := rand.New(rand.NewSource(seed))
	fake := &fakevalkey.Controls{}
	server := fakevalkey.Start(t, fakevalkey.Config{})
	var known []controlCall // what gateways may have
	for step := range 2000 {
		switch random.Intn(6) {
		case 0:
			field, value := []string{"limit", "window", "version", "epoch", "a/b"}[random.Intn(5)], strconv.Itoa(random.Intn(20))
			fake.Set(controlKey, field, value)
			client.HSet(ctx, controlKey, field, value)
		case 1:
			if random.Intn(4) == 0 {
				fake.Flush()
				client.FlushAll(ctx)
			}
		}
		c := controlCall{gateway: fmt.Sprintf("%016x", random.Intn(3)), report: fmt.Sprintf(`{"version":%d,"at":%d}`, step, random.Intn(50)), keep: 60, before: int64(random.Intn(2) * random.Intn(50))}
		if len(known) > 0 && random.Intn(3) > 0 {
			k := known[random.Intn(len(known))]
			c.digest, c.version = k.digest, k.version
			if random.Intn(2) == 0 {
				c.fields = k.fields
			}
		}
		args := []string{controlKey, reportsKey}
		for _, arg := range c.args() {
			args = append(args, fmt.Sprint(arg))
		}
		said := fake.Call(server, args)
		text, err := client.Eval(ctx, limiter.ControlScript, args[:2], c.args()...).Text()
		if err != nil {
			t.Fatalf("seed %d, step %d: %+v: %v", seed, step, c, err)
		}
		if want := fakevalkey.Bulk(text); said != want {
			t.Fatalf("seed %d, step %d: %+v is answered %q by the fake and %q by the server", seed, step, c, said, want)
		}
		for _, key := range []string{controlKey, reportsKey} {
			if got, want := fake.Hash(key), client.HGetAll(ctx, key).Val(); !maps.Equal(got, want) {
				t.Fatalf("seed %d, step %d: %+v leaves %v in the fake and %v in the server", seed, step, c, got, want)
			}
		}
		if digest, list, more := strings.Cut(text, " "); more {
			var pairs []string
			_ = json.Unmarshal([]byte(list), &pairs)
			state, _ := control.Parse(pairs)
			known = append(known, controlCall{digest: digest, version: state.Version, fields: list})
		}
	}
}

// What a gateway reads of a real store is what was set.
func TestControlScriptIsParsed(t *testing.T) {
	t.Parallel()
	client := lab.Valkey(t, lab.StoreOptions{}).Client()
	hash := strings.Repeat("0123456789abcdef", 4)
	want := []string{"version", "3", "enabled", "false", "dryRun", "true", "limit", "5", "limit:login", "6", "window", "1h", "allow:" + hash, "100 5 login=7", "block:" + hash, "200", "epoch", "3 50", "epoch:" + hash, "2 60"}
	for i := 0; i < len(want); i += 2 {
		if err := client.HSet(context.Background(), controlKey, want[i], want[i+1]).Err(); err != nil {
			t.Fatal(err)
		}
	}
	_, fields := read(t, client, controlCall{})
	var pairs []string
	for name, value := range fields {
		pairs = append(pairs, name, value)
	}
	got, problems := control.Parse(pairs)
	state, _ := control.Parse(want)
	if problems != nil || !reflect.DeepEqual(got, state) {
		t.Errorf("%+v, %+v, want %+v", got, problems, state)
	}
}

// The script needs these rights and no others. Of those that it misses itself servers say so
// as of an error of the script.
func TestControlScriptNeedsTheseRights(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	needed := []string{"+eval", "+evalsha", "+hlen", "+hget", "+hgetall", "+hset", "+hdel", "+del", "+expire"}
	for name, redisServer := range map[string]bool{"Valkey": false, "Redis": true} {
		t.Run(name, func(t *testing.T) {
			s := lab.Valkey(t, lab.StoreOptions{Redis: redisServer})
			call := func(rights []string, keys string) error {
				t.Helper()
				args := []any{"ACL", "SETUSER", "gate", "reset", "on", "nopass", keys, "-@all"}
				for _, right := range rights {
					args = append(args, right)
				}
				if err := s.Client().Do(ctx, args...).Err(); err != nil {
					t.Fatal(err)
				}
				client := redis.NewClient(&redis.Options{Addr: s.Addr(), Protocol: 2, DisableIdentity: true, Username: "gate", Password: "any"})
				defer func() { _ = client.Close() }()
				s.Client().Del(ctx, controlKey, reportsKey)
				s.Client().HSet(ctx, controlKey, "version", "1", "limit", "5")
				s.Client().HSet(ctx, reportsKey, "old", `{"at":1}`)
				return client.Eval(ctx, limiter.ControlScript, []string{controlKey, reportsKey}, controlCall{gateway: gateway, report: "{}", keep: 60, before: 100, version: 2, fields: `["version","2"]`}.args()...).Err()
			}
			if err := call(needed, "~rate:*"); err != nil {
				t.Errorf("with all rights: %v", err)
			}
			for i, right := range needed {
				if right == "+evalsha" {
					continue
				}
				without := append(append([]string{}, needed[:i]...), needed[i+1:]...)
				err := call(without, "~rate:*")
				if err == nil || !strings.HasPrefix(err.Error(), "NOPERM") && !strings.HasPrefix(err.Error(), "ERR ACL failure in script: User gate has no permissions to run the '"+right[1:]+"' command") &&
					!strings.HasPrefix(err.Error(), "ERR The user executing the script can't run this command") {
					t.Errorf("without %s: %v", right, err)
				}
			}
			if err := call(needed, "~other:*"); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
				t.Errorf("for other keys: %v", err)
			}
		})
	}
}
