package status

import (
	"sort"
	"time"

	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/tally"
	"github.com/gatequota/gatequota/version"
)

// clientDigits is how much of a client's digest is shown: enough to find it by, too little
// to compute with.
const clientDigits = 12

// status is the whole of it, in the form in which it is encoded. Times are unix
// milliseconds, by the clock of this machine; 0 is never. Lists are never null.
type status struct {
	Time    int64         `json:"time"`
	Gateway string        `json:"gateway"`
	Host    string        `json:"host"`
	Version string        `json:"version"`
	Started int64         `json:"started"`
	Stores  []storeStatus `json:"stores"`
	Scopes  []scopeStatus `json:"scopes"` // by name
}

type storeStatus struct {
	Endpoint    string           `json:"endpoint"`
	State       string           `json:"state"` // answers, away, or unused by any request yet
	Since       int64            `json:"since"` // when the state last changed
	RoundTrips  int64            `json:"roundTrips"`
	Errors      map[string]int64 `json:"errors"`
	Latency     *latency         `json:"latency"`     // null: nothing was measured yet
	ClockOffset float64          `json:"clockOffset"` // seconds that the store's clock is ahead
	Changes     []changeStatus   `json:"changes"`     // the newest first
}

// latency says in seconds how long round trips took, to the width of a histogram's step.
type latency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

type changeStatus struct {
	Time int64  `json:"time"`
	To   string `json:"to"` // away or back
	Why  string `json:"why"`
}

type scopeStatus struct {
	Scope     string           `json:"scope"`
	Gateways  int64            `json:"gateways"` // that serve the scope, as last learnt; 0: never
	Share     string           `json:"share"`
	Control   *Control         `json:"control"`
	Limits    []Limit          `json:"limits"`
	Clients   []clientsStatus  `json:"clients"`
	Decisions []decisionStatus `json:"decisions"` // those that ever happened
	Nearest   []nearestStatus  `json:"nearest"`   // of each count, those first that have least left
}

type clientsStatus struct {
	Count         string `json:"count"`
	Window        int64  `json:"window"` // seconds
	Store         string `json:"store"`  // endpoint; "" is this gateway's memory alone
	Tracked       int    `json:"tracked"`
	Max           int    `json:"max"`
	OutageAllowed int64  `json:"outageAllowed"` // requests that passed without the store
	OutageSettled int64  `json:"outageSettled"` // of them added to its count afterwards
}

type decisionStatus struct {
	Rule    string `json:"rule"`
	Outcome string `json:"outcome"`
	Way     string `json:"way"`
	Total   int64  `json:"total"`
}

type nearestStatus struct {
	Count  string `json:"count"`
	Client string `json:"client"` // how its digest begins
	Used   int64  `json:"used"`
	Limit  int64  `json:"limit"`
	Reset  int64  `json:"reset"` // seconds until the whole limit is free again
}

// compose puts together what is known.
func compose(v *View, now time.Time, report *limiter.Report, nearest []limiter.ClientReport, totals []tally.Total) *status {
	s := &status{
		Time:    now.UnixMilli(),
		Gateway: v.Gateway,
		Host:    v.Host,
		Version: version.Number,
		Started: milliseconds(v.Started),
		Stores:  []storeStatus{},
		Scopes:  []scopeStatus{},
	}
	for i := range report.Stores {
		s.Stores = append(s.Stores, composeStore(&report.Stores[i]))
	}
	for i := range v.Scopes {
		s.Scopes = append(s.Scopes, composeScope(&v.Scopes[i], report.Tables, nearest, totals))
	}
	sort.Slice(s.Scopes, func(i, j int) bool { return s.Scopes[i].Scope < s.Scopes[j].Scope })
	return s
}

func milliseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func composeStore(r *limiter.StoreReport) storeStatus {
	s := storeStatus{
		Endpoint:    r.Endpoint,
		State:       "unused",
		Since:       milliseconds(r.Since),
		RoundTrips:  r.RoundTrips,
		Errors:      map[string]int64{},
		ClockOffset: r.ClockOffset.Seconds(),
		Changes:     []changeStatus{},
	}
	if r.Away {
		s.State = "away"
	} else if r.Used {
		s.State = "answers"
	}
	for class, n := range r.Errors {
		s.Errors[class] = n
	}
	p50, measured := quantile(&r.Latency, 0.5)
	if measured {
		p99, _ := quantile(&r.Latency, 0.99)
		s.Latency = &latency{P50: p50, P99: p99}
	}
	for _, change := range r.Changes {
		c := changeStatus{Time: milliseconds(change.At), To: "back"}
		if change.Away {
			c.To = "away"
			c.Why = change.Why
		}
		s.Changes = append(s.Changes, c)
	}
	return s
}

func composeScope(scope *Scope, tables []limiter.TableReport, nearest []limiter.ClientReport, totals []tally.Total) scopeStatus {
	s := scopeStatus{
		Scope:     scope.Name,
		Share:     scope.Share,
		Control:   scope.Control,
		Limits:    scope.Limits,
		Clients:   []clientsStatus{},
		Decisions: []decisionStatus{},
		Nearest:   []nearestStatus{},
	}
	if s.Limits == nil {
		s.Limits = []Limit{}
	}
	for _, t := range tables {
		if t.Scope != scope.Name {
			continue
		}
		if t.Gateways > s.Gateways {
			s.Gateways = t.Gateways
		}
		s.Clients = append(s.Clients, clientsStatus{
			Count: t.Count, Window: t.Window, Store: t.Store, Tracked: t.Clients, Max: t.MaxClients,
			OutageAllowed: t.OutageAllowed, OutageSettled: t.OutageSettled,
		})
	}
	for _, t := range totals {
		if t.Scope == scope.Name && t.Count > 0 {
			s.Decisions = append(s.Decisions, decisionStatus{Rule: t.Rule, Outcome: t.Outcome, Way: t.Way, Total: t.Count})
		}
	}
	for _, c := range nearest {
		if c.Scope == scope.Name {
			s.Nearest = append(s.Nearest, nearestStatus{
				Count: c.Count, Client: prefix(c.Hash), Used: c.Used, Limit: c.Limit, Reset: c.Reset,
			})
		}
	}
	return s
}

func prefix(hash string) string {
	if len(hash) > clientDigits {
		return hash[:clientDigits]
	}
	return hash
}

// quantile returns the value that a part of a histogram's values is below, as if those of
// one step lay evenly in it, and false if there are none. What is above the last bound
// counts as that bound.
func quantile(h *limiter.Histogram, part float64) (float64, bool) {
	var all int64
	for _, n := range h.Counts {
		all += n
	}
	if all == 0 || len(h.Bounds) == 0 {
		return 0, false
	}
	wanted := part * float64(all)
	below, lower := 0.0, 0.0
	for i, upper := range h.Bounds {
		n := float64(h.Counts[i])
		if n > 0 && below+n >= wanted {
			return lower + (upper-lower)*(wanted-below)/n, true
		}
		below += n
		lower = upper
	}
	return lower, true
}
