package gatequota

import (
	"math"
	"net/http"
	"net/netip"
	"time"

	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/reply"
	"github.com/gatequota/gatequota/rule"
	"github.com/gatequota/gatequota/source"
	"github.com/gatequota/gatequota/window"
)

// ruled is a middleware with all that the plain one does without: rules, exemptions,
// plans, several limits, a guard, dry runs. It is a handler of its own so that nobody
// pays for what they do not use.
type ruled struct {
	next     http.Handler
	name     string
	policies []*policy
	matches  []*rule.Match // of the policies
	paths    bool          // the path of a request matters
	local    bool
	secret   string
	guard    *limiter.Guard // nil: none
	dryRun   bool           // of all policies
}

func newRuled(next http.Handler, s *setting, name string, now time.Time) *ruled {
	m := &ruled{next: next, name: name, policies: s.policies, local: s.common.Store == nil, secret: s.secret}
	m.dryRun = true
	for _, p := range s.policies {
		m.dryRun = m.dryRun && p.dryRun
		m.matches = append(m.matches, p.match)
		m.paths = m.paths || len(s.policies) > 1 || p.exempt != nil
	}
	if s.guard != nil {
		m.guard = limiter.NewGuard(s.scope, s.guard.limit, s.guard.window, now)
	}
	return m
}

// ServeHTTP does what ServeHTTP of the plain middleware does, by the policy that applies.
func (m *ruled) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	p := m.policies[0]
	if m.paths {
		path := &rule.Path{}
		rule.PathOf(req, path)
		if path.Raw == path.Clean {
			p = m.policies[rule.Find(m.matches, req, path)]
		} else {
			p = m.stricter(req, path)
		}
		if p.exempt != nil && exempt(p, req, path) {
			m.next.ServeHTTP(w, req)
			return
		}
	}
	client := source.Identify(&p.criterion, req)
	if client == "" {
		m.serveNameless(w, req, p)
		return
	}
	m.serveClient(w, req, p, client)
}

// stricter returns the policy of a request whose path has two forms: that for the clean
// one, unless the one for the raw lets this client make fewer requests.
func (m *ruled) stricter(req *http.Request, path *rule.Path) *policy {
	clean := m.policies[rule.Find(m.matches, req, &rule.Path{Clean: path.Clean, Raw: path.Clean})]
	raw := m.policies[rule.Find(m.matches, req, &rule.Path{Clean: path.Raw, Raw: path.Raw})]
	if raw != clean && m.rate(raw, req, path) < m.rate(clean, req, path) {
		return raw
	}
	return clean
}

// rate returns how many requests a second a policy lets the client of this one make.
func (m *ruled) rate(p *policy, req *http.Request, path *rule.Path) float64 {
	if p.dryRun || p.exempt != nil && exempt(p, req, path) {
		return math.Inf(1)
	}
	client := source.Identify(&p.criterion, req)
	switch {
	case client != "":
		return tierOf(p, client, req, m.secret).rate
	case p.criterion.OnMissing == source.MissingSkip:
		return math.Inf(1)
	}
	return 0
}

// exempt reports whether a policy does not limit a request.
func exempt(p *policy, req *http.Request, path *rule.Path) bool {
	addr := netip.Addr{}
	if len(p.exempt.Networks) > 0 {
		found, certain := source.ClientAddr(p.exemptBy, req)
		if certain {
			addr = found
		}
	}
	return rule.Exempted(p.exempt, req, path, addr)
}

// serveNameless serves a request that lacks what clients are told apart by.
func (m *ruled) serveNameless(w http.ResponseWriter, req *http.Request, p *policy) {
	refused := p.criterion.OnMissing == source.MissingRefuse
	if refused && !p.dryRun {
		reply.Reject(w, req)
		return
	}
	if m.guard != nil {
		retryAfter := limiter.TakeGuard(m.guard, time.Since(limiter.Began), p.cost)
		if retryAfter > 0 {
			m.serveGuarded(w, req, p, p.ordinary, retryAfter)
			return
		}
	}
	if refused {
		m.noteDryRun(w, p, p.ordinary, true)
	}
	m.next.ServeHTTP(w, req)
}

// serveClient serves a request of a client by a policy.
func (m *ruled) serveClient(w http.ResponseWriter, req *http.Request, p *policy, client string) {
	at := time.Since(limiter.Began)
	t := tierOf(p, client, req, m.secret)
	if m.guard != nil {
		retryAfter := limiter.TakeGuard(m.guard, at, p.cost)
		if retryAfter > 0 {
			m.serveGuarded(w, req, p, t, retryAfter)
			return
		}
	}
	d := &window.Decision{}
	switch {
	case t.several != nil && len(t.limits) == 1:
		limiter.TakeOne(t.several, client, at, d)
	case t.several != nil:
		limiter.TakeSeveral(t.several, client, at, d)
	case m.local:
		limiter.TakeLocal(t.one, client, at, d)
	default:
		limiter.TakeShared(t.one, client, at, d)
	}
	tell(w, t, d)
	// What passes all the same is for the guard to count, unless it is itself on trial.
	if m.guard != nil && !d.Allowed && (!p.dryRun || m.dryRun) {
		limiter.GiveBack(m.guard, at, p.cost)
	}
	if p.dryRun {
		m.noteDryRun(w, p, t, !d.Allowed)
	} else if !d.Allowed {
		refuse(w, req, t, d)
		return
	}
	m.next.ServeHTTP(w, req)
}

// serveGuarded serves a request for which the guard has no room.
func (m *ruled) serveGuarded(w http.ResponseWriter, req *http.Request, p *policy, t *tier, retryAfter int64) {
	reply.WriteUncounted(t.fields, w.Header(), limiter.Gateway)
	if !p.dryRun {
		reply.Unavailable(t.fields, w, req, retryAfter)
		return
	}
	m.noteDryRun(w, p, t, true)
	m.next.ServeHTTP(w, req)
}

// tierOf returns the tier of a client under a policy.
func tierOf(p *policy, client string, req *http.Request, secret string) *tier {
	if t := p.values[client]; t != nil {
		return t
	}
	if len(p.hashes) > 0 {
		digest := ""
		if secret == "" {
			digest = source.Digest(client)
		} else {
			digest = source.KeyedDigest(secret, client)
		}
		if t := p.hashes[digest]; t != nil {
			return t
		}
	}
	if p.plans == nil {
		return p.ordinary
	}
	plan := ""
	if p.plans.header != "" {
		plan = source.HeaderValue(req, p.plans.header)
	} else {
		plan = source.Claim(req, p.plans.claim)
	}
	if t := p.plans.values[plan]; t != nil {
		return t
	}
	return p.plans.otherwise
}

// tell writes the fields of an answer.
func tell(w http.ResponseWriter, t *tier, d *window.Decision) {
	switch {
	case d.Reset == 0:
		reply.WriteUncounted(t.fields, w.Header(), d.Way)
	case len(t.limits) > 1:
		reply.WriteSeveral(t.fields, w.Header(), d.Allowed, d.Several.Remaining, d.Several.Reset, d.Several.Refused, d.Way)
	default:
		reply.Write(t.fields, w.Header(), d.Allowed, d.Remaining, d.Reset, d.Way)
	}
}

// refuse answers a request that is refused.
func refuse(w http.ResponseWriter, req *http.Request, t *tier, d *window.Decision) {
	switch {
	case d.Reset == 0:
		reply.Unavailable(t.fields, w, req, d.RetryAfter)
	case len(t.limits) > 1:
		reply.RefuseSeveral(t.fields, w, req, d.RetryAfter, d.Several.Refused)
	default:
		reply.Refuse(t.fields, w, req, d.RetryAfter)
	}
}
