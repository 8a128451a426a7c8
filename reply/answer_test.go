package reply

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

const (
	quotaProblem = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
		`"title":"Request cannot be satisfied as assigned quota has been exceeded",` +
		`"status":429,"violated-policies":["quota"]}` + "\n"
	capacityProblem = `{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",` +
		`"title":"Request cannot be satisfied due to temporary server capacity constraints",` +
		`"status":503,"violated-policies":[]}` + "\n"
	lackProblem = `{"type":"about:blank","title":"Bad Request","status":400,` +
		`"detail":"The request lacks what clients are told apart by."}` + "\n"
)

var (
	plain = one("quota", 5, 60, Both, name)
	get   = request("GET")
)

var answers = []struct {
	name    string
	status  int
	body    string
	problem string
	code    string
	message string
	give    func(*Fields, http.ResponseWriter, *http.Request, int64)
}{
	{"Refuse", 429, "Too many requests. Try again later.\n", quotaProblem, "8", "Too many requests. Try again later.", Refuse},
	{"RefuseSeveral", 429, "Too many requests. Try again later.\n", quotaProblem, "8", "Too many requests. Try again later.", refuseOne},
	{"Unavailable", 503, "The service is not available now. Try again later.\n", capacityProblem, "14", "The service is not available now. Try again later.", Unavailable},
}

func refuseOne(f *Fields, w http.ResponseWriter, req *http.Request, retryAfter int64) {
	RefuseSeveral(f, w, req, retryAfter, []bool{true})
}

// request returns a request with these header fields, names and values in turn.
func request(method string, fields ...string) *http.Request {
	req := httptest.NewRequest(method, "/", nil)
	for i := 0; i < len(fields); i += 2 {
		req.Header.Add(fields[i], fields[i+1])
	}
	return req
}

func TestAnswer(t *testing.T) {
	for _, answer := range answers {
		for _, test := range []struct {
			retryAfter int64
			want       string
		}{{42, "42"}, {1, "1"}, {0, "1"}, {1023, "1023"}, {1024, "1024"}, {31622400, "31622400"}} {
			w := httptest.NewRecorder()
			answer.give(plain, w, get, test.retryAfter)
			if w.Code != answer.status || w.Body.String() != answer.body {
				t.Errorf("%s answers %d %q, want %d %q", answer.name, w.Code, w.Body, answer.status, answer.body)
			}
			compare(t, w.Header(), http.Header{
				"Retry-After":    {test.want},
				"Cache-Control":  {"no-store"},
				"Vary":           {"Accept"},
				"Content-Type":   {"text/plain; charset=utf-8"},
				"Content-Length": {strconv.Itoa(len(answer.body))},
			})
		}
	}
}

func TestWaitingOfNoUse(t *testing.T) {
	for _, req := range []*http.Request{get, request("GET", "Accept", "application/json"), request("POST", "Content-Type", "application/grpc")} {
		for _, f := range []*Fields{plain, New([]Policy{{"quota", 5, 60}}, &Settings{Expose: true})} {
			for _, answer := range answers[:2] {
				w := httptest.NewRecorder()
				w.Header().Set("Retry-After", "7")
				answer.give(f, w, req, -1)
				if got, ok := w.Header()["Retry-After"]; ok {
					t.Errorf("%s: Retry-After is %q, want none", answer.name, got)
				}
				if got := w.Header().Get("Access-Control-Expose-Headers"); strings.Contains(got, "Retry-After") {
					t.Errorf("%s exposes %q", answer.name, got)
				}
			}
		}
	}
	w := httptest.NewRecorder()
	Unavailable(plain, w, get, -1)
	if got := w.Header().Get("Retry-After"); got != "1" {
		t.Errorf("Unavailable: Retry-After is %q, want 1", got)
	}
}

func TestReject(t *testing.T) {
	for _, test := range []struct {
		req    *http.Request
		status int
		body   string
		header http.Header
	}{
		{get, 400, rejection, http.Header{"Vary": {"Accept"}, "Content-Type": {text}, "Content-Length": {"54"}}},
		{request("HEAD"), 400, "", http.Header{"Vary": {"Accept"}, "Content-Type": {text}, "Content-Length": {"54"}}},
		{request("GET", "Accept", "application/json"), 400, lackProblem, http.Header{"Vary": {"Accept"}, "Content-Type": {problemJSON}, "Content-Length": {strconv.Itoa(len(lackProblem))}}},
		{request("POST", "Content-Type", "application/grpc"), 200, "", http.Header{"Content-Type": {"application/grpc"}, "Grpc-Status": {"3"}, "Grpc-Message": {"Bad request. It lacks what clients are told apart by."}}},
	} {
		w := httptest.NewRecorder()
		Reject(w, test.req)
		if w.Code != test.status || w.Body.String() != test.body {
			t.Errorf("%s %v: %d %q, want %d %q", test.req.Method, test.req.Header, w.Code, w.Body, test.status, test.body)
		}
		test.header["Cache-Control"] = []string{"no-store"}
		compare(t, w.Header(), test.header)
	}
}

func TestTooLong(t *testing.T) {
	const problem = `{"type":"about:blank","title":"URI Too Long","status":414}` + "\n"
	for _, test := range []struct {
		req    *http.Request
		status int
		body   string
		header http.Header
	}{
		{get, 414, tooLong, http.Header{"Vary": {"Accept"}, "Content-Type": {text}, "Content-Length": {"37"}}},
		{request("HEAD"), 414, "", http.Header{"Vary": {"Accept"}, "Content-Type": {text}, "Content-Length": {"37"}}},
		{request("GET", "Accept", "application/json"), 414, problem, http.Header{"Vary": {"Accept"}, "Content-Type": {problemJSON}, "Content-Length": {strconv.Itoa(len(problem))}}},
		{request("POST", "Content-Type", "application/grpc"), 200, "", http.Header{"Content-Type": {"application/grpc"}, "Grpc-Status": {"3"}, "Grpc-Message": {"The path of the request is too long."}}},
	} {
		w := httptest.NewRecorder()
		TooLong(w, test.req)
		if w.Code != test.status || w.Body.String() != test.body {
			t.Errorf("%s %v: %d %q, want %d %q", test.req.Method, test.req.Header, w.Code, w.Body, test.status, test.body)
		}
		test.header["Cache-Control"] = []string{"no-store"}
		compare(t, w.Header(), test.header)
	}
}

// Every form that an answer can take, under all settings that bear on it, beside the
// fields of every style.
func TestEachCombination(t *testing.T) {
	const custom = "Slow down, 100 % of your quota is gone.\n"
	grpc := map[string]string{
		"application/grpc": "application/grpc", "application/grpc+proto": "application/grpc",
		"application/grpc-web+proto": "application/grpc-web", "application/grpc-web-text": "application/grpc-web-text",
	}
	accepts := map[string]bool{
		"": false, "*/*": false, "text/html": false, "application/json": true,
		"text/html, application/problem+json;q=0.5": true, "application/json;q=high": false,
	}
	combinations := 0
	for _, style := range []Style{Both, IETF, Legacy, None} {
		for _, settings := range []Settings{
			{}, {Status: 403}, {Body: custom}, {Body: custom, ContentType: "text/html"}, {Status: 503, Body: "{}", ContentType: "application/json"},
		} {
			for _, exposes := range []bool{false, true} {
				settings.Style, settings.Expose, settings.DecisionHeader = style, exposes, name
				f := New([]Policy{{"quota", 5, 60}}, &settings)
				for accept, wantsJSON := range accepts {
					for _, method := range []string{"GET", "HEAD", "POST", "PUT"} {
						for _, kind := range []string{"", "application/json", "application/grpc", "application/grpc+proto", "application/grpc-web+proto", "application/grpc-web-text", "application/grpcs"} {
							for _, answer := range answers {
								req := request(method)
								if accept != "" {
									req.Header.Set("Accept", accept)
								}
								if kind != "" {
									req.Header.Set("Content-Type", kind)
								}
								w := httptest.NewRecorder()
								Write(f, w.Header(), false, 0, 42, "shared")
								want := w.Header().Clone()
								answer.give(f, w, req, 42)

								want.Set("Retry-After", "42")
								want.Set("Cache-Control", "no-store")
								status, body, exposed := answer.status, answer.body, []string{"Retry-After"}
								problem, ours := answer.problem, true
								if status == 429 {
									if settings.Status != 0 {
										status = settings.Status
										problem = strings.Replace(problem, "429", strconv.Itoa(status), 1)
									}
									ours = settings.Body == ""
								}
								if grpc[kind] != "" && method == "POST" {
									status, body = 200, ""
									want.Set("Content-Type", grpc[kind])
									want.Set("Grpc-Status", answer.code)
									want.Set("Grpc-Message", answer.message)
									exposed = append(exposed, "Grpc-Status", "Grpc-Message")
								} else {
									want.Set("Content-Type", "text/plain; charset=utf-8")
									switch {
									case !ours:
										body = settings.Body
										if settings.ContentType != "" {
											want.Set("Content-Type", settings.ContentType)
										}
									case wantsJSON:
										body = problem
										want.Set("Content-Type", "application/problem+json")
									}
									if ours {
										want.Set("Vary", "Accept")
									}
									want.Set("Content-Length", strconv.Itoa(len(body)))
									if method == "HEAD" {
										body = ""
									}
								}
								if exposes {
									want.Set("Access-Control-Expose-Headers", want.Get("Access-Control-Expose-Headers")+", "+strings.Join(exposed, ", "))
								}
								combinations++
								if w.Code != status || w.Body.String() != body || !reflect.DeepEqual(w.Header(), want) {
									t.Fatalf("%s of %+v to %s %v is\n%d %v %q, want\n%d %v %q", answer.name, settings, method, req.Header,
										w.Code, w.Header(), w.Body, status, want, body)
								}
							}
						}
					}
				}
			}
		}
	}
	if combinations != 4*5*2*6*4*7*3 {
		t.Errorf("%d combinations", combinations)
	}
}

func TestProblemNamesThoseThatRefused(t *testing.T) {
	f := New([]Policy{{"apikey:login", 5, 60}, {"apikey:login:day", 100, 86400}, {"apikey", 1000, 86400}}, &Settings{})
	for _, test := range []struct {
		refused []bool
		want    []string
	}{
		{[]bool{true, false, false}, []string{"apikey:login"}},
		{[]bool{false, true, false}, []string{"apikey:login:day"}},
		{[]bool{true, false, true}, []string{"apikey:login", "apikey"}},
		{[]bool{true, true, true}, []string{"apikey:login", "apikey:login:day", "apikey"}},
		{[]bool{false, false, false}, []string{}},
		{nil, []string{"apikey:login", "apikey:login:day", "apikey"}},
	} {
		w := httptest.NewRecorder()
		RefuseSeveral(f, w, request("GET", "Accept", "application/json"), 42, test.refused)
		var got struct {
			Type, Title string
			Status      int
			Violated    []string `json:"violated-policies"`
		}
		input := json.NewDecoder(w.Body)
		input.DisallowUnknownFields()
		length := w.Body.Len()
		if err := input.Decode(&got); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got.Violated, test.want) || got.Status != 429 || got.Title == "" || !strings.HasSuffix(got.Type, "#quota-exceeded") {
			t.Errorf("%v: %+v, want %q", test.refused, got, test.want)
		}
		if w.Header().Get("Content-Length") != strconv.Itoa(length) {
			t.Errorf("%v: Content-Length is %s, want %d", test.refused, w.Header().Get("Content-Length"), length)
		}
	}
}

func TestVaryIsAdded(t *testing.T) {
	for _, test := range []struct{ lines, want []string }{
		{nil, []string{"Accept"}},
		{[]string{}, []string{"Accept"}},
		{[]string{"Origin"}, []string{"Origin", "Accept"}},
		{[]string{"Origin", "Accept-Encoding"}, []string{"Origin", "Accept-Encoding", "Accept"}},
		{[]string{"Origin, accept"}, []string{"Origin, accept"}},
		{[]string{"Origin", "Accept"}, []string{"Origin", "Accept"}},
		{[]string{"*"}, []string{"*"}},
		{[]string{"Accept-Language,Accept-Encoding"}, []string{"Accept-Language,Accept-Encoding", "Accept"}},
	} {
		for _, answer := range answers {
			w := httptest.NewRecorder()
			lines := append(make([]string, 0, 8), test.lines...) // what is behind the end belongs to another
			if test.lines != nil {
				w.Header()["Vary"] = lines
			}
			answer.give(plain, w, get, 42)
			if got := w.Header()["Vary"]; !reflect.DeepEqual(got, test.want) {
				t.Errorf("%s: Vary %q has become %q, want %q", answer.name, test.lines, got, test.want)
			}
			if behind := lines[:cap(lines)][len(lines)]; behind != "" {
				t.Errorf("%s: Vary %q has %q written behind it", answer.name, test.lines, behind)
			}
		}
	}
}

// gRPC over HTTP2, Responses: Status-Message is percent-encoded, and what stands here
// must need no encoding; Status is a decimal number without leading zeros.
func TestMessagesNeedNoEncoding(t *testing.T) {
	for _, a := range []*answer{plain.refusal, unavailableAnswer, rejectAnswer} {
		for _, c := range []byte(a.message) {
			if c < 0x20 || c > 0x7e || c == '%' {
				t.Errorf("%q holds %q", a.message, c)
			}
		}
		if n, err := strconv.Atoi(a.code); err != nil || strconv.Itoa(n) != a.code || a.message == "" {
			t.Errorf("%q %q", a.code, a.message)
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
		want["Vary"] = []string{"Origin", "Accept-Encoding", "Accept"}
		want["Content-Type"] = []string{"text/plain; charset=utf-8"}
		want["Content-Length"] = []string{strconv.Itoa(len(answer.body))}
		compare(t, w.Header(), want)
	}
}

// A gRPC call over HTTP/2 ends with the header: no body, no trailers, the status where
// the caller looks for it.
func TestGRPCOverHTTP2(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Length", "7") // of an answer that is not given
		Write(plain, w.Header(), false, 0, 42, "shared")
		Refuse(plain, w, req, 42)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	sent, body := io.Pipe() // a call that is still sending
	defer body.Close()
	req, err := http.NewRequest(http.MethodPost, server.URL+"/shop.Orders/Add", sent)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/grpc+proto")
	req.Header.Set("Te", "trailers")
	response, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	rest, err := io.ReadAll(response.Body)
	if err != nil || len(rest) != 0 || len(response.Trailer) != 0 {
		t.Errorf("after the header come %q, %v, trailers %v", rest, err, response.Trailer)
	}
	if response.ProtoMajor != 2 || response.StatusCode != 200 {
		t.Errorf("%s %d", response.Proto, response.StatusCode)
	}
	for field, want := range map[string]string{
		"Grpc-Status": "8", "Grpc-Message": "Too many requests. Try again later.", "Content-Type": "application/grpc",
		"Retry-After": "42", "RateLimit": `"quota";r=0;t=42`, "X-RateLimit-Remaining": "0", "Cache-Control": "no-store", "Vary": "",
	} {
		if got := response.Header.Get(field); got != want {
			t.Errorf("%s is %q, want %q", field, got, want)
		}
	}
	if length := response.Header.Get("Content-Length"); length != "" && length != "0" {
		t.Errorf("Content-Length is %s", length)
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
