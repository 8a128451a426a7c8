package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatequota/gatequota/e2e/lab"
	"github.com/gatequota/gatequota/version"
)

// The version stands in one place; where else it is mentioned, it is the same.
func TestVersionsAgree(t *testing.T) {
	root := lab.Root()
	if err := valid("v" + version.Number); err != nil {
		t.Error(err)
	}
	text := read(t, filepath.Join(root, versionFile))
	if found := number.FindStringSubmatch(text); found == nil || found[2] != version.Number {
		t.Errorf("a release would not find %s in %s", version.Number, versionFile)
	}
	log, err := parse(read(t, filepath.Join(root, "CHANGELOG.md")))
	if err != nil {
		t.Fatalf("CHANGELOG.md: %v", err)
	}
	if last := log.last(); last != "" && last != "v"+version.Number {
		t.Errorf("CHANGELOG.md ends with %s, and the version is %s", last, version.Number)
	}
	files, err := written(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Errorf("a release would look into %q alone", files)
	}
	for _, name := range files {
		for _, m := range mention.FindAllStringSubmatch(read(t, filepath.Join(root, name)), -1) {
			if m[2] != version.Number {
				t.Errorf("%s mentions %s, and the version is %s", name, m[2], version.Number)
			}
		}
	}
}

func TestThisPluginIsFitForTheCatalog(t *testing.T) {
	if err := catalog(lab.Root()); err != nil {
		t.Error(err)
	}
	if err := vendored(context.Background(), lab.Root()); err != nil {
		t.Error(err)
	}
}

func TestMentions(t *testing.T) {
	for text, want := range map[string]string{
		"go install github.com/gatequota/gatequota@v0.1.0":                                                            "0.1.0",
		"github.com/gatequota/gatequota/ctl/gatequota@v0.1.0-rc.1.":                                                   "0.1.0-rc.1",
		"gatequota:\n  moduleName: github.com/gatequota/gatequota\n  version: v0.1.0\n":                               "0.1.0",
		"[experimental.plugins.gatequota]\n  moduleName = \"github.com/gatequota/gatequota\"\n  version = \"v0.1.0\"": "0.1.0",
		"moduleName: github.com/gatequota/gatequota\nversion: v0.1.0":                                                 "0.1.0",
		"moduleName: github.com/other/gatequota\nversion: v0.1.0":                                                     "",
		"github.com/redis/go-redis/v9@v9.21.0":                                                                        "",
	} {
		got := ""
		if m := mention.FindStringSubmatch(text); m != nil {
			got = m[2]
		}
		if got != want {
			t.Errorf("%q mentions %q, want %q", text, got, want)
		}
	}
}

func TestTags(t *testing.T) {
	for tag, good := range map[string]bool{
		"v0.1.0": true, "v1.20.3": true, "v0.1.0-rc.1": true,
		"0.1.0": false, "v0.1": false, "v1": false, "v0.1.0+b": false, "V0.1.0": false, "v01.0.0": false, "v": false, "": false,
		"ctl/v0.1.0": false, "latest": false,
	} {
		if err := valid(tag); (err == nil) != good {
			t.Errorf("%q: %v", tag, err)
		}
	}
}

func TestAddress(t *testing.T) {
	for path, want := range map[string]string{
		"github.com/a/b": "https://github.com/a/b", "github.com/a/b/v2": "https://github.com/a/b", "example.com/a/b": "",
	} {
		if got := address(path); got != want {
			t.Errorf("%s is published at %q, want %q", path, got, want)
		}
	}
}

func TestUnfitManifests(t *testing.T) {
	const (
		module = "module github.com/a/b\n\ngo 1.20\n"
		fit    = "displayName: B\ntype: middleware\nimport: github.com/a/b\nsummary: Does it.\ntestData:\n  a: 1\n"
	)
	for _, tt := range []struct {
		name, from, to, module, want string
	}{
		{name: "fit"},
		{name: "a package below", from: "/b\n", to: "/b/c\n"},
		{name: "no name", from: "displayName: B\n", want: "displayName"},
		{name: "no summary", from: "summary: Does it.\n", want: "summary"},
		{name: "no example", from: "testData:\n  a: 1\n", want: "testData"},
		{name: "a provider", from: "middleware", to: "provider", want: "type"},
		{name: "compiled", from: "type:", to: "runtime: wasm\ntype:", want: "runtime"},
		{name: "unsafe", from: "type:", to: "useUnsafe: true\ntype:", want: "useUnsafe"},
		{name: "another module", from: "a/b\n", to: "a/bc\n", want: "import"},
		{name: "no icon", from: "type:", to: "iconPath: .assets/icon.png\ntype:", want: "icon.png"},
		{name: "a slip", from: "summary", to: "sumary", want: "sumary"},
		{name: "the interpreter", module: "require github.com/traefik/yaegi v0.16.1\n", want: "must not require"},
		{name: "Traefik", module: "require github.com/traefik/traefik/v3 v3.7.10\n", want: "must not require"},
	} {
		folder := t.TempDir()
		put(t, folder, "go.mod", module+tt.module)
		put(t, folder, ".traefik.yml", strings.Replace(fit, tt.from, tt.to, 1))
		put(t, folder, "README.md", "B")
		put(t, folder, "LICENSE", "MIT")
		err := catalog(folder)
		if tt.want == "" && err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: the error is %v, want %q in it", tt.name, err, tt.want)
		}
	}
}

// A library that is required, and replaced by a folder, is vendored without a network.
func TestVendor(t *testing.T) {
	folder := t.TempDir()
	put(t, folder, "go.mod", "module example.com/a\n\ngo 1.20\n\nrequire example.com/b v1.0.0\n\nreplace example.com/b => ./b\n")
	put(t, folder, "a.go", "package a\n\nimport _ \"example.com/b\"\n")
	put(t, folder, "b/go.mod", "module example.com/b\n\ngo 1.20\n")
	put(t, folder, "b/b.go", "package b\n")
	refused := func(want string) {
		t.Helper()
		if err := vendored(context.Background(), folder); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %q in it", err, want)
		}
	}
	refused("modules.txt is missing")
	put(t, folder, "vendor/modules.txt", "")
	refused("modules.txt is not what go.mod says")
	put(t, folder, "vendor/modules.txt", "# example.com/b v1.0.0 => ./b\n## explicit; go 1.20\nexample.com/b\n# example.com/b => ./b\n")
	refused("example.com/b/b.go is missing")
	put(t, folder, "vendor/example.com/b/b.go", "package b\n")
	if err := vendored(context.Background(), folder); err != nil {
		t.Error(err)
	}
	put(t, folder, "vendor/example.com/b/b.go", "package b // patched\n")
	refused("b.go is not what go.mod says")

	// The same folder when nothing is required any more.
	put(t, folder, "go.mod", "module example.com/a\n\ngo 1.20\n")
	put(t, folder, "a.go", "package a\n")
	refused("b.go is too much")
	if err := os.RemoveAll(filepath.Join(folder, "vendor", "example.com")); err != nil {
		t.Fatal(err)
	}
	put(t, folder, "vendor/modules.txt", "")
	if err := vendored(context.Background(), folder); err != nil {
		t.Error(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func put(t *testing.T, folder, name, text string) {
	t.Helper()
	path := filepath.Join(folder, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
