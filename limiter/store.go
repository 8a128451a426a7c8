package limiter

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"math/rand"
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
	// clockAge is how old a connection's reading of the store's clock may be.
	clockAge = time.Minute

	// away is the health from which a store is not asked. A time-out adds two, as
	// it cost a request its whole patience, any other failure one, and an answer
	// sets the health back to zero.
	away = 3

	// The pauses between probes of a store that is away grow from firstPause to
	// longestPause, which also bounds the Retry-After of requests that are held
	// back meanwhile.
	firstPause   = 250 * time.Millisecond
	longestPause = 5 * time.Second
	// probeIdle is the time without any request after which probing ends, so that
	// a store which no configuration names any more is left alone. The next
	// request begins it anew.
	probeIdle = time.Minute
	// stableAfter is how long a store must have answered for the pauses to begin
	// small again, and for the next change of its state to be news for the log.
	stableAfter = 30 * time.Second
	// repeatAfter is the time between two log lines about a trouble that lasts.
	repeatAfter = time.Minute
)

// A store is one Valkey as some middlewares use it: its connections, its clock,
// and whether it answers.
type store struct {
	endpoint    string
	timeout     time.Duration
	dialTimeout time.Duration
	probeIdle   time.Duration
	pool        *resp.Pool

	offset  atomic.Int64 // nanoseconds that the store's clock is ahead of ours
	health  atomic.Int64 // 0: answers; below away: failed lately; else not asked
	passed  atomic.Int64 // requests decided without the store since it went away
	probing atomic.Bool  // a goroutine runs probe
	probeAt atomic.Int64 // time of its next attempt, unix nanoseconds

	mu           sync.Mutex           // guards what follows
	roundTrip    time.Duration        // of the clock reading that offset comes from; 0: none
	clockRefused bool                 // the user may not call TIME, which was logged
	prefix       string               // for the probe: under which the script last worked
	pause        time.Duration        // before the next probe
	wentAway     time.Time            // when health last reached away
	cameBack     time.Time            // when it last fell from there to zero
	unsteady     bool                 // it went away soon after it had come back
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
		s = &store{endpoint: o.Endpoint, timeout: o.Timeout, dialTimeout: o.DialTimeout, probeIdle: probeIdle,
			prefix: o.KeyPrefix, said: map[string]time.Time{}}
		dial := &resp.Options{Network: o.Network, Address: o.Address, Username: o.Username, Password: o.Password,
			DB: o.DB, TLS: o.TLS, DialTimeout: o.DialTimeout}
		s.pool = resp.NewPool(dial, poolSize, idleTime, func(conn *resp.Conn, deadline time.Time) error {
			refusal, err := readClock(s, conn, deadline)
			if err == nil && refusal != "" {
				err = fmt.Errorf("reading the store's clock: %s", resp.Word(refusal))
			}
			return err
		})
		stores[identity] = s
	}
	return s
}

// readClock asks the store for its time over conn and stamps conn with ours. A
// user who may not call TIME costs only this: windows then follow our own clock.
func readClock(s *store, conn *resp.Conn, deadline time.Time) (refusal string, err error) {
	sent := time.Now()
	conn.Stamp = sent.UnixNano()
	reply, err := resp.Do(conn, deadline, "TIME")
	roundTrip := time.Since(sent)
	if err != nil {
		return "", err
	}
	if reply.Kind == '-' {
		word := resp.Word(reply.Text)
		if word != "NOPERM" && word != "ERR" {
			return reply.Text, nil
		}
		s.mu.Lock()
		news := !s.clockRefused
		s.clockRefused = true
		s.mu.Unlock()
		if news {
			log.Printf("gatequota: store %s: refuses TIME (%s); windows follow this gateway's clock", s.endpoint, word)
		}
		return "", nil
	}
	if len(reply.Array) != 2 {
		return "", fmt.Errorf("reading the store's clock: %w", resp.ErrProtocol)
	}
	seconds, err1 := strconv.ParseInt(reply.Array[0].Text, 10, 64)
	micros, err2 := strconv.ParseInt(reply.Array[1].Text, 10, 64)
	if err1 != nil || err2 != nil {
		return "", fmt.Errorf("reading the store's clock: %w", resp.ErrProtocol)
	}
	learnClock(s, time.Unix(seconds, micros*1000).Sub(sent.Add(roundTrip/2)), roundTrip)
	return "", nil
}

// learnClock takes a reading of the store's clock over, unless its round trip was
// so long that the one we have is better: the error of a reading is at most half
// its round trip. Each reading passed over makes the next more welcome, so that a
// network that became slower is believed in the end.
func learnClock(s *store, offset, roundTrip time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.roundTrip > 0 && roundTrip > 2*s.roundTrip+time.Millisecond {
		s.roundTrip *= 2
		return
	}
	s.roundTrip = roundTrip
	if s.roundTrip < 1 {
		s.roundTrip = 1
	}
	s.offset.Store(int64(offset))
}

// failed notes a turn at the store that brought no count, and stops asking the
// store when it was one too many in a row.
func failed(s *store, prefix, refusal string, err error) {
	word := resp.Word(refusal)
	if word == "NOPERM" {
		// One prefix, or one command, that this user may not touch: others may
		// work all the same.
		lasting(s, "NOPERM "+prefix, fmt.Sprintf("refuses keys with the prefix %q (NOPERM); check the rights of valkey.username", prefix))
		return
	}
	weight := int64(1)
	if errors.Is(err, resp.ErrTimeout) || errors.Is(err, resp.ErrPoolTimeout) {
		weight = 2
	}
	health := s.health.Add(weight)
	if health < away || health-weight >= away {
		return
	}
	now := time.Now()
	s.mu.Lock()
	s.unsteady = now.Sub(s.cameBack) < stableAfter
	if !s.unsteady || s.pause == 0 {
		s.pause = firstPause
	}
	s.prefix = prefix
	s.wentAway = now
	unsteady := s.unsteady
	s.mu.Unlock()
	s.passed.Store(0)
	// The probe shall not try, one after the other, connections that hang.
	resp.DropIdle(s.pool)
	if unsteady {
		lasting(s, "unsteady", fmt.Sprintf("away again (%s), and not steady; its changes are not all logged", reason(refusal, err)))
	} else {
		log.Printf("gatequota: store %s: away (%s); requests are decided by onStoreFailure until it answers", s.endpoint, reason(refusal, err))
	}
	startProbe(s)
}

// recovered notes that the store answered with a count.
func recovered(s *store, prefix string) {
	health := s.health.Swap(0)
	if health < away {
		return
	}
	now := time.Now()
	s.mu.Lock()
	s.prefix = prefix
	s.cameBack = now
	lasted := now.Sub(s.wentAway)
	news := !s.unsteady || lasted >= stableAfter
	s.mu.Unlock()
	if news {
		log.Printf("gatequota: store %s: answers again after %s; %d requests were decided without it",
			s.endpoint, lasted.Round(time.Millisecond), s.passed.Load())
	}
}

// passBy notes a request that is decided without asking the store.
func passBy(s *store) {
	s.passed.Add(1)
	if !s.probing.Load() {
		startProbe(s)
	}
}

// untilProbe returns the seconds until the store is tried again, 1 to 5.
func untilProbe(s *store, now time.Time) int64 {
	left := time.Duration(s.probeAt.Load() - now.UnixNano())
	if left > longestPause {
		left = longestPause
	}
	seconds := int64((left + time.Second - 1) / time.Second)
	if seconds < 1 {
		return 1
	}
	return seconds
}

func startProbe(s *store) {
	if s.probing.CompareAndSwap(false, true) {
		go probe(s)
	}
}

// probe tries the store until it answers, or until nobody asks for it any more.
func probe(s *store) {
	defer probeEnded(s)
	seen, since := s.passed.Load(), time.Now()
	for s.health.Load() >= away {
		s.mu.Lock()
		pause := s.pause/2 + time.Duration(rand.Int63n(int64(s.pause/2)+1))
		s.pause *= 2
		if s.pause > longestPause {
			s.pause = longestPause
		}
		s.mu.Unlock()
		s.probeAt.Store(time.Now().Add(pause).UnixNano())
		time.Sleep(pause)
		passed := s.passed.Load()
		if passed != seen {
			seen = passed
			since = time.Now()
		} else if time.Since(since) > s.probeIdle {
			return
		}
		refusal, err := tryStore(s)
		if err == nil && (refusal == "" || resp.Word(refusal) == "NOPERM") {
			s.mu.Lock()
			prefix := s.prefix
			s.mu.Unlock()
			recovered(s, prefix)
			return
		}
		lasting(s, "away", fmt.Sprintf("still away (%s); %d requests were decided without it", reason(refusal, err), passed))
	}
}

func probeEnded(s *store) {
	if r := recover(); r != nil {
		log.Printf("gatequota: store %s: probing failed: %v", s.endpoint, panicked(r))
	}
	s.probing.Store(false)
}

// tryStore runs the real script, under a prefix that has worked or is wanted, on
// a key of its own.
func tryStore(s *store) (refusal string, err error) {
	conn, err := resp.Acquire(s.pool, time.Now().Add(s.dialTimeout))
	if err != nil {
		return "", err
	}
	defer resp.Release(s.pool, conn)
	s.mu.Lock()
	key := s.prefix + ":probe:{gatequota}"
	s.mu.Unlock()
	now := time.Now()
	end := now.Add(time.Duration(s.offset.Load()) + longestPause).Unix()
	_, refusal, err = resp.Eval(conn, now.Add(s.timeout), fixed, key,
		[]string{"1", strconv.Itoa(int(longestPause / time.Second)), strconv.FormatInt(end, 10)})
	return refusal, err
}

// lasting logs a trouble that may last, once and then again each repeatAfter.
func lasting(s *store, kind, line string) {
	now := time.Now()
	s.mu.Lock()
	last, before := s.said[kind]
	if kind == "away" && (!before || last.Before(s.wentAway)) {
		// The change itself was just logged.
		last, before = s.wentAway, true
	}
	due := !before || now.Sub(last) >= repeatAfter
	if due {
		s.said[kind] = now
	}
	s.mu.Unlock()
	if due {
		log.Printf("gatequota: store %s: %s", s.endpoint, line)
	}
}

// reason puts a failure into few words: of what the store said only the first
// word, of ours all. Neither holds a secret.
func reason(refusal string, err error) string {
	if err != nil {
		return err.Error()
	}
	word := resp.Word(refusal)
	advice := advices[word]
	if advice == "" {
		return strconv.Quote(word)
	}
	return strconv.Quote(word) + ": " + advice
}

// advices say what an operator can do about what a store says.
var advices = map[string]string{
	"READONLY":    "it is a replica; name the primary in valkey.endpoints",
	"LOADING":     "it is starting",
	"MASTERDOWN":  "it is a replica without its primary",
	"BUSY":        "a script blocks it",
	"OOM":         "its memory is full; raise maxmemory",
	"NOAUTH":      "it wants a password; set valkey.password",
	"WRONGPASS":   "wrong valkey.username or valkey.password",
	"NOPERM":      "check the rights of valkey.username",
	"MOVED":       "it is a node of a cluster, which is not supported",
	"ASK":         "it is a node of a cluster, which is not supported",
	"CROSSSLOT":   "it is a node of a cluster, which is not supported",
	"CLUSTERDOWN": "it is a node of a cluster, which is not supported",
	"NOREPLICAS":  "it has too few replicas to accept writes",
	"DENIED":      "it is in protected mode; give it a password or set protected-mode no",
	"MISCONF":     "it cannot write to its disk and refuses writes",
	"ERR":         "it cannot run the script",
}

func panicked(r interface{}) error {
	return fmt.Errorf("panic: %v", r)
}
