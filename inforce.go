package gatequota

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/gatequota/gatequota/control"
	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/metrics"
	"github.com/gatequota/gatequota/source"
	"github.com/gatequota/gatequota/status"
	"github.com/gatequota/gatequota/version"
)

// loaded is a middleware of a configuration.
type loaded struct {
	ctx     context.Context
	name    string
	setting *setting
	control *limiter.Control // nil: none
}

var (
	loadedMu sync.Mutex
	loadeds  = map[string]*loaded{} // by name; those whose context is done are not in force
)

// stand notes that a middleware is in force, and returns what stands before it, nil if
// nothing does.
func stand(ctx context.Context, next http.Handler, s *setting, name string) *front {
	var by *limiter.Control
	var l *live
	if s.control {
		by = limiter.OpenControl(ctx, &s.common, reportText, showOptions)
		l = &live{ctx: ctx, next: next, name: name, setting: s, control: by, tally: s.policies[len(s.policies)-1].tally}
	}
	loadedMu.Lock()
	for old, m := range loadeds {
		if m.ctx.Err() != nil {
			delete(loadeds, old)
		}
	}
	loadeds[name] = &loaded{ctx: ctx, name: name, setting: s, control: by}
	loadedMu.Unlock()
	return newFront(s, by, l)
}

// middlewaresInForce returns the middlewares of the configuration in force, by name.
func middlewaresInForce() []*loaded {
	loadedMu.Lock()
	defer loadedMu.Unlock()
	var all []*loaded
	for _, m := range loadeds {
		if m.ctx.Err() == nil {
			all = append(all, m)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].name < all[j].name })
	return all
}

// countsInForce returns the names of the counts of a scope.
func countsInForce(scope string) map[string]bool {
	counts := map[string]bool{}
	for _, m := range middlewaresInForce() {
		if m.setting.scope != scope {
			continue
		}
		for _, p := range m.setting.policies {
			for _, l := range p.ordinary.limits {
				counts[l.name] = true
			}
		}
	}
	return counts
}

// report is what a gateway reports of itself in a scope, for the command gatequota, which
// reads it as a Report of ctl/scope: both change together.
type report struct {
	Version     int64              `json:"version"` // that it obeys
	At          int64              `json:"at"`      // unix seconds of the store
	Host        string             `json:"host"`
	Software    string             `json:"software"`
	Enabled     bool               `json:"enabled"`
	DryRun      bool               `json:"dryRun"`
	Keyed       bool               `json:"keyed"` // clients are digested with a secret
	Middlewares []reportMiddleware `json:"middlewares"`
}

type reportMiddleware struct {
	Name  string       `json:"name"`
	Rules []reportRule `json:"rules"`
}

type reportRule struct {
	Rule   string            `json:"rule"`
	DryRun bool              `json:"dryRun"`
	Source *source.Criterion `json:"source"`
	Counts []reportCount     `json:"counts"`
}

type reportCount struct {
	Count     string `json:"count"`
	Algorithm string `json:"algorithm"`
	Limit     int64  `json:"limit"`
	Window    int64  `json:"window"` // seconds
	Burst     int64  `json:"burst"`  // of a bucket
}

// reportText returns the report of this gateway on a scope as JSON, given the version that
// it obeys and the time of the store in unix seconds.
func reportText(c *limiter.Control, obeyed, at int64) string {
	state, _ := limiter.InForce(c)
	if state == nil {
		state = &control.State{}
	}
	r := &report{Version: obeyed, At: at, Host: host, Software: version.Number, Enabled: !state.Off, DryRun: state.DryRun == "true"}
	for _, m := range middlewaresInForce() {
		if m.control != c {
			continue
		}
		r.Keyed = m.setting.secret != ""
		each := reportMiddleware{Name: m.name}
		for _, p := range m.setting.policies {
			rule := reportRule{Rule: p.name, DryRun: dryRunInForce(p, state), Source: &p.criterion}
			for _, l := range limitsInForce(m.setting, p, state) {
				rule.Counts = append(rule.Counts, reportCount{
					Count: l.name, Algorithm: algorithmName(p), Limit: l.limit, Window: l.window, Burst: l.burst,
				})
			}
			each.Rules = append(each.Rules, rule)
		}
		r.Middlewares = append(r.Middlewares, each)
	}
	text, err := json.Marshal(r)
	if err != nil {
		return "{}"
	}
	return string(text)
}

// showOptions has clients reported by the limits of the options again.
func showOptions(c *limiter.Control) {
	for _, m := range middlewaresInForce() {
		if m.control != c {
			continue
		}
		for _, p := range m.setting.policies {
			if p.ordinary.one != nil {
				limiter.Show(p.ordinary.one)
			} else if p.ordinary.several != nil {
				limiter.ShowSeveral(p.ordinary.several)
			}
		}
	}
}

// dryRunInForce reports whether a policy refuses nothing.
func dryRunInForce(p *policy, state *control.State) bool {
	if state.DryRun != "" {
		return state.DryRun == "true"
	}
	return p.dryRun
}

// algorithmName returns the name that options have for the algorithm of a policy.
func algorithmName(p *policy) string {
	for name, algorithm := range algorithms {
		if algorithm == p.algorithm {
			return name
		}
	}
	return ""
}

var host = hostName()

// hostName returns the name of this machine, "" if it has none.
func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// metricsView returns what the metrics say of middlewares.
func metricsView() *metrics.View {
	v := &metrics.View{}
	seen := map[*limiter.Control]bool{}
	for _, m := range middlewaresInForce() {
		if m.control == nil || seen[m.control] {
			continue
		}
		seen[m.control] = true
		scope, obeyed, age, _ := limiter.ControlRead(m.control)
		state, _ := limiter.InForce(m.control)
		each := metrics.Control{Scope: scope, Version: obeyed, Age: age, Enabled: true}
		if state != nil {
			each.Enabled = !state.Off
			each.DryRun = state.DryRun == "true"
		}
		v.Controls = append(v.Controls, each)
	}
	return v
}

// statusView returns what the status says of middlewares.
func statusView() *status.View {
	v := &status.View{Gateway: limiter.GatewayID(), Host: host, Started: started}
	gateways := map[string]int64{}
	for _, t := range limiter.Reports().Tables {
		if t.Gateways > gateways[t.Scope] {
			gateways[t.Scope] = t.Gateways
		}
	}
	at := map[string]int{} // places in v.Scopes
	for _, m := range middlewaresInForce() {
		s := m.setting
		i, known := at[s.scope]
		if !known {
			i = len(v.Scopes)
			at[s.scope] = i
			v.Scopes = append(v.Scopes, status.Scope{Name: s.scope})
		}
		each := &v.Scopes[i]
		each.Share = shareOf(s, gateways[s.scope])
		state := &control.State{}
		if m.control != nil {
			each.Control, state = controlStatus(m.control)
		}
		for _, p := range s.policies {
			for _, l := range limitsInForce(s, p, state) {
				shown := status.Limit{
					Middleware: m.name, Rule: p.name, Count: l.name, Algorithm: algorithmName(p), Limit: l.limit, Window: l.window, Burst: l.burst,
					DryRun: dryRunInForce(p, state),
				}
				if s.common.Store != nil {
					shown.OnStoreFailure = p.onStoreFailure
				}
				each.Limits = append(each.Limits, shown)
			}
		}
	}
	return v
}

// controlStatus returns what the status says of a control, and what is in force by it.
func controlStatus(c *limiter.Control) (*status.Control, *control.State) {
	_, obeyed, age, never := limiter.ControlRead(c)
	state, _ := limiter.InForce(c)
	if state == nil {
		state = &control.State{}
	}
	shown := &status.Control{Version: obeyed, Age: age.Seconds(), Enabled: !state.Off, DryRun: state.DryRun == "true"}
	if never {
		shown.Age = -1
	}
	for _, client := range state.Clients {
		if client.AllowUntil > 0 {
			shown.Allows++
		}
		if client.BlockUntil > 0 {
			shown.Blocks++
		}
	}
	return shown, state
}

// shareOf returns what a gateway lets pass alone of what is left to a client.
func shareOf(s *setting, learnt int64) string {
	if s.common.Store == nil {
		return ""
	}
	if s.common.FallbackLimit > 0 {
		return strconv.FormatInt(s.common.FallbackLimit, 10)
	}
	gateways := s.common.FallbackGateways
	if gateways == 0 {
		gateways = learnt
	}
	if gateways < 1 {
		gateways = 1
	}
	return "1/" + strconv.FormatInt(gateways, 10)
}

// started is when the plugin was loaded.
var started = time.Now()
