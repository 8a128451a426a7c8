// Command cmd runs a k6 script where k6 itself is not to be had; package k6run
// says how far that goes. From the e2e folder:
//
//	go run ./k6run/cmd -e MODE=local ../k6/rate-limit.js
//
// As with k6, the script finds the environment of the process in __ENV, and
// what -e sets besides. The exit status is k6's: 0 where all thresholds held,
// 99 where one did not, 104 for wrong options, 107 for a script that failed,
// and 1 for a run that could not be held.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/gatequota/gatequota/e2e/k6run"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// environment collects NAME=value pairs, the last one of a name being right.
type environment map[string]string

func (e environment) String() string { return "" }

func (e environment) Set(pair string) error {
	name, value, ok := strings.Cut(pair, "=")
	if !ok || name == "" {
		return errors.New("it must read NAME=value")
	}
	e[name] = value
	return nil
}

func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	env := environment{}
	for _, pair := range environ {
		// Not every pair of a process's environment has a name.
		_ = env.Set(pair)
	}
	flags := flag.NewFlagSet("k6run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Var(env, "e", "set `NAME=value` in __ENV; may be given several times")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: k6run [-e NAME=value]... script.js")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return 1
	}
	if flags.NArg() != 1 {
		flags.Usage()
		return 1
	}

	result, err := k6run.Run(ctx, k6run.Options{Script: flags.Arg(0), Env: env, Log: stderr})
	switch {
	case errors.Is(err, k6run.ErrOptions):
		fmt.Fprintln(stderr, "k6run:", err)
		return 104
	case errors.Is(err, k6run.ErrScript), errors.Is(err, k6run.ErrNotOffered):
		fmt.Fprintln(stderr, "k6run:", err)
		return 107
	case err != nil:
		fmt.Fprintln(stderr, "k6run:", err)
		return 1
	}
	if err := result.WriteSummary(stdout); err != nil {
		fmt.Fprintln(stderr, "k6run:", err)
		return 1
	}
	if !result.Passed() {
		return 99
	}
	return 0
}
