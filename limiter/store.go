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
	// restless is the idle time after which a connection is looked at before it is
	// used.
	restless = time.Second
	// unused is when a connection that is new was last used: long before this process
	// began.
	unused = -1 << 62
)

// A store is one Valkey as some middlewares use it: its one connection and the queue
// in front of it (batch.go), its clock (clock.go), whether it answers (breaker.go),
// and what is to be done beside the requests (keeper.go).
type store struct {
	endpoint    string
	timeout     time.Duration
	dialTimeout time.Duration
	link        *resp.Link
	ledger      *ledger

	turn sync.Mutex // held by the one who uses the link
	next *batch     // that requests may join; guarded by the ledger's mutex
	// batches were made so far; guarded by the ledger's mutex.
	batches int64

	// These are constants but for tests.
	idleTime    time.Duration
	keeperIdle  time.Duration
	repeatAfter time.Duration

	origin  atomic.Int64 // the store's time at began, unix nanoseconds
	health  atomic.Int64 // 0: answers; below away: failed lately; else not asked; written under mu
	passed  atomic.Int64 // requests decided without the store since it went away
	kept    atomic.Bool  // a goroutine runs keep
	probeAt atomic.Int64 // time of its next attempt while the store is away, unix nanoseconds

	mu           sync.Mutex           // guards what follows
	users        []user               // the middlewares that use it
	roundTrip    time.Duration        // of the clock reading that origin comes from; 0: none
	clockRead    time.Time            // when the clock was last asked for; zero: it is due
	clockRefused bool                 // the user may not call TIME, which was logged
	announced    time.Time            // when this gateway last announced itself
	pushDue      bool                 // the store may have lost counts that this gateway knows
	prefix       string               // for the probe: under which the script last worked
	pause        time.Duration        // before the next probe
	wentAway     time.Time            // when health last reached away
	cameBack     time.Time            // when it last fell from there
	unsteady     bool                 // it went away soon after it had come back
	told         bool                 // its going away was logged
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
		stores[identity] = s
	}
	return s
}

func newStore(o *StoreSettings, l *ledger) *store {
	s := &store{
		endpoint:    o.Endpoint,
		timeout:     o.Timeout,
		dialTimeout: o.DialTimeout,
		ledger:      l,
		idleTime:    idleTime,
		keeperIdle:  keeperIdle,
		repeatAfter: repeatAfter,
		prefix:      o.KeyPrefix,
		said:        map[string]time.Time{},
	}
	s.origin.Store(began.UnixNano())
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
		conn.Used = unused
		refusal, err := readClock(s, conn, deadline)
		if err == nil && refusal != "" {
			err = fmt.Errorf("reading the store's clock: %s", reason(refusal, nil))
		}
		return err
	})
	return s
}

// serve notes that a middleware with this context and table uses the store.
func serve(s *store, ctx context.Context, t *table) {
	s.mu.Lock()
	s.users = append(present(s.users), user{ctx: ctx, table: t})
	s.mu.Unlock()
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
