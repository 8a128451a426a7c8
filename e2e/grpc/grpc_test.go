// Package grpc_test asks what gRPC clients see of the limiter.
package grpc_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/gatequota/gatequota/e2e/lab"
)

// patience bounds each call: it is long past what any of them takes. A call that
// ends by it has not been ended by its answer.
const patience = 20 * time.Second

// backend is the application: a gRPC server that counts the calls that reach it.
type backend struct {
	*health.Server
	calls *counter
	url   string
}

// counter counts the calls and the connections of a server or a client, as its stats
// handler.
type counter struct{ calls, conns atomic.Int64 }

func (c *counter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (c *counter) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.Begin); ok {
		c.calls.Add(1)
	}
}
func (c *counter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (c *counter) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnBegin); ok {
		c.conns.Add(1)
	}
}

func newBackend(t *testing.T) *backend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{Server: health.NewServer(), calls: new(counter), url: "h2c://" + l.Addr().String()}
	server := grpc.NewServer(grpc.StatsHandler(b.calls))
	grpc_health_v1.RegisterHealthServer(server, b)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return b
}

// reached returns how many calls reached the application.
func (b *backend) reached() int { return int(b.calls.calls.Load()) }

// site is a gateway with a gRPC application behind it, and one client for each way
// in. The path of a call decides nothing: routes are told apart by a header.
type site struct {
	tr      *lab.Traefik
	app     *backend
	clients map[string]grpc_health_v1.HealthClient
	traffic map[string]*counter // of each client
}

// mustKeepConnections fails the test unless each client still has its first connection.
func (s *site) mustKeepConnections(t *testing.T) {
	t.Helper()
	for way, c := range s.traffic {
		if got := c.conns.Load(); got != 1 {
			t.Errorf("%s: %d connections, want 1", way, got)
		}
	}
}

// newSite starts a gateway with a route for each middleware, behind outer ones if there
// are any.
func newSite(t *testing.T, middlewares map[string]lab.Map, outer ...lab.Map) *site {
	t.Helper()
	s := &site{app: newBackend(t), clients: map[string]grpc_health_v1.HealthClient{}, traffic: map[string]*counter{}}
	authority := lab.NewAuthority(t)
	args, secure := lab.SecureEntryPoint(t)
	routes := lab.Routes{
		Routers: map[string]lab.Route{}, Middlewares: middlewares,
		Services: map[string]string{"app": s.app.url}, Certificate: authority.Issue(t, "gateway", "127.0.0.1"),
	}
	var chain []string
	for i := range outer {
		chain = append(chain, "outer-"+strconv.Itoa(i))
	}
	for name := range middlewares {
		routes.Routers[name] = lab.Route{Rule: "Header(`X-Route`, `" + name + "`)", Middlewares: append(slices.Clone(chain), name), Service: "app"}
	}
	for i, name := range chain {
		middlewares[name] = outer[i]
	}
	s.tr = lab.NewTraefik(t, lab.TraefikOptions{Args: append(args, "--accesslog=true", "--accesslog.format=json")}, routes.YAML(t))
	for way, at := range map[string]struct {
		address     string
		credentials credentials.TransportCredentials
	}{
		"h2c": {lab.Address(t, s.tr.URL), insecure.NewCredentials()},
		"tls": {secure, credentials.NewTLS(&tls.Config{RootCAs: authority.Pool()})},
	} {
		s.traffic[way] = new(counter)
		conn, err := grpc.NewClient(at.address, grpc.WithTransportCredentials(at.credentials), grpc.WithStatsHandler(s.traffic[way]))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		s.clients[way] = grpc_health_v1.NewHealthClient(conn)
	}
	return s
}

// call returns the context of a call over a route with an API key.
func call(t *testing.T, route, key string) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return metadata.AppendToOutgoingContext(ctx, "x-route", route, "x-api-key", key)
}

// field returns the only value of a field of an answer.
func field(t *testing.T, md metadata.MD, name string) string {
	t.Helper()
	values := md.Get(name)
	if len(values) != 1 {
		t.Errorf("%s is %q, want one value of it; %v", name, values, md)
		return ""
	}
	return values[0]
}

func limited(limit int, window time.Duration, more lab.Map) lab.Map {
	options := lab.Map{"limit": limit, "window": window.String(), "sourceCriterion": lab.Map{"requestHeaderName": "X-API-Key"}}
	for name, value := range more {
		options[name] = value
	}
	return lab.Quota(options)
}

// Calls within the limit pass, each counted once, a stream like a single answer,
// however many messages it carries.
func TestWithinTheLimit(t *testing.T) {
	t.Parallel()
	const limit, messages = 4, 20
	store := lab.Valkey(t, lab.StoreOptions{})
	window, _ := lab.QuietWindow(time.Now())
	s := newSite(t, map[string]lab.Map{
		"shared": limited(limit, window, lab.Map{"valkey": lab.Map{"endpoints": []string{store.Addr()}, "timeout": "5s", "dialTimeout": "5s"}}),
		"local":  limited(limit, window, lab.Map{"mode": "local"}),
	})
	calls := 0
	for way, client := range s.clients {
		for _, route := range []string{"shared", "local"} {
			for i := range 2 {
				var header, trailer metadata.MD
				answer, err := client.Check(call(t, route, way), &grpc_health_v1.HealthCheckRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
				if err != nil || answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
					t.Fatalf("%s, %s: %v, %v", way, route, answer, err)
				}
				if got := field(t, header, "x-ratelimit-remaining"); got != strconv.Itoa(limit-1-i) {
					t.Errorf("%s, %s, call %d: %s remain", way, route, i+1, got)
				}
				if got := header.Get("retry-after"); len(got) > 0 {
					t.Errorf("%s, %s: retry-after is %q", way, route, got)
				}
			}
			service := way + route
			s.app.SetServingStatus(service, grpc_health_v1.HealthCheckResponse_SERVING)
			stream, err := client.Watch(call(t, route, way), &grpc_health_v1.HealthCheckRequest{Service: service})
			if err != nil {
				t.Fatal(err)
			}
			for i := range messages {
				answer, err := stream.Recv()
				want := grpc_health_v1.HealthCheckResponse_ServingStatus(1 + i%2)
				if err != nil || answer.GetStatus() != want {
					t.Fatalf("%s, %s, message %d: %v, %v", way, route, i+1, answer, err)
				}
				s.app.SetServingStatus(service, 1+(want%2))
			}
			header, err := stream.Header()
			if err != nil {
				t.Fatal(err)
			}
			if got := field(t, header, "x-ratelimit-remaining"); got != "1" {
				t.Errorf("%s, %s: %s remain to the stream", way, route, got)
			}
			header = nil
			if _, err := client.Check(call(t, route, way), &grpc_health_v1.HealthCheckRequest{}, grpc.Header(&header)); err != nil {
				t.Fatal(err)
			}
			if got := field(t, header, "x-ratelimit-remaining"); got != "0" {
				t.Errorf("%s, %s: %s remain after the stream", way, route, got)
			}
			calls += 4
		}
	}
	if got := s.app.reached(); got != calls {
		t.Errorf("%d calls reached the application, want %d", got, calls)
	}
	if got := store.Sum("rate:shared@file:*"); got != 2*limit {
		t.Errorf("the store has counted %d calls, want %d", got, 2*limit)
	}
}

// refusal is what a client sees of a call that did not reach the application.
type refusal struct {
	err error
	md  metadata.MD // the only fields of the answer
}

// refusals makes a single call and opens a stream, and returns how both end.
func refusals(t *testing.T, client grpc_health_v1.HealthClient, route, key string) map[string]refusal {
	t.Helper()
	var header, trailer metadata.MD
	_, err := client.Check(call(t, route, key), &grpc_health_v1.HealthCheckRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	if len(header) > 0 {
		t.Errorf("the answer has fields before its end, and is not its end alone: %v", header)
	}
	all := map[string]refusal{"unary": {err, trailer}}
	stream, err := client.Watch(call(t, route, key), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	all["stream"] = refusal{err, stream.Trailer()}
	return all
}

// mustEnd fails the test unless a call was ended by the gateway with a code and a
// message, and the caller is told when to come again.
func (r refusal) mustEnd(t *testing.T, what string, code codes.Code) {
	t.Helper()
	s := status.Convert(r.err)
	if s.Code() != code || s.Message() == "" {
		t.Errorf("%s: %v %q, want %v and a message", what, s.Code(), s.Message(), code)
		return
	}
	if seconds, err := strconv.Atoi(field(t, r.md, "retry-after")); err != nil || seconds < 1 {
		t.Errorf("%s: retry-after: %v", what, r.md)
	}
}

// Beyond the limit the client sees RESOURCE_EXHAUSTED at once, by whichever way in
// it came, and the connection serves other calls on.
func TestBeyondTheLimit(t *testing.T) {
	t.Parallel()
	store := lab.Valkey(t, lab.StoreOptions{})
	window, _ := lab.QuietWindow(time.Now())
	s := newSite(t, map[string]lab.Map{
		"shared": limited(1, window, lab.Map{"valkey": lab.Map{"endpoints": []string{store.Addr()}, "timeout": "5s", "dialTimeout": "5s"}}),
		"local":  limited(1, window, lab.Map{"mode": "local"}),
		"own":    limited(1, window, lab.Map{"mode": "local", "response": lab.Map{"status": 420, "body": "Later", "contentType": "text/html"}}),
	})
	calls := 0
	for way, client := range s.clients {
		for _, route := range []string{"shared", "local", "own"} {
			for _, key := range []string{way + "-1", way + "-2"} {
				if _, err := client.Check(call(t, route, key), &grpc_health_v1.HealthCheckRequest{}); err != nil {
					t.Fatalf("%s, %s, within the limit: %v", way, route, err)
				}
				calls++
				for kind, r := range refusals(t, client, route, key) {
					what := way + ", " + route + ", " + kind
					r.mustEnd(t, what, codes.ResourceExhausted)
					if got := field(t, r.md, "x-ratelimit-remaining"); got != "0" {
						t.Errorf("%s: %s remain", what, got)
					}
					if got := field(t, r.md, "ratelimit-policy"); got == "" {
						t.Errorf("%s: no policy: %v", what, r.md)
					}
				}
			}
		}
	}
	if got := s.app.reached(); got != calls {
		t.Errorf("%d calls reached the application, want %d", got, calls)
	}
	s.mustKeepConnections(t)
}

// While the store is away a middleware that fails closed ends calls with UNAVAILABLE,
// one that fails open or goes on alone lets them pass.
func TestWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	nowhere := lab.Map{"endpoints": []string{"127.0.0.1:" + strconv.Itoa(lab.FreePort(t))}}
	window, _ := lab.QuietWindow(time.Now())
	s := newSite(t, map[string]lab.Map{
		"closed": limited(9, window, lab.Map{"valkey": nowhere, "onStoreFailure": "closed"}),
		"open":   limited(9, window, lab.Map{"valkey": nowhere, "onStoreFailure": "open"}),
		"local":  limited(9, window, lab.Map{"valkey": nowhere, "onStoreFailure": "local"}),
	})
	for way, client := range s.clients {
		for kind, r := range refusals(t, client, "closed", "key") {
			what := way + ", " + kind
			r.mustEnd(t, what, codes.Unavailable)
			if got := field(t, r.md, http.CanonicalHeaderKey("x-ratelimit-decision")); got != "closed" {
				t.Errorf("%s: decided %q", what, got)
			}
		}
		for _, route := range []string{"open", "local"} {
			if _, err := client.Check(call(t, route, "key"), &grpc_health_v1.HealthCheckRequest{}); err != nil {
				t.Errorf("%s, %s: %v", way, route, err)
			}
		}
	}
	if got, want := s.app.reached(), 2*len(s.clients); got != want {
		t.Errorf("%d calls reached the application, want %d", got, want)
	}
	s.mustKeepConnections(t)
	// Nothing was sent twice.
	s.mustHaveLogged(t, "closed", 2*len(s.clients))
}

// mustHaveLogged waits until the access log has that many requests of a route, fails
// the test if it has more, and returns them.
func (s *site) mustHaveLogged(t *testing.T, route string, n int) []string {
	t.Helper()
	var lines []string
	lab.Until(t, "all calls are logged", func() bool {
		// Of each way in Traefik has a router of its own.
		lines = slices.DeleteFunc(s.tr.LogLines(`"RouterName":"`), func(line string) bool { return !strings.Contains(line, route+`@file"`) })
		return len(lines) >= n
	})
	if len(lines) != n {
		t.Errorf("%d requests are logged, want %d", len(lines), n)
	}
	return lines
}

// To HTTP a refused call is a success: what looks at the status of an answer, the access
// log among it, sees none of these refusals.
func TestRefusalsAreNoErrorsOfHTTP(t *testing.T) {
	t.Parallel()
	const calls = 20
	window, _ := lab.QuietWindow(time.Now())
	s := newSite(t, map[string]lab.Map{"local": limited(1, window, lab.Map{"mode": "local"})},
		lab.Map{"circuitBreaker": lab.Map{"expression": "ResponseCodeRatio(400, 600, 0, 600) > 0.01", "checkPeriod": "1ms", "fallbackDuration": "10m"}},
		lab.Map{"errors": lab.Map{"status": []string{"400-599"}, "service": "app", "query": "/page"}},
		lab.Map{"retry": lab.Map{"attempts": 3, "status": []string{"429", "500-599"}}},
	)
	client := s.clients["h2c"]
	if _, err := client.Check(call(t, "local", "key"), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	for range calls / 2 {
		for kind, r := range refusals(t, client, "local", "key") {
			r.mustEnd(t, kind, codes.ResourceExhausted)
		}
	}
	if _, err := client.Check(call(t, "local", "another"), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Errorf("another client: %v", err)
	}
	if got := s.app.reached(); got != 2 {
		t.Errorf("%d calls reached the application, want 2", got)
	}
	for _, line := range s.mustHaveLogged(t, "local", calls+2) {
		if !strings.Contains(line, `"DownstreamStatus":200`) {
			t.Errorf("logged: %s", line)
		}
	}
}
