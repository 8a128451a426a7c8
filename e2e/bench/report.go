package main

import (
	_ "embed"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// result is what was found of one route.
type result struct {
	loads    []load // one per round
	scripts  int64  // calls of scripts in the store, in all rounds
	commands int64  // commands in the store, in all rounds
	logged   int64  // units that were added to logs, in all rounds
}

// requests returns how many there were in all rounds.
func (r *result) requests() int64 {
	requests := int64(0)
	for _, l := range r.loads {
		requests += l.Requests
	}
	return requests
}

// report is what was found of all: of each part nothing, where it was not measured.
type report struct {
	about      about
	plan       plan
	results    map[string]*result // by the name of the route
	algorithms map[string]*result // of algorithmRoutes
	rest       *atRest
	watched    *watched
	active     *active
	memory     *memory
	decisions  []decisions
	compared   []compared
}

// why says what was slow and why. It is written by hand, since no figure tells.
//
//go:embed why.md
var why string

// spread is the middle of some figures, and their ends.
type spread struct{ median, min, max float64 }

// spreadOf returns the spread of at least one figure.
func spreadOf(figures []float64) spread {
	sorted := slices.Sorted(slices.Values(figures))
	n := len(sorted)
	return spread{median: (sorted[(n-1)/2] + sorted[n/2]) / 2, min: sorted[0], max: sorted[n-1]}
}

// of returns the spread of a figure over the rounds.
func (r *result) of(figure func(load) float64) spread {
	figures := make([]float64, len(r.loads))
	for i, l := range r.loads {
		figures[i] = figure(l)
	}
	return spreadOf(figures)
}

// each returns a number of the store, per request of the route.
func (r *result) each(n int64) float64 {
	return float64(n) / float64(r.requests())
}

// ratio compares the requests per second of one route with those of another,
// round by round.
func ratio(of, to *result) spread {
	ratios := make([]float64, len(of.loads))
	for i := range of.loads {
		ratios[i] = of.loads[i].perSecond() / to.loads[i].perSecond()
	}
	return spreadOf(ratios)
}

// The processor time of a request, in microseconds.
func gatewayTime(l load) float64 { return float64(l.Gateway) / float64(l.Requests) }
func storeTime(l load) float64   { return float64(l.Store) / float64(l.Requests) }

func p50(l load) float64 { return float64(l.P50) / 1000 }
func p95(l load) float64 { return float64(l.P95) / 1000 }
func p99(l load) float64 { return float64(l.P99) / 1000 }

// print writes the tables for people who look at a terminal, and the figures for
// programs too, one on each line: "ratio NAME MEDIAN MIN MAX" and the like.
func (r *report) print(out io.Writer) {
	if r.results != nil {
		printRoutes(out, routes, r.results)
	}
	if r.algorithms != nil {
		printRoutes(out, algorithmRoutes, r.algorithms)
	}
	if r.rest != nil {
		fmt.Fprintln(out)
		printRest(out, restRoutes, r.rest)
	}
	if r.watched != nil {
		r.watched.print(out)
	}
	if r.active != nil {
		r.active.print(out)
	}
	if r.decisions != nil {
		fmt.Fprintln(out)
		r.printDecisions(out)
	}
	if r.compared != nil {
		printCompared(out, r.compared)
	}
	fmt.Fprintln(out)
	for _, f := range r.figures() {
		f.print(out)
	}
	fmt.Fprintln(out)
}

func printRest(out io.Writer, routes []string, x *atRest) {
	for _, name := range routes {
		q := x.whole[name]
		fmt.Fprintf(out, "at rest %-23s us p50 %5s p95 %5s p99 %5s p99.9 %6s\n", name, whole(q.p50), whole(q.p95), whole(q.p99), whole(q.p999))
	}
}

func printRoutes(out io.Writer, routes []route, results map[string]*result) {
	const layout = "%-23s %6s %6s %6s %7s %7s %7s %8s %8s %9s %10s\n"
	fmt.Fprintf(out, "\n"+layout, "route", "req/s", "min", "max", "p50 ms", "p95 ms", "p99 ms", "gw us/r", "db us/r", "scripts/r", "commands/r")
	for _, route := range routes {
		x := results[route.name]
		rate := x.of(load.perSecond)
		fmt.Fprintf(out, layout, route.name, whole(rate.median), whole(rate.min), whole(rate.max),
			hundredths(x.of(p50).median), hundredths(x.of(p95).median), hundredths(x.of(p99).median),
			whole(x.of(gatewayTime).median), whole(x.of(storeTime).median),
			hundredths(x.each(x.scripts)), hundredths(x.each(x.commands)))
	}
}

// decisionParts are the rows of a case.
var decisionParts = []struct {
	name, title string
	of          func(decisions) quantiles
}{
	{"decision", "decision", func(d decisions) quantiles { return d.whole }},
	{"wait", "its wait for the connection", func(d decisions) quantiles { return d.wait }},
	{"store", "its time with the store", func(d decisions) quantiles { return d.store }},
	{"answer", "its way back", func(d decisions) quantiles { return d.answered }},
	{"script", "one script, by the store's clock", func(d decisions) quantiles { return d.script }},
}

// decisionNotes say how each row was come by.
var decisionNotes = []string{
	"decision: all of the plugin's `ServeHTTP`, interpreted, called by as many goroutines as there are clients, each of\n" +
		"  which asks again at once; the handler behind it does nothing. There is no proxying in it, and no HTTP.",
	"its wait for the connection: from there to the kernel's stamp on the first byte of the call that counts it, on its\n" +
		"  way to the store. With one client nobody waits for a turn, so that row is what the plugin does before it writes;\n" +
		"  what others have on top of it is the wait, for a turn and for a processor.",
	"its time with the store: from that stamp to the one on the last byte of the answer. Loopback, the calls ahead of it\n" +
		"  in the same write, and the store's waiting for a processor are in it.",
	"its way back: from there to the return of `ServeHTTP`: reading the answers, waking up, and writing the fields.",
	"one script, by the store's clock: `INFO latencystats` and, for the mean, `INFO commandstats`, per call of the script,\n" +
		"  of which one serves all requests of a client that were waiting.",
	"Which call counted a request follows from what remained after it. The stamps come from a raw socket on loopback, so\n" +
		"  that nothing stands in the way of what is measured. Quantiles are of each row by itself: they do not add up.",
}

func (r *report) printDecisions(out io.Writer) {
	const layout = "%-22s %-9s %9s %9s %9s %9s\n"
	fmt.Fprintf(out, layout, "decisions, us", "part", "p50", "p95", "p99", "p99.9")
	for _, d := range r.decisions {
		for _, part := range decisionParts {
			q := part.of(d)
			fmt.Fprintf(out, layout, d.title(), part.name, whole(q.p50), whole(q.p95), whole(q.p99), whole(q.p999))
		}
		fmt.Fprintf(out, "%-22s %.0f decisions in a second, %.3f calls each, %.1f us a call on average\n", d.title(), d.perSecond, d.calls, d.mean)
	}
	for _, note := range decisionNotes {
		fmt.Fprintf(out, "- %s\n", note)
	}
}

func whole(x float64) string { return fmt.Sprintf("%.0f", x) }

func hundredths(x float64) string { return fmt.Sprintf("%.2f", x) }

// document is a text that grows line by line.
type document struct{ strings.Builder }

func (d *document) line(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

// markdown returns docs/performance.md, for which all parts must have been
// measured.
func (r *report) markdown() string {
	d := &document{}
	d.line("<!-- Written by `make bench` out of what it finds, and out of e2e/bench/why.md; changes by hand are lost. -->")
	d.line("# Performance")
	d.line("")
	d.line("What a request costs with Gatequota on its route, beside Traefik's own `rateLimit`. Traefik's is compiled")
	d.line("into it; Gatequota is interpreted, as every plugin is.")
	d.line("")
	d.line("![Requests per second of each route](performance.svg)")
	d.line("")
	d.line("## Targets")
	d.line("")
	d.line("What we want, and what this run found. Ratios were taken within each round: the median of them, the lowest and the")
	d.line("highest.")
	d.line("")
	d.line("| figure | wanted | found | lowest to highest | |")
	d.line("|---|---|---:|---:|---|")
	for _, f := range r.figures() {
		if f.target != nil {
			d.line("%s", f.row())
		}
	}
	d.line("")
	d.line("## What was slow, and why")
	d.line("")
	d.line("%s", strings.TrimSpace(why))
	d.line("")
	r.writeRoutes(d)
	r.writeAlgorithms(d)
	r.writeRest(d)
	r.writeWatched(d)
	r.writeDecisions(d)
	r.writeMemory(d)
	r.writeMethod(d)
	return d.String()
}

func (r *report) writeRoutes(d *document) {
	d.line("## Ratios")
	d.line("")
	d.line("Requests per second of Gatequota, divided by those of Traefik's own limiter in the same round. Above 1, Gatequota")
	d.line("is faster.")
	d.line("")
	d.line("| Gatequota | Traefik | requests | median | lowest | highest |")
	d.line("|---|---|---|---:|---:|---:|")
	for _, route := range routes {
		if route.against == "" {
			continue
		}
		s := ratio(r.results[route.name], r.results[route.against])
		d.line("| %s | %s | %s | **%.2f** | %.2f | %.2f |", strings.TrimPrefix(route.title, "Gatequota, "),
			strings.TrimPrefix(byName[route.against].title, "Traefik "), outcome(route), s.median, s.min, s.max)
	}
	d.line("")
	d.line("## Figures")
	d.line("")
	d.line("Medians of %d rounds. The latencies are those of a gateway that is kept as busy as it can be: with %d requests", r.plan.rounds, r.plan.connections)
	d.line("under way at any time, they follow from the throughput, and say little about one that has time to spare.")
	d.line("")
	d.line("| route | requests | requests/s | lowest to highest | p50 ms | p95 ms | p99 ms |")
	d.line("|---|---|---:|---:|---:|---:|---:|")
	for _, route := range routes {
		x := r.results[route.name]
		rate := x.of(load.perSecond)
		d.line("| %s | %s | %s | %s to %s | %s | %s | %s |", route.title, outcome(route),
			whole(rate.median), whole(rate.min), whole(rate.max),
			hundredths(x.of(p50).median), hundredths(x.of(p95).median), hundredths(x.of(p99).median))
	}
	d.line("")
	d.line("## Cost of a request")
	d.line("")
	d.line("Processor time is what the kernel counted for the whole process, garbage collection included: the median of the")
	d.line("rounds, and the lowest, on which other work on the machine told least. Calls are those of a script;")
	d.line("commands are all that the store ran, those inside of the script included.")
	d.line("")
	d.line("| route | requests | Traefik, µs | lowest | Valkey, µs | lowest | calls | commands |")
	d.line("|---|---|---:|---:|---:|---:|---:|---:|")
	for _, route := range routes {
		x := r.results[route.name]
		gateway, store := x.of(gatewayTime), x.of(storeTime)
		d.line("| %s | %s | %s | %s | %s | %s | %s | %s |", route.title, outcome(route),
			whole(gateway.median), whole(gateway.min), whole(store.median), whole(store.min),
			hundredths(x.each(x.scripts)), hundredths(x.each(x.commands)))
	}
	d.line("")
}

func (r *report) writeAlgorithms(d *document) {
	rounds, duration := r.plan.algorithmRounds()
	d.line("## Algorithms")
	d.line("")
	d.line("Each algorithm in mode shared, beside Traefik's own limiter with redis, which is a token bucket: %d rounds of their", rounds)
	d.line("own, %s a route. Ratios are of requests per second within a round; the rest are medians, and what the store did", duration)
	d.line("for a request.")
	d.line("")
	d.line("| limiter | requests | requests/s | ratio | lowest | highest | wanted | | Traefik, µs | Valkey, µs | calls | commands |")
	d.line("|---|---|---:|---:|---:|---:|---|---|---:|---:|---:|---:|")
	for _, route := range algorithmRoutes {
		x := r.algorithms[route.name]
		compared := " | | "
		wanted, verdict := "", ""
		if route.against != "" {
			s := ratio(x, r.algorithms[route.against])
			compared = fmt.Sprintf("**%.2f** | %.2f | %.2f", s.median, s.min, s.max)
			if target := algorithmTargets[route.name]; target != nil {
				wanted, verdict = target.wanted(), target.verdict(s.median)
			}
		}
		d.line("| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |", route.title, outcome(route), whole(x.of(load.perSecond).median),
			compared, wanted, verdict, whole(x.of(gatewayTime).median), whole(x.of(storeTime).median),
			hundredths(x.each(x.scripts)), hundredths(x.each(x.commands)))
	}
	d.line("")
	d.line("The sliding window has counts in two windows. The log is of windows of a second, so that it holds as many requests as")
	d.line("come in one; its commands grow with the requests, since each is an entry of its own.")
	d.line("")
}

func (r *report) writeRest(d *document) {
	d.line("## Latency at rest")
	d.line("")
	d.line("One connection, one request at a time, each route in turn: %d requests a route. Times in µs, from the first byte", len(r.rest.rounds)*restRequests)
	d.line("that is sent to the last that is read.")
	d.line("")
	d.line("| route | p50 | p95 | p99 | p99.9 |")
	d.line("|---|---:|---:|---:|---:|")
	for _, name := range restRoutes {
		q := r.rest.whole[name]
		d.line("| %s | %s | %s | %s | %s |", byName[name].title, whole(q.p50), whole(q.p95), whole(q.p99), whole(q.p999))
	}
	d.line("")
}

func (r *report) writeDecisions(d *document) {
	d.line("## A decision")
	d.line("")
	d.line("What a decision takes without a gateway around it, and where its time goes, in µs. In one process the clients ask as")
	d.line("fast as they can, so with many of them most of the time is spent waiting for a processor: Traefik, which has more")
	d.line("to do for each request, asks less often.")
	d.line("")
	d.line("| clients | | p50 | p95 | p99 | p99.9 |")
	d.line("|---|---|---:|---:|---:|---:|")
	for _, decisions := range r.decisions {
		title := decisions.title()
		for _, part := range decisionParts {
			q := part.of(decisions)
			d.line("| %s | %s | %s | %s | %s | %s |", title, part.title, whole(q.p50), whole(q.p95), whole(q.p99), whole(q.p999))
			title = ""
		}
	}
	d.line("")
	d.line("| clients | decisions/s | calls a decision | mean of a call, µs |")
	d.line("|---|---:|---:|---:|")
	for _, decisions := range r.decisions {
		d.line("| %s | %s | %.3f | %.1f |", decisions.title(), whole(decisions.perSecond), decisions.calls, decisions.mean)
	}
	d.line("")
	d.line("How each is come by:")
	d.line("")
	for _, note := range decisionNotes {
		d.line("- %s", note)
	}
	d.line("")
}

func (r *report) writeMemory(d *document) {
	d.line("## Memory")
	d.line("")
	d.line("With %d tracked clients, in a process that interprets the plugin as Traefik does, a client takes %s bytes of the", trackedClients, whole(r.memory.local))
	d.line("heap in mode local and %s in mode shared: what is in use after a collection, less what was before the clients came,", whole(r.memory.shared))
	d.line("divided by their number. A second request of each shows that all of them are remembered.")
	d.line("")
	d.line("Windows in which as many were tracked end while one request after the other is sent. The longest request within")
	d.line("%s of the edge, in ms, at %d edges at each of which an expired window was dropped:", around, len(r.memory.after))
	d.line("")
	d.line("| | median | lowest | highest |")
	d.line("|---|---:|---:|---:|")
	for _, row := range []struct {
		title  string
		pauses []pause
		of     func(pause) time.Duration
	}{
		{"after the edge", r.memory.after, wall},
		{"before the edge", r.memory.before, wall},
		{"after the edge, processor time", r.memory.after, busy},
		{"before the edge, processor time", r.memory.before, busy},
	} {
		s := spreadOf(milliseconds(row.pauses, row.of))
		d.line("| %s | %s | %s | %s |", row.title, hundredths(s.median), hundredths(s.min), hundredths(s.max))
	}
	d.line("")
	d.line("Before the edge there is nothing to drop: so much is due to the collection of garbage, and to the machine. Since a")
	d.line("window is dropped at each of the edges and others only add to what that takes, the lowest is what counts.")
	d.line("Processor time is that of the request's own thread.")
	d.line("")
}

func (r *report) writeMethod(d *document) {
	d.line("## How it was measured")
	d.line("")
	d.line("On %s, in one run:", r.about.date)
	d.line("")
	d.line("- Machine: %s, %d cores, %s, %s. Load average before the run: %s. wrk, Traefik, Valkey and the", r.about.cpu, r.about.cores, r.about.memory, r.about.system, r.about.load)
	d.line("  application share the cores, so that the figures of another machine, or of several, will be others: compare ratios.")
	if r.plan.note != "" {
		d.line("  %s", r.plan.note)
	}
	d.line("- Traefik %s with one entry point, no access log and no metrics; the plugin as a local plugin.", r.about.traefik)
	d.line("- Valkey %s without persistence, over loopback.", r.about.valkey)
	d.line("- Two replicas that answer `ok` (Go %s).", r.about.golang)
	d.line("- Load: `wrk -t1 -c%d -d%ds` (%s), every request with an `X-API-Key`, which is what all the limiters count by: always", r.plan.connections, int(r.plan.duration.Seconds()), r.about.wrk)
	d.line("  the same, or, with many clients, %d of them in random order, each of which returns when all others had their turn.", manyKeys)
	d.line("- Each round loads each route once, one after the other, every other round in the reverse order. Before the first")
	d.line("  round each route is warmed up for %s, those with many clients for %s.", warmUp, warmUpMany)
	d.line("- Allowed: no limit is ever reached. Refused: the limit is 1 in a window that outlasts the run (Traefik's own: 1 in an")
	d.line("  hour), so every request but the first gets 429. A route that answers anything else ends the run, and so does one")
	d.line("  whose requests the store has not counted.")
	d.line("- Traefik's own limiter is a token bucket: it has no windows, and with redis it calls a script for each request, the")
	d.line("  refused ones too. Gatequota counts in fixed windows where no other algorithm is named. Its keys last until the end of")
	d.line("  the window; those of Traefik's many clients are made to last an hour, so that neither side has to make them anew")
	d.line("  while it is measured.")
	d.line("- Gatequota sends its rate-limit fields with every answer; Traefik's own limiter has none for allowed requests.")
	d.line("")
	d.line("To repeat it: `make bench`, as root on Debian; for decisions alone `make bench-decision`. For rounds, durations,")
	d.line("connections and single parts see `go -C e2e run ./bench -help`.")
}
