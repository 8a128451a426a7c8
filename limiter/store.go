package limiter

import (
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
	// poolSize bounds the connections to one store: as many requests are on
	// their way to it at once, others wait.
	poolSize = 32
	// idleTime is how long a connection is kept without use.
	idleTime = 30 * time.Second
	// restless is the idle time after which a connection is looked at before it is
	// used.
	restless = time.Second
)

// A store is one Valkey as some middlewares use it: its connections, its clock
// (clock.go), and whether it answers (breaker.go).
type store struct {
	endpoint    string
	timeout     time.Duration
	dialTimeout time.Duration
	pool        *resp.Pool

	// These are constants but for tests.
	clockAge    time.Duration
	probeIdle   time.Duration
	repeatAfter time.Duration

	origin  atomic.Int64 // the store's time at began, unix nanoseconds
	health  atomic.Int64 // 0: answers; below away: failed lately; else not asked; written under mu
	passed  atomic.Int64 // requests decided without the store since it went away
	probing atomic.Bool  // a goroutine runs probe
	probeAt atomic.Int64 // time of its next attempt, unix nanoseconds

	mu           sync.Mutex           // guards what follows
	roundTrip    time.Duration        // of the clock reading that origin comes from; 0: none
	clockRefused bool                 // the user may not call TIME, which was logged
	prefix       string               // for the probe: under which the script last worked
	pause        time.Duration        // before the next probe
	wentAway     time.Time            // when health last reached away
	cameBack     time.Time            // when it last fell from there to zero
	unsteady     bool                 // it went away soon after it had come back
	told         bool                 // its going away was logged
	said         map[string]time.Time // when a lasting trouble was last logged
}

var (
	storesMu sync.Mutex
	stores   = map[string]*store{} // by identity, guarded by storesMu
)

// openStore returns the store of these settings, the same one for equal settings.
// It opens no connection.
func openStore(o *StoreSettings) *store {
	digest := sha256.Sum256([]byte(o.Password))
	identity := fmt.Sprintf("%q", []string{o.Network, o.Address, o.Username, hex.EncodeToString(digest[:]),
		strconv.Itoa(o.DB), o.TLSIdentity, o.Timeout.String(), o.DialTimeout.String()})
	storesMu.Lock()
	defer storesMu.Unlock()
	s := stores[identity]
	if s == nil {
		s = newStore(o)
		stores[identity] = s
	}
	return s
}

func newStore(o *StoreSettings) *store {
	s := &store{
		endpoint:    o.Endpoint,
		timeout:     o.Timeout,
		dialTimeout: o.DialTimeout,
		clockAge:    clockAge,
		probeIdle:   probeIdle,
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
	s.pool = resp.NewPool(dial, poolSize, idleTime, func(conn *resp.Conn, deadline time.Time) error {
		refusal, err := readClock(s, conn, deadline)
		if err == nil && refusal != "" {
			err = fmt.Errorf("reading the store's clock: %s", reason(refusal, nil))
		}
		return err
	})
	return s
}
