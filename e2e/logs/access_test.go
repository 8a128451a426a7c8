package logs_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatequota/gatequota/e2e/lab"
)

// access returns lines of Traefik's access log as the page says how to write it: of three
// requests that passed and one that was refused.
func access(t *testing.T, format string) []string {
	t.Helper()
	args := append(arguments(t, blocks(t, "yaml")[0]), "--accesslog.format="+format)
	s := newSite(t, lab.TraefikOptions{Args: args}, nil)
	s.get("/orders", "alice", 4)
	s.get("/orders?token=mallory", "alice", 1)
	var lines []string
	lab.Until(t, "all requests are in the access log", func() bool {
		lines = s.tr.LogLines(`/orders`)
		return len(lines) == 5
	})
	if strings.Contains(strings.Join(lines, "\n"), "mallory") {
		t.Errorf("the query is in the log: %q", lines)
	}
	if format != "json" {
		return lines
	}
	for i, line := range lines {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		passed := i < 3
		_, retry := object["downstream_Retry-After"]
		_, origin := object["origin_X-Ratelimit-Decision"]
		_, service := object["ServiceName"]
		if object["downstream_X-Ratelimit-Decision"] != "shared" || retry == passed || origin != passed || service != passed || (object["OriginStatus"] == 0.0) == passed {
			t.Errorf("request %d: %s", i+1, line)
		}
	}
	return lines
}

// Traefik's access log has each decision by its way, and dry runs.
func TestAccessLogHasEachDecision(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.TraefikOptions{Args: arguments(t, blocks(t, "yaml")[0])}, lab.Map{
		"rules": []any{
			lab.Map{"name": "trial", "path": "/trial", "limit": "1", "dryRun": "true"},
			lab.Map{"name": "closed", "path": "/closed", "limit": "2", "onStoreFailure": "closed"},
			lab.Map{"name": "open", "path": "/open", "limit": "2", "onStoreFailure": "open"},
		},
	})
	decisions := func(path string) string {
		t.Helper()
		s.get(path, "alice", 1)
		var lines []string
		lab.Until(t, "the request is in the access log", func() bool {
			lines = s.tr.LogLines(`"RequestPath":"` + path + `"`)
			return len(lines) > 0
		})
		var object map[string]any
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &object); err != nil {
			t.Fatal(err)
		}
		way, _ := object["downstream_X-Ratelimit-Decision"].(string)
		if dry, is := object["downstream_X-Ratelimit-Dry-Run"].(string); is {
			way += " " + dry
		}
		return way
	}
	if got := decisions("/orders"); got != "shared" {
		t.Errorf("a request: %q", got)
	}
	s.get("/trial", "alice", 1)
	lab.Until(t, "a dry run refuses", func() bool { return decisions("/trial") == "shared refused" })
	s.store.Stop()
	lab.Until(t, "the gateway counts alone", func() bool { return decisions("/orders") == "local" })
	lab.Until(t, "a rule fails closed", func() bool { return decisions("/closed") == "closed" })
	if got := decisions("/open"); got != "" {
		t.Errorf("who fails open tells nobody, and the log has %q", got)
	}
}

// What tells clients apart is in no log, if Traefik's is written as the page says.
func TestNoClientIsInAnyLog(t *testing.T) {
	t.Parallel()
	const key = "SECRET-7d2e"
	for name, tt := range map[string]struct {
		block  int // of the page
		source lab.Map
		url    string
		send   lab.Request
	}{
		"header":           {0, lab.Map{"requestHeaderName": "X-API-Key"}, "/orders", lab.Request{Header: map[string]string{"X-API-Key": key}}},
		"authorization":    {0, lab.Map{"requestHeaderName": "Authorization"}, "/orders", lab.Request{Header: map[string]string{"Authorization": "Bearer " + key}}},
		"cookie":           {0, lab.Map{"cookieName": "sid"}, "/orders", lab.Request{Header: map[string]string{"Cookie": "sid=" + key}}},
		"query":            {0, lab.Map{"queryParameter": "key"}, "/orders?key=" + key, lab.Request{}},
		"kept header":      {1, lab.Map{"requestHeaderName": "X-API-Key"}, "/orders", lab.Request{Header: map[string]string{"X-API-Key": key}}},
		"kept credentials": {1, lab.Map{"requestHeaderName": "Authorization"}, "/orders", lab.Request{Header: map[string]string{"Authorization": "Bearer " + key, "Cookie": "sid=" + key}}},
	} {
		t.Run(name, func(t *testing.T) {
			for format, log := range map[string]string{"json": "text", "common": "json", "genericCLF": "text"} {
				file := filepath.Join(t.TempDir(), "access")
				args := append(arguments(t, blocks(t, "yaml")[tt.block]), "--accesslog.filepath="+file, "--accesslog.format="+format)
				s := newSite(t, lab.TraefikOptions{LogLevel: "DEBUG", Args: args}, lab.Map{
					"log": lab.Map{"format": log, "refusals": "1/1"}, "sourceCriterion": tt.source,
				})
				tt.send.URL = s.tr.URL + tt.url
				s.client.Sequence([]lab.Request{tt.send, tt.send, tt.send, tt.send, tt.send})
				s.outage(0)
				lab.Until(t, "the access log is written", func() bool { return strings.Count(read(t, file), "/orders") >= 5 })
				if text := s.tr.Log(); strings.Contains(text, key) || !strings.Contains(text, "gatequota: refused: ") {
					t.Errorf("log %s, access log %s: the gateway's log has the key, or no refusal:\n%s", log, format, strings.Join(own(text), "\n"))
				}
				if text := read(t, file); strings.Contains(text, key) {
					t.Errorf("log %s: the access log in the format %s has the key: %s", log, format, text)
				}
			}
		})
	}
	// The test would see it: as Traefik is without these options, the query is logged, and
	// headers where all are kept.
	s := newSite(t, lab.TraefikOptions{Args: []string{"--accesslog.format=json", "--accesslog.fields.headers.defaultmode=keep"}}, nil)
	s.get("/orders?key="+key, key, 1)
	lab.Until(t, "the access log has both", func() bool { return strings.Count(s.tr.Log(), key) == 2 })
}
