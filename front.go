package gatequota

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/netip"
	"strings"

	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/metrics"
	"github.com/gatequota/gatequota/status"
)

// front is what stands before a middleware where an option asks for it: answers to those
// who watch over the gateway, and what an operator changes while it runs. A handler without
// any of it has none, and nobody pays for what they do not use.
type front struct {
	paths           map[string]bool // that are answered to those who watch
	metrics, status *watch          // nil: none
	control         *limiter.Control
	live            *live
}

// newFront returns nil where nothing stands before the middleware.
func newFront(s *setting, control *limiter.Control, l *live) *front {
	if s.metrics == nil && s.status == nil && control == nil {
		return nil
	}
	if s.metrics != nil || s.status != nil {
		limiter.Watch()
	}
	f := &front{paths: map[string]bool{}, metrics: s.metrics, status: s.status, control: control, live: l}
	if s.metrics != nil {
		f.paths[s.metrics.path] = true
	}
	if s.status != nil {
		f.paths[s.status.path] = true
	}
	return f
}

// attend reports whether a request was served here. The handlers of one limit do by
// themselves what it does, without the call: see middleware.watches and limiter.Yield.
func attend(f *front, w http.ResponseWriter, req *http.Request) bool {
	if f.paths[req.URL.Path] && watched(f, w, req) {
		return true
	}
	if f.control == nil || f.control.Generation.Load() == 0 {
		return false
	}
	serveLive(f.live, w, req)
	return true
}

// watched answers a request for a path that is answered to those who watch, if it comes
// from one of them.
func watched(f *front, w http.ResponseWriter, req *http.Request) bool {
	// An escaped form of the path is another one to whoever guards it by the address.
	if req.Method != http.MethodGet && req.Method != http.MethodHead || req.URL.RawPath != "" {
		return false
	}
	path := req.URL.Path
	switch {
	case f.metrics != nil && path == f.metrics.path && may(f.metrics, req, ""):
		metrics.Serve(w, req, metricsView())
	case f.status != nil && path == f.status.path && may(f.status, req, req.URL.Query().Get("token")):
		status.Serve(w, req, statusView())
	default:
		return false
	}
	return true
}

// may reports whether a request comes from who is answered. Besides in the usual header it
// may show the token as it is.
func may(w *watch, req *http.Request, shown string) bool {
	peer, err := netip.ParseAddrPort(req.RemoteAddr)
	if err != nil {
		return false
	}
	addr := peer.Addr().Unmap().WithZone("")
	allowed := false
	for _, network := range w.allow {
		allowed = allowed || network.Contains(addr)
	}
	if !allowed || w.token == "" {
		return allowed
	}
	if lines := req.Header["Authorization"]; len(lines) == 1 && len(lines[0]) > 7 && strings.EqualFold(lines[0][:7], "Bearer ") {
		shown = lines[0][7:]
	}
	// Digests are compared, so that neither the token nor its length can be felt for.
	want, got := sha256.Sum256([]byte(w.token)), sha256.Sum256([]byte(shown))
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1
}
