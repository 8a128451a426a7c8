package real_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/lab"
)

// The subject of a client's certificate tells it apart where Traefik has verified it,
// and nowhere else: who may show any certificate could take anybody's name.
func TestCertificatesTellClientsApart(t *testing.T) {
	t.Parallel()
	const limit, byAddress = 1000, "\x00address:9:127.0.0.1"
	store, app := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1)
	window, id := lab.QuietWindow(time.Now())
	authority, stranger := lab.NewAuthority(t), lab.NewAuthority(t)
	load := func(pair lab.Pair) tls.Certificate {
		t.Helper()
		certificate, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		return certificate
	}
	certificates := map[string]tls.Certificate{
		"alice": load(authority.Issue(t, "alice")), "alice again": load(authority.Issue(t, "alice")), "bob": load(authority.Issue(t, "bob")),
		"expired alice": load(authority.IssueExpired(t, "alice")), "forged alice": load(stranger.Issue(t, "alice")),
	}
	verifying := map[string]string{
		"alice": "\x00subject:8:CN=alice", "alice again": "\x00subject:8:CN=alice", "bob": "\x00subject:6:CN=bob",
	}
	believing := map[string]string{
		"alice": byAddress, "alice again": byAddress, "bob": byAddress, "expired alice": byAddress, "forged alice": byAddress,
	}
	const none = ""
	orNone := func(all map[string]string) map[string]string {
		c := maps.Clone(all)
		c[none] = byAddress
		return c
	}
	kinds := map[string]struct {
		clientAuth string
		identities map[string]string // by certificate; who is not named does not get in
	}{
		"required":  {"RequireAndVerifyClientCert", verifying},
		"given":     {"VerifyClientCertIfGiven", orNone(verifying)},
		"requested": {"RequestClientCert", orNone(believing)},
		"any":       {"RequireAnyClientCert", believing},
		"never":     {"NoClientCert", orNone(believing)},
	}

	s := setup{app: app, middlewares: map[string]options{}, routers: map[string]router{}}
	tlsOptions, hosts := lab.Map{}, []string{}
	for kind, k := range kinds {
		host := kind + ".test"
		hosts = append(hosts, host)
		s.middlewares[kind] = shared(store.Addr(), limit, window).with("sourceCriterion", options{"tlsClientSubject": true})
		s.routers[kind] = router{rule: "Host(`" + host + "`)", middlewares: []string{kind}}
		tlsOptions[kind] = lab.Map{"clientAuth": lab.Map{"caFiles": []string{authority.CertFile}, "clientAuthType": k.clientAuth}}
	}
	tree := s.tree()
	for kind := range kinds {
		tree["http"].(map[string]any)["routers"].(map[string]any)[kind].(map[string]any)["tls"] = lab.Map{"options": kind}
	}
	own := authority.Issue(t, "gateway", hosts...)
	tree["tls"] = lab.Map{"options": tlsOptions, "certificates": []lab.Map{{"certFile": own.CertFile, "keyFile": own.KeyFile}}}
	text, err := yaml.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	args, secure := lab.SecureEntryPoint(t)
	lab.NewTraefik(t, lab.TraefikOptions{Args: args}, string(text))

	want := map[string]int{}
	for kind, k := range kinds {
		seen := map[string]int{}
		for _, certificate := range append(slices.Collect(maps.Keys(certificates)), none) {
			identity, welcome := k.identities[certificate]
			for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
				config := &tls.Config{RootCAs: authority.Pool(), ClientSessionCache: tls.NewLRUClientSessionCache(8)}
				if certificate != none {
					shown := certificates[certificate]
					// Whatever authorities the gateway says that it accepts.
					config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil }
				}
				transport := &http.Transport{
					TLSClientConfig: config, Protocols: new(http.Protocols),
					DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
						return new(net.Dialer).DialContext(ctx, network, secure)
					},
				}
				transport.Protocols.SetHTTP1(protocol == "HTTP/1.1")
				transport.Protocols.SetHTTP2(protocol == "HTTP/2.0")
				client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
				// Over a connection, and over another that goes on with its session, which the
				// certificate is not shown for again.
				for _, resumed := range []bool{false, true} {
					about := fmt.Sprintf("%s, %q over %s, resumed %t", kind, certificate, protocol, resumed)
					resp, err := client.Get("https://" + kind + ".test/")
					if !welcome {
						if err == nil {
							t.Errorf("%s: status %d, want no connection", about, resp.StatusCode)
							_ = resp.Body.Close()
						}
						break
					}
					if err != nil {
						t.Errorf("%s: %v", about, err)
						break
					}
					_ = resp.Body.Close()
					transport.CloseIdleConnections()
					// A session with an expired certificate may begin anew.
					if resp.TLS.DidResume != resumed && certificate != "expired alice" || resp.Proto != protocol {
						t.Errorf("%s: the session was resumed: %t, over %s", about, resp.TLS.DidResume, resp.Proto)
					}
					seen[identity]++
					want[keyOf(kind+"@file", identity, id)]++
					if left := resp.Header.Get("X-RateLimit-Remaining"); resp.StatusCode != http.StatusOK || left != strconv.Itoa(limit-seen[identity]) {
						t.Errorf("%s: %d, %s left, want %d as %q", about, resp.StatusCode, left, limit-seen[identity], identity)
					}
				}
			}
		}
	}
	for _, key := range store.Keys() {
		if got := store.Client().Get(context.Background(), key).Val(); got != strconv.Itoa(want[key]) {
			t.Errorf("the store has counted %s under %s, want %d", got, key, want[key])
		}
		delete(want, key)
	}
	if len(want) > 0 {
		t.Errorf("the store has no counts under %v", want)
	}
	if strings.Contains(strings.Join(store.Keys(), " "), "alice") {
		t.Error("a subject is in the store")
	}
}
