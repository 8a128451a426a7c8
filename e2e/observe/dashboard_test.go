package observe_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	grafana "github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// dashboard is what matters here of examples/grafana/gatequota.json.
type dashboard struct {
	SchemaVersion int
	Panels        []panel
	Templating    struct {
		List []struct{ Name, Type, Definition string }
	}
	Annotations struct {
		List []struct{ Name, Expr string }
	}
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct {
		Defaults struct{ Unit string }
	}
	Datasource source
	Targets    []struct {
		Expr, RefID, LegendFormat string
		Instant, Range            bool
		Datasource                source
	}
}

type source struct{ Type, UID string }

func readDashboard(t *testing.T) (d dashboard, text string) {
	t.Helper()
	text = readFile(t, "examples", "grafana", "gatequota.json")
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	return d, text
}

// The dashboard is what Grafana's own schema says that a dashboard is, with panels and
// queries of its own kinds, without a field that is unknown there.
func TestDashboardIsOfGrafanasSchema(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	d, text := readDashboard(t)
	check := func(text string) error {
		//lint:ignore SA1019 the classic form is the one that all versions of Grafana import
		var all grafana.Dashboard
		if err := all.UnmarshalJSONStrict([]byte(text)); len(err.(cog.BuildErrors)) > 0 {
			return err
		}
		return all.Validate()
	}
	if err := check(text); err != nil {
		t.Error(err)
	}
	if newest := grafana.NewDashboard().SchemaVersion; d.SchemaVersion != int(newest) {
		t.Errorf("the schema is of version %d, the newest is %d", d.SchemaVersion, newest)
	}
	for _, wrong := range []string{`"editorMode"`, `"reduceOptions"`, `"templating"`} {
		if check(strings.Replace(text, wrong, `"wrong"`, 1)) == nil {
			t.Errorf("nobody minds that %s is called otherwise", wrong)
		}
	}
}

func TestPanels(t *testing.T) {
	d, _ := readDashboard(t)
	const width = 24
	ids, titles := map[int]bool{}, map[string]bool{}
	for i, p := range d.Panels {
		if p.ID < 1 || ids[p.ID] || p.Title == "" || titles[p.Title] {
			t.Errorf("panel %d: the id or the title %q is missing, or there twice", p.ID, p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true
		g := p.GridPos
		if g.X < 0 || g.Y < 0 || g.W < 1 || g.H < 1 || g.X+g.W > width {
			t.Errorf("%s: stands at %+v", p.Title, g)
		}
		for _, q := range d.Panels[:i] {
			o := q.GridPos
			if g.X < o.X+o.W && o.X < g.X+g.W && g.Y < o.Y+o.H && o.Y < g.Y+g.H {
				t.Errorf("%s stands over %s", p.Title, q.Title)
			}
			if g.Y < o.Y {
				t.Errorf("%s stands above %s, but behind it in the file", p.Title, q.Title)
			}
		}
		if p.Type == "row" {
			continue
		}
		want := source{"prometheus", "${datasource}"}
		if p.FieldConfig.Defaults.Unit == "" || !strings.HasSuffix(p.Description, ".") || p.Datasource != want || len(p.Targets) == 0 {
			t.Errorf("%s: unit %q, description %q, source %v, %d targets", p.Title, p.FieldConfig.Defaults.Unit, p.Description, p.Datasource, len(p.Targets))
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if target.RefID == "" || refs[target.RefID] || target.Instant == target.Range || target.LegendFormat == "" || target.Datasource != want {
				t.Errorf("%s: the target %+v", p.Title, target)
			}
			refs[target.RefID] = true
		}
	}
	// Nobody can see a hole, but it is a slip.
	for _, p := range d.Panels {
		g, filled := p.GridPos, p.GridPos.Y == 0
		for _, q := range d.Panels {
			filled = filled || q.GridPos.Y+q.GridPos.H == g.Y
		}
		if !filled {
			t.Errorf("nothing ends where %s begins", p.Title)
		}
	}
}

// variables are written in queries as $name or ${name}.
var variable = regexp.MustCompile(`\$\{?([a-z_]+)\}?`)

// inPlace puts values in the place of variables.
func inPlace(t *testing.T, query string, values map[string]string) string {
	t.Helper()
	return variable.ReplaceAllStringFunc(query, func(written string) string {
		value, found := values[strings.Trim(written, "${}")]
		if !found {
			t.Errorf("%s: nothing is known of %s", query, written)
		}
		return value
	})
}

var labelValues = regexp.MustCompile(`^label_values\((.*), ([a-z]+)\)$`)

// every query returns data, where all has happened that there are panels for. What the
// variables offer is what the site has.
func (p *prometheus) playDashboard(offered map[string][]string) {
	t := p.t
	d, _ := readDashboard(t)
	values := map[string]string{"datasource": "prometheus", "job": ".*", "gateway": ".*", "scope": ".*", "rule": ".*", "__rate_interval": "4s", "__range": "10m"}
	for _, v := range d.Templating.List {
		if v.Type == "datasource" {
			continue
		}
		parts := labelValues.FindStringSubmatch(v.Definition)
		if parts == nil || values[v.Name] == "" {
			t.Errorf("the variable %s is %s", v.Name, v.Definition)
			continue
		}
		var got []string
		if err := p.API("label/"+parts[2]+"/values", url.Values{"match[]": {inPlace(t, parts[1], values)}}, &got); err != nil {
			t.Errorf("the variable %s: %v", v.Name, err)
		}
		want := slices.Clone(offered[v.Name])
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("the variable %s offers %q, want %q", v.Name, got, want)
		}
	}
	queries := 0
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			queries++
			ask := p.queryRange
			if target.Instant {
				ask = p.query
			}
			result, err := ask(inPlace(t, target.Expr, values))
			if err != nil {
				t.Errorf("%s: %v", panel.Title, err)
			}
			if wrong := empty(result); wrong != "" {
				t.Errorf("%s: %s: %s", panel.Title, target.Expr, wrong)
			}
			legends := map[string]bool{}
			for _, s := range result {
				legend := legendOf(t, target.LegendFormat, s.Metric)
				if legends[legend] && target.LegendFormat != "__auto" {
					t.Errorf("%s: two lines are called %q", panel.Title, legend)
				}
				legends[legend] = true
			}
			// With one or two values chosen a query is as well formed.
			chosen := map[string]string{"job": "gatequota", "gateway": "(a:1|b\\\\.c:1)", "scope": "(api|reads)", "rule": "search", "__rate_interval": "1m", "__range": "3h"}
			if _, err := p.query(inPlace(t, target.Expr, chosen)); err != nil {
				t.Errorf("%s: %v", panel.Title, err)
			}
		}
	}
	for _, a := range d.Annotations.List {
		if result, err := p.queryRange(inPlace(t, a.Expr, values)); err != nil || len(result) == 0 {
			t.Errorf("the annotation %s: %v, %v", a.Name, result, err)
		}
	}
	if queries < 25 {
		t.Errorf("only %d queries", queries)
	}
}

// empty says why there is nothing to see in a result, "" if there is.
func empty(result []series) string {
	points := 0
	for _, s := range result {
		for _, x := range s.numbers() {
			points++
			if x != 0 && !math.IsNaN(x) && !math.IsInf(x, 0) {
				return ""
			}
		}
	}
	return fmt.Sprintf("%d series with %d values, all nothing", len(result), points)
}

var placeholder = regexp.MustCompile(`\{\{([a-z_]+)\}\}`)

// legendOf returns how a line is called. A label that is empty is not there.
func legendOf(t *testing.T, format string, labels map[string]string) string {
	t.Helper()
	return placeholder.ReplaceAllStringFunc(format, func(written string) string {
		name := strings.Trim(written, "{}")
		if _, found := labels[name]; !found && name != "rule" && name != "count" {
			t.Errorf("%s: the line has no %s: %v", format, name, labels)
		}
		return labels[name]
	})
}
