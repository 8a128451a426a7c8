package main

import (
	"fmt"
	"net/http"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// figures are what became of some requests.
type figures struct {
	allowed  int // answered 200
	rejected int // answered 429
	failed   int // anything else, no answer included
}

func (f figures) String() string { return fmt.Sprintf("%d / %d / %d", f.allowed, f.rejected, f.failed) }

// split returns the figures of so many requests, of which so many are allowed
// and none fails.
func split(sent, allowed int) figures { return figures{allowed: allowed, rejected: sent - allowed} }

// phase is a part of the demo: requests of one API key, sent to the gateways in
// turn, and what is expected of them.
type phase struct {
	name  string
	route string
	key   string
	sent  int
	want  figures
	way   string // by which every request must be decided: shared or local
}

// row is what became of a phase.
type row struct {
	name     string
	sent     int
	got      figures
	want     string // what was expected of it, for people
	ways     string
	problems []string
}

func (r *row) problem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

func (r *row) ok() bool { return len(r.problems) == 0 }

// The columns of the table.
const layout = "%-31s %5v %8v %9v %7v  %-14s %-11s %s"

var header = fmt.Sprintf(layout, "phase", "sent", "allowed", "rejected", "failed", "expected", "decided by", "ok")

// line returns the row as a line of the table.
func (r *row) line() string {
	verdict := "ok"
	if !r.ok() {
		verdict = "OFF"
	}
	return fmt.Sprintf(layout, r.name, r.sent, r.got.allowed, r.got.rejected, r.got.failed, r.want, r.ways, verdict)
}

// judge compares the answers to a phase, sent to the gateways in turn, with what
// is expected of it.
func judge(ph phase, answers lab.Answers, gateways, limit int, window time.Duration) row {
	r := row{name: ph.name, sent: len(answers), want: ph.want.String(), ways: answers.Decisions()}
	r.got.allowed, r.got.rejected = answers.Count(http.StatusOK), answers.Count(http.StatusTooManyRequests)
	r.got.failed = len(answers) - r.got.allowed - r.got.rejected

	if len(answers) != ph.sent {
		r.problem("%d requests were sent, want %d", len(answers), ph.sent)
	}
	if r.got != ph.want {
		r.problem("allowed, rejected and failed are %v, want %v", r.got, ph.want)
	}
	if a, found := answers.Wrong(http.StatusOK, http.StatusTooManyRequests); found {
		r.problem("a request got status %d, error %v", a.Status, a.Err)
	}
	if all := fmt.Sprintf("%s: %d", ph.way, len(answers)); r.ways == all {
		r.ways = ph.way
	} else {
		r.problem("requests were decided by %q, want %q", r.ways, all)
	}
	for g := range gateways {
		var own lab.Answers
		for i := g; i < len(answers); i += gateways {
			own = append(own, answers[i])
		}
		if allowed := own.Count(http.StatusOK); allowed > limit {
			r.problem("gateway %d alone allowed %d", g+1, allowed)
		}
	}
	for _, a := range answers {
		wait := a.Number("Retry-After")
		if a.Status == http.StatusTooManyRequests && (wait < 1 || wait > int(window.Seconds())) {
			r.problem("a refusal says Retry-After %q", a.Header.Get("Retry-After"))
			break
		}
	}
	return r
}
