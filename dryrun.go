package gatequota

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gatequota/gatequota/journal"
	"github.com/gatequota/gatequota/reply"
	"github.com/gatequota/gatequota/tally"
)

// dryRunEvery is the least time between two summaries of the dry run of one policy.
const dryRunEvery = time.Minute

// A dryRun is what came of the requests under a policy that were not refused, whatever
// was decided.
type dryRun struct {
	requests, refused int64
	since             time.Time // when it was last summarized
}

var (
	dryRunsMu sync.Mutex
	dryRuns   = map[string]*dryRun{} // by middleware and rule; they outlive a reload
)

// noteDryRun tells the client, and now and then the log, what would have become of a
// request.
func (m *ruled) noteDryRun(w http.ResponseWriter, p *policy, t *tier, refused bool) {
	tally.CountDryRun(p.tally, refused)
	reply.WriteDryRun(t.fields, w.Header(), refused)
	sum := countDryRun(p.title, refused, time.Now())
	if sum.refused > 0 {
		journal.Note(journal.DryRun, fmt.Sprintf("middleware %s: dry run: %d of %d requests would have been refused", p.title, sum.refused, sum.requests),
			"middleware", strings.TrimSuffix(p.title, ": rule "+p.name), "rule", p.name,
			"refused", strconv.FormatInt(sum.refused, 10), "requests", strconv.FormatInt(sum.requests, 10))
	}
}

// countDryRun counts a request, and returns the summary if one is due, else an empty one: with
// the first that would have been refused, and then once a minute as long as there are more
// of them.
func countDryRun(name string, refused bool, now time.Time) dryRun {
	dryRunsMu.Lock()
	defer dryRunsMu.Unlock()
	r := dryRuns[name]
	if r == nil {
		r = &dryRun{}
		dryRuns[name] = r
	}
	r.requests++
	if refused {
		r.refused++
	}
	if r.refused == 0 || now.Sub(r.since) < dryRunEvery {
		return dryRun{}
	}
	sum := *r
	r.requests = 0
	r.refused = 0
	r.since = now
	return sum
}
