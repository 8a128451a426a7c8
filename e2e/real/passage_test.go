package real_test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/gatequota/gatequota/e2e/lab"
)

func dialWebSocket(url, key string) (*websocket.Conn, *http.Response, error) {
	return websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(url, "http")+"/ws", http.Header{"X-API-Key": {key}})
}

// A handshake counts once and its frames not at all; beyond the limit a handshake
// gets a plain refusal.
func TestWebSocketsPass(t *testing.T) {
	t.Parallel()
	const limit, frames = 5, 100
	store, app := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1)
	const window = 8 * time.Second
	for mode, o := range map[string]options{"shared": shared(store.Addr(), limit, window), "local": local(limit, window)} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			tr := lab.NewTraefik(t, lab.TraefikOptions{}, only(app, o).yaml(t))
			exchange := func(conn *websocket.Conn) {
				t.Helper()
				for i := range frames {
					sent := fmt.Sprintf("frame %d", i)
					if err := conn.WriteMessage(websocket.TextMessage, []byte(sent)); err != nil {
						t.Fatal(err)
					}
					if _, got, err := conn.ReadMessage(); err != nil || string(got) != sent {
						t.Fatalf("%q came back as %q, %v", sent, got, err)
					}
				}
			}
			id := lab.AwaitRoom(window, window*7/8)
			var conns []*websocket.Conn
			for i := range limit {
				conn, resp, err := dialWebSocket(tr.URL, "key")
				if err != nil {
					t.Fatalf("handshake %d: %v", i+1, err)
				}
				defer func() { _ = conn.Close() }()
				if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("X-RateLimit-Remaining") != fmt.Sprint(limit-1-i) {
					t.Errorf("handshake %d: status %d, %v", i+1, resp.StatusCode, resp.Header)
				}
				conns = append(conns, conn)
				exchange(conn)
			}
			_, resp, err := dialWebSocket(tr.URL, "key")
			if time.Now().UnixNano()/int64(window) != id {
				t.Fatal("the machine was too slow for the window")
			}
			if !errors.Is(err, websocket.ErrBadHandshake) || resp.StatusCode != http.StatusTooManyRequests ||
				resp.Header.Get("Retry-After") == "" || resp.Header.Get("Upgrade") != "" {
				t.Errorf("one too many: %v, %v", err, resp)
			}

			// The sockets outlive the window and cost nothing in the next.
			time.Sleep(lab.UntilEdge(time.Now(), window) + 50*time.Millisecond)
			for _, conn := range conns {
				exchange(conn)
			}
			conn, resp, err := dialWebSocket(tr.URL, "key")
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.Close()
			if got := resp.Header.Get("X-RateLimit-Remaining"); got != fmt.Sprint(limit-1) {
				t.Errorf("in the next window %s remain", got)
			}
		})
	}
}

// Each event arrives before the next one is sent.
func TestServerSentEventsAreNotHeldBack(t *testing.T) {
	t.Parallel()
	app := lab.NewApp(t, 1)
	window, _ := lab.QuietWindow(time.Now())
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, only(app, local(5, window)).yaml(t))
	const events = 10
	resp, err := http.Get(fmt.Sprintf("%s/events?n=%d", tr.URL, events))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("content type %q", got)
	}
	if resp.Header.Get("X-RateLimit-Remaining") != "4" {
		t.Errorf("fields: %v", resp.Header)
	}
	lines := bufio.NewReader(resp.Body)
	for i := range events {
		line, err := lines.ReadString('\n')
		if err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("event %d: %q, %v", i, line, err)
		}
		if blank, _ := lines.ReadString('\n'); blank != "\n" {
			t.Fatalf("event %d ends with %q", i, blank)
		}
		app.NextEvent()
	}
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("after the last event: %q, %v", rest, err)
	}
}

func TestLargeBodiesPassUnchanged(t *testing.T) {
	t.Parallel()
	const size = 50 << 20
	store, app := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1)
	window, _ := lab.QuietWindow(time.Now())
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, only(app, shared(store.Addr(), 5, window)).yaml(t))

	resp, err := http.Get(fmt.Sprintf("%s/bytes?n=%d", tr.URL, size))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	want, got := sha256.New(), sha256.New()
	part := make([]byte, 64<<10)
	for offset := 0; offset < size; offset += len(part) {
		lab.Pattern(part, offset)
		want.Write(part)
	}
	n, err := io.Copy(got, resp.Body)
	if err != nil || n != size || resp.ContentLength != size || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Errorf("%d bytes arrived of %d announced, the right ones: %t; %v", n, resp.ContentLength, bytes.Equal(got.Sum(nil), want.Sum(nil)), err)
	}

	// Up and down again, as it is sent and without a length.
	body := make([]byte, 5<<20)
	_, _ = rand.Read(body)
	resp, err = http.Post(tr.URL+"/echo", "application/octet-stream", io.MultiReader(bytes.NewReader(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	echoed, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(echoed, body) {
		t.Errorf("%d of %d bytes came back, the same: %t; %v", len(echoed), len(body), bytes.Equal(echoed, body), err)
	}
	if resp.Trailer.Get("X-Trailer") != "sent" {
		t.Errorf("trailer: %v", resp.Trailer)
	}
}
