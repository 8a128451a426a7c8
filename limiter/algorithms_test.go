package limiter

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
	"github.com/gatequota/gatequota/internal/meaning"
	"github.com/gatequota/gatequota/source"
	"github.com/gatequota/gatequota/window"
)

// grouped are the algorithms that are counted in groups alone.
var grouped = []window.Algorithm{window.Sliding, window.Exact, window.Bucket}

// An algorithmFake is a store that knows them, by a clock that stands still.
type algorithmFake struct {
	*severalFake
	store *meaning.Store
	ms    atomic.Int64 // the time by which the scripts judge, unix milliseconds
	told  []string     // arguments of calls, guarded by the fake's mutex
}

func algorithmStore(t testing.TB) *algorithmFake {
	f := &algorithmFake{severalFake: severalStore(t)}
	f.ms.Store(start.UnixMilli())
	f.store = meaning.New(f.ms.Load, t.Errorf)
	for _, script := range meaning.Scripts {
		script := script
		f.Register(script, func(_ *fakevalkey.Server, args []string) string {
			f.mu.Lock()
			f.pending = f.breaks != 0
			broken := f.broken
			f.broken = false
			f.told = append(f.told, strings.Join(args, " "))
			for part, refusal := range f.refusals {
				if strings.Contains(args[0], part) {
					f.mu.Unlock()
					return fakevalkey.Error(refusal)
				}
			}
			f.mu.Unlock()
			if broken {
				return fakevalkey.Null
			}
			return f.store.Call(script, args)
		})
	}
	f.Usually(fakevalkey.Behaviour{Before: func(command []string) {
		for _, script := range meaning.Scripts {
			if len(command) > 3 && strings.HasPrefix(command[0], "EVAL") && (command[1] == script || command[1] == kindOf(script).script.SHA) {
				command = make([]string, 8) // which is the length of the calls that may break
				command[0] = "EVAL"
			}
		}
		f.before(command)
	}})
	return f
}

func kindOf(script string) kind {
	for _, k := range kinds {
		if k.script.Body == script {
			return k
		}
	}
	panic("unknown script")
}

// toldSince returns the arguments of the calls since the last time.
func (f *algorithmFake) toldSince() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	told := f.told
	f.told = nil
	return told
}

// of returns what holds clients to a limit of this algorithm in a window of a minute.
func (f *algorithmFake) of(t testing.TB, algorithm window.Algorithm, limit, cost int64, change func(s *Settings)) *Several {
	s := settings("algorithm", f.fake)
	s.Algorithm, s.Limit, s.Burst = algorithm, limit, limit
	if change != nil {
		change(s)
	}
	return openSeveral(t, cost, []*Settings{s})
}

// stored returns how many units stand in the store of a client, in the window of start.
func (f *algorithmFake) stored(algorithm window.Algorithm, client string) int64 {
	return f.store.Units(algorithmKey(algorithm, client, start.Unix()/60), 60)
}

func algorithmKey(algorithm window.Algorithm, client string, id int64) string {
	if algorithm != window.Sliding {
		id = 60 // the length of the window
	}
	return "rate:algorithm" + suffixes[algorithm] + ":{" + fmt.Sprintf("%x", source.Digest(client)) + "}:" + strconv.FormatInt(id, 10)
}

func TestEachAlgorithmIsExactOverGatewaysAndRequestsAtOnce(t *testing.T) {
	const workers, each = 12, 40
	for _, algorithm := range grouped {
		for _, cost := range []int64{1, 7} {
			f := algorithmStore(t)
			var all []*Several
			for g := int64(0); g < 2; g++ {
				forget() // each gateway is a process of its own
				q := f.of(t, algorithm, 100, cost, nil)
				q.ledger.calls = g * 1000000 // with a name of its own
				all = append(all, q, f.of(t, algorithm, 100, cost, nil))
			}
			var mu sync.Mutex
			passed, places := int64(0), map[int64]int{}
			var group sync.WaitGroup
			for w := 0; w < workers; w++ {
				group.Add(1)
				go func(w int) {
					defer group.Done()
					for i := 0; i < each; i++ {
						d := takeSeveralAt(all[(w+i)%4], "client", start)
						mu.Lock()
						if d.Allowed {
							passed++
							places[d.Remaining]++
						} else if d.RetryAfter < 1 || d.RetryAfter > 120 {
							t.Errorf("algorithm %d: refused with %+v", algorithm, d)
						}
						if d.Way != Shared {
							t.Errorf("algorithm %d: a request is decided by way %s", algorithm, d.Way)
						}
						mu.Unlock()
					}
				}(w)
			}
			group.Wait()
			if passed != 100/cost || int64(len(places)) != passed || f.stored(algorithm, "client") != passed*cost {
				t.Errorf("algorithm %d, cost %d: %d passed in %d places, and the store has %d", algorithm, cost, passed, len(places), f.stored(algorithm, "client"))
			}
		}
	}
}

func TestDearRequestsOfEachAlgorithmTravelAsOneCall(t *testing.T) {
	for _, algorithm := range grouped {
		f := algorithmStore(t)
		q := f.of(t, algorithm, 20, 7, nil)
		first := pausedBatch(t, f.severalFake, q)
		f.toldSince()
		waiting := joinSeveral(t, q, start, "a", "b", "a", "a")
		f.Resume()
		<-first
		for i, left := range []int64{13, 13, 6, -1} {
			d := <-waiting[i]
			if d.Allowed != (left >= 0) || d.Allowed && d.Remaining != left || !d.Allowed && (d.Remaining != 6 || d.RetryAfter < 1) || d.Way != Shared {
				t.Errorf("algorithm %d, request %d: %+v", algorithm, i+1, d)
			}
		}
		if got := f.toldSince(); len(got) != 3 {
			t.Errorf("algorithm %d: %d calls, want those of the first, a and b: %q", algorithm, len(got), got)
		}
		if got := f.stored(algorithm, "a"); got != 14 {
			t.Errorf("algorithm %d: the store has %d, want what passed", algorithm, got)
		}
	}
}

// Who is over its limit costs the store nothing until the wait is over, and then passes.
func TestRefusalsFromMemoryEndWithTheWait(t *testing.T) {
	for _, algorithm := range grouped {
		for _, cost := range []int64{1, 3} {
			f := algorithmStore(t)
			q := f.of(t, algorithm, 10, cost, nil)
			forget()
			other := f.of(t, algorithm, 10, cost, nil)
			other.ledger.calls = 1000000
			now := start
			for round := 0; round < 20; round++ {
				for takeSeveralAt([]*Several{q, other}[round%2], "client", now).Allowed {
				}
				d := takeSeveralAt(q, "client", now) // the first time it may have to ask
				f.ForgetCommands()
				for i := 0; i < 5; i++ {
					if again := takeSeveralAt(q, "client", now.Add(time.Duration(i)*time.Millisecond)); again.Allowed || again.RetryAfter > d.RetryAfter {
						t.Fatalf("algorithm %d, round %d: %+v, before it %+v", algorithm, round, again, d)
					}
				}
				if got := scripts(f.fake); got != 0 {
					t.Errorf("algorithm %d, round %d: the store is asked %d times for who is known to be refused", algorithm, round, got)
				}
				now = now.Add(time.Duration(d.RetryAfter) * time.Second)
				f.ms.Store(now.UnixMilli())
				f.unix.Store(now.Unix())
				// The gateway's reckoning of the store's clock is some milliseconds off.
				if after := takeSeveralAt(q, "client", now.Add(100*time.Millisecond)); !after.Allowed || after.Way != Shared {
					t.Fatalf("algorithm %d, cost %d, round %d: after %d s %+v", algorithm, cost, round, d.RetryAfter, after)
				}
			}
		}
	}
}

// What passes while the store is away is there once, when it is back: the counts of a window
// and the members of a log are added, and a bucket is full at the later of two instants.
func TestHandOverOfEachAlgorithm(t *testing.T) {
	for _, algorithm := range grouped {
		for _, how := range []string{"back", "flushed", "by a push"} {
			what := fmt.Sprintf("algorithm %d, %s", algorithm, how)
			f := algorithmStore(t)
			q := f.of(t, algorithm, 100, 1, nil)
			for i := 0; i < 4; i++ {
				takeSeveralAt(q, "client", start)
			}
			total := int64(4)
			for round := int64(0); round < 3; round++ {
				cutOffSeveral(f.severalFake, q)
				for i := 0; i < 5; i++ {
					d := takeSeveralAt(q, "client", start)
					total++
					if !d.Allowed || d.Way != Local || d.Remaining != 100-total {
						t.Fatalf("%s: meanwhile %+v, want %d left", what, d, 100-total)
					}
				}
				if how == "flushed" {
					f.store.Flush()
				}
				comeBackSeveral(t, f.severalFake, q)
				if how == "by a push" {
					b := &batch{store: q.store, start: Began.Add(start.Sub(Began)), done: make(chan struct{})}
					fillPart(b, q.tables[0], 0, true)
					b.start = time.Now()
					lead(b)
					if b.err != nil || f.stored(algorithm, "client") != total {
						t.Fatalf("%s: a push (%v) leaves %d in the store, want %d", what, b.err, f.stored(algorithm, "client"), total)
					}
				}
				for i := 0; i < 3; i++ {
					d := takeSeveralAt(q, "client", start)
					total++
					// That a log lost something shows in an answer, and the next call tells it.
					if !d.Allowed || d.Way != Shared || d.Remaining != 100-total && !(how == "flushed" && algorithm == window.Exact && i == 0) {
						t.Fatalf("%s: on return %+v, want %d left", what, d, 100-total)
					}
				}
				if got := f.stored(algorithm, "client"); got != total {
					t.Fatalf("%s, round %d: the store has %d, want the %d that passed", what, round, got, total)
				}
			}
		}
	}
}

func TestAnswersOfEachAlgorithmThatAreLost(t *testing.T) {
	for _, algorithm := range grouped {
		for name, how := range map[string]int{"counted": counted, "not counted": uncounted} {
			for _, cost := range []int64{1, 3} {
				what := fmt.Sprintf("algorithm %d, cost %d, %s", algorithm, cost, name)
				f := algorithmStore(t)
				q := f.of(t, algorithm, 100, cost, nil)
				takeMany(q, "client", 2, start)
				cutOffSeveral(f.severalFake, q)
				takeMany(q, "client", 4, start)
				comeBackSeveral(t, f.severalFake, q)
				takeSeveralAt(q, "newcomer", start) // so that the server knows the script
				f.breakCall(how, 0)
				if d := takeSeveralAt(q, "client", start); d.Way != Local || d.Remaining != 100-7*cost {
					t.Errorf("%s: %+v, want it local", what, d)
				}
				f.through()
				recovered(q.store)
				for i := int64(8); i < 11; i++ {
					if d := takeSeveralAt(q, "client", start); d.Way != Shared || d.Remaining != 100-i*cost {
						t.Errorf("%s: request %d: %+v, want %d left", what, i, d, 100-i*cost)
					}
				}
				if got := f.stored(algorithm, "client"); got != 10*cost {
					t.Errorf("%s: the store has %d, want the %d that passed", what, got, 10*cost)
				}
			}
		}
	}
}

func TestEachAlgorithmWhileTheStoreIsAway(t *testing.T) {
	for _, algorithm := range grouped {
		for _, mode := range []string{Open, Closed} {
			f := algorithmStore(t)
			q := f.of(t, algorithm, 10, 3, func(s *Settings) { s.OnStoreFailure = mode })
			takeSeveralAt(q, "client", start)
			cutOffSeveral(f.severalFake, q)
			for i := 0; i < 10; i++ {
				if d := takeSeveralAt(q, "client", start); d.Allowed != (mode == Open) || d.Way != mode || d.Several != nil || (d.RetryAfter > 0) == d.Allowed {
					t.Errorf("algorithm %d: %+v, want it %s", algorithm, d, mode)
				}
			}
			comeBackSeveral(t, f.severalFake, q)
			if d := takeSeveralAt(q, "client", start); d.Way != Shared || d.Remaining != 4 {
				t.Errorf("algorithm %d, %s: on return %+v, want 4 left", algorithm, mode, d)
			}
		}
		// Gateways share what is left.
		f := algorithmStore(t)
		q := f.of(t, algorithm, 100, 1, func(s *Settings) { s.FallbackGateways = 3 })
		takeMany(q, "client", 40, start)
		cutOffSeveral(f.severalFake, q)
		if allowed, ways := takeMany(q, "client", 80, start); allowed != 20 || ways[Local] != 80 {
			t.Errorf("algorithm %d: %d passed by ways %v, want 20 of the 60 that are left", algorithm, allowed, ways)
		}
	}
}

// A limit that a reload changed holds at once, against what was counted before.
func TestEachAlgorithmAfterAReload(t *testing.T) {
	for _, algorithm := range grouped {
		f := algorithmStore(t)
		q := f.of(t, algorithm, 5, 1, nil)
		if allowed, _ := takeMany(q, "client", 20, start); allowed != 5 {
			t.Errorf("algorithm %d: %d passed, want 5", algorithm, allowed)
		}
		higher := f.of(t, algorithm, 12, 1, nil)
		if allowed, ways := takeMany(higher, "client", 20, start); allowed != 7 || ways[Shared] != 20 {
			t.Errorf("algorithm %d: of a higher limit %d passed by ways %v, want the 7 more", algorithm, allowed, ways)
		}
		if allowed, _ := takeMany(q, "client", 20, start); allowed != 0 {
			t.Errorf("algorithm %d: %d passed under the old limit", algorithm, allowed)
		}
		// Windows of another length are counted apart.
		longer := f.of(t, algorithm, 5, 1, func(s *Settings) { s.Window = 120 })
		if allowed, _ := takeMany(longer, "client", 20, start); allowed != 5 {
			t.Errorf("algorithm %d: %d passed in windows of another length, want 5", algorithm, allowed)
		}
		if allowed, _ := takeMany(higher, "client", 20, start); allowed != 0 {
			t.Errorf("algorithm %d: %d passed after another length was counted", algorithm, allowed)
		}
	}
}

// Whom a gateway has no room for is counted by the store all the same.
func TestEachAlgorithmHoldsAtMostMaxClients(t *testing.T) {
	for _, algorithm := range grouped {
		f := algorithmStore(t)
		q := f.of(t, algorithm, 3, 1, func(s *Settings) { s.MaxClients = 10 })
		for round := 0; round < 5; round++ {
			for i := 0; i < 100; i++ {
				if d := takeSeveralAt(q, client(i), start); d.Allowed != (round < 3) || d.Way != Shared {
					t.Fatalf("algorithm %d, round %d, %s: %+v", algorithm, round, client(i), d)
				}
			}
		}
		held := 0
		if table := q.tables[0]; table.entries != nil {
			held = window.EntriesLen(table.entries)
		} else {
			held = (window.FixedLen(table.counts) + 1) / 2
		}
		if held > 10 {
			t.Errorf("algorithm %d holds %d clients", algorithm, held)
		}
	}
}

func TestAnswersThatAreNoneOfEachAlgorithm(t *testing.T) {
	for _, algorithm := range grouped {
		for _, answer := range []string{"", "1", "1 2 3 4 5 6", "1 x 3 4", "1764499230500  0", "-2 -2 -2", "1 9007199254740993 1 1"} {
			f := algorithmStore(t)
			q := f.of(t, algorithm, 10, 1, nil)
			takeSeveralAt(q, "newcomer", start)
			f.Register(kinds[algorithm].script.Body, func(*fakevalkey.Server, []string) string { return "+" + answer + "\r\n" })
			if d := takeSeveralAt(q, "client", start); d.Way != Local || !d.Allowed || healthOf(q.store) != 1 {
				t.Errorf("algorithm %d, %q: %+v, health %d; want it local, 1", algorithm, answer, d, healthOf(q.store))
			}
		}
	}
}

// Several connections to one store, and failures of all kinds at once: nothing is counted
// twice, and nothing that passed is forgotten.
func TestEachAlgorithmWhileConnectionsBreak(t *testing.T) {
	const users, requests = 8, 100
	for _, algorithm := range grouped {
		f := algorithmStore(t)
		const limit = 1000000
		all := []*Several{f.of(t, algorithm, limit, 1, nil),
			f.of(t, algorithm, limit, 1, func(s *Settings) { s.Store.Timeout = 2 * time.Minute })}
		var passed int64
		var group sync.WaitGroup
		for u := 0; u < users; u++ {
			group.Add(1)
			go func(u int) {
				defer group.Done()
				for i := 0; i < requests; i++ {
					if takeSeveralAt(all[u%2], "client", start).Allowed {
						atomic.AddInt64(&passed, 1)
					}
					if i%10 == 0 {
						n := u + i/10
						switch n % 3 {
						case 0:
							f.breakCall(counted+n%2, n%2)
						case 1:
							setHealth(all[n%4/2].store, int64(n%2*away))
						}
						recovered(all[n%2].store)
					}
				}
			}(u)
		}
		group.Wait()
		f.breakCall(0, 0)
		for i := 0; i < 4; i++ {
			q := all[i%2]
			eventually(t, "a shared answer", func() bool {
				recovered(q.store)
				passed++
				return takeSeveralAt(q, "client", start).Way == Shared
			})
		}
		got := f.stored(algorithm, "client")
		// What a log is told again is there once. What a count was told and did not answer is
		// not told again, and once too often there where the call is carried out late. Of two
		// instants at which it is full a bucket takes the later.
		if got > passed+users*requests/10 || algorithm == window.Exact && got != passed || got < passed/4 {
			t.Errorf("algorithm %d: %d passed, and the store has %d", algorithm, passed, got)
		}
	}
}

// The context of a configuration that is gone takes no count along.
func TestEachAlgorithmOutlivesItsConfiguration(t *testing.T) {
	for _, algorithm := range grouped {
		f := algorithmStore(t)
		ctx, cancel := context.WithCancel(context.Background())
		s := settings("algorithm", f.fake)
		s.Algorithm, s.Limit, s.Burst = algorithm, 10, 10
		q := NewSeveral(ctx, []*Settings{s}, 1, start)
		q.store.kept = true
		takeMany(q, "client", 4, start)
		cancel()
		again := f.of(t, algorithm, 10, 1, nil)
		setHealth(q.store, away)
		if allowed, _ := takeMany(again, "client", 20, start); allowed != 6 {
			t.Errorf("algorithm %d: %d passed after a reload, want 6", algorithm, allowed)
		}
	}
}

// What a store lost is told to it of all clients, of logs a little at a time.
func TestPushOfEachAlgorithmIsOfBoundedSize(t *testing.T) {
	for _, algorithm := range grouped {
		for _, limit := range []int64{10, 100, 10000} {
			f := algorithmStore(t)
			q := f.of(t, algorithm, limit, 5, nil)
			const clients = 300
			for i := 0; i < clients; i++ {
				takeMany(q, client(i), 2, start)
			}
			f.store.Flush()
			most, next := int64(maxBatch), 0
			if algorithm == window.Exact && limit > 10 {
				most = pushUnits/limit + 1
			}
			for next >= 0 {
				b := &batch{store: q.store, start: Began.Add(start.Sub(Began)), done: make(chan struct{})}
				next = fillPart(b, q.tables[0], next, true)
				if got := int64(len(b.groups)); got < 1 || got > most {
					t.Fatalf("algorithm %d, limit %d: a batch of %d, want up to %d", algorithm, limit, got, most)
				}
				b.start = time.Now()
				lead(b)
				if b.err != nil {
					t.Fatal(b.err)
				}
			}
			for i := 0; i < clients; i++ {
				if got := f.stored(algorithm, client(i)); got != 10 {
					t.Fatalf("algorithm %d, limit %d: the store has %d of %s, want 10", algorithm, limit, got, client(i))
				}
			}
		}
	}
}
