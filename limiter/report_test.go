package limiter

import (
	"context"
	"math"
	"math/rand"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/gatequota/gatequota/resp"
	"github.com/gatequota/gatequota/window"
)

// A store that no configuration uses any more is neither away nor used, however it fared
// when it was last asked; what was counted of it goes on.
func TestReportIsAboutStoresInForce(t *testing.T) {
	forget()
	const endpoint = "reported:6379"
	report := func() StoreReport {
		t.Helper()
		var found []StoreReport
		for _, r := range Reports().Stores {
			if r.Endpoint == endpoint {
				found = append(found, r)
			}
		}
		if len(found) != 1 {
			t.Fatalf("%d reports of %s", len(found), endpoint)
		}
		return found[0]
	}
	l := &ledger{}
	ctx, reload := context.WithCancel(context.Background())
	before := openStore(&StoreSettings{Endpoint: endpoint, Timeout: time.Second}, l)
	serve(ctx, before, &table{})
	if r := report(); r.Used || r.Away {
		t.Errorf("before its first use: used %t, away %t", r.Used, r.Away)
	}
	before.batches = 5
	before.origin += int64(time.Hour)
	setHealth(before, away)
	if r := report(); !r.Used || !r.Away || r.ClockOffset < 59*time.Minute {
		t.Errorf("in use: used %t, away %t, its clock %v ahead", r.Used, r.Away, r.ClockOffset)
	}

	// The same endpoint, with another time-out.
	after := openStore(&StoreSettings{Endpoint: endpoint, Timeout: 2 * time.Second}, l)
	serve(context.Background(), after, &table{})
	reload()
	if r := report(); r.Used || r.Away {
		t.Errorf("out of use, before the first use of the other one: used %t, away %t", r.Used, r.Away)
	}
	after.batches = 2
	if r := report(); !r.Used || r.Away || r.RoundTrips != 7 || r.ClockOffset > time.Minute {
		t.Errorf("the other one in use: used %t, away %t, %d round trips, its clock %v ahead", r.Used, r.Away, r.RoundTrips, r.ClockOffset)
	}
}

// reported returns the report on a count of a scope.
func reported(t *testing.T, scope, count string) TableReport {
	t.Helper()
	var found []TableReport
	for _, r := range Reports().Tables {
		if r.Scope == scope && r.Count == count {
			found = append(found, r)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d reports of %s %s", len(found), scope, count)
	}
	return found[0]
}

// What is reported after known traffic, counted in each way, in the store and in memory.
func TestReportsAfterKnownTraffic(t *testing.T) {
	names := []string{"fixed-window", "sliding-window", "sliding-log", "token-bucket"}
	for _, shared := range []bool{true, false} {
		f := controlled(t)
		for algorithm, name := range names {
			s := f.hourOf(window.Algorithm(algorithm))
			s.Name = name
			store := s.Store.Endpoint
			began := time.Now()
			if !shared {
				s.Store, store = nil, ""
				began = start.Add(time.Since(Began)) // in the middle of an hour
			}
			q := NewSeveral(context.Background(), []*Settings{s}, 1, began)
			if q.store != nil {
				q.store.kept = true
			}
			for client, n := range map[string]int{"one": 1, "four": 4, "seven": 7} {
				for i := 0; i < n; i++ {
					TakeOne(q, client, time.Since(Began), &window.Decision{})
				}
			}
			got, want := reported(t, "algorithm", name), TableReport{
				Scope: "algorithm", Count: name, Algorithm: name, Store: store, Window: 3600, Limit: 5, Clients: 3, MaxClients: 10000,
			}
			if got != want {
				t.Errorf("shared %t: %+v, want %+v", shared, got, want)
			}
			var nearest []ClientReport
			for _, n := range Nearest(2) {
				if n.Count == name {
					nearest = append(nearest, n)
				}
			}
			if len(nearest) != 2 {
				t.Fatalf("shared %t, %s: the nearest are %+v", shared, name, nearest)
			}
			for i, want := range []ClientReport{
				{Scope: "algorithm", Count: name, Window: 3600, Hash: digestOf("seven"), Used: 5, Limit: 5},
				{Scope: "algorithm", Count: name, Window: 3600, Hash: digestOf("four"), Used: 4, Limit: 5},
			} {
				reset := nearest[i].Reset
				nearest[i].Reset = 0
				if nearest[i] != want || reset < 1 || reset > 7200 || algorithm == 3 && (reset > 3600*want.Used/5 || reset < 3600*want.Used/5-30) {
					t.Errorf("shared %t, %s: %+v in %d s, want %+v", shared, name, nearest[i], reset, want)
				}
			}
		}
		// Whoever has used nothing is near to none.
		for _, table := range allTables() {
			table.ledger.mu.Lock()
			origin := table.origin
			if table.clock != nil {
				origin = *table.clock
			}
			window.Find(&table.limit, table.counts, table.entries, "idle", (int64(time.Since(Began))+origin)/millisecond)
			table.ledger.mu.Unlock()
		}
		if n := len(Nearest(1)); n != 4 {
			t.Errorf("shared %t: one of each of four counts are %d", shared, n)
		}
		if n := len(Nearest(100)); n != 12 {
			t.Errorf("shared %t: all of them are %d, want 12", shared, n)
		}
	}
}

// What passes without the store, and what of it is settled, is reported for each count.
func TestReportsOfAnOutage(t *testing.T) {
	const alone = -1 // in slots, and not in groups
	for _, algorithm := range []window.Algorithm{alone, window.Fixed, window.Sliding, window.Exact, window.Bucket} {
		f := controlled(t)
		s := f.hourOf(window.Fixed)
		if algorithm != alone {
			s = f.hourOf(algorithm)
		}
		s.Limit, s.Burst = 20, 20
		l := openAlone(t, s)
		q := openSeveral(t, 1, []*Settings{s})
		ask := func(n int) {
			for i := 0; i < n; i++ {
				if algorithm == alone {
					TakeShared(l, "client", time.Since(Began), &window.Decision{})
				} else {
					TakeOne(q, "client", time.Since(Began), &window.Decision{})
				}
			}
		}
		ask(3)
		cutOffSeveral(f.severalFake, q)
		ask(7)
		report := reported(t, "algorithm", "")
		if report.OutageAllowed != 7 || report.OutageSettled != 0 {
			t.Errorf("algorithm %d: %d passed, %d were settled; want 7, 0", algorithm, report.OutageAllowed, report.OutageSettled)
		}
		stores := Reports().Stores
		if len(stores) != 1 || !stores[0].Away || !stores[0].Used || stores[0].WentAway != 1 || stores[0].CameBack != 0 || len(stores[0].Changes) != 1 ||
			!stores[0].Changes[0].Away || stores[0].Changes[0].Why == "" || stores[0].Since != stores[0].Changes[0].At || stores[0].Errors["dial"] == 0 {
			t.Errorf("algorithm %d: the store is %+v", algorithm, stores)
		}
		comeBackSeveral(t, f.severalFake, q)
		ask(1)
		report = reported(t, "algorithm", "")
		want := int64(7)
		if algorithm == window.Bucket {
			want = 0 // which hands over an instant
		}
		if report.OutageAllowed != 7 || report.OutageSettled != want {
			t.Errorf("algorithm %d: %d passed, %d were settled; want 7, %d", algorithm, report.OutageAllowed, report.OutageSettled, want)
		}
		if back := Reports().Stores[0]; back.Away || back.CameBack != 1 || len(back.Changes) != 2 || back.Changes[0].Away || back.Since != back.Changes[0].At {
			t.Errorf("algorithm %d: the store is %+v", algorithm, back)
		}
	}
}

// Each round trip is counted once, in the place of its time and of its requests.
func TestRoundTripsAreCountedByTimeAndRequests(t *testing.T) {
	forget()
	s := newStore(&StoreSettings{Endpoint: "timed"}, &ledger{})
	for _, tt := range []struct {
		took     time.Duration
		requests int64
		time     int
		merged   int
	}{
		{1, 1, 0, 0}, {64 * time.Microsecond, 1, 0, 0}, {64*time.Microsecond + 1, 2, 1, 1}, {128 * time.Microsecond, 3, 1, 2}, {129 * time.Microsecond, 4, 2, 2},
		{64 << 14 * time.Microsecond, 1024, 14, 10}, {64<<14*time.Microsecond + 1, 1025, 15, 11}, {time.Hour, 1 << 40, 15, 11},
	} {
		latency, merged := append([]int64(nil), s.latency...), append([]int64(nil), s.merged...)
		timeRoundTrip(s, tt.took, tt.requests)
		latency[tt.time]++
		merged[tt.merged]++
		if !reflect.DeepEqual(s.latency, latency) || !reflect.DeepEqual(s.merged, merged) {
			t.Errorf("%s with %d requests: %v, %v; want %v, %v", tt.took, tt.requests, s.latency, s.merged, latency, merged)
		}
	}
	r := &Report{}
	addStore(r, s)
	got := r.Stores[0]
	if n := len(got.Latency.Bounds); n != len(got.Latency.Counts)-1 || got.Latency.Bounds[0] != 64e-6 || got.Latency.Bounds[n-1] != 64e-6*(1<<14) || math.Abs(got.Latency.Sum-s.latencySum.Seconds()) > 1e-9 {
		t.Errorf("the times are %+v", got.Latency)
	}
	if n := len(got.Batches.Bounds); n != len(got.Batches.Counts)-1 || got.Batches.Bounds[0] != 1 || got.Batches.Bounds[n-1] != 1024 || got.Batches.Sum != float64(s.mergedSum) {
		t.Errorf("the requests are %+v", got.Batches)
	}
}

// A single request is counted as a batch of one is.
func TestSinglesAreCountedAsRoundTrips(t *testing.T) {
	forget()
	one, batch := newStore(&StoreSettings{Endpoint: "single"}, &ledger{}), newStore(&StoreSettings{Endpoint: "batch"}, &ledger{})
	const took = 24 * time.Hour
	timeSingle(&single{limiter: &Limiter{store: one}, start: time.Now().Add(-took)})
	timeRoundTrip(batch, took, 1)
	if over := one.latencySum - took; over < 0 || over > time.Hour {
		t.Errorf("it took %s, want %s", one.latencySum, took)
	}
	if !reflect.DeepEqual(one.latency, batch.latency) || !reflect.DeepEqual(one.merged, batch.merged) || one.mergedSum != batch.mergedSum {
		t.Errorf("%v, %v, %d; a batch: %v, %v, %d", one.latency, one.merged, one.mergedSum, batch.latency, batch.merged, batch.mergedSum)
	}
}

// Those who watch know of all requests and round trips from then on.
func TestRequestsOfRoundTripsAddUp(t *testing.T) {
	f := controlled(t)
	defer func(was bool) { timesStores = was }(timesStores)
	ways := f.ways(t)
	ways[0].ask("untimed")
	before := Reports().Stores[0]
	Watch()
	for i := 0; i < 4; i++ {
		for _, w := range ways {
			w.ask("client")
		}
	}
	after := Reports().Stores[0]
	trips := int64(0)
	for i, n := range after.Latency.Counts {
		trips += n - before.Latency.Counts[i]
	}
	if want := int64(4 * len(ways)); trips != want || after.RoundTrips-before.RoundTrips != want || after.Batches.Sum-before.Batches.Sum != float64(want) || after.Latency.Sum <= 0 {
		t.Errorf("%d were timed, %d made, with %v requests, in %v s; want %d", trips, after.RoundTrips-before.RoundTrips, after.Batches.Sum, after.Latency.Sum, want)
	}
	if later := openStore(&StoreSettings{Endpoint: "later"}, &ledger{}); !later.timed {
		t.Error("the round trips of a store to come are not timed")
	}
}

func TestFailuresAreClassed(t *testing.T) {
	for want, tt := range map[string]struct {
		refusal string
		err     error
	}{
		"OOM": {"OOM command not allowed when used memory > 'maxmemory'", nil}, "NOPERM": {"NOPERM no", nil}, "READONLY": {"READONLY You can't write", nil},
		"other": {"SECRET is no word of a server", nil}, "": {"", errAway}, "crowded": {"", errCrowded}, "dial": {"", resp.ErrDial}, "timeout": {"", resp.ErrTimeout},
		"refused": {"", resp.ErrRefused}, "protocol": {"", errNoCount}, "lost": {"", lostAfter()}, "panic": {"", panicked("x")},
	} {
		if got := classOf(tt.refusal, tt.err); got != want {
			t.Errorf("%q, %v: %s, want %s", tt.refusal, tt.err, got, want)
		}
	}
	s := newStore(&StoreSettings{Endpoint: "classed"}, &ledger{})
	for i := 0; i < 3; i++ {
		countError(s, "OOM")
		countError(s, "")
	}
	if len(s.errors) != 1 || s.errors["OOM"] != 3 {
		t.Errorf("%v", s.errors)
	}
	for i := 0; i < 50; i++ {
		noteChange(s, Change{Why: strconv.Itoa(i)})
	}
	if len(s.changes) != changesKept || s.changes[0].Why != "49" || s.changes[changesKept-1].Why != strconv.Itoa(50-changesKept) {
		t.Errorf("kept are %+v", s.changes)
	}
}

// The nearest of a hundred thousand are found in small parts, between which requests have
// their turn.
func TestNearestOfMany(t *testing.T) {
	const clients = 100000
	for _, algorithm := range []window.Algorithm{window.Fixed, window.Bucket} {
		forget()
		seed := rand.Int63()
		random := rand.New(rand.NewSource(seed))
		s := &Settings{Scope: "many", Limit: 1000, Burst: 1000, Window: 86400 * 366, Algorithm: algorithm, MaxClients: 1 << 17}
		now := time.Now()
		q := NewSeveral(context.Background(), []*Settings{s}, 1, now)
		table := q.tables[0]
		ms := (int64(now.Sub(Began)) + table.origin) / millisecond
		used := map[string]int64{}
		for i := 0; i < clients; i++ {
			n := 1 + random.Int63n(900)
			if i < clients-nearestMost {
				n = 1000 // they came too early to be looked at
			}
			a := window.Find(q.limits[0], table.counts, table.entries, client(i), ms)
			window.Take(q.limits, []*window.Account{a}, n, ms, &window.Decision{})
			if i >= clients-nearestMost {
				used[digestOf(client(i))] = n
			}
		}
		var got []ClientReport
		parts := partsOf(t, table, func() { got = Nearest(10) })
		if parts < nearestMost/nearestPart || parts > clients/nearestPart {
			t.Errorf("seed %d, algorithm %d: they are found in %d parts", seed, algorithm, parts)
		}
		if len(got) != 10 {
			t.Fatalf("seed %d, algorithm %d: %+v", seed, algorithm, got)
		}
		better := 0
		for _, n := range used {
			if n > got[9].Used {
				better++
			}
		}
		if better > 9 {
			t.Errorf("seed %d, algorithm %d: %d have used more than the last of ten", seed, algorithm, better)
		}
		for i, r := range got {
			if r.Used != used[r.Hash] || r.Limit != 1000 || r.Scope != "many" || i > 0 && r.Used > got[i-1].Used {
				t.Errorf("seed %d, algorithm %d: %+v, which has used %d", seed, algorithm, r, used[r.Hash])
			}
		}
	}
}
