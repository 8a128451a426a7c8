package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// quiet returns a play in windows so long that none ends during a test, but for those
// over whose edge a burst comes.
func quiet(out *bytes.Buffer) *play {
	window, _ := lab.QuietWindow(time.Now())
	return &play{out: out, window: window, edge: 4 * time.Second, limit: 100}
}

func TestDemoShowsTheExpectedFigures(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := quiet(&out)
	if err := lab.Outside(context.Background(), func(t testing.TB) { p.run(t) }); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range []string{
		"interpreter  real, Yaegi ",
		"gateways     stand-ins, ",
		"store        stand-in, miniredis ",
		"mode shared: one count            250      100       150       0  100 / 150 / 0  shared      ok\n",
		"mode local: one count each        250      200        50       0  200 / 50 / 0   local       ok\n",
		"shared, until the store stops      60       60         0       0  60 / 0 / 0     shared      ok\n",
		"store back, a new key             250      100       150       0  100 / 150 / 0  shared      ok\n",
		"Read from the store: rate:apikey:{",
		"fixed-window, over an edge        220      200        20       0  200 / 20 / 0   shared      ok\n",
		"\nsliding-window, over an edge      220 ",
		"fixed-window let 100 and 100 pass, sliding-window let 100 and ",
		"All figures are as expected",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", &out)
	}
}

// lax returns a gateway that limits nobody and says otherwise.
func lax(t testing.TB, replicas []string) gateway {
	proxy := proxyTo(t, replicas, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-RateLimit-Decision", "shared")
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return gateway{url: server.URL, log: func() string { return "" }}
}

func TestDemoFailsWithoutALimiter(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := lab.Outside(context.Background(), func(t testing.TB) {
		p := quiet(&out)
		p.app, p.client, p.store = lab.NewApp(t, 2), lab.NewClient(t), embeddedStore(t)
		p.gateways = []gateway{lax(t, p.app.URLs), lax(t, p.app.URLs)}
		p.perform(t)
	})
	// The sixty requests before the outage are below every limit.
	if err == nil || err.Error() != "6 of 7 phases went otherwise than expected" {
		t.Errorf("error %v\n%s", err, &out)
	}
	if strings.Contains(out.String(), "All figures are as expected") {
		t.Errorf("the output praises it:\n%s", &out)
	}
}

func TestWrongFlagsAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		want int
	}{
		{[]string{"-help"}, 0},
		{[]string{"-no-such-flag"}, 2},
		{[]string{"traefik"}, 2},
	} {
		var out, errs bytes.Buffer
		if got := run(context.Background(), tt.args, &out, &errs); got != tt.want || out.Len() > 0 || errs.Len() == 0 {
			t.Errorf("%q: status %d, want %d, printed %q and %q", tt.args, got, tt.want, &out, &errs)
		}
	}
}

func TestDemoStopsWhenItIsTold(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var errs bytes.Buffer
	if got := run(ctx, []string{"-embedded"}, discard{}, &errs); got != 1 || !strings.Contains(errs.String(), context.Canceled.Error()) {
		t.Errorf("status %d, printed %q", got, &errs)
	}
}

// discard is an io.Writer that any goroutine may use at any time.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// answer returns one as a limiter gives it.
func answer(status int, way string) lab.Answer {
	a := lab.Answer{Status: status, Header: http.Header{"X-Ratelimit-Decision": {way}}}
	if status == http.StatusTooManyRequests {
		a.Header.Set("Retry-After", "60")
	}
	return a
}

func TestJudgeFindsWhatIsOff(t *testing.T) {
	t.Parallel()
	good := lab.Answers{answer(200, "shared"), answer(200, "shared"), answer(429, "shared")}
	ph := phase{name: "phase", sent: 3, want: split(3, 2), way: "shared"}
	if r := judge(ph, good, 2, 2, time.Minute); !r.ok() || r.got != (figures{2, 1, 0}) || r.ways != "shared" {
		t.Errorf("good answers: %+v", r)
	}

	with := func(a lab.Answer) lab.Answers { return lab.Answers{good[0], good[1], a} }
	late := answer(429, "shared")
	late.Header.Set("Retry-After", "61")
	dateless := answer(429, "shared")
	dateless.Header.Del("Retry-After")
	for _, tt := range []struct {
		name    string
		answers lab.Answers
		limit   int
		problem string
	}{
		{"one too many", with(answer(200, "shared")), 2, "allowed, rejected and failed are 3 / 0 / 0, want 2 / 1 / 0"},
		{"an error", with(answer(500, "shared")), 2, "status 500"},
		{"no answer", with(lab.Answer{Err: errors.New("refused")}), 2, "error refused"},
		{"another way", with(answer(429, "local")), 2, `decided by "shared: 2, local: 1"`},
		{"one not sent", good[:2], 2, "2 requests were sent"},
		{"a gateway beyond the limit", lab.Answers{good[0], good[2], good[1]}, 1, "gateway 1 alone allowed 2"},
		{"a wait beyond the window", with(late), 2, `Retry-After "61"`},
		{"no wait", with(dateless), 2, `Retry-After ""`},
	} {
		r := judge(ph, tt.answers, 2, tt.limit, time.Minute)
		if !strings.Contains(strings.Join(r.problems, "\n"), tt.problem) {
			t.Errorf("%s: problems %q, want %q", tt.name, r.problems, tt.problem)
		}
		if r.ok() || !strings.HasSuffix(r.line(), "OFF") {
			t.Errorf("%s: %s", tt.name, r.line())
		}
	}
}

func TestStoreProblems(t *testing.T) {
	t.Parallel()
	ph := phase{sent: 250, want: split(250, 100)}
	counted := func(n int64, expires time.Duration) entry {
		return entry{key: "rate:apikey:{00}:1", count: n, expires: expires}
	}
	for _, tt := range []struct {
		name    string
		entries []entry
		want    string
	}{
		{"every request counted", []entry{counted(250, time.Minute)}, ""},
		{"the allowed ones counted", []entry{counted(100, time.Second)}, ""},
		{"nothing", nil, "0 counts"},
		{"two keys", []entry{counted(100, time.Second), counted(100, time.Second)}, "2 counts"},
		{"too little", []entry{counted(99, time.Second)}, "counted 99 requests"},
		{"too much", []entry{counted(251, time.Second)}, "counted 251 requests"},
		{"no expiry", []entry{counted(100, -1)}, "expires in"},
		{"an expiry beyond the window", []entry{counted(100, 61*time.Second)}, "expires in"},
	} {
		got := storeProblem(tt.entries, ph, 100, time.Minute)
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestOutageAllowance(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		sent int
		left []int
		want int
	}{
		{190, []int{41, 40}, 81},
		{190, []int{100, 100}, 190}, // fewer are sent than are left
		{190, []int{100, 0}, 95},
		{191, []int{96, 0}, 96}, // the first gateway gets the odd one
		{191, []int{0, 96}, 95},
		{0, []int{5, 5}, 0},
	} {
		if got := outageAllowance(tt.sent, tt.left); got != tt.want {
			t.Errorf("%d sent, %v left: %d, want %d", tt.sent, tt.left, got, tt.want)
		}
	}
}

func TestSharesAreHalfOfTheLeastThatEachGatewaySaid(t *testing.T) {
	t.Parallel()
	p := &play{limit: 100, gateways: make([]gateway, 2)}
	var answers lab.Answers
	for _, remaining := range []string{"98", "99", "96", "", "97", "95"} {
		answers = append(answers, lab.Answer{Header: http.Header{"X-Ratelimit-Remaining": {remaining}}})
	}
	if got := p.shares(answers); !slices.Equal(got, []int{48, 48}) {
		t.Errorf("%v", got)
	}
	if got := p.shares(nil); !slices.Equal(got, []int{50, 50}) {
		t.Errorf("nothing said: %v", got)
	}
}

func TestStoreLinesAreThePlainOnes(t *testing.T) {
	t.Parallel()
	log := "2026-01-01T00:00:00Z ERR gatequota: store 127.0.0.1:1: away (x) module=m plugin=p\n" +
		"gatequota: middleware quota@file: limit 1\n" +
		"2026/01/01 00:00:00 gatequota: store 127.0.0.1:1: answers again\n"
	want := []string{"gatequota: store 127.0.0.1:1: away (x)", "gatequota: store 127.0.0.1:1: answers again"}
	if got := storeLines(log); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Version:      3.7.10\nCodename:     x\nGo version:   go1.26\n": "3.7.10",
	} {
		if got := traefikVersion.FindStringSubmatch(text); got == nil || got[1] != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	if got := valkeyVersion.FindStringSubmatch("Valkey server v=8.0.1 sha=0:0 malloc=x"); got == nil || got[1] != "8.0.1" {
		t.Errorf("%q", got)
	}
	if got := programVersion(valkeyVersion, "/no/such/program", "-v"); got != unknown {
		t.Errorf("a missing program has version %q", got)
	}
	if got := libraryVersion(nil, "x"); got != unknown {
		t.Errorf("a program without build information has version %q", got)
	}
}

// halfOf returns a half of a burst of which so many requests were allowed.
func halfOf(sent, allowed int, ended time.Time) half {
	h := half{ended: ended, reached: allowed}
	for i := range sent {
		status := 200
		if i >= allowed {
			status = 429
		}
		a := answer(status, "shared")
		a.Header.Set("Retry-After", "10")
		h.answers = append(h.answers, a)
	}
	return h
}

func TestBurstOverAnEdgeIsJudged(t *testing.T) {
	t.Parallel()
	edge := time.Date(2026, 1, 2, 3, 4, 10, 0, time.UTC)
	const fixed, sliding = 0, 1
	for _, tt := range []struct {
		name          string
		algorithm     int
		before, after int
		took          time.Duration // of the second half, from the edge on
		want          string
		ok            bool
	}{
		{"fixed, the whole limit twice", fixed, 100, 100, time.Second, "200 / 20 / 0", true},
		{"fixed, one too many", fixed, 100, 101, time.Second, "200 / 20 / 0", false},
		{"fixed, one too few", fixed, 100, 99, time.Second, "200 / 20 / 0", false},
		{"fixed, too few before", fixed, 99, 100, time.Second, "200 / 20 / 0", false},
		{"sliding, what a tenth of the window gives back", sliding, 100, 11, time.Second, "100 to 111", true},
		{"sliding, less", sliding, 100, 0, time.Second, "100 to 111", true},
		{"sliding, one too many", sliding, 100, 12, time.Second, "100 to 111", false},
		{"sliding, too soon", sliding, 100, 11, 500 * time.Millisecond, "100 to 106", false},
		{"sliding, too few before", sliding, 99, 1, time.Second, "100 to 111", false},
		{"sliding, too many before", sliding, 101, 1, time.Second, "100 to 111", false},
		{"sliding, as if it were fixed", sliding, 100, 100, time.Second, "100 to 111", false},
	} {
		b := &burst{algorithm: edgeAlgorithms[tt.algorithm],
			before: halfOf(110, tt.before, edge.Add(-time.Second)), after: halfOf(110, tt.after, edge.Add(tt.took))}
		r := judgeBurst(b, edge, 100, 10*time.Second, 2)
		if r.ok() != tt.ok || r.want != tt.want || r.sent != 220 || r.got != split(220, tt.before+tt.after) {
			t.Errorf("%s: %+v", tt.name, r)
		}
		b.after.reached++
		if r := judgeBurst(b, edge, 100, 10*time.Second, 2); r.ok() {
			t.Errorf("%s: a refused request reached the application: %+v", tt.name, r)
		}
	}
}

func TestLateBursts(t *testing.T) {
	t.Parallel()
	edge := time.Date(2026, 1, 2, 3, 4, 10, 0, time.UTC)
	for _, tt := range []struct {
		ended time.Duration // from the edge on
		took  time.Duration
		want  string
	}{
		{-time.Millisecond, 2 * time.Second, ""},
		{0, time.Second, "The edge came before the last answer"},
		{time.Second, 3 * time.Second, "The edge came before the last answer"},
		{-time.Millisecond, 2001 * time.Millisecond, "The burst took 2.0 s, more than 2.0 s"},
	} {
		in := &burst{before: half{ended: edge.Add(-time.Second)}}
		got := lateness([]*burst{in, {before: half{ended: edge.Add(tt.ended)}}}, edge, tt.took)
		if (got == "") != (tt.want == "") || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s, %s: %q, want %q", tt.ended, tt.took, got, tt.want)
		}
	}
}
