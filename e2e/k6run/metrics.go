package k6run

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// metric is a counter or a rate, with the submetrics that thresholds ask for.
type metric struct {
	mu   *sync.Mutex // the registry's
	rate bool

	// sum is a counter's value, or how many samples of a rate were not zero.
	sum     float64
	samples int

	submetrics []*submetric
}

// submetric counts the samples that carry all of its tags.
type submetric struct {
	metric
	tags map[string]string
}

func (m *metric) add(value float64, tags map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.addLocked(value)
	for _, sub := range m.submetrics {
		if sub.matches(tags) {
			sub.addLocked(value)
		}
	}
}

func (m *metric) addLocked(value float64) {
	m.samples++
	if m.rate && value != 0 {
		value = 1
	}
	m.sum += value
}

func (s *submetric) matches(tags map[string]string) bool {
	for name, value := range s.tags {
		if tags[name] != value {
			return false
		}
	}
	return true
}

// value is what a threshold compares. A rate without samples is 0, as in k6.
func (m *metric) value() float64 {
	if !m.rate {
		return m.sum
	}
	if m.samples == 0 {
		return 0
	}
	return m.sum / float64(m.samples)
}

// aggregation is the only method that thresholds may name for this metric.
func (m *metric) aggregation() string {
	if m.rate {
		return "rate"
	}
	return "count"
}

// registry holds all metrics, checks and thresholds of a run.
type registry struct {
	mu      sync.Mutex
	metrics map[string]*metric

	iterations, requests, failed, checks *metric

	checkNames  []string // in the order of their first result
	checkCounts map[string]*Check

	thresholds []expectation
}

// expectation is a threshold and the metric or submetric that it is about.
type expectation struct {
	name   string
	metric *metric
	test   threshold
}

func newRegistry() *registry {
	r := &registry{metrics: map[string]*metric{}, checkCounts: map[string]*Check{}}
	r.iterations = r.declare("iterations", false)
	r.requests = r.declare("http_reqs", false)
	r.failed = r.declare("http_req_failed", true)
	r.checks = r.declare("checks", true)
	return r
}

// declare returns the metric of that name. All virtual users declare the same
// ones and share them.
func (r *registry) declare(name string, rate bool) *metric {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m, ok := r.metrics[name]; ok {
		return m
	}
	m := &metric{mu: &r.mu, rate: rate}
	r.metrics[name] = m
	return m
}

// check notes one result of a check.
func (r *registry) check(name string, ok bool) {
	value := 0.0
	if ok {
		value = 1
	}
	r.checks.add(value, nil)

	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.checkCounts[name]
	if c == nil {
		c = &Check{Name: name}
		r.checkCounts[name] = c
		r.checkNames = append(r.checkNames, name)
	}
	if ok {
		c.Passes++
	} else {
		c.Fails++
	}
}

// expect takes the thresholds of the options, which must name metrics that
// exist by then.
func (r *registry) expect(thresholds map[string][]string) error {
	for _, name := range slices.Sorted(maps.Keys(thresholds)) {
		target, err := r.target(name)
		if err != nil {
			return err
		}
		for _, text := range thresholds[name] {
			test, err := parseThreshold(text)
			if err != nil {
				return fmt.Errorf("%w: thresholds of %s: %w", ErrOptions, name, err)
			}
			if test.method != target.aggregation() {
				return fmt.Errorf("%w: threshold %q on %s: the method of this metric is %q; others are %w",
					ErrOptions, text, name, target.aggregation(), ErrNotOffered)
			}
			r.thresholds = append(r.thresholds, expectation{name: name, metric: target, test: test})
		}
	}
	return nil
}

var submetricName = regexp.MustCompile(`^([^{}]+)\{([^{}]+)\}$`)

// target finds the metric that a threshold is about, and makes the submetric
// where the name says name{tag:value,...}.
func (r *registry) target(name string) (*metric, error) {
	base, tags := name, map[string]string(nil)
	if parts := submetricName.FindStringSubmatch(name); parts != nil {
		base, tags = parts[1], map[string]string{}
		for _, pair := range strings.Split(parts[2], ",") {
			tag, value, ok := strings.Cut(pair, ":")
			if !ok {
				return nil, fmt.Errorf("%w: threshold on %q: %q is no tag:value", ErrOptions, name, pair)
			}
			tags[strings.TrimSpace(tag)] = strings.TrimSpace(value)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.metrics[base]
	if !ok {
		return nil, fmt.Errorf("%w: threshold on %q: there is no metric %q (known: %s)",
			ErrOptions, name, base, strings.Join(slices.Sorted(maps.Keys(r.metrics)), ", "))
	}
	if tags == nil {
		return m, nil
	}
	sub := &submetric{metric: metric{mu: &r.mu, rate: m.rate}, tags: tags}
	m.submetrics = append(m.submetrics, sub)
	return &sub.metric, nil
}

// threshold is one expression such as count==100.
type threshold struct {
	text, method, operator string
	bound                  float64
}

var thresholdExpression = regexp.MustCompile(`^\s*([a-z]+(?:\([0-9.]+\))?)\s*(===?|!=|<=?|>=?)\s*(-?[0-9]+(?:\.[0-9]+)?)\s*$`)

func parseThreshold(text string) (threshold, error) {
	parts := thresholdExpression.FindStringSubmatch(text)
	if parts == nil {
		return threshold{}, fmt.Errorf("%q is no expression such as count==100", text)
	}
	bound, err := strconv.ParseFloat(parts[3], 64)
	if err != nil {
		return threshold{}, fmt.Errorf("%q: %w", text, err)
	}
	return threshold{text: text, method: parts[1], operator: parts[2], bound: bound}, nil
}

func (t threshold) holds(value float64) bool {
	switch t.operator {
	case "<":
		return value < t.bound
	case "<=":
		return value <= t.bound
	case ">":
		return value > t.bound
	case ">=":
		return value >= t.bound
	case "!=":
		return value != t.bound
	default: // == and ===
		return value == t.bound
	}
}
