package limiter

import (
	"context"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
	"github.com/gatequota/gatequota/window"
)

// A severalCall is one call of the script for several counts.
type severalCall struct {
	keys           []string
	requests, cost int64
	args           []severalArgs
}

// severalArgs are what such a call says of one count.
type severalArgs struct {
	limit, settled, known, left, end int64
}

// A severalFake is a fake that also counts in several counts at once.
type severalFake struct {
	*fake
	several []severalCall // that were carried out, guarded by the fake's mutex
	answers []string      // sent in place of its own, guarded likewise
}

func severalStore(t testing.TB) *severalFake {
	f := &severalFake{fake: fakeStore(t)}
	f.Register(window.FixedSeveralScript, f.countSeveral)
	f.Usually(fakevalkey.Behaviour{Before: func(command []string) {
		if isSeveral(command) {
			command = make([]string, 8) // which is the length of the calls that may break
			command[0] = "EVAL"
		}
		f.before(command)
	}})
	return f
}

func isSeveral(command []string) bool {
	return len(command) > 3 && strings.HasPrefix(command[0], "EVAL") &&
		(command[1] == kinds[window.Fixed].script.SHA || command[1] == kinds[window.Fixed].script.Body)
}

func (f *severalFake) countSeveral(s *fakevalkey.Server, args []string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = f.breaks != 0
	if f.broken {
		f.broken = false
		return fakevalkey.Null
	}
	n := (len(args) - 2) / 6
	if n < 1 || len(args) != 6*n+2 {
		f.t.Errorf("the script is called with %q", args)
		return fakevalkey.Error("ERR wrong number of arguments")
	}
	for part, refusal := range f.refusals {
		if strings.Contains(strings.Join(args[:n], " "), part) {
			return fakevalkey.Error(refusal)
		}
	}
	if len(f.answers) > 0 {
		answer := f.answers[0]
		f.answers = f.answers[1:]
		return answer
	}
	var numbers []int64
	for _, arg := range args[n:] {
		number, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || number < 0 {
			f.t.Errorf("the script is called with %q", args)
		}
		numbers = append(numbers, number)
	}
	c := severalCall{keys: args[:n], requests: numbers[0], cost: numbers[1]}
	if c.requests < 1 || c.cost < 1 {
		f.t.Errorf("the script is called with %q", args)
	}
	stored, counts, over := make([]int64, n), make([]int64, n), false
	for i := range c.keys {
		a := numbers[2+5*i:]
		one := severalArgs{a[0], a[1], a[2], a[3], a[4]}
		c.args = append(c.args, one)
		if one.limit < 1 || one.left < 1 {
			f.t.Errorf("the script is called with %q", args)
		}
		counts[i] = window.FixedOver
		if one.end <= f.unix.Load() {
			over = true
			continue
		}
		stored[i] = f.add(s, c.keys[i], 0, one.end)
		counts[i] = stored[i]
		if counts[i] < one.known {
			counts[i] = one.known
		}
		counts[i] += one.settled
	}
	f.several = append(f.several, c)
	admitted := c.requests
	for i, count := range counts {
		for admitted > 0 && count+admitted*c.cost > c.args[i].limit {
			admitted--
		}
	}
	var words []string
	for i, count := range counts {
		words = append(words, strconv.FormatInt(count, 10))
		if !over {
			f.add(s, c.keys[i], count+admitted*c.cost-stored[i], c.args[i].end)
		}
	}
	return "+" + strings.Join(words, " ") + "\r\n"
}

// add adds to a count, under the server's lock, and returns it.
func (f *severalFake) add(s *fakevalkey.Server, key string, n, end int64) int64 {
	answer := fakevalkey.Count(s, []string{key, strconv.FormatInt(n, 10), strconv.FormatInt(end-f.unix.Load(), 10)})
	count, err := strconv.ParseInt(strings.Trim(answer, ":\r\n"), 10, 64)
	if err != nil {
		f.t.Errorf("counting %s answers %q", key, answer)
	}
	return count
}

// severalSince returns the calls that were carried out since the last time.
func (f *severalFake) severalSince() []severalCall {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.several
	f.several = nil
	return calls
}

// answer sends this in place of the next answers to calls for several counts.
func (f *severalFake) answer(answers ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers = answers
}

// limits of a scope: each is a limit and a window in seconds. start lies 30 s before the
// end of a minute and 1170 s before that of an hour.
type limits [][2]int64

const minute, hour = 60, 3600

// countName is the name of the i-th count of a scope.
func countName(i int) string { return "n" + strconv.Itoa(i) }

// severalSettings are those of the counts of a scope.
func severalSettings(scope string, server *fake, ls limits, change func(s *Settings)) []*Settings {
	var all []*Settings
	for i, l := range ls {
		s := settings(scope, server)
		s.Name, s.Limit, s.Window = countName(i), l[0], l[1]
		if change != nil {
			change(s)
		}
		all = append(all, s)
	}
	return all
}

// openSeveral returns what holds clients to these limits, without a keeper.
func openSeveral(t testing.TB, cost int64, all []*Settings) *Several {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	q := NewSeveral(ctx, all, cost, start)
	q.ledger.mu.Lock()
	if q.store != nil {
		q.store.kept = true
	}
	q.ledger.mu.Unlock()
	return q
}

func severalOf(t testing.TB, scope string, server *severalFake, cost int64, ls limits) *Several {
	return openSeveral(t, cost, severalSettings(scope, server.fake, ls, nil))
}

// storeOf returns a limiter, for what is its store's.
func storeOf(q *Several) *Limiter {
	return &Limiter{store: q.store, ledger: q.ledger, table: q.tables[0], counts: q.tables[0].counts}
}

// severalKey is the key of the i-th count of a scope in the window of start, and so many
// after it.
func severalKey(scope string, i int, client string, length, after int64) string {
	return keyIn(scope+":"+countName(i), client, start.Unix()/length+after)
}

// storedIn returns what the store has in the counts of a client, in the windows of start.
func storedIn(server *severalFake, scope, client string, ls limits) []int64 {
	var counts []int64
	for i, l := range ls {
		counts = append(counts, server.Count(severalKey(scope, i, client, l[1], 0)))
	}
	return counts
}

func takeSeveralAt(q *Several, client string, now time.Time) (d window.Decision) {
	TakeSeveral(q, client, now.Sub(Began), &d)
	return d
}

func beginSeveral(q *Several, client string, now time.Time) chan window.Decision {
	done := make(chan window.Decision, 1)
	go func() { done <- takeSeveralAt(q, client, now) }()
	return done
}

// takeMany makes requests one after the other, and returns how many passed and by which
// ways.
func takeMany(q *Several, client string, n int, now time.Time) (allowed int, ways map[string]int) {
	ways = map[string]int{}
	for i := 0; i < n; i++ {
		d := takeSeveralAt(q, client, now)
		if d.Allowed {
			allowed++
		}
		ways[d.Way]++
	}
	return allowed, ways
}

// joinedSeveral returns how many requests wait in the batch that is open to more, those
// with one count too.
func joinedSeveral(q *Several) int64 {
	requests := joined(storeOf(q))
	l := storeOf(q)
	l.ledger.mu.Lock()
	defer l.ledger.mu.Unlock()
	if l.store.next != nil {
		for _, g := range l.store.next.groups {
			requests += g.requests
		}
	}
	return requests
}

// joinSeveral begins requests, each when the one before has its place in the batch.
func joinSeveral(t *testing.T, q *Several, now time.Time, clients ...string) []chan window.Decision {
	t.Helper()
	var all []chan window.Decision
	for _, client := range clients {
		before := joinedSeveral(q)
		all = append(all, beginSeveral(q, client, now))
		eventually(t, "a place in the batch", func() bool { return joinedSeveral(q) == before+1 })
	}
	return all
}

// decisionOf waits for a request, but not for ever.
func decisionOf(t *testing.T, what string, done chan window.Decision) window.Decision {
	t.Helper()
	select {
	case d := <-done:
		return d
	case <-time.After(30 * time.Second):
		t.Fatalf("%s: a request waits for ever", what)
		return window.Decision{}
	}
}

// A place is what a request under several limits is to be told: of each limit what is
// left, less than zero where it does not fit.
type place []int64

// wantPlace demands such a decision, in windows with these rests.
func wantPlace(t *testing.T, what string, d window.Decision, way string, resets []int64, p place) {
	t.Helper()
	expected := window.Decision{Allowed: true, Way: way, Several: &window.Standings{Reset: resets}}
	binding := -1
	for _, left := range p {
		refused := left < 0
		if refused {
			left = -left - 1
			expected.Allowed = false
		}
		expected.Several.Remaining = append(expected.Several.Remaining, left)
		expected.Several.Refused = append(expected.Several.Refused, refused)
	}
	for i := range p {
		switch {
		case expected.Several.Refused[i] == expected.Allowed:
		case binding < 0,
			!expected.Allowed && resets[i] > resets[binding],
			expected.Allowed && p[i] < p[binding],
			expected.Allowed && p[i] == p[binding] && resets[i] > resets[binding]:
			binding = i
		}
	}
	expected.Several.Binding = binding
	expected.Known = d.Known // whether the store was asked is for others to say
	expected.Remaining, expected.Reset = expected.Several.Remaining[binding], resets[binding]
	if !expected.Allowed {
		expected.RetryAfter = expected.Reset
	}
	if !reflect.DeepEqual(d, expected) {
		t.Errorf("%s: %+v %+v, want %+v %+v", what, d, *orNone(d.Several), expected, *expected.Several)
	}
}

func orNone(s *window.Standings) *window.Standings {
	if s == nil {
		return &window.Standings{}
	}
	return s
}

// atStart are the rests of a minute and an hour at start.
var atStart = []int64{30, 1170}
