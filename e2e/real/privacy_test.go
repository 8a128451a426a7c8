package real_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

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
		for _, s := range []string{secret, strings.ToLower(secret), "5345435245542d65336631", "U0VDUkVULWUzZjE"} { // hex, base64
			if strings.Contains(text, s) {
				t.Errorf("%s holds the client's secret as %q", where, s)
			}
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
	var cursor uint64
	for {
		keys, next, err := store.Client().Scan(context.Background(), cursor, "*", 100).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			clean("the key "+key, key+store.Client().Get(context.Background(), key).Val())
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
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
