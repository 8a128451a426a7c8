package suite

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
)

// watches are about who is answered that watches over a gateway, and what they are told of
// requests.
var watches = tests{
	{"those who watch are answered by their peer, and all others by the route", watchPeers},
	{"a token is asked for where one is set", watchTokens},
	{"paths and methods that are not just those are the route's", watchPaths},
	{"nothing is counted for who is answered", watchCountsNothing},
	{"every request is counted once, by what became of it and by which way", decisionsCounted},
	{"a store that is away is counted by the way of the requests", decisionsWithoutStore},
	{"what an operator has set is counted as that", decisionsOfControl},
}

const metricsPath, statusPath = "/-/gatequota/metrics", "/-/gatequota"

// watched returns options of middlewares of each kind that answer those who watch.
func (t *T) watched(pairs ...any) map[string]map[string]any {
	t.Helper()
	watch := append([]any{"metrics.path", metricsPath, "status.path", statusPath, "limit", "1000"}, pairs...)
	return map[string]map[string]any{
		"plain":  t.options(nil, watch...),
		"bucket": t.options(nil, append(watch, "algorithm", "token-bucket", "window", "300d")...), // which fills slowly
		"rules":  t.options(nil, append(watch, "rules", []any{entry("name", "own", "path", "/own", "limit", "9")})...),
		"store":  t.options(t.valkey(), append(watch, "control", "true")...),
	}
}

// isAnswered reports whether those who watch got an answer, and demands that it is one of
// the two that there are.
func (t *T) isAnswered(h http.Handler, req *http.Request) bool {
	t.Helper()
	got, _ := t.receive(h, req)
	if got.header.Get("X-Served") == "yes" {
		if got.status != http.StatusOK || got.limit < 1 {
			t.Errorf("the route answers with %d and the limit %d", got.status, got.limit)
		}
		return false
	}
	kind := "text/plain; version=0.0.4; charset=utf-8"
	part := "gatequota_build_info"
	if !strings.HasSuffix(req.URL.Path, "metrics") {
		kind, part = "text/html; charset=utf-8", "<html"
	}
	if got.status != http.StatusOK || got.header.Get("Content-Type") != kind || got.header.Get("Cache-Control") != "no-store" || got.limit != -1 || got.decision != "" {
		t.Errorf("%s %s: %d, %v", req.Method, req.URL, got.status, got.header)
	}
	if (got.body == "") != (req.Method == http.MethodHead) || got.body != "" && !strings.Contains(got.body, part) {
		t.Errorf("%s %s: %d bytes, want %s in them", req.Method, req.URL, len(got.body), part)
	}
	return true
}

// peering returns a request for a path from a peer.
func peering(path, peer string, pairs ...string) *http.Request {
	req := get(path, pairs...)
	req.RemoteAddr = peer
	return req
}

func watchPeers(t *T) {
	usual := map[string]bool{
		"127.0.0.1:1234": true, "127.9.8.7:1": true, "[::1]:1234": true, "[::ffff:127.0.0.1]:80": true,
		"192.0.2.1:1234": false, "128.0.0.1:1": false, "[2001:db8::1]:1": false, "[::2]:1": false, "[::ffff:192.0.2.1]:1": false, "0.0.0.0:1": false, "[::]:1": false,
		// What has no address is nobody's.
		"": false, "@": false, "/run/traefik.sock": false, "127.0.0.1": false, "::1": false, "localhost:80": false, "127.0.0.1:x": false, "127.0.0.1:99999": false, "127.1:80": false,
	}
	chosen := map[string]bool{
		"10.1.2.3:1": true, "[::ffff:10.1.2.3]:1": true, "[fe80::1%eth0]:1": true, "[fe80::1]:1": true, "192.0.2.7:1": true,
		"127.0.0.1:1": false, "[::1]:1": false, "192.0.2.8:1": false, "11.0.0.1:1": false, "[fec0::1]:1": false, "[::10.1.2.3]:1": false,
	}
	for _, tt := range []struct {
		allow any
		peers map[string]bool
	}{{absent, usual}, {[]any{"10.0.0.0/8", "fe80::/10", "192.0.2.7"}, chosen}} {
		for kind, options := range t.watched("metrics.allow", tt.allow, "status.allow", tt.allow) {
			h := t.handler(t.name(), options)
			for peer, want := range tt.peers {
				for _, path := range []string{metricsPath, statusPath} {
					if path == metricsPath && want && kind != "plain" {
						continue // it is the same, and costs the time of all that is counted
					}
					if got := t.isAnswered(h, peering(path, peer)); got != want {
						t.Errorf("%s: %s is answered on %s: %t, want %t", kind, peer, path, got, want)
					}
				}
			}
			// The peer is who is connected, whatever is said of others.
			for _, field := range []string{"X-Forwarded-For", "X-Real-Ip", "Forwarded", "X-Client-Ip", "Cf-Connecting-Ip"} {
				for peer, want := range map[string]bool{"198.51.100.1:5": false} {
					for _, said := range []string{"127.0.0.1", "10.1.2.3", "::1", "for=127.0.0.1"} {
						if got := t.isAnswered(h, peering(metricsPath, peer, field, said)); got != want {
							t.Errorf("%s: %s is believed", kind, field)
						}
					}
				}
			}
			for peer, want := range tt.peers {
				if want && !t.isAnswered(h, peering(statusPath, peer, "X-Forwarded-For", "198.51.100.1")) {
					t.Errorf("%s: %s is not answered because of a header", kind, peer)
				}
			}
		}
	}
	// One of the two may be for others.
	h := t.handler(t.name(), t.options(nil, "limit", "1000", "metrics.path", metricsPath, "metrics.allow", "10.0.0.0/8", "status.path", statusPath))
	for peer, path := range map[string]string{"10.0.0.1:1": metricsPath, "127.0.0.1:1": statusPath} {
		for _, each := range []string{metricsPath, statusPath} {
			if got := t.isAnswered(h, peering(each, peer)); got != (path == each) {
				t.Errorf("%s on %s: %t", peer, each, got)
			}
		}
	}
}

func watchTokens(t *T) {
	const token, here, there = "s3cr3t-token", "127.0.0.1:1", "192.0.2.1:1"
	for kind, options := range t.watched("metrics.token", token, "status.token", token) {
		h := t.handler(t.name(), options)
		for _, tt := range []struct {
			lines   []string // of Authorization
			query   string
			metrics bool
			status  bool
		}{
			{[]string{"Bearer " + token}, "", true, true},
			{[]string{"bearer " + token}, "", true, true},
			{[]string{"BEARER " + token}, "", true, true},
			{nil, "", false, false},
			{[]string{""}, "", false, false},
			{[]string{"Bearer"}, "", false, false},
			{[]string{"Bearer "}, "", false, false},
			{[]string{"Bearer wrong"}, "", false, false},
			{[]string{"Bearer " + token + "x"}, "", false, false},
			{[]string{"Bearer " + token[1:]}, "", false, false},
			{[]string{"Bearer " + token + " "}, "", false, false},
			{[]string{"Bearer  " + token}, "", false, false},
			{[]string{"Bearer " + strings.ToUpper(token)}, "", false, false},
			{[]string{token}, "", false, false},
			{[]string{"Basic " + token}, "", false, false},
			{[]string{"Basic dXNlcjpzM2NyM3QtdG9rZW4="}, "", false, false},
			{[]string{"Token " + token}, "", false, false},
			{[]string{"Bearer " + token, "Bearer " + token}, "", false, false},
			{[]string{"Bearer " + token, "Basic x"}, "", false, false},
			// In a browser the status is asked for by its address.
			{nil, "?token=" + token, false, true},
			{nil, "?format=html&token=" + token, false, true},
			{nil, "?token=wrong", false, false},
			{nil, "?token=", false, false},
			{nil, "?Token=" + token, false, false},
			{nil, "?token=wrong&token=" + token, false, false},
			{[]string{"Basic x"}, "?token=" + token, false, true},
			{[]string{"Bearer wrong"}, "?token=" + token, false, false},
		} {
			for path, want := range map[string]bool{metricsPath: tt.metrics, statusPath: tt.status} {
				for _, peer := range []string{here, there} {
					req := peering(path+tt.query, peer)
					for _, line := range tt.lines {
						req.Header.Add("Authorization", line)
					}
					if got := t.isAnswered(h, req); got != (want && peer == here) {
						t.Errorf("%s: %s%s with %q from %s is answered: %t, want %t", kind, path, tt.query, tt.lines, peer, got, want && peer == here)
					}
				}
			}
		}
	}
}

func watchPaths(t *T) {
	for kind, options := range t.watched() {
		h := t.handler(t.name(), options)
		for _, method := range []string{"GET", "HEAD"} {
			for _, path := range []string{metricsPath, statusPath, metricsPath + "?x=y", statusPath + "?x"} {
				req := request(method, path)
				req.RemoteAddr = "127.0.0.1:1"
				if !t.isAnswered(h, req) {
					t.Errorf("%s: %s %s is not answered", kind, method, path)
				}
			}
		}
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "get", "PROPFIND"} {
			req := request(method, metricsPath)
			req.RemoteAddr = "127.0.0.1:1"
			if t.isAnswered(h, req) {
				t.Errorf("%s: %s is answered", kind, method)
			}
		}
		for _, path := range []string{
			"/", "/-/gatequota/", "/-/gatequota/metrics/", "//-/gatequota/metrics", "/-//gatequota/metrics", "/-/gatequota//metrics", "/-/./gatequota/metrics",
			"/x/../-/gatequota/metrics", "/%2D/gatequota/metrics", "/-/gatequot%61/metrics", "/-%2Fgatequota/metrics", "/-/gatequota%2Fmetrics", "/-/gatequota/metrics%20",
			"/-/Gatequota/metrics", "/-/gatequota/metrics;x", "/-/gatequota/metrics/x", "/-/gatequota/metric", "/%2D/gatequota", "/-/gatequota.", "/-/gatequota%3F",
		} {
			if t.isAnswered(h, peering(path, "127.0.0.1:1")) {
				t.Errorf("%s: %s is answered", kind, path)
			}
		}
		// What has no path at all is the route's too.
		req := peering("/", "127.0.0.1:1")
		req.URL.Path = ""
		if t.isAnswered(h, req) {
			t.Errorf("%s: no path is answered", kind)
		}
	}
	for _, option := range []string{"metrics.path", "status.path"} {
		h := t.handler(t.name(), t.options(nil, "limit", "1000", option, "/watch"))
		for _, path := range []string{metricsPath, statusPath, ""} {
			req := peering("/", "127.0.0.1:1")
			req.URL.Path = path
			if t.isAnswered(h, req) {
				t.Errorf("%s alone, and %q is answered", option, path)
			}
		}
	}
}

// decisions returns what is counted of a scope, as "rule outcome way" and its number, those
// that are more than none.
func (t *T) decisions(scope string) map[string]int64 {
	t.Helper()
	w := httptest.NewRecorder()
	t.watcher().ServeHTTP(w, peering(metricsPath, "127.0.0.1:1"))
	found := map[string]int64{}
	for _, match := range decision.FindAllStringSubmatch(w.Body.String(), -1) {
		n, err := strconv.ParseInt(match[5], 10, 64)
		if err != nil {
			t.Errorf("%s: %v", match[0], err)
		}
		if match[1] == scope && n > 0 {
			found[strings.TrimLeft(match[2]+" "+match[3]+" "+match[4], " ")] += n
		}
	}
	return found
}

var decision = regexp.MustCompile(`(?m)^gatequota_decisions_total\{scope="([^"]*)",rule="([^"]*)",outcome="([^"]*)",way="([^"]*)"\} (\S+)$`)

// watcher returns a handler that tells of all others.
func (t *T) watcher() http.Handler {
	return t.handler(t.name(), t.options(nil, "metrics.path", metricsPath))
}

// counted demands what is counted of a scope, and that it is each request once.
func (t *T) counted(what, scope string, want map[string]int64, requests int) {
	t.Helper()
	got, sum := t.decisions(scope), int64(0)
	for _, n := range got {
		sum += n
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || sum != int64(requests) {
		t.Errorf("%s: counted are %v, %d in all; want %v, %d", what, got, sum, want, requests)
	}
}

func watchCountsNothing(t *T) {
	for kind, options := range t.watched() {
		scope := t.scopeName()
		h := t.handler(t.name(), with(options, "scope", scope))
		first := t.exchange(h, get("/"))
		for i := 0; i < 10; i++ {
			t.isAnswered(h, peering(metricsPath, "127.0.0.1:1"))
			t.isAnswered(h, peering(statusPath+"?format=html", "127.0.0.1:1"))
		}
		if got := t.exchange(h, get("/")); got.remaining != first.remaining-1 {
			t.Errorf("%s: %d are left after %d, of two requests", kind, got.remaining, first.remaining)
		}
		sum := int64(0)
		for _, n := range t.decisions(scope) {
			sum += n
		}
		if sum != 2 {
			t.Errorf("%s: %v are counted, want two requests", kind, t.decisions(scope))
		}
		// Who is not answered counts as others do.
		t.exchange(h, peering(metricsPath, "192.0.2.1:1"))
		if got := t.exchange(h, get("/")); got.remaining != first.remaining-3 {
			t.Errorf("%s: %d are left after %d, of four requests", kind, got.remaining, first.remaining)
		}
	}
}

func decisionsCounted(t *T) {
	v := t.valkey()
	long := "/" + strings.Repeat("x", 9000) + "//y"
	key := func(key string) func() *http.Request { return func() *http.Request { return keyed(key) } }
	path := func(path string) func() *http.Request { return func() *http.Request { return get(path) } }
	type sent struct {
		n    int
		each func() *http.Request
	}
	for _, tt := range []struct {
		what    string
		store   *valkey
		options []any
		sent    []sent
		want    map[string]int64
	}{
		{"plain", v, nil, []sent{{8, key("a")}, {2, key("full")}}, map[string]int64{"allowed shared": 5, "refused memory": 4, "refused shared": 1}},
		{"in memory", nil, nil, []sent{{8, key("a")}}, map[string]int64{"allowed local": 5, "refused local": 3}},
		{"bucket", v, []any{"algorithm", "token-bucket"}, []sent{{8, key("a")}}, map[string]int64{"allowed shared": 5, "refused memory": 3}},
		{"bucket in memory", nil, []any{"algorithm", "token-bucket"}, []sent{{8, key("a")}}, map[string]int64{"allowed local": 5, "refused local": 3}},
		{"dear", v, []any{"cost", "2"}, []sent{{8, key("a")}}, map[string]int64{"allowed shared": 2, "refused memory": 6}},
		{"several", v, []any{"limit", absent, "window", absent, "limits", []any{entry("name", "x", "limit", "3", "window", "1d"), entry("name", "y", "limit", "9", "window", "1d")}},
			[]sent{{8, key("a")}}, map[string]int64{"allowed shared": 3, "refused memory": 5}},
		{"rules", v, []any{"rules", []any{entry("name", "own", "path", "/own", "limit", "2"), entry("name", "shares", "path", "/shares", "onStoreFailure", "closed")}},
			[]sent{{3, path("/own")}, {2, path("/shares")}, {6, path("/")}},
			map[string]int64{"own allowed shared": 2, "own refused memory": 1, "shares allowed shared": 2, "allowed shared": 3, "refused memory": 3}},
		{"guard", nil, []any{"gatewayLimit", map[string]any{"limit": "3", "window": seconds(roomy(600))}}, []sent{{5, key("a")}}, map[string]int64{"allowed local": 3, "unavailable gateway": 2}},
		{"exempt", nil, []any{"exempt.paths", "/health", "exempt.methods", "PUT", "rules", []any{entry("name", "own", "path", "/own", "limit", "2", "exempt", map[string]any{"methods": "PUT"})}},
			[]sent{{2, path("/health")}, {3, func() *http.Request { return request("PUT", "/own") }}, {4, func() *http.Request { return request("PUT", "/a//b") }}, {1, path("/health/")}},
			map[string]int64{"exempt none": 6, "own exempt none": 3, "allowed local": 1}},
		{"skipped", nil, []any{"sourceCriterion.onMissing", "skip"}, []sent{{3, key("")}, {2, key("a")}}, map[string]int64{"skipped none": 3, "allowed local": 2}},
		{"rejected", nil, []any{"sourceCriterion.onMissing", "refuse"}, []sent{{3, key("")}, {2, key("a")}}, map[string]int64{"rejected none": 3, "allowed local": 2}},
		{"too long", nil, []any{"rules", []any{entry("name", "own", "pathRegex", "y$", "limit", "2")}}, []sent{{3, path(long)}, {2, key("a")}}, map[string]int64{"rejected none": 3, "allowed local": 2}},
		{"dry run", nil, []any{"dryRun", "true"}, []sent{{8, key("a")}}, map[string]int64{"allowed dry-run": 5, "would_refuse dry-run": 3}},
		{"dry run without an identity", nil, []any{"dryRun", "true", "sourceCriterion.onMissing", "refuse"}, []sent{{3, key("")}}, map[string]int64{"would_refuse dry-run": 3}},
		{"dry run of what is too long", nil, []any{"dryRun", "true", "rules", []any{entry("name", "own", "pathRegex", "y$", "limit", "2")}}, []sent{{3, path(long)}}, map[string]int64{"would_refuse dry-run": 3}},
		{"dry run of a guard", nil, []any{"dryRun", "true", "gatewayLimit", map[string]any{"limit": "2", "window": seconds(roomy(600))}}, []sent{{3, key("a")}},
			map[string]int64{"allowed dry-run": 2, "would_refuse dry-run": 1}},
		{"dry run of one rule", nil, []any{"rules", []any{entry("name", "trial", "path", "/trial", "limit", "1", "dryRun", "true")}}, []sent{{3, path("/trial")}, {6, path("/")}},
			map[string]int64{"trial allowed dry-run": 1, "trial would_refuse dry-run": 2, "allowed local": 5, "refused local": 1}},
	} {
		scope := t.scopeName()
		h := t.handler(t.name(), with(t.options(tt.store, append([]any{"window", "1d"}, tt.options...)...), "scope", scope))
		v.set(headerKey(scope, "full", v.now(), 86400), 5)
		requests := 0
		for _, s := range tt.sent {
			requests += s.n
			for i := 0; i < s.n; i++ {
				_, _ = t.receive(h, s.each())
			}
		}
		t.counted(tt.what, scope, tt.want, requests)
	}
	// Over a reload the numbers go on.
	scope := t.scopeName()
	for i := int64(1); i <= 3; i++ {
		t.ask(t.handler(t.name(), t.options(nil, "scope", scope)), "key")
		t.counted("a reload", scope, map[string]int64{"allowed local": i}, int(i))
	}
}

func decisionsWithoutStore(t *T) {
	for _, tt := range []struct {
		mode    string
		options []any
		want    map[string]int64
	}{
		{"local", nil, map[string]int64{"allowed shared": 2, "allowed local": 3, "refused local": 5}},
		{"open", nil, map[string]int64{"allowed shared": 2, "allowed open": 8}},
		{"closed", nil, map[string]int64{"allowed shared": 2, "unavailable closed": 8}},
		{"local", []any{"algorithm", "sliding-log"}, map[string]int64{"allowed shared": 2, "allowed local": 3, "refused local": 5}},
		{"closed", []any{"algorithm", "token-bucket"}, map[string]int64{"allowed shared": 2, "unavailable closed": 8}},
		{"open", []any{"rules", []any{entry("name", "all", "pathPrefix", "/", "limit", "5")}}, map[string]int64{"all allowed shared": 2, "all allowed open": 8}},
		{"closed", []any{"dryRun", "true"}, map[string]int64{"allowed dry-run": 2, "would_refuse dry-run": 8}},
	} {
		v, scope := t.valkey(), t.scopeName()
		h := t.handler(t.name(), with(t.options(v, append([]any{"window", "1d", "onStoreFailure", tt.mode}, tt.options...)...), "scope", scope))
		for i := 0; i < 2; i++ {
			t.exchange(h, keyed("key"))
		}
		v.Stop()
		for i := 0; i < 8; i++ {
			t.exchange(h, keyed("key"))
		}
		t.counted(fmt.Sprint(tt.mode, tt.options), scope, tt.want, 10)
	}
}

func decisionsOfControl(t *T) {
	v := t.valkey()
	var off []func()
	for _, rules := range [][]any{nil, {entry("name", "all", "pathPrefix", "/", "limit", "5")}} {
		prefix := ""
		options := []any{"window", "1d"}
		if rules != nil {
			prefix = "all "
			options = append(options, "rules", rules)
		}
		name, scope := t.name(), t.scopeName()
		version := v.change(scope, "block:"+hashOf("blocked"), v.until(3600))
		h := t.handler(name, t.controlled(v, scope, options...))
		t.obeyed(v, version, name)
		for i := 0; i < 4; i++ {
			t.exchange(h, keyed("blocked"))
			t.exchange(h, keyed("key"))
		}
		t.counted("blocked", scope, map[string]int64{prefix + "refused control": 4, prefix + "allowed shared": 4}, 8)
		version = v.change(scope, "enabled", "false")
		off = append(off, func() {
			t.obeyed(v, version, name)
			for i := 0; i < 3; i++ {
				t.exchange(h, keyed("blocked"))
				t.exchange(h, keyed(""))
			}
			t.counted("switched off", scope, map[string]int64{prefix + "refused control": 4, prefix + "allowed shared": 4, "allowed control": 6}, 14)
		})
	}
	for _, check := range off {
		check()
	}
}
