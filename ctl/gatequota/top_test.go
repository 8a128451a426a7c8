package main

import (
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gatequota/gatequota/ctl/scope"
)

func someView() *topView {
	standing := func(client byte, name string, used, limit, reset int64) scope.Standing {
		return scope.Standing{Client: strings.Repeat(string(client), 64), Count: scope.Count{Name: name, Limit: limit, Algorithm: "fixed-window", Window: 60},
			Used: used, Left: max(0, limit-used), Reset: reset}
	}
	return &topView{Scope: "api", Time: time.Date(2026, 3, 1, 15, 4, 5, 0, time.Local).UnixMilli(), Keys: 1234, All: true, gateways: 2, took: 7 * time.Millisecond,
		marks: map[string]string{strings.Repeat("a", 64): "blocked"},
		Clients: []scope.Standing{
			standing('a', "", 130, 100, 17),
			standing('b', "a-rule-with-a-long-name:daily", 999999, 1000000, 86000),
			standing('c', "login", 4, 5, 17),
			standing('d', "", 1, 999999999999999, 17),
		}}
}

func TestTopLines(t *testing.T) {
	v := someView()
	tests := []struct {
		name  string
		width int
		style style
		want  string
	}{
		{"to a file", 0, style{}, `
scope api, 2 gateways, 15:04:05

CLIENT        COUNT                       USED  LIMIT    LEFT     FREE
aaaaaaaaaaaa  (top level)                  130    100       0      17s  #################### 130% blocked
bbbbbbbbbbbb  a-rule-with-a-long-name~    1.0M   1.0M       1   23h53m  ####################  99%
cccccccccccc  login                          4      5       1      17s  ################....  80%
dddddddddddd  (top level)                    1   1.0P    1.0P      17s  ....................   0%`},
		{"80 columns", 80, style{unicode: true}, `
scope api, 2 gateways, 15:04:05

CLIENT        COUNT          USED  LIMIT    LEFT     FREE
aaaaaaaaaaaa  (top level)     130    100       0      17s  ████████ 130% blocked
bbbbbbbbbbbb  a-rule-wit~    1.0M   1.0M       1   23h53m  ████████  99%
cccccccccccc  login             4      5       1      17s  ██████░░  80%
dddddddddddd  (top level)       1   1.0P    1.0P      17s  ░░░░░░░░   0%`},
		{"62 columns", 62, style{}, `
scope api, 2 gateways, 15:04:05

CLIENT        COUNT    USED  LIMIT    LEFT     FREE
aaaaaaaaaaaa  (top~     130    100       0      17s  130% blo~
bbbbbbbbbbbb  a-ru~    1.0M   1.0M       1   23h53m   99%
cccccccccccc  login       4      5       1      17s   80%
dddddddddddd  (top~       1   1.0P    1.0P      17s    0%`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := topLines(v, test.width, test.style)
			if text := strings.Join(got, "\n"); text != strings.TrimPrefix(test.want, "\n") {
				t.Errorf("%s\nwant:%s", text, test.want)
			}
		})
	}
}

func TestNoLineIsWiderThanTheTerminal(t *testing.T) {
	largest := &topView{Scope: "api", Largest: []scope.KeyValue{{Key: scope.Key{Client: strings.Repeat("a", 64), Algorithm: "sliding-window"}, Value: 123456789, TTL: 3000000}}}
	for width := 1; width < 200; width++ {
		for _, v := range []*topView{someView(), largest, {Scope: "api", off: true}} {
			s := &screen{last: v, style: style{unicode: true}, interval: time.Second}
			for height := 1; height < 30; height += 7 {
				lines := s.frame(width, height)
				if len(lines) != height {
					t.Fatalf("%d lines in a terminal of %d", len(lines), height)
				}
				for _, line := range lines {
					if n := utf8.RuneCountInString(line); n > width {
						t.Fatalf("a line of %d in a terminal of %d: %q", n, width, line)
					}
				}
			}
		}
	}
}

func TestColors(t *testing.T) {
	env := func(pairs ...string) func(string) string {
		return func(name string) string {
			if i := slices.Index(pairs, name); i >= 0 {
				return pairs[i+1]
			}
			return ""
		}
	}
	for _, test := range []struct {
		env  func(string) string
		want style
	}{
		{env(), style{color: true}},
		{env("NO_COLOR", "1"), style{}},
		{env("LANG", "de_DE.UTF-8"), style{color: true, unicode: true}},
		{env("LANG", "C.utf8", "LC_ALL", "C"), style{color: true}},
		{env("LC_CTYPE", "UTF-8"), style{color: true, unicode: true}},
	} {
		if got := styleOf(test.env); got != test.want {
			t.Errorf("%+v, want %+v", got, test.want)
		}
	}
	for share, want := range map[float64]string{0: "\x1b[2m....\x1b[0m", 0.5: "\x1b[32m##\x1b[0m\x1b[2m..\x1b[0m", 0.85: "\x1b[33m###\x1b[0m\x1b[2m.\x1b[0m", 1: "\x1b[31m####\x1b[0m", 7: "\x1b[31m####\x1b[0m"} {
		if got := (style{color: true}).bar(share, 4); got != want {
			t.Errorf("bar of %v is %q, want %q", share, got, want)
		}
	}
	if lines := topLines(someView(), 80, style{}); strings.Contains(strings.Join(lines, ""), "\x1b") {
		t.Error("there is color without any")
	}
}

func TestOnlyNewLinesAreDrawn(t *testing.T) {
	out, err := os.Create(t.TempDir() + "/terminal") // no terminal: 80 columns, 24 lines
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	drawn := func(s *screen) string {
		before, _ := out.Seek(0, 1)
		s.draw()
		content, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(content[before:])
	}
	s := &screen{out: out, last: someView(), interval: 2 * time.Second}
	if text := drawn(s); !strings.HasPrefix(text, beginFrame+"\x1b[2J\x1b[1;1Hscope api") || !strings.Contains(text, "\x1b[24;1Hq ends; every 2s; 1234 keys in 7ms\x1b[K"+endFrame) {
		t.Errorf("at first: %q", text)
	}
	if text := drawn(s); text != "" {
		t.Errorf("nothing is new: %q", text)
	}
	s.last = someView()
	s.last.Clients[2].Used = 5
	if text := drawn(s); !strings.HasPrefix(text, beginFrame+"\x1b[6;1Hcccccccccccc") || strings.Count(text, "\x1b[K") != 1 {
		t.Errorf("one line is new: %q", text)
	}
	s.failed = errors.New("dial tcp: nobody\nis there")
	if text := drawn(s); !strings.HasPrefix(text, beginFrame+"\x1b[24;1HFAILED: dial tcp: nobody is there") {
		t.Errorf("a failure: %q", text)
	}
}

func TestNumbersForPeople(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 99999: "99999", 100000: "100.0k", 123456: "123.5k", 999949: "999.9k", 999950: "1.0M", 1000000: "1.0M", 12345678: "12.3M", 999999999999999: "1.0P"} {
		if got := short(n); got != want || len(got) > 6 {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0s", 59: "59s", 60: "1m", 61: "1m 1s", 3600: "1h", 3601: "1h", 3660: "1h 1m", 86400 * 366: "366d", 90000: "1d 1h", -5: "-5s"} {
		if got := span(n); got != want {
			t.Errorf("%d s are %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{1: "1s", 60: "1m", 90: "90s", 3600: "1h", 86400: "1d", 86401: "86401s"} {
		if got := windowText(n); got != want {
			t.Errorf("a window of %d s is %q, want %q", n, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 1 << 30: "1.0 GiB", 1 << 50: "1024.0 TiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
	if got := plain("a\x1b[31m\u009bb\tü\n"); got != "a?[31m?b?ü\n" {
		t.Errorf("plain is %q", got)
	}
}

func TestTopOnce(t *testing.T) {
	d := newDesk(t)
	d.count(abc, 80)
	d.count(strings.Repeat("0", 64), 90)
	bar := regexp.MustCompile(`FREE\n000000000000  \(top level\) +90 +100 +10 +\S+  #{18}\.\.  90%\nba7816bf8f01  \(top level\) +80 +100 +20 +\S+  #{16}\.{4}  80%\n$`)
	if out := d.done("top"); !bar.MatchString(out) {
		t.Error(out)
	}
	var v topView
	if err := json.Unmarshal([]byte(d.done("top", "--json", "-n", "1")), &v); err != nil || len(v.Clients) != 1 || v.Clients[0].Used != 90 || v.Keys < 2 || !v.All {
		t.Errorf("%+v, %v", v, err)
	}
	d.terminal, d.env = true, map[string]string{"TERM": "dumb"}
	if out := d.done("top"); strings.Contains(out, "\x1b") {
		t.Errorf("in a dumb terminal: %q", out)
	}
}
