package main

import (
	"encoding/binary"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"
)

// onWire returns an IPv4 packet as a raw socket shows it.
func onWire(from, to uint16, sequence uint32, flags byte, payload string) []byte {
	b := make([]byte, 44, 44+len(payload)) // both heads, four bytes of TCP options in them
	b[0], b[9], b[32] = 0x45, syscall.IPPROTO_TCP, 6<<4
	binary.BigEndian.PutUint16(b[2:], uint16(44+len(payload)))
	binary.BigEndian.PutUint16(b[20:], from)
	binary.BigEndian.PutUint16(b[22:], to)
	binary.BigEndian.PutUint32(b[24:], sequence)
	b[33] = flags
	return append(b, payload...)
}

func TestReadPacket(t *testing.T) {
	t.Parallel()
	const syn, ack = 2, 16
	udp := onWire(50000, 6379, 1, ack, "x")
	udp[9] = syscall.IPPROTO_UDP
	for name, tt := range map[string]struct {
		bytes []byte
		want  string
	}{
		"call":           {onWire(50000, 6379, 7, ack, "PING"), "50000 false false 7 PING"},
		"answer":         {onWire(6379, 50000, 9, ack, "+OK"), "50000 true false 9 +OK"},
		"opening":        {onWire(50000, 6379, 7, syn, ""), "50000 false true 7 "},
		"padded":         {append(onWire(50000, 6379, 7, ack, "PING"), 0, 0), "50000 false false 7 PING"},
		"acknowledgment": {onWire(50000, 6379, 7, ack, ""), ""},
		"another port":   {onWire(50000, 6380, 7, ack, "PING"), ""},
		"no TCP":         {udp, ""},
		"cut":            {onWire(50000, 6379, 7, ack, "PING")[:40], ""},
		"empty":          {nil, ""},
	} {
		got := ""
		if p, ok := readPacket(tt.bytes, 6379); ok {
			got = fmt.Sprintf("%d %t %t %d %s", p.client, p.fromStore, p.opens, p.sequence, p.payload)
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestMessageLength(t *testing.T) {
	t.Parallel()
	for _, whole := range []string{
		"+OK\r\n", "-ERR no\r\n", ":12\r\n", "$-1\r\n", "$0\r\n\r\n", "$4\r\na\r\nb\r\n", "*0\r\n", "*-1\r\n", "*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
	} {
		if got, err := messageLength([]byte(whole + ":1\r\n")); err != nil || got != len(whole) {
			t.Errorf("%q: %d, %v, want %d", whole, got, err, len(whole))
		}
		for cut := range len(whole) {
			if got, err := messageLength([]byte(whole[:cut])); err != nil || got != 0 {
				t.Errorf("%q: %d, %v, want 0", whole[:cut], got, err)
			}
		}
	}
	for _, bad := range []string{"PING\r\n", "$x\r\n", "*1\r\n?\r\n", "\r\n"} {
		if _, err := messageLength([]byte(bad)); err == nil {
			t.Errorf("%q is taken for a message", bad)
		}
	}
}

// call returns a call that adds to the count of a client.
func call(client string) string {
	words := []string{"EVALSHA", "digest", "1", "rate:s:{" + client + "}:1", "1"}
	text := fmt.Sprintf("*%d\r\n", len(words))
	for _, w := range words {
		text += fmt.Sprintf("$%d\r\n%s\r\n", len(w), w)
	}
	return text
}

// Calls are paired with their answers in order, however packets cut them, and also
// where a packet came twice.
func TestPairing(t *testing.T) {
	t.Parallel()
	calls := call("a") + "*1\r\n$4\r\nTIME\r\n" + call("b")
	first := len(call("a")) - 3
	packets := []packet{
		{at: 1, client: 5, sequence: 99, opens: true},
		{at: 2, client: 5, sequence: 100, payload: []byte(calls[:first])},
		{at: 2, client: 6, sequence: 7, payload: []byte(call("c"))}, // opened before
		{at: 3, client: 5, sequence: 100, payload: []byte(calls[:first])},
		{at: 4, client: 5, sequence: 100 + uint32(first), payload: []byte(calls[first:])},
		{at: 5, client: 5, sequence: 500, fromStore: true, payload: []byte(":3")},
		{at: 6, client: 5, sequence: 502, fromStore: true, payload: []byte("\r\n*2\r\n$1\r\n1\r\n$1\r\n2\r\n:8\r\n")},
	}
	c := &capture{flows: map[uint16]*flow{}}
	got, err := c.pair(packets)
	want := []exchange{{"rate:s:{a}:1", 3, 2, 6}, {"rate:s:{b}:1", 8, 4, 6}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	got, err = c.pair([]packet{{at: 9, client: 6, sequence: 40, fromStore: true, payload: []byte(":1\r\n")}})
	if want := []exchange{{"rate:s:{c}:1", 1, 2, 9}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("later: %v, %v, want %v", got, err, want)
	}
	if _, err := c.pair([]packet{{at: 9, client: 6, sequence: 60, fromStore: true, payload: []byte(":1\r\n")}}); err == nil {
		t.Error("a packet is missing and nobody says so")
	}
}

func TestPartsOfADecision(t *testing.T) {
	t.Parallel()
	key := func(client int) string { return "rate:s:{" + hashOf(client) + "}:1" }
	calls := []exchange{{key(0), 3, 200, 300}, {key(1), 1, 500, 540}, {key(0), 2, 100, 150}}
	remaining := func(count int64) string { return fmt.Sprint(decisionLimit - count) }
	requests := []asked{
		{begin: 90, end: 310, client: 0, remaining: remaining(3)},
		{begin: 90, end: 160, client: 0, remaining: remaining(1)}, // counted together with the next
		{begin: 90, end: 160, client: 0, remaining: remaining(2)},
		{begin: 480, end: 560, client: 1, remaining: remaining(1)},
	}
	d, err := apart(requests, calls)
	if err != nil {
		t.Fatal(err)
	}
	highest := func(n time.Duration) float64 { return float64(n.Nanoseconds()) / 1000 }
	if d.calls != 0.75 || d.whole.p999 != highest(220) || d.wait.p999 != highest(110) || d.store.p999 != highest(100) || d.answered.p999 != highest(20) {
		t.Errorf("%+v", d)
	}
	for name, r := range map[string]asked{
		"counted by no call":         {begin: 90, end: 310, client: 0, remaining: remaining(4)},
		"counted before it was made": {begin: 250, end: 310, client: 0, remaining: remaining(3)},
		"of another client":          {begin: 90, end: 310, client: 2, remaining: remaining(1)},
		"without a field":            {begin: 90, end: 310, client: 0},
	} {
		if _, err := apart([]asked{r}, calls); err == nil {
			t.Errorf("a request %s is told apart", name)
		}
	}
	if _, err := apart(nil, nil); err == nil {
		t.Error("parts of nothing")
	}
}

func TestStatisticsOfTheStore(t *testing.T) {
	t.Parallel()
	if got, err := readPercentiles("p50=5.023,p95=9,p99=28.031,p99.9=86.5"); err != nil || got != (quantiles{5.023, 9, 28.031, 86.5}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := readPercentiles("p50=5.023,p99=28.031,p99.9=86.5"); err == nil {
		t.Error("p95 is missing and nobody says so")
	}
	if got, err := readMean("calls=3,usec=47,usec_per_call=15.67,rejected_calls=0"); err != nil || got != 15.67 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := readMean(""); err == nil {
		t.Error("the mean is missing and nobody says so")
	}
}

func TestQuantiles(t *testing.T) {
	t.Parallel()
	var times []time.Duration
	for n := range 1001 {
		times = append(times, time.Duration(1000-n)*time.Microsecond)
	}
	if got, want := quantilesOf(times), (quantiles{500, 950, 990, 999}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := quantilesOf([]time.Duration{time.Millisecond}), (quantiles{1000, 1000, 1000, 1000}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}
