package resp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
)

// lined returns so many calls of a script, with i keys more in each: k0, k1 and so on.
func lined(size int) []string {
	var calls []string
	for i := 0; i < size; i++ {
		call := CallHead(counting, 1+i%3, 1)
		for k := 0; k <= i%3; k++ {
			call += Bulk("k" + strconv.Itoa(i))
		}
		calls = append(calls, call+Bulk("1"))
	}
	return calls
}

// linesOutcome is what EvalLines returns, with the lines of the calls that are answered.
type linesOutcome struct {
	answered int
	lines    []string
	refusals []string
	err      error // the sentinel that is wrapped
	ok       bool
}

func linesOf(c *Conn, size int) linesOutcome {
	lines := make([]string, size)
	answered, refusals, err := EvalLines(c, soon(), each(counting), lined(size), lines)
	return linesOutcome{answered, lines[:answered], refusals, sentinelOf(err), c.Usable}
}

func (got linesOutcome) differs(want linesOutcome) bool {
	if want.lines == nil {
		want.lines = []string{}
	}
	return !reflect.DeepEqual(got, want)
}

func TestCallHeadToTheByte(t *testing.T) {
	s := NewScript(answer42)
	for _, test := range []struct {
		keys, args int
		want       string
	}{
		{1, 0, "*4\r\n$7\r\nEVALSHA\r\n$40\r\n" + digest42 + "\r\n$1\r\n1"},
		{2, 12, "*17\r\n$7\r\nEVALSHA\r\n$40\r\n" + digest42 + "\r\n$1\r\n2"},
		{16, 82, "*101\r\n$7\r\nEVALSHA\r\n$40\r\n" + digest42 + "\r\n$2\r\n16"},
	} {
		if got := CallHead(s, test.keys, test.args); got != test.want {
			t.Errorf("%d keys, %d arguments: %q, want %q", test.keys, test.args, got, test.want)
		}
	}
}

func TestEvalLinesToTheByte(t *testing.T) {
	s := NewScript(answer42)
	long := strings.Repeat("k", 900000)
	for _, test := range []struct {
		calls []string
		want  string // without the name of the script
	}{
		{[]string{CallHead(s, 1, 0) + Bulk("k")}, "*4 1\r\n$1\r\nk\r\n"},
		{[]string{CallHead(s, 1, 1) + Bulk("k\r\né") + Bulk("")}, "*5 1\r\n$5\r\nk\r\né\r\n$0\r\n\r\n"},
		{[]string{CallHead(s, 2, 1) + Bulk("a") + Bulk(long) + Bulk("1")}, "*6 2\r\n$1\r\na\r\n$900000\r\n" + long + "\r\n$1\r\n1\r\n"},
		{[]string{CallHead(s, 1, 1) + Bulk("a") + Bulk("1"), CallHead(s, 2, 0) + Bulk("b") + Bulk("c")},
			"*5 1\r\n$1\r\na\r\n$1\r\n1\r\n*5 2\r\n$1\r\nb\r\n$1\r\nc\r\n"},
	} {
		named := func(name string) string {
			want := test.want
			for _, head := range []string{"*4", "*5", "*6"} {
				for keys := 1; keys <= 2; keys++ {
					n := strconv.Itoa(keys)
					want = strings.ReplaceAll(want, head+" "+n+"\r\n", head+"\r\n"+name+"\r\n$1\r\n"+n+"\r\n")
				}
			}
			return want
		}
		byDigest, byBody := named("$7\r\nEVALSHA\r\n$40\r\n"+digest42), named("$4\r\nEVAL\r\n$9\r\nreturn 42")
		size := len(test.calls)
		c, w := connInSteps(strings.Repeat("+1 2\r\n", size))
		lines := make([]string, size)
		answered, refusals, err := EvalLines(c, soon(), each(s), test.calls, lines)
		if answered != size || lines[0] != "1 2" || lines[size-1] != "1 2" || refusals != nil || err != nil || !c.Usable {
			t.Errorf("%d answered, %q, %q, %v", answered, lines, refusals, err)
		}
		if got := w.out.String(); got != byDigest || w.writes != 1 || w.sets != 1 {
			t.Errorf("sent %.200q, want %.200q; %d writes, %d deadlines", got, byDigest, w.writes, w.sets)
		}
		// And once more with the body.
		c, w = connInSteps(strings.Repeat(noscript, size), strings.Repeat("+3\r\n", size))
		answered, refusals, err = EvalLines(c, soon(), each(s), test.calls, lines)
		if answered != size || lines[0] != "3" || lines[size-1] != "3" || refusals != nil || err != nil || !c.Usable {
			t.Errorf("with the body: %d answered, %q, %q, %v", answered, lines, refusals, err)
		}
		if got, want := w.out.String(), byDigest+byBody; got != want || w.writes != 2 {
			t.Errorf("sent %.300q, want %.300q; %d writes", got, want, w.writes)
		}
	}
}

// lineBatches has what a server may answer to a batch, and what becomes of it.
var lineBatches = []struct {
	name  string
	size  int
	parts []string
	want  linesOutcome
}{
	{"one line", 1, []string{"+7\r\n"}, linesOutcome{1, []string{"7"}, nil, nil, true}},
	{"blanks and signs are text", 2, []string{"+-1 0  9\r\n+ \r\n"}, linesOutcome{2, []string{"-1 0  9", " "}, nil, nil, true}},
	{"an empty line", 1, []string{"+\r\n"}, linesOutcome{1, []string{""}, nil, nil, true}},
	{"the longest line", 2, []string{"+" + strings.Repeat("1", maxLine-3) + "\r\n+2\r\n"}, linesOutcome{2, []string{strings.Repeat("1", maxLine-3), "2"}, nil, nil, true}},
	{"an error line", 1, []string{"-OOM no memory\r\n"}, linesOutcome{1, []string{""}, []string{"OOM no memory"}, nil, true}},
	{"error lines between lines", 4, []string{"+1\r\n-NOPERM no\r\n+3\r\n-ERR x\r\n"}, linesOutcome{4, []string{"1", "", "3", ""}, []string{"", "NOPERM no", "", "ERR x"}, nil, true}},
	{"READONLY among others", 3, []string{"+1\r\n-READONLY no\r\n+3\r\n"}, linesOutcome{3, []string{"1", "", "3"}, []string{"", "READONLY no", ""}, nil, false}},
	{"LOADING alone", 1, []string{"-LOADING no\r\n"}, linesOutcome{1, []string{""}, []string{"LOADING no"}, nil, false}},
	{"MASTERDOWN last", 2, []string{"+1\r\n-MASTERDOWN no\r\n"}, linesOutcome{2, []string{"1", ""}, []string{"", "MASTERDOWN no"}, nil, false}},
	{"what looks like an error is text", 1, []string{"+READONLY no\r\n"}, linesOutcome{1, []string{"READONLY no"}, nil, nil, true}},

	{"one answer too many", 2, []string{"+1\r\n+2\r\n+3\r\n"}, linesOutcome{2, []string{"1", "2"}, nil, nil, false}},
	{"half an answer too many", 2, []string{"+1\r\n+2\r\n+"}, linesOutcome{2, []string{"1", "2"}, nil, nil, false}},
	{"an answer too many behind an error line", 1, []string{"-ERR x\r\n+1\r\n"}, linesOutcome{1, []string{""}, []string{"ERR x"}, nil, false}},
	{"one answer too few", 3, []string{"+1\r\n+2\r\n"}, linesOutcome{2, []string{"1", "2"}, nil, ErrLost, false}},
	{"one answer too few behind an error line", 3, []string{"+1\r\n-ERR x\r\n"}, linesOutcome{2, []string{"1", ""}, []string{"", "ERR x", ""}, ErrLost, false}},
	{"none", 3, nil, linesOutcome{0, nil, nil, ErrLost, false}},

	{"an integer", 3, []string{"+1\r\n:2\r\n+3\r\n"}, linesOutcome{3, []string{"1", "2", "3"}, nil, nil, true}},
	{"a bulk string", 2, []string{"$1\r\n1\r\n+2\r\n"}, linesOutcome{0, nil, nil, ErrProtocol, false}},
	{"null", 2, []string{"+1\r\n$-1\r\n"}, linesOutcome{1, []string{"1"}, nil, ErrProtocol, false}},
	{"an array", 2, []string{"+1\r\n*1\r\n+2\r\n"}, linesOutcome{1, []string{"1"}, nil, ErrProtocol, false}},
	{"another type behind an error line", 3, []string{"-ERR x\r\n+2\r\n$1\r\n3\r\n"}, linesOutcome{2, []string{"", "2"}, []string{"ERR x", "", ""}, ErrProtocol, false}},
	{"a line feed alone", 2, []string{"+12\n+5\r\n"}, linesOutcome{0, nil, nil, ErrProtocol, false}},
	{"a carriage return too many", 2, []string{"+1\r\r\n+5\r\n"}, linesOutcome{0, nil, nil, ErrProtocol, false}},
	{"an empty error line", 1, []string{"-\r\n"}, linesOutcome{0, nil, nil, ErrProtocol, false}},
	{"a line that is too long", 2, []string{"+1\r\n+" + strings.Repeat("1", maxLine) + "\r\n"}, linesOutcome{1, []string{"1"}, nil, ErrProtocol, false}},
	{"HTTP", 1, []string{"HTTP/1.1 400 Bad Request\r\n"}, linesOutcome{0, nil, nil, ErrProtocol, false}},

	{"the script is unknown", 1, []string{noscript, "+7\r\n"}, linesOutcome{1, []string{"7"}, nil, nil, true}},
	{"unknown to all", 3, []string{noscript + noscript + noscript, "+1\r\n+2\r\n+3\r\n"}, linesOutcome{3, []string{"1", "2", "3"}, nil, nil, true}},
	{"unknown to the last", 3, []string{"+1\r\n" + noscript + noscript, "+2\r\n+3\r\n"}, linesOutcome{3, []string{"1", "2", "3"}, nil, nil, true}},
	{"unknown to the first", 3, []string{noscript + "+2\r\n+3\r\n", "+1\r\n"}, linesOutcome{3, []string{"1", "2", "3"}, nil, nil, true}},
	{"unknown to every other, and errors", 5, []string{noscript + "+2\r\n" + noscript + "-ERR x\r\n" + noscript, "+1\r\n-NOPERM no eval\r\n+5\r\n"},
		linesOutcome{5, []string{"1", "2", "", "", "5"}, []string{"", "", "NOPERM no eval", "ERR x", ""}, nil, true}},
	{"unknown again", 2, []string{noscript + "+2\r\n", noscript}, linesOutcome{2, []string{"", "2"}, []string{unknown, ""}, nil, true}},
	{"READONLY after the body", 2, []string{noscript + "+2\r\n", "-READONLY no\r\n"}, linesOutcome{2, []string{"", "2"}, []string{"READONLY no", ""}, nil, false}},
	{"an answer too many after the body", 2, []string{noscript + "+2\r\n", "+1\r\n+9\r\n"}, linesOutcome{2, []string{"1", "2"}, nil, nil, false}},
	{"lost after the body", 3, []string{"+1\r\n" + noscript + "+3\r\n"}, linesOutcome{1, []string{"1"}, nil, ErrLost, false}},
	{"lost half-way after the body", 4, []string{noscript + "+2\r\n" + noscript + noscript, "+1\r\n"}, linesOutcome{2, []string{"1", "2"}, nil, ErrLost, false}},
	{"lost half-way after the body, and an error", 4, []string{noscript + "-ERR x\r\n" + noscript + noscript, "+1\r\n"},
		linesOutcome{2, []string{"1", ""}, []string{"", "ERR x", "", ""}, ErrLost, false}},
	{"another type after the body", 2, []string{noscript + noscript, "+1\r\n$1\r\n2\r\n"}, linesOutcome{1, []string{"1"}, nil, ErrProtocol, false}},
	{"unknown, then lost", 3, []string{noscript + "+2\r\n"}, linesOutcome{2, []string{"", "2"}, []string{unknown, "", ""}, ErrLost, false}},

	// Where it is not known whose answers will follow, nothing is sent.
	{"unknown, and an answer too many", 1, []string{noscript + "+1\r\n"}, linesOutcome{1, []string{""}, []string{unknown}, nil, false}},
	{"unknown, and READONLY", 2, []string{noscript + "-READONLY no\r\n"}, linesOutcome{2, []string{"", ""}, []string{unknown, "READONLY no"}, nil, false}},
	// Nothing else makes it send again.
	{"words like NOSCRIPT", 4, []string{"-NOSCRIPTS\r\n-noscript\r\n-ERR NOSCRIPT\r\n-BUSY\r\n"},
		linesOutcome{4, []string{"", "", "", ""}, []string{"NOSCRIPTS", "noscript", "ERR NOSCRIPT", "BUSY"}, nil, true}},
	{"NOSCRIPT as an answer", 1, []string{"+NOSCRIPT\r\n"}, linesOutcome{1, []string{"NOSCRIPT"}, nil, nil, true}},
	{"half of NOSCRIPT", 1, []string{"-NOSCRIPT"}, linesOutcome{0, nil, nil, ErrLost, false}},
}

func TestEvalLinesAnswers(t *testing.T) {
	for _, test := range lineBatches {
		c, w := connInSteps(test.parts...)
		if got := linesOf(c, test.size); got.differs(test.want) {
			t.Errorf("%s: got %.300q, want %.300q", test.name, fmt.Sprint(got), fmt.Sprint(test.want))
		}
		sent := strings.Count(w.out.String(), "\r\nEVAL\r\n")
		expected := 0
		if len(test.parts) > 1 || strings.HasPrefix(test.name, "lost") {
			expected = strings.Count(test.parts[0], noscript)
		}
		if test.name != "unknown, then lost" && sent != expected || w.writes > 2 {
			t.Errorf("%s: the body was sent %d times in %d writes, want %d", test.name, sent, w.writes, expected)
		}
		if c.Usable {
			continue
		}
		// What is used up sends nothing more.
		writes := w.writes
		if got, want := linesOf(c, test.size), (linesOutcome{err: ErrLost}); got.differs(want) || w.writes != writes {
			t.Errorf("%s: afterwards %+v and %d writes more", test.name, got, w.writes-writes)
		}
	}
}

// However the answers are cut into pieces, the outcome is the same.
func TestEvalLinesInPieces(t *testing.T) {
	for _, test := range lineBatches {
		if len(test.parts) == 0 || len(test.parts[0]) > 1000 || !test.want.ok && test.want.err == nil {
			continue
		}
		first := test.parts[0]
		for cut := 1; cut < len(first); cut++ {
			c, _ := connInSteps(append([]string{first[:cut], first[cut:]}, test.parts[1:]...)...)
			if got := linesOf(c, test.size); got.differs(test.want) {
				t.Errorf("%s, cut at %d: got %+v, want %+v", test.name, cut, got, test.want)
			}
		}
		c, _ := connOn("")
		c.in = bufio.NewReaderSize(iotest.OneByteReader(&stepwise{parts: strings.Split(strings.Join(test.parts, ""), "")}), maxLine)
		if got := linesOf(c, test.size); got.differs(test.want) {
			t.Errorf("%s, byte by byte: got %+v, want %+v", test.name, got, test.want)
		}
	}
}

// Answers that end anywhere, or do not come in time, give as many lines as were whole.
func TestEvalLinesTruncated(t *testing.T) {
	const answers = "+1 2\r\n+\r\n-ERR x\r\n+333\r\n+4\r\n"
	const size = 5
	all := []string{"1 2", "", "", "333", "4"}
	for end := 0; end < len(answers); end++ {
		for err, sentinel := range map[error]error{io.EOF: ErrLost, io.ErrUnexpectedEOF: ErrLost, os.ErrDeadlineExceeded: ErrTimeout} {
			whole := strings.Count(answers[:end], "\n")
			want := linesOutcome{answered: whole, lines: all[:whole], err: sentinel}
			if whole > 2 {
				want.refusals = []string{"", "", "ERR x", "", ""}
			}
			c, w := connOn("")
			w.in = &stepwise{parts: notEmpty(answers[:end]), end: err}
			if got := linesOf(c, size); got.differs(want) {
				t.Errorf("%q and %v: got %+v, want %+v", answers[:end], err, got, want)
			}
			// Behind the body.
			c, w = connOn("")
			w.in = &stepwise{parts: notEmpty(strings.Repeat(noscript, size), answers[:end]), end: err}
			if got := linesOf(c, size); got.differs(want) {
				t.Errorf("%q and %v after the body: got %+v, want %+v", answers[:end], err, got, want)
			}
		}
	}
}

func TestEvalLinesLeavesTheNextByte(t *testing.T) {
	for _, size := range []int{1, 2, 9, 100} {
		for _, line := range []string{"+1\r\n", "+\r\n", "+1 -1 22\r\n", "-ERR x\r\n"} {
			c, _ := connOn(strings.Repeat(line, size) + "N")
			if got := linesOf(c, size); got.answered != size || got.err != nil || got.ok {
				t.Errorf("%d times %q: %+v", size, line, got)
			}
			if next, err := c.in.ReadByte(); err != nil || next != 'N' {
				t.Errorf("%d times %q: the next byte is %q, %v", size, line, next, err)
			}
		}
	}
}

// What no reply may be is none in a batch, wherever it stands in it.
func TestEvalLinesMalformed(t *testing.T) {
	for _, wire := range malformed {
		if len(wire) > 2*maxLine {
			continue
		}
		for _, before := range []int{0, 1, 9} {
			c, _ := connOn(strings.Repeat("+5\r\n", before) + wire + strings.Repeat("+5\r\n", 9))
			if got := linesOf(c, before+9); got.answered != before || got.err != ErrProtocol || got.ok || got.refusals != nil {
				t.Errorf("%.60q behind %d: got %+v", wire, before, got)
			}
		}
		c, _ := connInSteps(noscript, wire)
		if got := linesOf(c, 1); got.differs(linesOutcome{err: ErrProtocol}) {
			t.Errorf("%.60q after the body: got %+v", wire, got)
		}
	}
}

// What a server says instead of an answer is not shown: it may repeat the arguments of a
// command, and errors are logged.
func TestEvalLinesErrorsShowNothingOfTheAnswer(t *testing.T) {
	for _, line := range []string{"+hunter2\n", "+hun\rter2\r\n", ":hunter2\r\n", "$hunter2\r\n", "*hunter2\r\n", "hunter2\r\n", "-hunter2\n"} {
		for _, parts := range [][]string{{line}, {noscript, line}} {
			c, _ := connInSteps(parts...)
			_, _, err := EvalLines(c, soon(), each(counting), lined(1), make([]string, 1))
			demand(t, err, ErrProtocol)
			if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, "ter2") {
				t.Errorf("%q: the error shows it: %s", parts, text)
			}
		}
	}
}

// A write that fails ends the batch, and the calls whose answer was awaited from it have
// none.
func TestEvalLinesThatCannotBeWritten(t *testing.T) {
	for fails, want := range map[error]error{os.ErrDeadlineExceeded: ErrTimeout, io.ErrClosedPipe: ErrLost} {
		c, w := connInSteps("+1\r\n")
		w.writes, w.most, w.fails = 1, 1, fails
		if got := linesOf(c, 1); got.differs(linesOutcome{err: want}) || w.writes != 2 {
			t.Errorf("%v: got %+v after %d writes", fails, got, w.writes-1)
		}
		c, w = connInSteps("+1\r\n" + noscript + "+3\r\n-ERR x\r\n" + noscript)
		w.most, w.fails = 1, fails
		expected := linesOutcome{answered: 1, lines: []string{"1"}, err: want}
		if got := linesOf(c, 5); got.differs(expected) || w.writes != 2 {
			t.Errorf("%v: got %+v after %d writes, want %+v", fails, got, w.writes, expected)
		}
	}
}

func TestEvalLinesThatMakesNoSense(t *testing.T) {
	for name, lines := range map[string][]string{"too few lines": make([]string, 2), "no lines": nil} {
		c, w := connOn("+1\r\n+1\r\n+1\r\n")
		answered, refusals, err := EvalLines(c, soon(), each(counting), lined(3), lines)
		if answered != 0 || refusals != nil || err == nil || sentinelOf(err) != err || w.writes != 0 || !c.Usable {
			t.Errorf("%s: %d answered, %q, %v, %d writes, usable %v", name, answered, refusals, err, w.writes, c.Usable)
		}
	}
	c, w := connOn("")
	if answered, refusals, err := EvalLines(c, soon(), each(counting), nil, nil); answered != 0 || refusals != nil || err != nil || w.writes != 0 || !c.Usable {
		t.Errorf("no calls: %d answered, %q, %v, %d writes, usable %v", answered, refusals, err, w.writes, c.Usable)
	}
	// There may be room for more.
	c, _ = connOn("+1\r\n")
	lines := []string{"", "untouched"}
	if answered, _, err := EvalLines(c, soon(), each(counting), lined(1), lines); answered != 1 || err != nil || lines[0] != "1" || lines[1] != "untouched" {
		t.Errorf("one call and room for two: %d answered, %q, %v", answered, lines, err)
	}
}

// lining is a fake server whose script answers with a line: how often each of its keys was
// named.
func lining(t *testing.T) *fakevalkey.Server {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	counts := map[string]int{}
	s.Register(counting.Body, func(_ *fakevalkey.Server, args []string) string {
		counts[args[0]]++
		return "+" + args[0] + " " + strconv.Itoa(counts[args[0]]) + " " + strconv.Itoa(len(args)) + "\r\n"
	})
	return s
}

// A server that loses its scripts at any time counts each call once, over one connection
// and in single bytes too.
func TestEvalLinesAfterTheScriptCacheWasLost(t *testing.T) {
	for _, fragment := range []bool{false, true} {
		s := lining(t)
		s.Usually(fakevalkey.Behaviour{Fragment: fragment, Before: func(command []string) {
			if command[0] == "EVALSHA" && command[3] == "k5" {
				s.FlushScripts()
			}
		}})
		l := linkTo(t, optionsFor(s), nil)
		for round := 1; round <= 5; round++ {
			lines := make([]string, 12)
			c := connect(t, l)
			answered, refusals, err := EvalLines(c, soon(), each(counting), lined(12), lines)
			if answered != 12 || refusals != nil || err != nil || !c.Usable {
				t.Fatalf("round %d: %d answered, %q, %v", round, answered, refusals, err)
			}
			for i, line := range lines {
				if want := fmt.Sprintf("k%d %d %d", i, round, 2+i%3); line != want {
					t.Errorf("round %d, call %d: %q, want %q", round, i, line, want)
				}
			}
		}
		if s.Accepted() != 1 {
			t.Errorf("%d connections, want 1", s.Accepted())
		}
	}
}

func TestEvalLinesTimeoutOnAServerThatStops(t *testing.T) {
	gate := make(chan struct{})
	s := lining(t)
	s.Usually(fakevalkey.Behaviour{Before: func(command []string) {
		if len(command) > 3 && command[3] == "k5" {
			<-gate
		}
	}})
	c := connect(t, linkTo(t, optionsFor(s), nil))
	one := make([]string, 1)
	if _, _, err := EvalLines(c, soon(), each(counting), lined(1), one); err != nil {
		t.Fatal(err)
	}
	lines := make([]string, 12)
	answered, refusals, err := EvalLines(c, time.Now().Add(50*time.Millisecond), each(counting), lined(12), lines)
	close(gate)
	demand(t, err, ErrTimeout)
	if answered > 5 || refusals != nil || c.Usable {
		t.Errorf("%d answered, %q, usable %v", answered, refusals, c.Usable)
	}
}

// plainLines is what EvalLines makes of the answers to its first write, done the plain way.
func plainLines(wire string, size int) (answered int, lines, refusals []string, protocol bool) {
	r := reader(wire)
	refusals = make([]string, size)
	for answered < size {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return answered, lines, refusals, errors.Is(err, bufio.ErrBufferFull)
		}
		reply, err := readReply(reader(string(line)))
		if err != nil || reply.Kind != '+' && reply.Kind != '-' && reply.Kind != ':' {
			return answered, lines, refusals, true
		}
		text := reply.Text
		if reply.Kind == ':' {
			text = strings.TrimSuffix(string(line[1:]), "\r\n")
		}
		if reply.Kind == '-' {
			refusals[answered] = text
			text = ""
		}
		lines = append(lines, text)
		answered++
	}
	return answered, lines, refusals, false
}

// FuzzEvalLines compares EvalLines with a loop over single replies, for any bytes that a
// server may send, cut in any way.
func FuzzEvalLines(f *testing.F) {
	for _, test := range lineBatches {
		f.Add([]byte(strings.Join(test.parts, "")), uint8(test.size), int64(1))
	}
	for _, wire := range malformed {
		if len(wire) < 2*maxLine {
			f.Add([]byte("+1\r\n"+wire), uint8(3), int64(2))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, number uint8, seed int64) {
		wire, size := string(data), int(number)
		random := rand.New(rand.NewSource(seed))
		var parts []string
		for rest := wire; rest != ""; {
			n := 1 + random.Intn(len(rest))
			parts = append(parts, rest[:n])
			rest = rest[n:]
		}
		c, w := connInSteps(parts...)
		got := linesOf(c, size)
		answered, lines, refusals, protocol := plainLines(wire, size)
		if strings.Contains(strings.Join(refusals, "\n"), "NOSCRIPT") {
			// What it may send once more is another matter: it must end and keep to its
			// bounds.
			if w.writes > 2 || got.answered > size || got.ok && c.in.Buffered() > 0 {
				t.Fatalf("%q: %d writes, %+v", wire, w.writes, got)
			}
			return
		}
		if got.refusals == nil {
			got.refusals = make([]string, size)
		}
		want := linesOutcome{answered: answered, lines: lines, refusals: refusals, ok: got.ok}
		if protocol {
			want.err = ErrProtocol
		} else if answered < size {
			want.err = ErrLost
		}
		if got.differs(want) {
			t.Fatalf("%q, %d calls: got %+v, want %+v", wire, size, got, want)
		}
		if got.ok && (want.err != nil || c.in.Buffered() > 0) {
			t.Fatalf("%q, %d calls: the connection is used again", wire, size)
		}
		if size > 0 && w.writes != 1 {
			t.Fatalf("%d writes", w.writes)
		}
	})
}

// each is a script for each of many calls.
func each(s *Script) []*Script {
	scripts := make([]*Script, 256)
	for i := range scripts {
		scripts[i] = s
	}
	return scripts
}
