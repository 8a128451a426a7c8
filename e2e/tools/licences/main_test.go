package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// gpl is what the authors of a program under that licence write at its head.
const gpl = `This program is free software: you can redistribute it and/or modify it under
the terms of the GNU General Public License as published by the Free Software
Foundation, either version 3 of the License, or (at your option) any later version.

This program is distributed in the hope that it will be useful, but WITHOUT ANY
WARRANTY; without even the implied warranty of MERCHANTABILITY or FITNESS FOR A
PARTICULAR PURPOSE. See the GNU General Public License for more details.

You should have received a copy of the GNU General Public License along with this
program. If not, see <https://www.gnu.org/licenses/>.
`

// mit returns the licence of this project.
func mit(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// lay writes files, named by their paths, into a new folder.
func lay(t *testing.T, files map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range files {
		path := filepath.Join(folder, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// module is a program that uses one library, whose files are those given, and its
// folder "part" in a test alone.
func module(t *testing.T, library map[string]string) string {
	t.Helper()
	files := map[string]string{
		"go.mod": "module example.com/program\n\ngo 1.20\n\nrequire (\n\texample.com/library v1.2.3\n\texample.com/idle v1.0.0\n)\n\n" +
			"replace example.com/library => ./library\n\nreplace example.com/idle => ./idle\n",
		"main.go":                 "package main\n\nimport _ \"example.com/library\"\n\nfunc main() {}\n",
		"main_test.go":            "package main\n\nimport _ \"example.com/library/inner/part\"\n",
		"library/go.mod":          "module example.com/library\n",
		"library/library.go":      "package library\n",
		"library/other/a.go":      "package other\n",
		"library/other/COPYING":   gpl, // nobody uses this one
		"library/inner/part/a.go": "package part\n",
		"idle/go.mod":             "module example.com/idle\n",
		"idle/LICENSE":            gpl, // nor this one
	}
	for name, text := range library {
		files["library/"+name] = text
	}
	return lay(t, files)
}

func TestModules(t *testing.T) {
	text := mit(t)
	for _, tt := range []struct {
		name    string
		library map[string]string
		want    string // in the report, beside the name of the library, when it is refused
	}{
		{"allowed", map[string]string{"LICENSE": text}, ""},
		{"under other names", map[string]string{"MIT-LICENSE.txt": text, "licence_test.go": "package library\n"}, ""},
		{"two files", map[string]string{"LICENSE-MIT": text, "copying": text}, ""},
		{"forbidden", map[string]string{"COPYING": gpl}, "COPYING is under GPL-3.0"},
		{"forbidden beside one that is allowed", map[string]string{"LICENSE": text, "LICENSE.more": gpl}, "LICENSE.more is under GPL-3.0"},
		{"forbidden in one file with one that is allowed", map[string]string{"LICENSE": text + "\n" + gpl}, "LICENSE is under GPL-3.0"},
		{"forbidden in a folder that a test uses", map[string]string{"LICENSE": text, "inner/LICENSE": gpl}, "inner/LICENSE is under GPL-3.0"},
		{"unknown", map[string]string{"LICENSE": "Use it on Sundays only.\n"}, "is no text of a known licence"},
		{"with unknown terms", map[string]string{"LICENSE": text + strings.Repeat("But pay me first, and on Sundays twice as much. ", 20)}, "is no text of a known licence"},
		{"none", nil, "carries no file with a licence"},
		{"none in its root", map[string]string{"inner/part/LICENSE": text}, "carries no file with a licence"},
	} {
		t.Run(tt.name, func(t *testing.T) { expect(t, module(t, tt.library), "example.com/library v1.2.3", tt.want) })
	}
}

// expect runs the command on a folder with one library and holds it to its answer.
func expect(t *testing.T, folder, library, trouble string) {
	t.Helper()
	var out strings.Builder
	err := run(&out, []string{folder})
	if trouble == "" {
		if err != nil || !strings.Contains(out.String(), ": 1 libraries: 1 under ") {
			t.Errorf("refused: %v\n%s", err, &out)
		}
		return
	}
	if !errors.Is(err, errFound) || !strings.Contains(out.String(), library+": ") || !strings.Contains(out.String(), trouble) {
		t.Errorf("the error is %v, and the report lacks %q with %q:\n%s", err, library, trouble, &out)
	}
}

func TestPackages(t *testing.T) {
	text := mit(t)
	for _, tt := range []struct {
		name, declared string
		installed      map[string]string
		want           string
	}{
		{"allowed", "MIT", nil, ""},
		{"a choice", "(GPL-3.0-only OR MIT)", nil, ""},
		{"all of several", "MIT AND ISC", nil, ""},
		{"one of several is forbidden", "MIT AND GPL-3.0-only", nil, `"MIT AND GPL-3.0-only"`},
		{"forbidden", "GPL-3.0-only", nil, `"GPL-3.0-only"`},
		{"unknown", "SEE LICENSE IN EULA", nil, `"SEE LICENSE IN EULA"`},
		{"none", "", nil, `""`},
		{"installed, and what it says", "MIT", map[string]string{"LICENSE": text}, ""},
		{"installed, without a text", "MIT", map[string]string{"index.js": ""}, ""},
		{"installed, and not what it says", "MIT", map[string]string{"LICENSE": gpl}, "LICENSE is under GPL-3.0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := map[string]string{"package-lock.json": fmt.Sprintf(
				`{"lockfileVersion": 3, "packages": {"": {"license": "none"}, "node_modules/a/node_modules/@b/c": {"version": "1.2.3", "license": %q}}}`, tt.declared)}
			for name, text := range tt.installed {
				files["node_modules/a/node_modules/@b/c/"+name] = text
			}
			expect(t, lay(t, files), "@b/c 1.2.3", tt.want)
		})
	}
}

func TestWhatCannotBeReadFails(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"nothing":         {},
		"a broken module": {"go.mod": "modul\n"},
		"a broken lock":   {"package-lock.json": "{"},
		"an old lock":     {"package-lock.json": `{"lockfileVersion": 1}`},
		"what is missing": {"go.mod": "module example.com/program\n", "main.go": "package main\n\nimport _ \"example.com/none\"\n\nfunc main() {}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := run(&out, []string{lay(t, files)}); err == nil || errors.Is(err, errFound) {
				t.Errorf("the error is %v\n%s", err, &out)
			}
		})
	}
	if err := run(new(strings.Builder), nil); err == nil {
		t.Error("no folder is no error")
	}
}
