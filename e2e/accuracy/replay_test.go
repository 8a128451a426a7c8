package main

import (
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/gatequota/gatequota/window"
)

// small is a plan that takes no second.
var small = plan{seed: 7, limit: 20, window: 10, duration: 600, sources: 12, tail: 1000}

func replayAll(t *testing.T, p *plan, counters []counter, workers int) []*result {
	t.Helper()
	var results []*result
	for kind := range traffics {
		r, err := run(context.Background(), p, kind, counters, workers)
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, r)
	}
	return results
}

// Whatever the traffic, these hold.
func TestWhatTheoryPromises(t *testing.T) {
	for seed := range uint64(3) {
		p := small
		p.seed = seed
		t.Logf("seed %d", seed)
		all := counters(&p)
		for _, r := range append(replayAll(t, &p, all, 2), total(replayAll(t, &p, all, 1))) {
			for i, c := range all {
				f, w := &r.figures[everyone][i], &r.figures[within][i]
				bad := func(what string) { t.Errorf("%s, %s: %s: %+v, within the limit %+v", r.traffic, c.name, what, *f, *w) }
				if f.Broken > 0 {
					bad("a decision is not as its own rule says")
				}
				most := 2 * p.limit
				switch c.limit.Algorithm {
				case window.Exact:
					most = p.limit
					if f.WronglyAllowed > 0 {
						bad("the log is not a log")
					}
				case window.Bucket:
					most = p.limit + c.limit.Burst
				}
				if f.Most > most {
					bad("too many in an interval")
				}
				if c.limit.Algorithm != window.Sliding && (c.limit.Algorithm != window.Bucket || c.limit.Burst >= p.limit) {
					if f.WronglyRefused > 0 || w.Admitted != w.Requests {
						bad("refused within the limit")
					}
				}
				if f.Admitted+f.WronglyRefused < p.limit || f.Requests != r.figures[everyone][0].Requests || f.Sources == 0 {
					bad("not all was replayed")
				}
				if (f.Compared > 0) != (c.limit.Algorithm == window.Sliding) {
					bad("an estimate is compared")
				}
			}
		}
	}
}

// The replay does find what is wrong: each algorithm is where it should be in a small
// replay, and does differ from a log if it is none.
func TestAlgorithmsDiffer(t *testing.T) {
	all := counters(&small)
	sum := total(replayAll(t, &small, all, 2)).figures[everyone]
	for i, c := range all {
		f := &sum[i]
		if log := c.limit.Algorithm == window.Exact; (f.WronglyAllowed > 0) == log || f.WronglyAllowed < f.FarAllowed || f.WronglyRefused < f.FarRefused {
			t.Errorf("%s: %+v", c.name, *f)
		}
	}
	if sum[1].WronglyRefused == 0 || sum[1].Apart == 0 || sum[4].WronglyRefused == 0 {
		t.Errorf("%+v", sum)
	}
}

// An algorithm that does not do what it should is found, and has other figures.
func TestBrokenAlgorithmsAreFound(t *testing.T) {
	right := counters(&small)
	fixed, sliding, exact, bucket := right[0], right[1], right[2], right[3]
	other := func(c counter, change func(*window.Limit)) counter {
		c.new = func(l *window.Limit) func(int64) bool {
			wrong := *l
			change(&wrong)
			return twin(&wrong)
		}
		return c
	}
	broken := map[string]counter{
		"a fixed window with one more":  other(fixed, func(l *window.Limit) { l.Limit++ }),
		"a fixed window with one less":  other(fixed, func(l *window.Limit) { l.Limit-- }),
		"a window that ends late":       other(fixed, func(l *window.Limit) { l.Length++ }),
		"a sliding window of one count": other(sliding, func(l *window.Limit) { l.Algorithm = window.Fixed }),
		"a sliding window with one more": other(sliding, func(l *window.Limit) {
			l.Limit++
		}),
		"a log with one more":   other(exact, func(l *window.Limit) { l.Limit++ }),
		"a log that is short":   other(exact, func(l *window.Limit) { l.Length-- }),
		"a bucket with a token": other(bucket, func(l *window.Limit) { l.Burst++ }),
		"a bucket that leaks": other(bucket, func(l *window.Limit) {
			l.Limit, l.Length = l.Limit*100, l.Length*101
		}),
	}
	// A log that has what is a window old already, and one that forgets in the same instant.
	for name, shift := range map[string]int64{"a closed interval": -1, "an interval that is short by a millisecond": 1} {
		c := exact
		c.new = func(l *window.Limit) func(int64) bool {
			h := newTruth(l)
			h.length -= shift
			return func(now int64) bool {
				h.move(now)
				if h.count() >= h.limit {
					return false
				}
				h.admit(now)
				return true
			}
		}
		broken[name] = c
	}
	for name, c := range broken {
		whole := c
		whole.new = twin
		// So close together that one comes exactly a window after another, or a millisecond
		// less, many times.
		r := rand.New(rand.NewPCG(5, 0))
		var times []int64
		for at := int64(0); at < 300_000; at += r.Int64N(20) {
			times = append(times, at)
		}
		got, want := replay(&c, times), replay(&whole, times)
		if want.Broken > 0 || got.Broken == 0 {
			t.Errorf("%s: %d decisions are found, and %d of the whole one", name, got.Broken, want.Broken)
		}
		if *got == *want {
			t.Errorf("%s: the same figures: %+v", name, *got)
		}
	}
}

// What the figures count, on a history that can be followed by hand: a limit of 2 in 10
// seconds, and all requests admitted, or none.
func TestFiguresByHand(t *testing.T) {
	const edge = 10_000 - start%10_000
	times := []int64{edge + 1000, edge + 1000, edge + 2000, edge + 10_999, edge + 11_000, edge + 12_000, edge + 12_001}
	for _, c := range []struct {
		name   string
		admits func(i int) bool
		want   figures
	}{
		{"all", func(int) bool { return true },
			// Before each the log has 0, 1, 2, 3, 2, 2, 3.
			figures{WronglyAllowed: 5, FarAllowed: 2, Most: 4, Admitted: 7}},
		{"none", func(int) bool { return false },
			figures{WronglyRefused: 7, FarRefused: 7}},
		{"all but the second", func(i int) bool { return i != 1 },
			// Before each the log has 0, 1, 1, 2, 2, 2, 3.
			figures{WronglyAllowed: 4, FarAllowed: 1, WronglyRefused: 1, Most: 4, Admitted: 6}},
	} {
		i := -1
		got := replay(&counter{limit: window.Limit{Algorithm: window.Exact, Limit: 2, Length: 10}, new: func(*window.Limit) func(int64) bool {
			return func(int64) bool { i++; return c.admits(i) }
		}}, times)
		got.Broken, got.Sources, got.Requests = 0, 0, 0
		if *got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, *got, c.want)
		}
	}
}

// The truth is the same as by looking at the whole history each time.
func TestTruthBySearch(t *testing.T) {
	const seed = 11
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 40 {
		l := &window.Limit{Limit: 1 + r.Int64N(40), Length: 1 + r.Int64N(3), Burst: 1 + r.Int64N(60)}
		h, length := newTruth(l), l.Length*1000
		var admitted []int64
		now := int64(start)
		for range 2000 {
			now += r.Int64N(r.Int64N(400) + 1)
			h.move(now)
			count, running, before := int64(0), int64(0), int64(0)
			bucket := true
			for i, at := range admitted {
				if at > now-length {
					count++
				}
				switch now/length - at/length {
				case 0:
					running++
				case 1:
					before++
				}
				if int64(len(admitted)-i+1)*length > l.Burst*length+l.Limit*(now-at) {
					bucket = false
				}
			}
			estimate := running*length + before*(length-now%length)
			got := []any{h.count(), h.estimate(now), h.may(window.Fixed, now), h.may(window.Sliding, now), h.may(window.Exact, now), h.may(window.Bucket, now)}
			want := []any{count, estimate, running < l.Limit, estimate < l.Limit*length, count < l.Limit, bucket}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("%+v at %d: %v, want %v", *l, now, got, want)
			}
			if r.IntN(3) > 0 && h.may(window.Bucket, now) || r.IntN(50) == 0 {
				h.admit(now)
				admitted = append(admitted, now)
			}
		}
		if cap(h.log) > 4096 {
			t.Errorf("the log of %+v holds %d", *l, cap(h.log))
		}
	}
}

// The figures of a seed are the same however many workers there are, and others than those
// of another seed.
func TestFiguresDependOnTheSeedAlone(t *testing.T) {
	one, three := replayAll(t, &small, counters(&small), 1), replayAll(t, &small, counters(&small), 3)
	if !reflect.DeepEqual(one, three) {
		t.Error("three workers find otherwise than one")
	}
	p := small
	p.seed++
	if reflect.DeepEqual(one, replayAll(t, &p, counters(&p), 2)) {
		t.Error("another seed gives the same")
	}
}

func TestRunEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := run(ctx, &full, 0, counters(&full), 2); err == nil {
		t.Error("no error of a context that has ended")
	}
}

func TestTraffic(t *testing.T) {
	for kind := range traffics {
		k := &traffics[kind]
		requests, allowed, sources := 0, float64(small.limit*small.duration)/float64(small.window), 400
		ends := 0
		for source := range sources {
			times := k.times(&small, rand.New(rand.NewPCG(3, uint64(source))), nil)
			requests += len(times)
			if len(times) == 0 {
				continue
			}
			if !slices.IsSorted(times) {
				t.Errorf("%s: not in order", k.name)
			}
			if first, last := slices.Min(times), slices.Max(times); first < 0 || last >= small.duration*1000 {
				t.Errorf("%s: from %d to %d ms", k.name, first, last)
			} else if last > small.duration*900 {
				ends++
			}
		}
		if mean := float64(requests) / float64(sources) / allowed; !k.heavy && (mean < 0.9 || mean > 1.1 || ends < sources/2) {
			t.Errorf("%s: on average %.2f of the limit, %d of %d to the end", k.name, mean, ends, sources)
		}
	}
}

func TestGroups(t *testing.T) {
	p := plan{limit: 10, window: 60, duration: 600} // 100 in all
	for requests, want := range map[int]bool{0: false, 49: false, 50: true, 100: true, 150: true, 151: false} {
		if p.near(requests) != want {
			t.Errorf("%d requests: near %v", requests, !want)
		}
	}
	times := make([]int64, 11)
	for i := range times {
		times[i] = int64(i) * 5999
	}
	if p.within(times) {
		t.Error("11 within 59,990 ms are within 10 a minute")
	}
	times[10] = 60_000
	if !p.within(times) || !p.within(times[:10]) || !p.within(nil) {
		t.Error("a minute later is another interval")
	}
}
