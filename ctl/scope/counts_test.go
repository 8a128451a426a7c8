package scope_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatequota/gatequota/ctl/internal/standin"
	"github.com/gatequota/gatequota/ctl/scope"
	"github.com/gatequota/gatequota/source"
	"github.com/gatequota/gatequota/window"
)

const hash = "481c55a1b2c3481c55a1b2c3481c55a1b2c3481c55a1b2c3481c55a1b2c3481c"

// middlewares has one limit of each algorithm.
func everyAlgorithm() []scope.Middleware {
	return []scope.Middleware{{Name: "quota@file", Rules: []scope.Rule{{Source: source.Criterion{Header: "X-Api-Key", IPv6Subnet: 64}, Counts: []scope.Count{
		{Name: "", Algorithm: "fixed-window", Limit: 100, Window: long},
		{Name: "slide", Algorithm: "sliding-window", Limit: 100, Window: long},
		{Name: "log", Algorithm: "sliding-log", Limit: 3, Window: 1000},
		{Name: "pail", Algorithm: "token-bucket", Limit: 1000, Window: 1000, Burst: 500},
	}}}}}
}

// standingOf returns where a client stands under a count.
func standingOf(t *testing.T, all []scope.Standing, name string) scope.Standing {
	t.Helper()
	i := slices.IndexFunc(all, func(s scope.Standing) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("no standing under %q in %v", name, all)
	}
	return all[i]
}

func standings(t *testing.T, api *scope.Scope, hash string) []scope.Standing {
	t.Helper()
	st := read(t, api)
	all, err := api.Standings(ctx, st, []scope.Client{st.ByHash(hash)})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestStandings(t *testing.T) {
	s := standin.NewStore(t)
	standin.Start(t, s, &standin.Gateway{ID: "01", Host: "gw1", Scope: "api", Middlewares: everyAlgorithm()})
	api := open(t, s).Scope("api")
	for _, each := range standings(t, api, hash) {
		if each.Used != 0 || each.Left != each.Limit && each.Left != each.Burst || each.Reset != 0 || each.Wait != 0 {
			t.Errorf("nothing was counted: %+v", each)
		}
	}
	at := now(t, s)
	decade, left := window.FixedAt(at, long)
	s.Set(ctx, standin.Key("api", "", hash, decade), 130, 0)
	s.Set(ctx, standin.Key("api", "", hash, decade-1), 9, 0)
	s.Set(ctx, standin.Key("api", "slide:sw", hash, decade), 10, 0)
	s.Set(ctx, standin.Key("api", "slide:sw", hash, decade-1), 50, 0)
	for i, ago := range []int64{1000001, 900000, 500000, 400000, 1000} { // the first is no more in the window
		s.ZAdd(ctx, standin.Key("api", "log:log", hash, 1000), redis.Z{Score: float64(at*1000 - ago), Member: strconv.Itoa(i)})
	}
	s.HSet(ctx, standin.Key("api", "pail:tb", hash, 1000), "lack", 700*1000*1000, "at", at*1000)
	all := standings(t, api, hash)
	later := now(t, s) - at // seconds that passed meanwhile

	if f := standingOf(t, all, ""); f.Used != 130 || f.Left != 0 || f.Reset > left || f.Reset < left-later-1 || f.Wait != f.Reset {
		t.Errorf("fixed window: %+v, %d s are left", f, left)
	}
	before := 50 * left / long
	if f := standingOf(t, all, "slide"); f.Used > 10+before || f.Used < 10+before-1-later || f.Left != 100-f.Used || f.Reset < 1 || f.Reset > 2*long || f.Wait != 0 {
		t.Errorf("sliding window: %+v, of the one before %d count", f, before)
	}
	// Of four units two have to go: the second oldest is 500 s old.
	if f := standingOf(t, all, "log"); f.Used != 4 || f.Left != 0 || f.Reset > 1000 || f.Reset < 998-later || f.Wait > 501 || f.Wait < 499-later {
		t.Errorf("sliding log: %+v", f)
	}
	// It lacks at most its burst, and gains one token a second.
	if f := standingOf(t, all, "pail"); f.Used > 500 || f.Used < 498-later || f.Left != 500-f.Used || f.Reset > 500 || f.Reset < 498-later {
		t.Errorf("bucket: %+v", f)
	}

	keys, err := api.Keys(ctx, hash)
	if err != nil || len(keys) != 6 {
		t.Fatalf("keys %+v, %v", keys, err)
	}
	values := map[string]int64{}
	for _, k := range keys {
		values[strings.Replace(strings.TrimPrefix(k.Name, "rate:api"), hash, "", 1)] = k.Value
		if k.Client != hash || k.TTL != -1 {
			t.Errorf("key %+v", k)
		}
	}
	for name, want := range map[string]int64{fmt.Sprint(":{}:", decade): 130, fmt.Sprint(":{}:", decade-1): 9, ":log:log:{}:1000": 5, ":pail:tb:{}:1000": 700000000} {
		if values[name] != want {
			t.Errorf("%s is %d, want %d", name, values[name], want)
		}
	}
}

func TestKeysThatHoldNoCountCountNothing(t *testing.T) {
	s := standin.NewStore(t)
	standin.Start(t, s, &standin.Gateway{ID: "01", Host: "gw1", Scope: "api", Middlewares: everyAlgorithm()})
	at := now(t, s)
	decade, _ := window.FixedAt(at, long)
	s.HSet(ctx, standin.Key("api", "", hash, decade), "a", "b")
	s.Set(ctx, standin.Key("api", "slide:sw", hash, decade), "many", 0)
	s.Set(ctx, standin.Key("api", "log:log", hash, 1000), "many", 0)
	s.Set(ctx, standin.Key("api", "pail:tb", hash, 1000), "many", 0)
	for _, each := range standings(t, open(t, s).Scope("api"), hash) {
		if each.Used != 0 {
			t.Errorf("%+v", each)
		}
	}
	if _, err := open(t, s).Scope("api").Keys(ctx, hash); err != nil {
		t.Error(err)
	}
}

func TestStandingsKnowWhatIsAllowed(t *testing.T) {
	s := standin.NewStore(t)
	rules := everyAlgorithm()
	rules[0].Rules = append([]scope.Rule{{Rule: "login", Source: rules[0].Rules[0].Source, Counts: []scope.Count{{Name: "login", Algorithm: "fixed-window", Limit: 5, Window: long}}}}, rules[0].Rules...)
	standin.Start(t, s, &standin.Gateway{ID: "01", Host: "gw1", Scope: "api", Middlewares: rules})
	api := open(t, s).Scope("api")
	limits := func() string {
		text := ""
		for _, each := range standings(t, api, hash) {
			text += fmt.Sprintf("%s=%d/%d/%t ", each.Name, each.Limit, each.Burst, each.Allowed)
		}
		return text
	}
	const ordinary = "=100/0/false log=3/0/false login=5/0/false pail=1000/500/false slide=100/0/false "
	if got := limits(); got != ordinary {
		t.Errorf("nothing is set: %s", got)
	}
	s.HSet(ctx, "rate:api:control", "allow:"+hash, fmt.Sprint(now(t, s)+60, " 700 log=9"))
	if got, want := limits(), "=700/0/true log=9/0/true login=5/0/false pail=700/700/true slide=700/0/true "; got != want {
		t.Errorf("limits %s, want %s", got, want)
	}
	s.HSet(ctx, "rate:api:control", "allow:"+hash, fmt.Sprint(now(t, s)+60, " login=50"))
	if got, want := limits(), strings.Replace(ordinary, "login=5/0/false", "login=50/0/true", 1); got != want {
		t.Errorf("limits %s, want %s", got, want)
	}
	s.HSet(ctx, "rate:api:control", "allow:"+hash, fmt.Sprint(now(t, s)-1, " 700"))
	if got := limits(); got != ordinary {
		t.Errorf("it is over: %s", got)
	}
}

func TestNearest(t *testing.T) {
	s := standin.NewStore(t)
	standin.Start(t, s, &standin.Gateway{ID: "01", Host: "gw1", Scope: "api", Middlewares: everyAlgorithm()})
	api := open(t, s).Scope("api")
	at := now(t, s)
	decade, _ := window.FixedAt(at, long)
	client := func(n int) string { return fmt.Sprintf("%064x", n) }
	p := s.Pipeline()
	for n := range 2500 { // more than one part of the search
		p.Set(ctx, standin.Key("api", "", client(n), decade), n%50+1, 0)
	}
	p.Set(ctx, standin.Key("api", "", client(7001), decade), 95, 0)
	p.Set(ctx, standin.Key("api", "", client(7002), decade-1), 99, 0)                                               // over
	p.Set(ctx, standin.Key("api", "slide:sw", client(7003), decade-1), 5000, 0)                                     // only the window before
	p.ZAdd(ctx, standin.Key("api", "log:log", client(7004), 1000), redis.Z{Score: float64(at * 1000), Member: "a"}) // a third
	p.ZAdd(ctx, standin.Key("api", "log:log", client(7005), 60), redis.Z{Score: float64(at * 1000), Member: "a"})   // of another window
	p.HSet(ctx, standin.Key("api", "pail:tb", client(7006), 1000), "lack", 450*1000*1000, "at", at*1000)            // nine tenths
	p.Set(ctx, "rate:other:{"+client(7007)+"}:"+fmt.Sprint(decade), 99, 0)
	if _, err := p.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	near, err := api.Nearest(ctx, read(t, api), 4, 1<<30)
	if err != nil || !near.All || near.Keys < 2506 {
		t.Fatalf("%+v, %v", near, err)
	}
	var got []string
	for _, c := range near.Clients {
		got = append(got, c.Client[60:]+" "+c.Name)
	}
	// The window before weighs the less the later it is in this one, but 5000 of 100 do until
	// near its end.
	want := []string{client(7003)[60:] + " slide", client(7001)[60:] + " ", client(7006)[60:] + " pail"}
	if late := (decade+1)*long-at < long/40; !late && !slices.Equal(got[:3], want) {
		t.Errorf("nearest are %q, want %q", got, want)
	}
	if few, err := api.Nearest(ctx, read(t, api), 4, 100); err != nil || standin.Real() && (few.All || few.Keys >= near.Keys) {
		t.Errorf("looked at %d keys, all %t, %v", few.Keys, few.All, err)
	}
	// The two keys of a sliding window are one client.
	s.Set(ctx, standin.Key("api", "slide:sw", client(7003), decade), 1, 0)
	twice, err := api.Nearest(ctx, read(t, api), 1<<30, 1<<30)
	if n := len(slices.DeleteFunc(twice.Clients, func(s scope.Standing) bool { return s.Client != client(7003) })); n != 1 || err != nil {
		t.Errorf("a client with two keys is there %d times, %v", n, err)
	}
	s.Del(ctx, standin.Key("api", "slide:sw", client(7003), decade))
	largest, keys, all, err := api.Largest(ctx, 3, 1<<30)
	if err != nil || !all || keys < 2506 || len(largest) != 3 || largest[0].Client != client(7006) || largest[1].Client != client(7003) {
		t.Errorf("largest are %+v of %d keys, %t, %v", largest, keys, all, err)
	}
}

func TestDelete(t *testing.T) {
	s := standin.NewStore(t)
	standin.Start(t, s, &standin.Gateway{ID: "01", Host: "gw1", Scope: "api", Middlewares: everyAlgorithm()})
	api := open(t, s).Scope("api")
	at := now(t, s)
	decade, _ := window.FixedAt(at, long)
	other := strings.Repeat("0", 64)
	for _, client := range []string{hash, other} {
		s.Set(ctx, standin.Key("api", "", client, decade), 130, 0)
		s.Set(ctx, standin.Key("api", "", client, decade-1), 130, 0)
		s.Set(ctx, standin.Key("api", "former", client, 1), 130, 0) // of a rule that is no more
		s.ZAdd(ctx, standin.Key("api", "log:log", client, 1000), redis.Z{Score: float64(at * 1000), Member: "a"})
	}
	st := read(t, api)
	d, err := api.Delete(ctx, st, []scope.Client{st.ByHash(hash)})
	if err != nil || d.Keys != 4 || len(d.Restored) != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	if before, after := standingOf(t, d.Before, ""), standingOf(t, d.After, ""); before.Used != 130 || after.Used != 0 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if keys, err := api.Keys(ctx, hash); err != nil || len(keys) != 0 {
		t.Errorf("left are %v, %v", keys, err)
	}
	if keys, err := api.Keys(ctx, other); err != nil || len(keys) != 4 {
		t.Errorf("of another client there are %v, %v", keys, err)
	}
}

func TestDeleteLetsAClientGoOn(t *testing.T) {
	s := standin.NewStore(t)
	standin.Start(t, s, &standin.Gateway{ID: "01", Host: "gw1", Scope: "api", Middlewares: everyAlgorithm()})
	api := open(t, s).Scope("api")
	decade, _ := window.FixedAt(now(t, s), long)
	key := standin.Key("api", "", hash, decade)
	s.Set(ctx, key, 100, 0)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				s.Incr(ctx, key)
			}
		}
	}()
	st := read(t, api)
	d, err := api.Delete(ctx, st, []scope.Client{st.ByHash(hash)})
	close(stop)
	<-ended
	if err != nil || len(d.Restored) != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	if after := standingOf(t, d.After, ""); after.Used < 1 || after.Used > 90 {
		t.Errorf("after %+v", after)
	}
}

func TestDeleteSeesWhatIsRestored(t *testing.T) {
	s := standin.NewStore(t)
	standin.Start(t, s, &standin.Gateway{ID: "01", Host: "gw1", Scope: "api", Middlewares: everyAlgorithm()})
	api := open(t, s).Scope("api")
	decade, _ := window.FixedAt(now(t, s), long)
	key := standin.Key("api", "", hash, decade)
	s.Set(ctx, key, 100, 0)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { // a gateway that did not forget
		defer close(ended)
		for known := int64(100); ; {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				count := s.Incr(ctx, key).Val()
				if known++; count < known {
					s.Set(ctx, key, known, 0)
				}
			}
		}
	}()
	st := read(t, api)
	d, err := api.Delete(ctx, st, []scope.Client{st.ByHash(hash)})
	close(stop)
	<-ended
	if err != nil || len(d.Restored) != 1 || d.Restored[0].Name != "" || d.Restored[0].Used < 100 || d.Keys < 3 {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestDeleteAll(t *testing.T) {
	s := standin.NewStore(t)
	api := open(t, s).Scope("api")
	p := s.Pipeline()
	for n := range 5000 {
		p.Set(ctx, standin.Key("api", "", fmt.Sprintf("%064x", n), 1), 1, 0)
		p.Set(ctx, standin.Key("api2", "", fmt.Sprintf("%064x", n), 1), 1, 0)
	}
	p.HSet(ctx, "rate:api:control", "version", 1)
	p.ZAdd(ctx, "rate:api:gateways", redis.Z{Score: 1, Member: "01"})
	p.Set(ctx, "rate:api:{probe}:1", 1, 0)
	if _, err := p.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	total, rounds := 0, 0
	for next := uint64(0); ; rounds++ {
		n, then, err := api.DeleteAll(ctx, next, time.Now()) // one part each
		if err != nil {
			t.Fatal(err)
		}
		total += n
		if next = then; next == 0 {
			break
		}
	}
	if n, err := api.CountKeys(ctx); total != 5000 || n != 0 || err != nil {
		t.Errorf("%d keys deleted, %d left, %v", total, n, err)
	}
	if standin.Real() && rounds < 2 {
		t.Errorf("it took %d rounds", rounds)
	}
	if n := s.DBSize(ctx).Val(); n != 5003 {
		t.Errorf("%d keys are left", n)
	}
}

func TestKeysAreThoseOfTheGateways(t *testing.T) {
	// The forms are those of docs/algorithms.md.
	s := standin.NewStore(t)
	api := open(t, s).Scope("api")
	for name, want := range map[string]string{
		"rate:api:{" + hash + "}:29794427":       " fixed-window 29794427",
		"rate:api:sw:{" + hash + "}:5":           " sliding-window 5",
		"rate:api:login:{" + hash + "}:5":        "login fixed-window 5",
		"rate:api:login:log:{" + hash + "}:60":   "login sliding-log 60",
		"rate:api:login:day:tb:{" + hash + "}:6": "login:day token-bucket 6",
		"rate:api:login:day:{" + hash + "}:6":    "login:day fixed-window 6",
		"rate:api:control:{" + hash + "}:x":      "",
		"rate:api:{abc}:1":                       "",
	} {
		s.FlushAll(ctx)
		s.Set(ctx, name, 1, 0)
		keys, err := api.Keys(ctx, hash)
		got := ""
		if len(keys) == 1 {
			got = fmt.Sprint(keys[0].Count, " ", keys[0].Algorithm, " ", keys[0].ID)
		}
		if err != nil || got != want {
			t.Errorf("%s is %q, want %q, %v", name, got, want, err)
		}
	}
}
