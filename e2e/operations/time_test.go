package operations_test

import (
	"encoding/binary"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// clock is the clock of a store, which may be set.
type clock struct {
	t    testing.TB
	path string
}

// newClock returns a clock that is right, and the environment of a store that goes by it.
func newClock(t testing.TB) (*clock, []string) {
	t.Helper()
	dir := t.TempDir()
	c := &clock{t: t, path: filepath.Join(dir, "ahead")}
	c.set(0)
	library := filepath.Join(dir, "clock.so")
	output, err := exec.Command("cc", "-shared", "-fPIC", "-O1", "-o", library, filepath.Join("testdata", "clock.c")).CombinedOutput()
	if err != nil {
		t.Fatalf("compiling a clock: %v\n%s", err, output)
	}
	return c, []string{"LD_PRELOAD=" + library, "CLOCK_FILE=" + c.path}
}

// set sets the clock ahead by whole seconds, or back.
func (c *clock) set(ahead time.Duration) {
	c.t.Helper()
	f, err := os.OpenFile(c.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		err = binary.Write(f, binary.LittleEndian, int64(ahead/time.Second))
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// The clock of the store is set while gateways count, by less than is left of the window:
// nothing is lost, and nobody is told.
func TestClockOfTheStoreIsSetWithinAWindow(t *testing.T) {
	for _, by := range []time.Duration{time.Minute, -time.Minute} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			c, env := newClock(t)
			// Away from the edges by more than a minute on either side.
			s := newSite(t, lab.StoreOptions{Env: env})
			s.window = 366 * 24 * time.Hour
			s.openAlike(2, nil)
			s.acquaint()
			end := func(key string) time.Time {
				a := s.ask(1, key)[0]
				return a.At.Add(time.Duration(a.Number("X-RateLimit-Reset")) * time.Second)
			}
			before := end("key")
			mustAllow(t, "before", s.ask(59, "key"), 59, "shared")
			mustAllow(t, "before", s.ask(limit+10, "full"), limit, "shared")
			c.set(by)
			mustAllow(t, "afterwards", s.ask(limit, "key"), limit-60, "shared")
			mustAllow(t, "afterwards", s.ask(10, "full"), 0, "shared")
			// The clock is read when a connection is opened, and once a minute.
			s.store.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			lab.Until(t, "the window ends when the store says", func() bool {
				off := before.Sub(end("key")) - by
				return off < 5*time.Second && off > -5*time.Second
			})
			mustAllow(t, "in the end", s.ask(10, "key"), 0, "shared")
			mustAllow(t, "in the end", s.ask(10, "full"), 0, "shared")
			s.silent()
		})
	}
}

// It is set by windows. Ahead: the window that it shows begins at once, and the log says
// so. Back: the gateways go on in the window they are in until they read the clock. In
// either case all clients get their limit once more, and no more than that but for what
// the gateways decide by themselves meanwhile.
func TestClockOfTheStoreIsSetByWindows(t *testing.T) {
	for _, by := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			c, env := newClock(t)
			s := newSite(t, lab.StoreOptions{Env: env})
			s.openAlike(2, nil)
			s.acquaint()
			mustAllow(t, "before", s.ask(60, "key"), 60, "shared")
			mustAllow(t, "before", s.ask(limit+10, "full"), limit, "shared")
			c.set(by)
			var key lab.Answers
			if by < 0 {
				mustAllow(t, "at first", s.ask(limit, "key"), limit-60, "shared")
				mustAllow(t, "at first", s.ask(10, "full"), 0, "shared")
			} else {
				// The store itself says that the window is over, once it is asked.
				key = s.ask(2*limit, "key")
			}
			var full lab.Answers
			for began := time.Now(); full.Count(http.StatusOK) == 0; time.Sleep(100 * time.Millisecond) {
				if full = append(full, s.ask(1, "full")...); time.Since(began) > 2*time.Minute {
					t.Fatal("the gateways do not go by the clock of the store")
				}
			}
			full = append(full, s.ask(2*limit, "full")...)
			if passed := full.Count(http.StatusOK); passed != limit {
				t.Errorf("%d requests passed of a client that had used its limit, want %d", passed, limit)
			}
			key = append(key, s.ask(2*limit, "key")...)
			// Alone, each gateway gives its share of the 40 that were left, rounded up.
			if passed := key.Count(http.StatusOK); passed < limit || passed > limit+40+2 {
				t.Errorf("%d requests passed of a client that had %d left, want %d", passed, limit-60, limit)
			}
			if by < 0 {
				s.silent()
				return
			}
			for g, door := range s.doors {
				if said := lines(door); len(said) != 1 || !strings.Contains(said[0], "its clock is ahead of what it was, by a window or more") {
					t.Errorf("gateway %d logged %q", g+1, said)
				}
			}
		})
	}
}
