package gatequota

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatequota/gatequota/control"
)

func shown(w *watch) string {
	if w == nil {
		return "nobody"
	}
	return fmt.Sprint(w.path, " ", w.allow, " ", w.token)
}

func TestWhoIsAnswered(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("s3cr3t-2b90\r\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		config WatchConfig
		want   string
	}{
		{WatchConfig{}, "nobody"},
		{WatchConfig{Path: "/m"}, "/m [127.0.0.0/8 ::1/128] "},
		{WatchConfig{Path: "/m", Allow: []string{"10.1.2.3/8", "::ffff:192.0.2.1", " ::ffff:10.0.0.0/104", "2001:db8::1"}}, "/m [10.0.0.0/8 192.0.2.1/32 10.0.0.0/8 2001:db8::1/128] "},
		{WatchConfig{Path: "/m", Allow: []string{"0.0.0.0/0", "::/0"}, Token: "!x~"}, "/m [0.0.0.0/0 ::/0] !x~"},
		{WatchConfig{Path: "/m", TokenFile: file}, "/m [127.0.0.0/8 ::1/128] s3cr3t-2b90"},
	} {
		config := least()
		config.Metrics, config.Status = tt.config, tt.config
		if tt.config.Path != nil {
			config.Status.Path = "/s"
		}
		s := checked(t, config)
		if got := shown(s.metrics); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.config, got, tt.want)
		}
		if got, want := shown(s.status), strings.Replace(tt.want, "/m", "/s", 1); got != want {
			t.Errorf("%+v: %s, want %s", tt.config, got, want)
		}
		if tt.config.Path == nil && (strings.Contains(s.summary, "metrics") || strings.Contains(s.summary, "status")) {
			t.Errorf("the summary has what is not there: %s", s.summary)
		}
		if strings.Contains(s.summary, "s3cr3t") || strings.Contains(s.summary, "!x~") {
			t.Errorf("the summary has the token: %s", s.summary)
		}
	}
}

func TestLogAndControl(t *testing.T) {
	for _, tt := range []struct {
		log      interface{}
		control  interface{}
		json     bool
		refusals int64
		told     string
	}{
		{nil, nil, false, 0, "maxClients 65536, mode"},
		{"text", "false", false, 0, "maxClients 65536, mode"},
		{"json", true, true, 0, "maxClients 65536, log json, control, mode"},
		{map[string]interface{}{}, nil, false, 0, "maxClients 65536, mode"},
		{map[string]interface{}{"format": "json"}, nil, true, 0, "log json, mode"},
		{map[string]interface{}{"FORMAT": "text", "Refusals": "1/1"}, nil, false, 1, "maxClients 65536, refusals logged 1/1, mode"},
		{map[string]interface{}{"format": "json", "refusals": "1/1000000"}, "true", true, 1000000, "log json, refusals logged 1/1000000, control, mode"},
	} {
		config := least()
		config.Log, config.Control = tt.log, tt.control
		s := checked(t, config)
		if s.json != tt.json || s.refusals != tt.refusals || s.control != (tt.control == true || tt.control == "true") {
			t.Errorf("%v, %v: json %t, refusals %d, control %t", tt.log, tt.control, s.json, s.refusals, s.control)
		}
		if !strings.Contains(s.summary, tt.told) {
			t.Errorf("the summary lacks %q: %s", tt.told, s.summary)
		}
	}
}

// What cannot be obeyed is tried once, and not by each request.
func TestWhatCannotBeObeyedIsTriedOnce(t *testing.T) {
	var logged strings.Builder
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)
	s := checked(t, least())
	l := &live{ctx: context.Background(), next: http.NotFoundHandler(), name: "live@file", setting: s}
	state := &control.State{Off: true, Limits: map[string]int64{"nobody's": 5}} // to complain without a control panics
	renew(l, state, 7)
	if l.generation != 7 || l.handler == nil {
		t.Errorf("generation %d, handler %v", l.generation, l.handler)
	}
	if n := strings.Count(logged.String(), "gatequota: middleware live@file: control: what was set cannot be obeyed: "); n != 1 {
		t.Errorf("%d lines: %s", n, logged.String())
	}
}
