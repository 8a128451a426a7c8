package main

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/gatequota/gatequota"
	"github.com/gatequota/gatequota/e2e/lab"
)

// A client that a gateway tracks costs little, as Traefik runs the plugin and
// compiled. Not parallel, since it measures this process.
func TestMemoryOfAClient(t *testing.T) {
	window, _ := lab.QuietWindow(time.Now())
	options := limits("local", "", 1, window)
	for name, makes := range map[string]middlewareMaker{
		"interpreted": interpreted(t),
		"compiled": func(name string, _ map[string]any) (http.Handler, error) {
			config := gatequota.CreateConfig()
			config.Limit, config.Window, config.Mode, config.MaxClients = options["limit"], options["window"], options["mode"], options["maxClients"]
			config.SourceCriterion.RequestHeaderName = "X-API-Key"
			return gatequota.New(context.Background(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), config, name)
		},
	} {
		h, err := makes("memory@bench", options)
		if err != nil {
			t.Fatal(err)
		}
		bytes, err := bytesPerClient(h, trackedClients, 2)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Logf("%s: %.0f bytes a client", name, bytes)
		if !memoryTarget.met(bytes, memoryTarget.bound) {
			t.Errorf("%s: a client takes %.0f bytes, want %s", name, bytes, memoryTarget.wanted())
		}
		if bytes < 32 {
			t.Errorf("%s: a client takes %.0f bytes, less than its identity: this measures nothing", name, bytes)
		}
	}
}

// What a request takes shows on the side of the edge on which it ends.
func TestWatch(t *testing.T) {
	t.Parallel()
	const pause = 20 * time.Millisecond
	edge, slow := time.Now().Add(pause), false
	h := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if now := time.Now(); !slow && now.After(edge) {
			slow = true
			time.Sleep(pause)
		}
	})
	if _, after := watch(h, edge, edge.Add(pause)); after.wall < pause {
		t.Errorf("after the edge the longest request took %s, where one took %s", after.wall, pause)
	}
	if before, after := watch(h, edge, edge); before.wall != 0 || after.wall == 0 {
		t.Errorf("all of them ended after the edge, and the longest before it took %s, after it %s", before.wall, after.wall)
	}
}
