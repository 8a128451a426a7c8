package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// site is what faults happen to: one store, and a way to it for each gateway.
type site struct {
	store   *lab.Store
	proxies []*lab.Proxy
	timeout time.Duration // valkey.timeout
}

// A fault is one kind of trouble. It begins, and ends after a time, when act
// returns.
type fault struct {
	name  string
	wipes bool // the store loses its data
	// harmless says that no count may be missed for it: windows in which nothing
	// worse happens are judged exactly.
	harmless bool
	act      func(s *site, random *rand.Rand, lasts time.Duration)
}

var faults = []fault{
	{name: "killed, started with its data", act: func(s *site, _ *rand.Rand, lasts time.Duration) {
		s.store.Kill()
		time.Sleep(lasts)
		s.store.Start()
	}},
	{name: "killed, started empty", wipes: true, act: func(s *site, _ *rand.Rand, lasts time.Duration) {
		s.store.Kill()
		s.store.Wipe()
		time.Sleep(lasts)
		s.store.Start()
	}},
	{name: "killed, started empty at once", wipes: true, act: func(s *site, _ *rand.Rand, _ time.Duration) {
		s.store.Kill()
		s.store.Wipe()
		s.store.Start()
	}},
	{name: "frozen", act: func(s *site, _ *rand.Rand, lasts time.Duration) {
		s.store.Pause()
		time.Sleep(lasts)
		s.store.Resume()
	}},
	{name: "everything lost on the way", act: func(s *site, random *rand.Rand, lasts time.Duration) {
		s.spoil(random, lasts, lab.Faults{LoseRequests: true, LoseReplies: true})
	}},
	{name: "replies lost on the way", act: func(s *site, random *rand.Rand, lasts time.Duration) {
		s.spoil(random, lasts, lab.Faults{LoseReplies: true})
	}},
	{name: "connections reset again and again", act: func(s *site, random *rand.Rand, lasts time.Duration) {
		hit := s.some(random)
		for end := time.Now().Add(lasts); time.Now().Before(end); time.Sleep(time.Duration(20+random.IntN(200)) * time.Millisecond) {
			for _, p := range hit {
				p.Cut()
			}
		}
	}},
	{name: "connections refused", act: func(s *site, random *rand.Rand, lasts time.Duration) {
		hit := s.some(random)
		for _, p := range hit {
			p.Close()
			p.Cut()
		}
		time.Sleep(lasts)
		for _, p := range hit {
			p.Open()
		}
	}},
	{name: "replies late, around the time-out", act: func(s *site, random *rand.Rand, lasts time.Duration) {
		hit := s.some(random)
		for end := time.Now().Add(lasts); time.Now().Before(end); time.Sleep(s.timeout / 4) {
			delay := time.Duration(float64(s.timeout) * (0.7 + 0.6*random.Float64()))
			for _, p := range hit {
				p.Set(lab.Faults{Delay: delay})
			}
		}
		for _, p := range hit {
			p.Set(lab.Faults{})
		}
	}},
	{name: "script forgotten", harmless: true, act: func(s *site, _ *rand.Rand, lasts time.Duration) {
		for end := time.Now().Add(lasts); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			s.store.Do("SCRIPT", "FLUSH", "SYNC")
		}
	}},
}

// some returns one of the ways to the store, or all of them.
func (s *site) some(random *rand.Rand) []*lab.Proxy {
	if which := random.IntN(len(s.proxies) + 1); which < len(s.proxies) {
		return s.proxies[which : which+1]
	}
	return s.proxies
}

func (s *site) spoil(random *rand.Rand, lasts time.Duration, f lab.Faults) {
	hit := s.some(random)
	for _, p := range hit {
		p.Set(f)
	}
	time.Sleep(lasts)
	for _, p := range hit {
		p.Set(lab.Faults{})
		p.Cut()
	}
}

// weatherMaker lets faults happen one after the other, with calm times between
// them, until the context ends. Each kind comes once before any comes again.
type weatherMaker struct {
	site    *site
	traffic *traffic
	random  *rand.Rand
	calm    time.Duration // shortest calm time; the longest is three times as long

	spans    []span
	happened map[string]int
	slowest  time.Duration // until the gateways counted in the store again
	failure  string

	calmSince atomic.Int64 // the time of the run, negative while a fault is under way
}

func (m *weatherMaker) run(ctx context.Context) {
	m.happened = map[string]int{}
	var deck []int
	for pause(ctx, m.calm+time.Duration(m.random.Int64N(int64(2*m.calm)))) {
		if len(deck) == 0 {
			deck = m.random.Perm(len(faults))
		}
		f := faults[deck[0]]
		deck = deck[1:]
		lasts := time.Duration(300+m.random.IntN(2200)) * time.Millisecond
		m.calmSince.Store(-1)
		s := span{from: m.traffic.now(), wiped: f.wipes}
		f.act(m.site, m.random, lasts)
		m.happened[f.name]++
		ended := m.traffic.now()
		if !m.recovered() {
			m.failure = fmt.Sprintf("%q: half a minute after its end a gateway does not count in the store", f.name)
			return
		}
		s.to = m.traffic.now()
		m.calmSince.Store(int64(s.to))
		m.slowest = max(m.slowest, s.to-ended)
		if !f.harmless {
			m.spans = append(m.spans, s)
		}
	}
}

// recovered waits until every gateway is seen to count in the store, by clients
// that nobody has met before.
func (m *weatherMaker) recovered() bool {
	for _, url := range m.traffic.urls {
		good := 0
		for end := time.Now().Add(30 * time.Second); good < 3; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				return false
			}
			a := m.traffic.client.Get(lab.Keyed(url, fmt.Sprintf("probe-%d", m.traffic.now())))
			good++
			if a.Status != http.StatusOK || a.Header.Get("X-RateLimit-Decision") != "shared" {
				good = 0
			}
		}
	}
	return true
}

// pause waits, and reports whether the context has not ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
