package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// result is what was found of one route.
type result struct {
	loads    []load // one per round
	scripts  int64  // calls of scripts in the store, in all rounds
	commands int64  // commands in the store, in all rounds
}

// report is what was found of all.
type report struct {
	about   about
	plan    plan
	results map[string]*result // by the name of the route
}

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
	requests := int64(0)
	for _, l := range r.loads {
		requests += l.Requests
	}
	return float64(n) / float64(requests)
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

// print writes the figures for people who look at a terminal, and the ratios for
// programs too: "ratio NAME MEDIAN MIN MAX", one line each.
func (r *report) print(out io.Writer) {
	const layout = "%-23s %6s %6s %6s %7s %7s %7s %8s %8s %9s %10s\n"
	fmt.Fprintf(out, "\n"+layout, "route", "req/s", "min", "max", "p50 ms", "p95 ms", "p99 ms", "gw us/r", "db us/r", "scripts/r", "commands/r")
	for _, route := range routes {
		x := r.results[route.name]
		rate := x.of(load.perSecond)
		fmt.Fprintf(out, layout, route.name, whole(rate.median), whole(rate.min), whole(rate.max),
			hundredths(x.of(p50).median), hundredths(x.of(p95).median), hundredths(x.of(p99).median),
			whole(x.of(gatewayTime).median), whole(x.of(storeTime).median),
			hundredths(x.each(x.scripts)), hundredths(x.each(x.commands)))
	}
	fmt.Fprintln(out)
	for _, route := range routes {
		if route.against != "" {
			s := ratio(r.results[route.name], r.results[route.against])
			fmt.Fprintf(out, "ratio %s %.3f %.3f %.3f\n", route.name, s.median, s.min, s.max)
		}
	}
	fmt.Fprintln(out)
}

func whole(x float64) string { return fmt.Sprintf("%.0f", x) }

func hundredths(x float64) string { return fmt.Sprintf("%.2f", x) }

func outcome(r route) string {
	if r.refused {
		return "refused"
	}
	return "allowed"
}

// markdown returns docs/performance.md.
func (r *report) markdown() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	byName := map[string]route{}
	for _, route := range routes {
		byName[route.name] = route
	}

	line("<!-- Written by `make bench`; changes by hand are lost. -->")
	line("# Performance")
	line("")
	line("What a request costs with Gatequota on its route, beside Traefik's own `rateLimit`. Traefik's is compiled")
	line("into it; Gatequota is interpreted, as every plugin is.")
	line("")
	line("![Requests per second of each route](performance.svg)")
	line("")
	line("## Ratios")
	line("")
	line("Requests per second of Gatequota, divided by those of Traefik's own limiter in the same round. Above 1, Gatequota")
	line("is faster.")
	line("")
	line("| Gatequota | Traefik | requests | median | lowest | highest |")
	line("|---|---|---|---:|---:|---:|")
	for _, route := range routes {
		if route.against == "" {
			continue
		}
		s := ratio(r.results[route.name], r.results[route.against])
		line("| %s | %s | %s | **%.2f** | %.2f | %.2f |", strings.TrimPrefix(route.title, "Gatequota, "),
			strings.TrimPrefix(byName[route.against].title, "Traefik "), outcome(route), s.median, s.min, s.max)
	}
	line("")
	line("## Figures")
	line("")
	line("Medians of %d rounds. The latencies are those of a gateway that is kept as busy as it can be: with %d requests", r.plan.rounds, r.plan.connections)
	line("under way at any time, they follow from the throughput, and say little about one that has time to spare.")
	line("")
	line("| route | requests | requests/s | lowest to highest | p50 ms | p95 ms | p99 ms |")
	line("|---|---|---:|---:|---:|---:|---:|")
	for _, route := range routes {
		x := r.results[route.name]
		rate := x.of(load.perSecond)
		line("| %s | %s | %s | %s to %s | %s | %s | %s |", route.title, outcome(route),
			whole(rate.median), whole(rate.min), whole(rate.max),
			hundredths(x.of(p50).median), hundredths(x.of(p95).median), hundredths(x.of(p99).median))
	}
	line("")
	line("## Cost of a request")
	line("")
	line("Processor time is what the kernel counted for the whole process, garbage collection included: the median of the")
	line("rounds, and the lowest, on which other work on the machine told least. Round trips are calls of a script;")
	line("commands are all that the store ran, those inside of the script included.")
	line("")
	line("| route | requests | Traefik, µs | lowest | Valkey, µs | lowest | round trips | commands |")
	line("|---|---|---:|---:|---:|---:|---:|---:|")
	for _, route := range routes {
		x := r.results[route.name]
		gateway, store := x.of(gatewayTime), x.of(storeTime)
		line("| %s | %s | %s | %s | %s | %s | %s | %s |", route.title, outcome(route),
			whole(gateway.median), whole(gateway.min), whole(store.median), whole(store.min),
			hundredths(x.each(x.scripts)), hundredths(x.each(x.commands)))
	}
	line("")
	line("## How it was measured")
	line("")
	line("On %s, in one run:", r.about.date)
	line("")
	line("- Machine: %s, %d cores, %s, %s. Load average before the run: %s. wrk, Traefik, Valkey and the", r.about.cpu, r.about.cores, r.about.memory, r.about.system, r.about.load)
	line("  application share the cores, so that the figures of another machine, or of several, will be others: compare ratios.")
	if r.plan.note != "" {
		line("  %s", r.plan.note)
	}
	line("- Traefik %s with one entry point, no access log and no metrics; the plugin as a local plugin.", r.about.traefik)
	line("- Valkey %s without persistence, over loopback.", r.about.valkey)
	line("- Two replicas that answer `ok` (Go %s).", r.about.golang)
	line("- Load: `wrk -t1 -c%d -d%ds` (%s), every request with the same `X-API-Key`, which is what all the limiters count by.", r.plan.connections, int(r.plan.duration.Seconds()), r.about.wrk)
	line("- Each round loads each route once, one after the other, every other round in the reverse order. Before the first")
	line("  round each route is warmed up for %s.", warmUp)
	line("- Allowed: no limit is ever reached. Refused: the limit is 1 in a day (Traefik's own: 1 in an hour), so every request")
	line("  but the first gets 429. A route that answers anything else ends the run.")
	line("- Gatequota sends its rate-limit fields with every answer; Traefik's own limiter has none for allowed requests.")
	line("")
	line("To repeat it: `make bench`, or `go -C e2e run ./bench -help` for rounds, durations and connections.")
	return b.String()
}
