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

const answer42 = "return 42"

// digest42 is what `printf 'return 42' | sha1sum` prints.
const digest42 = "1fa00e76656cc152ad327c13fe365858fd7be306"

// stepwise gives one part for each Read, so that a reader that asks for more than
// one answer at a time still gets one.
type stepwise struct {
	parts []string
	end   error // what comes then; nil: io.EOF
}

func (s *stepwise) Read(b []byte) (int, error) {
	if len(s.parts) == 0 && s.end == nil {
		return 0, io.EOF
	}
	if len(s.parts) == 0 {
		return 0, s.end
	}
	n := copy(b, s.parts[0])
	s.parts[0] = s.parts[0][n:]
	if s.parts[0] == "" {
		s.parts = s.parts[1:]
	}
	return n, nil
}

// counting is a script that the fake server takes for one that counts.
var counting = NewScript("counts")

// call encodes a call of the counting script.
func call(key string, n int) string {
	return Bulk(key) + Bulk(strconv.Itoa(n)) + Bulk("60")
}

// keyed returns so many calls without arguments: k0, k1 and so on.
func keyed(size int) []string {
	var calls []string
	for i := 0; i < size; i++ {
		calls = append(calls, Bulk("k"+strconv.Itoa(i)))
	}
	return calls
}

// connInSteps returns a connection whose server answers in such parts, one for each
// Read.
func connInSteps(parts ...string) (*Conn, *wire) {
	c, w := connOn("")
	w.in = &stepwise{parts: append([]string(nil), parts...)}
	return c, w
}

// outcome is what EvalAll returns, with the counts of the calls that are answered,
// and whether the connection may be used again.
type outcome struct {
	answered int
	counts   []int64
	refusals []string
	err      error // the sentinel that is wrapped
	ok       bool
}

// outcomeOf calls a script without arguments size times.
func outcomeOf(c *Conn, size int) outcome {
	counts := make([]int64, size)
	answered, refusals, err := EvalAll(c, soon(), counting, 0, keyed(size), counts)
	return outcome{answered, counts[:answered], refusals, sentinelOf(err), c.Usable}
}

// outcomeOfOne makes one call, by Eval. What Eval returns next to an error is shown,
// for it must be nothing.
func outcomeOfOne(c *Conn, _ int) outcome {
	n, refusal, err := Eval(c, soon(), counting, 0, keyed(1)[0])
	got := outcome{0, []int64{}, nil, sentinelOf(err), c.Usable}
	if err == nil {
		got.answered = 1
	}
	if err == nil || n != 0 {
		got.counts = []int64{n}
	}
	if refusal != "" {
		got.refusals = []string{refusal}
	}
	return got
}

// waysFor has the ways to make so many calls, by name: what holds for the one holds
// for the other.
func waysFor(size int) map[string]func(c *Conn, size int) outcome {
	ways := map[string]func(c *Conn, size int) outcome{"EvalAll": outcomeOf}
	if size == 1 {
		ways["Eval"] = outcomeOfOne
	}
	return ways
}

func sentinelOf(err error) error {
	for _, sentinel := range []error{ErrTimeout, ErrLost, ErrProtocol} {
		if errors.Is(err, sentinel) {
			return sentinel
		}
	}
	return err
}

func (got outcome) differs(want outcome) bool {
	if want.counts == nil {
		want.counts = []int64{}
	}
	return !reflect.DeepEqual(got, want)
}

const (
	noscript = "-NOSCRIPT No matching script. Please use EVAL.\r\n"
	unknown  = "NOSCRIPT No matching script. Please use EVAL."
)

func TestBulk(t *testing.T) {
	for _, text := range []string{"", "k", "k\r\né", strings.Repeat("k", 255), strings.Repeat("k", 256), strings.Repeat("k", 70000)} {
		if got, want := Bulk(text), fmt.Sprintf("\r\n$%d\r\n%s", len(text), text); got != want {
			t.Errorf("Bulk(%.20q) = %.40q, want %.40q", text, got, want)
		}
	}
}

func TestEvalToTheByte(t *testing.T) {
	s := NewScript(answer42)
	if s.SHA != digest42 || s.Body != answer42 {
		t.Errorf("digest %s of %q", s.SHA, s.Body)
	}
	begin := func(n int) string {
		return "*" + strconv.Itoa(n) + "\r\n$7\r\nEVALSHA\r\n$40\r\n" + digest42 + "\r\n$1\r\n1\r\n"
	}
	long := strings.Repeat("k", 900000)
	for _, test := range []struct {
		args  int
		calls []string
		want  string
	}{
		{0, []string{Bulk("k")}, begin(4) + "$1\r\nk\r\n"},
		{0, []string{Bulk("")}, begin(4) + "$0\r\n\r\n"},
		{1, []string{Bulk("k\r\né") + Bulk("")}, begin(5) + "$5\r\nk\r\né\r\n$0\r\n\r\n"},
		{1, []string{Bulk(long) + Bulk("1")}, begin(5) + "$900000\r\n" + long + "\r\n$1\r\n1\r\n"},
		{2, []string{Bulk("key") + Bulk("1") + Bulk("60"), Bulk("other") + Bulk("22") + Bulk("7")},
			begin(6) + "$3\r\nkey\r\n$1\r\n1\r\n$2\r\n60\r\n" + begin(6) + "$5\r\nother\r\n$2\r\n22\r\n$1\r\n7\r\n"},
		{maxArgs, []string{Bulk("k") + strings.Repeat(Bulk("a"), maxArgs)}, begin(4+maxArgs) + "$1\r\nk\r\n" + strings.Repeat("$1\r\na\r\n", maxArgs)},
	} {
		c, w := connOn(strings.Repeat(":42\r\n", len(test.calls)))
		counts := make([]int64, len(test.calls))
		answered, refusals, err := EvalAll(c, soon(), s, test.args, test.calls, counts)
		if answered != len(test.calls) || counts[0] != 42 || refusals != nil || err != nil || !c.Usable {
			t.Errorf("%d answered, %v, %q, %v", answered, counts, refusals, err)
		}
		if got := w.out.String(); got != test.want {
			t.Errorf("sent %.200q, want %.200q", got, test.want)
		}
		if w.writes != 1 || w.sets != 1 {
			t.Errorf("%d writes, %d deadlines", w.writes, w.sets)
		}
		if len(test.calls) > 1 {
			continue
		}
		c, w = connOn(":42\r\n")
		n, refusal, err := Eval(c, soon(), s, test.args, test.calls[0])
		if n != 42 || refusal != "" || err != nil || !c.Usable {
			t.Errorf("Eval: got %d, %q, %v", n, refusal, err)
		}
		if got := w.out.String(); got != test.want || w.writes != 1 || w.sets != 1 {
			t.Errorf("Eval: sent %.200q, want %.200q; %d writes, %d deadlines", got, test.want, w.writes, w.sets)
		}
	}
}

func TestEvalAllAnswersInOrder(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	l := linkTo(t, optionsFor(s), nil)
	for round := 1; round <= 3; round++ {
		for _, size := range []int{1, 2, 6, 7, 8, 9, 32, 256} {
			var calls []string
			counts := make([]int64, size+1)
			counts[size] = -5
			for i := 0; i < size; i++ {
				calls = append(calls, call(strconv.Itoa(size)+"-"+strconv.Itoa(i), i+1))
			}
			c := connect(t, l)
			answered, refusals, err := EvalAll(c, soon(), counting, 2, calls, counts)
			if answered != size || refusals != nil || err != nil || !c.Usable {
				t.Fatalf("%d calls: %d answered, %q, %v, usable %v", size, answered, refusals, err, c.Usable)
			}
			for i := range calls {
				if want := int64(round * (i + 1)); counts[i] != want {
					t.Errorf("call %d of %d: got %d, want %d", i, size, counts[i], want)
				}
			}
			if counts[size] != -5 {
				t.Error("wrote behind the last count")
			}
		}
	}
	if s.Accepted() != 1 {
		t.Errorf("%d connections", s.Accepted())
	}
}

// batches has what a server may answer to a batch, and what becomes of it.
var batches = []struct {
	name  string
	size  int
	parts []string
	want  outcome
}{
	{"one integer", 1, []string{":7\r\n"}, outcome{1, []int64{7}, nil, nil, true}},
	{"the limits of an integer", 3, []string{":9223372036854775807\r\n:-9223372036854775808\r\n:-1\r\n"},
		outcome{3, []int64{9223372036854775807, -9223372036854775808, -1}, nil, nil, true}},
	{"an error line", 1, []string{"-OOM no memory\r\n"}, outcome{1, []int64{0}, []string{"OOM no memory"}, nil, true}},
	{"error lines between integers", 4, []string{":1\r\n-NOPERM no\r\n:3\r\n-ERR x\r\n"}, outcome{4, []int64{1, 0, 3, 0}, []string{"", "NOPERM no", "", "ERR x"}, nil, true}},
	{"an error line first", 2, []string{"-ERR x\r\n:2\r\n"}, outcome{2, []int64{0, 2}, []string{"ERR x", ""}, nil, true}},
	{"an error line late", 12, []string{strings.Repeat(":5\r\n", 10) + "-ERR x\r\n:6\r\n"},
		outcome{12, []int64{5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 0, 6}, []string{"", "", "", "", "", "", "", "", "", "", "ERR x", ""}, nil, true}},
	{"READONLY among others", 3, []string{":1\r\n-READONLY no\r\n:3\r\n"}, outcome{3, []int64{1, 0, 3}, []string{"", "READONLY no", ""}, nil, false}},
	{"LOADING alone", 2, []string{"-LOADING no\r\n-LOADING no\r\n"}, outcome{2, []int64{0, 0}, []string{"LOADING no", "LOADING no"}, nil, false}},
	{"MASTERDOWN last", 2, []string{":1\r\n-MASTERDOWN no\r\n"}, outcome{2, []int64{1, 0}, []string{"", "MASTERDOWN no"}, nil, false}},

	{"one answer too many", 2, []string{":1\r\n:2\r\n:3\r\n"}, outcome{2, []int64{1, 2}, nil, nil, false}},
	{"one answer too many behind ten", 10, []string{strings.Repeat(":5\r\n", 11)}, outcome{10, []int64{5, 5, 5, 5, 5, 5, 5, 5, 5, 5}, nil, nil, false}},
	{"half an answer too many", 2, []string{":1\r\n:2\r\n:"}, outcome{2, []int64{1, 2}, nil, nil, false}},
	{"half an answer too many behind ten", 10, []string{strings.Repeat(":5\r\n", 10) + ":5"}, outcome{10, []int64{5, 5, 5, 5, 5, 5, 5, 5, 5, 5}, nil, nil, false}},
	{"an answer too many behind an error line", 1, []string{"-ERR x\r\n:1\r\n"}, outcome{1, []int64{0}, []string{"ERR x"}, nil, false}},
	{"one answer too few", 3, []string{":1\r\n:2\r\n"}, outcome{2, []int64{1, 2}, nil, ErrLost, false}},
	{"one answer too few behind an error line", 3, []string{":1\r\n-ERR x\r\n"}, outcome{2, []int64{1, 0}, []string{"", "ERR x", ""}, ErrLost, false}},
	{"none", 3, nil, outcome{0, nil, nil, ErrLost, false}},

	{"a simple string", 3, []string{":1\r\n+OK\r\n:3\r\n"}, outcome{1, []int64{1}, nil, ErrProtocol, false}},
	{"a bulk string", 2, []string{"$1\r\n1\r\n:2\r\n"}, outcome{0, nil, nil, ErrProtocol, false}},
	{"null", 2, []string{":1\r\n$-1\r\n"}, outcome{1, []int64{1}, nil, ErrProtocol, false}},
	{"an array", 2, []string{":1\r\n*1\r\n:2\r\n"}, outcome{1, []int64{1}, nil, ErrProtocol, false}},
	{"another type behind an error line", 3, []string{"-ERR x\r\n:2\r\n+OK\r\n"}, outcome{2, []int64{0, 2}, []string{"ERR x", "", ""}, ErrProtocol, false}},
	{"another type behind ten", 12, []string{strings.Repeat(":5\r\n", 10) + "+OK\r\n:6\r\n"}, outcome{10, []int64{5, 5, 5, 5, 5, 5, 5, 5, 5, 5}, nil, ErrProtocol, false}},
	{"an integer that is too large", 10, []string{strings.Repeat(":5\r\n", 8) + ":9223372036854775808\r\n:5\r\n"}, outcome{8, []int64{5, 5, 5, 5, 5, 5, 5, 5}, nil, ErrProtocol, false}},
	{"an integer with a fraction", 10, []string{strings.Repeat(":5\r\n", 8) + ":1.0\r\n:5\r\n"}, outcome{8, []int64{5, 5, 5, 5, 5, 5, 5, 5}, nil, ErrProtocol, false}},
	{"a word of JSON", 10, []string{strings.Repeat(":5\r\n", 8) + ":null\r\n:5\r\n"}, outcome{8, []int64{5, 5, 5, 5, 5, 5, 5, 5}, nil, ErrProtocol, false}},
	{"two integers in one line", 10, []string{strings.Repeat(":5\r\n", 8) + ":1,2\r\n"}, outcome{8, []int64{5, 5, 5, 5, 5, 5, 5, 5}, nil, ErrProtocol, false}},
	{"two integers in the only line", 10, []string{":5\r\n", ":1,2\r\n"}, outcome{1, []int64{5}, nil, ErrProtocol, false}},
	{"a blank", 10, []string{strings.Repeat(":5\r\n", 8) + ": 1\r\n:5\r\n"}, outcome{8, []int64{5, 5, 5, 5, 5, 5, 5, 5}, nil, ErrProtocol, false}},
	{"a line feed alone", 10, []string{strings.Repeat(":5\r\n", 8) + ":12\n:5\r\n"}, outcome{8, []int64{5, 5, 5, 5, 5, 5, 5, 5}, nil, ErrProtocol, false}},
	{"a line feed alone, and nothing else", 1, []string{":12\n"}, outcome{0, nil, nil, ErrProtocol, false}},
	{"a carriage return too many", 10, []string{strings.Repeat(":5\r\n", 8) + ":1\r\r\n:5\r\n"}, outcome{8, []int64{5, 5, 5, 5, 5, 5, 5, 5}, nil, ErrProtocol, false}},
	{"an empty integer", 10, []string{strings.Repeat(":5\r\n", 8) + ":\r\n:5\r\n"}, outcome{8, []int64{5, 5, 5, 5, 5, 5, 5, 5}, nil, ErrProtocol, false}},
	{"a leading zero", 10, []string{strings.Repeat(":5\r\n", 8) + ":007\r\n:5\r\n"}, outcome{10, []int64{5, 5, 5, 5, 5, 5, 5, 5, 7, 5}, nil, nil, true}},
	{"a plus", 10, []string{strings.Repeat(":5\r\n", 8) + ":+7\r\n:5\r\n"}, outcome{10, []int64{5, 5, 5, 5, 5, 5, 5, 5, 7, 5}, nil, nil, true}},
	{"a line that is too long", 2, []string{":1\r\n-" + strings.Repeat("a", maxLine) + "\r\n"}, outcome{1, []int64{1}, nil, ErrProtocol, false}},

	{"the script is unknown", 1, []string{noscript, ":7\r\n"}, outcome{1, []int64{7}, nil, nil, true}},
	{"unknown to all", 3, []string{noscript + noscript + noscript, ":1\r\n:2\r\n:3\r\n"}, outcome{3, []int64{1, 2, 3}, nil, nil, true}},
	{"unknown to the last", 3, []string{":1\r\n" + noscript + noscript, ":2\r\n:3\r\n"}, outcome{3, []int64{1, 2, 3}, nil, nil, true}},
	{"unknown to the first", 3, []string{noscript + ":2\r\n:3\r\n", ":1\r\n"}, outcome{3, []int64{1, 2, 3}, nil, nil, true}},
	{"unknown to every other, and errors", 5, []string{noscript + ":2\r\n" + noscript + "-ERR x\r\n" + noscript, ":1\r\n-NOPERM no eval\r\n:5\r\n"},
		outcome{5, []int64{1, 2, 0, 0, 5}, []string{"", "", "NOPERM no eval", "ERR x", ""}, nil, true}},
	{"unknown again", 2, []string{noscript + ":2\r\n", noscript}, outcome{2, []int64{0, 2}, []string{unknown, ""}, nil, true}},
	{"READONLY after the body", 2, []string{noscript + ":2\r\n", "-READONLY no\r\n"}, outcome{2, []int64{0, 2}, []string{"READONLY no", ""}, nil, false}},
	{"an answer too many after the body", 2, []string{noscript + ":2\r\n", ":1\r\n:9\r\n"}, outcome{2, []int64{1, 2}, nil, nil, false}},
	{"lost after the body", 3, []string{":1\r\n" + noscript + ":3\r\n"}, outcome{1, []int64{1}, nil, ErrLost, false}},
	{"lost half-way after the body", 4, []string{noscript + ":2\r\n" + noscript + noscript, ":1\r\n"}, outcome{2, []int64{1, 2}, nil, ErrLost, false}},
	{"lost half-way after the body, and an error", 4, []string{noscript + "-ERR x\r\n" + noscript + noscript, ":1\r\n"},
		outcome{2, []int64{1, 0}, []string{"", "ERR x", "", ""}, ErrLost, false}},
	{"another type after the body", 2, []string{noscript + noscript, ":1\r\n$1\r\n2\r\n"}, outcome{1, []int64{1}, nil, ErrProtocol, false}},
	{"an integer that is none after the body", 1, []string{noscript, ":x\r\n"}, outcome{0, nil, nil, ErrProtocol, false}},
	{"unknown, then lost", 3, []string{noscript + ":2\r\n"}, outcome{2, []int64{0, 2}, []string{unknown, "", ""}, ErrLost, false}},

	// Where it is not known whose answers will follow, nothing is sent.
	{"unknown, and an answer too many", 1, []string{noscript + ":1\r\n"}, outcome{1, []int64{0}, []string{unknown}, nil, false}},
	{"unknown, and READONLY", 2, []string{noscript + "-READONLY no\r\n"}, outcome{2, []int64{0, 0}, []string{unknown, "READONLY no"}, nil, false}},
	// Nothing else makes it send again.
	{"words like NOSCRIPT", 4, []string{"-NOSCRIPTS\r\n-noscript\r\n-ERR NOSCRIPT\r\n-BUSY\r\n"},
		outcome{4, []int64{0, 0, 0, 0}, []string{"NOSCRIPTS", "noscript", "ERR NOSCRIPT", "BUSY"}, nil, true}},
	{"NOSCRIPT of another type", 1, []string{"+NOSCRIPT\r\n"}, outcome{0, nil, nil, ErrProtocol, false}},
	{"half of NOSCRIPT", 1, []string{"-NOSCRIPT"}, outcome{0, nil, nil, ErrLost, false}},

	// One call, by either way.
	{"the largest integer alone", 1, []string{":9223372036854775807\r\n"}, outcome{1, []int64{9223372036854775807}, nil, nil, true}},
	{"the smallest integer alone", 1, []string{":-9223372036854775808\r\n"}, outcome{1, []int64{-9223372036854775808}, nil, nil, true}},
	{"a leading zero alone", 1, []string{":007\r\n"}, outcome{1, []int64{7}, nil, nil, true}},
	{"a plus alone", 1, []string{":+7\r\n"}, outcome{1, []int64{7}, nil, nil, true}},
	{"NOPERM alone", 1, []string{"-NOPERM no\r\n"}, outcome{1, []int64{0}, []string{"NOPERM no"}, nil, true}},
	{"READONLY alone", 1, []string{"-READONLY no\r\n"}, outcome{1, []int64{0}, []string{"READONLY no"}, nil, false}},
	{"LOADING, one call", 1, []string{"-LOADING no\r\n"}, outcome{1, []int64{0}, []string{"LOADING no"}, nil, false}},
	{"MASTERDOWN alone", 1, []string{"-MASTERDOWN no\r\n"}, outcome{1, []int64{0}, []string{"MASTERDOWN no"}, nil, false}},
	{"two answers to one call", 1, []string{":1\r\n:2\r\n"}, outcome{1, []int64{1}, nil, nil, false}},
	{"one answer and a half to one call", 1, []string{":1\r\n:"}, outcome{1, []int64{1}, nil, nil, false}},
	{"one answer and an error line to one call", 1, []string{":1\r\n" + noscript}, outcome{1, []int64{1}, nil, nil, false}},
	{"no answer to one call", 1, nil, outcome{0, nil, nil, ErrLost, false}},
	{"a simple string alone", 1, []string{"+OK\r\n"}, outcome{0, nil, nil, ErrProtocol, false}},
	{"a bulk string alone", 1, []string{"$1\r\n1\r\n"}, outcome{0, nil, nil, ErrProtocol, false}},
	{"null alone", 1, []string{"$-1\r\n"}, outcome{0, nil, nil, ErrProtocol, false}},
	{"an array alone", 1, []string{"*1\r\n:1\r\n"}, outcome{0, nil, nil, ErrProtocol, false}},
	{"an integer that is too large alone", 1, []string{":9223372036854775808\r\n"}, outcome{0, nil, nil, ErrProtocol, false}},
	{"an integer that is too small alone", 1, []string{":-9223372036854775809\r\n"}, outcome{0, nil, nil, ErrProtocol, false}},
	{"a word for an integer alone", 1, []string{":null\r\n"}, outcome{0, nil, nil, ErrProtocol, false}},
	{"an empty integer alone", 1, []string{":\r\n"}, outcome{0, nil, nil, ErrProtocol, false}},
	{"an empty line alone", 1, []string{"\n"}, outcome{0, nil, nil, ErrProtocol, false}},
	{"a carriage return too many alone", 1, []string{":1\r\r\n"}, outcome{0, nil, nil, ErrProtocol, false}},
	{"a line that is too long alone", 1, []string{":" + strings.Repeat("1", maxLine) + "\r\n"}, outcome{0, nil, nil, ErrProtocol, false}},
	{"an error line after the body", 1, []string{noscript, "-NOPERM no eval\r\n"}, outcome{1, []int64{0}, []string{"NOPERM no eval"}, nil, true}},
	{"unknown again, one call", 1, []string{noscript, noscript}, outcome{1, []int64{0}, []string{unknown}, nil, true}},
	{"READONLY after the body, one call", 1, []string{noscript, "-READONLY no\r\n"}, outcome{1, []int64{0}, []string{"READONLY no"}, nil, false}},
	{"two answers after the body", 1, []string{noscript, ":1\r\n:2\r\n"}, outcome{1, []int64{1}, nil, nil, false}},
	{"lost after the body, one call", 1, []string{noscript}, outcome{0, nil, nil, ErrLost, false}},
	{"another type after the body, one call", 1, []string{noscript, "$1\r\n2\r\n"}, outcome{0, nil, nil, ErrProtocol, false}},
	{"an integer that is too large after the body", 1, []string{noscript, ":9223372036854775808\r\n"}, outcome{0, nil, nil, ErrProtocol, false}},
}

func TestEvalAnswers(t *testing.T) {
	for _, test := range batches {
		for way, run := range waysFor(test.size) {
			name := way + ", " + test.name
			c, w := connInSteps(test.parts...)
			if got := run(c, test.size); got.differs(test.want) {
				t.Errorf("%s: got %+v, want %+v", name, got, test.want)
			}
			again := 0
			if len(test.parts) > 1 && strings.Contains(test.parts[0], "-NOSCRIPT") {
				again = 1
			}
			if sent := strings.Contains(w.out.String(), "\r\nEVAL\r\n"); sent && !strings.Contains(strings.Join(test.parts, ""), noscript) {
				t.Errorf("%s: the body was sent", name)
			} else if again == 1 && !sent {
				t.Errorf("%s: the body was not sent", name)
			}
			if w.writes > 2 || w.writes < 1+again {
				t.Errorf("%s: %d writes", name, w.writes)
			}
			if c.Usable {
				continue
			}
			// What is used up sends nothing more.
			writes := w.writes
			for next, run := range waysFor(1) {
				if got, want := run(c, 1), (outcome{err: ErrLost}); got.differs(want) || w.writes != writes {
					t.Errorf("%s: afterwards %s gives %+v and %d writes more", name, next, got, w.writes-writes)
				}
			}
		}
	}
}

// However the answers are cut into pieces, the outcome is the same.
func TestEvalAnswersInPieces(t *testing.T) {
	for _, test := range batches {
		if len(test.parts) == 0 || len(test.parts[0]) > 1000 || !test.want.ok && test.want.err == nil {
			continue
		}
		for way, run := range waysFor(test.size) {
			first := test.parts[0]
			for cut := 1; cut < len(first); cut++ {
				c, _ := connInSteps(append([]string{first[:cut], first[cut:]}, test.parts[1:]...)...)
				if got := run(c, test.size); got.differs(test.want) {
					t.Errorf("%s, %s, cut at %d: got %+v, want %+v", way, test.name, cut, got, test.want)
				}
			}
			c, _ := connOn("")
			c.in = bufio.NewReaderSize(iotest.OneByteReader(&stepwise{parts: strings.Split(strings.Join(test.parts, ""), "")}), maxLine)
			if got := run(c, test.size); got.differs(test.want) {
				t.Errorf("%s, %s, byte by byte: got %+v, want %+v", way, test.name, got, test.want)
			}
		}
	}
}

// Answers that end anywhere give as many counts as there were whole lines.
func TestEvalAllTruncated(t *testing.T) {
	const answers = ":1\r\n:22\r\n-ERR x\r\n:333\r\n:4\r\n:5\r\n:6\r\n:7\r\n:8\r\n:9\r\n:10\r\n"
	const size = 11
	all := []int64{1, 22, 0, 333, 4, 5, 6, 7, 8, 9, 10}
	plain := strings.Replace(answers, "-ERR x", ":3", 1)
	for end := 0; end < len(answers); end++ {
		whole := strings.Count(answers[:end], "\n")
		want := outcome{answered: whole, counts: all[:whole], err: ErrLost}
		if whole > 2 {
			want.refusals = make([]string, size)
			want.refusals[2] = "ERR x"
		}
		c, _ := connInSteps(answers[:end])
		if got := outcomeOf(c, size); got.differs(want) {
			t.Errorf("%q: got %+v, want %+v", answers[:end], got, want)
		}
	}
	all[2] = 3
	for end := 0; end < len(plain); end++ {
		whole := strings.Count(plain[:end], "\n")
		c, _ := connInSteps(plain[:end])
		if got, want := outcomeOf(c, size), (outcome{answered: whole, counts: all[:whole], err: ErrLost}); got.differs(want) {
			t.Errorf("%q: got %+v, want %+v", plain[:end], got, want)
		}
	}
}

// An answer to one call that ends anywhere, also the one to the body, is none: the
// connection is lost, or the time is over.
func TestEvalOfOneCallTruncated(t *testing.T) {
	for _, parts := range [][]string{{":1"}, {":123\r\n"}, {"-ERR x\r\n"}, {noscript}, {noscript, ":7\r\n"}, {noscript, "-ERR x\r\n"}} {
		whole := len(parts) - 1 // the last part is the one that is cut
		for end := 0; end < len(parts[whole]); end++ {
			for cut := 0; cut <= end; cut++ {
				for err, want := range map[error]error{io.EOF: ErrLost, io.ErrUnexpectedEOF: ErrLost, os.ErrDeadlineExceeded: ErrTimeout} {
					for way, run := range waysFor(1) {
						c, w := connOn("")
						sent := notEmpty(append(append([]string(nil), parts[:whole]...), parts[whole][:cut], parts[whole][cut:end])...)
						w.in = &stepwise{parts: sent, end: err}
						if got := run(c, 1); got.differs(outcome{err: want}) || w.writes != 1+whole {
							t.Errorf("%s, %q and %v: got %+v after %d writes, want %v", way, sent, err, got, w.writes, want)
						}
					}
				}
			}
		}
	}
}

func TestEvalLeavesTheNextByte(t *testing.T) {
	for _, size := range []int{1, 2, 7, 8, 9, 100} {
		for _, line := range []string{":1\r\n", ":-12\r\n", "-ERR x\r\n"} {
			for way, run := range waysFor(size) {
				c, _ := connOn(strings.Repeat(line, size) + "N")
				if got := run(c, size); got.answered != size || got.err != nil || got.ok {
					t.Errorf("%s, %d times %q: %+v", way, size, line, got)
				}
				if next, err := c.in.ReadByte(); err != nil || next != 'N' {
					t.Errorf("%s, %d times %q: the next byte is %q, %v", way, size, line, next, err)
				}
			}
		}
	}
}

// What no reply may be is none in a batch, wherever it stands in it.
func TestEvalMalformed(t *testing.T) {
	for _, wire := range malformed {
		if len(wire) > 2*maxLine {
			continue
		}
		for _, before := range []int{0, 1, 9} {
			c, _ := connOn(strings.Repeat(":5\r\n", before) + wire + strings.Repeat(":5\r\n", 9))
			got := outcomeOf(c, before+9)
			if got.answered != before || got.err != ErrProtocol || got.ok || got.refusals != nil {
				t.Errorf("%.60q behind %d: got %+v", wire, before, got)
			}
		}
		for _, parts := range [][]string{{wire}, {wire + ":5\r\n"}, {noscript, wire}} {
			for way, run := range waysFor(1) {
				c, _ := connInSteps(parts...)
				if got := run(c, 1); got.differs(outcome{err: ErrProtocol}) {
					t.Errorf("%s, %.60q: got %+v", way, parts, got)
				}
			}
		}
	}
}

// What a server says instead of an answer is not shown: it may repeat the arguments of
// a command, and errors are logged.
func TestEvalErrorsShowNothingOfTheAnswer(t *testing.T) {
	for _, line := range []string{
		":hunter2\r\n", ":1hunter2\r\n", ": hunter2\r\n", ":hunter2\n", ":hun\rter2\r\n",
		":123456789012345678901234567890\r\n", "+hunter2\r\n", "$hunter2\r\n", "*hunter2\r\n", "hunter2\r\n", "-hunter2\n",
	} {
		for _, parts := range [][]string{{line}, {noscript, line}} {
			c, _ := connInSteps(parts...)
			_, _, all := EvalAll(c, soon(), counting, 0, keyed(1), make([]int64, 1))
			c, _ = connInSteps(parts...)
			_, _, one := Eval(c, soon(), counting, 0, keyed(1)[0])
			for way, err := range map[string]error{"EvalAll": all, "Eval": one} {
				demand(t, err, ErrProtocol)
				if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, "ter2") || strings.Contains(text, "2345") {
					t.Errorf("%s, %q: the error shows it: %s", way, parts, text)
				}
			}
			if all == nil || one == nil || all.Error() != one.Error() {
				t.Errorf("%q: EvalAll says %v, Eval says %v", parts, all, one)
			}
		}
	}
}

func TestEvalAllSendsTheBodyForWhatIsUnknownOnly(t *testing.T) {
	script := NewScript(answer42)
	c, w := connInSteps(":1\r\n"+noscript+":3\r\n"+noscript, ":2\r\n:4\r\n")
	var calls []string
	for _, key := range []string{"a", "b", "c", "d"} {
		calls = append(calls, Bulk(key)+Bulk("7"))
	}
	counts := make([]int64, 4)
	answered, refusals, err := EvalAll(c, soon(), script, 1, calls, counts)
	if answered != 4 || !reflect.DeepEqual(counts, []int64{1, 2, 3, 4}) || refusals != nil || err != nil || !c.Usable {
		t.Errorf("got %d, %v, %q, %v", answered, counts, refusals, err)
	}
	begin := "*5\r\n$4\r\nEVAL\r\n$9\r\nreturn 42\r\n$1\r\n1\r\n$1\r\n"
	want := begin + "b\r\n$1\r\n7\r\n" + begin + "d\r\n$1\r\n7\r\n"
	if sent := w.out.String(); w.writes != 2 || !strings.HasSuffix(sent, want) || strings.Count(sent, "\r\nEVAL\r\n") != 2 {
		t.Errorf("%d writes: %q", w.writes, sent)
	}
}

// A write that fails ends the batch, and the calls whose answer was awaited from it
// have none.
func TestEvalThatCannotBeWritten(t *testing.T) {
	for fails, want := range map[error]error{os.ErrDeadlineExceeded: ErrTimeout, io.ErrClosedPipe: ErrLost} {
		c, w := connInSteps(":1\r\n" + noscript + ":3\r\n-ERR x\r\n" + noscript)
		w.most, w.fails = 1, fails
		expected := outcome{answered: 1, counts: []int64{1}, err: want}
		if got := outcomeOf(c, 5); got.differs(expected) || w.writes != 2 {
			t.Errorf("%v: got %+v after %d writes, want %+v", fails, got, w.writes, expected)
		}
		for way, run := range waysFor(1) {
			c, w = connInSteps(":1\r\n")
			w.writes, w.most, w.fails = 1, 1, fails
			if got := run(c, 1); got.differs(outcome{err: want}) || w.writes != 2 {
				t.Errorf("%s, %v: got %+v after %d writes", way, fails, got, w.writes-1)
			}
			c, w = connInSteps(noscript, ":1\r\n")
			w.most, w.fails = 1, fails
			if got := run(c, 1); got.differs(outcome{err: want}) || w.writes != 2 {
				t.Errorf("%s, %v: got %+v after %d writes, the second with the body", way, fails, got, w.writes)
			}
		}
	}
}

// A server that loses its scripts at any time between batches counts each call once.
func TestEvalAllAfterTheScriptCacheWasLost(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	l := linkTo(t, optionsFor(s), nil)
	for i := int64(1); i <= 20; i++ {
		if i%5 == 0 {
			s.FlushScripts()
		}
		counts := make([]int64, 12)
		var calls []string
		for j := range counts {
			calls = append(calls, call("k"+strconv.Itoa(j), 1))
		}
		c := connect(t, l)
		answered, refusals, err := EvalAll(c, soon(), counting, 2, calls, counts)
		if answered != 12 || refusals != nil || err != nil || !c.Usable {
			t.Fatalf("batch %d: %d answered, %q, %v", i, answered, refusals, err)
		}
		for j, n := range counts {
			if n != i {
				t.Errorf("batch %d, call %d: got %d", i, j, n)
			}
		}
	}
	names := map[string]int{}
	for _, command := range s.Commands() {
		names[command.Args[0]]++
	}
	if names["EVALSHA"] != 20*12 || names["EVAL"] != 5*12 || len(names) != 2 {
		t.Errorf("sent %v", names)
	}
}

func TestEvalAfterTheScriptCacheWasLost(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	l := linkTo(t, optionsFor(s), nil)
	for i := int64(1); i <= 20; i++ {
		if i%5 == 0 {
			s.FlushScripts()
		}
		wantCount(t, connect(t, l), "k", i)
	}
	names := map[string]int{}
	for _, command := range s.Commands() {
		names[command.Args[0]]++
	}
	if names["EVALSHA"] != 20 || names["EVAL"] != 5 || len(names) != 2 || s.Accepted() != 1 {
		t.Errorf("sent %v over %d connections", names, s.Accepted())
	}
}

// A flush in the middle of a batch: what ran before it is not run again.
func TestEvalAllWhileTheScriptCacheIsLost(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	s.Usually(fakevalkey.Behaviour{Before: func(command []string) {
		if command[0] == "EVALSHA" && command[3] == "k5" {
			s.FlushScripts()
		}
	}})
	l := linkTo(t, optionsFor(s), nil)
	wantCount(t, connect(t, l), "k0", 1)
	var calls []string
	for j := 0; j < 10; j++ {
		calls = append(calls, call("k"+strconv.Itoa(j), 1))
	}
	counts := make([]int64, 10)
	answered, refusals, err := EvalAll(connect(t, l), soon(), counting, 2, calls, counts)
	if answered != 10 || refusals != nil || err != nil || !reflect.DeepEqual(counts, []int64{2, 1, 1, 1, 1, 1, 1, 1, 1, 1}) {
		t.Errorf("%d answered, %v, %q, %v", answered, counts, refusals, err)
	}
}

func TestEvalThatMakesNoSense(t *testing.T) {
	for _, test := range []struct {
		name   string
		args   int
		calls  []string
		counts []int64
	}{
		{"too few counts", 0, keyed(3), make([]int64, 2)},
		{"no counts", 0, keyed(1), nil},
		{"fewer than no arguments", -1, keyed(1), make([]int64, 1)},
		{"too many arguments", maxArgs + 1, keyed(1), make([]int64, 1)},
	} {
		c, w := connOn(":1\r\n:1\r\n:1\r\n")
		answered, refusals, err := EvalAll(c, soon(), counting, test.args, test.calls, test.counts)
		if answered != 0 || refusals != nil || err == nil || sentinelOf(err) != err || w.writes != 0 || !c.Usable {
			t.Errorf("%s: %d answered, %q, %v, %d writes, usable %v", test.name, answered, refusals, err, w.writes, c.Usable)
		}
	}
	for _, args := range []int{-1, maxArgs + 1} {
		c, w := connOn(":1\r\n")
		n, refusal, err := Eval(c, soon(), counting, args, keyed(1)[0])
		if n != 0 || refusal != "" || err == nil || sentinelOf(err) != err || w.writes != 0 || !c.Usable {
			t.Errorf("Eval with %d arguments: %d, %q, %v, %d writes, usable %v", args, n, refusal, err, w.writes, c.Usable)
		}
	}
	c, w := connOn("")
	if answered, refusals, err := EvalAll(c, soon(), counting, 0, nil, nil); answered != 0 || refusals != nil || err != nil || w.writes != 0 || !c.Usable {
		t.Errorf("no calls: %d answered, %q, %v, %d writes, usable %v", answered, refusals, err, w.writes, c.Usable)
	}
}

// Where the time runs out, the answers that came before are told, and no others.
func TestEvalAllTimeout(t *testing.T) {
	const answers, size = ":1\r\n:22\r\n:333\r\n:4\r\n:5\r\n:6\r\n:7\r\n:8\r\n:9\r\n:10\r\n", 10
	all := []int64{1, 22, 333, 4, 5, 6, 7, 8, 9, 10}
	for end := 0; end < len(answers); end++ {
		for cut := 0; cut <= end; cut++ {
			c, w := connOn("")
			w.in = &stepwise{parts: notEmpty(answers[:cut], answers[cut:end]), end: os.ErrDeadlineExceeded}
			whole := strings.Count(answers[:end], "\n")
			if got, want := outcomeOf(c, size), (outcome{answered: whole, counts: all[:whole], err: ErrTimeout}); got.differs(want) {
				t.Errorf("%q and %q: got %+v, want %+v", answers[:cut], answers[cut:end], got, want)
			}
		}
	}
}

// notEmpty returns the parts that are not empty.
func notEmpty(parts ...string) []string {
	var left []string
	for _, part := range parts {
		if part != "" {
			left = append(left, part)
		}
	}
	return left
}

func TestEvalAllTimeoutOnAServerThatStops(t *testing.T) {
	gate := make(chan struct{})
	s := fakevalkey.Start(t, fakevalkey.Config{})
	s.Usually(fakevalkey.Behaviour{Before: func(command []string) {
		if len(command) > 3 && command[3] == "k5" {
			<-gate
		}
	}})
	l := linkTo(t, optionsFor(s), nil)
	wantCount(t, connect(t, l), "another", 1)
	var calls []string
	for i := 0; i < 12; i++ {
		calls = append(calls, call("k"+strconv.Itoa(i), i+1))
	}
	c := connect(t, l)
	counts := make([]int64, 12)
	answered, refusals, err := EvalAll(c, time.Now().Add(50*time.Millisecond), counting, 2, calls, counts)
	close(gate)
	demand(t, err, ErrTimeout)
	if answered > 5 || refusals != nil || c.Usable {
		t.Errorf("%d answered, %q, usable %v", answered, refusals, c.Usable)
	}
	for i := 0; i < answered; i++ {
		if counts[i] != int64(i+1) {
			t.Errorf("call %d: got %d", i, counts[i])
		}
	}
}

// The server closes the connection after any number of bytes.
func TestEvalAllLost(t *testing.T) {
	const answers = ":1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n"
	s := fakevalkey.Start(t, fakevalkey.Config{})
	for after := -1; after < len(answers); after++ {
		if after == 0 {
			continue
		}
		lines := strings.SplitAfter(answers, "\n")
		s.Behave(fakevalkey.Behaviour{CloseAfter: after, Answers: lines[:8]})
		l := linkTo(t, optionsFor(s), nil)
		c := connect(t, l)
		got := outcomeOf(c, 8)
		whole := after / 4
		if after < 0 {
			whole = 0
		}
		// A reset may overtake answers that were sent before it.
		if got.answered > whole || got.err != ErrLost || got.refusals != nil || got.ok {
			t.Errorf("closed after %d bytes: got %+v", after, got)
		}
		Drop(l)
	}
}

func TestEvalAllOverFragments(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	s.Usually(fakevalkey.Behaviour{Fragment: true})
	l := linkTo(t, optionsFor(s), nil)
	var calls []string
	for i := 0; i < 256; i++ {
		calls = append(calls, call("k"+strconv.Itoa(i), i*1000003))
	}
	counts := make([]int64, 256)
	answered, refusals, err := EvalAll(connect(t, l), soon(), counting, 2, calls, counts)
	if answered != 256 || refusals != nil || err != nil {
		t.Errorf("%d answered, %q, %v", answered, refusals, err)
	}
	for i, n := range counts {
		if n != int64(i*1000003) {
			t.Errorf("call %d: got %d", i, n)
		}
	}
}

// plainBatch is what EvalAll makes of the answers to its first write, done the plain
// way: a reply after the other.
func plainBatch(wire string, size int) (answered int, counts []int64, refusals []string, protocol bool) {
	r := reader(wire)
	refusals = make([]string, size)
	for answered < size {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return answered, counts, refusals, errors.Is(err, bufio.ErrBufferFull)
		}
		reply, err := readReply(reader(string(line)))
		if err != nil || (reply.Kind != ':' && reply.Kind != '-') {
			return answered, counts, refusals, true
		}
		counts = append(counts, reply.Int)
		refusals[answered] = reply.Text
		answered++
	}
	return answered, counts, refusals, false
}

// sameByEval compares what Eval makes of what a server sends, in such parts, with what
// EvalAll makes of it with one call: also what is sent and what is left to be read.
func sameByEval(t *testing.T, parts []string) {
	all, allWire := connInSteps(parts...)
	want := outcomeOf(all, 1)
	one, oneWire := connInSteps(parts...)
	if got := outcomeOfOne(one, 1); got.differs(want) {
		t.Fatalf("%q: Eval gives %+v, EvalAll %+v", parts, got, want)
	}
	if got, want := oneWire.out.String(), allWire.out.String(); got != want || oneWire.writes != allWire.writes {
		t.Fatalf("%q: Eval sends %q, EvalAll %q", parts, got, want)
	}
	got, _ := one.in.Peek(one.in.Buffered())
	left, _ := all.in.Peek(all.in.Buffered())
	if string(got) != string(left) || one.Usable && len(got) > 0 {
		t.Fatalf("%q: Eval leaves %q, EvalAll %q", parts, got, left)
	}
}

// FuzzEvalAll compares EvalAll, which takes many answers at once, with a loop over
// single replies, and with Eval for one call, for any bytes that a server may send, cut
// in any way.
func FuzzEvalAll(f *testing.F) {
	for _, test := range batches {
		f.Add([]byte(strings.Join(test.parts, "")), uint8(test.size), int64(1))
	}
	for _, wire := range malformed {
		if len(wire) < 2*maxLine {
			f.Add([]byte(":1\r\n"+wire), uint8(9), int64(2))
			f.Add([]byte(strings.Repeat(":1\r\n", 9)+wire), uint8(19), int64(3))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, number uint8, seed int64) {
		wire, size := string(data), int(number)
		random := rand.New(rand.NewSource(seed))
		var parts []string
		for rest := wire; rest != ""; {
			n := 1 + random.Intn(len(rest))
			if random.Intn(3) == 0 {
				n = 1 + n%7
			}
			if n > len(rest) {
				n = len(rest)
			}
			parts = append(parts, rest[:n])
			rest = rest[n:]
		}
		sameByEval(t, parts)
		c, w := connInSteps(parts...)
		got := outcomeOf(c, size)
		answered, counts, refusals, protocol := plainBatch(wire, size)
		if strings.Contains(strings.Join(refusals, "\n"), "NOSCRIPT") {
			// What it may send once more is another matter: it must end and keep to
			// its bounds.
			if w.writes > 2 || got.answered > size {
				t.Fatalf("%q: %d writes, %+v", wire, w.writes, got)
			}
			return
		}
		if got.refusals == nil {
			got.refusals = make([]string, size)
		}
		want := outcome{answered: answered, counts: counts, refusals: refusals, ok: got.ok}
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
