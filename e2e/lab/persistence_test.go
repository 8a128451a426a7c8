package lab_test

import (
	"testing"

	"github.com/gatequota/gatequota/e2e/lab"
)

func TestPersistentStoreKeepsItsDataUntilItIsWiped(t *testing.T) {
	t.Parallel()
	s := lab.Valkey(t, lab.StoreOptions{Args: lab.Persistent})
	s.Do("SET", "a", 1)
	s.Kill()
	s.Start()
	if got := s.Sum("*"); got != 1 {
		t.Errorf("after a restart the keys add up to %d, want 1", got)
	}
	s.Kill()
	s.Wipe()
	s.Start()
	if keys := s.Keys(); len(keys) != 0 {
		t.Errorf("a wiped store holds %q", keys)
	}
}
