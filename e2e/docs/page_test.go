// Package docs holds the page on options, docs/configuration.md, to what the plugin
// does: no option is missing there, and every example loads as in Traefik.
package docs

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/gatequota/gatequota"
)

// root holds the plugin, its manifest and its documentation.
const root = "../.."

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// row is a row of a table of options.
type row struct {
	option, kind, otherwise, bounds, meaning string
}

// tableHead begins the tables of options, and no others.
const tableHead = "| option | type | default | bounds | meaning |"

func rows(t *testing.T) []row {
	t.Helper()
	var found []row
	inside := false
	for _, line := range strings.Split(page(t), "\n") {
		if !strings.HasPrefix(line, "|") || line == tableHead {
			inside = line == tableHead
			continue
		}
		if !inside || strings.HasPrefix(line, "|---") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 5 {
			t.Fatalf("a row of %d cells: %s", len(cells), line)
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		name, plain := strings.CutPrefix(cells[0], "`")
		name, ends := strings.CutSuffix(name, "`")
		if !plain || !ends || cells[1] == "" || cells[4] == "" {
			t.Errorf("an option in backticks, its type and its meaning are wanted: %s", line)
		}
		found = append(found, row{name, cells[1], cells[2], cells[3], cells[4]})
	}
	if len(found) == 0 {
		t.Fatal("the page has no table of options")
	}
	return found
}

// field is an option, whatever the levels on which it may stand. Only within a
// sourceCriterion an ipStrategy says something else, and its options are others.
type field struct {
	level  reflect.Type
	name   string
	source bool // it is one within a sourceCriterion
}

func fieldAt(path string, level reflect.Type, name string) field {
	return field{level, name, strings.Contains(path, "sourceCriterion")}
}

// logOptions are those inside the option log, which may be a text too.
var logOptions = reflect.TypeFor[gatequota.LogConfig]()

// options returns all options by their paths as the page writes them.
func options() map[string]field {
	all := map[string]field{}
	var walk func(path string, of reflect.Type)
	walk = func(path string, of reflect.Type) {
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if name == "-" {
				continue
			}
			all[path+name] = fieldAt(path, of, name)
			inner, shape := of.Field(i).Type, ""
			if name == "log" {
				inner = logOptions // or one of them by itself
			}
			switch inner.Kind() {
			case reflect.Pointer:
				inner = inner.Elem()
			case reflect.Slice:
				inner, shape = inner.Elem(), "[]"
			case reflect.Map:
				inner, shape = inner.Elem(), ".<plan>"
			}
			if inner.Kind() == reflect.Struct {
				walk(path+name+shape+".", inner)
			}
		}
	}
	walk("", reflect.TypeFor[gatequota.Config]())
	return all
}

func TestTheTablesHaveEveryOption(t *testing.T) {
	all := options()
	listed := map[field]bool{}
	seen := map[string]bool{}
	for _, r := range rows(t) {
		option, exists := all[r.option]
		if !exists {
			t.Errorf("a table has %s, and no such option exists", r.option)
		}
		if seen[r.option] {
			t.Errorf("%s has two rows", r.option)
		}
		seen[r.option] = true
		listed[option] = true
	}
	for path, option := range all {
		if !listed[option] {
			t.Errorf("no table has %s", path)
		}
	}
}

// Every link of the README and of the pages leads to a file that is there, and to a heading
// in it.
func TestLinksLeadSomewhere(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(pages) < 10 {
		t.Fatal(pages, err)
	}
	pages = append(pages, filepath.Join(root, "README.md"), filepath.Join(root, "CHANGELOG.md"), filepath.Join(root, "k6", "README.md"))
	heading := regexp.MustCompile(`(?m)^#+ (.*)$`)
	link := regexp.MustCompile(`\[[^\]]*\]\(([^)[:space:]]*)\)`)
	anchors := func(text string) map[string]bool {
		found := map[string]bool{}
		for _, m := range heading.FindAllStringSubmatch(text, -1) {
			title := link.ReplaceAllStringFunc(m[1], func(whole string) string { return whole[:strings.Index(whole, "]")] })
			plain := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(title), "")
			found[strings.ReplaceAll(plain, " ", "-")] = true
		}
		return found
	}
	read := func(path string) (string, error) {
		content, err := os.ReadFile(path)
		return string(content), err
	}
	for _, name := range pages {
		own, err := read(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(own, -1) {
			file, anchor, _ := strings.Cut(m[1], "#")
			if strings.HasPrefix(file, "https://") {
				continue
			}
			text := own
			if file != "" {
				target := filepath.Join(filepath.Dir(name), filepath.FromSlash(file))
				if _, err := os.Stat(target); err != nil {
					t.Errorf("%s: the link %s: %v", filepath.Base(name), m[1], err)
					continue
				}
				if anchor == "" {
					continue
				}
				if text, err = read(target); err != nil {
					t.Fatal(err)
				}
			}
			if !anchors(text)[anchor] {
				t.Errorf("%s: the link %s: there is no such heading", filepath.Base(name), m[1])
			}
		}
	}
}

// Whoever begins with the README finds each page.
func TestTheReadmeLeadsToEachPage(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(pages) < 10 {
		t.Fatal(pages, err)
	}
	for _, page := range pages {
		if !strings.Contains(string(readme), "](docs/"+filepath.Base(page)+")") {
			t.Errorf("the README does not lead to %s", filepath.Base(page))
		}
	}
}
