package resp

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
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

func acquire(t *testing.T, p *Pool) *Conn {
	t.Helper()
	c, err := Acquire(p, soon())
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return c
}

// count calls the counting script once.
func count(t *testing.T, c *Conn, key string) int64 {
	t.Helper()
	n, refusal, err := Eval(c, soon(), counting, key, []string{"1", "60"})
	if err != nil || refusal != "" {
		t.Fatalf("Eval: %q, %v", refusal, err)
	}
	return n
}

var counting = NewScript("counts")

func wantStats(t *testing.T, p *Pool, open, idle int) {
	t.Helper()
	if gotOpen, gotIdle := Stats(p); gotOpen != open || gotIdle != idle {
		t.Errorf("%d open and %d idle, want %d and %d", gotOpen, gotIdle, open, idle)
	}
}

func waiting(p *Pool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiters)
}

func TestNewPoolDialsNothing(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	p := NewPool(optionsFor(s), 4, time.Hour, nil)
	wantStats(t, p, 0, 0)
	if s.Accepted() != 0 {
		t.Errorf("%d connections", s.Accepted())
	}
	// A pool without room would let everybody wait for ever.
	p = NewPool(optionsFor(s), 0, time.Hour, nil)
	Release(p, acquire(t, p))
	wantStats(t, p, 1, 1)
	DropIdle(p)
}

func TestPoolTakesTheNewestFirst(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	p := NewPool(optionsFor(s), 3, time.Hour, nil)
	a, b, c := acquire(t, p), acquire(t, p), acquire(t, p)
	wantStats(t, p, 3, 0)
	Release(p, b)
	Release(p, c)
	Release(p, a)
	wantStats(t, p, 3, 3)
	if x, y, z := acquire(t, p), acquire(t, p), acquire(t, p); x != a || y != c || z != b {
		t.Error("not in the order of last use")
	}
	eventually(t, "three connections were opened", func() bool { return s.Accepted() == 3 })
}

func TestPoolNeverExceedsItsSize(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	p := NewPool(optionsFor(s), 3, time.Hour, nil)
	var group sync.WaitGroup
	for i := 0; i < 24; i++ {
		key := fmt.Sprintf("key-%d", i)
		group.Add(1)
		go func() {
			defer group.Done()
			for want := int64(1); want <= 100; want++ {
				c, err := Acquire(p, soon())
				if err != nil {
					t.Error(err)
					return
				}
				if open, _ := Stats(p); open > 3 {
					t.Errorf("%d connections are open", open)
				}
				n, refusal, err := Eval(c, soon(), counting, key, []string{"1", "60"})
				Release(p, c)
				if n != want || refusal != "" || err != nil {
					t.Errorf("%s: got %d, %q, %v, want %d", key, n, refusal, err, want)
					return
				}
			}
		}()
	}
	group.Wait()
	if s.Accepted() > 3 {
		t.Errorf("%d connections were opened", s.Accepted())
	}
	open, idle := Stats(p)
	if open != idle || open == 0 {
		t.Errorf("%d open, %d idle at the end", open, idle)
	}
}

func TestPoolServesWaitersInOrder(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	p := NewPool(optionsFor(s), 1, time.Hour, nil)
	c := acquire(t, p)
	served := make(chan int, 5)
	for i := 0; i < 5; i++ {
		i := i
		go func() {
			c, err := Acquire(p, soon())
			if err != nil {
				t.Error(err)
			}
			served <- i
			Release(p, c)
		}()
		eventually(t, "it waits", func() bool { return waiting(p) == i+1 })
	}
	Release(p, c)
	for i := 0; i < 5; i++ {
		if got := <-served; got != i {
			t.Errorf("waiter %d was served as number %d", got, i)
		}
	}
	eventually(t, "all are released", func() bool { _, idle := Stats(p); return idle == 1 })
	eventually(t, "one connection was opened", func() bool { return s.Accepted() == 1 })
}

func TestAcquireEndsAtItsDeadline(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	p := NewPool(optionsFor(s), 1, time.Hour, nil)
	c := acquire(t, p)
	for _, wait := range []time.Duration{10 * time.Millisecond, 0, -time.Hour} {
		_, err := Acquire(p, time.Now().Add(wait))
		demand(t, err, ErrPoolTimeout)
		if isTimeout(err) {
			t.Errorf("waiting for another caller counts as a silent server: %v", err)
		}
	}
	if waiting(p) != 0 {
		t.Errorf("%d waiters are left", waiting(p))
	}
	// Who has gone is not served: the next one is.
	Release(p, c)
	wantStats(t, p, 1, 1)
	if got := acquire(t, p); got != c {
		t.Error("another connection")
	}
}

func TestConnectionThatComesUpLateIsKept(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{Password: "secret"})
	gate := make(chan struct{})
	s.Usually(fakevalkey.Behaviour{Before: func(command []string) {
		if command[0] == "AUTH" {
			<-gate
		}
	}})
	o := optionsFor(s)
	o.Password = "secret"
	p := NewPool(o, 2, time.Hour, nil)
	for i := 0; i < 3; i++ {
		_, err := Acquire(p, time.Now().Add(10*time.Millisecond))
		demand(t, err, ErrPoolTimeout, ErrTimeout)
	}
	wantStats(t, p, 0, 0)
	close(gate)
	eventually(t, "the connection is idle", func() bool { _, idle := Stats(p); return idle == 1 })
	c := acquire(t, p)
	if n := count(t, c, "k"); n != 1 {
		t.Errorf("counted %d", n)
	}
	Release(p, c)
	// The later callers did not open another one while the first was on its way.
	if s.Accepted() != 1 {
		t.Errorf("%d connections", s.Accepted())
	}
}

func TestFailedDialReachesEveryWaiter(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	gate := make(chan struct{})
	s.Usually(fakevalkey.Behaviour{CloseAfter: -1, Before: func(command []string) { <-gate }})
	o := optionsFor(s)
	o.Password = "secret"
	p := NewPool(o, 1, time.Hour, nil)
	failed := make(chan error, 5)
	for i := 0; i < 5; i++ {
		go func() {
			_, err := Acquire(p, time.Now().Add(time.Hour))
			failed <- err
		}()
		eventually(t, "it waits", func() bool { return waiting(p) == i+1 })
	}
	close(gate)
	for i := 0; i < 5; i++ {
		demand(t, <-failed, ErrLost)
	}
	wantStats(t, p, 0, 0)

	// Each later call tries anew.
	s.Stop()
	_, err := Acquire(p, time.Now().Add(time.Hour))
	demand(t, err, ErrDial)
	s.Usually(fakevalkey.Behaviour{Answers: []string{"+OK\r\n"}})
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	Release(p, acquire(t, p))
	wantStats(t, p, 1, 1)
}

func TestFailedDialLeavesWaitersToTheOpenConnections(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	s.Behave(fakevalkey.Behaviour{})
	s.Usually(fakevalkey.Behaviour{Answers: []string{"-WRONGPASS\r\n"}})
	p := NewPool(optionsFor(s), 2, time.Hour, func(c *Conn, deadline time.Time) error {
		reply, err := Do(c, deadline, "PING")
		if err == nil && reply.Kind == '-' {
			err = errors.New(reply.Text)
		}
		return err
	})
	c := acquire(t, p)
	got := make(chan *Conn)
	go func() {
		c, err := Acquire(p, soon())
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	eventually(t, "the second dial has failed", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.waiters) == 1 && p.dialing == 0
	})
	wantStats(t, p, 1, 0)
	Release(p, c)
	if <-got != c {
		t.Error("the waiter got another connection")
	}
}

func TestDiscardOpensAnotherForTheWaiter(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	p := NewPool(optionsFor(s), 1, time.Hour, nil)
	c := acquire(t, p)
	got := make(chan *Conn)
	go func() {
		c, err := Acquire(p, soon())
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	eventually(t, "it waits", func() bool { return waiting(p) == 1 })
	Discard(p, c)
	if other := <-got; other == c || other == nil {
		t.Error("got the connection that was discarded")
	}
	wantStats(t, p, 1, 0)
	eventually(t, "a second connection was opened", func() bool { return s.Accepted() == 2 })
}

func TestReleaseKeepsOnlyWhatIsSafe(t *testing.T) {
	for _, test := range []struct {
		name string
		b    fakevalkey.Behaviour
		want int // connections kept
	}{
		{"an integer", fakevalkey.Behaviour{Answers: []string{":1\r\n"}}, 1},
		{"an error", fakevalkey.Behaviour{Answers: []string{"-NOPERM no\r\n"}}, 1},
		{"an error that forbids it", fakevalkey.Behaviour{Answers: []string{"-READONLY no\r\n"}}, 0},
		{"two answers in one packet", fakevalkey.Behaviour{Answers: []string{":1\r\n"}, Extra: ":2\r\n"}, 0},
		{"an error and half an answer", fakevalkey.Behaviour{Answers: []string{"-ERR\r\n"}, Extra: ":"}, 0},
		{"another type", fakevalkey.Behaviour{Answers: []string{"+OK\r\n"}}, 0},
		{"no reply at all", fakevalkey.Behaviour{Answers: []string{"what\r\n"}}, 0},
		{"closed", fakevalkey.Behaviour{CloseAfter: -1}, 0},
	} {
		s := fakevalkey.Start(t, fakevalkey.Config{})
		s.Usually(test.b)
		p := NewPool(optionsFor(s), 2, time.Hour, nil)
		c := acquire(t, p)
		_, _, _ = Eval(c, soon(), counting, "k", []string{"1", "60"})
		Release(p, c)
		if open, idle := Stats(p); open != test.want || idle != test.want {
			t.Errorf("%s: %d open, %d idle, want %d", test.name, open, idle, test.want)
		}
		eventually(t, "the rest is closed", func() bool { return s.Open() == test.want })
	}
}

// The answer to a question that was given up must not be the answer to the next.
func TestLateAnswerIsNeverReadByTheNextUser(t *testing.T) {
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
	p := NewPool(optionsFor(s), 1, time.Hour, nil)
	Release(p, acquire(t, p))
	for i := 1; i <= 300; i++ {
		slow, fast := fmt.Sprintf("slow-%d", i), fmt.Sprintf("fast-%d", i)
		gate := make(chan struct{})
		mu.Lock()
		held[slow] = gate
		mu.Unlock()
		c := acquire(t, p)
		n, refusal, err := Eval(c, time.Now().Add(time.Millisecond), counting, slow, []string{"1000000", "60"})
		if !isTimeout(err) || n != 0 || refusal != "" {
			t.Fatalf("%s: got %d, %q, %v, want a timeout", slow, n, refusal, err)
		}
		Release(p, c)
		close(gate) // its answer is on its way now
		next := acquire(t, p)
		want := fmt.Sprint(i)
		n, refusal, err = Eval(next, soon(), counting, fast, []string{want, "60"})
		if fmt.Sprint(n) != want || refusal != "" || err != nil {
			t.Fatalf("%s: got %d, %q, %v, want %s", fast, n, refusal, err, want)
		}
		if next == c {
			t.Fatal("the connection was used again")
		}
		Release(p, next)
	}
	wantStats(t, p, 1, 1)
}

func TestLostConnectionTakesTheIdleOnesWithIt(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	p := NewPool(optionsFor(s), 3, time.Hour, nil)
	a, b, c := acquire(t, p), acquire(t, p), acquire(t, p)
	count(t, a, "k")
	Release(p, a)
	Release(p, b)
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	_, _, err := Eval(c, soon(), counting, "k", []string{"1", "60"})
	demand(t, err, ErrLost)
	Release(p, c)
	wantStats(t, p, 0, 0)
	// One call was lost, and no more than one.
	c = acquire(t, p)
	if n := count(t, c, "k"); n != 2 {
		t.Errorf("counted %d", n)
	}
	Release(p, c)
}

func TestTimeoutTakesNoOtherConnectionWithIt(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	p := NewPool(optionsFor(s), 2, time.Hour, nil)
	a, b := acquire(t, p), acquire(t, p)
	Release(p, a)
	s.Pause()
	_, _, err := Eval(b, time.Now().Add(10*time.Millisecond), counting, "k", []string{"1", "60"})
	demand(t, err, ErrTimeout)
	Release(p, b)
	s.Resume()
	wantStats(t, p, 1, 1)
	if c := acquire(t, p); c != a {
		t.Error("another connection")
	}
}

func TestOpenedRunsOnceOnEachConnection(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	p := NewPool(optionsFor(s), 2, time.Hour, func(c *Conn, deadline time.Time) error {
		if left := time.Until(deadline); left <= 0 || left > 30*time.Second {
			t.Errorf("%v are left of the dial timeout", left)
		}
		reply, err := Do(c, deadline, "TIME")
		if err == nil && len(reply.Array) != 2 {
			t.Errorf("TIME: %+v", reply)
		}
		return err
	})
	a, b := acquire(t, p), acquire(t, p)
	Release(p, a)
	Release(p, b)
	a = acquire(t, p)
	count(t, a, "k")
	Release(p, a)
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

func TestOpenedThatFails(t *testing.T) {
	refused := errors.New("not today")
	for _, test := range []struct {
		name   string
		opened func(c *Conn, deadline time.Time) error
		want   error
	}{
		{"an error", func(c *Conn, deadline time.Time) error { return refused }, refused},
		{"a panic", func(c *Conn, deadline time.Time) error { panic("oops") }, ErrDial},
		{"an answer that is not read", func(c *Conn, deadline time.Time) error {
			c.ok = false
			return nil
		}, ErrProtocol},
	} {
		s := fakevalkey.Start(t, fakevalkey.Config{})
		p := NewPool(optionsFor(s), 1, time.Hour, test.opened)
		for i := 0; i < 3; i++ {
			if _, err := Acquire(p, soon()); err == nil {
				t.Errorf("%s: got a connection", test.name)
			} else {
				demand(t, err, test.want)
			}
		}
		wantStats(t, p, 0, 0)
		eventually(t, "the connections are closed", func() bool { return s.Open() == 0 && s.Accepted() == 3 })
	}
}

func TestIdleConnectionsGrowOld(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	p := NewPool(optionsFor(s), 3, time.Hour, nil)
	a, b, c := acquire(t, p), acquire(t, p), acquire(t, p)
	Release(p, a)
	Release(p, b)
	beat(p)
	wantStats(t, p, 3, 2)
	if again := acquire(t, p); again != b {
		t.Error("not the newest")
	}
	Release(p, b) // used within the beat, and young again
	beat(p)
	wantStats(t, p, 2, 1)
	beat(p)
	wantStats(t, p, 1, 0)
	if p.ticking {
		t.Error("the timer goes on without idle connections")
	}
	// What is in use does not grow old.
	count(t, c, "k")
	Release(p, c)
	if !p.ticking {
		t.Error("the timer did not start again")
	}
	wantStats(t, p, 1, 1)
	beat(p)
	beat(p)
	wantStats(t, p, 0, 0)
	eventually(t, "the connections are closed", func() bool { return s.Open() == 0 })
}

func TestNothingIsLeftAfterTheIdleTime(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	p := NewPool(optionsFor(s), 4, 20*time.Millisecond, nil)
	var held []*Conn
	for i := 0; i < 4; i++ {
		held = append(held, acquire(t, p))
	}
	_, err := Acquire(p, time.Now().Add(time.Millisecond))
	demand(t, err, ErrPoolTimeout)
	for _, c := range held {
		Release(p, c)
	}
	eventually(t, "all connections are closed", func() bool { return s.Open() == 0 })
	wantStats(t, p, 0, 0)
	eventually(t, "the timer has stopped", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.ticking
	})
	eventually(t, "no goroutine of the package runs", func() bool {
		stacks := make([]byte, 1<<20)
		for _, stack := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "/resp.") && !strings.Contains(stack, "testing.tRunner") && !strings.Contains(stack, "testing.(*T)") {
				return false
			}
		}
		return true
	})
	if n := count(t, acquire(t, p), "k"); n != 1 {
		t.Errorf("counted %d afterwards", n)
	}
}

func TestDropIdleLeavesWhatIsInUse(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	p := NewPool(optionsFor(s), 3, time.Hour, nil)
	a, b, c := acquire(t, p), acquire(t, p), acquire(t, p)
	Release(p, a)
	Release(p, b)
	DropIdle(p)
	wantStats(t, p, 1, 0)
	eventually(t, "two are closed", func() bool { return s.Open() == 1 })
	if n := count(t, c, "k"); n != 1 {
		t.Errorf("counted %d", n)
	}
	Release(p, c)
	wantStats(t, p, 1, 1)
}

// Whatever happens to the connections, each caller gets the answer to its own call
// or none. Every key counts in a range of its own, so that an answer that went
// astray is seen.
func TestAnswersNeverCrossWhileConnectionsFail(t *testing.T) {
	const callers, rounds, span = 16, 60, 1000000
	s := fakevalkey.Start(t, fakevalkey.Config{})
	for i := 0; i < callers; i++ {
		s.SetCount(fmt.Sprintf("key-%d", i), int64(i*span), 0)
	}
	p := NewPool(optionsFor(s), 4, time.Hour, nil)
	var group sync.WaitGroup
	done := make(chan struct{})
	answers := make([]int, callers)
	for i := 0; i < callers; i++ {
		i := i
		group.Add(1)
		go func() {
			defer group.Done()
			key, last, lost := fmt.Sprintf("key-%d", i), int64(i*span), int64(0)
			for {
				select {
				case <-done:
					return
				default:
				}
				c, err := Acquire(p, soon())
				if err != nil {
					continue // every connection was closed while it waited
				}
				n, refusal, err := Eval(c, time.Now().Add(5*time.Millisecond), counting, key, []string{"1", "60"})
				Release(p, c)
				if err != nil {
					lost++
					continue
				}
				answers[i]++
				// A lost call may be carried out at any later time, but once.
				if most := int64(i*span+answers[i]) + lost; n <= last || n > most || refusal != "" {
					t.Errorf("%s: got %d, %q, after %d and at most %d", key, n, refusal, last, most)
				}
				last = n
			}
		}()
	}
	for round := 0; round < rounds; round++ {
		time.Sleep(4 * time.Millisecond)
		switch round % 3 {
		case 0:
			s.Pause()
		case 1:
			s.Resume()
		case 2:
			s.CloseConnections()
		}
	}
	close(done)
	group.Wait()
	for i, n := range answers {
		if counted := s.Count(fmt.Sprintf("key-%d", i)) - int64(i*span); counted < int64(n) || n == 0 {
			t.Errorf("key-%d: %d calls were answered, %d counted", i, n, counted)
		}
	}
	if open, _ := Stats(p); open > 4 {
		t.Errorf("%d open at the end", open)
	}
	eventually(t, "all connections are closed", func() bool {
		DropIdle(p) // a dial may still be under way
		open, _ := Stats(p)
		return open == 0 && s.Open() == 0
	})
}
