package suite

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
)

// exchange sends a request and returns the answer as it is: with a status or a body of
// the operator's choice, or in a form that send takes for none.
func (t *T) exchange(h http.Handler, req *http.Request) answer {
	t.Helper()
	a, ok := t.receive(h, req)
	if !ok {
		return a
	}
	if isServed := a.header.Get("X-Served") == "yes"; isServed != (a.status == http.StatusOK && a.header.Get("Grpc-Status") == "") {
		t.Errorf("%d, and from the application: %t", a.status, isServed)
	}
	return a
}

// request returns a request of the client "key"; the pairs are headers.
func request(method, target string, pairs ...string) *http.Request {
	req := httptest.NewRequest(method, target, nil)
	req.Header.Set("X-Api-Key", "key")
	for i := 0; i < len(pairs); i += 2 {
		req.Header.Add(pairs[i], pairs[i+1])
	}
	return req
}

// get returns a request for a path by the client "key".
func get(target string, pairs ...string) *http.Request {
	return request(http.MethodGet, target, pairs...)
}

var member = regexp.MustCompile(`"([^"]*)"`)

// counts returns the names of the counts that an answer tells of, without the scope:
// "" for the one of the top level, "uncounted" where it tells of none.
func (a answer) counts(scope string) string {
	var names []string
	for _, match := range member.FindAllStringSubmatch(a.header.Get("RateLimit-Policy"), -1) {
		names = append(names, strings.TrimPrefix(strings.TrimPrefix(match[1], scope), ":"))
	}
	if names == nil {
		return "uncounted"
	}
	return strings.Join(names, " ")
}

// entry returns an entry of a list of groups: a rule, a limit, an override.
func entry(pairs ...any) map[string]any {
	return with(map[string]any{}, pairs...)
}

// statuses sends n requests, one after another, and returns the status of each answer.
func (t *T) statuses(h http.Handler, n int, each func() *http.Request) (got []int) {
	t.Helper()
	for i := 0; i < n; i++ {
		got = append(got, t.exchange(h, each()).status)
	}
	return got
}

// allowed sends n requests, one after another, and returns how many were served.
func (t *T) allowed(h http.Handler, n int, each func() *http.Request) int {
	t.Helper()
	passed := 0
	for _, status := range t.statuses(h, n, each) {
		if status == http.StatusOK {
			passed++
		}
	}
	return passed
}
