package main

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// plan says what is replayed. Of one plan all figures of a replay are always the same.
type plan struct {
	seed     uint64
	limit    int64 // in a window
	window   int64 // seconds
	duration int64 // of the replay, in seconds
	sources  int   // of each kind of traffic but the heavy-tailed
	tail     int   // sources of the heavy-tailed kind
}

// full is what docs/algorithms.md shows.
var full = plan{seed: 1, limit: 100, window: 60, duration: 3600, sources: 700, tail: 270_000}

// start is when a replay begins, in unix milliseconds: at no edge of a window.
const start = 1_700_000_000_000

// A traffic is a kind of traffic: sources that know nothing of each other nor of the
// limit. A refused source asks no more and no less than another.
type traffic struct {
	name string
	// about says what a source does, for those who read the figures.
	about func() string
	// heavy sources are as many as the plan's tail.
	heavy bool
	// times appends when one source makes its requests, in milliseconds since the start
	// and in their order.
	times func(p *plan, r *rand.Rand, times []int64) []int64
}

// traffics are the kinds of traffic, in the order of the report.
var traffics = []traffic{
	{
		name: "steady",
		about: func() string {
			return "evenly spaced requests"
		},
		times: func(p *plan, r *rand.Rand, times []int64) []int64 {
			gap := 1 / nearRate(p, r)
			for t := r.Float64() * gap; t < p.end(); t += gap {
				times = append(times, int64(t))
			}
			return times
		},
	},
	{
		name: "bursty",
		about: func() string {
			return fmt.Sprintf("at random (Poisson), %d times as often as on average, for %d s on average, then silence for %d s on average (both exponential)",
				(burstOn+burstOff)/burstOn, burstOn, burstOff)
		},
		times: func(p *plan, r *rand.Rand, times []int64) []int64 {
			gap := 1 / nearRate(p, r) * burstOn / (burstOn + burstOff)
			on := -r.Float64() * (burstOn + burstOff) * 1000 // where in its rhythm the replay finds it
			for on < p.end() {
				off := on + r.ExpFloat64()*burstOn*1000
				for t := on + r.ExpFloat64()*gap; t < min(off, p.end()); t += r.ExpFloat64() * gap {
					if t >= 0 {
						times = append(times, int64(t))
					}
				}
				on = off + r.ExpFloat64()*burstOff*1000
			}
			return times
		},
	},
	{
		name: "periodic",
		about: func() string {
			return fmt.Sprintf("every 1/4, 1/2, 1, 3/2 or 5/2 windows (each source one of these, from a time of its own on) as many requests as make up its rate, %d ms apart",
				batchGap)
		},
		times: func(p *plan, r *rand.Rand, times []int64) []int64 {
			period := periods[r.IntN(len(periods))] * float64(p.window) * 1000
			batch := max(1, int(math.Round(nearRate(p, r)*period)))
			for t := r.Float64() * period; t < p.end(); t += period {
				for i := range batch {
					if at := int64(t) + int64(i*batchGap); at < int64(p.end()) {
						times = append(times, at)
					}
				}
			}
			return times
		},
	},
	{
		name:  "heavy-tailed",
		heavy: true,
		about: func() string {
			return fmt.Sprintf("at random (Poisson), at a rate drawn from a Pareto distribution with the exponent %.1f, which begins at %g of the limit and is cut at %g times the limit",
				tailExponent, tailLeast, tailMost)
		},
		times: func(p *plan, r *rand.Rand, times []int64) []int64 {
			share := min(tailMost, tailLeast*math.Pow(1-r.Float64(), -1/tailExponent))
			gap := 1 / (share * p.rate())
			for t := r.ExpFloat64() * gap; t < p.end(); t += r.ExpFloat64() * gap {
				times = append(times, int64(t))
			}
			return times
		},
	},
}

const (
	burstOn, burstOff = 15, 45 // seconds
	batchGap          = 5      // milliseconds
	tailExponent      = 1.1
	tailLeast         = 0.001
	tailMost          = 20.0
)

// periods are in windows: those that about names.
var periods = []float64{1. / 4, 1. / 2, 1, 3. / 2, 5. / 2}

// end returns the end of a replay, in milliseconds since its start.
func (p *plan) end() float64 { return float64(p.duration) * 1000 }

// rate returns the limit in requests a millisecond.
func (p *plan) rate() float64 { return float64(p.limit) / float64(p.window) / 1000 }

// nearRate draws a rate within half of the limit.
func nearRate(p *plan, r *rand.Rand) float64 { return (0.5 + r.Float64()) * p.rate() }

// near tells whether a source with so many requests in all is within half of the limit.
func (p *plan) near(requests int) bool {
	asked, allowed := int64(requests)*p.window, p.limit*p.duration
	return 2*asked >= allowed && 2*asked <= 3*allowed
}

// within tells whether a source never asks for more than the limit in any interval of a
// window's length.
func (p *plan) within(times []int64) bool {
	for i := int(p.limit); i < len(times); i++ {
		if times[i]-times[i-int(p.limit)] < p.window*1000 {
			return false
		}
	}
	return true
}

// count returns how many sources of a kind of traffic there are.
func (p *plan) count(t *traffic) int {
	if t.heavy {
		return p.tail
	}
	return p.sources
}

// lines say what is replayed.
func (p *plan) lines() []string {
	lines := []string{
		fmt.Sprintf("Limit %d in %d s, %d s of traffic, seed %d. The sources do not react to refusals.", p.limit, p.window, p.duration, p.seed),
	}
	for i := range traffics {
		t := &traffics[i]
		rates := ""
		if !t.heavy {
			rates = "; the rate of each is drawn evenly from 0.5 to 1.5 times the limit"
		}
		lines = append(lines, fmt.Sprintf("%s: %s sources, %s%s.", t.name, thousands(int64(p.count(t))), t.about(), rates))
	}
	return append(lines,
		"Near the limit are the sources that ask, over the whole replay, for 0.5 to 1.5 times what the limit allows in that time.",
		"Within the limit are those that never ask for more than the limit in any interval of a window's length.")
}
