package resp

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
)

// eventually waits for what another goroutine or the kernel is about to do. The
// bound is there to end a test that fails, not to judge one that is slow.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

func isTimeout(err error) bool { return errors.Is(err, ErrTimeout) }

// linkTo returns a link to s that is dropped at the end of the test.
func linkTo(t *testing.T, o *Options, opened func(c *Conn, deadline time.Time) error) *Link {
	t.Helper()
	l := NewLink(o, opened)
	t.Cleanup(func() { Drop(l) })
	return l
}

// connect returns the connection of l.
func connect(t *testing.T, l *Link) *Conn {
	t.Helper()
	c, err := Connect(l, soon())
	if err != nil {
		t.Fatalf("Connect: %v", err)
	}
	return c
}

// add calls the counting script once.
func add(c *Conn, deadline time.Time, key string) (n int64, refusal string, err error) {
	return Eval(c, deadline, counting, 2, call(key, 1))
}

// wantCount fails the test unless the count under key is n with one more call.
func wantCount(t *testing.T, c *Conn, key string, n int64) {
	t.Helper()
	if got, refusal, err := add(c, soon(), key); got != n || refusal != "" || err != nil {
		t.Errorf("%s: got %d, %q, %v, want %d", key, got, refusal, err, n)
	}
}

// gated lets a server hold back its answer to the command with the given name until
// the gate is closed.
func gated(name string, gate chan struct{}) fakevalkey.Behaviour {
	return fakevalkey.Behaviour{Before: func(command []string) {
		if command[0] == name {
			<-gate
		}
	}}
}

// gatedServer runs a server with a password that answers AUTH once gate is closed.
func gatedServer(t *testing.T, gate chan struct{}) (*fakevalkey.Server, *Options) {
	t.Helper()
	s := fakevalkey.Start(t, fakevalkey.Config{Password: "secret"})
	s.Usually(gated("AUTH", gate))
	o := optionsFor(s)
	o.Password = "secret"
	return s, o
}

func awaited(l *Link) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.caller != nil && !l.caller.served
}

func isOpening(l *Link) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opening
}

func TestNewLinkDialsNothing(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	l := NewLink(optionsFor(s), nil)
	Drop(l)
	if s.Accepted() != 0 || Connected(l) {
		t.Errorf("%d connections, connected %v", s.Accepted(), Connected(l))
	}
}

func TestLinkKeepsItsConnection(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	l := linkTo(t, optionsFor(s), nil)
	first := connect(t, l)
	for i := int64(1); i <= 20; i++ {
		c := connect(t, l)
		if c != first {
			t.Fatal("another connection")
		}
		wantCount(t, c, "k", i)
	}
	// Time that is over matters only where one has to wait.
	if c, err := Connect(l, time.Now().Add(-time.Hour)); c != first || err != nil {
		t.Errorf("got %p, %v with no time left", c, err)
	}
	if s.Accepted() != 1 || !Connected(l) {
		t.Errorf("%d connections, connected %v", s.Accepted(), Connected(l))
	}
}

func TestConnectReturnsTheErrorOfTheOpening(t *testing.T) {
	notToday := errors.New("not today")
	for _, test := range []struct {
		name     string
		password string
		b        fakevalkey.Behaviour
		opened   func(c *Conn, deadline time.Time) error
		want     []error
	}{
		{"a wrong password", "hunter2", fakevalkey.Behaviour{}, nil, []error{ErrRefused}},
		{"closed instead of an answer", "secret", fakevalkey.Behaviour{CloseAfter: -1}, nil, []error{ErrLost}},
		{"half an answer", "secret", fakevalkey.Behaviour{CloseAfter: 2}, nil, []error{ErrLost}},
		{"no reply at all", "secret", fakevalkey.Behaviour{Answers: []string{"what\r\n"}}, nil, []error{ErrProtocol}},
		{"two answers", "secret", fakevalkey.Behaviour{Extra: "+OK\r\n"}, nil, []error{ErrProtocol}},
		{"opened fails", "secret", fakevalkey.Behaviour{}, func(c *Conn, deadline time.Time) error { return notToday }, []error{notToday}},
		{"opened panics", "secret", fakevalkey.Behaviour{}, func(c *Conn, deadline time.Time) error { panic("oops") }, []error{ErrDial}},
		{"opened leaves an answer", "secret", fakevalkey.Behaviour{}, func(c *Conn, deadline time.Time) error {
			c.Usable = false
			return nil
		}, []error{ErrProtocol}},
	} {
		s := fakevalkey.Start(t, fakevalkey.Config{Password: "secret"})
		s.Usually(test.b)
		o := optionsFor(s)
		o.Password = test.password
		l := linkTo(t, o, test.opened)
		for i := 1; i <= 3; i++ {
			c, err := Connect(l, soon())
			if c != nil || err == nil {
				t.Errorf("%s: got %p, %v", test.name, c, err)
			} else {
				demand(t, err, test.want...)
				if strings.Contains(err.Error(), test.password) {
					t.Errorf("%s: the password is in the error %q", test.name, err)
				}
			}
			if Connected(l) || s.Accepted() != i {
				t.Errorf("%s: connected %v after %d of %d connections", test.name, Connected(l), s.Accepted(), i)
			}
		}
		eventually(t, "all connections are closed", func() bool { return s.Open() == 0 })
	}
}

func TestConnectTriesAnewAfterAFailedDial(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	l := linkTo(t, optionsFor(s), nil)
	s.Stop()
	for i := 0; i < 3; i++ {
		c, err := Connect(l, soon())
		if c != nil {
			t.Error("got a connection to a server that is stopped")
		}
		demand(t, err, ErrDial)
		if isTimeout(err) {
			t.Errorf("a refused connect is a timeout: %v", err)
		}
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	wantCount(t, connect(t, l), "k", 1)
}

func TestConnectEndsAtItsDeadlineAndTheLateConnectionIsKept(t *testing.T) {
	gate := make(chan struct{})
	s, o := gatedServer(t, gate)
	l := linkTo(t, o, nil)
	for _, left := range []time.Duration{10 * time.Millisecond, 0, -time.Hour, time.Millisecond} {
		c, err := Connect(l, time.Now().Add(left))
		if c != nil {
			t.Error("got a connection that is not open")
		}
		demand(t, err, ErrDial, ErrTimeout)
		if awaited(l) || Connected(l) || !isOpening(l) {
			t.Errorf("awaited %v, connected %v, opening %v", awaited(l), Connected(l), isOpening(l))
		}
	}
	close(gate)
	eventually(t, "the connection is there", func() bool { return Connected(l) })
	c, err := Connect(l, time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	wantCount(t, c, "k", 1)
	if s.Accepted() != 1 {
		t.Errorf("%d connections", s.Accepted())
	}
}

// Who comes while a connection is being opened for another waits for that one.
func TestConnectJoinsTheOpeningUnderWay(t *testing.T) {
	gate := make(chan struct{})
	s, o := gatedServer(t, gate)
	l := linkTo(t, o, nil)
	_, err := Connect(l, time.Now().Add(time.Millisecond))
	demand(t, err, ErrTimeout)
	got := make(chan error)
	go func() {
		c, err := Connect(l, soon())
		if err == nil {
			_, _, err = add(c, soon(), "k")
		}
		got <- err
	}()
	eventually(t, "it waits", func() bool { return awaited(l) })
	close(gate)
	if err := <-got; err != nil {
		t.Error(err)
	}
	if s.Accepted() != 1 || awaited(l) || isOpening(l) {
		t.Errorf("%d connections, awaited %v, opening %v", s.Accepted(), awaited(l), isOpening(l))
	}
}

// An opening that fails when nobody waits for it any more is not what the next
// caller is told.
func TestErrorThatNobodyWaitsForIsForgotten(t *testing.T) {
	gate := make(chan struct{})
	s, o := gatedServer(t, gate)
	b := gated("AUTH", gate)
	b.CloseAfter = -1
	s.Behave(b)
	l := linkTo(t, o, nil)
	_, err := Connect(l, time.Now().Add(time.Millisecond))
	demand(t, err, ErrTimeout)
	close(gate)
	eventually(t, "the opening has failed", func() bool { return !isOpening(l) })
	if Connected(l) {
		t.Error("connected after a failed opening")
	}
	wantCount(t, connect(t, l), "k", 1)
	if s.Accepted() != 2 {
		t.Errorf("%d connections", s.Accepted())
	}
}

func TestOpeningEndsAtTheDialTimeout(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	s.Usually(fakevalkey.Behaviour{Swallow: true})
	o := optionsFor(s)
	o.Password, o.DialTimeout = "secret", 20*time.Millisecond
	l := linkTo(t, o, nil)
	c, err := Connect(l, soon())
	if c != nil {
		t.Error("got a connection")
	}
	demand(t, err, ErrTimeout)
	if errors.Is(err, errConnecting) {
		t.Errorf("the caller's own time was over: %v", err)
	}
	eventually(t, "the connection is closed", func() bool { return s.Accepted() == 1 && s.Open() == 0 })
}

func TestLinkRunsOpenedOnceOnEachConnection(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	l := linkTo(t, optionsFor(s), func(c *Conn, deadline time.Time) error {
		if left := time.Until(deadline); left <= 0 || left > 30*time.Second {
			t.Errorf("%v are left of the dial timeout", left)
		}
		reply, err := Do(c, deadline, "TIME")
		if err == nil && len(reply.Array) != 2 {
			t.Errorf("TIME: %+v", reply)
		}
		return err
	})
	for i := int64(1); i <= 4; i++ {
		c := connect(t, l)
		wantCount(t, c, "k", i)
		if i == 2 {
			Drop(l)
		}
	}
	times := 0
	for _, command := range s.Commands() {
		if command.Args[0] == "TIME" {
			times++
		}
	}
	if times != 2 || s.Accepted() != 2 {
		t.Errorf("TIME was asked %d times on %d connections", times, s.Accepted())
	}
}

func TestDropClosesTheConnection(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	l := linkTo(t, optionsFor(s), nil)
	first := connect(t, l)
	Drop(l)
	Drop(l)
	if Connected(l) {
		t.Error("connected after Drop")
	}
	eventually(t, "it is closed", func() bool { return s.Open() == 0 })
	// Whoever holds it learns so, and no answer.
	n, refusal, err := add(first, soon(), "k")
	demand(t, err, ErrLost)
	if n != 0 || refusal != "" {
		t.Errorf("got %d, %q", n, refusal)
	}
	if c := connect(t, l); c == first {
		t.Error("got the connection that was dropped")
	} else {
		wantCount(t, c, "k", 1)
	}
}

func TestDropDuringACall(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	l := linkTo(t, optionsFor(s), nil)
	c := connect(t, l)
	s.Pause()
	got := make(chan error)
	go func() {
		_, _, err := add(c, soon(), "k")
		got <- err
	}()
	eventually(t, "the call is under way", func() bool { return len(s.Commands()) == 1 })
	Drop(l)
	demand(t, <-got, ErrLost)
	s.Resume()
	if next := connect(t, l); next == c {
		t.Error("got the connection that was dropped")
	}
}

func TestDropDuringADial(t *testing.T) {
	gate := make(chan struct{})
	s, o := gatedServer(t, gate)
	l := linkTo(t, o, nil)
	got := make(chan error)
	go func() {
		c, err := Connect(l, soon())
		if err == nil {
			_, _, err = add(c, soon(), "k")
		}
		got <- err
	}()
	eventually(t, "it waits", func() bool { return awaited(l) })
	Drop(l)
	close(gate)
	if err := <-got; err != nil {
		t.Error(err)
	}
	if !Connected(l) || s.Accepted() != 1 {
		t.Errorf("connected %v, %d connections", Connected(l), s.Accepted())
	}
}

func TestLinkReplacesOnlyWhatIsUsedUp(t *testing.T) {
	for _, test := range []struct {
		name string
		b    fakevalkey.Behaviour
		kept bool
	}{
		{"an integer", fakevalkey.Behaviour{Answers: []string{":1\r\n"}}, true},
		{"an error", fakevalkey.Behaviour{Answers: []string{"-NOPERM no\r\n"}}, true},
		{"READONLY", fakevalkey.Behaviour{Answers: []string{"-READONLY no\r\n"}}, false},
		{"LOADING", fakevalkey.Behaviour{Answers: []string{"-LOADING no\r\n"}}, false},
		{"MASTERDOWN", fakevalkey.Behaviour{Answers: []string{"-MASTERDOWN no\r\n"}}, false},
		{"two answers in one packet", fakevalkey.Behaviour{Answers: []string{":1\r\n"}, Extra: ":2\r\n"}, false},
		{"an error and half an answer", fakevalkey.Behaviour{Answers: []string{"-ERR\r\n"}, Extra: ":"}, false},
		{"another type", fakevalkey.Behaviour{Answers: []string{"+OK\r\n"}}, false},
		{"no reply at all", fakevalkey.Behaviour{Answers: []string{"what\r\n"}}, false},
		{"closed", fakevalkey.Behaviour{CloseAfter: -1}, false},
	} {
		s := fakevalkey.Start(t, fakevalkey.Config{})
		s.Behave(test.b)
		l := linkTo(t, optionsFor(s), nil)
		first := connect(t, l)
		_, _, _ = add(first, soon(), "k")
		if c := connect(t, l); (c == first) != test.kept {
			t.Errorf("%s: kept %v, want %v", test.name, c == first, test.kept)
		}
		eventually(t, "one connection is open", func() bool { return s.Open() == 1 })
	}
}

func TestLinkOutlivesARestart(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	l := linkTo(t, optionsFor(s), nil)
	wantCount(t, connect(t, l), "k", 1)
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	_, _, err := add(connect(t, l), soon(), "k")
	demand(t, err, ErrLost)
	// One call was lost, and no more than one.
	wantCount(t, connect(t, l), "k", 2)
}

// The answer to a question that was given up must not be the answer to the next.
func TestLateAnswerIsNeverReadInTheNextTurn(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	var mu sync.Mutex
	held := map[string]chan struct{}{}
	s.Usually(fakevalkey.Behaviour{Before: func(command []string) {
		if len(command) > 3 {
			mu.Lock()
			gate := held[command[3]]
			mu.Unlock()
			if gate != nil {
				<-gate
			}
		}
	}})
	l := linkTo(t, optionsFor(s), nil)
	wantCount(t, connect(t, l), "k", 1) // the server has the script from here on
	counts := make([]int64, 2)
	for i := 1; i <= 300; i++ {
		slow, fast := fmt.Sprintf("slow-%d", i), fmt.Sprintf("fast-%d", i)
		gate := make(chan struct{})
		mu.Lock()
		held[slow] = gate
		mu.Unlock()
		c := connect(t, l)
		// The first call is answered if there is time, the second never.
		calls := []string{call(fast, i), call(slow, 1000000)}
		answered, refusals, err := EvalAll(c, time.Now().Add(2*time.Millisecond), counting, 2, calls, counts)
		if !isTimeout(err) || answered == 2 || refusals != nil {
			close(gate)
			t.Fatalf("%s: %d answered, %q, %v, want a timeout", slow, answered, refusals, err)
		}
		if answered == 1 && counts[0] != int64(i) {
			close(gate)
			t.Fatalf("%s: got %d, want %d", fast, counts[0], i)
		}
		close(gate) // its answer is on its way now
		next := connect(t, l)
		answered, refusals, err = EvalAll(next, soon(), counting, 2, []string{call("other-"+fast, i)}, counts)
		if answered != 1 || counts[0] != int64(i) || refusals != nil || err != nil {
			t.Fatalf("%s: got %d, %q, %v, want %d", fast, counts[0], refusals, err, i)
		}
		if next == c {
			t.Fatal("the connection was used again")
		}
	}
}

// Whatever happens to the connection, each call gets its own answer or none, also
// where Drop comes from outside of the turns. Every key counts in a range of its own,
// so that an answer that went astray is seen.
func TestAnswersNeverCrossWhileTheLinkFails(t *testing.T) {
	const callers, rounds, span, size = 8, 60, 1000000, 10
	s := fakevalkey.Start(t, fakevalkey.Config{})
	key := func(i, j int) string { return fmt.Sprintf("key-%d-%d", i, j) }
	for i := 0; i < callers; i++ {
		for j := 0; j < size; j++ {
			s.SetCount(key(i, j), int64((i*size+j)*span), 0)
		}
	}
	l := linkTo(t, optionsFor(s), nil)
	var turn sync.Mutex
	var group sync.WaitGroup
	var done atomic.Bool
	answers := make([][size]int, callers)
	for i := 0; i < callers; i++ {
		i := i
		group.Add(1)
		go func() {
			defer group.Done()
			var last, lost [size]int64
			var calls []string
			for j := range last {
				last[j] = int64((i*size + j) * span)
				calls = append(calls, call(key(i, j), 1))
			}
			patience := 5 * time.Millisecond
			for !done.Load() || answers[i][size-1] == 0 {
				if done.Load() {
					patience = 30 * time.Second // the server is well again
				}
				counts := make([]int64, size)
				turn.Lock()
				answered := 0
				c, err := Connect(l, time.Now().Add(patience))
				connected := err == nil
				var refusals []string
				if connected {
					answered, refusals, err = EvalAll(c, time.Now().Add(patience), counting, 2, calls, counts)
					if (err == nil) != (answered == size) || err == nil && refusals != nil {
						t.Errorf("%d answered, %q, %v", answered, refusals, err)
					}
				}
				turn.Unlock()
				for j := range calls {
					if !connected {
						break
					}
					if j >= answered {
						lost[j]++
						continue
					}
					if refusals != nil && refusals[j] != "" {
						// The time was over before it could be sent once more: it was not run.
						if Word(refusals[j]) != "NOSCRIPT" {
							t.Errorf("%s: refused with %q", key(i, j), refusals[j])
						}
						continue
					}
					answers[i][j]++
					// A lost call may be carried out at any later time, but once.
					if most := int64((i*size+j)*span+answers[i][j]) + lost[j]; counts[j] <= last[j] || counts[j] > most {
						t.Errorf("%s: got %d, after %d and at most %d", key(i, j), counts[j], last[j], most)
					}
					last[j] = counts[j]
				}
			}
		}()
	}
	for round := 0; round < rounds; round++ {
		time.Sleep(4 * time.Millisecond)
		switch round % 5 {
		case 0:
			s.Pause()
		case 1:
			s.Resume()
		case 2:
			s.CloseConnections()
		case 3:
			Drop(l)
		case 4:
			s.FlushScripts()
		}
		Connected(l)
	}
	s.Resume()
	done.Store(true)
	group.Wait()
	for i := range answers {
		for j, n := range answers[i] {
			if counted := s.Count(key(i, j)) - int64((i*size+j)*span); counted < int64(n) || n == 0 {
				t.Errorf("%s: %d calls were answered, %d counted", key(i, j), n, counted)
			}
		}
	}
	eventually(t, "all connections are closed", func() bool {
		Drop(l) // an opening may still be under way
		return s.Open() == 0 && !isOpening(l)
	})
}

// Two callers at once break the rule of turns, but neither waits for ever.
func TestSecondCallerAtOnceDoesNotHangTheFirst(t *testing.T) {
	gate := make(chan struct{})
	s, o := gatedServer(t, gate)
	l := linkTo(t, o, nil)
	first, second := &caller{done: make(chan struct{})}, &caller{done: make(chan struct{})}
	apply(l, first)
	apply(l, second)
	giveUp(l, first)
	<-first.done
	demand(t, first.err, ErrDial, ErrTimeout)
	close(gate)
	<-second.done
	if second.err != nil || second.conn == nil || first.conn != nil || s.Accepted() != 1 {
		t.Errorf("got %p, %v after %d connections", second.conn, second.err, s.Accepted())
	}
	// What was served stays as it is.
	giveUp(l, second)
	if second.err != nil || second.conn == nil {
		t.Errorf("got %p, %v", second.conn, second.err)
	}
}

// A connection that came up just before the caller looks is served at once.
func TestCallerThatComesJustAfterTheOpening(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	l := linkTo(t, optionsFor(s), nil)
	c := connect(t, l)
	w := &caller{done: make(chan struct{})}
	apply(l, w)
	<-w.done
	if w.conn != c || w.err != nil || isOpening(l) {
		t.Errorf("got %p, %v, opening %v", w.conn, w.err, isOpening(l))
	}
}

func TestLinkLeavesNothingBehind(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	l := NewLink(optionsFor(s), nil)
	for i := int64(1); i <= 3; i++ {
		wantCount(t, connect(t, l), "k", i)
		Drop(l)
	}
	eventually(t, "all connections are closed", func() bool { return s.Open() == 0 })
	eventually(t, "no goroutine of the package runs", func() bool {
		stacks := make([]byte, 1<<20)
		for _, stack := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "/resp.") && !strings.Contains(stack, "testing.tRunner") && !strings.Contains(stack, "testing.(*T)") {
				return false
			}
		}
		return true
	})
}

func TestRetiredLinkClosesWhatComesUpLate(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	gate := make(chan struct{})
	l := linkTo(t, optionsFor(s), func(*Conn, time.Time) error {
		<-gate
		return nil
	})
	_, err := Connect(l, time.Now().Add(time.Millisecond))
	demand(t, err, ErrTimeout)
	Retire(l)
	close(gate)
	eventually(t, "the late connection is closed", func() bool { return s.Accepted() == 1 && s.Open() == 0 && !Connected(l) })
	connect(t, l)
	eventually(t, "the link comes back", func() bool { return Connected(l) && s.Accepted() == 2 })
	Retire(l)
	eventually(t, "the open connection is closed", func() bool { return s.Open() == 0 })
}
