package limiter

import (
	"strconv"
	"testing"
	"time"

	"github.com/gatequota/gatequota/resp"
)

// Each request makes a new keeper where one has failed, and not each of these is told.
func TestKeepersThatFailAreToldNowAndThen(t *testing.T) {
	forget()
	s := newStore(&StoreSettings{Endpoint: "unkept"}, &ledger{})
	fail := func() {
		s.kept = true
		defer keeperEnded(s)
		panic("trouble")
	}
	for i := 0; i < 3; i++ {
		fail()
		if s.kept {
			t.Error("no other keeper would be made")
		}
	}
	if lines := logged.about("store unkept: keeping it failed: panic: trouble"); len(lines) != 1 {
		t.Errorf("log %q, want one line for three failures", lines)
	}
	s.keeperFailed.Store(time.Now().Add(-s.repeatAfter).UnixNano())
	fail()
	if lines := logged.about("store unkept: keeping it failed: panic: trouble"); len(lines) != 2 {
		t.Errorf("log %q, want one more after a minute", lines)
	}
}

// Whoever fills the store with nonsense does not fill the log.
func TestComplaintsAreBounded(t *testing.T) {
	c := &Control{name: "bounded", said: map[string]bool{}}
	for i := 0; i < 3*complaints; i++ {
		Complain(c, "limit:count"+strconv.Itoa(i/2), "x", "a number is wanted")
	}
	if lines := logged.about("scope bounded: control: the field "); len(lines) != complaints || len(c.said) != complaints {
		t.Errorf("%d lines, and %d are kept in mind", len(lines), len(c.said))
	}
	if lines := logged.about("scope bounded: control: what else "); len(lines) != 1 {
		t.Errorf("log %q, want one line that says so", lines)
	}
}

// A store that comes and goes is told of now and then.
func TestUnsteadyStoresAreToldNowAndThen(t *testing.T) {
	forget()
	s := newStore(&StoreSettings{Endpoint: "unsteady"}, &ledger{})
	outages := func(n int) (gone, back int) {
		for i := 0; i < n; i++ {
			for healthOf(s) < away {
				failed(s, "", "", resp.ErrLost)
			}
			recovered(s)
		}
		return len(logged.about("store unsteady: away")), len(logged.about("store unsteady: answers again"))
	}
	if gone, back := outages(10); gone != 2 || back != 2 {
		t.Errorf("ten outages are told by %d and %d lines, want 2 and 2", gone, back)
	}
	s.repeatAfter = 0
	if gone, back := outages(1); gone != 3 || back != 3 {
		t.Errorf("one more after a minute, and there are %d and %d lines", gone, back)
	}
}
