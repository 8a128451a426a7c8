// Command demo shows what Gatequota does, on this machine and within about a
// minute: two gateways and one quota, then a store that goes away and comes back,
// then what two algorithms make of a burst over the edge of a window. From the e2e
// folder:
//
//	go run ./cmd/demo
//
// It needs nothing but Go: the gateways then are two HTTP servers of this
// process, each with the plugin in an interpreter of its own as in Traefik, and
// the store is an embedded one. Where traefik and valkey-server are on the PATH,
// or named by flags or by the environment (TRAEFIK, VALKEY_SERVER), they are
// used instead; -embedded uses neither.
//
// The exit status is 0 when every figure is the expected one, 1 when one is off
// or the demo could not run, and 2 for wrong flags.
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
	"syscall"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// longest bounds the whole run.
const longest = 75 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	traefik := flags.String("traefik", os.Getenv("TRAEFIK"), "the `program` to use as gateway (default: traefik on the PATH, if it is there)")
	valkey := flags.String("valkey", os.Getenv("VALKEY_SERVER"), "the `program` to use as store (default: valkey-server on the PATH, if it is there)")
	embedded := flags.Bool("embedded", false, "use neither, even if they are there")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "demo: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	p := &play{out: stdout, window: time.Minute, edge: 10 * time.Second, limit: 100}
	if !*embedded {
		p.traefik, p.valkey = find(*traefik, "traefik"), find(*valkey, "valkey-server")
	}

	ctx, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("it was not done within %s", longest))
	defer cancel()
	err := lab.Outside(ctx, func(t testing.TB) { p.run(t) })
	if err != nil {
		fmt.Fprintln(stderr, "demo:", err)
		return 1
	}
	return 0
}

// find returns the program that was named, or else the one on the PATH, or
// nothing.
func find(named, name string) string {
	if named != "" {
		return named
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}
