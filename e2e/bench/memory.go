package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/host"
	"github.com/gatequota/gatequota/e2e/lab"
)

const (
	// trackedClients is how many clients the memory of one is measured with.
	trackedClients = 100_000
	// mostEdges is how many edges between windows are watched.
	mostEdges = 5
	// around is how long requests are watched on each side of an edge.
	around = 500 * time.Millisecond
)

// memory is what clients cost that are remembered.
type memory struct {
	local, shared float64 // bytes of one client, by mode
	// after has the longest request just after each edge at which an expired window
	// was dropped, before the longest just ahead of it.
	after, before []pause
}

// pause is the longest that a request took.
type pause struct {
	wall time.Duration
	busy time.Duration // the processor time of its thread: what others do is not in it, waiting for a lock neither
}

func (p pause) or(q pause) pause { return pause{max(p.wall, q.wall), max(p.busy, q.busy)} }

func wall(p pause) time.Duration { return p.wall }
func busy(p pause) time.Duration { return p.busy }

// middlewareMaker makes a middleware in front of a handler that does nothing.
type middlewareMaker func(name string, options map[string]any) (http.Handler, error)

// interpreted returns a maker of middlewares as Traefik runs them. What they log
// goes nowhere.
func interpreted(t testing.TB) middlewareMaker { return interpretedFrom(t, lab.Root()) }

// interpretedFrom does so with the plugin in a folder.
func interpretedFrom(t testing.TB, folder string) middlewareMaker {
	silence, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silence.Close() })
	plugin, err := host.Load(folder, silence, silence)
	if err != nil {
		t.Fatal(err)
	}
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	return func(name string, options map[string]any) (http.Handler, error) {
		return plugin.New(context.Background(), nothing, name, options)
	}
}

// limits returns the options of a middleware that counts by API key.
func limits(mode, store string, limit int64, window time.Duration) map[string]any {
	o := map[string]any{
		"limit": strconv.FormatInt(limit, 10), "window": window.String(), "mode": mode,
		"maxClients":      4 * trackedClients,
		"sourceCriterion": map[string]any{"requestHeaderName": "X-API-Key"},
	}
	if store != "" {
		o["valkey"] = map[string]any{"endpoints": []string{store}, "timeout": "5s"}
	}
	return o
}

// memory measures what clients cost in the memory of a gateway.
func (b *bench) memory(t testing.TB) *memory {
	m := &memory{}
	makes := interpreted(t)
	window, _ := lab.QuietWindow(time.Now())
	var fill time.Duration // of the local table
	for _, mode := range []string{"local", "shared"} {
		store, workers := "", 2
		if mode == "shared" {
			store, workers = b.store.Addr(), 64
		}
		h, err := makes("memory-"+mode+"@bench", limits(mode, store, 1, window))
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		bytes, err := bytesPerClient(h, trackedClients, workers)
		if err != nil {
			t.Fatalf("mode %s: %v", mode, err)
		}
		if mode == "local" {
			m.local, fill = bytes, time.Since(begin)
		} else {
			m.shared = bytes
		}
	}
	var err error
	// Time to fill, twice over since that took two requests of each, and to watch.
	length := (fill + 5*time.Second).Truncate(time.Second)
	if m.after, m.before, err = edges(makes, length, min(b.rounds, mostEdges)); err != nil {
		t.Fatal(err)
	}
	return m
}

// send makes a handler decide one request of a client.
func send(h http.Handler, client string) *answer {
	a := &answer{header: http.Header{}, status: http.StatusOK}
	h.ServeHTTP(a, &http.Request{Method: http.MethodGet, URL: anywhere, Header: http.Header{"X-Api-Key": {client}}, RemoteAddr: "192.0.2.1:4711"})
	return a
}

var anywhere = &url.URL{Path: "/anywhere"}

// answer is what a handler says, kept for nobody but the one who asked.
type answer struct {
	header http.Header
	status int
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) Write(p []byte) (int, error) { return len(p), nil }
func (a *answer) WriteHeader(status int)      { a.status = status }

// way returns how the answer was decided.
func (a *answer) way() string { return strings.Join(a.header["X-Ratelimit-Decision"], " ") }

// sendEach sends one request of each of many clients, over some workers, and
// returns how many of them were refused. It stops when the deadline has passed.
func sendEach(h http.Handler, clients, workers int, deadline time.Time) (refused int, err error) {
	var next, refusals atomic.Int64
	var late atomic.Bool
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for n := next.Add(1); n <= int64(clients); n = next.Add(1) {
				if n%256 == 0 && time.Now().After(deadline) {
					late.Store(true)
					return
				}
				if send(h, clientKey+"-"+strconv.FormatInt(n, 10)).status == http.StatusTooManyRequests {
					refusals.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if late.Load() {
		return 0, fmt.Errorf("%d clients did not all have their turn in time", clients)
	}
	return int(refusals.Load()), nil
}

// bytesPerClient returns by how much the heap grows with each of many clients that
// a handler with a limit of 1 has to remember. That it does remember them shows in
// their second request.
func bytesPerClient(h http.Handler, clients, workers int) (float64, error) {
	deadline := time.Now().Add(2 * time.Minute)
	send(h, "somebody") // what the first request makes is no client's
	before := heap()
	refused, err := sendEach(h, clients, workers, deadline)
	if err != nil {
		return 0, err
	}
	grown := float64(heap()) - float64(before)
	if refused > 0 {
		return 0, fmt.Errorf("%d of %d first requests were refused", refused, clients)
	}
	if refused, err = sendEach(h, clients, workers, deadline); err == nil && refused < clients {
		err = fmt.Errorf("only %d of %d clients are remembered", refused, clients)
	}
	return grown / float64(clients), err
}

// heap returns the bytes in use after a collection of all that is not.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// edges watches requests at edges between windows that many clients were tracked
// in. A window is kept beside its successor, so the first edge drops none and is
// not among those returned.
func edges(makes middlewareMaker, window time.Duration, count int) (after, before []pause, err error) {
	h, err := makes("edges@bench", limits("local", "", 1_000_000_000, window))
	if err != nil {
		return nil, nil, err
	}
	time.Sleep(lab.UntilEdge(time.Now(), window))
	for i := range count + 1 {
		edge := time.Now().Add(lab.UntilEdge(time.Now(), window))
		if _, err := sendEach(h, trackedClients, 2, edge.Add(-2*around)); err != nil {
			return nil, nil, errors.Join(err, errors.New("the machine is too busy to measure the end of a window"))
		}
		runtime.GC() // of what filling has left, so that it falls on neither side
		time.Sleep(time.Until(edge.Add(-around)))
		quiet, longest := watch(h, edge, edge.Add(around))
		if i > 0 {
			after, before = append(after, longest), append(before, quiet)
		}
	}
	return after, before, nil
}

// watch sends requests of some clients, one after the other, until a point of time,
// and returns the longest that ended before an edge and the longest that ended
// after it.
func watch(h http.Handler, edge, end time.Time) (before, after pause) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for n := 0; ; n++ {
		client := clientKey + "-" + strconv.Itoa(n%1000)
		begin, worked := time.Now(), threadTime()
		send(h, client)
		now := time.Now()
		took := pause{now.Sub(begin), threadTime() - worked}
		if now.Before(edge) {
			before = before.or(took)
		} else {
			after = after.or(took)
		}
		if now.After(end) {
			return before, after
		}
	}
}

// threadTime returns the processor time of this thread, in and out of the kernel. A
// Rusage has it too, but only up to the last tick.
func threadTime() time.Duration { return clockTime(3) }

// milliseconds returns one of the times of each pause.
func milliseconds(pauses []pause, of func(pause) time.Duration) []float64 {
	figures := make([]float64, len(pauses))
	for i, p := range pauses {
		figures[i] = float64(of(p).Microseconds()) / 1000
	}
	return figures
}
