package suite

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// refusedOptions is about wrong options of rules, limits, plans and the like.
var refusedOptions = tests{
	{"a wrong option is refused wherever it stands", wrongNested},
	{"a missing option is refused wherever it belongs", missingNested},
	{"an unknown option is told the nearest known one", nearestKnown},
	{"options that do not fit together are refused", misfits},
	{"what tells clients apart is in no refusal", clientsNotInRefusals},
	{"each form of a right option of rules and the like is taken", rightNested},
}

// places are where options stand that may stand in several places: what goes around an
// option, and how it is called there.
var places = []struct {
	path string
	set  func(options map[string]any, option string, value any) map[string]any
}{
	{"", func(options map[string]any, option string, value any) map[string]any {
		return with(options, option, value)
	}},
	{"rules[1].", func(options map[string]any, option string, value any) map[string]any {
		return with(options, "rules", []any{entry("name", "first", "path", "/first"), entry("name", "second", "path", "/second", option, value)})
	}},
}

func wrongNested(t *T) {
	integers := []any{"", " 5", "010", "0x10", "1e3", "-1", "1.9", "true", "five", "99999999999999999999", float64(-1), 1.9, true, list, group}
	limits := append([]any{"0", float64(0), "1000000000000000"}, integers...)
	windows := []any{"", "0s", "-1s", "1500ms", "367d", "1w", "60 s", "soon", 1.5, true, list, group}
	texts := []any{float64(5), true, list, group}
	booleans := []any{"", "yes", "1", "TRUE", float64(1), list, group}
	names := append([]any{"", "a b", "a:b", "ä", "{a}"}, texts...)
	headers := append([]any{"X Y", "X:", "Schlüssel", "Host", "content-length"}, texts...)
	prefixes := []any{[]any{}, "10.0.0.0/33", "nonsense", "10.0.0.1,,10.0.0.2", []any{""}, "fe80::1%eth0"}
	for _, tt := range []struct {
		option string
		values []any
		top    bool // it stands on the top level alone
		rule   bool // it stands in rules alone
	}{
		{"algorithm", append([]any{"", "leaky-bucket", "Fixed-Window"}, texts...), false, false},
		{"cost", append([]any{"0", "6", float64(6), "1000000000000000"}, integers...), false, false},
		{"dryRun", booleans, false, false},
		{"onStoreFailure", append([]any{"", "fail"}, texts...), false, false},
		{"sourceCriterion.requestHeaderName", append([]any{""}, headers...), false, false},
		{"sourceCriterion.requestHeaderNames", []any{[]any{"X Y"}, []any{"Host"}, []any{""}, "X-One,,X-Two", "X-One,X:", []any{}}, false, false},
		{"sourceCriterion.requestHost", booleans, false, false},
		{"sourceCriterion.cookieName", append([]any{"", " ", "a b", "a=b", "a;b"}, texts...), false, false},
		{"sourceCriterion.queryParameter", append([]any{"", " "}, texts...), false, false},
		{"sourceCriterion.pathSegment", append([]any{"0", "101", float64(0)}, integers...), false, false},
		{"sourceCriterion.jwtClaim", append([]any{"", "\t"}, texts...), false, false},
		{"sourceCriterion.tlsClientSubject", booleans, false, false},
		{"sourceCriterion.onMissing", append([]any{"", "block", "Skip"}, texts...), false, false},
		{"sourceCriterion.ipStrategy.ipv4Subnet", append([]any{"0", "33"}, integers...), false, false},
		{"sourceCriterion.ipStrategy.trustedIPs", prefixes, false, false},
		{"exempt.ips", prefixes, false, false},
		{"exempt.paths", []any{"free", "*", "/free*", "/a/*/b", "/free//x", "/%66ree", "/free/", "/a?b", "/a%zz", "/a b", []any{""}, "/a,,/b", []any{}, "/users/:id", "/{a}", []any{"/a,/b"}}, false, false},
		{"exempt.methods", []any{"G T", "GET,", []any{""}, "GÉT", []any{}, "ANY", "all", "*", "GET,any"}, false, false},
		{"exempt.preflight", booleans, false, false},
		{"plans.header", headers, false, false},
		{"plans.claim", texts, false, false},
		{"overrides", []any{[]any{entry("value", "x", "limit", "0")}, []any{entry("value", float64(7), "limit", "5")}, []any{entry("hash", "abc", "limit", "5")}, []any{entry("value", "x", "limit", true)},
			[]any{entry("value", " ", "limit", "5")}, []any{entry("value", "\x00x", "limit", "5")}, []any{entry("value", "x", "limits", []any{entry("name", "a", "limit", "5")})}, "x", true}, false, false},
		{"limits", []any{"a", true, []any{"a"}}, false, false},
		{"gatewayLimit.limit", limits, true, false},
		{"gatewayLimit.window", windows, true, false},
		{"exposeHeaders", booleans, true, false},
		{"response.status", append([]any{"200", "399", "600", float64(302)}, integers...), true, false},
		{"response.body", texts, true, false},
		{"response.contentType", append([]any{"text", "text/", "a b/c", "text/html\r\nX: y", "text/html, text/plain"}, texts...), true, false},
		{"limit", limits, false, true},
		{"window", windows, false, true},
		{"name", names, false, true},
		{"path", append([]any{"/users/*", "/users/{id}", "/users/:id/x", "/:id", "/login,/register", "/**", "", "login", "/a?b", "/a#b", "/a%2", "/a\x00b", "*"}, texts...), false, true},
		{"pathPrefix", append([]any{"/api/*", "/api*", "/{tenant}/api", "/api/:id", "/api,/v2", "", "api", "/a?b"}, texts...), false, true},
		{"pathRegex", append([]any{"", "(", "*", "[a-"}, texts...), false, true},
		{"methods", []any{"G T", "GET,", []any{""}, []any{}, "ANY", "all", "*", "GET,All"}, false, true},
		{"host", append([]any{"", "a b", "example.com:80", "http://example.com", "bücher.example", "a,b"}, texts...), false, true},
		{"header.name", append([]any{""}, headers...), false, true},
		{"header.value", append([]any{"a\nb", "without a name"}, texts...), false, true},
	} {
		t.sub(tt.option, func(t *T) {
			for i, place := range places {
				if i == 0 && tt.rule || i == 1 && tt.top {
					continue
				}
				for _, value := range tt.values {
					options := t.shared()
					switch {
					case strings.Contains(tt.option, "ipStrategy"):
						options = with(options, "sourceCriterion", absent)
					case tt.option == "response.contentType":
						options = with(options, "response.body", "x")
					case strings.HasPrefix(tt.option, "gatewayLimit"):
						options = with(options, "gatewayLimit", map[string]any{"limit": "5", "window": "1m"})
					}
					want := []string{strings.SplitN(place.path+tt.option, ".value", 2)[0]}
					if _, isText := value.(string); tt.option == "header.name" && isText {
						want = []string{place.path + "header"}
					}
					if written, ok := value.(string); ok && len(written) > 0 && !strings.ContainsAny(written, ",\r\n\x00") && !strings.HasPrefix(tt.option, "limits") && tt.option != "overrides" &&
						tt.option != "header.value" && tt.option != "header.name" {
						want = append(want, strings.Trim(fmt.Sprintf("%q", written), `"`))
					}
					t.refused(place.set(options, tt.option, value), want...)
				}
			}
		})
	}
	// Lists of limits, on each level, and what has its bounds told.
	for _, place := range places {
		limit := func(pairs ...any) []any {
			return []any{entry("name", "a", "limit", "5", "window", "1m"), with(entry("name", "b", "limit", "5", "window", "1m"), pairs...)}
		}
		options := t.shared()
		if place.path == "" {
			options = with(options, "limit", absent, "window", absent)
		}
		for _, value := range limits {
			t.refused(place.set(options, "limits", limit("limit", value)), place.path+"limits[1].limit")
		}
		for _, value := range windows {
			t.refused(place.set(options, "limits", limit("window", value)), place.path+"limits[1].window")
		}
		for _, value := range append([]any{"a"}, names...) {
			t.refused(place.set(options, "limits", limit("name", value)), place.path+"limits[1].name")
		}
		t.refused(place.set(options, "limits", limit("limit", "1000000000000000")), "999999999999999")
		t.refused(place.set(t.shared(), "cost", "6"), place.path+"cost", `"6"`, "limit", "5")
		t.refused(place.set(t.shared(), "sourceCriterion.onMissing", "block"), "address, skip, shared, refuse")
		t.refused(place.set(t.shared(), "sourceCriterion.pathSegment", "101"), "1 to 100")
		t.refused(place.set(t.shared("sourceCriterion", absent), "sourceCriterion.ipStrategy.ipv4Subnet", "33"), "1 to 32")
		t.refused(place.set(t.shared(), "algorithm", "leaky-bucket"), "fixed-window", "sliding-window", "sliding-log", "token-bucket")
		for _, value := range limits {
			plan := map[string]any{"header": "X-Plan", "values": map[string]any{"gold": map[string]any{"limit": value}}}
			t.refused(place.set(t.shared(), "plans", plan), place.path+"plans.values.gold.limit")
		}
	}
	t.refused(t.shared("response.status", "399"), "400 to 599")
}

func missingNested(t *T) {
	for _, place := range places {
		options := t.shared()
		if place.path == "" {
			options = with(options, "limit", absent, "window", absent)
		}
		for _, missing := range []string{"name", "limit", "window"} {
			one := with(entry("name", "a", "limit", "5", "window", "1m"), missing, absent)
			t.refused(place.set(options, "limits", []any{one}), place.path+"limits[0]."+missing, "missing")
		}
		for _, tt := range []struct {
			option string
			value  any
			want   []string
		}{
			{"plans", map[string]any{"header": "X-Plan"}, []string{"plans.values", "missing"}},
			{"plans", map[string]any{"values": allowances("gold", "5")}, []string{"plans.header", "exactly one of header and claim"}},
			{"plans", map[string]any{"header": "", "values": allowances("gold", "5")}, []string{"plans.header", "exactly one"}},
			{"plans", map[string]any{"header": "X-Plan", "values": map[string]any{"gold": map[string]any{}}}, []string{"plans.values.gold.limit", "missing"}},
			{"plans", map[string]any{"default": "gold"}, []string{"plans.header"}},
			{"overrides", []any{entry("limit", "5")}, []string{"overrides[0].value", "exactly one of value and hash"}},
			{"overrides", []any{entry("value", "a", "limit", "7"), entry("value", "b")}, []string{"overrides[1].limit", "missing"}},
		} {
			t.refused(place.set(t.shared(), tt.option, tt.value), append([]string{place.path}, tt.want...)...)
		}
	}
	for _, missing := range []string{"limit", "window"} {
		t.refused(t.shared("gatewayLimit", with(entry("limit", "5", "window", "1m"), missing, absent)), "gatewayLimit."+missing, "missing")
	}
	t.refused(t.shared("rules", []any{entry("path", "/a")}), "rules[0].name", "missing")
	t.refused(t.shared("rules", []any{entry("name", "a", "path", "/a"), entry("name", "b", "limit", "5")}), "rules[1]", "no condition", "pathPrefix")
	t.refused(t.shared("rules", []any{entry("name", "a", "header.value", "x")}), "rules[0].header")
	t.refused(with(t.shared("limit", absent), "rules", []any{entry("name", "a", "path", "/a", "limit", "5")}), "option limit", "missing")
	t.refused(with(t.shared("limit", absent), "plans", map[string]any{"header": "X-Plan", "values": allowances("gold", "5")}, "rules", []any{entry("name", "a", "path", "/a", "cost", "2")}), "option limit", "missing")
	t.refused(t.shared("limit", absent, "window", absent, "limits", []any{}), "option limit", "missing")
	several := t.shared("limit", absent, "window", absent, "limits", []any{entry("name", "a", "limit", "5", "window", "1m")})
	t.refused(with(several, "rules", []any{entry("name", "r", "path", "/", "limit", "5")}), "rules[0].window", "missing")
}

func nearestKnown(t *T) {
	rule := func(pairs ...any) []any {
		return []any{entry("name", "a", "path", "/a"), with(entry("name", "b", "path", "/b"), pairs...)}
	}
	for _, tt := range []struct {
		option string
		value  any
		want   string
		near   string
	}{
		{"rule", rule(), "rule", "rules"},
		{"limitss", list, "limitss", "limits"},
		{"average", "5", "average", "limit"},
		{"period", "5", "period", "window"},
		{"gatewaylimits", "5", "gatewaylimits", "gatewayLimit"},
		{"dry_run", "true", "dry_run", "dryRun"},
		{"preflight", "true", "preflight", "exempt.preflight"},
		{"keySecret", "0123456789abcdef", "keySecret", "valkey.keySecret"},
		{"gatewayLimit.windows", "1m", "gatewayLimit.windows", "gatewayLimit.window"},
		{"response.statusCode", "429", "response.statusCode", "response.status"},
		{"exempt.ipss", "10.0.0.1", "exempt.ipss", "exempt.ips"},
		{"sourceCriterion.cookie", "a", "sourceCriterion.cookie", "sourceCriterion.cookieName"},
		{"sourceCriterion.onmising", "skip", "sourceCriterion.onmising", "sourceCriterion.onMissing"},
		{"rules", rule("limitt", "5"), "rules[1].limitt", "rules[1].limit"},
		{"rules", rule("method", "GET"), "rules[1].method", "rules[1].methods"},
		{"rules", rule("header.values", "x"), "rules[1].header.values", "rules[1].header.value"},
		{"rules", rule("exempt.path", "/x"), "rules[1].exempt.path", "rules[1].exempt.paths"},
		{"rules", rule("sourceCriterion.requestHeader", "x"), "rules[1].sourceCriterion.requestHeader", "rules[1].sourceCriterion.requestHeaderName"},
		{"rules", rule("sourceCriterion.ipStrategy.deep", "1"), "rules[1].sourceCriterion.ipStrategy.deep", ""},
		{"rules", rule("limits", []any{entry("names", "x")}), "rules[1].limits[0].names", "rules[1].limits[0].name"},
		{"rules", rule("plans.head", "x"), "rules[1].plans.head", "rules[1].plans.header"},
		{"rules", rule("plans.values.gold.limi", "5"), "rules[1].plans.values.gold.limi", "rules[1].plans.values.gold.limit"},
		{"rules", rule("overrides", []any{entry("valu", "x")}), "rules[1].overrides[0].valu", "rules[1].overrides[0].value"},
		{"rules", rule("overrides", []any{entry("limits", []any{entry("limitt", "x")})}), "rules[1].overrides[0].limits[0].limitt", "rules[1].overrides[0].limits[0].limit"},
		{"rules", rule("headers", "both"), "rules[1].headers", ""},
		{"rules", rule("scope", "x"), "rules[1].scope", ""},
		{"rules", rule("mode", "local"), "rules[1].mode", ""},
		{"limits", []any{entry("name", "a", "limit", "1", "windows", "1m")}, "limits[0].windows", "limits[0].window"},
		{"limits", []any{entry("name", "a", "limit", "1", "cost", "1")}, "limits[0].cost", "cost"},
		{"plans.value", map[string]any{}, "plans.value", "plans.values"},
		{"plans.values.gold", map[string]any{"limit": "5", "window": "1m"}, "plans.values.gold.window", ""},
		{"plans.values.gold", map[string]any{"limits": []any{entry("nam", "1m")}}, "plans.values.gold.limits[0].nam", "plans.values.gold.limits[0].name"},
		{"overrides", []any{entry("value", "a", "limit", "1", "window", "1m")}, "overrides[0].window", ""},
		{"overrides", []any{entry("values", "a", "limit", "1")}, "overrides[0].values", "overrides[0].value"},
	} {
		t.refused(t.shared(tt.option, tt.value), "unknown option "+tt.want, tt.near)
	}
}

func misfits(t *T) {
	file := filepath.Join(t.TempDir(), "secret")
	empty, short := file+"-empty", file+"-short"
	for path, content := range map[string]string{file: "0123456789abcdef\n", empty: "\n", short: "hunter2-short\n"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const keySecret = "0123456789abcdef"
	mac := hmac.New(sha256.New, []byte(keySecret))
	plain := sha256.Sum256([]byte("x"))
	_, _ = mac.Write(plain[:])
	keyed := fmt.Sprintf("%x", mac.Sum(nil))
	one := entry("name", "a", "limit", "5", "window", "1m")
	var nine []any
	for i := 0; i < 9; i++ {
		nine = append(nine, with(one, "name", fmt.Sprint("l", i)))
	}
	several := t.shared("limit", absent, "window", absent, "limits", []any{one, with(one, "name", "b", "window", "1h")})
	plans := func(pairs ...any) map[string]any {
		return map[string]any{"header": "X-Plan", "values": map[string]any{"gold": with(map[string]any{}, pairs...)}}
	}
	gold := allowances("gold", "7")
	for _, tt := range []struct {
		options map[string]any
		want    []string
	}{
		{t.shared("limits", []any{one}), []string{"option limits", "limit, window or burst"}},
		{with(several, "limit", "5"), []string{"option limits", "limit, window or burst"}},
		{with(several, "window", "1m"), []string{"option limits", "limit, window or burst"}},
		{t.shared("limit", absent, "window", absent, "limits", nine), []string{"limits", "9", "8"}},
		{t.shared("rules", []any{entry("name", "r", "path", "/r", "limits", nine)}), []string{"rules[0].limits", "9", "8"}},
		{t.shared("rules", []any{entry("name", "r", "path", "/r", "limit", "5", "limits", []any{one})}), []string{"rules[0].limits", "limit, window or burst"}},
		{with(several, "cost", "6"), []string{"option cost", `"6"`, "5"}},
		{t.shared("cost", "4", "rules", []any{entry("name", "r", "path", "/r", "limit", "3")}), []string{"rules[0].cost", `"4"`, "3"}},
		// Names of rules and of the limits beside them are counts of one scope.
		{t.shared("rules", []any{entry("name", "r", "path", "/a"), entry("name", "r", "path", "/b")}), []string{"rules[1].name", `"r"`, "already"}},
		{with(several, "rules", []any{entry("name", "b", "path", "/b")}), []string{"rules[0].name", `"b"`, "already"}},
		{t.shared("rules", []any{entry("name", "r", "path", "/a", "pathPrefix", "/a")}), []string{"rules[0].pathPrefix", "only one"}},
		{t.shared("plans", map[string]any{"header": "X-Plan", "claim": "plan", "values": gold}), []string{"plans.header", "exactly one"}},
		{t.shared("plans", map[string]any{"header": "X-Plan", "default": "silver", "values": gold}), []string{"plans.default", `"silver"`, "gold"}},
		{t.shared("plans", map[string]any{"header": "X-Plan", "values": allowances("gold", "7", "", "5")}), []string{"plans.values", `""`, "name"}},
		{t.shared("plans", map[string]any{"header": "X-Plan", "values": allowances(" gold", "7")}), []string{"plans.values", `" gold"`, "blanks"}},
		{t.shared("plans", plans("limits", []any{entry("name", "a", "limit", "5")})), []string{"plans.values.gold.limits[0].name", `"a"`}},
		{with(several, "plans", plans("limit", "5")), []string{"plans.values.gold.limit", "several"}},
		{with(several, "plans", plans("limits", []any{entry("name", "c", "limit", "5")})), []string{"plans.values.gold.limits[0].name", `"c"`}},
		{with(several, "plans", plans("limits", []any{entry("name", "a")})), []string{"plans.values.gold.limits[0].limit", "missing"}},
		{with(several, "plans", plans("limits", []any{entry("name", "a", "limit", "5", "window", "1m")})), []string{"plans.values.gold.limits[0].window", "no place"}},
		{with(several, "overrides", []any{entry("value", "x", "limit", "5")}), []string{"overrides[0].limit", "several"}},
		// One thing is said once.
		{with(several, "plans", plans("limits", []any{entry("name", "a", "limit", "5"), entry("name", "b", "limit", "5"), entry("name", "a", "limit", "6")})), []string{"plans.values.gold.limits[2].name", `"a"`, "already"}},
		{with(several, "overrides", []any{entry("value", "x", "limits", []any{entry("name", "b", "limit", "5"), entry("name", "b", "limit", "5")})}), []string{"overrides[0].limits[1].name", `"b"`, "already"}},
		{t.shared("overrides", []any{entry("value", "x", "limit", "5"), entry("hash", fmt.Sprintf("%x", sha256.Sum256([]byte("x"))), "limit", "6")}), []string{"overrides[1].value", "same client"}},
		{t.shared("overrides", []any{entry("hash", fmt.Sprintf("%X", sha256.Sum256([]byte("x"))), "limit", "6"), entry("value", " x", "limit", "5")}), []string{"overrides[1].value", "same client"}},
		{t.shared("valkey.keySecret", keySecret, "overrides", []any{entry("value", "x", "limit", "5"), entry("hash", keyed, "limit", "6")}), []string{"overrides[1].value", "same client"}},
		{t.shared("valkey.keySecretFile", file, "overrides", []any{entry("hash", keyed, "limit", "5"), entry("value", "x", "limit", "6")}), []string{"overrides[1].value", "same client"}},
		{t.shared("rules", []any{entry("name", "r", "header.name", "X-A", "header.value", "")}), []string{"rules[0].header.value", "empty"}},
		{t.shared("rules", []any{entry("name", "r", "header.name", "X-A", "header.value", " \t")}), []string{"rules[0].header.value", "empty"}},
		{t.shared("overrides", []any{entry("value", "x", "hash", strings.Repeat("a", 64), "limit", "5")}), []string{"overrides[0].value", "exactly one"}},
		{t.shared("overrides", []any{entry("value", "x", "limit", "5"), entry("value", " x ", "limit", "6")}), []string{"overrides[1].value", "same client"}},
		{t.shared("overrides", []any{entry("hash", strings.Repeat("a", 64), "limit", "5"), entry("hash", strings.Repeat("A", 64), "limit", "6")}), []string{"overrides[1]", "same client"}},
		{t.shared("overrides", []any{entry("hash", strings.Repeat("g", 64), "limit", "5")}), []string{"overrides[0].hash", "64 hexadecimal digits"}},
		{t.shared("overrides", []any{entry("value", "x", "limit", "5")}, "sourceCriterion", map[string]any{"ipStrategy": map[string]any{}}), []string{"overrides[0].value", "address"}},
		{t.shared("overrides", []any{entry("value", "2001:db8::1", "limit", "5"), entry("value", "2001:db8::2", "limit", "5")}, "sourceCriterion", absent), []string{"overrides[1].value", "same client"}},
		{t.shared("overrides", []any{entry("value", "x", "limit", "5")}, "sourceCriterion", map[string]any{"requestHost": true, "cookieName": "a"}), []string{"overrides[0].value", "several parts"}},
		{t.shared("response.contentType", "text/html"), []string{"response.contentType", "response.body"}},
		{t.shared("decisionHeader", "X-RateLimit-Dry-Run"), []string{"decisionHeader"}},
		{t.shared("decisionHeader", "access-control-expose-headers"), []string{"decisionHeader"}},
		{t.shared("fallback.limit", "6"), []string{"fallback.limit", "5"}},
		{t.shared("valkey.keySecret", "0123456789abcdef", "valkey.keySecretFile", file), []string{"valkey.keySecretFile", file}},
		{t.shared("valkey.keySecretFile", file+"-none"), []string{"valkey.keySecretFile", file}},
		{t.shared("valkey.keySecretFile", empty), []string{"valkey.keySecretFile", "empty"}},
		{t.shared("valkey.keySecretFile", short), []string{"valkey.keySecret", "16"}},
		{t.shared("valkey.keySecret", "hunter2-short"), []string{"valkey.keySecret", "16"}},
	} {
		t.refused(tt.options, tt.want...)
	}
}

func clientsNotInRefusals(t *T) {
	const secret = "hunter2-91ab"
	for _, options := range []map[string]any{
		t.shared("valkey.keySecret", secret),
		t.shared("valkey.keySecret", []any{secret}),
		t.shared("valkey.keySecretFile", secret),
		t.shared("valkey.keySecret", secret+"-0123456789", "limit", "0"),
		t.shared("valkey.keySecrets", secret),
		t.shared("keySecret", secret),
		t.shared("overrides", []any{entry("value", secret, "limit", "0")}),
		t.shared("overrides", []any{entry("value", secret)}),
		t.shared("overrides", []any{entry("value", secret, "limit", "5"), entry("value", secret, "limit", "6")}),
		t.shared("overrides", []any{entry("hash", secret, "limit", "5")}),
		t.shared("overrides", []any{entry("hash", secret, "value", secret, "limit", "5")}),
		t.shared("overrides", []any{entry("valu", secret, "limit", "5")}),
		t.shared("overrides", []any{entry("value", secret, "limit", "5")}, "sourceCriterion", absent),
		t.shared("overrides", []any{entry("value", "a/"+secret, "limit", "5")}, "sourceCriterion", map[string]any{"pathSegment": "1"}),
		t.shared("overrides", []any{entry("value", secret, "limit", "5")}, "sourceCriterion", map[string]any{"requestHost": true, "cookieName": "a"}),
	} {
		newHandler, err := t.plugin.Configure(t.ctx, t.name(), options)
		if err == nil {
			_, err = newHandler(served)
		}
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%v: %v", options, err)
		}
	}
	t.handler(t.name(), t.shared("overrides", []any{entry("value", secret, "limit", "6")}, "valkey.keySecret", secret+"-0123456789"))
	if lines := t.logged(secret); len(lines) > 0 {
		t.Errorf("a secret is in the log: %q", lines)
	}
}

func rightNested(t *T) {
	one := entry("name", "a", "limit", "5", "window", "1m")
	hash := strings.Repeat("0a", 32)
	for _, place := range places {
		for _, tt := range []struct {
			option string
			values []any
		}{
			{"algorithm", []any{"fixed-window", "sliding-window", "sliding-log", "token-bucket"}},
			{"cost", []any{"1", "5", float64(5)}},
			{"dryRun", []any{"true", false}},
			{"exempt", []any{map[string]any{}, map[string]any{"ips": "10.0.0.0/8, ::1"}, map[string]any{"paths": "/a,/b/*, /"}, map[string]any{"paths": "/*"}, map[string]any{"methods": "get, OPTIONS"},
				map[string]any{"preflight": false}}},
			{"plans", []any{map[string]any{"header": "x-plan", "values": allowances("gold", "1", "silver", float64(7))}, map[string]any{"claim": "https://example.com/plan", "values": allowances("a", "2"), "default": "a"}, map[string]any{}}},
			{"overrides", []any{[]any{}, []any{entry("value", "x", "limit", "1"), entry("hash", hash, "limit", float64(9))}}},
			{"sourceCriterion", []any{map[string]any{"requestHeaderNames": "X-One, X-Two"}, map[string]any{"requestHeaderName": "X-One", "requestHost": "true", "cookieName": "id", "queryParameter": "a b", "pathSegment": "100",
				"jwtClaim": "https://x/y", "tlsClientSubject": "true", "ipStrategy": map[string]any{"ipv4Subnet": "24", "trustedIPs": "10.0.0.0/8,::1"}, "onMissing": "shared"}}},
		} {
			for _, value := range tt.values {
				t.handler(t.name(), place.set(t.shared(), tt.option, value))
			}
		}
	}
	for _, conditions := range [][]any{
		{"path", "/"}, {"path", "/a b"}, {"path", "/%6Cogin/"}, {"pathPrefix", "/"}, {"pathRegex", "(?i)^/a{2,3}$"}, {"methods", "GET,post"}, {"methods", []any{" PURGE "}}, {"host", "[::1]"}, {"host", "A.example."},
		{"header.name", "x-a"}, {"path", "/a:b"}, {"path", "/a,b"}, {"path", "/a;b"}, {"pathPrefix", "/käse/"}, {"methods", "M-SEARCH,VERSION-CONTROL"}, {"methods", "ALLOW"}, {"pathPrefix", "/a", "pathRegex", "b", "methods", "GET", "host", "a", "header.name", "b", "header.value", "c"},
	} {
		t.handler(t.name(), t.shared("rules", []any{with(entry("name", "r"), conditions...), with(entry("name", "r2", "limits", []any{one}), conditions...)}))
	}
	for _, pairs := range [][]any{
		{"response.status", "400"}, {"response.status", float64(599)}, {"response.body", "x", "response.contentType", "application/json;charset=utf-8"}, {"response", map[string]any{}},
		{"gatewayLimit", map[string]any{}}, {"gatewayLimit", map[string]any{"limit": float64(5), "window": "366d"}}, {"exposeHeaders", true},
		{"valkey.keySecret", "0123456789abcdef"}, {"valkey.keySecret", ""},
		// With a secret, the bare hash is another client's.
		{"valkey.keySecret", "0123456789abcdef", "overrides", []any{entry("value", "x", "limit", "1"), entry("hash", fmt.Sprintf("%x", sha256.Sum256([]byte("x"))), "limit", "2")}},
		// A rule's list has names of its own.
		{"rules", []any{entry("name", "a", "path", "/a", "limits", []any{one, with(one, "name", "b")}), entry("name", "b", "path", "/b", "limits", []any{one})}},
	} {
		t.handler(t.name(), t.shared(pairs...))
	}
	// The names in any case, as labels have them, and lists as one text.
	name := t.name()
	h := t.handler(name, map[string]any{
		"limit": "5", "window": "1h", "mode": "local", "dryrun": "false", "exposeheaders": "true",
		"rules":        []any{map[string]any{"NAME": "login", "pathprefix": "/login", "METHODS": "POST,PUT", "Limits": []any{map[string]any{"Name": "l", "LIMIT": "7", "window": "1d"}}}},
		"gatewaylimit": map[string]any{"LIMIT": "100", "Window": "1m"}, "RESPONSE": map[string]any{"STATUS": "430"},
		"plans": map[string]any{"HEADER": "X-Plan", "VALUES": map[string]any{"gold": map[string]any{"LIMIT": "9"}}},
	})
	if got := t.exchange(h, request("PUT", "/login/x")); got.counts(name) != "login:l" || got.limit != 7 {
		t.Errorf("%v", got.header)
	}
	if got := t.exchange(h, get("/", "X-Plan", "gold")); got.limit != 9 || len(exposed(got.header)) == 0 {
		t.Errorf("%v", got.header)
	}
}
