package lab

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// CPU returns the processor time that the gateway has used so far, to a
// hundredth of a second.
func (tr *Traefik) CPU() time.Duration {
	tr.t.Helper()
	return processorTime(tr.t, tr.proc.cmd.Process.Pid)
}

// CPU returns the processor time that the store has used since it was started
// last, to a hundredth of a second.
func (s *Store) CPU() time.Duration {
	s.t.Helper()
	return processorTime(s.t, s.proc.cmd.Process.Pid)
}

// processorTime reads what the kernel has counted for a process, in and out of
// the kernel.
func processorTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The second field is the program's name in parentheses, which may hold
	// anything; the 14th and 15th are the times, in ticks of which Linux has a
	// hundred a second on every platform that Go runs on.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		t.Fatalf("the kernel says of process %d: %q", pid, text)
	}
	ticks := 0
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatalf("the kernel says of process %d: %q", pid, text)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
