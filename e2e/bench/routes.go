package main

import (
	"fmt"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/lab"
)

// route is one way of answering that is measured.
type route struct {
	name    string // its path below /, and its name in what is printed
	title   string
	own     bool // ours, and not Traefik's
	refused bool // every request but the first is answered 429
	// against is the route of Traefik's own that it is compared with.
	against string
}

// routes are measured in this order and, every other round, in the reverse one:
// those that are compared stand side by side, and neither is always the first.
var routes = []route{
	{name: "none", title: "no middleware"},
	{name: "traefik-memory-allowed", title: "Traefik rateLimit, in memory"},
	{name: "local-allowed", title: "Gatequota, mode local", own: true, against: "traefik-memory-allowed"},
	{name: "traefik-redis-allowed", title: "Traefik rateLimit, with redis"},
	{name: "shared-allowed", title: "Gatequota, mode shared", own: true, against: "traefik-redis-allowed"},
	{name: "traefik-memory-refused", title: "Traefik rateLimit, in memory", refused: true},
	{name: "local-refused", title: "Gatequota, mode local", own: true, refused: true, against: "traefik-memory-refused"},
	{name: "traefik-redis-refused", title: "Traefik rateLimit, with redis", refused: true},
	{name: "shared-refused", title: "Gatequota, mode shared", own: true, refused: true, against: "traefik-redis-refused"},
}

// configuration returns Traefik's dynamic configuration of all routes.
func configuration(t testing.TB, store string, replicas []string) string {
	type group = map[string]any
	source := group{"requestHeaderName": "X-API-Key"}
	redis := group{"endpoints": []string{store}}
	// More than a machine can send, and one for all of the run.
	builtInAllowed := group{"average": 1000000, "period": "1s", "burst": 1000000, "sourceCriterion": source}
	builtInRefused := group{"average": 1, "period": "1h", "burst": 1, "sourceCriterion": source}
	builtIn := func(o group, more group) group {
		all := group{}
		for _, options := range []group{o, more} {
			for name, value := range options {
				all[name] = value
			}
		}
		return group{"rateLimit": all}
	}
	own := func(mode string, limit string) group {
		return group{"plugin": group{lab.PluginName: group{
			"limit": limit, "window": "1d", "mode": mode, "sourceCriterion": source, "valkey": group{"endpoints": []string{store}},
		}}}
	}
	const plenty, hardlyAny = "999999999999999", "1"
	middlewares := group{
		"traefik-memory-allowed": builtIn(builtInAllowed, nil),
		"traefik-memory-refused": builtIn(builtInRefused, nil),
		"traefik-redis-allowed":  builtIn(builtInAllowed, group{"redis": redis}),
		"traefik-redis-refused":  builtIn(builtInRefused, group{"redis": redis}),
		"local-allowed":          own("local", plenty),
		"local-refused":          own("local", hardlyAny),
		"shared-allowed":         own("shared", plenty),
		"shared-refused":         own("shared", hardlyAny),
	}
	routers := group{}
	for _, r := range routes {
		router := group{"rule": fmt.Sprintf("Path(`/%s`)", r.name), "service": "app"}
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
