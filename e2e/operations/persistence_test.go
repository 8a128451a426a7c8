package operations_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// A store that writes to disk, and how it ends. What it has when it is back is what a
// gateway that began meanwhile counts on from.
func TestWhatARestartOfTheStoreLoses(t *testing.T) {
	const early, late = 40, 20 // requests before and after the snapshot
	for _, tt := range []struct {
		name     string
		args     []string
		snapshot bool // one is made between the requests
		end      func(s *lab.Store)
		kept     int
	}{
		{"nothing on disk", nil, false, (*lab.Store).Stop, 0},
		{"snapshots, stopped", []string{"--save", "3600", "1"}, false, (*lab.Store).Stop, early + late},
		{"snapshots, killed", []string{"--save", "3600", "1"}, true, (*lab.Store).Kill, early},
		{"append-only file, killed", []string{"--appendonly", "yes", "--appendfsync", "everysec"}, false, (*lab.Store).Kill, early + late},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, lab.StoreOptions{Args: tt.args})
			s.openAlike(2, options{"control": true})
			s.acquaint()
			s.set(1, "block:"+hash("blocked"), time.Now().Add(time.Hour).Unix())
			s.obeyed(1, 2)
			for _, client := range []string{"known", "unknown"} {
				mustAllow(t, client, s.ask(early, client, 0), early, "shared")
			}
			if tt.snapshot {
				s.store.Do("SAVE")
			}
			for _, client := range []string{"known", "unknown"} {
				mustAllow(t, client, s.ask(late, client, 0), late, "shared")
			}

			// The gateways go on: the first one tells what it knows, and all obey as before.
			tt.end(s.store)
			s.store.Start()
			s.await("shared")
			lab.Until(t, "the store has heard of all that the gateway knows", func() bool { return s.count("known") == early+late && s.count("unknown") == early+late })
			lab.Until(t, "what was set is back", func() bool { return s.fields()["version"] == "1" })
			mustAllow(t, "blocked", s.ask(2, "blocked"), 0, "control")
			mustAllow(t, "afterwards", s.ask(limit, "known", 1), limit-early-late, "shared")

			// The gateways end too: nobody knows more than is on disk.
			if tt.snapshot {
				return // which holds less by now
			}
			for _, door := range s.doors {
				door.Kill()
			}
			s.doors = nil
			tt.end(s.store)
			s.store.Start()
			s.openAlike(1, options{"control": true})
			way, passed := "control", 0
			if tt.kept == 0 {
				way, passed = "shared", 1
			}
			lab.Until(t, "the new gateway has read what is set", func() bool {
				return tt.kept > 0 && len(s.doors[0].LogLines("control: version 1 is obeyed")) > 0 ||
					tt.kept == 0 && s.store.Client().HLen(context.Background(), "rate:"+scope+":reports").Val() > 0
			})
			mustAllow(t, "everything restarted", s.ask(limit+10, "unknown"), limit-tt.kept, "shared")
			mustAllow(t, "everything restarted, blocked", s.ask(1, "blocked"), passed, way)
		})
	}
}

// A snapshot that is older than the counts, and gateways that began after it: what was
// counted in between is free again, and no more.
func TestSnapshotsRewindForThoseWhoDoNotKnow(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.StoreOptions{Args: []string{"--save", "3600", "1"}})
	s.openAlike(1, nil)
	s.await("shared")
	mustAllow(t, "before the snapshot", s.ask(40, "key"), 40, "shared")
	s.store.Do("SAVE")
	mustAllow(t, "after the snapshot", s.ask(20, "key"), 20, "shared")
	s.doors[0].Kill()
	s.doors = nil
	s.store.Kill()
	s.store.Start()
	s.openAlike(1, nil)
	mustAllow(t, "afterwards", s.ask(limit, "key"), limit-40, "shared")
}

// A replica takes over that lags by some requests. Where the name in valkey.endpoints stays
// the same, gateways tell it what it has not heard of; where the configuration names
// another endpoint, they know nothing of it, and what it lags by is free again.
func TestTakingOverByAReplica(t *testing.T) {
	const early, late = 50, 30
	for _, tt := range []struct {
		name    string
		renamed bool
		left    int
	}{
		{"the name leads elsewhere", false, limit - early - late},
		{"the configuration names another", true, limit - early},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, lab.StoreOptions{})
			primary := s.store
			replica := lab.Valkey(t, lab.StoreOptions{})
			feed := lab.NewProxy(t, primary.Addr())
			replica.Do("REPLICAOF", "127.0.0.1", feed.Port())
			link := lab.NewProxy(t, primary.Addr())
			at := func(address string) options {
				return options{"valkey": options{"endpoints": []string{address}}}
			}
			s.openAlike(2, at(link.Addr()))
			s.acquaint()
			mustAllow(t, "before", s.ask(early, "key", 0, 1), early, "shared")
			lab.Until(t, "the replica has heard of it", func() bool {
				n, _ := replica.Client().Get(context.Background(), s.key("key")).Int()
				return n == early
			})
			feed.Set(lab.Faults{LoseReplies: true})
			mustAllow(t, "unheard of", s.ask(late, "key", 0, 1), late, "shared")

			replica.Do("REPLICAOF", "NO", "ONE")
			if tt.renamed {
				for _, door := range s.doors {
					door.Reload(s.one(at(replica.Addr())))
				}
			} else {
				link.Redirect(replica.Addr())
			}
			primary.Kill()
			s.store = replica
			s.await("shared")
			after := s.ask(limit, "key", 0, 1)
			// Of one gateway's last request the other does not know.
			if passed := after.Count(http.StatusOK); passed < tt.left || passed > tt.left+1 {
				t.Errorf("%d more requests passed, want %d", passed, tt.left)
			}
		})
	}
}
