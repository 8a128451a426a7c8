package operations_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/gatequota/gatequota/e2e/lab"
)

// crowd writes what another application may keep in the same store, as long as it is let or
// until enough says that it will do.
func (s *site) crowd(enough func() bool) error {
	value := strings.Repeat("x", 10_000)
	for n := range 100_000 {
		if enough() {
			return nil
		}
		if err := s.store.Client().Set(context.Background(), fmt.Sprintf("cache:%d", n), value, s.window).Err(); err != nil {
			return err
		}
	}
	return nil
}

// bound limits the memory of the store to a little more than it has.
func (s *site) bound(policy string) {
	s.store.Do("CONFIG", "SET", "maxmemory-policy", policy)
	s.store.Do("CONFIG", "SET", "maxmemory", s.store.Info("used_memory")+2_000_000)
}

// Where the store may evict keys, it evicts counts: who was counted through one gateway
// gets the limit again through another, and nobody is told.
func TestEvictionHandsOutQuotaInSilence(t *testing.T) {
	for _, policy := range []string{"allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, lab.StoreOptions{})
			s.openAlike(2, nil)
			s.acquaint()
			mustAllow(t, "before", s.ask(60, "key", 0), 60, "shared")
			mustAllow(t, "before", s.ask(60, "other key", 0), 60, "shared")
			s.bound(policy)
			if err := s.crowd(func() bool { return s.count("key") == 0 && s.count("other key") == 0 }); err != nil || s.count("key") > 0 {
				t.Fatalf("the counts stay: %v", err)
			}
			mustAllow(t, "through another gateway", s.ask(limit+10, "key", 1), limit, "shared")
			// The gateway that counted it before carries what it knows.
			mustAllow(t, "through the same gateway", s.ask(limit, "other key", 0), limit-60, "shared")
			if s.store.Info("evicted_keys") == 0 {
				t.Error("nothing was evicted")
			}
			s.silent()
		})
	}
}

// Where it may not, it refuses: the gateways see that and count by themselves, and the log
// says why. What was counted is still there.
func TestFullStoreIsSeen(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.StoreOptions{})
	s.openAlike(2, nil)
	s.acquaint()
	mustAllow(t, "before", s.ask(60, "key", 0, 1), 60, "shared")
	s.bound("noeviction")
	if err := s.crowd(func() bool { return false }); err == nil || !strings.HasPrefix(err.Error(), "OOM") {
		t.Fatalf("the store is not full: %v", err)
	}
	// However its memory goes up and down, it stays full.
	s.store.Do("CONFIG", "SET", "maxmemory", 1)
	s.await("local")
	late := s.ask(limit, "key", 0, 1)
	for g, door := range s.doors {
		lab.Until(t, fmt.Sprintf("gateway %d says what it is", g+1), func() bool {
			return strings.Contains(strings.Join(lines(door), "\n"), `away ("OOM": its memory is full; raise maxmemory`)
		})
	}
	if n := s.count("key"); n != 60 {
		t.Errorf("the store counts %d, want 60", n)
	}
	s.store.Do("CONFIG", "SET", "maxmemory", 0)
	s.await("shared")
	late = append(late, s.ask(limit, "key", 0, 1)...)
	// Of one gateway's last request the other does not know, shares are rounded up, and each
	// gateway had up to three requests refused by the store before it left it alone.
	if passed := late.Count(http.StatusOK); passed < limit-60 || passed > limit-60+1+1+2*3 {
		t.Errorf("without the store and after it %d requests passed, want the %d that were left", passed, limit-60)
	}
}
