package gatequota

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatequota/gatequota/control"
)

var liveRuns atomic.Int64

// named returns options with a scope of its own that nothing listens for.
func named(controlled bool) *Config {
	config := least()
	config.Mode, config.Valkey.Endpoints = "shared", []string{"127.0.0.1:1"}
	config.Scope = "live" + strconv.FormatInt(liveRuns.Add(1), 10)
	config.Limit, config.Window = "1000000", "366d"
	config.Control = controlled
	return config
}

// A middleware for which nothing is set serves by the plain path: what it costs besides is
// one look at a number.
func TestControlWithNothingSetCostsALook(t *testing.T) {
	allocations := func(controlled bool) float64 {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		h, err := New(ctx, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), named(controlled), "live@file")
		if err != nil {
			t.Fatal(err)
		}
		m, plain := h.(*middleware)
		if !plain || (m.front != nil) != controlled {
			t.Fatalf("%T with the front %v", h, m.front)
		}
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.Header.Set("X-Api-Key", "key")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req) // the store is away from the fourth on, and allocates no more
		for i := 0; i < 20; i++ {
			h.ServeHTTP(w, req)
		}
		n := testing.AllocsPerRun(1000, func() { h.ServeHTTP(w, req) })
		if controlled && m.front.live.handler != nil {
			t.Error("a handler was made for what is set, and nothing is")
		}
		return n
	}
	without, with := allocations(false), allocations(true)
	if with != without {
		t.Errorf("%v allocations of a request, and %v without control", with, without)
	}
}

// What is in force is served by policies of its own: those of the setting are read by
// others meanwhile, and are as they were when it is over.
func TestChangesTouchNoSetting(t *testing.T) {
	config := named(true)
	config.Algorithm, config.Limit, config.Window = "token-bucket", "50", "1h"
	config.Plans = PlansConfig{Header: "X-Plan", Default: "free", Values: map[string]AllowanceConfig{"free": {Limit: "7"}, "gold": {Limit: "70"}}}
	config.Overrides = []OverrideConfig{{Hash: "00000000000000000000000000000000000000000000000000000000000000aa", Limit: "9"}, {Value: "192.0.2.9", Limit: "8"}}
	config.Rules = []RuleConfig{{Name: "own", Path: "/own", Limit: "3", Window: "1m", Burst: "2"}, {Name: "shares", Path: "/shares", DryRun: "true"}}
	s := checked(t, config)
	before := describeSetting(s)
	state := &control.State{
		DryRun: "true", Limits: map[string]int64{"": 60, "own": 4}, Windows: map[string]int64{"": 7200, "own": 120},
		Clients: map[string]*control.Client{"x": {Hash: "x", BlockUntil: 1 << 40}},
	}
	c := changed(s, state, nil)
	for _, p := range c.policies {
		equip(context.Background(), p, &c.common, time.Now())
	}
	newRuled(http.NotFoundHandler(), c, "live@file", time.Now())
	if after := describeSetting(s); after != before {
		t.Errorf("the setting was %s and is %s", before, after)
	}
	if got, want := describeSetting(c), "own true [4 120 2] plans, shares true [60 7200 60] free=[7 7200 7] otherwise free gold=[70 7200 70] values [8 7200 8] hashes [9 7200 9], "+
		" true [60 7200 60] free=[7 7200 7] otherwise free gold=[70 7200 70] values [8 7200 8] hashes [9 7200 9], "; got != want {
		t.Errorf("in force is %s, want %s", got, want)
	}
	for i, p := range c.policies {
		if p == s.policies[i] || p.ordinary == s.policies[i].ordinary || p.personal == nil || p.personal.shared != (p.name != "own") {
			t.Errorf("policy %d is shared with the setting, or has no clients of its own", i)
		}
	}
	if same := changed(s, &control.State{}, nil); describeSetting(same) != before || same.policies[0] == s.policies[0] {
		t.Errorf("with nothing set it is %s, want %s", describeSetting(same), before)
	}
}

// describeSetting shows of a setting what changes concern.
func describeSetting(s *setting) string {
	text := ""
	show := func(t *tier) string {
		l := t.limits[0]
		return "[" + strconv.FormatInt(l.limit, 10) + " " + strconv.FormatInt(l.window, 10) + " " + strconv.FormatInt(l.burst, 10) + "]"
	}
	for _, p := range s.policies {
		text += p.name + " " + strconv.FormatBool(p.dryRun) + " " + show(p.ordinary)
		if p.plans == nil {
			text += " plans"
		} else {
			for _, name := range []string{"free", "gold"} {
				text += " " + name + "=" + show(p.plans.values[name])
				if p.plans.otherwise == p.plans.values[name] {
					text += " otherwise " + name
				}
			}
		}
		for _, t := range p.values {
			text += " values " + show(t)
		}
		for _, t := range p.hashes {
			text += " hashes " + show(t)
		}
		text += ", "
	}
	return text
}
