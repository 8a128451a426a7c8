package main

import (
	"strings"
	"testing"
	"time"
)

// A ledger makes logs for the judge: requests of one client, one after the other,
// 10 ms each.
type ledger struct {
	log []event
	now time.Duration
}

func (l *ledger) at(d time.Duration) *ledger {
	l.now = d
	return l
}

// shared adds an answer by the count in the store.
func (l *ledger) shared(gateway uint8, count int) *ledger {
	return l.add(event{gateway: gateway, shared: true, allowed: count <= testLimit, remaining: int32(max(0, testLimit-count))})
}

// alone adds n passes by a gateway itself.
func (l *ledger) alone(gateway uint8, n int) *ledger {
	for range n {
		l.add(event{gateway: gateway, allowed: true})
	}
	return l
}

func (l *ledger) add(e event) *ledger {
	e.client, e.window, e.sent, e.arrived = 7, int32(l.now/testLength), l.now, l.now+10*time.Millisecond
	l.log = append(l.log, e)
	l.now += 20 * time.Millisecond
	return l
}

const (
	testLimit  = 10
	testLength = 5 * time.Second
)

func TestJudge(t *testing.T) {
	outage := span{from: time.Second, to: 2 * time.Second}
	wipe := outage
	wipe.wiped = true
	for _, tt := range []struct {
		name  string
		log   *ledger
		spans []span
		says  string // empty where all is well
		worst int
	}{
		{name: "exactly the limit", log: run(0, 1, 12)},
		{name: "one too many", log: run(0, 1, 10).at(time.Second).add(event{gateway: 1, shared: true, allowed: true}), says: "want exactly 10", worst: 1},
		{name: "one too few", log: run(0, 1, 9).add(event{shared: true}), says: "9 of 10 requests"},
		{name: "few requests", log: run(0, 1, 3)},
		{name: "the limit of each window", log: run(0, 1, 12).at(testLength).shared(0, 1)},
		{name: "each gateway its share", spans: []span{outage},
			log: run(0, 1, 4).at(time.Second).alone(0, 3).alone(1, 3)},
		{name: "more than its share", spans: []span{outage},
			log: run(0, 1, 4).at(time.Second).alone(0, 5).alone(1, 3), says: "its share is 4", worst: 2},
		{name: "a second failure, a second share", spans: []span{{from: 0, to: 4 * time.Second}},
			log: new(ledger).alone(0, 5).shared(0, 6).shared(0, 7).alone(0, 2)},
		{name: "more than its share of nothing known", spans: []span{{from: 0, to: 4 * time.Second}},
			log: new(ledger).alone(0, 6), says: "its share is 5"},
		{name: "two failures of one gateway, beyond what it knew", spans: []span{{from: 0, to: 4 * time.Second}},
			log: new(ledger).alone(0, 5).shared(0, 6).alone(0, 2).shared(0, 10).alone(0, 1), says: "though it knew of 10"},
		{name: "unequal knowledge, within the bound", spans: []span{outage},
			log: run(0, 0, 8).at(time.Second).alone(0, 1).alone(1, 5), worst: 4},
		{name: "counts given twice though nothing was lost", spans: []span{outage},
			log:  run(0, 0, 10).at(2*time.Second).shared(1, 1).shared(1, 2).shared(1, 3).shared(1, 4).shared(1, 5).shared(1, 6),
			says: "the bound is 0", worst: 6},
		{name: "a gateway that rewinds", spans: []span{wipe},
			log: run(0, 0, 8).at(2*time.Second).shared(0, 3), says: "number 3 though it knew of 8"},
		{name: "the other gateway after a loss", spans: []span{wipe},
			log: run(0, 0, 10).at(2*time.Second).shared(1, 1).shared(1, 2), worst: 2},
		{name: "a pass after a refusal", spans: []span{wipe},
			log: run(0, 0, 11).at(2*time.Second).shared(0, 9), says: "though it knew of 10", worst: 1},
		{name: "alone without a fault of ours", log: run(0, 1, 4).alone(0, 3).alone(1, 3)},
		{name: "answers that overtake each other", log: overtaking()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := judge(tt.log.log, rules{limit: testLimit, gateways: 2, length: testLength, spans: tt.spans})
			said := strings.Join(v.violations, "\n")
			if tt.says == "" && said != "" || !strings.Contains(said, tt.says) {
				t.Errorf("said %q, want %q", said, tt.says)
			}
			if v.worst != tt.worst {
				t.Errorf("at worst %d beyond the limit, want %d", v.worst, tt.worst)
			}
		})
	}
}

// run adds counts 1 to n over two gateways in turn.
func run(first, second uint8, n int) *ledger {
	l := new(ledger)
	for i := range n {
		l.shared([]uint8{first, second}[i%2], i+1)
	}
	return l
}

// overtaking is a log in which requests under way together are answered in
// another order than they were decided in.
func overtaking() *ledger {
	l := new(ledger)
	for i, count := range []int{3, 1, 2, 5, 4} {
		l.shared(0, count)
		last := &l.log[i]
		last.sent, last.arrived = time.Duration(i)*time.Millisecond, time.Duration(50-i)*time.Millisecond
	}
	return l
}
