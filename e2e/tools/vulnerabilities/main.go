// Command vulnerabilities tells which known vulnerabilities the code of modules
// calls, tests included. It runs govulncheck over each module that is named by its
// folder, against a copy of Go's vulnerability database that comes through the
// module proxy in a fixed version: the same code has the same answer today and next
// year, and nothing else needs to be reached. The file named database holds the
// version; make vulndb moves it to the newest.
//
// It fails when a module calls what is vulnerable in another module, since go.mod
// says which version that is. What the standard library has is reported and no more:
// it depends on the Go of the machine, and for the plugin on the one that Traefik was
// built with.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/vuln/scan"
)

// database is one line as go list -m prints it: the module of the database's
// entries, and its version.
//
//go:embed database
var database string

// errFound says that something must be upgraded.
var errFound = errors.New("known vulnerabilities are called; upgrade what is named above, or move to what does without it")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "vulnerabilities:", err)
		os.Exit(1)
	}
}

// run checks the modules in the folders and writes what it finds, one line each.
func run(ctx context.Context, w io.Writer, folders []string) error {
	if len(folders) == 0 {
		return errors.New("name the folders of the modules to check")
	}
	entries, date, err := fetch(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "known vulnerabilities, as of %s:\n", date.Format(time.DateOnly))
	bad := false
	for _, folder := range folders {
		r, err := check(ctx, folder, entries)
		if err != nil {
			return fmt.Errorf("checking %s: %w", folder, err)
		}
		bad = r.write(w, folder) || bad
	}
	if bad {
		return errFound
	}
	return nil
}

// fetch returns the folder of the database's entries, in the module cache, and the day
// they are of, which is in the version: the entries themselves bear no dates there.
func fetch(ctx context.Context) (string, time.Time, error) {
	path, version, _ := strings.Cut(strings.TrimSpace(database), " ")
	date, err := module.PseudoVersionTime(version)
	if err != nil {
		return "", date, fmt.Errorf("the file named database holds %q, want a module and its version: %w", database, err)
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", path+"@"+version)
	// Outside of any module, so that the database is nobody's dependency.
	cmd.Dir = os.TempDir()
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := cmd.Output()
	var download struct{ Dir, Error string }
	if decoding := json.Unmarshal(out, &download); decoding != nil {
		return "", date, fmt.Errorf("downloading %s %s: %w", path, version, errors.Join(err, decoding))
	}
	if download.Error != "" {
		return "", date, fmt.Errorf("downloading %s %s: %s", path, version, download.Error)
	}
	return filepath.Join(download.Dir, "data", "osv"), date, nil
}

// result is what is known of one module.
type result struct {
	goes   string            // the version of Go that the standard library is of
	titles map[string]string // by id of the entry

	called   map[vulnerability]string // to where the module calls it, or some library does for it
	standard map[vulnerability]bool   // the same of the standard library
	idle     map[vulnerability]bool   // in what is required, and not called
}

// vulnerability is one entry of the database, in one module. It is comparable.
type vulnerability struct{ id, module, version, fixed string }

// message is what this command reads of govulncheck's stream.
type message struct {
	Config *struct {
		GoVersion string `json:"go_version"`
	} `json:"config"`
	OSV *struct {
		ID      string `json:"id"`
		Summary string `json:"summary"`
	} `json:"osv"`
	Finding *struct {
		OSV          string  `json:"osv"`
		FixedVersion string  `json:"fixed_version"`
		Trace        []frame `json:"trace"` // from what is vulnerable to who calls it
	} `json:"finding"`
}

type frame struct {
	Module   string `json:"module"`
	Version  string `json:"version"`
	Package  string `json:"package"`
	Function string `json:"function"` // empty where only the module or the package is known
	Position *struct {
		Filename string `json:"filename"`
		Line     int    `json:"line"`
	} `json:"position"`
}

// check runs govulncheck over one module.
func check(ctx context.Context, folder, entries string) (*result, error) {
	patterns := []string{"./..."}
	text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return nil, err
	}
	mod, err := modfile.Parse("go.mod", text, nil)
	if err != nil {
		return nil, err
	}
	if len(mod.Tool) > 0 {
		patterns = append(patterns, "tool")
	}
	var out, complaints bytes.Buffer
	cmd := scan.Command(ctx, append([]string{"-C", folder, "-format", "json", "-test", "-db", "file://" + filepath.ToSlash(entries)}, patterns...)...)
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := errors.Join(cmd.Start(), cmd.Wait()); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, &complaints)
	}
	return read(&out)
}

// read sorts what govulncheck has found.
func read(stream io.Reader) (*result, error) {
	r := &result{
		titles: map[string]string{}, called: map[vulnerability]string{},
		standard: map[vulnerability]bool{}, idle: map[vulnerability]bool{},
	}
	for decoder := json.NewDecoder(stream); ; {
		var m message
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("reading what govulncheck found: %w", err)
		}
		switch {
		case m.Config != nil:
			r.goes = m.Config.GoVersion
		case m.OSV != nil:
			r.titles[m.OSV.ID] = m.OSV.Summary
		case m.Finding != nil && len(m.Finding.Trace) > 0:
			first := m.Finding.Trace[0]
			v := vulnerability{m.Finding.OSV, first.Module, first.Version, m.Finding.FixedVersion}
			switch standard := first.Module == "stdlib"; {
			case standard && first.Function != "":
				r.standard[v] = true
			case standard:
			case first.Function == "":
				r.idle[v] = true
			case r.called[v] == "":
				r.called[v] = way(m.Finding.Trace)
			}
		}
	}
	if r.goes == "" {
		return nil, errors.New("govulncheck does not say what it has looked at")
	}
	// Whatever is called was found in its package and in its module before.
	maps.DeleteFunc(r.idle, func(v vulnerability, _ bool) bool { return r.called[v] != "" })
	return r, nil
}

// way says who calls what: main_test.go:12 calls google.golang.org/grpc.Serve.
func way(trace []frame) string {
	who, what := trace[len(trace)-1], trace[0]
	at := who.Package
	if who.Position != nil {
		at = fmt.Sprintf("%s:%d", who.Position.Filename, who.Position.Line)
	}
	return fmt.Sprintf("%s calls %s.%s", at, what.Package, what.Function)
}

// write reports and tells whether something is to be done about it.
func (r *result) write(w io.Writer, folder string) bool {
	fmt.Fprintf(w, "  %s: %d are called, %d more are in what is required\n", folder, len(r.called), len(r.idle))
	for _, v := range sorted(maps.Keys(r.called)) {
		fmt.Fprintf(w, "    %s: %s %s: %s; %s; %s\n", v.id, v.module, v.version, r.titles[v.id], r.called[v], remedy(v.fixed))
	}
	if len(r.standard) > 0 {
		var ids []string
		for _, v := range sorted(maps.Keys(r.standard)) {
			ids = append(ids, v.id)
		}
		fmt.Fprintf(w, "    beside these, in the standard library of this machine's %s: %s\n", r.goes, strings.Join(ids, " "))
	}
	return len(r.called) > 0
}

func remedy(fixed string) string {
	if fixed == "" {
		return "no version is without it"
	}
	return "fixed in " + fixed
}

func sorted(of func(yield func(vulnerability) bool)) []vulnerability {
	return slices.SortedFunc(of, func(a, b vulnerability) int {
		return strings.Compare(a.id+a.module, b.id+b.module)
	})
}
