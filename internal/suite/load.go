package suite

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
)

// load is about what options are taken, and which are refused and how.
var load = tests{
	{"a wrong option is refused by its name and value", wrongOptions},
	{"a missing option is refused by its name", missingOptions},
	{"an unknown option is refused on every level", unknownOptions},
	{"options that exclude each other are refused", contradictions},
	{"each form of a right option is taken", rightOptions},
	{"a number is enforced as it is written", numbersAsWritten},
	{"a window is as long as it is written", windowsAsWritten},
	{"a list is the same in each of its forms", lists},
	{"secrets are in no refusal", secretsNotInRefusals},
	{"options are not changed", optionsUnchanged},
}

// refused checks that options are refused with an error that has all these texts in
// it.
func (t *T) refused(options map[string]any, texts ...string) {
	t.Helper()
	name := t.name()
	newHandler, err := t.plugin.Configure(t.ctx, name, options)
	var h http.Handler
	if err == nil {
		h, err = newHandler(served)
		if err != nil && (len(err.Error()) > 600 || strings.Contains(err.Error(), "\n")) {
			t.Errorf("the error for %v is no line to read: %v", options, err)
		}
	}
	if err == nil {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, keyed("key"))
		t.Errorf("%v are taken, with the limit %q", options, w.Header().Get("RateLimit-Policy"))
		return
	}
	for _, text := range texts {
		if !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(text)) {
			t.Errorf("the error for %v lacks %q: %v", options, text, err)
		}
	}
}

// endpoint is where no test connects to.
const endpoint = "valkey:6379"

// shared returns options that would be taken.
func (t *T) shared(pairs ...any) map[string]any {
	return with(t.options(nil, "mode", absent, "valkey.endpoints", endpoint), pairs...)
}

var list, group = []any{"5", "6"}, map[string]any{"a": "b"}

func wrongOptions(t *T) {
	integers := []any{
		"", " 5", "5 ", "010", "0x10", "1_000", "1e3", "-1", "+5", "1.9", "5.0", "true", "five", "99999999999999999999", "٥",
		float64(-1), 1.9, float64(1e300), true, false, list, group,
	}
	durations := []any{
		"", "-1s", "0", "0s", "1w", "60 s", " 60s", "60S", "1.5s", "s", "m1", "1h-30m", "0x10", "1e3", "+60s", "soon",
		"99999999999999999999s", "9223372036854775808", 1.5, float64(-60), true, list, group,
	}
	texts := []any{float64(5), true, false, list, group}
	for _, tt := range []struct {
		option string
		values []any
		// What a secret may stand in is not shown, and what the decoder refuses has its
		// words.
		valueHidden bool
	}{
		{"limit", append([]any{"0", float64(0), "1000000000000000", float64(1_000_000_000_000_000), "9007199254740993"}, integers...), false},
		{"window", append([]any{"100ms", "250ms", "1500ms", "1s1ms", "367d", "8785h", "31622401", float64(31622401)}, durations...), false},
		{"scope", append([]any{"", "a b", "a:b", "a/b", "{a}", "ä", "a\n"}, texts...), false},
		{"mode", append([]any{"", "Shared", "redis", "shared "}, texts...), false},
		{"onStoreFailure", append([]any{"", "fail", "Open", "closed,open"}, texts...), false},
		{"headers", append([]any{"", "all", "IETF"}, texts...), false},
		{"decisionHeader", append([]any{"X Way", "X-Way:", "Wäy", "a\r\nb"}, texts...), false},
		{"maxClients", append([]any{"0", "16777217", float64(16777217)}, integers...), false},
		{"fallback.limit", append([]any{"0", float64(0), "101", float64(101)}, integers...), false},
		{"fallback.gateways", append([]any{"0", "10001", float64(10001)}, integers...), false},
		{"sourceCriterion.requestHeaderName", append([]any{"", "X Key", "X-Key:", "Schlüssel", "Host", "host"}, texts...), false},
		{"sourceCriterion.requestHost", []any{"", "yes", "1", "TRUE", float64(1), list, group}, false},
		{"sourceCriterion.ipStrategy.depth", append([]any{"1001", float64(1001)}, integers...), false},
		{"sourceCriterion.ipStrategy.ipv6Subnet", append([]any{"0", "129", float64(129)}, integers...), false},
		{"sourceCriterion.ipStrategy.excludedIPs", []any{
			"10.0.0.0/33", "2001:db8::/129", "10.0.0.256", "10.0.0.0/8,", ",", "10.0.0.0/8,,10.0.0.1", "proxy.example", "10.0.0.0/",
			[]any{"10.0.0.0/8", "nonsense"}, []any{""}, "::ffff:0.0.0.0/95", "fe80::1%eth0", float64(10), true,
		}, false},
		{"valkey.endpoints", []any{
			[]any{""}, " valkey:6379", "valkey:6379 ", "redis://u:p@valkey:6379/1", "valkey://valkey", "valkey:0", "valkey:70000", "valkey:abc",
			":6379", "valkey:", "unix://socket", "unix://", "[::1", "::1]:6379", "valkey:6379:1", "6379", "val key", "valkey:06379",
			"a:6379,b:6379", []any{"a:6379", "b:6379"}, "a:6379,", float64(6379), true,
		}, false},
		{"valkey.username", texts, false},
		{"valkey.password", texts, false},
		{"valkey.passwordFile", append([]any{filepath.Join(t.TempDir(), "none")}, texts...), false},
		{"valkey.db", append([]any{"1000001"}, integers...), false},
		{"valkey.timeout", append([]any{"11s", "10001ms", "100us", "1ns"}, durations...), false},
		{"valkey.dialTimeout", append([]any{"61s", "2m"}, durations...), false},
		{"valkey.keyPrefix", append([]any{"", "a b", "a/b", "{rate}", "ä"}, texts...), false},
		{"valkey.tls.ca", append([]any{filepath.Join(t.TempDir(), "none"), "-----BEGIN CERTIFICATE-----\nno\n"}, texts...), true},
		{"valkey.tls.cert", append([]any{filepath.Join(t.TempDir(), "none")}, texts...), true},
		{"valkey.tls.key", append([]any{filepath.Join(t.TempDir(), "none")}, texts...), true},
		{"valkey.tls.serverName", texts, false},
		{"valkey.tls.insecureSkipVerify", []any{"", "yes", "1", "TRUE", float64(1), list, group}, false},
		// Groups of options that are none.
		{"sourceCriterion", []any{"x-api-key", true, float64(1)}, true},
		{"sourceCriterion.ipStrategy", []any{"depth", true, float64(1)}, true},
		{"valkey", []any{endpoint, true, float64(1)}, true},
		{"valkey.tls", []any{"true", true, float64(1)}, true},
	} {
		t.sub(tt.option, func(t *T) {
			for _, value := range tt.values {
				options := t.shared()
				if strings.Contains(tt.option, "requestHost") || strings.Contains(tt.option, "ipStrategy") {
					options = with(options, "sourceCriterion", absent)
				}
				want := []string{tt.option}
				if written, ok := value.(string); ok && !tt.valueHidden && !strings.ContainsAny(written, ",@") {
					want = append(want, strings.Trim(fmt.Sprintf("%q", value), `"`))
				}
				t.refused(with(options, tt.option, value), want...)
			}
		})
	}
	for option, bound := range map[string]string{
		"limit": "999999999999999", "window": "366d", "maxClients": "16777216", "fallback.limit": "to 5", "fallback.gateways": "10000", "sourceCriterion.ipStrategy.ipv6Subnet": "128",
		"sourceCriterion.ipStrategy.depth": "1000", "valkey.db": "1000000", "valkey.timeout": "10s", "valkey.dialTimeout": "1m",
	} {
		t.refused(with(t.shared("sourceCriterion", absent), option, "99999999999999"+"99"), option, bound)
	}
}

func missingOptions(t *T) {
	t.refused(t.shared("limit", absent), "limit", "missing")
	t.refused(t.shared("window", absent), "window", "missing")
	t.refused(map[string]any{}, "limit", "missing")
	for _, none := range []any{absent, "", []any{}} {
		t.refused(t.shared("valkey.endpoints", none), "valkey.endpoints")
	}
	t.refused(t.shared("valkey", absent), "valkey.endpoints", "missing")
	// A middleware whose name cannot be a scope needs one.
	for _, name := range []string{"my quota@file", "a:b@docker", "größe@file"} {
		newHandler, err := t.plugin.Configure(t.ctx, name, t.shared())
		if err == nil {
			_, err = newHandler(served)
		}
		if err == nil || !strings.Contains(err.Error(), "scope") || !strings.Contains(err.Error(), name) {
			t.Errorf("a middleware called %q: %v", name, err)
		}
		t.handler(name, t.shared("scope", "a.scope"))
	}
}

func unknownOptions(t *T) {
	for _, option := range []string{
		"limitt", "rate", "period", "average", "limit ", "requestHeaderName", "depth", "endpoints", "password", "tls",
		"gateways", "fallback.limits", "fallback.window", "sourceCriterion.requestHeader", "sourceCriterion.depth", "sourceCriterion.limit",
		"valkey.endpoint", "valkey.address", "valkey.pasword", "valkey.ca", "valkey.limit",
		"valkey.tls.caFile", "valkey.tls.endpoints",
	} {
		t.refused(t.shared(option, "1"), "unknown option "+option)
	}
	for _, option := range []string{"sourceCriterion.ipStrategy.excludedIP", "sourceCriterion.ipStrategy.excludedIPs.depth"} {
		t.refused(with(t.shared("sourceCriterion", absent), option, "1"), strings.TrimSuffix(option, ".depth"))
	}
	// All options one level too low, and all of the store's one too high.
	t.refused(map[string]any{"quota": t.shared()}, "unknown option quota")
	t.refused(with(t.options(nil, "mode", absent), "endpoints", endpoint, "db", "1"), "unknown option db, endpoints")
}

func contradictions(t *T) {
	const ip = "sourceCriterion.ipStrategy"
	t.refused(t.shared("sourceCriterion", map[string]any{"ipStrategy": map[string]any{"depth": "1", "excludedIPs": "10.0.0.0/8"}}), ip+".depth", "excludedIPs")
	t.refused(t.shared("sourceCriterion", map[string]any{"ipStrategy": map[string]any{"depth": "1", "trustedIPs": "10.0.0.0/8"}}), ip+".depth", "trustedIPs")
	t.refused(t.shared("sourceCriterion", map[string]any{"ipStrategy": map[string]any{"excludedIPs": "10.0.0.0/8", "trustedIPs": "10.0.0.0/8"}}), ip, "trustedIPs")
	t.refused(t.shared("valkey.username", "app"), "valkey.username", `"app"`, "valkey.password")
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("p\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.refused(t.shared("valkey.password", "p", "valkey.passwordFile", file), "valkey.passwordFile", file)
	pki := NewAuthority(t.T)
	pair := pki.Issue(t.T, "x", false)
	t.refused(t.shared("valkey.tls.cert", pair.CertPEM), "valkey.tls.cert", "key")
	t.refused(t.shared("valkey.tls.key", pair.KeyPEM), "valkey.tls.cert", "key")
	t.refused(t.shared("valkey.tls.cert", pair.CertPEM, "valkey.tls.key", pki.Issue(t.T, "y", false).KeyPEM), "valkey.tls.cert")
	t.refused(t.shared("valkey.endpoints", "unix:///run/valkey.sock", "valkey.tls", map[string]any{}), "valkey.tls")
}

func rightOptions(t *T) {
	for _, tt := range []struct {
		option string
		values []any
	}{
		{"scope", []any{"apikey", "A-z_0.9@x"}},
		{"mode", []any{"shared", "local"}},
		{"onStoreFailure", []any{"local", "closed", "open"}},
		{"headers", []any{"both", "ietf", "legacy", "none"}},
		{"decisionHeader", []any{"", "X-Way"}},
		{"maxClients", []any{"1", "16777216", float64(65536)}},
		{"fallback", []any{map[string]any{}, map[string]any{"limit": "5", "gateways": 2}}},
		{"fallback.limit", []any{"1", "5", float64(5)}},
		{"fallback.gateways", []any{"1", "10000", float64(2)}},
		{"sourceCriterion", []any{
			map[string]any{}, map[string]any{"requestHost": "true"}, map[string]any{"requestHost": true},
			map[string]any{"requestHost": false, "requestHeaderName": "Authorization"}, map[string]any{"requestHost": "false"},
			map[string]any{"ipStrategy": map[string]any{}},
		}},
		{"sourceCriterion.requestHeaderName", []any{"x-api-key", "X-API-KEY", "Authorization", "_key", "X!#$%&'*+.^`|~"}},
		{"valkey.endpoints", []any{
			"valkey", "valkey:6379", "valkey.example.:1", "127.0.0.1:65535", "[::1]:6379", "[::1]", "::1", "unix:///run/valkey.sock",
			[]any{endpoint}, "my_store-1.ns.svc.cluster.local:6379",
		}},
		{"valkey.db", []any{"0", "1000000", float64(3)}},
		{"valkey.timeout", []any{"1ms", "250ms", "10s", "1", float64(1)}},
		{"valkey.dialTimeout", []any{"1ms", "1m", "60", "1s500ms"}},
		{"valkey.keyPrefix", []any{"rate", "acme:gateway", "A-z_0.9@x:"}},
		{"valkey.username", []any{""}},
		{"valkey.password", []any{"", "010", "true"}},
		{"valkey.tls", []any{map[string]any{}, map[string]any{"serverName": "valkey.example"}, map[string]any{"insecureSkipVerify": true}}},
		{"valkey.tls.insecureSkipVerify", []any{"true", "false", true, false}},
	} {
		for _, value := range tt.values {
			newHandler, err := t.plugin.Configure(t.ctx, t.name(), t.shared(tt.option, value))
			if err == nil {
				_, err = newHandler(served)
			}
			if err != nil {
				t.Errorf("%s %v: %v", tt.option, value, err)
			}
		}
	}
	// The names are those of the documentation, in any case, as labels have them.
	h := t.handler(t.name(), map[string]any{
		"LIMIT": "3", "window": "1h", "MODE": "local", "onstorefailure": "closed", "DecisionHeader": "x-way", "maxclients": "10",
		"sourcecriterion": map[string]any{"IPSTRATEGY": map[string]any{"ipv6subnet": "48", "excludedips": "10.0.0.0/8"}},
		"Valkey":          map[string]any{"Endpoints": endpoint, "keyprefix": "x", "dialtimeout": "2s", "passwordfile": "", "TLS": map[string]any{"servername": "x"}},
	})
	if got := t.ask(h, ""); got.limit != 3 || got.header.Get("X-Way") != "local" {
		t.Errorf("limit %d, %v", got.limit, got.header)
	}
}

func numbersAsWritten(t *T) {
	for written, want := range map[any]int64{
		"1": 1, "5": 5, "100": 100, "4294967297": 4294967297, "2147483648": 1 << 31, "1000000": 1_000_000, "999999999999999": 999_999_999_999_999,
		float64(5): 5, float64(4294967297): 4294967297, float64(999_999_999_999_999): 999_999_999_999_999,
	} {
		got := t.ask(t.handler(t.name(), t.options(nil, "limit", written)), "key")
		if got.limit != want || got.remaining != want-1 {
			t.Errorf("limit %v is enforced as %d, %d remain", written, got.limit, got.remaining)
		}
	}
}

func windowsAsWritten(t *T) {
	for written, want := range map[any]int64{
		"1s": 1, "1": 1, "1000ms": 1, "60": 60, "60s": 60, "1m": 60, "86400": 86400, "86400s": 86400, "24h": 86400, "1d": 86400,
		"1h30m": 5400, "1h30m5s": 5405, "2592000s": 2592000, "31d": 31 * 86400, "366d": 366 * 86400, "8784h": 366 * 86400,
		"31622400": 366 * 86400, float64(60): 60, float64(31622400): 366 * 86400,
	} {
		name := t.name()
		got := t.ask(t.handler(name, t.options(nil, "window", written)), "key")
		policy := fmt.Sprintf(`"%s";q=5;w=%d`, name, want)
		if got.header.Get("RateLimit-Policy") != policy || got.reset < 1 || got.reset > want {
			t.Errorf("window %v: %v, want %s", written, got.header, policy)
		}
	}
}

func lists(t *T) {
	v := t.valkey()
	for _, form := range []any{
		[]any{"10.0.0.0/8", "192.168.0.0/16"}, []any{"10.0.0.0/8 ", " 192.168.0.0/16"}, "10.0.0.0/8,192.168.0.0/16", "10.0.0.0/8, 192.168.0.0/16",
		"\t10.0.0.0/8 ,192.168.0.0/16 ", []string{"10.0.0.0/8", "192.168.0.0/16"}, []any{"10.1.2.3/8", "192.168.77.1/16"},
	} {
		h := t.handler(t.name(), t.options(v, byAddress("excludedIPs", form)...))
		client := t.bucket(v, h, from("203.0.113.7:80"))
		for _, proxies := range []string{"203.0.113.7, 10.0.0.1", "203.0.113.7, 192.168.9.9, 10.255.255.255", "198.51.100.1, 203.0.113.7"} {
			if t.bucket(v, h, forwardedFor("10.0.0.2:80", proxies)) != client {
				t.Errorf("%q: the client is not found in %q", form, proxies)
			}
		}
		if t.bucket(v, h, forwardedFor("10.0.0.2:80", "203.0.113.7, 172.16.0.1")) == client {
			t.Errorf("%q trusts 172.16.0.1", form)
		}
	}
	// One scalar is a list of one, and an address is a range of one.
	for _, form := range []any{"10.0.0.1", []any{"10.0.0.1"}, "10.0.0.1/32"} {
		h := t.handler(t.name(), t.options(v, byAddress("excludedIPs", form)...))
		client := t.bucket(v, h, from("203.0.113.7:80"))
		if t.bucket(v, h, forwardedFor("10.0.0.9:80", "203.0.113.7, 10.0.0.1")) != client {
			t.Errorf("%q: the client is not found", form)
		}
		if t.bucket(v, h, forwardedFor("10.0.0.9:80", "203.0.113.7, 10.0.0.2")) == client {
			t.Errorf("%q trusts 10.0.0.2", form)
		}
	}
	// An empty list, such as that of a variable that is not set, trusts nobody in silence.
	for _, form := range []any{"", []any{}} {
		t.refused(t.options(v, byAddress("excludedIPs", form)...), "excludedIPs", "empty")
	}
}

func secretsNotInRefusals(t *T) {
	const secret = "hunter2-4c07"
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, pairs := range [][]any{
		{"valkey.password", secret, "limit", "0"},
		{"valkey.password", []any{secret}},
		{"valkey.password", map[string]any{"value": secret}},
		{"valkey.password", secret, "valkey.passwordFile", file},
		{"valkey.passwordFile", file, "limit", "0"},
		{"valkey.passwordFile", file + "x", "valkey.password", secret},
		{"valkey.pasword", secret},
		{"password", secret},
		{"valkey.password", secret, "valkey.username", true},
		{"valkey.endpoints", "redis://user:" + secret + "@valkey:6379/0"},
		{"valkey.endpoints", "user:" + secret + "@valkey:6379"},
		{"valkey.endpoints", secret + "@valkey"},
		{"valkey.endpoints", []any{"valkey:6379", "redis://:" + secret + "@valkey"}},
		{"valkey.tls.key", "-----BEGIN EC PRIVATE KEY-----\n" + secret + "\n-----END EC PRIVATE KEY-----\n"},
		{"valkey.tls.key", []any{secret}},
		{"valkey.tls.cert", "-----BEGIN CERTIFICATE-----\n" + secret, "valkey.tls.key", "-----BEGIN EC PRIVATE KEY-----\n" + secret},
	} {
		newHandler, err := t.plugin.Configure(t.ctx, t.name(), t.shared(pairs...))
		if err == nil {
			_, err = newHandler(served)
		}
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%v: %v", pairs, err)
		}
	}
	t.handler(t.name(), t.shared("valkey.username", "app", "valkey.passwordFile", file))
	t.handler(t.name(), t.shared("valkey.password", secret))
	if lines := t.logged(secret); len(lines) > 0 {
		t.Errorf("the secret is in the log: %q", lines)
	}
}

func optionsUnchanged(t *T) {
	options := t.shared("valkey.password", "p", "valkey.tls", map[string]any{"insecureSkipVerify": "true"},
		"sourceCriterion", map[string]any{"ipStrategy": map[string]any{"excludedIPs": []any{" 10.1.2.3/8 "}}})
	before, err := json.Marshal(options)
	if err != nil {
		t.Fatal(err)
	}
	newHandler := t.configure(t.name(), options)
	for i := 0; i < 3; i++ {
		if _, err := newHandler(served); err != nil {
			t.Errorf("router %d: %v", i+1, err)
		}
	}
	if after, err := json.Marshal(options); string(after) != string(before) || err != nil {
		t.Errorf("options were %s and are %s, %v", before, after, err)
	}
}
