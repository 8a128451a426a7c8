package status

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/tally"
	"github.com/gatequota/gatequota/version"
)

func get(method, target, accept string, v *View) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, target, nil)
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	Serve(w, req, v)
	return w
}

const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"

func TestForm(t *testing.T) {
	for _, c := range []struct{ target, accept, want string }{
		{"/s", "", "text/html; charset=utf-8"},
		{"/s", browser, "text/html; charset=utf-8"},
		{"/s", "*/*", "text/html; charset=utf-8"},
		{"/s", "application/json", "application/json"},
		{"/s", browser + ", application/json", "text/html; charset=utf-8"},
		{"/s?format=json", browser, "application/json"},
		{"/s?token=x&format=json", browser, "application/json"},
		{"/s?format=html", "application/json", "text/html; charset=utf-8"},
	} {
		w := get(http.MethodGet, c.target, c.accept, &View{})
		if got := w.Header().Get("Content-Type"); got != c.want || w.Code != http.StatusOK {
			t.Errorf("%s for %q: %d, %s, want %s", c.target, c.accept, w.Code, got, c.want)
		}
		if isPage := w.Body.String() == Page; isPage != strings.HasPrefix(c.want, "text/html") {
			t.Errorf("%s for %q has the wrong body", c.target, c.accept)
		}
		for name, want := range map[string]string{
			"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", c.target, name, got, want)
			}
		}
		head := get(http.MethodHead, c.target, c.accept, &View{})
		if head.Body.Len() > 0 || head.Code != w.Code || !reflect.DeepEqual(head.Header(), w.Header()) {
			t.Errorf("%s: HEAD has %d bytes, %d, %v", c.target, head.Body.Len(), head.Code, head.Header())
		}
	}
}

func TestPolicy(t *testing.T) {
	directives := map[string]string{}
	for _, d := range strings.Split(get(http.MethodGet, "/s", "", &View{}).Header().Get("Content-Security-Policy"), "; ") {
		name, value, _ := strings.Cut(d, " ")
		directives[name] = value
	}
	// What stands between the tags, byte by byte, is what a browser takes the digest of.
	scripts := regexp.MustCompile(`(?s)<script>(.*?)</script>`).FindAllStringSubmatch(Page, -1)
	styles := regexp.MustCompile(`(?s)<style>(.*?)</style>`).FindAllStringSubmatch(Page, -1)
	if len(scripts) != 1 || len(styles) != 1 || strings.Count(Page, "<script") != 1 || strings.Count(Page, "<style") != 1 {
		t.Fatalf("%d scripts and %d styles", len(scripts), len(styles))
	}
	want := map[string]string{
		"default-src": "'none'", "connect-src": "'self'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'",
		"frame-ancestors": "'none'", "script-src": "'" + digest(scripts[0][1]) + "'", "style-src": "'" + digest(styles[0][1]) + "'",
	}
	if !reflect.DeepEqual(directives, want) {
		t.Errorf("the policy is %v, want %v", directives, want)
	}
	if got := digest("abc"); got != "sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=" {
		t.Errorf("the digest of abc is %s", got)
	}
}

// The page is whole, and its parts fit together.
func TestPage(t *testing.T) {
	for _, bad := range []string{" style=", " onclick=", " onload=", "javascript:", "@import", "url(h", "innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function("} {
		if strings.Contains(Page, bad) {
			t.Errorf("%q stands in the page", bad)
		}
	}
	for _, address := range regexp.MustCompile(`(?:https?:)?//[a-z]\S*`).FindAllString(Page, -1) {
		if !strings.HasPrefix(address, "http://www.w3.org/2000/svg") { // a name, which nothing asks for
			t.Errorf("%q stands in the page", address)
		}
	}
	for _, source := range regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(Page, -1) {
		if !strings.HasPrefix(source[1], "#") && !strings.HasPrefix(source[1], "data:") {
			t.Errorf("the page loads %q", source[1])
		}
	}

	ids := map[string]bool{}
	for _, id := range regexp.MustCompile(` id="([^"]+)"`).FindAllStringSubmatch(body+Page[:strings.Index(Page, "<style>")], -1) {
		if ids[id[1]] {
			t.Errorf("id %s is there twice", id[1])
		}
		ids[id[1]] = true
	}
	used := regexp.MustCompile(`(?:byId\('|repeat\([^;]*?, ')([a-z-]+)'`).FindAllStringSubmatch(script, -1)
	if len(used) < 15 {
		t.Errorf("only %d ids are found in the script", len(used))
	}
	for _, id := range used {
		if !ids[id[1]] {
			t.Errorf("the script wants id %s, which the page does not have", id[1])
		}
	}
	for _, reference := range regexp.MustCompile(`(?:href="#|url\(#|aria-labelledby=")([a-z-]+)`).FindAllStringSubmatch(Page, -1) {
		if !ids[reference[1]] {
			t.Errorf("the page refers to id %s, which it does not have", reference[1])
		}
	}
	for _, level := range []string{"well", "bad", "off", "dry", "lost"} {
		if !ids["mark-"+level] {
			t.Errorf("level %s has no mark", level)
		}
	}

	parts := map[string]bool{}
	for _, part := range regexp.MustCompile(`data-is="([^"]+)"`).FindAllStringSubmatch(body, -1) {
		parts[part[1]] = true
	}
	wanted := map[string]bool{}
	for _, part := range regexp.MustCompile(`\bthe\('([^']+)'\)`).FindAllStringSubmatch(script, -1) {
		wanted[part[1]] = true
	}
	if !reflect.DeepEqual(parts, wanted) {
		t.Errorf("the templates have the parts %v, and the script fills in %v", keys(parts), keys(wanted))
	}
	balanced(t, Page)
}

func keys(set map[string]bool) []string {
	var all []string
	for key := range set {
		all = append(all, key)
	}
	sort.Strings(all)
	return all
}

// balanced reports what is opened and not closed, or the other way round.
func balanced(t *testing.T, page string) {
	t.Helper()
	void := map[string]bool{"meta": true, "link": true}
	page = regexp.MustCompile(`(?s)<(script|style)>.*?</(script|style)>`).ReplaceAllString(page, "")
	var open []string
	for _, tag := range regexp.MustCompile(`<(/?)([a-z0-9]+)[^>]*?(/?)>`).FindAllStringSubmatch(page, -1) {
		switch {
		case void[tag[2]] || tag[3] == "/":
		case tag[1] == "":
			open = append(open, tag[2])
		case len(open) == 0 || open[len(open)-1] != tag[2]:
			t.Fatalf("</%s> closes %v", tag[2], open)
		default:
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		t.Errorf("%v stay open", open)
	}
}

// All decisions that are counted have words on the page.
func TestWordsOfDecisions(t *testing.T) {
	tally.Open("words", "")
	n := 0
	for _, total := range tally.All() {
		if total.Scope != "words" {
			continue
		}
		n++
		if !strings.Contains(script, "'"+total.Outcome+" "+total.Way+"': '") {
			t.Errorf("%s %s has no words", total.Outcome, total.Way)
		}
	}
	if n == 0 {
		t.Error("nothing is counted")
	}
}

// What is written can be read, and what is drawn can be seen: 4.5 and 3 are what the Web
// Content Accessibility Guidelines 2.2 ask for.
func TestContrast(t *testing.T) {
	light, dark, found := strings.Cut(style, "prefers-color-scheme: dark")
	if !found {
		t.Fatal("there is no dark scheme")
	}
	dark, _, _ = strings.Cut(dark, "\n}")
	for name, scheme := range map[string]string{"light": light, "dark": dark} {
		colours := map[string]float64{}
		for _, c := range regexp.MustCompile(`--([a-z-]+): #([0-9a-f]{6})`).FindAllStringSubmatch(scheme, -1) {
			colours[c[1]] = luminance(t, c[2])
		}
		for _, pair := range []struct {
			front, ground string
			least         float64
		}{
			{"ink", "paper", 7}, {"ink", "sheet", 7}, {"soft", "paper", 4.5}, {"hold", "paper", 4.5}, {"on-alarm", "alarm", 4.5}, {"paper", "soft", 4.5},
			{"pass", "paper", 3}, {"pass", "sheet", 3}, {"pass", "line", 3}, {"hold", "hold-ground", 3},
		} {
			a, hasFront := colours[pair.front]
			b, hasGround := colours[pair.ground]
			if !hasFront || !hasGround {
				t.Errorf("%s: there is no %s or no %s", name, pair.front, pair.ground)
				continue
			}
			if got := (math.Max(a, b) + 0.05) / (math.Min(a, b) + 0.05); got < pair.least {
				t.Errorf("%s: %s on %s has a contrast of %.2f, want %v", name, pair.front, pair.ground, got, pair.least)
			}
		}
	}
}

func luminance(t *testing.T, hex string) float64 {
	t.Helper()
	var sum float64
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c := float64(n) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}

const hash = "481c55a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d"

func TestCompose(t *testing.T) {
	at := time.UnixMilli(1764526000123)
	v := &View{Gateway: "00112233445566ff", Host: "gw1", Started: at.Add(-time.Hour), Scopes: []Scope{
		{Name: "api", Share: "1/2", Control: &Control{Version: 3, Age: 1.2, Enabled: true, Allows: 1}, Limits: []Limit{
			{Middleware: "quota@file", Algorithm: "fixed-window", Limit: 100, Window: 60, OnStoreFailure: "local"}}},
	}}
	v.Scopes = append([]Scope{{Name: "quiet"}}, v.Scopes...)
	report := &limiter.Report{
		Stores: []limiter.StoreReport{
			{Endpoint: "valkey:6379", Used: true, Away: true, Since: at.Add(-time.Second), RoundTrips: 9, Errors: map[string]int64{"timeout": 1},
				Latency:     limiter.Histogram{Bounds: []float64{0.001, 0.002, 0.004}, Counts: []int64{50, 49, 1, 0}},
				ClockOffset: time.Millisecond, Changes: []limiter.Change{{At: at.Add(-time.Second), Away: true, Why: "i/o timeout"}, {At: at.Add(-2 * time.Second), Why: "unused"}}},
			{Endpoint: "back:6379", Used: true}, {Endpoint: "new:6379"},
		},
		Tables: []limiter.TableReport{
			{Scope: "api", Store: "valkey:6379", Window: 60, Clients: 12, MaxClients: 65536, Gateways: 1},
			{Scope: "api", Count: "day", Store: "valkey:6379", Window: 86400, Clients: 3, MaxClients: 65536, Gateways: 2, OutageAllowed: 7, OutageSettled: 5},
			{Scope: "gone", Window: 60},
		},
	}
	nearest := []limiter.ClientReport{{Scope: "api", Window: 60, Hash: hash, Used: 99, Limit: 100, Reset: 17}, {Scope: "gone", Hash: hash}, {Scope: "quiet", Hash: "ab"}}
	totals := []tally.Total{
		{Scope: "api", Outcome: "allowed", Way: "shared", Count: 123}, {Scope: "api", Outcome: "refused", Way: "shared"},
		{Scope: "api", Rule: "login", Outcome: "refused", Way: "memory", Count: 4}, {Scope: "gone", Outcome: "allowed", Way: "shared", Count: 1},
	}
	text, err := encode(compose(v, at, report, nearest, totals))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), hash) {
		t.Error("a whole digest is shown")
	}
	var got, want any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(`{"time":1764526000123,"gateway":"00112233445566ff","host":"gw1","version":"`+version.Number+`","started":1764522400123,
		"stores":[{"endpoint":"valkey:6379","state":"away","since":1764525999123,"roundTrips":9,"errors":{"timeout":1},"latency":{"p50":0.001,"p99":0.002},"clockOffset":0.001,
				"changes":[{"time":1764525999123,"to":"away","why":"i/o timeout"},{"time":1764525998123,"to":"back","why":""}]},
			{"endpoint":"back:6379","state":"answers","since":0,"roundTrips":0,"errors":{},"latency":null,"clockOffset":0,"changes":[]},
			{"endpoint":"new:6379","state":"unused","since":0,"roundTrips":0,"errors":{},"latency":null,"clockOffset":0,"changes":[]}],
		"scopes":[{"scope":"api","gateways":2,"share":"1/2","control":{"version":3,"age":1.2,"enabled":true,"dryRun":false,"allows":1,"blocks":0},
				"limits":[{"middleware":"quota@file","rule":"","count":"","algorithm":"fixed-window","limit":100,"window":60,"burst":0,"onStoreFailure":"local","dryRun":false}],
				"clients":[{"count":"","window":60,"store":"valkey:6379","tracked":12,"max":65536,"outageAllowed":0,"outageSettled":0},
					{"count":"day","window":86400,"store":"valkey:6379","tracked":3,"max":65536,"outageAllowed":7,"outageSettled":5}],
				"decisions":[{"rule":"","outcome":"allowed","way":"shared","total":123},{"rule":"login","outcome":"refused","way":"memory","total":4}],
				"nearest":[{"count":"","client":"481c55a1b2c3","used":99,"limit":100,"reset":17}]},
			{"scope":"quiet","gateways":0,"share":"","control":null,"limits":[],"clients":[],"decisions":[],"nearest":[{"count":"","client":"ab","used":0,"limit":0,"reset":0}]}]}`), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the status is %s", text)
	}
}

func TestQuantile(t *testing.T) {
	bounds := []float64{1, 2, 4}
	for _, c := range []struct {
		counts []int64
		part   float64
		want   float64
		some   bool
	}{
		{[]int64{0, 0, 0, 0}, 0.5, 0, false},
		{[]int64{10, 0, 0, 0}, 0.5, 0.5, true},
		{[]int64{0, 10, 0, 0}, 0.5, 1.5, true},
		{[]int64{0, 0, 10, 0}, 0.99, 3.98, true},
		{[]int64{1, 1, 1, 1}, 0.5, 2, true},
		{[]int64{1, 1, 1, 1}, 0.99, 4, true},
		{[]int64{0, 0, 0, 3}, 0.5, 4, true},
	} {
		got, some := quantile(&limiter.Histogram{Bounds: bounds, Counts: c.counts}, c.part)
		if math.Abs(got-c.want) > 1e-9 || some != c.some {
			t.Errorf("%v of %v is %v, %v, want %v, %v", c.part, c.counts, got, some, c.want, c.some)
		}
	}
	if _, some := quantile(&limiter.Histogram{}, 0.5); some {
		t.Error("an empty histogram has a median")
	}
}

// However many look, the gateway's clients are walked over once in two seconds.
func TestNearestIsKept(t *testing.T) {
	walks := 0
	walk := func(most int) []limiter.ClientReport {
		walks++
		if most != nearestShown {
			t.Errorf("%d clients are asked for", most)
		}
		return []limiter.ClientReport{{Used: int64(walks)}}
	}
	defer func() { nearestAt = time.Time{} }()
	start := time.Now()
	for _, c := range []struct {
		after time.Duration
		want  int64
	}{{0, 1}, {time.Second, 1}, {1999 * time.Millisecond, 1}, {2 * time.Second, 2}, {3999 * time.Millisecond, 2}, {4 * time.Second, 3}} {
		nearestAt = map[bool]time.Time{true: {}, false: nearestAt}[c.after == 0]
		if got := nearest(start.Add(c.after), walk); len(got) != 1 || got[0].Used != c.want {
			t.Errorf("after %v it is walk %v, want %d", c.after, got, c.want)
		}
	}
}

var quoted = regexp.MustCompile("`([A-Za-z0-9]+)`")

// docs/status.md has all fields of the JSON, and no others.
func TestThePageOnTheFields(t *testing.T) {
	content, err := os.ReadFile(filepath.Join("..", "docs", "status.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(content), "<!-- table: fields -->\n")
	if !found {
		t.Fatal("the page has no table of fields")
	}
	written := map[string][]string{}
	for _, line := range strings.Split(table, "\n")[2:] {
		cells := strings.Split(line, " | ")
		if len(cells) != 2 {
			break
		}
		for _, name := range quoted.FindAllStringSubmatch(cells[1], -1) {
			in := strings.Trim(cells[0], "|` ")
			written[in] = append(written[in], name[1])
		}
	}
	there := map[string][]string{}
	for in, value := range map[string]any{
		"the whole": status{}, "stores": storeStatus{}, "latency": latency{}, "changes": changeStatus{}, "scopes": scopeStatus{},
		"control": Control{}, "limits": Limit{}, "clients": clientsStatus{}, "decisions": decisionStatus{}, "nearest": nearestStatus{},
	} {
		kind := reflect.TypeOf(value)
		for i := 0; i < kind.NumField(); i++ {
			there[in] = append(there[in], kind.Field(i).Tag.Get("json"))
		}
	}
	for in := range there {
		if !reflect.DeepEqual(written[in], there[in]) {
			t.Errorf("%s has the fields %v, and the page says %v", in, there[in], written[in])
		}
	}
	if len(written) != len(there) {
		t.Errorf("the page says %v", written)
	}
}
