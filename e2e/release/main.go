// Command release makes a release of the version that it is given: it writes the
// version and the changelog, commits, tries the plugin as users would get it, and tags.
// It works in a folder of its own; the branch and the tags change at the end, when
// nothing can fail any more but the change itself, so that a release which failed
// leaves nothing to be taken back. It pushes nothing.
//
// There is one tag, such as v0.2.0. Go would have a nested module tagged as well,
// ctl/v0.2.0, but the plugin catalog takes no version of a repository that has any tag
// of another form.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"

	"github.com/gatequota/gatequota/e2e/lab"
	"github.com/gatequota/gatequota/e2e/release/archive"
)

func main() {
	version := flag.String("version", "", "the `version` to release, such as 0.2.0")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o := options{repository: lab.Root(), version: *version, date: time.Now().UTC(), out: os.Stdout}
	if path := builtTraefik(ctx, o.repository); path != "" {
		o.traefik = os.Setenv("TRAEFIK", path) == nil
	}
	if err := o.release(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// builtTraefik returns the Traefik that TRAEFIK names or that was built on this machine
// before, or nothing.
func builtTraefik(ctx context.Context, repository string) string {
	if path := os.Getenv("TRAEFIK"); path != "" {
		return path
	}
	out, err := exec.CommandContext(ctx, filepath.Join(repository, "scripts", "build-traefik.sh"), "--built").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// options say what is released.
type options struct {
	repository string    // root of a checkout
	version    string    // without a v
	date       time.Time // of the release
	traefik    bool      // whether the plugin is tried in a real Traefik, which TRAEFIK names
	out        io.Writer // gets a line for each step
}

// release does it all.
func (o options) release(ctx context.Context) error {
	tag, repository := "v"+o.version, git{ctx, o.repository}
	mod, err := readModule(o.repository)
	if err != nil {
		return err
	}
	path := mod.Module.Mod.Path
	_, major, _ := module.SplitPathVersion(path)
	if err := valid(tag); err != nil {
		return err
	}
	if err := module.CheckPathMajor(tag, major); err != nil {
		return err
	}
	log, err := o.check(ctx, repository, tag)
	if err != nil {
		return err
	}

	// The commit is made beside the checkout.
	aside, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	tree := filepath.Join(aside, "tree")
	defer func() {
		_ = os.RemoveAll(aside)
		_, _ = git{context.WithoutCancel(ctx), o.repository}.run("worktree", "prune")
	}()
	if _, err := repository.run("worktree", "add", "--quiet", "--detach", tree, "HEAD"); err != nil {
		return err
	}
	if err := log.release(tag, o.date); err != nil {
		return fmt.Errorf("CHANGELOG.md: %w", err)
	}
	if err := write(tree, o.version, log.text(address(path))); err != nil {
		return err
	}
	if _, err := (git{ctx, tree}).run("commit", "--quiet", "--all", "--message", "Release "+o.version); err != nil {
		return err
	}
	commit, err := git{ctx, tree}.run("rev-parse", "HEAD")
	if err != nil {
		return err
	}
	fmt.Fprintf(o.out, "made commit %.12s of %s\n", commit, tag)

	if err := o.try(ctx, aside, commit, module.Version{Path: path, Version: tag}); err != nil {
		return fmt.Errorf("trying what users would get: %w", err)
	}

	notes := "Gatequota " + o.version + "\n\n" + log.sections[1].body + "\n"
	// Headings of the notes begin as comments do.
	if _, err := repository.run("tag", "--annotate", "--cleanup=whitespace", "--message", notes, tag, commit); err != nil {
		return err
	}
	if _, err := repository.run("merge", "--quiet", "--ff-only", commit); err != nil {
		_, taking := git{context.WithoutCancel(ctx), o.repository}.run("tag", "--delete", tag)
		return errors.Join(fmt.Errorf("moving main, which has changed meanwhile: %w", err), taking)
	}
	fmt.Fprintf(o.out, "released %s; nothing was pushed\npublish it:   git push --atomic origin main %s\ntake it back: git tag -d %s && git reset --hard HEAD~1\n", tag, tag, tag)
	return nil
}

// check refuses a release that would not be what it seems, and returns the changelog.
func (o options) check(ctx context.Context, repository git, tag string) (*changelog, error) {
	if branch, err := repository.run("symbolic-ref", "--short", "HEAD"); err != nil || branch != "main" {
		return nil, errors.Join(fmt.Errorf("the branch is %q, want main", branch), err)
	}
	if changes, err := repository.run("status", "--porcelain"); err != nil || changes != "" {
		return nil, errors.Join(fmt.Errorf("the work tree has changes that are not committed:\n%s", changes), err)
	}
	text, err := os.ReadFile(filepath.Join(o.repository, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	log, err := parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("CHANGELOG.md: %w", err)
	}
	tags, err := repository.run("tag", "--list")
	if err != nil {
		return nil, err
	}
	last := log.last()
	for _, t := range strings.Fields(tags) {
		if err := valid(t); err != nil {
			return nil, fmt.Errorf("the tag %s keeps the plugin catalog from taking any version: %w", t, err)
		}
		if semver.Compare(t, last) > 0 {
			last = t
		}
	}
	if semver.Compare(tag, last) <= 0 {
		return nil, fmt.Errorf("%s is not greater than the last version, %s", tag, last)
	}
	if err := errors.Join(vendored(ctx, o.repository), catalog(o.repository)); err != nil {
		return nil, err
	}
	return log, nil
}

// write puts the version into a work tree, wherever it stands, and the changelog.
func write(tree, version, log string) error {
	files, err := written(tree)
	if err != nil {
		return err
	}
	for _, name := range append(files, versionFile) {
		text, err := os.ReadFile(filepath.Join(tree, name))
		if err != nil {
			return err
		}
		of := mention
		if name == versionFile {
			of = number
			if !of.Match(text) {
				return fmt.Errorf("%s has no line that matches %s", name, of)
			}
		}
		if err := os.WriteFile(filepath.Join(tree, name), of.ReplaceAll(text, []byte("${1}"+version)), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(tree, "CHANGELOG.md"), []byte(log), 0o644)
}

// try lays out what users would get of a commit and uses it as Traefik and the plugin
// catalog do.
func (o options) try(ctx context.Context, aside, commit string, version module.Version) error {
	local, proxied := filepath.Join(aside, "plugins-local"), filepath.Join(aside, "catalog")
	if err := errors.Join(os.Mkdir(local, 0o755), os.Mkdir(proxied, 0o755)); err != nil {
		return err
	}
	plugin, err := archive.Local(ctx, o.repository, commit, version.Path, local)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := archive.Interpret(ctx, plugin); err != nil {
		return fmt.Errorf("as a local plugin: %w", err)
	}
	fmt.Fprintf(o.out, "the interpreter loads its archive, and it passes a request (%.1f s)\n", time.Since(start).Seconds())
	listed, err := archive.Module(ctx, o.repository, commit, version, proxied)
	if err != nil {
		return err
	}
	start = time.Now()
	if err := archive.Interpret(ctx, listed); err != nil {
		return fmt.Errorf("from the catalog: %w", err)
	}
	fmt.Fprintf(o.out, "the same with what the module proxy would serve (%.1f s)\n", time.Since(start).Seconds())
	if !o.traefik {
		fmt.Fprintln(o.out, "not tried in a real Traefik: scripts/build-traefik.sh builds one")
		return nil
	}
	if err := archive.Serve(ctx, plugin); err != nil {
		return fmt.Errorf("in Traefik: %w", err)
	}
	fmt.Fprintln(o.out, "a real Traefik loads it, and it passes a request")
	return nil
}

// git runs commands in one work tree.
type git struct {
	ctx    context.Context
	folder string
}

// run returns what a command prints, without the last line's end.
func (g git) run(args ...string) (string, error) {
	cmd := exec.CommandContext(g.ctx, "git", append([]string{"-C", g.folder}, args...)...)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(complaints.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
