package limiter

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
	"github.com/gatequota/gatequota/source"
	"github.com/gatequota/gatequota/window"
)

// logged collects the log of this package over all tests.
var logged = &lockedBuffer{}

type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// about returns the lines that hold a text.
func (b *lockedBuffer) about(text string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var lines []string
	for _, line := range strings.Split(b.text.String(), "\n") {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestMain(m *testing.M) {
	log.SetOutput(logged)
	os.Exit(m.Run())
}

// start is a moment in the middle of a window of a minute, and of a second.
var start = time.Unix(1764499230, 500e6)

// A call is one call of the script of the fixed window.
type call struct {
	key                 string
	n, known, left, end int64
}

// How a fake breaks the connection over a call of the script.
const (
	counted   = 1 // it is carried out, and the answer is lost
	uncounted = 2 // it is lost itself
)

// A fake is a store that gives the scripts the meaning that they have in Lua, but
// judges what is over by a clock of its own, which stands still.
type fake struct {
	*fakevalkey.Server
	t testing.TB

	unix atomic.Int64 // the time by which the script judges

	mu       sync.Mutex
	calls    []call            // that were carried out, but for those of probes
	breaks   int               // counted or uncounted, or 0
	skip     int               // calls before the one that is broken
	broken   bool              // the call that is under way is
	pending  bool              // the call to be broken is not through
	surplus  string            // sent behind the next answer
	refusals map[string]string // by what the key holds
	gateways int64             // that announced themselves; 0 means one that just did
	scopes   []string          // keys of announcements
}

// fakeStore runs a store whose own clock goes as ours does.
func fakeStore(t testing.TB) *fake {
	forget()
	f := &fake{t: t, refusals: map[string]string{}}
	f.Server = fakevalkey.Start(t, fakevalkey.Config{})
	f.unix.Store(start.Unix())
	f.Register(window.FixedScript, f.fixed)
	f.Register(AnnounceScript, f.announce)
	f.Usually(fakevalkey.Behaviour{Before: f.before})
	return f
}

// before breaks the connection, if this is the call to do so. What was read is carried
// out nevertheless.
func (f *fake) before(command []string) {
	if !strings.HasPrefix(command[0], "EVAL") || len(command) != 8 {
		return
	}
	f.mu.Lock()
	breaks := f.breaks != 0 && f.skip == 0
	if f.breaks != 0 {
		f.skip--
	}
	f.broken = breaks && f.breaks == uncounted
	if breaks {
		f.breaks = 0
	}
	f.mu.Unlock()
	if breaks {
		f.CloseConnections()
	}
}

// breakCall breaks the connection over the call after the next skip ones.
func (f *fake) breakCall(how, skip int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.breaks, f.skip, f.pending = how, skip, true
}

// through waits until that call is carried out, if it is: its client knows earlier that
// the connection broke.
func (f *fake) through() {
	f.t.Helper()
	eventually(f.t, "a call that was broken", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return !f.pending
	})
}

func (f *fake) fixed(s *fakevalkey.Server, args []string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = f.breaks != 0
	if f.broken {
		f.broken = false
		return fakevalkey.Null
	}
	for part, refusal := range f.refusals {
		if strings.Contains(args[0], part) {
			return fakevalkey.Error(refusal)
		}
	}
	if len(args) != 5 {
		f.t.Errorf("the script is called with %q", args)
		return fakevalkey.Error("ERR wrong number of arguments")
	}
	numbers := make([]int64, 5)
	for i := 1; i < 5; i++ {
		n, err := strconv.ParseInt(args[i], 10, 64)
		if err != nil {
			f.t.Errorf("the script is called with %q", args)
		}
		numbers[i] = n
	}
	c := call{args[0], numbers[1], numbers[2], numbers[3], numbers[4]}
	if c.n < 0 || c.known < 0 || c.n+c.known < 1 || c.left < 1 {
		f.t.Errorf("the script is called with %q", args)
	}
	if !strings.Contains(c.key, ":probe:") {
		f.calls = append(f.calls, c)
	}
	left := c.end - f.unix.Load()
	if left < 1 {
		return fakevalkey.Int(window.FixedOver)
	}
	add := func(n int64) (count int64) {
		answer := fakevalkey.Count(s, []string{c.key, strconv.FormatInt(n, 10), strconv.FormatInt(left, 10)})
		if _, err := fmt.Sscanf(answer, ":%d", &count); err != nil {
			f.t.Errorf("counting %q answers %q", args, answer)
		}
		return count
	}
	count := add(c.n)
	if count-c.n < c.known {
		count = add(c.known + c.n - count)
	}
	answer := fakevalkey.Int(count) + f.surplus
	f.surplus = ""
	return answer
}

// surplusOnce sends bytes that nobody asked for behind the next answer of the script.
func (f *fake) surplusOnce(bytes string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.surplus = bytes
}

func (f *fake) announce(_ *fakevalkey.Server, args []string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for part, refusal := range f.refusals {
		if strings.Contains(args[0], part) {
			return fakevalkey.Error(refusal)
		}
	}
	if len(args) != 4 || args[1] != gatewayID || args[2] != "15" {
		f.t.Errorf("a gateway is announced with %q", args)
	}
	f.scopes = append(f.scopes, args[0])
	if f.gateways == 0 {
		return fakevalkey.Int(1)
	}
	return fakevalkey.Int(f.gateways)
}

// refuse answers calls of scripts whose key holds part with an error line; empty ends
// it.
func (f *fake) refuse(part, line string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if line == "" {
		delete(f.refusals, part)
	} else {
		f.refusals[part] = line
	}
}

// since returns the calls that were carried out since the last one of since.
func (f *fake) since() []call {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

// countOf returns the count of a client in the window of start, and of so many after
// it.
func (f *fake) countOf(scope, client string, after int64) int64 {
	return f.Count(keyOf(scope, client, after))
}

func keyOf(scope, client string, after int64) string {
	return keyIn(scope, client, start.Unix()/60+after)
}

func keyIn(scope, client string, id int64) string {
	return "rate:" + scope + ":{" + fmt.Sprintf("%x", source.Digest(client)) + "}:" + strconv.FormatInt(id, 10)
}

// forget gives a test the state of a gateway that has just started.
func forget() {
	storesMu.Lock()
	stores = map[string]*store{}
	storesMu.Unlock()
	tablesMu.Lock()
	tables = map[string]*table{}
	ledgers = map[string]*ledger{}
	tablesMu.Unlock()
	controlsMu.Lock()
	controls = map[string]*Control{}
	controlsMu.Unlock()
	logged.mu.Lock()
	logged.text.Reset()
	logged.mu.Unlock()
}

func settings(name string, store *fake) *Settings {
	s := &Settings{Scope: name, Limit: 5, Window: 60, MaxClients: 1000, OnStoreFailure: Local}
	if store != nil {
		s.Store = &StoreSettings{Endpoint: name, Network: "tcp", Address: store.Addr(), Timeout: time.Minute,
			DialTimeout: 5 * time.Second, KeyPrefix: "rate", TLSIdentity: name}
	}
	return s
}

// open returns a limiter whose configuration is in force until the end of the test.
func open(t testing.TB, s *Settings) *Limiter {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return New(ctx, s, start)
}

// openAlone is open without a keeper: what a keeper does is up to the test.
func openAlone(t testing.TB, s *Settings) *Limiter {
	l := open(t, s)
	l.ledger.mu.Lock()
	l.store.kept = true
	l.ledger.mu.Unlock()
	return l
}

// take makes n requests and returns how many were allowed, and by which ways.
func take(l *Limiter, client string, n int, now time.Time) (allowed int, ways map[string]int) {
	ways = map[string]int{}
	for i := 0; i < n; i++ {
		d, way := takeAt(l, client, now)
		if d.Allowed {
			allowed++
		}
		ways[way]++
	}
	return allowed, ways
}

var newcomers atomic.Int64

// newcomer makes a request of a client that nothing is known of, and returns its way.
func newcomer(l *Limiter) string {
	_, way := takeAt(l, "newcomer "+strconv.FormatInt(newcomers.Add(1), 10), start)
	return way
}

// eventually waits for what goes on in the background.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

func setHealth(s *store, health int64) {
	s.ledger.mu.Lock()
	defer s.ledger.mu.Unlock()
	s.health = health
}

func keptOf(s *store) bool {
	s.ledger.mu.Lock()
	defer s.ledger.mu.Unlock()
	return s.kept
}

// takeAt takes a request that came at a time.
func takeAt(l *Limiter, client string, now time.Time) (d window.Decision, way string) {
	at := now.Sub(Began)
	if l.store == nil {
		TakeLocal(l, client, at, &d)
	} else {
		TakeShared(l, client, at, &d)
	}
	way = d.Way
	d.Way = ""
	return d, way
}
