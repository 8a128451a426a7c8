package tally

import (
	"reflect"
	"testing"

	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/window"
)

// countedIn returns what a tally counted as "outcome way", without what never happened.
func countedIn(scope, rule string) map[string]int64 {
	counted := map[string]int64{}
	for _, t := range All() {
		if t.Scope == scope && t.Rule == rule && t.Count > 0 {
			counted[t.Outcome+" "+t.Way] += t.Count
		}
	}
	return counted
}

func TestEachKindIsToldByItsWords(t *testing.T) {
	if len(kinds) != kindsCount {
		t.Fatalf("%d kinds have words, and there are %d", len(kinds), kindsCount)
	}
	for kind, want := range map[int]string{
		AllowedShared: "allowed shared", AllowedLocal: "allowed local", AllowedOpen: "allowed open",
		RefusedShared: "refused shared", RefusedMemory: "refused memory", RefusedLocal: "refused local",
		UnavailableClosed: "unavailable closed", UnavailableGateway: "unavailable gateway", RejectedMissing: "rejected none",
		AllowedDryRun: "allowed dry-run", WouldRefuse: "would_refuse dry-run",
		RefusedControl: "refused control", AllowedControl: "allowed control",
		Exempt: "exempt none", Skipped: "skipped none",
	} {
		rule := "kind " + want
		Add(Open("kinds", rule), kind)
		*Counter(Open("kinds", rule), kind)++
		if got := countedIn("kinds", rule); !reflect.DeepEqual(got, map[string]int64{want: 2}) {
			t.Errorf("kind %d is told as %v, want %s", kind, got, want)
		}
	}
}

func TestDecisionsAreCountedByWay(t *testing.T) {
	for want, d := range map[string]window.Decision{
		"allowed shared":     {Allowed: true, Way: limiter.Shared},
		"allowed local":      {Allowed: true, Way: limiter.Local},
		"allowed open":       {Allowed: true, Way: limiter.Open},
		"refused shared":     {Way: limiter.Shared},
		"refused memory":     {Way: limiter.Shared, Known: true},
		"refused local":      {Way: limiter.Local},
		"unavailable closed": {Way: limiter.Closed},
	} {
		d := d
		Count(Open("decisions", want), &d)
		if got := countedIn("decisions", want); !reflect.DeepEqual(got, map[string]int64{want: 1}) {
			t.Errorf("%+v is counted as %v, want %s", d, got, want)
		}
	}
	dry := Open("decisions", "dry")
	CountDryRun(dry, true)
	CountDryRun(dry, false)
	if got := countedIn("decisions", "dry"); !reflect.DeepEqual(got, map[string]int64{"would_refuse dry-run": 1, "allowed dry-run": 1}) {
		t.Errorf("a dry run is counted as %v", got)
	}
}
