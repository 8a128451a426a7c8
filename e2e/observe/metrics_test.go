package observe_test

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// everyWay are middlewares by which requests come to every outcome there is.
var everyWay = map[string]options{
	"api":    {"rules": []options{{"name": "search", "path": "/api/search", "limit": 5}}},
	"tried":  {"limit": 5, "dryRun": true},
	"strict": {"sourceCriterion": options{"requestHeaderName": "X-API-Key", "onMissing": "refuse"}, "exempt": options{"paths": []string{"/strict/health"}}},
	"lax":    {"sourceCriterion": options{"requestHeaderName": "X-API-Key", "onMissing": "skip"}},
	"capped": {"gatewayLimit": options{"limit": 3, "window": "366d"}},
	"alone":  {"limit": 4, "mode": "local"},
	"small":  {"maxClients": 8},
	"reads":  {"onStoreFailure": "open"},
	"login":  {"onStoreFailure": "closed"},
	"off":    {"control": true, "limit": 3},
	"trial":  {"control": true, "limit": 3},
	"held":   {"control": true},
	"plain":  {"control": true, "algorithm": "sliding-window"},
	// Its user of the store may not read what an operator sets.
	"deaf": {"control": true, "valkey": options{"username": "deaf", "password": "deaf"}},
	// Its user may use other keys.
	"barred": {"valkey": options{"username": "barred", "password": "barred"}},
}

// blocked is the key of a client that is blocked in the scope held.
const blocked = "blocked-key-4711"

// control sets what an operator sets, and waits until both gateways obey.
func (s *site) control() {
	s.t.Helper()
	hence := strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)
	for scope, fields := range map[string][]any{
		"off":   {"version", 3, "enabled", "false"},
		"trial": {"version", 2, "dryRun", "true"},
		"held":  {"version", 1, "block:" + hash(blocked), hence},
	} {
		s.store.Do(append([]any{"HSET", "rate:" + scope + ":control"}, fields...)...)
	}
	lab.Until(s.t, "both gateways obey", func() bool {
		return s.sum("control_version", "scope", "off") == 2*3 && s.sum("control_version", "scope", "trial") == 2*2 && s.sum("control_version", "scope", "held") == 2
	})
}

// The gateways answer with metrics that say, to the request, what became of what was sent.
func TestMetricsCountWhatWasSent(t *testing.T) {
	s := newSite(t, everyWay)
	s.control()
	want := map[string]float64{} // by scope, rule, outcome and way, over both gateways
	expect := func(n int, scope, rule, outcome, way string) {
		want[fmt.Sprintf("%s/%s/%s/%s", scope, rule, outcome, way)] += float64(n)
	}

	// The last of the hundred that pass goes through the second gateway, which knows
	// then that there are no more; the first one asks once more.
	const secret = "api-key-of-somebody-0815"
	answers := s.send(130, "/api/x", secret)
	if got := answers.Tally(); got != "200: 100, 429: 30" {
		t.Fatalf("answers: %s", got)
	}
	expect(100, "api", "", "allowed", "shared")
	expect(1, "api", "", "refused", "shared")
	expect(29, "api", "", "refused", "memory")
	s.send(9, "/api/search", secret, 0)
	expect(5, "api", "search", "allowed", "shared")
	expect(4, "api", "search", "refused", "memory")
	s.send(8, "/tried", secret)
	expect(5, "tried", "", "allowed", "dry-run")
	expect(3, "tried", "", "would_refuse", "dry-run")
	s.send(2, "/strict", "")
	expect(2, "strict", "", "rejected", "none")
	s.send(3, "/strict/health", "")
	expect(3, "strict", "", "exempt", "none")
	s.send(4, "/lax", "")
	expect(4, "lax", "", "skipped", "none")
	s.send(5, "/capped", secret, 1)
	expect(3, "capped", "", "allowed", "shared")
	expect(2, "capped", "", "unavailable", "gateway")
	s.send(6, "/alone", secret, 0)
	expect(4, "alone", "", "allowed", "local")
	expect(2, "alone", "", "refused", "local")
	s.send(7, "/off", secret)
	expect(7, "off", "", "allowed", "control")
	s.send(8, "/trial", secret)
	expect(3, "trial", "", "allowed", "dry-run")
	expect(5, "trial", "", "would_refuse", "dry-run")
	s.send(6, "/held", blocked)
	expect(6, "held", "", "refused", "control")
	s.send(3, "/held", secret)
	expect(3, "held", "", "allowed", "shared")
	s.send(4, "/plain", secret)
	expect(4, "plain", "", "allowed", "shared")

	each := make([]families, gateways)
	for g := range gateways {
		var text string
		each[g], text = s.scrape(g)
		if output, err := lab.Promtool(t, t.TempDir(), text, "check", "metrics"); err != nil || output != "" {
			t.Errorf("promtool check metrics: %v\n%s", err, output)
		}
		for _, never := range []string{secret, blocked, hash(secret)[:12], hash(blocked)[:12], "127.0.0.1\"", "4711", "0815"} {
			if strings.Contains(text, never) {
				t.Errorf("the metrics hold %q of a client", never)
			}
		}
		labelsAreConfigured(t, s, each[g])
	}
	got := map[string]float64{}
	for _, f := range each {
		for _, m := range f["gatequota_decisions_total"].GetMetric() {
			labels := map[string]string{}
			for _, pair := range m.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			got[fmt.Sprintf("%s/%s/%s/%s", labels["scope"], labels["rule"], labels["outcome"], labels["way"])] += m.GetCounter().GetValue()
		}
	}
	for name, n := range got {
		if n != want[name] {
			t.Errorf("%s: %v, want %v", name, n, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not there: %v", want)
	}
	if a, b := each[0].sum("decisions_total", "scope", "api", "way", "memory"), each[1].sum("decisions_total", "scope", "api", "way", "memory"); a != 14+4 || b != 15 {
		t.Errorf("refused from memory: %v and %v", a, b)
	}
	s.storeAgrees(each)

	t.Run("a reload", func(t *testing.T) {
		s.t = t
		// The store has counted the request that it refused, too.
		changed := map[string]options{"api": {"limit": 102}}
		for _, name := range []string{"off", "held", "tried"} {
			changed[name] = everyWay[name]
		}
		s.reload(changed)
		s.send(2, "/api/x", secret) // one more passes
		for g := range gateways {
			after, _ := s.scrape(g)
			countersGoOn(t, each[g], after)
		}
		if got, want := s.sum("decisions_total", "scope", "api", "rule", "", "outcome", "allowed"), 101.0; got != want {
			t.Errorf("after the reload %v were allowed, want %v", got, want)
		}
		// A store that no middleware uses any more is not away.
		s.upUntil(0, lab.Faults{Refuse: true})
		s.reload(map[string]options{"alone": everyWay["alone"]})
		for g := range gateways {
			left, _ := s.scrape(g)
			if up, errors := left.sum("store_up"), left.sum("store_errors_total"); !math.IsNaN(up) || !(errors > 0) {
				t.Errorf("gateway %d: a store that was left is up: %v, with %v errors", g, up, errors)
			}
		}
	})
}

// storeAgrees checks what the gateways say of their store, where nothing failed.
func (s *site) storeAgrees(each []families) {
	s.t.Helper()
	t := s.t
	for g, f := range each {
		store := []string{"store", s.links[g].Addr()}
		for name, want := range map[string]float64{"store_up": 1, "store_changes_total": 0} {
			if got := f.sum(name, store...); got != want {
				t.Errorf("gateway %d: %s is %v", g, name, got)
			}
		}
		trips, timed := f.sum("store_round_trips_total", store...), f.sum("store_latency_seconds", store...)
		merged := f["gatequota_store_batch_requests"].GetMetric()[0].GetHistogram()
		if trips < 60 || timed < 60 || timed > trips || merged.GetSampleCount() != uint64(timed) || merged.GetSampleSum() < timed {
			t.Errorf("gateway %d: %v round trips, %v timed, %v with %v requests", g, trips, timed, merged.GetSampleCount(), merged.GetSampleSum())
		}
		latency := f["gatequota_store_latency_seconds"].GetMetric()[0].GetHistogram()
		if mean := latency.GetSampleSum() / float64(latency.GetSampleCount()); mean <= 0 || mean > 0.2 {
			t.Errorf("gateway %d: a round trip takes %v s", g, mean)
		}
		if offset := f.sum("store_clock_offset_seconds", store...); math.Abs(offset) > 0.1 {
			t.Errorf("gateway %d: the store's clock is %v s ahead, on the same machine", g, offset)
		}
		if got := f.sum("clients", "scope", "api", "count", ""); got != 1 {
			t.Errorf("gateway %d: %v clients of the scope api", g, got)
		}
		if got := f.sum("clients_max", "scope", "small"); got != 8 {
			t.Errorf("gateway %d: maxClients of the scope small is %v", g, got)
		}
		for scope, want := range map[string][]float64{"off": {3, 0, 0}, "trial": {2, 1, 1}, "held": {1, 1, 0}, "plain": {0, 1, 0}} {
			got := []float64{f.sum("control_version", "scope", scope), f.sum("enabled", "scope", scope), f.sum("dry_run", "scope", scope)}
			if !slices.Equal(got, want) {
				t.Errorf("gateway %d: control of %s: version, enabled and dry run are %v, want %v", g, scope, got, want)
			}
			if age := f.sum("control_age_seconds", "scope", scope); age < 0 || age > 10 {
				t.Errorf("gateway %d: control of %s is %v s old", g, scope, age)
			}
		}
	}
	lab.Until(t, "each gateway knows the other one", func() bool { return s.sum("gateways", "scope", "off") == 4 })
}

// labelsAreConfigured checks that all values of labels are such as the configuration has,
// or words of the plugin's own.
func labelsAreConfigured(t *testing.T, s *site, f families) {
	t.Helper()
	own := map[string][]string{
		"outcome": {"allowed", "refused", "unavailable", "rejected", "would_refuse", "exempt", "skipped"},
		"way":     {"shared", "memory", "local", "open", "closed", "gateway", "dry-run", "control", "none"},
		"to":      {"away", "back"},
		"rule":    {"", "search"},
		"count":   {"", "search"},
		"window":  {fmt.Sprint(int(s.window.Seconds()))},
		"store":   {s.links[0].Addr(), s.links[1].Addr()},
		"class":   {"timeout", "dial", "lost", "protocol", "refused", "crowded", "panic", "key", "other", "ERR", "NOPERM"},
		"scope":   {"watch@file"},
	}
	for scope := range everyWay {
		own["scope"] = append(own["scope"], scope)
	}
	n := 0
	for name, family := range f {
		if !strings.HasPrefix(name, "gatequota_") || family.GetHelp() == "" {
			t.Errorf("the family %s", name)
		}
		for _, m := range family.GetMetric() {
			for _, pair := range m.GetLabel() {
				n++
				if pair.GetName() != "version" && !slices.Contains(own[pair.GetName()], pair.GetValue()) {
					t.Errorf("%s has the label %s=%q", name, pair.GetName(), pair.GetValue())
				}
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d labels", n)
	}
}

// countersGoOn checks that no counter has become smaller or disappeared.
func countersGoOn(t *testing.T, before, after families) {
	t.Helper()
	n := 0
	for name, family := range before {
		for _, m := range family.GetMetric() {
			if m.GetCounter() == nil && m.GetHistogram() == nil {
				continue
			}
			n++
			var labels []string
			for _, pair := range m.GetLabel() {
				labels = append(labels, pair.GetName(), pair.GetValue())
			}
			short := strings.TrimPrefix(name, "gatequota_")
			if was, is := before.sum(short, labels...), after.sum(short, labels...); !(is >= was) {
				t.Errorf("%s%v was %v and is %v", name, labels, was, is)
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d counters", n)
	}
}
