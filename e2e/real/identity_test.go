package real_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// keyedOf returns the key of a client where a secret makes the digests.
func keyedOf(secret, scope, identity string, window int64) string {
	digest := sha256.Sum256([]byte(identity))
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(digest[:])
	return fmt.Sprintf("rate:%s:{%s}:%d", scope, hex.EncodeToString(mac.Sum(nil)), window)
}

// What is expected where a request has no identity.
const (
	uncounted = "uncounted"
	rejected  = "rejected"
)

// An asked is a request with what it is counted as: the text whose digest stands in the
// key.
type asked struct {
	identity string
	from     string // the peer; 127.0.0.1 unless given
	path     string // below that of the middleware
	lines    []string
}

// Each part of a request that can tell clients apart does so on a real gateway, and in
// the store stands its digest alone, under the key that the documentation says.
func TestEveryPartTellsClientsApart(t *testing.T) {
	t.Parallel()
	const limit, address, other = 1000, "\x00address:9:127.0.0.1", "\x00address:9:127.0.0.2"
	store, app := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1)
	window, id := lab.QuietWindow(time.Now())
	by := func(criterion options) options {
		return shared(store.Addr(), limit, window).with("sourceCriterion", criterion)
	}
	token := func(payload string) string { return "Authorization: " + bearer(payload) }
	all := options{
		"requestHeaderNames": []string{"X-B", "X-A"}, "requestHeaderName": "X-C", "requestHost": true, "cookieName": "sid",
		"queryParameter": "key", "pathSegment": 2, "jwtClaim": "sub", "ipStrategy": options{"ipv4Subnet": 31},
	}
	pair := options{"requestHeaderName": "X-API-Key", "cookieName": "sid"}
	long := strings.Repeat("k", 5000)
	missing := func(way string) options { return by(options{"cookieName": "sid", "onMissing": way}) }
	tests := map[string]struct {
		o      options
		secret string
		asks   []asked
	}{
		"cookie": {o: by(options{"cookieName": "sid"}), asks: []asked{
			{"\x00cookie:3:sid:3:abc", "", "", []string{"Cookie: sid=abc"}},
			{"\x00cookie:3:sid:3:abc", "127.0.0.2", "", []string{"Cookie: theme=dark; sid=\"abc\"; x=y"}},
			{"\x00cookie:3:sid:3:abc", "", "", []string{"Cookie: theme=dark", "Cookie: sid=abc"}},
			{"\x00cookie:3:sid:3:ABC", "", "", []string{"Cookie: sid=ABC"}},
			{"\x00cookie:3:sid:9:a:1:b=c,d", "", "", []string{"Cookie: sid=a:1:b=c,d"}},
			{"\x00cookie:3:sid:5000:" + long, "", "", []string{"Cookie: sid=" + long}},
			{address, "", "", nil},
			{address, "", "", []string{"Cookie: sid=a; sid=b"}},
			{address, "", "", []string{"Cookie: sid=a", "Cookie: sid=a"}},
			{address, "", "", []string{"Cookie: SID=abc"}},
			{other, "127.0.0.2", "", []string{"Cookie: sid="}},
		}},
		"query": {o: by(options{"queryParameter": "key"}), asks: []asked{
			{"\x00query:3:key:3:a&b", "", "?key=a%26b", nil},
			{"\x00query:3:key:3:a&b", "127.0.0.2", "?x=1&%6bey=a%26b&y=2", nil},
			// Traefik turns a semicolon into what the application takes it for.
			{"\x00query:3:key:1:a", "", "?x=1;key=a", nil},
			{address, "", "?key=a;key=b", nil},
			{address, "", "?key=a&key=b", nil},
			{address, "", "?Key=a", nil},
			{address, "", "?key=", nil},
			{other, "127.0.0.2", "", nil},
		}},
		"segment": {o: by(options{"pathSegment": 2}), asks: []asked{
			{"\x00segment:2:4:acme", "", "/acme", nil},
			{"\x00segment:2:4:acme", "127.0.0.2", "/acme/orders/1?x=/y", nil},
			{"\x00segment:2:4:acme", "", "/%61cme", nil},
			{"\x00segment:2:4:acme", "", "//acme/", nil},
			{"\x00segment:2:4:acme", "", "/other/../acme", nil},
			{"\x00segment:2:8:acme%2Fx", "", "/acme%2fx", nil},
			{"\x00segment:2:4:ACME", "", "/ACME", nil},
			{address, "", "", nil},
			{address, "", "/", nil},
		}},
		"claim": {o: by(options{"jwtClaim": "sub"}), asks: []asked{
			{"\x00claim:3:sub:5:alice", "", "", []string{token(`{"sub":"alice"}`)}},
			{"\x00claim:3:sub:5:alice", "127.0.0.2", "", []string{token(`{"iat":1,"sub":" \u0061lice "}`)}},
			{"\x00claim:3:sub:2:42", "", "", []string{token(`{"sub":42}`)}},
			{"\x00claim:3:sub:2:42", "", "", []string{token(`{"sub":"42"}`)}},
			{address, "", "", []string{token(`{"sub":["alice"]}`)}},
			{address, "", "", []string{token(`{"sub":"alice"}`), token(`{"sub":"alice"}`)}},
			{address, "", "", []string{"Authorization: Basic YWxpY2U6eA=="}},
			{address, "", "", nil},
		}},
		"pair": {o: by(pair), asks: []asked{
			{"\x00header:9:X-Api-Key:1:kcookie:3:sid:1:c", "", "", []string{"X-API-Key: k", "Cookie: sid=c"}},
			{"\x00header:9:X-Api-Key:1:kcookie:3:sid:1:c", "127.0.0.2", "", []string{"Cookie: sid=c", "x-api-key:  k\t"}},
			{"\x00header:9:X-Api-Key:1:kcookie:3:sid:1:d", "", "", []string{"X-API-Key: k", "Cookie: sid=d"}},
			// What is a separator elsewhere moves nothing from one part to another.
			{"\x00header:9:X-Api-Key:16:kcookie:3:sid:1:cookie:3:sid:1:c", "", "", []string{"X-API-Key: kcookie:3:sid:1:", "Cookie: sid=c"}},
			{"\x00header:9:X-Api-Key:1:kaddress:9:127.0.0.1", "", "", []string{"X-API-Key: k"}},
			{"\x00header:9:X-Api-Key:1:kaddress:9:127.0.0.2", "127.0.0.2", "", []string{"X-API-Key: k", "Cookie: sid=c; sid=c"}},
			{"\x00address:9:127.0.0.1cookie:3:sid:1:c", "", "", []string{"Cookie: sid=c"}},
			{"\x00address:9:127.0.0.1address:9:127.0.0.1", "", "", nil},
		}},
		"everything": {o: by(all), asks: []asked{
			{
				"\x00header:3:X-A:1:aheader:3:X-B:1:bheader:3:X-C:1:chost:4:testcookie:3:sid:1:dquery:3:key:1:esegment:2:1:fclaim:3:sub:1:gaddress:12:127.0.0.2/31",
				"127.0.0.3", "/f?key=e", []string{"X-C: c", "X-B: b", "X-A: a", "Cookie: sid=d", token(`{"sub":"g"}`)},
			},
			{
				"\x00header:3:X-A:1:aheader:3:X-B:1:bheader:3:X-C:1:chost:4:testcookie:3:sid:1:dquery:3:key:1:esegment:2:1:faddress:12:127.0.0.2/31address:12:127.0.0.2/31",
				"127.0.0.2", "/f?key=e", []string{"X-A: a", "X-B: b", "X-C: c", "Cookie: sid=d"},
			},
		}},
		"skip": {o: missing("skip"), asks: []asked{
			{"\x00cookie:3:sid:1:c", "", "", []string{"Cookie: sid=c"}},
			{uncounted, "", "", nil},
			{uncounted, "", "", []string{"Cookie: sid=c; sid=c"}},
		}},
		"refuse": {o: missing("refuse"), asks: []asked{
			{"\x00cookie:3:sid:1:c", "", "", []string{"Cookie: sid=c"}},
			{rejected, "", "", nil},
			{rejected, "", "", []string{"Cookie: sid=c; sid=c"}},
		}},
		"together": {o: missing("shared"), asks: []asked{
			{"\x00cookie:3:sid:1:-", "", "", []string{"Cookie: sid=-"}},
			{"\x00cookie:3:sid:-:", "", "", nil},
			{"\x00cookie:3:sid:-:", "127.0.0.2", "", []string{"Cookie: sid=c; sid=c"}},
		}},
		// The entry point leaves X-Forwarded-For to everybody; the middleware believes
		// some peers alone.
		"trusted": {o: by(options{"ipStrategy": options{"trustedIPs": []string{"127.0.1.0/24", "10.0.0.0/8", "2001:db8:ffff::/48"}}}), asks: []asked{
			{address, "127.0.0.1", "", nil},
			{other, "127.0.0.2", "", []string{"X-Forwarded-For: 203.0.113.7"}},
			{other, "127.0.0.2", "", []string{"X-Forwarded-For: 203.0.113.7, 10.0.0.3"}},
			{"\x00address:9:127.0.2.1", "127.0.2.1", "", []string{"X-Forwarded-For: 127.0.1.1"}},
			{"\x00address:11:203.0.113.7", "127.0.1.1", "", []string{"X-Forwarded-For: 203.0.113.7"}},
			{"\x00address:11:203.0.113.7", "127.0.1.2", "", []string{"X-Forwarded-For: 198.51.100.9, 203.0.113.7, 10.0.0.3"}},
			{"\x00address:11:203.0.113.7", "127.0.1.1", "", []string{"X-Forwarded-For: 203.0.113.7:51000", "X-Forwarded-For: [2001:db8:ffff::2]:443"}},
			{"\x00address:12:198.51.100.9", "127.0.1.1", "", []string{"X-Forwarded-For: 203.0.113.7", "X-Forwarded-For: 198.51.100.9"}},
			{"\x00address:17:2001:db8:0:1::/64", "127.0.1.1", "", []string{"X-Forwarded-For: 2001:db8:0:1::7"}},
			{"\x00address:8:10.0.0.4", "127.0.1.1", "", []string{"X-Forwarded-For: 10.0.0.4, 10.0.0.3"}},
			{"\x00address:9:127.0.1.1", "127.0.1.1", "", nil},
			{"\x00address:9:127.0.1.2", "127.0.1.2", "", []string{"X-Forwarded-For: unknown"}},
			{"\x00address:9:127.0.1.2", "127.0.1.2", "", []string{"X-Forwarded-For: 203.0.113.7, unknown, 10.0.0.3"}},
			{"\x00address:9:127.0.1.2", "127.0.1.2", "", []string{"X-Forwarded-For: , ,"}},
		}},
		"secret": {o: shared(store.Addr(), limit, window).with("valkey.keySecret", keySecret), secret: keySecret, asks: []asked{
			{"key", "", "", []string{"X-API-Key: key"}},
			{"key", "127.0.0.2", "", []string{"X-API-Key: key"}},
			{long, "", "", []string{"X-API-Key: " + long}},
			{address, "", "", nil},
		}},
		"secret-file": {
			o:      by(pair).with("valkey.keySecretFile", lab.PasswordFile(t, " with blanks around it \r\n")),
			secret: " with blanks around it ",
			asks: []asked{
				{"\x00header:9:X-Api-Key:1:kcookie:3:sid:1:c", "", "", []string{"X-API-Key: k", "Cookie: sid=c"}},
			},
		},
	}
	middlewares := map[string]options{}
	for name, test := range tests {
		middlewares[name] = test.o
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{Args: []string{"--entrypoints.web.forwardedheaders.insecure=true"}}, each(app, middlewares).yaml(t))
	want := map[string]int{} // what the store is to have counted
	for name, test := range tests {
		seen := map[string]int{}
		for range 2 { // no request changes who another one is
			for _, ask := range test.asks {
				from := ask.from
				if from == "" {
					from = "127.0.0.1"
				}
				p := peer{lab.Address(t, tr.URL), from}
				a := p.send(t, false, "GET /"+name+ask.path+" HTTP/1.1", append([]string{"Host: test"}, ask.lines...)...)
				got := fmt.Sprintf("%d, %q left", a.Status, a.Header.Get("X-RateLimit-Remaining"))
				expected := `200, "" left`
				switch ask.identity {
				case uncounted:
				case rejected:
					expected = `400, "" left`
				default:
					key := keyOf(name+"@file", ask.identity, id)
					if test.secret != "" {
						key = keyedOf(test.secret, name+"@file", ask.identity, id)
					}
					seen[key]++
					want[key]++
					expected = fmt.Sprintf("200, \"%d\" left", limit-seen[key])
				}
				if got != expected {
					t.Errorf("%s from %s%s %.200q: %s, want %s as %.200q; %s", name, from, ask.path, ask.lines, got, expected, ask.identity, tr.RouterError(name+"@file"))
				}
			}
		}
	}
	for _, key := range store.Keys() {
		if got, err := store.Client().Get(context.Background(), key).Int(); err != nil || got != want[key] {
			t.Errorf("the store has counted %d under %s (%v), want %d", got, key, err, want[key])
		}
		delete(want, key)
	}
	for key, n := range want {
		t.Errorf("the store has no count under %s, want %d", key, n)
	}
	mustNotPanic(t, tr)
}

// documentedCommands returns the commands by which the page on options finds the digests
// of clients, in its order.
func documentedCommands(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(lab.Root(), "docs", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Keys in the store\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var commands []string
	for _, match := range regexp.MustCompile("(?s)```sh\n(.*?)```|`(printf [^`]*sha256sum)`").FindAllStringSubmatch(section, -1) {
		commands = append(commands, strings.TrimSpace(match[1]+match[2]))
	}
	if len(commands) != 3 {
		t.Fatalf("the page has %d commands, want those for a header, with a secret, and for an address: %q", len(commands), commands)
	}
	return commands
}

// A client's digest, found with the commands that the documentation gives, names the
// client in an override and is the one in the client's key.
func TestOverridesByDocumentedDigests(t *testing.T) {
	t.Parallel()
	const limit, special, key = 10, 25, "alice-7f3a"
	store, app := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1)
	window, id := lab.QuietWindow(time.Now())
	find := func(command string) string {
		t.Helper()
		// As a user types it, who has put the values into variables.
		cmd := exec.CommandContext(t.Context(), "bash", "-c", command)
		cmd.Env = append(os.Environ(), "KEY="+key, "SECRET="+keySecret)
		output, err := cmd.Output()
		if digest, _, _ := strings.Cut(strings.TrimSpace(string(output)), " "); err == nil && len(digest) == 64 {
			return digest
		}
		t.Fatalf("%s: %q, %v", command, output, err)
		return ""
	}
	commands := documentedCommands(t)
	base := shared(store.Addr(), limit, window)
	tests := map[string]struct {
		o    options
		hash string
		of   string // the header of the client
	}{
		"plain":   {base, find(commands[0]), "X-API-Key: " + key},
		"keyed":   {base.with("valkey.keySecret", keySecret), find(commands[1]), "X-API-Key: " + key},
		"address": {base.with("sourceCriterion", nil, "ipStrategy.depth", 1), find(commands[2]), "X-Forwarded-For: 203.0.113.7"},
	}
	middlewares := map[string]options{}
	for name, test := range tests {
		middlewares[name] = test.o.with("overrides[0].hash", strings.ToUpper(test.hash), "overrides[0].limit", special)
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{Args: []string{"--entrypoints.web.forwardedheaders.insecure=true"}}, each(app, middlewares).yaml(t))
	for name, test := range tests {
		ask := func(lines ...string) lab.Answer {
			return peer{lab.Address(t, tr.URL), "127.0.0.1"}.send(t, false, "GET /"+name+" HTTP/1.1", append([]string{"Host: test"}, lines...)...)
		}
		for range 2 {
			if a := ask(test.of); a.Status != http.StatusOK || a.Number("X-RateLimit-Limit") != special {
				t.Errorf("%s: %d, limit %d, want %d; %s", name, a.Status, a.Number("X-RateLimit-Limit"), special, tr.RouterError(name+"@file"))
			}
		}
		for _, lines := range [][]string{nil, {"X-API-Key: " + key + "x"}, {"X-API-Key: " + test.hash}, {"X-Forwarded-For: 203.0.113.8"}} {
			if a := ask(lines...); a.Number("X-RateLimit-Limit") != limit {
				t.Errorf("%s, %q: the limit is %d, want %d", name, lines, a.Number("X-RateLimit-Limit"), limit)
			}
		}
		stored := fmt.Sprintf("rate:%s@file:{%s}:%d", name, test.hash, id)
		if got := store.Client().Get(context.Background(), stored).Val(); got != "2" {
			t.Errorf("%s: the count under %s is %q, want 2", name, stored, got)
		}
	}
}
