// Command app is the application of the examples. It knows nothing of rate
// limits: it says which instance answered, and whether it is alive.
//
//	GET /         200, X-Instance-ID and a line of text
//	GET /healthz  200
//
// It listens on ADDR (default ":8080") and calls itself INSTANCE_ID (default:
// the host name, which Docker makes different in each replica). On SIGINT or
// SIGTERM it finishes the requests under way, for at most ten seconds.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// grace is how long requests under way may take after a signal. It is Docker's
// own patience: after ten seconds it kills what it asked to stop.
const grace = 10 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	id, err := instanceID()
	if err != nil {
		return err
	}
	addr := os.Getenv("ADDR")
	if addr == "" {
		addr = ":8080"
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	log.Printf("instance %s listens on %s", id, listener.Addr())
	return serve(ctx, listener, handler(id))
}

// serve answers on the listener until ctx ends, then finishes the requests
// under way. It returns nil after an orderly end.
func serve(ctx context.Context, listener net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}

	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()

	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}

	ending, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if err := server.Shutdown(ending); err != nil {
		return fmt.Errorf("finishing the requests under way: %w", err)
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func instanceID() (string, error) {
	if id := os.Getenv("INSTANCE_ID"); id != "" {
		return id, nil
	}
	return os.Hostname()
}

// handler answers as the named instance.
func handler(id string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			http.NotFound(w, r)
			return
		}
		if !readOnly(w, r) {
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Instance-ID", id)
		fmt.Fprintf(w, "hello from %s\n", id)
	})
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		if !readOnly(w, r) {
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// readOnly reports whether the method is one that the application answers, and
// answers 405 itself where it is not.
func readOnly(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", "GET, HEAD")
	http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
	return false
}
