package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/host"
	"github.com/gatequota/gatequota/e2e/lab"
)

// scope is that of the shared count, and so a part of its keys.
const scope = "apikey"

// The routes of each gateway; those for a burst over an edge are named by edgeRoute.
const (
	sharedRoute = "/shared"
	localRoute  = "/local"
)

// edgeRoute returns the route on which an algorithm meets a burst over an edge.
func edgeRoute(algorithm string) string { return "/" + algorithm }

// gateway is one of those between the client and the application.
type gateway struct {
	url string
	log func() string // what it has printed so far
}

// store is the one that the gateways share.
type store struct {
	addr string
	stop func() // as if it crashed, with all that it knew
	// start starts it again, on the same address and empty.
	start func()
}

// entry is one count in the store.
type entry struct {
	key     string
	count   int64
	expires time.Duration // negative when it never does
}

// counts returns what the store has counted for an API key in mode shared. It
// asks the store itself, past the gateways.
func (s *store) counts(ctx context.Context, apiKey string) ([]entry, error) {
	client := redis.NewClient(&redis.Options{Addr: s.addr, Protocol: 2, DisableIdentity: true})
	defer func() { _ = client.Close() }()
	digest := sha256.Sum256([]byte(apiKey))
	keys, err := client.Keys(ctx, "*{"+hex.EncodeToString(digest[:])+"}*").Result()
	if err != nil {
		return nil, fmt.Errorf("listing the store's keys: %w", err)
	}
	var entries []entry
	for _, key := range keys {
		count, err := client.Get(ctx, key).Int64()
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", key, err)
		}
		expires, err := client.TTL(ctx, key).Result()
		if err != nil {
			return nil, fmt.Errorf("reading the expiry of %s: %w", key, err)
		}
		entries = append(entries, entry{key: key, count: count, expires: expires})
	}
	return entries, nil
}

// embeddedStore starts a store within this process.
func embeddedStore(t testing.TB) *store {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		t.Fatalf("starting the embedded store: %v", err)
	}
	s := &store{addr: server.Addr()}
	s.stop = func() { server.Close() }
	s.start = func() {
		server = miniredis.NewMiniRedis()
		if err := server.StartAddr(s.addr); err != nil {
			t.Fatalf("starting the embedded store again: %v", err)
		}
	}
	t.Cleanup(func() { s.stop() })
	return s
}

// realStore starts a Valkey.
func realStore(t testing.TB, program string) *store {
	if err := os.Setenv("VALKEY_SERVER", program); err != nil {
		t.Fatal(err)
	}
	server := lab.Valkey(t, lab.StoreOptions{})
	return &store{addr: server.Addr(), stop: server.Kill, start: server.Start}
}

// middlewares returns the options of the plugin on each route, as a user of
// Traefik writes them. The windows of the routes for a burst have the length edge.
func middlewares(limit int, window, edge time.Duration, storeAddr string) map[string]map[string]any {
	options := func(mode, scope string, window time.Duration) map[string]any {
		return map[string]any{
			"limit":           fmt.Sprint(limit),
			"window":          fmt.Sprintf("%ds", int(window.Seconds())),
			"scope":           scope,
			"mode":            mode,
			"sourceCriterion": map[string]any{"requestHeaderName": "X-API-Key"},
			// Known from the first second, where learning it would take some.
			"fallback": map[string]any{"gateways": "2"},
			// More patient than the default, since a machine that runs everything
			// at once may be slow to answer.
			"valkey": map[string]any{"endpoints": []string{storeAddr}, "timeout": "1s"},
		}
	}
	all := map[string]map[string]any{
		sharedRoute: options("shared", scope, window),
		localRoute:  options("local", scope+"-local", window),
	}
	for _, a := range edgeAlgorithms {
		o := options("shared", scope+"-"+a.name, edge)
		o["algorithm"] = a.name
		all[edgeRoute(a.name)] = o
	}
	return all
}

// hostedGateway starts a gateway within this process: an HTTP server with the
// plugin, interpreted, in front of a proxy to the replicas. It has an interpreter
// of its own, and so all the state that a gateway process would have.
func hostedGateway(t testing.TB, options map[string]map[string]any, replicas []string) gateway {
	output, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = output.Close() })
	plugin, err := host.Load(lab.Root(), output, output)
	if err != nil {
		t.Fatalf("loading the plugin: %v", err)
	}
	proxy := proxyTo(t, replicas, log.New(output, "", log.LstdFlags))
	mux := http.NewServeMux()
	for route, o := range options {
		handler, err := plugin.New(context.Background(), proxy, strings.TrimPrefix(route, "/")+"@demo", o)
		if err != nil {
			t.Fatalf("making the middleware of %s: %v", route, err)
		}
		mux.Handle(route, handler)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("starting a gateway: %v", err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return gateway{url: "http://" + listener.Addr().String(), log: func() string {
		text, err := os.ReadFile(output.Name())
		if err != nil {
			return err.Error()
		}
		return string(text)
	}}
}

// proxyTo returns a proxy that sends requests to the replicas in turn.
func proxyTo(t testing.TB, replicas []string, log *log.Logger) http.Handler {
	targets := make([]*url.URL, len(replicas))
	for i, replica := range replicas {
		target, err := url.Parse(replica)
		if err != nil {
			t.Fatal(err)
		}
		targets[i] = target
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	var turn atomic.Uint64
	return &httputil.ReverseProxy{
		Transport: transport,
		ErrorLog:  log,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(targets[turn.Add(1)%uint64(len(targets))])
			r.SetXForwarded()
		},
	}
}

// realGateway starts a Traefik.
func realGateway(t testing.TB, program string, options map[string]map[string]any, replicas []string) gateway {
	if err := os.Setenv("TRAEFIK", program); err != nil {
		t.Fatal(err)
	}
	routers, inner := map[string]any{}, map[string]any{}
	for route, o := range options {
		name := strings.TrimPrefix(route, "/")
		routers[name] = map[string]any{"rule": "Path(`" + route + "`)", "service": "app", "middlewares": []string{name}}
		inner[name] = map[string]any{"plugin": map[string]any{lab.PluginName: o}}
	}
	var servers []map[string]string
	for _, replica := range replicas {
		servers = append(servers, map[string]string{"url": replica})
	}
	dynamic, err := yaml.Marshal(map[string]any{"http": map[string]any{
		"routers":     routers,
		"middlewares": inner,
		"services":    map[string]any{"app": map[string]any{"loadBalancer": map[string]any{"servers": servers}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, string(dynamic))
	return gateway{url: tr.URL, log: tr.Log}
}

// libraryVersion returns the version of a library that a program was built with.
func libraryVersion(program *debug.BuildInfo, path string) string {
	if program != nil {
		for _, library := range program.Deps {
			if library.Path == path {
				return library.Version
			}
		}
	}
	return unknown
}

// unknown stands for a version that a program does not tell.
const unknown = "(version unknown)"

var (
	traefikVersion = regexp.MustCompile(`(?m)^Version:\s+(\S+)`)
	valkeyVersion  = regexp.MustCompile(`\bv=(\S+)`)
)

// programVersion returns what a program says of itself.
func programVersion(pattern *regexp.Regexp, program, argument string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, argument).Output()
	if err == nil {
		if found := pattern.FindSubmatch(out); found != nil {
			return string(found[1])
		}
	}
	return unknown
}
