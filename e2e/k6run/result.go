package k6run

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
)

// Result is what a run has found.
type Result struct {
	// Metrics holds every counter's sum and every rate (0 to 1) by name, and
	// the submetrics that have thresholds, as name{tag:value}.
	Metrics map[string]float64

	// Checks are in the order in which the script first used them.
	Checks []Check

	// Thresholds are sorted by the name of their metric.
	Thresholds []Threshold
}

// Check is one named check and its results.
type Check struct {
	Name          string
	Passes, Fails int
}

// Threshold is one expression of the options, and whether it held at the end.
type Threshold struct {
	Metric     string  // "instance_requests{replica:1}"
	Expression string  // "count>0"
	Value      float64 // of the metric at the end
	OK         bool
}

// Passed reports whether all thresholds held. As in k6, a failed check alone
// fails no run: a threshold on "checks" does.
func (r *Result) Passed() bool {
	return !slices.ContainsFunc(r.Thresholds, func(t Threshold) bool { return !t.OK })
}

// Count is the value of a counter, which must be whole and known: a wrong name
// panics.
func (r *Result) Count(metric string) int {
	value, ok := r.Metrics[metric]
	if !ok || value != float64(int(value)) {
		panic(fmt.Sprintf("k6run: %q is no counter with a whole value", metric))
	}
	return int(value)
}

// WriteSummary writes the result for a person to read.
func (r *Result) WriteSummary(w io.Writer) error {
	mark := func(ok bool) string {
		if ok {
			return "✓"
		}
		return "✗"
	}
	text := "thresholds\n"
	for _, t := range r.Thresholds {
		text += fmt.Sprintf("  %s %-32s %-14s is %s\n", mark(t.OK), t.Metric, t.Expression, number(t.Value))
	}
	text += "checks\n"
	for _, c := range r.Checks {
		text += fmt.Sprintf("  %s %-52s ✓ %d ✗ %d\n", mark(c.Fails == 0), c.Name, c.Passes, c.Fails)
	}
	text += "metrics\n"
	for _, name := range slices.Sorted(maps.Keys(r.Metrics)) {
		text += fmt.Sprintf("    %-32s %s\n", name, number(r.Metrics[name]))
	}
	_, err := io.WriteString(w, text)
	return err
}

func number(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }

func (r *registry) result() *Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	result := &Result{Metrics: map[string]float64{}}
	for name, m := range r.metrics {
		result.Metrics[name] = m.value()
	}
	for _, name := range r.checkNames {
		result.Checks = append(result.Checks, *r.checkCounts[name])
	}
	for _, e := range r.thresholds {
		value := e.metric.value()
		result.Metrics[e.name] = value
		result.Thresholds = append(result.Thresholds, Threshold{
			Metric: e.name, Expression: e.test.text, Value: value, OK: e.test.holds(value),
		})
	}
	return result
}
