package limiter

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"math/rand"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
	"github.com/gatequota/gatequota/resp"
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

// scriptTime is the time in seconds by which the script judges.
var scriptTime atomic.Int64

// start is a moment in the middle of a window of a minute, and of a second.
var start = time.Unix(1764499230, 500e6)

// fakeStore runs a store whose clock goes as ours does. It gives the script the
// meaning that it has in Lua, with scriptTime for the clock.
func fakeStore(t *testing.T) *fakevalkey.Server {
	forget()
	s := fakevalkey.Start(t, fakevalkey.Config{})
	s.Register(window.FixedScript, func(s *fakevalkey.Server, args []string) string {
		end, err := strconv.ParseInt(args[3], 10, 64)
		if err != nil {
			t.Errorf("the end of the window is %q", args[3])
		}
		answer := fakevalkey.Count(s, args[:3])
		if end <= scriptTime.Load() {
			return fakevalkey.Int(window.FixedOver)
		}
		return answer
	})
	return s
}

// forget gives a test the state of a gateway that has just started.
func forget() {
	storesMu.Lock()
	stores = map[string]*store{}
	storesMu.Unlock()
	tablesMu.Lock()
	tables = map[string]*table{}
	tablesMu.Unlock()
	logged.mu.Lock()
	logged.text.Reset()
	logged.mu.Unlock()
}

func settings(name string, store *fakevalkey.Server) *Settings {
	s := &Settings{Scope: name, Limit: 5, Window: 60, MaxClients: 100, OnStoreFailure: Local}
	if store != nil {
		s.Store = &StoreSettings{Endpoint: name, Network: "tcp", Address: store.Addr(), Timeout: time.Minute,
			DialTimeout: 5 * time.Second, KeyPrefix: "rate", TLSIdentity: name}
	}
	return s
}

// take makes n requests and returns how many were allowed, and by which ways.
func take(l *Limiter, client string, n int, now time.Time) (allowed int, ways map[string]int) {
	ways = map[string]int{}
	for i := 0; i < n; i++ {
		d, way := Take(l, client, now)
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
	_, way := Take(l, "newcomer "+strconv.FormatInt(newcomers.Add(1), 10), start)
	return way
}

// eventually waits for what goes on in the background.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

func TestTwoLimitersShareTheCountOfTheStore(t *testing.T) {
	store := fakeStore(t)
	scriptTime.Store(start.Unix())
	a, b := New(settings("two", store), start), New(settings("two", store), start)
	for i := 0; i < 8; i++ {
		l := a
		if i%2 == 1 {
			l = b
		}
		d, way := Take(l, "client", start)
		want := window.Decision{Reset: 30, RetryAfter: 30}
		if i < 5 {
			want = window.Decision{Allowed: true, Remaining: int64(4 - i), Reset: 30}
		}
		if d != want || way != Shared {
			t.Errorf("request %d: %+v by way %s, want %+v", i+1, d, way, want)
		}
	}
	if a.table != b.table || a.store != b.store {
		t.Error("the limiters of one scope have tables or stores of their own")
	}
	key := "rate:two:{" + fmt.Sprintf("%x", "client") + "}:29408320"
	if got := store.Count(key); got != 5 {
		t.Errorf("the count under %s is %d, want 5, since refusals need no store; keys: %q", key, got, store.Keys())
	}
	if ttl := store.TTL(key); ttl > 30*time.Second || ttl < 10*time.Second {
		t.Errorf("the key lives for %s, want the 30 s that are left of the window", ttl)
	}
}

func TestWindowsFollowTheStoresClock(t *testing.T) {
	store := fakeStore(t)
	scriptTime.Store(start.Unix())
	store.SetTime(time.Now().Add(time.Hour))
	l := New(settings("clock", store), start)
	d, way := Take(l, "client", start)
	if want := []string{"rate:clock:{" + fmt.Sprintf("%x", "client") + "}:29408380"}; !reflect.DeepEqual(store.Keys(), want) {
		t.Errorf("keys %q, want %q, an hour on from the first request's window", store.Keys(), want)
	}
	if d.Reset != 30 || way != Shared {
		t.Errorf("%+v by way %s, want a reset in 30 s, shared", d, way)
	}
}

func TestRequestOfAnEndedWindowCountsInTheNext(t *testing.T) {
	store := fakeStore(t)
	l := New(settings("edge", store), start)
	// By the store's clock the window ended while the request was on its way.
	scriptTime.Store(start.Unix() + 30)
	d, way := Take(l, "client", start)
	if !d.Allowed || d.Remaining != 4 || d.Reset != 60 || way != Shared {
		t.Errorf("%+v by way %s, want the first of five in a window of 60 s, shared", d, way)
	}
	if got := store.Count("rate:edge:{" + fmt.Sprintf("%x", "client") + "}:29408321"); got != 1 {
		t.Errorf("the next window counts %d, want 1; keys: %q", got, store.Keys())
	}
	// A store whose clock is a window further on is no store to count with.
	scriptTime.Store(start.Unix() + 300)
	if _, way := Take(l, "client", start); way != Local {
		t.Errorf("decided by way %s, want local", way)
	}
}

func TestLocalGoesOnFromTheLastSharedCount(t *testing.T) {
	store := fakeStore(t)
	scriptTime.Store(start.Unix())
	l := New(settings("warm", store), start)
	if allowed, _ := take(l, "client", 3, start); allowed != 3 {
		t.Fatalf("%d allowed, want 3", allowed)
	}
	store.Stop()
	allowed, ways := take(l, "client", 10, start)
	if allowed != 2 || ways[Local] != 10 {
		t.Errorf("%d allowed by ways %v, want the 2 that were left, all local", allowed, ways)
	}
	if err := store.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "counting in the store again", func() bool {
		return newcomer(l) == Shared
	})
}

func TestClosedAndOpen(t *testing.T) {
	store := fakeStore(t)
	store.Stop()
	closed, open := settings("closed", store), settings("open", store)
	closed.OnStoreFailure, open.OnStoreFailure = Closed, Open
	l := New(closed, start)
	for i := 0; i < 20; i++ {
		d, way := Take(l, "client", time.Now())
		if d.Allowed || way != Closed || d.RetryAfter < 1 || d.RetryAfter > 5 {
			t.Errorf("closed: %+v by way %s, want Retry-After 1 to 5", d, way)
		}
	}
	l = New(open, start)
	if allowed, ways := take(l, "client", 20, time.Now()); allowed != 20 || ways[Open] != 20 {
		t.Errorf("open: %d allowed by ways %v, want all", allowed, ways)
	}
}

func TestStoreThatIsAwayIsLeftAlone(t *testing.T) {
	store := fakeStore(t)
	scriptTime.Store(start.Unix())
	store.Refuse("OOM command not allowed when used memory > 'maxmemory'.")
	l := New(settings("away", store), start)
	take(l, "client", 3, start)
	store.ForgetCommands()
	_, ways := take(l, "client", 1000, start)
	if ways[Local] != 1000 {
		t.Errorf("ways %v, want local alone", ways)
	}
	scripts := 0
	for _, command := range store.Commands() {
		if strings.HasPrefix(command.Args[0], "EVAL") && !strings.Contains(strings.Join(command.Args, " "), ":probe:") {
			scripts++
		}
	}
	if scripts != 0 {
		t.Errorf("%d requests asked a store that was away", scripts)
	}
	store.Refuse("")
	eventually(t, "counting in the store again", func() bool {
		return newcomer(l) == Shared
	})
	lines := logged.about("store away:")
	if len(lines) != 2 || !strings.Contains(lines[0], `"OOM"`) || !strings.Contains(lines[1], "answers again") {
		t.Errorf("log %q, want one line for going and one for coming back", lines)
	}
}

func TestTimeoutsWeighMoreThanRefusals(t *testing.T) {
	s := openStore(&StoreSettings{Endpoint: "weights", TLSIdentity: "weights", Network: "tcp", Address: "127.0.0.1:1", DialTimeout: time.Second, Timeout: time.Second})
	for _, c := range []struct {
		errs []error
		want int64
	}{
		{[]error{errors.New("refused"), errors.New("refused")}, 2},
		{[]error{resp.ErrTimeout}, 2},
		{[]error{fmt.Errorf("%w: %w", resp.ErrPoolTimeout, resp.ErrTimeout)}, 2},    // the server was silent
		{[]error{resp.ErrPoolTimeout, resp.ErrPoolTimeout, resp.ErrPoolTimeout}, 0}, // others were in the way
	} {
		s.health.Store(0)
		for _, err := range c.errs {
			failed(s, "rate", "", err)
		}
		if got := s.health.Load(); got != c.want {
			t.Errorf("after %q the health is %d, want %d", c.errs, got, c.want)
		}
	}
	s.health.Store(2)
	failed(s, "rate", "NOPERM no permissions to access a key", nil)
	if got := s.health.Load(); got != 2 {
		t.Errorf("after NOPERM for one prefix the health is %d, want 2 as before", got)
	}
	answered(s)
	if got := s.health.Load(); got != 0 {
		t.Errorf("after an answer the health is %d, want 0", got)
	}
	s.health.Store(away)
	answered(s)
	if got := s.health.Load(); got != away {
		t.Errorf("after a late answer of a store that is away the health is %d, want %d: a probe decides", got, away)
	}
}

func TestUnsteadyStoreDoesNotFloodTheLog(t *testing.T) {
	forget()
	s := openStore(&StoreSettings{Endpoint: "unsteady", Network: "tcp", Address: "127.0.0.1:1", DialTimeout: time.Second, Timeout: time.Second, KeyPrefix: "rate"})
	s.probing.Store(true) // no probe besides
	for i := 0; i < 50; i++ {
		failed(s, "rate", "", resp.ErrTimeout)
		failed(s, "rate", []string{"OOM a", "BUSY b", "FOO c"}[i%3], nil)
		recovered(s)
	}
	lines := logged.about("store unsteady:")
	if len(lines) != 4 || !strings.Contains(lines[0], "away (") || !strings.Contains(lines[1], "answers again") ||
		!strings.Contains(lines[2], "not steady") || !strings.Contains(lines[3], "answers again") {
		t.Errorf("log %q, want going and coming back twice, the second time with a word about the rest", lines)
	}
	s.mu.Lock()
	s.wentAway, s.cameBack = time.Now().Add(-time.Hour), time.Now()
	s.told = false
	s.mu.Unlock()
	s.health.Store(away)
	recovered(s)
	if lines := logged.about("answers again after 1h"); len(lines) != 1 {
		t.Errorf("log %q, want a line for the end of a long outage", lines)
	}
}

func TestProbingEndsWhenNobodyAsks(t *testing.T) {
	store := fakeStore(t)
	store.Refuse("LOADING the dataset is loaded into memory")
	l := New(settings("idle", store), start)
	l.store.probeIdle = 0
	take(l, "client", 3, start)
	eventually(t, "the end of probing", func() bool { return !l.store.probing.Load() })
	if l.store.health.Load() < away {
		t.Error("the store counts as healthy though nothing was heard of it")
	}
	l.store.probeIdle = time.Minute
	scriptTime.Store(start.Unix())
	store.Refuse("")
	eventually(t, "the first request after the silence begins probing, which finds the store back", func() bool {
		return newcomer(l) == Shared
	})
}

func TestPanicAtTheStoreIsAStoreFailure(t *testing.T) {
	l := New(settings("panic", fakeStore(t)), start)
	l.store = newStore(&StoreSettings{Endpoint: "panic", Timeout: time.Second})
	l.store.pool = nil
	if d, way := Take(l, "client", start); !d.Allowed || way != Local {
		t.Errorf("%+v by way %s, want allowed by the local count", d, way)
	}
}

func TestOutlyingClockReadingsAreDiscarded(t *testing.T) {
	s := &store{}
	for i, c := range []struct{ origin, roundTrip, want time.Duration }{
		{10 * time.Second, time.Millisecond, 10 * time.Second},
		{11 * time.Second, 500 * time.Millisecond, 10 * time.Second},
		{10*time.Second + 1, 2 * time.Millisecond, 10*time.Second + 1},
		{12 * time.Second, 100 * time.Millisecond, 10*time.Second + 1},
		{12 * time.Second, 9 * time.Millisecond, 12 * time.Second}, // slower since, and believed
		{-time.Hour, time.Microsecond, -time.Hour},                 // the store's clock was set
	} {
		learnClock(s, int64(c.origin), c.roundTrip)
		if got := time.Duration(s.origin.Load()); got != c.want {
			t.Errorf("reading %d: origin %s, want %s", i, got, c.want)
		}
	}
}

func TestUserWithoutTimeIsToldOnce(t *testing.T) {
	store := fakeStore(t)
	store.Handle("TIME", func(_ *fakevalkey.Server, _ []string) string {
		return fakevalkey.Error("NOPERM User limiter has no permissions to run the 'time' command")
	})
	scriptTime.Store(0)
	l := New(settings("no time", store), start)
	for i := 0; i < 3; i++ {
		if d, way := Take(l, "client", start); !d.Allowed || way != Shared || d.Reset != 30 {
			t.Errorf("request %d: %+v by way %s, want allowed in a window of our own clock, shared", i+1, d, way)
		}
		store.CloseConnections()
		resp.DropIdle(l.store.pool)
	}
	if lines := logged.about("refuses TIME"); len(lines) != 1 {
		t.Errorf("log %q, want one line", lines)
	}
}

func TestStoresAreSharedByIdentity(t *testing.T) {
	base := StoreSettings{Network: "tcp", Address: "127.0.0.1:1", Username: "u", Password: "p", DB: 1, Timeout: time.Second, DialTimeout: time.Second, KeyPrefix: "rate"}
	first := openStore(&base)
	same := base
	same.KeyPrefix = "other"
	if openStore(&same) != first {
		t.Error("another key prefix makes another store")
	}
	for name, change := range map[string]func(*StoreSettings){
		"network":     func(s *StoreSettings) { s.Network = "unix" },
		"address":     func(s *StoreSettings) { s.Address = "127.0.0.1:2" },
		"username":    func(s *StoreSettings) { s.Username = "v" },
		"password":    func(s *StoreSettings) { s.Password = "q" },
		"db":          func(s *StoreSettings) { s.DB = 2 },
		"tls":         func(s *StoreSettings) { s.TLSIdentity = "t" },
		"timeout":     func(s *StoreSettings) { s.Timeout = 2 * time.Second },
		"dialTimeout": func(s *StoreSettings) { s.DialTimeout = 2 * time.Second },
	} {
		other := base
		change(&other)
		if openStore(&other) == first {
			t.Errorf("another %s makes no other store", name)
		}
	}
}

func TestTablesAreKeyedByLedgerScopeAndLength(t *testing.T) {
	a := openTable("", "tables", 60, 10, start)
	if openTable("", "tables", 60, 20, start) != a {
		t.Error("one scope has two tables")
	}
	if got := window.FixedMax(a.counts); got != 20 {
		t.Errorf("the table holds at most %d, want the 20 that were loaded last", got)
	}
	if openTable("", "tables", 3600, 10, start) == a || openTable("", "tables2", 60, 10, start) == a || openTable("tcp x 0 rate", "tables", 60, 10, start) == a {
		t.Error("another length, scope or ledger has the same table")
	}
}

func TestTableThatNobodyUsesIsEmptied(t *testing.T) {
	forget()
	l := New(&Settings{Scope: "unused", Limit: 5, Window: 60, MaxClients: 10}, start)
	take(l, "client", 3, start)
	New(&Settings{Scope: "another", Limit: 5, Window: 60, MaxClients: 10}, start.Add(time.Second))
	if got := window.FixedLen(l.table.counts); got != 1 {
		t.Errorf("a reload leaves %d clients, want 1", got)
	}
	New(&Settings{Scope: "another", Limit: 5, Window: 60, MaxClients: 10}, start.Add(3*time.Minute))
	if got := window.FixedLen(l.table.counts); got != 0 {
		t.Errorf("two windows later there are %d clients, want 0", got)
	}
}

func TestReasonsHoldNothingButTheFirstWord(t *testing.T) {
	for refusal, want := range map[string]string{
		"WRONGPASS invalid username-password pair": `"WRONGPASS": wrong valkey.username, valkey.password or valkey.passwordFile`,
		"FOO hunter2":              `"FOO"`,
		"MOVED 1234 10.0.0.1:6379": `"MOVED": it is a node of a cluster, which is not supported`,
	} {
		if got := reason(refusal, nil); got != want {
			t.Errorf("reason(%q) = %q, want %q", refusal, got, want)
		}
	}
}

func TestReasonsOfARefusedOpeningSayWhatToDo(t *testing.T) {
	for _, c := range []struct {
		config fakevalkey.Config
		db     int
		want   string
	}{
		{fakevalkey.Config{Password: "secret"}, 0, "WRONGPASS: wrong valkey.username"},
		{fakevalkey.Config{}, 99, "ERR: check valkey.db"},
	} {
		server := fakevalkey.Start(t, c.config)
		o := &resp.Options{Network: "tcp", Address: server.Addr(), DB: c.db, DialTimeout: time.Minute}
		if c.config.Password != "" {
			o.Password = "hunter2"
		}
		_, err := resp.Dial(o)
		if got := reason("", err); !strings.Contains(got, c.want) || strings.Contains(got, "hunter2") {
			t.Errorf("reason %q, want it to hold %q", got, c.want)
		}
	}
}

func TestManyAtOnceGetExactlyTheLimit(t *testing.T) {
	store := fakeStore(t)
	scriptTime.Store(start.Unix())
	for _, c := range []struct {
		name  string
		store *fakevalkey.Server
	}{{"crowd shared", store}, {"crowd local", nil}} {
		s := settings(c.name, c.store)
		s.Limit = 50
		var allowed sync.Map
		var group sync.WaitGroup
		for g := 0; g < 20; g++ {
			group.Add(1)
			go func(l *Limiter) {
				defer group.Done()
				for i := 0; i < 25; i++ {
					if d, _ := Take(l, "client", start); d.Allowed {
						if _, twice := allowed.LoadOrStore(d.Remaining, true); twice {
							t.Errorf("%s: remaining %d was told twice", c.name, d.Remaining)
						}
					}
				}
			}(New(s, start))
		}
		group.Wait()
		for left := int64(0); left < 50; left++ {
			if _, ok := allowed.Load(left); !ok {
				t.Errorf("%s: nobody was told that %d remain", c.name, left)
			}
		}
	}
}

// Over any history of failures a client gets at most the limit from the store and,
// besides, from each gateway at most the limit less what that gateway had seen when
// it first had to decide alone.
func TestExtraRequestsDuringFailuresAreBounded(t *testing.T) {
	const limit, gateways = 20, 3
	server := fakeStore(t)
	scriptTime.Store(start.Unix())
	random := rand.New(rand.NewSource(3))
	worst := 0
	for round := 0; round < 100; round++ {
		var ledger [gateways]*Limiter
		for g := range ledger {
			s := settings("bound "+strconv.Itoa(round), server)
			s.Limit = limit
			forget() // each gateway is a process of its own
			ledger[g] = New(s, start)
			ledger[g].store.probing.Store(true) // failing and coming back is up to the test
		}
		var shared, total int
		var local, seen [gateways]int
		for i := 0; i < 300; i++ {
			switch random.Intn(20) {
			case 0:
				server.Refuse("OOM command not allowed")
			case 1, 2:
				server.Refuse("")
				for g := range ledger {
					ledger[g].store.health.Store(0)
				}
			}
			g := random.Intn(gateways)
			d, way := Take(ledger[g], "client", start)
			switch {
			case way == Shared:
				if local[g] == 0 {
					seen[g] = limit - int(d.Remaining)
				}
				if d.Allowed {
					shared++
				}
			case d.Allowed:
				local[g]++
				if local[g] > limit-seen[g] {
					t.Fatalf("round %d: gateway %d let %d pass after it had seen %d of %d", round, g, local[g], seen[g], limit)
				}
			}
			if d.Allowed {
				total++
			}
		}
		if shared > limit {
			t.Errorf("round %d: the store let %d pass, want at most %d", round, shared, limit)
		}
		if total > worst {
			worst = total
		}
		server.Refuse("")
		for g := range ledger {
			resp.DropIdle(ledger[g].store.pool)
		}
	}
	if worst > limit*(1+gateways) {
		t.Errorf("a client got %d, want at most %d", worst, limit*(1+gateways))
	}
	t.Logf("the worst of 100 rounds: %d requests of one client, limit %d, %d gateways", worst, limit, gateways)
}

func TestClockIsReadAgainWhenItIsOld(t *testing.T) {
	server := fakeStore(t)
	scriptTime.Store(start.Unix())
	l := New(settings("age", server), start)
	reads := func() (n int) {
		for _, command := range server.Commands() {
			if command.Args[0] == "TIME" {
				n++
			}
		}
		return n
	}
	take(l, "client", 3, start)
	if got := reads(); got != 1 {
		t.Errorf("the clock was read %d times for three requests, want once", got)
	}
	server.Advance(time.Hour)
	l.store.clockAge = 0
	if d, way := Take(l, "client", start); way != Shared || d.Remaining != 4 {
		t.Errorf("%+v by way %s, want the first in a window of the new time", d, way)
	}
	if got := reads(); got != 2 {
		t.Errorf("the clock was read %d times, want once more", got)
	}
}

func TestPausesGrowToFiveSecondsAndVary(t *testing.T) {
	pause := firstPause
	for i := 0; i < 10; i++ {
		for _, chance := range []float64{0, 0.5, 0.999} {
			if got := jittered(pause, chance); got > pause || got < pause/2 || got > longestPause || chance > 0 && got == pause {
				t.Errorf("a pause of %s becomes %s", pause, got)
			}
		}
		next := longer(pause)
		if next <= pause && next != longestPause || next > longestPause {
			t.Errorf("after %s comes %s", pause, next)
		}
		pause = next
	}
	if pause != 5*time.Second {
		t.Errorf("pauses grow to %s, want 5 s", pause)
	}
}

func TestLastingTroubleIsRepeated(t *testing.T) {
	forget()
	s := newStore(&StoreSettings{Endpoint: "lasting"})
	lasting(s, "away", "first")
	lasting(s, "away", "too soon")
	s.repeatAfter = 0
	lasting(s, "away", "again")
	lasting(s, "other", "another trouble")
	if lines := logged.about("store lasting:"); len(lines) != 3 {
		t.Errorf("log %q, want three lines", lines)
	}
}

func TestProbeRepeatsThatTheStoreIsAway(t *testing.T) {
	server := fakeStore(t)
	server.Refuse("LOADING the dataset")
	l := New(settings("repeat", server), start)
	l.store.repeatAfter = 0
	take(l, "client", 3, start)
	eventually(t, "a line that the store is still away", func() bool { return len(logged.about("repeat: still away (\"LOADING\": it is starting)")) > 0 })
}

// More requests than the connections can carry are no sign that the store is ill.
func TestBusyConnectionsAreNoStoreFailure(t *testing.T) {
	server := fakeStore(t)
	scriptTime.Store(start.Unix())
	s := settings("busy", server)
	s.Store.Timeout = 50 * time.Millisecond
	l := New(s, start)
	var held []*resp.Conn
	for i := 0; i < poolSize; i++ {
		conn, err := resp.Acquire(l.store.pool, time.Now().Add(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	if allowed, ways := take(l, "client", 4, start); allowed != 4 || ways[Local] != 4 {
		t.Errorf("%d allowed by ways %v, want 4, local", allowed, ways)
	}
	if got := l.store.health.Load(); got != 0 {
		t.Errorf("the health is %d, want 0", got)
	}
	if lines := logged.about("store busy:"); len(lines) != 1 || !strings.Contains(lines[0], "none of 32 connections") {
		t.Errorf("log %q, want one line", lines)
	}
	for _, conn := range held {
		resp.Release(l.store.pool, conn)
	}
	l.store.timeout = time.Minute
	if d, way := Take(l, "other", start); way != Shared {
		t.Errorf("%+v by way %s when connections are free, want shared", d, way)
	}
}

func TestReasonNamesTheCommandThatIsRefused(t *testing.T) {
	for refusal, want := range map[string]string{
		"NOPERM User limiter has no permissions to run the 'evalsha' command":                        "EVALSHA",
		"NOPERM this user has no permissions to run the 'evalsha' command or its subcommand":         "EVALSHA",
		"ERR ACL failure in script: User limiter has no permissions to run the 'incrby' command":     "INCRBY",
		"ERR unknown command 'EVALSHA', with args beginning with: '0a4d' '1' 'rate:quota:{6ab9}:1' ": "EVALSHA",
	} {
		if got := reason(refusal, nil); !strings.HasSuffix(got, "names the command "+want) {
			t.Errorf("reason(%q) = %q, want the command %s", refusal, got, want)
		}
	}
}

// A client over its limit costs the store nothing, and others no connection.
func TestRefusedClientIsNotAskedFor(t *testing.T) {
	server := fakeStore(t)
	scriptTime.Store(start.Unix())
	l := New(settings("known", server), start)
	take(l, "client", 5, start)
	server.ForgetCommands()
	for i := 0; i < 100; i++ {
		d, way := Take(l, "client", start)
		if want := (window.Decision{Reset: 30, RetryAfter: 30}); d != want || way != Shared {
			t.Fatalf("%+v by way %s, want %+v, shared", d, way, want)
		}
	}
	if commands := server.Commands(); len(commands) != 0 {
		t.Errorf("the store got %d commands, want none", len(commands))
	}
	// What is known is the count and not the verdict: another limit on the same
	// count asks, and so does the next window.
	wider := settings("known", server)
	wider.Limit = 10
	if d, way := Take(New(wider, start), "client", start); !d.Allowed || d.Remaining != 4 || way != Shared {
		t.Errorf("%+v by way %s under a wider limit, want the sixth of ten, shared", d, way)
	}
	scriptTime.Store(start.Unix() + 60)
	if d, way := Take(l, "client", start.Add(time.Minute)); !d.Allowed || way != Shared {
		t.Errorf("%+v by way %s in the next window, want allowed, shared", d, way)
	}
}

// A connection that the server closed while it was idle costs no request its count.
func TestConnectionsClosedWhileIdleAreNoticed(t *testing.T) {
	server := fakeStore(t)
	scriptTime.Store(start.Unix())
	l := New(settings("idle", server), start)
	take(l, "client", 1, start)
	server.CloseConnections()
	eventually(t, "the end of the connection", func() bool { return server.Open() == 0 })
	conn, err := resp.Acquire(l.store.pool, time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	conn.Used -= int64(time.Hour)
	resp.Release(l.store.pool, conn)
	eventually(t, "a look that finds the connection closed", func() bool {
		d, way := Take(l, "client", start)
		return way == Shared && d.Allowed
	})
	if lines := logged.about("store idle:"); len(lines) != 0 {
		t.Errorf("log %q, want none", lines)
	}
}
