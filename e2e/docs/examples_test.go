package docs

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/gatequota/gatequota"
	"github.com/gatequota/gatequota/e2e/host"
	"github.com/gatequota/gatequota/internal/suite"
)

// form is one of the four ways to write options.
type form struct {
	name string
	is   func(language, text string) bool
	read func(text string) (middleware string, options map[string]any, err error)
}

var forms = []form{
	{"YAML", func(language, text string) bool { return language == "yaml" && strings.HasPrefix(text, "http:") },
		func(text string) (string, map[string]any, error) { return fromFile(text, ".yaml") }},
	{"labels", func(language, text string) bool { return language == "yaml" && strings.HasPrefix(text, "labels:") }, fromLabels},
	{"TOML", func(language, _ string) bool { return language == "toml" },
		func(text string) (string, map[string]any, error) { return fromFile(text, ".toml") }},
	{"Kubernetes", func(language, text string) bool { return language == "yaml" && strings.HasPrefix(text, "apiVersion:") }, fromKubernetes},
}

// example is one set of options in several forms.
type example struct {
	title string
	texts map[string]string // by the name of the form
}

var fence = regexp.MustCompile("(?ms)^```(yaml|toml)\n(.*?)^```$")

// examples returns those of the section of that name, and before them the one that the
// page begins with.
func examples(t *testing.T) []example {
	t.Helper()
	beginning, section, found := strings.Cut(page(t), "\n## Examples\n")
	if !found {
		t.Fatal("the page has no examples")
	}
	parts := append([]string{"The least\n" + beginning}, strings.Split(section, "\n### ")[1:]...)
	var all []example
	for _, part := range parts {
		title, text, _ := strings.Cut(part, "\n")
		e := example{title, map[string]string{}}
		for _, block := range fence.FindAllStringSubmatch(text, -1) {
			name := ""
			for _, f := range forms {
				if f.is(block[1], block[2]) {
					name = f.name
				}
			}
			if name == "" || e.texts[name] != "" {
				t.Errorf("%s: a block of no form, or one more of the form %q:\n%s", title, name, block[2])
			}
			e.texts[name] = block[2]
		}
		all = append(all, e)
	}
	return all
}

// files writes what the examples name as files, and returns where each is.
func files(t *testing.T) map[string]string {
	t.Helper()
	authority := suite.NewAuthority(t)
	pair := authority.Issue(t, "gateway", false)
	dir := t.TempDir()
	at := map[string]string{}
	for name, content := range map[string]string{
		"/run/secrets/valkey-password":       "change-me\n",
		"/run/secrets/valkey-key-secret":     secret + "\n",
		"/run/secrets/metrics-token":         "change-me\n",
		"/etc/traefik/valkey/ca.pem":         authority.PEM,
		"/etc/traefik/valkey/client.pem":     pair.CertPEM,
		"/etc/traefik/valkey/client-key.pem": pair.KeyPEM,
	} {
		at[name] = filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(at[name], []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return at
}

// read returns the options of one form of an example, with the files of the test.
func read(t *testing.T, f form, text string, at map[string]string) (string, map[string]any) {
	t.Helper()
	middleware, options, err := f.read(text)
	if err != nil {
		t.Fatal(err)
	}
	return middleware, replaced(options, at).(map[string]any)
}

// flat returns what is set in a Config, as text: by path, with a number in the brackets
// of lists, and by option. Numbers and booleans are as in text, which is what
// most providers hand over.
func flat(config *gatequota.Config) (values map[string]string, set map[field]bool) {
	values, set = map[string]string{}, map[field]bool{}
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer, reflect.Interface:
			walk(path, v.Elem())
		case reflect.Slice:
			for i := range v.Len() {
				walk(fmt.Sprintf("%s[%d]", path, i), v.Index(i))
			}
		case reflect.Map:
			for _, key := range v.MapKeys() {
				walk(path+"."+key.String(), v.MapIndex(key))
				if path == ".log" {
					set[fieldAt(path, logOptions, key.String())] = true
				}
			}
		case reflect.Struct:
			for i := range v.NumField() {
				name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
				if name == "-" {
					name = "unknown"
				}
				before := len(values)
				walk(path+"."+name, v.Field(i))
				if len(values) > before {
					set[fieldAt(path, v.Type(), name)] = true
				}
			}
		case reflect.Invalid:
		default:
			values[strings.TrimPrefix(path, ".")] = strings.TrimSpace(fmt.Sprint(v.Interface()))
		}
	}
	walk("", reflect.ValueOf(config))
	return values, set
}

func TestEachExampleMeansTheSameInAllForms(t *testing.T) {
	at := files(t)
	for i, e := range examples(t) {
		var first map[string]string
		for _, f := range forms {
			text := e.texts[f.name]
			if text == "" {
				if i > 0 || f.name == "YAML" {
					t.Errorf("%s: it is not given as %s", e.title, f.name)
				}
				continue
			}
			t.Run(e.title+"/"+f.name, func(t *testing.T) {
				name, options := read(t, f, text, at)
				config, err := decode(options)
				if err != nil {
					t.Fatal(err)
				}
				values, _ := flat(config)
				values["the middleware's name"] = name
				for path, value := range values {
					if strings.Contains(path, "unknown") {
						t.Errorf("%s (%s) is no option", path, value)
					}
				}
				if first == nil {
					first = values
				}
				for path := range merged(first, values) {
					if values[path] != first[path] {
						t.Errorf("%s is %q here and %q in %s", path, values[path], first[path], forms[0].name)
					}
				}
			})
		}
	}
}

func merged(one, other map[string]string) map[string]string {
	both := map[string]string{}
	for _, each := range []map[string]string{one, other} {
		for path, value := range each {
			both[path] = value
		}
	}
	return both
}

func TestTheExamplesUseEveryOptionInEachForm(t *testing.T) {
	at := files(t)
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			used := map[field]bool{}
			for _, e := range examples(t) {
				if e.texts[f.name] == "" {
					continue
				}
				_, options := read(t, f, e.texts[f.name], at)
				config, err := decode(options)
				if err != nil {
					t.Fatalf("%s: %v", e.title, err)
				}
				_, set := flat(config)
				for option := range set {
					used[option] = true
				}
			}
			for path, option := range options() {
				if !used[option] {
					t.Errorf("no example has %s", path)
				}
			}
		})
	}
}

func TestThePluginTakesEveryExample(t *testing.T) {
	at := files(t)
	next := http.NotFoundHandler()
	for _, e := range examples(t) {
		for _, f := range forms {
			if e.texts[f.name] == "" {
				continue
			}
			t.Run(e.title+"/"+f.name, func(t *testing.T) {
				name, options := read(t, f, e.texts[f.name], at)
				config, err := decode(options)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := gatequota.New(context.Background(), next, config, name+"@docs"); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Interpreted, each form leads to the same effective settings: they are logged anew only
// when they differ from the last.
func TestTheInterpretedPluginTakesEveryExample(t *testing.T) {
	output, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	plugin, err := host.Load(root, output, output)
	if err != nil {
		t.Fatal(err)
	}
	at := files(t)
	var want []string
	for _, e := range examples(t) {
		name := ""
		for _, f := range forms {
			if e.texts[f.name] == "" {
				continue
			}
			t.Run(e.title+"/"+f.name, func(t *testing.T) {
				middleware, options := read(t, f, e.texts[f.name], at)
				name = middleware + "@docs"
				if _, err := plugin.New(context.Background(), http.NotFoundHandler(), name, options); err != nil {
					t.Error(err)
				}
			})
		}
		want = append(want, "gatequota: middleware "+name+": ")
	}
	logged, err := os.ReadFile(output.Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range want {
		if n := strings.Count(string(logged), line); n != 1 {
			t.Errorf("%q was logged %d times, want once:\n%s", line, n, logged)
		}
	}
}
