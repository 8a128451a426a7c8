// Package logs_test tries on real Traefik what the plugin logs, where it arrives, and what
// Traefik's access log can say of each decision. It holds docs/logs.md to that.
package logs_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/lab"
)

const (
	password = "hunter2-55c0"
	scope    = "quota@file"
	// everything is the rule for all requests but those by which the lab looks whether a
	// configuration is in force.
	everything = "PathPrefix(`/`) && !PathPrefix(`/lab-`)"
)

// site is one gateway with the middleware quota before one application.
type site struct {
	t      *testing.T
	store  *lab.Store
	tr     *lab.Traefik
	client *lab.Client
	routes lab.Routes
}

// newSite starts a gateway whose middleware has these options beside a limit of 3 by the
// header X-API-Key, and its shared store. Its user there may do all but call TIME.
func newSite(t *testing.T, o lab.TraefikOptions, options lab.Map) *site {
	t.Helper()
	s := &site{t: t, store: lab.Valkey(t, lab.StoreOptions{}), client: lab.NewClient(t)}
	s.admit()
	window, _ := lab.QuietWindow(time.Now())
	all := lab.Map{
		"limit": "3", "window": window.String(), "sourceCriterion": lab.Map{"requestHeaderName": "X-API-Key"},
		"valkey": lab.Map{"endpoints": []string{s.store.Addr()}, "username": "gateway", "passwordFile": lab.PasswordFile(t, password)},
	}
	for name, value := range options {
		all[name] = value
	}
	app := lab.NewApp(t, 1)
	s.routes = lab.Routes{
		Routers:     map[string]lab.Route{"app": {Rule: everything, Middlewares: []string{"quota"}, Service: "app"}},
		Middlewares: map[string]lab.Map{"quota": lab.Quota(all)},
		Services:    map[string]string{"app": app.URLs[0]},
	}
	s.tr = lab.NewTraefik(t, o, s.routes.YAML(t))
	return s
}

// admit makes the gateway's user, whom the store has forgotten when it starts.
func (s *site) admit() {
	s.store.Do("ACL", "SETUSER", "gateway", "on", ">"+password, "~*", "&*", "+@all", "-time")
}

// get sends requests for a path with a key, and returns their statuses.
func (s *site) get(path, key string, n int) string {
	s.t.Helper()
	return s.client.Sequence(lab.Alternate(n, key, s.tr.URL+path)).Tally()
}

// outage stops the store until the gateway counts alone, for so long besides, and returns
// when it counts with the store again.
func (s *site) outage(longer time.Duration) {
	s.t.Helper()
	way := func(want string, times int) func() bool {
		return func() bool {
			key := fmt.Sprintf("newcomer-%d", time.Now().UnixNano())
			if s.client.Get(lab.Keyed(s.tr.URL+"/orders", key)).Header.Get("X-RateLimit-Decision") == want {
				times--
			}
			return times == 0
		}
	}
	s.store.Stop()
	// The first three fail while the store still counts as one that answers.
	lab.Until(s.t, "the gateway counts alone", way("local", 5))
	time.Sleep(longer)
	s.store.Start()
	s.admit()
	lab.Until(s.t, "the gateway counts with the store", way("shared", 1))
}

// logged waits for a line that contains a text.
func (s *site) logged(text string) {
	s.t.Helper()
	lab.Until(s.t, "the log has "+text, func() bool { return strings.Contains(s.tr.Log(), text) })
}

// provoke makes the gateway log a line of each kind.
func (s *site) provoke() {
	s.t.Helper()
	if got := s.get("/orders", "alice", 5); got != "200: 3, 429: 2" {
		s.t.Errorf("five requests under a limit of 3: %s", got)
	}
	if got := s.get("/trial", "alice", 3); got != "200: 3" {
		s.t.Errorf("three requests in a dry run: %s", got)
	}
	s.outage(time.Second)
	s.control("enabled", "false", "switched off, everything passes")
	s.control("enabled", "maybe", "is ignored")
	s.control("enabled", "true", "")
}

// control sets a field of the scope's control, and waits for a line about it.
func (s *site) control(field, value, text string) {
	s.t.Helper()
	s.store.Do("HSET", "rate:"+scope+":control", field, value)
	s.store.Do("HINCRBY", "rate:"+scope+":control", "version", 1)
	if text != "" {
		s.logged(text)
	}
}

// provoking are the options for provoke.
func provoking(more lab.Map) lab.Map {
	options := lab.Map{"control": "true", "rules": []any{lab.Map{"name": "trial", "path": "/trial", "limit": "1", "dryRun": "true"}}}
	for name, value := range more {
		options[name] = value
	}
	return options
}

// own returns the lines of a log that are the plugin's.
func own(log string) []string {
	var lines []string
	for _, line := range strings.Split(log, "\n") {
		if strings.Contains(line, "gatequota: ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// objects reads lines, each of which must be a JSON object, and returns those of each event.
func objects(t *testing.T, lines []string) map[string][]map[string]any {
	t.Helper()
	events := map[string][]map[string]any{}
	for _, line := range lines {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			t.Fatalf("%q is no object: %v", line, err)
		}
		event, _ := object["event"].(string)
		events[event] = append(events[event], object)
	}
	return events
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// page returns docs/logs.md.
func page(t *testing.T) string {
	t.Helper()
	return read(t, filepath.Join(lab.Root(), "docs", "logs.md"))
}

var fence = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// blocks returns the blocks of the page in a language.
func blocks(t *testing.T, language string) []string {
	t.Helper()
	var found []string
	for _, block := range fence.FindAllStringSubmatch(page(t), -1) {
		if block[1] == language {
			found = append(found, block[2])
		}
	}
	if len(found) == 0 {
		t.Fatalf("the page has no block of the language %q", language)
	}
	return found
}

// arguments returns static options in YAML as they are written on the command line.
func arguments(t *testing.T, text string) []string {
	t.Helper()
	var tree map[string]any
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		t.Fatal(err)
	}
	var args []string
	var walk func(path string, value any)
	walk = func(path string, value any) {
		inner, group := value.(map[string]any)
		if !group {
			args = append(args, fmt.Sprintf("--%s=%v", path, value))
		}
		for name, each := range inner {
			walk(strings.TrimPrefix(path+"."+name, "."), each)
		}
	}
	walk("", tree)
	return args
}

// different are what is another in each run, and what stands for it when lines are compared.
var different = []struct {
	pattern *regexp.Regexp
	stands  string
}{
	{regexp.MustCompile(`127\.0\.0\.1:[0-9]+|valkey:6379`), "ADDRESS"},
	{regexp.MustCompile(`"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(\.[0-9]{3})Z"`), `"TIME$1"`},
	{regexp.MustCompile(`"Start(Local|UTC)":"[^"]*"`), `"Start$1":"TIME"`},
	{regexp.MustCompile(`[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z`), "TIME"},
	{regexp.MustCompile(`[0-9]{4}/[0-9]{2}/[0-9]{2} [0-9:]{8}`), "TIME"},
	{regexp.MustCompile(`\[[0-9]{2}/[A-Z][a-z]{2}/[0-9]{4}:[0-9:]{8} [+-][0-9]{4}\]`), "[TIME]"},
	{regexp.MustCompile(`TIME\.[0-9]{3}`), "TIME.MS"},
	{regexp.MustCompile(`limit ([0-9]+) in [0-9hms]+`), "limit $1 in WINDOW"},
	{regexp.MustCompile(`;w=[0-9]+`), ";w=WINDOW"},
	{regexp.MustCompile(`;t=[0-9]+|"downstream_Retry-After":"[0-9]+"`), "RESET"},
	{regexp.MustCompile(`after [0-9.]+m?s; [0-9]+ further`), "after TOOK; N further"},
	{regexp.MustCompile(`"seconds":[0-9]+\.[0-9]{3},"requests":[0-9]+`), `"seconds":TOOK,"requests":N`},
	{regexp.MustCompile(`"(Duration|OriginDuration|Overhead|RequestCount)":[0-9]+`), `"$1":N`},
	{regexp.MustCompile(`"(ClientPort|RequestPort)":"[0-9]+"`), `"$1":"N"`},
	{regexp.MustCompile(` [0-9]+ ("app@file" "-") [0-9]+ms`), " N $1 Nms"},
}

// alike returns a line with what is another in each run replaced.
func alike(line string) string {
	for _, d := range different {
		line = d.pattern.ReplaceAllString(line, d.stands)
	}
	return line
}
