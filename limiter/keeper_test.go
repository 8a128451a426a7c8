package limiter

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestKeeperEndsWhenNobodyAsks(t *testing.T) {
	server := fakeStore(t)
	server.Refuse("LOADING the dataset is loaded into memory")
	ctx, cancel := context.WithCancel(context.Background())
	l := New(ctx, settings("idle", server), start)
	l.store.keeperIdle = 0
	take(l, "client", 3, start)
	cancel()
	eventually(t, "the end of the keeper", func() bool { return !keptOf(l.store) })
	if healthOf(l.store) < away {
		t.Error("the store counts as healthy though nothing was heard of it")
	}
	l.store.keeperIdle = time.Minute
	server.Refuse("")
	eventually(t, "the first request after the silence brings the keeper back, which finds the store back", func() bool {
		return newcomer(l) == Shared
	})
}

func TestProbeRepeatsThatTheStoreIsAway(t *testing.T) {
	server := fakeStore(t)
	server.Refuse("LOADING the dataset")
	l := open(t, settings("repeat", server))
	l.store.repeatAfter = 0
	take(l, "client", 3, start)
	eventually(t, "a line that the store is still away", func() bool { return len(logged.about("repeat: still away (\"LOADING\": it is starting)")) > 0 })
}

func TestScopeThatMayNotBeAnnouncedHidesNoOther(t *testing.T) {
	server := fakeStore(t)
	server.gateways = 3
	server.refuse("rate:ledger:gateways", "NOPERM No permissions to access a key")
	a := ledgerOf(t, server, nil)
	other := settings("other", server)
	other.Store.TLSIdentity = "ledger" // the same store
	other.Store.Endpoint = "ledger"
	b := openAlone(t, other)
	newcomer(a)
	look(a.store)
	if a.table.gateways != 0 || b.table.gateways != 3 {
		t.Errorf("%d and %d gateways were learnt, want 0 and 3", a.table.gateways, b.table.gateways)
	}
}

// waitsForTurn reports whether a goroutine is in a function and waits for a mutex.
func waitsForTurn(function string) bool {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for _, stack := range strings.Split(string(stacks), "\n\n") {
		if strings.Contains(stack, function) && strings.Contains(stack, "sync.(*Mutex).Lock") {
			return true
		}
	}
	return false
}

// What a keeper does beside the requests does not make them wait for longer.
func TestKeeperInTheQueueKeepsItsTime(t *testing.T) {
	server := fakeStore(t)
	s := settings("queue", server)
	s.Store.Timeout = 1500 * time.Millisecond
	l := openAlone(t, s)
	first := underWay(t, server, l)
	l.store.mu.Lock()
	l.store.clockRead = time.Time{}
	l.store.mu.Unlock()
	go look(l.store)
	eventually(t, "a keeper that waits for its turn", func() bool { return waitsForTurn("limiter.readClockAside") })
	waiting := join(t, l, start, "a")
	<-first
	alarm := time.NewTimer(time.Second)
	select {
	case <-waiting[0]:
	case <-alarm.C:
		t.Error("a request waits behind a keeper that began to wait when its turn came")
	}
}
