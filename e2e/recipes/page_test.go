package recipes_test

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/lab"
)

// page is docs/recipes.md.
type page struct {
	blocks []block
	tables map[string][][]string // rows of cells, without their heads, by name
}

// block is a fenced text with what a comment before it says it is: a recipe, which
// Traefik can load, a part of the static configuration, or annotations of something else.
type block struct {
	kind, name, text string
}

var comment = regexp.MustCompile(`^<!-- ([a-z]+): ([a-z-]+) -->$`)

// readPage reads the page. Each fenced text in YAML must say what it is.
func readPage(t *testing.T) page {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(lab.Root(), "docs", "recipes.md"))
	if err != nil {
		t.Fatal(err)
	}
	p := page{tables: map[string][][]string{}}
	lines := strings.Split(string(content), "\n")
	for i, line := range lines {
		if strings.TrimSpace(line) == "```yaml" && comment.FindStringSubmatch(lines[i-1]) == nil {
			t.Errorf("line %d: nothing says what this configuration is", i+1)
		}
		found := comment.FindStringSubmatch(line)
		switch {
		case found == nil:
		case lines[i+1] == "```yaml":
			b := block{kind: found[1], name: found[2]}
			for _, line := range lines[i+2:] {
				if line == "```" {
					break
				}
				b.text += line + "\n"
			}
			p.blocks = append(p.blocks, b)
		case strings.HasPrefix(lines[i+1], "|"):
			for _, line := range lines[i+3:] {
				if !strings.HasPrefix(line, "|") {
					break
				}
				cells := strings.Split(strings.Trim(line, "|"), "|")
				p.tables[found[2]] = append(p.tables[found[2]], cells)
			}
		default:
			t.Errorf("line %d: neither a configuration nor a table follows", i+1)
		}
	}
	return p
}

// named returns the names of the blocks of a kind, in their order.
func (p page) named(kind string) []string {
	var names []string
	for _, b := range p.blocks {
		if b.kind == kind {
			names = append(names, b.name)
		}
	}
	return names
}

// decode returns the documents in a block.
func (b block) decode(t *testing.T, replace *strings.Replacer) []lab.Map {
	t.Helper()
	var documents []lab.Map
	decoder := yaml.NewDecoder(strings.NewReader(replace.Replace(b.text)))
	for {
		document := lab.Map{}
		err := decoder.Decode(&document)
		if err == io.EOF {
			return documents
		}
		if err != nil {
			t.Fatalf("the %s %s: %v", b.kind, b.name, err)
		}
		documents = append(documents, document)
	}
}

// at returns what stands in a tree under a path of keys, an empty map if nothing does.
func at(tree lab.Map, keys ...string) lab.Map {
	for _, key := range keys {
		inner, is := tree[key].(lab.Map)
		if !is {
			return lab.Map{}
		}
		tree = inner
	}
	return tree
}

// dynamic puts all recipes together as one dynamic configuration of the file provider.
// What several of them name alike would replace one another, and is refused.
func (p page) dynamic(t *testing.T, replace *strings.Replacer) lab.Map {
	t.Helper()
	all := map[string]lab.Map{"routers": {}, "middlewares": {}, "services": {}}
	for _, b := range p.blocks {
		if b.kind != "recipe" {
			continue
		}
		for _, document := range b.decode(t, replace) {
			if document["kind"] != nil {
				document = fromKubernetes(t, document)
			}
			if len(document) != 1 || len(at(document, "http")) == 0 {
				t.Fatalf("the recipe %s is no configuration of routers, middlewares and services", b.name)
			}
			for part, entries := range at(document, "http") {
				if all[part] == nil {
					t.Fatalf("the recipe %s has %s", b.name, part)
				}
				for name, entry := range entries.(lab.Map) {
					if all[part][name] != nil {
						t.Errorf("the recipe %s is not the only one with %s.%s", b.name, part, name)
					}
					all[part][name] = entry
				}
			}
		}
	}
	return lab.Map{"http": lab.Map{"routers": all["routers"], "middlewares": all["middlewares"], "services": all["services"]}}
}

// fromKubernetes returns what a Middleware or an IngressRoute is for the file provider.
func fromKubernetes(t *testing.T, resource lab.Map) lab.Map {
	t.Helper()
	meta := at(resource, "metadata")
	prefix := fmt.Sprint(meta["namespace"], "-")
	name := prefix + fmt.Sprint(meta["name"])
	switch resource["kind"] {
	case "Middleware":
		return lab.Map{"http": lab.Map{"middlewares": lab.Map{name: at(resource, "spec")}}}
	case "IngressRoute":
		routers := lab.Map{}
		for i, entry := range at(resource, "spec")["routes"].([]any) {
			route := entry.(lab.Map)
			var middlewares []string
			for _, m := range route["middlewares"].([]any) {
				middlewares = append(middlewares, prefix+fmt.Sprint(m.(lab.Map)["name"]))
			}
			services := route["services"].([]any)
			routers[fmt.Sprintf("%s-%d", name, i)] = lab.Map{"rule": route["match"], "middlewares": middlewares, "service": services[0].(lab.Map)["name"]}
		}
		return lab.Map{"http": lab.Map{"routers": routers}}
	}
	t.Fatalf("a resource of the kind %v", resource["kind"])
	return nil
}

// static returns the static configurations of the page as options on the command line.
// The address of the entry point is the test's.
func (p page) static(t *testing.T, replace *strings.Replacer) []string {
	t.Helper()
	var args []string
	for _, b := range p.blocks {
		if b.kind == "static" {
			for _, document := range b.decode(t, replace) {
				args = append(args, flags("--", document)...)
			}
		}
	}
	return args
}

func flags(prefix string, tree lab.Map) []string {
	var args []string
	keys := make([]string, 0, len(tree))
	for key := range maps.Keys(tree) {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		option := prefix + key
		switch value := tree[key].(type) {
		case lab.Map:
			args = append(args, flags(option+".", value)...)
		case []any:
			texts := make([]string, len(value))
			for i := range value {
				texts[i] = fmt.Sprint(value[i])
			}
			args = append(args, option+"="+strings.Join(texts, ","))
		default:
			if option != "--entryPoints.web.address" {
				args = append(args, option+"="+fmt.Sprint(value))
			}
		}
	}
	return args
}
