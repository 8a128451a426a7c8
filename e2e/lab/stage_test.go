package lab_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/gatequota/gatequota/e2e/lab"
)

func TestOutsideEndsWhatItStarted(t *testing.T) {
	t.Parallel()
	var dir string
	var order []string
	err := lab.Outside(context.Background(), func(t testing.TB) {
		dir = t.TempDir()
		t.Cleanup(func() { order = append(order, "first") })
		t.Cleanup(func() { order = append(order, "second") })
	})
	if err != nil {
		t.Error(err)
	}
	if strings.Join(order, " ") != "second first" {
		t.Errorf("cleanups ran in the order %q", order)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func TestOutsideReportsFailures(t *testing.T) {
	t.Parallel()
	reached, cleaned := false, false
	err := lab.Outside(context.Background(), func(t testing.TB) {
		t.Cleanup(func() { cleaned = t.Failed() })
		t.Errorf("one %d", 1)
		t.Fatal("two")
		reached = true
	})
	if err == nil || err.Error() != "one 1\ntwo" {
		t.Errorf("error %v", err)
	}
	if reached || !cleaned {
		t.Errorf("went on %t, cleanups saw the failure %t", reached, cleaned)
	}
	if err := lab.Outside(context.Background(), func(testing.TB) { panic("oops") }); err == nil || err.Error() != "panic: oops" {
		t.Errorf("after a panic: %v", err)
	}
}

func TestOutsideEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(context.Background())
	never, cleaned := make(chan struct{}), make(chan struct{})
	err := lab.Outside(ctx, func(t testing.TB) {
		t.Cleanup(func() { close(cleaned) })
		cancel(errors.New("too late"))
		<-never
	})
	if err == nil || err.Error() != "too late" {
		t.Errorf("error %v", err)
	}
	<-cleaned
	close(never)
}
