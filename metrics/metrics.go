// Package metrics tells in the text format of Prometheus, version 0.0.4, what a gateway
// counts. All label values come from the configuration, or from what an operator has set in
// its place, none from a client.
package metrics

import (
	"io"
	"net/http"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/tally"
	"github.com/gatequota/gatequota/version"
)

// contentType is the type of what Serve answers.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

// A View is what neither package limiter nor package tally knows.
type View struct {
	// Controls are the scopes in which live control is on, in any order. Of several for one
	// scope the one that was read least lately counts.
	Controls []Control
}

// A Control is what this gateway obeys in a scope.
type Control struct {
	Scope   string
	Version int64 // of the last change, 0 if there was none
	// Age is the time since it was last read, and since it was first wanted if it never was.
	Age     time.Duration
	Enabled bool // else everything passes
	DryRun  bool // everything passes and is counted, by a change and not by an option
}

// Serve answers a request, whose method is GET or HEAD, with all metrics of this gateway.
// Whoever calls it knows that the peer may read them.
func Serve(w http.ResponseWriter, req *http.Request, v *View) {
	body := text(limiter.Reports(), tally.All(), v)
	header := w.Header()
	header.Set("Content-Type", contentType)
	header.Set("Content-Length", strconv.Itoa(len(body)))
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	if req.Method == http.MethodHead {
		return
	}
	// A peer that has gone away needs no answer.
	_, _ = io.WriteString(w, body)
}

// text returns all metrics of this gateway, in an order that does not change.
func text(report *limiter.Report, totals []tally.Total, v *View) string {
	b := &strings.Builder{}
	family(b, "build_info", "gauge", "The version of the plugin, as a label.")
	sample(b, "build_info", label("version", version.Number), "1")
	decisions(b, totals)
	stores(b, report.Stores)
	tables(b, report.Tables)
	controls(b, v.Controls)
	return b.String()
}

func decisions(b *strings.Builder, totals []tally.Total) {
	family(b, "decisions_total", "counter", "Requests by what became of them and by which way; an empty rule is the top level.")
	for _, t := range totals {
		sample(b, "decisions_total", label("scope", t.Scope)+","+label("rule", t.Rule)+","+
			label("outcome", t.Outcome)+","+label("way", t.Way), strconv.FormatInt(t.Count, 10))
	}
}

// classes are the failures that are shown before they happen, so that their first one is
// seen as an increase. What else there is are words of the server.
var classes = []string{"crowded", "dial", "key", "lost", "other", "panic", "protocol", "refused", "timeout"}

// classesOf returns all classes of failures of a store in their order.
func classesOf(s *limiter.StoreReport) []string {
	all := append([]string(nil), classes...)
	for class := range s.Errors {
		at := sort.SearchStrings(classes, class)
		if at == len(classes) || classes[at] != class {
			all = append(all, class)
		}
	}
	sort.Strings(all)
	return all
}

func stores(b *strings.Builder, reports []limiter.StoreReport) {
	var all []*limiter.StoreReport
	for i := range reports {
		all = append(all, &reports[i])
	}
	family(b, "store_up", "gauge", "Whether the store is asked (1) or left alone since it failed (0); absent while it is not in use.")
	for _, s := range all {
		if s.Used {
			sample(b, "store_up", label("store", s.Endpoint), digit(!s.Away))
		}
	}
	family(b, "store_changes_total", "counter", "How often the store went away and came back.")
	for _, s := range all {
		store := label("store", s.Endpoint)
		sample(b, "store_changes_total", store+`,to="away"`, strconv.FormatInt(s.WentAway, 10))
		sample(b, "store_changes_total", store+`,to="back"`, strconv.FormatInt(s.CameBack, 10))
	}
	family(b, "store_round_trips_total", "counter", "Batches of calls that the store answered or should have answered.")
	for _, s := range all {
		sample(b, "store_round_trips_total", label("store", s.Endpoint), strconv.FormatInt(s.RoundTrips, 10))
	}
	family(b, "store_errors_total", "counter", "Failures of the store by class, which may be the first word of its answer.")
	for _, s := range all {
		for _, class := range classesOf(s) {
			sample(b, "store_errors_total", label("store", s.Endpoint)+","+label("class", class), strconv.FormatInt(s.Errors[class], 10))
		}
	}
	family(b, "store_latency_seconds", "histogram", "How long round trips to the store took.")
	for _, s := range all {
		histogram(b, "store_latency_seconds", label("store", s.Endpoint), &s.Latency)
	}
	family(b, "store_batch_requests", "histogram", "Requests that were merged into one round trip.")
	for _, s := range all {
		histogram(b, "store_batch_requests", label("store", s.Endpoint), &s.Batches)
	}
	family(b, "store_clock_offset_seconds", "gauge", "The clock of the store minus that of this machine.")
	for _, s := range all {
		if s.Used {
			sample(b, "store_clock_offset_seconds", label("store", s.Endpoint), float(s.ClockOffset.Seconds()))
		}
	}
}

// tables adds up what no label tells apart: the counts of one name in a scope may stand in
// several stores, or in one of them and in this gateway alone.
func tables(b *strings.Builder, reports []limiter.TableReport) {
	allowed, settled := map[string]int64{}, map[string]int64{}
	clients, bounds := map[string]int64{}, map[string]int64{}
	gateways := map[string]int64{}
	for i := range reports {
		t := &reports[i]
		scope := label("scope", t.Scope)
		count := scope + "," + label("count", t.Count)
		table := count + "," + label("window", strconv.FormatInt(t.Window, 10))
		allowed[count] += t.OutageAllowed
		settled[count] += t.OutageSettled
		clients[table] += int64(t.Clients)
		bounds[table] += int64(t.MaxClients)
		if t.Gateways > gateways[scope] {
			gateways[scope] = t.Gateways
		}
	}
	samples(b, "outage_allowed_total", "counter", "Requests that passed without the store.", allowed)
	samples(b, "outage_settled_total", "counter", "Those of them that were added to the count of the store afterwards.", settled)
	samples(b, "clients", "gauge", "Clients that this gateway holds in memory; the window is in seconds.", clients)
	samples(b, "clients_max", "gauge", "Clients that this gateway holds in memory at most.", bounds)
	samples(b, "gateways", "gauge", "Gateways that serve the scope, as this one learnt from the store; absent if it never did.", gateways)
}

func controls(b *strings.Builder, all []Control) {
	versions, enabled, dryRuns := map[string]int64{}, map[string]int64{}, map[string]int64{}
	ages := map[string]time.Duration{}
	for i := range all {
		c := &all[i]
		scope := label("scope", c.Scope)
		if age, found := ages[scope]; found && age >= c.Age {
			continue
		}
		ages[scope] = c.Age
		versions[scope] = c.Version
		enabled[scope] = number(c.Enabled)
		dryRuns[scope] = number(c.DryRun)
	}
	samples(b, "control_version", "gauge", "The version of live control that this gateway obeys.", versions)
	family(b, "control_age_seconds", "gauge", "Time since this gateway last read live control.")
	for _, scope := range keys(versions) {
		sample(b, "control_age_seconds", scope, float(ages[scope].Seconds()))
	}
	samples(b, "enabled", "gauge", "Whether the scope is limited (1) or switched off by live control (0).", enabled)
	samples(b, "dry_run", "gauge", "Whether live control makes all of the scope a dry run (1) or not (0).", dryRuns)
}

// samples writes a family of integers by their labels.
func samples(b *strings.Builder, name, kind, help string, values map[string]int64) {
	family(b, name, kind, help)
	for _, labels := range keys(values) {
		sample(b, name, labels, strconv.FormatInt(values[labels], 10))
	}
}

func keys(values map[string]int64) []string {
	all := make([]string, 0, len(values))
	for key := range values {
		all = append(all, key)
	}
	sort.Strings(all)
	return all
}

// family begins a family. A name stands without the prefix that all share.
func family(b *strings.Builder, name, kind, help string) {
	b.WriteString("# HELP gatequota_" + name + " " + help + "\n# TYPE gatequota_" + name + " " + kind + "\n")
}

func sample(b *strings.Builder, name, labels, value string) {
	b.WriteString("gatequota_" + name + "{" + labels + "} " + value + "\n")
}

// histogram writes a histogram as the format has it: cumulative, and with the total as the
// last bucket.
func histogram(b *strings.Builder, name, labels string, h *limiter.Histogram) {
	total := int64(0)
	for i, n := range h.Counts {
		total += n
		if i < len(h.Bounds) {
			sample(b, name+"_bucket", labels+`,le="`+float(h.Bounds[i])+`"`, strconv.FormatInt(total, 10))
		}
	}
	count := strconv.FormatInt(total, 10)
	sample(b, name+"_bucket", labels+`,le="+Inf"`, count)
	sample(b, name+"_sum", labels, float(h.Sum))
	sample(b, name+"_count", labels, count)
}

var escape = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// label returns a label. Prometheus refuses an answer in which one value is no UTF-8, so
// what is none is replaced.
func label(name, value string) string {
	return name + `="` + escape.Replace(strings.ToValidUTF8(value, "\uFFFD")) + `"`
}

func float(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

func number(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}

func digit(yes bool) string { return strconv.FormatInt(number(yes), 10) }
