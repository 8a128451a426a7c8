package reply

import (
	"io"
	"net/http"
	"strconv"
)

const (
	refusal     = "Too many requests. Try again later.\n"
	unavailable = "Service unavailable. Try again later.\n"
)

// Refuse answers 429: the client has used its quota, and may come again in
// retryAfter seconds (at least 1). Fields that are already in the header stay.
func Refuse(w http.ResponseWriter, retryAfter int64) {
	answer(w, http.StatusTooManyRequests, retryAfter, refusal)
}

// Unavailable answers 503: requests cannot be counted now, and the middleware is
// set to let none pass uncounted. The client may come again in retryAfter seconds
// (at least 1). Fields that are already in the header stay.
func Unavailable(w http.ResponseWriter, retryAfter int64) {
	answer(w, http.StatusServiceUnavailable, retryAfter, unavailable)
}

// answer replaces what outer middlewares may have said about this body, and nothing
// else. The server itself leaves the body out for HEAD.
func answer(w http.ResponseWriter, status int, retryAfter int64, body string) {
	if retryAfter < 1 {
		retryAfter = 1
	}
	h := w.Header()
	h["Retry-After"] = []string{strconv.FormatInt(retryAfter, 10)}
	h["Cache-Control"] = []string{"no-store"}
	h["Content-Type"] = []string{"text/plain; charset=utf-8"}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}
