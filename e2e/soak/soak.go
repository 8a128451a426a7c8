package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// settings say how a soak is run.
type settings struct {
	duration time.Duration
	seed     uint64 // of the clients' and the faults' order
	clients  int
	rate     int           // requests a second
	limit    int           // requests of a client in a window
	window   time.Duration // at least 3 s, so that an answer tells its window
	timeout  time.Duration // valkey.timeout
	calm     time.Duration // shortest time between two faults
	// growth is how much more memory the gateways may hold in the last third of the
	// run than in the first, in parts of a hundred.
	growth int
}

func defaults() settings {
	return settings{
		duration: 10 * time.Minute, seed: 1, clients: 20_000, rate: 600, limit: 20,
		window: 5 * time.Second, timeout: 200 * time.Millisecond, calm: 5 * time.Second, growth: 3,
	}
}

// some is how many goroutines and connections more a gateway may hold at rest
// after the run than before it.
const some = 8

const gateways = 2

// outcome is what a soak showed.
type outcome struct {
	settings settings
	verdict  verdict

	requests, passes, missed int
	local                    int // requests that a gateway decided by itself
	reloads                  int
	happened                 map[string]int
	slowest                  time.Duration // recovery
	before, after            []resources   // at rest, of each gateway
	memory                   [][]uint64    // of each gateway, in the order of time
	worst                    time.Duration // longest time that an answer took
	logged                   int           // lines about the store, of all gateways
	complaints               []string
}

// resources are what one gateway holds.
type resources struct {
	goroutines  int
	files       int // open files and connections
	connections int // to the store
}

// heap returns the bytes that a gateway holds after a forced collection.
func heap(tr *lab.Traefik) uint64 {
	// Two collections: what the first one finalizes, the second one frees.
	tr.Get("/debug/pprof/heap?gc=1&debug=1")
	text := tr.Get("/debug/pprof/heap?gc=1&debug=1")
	var bytes uint64
	_, after, _ := strings.Cut(text, "# HeapAlloc = ")
	_, _ = fmt.Sscan(after, &bytes)
	return bytes
}

// configuration returns the nth dynamic configuration. The limited route is the
// same in all of them; around it routers and middlewares come, change and go.
func configuration(s settings, app, store string, n int) string {
	var b strings.Builder
	options := func(limit int, window time.Duration) string {
		return fmt.Sprintf("{limit: %d, window: %ds, sourceCriterion: {requestHeaderName: X-API-Key}, fallback: {gateways: %d}, valkey: {endpoints: [%q], timeout: %s, dialTimeout: 1s}}",
			limit, int(window.Seconds()), gateways, store, s.timeout)
	}
	b.WriteString("http:\n  routers:\n")
	b.WriteString("    all: {rule: 'PathPrefix(`/`)', priority: 1, middlewares: [quota], service: app}\n")
	b.WriteString("    other: {rule: 'Path(`/other`)', middlewares: [other], service: app}\n")
	for i := range n % 4 {
		fmt.Fprintf(&b, "    more%d: {rule: 'Path(`/more/%d`)', middlewares: [quota], service: app}\n", i, i)
	}
	b.WriteString("  middlewares:\n")
	fmt.Fprintf(&b, "    quota: {plugin: {%s: %s}}\n", lab.PluginName, options(s.limit, s.window))
	fmt.Fprintf(&b, "    other: {plugin: {%s: %s}}\n", lab.PluginName, options(10+n, time.Duration(1+n%3)*time.Hour))
	fmt.Fprintf(&b, "  services:\n    app: {loadBalancer: {servers: [{url: %q}]}}\n", app)
	return b.String()
}

// soak runs it all.
func soak(t testing.TB, s settings) *outcome {
	o := &outcome{settings: s}
	store := lab.Valkey(t, lab.StoreOptions{Args: lab.Persistent})
	app, hits := startApp(t)
	place := &site{store: store, timeout: s.timeout}
	f := &traffic{client: lab.NewClient(t), limit: s.limit, length: s.window, wrong: map[string]int{}}
	var all []*lab.Traefik
	for range gateways {
		proxy := lab.NewProxy(t, store.Addr())
		place.proxies = append(place.proxies, proxy)
		tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, configuration(s, app, proxy.Addr(), 0))
		all = append(all, tr)
		f.urls = append(f.urls, tr.URL)
	}
	f.start = time.Now()
	f.first = f.start.UnixNano() / int64(s.window)

	// The same traffic before as during the run, so that what it opens is there.
	warm := make(chan struct{})
	time.AfterFunc(2*s.window, func() { close(warm) })
	f.run(s.seed, s.clients, s.rate, warm)
	o.before = atRest(t, f, all, store)

	ctx, cancel := context.WithTimeout(context.Background(), s.duration)
	defer cancel()
	weather := &weatherMaker{site: place, traffic: f, random: rand.New(rand.NewPCG(s.seed, 2)), calm: s.calm}
	var wg sync.WaitGroup
	wg.Go(func() { f.run(s.seed+1, s.clients, s.rate, ctx.Done()) })
	wg.Go(func() { weather.run(ctx) })
	wg.Go(func() {
		for pause(ctx, time.Second) {
			o.reloads++
			for i, tr := range all {
				tr.Reload(configuration(s, app, place.proxies[i].Addr(), o.reloads))
			}
		}
	})
	wg.Go(func() { o.memory = sample(ctx, f, weather, all) })
	wg.Wait()
	o.after = atRest(t, f, all, store)

	o.requests, o.passes, o.missed = len(f.log), f.passes, f.missed
	for _, e := range f.log {
		o.worst = max(o.worst, e.arrived-e.sent)
		if !e.shared {
			o.local++
		}
	}
	o.happened, o.slowest = weather.happened, weather.slowest
	o.verdict = judge(f.log, rules{
		limit: s.limit, gateways: gateways, length: s.window, spans: weather.spans,
		first: time.Unix(0, f.first*int64(s.window)).Sub(f.start),
	})
	o.weigh(all, f, weather, int(hits.Load()))
	return o
}

// settling is how long after a fault a gateway may still hold what the fault made it
// hold: the application ends idle connections within it.
const settling = idle + time.Second

// sample measures the memory of all gateways until the context ends, always in calm
// weather and at the same time before the end of a window, when the counts of two
// whole windows are held: what differs then is what the gateway does not give back.
func sample(ctx context.Context, f *traffic, m *weatherMaker, all []*lab.Traefik) [][]uint64 {
	samples := make([][]uint64, len(all))
	for {
		wait := lab.UntilEdge(time.Now(), f.length) - 700*time.Millisecond
		if wait <= 0 {
			wait += f.length
		}
		if !pause(ctx, wait) {
			return samples
		}
		if calm := m.calmSince.Load(); calm < 0 || f.now()-time.Duration(calm) < settling {
			continue
		}
		// Neither are the client's connections what a gateway keeps.
		f.client.CloseIdle()
		if !pause(ctx, 100*time.Millisecond) {
			return samples
		}
		for i, tr := range all {
			samples[i] = append(samples[i], heap(tr))
		}
	}
}

// atRest returns what the gateways hold once nothing changes any more.
func atRest(t testing.TB, f *traffic, all []*lab.Traefik, store *lab.Store) []resources {
	t.Helper()
	f.client.CloseIdle()
	var now []resources
	stable := 0
	lab.Until(t, "the gateways are at rest", func() bool {
		last := now
		now = nil
		for _, tr := range all {
			now = append(now, resources{tr.Goroutines(), tr.Files(), store.Clients()})
		}
		stable++
		if !slices.Equal(now, last) {
			stable = 0
		}
		time.Sleep(settling / 20)
		return stable > 20
	})
	return now
}

// weigh collects everything that must not be.
func (o *outcome) weigh(all []*lab.Traefik, f *traffic, m *weatherMaker, hits int) {
	complain := func(format string, args ...any) {
		o.complaints = append(o.complaints, fmt.Sprintf(format, args...))
	}
	o.complaints = append(o.complaints, o.verdict.violations...)
	if more := o.verdict.violated - len(o.verdict.violations); more > 0 {
		complain("and %d more", more)
	}
	if m.failure != "" {
		complain("%s", m.failure)
	}
	for what, n := range f.wrong {
		complain("%d answers: %s", n, what)
	}
	// The probes of whether a gateway counts again pass too.
	if hits < o.passes {
		complain("%d requests reached the application, %d were answered by it", hits, o.passes)
	}
	if o.verdict.calm == 0 {
		complain("no window was without faults: nothing was judged exactly")
	}
	if o.verdict.limited == 0 {
		complain("no client asked for more than its limit")
	}
	if o.missed > o.requests/10 {
		complain("%d requests could not be sent in their turn", o.missed)
	}
	for i, tr := range all {
		before, after := o.before[i], o.after[i]
		if after.goroutines > before.goroutines+some || after.files > before.files+some || after.connections > before.connections+some {
			complain("gateway %d holds %+v at rest, before %+v", i+1, after, before)
		}
		// Less than a few minutes have too few calm moments to tell anything.
		if n := len(o.memory[i]); n < 6 && o.settings.duration >= 5*time.Minute {
			complain("the memory of gateway %d was measured %d times only", i+1, n)
		}
		if first, last := o.thirds(i); float64(last) > float64(first)*(1+float64(o.settings.growth)/100) {
			complain("gateway %d holds %d bytes in the last third, %d in the first", i+1, last, first)
		}
		if lines := tr.LogLines("panic"); len(lines) > 0 || !tr.Running() {
			complain("gateway %d panicked: %q", i+1, lines)
		}
		o.logged += len(tr.LogLines("gatequota: store"))
	}
}

// thirds returns the median memory of a gateway in the first and the last third
// of the run.
func (o *outcome) thirds(gateway int) (first, last uint64) {
	samples := o.memory[gateway]
	third := len(samples) / 3
	if third == 0 {
		return 0, 0
	}
	return median(samples[:third]), median(samples[len(samples)-third:])
}

func median(samples []uint64) uint64 {
	sorted := slices.Clone(samples)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}

// String returns a summary of one screen.
func (o *outcome) String() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	s, v := o.settings, o.verdict
	line("run", "%s, seed %d, %d gateways, %d clients, %d requests a second, limit %d in %s", s.duration, s.seed, gateways, s.clients, s.rate, s.limit, s.window)
	line("requests", "%d answered, %d allowed, %d decided by a gateway alone, %d not sent in time; slowest %s",
		o.requests, o.passes, o.local, o.missed, o.worst.Round(time.Millisecond))
	line("windows", "%d: %d without a fault (exact), %d disturbed by the machine, %d with faults", v.windows, v.calm, v.disturbed, v.windows-v.calm-v.disturbed)
	line("counts", "%d of clients in windows, %d asked for more than the limit, %d got more", v.counts, v.limited, v.over)
	if v.over > 0 {
		line("beyond", "worst %d (bound %d, %s); all together %d (bounds %d)", v.worst, v.worstBound, v.worstAt, v.extra, v.most)
	}
	line("reloads", "%d of each gateway", o.reloads)
	for _, f := range faults {
		if n := o.happened[f.name]; n > 0 {
			line("fault", "%2d x %s", n, f.name)
		}
	}
	line("recovery", "slowest %s after a fault's end; %d lines in the logs", o.slowest.Round(time.Millisecond), o.logged)
	for i := range gateways {
		first, last := o.thirds(i)
		change := 0.0
		if first > 0 {
			change = (float64(last)/float64(first) - 1) * 100
		}
		line(fmt.Sprintf("gateway %d", i+1), "memory %.1f MB in the first third, %.1f MB in the last (%+.1f %%, %d measured); goroutines %d -> %d, files %d -> %d, connections to the store, of all, %d -> %d",
			float64(first)/1e6, float64(last)/1e6, change, len(o.memory[i]), o.before[i].goroutines, o.after[i].goroutines,
			o.before[i].files, o.after[i].files, o.before[i].connections, o.after[i].connections)
	}
	for _, text := range o.complaints {
		line("VIOLATION", "%s", text)
	}
	if len(o.complaints) == 0 {
		line("verdict", "no count was lost outside the bounds, nothing was left behind")
	}
	return b.String()
}
