package lab_test

import (
	"testing"

	"github.com/gatequota/gatequota/e2e/lab"
)

func TestProcessorTimeGrowsWithWork(t *testing.T) {
	t.Parallel()
	s := lab.Valkey(t, lab.StoreOptions{})
	before := s.CPU()
	lab.Until(t, "work has been counted", func() bool {
		s.Do("EVAL", "for i = 1, 1000000 do end return 1", 0)
		return s.CPU() > before
	})
}
