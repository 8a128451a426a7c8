package limiter

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/gatequota/gatequota/resp"
	"github.com/gatequota/gatequota/window"
)

// Several holds clients to all that a Limiter does not: to several limits at once, to one
// of which a request takes more than one, or to one that is counted otherwise than in
// fixed windows. A request counts under all its limits or under none. Like a Limiter it
// has no state of its own.
type Several struct {
	cost           int64
	limits         []*window.Limit // of one algorithm
	tables         []*table        // in which they are counted
	store          *store          // nil: counted in memory alone
	ledger         *ledger
	onStoreFailure string
	share          window.Share
	script         *resp.Script
	head           string // of a call of the script
	id             string // what tells it apart from those of which a request is another matter
	refuses        bool   // no request will ever pass
	yields         *bool  // as of a Limiter
}

// millisecond is one in nanoseconds.
const millisecond = int64(time.Millisecond)

// A kind is how an algorithm is asked for in the store.
type kind struct {
	script *resp.Script
	keys   int // for each limit
	args   int // of a call
	each   int // besides, for each limit
}

// kinds are in the order of the algorithms.
var kinds = []kind{
	{resp.NewScript(window.FixedSeveralScript), 1, 2, 5},
	{resp.NewScript(window.SlidingScript), 2, 3, 7},
	{resp.NewScript(window.LogScript), 1, 4, 3},
	{resp.NewScript(window.BucketScript), 1, 3, 5},
}

// NewSeveral returns a limiter for requests that cost so much, at least 1, under limits
// that differ in Name, Limit, Window and Burst alone; there is at least one, and no two
// have one name. For the rest it does as New.
func NewSeveral(ctx context.Context, limits []*Settings, cost int64, now time.Time) *Several {
	q := &Several{cost: cost, yields: &never}
	for _, s := range limits {
		l := New(ctx, s, now)
		limit := &window.Limit{Algorithm: s.Algorithm, Limit: s.Limit, Length: s.Window, Burst: s.Burst}
		q.limits = append(q.limits, limit)
		q.tables = append(q.tables, l.table)
		q.store = l.store
		q.ledger = l.ledger
		q.onStoreFailure = l.onStoreFailure
		q.share = window.Share{Own: l.fallbackLimit, Gateways: l.fallbackGateways}
	}
	prepareCalls(q)
	return q
}

// prepareCalls computes what is the same for all calls.
func prepareCalls(q *Several) {
	k := len(q.limits)
	a := kinds[q.limits[0].Algorithm]
	q.script = a.script
	q.head = resp.CallHead(a.script, k*a.keys, a.args+k*a.each)
	q.refuses = false
	q.id = strconv.FormatInt(q.cost, 10)
	for i, l := range q.limits {
		q.refuses = q.refuses || q.cost > window.Capacity(l)
		q.id += " " + q.tables[i].head + " " + strconv.FormatInt(l.Length, 10) + " " + strconv.FormatInt(l.Limit, 10) + " " + strconv.FormatInt(l.Burst, 10)
	}
	q.id += "\x00"
}

// SeveralWithLimits returns a limiter that differs from q in how high its limits are, in
// their order, and, for buckets, in their bursts. It counts in the same counts.
func SeveralWithLimits(q *Several, limits, bursts []int64) *Several {
	other := *q
	other.limits = nil
	for i, l := range q.limits {
		limit := &window.Limit{Algorithm: l.Algorithm, Limit: limits[i], Length: l.Length, Burst: bursts[i]}
		other.limits = append(other.limits, limit)
		q.ledger.mu.Lock()
		keepFor(q.tables[i], limit)
		q.ledger.mu.Unlock()
	}
	prepareCalls(&other)
	return &other
}

// A group is one client's part of a batch, where its requests count under several limits.
type group struct {
	several  *Several
	client   string
	at       int64 // when the first request came, since Began
	now      int64 // the same by the store's clock, in unix milliseconds
	accounts []*window.Account
	requests int64 // merged into one; guarded like batch.groups

	asked    bool    // it was written: the store may have counted its requests
	name     string  // of the call, in logs
	settled  []int64 // unsettled passes that are settled with it, for each account and for the one before
	told     []int64 // as of window.LogUnsent
	knew     []int64 // what was known of logs when it was written, as of window.LogAdded
	answered bool
	lefts    []int64 // what was left before the first of the requests
	admitted int64   // how many of the requests were counted
	over     bool    // a window is over by the store's clock, and nothing was counted
	resets   []int64 // as of window.Waits
	waits    []int64
}

// TakeSeveral counts one request of a client and decides it, as TakeLocal and TakeShared
// do. RetryAfter is -1 where the request costs more than a limit, so that waiting is of
// no use.
func TakeSeveral(q *Several, client string, at time.Duration, d *window.Decision) {
	if q.store != nil {
		takeSeveralShared(q, client, at, d)
	} else {
		q.ledger.mu.Lock()
		now := (int64(at) + q.tables[0].origin) / millisecond
		window.Take(q.limits, findSeveral(q, client, now), q.cost, now, d)
		q.ledger.mu.Unlock()
		d.Way = Local
	}
	if q.refuses && d.RetryAfter > 0 {
		d.RetryAfter = -1
	}
}

// findSeveral returns the accounts of a client at a time in unix milliseconds. Who calls
// it holds the ledger's mutex.
func findSeveral(q *Several, client string, now int64) []*window.Account {
	accounts := make([]*window.Account, len(q.tables))
	for i, t := range q.tables {
		t.used = true
		accounts[i] = window.Find(q.limits[i], t.counts, t.entries, client, now)
	}
	return accounts
}

// takeSeveralShared is TakeSeveral where the store counts.
func takeSeveralShared(q *Several, client string, at time.Duration, d *window.Decision) {
	s := q.store
	s.ledger.mu.Lock()
	now := (int64(at) + s.origin) / millisecond
	accounts := findSeveral(q, client, now)
	if refuseKnownSeveral(q, accounts, now, d) {
		s.ledger.mu.Unlock()
		return
	}
	if s.health >= away {
		takeSeveralAway(q, client, at, d)
		return
	}
	b := s.next
	leads := b == nil || len(b.groups) == maxBatch
	if leads {
		b = newBatch(s)
	}
	g := groupIn(b, q, client, accounts, int64(at), now)
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
	takeSeveralUnanswered(q, client, at, b, g, place, d)
}

// takeSeveralUnanswered decides a request whose group got no answer.
func takeSeveralUnanswered(q *Several, client string, at time.Duration, b *batch, g *group, place int64, d *window.Decision) {
	q.ledger.mu.Lock()
	// The wait may have been longer than a window: what counts is when it ended.
	takeSeveralAlone(q, client, at+time.Since(b.start), g, place, d)
}

// takeSeveralAway decides a request while the store is away. Who calls it holds the
// ledger's mutex, which it gives back.
func takeSeveralAway(q *Several, client string, at time.Duration, d *window.Decision) {
	s := q.store
	s.passed++
	if !s.kept {
		startKeeper(s)
	}
	takeSeveralAlone(q, client, at, nil, 0, d)
}

// refuseKnownSeveral refuses a client by what is known, as refuseKnown does, and reports
// whether it did. Who calls it holds the ledger's mutex.
func refuseKnownSeveral(q *Several, accounts []*window.Account, now int64, d *window.Decision) bool {
	way, refused := Shared, false
	lefts := make([]int64, len(accounts))
	for i, a := range accounts {
		lefts[i] = window.Left(q.limits[i], a, now)
		if lefts[i] < q.cost {
			refused = true
			if window.Alone(a) {
				way = Local
			}
		}
	}
	if !refused {
		return false
	}
	if q.store.health >= away {
		way = Local
	}
	resets, waits := window.Waits(q.limits, accounts, q.cost, now)
	window.Judge(lefts, resets, waits, q.cost, d)
	d.Way = way
	d.Known = way == Shared
	return true
}

// takeSeveralAlone decides without the store, as the operator chose. g is the group of the
// request, which has this place in it, if it got that far. Who calls it holds the ledger's
// mutex, which it gives back.
func takeSeveralAlone(q *Several, client string, at time.Duration, g *group, place int64, d *window.Decision) {
	d.Way = q.onStoreFailure
	if d.Way != Local {
		q.ledger.mu.Unlock()
		refuseOrPass(q.store, d)
		return
	}
	share := q.share
	if share.Gateways == 0 {
		share.Gateways = q.tables[0].gateways
	}
	asked := g != nil && g.asked
	name, first := "", int64(1)
	if asked {
		name = g.name
		first = (place-1)*q.cost + 1
	} else if q.limits[0].Algorithm == window.Exact {
		name = callName(q.ledger)
	}
	now := (int64(at) + q.store.origin) / millisecond
	window.TakeAlone(q.limits, findSeveral(q, client, now), &share, q.cost, now, asked, name, first, d)
	if d.Allowed {
		for _, t := range q.tables {
			t.outageAllowed++
		}
	}
	q.ledger.mu.Unlock()
}

// callName returns a name that no other call of any gateway has. Who calls it holds the
// ledger's mutex.
func callName(l *ledger) string {
	l.calls++
	return gatewayID + "-" + strconv.FormatInt(l.calls, 36)
}

// groupIn returns the place of a client in a batch: requests of the same limits, client
// and windows are merged. Who calls it holds the ledger's mutex.
func groupIn(b *batch, q *Several, client string, accounts []*window.Account, at, now int64) *group {
	g := b.groupOf[q.id+client]
	if g != nil && sameAccounts(g.accounts, accounts) {
		return g
	}
	g = &group{several: q, client: client, at: at, now: now, accounts: accounts}
	accounts[0].Turn = b.turn
	accounts[0].Group = len(b.groups)
	if b.groupOf == nil {
		b.groupOf = map[string]*group{}
	}
	b.groupOf[q.id+client] = g
	b.groups = append(b.groups, g)
	return g
}

func sameAccounts(a, b []*window.Account) bool {
	for i := range a {
		if a[i].Running != b[i].Running || a[i].Entry != b[i].Entry {
			return false
		}
	}
	return true
}

// fixedHead begins a whole call of fixedScript.
var fixedHead = resp.CallHead(fixedScript, 1, 4)

// askMixed makes the calls for a batch that has groups, when it is its turn, in one write
// with those for its slots. What belongs to a window that is over by the store's clock is
// asked for again, once.
func askMixed(b *batch, slots []string, deadline time.Time) {
	s := b.store
	groups := b.groups
	for try := 0; try < 2 && len(slots)+len(groups) > 0; try++ {
		if s.conn == nil {
			b.broken = true
			if b.refusal == "" {
				b.err = lostAfter()
			}
			return
		}
		calls, of := encodeGroups(b, groups, try)
		for i := len(slots) - 1; i >= 0; i-- {
			calls = append([]string{fixedHead + slots[i]}, calls...)
			of = append([]*resp.Script{fixedScript}, of...)
		}
		lines := make([]string, len(calls))
		answered, refusals, err := resp.EvalLines(s.conn, deadline, of, calls, lines)
		if !s.conn.Usable {
			s.conn = nil
		}
		if refusals == nil {
			refusals = make([]string, len(calls))
		} else {
			b.broken = true
		}
		if err != nil {
			b.broken = true
			b.err = err
		}
		n := len(slots)
		noteMixed(b, lines[:n], answered, refusals[:n])
		noteGroupRefusal(b, groups, refusals[n:])
		groups = noteGroups(b, groups, lines[n:], answered-n, refusals[n:])
		if b.err != nil {
			return
		}
		slots = nil
		if b.over > 0 {
			slots = moveOver(b)
		}
	}
	if len(groups)+b.over > 0 {
		clockIsWrong(s)
	}
}

// noteMixed deals out what the store answered to the slots of a batch with groups.
func noteMixed(b *batch, lines []string, answered int, refusals []string) {
	if len(lines) == 0 {
		return
	}
	if answered > len(lines) {
		answered = len(lines)
	}
	counts := make([]int64, len(lines))
	for i := range counts {
		n, err := strconv.ParseInt(lines[i], 10, 64)
		if err != nil {
			n = noCount
		}
		counts[i] = n
	}
	note(b, counts, answered, refusals)
	for i, refusal := range refusals {
		if refusal != "" && b.refusal == "" {
			b.refusal = refusal
			b.prefix = b.asking[i].table.head
		}
	}
}

// noCount is what no script answers.
const noCount = -2

// encodeGroups returns the calls for these groups, and the script of each.
func encodeGroups(b *batch, groups []*group, try int) (calls []string, of []*resp.Script) {
	b.store.ledger.mu.Lock()
	b.locks = true
	// In a loop, an interpreter hands results over as the turn before left them.
	calls = make([]string, len(groups))
	of = make([]*resp.Script, len(groups))
	for i, g := range groups {
		if try > 0 || b.drifted {
			replace(b, g)
		}
		g.asked = true
		g.over = false
		calls[i] = encodeGroup(g)
		of[i] = g.several.script
	}
	b.locks = false
	b.store.ledger.mu.Unlock()
	return calls, of
}

// replace finds the accounts of a group anew: by the store's clock as it is known now, or
// after windows that the store said to be over. Who calls it holds the ledger's mutex.
func replace(b *batch, g *group) {
	if !g.over {
		g.now = (g.at + b.store.origin) / millisecond
	}
	g.accounts = findSeveral(g.several, g.client, g.now)
}

// encodeGroup returns the call of the script for a group. Who calls it holds the
// ledger's mutex.
func encodeGroup(g *group) string {
	q := g.several
	keys, args := q.head, encodeInt(g.requests)+encodeInt(q.cost)
	algorithm := q.limits[0].Algorithm
	if algorithm != window.Fixed {
		args += resp.Bulk(strconv.FormatInt(g.now, 10))
	}
	if algorithm == window.Exact {
		g.name = callName(q.ledger)
		args += resp.Bulk(g.name)
	}
	g.settled = nil
	g.told = nil
	g.knew = nil
	if q.tables[0].hold != nil && held(q.tables[0], g.client, g.now/1000) {
		setApart(g)
	}
	for i, a := range g.accounts {
		t := q.tables[i]
		switch algorithm {
		case window.Fixed:
			keys += countKey(t, a.Running)
			args += encodeFixed(g, t, q.limits[i], a)
		case window.Sliding:
			keys += countKey(t, a.Running) + countKey(t, a.Before)
			args += encodeSliding(g, q.limits[i], a)
		case window.Exact:
			keys += entryKey(t, a.Entry)
			g.knew = append(g.knew, window.LogAdded(a.Entry.Log))
			calls, told := window.LogUnsent(a.Entry.Log)
			g.told = append(g.told, told)
			args += encodeInt(q.limits[i].Limit) + encodeInt(q.limits[i].Length*1000) + resp.Bulk(calls)
		default:
			l := q.limits[i]
			keys += entryKey(t, a.Entry)
			args += encodeInt(l.Limit) + encodeInt(l.Length*1000) + encodeInt(l.Burst) + encodeInt(a.Entry.Lack) + encodeInt(a.Entry.At)
		}
	}
	return keys + args
}

// setApart gives a group accounts that nothing is known of and that nobody finds. Who calls
// it holds the ledger's mutex.
func setApart(g *group) {
	var apart []*window.Account
	for _, a := range g.accounts {
		apart = append(apart, window.Apart(a))
	}
	g.accounts = apart
}

// countKey returns the encoded key of a count. Who calls it holds the ledger's mutex.
func countKey(t *table, f *window.FixedCount) string {
	if f.Key == "" {
		setKey(t, f)
	}
	return f.Key
}

// entryKey returns the encoded key of an entry. Who calls it holds the ledger's mutex.
func entryKey(t *table, e *window.Entry) string {
	if e.Key == "" {
		e.Key = resp.Bulk(t.head + ":{" + hexDigest(t, window.EntryClient(e)) + "}:" + strconv.FormatInt(t.length, 10))
	}
	return e.Key
}

// encodeFixed encodes the arguments of a limit for FixedSeveralScript. Who calls it holds
// the ledger's mutex.
func encodeFixed(g *group, t *table, l *window.Limit, a *window.Account) string {
	f, unix := a.Running, g.now/1000
	settled := window.FixedSettle(f)
	g.settled = append(g.settled, settled)
	if t.tailAt != unix || t.tailEnd != f.End {
		newTail(t, f.End, unix)
	}
	return encodeInt(l.Limit) + encodeInt(settled) + encodeInt(f.Known-f.Unsettled) + t.tail
}

// encodeSliding encodes the arguments of a limit for SlidingScript. Who calls it holds the
// ledger's mutex.
func encodeSliding(g *group, l *window.Limit, a *window.Account) string {
	text := encodeInt(l.Limit) + encodeInt(l.Length) + encodeInt(a.Running.End)
	for _, f := range []*window.FixedCount{a.Running, a.Before} {
		settled := window.FixedSettle(f)
		g.settled = append(g.settled, settled)
		text += encodeInt(settled) + encodeInt(f.Known-f.Unsettled)
	}
	return text
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
		if !noteGroup(g, readNumbers(lines[i])) {
			loseGroup(g)
			b.broken = true
			b.err = errNoCount
			s.conn = nil
			resp.Drop(s.link)
			continue
		}
		if g.over {
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

// noteGroup notes what the store answered to a group, and reports whether that can be. Who
// calls it holds the ledger's mutex.
func noteGroup(g *group, numbers []int64) bool {
	switch g.several.limits[0].Algorithm {
	case window.Fixed:
		return noteFixed(g, numbers)
	case window.Sliding:
		return noteSliding(g, numbers)
	case window.Exact:
		return noteLog(g, numbers)
	}
	return noteBucket(g, numbers)
}

// admit notes how many requests were admitted, by what was left before the first of them.
func admit(g *group) int64 {
	g.admitted = window.Admitted(g.lefts, g.requests, g.several.cost)
	return g.admitted * g.several.cost
}

// settle notes what became of a group whose answer is noted in its accounts.
func settle(g *group) bool {
	g.settled = nil
	g.answered = true
	for _, a := range g.accounts {
		a.Until = 0 // what is known has changed
	}
	g.resets, g.waits = window.Waits(g.several.limits, g.accounts, g.several.cost, g.now)
	return true
}

// isOver notes that a window of a group is over and that nothing was counted: it is to be
// asked for in the next one.
func isOver(g *group, counts []int64) bool {
	for i, n := range counts {
		if n == window.FixedOver {
			g.over = true
			if a := g.accounts[i*len(g.accounts)/len(counts)]; a.Running.End*1000 > g.now {
				g.now = a.Running.End * 1000
			}
		}
	}
	if !g.over {
		return false
	}
	for i, f := range countsOf(g) {
		window.FixedUnsent(f, g.settled[i])
	}
	g.settled = nil
	g.asked = false
	return true
}

// countsOf returns the counts of a group in the order of its keys.
func countsOf(g *group) []*window.FixedCount {
	var counts []*window.FixedCount
	for _, a := range g.accounts {
		counts = append(counts, a.Running)
		if a.Before != nil {
			counts = append(counts, a.Before)
		}
	}
	return counts
}

func noteFixed(g *group, counts []int64) bool {
	if len(counts) != len(g.accounts) {
		return false
	}
	if isOver(g, counts) {
		return true
	}
	g.lefts = nil
	for i, l := range g.several.limits {
		g.lefts = append(g.lefts, l.Limit-counts[i])
	}
	units := admit(g)
	for i, a := range g.accounts {
		noteAnswer(a.Running, counts[i]+units, g.settled[i])
		g.several.tables[i].outageSettled += g.settled[i]
	}
	return settle(g)
}

func noteSliding(g *group, numbers []int64) bool {
	if len(numbers) != 1+2*len(g.accounts) {
		return false
	}
	now, counts := numbers[0], numbers[1:]
	if isOver(g, counts) {
		return true
	}
	g.now = now
	g.lefts = nil
	for i, l := range g.several.limits {
		g.lefts = append(g.lefts, window.SlidingLeft(counts[2*i], counts[2*i+1], l.Limit, g.accounts[i].Running.End*1000-now, l.Length*1000))
	}
	units := admit(g)
	for i, a := range g.accounts {
		noteAnswer(a.Running, counts[2*i]+units, g.settled[2*i])
		noteAnswer(a.Before, counts[2*i+1], g.settled[2*i+1])
		g.several.tables[i].outageSettled += g.settled[2*i] + g.settled[2*i+1]
	}
	return settle(g)
}

func noteBucket(g *group, numbers []int64) bool {
	if len(numbers) != 1+2*len(g.accounts) {
		return false
	}
	g.now = numbers[0]
	g.lefts = nil
	for i, l := range g.several.limits {
		g.lefts = append(g.lefts, window.BucketLeft(numbers[1+2*i], l.Burst, l.Length*1000))
	}
	units := admit(g)
	for i, a := range g.accounts {
		window.BucketAnswered(a.Entry, g.several.limits[i], numbers[1+2*i], numbers[2+2*i], units)
	}
	return settle(g)
}

func noteLog(g *group, numbers []int64) bool {
	if len(numbers) != 1+3*len(g.accounts) {
		return false
	}
	g.now = numbers[0]
	g.lefts = nil
	for i, l := range g.several.limits {
		g.lefts = append(g.lefts, l.Limit-numbers[1+3*i])
	}
	units := admit(g)
	// A store that lost what it had admits too much: what passed here counts all the same.
	for i, a := range g.accounts {
		l := g.several.limits[i]
		if left := l.Limit - window.LogKnown(a.Entry.Log, g.knew[i], g.now, l.Length*1000, numbers[1+3*i]); left < g.lefts[i] {
			g.lefts[i] = left
		}
	}
	g.admitted = window.Admitted(g.lefts, g.requests, g.several.cost)
	for i, a := range g.accounts {
		answer := &window.LogAnswer{Now: g.now, Count: numbers[1+3*i], Free: numbers[2+3*i], Newest: numbers[3+3*i]}
		alone := window.LogAlone(a.Entry.Log)
		window.LogAnswered(a.Entry, g.several.limits[i], answer, g.several.cost, units, g.name, g.told[i])
		g.several.tables[i].outageSettled += alone - window.LogAlone(a.Entry.Log)
	}
	return settle(g)
}

// readNumbers reads what a script answers, or nil if that is no line of numbers.
func readNumbers(line string) []int64 {
	var numbers []int64
	for _, word := range strings.Split(line, " ") {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil || n > maxAnswer || n < window.FixedOver {
			return nil
		}
		numbers = append(numbers, n)
	}
	return numbers
}

// loseGroup notes that a call for a group was sent and got no answer. Who calls it holds
// the ledger's mutex.
func loseGroup(g *group) {
	if g.settled == nil {
		return
	}
	for i, f := range countsOf(g) {
		window.FixedLost(f, g.settled[i])
	}
	g.settled = nil
}

// noteGroupRefusal finds the first refusal, unless there was one before.
func noteGroupRefusal(b *batch, groups []*group, refusals []string) {
	if b.refusal != "" || len(groups) == 0 {
		return
	}
	b.prefix = groups[0].several.tables[0].head
	for i, refusal := range refusals {
		if refusal != "" {
			b.refusal = refusal
			b.prefix = groups[i].several.tables[0].head
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
	lefts := make([]int64, len(g.lefts))
	for i, left := range g.lefts {
		lefts[i] = left - earlier*g.several.cost
	}
	d.Way = Shared
	window.Judge(lefts, g.resets, g.waits, g.several.cost, d)
}
