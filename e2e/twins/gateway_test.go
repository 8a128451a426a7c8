package twins_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/gatequota/gatequota/window"
)

// scripts are those of the algorithms, in their order.
var scripts = []string{window.FixedSeveralScript, window.SlidingScript, window.LogScript, window.BucketScript}

// names are what the options call them.
var names = []string{"fixed-window", "sliding-window", "sliding-log", "token-bucket"}

// A call is one call of a script.
type call struct {
	script string
	keys   []string
	args   []any
}

// A gateway is what one gateway knows of one client. It asks as the plugin does, and counts
// what it is answered with the same functions.
type gateway struct {
	t       *testing.T
	name    string
	offset  int64 // of its clock, in milliseconds
	limits  []*window.Limit
	counts  []*window.FixedCounts
	entries []*window.Entries
	calls   int
}

func newGateway(t *testing.T, name string, offset int64, limits []*window.Limit) *gateway {
	g := &gateway{t: t, name: name, offset: offset, limits: limits}
	for _, l := range limits {
		switch l.Algorithm {
		case window.Sliding:
			g.counts = append(g.counts, window.NewSlidingCounts(l.Length, 100))
		case window.Fixed:
			g.counts = append(g.counts, window.NewFixedCounts(l.Length, 100))
		default:
			g.entries = append(g.entries, window.NewEntries(l.Algorithm == window.Exact, 100))
		}
	}
	return g
}

// accounts are those at a time in unix milliseconds, in the windows of one in unix seconds.
func (g *gateway) accounts(now, at int64) []*window.Account {
	var all []*window.Account
	for i, l := range g.limits {
		a := &window.Account{}
		switch l.Algorithm {
		case window.Fixed:
			a.Running = window.FixedFind(g.counts[i], "client", at)
		case window.Sliding:
			a.Running, a.Before = window.SlidingFind(g.counts[i], "client", at)
		default:
			a.Entry = window.EntryFind(g.entries[i], "client", now)
		}
		all = append(all, a)
	}
	return all
}

// A question is a call and what it is about.
type question struct {
	call
	accounts       []*window.Account
	requests, cost int64
	name           string
	told           []int64
}

// ask is what the gateway asks for a number of requests of one cost, by its own clock.
func (g *gateway) ask(requests, cost, now, at int64) *question {
	g.calls++
	algorithm := g.limits[0].Algorithm
	q := &question{accounts: g.accounts(now, at), requests: requests, cost: cost, name: g.name + "-" + strconv.Itoa(g.calls)}
	q.script = scripts[algorithm]
	q.args = []any{requests, cost}
	if algorithm != window.Fixed {
		q.args = append(q.args, now)
	}
	if algorithm == window.Exact {
		q.args = append(q.args, q.name)
	}
	for i, l := range g.limits {
		a := q.accounts[i]
		key := "rate:twins:" + strconv.Itoa(i) + ":" + names[algorithm] + ":{client}:"
		switch algorithm {
		case window.Fixed:
			q.keys = append(q.keys, key+strconv.FormatInt(a.Running.End, 10))
			q.args = append(q.args, l.Limit, 0, a.Running.Known, a.Running.End-at, a.Running.End)
		case window.Sliding:
			q.keys = append(q.keys, key+strconv.FormatInt(a.Running.End, 10), key+strconv.FormatInt(a.Before.End, 10))
			q.args = append(q.args, l.Limit, l.Length, a.Running.End, 0, a.Running.Known, 0, a.Before.Known)
		case window.Exact:
			if requests == 0 {
				window.LogForgotten(a.Entry.Log)
			}
			calls, told := window.LogUnsent(a.Entry.Log)
			q.keys = append(q.keys, key)
			q.args = append(q.args, l.Limit, l.Length*1000, calls)
			q.told = append(q.told, told)
		default:
			q.keys = append(q.keys, key)
			q.args = append(q.args, l.Limit, l.Length*1000, l.Burst, a.Entry.Lack, a.Entry.At)
		}
	}
	return q
}

// numbers reads an answer.
func numbers(t *testing.T, line string) []int64 {
	t.Helper()
	var all []int64
	for _, word := range strings.Split(line, " ") {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil || n < -1 || n > window.MaxExact {
			t.Fatalf("a script answers %q", line)
		}
		all = append(all, n)
	}
	return all
}

// hear notes an answer, and returns what was left before the first of the requests and the
// time by which the store judged; over says that a window was over.
func (g *gateway) hear(q *question, now int64, answer []int64, note bool) (lefts []int64, at int64, over bool) {
	if g.limits[0].Algorithm != window.Fixed {
		now, answer = answer[0], answer[1:]
	}
	each := len(answer) / len(g.limits)
	for i, l := range g.limits {
		n := answer[i*each:]
		switch l.Algorithm {
		case window.Fixed:
			lefts = append(lefts, l.Limit-n[0])
			over = over || n[0] == window.FixedOver
		case window.Sliding:
			lefts = append(lefts, window.SlidingLeft(n[0], n[1], l.Limit, q.accounts[i].Running.End*1000-now, l.Length*1000))
			over = over || n[0] == window.FixedOver
		case window.Exact:
			lefts = append(lefts, l.Limit-n[0])
		default:
			lefts = append(lefts, window.BucketLeft(n[0], l.Burst, l.Length*1000))
		}
	}
	if over || !note {
		return lefts, now, over
	}
	units := window.Admitted(lefts, q.requests, q.cost) * q.cost
	for i, l := range g.limits {
		n, a := answer[i*each:], q.accounts[i]
		switch l.Algorithm {
		case window.Fixed:
			window.FixedAnswered(a.Running, n[0]+units, 0)
		case window.Sliding:
			window.FixedAnswered(a.Running, n[0]+units, 0)
			window.FixedAnswered(a.Before, n[1], 0)
		case window.Exact:
			window.LogAnswered(a.Entry, l, &window.LogAnswer{Now: now, Count: n[0], Free: n[1], Newest: n[2]}, q.cost, units, q.name, q.told[i])
		default:
			window.BucketAnswered(a.Entry, l, n[0], n[1], units)
		}
	}
	return lefts, now, false
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
