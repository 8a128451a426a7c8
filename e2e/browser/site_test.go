package browser_test

import (
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// Paths under which the gateway of a site has its status, each for others.
const (
	plainPath   = "/-/gatequota"        // for this machine
	foreignPath = "/foreign/gatequota"  // for 127.0.0.2 alone
	secretPath  = "/secret/-/gatequota" // for this machine, with token
	token       = "n1ght+w4tch/=="      // has to be escaped
)

// limit is how many requests a client of the scope api may make.
const limit = 60

// A site is one gateway and its store.
type site struct {
	traefik *lab.Traefik
	store   *lab.Store

	routes lab.Routes
}

// newSite starts a site. Requests are counted by the field X-API-Key.
func newSite(t testing.TB) *site {
	t.Helper()
	window, _ := lab.QuietWindow(time.Now()) // no edge of it comes in between
	s := &site{store: lab.Valkey(t, lab.StoreOptions{})}
	quota := func(options lab.Map) lab.Map {
		options["sourceCriterion"] = lab.Map{"requestHeaderName": "X-API-Key"}
		options["valkey"] = lab.Map{"endpoints": []string{s.store.Addr()}, "timeout": "2s"}
		return lab.Quota(options)
	}
	s.routes = lab.Routes{
		Routers: map[string]lab.Route{
			"plain":   {Rule: "PathPrefix(`/`)", Middlewares: []string{"api"}, Service: "app"},
			"foreign": {Rule: "PathPrefix(`/foreign/`)", Middlewares: []string{"foreign"}, Service: "app"},
			"secret":  {Rule: "PathPrefix(`/secret/`)", Middlewares: []string{"secret"}, Service: "app"},
		},
		Middlewares: map[string]lab.Map{
			"api": quota(lab.Map{
				"scope": "api", "limit": limit, "window": window.String(), "control": true, "status": lab.Map{"path": plainPath},
				"rules": []lab.Map{{"name": "search", "pathPrefix": "/search", "limit": 20, "window": "60s", "onStoreFailure": "open"}},
			}),
			"foreign": quota(lab.Map{"limit": 1000, "window": window.String(),
				"status": lab.Map{"path": foreignPath, "allow": []string{"127.0.0.2/32"}}}),
			"secret": quota(lab.Map{"limit": 1000, "window": window.String(),
				"status": lab.Map{"path": secretPath, "token": token}}),
		},
		Services: map[string]string{"app": lab.NewApp(t, 1).URLs[0]},
	}
	s.traefik = lab.NewTraefik(t, lab.TraefikOptions{}, s.routes.YAML(t))
	return s
}

// withoutStatus makes the gateway go on without any status.
func (s *site) withoutStatus(t testing.TB) {
	t.Helper()
	for _, middleware := range s.routes.Middlewares {
		options := middleware["plugin"].(lab.Map)[lab.PluginName].(lab.Map)
		delete(options, "status")
	}
	s.traefik.Reload(s.routes.YAML(t))
}
