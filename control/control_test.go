package control

import (
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/gatequota/gatequota/window"
)

const (
	one = "00000000000000000000000000000000000000000000000000000000000000aa"
	two = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
)

func digest(hash string) string {
	raw, _ := hex.DecodeString(hash)
	return string(raw)
}

// blank is a state in which nothing is set.
func blank() *State {
	return &State{Limits: map[string]int64{}, Windows: map[string]int64{}, Clients: map[string]*Client{}}
}

func TestParseReadsEveryField(t *testing.T) {
	got, problems := Parse([]string{
		"version", "7", "enabled", "false", "dryRun", "true",
		"limit", "100", "limit:login", "5", "limit:search:hour", "999999999999999", "limit:A@b._-1", "1",
		"window", "60", "window:login", "1h30m", "window:search:hour", "366d",
		"allow:" + one, "1764526000 500 login=9 search:hour=3", "block:" + one, "1764526001", "epoch:" + one, "5 1764526002",
		"allow:" + two, "1764526000 login=9",
		"epoch", "6 1764526003",
	})
	want := &State{
		Version: 7, Off: true, DryRun: "true",
		Limits:  map[string]int64{"": 100, "login": 5, "search:hour": window.MaxCount, "A@b._-1": 1},
		Windows: map[string]int64{"": 60, "login": 5400, "search:hour": 366 * 86400},
		Clients: map[string]*Client{
			digest(one): {Hash: one, AllowUntil: 1764526000, Limit: 500, Limits: map[string]int64{"login": 9, "search:hour": 3},
				BlockUntil: 1764526001, Epoch: Epoch{Version: 5, At: 1764526002}},
			digest(two): {Hash: two, AllowUntil: 1764526000, Limits: map[string]int64{"login": 9}},
		},
		Epoch: Epoch{Version: 6, At: 1764526003},
	}
	if !reflect.DeepEqual(got, want) || problems != nil {
		t.Errorf("%+v, %+v, want %+v", got, problems, want)
	}
	for _, fields := range [][]string{nil, {}, {"version"}, {"enabled", "true"}, {"version", "0"}} {
		if got, problems := Parse(fields); !reflect.DeepEqual(got, blank()) || problems != nil {
			t.Errorf("%q: %+v, %+v, want nothing", fields, got, problems)
		}
	}
	if got, _ := Parse([]string{"dryRun", "false"}); got.DryRun != "false" {
		t.Errorf("%+v", got)
	}
}

// Each bad value is a problem that names the field, the value and what is wanted, and
// nothing else is touched by it.
func TestParseRefusesByName(t *testing.T) {
	// All of this is right, and stays so beside what is not.
	right := []string{
		"version", "3", "enabled", "false", "dryRun", "true", "limit", "7", "window", "60", "limit:login", "5", "window:login", "30",
		"allow:" + one, "100 5 login=6", "block:" + one, "200", "epoch:" + one, "2 50", "epoch", "1 40",
	}
	want, problems := Parse(right)
	if problems != nil {
		t.Fatal(problems)
	}
	numbers := []string{"", " ", "x", "010", "+1", "-1", "1.0", "1e3", "0x1", " 1", "1 ", "1\n", "1_000", "1000000000000000", "9999999999999999", "99999999999999999999", "１"}
	limits := append([]string{"0"}, numbers...)
	cases := map[string][]string{
		wantBoolean: nil, wantLimit: nil, wantWindow: nil, wantUntil: nil, wantEpoch: nil, wantHash: nil, wantCount: nil, wantAllow: nil, wantField: nil,
		"a whole number is wanted": nil,
	}
	add := func(want, field string, values ...string) {
		for _, value := range values {
			cases[want] = append(cases[want], field, value)
		}
	}
	add("a whole number is wanted", "version", numbers...)
	for _, field := range []string{"enabled", "dryRun"} {
		add(wantBoolean, field, "", "TRUE", "True", "1", "0", "yes", "off", " true", "true ")
	}
	for _, field := range []string{"limit", "limit:x", "limit:x:y"} {
		add(wantLimit, field, limits...)
	}
	for _, field := range []string{"window", "window:x", "window:x:y"} {
		add(wantWindow, field, "", "0", "0s", "-1", "-1s", "1.5h", "1h ", " 1h", "h", "1w", "1ms", "500ms", "010", "31622401", "31622401s", "367d", "8785h",
			"366d1s", "999999999d", "999999999d999999999d", "9999999999s", "1h30", strings.Repeat("1s", 40), "1H", "1 h")
	}
	for _, name := range []string{"allow", "block", "epoch"} {
		for _, hash := range []string{"", one[1:], one + "0", strings.ToUpper(two), strings.Repeat("g", 64), " " + one[1:], one[:63] + "\n", "*"} {
			add(wantHash, name+":"+hash, "100 5", "1 1", "1")
		}
	}
	for _, name := range []string{"allow", "block"} {
		add(wantHash, name, "100 5", "100")
	}
	for _, name := range []string{"limit", "window"} {
		for _, count := range []string{"", ":", "a:", ":a", "a:b:c", "a b", "a/b", "ä", "a\n", "a{b}"} {
			add(wantCount, name+":"+count, "60")
		}
	}
	add(wantUntil, "block:"+two, limits...)
	add(wantEpoch, "epoch:"+two, "", "1", "1 ", " 1", "1  1", "1 0", "0 1", "1 1 1", "a 1", "1 a", "-1 1", "01 1", "1 01", "1,1", "9999999999999999 1")
	add(wantEpoch, "epoch", "", "1", "1 a")
	add(wantAllow, "allow:"+two, "", "1", "1 ", " 1 5", "1  5", "0 5", "a 5", "1 0", "1 a", "1 5 6", "1 5 ", "1 login", "1 login=", "1 login=0", "1 login=a",
		"1 =5", "1 login=5 login=6", "1 lo gin=5", "1 login==5", "1 a:b:c=5", "1 a/b=5", "1 5 login=x", "1 login=5 x", "1 1000000000000000")
	add(wantField, "", "1")
	for _, field := range []string{"Version", "limits", "enable", "dryrun", "version:1", "enabled:" + one, "dryRun:x", "version:", "limit ", " limit", "log", "reset:" + one, "by\x00"} {
		add(wantField, field, "1")
	}
	for want := range cases {
		if len(cases[want]) == 0 {
			t.Errorf("no case for %q", want)
		}
	}
	for wanted, pairs := range cases {
		for i := 0; i < len(pairs); i += 2 {
			field, value := pairs[i], pairs[i+1]
			told := field
			if wanted == wantHash {
				name, _, _ := strings.Cut(field, ":")
				told = name + ":..." // it may be what tells a client apart
			}
			// Before and behind the right ones, of which it may be another reading.
			for _, fields := range [][]string{append([]string{field, value}, right...), append(append([]string{}, right...), field, value)} {
				got, problems := Parse(fields)
				if len(problems) != 1 || problems[0] != (Problem{told, value, wanted}) {
					t.Errorf("%q, %q: %+v, want %q", field, value, problems, wanted)
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%q, %q touches something else: %+v", field, value, got)
				}
			}
		}
	}
	// As many problems as there are.
	if _, problems := Parse([]string{"limit", "x", "window", "x", "limit", "y"}); len(problems) != 3 {
		t.Errorf("%+v", problems)
	}
}

func TestSeconds(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "60": 60, "60s": 60, "1m": 60, "1h": 3600, "1h30m": 5400, "1d": 86400, "30m1h": 5400, "1s1s": 2, "366d": 31622400, "31622400": 31622400,
		"1d2h3m4s": 93784, "00060s": 60, "0d1s": 1,
	} {
		if got := Seconds(text); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}

// What is in force, to the second.
func TestInForce(t *testing.T) {
	inForce := func(now int64, fields ...string) (*State, int64) {
		t.Helper()
		s, problems := Parse(fields)
		if problems != nil {
			t.Fatal(problems)
		}
		before, _ := Parse(fields)
		f, next := InForce(s, now)
		if !reflect.DeepEqual(s, before) {
			t.Errorf("%q: the state is changed: %+v", fields, s)
		}
		return f, next
	}
	for _, fields := range [][]string{nil, {"version", "9"}, {"enabled", "true"}, {"epoch", "1 100"}, {"epoch:" + one, "1 100"}, {"allow:" + one, "100 5"}, {"block:" + one, "100"}, {"allow:" + one, "99 5", "block:" + two, "1"}} {
		if f, next := inForce(100, fields...); f != nil || next != 0 {
			t.Errorf("%q: %+v until %d, want nothing", fields, f, next)
		}
	}
	for _, fields := range [][]string{{"enabled", "false"}, {"dryRun", "true"}, {"dryRun", "false"}, {"limit", "5"}, {"window:x", "5"}} {
		for _, now := range []int64{0, 100, 1 << 40} {
			f, next := inForce(now, append([]string{"version", "4"}, fields...)...)
			s, _ := Parse(append([]string{"version", "4"}, fields...))
			if !reflect.DeepEqual(f, s) || next != 0 {
				t.Errorf("%q: %+v until %d, want it for ever", fields, f, next)
			}
		}
	}
	fields := []string{"allow:" + one, "200 5 x=6", "block:" + one, "150", "block:" + two, "300", "epoch:" + two, "1 120"}
	for _, tt := range []struct {
		now, next                  int64
		allowed, blocked, blocked2 bool
	}{
		{100, 150, true, true, true}, {149, 150, true, true, true}, {150, 200, true, false, true}, {199, 200, true, false, true},
		{200, 300, false, false, true}, {299, 300, false, false, true},
	} {
		f, next := inForce(tt.now, fields...)
		if f == nil || next != tt.next {
			t.Errorf("at %d: %+v until %d, want %d", tt.now, f, next, tt.next)
			continue
		}
		first, second := f.Clients[digest(one)], f.Clients[digest(two)]
		if (first != nil && first.AllowUntil == 200 && first.Limit == 5 && first.Limits["x"] == 6) != tt.allowed || (first != nil && first.BlockUntil == 150) != tt.blocked ||
			(second != nil && second.BlockUntil == 300) != tt.blocked2 || first != nil && !tt.allowed && !tt.blocked {
			t.Errorf("at %d: %+v, %+v", tt.now, first, second)
		}
		if first != nil && (first.Hash != one || !tt.allowed && (first.AllowUntil != 0 || first.Limit != 0 || first.Limits != nil) || !tt.blocked && first.BlockUntil != 0) {
			t.Errorf("at %d: %+v holds what is over", tt.now, first)
		}
	}
	if f, next := inForce(300, fields...); f != nil || next != 0 {
		t.Errorf("at the end: %+v until %d", f, next)
	}
}

// Nothing is remembered from ten seconds before the time of an epoch, by a clock that is
// behind, until ten after it.
func TestHolds(t *testing.T) {
	s, problems := Parse([]string{"epoch", "3 1000", "epoch:" + one, "4 1005", "epoch:" + two, "5 1030", "block:" + two, "9999"})
	if problems != nil {
		t.Fatal(problems)
	}
	for _, tt := range []struct {
		now, all, one, two, last int64
	}{
		{990, 0, 0, 0, 0}, {991, 1010, 0, 0, 1010}, {995, 1010, 0, 0, 1010}, {996, 1010, 1015, 0, 1015}, {1000, 1010, 1015, 0, 1015}, {1009, 1010, 1015, 0, 1015},
		{1010, 0, 1015, 0, 1015}, {1014, 0, 1015, 0, 1015}, {1015, 0, 0, 0, 0}, {1020, 0, 0, 0, 0}, {1021, 0, 0, 1040, 1040}, {1039, 0, 0, 1040, 1040}, {1040, 0, 0, 0, 0},
	} {
		h := Holds(s, tt.now)
		if tt.last == 0 {
			if h != nil {
				t.Errorf("at %d: %+v, want nothing", tt.now, h)
			}
			continue
		}
		if h == nil || h.All != tt.all || h.Clients[one] != tt.one || h.Clients[two] != tt.two || h.Last != tt.last {
			t.Errorf("at %d: %+v, want %+v", tt.now, h, tt)
			continue
		}
		for _, until := range []int64{tt.all, tt.one, tt.two} {
			if until > 0 && !Held(until, tt.now) {
				t.Errorf("at %d: not held until %d", tt.now, until)
			}
		}
		for name := range h.Clients {
			if h.Clients[name] == 0 {
				t.Errorf("at %d: %s stands there without a time", tt.now, name)
			}
		}
	}
	if Held(0, 5) || Held(1010, 1010) || !Held(1010, 1009) || Held(1010, 990) || !Held(1010, 991) {
		t.Error("held at the wrong second")
	}
	if h := Holds(blank(), 0); h != nil {
		t.Errorf("%+v", h)
	}
}

// FuzzParse demands of whatever is set that it is either obeyed or named, and that it
// concerns its own field alone.
func FuzzParse(f *testing.F) {
	for _, pair := range [][2]string{
		{"version", "7"}, {"enabled", "false"}, {"dryRun", "true"}, {"limit", "100"}, {"limit:login", "010"}, {"window:a:b", "1h30m"}, {"window", "366d1s"},
		{"allow:" + one, "1764526000 500 login=9"}, {"allow:" + two, "1 a=1 a=2"}, {"block:" + one, "1764526001"}, {"epoch", "6 1764526003"}, {"epoch:" + one, "1 x"}, {"", ""},
		{"limit:", "1"}, {"epoch:", "1 1"}, {"allow", "1 1"}, {"colour", "blue"}, {"version", "99999999999999999999"},
	} {
		f.Add(pair[0], pair[1], int64(1764526000))
	}
	f.Fuzz(func(t *testing.T, field, value string, now int64) {
		around := []string{"limit:around", "3", field, value, "block:" + two, "1764526001"}
		s, problems := Parse(around)
		if len(problems) > 1 || len(problems) == 1 && (problems[0].Field != field && problems[0].Want != wantHash || problems[0].Value != value || problems[0].Want == "") {
			t.Fatalf("%q, %q: %+v", field, value, problems)
		}
		if s.Limits["around"] != 3 && field != "limit:around" || s.Clients[digest(two)] == nil {
			t.Fatalf("%q, %q hides others: %+v", field, value, s)
		}
		alone, _ := Parse([]string{field, value})
		if len(problems) == 1 && !reflect.DeepEqual(alone, blank()) {
			t.Fatalf("%q, %q is refused, and something is set: %+v", field, value, alone)
		}
		for name, n := range alone.Limits {
			if n < 1 || n > window.MaxCount || field != "limit" && field != "limit:"+name {
				t.Fatalf("%q, %q: the limit %d of %q", field, value, n, name)
			}
		}
		for name, n := range alone.Windows {
			if n < 1 || n > maxWindow || field != "window" && field != "window:"+name {
				t.Fatalf("%q, %q: the window %d of %q", field, value, n, name)
			}
		}
		for d, c := range alone.Clients {
			if len(d) != 32 || fmt.Sprintf("%x", d) != c.Hash || c.AllowUntil == 0 && c.BlockUntil == 0 && c.Epoch.Version == 0 {
				t.Fatalf("%q, %q: the client %q, %+v", field, value, d, c)
			}
			if c.AllowUntil > 0 && c.Limit == 0 && len(c.Limits) == 0 {
				t.Fatalf("%q, %q: a client is let through without a limit", field, value)
			}
		}
		if alone.Version < 0 || alone.Epoch.Version < 0 || alone.Epoch.At < 0 {
			t.Fatalf("%q, %q: %+v", field, value, alone)
		}
		in, next := InForce(alone, now)
		if next != 0 && next <= now || in == nil && next != 0 {
			t.Fatalf("%q, %q: at %d %+v until %d", field, value, now, in, next)
		}
		if in != nil {
			if later, _ := InForce(alone, next); next != 0 && reflect.DeepEqual(in, later) {
				t.Fatalf("%q, %q: at %d nothing changes", field, value, next)
			}
		}
		if h := Holds(alone, now); h != nil && (h.Last <= now || h.Last > now+2*HoldFor) {
			t.Fatalf("%q, %q: at %d held until %d", field, value, now, h.Last)
		}
	})
}
