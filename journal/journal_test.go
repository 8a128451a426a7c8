package journal

import (
	"bytes"
	"encoding/json"
	"log"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

// Whoever reads a pipe to which many write finds whole lines. Here the standard error is a
// socket that keeps apart what was written by each call.
func TestLinesAreWrittenAtOnce(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	read, written := os.NewFile(uintptr(pair[0]), "read"), os.NewFile(uintptr(pair[1]), "written")
	stderr := os.Stderr
	os.Stderr = written
	defer func() {
		os.Stderr = stderr
		SetJSON(false)
		_ = read.Close()
		_ = written.Close()
	}()
	one := func() string {
		b := make([]byte, 1<<16)
		n, err := read.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	long := strings.Repeat("long ", 1000)
	Note(Settings, long)
	if got := one(); got != "gatequota: "+long+"\n" {
		t.Errorf("%d bytes of a text were written at once", len(got))
	}
	SetJSON(true)
	for _, write := range []func(event, text string, fields ...string){Note, Error} {
		write(Settings, long, "middleware", "quota@file")
		if got := one(); !json.Valid([]byte(got)) || !strings.HasSuffix(got, "}\n") {
			t.Errorf("%d bytes of an object were written at once", len(got))
		}
	}
}
