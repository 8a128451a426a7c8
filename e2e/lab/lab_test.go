package lab_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

func TestStoreKeepsItsPortOverRestarts(t *testing.T) {
	t.Parallel()
	for _, redis := range []bool{false, true} {
		s := lab.Valkey(t, lab.StoreOptions{Redis: redis, Password: "secret", Unix: true})
		port := s.Port
		s.Do("SET", "a", 1, "EX", 100)
		s.Do("SET", "b", 2)
		if got := s.WithoutExpiry(); len(got) != 1 || got[0] != "b" {
			t.Errorf("keys without expiry: %q", got)
		}
		if got := s.Sum("*"); got != 3 {
			t.Errorf("sum %d", got)
		}
		for _, end := range []func(){s.Kill, s.Stop} {
			end()
			if conn, err := net.Dial("tcp", s.Addr()); err == nil {
				_ = conn.Close()
				t.Error("a stopped store accepts connections")
			}
			s.Start()
			if s.Port != port || len(s.Keys()) != 0 {
				t.Errorf("port %d, keys %q", s.Port, s.Keys())
			}
		}
		conn, err := net.Dial("unix", s.Socket())
		if err != nil {
			t.Fatal(err)
		}
		lab.Until(t, "the client on the socket is counted, and no other", func() bool { return s.Clients() == 1 })
		_ = conn.Close()
	}
}

func TestStoreVariants(t *testing.T) {
	t.Parallel()
	authority := lab.NewAuthority(t)
	lab.Valkey(t, lab.StoreOptions{TLS: authority}).Do("SET", "a", 1)

	main := lab.Valkey(t, lab.StoreOptions{})
	replica := lab.Valkey(t, lab.StoreOptions{ReplicaOf: main})
	if err := replica.Client().Set(context.Background(), "a", 1, 0).Err(); err == nil || !strings.HasPrefix(err.Error(), "READONLY") {
		t.Errorf("a replica answers %v to a write", err)
	}

	cluster := lab.Valkey(t, lab.StoreOptions{Cluster: true})
	if got := cluster.Do("CLUSTER", "INFO").(string); !strings.Contains(got, "cluster_state:ok") {
		t.Errorf("cluster: %s", got)
	}
}

func TestMonitorSeesCommands(t *testing.T) {
	t.Parallel()
	s := lab.Valkey(t, lab.StoreOptions{Password: "p"})
	log, _ := s.Monitor()
	s.Do("SET", "seen", 1)
	lab.Until(t, "the command is seen", func() bool { return strings.Contains(log.String(), `"seen"`) })
}

func TestPausedStoreAnswersLater(t *testing.T) {
	t.Parallel()
	s := lab.Valkey(t, lab.StoreOptions{})
	s.Pause()
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatalf("the kernel accepts for a frozen process: %v", err)
	}
	_, _ = io.WriteString(conn, "PING\r\n")
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a frozen store: %v", err)
	}
	s.Resume()
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if line, err := bufio.NewReader(conn).ReadString('\n'); line != "+PONG\r\n" {
		t.Errorf("%q, %v", line, err)
	}
}

// ping sends a command and returns the reply's line, or "" when none comes.
func ping(t *testing.T, addr string) (string, error) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(300 * time.Millisecond))
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return "", err
	}
	return bufio.NewReader(conn).ReadString('\n')
}

func TestProxyFaults(t *testing.T) {
	t.Parallel()
	p := lab.NewProxy(t, lab.Valkey(t, lab.StoreOptions{}).Addr())
	for _, tt := range []struct {
		name   string
		faults lab.Faults
		want   error // nil: PONG arrives
	}{
		{"none", lab.Faults{}, nil},
		{"slices", lab.Faults{Slice: true}, nil},
		{"sliced replies", lab.Faults{SliceReplies: true}, nil},
		{"a short delay", lab.Faults{Delay: 10 * time.Millisecond}, nil},
		{"a delay beyond patience", lab.Faults{Delay: time.Second}, os.ErrDeadlineExceeded},
		{"requests lost", lab.Faults{LoseRequests: true}, os.ErrDeadlineExceeded},
		{"replies lost", lab.Faults{LoseReplies: true}, os.ErrDeadlineExceeded},
		{"held", lab.Faults{Hold: true}, os.ErrDeadlineExceeded},
		{"cut after the command", lab.Faults{CutAfter: []byte("PING")}, syscall.ECONNRESET},
		{"replies cut in the middle", lab.Faults{HalveReplies: true}, io.EOF},
	} {
		p.Set(tt.faults)
		line, err := ping(t, p.Addr())
		switch {
		case tt.want == nil && line != "+PONG\r\n":
			t.Errorf("%s: %q, %v", tt.name, line, err)
		case tt.want != nil && !errors.Is(err, tt.want):
			t.Errorf("%s: %q, %v, want %v", tt.name, line, err, tt.want)
		}
	}
	if p.Cuts() != 1 {
		t.Errorf("%d cuts", p.Cuts())
	}

	p.Set(lab.Faults{Refuse: true})
	if _, err := ping(t, p.Addr()); err == nil {
		t.Error("a refusing proxy answered")
	}
	p.Set(lab.Faults{})
	p.Close()
	if _, err := ping(t, p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a closed proxy: %v", err)
	}
	p.Open()
	if line, err := ping(t, p.Addr()); line != "+PONG\r\n" {
		t.Errorf("opened again: %q, %v", line, err)
	}
	lab.Until(t, "nobody is connected", func() bool { return p.Connections() == 0 })
}

func TestProxyLeadsElsewhere(t *testing.T) {
	t.Parallel()
	first, second := lab.Valkey(t, lab.StoreOptions{}), lab.Valkey(t, lab.StoreOptions{})
	p := lab.NewProxy(t, first.Addr())
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	lab.Until(t, "the first store is reached", func() bool { return first.Clients() == 1 })
	p.Redirect(second.Addr())
	if line, err := ping(t, p.Addr()); line != "+PONG\r\n" {
		t.Errorf("%q, %v", line, err)
	}
	if p.Connections() < 1 || first.Clients() != 1 || second.Info("total_connections_received") < 2 {
		t.Error("the open connection was led elsewhere, or the new one was not")
	}
}

func TestBlackholeAnswersNothing(t *testing.T) {
	t.Parallel()
	_, err := net.DialTimeout("tcp", lab.Blackhole(t), 300*time.Millisecond)
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("dialling a black hole: %v", err)
	}
}

func TestQuietWindowIsFarFromItsEdges(t *testing.T) {
	t.Parallel()
	for _, unix := range []int64{1_500_000_000, 1_699_999_999, 1_700_000_000, 1_763_999_999, 1_764_000_000, 1_764_000_001} {
		now := time.Unix(unix, 0)
		length, id := lab.QuietWindow(now)
		start := time.Unix(id*int64(length/time.Second), 0)
		if behind, ahead := now.Sub(start), start.Add(length).Sub(now); behind < 10*time.Second || ahead < 30*time.Minute {
			t.Errorf("at %d: %v behind, %v ahead in a window of %v", unix, behind, ahead, length)
		}
	}
}

func TestAnswerTellsItsWindow(t *testing.T) {
	t.Parallel()
	const length = 5 * time.Second
	for _, tt := range []struct {
		at   int64 // milliseconds
		left string
		want int64
	}{
		{1_000, "4", 0}, {4_999, "1", 0}, {5_000, "5", 1}, {5_001, "5", 1},
		{5_200, "1", 0}, // decided before the edge, arrived after it
		{5_900, "1", 0}, {9_990, "1", 1}, {6_000, "", -1},
	} {
		a := lab.Answer{At: time.UnixMilli(tt.at), Header: map[string][]string{"X-Ratelimit-Reset": {tt.left}}}
		if got := a.Window(length); got != tt.want {
			t.Errorf("at %d ms, %q left: window %d, want %d", tt.at, tt.left, got, tt.want)
		}
	}
}

func TestInstallerSourcesExist(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"install-e2e.sh", "build-traefik.sh"} {
		info, err := os.Stat(filepath.Join(lab.Root(), "scripts", script))
		if err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("%s cannot be run: %v", script, err)
		}
	}
}
