package limiter

import "time"

// A Report says how this gateway fares, for those who watch over it.
type Report struct {
	Stores []StoreReport // in use or used before, by endpoint
	Tables []TableReport // by scope and count
}

// A StoreReport is about one store as some middlewares use it.
type StoreReport struct {
	Endpoint   string           // as the operator wrote it
	Used       bool             // a request was counted there, or tried to be
	Away       bool             // it is not asked, since it failed
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

// Reports returns how this gateway fares now.
func Reports() *Report {
	return &Report{}
}

// Nearest returns the clients of each count in this gateway's memory that are nearest to
// their limits, at most so many of each, those first that have least left.
func Nearest(most int) []ClientReport {
	return nil
}
