package main

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func report(t *testing.T, folders ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	err := run(context.Background(), &out, folders)
	t.Log(out.String())
	return out.String(), err
}

// A vulnerable version of a module that is called fails the check, with all that one
// needs to know, and does not keep the other modules from being checked.
func TestCalledVulnerabilityFails(t *testing.T) {
	out, err := report(t, "testdata/called", "testdata/imported")
	if !errors.Is(err, errFound) {
		t.Errorf("the error is %v", err)
	}
	for _, want := range []string{
		"testdata/called: 1 are called", "GO-2021-0113", "golang.org/x/text v0.3.5", "main.go:11", "language.Parse", "fixed in v0.3.7",
		"testdata/imported: 0 are called",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
}

func TestVulnerabilityThatIsNotCalledPasses(t *testing.T) {
	out, err := report(t, "testdata/imported")
	if err != nil {
		t.Error(err)
	}
	if !strings.Contains(out, "0 are called") || strings.Contains(out, " 0 more") || strings.Contains(out, "GO-2021-0113") {
		t.Error("the report is not that of a module which is required and not called")
	}
}

func TestWhatCannotBeCheckedFails(t *testing.T) {
	for _, folders := range [][]string{nil, {"testdata"}, {"testdata/none"}} {
		if _, err := report(t, folders...); err == nil || errors.Is(err, errFound) {
			t.Errorf("%q: the error is %v", folders, err)
		}
	}
	defer func(was string) { database = was }(database)
	for _, line := range []string{"", "golang.org/x/vulndb", "golang.org/x/vulndb v0.0.0-20000101000000-000000000000"} {
		database = line
		if _, err := report(t, "testdata/imported"); err == nil || errors.Is(err, errFound) {
			t.Errorf("%q: the error is %v", line, err)
		}
	}
}

// What the standard library has is told and fails nothing: whether it is there depends
// on the machine.
func TestStandardLibraryIsReported(t *testing.T) {
	const stream = `{"config":{"go_version":"go1.99.0"}}
{"osv":{"id":"GO-1","summary":"Slow"}}
{"finding":{"osv":"GO-1","fixed_version":"v1.99.1","trace":[{"module":"stdlib","version":"v1.99.0"}]}}
{"finding":{"osv":"GO-1","fixed_version":"v1.99.1","trace":[{"module":"stdlib","version":"v1.99.0","package":"net/http","function":"Get"},{"module":"m","package":"m","function":"main"}]}}
{"finding":{"osv":"GO-2","trace":[{"module":"x","version":"v1.0.0","package":"x/y"}]}}`
	r, err := read(strings.NewReader(stream))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if r.write(&out, "here") {
		t.Error("it fails")
	}
	const want = "  here: 0 are called, 1 more are in what is required\n" +
		"    beside these, in the standard library of this machine's go1.99.0: GO-1\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}

func TestStreamThatBreaksOffFails(t *testing.T) {
	for _, stream := range []string{"", `{"config":{"go_version":"go1.99.0"}}{"osv"`} {
		if _, err := read(strings.NewReader(stream)); err == nil {
			t.Errorf("%q was read", stream)
		}
	}
}
