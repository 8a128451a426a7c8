// Command accuracy measures how well each algorithm counts. It replays synthetic traffic
// through the twin of each algorithm's script, compiled and with time as a parameter, and
// compares every decision with an exact log of what that algorithm had admitted. Then it
// measures what a client takes in memory, and what a call of each script is to a real
// Valkey. From the e2e folder:
//
//	go run ./accuracy
//
// A request is wrongly allowed if it was admitted while the log had the limit or more in
// the half-open interval (t - window, t], and wrongly refused if it was refused while the
// log had less. It prints what it finds, whatever that is, and writes it into
// docs/algorithms.md and its pictures. No figure makes it fail, but one: a decision that
// is not as the algorithm's own rule says.
//
// The replay of one seed gives the same figures each time; memory and microseconds are
// the machine's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// longest bounds the whole run.
const longest = 10 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	p := full
	flags := flag.NewFlagSet("accuracy", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Uint64Var(&p.seed, "seed", full.seed, "of the traffic")
	flags.IntVar(&p.sources, "sources", full.sources, "how many sources of each kind but the heavy-tailed")
	flags.IntVar(&p.tail, "tail", full.tail, "how many sources of the heavy-tailed kind")
	workers := flags.Int("workers", 2, "how many sources are replayed at a time")
	replayOnly := flags.Bool("replay", false, "replay alone: measure no memory and no store, and write nothing")
	docs := flags.String("docs", filepath.Join(lab.Root(), "docs"), "the `folder` to write algorithms.md and its pictures to; empty writes nothing")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if flags.NArg() > 0 || p.sources < 1 || p.tail < 1 || *workers < 1 {
		fmt.Fprintln(stderr, "accuracy: -sources, -tail and -workers must be at least 1, and nothing else is taken")
		return 2
	}
	if *replayOnly {
		*docs = ""
	}
	ctx, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("it was not done within %s", longest))
	defer cancel()
	r, err := find(ctx, &p, *workers, !*replayOnly, stdout)
	if err == nil {
		r.print(stdout)
		err = r.verdict()
	}
	if err == nil && *docs != "" {
		err = r.write(*docs, stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "accuracy:", err)
		return 1
	}
	return 0
}

// find replays a plan, and if all is set measures memory and the store as well.
func find(ctx context.Context, p *plan, workers int, all bool, out io.Writer) (*report, error) {
	r := &report{plan: *p, counters: counters(p)}
	for _, line := range p.lines() {
		fmt.Fprintln(out, line)
	}
	for kind := range traffics {
		begin := time.Now()
		x, err := run(ctx, p, kind, r.counters, workers)
		if err != nil {
			return nil, err
		}
		f := x.figures[everyone][0]
		fmt.Fprintf(out, "%s: %s requests of %s sources, replayed in %s\n", x.traffic, thousands(f.Requests), thousands(f.Sources), time.Since(begin).Round(time.Second))
		r.results = append(r.results, x)
	}
	if !all {
		return r, nil
	}
	r.measures = measured(p)
	for i := range r.measures {
		r.gateway = append(r.gateway, inGateway(&r.measures[i]))
	}
	err := lab.Outside(ctx, func(t testing.TB) {
		store := lab.Valkey(t, lab.StoreOptions{})
		info, err := store.Client().InfoMap(ctx, "server").Result()
		if err != nil {
			t.Fatal(err)
		}
		r.valkey = "Valkey " + info["Server"]["valkey_version"]
		for i := range r.measures {
			s, err := inStore(ctx, store.Client(), &r.measures[i], time.Now)
			if err != nil {
				t.Fatal(err)
			}
			r.store = append(r.store, s)
		}
	})
	return r, err
}

// write puts what was found into the page and its pictures.
func (r *report) write(docs string, out io.Writer) error {
	path := filepath.Join(docs, "algorithms.md")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	page, err := fill(string(text), r.parts())
	if err != nil {
		return err
	}
	var names []string
	for _, c := range r.counters {
		names = append(names, c.name)
	}
	for name, text := range map[string]string{
		"algorithms.md":        page,
		"algorithms-edge.svg":  edgeSVG(burstAtEdge(counters(&edgePlan)[:4])),
		"algorithms-wrong.svg": sharesSVG(append(r.results, total(r.results)), names),
	} {
		if err := os.WriteFile(filepath.Join(docs, name), []byte(text), 0o644); err != nil {
			return err
		}
		fmt.Fprintln(out, "wrote", filepath.Join(docs, name))
	}
	return nil
}
