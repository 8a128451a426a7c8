// Package recipes_test plays what docs/recipes.md promises, with the page's own
// configurations, in one real gateway.
package recipes_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// script is what is asked of a recipe, in this order.
type script struct {
	name   string
	window time.Duration // shorter than a minute: the script begins when half of it is left
	host   string
	steps  []step
	down   []step // asked when the store is gone
	also   func(t *testing.T, s *site)
}

var (
	key      = map[string]string{"X-API-Key": "key"}
	crossing = with(key, "Origin", "https://spa.example.com")
	question = map[string]string{"Origin": "https://spa.example.com", "Access-Control-Request-Method": "GET"}
	uncounts = map[string]string{"RateLimit": none, "RateLimit-Policy": none, "X-RateLimit-Decision": none, "X-RateLimit-Remaining": none}
)

// with returns a header with more fields.
func with(header map[string]string, more ...string) map[string]string {
	all := map[string]string{}
	for name, value := range header {
		all[name] = value
	}
	for i := 0; i < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

func apiKey(of string) map[string]string { return map[string]string{"X-API-Key": of} }

func token(claims string) map[string]string {
	return map[string]string{"Authorization": bearer(claims, "right")}
}

// digest returns what stands for a header's value in a key of the store.
func digest(of string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(of))) }

func agent(name string) map[string]string { return map[string]string{"User-Agent": name} }

const (
	anna  = `{"tenant":"acme","sub":"anna"}`
	bert  = `{"tenant":"acme","sub":"bert"}`
	carol = `{"tenant":"globex","plan":"premium","sub":"carol"}`
)

var scripts = []script{
	{
		name: "services", host: "shop.example.com",
		steps: []step{{want: "200: 1", hits: "1"}},
	},
	{
		name: "login", host: "shop.example.com",
		steps: []step{
			// Five attempts in as many spellings.
			{method: "POST", target: "/login", from: "203.0.113.1", want: "200: 1", hits: "1", fields: map[string]string{"X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "4", "RateLimit-Policy": `~"shop-quota@file:login";q=5;w=60`}},
			{method: "POST", target: "//login", from: "203.0.113.1", want: "200: 1"},
			{method: "POST", target: "/login/", from: "203.0.113.1", want: "200: 1"},
			{method: "POST", target: "/%6Cogin", from: "203.0.113.1", want: "200: 1"},
			{method: "post", target: "/x/../login?again", from: "203.0.113.1", want: "200: 1"},
			{method: "POST", target: "//login/", from: "203.0.113.1", want: "429: 1", hits: "0", fields: map[string]string{"Retry-After": some, "X-RateLimit-Decision": "shared"}},
			{method: "POST", target: "/login;x=1", from: "203.0.113.1", want: "429: 1", hits: "0"},
			// An address that the client writes itself stands left of the true one.
			{n: 3, method: "POST", target: "/login", from: "198.51.100.%d, 203.0.113.1", want: "429: 3"},
			{method: "POST", target: "/login", from: "203.0.113.2", want: "200: 1"},
			// The rest of the site has its own count, to which other spellings belong as well: of
			// those above /login/ and /login;x=1, since Traefik itself cleans the others.
			{target: "/login", from: "203.0.113.1", want: "200: 1", fields: map[string]string{"X-RateLimit-Limit": "600", "X-RateLimit-Remaining": "597"}},
			{n: 5, method: "POST", target: "/login", from: "203.0.113.4", want: "200: 5"},
			{target: "/login", from: "203.0.113.4", want: "200: 1", fields: map[string]string{"X-RateLimit-Remaining": "599"}},
			{n: 601, target: "/", from: "203.0.113.3", want: "200: 600, 429: 1", hits: "600"},
			{n: 6, method: "POST", target: "/login", from: "203.0.113.3", want: "200: 5, 429: 1"},
			// Without the load balancer nobody chooses an address.
			{n: 6, method: "POST", target: "/login", header: map[string]string{"X-Forwarded-For": "192.0.2.%d"}, want: "200: 5, 429: 1"},
			// A network of IPv6 is one client.
			{n: 6, method: "POST", target: "/login", from: "2001:db8:0:1::%d", want: "200: 5, 429: 1"},
			// Guessing from everywhere at once.
			{n: 300, method: "POST", target: "/login", from: "2001:db8:%d::1", want: "200: 300", fields: map[string]string{"X-RateLimit-Dry-Run": "refused"}},
		},
		down: []step{
			{n: 3, method: "POST", target: "/login", from: "203.0.113.77", want: "503: 3", hits: "0", fields: map[string]string{"Retry-After": some, "X-RateLimit-Decision": "~closed"}},
			{from: "203.0.113.77", want: "200: 1", fields: map[string]string{"X-RateLimit-Decision": "local"}},
		},
		also: func(t *testing.T, s *site) {
			// Four attempts half a minute ago count, whatever window on the clock they were in.
			log := fmt.Sprintf("rate:shop-quota@file:login:log:{%s}:60", digest("\x00address:11:203.0.113.8"))
			for n := range 4 {
				s.store.Do("ZADD", log, time.Now().Add(-30*time.Second).UnixMilli(), fmt.Sprint("earlier-", n))
			}
			s.store.Do("EXPIRE", log, 60)
			s.play(t, "shop.example.com", step{n: 2, method: "POST", target: "/login", from: "203.0.113.8", want: "200: 1, 429: 1"})
			if lines := s.tr.LogLines("middleware login-alarm@file: dry run:"); len(lines) != 1 || !strings.Contains(lines[0], "1 of 301 requests would have been refused") {
				t.Errorf("the log says of the alarm: %q", lines)
			}
		},
	},
	{
		name: "plans", host: "api.example.com",
		steps: []step{
			{n: 101, header: apiKey("silver-dora-%d"), want: "200: 100, 429: 1", hits: "100", fields: map[string]string{"X-RateLimit-Limit": "100"}},
			{n: 1001, header: apiKey("gold-emil-%d"), want: "200: 1000, 429: 1", hits: "1000", fields: map[string]string{"X-RateLimit-Limit": "1000", "RateLimit-Policy": `"api-quota@file";q=1000;w=3600`}},
			// Another plan for the same customer keeps the count.
			{header: apiKey("gold-dora-1"), want: "200: 1", fields: map[string]string{"X-RateLimit-Limit": "1000"}},
			{n: 102, header: apiKey("silver-acme-1"), want: "200: 102", fields: map[string]string{"X-RateLimit-Limit": "20000", "X-RateLimit-Remaining": "19898"}},
			// What the client says of itself does not count, with and without a plan of its own.
			{header: with(apiKey("silver-finn-1"), "X-Plan", "gold", "X-Customer", "acme"), want: "200: 1", fields: map[string]string{"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "99"}},
			{header: with(apiKey("none-gina-1"), "X-Plan", "gold"), want: "200: 1", fields: map[string]string{"X-RateLimit-Limit": "100"}},
			{header: with(apiKey("wrong"), "X-Customer", "finn"), want: "401: 1", hits: "0", fields: uncounts},
			{header: apiKey("silver-finn-1"), want: "200: 1", fields: map[string]string{"X-RateLimit-Remaining": "98"}},
			// Public, and outside of any plan.
			{n: 61, target: "/public/x", from: "203.0.113.1", header: map[string]string{"X-Plan": "gold", "X-Customer": "acme"}, want: "200: 60, 429: 1", fields: map[string]string{"X-RateLimit-Limit": "60"}},
			{target: "/public/x", from: "203.0.113.2", want: "200: 1"},
		},
		also: func(t *testing.T, s *site) {
			if counted := s.store.Sum("rate:api-quota@file:{" + digest("acme") + "}:*"); counted != 102 {
				t.Errorf("of the customer acme the store has counted %d", counted)
			}
		},
	},
	{
		name: "tenants", host: "saas.example.com",
		steps: []step{
			{n: 30, header: token(anna), want: "200: 30"},
			{n: 31, header: token(bert), want: "200: 30, 429: 1", fields: map[string]string{"X-RateLimit-Limit": "60"}},
			{n: 301, header: token(carol), want: "200: 300, 429: 1", fields: map[string]string{"X-RateLimit-Limit": "300"}},
			{header: map[string]string{"Authorization": bearer(`{"tenant":"initech"}`, "wrong")}, want: "401: 1", hits: "0", fields: uncounts},
			{header: token(`{"tenant":"initech"}`), want: "200: 1", fields: map[string]string{"X-RateLimit-Remaining": "59"}},
			{header: token(`{"tenant":7}`), want: "200: 1"},
			{header: token(`{"sub":"anna"}`), want: "400: 1", hits: "0"},
			{header: token(`{"org":{"tenant":"acme"}}`), want: "400: 1", hits: "0"},
		},
	},
	{
		name: "offices", host: "desk.example.com",
		steps: []step{
			{n: 61, from: "203.0.113.1", header: map[string]string{"Cookie": "session=one"}, want: "200: 60, 429: 1", fields: map[string]string{"RateLimit-Policy": `"desk-address@file";q=300;w=60, "desk-session@file";q=60;w=60`}},
			// The refused one was counted for the address.
			{n: 240, from: "203.0.113.1", header: map[string]string{"Cookie": "session=%d"}, want: "200: 239, 429: 1"},
			{from: "203.0.113.2", header: map[string]string{"Cookie": "session=one"}, want: "200: 1"},
			// Without a cookie, and with two.
			{n: 30, from: "203.0.113.3", want: "200: 30"},
			{n: 31, from: "203.0.113.3", header: map[string]string{"Cookie": "session=%d; session=x"}, want: "200: 30, 429: 1"},
			{n: 310, from: "203.0.113.7", header: map[string]string{"Cookie": "session=%d"}, want: "200: 310", fields: map[string]string{"RateLimit-Policy": `~"desk-address@file";q=6000;w=60`}},
			{n: 310, from: "198.51.100.3", header: map[string]string{"Cookie": "session=one"}, want: "200: 310", fields: uncounts},
		},
	},
	{
		name: "crawlers", host: "news.example.com",
		steps: []step{
			// A crawler that says who it is, from all over its network, and somebody else in its name.
			{n: 61, target: "/page/%d", from: "203.0.115.%d", header: agent("ExampleBot/1.0"), want: "200: 60, 429: 1", hits: "60", fields: map[string]string{"RateLimit-Policy": `"news-quota@file";q=300;w=60, "crawler-quota@file";q=60;w=60`}},
			{n: 5, target: "/robots.txt", from: "203.0.115.1", header: agent("ExampleBot/1.0"), want: "200: 5", fields: uncounts},
			{target: "/page/1", from: "203.0.115.1", header: agent("Other-Spider"), want: "200: 1"},
			{n: 60, target: "/page/%d", from: "203.0.116.%d", header: agent("ExampleBot/1.0"), want: "200: 60"},
			{target: "/page/1", from: "203.0.117.1", header: agent("ExampleBot/1.0"), want: "200: 1"},
			// A new name for each request, and as the feed reader, is worth nothing.
			{n: 301, target: "/page/%d", from: "203.0.120.1", header: agent("bot%d"), want: "200: 300, 429: 1", hits: "300"},
			{n: 5, target: "/page/%d", from: "203.0.120.%d", header: agent("Mozilla/5.%d"), want: "429: 5"},
			{n: 21, target: "/search?q=%d", from: "203.0.120.%d", header: agent("bot%d"), want: "200: 20, 429: 1"},
			{n: 5, target: "/search/%d", from: "203.0.120.1", header: agent("ExampleFeed/2.0"), want: "429: 5"},
			{n: 5, target: "/page/%d", from: "203.0.120.1", header: agent("ExampleFeed/2.0"), want: "429: 5"},
			{n: 31, target: "/feed", from: "203.0.120.%d", header: agent("ExampleFeed/2.0"), want: "200: 30, 429: 1"},
			{target: "/feed/", from: "203.0.120.1", header: agent("ExampleFeed/2.0"), want: "429: 1"},
			{n: 301, target: "/page/%d", from: "2001:db8:0:120::%d", header: agent("bot%d"), want: "200: 300, 429: 1"},
			// A network that does not say who it is.
			{n: 21, target: "/search?q=%d", from: "203.0.113.%d", header: agent("Mozilla/5.0"), want: "200: 20, 429: 1"},
			{target: "/search/", from: "203.0.113.99", header: agent("Mozilla/5.0"), want: "429: 1"},
			{target: "/search", from: "203.0.114.1", header: agent("Mozilla/5.0"), want: "200: 1"},
			{n: 250, target: "/page/%d", from: "203.0.113.%d", header: agent("Mozilla/5.0"), want: "200: 250"},
			{n: 51, target: "/page/%d", from: "203.0.113.%d", header: agent("Mozilla/5.%d"), want: "200: 50, 429: 1"},
			{n: 31, target: "/feed", from: "203.0.113.%d", header: agent("ExampleFeed/2.0"), want: "200: 30, 429: 1", fields: map[string]string{"RateLimit-Policy": `"news-quota@file:feed-reader";q=30;w=60`}},
			{target: "/feed", from: "203.0.113.1", header: agent("ExampleFeed/2.1"), want: "429: 1"}, // by the 300 of the network
		},
	},
	{
		name: "webhooks", host: "hooks.example.com",
		steps: []step{
			{n: 601, method: "POST", target: "/hooks/payments", from: "2001:db8:%d::1", want: "200: 600, 503: 1", hits: "600"},
			{n: 31, method: "POST", target: "/hooks/other", from: "203.0.113.1", want: "200: 30, 503: 1", fields: map[string]string{"Retry-After": some, "X-RateLimit-Decision": "shared"}},
			{method: "POST", target: "/hooks/other", from: "203.0.113.2", want: "200: 1"},
			{n: 40, method: "POST", target: "/hooks/other", from: "192.0.2.17", want: "200: 40", fields: uncounts},
			{method: "POST", target: "/hooks/payments", from: "192.0.2.17", want: "200: 1", fields: uncounts},
		},
	},
	{
		name: "graphql", host: "graph.example.com",
		steps: []step{
			{n: 3, method: "POST", target: "/graphql", header: key, body: "heavy", want: "200: 3", fields: map[string]string{"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "25"}},
			{n: 2, method: "POST", target: "/graphql", header: key, body: "medium", want: "200: 2", fields: map[string]string{"X-RateLimit-Remaining": "15"}},
			{method: "POST", target: "/graphql", header: with(key, "X-Query-Cost", "light"), body: "heavy", want: "429: 1", hits: "0", fields: map[string]string{"X-RateLimit-Remaining": "15"}},
			{n: 16, method: "POST", target: "/graphql", header: with(key, "X-Query-Cost", "heavy"), body: "light", want: "200: 15, 429: 1"},
			{n: 3, target: "/graphql/export", header: apiKey("exporter"), want: "200: 2, 429: 1"},
			{n: 21, method: "POST", target: "/graphql", header: apiKey("medium"), body: "medium", want: "200: 20, 429: 1"},
			{n: 5, method: "POST", target: "/graphql", header: apiKey("heavy"), body: "heavy", want: "200: 4, 429: 1"},
			{n: 101, method: "POST", target: "/graphql", header: apiKey("light"), body: "light", want: "200: 100, 429: 1"},
			// Without a key.
			{n: 3, target: "/graphql/export", from: "203.0.113.1", want: "200: 2, 429: 1"},
			{target: "/graphql/export", from: "203.0.113.2", want: "200: 1"},
			{method: "POST", target: "/graphql", header: apiKey("large"), body: strings.Repeat("x", 65537), want: "401: 1", hits: "0"},
		},
	},
	{
		name: "browsers", host: "spa-api.example.com",
		steps: []step{
			{n: 70, method: "OPTIONS", header: question, want: "200: 70", hits: "0", fields: with(uncounts, "Access-Control-Allow-Origin", "https://spa.example.com")},
			{n: 61, header: crossing, want: "200: 60, 429: 1", fields: map[string]string{
				"Access-Control-Allow-Origin": "https://spa.example.com", "Access-Control-Expose-Headers": "~Retry-After", "Vary": "~Origin", "Retry-After": some,
			}},
			{header: with(crossing, "X-API-Key", "another"), want: "200: 1", fields: map[string]string{"Access-Control-Expose-Headers": "~RateLimit"}},
			{n: 61, from: "203.0.113.1", want: "200: 60, 429: 1"},
			{from: "203.0.113.2", want: "200: 1"},
			{host: "exposed.example.com", header: with(crossing, "X-API-Key", "third"), want: "200: 1", fields: map[string]string{"Access-Control-Expose-Headers": "X-Only"}},
			{host: "widgets.example.com", n: 70, method: "OPTIONS", header: question, want: "200: 70", hits: "70", fields: uncounts},
			{host: "widgets.example.com", from: "203.0.113.1", want: "200: 1", fields: map[string]string{"X-RateLimit-Remaining": "59"}},
			{host: "widgets.example.com", from: "203.0.113.2", want: "200: 1", fields: map[string]string{"X-RateLimit-Remaining": "59"}},
			{host: "widgets.example.com", n: 30, method: "OPTIONS", header: crossing, want: "200: 30", hits: "30"},
			{host: "widgets.example.com", n: 31, header: crossing, want: "200: 30, 429: 1", fields: map[string]string{
				"Access-Control-Allow-Origin": none, "Access-Control-Expose-Headers": "~Retry-After",
			}},
		},
	},
	{
		name: "trial", host: "trial.example.com",
		steps: []step{
			{n: 50, target: "/trial-allowed", from: "203.0.113.1", want: "200: 50", fields: map[string]string{"X-RateLimit-Dry-Run": "allowed", "X-RateLimit-Remaining": "0"}},
			{n: 10, target: "/trial-refused", from: "203.0.113.1", want: "200: 10", hits: "10", fields: map[string]string{"X-RateLimit-Dry-Run": "refused", "RateLimit-Policy": `"trial-quota@file";q=50;w=60`}},
			{n: 6, target: "/login", from: "203.0.113.2", want: "200: 5, 429: 1", hits: "5", fields: map[string]string{"X-RateLimit-Dry-Run": none}},
		},
		down: []step{{n: 60, from: "203.0.113.77", want: "200: 60"}},
		also: func(t *testing.T, s *site) {
			const line = "gatequota: middleware trial-quota@file: dry run: 1 of 51 requests would have been refused"
			if lines := s.tr.LogLines("trial-quota@file: dry run:"); len(lines) != 1 || !strings.Contains(lines[0], line) {
				t.Errorf("the log says of the dry run: %q", lines)
			}
			for path, verdict := range map[string]string{"/trial-allowed": "allowed", "/trial-refused": "refused"} {
				lines := s.tr.LogLines(path)
				marked := slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
					return !strings.Contains(line, `"downstream_X-Ratelimit-Dry-Run":"`+verdict+`"`)
				})
				if len(lines) == 0 || len(marked) != len(lines) {
					t.Errorf("%d of %d lines of the access log say that %s was %s", len(marked), len(lines), path, verdict)
				}
			}
		},
	},
	{
		name: "ratelimit-before", host: "before.example.com",
		steps: []step{
			{header: key, want: "200: 1", fields: map[string]string{"X-RateLimit-Limit": none, "RateLimit": none}},
			// Without the header, all share one bucket.
			{n: 25, from: "203.0.113.1", want: "200: 25"},
		},
		down: []step{{n: 3, header: key, want: "500: 3"}},
		also: func(t *testing.T, s *site) {
			s.bucket(t, "before.example.com", step{header: apiKey("bursting")}, bucket{100. / 60, 50})
			s.bucket(t, "before.example.com", step{from: "203.0.113.2"}, bucket{100. / 60, 25})
			// In memory, each router has a bucket of its own.
			for _, host := range []string{"bucket.example.com", "bucket-two.example.com"} {
				s.bucket(t, host, step{}, bucket{100. / 60, 50})
			}
			s.bucket(t, "bucket-of-one.example.com", step{}, bucket{1, 1})
			// It is forgotten long before it is refilled.
			for until := time.Now().Add(10 * time.Second); s.store.Do("EXISTS", "rate:before@file:bursting") != int64(0); {
				if time.Now().After(until) {
					t.Fatal("the bucket is not forgotten")
				}
				time.Sleep(50 * time.Millisecond)
			}
			s.bucket(t, "before.example.com", step{header: apiKey("bursting")}, bucket{100. / 60, 50})
		},
	},
	{
		name: "ratelimit-after", host: "after.example.com",
		steps: []step{
			{header: key, want: "200: 1", fields: map[string]string{"RateLimit-Policy": `"after@file";q=100;w=60`}},
			{n: 25, from: "203.0.113.1", want: "200: 25"},
		},
		also: func(t *testing.T, s *site) {
			s.bucket(t, "after.example.com", step{header: apiKey("bursting")}, bucket{100. / 60, 50})
			s.bucket(t, "after.example.com", step{from: "203.0.113.2"}, bucket{100. / 60, 25})
		},
		down: []step{{header: apiKey("another"), want: "200: 1", fields: map[string]string{"X-RateLimit-Decision": "local"}}},
	},
	{
		name: "days", host: "data.example.com", window: 10 * time.Second,
		steps: []step{
			{n: 25, header: key, want: "200: 20, 429: 5", fields: map[string]string{
				"RateLimit-Policy": `"data-quota@file:moment";q=20;w=10, "data-quota@file:day";q=1000;w=86400`,
				"RateLimit":        `~"data-quota@file:day";r=980;`, "X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "0",
			}},
			{n: 21, from: "203.0.113.1", want: "200: 20, 429: 1"},
			{from: "203.0.113.2", want: "200: 1"},
		},
		also: func(t *testing.T, s *site) {
			// A client that has made 995 today.
			s.store.Do("SET", fmt.Sprintf("rate:data-quota@file:day:{%s}:%d", digest("diligent"), time.Now().Unix()/86400), 995, "EX", 86400)
			s.play(t, "data.example.com", step{n: 6, header: with(apiKey("diligent"), "Accept", "application/json"), want: "200: 5, 429: 1", fields: map[string]string{
				"RateLimit": `~"data-quota@file:moment";r=15;`, "X-RateLimit-Limit": "1000", "X-RateLimit-Remaining": "0",
			}})
		},
	},
	{
		name: "rate-and-day", host: "feed.example.com",
		steps: []step{
			{header: key, want: "200: 1", fields: map[string]string{
				"RateLimit-Policy": `"feed-rate@file";q=5;w=1, "feed-day@file";q=1000;w=86400`,
				"RateLimit":        `~"feed-day@file";r=999;`, "X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "19",
			}},
		},
		also: func(t *testing.T, s *site) {
			const host = "feed.example.com"
			day := func(key string) string {
				return fmt.Sprintf("rate:feed-day@file:{%s}:%d", digest(key), time.Now().Unix()/86400)
			}
			passed := s.bucket(t, host, step{header: apiKey("bursting")}, bucket{5, 20})
			s.bucket(t, host, step{from: "203.0.113.1"}, bucket{5, 20})
			if counted := s.store.Sum(day("bursting")); counted != passed {
				t.Errorf("of the day %d are used up by %d requests that passed", counted, passed)
			}
			// A client that has made 995 today.
			s.store.Do("SET", day("diligent"), 995, "EX", 86400)
			s.play(t, host, step{n: 6, header: apiKey("diligent"), want: "200: 5, 429: 1", fields: map[string]string{
				"RateLimit": `~"feed-day@file";r=0;`, "X-RateLimit-Limit": "1000", "X-RateLimit-Remaining": "0",
			}})
		},
	},
	{
		name: "weak", host: "legacy.example.com", window: 10 * time.Second,
		steps: []step{
			{n: 90, header: key, want: "200: 60, 429: 30", hits: "60"},
			{n: 2, from: "203.0.113.%d", want: "200: 2", fields: map[string]string{"X-RateLimit-Remaining": "59"}},
			{n: 45, header: apiKey("key-%d"), want: "200: 38, 503: 7", hits: "38", fields: map[string]string{"Retry-After": some, "X-RateLimit-Decision": "gateway"}},
		},
		also: func(t *testing.T, s *site) {
			if counted := s.store.Sum("rate:legacy-quota@file:{*"); counted < 60+40 || counted > 60+30+40 {
				t.Errorf("the store has counted %d requests", counted)
			}
		},
	},
	{
		name: "ingress-nginx", host: "site.example.com",
		steps: []step{
			{from: "203.0.113.1", want: "200: 1", fields: map[string]string{
				"RateLimit-Policy": `"shop-site-quota@file:seconds";q=10;w=1, "shop-site-quota@file:minutes";q=60;w=60`, "X-RateLimit-Decision": "shared",
			}},
			{n: 70, from: "192.0.2.3", want: "200: 70", fields: uncounts},
		},
		also: func(t *testing.T, s *site) {
			s.bucket(t, "site.example.com", step{from: "203.0.113.2", refusal: http.StatusServiceUnavailable}, bucket{10, 50})
		},
	},
}

// besides are middlewares for what the page says and has no configuration for, each on a
// router for the host of its name.
func besides(store string) map[string]lab.Map {
	quota := func(limit int, more lab.Map) lab.Map {
		more["limit"], more["window"] = limit, "1m"
		more["valkey"] = lab.Map{"endpoints": []string{store}}
		return lab.Quota(more)
	}
	byKey := lab.Map{"requestHeaderName": "X-API-Key"}
	behind := lab.Map{"trustedIPs": []string{balancers}}
	secret := quota(60, lab.Map{"sourceCriterion": byKey, "overrides": []lab.Map{
		{"value": "named", "limit": 70}, {"hash": digest("digested"), "limit": 70},
	}})
	at(secret, "plugin", lab.PluginName, "valkey")["keySecret"] = "at least sixteen bytes"
	return map[string]lab.Map{
		"keyed": quota(60, lab.Map{"sourceCriterion": byKey, "ipStrategy": behind}),
		"exempt": quota(60, lab.Map{
			"sourceCriterion": byKey, "ipStrategy": behind, "exempt": lab.Map{"ips": []string{balancers, "192.0.2.16/28"}},
			"rules": []lab.Map{{"name": "own", "path": "/rule", "limit": 5, "sourceCriterion": lab.Map{"cookieName": "session"}}},
		}),
		"secret":  secret,
		"nearby":  quota(60, lab.Map{"sourceCriterion": lab.Map{"cookieName": "session", "ipStrategy": lab.Map{"depth": 0}}}),
		"near":    quota(60, lab.Map{"ipStrategy": lab.Map{"depth": 0}}),
		"doors":   quota(600, lab.Map{"rules": []lab.Map{{"name": "login", "pathRegex": "(?i)^/login$", "limit": 5}}}),
		"dry":     quota(5, lab.Map{"scope": "dry", "dryRun": true, "onStoreFailure": "closed", "sourceCriterion": byKey}),
		"strict":  quota(5, lab.Map{"scope": "dry", "sourceCriterion": byKey}),
		"exposed": {"headers": lab.Map{"accessControlExposeHeaders": []string{"X-Only"}}},
		"bucket":  {"rateLimit": lab.Map{"average": 100, "period": "1m", "burst": 50}},

		"bucket-of-one": {"rateLimit": lab.Map{"average": 1}},
	}
}

// remarks are the scripts of besides.
var remarks = []script{
	{
		name: "a header alone, behind a load balancer", host: "keyed.example.com",
		steps: []step{
			{n: 61, from: "203.0.113.1", want: "200: 60, 429: 1"},
			{n: 61, from: "203.0.113.2", want: "200: 60, 429: 1"},
			{n: 2, from: "192.0.2.%d, 203.0.113.2", want: "429: 2"},
			{from: "203.0.113.2", header: key, want: "200: 1", fields: map[string]string{"X-RateLimit-Remaining": "59"}},
			// The load balancer is in an exempt network, and that exempts nobody behind it.
			{host: "exempt.example.com", n: 70, from: "192.0.2.17", header: key, want: "200: 70", fields: uncounts},
			{host: "exempt.example.com", n: 20, from: "203.0.113.1", header: key, want: "200: 20"},
			{host: "exempt.example.com", n: 20, from: "192.0.2.17, 203.0.113.1", header: key, want: "200: 20"},
			{host: "exempt.example.com", n: 21, from: "unknown", header: key, want: "200: 20, 429: 1"},
			{host: "exempt.example.com", header: with(key, "X-Forwarded-For", "192.0.2.17"), want: "429: 1"},
			// A rule that tells clients apart in its own way has the same addresses.
			{host: "exempt.example.com", n: 6, target: "/rule", from: "203.0.113.1", want: "200: 5, 429: 1"},
			{host: "exempt.example.com", n: 6, target: "/rule", from: "203.0.113.2", want: "200: 5, 429: 1"},
			{host: "exempt.example.com", n: 6, target: "/rule", from: "192.0.2.17", want: "200: 6", fields: uncounts},
		},
	},
	{
		name: "with a secret, the digest of a key is another", host: "secret.example.com",
		steps: []step{
			{header: apiKey("named"), want: "200: 1", fields: map[string]string{"X-RateLimit-Limit": "70"}},
			{header: apiKey("digested"), want: "200: 1", fields: map[string]string{"X-RateLimit-Limit": "60"}},
		},
	},
	{
		name: "without a load balancer, the peer is the client", host: "nearby.example.com",
		steps: []step{
			{n: 61, header: map[string]string{"Cookie": "session=one", "X-Forwarded-For": "192.0.2.%d"}, want: "200: 60, 429: 1"},
			{header: map[string]string{"Cookie": "session=two"}, want: "200: 1"},
			{n: 61, from: "192.0.2.%d", header: map[string]string{"Cookie": "session=one"}, want: "200: 60, 429: 1"},
			{host: "near.example.com", n: 61, header: map[string]string{"X-Forwarded-For": "192.0.2.%d"}, want: "200: 60, 429: 1"},
		},
	},
	{
		name: "other doors to a login", host: "doors.example.com",
		steps: []step{
			{method: "POST", target: "/LOGIN", want: "200: 1"},
			{method: "POST", target: "/login;x=1", want: "200: 1"},
			{method: "POST", target: "/Login/", want: "200: 1"},
			{n: 3, method: "POST", target: "/login;x=%d", want: "200: 2, 429: 1"},
			{method: "POST", target: "/logins", want: "200: 1"},
		},
	},
	{
		name: "a dry run counts", host: "dry.example.com",
		steps: []step{
			{n: 8, header: key, want: "200: 8"},
			{host: "strict.example.com", header: key, want: "429: 1"},
		},
		down: []step{{n: 8, header: apiKey("another"), want: "200: 8"}},
	},
}

// bucket is what a token bucket gains in a second, and what it holds.
type bucket struct{ rate, burst float64 }

// bucket asks until it is refused, and returns how many passed: as many as are in a full
// bucket and come into it meanwhile. Traefik's own advances half a token besides.
func (s *site) bucket(t *testing.T, host string, st step, b bucket) int {
	t.Helper()
	refusal := max(st.refusal, http.StatusTooManyRequests)
	began := time.Now()
	passed := 0
	for n := range 1000 {
		answer := s.ask(t, host, st, n)
		if answer.Status == refusal {
			break
		}
		if answer.Status != http.StatusOK {
			t.Errorf("%s: the answer is %d", host, answer.Status)
		}
		passed++
	}
	most := b.burst + b.rate*time.Since(began).Seconds() + 1
	if float64(passed) < b.burst || float64(passed) > most {
		t.Errorf("%s: %d passed, want %.0f to %.1f", host, passed, b.burst, most)
	}
	return passed
}

func TestEachRecipeDoesWhatThePageSays(t *testing.T) {
	p := readPage(t)
	var played []string
	for _, sc := range scripts {
		played = append(played, sc.name)
	}
	recipes := p.named("recipe")
	slices.Sort(recipes)
	slices.Sort(played)
	if !slices.Equal(recipes, played) {
		t.Fatalf("the page has the recipes %q,\nand scripts are there for %q", recipes, played)
	}

	s := newSite(t, p)
	// Windows of whole minutes begin with one: the scripts that know such alone are played
	// in one, and the others after them.
	minute := lab.AwaitRoom(time.Minute, 20*time.Second)
	all := slices.Concat(remarks, scripts)
	for _, sc := range all {
		t.Run(sc.name, func(t *testing.T) {
			if sc.window > 0 {
				lab.AwaitRoom(sc.window, sc.window/2)
			}
			for _, st := range sc.steps {
				s.play(t, sc.host, st)
			}
			if sc.also != nil {
				sc.also(t, s)
			}
			if sc.window == 0 && time.Now().Unix()/60 != minute {
				t.Log("a minute has ended meanwhile: this machine is too slow for these scripts")
			}
		})
	}
	s.store.Kill()
	for _, sc := range all {
		if len(sc.down) > 0 {
			t.Run(sc.name+" without the store", func(t *testing.T) {
				for _, st := range sc.down {
					s.play(t, sc.host, st)
				}
			})
		}
	}
}
