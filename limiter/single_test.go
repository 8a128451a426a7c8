package limiter

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
	"github.com/gatequota/gatequota/resp"
	"github.com/gatequota/gatequota/window"
)

// batchesOf returns how many batches were made: a request that asks for itself makes
// none.
func batchesOf(l *Limiter) int64 {
	l.ledger.mu.Lock()
	defer l.ledger.mu.Unlock()
	return l.ledger.turns
}

// lone makes a request that finds the connection free, and demands that it took part in
// so many batches.
func lone(t *testing.T, what string, l *Limiter, client string, batches int64) taken {
	t.Helper()
	before := batchesOf(l)
	got := answerTo(t, what, begin(l, client, start))
	if made := batchesOf(l) - before; made != batches {
		t.Errorf("%s: it took part in %d batches, want %d", what, made, batches)
	}
	return got
}

// answerTo waits for a request, but not for ever.
func answerTo(t *testing.T, what string, done chan taken) taken {
	t.Helper()
	select {
	case got := <-done:
		return got
	case <-time.After(30 * time.Second):
		t.Fatalf("%s: a request waits for ever", what)
		return taken{}
	}
}

// told returns a decision as a channel that want reads.
func told(got taken) chan taken {
	done := make(chan taken, 1)
	done <- got
	return done
}

// lostOf returns what is booked as lost of a client.
func lostOf(l *Limiter, client string) int64 {
	l.ledger.mu.Lock()
	defer l.ledger.mu.Unlock()
	return window.FixedFind(l.counts, client, start.Unix()).Lost
}

func TestPanicInALoneRequestIsAStoreFailure(t *testing.T) {
	for _, mode := range []string{Local, Open, Closed} {
		for when, arm := range map[string]func(l *Limiter){
			"with the mutex":    func(l *Limiter) { l.table.length = 0 }, // by which the key's encoder divides
			"without the mutex": func(l *Limiter) { l.store.conn = &resp.Conn{Usable: true} },
		} {
			what := mode + ", " + when
			server := fakeStore(t)
			s := settings("lone panic", server)
			s.OnStoreFailure = mode
			l := openAlone(t, s)
			newcomer(l)
			arm(l)
			got := lone(t, what, l, "client", 0)
			if got.way != mode || got.Allowed != (mode != Closed) {
				t.Errorf("%s: %+v, want it decided by onStoreFailure", what, got)
			}
			if !l.ledger.mu.TryLock() {
				t.Fatalf("%s: the ledger stays locked", what)
			}
			l.table.length = 60
			l.ledger.mu.Unlock()
			if !l.store.turn.TryLock() {
				t.Fatalf("%s: the turn is not given back", what)
			}
			l.store.turn.Unlock()
			if got := healthOf(l.store); got != 1 {
				t.Errorf("%s: the health is %d, want 1 for one failure", what, got)
			}
			count := map[string]int64{Local: 2, Open: 1, Closed: 1}[mode]
			want(t, what+": after it", begin(l, "client", start), 5, count)
			want(t, what+": and then", told(lone(t, what, l, "client", 0)), 5, count+1)
			if got := healthOf(l.store); got != 0 {
				t.Errorf("%s: the health is %d, want 0 after an answer", what, got)
			}
			if got := server.Accepted(); got != 2 {
				t.Errorf("%s: %d connections, want another for the requests after it", what, got)
			}
		}
	}
}

// Bytes behind an answer would be taken for the next one.
func TestSurplusBehindAnAnswerCostsTheConnectionAlone(t *testing.T) {
	for _, together := range []bool{false, true} {
		what := "together " + strconv.FormatBool(together)
		server := fakeStore(t)
		l := openAlone(t, settings("surplus", server))
		newcomer(l)
		setHealth(l.store, away-1) // one failure more, and it is left alone
		server.surplusOnce(fakevalkey.Int(4))
		if together {
			l.store.turn.Lock()
			waiting := join(t, l, start, "client")
			l.store.turn.Unlock()
			want(t, what, waiting[0], 5, 1)
		} else {
			want(t, what, told(lone(t, what, l, "client", 0)), 5, 1)
		}
		if lost, health := lostOf(l, "client"), healthOf(l.store); lost != 0 || health != 0 {
			t.Errorf("%s: %d are lost, the health is %d; want 0, 0", what, lost, health)
		}
		server.since()
		want(t, what+": after it", told(lone(t, what, l, "client", 1)), 5, 2)
		called(t, what+": after it", server, 1, 1)
		want(t, what+": and then", told(lone(t, what, l, "client", 0)), 5, 3)
		if got := server.Accepted(); got != 2 {
			t.Errorf("%s: %d connections, want another for the requests after it", what, got)
		}
		if lost, health := lostOf(l, "client"), healthOf(l.store); lost != 0 || health != 0 {
			t.Errorf("%s: in the end %d are lost, the health is %d; want 0, 0", what, lost, health)
		}
		if lines := logged.about("store surplus:"); len(lines) != 0 {
			t.Errorf("%s: log %q, want none", what, lines)
		}
	}
}

func TestErrorAnswerToALoneRequest(t *testing.T) {
	for _, c := range []struct {
		line        string
		connections int // over all
	}{
		{"OOM command not allowed when used memory > 'maxmemory'.", 1},
		{"READONLY You can't write against a read only replica.", 2},
	} {
		server := fakeStore(t)
		l := openAlone(t, settings("error", server))
		newcomer(l)
		server.Refuse(c.line)
		got := lone(t, c.line, l, "client", 0)
		if expected := (taken{window.Decision{Allowed: true, Remaining: 4, Reset: 30}, Local}); got != expected {
			t.Errorf("%s: %+v, want %+v", c.line, got, expected)
		}
		if lost, health := lostOf(l, "client"), healthOf(l.store); lost != 1 || health != 1 {
			t.Errorf("%s: %d are lost, the health is %d; want 1, 1", c.line, lost, health)
		}
		server.Refuse("")
		server.since()
		want(t, c.line+": after it", begin(l, "client", start), 5, 2)
		called(t, c.line+": after it", server, 1, 1)
		want(t, c.line+": and then", told(lone(t, c.line, l, "client", 0)), 5, 3)
		if got := server.Accepted(); got != c.connections {
			t.Errorf("%s: %d connections, want %d", c.line, got, c.connections)
		}
	}
}

func TestLoneRequestOfAnEndedWindowCountsInTheNext(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("lone edge", server))
	newcomer(l)
	server.since()
	server.unix.Store(start.Unix() + 30)
	got := lone(t, "over", l, "client", 0)
	if expected := (taken{window.Decision{Allowed: true, Remaining: 4, Reset: 60}, Shared}); got != expected {
		t.Errorf("%+v, want %+v", got, expected)
	}
	if before, after := server.countOf("lone edge", "client", 0), server.countOf("lone edge", "client", 1); before != 0 || after != 1 {
		t.Errorf("the windows count %d and %d, want 0 and 1", before, after)
	}
	if calls := server.since(); len(calls) != 2 {
		t.Errorf("the calls are %+v, want one for each window", calls)
	}
	// A store whose clock is windows further on is no store to count with.
	server.unix.Store(start.Unix() + 600)
	if got := answerTo(t, "wrong clock", begin(l, "client", start.Add(time.Minute))); got.way != Local {
		t.Errorf("%+v, want local", got)
	}
}

func TestWhoComesMeanwhileTravelsInTheNextBatch(t *testing.T) {
	for _, breaks := range []bool{false, true} {
		server := fakeStore(t)
		l := openAlone(t, settings("meanwhile", server))
		newcomer(l)
		before := batchesOf(l)
		first := underWay(t, server, l)
		if got := batchesOf(l) - before; got != 0 {
			t.Fatalf("the first leads a batch")
		}
		waiting := join(t, l, start, "a", "first", "b", "first")
		if breaks {
			server.CloseConnections()
			if got := answerTo(t, "the first", first); !got.Allowed || got.way != Local {
				t.Errorf("the first: %+v, want allowed, local", got)
			}
		}
		server.Resume()
		if !breaks {
			want(t, "the first", first, 5, 1)
		}
		want(t, "a", waiting[0], 5, 1)
		want(t, "b", waiting[2], 5, 1)
		// Over another connection the store may hear of them before it hears of the first.
		if x, y := answerTo(t, "first again", waiting[1]), answerTo(t, "and again", waiting[3]); !x.Allowed || x.way != Shared || x.Remaining != y.Remaining+1 {
			t.Errorf("%+v and %+v, want two in a row, shared", x, y)
		}
		if got := batchesOf(l) - before; got != 1 {
			t.Errorf("they travelled in %d batches, want 1", got)
		}
		if got := healthOf(l.store); got != 0 {
			t.Errorf("the health is %d, want 0", got)
		}
	}
}

// A request is decided in three places: alone, among others of its client, and where it
// found its place in a batch the long way.
func TestSameCountIsSameDecisionByEachWay(t *testing.T) {
	server := fakeStore(t)
	number := 0
	for _, limit := range []int64{1, 4} {
		for requests := int64(1); requests <= 4; requests++ {
			for answer := requests; answer <= limit+requests+1; answer++ {
				number++
				who := strconv.Itoa(number)
				what := "limit " + strconv.FormatInt(limit, 10) + ", " + strconv.FormatInt(requests, 10) + " are answered with " + strconv.FormatInt(answer, 10)
				for _, scope := range []string{"newest", "before", "alone"} {
					s := settings(scope, server)
					s.Limit = limit
					s.Store.TLSIdentity = "ways" // one store for all
					l := openAlone(t, s)
					newcomer(l)
					server.SetCount(keyOf(scope, who, 0), answer-requests, time.Minute)
					if scope == "alone" {
						if requests == 1 {
							want(t, what+", alone", told(lone(t, what, l, who, 0)), limit, answer)
						}
						continue
					}
					if scope == "before" {
						// Of a window that is not the newest a count is found the long way.
						takeAt(l, "newcomer", start.Add(time.Minute))
					}
					l.store.turn.Lock()
					var waiting []chan taken
					for i := int64(0); i < requests; i++ {
						waiting = append(waiting, join(t, l, start, who)...)
					}
					l.store.turn.Unlock()
					for i, done := range waiting {
						want(t, what+", place "+strconv.Itoa(i+1)+", window "+scope, done, limit, answer-requests+int64(i)+1)
					}
				}
			}
		}
	}
}

// A key that holds something else, and that the user may not replace, is no sign that
// the store is ill.
func TestKeyOfAnotherTypeIsItsOwnTrouble(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("type", server))
	newcomer(l)
	server.refuse(keyOf("type", "client", 0), "WRONGTYPE Operation against a key holding the wrong kind of value")
	for i := int64(1); i <= 4; i++ {
		got := answerTo(t, "type", begin(l, "client", start))
		if expected := (taken{window.Decision{Allowed: true, Remaining: 5 - i, Reset: 30}, Local}); got != expected {
			t.Errorf("request %d: %+v, want %+v", i, got, expected)
		}
		if got := healthOf(l.store); got != 0 {
			t.Fatalf("after %d answers the health is %d, want 0", i, got)
		}
	}
	if way := newcomer(l); way != Shared {
		t.Errorf("another client is decided by way %s, want shared", way)
	}
	lines := logged.about("store type:")
	if len(lines) != 1 || !strings.Contains(lines[0], `"WRONGTYPE"`) || !strings.Contains(lines[0], `"rate:type"`) {
		t.Errorf("log %q, want one line that names the prefix", lines)
	}
}

// Who gets the turn next finds the answer in the count.
func TestTurnIsGivenOnWhenTheAnswerIsNoted(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("noted", server))
	first := underWay(t, server, l)
	l.ledger.mu.Lock()
	server.Resume()
	eventually(t, "a request that waits to note its answer", func() bool { return waitsForTurn("limiter.askSingle") })
	free := l.store.turn.TryLock()
	if free {
		l.store.turn.Unlock()
	}
	l.ledger.mu.Unlock()
	if free {
		t.Error("the turn is given on before the answer is in the count")
	}
	want(t, "the first", first, 5, 1)
}

func TestPanicAfterAPanicOfALoneRequest(t *testing.T) {
	server := fakeStore(t)
	l := openAlone(t, settings("no link", server))
	newcomer(l)
	link := l.store.link
	l.store.link = nil
	l.store.conn = &resp.Conn{Usable: true}
	got := lone(t, "x", l, "client", 0)
	if !got.Allowed || got.way != Local {
		t.Errorf("%+v, want allowed, local", got)
	}
	l.store.link = link
	want(t, "after it", begin(l, "client", start), 5, 2)
}
