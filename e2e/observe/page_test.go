package observe_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/lab"
)

// page is docs/metrics.md: its fenced texts and its tables, by what a comment before each
// says that it is.
type page struct {
	blocks map[string]string
	tables map[string][][]string // rows of cells, without their heads
}

var comment = regexp.MustCompile(`^<!-- ([a-z]+: [a-z-]+) -->$`)

func readPage(t *testing.T) page {
	t.Helper()
	p := page{blocks: map[string]string{}, tables: map[string][][]string{}}
	lines := strings.Split(readFile(t, "docs", "metrics.md"), "\n")
	for i, line := range lines {
		if line == "```yaml" && !comment.MatchString(lines[i-1]) {
			t.Errorf("line %d: nothing says what this configuration is", i+1)
		}
		found := comment.FindStringSubmatch(line)
		switch {
		case found == nil:
		case lines[i+1] == "```yaml":
			text, _, _ := strings.Cut(strings.Join(lines[i+2:], "\n"), "```")
			p.blocks[found[1]] = text
		default:
			for _, line := range lines[i+3:] {
				if !strings.HasPrefix(line, "|") {
					break
				}
				var cells []string
				for _, cell := range strings.Split(strings.Trim(line, "|"), "|") {
					cells = append(cells, strings.TrimSpace(cell))
				}
				p.tables[found[1]] = append(p.tables[found[1]], cells)
			}
		}
	}
	return p
}

// settings returns a static configuration as options of the command line, but for those
// that the lab sets itself.
func settings(tree lab.Map, prefix string) []string {
	var args []string
	for name, value := range tree {
		path := prefix + "." + strings.ToLower(name)
		if inner, is := value.(lab.Map); is {
			args = append(args, settings(inner, path)...)
		} else if path != ".entrypoints.web.address" {
			args = append(args, fmt.Sprintf("--%s=%v", path[1:], value))
		}
	}
	return args
}

// from returns a client that sends from an address of this machine.
func from(t *testing.T, address string) *http.Client {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, to string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, to)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 30 * time.Second}
}

// ask sends a request with a header, if its value is not empty, and returns what it gets:
// "metrics", or the status.
func ask(t *testing.T, client *http.Client, method, url, header, value string) string {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if value != "" {
		req.Header.Set(header, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	isMetrics := resp.Header.Get("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
	if isMetrics && method != http.MethodHead && !strings.HasPrefix(string(body), "# HELP gatequota_") {
		t.Errorf("metrics are %.200q", body)
	}
	if strings.Contains(string(body), "gatequota_") != (isMetrics && method != http.MethodHead) {
		t.Errorf("%s %s: %v, %.200q", method, url, resp.Header, body)
	}
	if isMetrics {
		return "metrics"
	}
	return strconv.Itoa(resp.StatusCode)
}

// What the page says to write gives metrics to those that it says, and to nobody else.
func TestThePagesConfigurations(t *testing.T) {
	const (
		allowed = "127.0.9.1" // stands for Prometheus
		other   = "127.0.8.1"
		token   = "a-token-of-the-operators"
	)
	p := readPage(t)
	app, store := lab.NewApp(t, 1), lab.Valkey(t, lab.StoreOptions{})
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	internal := "127.0.0.1:" + strconv.Itoa(lab.FreePort(t))
	replace := strings.NewReplacer(":8090", internal, "10.0.9.0/24", "127.0.9.0/24", "172.16.0.0/12", "127.0.9.0/24",
		"/run/secrets/metrics-token", tokenFile, "valkey:6379", store.Addr())
	decode := func(name string) lab.Map {
		tree := lab.Map{}
		if err := yaml.Unmarshal([]byte(replace.Replace(p.blocks[name])), &tree); err != nil || len(tree) == 0 {
			t.Fatalf("%s: %v, %v", name, tree, err)
		}
		return tree
	}
	args := settings(decode("static: entry-points"), "")
	slices.Sort(args)
	if len(args) != 2 {
		t.Fatalf("the static configuration is %q", args)
	}

	t.Run("YAML", func(t *testing.T) {
		tree := decode("dynamic: watch")["http"].(lab.Map)
		beside := decode("dynamic: beside")["http"].(lab.Map)["middlewares"].(lab.Map)
		maps.Copy(tree["middlewares"].(lab.Map), beside)
		tree["routers"].(lab.Map)["app"] = lab.Map{"rule": "PathPrefix(`/`)", "middlewares": []string{"quota"}, "service": "app"}
		tree["services"] = lab.Map{"app": lab.Map{"loadBalancer": lab.Map{"servers": []lab.Map{{"url": app.URLs[0]}}}}}
		text, err := yaml.Marshal(lab.Map{"http": tree})
		if err != nil {
			t.Fatal(err)
		}
		tr := lab.NewTraefik(t, lab.TraefikOptions{Args: args}, string(text))
		inner, outer := "http://"+internal+metricsPath, tr.URL+metricsPath
		inside, outside := from(t, allowed), from(t, other)
		const field, right = "Authorization", "Bearer " + token
		for i, c := range []struct {
			client                           *http.Client
			method, url, header, value, want string
		}{
			{inside, "GET", inner, field, right, "metrics"},
			{inside, "HEAD", inner, field, right, "metrics"},
			{inside, "POST", inner, field, right, "418"},
			{inside, "GET", inner, "", "", "418"},
			{inside, "GET", inner, field, right + "x", "418"},
			{inside, "GET", inner, field, right[:len(right)-1], "418"},
			{inside, "GET", inner, field, token, "418"},
			{inside, "GET", inner + "?token=" + token, "", "", "418"},
			{inside, "GET", inner + "?x=1", field, right, "metrics"},
			{inside, "GET", inner + "/", field, right, "404"},
			{inside, "GET", "http://" + internal + "/", field, right, "404"},
			{outside, "GET", inner, field, right, "418"},
			// Beside the application, from where loopback is allowed: everywhere here.
			{outside, "GET", outer, field, right, "metrics"},
			{outside, "GET", outer, field, right + "x", "200"},
			{outside, "GET", outer, "", "", "200"},
			{outside, "PUT", outer, field, right, "200"},
			{outside, "GET", tr.URL + "/other", field, right, "200"},
			{outside, "GET", outer + "/", field, right, "200"},
		} {
			if got := ask(t, c.client, c.method, c.url, c.header, c.value); got != c.want {
				t.Errorf("%d: %s %s with %q: %s, want %s", i, c.method, c.url, c.value, got, c.want)
			}
		}
		// Guessing is limited, and being answered is not.
		lab.AwaitRoom(time.Minute, 10*time.Second)
		guesses := ""
		for range 12 {
			guesses += ask(t, inside, "GET", inner, field, "Bearer guess") + " "
		}
		if !strings.HasSuffix(guesses, "429 429 ") {
			t.Errorf("a dozen guesses of the token: %s", guesses)
		}
		for range 12 {
			if got := ask(t, inside, "GET", inner, field, right); got != "metrics" {
				t.Errorf("after others' guesses: %s", got)
			}
		}
		for _, line := range tr.LogLines("a-token-of") {
			t.Errorf("the log has the token: %s", line)
		}
		if hits := app.Hits(); hits != 5 {
			t.Errorf("%d requests reached the application, want 5", hits)
		}
	})

	t.Run("labels", func(t *testing.T) {
		labels := map[string]string{}
		for name, value := range decode("labels: watch")["labels"].(lab.Map) {
			labels[name] = value.(string)
		}
		tr := lab.NewTraefik(t, lab.TraefikOptions{Args: args, Docker: lab.Labels(t, app.URLs[0], labels)}, "http: {services: {none: {loadBalancer: {servers: [{url: \"http://127.0.0.1:1\"}]}}}}")
		if wrong := tr.RouterError("watch@docker"); wrong != "" {
			t.Fatal(wrong)
		}
		for address, want := range map[string]string{allowed: "metrics", other: "418"} {
			if got := ask(t, from(t, address), "GET", "http://"+internal+metricsPath, "", ""); got != want {
				t.Errorf("from %s: %s, want %s", address, got, want)
			}
		}
	})
}

var code = regexp.MustCompile("`([^`]+)`")

// playPage asks all queries of the page, and compares what it says of metrics and alerts
// with what there is.
func (p *prometheus) playPage(s *site) {
	t := p.t
	t.Helper()
	pg := readPage(t)
	f, _ := s.scrape(0)
	var named []string
	for _, row := range pg.tables["table: families"] {
		name, query := code.FindStringSubmatch(row[0]), code.FindAllStringSubmatch(row[4], -1)
		if len(name) != 2 || len(query) != 1 {
			t.Errorf("the row %q", row)
			continue
		}
		named = append(named, name[1])
		family := f[name[1]]
		if kind := strings.ToLower(family.GetType().String()); kind != row[2] {
			t.Errorf("%s is a %s, and not a %s", name[1], kind, row[2])
		}
		for _, m := range family.GetMetric() {
			var labels []string
			for _, pair := range m.GetLabel() {
				labels = append(labels, pair.GetName())
			}
			if got := strings.Join(labels, ", "); got != row[1] {
				t.Errorf("%s has the labels %s, and not %s", name[1], got, row[1])
				break
			}
		}
		if result, err := p.query(query[0][1]); err != nil || len(result) == 0 {
			t.Errorf("%s: %v, %v", query[0][1], result, err)
		}
		if !strings.Contains(query[0][1], name[1]) {
			t.Errorf("%s does not ask for %s", query[0][1], name[1])
		}
	}
	for name := range f {
		if !slices.Contains(named, name) {
			t.Errorf("the page has no row for %s", name)
		}
	}
	if len(named) != len(f) {
		t.Errorf("%d rows for %d metrics", len(named), len(f))
	}

	outcomes := map[string]bool{}
	for _, row := range pg.tables["table: outcomes"] {
		outcomes[row[0]+"/"+row[1]] = true
	}
	there := map[string]bool{}
	for _, m := range f["gatequota_decisions_total"].GetMetric() {
		values := map[string]string{}
		for _, pair := range m.GetLabel() {
			values[pair.GetName()] = pair.GetValue()
		}
		there[values["outcome"]+"/"+values["way"]] = true
	}
	if !maps.Equal(outcomes, there) {
		t.Errorf("the page has the outcomes and ways %v, the gateway %v", outcomes, there)
	}

	var rows []string
	for _, row := range pg.tables["table: alerts"] {
		after := row[2]
		if after == "at once" {
			after = ""
		}
		rows = append(rows, strings.Trim(row[0], "`")+" "+row[1]+" "+after)
	}
	var alerts []string
	for _, a := range readAlerts(t) {
		alerts = append(alerts, a.Alert+" "+a.Labels["severity"]+" "+a.For)
	}
	if !slices.Equal(rows, alerts) {
		t.Errorf("the page has the alerts %q, there are %q", rows, alerts)
	}
}
