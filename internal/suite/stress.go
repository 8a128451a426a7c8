package suite

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
)

// Stress sends n requests from many goroutines through middlewares that count in
// the store and in memory, while the store is stopped and started eight times, and
// handlers are made anew as at a reload.
func Stress(t *testing.T, plugin Plugin, n int) {
	stress(newT(t, plugin), n)
}

func stress(t *T, n int) {
	const clients, outages = 4, 8
	v := t.valkey()
	middlewares := []struct {
		limit, most int
		newHandler  New
	}{
		// The count in the store and the one in memory each have the
		// limit, and no outage adds to either of them.
		{5, 10, t.configure(t.name(), t.options(v))},
		{10, 20, t.configure(t.name(), t.options(v, "limit", "10"))},
		{20, 20, t.configure(t.name(), t.options(nil, "limit", "20"))},
	}
	var handlers [3]atomic.Value
	reload := func(m int) {
		h, err := middlewares[m].newHandler(served)
		if err != nil {
			t.Errorf("making a handler: %v", err)
			return
		}
		handlers[m].Store(&h)
	}
	for m := range middlewares {
		reload(m)
	}
	var turn sync.Mutex
	got := rush(20, n, func(i int) answer {
		switch i % (n / outages) {
		case n / outages / 4:
			turn.Lock()
			v.Stop()
			turn.Unlock()
		case n / outages / 2:
			turn.Lock()
			restart(t, v)
			turn.Unlock()
		}
		if i%100 < 3 {
			reload(i % 3)
		}
		h := handlers[i%3].Load().(*http.Handler)
		return t.ask(*h, fmt.Sprintf("client %d", i/3%clients))
	})
	allowed := map[[2]int]int{}
	for i, a := range got {
		if a.status == http.StatusOK {
			allowed[[2]int{i % 3, i / 3 % clients}]++
		}
	}
	for m, each := range middlewares {
		for c := 0; c < clients; c++ {
			passed := allowed[[2]int{m, c}]
			if passed == 0 || passed > each.most || each.limit == each.most && passed < each.limit {
				t.Errorf("client %d of limit %d got %d requests through", c, each.limit, passed)
			}
		}
	}
}
