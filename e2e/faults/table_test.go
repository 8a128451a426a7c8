package faults_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

var update = flag.Bool("update", false, "write the table of TestFaults into docs/failures.md")

// A change is a number before a fault and after it.
type change struct{ before, after int }

// A row is what one fault did.
type row struct {
	name        string
	statuses    [3]string // of local, closed and open
	worst, free time.Duration
	excess      excess
	lines       [gateways]int
	connections [gateways]change
	goroutines  [gateways]change
	plugins     [gateways]change
}

const head = `| fault | statuses of local / closed / open | slowest answer, and without a limit | extra requests, and the bound | log lines | connections | goroutines | of them the plugin's |
|---|---|---|---|---|---|---|---|
`

// render returns the table in Markdown. Where two numbers are joined by a +, each
// is one gateway's.
func render(rows []row) string {
	var b strings.Builder
	b.WriteString(head)
	changes := func(c [gateways]change) string {
		return fmt.Sprintf("%d+%d → %d+%d", c[0].before, c[1].before, c[0].after, c[1].after)
	}
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s | %d ms, %d ms | %d, ≤ %d | %d+%d | %s | %s | %s |\n",
			r.name, strings.Join(r.statuses[:], " / "), r.worst.Milliseconds(), r.free.Milliseconds(),
			r.excess.extra, r.excess.bound, r.lines[0], r.lines[1],
			changes(r.connections), changes(r.goroutines), changes(r.plugins))
	}
	return b.String()
}

// The table stands between two lines of the document.
const (
	tableBegins = "<!-- The table is written by the test: go -C e2e test ./faults -run TestFaults -update -->\n\n"
	tableEnds   = "\n<!-- The table ends. -->\n"
)

// publish writes the table into the documentation, or checks that the one there
// has the same faults and columns.
func publish(t *testing.T, table string) {
	t.Helper()
	path := filepath.Join(lab.Root(), "docs", "failures.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), tableBegins)
	old, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		t.Fatal("docs/failures.md has no place for the table")
	}
	if *update {
		if err := os.WriteFile(path, []byte(before+tableBegins+table+tableEnds+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, want := firstColumn(old), firstColumn(table); got != want || !strings.HasPrefix(old, head) {
		t.Errorf("docs/failures.md shows other faults or columns; run with -update:\n%s", got)
	}
}

// firstColumn returns the first cell of each line.
func firstColumn(table string) string {
	var b strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(table), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) > 1 {
			b.WriteString(cells[1] + "\n")
		}
	}
	return b.String()
}
