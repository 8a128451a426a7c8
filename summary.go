package gatequota

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/source"
)

// summarize says for the log what is in force.
func summarize(s *setting, config *Config) string {
	rest := s.policies[len(s.policies)-1]
	text := describePolicy(rest, nil) + ", scope " + s.scope + ", headers " + fmt.Sprint(or(config.Headers, "both")) + ", maxClients " + strconv.Itoa(s.common.MaxClients)
	if config.DecisionHeader != nil {
		text += fmt.Sprintf(", decisionHeader %q", config.DecisionHeader)
	}
	if rest.told.Expose {
		text += ", fields exposed"
	}
	if rest.told.Status != 429 || rest.told.Body != "" {
		text += fmt.Sprintf(", refusals %d with %d bytes of their own", rest.told.Status, len(rest.told.Body))
	}
	if s.guard != nil {
		text += fmt.Sprintf(", all clients on this gateway %d in %s", s.guard.limit, brief(time.Duration(s.guard.window)*time.Second))
	}
	for _, p := range s.policies[:len(s.policies)-1] {
		text += ", rule " + p.name + " (" + describePolicy(p, rest) + ")"
	}
	text += describeWatching(s)
	store := s.common.Store
	if store == nil {
		return text + ", mode local"
	}
	text += fmt.Sprintf(", mode shared, store %s db %d user %q tls %t timeout %s dialTimeout %s keyPrefix %s keySecret %t, onStoreFailure %s",
		store.Endpoint, store.DB, store.Username, store.TLS != nil, store.Timeout, store.DialTimeout, store.KeyPrefix, store.KeySecret != "", rest.onStoreFailure)
	if rest.onStoreFailure == limiter.Local {
		text += describeFallback(&s.common)
	}
	return text
}

// describeWatching says who may watch, what is logged and whether limits can be changed
// while they are in force. It is empty where nothing is said of all that.
func describeWatching(s *setting) string {
	text := describeWatch("metrics", s.metrics) + describeWatch("status", s.status)
	if s.json {
		text += ", log json"
	}
	if s.refusals > 0 {
		text += ", refusals logged 1/" + strconv.FormatInt(s.refusals, 10)
	}
	if s.control {
		text += ", control"
	}
	return text
}

func describeWatch(name string, w *watch) string {
	if w == nil {
		return ""
	}
	return fmt.Sprintf(", %s on %s for %v token %t", name, w.path, w.allow, w.token != "")
}

// describePolicy says what a policy does, and of a rule only what it does otherwise than
// the rest.
func describePolicy(p, rest *policy) string {
	var parts []string
	if rest != nil {
		parts = append(parts, describeConditions(p.options))
	}
	for _, l := range p.ordinary.limits {
		name := ""
		if l.own != "" {
			name = l.own + " "
		}
		limit := fmt.Sprintf("limit %s%d in %s", name, l.limit, brief(time.Duration(l.window)*time.Second))
		if l.burst > 0 {
			limit += " burst " + strconv.FormatInt(l.burst, 10)
		}
		parts = append(parts, limit)
	}
	if p.options.Algorithm != nil {
		parts = append(parts, fmt.Sprint(p.options.Algorithm))
	}
	if p.cost > 1 {
		parts = append(parts, "cost "+strconv.FormatInt(p.cost, 10))
	}
	if rest == nil || p.options.SourceCriterion != nil {
		parts = append(parts, "by "+describe(&p.criterion))
	}
	if e := p.options.Exempt; p.exempt != nil && e != nil {
		parts = append(parts, fmt.Sprintf("exempt ips %q paths %q methods %q preflight %t", e.IPs, e.Paths, e.Methods, p.exempt.Preflight))
	}
	if p.plans != nil {
		var plans []string
		for name, t := range p.plans.values {
			plans = append(plans, strconv.Quote(name)+describeHeights(t))
		}
		sort.Strings(plans)
		parts = append(parts, "plans "+strings.Join(plans, " "))
	}
	if len(p.values)+len(p.hashes) > 0 {
		// Whom they are for may be a secret.
		var heights []string
		for _, t := range p.values {
			heights = append(heights, describeHeights(t))
		}
		for _, t := range p.hashes {
			heights = append(heights, describeHeights(t))
		}
		sort.Strings(heights)
		parts = append(parts, strconv.Itoa(len(heights))+" overrides"+strings.Join(heights, ""))
	}
	if p.dryRun {
		parts = append(parts, "dry run")
	}
	if rest != nil && p.options.OnStoreFailure != nil {
		parts = append(parts, "onStoreFailure "+p.onStoreFailure)
	}
	return strings.Join(parts, ", ")
}

// describeHeights says how high the limits of a tier are.
func describeHeights(t *tier) string {
	text := ""
	for _, l := range t.limits {
		text += " " + strconv.FormatInt(l.limit, 10)
		if l.burst > 0 {
			text += "/" + strconv.FormatInt(l.burst, 10)
		}
	}
	return text
}

// describeConditions says when a rule applies. The value of a header may be a secret.
func describeConditions(r *RuleConfig) string {
	text := "for"
	for _, c := range []struct {
		name  string
		value interface{}
	}{{"path", r.Path}, {"pathPrefix", r.PathPrefix}, {"pathRegex", r.PathRegex}, {"host", r.Host}, {"header", r.Header.Name}} {
		if c.value != nil {
			text += fmt.Sprintf(" %s %q", c.name, c.value)
		}
	}
	if len(r.Methods) > 0 {
		text += fmt.Sprintf(" methods %q", r.Methods)
	}
	return text
}

// describe says by what clients are told apart.
func describe(c *source.Criterion) string {
	var parts []string
	if c.Header != "" {
		parts = append(parts, "header "+c.Header)
	}
	for _, name := range c.Headers {
		parts = append(parts, "header "+name)
	}
	if c.Host {
		parts = append(parts, "host")
	}
	if c.Cookie != "" {
		parts = append(parts, "cookie "+c.Cookie)
	}
	if c.Query != "" {
		parts = append(parts, "query parameter "+strconv.Quote(c.Query))
	}
	if c.Segment > 0 {
		parts = append(parts, "path segment "+strconv.Itoa(c.Segment))
	}
	if c.Claim != "" {
		parts = append(parts, "claim "+strconv.Quote(c.Claim))
	}
	if c.TLSSubject {
		parts = append(parts, "certificate")
	}
	byAddress := c.Address || len(parts) == 0
	if byAddress {
		parts = append(parts, describeAddress(c))
	}
	text := strings.Join(parts, " and ")
	if c.OnMissing != source.MissingAddress {
		text += " or else " + c.OnMissing
	}
	if !byAddress && (c.Depth > 0 || len(c.Excluded)+len(c.Trusted) > 0) {
		text += ", " + describeAddress(c)
	}
	return text
}

// describeAddress says which address counts.
func describeAddress(c *source.Criterion) string {
	text := "address"
	if c.Depth > 0 {
		text += " at depth " + strconv.Itoa(c.Depth)
	}
	if len(c.Excluded) > 0 {
		text += fmt.Sprintf(" behind %v", c.Excluded)
	}
	if len(c.Trusted) > 0 {
		text += fmt.Sprintf(" behind trusted %v", c.Trusted)
	}
	if c.IPv4Subnet < 32 && c.IPv4Subnet > 0 {
		text += ", IPv4 by /" + strconv.Itoa(c.IPv4Subnet)
	}
	return text + ", IPv6 by /" + strconv.Itoa(c.IPv6Subnet)
}

// describeFallback says for the log what a gateway lets pass alone.
func describeFallback(s *limiter.Settings) string {
	switch {
	case s.FallbackLimit > 0:
		return " up to " + strconv.FormatInt(s.FallbackLimit, 10)
	case s.FallbackGateways > 0:
		return " shared by " + strconv.FormatInt(s.FallbackGateways, 10) + " gateways"
	}
	return " shared by the gateways announced"
}
