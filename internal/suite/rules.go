package suite

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"time"
)

// rules is about which of several rules applies, and what it changes.
var rules = tests{
	{"the first rule whose conditions all hold applies", firstRuleApplies},
	{"a rule with a limit counts apart, one without shares", rulesCountApart},
	{"the counts of rules are exact while many ask", rulesAreExact},
	{"the count of a rule has its name in the store", ruleKeys},
	{"a rule has from the top level what it does not set", ruleInherits},
	{"a rule may tell clients apart in its own way", ruleCriterion},
	{"a rule may fail in its own way", ruleStoreFailure},
	{"a rule may have exemptions of its own", ruleExempt},
	{"a rule may be a dry run alone", ruleDryRun},
	{"a rule may have plans and overrides of its own", rulePlans},
	{"no spelling of a path escapes a strict rule", strictRulesHold},
	{"no spelling of a path gains a generous rule", generousRulesNotGained},
	{"no spelling of a path gains an exemption", exemptionsNotGained},
	{"every way to write a path counts under its rule", formsCount},
	{"a path counts under the rules of all its forms", formsTold},
	{"no form of a path is spared by what exempts another", formsNotExempt},
	{"no form of a path is let through by the dry run of another", formsNotTried},
	{"the gateway's limit counts a request once, whatever its forms", formsGuarded},
	{"the application gets the writer itself, whatever the forms of the path", formsUnwrapped},
	{"a path that is too long to be searched is refused", longPaths},
	{"a reload loses no count of a rule", ruleCountsOutlive},
}

// ruled returns options with rules, in whose top level a client may make 1000 requests.
func ruled(options map[string]any, all ...any) map[string]any {
	return with(options, "limit", "1000", "rules", all)
}

func firstRuleApplies(t *T) {
	name := t.name()
	h := t.handler(name, ruled(t.options(nil),
		entry("name", "exact", "path", "/a", "limit", "101"),
		entry("name", "posts", "pathPrefix", "/a", "methods", "POST, put", "limit", "102"),
		entry("name", "prefix", "pathPrefix", "/a/", "limit", "103"),
		entry("name", "regex", "pathRegex", `^/item/[0-9]{2,3}$`, "limit", "104"),
		entry("name", "host", "host", "Shop.example", "path", "/h", "limit", "105"),
		entry("name", "value", "header.name", "x-kind", "header.value", "bot", "limit", "106"),
		entry("name", "header", "header.name", "X-Kind", "limit", "107"),
		entry("name", "all", "path", "/all", "methods", []any{"GET"}, "host", "shop.example", "header.name", "X-All", "header.value", "1",
			"pathRegex", "all", "limit", "108"),
		entry("name", "late", "path", "/a", "limit", "109"),
	))
	const shop = "http://shop.example"
	for _, tt := range []struct {
		method, target string
		header         []string
		want           string
	}{
		{"GET", "/a", nil, "exact"},
		{"POST", "/a", nil, "exact"},
		{"GET", "/a?b=/c", nil, "exact"},
		{"GET", "/a/", nil, "exact prefix"},
		{"GET", "/A", nil, ""},
		{"GET", "/a/b", nil, "prefix"},
		{"POST", "/a/b", nil, "posts"},
		{"PUT", "/a/b", nil, "posts"},
		{"pOSt", "/a/b", nil, "posts"},
		{"DELETE", "/a/b/c", nil, "prefix"},
		{"GET", "/ab", nil, ""},
		{"POST", "/ab", nil, ""},
		{"GET", "/item/42", nil, "regex"},
		{"GET", "/item/4%32", nil, "regex "},
		{"GET", "/item/4", nil, ""},
		{"GET", "/item/42/x", nil, ""},
		{"GET", "/x/item/42", nil, ""},
		{"GET", shop + "/h", nil, "host"},
		{"GET", "http://SHOP.example.:8443/h", nil, "host"},
		{"GET", shop + "/i", nil, ""},
		{"GET", "http://shop.example.org/h", nil, ""},
		{"GET", "/h", nil, ""},
		{"GET", "/x", []string{"X-Kind", "bot"}, "value"},
		{"GET", "/x", []string{"X-Kind", " bot\t"}, "value"},
		{"GET", "/x", []string{"x-kind", "Bot"}, "header"},
		{"GET", "/x", []string{"X-Kind", "robot"}, "header"},
		{"GET", "/x", []string{"X-Kind", ""}, ""},
		{"GET", "/x", []string{"X-Kind", " "}, ""},
		{"GET", "/x", []string{"X-Kind", "bot", "X-Kind", "bot"}, ""},
		{"GET", shop + "/all", []string{"X-All", "1"}, "all"},
		{"POST", shop + "/all", []string{"X-All", "1"}, ""},
		{"GET", "/all", []string{"X-All", "1"}, ""},
		{"GET", shop + "/all", []string{"X-All", "2"}, ""},
		{"GET", shop + "/all", nil, ""},
		{"GET", shop + "/all/x", []string{"X-All", "1"}, ""},
		{"OPTIONS", "*", nil, ""},
		{"GET", "/", nil, ""},
		{"GET", shop, nil, ""},
	} {
		if got := t.send(h, request(tt.method, tt.target, tt.header...)); got.counts(name) != tt.want {
			t.Errorf("%s %s %q falls under %q, want %q", tt.method, tt.target, tt.header, got.counts(name), tt.want)
		}
	}
}

func rulesCountApart(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		name := t.name()
		h := t.handler(name, with(options, "limit", "6", "rules", []any{
			entry("name", "one", "path", "/one", "limit", "2"),
			entry("name", "two", "path", "/two", "limit", "2"),
			entry("name", "longer", "path", "/longer", "window", seconds(roomy(900))),
			entry("name", "shares", "path", "/shares"),
			entry("name", "dear", "path", "/dear", "cost", "2"),
		}))
		for _, tt := range []struct {
			path      string
			status    int
			limit     int64
			remaining int64
		}{
			{"/one", 200, 2, 1}, {"/one", 200, 2, 0}, {"/one", 429, 2, 0},
			{"/two", 200, 2, 1}, {"/two", 200, 2, 0}, {"/two", 429, 2, 0},
			{"/longer", 200, 6, 5},
			{"/", 200, 6, 5}, {"/shares", 200, 6, 4}, {"/dear", 200, 6, 2}, {"/shares", 200, 6, 1},
			{"/dear", 429, 6, 1}, {"/", 200, 6, 0}, {"/shares", 429, 6, 0}, {"/", 429, 6, 0}, {"/dear", 429, 6, 0},
			{"/longer", 200, 6, 4}, {"/one", 429, 2, 0},
		} {
			got := t.exchange(h, get(tt.path))
			if got.status != tt.status || got.limit != tt.limit || got.remaining != tt.remaining || got.decision != way {
				t.Errorf("%s: %d, limit %d, remaining %d, %s; want %+v, %s", tt.path, got.status, got.limit, got.remaining, got.decision, tt, way)
			}
			if (got.retryAfter > 0) != (tt.status == 429) {
				t.Errorf("%s: %d with Retry-After %d", tt.path, got.status, got.retryAfter)
			}
		}
	})
}

func rulesAreExact(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		name := t.name()
		options = with(options, "limit", "20", "rules", []any{
			entry("name", "login", "path", "/login", "limit", "3"),
			entry("name", "shares", "path", "/shares"),
		})
		routers := []http.Handler{t.handler(name, options), t.handler(name, options)}
		paths := []string{"/login", "/shares", "/"}
		got := rush(12, 180, func(i int) answer { return t.send(routers[i%2], get(paths[i/2%3])) })
		var login, rest []answer
		for i, a := range got {
			if i/2%3 == 0 {
				login = append(login, a)
			} else {
				rest = append(rest, a)
			}
		}
		t.exact(login, 3, way)
		t.exact(rest, 20, way)
	})
}

func ruleKeys(t *T) {
	v := t.valkey()
	now := time.Unix(edge+30, 0)
	v.setTime(now)
	name := t.name()
	h := t.handler(name, ruled(t.options(v, "window", "60s"),
		entry("name", "Log-in_1.x@y", "path", "/login", "limit", "5"),
		entry("name", "up", "path", "/up", "limits", []any{entry("name", "min", "limit", "5", "window", "1m"), entry("name", "hour", "limit", "9", "window", "1h")}),
		entry("name", "shares", "path", "/shares"),
	))
	for _, path := range []string{"/", "/login", "/up", "/shares"} {
		t.send(h, get(path))
	}
	want := map[string]int64{
		headerKey(name, "key", now, 60):                 2,
		headerKey(name+":Log-in_1.x@y", "key", now, 60): 1,
		headerKey(name+":up:min", "key", now, 60):       1,
		headerKey(name+":up:hour", "key", now, 3600):    1,
	}
	got := map[string]int64{}
	for _, key := range v.keys(name) {
		got[key] = v.countOf(key)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the store has %v, want %v", got, want)
	}
}

func ruleInherits(t *T) {
	v := t.valkey()
	v.Stop()
	name := t.name()
	h := t.handler(name, t.options(v, "limit", "100", "cost", "4", "onStoreFailure", "closed", "sourceCriterion", map[string]any{"requestHeaderName": "X-Other", "onMissing": "refuse"},
		"exempt", map[string]any{"methods": "HEAD"}, "dryRun", "true",
		"plans", map[string]any{"header": "X-Plan", "values": map[string]any{"gold": map[string]any{"limit": "200"}}},
		"overrides", []any{entry("value", "vip", "limit", "300")},
		"rules", []any{
			entry("name", "shares", "path", "/shares"),
			entry("name", "apart", "path", "/apart", "limit", "50"),
			entry("name", "self", "path", "/self", "dryRun", "false", "exempt", map[string]any{}, "sourceCriterion", map[string]any{"requestHeaderName": "X-Api-Key"}, "cost", "1"),
		}))
	quotaOf := func(req *http.Request) string {
		got := t.exchange(h, req)
		return strings.SplitN(strings.SplitN(got.header.Get("RateLimit-Policy")+";q=none;", ";q=", 2)[1], ";", 2)[0]
	}
	for _, tt := range []struct {
		path   string
		header []string
		want   string
	}{
		{"/shares", []string{"X-Other", "me"}, "100"},
		{"/shares", []string{"X-Other", "me", "X-Plan", "gold"}, "200"},
		{"/shares", []string{"X-Other", "vip", "X-Plan", "gold"}, "300"},
		// Plans and overrides are for the limits that they stand beside.
		{"/apart", []string{"X-Other", "vip", "X-Plan", "gold"}, "50"},
		// Whom an override names depends on how clients are told apart.
		{"/self", []string{"X-Other", "vip", "X-Plan", "gold"}, "200"},
		{"/self", []string{"X-Api-Key", "vip"}, "100"},
	} {
		req := get(tt.path)
		for i := 0; i < len(tt.header); i += 2 {
			req.Header.Set(tt.header[i], tt.header[i+1])
		}
		if got := quotaOf(req); got != tt.want {
			t.Errorf("%s %q has the limit %s, want %s", tt.path, tt.header, got, tt.want)
		}
	}
	// The exemption, the dry run, and the way of failing.
	if got := t.exchange(h, request("HEAD", "/apart", "X-Other", "me")); got.status != 200 || got.counts(name) != "uncounted" {
		t.Errorf("an exempt method gets %d, %v", got.status, got.header)
	}
	if got := t.exchange(h, get("/apart")); got.status != 200 || got.header.Get("X-RateLimit-Dry-Run") != "refused" {
		t.Errorf("a request that lacks the header gets %d in a dry run, %v", got.status, got.header)
	}
	if got := t.exchange(h, get("/apart", "X-Other", "me")); got.status != 200 || got.decision != "closed" || got.header.Get("X-RateLimit-Dry-Run") != "refused" {
		t.Errorf("without the store a dry run gets %d, %v", got.status, got.header)
	}
	if got := t.exchange(h, request("HEAD", "/self")); got.status != 503 || got.decision != "closed" || got.header.Get("X-RateLimit-Dry-Run") != "" {
		t.Errorf("a rule that takes back the dry run gets %d, %v", got.status, got.header)
	}
	// The cost.
	local := t.handler(t.name(), t.options(nil, "limit", "10", "cost", "4", "rules", []any{entry("name", "apart", "path", "/apart", "limit", "9"), entry("name", "cheap", "path", "/cheap", "cost", "1")}))
	for path, want := range map[string]int64{"/": 6, "/apart": 5} {
		if got := t.exchange(local, get(path)); got.remaining != want {
			t.Errorf("%s leaves %d, want %d", path, got.remaining, want)
		}
	}
	if got := t.exchange(local, get("/cheap")); got.remaining != 5 {
		t.Errorf("/cheap leaves %d, want 5", got.remaining)
	}
}

func ruleCriterion(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		h := t.handler(t.name(), ruled(options,
			entry("name", "login", "path", "/login", "limit", "2", "sourceCriterion", map[string]any{"ipStrategy": map[string]any{}}),
			entry("name", "host", "path", "/host", "sourceCriterion", map[string]any{"requestHost": true}),
		))
		var got []answer
		for i := 0; i < 6; i++ {
			req := get("/login")
			req.Header.Set("X-Api-Key", fmt.Sprintf("key %d", i))
			got = append(got, t.send(h, req))
		}
		t.exact(got, 2, way)
		other := get("/login")
		other.RemoteAddr = "198.51.100.7:1"
		if got := t.send(h, other); got.remaining != 1 {
			t.Errorf("another address has %d left", got.remaining)
		}
		// They share the count's name, and not the clients.
		for i, want := range []int64{999, 998} {
			if got := t.send(h, get("http://a.example/host")); got.remaining != want {
				t.Errorf("request %d for a host leaves %d, want %d", i, got.remaining, want)
			}
			if got := t.send(h, get("http://a.example/")); got.remaining != want {
				t.Errorf("request %d with a key leaves %d, want %d", i, got.remaining, want)
			}
		}
	})
}

func ruleStoreFailure(t *T) {
	v := t.valkey()
	v.Stop()
	h := t.handler(t.name(), impatient(ruled(t.options(v),
		entry("name", "login", "path", "/login", "limit", "1", "onStoreFailure", "closed"),
		entry("name", "free", "path", "/free", "onStoreFailure", "open"),
		entry("name", "both", "path", "/both", "onStoreFailure", "closed", "limits", []any{entry("name", "a", "limit", "5", "window", "1m"), entry("name", "b", "limit", "5", "window", "1h")}),
	)))
	for i := 0; i < 3; i++ {
		for path, want := range map[string]answer{
			"/": {status: 200, decision: "local"}, "/login": {status: 503, decision: "closed"}, "/free": {status: 200}, "/both": {status: 503, decision: "closed"},
		} {
			if got := t.send(h, get(path)); got.status != want.status || got.decision != want.decision {
				t.Errorf("%s: %d, %q; want %d, %q", path, got.status, got.decision, want.status, want.decision)
			}
		}
	}
}

func ruleExempt(t *T) {
	name := t.name()
	h := t.handler(name, with(ruled(t.options(nil),
		entry("name", "own", "pathPrefix", "/own", "limit", "50", "exempt", map[string]any{"paths": "/own/free", "methods": "OPTIONS"}),
		entry("name", "others", "pathPrefix", "/others", "limit", "50"),
	), "exempt", map[string]any{"methods": "HEAD", "paths": "/others/free"}))
	for _, tt := range []struct{ method, path, want string }{
		{"GET", "/own/free", "uncounted"}, {"OPTIONS", "/own/x", "uncounted"}, {"HEAD", "/own/x", "own"}, {"GET", "/own/x", "own"},
		{"GET", "/others/free", "uncounted"}, {"HEAD", "/others/x", "uncounted"}, {"OPTIONS", "/others/x", "others"},
		{"HEAD", "/", "uncounted"}, {"OPTIONS", "/", ""}, {"GET", "/own/free/x", "own"},
	} {
		if got := t.send(h, request(tt.method, tt.path)); got.counts(name) != tt.want {
			t.Errorf("%s %s is counted %q, want %q", tt.method, tt.path, got.counts(name), tt.want)
		}
	}
}

func ruleDryRun(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		h := t.handler(t.name(), with(options, "limit", "2", "rules", []any{
			entry("name", "tried", "path", "/tried", "limit", "1", "dryRun", "true"),
			entry("name", "shares", "path", "/shares", "dryRun", true),
		}))
		for _, tt := range []struct {
			path   string
			status int
			dry    string
		}{
			{"/tried", 200, "allowed"}, {"/tried", 200, "refused"}, {"/", 200, ""}, {"/shares", 200, "allowed"}, {"/shares", 200, "refused"},
			{"/", 429, ""}, {"/tried", 200, "refused"},
		} {
			if got := t.exchange(h, get(tt.path)); got.status != tt.status || got.header.Get("X-RateLimit-Dry-Run") != tt.dry || got.decision != way {
				t.Errorf("%s: %d, dry run %q, %s; want %+v", tt.path, got.status, got.header.Get("X-RateLimit-Dry-Run"), got.decision, tt)
			}
		}
	})
}

func rulePlans(t *T) {
	plans := func(limit string) map[string]any {
		return map[string]any{"header": "X-Plan", "values": map[string]any{"gold": map[string]any{"limit": limit}}}
	}
	h := t.handler(t.name(), with(ruled(t.options(nil),
		entry("name", "apart", "path", "/apart", "limit", "50", "plans", plans("60"), "overrides", []any{entry("value", "vip", "limit", "70")}),
		entry("name", "shares", "path", "/shares", "plans", plans("80"), "overrides", []any{entry("value", "vip", "limit", "90")}),
		entry("name", "none", "path", "/none", "limit", "55"),
	), "plans", plans("2000"), "overrides", []any{entry("value", "vip", "limit", "3000"), entry("hash", fmt.Sprintf("%x", sha256.Sum256([]byte("hashed"))), "limit", "4000")}))
	for _, tt := range []struct {
		path, key, plan string
		want            int64
	}{
		{"/", "key", "", 1000}, {"/", "key", "gold", 2000}, {"/", "vip", "gold", 3000},
		{"/apart", "key", "", 50}, {"/apart", "key", "gold", 60}, {"/apart", "vip", "gold", 70},
		{"/shares", "key", "", 1000}, {"/shares", "key", "gold", 80}, {"/shares", "vip", "gold", 90},
		{"/none", "key", "gold", 55}, {"/none", "vip", "gold", 55},
		{"/", "hashed", "gold", 4000}, {"/none", "hashed", "", 55}, {"/apart", "hashed", "gold", 60}, {"/shares", "hashed", "gold", 80},
	} {
		req := get(tt.path, "X-Plan", tt.plan)
		req.Header.Set("X-Api-Key", tt.key)
		if got := t.send(h, req); got.limit != tt.want {
			t.Errorf("%+v has the limit %d", tt, got.limit)
		}
	}
}

// spellings are paths that a server may take for /login.
var spellings = []string{
	"/login", "//login", "/login/", "/login//", "/%6cogin", "/%6Cogin", "/l%6fgin", "/x/../login", "/%2e/login", "/./login", "/x/%2e%2e/login",
	"/../login", "/%2E%2e/login", "///.//login/.", "/login/x/..", "/login?x=1", "/login/?", "//x/..//%6c%6f%67%69%6e/",
}

// disguises are paths that some servers take for /login: those that decode escaped
// slashes, take a backslash for a slash, or cut off parameters.
var disguises = []string{
	"/login;x", "/login;", "/login;a=b;c", "/login%3Bx", "/login;x/", "/login%2f", "/login%2F%2f", "/%2Flogin", "/login%5c", `/login\`,
	"/x/..%2flogin", "/x%2F..%2Flogin", "/static/..%2flogin", "/static/..%5clogin", `/static/..\login`, "/static/x%5C..%5c..%5Clogin", "/static/..;/login",
	"/static/..;a=b/login", "/static/x;y/..;/..;/login;z", "/static/%2e%2e;/login", "/static/%2e.%2flogin", "/..;/login", "/;x/login", "/.;/login", "/static;x/../login",
	"/static/../static/..%2flogin", "//static/..;/%6cogin", "/static/..%3b/login",
}

func strictRulesHold(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		for _, condition := range [][]any{{"path", "/login"}, {"pathPrefix", "/login"}, {"pathRegex", "^/login$"}, {"path", "/%6Cogin/"}} {
			strict := with(entry("name", "login", "limit", "2", "methods", "post"), condition...)
			// Another count of the same size is no way around.
			other := entry("name", "reset", "pathPrefix", "/reset", "limit", "2")
			h := t.handler(t.name(), ruled(options, other, strict, entry("name", "rest", "pathPrefix", "/x", "limit", "500"), with(other, "name", "late", "pathPrefix", "/late")))
			var got []answer
			for _, path := range append([]string{"/reset/../login", "/late/../login"}, spellings...) {
				for _, method := range []string{"POST", "post", "pOsT"} {
					got = append(got, t.send(h, request(method, path)))
				}
			}
			t.exact(got, 2, way)
		}
	})
}

func formsCount(t *T) {
	address := map[string]any{"ipStrategy": map[string]any{}}
	all := append(append([]string{}, spellings...), disguises...)
	for _, top := range []struct{ limit, window string }{{"100", seconds(roomy(3600))}, {"5", seconds(roomy(60000))}, {"3", seconds(roomy(700))}} {
		t.eachWay(func(t *T, options map[string]any, way string) {
			for _, condition := range [][]any{{"path", "/login"}, {"pathPrefix", "/login"}, {"pathRegex", "^/login$"}} {
				login := with(entry("name", "login", "limit", "5", "window", seconds(roomy(900)), "sourceCriterion", address), condition...)
				for _, rules := range [][]any{{login}, {entry("name", "static", "pathPrefix", "/static", "limit", "1000"), login}, {login, entry("name", "static", "pathRegex", "static", "limit", "900", "window", "1h")}} {
					h := t.handler(t.name(), with(options, "limit", top.limit, "window", top.window, "rules", rules))
					passed := 0
					for i, path := range all {
						got := t.send(h, asClient(path, i)) // each with a key of its own
						if got.status == 200 {
							passed++
						}
						if got.decision != way || got.limit > 5 || (got.status == 200) != (i < 5) {
							t.Errorf("%v, top level %v: request %d for %s gets %d, limit %d, %s", condition, top, i, path, got.status, got.limit, got.decision)
						}
					}
					if passed != 5 {
						t.Errorf("%v, top level %v: %d logins passed", condition, top, passed)
					}
				}
			}
		})
	}
	// Each of them alone leads to the login.
	for _, path := range all {
		name := t.name()
		h := t.handler(name, ruled(t.options(nil), entry("name", "static", "pathPrefix", "/static", "limit", "900"), entry("name", "login", "path", "/login", "limit", "1", "sourceCriterion", address)))
		for i, want := range []int{200, 429} {
			if got := t.send(h, asClient(path, i)); got.status != want {
				t.Errorf("request %d for %s: %d, want %d", i, path, got.status, want)
			}
		}
		if got := t.send(h, asClient("/login", 2)); got.status != 429 {
			t.Errorf("a login after %s: %d", path, got.status)
		}
	}
	// At once, and over several routers.
	t.eachWay(func(t *T, options map[string]any, way string) {
		name := t.name()
		options = ruled(options, entry("name", "login", "path", "/login", "limit", "5", "sourceCriterion", address))
		routers := []http.Handler{t.handler(name, options), t.handler(name, options)}
		t.exact(rush(8, 2*len(all), func(i int) answer { return t.send(routers[i%2], asClient(all[i/2], i)) }), 5, way)
	})
}

func formsTold(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		name := t.name()
		h := t.handler(name, ruled(options,
			entry("name", "login", "path", "/login", "limit", "500"),
			entry("name", "static", "pathPrefix", "/static", "limit", "600"),
			entry("name", "img", "pathPrefix", "/img", "limit", "700"),
			entry("name", "shares", "pathPrefix", "/shares"),
		))
		left := map[string]int64{"login": 500, "static": 600, "img": 700, "": 1000}
		for _, tt := range []struct {
			path   string
			counts []string // by the clean form, the raw one, the lenient one, if they differ
		}{
			{"/login", []string{"login"}}, {"/login;x", []string{"", "login"}}, {"/login/", []string{"login", ""}}, {"//login", []string{"login", ""}},
			{"/x/..%2flogin", []string{"", "login"}}, {"/static/..%5clogin", []string{"static", "login"}}, {"/static/..;/login", []string{"static", "login"}},
			{"/static/../login", []string{"login", "static"}}, {"/static/../img/..;/login", []string{"img", "static", "login"}}, {"/static/..%2f..;/img", []string{"static", "", "img"}},
			{"/static//x", []string{"static"}}, {"/static/x;y", []string{"static"}}, {"//static", []string{"static", ""}}, {"/static", []string{"static"}},
			{"/img/../x", []string{"", "img"}}, {"/login%252f", []string{""}}, {"/x;y", []string{""}}, {"/shares", []string{""}},
		} {
			got := t.exchange(h, get(tt.path))
			if got.status != 200 || got.counts(name) != strings.Join(tt.counts, " ") || got.decision != way {
				t.Errorf("%s: %d, %s, counted %q, want %q", tt.path, got.status, got.decision, got.counts(name), tt.counts)
			}
			least := int64(1000)
			for _, count := range tt.counts {
				left[count]--
				if left[count] < least {
					least = left[count]
				}
				key := name
				if count != "" {
					key += ":" + count
				}
				if told := fmt.Sprintf("%q;r=%d;", key, left[count]); !strings.Contains(strings.Join(got.header.Values("RateLimit"), ", ")+";", told) {
					t.Errorf("%s: RateLimit is %q, want %s", tt.path, got.header.Values("RateLimit"), told)
				}
			}
			if got.remaining != least {
				t.Errorf("%s: %d remain, want %d", tt.path, got.remaining, least)
			}
		}
		// The rule of any form refuses.
		h = t.handler(t.name(), ruled(options, entry("name", "static", "pathPrefix", "/static", "limit", "2"), entry("name", "login", "path", "/login", "limit", "100")))
		if got := t.statuses(h, 4, func() *http.Request { return get("/static/../login") }); fmt.Sprint(got) != "[200 200 429 429]" {
			t.Errorf("the rule of the raw form: %d", got)
		}
		if got := t.exchange(h, get("/login")); got.status != 200 {
			t.Errorf("a plain login: %d", got.status)
		}
	})
}

func formsNotExempt(t *T) {
	name := t.name()
	h := t.handler(name, with(ruled(t.options(nil),
		entry("name", "login", "path", "/login", "limit", "900", "exempt", map[string]any{}),
		entry("name", "static", "pathPrefix", "/static", "exempt", map[string]any{"methods": "GET", "ips": "192.0.2.0/24", "paths": "/static/*"}),
	), "exempt", map[string]any{"methods": "GET", "paths": "/*"}))
	if got := t.send(h, get("/static/x")); got.counts(name) != "uncounted" {
		t.Errorf("what is exempt is counted %q", got.counts(name))
	}
	for _, path := range append(append([]string{}, spellings...), disguises...) {
		if got := t.send(h, get(path)); got.counts(name) != "login" {
			t.Errorf("%s is counted %q", path, got.counts(name))
		}
	}
}

func formsNotTried(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		for _, path := range []string{"/static/..%5clogin", "/static/..;/login", "/static/../login", "/login/../static", "/static;x/../login"} {
			for _, order := range []string{"login", "static"} {
				login := entry("name", "login", "pathPrefix", "/login", "limit", "2")
				static := entry("name", "static", "pathPrefix", "/static", "limit", "1", "dryRun", "true")
				rules := []any{login, static}
				if order == "static" {
					rules = []any{static, login}
				}
				h := t.handler(t.name(), ruled(options, rules...))
				if got := t.statuses(h, 4, func() *http.Request { return get(path) }); fmt.Sprint(got) != "[200 200 429 429]" {
					t.Errorf("%s, first %s: %d", path, order, got)
				}
				if got := t.exchange(h, get("/static")); got.status != 200 || got.header.Get("X-RateLimit-Dry-Run") == "" {
					t.Errorf("the dry run itself gets %d, %v", got.status, got.header)
				}
			}
		}
	})
}

func formsGuarded(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		for _, path := range []string{"/static/../img/..;/login", "/login/", "/login;x", "/free/../login", "/free/..;/login", "/static/../free/x"} {
			h := t.handler(t.name(), guarded(options, "3", "rules", []any{
				entry("name", "login", "path", "/login", "limit", "50"),
				entry("name", "static", "pathPrefix", "/static", "limit", "60"),
				entry("name", "img", "pathPrefix", "/img", "limit", "70"),
				entry("name", "free", "pathPrefix", "/free", "exempt", map[string]any{"methods": "GET"}),
			}))
			for i := 0; i < 5; i++ {
				got := t.exchange(h, asClient(path, i))
				if i >= 3 {
					t.isGuarded(got)
				} else if got.status != 200 || got.decision != way {
					t.Errorf("%s, client %d: %d, %s", path, i, got.status, got.decision)
				}
			}
		}
	})
}

func formsUnwrapped(t *T) {
	t.eachPassage(func(t *T, options map[string]any) {
		for _, path := range []string{"/static/../img/..;/login", "/login/", "/login;x"} {
			own := &writer{ResponseRecorder: httptest.NewRecorder()}
			sent := get(path, "Connection", "Upgrade", "Upgrade", "websocket")
			reached := 0
			next := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				reached++
				if w != http.ResponseWriter(own) || req != sent {
					t.Errorf("%s: the application has a %T and another request: %t", path, w, req != sent)
				}
				_, _, _ = w.(http.Hijacker).Hijack()
			})
			t.before(next, t.name(), ruled(options,
				entry("name", "login", "path", "/login", "limit", "50"), entry("name", "static", "pathPrefix", "/static", "limit", "60"), entry("name", "img", "pathPrefix", "/img", "dryRun", "true"),
			)).ServeHTTP(own, sent)
			if reached != 1 || own.hijacked != 1 {
				t.Errorf("%s: reached %d times, hijacked %d times", path, reached, own.hijacked)
			}
		}
	})
}

// mostSearched is the length of the longest path in which expressions are searched.
const mostSearched = 8 << 10

func longPaths(t *T) {
	long := func(length int, unit string) string {
		return "/" + strings.Repeat(unit, length/len(unit)) + strings.Repeat("x", (length-1)%len(unit))
	}
	v := t.valkey()
	name := t.name()
	options := t.options(v, "limit", "1000")
	searched := t.handler(name, with(options, "rules", []any{
		entry("name", "plain", "path", "/plain"), entry("name", "slow", "host", "other.example", "pathRegex", "^(/[a-z;]*)*/(a|b)*x$", "limit", "900"),
	}))
	for _, tt := range []struct {
		path   string
		status int
	}{
		{"/" + strings.Repeat("x", mostSearched-1), 200}, {"/" + strings.Repeat("x", mostSearched), 414},
		{"/?" + strings.Repeat("x", mostSearched), 200},        // the query is not searched
		{"/" + strings.Repeat("x/../", mostSearched/5+1), 414}, // though it is clean as /
		{"/" + strings.Repeat("%61", mostSearched/3+1), 414},   // as it was sent
		{long(1<<20, "a"), 414}, {long(1<<20, "/..;"), 414}, {long(1<<20, "%2f"), 414},
	} {
		v.ForgetCommands()
		got := t.exchange(searched, get(tt.path))
		if got.status != tt.status {
			t.Errorf("a path of %d bytes: %d, want %d", len(tt.path), got.status, tt.status)
		}
		if tt.status == 414 && (got.counts(name) != "uncounted" || !strings.Contains(got.body, "too long") || got.header.Get("Cache-Control") != "no-store") {
			t.Errorf("a path that is too long gets %v, %q", got.header, got.body)
		}
	}
	// A dry run refuses nothing, and says so.
	dry := t.handler(t.name(), with(options, "dryRun", "true", "rules", []any{entry("name", "login", "pathRegex", "login")}))
	if got := t.exchange(dry, get(long(mostSearched+1, "x"))); got.status != 200 || got.header.Get("X-RateLimit-Dry-Run") != "refused" {
		t.Errorf("a path that is too long, in a dry run: %d, %v", got.status, got.header)
	}
	for _, rules := range []any{absent, []any{entry("name", "login", "pathPrefix", "/login", "methods", "GET", "limit", "900")}} {
		plain := t.handler(t.name(), with(options, "rules", rules))
		for _, path := range []string{long(mostSearched+1, "x"), long(1<<18, "/..;"), long(1<<18, "%2f")} {
			want := 200
			if _, ruled := rules.([]any); ruled && strings.ContainsAny(path, "%;") {
				want = 414 // which has too many forms
			}
			if got := t.exchange(plain, get(path)); got.status != want {
				t.Errorf("with the rules %v, a path of %d bytes: %d, want %d", rules, len(path), got.status, want)
			}
		}
	}
}

func generousRulesNotGained(t *T) {
	name := t.name()
	h := t.handler(name, with(t.options(nil), "limit", "100", "rules", []any{
		entry("name", "exact", "path", "/login", "limit", "500"),
		entry("name", "prefix", "pathPrefix", "/static", "limit", "600"),
		entry("name", "regex", "pathRegex", "^/img/", "limit", "700"),
		entry("name", "unlimited", "pathPrefix", "/dry", "limit", "1", "dryRun", "true"),
		entry("name", "skipped", "pathPrefix", "/skip", "sourceCriterion", map[string]any{"requestHeaderName": "X-None", "onMissing": "skip"}),
		entry("name", "plan", "pathPrefix", "/plan", "limit", "90", "plans",
			map[string]any{"header": "X-Plan", "values": map[string]any{"gold": map[string]any{"limit": "9000"}}}),
		entry("name", "override", "pathPrefix", "/own", "limit", "90", "overrides", []any{entry("value", "key", "limit", "9000")}),
		entry("name", "get", "path", "/get", "methods", "GET", "exempt", map[string]any{"methods": "GET"}, "limit", "90"),
	}))
	for _, path := range []string{"/login", "/login?x"} {
		if got := t.send(h, get(path)); got.limit != 500 {
			t.Errorf("%s has the limit %d", path, got.limit)
		}
	}
	for _, path := range append([]string{
		"/login%2f", "/login%2F", "/login%252f", "/login;x", "/LOGIN", "/x/..%2flogin",
		"/static/../admin", "/static/%2e%2e/admin", "//static/x", "/%73tatic/x", "/static/x/../../admin", "/x/../static/a",
		"/img/../admin", "/img/%2e./admin", "//img/x", "/dry/../admin", "//dry/x", "/skip/../admin", "//skip/x", "/plan/../admin", "/own/../admin",
	}, spellings[1:]...) {
		if strings.HasPrefix(path, "/login?") {
			continue
		}
		got := t.exchange(h, get(path, "X-Plan", "gold"))
		if got.limit > 100 || got.limit < 1 || got.status != 200 {
			t.Errorf("%s has the limit %d: %d, %v", path, got.limit, got.status, got.header)
		}
	}
}

func exemptionsNotGained(t *T) {
	name := t.name()
	h := t.handler(name, with(ruled(t.options(nil),
		entry("name", "static", "pathPrefix", "/static", "exempt", map[string]any{"methods": []any{"GET"}}),
		entry("name", "home", "pathPrefix", "/home", "exempt", map[string]any{"ips": "192.0.2.0/24"}),
	), "exempt", map[string]any{"paths": "/login,/free/*", "methods": "TRACE"}))
	for _, tt := range []struct {
		method, path string
		exempt       bool
	}{
		{"GET", "/login", true}, {"GET", "/free/a", true}, {"GET", "/free/a/b.png", true}, {"TRACE", "/x", true}, {"GET", "/static/x", true}, {"GET", "/home", true},
		// What is exempt by both spellings is.
		{"TRACE", "//x", true}, {"GET", "/static//x", true},
		{"GET", "/free", false}, {"GET", "/free/", false}, {"GET", "/freedom", false}, {"GET", "/free/../login2", false}, {"GET", "/free/..%2fadmin", false},
		{"GET", "/free/..;/admin", false}, {"GET", "/free/%2e%2e/admin", false}, {"GET", "//free/a", false}, {"GET", "/free//a", false},
		{"GET", "/login%2f", false}, {"GET", "/login;a", false}, {"GET", "/login/a", false}, {"GET", "/LOGIN", false},
		{"trace", "/x", false}, {"Trace", "/x", false}, {"get", "/static/x", false}, {"POST", "/static/x", false},
		{"GET", "/static/../admin", false}, {"GET", "/static/%2e%2e/admin", false}, {"GET", "/x/../static/a", false}, {"GET", "//static/a", false},
		{"GET", "/home/../admin", false}, {"GET", "//home", false},
	} {
		if got := t.send(h, request(tt.method, tt.path)); (got.counts(name) == "uncounted") != tt.exempt {
			t.Errorf("%s %s is exempt: %t, want %t", tt.method, tt.path, !tt.exempt, tt.exempt)
		}
	}
	for _, path := range spellings[1:] {
		if got := t.send(h, get(path)); (got.counts(name) == "uncounted") != strings.Contains(path, "?x") {
			t.Errorf("%s: exempt is %q", path, got.counts(name))
		}
	}
}

func ruleCountsOutlive(t *T) {
	t.eachWay(func(t *T, options map[string]any, way string) {
		name := t.name()
		login := entry("name", "login", "path", "/login", "limit", "5")
		// What was counted without rules is counted with them.
		plain := with(options, "limit", "9")
		for i, h := range []http.Handler{t.handler(name, plain), t.handler(name, with(plain, "cost", "2")), t.handler(name, with(plain, "rules", []any{login})), t.handler(name, plain)} {
			if got := t.exchange(h, asClient("/", 1)); got.remaining != []int64{8, 6, 5, 4}[i] {
				t.Errorf("handler %d: %d remain", i, got.remaining)
			}
		}
		h := t.handler(name, ruled(options, login))
		got := []answer{t.send(h, get("/login")), t.send(h, get("/login"))}
		// The rule stands elsewhere, has another limit and other conditions.
		t.handler(name, ruled(options, entry("name", "other", "path", "/other"), with(login, "limit", "7", "methods", "GET")))
		t.handler(name, options)
		h = t.handler(name, ruled(options, entry("name", "other", "path", "/other"), with(login, "pathPrefix", "/login", "path", absent)))
		for i := 0; i < 5; i++ {
			got = append(got, t.send(h, get("/login/x")))
		}
		t.exact(got, 5, way)
	})
}
