package metrics

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/tally"
	"github.com/gatequota/gatequota/version"
)

func TestText(t *testing.T) {
	report := &limiter.Report{
		Stores: []limiter.StoreReport{
			{Endpoint: "unused:6379"},
			{
				Endpoint: "valkey:6379", Used: true, Away: true, RoundTrips: 9, WentAway: 2, CameBack: 1,
				Errors:      map[string]int64{"timeout": 2, "READONLY": 1},
				Latency:     limiter.Histogram{Bounds: []float64{0.0005, 0.1}, Counts: []int64{5, 3, 1}, Sum: 0.25},
				Batches:     limiter.Histogram{Bounds: []float64{1, 2}, Counts: []int64{7, 0, 2}, Sum: 17},
				ClockOffset: -1500 * time.Millisecond,
			},
		},
		Tables: []limiter.TableReport{
			{Scope: "b", Window: 60, Clients: 1, MaxClients: 10},
			{Scope: "a", Count: "login", Store: "valkey:6379", Window: 60, Clients: 3, MaxClients: 100, Gateways: 2, OutageAllowed: 5, OutageSettled: 4},
			{Scope: "a", Count: "login", Store: "valkey:6379", Window: 3600, Clients: 4, MaxClients: 100, Gateways: 3, OutageAllowed: 7, OutageSettled: 1},
		},
	}
	totals := []tally.Total{
		{Scope: "a", Outcome: "allowed", Way: "shared", Count: 12},
		{Scope: "a", Rule: "login", Outcome: "refused", Way: "memory", Count: 1 << 40},
	}
	view := &View{Controls: []Control{
		{Scope: "b", Version: 7, Age: 1250 * time.Millisecond, Enabled: true},
		{Scope: "a", Version: 1, Age: time.Minute, DryRun: true},
	}}
	want := `
gatequota_build_info{version="` + version.Number + `"} 1
gatequota_decisions_total{scope="a",rule="",outcome="allowed",way="shared"} 12
gatequota_decisions_total{scope="a",rule="login",outcome="refused",way="memory"} 1099511627776
gatequota_store_up{store="valkey:6379"} 0
gatequota_store_changes_total{store="unused:6379",to="away"} 0
gatequota_store_changes_total{store="unused:6379",to="back"} 0
gatequota_store_changes_total{store="valkey:6379",to="away"} 2
gatequota_store_changes_total{store="valkey:6379",to="back"} 1
gatequota_store_round_trips_total{store="unused:6379"} 0
gatequota_store_round_trips_total{store="valkey:6379"} 9
gatequota_store_errors_total{store="unused:6379",class="crowded"} 0
gatequota_store_errors_total{store="unused:6379",class="dial"} 0
gatequota_store_errors_total{store="unused:6379",class="key"} 0
gatequota_store_errors_total{store="unused:6379",class="lost"} 0
gatequota_store_errors_total{store="unused:6379",class="other"} 0
gatequota_store_errors_total{store="unused:6379",class="panic"} 0
gatequota_store_errors_total{store="unused:6379",class="protocol"} 0
gatequota_store_errors_total{store="unused:6379",class="refused"} 0
gatequota_store_errors_total{store="unused:6379",class="timeout"} 0
gatequota_store_errors_total{store="valkey:6379",class="READONLY"} 1
gatequota_store_errors_total{store="valkey:6379",class="crowded"} 0
gatequota_store_errors_total{store="valkey:6379",class="dial"} 0
gatequota_store_errors_total{store="valkey:6379",class="key"} 0
gatequota_store_errors_total{store="valkey:6379",class="lost"} 0
gatequota_store_errors_total{store="valkey:6379",class="other"} 0
gatequota_store_errors_total{store="valkey:6379",class="panic"} 0
gatequota_store_errors_total{store="valkey:6379",class="protocol"} 0
gatequota_store_errors_total{store="valkey:6379",class="refused"} 0
gatequota_store_errors_total{store="valkey:6379",class="timeout"} 2
gatequota_store_latency_seconds_bucket{store="unused:6379",le="+Inf"} 0
gatequota_store_latency_seconds_sum{store="unused:6379"} 0
gatequota_store_latency_seconds_count{store="unused:6379"} 0
gatequota_store_latency_seconds_bucket{store="valkey:6379",le="0.0005"} 5
gatequota_store_latency_seconds_bucket{store="valkey:6379",le="0.1"} 8
gatequota_store_latency_seconds_bucket{store="valkey:6379",le="+Inf"} 9
gatequota_store_latency_seconds_sum{store="valkey:6379"} 0.25
gatequota_store_latency_seconds_count{store="valkey:6379"} 9
gatequota_store_batch_requests_bucket{store="unused:6379",le="+Inf"} 0
gatequota_store_batch_requests_sum{store="unused:6379"} 0
gatequota_store_batch_requests_count{store="unused:6379"} 0
gatequota_store_batch_requests_bucket{store="valkey:6379",le="1"} 7
gatequota_store_batch_requests_bucket{store="valkey:6379",le="2"} 7
gatequota_store_batch_requests_bucket{store="valkey:6379",le="+Inf"} 9
gatequota_store_batch_requests_sum{store="valkey:6379"} 17
gatequota_store_batch_requests_count{store="valkey:6379"} 9
gatequota_store_clock_offset_seconds{store="valkey:6379"} -1.5
gatequota_outage_allowed_total{scope="a",count="login"} 12
gatequota_outage_allowed_total{scope="b",count=""} 0
gatequota_outage_settled_total{scope="a",count="login"} 5
gatequota_outage_settled_total{scope="b",count=""} 0
gatequota_clients{scope="a",count="login",window="3600"} 4
gatequota_clients{scope="a",count="login",window="60"} 3
gatequota_clients{scope="b",count="",window="60"} 1
gatequota_clients_max{scope="a",count="login",window="3600"} 100
gatequota_clients_max{scope="a",count="login",window="60"} 100
gatequota_clients_max{scope="b",count="",window="60"} 10
gatequota_gateways{scope="a"} 3
gatequota_control_version{scope="a"} 1
gatequota_control_version{scope="b"} 7
gatequota_control_age_seconds{scope="a"} 60
gatequota_control_age_seconds{scope="b"} 1.25
gatequota_enabled{scope="a"} 0
gatequota_enabled{scope="b"} 1
gatequota_dry_run{scope="a"} 1
gatequota_dry_run{scope="b"} 0
`
	got := text(report, totals, view)
	if diff := difference("\n"+samplesOf(got), want); diff != "" {
		t.Error(diff)
	}
	for i := 0; i < 20; i++ {
		if again := text(report, totals, view); again != got {
			t.Fatal("the same is written in another order:\n" + difference(again, got))
		}
	}
}

// Each family is announced once, before its samples, and no sample stands apart from its
// family.
func TestFamilies(t *testing.T) {
	report := &limiter.Report{
		Stores: []limiter.StoreReport{{Endpoint: "a:1", Used: true}, {Endpoint: "b:1", Used: true}},
		Tables: []limiter.TableReport{{Scope: "a", Gateways: 1}},
	}
	got := text(report, []tally.Total{{Scope: "a"}}, &View{Controls: []Control{{Scope: "a"}}})
	if !strings.HasSuffix(got, "\n") {
		t.Error("the last line does not end")
	}
	seen, family, kind := map[string]bool{}, "", ""
	for _, line := range strings.Split(strings.TrimSuffix(got, "\n"), "\n") {
		words := strings.SplitN(line, " ", 4)
		switch {
		case strings.HasPrefix(line, "# HELP "):
			family, kind = words[2], ""
			if seen[family] || len(words) != 4 || !strings.HasSuffix(words[3], ".") || strings.Contains(words[3], `\`) {
				t.Errorf("wrong or again: %q", line)
			}
			seen[family] = true
		case strings.HasPrefix(line, "# TYPE "):
			kind = words[3]
			if words[2] != family || (kind == "counter") != strings.HasSuffix(family, "_total") {
				t.Errorf("wrong: %q in the family %s", line, family)
			}
		default:
			name, _, _ := strings.Cut(line, "{")
			rest := strings.TrimPrefix(name, family)
			if rest != "" && (kind != "histogram" || rest != "_bucket" && rest != "_sum" && rest != "_count") {
				t.Errorf("%q stands in the family %s of the kind %s", line, family, kind)
			}
		}
	}
	if len(seen) != 18 {
		t.Errorf("%d families: %v", len(seen), seen)
	}
}

func TestLabelsAreEscaped(t *testing.T) {
	for value, want := range map[string]string{
		"":                        `x=""`,
		"unix:///run/valkey.sock": `x="unix:///run/valkey.sock"`,
		`a"b`:                     `x="a\"b"`,
		`a\b`:                     `x="a\\b"`,
		`a\`:                      `x="a\\"`,
		"a\nb":                    `x="a\nb"`,
		`a\nb`:                    `x="a\\nb"`,
		"ä":                       `x="ä"`,
		"a\xffb":                  "x=\"a\uFFFDb\"",
	} {
		if got := label("x", value); got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
	odd := "unix:///a \"b\"\\\n"
	got := text(&limiter.Report{Stores: []limiter.StoreReport{{Endpoint: odd, Used: true, Errors: map[string]int64{odd: 1}}}}, nil, &View{})
	if !strings.Contains(got, `gatequota_store_errors_total{store="unix:///a \"b\"\\\n",class="unix:///a \"b\"\\\n"} 1`+"\n") {
		t.Error(got)
	}
}

// What no label tells apart is one sample.
func TestWhatNoLabelTellsApart(t *testing.T) {
	report := &limiter.Report{
		Tables: []limiter.TableReport{
			{Scope: "a", Store: "s", Window: 60, Clients: 1, MaxClients: 10, Gateways: 4, OutageAllowed: 1, OutageSettled: 2},
			{Scope: "a", Store: "", Window: 60, Clients: 2, MaxClients: 20, OutageAllowed: 4, OutageSettled: 8},
			{Scope: "a", Store: "r", Window: 60, Gateways: 3},
		},
	}
	view := &View{Controls: []Control{{Scope: "a", Version: 1, Age: 1, Enabled: true}, {Scope: "a", Version: 2, Age: time.Second}, {Scope: "a", Version: 3}}}
	got := samplesOf(text(report, nil, view))
	for _, want := range []string{
		`outage_allowed_total{scope="a",count=""} 5`, `outage_settled_total{scope="a",count=""} 10`,
		`clients{scope="a",count="",window="60"} 3`, `clients_max{scope="a",count="",window="60"} 30`, `gateways{scope="a"} 4`,
		`control_version{scope="a"} 2`, `control_age_seconds{scope="a"} 1`, `enabled{scope="a"} 0`,
	} {
		if strings.Count("\n"+got, "\ngatequota_"+want+"\n") != 1 {
			t.Errorf("%s is there not once", want)
		}
	}
	seen := map[string]bool{}
	for _, line := range strings.Split(got, "\n") {
		labels, _, _ := strings.Cut(line, "} ")
		if seen[labels] {
			t.Errorf("%s stands there twice", labels)
		}
		seen[labels] = true
	}
}

func TestServe(t *testing.T) {
	tally.Add(tally.Open("served", ""), tally.AllowedShared)
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		w := httptest.NewRecorder()
		Serve(w, httptest.NewRequest(method, "/", nil), &View{})
		for name, want := range map[string]string{"Content-Type": "text/plain; version=0.0.4; charset=utf-8", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", method, name, got, want)
			}
		}
		if n, err := strconv.Atoi(w.Header().Get("Content-Length")); err != nil || n < 100 || method == http.MethodGet && n != w.Body.Len() {
			t.Errorf("%s: content length %q of %d", method, w.Header().Get("Content-Length"), w.Body.Len())
		}
		if w.Code != http.StatusOK {
			t.Errorf("%s: status %d", method, w.Code)
		}
		if method == http.MethodHead && w.Body.Len() != 0 {
			t.Errorf("HEAD gets a body: %s", w.Body)
		}
		if method == http.MethodGet && !strings.Contains(w.Body.String(), `gatequota_decisions_total{scope="served",rule="",outcome="allowed",way="shared"} 1`) {
			t.Errorf("GET gets %s", w.Body)
		}
	}
}

// BenchmarkText is for ten scopes with two rules each.
func BenchmarkText(b *testing.B) {
	report, totals := &limiter.Report{}, []tally.Total{}
	for i := 0; i < 10; i++ {
		scope := "scope-" + strconv.Itoa(i)
		report.Tables = append(report.Tables, limiter.TableReport{Scope: scope, Window: 60, MaxClients: 100, Gateways: 2})
		for j := 0; j < 45; j++ {
			totals = append(totals, tally.Total{Scope: scope, Rule: strconv.Itoa(j / 15), Outcome: "allowed", Way: strconv.Itoa(j % 15)})
		}
	}
	for i := 0; i < b.N; i++ {
		_ = text(report, totals, &View{})
	}
}

// samplesOf returns the lines of a text that are no comments.
func samplesOf(text string) string {
	var b strings.Builder
	for _, line := range strings.SplitAfter(text, "\n") {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// difference returns the first lines in which two texts differ, and nothing if none do.
func difference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := 0; i < len(a) && i < len(b); i++ {
		if a[i] != b[i] {
			return "line " + strconv.Itoa(i) + ": " + a[i] + "\nwant:   " + b[i]
		}
	}
	if len(a) != len(b) {
		return strconv.Itoa(len(a)) + " lines, want " + strconv.Itoa(len(b))
	}
	return ""
}
