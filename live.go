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
	generation int64 // of what follows
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
	if state != nil && state.Off {
		return true, nil // whatever else is set, and be it wrong
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Whoever was told of an older one meanwhile gets the newer.
	if l.handler == nil || generation > l.generation || generation == 0 && l.generation > 0 {
		renew(l, state, generation)
	}
	return false, l.handler
}

// renew makes the handler for what is in force. If that fails the last one goes on. Who
// calls it holds the mutex.
func renew(l *live, state *control.State, generation int64) {
	defer keepLast(l)
	l.generation = generation // also where it fails, or each request would try it again
	if state == nil {
		state = &control.State{}
	}
	l.handler = handlerFor(l, state)
	complain(l, state)
}

// handlerFor returns a handler for what is in force. What it is made of is its own, since
// others serve requests by the setting meanwhile.
func handlerFor(l *live, state *control.State) *ruled {
	now := time.Now()
	s := changed(l.setting, state, l.control)
	for _, p := range s.policies {
		equip(l.ctx, p, &s.common, now)
	}
	return newRuled(l.next, s, l.name, now)
}

func keepLast(l *live) {
	r := recover()
	if r == nil {
		return
	}
	journal.Error(journal.Control, fmt.Sprintf("middleware %s: control: what was set cannot be obeyed: %v", l.name, r),
		"middleware", l.name, "scope", l.setting.scope)
	if l.handler == nil {
		l.handler = handlerFor(l, &control.State{})
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
	tiers map[string]*tier // of those who are let through, once they came; nil: not for this policy
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
		changes, _ := changesOf(s, p, state)
		q.ordinary = newTier(&q, s.scope, changedLimits(p, p.ordinary, changes))
		made[p.ordinary] = q.ordinary
		q.values = remake(s, p, &q, p.values, changes, made)
		q.hashes = remake(s, p, &q, p.hashes, changes, made)
		if p.plans != nil {
			plans := *p.plans
			plans.values = remake(s, p, &q, p.plans.values, changes, made)
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
func remake(s *setting, from, to *policy, tiers map[string]*tier, changes []change, made map[*tier]*tier) map[string]*tier {
	if tiers == nil {
		return nil
	}
	all := map[string]*tier{}
	for name, t := range tiers {
		made[t] = newTier(to, s.scope, changedLimits(from, t, changes))
		all[name] = made[t]
	}
	return all
}

// A change is what is set for one limit of a policy; 0: nothing.
type change struct {
	limit  int64
	window int64 // seconds
}

// changesOf returns what of a state is in force for each limit of a policy, and what cannot
// be. A window is the same for all tiers and has to be right for each, a limit is that of
// the ordinary tier alone.
func changesOf(s *setting, p *policy, state *control.State) (changes []change, wrong []control.Problem) {
	changes = nil
	wrong = nil
	for i, l := range p.ordinary.limits {
		set := change{limit: state.Limits[l.name], window: state.Windows[l.name]}
		if wrongChange(s, p, i, set) != "" {
			// Of two that do not go together one may be right by itself.
			whole := set
			set.limit = 0
			if want := wrongChange(s, p, i, set); want != "" {
				wrong = append(wrong, control.Problem{Field: field("window", l.name), Value: seconds(set.window), Want: want})
				set.window = 0
			}
			set.limit = whole.limit
			if want := wrongChange(s, p, i, set); want != "" {
				wrong = append(wrong, control.Problem{Field: field("limit", l.name), Value: strconv.FormatInt(set.limit, 10), Want: want})
				set.limit = 0
			}
		}
		changes = append(changes, set)
	}
	return changes, wrong
}

// wrongChange says why what is set for a limit of a policy cannot be, "" if it can.
func wrongChange(s *setting, p *policy, i int, set change) string {
	if set.limit == 0 && set.window == 0 {
		return ""
	}
	want := wrongIn(s, p, p.ordinary, i, set)
	if set.window == 0 {
		return want
	}
	tiers := []map[string]*tier{p.values, p.hashes}
	if p.plans != nil {
		tiers = append(tiers, p.plans.values)
	}
	for _, all := range tiers {
		for _, t := range all {
			if want == "" {
				want = wrongIn(s, p, t, i, set)
			}
		}
	}
	return want
}

// wrongIn is wrongChange for one tier.
func wrongIn(s *setting, p *policy, t *tier, i int, set change) string {
	l := changedLimit(p, t, i, set)
	return wrongLimit(s.maxLog, p, &l)
}

// changedLimit returns a limit of a tier as it is by what is set for it.
func changedLimit(p *policy, t *tier, i int, set change) limit {
	l := t.limits[i]
	if set.window > 0 {
		l.window = set.window
	}
	if set.limit > 0 && t == p.ordinary {
		l = relimit(p, l, set.limit)
	}
	return l
}

// limitsInForce returns the ordinary limits of a policy as they are in force.
func limitsInForce(s *setting, p *policy, state *control.State) []limit {
	changes, _ := changesOf(s, p, state)
	return changedLimits(p, p.ordinary, changes)
}

// changedLimits returns the limits of a tier as they are by what is in force.
func changedLimits(p *policy, t *tier, changes []change) []limit {
	var limits []limit
	for i := range t.limits {
		limits = append(limits, changedLimit(p, t, i, changes[i]))
	}
	return limits
}

// seconds writes the length of a window.
func seconds(n int64) string {
	return strconv.FormatInt(n, 10) + "s"
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
	const want = "no count of the scope is called so"
	for count, n := range state.Limits {
		if !counts[count] {
			limiter.Complain(l.control, field("limit", count), strconv.FormatInt(n, 10), want)
		}
	}
	for count, n := range state.Windows {
		if !counts[count] {
			limiter.Complain(l.control, field("window", count), seconds(n), want)
		}
	}
	for _, p := range l.setting.policies {
		_, wrong := changesOf(l.setting, p, state)
		for _, w := range wrong {
			limiter.Complain(l.control, w.Field, w.Value, w.Want)
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
	own, known := g.tiers[c.Hash]
	if known && own != nil {
		return own
	}
	if known {
		return t
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
			limiter.Complain(g.control, "allow:"+c.Hash[:shownDigits], strconv.FormatInt(most, 10), want)
			continue
		}
		limits[i] = l
		replaced = true
	}
	if !replaced {
		g.tiers[c.Hash] = nil
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
