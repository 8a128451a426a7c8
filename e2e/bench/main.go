// Command bench measures what the plugin costs, beside Traefik's own limiter: one
// real Traefik, one real Valkey, two replicas, and wrk as the load, all on this
// machine. From the e2e folder:
//
//	go run ./bench
//
// Every round loads each route once, so that what else the machine does falls on
// all of them alike: only ratios within one round are worth comparing. Then come
// rounds of all algorithms, requests over one connection, two gateways of which one is
// watched over, the memory of tracked clients, and decisions without a gateway around
// them. It prints what it finds, whatever that is, beside
// what was wanted, and writes docs/performance.md and docs/performance.svg. No
// figure makes it fail; a route that answers otherwise than it should does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// plan says what is measured for how long.
type plan struct {
	rounds      int
	duration    time.Duration // of one route in one round
	connections int
	only        string   // the part to measure; empty: all
	note        string   // what else must be known of the machine
	before      []string // folders with other versions of the plugin, to be compared with
}

// The parts of a report.
const (
	partRates      = "rates"      // requests per second of each route
	partAlgorithms = "algorithms" // the same of each algorithm
	partLatency    = "latency"    // of a request over one connection
	partWatched    = "watched"    // the same two with those who watch and without, and what they cost
	partActive     = "active"     // what it costs that they ask, and that they change something
	partMemory     = "memory"     // of tracked clients, and the pause when they are dropped
	partDecision   = "decision"   // what a decision alone takes, and where
	partCompared   = "compared"   // the same with those who watch and without
)

// partNames names all parts, for people.
const partNames = "rates, algorithms, latency, watched, active, compared, memory or decision"

// measures tells whether a part is to be measured.
func (p plan) measures(part string) bool { return p.only == "" || p.only == part }

// besideOwn tells whether the gateway is needed that has Traefik's own routes.
func (p plan) besideOwn() bool {
	return p.measures(partRates) || p.measures(partAlgorithms) || p.measures(partLatency)
}

// loads tells whether any route is loaded.
func (p plan) loads() bool {
	return p.measures(partRates) || p.measures(partAlgorithms) || p.measures(partWatched) || p.measures(partActive)
}

// algorithmRounds returns how often each route of the algorithms is loaded, and how long
// each time: less than others, for the sake of the time that all takes.
func (p plan) algorithmRounds() (rounds int, duration time.Duration) {
	return min(p.rounds, 5), min(p.duration, 2*time.Second)
}

// needs returns about how long a plan takes.
func (p plan) needs() time.Duration {
	sum := 10 * time.Second
	if p.measures(partRates) {
		sum += time.Duration(p.rounds*len(routes))*(p.duration+100*time.Millisecond) + time.Duration(len(routes))*warmUpMany
	}
	if p.measures(partAlgorithms) {
		rounds, duration := p.algorithmRounds()
		sum += time.Duration(len(algorithmRoutes)) * (time.Duration(rounds)*(duration+100*time.Millisecond) + warmUp)
	}
	if p.measures(partLatency) {
		sum += time.Duration((p.rounds+1)*restRequests*len(restRoutes)) * 400 * time.Microsecond
	}
	if p.measures(partWatched) {
		sum += p.watchedNeeds()
	}
	if p.measures(partActive) {
		sum += p.activeNeeds()
	}
	if p.measures(partMemory) {
		sum += 30*time.Second + time.Duration(min(p.rounds, mostEdges)+2)*8*time.Second
	}
	if p.measures(partDecision) {
		sum += time.Duration(len(decisionCases)) * (p.duration + 2*settleTime)
	}
	if p.measures(partCompared) {
		sum += time.Duration(len(p.forms())*len(comparedCases)*(slicesARound*p.rounds+1)) * (sliceTime + time.Millisecond)
	}
	return sum
}

const (
	warmUp     = time.Second
	warmUpMany = 4 * time.Second // in which each of the many clients has its turn
	// clientKey is the API key of all requests, or what the keys of many begin with.
	clientKey = "bench"
	// manyKeys is how many clients send the requests of a route that has many.
	manyKeys = 10_000
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var p plan
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&p.rounds, "rounds", 7, "how often each route is loaded")
	flags.DurationVar(&p.duration, "duration", 3*time.Second, "how long each time, in whole seconds")
	flags.IntVar(&p.connections, "connections", 32, "how many connections wrk keeps busy")
	flags.StringVar(&p.only, "only", "", "measure one `part` and write no report: "+partNames)
	flags.StringVar(&p.note, "note", "", "a `sentence` about the machine to write into the report")
	flags.Func("before", "a `folder` with another version of the plugin, to compare decisions with; may be given more than once", func(folder string) error {
		p.before = append(p.before, folder)
		return nil
	})
	docs := flags.String("docs", filepath.Join(lab.Root(), "docs"), "the `folder` to write performance.md and performance.svg to; empty writes nothing")
	profile := flags.String("profile", "", "a `folder` to write profiles of Traefik under load to, after the rounds; empty takes none")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	switch p.only {
	case "":
	case partRates, partAlgorithms, partLatency, partWatched, partActive, partMemory, partDecision, partCompared:
		*docs = ""
	default:
		fmt.Fprintf(stderr, "bench: -only %q: %s\n", p.only, partNames)
		return 2
	}
	if flags.NArg() > 0 || p.rounds < 1 || p.connections < 1 || p.duration < time.Second || p.duration%time.Second != 0 {
		fmt.Fprintln(stderr, "bench: -rounds and -connections must be at least 1, -duration whole seconds, and nothing else is taken")
		return 2
	}
	wrk := ""
	var err error
	if p.loads() {
		if wrk, err = exec.LookPath("wrk"); err != nil {
			fmt.Fprintln(stderr, "bench: wrk is not installed; scripts/install-e2e.sh installs it")
			return 1
		}
	}
	if p.besideOwn() || p.loads() {
		// Building Traefik may take long, and only the measuring is bounded.
		err = lab.Outside(ctx, func(t testing.TB) { lab.TraefikBinary(t) })
	}
	if err == nil {
		bound := p.needs()*3/2 + time.Minute
		bounded, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("it was not done within %s", bound))
		defer cancel()
		err = lab.Outside(bounded, func(t testing.TB) {
			b := &bench{plan: p, wrk: wrk, out: stdout}
			b.setUp(t)
			report := b.measure(t)
			report.print(stdout)
			if *docs != "" {
				write(t, stdout, filepath.Join(*docs, "performance.md"), report.markdown())
				write(t, stdout, filepath.Join(*docs, "performance.svg"), report.svg())
			}
			if *profile != "" {
				b.profile(t, *profile)
			}
		})
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}

func write(t testing.TB, out io.Writer, path, text string) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(out, "wrote", path)
}
