// Package window says how requests are counted. Each algorithm is one file: the
// script that counts in the store and, side by side, its twin that counts in a
// gateway's own memory. Time is a parameter everywhere; nothing here reads a
// clock, opens a socket or takes a lock.
package window

// MaxExact is 2^53, up to which the store's Lua counts exactly.
const MaxExact = 1 << 53

// Decision is what one request is told. It is filled in by a function that is given
// a zero one, since an interpreter pays more for a result than for a pointer.
type Decision struct {
	// Allowed says that the request is within its limit.
	Allowed bool

	// Remaining is how many requests are left to the client in this window
	// after this one, never negative: 99 after the first of 100.
	Remaining int64

	// Reset is the time in whole seconds, rounded up, until the client has its
	// whole limit again: at least 1, at most the window's length; 0 when the request
	// was not counted.
	Reset int64

	// RetryAfter is the time in whole seconds, rounded up, after which a refused
	// client that stays silent is allowed again: at least 1, at most the window's
	// length; 0 when the request is allowed.
	RetryAfter int64

	// Several says the same of each of several limits on one request. What is said above
	// is then that of the limit that binds. It is nil where there is one limit alone.
	Several *Standings

	// Way says how it came about, and Known that what was known of the store's count
	// sufficed to refuse. They are for whoever asks; nothing here sets them.
	Way   string
	Known bool
}

// Standings say where a client stands with each of several limits: what the fields of a
// Decision say of one.
type Standings struct {
	Remaining, Reset []int64
	Refused          []bool // the request did not fit into this one
	Binding          int    // which of them binds
}
