// Package observe_test shows what those see who watch over real gateways: the metrics that
// a real Prometheus scrapes, the alerts and the dashboard made of them.
package observe_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/lab"
)

const (
	gateways    = 2
	metricsPath = "/-/gatequota/metrics"
	limit       = 100 // of most routes
)

// options are a middleware's options as a user writes them.
type options map[string]any

// site is two gateways in front of one application, each with an entry point of its own
// for those who watch. Each reaches their store through a proxy. All windows of a site are
// one long window, whose edges are far away.
type site struct {
	t      *testing.T
	store  *lab.Store
	app    *lab.App
	client *lab.Client
	links  []*lab.Proxy
	doors  []*lab.Traefik
	inner  []string // addresses of the inner entry points
	window time.Duration
}

// newSite starts a site with a route for each of the middlewares: route x serves /x and
// what lies below.
func newSite(t *testing.T, routes map[string]options) *site {
	t.Helper()
	s := &site{t: t, store: lab.Valkey(t, lab.StoreOptions{}), app: lab.NewApp(t, 1), client: lab.NewClient(t)}
	s.window, _ = lab.QuietWindow(time.Now())
	s.store.Do("ACL", "SETUSER", "deaf", "on", ">deaf", "~*", "+@all", "-hgetall")
	s.store.Do("ACL", "SETUSER", "barred", "on", ">barred", "~other:*", "+@all")
	for g := range gateways {
		s.links = append(s.links, lab.NewProxy(t, s.store.Addr()))
		s.inner = append(s.inner, "127.0.0.1:"+strconv.Itoa(lab.FreePort(t)))
		s.doors = append(s.doors, lab.NewTraefik(t, lab.TraefikOptions{Args: []string{
			"--entrypoints.web.asdefault=true", "--entrypoints.inner.address=" + s.inner[g],
		}}, s.dynamic(g, routes)))
		for name := range routes {
			if wrong := s.doors[g].RouterError(name + "@file"); wrong != "" {
				t.Fatalf("the router %s: %s", name, wrong)
			}
		}
	}
	return s
}

// dynamic returns the configuration of a gateway.
func (s *site) dynamic(g int, routes map[string]options) string {
	routers := lab.Map{"watch": lab.Map{"rule": "PathPrefix(`/`)", "entryPoints": []string{"inner"}, "middlewares": []string{"watch"}, "service": "app"}}
	middlewares := lab.Map{"watch": lab.Quota(lab.Map{
		"limit": 1000, "window": s.window.String(), "mode": "local", "metrics": options{"path": metricsPath},
	})}
	for name, own := range routes {
		o := lab.Map{
			"limit": limit, "window": s.window.String(), "scope": name,
			"sourceCriterion": options{"requestHeaderName": "X-API-Key"},
		}
		store := options{"endpoints": []string{s.links[g].Addr()}, "timeout": "200ms", "dialTimeout": "2s"}
		if own["mode"] != "local" {
			o["valkey"] = store
		}
		for option, value := range own {
			if option == "valkey" {
				maps.Copy(store, value.(options))
			} else {
				o[option] = value
			}
		}
		middlewares[name] = lab.Quota(o)
		routers[name] = lab.Map{"rule": "PathPrefix(`/" + name + "`)", "middlewares": []string{name}, "service": "app"}
	}
	text, err := yaml.Marshal(lab.Map{"http": lab.Map{
		"routers": routers, "middlewares": middlewares,
		"services": lab.Map{"app": lab.Map{"loadBalancer": lab.Map{"servers": []lab.Map{{"url": s.app.URLs[0]}}}}},
	}})
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// reload gives both gateways other middlewares.
func (s *site) reload(routes map[string]options) {
	for g, door := range s.doors {
		door.Reload(s.dynamic(g, routes))
	}
}

// send sends n requests of a client to a path, through the gateways in turn or through
// those given.
func (s *site) send(n int, path, key string, through ...int) lab.Answers {
	s.t.Helper()
	if len(through) == 0 {
		through = []int{0, 1}
	}
	var requests []lab.Request
	for i := range n {
		r := lab.Keyed(s.doors[through[i%len(through)]].URL+path, key)
		if key == "" {
			r.Header = nil
		}
		requests = append(requests, r)
	}
	answers := s.client.Sequence(requests)
	for _, a := range answers {
		if a.Err != nil {
			s.t.Fatalf("%s: %v", path, a.Err)
		}
	}
	return answers
}

// families are the metrics of one gateway.
type families map[string]*dto.MetricFamily

// scrape asks a gateway for its metrics, and reads them by the rules of Prometheus.
func (s *site) scrape(g int) (families, string) {
	s.t.Helper()
	a := s.client.Get(lab.Request{URL: "http://" + s.inner[g] + metricsPath})
	if a.Status != 200 || a.Header.Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
		s.t.Fatalf("metrics of gateway %d: %d, %v, %v", g, a.Status, a.Header, a.Err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	all, err := parser.TextToMetricFamilies(strings.NewReader(a.Body))
	if err != nil {
		s.t.Fatalf("metrics of gateway %d: %v\n%s", g, err, a.Body)
	}
	return all, a.Body
}

// labels are pairs of a label's name and its value; others do not matter.
func has(m *dto.Metric, labels []string) bool {
	for i := 0; i < len(labels); i += 2 {
		found := false
		for _, pair := range m.GetLabel() {
			found = found || pair.GetName() == labels[i] && pair.GetValue() == labels[i+1]
		}
		if !found {
			return false
		}
	}
	return true
}

// sum adds up the values of a family that have these labels, of histograms their counts;
// it is NaN if there are none.
func (f families) sum(name string, labels ...string) float64 {
	sum, n := 0.0, 0
	for _, m := range f["gatequota_"+name].GetMetric() {
		if !has(m, labels) {
			continue
		}
		n++
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	if n == 0 {
		return math.NaN()
	}
	return sum
}

// sum adds up what both gateways say.
func (s *site) sum(name string, labels ...string) float64 {
	s.t.Helper()
	sum := 0.0
	for g := range gateways {
		f, _ := s.scrape(g)
		sum += f.sum(name, labels...)
	}
	return sum
}

// prometheus starts a Prometheus with the example's configuration, with the gateways, and
// whatever else is given, in the place of its targets, and a second in that of its intervals.
func (s *site) prometheus(besides ...string) *prometheus {
	s.t.Helper()
	files := map[string]string{}
	for _, name := range []string{"prometheus.yml", "alerts.yml"} {
		files[name] = readFile(s.t, "examples", "prometheus", name)
	}
	for old, new := range map[string]string{
		"[gateway1:8090, gateway2:8090]": "[" + strings.Join(append(besides, s.inner...), ", ") + "]",
		"scrape_interval: 15s":           "scrape_interval: 1s",
		"evaluation_interval: 15s":       "evaluation_interval: 1s",
	} {
		if strings.Count(files["prometheus.yml"], old) != 1 {
			s.t.Fatalf("prometheus.yml has not %q once", old)
		}
		files["prometheus.yml"] = strings.Replace(files["prometheus.yml"], old, new, 1)
	}
	return &prometheus{Prometheus: lab.NewPrometheus(s.t, files), t: s.t, began: time.Now()}
}

// prometheus is a Prometheus that can be asked.
type prometheus struct {
	*lab.Prometheus
	t     *testing.T
	began time.Time
}

// series is one result of a query.
type series struct {
	Metric map[string]string
	Value  []any   // of instant queries: the time and the value
	Values [][]any // of others
}

// numbers returns the values of a series.
func (s *series) numbers() []float64 {
	points := s.Values
	if len(s.Value) > 0 {
		points = append(points, s.Value)
	}
	var all []float64
	for _, point := range points {
		text, _ := point[1].(string)
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			x = math.NaN()
		}
		all = append(all, x)
	}
	return all
}

// query asks for what is now.
func (p *prometheus) query(q string) ([]series, error) {
	var data struct{ Result []series }
	err := p.API("query", url.Values{"query": {q}}, &data)
	return data.Result, err
}

// queryRange asks for all since the start, once a second.
func (p *prometheus) queryRange(q string) ([]series, error) {
	var data struct{ Result []series }
	at := func(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }
	err := p.API("query_range", url.Values{"query": {q}, "start": {at(p.began)}, "end": {at(time.Now())}, "step": {"1"}}, &data)
	return data.Result, err
}

// value returns the one value of a query, NaN if it is not one.
func (p *prometheus) value(q string) float64 {
	p.t.Helper()
	all, err := p.query(q)
	if err != nil {
		p.t.Fatalf("%s: %v", q, err)
	}
	if len(all) != 1 {
		return math.NaN()
	}
	return all[0].numbers()[0]
}

// until waits until a query has a value.
func (p *prometheus) until(q string, want float64) {
	p.t.Helper()
	lab.Until(p.t, fmt.Sprintf("%s is %v", q, want), func() bool { return p.value(q) == want })
}

// alerts returns the states of all alerts by name, of several of one name the highest:
// inactive, pending or firing.
func (p *prometheus) alerts() map[string]string {
	p.t.Helper()
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Type, State, Health, LastError string }
		}
	}
	if err := p.API("rules", nil, &data); err != nil {
		p.t.Fatal(err)
	}
	states := map[string]string{}
	for _, group := range data.Groups {
		for _, r := range group.Rules {
			if r.Type != "alerting" || r.LastError != "" {
				p.t.Errorf("the rule %s: %+v", r.Name, r)
			}
			states[r.Name] = r.State
		}
	}
	return states
}

func readFile(t *testing.T, path ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(append([]string{lab.Root()}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// hash returns the digest under which the client with an API key is counted.
func hash(key string) string {
	digest := sha256.Sum256([]byte(key))
	return hex.EncodeToString(digest[:])
}
