package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"
)

// A changelog is a text in the form of https://keepachangelog.com/en/1.1.0: a head, a
// section of what is not released, one section for each release, the newest first, and
// links.
type changelog struct {
	head     string
	sections []section
}

// section is what is written of one release.
type section struct {
	version string // as in tags, v0.2.0; empty: not released yet
	date    string // 2006-01-02, and [YANKED] behind it where nobody should use the version
	body    string
}

var (
	heading = regexp.MustCompile(`(?m)^## .*$`)
	release = regexp.MustCompile(`^## \[([^]]+)\] - (\d{4}-\d{2}-\d{2}(?: \[YANKED\])?)$`)
	link    = regexp.MustCompile(`(?m)^\[[^]]+\]: \S+\n?`)
	item    = regexp.MustCompile(`(?m)^- \S`)
	group   = regexp.MustCompile(`(?m)^### (.*)$`)

	groups = []string{"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
)

const unreleased = "## [Unreleased]"

// parse reads a changelog and refuses one that is not in the form.
func parse(text string) (*changelog, error) {
	// Links to versions stand below all else; they are made anew from the versions.
	text = link.ReplaceAllString(text, "")
	starts := heading.FindAllStringIndex(text, -1)
	if len(starts) == 0 || text[starts[0][0]:starts[0][1]] != unreleased {
		return nil, errors.New("the first section is not " + unreleased)
	}
	c := &changelog{head: text[:starts[0][0]]}
	for i, at := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		s := section{body: strings.TrimSpace(text[at[1]:end])}
		if title := text[at[0]:at[1]]; i > 0 {
			parts := release.FindStringSubmatch(title)
			if parts == nil {
				return nil, fmt.Errorf("%q is not of the form ## [0.1.0] - 2006-01-02", title)
			}
			s.version, s.date = "v"+parts[1], parts[2]
			if err := valid(s.version); err != nil {
				return nil, err
			}
			if _, err := time.Parse(time.DateOnly, strings.TrimSuffix(s.date, " [YANKED]")); err != nil {
				return nil, fmt.Errorf("%q: %w", title, err)
			}
			if i > 1 && semver.Compare(s.version, c.sections[i-1].version) >= 0 {
				return nil, fmt.Errorf("%s stands below %s", s.version, c.sections[i-1].version)
			}
		}
		for _, g := range group.FindAllStringSubmatch(s.body, -1) {
			if !slices.Contains(groups, g[1]) {
				return nil, fmt.Errorf("%q is none of the groups of changes: %s", g[1], strings.Join(groups, ", "))
			}
		}
		c.sections = append(c.sections, s)
	}
	return c, nil
}

// last returns the newest version that was released, or nothing.
func (c *changelog) last() string {
	if len(c.sections) < 2 {
		return ""
	}
	return c.sections[1].version
}

// release makes the section of what was not released that of a version.
func (c *changelog) release(version string, date time.Time) error {
	if !item.MatchString(c.sections[0].body) {
		return errors.New("nothing stands under " + unreleased)
	}
	c.sections[0].version, c.sections[0].date = version, date.Format(time.DateOnly)
	c.sections = append([]section{{}}, c.sections...)
	return nil
}

// text writes the changelog, with links to what changed where the project has an
// address.
func (c *changelog) text(address string) string {
	var b strings.Builder
	b.WriteString(c.head)
	for i, s := range c.sections {
		if i == 0 {
			b.WriteString(unreleased + "\n\n")
		} else {
			fmt.Fprintf(&b, "## [%s] - %s\n\n", s.version[1:], s.date)
		}
		if s.body != "" {
			b.WriteString(s.body + "\n\n")
		}
	}
	text := strings.TrimRight(b.String(), "\n") + "\n"
	if address == "" || len(c.sections) < 2 {
		return text
	}
	text += fmt.Sprintf("\n[Unreleased]: %s/compare/%s...HEAD\n", address, c.last())
	for i, s := range c.sections[1:] {
		if older := i + 2; older < len(c.sections) {
			text += fmt.Sprintf("[%s]: %s/compare/%s...%s\n", s.version[1:], address, c.sections[older].version, s.version)
		} else {
			text += fmt.Sprintf("[%s]: %s/releases/tag/%s\n", s.version[1:], address, s.version)
		}
	}
	return text
}
