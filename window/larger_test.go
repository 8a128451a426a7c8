package window

import "testing"

// A bucket that was larger lacks no more than it can hold now: nobody waits for longer
// than LongestWait says, whatever the limit was before.
func TestLargerBucketsLackNoMoreThanTheirBurst(t *testing.T) {
	large := &Limit{Algorithm: Bucket, Limit: 1000, Length: 60, Burst: 1000}
	small := &Limit{Algorithm: Bucket, Limit: 2, Length: 60, Burst: 2}
	now := int64(1764499230500)
	a := &Account{Entry: EntryFind(NewEntries(false, 1), "client", now)}
	var d Decision
	TakeOne(large, a, 1000, now, &d)
	if !d.Allowed {
		t.Fatalf("%+v", d)
	}
	d = Decision{}
	TakeOne(small, a, 1, now, &d)
	if d.Allowed || d.RetryAfter < 1 || d.RetryAfter > LongestWait(small, 1) || d.Reset > LongestWait(small, 2) {
		t.Fatalf("of the smaller one: %+v, want a wait of at most %d s", d, LongestWait(small, 1))
	}
	wait := d.RetryAfter
	d = Decision{}
	TakeOne(small, a, 1, now+wait*1000-1000, &d)
	if d.Allowed {
		t.Errorf("a second early: %+v", d)
	}
	d = Decision{}
	TakeOne(small, a, 1, now+wait*1000, &d)
	if !d.Allowed {
		t.Errorf("after %d s: %+v", wait, d)
	}
}

// What passed here counts though the store has lost it, but only what passed before the
// call that the store answers.
func TestLogsKnowWhatAStoreHasLost(t *testing.T) {
	g := &Log{}
	logAdd(g, 1000, "a", 1, 5, false)
	logAdd(g, 2000, "b", 1, 3, false)
	mark := LogAdded(g)
	logAdd(g, 3000, "c", 1, 2, false)
	for _, c := range []struct{ mark, now, count, want int64 }{
		{mark, 3000, 20, 20}, {mark, 3000, 10, 10}, {mark, 3000, 9, 9}, {mark, 3000, 7, 8}, {mark, 3000, 0, 8},
		{LogAdded(g), 3000, 0, 10}, {0, 3000, 4, 4}, {mark, 61000, 0, 3}, {mark, 62000, 0, 0},
	} {
		if got := LogKnown(g, c.mark, c.now, 60000, c.count); got != c.want {
			t.Errorf("%+v: %d are known", c, got)
		}
	}
}

// A long log is told a part at a time, and all of it in the end.
func TestLongLogsAreToldInParts(t *testing.T) {
	l := &Limit{Algorithm: Exact, Limit: 10 * logTold, Length: 60}
	e := &Entry{Log: &Log{}}
	for i := int64(0); i < 5*logTold; i++ {
		logAdd(e.Log, 1000+i, "n", i, i, false)
	}
	LogForgotten(e.Log)
	calls := 0
	for ; LogOwed(e.Log) && calls < 100; calls++ {
		text, told := LogUnsent(e.Log)
		if units := int64(len(text)) / 14; text == "" || units > 2*logTold {
			t.Fatalf("call %d tells of about %d units", calls, units)
		}
		LogAnswered(e, l, &LogAnswer{Now: 10000, Count: told, Newest: 9000}, 1, 0, "x", told)
	}
	if calls != 5 {
		t.Errorf("%d units were told in %d calls, want 5", 5*logTold, calls)
	}
}
