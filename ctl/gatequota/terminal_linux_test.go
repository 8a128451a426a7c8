package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gatequota/gatequota/ctl/internal/standin"
)

// asCommand makes this test binary be the command.
const asCommand = "GATEQUOTA_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// A terminal has a command in it.
type terminal struct {
	t           testing.TB
	ours, their *os.File
	cmd         *exec.Cmd
	before      unix.Termios

	mu     sync.Mutex
	output bytes.Buffer
}

// newTerminal starts the command in a terminal of its own.
func newTerminal(t *testing.T, width, height uint16, env []string, args ...string) *terminal {
	t.Helper()
	x := &terminal{t: t}
	var err error
	if x.ours, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.ours.Close() })
	if err := unix.IoctlSetPointerInt(int(x.ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(x.ours.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if x.their, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.their.Close() })
	x.resize(width, height)
	x.before = x.settings()
	x.cmd = exec.Command(os.Args[0], args...)
	x.cmd.Env = append([]string{asCommand + "=1", "TERM=xterm", "LANG=C.UTF-8"}, env...)
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = x.their, x.their, x.their
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.cmd.Process.Kill() })
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := x.ours.Read(buffer)
			if err != nil {
				return
			}
			x.mu.Lock()
			x.output.Write(buffer[:n])
			x.mu.Unlock()
		}
	}()
	return x
}

func (x *terminal) resize(width, height uint16) {
	if err := unix.IoctlSetWinsize(int(x.ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width}); err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) settings() unix.Termios {
	settings, err := unix.IoctlGetTermios(int(x.their.Fd()), unix.TCGETS)
	if err != nil {
		x.t.Fatal(err)
	}
	return *settings
}

func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.output.String()
}

// await waits until a text is on the terminal, behind so much of it, and returns all.
func (x *terminal) await(behind int, text string) string {
	x.t.Helper()
	standin.Until(x.t, fmt.Sprintf("%q is on the terminal", text), func() bool { return strings.Contains(x.text()[behind:], text) })
	return x.text()
}

func (x *terminal) send(text string) {
	if _, err := x.ours.WriteString(text); err != nil {
		x.t.Fatal(err)
	}
}

// ended waits for the end of the command and returns its exit status.
func (x *terminal) ended() int {
	_ = x.cmd.Wait()
	return x.cmd.ProcessState.ExitCode()
}

func TestTopInATerminal(t *testing.T) {
	d := newDesk(t)
	d.count(abc, 80)
	ends := map[string]func(x *terminal){
		"q":       func(x *terminal) { x.send("q") },
		"Ctrl-C":  func(x *terminal) { x.send("\x03") },
		"SIGTERM": func(x *terminal) { _ = x.cmd.Process.Signal(syscall.SIGTERM) },
		"SIGHUP":  func(x *terminal) { _ = x.cmd.Process.Signal(syscall.SIGHUP) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			x := newTerminal(t, 80, 24, []string{"GATEQUOTA_ENDPOINT=" + d.store.Addr}, "top", "--interval", "100ms")
			x.await(0, "ba7816bf8f01  (top level)")
			text := x.await(0, "q ends")
			if !strings.HasPrefix(text, enterScreen) || !strings.Contains(text, "██████\x1b[0m\x1b[2m░░") {
				t.Errorf("at first: %q", text)
			}
			if x.settings() == x.before {
				t.Error("the terminal waits for whole lines")
			}
			mark := len(text)
			x.resize(100, 10)
			x.await(mark, "\x1b[10;1H")
			if text := x.await(mark, "\x1b[2J")[mark:]; strings.Contains(text, "\x1b[11;1H") {
				t.Errorf("on 10 lines: %q", text)
			}
			mark = len(x.text())
			d.count(strings.Repeat("0", 64), 90)
			x.await(mark, "000000000000  (top level)")
			end(x)
			if code := x.ended(); code != 0 {
				t.Errorf("exit status %d", code)
			}
			if text := x.await(0, leaveScreen); !strings.HasSuffix(text, leaveScreen) {
				t.Errorf("at last: %q", text[len(text)-100:])
			}
			if x.settings() != x.before {
				t.Error("the terminal is not as it was")
			}
			for _, key := range d.store.Keys(ctx, "rate:api:{0*").Val() {
				d.store.Del(ctx, key)
			}
		})
	}
}

func TestTopInADumbTerminal(t *testing.T) {
	d := newDesk(t)
	d.count(abc, 80)
	x := newTerminal(t, 60, 24, []string{"GATEQUOTA_ENDPOINT=" + d.store.Addr, "TERM=dumb"}, "top")
	if code := x.ended(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	text := x.await(0, "ba7816bf8f01")
	if strings.Contains(text, "\x1b") {
		t.Errorf("it got %q", text)
	}
}

func TestTopSaysWhenTheStoreIsAway(t *testing.T) {
	d := newDesk(t)
	d.count(abc, 80)
	x := newTerminal(t, 80, 24, []string{"GATEQUOTA_ENDPOINT=" + d.store.Addr}, "top", "--interval", "100ms")
	x.await(0, "ba7816bf8f01")
	mark := len(x.text())
	d.stop()
	d.store.SetPassword(t, "s3cret")
	if standin.Real() { // who is connected stays so
		d.store.Do(ctx, "client", "kill", "type", "normal", "skipme", "yes")
	}
	x.await(mark, "FAILED: ")
	x.send("q")
	if code := x.ended(); code != 0 {
		t.Errorf("exit status %d", code)
	}
}

func TestConfirmationInATerminal(t *testing.T) {
	d := newDesk(t)
	x := newTerminal(t, 200, 24, []string{"GATEQUOTA_ENDPOINT=" + d.store.Addr}, "off")
	x.await(0, "[y/N] ")
	x.send("y\n")
	if code := x.ended(); code != 0 || d.fields()["enabled"] != "false" {
		t.Errorf("exit status %d, set is %v\n%s", code, d.fields(), x.text())
	}
	x.await(0, "obeyed by 2 gateways")
}

func TestValueFromATerminal(t *testing.T) {
	d := newDesk(t)
	x := newTerminal(t, 200, 24, []string{"GATEQUOTA_ENDPOINT=" + d.store.Addr}, "show", "-")
	x.await(0, "Value (it is not shown): ")
	standin.Until(t, "the terminal shows nothing", func() bool { return x.settings() != x.before })
	x.send("abc\n")
	if code := x.ended(); code != 0 {
		t.Errorf("exit status %d\n%s", code, x.text())
	}
	if text := x.await(0, "client "+abc); strings.Contains(text, "abc\r\n") {
		t.Errorf("the value is shown: %q", text)
	}
}
