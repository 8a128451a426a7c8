package window

import (
	"math/rand"
	"strconv"
	"testing"
)

// Whoever waits as long as a gateway alone tells is let in, whatever a request costs and how
// many gateways share what is left.
func TestWaitsForASharePassWhateverARequestCosts(t *testing.T) {
	for _, algorithm := range algorithms {
		for seed := int64(1); seed <= 400; seed++ {
			random := rand.New(rand.NewSource(seed))
			limit := 5 + random.Int63n(30)
			l := &Limit{Algorithm: algorithm, Limit: limit, Length: 60, Burst: limit}
			share := &Share{Gateways: 1 + random.Int63n(4)}
			o := newOnly(l)
			now := int64(1764499230500)
			for i := 0; i < 200; i++ {
				cost := 1 + random.Int63n(5)
				now += random.Int63n(10000)
				var d Decision
				TakeAlone([]*Limit{l}, []*Account{o.account(now)}, share, cost, now, false, strconv.Itoa(i), 1, &d)
				if d.Allowed {
					continue
				}
				now += d.RetryAfter * 1000
				again := Decision{}
				TakeAlone([]*Limit{l}, []*Account{o.account(now)}, share, cost, now, false, strconv.Itoa(i)+"x", 1, &again)
				if !again.Allowed {
					t.Fatalf("%+v, %+v, seed %d, step %d: a request that costs %d is refused again after %d s: %+v", *l, *share, seed, i, cost, d.RetryAfter, again)
				}
			}
		}
	}
}
