// Package gatequota is a middleware plugin for Traefik that holds each client to
// one request quota over all gateways and all replicas behind them.
package gatequota

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatequota/gatequota/journal"
	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/reply"
	"github.com/gatequota/gatequota/source"
	"github.com/gatequota/gatequota/tally"
	"github.com/gatequota/gatequota/window"
)

// middleware limits the requests on their way to next, all in the same way: see ruled for
// what else there is.
type middleware struct {
	next      http.Handler
	front     *front          // nil: none
	watches   map[string]bool // the paths of front; nil: none
	criterion *source.Criterion
	limiter   *limiter.Limiter
	local     bool // the limiter counts in memory alone
	fields    *reply.Fields
	silent    bool // the fields are none
	tally     *tally.Tally
	sampler   *sampler // nil: no refusal is logged

	// The most frequent decisions are those that are allowed by this way, and those that
	// are refused by it from memory. They are counted here, without a call.
	way              string
	allowed, refused *int64
}

// New returns the middleware called name in front of next. Traefik calls it for
// each router that uses the middleware and again at each reload, all with the same
// config. It does not dial and succeeds while the store is away; its error says
// which option is wrong.
func New(ctx context.Context, next http.Handler, config *Config, name string) (http.Handler, error) {
	if next == nil || config == nil {
		return nil, errors.New("gatequota: neither the next handler nor the options may be nil")
	}
	s, err := check(config, name)
	if err != nil {
		return nil, fmt.Errorf("gatequota: middleware %s: %w", name, err)
	}
	setFormat(s)
	logSettings(name, s.summary)
	now := time.Now()
	for _, p := range s.policies {
		equip(ctx, p, &s.common, now)
	}
	for _, p := range s.policies {
		p.tally = tally.Open(s.scope, p.name)
		p.sampler = newSampler(s, p)
	}
	front := stand(ctx, next, s, name)
	p := s.policies[0]
	if !simple(s) {
		m := newRuled(next, s, name, now)
		m.front = front
		return m, nil
	}
	m := &middleware{
		next:      next,
		front:     front,
		criterion: &p.criterion,
		limiter:   p.ordinary.one,
		local:     s.common.Store == nil,
		fields:    p.ordinary.fields,
		silent:    reply.Silent(p.ordinary.fields),
		tally:     p.tally,
		sampler:   p.sampler,
		way:       limiter.Shared,
		allowed:   tally.Counter(p.tally, tally.AllowedShared),
		refused:   tally.Counter(p.tally, tally.RefusedMemory),
	}
	if m.local {
		m.way = limiter.Local
		m.allowed = tally.Counter(p.tally, tally.AllowedLocal)
		m.refused = tally.Counter(p.tally, tally.RefusedLocal)
	}
	if front != nil {
		m.watches = front.paths
	}
	if front != nil && front.control != nil {
		if m.limiter != nil {
			limiter.Yield(m.limiter, front.control)
		} else {
			limiter.YieldOne(p.ordinary.several, front.control)
		}
	}
	if m.limiter == nil {
		return &otherwise{middleware: m, limiter: p.ordinary.several}, nil
	}
	return m, nil
}

// simple reports whether a middleware needs no more than one limit, the same for all
// requests.
func simple(s *setting) bool {
	p := s.policies[0]
	nobodyLeftOut := p.criterion.OnMissing == source.MissingAddress || p.criterion.OnMissing == source.MissingShared
	return len(s.policies) == 1 && s.guard == nil && p.exempt == nil && p.plans == nil && len(p.values) == 0 && len(p.hashes) == 0 &&
		!p.dryRun && len(p.ordinary.limits) == 1 && nobodyLeftOut
}

// equip makes the limiters of a policy.
func equip(ctx context.Context, p *policy, common *limiter.Settings, now time.Time) {
	var all []*limiter.Settings
	for _, l := range p.ordinary.limits {
		all = append(all, limiterSettings(common, p, l))
	}
	if len(all) == 1 && p.cost == 1 && p.algorithm == window.Fixed {
		p.ordinary.one = limiter.New(ctx, all[0], now)
	} else {
		p.ordinary.several = limiter.NewSeveral(ctx, all, p.cost, now)
	}
	equipTiers(p.ordinary, p.values)
	equipTiers(p.ordinary, p.hashes)
	if p.plans != nil {
		equipTiers(p.ordinary, p.plans.values)
	}
}

// equipTiers makes the limiters of tiers that differ from the ordinary one in how high
// their limits are.
func equipTiers(ordinary *tier, tiers map[string]*tier) {
	for _, t := range tiers {
		equipTier(ordinary, t)
	}
}

func equipTier(ordinary, t *tier) {
	if ordinary.one != nil {
		t.one = limiter.WithLimit(ordinary.one, t.limits[0].limit)
		return
	}
	var limits, bursts []int64
	for _, l := range t.limits {
		limits = append(limits, l.limit)
		bursts = append(bursts, l.burst)
	}
	t.several = limiter.SeveralWithLimits(ordinary.several, limits, bursts)
}

// limiterSettings returns what the limiter of one limit of a policy is made of.
func limiterSettings(common *limiter.Settings, p *policy, l limit) *limiter.Settings {
	s := *common
	s.Name = l.name
	s.Limit = l.limit
	s.Window = l.window
	s.Algorithm = p.algorithm
	s.Burst = l.burst
	s.OnStoreFailure = p.onStoreFailure
	return &s
}

// ServeHTTP counts the request and hands it to the next handler, with the response
// writer as it is, or answers in its stead.
func (m *middleware) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if m.watches != nil && m.watches[req.URL.Path] && watched(m.front, w, req) {
		return
	}
	client := source.Identify(m.criterion, req)
	at := time.Since(limiter.Began)
	d := &window.Decision{}
	if m.local {
		limiter.TakeLocal(m.limiter, client, at, d)
	} else {
		limiter.TakeShared(m.limiter, client, at, d)
	}
	if d.Reset == 0 {
		m.serveUncounted(w, req, d)
		return
	}
	if !m.silent {
		reply.Write(m.fields, w.Header(), d.Allowed, d.Remaining, d.Reset, d.Way)
	}
	if !d.Allowed {
		if d.Known != m.local {
			atomic.AddInt64(m.refused, 1)
		} else {
			tally.Count(m.tally, d)
		}
		if m.sampler != nil && due(m.sampler) {
			noteRefusal(m.sampler, client, d)
		}
		reply.Refuse(m.fields, w, req, d.RetryAfter)
		return
	}
	if d.Way == m.way {
		atomic.AddInt64(m.allowed, 1)
	} else {
		tally.Count(m.tally, d)
	}
	m.next.ServeHTTP(w, req)
}

// otherwise is a middleware whose one limit is counted otherwise than in fixed windows, or
// of which a request takes more than one. For the rest it does what its middleware does.
type otherwise struct {
	middleware *middleware
	limiter    *limiter.Several
}

// ServeHTTP does what ServeHTTP of the middleware does.
func (o *otherwise) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	m := o.middleware
	if m.watches != nil && m.watches[req.URL.Path] && watched(m.front, w, req) {
		return
	}
	client := source.Identify(m.criterion, req)
	d := &window.Decision{}
	limiter.TakeOne(o.limiter, client, time.Since(limiter.Began), d)
	if d.Reset == 0 {
		m.serveUncounted(w, req, d)
		return
	}
	if !m.silent {
		reply.Write(m.fields, w.Header(), d.Allowed, d.Remaining, d.Reset, d.Way)
	}
	if !d.Allowed {
		if d.Known != m.local {
			atomic.AddInt64(m.refused, 1)
		} else {
			tally.Count(m.tally, d)
		}
		if m.sampler != nil && due(m.sampler) {
			noteRefusal(m.sampler, client, d)
		}
		reply.Refuse(m.fields, w, req, d.RetryAfter)
		return
	}
	if d.Way == m.way {
		atomic.AddInt64(m.allowed, 1)
	} else {
		tally.Count(m.tally, d)
	}
	m.next.ServeHTTP(w, req)
}

// serveUncounted answers a request that the limiter has left to what an operator has set,
// or that the store failed to count, as the operator chose for that.
func (m *middleware) serveUncounted(w http.ResponseWriter, req *http.Request, d *window.Decision) {
	if d.Way == limiter.Controlled {
		serveLive(m.front.live, w, req)
		return
	}
	tally.Count(m.tally, d)
	reply.WriteUncounted(m.fields, w.Header(), d.Way)
	if !d.Allowed {
		reply.Unavailable(m.fields, w, req, d.RetryAfter)
		return
	}
	m.next.ServeHTTP(w, req)
}

var (
	loggedMu sync.Mutex
	logged   = map[string]string{} // the last summary of each middleware
)

// logSettings logs the effective settings of a middleware when they are new, and not
// for each of its routers and at each reload.
func logSettings(name, summary string) {
	loggedMu.Lock()
	defer loggedMu.Unlock()
	if logged[name] == summary {
		return
	}
	logged[name] = summary
	journal.Note(journal.Settings, "middleware "+name+": "+summary, "middleware", name)
}
