// Package bodies_test asks what clients see that are refused while they are still
// sending a body. What reads and discards the rest of it is Traefik's HTTP server:
// the plugin has answered by then.
package bodies_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// patience bounds what waits for a gateway: it is long past what any answer takes.
const patience = 20 * time.Second

// gateway starts a Traefik in which each API key has one request in a window.
func gateway(t *testing.T, o lab.TraefikOptions, store *lab.Store, certificate lab.Pair) (*lab.Traefik, *lab.App) {
	t.Helper()
	app := lab.NewApp(t, 1)
	window, _ := lab.QuietWindow(time.Now())
	return lab.NewTraefik(t, o, lab.Routes{
		Routers: map[string]lab.Route{"all": {Rule: "PathPrefix(`/`)", Middlewares: []string{"quota"}, Service: "app"}},
		Middlewares: map[string]lab.Map{"quota": lab.Quota(lab.Map{
			"limit": 1, "window": window.String(), "sourceCriterion": lab.Map{"requestHeaderName": "X-API-Key"},
			"valkey": lab.Map{"endpoints": []string{store.Addr()}, "timeout": "5s", "dialTimeout": "5s"},
		})},
		Services:    map[string]string{"app": app.URLs[0]},
		Certificate: certificate,
	}.YAML(t)), app
}

// spend uses up the quota of a key.
func spend(t *testing.T, tr *lab.Traefik, key string) {
	t.Helper()
	if a := lab.NewClient(t).Get(lab.Keyed(tr.URL, key)); a.Status != http.StatusOK {
		t.Fatalf("the first request of %s: status %d, %v", key, a.Status, a.Err)
	}
}

// upload is a POST that is sent over a socket, byte by byte as it is told.
type upload struct {
	conn  net.Conn
	input *bufio.Reader
}

// begin opens a connection and sends the head of a POST that is answered with its body.
func begin(t *testing.T, tr *lab.Traefik, key string, fields ...string) *upload {
	t.Helper()
	conn, err := net.Dial("tcp", lab.Address(t, tr.URL))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	// A small buffer: what the gateway does not read, the client cannot get rid of.
	if err := errors.Join(conn.SetDeadline(time.Now().Add(patience)), conn.(*net.TCPConn).SetWriteBuffer(32<<10)); err != nil {
		t.Fatal(err)
	}
	u := &upload{conn: conn, input: bufio.NewReader(conn)}
	u.head(t, key, fields...)
	return u
}

func (u *upload) head(t *testing.T, key string, fields ...string) {
	t.Helper()
	head := "POST /echo HTTP/1.1\r\nHost: gateway\r\nX-API-Key: " + key + "\r\n" + strings.Join(fields, "\r\n") + "\r\n\r\n"
	if _, err := io.WriteString(u.conn, head); err != nil {
		t.Fatal(err)
	}
}

// body returns the field that announces a body of a size, and the body as it is sent.
func body(size int, chunked bool) (field string, sent []byte) {
	part := bytes.Repeat([]byte("x"), size)
	if !chunked {
		return fmt.Sprintf("Content-Length: %d", size), part
	}
	var b bytes.Buffer
	for len(part) > 0 {
		n := min(len(part), 8<<10)
		fmt.Fprintf(&b, "%x\r\n%s\r\n", n, part[:n])
		part = part[n:]
	}
	b.WriteString("0\r\n\r\n")
	return "Transfer-Encoding: chunked", b.Bytes()
}

// answer reads an answer to its end.
func (u *upload) answer() (*http.Response, error) {
	resp, err := http.ReadResponse(u.input, &http.Request{Method: http.MethodPost})
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(resp.Body)
	if err == nil && len(text) == 0 {
		err = errors.New("the answer has no body")
	}
	return resp, err
}

// mustRefuse fails the test unless an answer is a whole refusal.
func mustRefuse(t *testing.T, resp *http.Response, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("no answer could be read: %v", err)
	}
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" || resp.Header.Get("RateLimit") == "" {
		t.Errorf("status %d, %v", resp.StatusCode, resp.Header)
	}
}

// reset tells whether an error is how a client learns that the other end has gone.
func reset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// Over HTTP/1.1 the gateway takes up to 256 KiB of a body that nobody wants before it
// answers. Of a larger one it answers first, and soon after that the connection is
// gone, whether or not the client has read the answer.
func TestRefusedBeforeTheBodyWasSent(t *testing.T) {
	t.Parallel()
	tr, app := gateway(t, lab.TraefikOptions{}, lab.Valkey(t, lab.StoreOptions{}), lab.Pair{})
	spend(t, tr, "key")
	for _, size := range []int{1, 64 << 10, 200 << 10, 256<<10 - 1} {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d bytes, chunked: %t, sends first", size, chunked), func(t *testing.T) {
				field, sent := body(size, chunked)
				u := begin(t, tr, "key", field)
				for i := range 3 { // on one connection, which stays open
					if i > 0 {
						u.head(t, "key", field)
					}
					if n, err := u.conn.Write(sent); err != nil {
						t.Fatalf("after %d bytes of the body: %v", n, err)
					}
					resp, err := u.answer()
					mustRefuse(t, resp, err)
					if resp.Close {
						t.Error("the connection is closed")
					}
				}
			})
		}
	}
	const large, tries = 4 << 20, 3
	for _, chunked := range []bool{false, true} {
		field, sent := body(large, chunked)
		t.Run(fmt.Sprintf("4 MiB, chunked: %t, sends first", chunked), func(t *testing.T) {
			seen := map[string]int{}
			for range tries {
				u := begin(t, tr, "key", field)
				n, err := u.conn.Write(sent)
				if err == nil {
					t.Fatal("the gateway took all of a body that nobody wanted")
				}
				if !reset(err) {
					t.Fatalf("after %d bytes of the body: %v", n, err)
				}
				// The answer may still lie in the client's own buffer, or be lost.
				switch resp, err := u.answer(); {
				case err == nil:
					mustRefuse(t, resp, nil)
					seen["a reset, then the 429"]++
				case reset(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
					seen["a reset alone"]++
				default:
					t.Errorf("after the reset: %v", err)
				}
			}
			t.Log(seen)
		})
		t.Run(fmt.Sprintf("4 MiB, chunked: %t, reads while it sends", chunked), func(t *testing.T) {
			for range tries {
				u := begin(t, tr, "key", field)
				done := make(chan error, 1)
				go func() {
					_, err := u.conn.Write(sent)
					done <- err
				}()
				resp, err := u.answer()
				mustRefuse(t, resp, err)
				if !resp.Close {
					t.Error("the answer does not say that the connection is closed")
				}
				_ = u.conn.Close()
				if err := <-done; err == nil {
					t.Error("all of the body could be sent")
				}
			}
		})
	}
	if got := app.Hits(); got != 1 {
		t.Errorf("%d requests reached the application, want 1", got)
	}
}

// Whoever asks first is refused without being asked for the body.
func TestRefusedInPlaceOfContinue(t *testing.T) {
	t.Parallel()
	tr, app := gateway(t, lab.TraefikOptions{}, lab.Valkey(t, lab.StoreOptions{}), lab.Pair{})
	// Within the limit the body is asked for.
	field, sent := body(200<<10, false)
	u := begin(t, tr, "key", field, "Expect: 100-continue")
	if resp, err := http.ReadResponse(u.input, nil); err != nil || resp.StatusCode != http.StatusContinue {
		t.Fatalf("the first answer is %v, %v", resp, err)
	}
	if _, err := u.conn.Write(sent); err != nil {
		t.Fatal(err)
	}
	if resp, err := u.answer(); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("within the limit: %v, %v", resp, err)
	}
	for _, size := range []int{1, 200 << 10, 4 << 20} {
		for _, chunked := range []bool{false, true} {
			field, _ := body(size, chunked)
			u := begin(t, tr, "key", field, "Expect: 100-continue")
			line, err := u.input.Peek(len("HTTP/1.1 429"))
			if err != nil || string(line) != "HTTP/1.1 429" {
				t.Fatalf("%d bytes, chunked: %t: the answer begins with %q, %v", size, chunked, line, err)
			}
			resp, err := u.answer()
			mustRefuse(t, resp, err)
			if !resp.Close {
				t.Error("the answer does not say that the connection is closed")
			}
		}
	}
	if got := app.Hits(); got != 1 {
		t.Errorf("%d requests reached the application, want 1", got)
	}
}

// Over HTTP/2 one stream ends and the connection stays: the refusal is always read,
// however large the body and however slowly it comes.
func TestRefusedOverHTTP2(t *testing.T) {
	t.Parallel()
	authority := lab.NewAuthority(t)
	args, address := lab.SecureEntryPoint(t)
	_, app := gateway(t, lab.TraefikOptions{Args: args}, lab.Valkey(t, lab.StoreOptions{}), authority.Issue(t, "gateway", "127.0.0.1"))
	client := lab.NewSecureClient(t, authority)
	connections := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if !info.Reused {
			connections++
		}
	}})
	post := func(body io.Reader) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+"/echo", body)
		if err != nil {
			return nil, err
		}
		req.Header.Set("X-API-Key", "key")
		resp, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.ProtoMajor != 2 {
			t.Errorf("the answer came over %s", resp.Proto)
		}
		_, err = io.ReadAll(resp.Body)
		return resp, err
	}
	if resp, err := post(strings.NewReader("small")); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("within the limit: %v, %v", resp, err)
	}
	for _, size := range []int{64 << 10, 200 << 10, 4 << 20} {
		for range 5 {
			resp, err := post(bytes.NewReader(make([]byte, size)))
			mustRefuse(t, resp, err)
		}
	}
	for range 3 {
		// One byte, and then nothing more until the answer is there.
		slow, feed := io.Pipe()
		go func() { _, _ = feed.Write([]byte("x")) }()
		resp, err := post(slow)
		mustRefuse(t, resp, err)
		_ = feed.Close()
	}
	if connections != 1 {
		t.Errorf("%d connections, want 1", connections)
	}
	if got := app.Hits(); got != 1 {
		t.Errorf("%d requests reached the application, want 1", got)
	}
}

// A body that trickles in: one of 256 KiB and more is refused at once; a smaller
// one, and one of unknown length, when it has come, or when the entry point's
// readTimeout is over.
func TestRefusedWhileTheBodyTricklesIn(t *testing.T) {
	t.Parallel()
	store := lab.Valkey(t, lab.StoreOptions{})
	t.Run("large", func(t *testing.T) {
		t.Parallel()
		tr, _ := gateway(t, lab.TraefikOptions{}, store, lab.Pair{})
		spend(t, tr, "large")
		// Nothing more is sent than a byte, and the time for it is longer than the test.
		if entry := tr.Get("/api/entrypoints/web"); !strings.Contains(entry, `"readTimeout":"1m0s"`) {
			t.Errorf("the entry point: %s", entry)
		}
		for _, size := range []int{256 << 10, 4 << 20} {
			u := begin(t, tr, "large", fmt.Sprintf("Content-Length: %d", size))
			if _, err := io.WriteString(u.conn, "x"); err != nil {
				t.Fatal(err)
			}
			resp, err := u.answer()
			mustRefuse(t, resp, err)
		}
	})
	for name, fields := range map[string][2]string{
		"small":   {"Content-Length: 65536", "x"},
		"chunked": {"Transfer-Encoding: chunked", "1\r\nx\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const readTimeout = 2 * time.Second
			tr, _ := gateway(t, lab.TraefikOptions{Args: []string{
				"--entrypoints.web.transport.respondingtimeouts.readtimeout=" + readTimeout.String(),
			}}, store, lab.Pair{})
			spend(t, tr, name)
			started := time.Now()
			u := begin(t, tr, name, fields[0])
			stop, stopped := make(chan struct{}), make(chan int)
			go func() { // a byte, and another one, for as long as no answer comes
				sent := 0
				defer func() { stopped <- sent }()
				for ; sent < 1000; sent++ {
					if _, err := io.WriteString(u.conn, fields[1]); err != nil {
						return
					}
					select {
					case <-stop:
						return
					case <-time.After(20 * time.Millisecond):
					}
				}
			}()
			resp, err := u.answer()
			waited := time.Since(started)
			close(stop)
			sent := <-stopped
			mustRefuse(t, resp, err)
			if !resp.Close {
				t.Error("the answer does not say that the connection is closed")
			}
			// The server's own clock ends the wait: it began a moment after the request
			// was received and never before the connection was made.
			if waited < readTimeout || sent >= 65536 {
				t.Errorf("refused after %v and %d bytes, before the body or the time was over", waited, sent)
			}
			t.Logf("refused after %v and %d bytes", waited.Round(time.Millisecond), sent)
		})
	}
}

// However many refused clients keep a body open, the plugin has none of them in hand,
// and the store has no more connections.
func TestSlowSendersHoldNothingOfOurs(t *testing.T) {
	t.Parallel()
	const senders = 50
	store := lab.Valkey(t, lab.StoreOptions{})
	tr, app := gateway(t, lab.TraefikOptions{Args: []string{"--accesslog=true", "--accesslog.format=json"}}, store, lab.Pair{})
	spend(t, tr, "key")
	goroutines, clients := tr.PluginGoroutines(), store.Clients()

	slow := make([]*upload, senders)
	for i := range slow {
		slow[i] = begin(t, tr, "key", "Content-Length: 65536")
		if _, err := io.WriteString(slow[i].conn, "x"); err != nil {
			t.Fatal(err)
		}
	}
	// Traefik logs a request when all middlewares have returned.
	mark := func(status int) int {
		n := 0
		for _, line := range tr.LogLines(`"RequestPath":"/echo"`) {
			if strings.Contains(line, fmt.Sprintf(`"DownstreamStatus":%d`, status)) {
				n++
			}
		}
		return n
	}
	lab.Until(t, "all are refused", func() bool { return mark(http.StatusTooManyRequests) == senders })
	if got := tr.PluginGoroutines(); got > goroutines {
		t.Errorf("%d goroutines in the plugin, %d before", got, goroutines)
	}
	if got := store.Clients(); got != clients {
		t.Errorf("%d connections to the store, %d before", got, clients)
	}

	// One that is allowed is in hand until it ends, and holds no connection either.
	allowed := begin(t, tr, "another", "Content-Length: 65536")
	lab.Until(t, "a request is on its way to the application", func() bool { return tr.PluginGoroutines() > goroutines })
	if got := store.Clients(); got != clients {
		t.Errorf("%d connections to the store, %d before", got, clients)
	}
	if _, err := allowed.conn.Write(make([]byte, 65536)); err != nil {
		t.Fatal(err)
	}
	if resp, err := allowed.answer(); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("the allowed one: %v, %v", resp, err)
	}

	// They end as they please: by sending the rest, or by going away.
	for i, u := range slow {
		if i%2 == 0 {
			_ = u.conn.Close()
			continue
		}
		if _, err := u.conn.Write(make([]byte, 65535)); err != nil {
			t.Fatal(err)
		}
		resp, err := u.answer()
		mustRefuse(t, resp, err)
	}
	lab.Until(t, "the plugin is at rest", func() bool { return tr.PluginGoroutines() <= goroutines })
	if got := app.Hits(); got != 2 {
		t.Errorf("%d requests reached the application, want 2", got)
	}
}
