package limiter

import (
	"time"

	"github.com/gatequota/gatequota/window"
)

// takeAt takes a request that came at a time.
func takeAt(l *Limiter, client string, now time.Time) (d window.Decision, way string) {
	at := now.Sub(Began)
	if l.store == nil {
		TakeLocal(l, client, at, &d)
	} else {
		TakeShared(l, client, at, &d)
	}
	way = d.Way
	d.Way = ""
	return d, way
}
