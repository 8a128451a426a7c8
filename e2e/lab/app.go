package lab

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/gorilla/websocket"
)

// App is the application behind the gateways: replicas that know nothing of
// limits and count what reaches them. Any path answers 200, except
//
//	/ws                     echoes WebSocket messages
//	/events?n=10            sends n server-sent events, and waits for NextEvent after each
//	/bytes?n=1000           answers n bytes
//	/echo                   answers the request's own body, and a trailer
type App struct {
	URLs []string // one per replica

	hits   []atomic.Int64
	events chan struct{}
}

// NewApp starts n replicas.
func NewApp(t testing.TB, n int) *App {
	t.Helper()
	a := &App{hits: make([]atomic.Int64, n), events: make(chan struct{})}
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatalf("starting the application: %v", err)
		}
		server := &http.Server{Handler: a.replica(i), ReadHeaderTimeout: patience}
		go func() { _ = server.Serve(l) }()
		t.Cleanup(func() { _ = server.Close() })
		a.URLs = append(a.URLs, "http://"+l.Addr().String())
	}
	return a
}

// Hits returns how many requests reached all replicas.
func (a *App) Hits() int {
	sum := 0
	for i := range a.hits {
		sum += int(a.hits[i].Load())
	}
	return sum
}

// HitsOf returns how many requests reached one replica.
func (a *App) HitsOf(replica int) int { return int(a.hits[replica].Load()) }

func (a *App) replica(i int) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/ws", echoFrames)
	mux.HandleFunc("/events", a.sendEvents)
	mux.HandleFunc("/bytes", sendBytes)
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Trailer")
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
		w.Header().Set("X-Trailer", "sent")
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	id := "app-" + strconv.Itoa(i+1)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.hits[i].Add(1)
		w.Header().Set("X-Instance-ID", id)
		mux.ServeHTTP(w, r)
	})
}

func echoFrames(w http.ResponseWriter, r *http.Request) {
	conn, err := new(websocket.Upgrader).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	for {
		kind, message, err := conn.ReadMessage()
		if err != nil || conn.WriteMessage(kind, message) != nil {
			return
		}
	}
}

func (a *App) sendEvents(w http.ResponseWriter, r *http.Request) {
	n, _ := strconv.Atoi(r.FormValue("n"))
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range n {
		_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		select {
		case <-a.events:
		case <-r.Context().Done():
			return
		}
	}
}

// NextEvent lets the stream of events go on after the event that was just sent.
func (a *App) NextEvent() { a.events <- struct{}{} }

// Pattern fills a buffer with bytes that depend on their place in a stream.
func Pattern(p []byte, offset int) {
	for i := range p {
		p[i] = byte((offset + i) * 31 >> 3)
	}
}

func sendBytes(w http.ResponseWriter, r *http.Request) {
	n, _ := strconv.Atoi(r.FormValue("n"))
	w.Header().Set("Content-Length", strconv.Itoa(n))
	buffer := make([]byte, 64<<10)
	for offset := 0; offset < n; offset += len(buffer) {
		part := buffer[:min(len(buffer), n-offset)]
		Pattern(part, offset)
		if _, err := w.Write(part); err != nil {
			return
		}
	}
}
