package main

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/lab"
)

// route is one way of answering that is measured.
type route struct {
	name    string // its path below /, and its name in what is printed
	title   string
	own     bool // ours, and not Traefik's
	shared  bool // ours, and counted in the store
	refused bool // every request but the first is answered 429
	many    bool // the requests are those of manyKeys clients, and not of one
	// algorithm is ours; empty: fixed windows, or Traefik's own token bucket.
	algorithm string
	// against is the route that it is compared with: one of Traefik's own, or where nobody
	// watches.
	against string
	gateway string // which of the gateways it is on: one of their names
	rule    string // of its router; empty: its name is the path
}

// routes are measured in this order and, every other round, in the reverse one:
// those that are compared stand side by side, and neither is always the first.
var routes = []route{
	{name: "none", title: "no middleware"},
	{name: "traefik-memory-allowed", title: "Traefik rateLimit, in memory"},
	{name: "local-allowed", title: "Gatequota, mode local", own: true, against: "traefik-memory-allowed"},
	{name: "local-allowed-bare", title: "Gatequota, mode local, without fields", own: true, against: "traefik-memory-allowed"},
	{name: "traefik-redis-allowed", title: "Traefik rateLimit, with redis"},
	{name: "shared-allowed", title: "Gatequota, mode shared", own: true, shared: true, against: "traefik-redis-allowed"},
	{name: "shared-allowed-bare", title: "Gatequota, mode shared, without fields", own: true, shared: true, against: "traefik-redis-allowed"},
	{name: "traefik-redis-keys", title: "Traefik rateLimit, with redis", many: true},
	{name: "shared-keys", title: "Gatequota, mode shared", own: true, shared: true, many: true, against: "traefik-redis-keys"},
	{name: "traefik-memory-refused", title: "Traefik rateLimit, in memory", refused: true},
	{name: "local-refused", title: "Gatequota, mode local", own: true, refused: true, against: "traefik-memory-refused"},
	{name: "traefik-redis-refused", title: "Traefik rateLimit, with redis", refused: true},
	{name: "shared-refused", title: "Gatequota, mode shared", own: true, shared: true, refused: true, against: "traefik-redis-refused"},
	{name: "shared-refused-bare", title: "Gatequota, mode shared, without fields", own: true, shared: true, refused: true, against: "traefik-redis-refused"},
}

// algorithmRoutes are those of each algorithm, loaded in rounds of their own.
var algorithmRoutes = []route{
	{name: "traefik-redis-allowed", title: "Traefik rateLimit, with redis"},
	{name: "shared-allowed", title: "Gatequota, fixed-window", own: true, shared: true, against: "traefik-redis-allowed"},
	{name: "sliding-window-allowed", title: "Gatequota, sliding-window", own: true, shared: true, algorithm: "sliding-window", against: "traefik-redis-allowed"},
	{name: "token-bucket-allowed", title: "Gatequota, token-bucket", own: true, shared: true, algorithm: "token-bucket", against: "traefik-redis-allowed"},
	{name: "sliding-log-allowed", title: "Gatequota, sliding-log", own: true, shared: true, algorithm: "sliding-log", against: "traefik-redis-allowed"},
	{name: "traefik-redis-refused", title: "Traefik rateLimit, with redis", refused: true},
	{name: "shared-refused", title: "Gatequota, fixed-window", own: true, shared: true, refused: true, against: "traefik-redis-refused"},
	{name: "sliding-window-refused", title: "Gatequota, sliding-window", own: true, shared: true, refused: true, algorithm: "sliding-window", against: "traefik-redis-refused"},
	{name: "token-bucket-refused", title: "Gatequota, token-bucket", own: true, shared: true, refused: true, algorithm: "token-bucket", against: "traefik-redis-refused"},
	{name: "sliding-log-refused", title: "Gatequota, sliding-log", own: true, shared: true, refused: true, algorithm: "sliding-log", against: "traefik-redis-refused"},
}

// The names of the gateways: one has the routes of Traefik's own and ours beside them, and
// of two that have the same routes one is watched over.
const (
	besideOwn = ""
	unwatched = "unwatched"
	overseen  = "watched"
)

// watchedRoutes are those of the latter two, loaded in rounds of their own.
var watchedRoutes = func() (all []route) {
	for _, r := range []route{
		{name: "local-allowed", title: "Gatequota, mode local", own: true},
		{name: "shared-allowed", title: "Gatequota, mode shared", own: true, shared: true},
		{name: "shared-keys", title: "Gatequota, mode shared", own: true, shared: true, many: true},
		{name: "shared-refused", title: "Gatequota, mode shared", own: true, shared: true, refused: true},
	} {
		plain, watched := r, r
		plain.gateway, plain.name = unwatched, unwatched+"-"+r.name
		watched.gateway, watched.name, watched.against = overseen, overseen+"-"+r.name, plain.name
		all = append(all, plain, watched)
	}
	return all
}()

var byName = func() map[string]route {
	all := map[string]route{}
	for _, r := range slices.Concat(algorithmRoutes, routes, watchedRoutes, []route{trackedRoute, askedRoute}) {
		all[r.name] = r
	}
	return all
}()

// outcome says what the requests of a route get, and whose they are where they are
// not all of one client.
func outcome(r route) string {
	switch {
	case r.refused:
		return "refused"
	case r.many:
		return "allowed, many clients"
	}
	return "allowed"
}

// More than a machine can send in a run, and in a second, that the algorithms can count.
const (
	manyOf     = "100000000"
	mostLogged = "1000000"
)

// Our limits of all requests and of hardly any.
const plenty, hardlyAny = "999999999999999", "1"

type group = map[string]any

var source = group{"requestHeaderName": "X-API-Key"}

// ownOptions returns the options of one of our middlewares.
func ownOptions(store, mode, limit string, window time.Duration) group {
	return group{
		"limit": limit, "window": window.String(), "mode": mode, "sourceCriterion": source, "valkey": group{"endpoints": []string{store}},
	}
}

func plugin(options group) group { return group{"plugin": group{lab.PluginName: options}} }

// configuration returns Traefik's dynamic configuration of all routes but those of
// watchedRoutes. Our limits are for windows of a length in which no edge comes near;
// Traefik's own knows no windows, and adds to its buckets with every request.
func configuration(t testing.TB, store string, replicas []string, window time.Duration) string {
	redis := group{"endpoints": []string{store}}
	// More than a machine can send, and one for all of the run. With redis it forgets
	// a client that sends nothing for the time of one token and a second, but two at
	// least: the third keeps its many clients, as ours are kept, and is spared the
	// work of making them anew.
	builtInAllowed := group{"average": 1000000, "period": "1s", "burst": 1000000, "sourceCriterion": source}
	builtInRefused := group{"average": 1, "period": "1h", "burst": 1, "sourceCriterion": source}
	builtInKeys := group{"average": 1, "period": "1h", "burst": 1000000000, "sourceCriterion": source}
	builtIn := func(o group, more group) group {
		all := group{}
		for _, options := range []group{o, more} {
			for name, value := range options {
				all[name] = value
			}
		}
		return group{"rateLimit": all}
	}
	own := func(mode, limit string) group { return plugin(ownOptions(store, mode, limit, window)) }
	// Traefik's own tells an allowed client nothing; so do these.
	bare := func(mode, limit string) group {
		options := ownOptions(store, mode, limit, window)
		options["headers"], options["decisionHeader"] = "none", ""
		return plugin(options)
	}
	counting := func(algorithm, limit string, more group) group {
		options := ownOptions(store, "shared", limit, window)
		options["algorithm"] = algorithm
		for name, value := range more {
			options[name] = value
		}
		return plugin(options)
	}
	middlewares := group{
		"traefik-memory-allowed": builtIn(builtInAllowed, nil),
		"traefik-memory-refused": builtIn(builtInRefused, nil),
		"traefik-redis-allowed":  builtIn(builtInAllowed, group{"redis": redis}),
		"traefik-redis-refused":  builtIn(builtInRefused, group{"redis": redis}),
		"traefik-redis-keys":     builtIn(builtInKeys, group{"redis": redis}),
		"local-allowed":          own("local", plenty),
		"local-allowed-bare":     bare("local", plenty),
		"local-refused":          own("local", hardlyAny),
		"shared-allowed":         own("shared", plenty),
		"shared-allowed-bare":    bare("shared", plenty),
		"shared-keys":            own("shared", plenty),
		"shared-refused":         own("shared", hardlyAny),
		"shared-refused-bare":    bare("shared", hardlyAny),
		"sliding-window-allowed": counting("sliding-window", manyOf, nil),
		"sliding-window-refused": counting("sliding-window", hardlyAny, nil),
		// It gains next to nothing, so what it lacks tells how many were counted.
		"token-bucket-allowed": counting("token-bucket", hardlyAny, group{"burst": manyOf}),
		"token-bucket-refused": counting("token-bucket", hardlyAny, nil),
		// It holds what comes in a second, as logs of up to some thousands do.
		"sliding-log-allowed": counting("sliding-log", mostLogged, group{"window": "1s", "maxLog": mostLogged}),
		"sliding-log-refused": counting("sliding-log", hardlyAny, nil),
	}
	return dynamic(t, besideOwn, middlewares, replicas)
}

// dynamic returns Traefik's dynamic configuration of the routes on a gateway, each of which
// has the middleware of its name, if there is one.
func dynamic(t testing.TB, gateway string, middlewares group, replicas []string) string {
	routers := group{}
	for _, r := range byName {
		if r.gateway != gateway {
			continue
		}
		rule := r.rule
		if rule == "" {
			rule = fmt.Sprintf("Path(`/%s`)", r.name)
		}
		router := group{"rule": rule, "service": "app"}
		if middlewares[r.name] != nil {
			router["middlewares"] = []string{r.name}
		}
		routers[r.name] = router
	}
	var servers []group
	for _, replica := range replicas {
		servers = append(servers, group{"url": replica})
	}
	text, err := yaml.Marshal(group{"http": group{
		"routers":     routers,
		"middlewares": middlewares,
		"services":    group{"app": group{"loadBalancer": group{"servers": servers}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
