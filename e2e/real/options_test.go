package real_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota"
	"github.com/gatequota/gatequota/e2e/host"
	"github.com/gatequota/gatequota/e2e/lab"
)

// labelled returns the labels of middlewares and of routers that lead the path
// "/name" and those below through each.
func labelled(middlewares map[string]options) map[string]string {
	all := map[string]string{}
	for name, o := range middlewares {
		for label, value := range o.labels(name) {
			all[label] = value
		}
		all["traefik.http.routers."+name+".rule"] = pathRule(name)
		all["traefik.http.routers."+name+".middlewares"] = name + "@docker"
		all["traefik.http.routers."+name+".service"] = "labelled"
	}
	return all
}

// A limit is what was written, or it is refused with its name and value.
func TestLimitIsAsWrittenOrRefused(t *testing.T) {
	t.Parallel()
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	type want struct {
		value any
		limit string // in force; empty where it is refused
		shown string // how the refusal shows the value, unless as written
	}
	byYAML := map[string]want{
		"five":        {5, "5", ""},
		"quoted":      {"5", "5", ""},
		"negative":    {-1, "", ""},
		"zero":        {0, "", ""},
		"wide":        {plain("4294967297"), "4294967297", ""},
		"wider":       {plain("18446744073709551617"), "", "184467440737095516"},
		"fraction":    {plain("1.9"), "", ""},
		"truth":       {true, "", ""},
		"zeros":       {"010", "", ""},
		"hex":         {"0x10", "", ""},
		"underscore":  {"1_000", "", ""},
		"empty":       {"", "", ""},
		"blank":       {" 5", "", ""},
		"exponent":    {"1e3", "", ""},
		"plus":        {"+5", "", ""},
		"word":        {"many", "", ""},
		"list":        {[]int{5}, "", ""},
		"group":       {options{"a": 1}, "", ""},
		"null":        {plain("null"), "", "missing"},
		"largest":     {plain("999999999999999"), "999999999999999", ""},
		"too-large":   {plain("1000000000000000"), "", ""},
		"other-digit": {"٥", "", ""},
		// What YAML makes of it before anybody sees how it was written.
		"octal": {plain("010"), "8", ""},
	}
	byLabel := map[string]want{
		"l-five": {"5", "5", ""}, "l-negative": {"-1", "", ""}, "l-wide": {"4294967297", "4294967297", ""},
		"l-fraction": {"1.9", "", ""}, "l-truth": {"true", "", ""}, "l-zeros": {"010", "", ""}, "l-hex": {"0x10", "", ""},
		"l-underscore": {"1_000", "", ""}, "l-empty": {"", "", ""}, "l-blank": {" 5", "", ""}, "l-exponent": {"1e3", "", ""},
		"l-list": {"5,6", "", ""},
	}
	middlewares := func(wants map[string]want) map[string]options {
		all := map[string]options{}
		for name, w := range wants {
			all[name] = local(0, window).with("limit", w.value)
		}
		return all
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{Docker: lab.Labels(t, app.URLs[0], labelled(middlewares(byLabel)))},
		each(app, middlewares(byYAML)).yaml(t))
	check := func(name, provider string, w want) {
		t.Helper()
		answers := client.Sequence(lab.Alternate(20, "key", tr.URL+"/"+name))
		if w.limit == "" {
			mustBe(t, name, answers, http.StatusNotFound)
			shown := fmt.Sprintf("%v", w.value)
			if w.shown != "" {
				shown = w.shown
			}
			if got := tr.RouterError(name + "@" + provider); !strings.Contains(got, "option limit") || !strings.Contains(got, shown) {
				t.Errorf("%s: the refusal names neither the option nor %q: %s", name, shown, got)
			}
			return
		}
		mustBe(t, name, answers, http.StatusOK, http.StatusTooManyRequests)
		if got := answers[0].Header.Get("X-RateLimit-Limit"); got != w.limit {
			t.Errorf("%s: the limit is %s, want %s; %s", name, got, w.limit, tr.RouterError(name+"@"+provider))
		}
		if settings := tr.LogLines("middleware " + name + "@" + provider + ": limit " + w.limit + " in "); len(settings) != 1 {
			t.Errorf("%s: the effective limit is logged %d times", name, len(settings))
		}
		var expected int
		if _, err := fmt.Sscan(w.limit, &expected); err != nil {
			t.Fatal(err)
		}
		if got := answers.Count(http.StatusOK); got != min(20, expected) {
			t.Errorf("%s: %d of 20 were allowed", name, got)
		}
	}
	for name, w := range byYAML {
		check(name, "file", w)
	}
	for name, w := range byLabel {
		check(name, "docker", w)
	}
}

// optionLevels calls f for each type that holds options, with what its paths begin with
// in the options of a middleware, such as "" or "rules[0].header.".
func optionLevels(of reflect.Type, prefix string, f func(of reflect.Type, prefix string)) {
	f(of, prefix)
	for name, field := range optionFields(of) {
		switch {
		case field.Kind() == reflect.Struct:
			optionLevels(field, prefix+name+".", f)
		case field.Kind() == reflect.Slice && field.Elem().Kind() == reflect.Struct:
			optionLevels(field.Elem(), prefix+name+"[0].", f)
		case field.Kind() == reflect.Map && field.Elem().Kind() == reflect.Struct:
			optionLevels(field.Elem(), prefix+name+".gold.", f)
		}
	}
}

// optionFields returns the options of one level by name, without what collects unknown
// ones.
func optionFields(of reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for i := range of.NumField() {
		field := of.Field(i)
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "-" {
			fields[name] = field.Type
			if field.Type.Kind() == reflect.Pointer {
				fields[name] = field.Type.Elem()
			}
		}
	}
	return fields
}

var (
	entryOfList = regexp.MustCompile(`\[[0-9]+\]`)
	nameOfPlan  = regexp.MustCompile(`(plans\.values)\.[^.]+`)
)

// optionPath returns the path of an option as all entries of a list and all plans have it.
func optionPath(option string) string {
	return nameOfPlan.ReplaceAllString(entryOfList.ReplaceAllString(option, "[0]"), "$1.gold")
}

// A given is an option that is set, and what is logged of it.
type given struct {
	option string
	value  any
	says   string // of the settings that are logged; empty where only answers tell
}

// under returns options inside another.
func under(group string, all ...given) []given {
	inside := slices.Clone(all)
	for i := range inside {
		inside[i].option = group + inside[i].option
	}
	return inside
}

func together(all []given) options {
	o := options{}
	for _, g := range all {
		o.set(strings.Split(g.option, "."), g.value)
	}
	return o
}

// A probe is a request that tells by its answer what the log does not.
type probe struct {
	set    string
	method string // GET unless given
	path   string // below that of the set
	host   string
	header map[string]string
	want   map[string]string // fields of the answer; "" for none, "~" before a part of it
}

// The status and the body of an answer among the fields that are wanted.
const status, body = ":status", ":body"

func (p probe) request(base string) *http.Request {
	r := httptest.NewRequest(p.method, base+"/"+p.set+p.path, nil)
	r.RequestURI = ""
	r.RemoteAddr = "127.0.0.1:4711" // as the gateway sees it
	if p.host != "" {
		r.Host = p.host
	}
	for name, value := range p.header {
		r.Header.Set(name, value)
	}
	return r
}

func (p probe) check(t *testing.T, a lab.Answer) {
	t.Helper()
	for field, want := range p.want {
		got := a.Header.Get(field)
		switch field {
		case status:
			got = strconv.Itoa(a.Status)
		case body:
			got = a.Body
		}
		part, within := strings.CutPrefix(want, "~")
		if got != want && !(within && strings.Contains(got, part)) {
			t.Errorf("%s, %s %s %v: %s is %q, want %q; status %d", p.set, p.method, p.path, p.header, field, got, want, a.Status)
		}
	}
}

// token is what those who watch show.
const token = "Beacon-2063"

// optionSets returns options of middlewares that together have every option, each with a
// value that is not its default where it may have another one, and requests for what is
// not logged. A new option is one more line, at each of the levels that have it.
func optionSets(t *testing.T, store *lab.Store, authority *lab.Authority) (map[string][]given, []probe) {
	own := authority.Issue(t, "gateway", "gateway")
	inMemory := given{"mode", "local", "mode local"}
	peers := []string{"127.0.0.1", "192.0.2.1"} // of Traefik, and of a request that httptest makes
	sets := map[string][]given{
		"all": {
			{"limit", 7, "limit 7 in"},
			{"window", "2h", "in 2h0m0s"},
			{"scope", "common", "scope common"},
			{"mode", "shared", "mode shared"},
			{"onStoreFailure", "closed", "onStoreFailure closed"},
			{"headers", "legacy", "headers legacy"},
			{"decisionHeader", "X-Way", ""},
			{"maxClients", 1234, "maxClients 1234"},
			{"sourceCriterion.requestHeaderName", "X-Customer", "header X-Customer"},
			{"valkey.endpoints", []string{store.Addr()}, "store " + store.Addr()},
			{"valkey.username", "gateway", `user "gateway"`},
			{"valkey.password", password, ""},
			{"valkey.db", 3, "db 3"},
			{"valkey.timeout", "4321ms", "timeout 4.321s"},
			{"valkey.dialTimeout", "5432ms", "dialTimeout 5.432s"},
			{"valkey.keyPrefix", "pre:fix", "keyPrefix pre:fix"},
			{"valkey.keySecret", keySecret, "keySecret true"},
			{"valkey.tls.ca", authority.CertFile, "tls true"},
			{"valkey.tls.cert", own.CertFile, ""},
			{"valkey.tls.key", own.KeyFile, ""},
			{"valkey.tls.serverName", "store.test", ""},
			{"metrics.path", "/all/-/metrics", "metrics on /all/-/metrics for [127.0.0.1/32 192.0.2.1/32] token false"},
			{"metrics.allow", peers, ""},
			{"status.path", "/all/-/status", "status on /all/-/status for [127.0.0.1/32 192.0.2.1/32] token true"},
			{"status.allow", peers, ""},
			{"status.token", token, ""},
			{"control", true, ", control, mode shared"},
			{"log", "text", ""},
		},
		"file": {
			{"limit", 8, "limit 8 in"},
			{"window", "3h", "in 3h0m0s"},
			{"fallback.limit", 3, "onStoreFailure local up to 3"},
			{"valkey.endpoints", []string{store.Addr()}, "mode shared"},
			{"valkey.username", "gateway", ""},
			{"valkey.passwordFile", lab.PasswordFile(t, password+"\n"), ""},
			{"valkey.keySecretFile", lab.PasswordFile(t, keySecret+"\n"), "keySecret true"},
			{"valkey.timeout", "5s", ""},
			{"valkey.dialTimeout", "5s", ""},
			{"valkey.tls.insecureSkipVerify", true, "tls true"},
			{"valkey.tls.cert", own.CertFile, ""},
			{"valkey.tls.key", own.KeyFile, ""},
			{"metrics.path", "/file/-/metrics", "metrics on /file/-/metrics for [127.0.0.1/32 192.0.2.1/32] token true"},
			{"metrics.allow", peers, ""},
			{"metrics.tokenFile", lab.PasswordFile(t, token+"\n"), ""},
			{"status.path", "/file/-/status", "status on /file/-/status for [127.0.0.1/32 192.0.2.1/32] token true"},
			{"status.allow", peers, ""},
			{"status.tokenFile", lab.PasswordFile(t, token+"\n"), ""},
			{"log.format", "text", ""},
			{"log.refusals", "1/5", "refusals logged 1/5"},
		},
		"gateways": {
			{"limit", 12, "limit 12 in"},
			{"window", "7h", "in 7h0m0s"},
			{"fallback.gateways", 4, "onStoreFailure local shared by 4 gateways"},
			{"valkey.endpoints", []string{store.Addr()}, ""},
			{"valkey.username", "gateway", ""},
			{"valkey.password", password, ""},
			{"valkey.tls.insecureSkipVerify", true, ""},
			{"valkey.tls.cert", own.CertFile, ""},
			{"valkey.tls.key", own.KeyFile, ""},
			{"metrics.path", "/gateways/-/metrics", "metrics on /gateways/-/metrics for [127.0.0.1/32 192.0.2.1/32] token true"},
			{"metrics.allow", peers, ""},
			{"metrics.token", token, ""},
		},
		"told": {
			inMemory,
			{"limit", 90, "limit 90 in"},
			{"window", "2h", "in 2h0m0s"},
			{"cost", 2, "cost 2"},
			{"exposeHeaders", true, ""},
			{"response.status", 418, ""},
			{"response.body", "Too much, {sorry}", ""},
			{"response.contentType", "text/x-sorry", ""},
			{"gatewayLimit.limit", 1000, "all clients on this gateway 1000 in"},
			{"gatewayLimit.window", "3h", "in 3h0m0s"},
			{"plans.header", "X-Plan", `plans "`},
			{"plans.values.tiny.limit", 1, ""}, // less than a request costs
		},
		"log": {
			inMemory,
			{"limit", 15000, "limit 15000 in"},
			{"window", "2h", "in 2h0m0s"},
			{"algorithm", "sliding-log", ""},
			{"maxLog", 20000, ""},
		},
		"conditions": {
			inMemory,
			{"limit", 100, "limit 100 in"},
			{"window", "2h", "in 2h0m0s"},
			{"rules[0].name", "exact", "rule exact ("},
			{"rules[0].path", "/conditions/exact", ""},
			{"rules[0].limit", 101, "limit 101 in 2h0m0s"},
			{"rules[1].name", "below", "rule below ("},
			{"rules[1].pathPrefix", "/conditions/below", ""},
			{"rules[1].limit", 102, "limit 102 in"},
			{"rules[1].window", "4h", "in 4h0m0s"},
			{"rules[2].name", "regular", "rule regular ("},
			{"rules[2].pathRegex", `/reg(ular|ex),[0-9]{2,}\.(csv|pdf)$`, ""},
			{"rules[2].limit", 103, "limit 103 in"},
			{"rules[3].name", "methods", "rule methods ("},
			{"rules[3].methods", []string{"SEARCH", "REPORT"}, ""},
			{"rules[3].limit", 104, "limit 104 in"},
			{"rules[4].name", "host", "rule host ("},
			{"rules[4].host", "shop.example.com", ""},
			{"rules[4].limit", 105, "limit 105 in"},
			{"rules[5].name", "header", "rule header ("},
			{"rules[5].header.name", "X-Version", ""},
			{"rules[5].header.value", "2", ""},
			{"rules[5].limit", 106, "limit 106 in"},
		},
	}
	one := map[string]string{"X-Plan": "tiny"}
	limited := func(limit string) map[string]string {
		return map[string]string{status: "200", "X-RateLimit-Limit": limit}
	}
	watched := func(kind string) map[string]string {
		return map[string]string{status: "200", "Content-Type": "~" + kind, "X-RateLimit-Limit": "", "X-Way": "", "X-RateLimit-Decision": ""}
	}
	shows := func(token string) map[string]string { return map[string]string{"Authorization": "Bearer " + token} }
	probes := []probe{
		{set: "all", header: map[string]string{"X-Customer": "c"}, want: map[string]string{
			// The store lets nobody in without the password and the certificates.
			status: "200", "X-Way": "shared", "RateLimit": "", "X-RateLimit-Limit": "7",
		}},
		{set: "file", want: map[string]string{status: "200", "X-RateLimit-Decision": "shared", "X-RateLimit-Limit": "8"}},
		{set: "gateways", want: limited("12")},
		{set: "all", path: "/-/metrics", want: watched("text/plain")},
		{set: "all", path: "/-/status", header: shows(token), want: watched("text/html")},
		{set: "all", path: "/-/status", header: map[string]string{"X-Customer": "d"}, want: limited("7")},
		{set: "file", path: "/-/metrics", header: shows(token), want: watched("text/plain")},
		{set: "file", path: "/-/metrics", header: shows(token + "x"), want: limited("8")},
		{set: "file", path: "/-/status", header: shows(token), want: watched("text/html")},
		{set: "gateways", path: "/-/metrics", header: shows(token), want: watched("text/plain")},
		{set: "gateways", path: "/-/metrics", want: limited("12")},
		{set: "told", want: map[string]string{status: "200", "X-RateLimit-Limit": "90", "Access-Control-Expose-Headers": "~X-RateLimit-Limit"}},
		{set: "told", header: one, want: map[string]string{
			status: "418", body: "Too much, {sorry}", "Content-Type": "text/x-sorry", "X-RateLimit-Limit": "1",
		}},
		{set: "conditions", want: limited("100")},
		{set: "conditions", path: "/exact", want: limited("101")},
		{set: "conditions", path: "/exact/not", want: limited("100")},
		{set: "conditions", path: "/below/this", want: limited("102")},
		{set: "conditions", path: "/reports/regex,2026.pdf", want: limited("103")},
		{set: "conditions", path: "/regex2026.pdf", want: limited("100")},
		{set: "conditions", method: "SEARCH", want: limited("104")},
		{set: "conditions", method: "REPORT", want: limited("104")},
		{set: "conditions", host: "shop.example.com", want: limited("105")},
		{set: "conditions", header: map[string]string{"X-Version": "2"}, want: limited("106")},
		{set: "conditions", header: map[string]string{"X-Version": "3"}, want: limited("100")},
	}

	// By what clients are told apart, on the top level and by a rule.
	for set, group := range map[string]string{"parts": "", "rule-parts": "rules[0]."} {
		sets[set] = slices.Concat([]given{inMemory, {"limit", 10, "limit 10 in"}, {"window", "2h", "in 2h0m0s"}}, under(group+"sourceCriterion.",
			given{"requestHeaderName", "X-Customer", "header X-Customer"},
			given{"requestHeaderNames", []string{"X-One", "X-Two"}, "header X-One and header X-Two"},
			given{"requestHost", true, "and host"},
			given{"cookieName", "sid", "cookie sid"},
			given{"queryParameter", "key", `query parameter "key"`},
			given{"pathSegment", 2, "path segment 2"},
			given{"jwtClaim", "sub", `claim "sub"`},
			given{"tlsClientSubject", true, "certificate"},
			given{"onMissing", "shared", "or else shared"},
		))
		if group != "" {
			sets[set] = append(sets[set], given{group + "name", "own", `rule own (for path "/x", limit 10 in 2h0m0s, by header X-Customer`}, given{group + "path", "/x", ""})
		}
		probes = append(probes, probe{set: set, want: limited("10")})
	}

	// Where addresses stand: on the top level, which a rule shows that counts by something
	// else, among the parts, and among those of another rule.
	for set, strategy := range map[string][]struct {
		option string
		values [3]any
		says   string
	}{
		"depth": {
			{"depth", [3]any{2, 3, 4}, "at depth %v"},
			{"ipv4Subnet", [3]any{24, 25, 26}, "IPv4 by /%v"},
			{"ipv6Subnet", [3]any{56, 57, 58}, "IPv6 by /%v"},
		},
		"excluded": {
			{"excludedIPs", [3]any{[]string{"10.1.0.0/16", "10.11.0.0/16"}, []string{"10.2.0.0/16"}, []string{"10.3.0.0/16", "10.33.0.0/16"}}, "behind %v"},
		},
		"trusted": {
			{"trustedIPs", [3]any{[]string{"10.1.0.0/16", "10.11.0.0/16"}, []string{"10.2.0.0/16"}, []string{"10.3.0.0/16", "10.33.0.0/16"}}, "behind trusted %v"},
		},
	} {
		sets[set] = []given{
			inMemory,
			{"limit", 11, "limit 11 in"},
			{"window", "2h", "in 2h0m0s"},
			{"rules[0].name", "header", `rule header (for path "/x", limit 11 in 2h0m0s, by header X-Customer, address`},
			{"rules[0].path", "/x", ""},
			{"rules[0].sourceCriterion.requestHeaderName", "X-Customer", ""},
			{"rules[1].name", "address", `rule address (for path "/y", limit 11 in 2h0m0s, by address`},
			{"rules[1].path", "/y", ""},
		}
		for _, s := range strategy {
			for i, group := range []string{"", "sourceCriterion.", "rules[1].sourceCriterion."} {
				sets[set] = append(sets[set], given{group + "ipStrategy." + s.option, s.values[i], fmt.Sprintf(s.says, s.values[i])})
			}
		}
		probes = append(probes, probe{set: set, want: limited("11")})
	}

	// Several limits, and what replaces them.
	for set, group := range map[string]string{"several": "", "rule-several": "rules[0]."} {
		sets[set] = slices.Concat([]given{inMemory, {"scope", "s", ""}, {"sourceCriterion.requestHeaderName", "X-API-Key", ""}}, under(group,
			given{"limits[0].name", "burst", "limit burst"},
			given{"limits[0].limit", 5, "limit burst 5 in"},
			given{"limits[0].window", "2s", "in 2s"},
			given{"limits[1].name", "day", "limit day"},
			given{"limits[1].limit", 50, "limit day 50 in"},
			given{"limits[1].window", "1d", "in 1d"},
			given{"plans.header", "X-Plan", `plans "`},
			given{"plans.values.gold.limits[0].name", "day", ""},
			given{"plans.values.gold.limits[0].limit", 500, ""},
			given{"overrides[0].value", "named", "1 overrides"},
			given{"overrides[0].limits[0].name", "burst", ""},
			given{"overrides[0].limits[0].limit", 6, ""},
			given{"overrides[0].limits[1].name", "day", ""},
			given{"overrides[0].limits[1].limit", 5000, ""},
		))
		name := "s:"
		if group != "" {
			sets[set] = append(sets[set], given{"limit", 1, ""}, given{"window", "2h", ""}, given{group + "name", "own", "limit burst 5 in 2s"}, given{group + "pathPrefix", "/" + set, ""})
			name = "s:own:"
		}
		policy := func(burst, day int) map[string]string {
			return map[string]string{"RateLimit-Policy": fmt.Sprintf(`"%sburst";q=%d;w=2, "%sday";q=%d;w=86400`, name, burst, name, day)}
		}
		probes = append(probes,
			probe{set: set, want: policy(5, 50)},
			probe{set: set, header: map[string]string{"X-Plan": "gold"}, want: policy(5, 500)},
			probe{set: set, header: map[string]string{"X-API-Key": "named"}, want: policy(6, 5000)},
		)
	}

	// Buckets, and what replaces them by one that no request fits into.
	for set, group := range map[string]string{"bucket": "", "rule-bucket": "rules[0]."} {
		replaced := []given{
			{"plans.header", "X-Plan", `plans "`},
			{"overrides[0].value", "named", "1 overrides"},
		}
		sets[set] = slices.Concat([]given{inMemory, {"sourceCriterion.requestHeaderName", "X-API-Key", ""}}, under(group,
			given{"limit", 20, "limit 20 in"},
			given{"window", "5h", "in 5h0m0s"},
			given{"algorithm", "token-bucket", ""},
			given{"burst", 7, ""},
			given{"cost", 2, "cost 2"},
			given{"plans.values.gold.burst", 1, ""},
			given{"overrides[0].burst", 1, ""},
		), under(group, replaced...))
		many := "many-" + set
		sets[many] = slices.Concat([]given{inMemory, {"sourceCriterion.requestHeaderName", "X-API-Key", ""}}, under(group,
			given{"limits[0].name", "day", ""},
			given{"limits[0].limit", 20, "limit day 20 in"},
			given{"limits[0].window", "1d", "in 1d"},
			given{"limits[0].burst", 7, ""},
			given{"algorithm", "token-bucket", ""},
			given{"cost", 2, "cost 2"},
			given{"plans.values.gold.limits[0].name", "day", ""},
			given{"plans.values.gold.limits[0].burst", 1, ""},
			given{"overrides[0].limits[0].name", "day", ""},
			given{"overrides[0].limits[0].burst", 1, ""},
		), under(group, replaced...))
		for _, set := range []string{set, many} {
			if group != "" {
				sets[set] = append(sets[set], given{"limit", 9, ""}, given{"window", "2h", ""}, given{group + "name", "own", "rule own ("}, given{group + "pathPrefix", "/" + set, ""})
			}
			probes = append(probes,
				probe{set: set, want: map[string]string{status: "200", "X-RateLimit-Remaining": "5"}},
				probe{set: set, header: map[string]string{"X-Plan": "gold"}, want: map[string]string{status: "429"}},
				probe{set: set, header: map[string]string{"X-API-Key": "named"}, want: map[string]string{status: "429"}},
			)
		}
	}
	probes = append(probes, probe{set: "log", want: limited("15000")}) // which is more than maxLog allows by default

	// One limit with all that can be said of it.
	for set, group := range map[string]string{"single": "", "rule-single": "rules[0]."} {
		sets[set] = slices.Concat([]given{inMemory, {"sourceCriterion.requestHeaderName", "X-API-Key", ""}, {"ipStrategy.depth", 1, ""}}, under(group,
			given{"limit", 20, "limit 20 in"},
			given{"window", "5h", "in 5h0m0s"},
			given{"cost", 2, "cost 2"},
			given{"dryRun", true, "dry run"},
			given{"plans.claim", "plan", `plans "basic" 30 "gold" 40`},
			given{"plans.default", "basic", ""},
			given{"plans.values.basic.limit", 30, ""},
			given{"plans.values.gold.limit", 40, ""},
			given{"overrides[0].hash", digest("digested"), "2 overrides"},
			given{"overrides[0].limit", 50, ""},
			given{"overrides[1].value", "named", ""},
			given{"overrides[1].limit", 60, ""},
			given{"exempt.ips", []string{"198.51.100.7", "203.0.113.0/24"}, `exempt ips ["198.51.100.7" "203.0.113.0/24"]`},
			given{"exempt.paths", []string{"/" + set + "/health", "/" + set + "/docs/*"}, ""},
			given{"exempt.methods", []string{"SEARCH", "REPORT"}, ""},
			given{"exempt.preflight", true, ""},
		))
		if group != "" {
			sets[set] = append(sets[set], given{"limit", 9, ""}, given{"window", "2h", ""},
				given{group + "name", "own", `limit 20 in 5h0m0s, cost 2, exempt ips ["198.51.100.7" "203.0.113.0/24"]`},
				given{group + "pathPrefix", "/" + set, ""},
				given{group + "onStoreFailure", "closed", ""})
		}
		reported := func(limit string) map[string]string {
			return map[string]string{status: "200", "X-RateLimit-Limit": limit, "X-RateLimit-Dry-Run": "allowed"}
		}
		exempt := map[string]string{status: "200", "X-RateLimit-Limit": "", "X-RateLimit-Dry-Run": ""}
		probes = append(probes,
			probe{set: set, want: reported("30")},
			probe{set: set, header: map[string]string{"Authorization": bearer(`{"plan":"gold"}`)}, want: reported("40")},
			probe{set: set, header: map[string]string{"X-API-Key": "digested"}, want: reported("50")},
			probe{set: set, header: map[string]string{"X-API-Key": "named"}, want: reported("60")},
			probe{set: set, header: map[string]string{"X-Forwarded-For": "198.51.100.8"}, want: reported("30")},
			probe{set: set, header: map[string]string{"X-Forwarded-For": "198.51.100.7"}, want: exempt},
			probe{set: set, header: map[string]string{"X-Forwarded-For": "203.0.113.9"}, want: exempt},
			probe{set: set, path: "/health", want: exempt},
			probe{set: set, path: "/docs/a", want: exempt},
			probe{set: set, path: "/docs", want: reported("30")},
			probe{set: set, method: "SEARCH", want: exempt},
			probe{set: set, method: "REPORT", want: exempt},
			probe{set: set, method: "OPTIONS", want: reported("30")},
			probe{set: set, method: "OPTIONS", header: map[string]string{"Origin": "https://shop.example.com", "Access-Control-Request-Method": "PUT"}, want: exempt},
		)
	}
	return sets, probes
}

// Every option arrives from every provider.
func TestEveryOptionArrivesFromEveryProvider(t *testing.T) {
	t.Parallel()
	app, client := lab.NewApp(t, 1), &http.Client{Timeout: 30 * time.Second}
	t.Cleanup(client.CloseIdleConnections)
	authority := lab.NewAuthority(t)
	store := lab.Valkey(t, lab.StoreOptions{
		TLS: authority, Pair: authority.Issue(t, "store", "store.test"),
		TLSClient: true, Password: "unused",
	})
	store.Do("ACL", "SETUSER", "gateway", "on", ">"+password, "~*", "+@all")
	sets, probes := optionSets(t, store, authority)

	had := map[string]bool{}
	middlewares := map[string]options{}
	for name, set := range sets {
		middlewares[name] = together(set)
		for _, g := range set {
			had[optionPath(g.option)] = true
		}
	}
	optionLevels(reflect.TypeFor[gatequota.Config](), "", func(of reflect.Type, prefix string) {
		for name, field := range optionFields(of) {
			group := field.Kind() == reflect.Struct || (field.Kind() == reflect.Slice || field.Kind() == reflect.Map) && field.Elem().Kind() == reflect.Struct
			// What replaces a limit keeps its window: see the test of what is refused.
			replaced := name == "window" && (strings.Contains(prefix, "plans.") || strings.Contains(prefix, "overrides[0]."))
			if !group && !replaced && !had[prefix+name] {
				t.Errorf("this test does not set the option %s", prefix+name)
			}
		}
	})

	asLabels := func(change func(string) string) map[string]string {
		all := map[string]string{}
		for label, value := range labelled(middlewares) {
			all[change(label)] = value
		}
		return all
	}
	asTOML := func() string {
		var text strings.Builder
		if err := toml.NewEncoder(&text).Encode(each(app, middlewares).tree()); err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	noRouters := setup{app: app, routers: map[string]router{"none": {rule: "Path(`/none`)"}}}
	same := func(label string) string { return label }
	start := func(o lab.TraefikOptions, dynamic string) *lab.Traefik {
		o.Args = []string{"--entrypoints.web.forwardedheaders.insecure=true"}
		return lab.NewTraefik(t, o, dynamic)
	}
	for provider, start := range map[string]func() *lab.Traefik{
		"YAML": func() *lab.Traefik { return start(lab.TraefikOptions{}, each(app, middlewares).yaml(t)) },
		"TOML": func() *lab.Traefik { return start(lab.TraefikOptions{TOML: true}, asTOML()) },
		"labels": func() *lab.Traefik {
			return start(lab.TraefikOptions{Docker: lab.Labels(t, app.URLs[0], asLabels(same))}, noRouters.yaml(t))
		},
		"labels in lower case": func() *lab.Traefik {
			return start(lab.TraefikOptions{Docker: lab.Labels(t, app.URLs[0], asLabels(strings.ToLower))}, noRouters.yaml(t))
		},
	} {
		t.Run(provider, func(t *testing.T) {
			tr := start()
			for name, set := range sets {
				lines := tr.LogLines("gatequota: middleware " + name + "@")
				if len(lines) != 1 {
					t.Errorf("the settings of %s are logged %d times; %s%s", name, len(lines), tr.RouterError(name+"@file"), tr.RouterError(name+"@docker"))
					continue
				}
				for _, g := range set {
					if !strings.Contains(lines[0], g.says) {
						t.Errorf("%s: of %s the settings lack %q:\n%s", name, g.option, g.says, lines[0])
					}
				}
			}
			for _, secret := range []string{password, keySecret, token} {
				if strings.Contains(tr.Log(), secret) {
					t.Errorf("%s is in the log", secret)
				}
			}
			for _, p := range probes {
				p.check(t, do(t, client, p.request(tr.URL)))
			}
		})
	}

	// Kubernetes delivers what JSON knows: numbers and truth values.
	t.Run("JSON", func(t *testing.T) {
		plugin, err := host.Load(lab.Root(), io.Discard, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		handlers := map[string]http.Handler{}
		for name := range sets {
			text, err := json.Marshal(middlewares[name])
			if err != nil {
				t.Fatal(err)
			}
			var o map[string]any
			if err := json.Unmarshal(text, &o); err != nil {
				t.Fatal(err)
			}
			ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
			if handlers[name], err = plugin.New(t.Context(), ok, name+"@kubernetescrd", o); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, p := range probes {
			if h := handlers[p.set]; h != nil {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, p.request("http://gateway.test"))
				p.check(t, lab.Answer{Status: w.Code, Header: w.Header(), Body: w.Body.String()})
			}
		}
	})
}

// A slip in an option's name or level is refused by name, whoever provides it.
func TestUnknownOptionsAreRefusedAtEveryLevel(t *testing.T) {
	t.Parallel()
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	base := shared("127.0.0.1:6379", 5, window)
	byAddress := base.with("sourceCriterion.requestHeaderName", nil)
	cases := map[string]struct {
		o    options
		says string
	}{
		"slip":            {base.with("limitt", 5), "limitt"},
		"slip-criterion":  {base.with("sourceCriterion.requestHeader", "X"), "sourceCriterion.requestHeader"},
		"slip-ip":         {byAddress.with("sourceCriterion.ipStrategy.dept", 1), "sourceCriterion.ipStrategy.dept"},
		"slip-valkey":     {base.with("valkey.adress", "x"), "valkey.adress"},
		"slip-tls":        {base.with("valkey.tls.certt", "x"), "valkey.tls.certt"},
		"too-high":        {base.with("timeout", "1s"), "timeout"},
		"too-high-header": {base.with("requestHeaderName", "X"), "requestHeaderName"},
		"too-high-depth":  {byAddress.with("sourceCriterion.depth", 1), "sourceCriterion.depth"},
		"too-high-ca":     {base.with("valkey.ca", "x"), "valkey.ca"},
		"too-low":         {base.with("valkey.limit", 5), "valkey.limit"},
		"too-low-window":  {base.with("window", nil, "valkey.window", "1m"), "valkey.window"},
		"all-too-low":     {options{"options": base}, "options"},
		"redis":           {base.with("redis.endpoints", "x"), "redis"},
		"no-limit":        {base.with("limit", nil), "option limit is missing"},
		"no-window":       {base.with("window", nil), "option window is missing"},
		"no-endpoint":     {base.with("valkey.endpoints", nil), "option valkey.endpoints is missing"},
		"nothing":         {options{}, "option limit is missing"},
		"no-algorithm":    {base.with("algorithm", "leaky-bucket"), "option algorithm: \"leaky-bucket\""},
		"plan-window": {
			base.with("plans.header", "X-Plan", "plans.values.gold.limits[0].name", "a", "plans.values.gold.limits[0].window", "1m"),
			"plans.values.gold.limits[0].window",
		},
		"override-window": {base.with("overrides[0].value", "a", "overrides[0].limits[0].name", "a", "overrides[0].limits[0].window", "1m"), "overrides[0].limits[0].window"},
	}
	levels := 0
	optionLevels(reflect.TypeFor[gatequota.Config](), "", func(_ reflect.Type, prefix string) {
		levels++
		cases[fmt.Sprint("level-", levels)] = struct {
			o    options
			says string
		}{base.with(prefix+"nonsense", "x"), "unknown option " + prefix + "nonsense"}
	})
	if levels < 20 {
		t.Errorf("only %d levels of options are tried", levels)
	}
	middlewares, labels := map[string]options{}, map[string]options{}
	for name, c := range cases {
		middlewares[name] = c.o
		if name != "nothing" { // no label, no middleware
			labels[name] = c.o
		}
	}
	delete(labels, "all-too-low")
	tr := lab.NewTraefik(t, lab.TraefikOptions{Docker: lab.Labels(t, app.URLs[0], labelled(labels))}, each(app, middlewares).yaml(t))
	for name, c := range cases {
		for _, provider := range []string{"file", "docker"} {
			if _, ok := labels[name]; provider == "docker" && !ok {
				continue
			}
			if got := tr.RouterError(name + "@" + provider); !strings.Contains(strings.ToLower(got), strings.ToLower(c.says)) {
				t.Errorf("%s@%s: %q, want it to name %q", name, provider, got, c.says)
			}
		}
		mustBe(t, name, lab.Answers{client.Get(lab.Request{URL: tr.URL + "/" + name})}, http.StatusNotFound)
	}
	mustNotPanic(t, tr)
}

// A list is the same list in every form that providers know.
func TestListsArriveInEveryForm(t *testing.T) {
	t.Parallel()
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	base := local(2, window).with("sourceCriterion.requestHeaderName", nil)
	form := func(list any) options { return base.with("sourceCriterion.ipStrategy.excludedIPs", list) }
	inFile := map[string]options{
		"block":     form([]string{"10.0.0.0/8", "192.168.0.0/16"}),
		"inline":    form(plain("[10.0.0.0/8, 192.168.0.0/16]")),
		"scalar":    form("10.0.0.0/8,192.168.0.0/16"),
		"blanks":    form(" 10.0.0.0/8 , 192.168.0.0/16 "),
		"host-bits": form([]string{"10.9.8.7/8", "192.168.3.4/16"}),
		"addresses": form([]string{"10.1.1.1", "192.168.3.4"}),
		"empty":     form([]string{}),
		"nothing":   form(""),
		"typo":      form([]string{"10.0.0.0/8", "10.0.0.0/33"}),
		"word":      form("proxy"),
		"hole":      form("10.0.0.0/8,,192.168.0.0/16"),
	}
	inLabels := labelled(map[string]options{
		"l-list":  form("10.0.0.0/8,192.168.0.0/16"),
		"l-blank": form("10.0.0.0/8, 192.168.0.0/16"),
		"l-typo":  form("10.0.0.0/8, 10.0.0.0/33"),
		"l-empty": form(""),
		"l-index": base,
	})
	for i, network := range []string{"10.0.0.0/8", "192.168.0.0/16"} {
		inLabels[fmt.Sprintf("traefik.http.middlewares.l-index.plugin.%s.sourceCriterion.ipStrategy.excludedIPs[%d]", lab.PluginName, i)] = network
	}
	// The flow sequence is written as it stands.
	text := strings.ReplaceAll(each(app, inFile).yaml(t), "'[10.0.0.0/8, 192.168.0.0/16]'", "[10.0.0.0/8, 192.168.0.0/16]")
	tr := lab.NewTraefik(t, lab.TraefikOptions{
		Args:   []string{"--entrypoints.web.forwardedheaders.insecure=true"},
		Docker: lab.Labels(t, app.URLs[0], inLabels),
	}, text)

	from := func(path, client string) lab.Request {
		return lab.Request{URL: tr.URL + "/" + path, Header: map[string]string{"X-Forwarded-For": client + ", 10.1.1.1, 192.168.3.4"}}
	}
	for _, path := range []string{"block", "inline", "scalar", "blanks", "host-bits", "addresses", "l-list", "l-blank", "l-index"} {
		answers := client.Sequence([]lab.Request{
			from(path, "203.0.113.1"), from(path, "203.0.113.1"), from(path, "203.0.113.1"), from(path, "203.0.113.2"),
		})
		for i, want := range []int{200, 200, 429, 200} {
			if answers[i].Status != want {
				t.Errorf("%s: request %d got %d, want %d", path, i+1, answers[i].Status, want)
			}
		}
	}
	for path, says := range map[string]string{"typo@file": "10.0.0.0/33", "l-typo@docker": "10.0.0.0/33", "word@file": "proxy", "hole@file": `""`,
		// Nobody trusts nobody in silence.
		"empty@file": "empty", "nothing@file": "empty", "l-empty@docker": "empty"} {
		if got := tr.RouterError(path); !strings.Contains(got, "excludedIPs") || !strings.Contains(got, says) {
			t.Errorf("%s: %q", path, got)
		}
	}
}

// Lists as providers have them beside []string.
type (
	flow    []string // in one line of YAML
	indexed []string // one label for each entry
)

// MarshalYAML implements yaml.Marshaler.
func (f flow) MarshalYAML() (any, error) {
	node := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, each := range f {
		node.Content = append(node.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: each})
	}
	return node, nil
}

// Each option that is a list is taken apart in the same way, on whatever level it
// stands: both entries are taken, and one that is wrong is named without what stood
// around it.
func TestEveryListIsTakenApart(t *testing.T) {
	t.Parallel()
	app := lab.NewApp(t, 1)
	window, _ := lab.QuietWindow(time.Now())
	base := options{"limit": 5, "window": window.String(), "mode": "local"}
	// Two entries that are right, and one that is not.
	entries := map[string][3]string{
		"requestHeaderNames": {"X-One", "X-Two", "X Three"},
		"excludedIPs":        {"10.0.0.0/8", "192.168.0.0/16", "10.0.0.0/33"},
		"trustedIPs":         {"10.0.0.0/8", "192.168.0.1", "10.0.0.0.1"},
		"ips":                {"10.0.0.0/8", "2001:db8::/32", "proxy"},
		"paths":              {"/health", "/docs/*", "docs"},
		"methods":            {"SEARCH", "REPORT", "SEA RCH"},
		"endpoints":          {"store.test:6379", "", "store.test:x"},
		"allow":              {"10.0.0.0/8", "2001:db8::/32", "prometheus"},
	}
	forms := map[string]struct {
		provider string
		of       func(a, b string) any
	}{
		"block":   {"file", func(a, b string) any { return []string{a, b} }},
		"flow":    {"file", func(a, b string) any { return flow{a, b} }},
		"scalar":  {"file", func(a, b string) any { return a + "," + b }},
		"blanks":  {"file", func(a, b string) any { return " " + a + " ,\t" + b + " " }},
		"label":   {"docker", func(a, b string) any { return a + "," + b }},
		"l-blank": {"docker", func(a, b string) any { return " " + a + ", " + b + " " }},
		"l-index": {"docker", func(a, b string) any { return indexed{a, b} }},
	}
	byProvider := map[string]map[string]options{"file": {}, "docker": {}}
	wants := map[string]string{} // what routers are told, by their name and provider
	lists := 0
	optionLevels(reflect.TypeFor[gatequota.Config](), "", func(of reflect.Type, prefix string) {
		for name, field := range optionFields(of) {
			if field.Kind() != reflect.Slice || field.Elem().Kind() != reflect.String {
				continue
			}
			lists++
			option, e := prefix+name, entries[name]
			if e[0] == "" {
				t.Errorf("this test has no entries for the option %s", option)
			}
			on := base
			if strings.HasPrefix(option, "rules[0].") {
				on = base.with("rules[0].name", "own", "rules[0].path", "/x")
			}
			if watch, _, _ := strings.Cut(option, "."); name == "allow" {
				on = base.with(watch+".path", "/-/"+watch)
			}
			for form, f := range forms {
				right, wrong := fmt.Sprintf("%s-%d-right", form, lists), fmt.Sprintf("%s-%d-wrong", form, lists)
				switch name {
				case "endpoints": // there can be only one
					wants[wrong+"@"+f.provider] = `option valkey.endpoints: "2 entries"`
				case "methods":
					wants[wrong+"@"+f.provider] = fmt.Sprintf("option %s: %q", option, e[2])
				default:
					wants[wrong+"@"+f.provider] = fmt.Sprintf("option %s[1]: %q", option, e[2])
				}
				byProvider[f.provider][wrong] = on.with(option, f.of(e[0], e[2]))
				if e[1] != "" {
					wants[right+"@"+f.provider] = ""
					byProvider[f.provider][right] = on.with(option, f.of(e[0], e[1]))
				}
			}
		}
	})
	if lists < 15 {
		t.Errorf("only %d lists are tried", lists)
	}
	// The file provider of Traefik itself marks lists inside its texts so. What comes from
	// elsewhere and looks like that is no list of addresses.
	const marked = "║24║10.0.0.0/8║192.168.0.0/16"
	byProvider["docker"]["l-marked"] = base.with("ipStrategy.excludedIPs", marked)
	wants["l-marked@docker"] = fmt.Sprintf("option ipStrategy.excludedIPs[0]: %q", marked)

	tr := lab.NewTraefik(t, lab.TraefikOptions{Docker: lab.Labels(t, app.URLs[0], labelled(byProvider["docker"]))}, each(app, byProvider["file"]).yaml(t))
	for router, want := range wants {
		if got := tr.RouterError(router); !strings.Contains(got, want) || want == "" && got != "" {
			name, provider, _ := strings.Cut(router, "@")
			t.Errorf("%s: %q, want %q; the options are %v", router, got, want, byProvider[provider][name])
		}
	}
}
