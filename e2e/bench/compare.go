package main

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/gatequota/gatequota/e2e/lab"
)

// A form is the plugin as its decisions are compared with those of others: in some version,
// and with nobody or somebody who watches over the gateway.
type form struct {
	name, title string
	folder      string // that it is loaded from
	watched     bool
}

// Where those who watch are answered.
const (
	metricsPath = "/-/gatequota/metrics"
	statusPath  = "/-/gatequota"
)

// watchOver adds all options of those who watch over a gateway, or change it.
func watchOver(options map[string]any) {
	options["metrics"] = map[string]any{"path": metricsPath}
	options["status"] = map[string]any{"path": statusPath}
	options["log"] = map[string]any{"refusals": "1/100000"}
	if options["mode"] == "shared" {
		options["control"] = "true"
	}
}

// forms returns those that are compared, with the first of them. Each has an interpreter of
// its own, since who watches one middleware has the round trips of all timed.
func (p plan) forms() []form {
	all := []form{
		{name: "unwatched", title: "nobody watches", folder: lab.Root()},
		{name: "watched", title: "watched, and under control", folder: lab.Root(), watched: true},
	}
	for _, folder := range p.before {
		name := filepath.Base(folder)
		all = append(all, form{name: name, title: "version " + name + ", nobody watches", folder: folder})
	}
	return all
}

// comparedCase says which decisions are compared.
type comparedCase struct {
	name, title string
	mode        string
	refused     bool
	clients     int // how many ask at a time, all with one key
}

var comparedCases = []comparedCase{
	{name: "local-allowed", title: "mode local, allowed", mode: "local", clients: 1},
	{name: "local-refused", title: "mode local, refused", mode: "local", refused: true, clients: 1},
	{name: "shared-allowed", title: "mode shared, allowed", mode: "shared", clients: 1},
	{name: "shared-merged", title: "mode shared, allowed, 32 clients", mode: "shared", clients: 32},
	{name: "shared-refused", title: "mode shared, refused", mode: "shared", refused: true, clients: 1},
}

// compared is what the decisions of one case cost in each form, in the order of forms: the
// processor time of one in microseconds, a figure each round.
type compared struct {
	comparedCase
	forms []form
	cost  [][]float64
}

// quiet returns the tenth of some figures below which the lowest tenth is. So short are the
// rounds that those are the ones that nothing else on the machine had a part in.
func quiet(figures []float64) float64 {
	return slices.Sorted(slices.Values(figures))[len(figures)/10]
}

const (
	// sliceTime is how long decisions of one form are asked for without a break: short, so
	// that what else the machine does falls on all of them alike.
	sliceTime = 20 * time.Millisecond
	// slicesARound is how many slices of each form there are for each round of others.
	slicesARound = 40
)

// compare measures decisions alone, as decide does, in all forms by turns. It goes by the
// processor time of this process, which what else the machine does disturbs least.
func (b *bench) compare(t testing.TB) []compared {
	window, _ := lab.QuietWindow(time.Now())
	forms := b.forms()
	handlers := map[string][]http.Handler{} // by case, in the order of forms
	for _, f := range forms {
		makes := interpretedFrom(t, f.folder)
		for _, c := range comparedCases {
			store, limit := "", int64(decisionLimit)
			if c.mode == "shared" {
				store = b.store.Addr()
			}
			if c.refused {
				limit = 1
			}
			options := limits(c.mode, store, limit, window)
			if f.watched {
				watchOver(options)
			}
			h, err := makes(c.name+"-"+f.name+"@bench", options)
			if err != nil {
				t.Fatal(err)
			}
			handlers[c.name] = append(handlers[c.name], h)
		}
	}
	var all []compared
	for _, c := range comparedCases {
		one := compared{comparedCase: c, forms: forms, cost: make([][]float64, len(forms))}
		ask := func(i int) float64 {
			cost, err := keepAsking(handlers[c.name][i], c, sliceTime)
			if err != nil {
				t.Fatalf("%s, %s: %v", c.name, forms[i].name, err)
			}
			return cost
		}
		for i := range forms {
			ask(i) // to warm up
		}
		for slice := range slicesARound * b.rounds {
			for n := range forms {
				i := (slice + n) % len(forms)
				one.cost[i] = append(one.cost[i], ask(i))
			}
		}
		all = append(all, one)
		fmt.Fprintf(b.out, "compared decisions: %s\n", c.title)
	}
	return all
}

// keepAsking keeps some clients asking for a time, as ask does, and returns the processor
// time of a decision in microseconds.
func keepAsking(h http.Handler, c comparedCase, duration time.Duration) (float64, error) {
	var decided, wrong atomic.Int64
	var wg sync.WaitGroup
	worked, end := processTime(), time.Now().Add(duration)
	for range c.clients {
		wg.Go(func() {
			asked, refused := int64(0), int64(0)
			for now := time.Now(); now.Before(end); now = time.Now() {
				for range 4 { // one look at the clock for each would be a part of what is measured
					asked++
					switch got := send(h, clientKey); {
					case got.status == http.StatusTooManyRequests:
						refused++
					case got.status != http.StatusOK || got.way() != c.mode:
						wrong.Add(1)
					}
				}
			}
			decided.Add(asked)
			if c.refused && refused < asked-1 || !c.refused && refused > 0 {
				wrong.Add(1)
			}
		})
	}
	wg.Wait()
	worked = processTime() - worked
	if wrong.Load() > 0 || decided.Load() == 0 {
		return 0, fmt.Errorf("not all of %d decisions were as they should be", decided.Load())
	}
	return float64(worked.Nanoseconds()) / 1000 / float64(decided.Load()), nil
}

// processTime returns the processor time of this process, in and out of the kernel.
func processTime() time.Duration { return clockTime(2) }

// clockTime reads one of the kernel's clocks.
func clockTime(clock uintptr) time.Duration {
	var t syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		panic(fmt.Sprintf("reading the clock %d: %v", clock, errno))
	}
	return time.Duration(t.Nano())
}

// comparedRow is one row of what was compared.
type comparedRow struct {
	title, form         string
	quiet, median, more float64 // more is how much dearer the first form is made by it
}

func rowsOf(all []compared) []comparedRow {
	var rows []comparedRow
	for _, c := range all {
		title := c.title
		for i, f := range c.forms {
			row := comparedRow{title: title, form: f.title, quiet: quiet(c.cost[i]), median: spreadOf(c.cost[i]).median}
			row.more = row.quiet - quiet(c.cost[0])
			rows = append(rows, row)
			title = ""
		}
	}
	return rows
}

func printCompared(out io.Writer, all []compared) {
	const layout = "%-34s %-40s %8s %8s %8s\n"
	fmt.Fprintf(out, "\n"+layout, "decisions", "", "quiet us", "more", "median")
	for _, r := range rowsOf(all) {
		fmt.Fprintf(out, layout, r.title, r.form, hundredths(r.quiet), hundredths(r.more), hundredths(r.median))
	}
}

func writeCompared(d *document, all []compared) {
	d.line("Decisions alone, as below: processor time of one in µs, garbage collection included and the store not, in %d slices of", len(all[0].cost[0]))
	d.line("%s by turns. A tenth of the slices took less than what stands under *quiet*, and those are the ones that the rest of", sliceTime)
	d.line("the machine has least to do with; *more* is by how much that is more than where nobody watches.")
	d.line("")
	d.line("| decision | | quiet | more | median |")
	d.line("|---|---|---:|---:|---:|")
	for _, r := range rowsOf(all) {
		d.line("| %s | %s | %s | %s | %s |", r.title, r.form, hundredths(r.quiet), hundredths(r.more), hundredths(r.median))
	}
	d.line("")
}
