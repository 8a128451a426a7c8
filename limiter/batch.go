package limiter

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/gatequota/gatequota/resp"
	"github.com/gatequota/gatequota/window"
)

const (
	// maxBatch is how many counts of clients one batch asks for at most. Requests of
	// one client in one window are one count, however many they are.
	maxBatch = 256
	// maxTries is how often a request is taken again, because the store says that its
	// window is over, or its clock became known.
	maxTries = 2
)

// A batch is a number of requests that travel to the store together: those that came
// while the batch before was on its way. The first of them leads it, and no goroutine
// is needed.
type batch struct {
	store  *store
	turn   int64     // a number that no other batch of the ledger has
	start  time.Time // when its time began to run, by the clock of this machine
	tries  int       // how many batches its requests were in before
	origin int64     // the store's origin by which the requests found their windows
	slots  []*slot   // guarded by the ledger's mutex until the batch is taken from the queue
	done   chan struct{}

	// What came of it, set before done is closed.
	asked bool // it was written: the store may have counted its requests
	moved bool // it was not, since the store's clock became known and may put it into other windows

	hasTurn bool
	locks   bool   // the leader holds the ledger's mutex
	noted   bool   // what was answered and what was lost is in the counts
	whole   bool   // each slot has its answer
	refusal string // the first answer that is no count
	prefix  string // of the key that it was the answer to
	err     error  // why slots have no answer
}

// A slot is one client's part of a batch.
type slot struct {
	table    *table
	count    *window.FixedCount
	requests int64 // merged into one; guarded like batch.slots
	settled  int64 // unsettled passes that are settled with them
	answer   int64 // the count with all of them, or window.FixedOver; 0: none
}

var (
	fixed = resp.NewScript(window.FixedScript)
	// errCrowded is why a batch was not asked for: its turn came when the rest of its
	// time would have been no fair chance for the store.
	errCrowded = errors.New("the turn came too late")
	// errAway is why a batch was not asked for: the batch before it was one failure
	// too many.
	errAway = errors.New("the store is away")
)

// newBatch begins the next batch of a store. Who calls it holds the ledger's mutex.
func newBatch(s *store, origin int64, before *batch) *batch {
	s.ledger.turns++
	s.batches++
	b := &batch{store: s, turn: s.ledger.turns, start: time.Now(), origin: origin, done: make(chan struct{})}
	if before != nil {
		b.start = before.start
		b.tries = before.tries + 1
	}
	s.next = b
	return b
}

// addSlot gives a client a place in a batch. Who calls it holds the ledger's mutex.
func addSlot(b *batch, t *table, f *window.FixedCount) {
	t.used = true
	if f.Key == "" {
		setKey(t, f)
	}
	f.Turn = b.turn
	f.Slot = len(b.slots)
	b.slots = append(b.slots, &slot{table: t, count: f})
}

// setKey encodes the key of a count. Who calls it holds the ledger's mutex.
func setKey(t *table, f *window.FixedCount) {
	if f.Key == "" {
		f.Key = resp.Bulk(t.head + ":{" + hex.EncodeToString([]byte(window.FixedClient(f))) + "}:" + strconv.FormatInt(f.End/t.length-1, 10))
	}
}

// lead brings a batch to its end.
func lead(b *batch) {
	defer finish(b)
	b.store.turn.Lock()
	b.hasTurn = true
	ask(b)
}

// ask makes one attempt at the counts of a batch, when it is its turn.
func ask(b *batch) {
	s := b.store
	if s.health.Load() >= away {
		b.err = errAway
		return
	}
	deadline := b.start.Add(s.timeout)
	conn, err := resp.Connect(s.link, deadline)
	if err != nil {
		b.err = err
		return
	}
	at := int64(b.start.Sub(began))
	if at-conn.Used > int64(restless) {
		conn, b.err = prepare(b, deadline)
		if b.err != nil || b.moved {
			return
		}
	}
	conn.Used = at
	if time.Since(b.start) > s.timeout/4*3 {
		b.err = errCrowded
		return
	}
	calls := detach(b)
	counts := make([]int64, len(calls))
	answered, refusals, err := resp.EvalAll(conn, deadline, fixed, 4, calls, counts)
	b.err = err
	b.whole = err == nil && refusals == nil
	note(b, counts, answered, refusals)
}

// prepare sees to it that a connection which was idle, or is new, can be used.
func prepare(b *batch, deadline time.Time) (*resp.Conn, error) {
	s := b.store
	conn, err := connectAlive(s, deadline)
	if err != nil {
		return nil, err
	}
	// Only now is the store's clock known for certain, on a first connection.
	drift := s.origin.Load() - b.origin
	b.moved = drift > int64(time.Second) || drift < -int64(time.Second)
	return conn, nil
}

// connectAlive returns a connection that is alive. One that was idle may have been
// closed by the server or by what stands in between, and whoever sends on it learns
// of that too late. Who calls it has the turn.
func connectAlive(s *store, deadline time.Time) (*resp.Conn, error) {
	at := int64(time.Since(began))
	conn, err := resp.Connect(s.link, deadline)
	for err == nil && conn.Used != unused && at-conn.Used > int64(restless) && !resp.Alive(conn) {
		resp.Drop(s.link)
		conn, err = resp.Connect(s.link, deadline)
	}
	if err == nil {
		conn.Used = at
	}
	return conn, err
}

// detach takes a batch from the queue, so that nobody joins it any more, and returns
// its calls of the script.
func detach(b *batch) []string {
	s := b.store
	unix := (int64(b.start.Sub(began)) + b.origin) / int64(time.Second)
	s.ledger.mu.Lock()
	b.locks = true
	if s.next == b {
		s.next = nil
	}
	b.asked = true
	calls := make([]string, len(b.slots))
	for i, sl := range b.slots {
		f := sl.count
		t := sl.table
		if t.tailAt != unix || t.tailEnd != f.End {
			newTail(t, f.End, unix)
		}
		sl.settled = f.Unsettled
		calls[i] = f.Key + number(sl.requests+f.Unsettled) + number(f.Known-f.Unsettled) + t.tail
	}
	b.locks = false
	s.ledger.mu.Unlock()
	return calls
}

// newTail encodes the seconds left in the window that ends at end, and its end.
func newTail(t *table, end, unix int64) {
	left := end - unix
	if left < 1 {
		left = 1
	}
	if left > t.length {
		left = t.length // it was moved here from the window before
	}
	t.tail = resp.Bulk(strconv.FormatInt(left, 10)) + resp.Bulk(strconv.FormatInt(end, 10))
	t.tailEnd = end
	t.tailAt = unix
}

// numbers[n] is number(n).
var numbers []string

func init() {
	for n := int64(0); n < 256; n++ {
		numbers = append(numbers, number(n))
	}
}

// number encodes an argument of the script.
func number(n int64) string {
	if n < int64(len(numbers)) && n >= 0 {
		return numbers[n]
	}
	return resp.Bulk(strconv.FormatInt(n, 10))
}

// note deals out what the store answered to the slots of a batch, of which the first
// so many were answered.
func note(b *batch, counts []int64, answered int, refusals []string) {
	mu := &b.store.ledger.mu
	mu.Lock()
	b.locks = true
	for i, sl := range b.slots {
		if i >= answered || refusals != nil && refusals[i] != "" {
			window.FixedLost(sl.count, sl.settled)
			continue
		}
		sl.answer = counts[i]
		if sl.answer > 0 {
			window.FixedAnswered(sl.count, sl.answer, sl.settled)
		}
	}
	b.noted = true
	b.locks = false
	mu.Unlock()
	if !b.whole {
		noteRefusal(b, refusals)
	}
}

// noteRefusal finds the first refusal.
func noteRefusal(b *batch, refusals []string) {
	b.prefix = b.slots[0].table.head
	for i, refusal := range refusals {
		if refusal != "" {
			b.refusal = refusal
			b.prefix = b.slots[i].table.head
			return
		}
	}
}

// finish ends a batch, also one that a panic broke off: it gives the turn on, tells
// the store's health, and lets the requests go their ways.
func finish(b *batch) {
	r := recover()
	if r != nil {
		finishPanicked(b, r)
	}
	if !b.whole {
		finishUnanswered(b)
	} else if b.store.health.Load() != 0 {
		answered(b.store)
	}
	if b.hasTurn {
		b.store.turn.Unlock()
	}
	close(b.done)
	if !b.store.kept.Load() {
		startKeeper(b.store)
	}
}

// finishPanicked puts in order what a panic left behind.
func finishPanicked(b *batch, r interface{}) {
	if b.locks {
		b.locks = false
		b.store.ledger.mu.Unlock()
	}
	b.err = panicked(r)
	b.whole = false
	// Whatever is under way on the connection has no reader any more.
	resp.Drop(b.store.link)
	if b.asked && !b.noted {
		note(b, nil, 0, nil)
	}
}

// finishUnanswered ends a batch that did not bring all that it was to bring.
func finishUnanswered(b *batch) {
	s := b.store
	s.ledger.mu.Lock()
	if s.next == b {
		s.next = nil
	}
	some := false
	for _, sl := range b.slots {
		some = some || sl.answer != 0
	}
	s.ledger.mu.Unlock()
	if b.moved || b.err == errAway {
		return
	}
	if b.err == nil && some {
		// The store is well, and has trouble with some keys.
		lasting(s, "key "+resp.Word(b.refusal), fmt.Sprintf("refuses to count some keys with the prefix %q (%s)", b.prefix, reason(b.refusal, nil)))
		answered(s)
		return
	}
	failed(s, b.prefix, b.refusal, b.err)
}
