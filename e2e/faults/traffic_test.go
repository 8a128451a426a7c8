package faults_test

import (
	"fmt"
	"net/http"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// A stream is the steady traffic of one client for one route through one gateway,
// one request at a time.
type stream struct {
	route, key string
	gateway    int
	load       *lab.Load
}

// busy is the route and the pause between the requests of each client of the
// traffic. The first two reach their limit while a fault lasts, the next two
// after it.
var busy = []struct {
	route, key string
	pause      time.Duration
}{
	{"local", "fast-1", 25 * time.Millisecond},
	{"local", "fast-2", 25 * time.Millisecond},
	{"local", "slow-1", 60 * time.Millisecond},
	{"local", "slow-2", 60 * time.Millisecond},
	{"closed", "closed-1", 50 * time.Millisecond},
	{"open", "open-1", 50 * time.Millisecond},
	{"free", "free-1", 50 * time.Millisecond},
}

// limit is that of each route with traffic.
const limit = 100

// traffic is the constant load over both gateways.
type traffic []stream

// start sends the requests of all clients, under names that end with the suffix,
// through both gateways.
func (s *site) start(t testing.TB, suffix string) traffic {
	t.Helper()
	var all traffic
	for _, b := range busy {
		for g := range s.doors {
			request := s.request(g, b.route, b.key+suffix)
			load := s.client.Steady(t, 1, b.pause, func(int) lab.Request { return request })
			all = append(all, stream{route: b.route, key: b.key, gateway: g, load: load})
		}
	}
	return all
}

func (all traffic) stop() {
	for _, s := range all {
		s.load.Stop()
	}
}

// until waits until something holds for what each stream of some routes has got.
func (all traffic) until(t testing.TB, what string, holds func(stream, lab.Answers) bool) {
	t.Helper()
	lab.Until(t, what, func() bool {
		return !slices.ContainsFunc(all, func(s stream) bool { return !holds(s, s.load.Since(0)) })
	})
}

// answers returns all answers of a route.
func (all traffic) answers(route string) lab.Answers {
	var as lab.Answers
	for _, s := range all {
		if s.route == route {
			as = append(as, s.load.Since(0)...)
		}
	}
	return as
}

// statuses returns the statuses of a route, such as "200, 429".
func (all traffic) statuses(route string) string {
	var seen []string
	for _, a := range all.answers(route) {
		if status := fmt.Sprint(a.Status); !slices.Contains(seen, status) {
			seen = append(seen, status)
		}
	}
	sort.Strings(seen)
	return strings.Join(seen, ", ")
}

// slowest returns the longest time that an answer of the routes took.
func (all traffic) slowest(routes ...string) time.Duration {
	var d time.Duration
	for _, route := range routes {
		d = max(d, all.answers(route).Slowest())
	}
	return d
}

// events returns what a client got, in the order of arrival.
func (all traffic) events(key string) []event {
	type arrival struct {
		event
		at time.Time
	}
	var arrivals []arrival
	for _, s := range all {
		if s.key != key {
			continue
		}
		for _, a := range s.load.Since(0) {
			e := event{gateway: s.gateway, shared: decision(a) == "shared", passed: a.Status == http.StatusOK}
			if e.shared {
				e.told = limit
			}
			if e.shared && e.passed {
				e.told -= a.Number("X-RateLimit-Remaining")
			}
			arrivals = append(arrivals, arrival{e, a.At})
		}
	}
	sort.SliceStable(arrivals, func(i, j int) bool { return arrivals[i].at.Before(arrivals[j].at) })
	events := make([]event, len(arrivals))
	for i, a := range arrivals {
		events[i] = a.event
	}
	return events
}
