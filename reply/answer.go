package reply

import (
	"io"
	"net/http"
	"strconv"
)

const (
	refusal     = "Too many requests. Try again later.\n"
	unavailable = "The service is not available now. Try again later.\n"
)

var (
	refusalLength     = strconv.Itoa(len(refusal))
	unavailableLength = strconv.Itoa(len(unavailable))
)

// Refuse answers 429: the client has used its quota, and may come again in
// retryAfter seconds (at least 1). Of the header it sets what belongs to this
// answer, and leaves the rest, the rate-limit fields among it, as it is. The server
// leaves the body out where the request is a HEAD.
func Refuse(f *Fields, w http.ResponseWriter, req *http.Request, retryAfter int64) {
	if retryAfter < 1 {
		retryAfter = 1
	}
	h := w.Header()
	h["Retry-After"] = []string{strconv.FormatInt(retryAfter, 10)}
	h["Cache-Control"] = []string{"no-store"}
	h["Content-Type"] = []string{"text/plain; charset=utf-8"}
	h["Content-Length"] = []string{refusalLength}
	w.WriteHeader(http.StatusTooManyRequests)
	_, _ = io.WriteString(w, refusal)
}

// Unavailable answers 503: requests cannot be counted now, and the middleware is
// set to let none pass uncounted. The client may come again in retryAfter seconds
// (at least 1). For the rest it does as Refuse; it is not written with it as one
// function, since the interpreter would pay for that at each refusal.
func Unavailable(f *Fields, w http.ResponseWriter, req *http.Request, retryAfter int64) {
	if retryAfter < 1 {
		retryAfter = 1
	}
	h := w.Header()
	h["Retry-After"] = []string{strconv.FormatInt(retryAfter, 10)}
	h["Cache-Control"] = []string{"no-store"}
	h["Content-Type"] = []string{"text/plain; charset=utf-8"}
	h["Content-Length"] = []string{unavailableLength}
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, unavailable)
}

// RefuseSeveral is Refuse for several policies, of which those refused that are true in
// refused.
func RefuseSeveral(f *Fields, w http.ResponseWriter, req *http.Request, retryAfter int64, refused []bool) {
	Refuse(f, w, req, retryAfter)
}

// Reject answers 400: the request lacks what clients are told apart by.
func Reject(w http.ResponseWriter, req *http.Request) {
	w.WriteHeader(http.StatusBadRequest)
}
