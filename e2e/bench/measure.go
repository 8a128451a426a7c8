package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// bench is one run: the parts that are measured, and the plan.
type bench struct {
	plan
	wrk string // the program
	out io.Writer

	one, many string // what wrk is told for one client and for many
	store     *lab.Store
	gateways  map[string]*lab.Traefik // by name
	about     about

	window   time.Duration // of all our limits but those of logs
	windowID int64
	counted  map[string]int64 // requests that the store should know of, by route
}

// about says what was measured, and where.
type about struct {
	date, cpu, memory, system, load string
	cores                           int
	traefik, valkey, wrk, golang    string
}

// setUp starts what the parts that are measured need.
func (b *bench) setUp(t testing.TB) {
	b.about = describeMachine(b.wrk)
	b.store = lab.Valkey(t, lab.StoreOptions{})
	info, err := b.store.Client().Info(context.Background(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	b.about.valkey = field(info, "valkey_version:")
	b.gateways = map[string]*lab.Traefik{}
	if b.besideOwn() || b.loads() {
		b.setUpTraefik(t)
	}
	fmt.Fprintf(b.out, "Traefik %s, Valkey %s, wrk %s; %d cores, load average %s; about %s\n",
		b.about.traefik, b.about.valkey, b.about.wrk, b.about.cores, b.about.load, b.needs().Round(time.Second))
}

func (b *bench) setUpTraefik(t testing.TB) {
	folder := t.TempDir()
	b.one, b.many = filepath.Join(folder, "one.lua"), filepath.Join(folder, "many.lua")
	for path, script := range map[string]string{b.one: wrkOne + wrkDone, b.many: wrkMany + wrkDone} {
		if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	window, id := lab.QuietWindow(time.Now())
	b.window, b.windowID = window, id
	replicas := lab.NewApp(t, 2).URLs
	start := func(name, dynamic string) {
		traefik := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, dynamic)
		var version struct{ Version string }
		if err := json.Unmarshal([]byte(traefik.Get("/api/version")), &version); err != nil {
			t.Fatal(err)
		}
		b.about.traefik = strings.TrimPrefix(version.Version, "v")
		b.gateways[name] = traefik
	}
	if b.besideOwn() {
		start(besideOwn, configuration(t, b.store.Addr(), replicas, window))
	}
	if b.measures(partWatched) || b.measures(partActive) {
		for _, name := range []string{unwatched, overseen} {
			start(name, watchedConfiguration(t, name, b.store.Addr(), replicas, window))
		}
	}
}

// measure measures all parts that are wanted.
func (b *bench) measure(t testing.TB) *report {
	r := &report{about: b.about, plan: b.plan}
	b.counted = map[string]int64{}
	if b.measures(partRates) {
		r.results = b.rates(t, routes, b.rounds, b.duration)
	}
	if b.measures(partAlgorithms) {
		b.seed(t)
		rounds, duration := b.algorithmRounds()
		r.algorithms = b.rates(t, algorithmRoutes, rounds, duration)
	}
	if b.measures(partLatency) {
		r.rest = b.atRest(t, restRoutes)
	}
	if b.measures(partWatched) {
		r.watched = b.watch(t)
	}
	if b.measures(partActive) {
		r.active = b.activate(t)
	}
	if b.measures(partMemory) {
		r.memory = b.memory(t)
	}
	if b.measures(partDecision) {
		r.decisions = b.decide(t)
	}
	if b.measures(partCompared) {
		r.compared = b.compare(t)
	}
	return r
}

// rates loads some routes, round by round.
func (b *bench) rates(t testing.TB, routes []route, rounds int, duration time.Duration) map[string]*result {
	fmt.Fprintf(b.out, "%d rounds of %d routes, %s each, over %d connections\n", rounds, len(routes), duration, b.connections)
	results := map[string]*result{}
	for _, route := range routes {
		results[route.name] = &result{}
		seconds := warmUp
		if route.many {
			seconds = warmUpMany
		}
		b.counted[route.name] += b.once(t, route, seconds).Requests
	}
	for round := range rounds {
		fmt.Fprintf(b.out, "round %d:", round+1)
		for i := range routes {
			route := routes[i]
			if round%2 == 1 {
				route = routes[len(routes)-1-i]
			}
			before := b.work(t, route)
			l := b.once(t, route, duration)
			after := b.work(t, route)
			result := results[route.name]
			l.Gateway = (after.gateway - before.gateway).Microseconds()
			l.Store = (after.store - before.store).Microseconds()
			result.loads = append(result.loads, l)
			result.scripts += after.scripts - before.scripts
			result.commands += after.commands - before.commands
			result.logged += after.logged - before.logged
			b.counted[route.name] += l.Requests
			fmt.Fprintf(b.out, " %s %.0f", route.name, l.perSecond())
		}
		fmt.Fprintln(b.out)
	}
	// A request that the store was too late for is decided faster, by the gateway.
	for _, route := range routes {
		if !route.shared || route.refused {
			continue
		}
		inStore, counted := b.inStore(t, route, results[route.name])
		fmt.Fprintf(b.out, "counted in the store: %s %d of %d\n", route.name, min(inStore, counted), counted)
		if float64(inStore) < 0.999*float64(counted) {
			t.Fatalf("%s: the store has counted %d of %d requests", route.name, inStore, counted)
		}
	}
	return results
}

// inStore returns how many requests of a route the store has counted, and of how many.
func (b *bench) inStore(t testing.TB, r route, x *result) (inStore, of int64) {
	of = b.counted[r.name]
	switch r.algorithm {
	case "sliding-window":
		return int64(b.store.Sum(fmt.Sprintf("%s:sw:{*}:%d", keyHead(r), b.windowID))), of
	case "token-bucket":
		key := fmt.Sprintf("%s:tb:{%s}:%d", keyHead(r), clientDigest, int64(b.window.Seconds()))
		lack, err := b.store.Client().HGet(context.Background(), key, "lack").Int64()
		if err != nil {
			t.Fatalf("reading %s: %v", key, err)
		}
		return lack / b.window.Milliseconds(), of
	case "sliding-log":
		// It has forgotten most of them; what was added was seen meanwhile.
		return x.logged, x.requests()
	}
	return int64(b.store.Sum(keyHead(r) + ":{*")), of
}

// seed gives the sliding window a window before the one that runs, as it has one where
// clients come all the time: the script then reads two counts and not one.
func (b *bench) seed(t testing.TB) {
	key := fmt.Sprintf("%s:sw:{%s}:%d", keyHead(byName["sliding-window-allowed"]), clientDigest, b.windowID-1)
	if err := b.store.Client().Set(context.Background(), key, 1000, b.window).Err(); err != nil {
		t.Fatal(err)
	}
}

// keyHead is what the keys of a route begin with.
func keyHead(r route) string { return "rate:" + r.name + "@file" }

// clientDigest names the one client in keys.
var clientDigest = func() string {
	digest := sha256.Sum256([]byte(clientKey))
	return hex.EncodeToString(digest[:])
}()

// load runs wrk against a route.
func (b *bench) load(r route, duration time.Duration) (load, error) {
	script := b.one
	if r.many {
		script = b.many
	}
	return runWrk(context.Background(), b.wrk, script, b.gateways[r.gateway].URL+"/"+r.name, b.connections, duration)
}

// once loads a route, and fails when it does not answer as it should.
func (b *bench) once(t testing.TB, r route, duration time.Duration) load {
	l, err := b.load(r, duration)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.problem(r); err != nil {
		t.Fatal(err)
	}
	return l
}

// work is what was done so far.
type work struct {
	gateway, store time.Duration // processor time

	scripts  int64 // calls of scripts in the store: each is a round trip
	commands int64 // all commands in the store, those inside of scripts included
	logged   int64 // units that were added to logs
}

// work returns what the store has done so far, and the gateway of a route.
func (b *bench) work(t testing.TB, r route) work {
	info, err := b.store.Client().Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	w := parseCommands(info)
	w.gateway, w.store = b.gateways[r.gateway].CPU(), b.store.CPU()
	return w
}

var commandCalls = regexp.MustCompile(`(?m)^cmdstat_([^:]+):calls=(\d+)`)

// parseCommands adds up the calls in INFO commandstats, its own aside.
func parseCommands(info string) work {
	var w work
	for _, found := range commandCalls.FindAllStringSubmatch(info, -1) {
		calls, err := strconv.ParseInt(found[2], 10, 64)
		if err != nil || found[1] == "info" {
			continue
		}
		w.commands += calls
		if found[1] == "zadd" {
			w.logged += calls
		}
		if found[1] == "eval" || found[1] == "evalsha" {
			w.scripts += calls
		}
	}
	return w
}

// profile loads each of our routes once more and keeps Traefik's own view of it.
func (b *bench) profile(t testing.TB, folder string) {
	seconds := max(int(b.duration.Seconds()), 5)
	var all []route
	if b.measures(partRates) {
		all = append(all, routes...)
	}
	if b.measures(partAlgorithms) {
		all = append(all, algorithmRoutes...)
	}
	if b.measures(partWatched) {
		all = append(all, watchedRoutes...)
	}
	for i, r := range all {
		if !r.own || slices.ContainsFunc(all[:i], func(o route) bool { return o.name == r.name }) {
			continue
		}
		for _, kind := range []string{"profile", "allocs"} {
			done := make(chan error, 1)
			go func() {
				l, err := b.load(r, time.Duration(seconds+1)*time.Second)
				fmt.Fprintf(b.out, "profiling %s: %.0f requests in a second\n", r.name, l.perSecond())
				done <- err
			}()
			response, err := http.Get(fmt.Sprintf("%s/debug/pprof/%s?seconds=%d", b.gateways[r.gateway].API, kind, seconds))
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if err != nil || response.StatusCode != http.StatusOK {
				t.Fatalf("taking a profile: status %d, %v", response.StatusCode, err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			write(t, b.out, filepath.Join(folder, r.name+"."+kind+".pb.gz"), string(text))
		}
	}
}

// describeMachine reads what can be known of this machine; what cannot stays
// unknown.
func describeMachine(wrk string) about {
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			return ""
		}
		return string(text)
	}
	a := about{
		date:   time.Now().UTC().Format(time.DateOnly),
		cpu:    strings.TrimLeft(field(read("/proc/cpuinfo"), "model name"), ": "),
		cores:  runtime.NumCPU(),
		system: strings.Trim(field(read("/etc/os-release"), "PRETTY_NAME="), `"`),
		load:   strings.Join(strings.Fields(read("/proc/loadavg") + " unknown unknown unknown")[:3], " "),
		golang: strings.TrimPrefix(runtime.Version(), "go"),
	}
	if kernel, _, _ := strings.Cut(strings.TrimSpace(read("/proc/sys/kernel/osrelease")), "-"); kernel != "" {
		a.system += ", Linux " + kernel
	}
	if kilobytes, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(field(read("/proc/meminfo"), "MemTotal:")), " kB")); err == nil {
		a.memory = fmt.Sprintf("%d GiB", (kilobytes+1<<19)>>20)
	}
	a.traefik, a.wrk = "not started", "not used"
	if wrk != "" {
		// It says its version and then that it was used wrongly.
		out, _ := exec.Command(wrk, "-v").CombinedOutput()
		if words := strings.Fields(string(out)); len(words) > 1 {
			a.wrk = words[1]
		}
	}
	return a
}

// field returns the rest of the first line that begins with a text.
func field(text, begin string) string {
	for _, line := range strings.Split(text, "\n") {
		if rest, ok := strings.CutPrefix(line, begin); ok {
			return strings.TrimSpace(rest)
		}
	}
	return "unknown"
}
