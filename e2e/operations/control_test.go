package operations_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// Where the command is not at hand, valkey-cli will do: what is written into the hash is
// obeyed, and ended by removing the field. To delete the hash, or all keys, ends nothing.
func TestControlByHand(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.StoreOptions{})
	s.openAlike(2, options{"control": true})
	s.acquaint()
	mustAllow(t, "before", s.ask(limit+5, "key"), limit, "shared")
	off := func() bool {
		answers := s.ask(2, "key")
		return answers.Count(http.StatusOK) == 2 && answers.Decisions() == ": 2"
	}
	s.store.Do("HSET", control, "enabled", "false")
	s.store.Do("HINCRBY", control, "version", 1)
	lab.Until(t, "everything passes", off)
	s.obeyed(1, 2)
	for _, command := range []string{"DEL " + control, "FLUSHALL"} {
		if command == "FLUSHALL" {
			s.store.Do("FLUSHALL")
		} else {
			s.store.Do("DEL", control)
		}
		lab.Until(t, "what was set is back after "+command, func() bool { return s.fields()["enabled"] == "false" })
		if !off() {
			t.Errorf("%s: switched on", command)
		}
	}
	s.store.Do("HDEL", control, "enabled")
	s.store.Do("HINCRBY", control, "version", 1)
	s.obeyed(2, 2)
	mustAllow(t, "on again", s.ask(10, "key"), 0, "shared")

	// Of one client.
	hence := time.Now().Add(time.Hour).Unix()
	s.set(3, "block:"+hash("bad"), hence, "allow:"+hash("key"), fmt.Sprint(hence, " 250"))
	s.obeyed(3, 2)
	mustAllow(t, "blocked", s.ask(4, "bad"), 0, "control")
	after := s.ask(limit+60, "key")
	if passed := after.Count(http.StatusOK); passed > 250-limit || passed < 250-limit-len(s.doors) {
		t.Errorf("with a limit of 250, %d more requests passed, want %d", passed, 250-limit)
	}

	// What was obeyed is obeyed while the store is away.
	s.store.Kill()
	s.await("local")
	mustAllow(t, "blocked, without the store", s.ask(4, "bad"), 0, "control")
}

// It stays in the store, without expiry, when the last gateway has ended; what gateways
// leave there themselves does not.
func TestControlOutlivesTheGateways(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.StoreOptions{})
	s.set(1, "block:"+hash("bad"), time.Now().Add(time.Hour).Unix())
	s.openAlike(1, options{"control": true})
	s.await("shared")
	s.obeyed(1, 1)
	s.doors[0].Kill()
	if stay := s.store.WithoutExpiry(); len(stay) != 1 || stay[0] != control {
		t.Errorf("without expiry: %q", stay)
	}
	for key, most := range map[string]time.Duration{"reports": time.Minute, "gateways": 15 * time.Second} {
		if ttl := s.store.Client().TTL(context.Background(), "rate:"+scope+":"+key).Val(); ttl <= 0 || ttl > most {
			t.Errorf("the %s expire in %v, want %v at most", key, ttl, most)
		}
	}
}

// With no control, or no store to tell it, a reload makes a dry run of a middleware: it
// refuses nothing then, with the store and without.
func TestDryRunByReload(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.StoreOptions{})
	own := options{"onStoreFailure": "closed"}
	s.openAlike(1, own)
	s.await("shared")
	mustAllow(t, "before", s.ask(limit+5, "key"), limit, "shared")
	own["dryRun"] = true
	s.doors[0].Reload(s.one(own))
	mustAllow(t, "with the store", s.ask(5, "key"), 5, "shared")
	s.store.Kill()
	s.await("closed")
	mustAllow(t, "without the store", s.ask(5, "another key"), 5, "closed")
	delete(own, "dryRun")
	s.store.Start()
	s.await("shared")
	s.doors[0].Reload(s.one(own))
	mustAllow(t, "afterwards", s.ask(5, "key"), 0, "shared")
}
