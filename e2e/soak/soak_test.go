package main

import (
	"testing"
	"time"
)

// A short soak: long enough for a few faults, too short to tell a slow leak from
// the noise of a heap, for which the long one is made.
func TestShortSoak(t *testing.T) {
	s := defaults()
	s.duration = 30 * time.Second
	s.calm = 2 * time.Second
	s.growth = 25 // of the few measurements that there may be
	o := soak(t, s)
	t.Logf("\n%s", o)
	for _, text := range o.complaints {
		t.Error(text)
	}
}
