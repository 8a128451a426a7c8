package resp

import (
	"errors"
	"strings"
	"testing"
)

func TestWord(t *testing.T) {
	for _, test := range []struct{ line, want string }{
		{"READONLY You can't write against a read only replica.", "READONLY"},
		{"NOSCRIPT", "NOSCRIPT"},
		{"ERR", "ERR"},
		{"FOO bar baz", "FOO"},
		{"", ""},
		{" ERR", ""},
		{"ERR\x1b[31m red", "ERR"},
		{"ERR\ttab", "ERR"},
		{"caf\xc3\xa9 closed", "caf"},
		{strings.Repeat("A", 4000), strings.Repeat("A", maxWord)},
	} {
		if got := Word(test.line); got != test.want {
			t.Errorf("Word(%q) = %q, want %q", test.line, got, test.want)
		}
	}
}

func TestSentinelsAreDistinctAndCarryThePackageName(t *testing.T) {
	all := []error{ErrEndpoint, ErrDial, ErrRefused, ErrTimeout, ErrLost, ErrProtocol}
	for i, err := range all {
		if !strings.HasPrefix(err.Error(), "resp: ") {
			t.Errorf("%q has no package prefix", err)
		}
		for j, other := range all {
			if (i == j) != errors.Is(err, other) {
				t.Errorf("errors.Is(%q, %q) = %v", err, other, i != j)
			}
		}
	}
}

// demand fails the test unless err wraps all of the sentinels.
func demand(t *testing.T, err error, sentinels ...error) {
	t.Helper()
	for _, sentinel := range sentinels {
		if !errors.Is(err, sentinel) {
			t.Errorf("got error %v, want one that is %v", err, sentinel)
		}
	}
}
