package logs_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// All that is shown on the page as a line is one that was written, but for times, places
// and the like.
func TestLinesAreThoseOfThePage(t *testing.T) {
	real := map[string]bool{}
	for _, format := range []string{"common", "json"} {
		for _, line := range texts(t, format) {
			real[alike(line)] = true
		}
		for _, line := range asJSON(t, format) {
			real[alike(line)] = true
		}
		for _, line := range access(t, format) {
			real[alike(line)] = true
		}
	}
	shown := 0
	for _, language := range []string{"", "json"} {
		for _, block := range blocks(t, language) {
			for _, line := range strings.Split(strings.TrimSuffix(block, "\n"), "\n") {
				shown++
				if !real[alike(line)] {
					t.Errorf("no line is like this one of the page: %s", alike(line))
				}
			}
		}
	}
	if shown < 15 {
		t.Errorf("the page shows %d lines", shown)
	}
	if t.Failed() {
		for line := range real {
			t.Log(line)
		}
	}
}

// texts returns the plugin's lines where they are text, and Traefik's log has a format.
func texts(t *testing.T, format string) []string {
	t.Helper()
	s := newSite(t, lab.TraefikOptions{Args: []string{"--log.format=" + format}}, provoking(lab.Map{"log": lab.Map{"refusals": "1/1"}}))
	s.provoke()
	s.logged("switched on again")
	lines := own(s.tr.Log())
	const head, tail = `[0-9TZ:-]+ ERR [0-9/]+ [0-9:]+ `, ` module=github\.com/gatequota/gatequota plugin=plugin-gatequota runtime=`
	noted, wrong := regexp.MustCompile(`^gatequota: (middleware|refused)`), regexp.MustCompile(`^`+head+`gatequota: (store|scope) .*`+tail+`$`)
	if format == "json" {
		wrong = regexp.MustCompile(`^\{.*"level":"error","message":"[0-9/]+ [0-9:]+ gatequota: (store|scope) .*"\}$`)
	}
	for _, line := range lines {
		if noted.MatchString(line) == wrong.MatchString(line) {
			t.Errorf("neither a note nor an error in Traefik's log of the format %s: %s", format, line)
		}
	}
	return lines
}

// fields are those that each event has beside time, event and message.
var fields = map[string]string{
	"settings":      "middleware",
	"store-away":    "reason store",
	"store-back":    "requests seconds store",
	"store-trouble": "store trouble",
	"dry-run":       "middleware refused requests rule",
	"refusal":       "client rule scope way",
	"control":       "scope",
}

// asJSON returns the plugin's lines where they are objects. Nothing else arrives on the
// standard error, and Traefik's own files have none of them.
func asJSON(t *testing.T, format string) []string {
	t.Helper()
	begun := time.Now().Add(-time.Second)
	dir := t.TempDir()
	o := lab.TraefikOptions{LogLevel: "FATAL", Args: []string{
		"--log.format=" + format, "--log.filepath=" + filepath.Join(dir, "log"),
		"--accesslog.format=" + format, "--accesslog.filepath=" + filepath.Join(dir, "access"),
	}}
	s := newSite(t, o, provoking(lab.Map{"log": lab.Map{"format": "json", "refusals": "1/1"}}))
	s.provoke()
	s.logged("switched on again")
	lines := strings.Split(strings.TrimSuffix(s.tr.Log(), "\n"), "\n")
	events := objects(t, lines)
	for event, all := range events {
		want, known := fields[event]
		if !known {
			t.Errorf("the event %q: %v", event, all)
			continue
		}
		for _, object := range all {
			at, err := time.Parse("2006-01-02T15:04:05.000Z", object["time"].(string))
			if err != nil || at.Before(begun) || at.After(time.Now()) {
				t.Errorf("%s: the time is %v: %v", event, object["time"], err)
			}
			if text, _ := object["message"].(string); !strings.HasPrefix(text, "gatequota: ") {
				t.Errorf("%s: the message is %v", event, object["message"])
			}
			for _, name := range strings.Fields(want) {
				_, is := object[name]
				if !is {
					t.Errorf("%s: %s is missing in %v", event, name, object)
				}
			}
			if len(object) != len(strings.Fields(want))+3 {
				t.Errorf("%s: %v, want %s", event, object, want)
			}
		}
	}
	for event := range fields {
		if len(events[event]) == 0 {
			t.Errorf("nothing was logged of %s", event)
		}
	}
	digest := sha256.Sum256([]byte("alice"))
	short := hex.EncodeToString(digest[:])[:12]
	for _, refusal := range events["refusal"] {
		if refusal["client"] != short || refusal["way"] != "memory" || refusal["scope"] != scope || refusal["rule"] != "" {
			t.Errorf("a refusal of %s: %v", short, refusal)
		}
	}
	for _, name := range []string{"log", "access"} {
		if text := read(t, filepath.Join(dir, name)); len(own(text)) > 0 {
			t.Errorf("Traefik's own files have lines of the plugin: %s", own(text))
		}
	}
	return lines
}

// A line of text that is an error is one in Traefik's log, and goes where that goes.
func TestErrorsObeyTheLevelOfTraefik(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "log")
	s := newSite(t, lab.TraefikOptions{Args: []string{"--log.filepath=" + file}}, lab.Map{"log": "text"})
	s.outage(0)
	lab.Until(t, "both changes are in the file", func() bool {
		text := read(t, file)
		return strings.Contains(text, ": away (") && strings.Contains(text, ": answers again ")
	})
	for _, line := range own(read(t, file)) {
		if !strings.Contains(line, "ERR") {
			t.Errorf("not an error: %s", line)
		}
	}
	silent := newSite(t, lab.TraefikOptions{LogLevel: "FATAL"}, nil)
	silent.outage(0)
	for _, line := range own(silent.tr.Log()) {
		if !strings.HasPrefix(line, "gatequota: middleware "+scope+": limit ") {
			t.Errorf("not for the level FATAL: %s", line)
		}
	}
}

// Under load, and with Traefik's own lines in the same pipe, each line arrives whole.
func TestLinesArriveWhole(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.TraefikOptions{Args: []string{"--log.format=json", "--accesslog.format=json"}}, lab.Map{"log": lab.Map{"format": "json", "refusals": "1/1"}})
	s.client.Burst(8, lab.Alternate(2000, "alice", s.tr.URL))
	lab.Until(t, "all refusals are logged", func() bool { return strings.Count(s.tr.Log(), `"event":"refusal"`) == 1997 })
	accessed := 0
	for _, line := range strings.Split(strings.TrimSuffix(s.tr.Log(), "\n"), "\n") {
		events := objects(t, []string{line})
		if len(events[""]) > 0 && strings.Contains(line, `"RequestPath":"/"`) {
			accessed++
		}
	}
	lab.Until(t, "all requests are in the access log", func() bool { return strings.Count(s.tr.Log(), `"RequestPath":"/"`) == 2000 })
	if accessed == 0 {
		t.Error("the access log was somewhere else")
	}
}

// One middleware that says json is enough, and a reload in which none does leads back.
func TestTheFormIsThatOfTheConfigurationInForce(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.TraefikOptions{}, nil)
	mode := func(log any, limit string) lab.Map {
		options := lab.Map{"limit": limit, "window": "1h", "mode": "local"}
		if log != nil {
			options["log"] = log
		}
		return lab.Quota(options)
	}
	for i, tt := range []struct {
		logs [2]any
		json bool
	}{
		{[2]any{"json", nil}, true},
		{[2]any{nil, lab.Map{"format": "json"}}, true},
		{[2]any{nil, nil}, false},
		{[2]any{"text", "json"}, true},
		{[2]any{"text", nil}, false},
	} {
		witness := lab.Quota(lab.Map{"limit": "1", "window": "1h", "mode": "local", "scope": fmt.Sprint("case", i), "log": lab.Map{"refusals": "1/1"}})
		s.routes.Middlewares = map[string]lab.Map{"quota": mode(tt.logs[0], "700"), "other": mode(tt.logs[1], "800"), "witness": witness}
		s.routes.Routers["app"] = lab.Route{Rule: everything, Middlewares: []string{"quota", "other", "witness"}, Service: "app"}
		s.tr.Reload(s.routes.YAML(t))
		mark := s.tr.LogSize()
		s.get("/", "alice", 2)
		lab.Until(t, "a refusal is logged", func() bool { return len(s.tr.LogSince(mark, "gatequota: refused: ")) > 0 })
		if lines := s.tr.LogSince(mark, "gatequota: refused: "); strings.HasPrefix(lines[0], "{") != tt.json {
			t.Errorf("with %v: %q", tt.logs, lines)
		}
	}
}
