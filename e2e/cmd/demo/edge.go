package main

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

const (
	// lead is how long before the edge the first half of a burst begins.
	lead = time.Second
	// margin is how long after the edge the second half begins.
	margin = 50 * time.Millisecond
	// together is how long a burst may take, from its first request to its last answer.
	together = 2 * time.Second
	// edgeTries is how many edges are waited for, where this machine is too slow to make
	// its burst in time.
	edgeTries = 3
)

// edgeAlgorithm is one that meets a burst over the edge of a window.
type edgeAlgorithm struct {
	name string
	// after returns how many requests it lets pass at least and at most after the edge,
	// of a client that had all of its limit just before, until the burst ends at a share
	// of the window: 0 is the edge.
	after func(limit int, share float64) (least, most int)
}

var edgeAlgorithms = []edgeAlgorithm{
	{"fixed-window", func(limit int, _ float64) (least, most int) { return limit, limit }},
	// It lets pass what stays below the limit together with the part of the window before
	// that still lies in the one that ends now.
	{"sliding-window", func(limit int, share float64) (least, most int) {
		return 0, int(math.Ceil(float64(limit) * share))
	}},
}

// half is a part of a burst: the requests on one side of the edge.
type half struct {
	answers lab.Answers
	ended   time.Time // its last answer was there
	reached int       // requests that reached the application
}

// burst is what one algorithm got.
type burst struct {
	algorithm     edgeAlgorithm
	before, after half
}

// halfSize is how many requests each half has: a tenth more than the limit.
func (p *play) halfSize() int { return p.limit + p.limit/10 }

// overAnEdge sends, for each algorithm, more than the limit just before an edge and as
// much just after, and returns what came of it. Where the burst was not in time, which is
// the machine's fault, it waits for another edge and takes other keys.
func (p *play) overAnEdge() []row {
	for try := 1; ; try++ {
		away := lab.UntilEdge(time.Now(), p.edge)
		if away < lead {
			away += p.edge
		}
		p.printf("An edge of a window of %s comes in %s: %d requests of one key just before it, and %d just after.\n",
			whole(p.edge), seconds(away), p.halfSize(), p.halfSize())
		bursts, edge, took := p.burst()
		late := lateness(bursts, edge, took)
		if late != "" && try < edgeTries {
			p.printf("%s: once more.\n", late)
			continue
		}
		var rows []row
		var passed []string
		for _, b := range bursts {
			r := judgeBurst(b, edge, p.limit, p.edge, len(p.gateways))
			if late != "" {
				r.problem("%s, so the figures say nothing", late)
			}
			rows = append(rows, r)
			passed = append(passed, fmt.Sprintf("%s let %d and %d pass", b.algorithm.name,
				b.before.answers.Count(http.StatusOK), b.after.answers.Count(http.StatusOK)))
		}
		p.notes = append(p.notes, fmt.Sprintf("Before and after the edge of a window of %s, all within %s: %s.",
			whole(p.edge), seconds(took), strings.Join(passed, ", ")))
		return rows
	}
}

// burst sends the requests of all algorithms around the next edge that is far enough
// away, and returns the edge and how long it took.
func (p *play) burst() (bursts []*burst, edge time.Time, took time.Duration) {
	keys := make([]string, len(edgeAlgorithms))
	for i, a := range edgeAlgorithms {
		bursts = append(bursts, &burst{algorithm: a})
		keys[i] = newKey()
	}
	send := func(i int) half {
		urls := make([]string, len(p.gateways))
		for j, g := range p.gateways {
			urls[j] = g.url + edgeRoute(edgeAlgorithms[i].name)
		}
		hits := p.app.Hits()
		h := half{answers: p.client.Burst(clients, lab.Alternate(p.halfSize(), keys[i], urls...)), ended: time.Now()}
		h.reached = p.app.Hits() - hits
		return h
	}
	lab.AwaitBefore(p.edge, lead)
	began := time.Now()
	edge = began.Add(lab.UntilEdge(began, p.edge))
	for i, b := range bursts {
		b.before = send(i)
	}
	time.Sleep(time.Until(edge.Add(margin)))
	for i, b := range bursts {
		b.after = send(i)
	}
	return bursts, edge, time.Since(began)
}

// lateness says why a burst was none over this edge, or nothing.
func lateness(bursts []*burst, edge time.Time, took time.Duration) string {
	for _, b := range bursts {
		if !b.before.ended.Before(edge) {
			return "The edge came before the last answer of the first half"
		}
	}
	if took > together {
		return fmt.Sprintf("The burst took %s, more than %s", seconds(took), seconds(together))
	}
	return ""
}

// judgeBurst compares what one algorithm let pass with what it may.
func judgeBurst(b *burst, edge time.Time, limit int, window time.Duration, gateways int) row {
	// A millisecond more: that is what the store's clock counts in.
	share := float64(b.after.ended.Sub(edge)+time.Millisecond) / float64(window)
	least, most := b.algorithm.after(limit, share)

	r := row{name: b.algorithm.name + ", over an edge", want: split(len(b.before.answers)+len(b.after.answers), limit+most).String()}
	if least != most {
		r.want = fmt.Sprintf("%d to %d", limit+least, limit+most)
	}
	allowed := b.after.answers.Count(http.StatusOK)
	for _, part := range []struct {
		half
		allowed int
	}{
		{b.before, limit},
		{b.after, min(max(allowed, least), most)},
	} {
		n := len(part.answers)
		// A refusal by a sliding window may last until the end of the next.
		judged := judge(phase{sent: n, want: split(n, part.allowed), way: "shared"}, part.answers, gateways, limit, 2*window)
		if part.reached != judged.got.allowed {
			judged.problem("%d requests reached the application, and %d were allowed", part.reached, judged.got.allowed)
		}
		r.sent += n
		r.got.allowed += judged.got.allowed
		r.got.rejected += judged.got.rejected
		r.got.failed += judged.got.failed
		r.ways = judged.ways
		r.problems = append(r.problems, judged.problems...)
	}
	return r
}
