package window

import (
	"math/rand"
	"strconv"
	"testing"
)

// A model is a whole site in small: gateways with queues as limiter has them, a store
// that runs FixedScript, and every failure between them, in random order that a seed
// repeats. An exact log of what was let pass is the judge. Two things are demanded at
// every step.
//
// The store's count is never above the number of requests that it carried out or that
// passed alone: nothing is added twice.
//
// In a window a client gets no more than its limit and, beyond it, what follows. The
// known total of a gateway is the largest count that the store has answered to it, 0 if
// it did not see the client in that window. A gateway fails when it decides a request
// alone, and until the store answers it again.
//
//   - Without a failure nothing: exactly the limit.
//   - Each gateway that fails: the limit less its known total when it first did, over
//     all failures of the window together. Nothing less is promised where a gateway
//     takes all that is left (N = 1).
//   - With fallback.limit F: at most F of it.
//   - Where N gateways share: at most its share of it at each failure, that is
//     (limit - known total) / N rounded up.
//   - Where all of the N gateways fail at once it is less, since the rest of the limit
//     can be had nowhere else. For each such failure: what was let pass before it, less
//     the mean of the known totals, and N - 1 for the rounding; or, if they are more,
//     all passes whose answer was lost, be it that of the request or that of their
//     settlement. That does not hold where some gateways fail and others go on.
//   - Each loss of the store's data: the count that was lost, as far as it was within
//     the limit, less the smallest known total among the gateways. It is the difference
//     between the largest and the smallest of them, and what was in flight.
type model struct {
	t      *testing.T
	random *rand.Rand
	limit  int64
	share  modelShare
	modes  modelModes

	now      int64
	gateways []*modelGateway
	counts   map[modelKey]int64 // the store's
	snapshot map[modelKey]int64 // what a replica has of them
	late     []*modelSlot       // calls that are carried out after they were given up
	logs     map[modelKey]*modelLog
}

// modelShare says how much a gateway lets pass alone, as FixedAlone has it.
type modelShare struct {
	own, gateways int64
}

// modelModes says what happens in a run.
type modelModes struct {
	together  bool // outages cut off all gateways at once, and each pushes when it is over
	apart     bool // outages cut off single gateways
	breaks    bool // connections break over a batch
	loses     bool // the store loses its data, or some of it
	late      bool // a call that was given up may be carried out later
	leavesOut bool // pushes are left out
}

// modelKey names the count of one client in one window.
type modelKey struct {
	client string
	id     int64
}

type modelGateway struct {
	counts *FixedCounts
	lag    int64 // of its clock, in seconds
	lines  []*modelLine
	away   bool
	alone  []*modelRequest // that got no answer
}

// modelLine is a connection to the store, and the queue in front of it. A gateway has
// more than one where its middlewares differ in how they log in, or for how long they
// wait.
type modelLine struct {
	open   *modelBatch // that requests join, or nil
	flight *modelBatch // that was written, or nil
}

type modelBatch struct {
	slots []*modelSlot
	done  int // so many of the calls were carried out
}

type modelSlot struct {
	key      modelKey
	count    *FixedCount
	requests []*modelRequest
	settled  int64
	n, known int64
	answer   int64
	gateway  int
	answers  int // that its gateway had got for the count when it was carried out
}

type modelRequest struct {
	client string
	asked  bool       // the store was told of it
	done   bool       // and carried it out
	slot   *modelSlot // in which it was last
}

// modelLog is what the judge knows of one client in one window.
type modelLog struct {
	passed  int64 // let pass, altogether
	decided int64 // let pass or not
	counted int64 // requests that were carried out by the store, or passed alone, or both
	// doubled of them may be counted twice: an answer came that has them in its count,
	// and then it became known that their own was lost.
	doubled int64
	failed  bool // there was a failure in this window
	late    bool // and a call that was carried out late

	shares int64 // granted to gateways at the beginning of failures
	lost   int64 // passes whose answer was lost
	lacks  int64 // sums the bounds for losses of the store's data
	all    int64 // the bound on passed for failures that cut off all gateways

	gateways []modelView
}

// modelView is what the judge knows of one gateway in it.
type modelView struct {
	first   int64 // its known total when it first decided alone, -1 if it did not yet
	alone   int64 // what passed alone there
	answers int   // that it got
	at      int   // of them, when the failure under way began; -1: there was none
	granted int64 // the part that it could take in that failure, where costs differ
}

func (m *model) log(key modelKey) *modelLog {
	l := m.logs[key]
	if l == nil {
		l = &modelLog{gateways: make([]modelView, len(m.gateways))}
		for g := range l.gateways {
			l.gateways[g].first, l.gateways[g].at = -1, -1
		}
		m.logs[key] = l
	}
	return l
}

const modelLength = 100

func (m *model) keyAt(client string, unix int64) modelKey {
	id, _ := FixedAt(unix, modelLength)
	return modelKey{client, id}
}

// extra returns the bound on what a client gets beyond its limit.
func (m *model) extra(l *modelLog) int64 {
	if !l.failed {
		return 0
	}
	bound := int64(0)
	for _, v := range l.gateways {
		if v.first < 0 || v.first > m.limit {
			continue
		}
		own := m.limit - v.first
		if m.share.own > 0 && m.share.own < own {
			own = m.share.own
		}
		bound += own
	}
	if m.share.own == 0 && l.shares < bound {
		bound = l.shares
	}
	if m.modes.together {
		all := l.all - m.limit
		if l.lost > all {
			all = l.lost
		}
		if all < bound {
			bound = all
		}
	}
	return bound + l.lacks
}

// pass notes in the log that a request was let pass.
func (m *model) pass(key modelKey) {
	l := m.log(key)
	l.passed++
	if l.passed-m.limit > m.extra(l) && l.passed > m.limit {
		m.t.Fatalf("at %d a client got %d of %d, at most %d beyond it: %+v", m.now, l.passed, m.limit, m.extra(l), *l)
	}
}

// arrive makes a request, as limiter's Take does.
func (m *model) arrive(g int, r *modelRequest, unix int64) {
	gw := m.gateways[g]
	if gw.away {
		m.decideAlone(g, r)
		return
	}
	f := FixedFind(gw.counts, r.client, unix)
	key := m.keyAt(r.client, unix)
	if f.Known >= m.limit {
		m.log(key).decided++
		return
	}
	line := gw.lines[m.random.Intn(len(gw.lines))]
	if line.open == nil {
		line.open = &modelBatch{}
	}
	for _, s := range line.open.slots {
		// Where queues are several, a batch may hold two slots of one count.
		if s.count == f && (len(gw.lines) == 1 || m.random.Intn(2) == 0) {
			s.requests = append(s.requests, r)
			r.slot = s
			return
		}
	}
	r.slot = &modelSlot{gateway: g, key: key, count: f, requests: []*modelRequest{r}}
	line.open.slots = append(line.open.slots, r.slot)
}

// write sends the batch that is open, or one of a push.
func (m *model) write(line *modelLine, b *modelBatch) {
	for _, s := range b.slots {
		s.settled = FixedSettle(s.count)
		s.n = int64(len(s.requests)) + s.settled
		s.known = s.count.Known - s.count.Unsettled
	}
	line.flight = b
}

// carryOut runs the next call of a batch in the store.
func (m *model) carryOut(b *modelBatch) {
	m.run(b.slots[b.done])
	b.done++
}

// run is FixedScript, and the judge of the store's count.
func (m *model) run(s *modelSlot) {
	if (s.key.id+1)*modelLength <= m.now {
		s.answer = FixedOver
		return
	}
	count := m.counts[s.key] + s.n
	if count-s.n < s.known {
		count = s.known + s.n
	}
	m.counts[s.key] = count
	s.answer = count
	l := m.log(s.key)
	s.answers = l.gateways[s.gateway].answers
	for _, r := range s.requests {
		r.done = true
		l.counted++
	}
	if count > l.counted+l.doubled && !l.late {
		m.t.Fatalf("at %d the store counts %d of %d requests: %+v", m.now, count, l.counted, *l)
	}
}

// answer hands the answers of a batch over, but for those of the last lost calls.
func (m *model) answer(g int, line *modelLine, lost int) {
	gw := m.gateways[g]
	b := line.flight
	line.flight = nil
	var over, given []*modelRequest
	for i, s := range b.slots {
		l := m.log(s.key)
		if i >= len(b.slots)-lost {
			FixedLost(s.count, s.settled)
			l.failed = true
			l.lost += s.settled
			if i < b.done && s.answers != l.gateways[g].answers {
				l.doubled += s.settled
			}
			for _, r := range s.requests {
				r.asked = true
			}
			given = append(given, s.requests...)
			continue
		}
		if s.answer == FixedOver {
			over = append(over, s.requests...)
			continue
		}
		FixedAnswered(s.count, s.answer, s.settled)
		l.gateways[g].answers++
		for place := range s.requests {
			l.decided++
			if s.answer-int64(len(s.requests))+int64(place)+1 <= m.limit {
				m.pass(s.key)
			}
		}
	}
	gw.alone = append(gw.alone, given...)
	for _, r := range over {
		at := (r.slot.key.id + 1) * modelLength
		if at < m.now-gw.lag {
			at = m.now - gw.lag
		}
		m.arrive(g, r, at)
	}
}

// giveUp ends the batch that is under way, at any point of it.
func (m *model) giveUp(g int, line *modelLine) {
	b := line.flight
	if b == nil {
		return
	}
	for b.done < len(b.slots) && m.random.Intn(3) > 0 {
		m.carryOut(b)
	}
	if m.modes.late && m.random.Intn(2) == 0 {
		for _, s := range b.slots[b.done:] {
			m.log(s.key).late = true
			m.late = append(m.late, s)
		}
	}
	m.answer(g, line, len(b.slots)-m.random.Intn(b.done+1))
}

// giveUpOpen ends the batch that is open before it is written.
func (m *model) giveUpOpen(g int, line *modelLine) {
	if line.open == nil {
		return
	}
	for _, s := range line.open.slots {
		m.log(s.key).failed = true
		m.gateways[g].alone = append(m.gateways[g].alone, s.requests...)
	}
	line.open = nil
}

// decideAlone decides a request without the store.
func (m *model) decideAlone(g int, r *modelRequest) {
	gw := m.gateways[g]
	now := m.now - gw.lag
	f := FixedFind(gw.counts, r.client, now)
	key := m.keyAt(r.client, now)
	l := m.log(key)
	v := &l.gateways[g]
	l.failed = true
	total := f.Known - f.Lost - f.Unsettled
	part := m.part(f)
	if v.first < 0 {
		v.first = total
	}
	if v.at != v.answers {
		v.at = v.answers
		if part > f.Lost+f.Unsettled {
			l.shares += part - f.Lost - f.Unsettled
		}
	}
	l.decided++
	if !alone(f, now, m.limit, m.share.own, m.share.gateways, r.asked).Allowed {
		return
	}
	v.alone++
	if m.share.own == 0 && f.Lost+f.Unsettled > part || m.share.own > 0 && v.alone > m.share.own || f.Known > m.limit {
		m.t.Fatalf("at %d gateway %d of %d let one pass too many: %+v, %+v", m.now, g, len(m.gateways), *f, *v)
	}
	if !r.done || r.slot.key != key {
		l.counted++
	} else if r.slot.answers != v.answers {
		l.doubled++
	}
	if r.asked {
		l.lost++
	}
	m.pass(key)
}

// part returns the share that a gateway may take from what it last knew to be left.
func (m *model) part(f *FixedCount) int64 {
	left := m.limit - (f.Known - f.Lost - f.Unsettled)
	if left <= 0 {
		return 0
	}
	return (left + m.share.gateways - 1) / m.share.gateways
}

// push tells the store what a gateway knows, over a line that is free.
func (m *model) push(g int, line *modelLine) {
	gw := m.gateways[g]
	for next := 0; next >= 0; {
		var part []*FixedCount
		part, next = FixedPart(gw.counts, m.now-gw.lag, 2, next)
		b := &modelBatch{}
		for _, f := range part {
			if f.Known > 0 {
				b.slots = append(b.slots, &modelSlot{gateway: g, key: m.keyAt(FixedClient(f), f.End-1), count: f})
			}
		}
		m.write(line, b)
		if m.modes.breaks && m.random.Intn(8) == 0 {
			m.giveUp(g, line)
			continue
		}
		for b.done < len(b.slots) {
			m.carryOut(b)
		}
		m.answer(g, line, 0)
	}
}

// known returns the known total that a gateway's next call for a count carries, or one
// under way.
func (m *model) known(gw *modelGateway, key modelKey) int64 {
	known := int64(0)
	for _, w := range []*fixedWindow{gw.counts.current, gw.counts.previous} {
		if f := w.counts[key.client]; f != nil && w.id == key.id {
			known = f.Known - f.Unsettled
		}
	}
	for _, line := range gw.lines {
		if line.flight == nil {
			continue
		}
		for _, s := range line.flight.slots[line.flight.done:] {
			if s.key == key && s.known < known {
				known = s.known
			}
		}
	}
	return known
}

// lose replaces the store's data by what a replica has of it, or by nothing.
func (m *model) lose() {
	replica := m.snapshot
	if m.random.Intn(2) == 0 {
		replica = nil
	}
	for key, count := range m.counts {
		if (key.id+1)*modelLength <= m.now {
			delete(m.counts, key)
			continue
		}
		from := m.known(m.gateways[0], key)
		for _, gw := range m.gateways[1:] {
			if known := m.known(gw, key); known < from {
				from = known
			}
		}
		for _, s := range m.late {
			if s.key == key && s.known < from {
				from = s.known
			}
		}
		if replica[key] > from {
			from = replica[key]
		}
		if count > m.limit {
			count = m.limit
		}
		l := m.log(key)
		l.failed = true
		if count > from {
			l.lacks += count - from
		}
		m.counts[key] = replica[key]
	}
}

// outage cuts all gateways off at once, for a number of requests, and lets each push
// when it is over.
func (m *model) outage() {
	for g, gw := range m.gateways {
		for _, line := range gw.lines {
			m.giveUp(g, line)
			m.giveUpOpen(g, line)
		}
		gw.away = true
	}
	for _, client := range modelClients {
		key := m.keyAt(client, m.now)
		l := m.log(key)
		l.failed = true
		all := l.passed
		for _, gw := range m.gateways {
			f := FixedFind(gw.counts, client, m.now)
			all += m.part(f)
		}
		if all > l.all {
			l.all = all
		}
	}
	window, _ := FixedAt(m.now, modelLength)
	for i := m.random.Intn(100); i > 0; i-- {
		if m.random.Intn(40) == 0 && (m.now+1)/modelLength == window {
			m.now++
		}
		m.request()
	}
	for g, gw := range m.gateways {
		for len(gw.alone) > 0 {
			m.next(g)
		}
	}
	// Each has told all before the first request.
	for g, gw := range m.gateways {
		m.push(g, gw.lines[0])
	}
	for _, gw := range m.gateways {
		gw.away = false
	}
}

var modelClients = []string{"a", "b", "c"}

func (m *model) request() {
	g := m.random.Intn(len(m.gateways))
	m.arrive(g, &modelRequest{client: modelClients[m.random.Intn(len(modelClients))]}, m.now-m.gateways[g].lag)
}

// next decides one of the requests of a gateway that got no answer.
func (m *model) next(g int) {
	gw := m.gateways[g]
	if len(gw.alone) == 0 {
		return
	}
	i := m.random.Intn(len(gw.alone))
	r := gw.alone[i]
	gw.alone = append(gw.alone[:i:i], gw.alone[i+1:]...)
	m.decideAlone(g, r)
}

// step lets one thing happen.
func (m *model) step() {
	g := m.random.Intn(len(m.gateways))
	gw := m.gateways[g]
	line := gw.lines[m.random.Intn(len(gw.lines))]
	switch dice := m.random.Intn(200); {
	case dice < 90:
		m.request()
	case dice < 120:
		if line.flight == nil && line.open != nil {
			m.write(line, line.open)
			line.open = nil
		}
	case dice < 150:
		if line.flight != nil && line.flight.done < len(line.flight.slots) {
			m.carryOut(line.flight)
		}
	case dice < 180:
		if line.flight != nil && line.flight.done == len(line.flight.slots) {
			m.answer(g, line, 0)
		}
	case dice < 188:
		m.next(g)
	case dice < 190:
		m.now++
	case dice == 190:
		m.now += int64(m.random.Intn(20))
	case dice == 191:
		m.snapshot = map[modelKey]int64{}
		for key, count := range m.counts {
			m.snapshot[key] = count
		}
	case dice == 192 && m.modes.loses:
		if m.random.Intn(3) == 0 {
			m.lose()
		}
	case dice == 193 && len(m.late) > 0:
		m.run(m.late[0])
		m.late = m.late[1:]
	case dice < 196 && m.modes.breaks && !m.modes.together:
		m.giveUp(g, line)
	case dice == 196 && m.modes.breaks && !m.modes.together:
		m.giveUpOpen(g, line)
	case dice == 197 && m.modes.together:
		if m.random.Intn(3) == 0 {
			m.outage()
		}
	case dice == 198 && m.modes.apart:
		m.giveUp(g, line)
		gw.away = true
	case dice == 199 && gw.away:
		gw.away = false
		if line.flight == nil && !(m.modes.leavesOut && m.random.Intn(2) == 0) {
			m.push(g, line)
		}
	}
}

// quiet lets all that is under way come to its end.
func (m *model) quiet() {
	busy := true
	for busy {
		busy = false
		for g, gw := range m.gateways {
			gw.away = false
			m.next(g)
			busy = busy || len(gw.alone) > 0
			for _, line := range gw.lines {
				if line.flight == nil && line.open != nil {
					m.write(line, line.open)
					line.open = nil
				}
				if line.flight != nil {
					busy = true
					for line.flight.done < len(line.flight.slots) {
						m.carryOut(line.flight)
					}
					m.answer(g, line, 0)
				}
			}
		}
	}
}

func TestModelOfFailures(t *testing.T) {
	all := func(n int64) modelShare { return modelShare{0, n} }
	one := func(int64) modelShare { return modelShare{0, 1} }
	some := func(n int64) modelShare { return modelShare{4, n} }
	chaos := modelModes{apart: true, breaks: true, loses: true, leavesOut: true}
	later := chaos
	later.late = true
	for _, c := range []struct {
		name  string
		modes modelModes
		share func(gateways int64) modelShare
	}{
		{"no failure", modelModes{}, all},
		{"outages of all, N gateways", modelModes{together: true}, all},
		{"outages of all, lost answers, N gateways", modelModes{together: true, breaks: true}, all},
		{"outages of some, N gateways", modelModes{apart: true}, all},
		{"outages of some, lost answers, N gateways", modelModes{apart: true, breaks: true, leavesOut: true}, all},
		{"outages of some, lost answers, N = 1", modelModes{apart: true, breaks: true, leavesOut: true}, one},
		{"outages of some, lost answers, fallback.limit 4", modelModes{apart: true, breaks: true, leavesOut: true}, some},
		{"losses of data", modelModes{loses: true}, all},
		{"everything, N gateways", chaos, all},
		{"everything, N = 1", chaos, one},
		{"everything, fallback.limit 4", chaos, some},
		{"everything, calls carried out late, N gateways", later, all},
	} {
		var worst, bound, windows, near, least int64
		least = 1 << 60
		for seed := int64(1); seed <= 60; seed++ {
			random := rand.New(rand.NewSource(seed))
			gateways := 2 + random.Intn(3)
			m := &model{t: t, random: random, limit: 10 + int64(random.Intn(40)), share: c.share(int64(gateways)), modes: c.modes,
				now: 1000 * modelLength, counts: map[modelKey]int64{}, logs: map[modelKey]*modelLog{}}
			for g := 0; g < gateways; g++ {
				gw := &modelGateway{counts: NewFixedCounts(modelLength, 1000)}
				if !c.modes.together {
					gw.lag = int64(random.Intn(3))
				}
				for i := int64(0); i <= seed%2; i++ {
					gw.lines = append(gw.lines, &modelLine{})
				}
				m.gateways = append(m.gateways, gw)
			}
			for i := 0; i < 10000; i++ {
				m.step()
			}
			m.quiet()
			for key, l := range m.logs {
				if !l.failed {
					expected := l.decided
					if expected > m.limit {
						expected = m.limit
					}
					if l.passed != expected {
						t.Fatalf("%s, seed %d: without a failure a client got %d of %d in window %d, of a limit of %d",
							c.name, seed, l.passed, l.decided, key.id, m.limit)
					}
				}
				windows++
				extra, most := l.passed-m.limit, m.extra(l)
				if extra > worst {
					worst, bound = extra, most
				}
				if extra > 0 && most-extra < least {
					least, near = most-extra, extra
				}
			}
		}
		closest := ""
		if least < 1<<60 {
			closest = "; the closest: " + strconv.FormatInt(near, 10) + " of " + strconv.FormatInt(near+least, 10)
		}
		t.Logf("%s: in %d windows of clients the worst extra is %d, of at most %d%s", c.name, windows, worst, bound, closest)
		if worst < 1 && c.modes != (modelModes{}) {
			t.Errorf("%s: nothing was put to the test", c.name)
		}
	}
}
