// Package host loads a plugin with the Yaegi interpreter the way Traefik
// v3.7.10 loads a local plugin: the same interpreter version and options, the
// same symbols, the same source layout, the same decoding of options. What
// passes here runs the code that Traefik would run, without Traefik around it.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/mitchellh/mapstructure"
	"github.com/traefik/yaegi/interp"
	"github.com/traefik/yaegi/stdlib"
	"gopkg.in/yaml.v3"
)

// manifest holds the fields of .traefik.yml that decide how a plugin is loaded.
type manifest struct {
	Type     string         `yaml:"type"`
	Import   string         `yaml:"import"`
	BasePkg  string         `yaml:"basePkg"`
	TestData map[string]any `yaml:"testData"`
}

// Plugin is one loaded plugin: one interpreter, whose package variables every
// middleware made from it shares. Its methods may be called concurrently.
type Plugin struct {
	manifest     manifest
	createConfig reflect.Value
	newHandler   reflect.Value
}

// Middleware is one configured middleware: options decoded once, from which
// every router that names the middleware gets a handler of its own.
type Middleware struct {
	plugin *Plugin
	config reflect.Value
	name   string
}

// Load interprets the plugin whose .traefik.yml lies in dir.
//
// What the plugin prints with fmt goes to stdout, what it logs with log goes to
// stderr. What it writes to os.Stdout or os.Stderr itself goes there only when
// the writer is an *os.File; otherwise it goes to this process's own streams,
// which is what happens inside Traefik.
//
// Symbols given besides replace those of the standard library for this plugin
// alone, which is how a test gives it another clock.
func Load(dir string, stdout, stderr io.Writer, besides ...interp.Exports) (*Plugin, error) {
	m, err := readManifest(dir)
	if err != nil {
		return nil, err
	}
	goPath, err := layOut(dir, m.Import)
	if err != nil {
		return nil, err
	}
	// The sources are read while the import is evaluated and never again.
	defer func() { _ = os.RemoveAll(goPath) }()

	i := interp.New(interp.Options{GoPath: goPath, Env: os.Environ(), Stdout: stdout, Stderr: stderr})
	for _, symbols := range append([]interp.Exports{stdlib.Symbols}, besides...) {
		if err := i.Use(symbols); err != nil {
			return nil, fmt.Errorf("loading symbols: %w", err)
		}
	}
	if _, err := i.Eval(fmt.Sprintf("import %q", m.Import)); err != nil {
		return nil, fmt.Errorf("importing plugin %q: %w", m.Import, err)
	}

	pkg := m.BasePkg
	if pkg == "" {
		pkg = strings.ReplaceAll(path.Base(m.Import), "-", "_")
	}
	p := &Plugin{manifest: m}
	if p.newHandler, err = i.Eval(pkg + ".New"); err != nil {
		return nil, fmt.Errorf("evaluating New: %w", err)
	}
	if p.createConfig, err = i.Eval(pkg + ".CreateConfig"); err != nil {
		return nil, fmt.Errorf("evaluating CreateConfig: %w", err)
	}
	return p, nil
}

// TestData returns the options that the manifest offers as an example.
func (p *Plugin) TestData() map[string]any { return p.manifest.TestData }

// Middleware decodes options as Traefik does, loosely typed, without looking at
// what they mean: that is left to the plugin's New.
func (p *Plugin) Middleware(name string, options map[string]any) (*Middleware, error) {
	results := p.createConfig.Call(nil)
	if len(results) != 1 {
		return nil, fmt.Errorf("CreateConfig returns %d values, want 1", len(results))
	}
	m := &Middleware{plugin: p, config: results[0], name: name}
	if len(options) == 0 {
		return m, nil
	}
	decoder, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		DecodeHook:       mapstructure.StringToSliceHookFunc(","),
		WeaklyTypedInput: true,
		Result:           m.config.Interface(),
	})
	if err != nil {
		return nil, fmt.Errorf("creating the decoder: %w", err)
	}
	if err := decoder.Decode(options); err != nil {
		return nil, fmt.Errorf("decoding the options: %w", err)
	}
	return m, nil
}

// NewHandler makes the handler of one more router. All of them get the same
// configuration value.
func (m *Middleware) NewHandler(ctx context.Context, next http.Handler) (http.Handler, error) {
	results := m.plugin.newHandler.Call([]reflect.Value{
		reflect.ValueOf(ctx), reflect.ValueOf(next), m.config, reflect.ValueOf(m.name),
	})
	if len(results) > 1 && results[1].Interface() != nil {
		err, ok := results[1].Interface().(error)
		if !ok {
			return nil, fmt.Errorf("New returns an error of type %T", results[1].Interface())
		}
		return nil, err
	}
	handler, ok := results[0].Interface().(http.Handler)
	if !ok {
		return nil, fmt.Errorf("New returns a handler of type %T", results[0].Interface())
	}
	return handler, nil
}

// New decodes options and makes one handler from them.
func (p *Plugin) New(ctx context.Context, next http.Handler, name string, options map[string]any) (http.Handler, error) {
	m, err := p.Middleware(name, options)
	if err != nil {
		return nil, err
	}
	return m.NewHandler(ctx, next)
}

func readManifest(dir string) (manifest, error) {
	var m manifest
	text, err := os.ReadFile(filepath.Join(dir, ".traefik.yml"))
	if err != nil {
		return m, fmt.Errorf("reading the plugin's manifest: %w", err)
	}
	if err := yaml.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("reading the plugin's manifest: %w", err)
	}
	if m.Type != "middleware" {
		return m, fmt.Errorf("the manifest's type is %q, want \"middleware\"", m.Type)
	}
	if m.Import == "" {
		return m, errors.New("the manifest names no import")
	}
	return m, nil
}

// layOut makes a GOPATH that holds nothing but a link to dir under the import's
// path, and returns it.
func layOut(dir, importPath string) (string, error) {
	source, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("locating the plugin: %w", err)
	}
	goPath, err := os.MkdirTemp("", "plugins-local-")
	if err != nil {
		return "", fmt.Errorf("making a GOPATH: %w", err)
	}
	link := filepath.Join(goPath, "src", filepath.FromSlash(importPath))
	if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(source, link)); err != nil {
		_ = os.RemoveAll(goPath)
		return "", fmt.Errorf("linking the plugin into a GOPATH: %w", err)
	}
	return goPath, nil
}
