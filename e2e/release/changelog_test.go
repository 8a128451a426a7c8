package main

import (
	"strings"
	"testing"
	"time"
)

const (
	head = "# Changelog\n\nAll that changes.\n\n"
	news = "### Added\n\n- Limits.\n\n### Fixed\n\n- A word:\n  and another.\n"
)

var day = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func TestReleasesMoveWhatIsUnreleased(t *testing.T) {
	c, err := parse(head + unreleased + "\n\n" + news)
	if err != nil {
		t.Fatal(err)
	}
	if c.last() != "" {
		t.Errorf("the last version is %s before the first", c.last())
	}
	if err := c.release("v0.1.0", day); err != nil {
		t.Fatal(err)
	}
	const first = head + unreleased + "\n\n## [0.1.0] - 2026-11-30\n\n" + news
	same(t, c.text(""), first)
	const links = "\n[Unreleased]: https://example.com/p/compare/v0.1.0...HEAD\n[0.1.0]: https://example.com/p/releases/tag/v0.1.0\n"
	same(t, c.text("https://example.com/p"), first+links)

	// What is written is read again, and the next release goes above it.
	text := strings.Replace(first+links, "2026-11-30\n", "2026-11-30 [YANKED]\n", 1)
	text = strings.Replace(text, unreleased+"\n", unreleased+"\n\n### Changed\n\n- More limits.\n", 1)
	if c, err = parse(text); err != nil {
		t.Fatal(err)
	}
	if c.last() != "v0.1.0" {
		t.Errorf("the last version is %q", c.last())
	}
	if err := c.release("v0.2.0-rc.1", day.AddDate(0, 0, 1)); err != nil {
		t.Fatal(err)
	}
	same(t, c.text("https://example.com/p"), head+unreleased+"\n\n## [0.2.0-rc.1] - 2026-12-01\n\n### Changed\n\n- More limits.\n\n## [0.1.0] - 2026-11-30 [YANKED]\n\n"+news+`
[Unreleased]: https://example.com/p/compare/v0.2.0-rc.1...HEAD
[0.2.0-rc.1]: https://example.com/p/compare/v0.1.0...v0.2.0-rc.1
[0.1.0]: https://example.com/p/releases/tag/v0.1.0
`)
	if err := c.release("v0.2.0", day); err == nil {
		t.Error("a release of nothing was made")
	}
}

func same(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestOtherFormsAreRefused(t *testing.T) {
	const first = "## [0.1.0] - 2026-11-30\n\n" + news
	for name, text := range map[string]string{
		"no section":            head,
		"a release on top":      head + first,
		"not released in words": head + "## Unreleased\n\n" + news,
		"no date":               head + unreleased + "\n\n## [0.1.0]\n",
		"a day that is none":    head + unreleased + "\n\n## [0.1.0] - 2026-02-30\n",
		"no version":            head + unreleased + "\n\n## [0.1] - 2026-11-30\n",
		"twice unreleased":      head + unreleased + "\n\n" + unreleased + "\n",
		"the older one on top":  head + unreleased + "\n\n" + first + "\n## [0.2.0] - 2026-11-30\n",
		"one version twice":     head + unreleased + "\n\n" + first + "\n" + first,
		"a group of its own":    head + unreleased + "\n\n### New\n\n- Limits.\n",
	} {
		if c, err := parse(text); err == nil {
			t.Errorf("%s: read as %+v", name, c)
		}
	}
}

func TestNothingIsNotReleased(t *testing.T) {
	for name, body := range map[string]string{"empty": "", "a group": "### Added\n", "words": "Nothing yet.\n"} {
		c, err := parse(head + unreleased + "\n\n" + body)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.release("v0.1.0", day); err == nil {
			t.Errorf("%s: released", name)
		}
	}
}
