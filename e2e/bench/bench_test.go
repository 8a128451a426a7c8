package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/lab"
)

func TestSpread(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		figures []float64
		want    spread
	}{
		{[]float64{3}, spread{3, 3, 3}},
		{[]float64{5, 1}, spread{3, 1, 5}},
		{[]float64{9, 1, 2}, spread{2, 1, 9}},
		{[]float64{8, 1, 4, 2}, spread{3, 1, 8}},
	} {
		if got := spreadOf(tt.figures); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.figures, got, tt.want)
		}
	}
}

// rates returns what a route may have got, a second each.
func rates(requests ...int64) *result {
	r := &result{}
	for _, n := range requests {
		r.loads = append(r.loads, load{Requests: n, Microseconds: 1e6, P50: 1000, P95: 2500, P99: 4000, Gateway: 50 * n, Store: 7 * n})
	}
	return r
}

func TestRatioComparesWithinARound(t *testing.T) {
	t.Parallel()
	// The medians are equal, and yet it is twice as fast in most rounds.
	got := ratio(rates(100, 400, 200), rates(200, 200, 100))
	if want := (spread{2, 0.5, 2}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestParseWrk(t *testing.T) {
	t.Parallel()
	out := "Running 3s test\n  1234 requests in 3.00s\n\nRESULT {\"requests\":300,\"microseconds\":1500000,\"refused\":2,\"failed\":1,\"p50\":10,\"p95\":20,\"p99\":30}\n"
	got, err := parseWrk([]byte(out))
	if want := (load{Requests: 300, Microseconds: 1500000, Refused: 2, Failed: 1, P50: 10, P95: 20, P99: 30}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if got.perSecond() != 200 {
		t.Errorf("%v a second", got.perSecond())
	}
	for _, bad := range []string{"", "unable to connect", "RESULT {", "RESULT {\"requests\":0,\"microseconds\":1}"} {
		if _, err := parseWrk([]byte(bad)); err == nil {
			t.Errorf("%q is taken for a result", bad)
		}
	}
}

func TestWrongAnswersAreNoMeasurement(t *testing.T) {
	t.Parallel()
	allowed, refused := route{name: "a"}, route{name: "r", refused: true}
	for _, tt := range []struct {
		route route
		load  load
		ok    bool
	}{
		{allowed, load{Requests: 10}, true},
		{allowed, load{Requests: 10, Refused: 1}, false},
		{allowed, load{Requests: 10, Failed: 1}, false},
		{refused, load{Requests: 10, Refused: 10}, true},
		{refused, load{Requests: 10, Refused: 8}, true},
		{refused, load{Requests: 10, Refused: 7}, false},
		{refused, load{Requests: 10}, false},
	} {
		if err := tt.load.problem(tt.route); (err == nil) != tt.ok {
			t.Errorf("%s %+v: %v", tt.route.name, tt.load, err)
		}
	}
}

func TestParseCommands(t *testing.T) {
	t.Parallel()
	info := "# Commandstats\r\ncmdstat_evalsha:calls=100,usec=1,usec_per_call=0.1,rejected_calls=0,failed_calls=1\r\n" +
		"cmdstat_eval:calls=2,usec=1\r\ncmdstat_incrby:calls=91,usec=1\r\ncmdstat_zadd:calls=10,usec=1\r\ncmdstat_config|get:calls=3,usec=1\r\ncmdstat_info:calls=50,usec=1\r\n"
	if got, want := parseCommands(info), (work{scripts: 102, commands: 206, logged: 10}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// configured is a dynamic configuration of Traefik.
type configured struct {
	HTTP struct {
		Routers map[string]struct {
			Rule        string
			Middlewares []string
		}
		Middlewares map[string]map[string]any
	}
}

func parseConfiguration(t *testing.T, text string) (c configured) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// The options that two gateways differ in are those of who watches, and nothing else.
func TestOneOfTwoGatewaysIsWatched(t *testing.T) {
	t.Parallel()
	of := func(gateway string) configured {
		return parseConfiguration(t, watchedConfiguration(t, gateway, "127.0.0.1:1", []string{"http://127.0.0.1:2"}, time.Hour))
	}
	without, with := of(unwatched), of(overseen)
	for i, r := range watchedRoutes {
		c := map[string]configured{unwatched: without, overseen: with}[r.gateway]
		if router := c.HTTP.Routers[r.name]; router.Rule != "Path(`/"+r.name+"`)" || !slices.Equal(router.Middlewares, []string{r.name}) {
			t.Errorf("%s: %+v", r.name, router)
		}
		if r.gateway == unwatched {
			continue
		}
		plain := watchedRoutes[i-1]
		if r.against != plain.name || r.shared != plain.shared || r.refused != plain.refused || r.many != plain.many || plain.gateway != unwatched {
			t.Errorf("%+v is compared with %+v", r, plain)
		}
		options := func(c configured, name string) map[string]any {
			plugin, _ := c.HTTP.Middlewares[name]["plugin"].(map[string]any)
			o, _ := plugin[lab.PluginName].(map[string]any)
			return o
		}
		watched, bare := options(with, r.name), options(without, plain.name)
		for _, option := range []string{"metrics", "status", "log"} {
			if watched[option] == nil || bare[option] != nil {
				t.Errorf("%s: option %s is %v, and %v where nobody watches", r.name, option, watched[option], bare[option])
			}
			delete(watched, option)
		}
		if (watched["control"] == "true") != r.shared || bare["control"] != nil {
			t.Errorf("%s: control is %v", r.name, watched["control"])
		}
		delete(watched, "control")
		if !reflect.DeepEqual(watched, bare) {
			t.Errorf("%s: %v, and %v where nobody watches", r.name, watched, bare)
		}
	}
	if rule := with.HTTP.Routers[askedRoute.name].Rule; !strings.Contains(rule, "`"+metricsPath+"`") || !strings.Contains(rule, "`"+statusPath+"`") {
		t.Errorf("those who watch are to ask on %s", rule)
	}
	if len(without.HTTP.Routers) != len(watchedRoutes)/2 || with.HTTP.Middlewares[trackedRoute.name] == nil {
		t.Errorf("%d routes where nobody watches, %+v", len(without.HTTP.Routers), with.HTTP.Middlewares)
	}
}

func TestTrackedClientsAreFound(t *testing.T) {
	t.Parallel()
	text := "gatequota_clients{scope=\"asked@file\",count=\"\",window=\"3660\"} 1\ngatequota_clients{scope=\"tracked@file\",count=\"\",window=\"3660\"} 99999\n" +
		"gatequota_clients_max{scope=\"tracked@file\",count=\"\",window=\"3660\"} 100000\n"
	if found := trackedNow.FindStringSubmatch(text); found == nil || found[1] != "99999" {
		t.Errorf("%q", found)
	}
}

// A tenth of the figures is lower than the one that is told, and dear ones do not count.
func TestQuiet(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		figures []float64
		want    float64
	}{{[]float64{7}, 7}, {[]float64{9, 8, 7}, 7}, {[]float64{90, 8, 70, 60, 5, 40, 30, 20, 10, 9}, 8}} {
		if got := quiet(tt.figures); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.figures, got, tt.want)
		}
	}
}

func TestForms(t *testing.T) {
	t.Parallel()
	var names []string
	for _, f := range (plan{before: []string{"/somewhere/33d5afe"}}).forms() {
		names = append(names, f.name+" "+f.title)
		if f.watched != (f.name == "watched") || (f.folder == "/somewhere/33d5afe") != (f.name == "33d5afe") {
			t.Errorf("%+v", f)
		}
	}
	if want := []string{"unwatched nobody watches", "watched watched, and under control", "33d5afe version 33d5afe, nobody watches"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

func TestEachRouteIsConfigured(t *testing.T) {
	t.Parallel()
	got := parseConfiguration(t, configuration(t, "127.0.0.1:1", []string{"http://127.0.0.1:2"}, time.Hour))
	names := map[string]bool{}
	for _, r := range slices.Concat(routes, algorithmRoutes) {
		names[r.name] = true
		router := got.HTTP.Routers[r.name]
		if router.Rule != "Path(`/"+r.name+"`)" {
			t.Errorf("%s: rule %q", r.name, router.Rule)
		}
		if r.name == "none" {
			if len(router.Middlewares) != 0 {
				t.Errorf("none has middlewares: %q", router.Middlewares)
			}
			continue
		}
		kind := "rateLimit"
		if r.own {
			kind = "plugin"
		}
		if len(router.Middlewares) != 1 || got.HTTP.Middlewares[router.Middlewares[0]][kind] == nil {
			t.Errorf("%s has no %s: %q", r.name, kind, router.Middlewares)
		}
		plugin, _ := got.HTTP.Middlewares[r.name]["plugin"].(map[string]any)
		options, _ := plugin[lab.PluginName].(map[string]any)
		algorithm, _ := options["algorithm"].(string)
		if shared := options["mode"] == "shared"; r.shared != shared || r.algorithm != algorithm {
			t.Errorf("%s: counted in the store: %t, by the algorithm %q", r.name, shared, algorithm)
		}
		if r.own != (r.against != "") || r.own && !names[r.against] {
			t.Errorf("%s is compared with %q, which must stand before it", r.name, r.against)
		}
	}
}

// made returns a report out of made-up figures.
func made() *report {
	r := &report{
		about: about{date: "2000-01-02", cpu: "A <CPU>", cores: 2, memory: "4 GiB", system: "Linux", load: "0.10 0.20 0.30",
			traefik: "3.0.0", valkey: "8.0.0", wrk: "4.0", golang: "1.0"},
		plan:    plan{rounds: 3, duration: 3 * time.Second, connections: 32, note: "Nobody else was there."},
		results: map[string]*result{},
	}
	for i, route := range routes {
		n := int64(1000 * (i + 1))
		r.results[route.name] = rates(n, n+100, n+200)
	}
	r.results["shared-allowed"].scripts = 18300
	r.algorithms = map[string]*result{}
	for i, route := range algorithmRoutes {
		n := int64(1000 * (i%5 + 20))
		r.algorithms[route.name] = rates(n, n+100, n+200)
	}
	r.rest = &atRest{of: hotRoute, to: restAgainst, whole: map[string]quantiles{}}
	r.watched = &watched{rounds: 6, duration: 2 * time.Second, results: map[string]*result{}, rest: &atRest{of: watchedRest[1], to: watchedRest[0],
		whole:  map[string]quantiles{watchedRest[0]: {500, 600, 700, 800}, watchedRest[1]: {520, 630, 740, 850}},
		rounds: []map[string]time.Duration{{watchedRest[0]: 500 * time.Microsecond, watchedRest[1]: 525 * time.Microsecond}},
	}}
	for i, route := range watchedRoutes {
		n := int64(10_000 - 100*i)
		r.watched.results[route.name] = rates(n, n+100, n+200)
		if i%2 == 1 {
			for j, dearer := range []int64{0, 2, 4} {
				r.watched.results[route.name].loads[j].Gateway += dearer * r.watched.results[route.name].loads[j].Requests
			}
		}
	}
	r.active = &active{
		answers: []answered{
			{name: "metrics", title: "metrics", bytes: 17000, took: []float64{2, 3, 9}, work: 2.5},
			{name: "status", title: "status as JSON", bytes: 3800, took: []float64{401.254}, work: 410},
		},
		meanwhile: map[bool]*result{false: rates(5000, 5100, 5200), true: rates(4500, 4590, 4940)},
		changed:   map[string]*result{watchedRest[0]: rates(5000, 5000), watchedRest[1]: rates(4000, 4500)},
	}
	for _, c := range comparedCases {
		one := compared{comparedCase: c, forms: plan{before: []string{"33d5afe"}}.forms()}
		one.cost = [][]float64{{20, 20.25, 31}, {21.5, 22, 31}, {18, 19, 30}}
		r.compared = append(r.compared, one)
	}
	for range 3 {
		r.rest.rounds = append(r.rest.rounds, map[string]time.Duration{
			"none": 100 * time.Microsecond, restAgainst: 200 * time.Microsecond, hotRoute: 206 * time.Microsecond,
		})
	}
	for name, median := range r.rest.rounds[0] {
		r.rest.whole[name] = quantiles{float64(median.Microseconds()), 301, 302, 303}
	}
	r.memory = &memory{local: 120.4, shared: 410,
		after:  []pause{{2500 * time.Microsecond, time.Millisecond}, {7 * time.Millisecond, time.Millisecond}, {6 * time.Millisecond, 1500 * time.Microsecond}},
		before: []pause{{time.Millisecond, 0}, {time.Millisecond, 0}, {time.Millisecond, 0}},
	}
	for i, c := range decisionCases {
		r.decisions = append(r.decisions, decisions{decisionCase: c, perSecond: 4000, calls: 0.5, mean: 7.25,
			whole: quantiles{float64(i + 10), 20, 30, 40}, wait: quantiles{1, 2, 3, 4}})
	}
	return r
}

func TestPrintedRatios(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	made().print(&out)
	lines := regexp.MustCompile(`(?m)^ratio (\S+) \d+\.\d{3} \d+\.\d{3} \d+\.\d{3}$`).FindAllStringSubmatch(out.String(), -1)
	var names []string
	for _, line := range lines {
		names = append(names, line[1])
	}
	want := []string{"local-allowed", "local-allowed-bare", "shared-allowed", "shared-allowed-bare", "shared-keys",
		"local-refused", "shared-refused", "shared-refused-bare",
		"sliding-window-allowed", "token-bucket-allowed", "sliding-log-allowed",
		"sliding-window-refused", "token-bucket-refused", "sliding-log-refused", "latency-at-rest",
		"watched-local-allowed", "watched-shared-allowed", "watched-shared-keys", "watched-shared-refused", "watched-latency-at-rest",
		"while-asked", "while-changed"}
	if !slices.Equal(names, want) {
		t.Fatalf("ratios of %q, want %q\n%s", names, want, &out)
	}
	for _, want := range []string{
		"ratio local-allowed 1.476 1.455 1.500\n  at least 0.93: reached\n",
		"ratio shared-refused 1.083 1.082 1.083\n  at least 1.7, aim 2: not reached, by 0.617\n",
		"ratio token-bucket-allowed 1.149 1.149 1.150\n  at least 1.1: reached\n",
		"ratio token-bucket-refused 1.149 1.149 1.150\n  at least 1.6: not reached, by 0.451\n",
		"ratio sliding-log-allowed 1.199 1.198 1.200\n",
		"ratio latency-at-rest 1.030 1.030 1.030\n  at most 1.05: reached\n",
		"ratio watched-local-allowed 0.990 0.990 0.990\n  at least 0.97: reached\n",
		"ratio watched-latency-at-rest 1.040 1.050 1.050\n  at most 1.03: not reached, by 0.01\n",
		"ratio while-asked 0.900 0.900 0.950\n",
		"ratio while-changed 0.850 0.800 0.900\n",
		"gateway time watched-shared-keys     times 1.040 1.000 1.080\n",
		"answer metrics  ms 3.00 2.00 9.00, 17000 bytes, 2.50 ms of processor\n",
		"somebody asks: true  req/s 4590 p99 ms 4.00\n",
		"mode shared, refused               nobody watches                              20.00     0.00    20.25\n" +
			"                                   watched, and under control                  21.50     1.50    22.00\n" +
			"                                   version 33d5afe, nobody watches             18.00    -2.00    19.00\n",
		"store commands a request shared-allowed 1.000\n  at most 0.25: not reached, by 0.75\n",
		"bytes a client local 120\n  at most 400: reached\n",
		"bytes a client shared 410\n  at most 400: not reached, by 10\n",
		"longest pause ms edge 6.00 2.50 7.00\n  at most 5, the lowest: reached\n",
		"longest pause ms quiet 1.00 1.00 1.00\n",
		"longest pause processor-ms edge 1.00 1.00 1.50\n",
	} {
		if !strings.Contains(out.String(), "\n"+want) {
			t.Errorf("it lacks %q:\n%s", want, &out)
		}
	}
	if !regexp.MustCompile(`(?m)^shared-allowed +6100 +6000 +6200 +1\.00 +2\.50 +4\.00 +50 +7 +1\.00 +0\.00$`).Match(out.Bytes()) {
		t.Errorf("%s", &out)
	}
}

// What was not measured is left out.
func TestPrintedParts(t *testing.T) {
	t.Parallel()
	for part, want := range map[string]string{
		"algorithms": "ratio sliding-log-refused ",
		"latency":    "ratio latency-at-rest ",
		"watched":    "ratio watched-latency-at-rest ",
		"active":     "ratio while-changed ",
		"compared":   "version 33d5afe, nobody watches ",
		"memory":     "bytes a client local ",
		"decision":   "256 clients, one key   4000 decisions in a second, 0.500 calls each, 7.2 us a call on average\n",
	} {
		r := made()
		one := &report{about: r.about, plan: r.plan}
		switch part {
		case "algorithms":
			one.algorithms = r.algorithms
		case "latency":
			one.rest = r.rest
		case "watched":
			one.watched = r.watched
		case "active":
			one.active = r.active
		case "compared":
			one.compared = r.compared
		case "memory":
			one.memory = r.memory
		case "decision":
			one.decisions = r.decisions
		}
		var out bytes.Buffer
		one.print(&out)
		if !strings.Contains(out.String(), want) || strings.Contains(out.String(), "ratio shared-allowed") {
			t.Errorf("%s: it lacks %q, or has too much:\n%s", part, want, &out)
		}
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		target target
		figure float64
		want   string
	}{
		{target{bound: 1}, 1, "reached"},
		{target{bound: 1}, 0.9996, "not reached, by 0.0004"},
		{target{bound: 1.5, aim: 2}, 1.75, "reached, the aim not by 0.25"},
		{target{bound: 1.5, aim: 2}, 2, "reached, and the aim"},
		{target{most: true, bound: 400}, 400, "reached"},
		{target{most: true, bound: 400}, 401, "not reached, by 1"},
		{target{most: true, bound: 5, aim: 2}, 3, "reached, the aim not by 1"},
	} {
		if got := tt.target.verdict(tt.figure); got != tt.want {
			t.Errorf("%v where %s is wanted: %q, want %q", tt.figure, tt.target.wanted(), got, tt.want)
		}
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	text := made().markdown()
	for _, want := range []string{
		"| mode local | rateLimit, in memory | allowed | **1.48** | 1.45 | 1.50 |\n",
		"| mode shared | rateLimit, with redis | allowed, many clients | **1.12** | 1.12 | 1.12 |\n",
		"| Gatequota, mode shared | allowed | 6100 | 6000 to 6200 | 1.00 | 2.50 | 4.00 |\n",
		"| Bytes of a tracked client, mode shared | at most 400 | **410** | one figure | not reached, by 10 |\n",
		"requests per second, divided by those of Traefik rateLimit, with redis | at least 1.15, aim 1.25 | **1.196** | 1.192 to 1.200 | reached, the aim not by 0.0539 |\n",
		"| Gatequota, mode shared | 206 | 301 | 302 | 303 |\n",
		"| mode shared | allowed, many clients | 9700 | **0.990** | 0.990 | 0.990 | 50 | 1.040 | 1.000 | 1.080 |\n",
		"| without | 500 | 600 | 700 | 800 |\n| with metrics and control | 520 | 630 | 740 | 850 |\n",
		"| mode local, allowed | nobody watches | 20.00 | 0.00 | 20.25 |\n|  | watched, and under control | 21.50 | 1.50 | 22.00 |\n",
		"| status as JSON | 401.25 | 401.25 to 401.25 | 3800 | 410.00 |\n",
		"requests per second in mode shared are 0.900 (0.900 to\n0.950) of what they are",
		"they are 0.850 (0.800 to 0.900) of those of",
		"with metrics and control, divided by those without | at least 0.97 | **0.990** | 0.990 to 0.990 | reached |\n",
		"| 32 clients | decision | 11 | 20 | 30 | 40 |\n|  | its wait for the connection | 1 | 2 | 3 | 4 |\n",
		"| 1 client | 4000 | 0.500 | 7.2 |\n",
		"takes 120 bytes",
		"| after the edge | 6.00 | 2.50 | 7.00 |\n",
		strings.TrimSpace(why),
		"| Traefik rateLimit, with redis | allowed | 20100 |  | |  |  |  | 50 | 7 | 0.00 | 0.00 |\n",
		"| Gatequota, token-bucket | refused | 23100 | **1.15** | 1.15 | 1.15 | at least 1.6 | not reached, by 0.451 | 50 | 7 | 0.00 | 0.00 |\n",
		"3 rounds of their\nown, 2s a route.",
		"| Gatequota, mode shared | allowed | 50 | 50 | 7 | 7 | 1.00 | 0.00 |\n",
		"  Nobody else was there.\n",
		"Medians of 3 rounds.",
		"On 2000-01-02,",
		"2 cores, 4 GiB",
		"0.10 0.20 0.30",
		"`wrk -t1 -c32 -d3s`",
		"Traefik 3.0.0",
		"Valkey 8.0.0",
		"(performance.svg)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q:\n%s", want, text)
		}
	}
}

func TestPictureShowsEachRoute(t *testing.T) {
	t.Parallel()
	text := made().svg()
	decoder := xml.NewDecoder(strings.NewReader(text))
	bars := 0
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if element, ok := token.(xml.StartElement); ok && element.Name.Local == "rect" {
			bars++
		}
	}
	if bars != len(routes) {
		t.Errorf("%d bars, want %d", bars, len(routes))
	}
	if !strings.Contains(text, "prefers-color-scheme: dark") || strings.Contains(text, "NaN") {
		t.Errorf("%s", text)
	}
}

func TestAxisStep(t *testing.T) {
	t.Parallel()
	for top, want := range map[float64]float64{28000: 5000, 6000: 1000, 6001: 2000, 100: 20, 60: 10, 1: 0.2} {
		if got := axisStep(top); math.Abs(got-want) > 1e-9 {
			t.Errorf("%v: %v, want %v", top, got, want)
		}
	}
}

func TestField(t *testing.T) {
	t.Parallel()
	info := "# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.0.1\r\n"
	if got := field(info, "valkey_version:"); got != "8.0.1" {
		t.Errorf("%q", got)
	}
	if got := field(info, "other:"); got != "unknown" {
		t.Errorf("%q", got)
	}
}

func TestWrongFlagsAreRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-no-such-flag"}, {"-only", "ratios"}, {"-rounds", "0"}, {"-connections", "0"}, {"-duration", "1500ms"}, {"-duration", "0s"}, {"local"},
	} {
		var out, errs bytes.Buffer
		if got := run(context.Background(), args, &out, &errs); got != 2 || errs.Len() == 0 {
			t.Errorf("%q: status %d, printed %q", args, got, &errs)
		}
	}
}
