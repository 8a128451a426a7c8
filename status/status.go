// Package status shows an operator how this gateway fares: a page for the browser, and the
// same as JSON. It decides nothing about who may see it.
package status

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/tally"
)

// A View is what only the middlewares in force know: what stands in the options, and what
// has become of it by live control. The rest is asked for where it is counted.
type View struct {
	Gateway string    // the id under which the gateway announces itself: 16 hexadecimal digits
	Host    string    // the name of the machine
	Started time.Time // when the plugin was loaded
	Scopes  []Scope   // that middlewares in force count in
}

// A Scope is one that middlewares in force count in.
type Scope struct {
	Name string
	// Share is what this gateway lets pass alone of what is left to a client while the
	// store is away, such as 1/2, or the most requests that it does. "" where there is no
	// store.
	Share   string
	Control *Control // as last read; nil: there is no live control
	Limits  []Limit  // in force, with what live control has changed, in the order in which they are shown
}

// A Control is what a scope's live control says.
type Control struct {
	Version int64   `json:"version"`
	Age     float64 `json:"age"` // seconds since it was read; negative: never yet
	Enabled bool    `json:"enabled"`
	DryRun  bool    `json:"dryRun"`
	Allows  int     `json:"allows"` // clients with limits of their own
	Blocks  int     `json:"blocks"` // clients that are blocked
}

// A Limit is one in force.
type Limit struct {
	Middleware     string `json:"middleware"` // as Traefik names it: quota@file
	Rule           string `json:"rule"`       // "" is the top level
	Count          string `json:"count"`      // the name in keys; "" is one too
	Algorithm      string `json:"algorithm"`  // as in the option
	Limit          int64  `json:"limit"`
	Window         int64  `json:"window"`         // seconds
	Burst          int64  `json:"burst"`          // tokens of a bucket; else 0
	OnStoreFailure string `json:"onStoreFailure"` // local, open or closed; "" where there is no store
	DryRun         bool   `json:"dryRun"`
}

// How many clients of each count are shown, and how long they are good for those who ask
// meanwhile: to find them is to walk over all that the gateway holds.
const (
	nearestShown = 10
	nearestGood  = 2 * time.Second
)

// Serve answers a request for the status, GET or HEAD, from whom may see it: with JSON who
// accepts that and no HTML or asks for ?format=json, and with the page who does not.
func Serve(w http.ResponseWriter, req *http.Request, v *View) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Content-Security-Policy", policy)
	if !wantsJSON(req) {
		header.Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(http.StatusOK)
		if req.Method != http.MethodHead {
			_, _ = io.WriteString(w, Page)
		}
		return
	}
	header.Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if req.Method == http.MethodHead {
		return
	}
	now := time.Now()
	text, err := encode(compose(v, now, limiter.Reports(), nearest(now, limiter.Nearest), tally.All()))
	if err != nil {
		text = []byte("{}\n") // it is made of numbers and strings, which have a form
	}
	_, _ = w.Write(text)
}

// wantsJSON tells programs from browsers, which accept HTML before all else.
func wantsJSON(req *http.Request) bool {
	if format := req.URL.Query().Get("format"); format != "" {
		return format == "json"
	}
	accepted := strings.Join(req.Header["Accept"], ",")
	return strings.Contains(accepted, "application/json") && !strings.Contains(accepted, "text/html")
}

func encode(s *status) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(s)
	return text.Bytes(), err
}

var (
	nearestMu   sync.Mutex
	nearestAt   time.Time
	nearestLast []limiter.ClientReport
)

// nearest returns the clients nearest to their limits, found by walk at most every two
// seconds, however many ask.
func nearest(now time.Time, walk func(most int) []limiter.ClientReport) []limiter.ClientReport {
	nearestMu.Lock()
	defer nearestMu.Unlock()
	if nearestAt.IsZero() || now.Sub(nearestAt) >= nearestGood {
		nearestLast = walk(nearestShown)
		nearestAt = now
	}
	return nearestLast
}
