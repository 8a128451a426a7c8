package limiter

import (
	"context"
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
	eventually(t, "the end of the keeper", func() bool { return !l.store.kept.Load() })
	if l.store.health.Load() < away {
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
