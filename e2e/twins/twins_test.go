// Package twins_test demands that the scripts in a store, asked by several gateways which
// know what they were answered, decide as their twins in memory do.
package twins_test

import (
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/traefik/yaegi/interp"
	"github.com/traefik/yaegi/stdlib"

	"github.com/gatequota/gatequota/e2e/twins/judge"
	"github.com/gatequota/gatequota/window"
)

type newJudge func(algorithm int, limits, lengths, bursts []int64) func(cost, now, at int64) []int64

var interpreted = sync.OnceValues(func() (newJudge, error) {
	module, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	goPath, err := os.MkdirTemp("", "twins-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(goPath) }()
	link := filepath.Join(goPath, "src", "github.com", "gatequota", "gatequota")
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return nil, err
	}
	if err := os.Symlink(module, link); err != nil {
		return nil, err
	}
	i := interp.New(interp.Options{GoPath: goPath, Stdout: io.Discard, Stderr: io.Discard})
	if err := i.Use(stdlib.Symbols); err != nil {
		return nil, err
	}
	if _, err := i.Eval(`import "github.com/gatequota/gatequota/e2e/twins/judge"`); err != nil {
		return nil, err
	}
	symbol, err := i.Eval("judge.New")
	if err != nil {
		return nil, err
	}
	return symbol.Interface().(func(int, []int64, []int64, []int64) func(int64, int64, int64) []int64), nil
})

const (
	steps = 150
	year  = 366 * 24 * 3600
)

func TestScriptsDecideAsTheirTwins(t *testing.T) {
	inInterpreter, err := interpreted()
	if err != nil {
		t.Fatal(err)
	}
	for name, start := range servers {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			for algorithm := range scripts {
				t.Run(names[algorithm], func(t *testing.T) {
					all := &tally{}
					for seed := int64(1); seed <= 30; seed++ {
						h := newHistory(t, s, algorithm, seed)
						h.judges = []func(cost, now, at int64) []int64{
							judge.New(algorithm, h.numbers[0], h.numbers[1], h.numbers[2]),
							inInterpreter(algorithm, h.numbers[0], h.numbers[1], h.numbers[2]),
						}
						for h.steps = 0; h.steps < steps; h.steps++ {
							h.step()
						}
						all.add(&h.tally)
					}
					t.Logf("%+v", *all)
					if all.Passed < 50 || all.Refused < 200 || s.clock != own && (all.Known < 50 || all.Spoilt < 10) {
						t.Errorf("nothing was put to the test: %+v", *all)
					}
				})
			}
		})
	}
}

// A tally is what happened.
type tally struct{ Passed, Refused, Known, Over, Spoilt int }

func (a *tally) add(b *tally) {
	a.Passed += b.Passed
	a.Refused += b.Refused
	a.Known += b.Known
	a.Over += b.Over
	a.Spoilt += b.Spoilt
}

// A history is what happens to one client.
type history struct {
	t        *testing.T
	seed     int64
	random   *rand.Rand
	server   *server
	limits   []*window.Limit
	numbers  [3][]int64
	gateways []*gateway
	judges   []func(cost, now, at int64) []int64
	now      int64 // unix milliseconds
	steps    int
	tally    tally
}

func newHistory(t *testing.T, s *server, algorithm int, seed int64) *history {
	h := &history{t: t, seed: seed, random: rand.New(rand.NewSource(seed)), server: s, now: 1764499230500}
	if err := s.admin.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	for i := 0; i <= h.random.Intn(3); i++ {
		l := h.limit(window.Algorithm(algorithm))
		h.limits = append(h.limits, l)
		h.numbers[0] = append(h.numbers[0], l.Limit)
		h.numbers[1] = append(h.numbers[1], l.Length)
		h.numbers[2] = append(h.numbers[2], l.Burst)
	}
	for i := 0; i <= h.random.Intn(3); i++ {
		offset := int64(0)
		if i > 0 && s.clock != own {
			offset = h.random.Int63n(401) - 200
		}
		h.gateways = append(h.gateways, newGateway(t, string(rune('a'+i)), offset, h.limits))
	}
	return h
}

func (h *history) pick(from ...int64) int64 { return from[h.random.Intn(len(from))] }

// limit is one of those that an operator may ask for, the corners more often.
func (h *history) limit(algorithm window.Algorithm) *window.Limit {
	l := &window.Limit{Algorithm: algorithm, Length: h.pick(1, 2, 7, 60, 3600, 86400, year)}
	if h.server.clock == own {
		l.Length = h.pick(1, 2)
		if algorithm == window.Fixed {
			l.Length = 86400
		}
	}
	l.Limit = h.pick(1, 2, 3, 10, 1+h.random.Int63n(40), 1+h.random.Int63n(40))
	if h.server.clock == own {
		l.Limit *= 10
	}
	if algorithm != window.Exact && h.random.Intn(6) == 0 {
		l.Limit = window.MaxCount
		if algorithm != window.Fixed {
			l.Limit = window.MaxExact / (l.Length * 1000)
		}
	}
	l.Burst = l.Limit
	if algorithm == window.Bucket && l.Limit <= 400 {
		l.Burst = h.pick(1, l.Limit, 1+h.random.Int63n(60), 3*l.Limit)
	}
	return l
}

// pass lets time pass.
func (h *history) pass() {
	if h.server.clock == own {
		if h.random.Intn(4) == 0 {
			time.Sleep(time.Duration(h.random.Intn(5)) * time.Millisecond)
		}
		h.now = time.Now().UnixMilli()
		return
	}
	l := h.limits[h.random.Intn(len(h.limits))]
	length := l.Length * 1000
	switch h.random.Intn(12) {
	case 0, 1:
		h.now += h.random.Int63n(3)
	case 2, 3, 4:
		h.now += h.random.Int63n(2*length/l.Limit + 2)
	case 5:
		h.now += h.random.Int63n(length)
	case 6: // to about an edge
		if edge := (h.now/length+1)*length + h.random.Int63n(5) - 2; edge > h.now {
			h.now = edge
		}
	case 7:
		if h.random.Intn(4) == 0 {
			h.now += length + h.random.Int63n(4*length)
		}
	}
	if h.server.mini != nil {
		h.server.mini.SetTime(time.UnixMilli(h.now))
	}
}

// cost is often small, and at times above a limit.
func (h *history) cost() int64 {
	l := h.limits[h.random.Intn(len(h.limits))]
	most := window.Capacity(l)
	return 1 + h.random.Int63n(h.pick(1, 1, 1, 3, most/2+1, most+1))
}

func (h *history) fatal(format string, args ...any) {
	h.t.Helper()
	text := []any{h.seed, h.steps, h.now}
	h.t.Fatalf("seed %d, step %d, at %d: "+format, append(text, args...)...)
}

func (h *history) step() {
	h.pass()
	if h.random.Intn(40) == 0 && h.server.clock != own && h.inOneWindow() {
		h.spoil()
	}
	g := h.gateways[h.random.Intn(len(h.gateways))]
	requests, cost := h.pick(1, 1, 1, 2, 5, 9), h.cost()
	now := h.now + g.offset
	at := now / 1000
	known := false
	if h.server.clock != own && !h.overtaken(g) {
		for i, a := range g.accounts(now, at) {
			known = known || window.Left(h.limits[i], a, h.judged(now)) < cost
		}
	}
	q := g.ask(requests, cost, now, at)
	answer, lives := h.server.run(h.t, q.call)
	numbers := numbers(h.t, answer)
	lefts, judged, over := g.hear(q, now, numbers, !known)
	for try := 0; over; try++ {
		h.tally.Over++
		if try > 0 && h.server.clock != own {
			h.fatal("the window after one that is over is over too")
		}
		for _, a := range q.accounts {
			if end := a.Running.End; end*1000 <= h.time(judged) && end*1000 > now {
				now = end * 1000
			}
		}
		at = now / 1000
		q = g.ask(requests, cost, now, at)
		answer, lives = h.server.run(h.t, q.call)
		numbers = numbersOf(h.t, answer)
		known = false
		lefts, judged, over = g.hear(q, now, numbers, true)
	}
	resets, waits := window.Waits(h.limits, q.accounts, cost, judged)
	admitted := window.Admitted(lefts, requests, cost)
	if known && admitted > 0 {
		h.fatal("gateway %s refuses by what it knows what the store admits: %v, answer %v", g.name, q.args, numbers)
	}
	for place := int64(1); place <= requests; place++ {
		earlier := min(place-1, admitted)
		var d window.Decision
		left := make([]int64, len(lefts))
		for i := range lefts {
			left[i] = lefts[i] - earlier*cost
		}
		window.Judge(left, resets, waits, cost, &d)
		h.compare(&d, q, place == requests && !known, judged, at, numbers)
	}
	if known {
		h.tally.Known++
	}
	h.tally.Passed += int(admitted)
	h.tally.Refused += int(requests - admitted)
	h.expiries(q, numbers, admitted, judged, at, lives)
}

// overtaken tells whether gateways whose clocks are ahead may have dropped from a log what
// this one rightly holds to be in the window.
func (h *history) overtaken(g *gateway) bool {
	ahead := false
	for _, other := range h.gateways {
		ahead = ahead || other.offset > g.offset
	}
	return ahead && h.server.clock == gateways && h.limits[0].Algorithm == window.Exact
}

var numbersOf = numbers

// judged is the time by which a request is judged that comes at a gateway's own.
func (h *history) judged(now int64) int64 {
	if h.server.clock == set && h.limits[0].Algorithm != window.Fixed {
		return h.now
	}
	return now
}

// time is the server's.
func (h *history) time(judged int64) int64 {
	if h.server.clock == set {
		return h.now
	}
	return judged
}

// compare demands of the judges what the store decided. What the requests of one call are
// told of times is told of them all.
func (h *history) compare(d *window.Decision, q *question, last bool, now, at int64, answer []int64) {
	h.t.Helper()
	said := []int64{0, d.Remaining, d.Reset, d.RetryAfter}
	if d.Allowed {
		said[0] = 1
	}
	for i := range h.limits {
		refused := int64(0)
		if d.Several.Refused[i] {
			refused = 1
		}
		said = append(said, d.Several.Remaining[i], d.Several.Reset[i], refused)
	}
	for i, judge := range h.judges {
		want := judge(q.cost, now, at)
		if !last {
			for _, s := range [][]int64{said, want} {
				s[2], s[3] = 0, 0
				for j := 5; j < len(s); j += 3 {
					s[j] = 0
				}
			}
			if d.Several != nil && len(h.limits) > 1 { // which of several limits binds depends on times
				said[1], want[1] = 0, 0
			}
		}
		if !reflect.DeepEqual(said, want) {
			h.fatal("%s: %d requests at %d: the store says %v, judge %d %v; keys %v, arguments %v, answer %v",
				h.describe(), q.requests, q.cost, said, i, want, q.keys, q.args, answer)
		}
	}
}

func (h *history) describe() string {
	var all []string
	for _, l := range h.limits {
		all = append(all, strings.TrimSpace(strings.Join([]string{names[l.Algorithm], itoa(l.Limit), itoa(l.Length), itoa(l.Burst)}, " ")))
	}
	return strings.Join(all, ", ")
}

// inOneWindow tells whether all clocks stand in the same windows.
func (h *history) inOneWindow() bool {
	for _, l := range h.limits {
		for _, g := range h.gateways {
			if (h.now+g.offset)/(l.Length*1000) != h.now/(l.Length*1000) {
				return false
			}
		}
	}
	return true
}

// spoil has the store lose what it knows, and each gateway tell it.
func (h *history) spoil() {
	h.tally.Spoilt++
	for _, key := range h.gateways[0].ask(0, 1, h.now, h.now/1000).keys {
		if h.random.Intn(3) > 0 {
			h.server.spoil(h.t, key, h.random.Intn(1000))
		}
	}
	// By the clock that is furthest behind: for others a bucket may be full by now.
	now := h.now
	for _, g := range h.gateways {
		now = min(now, h.now+g.offset)
	}
	for _, g := range h.gateways {
		q := g.ask(0, 1, now, now/1000)
		answer, _ := h.server.run(h.t, q.call)
		g.hear(q, now, numbers(h.t, answer), true)
		for _, judge := range h.judges {
			judge(window.MaxExact, h.judged(now), now/1000) // a refusal: the twin drops what is over by this clock
		}
	}
}

// expiries demands that each key lives as long as it says something, and no longer.
func (h *history) expiries(q *question, answer []int64, admitted, now, at int64, lives []time.Duration) {
	h.t.Helper()
	each := len(q.keys) / len(h.limits)
	for i, l := range h.limits {
		for j := 0; j < each; j++ {
			life, end := lives[i*each+j], int64(0)
			if life == -2*time.Millisecond {
				continue
			}
			if q.accounts[i].Running != nil {
				end = q.accounts[i].Running.End * 1000
			}
			most := l.Length * 1000
			switch {
			case l.Algorithm == window.Fixed && h.server.clock == gateways:
				most = end - at*1000
			case l.Algorithm == window.Fixed:
				most = end - h.time(now) + 1000 // in whole seconds, rounded up
			case l.Algorithm == window.Sliding && j == 0:
				most = end - now + l.Length*1000
			case l.Algorithm == window.Sliding:
				most = end - now
			case l.Algorithm == window.Bucket:
				lack := answer[1+2*i] + admitted*q.cost*l.Length*1000
				if admitted == 0 {
					lack = max(lack, l.Burst*l.Length*1000) // as long as any, where there was no expiry
				}
				most = (lack+l.Limit-1)/l.Limit + answer[2+2*i] - now
			}
			// Where no key keeps its expiry, each call sets it anew.
			if ms := life.Milliseconds(); ms < 0 || ms > most || h.server.clock == gateways && admitted > 0 && ms < most-1000 {
				h.fatal("%s: key %s lives for %d ms, want %d; arguments %v, answer %v", h.describe(), q.keys[i*each+j], ms, most, q.args, answer)
			}
		}
	}
}
