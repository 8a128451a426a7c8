package limiter

import (
	"time"

	"github.com/gatequota/gatequota/resp"
	"github.com/gatequota/gatequota/window"
)

// A single is a request that finds nobody before it: it asks for itself, and whoever
// comes meanwhile joins a batch. It is what a batch of one is, with less work.
type single struct {
	limiter *Limiter
	start   time.Time // when its time began to run, by the clock of this machine
	locks   bool      // it holds the ledger's mutex

	answer  int64 // as of a slot
	refusal string
	err     error
	batch   *batch // in which it was asked for again; nil: none
}

// takeSingle is takeFirst for a request that finds the connection free. Who calls it
// holds the ledger's mutex and the turn, which it gives back.
func takeSingle(l *Limiter, f *window.FixedCount, at time.Duration, unix int64, d *window.Decision) {
	q := &single{limiter: l, locks: true}
	askSingle(q, f, unix)
	if q.answer < 1 {
		singleUnanswered(q, f, at, unix, d)
		return
	}
	// What follows is decide, without the call.
	d.Way = Shared
	d.Reset = f.End - unix
	if q.answer > l.limit {
		d.RetryAfter = d.Reset
		return
	}
	d.Allowed = true
	d.Remaining = l.limit - q.answer
}

// askSingle makes one attempt at the count of a single request. Who calls it holds the
// ledger's mutex and the turn, which it gives back.
func askSingle(q *single, f *window.FixedCount, unix int64) {
	defer finishSingle(q)
	q.start = time.Now()
	s := q.limiter.store
	t := q.limiter.table
	t.used = true
	s.batches++
	if !s.kept {
		startKeeper(s)
	}
	if f.Key == "" {
		setKey(t, f)
	}
	if t.hold != nil && held(t, window.FixedClient(f), unix) {
		f = window.FixedApart(f)
	}
	call := encodeOne(t, f, 1, unix)
	q.locks = false
	s.ledger.mu.Unlock()
	deadline := q.start.Add(s.timeout)
	q.answer, q.refusal, q.err = resp.Eval(s.conn, deadline, fixedScript, 4, call)
	if q.answer < 1 || q.answer > maxAnswer {
		askSingleAgain(q, f, unix, deadline)
		return
	}
	// Before the turn is given on: the next call tells the store what is known.
	s.ledger.mu.Lock()
	q.locks = true
	if s.health > 0 && s.health < away {
		s.health = 0
	}
	noteAnswer(f, q.answer, 0)
	if s.timed {
		timeSingle(q)
	}
	q.locks = false
	s.ledger.mu.Unlock()
}

// askSingleAgain asks for the next window, as a batch, where the store said that the one
// is over.
func askSingleAgain(q *single, f *window.FixedCount, unix int64, deadline time.Time) {
	if q.answer != window.FixedOver {
		if q.answer != 0 || q.refusal == "" && q.err == nil {
			q.answer = 0
			q.err = errNoCount
			q.limiter.store.conn = nil
			resp.Drop(q.limiter.store.link)
		}
		return
	}
	b := singleBatch(q, f, unix)
	q.batch = b
	if !q.limiter.store.conn.Usable {
		q.limiter.store.conn = nil
	}
	askOver(b, deadline)
	q.refusal, q.err = b.refusal, b.err
}

// singleBatch returns the batch that a single is, after its call.
func singleBatch(q *single, f *window.FixedCount, unix int64) *batch {
	sl := &slot{table: q.limiter.table, count: f, unix: unix, requests: 1, answer: q.answer}
	return &batch{store: q.limiter.store, start: q.start, slots: []*slot{sl}, asking: []*slot{sl}, asked: true, noted: true}
}

// finishSingle is to a single what finish is to a batch.
func finishSingle(q *single) {
	r := recover()
	s := q.limiter.store
	if r != nil || q.answer < 1 || !s.conn.Usable {
		singleFailed(q, r)
	}
	s.turn.Unlock()
}

// singleFailed puts in order what a failure or a panic left behind, or what was asked
// for again.
func singleFailed(q *single, r interface{}) {
	defer swallow()
	s := q.limiter.store
	if q.locks {
		q.locks = false
		s.ledger.mu.Unlock()
	}
	if r != nil {
		q.answer = 0
		q.err = panicked(r)
		s.conn = nil
		if q.batch != nil {
			clean(q.batch, r)
		}
		resp.Drop(s.link)
	}
	if s.conn != nil && !s.conn.Usable {
		s.conn = nil
	}
	if q.err != nil || q.refusal != "" {
		failed(s, q.limiter.table.head, q.refusal, q.err)
	}
}

// swallow ends a panic in what was to put in order another.
func swallow() {
	_ = recover()
}

// singleUnanswered decides a single request that got no count at once.
func singleUnanswered(q *single, f *window.FixedCount, at time.Duration, unix int64, d *window.Decision) {
	b := q.batch
	if b == nil {
		b = singleBatch(q, f, unix)
	}
	takeUnanswered(q.limiter, window.FixedClient(f), at, b, b.slots[0], 1, d)
}
