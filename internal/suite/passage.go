package suite

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
)

// passage is about what reaches the application, and how its answer comes back.
var passage = tests{
	{"the application gets the writer itself", writerUnwrapped},
	{"the application gets the request as it is", requestUntouched},
	{"the body of a refused request is not read", bodyOfRefusedUnread},
	{"a stream is flushed as it is written", streamFlushes},
	{"an upgraded connection counts once", upgradeCountsOnce},
	{"an application may abort its answer", abortPasses},
	{"a refusal of HEAD has no body", headHasNoBody},
}

// writer is a response writer that can do what those of a server can.
type writer struct {
	*httptest.ResponseRecorder
	flushed, hijacked int
}

func (w *writer) Flush() { w.flushed++ }

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.hijacked++
	return nil, nil, errors.New("there is no connection")
}

// eachPassage runs a test once for each way in which a request passes.
func (t *T) eachPassage(run func(t *T, options map[string]any)) {
	t.Helper()
	t.eachWay(func(t *T, options map[string]any, _ string) { run(t, options) })
	t.sub("open", func(t *T) {
		v := t.valkey()
		v.Stop()
		run(t, t.options(v, "onStoreFailure", "open"))
	})
}

func writerUnwrapped(t *T) {
	t.eachPassage(func(t *T, options map[string]any) {
		own := &writer{ResponseRecorder: httptest.NewRecorder()}
		reached := false
		next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			reached = true
			if w != http.ResponseWriter(own) {
				t.Errorf("the application has a %T", w)
			}
			if flusher, ok := w.(http.Flusher); ok {
				flusher.Flush()
			}
			if hijacker, ok := w.(http.Hijacker); ok {
				_, _, _ = hijacker.Hijack()
			}
		})
		t.before(next, t.name(), options).ServeHTTP(own, keyed("key"))
		if !reached || own.flushed != 1 || own.hijacked != 1 {
			t.Errorf("reached %t, flushed %d, hijacked %d", reached, own.flushed, own.hijacked)
		}
	})
}

// unread is a body that nobody but the application may touch.
type unread struct {
	io.Reader
	touched int
}

func (b *unread) Read(p []byte) (int, error) {
	b.touched++
	return b.Reader.Read(p)
}

func (b *unread) Close() error {
	b.touched++
	return nil
}

func requestUntouched(t *T) {
	t.eachPassage(func(t *T, options map[string]any) {
		body := &unread{Reader: strings.NewReader("the body")}
		sent := httptest.NewRequest(http.MethodPost, "/path?q=1", body)
		sent.Body = body
		sent.Header["X-Api-Key"] = []string{" key "}
		sent.Header["X-Forwarded-For"] = []string{"203.0.113.7", "10.0.0.1"}
		before := sent.Header.Clone()
		reached := false
		next := http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			reached = true
			if req != sent || req.Body != io.ReadCloser(body) || body.touched != 0 {
				t.Errorf("another request, or its body was touched %d times", body.touched)
			}
			if len(req.Header) != len(before) || req.Header["X-Api-Key"][0] != " key " || len(req.Header["X-Forwarded-For"]) != 2 {
				t.Errorf("header %v, want %v", req.Header, before)
			}
		})
		t.before(next, t.name(), options).ServeHTTP(httptest.NewRecorder(), sent)
		if !reached {
			t.Error("the request did not pass")
		}
	})
}

func bodyOfRefusedUnread(t *T) {
	t.eachWay(func(t *T, options map[string]any, _ string) {
		h := t.handler(t.name(), with(options, "limit", "1"))
		t.ask(h, "key")
		req := keyed("key")
		body := &unread{Reader: strings.NewReader("the body")}
		req.Body = body
		if got := t.send(h, req); got.status != http.StatusTooManyRequests || body.touched != 0 {
			t.Errorf("%d, the body was touched %d times", got.status, body.touched)
		}
	})
}

func streamFlushes(t *T) {
	t.eachPassage(func(t *T, options map[string]any) {
		more := make(chan struct{})
		next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := 0; i < 3; i++ {
				_, _ = io.WriteString(w, "data: event\n\n")
				w.(http.Flusher).Flush()
				<-more
			}
		})
		server := httptest.NewServer(t.before(next, t.name(), options))
		defer server.Close()
		resp, err := http.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		// Each event arrives before the application goes on.
		lines := bufio.NewScanner(resp.Body)
		for i := 0; i < 3; i++ {
			if !lines.Scan() || lines.Text() != "data: event" || !lines.Scan() {
				t.Errorf("event %d: %q, %v", i, lines.Text(), lines.Err())
			}
			more <- struct{}{}
		}
		if resp.Header.Get("RateLimit-Policy") == "" {
			t.Errorf("header %v", resp.Header)
		}
	})
}

func upgradeCountsOnce(t *T) {
	t.eachPassage(func(t *T, options map[string]any) {
		next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Errorf("taking the connection over: %v", err)
				return
			}
			defer func() { _ = conn.Close() }()
			_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_ = rw.Flush()
			_, _ = io.Copy(conn, rw.Reader)
		})
		server := httptest.NewServer(t.before(next, t.name(), with(options, "limit", "2")))
		defer server.Close()
		for i := 1; i <= 3; i++ {
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: example.com\r\nX-Api-Key: key\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			in := bufio.NewReader(conn)
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if i == 3 && options["onStoreFailure"] != "open" {
				if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
					t.Errorf("the third handshake of two: %s", resp.Status)
				}
				continue
			}
			if resp.StatusCode != http.StatusSwitchingProtocols {
				t.Fatalf("handshake %d: %s", i, resp.Status)
			}
			for frame := 0; frame < 100; frame++ {
				_, _ = io.WriteString(conn, "frame\n")
				if line, err := in.ReadString('\n'); err != nil || line != "frame\n" {
					t.Fatalf("frame %d came back as %q, %v", frame, line, err)
				}
			}
		}
	})
}

func abortPasses(t *T) {
	t.eachPassage(func(t *T, options map[string]any) {
		next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		h := t.before(next, t.name(), options)
		for i := 0; i < 3; i++ {
			if panicked := serve(h, httptest.NewRecorder(), keyed("key")); panicked != http.ErrAbortHandler {
				t.Errorf("the server is told %v", panicked)
			}
		}
	})
}

func headHasNoBody(t *T) {
	server := httptest.NewServer(t.handler(t.name(), t.options(nil, "limit", "1")))
	defer server.Close()
	for _, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		resp, err := http.Head(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != want || len(body) > 0 || err != nil {
			t.Errorf("%s, %q, %v; want %d", resp.Status, body, err, want)
		}
	}
}
