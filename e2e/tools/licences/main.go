// Command licences tells under which licences the libraries are that reach a binary
// or a test of modules, and the npm packages of folders with a package-lock.json. It
// fails, with the name of the library, when a licence is none that is allowed, or is
// not recognized.
//
// The licences are read from the files that the libraries carry, by their text. Of npm
// packages that are not installed here, as in a fresh checkout, the lock file alone
// says under which licence they are; when they are installed, their files decide.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// allowed holds the identifiers, as of https://spdx.org/licenses, of licences under
// which anybody may use a library in a program under any terms. MPL-2.0 asks to pass on
// changes of the library's own files, and none are made here.
var allowed = []string{
	"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "BlueOak-1.0.0", "CC0-1.0", "ISC", "MIT", "MIT-0", "MPL-2.0", "Unlicense", "Zlib",
}

// errFound says that a library must go, or its licence be looked at by a human.
var errFound = errors.New("some libraries have no licence that is allowed here")

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

// library is one module or npm package.
type library struct {
	name     string   // with its version
	licences []string // identifiers, sorted, each once
	trouble  string   // why it cannot stay; empty when it can
}

// run reads the libraries of all folders, each of which holds a go.mod or a
// package-lock.json, and writes which licences there are, and what is wrong.
func run(w io.Writer, folders []string) error {
	if len(folders) == 0 {
		return errors.New("name the folders of modules and of npm packages")
	}
	bad := false
	for _, folder := range folders {
		of := modules
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err != nil {
			of = packages
		}
		libraries, err := of(folder)
		if err != nil {
			return fmt.Errorf("reading the libraries of %s: %w", folder, err)
		}
		counts := map[string]int{}
		for _, l := range libraries {
			if l.trouble != "" {
				bad = true
				fmt.Fprintf(w, "%s: %s: %s\n", folder, l.name, l.trouble)
				continue
			}
			counts[strings.Join(l.licences, " and ")]++
		}
		fmt.Fprintf(w, "%s: %d libraries%s\n", folder, len(libraries), summary(counts))
	}
	if bad {
		return errFound
	}
	return nil
}

// summary says how many libraries are under each licence, the most frequent first.
func summary(counts map[string]int) string {
	var parts []string
	for licence, n := range counts {
		parts = append(parts, fmt.Sprintf("%d under %s", n, licence))
	}
	slices.SortFunc(parts, func(a, b string) int {
		var m, n int
		_, _ = fmt.Sscan(a, &m)
		_, _ = fmt.Sscan(b, &n)
		if m != n {
			return n - m
		}
		return strings.Compare(a, b)
	})
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}
