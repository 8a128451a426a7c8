package observe_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/lab"
)

// alert is one of examples/prometheus/alerts.yml.
type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func readAlerts(t *testing.T) []alert {
	t.Helper()
	var file struct {
		Groups []struct{ Rules []alert }
	}
	if err := yaml.Unmarshal([]byte(readFile(t, "examples", "prometheus", "alerts.yml")), &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Groups) != 1 || len(file.Groups[0].Rules) < 7 {
		t.Fatalf("the alerts are %+v", file)
	}
	return file.Groups[0].Rules
}

const pages = "https://github.com/gatequota/gatequota/blob/main/docs/"

// Each alert says how bad it is, what it is and what to do, and leads to a page that says
// more.
func TestAlertsSayWhatToDo(t *testing.T) {
	for _, a := range readAlerts(t) {
		if s := a.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s: severity %q", a.Alert, s)
		}
		if a.Annotations["summary"] == "" || len(a.Annotations["description"]) < 100 {
			t.Errorf("%s: %q", a.Alert, a.Annotations)
		}
		page, anchor, _ := strings.Cut(strings.TrimPrefix(a.Annotations["runbook_url"], pages), "#")
		if !slices.Contains(headings(readFile(t, "docs", page)), anchor) {
			t.Errorf("%s: %s has no heading %q", a.Alert, page, anchor)
		}
	}
}

var noWord = regexp.MustCompile(`[^a-z0-9 _-]`)

// headings returns the anchors of a page, as they are made on GitHub.
func headings(page string) []string {
	var all []string
	for _, line := range strings.Split(page, "\n") {
		if mark, text, found := strings.Cut(line, " "); found && strings.Trim(mark, "#") == "" && mark != "" {
			all = append(all, strings.ReplaceAll(noWord.ReplaceAllString(strings.ToLower(text), ""), " ", "-"))
		}
	}
	return all
}

// The tests of the alerts pass, and there are for each some in which it fires and some in
// which it does not.
func TestAlertsAreTested(t *testing.T) {
	folder := filepath.Join(lab.Root(), "examples", "prometheus")
	for _, args := range [][]string{{"check", "config", "prometheus.yml"}, {"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		if output, err := lab.Promtool(t, folder, "", args...); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, output)
		}
	}
	var file struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string
				ExpAlerts []any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal([]byte(readFile(t, "examples", "prometheus", "alerts_test.yml")), &file); err != nil {
		t.Fatal(err)
	}
	fires, silent := map[string]int{}, map[string]int{}
	for _, test := range file.Tests {
		for _, each := range test.AlertRuleTest {
			if len(each.ExpAlerts) > 0 {
				fires[each.Alertname]++
			} else {
				silent[each.Alertname]++
			}
		}
	}
	for _, a := range readAlerts(t) {
		if fires[a.Alert] == 0 || silent[a.Alert] == 0 {
			t.Errorf("%s: %d tests in which it fires, %d in which it does not", a.Alert, fires[a.Alert], silent[a.Alert])
		}
	}
}

// outage takes the store away from both gateways until they have noticed, does something,
// and gives it back.
func (s *site) outage(while func()) {
	s.t.Helper()
	s.upUntil(0, lab.Faults{Refuse: true})
	while()
	s.upUntil(1, lab.Faults{})
}

// upUntil spoils the connections to the store until all gateways say that it is up or not.
func (s *site) upUntil(up float64, faults lab.Faults) {
	s.t.Helper()
	for _, link := range s.links {
		link.Set(faults)
		link.Cut()
	}
	for g := range gateways {
		lab.Until(s.t, "the store is away, or back", func() bool {
			s.send(1, "/api/x", "a key", g)
			s.send(1, "/deaf", "a key", g)
			f, _ := s.scrape(g)
			return f.sum("store_up") == up
		})
	}
}

// A real Prometheus that scrapes real gateways sees all there is to see: the alerts
// become active when they should, and each query of the dashboard has something to show.
func TestPrometheusSeesTrouble(t *testing.T) {
	s := newSite(t, everyWay)
	app := lab.Address(t, s.app.URLs[0]) // which has no metrics
	p := s.prometheus(app)
	for _, inner := range s.inner {
		p.until(`up{instance="`+inner+`"}`, 1)
	}
	p.until(`up{instance="`+app+`"}`, 0)
	p.until(`count(gatequota_decisions_total{scope="api",rule="",outcome="refused",way="memory"} == 0)`, gateways)

	// All is well but for the target that is none.
	s.send(4, "/api/x", "a key")
	p.until(`sum(gatequota_decisions_total{scope="api",outcome="allowed",way="shared"})`, 4)
	states := map[string]string{}
	lab.Until(t, "alerts were evaluated", func() bool {
		states = p.alerts()
		return states["GatequotaNotScraped"] == "pending"
	})
	for name, state := range states {
		if name != "GatequotaNotScraped" && name != "GatequotaControlNotRead" && state != "inactive" {
			t.Errorf("%s is %s before anything happened", name, state)
		}
	}

	seen := map[string]bool{"GatequotaNotScraped": true}
	await := func(names ...string) {
		t.Helper()
		for _, name := range names {
			p.untilActive(name)
			seen[name] = true
		}
	}
	s.control()
	for _, name := range []string{"api", "tried", "strict", "lax", "capped", "alone", "off", "trial", "held", "plain"} {
		s.send(220, "/"+name, "somebody")
	}
	s.send(20, "/api/search", "somebody")
	s.send(8, "/strict", "")
	s.send(8, "/strict/health", "")
	s.send(8, "/lax", "")
	s.send(8, "/held", blocked)
	s.send(20, "/barred", "somebody")
	for _, key := range strings.Split("abcdefghijkl", "") {
		s.send(2, "/small", key)
	}
	await("GatequotaTooManyRefused", "GatequotaStoreDoesNotCount", "GatequotaSwitchedOff", "GatequotaDryRunForgotten", "GatequotaTableFull")

	const trouble = 5
	for i := range trouble {
		before := map[string]float64{}
		s.outage(func() {
			for _, way := range []string{"local", "open", "closed"} {
				before[way] = s.sum("decisions_total", "way", way)
			}
			answers := s.send(10, "/api/x", "outage")
			s.send(12, "/reads", "outage")
			s.send(14, "/login", "outage")
			for way, want := range map[string]int{"local": answers.Count(200), "open": 12, "closed": 14} {
				if got := s.sum("decisions_total", "way", way) - before[way]; got != float64(want) {
					t.Errorf("outage %d: %v requests by the way %s, want %d", i, got, way, want)
				}
			}
			if i == 0 {
				await("GatequotaStoreAway", "GatequotaFailingOpen")
			}
			// Prometheus sees each outage, and not only some.
			p.until(`min(gatequota_store_up)`, 0)
			p.until(`max(gatequota_store_up)`, 0)
		})
		p.until(`min(gatequota_store_up)`, 1)
	}
	await("GatequotaStoreComesAndGoes")
	lab.Until(t, "the alert for a store that is away ends", func() bool { return p.alerts()["GatequotaStoreAway"] == "inactive" })
	lab.Until(t, "what passed alone is settled", func() bool {
		s.send(2, "/api/x", "outage")
		allowed, settled := s.sum("outage_allowed_total", "scope", "api", "count", ""), s.sum("outage_settled_total", "scope", "api", "count", "")
		return allowed >= trouble && settled > 0 && settled <= allowed
	})
	for _, way := range []string{"away", "back"} {
		if got := s.sum("store_changes_total", "to", way); got < gateways*trouble {
			t.Errorf("the store went %s %v times", way, got)
		}
	}
	await("GatequotaControlNotRead")
	for _, a := range readAlerts(t) {
		if !seen[a.Alert] {
			t.Errorf("nothing made %s active", a.Alert)
		}
	}
	// What Prometheus has is what the gateways say.
	for _, outcome := range []string{"allowed", "refused", "would_refuse"} {
		p.until(`sum(gatequota_decisions_total{outcome="`+outcome+`"})`, s.sum("decisions_total", "outcome", outcome))
	}

	scopes := []string{"watch@file"}
	for name := range everyWay {
		scopes = append(scopes, name)
	}
	p.playDashboard(map[string][]string{"job": {"gatequota"}, "gateway": s.inner, "scope": scopes, "rule": {"search"}})
	p.playPage(s)
	s.familiesAreUsed()
}

// untilActive waits until the condition of an alert holds, whether or not it has held for
// long enough. Control has to be old before it is found so.
func (p *prometheus) untilActive(name string) {
	p.t.Helper()
	state := ""
	for start := time.Now(); time.Since(start) < 90*time.Second; time.Sleep(50 * time.Millisecond) {
		if state = p.alerts()[name]; state == "pending" || state == "firing" {
			return
		}
	}
	p.t.Errorf("%s did not become active, it is %q", name, state)
}

var family = regexp.MustCompile(`gatequota_[a-z_]+`)

// familiesAreUsed checks that what alerts and the dashboard ask for is there, that the
// dashboard shows all there is, and that the page is about all of it.
func (s *site) familiesAreUsed() {
	t := s.t
	t.Helper()
	there := map[string]bool{}
	for g := range gateways {
		f, _ := s.scrape(g)
		for name := range f {
			there[name] = true
		}
	}
	named := func(text string) map[string]bool {
		all := map[string]bool{}
		for _, name := range family.FindAllString(text, -1) {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if base := strings.TrimSuffix(name, suffix); base != name && there[base] {
					name = base
				}
			}
			all[name] = true
		}
		return all
	}
	for _, file := range [][]string{{"examples", "prometheus", "alerts.yml"}, {"examples", "grafana", "gatequota.json"}, {"docs", "metrics.md"}} {
		used := named(readFile(t, file...))
		for name := range used {
			if !there[name] {
				t.Errorf("%s: no gateway has %s", file[len(file)-1], name)
			}
		}
		for name := range there {
			if !used[name] && file[len(file)-1] != "alerts.yml" {
				t.Errorf("%s says nothing of %s", file[len(file)-1], name)
			}
		}
	}
}
