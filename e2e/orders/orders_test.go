// Package orders_test asks what becomes of the limiter among Traefik's own
// middlewares, before and behind each of them.
package orders_test

import (
	"net/http"
	"testing"

	"github.com/gatequota/gatequota/e2e/lab"
)

var (
	preflight = map[string]string{"Origin": origin, "Access-Control-Request-Method": "GET"}
	crossing  = map[string]string{"Origin": origin}
	gzipped   = map[string]string{"Accept-Encoding": "gzip"}
	user      = map[string]string{"Authorization": "Basic dXNlcjpzZWNyZXQ="}
	guessing  = map[string]string{"Authorization": "Basic dXNlcjpndWVzcw=="}
	alice     = map[string]string{"Authorization": "Bearer alice"}
	forging   = map[string]string{"Authorization": "Bearer alice", "X-User": "bob"}
	bob       = map[string]string{"Authorization": "Bearer bob"}
	another   = map[string]string{"X-API-Key": "another"}
)

// told are the fields of a refusal that its client reads.
var told = map[string]string{"Retry-After": some, "RateLimit": some, "RateLimit-Policy": some, "X-RateLimit-Remaining": "0", "Cache-Control": "no-store"}

// silent is an answer on which the client finds nothing of ours.
var silent = map[string]string{"Retry-After": none, "RateLimit": none, "RateLimit-Policy": none, "X-RateLimit-Remaining": none}

// with returns fields and more of them.
func with(fields map[string]string, more ...string) map[string]string {
	all := map[string]string{}
	for name, value := range fields {
		all[name] = value
	}
	for i := 0; i < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

const overLimit = "200: 5, 429: 15"

func usual(st step) []step {
	st.n, st.want = 20, overLimit
	if st.fields == nil {
		st.fields = told
	}
	return []step{st}
}

var byUser = lab.Map{"sourceCriterion": lab.Map{"requestHeaderName": "X-User"}}

var trials = []trial{
	// headers, with CORS. A browser's script can read an answer that allows its origin,
	// and of its fields those that are exposed.
	{
		name: "headers, quota", chain: []string{"cors", "quota"},
		steps: usual(step{header: crossing, fields: with(told, "Access-Control-Allow-Origin", origin,
			"Access-Control-Expose-Headers", "RateLimit,RateLimit-Policy,Retry-After", "Vary", "~Origin")}),
		hits: 5, counted: 5,
	},
	{
		name: "quota, headers", chain: []string{"quota", "cors"},
		steps: usual(step{header: crossing, fields: with(told, "Access-Control-Allow-Origin", none, "Access-Control-Expose-Headers", none)}),
		hits:  5, counted: 5,
	},
	{
		name: "headers, quota: pre-flights", chain: []string{"cors", "quota"},
		steps: []step{
			{n: 50, method: http.MethodOptions, header: preflight, want: "200: 50", fields: with(silent, "Access-Control-Allow-Origin", origin)},
			{header: crossing, want: "200: 1", fields: map[string]string{"X-RateLimit-Remaining": "4"}},
		},
		hits: 1, counted: 1,
	},
	{
		name: "quota, headers: pre-flights", chain: []string{"quota", "cors"},
		steps: []step{
			{n: 50, method: http.MethodOptions, header: preflight, want: "200: 5, 429: 45", fields: with(told, "Access-Control-Allow-Origin", none)},
			{header: crossing, want: "429: 1"},
		},
		hits: 0, counted: 5,
	},

	{
		name: "headers, quota that exposes its fields", chain: []string{"cors-only", "quota"}, quota: lab.Map{"exposeHeaders": true},
		steps: []step{
			{n: 5, header: crossing, want: "200: 5", fields: map[string]string{"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "~RateLimit"}},
			{header: crossing, want: "429: 1", fields: with(told, "Access-Control-Allow-Origin", origin, "Access-Control-Expose-Headers", "~Retry-After")},
		},
		hits: 5, counted: 5,
	},
	{
		// Of two lists the outer one stays.
		name: "headers that expose fields, quota that exposes its fields", chain: []string{"cors", "quota"}, quota: lab.Map{"exposeHeaders": true},
		steps: usual(step{header: crossing, fields: with(told, "Access-Control-Expose-Headers", "RateLimit,RateLimit-Policy,Retry-After")}),
		hits:  5, counted: 5,
	},
	{
		name: "quota that exempts pre-flights, headers", chain: []string{"quota", "cors"}, quota: lab.Map{"exempt": lab.Map{"preflight": true}},
		steps: []step{
			{n: 50, method: http.MethodOptions, header: preflight, want: "200: 50", fields: with(silent, "Access-Control-Allow-Origin", origin)},
			{n: 20, header: crossing, want: overLimit, fields: with(told, "Access-Control-Allow-Origin", none)},
		},
		hits: 5, counted: 5,
	},

	// errors. Outside, it puts its page in the place of a refusal, fields and all.
	{
		name: "errors, quota", chain: []string{"errors", "quota"},
		steps: usual(step{fields: with(silent, "X-Page", "yes", "Cache-Control", none), body: "page 429"}),
		hits:  5, counted: 5,
	},
	{
		name: "quota, errors", chain: []string{"quota", "errors"},
		steps: usual(step{fields: with(told, "X-Page", none)}),
		hits:  5, counted: 5,
	},
	{
		name: "errors, quota: the application fails", chain: []string{"errors", "quota"},
		steps: []step{{n: 3, path: "fail", want: "500: 3", fields: with(silent, "X-Page", "yes"), body: "page 500"}},
		hits:  3, counted: 3,
	},
	{
		name: "quota, errors: the application fails", chain: []string{"quota", "errors"},
		steps: []step{{n: 3, path: "fail", want: "500: 3", fields: map[string]string{"X-Page": "yes", "X-RateLimit-Remaining": "2"}, body: "page 500"}},
		hits:  3, counted: 3,
	},
	{
		name: "errors, quota: the page is limited too", chain: []string{"errors-limited", "quota"},
		steps: usual(step{fields: with(told, "X-Page", none)}),
		hits:  5, counted: 5,
	},
	{
		// Each failure costs two, the request and the page, until the page is refused.
		name: "errors, quota: the application fails and the page is limited too", chain: []string{"errors-limited", "quota"},
		steps: []step{
			{n: 2, path: "fail", want: "500: 2", body: "page 500"},
			{path: "fail", want: "500: 1", fields: told},
			{path: "fail", want: "429: 1", fields: told},
		},
		hits: 3, counted: 5,
	},
	{
		name: "errors, quota: closed", chain: []string{"errors", "quota"}, quota: lab.Map{"onStoreFailure": "closed"},
		steps: []step{{n: 3, want: "503: 3", fields: with(silent, "X-Page", "yes"), body: "page 503"}},
	},
	{
		name: "quota, errors: closed", chain: []string{"quota", "errors"}, quota: lab.Map{"onStoreFailure": "closed"},
		steps: []step{{n: 3, want: "503: 3", fields: map[string]string{"Retry-After": some, "X-RateLimit-Decision": "closed", "X-Page": none}}},
	},

	// retry. By default it repeats what did not reach the application alone.
	{name: "retry, quota", chain: []string{"retry", "quota"}, steps: usual(step{}), hits: 5, counted: 5},
	{name: "quota, retry", chain: []string{"quota", "retry"}, steps: usual(step{}), hits: 5, counted: 5},
	{
		// Five attempts are counted; the sixth is refused, and its answer is the client's.
		name: "retry, quota: the application is gone", chain: []string{"retry", "quota"}, service: "gone",
		steps:   []step{{want: "502: 1", fields: map[string]string{"X-RateLimit-Remaining": "2"}}, {want: "429: 1", fields: told}},
		counted: 5, retries: 4,
	},
	{
		name: "quota, retry: the application is gone", chain: []string{"quota", "retry"}, service: "gone",
		steps:   []step{{n: 2, want: "502: 2", fields: map[string]string{"X-RateLimit-Remaining": "3"}}},
		counted: 2, retries: 4,
	},
	{
		name: "retry of statuses, quota", chain: []string{"retry-statuses", "quota"},
		steps: usual(step{}), hits: 5, counted: 5, retries: 30,
	},
	{
		name: "quota, retry of statuses", chain: []string{"quota", "retry-statuses"},
		steps: usual(step{}), hits: 5, counted: 5,
	},
	{
		name: "retry of statuses, quota: the application fails", chain: []string{"retry-statuses", "quota"},
		steps: []step{{path: "fail", want: "500: 1"}, {path: "fail", want: "429: 1", fields: told}},
		hits:  5, counted: 5, retries: 4,
	},
	{
		name: "quota, retry of statuses: the application fails", chain: []string{"quota", "retry-statuses"},
		steps: []step{{n: 2, path: "fail", want: "500: 2", fields: map[string]string{"X-RateLimit-Remaining": "3"}}},
		hits:  6, counted: 2, retries: 4,
	},
	{
		name: "retry, quota: closed", chain: []string{"retry", "quota"}, quota: lab.Map{"onStoreFailure": "closed"},
		steps: []step{{n: 3, want: "503: 3", fields: map[string]string{"Retry-After": some}}},
	},
	{
		name: "retry of statuses, quota: closed", chain: []string{"retry-statuses", "quota"}, quota: lab.Map{"onStoreFailure": "closed"},
		steps: []step{{n: 3, want: "503: 3", fields: map[string]string{"Retry-After": some}}}, retries: 6,
	},

	// circuitBreaker. What opens one that stands outside is tested below.
	{
		name: "quota, circuitBreaker", chain: []string{"quota", "breaker"},
		steps: append(usual(step{}), step{header: another, want: "200: 1"}), hits: 6, counted: 6,
	},
	{
		name: "circuitBreaker by network errors, quota", chain: []string{"breaker-network", "quota"},
		steps: append(usual(step{}), step{header: another, want: "200: 1"}), hits: 6, counted: 6,
	},
	{
		name: "circuitBreaker by 5xx, quota", chain: []string{"breaker-5xx", "quota"},
		steps: append(usual(step{}), step{header: another, want: "200: 1"}), hits: 6, counted: 6,
	},
	{
		name: "quota, circuitBreaker: closed", chain: []string{"quota", "breaker-5xx"}, quota: lab.Map{"onStoreFailure": "closed"},
		steps: []step{{n: 20, want: "503: 20", fields: map[string]string{"X-RateLimit-Decision": "closed"}}},
	},
	{
		name: "circuitBreaker by network errors, quota: closed", chain: []string{"breaker-network", "quota"}, quota: lab.Map{"onStoreFailure": "closed"},
		steps: []step{{n: 20, want: "503: 20", fields: map[string]string{"X-RateLimit-Decision": "closed"}}},
	},

	// compress. It leaves an answer as short as ours alone, unless it is told otherwise.
	{
		name: "compress, quota", chain: []string{"compress", "quota"},
		steps: []step{
			{path: "big", header: gzipped, want: "200: 1", fields: map[string]string{"Content-Encoding": "gzip", "X-RateLimit-Remaining": "4"}},
			{n: 19, path: "big", header: gzipped, want: "200: 4, 429: 15", fields: with(told, "Content-Encoding", none)},
		},
		hits: 5, counted: 5,
	},
	{
		name: "quota, compress", chain: []string{"quota", "compress"},
		steps: []step{
			{path: "big", header: gzipped, want: "200: 1", fields: map[string]string{"Content-Encoding": "gzip", "X-RateLimit-Remaining": "4"}},
			{n: 19, path: "big", header: gzipped, want: "200: 4, 429: 15", fields: with(told, "Content-Encoding", none)},
		},
		hits: 5, counted: 5,
	},
	{
		name: "compress of all, quota", chain: []string{"compress-all", "quota"},
		steps: usual(step{header: gzipped, fields: with(told, "Content-Encoding", "gzip", "Content-Length", some)}),
		hits:  5, counted: 5,
	},

	// inFlightReq refuses by 429 too, without a word of ours where it stands outside,
	// and never with Retry-After.
	{name: "inFlightReq, quota", chain: []string{"inflight", "quota"}, steps: usual(step{}), hits: 5, counted: 5},
	{name: "quota, inFlightReq", chain: []string{"quota", "inflight"}, steps: usual(step{}), hits: 5, counted: 5},
	{
		name: "inFlightReq, quota: too many at once", chain: []string{"inflight", "quota"}, hold: true,
		steps: []step{{n: 10, want: "429: 10", fields: silent}}, hits: 1, counted: 1,
	},
	{
		name: "quota, inFlightReq: too many at once", chain: []string{"quota", "inflight"}, hold: true,
		steps: []step{
			{n: 3, want: "429: 3", fields: map[string]string{"Retry-After": none, "X-RateLimit-Remaining": "1"}},
			{n: 7, want: "429: 7", fields: told},
		},
		hits: 1, counted: 5,
	},

	// basicAuth and forwardAuth. Outside, only who has shown who he is costs anything;
	// inside, whoever guesses is held to the limit.
	{name: "basicAuth, quota", chain: []string{"basic", "quota"}, steps: usual(step{header: user}), hits: 5, counted: 5},
	{name: "quota, basicAuth", chain: []string{"quota", "basic"}, steps: usual(step{header: user}), hits: 5, counted: 5},
	{
		name: "basicAuth, quota: guesses", chain: []string{"basic", "quota"},
		steps: []step{{n: 20, header: guessing, want: "401: 20", fields: silent}, {header: user, want: "200: 1", fields: map[string]string{"X-RateLimit-Remaining": "4"}}},
		hits:  1, counted: 1,
	},
	{
		name: "quota, basicAuth: guesses", chain: []string{"quota", "basic"},
		steps: []step{{n: 20, header: guessing, want: "401: 5, 429: 15", fields: told}, {header: user, want: "429: 1"}},
		hits:  0, counted: 5,
	},
	{name: "forwardAuth, quota", chain: []string{"forward", "quota"}, steps: usual(step{header: alice}), hits: 5, counted: 5},
	{name: "quota, forwardAuth", chain: []string{"quota", "forward"}, steps: usual(step{header: alice}), hits: 5, counted: 5},
	{
		name: "forwardAuth, quota: strangers", chain: []string{"forward", "quota"},
		steps: []step{{n: 20, want: "401: 20", fields: silent}, {header: alice, want: "200: 1", fields: map[string]string{"X-RateLimit-Remaining": "4"}}},
		hits:  1, counted: 1,
	},
	{
		name: "quota, forwardAuth: strangers", chain: []string{"quota", "forward"},
		steps: []step{{n: 20, want: "401: 5, 429: 15", fields: told}, {header: alice, want: "429: 1"}},
		hits:  0, counted: 5,
	},
	{
		name: "forwardAuth, quota by its user", chain: []string{"forward", "quota"}, quota: byUser,
		steps: []step{
			{n: 3, header: alice, want: "200: 3", body: "ok alice"},
			{n: 3, header: forging, want: "200: 2, 429: 1", fields: told},
			{header: bob, want: "200: 1", fields: map[string]string{"X-RateLimit-Remaining": "4"}, body: "ok bob"},
		},
		hits: 6, counted: 6,
	},
	{
		// There is no user yet: all count as one, by their address, but whoever invents
		// the field is taken at his word.
		name: "quota by its user, forwardAuth", chain: []string{"quota", "forward"}, quota: byUser,
		steps: []step{
			{n: 5, header: alice, want: "200: 5", body: "ok alice"},
			{header: bob, want: "429: 1", fields: told},
			{n: 20, header: alice, each: "X-User", want: "200: 20", fields: map[string]string{"X-RateLimit-Remaining": "4"}, body: "ok alice"},
		},
		hits: 25, counted: 25,
	},
	{
		// A limiter on either side: guesses are held to the one, users to the other.
		name: "quota, forwardAuth, quota by its user", chain: []string{"guard", "forward", "quota"}, quota: byUser,
		steps: []step{
			{n: 20, want: "401: 8, 429: 12", fields: with(told, "X-RateLimit-Limit", "8")},
			{header: with(alice, "X-API-Key", "another"), want: "200: 1", fields: map[string]string{"X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "4"}, body: "ok alice"},
		},
		hits: 1, counted: 1,
	},
	{
		name:  "all of them in the order that is recommended",
		chain: []string{"cors", "compress", "basic", "quota", "errors", "retry", "breaker"},
		steps: []step{
			{n: 10, method: http.MethodOptions, header: preflight, want: "200: 10", fields: with(silent, "Access-Control-Allow-Origin", origin)},
			{n: 10, header: with(guessing, "Origin", origin), want: "401: 10", fields: silent},
			{n: 4, path: "big", header: with(user, "Origin", origin, "Accept-Encoding", "gzip"), want: "200: 4",
				fields: map[string]string{"X-RateLimit-Remaining": "1", "Access-Control-Allow-Origin": origin, "Content-Encoding": "gzip"}},
			{path: "fail", header: with(user, "Origin", origin), want: "500: 1", body: "page 500",
				fields: map[string]string{"X-RateLimit-Remaining": "0", "Access-Control-Allow-Origin": origin}},
			{n: 15, header: with(user, "Origin", origin, "Accept-Encoding", "gzip"), want: "429: 15",
				fields: with(told, "Access-Control-Allow-Origin", origin, "Access-Control-Expose-Headers", some, "Content-Encoding", none)},
			{header: with(user, "X-API-Key", "another"), want: "200: 1"},
		},
		hits: 6, counted: 6,
	},
}

func TestOrders(t *testing.T) {
	t.Parallel()
	s := newSite(t, trials)
	for i, tt := range trials {
		t.Run(tt.name, func(t *testing.T) {
			requests := 0
			if tt.hold {
				requests++
				held := make(chan lab.Answer, 1)
				go func() { held <- s.ask(t, name(i), step{path: "hold"}, 0) }()
				lab.Until(t, "a request is on its way", func() bool { return s.app.hitsOf(name(i)) == 1 })
				defer func() {
					s.app.release()
					if a := <-held; a.Status != http.StatusOK {
						t.Errorf("the request on its way: status %d", a.Status)
					}
				}()
			}
			for _, st := range tt.steps {
				s.take(t, name(i), st)
				requests += max(1, st.n)
			}
			if got := s.app.hitsOf(name(i)); got != tt.hits {
				t.Errorf("%d requests reached the application, want %d", got, tt.hits)
			}
			if got := s.store.Sum("rate:" + name(i) + ":{*"); got != tt.counted {
				t.Errorf("%d requests were counted, want %d", got, tt.counted)
			}
			if tt.hold {
				return // what is on its way is not logged yet
			}
			// Traefik writes one log: what it says of attempts stands before this.
			var entries []entry
			lab.Until(t, "the access log has all requests", func() bool {
				entries = logged(s.tr, "/"+name(i)+"/")
				return len(entries) >= requests
			})
			if len(entries) != requests {
				t.Errorf("the access log has %d requests, want %d", len(entries), requests)
			}
			if got := s.retries(name(i)); got != tt.retries {
				t.Errorf("%d attempts were repeated, want %d", got, tt.retries)
			}
		})
	}
}

// A circuit breaker that stands outside takes refusals for failures, where its
// expression looks at their status, and then answers everybody.
func TestOuterCircuitBreakerOpens(t *testing.T) {
	t.Parallel()
	opened := []trial{
		{name: "by 4xx", chain: []string{"breaker", "quota"}},
		{name: "by 5xx", chain: []string{"breaker-5xx", "quota"}, quota: lab.Map{"onStoreFailure": "closed"}},
	}
	s := newSite(t, opened)
	for i, tt := range opened {
		t.Run(tt.name, func(t *testing.T) {
			ours := http.StatusTooManyRequests
			if tt.quota != nil {
				ours = http.StatusServiceUnavailable
			}
			refused := 0
			lab.Until(t, "the breaker is open", func() bool {
				a := s.ask(t, name(i), step{}, 0)
				if a.Status == ours && a.Header.Get("RateLimit-Policy") != "" {
					refused++
				}
				return a.Status == http.StatusServiceUnavailable && a.Header.Get("RateLimit-Policy") == ""
			})
			if refused == 0 {
				t.Error("the breaker opened before anybody was refused")
			}
			hits := s.app.hitsOf(name(i))
			s.take(t, name(i), step{n: 3, header: another, want: "503: 3", fields: silent})
			if got := s.app.hitsOf(name(i)); got != hits {
				t.Errorf("%d requests reached the application while the breaker was open", got-hits)
			}
			t.Logf("open after %d refusals", refused)
		})
	}
}

// What the access log says of a refusal.
func TestAccessLogOfRefusals(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		args []string
		want map[string]bool // which fields of the answer are logged
	}{
		{"by default", nil, map[string]bool{"Ratelimit": false, "Retry-After": false, "X-Ratelimit-Decision": false}},
		{"all fields", []string{"--accesslog.fields.headers.defaultmode=keep"},
			map[string]bool{"Ratelimit": true, "Retry-After": true, "X-Ratelimit-Decision": true}},
		{"by name, as they are logged", []string{"--accesslog.fields.headers.names.Ratelimit=keep", "--accesslog.fields.headers.names.X-Ratelimit-Decision=keep"},
			map[string]bool{"Ratelimit": true, "Retry-After": false, "X-Ratelimit-Decision": true}},
		{"by name, as they are sent", []string{"--accesslog.fields.headers.names.RateLimit=keep", "--accesslog.fields.headers.names.X-RateLimit-Decision=keep"},
			map[string]bool{"Ratelimit": true, "Retry-After": false, "X-Ratelimit-Decision": true}},
		{"refusals alone", []string{"--accesslog.filters.statuscodes=429", "--accesslog.fields.headers.names.Retry-After=keep"},
			map[string]bool{"Ratelimit": false, "Retry-After": true, "X-Ratelimit-Decision": false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			app, client := newBackend(t), lab.NewClient(t)
			routes := lab.Routes{
				Routers:     map[string]lab.Route{"all": {Rule: "PathPrefix(`/`)", Middlewares: []string{"quota"}, Service: "app"}},
				Middlewares: map[string]lab.Map{"quota": lab.Quota(lab.Map{"mode": "local", "limit": 1, "window": "366d"})},
				Services:    map[string]string{"app": app.URL},
			}
			tr := lab.NewTraefik(t, lab.TraefikOptions{Args: append([]string{"--accesslog=true", "--accesslog.format=json"}, tt.args...)}, routes.YAML(t))
			for _, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
				if a := client.Get(lab.Request{URL: tr.URL + "/path"}); a.Status != want {
					t.Fatalf("status %d, want %d", a.Status, want)
				}
			}
			filtered := len(tt.args) > 0 && tt.args[0] == "--accesslog.filters.statuscodes=429"
			lines := 2
			if filtered {
				lines = 1
			}
			var entries []entry
			lab.Until(t, "the requests are logged", func() bool {
				entries = logged(tr, "/path")
				return len(entries) >= lines
			})
			if len(entries) != lines {
				t.Fatalf("%d requests are logged, want %d", len(entries), lines)
			}
			refused := entries[lines-1]
			if refused.number("DownstreamStatus") != http.StatusTooManyRequests || refused.number("OriginStatus") != 0 || refused["RouterName"] != "all@file" {
				t.Errorf("logged: %v", refused)
			}
			for field, want := range tt.want {
				if _, is := refused["downstream_"+field]; is != want {
					t.Errorf("%s is logged: %t, want %t; %v", field, is, want, refused)
				}
			}
		})
	}
}
