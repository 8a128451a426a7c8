// Command gatequota shows what the gateways of Gatequota do, and changes what they obey,
// through the store that they share. docs/command.md is the page on it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"os/user"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gatequota/gatequota/version"
)

// The exit statuses.
const (
	exitDone     = 0
	exitFailed   = 1
	exitUsage    = 2
	exitPartly   = 3 // the change is made, and not all gateways are known to obey it
	exitDeclined = 4 // nothing was changed, since it was not confirmed
	exitRestored = 5 // a count that was deleted came back
)

// status is an error that decides the exit status.
type status struct {
	code int
	err  error
}

func (s *status) Error() string { return s.err.Error() }
func (s *status) Unwrap() error { return s.err }

func exit(code int, format string, args ...any) error {
	return &status{code: code, err: fmt.Errorf(format, args...)}
}

func usage(format string, args ...any) error { return exit(exitUsage, format, args...) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Getenv, user: userAtHost(), patience: 3 * time.Second}
	a.inTerminal, a.outTerminal = term.IsTerminal(int(os.Stdin.Fd())), term.IsTerminal(int(os.Stdout.Fd()))
	code := a.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// app is one run of the command.
type app struct {
	in  io.Reader
	out io.Writer
	err io.Writer
	env func(string) string
	// user is who changes something, unless --by says otherwise.
	user string
	// inTerminal and outTerminal say that somebody sits there.
	inTerminal, outTerminal bool
	// patience is how long a change waits for the gateways.
	patience time.Duration

	options
}

func userAtHost() string {
	host, _ := os.Hostname()
	name := os.Getenv("USER")
	if known, err := user.Current(); name == "" && err == nil {
		name = known.Username
	}
	return strings.Trim(name+"@"+host, "@")
}

// run runs one command and returns its exit status.
func (a *app) run(ctx context.Context, args []string) int {
	began := false
	root := a.command(&began)
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintf(a.err, "gatequota: %s\n", plain(err.Error()))
	var s *status
	switch {
	case errors.As(err, &s):
		return s.code
	case !began: // the library's own, about flags and arguments
		fmt.Fprintln(a.err, "Run gatequota --help, or with a command before it, for what is allowed.")
		return exitUsage
	}
	if hint := a.hint(err); hint != "" {
		fmt.Fprintln(a.err, hint)
	}
	return exitFailed
}

const about = `Gatequota limits requests on gateways that count together in one store. This command shows
what they do there, and changes what they obey: those with control: true follow within
three seconds.`

// command returns the command with all its parts. began is set when one of them begins its
// work, so that errors before that are about how it was called.
func (a *app) command(began *bool) *cobra.Command {
	root := &cobra.Command{
		Use: "gatequota", Short: "Watch over the limits of gateways, and change them while they run", Long: about,
		Version: version.Number, SilenceErrors: true, SilenceUsage: true,
		Example: `  gatequota status --endpoint valkey:6379
  gatequota show "$API_KEY"
  gatequota allow "$API_KEY" --limit 1000 --for 1h
  gatequota off --scope login --yes`,
	}
	root.SetVersionTemplate("gatequota {{.Version}}\n")
	root.AddGroup(&cobra.Group{ID: "see", Title: "See:"}, &cobra.Group{ID: "client", Title: "Change, for one client:"},
		&cobra.Group{ID: "all", Title: "Change, for all clients (asks first):"})
	cobra.EnableCommandSorting = false
	a.flags(root)
	for _, c := range []*cobra.Command{
		a.statusCommand(), a.topCommand(), a.showCommand(), a.logCommand(),
		a.allowCommand(), a.blockCommand(), a.clearCommand(), a.resetCommand(),
		a.offCommand(), a.onCommand(), a.dryRunCommand(), a.limitCommand(),
	} {
		work := c.RunE
		c.RunE = func(cmd *cobra.Command, args []string) error {
			if err := a.prepare(cmd); err != nil {
				return err
			}
			*began = true
			return work(cmd, args)
		}
		root.AddCommand(c)
	}
	return root
}
