package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"gopkg.in/yaml.v3"
)

// valid tells whether a tag is one that the plugin catalog takes: of a version, as of
// https://semver.org, with a v before it. Go takes none with a +, and the catalog takes
// no version of a repository that has a tag of any other form.
func valid(tag string) error {
	if !semver.IsValid(tag) || semver.Canonical(tag) != tag {
		return fmt.Errorf("%q is no version such as 0.2.0 or 0.2.0-rc.1", strings.TrimPrefix(tag, "v"))
	}
	return nil
}

// readModule returns the path of the module in a folder and what it requires.
func readModule(folder string) (*modfile.File, error) {
	text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return nil, err
	}
	return modfile.Parse("go.mod", text, nil)
}

// address returns where a module is published, or nothing when its path does not tell.
func address(path string) string {
	if !strings.HasPrefix(path, "github.com/") {
		return ""
	}
	prefix, _, _ := module.SplitPathVersion(path)
	return "https://" + prefix
}

// manifest is what the plugin catalog reads of .traefik.yml.
type manifest struct {
	DisplayName string         `yaml:"displayName"`
	Type        string         `yaml:"type"`
	Runtime     string         `yaml:"runtime"`
	Import      string         `yaml:"import"`
	BasePkg     string         `yaml:"basePkg"`
	Summary     string         `yaml:"summary"`
	IconPath    string         `yaml:"iconPath"`
	BannerPath  string         `yaml:"bannerPath"`
	UseUnsafe   bool           `yaml:"useUnsafe"`
	TestData    map[string]any `yaml:"testData"`
}

// catalog tells what keeps the plugin catalog from taking the plugin in a folder.
func catalog(folder string) error {
	mod, err := readModule(folder)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(folder, ".traefik.yml"))
	if err != nil {
		return err
	}
	var m manifest
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&m); err != nil {
		return fmt.Errorf(".traefik.yml: %w", err)
	}
	path := mod.Module.Mod.Path
	var errs []error
	refuse := func(when bool, format string, values ...any) {
		if when {
			errs = append(errs, fmt.Errorf(".traefik.yml: "+format, values...))
		}
	}
	refuse(m.DisplayName == "", "displayName is empty")
	refuse(m.Summary == "", "summary is empty")
	refuse(len(m.TestData) == 0, "testData is empty")
	refuse(m.Type != "middleware", "type is %q, want middleware", m.Type)
	refuse(m.Runtime != "", "runtime is %q, want the interpreter, which has no name", m.Runtime)
	refuse(m.UseUnsafe, "useUnsafe is set: users would have to allow it")
	refuse(m.Import != path && !strings.HasPrefix(m.Import, path+"/"), "import is %q, want %s or what is below it", m.Import, path)
	for _, picture := range []string{m.IconPath, m.BannerPath} {
		_, err := os.Stat(filepath.Join(folder, picture))
		refuse(err != nil, "%q is not there", picture)
	}
	for _, r := range mod.Require {
		for _, part := range []string{"traefik", "yaegi", "mesh"} {
			if r.Mod.Path == "github.com/traefik/"+part || strings.HasPrefix(r.Mod.Path, "github.com/traefik/"+part+"/") {
				errs = append(errs, fmt.Errorf("go.mod: a plugin must not require %s", r.Mod.Path))
			}
		}
	}
	for _, name := range []string{"README.md", "LICENSE"} {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// vendored tells whether vendor/, from which Traefik loads what the plugin needs, has
// what go.mod says.
func vendored(ctx context.Context, folder string) error {
	made, err := os.MkdirTemp("", "vendor-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(made) }()
	want := filepath.Join(made, "vendor")
	cmd := exec.CommandContext(ctx, "go", "mod", "vendor", "-o", want)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go mod vendor: %w\n%s", err, out)
	}
	has, err := contents(filepath.Join(folder, "vendor"))
	if err != nil {
		return err
	}
	needs, err := contents(want)
	if err != nil {
		return err
	}
	// Where nothing is required, go mod vendor makes nothing, and Go takes an empty list.
	if len(needs) == 0 && has["modules.txt"] == "" {
		delete(has, "modules.txt")
	}
	var wrong []string
	for name := range has {
		if _, ok := needs[name]; !ok {
			wrong = append(wrong, name+" is too much")
		}
	}
	for name, text := range needs {
		if got, ok := has[name]; !ok {
			wrong = append(wrong, name+" is missing")
		} else if got != text {
			wrong = append(wrong, name+" is not what go.mod says")
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		return fmt.Errorf("vendor/ does not match go.mod; go mod vendor makes it so: %s", strings.Join(wrong[:min(5, len(wrong))], ", "))
	}
	return nil
}

// contents returns the texts of all files in a folder, by their paths in it.
func contents(folder string) (map[string]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(folder, path)
		files[filepath.ToSlash(name)] = string(text)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return files, nil
	}
	return files, err
}

// versionFile is the one place of the version.
const versionFile = "version/version.go"

// Both find a version behind what they have as their first group.
var (
	number = regexp.MustCompile(`(?m)^(const Number = ")([^"]+)`)

	// mention finds one of ours in what users read: in commands with an @, and in
	// Traefik's static configuration, as YAML or TOML.
	mention = regexp.MustCompile(`(github\.com/gatequota/gatequota(?:/[\w/]+)?@v|` +
		`moduleName(?::\s*|\s*=\s*)"?github\.com/gatequota/gatequota"?\s+version(?::\s*|\s*=\s*)"?v)` +
		`(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]*[0-9A-Za-z])?)`)
)

// written returns the files of a checkout that may mention the version, besides the one
// that holds it.
func written(folder string) ([]string, error) {
	files := []string{"README.md", ".traefik.yml"}
	for _, below := range []string{"docs", "examples"} {
		err := filepath.WalkDir(filepath.Join(folder, below), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			if slices.Contains([]string{".md", ".yml", ".yaml", ".toml", ".sh"}, filepath.Ext(path)) {
				name, _ := filepath.Rel(folder, path)
				files = append(files, name)
			}
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return files, nil
}
