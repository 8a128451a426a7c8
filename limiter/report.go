package limiter

import (
	"errors"
	"math/bits"
	"runtime"
	"sort"
	"time"

	"github.com/gatequota/gatequota/resp"
	"github.com/gatequota/gatequota/window"
)

// A Report says how this gateway fares, for those who watch over it.
type Report struct {
	Stores []StoreReport // in use or used before, by endpoint
	Tables []TableReport // by scope and count
}

// A StoreReport is about one store as some middlewares use it.
type StoreReport struct {
	Endpoint   string           // as the operator wrote it
	Used       bool             // a configuration in force uses it, and a request was counted there, or tried to be
	Away       bool             // it is in use, and not asked since it failed
	Since      time.Time        // when it last went away or came back; zero: it never did
	RoundTrips int64            // batches of calls that were answered or tried
	Errors     map[string]int64 // failures by class
	Latency    Histogram        // of round trips, in seconds
	Batches    Histogram        // of requests that were merged into one round trip
	WentAway   int64            // how often
	CameBack   int64
	Changes    []Change // the last of them, the newest first
	// ClockOffset is how far the store's clock is ahead of this machine's.
	ClockOffset time.Duration
}

// A Change is one of a store's state.
type Change struct {
	At   time.Time
	Away bool
	Why  string // it went away; no secret
}

// A Histogram counts values by how large they are.
type Histogram struct {
	Bounds []float64 // the upper bound of each count but the last, which has none
	Counts []int64   // not cumulative
	Sum    float64
}

// A TableReport is about the clients that are counted under one name in a scope.
type TableReport struct {
	Scope      string
	Count      string // the name; "" is one too
	Algorithm  string // as in the option
	Store      string // the endpoint; "" for what is counted in this gateway's memory alone
	Window     int64  // seconds
	Limit      int64  // as it was last set
	Clients    int    // that are held in memory
	MaxClients int
	Gateways   int64 // that serve the scope, as last learnt; 0: never
	// OutageAllowed requests passed without the store, and OutageSettled of them were
	// added to its count afterwards. A token bucket hands over an instant instead, and
	// settles 0.
	OutageAllowed, OutageSettled int64
}

// A ClientReport is about one client under one limit.
type ClientReport struct {
	Scope, Count string
	Window       int64  // seconds
	Hash         string // the hexadecimal digest under which the client is counted
	Used, Limit  int64
	Reset        int64 // seconds until the whole limit is free again
}

const (
	// Round trips are told apart by powers of two of 64 us, and the requests of one by
	// powers of two; the last place is for all that is more.
	latencyUnit   = 64 * time.Microsecond
	latencyPlaces = 16
	mergedPlaces  = 12
	// changesKept is how many changes of a store's state are remembered.
	changesKept = 20
)

// Watch has the round trips of all stores timed from now on, also of those to come.
func Watch() {
	storesMu.Lock()
	defer storesMu.Unlock()
	timesStores = true
	for _, s := range stores {
		s.ledger.mu.Lock()
		s.timed = true
		s.ledger.mu.Unlock()
	}
}

// timeBatch notes how long the round trip of a batch took.
func timeBatch(b *batch, took time.Duration) {
	if b.turn == 0 {
		return // the keeper's own has no requests
	}
	s := b.store
	s.ledger.mu.Lock()
	requests := int64(0)
	for _, sl := range b.slots {
		requests += sl.requests
	}
	for _, g := range b.groups {
		requests += g.requests
	}
	timeRoundTrip(s, took, requests)
	s.ledger.mu.Unlock()
}

// timeSingle is timeRoundTrip for a single request, with less work.
func timeSingle(q *single) {
	s := q.limiter.store
	took := time.Since(q.start)
	place := bits.Len64(uint64((took - 1) / latencyUnit))
	if place >= latencyPlaces {
		place = latencyPlaces - 1
	}
	s.latency[place]++
	s.latencySum += took
	s.merged[0]++
	s.mergedSum++
}

// timeRoundTrip notes how long a round trip took with so many requests. Who calls it holds
// the ledger's mutex.
func timeRoundTrip(s *store, took time.Duration, requests int64) {
	place := bits.Len64(uint64((took - 1) / latencyUnit))
	if place >= latencyPlaces {
		place = latencyPlaces - 1
	}
	s.latency[place]++
	s.latencySum += took
	place = bits.Len64(uint64(requests - 1))
	if place >= mergedPlaces {
		place = mergedPlaces - 1
	}
	s.merged[place]++
	s.mergedSum += requests
}

// countError counts a failure of a class.
func countError(s *store, class string) {
	if class == "" {
		return
	}
	s.mu.Lock()
	s.errors[class]++
	s.mu.Unlock()
}

// classOf returns the class of a failure: "" for what was not tried. Of what a store says
// only words are repeated that are known here.
func classOf(refusal string, err error) string {
	switch {
	case err == nil && refusal == "":
		return "other"
	case err == nil:
		word := resp.Word(refusal)
		if advices[word] == "" {
			return "other"
		}
		return word
	case err == errAway:
		return ""
	case err == errCrowded:
		return "crowded"
	case errors.Is(err, resp.ErrDial):
		return "dial"
	case errors.Is(err, resp.ErrTimeout):
		return "timeout"
	case errors.Is(err, resp.ErrRefused):
		return "refused"
	case errors.Is(err, resp.ErrProtocol):
		return "protocol"
	case errors.Is(err, resp.ErrLost):
		return "lost"
	}
	return "panic"
}

// noteChange remembers a change of a store's state. Who calls it holds the store's mu.
func noteChange(s *store, c Change) {
	s.changes = append([]Change{c}, s.changes...)
	if len(s.changes) > changesKept {
		s.changes = s.changes[:changesKept]
	}
}

// Reports returns how this gateway fares now.
func Reports() *Report {
	r := &Report{}
	storesMu.Lock()
	var all []*store
	for _, s := range stores {
		all = append(all, s)
	}
	storesMu.Unlock()
	endpoints := map[*ledger]string{}
	for _, s := range all {
		endpoints[s.ledger] = s.endpoint
		addStore(r, s)
	}
	for _, t := range allTables() {
		r.Tables = append(r.Tables, reportTable(t, endpoints[t.ledger]))
	}
	sort.Slice(r.Stores, func(i, j int) bool { return r.Stores[i].Endpoint < r.Stores[j].Endpoint })
	sort.Slice(r.Tables, func(i, j int) bool {
		a, b := &r.Tables[i], &r.Tables[j]
		if a.Scope != b.Scope {
			return a.Scope < b.Scope
		}
		if a.Count != b.Count {
			return a.Count < b.Count
		}
		return a.Window < b.Window
	})
	return r
}

// addStore adds a store to a report. What is written as the same endpoint is one store to
// those who watch, though it may be used in several ways.
func addStore(r *Report, s *store) {
	var at *StoreReport
	for i := range r.Stores {
		if r.Stores[i].Endpoint == s.endpoint {
			at = &r.Stores[i]
		}
	}
	if at == nil {
		r.Stores = append(r.Stores, StoreReport{
			Endpoint: s.endpoint,
			Errors:   map[string]int64{},
			Latency:  Histogram{Bounds: bounds(latencyPlaces, latencyUnit.Seconds()), Counts: make([]int64, latencyPlaces)},
			Batches:  Histogram{Bounds: bounds(mergedPlaces, 1), Counts: make([]int64, mergedPlaces)},
		})
		at = &r.Stores[len(r.Stores)-1]
	}
	// One that no configuration uses any more keeps the state that it had.
	used := inUse(s)
	s.mu.Lock()
	for class, n := range s.errors {
		at.Errors[class] += n
	}
	at.WentAway += s.wentCount
	at.CameBack += s.cameCount
	at.Changes = append(at.Changes, s.changes...)
	sort.SliceStable(at.Changes, func(i, j int) bool { return at.Changes[i].At.After(at.Changes[j].At) })
	if len(at.Changes) > 0 {
		at.Since = at.Changes[0].At
	}
	s.mu.Unlock()
	s.ledger.mu.Lock()
	used = used && (s.batches > 0 || s.passed > 0)
	at.Used = at.Used || used
	at.Away = at.Away || used && s.health >= away
	at.RoundTrips += s.batches
	for i, n := range s.latency {
		at.Latency.Counts[i] += n
	}
	for i, n := range s.merged {
		at.Batches.Counts[i] += n
	}
	at.Latency.Sum += s.latencySum.Seconds()
	at.Batches.Sum += float64(s.mergedSum)
	origin := s.origin
	s.ledger.mu.Unlock()
	if !used {
		return
	}
	now := time.Now()
	at.ClockOffset = time.Duration(int64(now.Sub(Began)) + origin - now.UnixNano())
}

// bounds returns the upper bounds of so many places, the last of which has none.
func bounds(places int, first float64) []float64 {
	var all []float64
	for i := 0; i < places-1; i++ {
		all = append(all, first*float64(int64(1)<<i))
	}
	return all
}

// allTables returns the tables of scopes.
func allTables() []*table {
	tablesMu.Lock()
	defer tablesMu.Unlock()
	var all []*table
	for _, t := range tables {
		if t.name != "" {
			all = append(all, t)
		}
	}
	return all
}

// algorithmNames are in the order of the algorithms.
var algorithmNames = []string{"fixed-window", "sliding-window", "sliding-log", "token-bucket"}

func reportTable(t *table, store string) TableReport {
	t.ledger.mu.Lock()
	defer t.ledger.mu.Unlock()
	r := TableReport{
		Scope: t.name, Count: t.count, Algorithm: algorithmNames[t.limit.Algorithm], Store: store,
		Window: t.length, Limit: t.limit.Limit, MaxClients: t.max, Gateways: t.gateways,
		OutageAllowed: t.outageAllowed, OutageSettled: t.outageSettled,
	}
	if t.entries != nil {
		r.Clients = window.EntriesLen(t.entries)
	} else {
		r.Clients = window.FixedRunning(t.counts)
	}
	return r
}

const (
	// nearestPart is how many clients are looked at before the requests get their turn
	// again, and nearestMost at how many of a table at most.
	nearestPart = 32
	nearestMost = 1 << 16
)

// Nearest returns the clients of each count in this gateway's memory that are nearest to
// their limits, at most so many of each, those first that have least left. It goes by the
// ordinary limit of the count, whatever a plan or an override says, and looks at up to
// 65536 clients of each count, those first that came last.
func Nearest(most int) []ClientReport {
	var all []ClientReport
	for _, t := range allTables() {
		all = append(all, nearestOf(t, most)...)
	}
	sort.SliceStable(all, func(i, j int) bool {
		if all[i].Scope != all[j].Scope {
			return all[i].Scope < all[j].Scope
		}
		return all[i].Count < all[j].Count
	})
	return all
}

// giveWay is called between two parts of a table, for requests to have their turn.
var giveWay = runtime.Gosched

// A near is a client as Nearest finds it.
type near struct {
	client             string
	used, limit, reset int64
}

// nearestOf is Nearest for one table.
func nearestOf(t *table, most int) []ClientReport {
	var best []near
	least := int64(0) // that one must have used to be among them
	for next, seen := 0, 0; next >= 0 && seen < nearestMost; seen += nearestPart {
		part, after := nearestIn(t, next, least)
		giveWay()
		next = after
		if len(part) == 0 {
			continue
		}
		best = append(best, part...)
		sort.SliceStable(best, func(i, j int) bool { return best[i].used > best[j].used })
		if len(best) >= most {
			best = best[:most]
			least = best[most-1].used
		}
	}
	var reports []ClientReport
	for _, n := range best {
		reports = append(reports, ClientReport{
			Scope: t.name, Count: t.count, Window: t.length, Hash: hexDigest(t, n.client),
			Used: n.used, Limit: n.limit, Reset: n.reset,
		})
	}
	return reports
}

// nearestIn looks at a part of a table for clients who have used more than least, and
// returns where the next part begins, less than zero if there is none.
func nearestIn(t *table, next int, least int64) (found []near, after int) {
	t.ledger.mu.Lock()
	defer t.ledger.mu.Unlock()
	origin := t.origin
	if t.clock != nil {
		origin = *t.clock
	}
	now := (int64(time.Since(Began)) + origin) / millisecond
	l := t.limit
	if t.entries == nil && l.Algorithm == window.Fixed {
		return nearestFixed(t, next, least, now/1000)
	}
	clients, accounts, after := window.Running(t.counts, t.entries, now, nearestPart, next)
	found = nil
	capacity := window.Capacity(&l)
	for i, a := range accounts {
		used := capacity - window.Left(&l, a, now)
		if used > least {
			reset := window.Wait(&l, a, capacity, now)
			found = append(found, near{client: clients[i], used: used, limit: capacity, reset: (reset + 999) / 1000})
		}
	}
	return found, after
}

// nearestFixed is nearestIn for fixed windows, at a time in unix seconds, with less work:
// of most clients no more is looked at than their count. Who calls it holds the ledger's
// mutex.
func nearestFixed(t *table, next int, least, unix int64) (found []near, after int) {
	part, after := window.FixedPart(t.counts, unix, nearestPart, next)
	found = nil
	for _, f := range part {
		if f.Known > least {
			found = append(found, near{client: window.FixedClient(f), used: f.Known, limit: t.limit.Limit, reset: f.End - unix})
		}
	}
	return found, after
}
