package gatequota

import (
	"encoding/json"
	"strings"
	"testing"
)

// FuzzCheck wants of whatever the options are a setting that limits, or an error that
// names an option.
func FuzzCheck(f *testing.F) {
	for _, seed := range []string{
		`{}`,
		`{"limit": "5", "window": "1m", "mode": "local", "limmit": "6"}`,
		`{"limit": "5", "window": "1m", "mode": "local", "algorithm": "token-bucket", "burst": "1"}`,
		`{"limit": "5", "window": "1m", "mode": "local"}`,
		`{"limit": 5, "window": 60, "valkey": {"endpoints": ["valkey"]}}`,
		`{"limits": [{"name": "a", "limit": "1", "window": "1s"}, {"name": "b", "limit": "9", "window": "1d"}], "mode": "local"}`,
		`{"limit": "9", "window": "1s", "mode": "local", "cost": "3", "plans": {"header": "X-Plan", "values": {"gold": {"limit": "99"}}}}`,
		`{"limit": "9", "window": "1s", "mode": "local", "overrides": [{"value": "10.0.0.1", "limit": "1"}]}`,
		`{"limit": "9", "window": "1s", "mode": "local", "rules": [{"name": "login", "path": "/login", "limit": "1"}, {"name": "q", "pathRegex": "^/q", "cost": 2}]}`,
		`{"limit": "9", "window": "1s", "mode": "local", "exempt": {"ips": ["10.0.0.0/8"], "paths": ["/health", "/assets/*"], "preflight": true}}`,
		`{"limit": "9", "window": "1s", "mode": "local", "sourceCriterion": {"jwtClaim": "sub", "pathSegment": 1, "ipStrategy": {"trustedIPs": ["10.0.0.1"], "ipv4Subnet": 24}}}`,
		`{"limit": "9", "window": "1s", "mode": "local", "gatewayLimit": {"limit": 5, "window": "1s"}, "response": {"status": 503, "body": "x"}, "dryRun": true}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		config := CreateConfig()
		if json.Unmarshal([]byte(text), config) != nil {
			return // no options
		}
		// A file that an option names is none of this test.
		config.Valkey.PasswordFile = nil
		config.Valkey.KeySecretFile = nil
		config.Valkey.TLS = nil
		all := map[string]interface{}{}
		_ = json.Unmarshal([]byte(text), &all)
		for name, value := range all {
			if _, ok := known["Config"][name]; !ok {
				if config.Unknown == nil {
					config.Unknown = map[string]interface{}{}
				}
				config.Unknown[name] = value
			}
		}
		s, err := check(config, "quota@file")
		if err != nil {
			if !strings.Contains(err.Error(), "option ") {
				t.Errorf("%s: the error names no option: %v", text, err)
			}
			return
		}
		for _, p := range s.policies {
			tiers := []*tier{p.ordinary}
			for _, each := range p.values {
				tiers = append(tiers, each)
			}
			if p.plans != nil {
				for _, each := range p.plans.values {
					tiers = append(tiers, each)
				}
			}
			for _, each := range tiers {
				for _, l := range each.limits {
					if l.limit < 1 || l.window < 1 || p.cost < 1 || each == p.ordinary && l.burst == 0 && p.cost > l.limit {
						t.Errorf("%s: policy %q has a limit %d in %d s at a cost of %d", text, p.name, l.limit, l.window, p.cost)
					}
				}
			}
		}
	})
}
