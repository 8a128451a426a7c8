package reply

import (
	"io"
	"net/http"
	"strconv"
	"strings"
)

// answer is what the client gets in place of the one that it came for, in all its forms.
type answer struct {
	status int
	// The body for those who do not accept JSON, its length and its type.
	body, length, kind string
	// The problem details for those who do, empty if all get the body above; those of a
	// refusal also in two parts, which stand around the names of policies, in quotes.
	problem, problemLength string
	head, tail             string
	policies               []string
	// The gRPC status and its message, which holds nothing that the protocol wants
	// encoded: printable ASCII without the percent sign.
	code, message string
}

const (
	text        = "text/plain; charset=utf-8"
	problemJSON = "application/problem+json"

	refusal     = "Too many requests. Try again later.\n"
	unavailable = "The service is not available now. Try again later.\n"
	tooLong     = "The path of the request is too long.\n"
	rejection   = "Bad request. It lacks what clients are told apart by.\n"
)

var (
	refusalLength     = strconv.Itoa(len(refusal))
	unavailableLength = strconv.Itoa(len(unavailable))

	// An io.Writer must not change what it is given, so that all answers may share it.
	refusalBytes     = []byte(refusal)
	unavailableBytes = []byte(unavailable)

	// No policy was violated, and typed clients want the member nonetheless.
	unavailableAnswer = newAnswer(http.StatusServiceUnavailable, unavailable,
		`{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",`+
			`"title":"Request cannot be satisfied due to temporary server capacity constraints",`+
			`"status":503,"violated-policies":[]}`+"\n", "14") // UNAVAILABLE
	tooLongAnswer = newAnswer(http.StatusRequestURITooLong, tooLong,
		`{"type":"about:blank","title":"URI Too Long","status":414}`+"\n", "3") // INVALID_ARGUMENT
	rejectAnswer = newAnswer(http.StatusBadRequest, rejection,
		`{"type":"about:blank","title":"Bad Request","status":400,`+
			`"detail":"The request lacks what clients are told apart by."}`+"\n", "3") // INVALID_ARGUMENT
)

// newAnswer returns an answer with the plain text body, which is the message of gRPC too.
func newAnswer(status int, body, problem, code string) *answer {
	return &answer{
		status: status,
		body:   body, length: strconv.Itoa(len(body)), kind: text,
		problem: problem, problemLength: strconv.Itoa(len(problem)),
		code: code, message: strings.TrimSpace(body),
	}
}

// newRefusal returns the answer to a request that one of the policies refuses.
//
// The problem type is that of draft-ietf-httpapi-ratelimit-headers-11, section 5.1.
// The names of policies hold nothing that JSON wants escaped.
func newRefusal(policies []string, s *Settings) *answer {
	status := s.Status
	if status == 0 {
		status = http.StatusTooManyRequests
	}
	head := `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
		`"title":"Request cannot be satisfied as assigned quota has been exceeded",` +
		`"status":` + strconv.Itoa(status) + `,"violated-policies":[`
	a := newAnswer(status, refusal, head+strings.Join(policies, ",")+"]}\n", "8") // RESOURCE_EXHAUSTED
	a.head = head
	a.tail = "]}\n"
	a.policies = policies
	if s.Body != "" {
		a.body = s.Body
		a.length = strconv.Itoa(len(s.Body))
		a.problem = "" // one assignment at a time: the interpreter loses some of several
		if s.ContentType != "" {
			a.kind = s.ContentType
		}
	}
	return a
}

// Refuse answers 429, or the status that the settings say: the client has used its
// quota, and may come again in retryAfter seconds. Zero counts as 1; less than zero
// means that waiting is of no use, and Retry-After is not sent.
//
// A client that accepts JSON gets problem details (RFC 9457), others plain text, and
// all the body of the settings if there is one; a HEAD gets the header alone. A gRPC
// call gets the status RESOURCE_EXHAUSTED. Of the header Refuse sets what belongs to
// this answer, and leaves the rest, the rate-limit fields among it, as it is.
func Refuse(f *Fields, w http.ResponseWriter, req *http.Request, retryAfter int64) {
	h, kind, accept := w.Header(), "", req.Header["Accept"]
	if len(accept) > 0 {
		kind = acceptForm(accept)
	}
	if req.Method != "GET" {
		kind = methodForm(req, kind)
	}
	if kind != "" || !f.quick || retryAfter < 1 || h["Vary"] != nil {
		give(f, f.refusal, w, req, kind, retryAfter, nil)
		return
	}
	seconds := ""
	if retryAfter < ready {
		seconds = decimals[retryAfter]
	} else {
		seconds = strconv.FormatInt(retryAfter, 10)
	}
	h["Retry-After"] = []string{seconds}
	h["Cache-Control"] = []string{"no-store"}
	h["Vary"] = []string{"Accept"}
	h["Content-Type"] = []string{text}
	h["Content-Length"] = []string{refusalLength}
	w.WriteHeader(f.status)
	_, _ = w.Write(refusalBytes)
}

// RefuseSeveral is Refuse for several policies, of which those refused that are true in
// refused; the problem details name no others. With nil they name all.
func RefuseSeveral(f *Fields, w http.ResponseWriter, req *http.Request, retryAfter int64, refused []bool) {
	give(f, f.refusal, w, req, methodForm(req, acceptForm(req.Header["Accept"])), retryAfter, refused)
}

// Unavailable answers 503: requests cannot be counted now, and the middleware is set to
// let none pass uncounted; or there are more of them than one gateway shall let
// through. The client may come again in retryAfter seconds (at least 1). For the rest
// it does as Refuse, but the settings do not replace its status and its body, and a
// gRPC call gets UNAVAILABLE. It is not written with Refuse as one function, since the
// interpreter would pay for that at each refusal.
func Unavailable(f *Fields, w http.ResponseWriter, req *http.Request, retryAfter int64) {
	if retryAfter < 1 {
		retryAfter = 1
	}
	h, kind, accept := w.Header(), "", req.Header["Accept"]
	if len(accept) > 0 {
		kind = acceptForm(accept)
	}
	if req.Method != "GET" {
		kind = methodForm(req, kind)
	}
	if kind != "" || f.expose || h["Vary"] != nil {
		give(f, unavailableAnswer, w, req, kind, retryAfter, nil)
		return
	}
	h["Retry-After"] = []string{strconv.FormatInt(retryAfter, 10)}
	h["Cache-Control"] = []string{"no-store"}
	h["Vary"] = []string{"Accept"}
	h["Content-Type"] = []string{text}
	h["Content-Length"] = []string{unavailableLength}
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = w.Write(unavailableBytes)
}

// Reject answers 400: the request lacks what clients are told apart by. Coming again
// with the same request is of no use, so there is no Retry-After. A gRPC call gets
// INVALID_ARGUMENT.
func Reject(w http.ResponseWriter, req *http.Request) {
	give(unexposed, rejectAnswer, w, req, methodForm(req, acceptForm(req.Header["Accept"])), -1, nil)
}

// TooLong answers 414: the path of a request is longer than the rules are asked about. A
// gRPC call gets INVALID_ARGUMENT.
func TooLong(w http.ResponseWriter, req *http.Request) {
	give(unexposed, tooLongAnswer, w, req, methodForm(req, acceptForm(req.Header["Accept"])), -1, nil)
}

// unexposed are fields of no middleware.
var unexposed = &Fields{}

// give answers with a in the form kind, see acceptForm and methodForm. It sends no
// Retry-After if retryAfter is less than zero, and names all policies of a if refused
// is nil.
func give(f *Fields, a *answer, w http.ResponseWriter, req *http.Request, kind string, retryAfter int64, refused []bool) {
	h := w.Header()
	if retryAfter < 0 {
		delete(h, "Retry-After")
	} else {
		if retryAfter == 0 {
			retryAfter = 1
		}
		h["Retry-After"] = []string{strconv.FormatInt(retryAfter, 10)}
		if f.expose {
			expose(h, retryName)
		}
	}
	h["Cache-Control"] = []string{"no-store"}
	if kind != "" && kind != problemJSON && kind != text {
		giveGRPC(f, a, w, kind)
		return
	}
	body, length := a.body, a.length
	if a.problem != "" {
		if h["Vary"] == nil {
			h["Vary"] = []string{"Accept"}
		} else {
			varyByAccept(h)
		}
	}
	if a.problem != "" && kind == problemJSON {
		body, length = a.problem, a.problemLength
		if refused != nil {
			body = problem(a, refused)
			length = strconv.Itoa(len(body))
		}
	} else {
		kind = a.kind
	}
	h["Content-Type"] = []string{kind}
	h["Content-Length"] = []string{length}
	w.WriteHeader(a.status)
	if req.Method != "HEAD" {
		_, _ = io.WriteString(w, body)
	}
}

// problem returns the problem details of a that name the policies which refused.
func problem(a *answer, refused []bool) string {
	var names []string
	for i, name := range a.policies {
		if refused[i] {
			names = append(names, name)
		}
	}
	return a.head + strings.Join(names, ",") + a.tail
}

// varyByAccept says that the answer depends on the field Accept, beside what is said
// already.
func varyByAccept(h http.Header) {
	lines := h["Vary"]
	for _, name := range strings.Split(strings.Join(lines, ","), ",") {
		name = strings.TrimSpace(name)
		if name == "*" || strings.EqualFold(name, "Accept") {
			return
		}
	}
	h["Vary"] = append(append([]string{}, lines...), "Accept")
}
