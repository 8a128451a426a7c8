package window

import (
	"fmt"
	"math/rand"
	"testing"
)

// keepers makes a table of each algorithm, and the limit that it is for.
var keepers = map[string]func() (*Limit, *FixedCounts, *Entries){
	"fixed":   func() (*Limit, *FixedCounts, *Entries) { return limitOf(Fixed), NewFixedCounts(60, 1000), nil },
	"sliding": func() (*Limit, *FixedCounts, *Entries) { return limitOf(Sliding), NewSlidingCounts(60, 1000), nil },
	"log":     func() (*Limit, *FixedCounts, *Entries) { return limitOf(Exact), nil, NewEntries(true, 1000) },
	"bucket":  func() (*Limit, *FixedCounts, *Entries) { return limitOf(Bucket), nil, NewEntries(false, 1000) },
}

func limitOf(a Algorithm) *Limit {
	return &Limit{Algorithm: a, Limit: 5, Length: 60, Burst: 5}
}

const noon = 1764504000_000 // unix milliseconds, at the edge of a minute

func TestForgottenIsOneClientAndAllOfIt(t *testing.T) {
	for name, make := range keepers {
		l, counts, entries := make()
		take := func(client string, now int64) (d Decision) {
			TakeOne(l, Find(l, counts, entries, client, now), 1, now, &d)
			return d
		}
		for _, client := range []string{"a", "b", "c"} {
			for i := 0; i < 9; i++ {
				// Those of the sliding window weigh in the next one as well.
				if d := take(client, noon-1000); d.Allowed != (i < 5) {
					t.Fatalf("%s: request %d of %s: %+v", name, i+1, client, d)
				}
			}
		}
		now := int64(noon - 500)
		if name == "sliding" {
			now = noon
			take("a", now)
			take("b", now)
		}
		Forget(counts, entries, "b")
		Forget(counts, entries, "nobody")
		for client, want := range map[string]bool{"a": false, "b": true, "c": false} {
			if d := take(client, now); d.Allowed != want || want && d.Remaining != 4 {
				t.Errorf("%s: after b was forgotten, %s gets %+v", name, client, d)
			}
		}
	}
}

// Where one that is forgotten stood, another goes on to be found, to be visited and to be
// evicted: the order of a table has each client once.
func TestForgettingKeepsTheTable(t *testing.T) {
	seed := rand.Int63()
	random := rand.New(rand.NewSource(seed))
	for name, make := range keepers {
		l, counts, entries := make()
		there := map[string]bool{}
		for step := 0; step < 5000; step++ {
			client := fmt.Sprint("client ", random.Intn(300))
			if random.Intn(3) == 0 {
				Forget(counts, entries, client)
				delete(there, client)
			} else {
				now := int64(noon + step)
				TakeOne(l, Find(l, counts, entries, client, now), 1, now, &Decision{})
				there[client] = true
			}
		}
		seen := map[string]int{}
		for next := 0; next >= 0; {
			part, after := Clients(counts, entries, noon+5000, 7, next)
			for _, client := range part {
				seen[client]++
			}
			next = after
		}
		for client := range there {
			// A sliding window has two counts of each client.
			if n := seen[client]; n != 1 && !(name == "sliding" && n == 2) {
				t.Errorf("seed %d: %s: %s is visited %d times", seed, name, client, n)
			}
			delete(seen, client)
		}
		if len(seen) > 0 {
			t.Errorf("seed %d: %s: forgotten and yet visited: %v", seed, name, seen)
		}
	}
}

func TestApartIsFoundByNobody(t *testing.T) {
	for name, make := range keepers {
		l, counts, entries := make()
		a := Find(l, counts, entries, "client", noon)
		for i := 0; i < 5; i++ {
			TakeOne(l, a, 1, noon, &Decision{})
		}
		apart := Apart(a)
		if left := Left(l, apart, noon); left != 5 || Alone(apart) {
			t.Errorf("%s: of an account apart %d are left, want all 5", name, left)
		}
		switch {
		case apart.Entry != nil:
			if EntryClient(apart.Entry) != "client" || (apart.Entry.Log != nil) != (name == "log") || apart.Entry == a.Entry {
				t.Errorf("%s: the entry is %+v", name, apart.Entry)
			}
		case FixedClient(apart.Running) != "client" || apart.Running.End != a.Running.End || apart.Running == a.Running || (apart.Before != nil) != (name == "sliding"):
			t.Errorf("%s: the account is %+v", name, apart)
		}
		var d Decision
		TakeOne(l, apart, 1, noon, &d)
		if found := Find(l, counts, entries, "client", noon); found != a || Left(l, found, noon) != 0 {
			t.Errorf("%s: what is noted apart is found", name)
		}
	}
}
