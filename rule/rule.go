// Package rule says which of several rules a request falls under, and whether it is
// exempt from all of them.
//
// A path can be written in many ways, and a gateway does not know which of them the
// application behind it takes for the same. So a request has several forms of its path
// here: the clean one of source.CleanPath, the one that was sent, and the lenient ones of
// source.LenientPaths. It falls under the rules of all its forms, and no path exempts
// whose forms differ.
//
// The functions that see requests are written for an interpreter, in which a call of
// a function costs as much as ten comparisons.
package rule

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"path"
	"regexp"
	"strings"

	"github.com/gatequota/gatequota/source"
)

// A Match says which requests a rule is for: those for which all its conditions hold.
// Without a condition it is for all requests. It is built once, by the functions that
// set its conditions, and not changed while requests are served.
type Match struct {
	open    string          // the path or the prefix as source.CleanPath has it, and a slash; empty: any path
	exact   bool            // open is all of the path
	written string          // open as it is sent by who writes it as the operator did; empty: the same
	methods map[string]bool // in upper case; nil: any method

	more   bool // there is any of these conditions
	regex  *regexp.Regexp
	host   string // as source.HostName has it
	header string // in its canonical form
	value  string // empty: any
}

// SetPath sets the condition that the path is this one, cleaned as the path of a
// request is. The error says what a path is, or that there is a prefix already.
func SetPath(m *Match, path string) error {
	if err := checkPath(path); err != nil {
		return err
	}
	if m.open != "" && !m.exact {
		return refusal(path, "a prefix of the path is set too; only one of them can be")
	}
	m.open = source.CleanPath(path) + "/"
	m.exact = true
	setWritten(m, sent(path)+"/")
	return nil
}

// SetPathPrefix sets the condition that the path begins with the segments of prefix,
// cleaned as the path of a request is: "/api" is for /api and /api/x, not for /apix.
// "/" is for all paths, and thus no condition. The error says what a path is, or that
// there is a whole path already.
func SetPathPrefix(m *Match, prefix string) error {
	if err := checkPath(prefix); err != nil {
		return err
	}
	if m.exact {
		return refusal(prefix, "a whole path is set too; only one of them can be")
	}
	m.open, m.written = "", ""
	clean := source.CleanPath(prefix)
	if clean != "/" {
		m.open = clean + "/"
		setWritten(m, strings.TrimRight(sent(prefix), "/")+"/")
	}
	return nil
}

// setWritten sets m.written.
func setWritten(m *Match, written string) {
	m.written = ""
	if written != m.open {
		m.written = written
	}
}

// SetPathRegex sets the condition that a regular expression of Go matches somewhere
// in the path. The error says why it is none.
func SetPathRegex(m *Match, expression string) error {
	regex, err := regexp.Compile(expression)
	if err != nil {
		return refusal(expression, fmt.Sprintf("a regular expression in Go's syntax is wanted (%s)", strings.TrimPrefix(err.Error(), "error parsing regexp: ")))
	}
	if expression == "" {
		return refusal(expression, "an empty expression matches everything; leave it out instead")
	}
	m.regex, m.more = regex, true
	return nil
}

// SetMethods sets the condition that the method is one of these, in either case:
// servers exist that take "post" for POST. No method at all is no condition. The
// error quotes what is no method.
func SetMethods(m *Match, methods []string) error {
	set, err := methodSet(methods)
	if err != nil || len(set) == 0 {
		return err
	}
	m.methods = set
	return nil
}

// SetHost sets the condition that this host is asked for, whatever the case of its
// letters, the port, and the dot that ends a fully qualified name. The error says what
// a host is.
func SetHost(m *Match, host string) error {
	name := source.HostName(host)
	if strings.Contains(host, ":") {
		_, err := netip.ParseAddr(strings.Trim(host, "[]"))
		if err != nil {
			return refusal(host, "a host is wanted without a port, as all ports count for the same host")
		}
	} else if !hostPattern.MatchString(name) {
		return refusal(host, "a host is wanted, such as api.example.com; one with other letters than those of ASCII in its xn-- form")
	}
	m.host, m.more = name, true
	return nil
}

// SetHeader sets the condition that the header called name has this value, blanks
// around it aside, or, if value is empty, any value at all. A header that is empty or
// stands on several lines counts as missing. The error says what a header is.
func SetHeader(m *Match, name, value string) error {
	if !tokenPattern.MatchString(name) {
		return refusal(name, "the name of a header is wanted")
	}
	canonical := textproto.CanonicalMIMEHeaderKey(name)
	switch canonical {
	case "Host":
		return refusal(name, "Host is no header here; match the host instead")
	case "Connection", "Content-Length", "Transfer-Encoding", "Trailer":
		return refusal(name, "this header is about the connection and not about the request")
	}
	value = strings.Trim(value, " \t")
	if strings.IndexFunc(value, isControl) >= 0 {
		return refusal(value, "no header can hold control characters")
	}
	m.header, m.value, m.more = canonical, value, true
	return nil
}

// A Path is the path of a request in the forms in which servers may read it.
type Path struct {
	Clean string // as source.CleanPath has it
	Raw   string // as source.EscapedPath has it
	Odd   bool   // there are more, as source.LenientPaths has them
}

// Forms returns all forms of a path, the clean one first.
func Forms(p *Path) []string {
	forms := []string{p.Clean}
	if p.Raw != p.Clean {
		forms = append(forms, p.Raw)
	}
	if p.Odd {
		for _, form := range source.LenientPaths(p.Raw) {
			if form != p.Clean && form != p.Raw {
				forms = append(forms, form)
			}
		}
	}
	return forms
}

// MaxPath is the length in bytes, 8 KiB, of the longest path in which expressions are to
// be searched, or of which all forms are: a client must not buy much time with one request.
const MaxPath = 8 << 10

// UsesRegex says whether a path is searched for one of these matches.
func UsesRegex(matches []*Match) bool {
	for _, m := range matches {
		if m.regex != nil {
			return true
		}
	}
	return false
}

// PathOf fills in the forms of the path of req.
func PathOf(req *http.Request, p *Path) {
	u := req.URL
	raw := u.EscapedPath()
	if raw == u.Path && raw != "" && raw[0] == '/' && strings.IndexByte(raw, ';') < 0 {
		p.Raw = raw
		p.Clean = path.Clean(raw) // without escapes, this is source.CleanPath
		return
	}
	pathOfOther(req, p)
}

// pathOfOther does what PathOf does, for a path that servers may read in several ways, or
// for none at all.
func pathOfOther(req *http.Request, p *Path) {
	p.Raw = source.EscapedPath(req)
	p.Clean = source.CleanPath(p.Raw)
	p.Odd = source.Lenient(p.Raw)
}

// Find returns the index of the rule that req falls under by one form of its path: of the
// first match. The last entry must be for all requests. Without an entry Find returns -1.
func Find(matches []*Match, req *http.Request, form string) int {
	open := form + "/" // whole segments are compared where both end in a slash
	for i, m := range matches {
		n := len(m.open)
		if len(open) < n || open[:n] != m.open || m.exact && len(open) != n {
			if m.written == "" || !holdsAsWritten(m, open) {
				continue
			}
		}
		if m.methods != nil && !m.methods[req.Method] && !m.methods[strings.ToUpper(req.Method)] {
			continue
		}
		if m.more && !othersHold(m, req, form) {
			continue
		}
		return i
	}
	return len(matches) - 1
}

// holdsAsWritten says whether a path, with a slash at its end, is what the operator
// wrote, where that is not clean. No clean path is, so this can be asked for both
// forms of the path of a request.
func holdsAsWritten(m *Match, open string) bool {
	if m.exact {
		return open == m.written
	}
	return strings.HasPrefix(open, m.written)
}

// othersHold says whether the rarer conditions of m hold.
func othersHold(m *Match, req *http.Request, path string) bool {
	if m.host != "" && m.host != req.Host && m.host != source.HostName(req.Host) {
		return false
	}
	if m.header != "" {
		value := source.HeaderValue(req, m.header)
		if value == "" || m.value != "" && m.value != value {
			return false
		}
	}
	return m.regex == nil || m.regex.MatchString(path)
}

var (
	tokenPattern  = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	methodPattern = regexp.MustCompile("^[A-Z][A-Z_-]*$")
	hostPattern   = regexp.MustCompile(`^[a-z0-9._-]*[a-z0-9_-]$`)
	strayPercent  = regexp.MustCompile(`%([^0-9A-Fa-f]|.[^0-9A-Fa-f]|.?$)`)
)

// refusal is the error for a value of an option, which it quotes, and tells what is
// wanted.
func refusal(value, want string) error {
	if len(value) > 100 {
		value = value[:100] + "..."
	}
	return fmt.Errorf("%q: %s", value, want)
}

func isControl(r rune) bool {
	return r < ' ' && r != '\t' || r == 0x7f
}

// checkPath refuses what is not the path of a URL.
func checkPath(path string) error {
	switch {
	case path == "" || path[0] != '/':
		return refusal(path, "a path is wanted, which begins with a slash")
	case strings.ContainsAny(path, "*{}") || strings.Contains(path, "/:") || strings.Contains(path, ",/"):
		return refusal(path, "a path has no wildcards and is one path; pathPrefix is for all paths below one, pathRegex for patterns")
	case strings.ContainsAny(path, "?#"):
		return refusal(path, "a path has neither a query nor a fragment; write %3F for a question mark and %23 for a number sign in it")
	case strayPercent.MatchString(path):
		return refusal(path, "a percent sign begins an escape such as %20; write %25 for the sign itself")
	case strings.IndexFunc(path, isControl) >= 0 || strings.Contains(path, "\t"):
		return refusal(path, "a path has no control characters")
	}
	return nil
}

// sent returns how a path is sent by a client that writes it as the operator did:
// what cannot stand in a request line is escaped, as source.EscapedPath has it.
func sent(path string) string {
	b := &strings.Builder{}
	for i := 0; i < len(path); i++ {
		if path[i] <= ' ' || path[i] >= 0x7f || strings.IndexByte("\"<>\\^`{|}", path[i]) >= 0 {
			fmt.Fprintf(b, "%%%02X", path[i])
		} else {
			b.WriteByte(path[i])
		}
	}
	return b.String()
}

// methodSet returns methods in upper case. The error quotes what is no method.
func methodSet(methods []string) (map[string]bool, error) {
	set := map[string]bool{}
	for _, method := range methods {
		name := strings.ToUpper(strings.Trim(method, " \t"))
		if !methodPattern.MatchString(name) || name == "ANY" || name == "ALL" {
			return nil, refusal(method, "a method of HTTP is wanted, such as POST; without any the rule is for all of them")
		}
		set[name] = true
	}
	return set, nil
}
