package reply

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
)

var answers = []struct {
	name   string
	status int
	body   string
	give   func(*Fields, http.ResponseWriter, *http.Request, int64)
}{
	{"Refuse", http.StatusTooManyRequests, refusal, Refuse},
	{"Unavailable", http.StatusServiceUnavailable, unavailable, Unavailable},
}

var (
	plain = one("quota", 5, 60, Both, name)
	get   = httptest.NewRequest(http.MethodGet, "/", nil)
)

func TestAnswer(t *testing.T) {
	for _, answer := range answers {
		for retryAfter, want := range map[int64]string{42: "42", 1: "1", 0: "1", -5: "1", 31622400: "31622400"} {
			w := httptest.NewRecorder()
			answer.give(plain, w, get, retryAfter)
			if w.Code != answer.status || w.Body.String() != answer.body {
				t.Errorf("%s answers %d %q, want %d %q", answer.name, w.Code, w.Body, answer.status, answer.body)
			}
			compare(t, w.Header(), http.Header{
				"Retry-After":    {want},
				"Cache-Control":  {"no-store"},
				"Content-Type":   {"text/plain; charset=utf-8"},
				"Content-Length": {strconv.Itoa(len(answer.body))},
			})
		}
	}
}

func TestAnswerLeavesOtherFieldsAlone(t *testing.T) {
	for _, answer := range answers {
		w := httptest.NewRecorder()
		w.Header().Set("Strict-Transport-Security", "max-age=1")
		w.Header().Add("Vary", "Origin")
		w.Header().Add("Vary", "Accept-Encoding")
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "public")
		Write(one("quota", 5, 60, Both, name), w.Header(), false, 0, 42, "shared")
		want := w.Header().Clone()
		answer.give(plain, w, get, 42)
		want["Retry-After"] = []string{"42"}
		want["Cache-Control"] = []string{"no-store"}
		want["Content-Type"] = []string{"text/plain; charset=utf-8"}
		want["Content-Length"] = []string{strconv.Itoa(len(answer.body))}
		compare(t, w.Header(), want)
	}
}

func TestAnswersShareNoFieldValue(t *testing.T) {
	for _, answer := range answers {
		first := httptest.NewRecorder()
		answer.give(plain, first, get, 42)
		want := first.Header().Clone()
		for key := range first.Header() {
			first.Header()[key][0] = "spoilt"
		}
		second := httptest.NewRecorder()
		answer.give(plain, second, get, 42)
		compare(t, second.Header(), want)
	}
}

// A real server and real bytes: the length that is announced is the length that is
// sent, HEAD gets the same header without a body, HTTP/1.0 an answer that it
// understands, and a connection that may be kept is kept.
func TestAnswerOnTheWire(t *testing.T) {
	for _, answer := range answers {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			answer.give(plain, w, req, 7)
		}))
		defer server.Close()
		for _, test := range []struct {
			method, version string
			kept, empty     bool
		}{
			{"GET", "HTTP/1.1", true, false},
			{"HEAD", "HTTP/1.1", true, true},
			{"GET", "HTTP/1.0", false, false},
			{"HEAD", "HTTP/1.0", false, true},
		} {
			t.Run(answer.name+" "+test.method+" "+test.version, func(t *testing.T) {
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				input := bufio.NewReader(conn)
				// The next answer is read from the byte after this one.
				for again := 0; again < 2; again++ {
					fmt.Fprintf(conn, "%s / %s\r\nHost: gateway\r\n\r\n", test.method, test.version)
					response, err := http.ReadResponse(input, &http.Request{Method: test.method})
					if err != nil {
						t.Fatal(err)
					}
					body, err := io.ReadAll(response.Body)
					if err != nil {
						t.Fatal(err)
					}
					want := answer.body
					if test.empty {
						want = ""
					}
					if response.StatusCode != answer.status || string(body) != want {
						t.Errorf("answer is %d %q, want %d %q", response.StatusCode, body, answer.status, want)
					}
					if got := response.Header["Content-Length"]; len(got) != 1 || got[0] != strconv.Itoa(len(answer.body)) {
						t.Errorf("Content-Length is %q, want %d", got, len(answer.body))
					}
					if len(response.TransferEncoding) != 0 || response.Header.Get("Retry-After") != "7" {
						t.Errorf("header is %v", response.Header)
					}
					if response.Close == test.kept {
						t.Errorf("connection closes: %v, want %v", response.Close, !test.kept)
					}
					if !test.kept {
						break
					}
				}
			})
		}
	}
}
