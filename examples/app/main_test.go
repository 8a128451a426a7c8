package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestAnswersAsItsInstance(t *testing.T) {
	tests := []struct {
		method, path string
		status       int
		instance     string
	}{
		{"GET", "/", http.StatusOK, "one"},
		{"HEAD", "/", http.StatusOK, "one"},
		{"GET", "/healthz", http.StatusOK, ""},
		{"POST", "/", http.StatusMethodNotAllowed, ""},
		{"POST", "/healthz", http.StatusMethodNotAllowed, ""},
		{"GET", "/other", http.StatusNotFound, ""},
	}
	for _, test := range tests {
		t.Run(test.method+" "+test.path, func(t *testing.T) {
			w := httptest.NewRecorder()
			handler("one").ServeHTTP(w, httptest.NewRequest(test.method, test.path, nil))
			if w.Code != test.status {
				t.Errorf("status %d, want %d", w.Code, test.status)
			}
			if got := w.Header().Get("X-Instance-ID"); got != test.instance {
				t.Errorf("X-Instance-ID %q, want %q", got, test.instance)
			}
		})
	}
}

func TestSpeaksOfNoLimit(t *testing.T) {
	w := httptest.NewRecorder()
	handler("one").ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	for name := range w.Header() {
		if strings.Contains(strings.ToLower(name), "ratelimit") || name == "Retry-After" {
			t.Errorf("the application sets %s", name)
		}
	}
}

func TestTakesItsNameFromTheEnvironment(t *testing.T) {
	t.Setenv("INSTANCE_ID", "seven")
	if id, err := instanceID(); err != nil || id != "seven" {
		t.Errorf("got %q, %v", id, err)
	}
	t.Setenv("INSTANCE_ID", "")
	if id, err := instanceID(); err != nil || id == "" {
		t.Errorf("no host name: got %q, %v", id, err)
	}
}

func TestFinishesARequestUnderWayBeforeItEnds(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	// The signal comes while the request is under way, and the request goes on
	// until the server accepts no further connection.
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stop()
		for {
			conn, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				break
			}
			conn.Close()
		}
		handler("one").ServeHTTP(w, r)
	})
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener, slow) }()

	client := &http.Client{Timeout: 8 * time.Second}
	answer, err := client.Get("http://" + listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "hello from one\n" {
		t.Errorf("got %q, %v", body, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}
