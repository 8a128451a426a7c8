package limiter

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// since returns a time as a request has it.
func since(now time.Time) time.Duration { return now.Sub(Began) }

// guardOf returns a guard that was just loaded.
func guardOf(limit, length int64) *Guard {
	forget()
	return NewGuard("scope", limit, length, start)
}

// knownTo returns what a guard has counted in the window of a time.
func knownTo(g *Guard, limit int64, at time.Time) int64 {
	left := int64(0)
	for TakeGuard(g, since(at), 1) == 0 {
		left++
	}
	for i := int64(0); i < left; i++ {
		GiveBack(g, since(at), 1)
	}
	return limit - left
}

func TestGuardStepByStep(t *testing.T) {
	// start lies 30 s before an edge.
	type step struct {
		after      time.Duration
		take, give int64
		want       int64 // the answer to take
	}
	for name, steps := range map[string][]step{
		"up to the limit": {{take: 4}, {take: 5}, {take: 1}, {take: 1, want: 30}},
		"what does not fit takes nothing": {
			{take: 8}, {take: 3, want: 30}, {take: 2}, {take: 1, want: 30}},
		"more than the limit never fits":    {{take: 11, want: 30}, {take: 10}},
		"seconds are rounded up":            {{take: 10}, {after: 29400 * time.Millisecond, take: 1, want: 1}},
		"the next window is whole":          {{take: 10}, {after: 30 * time.Second, take: 10}, {after: 30 * time.Second, take: 1, want: 60}},
		"given back is free again":          {{take: 10}, {give: 3}, {take: 4, want: 30}, {take: 3}, {take: 1, want: 30}},
		"nothing is given back twice":       {{take: 2}, {give: 2}, {give: 2}, {take: 10}, {take: 1, want: 30}},
		"no more is given back than taken":  {{take: 2}, {give: 5}, {take: 8}, {take: 1, want: 30}},
		"given back in a window of its own": {{take: 10}, {after: 30 * time.Second, take: 10}, {give: 10}, {after: 30 * time.Second, take: 1, want: 60}},
		"given back before anything":        {{give: 1}, {take: 10}, {take: 1, want: 30}},
		"given back when the window is over, and the next one has begun": {
			{take: 10}, {after: 30 * time.Second, give: 10}, {after: 30 * time.Second, take: 10}, {after: 30 * time.Second, take: 1, want: 60}},
		"a request that read the clock before the edge": {
			{take: 10}, {after: 31 * time.Second, take: 10}, {after: 29 * time.Second, take: 1, want: 1}, {after: 31 * time.Second, take: 1, want: 59}},
		"one that finds room there": {
			{take: 9}, {after: 31 * time.Second, take: 10}, {after: 29 * time.Second, take: 1}, {after: 29 * time.Second, take: 1, want: 1},
			{after: 31 * time.Second, take: 1, want: 59}},
	} {
		g := guardOf(10, 60)
		for i, s := range steps {
			at := since(start.Add(s.after))
			if s.give > 0 {
				GiveBack(g, at, s.give)
				continue
			}
			if got := TakeGuard(g, at, s.take); got != s.want {
				t.Errorf("%s: step %d: %d takes are told to wait for %d s, want %d", name, i+1, s.take, got, s.want)
			}
		}
	}
}

// Requests of both sides of an edge come in any order, and each window has its limit.
func TestGuardHoldsOnBothSidesOfAnEdge(t *testing.T) {
	const limit = 10
	g := guardOf(limit, 60)
	before, after := 0, 0
	for i := 0; i < 100; i++ {
		if TakeGuard(g, since(start.Add(29*time.Second)), 1) == 0 {
			before++
		}
		if TakeGuard(g, since(start.Add(30*time.Second)), 1) == 0 {
			after++
		}
	}
	if before != limit || after != limit {
		t.Errorf("%d passed before the edge and %d behind it, want %d each", before, after, limit)
	}
}

func TestGuardOutlivesAReload(t *testing.T) {
	const limit = 10
	g := guardOf(limit, 60)
	for i := 0; i < 4; i++ {
		TakeGuard(g, since(start), 1)
	}
	again := NewGuard("scope", limit, 60, start.Add(time.Second))
	if got := knownTo(again, limit, start); got != 4 {
		t.Errorf("after a reload %d are counted, want 4", got)
	}
	tighter := NewGuard("scope", 5, 60, start.Add(time.Second))
	if TakeGuard(tighter, since(start), 1) != 0 || TakeGuard(tighter, since(start), 1) != 30 {
		t.Error("the limit of a reload does not hold for what was counted before it")
	}
	if got := knownTo(NewGuard("scope", limit, 30, start), limit, start); got != 0 {
		t.Errorf("windows of another length begin with %d, want 0", got)
	}
	if got := knownTo(NewGuard("another", limit, 60, start), limit, start); got != 0 {
		t.Errorf("another scope begins with %d, want 0", got)
	}
	// Nor is a count lost that is older than two windows, and still in use.
	late := start.Add(5 * time.Minute)
	for i := 0; i < 4; i++ {
		TakeGuard(again, since(late), 1)
	}
	if got := knownTo(NewGuard("scope", limit, 60, late.Add(time.Second)), limit, late); got != 4 {
		t.Errorf("after a late reload %d are counted, want 4", got)
	}
	// A clock that jumped, and was learnt at a reload.
	for _, jump := range []time.Duration{-time.Hour, time.Hour} {
		full := NewGuard("scope", limit, 60, start)
		for TakeGuard(full, since(start), 1) == 0 {
			continue
		}
		later := start.Add(2 * time.Second)
		jumped := NewGuard("scope", limit, 60, later.Add(jump))
		jumped.table.ledger.mu.Lock()
		jumped.table.origin = int64(later.Add(jump).UnixNano()) - int64(since(later))
		jumped.table.ledger.mu.Unlock()
		if wait := TakeGuard(jumped, since(later), 1); wait != 0 {
			t.Errorf("after a jump by %s a request is told to wait for %d s, want none", jump, wait)
		}
	}
}

func TestGuardAtOnce(t *testing.T) {
	const limit, workers, each = 500, 8, 200
	g := guardOf(limit, 60)
	var passed atomic.Int64
	var group sync.WaitGroup
	for w := 0; w < workers; w++ {
		group.Add(1)
		go func(w int) {
			defer group.Done()
			for i := 0; i < each; i++ {
				if TakeGuard(g, since(start), 1) != 0 {
					continue
				}
				if i%4 == w%4 {
					GiveBack(g, since(start), 1)
				} else {
					passed.Add(1)
				}
			}
		}(w)
	}
	group.Wait()
	if got := knownTo(g, limit, start); got != passed.Load() || got > limit {
		t.Errorf("%d of %d are counted, %d passed and were not given back", got, limit, passed.Load())
	}
	for TakeGuard(g, since(start), 1) == 0 {
		passed.Add(1)
	}
	if passed.Load() != limit {
		t.Errorf("%d passed altogether, want %d", passed.Load(), limit)
	}
}
