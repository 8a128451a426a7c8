package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// decisionCase is how many ask for decisions at a time, and for whom.
type decisionCase struct {
	clients int
	one     bool // all of them with the same key
}

func (c decisionCase) title() string {
	switch {
	case c.clients == 1:
		return "1 client"
	case c.one:
		return fmt.Sprintf("%d clients, one key", c.clients)
	}
	return fmt.Sprintf("%d clients", c.clients)
}

var decisionCases = []decisionCase{{clients: 1}, {clients: 32}, {clients: 256}, {clients: 32, one: true}, {clients: 256, one: true}}

// decisions is what was found of one case. The times of a request follow each
// other: it waits, is with the store, and is answered.
type decisions struct {
	decisionCase
	perSecond float64
	calls     float64 // of the script, a request

	whole    quantiles // all of ServeHTTP, with nothing behind it
	wait     quantiles // until its call is on its way
	store    quantiles // until the answer is
	answered quantiles // until the decision is made and told

	script quantiles // of one call, by the store's own reckoning
	mean   float64   // of the same, in microseconds
}

// asked is one request.
type asked struct {
	begin, end int64 // unix nanoseconds
	client     int
	remaining  string // as its field says
}

const (
	decisionLimit = 999999999999999
	settleTime    = 500 * time.Millisecond // before a case is measured
)

// decide measures decisions alone: the plugin, interpreted, in this process, with
// a handler behind it that does nothing, and a real store.
func (b *bench) decide(t testing.TB) []decisions {
	window, _ := lab.QuietWindow(time.Now())
	makes := interpreted(t)
	watched := startCapture(t, b.store.Port)
	ctx := context.Background()
	echo := func(text string) { b.store.Do("ECHO", text) }
	b.store.Do("CONFIG", "SET", "latency-tracking-info-percentiles", "50 95 99 99.9")
	var all []decisions
	for i, c := range decisionCases {
		h, err := makes(fmt.Sprintf("decision-%d@bench", i), limits("shared", b.store.Addr(), decisionLimit, window))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ask(h, c, settleTime); err != nil {
			t.Fatal(err)
		}
		watched.exchanges(t, echo)
		b.store.Do("CONFIG", "RESETSTAT")
		requests, err := ask(h, c, b.duration)
		if err != nil {
			t.Fatal(err)
		}
		info, err := b.store.Client().InfoMap(ctx, "commandstats", "latencystats").Result()
		if err != nil {
			t.Fatal(err)
		}
		d, err := apart(requests, watched.exchanges(t, echo))
		if err != nil {
			t.Fatal(err)
		}
		d.decisionCase = c
		d.perSecond = float64(len(requests)) / b.duration.Seconds()
		if d.script, err = readPercentiles(info["Latencystats"]["latency_percentiles_usec_evalsha"]); err != nil {
			t.Fatal(err)
		}
		if d.mean, err = readMean(info["Commandstats"]["cmdstat_evalsha"]); err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
		fmt.Fprintf(b.out, "decisions of %s: %.0f in a second, p50 %.0f us\n", c.title(), d.perSecond, d.whole.p50)
	}
	return all
}

// keyOf returns the key of one of the clients that ask for decisions.
func keyOf(client int) string { return clientKey + "-" + strconv.Itoa(client) }

// hashOf returns what stands for that client in the keys of the store.
func hashOf(client int) string {
	hash := sha256.Sum256([]byte(keyOf(client)))
	return hex.EncodeToString(hash[:])
}

// ask keeps some clients asking for a time, each of them for the next decision as
// soon as it has the one before. Every request must be counted by the store.
func ask(h http.Handler, c decisionCase, duration time.Duration) ([]asked, error) {
	perClient := make([][]asked, c.clients)
	failures := make([]error, c.clients)
	var wg sync.WaitGroup
	end := time.Now().Add(duration)
	for i := range c.clients {
		wg.Go(func() {
			a := asked{client: i}
			if c.one {
				a.client = 0
			}
			for begin := time.Now(); begin.Before(end); begin = time.Now() {
				got := send(h, keyOf(a.client))
				a.begin, a.end = begin.UnixNano(), time.Now().UnixNano()
				way := got.way()
				a.remaining = strings.Join(got.header["X-Ratelimit-Remaining"], " ")
				if got.status != http.StatusOK || way != "shared" {
					failures[i] = fmt.Errorf("a decision was made by %q, with status %d", way, got.status)
					return
				}
				perClient[i] = append(perClient[i], a)
			}
		})
	}
	wg.Wait()
	for _, err := range failures {
		if err != nil {
			return nil, err
		}
	}
	return slices.Concat(perClient...), nil
}

// apart tells the parts of the requests apart. Which call counted a request shows
// in what remained after it: the call is the first for its client whose answer is
// at least its count.
func apart(requests []asked, calls []exchange) (decisions, error) {
	ofClient := map[string][]exchange{} // by the hash in the store's key
	for _, c := range calls {
		_, rest, _ := strings.Cut(c.key, "{")
		hash, _, _ := strings.Cut(rest, "}")
		ofClient[hash] = append(ofClient[hash], c)
	}
	for _, c := range ofClient {
		slices.SortFunc(c, func(a, b exchange) int { return int(a.count - b.count) })
	}
	var whole, wait, store, answered []time.Duration
	for _, r := range requests {
		remaining, err := strconv.ParseInt(r.remaining, 10, 64)
		if err != nil {
			return decisions{}, fmt.Errorf("what remained: %w", err)
		}
		count := decisionLimit - remaining
		all := ofClient[hashOf(r.client)]
		i, _ := slices.BinarySearchFunc(all, count, func(e exchange, count int64) int { return int(e.count - count) })
		if i == len(all) || all[i].sent < r.begin || all[i].answered > r.end {
			return decisions{}, fmt.Errorf("request %d of client %d was decided without a call that was seen", count, r.client)
		}
		whole = append(whole, time.Duration(r.end-r.begin))
		wait = append(wait, time.Duration(all[i].sent-r.begin))
		store = append(store, time.Duration(all[i].answered-all[i].sent))
		answered = append(answered, time.Duration(r.end-all[i].answered))
	}
	if len(requests) == 0 {
		return decisions{}, fmt.Errorf("nobody asked for a decision")
	}
	return decisions{
		calls: float64(len(calls)) / float64(len(requests)),
		whole: quantilesOf(whole), wait: quantilesOf(wait), store: quantilesOf(store), answered: quantilesOf(answered),
	}, nil
}

var (
	percentile  = regexp.MustCompile(`p([0-9.]+)=([0-9.]+)`)
	usecPerCall = regexp.MustCompile(`usec_per_call=([0-9.]+)`)
)

// readPercentiles reads a line of INFO latencystats.
func readPercentiles(line string) (quantiles, error) {
	found := map[string]float64{}
	for _, p := range percentile.FindAllStringSubmatch(line, -1) {
		value, err := strconv.ParseFloat(p[2], 64)
		if err != nil {
			return quantiles{}, fmt.Errorf("the store's latencies: %w", err)
		}
		found[p[1]] = value
	}
	for _, wanted := range []string{"50", "95", "99", "99.9"} {
		if _, ok := found[wanted]; !ok {
			return quantiles{}, fmt.Errorf("the store's latencies lack p%s: %q", wanted, line)
		}
	}
	return quantiles{found["50"], found["95"], found["99"], found["99.9"]}, nil
}

// readMean reads the mean time of a call out of a line of INFO commandstats.
func readMean(line string) (float64, error) {
	found := usecPerCall.FindStringSubmatch(line)
	if found == nil {
		return 0, fmt.Errorf("the store's statistics lack the time of a call: %q", line)
	}
	return strconv.ParseFloat(found[1], 64)
}
