package gatequota

import (
	"net/http"
	"net/netip"
	"time"

	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/reply"
	"github.com/gatequota/gatequota/rule"
	"github.com/gatequota/gatequota/source"
	"github.com/gatequota/gatequota/tally"
	"github.com/gatequota/gatequota/window"
)

// ruled is a middleware with all that the plain one does without: rules, exemptions,
// plans, several limits, a guard, dry runs. It is a handler of its own so that nobody
// pays for what they do not use.
type ruled struct {
	next     http.Handler
	front    *front // nil: none
	policies []*policy
	matches  []*rule.Match // of the policies
	paths    bool          // the path of a request matters
	regex    bool          // it is searched
	local    bool
	secret   string
	guard    *limiter.Guard // nil: none
	dryRun   bool           // of all policies
}

func newRuled(next http.Handler, s *setting, name string, now time.Time) *ruled {
	m := &ruled{next: next, policies: s.policies, local: s.common.Store == nil, secret: s.secret}
	m.dryRun = true
	for _, p := range s.policies {
		p.title = name
		if p.name != "" {
			p.title += ": rule " + p.name
		}
		m.dryRun = m.dryRun && p.dryRun
		m.matches = append(m.matches, p.match)
		m.paths = m.paths || len(s.policies) > 1 || p.exempt != nil
	}
	m.regex = rule.UsesRegex(m.matches)
	if s.guard != nil {
		m.guard = limiter.NewGuard(s.scope, s.guard.limit, s.guard.window, now)
	}
	return m
}

// ServeHTTP does what ServeHTTP of the plain middleware does, by the policy that applies.
func (m *ruled) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if m.front != nil && attend(m.front, w, req) {
		return
	}
	if !m.paths {
		if m.passes(w, req, m.policies[0], m.guard) {
			m.next.ServeHTTP(w, req)
		}
		return
	}
	path := &rule.Path{}
	rule.PathOf(req, path)
	if (m.regex || path.Odd) && len(path.Raw) > rule.MaxPath {
		m.serveTooLong(w, req)
		return
	}
	if path.Raw != path.Clean || path.Odd {
		if m.formsPass(w, req, path) {
			m.next.ServeHTTP(w, req)
		}
		return
	}
	p := m.policies[rule.Find(m.matches, req, path.Clean)]
	if p.exempt != nil && exempt(p, req, path) {
		tally.Add(p.tally, tally.Exempt)
		m.next.ServeHTTP(w, req)
	} else if m.passes(w, req, p, m.guard) {
		m.next.ServeHTTP(w, req)
	}
}

// serveTooLong serves a request whose path is too long to be searched.
func (m *ruled) serveTooLong(w http.ResponseWriter, req *http.Request) {
	rest := m.policies[len(m.policies)-1]
	if !m.dryRun {
		tally.Add(rest.tally, tally.RejectedMissing)
		reply.TooLong(w, req)
		return
	}
	m.noteDryRun(w, rest, rest.ordinary, true)
	m.next.ServeHTTP(w, req)
}

// formsPass reports whether a request passes whose path servers read in several ways: by
// the policies of all of them that do not exempt it, that of the clean form first. If not,
// it is answered.
func (m *ruled) formsPass(w http.ResponseWriter, req *http.Request, path *rule.Path) bool {
	var policies []*policy
	dry := true
	for _, form := range rule.Forms(path) {
		p := m.policies[rule.Find(m.matches, req, form)]
		known := p.exempt != nil && exempt(p, req, path)
		for _, other := range policies {
			known = known || other == p
		}
		if !known {
			policies = append(policies, p)
			dry = dry && p.dryRun
		}
	}
	if len(policies) == 0 {
		tally.Add(m.policies[rule.Find(m.matches, req, path.Clean)].tally, tally.Exempt)
	}
	// The guard is asked once, and by a policy that refuses if any does. What another
	// policy refuses behind it is given back as well.
	asks := -1
	for i, p := range policies {
		if asks < 0 && (dry || !p.dryRun) {
			asks = i
		}
	}
	at := time.Since(limiter.Began)
	for i, p := range policies {
		guard := m.guard
		if i != asks {
			guard = nil
		}
		if m.passes(w, req, p, guard) {
			continue
		}
		if m.guard != nil && i > asks {
			limiter.GiveBack(m.guard, at, policies[asks].cost)
		}
		return false
	}
	return true
}

// passes reports whether a request that is not exempt passes by a policy, behind a guard
// unless that is nil. If not, it is answered.
func (m *ruled) passes(w http.ResponseWriter, req *http.Request, p *policy, guard *limiter.Guard) bool {
	at := time.Since(limiter.Began)
	client := source.Identify(&p.criterion, req)
	if client == "" && p.criterion.OnMissing == source.MissingRefuse && !p.dryRun {
		tally.Add(p.tally, tally.RejectedMissing)
		reply.Reject(w, req)
		return false
	}
	t := p.ordinary
	if client != "" {
		t = tierOf(p, client, req, m.secret)
		if p.personal != nil {
			own, blocked := personalOf(p, keyDigest(client, m.secret), t)
			if blocked > 0 {
				return m.passesBlock(w, req, p, t, blocked)
			}
			t = own
		}
	}
	if guard != nil {
		retryAfter := limiter.TakeGuard(guard, at, p.cost)
		if retryAfter > 0 {
			return m.passesGuard(w, req, p, t, retryAfter)
		}
	}
	if client == "" {
		if p.criterion.OnMissing == source.MissingRefuse {
			m.noteDryRun(w, p, p.ordinary, true)
		} else {
			tally.Add(p.tally, tally.Skipped)
		}
		return true
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
	if guard != nil && !d.Allowed && (!p.dryRun || m.dryRun) {
		limiter.GiveBack(guard, at, p.cost)
	}
	if p.dryRun {
		m.noteDryRun(w, p, t, !d.Allowed)
		return true
	}
	tally.Count(p.tally, d)
	if d.Allowed {
		return true
	}
	if d.Reset > 0 && p.sampler != nil && due(p.sampler) {
		noteRefusal(p.sampler, client, d)
	}
	refuse(w, req, t, d)
	return false
}

// passesBlock reports whether a request passes whose client is blocked for so many more
// seconds: in a dry run. If not, it is answered.
func (m *ruled) passesBlock(w http.ResponseWriter, req *http.Request, p *policy, t *tier, seconds int64) bool {
	reply.WriteUncounted(t.fields, w.Header(), limiter.Controlled)
	if !p.dryRun {
		tally.Add(p.tally, tally.RefusedControl)
		reply.Refuse(t.fields, w, req, seconds)
		return false
	}
	m.noteDryRun(w, p, t, true)
	return true
}

// passesGuard reports whether a request passes for which the guard has no room: in a dry
// run. If not, it is answered.
func (m *ruled) passesGuard(w http.ResponseWriter, req *http.Request, p *policy, t *tier, retryAfter int64) bool {
	reply.WriteUncounted(t.fields, w.Header(), limiter.Gateway)
	if !p.dryRun {
		tally.Add(p.tally, tally.UnavailableGateway)
		reply.Unavailable(t.fields, w, req, retryAfter)
		return false
	}
	m.noteDryRun(w, p, t, true)
	return true
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

// tierOf returns the tier of a client under a policy.
func tierOf(p *policy, client string, req *http.Request, secret string) *tier {
	if t := p.values[client]; t != nil {
		return t
	}
	if len(p.hashes) > 0 {
		if t := p.hashes[keyDigest(client, secret)]; t != nil {
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

// keyDigest returns the digest of a client as keys have it, before it is hexadecimal.
func keyDigest(client, secret string) string {
	if secret == "" {
		return source.Digest(client)
	}
	return source.KeyedDigest(secret, client)
}

// tell writes the fields of an answer.
func tell(w http.ResponseWriter, t *tier, d *window.Decision) {
	switch {
	case d.Reset == 0:
		reply.WriteUncounted(t.fields, w.Header(), d.Way)
	case len(t.limits) > 1:
		reply.WriteSeveral(t.fields, w.Header(), d.Allowed, d.Several.Remaining, d.Several.Reset, d.Several.Binding, d.Way)
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
