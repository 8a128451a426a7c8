package real_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// A gate is a gateway with entry points of several kinds, and who has been there.
type gate struct {
	plain     string // trusts nobody
	proxied   string // lets 127.0.0.1, 127.0.0.2 and ::1 speak for others
	proxied6  string // the same, over IPv6
	announced string // lets loopback peers announce whom they connect for (PROXY protocol)
	encrypted string // speaks TLS, and so HTTP/2

	limit int                       // of the middlewares, unless they are about refusing
	seen  map[string]map[string]int // requests by middleware and client
}

// A peer is the other end of a connection. Its address is what the gateway sees:
// its own, or the one that it announces.
type peer struct {
	door, address string
}

// own stands for the peer's address where a client is expected.
const own = ""

// send sends a request byte by byte as it is, over a connection of its own.
func (p peer) send(t *testing.T, announced bool, requestLine string, lines ...string) lab.Answer {
	t.Helper()
	dialer := net.Dialer{Timeout: 20 * time.Second}
	if !announced {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(p.address)}
	}
	conn, err := dialer.Dial("tcp", p.door)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	head := requestLine + "\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n"
	if announced {
		family, to := "TCP4", "127.0.0.1"
		if strings.Contains(p.address, ":") {
			family, to = "TCP6", "::1"
		}
		head = fmt.Sprintf("PROXY %s %s %s 40000 80\r\n", family, p.address, to) + head
	}
	if _, err := io.WriteString(conn, head); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%q: %v", head, err)
	}
	_ = resp.Body.Close()
	return lab.Answer{Status: resp.StatusCode, Header: resp.Header}
}

// note fails the test unless the answer of a middleware is the one that this
// client gets now: the middleware took it for a client that has been here exactly
// as often.
func (g *gate) note(t *testing.T, middleware, client, how string, a lab.Answer) {
	t.Helper()
	if g.seen[middleware] == nil {
		g.seen[middleware] = map[string]int{}
	}
	g.seen[middleware][client]++
	left := g.limit - g.seen[middleware][client]
	if a.Status != http.StatusOK || a.Number("X-RateLimit-Remaining") != left {
		t.Fatalf("%s, %s: request %d of client %q: status %d, %q left, want %d", middleware, how, g.seen[middleware][client], client,
			a.Status, a.Header.Get("X-RateLimit-Remaining"), left)
	}
}

func TestSource(t *testing.T) {
	t.Parallel()
	store, app := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1)
	window, _ := lab.QuietWindow(time.Now())
	const limit = 1000 // more than any test of identities sends
	by := func(criterion any) options {
		return local(limit, window).with("sourceCriterion", criterion)
	}
	strategy := func(o options) options { return by(options{"ipStrategy": o}) }
	middlewares := map[string]options{
		"peer":     by(nil),
		"depth1":   strategy(options{"depth": 1}),
		"depth2":   strategy(options{"depth": 2}),
		"excluded": strategy(options{"excludedIPs": []string{"10.0.0.0/8", "2001:db8:ffff::/48", "192.0.2.1"}}),
		"network":  strategy(options{"depth": 1}).with("limit", 5),
		"single":   strategy(options{"depth": 1, "ipv6Subnet": 128}).with("limit", 5),
		"local":    by(options{"requestHeaderName": "X-API-Key"}),
		"shared":   shared(store.Addr(), limit, window),
		"host":     by(options{"requestHost": true}),
	}
	listen := func(ip string) string { return net.JoinHostPort(ip, strconv.Itoa(lab.FreePort(t))) }
	g := &gate{limit: limit, seen: map[string]map[string]int{}, proxied: listen("127.0.0.1"), proxied6: listen("::1"), announced: listen("127.0.0.1"), encrypted: listen("127.0.0.1")}
	const proxies = "127.0.0.1/32,127.0.0.2/32,::1/128"
	tr := lab.NewTraefik(t, lab.TraefikOptions{Args: []string{
		"--entrypoints.proxied.address=" + g.proxied, "--entrypoints.proxied.forwardedheaders.trustedips=" + proxies,
		"--entrypoints.proxied6.address=" + g.proxied6, "--entrypoints.proxied6.forwardedheaders.trustedips=" + proxies,
		"--entrypoints.announced.address=" + g.announced, "--entrypoints.announced.proxyprotocol.trustedips=127.0.0.0/8",
		"--entrypoints.encrypted.address=" + g.encrypted, "--entrypoints.encrypted.http.tls=true",
	}}, each(app, middlewares).yaml(t))
	g.plain = strings.TrimPrefix(tr.URL, "http://")

	t.Run("strangers cannot choose their address", func(t *testing.T) { strangersCannotChoose(t, g) })
	t.Run("peers are told apart by address", func(t *testing.T) { peersAreToldApart(t, g) })
	t.Run("proxies speak for their clients", func(t *testing.T) { proxiesSpeak(t, g) })
	t.Run("an IPv6 network is one client", func(t *testing.T) { networkIsOneClient(t, g, 5) })
	// Shared first: its keys in the store are among what clients then send.
	for _, mode := range []string{"shared", "local"} {
		t.Run("without the header the address counts, "+mode, func(t *testing.T) { withoutHeader(t, g, mode, store) })
	}
	if keys, clients := len(store.Keys()), len(g.seen["shared"]); keys != clients {
		t.Errorf("%d clients have %d keys in the store", clients, keys)
	}
	t.Run("one host in its many forms is one client", func(t *testing.T) { hostForms(t, g) })
	mustNotPanic(t, tr)
}

// Whoever is not trusted is its own address, whatever it says.
func strangersCannotChoose(t *testing.T, g *gate) {
	for _, middleware := range []string{"peer", "depth1", "depth2", "excluded"} {
		for _, p := range []peer{{g.plain, "127.0.0.1"}, {g.plain, "127.0.0.7"}, {g.proxied, "127.0.0.3"}} {
			for _, lines := range [][]string{
				nil,
				{"X-Forwarded-For: 203.0.113.1"},
				{"X-Forwarded-For: 203.0.113.2, 203.0.113.3"},
				{"X-Forwarded-For: 203.0.113.4", "X-Forwarded-For: 203.0.113.5, 10.0.0.1"},
				{"x-forwarded-for: 203.0.113.6, 10.0.0.1"},
				{"X-Forwarded-For: 127.0.0.9, 127.0.0.9"},
				{"X-Real-Ip: 203.0.113.7", "Forwarded: for=203.0.113.8"},
				{"X-Forwarded-For: 203.0.113.9, 203.0.113.9", "Connection: X-Forwarded-For"},
			} {
				a := p.send(t, false, "GET /"+middleware+" HTTP/1.1", append([]string{"Host: test"}, lines...)...)
				g.note(t, middleware, p.address, fmt.Sprintf("%q", lines), a)
			}
		}
	}
}

// Peers are who they are, IPv6 ones included: by PROXY protocol the gateway sees
// whatever address a load balancer announces.
func peersAreToldApart(t *testing.T, g *gate) {
	for range 2 {
		for _, c := range []struct{ announced, client string }{
			{"203.0.113.1", "203.0.113.1"},
			{"203.0.113.2", "203.0.113.2"},
			{"2001:db8:0:1::1", "2001:db8:0:1::/64"},
			{"2001:DB8:0:1:ffff::2", "2001:db8:0:1::/64"},
			{"2001:db8:0:2::1", "2001:db8:0:2::/64"},
			{"::ffff:203.0.113.1", "203.0.113.1"},
		} {
			for _, lines := range [][]string{nil, {"X-Forwarded-For: 198.51.100.1"}} {
				a := peer{g.announced, c.announced}.send(t, true, "GET /depth1 HTTP/1.1", append([]string{"Host: test"}, lines...)...)
				g.note(t, "depth1", c.client, "announced as "+c.announced, a)
			}
		}
	}
}

func proxiesSpeak(t *testing.T, g *gate) {
	// One line each; several are parted by "|".
	fallback := []string{
		"", " ", "\t \t", ",", " , ,", "unknown", "unknown, _hidden", "203.0.113.256, 203.0.113.256", "[], []", `", "`,
		"[203.0.113.1], [203.0.113.1]", `"203.0.113.1, "203.0.113.1`, "203.0.113.1:99999, 203.0.113.1:99999", "::1::2, ::1::2", "|",
	}
	tests := map[string][]struct{ forwarded, client string }{
		"depth1": {
			{"203.0.113.1", "203.0.113.1"},
			{"203.0.113.9, 203.0.113.1", "203.0.113.1"},
			{"203.0.113.1, 203.0.113.2", "203.0.113.2"},
			{"203.0.113.9|203.0.113.2", "203.0.113.2"},
			{"203.0.113.1:51234", "203.0.113.1"},
			{"203.0.113.1:51235", "203.0.113.1"},
			{`"203.0.113.1"`, "203.0.113.1"},
			{`"203.0.113.1:51236"`, "203.0.113.1"},
			{"  203.0.113.1\t", "203.0.113.1"},
			{"::ffff:203.0.113.1", "203.0.113.1"},
			{"[::ffff:203.0.113.1]:443", "203.0.113.1"},
			{"::ffff:cb00:7101", "203.0.113.1"},
			{"[2001:db8:0:1::1]:443", "2001:db8:0:1::/64"},
			{"[2001:db8:0:1::2]", "2001:db8:0:1::/64"},
			{`"[2001:DB8:0:1::3]:80"`, "2001:db8:0:1::/64"},
			{"2001:db8:0:1::1:8080", "2001:db8:0:1::/64"},
			{"2001:db8:0:8080::1", "2001:db8:0:8080::/64"},
			{"2001:db8:0:1::1%eth0", "2001:db8:0:1::/64"},
			{"10.0.0.1", "10.0.0.1"},
			{"203.0.113.1,", own},
			{"203.0.113.1, unknown", own},
		},
		"depth2": {
			{"203.0.113.1, 203.0.113.2", "203.0.113.1"},
			{"203.0.113.9, 203.0.113.1, 203.0.113.2", "203.0.113.1"},
			{"203.0.113.1|203.0.113.2", "203.0.113.1"},
			{"203.0.113.9|203.0.113.1|203.0.113.3", "203.0.113.1"},
			{"203.0.113.1:1,unknown", "203.0.113.1"},
			{"203.0.113.1", own},
			{"203.0.113.1,,203.0.113.2", own},
			{"unknown, 203.0.113.2", own},
		},
		"excluded": {
			{"203.0.113.1", "203.0.113.1"},
			{"203.0.113.1, 10.0.0.1", "203.0.113.1"},
			{"203.0.113.9, 203.0.113.1, 10.0.0.1:80, [2001:db8:ffff::1]:443, 192.0.2.1", "203.0.113.1"},
			{"203.0.113.1, ::ffff:10.0.0.1", "203.0.113.1"},
			{"203.0.113.1|10.0.0.1", "203.0.113.1"},
			{"203.0.113.1,, 10.0.0.1 , \t,", "203.0.113.1"},
			{"10.0.0.1, 203.0.113.2", "203.0.113.2"},
			{"203.0.113.1, 192.0.2.2", "192.0.2.2"},
			{"2001:db8:1::5, 2001:db8:ffff::1", "2001:db8:1::/64"},
			{"10.0.0.1", own},
			{"10.0.0.1, 10.0.0.2", own},
			{"203.0.113.1, unknown, 10.0.0.1", own},
		},
	}
	for middleware, rows := range tests {
		for _, forwarded := range fallback {
			rows = append(rows, struct{ forwarded, client string }{forwarded, own})
		}
		// What tells no client counts by the proxy that it comes through, and so never
		// limits those that come through another.
		for _, p := range []struct {
			peer
			client string
		}{
			{peer{g.proxied, "127.0.0.1"}, "127.0.0.1"}, {peer{g.proxied, "127.0.0.2"}, "127.0.0.2"}, {peer{g.proxied6, "::1"}, "::/64"},
		} {
			g.note(t, middleware, p.client, "without chain", p.send(t, false, "GET /"+middleware+" HTTP/1.1", "Host: test"))
			for _, row := range rows {
				lines := []string{"Host: test"}
				for _, line := range strings.Split(row.forwarded, "|") {
					lines = append(lines, "X-Forwarded-For: "+line)
				}
				want := row.client
				if want == own {
					want = p.client
				}
				how := fmt.Sprintf("%q through %s", row.forwarded, p.address)
				g.note(t, middleware, want, how, p.send(t, false, "GET /"+middleware+" HTTP/1.1", lines...))
			}
		}
	}
}

// Two hundred addresses of one network that anybody owns are one client, unless
// the operator wants them told apart.
func networkIsOneClient(t *testing.T, g *gate, limit int) {
	const addresses = 200
	proxy := peer{g.proxied, "127.0.0.1"}
	allowed := func(middleware, network string, n int) int {
		count := 0
		for i := range n {
			a := proxy.send(t, false, "GET /"+middleware+" HTTP/1.1", "Host: test", fmt.Sprintf("X-Forwarded-For: %s:%x::%x", network, 7*i, i+1))
			switch a.Status {
			case http.StatusOK:
				count++
			case http.StatusTooManyRequests:
			default:
				t.Fatalf("status %d", a.Status)
			}
		}
		return count
	}
	if got := allowed("network", "2001:db8:0:1", addresses); got != limit {
		t.Errorf("%d of %d addresses in one network are let in, want %d", got, addresses, limit)
	}
	if got := allowed("network", "2001:db8:0:2", 1); got != 1 {
		t.Error("the neighbouring network is refused")
	}
	if got := allowed("single", "2001:db8:0:1", addresses); got != addresses {
		t.Errorf("by the whole address, %d of %d are let in", got, addresses)
	}
	if got := allowed("single", "2001:db8:0:1", addresses); got != addresses {
		t.Errorf("a second time %d are let in", got)
	}
	again := 0
	for range limit {
		again += allowed("single", "2001:db8:0:1", 1)
	}
	if again != limit-2 {
		t.Errorf("one address is let in %d times", again+2)
	}
}

// A request that names no key, or more than one, counts by its address, where no
// value of the header can bring it.
func withoutHeader(t *testing.T, g *gate, middleware string, store *lab.Store) {
	peers := []peer{{g.plain, "127.0.0.1"}, {g.plain, "127.0.0.2"}}
	ask := func(p peer, lines ...string) lab.Answer {
		return p.send(t, false, "GET /"+middleware+" HTTP/1.1", append([]string{"Host: test"}, lines...)...)
	}
	without := func() {
		t.Helper()
		for _, p := range peers {
			for _, lines := range [][]string{
				nil, {"X-API-Key:"}, {"X-API-Key: "}, {"X-API-Key:  \t \t"}, {"X-API-Key: a", "X-API-Key: b"}, {"X-API-Key: a", "x-api-key: a"},
				{"X-API-Key:", "X-API-Key: a"}, {"X_API_Key: a"}, {"X-API-Key2: a"}, {"X-API-Key: a", "Connection: X-API-Key"},
			} {
				g.note(t, middleware, p.address, fmt.Sprintf("%q", lines), ask(p, lines...))
			}
		}
	}
	without()
	keys := []string{
		"a", "127.0.0.1", "127.0.0.2", "127.0.0.1:80", "127.0.0.1/32", "anonymous", "unknown", "null", "-", `""`, "%00", "0",
		"address:9:127.0.0.1", "address:9:127.0.0.2", "address::", `\x00address:9:127.0.0.1`, "%00address:9:127.0.0.1", "host:4:test",
		"{127.0.0.1}", "*", "\xff\xfe", "\xc2\xa0",
	}
	// The addresses' keys as they stand in the store, and the digests in them.
	for _, key := range store.Keys() {
		keys = append(keys, key, key[strings.IndexByte(key, '{')+1:strings.IndexByte(key, '}')])
	}
	for _, p := range peers {
		for _, key := range keys {
			g.note(t, middleware, "key "+key, "plain", ask(p, "X-API-Key: "+key))
			g.note(t, middleware, "key "+key, "between blanks", ask(p, "x-api-KEY:\t "+key+" \t"))
		}
		// The one byte that would lead there does not pass the entry point.
		if a := ask(p, "X-API-Key: \x00address:9:127.0.0.1"); a.Status != http.StatusBadRequest {
			t.Errorf("a zero byte: status %d", a.Status)
		}
	}
	without()
}

func hostForms(t *testing.T, g *gate) {
	p := peer{g.plain, "127.0.0.1"}
	for _, c := range []struct{ host, client string }{
		{"api.example.com", "api"}, {"API.Example.com", "api"}, {"api.example.com:80", "api"}, {"api.EXAMPLE.com:8080", "api"},
		{"api.example.com.", "api"}, {"Api.Example.Com.:443", "api"}, {"api.example.com:", "api"},
		{"api.example.org", "another name"}, {"www.api.example.com", "a name below"}, {"example.com", "a name above"},
		{"XN--Bcher-Kva.example", "punycode"}, {"xn--bcher-kva.example:80", "punycode"},
		{"203.0.113.1", "IPv4"}, {"203.0.113.1:80", "IPv4"},
		{"[2001:db8::1]", "IPv6"}, {"[2001:db8::1]:80", "IPv6"}, {"[2001:DB8:0::1]:443", "IPv6"}, {"[2001:db8:0:0:0:0:0:1]", "IPv6"},
		{"[2001:db8::2]", "another IPv6, of the same network"}, {"[2001:db8::2]:80", "another IPv6, of the same network"},
		{"", "address"},
	} {
		g.note(t, "host", c.client, c.host, p.send(t, false, "GET /host HTTP/1.1", "Host: "+c.host))
		a := p.send(t, false, "GET /host HTTP/1.1", "Host: "+c.host, "X-Forwarded-Host: fake.example", "Forwarded: host=fake.example")
		g.note(t, "host", c.client, c.host+" beside another", a)
	}
	// Over HTTP/1.0 a request may name no host at all.
	g.note(t, "host", "address", "HTTP/1.0", p.send(t, false, "GET /host HTTP/1.0"))
	// What stands in the request line counts, and not the field beside it.
	for _, url := range []string{
		"http://api.example.com", "http://API.example.com:80", "http://api.example.com.", "HTTP://Api.Example.com.:8081", "http://user@api.example.com",
	} {
		g.note(t, "host", "api", url, p.send(t, false, "GET "+url+"/host HTTP/1.1", "Host: fake.example"))
	}
	g.note(t, "host", "IPv6", "absolute form", p.send(t, false, "GET http://[2001:db8::1]:80/host HTTP/1.1", "Host: fake.example"))

	overTLS := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	inClear := &http.Transport{Protocols: new(http.Protocols)}
	inClear.Protocols.SetUnencryptedHTTP2(true)
	for url, transport := range map[string]*http.Transport{"https://" + g.encrypted + "/host": overTLS, "http://" + g.plain + "/host": inClear} {
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport, Timeout: 20 * time.Second}
		for _, c := range []struct{ authority, client string }{
			{"api.example.com", "api"}, {"API.Example.com", "api"}, {"api.example.com:443", "api"}, {"api.example.com.", "api"},
			{"api.example.com.:8443", "api"}, {"[2001:db8::1]:443", "IPv6"}, {"[2001:DB8::1]", "IPv6"}, {"api.example.org:443", "another name"},
		} {
			req, err := http.NewRequest(http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = c.authority
			resp, err := client.Do(req)
			if err != nil {
				t.Fatalf("%s, %s: %v", url, c.authority, err)
			}
			_ = resp.Body.Close()
			if resp.ProtoMajor != 2 {
				t.Fatalf("%s is spoken", resp.Proto)
			}
			g.note(t, "host", c.client, c.authority+" to "+url, lab.Answer{Status: resp.StatusCode, Header: resp.Header})
		}
	}
}
