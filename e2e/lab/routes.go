package lab

import (
	"crypto/tls"
	"net/http"
	"net/url"
	"strconv"
	"testing"

	"gopkg.in/yaml.v3"
)

// Map is a part of a dynamic configuration, as the file provider has it.
type Map = map[string]any

// Quota returns a middleware of the plugin with these options.
func Quota(options Map) Map { return Map{"plugin": Map{PluginName: options}} }

// Route leads the requests of a rule through middlewares, the first one outermost,
// to a service.
type Route struct {
	Rule        string
	Middlewares []string
	Service     string
}

// Routes is a dynamic configuration in which the plugin stands among middlewares
// of Traefik's own.
type Routes struct {
	Routers     map[string]Route
	Middlewares map[string]Map
	Services    map[string]string // address of the only server; h2c:// for HTTP/2 without TLS
	Certificate Pair              // of entry points with TLS, where there are any
}

// YAML returns the configuration for the file provider.
func (r Routes) YAML(t testing.TB) string {
	t.Helper()
	routers, services := Map{}, Map{}
	for name, route := range r.Routers {
		entry := Map{"rule": route.Rule, "service": route.Service}
		if len(route.Middlewares) > 0 {
			entry["middlewares"] = route.Middlewares
		}
		routers[name] = entry
	}
	for name, server := range r.Services {
		services[name] = Map{"loadBalancer": Map{"servers": []Map{{"url": server}}}}
	}
	tree := Map{"http": Map{"routers": routers, "services": services}}
	if len(r.Middlewares) > 0 {
		tree["http"].(Map)["middlewares"] = r.Middlewares
	}
	if r.Certificate.CertFile != "" {
		pair := Map{"certFile": r.Certificate.CertFile, "keyFile": r.Certificate.KeyFile}
		tree["tls"] = Map{"stores": Map{"default": Map{"defaultCertificate": pair}}}
	}
	text, err := yaml.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// SecureEntryPoint returns the static options of one more entry point, with TLS
// and for all routers, and its address.
func SecureEntryPoint(t testing.TB) (args []string, address string) {
	t.Helper()
	address = "127.0.0.1:" + strconv.Itoa(FreePort(t))
	return []string{"--entrypoints.secure.address=" + address, "--entrypoints.secure.http.tls=true"}, address
}

// NewSecureClient returns a client that speaks HTTP/2 over TLS alone, and trusts
// one authority.
func NewSecureClient(t testing.TB, authority *Authority) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: authority.Pool()}, Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// Address returns the host and port of a URL.
func Address(t testing.TB, of string) string {
	t.Helper()
	u, err := url.Parse(of)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}
