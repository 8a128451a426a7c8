package limiter

import (
	"testing"
	"time"

	"github.com/gatequota/gatequota/window"
)

// A limiter that yields decides and counts nothing while something is in force, and all
// others of its counts go on.
func TestLimiterYields(t *testing.T) {
	f := controlled(t)
	c := f.control(t)
	l := openAlone(t, f.hourOf(window.Fixed))
	Yield(l, c)
	q := openSeveral(t, 1, []*Settings{f.hourOf(window.Bucket)})
	YieldOne(q, c)
	ways := append(f.ways(t), counting{"yielding", func(client string) window.Decision {
		d, way := takeAt(l, client, time.Now())
		d.Way = way
		return d
	}}, counting{"yielding bucket", func(client string) (d window.Decision) {
		TakeOne(q, client, time.Since(Began), &d)
		return d
	}})
	yielding := ways[len(ways)-2:]
	look := func(when string, left int64) {
		t.Helper()
		for _, w := range yielding {
			d := w.ask("client")
			if d.Way != Shared || !d.Allowed || d.Remaining != left {
				t.Errorf("%s: %s: %+v, want %d left", w.name, when, d, left)
			}
		}
	}
	look("nothing was ever read", 4)
	readControl(c, c.store)
	look("nothing is set", 3)

	f.controls.Change(controlKey, "limit", "7")
	readControl(c, c.store)
	f.carried()
	for _, w := range ways {
		d := w.ask("another")
		if w.name == yielding[0].name || w.name == yielding[1].name {
			if d != (window.Decision{Way: Controlled}) {
				t.Errorf("%s: %+v while something is in force", w.name, d)
			}
		} else if d.Way != Shared || !d.Allowed {
			t.Errorf("%s yields, too: %+v", w.name, d)
		}
	}
	if _, calls := f.carried(); calls != len(ways)-2 {
		t.Errorf("%d calls of %d limiters that do not yield", calls, len(ways)-2)
	}

	f.controls.Change(controlKey, "limit", "")
	readControl(c, c.store)
	look("it was taken back", 2)
}
