package main

import "github.com/gatequota/gatequota/window"

// The client of the picture has been silent for long. From a little before the edge of a
// window on it asks as fast as it can, and never stops.
var edgePlan = plan{limit: 100, window: 10}

const (
	edgeBegins = -500 // milliseconds from the edge
	edgeGap    = 5    // between two requests
	edgeEnds   = 12_000
	edgeFrom   = -1000 // of the picture
	edgeStep   = 100   // of one bar
)

// atEdge is what one counter admits around the edge of a window.
type atEdge struct {
	name string
	bars []int64 // admitted in each step
	// The most that was admitted within a second, and within a window.
	second, window int64
}

// burstAtEdge lets the counters decide the requests of that client.
func burstAtEdge(counters []counter) []atEdge {
	edge := (start/(edgePlan.window*1000) + 10) * edgePlan.window * 1000
	var found []atEdge
	for _, c := range counters {
		a := atEdge{name: c.name, bars: make([]int64, (edgeEnds-edgeFrom)/edgeStep)}
		second := newTruth(&window.Limit{Limit: c.limit.Limit, Length: 1})
		whole := newTruth(&c.limit)
		take := c.new(&c.limit)
		for t := int64(edgeBegins); t < edgeEnds; t += edgeGap {
			now := edge + t
			if !take(now) {
				continue
			}
			a.bars[(t-edgeFrom)/edgeStep]++
			for _, h := range []*truth{second, whole} {
				h.move(now)
				h.admit(now)
			}
			a.second = max(a.second, second.count())
			a.window = max(a.window, whole.count())
		}
		found = append(found, a)
	}
	return found
}
