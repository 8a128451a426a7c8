package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// ours is the path of the plugin's module, with which those of the others here begin.
const ours = "github.com/gatequota/gatequota"

// systems are what binaries are made for. Some libraries are used on one alone.
var systems = []string{"linux", "darwin", "windows"}

// modules returns what the packages, the tests and the tools of the module in a folder
// are built from, beside the standard library and what is ours.
func modules(folder string) ([]library, error) {
	text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return nil, err
	}
	mod, err := modfile.Parse("go.mod", text, nil)
	if err != nil {
		return nil, err
	}
	patterns := []string{"./..."}
	if len(mod.Tool) > 0 {
		patterns = append(patterns, "tool")
	}
	roots, used := map[string]string{}, map[string][]string{}
	for _, system := range systems {
		if err := list(folder, system, patterns, func(p listed) {
			m := p.Module
			if m == nil || m.Main || m.Path == ours || strings.HasPrefix(m.Path, ours+"/") {
				return
			}
			name := strings.TrimSpace(m.Path + " " + m.Version)
			roots[name] = m.Dir
			used[name] = append(used[name], between(m.Dir, p.Dir)...)
		}); err != nil {
			return nil, err
		}
	}
	var libraries []library
	for _, name := range slices.Sorted(maps.Keys(roots)) {
		libraries = append(libraries, judge(name, roots[name], used[name]))
	}
	return libraries, nil
}

// listed is what this command reads of go list.
type listed struct {
	Dir    string
	Module *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// list gives each package to f that the patterns are built from for a system.
func list(folder, system string, patterns []string, f func(listed)) error {
	cmd := exec.Command("go", append([]string{"list", "-deps", "-test", "-json=Dir,Module"}, patterns...)...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list for %s: %w\n%s", system, err, &complaints)
	}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading what go list prints: %w", err)
		}
		f(p)
	}
}

// between returns the folders from below root down to dir, where a licence of their own
// may lie.
func between(root, dir string) []string {
	var folders []string
	for ; len(dir) > len(root); dir = filepath.Dir(dir) {
		folders = append(folders, dir)
	}
	return folders
}
