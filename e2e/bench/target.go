package main

import (
	"fmt"
	"io"
)

// target is what a figure is wanted to be. Missing it is told, and fails nothing:
// the machine has its say in it.
type target struct {
	most  bool    // the figure may be bound at most, and not at least
	bound float64 // what is wanted
	aim   float64 // what would be better still; 0 where bound is all
}

// met tells whether a figure is on the right side of a bound.
func (t target) met(figure, bound float64) bool {
	return t.most && figure <= bound || !t.most && figure >= bound
}

// wanted says the target, such as "at least 1.15, aim 1.25".
func (t target) wanted() string {
	text := fmt.Sprintf("at least %g", t.bound)
	if t.most {
		text = fmt.Sprintf("at most %g", t.bound)
	}
	if t.aim != 0 {
		text += fmt.Sprintf(", aim %g", t.aim)
	}
	return text
}

// verdict says whether a figure reaches the target, and else by how much it does
// not. It judges the figure itself and not what is printed of it.
func (t target) verdict(figure float64) string {
	short := func(bound float64) float64 { return max(bound-figure, figure-bound) }
	switch {
	case !t.met(figure, t.bound):
		return fmt.Sprintf("not reached, by %.3g", short(t.bound))
	case t.aim == 0:
		return "reached"
	case !t.met(figure, t.aim):
		return fmt.Sprintf("reached, the aim not by %.3g", short(t.aim))
	}
	return "reached, and the aim"
}

// figure is one that is told apart from the tables, on a line of its own.
type figure struct {
	name   string // what its line begins with
	title  string // what it is, for people; of those with a target
	spread spread
	one    bool // it has a value and no spread
	lowest bool // its lowest is judged: what it measures is there each time, and the machine only adds to it
	digits int  // behind the point
	target *target
}

// judged returns the number that the target is about.
func (f figure) judged() float64 {
	if f.lowest {
		return f.spread.min
	}
	return f.spread.median
}

// wanted says the target, and of which number.
func (f figure) wanted() string {
	if f.lowest {
		return f.target.wanted() + ", the lowest"
	}
	return f.target.wanted()
}

// print writes the line of a figure, for programs too, and its target below it.
func (f figure) print(out io.Writer) {
	fmt.Fprintf(out, "%s %.*f", f.name, f.digits, f.spread.median)
	if !f.one {
		fmt.Fprintf(out, " %.*f %.*f", f.digits, f.spread.min, f.digits, f.spread.max)
	}
	fmt.Fprintln(out)
	if f.target != nil {
		fmt.Fprintf(out, "  %s: %s\n", f.wanted(), f.target.verdict(f.judged()))
	}
}

// row returns the row of a figure in the table of targets.
func (f figure) row() string {
	span := "one figure"
	if !f.one {
		span = fmt.Sprintf("%.*f to %.*f", f.digits, f.spread.min, f.digits, f.spread.max)
	}
	return fmt.Sprintf("| %s | %s | **%.*f** | %s | %s |", f.title, f.wanted(), f.digits, f.spread.median, span, f.target.verdict(f.judged()))
}

// routeTargets are those of the ratios, by the name of our route.
var routeTargets = map[string]*target{
	"local-allowed":  {bound: 0.93},
	"shared-allowed": {bound: 1.15, aim: 1.25},
	"shared-keys":    {bound: 1},
	"shared-refused": {bound: 1.7, aim: 2},
}

// algorithmTargets are those of the ratios of algorithms, by the name of our route.
var algorithmTargets = map[string]*target{
	"sliding-window-allowed": {bound: 1.1},
	"token-bucket-allowed":   {bound: 1.1},
	"sliding-window-refused": {bound: 1.6},
	"token-bucket-refused":   {bound: 1.6},
}

// The other targets.
var (
	restTarget = &target{most: true, bound: 1.05} // median time of one request, divided by that of Traefik's own
	// The same with metrics and control, divided by that without: what 0.97 of the requests
	// per second are of the time of one.
	watchedRestTarget = &target{most: true, bound: 1.03}
	watchedTarget     = &target{bound: 0.97}             // requests per second with metrics and control, divided by those without
	commandTarget     = &target{most: true, bound: 0.25} // calls of a script a request, of one client
	memoryTarget      = &target{most: true, bound: 400}  // bytes
	pauseTarget       = &target{most: true, bound: 5}    // milliseconds
)

// figures returns what is told apart, of the parts that were measured.
func (r *report) figures() []figure {
	var all []figure
	if r.results != nil {
		for _, route := range routes {
			if route.against == "" {
				continue
			}
			all = append(all, figure{name: "ratio " + route.name, digits: 3, target: routeTargets[route.name],
				title:  fmt.Sprintf("%s, %s: requests per second, divided by those of %s", route.title, outcome(route), byName[route.against].title),
				spread: ratio(r.results[route.name], r.results[route.against])})
		}
		hot := r.results[hotRoute]
		all = append(all, figure{name: "store commands a request " + hotRoute, digits: 3, one: true, target: commandTarget,
			title: "Calls of the store a request, one client", spread: spreadOf([]float64{hot.each(hot.scripts)})})
	}
	if r.algorithms != nil {
		for _, route := range algorithmRoutes {
			if route.algorithm == "" {
				continue
			}
			all = append(all, figure{name: "ratio " + route.name, digits: 3, target: algorithmTargets[route.name],
				title:  fmt.Sprintf("%s, %s: requests per second, divided by those of %s", route.title, outcome(route), byName[route.against].title),
				spread: ratio(r.algorithms[route.name], r.algorithms[route.against])})
		}
	}
	if r.rest != nil {
		all = append(all, figure{name: "ratio latency-at-rest", digits: 3, target: restTarget,
			title:  "Median time of a request over one connection, mode shared, divided by that of " + byName[restAgainst].title,
			spread: r.rest.ratio()})
	}
	if r.watched != nil {
		all = append(all, r.watched.figures()...)
	}
	if r.active != nil {
		all = append(all, r.active.figures()...)
	}
	if r.memory != nil {
		all = append(all,
			figure{name: "bytes a client local", one: true, target: memoryTarget, title: "Bytes of a tracked client, mode local",
				spread: spreadOf([]float64{r.memory.local})},
			figure{name: "bytes a client shared", one: true, target: memoryTarget, title: "Bytes of a tracked client, mode shared",
				spread: spreadOf([]float64{r.memory.shared})},
			figure{name: "longest pause ms edge", digits: 2, lowest: true, target: pauseTarget,
				title:  "Longest request as an expired window of " + whole(trackedClients) + " clients is dropped, ms",
				spread: spreadOf(milliseconds(r.memory.after, wall))},
			figure{name: "longest pause ms quiet", digits: 2, spread: spreadOf(milliseconds(r.memory.before, wall))},
			figure{name: "longest pause processor-ms edge", digits: 2, spread: spreadOf(milliseconds(r.memory.after, busy))},
			figure{name: "longest pause processor-ms quiet", digits: 2, spread: spreadOf(milliseconds(r.memory.before, busy))})
	}
	return all
}
