package gatequota

import (
	"context"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
)

// quiet keeps the settings that New logs out of the output of the test.
func quiet(t *testing.T) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	os.Stderr = null
	t.Cleanup(func() {
		os.Stderr = stderr
		_ = null.Close()
	})
}

// Who uses nothing of rules and the like gets the handler that knows nothing of them.
func TestOnlyWhatIsUsedIsPaidFor(t *testing.T) {
	quiet(t)
	for name, tt := range map[string]struct {
		change func(c *Config)
		plain  bool
	}{
		"least":         {func(*Config) {}, true},
		"header":        {func(c *Config) { c.SourceCriterion.RequestHeaderName = "X-Api-Key" }, true},
		"several parts": {func(c *Config) { c.SourceCriterion = SourceCriterion{RequestHost: "true", CookieName: "id"} }, true},
		"shared":        {func(c *Config) { c.SourceCriterion = SourceCriterion{CookieName: "id", OnMissing: "shared"} }, true},
		"told":          {func(c *Config) { c.ExposeHeaders, c.Response.Status = "true", "420" }, true},
		"one of a list": {func(c *Config) {
			c.Limit, c.Window, c.Limits = nil, nil, []LimitConfig{{Name: "a", Limit: "5", Window: "1m"}}
		}, true},
		"nothing":   {func(c *Config) { c.DryRun, c.Cost, c.Exempt.Preflight = "false", "1", false }, true},
		"skip":      {func(c *Config) { c.SourceCriterion = SourceCriterion{CookieName: "id", OnMissing: "skip"} }, false},
		"refuse":    {func(c *Config) { c.SourceCriterion = SourceCriterion{CookieName: "id", OnMissing: "refuse"} }, false},
		"rules":     {func(c *Config) { c.Rules = []RuleConfig{{Name: "a", Path: "/a"}} }, false},
		"exempt":    {func(c *Config) { c.Exempt.Methods = []string{"HEAD"} }, false},
		"cost":      {func(c *Config) { c.Cost = "2" }, false},
		"dryRun":    {func(c *Config) { c.DryRun = true }, false},
		"guard":     {func(c *Config) { c.GatewayLimit = GatewayLimitConfig{Limit: "5", Window: "1m"} }, false},
		"overrides": {func(c *Config) { c.Overrides = []OverrideConfig{{Value: "192.0.2.1", Limit: "5"}} }, false},
		"plans": {func(c *Config) {
			c.Plans = PlansConfig{Header: "X-Plan", Values: map[string]AllowanceConfig{"gold": {Limit: "5"}}}
		}, false},
	} {
		config := least()
		tt.change(config)
		h, err := New(context.Background(), http.NotFoundHandler(), config, "paid@file")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, plain := h.(*middleware); plain != tt.plain {
			t.Errorf("%s: a %T", name, h)
		}
	}
}

func TestPlansAndOverridesAreForTheLimitsBesideThem(t *testing.T) {
	config := least()
	config.Plans = PlansConfig{Header: "X-Plan", Values: map[string]AllowanceConfig{"gold": {Limit: "200"}}}
	config.Overrides = []OverrideConfig{{Value: "192.0.2.1", Limit: "5"}}
	config.Rules = []RuleConfig{
		{Name: "dear", Path: "/dear", Cost: "4"},
		{Name: "apart", Path: "/apart", Limit: "30"},
		{Name: "other", Path: "/other", SourceCriterion: &SourceCriterion{RequestHost: true}},
	}
	for i, want := range []struct{ plans, overrides, name string }{{"gold", "1", ""}, {"", "0", "apart"}, {"gold", "0", "other"}, {"gold", "1", ""}} {
		p := checked(t, config).policies[i]
		plans := ""
		if p.plans != nil {
			plans = strings.Join(sorted(config.Plans.Values), ",")
		}
		if plans != want.plans || strconv.Itoa(len(p.values)) != want.overrides || p.ordinary.limits[0].name != want.name {
			t.Errorf("rule %q: plans %q, %d overrides, count %q; want %+v", p.name, plans, len(p.values), p.ordinary.limits[0].name, want)
		}
	}
}

func TestSummaryTellsOfRules(t *testing.T) {
	const secret = "hunter2-5c55"
	config := least()
	config.SourceCriterion = SourceCriterion{RequestHeaderName: "X-Api-Key", CookieName: "id", OnMissing: "refuse", IPStrategy: &IPStrategy{TrustedIPs: []string{"10.0.0.0/8"}, IPv4Subnet: "24"}}
	config.GatewayLimit = GatewayLimitConfig{Limit: "900", Window: "1m"}
	config.Plans = PlansConfig{Header: "X-Plan", Values: map[string]AllowanceConfig{"gold": {Limit: "500"}, "tin": {Limit: "5"}}}
	config.Exempt.Paths = []string{"/healthz"}
	config.Rules = []RuleConfig{
		{Name: "login", Path: "/login", Limits: []LimitConfig{{Name: "short", Limit: "5", Window: "1m"}, {Name: "long", Limit: "20", Window: "1d"}},
			SourceCriterion: &SourceCriterion{RequestHeaderName: "X-Api-Key"}, OnStoreFailure: "closed", DryRun: "true",
			Overrides: []OverrideConfig{{Value: secret, Limits: []LimitConfig{{Name: "short", Limit: "50"}}}}},
		{Name: "dear", Path: "/dear", Cost: "10"},
	}
	config.Valkey.KeySecret = secret + secret
	summary := checked(t, config).summary
	for _, told := range []string{
		"limit 100 in 1m0s", "by header X-Api-Key and cookie id and address behind trusted [10.0.0.0/8], IPv4 by /24, IPv6 by /64 or else refuse", `exempt ips [] paths ["/healthz"] methods [] preflight false`, `plans "gold" 500 "tin" 5`,
		"all clients on this gateway 900 in 1m0s", "rule login (for path \"/login\", limit short 5 in 1m0s, limit long 20 in 1d, by header X-Api-Key, 1 overrides 50 20, dry run, onStoreFailure closed)",
		"rule dear (for path \"/dear\", limit 100 in 1m0s, cost 10, plans \"gold\" 500 \"tin\" 5)", "keySecret true",
	} {
		if !strings.Contains(summary, told) {
			t.Errorf("the summary lacks %q: %s", told, summary)
		}
	}
	if strings.Contains(summary, secret) || strings.Contains(summary, "\n") {
		t.Errorf("the summary is %q", summary)
	}
}

// An inherited exemption finds addresses as the options do beside which it stands.
func TestInheritedExemptionsFindTheSameAddresses(t *testing.T) {
	config := least()
	config.SourceCriterion.IPStrategy = &IPStrategy{TrustedIPs: []string{"10.0.0.1"}}
	config.Exempt.IPs = []string{"10.0.0.0/8"}
	header := &SourceCriterion{RequestHeaderName: "X-Api-Key"}
	config.Rules = []RuleConfig{
		{Name: "inherits", Path: "/a", SourceCriterion: header},
		{Name: "own", Path: "/b", SourceCriterion: header, Exempt: &ExemptConfig{IPs: []string{"10.0.0.0/8"}}},
		{Name: "same", Path: "/c"},
	}
	s := checked(t, config)
	for i, behindProxies := range []bool{true, false, true, true} {
		if got := len(s.policies[i].exemptBy.Trusted) == 1; got != behindProxies {
			t.Errorf("policy %d finds addresses behind proxies: %t", i, got)
		}
	}
}
