package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// idle is how long the application keeps a connection on which nothing comes.
const idle = 3 * time.Second

// startApp starts an application that counts its hits. It ends idle connections
// soon, also those that were never used, so that what a gateway holds open at rest
// is its own.
func startApp(t testing.TB) (url string, hits *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hits = new(atomic.Int64)
	server := &http.Server{
		ReadHeaderTimeout: idle,
		IdleTimeout:       idle,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			hits.Add(1)
			_, _ = io.WriteString(w, "ok\n")
		}),
	}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return "http://" + l.Addr().String(), hits
}

// traffic sends requests of many clients to gateways and keeps an exact log.
type traffic struct {
	client *lab.Client
	urls   []string
	limit  int
	length time.Duration // of a window
	start  time.Time     // of the run
	first  int64         // id of the first window

	mu     sync.Mutex
	log    []event
	wrong  map[string]int // answers that nobody should get, by what they are
	passes int            // answers 200
	missed int            // requests that were not sent in their turn, all workers being busy
}

// send sends one request and logs its answer.
func (f *traffic) send(client int32, gateway uint8) {
	r := lab.Keyed(f.urls[gateway], "client-"+strconv.Itoa(int(client)))
	sent := time.Since(f.start)
	a := f.client.Get(r)
	e := event{client: client, gateway: gateway, sent: sent, arrived: time.Since(f.start)}
	way := a.Header.Get("X-RateLimit-Decision")
	e.allowed, e.shared = a.Status == http.StatusOK, way == "shared"
	e.window = int32(a.Window(f.length) - f.first)
	e.remaining = int32(a.Number("X-RateLimit-Remaining"))

	f.mu.Lock()
	defer f.mu.Unlock()
	if e.allowed {
		f.passes++
	}
	switch {
	case a.Err != nil:
		f.wrong[a.Err.Error()]++
	case !e.allowed && a.Status != http.StatusTooManyRequests:
		f.wrong["status "+strconv.Itoa(a.Status)]++
	case way != "shared" && way != "local":
		f.wrong[fmt.Sprintf("decision %q", way)]++
	case a.Window(f.length) < 0 || e.remaining < 0 || int(e.remaining) >= f.limit:
		f.wrong[fmt.Sprintf("reset %q, remaining %q", a.Header.Get("X-RateLimit-Reset"), a.Header.Get("X-RateLimit-Remaining"))]++
	default:
		f.log = append(f.log, e)
	}
}

// run sends rate requests a second until stop is closed, and returns when all are
// answered. The clients and their gateways follow from the seed alone: a few of
// the clients send most of the requests.
func (f *traffic) run(seed uint64, clients, rate int, stop <-chan struct{}) {
	const workers, tick = 192, 5 * time.Millisecond
	type order struct {
		client  int32
		gateway uint8
	}
	orders := make(chan order, workers)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for each := range orders {
				f.send(each.client, each.gateway)
			}
		})
	}
	source := rand.New(rand.NewPCG(seed, 1))
	skewed := rand.NewZipf(source, 1.05, 4, uint64(clients-1))
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	began, sent := time.Now(), 0
	for running := true; running; {
		select {
		case <-stop:
			running = false
		case <-ticker.C:
			for due := int(time.Since(began).Seconds() * float64(rate)); sent < due; sent++ {
				next := order{int32(skewed.Uint64()), uint8(source.IntN(len(f.urls)))}
				select {
				case orders <- next:
				default:
					f.mu.Lock()
					f.missed++
					f.mu.Unlock()
				}
			}
		}
	}
	close(orders)
	wg.Wait()
}

// now returns the time since the start of the run.
func (f *traffic) now() time.Duration { return time.Since(f.start) }
