package limiter

import (
	"time"

	"github.com/gatequota/gatequota/window"
)

// joined returns how many requests wait in the batch that is open to more.
func joined(l *Limiter) (requests int64) {
	l.ledger.mu.Lock()
	defer l.ledger.mu.Unlock()
	if l.store.next != nil {
		for _, sl := range l.store.next.slots {
			requests += sl.requests
		}
	}
	return requests
}

// backdate lets the time of the batch that is open have begun earlier.
func backdate(l *Limiter, by time.Duration) {
	l.ledger.mu.Lock()
	defer l.ledger.mu.Unlock()
	l.store.next.start = l.store.next.start.Add(-by)
}

// taken is what Take returns.
type taken struct {
	window.Decision
	way string
}

// begin makes a request and does not wait for it.
func begin(l *Limiter, client string, now time.Time) chan taken {
	done := make(chan taken, 1)
	go func() {
		d, way := Take(l, client, now)
		done <- taken{d, way}
	}()
	return done
}
