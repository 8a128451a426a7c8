package suite

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// answer is what a client got. Numbers that it was not told are -1.
type answer struct {
	status     int
	header     http.Header
	body       string
	limit      int64 // X-RateLimit-Limit, and so on
	remaining  int64
	reset      int64
	retryAfter int64
	decision   string // X-RateLimit-Decision
}

const application = "the application\n"

// served is the application.
var served = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("X-Served", "yes")
	_, _ = w.Write([]byte(application))
})

// keyed returns a request with an API key, or without one if it is empty.
func keyed(key string) *http.Request {
	req := httptest.NewRequest(http.MethodGet, "/", nil)
	if key != "" {
		req.Header.Set("X-Api-Key", key)
	}
	return req
}

// from returns a request without an API key from an address such as
// "192.0.2.1:1234".
func from(peer string) *http.Request {
	req := keyed("")
	req.RemoteAddr = peer
	return req
}

// ask sends a request with an API key.
func (t *T) ask(h http.Handler, key string) answer {
	t.Helper()
	return t.send(h, keyed(key))
}

var quota = regexp.MustCompile(`^"([A-Za-z0-9@._-]+)";r=([0-9]+);t=([0-9]+)$`)

// send sends a request through a handler in front of served, and fails the test
// unless the answer is one that a client can be given: allowed, 429 or 503, with
// fields that agree with the status and with each other.
func (t *T) send(h http.Handler, req *http.Request) answer {
	t.Helper()
	a, ok := t.receive(h, req)
	if !ok {
		return a
	}
	if problem := a.problem(); problem != "" {
		t.Errorf("%s: status %d, %v, %q", problem, a.status, a.header, a.body)
	}
	return a
}

// receive sends a request and returns the answer, whatever it is. It fails the test, and is
// not ok, if the handler panics.
func (t *T) receive(h http.Handler, req *http.Request) (a answer, ok bool) {
	t.Helper()
	w := httptest.NewRecorder()
	if panicked := serve(h, w, req); panicked != nil {
		t.Errorf("the handler panicked: %v", panicked)
		return answer{status: http.StatusInternalServerError, header: http.Header{}}, false
	}
	return answer{
		status:     w.Code,
		header:     w.Result().Header,
		body:       w.Body.String(),
		limit:      number(w.Header(), "X-RateLimit-Limit"),
		remaining:  number(w.Header(), "X-RateLimit-Remaining"),
		reset:      number(w.Header(), "X-RateLimit-Reset"),
		retryAfter: number(w.Header(), "Retry-After"),
		decision:   w.Header().Get("X-RateLimit-Decision"),
	}, true
}

func serve(h http.Handler, w http.ResponseWriter, req *http.Request) (panicked any) {
	defer func() { panicked = recover() }()
	h.ServeHTTP(w, req)
	return nil
}

// number reads a field of plain digits; -1 if it is absent, -2 if it is anything
// else.
func number(h http.Header, field string) int64 {
	values := h.Values(field)
	if len(values) == 0 {
		return -1
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil || len(values) > 1 || strconv.FormatInt(n, 10) != values[0] || n < 0 {
		return -2
	}
	return n
}

// problem says what is wrong with any answer of this kind, or nothing.
func (a answer) problem() string {
	if a.limit == -2 || a.remaining == -2 || a.reset == -2 || a.retryAfter == -2 {
		return "a field is no plain number"
	}
	isServed := a.header.Get("X-Served") == "yes" && a.body == application
	switch a.status {
	case http.StatusOK:
		if !isServed {
			return "200, but not from the application"
		}
		if a.retryAfter != -1 {
			return "Retry-After on an allowed request"
		}
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if isServed {
			return "refused, but the application was reached"
		}
		if a.retryAfter < 1 {
			return "a refusal without a Retry-After of at least 1"
		}
		if a.header.Get("Content-Length") != strconv.Itoa(len(a.body)) || !strings.HasPrefix(a.header.Get("Content-Type"), "text/plain") {
			return "a refusal whose fields do not describe its body"
		}
		if a.header.Get("Cache-Control") != "no-store" {
			return "a refusal that a cache may keep"
		}
	default:
		return "a status that no client may get"
	}
	if a.status == http.StatusServiceUnavailable && a.retryAfter > 5 {
		return "503 with a Retry-After over 5"
	}
	older := 0
	for _, n := range []int64{a.limit, a.remaining, a.reset} {
		if n >= 0 {
			older++
		}
	}
	if older != 0 && older != 3 {
		return "some of the older fields, but not all"
	}
	if older == 3 {
		if a.remaining > a.limit || a.reset < 1 {
			return "older fields that cannot be"
		}
		if a.status == http.StatusOK && a.remaining == a.limit {
			return "an allowed request that was not counted"
		}
		if a.status == http.StatusTooManyRequests && (a.remaining != 0 || a.retryAfter < a.reset) {
			return "429 although something remains, or with a Retry-After before the reset"
		}
	}
	if match := quota.FindStringSubmatch(a.header.Get("RateLimit")); match != nil && older == 3 {
		if match[2] != strconv.FormatInt(a.remaining, 10) || match[3] != strconv.FormatInt(a.reset, 10) {
			return "RateLimit contradicts the older fields"
		}
	}
	return ""
}

// rush calls send n times from many goroutines at once, with the numbers from 0,
// and returns the answers by these numbers.
func rush(goroutines, n int, send func(i int) answer) []answer {
	got := make([]answer, n)
	start := make(chan struct{})
	var running sync.WaitGroup
	for g := 0; g < goroutines; g++ {
		running.Add(1)
		go func(g int) {
			defer running.Done()
			<-start
			for i := g; i < n; i += goroutines {
				got[i] = send(i)
			}
		}(g)
	}
	close(start)
	running.Wait()
	return got
}

// tally counts answers by status, and by status and decision, as in "200 shared".
func tally(answers []answer) map[string]int {
	counts := map[string]int{}
	for _, a := range answers {
		status := strconv.Itoa(a.status)
		counts[status]++
		counts[status+" "+a.decision]++
	}
	return counts
}
