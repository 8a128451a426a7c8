package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Sizes of the picture, in its own units.
const (
	chartWidth  = 760
	chartLeft   = 220 // where the bars begin
	chartRight  = 660 // where the longest ends
	rowHeight   = 30
	barHeight   = 18
	groupHeight = 40
)

// svg returns docs/performance.svg: a bar for the median of each route, and a
// line over it from the lowest round to the highest. Its colours follow the
// reader's choice of light or dark.
func (r *report) svg() string {
	top := 0.0
	for _, x := range r.results {
		top = max(top, x.of(load.perSecond).max)
	}
	step := axisStep(top)
	scale := func(rate float64) float64 { return chartLeft + rate/top*(chartRight-chartLeft) }

	var body strings.Builder
	draw := func(format string, args ...any) { fmt.Fprintf(&body, format+"\n", args...) }
	y := 62.0
	for _, group := range []struct {
		title string
		holds func(route) bool
	}{
		{"Every request allowed", func(r route) bool { return !r.refused && !r.many }},
		{fmt.Sprintf("Every request allowed, %d clients in random order", manyKeys), func(r route) bool { return r.many }},
		{"Every request refused", func(r route) bool { return r.refused }},
	} {
		draw(`<text class="group" x="20" y="%.0f">%s</text>`, y, group.title)
		y += 14
		for _, route := range routes {
			if !group.holds(route) {
				continue
			}
			rate := r.results[route.name].of(load.perSecond)
			class := "other"
			if route.own {
				class = "own"
			}
			middle := y + rowHeight/2.0
			draw(`<text class="label" x="%d" y="%.1f">%s</text>`, chartLeft-10, middle+4.5, html.EscapeString(route.title))
			draw(`<rect class="%s" x="%d" y="%.1f" width="%.1f" height="%d" rx="2"/>`,
				class, chartLeft, middle-barHeight/2.0, scale(rate.median)-chartLeft, barHeight)
			draw(`<path class="spread" d="M%.1f %.1fH%.1fM%.1f %.1fv8M%.1f %.1fv8"/>`,
				scale(rate.min), middle, scale(rate.max), scale(rate.min), middle-4, scale(rate.max), middle-4)
			draw(`<text class="value" x="%.1f" y="%.1f">%s</text>`, scale(rate.max)+8, middle+4.5, whole(rate.median))
			y += rowHeight
		}
		y += groupHeight
	}
	bottom := y - groupHeight + 6
	var grid strings.Builder
	for rate := 0.0; rate <= top; rate += step {
		fmt.Fprintf(&grid, `<path class="grid" d="M%.1f 44V%.1f"/><text class="tick" x="%.1f" y="%.1f">%s</text>`+"\n",
			scale(rate), bottom, scale(rate), bottom+16, whole(rate))
	}
	height := bottom + 30
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" role="img" aria-labelledby="title">
<title id="title">Requests per second of each route</title>
<style>
text { font: 13px system-ui, sans-serif; fill: #24292f }
.head { font-size: 15px; font-weight: 600 }
.group { font-weight: 600 }
.label { text-anchor: end }
.tick { text-anchor: middle; font-size: 11px; fill: #57606a }
.own { fill: #1f7a8c }
.other { fill: #a9b4c0 }
.spread { stroke: #24292f; fill: none }
.grid { stroke: #d0d7de; fill: none }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 }
.tick { fill: #9198a1 }
.own { fill: #3fb3c8 }
.other { fill: #5b6672 }
.spread { stroke: #e6edf3 }
.grid { stroke: #30363d }
}
</style>
<text class="head" x="20" y="26">Requests per second, median of %d rounds; the lines span all rounds</text>
%s%s</svg>
`, chartWidth, height, r.plan.rounds, grid.String(), body.String())
}

// axisStep returns a round step that divides an axis into at most six parts.
func axisStep(top float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(top/6)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if top/(step*factor) <= 6 {
			return step * factor
		}
	}
	return step * 10
}
