package real_test

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/lab"
)

// options are a middleware's options as a user writes them.
type options map[string]any

// with returns a copy with more options set: pairs of a path such as
// "valkey.timeout" or "rules[0].cost" and a value. The value nil removes the option.
func (o options) with(pairs ...any) options {
	c := o.clone()
	for i := 0; i < len(pairs); i += 2 {
		c.set(strings.Split(pairs[i].(string), "."), pairs[i+1])
	}
	return c
}

func (o options) set(path []string, value any) {
	name, index, listed := strings.Cut(path[0], "[")
	switch {
	case listed:
		n, err := strconv.Atoi(strings.TrimSuffix(index, "]"))
		if err != nil {
			panic(fmt.Sprintf("%q is no entry of a list", path[0]))
		}
		list, _ := o[name].([]options)
		for len(list) <= n {
			list = append(list, options{})
		}
		o[name] = list
		list[n].set(path[1:], value)
	case len(path) > 1:
		next, ok := o[name].(options)
		if !ok {
			next = options{}
			o[name] = next
		}
		next.set(path[1:], value)
	case value == nil:
		delete(o, name)
	default:
		o[name] = value
	}
}

func (o options) clone() options {
	c := maps.Clone(o)
	for name, value := range c {
		switch nested := value.(type) {
		case options:
			c[name] = nested.clone()
		case []options:
			list := make([]options, len(nested))
			for i, each := range nested {
				list[i] = each.clone()
			}
			c[name] = list
		}
	}
	return c
}

// labels returns the options as labels of a middleware.
func (o options) labels(middleware string) map[string]string {
	all := map[string]string{}
	var walk func(path string, o options)
	walk = func(path string, o options) {
		for name, value := range o {
			at := path + "." + name
			switch value := value.(type) {
			case options:
				walk(at, value)
			case []options:
				for i, each := range value {
					walk(fmt.Sprintf("%s[%d]", at, i), each)
				}
			case []string:
				all[at] = strings.Join(value, ",")
			case indexed:
				for i, each := range value {
					all[fmt.Sprintf("%s[%d]", at, i)] = each
				}
			default:
				all[at] = fmt.Sprint(value)
			}
		}
	}
	walk("traefik.http.middlewares."+middleware+".plugin."+lab.PluginName, o)
	return all
}

// plain is written into YAML as it stands, without quotes.
type plain string

// MarshalYAML implements yaml.Marshaler.
func (p plain) MarshalYAML() (any, error) {
	return &yaml.Node{Kind: yaml.ScalarNode, Value: string(p)}, nil
}

// shared returns options that count by API key in a store. The store gets far
// more time than it needs, so that a machine that is busy for a moment does not
// turn a count into a fallback: tests of faults set less.
func shared(endpoint string, limit int, window time.Duration) options {
	return options{
		"limit":           limit,
		"window":          window.String(),
		"sourceCriterion": options{"requestHeaderName": "X-API-Key"},
		"valkey":          options{"endpoints": []string{endpoint}, "timeout": "5s", "dialTimeout": "5s"},
	}
}

// local returns options that count by API key in the gateway's memory.
func local(limit int, window time.Duration) options {
	return options{
		"limit":           limit,
		"window":          window.String(),
		"mode":            "local",
		"sourceCriterion": options{"requestHeaderName": "X-API-Key"},
	}
}

// router leads a rule through middlewares to the application.
type router struct {
	rule        string
	middlewares []string
	priority    int
}

// setup is a dynamic configuration for the file provider.
type setup struct {
	app         *lab.App
	middlewares map[string]options
	routers     map[string]router
}

// only returns a setup in which everything passes one middleware, called quota.
func only(app *lab.App, o options) setup {
	return setup{
		app:         app,
		middlewares: map[string]options{"quota": o},
		routers:     map[string]router{"all": {rule: "PathPrefix(`/`)", middlewares: []string{"quota"}}},
	}
}

// pathRule returns the rule of a router for the path "/name" and all paths below it.
func pathRule(name string) string { return "Path(`/" + name + "`) || PathPrefix(`/" + name + "/`)" }

// each returns a setup in which the path "/name" and those below pass the middleware of
// that name.
func each(app *lab.App, middlewares map[string]options) setup {
	s := setup{app: app, middlewares: middlewares, routers: map[string]router{}}
	for name := range middlewares {
		s.routers[name] = router{rule: pathRule(name), middlewares: []string{name}}
	}
	return s
}

// tree returns the configuration as the file provider's formats have it.
func (s setup) tree() map[string]any {
	middlewares := map[string]any{}
	for name, o := range s.middlewares {
		middlewares[name] = map[string]any{"plugin": map[string]any{lab.PluginName: o}}
	}
	routers := map[string]any{}
	for name, r := range s.routers {
		entry := map[string]any{"rule": r.rule, "service": "app"}
		if len(r.middlewares) > 0 {
			entry["middlewares"] = r.middlewares
		}
		if r.priority != 0 {
			entry["priority"] = r.priority
		}
		routers[name] = entry
	}
	var servers []any
	for _, url := range s.app.URLs {
		servers = append(servers, map[string]any{"url": url})
	}
	http := map[string]any{
		"routers":  routers,
		"services": map[string]any{"app": map[string]any{"loadBalancer": map[string]any{"servers": servers}}},
	}
	if len(middlewares) > 0 {
		http["middlewares"] = middlewares
	}
	return map[string]any{"http": http}
}

func (s setup) yaml(t testing.TB) string {
	t.Helper()
	text, err := yaml.Marshal(s.tree())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// gateways starts n gateways with the same configuration and returns their
// entry points.
func gateways(t testing.TB, n int, o lab.TraefikOptions, s setup) (all []*lab.Traefik, urls []string) {
	t.Helper()
	for range n {
		tr := lab.NewTraefik(t, o, s.yaml(t))
		all, urls = append(all, tr), append(urls, tr.URL)
	}
	return all, urls
}

// mustBe fails the test unless all answers have one of the statuses.
func mustBe(t testing.TB, what string, as lab.Answers, statuses ...int) {
	t.Helper()
	if a, wrong := as.Wrong(statuses...); wrong {
		t.Fatalf("%s: an answer has status %d (%v), want one of %v; all: %s\n%s", what, a.Status, a.Err, statuses, as.Tally(), a.Body)
	}
}

// mustDecide fails the test unless all answers were decided one way.
func mustDecide(t testing.TB, what string, as lab.Answers, way string) {
	t.Helper()
	if want := fmt.Sprintf("%s: %d", way, len(as)); as.Decisions() != want {
		t.Fatalf("%s: decisions %q, want %q", what, as.Decisions(), want)
	}
}
