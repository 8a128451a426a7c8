package main

import (
	"context"
	"crypto/rand"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

const (
	// requests is how many the reference experiment sends.
	requests = 250
	// beforeOutage is how many are sent until the store stops in mid-window.
	beforeOutage = 60
	// clients is how many send at the same time.
	clients = 10
	// room is how much of the window must be left at the start, for all phases to
	// lie in it. They take a few seconds.
	room = 20 * time.Second
	// recovery bounds the wait for the gateways to find the store again. They look
	// at least every five seconds.
	recovery = 15 * time.Second
)

// play is one run of the demo.
type play struct {
	out     io.Writer
	window  time.Duration
	edge    time.Duration // length of the windows at whose edge a burst comes
	limit   int
	traefik string // the program to use as gateway; empty: within this process
	valkey  string // the program to use as store; empty: within this process

	app      *lab.App
	store    *store
	gateways []gateway
	client   *lab.Client
	notes    []string
}

// run sets the parts up, plays all phases and prints what came of them. A figure
// that is off fails t.
func (p *play) run(t testing.TB) {
	p.setUp(t)
	p.awaitRoom()
	p.perform(t)
}

// perform plays the phases on the parts that are there.
func (p *play) perform(t testing.TB) {
	p.printf("\n%s\n", header)
	p.report(t, p.phases(t))
}

// setUp starts the parts and says which of them are real.
func (p *play) setUp(t testing.TB) {
	p.printf("Gatequota: a quota of %d requests in %s per API key, over two gateways\n\n", p.limit, whole(p.window))
	built, _ := debug.ReadBuildInfo()
	interpreter := "real, Yaegi " + libraryVersion(built, "github.com/traefik/yaegi") + ", one in each gateway"
	gateways := "stand-ins, 2 x net/http in this process (have traefik on the PATH for real ones)"
	if p.traefik != "" {
		traefik, _ := buildinfo.ReadFile(p.traefik)
		interpreter = "real, Yaegi " + libraryVersion(traefik, "github.com/traefik/yaegi") + ", the one in Traefik"
		gateways = "real, 2 x Traefik " + programVersion(traefikVersion, p.traefik, "version")
	}
	store := "stand-in, miniredis " + libraryVersion(built, "github.com/alicebob/miniredis/v2") +
		" in this process (have valkey-server on the PATH for a real one)"
	if p.valkey != "" {
		store = "real, Valkey " + programVersion(valkeyVersion, p.valkey, "--version")
	}
	p.printf("  interpreter  %s\n", interpreter)
	p.printf("  gateways     %s\n", gateways)
	p.printf("  store        %s\n", store)
	p.printf("  application  2 replicas that know nothing of limits\n\n")

	p.app = lab.NewApp(t, 2)
	p.client = lab.NewClient(t)
	if p.valkey != "" {
		p.store = realStore(t, p.valkey)
	} else {
		p.store = embeddedStore(t)
	}
	options := middlewares(p.limit, p.window, p.edge, p.store.addr)
	for range 2 {
		var g gateway
		if p.traefik != "" {
			g = realGateway(t, p.traefik, options, p.app.URLs)
		} else {
			g = hostedGateway(t, options, p.app.URLs)
		}
		p.gateways = append(p.gateways, g)
	}
	p.printf("Ready: gateways on %s and %s, store on %s.\n", p.gateways[0].url, p.gateways[1].url, p.store.addr)
}

// awaitRoom waits until enough of the window is left for all phases.
func (p *play) awaitRoom() {
	now := time.Now()
	left := lab.UntilEdge(now, p.window)
	p.printf("A window of %s starts at each full multiple on the clock. Of this one %s are left; the runs want %s: ",
		whole(p.window), whole(left), whole(room))
	if left >= room {
		p.printf("enough.\n")
		return
	}
	p.printf("waiting %s for the next.\n", whole(left))
	lab.AwaitRoom(p.window, room)
}

// phases plays them all and returns what came of each. Every row is printed as
// soon as it is there.
func (p *play) phases(t testing.TB) []row {
	var rows []row
	hold := func(ph phase) lab.Answers {
		r, answers := p.hold(ph)
		rows = append(rows, r)
		p.printf("%s\n", r.line())
		return answers
	}

	shared := phase{name: "mode shared: one count", route: sharedRoute, key: newKey(), sent: requests, way: "shared",
		want: split(requests, min(requests, p.limit))}
	hold(shared)
	p.noteStore(t, &rows[len(rows)-1], shared)

	each := min(requests/2, p.limit)
	local := phase{name: "mode local: one count each", route: localRoute, key: newKey(), sent: requests, way: "local",
		want: split(requests, 2*each)}
	hold(local)
	if entries := p.counts(t, local.key); len(entries) > 0 {
		rows[len(rows)-1].problem("mode local left %s in the store", entries[0].key)
	}

	before := phase{name: "shared, until the store stops", route: sharedRoute, key: newKey(), sent: beforeOutage, way: "shared",
		want: split(beforeOutage, min(beforeOutage, p.limit))}
	shares := p.shares(hold(before))

	p.store.stop()
	during := phase{name: "store stopped, the same key", route: sharedRoute, key: before.key, sent: requests - beforeOutage, way: "local"}
	during.want = split(during.sent, outageAllowance(during.sent, shares))
	answers := hold(during)
	p.notes = append(p.notes, fmt.Sprintf("While the store was away each gateway went on from the last shared count that it had seen: "+
		"its share of what was left were %d and %d requests. The slowest answer took %s.",
		shares[0], shares[1], answers.Slowest().Round(100*time.Microsecond)))

	p.store.start()
	back := p.awaitRecovery(t)
	p.notes = append(p.notes, fmt.Sprintf("The store was started again, empty. Both gateways counted in it again within %s.", seconds(back)))
	after := shared
	after.name, after.key = "store back, a new key", newKey()
	hold(after)
	p.noteStore(t, &rows[len(rows)-1], after)

	for _, r := range p.overAnEdge() {
		rows = append(rows, r)
		p.printf("%s\n", r.line())
	}
	return rows
}

// outageAllowance returns how many of the requests, sent to the gateways in turn,
// are allowed when each gateway has so much left to give.
func outageAllowance(sent int, left []int) int {
	allowed := 0
	for i := range left {
		share := (sent - i + len(left) - 1) / len(left)
		allowed += min(share, left[i])
	}
	return allowed
}

// shares returns what each gateway may let pass alone: its part of what it said last is
// left of the quota, rounded up. That is the least that it said, as answers that travel
// at once arrive in any order.
func (p *play) shares(answers lab.Answers) []int {
	left := make([]int, len(p.gateways))
	for i := range left {
		left[i] = p.limit
	}
	for i, a := range answers {
		g := i % len(p.gateways)
		if n := a.Number("X-RateLimit-Remaining"); n >= 0 {
			left[g] = min(left[g], n)
		}
	}
	for i := range left {
		left[i] = (left[i] + len(left) - 1) / len(left)
	}
	return left
}

// awaitRecovery sends single requests of other keys until each gateway counts in
// the store again, and returns how long that took.
func (p *play) awaitRecovery(t testing.TB) time.Duration {
	start := time.Now()
	for _, g := range p.gateways {
		for {
			a := p.client.Get(lab.Keyed(g.url+sharedRoute, newKey()))
			if a.Header.Get("X-RateLimit-Decision") == "shared" {
				break
			}
			if time.Since(start) > recovery {
				t.Fatalf("%s did not count in the store again within %s; its log ends with\n%s", g.url, recovery, tail(g.log(), 10))
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return time.Since(start)
}

// hold plays one phase.
func (p *play) hold(ph phase) (row, lab.Answers) {
	urls := make([]string, len(p.gateways))
	for i, g := range p.gateways {
		urls[i] = g.url + ph.route
	}
	hits, window := p.app.Hits(), time.Now().UnixNano()/int64(p.window)
	answers := p.client.Burst(clients, lab.Alternate(ph.sent, ph.key, urls...))
	r := judge(ph, answers, len(p.gateways), p.limit, p.window)
	if reached := p.app.Hits() - hits; reached != r.got.allowed {
		r.problem("%d requests reached the application, and %d were allowed", reached, r.got.allowed)
	}
	if time.Now().UnixNano()/int64(p.window) != window {
		r.problem("an edge of the window passed meanwhile, so the figures say nothing: this machine is too slow")
	}
	return r, answers
}

func (p *play) counts(t testing.TB, key string) []entry {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	entries, err := p.store.counts(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// noteStore reads what the store has counted in a phase, and judges it.
func (p *play) noteStore(t testing.TB, r *row, ph phase) {
	entries := p.counts(t, ph.key)
	if problem := storeProblem(entries, ph, p.limit, p.window); problem != "" {
		r.problem("%s", problem)
		return
	}
	e := entries[0]
	p.notes = append(p.notes, fmt.Sprintf("Read from the store: %s = %d, expires in %s (%s).", shorten(e.key), e.count, whole(e.expires), ph.name))
}

// storeProblem says what is wrong with the counts of a client in the store. Each
// allowed request must be in them; refused ones need not be.
func storeProblem(entries []entry, ph phase, limit int, window time.Duration) string {
	if len(entries) != 1 {
		return fmt.Sprintf("the store has %d counts of the client, want 1", len(entries))
	}
	e := entries[0]
	if e.count < int64(ph.want.allowed) || e.count > int64(ph.sent) {
		return fmt.Sprintf("the store has counted %d requests, want %d to %d", e.count, ph.want.allowed, ph.sent)
	}
	if e.expires <= 0 || e.expires > window {
		return fmt.Sprintf("the count in the store expires in %s, want at most %s", e.expires, window)
	}
	return ""
}

// report prints the notes and the verdict.
func (p *play) report(t testing.TB, rows []row) {
	p.printf("\n")
	p.notes = append(p.notes, fmt.Sprintf("The replicas answered %d and %d requests.", p.app.HitsOf(0), p.app.HitsOf(1)))
	for _, note := range p.notes {
		p.printf("- %s\n", note)
	}
	if lines := storeLines(p.gateways[0].log()); len(lines) > 0 {
		p.printf("- All that the first gateway logged about the store:\n")
		for _, line := range lines {
			p.printf("    %s\n", line)
		}
	}
	off := 0
	for _, r := range rows {
		for _, problem := range r.problems {
			p.printf("\nOFF  %s: %s", r.name, problem)
		}
		if !r.ok() {
			off++
		}
	}
	if off > 0 {
		p.printf("\n")
		t.Errorf("%d of %d phases went otherwise than expected", off, len(rows))
		return
	}
	p.printf("\nAll figures are as expected, and no refused request reached the application.\n")
}

// storeLines picks what a gateway logged about the store, without its time stamps.
func storeLines(log string) []string {
	var lines []string
	for _, line := range strings.Split(log, "\n") {
		if i := strings.Index(line, "gatequota: store "); i >= 0 {
			// Traefik adds whose line it is.
			line, _, _ = strings.Cut(line[i:], " module=")
			lines = append(lines, line)
		}
	}
	return lines
}

func (p *play) printf(format string, args ...any) { fmt.Fprintf(p.out, format, args...) }

// newKey returns an API key that was never used.
func newKey() string {
	raw := make([]byte, 8)
	_, _ = rand.Read(raw) // never fails
	return "demo-" + hex.EncodeToString(raw)
}

// whole returns a time in whole seconds.
func whole(d time.Duration) string { return fmt.Sprintf("%d s", int(d.Seconds())) }

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// shorten cuts the digest in a key of the store.
func shorten(key string) string {
	open, end := strings.IndexByte(key, '{'), strings.IndexByte(key, '}')
	if open < 0 || end < open+12 {
		return key
	}
	return key[:open+7] + "…" + key[end:]
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
