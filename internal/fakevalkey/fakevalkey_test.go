package fakevalkey

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// reports collects what a server reports.
type reports struct {
	mu    sync.Mutex
	lines []string
}

func (r *reports) add(format string, args ...interface{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

func (r *reports) all() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, "\n")
}

type client struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func dial(t *testing.T, s *Server) *client {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &client{t, conn, bufio.NewReader(conn)}
}

func (c *client) send(args ...string) {
	c.t.Helper()
	parts := make([]string, len(args))
	for i, arg := range args {
		parts[i] = Bulk(arg)
	}
	if _, err := io.WriteString(c.conn, Array(parts...)); err != nil {
		c.t.Fatal(err)
	}
}

// ask sends a command and demands the answer, to the byte.
func (c *client) ask(want string, args ...string) {
	c.t.Helper()
	c.send(args...)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c.in, got); err != nil || string(got) != want {
		c.t.Errorf("%q: got %q, %v, want %q", args, got, err, want)
	}
}

const noscript = "-NOSCRIPT No matching script. Please use EVAL.\r\n"

func TestCountingAndExpiry(t *testing.T) {
	s := Start(t, Config{})
	s.SetTime(time.Unix(1700000000, 250000000))
	c := dial(t, s)
	c.ask(Array(Bulk("1700000000"), Bulk("250000")), "TIME")
	sha := digest("body")
	c.ask(noscript, "EVALSHA", sha, "1", "k", "1", "60")
	c.ask(Int(1), "EVAL", "body", "1", "k", "1", "60")
	c.ask(Int(3), "evalsha", sha, "1", "k", "2", "10")
	if s.Count("k") != 3 || s.TTL("k") != 60*time.Second {
		t.Errorf("count %d, %v to live", s.Count("k"), s.TTL("k"))
	}
	s.Advance(59 * time.Second)
	c.ask(Int(4), "EVALSHA", sha, "1", "k", "1", "60")
	s.Advance(time.Second)
	if s.Count("k") != 0 || len(s.Keys()) != 0 {
		t.Errorf("count %d under %v after its expiry", s.Count("k"), s.Keys())
	}
	c.ask(Int(1), "EVALSHA", sha, "1", "k", "1", "60")
	s.SetCount("eternal", 7, 0)
	c.ask(Int(8), "EVALSHA", sha, "1", "eternal", "1", "60")
	if s.TTL("eternal") != 60*time.Second {
		t.Error("a count without expiry got none")
	}
	if got := s.Keys(); !reflect.DeepEqual(got, []string{"eternal", "k"}) {
		t.Errorf("keys %v", got)
	}
	s.Flush()
	if len(s.Keys()) != 0 {
		t.Errorf("keys %v after Flush", s.Keys())
	}
	s.FlushScripts()
	c.ask(noscript, "EVALSHA", sha, "1", "k", "1", "60")
	if first := s.Commands()[0]; first.Conn != 0 || !reflect.DeepEqual(first.Args, []string{"TIME"}) {
		t.Errorf("recorded %+v", first)
	}
	s.ForgetCommands()
	if len(s.Commands()) != 0 {
		t.Error("still recorded")
	}
}

func TestRestartKeepsAddressAndCountsButNoScripts(t *testing.T) {
	s := Start(t, Config{})
	c := dial(t, s)
	c.ask(Int(1), "EVAL", "body", "1", "k", "1", "60")
	address := s.Addr()
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.in.ReadByte(); err == nil {
		t.Error("the old connection lives")
	}
	if s.Addr() != address || s.Open() != 0 {
		t.Errorf("at %s now, %d open", s.Addr(), s.Open())
	}
	c = dial(t, s)
	c.ask(noscript, "EVALSHA", digest("body"), "1", "k", "1", "60")
	c.ask(Int(2), "EVAL", "body", "1", "k", "1", "60")
	if s.Accepted() != 2 || s.Open() != 1 {
		t.Errorf("%d accepted, %d open", s.Accepted(), s.Open())
	}
}

func TestUnknownThingsAreReported(t *testing.T) {
	for _, test := range []struct {
		wire, want string
	}{
		{Array(Bulk("FLUSHALL")), "FLUSHALL"},
		{Array(Bulk("SCRIPT"), Bulk("LOAD"), Bulk("x")), "SCRIPT"},
		{Array(Bulk("EVAL"), Bulk("x"), Bulk("0")), "key"},
		{Array(Bulk("EVAL"), Bulk("x"), Bulk("2"), Bulk("a"), Bulk("b")), "key"},
		{Array(Bulk("EVAL"), Bulk("x"), Bulk("1"), Bulk("k"), Bulk("1")), "counting"},
		{Array(Bulk("EVAL"), Bulk("x"), Bulk("1"), Bulk("k"), Bulk("one"), Bulk("60")), "counting"},
		{Array(Bulk("EVAL"), Bulk("x"), Bulk("1"), Bulk("k"), Bulk("1"), Bulk("0")), "counting"},
		{"PING\r\n", "belongs"},
		{"*1\r\n$x\r\n", "length"},
		{"*0\r\n", "0 parts"},
		{"*1\r\n$4\r\nPINGPONG", "end"},
	} {
		var got reports
		s := Start(t, Config{Report: got.add})
		c := dial(t, s)
		if _, err := io.WriteString(c.conn, test.wire); err != nil {
			t.Fatal(err)
		}
		_ = c.conn.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, c.in)
		s.Stop()
		if !strings.Contains(got.all(), test.want) {
			t.Errorf("%q: reported %q, want %q in it", test.wire, got.all(), test.want)
		}
	}
}

func TestMeaningsAndCommandsCanBeTaught(t *testing.T) {
	s := Start(t, Config{})
	s.Register("body", func(s *Server, args []string) string { return Bulk(strings.Join(args, " ")) })
	s.Handle("zadd", func(s *Server, command []string) string { return Int(int64(len(command))) })
	c := dial(t, s)
	c.ask(Bulk("k a b"), "EVAL", "body", "1", "k", "a", "b")
	c.ask(Int(1), "EVAL", "another", "1", "k", "1", "60")
	c.ask(Int(4), "ZADD", "k", "1", "x")
	s.Refuse("READONLY You can't write against a read only replica.")
	c.ask("-READONLY You can't write against a read only replica.\r\n", "EVAL", "body", "1", "k")
	s.Refuse("")
	c.ask(Bulk("k"), "EVAL", "body", "1", "k")
}

func TestBehaviours(t *testing.T) {
	s := Start(t, Config{})
	s.Behave(
		Behaviour{Greeting: "-DENIED\r\n"},
		Behaviour{Answers: []string{"+ONE\r\n", ""}, Extra: "+AND\r\n"},
		Behaviour{CloseAfter: 3},
		Behaviour{CloseAfter: -1},
		Behaviour{Fragment: true, Delay: time.Microsecond},
	)
	c := dial(t, s)
	c.ask("-DENIED\r\n+PONG\r\n", "PING")
	c = dial(t, s)
	c.ask("+ONE\r\n+AND\r\n", "PING")
	c.ask("+AND\r\n", "PING")
	c.ask("+PONG\r\n+AND\r\n", "PING")
	for _, want := range []string{"+PO", ""} {
		c = dial(t, s)
		c.send("PING")
		if got, _ := io.ReadAll(c.in); string(got) != want {
			t.Errorf("got %q before the end, want %q", got, want)
		}
	}
	for i := 0; i < 2; i++ { // the last has no behaviour of its own
		c = dial(t, s)
		c.ask("+PONG\r\n", "PING")
	}
}

func TestPauseHoldsAnswersUp(t *testing.T) {
	s := Start(t, Config{})
	c := dial(t, s)
	c.ask(Int(1), "EVAL", "body", "1", "k", "1", "60")
	s.Pause()
	c.send("EVAL", "body", "1", "k", "1", "60")
	for len(s.Commands()) < 2 {
		time.Sleep(time.Millisecond)
	}
	if s.Count("k") != 1 {
		t.Error("carried out during the pause")
	}
	s.Resume()
	if line, err := c.in.ReadString('\n'); line != Int(2) || err != nil {
		t.Errorf("got %q, %v", line, err)
	}
	s.Pause()
	s.Stop() // must not hang
}
