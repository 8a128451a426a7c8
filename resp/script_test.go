package resp

import (
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
)

func isTimeout(err error) bool { return errors.Is(err, ErrTimeout) }

const answer42 = "return 42"

// digest42 is what `printf 'return 42' | sha1sum` prints.
const digest42 = "1fa00e76656cc152ad327c13fe365858fd7be306"

func TestEvalToTheByte(t *testing.T) {
	s := NewScript(answer42)
	if s.SHA != digest42 || s.Body != answer42 {
		t.Fatalf("digest %s of %q", s.SHA, s.Body)
	}
	begin := func(n int) string {
		return "*" + strconv.Itoa(n) + "\r\n$7\r\nEVALSHA\r\n$40\r\n" + digest42 + "\r\n$1\r\n1\r\n"
	}
	for _, test := range []struct {
		key  string
		args []string
		want string
	}{
		{"k", nil, begin(4) + "$1\r\nk\r\n"},
		{"", nil, begin(4) + "$0\r\n\r\n"},
		{"key", []string{"1", "60"}, begin(6) + "$3\r\nkey\r\n$1\r\n1\r\n$2\r\n60\r\n"},
		{"k\r\né", []string{""}, begin(5) + "$5\r\nk\r\né\r\n$0\r\n\r\n"},
		{strings.Repeat("k", 900000), []string{"1"}, begin(5) + "$900000\r\n" + strings.Repeat("k", 900000) + "\r\n$1\r\n1\r\n"},
		{"k", strings.Split(strings.Repeat("a", maxPrefixes), ""), begin(4+maxPrefixes) + "$1\r\nk\r\n" + strings.Repeat("$1\r\na\r\n", maxPrefixes)},
		{"k", strings.Split(strings.Repeat("a", 50), ""), begin(54) + "$1\r\nk\r\n" + strings.Repeat("$1\r\na\r\n", 50)},
	} {
		c, w := connOn(":42\r\n")
		n, refusal, err := Eval(c, soon(), s, test.key, test.args)
		if n != 42 || refusal != "" || err != nil {
			t.Errorf("got %d, %q, %v", n, refusal, err)
		}
		if got := w.out.String(); got != test.want {
			t.Errorf("sent %.200q, want %.200q", got, test.want)
		}
		if w.writes != 1 || w.sets != 1 {
			t.Errorf("%d writes, %d deadlines", w.writes, w.sets)
		}
	}
}

func TestEvalSendsTheBodyAfterNoscriptOnly(t *testing.T) {
	s := NewScript(answer42)

	body := "*5\r\n$4\r\nEVAL\r\n$9\r\nreturn 42\r\n$1\r\n1\r\n$1\r\nk\r\n$1\r\n7\r\n"

	for _, word := range []string{"-NOSCRIPT\r\n", noscript, "-NOSCRIPT other words in Redis\r\n"} {
		c, w := connOn(word + ":42\r\n")
		w.in = &stepwise{parts: []string{word, ":42\r\n"}}
		n, refusal, err := Eval(c, soon(), s, "k", []string{"7"})
		if n != 42 || refusal != "" || err != nil || !c.ok {
			t.Errorf("%q: got %d, %q, %v", word, n, refusal, err)
		}
		if w.writes != 2 || !strings.HasSuffix(w.out.String(), body) {
			t.Errorf("%q: %d writes: %q", word, w.writes, w.out.String())
		}
	}

	// What comes after the body is final, NOSCRIPT too.
	for _, line := range []string{"NOSCRIPT again", "NOPERM no eval", "ERR Error running script"} {
		c, w := connOn("")
		w.in = &stepwise{parts: []string{noscript, "-" + line + "\r\n"}}
		n, refusal, err := Eval(c, soon(), s, "k", []string{"7"})
		if n != 0 || refusal != line || err != nil || w.writes != 2 || !c.ok {
			t.Errorf("%q after the body: got %d, %q, %v, %d writes", line, n, refusal, err, w.writes)
		}
	}
	for _, reply := range []string{"+OK\r\n", "$1\r\n1\r\n", "*0\r\n", "$-1\r\n"} {
		c, w := connOn("")
		w.in = &stepwise{parts: []string{noscript, reply}}
		_, _, err := Eval(c, soon(), s, "k", []string{"7"})
		demand(t, err, ErrProtocol)
		if c.ok {
			t.Errorf("%q: reusable", reply)
		}
	}

	// Nothing else makes it send again.
	for _, answer := range []string{
		"-ERR NOSCRIPT\r\n", "-NOSCRIPTS\r\n", "-noscript\r\n", "-BUSY\r\n", "-TRYAGAIN\r\n", "-MOVED 1 h:1\r\n", "-LOADING\r\n",
		"+NOSCRIPT\r\n", "$8\r\nNOSCRIPT\r\n", "-NOSCRIPT", "", noscript + ":42\r\n",
	} {
		c, w := connOn(answer)
		_, _, _ = Eval(c, soon(), s, "k", []string{"7"})
		if w.writes != 1 {
			t.Errorf("%q: %d writes", answer, w.writes)
		}
	}
}

// With something behind NOSCRIPT it is not known whose answers will follow.
func TestEvalSendsNoBodyOnAConnectionOutOfStep(t *testing.T) {
	c, w := connOn("-NOSCRIPT No matching script.\r\n:1\r\n")
	n, refusal, err := Eval(c, soon(), NewScript(answer42), "k", nil)
	if n != 0 || refusal != "NOSCRIPT No matching script." || err != nil || w.writes != 1 || c.ok {
		t.Errorf("got %d, %q, %v, %d writes, usable %v", n, refusal, err, w.writes, c.ok)
	}
}

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

func TestEvalReplies(t *testing.T) {
	s := NewScript(answer42)
	for _, test := range []struct {
		answer  string
		n       int64
		refusal string
	}{
		{":0\r\n", 0, ""},
		{":-7\r\n", -7, ""},
		{":9223372036854775807\r\n", 9223372036854775807, ""},
		{"-ERR Error running script (call to f_1): @user_script:1: oops\r\n", 0, "ERR Error running script (call to f_1): @user_script:1: oops"},
		{"-OOM\r\n", 0, "OOM"},
	} {
		c, _ := connOn(test.answer)
		n, refusal, err := Eval(c, soon(), s, "k", nil)
		if n != test.n || refusal != test.refusal || err != nil || !c.ok {
			t.Errorf("%q: got %d, %q, %v", test.answer, n, refusal, err)
		}
	}
	for _, test := range wellFormed {
		if test.want.Kind == ':' || test.want.Kind == '-' {
			continue
		}
		c, _ := connOn(test.wire)
		n, refusal, err := Eval(c, soon(), s, "k", nil)
		demand(t, err, ErrProtocol)
		if n != 0 || refusal != "" || c.ok {
			t.Errorf("%q: got %d, %q, %v", test.wire, n, refusal, c.ok)
		}
	}
	for _, wire := range malformed {
		c, _ := connOn(wire)
		n, refusal, err := Eval(c, soon(), s, "k", nil)
		demand(t, err, ErrProtocol)
		if n != 0 || refusal != "" || c.ok {
			t.Errorf("%.60q: got %d, %q, %v", wire, n, refusal, c.ok)
		}
	}
	for _, wire := range []string{"", ":", ":1", ":1\r", "-ERR", "-ERR\r"} {
		c, _ := connOn(wire)
		n, refusal, err := Eval(c, soon(), s, "k", nil)
		demand(t, err, ErrLost)
		if n != 0 || refusal != "" || c.ok || !c.lost {
			t.Errorf("%q: got %d, %q, %v", wire, n, refusal, c.ok)
		}
	}
}

// Answers that arrive in single bytes, with CR and LF apart, give the same results.
func TestEvalOverFragments(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{Password: "secret"})
	s.Usually(fakevalkey.Behaviour{Fragment: true})
	o := optionsFor(s)
	o.Password, o.DB = "secret", 7
	c, err := Dial(o)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(c)
	script := NewScript("counts")
	for i := int64(1); i <= 50; i++ {
		if n, refusal, err := Eval(c, soon(), script, "k", []string{"1", "60"}); n != i || refusal != "" || err != nil {
			t.Fatalf("call %d: got %d, %q, %v", i, n, refusal, err)
		}
	}
	s.Refuse("ERR a long refusal in many pieces")
	if n, refusal, err := Eval(c, soon(), script, "k", []string{"1", "60"}); n != 0 || refusal != "ERR a long refusal in many pieces" || err != nil {
		t.Errorf("got %d, %q, %v", n, refusal, err)
	}
	reply, err := Do(c, soon(), "TIME")
	if err != nil || len(reply.Array) != 2 || !c.ok {
		t.Errorf("TIME: %+v, %v", reply, err)
	}
}

func TestEvalAfterTheScriptCacheWasLost(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	c, err := Dial(optionsFor(s))
	if err != nil {
		t.Fatal(err)
	}
	defer Close(c)
	script := NewScript("counts")
	for i := int64(1); i <= 20; i++ {
		if i%5 == 0 {
			s.FlushScripts()
		}
		if n, refusal, err := Eval(c, soon(), script, "k", []string{"1", "60"}); n != i || refusal != "" || err != nil {
			t.Fatalf("call %d: got %d, %q, %v", i, n, refusal, err)
		}
	}
	names := map[string]int{}
	for _, command := range s.Commands() {
		names[command.Args[0]]++
	}
	if names["EVALSHA"] != 20 || names["EVAL"] != 5 || len(names) != 2 {
		t.Errorf("sent %v", names)
	}
}

// A connection that its owner keeps over several calls is given up as soon as the
// answers no longer match the questions.
func TestEvalNeverTakesTheAnswerToAnotherCall(t *testing.T) {
	script := NewScript(answer42)
	for _, answers := range []string{":1\r\n:2\r\n", "-ERR no\r\n:2\r\n", ":1\r\n:"} {
		c, w := connOn(answers)
		if _, _, err := Eval(c, soon(), script, "k", nil); err != nil {
			t.Errorf("%q: %v", answers, err)
		}
		n, refusal, err := Eval(c, soon(), script, "k", nil)
		demand(t, err, ErrLost)
		_, err = Do(c, soon(), "TIME")
		demand(t, err, ErrLost)
		if n != 0 || refusal != "" || w.writes != 1 {
			t.Errorf("%q: got %d, %q after %d writes", answers, n, refusal, w.writes)
		}
	}
}

func TestEvalTimeout(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	for name, behaviour := range map[string]fakevalkey.Behaviour{
		"silence":                 {Swallow: true},
		"half an integer":         {Answers: []string{":1"}},
		"silence after NOSCRIPT":  {Answers: []string{"-NOSCRIPT\r\n", ""}},
		"half a line of an error": {Answers: []string{"-ERR half\r"}},
	} {
		s.Usually(behaviour)
		c, err := Dial(optionsFor(s))
		if err != nil {
			t.Fatal(err)
		}
		n, refusal, err := Eval(c, time.Now().Add(30*time.Millisecond), NewScript("x"), "k", []string{"1", "60"})
		demand(t, err, ErrTimeout)
		if n != 0 || refusal != "" || c.ok || c.lost {
			t.Errorf("%s: got %d, %q, reusable %v, lost %v", name, n, refusal, c.ok, c.lost)
		}
		Close(c)
	}
}

func TestEvalLost(t *testing.T) {
	s := fakevalkey.Start(t, fakevalkey.Config{})
	for _, closeAfter := range []int{-1, 1, 3} {
		s.Usually(fakevalkey.Behaviour{Answers: []string{":12\r\n"}, CloseAfter: closeAfter})
		c, err := Dial(optionsFor(s))
		if err != nil {
			t.Fatal(err)
		}
		n, refusal, err := Eval(c, soon(), NewScript("x"), "k", []string{"1", "60"})
		demand(t, err, ErrLost)
		if n != 0 || refusal != "" || c.ok || !c.lost {
			t.Errorf("closed after %d bytes: got %d, %q, reusable %v, lost %v", closeAfter, n, refusal, c.ok, c.lost)
		}
		Close(c)
	}
}
