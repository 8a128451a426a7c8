package limiter

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatequota/gatequota/resp"
)

const (
	// idleTime is how long a connection is kept without use.
	idleTime = 30 * time.Second
	// restTime is the idle time after which a connection is looked at before it is
	// used.
	restTime = time.Second
)

// Mutexes are taken in this order: the turn of a store, its mu, the mutex of a ledger;
// controlsMu, the mutex of a control, that of a ledger; storesMu and tablesMu before that
// of a ledger, and neither with another of these. Who holds the ledger's may only try for
// the turn.

// A store is one Valkey as some middlewares use it: its one connection and the queue
// in front of it (batch.go), its clock (clock.go), whether it answers (breaker.go),
// and what is to be done beside the requests (keeper.go).
type store struct {
	endpoint string
	timeout  time.Duration
	link     *resp.Link
	ledger   *ledger

	// These are constants but for tests.
	idleTime    time.Duration
	keeperIdle  time.Duration
	repeatAfter time.Duration

	turn   sync.Mutex // held by the one who uses the link; it guards these two
	conn   *resp.Conn // of the link, if it is known to be open
	rested bool       // conn was idle for long

	keeperFailed atomic.Int64 // when it was last logged, in unix nanoseconds; 0: never
	probeAt      atomic.Int64 // time of the next attempt while the store is away, unix nanoseconds

	// These are guarded by the ledger's mutex.
	next    *batch // that requests may join
	origin  int64  // the store's time at Began, unix nanoseconds
	health  int64  // 0: answers; below away: failed lately; else not asked
	batches int64  // made so far
	passed  int64  // requests decided without the store since it went away
	kept    bool   // a goroutine runs keep
	timed   bool   // round trips are timed

	// These too: what is told to those who watch.
	latency    []int64 // round trips, by powers of two of their time: see timeRoundTrip
	latencySum time.Duration
	merged     []int64 // round trips, by powers of two of their requests
	mergedSum  int64

	mu           sync.Mutex           // guards what follows
	users        []user               // the middlewares that use it
	roundTrip    time.Duration        // of the clock reading that origin comes from; 0: none
	clockRead    time.Time            // when the clock was last asked for; zero: it is due
	clockRefused bool                 // the user may not call TIME, which was logged
	announced    time.Time            // when this gateway last announced itself
	pushDue      bool                 // the store may have lost counts that this gateway knows
	settleDue    bool                 // requests passed alone, though the store lost nothing
	pushed       time.Time            // when it was last told of either
	prefix       string               // for the probe: under which the script last worked
	pause        time.Duration        // before the next probe
	wentAway     time.Time            // when health last reached away
	cameBack     time.Time            // when it last fell from there
	unsteady     bool                 // it went away soon after it had come back
	told         bool                 // its going away was logged
	errors       map[string]int64     // failures by class
	changes      []Change             // of its state, the last of them
	wentCount    int64                // how often it went away
	cameCount    int64                // and came back
	said         map[string]time.Time // when a lasting trouble was last logged
}

// A user is a middleware of a configuration, for as long as its context is not done.
type user struct {
	ctx   context.Context
	table *table
}

var (
	storesMu sync.Mutex
	stores   = map[string]*store{} // by identity, guarded by storesMu
	// timesStores says that the round trips of a new one are timed; guarded likewise.
	timesStores bool
)

// openStore returns the store of these settings, the same one for equal settings.
// It opens no connection.
func openStore(o *StoreSettings, l *ledger) *store {
	digest := sha256.Sum256([]byte(o.Password))
	identity := fmt.Sprintf("%q", []string{o.Network, o.Address, o.Username, hex.EncodeToString(digest[:]),
		strconv.Itoa(o.DB), o.TLSIdentity, o.Timeout.String(), o.DialTimeout.String()})
	storesMu.Lock()
	defer storesMu.Unlock()
	s := stores[identity]
	if s == nil {
		s = newStore(o, l)
		s.timed = timesStores
		stores[identity] = s
	}
	return s
}

func newStore(o *StoreSettings, l *ledger) *store {
	s := &store{
		endpoint:    o.Endpoint,
		timeout:     o.Timeout,
		ledger:      l,
		idleTime:    idleTime,
		keeperIdle:  keeperIdle,
		repeatAfter: repeatAfter,
		prefix:      o.KeyPrefix,
		said:        map[string]time.Time{},
		errors:      map[string]int64{},
		latency:     make([]int64, latencyPlaces),
		merged:      make([]int64, mergedPlaces),
	}
	s.origin = Began.UnixNano()
	dial := &resp.Options{
		Network:     o.Network,
		Address:     o.Address,
		Username:    o.Username,
		Password:    o.Password,
		DB:          o.DB,
		TLS:         o.TLS,
		DialTimeout: o.DialTimeout,
	}
	s.link = resp.NewLink(dial, func(conn *resp.Conn, deadline time.Time) error {
		refusal, err := readClock(s, conn, deadline)
		if err == nil && refusal != "" {
			err = fmt.Errorf("reading the store's clock: %s", reason(refusal, nil))
		}
		// It may be another store than before, or one that lost what it knew.
		s.mu.Lock()
		s.pushDue = true
		s.mu.Unlock()
		return err
	})
	return s
}

// storesOf returns all stores that have this ledger.
func storesOf(l *ledger) []*store {
	storesMu.Lock()
	defer storesMu.Unlock()
	var found []*store
	for _, s := range stores {
		if s.ledger == l {
			found = append(found, s)
		}
	}
	return found
}

// serve notes that a middleware with this context and table uses the store.
func serve(ctx context.Context, s *store, t *table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = present(s.users)
	for _, u := range s.users {
		if u.ctx == ctx && u.table == t {
			return
		}
	}
	s.users = append(s.users, user{ctx: ctx, table: t})
}

// present returns those of the users whose configuration is in force.
func present(users []user) []user {
	var left []user
	for _, u := range users {
		if u.ctx.Err() == nil {
			left = append(left, u)
		}
	}
	return left
}
