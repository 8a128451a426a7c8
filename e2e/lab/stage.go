package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// Outside runs f outside of a test, for commands that use the parts of this
// package: what a part would tell its test becomes the error, what it would log
// goes to stderr, and what f started is gone when Outside returns. When ctx ends
// before f does, everything is ended under its feet and the error is ctx's
// cause; f must not be relied on to have returned then.
func Outside(ctx context.Context, f func(t testing.TB)) error {
	s := &stage{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil {
				s.Errorf("panic: %v", r)
			}
		}()
		f(s)
	}()
	var cause error
	select {
	case <-done:
	case <-ctx.Done():
		cause = context.Cause(ctx)
	}
	s.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	if cause != nil {
		return cause
	}
	return errors.Join(s.errs...)
}

// stage is the testing.TB of Outside. What it does not define must not be called.
type stage struct {
	testing.TB

	mu       sync.Mutex
	errs     []error
	cleanups []func()
	ended    bool
}

func (s *stage) Helper() {}

func (s *stage) Name() string { return "outside" }

func (s *stage) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.errs) > 0
}

func (s *stage) Log(args ...any) { fmt.Fprintln(os.Stderr, args...) }

func (s *stage) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (s *stage) Error(args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, errors.New(strings.TrimSuffix(fmt.Sprintln(args...), "\n")))
}

func (s *stage) Errorf(format string, args ...any) { s.Error(fmt.Sprintf(format, args...)) }

func (s *stage) Fatal(args ...any) {
	s.Error(args...)
	runtime.Goexit()
}

func (s *stage) Fatalf(format string, args ...any) { s.Fatal(fmt.Sprintf(format, args...)) }

// Cleanup runs f when the stage ends, and at once when it has ended already.
func (s *stage) Cleanup(f func()) {
	s.mu.Lock()
	ended := s.ended
	if !ended {
		s.cleanups = append(s.cleanups, f)
	}
	s.mu.Unlock()
	if ended {
		f()
	}
}

func (s *stage) TempDir() string {
	dir, err := os.MkdirTemp("", "gatequota-")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// end runs the cleanups, the last one first.
func (s *stage) end() {
	for {
		s.mu.Lock()
		last := len(s.cleanups) - 1
		if last < 0 {
			s.ended = true
			s.mu.Unlock()
			return
		}
		f := s.cleanups[last]
		s.cleanups = s.cleanups[:last]
		s.mu.Unlock()
		f()
	}
}
