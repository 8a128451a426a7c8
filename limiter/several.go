package limiter

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/gatequota/gatequota/resp"
	"github.com/gatequota/gatequota/window"
)

// Several holds clients to several limits at once, or to one of which a request takes
// more than one: a request counts in all of them or in none. Like a Limiter it has no
// state of its own.
type Several struct {
	cost    int64
	parts   []*Limiter // one for each limit; what is no limit's own is read from the first
	limits  []int64    // of the parts
	head    string     // of a call of the script
	id      string     // what tells it apart from all others
	refuses bool       // no request will ever pass
}

var severalScript = resp.NewScript(window.FixedSeveralScript)

// NewSeveral returns a limiter for requests that cost so much, at least 1, under limits
// that differ in Name, Limit and Window alone; there is at least one, and no two have one
// name. For the rest it does as New.
func NewSeveral(ctx context.Context, limits []*Settings, cost int64, now time.Time) *Several {
	q := &Several{
		cost: cost,
		head: resp.CallHead(severalScript, len(limits), 2+5*len(limits)),
		id:   newName() + " ",
	}
	for _, s := range limits {
		q.parts = append(q.parts, New(ctx, s, now))
		q.limits = append(q.limits, s.Limit)
		q.refuses = q.refuses || cost > s.Limit
	}
	return q
}

// A group is one client's part of a batch, where its requests count in several counts.
type group struct {
	several  *Several
	client   string
	at       int64 // when the first request came, since Began
	unix     int64 // the same by the store's clock, in unix seconds
	counts   []*window.FixedCount
	requests int64 // merged into one; guarded like batch.groups

	asked    bool    // it was written: the store may have counted its requests
	settled  []int64 // unsettled passes that are settled with them, for each count
	answered bool
	before   []int64 // the counts before the first of the requests, or window.FixedOver
	admitted int64   // how many of the requests were counted
}

// TakeSeveral counts one request of a client and decides it, as TakeLocal and TakeShared
// do. RetryAfter is -1 where the request costs more than a limit, so that waiting is of
// no use.
func TakeSeveral(q *Several, client string, at time.Duration, d *window.Decision) {
	first := q.parts[0]
	if first.store != nil {
		takeSeveralShared(q, client, at, d)
	} else {
		first.ledger.mu.Lock()
		unix := (int64(at) + first.table.origin) / second
		window.FixedTakeSeveral(findSeveral(q, client, unix), q.limits, q.cost, unix, d)
		first.ledger.mu.Unlock()
		d.Way = Local
	}
	if q.refuses && d.RetryAfter > 0 {
		d.RetryAfter = -1
	}
}

// findSeveral returns the counts of a client at a time. Who calls it holds the ledger's
// mutex.
func findSeveral(q *Several, client string, unix int64) []*window.FixedCount {
	counts := make([]*window.FixedCount, len(q.parts))
	for i, l := range q.parts {
		l.table.used = true
		counts[i] = window.FixedFind(l.counts, client, unix)
	}
	return counts
}

// takeSeveralShared is TakeSeveral where the store counts.
func takeSeveralShared(q *Several, client string, at time.Duration, d *window.Decision) {
	s := q.parts[0].store
	s.ledger.mu.Lock()
	unix := (int64(at) + s.origin) / second
	counts := findSeveral(q, client, unix)
	if refuseKnownSeveral(q, counts, unix, d) {
		s.ledger.mu.Unlock()
		return
	}
	if s.health >= away {
		s.passed++
		if !s.kept {
			startKeeper(s)
		}
		takeSeveralAlone(q, client, at, false, d)
		return
	}
	b := s.next
	leads := b == nil || len(b.groups) == maxBatch
	if leads {
		b = newBatch(s)
	}
	g := groupIn(b, q, client, counts, int64(at), unix)
	g.requests++
	place := g.requests
	s.ledger.mu.Unlock()
	if leads {
		lead(b)
	} else {
		<-b.done
	}
	if g.answered {
		judgeGroup(g, place, d)
		return
	}
	s.ledger.mu.Lock()
	// The wait may have been longer than a window: what counts is when it ended.
	takeSeveralAlone(q, client, at+time.Since(b.start), g.asked, d)
}

// refuseKnownSeveral refuses a client by counts that are known, as refuseKnown does, and
// reports whether it did. Who calls it holds the ledger's mutex.
func refuseKnownSeveral(q *Several, counts []*window.FixedCount, unix int64, d *window.Decision) bool {
	way, refused := Shared, false
	lefts := make([]int64, len(counts))
	for i, f := range counts {
		lefts[i] = q.limits[i] - f.Known
		if lefts[i] < q.cost {
			refused = true
			if f.Lost+f.Unsettled > 0 {
				way = Local
			}
		}
	}
	if !refused {
		return false
	}
	if q.parts[0].store.health >= away {
		way = Local
	}
	window.FixedJudge(counts, lefts, q.cost, unix, d)
	d.Way = way
	return true
}

// takeSeveralAlone decides without the store, as the operator chose. Who calls it holds
// the ledger's mutex, which it gives back.
func takeSeveralAlone(q *Several, client string, at time.Duration, asked bool, d *window.Decision) {
	l := q.parts[0]
	d.Way = l.onStoreFailure
	if d.Way != Local {
		l.ledger.mu.Unlock()
		refuseOrPass(l, d)
		return
	}
	gateways := l.fallbackGateways
	if gateways == 0 {
		gateways = l.table.gateways
	}
	unix := (int64(at) + l.store.origin) / second
	window.FixedAloneSeveral(findSeveral(q, client, unix), q.limits, q.cost, unix, l.fallbackLimit, gateways, asked, d)
	l.ledger.mu.Unlock()
}

// groupIn returns the place of a client in a batch: requests of the same limits, client
// and windows are merged. Who calls it holds the ledger's mutex.
func groupIn(b *batch, q *Several, client string, counts []*window.FixedCount, at, unix int64) *group {
	g := b.groupOf[q.id+client]
	if g != nil && sameCounts(g.counts, counts) {
		return g
	}
	g = &group{several: q, client: client, at: at, unix: unix, counts: counts}
	if b.groupOf == nil {
		b.groupOf = map[string]*group{}
	}
	b.groupOf[q.id+client] = g
	b.groups = append(b.groups, g)
	return g
}

func sameCounts(a, b []*window.FixedCount) bool {
	for i, f := range a {
		if b[i] != f {
			return false
		}
	}
	return true
}

// askGroups makes the calls for the groups of a batch, when it is its turn; those whose
// window is over by the store's clock are asked for again, once.
func askGroups(b *batch, deadline time.Time) {
	pending := b.groups
	for try := 0; try < 2 && len(pending) > 0; try++ {
		s := b.store
		if s.conn == nil {
			b.broken = true
			if b.refusal == "" {
				b.err = lostAfter()
			}
			return
		}
		calls := encodeGroups(b, pending, try)
		lines := make([]string, len(calls))
		answered, refusals, err := resp.EvalLines(s.conn, deadline, severalScript, calls, lines)
		if !s.conn.Usable {
			s.conn = nil
		}
		if err != nil || refusals != nil {
			b.broken = true
			b.err = err
			noteGroupRefusal(b, pending, refusals)
		}
		pending = noteGroups(b, pending, lines, answered, refusals)
		if b.err != nil {
			return
		}
	}
	if len(pending) > 0 {
		clockIsWrong(b.store)
	}
}

// encodeGroups returns the calls of the script for these groups.
func encodeGroups(b *batch, groups []*group, try int) []string {
	b.store.ledger.mu.Lock()
	b.locks = true
	calls := make([]string, len(groups))
	for i, g := range groups {
		if try > 0 || b.drifted {
			replace(b, g)
		}
		g.asked = true
		g.settled = make([]int64, len(g.counts))
		calls[i] = encodeGroup(g)
	}
	b.locks = false
	b.store.ledger.mu.Unlock()
	return calls
}

// replace finds the windows of a group anew: by the store's clock as it is known now, or
// after those that the store said to be over. Who calls it holds the ledger's mutex.
func replace(b *batch, g *group) {
	if b.drifted && g.before == nil {
		g.unix = (g.at + b.store.origin) / second
		g.counts = findSeveral(g.several, g.client, g.unix)
		return
	}
	for i, before := range g.before {
		if before == window.FixedOver && g.counts[i].End > g.unix {
			g.unix = g.counts[i].End
		}
	}
	g.counts = findSeveral(g.several, g.client, g.unix)
}

// encodeGroup returns the call of the script for a group. Who calls it holds the
// ledger's mutex.
func encodeGroup(g *group) string {
	keys, args := g.several.head, encodeInt(g.requests)+encodeInt(g.several.cost)
	for i, f := range g.counts {
		t := g.several.parts[i].table
		if f.Key == "" {
			setKey(t, f)
		}
		keys += f.Key
		g.settled[i] = window.FixedSettle(f)
		if t.tailAt != g.unix || t.tailEnd != f.End {
			newTail(t, f.End, g.unix)
		}
		args += encodeInt(g.several.limits[i]) + encodeInt(g.settled[i]) + encodeInt(f.Known-f.Unsettled) + t.tail
	}
	return keys + args
}

// noteGroups deals out what the store answered to these groups, and returns those that
// belong to another window.
func noteGroups(b *batch, groups []*group, lines []string, answered int, refusals []string) []*group {
	s := b.store
	s.ledger.mu.Lock()
	b.locks = true
	var over []*group
	for i, g := range groups {
		if i >= answered || refusals != nil && refusals[i] != "" {
			loseGroup(g)
			continue
		}
		g.before = readCounts(lines[i], len(g.counts))
		if g.before == nil {
			loseGroup(g)
			b.broken = true
			b.err = errNoCount
			s.conn = nil
			resp.Drop(s.link)
			continue
		}
		if noteGroup(g) {
			over = append(over, g)
		}
	}
	if !b.broken && s.health < away {
		s.health = 0
	}
	b.locks = false
	s.ledger.mu.Unlock()
	return over
}

// noteGroup notes what the store answered to a group, and reports whether a window of it
// is over. Who calls it holds the ledger's mutex.
func noteGroup(g *group) (over bool) {
	lefts := make([]int64, len(g.counts))
	for i, before := range g.before {
		over = over || before == window.FixedOver
		lefts[i] = g.several.limits[i] - before
	}
	if over {
		for i, f := range g.counts {
			window.FixedUnsent(f, g.settled[i])
		}
		g.settled = nil
		g.asked = false
		return true
	}
	g.admitted = window.FixedAdmitted(lefts, g.requests, g.several.cost)
	for i, f := range g.counts {
		noteAnswer(f, g.before[i]+g.admitted*g.several.cost, g.settled[i])
	}
	g.settled = nil
	g.answered = true
	return false
}

// readCounts reads what the script answers: so many counts. It returns nil where that is
// none.
func readCounts(line string, n int) []int64 {
	words := strings.Split(line, " ")
	if len(words) != n {
		return nil
	}
	counts := make([]int64, n)
	for i, word := range words {
		count, err := strconv.ParseInt(word, 10, 64)
		if err != nil || count > maxAnswer || count < window.FixedOver {
			return nil
		}
		counts[i] = count
	}
	return counts
}

// loseGroup notes that a call for a group was sent and got no answer. Who calls it holds
// the ledger's mutex.
func loseGroup(g *group) {
	if g.settled == nil {
		return
	}
	for i, f := range g.counts {
		window.FixedLost(f, g.settled[i])
	}
	g.settled = nil
}

// noteGroupRefusal finds the first refusal, unless there was one before.
func noteGroupRefusal(b *batch, groups []*group, refusals []string) {
	if b.refusal != "" {
		return
	}
	b.prefix = groups[0].several.parts[0].table.head
	for i, refusal := range refusals {
		if refusal != "" {
			b.refusal = refusal
			b.prefix = groups[i].several.parts[0].table.head
			return
		}
	}
}

// judgeGroup judges a request by what its batch brought. The requests of a group were
// counted together, in the order in which they came, from place 1.
func judgeGroup(g *group, place int64, d *window.Decision) {
	earlier := place - 1
	if earlier > g.admitted {
		earlier = g.admitted
	}
	lefts := make([]int64, len(g.counts))
	for i, before := range g.before {
		lefts[i] = g.several.limits[i] - before - earlier*g.several.cost
	}
	d.Way = Shared
	window.FixedJudge(g.counts, lefts, g.several.cost, g.unix, d)
}
