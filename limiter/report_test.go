package limiter

import (
	"context"
	"testing"
	"time"
)

// A store that no configuration uses any more is neither away nor used, however it fared
// when it was last asked; what was counted of it goes on.
func TestReportIsAboutStoresInForce(t *testing.T) {
	forget()
	const endpoint = "reported:6379"
	report := func() StoreReport {
		t.Helper()
		var found []StoreReport
		for _, r := range Reports().Stores {
			if r.Endpoint == endpoint {
				found = append(found, r)
			}
		}
		if len(found) != 1 {
			t.Fatalf("%d reports of %s", len(found), endpoint)
		}
		return found[0]
	}
	l := &ledger{}
	ctx, reload := context.WithCancel(context.Background())
	before := openStore(&StoreSettings{Endpoint: endpoint, Timeout: time.Second}, l)
	serve(ctx, before, &table{})
	if r := report(); r.Used || r.Away {
		t.Errorf("before its first use: used %t, away %t", r.Used, r.Away)
	}
	before.batches = 5
	before.origin += int64(time.Hour)
	setHealth(before, away)
	if r := report(); !r.Used || !r.Away || r.ClockOffset < 59*time.Minute {
		t.Errorf("in use: used %t, away %t, its clock %v ahead", r.Used, r.Away, r.ClockOffset)
	}

	// The same endpoint, with another time-out.
	after := openStore(&StoreSettings{Endpoint: endpoint, Timeout: 2 * time.Second}, l)
	serve(context.Background(), after, &table{})
	reload()
	if r := report(); r.Used || r.Away {
		t.Errorf("out of use, before the first use of the other one: used %t, away %t", r.Used, r.Away)
	}
	after.batches = 2
	if r := report(); !r.Used || r.Away || r.RoundTrips != 7 || r.ClockOffset > time.Minute {
		t.Errorf("the other one in use: used %t, away %t, %d round trips, its clock %v ahead", r.Used, r.Away, r.RoundTrips, r.ClockOffset)
	}
}
