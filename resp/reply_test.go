package resp

import (
	"bufio"
	"errors"
	"io"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
)

var wellFormed = []struct {
	wire string
	want Reply
}{
	{"+OK\r\n", Reply{Kind: '+', Text: "OK"}},
	{"+\r\n", Reply{Kind: '+'}},
	{"-ERR no such thing\r\n", Reply{Kind: '-', Text: "ERR no such thing"}},
	{"-FOO\r\n", Reply{Kind: '-', Text: "FOO"}},
	{":0\r\n", Reply{Kind: ':'}},
	{":1000\r\n", Reply{Kind: ':', Int: 1000}},
	{":-1\r\n", Reply{Kind: ':', Int: -1}},
	{":+7\r\n", Reply{Kind: ':', Int: 7}},
	{":9223372036854775807\r\n", Reply{Kind: ':', Int: 9223372036854775807}},
	{":-9223372036854775808\r\n", Reply{Kind: ':', Int: -9223372036854775808}},
	{"$0\r\n\r\n", Reply{Kind: '$'}},
	{"$5\r\nhello\r\n", Reply{Kind: '$', Text: "hello"}},
	{"$-1\r\n", Reply{Kind: '$', Null: true}},
	{"$7\r\na\r\nb\r\nc\r\n", Reply{Kind: '$', Text: "a\r\nb\r\nc"}},
	{"$4\r\n\x00\xff\r\n\r\n", Reply{Kind: '$', Text: "\x00\xff\r\n"}},
	{"$2\r\n\xc3\xa9\r\n", Reply{Kind: '$', Text: "é"}},
	{"*0\r\n", Reply{Kind: '*'}},
	{"*-1\r\n", Reply{Kind: '*', Null: true}},
	{"*2\r\n$10\r\n1700000000\r\n$3\r\n123\r\n", Reply{Kind: '*', Array: []Reply{{Kind: '$', Text: "1700000000"}, {Kind: '$', Text: "123"}}}},
	{"*4\r\n:1\r\n$-1\r\n-ERR inside\r\n*1\r\n+deep\r\n", Reply{Kind: '*', Array: []Reply{
		{Kind: ':', Int: 1}, {Kind: '$', Null: true}, {Kind: '-', Text: "ERR inside"}, {Kind: '*', Array: []Reply{{Kind: '+', Text: "deep"}}}}}},
}

var malformed = []string{
	"\n", "\r\n", "OK\r\n", "x\r\n", "\x00\r\n", "\xff\r\n", " :1\r\n",
	"HTTP/1.1 400 Bad Request\r\n", "\x15\x03\x01\x00\x02\x02\x0a", "<html>\n",
	"%1\r\n+a\r\n+b\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(123\r\n", "=4\r\ntxt:\r\n", "~0\r\n", ">0\r\n",
	"+OK\n", "+O\rK\r\n", "+OK\r\r\n", "-\r\n", "-ERR\n",
	":\r\n", ":1\n", ":1 \r\n", ": 1\r\n", ":1.5\r\n", ":0x1\r\n", ":1e3\r\n", ":1_000\r\n", ":--1\r\n", ":9223372036854775808\r\n", ":-9223372036854775809\r\n", ":99999999999999999999999\r\n",
	"$\r\n", "$-2\r\n", "$-0\r\n", "$+1\r\na\r\n", "$1.0\r\na\r\n", "$a\r\n", "$ 1\r\na\r\n", "$1\na\r\n", "$-\r\n", "$--1\r\n",
	"$1\r\nab\r\n", "$1\r\na\n\r", "$1\r\na\r\r", "$1\r\nax\n", "$3\r\na\r\n:1\r\n", "$0\r\nab",
	"$1048577\r\n", "$2147483647\r\n", "$2147483648\r\n", "$4294967297\r\n", "$9223372036854775807\r\n", "$18446744073709551617\r\n", "$99999999999999999999999\r\n",
	"*\r\n", "*-2\r\n", "*+1\r\n:1\r\n", "*a\r\n", "*1\n:1\r\n", "*65536\r\n", "*2147483647\r\n", "*2147483648\r\n", "*4294967297\r\n", "*99999999999999999999999\r\n",
	"*1\r\nx\r\n", "*2\r\n:1\r\n:a\r\n", "*1\r\n$-2\r\n", "*1\r\n*-2\r\n",
	strings.Repeat("*1\r\n", maxDepth+1) + ":1\r\n",
	"+" + strings.Repeat("a", maxLine) + "\r\n",
	"-" + strings.Repeat("a", maxLine) + "\r\n",
	":" + strings.Repeat("1", maxLine) + "\r\n",
	"$" + strings.Repeat("0", maxLine) + "1\r\na\r\n",
	// Two arrays whose elements together are too many.
	"*2\r\n*40000\r\n" + strings.Repeat(":1\r\n", 40000) + "*40000\r\n",
	// Five bulk strings that are too large together.
	"*5\r\n" + strings.Repeat("$1048576\r\n"+strings.Repeat("a", 1<<20)+"\r\n", 5),
}

func reader(wire string) *bufio.Reader {
	return bufio.NewReaderSize(strings.NewReader(wire), maxLine)
}

func TestReadReply(t *testing.T) {
	for _, test := range wellFormed {
		got, err := readReply(reader(test.wire))
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%q: got %+v, %v, want %+v", test.wire, got, err, test.want)
		}
	}
}

func TestReadReplyAtItsLimits(t *testing.T) {
	for name, wire := range map[string]string{
		"line":     "+" + strings.Repeat("a", maxLine-3) + "\r\n",
		"bulk":     "$1048576\r\n" + strings.Repeat("a", maxBulk) + "\r\n",
		"depth":    strings.Repeat("*1\r\n", maxDepth) + ":1\r\n",
		"elements": "*65535\r\n" + strings.Repeat(":1\r\n", maxElements-1),
	} {
		if _, err := readReply(reader(wire)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReadReplyLeavesTheNextByte(t *testing.T) {
	for _, test := range wellFormed {
		r := reader(test.wire + "N")
		if _, err := readReply(r); err != nil {
			t.Errorf("%q: %v", test.wire, err)
		}
		if next, err := r.ReadByte(); err != nil || next != 'N' {
			t.Errorf("%q: the next byte is %q, %v", test.wire, next, err)
		}
	}
}

func TestReadReplyInPieces(t *testing.T) {
	for _, test := range wellFormed {
		r := bufio.NewReaderSize(iotest.OneByteReader(strings.NewReader(test.wire)), maxLine)
		got, err := readReply(r)
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%q byte by byte: got %+v, %v", test.wire, got, err)
		}
		for cut := 1; cut < len(test.wire); cut++ {
			parts := io.MultiReader(strings.NewReader(test.wire[:cut]), strings.NewReader(test.wire[cut:]))
			got, err := readReply(bufio.NewReaderSize(parts, maxLine))
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Errorf("%q cut at %d: got %+v, %v", test.wire, cut, got, err)
			}
		}
	}
}

// A reply that ends too early is a lost connection, never a shorter reply.
func TestReadReplyTruncated(t *testing.T) {
	for _, test := range wellFormed {
		for end := 0; end < len(test.wire); end++ {
			got, err := readReply(reader(test.wire[:end]))
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%q: got %+v, %v, want the end of the input", test.wire[:end], got, err)
			}
		}
	}
}

func TestReadReplyMalformed(t *testing.T) {
	for _, wire := range malformed {
		got, err := readReply(reader(wire))
		if !errors.Is(err, ErrProtocol) {
			shown := wire
			if len(shown) > 60 {
				shown = shown[:60] + "..."
			}
			t.Errorf("%q: got %+v, %v, want ErrProtocol", shown, got, err)
		}
	}
}

// What a length announces must not be allocated before it has arrived.
func TestReadReplyAllocatesNothingForPromises(t *testing.T) {
	for _, wire := range []string{"$2147483647\r\n", "$1048577\r\n", "*2147483647\r\n", "*65535\r\n", "*65000\r\n*-1\r\n"} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := 0; i < 100; i++ {
			_, _ = readReply(reader(wire))
		}
		runtime.ReadMemStats(&after)
		if size := (after.TotalAlloc - before.TotalAlloc) / 100; size > 4*maxLine {
			t.Errorf("%q: %d bytes allocated for each", wire, size)
		}
	}
}

// unread is the inverse of readReply.
func unread(r Reply) string {
	switch {
	case r.Null:
		return string(rune(r.Kind)) + "-1\r\n"
	case r.Kind == ':':
		return ":" + strconv.FormatInt(r.Int, 10) + "\r\n"
	case r.Kind == '$':
		return "$" + strconv.Itoa(len(r.Text)) + "\r\n" + r.Text + "\r\n"
	case r.Kind == '*':
		wire := "*" + strconv.Itoa(len(r.Array)) + "\r\n"
		for _, element := range r.Array {
			wire += unread(element)
		}
		return wire
	}
	return string(rune(r.Kind)) + r.Text + "\r\n"
}

func FuzzReadReply(f *testing.F) {
	for _, test := range wellFormed {
		f.Add([]byte(test.wire))
	}
	for _, wire := range malformed {
		if len(wire) < 2*maxLine {
			f.Add([]byte(wire))
		}
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := reader(string(wire) + "N")
		got, err := readReply(r)
		sameByEvalAll(t, string(wire), got, err)
		if err != nil {
			if !errors.Is(err, ErrProtocol) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("an error of no kind: %v", err)
			}
			return
		}
		// A reply ends with a line end, so what was added is not part of it.
		if _, err := r.ReadByte(); err != nil {
			t.Fatalf("%q: read beyond %+v", wire, got)
		}
		if again, err := readReply(reader(unread(got))); err != nil || !reflect.DeepEqual(again, got) {
			t.Fatalf("%+v encodes to %q, which reads as %+v, %v", got, unread(got), again, err)
		}
		pieces := bufio.NewReaderSize(iotest.OneByteReader(strings.NewReader(string(wire)+"N")), maxLine)
		if again, err := readReply(pieces); err != nil || !reflect.DeepEqual(again, got) {
			t.Fatalf("byte by byte %q reads as %+v, %v", wire, again, err)
		}
	})
}

// sameByEvalAll compares what EvalAll makes of a reply, by its straight path, with
// what readReply made of it.
func sameByEvalAll(t *testing.T, wire string, reply Reply, readErr error) {
	c, _ := connOn(wire)
	got := outcomeOf(c, 1)
	want := outcome{ok: got.ok}
	switch {
	case readErr == nil && reply.Kind == '-' && Word(reply.Text) == "NOSCRIPT":
		return
	case readErr == nil && reply.Kind == ':':
		want.answered, want.counts = 1, []int64{reply.Int}
	case readErr == nil && reply.Kind == '-':
		want.answered, want.counts, want.refusals = 1, []int64{0}, []string{reply.Text}
	case got.err == ErrProtocol || got.err == ErrLost:
		want.err, want.ok = got.err, false
	}
	if got.differs(want) {
		t.Fatalf("%q: EvalAll gives %+v, want %+v", wire, got, want)
	}
}
