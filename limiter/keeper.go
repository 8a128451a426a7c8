package limiter

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	mathrand "math/rand"
	"strconv"
	"time"

	"github.com/gatequota/gatequota/resp"
	"github.com/gatequota/gatequota/window"
)

const (
	// keeperInterval is the time between two looks of a keeper whose store answers.
	keeperInterval = 250 * time.Millisecond
	// keeperIdle is the time without any request after which the keeper of a store that
	// no configuration names any more leaves it alone. The next request brings it back.
	keeperIdle = time.Minute
	// announceEvery is the time between two announcements of this gateway, and
	// announcedFor how long each is good for. Three may be lost.
	announceEvery = 5 * time.Second
	announcedFor  = 15 * time.Second
	// maxGateways is how many gateways are believed in.
	maxGateways = 10000
	// pushEvery is the least time between two times that a store is told what it may have
	// lost, and pushPause that between two batches of it.
	pushEvery = 5 * time.Second
	pushPause = 5 * time.Millisecond
	// pushUnits is how many members of logs one batch tells at most, but for those of one
	// client: a store that takes in more at once is away for all others meanwhile.
	pushUnits = 4096
)

// gatewayID is the name of this process among those that use a store.
var gatewayID = newName()

// GatewayID returns the name of this process among those that use a store: 16 hexadecimal
// digits.
func GatewayID() string {
	return gatewayID
}

func newName() string {
	name := make([]byte, 8)
	_, err := rand.Read(name)
	if err != nil {
		return strconv.FormatInt(time.Now().UnixNano(), 16)
	}
	return hex.EncodeToString(name)
}

// AnnounceScript adds a gateway to those that serve a scope, and answers how many they
// are. It counts gateways and no requests, so it stands here and not in window; it is
// exported for tests that try it on real servers.
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

var announceScript = resp.NewScript(AnnounceScript)

// startKeeper begins to keep a store. Who calls it holds the ledger's mutex.
func startKeeper(s *store) {
	s.kept = true
	go keep(s)
}

// keep does what is to be done for a store beside the requests: it tries the store
// while it is away, tells it what it may have lost, announces this gateway, reads the
// clock, and closes a connection that nobody needs any more.
func keep(s *store) {
	defer keeperEnded(s)
	seen, batches := int64(0), int64(0)
	since, rest := time.Now(), time.Now()
	for {
		if healthOf(s) >= away {
			probe(s)
		} else {
			time.Sleep(keeperInterval)
			look(s)
			obey(s, false)
		}
		s.ledger.mu.Lock()
		active, asked := s.batches+s.passed, s.batches
		s.ledger.mu.Unlock()
		if asked != batches {
			batches = asked
			rest = time.Now()
		} else if time.Since(rest) > restTime-keeperInterval {
			letRest(s)
		}
		if active != seen {
			seen = active
			since = time.Now()
		}
		if inUse(s) {
			continue
		}
		if time.Since(since) > s.idleTime {
			hangUp(s)
		}
		if time.Since(since) > s.keeperIdle {
			hangUp(s)
			return
		}
	}
}

// letRest notes that the connection was idle for long.
func letRest(s *store) {
	s.turn.Lock()
	s.rested = true
	s.turn.Unlock()
}

// hangUp closes the connection.
func hangUp(s *store) {
	s.turn.Lock()
	s.conn = nil
	resp.Retire(s.link)
	s.turn.Unlock()
}

// inUse reports whether a configuration in force uses the store.
func inUse(s *store) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = present(s.users)
	return len(s.users) > 0
}

func keeperEnded(s *store) {
	if r := recover(); r != nil {
		// Each request makes a new keeper, which may fail like this one. The store's mutex may
		// be held by now.
		now := time.Now().UnixNano()
		last := s.keeperFailed.Load()
		if last == 0 || now-last >= int64(s.repeatAfter) {
			s.keeperFailed.Store(now)
			tell(s, "keeper", fmt.Sprintf("keeping it failed: %v", panicked(r)))
		}
	}
	controlled := len(controlsOf(s)) > 0
	s.ledger.mu.Lock()
	s.kept = false
	if controlled {
		startKeeper(s) // there may be no request that would
	}
	s.ledger.mu.Unlock()
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
		// What is to be forgotten is forgotten before the store is told of it.
		if obey(s, true) {
			recovered(s)
		}
		return
	}
	countError(s, classOf(refusal, err))
	lasting(s, "away", fmt.Sprintf("still away (%s); %d further requests were decided without it", reason(refusal, err), passedBy(s)))
}

// tryScript runs the real script, under a prefix that has worked or is wanted, on
// a key of its own.
func tryScript(s *store) (refusal string, err error) {
	s.mu.Lock()
	key := s.prefix + ":probe:{gatequota}"
	s.mu.Unlock()
	end := (storeTime(s, time.Now()) + int64(longestPause)) / second
	_, refusal, err = callAside(s, fixedScript, 4, resp.Bulk(key)+encodeInt(1)+encodeInt(0)+encodeInt(int64(longestPause)/second)+encodeInt(end))
	return refusal, err
}

// callAside makes one call of a script beside the requests, when it is its turn.
func callAside(s *store, script *resp.Script, args int, call string) (count int64, refusal string, err error) {
	deadline := time.Now().Add(s.timeout)
	s.turn.Lock()
	defer s.turn.Unlock()
	err = connectAside(s, deadline)
	if err != nil {
		return 0, "", err
	}
	count, refusal, err = resp.Eval(s.conn, deadline, script, args, call)
	if !s.conn.Usable {
		s.conn = nil
	}
	return count, refusal, err
}

// look makes one round for a store that is not away. It opens no connection.
func look(s *store) {
	if !resp.Connected(s.link) {
		return
	}
	now := time.Now()
	s.mu.Lock()
	pushes := (s.pushDue || s.settleDue) && now.Sub(s.pushed) >= pushEvery
	reads := now.Sub(s.clockRead) >= clockAge
	announces := len(s.users) > 0 && now.Sub(s.announced) >= announceEvery
	if announces {
		s.announced = now
	}
	s.mu.Unlock()
	// After a step that failed the requests come first.
	if pushes && !push(s) || reads && !readClockAside(s) {
		return
	}
	if announces {
		announce(s)
	}
}

// readClockAside reads the store's clock anew, and reports whether it could.
func readClockAside(s *store) bool {
	deadline := time.Now().Add(s.timeout)
	s.turn.Lock()
	defer s.turn.Unlock()
	if connectAside(s, deadline) != nil {
		return false
	}
	refusal, err := readClock(s, s.conn, deadline)
	if !s.conn.Usable {
		s.conn = nil
	}
	return err == nil && refusal == ""
}

// connectAside has the connection ready for a command beside the requests. The
// deadline was set before the turn came, so that no batch waits for longer than its
// own time. Who calls it has the turn.
func connectAside(s *store, deadline time.Time) error {
	if time.Until(deadline) < s.timeout/4 {
		return errCrowded
	}
	return connectAlive(s, deadline)
}

// tablesOf returns the tables that are counted in this store by the configuration in
// force.
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
	learnt := map[string]int64{}
	for _, t := range tablesOf(s) {
		if learnt[t.scope] > 0 {
			learnGateways(t, learnt[t.scope], time.Now())
			continue
		}
		now := storeTime(s, time.Now()) / second
		count, refusal, err := callAside(s, announceScript, 3,
			resp.Bulk(t.scope+":gateways")+resp.Bulk(gatewayID)+encodeInt(int64(announcedFor)/second)+encodeInt(now))
		if err != nil {
			return
		}
		if refusal != "" {
			once(s, "announce", fmt.Sprintf("refuses to be told of this gateway (%s): how many share a limit while it is away is not learnt; fallback.gateways can say it", reason(refusal, nil)))
			continue
		}
		if count < 1 || count > maxGateways {
			return // whatever that is, it is no number of gateways
		}
		learnt[t.scope] = count
		learnGateways(t, count, time.Now())
	}
}

// learnGateways takes over how many gateways serve a scope. Less than was known is
// believed when nothing else was heard for as long as an announcement is good: a store
// that comes back empty has heard of few as yet.
func learnGateways(t *table, count int64, now time.Time) {
	t.ledger.mu.Lock()
	defer t.ledger.mu.Unlock()
	if count >= t.gateways || now.Sub(t.gatewaysAt) >= announcedFor {
		t.gateways = count
		t.gatewaysAt = now
	}
}

// push settles what passed without the store, and after a failure tells it besides what
// this gateway knows of all its clients: it may have lost counts, and who would bring
// them back may never return here. A store that is merely slow is spared the rest. It
// reports whether all went well.
func push(s *store) bool {
	s.mu.Lock()
	all := s.pushDue
	s.pushDue = false
	s.settleDue = false
	s.pushed = time.Now()
	s.mu.Unlock()
	for _, t := range tablesIn(s.ledger) {
		next := 0
		for next >= 0 {
			b := &batch{store: s, start: time.Now(), done: make(chan struct{})}
			next = fillPart(b, t, next, all)
			if len(b.slots)+len(b.groups) > 0 {
				lead(b)
			}
			if b.err != nil || b.owes {
				s.mu.Lock()
				s.pushDue = s.pushDue || all && b.err != nil
				s.settleDue = true
				s.mu.Unlock()
			}
			if b.err != nil {
				return false
			}
			if len(b.slots)+len(b.groups) > 0 {
				time.Sleep(pushPause) // meanwhile the requests have the connection
			}
		}
	}
	return true
}

// fillPart puts a part of a table's counts into a batch, for the store to be told, all
// of them or those with unsettled passes alone, and returns where the next part begins, less
// than zero if there is none.
func fillPart(b *batch, t *table, next int, all bool) int {
	b.store.ledger.mu.Lock()
	defer b.store.ledger.mu.Unlock()
	b.origin = b.store.origin
	if t.limit.Algorithm != window.Fixed {
		return fillGroups(b, t, next, all)
	}
	unix := (int64(b.start.Sub(Began)) + b.origin) / second
	part, after := window.FixedPart(t.counts, unix, maxBatch, next)
	for _, f := range part {
		if f.Unsettled > 0 || all && f.Known > 0 {
			if t.hold != nil && held(t, window.FixedClient(f), unix) {
				b.owes = b.owes || f.Unsettled > 0 // when it may be told again
				continue
			}
			if f.Key == "" {
				setKey(t, f)
			}
			b.slots = append(b.slots, &slot{table: t, count: f, unix: unix})
		}
	}
	return after
}

// fillGroups is fillPart for what is not counted in fixed windows. Who calls it holds the
// ledger's mutex.
func fillGroups(b *batch, t *table, next int, all bool) int {
	now := (int64(b.start.Sub(Began)) + b.origin) / millisecond
	limit := t.limit
	q := pusher(b.store, t, &limit)
	most := int64(maxBatch)
	if limit.Algorithm == window.Exact && most*limit.Limit > pushUnits {
		most = pushUnits/limit.Limit + 1
	}
	clients, after := window.Clients(t.counts, t.entries, now, int(most), next)
	for _, client := range clients {
		accounts := findSeveral(q, client, now)
		e := accounts[0].Entry
		owed := window.Alone(accounts[0])
		if e != nil && e.Log != nil {
			if all {
				window.LogForgotten(e.Log)
			}
			owed = window.LogOwed(e.Log)
			b.owes = b.owes || owed // more of it than fits into one call, perhaps
		}
		if t.hold != nil && held(t, client, now/1000) {
			b.owes = b.owes || owed
			continue
		}
		if !all && !owed {
			continue
		}
		// A bucket is reckoned by the limit that its client has.
		if limit.Algorithm == window.Bucket {
			l := window.EntryLimit(e, &limit)
			if *l != *q.limits[0] {
				q = pusher(b.store, t, l)
			}
		}
		groupIn(b, q, client, accounts, int64(b.start.Sub(Began)), now)
	}
	return after
}

// pusher returns what tells a store of accounts under a limit.
func pusher(s *store, t *table, l *window.Limit) *Several {
	q := &Several{cost: 1, limits: []*window.Limit{l}, tables: []*table{t}, store: s, ledger: t.ledger}
	prepareCalls(q)
	return q
}
