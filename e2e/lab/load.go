package lab

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Answer is what one request got.
type Answer struct {
	Status int
	Header http.Header
	Body   string
	At     time.Time     // when the answer had arrived
	Took   time.Duration // from sending to arrival
	Err    error         // of the connection; Status is 0 then
}

// Number returns a header that must be a plain number, and -1 when it is not.
func (a Answer) Number(header string) int {
	n, err := strconv.Atoi(a.Header.Get(header))
	if err != nil {
		return -1
	}
	return n
}

// Window returns the id of the fixed window that the answer belongs to, learnt
// from the seconds that it says are left. Windows of three seconds and more can
// be told apart, since the answer arrives within the second that it speaks of
// or the next.
func (a Answer) Window(length time.Duration) int64 {
	left := a.Number("X-RateLimit-Reset")
	if left < 0 {
		return -1
	}
	end := a.At.Add(time.Duration(left) * time.Second)
	return int64((float64(end.UnixNano())/float64(length) + 0.5)) - 1
}

// Answers are those of several requests, in the order of sending.
type Answers []Answer

// Count returns how many have a status; 0 stands for no answer at all.
func (as Answers) Count(status int) int {
	n := 0
	for _, a := range as {
		if a.Status == status {
			n++
		}
	}
	return n
}

// Tally returns a line such as "200: 5, 429: 7" for messages.
func (as Answers) Tally() string {
	return tally(as, func(a Answer) string { return strconv.Itoa(a.Status) })
}

// Decisions returns a line such as "shared: 12" for messages and comparisons.
func (as Answers) Decisions() string {
	return tally(as, func(a Answer) string { return a.Header.Get("X-RateLimit-Decision") })
}

func tally(as Answers, by func(Answer) string) string {
	var order []string
	counts := map[string]int{}
	for _, a := range as {
		k := by(a)
		if counts[k] == 0 {
			order = append(order, k)
		}
		counts[k]++
	}
	parts := make([]string, len(order))
	for i, k := range order {
		parts[i] = fmt.Sprintf("%s: %d", k, counts[k])
	}
	return strings.Join(parts, ", ")
}

// Slowest returns the longest time that an answer took.
func (as Answers) Slowest() time.Duration {
	var d time.Duration
	for _, a := range as {
		d = max(d, a.Took)
	}
	return d
}

// Wrong returns the first answer whose status is none of those given.
func (as Answers) Wrong(statuses ...int) (Answer, bool) {
next:
	for _, a := range as {
		for _, s := range statuses {
			if a.Status == s {
				continue next
			}
		}
		return a, true
	}
	return Answer{}, false
}

// Client sends requests with connections of its own. It follows no redirect and
// sends nothing twice.
type Client struct {
	http *http.Client
}

// NewClient returns a client that keeps its connections.
func NewClient(t testing.TB) *Client {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &Client{http: &http.Client{
		Transport:     transport,
		Timeout:       patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// CloseIdle closes the connections that no request uses.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

// Request is one request to be sent: a GET with these header fields.
type Request struct {
	URL    string
	Header map[string]string
	Host   string
}

// Keyed returns a request that carries an API key.
func Keyed(url, key string) Request {
	return Request{URL: url, Header: map[string]string{"X-API-Key": key}}
}

// Get sends one request.
func (c *Client) Get(r Request) Answer {
	u, err := url.Parse(r.URL)
	if err != nil {
		return Answer{Err: err}
	}
	req := (&http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Header: http.Header{}}).WithContext(context.Background())
	if r.Host != "" {
		req.Host = r.Host
	}
	for name, value := range r.Header {
		req.Header.Set(name, value)
	}
	start := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		return Answer{Err: err, At: time.Now(), Took: time.Since(start)}
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	a := Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body), At: time.Now(), Took: time.Since(start), Err: err}
	if err != nil {
		a.Status = 0
	}
	return a
}

// Sequence sends requests one after the other.
func (c *Client) Sequence(requests []Request) Answers {
	answers := make(Answers, len(requests))
	for i, r := range requests {
		answers[i] = c.Get(r)
	}
	return answers
}

// Burst sends requests over a number of workers that start together.
func (c *Client) Burst(workers int, requests []Request) Answers {
	answers := make(Answers, len(requests))
	next := make(chan int, len(requests))
	for i := range requests {
		next <- i
	}
	close(next)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			<-start
			for i := range next {
				answers[i] = c.Get(requests[i])
			}
		})
	}
	close(start)
	wg.Wait()
	return answers
}

// Alternate returns n requests of one key, spread in turn over the gateways.
func Alternate(n int, key string, urls ...string) []Request {
	requests := make([]Request, n)
	for i := range requests {
		requests[i] = Keyed(urls[i%len(urls)], key)
	}
	return requests
}

// Load sends requests steadily until it is stopped.
type Load struct {
	stop chan struct{}
	done chan struct{}

	mu      sync.Mutex
	answers Answers
}

// Steady starts a load of about one request each pause per worker. The request
// of a given number is made by the function.
func (c *Client) Steady(t testing.TB, workers int, pause time.Duration, request func(n int) Request) *Load {
	t.Helper()
	l := &Load{stop: make(chan struct{}), done: make(chan struct{})}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			// Bounded, should a test forget to stop it.
			for n := w; n < 1_000_000; n += workers {
				select {
				case <-l.stop:
					return
				case <-time.After(pause):
				}
				a := c.Get(request(n))
				l.mu.Lock()
				l.answers = append(l.answers, a)
				l.mu.Unlock()
			}
		})
	}
	go func() {
		wg.Wait()
		close(l.done)
	}()
	t.Cleanup(func() { l.Stop() })
	return l
}

// Len returns how many answers have arrived.
func (l *Load) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.answers)
}

// Since returns the answers after the first n, in order of arrival.
func (l *Load) Since(n int) Answers {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append(Answers(nil), l.answers[n:]...)
}

// Stop ends the load and returns all answers in order of arrival.
func (l *Load) Stop() Answers {
	l.mu.Lock()
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.mu.Unlock()
	<-l.done
	return l.Since(0)
}
