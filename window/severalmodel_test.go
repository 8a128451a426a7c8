package window

import (
	"math/rand"
	"strconv"
	"testing"
)

// A severalModel is what model is, for requests that count in several counts at once and
// cost more than one: what the store adds, it adds to all counts or to none. The bounds
// are those of model for each limit by itself, in units of cost.
type severalModel struct {
	t      *testing.T
	random *rand.Rand
	limits []int64 // of windows of severalLengths
	share  modelShare
	modes  modelModes

	now      int64
	gateways []*severalGateway
	counts   map[severalKey]int64 // the store's
	snapshot map[severalKey]int64 // what a replica has of them
	late     []*severalGroup      // calls that are carried out after they were given up
	logs     map[severalKey]*modelLog
	refused  int64 // by the store, though each limit had some room
}

// severalLengths are those of the windows, in seconds: their edges fall together.
var severalLengths = []int64{modelLength, 3 * modelLength, 6 * modelLength}

// severalKey names one count of a client.
type severalKey struct {
	client string
	limit  int
	id     int64
}

type severalGateway struct {
	counts []*FixedCounts // one for each limit
	lag    int64
	lines  []*severalLine
	away   bool
	alone  []*severalRequest
}

type severalLine struct {
	open   *severalBatch
	flight *severalBatch
}

type severalBatch struct {
	groups []*severalGroup
	done   int
}

// severalGroup is a call: one for requests of one cost, or one that only tells the store
// what is known of a count.
type severalGroup struct {
	gateway  int
	keys     []severalKey
	counts   []*FixedCount
	cost     int64
	requests []*severalRequest
	settled  []int64
	known    []int64
	before   []int64
	over     bool
	answers  []int // that its gateway had got for each count when it was carried out
}

type severalRequest struct {
	client string
	cost   int64
	asked  bool          // the store was told of it
	done   bool          // and counted it
	group  *severalGroup // in which it was last
}

func (m *severalModel) log(key severalKey) *modelLog {
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

func (m *severalModel) keysAt(client string, unix int64) []severalKey {
	var keys []severalKey
	for i := range m.limits {
		id, _ := FixedAt(unix, severalLengths[i])
		keys = append(keys, severalKey{client, i, id})
	}
	return keys
}

func (m *severalModel) find(g int, client string, unix int64) []*FixedCount {
	var counts []*FixedCount
	for i := range m.limits {
		counts = append(counts, FixedFind(m.gateways[g].counts[i], client, unix))
	}
	return counts
}

// dearest is what a request costs at most.
const dearest = 7

// extra returns the bound on what a client gets beyond a limit, as that of model.
func (m *severalModel) extra(l *modelLog, limit int64) int64 {
	one := &model{limit: limit, share: m.share, modes: m.modes}
	return one.extra(l)
}

// pass notes in the logs that a request was let pass.
func (m *severalModel) pass(keys []severalKey, cost int64) {
	for _, key := range keys {
		l, limit := m.log(key), m.limits[key.limit]
		l.passed += cost
		if l.passed > limit+m.extra(l, limit) {
			m.t.Fatalf("at %d a client got %d of limit %d, %d, at most %d beyond it: %+v", m.now, l.passed, key.limit, limit, m.extra(l, limit), *l)
		}
	}
}

// arrive makes a request, as limiter's TakeSeveral does.
func (m *severalModel) arrive(g int, r *severalRequest, unix int64) {
	gw := m.gateways[g]
	if gw.away {
		m.decideAlone(g, r)
		return
	}
	counts := m.find(g, r.client, unix)
	for i, f := range counts {
		if m.limits[i]-f.Known < r.cost {
			return
		}
	}
	line := gw.lines[m.random.Intn(len(gw.lines))]
	if line.open == nil {
		line.open = &severalBatch{}
	}
	for _, group := range line.open.groups {
		if group.cost == r.cost && group.counts[0] == counts[0] && group.counts[len(counts)-1] == counts[len(counts)-1] {
			group.requests = append(group.requests, r)
			r.group = group
			return
		}
	}
	r.group = &severalGroup{gateway: g, keys: m.keysAt(r.client, unix), counts: counts, cost: r.cost, requests: []*severalRequest{r}}
	line.open.groups = append(line.open.groups, r.group)
}

// write sends a batch.
func (m *severalModel) write(line *severalLine, b *severalBatch) {
	for _, group := range b.groups {
		group.settled, group.known, group.before, group.answers = nil, nil, nil, nil
		for _, f := range group.counts {
			group.settled = append(group.settled, FixedSettle(f))
			group.known = append(group.known, f.Known-f.Unsettled)
		}
	}
	line.flight = b
}

func (m *severalModel) carryOut(b *severalBatch) {
	m.run(b.groups[b.done])
	b.done++
}

// run is FixedSeveralScript, and the judge of the store's counts.
func (m *severalModel) run(group *severalGroup) {
	for _, key := range group.keys {
		if (key.id+1)*severalLengths[key.limit] <= m.now {
			group.over = true
			return
		}
	}
	var lefts []int64
	room := true
	for i, key := range group.keys {
		count := m.counts[key]
		if count < group.known[i] {
			count = group.known[i]
		}
		count += group.settled[i]
		group.before = append(group.before, count)
		lefts = append(lefts, m.limits[key.limit]-count)
		room = room && count < m.limits[key.limit]
	}
	admitted := Admitted(lefts, int64(len(group.requests)), group.cost)
	if room && admitted < int64(len(group.requests)) {
		m.refused++
	}
	for i, key := range group.keys {
		m.counts[key] = group.before[i] + admitted*group.cost
		l := m.log(key)
		group.answers = append(group.answers, l.gateways[group.gateway].answers)
		l.counted += admitted * group.cost
		if m.counts[key] > l.counted+l.doubled && !l.late {
			m.t.Fatalf("at %d the store counts %d of %d in limit %d: %+v", m.now, m.counts[key], l.counted, key.limit, *l)
		}
	}
	for i := int64(0); i < admitted; i++ {
		group.requests[i].done = true
	}
}

// answer hands the answers of a batch over, but for those of the last lost calls.
func (m *severalModel) answer(g int, line *severalLine, lost int) {
	gw := m.gateways[g]
	b := line.flight
	line.flight = nil
	var over, given []*severalRequest
	for i, group := range b.groups {
		if i >= len(b.groups)-lost {
			for j, f := range group.counts {
				l := m.log(group.keys[j])
				FixedLost(f, group.settled[j])
				l.failed = true
				l.lost += group.settled[j]
				if i < b.done && !group.over && group.answers[j] != l.gateways[g].answers {
					l.doubled += group.settled[j]
				}
			}
			for _, r := range group.requests {
				r.asked = true
			}
			given = append(given, group.requests...)
			continue
		}
		if group.over {
			for j, f := range group.counts {
				FixedUnsent(f, group.settled[j])
			}
			over = append(over, group.requests...)
			continue
		}
		var lefts []int64
		for j, key := range group.keys {
			lefts = append(lefts, m.limits[key.limit]-group.before[j])
		}
		admitted := Admitted(lefts, int64(len(group.requests)), group.cost)
		for j, f := range group.counts {
			FixedAnswered(f, group.before[j]+admitted*group.cost, group.settled[j])
			m.log(group.keys[j]).gateways[g].answers++
		}
		for place := range group.requests {
			if int64(place) < admitted {
				m.pass(group.keys, group.cost)
			}
		}
	}
	gw.alone = append(gw.alone, given...)
	for _, r := range over {
		at := m.now - gw.lag
		for i, key := range r.group.keys {
			if end := (key.id + 1) * severalLengths[i]; end <= m.now && end > at {
				at = end
			}
		}
		m.arrive(g, r, at)
	}
}

// giveUp ends the batch that is under way, at any point of it.
func (m *severalModel) giveUp(g int, line *severalLine) {
	b := line.flight
	if b == nil {
		return
	}
	for b.done < len(b.groups) && m.random.Intn(3) > 0 {
		m.carryOut(b)
	}
	if m.modes.late && m.random.Intn(2) == 0 {
		for _, group := range b.groups[b.done:] {
			for _, key := range group.keys {
				m.log(key).late = true
			}
			m.late = append(m.late, group)
		}
	}
	m.answer(g, line, len(b.groups)-m.random.Intn(b.done+1))
}

// giveUpOpen ends the batch that is open before it is written.
func (m *severalModel) giveUpOpen(g int, line *severalLine) {
	if line.open == nil {
		return
	}
	for _, group := range line.open.groups {
		for _, key := range group.keys {
			m.log(key).failed = true
		}
		m.gateways[g].alone = append(m.gateways[g].alone, group.requests...)
	}
	line.open = nil
}

// decideAlone decides a request without the store.
func (m *severalModel) decideAlone(g int, r *severalRequest) {
	now := m.now - m.gateways[g].lag
	counts, keys := m.find(g, r.client, now), m.keysAt(r.client, now)
	parts := make([]int64, len(keys))
	for i, f := range counts {
		l := m.log(keys[i])
		v := &l.gateways[g]
		l.failed = true
		parts[i] = m.part(f, i, r.cost)
		if v.first < 0 {
			v.first = f.Known - f.Lost - f.Unsettled
		}
		if v.at != v.answers {
			v.at = v.answers
			v.granted = f.Lost + f.Unsettled
		}
		if parts[i] > v.granted {
			l.shares += parts[i] - v.granted
			v.granted = parts[i]
		}
	}
	d := Decision{}
	TakeAlone(fixedOf(m.limits), accountsOf(counts), &Share{m.share.own, m.share.gateways}, r.cost, now*1000, r.asked, "", 1, &d)
	if !d.Allowed {
		return
	}
	for i, f := range counts {
		l := m.log(keys[i])
		v := &l.gateways[g]
		v.alone += r.cost
		if m.share.own == 0 && f.Lost+f.Unsettled > parts[i] || m.share.own > 0 && v.alone > m.share.own || f.Known > m.limits[i] {
			m.t.Fatalf("at %d gateway %d of %d let one pass too many at a cost of %d: limit %d, part %d, %+v, %+v", m.now, g, len(m.gateways), r.cost, m.limits[i], parts[i], *f, *v)
		}
		if !r.done || r.group.keys[i] != keys[i] {
			l.counted += r.cost
		} else if r.group.answers[i] != v.answers {
			l.doubled += r.cost
		}
		if r.asked {
			l.lost += r.cost
		}
	}
	m.pass(keys, r.cost)
}

// part returns the share that a gateway may take of what it last knew to be left, in
// requests that cost so much.
func (m *severalModel) part(f *FixedCount, limit int, cost int64) int64 {
	if m.share.gateways == 1 {
		cost = 1 // nothing is shared
	}
	one := &model{limit: (m.limits[limit] - f.Known + f.Lost + f.Unsettled) / cost, share: m.share}
	return one.part(&FixedCount{}) * cost
}

// push tells the store what a gateway knows, each count by itself.
func (m *severalModel) push(g int, line *severalLine) {
	gw := m.gateways[g]
	for i, table := range gw.counts {
		for next := 0; next >= 0; {
			var part []*FixedCount
			part, next = FixedPart(table, m.now-gw.lag, 2, next)
			b := &severalBatch{}
			for _, f := range part {
				if f.Known > 0 {
					key := severalKey{FixedClient(f), i, f.End/severalLengths[i] - 1}
					b.groups = append(b.groups, &severalGroup{gateway: g, keys: []severalKey{key}, counts: []*FixedCount{f}, cost: 1})
				}
			}
			m.write(line, b)
			if m.modes.breaks && m.random.Intn(8) == 0 {
				m.giveUp(g, line)
				continue
			}
			for b.done < len(b.groups) {
				m.carryOut(b)
			}
			m.answer(g, line, 0)
		}
	}
}

// known returns the known total that a gateway's next call for a count carries, or one
// under way.
func (m *severalModel) known(gw *severalGateway, key severalKey) int64 {
	known := int64(0)
	table := gw.counts[key.limit]
	for _, w := range []*fixedWindow{table.current, table.previous} {
		if f := w.counts[key.client]; f != nil && w.id == key.id {
			known = f.Known - f.Unsettled
		}
	}
	for _, line := range gw.lines {
		if line.flight != nil {
			known = lowest(known, key, line.flight.groups[line.flight.done:])
		}
	}
	return known
}

// lowest returns the lowest of a known total and those that calls carry.
func lowest(known int64, key severalKey, groups []*severalGroup) int64 {
	for _, group := range groups {
		for i, k := range group.keys {
			if k == key && group.known[i] < known {
				known = group.known[i]
			}
		}
	}
	return known
}

// lose replaces the store's data by what a replica has of it, or by nothing.
func (m *severalModel) lose() {
	replica := m.snapshot
	if m.random.Intn(2) == 0 {
		replica = nil
	}
	for key, count := range m.counts {
		if (key.id+1)*severalLengths[key.limit] <= m.now {
			delete(m.counts, key)
			continue
		}
		from := m.known(m.gateways[0], key)
		for _, gw := range m.gateways[1:] {
			if known := m.known(gw, key); known < from {
				from = known
			}
		}
		from = lowest(from, key, m.late)
		if replica[key] > from {
			from = replica[key]
		}
		if count > m.limits[key.limit] {
			count = m.limits[key.limit]
		}
		l := m.log(key)
		l.failed = true
		if count > from {
			l.lacks += count - from
		}
		m.counts[key] = replica[key]
	}
}

// outage cuts all gateways off at once, for a number of requests, and lets each push when
// it is over.
func (m *severalModel) outage() {
	for g, gw := range m.gateways {
		for _, line := range gw.lines {
			m.giveUp(g, line)
			m.giveUpOpen(g, line)
		}
		gw.away = true
	}
	for _, client := range modelClients {
		for i, key := range m.keysAt(client, m.now) {
			l := m.log(key)
			l.failed = true
			all := l.passed
			for _, gw := range m.gateways {
				// A part is rounded up to whole requests.
				all += m.part(FixedFind(gw.counts[i], client, m.now), i, 1) + dearest - 1
			}
			if all > l.all {
				l.all = all
			}
		}
	}
	window, _ := FixedAt(m.now, modelLength)
	for i := m.random.Intn(60); i > 0; i-- {
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
	for g, gw := range m.gateways {
		m.push(g, gw.lines[0])
	}
	for _, gw := range m.gateways {
		gw.away = false
	}
}

func (m *severalModel) request() {
	g := m.random.Intn(len(m.gateways))
	cost := []int64{1, 2, 5, dearest}[m.random.Intn(4)]
	m.arrive(g, &severalRequest{client: modelClients[m.random.Intn(len(modelClients))], cost: cost}, m.now-m.gateways[g].lag)
}

// next decides one of the requests of a gateway that got no answer.
func (m *severalModel) next(g int) {
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
func (m *severalModel) step() {
	g := m.random.Intn(len(m.gateways))
	gw := m.gateways[g]
	line := gw.lines[m.random.Intn(len(gw.lines))]
	switch dice := m.random.Intn(200); {
	case dice < 70:
		m.request()
	case dice < 110:
		if line.flight == nil && line.open != nil {
			m.write(line, line.open)
			line.open = nil
		}
	case dice < 145:
		if line.flight != nil && line.flight.done < len(line.flight.groups) {
			m.carryOut(line.flight)
		}
	case dice < 180:
		if line.flight != nil && line.flight.done == len(line.flight.groups) {
			m.answer(g, line, 0)
		}
	case dice < 188:
		m.next(g)
	case dice < 190:
		m.now++
	case dice == 190:
		m.now += int64(m.random.Intn(20))
	case dice == 191:
		m.snapshot = map[severalKey]int64{}
		for key, count := range m.counts {
			m.snapshot[key] = count
		}
	case dice == 192 && m.modes.loses:
		if m.random.Intn(3) == 0 {
			m.lose()
		}
	case dice == 193 && len(m.late) > 0:
		group := m.late[0]
		group.before, group.answers = nil, nil
		m.run(group)
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
func (m *severalModel) quiet() {
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
					for line.flight.done < len(line.flight.groups) {
						m.carryOut(line.flight)
					}
					m.answer(g, line, 0)
				}
			}
		}
	}
}

func TestModelOfFailuresWithSeveralLimitsAndCosts(t *testing.T) {
	all := func(n int64) modelShare { return modelShare{0, n} }
	one := func(int64) modelShare { return modelShare{0, 1} }
	some := func(n int64) modelShare { return modelShare{9, n} }
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
		{"outages of some, lost answers, N gateways", modelModes{apart: true, breaks: true, leavesOut: true}, all},
		{"outages of some, lost answers, N = 1", modelModes{apart: true, breaks: true, leavesOut: true}, one},
		{"outages of some, lost answers, fallback.limit 9", modelModes{apart: true, breaks: true, leavesOut: true}, some},
		{"losses of data", modelModes{loses: true}, all},
		{"everything, N gateways", chaos, all},
		{"everything, N = 1", chaos, one},
		{"everything, fallback.limit 9", chaos, some},
		{"everything, calls carried out late, N gateways", later, all},
	} {
		var windows, beyond, refused, worst int64
		for seed := int64(1); seed <= 40; seed++ {
			random := rand.New(rand.NewSource(seed))
			gateways := 2 + random.Intn(3)
			m := &severalModel{t: t, random: random, share: c.share(int64(gateways)), modes: c.modes,
				now: 1000 * modelLength * 6, counts: map[severalKey]int64{}, logs: map[severalKey]*modelLog{}}
			for i := 0; i < 1+int(seed%3); i++ {
				m.limits = append(m.limits, 20+int64(i)*15+int64(random.Intn(40)))
			}
			for g := 0; g < gateways; g++ {
				gw := &severalGateway{}
				for i := range m.limits {
					gw.counts = append(gw.counts, NewFixedCounts(severalLengths[i], 1000))
				}
				if !c.modes.together {
					gw.lag = int64(random.Intn(3))
				}
				for i := int64(0); i <= seed%2; i++ {
					gw.lines = append(gw.lines, &severalLine{})
				}
				m.gateways = append(m.gateways, gw)
			}
			for i := 0; i < 8000; i++ {
				m.step()
			}
			m.quiet()
			refused += m.refused
			for _, gw := range m.gateways {
				for _, table := range gw.counts {
					for _, f := range append(table.current.order, table.previous.order...) {
						if f.Settling != 0 {
							t.Fatalf("%s, seed %d: nothing is under way, and of a count %d are being settled: %+v", c.name, seed, f.Settling, *f)
						}
					}
				}
			}
			for key, l := range m.logs {
				// What was let pass and no more is in the store, where nothing failed.
				if got := m.counts[key]; !l.failed && !c.modes.loses && got != l.passed {
					t.Fatalf("%s, seed %d: without a failure a client got %d of limit %d, and the store counts %d", c.name, seed, l.passed, key.limit, got)
				}
				windows++
				if extra := l.passed - m.limits[key.limit]; extra > 0 {
					beyond++
					if extra > worst {
						worst = extra
					}
				}
			}
		}
		t.Logf("%s: in %s of %d counts of clients more than the limit passed, at most %d more", c.name, strconv.FormatInt(beyond, 10), windows, worst)
		if beyond == 0 && c.modes != (modelModes{}) || refused == 0 {
			t.Errorf("%s: nothing was put to the test", c.name)
		}
	}
}
