package limiter

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log"
	mathrand "math/rand"
	"strconv"
	"time"

	"github.com/gatequota/gatequota/resp"
	"github.com/gatequota/gatequota/window"
)

const (
	// rounds is the time between two rounds of a keeper whose store answers.
	rounds = 250 * time.Millisecond
	// keeperIdle is the time without any request after which the keeper of a store that
	// no configuration names any more leaves it alone. The next request brings it back.
	keeperIdle = time.Minute
	// announceEvery is the time between two announcements of this gateway, and
	// announcedFor how long each is good for. Three may be lost.
	announceEvery = 5 * time.Second
	announcedFor  = 15 * time.Second
	// pushPause is the time between two batches that tell the store what it may have
	// lost.
	pushPause = 5 * time.Millisecond
)

// gateway is the name of this process among those that use a store.
var gateway = newName()

func newName() string {
	name := make([]byte, 8)
	_, err := rand.Read(name)
	if err != nil {
		return strconv.FormatInt(time.Now().UnixNano(), 16)
	}
	return hex.EncodeToString(name)
}

// AnnounceScript adds a gateway to those that serve a scope, and answers how many they
// are.
//
//	KEYS[1]  the gateways of a scope, a sorted set by the time of their last announcement
//	ARGV[1]  the gateway
//	ARGV[2]  the seconds for which an announcement is good
//	ARGV[3]  the time in unix seconds, for want of the store's own
const AnnounceScript = `local now = tonumber(ARGV[3])
local time = redis.pcall('TIME')
if not time.err then
  now = tonumber(time[1])
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]))
redis.call('EXPIRE', KEYS[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])
`

var announcing = resp.NewScript(AnnounceScript)

func startKeeper(s *store) {
	if s.kept.CompareAndSwap(false, true) {
		go keep(s)
	}
}

// keep does what is to be done for a store beside the requests: it tries the store
// while it is away, tells it what it may have lost, announces this gateway, reads the
// clock, and closes a connection that nobody needs any more.
func keep(s *store) {
	defer keeperEnded(s)
	seen := int64(0)
	since := time.Now()
	for {
		if s.health.Load() >= away {
			probe(s)
		} else {
			time.Sleep(rounds)
			look(s)
		}
		s.ledger.mu.Lock()
		active := s.batches + s.passed.Load()
		s.ledger.mu.Unlock()
		if active != seen {
			seen = active
			since = time.Now()
		}
		if inForce(s) {
			continue
		}
		if time.Since(since) > s.idleTime {
			resp.Drop(s.link)
		}
		if time.Since(since) > s.keeperIdle {
			return
		}
	}
}

// inForce reports whether a configuration in force uses the store.
func inForce(s *store) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = present(s.users)
	return len(s.users) > 0
}

func keeperEnded(s *store) {
	if r := recover(); r != nil {
		log.Printf("gatequota: store %s: keeping it failed: %v", s.endpoint, panicked(r))
	}
	s.kept.Store(false)
}

// probe waits, and then makes one attempt at a store that is away.
func probe(s *store) {
	s.mu.Lock()
	pause := jittered(s.pause, mathrand.Float64())
	s.pause = longer(s.pause)
	s.mu.Unlock()
	s.probeAt.Store(time.Now().Add(pause).UnixNano())
	time.Sleep(pause)
	refusal, err := tryScript(s)
	if err == nil && (refusal == "" || resp.Word(refusal) == "NOPERM") {
		recovered(s)
		return
	}
	lasting(s, "away", fmt.Sprintf("still away (%s); %d further requests were decided without it", reason(refusal, err), s.passed.Load()))
}

// tryScript runs the real script, under a prefix that has worked or is wanted, on
// a key of its own.
func tryScript(s *store) (refusal string, err error) {
	s.mu.Lock()
	key := s.prefix + ":probe:{gatequota}"
	s.mu.Unlock()
	end := (storeTime(s, time.Now()) + int64(longestPause)) / int64(time.Second)
	_, refusal, err = callAside(s, fixed, 4, resp.Bulk(key)+number(1)+number(0)+number(int64(longestPause/time.Second))+number(end))
	return refusal, err
}

// callAside makes one call of a script beside the requests, when it is its turn.
func callAside(s *store, script *resp.Script, args int, call string) (count int64, refusal string, err error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	deadline := time.Now().Add(s.timeout)
	conn, err := connectAlive(s, deadline)
	if err != nil {
		return 0, "", err
	}
	counts := make([]int64, 1)
	_, refusals, err := resp.EvalAll(conn, deadline, script, args, []string{call}, counts)
	if err == nil && refusals != nil {
		refusal = refusals[0]
	}
	return counts[0], refusal, err
}

// look makes one round for a store that is not away. It opens no connection.
func look(s *store) {
	if !resp.Connected(s.link) {
		return
	}
	now := time.Now()
	s.mu.Lock()
	pushes := s.pushDue
	reads := now.Sub(s.clockRead) >= clockAge
	announces := len(s.users) > 0 && now.Sub(s.announced) >= announceEvery
	if announces {
		s.announced = now
	}
	s.mu.Unlock()
	if pushes {
		push(s)
	}
	if reads {
		readClockAside(s)
	}
	if announces {
		announce(s)
	}
}

// readClockAside reads the store's clock anew. Where that fails a request will find
// out why.
func readClockAside(s *store) {
	s.turn.Lock()
	defer s.turn.Unlock()
	deadline := time.Now().Add(s.timeout)
	conn, err := connectAlive(s, deadline)
	if err == nil {
		_, _ = readClock(s, conn, deadline)
	}
}

// tablesOf returns the tables that are counted in this store.
func tablesOf(s *store) []*table {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*table
	for _, u := range s.users {
		known := false
		for _, t := range found {
			known = known || t == u.table
		}
		if !known {
			found = append(found, u.table)
		}
	}
	return found
}

// announce makes this gateway known to the others, for each scope that it serves, and
// learns how many they are.
func announce(s *store) {
	for _, t := range tablesOf(s) {
		now := storeTime(s, time.Now()) / int64(time.Second)
		count, refusal, err := callAside(s, announcing, 3,
			resp.Bulk(t.head+":gateways")+resp.Bulk(gateway)+number(int64(announcedFor/time.Second))+number(now))
		if err != nil {
			return
		}
		if refusal != "" {
			once(s, "announce", fmt.Sprintf("refuses to be told of this gateway (%s): how many share a limit while it is away is not learnt; fallback.gateways can say it", reason(refusal, nil)))
			return
		}
		s.ledger.mu.Lock()
		t.gateways = count
		s.ledger.mu.Unlock()
	}
}

// push tells the store what this gateway knows of all its clients, and settles what
// passed without it: after a failure the store may have lost counts, and who would
// bring them back may never return here.
func push(s *store) {
	s.mu.Lock()
	s.pushDue = false
	s.mu.Unlock()
	for _, t := range tablesOf(s) {
		next := 0
		for next >= 0 {
			b := &batch{store: s, start: time.Now(), origin: s.origin.Load(), done: make(chan struct{})}
			next = fillPart(b, t, next)
			if len(b.slots) == 0 {
				continue
			}
			lead(b)
			if b.err != nil || b.moved {
				s.mu.Lock()
				s.pushDue = true
				s.mu.Unlock()
				return
			}
			// Meanwhile the requests have the connection.
			time.Sleep(pushPause)
		}
	}
}

// fillPart puts a part of a table's counts into a batch, for the store to be told,
// and returns where the next part begins, less than zero if there is none.
func fillPart(b *batch, t *table, next int) int {
	b.store.ledger.mu.Lock()
	defer b.store.ledger.mu.Unlock()
	unix := storeTime(b.store, b.start) / int64(time.Second)
	part, after := window.FixedPart(t.counts, unix, maxBatch, next)
	for _, f := range part {
		if f.Known > 0 {
			setKey(t, f)
			b.slots = append(b.slots, &slot{table: t, count: f})
		}
	}
	return after
}
