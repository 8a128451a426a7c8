package gatequota

import (
	"reflect"
	"strings"
	"testing"
)

// tags returns the options of a type and of all types inside it, in the form of known.
func tags(of reflect.Type, into map[string]map[string]string) {
	if into[of.Name()] != nil {
		return
	}
	names := map[string]string{}
	into[of.Name()] = names
	for i := 0; i < of.NumField(); i++ {
		field := of.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		inner, shape := field.Type, ""
		if name == "log" {
			inner = reflect.TypeOf(LogConfig{}) // or one of its options by itself
		}
		switch inner.Kind() {
		case reflect.Slice:
			inner, shape = inner.Elem(), "[]"
		case reflect.Map:
			inner, shape = inner.Elem(), "map[string]"
		case reflect.Ptr:
			inner = inner.Elem()
		}
		if inner.Kind() != reflect.Struct {
			names[name] = ""
			continue
		}
		names[name] = shape + inner.Name()
		tags(inner, into)
	}
}

func TestKnownNamesAreThoseOfTheOptions(t *testing.T) {
	want := map[string]map[string]string{}
	tags(reflect.TypeOf(Config{}), want)
	for level, names := range want {
		for name, inner := range names {
			got, there := known[level][name]
			if !there || got != inner {
				t.Errorf("%s: the option %s is %q in the table (there: %t), want %q", level, name, got, there, inner)
			}
		}
	}
	for level, names := range known {
		for name := range names {
			if _, there := want[level][name]; !there {
				t.Errorf("%s: the table has %s, and no option is called so", level, name)
			}
		}
	}
}

// Traefik finds the field of an option by the field's name, whatever its tag says.
func TestFieldsAreFoundByTheNamesOfTheOptions(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var walk func(of reflect.Type)
	walk = func(of reflect.Type) {
		for of.Kind() == reflect.Slice || of.Kind() == reflect.Map || of.Kind() == reflect.Ptr {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct || seen[of] {
			return
		}
		seen[of] = true
		for i := 0; i < of.NumField(); i++ {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if name != "-" && !strings.EqualFold(name, of.Field(i).Name) {
				t.Errorf("%s: the field %s has the tag %s", of.Name(), of.Field(i).Name, name)
			}
			walk(of.Field(i).Type)
		}
	}
	walk(reflect.TypeOf(Config{}))
}

func TestNearest(t *testing.T) {
	for _, tt := range []struct{ path, name, want string }{
		// Slips.
		{"", "limt", "did you mean limit?"},
		{"", "sourceCriteria", "did you mean sourceCriterion?"},
		{"", "source_criterion", "did you mean sourceCriterion?"},
		{"", "SOURCE-CRITERION", "did you mean sourceCriterion?"},
		{"", "plan", "did you mean plans?"},
		{"", "header", "did you mean headers?"},
		{"", "gatewayLimits", "did you mean gatewayLimit?"},
		{"valkey.", "endpoint", "did you mean valkey.endpoints?"},
		{"valkey.tls.", "certs", "did you mean valkey.tls.cert?"},
		{"rules[12].", "pathprefx", "did you mean rules[12].pathPrefix?"},
		{"rules[2].header.", "names", "did you mean rules[2].header.name?"},
		{"rules[2].plans.values.gold.limits[1].", "nme", "did you mean rules[2].plans.values.gold.limits[1].name?"},
		{"plans.values.gold.eu.", "limitt", "did you mean plans.values.gold.eu.limit?"},
		// Halves.
		{"sourceCriterion.", "requestHeader", "did you mean sourceCriterion.requestHeaderName?"},
		{"sourceCriterion.", "header", "did you mean sourceCriterion.requestHeaderName?"},
		{"sourceCriterion.", "claim", "did you mean sourceCriterion.jwtClaim?"},
		{"valkey.", "secret", "did you mean valkey.keySecret?"},
		{"", "limitPerMinute", "did you mean limit?"},
		// Beginnings, unless they are whole names elsewhere.
		{"exempt.", "ip", "did you mean exempt.ips?"},
		{"exempt.", "pre", "did you mean exempt.preflight?"},
		{"", "ip", "did you mean ipStrategy?"},
		{"", "win", "did you mean window?"},
		{"rules[2].", "on", "did you mean rules[2].onStoreFailure?"},
		{"", "ips", "it belongs into exempt, as exempt.ips"},
		{"valkey.", "key", "it belongs into valkey.tls, as valkey.tls.key"},
		// The wrong level.
		{"", "endpoints", "it belongs into valkey, as valkey.endpoints"},
		{"", "requestHeaderName", "it belongs into sourceCriterion, as sourceCriterion.requestHeaderName"},
		{"", "depth", "it belongs into ipStrategy, as ipStrategy.depth"},
		{"", "insecureSkipVerify", "it belongs into valkey.tls, as valkey.tls.insecureSkipVerify"},
		{"", "pathPrefix", "it belongs into rules[0], as rules[0].pathPrefix"},
		{"", "keySecret_file", "it belongs into valkey, as valkey.keySecretFile"},
		{"rules[2].", "depth", "it belongs into rules[2].sourceCriterion.ipStrategy, as rules[2].sourceCriterion.ipStrategy.depth"},
		{"rules[2].sourceCriterion.ipStrategy.", "cookieName", "it belongs into rules[2].sourceCriterion, as rules[2].sourceCriterion.cookieName"},
		{"", "path", "it belongs into rules[0], as rules[0].path"},
		{"", "format", "it belongs into log, as log.format"},
		{"", "allow", "it belongs into metrics, as metrics.allow"},
		{"valkey.", "refusal", "did you mean log.refusals?"},
		{"status.", "refusals", "it belongs into log, as log.refusals"},
		{"status.", "tokenfile", "did you mean status.tokenFile?"},
		{"log.", "level", ""},
		{"rules[2].", "control", "it belongs on the top level, as control"},
		{"rules[2].", "log", "it belongs on the top level, as log"},
		{"rules[2].", "scope", "it belongs on the top level, as scope"},
		{"rules[2].", "status", "it belongs into response, as response.status"},
		{"valkey.", "limit", "it belongs on the top level, as limit"},
		{"valkey.tls.", "endpoints", "it belongs into valkey, as valkey.endpoints"},
		{"plans.values.gold.", "header", "it belongs into plans, as plans.header"},
		// Both.
		{"", "endpoint", "did you mean valkey.endpoints?"},
		// What another middleware calls so.
		{"", "average", "did you mean limit?"},
		{"", "Period", "did you mean window?"},
		{"", "redis", "did you mean valkey?"},
		{"", "rate", "did you mean limit?"},
		{"rules[2].", "average", "did you mean rules[2].limit?"},
		{"rules[2].limits[1].", "period", "did you mean rules[2].limits[1].window?"},
		{"plans.values.gold.", "average", "did you mean plans.values.gold.limit?"},
		{"overrides[3].", "rate", "did you mean overrides[3].limit?"},
		{"valkey.", "redis", "it belongs on the top level, as valkey"},
		// What plans and overrides cannot have.
		{"plans.values.gold.", "window", "windows are the same for all clients, and are set by window"},
		{"plans.values.gold.", "Period", "windows are the same for all clients, and are set by window"},
		{"plans.", "window", "windows are the same for all clients, and are set by window"},
		{"overrides[3].", "windows", "windows are the same for all clients, and are set by window"},
		{"rules[2].overrides[3].", "window", "windows are the same for all clients, and are set by rules[2].window"},
		{"rules[2].plans.values.gold.", "window", "windows are the same for all clients, and are set by rules[2].window"},
		{"rules[2].plans.values.gold.limits[0].", "wndow", "windows are the same for all clients, and are set by rules[2].window"},
		{"overrides[3].", "key", "a client is named by either overrides[3].value or overrides[3].hash"},
		{"rules[2].overrides[3].", "API-Key", "a client is named by either rules[2].overrides[3].value or rules[2].overrides[3].hash"},
		// Neither.
		{"", "colour", ""},
		{"", "x", ""},
		{"", "l", ""},
		{"exempt.", "ps", ""},
		{"", "", ""},
		{"", "enabled", ""},
		{"valkey.", "cluster", ""},
		{"", "été", ""},
		{"", strings.Repeat("limit", 2000), "did you mean limit?"},
	} {
		if got := nearest(tt.path, tt.name, nil); got != tt.want {
			t.Errorf("%s%s: %q, want %q", tt.path, tt.name, got, tt.want)
		}
	}
}

func TestNearestKnowsNamesInPlacesOfTheirOwn(t *testing.T) {
	inner := map[string]interface{}{"colour": 1, "limit": 5, "path": "/login"}
	for _, tt := range []struct {
		path, name string
		inner      map[string]interface{}
		want       string
	}{
		{"plans.", "gold", inner, "did you mean plans.values.gold.limit?"},
		{"rules[2].plans.", "gold", inner, "did you mean rules[2].plans.values.gold.limit?"},
		{"plans.", "gold", nil, "did you mean plans.values.gold?"},
		{"plans.", "vales", inner, "did you mean plans.values?"},
		{"rules[0].", "login", inner, `the entries of a list have numbers, not names: write rules[0] for the first, and "login" as rules[0].name`},
		{"limits[0].", "day", inner, `the entries of a list have numbers, not names: write limits[0] for the first, and "day" as limits[0].name`},
		{"rules[2].limits[0].", "limit-a", inner, `the entries of a list have numbers, not names: write rules[2].limits[0] for the first, and "limit-a" as rules[2].limits[0].name`},
		{"overrides[0].", "acme", inner, "the entries of a list have numbers, not names: write overrides[0]"},
		{"rules[0].", "headr", inner, "did you mean rules[0].header?"},
		{"rules[0].", "response", inner, "it belongs on the top level, as response"},
		{"rules[0].", "status", inner, "it belongs on the top level, as status"},
		{"", "login", inner, ""},
	} {
		if got := nearest(tt.path, tt.name, tt.inner); got != tt.want {
			t.Errorf("%s%s: %q, want %q", tt.path, tt.name, got, tt.want)
		}
	}
}

// everywhere calls do with the path and the type of each level.
func everywhere(path, level string, do func(path, level string)) {
	do(path, level)
	for name, inner := range known[level] {
		next := inner[strings.IndexByte(inner, ']')+1:]
		switch {
		case inner == "":
		case strings.HasPrefix(inner, "[]"):
			everywhere(path+name+"[3].", next, do)
		case strings.HasPrefix(inner, "map"):
			everywhere(path+name+".gold.", next, do)
		default:
			everywhere(path+name+".", next, do)
		}
	}
}

func TestNearestKnowsEachOptionInOtherSpellings(t *testing.T) {
	everywhere("", "Config", func(path, level string) {
		for name := range known[level] {
			want := "did you mean " + path + name + "?"
			if around := windowOf(path); around >= 0 && name == "window" {
				want = "windows are the same for all clients, and are set by " + path[:around] + "window"
			}
			for _, spelling := range []string{name + "_", "-" + name, name[:1] + "_" + strings.ToUpper(name[1:])} {
				if got := nearest(path, spelling, nil); got != want {
					t.Errorf("%s%s: %q, want %q", path, spelling, got, want)
				}
			}
		}
	})
}

// A hint that led to another unknown option would be worse than none.
func TestNearestNamesOptionsThatExist(t *testing.T) {
	all := map[string]bool{}
	for _, names := range known {
		for name := range names {
			all[name] = true
		}
	}
	everywhere("", "Config", func(path, level string) {
		for name := range all {
			if _, there := known[level][name]; there {
				continue
			}
			hint := nearest(path, name, nil)
			if hint == "" {
				t.Errorf("%s%s: no hint, and the option exists elsewhere", path, name)
				continue
			}
			words := strings.Fields(strings.TrimSuffix(hint, "?"))
			named := words[len(words)-1]
			dot := strings.LastIndexByte(named, '.') + 1
			if _, there := known[levelOf(named[:dot])][named[dot:]]; !there {
				t.Errorf("%s%s: %q, which names no option", path, name, hint)
			}
		}
	})
}

func TestMessagesSayWhatWasRead(t *testing.T) {
	for want, change := range map[string]func(c *Config){
		`option valkey.timeout: "100": a time from 1ms to 10s is wanted, such as 10ms; without a unit it was read as 100 seconds`: func(c *Config) { c.Valkey.Timeout = 100 },
		"such as 10ms":                                               func(c *Config) { c.Valkey.Timeout = "100h" },
		"option window: \"0\"":                                       func(c *Config) { c.Window = "0" },
		"option scope is one text, and no list":                      func(c *Config) { c.Scope = []interface{}{"a", "b"} },
		"option scope is no text but a number":                       func(c *Config) { c.Scope = 5.0 },
		"option valkey.password is no text but a boo":                func(c *Config) { c.Valkey.Password = true },
		"option scope is a text, and there are no options inside it": func(c *Config) { c.Scope = map[string]interface{}{"name": "a"} },
		"did you mean plans.values.gold.limit?": func(c *Config) {
			c.Plans.Unknown = map[string]interface{}{"gold": map[string]interface{}{"limit": "5"}}
		},
		"and \"login\" as rules[0].name": func(c *Config) {
			c.Rules = []RuleConfig{{Unknown: map[string]interface{}{"login": map[string]interface{}{"path": "/login"}}}}
		},
	} {
		config := least()
		change(config)
		if _, err := check(config, "quota@docker"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
