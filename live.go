package gatequota

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/gatequota/gatequota/control"
	"github.com/gatequota/gatequota/journal"
	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/tally"
	"github.com/gatequota/gatequota/window"
)

// live serves the requests of a middleware while something is in force that an operator has
// set since it was loaded: by a handler that is made anew whenever that changes.
type live struct {
	ctx     context.Context
	next    http.Handler
	name    string
	setting *setting
	control *limiter.Control
	tally   *tally.Tally // of the top level

	mu         sync.Mutex
	generation int64          // of what follows
	state      *control.State // nil: nothing is in force
	handler    *ruled
}

// serveLive serves a request by what is in force.
func serveLive(l *live, w http.ResponseWriter, req *http.Request) {
	off, handler := inForce(l)
	if off {
		tally.Add(l.tally, tally.AllowedControl)
		l.next.ServeHTTP(w, req)
		return
	}
	handler.ServeHTTP(w, req)
}

// inForce returns whether the limiter is switched off, and else what limits requests.
func inForce(l *live) (off bool, handler *ruled) {
	state, generation := limiter.InForce(l.control)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handler == nil || l.generation != generation {
		renew(l, state, generation)
	}
	return l.state != nil && l.state.Off, l.handler
}

// renew makes the handler for what is in force. If that fails the last one goes on. Who
// calls it holds the mutex.
func renew(l *live, state *control.State, generation int64) {
	defer keepLast(l)
	l.generation = generation // also where it fails, or each request would try it again
	s := l.setting
	if state != nil {
		s = changed(l.setting, state, l.control)
		complain(l, state)
	}
	now := time.Now()
	for _, p := range s.policies {
		equip(l.ctx, p, &s.common, now)
	}
	l.handler = newRuled(l.next, s, l.name, now)
	l.state = state
}

func keepLast(l *live) {
	r := recover()
	if r == nil {
		return
	}
	journal.Error(journal.Control, fmt.Sprintf("middleware %s: control: what was set cannot be obeyed: %v", l.name, r),
		"middleware", l.name, "scope", l.setting.scope)
	if l.handler == nil {
		now := time.Now()
		for _, p := range l.setting.policies {
			equip(l.ctx, p, &l.setting.common, now)
		}
		l.handler = newRuled(l.next, l.setting, l.name, now)
	}
}

// personal is what is in force for single clients under one policy. It leads to no policy
// and no setting, which lead to it: the interpreter mixes such types up.
type personal struct {
	clients map[string]*control.Client // by digest
	shared  bool                       // the policy counts in the counts of the top level
	control *limiter.Control
	scope   string
	maxLog  int64

	mu    sync.Mutex
	tiers map[string]*tier // of those with limits of their own, once they came
}

// changed returns a setting with what is in force in the place of what the options say. It
// shares nothing with s that is changed later.
func changed(s *setting, state *control.State, by *limiter.Control) *setting {
	c := *s
	c.policies = nil
	for _, p := range s.policies {
		q := *p
		if state.DryRun != "" {
			q.dryRun = state.DryRun == "true"
		}
		q.told.DryRun = q.dryRun
		made := map[*tier]*tier{}
		q.ordinary = newTier(&q, s.scope, limitsInForce(s, p, p.ordinary, state))
		made[p.ordinary] = q.ordinary
		q.values = remake(s, p, &q, p.values, state, made)
		q.hashes = remake(s, p, &q, p.hashes, state, made)
		if p.plans != nil {
			plans := *p.plans
			plans.values = remake(s, p, &q, p.plans.values, state, made)
			plans.otherwise = made[p.plans.otherwise]
			q.plans = &plans
		}
		if p.exemptBy == &p.criterion {
			q.exemptBy = &q.criterion
		}
		c.policies = append(c.policies, &q)
	}
	top := c.policies[len(c.policies)-1]
	for _, p := range c.policies {
		if len(state.Clients) > 0 {
			p.personal = &personal{
				clients: state.Clients, control: by, scope: s.scope, maxLog: s.maxLog,
				tiers: map[string]*tier{}, shared: p.ordinary.limits[0].name == top.ordinary.limits[0].name,
			}
		}
	}
	return &c
}

// remake makes tiers anew for a policy.
func remake(s *setting, from, to *policy, tiers map[string]*tier, state *control.State, made map[*tier]*tier) map[string]*tier {
	if tiers == nil {
		return nil
	}
	all := map[string]*tier{}
	for name, t := range tiers {
		made[t] = newTier(to, s.scope, limitsInForce(s, from, t, state))
		all[name] = made[t]
	}
	return all
}

// limitsInForce returns the limits of a tier as they are in force. Windows are the same for
// all tiers; limits are replaced in the ordinary tier alone. What cannot be is left as it
// was.
func limitsInForce(s *setting, p *policy, t *tier, state *control.State) []limit {
	limits := append([]limit(nil), t.limits...)
	for i := range limits {
		l := limits[i]
		if length := state.Windows[l.name]; length > 0 {
			l.window = length
		}
		if most := state.Limits[l.name]; most > 0 && t == p.ordinary {
			l = relimit(p, l, most)
		}
		if wrongLimit(s.maxLog, p, &l) == "" {
			limits[i] = l
		}
	}
	return limits
}

// relimit returns a limit of another height. Where its burst was not given, it follows.
func relimit(p *policy, l limit, most int64) limit {
	l.limit = most
	if p.algorithm == window.Bucket && !l.given {
		l.burst = most
	}
	return l
}

// wrongLimit says why a limit cannot be, "" if it can.
func wrongLimit(maxLog int64, p *policy, l *limit) string {
	most := window.Capacity(&window.Limit{Algorithm: p.algorithm, Limit: l.limit, Burst: l.burst})
	exact := window.MaxExact / (l.window * 1000)
	switch {
	case p.cost > most:
		return "no request would pass, each costs " + strconv.FormatInt(p.cost, 10)
	case (p.algorithm == window.Sliding || p.algorithm == window.Bucket) && most > exact:
		return "for windows of this length up to " + strconv.FormatInt(exact, 10) + " can be counted"
	case p.algorithm == window.Exact && l.limit > maxLog:
		return "maxLog allows up to " + strconv.FormatInt(maxLog, 10)
	}
	return ""
}

// complain logs what is set and cannot be obeyed by this middleware, or by any of its
// scope.
func complain(l *live, state *control.State) {
	counts := countsInForce(l.setting.scope)
	for count, n := range state.Limits {
		if !counts[count] {
			limiter.Complain(l.control, field("limit", count), strconv.FormatInt(n, 10), "no count of the scope is called so")
		}
	}
	for count, n := range state.Windows {
		if !counts[count] {
			limiter.Complain(l.control, field("window", count), strconv.FormatInt(n, 10), "no count of the scope is called so")
		}
	}
	for _, p := range l.setting.policies {
		for _, each := range p.ordinary.limits {
			most, length := state.Limits[each.name], state.Windows[each.name]
			set := each
			if length > 0 {
				set.window = length
			}
			if most > 0 {
				set = relimit(p, set, most)
			}
			if want := wrongLimit(l.setting.maxLog, p, &set); want != "" && (most > 0 || length > 0) {
				limiter.Complain(l.control, field("limit", each.name), strconv.FormatInt(most, 10), want)
			}
		}
	}
}

// field returns the field of a count.
func field(name, count string) string {
	if count == "" {
		return name
	}
	return name + ":" + count
}

// allowed returns the tier of a client with limits of its own, or t where they are not for
// this policy.
func allowed(p *policy, c *control.Client, t *tier) *tier {
	g := p.personal
	g.mu.Lock()
	defer g.mu.Unlock()
	own := g.tiers[c.Hash]
	if own != nil {
		return own
	}
	limits := append([]limit(nil), p.ordinary.limits...)
	replaced := false
	for i := range limits {
		most := c.Limits[limits[i].name]
		if most == 0 && g.shared {
			most = c.Limit
		}
		if most == 0 {
			continue
		}
		l := relimit(p, limits[i], most)
		if l.burst > 0 {
			l.burst = most
		}
		want := wrongLimit(g.maxLog, p, &l)
		if want != "" {
			limiter.Complain(g.control, "allow:"+c.Hash[:12], strconv.FormatInt(most, 10), want)
			continue
		}
		limits[i] = l
		replaced = true
	}
	if !replaced {
		return t
	}
	own = newTier(p, g.scope, limits)
	equipTier(p.ordinary, own)
	g.tiers[c.Hash] = own
	return own
}

// personalOf returns what is set for a client: the tier of one with limits of its own, else
// t, and for how many seconds more it is blocked, 0 if it is not.
func personalOf(p *policy, digest string, t *tier) (own *tier, blocked int64) {
	g := p.personal
	c := g.clients[digest]
	own = t
	blocked = 0
	if c != nil {
		now := limiter.ControlTime(g.control)
		if c.BlockUntil > now {
			return t, c.BlockUntil - now
		}
		if c.AllowUntil > now {
			own = allowed(p, c, t)
		}
	}
	return own, blocked
}
