package suite

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
)

// plans is about clients that have other limits than the rest, and about what the store
// calls them.
var plans = tests{
	{"a header names the plan", planByHeader},
	{"a claim names the plan", planByClaim},
	{"another plan is another limit on the same count", planKeepsCount},
	{"plans and overrides replace single ones of several limits", planOfSeveral},
	{"a client is overridden by its value", overrideByValue},
	{"a client is overridden by its hash", overrideByHash},
	{"overrides are exact while many ask", overrideExact},
	{"a secret makes the keys of clients unguessable", keySecret},
	{"middlewares with other secrets count apart", secretsCountApart},
}

// allowances returns plans by name, each with its limit.
func allowances(pairs ...any) map[string]any {
	values := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		values[pairs[i].(string)] = map[string]any{"limit": pairs[i+1]}
	}
	return values
}

func planByHeader(t *T) {
	for _, byDefault := range []any{absent, "silver"} {
		otherwise := int64(5)
		if byDefault == any("silver") {
			otherwise = 600
		}
		h := t.handler(t.name(), with(t.options(nil), "plans", map[string]any{"header": "x-plan", "values": allowances("gold", "800", "silver", float64(600), "7", "70")}, "plans.default", byDefault))
		for _, tt := range []struct {
			lines []string
			want  int64
		}{
			{[]string{"gold"}, 800}, {[]string{" gold\t"}, 800}, {[]string{"silver"}, 600}, {[]string{"7"}, 70}, {nil, otherwise}, {[]string{""}, otherwise},
			{[]string{" "}, otherwise}, {[]string{"Gold"}, otherwise}, {[]string{"bronze"}, otherwise}, {[]string{"gold", "gold"}, otherwise},
			{[]string{"gold,silver"}, otherwise}, {[]string{"\x00gold"}, otherwise}, {[]string{"gold;q=1"}, otherwise}, {[]string{strings.Repeat("g", 1<<16)}, otherwise},
		} {
			req := get("/")
			req.Header["X-Plan"] = tt.lines
			req.Header.Set("X-Api-Key", fmt.Sprintf("%.50q", tt.lines))
			if got := t.send(h, req); got.limit != tt.want || got.remaining != tt.want-1 {
				t.Errorf("%.50q has the limit %d, %d remain; want %d", tt.lines, got.limit, got.remaining, tt.want)
			}
		}
	}
}

// bearer returns a token with this payload.
func bearer(payload string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return "Bearer " + encode([]byte(`{"alg":"none"}`)) + "." + encode([]byte(payload)) + ".c2ln"
}

func planByClaim(t *T) {
	h := t.handler(t.name(), with(t.options(nil), "plans", map[string]any{"claim": "plan", "values": allowances("gold", "800", "7", "70", "true", "60"), "default": "true"}))
	for authorization, want := range map[string]int64{
		bearer(`{"plan":"gold"}`): 800, bearer(`{"sub":"x","plan":" gold "}`): 800, bearer(`{"plan":7}`): 70,
		bearer(`{"plan":true}`): 60, bearer(`{"plan":["gold"]}`): 60, bearer(`{"plan":{"gold":1}}`): 60, bearer(`{"Plan":"gold"}`): 60, bearer(`{"x":{"plan":"gold"}}`): 60,
		bearer(`{}`): 60, bearer(`nonsense`): 60, bearer(`"gold"`): 60, "": 60, "Bearer": 60, "Bearer gold": 60, "Basic Z29sZA==": 60, "Bearer a.b.c": 60,
		strings.TrimPrefix(bearer(`{"plan":"gold"}`), "Bearer "): 60, "bearer" + bearer(`{"plan":"gold"}`)[6:]: 800, bearer(`{"plan":"gold"}`) + ".x": 60,
	} {
		if got := t.send(h, get("/", "Authorization", authorization)); got.limit != want {
			t.Errorf("%s has the limit %d, want %d", authorization, got.limit, want)
		}
	}
	twice := get("/", "Authorization", bearer(`{"plan":"gold"}`), "Authorization", bearer(`{"plan":"gold"}`))
	if got := t.send(h, twice); got.limit != 60 {
		t.Errorf("two tokens have the limit %d", got.limit)
	}
}

func planKeepsCount(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		h := t.handler(t.name(), with(options, "plans", map[string]any{"header": "X-Plan", "values": allowances("gold", "8", "small", "2")}))
		for i := int64(1); i <= 5; i++ {
			if got := t.send(h, get("/", "X-Plan", "gold")); got.status != 200 || got.remaining != 8-i || got.decision != way {
				t.Errorf("request %d of plan gold: %d, remaining %d, %s", i, got.status, got.remaining, got.decision)
			}
		}
		for _, plan := range []string{"", "small"} {
			if got := t.send(h, get("/", "X-Plan", plan)); got.status != 429 {
				t.Errorf("after five of plan gold, one of plan %q: %d", plan, got.status)
			}
		}
		// The refused ones may be counted or not.
		if got := t.allowed(h, 5, func() *http.Request { return get("/", "X-Plan", "gold") }); got > 3 || way == "shared" && got < 1 {
			t.Errorf("%d more of plan gold were allowed", got)
		}
	})
	v := t.valkey()
	name := t.name()
	h := t.handler(name, with(t.options(v), "plans", map[string]any{"header": "X-Plan", "values": allowances("gold", "8")}))
	t.send(h, get("/"))
	t.send(h, get("/", "X-Plan", "gold"))
	if keys := v.keys(name); len(keys) != 1 || v.countOf(keys[0]) != 2 {
		t.Errorf("two plans are counted under %q", keys)
	}
}

func planOfSeveral(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		h := t.handler(t.name(), with(twoLimits(options, 5, 100),
			"plans", map[string]any{"header": "X-Plan", "values": map[string]any{
				"gold": map[string]any{"limits": []any{entry("name", "short", "limit", "7")}},
				"tiny": map[string]any{"limits": []any{entry("name", "long", "limit", "1"), entry("name", "short", "limit", "3")}},
			}},
			"overrides", []any{entry("value", "vip", "limits", []any{entry("name", "long", "limit", "200")})}))
		for _, tt := range []struct {
			key, plan   string
			short, long int64
		}{{"a", "", 5, 100}, {"b", "gold", 7, 100}, {"c", "tiny", 3, 1}, {"vip", "tiny", 5, 200}} {
			req := get("/", "X-Plan", tt.plan)
			req.Header.Set("X-Api-Key", tt.key)
			got := t.send(h, req)
			if want := map[string]int64{"short": tt.short - 1, "long": tt.long - 1}; !reflect.DeepEqual(got.lefts(), want) || got.decision != way {
				t.Errorf("%+v: %v, %s, want %v", tt, got.lefts(), got.decision, want)
			}
			if tt.plan == "tiny" && tt.key == "c" {
				if got := t.send(h, req); got.status != 429 || got.limit != 1 {
					t.Errorf("the second of plan tiny: %d, limit %d", got.status, got.limit)
				}
			}
		}
	})
}

func overrideByValue(t *T) {
	gold := map[string]any{"header": "X-Plan", "values": allowances("gold", "50")}
	for _, tt := range []struct {
		name      string
		criterion map[string]any
		value     string
		mine      []*http.Request
		others    []*http.Request
	}{
		{"header", map[string]any{"requestHeaderName": "X-Api-Key"}, " vip ",
			[]*http.Request{keyed("vip"), keyed(" vip\t")}, []*http.Request{keyed("VIP"), keyed("vip2"), keyed(""), keyed("key")}},
		{"long header", map[string]any{"requestHeaderName": "X-Api-Key"}, strings.Repeat("v", 500),
			[]*http.Request{keyed(strings.Repeat("v", 500))}, []*http.Request{keyed(strings.Repeat("v", 499)), keyed("v")}},
		{"header that looks like an address", map[string]any{"requestHeaderName": "X-Api-Key"}, "192.0.2.1", []*http.Request{keyed("192.0.2.1")}, []*http.Request{from("192.0.2.1:80")}},
		{"IPv4", map[string]any{}, "203.0.113.7", []*http.Request{from("203.0.113.7:1"), from("203.0.113.7:2"), from("[::ffff:203.0.113.7]:80")},
			[]*http.Request{from("203.0.113.8:1"), from("[2001:db8::1]:80")}},
		{"IPv6", map[string]any{"ipStrategy": map[string]any{}}, "2001:DB8:0:1::5", []*http.Request{from("[2001:db8:0:1::5]:1"), from("[2001:db8:0:1:ffff::9]:2")},
			[]*http.Request{from("[2001:db8:0:2::5]:1"), from("203.0.113.7:1")}},
		{"IPv4 network", map[string]any{"ipStrategy": map[string]any{"ipv4Subnet": "24"}}, "203.0.113.200", []*http.Request{from("203.0.113.7:1")}, []*http.Request{from("203.0.112.7:1")}},
		{"behind proxies", map[string]any{"ipStrategy": map[string]any{"trustedIPs": "10.0.0.0/8"}}, "203.0.113.7",
			[]*http.Request{forwardedFor("10.0.0.1:1", "203.0.113.7"), from("203.0.113.7:5")}, []*http.Request{from("10.0.0.1:1"), forwardedFor("198.51.100.1:1", "203.0.113.7")}},
		{"host", map[string]any{"requestHost": "true"}, "Shop.example.", []*http.Request{get("http://shop.example/"), get("http://SHOP.example:8080/x")}, []*http.Request{get("http://a.shop.example/")}},
		{"path segment", map[string]any{"pathSegment": "2"}, "acme", []*http.Request{get("/api/acme/x"), get("//api/./%61cme")}, []*http.Request{get("/api/acme2"), get("/acme/api"), get("/api")}},
		{"query parameter", map[string]any{"queryParameter": "key"}, "vip", []*http.Request{get("/?key=vip"), get("/x?a=b&key=%76ip")}, []*http.Request{get("/?key=vip&key=vip"), get("/?Key=vip")}},
		{"cookie", map[string]any{"cookieName": "id"}, "vip", []*http.Request{get("/", "Cookie", "a=b; id=vip")}, []*http.Request{get("/", "Cookie", "id=vip; id=vip"), get("/", "Cookie", "ID=vip")}},
		{"claim", map[string]any{"jwtClaim": "sub"}, "vip", []*http.Request{get("/", "Authorization", bearer(`{"sub":"vip"}`))}, []*http.Request{get("/", "Authorization", bearer(`{"sub":"vip2"}`)), get("/")}},
	} {
		t.sub(tt.name, func(t *T) {
			h := t.handler(t.name(), with(t.options(nil), "sourceCriterion", tt.criterion, "plans", gold,
				"overrides", []any{entry("value", "198.51.100.99", "limit", "70"), entry("value", tt.value, "limit", float64(900))}))
			for i, req := range tt.mine {
				req.Header.Set("X-Plan", "gold")
				if got := t.send(h, req); got.limit != 900 || got.remaining != 899-int64(i) {
					t.Errorf("request %d has the limit %d, %d remain", i+1, got.limit, got.remaining)
				}
			}
			for i, req := range tt.others {
				if got := t.send(h, req); got.limit != 5 {
					t.Errorf("request %d of others has the limit %d", i+1, got.limit)
				}
			}
		})
	}
}

func overrideByHash(t *T) {
	const secret = "0123456789abcdef-secret"
	plain := sha256.Sum256([]byte("vip"))
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(plain[:])
	for _, tt := range []struct {
		secret any
		hash   string
	}{{absent, fmt.Sprintf("%x", plain)}, {absent, fmt.Sprintf("%X", plain)}, {secret, fmt.Sprintf("%x", mac.Sum(nil))}} {
		for _, v := range []*valkey{nil, t.valkey()} {
			h := t.handler(t.name(), t.options(v, "valkey.keySecret", tt.secret, "overrides", []any{entry("hash", tt.hash, "limit", "900")}))
			if got := t.ask(h, "vip"); got.limit != 900 {
				t.Errorf("%s: the limit %d", tt.hash, got.limit)
			}
			for _, key := range []string{"vip2", tt.hash, ""} {
				if got := t.ask(h, key); got.limit != 5 {
					t.Errorf("%s: %q has the limit %d", tt.hash, key, got.limit)
				}
			}
		}
	}
	// The digest in the store's keys names a client of several parts.
	for _, secret := range []any{absent, secret} {
		v := t.valkey()
		options := t.options(v, "valkey.keySecret", secret, "sourceCriterion", map[string]any{"requestHeaderNames": "X-Api-Key, X-Tenant", "ipStrategy": map[string]any{}})
		acme := func(key string) *http.Request {
			req := get("/", "X-Tenant", "acme")
			req.Header.Set("X-Api-Key", key)
			return req
		}
		digest := t.bucket(v, t.handler(t.name(), options), acme("vip"))
		h := t.handler(t.name(), with(options, "overrides", []any{entry("hash", digest, "limit", "900")}))
		if one, other := t.send(h, acme("vip")), t.send(h, acme("key")); one.limit != 900 || other.limit != 5 {
			t.Errorf("the limits are %d and %d", one.limit, other.limit)
		}
	}
}

func overrideExact(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		h := t.handler(t.name(), with(options, "overrides", []any{entry("value", "vip", "limit", "9"), entry("value", "bad", "limit", "1")}))
		got := rush(12, 240, func(i int) answer { return t.ask(h, []string{"vip", "bad", "key"}[i%3]) })
		for c, limit := range []int64{9, 1, 5} {
			var mine []answer
			for i := c; i < len(got); i += 3 {
				mine = append(mine, got[i])
			}
			t.exact(mine, limit, way)
		}
	})
}

func keySecret(t *T) {
	const secret = "sixteen bytes!!!"
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secret+"\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, option := range [][]any{{"valkey.keySecret", secret}, {"valkey.keySecretFile", file}} {
		v := t.valkey()
		name := t.name()
		h := t.handler(name, t.options(v, option...))
		for _, key := range []string{"key", strings.Repeat("k", 1000)} {
			digest := sha256.Sum256([]byte(key))
			mac := hmac.New(sha256.New, []byte(secret))
			mac.Write(digest[:])
			if got, want := t.bucket(v, h, keyed(key)), fmt.Sprintf("%x", mac.Sum(nil)); got != want {
				t.Errorf("%.10s is counted under %s, want %s", key, got, want)
			}
		}
		digest := sha256.Sum256([]byte("\x00address:9:192.0.2.1"))
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write(digest[:])
		if got, want := t.bucket(v, h, from("192.0.2.1:4711")), fmt.Sprintf("%x", mac.Sum(nil)); got != want {
			t.Errorf("the address is counted under %s, want %s", got, want)
		}
		if lines := t.logged(name); len(lines) != 1 || !strings.Contains(lines[0], "keySecret true") {
			t.Errorf("the settings are logged so: %q", lines)
		}
	}
	if lines := t.logged(secret); len(lines) > 0 {
		t.Errorf("the secret is in the log: %q", lines)
	}
}

func secretsCountApart(t *T) {
	for _, stopped := range []bool{false, true} {
		v := t.valkey()
		way := "shared"
		if stopped {
			v.Stop()
			way = "local"
		}
		scope := t.name()
		for _, secret := range []any{absent, "0123456789abcdef", "0123456789abcdeg"} {
			options := t.options(v, "scope", scope, "valkey.keySecret", secret)
			routers := []http.Handler{t.handler(t.name(), options), t.handler(t.name(), options)}
			t.exact(rush(8, 40, func(i int) answer { return t.ask(routers[i%2], "key") }), 5, way)
		}
	}
}
