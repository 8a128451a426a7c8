package lab

import (
	"os"
	"path/filepath"
)

// Persistent are the StoreOptions.Args of a store that loses nothing it has
// answered when it is killed: each write is in the kernel before its reply is.
var Persistent = []string{"--appendonly", "yes", "--appendfsync", "no"}

// Wipe removes what a store that has ended left on disk, so that it starts empty.
func (s *Store) Wipe() {
	s.t.Helper()
	for _, pattern := range []string{"appendonlydir", "*.rdb"} {
		found, err := filepath.Glob(filepath.Join(s.dir, pattern))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, path := range found {
			if err := os.RemoveAll(path); err != nil {
				s.t.Fatal(err)
			}
		}
	}
}
