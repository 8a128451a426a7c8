package limiter

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
	"github.com/gatequota/gatequota/source"
	"github.com/gatequota/gatequota/window"
)

// A controlledStore is a store in which somebody changes what gateways do. Its clock stands
// at start.
type controlledStore struct {
	*algorithmFake
	controls *fakevalkey.Controls
}

const (
	controlKey = "rate:algorithm:control"
	reportsKey = "rate:algorithm:reports"
)

func controlled(t testing.TB) *controlledStore {
	f := &controlledStore{algorithmFake: algorithmStore(t), controls: &fakevalkey.Controls{}}
	f.Register(ControlScript, f.controls.Call)
	f.SetTime(start)
	return f
}

// flush has the store forget all counts.
func (f *controlledStore) flush() {
	f.Flush()
	f.store.Flush()
}

// hourOf is the settings of a limit of 5 in an hour, in this store.
func (f *controlledStore) hourOf(algorithm window.Algorithm) *Settings {
	s := settings("algorithm", f.fake)
	s.Algorithm, s.Window, s.Burst, s.MaxClients = algorithm, 3600, 5, 10000
	return s
}

// describe is what a gateway of these tests reports of itself.
func describe(c *Control, version, at int64) string {
	return fmt.Sprintf(`{"version":%d,"at":%d}`, version, at)
}

func nothing(*Control) {}

// control returns the control of the scope, which nobody reads but the test.
func (f *controlledStore) control(t testing.TB) *Control {
	s := f.hourOf(window.Fixed)
	openAlone(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return OpenControl(ctx, s, describe, nothing)
}

// reported returns what this gateway has reported last.
func (f *controlledStore) reported(t testing.TB) (version, at int64) {
	t.Helper()
	text := f.controls.Hash(reportsKey)[gatewayID]
	if _, err := fmt.Sscanf(text, `{"version":%d,"at":%d}`, &version, &at); err != nil {
		t.Errorf("the report is %q", text)
	}
	return version, at
}

// later moves the store's time on, as this gateway sees it.
func later(s *store, by time.Duration) {
	s.ledger.mu.Lock()
	s.origin += int64(by)
	s.ledger.mu.Unlock()
}

// counting is a way in which requests are counted.
type counting struct {
	name string
	// ask makes a request now.
	ask func(client string) window.Decision
}

// ways returns all the ways in which requests of a gateway are counted in this store.
func (f *controlledStore) ways(t testing.TB) []counting {
	l := openAlone(t, f.hourOf(window.Fixed))
	all := []counting{{"fixed", func(client string) window.Decision {
		d, way := takeAt(l, client, time.Now())
		d.Way = way
		return d
	}}}
	for _, algorithm := range grouped {
		q := openSeveral(t, 1, []*Settings{f.hourOf(algorithm)})
		all = append(all, counting{[]string{"", "sliding", "log", "bucket"}[algorithm], func(client string) (d window.Decision) {
			TakeOne(q, client, time.Since(Began), &d)
			return d
		}})
	}
	for _, algorithm := range []window.Algorithm{window.Fixed, window.Sliding, window.Exact, window.Bucket} {
		short, long := f.hourOf(algorithm), f.hourOf(algorithm)
		short.Name, long.Name, long.Window = "short", "long", 7200
		q := openSeveral(t, 1, []*Settings{short, long})
		all = append(all, counting{"two of algorithm " + strconv.Itoa(int(algorithm)), func(client string) (d window.Decision) {
			TakeSeveral(q, client, time.Since(Began), &d)
			return d
		}})
	}
	return all
}

// carried returns the calls since the last look that told the store of something known,
// or passed without it, and how many calls there were.
func (f *controlledStore) carried() (known []string, calls int) {
	for _, c := range f.since() {
		calls++
		if c.known > 0 || c.n > 1 {
			known = append(known, fmt.Sprint(c))
		}
	}
	f.mu.Lock()
	several, told := f.several, f.told
	f.several, f.told = nil, nil
	f.mu.Unlock()
	for _, c := range several {
		calls++
		for _, a := range c.args {
			if a.known > 0 || a.settled > 0 {
				known = append(known, fmt.Sprint(c))
				break
			}
		}
	}
	for _, text := range told {
		calls++
		args := strings.Split(text, " ")
		keys := 0
		for strings.Contains(args[keys], ":") {
			keys++
		}
		rest, before, each, at := args[keys+3:], 0, 0, []int(nil)
		switch {
		case strings.Contains(args[0], ":sw:"):
			each, at = 7, []int{3, 4, 5, 6}
		case strings.Contains(args[0], ":tb:"):
			each, at = 5, []int{3}
		default:
			// What a log is told stands where there is nothing else, or a blank behind it.
			if strings.Contains(text, "/") {
				known = append(known, text)
			}
			continue
		}
		for ; before < len(rest); before += each {
			carries := false
			for _, i := range at {
				carries = carries || rest[before+i] != "0"
			}
			if carries {
				known = append(known, text)
				break
			}
		}
	}
	return known, calls
}

func digestOf(client string) string { return fmt.Sprintf("%x", source.Digest(client)) }

// epoch is the value of an epoch that begins now.
func epoch() string { return "VERSION " + strconv.FormatInt(start.Unix(), 10) }

func TestControlIsReadAndReported(t *testing.T) {
	f := controlled(t)
	c := f.control(t)
	readControl(c, c.store)
	if version, at := f.reported(t); version != 0 || at < start.Unix() || at > start.Unix()+20 || f.controls.Calls() != 1 {
		t.Errorf("version %d is reported at %d, after %d calls, want 0 now, after one", version, at, f.controls.Calls())
	}
	if state, generation := InForce(c); state != nil || generation != 0 {
		t.Errorf("in force where nothing is set: %+v, %d", state, generation)
	}
	f.controls.Change(controlKey, "limit", "7", "dryRun", "true")
	readControl(c, c.store)
	// What has become of a change is reported at once.
	if version, _ := f.reported(t); version != 1 || f.controls.Calls() != 3 {
		t.Errorf("version %d is reported after %d calls, want 1 after 3", version, f.controls.Calls())
	}
	state, first := InForce(c)
	if state == nil || first == 0 || first != c.Generation.Load() || state.Limits[""] != 7 || state.DryRun != "true" {
		t.Fatalf("in force: %+v, %d", state, first)
	}
	readControl(c, c.store)
	if again, generation := InForce(c); again != state || generation != first || f.controls.Calls() != 4 {
		t.Errorf("unchanged, and yet %+v of generation %d is in force after %d calls", again, generation, f.controls.Calls())
	}
	if scope, version, age, never := ControlRead(c); scope != "algorithm" || version != 1 || age > time.Minute || never {
		t.Errorf("read: %s, %d, %s, never %t", scope, version, age, never)
	}
	f.controls.Change(controlKey, "limit", "", "dryRun", "")
	readControl(c, c.store)
	if state, generation := InForce(c); state != nil || generation != 0 {
		t.Errorf("in force when it was taken back: %+v, %d", state, generation)
	}
	if version, _ := f.reported(t); version != 2 {
		t.Errorf("version %d is reported, want 2", version)
	}
	if lines := logged.about("scope algorithm: control: "); len(lines) != 4 || !strings.Contains(lines[0], "version 1 is obeyed") || !strings.Contains(lines[1], "dry run: on") ||
		!strings.Contains(lines[2], "version 2 is obeyed") || !strings.Contains(lines[3], "dry run: as the options say") {
		t.Errorf("log %q", lines)
	}
}

func TestControlBelongsToTheScopeInTheStore(t *testing.T) {
	f := controlled(t)
	c := f.control(t)
	other := f.hourOf(window.Fixed)
	other.Store.Timeout = 2 * time.Minute // the same store in another way
	openAlone(t, other)
	another := f.hourOf(window.Fixed)
	another.Scope = "another"
	openAlone(t, another)
	if OpenControl(context.Background(), other, describe, nothing) != c {
		t.Error("the same scope has two controls")
	}
	first := openStore(f.hourOf(window.Fixed).Store, c.ledger)
	if c.store.timeout != 2*time.Minute || len(controlsOf(c.store)) != 1 || len(controlsOf(first)) != 0 {
		t.Error("it is not read by those alone who were loaded last")
	}
	if OpenControl(context.Background(), another, describe, nothing) == c {
		t.Error("two scopes have one control")
	}
}

// Nothing is asked before the keeper does it, and nothing at all is a reason not to load.
func TestControlIsOpenedWithoutTheStore(t *testing.T) {
	f := controlled(t)
	c := f.control(t)
	if n := f.Accepted(); n != 0 {
		t.Errorf("%d connections", n)
	}
	if _, _, age, never := ControlRead(c); !never || age > time.Minute {
		t.Errorf("never read: %t, %s", never, age)
	}
	f.Stop()
	for i := 0; i < 5; i++ {
		obey(c.store, false)
	}
	if healthOf(c.store) < away {
		t.Error("a store that is away is not noticed where no request is")
	}
	if state, _ := InForce(c); state != nil {
		t.Errorf("in force: %+v", state)
	}
}

// The keeper reads without any request, and gateways obey within three seconds.
func TestKeeperReadsControls(t *testing.T) {
	f := controlled(t)
	f.controls.Change(controlKey, "limit", "7")
	ctx, cancel := context.WithCancel(context.Background())
	l := New(ctx, f.hourOf(window.Fixed), start)
	c := OpenControl(ctx, f.hourOf(window.Fixed), describe, nothing)
	eventually(t, "what was set before", func() bool { return c.Generation.Load() != 0 })
	eventually(t, "the announcement of a gateway without requests", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.scopes) > 0
	})
	if longest := controlEvery + 3*keeperInterval; longest > 3*time.Second {
		t.Errorf("it may take %s", longest)
	}
	f.controls.Change(controlKey, "enabled", "false")
	eventually(t, "a change", func() bool {
		state, _ := InForce(c)
		return state != nil && state.Off
	})
	eventually(t, "the report of it", func() bool { version, _ := f.reported(t); return version == 2 })

	// A reload goes on, without a look at what is known already.
	again, end := context.WithCancel(context.Background())
	if other := OpenControl(again, f.hourOf(window.Fixed), describe, nothing); other != c {
		t.Error("a reload begins anew")
	}
	New(again, f.hourOf(window.Fixed), start)
	cancel()
	calls := f.controls.Calls()
	eventually(t, "another look after a reload", func() bool { return f.controls.Calls() > calls })

	// Whose configuration is gone is read no more, and the keeper ends.
	l.store.keeperIdle = 0
	end()
	eventually(t, "the end of the keeper", func() bool { return !keptOf(l.store) })
	calls = f.controls.Calls()
	obey(l.store, true)
	if f.controls.Calls() != calls {
		t.Error("a control is read whose configuration is gone")
	}
	// And back again.
	l.store.keeperIdle = time.Minute
	third, stop := context.WithCancel(context.Background())
	defer stop()
	New(third, f.hourOf(window.Fixed), start)
	OpenControl(third, f.hourOf(window.Fixed), describe, nothing)
	eventually(t, "a look for a configuration that is back", func() bool { return f.controls.Calls() > calls })
	// One that ends although it is needed, by a panic or just when a configuration comes, is
	// followed by another.
	calls = f.controls.Calls()
	keeperEnded(l.store)
	if !keptOf(l.store) {
		t.Error("no keeper follows one that ended")
	}
}

// Whatever a store says that is no control, what was set before stays, the operator is told
// once, and the requests are not concerned.
func TestControlThatCannotBeRead(t *testing.T) {
	for what, tt := range map[string]struct {
		answer, said string
	}{
		"missing rights":     {fakevalkey.Error("NOPERM User default has no permissions to run the 'hgetall' command"), `refuses to say what is set for the scope algorithm ("NOPERM"`},
		"a missing right":    {fakevalkey.Error("ERR ACL failure in script: User gate has no permissions to run the 'hgetall' command"), "it names the command HGETALL"},
		"no hash":            {fakevalkey.Error("WRONGTYPE Operation against a key holding the wrong kind of value"), ":control or rate:algorithm:reports holds something else"},
		"too many fields":    {fakevalkey.Error("CONTROL has more than 4096 fields"), "more than 4096 fields"},
		"no list":            {fakevalkey.Bulk("0123456789012345678901234567890123456789 x"), "cannot be read"},
		"a list of no texts": {fakevalkey.Bulk("0123456789012345678901234567890123456789 [1,2]"), "cannot be read"},
		"another digest":     {fakevalkey.Bulk("0123456789012345678901234567890123456789"), "cannot be read"},
		"nothing":            {fakevalkey.Bulk(""), "cannot be read"},
		"null":               {fakevalkey.Null, "cannot be read"},
		"a number":           {fakevalkey.Int(5), "cannot be read"},
		"a list":             {fakevalkey.Array(fakevalkey.Bulk("a")), "cannot be read"},
		"a word":             {fakevalkey.OK, "cannot be read"},
	} {
		f := controlled(t)
		c := f.control(t)
		ask := f.ways(t)[0].ask
		for _, set := range []bool{false, true} {
			if set {
				f.controls.Change(controlKey, "limit", "7")
				readControl(c, c.store)
			}
			before, generation := InForce(c)
			for i := 0; i < 5; i++ {
				f.controls.Answer(tt.answer, tt.answer)
				c.due = time.Time{}
				obey(c.store, false)
			}
			f.controls.Answer()
			if state, now := InForce(c); state != before || now != generation || (state != nil) != set {
				t.Errorf("%s: in force: %+v, %d; before: %+v, %d", what, state, now, before, generation)
			}
			if healthOf(c.store) != 0 {
				t.Errorf("%s: the store counts as failing", what)
			}
			if d := ask("client"); !d.Allowed || d.Way != Shared {
				t.Errorf("%s: a request gets %+v", what, d)
			}
		}
		if lines := logged.about("store algorithm: "); len(lines) != 1 || !strings.Contains(lines[0], tt.said) {
			t.Errorf("%s: log %q, want one line with %q", what, lines, tt.said)
		}
		readControl(c, c.store)
		if version, _ := f.reported(t); version != 1 {
			t.Errorf("%s: after it version %d is reported, want 1", what, version)
		}
	}
}

// A bad value is ignored and named once, and the rest is obeyed.
func TestBadValuesAreNamedOnce(t *testing.T) {
	f := controlled(t)
	c := f.control(t)
	f.controls.Change(controlKey, "limit", "010", "window", "1h", "colour", "blue\n"+strings.Repeat("x", 1000))
	for i := 0; i < 3; i++ {
		f.controls.Change(controlKey)
		readControl(c, c.store)
	}
	if state, _ := InForce(c); state == nil || len(state.Limits) != 0 || state.Windows[""] != 3600 {
		t.Errorf("in force: %+v", state)
	}
	for text, n := range map[string]int{`field "limit" is ignored: "010": `: 1, `field "colour" is ignored: "blue\n`: 1, "is ignored": 2} {
		if lines := logged.about(text); len(lines) != n || n == 1 && len(lines[0]) > 400 {
			t.Errorf("log %q, want %d with %s", lines, n, text)
		}
	}
	f.controls.Change(controlKey, "limit", "011")
	readControl(c, c.store)
	if lines := logged.about("is ignored"); len(lines) != 3 {
		t.Errorf("log %q, want another line for another value", lines)
	}
}

// The store away means that the last values stay, and one that comes back empty is given
// back what was set.
func TestControlOutlivesTheStore(t *testing.T) {
	f := controlled(t)
	c := f.control(t)
	f.controls.Change(controlKey, "limit", "7")
	f.controls.Change(controlKey, "block:"+digestOf("client"), strconv.FormatInt(start.Unix()+600, 10))
	readControl(c, c.store)
	state, _ := InForce(c)
	set := f.controls.Hash(controlKey)
	f.Stop()
	hangUp(c.store)
	for i := 0; i < 3; i++ {
		c.due = time.Time{}
		obey(c.store, false)
	}
	if now, _ := InForce(c); now != state || healthOf(c.store) < away {
		t.Errorf("while the store is away, %+v is in force", now)
	}
	f.controls.Flush()
	if err := f.Restart(); err != nil {
		t.Fatal(err)
	}
	c.store.pause = time.Millisecond
	probe(c.store)
	if healthOf(c.store) >= away {
		t.Fatal("the store is not back")
	}
	if now, _ := InForce(c); now != state {
		t.Errorf("in force: %+v, and before %+v", now, state)
	}
	if got := f.controls.Hash(controlKey); !reflect.DeepEqual(got, set) {
		t.Errorf("put back: %v, want %v", got, set)
	}
	if version, _ := f.reported(t); version != 2 {
		t.Errorf("version %d is reported, want 2", version)
	}
	if lines := logged.about("went back"); len(lines) != 1 || !strings.Contains(lines[0], "from 2 to 0") {
		t.Errorf("log %q, want one line", lines)
	}

	// One that was rewound, as a replica that lagged behind.
	f.controls.Replace(controlKey, map[string]string{"version": "1", "limit": "7"})
	readControl(c, c.store)
	if got := f.controls.Hash(controlKey); !reflect.DeepEqual(got, set) {
		t.Errorf("put back: %v, want %v", got, set)
	}
	// What was never set is put back nowhere, and fields without a version are obeyed.
	f = controlled(t)
	c = f.control(t)
	readControl(c, c.store)
	f.controls.Flush()
	readControl(c, c.store)
	if got := f.controls.Hash(controlKey); len(got) != 0 {
		t.Errorf("put back: %v", got)
	}
	f.controls.Set(controlKey, "enabled", "false")
	readControl(c, c.store)
	if state, _ := InForce(c); state == nil || !state.Off {
		t.Errorf("in force: %+v", state)
	}
}

// Of two gateways that know different versions, the newer wins, whoever comes first.
func TestNewerVersionWins(t *testing.T) {
	for _, newerFirst := range []bool{true, false} {
		f := controlled(t)
		old := f.control(t)
		f.controls.Change(controlKey, "limit", "6")
		readControl(old, old.store)
		forget() // each gateway is a process of its own
		f.controls.Change(controlKey, "limit", "7", "window", "2h")
		newer := f.control(t)
		readControl(newer, newer.store)
		set := f.controls.Hash(controlKey)
		f.controls.Flush()
		order := []*Control{old, newer, old}
		if newerFirst {
			order = order[1:]
		}
		for _, c := range order {
			readControl(c, c.store)
		}
		if got := f.controls.Hash(controlKey); !reflect.DeepEqual(got, set) {
			t.Errorf("newer first %t: the store has %v, want %v", newerFirst, got, set)
		}
		for _, c := range []*Control{old, newer} {
			if state, _ := InForce(c); state == nil || state.Version != 2 || state.Limits[""] != 7 || state.Windows[""] != 7200 {
				t.Errorf("newer first %t: in force: %+v", newerFirst, state)
			}
		}
	}
}

func TestWhatIsOverEndsByItself(t *testing.T) {
	f := controlled(t)
	ended := atomic.Int64{}
	s := f.hourOf(window.Fixed)
	openAlone(t, s)
	c := OpenControl(context.Background(), s, describe, func(*Control) { ended.Add(1) })
	until := start.Add(10 * time.Minute).Unix()
	f.controls.Change(controlKey, "block:"+digestOf("client"), strconv.FormatInt(until, 10))
	readControl(c, c.store)
	if state, _ := InForce(c); state == nil || len(state.Clients) != 1 || ended.Load() != 0 {
		t.Fatalf("in force: %+v, ended %d times", state, ended.Load())
	}
	later(c.store, 8*time.Minute)
	obey(c.store, false)
	if state, _ := InForce(c); state == nil {
		t.Error("it ends too early")
	}
	later(c.store, 2*time.Minute)
	obey(c.store, false)
	if state, generation := InForce(c); state != nil || generation != 0 || ended.Load() != 1 {
		t.Errorf("in force when it is over: %+v, %d, ended %d times", state, generation, ended.Load())
	}
	f.controls.Change(controlKey)
	readControl(c, c.store)
	if ended.Load() != 1 {
		t.Errorf("it ended %d times", ended.Load())
	}
}

// Old reports are removed, and those from times to come, and those of gateways that are
// there stay.
func TestOldReportsAreRemoved(t *testing.T) {
	f := controlled(t)
	c := f.control(t)
	f.controls.Set(reportsKey, "00000000000000aa", describe(nil, 1, start.Unix()-50), "00000000000000bb", describe(nil, 1, start.Unix()-70), "00000000000000cc", "{}",
		"00000000000000dd", describe(nil, 1, start.Unix()+70), "00000000000000ee", describe(nil, 1, start.Unix()+50))
	readControl(c, c.store)
	if got := f.controls.Hash(reportsKey); len(got) != 3 || got["00000000000000ee"] == "" || got["00000000000000aa"] == "" {
		t.Errorf("left: %v", got)
	}
	f.controls.Set(reportsKey, "00000000000000bb", describe(nil, 1, start.Unix()-70))
	readControl(c, c.store)
	if got := f.controls.Hash(reportsKey); len(got) != 4 {
		t.Errorf("they are looked at again at once: %v", got)
	}
}

// A panic in what is done for a control ends nothing else, and is told.
func TestPanicInAControlIsTold(t *testing.T) {
	f := controlled(t)
	s := f.hourOf(window.Fixed)
	openAlone(t, s)
	c := OpenControl(context.Background(), s, func(*Control, int64, int64) string { panic("no report") }, nothing)
	for i := 0; i < 3; i++ {
		if !obey(c.store, true) {
			t.Error("the store counts as unheard of")
		}
	}
	if lines := logged.about("cannot be obeyed"); len(lines) != 1 || !strings.Contains(lines[0], "no report") {
		t.Errorf("log %q", lines)
	}
	if d := f.ways(t)[0].ask("client"); !d.Allowed || d.Way != Shared {
		t.Errorf("a request gets %+v", d)
	}
}

// exhaust has a client use all it has, and demands that it is then refused from memory.
func exhaust(t *testing.T, w counting, client string) {
	t.Helper()
	for i := 0; i < 7; i++ {
		if d := w.ask(client); d.Allowed != (i < 5) || d.Way != Shared || d.Known != (i > 5) && i > 5 {
			t.Fatalf("%s: request %d gets %+v", w.name, i+1, d)
		}
	}
}

// From an epoch on nothing older reaches the store, for as long as keys may be deleted; then
// the client is free, and what is known of it is remembered again.
func TestEpochIsObeyed(t *testing.T) {
	for _, all := range []bool{false, true} {
		f := controlled(t)
		c := f.control(t)
		readControl(c, c.store)
		for _, w := range f.ways(t) {
			what := w.name + ", of all " + strconv.FormatBool(all)
			f.flush()
			exhaust(t, w, "client")
			for i := 0; i < 3; i++ {
				w.ask("other")
			}
			logs := w.name == "log" || strings.HasSuffix(w.name, strconv.Itoa(int(window.Exact))) // which are told nothing twice
			if known, _ := f.carried(); len(known) == 0 && !logs {
				t.Fatalf("%s: without an epoch the store is told of nothing", what)
			}
			field := "epoch:" + digestOf("client")
			if all {
				field = "epoch"
			}
			version := f.controls.Change(controlKey, field, epoch())
			readControl(c, c.store)
			if got, _ := f.reported(t); got != version {
				t.Errorf("%s: version %d is reported, want %d", what, got, version)
			}
			// The keys are there still: the client is refused, by the store.
			for i := 0; i < 3; i++ {
				if d := w.ask("client"); d.Allowed || d.Known || d.Way != Shared || d.RetryAfter < 1 {
					t.Errorf("%s: before its keys are deleted the client gets %+v", what, d)
				}
			}
			if known, calls := f.carried(); len(known) > 0 || calls != 3 {
				t.Errorf("%s: %d calls, which tell the store of %q", what, calls, known)
			}
			f.flush()
			for i := 0; i < 7; i++ {
				if d := w.ask("client"); d.Allowed != (i < 5) || d.Known || d.Way != Shared || d.Allowed && d.Remaining != int64(4-i) {
					t.Errorf("%s: request %d after the keys were deleted gets %+v", what, i+1, d)
				}
			}
			if known, calls := f.carried(); len(known) > 0 || calls != 7 {
				t.Errorf("%s: %d calls, which tell the store of %q", what, calls, known)
			}
			// What is known of others is not forgotten, unless all are.
			w.ask("other")
			if known, _ := f.carried(); all && len(known) > 0 || !all && len(known) == 0 && !logs {
				t.Errorf("%s: of another client the store is told %q", what, known)
			}
			// A deletion a second before the end is still one.
			later(c.store, 9*time.Second-500*time.Millisecond)
			f.flush()
			if d := w.ask("client"); !d.Allowed || d.Remaining != 4 {
				t.Errorf("%s: at the end of the hold the client gets %+v", what, d)
			}
			later(c.store, 11500*time.Millisecond)
			for i := 0; i < 6; i++ {
				if d := w.ask("client"); d.Allowed != (i < 4) || d.Known != (i > 4) && i > 4 {
					t.Errorf("%s: request %d after the hold gets %+v", what, i+1, d)
				}
			}
			f.flush()
			if d := w.ask("client"); d.Allowed || !d.Known {
				t.Errorf("%s: after the hold nothing is remembered: %+v", what, d)
			}
			obey(c.store, false)
			if c.ledger.holds[c.head] != nil {
				t.Errorf("%s: the hold is not over", what)
			}
			later(c.store, -20*time.Second)
			f.controls.Change(controlKey, field, "")
			readControl(c, c.store)
			f.carried()
		}
		if lines := logged.about("went back"); len(lines) != 0 {
			t.Errorf("log %q", lines)
		}
	}
}

// What waits for its turn when an epoch is read tells the store of nothing either, nor does
// what sets out later by an answer that is under way.
func TestEpochConcernsWhatIsUnderWay(t *testing.T) {
	names := []string(nil)
	for _, w := range controlled(t).ways(t) {
		names = append(names, w.name)
	}
	for i, name := range names {
		f := controlled(t)
		c := f.control(t)
		readControl(c, c.store)
		w := f.ways(t)[i]
		for j := 0; j < 3; j++ {
			w.ask("client")
		}
		f.carried()
		// One call is at the store, and another one waits.
		f.Pause()
		before := len(f.Commands())
		first, second := make(chan window.Decision, 1), make(chan window.Decision, 1)
		go func() { first <- w.ask("client") }()
		eventually(t, "a call under way", func() bool { return len(f.Commands()) > before })
		go func() { second <- w.ask("client") }()
		eventually(t, "a call that waits", func() bool {
			c.ledger.mu.Lock()
			defer c.ledger.mu.Unlock()
			b := c.store.next
			return b != nil && len(b.slots)+len(b.groups) == 1
		})
		f.controls.Change(controlKey, "epoch:"+digestOf("client"), epoch())
		text := f.controls.Call(f.Server, []string{controlKey, reportsKey, gatewayID, "{}", "60", "", "0", "0", ""})
		text = strings.TrimSuffix(text[strings.Index(text, "\n")+1:], "\r\n")
		if came := takeControl(c, c.store, text, false); came != changed {
			t.Fatalf("%s: the change is not taken over: %d, %q", name, came, text)
		}
		f.Resume()
		if d := <-first; !d.Allowed {
			t.Errorf("%s: %+v", name, d)
		}
		// What was written before was written before.
		eventually(t, "the first call", func() bool { return len(f.Commands()) > before })
		if d := <-second; !d.Allowed {
			t.Errorf("%s: %+v", name, d)
		}
		known, calls := f.carried()
		if calls != 2 || len(known) > 1 {
			t.Errorf("%s: %d calls, which tell the store of %q; want two, of which the first may", name, calls, known)
		}
		w.ask("client")
		if known, _ := f.carried(); len(known) > 0 {
			t.Errorf("%s: the store is told of %q", name, known)
		}
		// An answer to a call of before is no memory of after.
		later(c.store, 20*time.Second)
		w.ask("client")
		if known, _ := f.carried(); len(known) > 0 {
			t.Errorf("%s: after the hold the store is told of %q", name, known)
		}
	}
}

// A gateway that was cut off from the store while an operator freed a client reads of that
// before it tells the store what it knows.
func TestEpochIsReadBeforeTheStoreIsBack(t *testing.T) {
	f := controlled(t)
	c := f.control(t)
	readControl(c, c.store)
	ways := f.ways(t)
	for _, w := range ways {
		exhaust(t, w, "client")
		w.ask("other")
	}
	cutOff(f.fake, &Limiter{store: c.store})
	setHealth(c.store, away)
	for _, w := range ways {
		w.ask("client")
		if d := w.ask("other"); !d.Allowed || d.Way != Local {
			t.Fatalf("%s: %+v", w.name, d)
		}
	}
	f.controls.Change(controlKey, "epoch", epoch())
	f.flush()
	if err := f.Restart(); err != nil {
		t.Fatal(err)
	}
	f.carried()
	c.store.pause = time.Millisecond
	probe(c.store)
	if healthOf(c.store) >= away {
		t.Fatal("the store is not back")
	}
	push(c.store)
	for _, w := range ways {
		if d := w.ask("client"); !d.Allowed || d.Way != Shared || d.Remaining != 4 {
			t.Errorf("%s: %+v", w.name, d)
		}
	}
	if known, _ := f.carried(); len(known) > 0 {
		t.Errorf("the store is told of %q", known)
	}

	// A store that does not say what is set is not back.
	setHealth(c.store, away)
	f.Behave(fakevalkey.Behaviour{Before: func(command []string) {
		if len(command) > 3 && command[3] == controlKey {
			f.CloseConnections()
		}
	}})
	hangUp(c.store)
	probe(c.store)
	if healthOf(c.store) < away {
		t.Error("a store is back that did not say what is to be forgotten")
	}
	probe(c.store)
	if healthOf(c.store) >= away {
		t.Error("the store is not back")
	}
}

// While the store is away a hold hands out nothing: what passes without the store is
// remembered, and settled when the hold is over.
func TestHoldWhileTheStoreIsAway(t *testing.T) {
	for i, name := range []string{"fixed", "sliding", "log", "bucket"} {
		f := controlled(t)
		c := f.control(t)
		readControl(c, c.store)
		w := f.ways(t)[i]
		exhaust(t, w, "client")
		f.controls.Change(controlKey, "epoch:"+digestOf("client"), epoch())
		readControl(c, c.store)
		f.flush()
		passed := 0
		for j := 0; j < 2; j++ {
			if d := w.ask("client"); d.Allowed {
				passed++
			}
		}
		cutOff(f.fake, &Limiter{store: c.store})
		alone := 0
		for j := 0; j < 20; j++ {
			d := w.ask("client")
			if d.Way != Local {
				t.Fatalf("%s: %+v", name, d)
			}
			if d.Allowed {
				alone++
			}
		}
		if passed != 2 || alone != 5 || healthOf(c.store) < away {
			t.Errorf("%s: %d passed before and %d without the store, want 2 and the limit of 5", name, passed, alone)
		}
		if err := f.Restart(); err != nil {
			t.Fatal(err)
		}
		c.store.pause = time.Millisecond
		probe(c.store)
		f.carried()
		push(c.store)
		if known, calls := f.carried(); len(known) > 0 || calls > 0 {
			t.Errorf("%s: in the hold the store is told of %q in %d calls", name, known, calls)
		}
		if !c.store.settleDue {
			t.Errorf("%s: what passed is not to be settled", name)
		}
		later(c.store, 20*time.Second)
		push(c.store)
		if d := w.ask("client"); d.Allowed || d.Way != Shared {
			t.Errorf("%s: after the hold, and %d passed, the client gets %+v", name, passed+alone, d)
		}
	}
}

// Scopes, prefixes and secrets tell whose epoch it is.
func TestEpochIsForItsScopeAlone(t *testing.T) {
	f := controlled(t)
	c := f.control(t)
	readControl(c, c.store)
	other := f.hourOf(window.Fixed)
	other.Scope = "other"
	prefixed := f.hourOf(window.Fixed)
	prefixed.Store.KeyPrefix = "prefix"
	keyed := f.hourOf(window.Fixed)
	keyed.Store.KeySecret = "a secret of many bytes"
	limiters := map[string]*Limiter{"other": openAlone(t, other), "prefixed": openAlone(t, prefixed), "keyed": openAlone(t, keyed), "same": openAlone(t, f.hourOf(window.Fixed))}
	for _, l := range limiters {
		take(l, "client", 7, time.Now())
	}
	known := func(want ...string) {
		t.Helper()
		f.carried()
		for name, l := range limiters {
			d, _ := takeAt(l, "client", time.Now())
			wanted := false
			for _, w := range want {
				wanted = wanted || w == name
			}
			if d.Known != wanted {
				t.Errorf("%s: is known %t, want %t", name, d.Known, wanted)
			}
		}
	}
	known("other", "prefixed", "keyed", "same")
	f.controls.Change(controlKey, "epoch:"+digestOf("client"), epoch())
	readControl(c, c.store)
	known("other", "prefixed", "keyed")
	for name, l := range limiters {
		take(l, "newcomer", 7, time.Now())
		if d, _ := takeAt(l, "newcomer", time.Now()); !d.Known {
			t.Errorf("%s: a newcomer is not remembered", name)
		}
	}
	f.controls.Change(controlKey, "epoch:"+fmt.Sprintf("%x", source.KeyedDigest("a secret of many bytes", "client")), epoch())
	readControl(c, c.store)
	known("other", "prefixed")
	f.controls.Change(controlKey, "epoch", epoch())
	readControl(c, c.store)
	for name, l := range limiters {
		take(l, "another", 7, time.Now())
		if d, _ := takeAt(l, "another", time.Now()); d.Known != (name == "other" || name == "prefixed") {
			t.Errorf("%s: another newcomer is remembered: %t", name, d.Known)
		}
	}
	// Counts that come to be meanwhile, since a window changed.
	long := f.hourOf(window.Fixed)
	long.Window = 7200
	limiters = map[string]*Limiter{"longer": openAlone(t, long)}
	take(limiters["longer"], "client", 7, time.Now())
	known()
	later(c.store, 20*time.Second)
	take(limiters["longer"], "client", 1, time.Now())
	known("longer")
}

// An epoch is obeyed once, however often it is read, and a new one again.
func TestEpochIsObeyedOnce(t *testing.T) {
	f := controlled(t)
	c := f.control(t)
	w := f.ways(t)[0]
	for round := 0; round < 6; round++ {
		field := []string{"epoch:" + digestOf("client"), "epoch"}[round%2]
		f.controls.Change(controlKey, field, epoch())
		readControl(c, c.store)
		f.flush()
		later(c.store, 20*time.Second)
		exhaust(t, w, "client")
		f.controls.Change(controlKey, "limit", strconv.Itoa(round+3))
		readControl(c, c.store)
		if d := w.ask("client"); !d.Known {
			t.Errorf("round %d: forgotten again: %+v", round, d)
		}
		later(c.store, -20*time.Second)
	}
}

// A client is looked for among many in small parts, between which requests have their turn,
// and each of them is found.
func TestForgettingIsDoneInParts(t *testing.T) {
	const clients = 5000
	for _, algorithm := range []window.Algorithm{window.Fixed, window.Sliding, window.Exact, window.Bucket} {
		f := controlled(t)
		c := f.control(t)
		readControl(c, c.store)
		s := f.hourOf(algorithm)
		table := openAlone(t, s).table
		limit := &window.Limit{Algorithm: algorithm, Limit: 5, Length: 3600, Burst: 5}
		now := storeTime(c.store, time.Now()) / millisecond
		left := func(i int) int64 {
			return window.Left(limit, window.Find(limit, table.counts, table.entries, client(i), now), now)
		}
		hashes := map[string]bool{}
		table.ledger.mu.Lock()
		for i := 0; i < clients; i++ {
			window.TakeOne(limit, window.Find(limit, table.counts, table.entries, client(i), now), 1, now, &window.Decision{})
			if i%50 == 7 {
				hashes[digestOf(client(i))] = true
			}
		}
		table.ledger.mu.Unlock()
		if parts := partsOf(t, table, func() { forgetIn(table, hashes) }); parts < clients/64 {
			t.Errorf("algorithm %d: %d clients are looked at in %d parts", algorithm, clients, parts)
		}
		table.ledger.mu.Lock()
		for i := 0; i < clients; i++ {
			if n := left(i); (n == 5) != (i%50 == 7) {
				t.Errorf("algorithm %d: of %s %d are left", algorithm, client(i), n)
			}
		}
		table.ledger.mu.Unlock()
	}
}

// partsOf returns in how many parts a table is looked at. Between them its mutex is free.
func partsOf(t *testing.T, table *table, look func()) (parts int) {
	before := giveWay
	defer func() { giveWay = before }()
	giveWay = func() {
		parts++
		if !table.ledger.mu.TryLock() {
			t.Fatal("the mutex is held between two parts")
		}
		table.ledger.mu.Unlock()
	}
	look()
	return parts
}

// The report says nothing of an epoch before all who use the store have written what they
// had to say.
func TestReportWaitsForOtherConnections(t *testing.T) {
	f := controlled(t)
	other := f.hourOf(window.Fixed)
	other.Store.Timeout = 50 * time.Second
	second := openAlone(t, other)
	c := f.control(t)
	readControl(c, c.store)
	version := f.controls.Change(controlKey, "epoch", epoch())
	second.store.turn.Lock()
	done := make(chan bool)
	go func() {
		readControl(c, c.store)
		close(done)
	}()
	eventually(t, "a keeper that waits for the other connection", func() bool { return waitsForTurn("limiter.obeyEpochs") })
	if got, _ := f.reported(t); got == version {
		t.Error("the epoch is reported although a call may be under way")
	}
	second.store.turn.Unlock()
	<-done
	if got, _ := f.reported(t); got != version {
		t.Errorf("version %d is reported, want %d", got, version)
	}
}

// Gateways read under load while one client after another is freed: none is told of that was
// forgotten, and no limit is passed.
func TestEpochsUnderLoad(t *testing.T) {
	const workers = 8
	for i := range grouped {
		i++
		underLoad(t, i, workers)
	}
	underLoad(t, 0, workers)
}

// underLoad lets workers ask by one of the ways of a store, and an operator free the client
// when the gateway has reported.
func underLoad(t *testing.T, way, workers int) {
	f := controlled(t)
	c := f.control(t)
	readControl(c, c.store)
	w := f.ways(t)[way]
	for j := 0; j < 7; j++ {
		w.ask("client")
	}
	stop := atomic.Bool{}
	passed := atomic.Int64{}
	ended := make(chan bool)
	for j := 0; j < workers; j++ {
		go func() {
			defer func() { ended <- true }()
			for !stop.Load() {
				if d := w.ask("client"); d.Allowed {
					passed.Add(1)
				} else if d.Way != Shared {
					t.Errorf("%s: %+v", w.name, d)
				}
				runtime.Gosched()
			}
		}()
	}
	for round := int64(1); round <= 20; round++ {
		f.controls.Change(controlKey, "epoch:"+digestOf("client"), epoch())
		readControl(c, c.store)
		// It is reported: this is when the command deletes the keys.
		f.flush()
		eventually(t, "all that a free client may", func() bool { return passed.Load() >= 5*round })
	}
	stop.Store(true)
	for j := 0; j < workers; j++ {
		<-ended
	}
	if got := passed.Load(); got != 100 {
		t.Errorf("%s: %d passed in 20 rounds, want 5 in each", w.name, got)
	}
}

// The same store may be written in two ways, and counted in twice by one gateway.
func TestCallsOfTwoLedgersHaveNamesOfTheirOwn(t *testing.T) {
	forget()
	names := map[string]bool{}
	for _, where := range []string{"tcp 127.0.0.1:6379 0", "tcp localhost:6379 0", "tcp 127.0.0.1:6379 1"} {
		l := openLedger(where)
		for i := 0; i < 1000; i++ {
			names[callName(l)] = true
		}
	}
	if len(names) != 3000 {
		t.Errorf("%d names of 3000 calls", len(names))
	}
}
