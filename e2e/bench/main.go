// Command bench measures what the plugin costs, beside Traefik's own limiter: one
// real Traefik, one real Valkey, two replicas, and wrk as the load, all on this
// machine. From the e2e folder:
//
//	go run ./bench
//
// Every round loads each route once, so that what else the machine does falls on
// all of them alike: only ratios within one round are worth comparing. It prints
// what it finds, whatever that is, and writes docs/performance.md and
// docs/performance.svg. No figure makes it fail; a route that answers otherwise
// than it should does.
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
	note        string // what else must be known of the machine
}

// needs returns about how long a plan takes.
func (p plan) needs() time.Duration {
	each := p.duration + 100*time.Millisecond
	return time.Duration(p.rounds*len(routes))*each + time.Duration(len(routes))*warmUp + 10*time.Second
}

const (
	warmUp = time.Second
	// clientKey is the API key of all requests.
	clientKey = "bench"
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var p plan
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&p.rounds, "rounds", 7, "how often each route is loaded")
	flags.DurationVar(&p.duration, "duration", 3*time.Second, "how long each time, in whole seconds")
	flags.IntVar(&p.connections, "connections", 32, "how many connections wrk keeps busy")
	flags.StringVar(&p.note, "note", "", "a `sentence` about the machine to write into the report")
	docs := flags.String("docs", filepath.Join(lab.Root(), "docs"), "the `folder` to write performance.md and performance.svg to; empty writes nothing")
	profile := flags.String("profile", "", "a `folder` to write profiles of Traefik under load to, after the rounds; empty takes none")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if flags.NArg() > 0 || p.rounds < 1 || p.connections < 1 || p.duration < time.Second || p.duration%time.Second != 0 {
		fmt.Fprintln(stderr, "bench: -rounds and -connections must be at least 1, -duration whole seconds, and nothing else is taken")
		return 2
	}
	wrk, err := exec.LookPath("wrk")
	if err != nil {
		fmt.Fprintln(stderr, "bench: wrk is not installed; scripts/install-e2e.sh installs it")
		return 1
	}

	// Building Traefik may take long, and only the measuring is bounded.
	err = lab.Outside(ctx, func(t testing.TB) { lab.TraefikBinary(t) })
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
