// Package lab starts the real parts that the plugin works with: Valkey, Redis,
// Traefik, an application, and the network faults between them. Each part is
// started for one test, listens on loopback alone, and is gone when the test
// ends. A part that is missing fails the test that asks for it.
package lab

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait for something that is going to happen. It is far
// longer than any of them takes, since a test that waits it out has failed.
const patience = 30 * time.Second

// Root returns the repository's root, where the plugin lies.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// program returns the path of an installed program. The environment variable
// may name another one.
func program(t testing.TB, name, variable string) string {
	t.Helper()
	if path := os.Getenv(variable); path != "" {
		return path
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is not installed; scripts/install-e2e.sh installs it, and %s may name another one: %v", name, variable, err)
	}
	return path
}

// process is one running program, whose output is collected.
type process struct {
	cmd    *exec.Cmd
	output *Log
	done   chan struct{}
}

// forks runs every start on one thread that never ends: a child is told to die
// with the thread that started it, so that none outlives a test binary that
// was killed.
var forks = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for start := range work {
			start()
		}
	}()
	return work
})

func startProcess(output *Log, dir string, env []string, path string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(path, args...), output: output, done: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = output, output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	forks() <- func() { started <- p.cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", filepath.Base(path), err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// exited tells whether the program has ended.
func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// end sends a signal and waits until the program is gone; one that does not
// obey is killed.
func (p *process) end(s syscall.Signal) {
	p.signal(s)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.signal(syscall.SIGKILL)
		<-p.done
	}
}

// Log collects what a program prints. It is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns everything printed so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Len returns how much was printed so far, in bytes: a mark to cut String at.
func (l *Log) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Len()
}

// Ports below the range that the kernel takes client ports from, so that no
// connection of a test occupies one between its choice and its use.
const (
	firstPort = 12000
	lastPort  = 31999
)

var nextPort atomic.Int64

func init() { nextPort.Store(int64(os.Getpid()) * 137) }

// FreePort returns a loopback port on which nothing listens, and which no other
// call in this process returns soon.
func FreePort(t testing.TB) int {
	t.Helper()
	for range lastPort - firstPort {
		port := firstPort + int(nextPort.Add(1))%(lastPort-firstPort+1)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

// Until polls a condition until it holds, and fails the test when it does not
// within a time far longer than it could need.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if !eventually(patience, holds) {
		t.Fatalf("waited %v in vain until %s", patience, what)
	}
}

func eventually(limit time.Duration, holds func() bool) bool {
	for start := time.Now(); time.Since(start) < limit; time.Sleep(10 * time.Millisecond) {
		if holds() {
			return true
		}
	}
	return holds()
}
