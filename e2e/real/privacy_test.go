package real_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// held returns the secrets that a text holds, as they are or in another form.
func held(text string, secrets ...string) []string {
	var found []string
	for _, secret := range secrets {
		digits := hex.EncodeToString([]byte(secret))
		encoded := strings.TrimRight(base64.StdEncoding.EncodeToString([]byte(secret)), "=")
		for _, form := range []string{secret, strings.ToLower(secret), url.QueryEscape(secret), digits, strings.ToUpper(digits), encoded[:len(encoded)-1]} {
			if strings.Contains(text, form) {
				found = append(found, form)
			}
		}
	}
	return found
}

// stored returns all that a store holds.
func stored(t *testing.T, store *lab.Store) string {
	t.Helper()
	var all strings.Builder
	var cursor uint64
	for {
		keys, next, err := store.Client().Scan(context.Background(), cursor, "*", 100).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			fmt.Fprintln(&all, key, store.Client().Get(context.Background(), key).Val())
		}
		if cursor = next; cursor == 0 {
			return all.String()
		}
	}
}

// What a client sends to be told apart is its secret: it stands neither in the
// store, nor in what the store is sent, nor in the log, nor in a refusal; and
// neither does the store's password.
func TestSecretsAreNowhere(t *testing.T) {
	t.Parallel()
	const limit, secret = 5, "SECRET-e3f1"
	store, app, client := lab.Valkey(t, lab.StoreOptions{Password: password}), lab.NewApp(t, 1), lab.NewClient(t)
	proxy := lab.NewProxy(t, store.Addr())
	window, _ := lab.QuietWindow(time.Now())
	// From a file, since Traefik itself logs a plugin's options at DEBUG, as written.
	base := shared(proxy.Addr(), limit, window).with("valkey.passwordFile", lab.PasswordFile(t, password))
	tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "DEBUG"}, byFailure(app, base).yaml(t))
	monitor, _ := store.Monitor()

	clean := func(where, text string) {
		t.Helper()
		if forms := held(text, secret); len(forms) > 0 {
			t.Errorf("%s holds the client's secret as %q", where, forms)
		}
	}
	phase := func(name string) {
		t.Helper()
		for _, way := range []string{"local", "closed", "open"} {
			for _, a := range client.Sequence(lab.Alternate(limit+3, secret, tr.URL+"/"+way)) {
				if a.Status == 0 || a.Status >= 500 && a.Status != http.StatusServiceUnavailable {
					t.Errorf("%s: status %d, %v", name, a.Status, a.Err)
				}
				clean("an answer", fmt.Sprint(a.Header, a.Body))
			}
		}
	}
	phase("up")
	if !strings.Contains(monitor.String(), "rate:local@file:{") {
		t.Fatalf("MONITOR shows no count:\n%s", monitor)
	}
	clean("the store", stored(t, store))
	store.Do("CONFIG", "SET", "maxmemory", "1")
	phase("memory full")
	store.Do("CONFIG", "SET", "maxmemory", "0")
	proxy.Close()
	proxy.Cut()
	phase("down")

	clean("what the store was sent", monitor.String())
	clean("the store's log", store.Log())
	clean("the gateway's log", tr.Log())
	if strings.Contains(tr.Log(), password) {
		t.Error("the store's password is in the gateway's log")
	}
	mustNotPanic(t, tr)
}

// Neither does anything else that tells a client apart, whichever part of a request it
// is, nor what an operator named a client by; and neither does the secret of keys.
func TestWhatTellsClientsApartIsNowhere(t *testing.T) {
	t.Parallel()
	const limit, secret, named, twice = 3, "SECRET-e3f1-b7", "Known-Client-5521", "Known-Client-6632"
	store, app := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1)
	proxy := lab.NewProxy(t, store.Addr())
	window, _ := lab.QuietWindow(time.Now())
	// From a file, since Traefik itself logs a plugin's options at DEBUG, as written.
	base := shared(proxy.Addr(), limit, window).with("valkey.keySecretFile", lab.PasswordFile(t, keySecret))
	by := func(criterion options) options { return base.with("sourceCriterion", criterion) }
	token := bearer(`{"sub":"` + secret + `","plan":"` + secret + `"}`)
	lines := map[string]string{
		"key": "X-API-Key: " + secret, "cookie": "Cookie: a=b; sid=" + secret, "again": "Cookie: sid=" + secret + "; sid=" + secret,
		"token": "Authorization: " + token, "named": "X-API-Key: " + named, "json": "Accept: application/json",
	}
	asks := map[string]struct {
		o     options
		query string
		lines []string
		marks string // statuses that clients have to see, lest this checks nothing
	}{
		"cookie":   {by(options{"cookieName": "sid"}), "", []string{"cookie", "json"}, "200 429"},
		"query":    {by(options{"queryParameter": "key"}), "?key=" + secret, []string{"json"}, "200 429"},
		"claim":    {by(options{"jwtClaim": "sub"}), "", []string{"token"}, "200 429"},
		"together": {by(options{"requestHeaderName": "X-API-Key", "cookieName": "sid", "queryParameter": "key", "jwtClaim": "sub"}).with("onStoreFailure", "closed", "limit", 100), "?key=" + secret, []string{"key", "cookie", "token"}, "200 503"},
		"repeated": {by(options{"cookieName": "sid", "onMissing": "refuse"}), "", []string{"again", "json"}, "400"},
		"dry":      {by(options{"cookieName": "sid"}).with("dryRun", true), "", []string{"cookie"}, "200"},
		"gateway":  {base.with("gatewayLimit.limit", 1, "gatewayLimit.window", window.String()), "", []string{"key", "json"}, "200 503"},
		"several":  {base.with("limit", nil, "window", nil, "limits[0].name", "a", "limits[0].limit", limit, "limits[0].window", window.String(), "limits[1].name", "b", "limits[1].limit", 400, "limits[1].window", "1d"), "", []string{"key", "json"}, "200 429"},
		"plan":     {base.with("plans.claim", "plan", "plans.values.gold.limit", 30), "", []string{"key", "token"}, "200 429"},
		"override": {base.with("overrides[0].value", named, "overrides[0].limit", 1), "", []string{"named", "json"}, "200 429"},
	}
	middlewares := map[string]options{
		// Refused when it is loaded, for what it says of a client.
		"refused": base.with("overrides[0].value", twice, "overrides[0].limit", 1, "overrides[1].value", twice, "overrides[1].limit", 2),
		"pair":    by(options{"requestHost": true, "cookieName": "sid"}).with("overrides[0].value", twice, "overrides[0].limit", 1),
		"address": base.with("sourceCriterion", nil, "overrides[0].value", twice, "overrides[0].limit", 1),
	}
	for name, ask := range asks {
		middlewares[name] = ask.o
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "DEBUG"}, each(app, middlewares).yaml(t))
	monitor, _ := store.Monitor()
	seen := map[string]string{}
	phase := func(phase string) {
		t.Helper()
		for name, ask := range asks {
			for range limit + 2 {
				head := []string{"Host: test"}
				for _, line := range ask.lines {
					head = append(head, lines[line])
				}
				status, answer := rawAnswer(t, lab.Address(t, tr.URL), "GET /"+name+ask.query+" HTTP/1.1\r\n"+strings.Join(head, "\r\n")+"\r\nConnection: close\r\n\r\n")
				if !strings.Contains(seen[name], status) {
					seen[name] += status + " "
				}
				if forms := held(answer, secret, token, named, keySecret); len(forms) > 0 {
					t.Errorf("%s, %s: an answer holds %q:\n%s", phase, name, forms, answer)
				}
			}
		}
	}
	phase("up")
	all := stored(t, store)
	proxy.Close()
	proxy.Cut()
	phase("down")
	for name, ask := range asks {
		for _, status := range strings.Fields(ask.marks) {
			if !strings.Contains(seen[name], status) {
				t.Errorf("%s: the clients saw %s, want %s; %s", name, seen[name], ask.marks, tr.RouterError(name+"@file"))
			}
		}
	}
	for _, refused := range []string{"refused", "pair", "address"} {
		if got := tr.RouterError(refused + "@file"); !strings.Contains(got, "overrides[") || len(held(got, twice)) > 0 {
			t.Errorf("%s: the refusal is %q", refused, got)
		}
	}

	if !strings.Contains(all, "rate:cookie@file:{") || !strings.Contains(monitor.String(), "rate:cookie@file:{") {
		t.Fatalf("the store holds no count:\n%s", all)
	}
	// But for the lines in which Traefik repeats the whole configuration.
	own := strings.Join(slices.DeleteFunc(strings.Split(tr.Log(), "\n"), func(line string) bool {
		return strings.Contains(line, "Configuration received")
	}), "\n")
	if strings.Contains(tr.Log(), named) == strings.Contains(own, named) {
		t.Error("Traefik does not log the options, or does it in other lines than this test knows")
	}
	for where, text := range map[string]string{
		"the store": all, "what the store was sent": monitor.String(), "the store's log": store.Log(), "the gateway's log": own,
	} {
		if forms := held(text, secret, token, named, twice, keySecret); len(forms) > 0 {
			t.Errorf("%s holds %q", where, forms)
		}
	}
	if len(held(tr.Log(), keySecret)) > 0 {
		t.Error("the secret of keys is in the gateway's log")
	}
	mustNotPanic(t, tr)
}

// rawAnswer sends a request byte by byte as it is, and returns the status of the answer
// and the whole of it.
func rawAnswer(t *testing.T, address, request string) (status, answer string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(conn)
	if err != nil || len(text) < 12 {
		t.Fatalf("%q: %q, %v", request, text, err)
	}
	return string(text[9:12]), string(text)
}

// Traefik's API shows a plugin's options as written: a password from a file is not
// among them.
func TestPasswordFromAFileIsNotInTheAPI(t *testing.T) {
	t.Parallel()
	store, app, client := lab.Valkey(t, lab.StoreOptions{Password: password}), lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	o := shared(store.Addr(), 5, window).with("valkey.passwordFile", lab.PasswordFile(t, password+"\n"))
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, only(app, o).yaml(t))
	mustDecide(t, "log-in", client.Sequence(lab.Alternate(3, "key", tr.URL)), "shared")
	for _, path := range []string{"/api/rawdata", "/api/http/middlewares", "/api/http/middlewares/quota@file"} {
		if strings.Contains(tr.Get(path), password) {
			t.Errorf("%s shows the password", path)
		}
	}
}

// rawRequest sends a header value byte by byte as it is, and returns the answer.
func rawRequest(t *testing.T, url, value string) (*http.Response, string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\nX-API-Key: %s\r\n\r\n", value); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%q: %v", value, err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	return resp, string(body)
}

// Values that are meant to break a log line, a terminal or a key.
func TestCraftedValuesStayHarmless(t *testing.T) {
	t.Parallel()
	const limit = 2
	store, app := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1)
	window, id := lab.QuietWindow(time.Now())
	tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "DEBUG"}, only(app, shared(store.Addr(), limit, window)).yaml(t))
	var high strings.Builder
	for b := 0x80; b <= 0xff; b++ {
		high.WriteByte(byte(b))
	}
	values := map[string]string{
		"escape":     "mark\x1b[31mred",
		"encoded":    "mark%0d%0aERR forged line",
		"tab":        "mark\tmark",
		"high bytes": "mark" + high.String(),
		"utf-8":      "mark-Schlüssel-鍵",
		"long":       "mark" + strings.Repeat("A", 4<<10),
		"longer":     "mark" + strings.Repeat("A", 100<<10),
		"lua":        `mark"); redis.call("FLUSHALL") --`,
		"key parts":  "mark:{}:*?[a]",
	}
	for _, end := range []func(){func() {}, store.Kill} {
		end()
		for name, value := range values {
			for i := range limit + 1 {
				resp, body := rawRequest(t, tr.URL, value)
				// Traefik itself refuses control characters.
				wanted := map[bool]int{true: http.StatusOK, false: http.StatusTooManyRequests}[i < limit]
				if name == "escape" {
					wanted = http.StatusBadRequest
				} else if !store.Running() {
					wanted = http.StatusTooManyRequests // it goes on from the shared count
				}
				if resp.StatusCode != wanted {
					t.Errorf("%s, request %d: status %d, want %d", name, i+1, resp.StatusCode, wanted)
				}
				if strings.Contains(fmt.Sprint(resp.Header, body), "mark") {
					t.Errorf("%s: the answer repeats what was sent", name)
				}
			}
			if store.Running() && name != "escape" {
				key := keyOf("quota@file", value, id)
				if got := store.Client().Get(context.Background(), key).Val(); got != "2" {
					t.Errorf("%s: counted %q under %s, want the limit", name, got, key)
				}
			}
		}
	}
	if strings.Contains(tr.Log(), "mark") || strings.Contains(tr.Log(), "forged") {
		t.Error("the log repeats what a client sent")
	}
	mustNotPanic(t, tr)
}
