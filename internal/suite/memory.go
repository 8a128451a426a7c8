package suite

import (
	"fmt"
	"net/http"
)

// memory is about what a gateway keeps.
var memory = tests{
	{"maxClients bounds the clients in memory, and one at its limit stays", clientsBounded},
	{"the store counts clients that memory has no room for", storeHasRoom},
}

func clientsBounded(t *T) {
	t.inMemory(func(t *T, options map[string]any, _ string) {
		const room = 100
		crowd := 10_000
		if options["mode"] != "local" {
			crowd = 2_000
		}
		h := t.handler(t.name(), with(options, "limit", "2", "maxClients", float64(room)))
		for i := 0; i < 3; i++ {
			t.ask(h, "busy")
		}
		for i := 0; i < crowd; i++ {
			if got := t.ask(h, fmt.Sprintf("client %d", i)); got.status != http.StatusOK {
				t.Fatalf("the first request of client %d: %d", i, got.status)
			}
			if i%100 == 0 {
				if got := t.ask(h, "busy"); got.status != http.StatusTooManyRequests {
					t.Fatalf("after %d newcomers a client over its limit: %d", i+1, got.status)
				}
			}
		}
		// Those who came last are the likeliest to be there still.
		remembered := 0
		for i := crowd - 1; i >= crowd-10*room; i-- {
			if t.ask(h, fmt.Sprintf("client %d", i)).remaining == 0 { // it was its second request
				remembered++
			}
		}
		if remembered == 0 || remembered > room {
			t.Errorf("%d clients are remembered where %d have room", remembered, room)
		}
	})
}

func storeHasRoom(t *T) {
	v := t.valkey()
	h := t.handler(t.name(), t.options(v, "limit", "2", "maxClients", "1"))
	for i := int64(1); i <= 3; i++ {
		for c := 0; c < 50; c++ {
			got := t.ask(h, fmt.Sprintf("client %d", c))
			if allowed := i <= 2; (got.status == http.StatusOK) != allowed || got.decision != "shared" {
				t.Errorf("request %d of client %d: %d, %s", i, c, got.status, got.decision)
			}
		}
	}
}
