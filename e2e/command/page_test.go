package command_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// update writes what the examples of the page print into the page.
var update = flag.Bool("update", false, "write the outputs of the examples into docs/command.md")

// passing is what differs from run to run, and what stands for it in a comparison.
var passing = []struct {
	pattern *regexp.Regexp
	text    string
}{
	{regexp.MustCompile(`(\d{4}-\d\d-\d\d )?\b\d\d:\d\d:\d\d`), "<time>"},
	{regexp.MustCompile(`after \d+\.\ds`), "after <n>s"},
	{regexp.MustCompile(`in \d+[dhms]( \d+[dhms])?`), "in <span>"},
	{regexp.MustCompile(`\d+[hms](\d+[ms])?  #`), "<span>  #"},
	{regexp.MustCompile(`\d+s ago`), "<n>s ago"},
	{regexp.MustCompile(`Valkey \S+, answers in \S+ ms; memory \S+ \S+,`), "Valkey <version>, answers in <n> ms; memory <n>,"},
	{regexp.MustCompile(`\d+ clients?\n`), "<n> clients\n"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "<store>"},
	{regexp.MustCompile(`valkey:6379`), "<store>"},
	{regexp.MustCompile(`\b1\d{12}-\d+`), "<id>"},
	{regexp.MustCompile(`\b1\d{12}\b`), "<ms>"},
	{regexp.MustCompile(`\b1\d{9}\b`), "<s>"},
	{regexp.MustCompile(`"(waited|latency|clockOffset|memory|clients|reset|wait|ttl|id|announced|reported)":-?[0-9.e-]+`), `"$1":<n>`},
	{regexp.MustCompile(`\b[0-9a-f]{16}\b`), "<gateway>"},
	{regexp.MustCompile(`\}:\d+`), "}:<window>"},
	{regexp.MustCompile(`"version":"\d[^"]*"`), `"version":"<version>"`},
	{regexp.MustCompile(` {2,}`), "  "},
}

func steady(text string) string {
	for _, p := range passing {
		text = p.pattern.ReplaceAllString(text, p.text)
	}
	return strings.TrimSpace(text)
}

// TestPage runs the examples of docs/command.md in their order and compares what they print.
func TestPage(t *testing.T) {
	lab.AwaitRoom(24*time.Hour, 3*time.Minute)
	s := newSiteOf(t, lab.Map{"limit": 100, "window": "1d", "rules": []lab.Map{
		{"name": "login", "path": "/login", "algorithm": "sliding-window", "limit": 5, "window": "15m"},
	}})
	now := s.store.Client().Time(t.Context()).Val().Unix()
	for key, n := range map[string]int{"s3cret-key-of-ann": 103, "key-of-bob": 87, "key-of-cleo": 41, "key-of-dan": 3} {
		s.store.Client().Set(t.Context(), fmt.Sprintf("rate:api:{%s}:%d", hashOf(key), now/86400), n, 24*time.Hour)
	}
	name := filepath.Join(lab.Root(), "docs", "command.md")
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var written strings.Builder
	examples, inside := 0, false
	lines := strings.SplitAfter(string(page), "\n")
	for i := 0; i < len(lines); i++ {
		written.WriteString(lines[i])
		switch {
		case strings.HasPrefix(lines[i], "```"):
			inside = strings.TrimSpace(lines[i]) == "```console"
			continue
		case !inside || !strings.HasPrefix(lines[i], "$ "):
			continue
		}
		want := ""
		for ; i+1 < len(lines) && !strings.HasPrefix(lines[i+1], "$ ") && !strings.HasPrefix(lines[i+1], "```"); i++ {
			want += lines[i+1]
		}
		command := strings.TrimPrefix(lines[i-strings.Count(want, "\n")], "$ ")
		got := s.desk.shell(command)
		if steady(got) != steady(want) && !*update {
			t.Errorf("%sprints\n%s\nwant\n%s", command, got, want)
		}
		written.WriteString(got)
		examples++
	}
	if examples < 15 {
		t.Errorf("the page has %d examples", examples)
	}
	if *update {
		if err := os.WriteFile(name, []byte(written.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// shell runs a line of a shell, where the command is on the PATH, and returns all that it
// prints, in which the store has the name that the page gives it.
func (d *desk) shell(line string) string {
	d.t.Helper()
	cmd := exec.Command("sh", "-c", line)
	cmd.Env = append([]string{"PATH=" + filepath.Dir(d.binary) + ":" + os.Getenv("PATH"), "API_KEY=s3cret-key-of-ann", "TZ=UTC"}, d.env...)
	out, _ := cmd.CombinedOutput()
	return regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(strings.ReplaceAll(string(out), "ann@"+hostname(), "ann@desk"), "valkey:6379")
}

func hostname() string {
	name, _ := os.Hostname()
	return name
}

// TestPageNamesAll wants each command, flag and exit status on the page.
func TestPageNamesAll(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(lab.Root(), "docs", "command.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	d := &desk{t: t, binary: newDesk(t, lab.Valkey(t, lab.StoreOptions{}), "").binary}
	_, help, _ := d.run("--help")
	commands := regexp.MustCompile(`(?m)^  ([a-z-]+) +[A-Z]`).FindAllStringSubmatch(help, -1)
	if len(commands) < 14 {
		t.Fatalf("the help has %d commands:\n%s", len(commands), help)
	}
	flag := regexp.MustCompile(`--([a-z-]+)`)
	for _, command := range commands {
		if !strings.Contains(page, "`"+command[1]) && !strings.Contains(page, "gatequota "+command[1]) {
			t.Errorf("the page does not name the command %s", command[1])
		}
		_, help, _ := d.run(command[1], "--help")
		if command[1] == "completion" {
			continue
		}
		for _, found := range flag.FindAllStringSubmatch(help, -1) {
			if found[1] != "help" && !strings.Contains(page, "--"+found[1]) {
				t.Errorf("the page does not name --%s of %s", found[1], command[1])
			}
		}
	}
	for _, field := range []string{"ENDPOINT", "USERNAME", "PASSWORD", "PASSWORD_FILE", "DB", "TLS", "TLS_CA", "TLS_CERT", "TLS_KEY", "SERVER_NAME", "TIMEOUT", "PREFIX", "SCOPE", "KEY_SECRET_FILE", "BY"} {
		if !strings.Contains(page, "GATEQUOTA_"+field) {
			t.Errorf("the page does not name GATEQUOTA_%s", field)
		}
	}
}
