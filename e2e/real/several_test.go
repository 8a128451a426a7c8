package real_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatequota/gatequota/e2e/lab"
	"github.com/gatequota/gatequota/window"
)

// severalCount is what a call of the script says of one count.
type severalCount struct {
	key                              string
	limit, settled, known, left, end int64
}

// callSeveral calls the script as the plugin does.
func callSeveral(client *redis.Client, requests, cost int64, counts ...severalCount) (string, error) {
	var keys []string
	args := []any{requests, cost}
	for _, c := range counts {
		keys = append(keys, c.key)
		args = append(args, c.limit, c.settled, c.known, c.left, c.end)
	}
	return client.Eval(context.Background(), window.FixedSeveralScript, keys, args...).Text()
}

// The script of several fixed windows, on every server that it is to run on.
func TestFixedSeveralScript(t *testing.T) {
	t.Parallel()
	const short, long, largest = "rate:script:a:{client}:1", "rate:script:b:{client}:1", window.MaxCount
	for name, start := range lookalikes {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			s := start(t)
			now, err := s.client.Time(ctx).Result()
			if err != nil {
				t.Fatal(err)
			}
			ends := []int64{now.Unix() + 3600, now.Unix() + 7200}
			set := func(key string, value any, ttl time.Duration) func() {
				return func() { s.client.Del(ctx, key); s.client.Set(ctx, key, value, ttl) }
			}
			for _, step := range []struct {
				about                       string
				before                      func() // what happened to the keys
				requests, cost              int64
				limits, settled, knownTotal [2]int64
				answer, short, long         string
			}{
				{"the first", nil, 1, 7, [2]int64{100, 50}, [2]int64{}, [2]int64{}, "0 0", "7", "7"},
				{"three at once", nil, 3, 7, [2]int64{100, 50}, [2]int64{}, [2]int64{}, "7 7", "28", "28"},
				{"more than fit into the second", nil, 9, 7, [2]int64{100, 50}, [2]int64{}, [2]int64{}, "28 28", "49", "49"},
				{"none fits any more", nil, 1, 7, [2]int64{100, 50}, [2]int64{}, [2]int64{}, "49 49", "49", "49"},
				{"a cheaper one does, once", nil, 4, 1, [2]int64{100, 50}, [2]int64{}, [2]int64{}, "49 49", "50", "50"},
				{"more than fit into the first", nil, 30, 2, [2]int64{100, 5000}, [2]int64{}, [2]int64{}, "50 50", "100", "100"},
				{"below a count that is beyond its limit", nil, 1, 1, [2]int64{60, 5000}, [2]int64{}, [2]int64{}, "100 100", "100", "100"},
				{"what passed elsewhere, whatever the limit says", nil, 1, 1, [2]int64{60, 5000}, [2]int64{3, 5}, [2]int64{}, "103 105", "103", "105"},
				{"less is known than is counted", nil, 1, 1, [2]int64{500, 500}, [2]int64{}, [2]int64{50, 104}, "103 105", "104", "106"},
				{"more is known", nil, 1, 1, [2]int64{500, 500}, [2]int64{1, 0}, [2]int64{110, 20}, "111 106", "112", "107"},
				{"no request, and more is known", nil, 0, 1, [2]int64{500, 500}, [2]int64{0, 2}, [2]int64{120, 107}, "120 109", "120", "109"},
				{"no request", nil, 0, 9, [2]int64{1, 1}, [2]int64{}, [2]int64{}, "120 109", "120", "109"},
				{"one key is lost", func() { s.client.Del(ctx, short) }, 1, 2, [2]int64{500, 500}, [2]int64{}, [2]int64{}, "0 109", "2", "111"},
				{"both are lost, and one is known", func() { s.client.Del(ctx, short, long) }, 1, 2, [2]int64{500, 500}, [2]int64{}, [2]int64{0, 40}, "0 40", "2", "42"},
				{"both are lost, and nothing fits", func() { s.client.Del(ctx, short, long) }, 1, 2, [2]int64{1, 500}, [2]int64{}, [2]int64{}, "0 0", "", ""},
				{"another type", func() { s.client.LPush(ctx, short, "x") }, 1, 2, [2]int64{500, 500}, [2]int64{}, [2]int64{40, 0}, "40 0", "42", "2"},
				{"another type, the last", func() { s.client.Del(ctx, long); s.client.HSet(ctx, long, "x", 1) }, 1, 2, [2]int64{500, 500}, [2]int64{}, [2]int64{}, "42 0", "44", "2"},
				{"no number", set(short, "x", time.Hour), 1, 2, [2]int64{500, 500}, [2]int64{}, [2]int64{}, "0 2", "2", "4"},
				{"an empty text", set(long, "", 0), 1, 2, [2]int64{500, 500}, [2]int64{}, [2]int64{}, "2 0", "4", "2"},
				{"digits that are no integer to the store", set(long, "0010", 2*time.Hour), 1, 2, [2]int64{500, 500}, [2]int64{}, [2]int64{}, "4 0", "6", "2"},
				{"a fraction", set(short, "1.5", 0), 1, 2, [2]int64{500, 500}, [2]int64{}, [2]int64{}, "0 2", "2", "4"},
				{"an exponent", set(short, "1e3", 0), 1, 2, [2]int64{500, 500}, [2]int64{}, [2]int64{}, "0 4", "2", "6"},
				{"below zero", set(long, "-5", time.Hour), 1, 2, [2]int64{500, 500}, [2]int64{}, [2]int64{0, 3}, "2 3", "4", "5"},
				{"zero", set(long, "0", 0), 1, 2, [2]int64{500, 500}, [2]int64{}, [2]int64{}, "4 0", "6", "2"},
				{"too large", set(short, "9223372036854775807", 0), 1, 2, [2]int64{500, 500}, [2]int64{}, [2]int64{}, "0 2", "2", "4"},
				{"no expiry", func() { s.client.Persist(ctx, short); s.client.Persist(ctx, long) }, 1, 2, [2]int64{500, 500}, [2]int64{}, [2]int64{}, "2 4", "4", "6"},
				{"no expiry, and nothing fits", func() { s.client.Persist(ctx, short); s.client.Persist(ctx, long) }, 1, 2, [2]int64{5, 500}, [2]int64{}, [2]int64{}, "4 6", "4", "6"},
				{"the largest limit at the largest cost", func() { s.client.Del(ctx, short, long) }, 5, largest, [2]int64{largest, largest}, [2]int64{}, [2]int64{}, "0 0", "999999999999999", "999999999999999"},
				{"nothing is left of it", nil, 1, 1, [2]int64{largest, largest}, [2]int64{}, [2]int64{}, "999999999999999 999999999999999", "999999999999999", "999999999999999"},
				{"large, and one of many fits", func() { s.client.Del(ctx, short, long) }, largest, largest / 2, [2]int64{largest, largest}, [2]int64{}, [2]int64{400000000000000, 0}, "400000000000000 0", "899999999999999", "499999999999999"},
				{"as many as there can be", func() { s.client.Del(ctx, short, long) }, largest, 1, [2]int64{largest, largest}, [2]int64{}, [2]int64{}, "0 0", "999999999999999", "999999999999999"},
			} {
				if step.before != nil {
					step.before()
				}
				answer, err := callSeveral(s.client, step.requests, step.cost,
					severalCount{short, step.limits[0], step.settled[0], step.knownTotal[0], 30, ends[0]},
					severalCount{long, step.limits[1], step.settled[1], step.knownTotal[1], 30, ends[1]})
				got := []string{s.client.Get(ctx, short).Val(), s.client.Get(ctx, long).Val()}
				if err != nil || answer != step.answer || got[0] != step.short || got[1] != step.long {
					t.Errorf("%s: the answer is %q (%v) and the values %q, want %q, %q and %q", step.about, answer, err, got, step.answer, step.short, step.long)
				}
				for i, key := range []string{short, long} {
					hours := time.Duration(i+1) * time.Hour
					if ttl := s.client.TTL(ctx, key).Val(); got[i] != "" && (ttl <= hours-10*time.Minute || ttl > hours) {
						t.Errorf("%s: key %d lives for %s, want what is left of its window", step.about, i+1, ttl)
					}
				}
			}

			// A window that is over: nothing is counted, in no other window either.
			for _, over := range [][]int64{{now.Unix() - 1, ends[1]}, {ends[0], now.Unix() - 1}, {now.Unix() - 1, now.Unix() - 1}} {
				for _, before := range []func(key string){
					func(string) {},
					func(key string) { s.client.Set(ctx, key, 5, 0) },
					func(key string) { s.client.LPush(ctx, key, "x") },
				} {
					s.client.Del(ctx, short, long)
					want := []string{"20", "20"}
					for i, key := range []string{short, long} {
						if over[i] > now.Unix() {
							s.client.Set(ctx, key, 20, time.Hour)
						} else {
							before(key)
							want[i] = "-1"
						}
					}
					answer, err := callSeveral(s.client, 2, 3, severalCount{short, 100, 0, 9, 30, over[0]}, severalCount{long, 100, 0, 9, 30, over[1]})
					if err != nil || answer != strings.Join(want, " ") {
						t.Errorf("windows that end at %d: the answer is %q, %v; want %q", over, answer, err, want)
					}
					for i, key := range []string{short, long} {
						if got := s.client.Get(ctx, key).Val(); want[i] == "-1" && s.client.Exists(ctx, key).Val() != 0 || want[i] != "-1" && got != "20" {
							t.Errorf("windows that end at %d: the store has %q under key %d", over, got, i+1)
						}
					}
				}
			}

			// Many counts at once.
			var many []severalCount
			for i := range 20 {
				many = append(many, severalCount{fmt.Sprintf("rate:script:%d:{client}:1", i), largest, 0, largest - 10, 30, ends[0]})
			}
			answer, err := callSeveral(s.client, 1, 3, many...)
			if want := strings.TrimSpace(strings.Repeat("999999999999989 ", len(many))); err != nil || answer != want {
				t.Errorf("many counts: the answer is %q, %v", answer, err)
			}
		})
	}
}

// twinStore is what the store is to have, by the meaning of the scripts.
type twinStore struct {
	now    int64
	values map[string]twinValue
}

type twinValue struct {
	n       int64
	sick    bool // it is no count
	expires bool
}

// count is FixedSeveralScript.
func (s *twinStore) count(requests, cost int64, counts []severalCount) []int64 {
	before, lefts, over := make([]int64, len(counts)), make([]int64, len(counts)), false
	for i, c := range counts {
		v, found := s.values[c.key]
		if v.sick {
			delete(s.values, c.key)
			v, found = twinValue{}, false
		}
		if (!found || !v.expires) && c.end <= s.now {
			delete(s.values, c.key)
			before[i], over = window.FixedOver, true
			continue
		}
		before[i] = max(v.n, c.known) + c.settled
		lefts[i] = c.limit - before[i]
	}
	if over {
		return before
	}
	admitted := window.Admitted(lefts, requests, cost)
	for i, c := range counts {
		if n := before[i] + admitted*cost; n > 0 {
			s.values[c.key] = twinValue{n: n, expires: true}
		}
	}
	return before
}

// plain is FixedScript.
func (s *twinStore) plain(n int64, c severalCount) int64 {
	v, found := s.values[c.key]
	if v.sick {
		v, found = twinValue{}, false
	}
	if (!found || !v.expires || v.n == 0) && c.end <= s.now {
		delete(s.values, c.key)
		return window.FixedOver
	}
	count := max(v.n, c.known) + n
	s.values[c.key] = twinValue{n: count, expires: true}
	return count
}

// quietLengths returns so many lengths of windows of which now lies in the first half,
// and not at the edge. The parts of them that are over differ.
func quietLengths(now int64, n int) []int64 {
	var lengths []int64
	for length := int64(3600); len(lengths) < n; length += 60 {
		at := now % length
		known := slices.ContainsFunc(lengths, func(l int64) bool { return max(now%l-at, at-now%l) < 20 })
		if at >= 30 && at < length/2 && !known {
			lengths = append(lengths, length)
		}
	}
	return lengths
}

// The same random histories of gateways, with all that may happen to them and to the keys,
// give the same answers, counts and places in the store and in the twin.
func TestSeveralScriptAgreesWithItsTwin(t *testing.T) {
	t.Parallel()
	const rounds, steps = 12, 400
	for name, start := range map[string]func(*testing.T) lookalike{
		"Valkey 8": lookalikes["Valkey 8"], "Redis 7": lookalikes["Redis 7"], "cluster": lookalikes["Valkey 8 in cluster mode, alone"],
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			s := start(t)
			seen := map[string]int{}
			for round := range rounds {
				random := rand.New(rand.NewPCG(uint64(round), 1))
				s.client.FlushAll(ctx)
				clock, err := s.client.Time(ctx).Result()
				if err != nil {
					t.Fatal(err)
				}
				now := clock.Unix()
				twin := &twinStore{now: now, values: map[string]twinValue{}}
				lengths := quietLengths(now, 1+round%4)
				unit := int64(1)
				if round%3 == 2 {
					unit = 9999999999999 // counts of 15 digits
				}
				var limits []int64
				for range lengths {
					limits = append(limits, unit*(20+random.Int64N(70)))
				}
				gateways := make([][]*window.FixedCounts, 3)
				for g := range gateways {
					for _, length := range lengths {
						gateways[g] = append(gateways[g], window.NewFixedCounts(length, 100))
					}
				}
				for step := range steps {
					gateway, client := gateways[random.IntN(len(gateways))], "c"+strconv.Itoa(step/25+random.IntN(2))
					unix := now
					if i := random.IntN(4 * len(lengths)); i < len(lengths) {
						unix = now - now%lengths[i] - 5 // over in this window, and those that began later
					}
					cost := unit * (1 + random.Int64N(9))
					var found []*window.FixedCount
					var counts []severalCount
					for i, table := range gateway {
						f := window.FixedFind(table, client, unix)
						key := fmt.Sprintf("rate:twin:%d:{%s}:%d", i, client, f.End/lengths[i]-1)
						found = append(found, f)
						counts = append(counts, severalCount{key: key, limit: limits[i], left: f.End - unix, end: f.End})
					}
					what := fmt.Sprintf("round %d, step %d", round, step)
					switch random.IntN(8) {
					case 0: // something happens to a key
						key := counts[random.IntN(len(counts))].key
						v := twin.values[key]
						switch random.IntN(6) {
						case 0:
							s.client.Del(ctx, key)
							delete(twin.values, key)
						case 1:
							if s.client.Persist(ctx, key).Val() {
								v.expires = false
								twin.values[key] = v
							}
						case 2:
							s.client.Del(ctx, key)
							s.client.LPush(ctx, key, "x")
							twin.values[key] = twinValue{sick: true}
						case 3:
							sick := []string{"", "x", "-7", "0010", "1e3", "5.0", "9223372036854775807"}[random.IntN(7)]
							s.client.Set(ctx, key, sick, time.Hour)
							twin.values[key] = twinValue{sick: true}
						case 4: // the store fell back to an earlier count, or another
							v = twinValue{n: unit * (1 + random.Int64N(50)), expires: random.IntN(2) == 0}
							ttl := time.Duration(0)
							if v.expires {
								ttl = time.Hour
							}
							s.client.Set(ctx, key, v.n, ttl)
							twin.values[key] = v
						case 5:
							s.client.ScriptFlush(ctx)
						}
						seen["a key was changed"]++
					case 1: // it decides alone, and the store is never told, or is told later
						d := window.Decision{}
						window.TakeAlone(fixedOf(limits), accountsOf(found), &window.Share{Gateways: int64(len(gateways))}, cost, unix*1000, random.IntN(2) == 0, "", 1, &d)
						if d.Allowed {
							seen["passed alone"]++
						}
					case 2: // a request with one count alone, which is counted whatever the limit says
						i := random.IntN(len(counts))
						c, f := counts[i], found[i]
						settled := window.FixedSettle(f)
						c.known = f.Known - f.Unsettled
						n := 1 + settled
						want := twin.plain(n, c)
						got, err := s.client.Eval(ctx, window.FixedScript, []string{c.key}, n, c.known, c.left, c.end).Int64()
						if err != nil || got != want {
							t.Fatalf("%s: the plain script answers %d (%v), the twin %d: %+v", what, got, err, want, c)
						}
						if got == window.FixedOver {
							window.FixedUnsent(f, settled)
						} else {
							window.FixedAnswered(f, got, settled)
						}
						seen["plain"]++
					default:
						requests := random.Int64N(6)
						var settled []int64
						for i, f := range found {
							settled = append(settled, window.FixedSettle(f))
							counts[i].settled = settled[i]
							counts[i].known = f.Known - f.Unsettled
						}
						want := twin.count(requests, cost, counts)
						line, err := callSeveral(s.client, requests, cost, counts...)
						if expected := strings.Trim(fmt.Sprint(want), "[]"); err != nil || line != expected {
							t.Fatalf("%s: the script answers %q (%v), the twin %q: %d at %d, %+v", what, line, err, expected, requests, cost, counts)
						}
						over, lefts := slices.Contains(want, window.FixedOver), make([]int64, len(want))
						for i, before := range want {
							lefts[i] = limits[i] - before
						}
						// Each of the requests by itself, in memory.
						alike := make([]*window.FixedCount, len(want))
						for i, before := range want {
							alike[i] = &window.FixedCount{Known: before, End: counts[i].end}
						}
						admitted, one := window.Admitted(lefts, requests, cost), int64(0)
						for range requests {
							d := window.Decision{}
							if window.Take(fixedOf(limits), accountsOf(alike), cost, unix*1000, &d); d.Allowed {
								one++
							}
						}
						if !over && admitted != one {
							t.Fatalf("%s: %d are counted at once, and %d one by one", what, admitted, one)
						}
						lost := !over && random.IntN(5) == 0
						for i, f := range found {
							switch {
							case over:
								window.FixedUnsent(f, settled[i])
							case lost:
								window.FixedLost(f, settled[i])
							default:
								window.FixedAnswered(f, want[i]+admitted*cost, settled[i])
								if f.Known < alike[i].Known {
									t.Fatalf("%s: the gateway knows of %d, the store has %d", what, f.Known, alike[i].Known)
								}
							}
						}
						for _, happened := range []struct {
							name string
							is   bool
						}{{"over", over}, {"lost", lost}, {"some were refused", !over && admitted < requests}, {"some were counted", admitted > 0 && !over}, {"settled", slices.Max(settled) > 0}} {
							if happened.is {
								seen[happened.name]++
							}
						}
					}
					for _, c := range counts {
						v, found := twin.values[c.key]
						got, err := s.client.Get(ctx, c.key).Result()
						if v.sick {
							continue
						}
						if found && (err != nil || got != strconv.FormatInt(v.n, 10)) || !found && err != redis.Nil {
							t.Fatalf("%s: the store has %q (%v) under %s, the twin %+v", what, got, err, c.key, v)
						}
						if ttl := s.client.TTL(ctx, c.key).Val(); found && (ttl > 0) != v.expires || ttl > time.Duration(max(c.end-now, 3600))*time.Second {
							t.Fatalf("%s: %s lives for %s, the twin has %+v", what, c.key, ttl, v)
						}
					}
				}
			}
			for _, what := range []string{"a key was changed", "passed alone", "plain", "over", "lost", "some were refused", "some were counted", "settled"} {
				if seen[what] < 20 {
					t.Errorf("%q was put to the test %d times", what, seen[what])
				}
			}
			t.Logf("%v", seen)
		})
	}
}

// The rights that the documentation asks for suffice; without one of them nothing is
// counted by halves.
func TestSeveralScriptWithTheLeastRights(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]lab.StoreOptions{"Valkey 8": {}, "Redis 7": {Redis: true}} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			store := lab.Valkey(t, o)
			admin := store.Client()
			user := func(rights []string) *redis.Client {
				withRights(store, rights)
				c := redis.NewClient(&redis.Options{Addr: store.Addr(), Protocol: 2, DisableIdentity: true, Username: "gateway", Password: password})
				t.Cleanup(func() { _ = c.Close() })
				return c
			}
			end := time.Now().Unix() + 3600
			a, b := "rate:rights:a:{client}:1", "rate:rights:b:{client}:1"
			both := []severalCount{{a, 100, 0, 0, 1800, end}, {b, 100, 0, 0, 1800, end}}
			for _, step := range []struct {
				lacks  string
				sick   bool // a key holds something else
				counts bool
			}{
				{"", false, true}, {"", true, true}, {"+time", false, true}, {"+time", true, true}, {"+del", false, true}, {"+del", true, false},
				{"+get", false, false}, {"+incrby", false, false}, {"+ttl", false, false},
			} {
				store.Do("FLUSHALL")
				admin.Set(ctx, a, 20, time.Hour)
				admin.Set(ctx, b, 30, time.Hour)
				want := []string{"27", "37"}
				if step.sick {
					admin.Del(ctx, b)
					admin.LPush(ctx, b, "x")
					want[1] = "7"
				}
				if !step.counts {
					want = []string{"20", ""}
					if !step.sick {
						want[1] = "30"
					}
				}
				c := user(slices.DeleteFunc(slices.Clone(leastRights), func(right string) bool { return right == step.lacks }))
				_, err := callSeveral(c, 1, 7, both...)
				if got := []string{admin.Get(ctx, a).Val(), admin.Get(ctx, b).Val()}; (err == nil) != step.counts || !slices.Equal(got, want) {
					t.Errorf("without %q, a sick key %v: %v, and the counts are %q, want %q", step.lacks, step.sick, err, got, want)
				}
				if err != nil && !strings.Contains(err.Error(), "permission") && !strings.Contains(err.Error(), "can't run this command") {
					t.Errorf("without %q: %v", step.lacks, err)
				}
			}
			// Keys of somebody else.
			store.Do("FLUSHALL")
			c := user(leastRights)
			_, err := callSeveral(c, 1, 7, both[0], severalCount{"other:b:{client}:1", 100, 0, 0, 1800, end})
			if err == nil || !strings.HasPrefix(err.Error(), "NOPERM") || admin.DBSize(ctx).Val() != 0 {
				t.Errorf("keys of another prefix: %v, and the store has %q", err, admin.Keys(ctx, "*").Val())
			}
		})
	}
}

// severalKey is the key of one of several limits of a client, by its API key.
func severalKey(scope, name, apiKey string, window int64) string {
	return strings.Replace(keyOf(scope, apiKey, window), scope+":", scope+":"+name+":", 1)
}

// Two gateways hold a client to several limits exactly, each request in all counts or in
// none, in one round trip to keys of one slot.
func TestTwoGatewaysHoldSeveralLimitsExactly(t *testing.T) {
	const concurrent, rounds = 200, 5
	// In cluster mode it refuses calls whose keys lie in several slots.
	store, app, client := lab.Valkey(t, lab.StoreOptions{Cluster: true}), lab.NewApp(t, 2), lab.NewClient(t)
	now := time.Now()
	lengths := quietLengths(now.Unix(), 2)
	limits := func(short, long int) []options {
		return []options{
			{"name": "short", "limit": short, "window": fmt.Sprintf("%ds", lengths[0])},
			{"name": "long", "limit": long, "window": fmt.Sprintf("%ds", lengths[1])},
		}
	}
	base := shared(store.Addr(), 0, time.Hour).with("limit", nil, "window", nil)
	_, urls := gateways(t, 2, lab.TraefikOptions{}, each(app, map[string]options{
		"tight": base.with("limits", limits(5, 20)),
		"loose": base.with("limits", limits(20, 5)),
		"dear":  base.with("limits", limits(100, 250), "cost", 7),
	}))
	log, stop := store.Monitor()
	for round := range rounds {
		for path, want := range map[string]struct{ passes, cost int }{"tight": {5, 1}, "loose": {5, 1}, "dear": {14, 7}} {
			key := fmt.Sprintf("%s-%d", path, round)
			before := app.Hits()
			answers := client.Burst(50, lab.Alternate(concurrent, key, urls[0]+"/"+path, urls[1]+"/"+path))
			mustBe(t, key, answers, http.StatusOK, http.StatusTooManyRequests)
			mustDecide(t, key, answers, "shared")
			if got := answers.Count(http.StatusOK); got != want.passes || app.Hits()-before != want.passes {
				t.Errorf("%s: %d allowed, and %d reached the application, want %d", key, got, app.Hits()-before, want.passes)
			}
			for i, name := range []string{"short", "long"} {
				stored := severalKey(path+"@file", name, key, now.Unix()/lengths[i])
				if got, err := store.Client().Get(context.Background(), stored).Int(); err != nil || got != want.passes*want.cost {
					t.Errorf("%s: %s holds %d (%v), want %d", key, stored, got, err, want.passes*want.cost)
				}
			}
		}
	}
	stop()
	if stay := store.WithoutExpiry(); len(stay) > 0 {
		t.Errorf("keys without expiry: %q", stay)
	}
	if got := len(store.Keys()); got != 3*2*rounds {
		t.Errorf("the store has %d keys, want two for each client: %q", got, store.Keys())
	}

	// A script touches what was named to it, and what was named lies in one slot.
	calls, touched := 0, 0
	var named []string
	for _, line := range strings.Split(log.String(), "\n") {
		_, command, found := strings.Cut(line, "] ")
		if !found {
			continue
		}
		words := strings.Split(strings.Trim(command, `"`), `" "`)
		switch {
		case strings.HasPrefix(strings.ToLower(words[0]), "eval"):
			keys, err := strconv.Atoi(words[2])
			if err != nil {
				t.Fatalf("a call of a script: %s", line)
			}
			named = words[3 : 3+keys]
			if keys == 2 {
				calls++
				if a, b := store.Do("CLUSTER", "KEYSLOT", named[0]), store.Do("CLUSTER", "KEYSLOT", named[1]); a != b {
					t.Errorf("the keys %q lie in the slots %v and %v", named, a, b)
				}
			}
		case strings.Contains(line, " lua] ") && len(words) > 1:
			touched++
			if !slices.Contains(named, words[1]) {
				t.Errorf("a script touches %s, it was called with %q: %s", words[1], named, line)
			}
		}
	}
	if calls < 3*rounds || touched == 0 {
		t.Errorf("%d calls were seen, and %d commands in them", calls, touched)
	}
}

// Requests of a dear rule without limits of its own weigh on the count of all others: 14
// of cost 7 fit into 100, and cheap ones fill it up.
func TestDearAndCheapRequestsShareOneBudget(t *testing.T) {
	const limit = 100
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 2), lab.NewClient(t)
	length, id := lab.QuietWindow(time.Now())
	o := shared(store.Addr(), limit, length).with("rules", []options{{"name": "search", "pathPrefix": "/search", "cost": 7}})
	_, urls := gateways(t, 2, lab.TraefikOptions{}, only(app, o))
	search := []string{urls[0] + "/search/all", urls[1] + "/search"}
	count := func(key string) int {
		n, err := store.Client().Get(context.Background(), keyOf("quota@file", key, id)).Int()
		if err != nil {
			t.Errorf("%s: %v", key, err)
		}
		return n
	}
	for round := range 5 {
		key := fmt.Sprintf("first-dear-%d", round)
		dear := client.Burst(40, lab.Alternate(120, key, search...))
		mustDecide(t, key, dear, "shared")
		if got := dear.Count(http.StatusOK); got != limit/7 || count(key) != limit/7*7 {
			t.Errorf("%s: %d dear requests allowed, and the count is %d, want %d and %d", key, got, count(key), limit/7, limit/7*7)
		}
		cheap := client.Burst(40, lab.Alternate(120, key, urls...))
		mustDecide(t, key, cheap, "shared")
		if got := cheap.Count(http.StatusOK); got != limit%7 {
			t.Errorf("%s: %d cheap requests allowed, want the %d that are left", key, got, limit%7)
		}

		// All at once: whatever the order, what passes fits, and it is filled up.
		key = fmt.Sprintf("mixed-%d", round)
		var requests []lab.Request
		for i := range 400 {
			url := urls[i/2%2]
			if i%8 == 0 {
				url = search[i/8%2]
			}
			requests = append(requests, lab.Keyed(url, key))
		}
		answers := client.Burst(50, requests)
		mustDecide(t, key, answers, "shared")
		spent := 0
		for i, a := range answers {
			if a.Status == http.StatusOK && i%8 == 0 {
				spent += 7
			} else if a.Status == http.StatusOK {
				spent++
			}
		}
		if spent != limit {
			t.Errorf("%s: %d of %d were spent", key, spent, limit)
		}
	}
}

// fixedOf returns limits in fixed windows.
func fixedOf(limits []int64) []*window.Limit {
	var fixed []*window.Limit
	for _, limit := range limits {
		fixed = append(fixed, &window.Limit{Limit: limit, Length: 60})
	}
	return fixed
}

// accountsOf returns accounts of these counts.
func accountsOf(counts []*window.FixedCount) []*window.Account {
	var accounts []*window.Account
	for _, f := range counts {
		accounts = append(accounts, &window.Account{Running: f})
	}
	return accounts
}
