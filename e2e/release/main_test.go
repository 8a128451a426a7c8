package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatequota/gatequota/e2e/lab"
)

// clone is a checkout of this project's last commit, with a changelog of its own.
type clone struct {
	git
	t *testing.T
}

func newClone(t *testing.T) *clone {
	t.Helper()
	c := &clone{git{context.Background(), t.TempDir()}, t}
	c.do("clone", "--quiet", "--shared", "--no-tags", lab.Root(), ".")
	c.do("checkout", "--quiet", "-B", "main")
	for name, value := range map[string]string{
		"user.name": "Somebody", "user.email": "somebody@example.com", "commit.gpgSign": "false", "tag.gpgSign": "false",
	} {
		c.do("config", name, value)
	}
	c.commit("CHANGELOG.md", head+unreleased+"\n\n"+news+"\n## [0.1.0] - 2026-01-02\n\n### Added\n\n- All.\n")
	return c
}

func (c *clone) do(args ...string) string {
	c.t.Helper()
	out, err := c.run(args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// commit changes one file and commits it.
func (c *clone) commit(name, text string) {
	c.t.Helper()
	put(c.t, c.folder, name, text)
	c.do("add", "--force", name)
	c.do("commit", "--quiet", "--message", "Change "+name)
}

// state is all of a repository that a release may change.
func (c *clone) state() string {
	c.t.Helper()
	return strings.Join([]string{
		c.do("rev-parse", "--abbrev-ref", "HEAD"), c.do("for-each-ref"), c.do("status", "--porcelain"), c.do("worktree", "list"), c.do("stash", "list"),
	}, "\n")
}

func (c *clone) release(version string) error {
	c.t.Helper()
	o := options{repository: c.folder, version: version, date: day, out: io.Discard}
	return o.release(c.ctx)
}

func TestRelease(t *testing.T) {
	c := newClone(t)
	c.commit("docs/install.md", "    moduleName: github.com/gatequota/gatequota\n    version: v0.1.0\n")
	before := c.do("rev-parse", "HEAD")
	if err := c.release("0.2.0"); err != nil {
		t.Fatal(err)
	}
	if got := c.do("rev-parse", "HEAD~1"); got != before {
		t.Errorf("it is not one commit: below it is %s", got)
	}
	if got, want := c.do("rev-parse", "v0.2.0^{commit}"), c.do("rev-parse", "main"); got != want {
		t.Errorf("the tag is of %s, and main at %s", got, want)
	}
	if got := c.do("cat-file", "-t", "v0.2.0"); got != "tag" {
		t.Errorf("the tag is a %s, want an annotated one", got)
	}
	if got := c.do("tag", "--list"); got != "v0.2.0" {
		t.Errorf("the tags are %q", got)
	}
	same(t, c.do("tag", "--list", "--format=%(contents)", "v0.2.0"), "Gatequota 0.2.0\n\n"+strings.TrimSpace(news))
	same(t, c.do("log", "-1", "--format=%s"), "Release 0.2.0")
	if got := c.do("status", "--porcelain"); got != "" {
		t.Errorf("left behind:\n%s", got)
	}
	if got := c.do("worktree", "list"); strings.Contains(got, "\n") {
		t.Errorf("left behind:\n%s", got)
	}
	same(t, c.do("diff", "--name-only", "HEAD~1"), "CHANGELOG.md\ndocs/install.md\nversion/version.go")
	if text := read(t, filepath.Join(c.folder, versionFile)); !strings.Contains(text, "\nconst Number = \"0.2.0\"\n") {
		t.Errorf("the version is not written:\n%s", text)
	}
	same(t, read(t, filepath.Join(c.folder, "docs/install.md")), "    moduleName: github.com/gatequota/gatequota\n    version: v0.2.0\n")
	same(t, read(t, filepath.Join(c.folder, "CHANGELOG.md")), head+unreleased+"\n\n## [0.2.0] - 2026-11-30\n\n"+news+
		"\n## [0.1.0] - 2026-01-02\n\n### Added\n\n- All.\n"+`
[Unreleased]: https://github.com/gatequota/gatequota/compare/v0.2.0...HEAD
[0.2.0]: https://github.com/gatequota/gatequota/compare/v0.1.0...v0.2.0
[0.1.0]: https://github.com/gatequota/gatequota/releases/tag/v0.1.0
`)
	// What has become of it is the base of the next.
	after := c.state()
	if err := c.release("0.3.0"); err == nil || !strings.Contains(err.Error(), "nothing stands under") {
		t.Errorf("a release of nothing: %v", err)
	}
	if err := c.release("0.2.0"); err == nil || !strings.Contains(err.Error(), "not greater") {
		t.Errorf("a release again: %v", err)
	}
	same(t, c.state(), after)
}

// Whatever is wrong is said, and nothing of a release is there afterwards.
func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		name, version string
		spoil         func(c *clone)
		want          string
	}{
		{"no version", "", nil, "is no version"},
		{"half a version", "0.2", nil, "is no version"},
		{"a v before it", "v0.2.0", nil, "is no version"},
		{"a build", "0.2.0+1", nil, "is no version"},
		{"a version of another module", "2.0.0", nil, "v0 or v1"},
		{"the same version", "0.1.0", nil, "not greater than the last version, v0.1.0"},
		{"an older version", "0.0.9", nil, "not greater than the last version, v0.1.0"},
		{"a candidate of what is released", "0.1.0-rc.1", nil, "not greater than the last version, v0.1.0"},
		{"older than a tag", "0.2.0", func(c *clone) { c.do("tag", "v0.10.0") }, "not greater than the last version, v0.10.0"},
		{"a tag that the catalog refuses", "0.2.0", func(c *clone) { c.do("tag", "ctl/v0.1.0") }, "ctl/v0.1.0 keeps the plugin catalog"},
		{"a changed file", "0.2.0", func(c *clone) { put(c.t, c.folder, "README.md", "changed") }, "README.md"},
		{"a new file", "0.2.0", func(c *clone) { put(c.t, c.folder, "new.go", "package gatequota\n") }, "new.go"},
		{"another branch", "0.2.0", func(c *clone) { c.do("checkout", "--quiet", "-b", "other") }, `the branch is "other"`},
		{"a detached head", "0.2.0", func(c *clone) { c.do("checkout", "--quiet", "--detach") }, `the branch is ""`},
		{"nothing to release", "0.2.0", func(c *clone) { c.commit("CHANGELOG.md", head+unreleased+"\n") }, "nothing stands under"},
		{"a changelog in another form", "0.2.0", func(c *clone) { c.commit("CHANGELOG.md", head+"## Unreleased\n\n"+news) }, "CHANGELOG.md: the first section"},
		{"no changelog", "0.2.0", func(c *clone) { c.do("rm", "--quiet", "CHANGELOG.md"); c.do("commit", "--quiet", "-m", "Remove") }, "CHANGELOG.md"},
		{"a library that go.mod does not know", "0.2.0", func(c *clone) { c.commit("vendor/example.com/b/b.go", "package b\n") }, "vendor/ does not match go.mod"},
		{"a manifest without a summary", "0.2.0", func(c *clone) {
			c.commit(".traefik.yml", strings.Replace(read(c.t, filepath.Join(c.folder, ".traefik.yml")), "summary:", "# ", 1))
		}, "summary is empty"},
		{"an example that the plugin refuses", "0.2.0", func(c *clone) {
			c.commit(".traefik.yml", strings.Replace(read(c.t, filepath.Join(c.folder, ".traefik.yml")), "limit: 100", "limit: 0", 1))
		}, "testData"},
		{"code that the interpreter does not load", "0.2.0", func(c *clone) {
			c.commit("odd.go", "package gatequota\n\nimport \"embed\"\n\nvar odd embed.FS\n")
		}, "as a local plugin: importing plugin"},
		{"a version that is not where it was", "0.2.0", func(c *clone) {
			c.commit(versionFile, "package version\n\nvar Number = \"0.1.0\"\n")
		}, "version/version.go"},
		{"a file that the module proxy does not take", "0.2.0", func(c *clone) { c.commit("docs/why?.md", "Because.") }, "packing the module"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newClone(t)
			if tt.spoil != nil {
				tt.spoil(c)
			}
			before := c.state()
			err := c.release(tt.version)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, want %q in it", err, tt.want)
			}
			same(t, c.state(), before)
		})
	}
}

// Who commits to main while a release is made keeps the commit, and no tag is left.
func TestMainMovesMeanwhile(t *testing.T) {
	c := newClone(t)
	hook := filepath.Join(c.folder, ".git", "hooks", "post-commit")
	put(t, c.folder, ".git/hooks/post-commit", "#!/bin/sh\nexec git update-ref refs/heads/main $(git commit-tree -p HEAD~1 -m Other HEAD~1^{tree})\n")
	if err := os.Chmod(hook, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.release("0.2.0"); err == nil || !strings.Contains(err.Error(), "changed meanwhile") {
		t.Errorf("the error is %v", err)
	}
	same(t, c.do("log", "-1", "--format=%s", "main"), "Other")
	same(t, c.do("tag", "--list"), "")
}

// A release that is interrupted leaves nothing, at whatever step it is.
func TestInterruption(t *testing.T) {
	c := newClone(t)
	before := c.state()
	ctx, cancel := context.WithCancel(context.Background())
	o := options{repository: c.folder, version: "0.2.0", date: day, out: writer(func(text string) {
		if strings.HasPrefix(text, "the interpreter loads") {
			cancel()
		}
	})}
	if err := o.release(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	same(t, c.state(), before)
}

type writer func(text string)

func (w writer) Write(p []byte) (int, error) {
	w(string(p))
	return len(p), nil
}
