// Package archive takes a commit out of a repository in the ways in which users get
// the plugin, and tries what they would get: interpreted as the plugin catalog does
// it, and in a real Traefik.
package archive

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/traefik/paerser/file"
	"golang.org/x/mod/module"
	modzip "golang.org/x/mod/zip"

	"github.com/gatequota/gatequota/e2e/host"
	"github.com/gatequota/gatequota/e2e/lab"
)

// source is where a GOPATH, or Traefik's plugins-local, has the sources of a module.
func source(folder, path string) string {
	return filepath.Join(folder, "src", filepath.FromSlash(path))
}

// Local lays a commit out in an empty folder as plugins-local is, of which Traefik
// loads a local plugin, and returns where the plugin lies.
func Local(ctx context.Context, repository, commit, path, folder string) (string, error) {
	packed := filepath.Join(folder, "archive.zip")
	cmd := exec.CommandContext(ctx, "git", "-C", repository, "archive", "--format=zip", "--output="+packed, commit)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("archiving %s: %w\n%s", commit, err, out)
	}
	files, err := zip.OpenReader(packed)
	if err != nil {
		return "", fmt.Errorf("reading the archive: %w", err)
	}
	defer func() { _ = files.Close() }()
	plugin := source(folder, path)
	if err := os.CopyFS(plugin, files); err != nil {
		return "", fmt.Errorf("unpacking the archive: %w", err)
	}
	return plugin, nil
}

// Module lays a commit out as the plugin catalog does before it looks at a version:
// from the file that the module proxy serves, which has neither the modules below nor
// the packages in vendor/.
func Module(ctx context.Context, repository, commit string, version module.Version, folder string) (string, error) {
	packed := filepath.Join(folder, "module.zip")
	f, err := os.Create(packed)
	if err != nil {
		return "", err
	}
	if err := errors.Join(modzip.CreateFromVCS(f, version, repository, commit, ""), f.Close()); err != nil {
		return "", fmt.Errorf("packing the module %s: %w", version, err)
	}
	plugin := source(folder, version.Path)
	if err := modzip.Unzip(plugin, version, packed); err != nil {
		return "", fmt.Errorf("unpacking the module %s: %w", version, err)
	}
	return plugin, ctx.Err()
}

// Interpret loads the plugin that lies in a folder with Traefik's interpreter, makes
// a middleware of the options that its manifest offers, read in both ways in which
// they are, and sends a request through one whose store is away.
func Interpret(ctx context.Context, plugin string) error {
	// Only to a file does all go that a plugin prints.
	output, err := os.CreateTemp("", "plugin-")
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(output.Close(), os.Remove(output.Name())) }()
	fail := func(err error) error {
		_, _ = output.Seek(0, io.SeekStart)
		text, _ := io.ReadAll(output)
		return fmt.Errorf("%w\n%s", err, bytes.TrimSpace(text))
	}
	p, err := host.Load(plugin, output, output)
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reached := false
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true })
	text, err := os.ReadFile(filepath.Join(plugin, ".traefik.yml"))
	if err != nil {
		return err
	}
	var manifest struct{ TestData map[string]any }
	if err := file.DecodeContent(string(text), ".yaml", &manifest); err != nil {
		return fail(fmt.Errorf("reading the manifest as the catalog does: %w", err))
	}
	for _, options := range []map[string]any{p.TestData(), manifest.TestData} {
		if _, err := p.New(ctx, next, "release@file", options); err != nil {
			return fail(fmt.Errorf("making a middleware of testData: %w", err))
		}
	}
	options, err := away(p.TestData())
	if err != nil {
		return err
	}
	handler, err := p.New(ctx, next, "release@file", options)
	if err != nil {
		return fail(fmt.Errorf("making a middleware: %w", err))
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, request("http://gateway.example/"))
	if !reached {
		return fail(fmt.Errorf("a request was answered with %d by the plugin", w.Code))
	}
	if err := limited(w.Code, w.Header()); err != nil {
		return fail(err)
	}
	return nil
}

// Serve starts a real Traefik with the plugin that lies in a folder and sends a
// request through it. The environment variable TRAEFIK names the program.
func Serve(ctx context.Context, plugin string) error {
	p, err := host.Load(plugin, io.Discard, io.Discard)
	if err != nil {
		return err
	}
	options, err := away(p.TestData())
	if err != nil {
		return err
	}
	return lab.Outside(ctx, func(t testing.TB) {
		traefik := lab.NewTraefik(t, lab.TraefikOptions{Plugin: plugin}, lab.Routes{
			Routers:     map[string]lab.Route{"app": {Rule: "PathPrefix(`/`)", Middlewares: []string{"quota"}, Service: "app"}},
			Middlewares: map[string]lab.Map{"quota": lab.Quota(options)},
			Services:    map[string]string{"app": lab.NewApp(t, 1).URLs[0]},
		}.YAML(t))
		req := request(traefik.URL + "/")
		req.RequestURI = "" // of a server's request
		resp, err := http.DefaultClient.Do(req.WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if err := limited(resp.StatusCode, resp.Header); err != nil {
			t.Fatalf("%v; Traefik's log:\n%s", err, traefik.Log())
		}
	})
}

// request is one that any manifest's options count: it has an address, a host and a key.
func request(url string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, url, nil)
	r.Header.Set("X-API-Key", "release")
	return r
}

// limited tells whether an answer is that of the application, with a limit's fields.
func limited(code int, header http.Header) error {
	if code != http.StatusOK || header.Get("RateLimit-Policy") == "" {
		return fmt.Errorf("the answer is %d with RateLimit-Policy %q, want 200 and a policy", code, header.Get("RateLimit-Policy"))
	}
	return nil
}

// away returns the options with a store at an address where none listens, so that
// nothing is counted in a store that happens to run on this machine.
func away(options map[string]any) (map[string]any, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }()
	store, _ := options["valkey"].(map[string]any)
	options, store = maps.Clone(options), maps.Clone(store)
	if store != nil {
		store["endpoints"] = []any{l.Addr().String()}
		options["valkey"] = store
	}
	return options, nil
}
