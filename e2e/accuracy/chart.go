package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// chartWidth is that of both pictures, in their own units.
const chartWidth = 760

// drawing is the inside of a picture.
type drawing struct{ strings.Builder }

func (d *drawing) draw(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

func (d *drawing) text(class string, x, y float64, text string) {
	d.draw(`<text class="%s" x="%.1f" y="%.1f">%s</text>`, class, x, y, html.EscapeString(text))
}

func (d *drawing) box(class string, x, y, width, height float64) {
	d.draw(`<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, class, x, y, width, height)
}

// svg returns the picture. Its colours follow the reader's choice of light or dark.
func (d *drawing) svg(title string, height float64) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" role="img" aria-labelledby="title">
<title id="title">%s</title>
<style>
text { font: 13px system-ui, sans-serif; fill: #24292f }
.head { font-size: 15px; font-weight: 600 }
.group { font-weight: 600 }
.label, .value { text-anchor: end }
.tick { text-anchor: middle; font-size: 11px; fill: #57606a }
.allowed { fill: #c4602b }
.refused { fill: #7a6fb0 }
.bar { fill: #1f7a8c }
.axis { stroke: #8c959f; fill: none }
.grid { stroke: #d0d7de; fill: none }
.edge { stroke: #c4602b; stroke-dasharray: 4 3; fill: none }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.tick { fill: #9198a1 }
.allowed { fill: #f0894f }
.refused { fill: #a79be0 }
.bar { fill: #3fb3c8 }
.axis { stroke: #6e7681 }
.grid { stroke: #30363d }
.edge { stroke: #f0894f }
}
</style>
%s</svg>
`, chartWidth, height, html.EscapeString(title), d.String())
}

// edgeSVG returns docs/algorithms-edge.svg: what each counter admits, step by step, around
// the edge of a window.
func edgeSVG(found []atEdge) string {
	const (
		left, right    = 20.0, 740.0
		panel, barArea = 104.0, 56.0
	)
	most := int64(1)
	for _, a := range found {
		for _, n := range a.bars {
			most = max(most, n)
		}
	}
	x := func(ms int) float64 { return left + float64(ms-edgeFrom)/(edgeEnds-edgeFrom)*(right-left) }
	d := &drawing{}
	d.text("head", left, 26, fmt.Sprintf("Admitted per %d ms, limit %d in %d s, of a client that asks all the time", edgeStep, edgePlan.limit, edgePlan.window))
	y := 60.0
	for _, a := range found {
		d.text("group", left, y, a.name)
		d.text("value", right, y, fmt.Sprintf("at most %d in 1 s, %d in %d s", a.second, a.window, edgePlan.window))
		floor := y + 12 + barArea
		var bars strings.Builder
		for i, n := range a.bars {
			if n > 0 {
				from, to := x(edgeFrom+i*edgeStep), x(edgeFrom+(i+1)*edgeStep)
				fmt.Fprintf(&bars, "M%.1f %.1fV%.1fH%.1fV%.1fz", from+0.5, floor, floor-float64(n)/float64(most)*barArea, to-0.5, floor)
			}
		}
		d.draw(`<path class="bar" d="%s"/>`, bars.String())
		d.draw(`<path class="axis" d="M%.1f %.1fH%.1f"/>`, left, floor, right)
		for edge := 0; edge < edgeEnds; edge += int(edgePlan.window) * 1000 {
			d.draw(`<path class="edge" d="M%.1f %.1fV%.1f"/>`, x(edge), y+8, floor)
		}
		y += panel
	}
	for s := edgeFrom / 1000; s <= edgeEnds/1000; s++ {
		d.text("tick", x(s*1000), y-panel+28+barArea, strings.Replace(fmt.Sprintf("%d s", s), "-", "−", 1))
	}
	d.text("tick", (left+right)/2, y-panel+48+barArea, fmt.Sprintf("It asks every %d ms from %d ms before the edge of a window on, and was silent before. Dashed: the edges.", edgeGap, -edgeBegins))
	return d.svg("What each algorithm admits around the edge of a window", y-panel+62+barArea)
}

// sharesSVG returns docs/algorithms-wrong.svg: the shares of wrong decisions for sources
// near the limit.
func sharesSVG(results []*result, names []string) string {
	const (
		left, right      = 200.0, 640.0
		row, bar, spread = 24.0, 15.0, 26.0
	)
	top := 0.0
	for _, r := range results {
		for i := range names {
			f := &r.figures[near][i]
			top = max(top, percent(f.WronglyAllowed+f.WronglyRefused, f.Requests))
		}
	}
	step := axisStep(top)
	x := func(share float64) float64 { return left + share/max(top, step)*(right-left) }
	bars := &drawing{}
	y := 86.0
	for _, r := range results {
		bars.text("group", 20, y, r.traffic)
		y += 10
		for i, name := range names {
			f := &r.figures[near][i]
			allowed, refused := percent(f.WronglyAllowed, f.Requests), percent(f.WronglyRefused, f.Requests)
			bars.text("label", left-10, y+bar, name)
			bars.box("allowed", left, y+3, x(allowed)-left, bar)
			bars.box("refused", x(allowed), y+3, x(refused)-left, bar)
			bars.text("text", x(allowed+refused)+8, y+bar, share(f.WronglyAllowed, f.Requests)+" + "+share(f.WronglyRefused, f.Requests))
			y += row
		}
		y += spread
	}
	bottom := y - spread + 4
	d := &drawing{}
	d.text("head", 20, 26, "Wrong decisions, in percent of the requests of sources near the limit")
	d.box("allowed", 20, 42, 12, 12)
	d.text("text", 38, 53, "wrongly allowed")
	d.box("refused", 160, 42, 12, 12)
	d.text("text", 178, 53, "wrongly refused")
	for mark := 0.0; mark <= top; mark += step {
		d.draw(`<path class="grid" d="M%.1f 68V%.1f"/>`, x(mark), bottom)
		d.text("tick", x(mark), bottom+16, fmt.Sprintf("%g %%", mark))
	}
	d.WriteString(bars.String())
	return d.svg("Shares of wrong decisions by algorithm and kind of traffic", bottom+30)
}

// axisStep returns a round step that divides an axis into at most six parts.
func axisStep(top float64) float64 {
	if top <= 0 {
		return 1
	}
	step := math.Pow(10, math.Floor(math.Log10(top/6)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if top/(step*factor) <= 6 {
			return step * factor
		}
	}
	return step * 10
}

func percent(part, of int64) float64 {
	if of == 0 {
		return 0
	}
	return 100 * float64(part) / float64(of)
}
