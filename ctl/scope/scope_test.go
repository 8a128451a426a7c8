package scope_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatequota/gatequota/ctl/internal/standin"
	"github.com/gatequota/gatequota/ctl/scope"
	"github.com/gatequota/gatequota/source"
)

// long is a window that no test sees the end of.
const long = 10 * 365 * 24 * 60 * 60

var ctx = context.Background()

func open(t *testing.T, s *standin.Store) *scope.Store {
	t.Helper()
	store, err := scope.Open(&scope.Options{Endpoint: s.Addr, Timeout: 5 * time.Second, Prefix: "rate"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// byKey is a middleware with a limit of 100 for each API key, and a rule for log-ins with a
// limit of 5 of its own.
func byKey() []scope.Middleware {
	key := source.Criterion{Header: "X-Api-Key", IPv6Subnet: 64}
	return []scope.Middleware{{Name: "quota@file", Rules: []scope.Rule{
		{Rule: "login", Source: key, Counts: []scope.Count{{Name: "login", Algorithm: "sliding-window", Limit: 5, Window: 86400}}},
		{Rule: "", Source: key, Counts: []scope.Count{{Name: "", Algorithm: "fixed-window", Limit: 100, Window: long}}},
	}}}
}

func edits(list ...scope.Edit) func(*scope.State, int64) ([]scope.Edit, error) {
	return func(*scope.State, int64) ([]scope.Edit, error) { return list, nil }
}

func read(t *testing.T, s *scope.Scope) *scope.State {
	t.Helper()
	st, err := s.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// now returns the time of a store in unix seconds.
func now(t *testing.T, s *standin.Store) int64 {
	t.Helper()
	at, err := s.Time(ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	return at.Unix()
}

func TestScopesAreThoseThatGatewaysAnnounce(t *testing.T) {
	s := standin.NewStore(t)
	for _, key := range []string{"rate:b@file:gateways", "rate:a:gateways", "other:c:gateways", "rate:d:e:gateways"} {
		s.ZAdd(ctx, key, redis.Z{Score: float64(now(t, s)), Member: "x"})
	}
	s.Set(ctx, "rate:f:gateways:{x}:1", 1, 0)
	for i := range 3000 { // more than one part of the search
		s.Set(ctx, "rate:g:{"+strconv.Itoa(i)+"}:1", 1, 0)
	}
	names, err := open(t, s).Scopes(ctx)
	if err != nil || !slices.Equal(names, []string{"a", "b@file"}) {
		t.Errorf("scopes %q, %v", names, err)
	}
}

func TestStateTellsWhoObeys(t *testing.T) {
	s := standin.NewStore(t)
	standin.Start(t, s, &standin.Gateway{ID: "02", Host: "gw2", Scope: "api", Middlewares: byKey()})
	standin.Start(t, s, &standin.Gateway{ID: "01", Host: "gw1", Scope: "api", Middlewares: byKey(), Deaf: true})
	standin.Start(t, s, &standin.Gateway{ID: "03", Scope: "api", Silent: true})
	at := now(t, s)
	s.ZAdd(ctx, "rate:api:gateways", redis.Z{Score: float64(at - 15), Member: "04"})
	s.HSet(ctx, "rate:api:reports", "05", fmt.Sprintf(`{"version":1,"at":%d,"host":"gone"}`, at-15), "06", fmt.Sprintf(`{"version":1,"at":%d,"host":"gw6"}`, at),
		"07", "garbled", "03", "{")
	s.HSet(ctx, "rate:api:control", "version", 3, "enabled", "maybe")
	api := open(t, s).Scope("api")
	standin.Until(t, "gw2 obeys version 3", func() bool { st := read(t, api); return len(st.Gateways) == 4 && st.Gateways[2].Obeys(3) })
	st := read(t, api)
	var got []string
	for _, g := range st.Gateways {
		got = append(got, fmt.Sprintf("%s %s %t %t", g.ID, g.Host(), g.Announced > 0, g.Obeys(3)))
	}
	want := []string{"03  true false", "01 gw1 true false", "02 gw2 true true", "06 gw6 false false"}
	if !slices.Equal(got, want) {
		t.Errorf("gateways %q, want %q", got, want)
	}
	if st.Obeyed(3) || !slices.Equal(st.Garbled, []string{"03"}) || st.Reporting() != 3 {
		t.Errorf("obeyed %t, garbled %q, %d report", st.Obeyed(3), st.Garbled, st.Reporting())
	}
	if len(st.Problems) != 1 || st.Problems[0].Field != "enabled" {
		t.Errorf("problems %v", st.Problems)
	}
	if counts := st.Counts(); len(counts) != 2 || counts[1].Name != "login" {
		t.Errorf("counts %v", counts)
	}
}

func TestChange(t *testing.T) {
	s := standin.NewStore(t)
	standin.Start(t, s, &standin.Gateway{ID: "01", Host: "gw1", Scope: "api", Middlewares: byKey()})
	api := open(t, s).Scope("api")
	hash := strings.Repeat("ab", 32)
	at := now(t, s)
	s.HSet(ctx, "rate:api:control", "version", 7, "limit", 50,
		"allow:"+strings.Repeat("01", 32), fmt.Sprint(at-1, " 5"), "allow:"+strings.Repeat("02", 32), fmt.Sprint(at+60, " 5"),
		"block:"+strings.Repeat("03", 32), at-1, "block:"+strings.Repeat("04", 32), at+60,
		"epoch:"+strings.Repeat("05", 32), fmt.Sprint("1 ", at-86401), "epoch:"+strings.Repeat("06", 32), fmt.Sprint("2 ", at-86000), "epoch", fmt.Sprint("1 ", at-86401))
	version, entries, err := api.Change(ctx, "ann@desk", edits(scope.Edit{Field: "limit", Value: "200"}, scope.Edit{Field: "block:" + hash, Value: fmt.Sprint(at + 5)}, scope.Edit{Field: "window"}))
	if err != nil || version != 8 || len(entries) != 2 {
		t.Fatalf("version %d, entries %v, %v", version, entries, err)
	}
	fields := s.HGetAll(ctx, "rate:api:control").Val()
	want := map[string]string{"version": "8", "limit": "200", "block:" + hash: fmt.Sprint(at + 5), "allow:" + strings.Repeat("02", 32): fmt.Sprint(at+60, " 5"),
		"block:" + strings.Repeat("04", 32): fmt.Sprint(at + 60), "epoch:" + strings.Repeat("06", 32): fmt.Sprint("2 ", at-86000)}
	if !maps.Equal(fields, want) {
		t.Errorf("fields %v, want %v", fields, want)
	}
	log, err := api.Log(ctx, 10)
	if err != nil || !slices.Equal(log, entries) {
		t.Errorf("log %v, want %v, %v", log, entries, err)
	}
	if e := entries[0]; e.What != "limit" || e.Client != "" || e.Old != "50" || e.New != "200" || e.By != "ann@desk" || e.Time < at*1000 || e.Time > at*1000+60000 {
		t.Errorf("entry %+v", e)
	}
	if e := entries[1]; e.What != "block" || e.Client != hash || e.Old != "" {
		t.Errorf("entry %+v", e)
	}
	st, err := api.Await(ctx, version, 5*time.Second)
	if err != nil || !st.Obeyed(version) || st.Gateways[0].Report.Middlewares[0].Rules[1].Counts[0].Limit != 200 {
		t.Errorf("after 5 seconds gateways are %+v, %v", st.Gateways, err)
	}
	// What is so already is no change.
	version, entries, err = api.Change(ctx, "", edits(scope.Edit{Field: "limit", Value: "200"}, scope.Edit{Field: "window"}))
	if err != nil || version != 8 || len(entries) != 0 || s.XLen(ctx, "rate:api:changes").Val() != 2 {
		t.Errorf("version %d, entries %v, %v", version, entries, err)
	}
	after, err := api.LogAfter(ctx, log[0].ID)
	if err != nil || !slices.Equal(after, log[1:]) {
		t.Errorf("after the first entry: %v, %v", after, err)
	}
}

func TestChangesAtOnceLoseNothing(t *testing.T) {
	s := standin.NewStore(t)
	const operators, each = 6, 10
	var wait sync.WaitGroup
	for operator := range operators {
		api := open(t, s).Scope("api")
		wait.Go(func() {
			for range each {
				// A sum can be right only if each change knows those before it.
				_, _, err := api.Change(ctx, fmt.Sprint("operator ", operator), func(st *scope.State, _ int64) ([]scope.Edit, error) {
					return []scope.Edit{{Field: "limit", Value: fmt.Sprint(st.Set.Limits[""] + 1)}}, nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	st := read(t, open(t, s).Scope("api"))
	if st.Set.Version != operators*each || st.Set.Limits[""] != operators*each {
		t.Errorf("version %d and limit %d after %d changes", st.Set.Version, st.Set.Limits[""], operators*each)
	}
	log, err := open(t, s).Scope("api").Log(ctx, 1000)
	if err != nil || len(log) != operators*each {
		t.Fatalf("%d entries, %v", len(log), err)
	}
	for i, e := range log {
		if e.New != fmt.Sprint(i+1) || i > 0 && e.Old != fmt.Sprint(i) {
			t.Errorf("entry %d is %+v", i, e)
		}
	}
}

func TestTheLogIsBounded(t *testing.T) {
	s := standin.NewStore(t)
	api := open(t, s).Scope("api")
	for i := range 1300 {
		s.XAdd(ctx, &redis.XAddArgs{Stream: "rate:api:changes", Values: []any{"what", "limit", "new", i}})
	}
	if _, _, err := api.Change(ctx, "", edits(scope.Edit{Field: "limit", Value: "1"})); err != nil {
		t.Fatal(err)
	}
	if n := s.XLen(ctx, "rate:api:changes").Val(); n > 1200 {
		t.Errorf("%d entries are kept", n)
	}
}

func TestNothingIsChangedWhereItCannotBeRemembered(t *testing.T) {
	s := standin.NewStore(t)
	s.Set(ctx, "rate:api:changes", "a text", 0)
	_, _, err := open(t, s).Scope("api").Change(ctx, "", edits(scope.Edit{Field: "limit", Value: "1"}))
	if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") || s.Exists(ctx, "rate:api:control").Val() != 0 {
		t.Errorf("%v, and set is %v", err, s.HGetAll(ctx, "rate:api:control").Val())
	}
}

func TestFieldsAreBounded(t *testing.T) {
	s := standin.NewStore(t)
	for i := range 4000 {
		s.HSet(ctx, "rate:api:control", fmt.Sprintf("block:%064x", i), now(t, s)+600)
	}
	api := open(t, s).Scope("api")
	_, _, err := api.Change(ctx, "", edits(scope.Edit{Field: fmt.Sprintf("block:%064x", 4000), Value: "99999999999"}))
	if err == nil || !strings.Contains(err.Error(), "4000 are allowed") {
		t.Errorf("one field more: %v", err)
	}
	// However many clients are blocked, all of it can be switched off.
	if _, _, err := api.Change(ctx, "", edits(scope.Edit{Field: "enabled", Value: "false"})); err != nil {
		t.Errorf("switched off: %v", err)
	}
	if _, _, err := api.Change(ctx, "", edits(scope.Edit{Field: fmt.Sprintf("block:%064x", 2), Value: "99999999999"})); err != nil {
		t.Errorf("the same field for longer: %v", err)
	}
	if _, _, err := api.Change(ctx, "", edits(scope.Edit{Field: fmt.Sprintf("block:%064x", 1)})); err != nil {
		t.Errorf("one field less: %v", err)
	}
}

func TestBytesAreBounded(t *testing.T) {
	s := standin.NewStore(t)
	value := fmt.Sprint(now(t, s)+600) + strings.Repeat(" a=1", 100)
	for i := range 1646 { // of 486 bytes each
		s.HSet(ctx, "rate:api:control", fmt.Sprintf("allow:%064x", i), value)
	}
	api := open(t, s).Scope("api")
	_, _, err := api.Change(ctx, "", edits(scope.Edit{Field: fmt.Sprintf("allow:%064x", 1646), Value: value}))
	if err == nil || !strings.Contains(err.Error(), "800000 are allowed") {
		t.Errorf("one field more: %v", err)
	}
	if _, _, err := api.Change(ctx, "", edits(scope.Edit{Field: "enabled", Value: "false"})); err != nil {
		t.Errorf("switched off: %v", err)
	}
}

func TestReportsThatNobodyCanReckonWith(t *testing.T) {
	s := standin.NewStore(t)
	standin.Start(t, s, &standin.Gateway{ID: "01", Host: "gw1", Scope: "api", Middlewares: byKey()})
	api := open(t, s).Scope("api")
	for _, wrong := range []string{
		`"version":9223372036854775807`, `"version":999999999999999`, `"version":-1`, `"counts":[{"limit":5,"window":0}]`, `"counts":[{"limit":5,"window":-60}]`,
		`"counts":[{"limit":5,"window":9223372036854775807}]`, `"counts":[{"limit":0,"window":60}]`, `"counts":[{"limit":-5,"window":60}]`,
		`"counts":[{"limit":5,"window":60,"burst":-1}]`, `"counts":[{"limit":5,"window":60},{}]`,
	} {
		if strings.HasPrefix(wrong, `"counts"`) {
			wrong = `"middlewares":[{"name":"m","rules":[{"rule":"",` + wrong + `}]}]`
		}
		s.HSet(ctx, "rate:api:reports", "02", fmt.Sprintf(`{"at":%d,"host":"gw2",%s}`, now(t, s), wrong))
		st := read(t, api)
		if st.Reporting() != 1 || len(st.Counts()) != 2 {
			t.Errorf("with %s %d report, and counts are %v", wrong, st.Reporting(), st.Counts())
		}
		if _, err := api.Standings(ctx, st, []scope.Client{st.ByHash(hash)}); err != nil {
			t.Errorf("with %s: %v", wrong, err)
		}
	}
}

func TestVersionIsAboveWhatGatewaysObeyed(t *testing.T) {
	s := standin.NewStore(t)
	// A gateway reports a version that the store has lost, and does not put it back.
	s.HSet(ctx, "rate:api:reports", "01", fmt.Sprintf(`{"version":41,"at":%d,"host":"gw1"}`, now(t, s)))
	version, _, err := open(t, s).Scope("api").Change(ctx, "", edits(scope.Edit{Field: "limit", Value: "1"}))
	if err != nil || version != 42 {
		t.Errorf("version %d, %v", version, err)
	}
}

func TestChangeWaitsForWhatTheStoreLost(t *testing.T) {
	s := standin.NewStore(t)
	s.HSet(ctx, "rate:api:reports", "01", fmt.Sprintf(`{"version":41,"at":%d,"host":"gw1"}`, now(t, s)))
	asked := make(chan int64, 1)
	go func() {
		version, _, err := open(t, s).Scope("api").Change(ctx, "", edits(scope.Edit{Field: "limit", Value: "1"}))
		if err != nil {
			t.Error(err)
		}
		asked <- version
	}()
	time.Sleep(100 * time.Millisecond) // it is right however long that is
	s.HSet(ctx, "rate:api:control", "version", 41, "enabled", "false")
	if version := <-asked; version != 42 {
		t.Errorf("version %d", version)
	}
	if fields := s.HGetAll(ctx, "rate:api:control").Val(); fields["enabled"] != "false" || fields["limit"] != "1" {
		t.Errorf("set is %v", fields)
	}
}

func TestAwaitGivesUp(t *testing.T) {
	s := standin.NewStore(t)
	standin.Start(t, s, &standin.Gateway{ID: "01", Host: "gw1", Scope: "api", Middlewares: byKey()})
	standin.Start(t, s, &standin.Gateway{ID: "02", Host: "gw2", Scope: "api", Middlewares: byKey(), Deaf: true})
	api := open(t, s).Scope("api")
	version, _, err := api.Change(ctx, "", edits(scope.Edit{Field: "limit", Value: "1"}))
	if err != nil {
		t.Fatal(err)
	}
	st, err := api.Await(ctx, version, 300*time.Millisecond)
	if err != nil || st.Obeyed(version) || len(st.Gateways) != 2 || st.Gateways[1].Obeys(version) {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestClients(t *testing.T) {
	key := source.Criterion{Header: "X-Api-Key", IPv6Subnet: 64}
	skipping := source.Criterion{Header: "X-Api-Key", IPv6Subnet: 64, OnMissing: source.MissingSkip}
	cookie := source.Criterion{Cookie: "sid", IPv6Subnet: 64}
	address := source.Criterion{IPv4Subnet: 24, IPv6Subnet: 64}
	several := source.Criterion{Headers: []string{"A", "B"}, IPv6Subnet: 64}
	state := func(keyed bool, rules ...scope.Rule) *scope.State {
		return &scope.State{Gateways: []scope.Gateway{{Report: &scope.Report{Keyed: keyed, Middlewares: []scope.Middleware{{Name: "m", Rules: rules}}}}}}
	}
	rule := func(name string, c source.Criterion) scope.Rule {
		source.Prepare(&c)
		return scope.Rule{Rule: name, Source: c, Counts: []scope.Count{{Name: name, Algorithm: "fixed-window", Limit: 1, Window: 60}}}
	}
	const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // sha256 of abc
	tests := []struct {
		name, value, secret string
		st                  *scope.State
		want                []string // the way, a blank, the rules with commas
		unfit               []string
	}{
		{"no report", "abc", "", &scope.State{}, []string{"the value alone, as of a header "}, nil},
		{"one way", " abc ", "", state(false, rule("", key)), []string{"header X-Api-Key "}, nil},
		{"two rules, one way", "abc", "", state(false, rule("login", key), rule("", key)), []string{"header X-Api-Key login,"}, nil},
		{"two ways", "abc", "", state(false, rule("login", cookie), rule("", key)), []string{"cookie sid login", "header X-Api-Key "}, nil},
		{"an address where a header is meant", "192.0.2.7", "", state(false, rule("", key)), []string{"header X-Api-Key ", "address, without header X-Api-Key "}, nil},
		{"an address where missing headers are skipped", "192.0.2.7", "", state(false, rule("", skipping)), []string{"header X-Api-Key "}, nil},
		{"an address", "192.0.2.7", "", state(false, rule("", address)), []string{"address "}, nil},
		{"no address", "abc", "", state(false, rule("", address), rule("login", key)), []string{"header X-Api-Key login"}, []string{"by address: it is no address"}},
		{"several parts", "abc", "", state(false, rule("", several)), nil, []string{"by header A and header B: clients are told apart by several parts"}},
		{"blank", " ", "", state(false, rule("", key)), nil, []string{"counts as missing"}},
		{"keyed without a secret", "abc", "", state(true, rule("", key)), nil, []string{"--key-secret-file"}},
		{"keyed", "abc", "0123456789abcdef", state(true, rule("", key)), []string{"header X-Api-Key "}, nil},
		{"secret without need", "abc", "0123456789abcdef", state(false, rule("", key)), []string{"header X-Api-Key "}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			clients, unfit := test.st.Clients(test.value, test.secret)
			var got []string
			for _, c := range clients {
				got = append(got, c.By+" "+strings.Join(c.Rules, ","))
				if !scope.IsHash(c.Hash) {
					t.Errorf("hash %q", c.Hash)
				}
				plain := strings.Contains(c.By, "header") && !strings.HasPrefix(c.By, "address") && strings.TrimSpace(test.value) == "abc" && !strings.HasPrefix(test.name, "keyed")
				if plain && c.Hash != abc || !plain && c.Hash == abc {
					t.Errorf("%s: hash %s", c.By, c.Hash)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("clients %q, want %q", got, test.want)
			}
			if len(unfit) != len(test.unfit) {
				t.Fatalf("unfit %v", unfit)
			}
			for i := range unfit {
				if !strings.Contains(unfit[i].Error(), test.unfit[i]) {
					t.Errorf("unfit %q", unfit[i])
				}
			}
		})
	}
}

func TestOneNetworkIsOneClient(t *testing.T) {
	c := source.Criterion{IPv4Subnet: 24, IPv6Subnet: 64}
	source.Prepare(&c)
	st := &scope.State{Gateways: []scope.Gateway{{Report: &scope.Report{Middlewares: []scope.Middleware{{Rules: []scope.Rule{{Source: c}}}}}}}}
	one, _ := st.Clients("192.0.2.7", "")
	other, _ := st.Clients("192.0.2.200", "")
	if one[0].Hash != other[0].Hash {
		t.Error("two addresses of one network are two clients")
	}
}
