package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	// restRequests is how many requests each route gets in a round.
	restRequests = 1000

	hotRoute    = "shared-allowed"
	restAgainst = "traefik-redis-allowed"
)

// restRoutes are asked in turn, over one connection.
var restRoutes = []string{"none", restAgainst, hotRoute}

// atRest is what requests take that have the gateway to themselves.
type atRest struct {
	of, to string                     // our route and the one that it is compared with
	rounds []map[string]time.Duration // the median of each round, by route
	whole  map[string]quantiles       // over all rounds, by route
}

// ratio compares the medians of our route with those of the other, over all
// requests, and round by round for the spread.
func (r *atRest) ratio() spread {
	ratios := make([]float64, len(r.rounds))
	for i, medians := range r.rounds {
		ratios[i] = float64(medians[r.of]) / float64(medians[r.to])
	}
	s := spreadOf(ratios)
	s.median = r.whole[r.of].p50 / r.whole[r.to].p50
	return s
}

// atRest asks some routes in turn, request by request, so that what else the
// machine does falls on all of them alike. Who is first changes with each turn. The last
// two are compared: the last is ours.
func (b *bench) atRest(t testing.TB, routes []string) *atRest {
	conns := map[string]net.Conn{} // by address
	readers := map[string]*bufio.Reader{}
	for _, route := range routes {
		address := b.address(route)
		if conns[address] != nil {
			continue
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		conns[address], readers[address] = conn, bufio.NewReader(conn)
	}
	ask := func(route string) time.Duration {
		address := b.address(route)
		conn := conns[address]
		request := fmt.Sprintf("GET /%s HTTP/1.1\r\nHost: %s\r\nX-API-Key: %s\r\n\r\n", route, address, clientKey)
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		begin := time.Now()
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(readers[address], nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Fatal(err)
		}
		took := time.Since(begin)
		_ = response.Body.Close()
		if way := response.Header.Get("X-RateLimit-Decision"); response.StatusCode != http.StatusOK || byName[route].own && way != "shared" {
			t.Fatalf("%s: status %d, decided %q", route, response.StatusCode, way)
		}
		return took
	}
	result := &atRest{of: routes[len(routes)-1], to: routes[len(routes)-2], whole: map[string]quantiles{}}
	all := map[string][]time.Duration{}
	for round := range b.rounds + 1 {
		took := map[string][]time.Duration{}
		for turn := range restRequests {
			for i := range routes {
				route := routes[(turn+i)%len(routes)]
				took[route] = append(took[route], ask(route))
			}
		}
		if round == 0 {
			continue // to warm up
		}
		medians := map[string]time.Duration{}
		for route, times := range took {
			all[route] = append(all[route], times...)
			slices.Sort(times)
			medians[route] = times[len(times)/2]
		}
		result.rounds = append(result.rounds, medians)
	}
	for route, times := range all {
		result.whole[route] = quantilesOf(times)
	}
	return result
}

// address returns the host and port on which a route is.
func (b *bench) address(route string) string {
	return strings.TrimPrefix(b.gateways[byName[route].gateway].URL, "http://")
}

// quantiles are in microseconds.
type quantiles struct{ p50, p95, p99, p999 float64 }

// quantilesOf returns the quantiles of at least one time, each one that was
// measured. It sorts the times.
func quantilesOf(times []time.Duration) quantiles {
	slices.Sort(times)
	at := func(share float64) float64 {
		return float64(times[int(share*float64(len(times)-1)+0.5)].Nanoseconds()) / 1000
	}
	return quantiles{at(0.5), at(0.95), at(0.99), at(0.999)}
}
