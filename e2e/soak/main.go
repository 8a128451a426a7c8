// Command soak keeps two real gateways under load for a long time while their
// configuration is reloaded every second and faults happen to their store at
// random. It judges an exact log of what was allowed and what was left behind,
// prints a summary, and fails if anything was wrong.
//
//	go -C e2e run ./soak -duration 10m -seed 1
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

func main() {
	s := defaults()
	flag.DurationVar(&s.duration, "duration", s.duration, "how long faults happen, at least 20s")
	flag.Uint64Var(&s.seed, "seed", s.seed, "what the order of clients and faults follows from")
	flag.IntVar(&s.clients, "clients", s.clients, "how many clients there are, at least 2")
	flag.IntVar(&s.rate, "rate", s.rate, "requests a second, 1 to 2000")
	flag.IntVar(&s.limit, "limit", s.limit, "requests of a client in a window, at least 1")
	flag.IntVar(&s.growth, "growth", s.growth, "percent by which the gateways' memory may grow")
	flag.Parse()
	if flag.NArg() > 0 || s.duration < 20*time.Second || s.clients < 2 || s.rate < 1 || s.rate > 2000 || s.limit < 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o *outcome
	err := lab.Outside(ctx, func(t testing.TB) { o = soak(t, s) })
	if err == nil && o == nil {
		err = errors.New("the run was broken off")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
	fmt.Print(o)
	if len(o.complaints) > 0 {
		os.Exit(1)
	}
}
