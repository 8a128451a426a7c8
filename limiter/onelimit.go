package limiter

import (
	"time"

	"github.com/gatequota/gatequota/window"
)

// TakeOne is TakeSeveral for one limit, with less work. It does not fill in d.Several
// but where the store did not answer.
func TakeOne(q *Several, client string, at time.Duration, d *window.Decision) {
	s := q.store
	if s == nil {
		takeOneLocal(q, client, at, d)
		return
	}
	t := q.tables[0]
	s.ledger.mu.Lock()
	if *q.yields {
		yield(q.ledger, d)
		return
	}
	now := (int64(at) + s.origin) / millisecond
	var a *window.Account
	if t.entries != nil {
		e := t.entries.Clients[client]
		if e != nil {
			a = e.Account
		}
	} else {
		c := t.counts
		f := c.Newest[client]
		if f != nil && now < c.End*1000 && now >= c.Start*1000 {
			a = f.Account
			if a != nil && f.Known != a.Known {
				a.Until = 0 // others count here too
			}
		}
	}
	if a == nil {
		a = window.Find(q.limits[0], t.counts, t.entries, client, now)
	}
	if now < a.Until && now >= a.Since && a.By == q.id {
		refuseAgain(q, a, now, d)
		return
	}
	left := window.Left(q.limits[0], a, now)
	if left < q.cost {
		refuseOne(q, a, left, now, d)
		return
	}
	b := s.next
	if b == nil || a.Turn != b.turn || b.groups[a.Group].several.id != q.id {
		takeFirstOfOne(q, client, at, d)
		return
	}
	g := b.groups[a.Group]
	g.requests++
	place := g.requests
	s.ledger.mu.Unlock()
	<-b.done
	decideOne(q, client, at, b, g, place, d)
}

// decideOne judges a request by what its batch brought.
func decideOne(q *Several, client string, at time.Duration, b *batch, g *group, place int64, d *window.Decision) {
	if !g.answered {
		takeSeveralUnanswered(q, client, at, b, g, place, d)
		return
	}
	earlier := place - 1
	if earlier > g.admitted {
		earlier = g.admitted
	}
	left := g.lefts[0] - earlier*q.cost
	d.Way = Shared
	d.Reset = g.resets[0]
	if left >= q.cost {
		d.Allowed = true
		d.Remaining = left - q.cost
		return
	}
	if left > 0 {
		d.Remaining = left
	}
	d.RetryAfter = g.waits[0]
	if q.refuses {
		d.RetryAfter = -1
	}
}

// takeFirstOfOne is TakeOne for the first request of a client in a batch, and while the
// store is away. Who calls it holds the ledger's mutex.
func takeFirstOfOne(q *Several, client string, at time.Duration, d *window.Decision) {
	s := q.store
	if s.health >= away {
		takeSeveralAway(q, client, at, d)
		return
	}
	b := s.next
	leads := b == nil || len(b.groups) == maxBatch
	if leads {
		b = newBatch(s)
	}
	now := (int64(at) + s.origin) / millisecond
	g := groupIn(b, q, client, findSeveral(q, client, now), int64(at), now)
	g.requests++
	place := g.requests
	s.ledger.mu.Unlock()
	if leads {
		lead(b)
	} else {
		<-b.done
	}
	decideOne(q, client, at, b, g, place, d)
}

// refuseOne refuses a client by what is known. Who calls it holds the ledger's mutex, which
// it gives back.
func refuseOne(q *Several, a *window.Account, left, now int64, d *window.Decision) {
	window.Refuse(q.limits[0], a, left, q.cost, now, d)
	if q.refuses {
		d.RetryAfter = -1
	}
	d.Way = Shared
	d.Known = true
	if q.store.health >= away || window.Alone(a) {
		d.Way = Local
		d.Known = false
	}
	if d.Way == Shared && !q.refuses {
		a.By = q.id
		a.Since = now
		if a.Running != nil {
			a.Known = a.Running.Known
		}
		a.Left = d.Remaining
		a.Until = now + window.Wait(q.limits[0], a, q.cost, now)
		a.Full = now + window.Wait(q.limits[0], a, window.Capacity(q.limits[0]), now)
	}
	q.tables[0].used = true
	q.ledger.mu.Unlock()
}

// refuseAgain refuses a client as it was refused before, since what is known has not
// changed, and the time until which it is has not come. Who calls it holds the ledger's
// mutex, which it gives back.
func refuseAgain(q *Several, a *window.Account, now int64, d *window.Decision) {
	d.Way = Shared
	d.Known = true
	if q.store.health >= away {
		d.Way = Local
		d.Known = false
	}
	d.Reset = (a.Full - now + 999) / 1000
	d.RetryAfter = (a.Until - now + 999) / 1000
	d.Remaining = a.Left
	if q.cost > 1 { // what is left may have grown, though not enough
		d.Remaining = window.Left(q.limits[0], a, now)
		if d.Remaining < 0 {
			d.Remaining = 0
		}
	}
	q.tables[0].used = true
	q.ledger.mu.Unlock()
}

// takeOneLocal is TakeOne where this gateway's memory counts.
func takeOneLocal(q *Several, client string, at time.Duration, d *window.Decision) {
	l, t := q.limits[0], q.tables[0]
	q.ledger.mu.Lock()
	t.used = true
	now := (int64(at) + t.origin) / millisecond
	window.TakeOne(l, window.Find(l, t.counts, t.entries, client, now), q.cost, now, d)
	q.ledger.mu.Unlock()
	d.Way = Local
	if q.refuses {
		d.RetryAfter = -1
	}
}
