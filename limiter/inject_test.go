package limiter

import (
	"time"

	"github.com/gatequota/gatequota/window"
)

// takeAt is Take for a request that came at another time.
func takeAt(l *Limiter, client string, now time.Time) (d window.Decision, way string) {
	at := int64(now.Sub(began))
	if l.store != nil {
		takeCounted(l, client, at, nil, &d)
	} else {
		l.ledger.mu.Lock()
		window.FixedTake(l.table.counts, client, (at+l.table.origin)/second, l.limit, &d)
		l.ledger.mu.Unlock()
		d.Way = Local
	}
	way = d.Way
	d.Way = ""
	return d, way
}
