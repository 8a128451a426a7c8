package journal

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// captured returns what f writes: to the standard error, and to the package log.
func captured(t *testing.T, f func()) (errors, logged string) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	stderr := os.Stderr
	os.Stderr = file
	log.SetOutput(&b)
	log.SetFlags(0)
	defer func() {
		os.Stderr = stderr
		log.SetOutput(stderr)
		log.SetFlags(log.LstdFlags)
		SetJSON(false)
		_ = file.Close()
	}()
	f()
	content, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(content), b.String()
}

func TestTexts(t *testing.T) {
	errors, logged := captured(t, func() {
		Error(StoreAway, "store valkey:6379: away (100% sure)", "store", "valkey:6379")
		Note(Settings, "middleware quota@file: limit 5")
	})
	if errors != "gatequota: middleware quota@file: limit 5\n" || logged != "gatequota: store valkey:6379: away (100% sure)\n" {
		t.Errorf("%q and in the log %q", errors, logged)
	}
}

func TestObjects(t *testing.T) {
	before := time.Now().Add(-time.Millisecond)
	errors, logged := captured(t, func() {
		SetJSON(true)
		Error(StoreBack, "store valkey:6379: answers again", "store", "valkey:6379", "seconds", "1.5", "requests", "7")
		Note(Refusal, "refused: <a> & \"b\"\nc\x00\xff é", "rule", "", "scope", "7", "odd")
	})
	if logged != "" {
		t.Errorf("the log has %q", logged)
	}
	lines := strings.Split(strings.TrimSuffix(errors, "\n"), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines: %s", len(lines), errors)
	}
	want := []map[string]any{
		{"event": "store-back", "message": "gatequota: store valkey:6379: answers again", "store": "valkey:6379", "seconds": 1.5, "requests": 7.0},
		{"event": "refusal", "message": "gatequota: refused: <a> & \"b\"\nc\x00\ufffd é", "rule": "", "scope": "7"},
	}
	for i, text := range lines {
		var got map[string]any
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		at, err := time.Parse(time.RFC3339, got["time"].(string))
		if err != nil || at.Before(before.Truncate(time.Millisecond)) || at.After(time.Now()) || !strings.HasSuffix(got["time"].(string), "Z") {
			t.Errorf("the time is %v: %v", got["time"], err)
		}
		delete(got, "time")
		if len(got) != len(want[i]) {
			t.Errorf("%s, want %v", text, want[i])
		}
		for name, value := range want[i] {
			if got[name] != value {
				t.Errorf("%s is %#v, want %#v", name, got[name], value)
			}
		}
	}
	if !strings.Contains(lines[1], `<a> & \"b\"\nc`) {
		t.Errorf("not as people read it: %s", lines[1])
	}
	if !strings.HasPrefix(lines[0], `{"time":"`) || strings.Index(lines[0], `"event"`) > strings.Index(lines[0], `"message"`) {
		t.Errorf("time, event and message do not come first: %s", lines[0])
	}
}

func TestTimesAreUTCInMilliseconds(t *testing.T) {
	east := time.FixedZone("east", 2*3600)
	for _, tt := range []struct {
		nanos int
		want  string
	}{{0, "2026-03-01T22:04:05.000Z"}, {7_999_999, "2026-03-01T22:04:05.007Z"}} {
		at := time.Date(2026, 3, 2, 0, 4, 5, tt.nanos, east)
		if got := line(at, Control, "x", nil); !strings.HasPrefix(got, `{"time":"`+tt.want+`"`) {
			t.Errorf("%s: %s", at, got)
		}
	}
}

// Whoever reads a pipe to which many write finds whole lines.
func TestLinesAreWrittenAtOnce(t *testing.T) {
	read, written, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	os.Stderr = written
	SetJSON(true)
	defer func() {
		os.Stderr = stderr
		SetJSON(false)
	}()
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			// Longer than what the pipe holds, so that the others come while it is written.
			for j := 0; j < 10; j++ {
				Note(Settings, strings.Repeat("long ", 40000))
			}
		}()
	}
	go func() {
		all.Wait()
		_ = written.Close()
	}()
	content, err := io.ReadAll(read)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
	if len(lines) != 80 {
		t.Errorf("%d lines, want 80", len(lines))
	}
	for _, text := range lines {
		if !json.Valid([]byte(text)) {
			t.Fatalf("not a whole line: %.100s", text)
		}
	}
}
