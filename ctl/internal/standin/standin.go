// Package standin is for tests: a store, and gateways that do in it what the gateways of
// Gatequota do for whoever watches and changes them.
package standin

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/gatequota/gatequota/control"
	"github.com/gatequota/gatequota/ctl/scope"
)

// ServerVariable names the environment variable with the program of a real store. Without
// it tests use one in memory, so that they need nothing but Go.
const ServerVariable = "GATEQUOTA_TEST_SERVER"

// Real tells whether stores are real.
func Real() bool { return os.Getenv(ServerVariable) != "" }

// A Store is a store of one test.
type Store struct {
	Addr string // host:port, or unix:///path
	*redis.Client
	memory *miniredis.Miniredis
}

// SetPassword makes the store ask for a password, of all who come from now on.
func (s *Store) SetPassword(t testing.TB, password string) {
	t.Helper()
	if s.memory != nil {
		s.memory.RequireAuth(password)
		return
	}
	if err := s.ConfigSet(context.Background(), "requirepass", password).Err(); err != nil {
		t.Fatal(err)
	}
}

// NewStore starts a store that ends with the test.
func NewStore(t testing.TB) *Store {
	t.Helper()
	network, address := "tcp", ""
	s := &Store{}
	if Real() {
		network, address = "unix", startServer(t)
		s.Addr = "unix://" + address
	} else {
		m := miniredis.RunT(t)
		address = m.Addr()
		s.memory = m
		s.Addr = address
	}
	s.Client = redis.NewClient(&redis.Options{Network: network, Addr: address, Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}})
	t.Cleanup(func() { _ = s.Close() })
	Until(t, "the store answers", func() bool { return s.Ping(context.Background()).Err() == nil })
	return s
}

// startServer starts a real server on a socket of its own and returns the path of that.
func startServer(t testing.TB) string {
	dir, err := os.MkdirTemp("", "gq") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	cmd := exec.Command(os.Getenv(ServerVariable), "--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--dir", dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	})
	return socket
}

// Until waits until something holds.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// NoStore returns an address where nobody answers.
func NoStore(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// A Gateway announces itself, reads what is set, and reports.
type Gateway struct {
	ID, Host, Scope string
	Middlewares     []scope.Middleware
	Keyed           bool
	Deaf            bool // it reports, and never obeys anything new
	Silent          bool // it announces itself alone
	Stubborn        bool // it reads what is set and keeps its own limits
	// Every is how long it waits between two readings; 0: 20 ms, a hundredth of what
	// a real one does.
	Every time.Duration

	mu      sync.Mutex
	obeyed  *control.State
	stopped chan struct{}
	ended   chan struct{}
}

// Start lets a gateway run until the test ends or Stop is called. It has reported once when
// Start returns.
func Start(t testing.TB, s *Store, g *Gateway) *Gateway {
	t.Helper()
	if g.Every == 0 {
		g.Every = 20 * time.Millisecond
	}
	g.obeyed = &control.State{}
	g.stopped, g.ended = make(chan struct{}), make(chan struct{})
	read := func() {
		if err := g.read(s); err != nil {
			select {
			case <-g.stopped:
			default:
				t.Errorf("gateway %s: %v", g.Host, err)
			}
		}
	}
	read()
	go func() {
		defer close(g.ended)
		for {
			select {
			case <-g.stopped:
				return
			case <-time.After(g.Every):
				read()
			}
		}
	}()
	t.Cleanup(g.Stop)
	return g
}

// Stop ends a gateway, whose announcement stays for a while.
func (g *Gateway) Stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.stopped:
	default:
		close(g.stopped)
		<-g.ended
	}
}

// read does what a gateway does every two seconds.
func (g *Gateway) read(s *Store) error {
	ctx, key := context.Background(), "rate:"+g.Scope
	now, err := s.Time(ctx).Result()
	if err != nil {
		return err
	}
	if err := s.ZAdd(ctx, key+":gateways", redis.Z{Score: float64(now.Unix()), Member: g.ID}).Err(); err != nil || g.Silent {
		return err
	}
	fields, err := s.HGetAll(ctx, key+":control").Result()
	if err != nil {
		return err
	}
	var pairs []string
	for field, value := range fields {
		pairs = append(pairs, field, value)
	}
	if !g.Deaf {
		g.obeyed, _ = control.Parse(pairs)
	}
	text, err := json.Marshal(g.report(now.Unix()))
	if err != nil {
		return err
	}
	return s.HSet(ctx, key+":reports", g.ID, text).Err()
}

// report says what a gateway obeys.
func (g *Gateway) report(now int64) *scope.Report {
	r := &scope.Report{Version: g.obeyed.Version, At: now, Host: g.Host, Software: "0.1.0", Keyed: g.Keyed,
		Enabled: !g.obeyed.Off, DryRun: g.obeyed.DryRun == "true"}
	for _, m := range g.Middlewares {
		changed := scope.Middleware{Name: m.Name}
		for _, rule := range m.Rules {
			if g.obeyed.DryRun != "" {
				rule.DryRun = g.obeyed.DryRun == "true"
			}
			var counts []scope.Count
			for _, c := range rule.Counts {
				if limit := g.obeyed.Limits[c.Name]; limit > 0 && !g.Stubborn {
					c.Limit = limit
				}
				if length := g.obeyed.Windows[c.Name]; length > 0 {
					c.Window = length
				}
				counts = append(counts, c)
			}
			rule.Counts = counts
			changed.Rules = append(changed.Rules, rule)
		}
		r.Middlewares = append(r.Middlewares, changed)
	}
	return r
}

// Key returns the key of a client's count: name is the count's with what stands for its
// algorithm, such as "", "login" or "login:sw".
func Key(scope, name, hash string, id int64) string {
	if name != "" {
		name = ":" + name
	}
	return fmt.Sprintf("rate:%s%s:{%s}:%s", scope, name, hash, strconv.FormatInt(id, 10))
}
