package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// watchedRest are asked in turn, over one connection each.
var watchedRest = []string{unwatched + "-" + hotRoute, overseen + "-" + hotRoute}

// watchedRounds returns how often each of watchedRoutes is loaded, and how long each time:
// more often than others and for less long, since what is looked for is small. The number
// is even, since every other round is in the reverse order.
func (p plan) watchedRounds() (rounds int, duration time.Duration) {
	return 2 * p.rounds, min(p.duration, 2*time.Second)
}

func (p plan) watchedNeeds() time.Duration {
	rounds, duration := p.watchedRounds()
	sum := time.Duration((p.rounds+1)*restRequests*len(watchedRest)) * 500 * time.Microsecond
	for _, r := range watchedRoutes {
		sum += time.Duration(rounds)*(duration+100*time.Millisecond) + warmUp
		if r.many {
			sum += warmUpMany - warmUp
		}
	}
	return sum
}

func (p plan) activeNeeds() time.Duration {
	_, duration := p.watchedRounds()
	return time.Duration(4*p.rounds)*(duration+100*time.Millisecond) + 90*time.Second
}

// watched is what it costs that somebody can watch over a gateway and change it, while
// nobody does.
type watched struct {
	rounds   int
	duration time.Duration
	results  map[string]*result // of watchedRoutes
	rest     *atRest            // of watchedRest
}

func (b *bench) watch(t testing.TB) *watched {
	w := &watched{}
	w.rounds, w.duration = b.watchedRounds()
	w.results = b.rates(t, watchedRoutes, w.rounds, w.duration)
	w.rest = b.atRest(t, watchedRest)
	return w
}

// watchedConfiguration returns Traefik's dynamic configuration of one of the two gateways of
// watchedRoutes. They differ in nothing but that one is watched over.
func watchedConfiguration(t testing.TB, gateway, store string, replicas []string, window time.Duration) string {
	middlewares := group{}
	for _, r := range append(slices.Clone(watchedRoutes), trackedRoute, askedRoute) {
		if r.gateway != gateway {
			continue
		}
		mode, limit := "local", plenty
		if r.shared {
			mode = "shared"
		}
		if r.refused {
			limit = hardlyAny
		}
		options := ownOptions(store, mode, limit, window)
		if r.name == trackedRoute.name {
			options["maxClients"] = trackedClients
		}
		if gateway == overseen {
			watchOver(options)
		}
		middlewares[r.name] = plugin(options)
	}
	return dynamic(t, gateway, middlewares, replicas)
}

// Routes of the gateway that is watched over: one tracks as many clients as memory measures,
// the other is where those who watch ask.
var (
	trackedRoute = route{name: "tracked", own: true, gateway: overseen}
	askedRoute   = route{name: "asked", own: true, gateway: overseen,
		rule: fmt.Sprintf("Path(`%s`) || Path(`%s`)", metricsPath, statusPath)}
)

// wrkStrangers makes each request that of a client that never came before.
const wrkStrangers = `math.randomseed(os.time())
function request()
  wrk.headers["X-API-Key"] = "stranger-" .. math.random(1000000000)
  return wrk.format()
end
`

// active is what it costs that somebody watches over a gateway, and that something is
// changed.
type active struct {
	answers []answered
	// meanwhile has the loads of a route, of each round one, while nobody asks and while
	// somebody does; changed those of two routes while a change is in force on one of them.
	meanwhile map[bool]*result
	changed   map[string]*result
}

// answered is what those who watch are answered.
type answered struct {
	name, title string
	bytes       int
	took        []float64 // milliseconds, of each answer
	work        float64   // processor time of the gateway for one, milliseconds
}

const (
	scrapesAsked = 100 // answers of metrics that are measured
	statusAsked  = 5   // of the status, between which it is found out anew
	// scrapeEvery and statusEvery are how often is asked while requests come: Prometheus
	// does that less often, the status page as often.
	scrapeEvery = time.Second
	statusEvery = 2 * time.Second
)

// activate measures a gateway that is watched while it tracks many clients.
func (b *bench) activate(t testing.TB) *active {
	_, duration := b.watchedRounds()
	hot := byName[overseen+"-"+hotRoute]
	a := &active{meanwhile: map[bool]*result{false: {}, true: {}}}
	b.track(t)
	a.answers = []answered{
		b.askFor(t, answered{name: "metrics", title: "metrics"}, metricsPath, scrapesAsked, 0),
		b.askFor(t, answered{name: "status", title: "status as JSON"}, statusPath+"?format=json", statusAsked, statusEvery+100*time.Millisecond),
	}
	b.once(t, hot, warmUp)
	for round := range 2 * b.rounds {
		asks := (round+round/2)%2 == 1 // who is first changes
		stop := func() {}
		if asks {
			stop = b.keepWatching(t)
		}
		l := b.once(t, hot, duration)
		stop()
		a.meanwhile[asks].loads = append(a.meanwhile[asks].loads, l)
	}
	change := b.change(t, hot)
	a.changed = b.rates(t, []route{byName[hot.against], hot}, b.rounds, duration)
	change.takeBack()
	return a
}

// askAbout returns what one who watches is answered, and how long that took.
func (b *bench) askAbout(path string) (body string, took time.Duration, err error) {
	begin := time.Now()
	response, err := http.Get(b.gateways[overseen].URL + path)
	if err != nil {
		return "", 0, err
	}
	text, err := io.ReadAll(response.Body)
	took = time.Since(begin)
	_ = response.Body.Close()
	if err == nil && (response.StatusCode != http.StatusOK || len(text) < 100) {
		err = fmt.Errorf("%s: status %d, %d bytes", path, response.StatusCode, len(text))
	}
	return string(text), took, err
}

// askFor measures answers.
func (b *bench) askFor(t testing.TB, a answered, path string, times int, pause time.Duration) answered {
	var work time.Duration
	for range times {
		time.Sleep(pause)
		before := b.gateways[overseen].CPU()
		body, took, err := b.askAbout(path)
		if err != nil {
			t.Fatal(err)
		}
		work += b.gateways[overseen].CPU() - before
		a.bytes = len(body)
		a.took = append(a.took, float64(took.Microseconds())/1000)
	}
	a.work = float64(work.Microseconds()) / 1000 / float64(times)
	return a
}

// keepWatching asks for the metrics and for the status again and again until it is stopped.
func (b *bench) keepWatching(t testing.TB) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	for path, every := range map[string]time.Duration{metricsPath: scrapeEvery, statusPath + "?format=json": statusEvery} {
		wg.Go(func() {
			for {
				if _, _, err := b.askAbout(path); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-done:
					return
				case <-time.After(every):
				}
			}
		})
	}
	return func() {
		close(done)
		wg.Wait()
	}
}

var trackedNow = regexp.MustCompile(`(?m)^gatequota_clients\{scope="` + trackedRoute.name + `@file",.*\} (\d+)$`)

// track has the gateway remember as many clients as it may.
func (b *bench) track(t testing.TB) {
	script := filepath.Join(t.TempDir(), "strangers.lua")
	if err := os.WriteFile(script, []byte(wrkStrangers+wrkDone), 0o600); err != nil {
		t.Fatal(err)
	}
	tracked := 0
	for range 20 {
		l, err := runWrk(context.Background(), b.wrk, script, b.gateways[overseen].URL+"/"+trackedRoute.name, b.connections, 4*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.problem(trackedRoute); err != nil {
			t.Fatal(err)
		}
		text, _, err := b.askAbout(metricsPath)
		if err != nil {
			t.Fatal(err)
		}
		if found := trackedNow.FindStringSubmatch(text); found != nil {
			tracked, _ = strconv.Atoi(found[1])
		}
		if tracked == trackedClients {
			return
		}
	}
	t.Fatalf("%d clients are tracked, want %d", tracked, trackedClients)
}

// change is something that is changed of a scope.
type change struct {
	b    *bench
	t    testing.TB
	head string // of its keys
}

// somebody is a client of whom there is no request.
var somebody = strings.Repeat("0", 64)

// change blocks a client in the scope of a route, and waits until the gateway obeys.
func (b *bench) change(t testing.TB, r route) *change {
	c := &change{b: b, t: t, head: keyHead(r)}
	c.set("1", "block:"+somebody, strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10))
	return c
}

func (c *change) set(version string, fields ...any) {
	if err := c.b.store.Client().HSet(context.Background(), c.head+":control", append(fields, "version", version)...).Err(); err != nil {
		c.t.Fatal(err)
	}
	lab.Until(c.t, "the gateway obeys version "+version, func() bool {
		reports, err := c.b.store.Client().HVals(context.Background(), c.head+":reports").Result()
		return err == nil && len(reports) == 1 && strings.Contains(reports[0], `"version":`+version+",")
	})
}

func (c *change) takeBack() { c.set("2", "block:"+somebody, "0") }

// figures are what is told apart of it.
func (w *watched) figures() []figure {
	var all []figure
	for _, r := range watchedRoutes {
		if r.against != "" {
			all = append(all, figure{name: "ratio " + r.name, digits: 3, target: watchedTarget,
				title:  fmt.Sprintf("%s, %s: requests per second with metrics and control, divided by those without", r.title, outcome(r)),
				spread: ratio(w.results[r.name], w.results[r.against])})
		}
	}
	return append(all, figure{name: "ratio watched-latency-at-rest", digits: 3, target: watchedRestTarget,
		title: "Median time of a request over one connection, mode shared, with metrics and control, divided by that without", spread: w.rest.ratio()})
}

func (a *active) figures() []figure {
	asked, hot := ratio(a.meanwhile[true], a.meanwhile[false]), overseen+"-"+hotRoute
	return []figure{
		{name: "ratio while-asked", digits: 3, spread: asked},
		{name: "ratio while-changed", digits: 3, spread: ratio(a.changed[hot], a.changed[byName[hot].against])},
	}
}

// dearer returns the processor time that the gateway takes for a request, as a multiple of
// what the other takes.
func dearer(of, than *result) spread {
	ratios := make([]float64, len(of.loads))
	for i := range of.loads {
		ratios[i] = gatewayTime(of.loads[i]) / gatewayTime(than.loads[i])
	}
	return spreadOf(ratios)
}

func (w *watched) print(out io.Writer) {
	printRoutes(out, watchedRoutes, w.results)
	fmt.Fprintln(out)
	for _, r := range watchedRoutes {
		if r.against != "" {
			s := dearer(w.results[r.name], w.results[r.against])
			fmt.Fprintf(out, "gateway time %-23s times %.3f %.3f %.3f\n", r.name, s.median, s.min, s.max)
		}
	}
	printRest(out, watchedRest, w.rest)
}

func (a *active) print(out io.Writer) {
	fmt.Fprintln(out)
	for _, each := range a.answers {
		s := spreadOf(each.took)
		fmt.Fprintf(out, "answer %-8s ms %.2f %.2f %.2f, %d bytes, %.2f ms of processor\n", each.name, s.median, s.min, s.max, each.bytes, each.work)
	}
	for _, asked := range []bool{false, true} {
		x := a.meanwhile[asked]
		fmt.Fprintf(out, "somebody asks: %-5t req/s %s p99 ms %s\n", asked, whole(x.of(load.perSecond).median), hundredths(x.of(p99).median))
	}
}

func (r *report) writeWatched(d *document) {
	w, a := r.watched, r.active
	d.line("## Watching")
	d.line("")
	d.line("Two gateways with the same routes: one with `metrics`, `status`, `log.refusals` and, in mode shared, `control`, the other")
	d.line("without. Nobody asks meanwhile and nothing is changed. %d rounds of %s a route; the ratios are of requests per second,", w.rounds, w.duration)
	d.line("and of the processor time that Traefik took for a request, within a round.")
	d.line("")
	d.line("| mode | requests | without, requests/s | ratio | lowest | highest | Traefik, µs | times | lowest | highest |")
	d.line("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
	for _, route := range watchedRoutes {
		if route.against == "" {
			continue
		}
		of, to := w.results[route.name], w.results[route.against]
		s, work := ratio(of, to), dearer(of, to)
		d.line("| %s | %s | %s | **%.3f** | %.3f | %.3f | %s | %.3f | %.3f | %.3f |", strings.TrimPrefix(route.title, "Gatequota, "), outcome(route),
			whole(to.of(load.perSecond).median), s.median, s.min, s.max, whole(to.of(gatewayTime).median), work.median, work.min, work.max)
	}
	d.line("")
	d.line("One request at a time, %d of each, in µs:", len(w.rest.rounds)*restRequests)
	d.line("")
	d.line("| mode shared | p50 | p95 | p99 | p99.9 |")
	d.line("|---|---:|---:|---:|---:|")
	for i, name := range watchedRest {
		q := w.rest.whole[name]
		d.line("| %s | %s | %s | %s | %s |", []string{"without", "with metrics and control"}[i], whole(q.p50), whole(q.p95), whole(q.p99), whole(q.p999))
	}
	d.line("")
	writeCompared(d, r.compared)
	d.line("What those who ask are answered by a gateway that tracks %d clients, which has nothing else to do:", trackedClients)
	d.line("")
	d.line("| | ms | lowest to highest | bytes | processor, ms |")
	d.line("|---|---:|---:|---:|---:|")
	for _, each := range a.answers {
		s := spreadOf(each.took)
		d.line("| %s | %s | %s to %s | %d | %s |", each.title, hundredths(s.median), hundredths(s.min), hundredths(s.max), each.bytes, hundredths(each.work))
	}
	d.line("")
	asked, hot := a.meanwhile[true], overseen+"-"+hotRoute
	s := ratio(asked, a.meanwhile[false])
	d.line("While the metrics are asked for every %s and the status every %s, requests per second in mode shared are %.3f (%.3f to", scrapeEvery, statusEvery, s.median, s.min)
	d.line("%.3f) of what they are while nobody asks, and 99 of 100 take up to %s ms instead of %s ms.", s.max,
		hundredths(asked.of(p99).median), hundredths(a.meanwhile[false].of(p99).median))
	s = ratio(a.changed[hot], a.changed[byName[hot].against])
	d.line("While something is changed of a scope, here that another client is blocked, they are %.3f (%.3f to %.3f) of those of", s.median, s.min, s.max)
	d.line("the gateway that nobody can change.")
	d.line("")
}
