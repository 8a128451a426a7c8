package limiter

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/gatequota/gatequota/resp"
	"github.com/gatequota/gatequota/source"
	"github.com/gatequota/gatequota/window"
)

const (
	// maxBatch is how many counts of clients one batch asks for at most. Requests of
	// one client in one window are one count, however many they are.
	maxBatch = 256
	// maxAnswer is the largest count that the store's Lua has exactly. What is above is
	// no count of requests.
	maxAnswer = 1 << 53
)

// A batch is a number of requests that travel to the store together: those that came
// while the batch before was on its way. The first of them leads it, and no goroutine
// is needed.
type batch struct {
	store  *store
	turn   int64     // a number that no other batch of the ledger has; 0: the keeper's own
	start  time.Time // when its time began to run, by the clock of this machine
	origin int64     // the store's origin by which the requests found their windows
	slots  []*slot   // guarded by the ledger's mutex until the batch is taken from the queue
	groups []*group  // likewise
	done   chan struct{}
	owes   bool // the keeper's own: there may be more to tell
	// groupOf finds a group by its limits and client.
	groupOf map[string]*group

	// What came of it, set before done is closed.
	asked   bool    // it was written: the store may have counted its requests
	moves   []*slot // into which requests were moved that belong to another window
	broken  bool    // some slots have no answer
	refusal string  // the first answer that is no count
	prefix  string  // of the key that it was the answer to
	err     error   // why slots have no answer

	hasTurn bool
	timed   bool    // somebody wants to know how long it takes
	locks   bool    // the leader holds the ledger's mutex
	drifted bool    // the store's clock is not where it was believed to be
	asking  []*slot // for which the calls are that are made last
	noted   bool    // what was answered to them and what was lost is in the counts
	over    int     // of them, those whose window is over
}

// A slot is one client's part of a batch.
type slot struct {
	table    *table
	count    *window.FixedCount
	at       int64 // when the first request came, since Began
	unix     int64 // the same by the store's clock, in unix seconds
	requests int64 // merged into one; guarded like batch.slots
	settled  int64 // unsettled passes that are settled with them
	answer   int64 // the count with all of them, or window.FixedOver; 0: none
	move     int   // where its requests were moved to, in batch.moves, from 1; 0: nowhere
}

var (
	fixedScript = resp.NewScript(window.FixedScript)
	// errCrowded is why a batch was not asked for: its turn came when the rest of its
	// time would have been no fair chance for the store.
	errCrowded = errors.New("the turn came too late")
	// errAway is why a batch was not asked for: the batch before it was one failure
	// too many.
	errAway = errors.New("the store is away")
	// errNoCount is why a slot has no answer: it was an integer that counts nothing.
	errNoCount = fmt.Errorf("%w: a count out of bounds", resp.ErrProtocol)
)

// newBatch begins the next batch of a store. Who calls it holds the ledger's mutex.
func newBatch(s *store) *batch {
	s.ledger.turns++
	s.batches++
	b := &batch{store: s, turn: s.ledger.turns, start: time.Now(), origin: s.origin, done: make(chan struct{})}
	if !s.kept {
		startKeeper(s)
	}
	s.next = b
	return b
}

// slotIn returns the place of a client in a batch. Who calls it holds the ledger's
// mutex.
func slotIn(b *batch, t *table, f *window.FixedCount, at, unix int64) *slot {
	if f.Turn == b.turn {
		return b.slots[f.Slot]
	}
	t.used = true
	if f.Key == "" {
		setKey(t, f)
	}
	f.Turn = b.turn
	f.Slot = len(b.slots)
	sl := &slot{table: t, count: f, at: at, unix: unix}
	b.slots = append(b.slots, sl)
	return sl
}

// setKey encodes the key of a count. Who calls it holds the ledger's mutex.
func setKey(t *table, f *window.FixedCount) {
	f.Key = resp.Bulk(t.head + ":{" + hexDigest(t, window.FixedClient(f)) + "}:" + strconv.FormatInt(f.End/t.length-1, 10))
}

// hexDigest returns the digest of a client as keys have it.
func hexDigest(t *table, client string) string {
	if t.secret != "" {
		return hex.EncodeToString([]byte(source.KeyedDigest(t.secret, client)))
	}
	return hex.EncodeToString([]byte(source.Digest(client)))
}

// lead brings a batch to its end.
func lead(b *batch) {
	defer finish(b)
	s := b.store
	if !s.turn.TryLock() {
		s.turn.Lock()
		if healthOf(s) >= away {
			b.err = errAway
		} else if time.Since(b.start) > s.timeout/4*3 {
			b.err = errCrowded
		}
	}
	b.hasTurn = true
	if b.err == nil {
		ask(b)
	}
}

// ask makes one attempt at the counts of a batch, when it is its turn.
func ask(b *batch) {
	s := b.store
	deadline := b.start.Add(s.timeout)
	if s.conn == nil || s.rested {
		prepare(b, deadline)
	}
	calls := detach(b)
	if b.err != nil {
		return
	}
	if b.timed {
		sent := time.Now()
		askAll(b, calls, deadline)
		timeBatch(b, time.Since(sent))
		return
	}
	askAll(b, calls, deadline)
}

// askAll makes the calls of a batch, and those that have to be made again.
func askAll(b *batch, calls []string, deadline time.Time) {
	if len(b.groups) > 0 {
		askMixed(b, calls, deadline)
		return
	}
	askFor(b, calls, deadline)
	if b.over > 0 && !b.broken {
		askOver(b, deadline)
	}
}

// askFor makes the calls for b.asking.
func askFor(b *batch, calls []string, deadline time.Time) {
	s := b.store
	counts := make([]int64, len(calls))
	answered, refusals, err := resp.EvalAll(s.conn, deadline, fixedScript, 4, calls, counts)
	if !s.conn.Usable {
		s.conn = nil
	}
	if err != nil || refusals != nil {
		b.broken = true
		b.err = err
	}
	note(b, counts, answered, refusals)
	if b.broken {
		noteRefusal(b, refusals)
	}
}

// askOver asks, in the same turn, for the next window where the store said that one is
// over. That is not done twice: a clock that is ahead by more than a window is none that
// can be trusted.
func askOver(b *batch, deadline time.Time) {
	s := b.store
	if s.conn == nil {
		b.broken = true
		b.err = lostAfter()
		return
	}
	askFor(b, moveOver(b), deadline)
	if b.over > 0 {
		clockIsWrong(s)
	}
}

// moveOver moves the requests whose window is over to the next one, and returns the calls
// for them.
func moveOver(b *batch) []string {
	b.store.ledger.mu.Lock()
	b.locks = true
	var over []*slot
	for _, sl := range b.asking {
		if sl.answer == window.FixedOver && sl.requests > 0 {
			over = append(over, moveSlot(b, sl, sl.count.End))
		}
	}
	b.asking = over
	b.over = 0
	calls := encode(b)
	b.locks = false
	b.store.ledger.mu.Unlock()
	return calls
}

// lostAfter says that the server closed the connection behind an answer.
func lostAfter() error {
	return fmt.Errorf("%w: after an answer", resp.ErrLost)
}

// moveSlot moves the requests of a slot to the window of a time in unix seconds. Who
// calls it holds the ledger's mutex.
func moveSlot(b *batch, sl *slot, unix int64) *slot {
	t := sl.table
	f := window.FixedFind(t.counts, window.FixedClient(sl.count), unix)
	if f.Key == "" {
		setKey(t, f)
	}
	moved := &slot{table: t, count: f, unix: unix, requests: sl.requests}
	b.moves = append(b.moves, moved)
	sl.move = len(b.moves)
	return moved
}

// prepare sees to it that there is a connection and that it can be used. One that was
// idle may have been closed by the server or by what stands in between, and whoever
// sends on it learns of that too late.
func prepare(b *batch, deadline time.Time) {
	s := b.store
	b.err = connectAlive(s, deadline)
	if b.err == nil && time.Since(b.start) > s.timeout/4*3 {
		b.err = errCrowded
	}
	// Only now is the store's clock known for certain, on a first connection.
	s.ledger.mu.Lock()
	drift := s.origin - b.origin
	s.ledger.mu.Unlock()
	b.drifted = drift > second || drift < -second
}

// connectAlive opens a connection if there is none that is alive. Who calls it has the
// turn.
func connectAlive(s *store, deadline time.Time) error {
	if s.conn != nil && s.rested && !resp.Alive(s.conn) {
		resp.Drop(s.link)
	}
	s.rested = false
	var err error
	s.conn, err = resp.Connect(s.link, deadline)
	return err
}

// detach takes a batch from the queue, so that nobody joins it any more, and returns
// its calls of the script, unless it is not to be asked for.
func detach(b *batch) []string {
	s := b.store
	s.ledger.mu.Lock()
	b.locks = true
	if s.next == b {
		s.next = nil
	}
	b.timed = s.timed
	var calls []string
	if s.health >= away || b.drifted && b.turn == 0 {
		// What the keeper tells the store is not moved: it waits for the next time.
		b.err = errAway
	} else if b.err == nil {
		b.asking = b.slots
		if b.drifted {
			correct(b)
		}
		b.asked = true
		calls = encode(b)
	}
	b.locks = false
	s.ledger.mu.Unlock()
	return calls
}

// correct moves all slots to where the store's clock, as it is known now, puts them. Who
// calls it holds the ledger's mutex.
func correct(b *batch) {
	b.asking = nil
	for _, sl := range b.slots {
		b.asking = append(b.asking, moveSlot(b, sl, (sl.at+b.store.origin)/second))
	}
}

// encode returns the calls of the script for b.asking. Who calls it holds the ledger's
// mutex.
func encode(b *batch) []string {
	b.noted = false
	calls := make([]string, len(b.asking))
	for i, sl := range b.asking {
		t := sl.table
		if t.hold != nil && held(t, window.FixedClient(sl.count), sl.unix) {
			sl.count = window.FixedApart(sl.count)
		}
		f := sl.count
		if f.Unsettled > 0 {
			sl.settled = window.FixedSettle(f)
		}
		n, known := sl.requests+sl.settled, f.Known-f.Unsettled
		if n < ready && known < ready && t.tailAt == sl.unix && t.tailEnd == f.End {
			calls[i] = f.Key + numbers[n] + numbers[known] + t.tail // encodeOne, without the call
		} else {
			calls[i] = encodeOne(t, f, n, sl.unix)
		}
	}
	return calls
}

// encodeOne returns the call of the script that adds n to a count. Who calls it holds
// the ledger's mutex.
func encodeOne(t *table, f *window.FixedCount, n, unix int64) string {
	if t.tailAt != unix || t.tailEnd != f.End {
		newTail(t, f.End, unix)
	}
	return f.Key + encodeInt(n) + encodeInt(f.Known-f.Unsettled) + t.tail
}

// newTail encodes the seconds left in the window that ends at end, and its end.
func newTail(t *table, end, unix int64) {
	left := end - unix
	if left < 1 {
		left = 1
	}
	if left > t.length {
		left = t.length
	}
	t.tail = resp.Bulk(strconv.FormatInt(left, 10)) + resp.Bulk(strconv.FormatInt(end, 10))
	t.tailEnd = end
	t.tailAt = unix
}

// ready is how many small arguments of the script are encoded in advance, in numbers:
// most counts are small, and a look is cheaper here than a call.
const ready = 1024

var numbers []string

func init() {
	for n := int64(0); n < ready; n++ {
		numbers = append(numbers, encodeInt(n))
	}
}

// encodeInt encodes an argument of the script.
func encodeInt(n int64) string {
	if n < int64(len(numbers)) && n >= 0 {
		return numbers[n]
	}
	return resp.Bulk(strconv.FormatInt(n, 10))
}

// note deals out what the store answered to b.asking, of which the first so many were
// answered.
func note(b *batch, counts []int64, answered int, refusals []string) {
	s := b.store
	s.ledger.mu.Lock()
	b.locks = true
	for i, sl := range b.asking {
		if i < answered && (refusals == nil || refusals[i] == "") {
			sl.answer = counts[i]
		}
		if sl.answer > 0 && sl.answer <= maxAnswer {
			noteAnswer(sl.count, sl.answer, sl.settled)
			if sl.settled > 0 {
				sl.table.outageSettled += sl.settled
			}
		} else {
			noteNone(b, sl)
		}
	}
	b.noted = true
	if !b.broken && s.health < away {
		s.health = 0
	}
	b.locks = false
	s.ledger.mu.Unlock()
}

// noteNone notes that a slot got no count.
func noteNone(b *batch, sl *slot) {
	window.FixedLost(sl.count, sl.settled)
	if sl.answer == window.FixedOver {
		if sl.requests > 0 {
			b.over++
		}
		return
	}
	if sl.answer != 0 || !b.broken {
		// It is no count. Whoever sends such things is not believed in anything.
		sl.answer = 0
		b.broken = true
		b.err = errNoCount
		b.store.conn = nil
		resp.Drop(b.store.link)
	}
}

// noteAnswer is window.FixedAnswered, which most counts do not need.
func noteAnswer(f *window.FixedCount, answer, settled int64) {
	if f.Lost > 0 || f.Unsettled > 0 {
		window.FixedAnswered(f, answer, settled)
	} else if f.Known < answer {
		f.Known = answer
	}
}

// noteRefusal finds the first refusal.
func noteRefusal(b *batch, refusals []string) {
	b.prefix = b.asking[0].table.head
	for i, refusal := range refusals {
		if refusal != "" {
			b.refusal = refusal
			b.prefix = b.asking[i].table.head
			return
		}
	}
}

// finish ends a batch, also one that a panic broke off: it gives the turn on, tells
// the store's health, and lets the requests go their ways.
func finish(b *batch) {
	r := recover()
	if r != nil || b.broken || !b.asked {
		finishBadly(b, r)
	}
	if b.hasTurn {
		b.store.turn.Unlock()
	}
	close(b.done)
}

// finishBadly puts in order what a failure or a panic left behind.
func finishBadly(b *batch, r interface{}) {
	defer survive(b)
	if r != nil {
		clean(b, r)
	}
	dequeue(b)
	if b.err == errAway {
		return
	}
	if b.err == nil && some(b) {
		// The store is well, and has trouble with some keys.
		countError(b.store, "key")
		lasting(b.store, "key", fmt.Sprintf("refuses to count some keys with the prefix %q (%s)", b.prefix, reason(b.refusal, nil)))
		answered(b.store)
		return
	}
	failed(b.store, b.prefix, b.refusal, b.err)
}

// clean ends what a panic broke off.
func clean(b *batch, r interface{}) {
	unlock(b)
	b.broken = true
	b.err = panicked(r)
	// Whatever is under way on the connection has no reader any more.
	b.store.conn = nil
	resp.Drop(b.store.link)
	if b.asked && !b.noted {
		note(b, nil, 0, nil)
	}
	b.store.ledger.mu.Lock()
	b.locks = true
	for _, g := range b.groups {
		loseGroup(g)
	}
	unlock(b)
}

// some reports whether a slot has an answer.
func some(b *batch) bool {
	for _, sl := range b.asking {
		if sl.answer > 0 {
			return true
		}
	}
	for _, g := range b.groups {
		if g.answered {
			return true
		}
	}
	return false
}

// unlock gives the ledger's mutex back if the leader holds it.
func unlock(b *batch) {
	if b.locks {
		b.locks = false
		b.store.ledger.mu.Unlock()
	}
}

// survive ends a panic in what was to put in order another: whatever happens, the
// requests must not wait for ever.
func survive(b *batch) {
	if r := recover(); r != nil {
		unlock(b)
		dequeue(b)
	}
}

// dequeue sees to it that nobody joins a batch any more.
func dequeue(b *batch) {
	s := b.store
	s.ledger.mu.Lock()
	if s.next == b {
		s.next = nil
	}
	s.ledger.mu.Unlock()
}
