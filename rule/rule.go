// Package rule says which of several rules a request falls under, and whether it is
// exempt from all of them.
//
// A path can be written in many ways, and a gateway does not know which of them the
// application behind it takes for the same. So a request has two forms of its path
// here: the clean one of source.CleanPath, and the one that was sent. What loosens a
// limit must hold by both, what tightens it by either:
//
//   - Where the two forms fall under different rules, the less generous one applies.
//   - No path exempts whose forms differ.
//
// The functions that see requests are written for an interpreter, in which a call of
// a function costs as much as ten comparisons.
package rule

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"regexp"
	"strings"

	"github.com/gatequota/gatequota/source"
)

// A Match says which requests a rule is for: those for which all its conditions hold.
// Without a condition it is for all requests. It is built once, by the functions that
// set its conditions, and not changed while requests are served.
type Match struct {
	// Rate tells how generous the rule is: the requests a second that it lets a
	// client make. +Inf is a rule that refuses nothing. It must not be NaN.
	Rate float64

	path, prefix  string // as source.CleanPath has it, the prefix with a slash at its end
	pathWritten   string // how it is sent by who writes it as the operator did; empty: like path
	prefixWritten string // the same for prefix
	regex         *regexp.Regexp
	methods       map[string]bool // in upper case
	host          string          // as source.HostName has it
	header        string          // in its canonical form
	value         string          // empty: any
	more          bool            // there is a condition besides path and prefix
}

// SetPath sets the condition that the path is this one, cleaned as the path of a
// request is. The error says what a path is.
func SetPath(m *Match, path string) error {
	if err := checkPath(path); err != nil {
		return err
	}
	m.path = source.CleanPath(path)
	m.pathWritten = ""
	written := sent(path)
	if written != m.path {
		m.pathWritten = written
	}
	return nil
}

// SetPathPrefix sets the condition that the path begins with the segments of prefix,
// cleaned as the path of a request is: "/api" is for /api and /api/x, not for /apix.
// "/" is for all paths, and thus no condition. The error says what a path is.
func SetPathPrefix(m *Match, prefix string) error {
	if err := checkPath(prefix); err != nil {
		return err
	}
	m.prefix, m.prefixWritten = "", ""
	clean := source.CleanPath(prefix)
	if clean == "/" {
		return nil
	}
	m.prefix = clean + "/"
	written := strings.TrimRight(sent(prefix), "/") + "/"
	if written != m.prefix {
		m.prefixWritten = written
	}
	return nil
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
	m.methods, m.more = set, true
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

// A Path is the path of a request in its two forms.
type Path struct {
	Clean string // as source.CleanPath has it
	Raw   string // as source.EscapedPath has it
}

// PathOf fills in the forms of the path of req.
func PathOf(req *http.Request, p *Path) {
	p.Raw = source.EscapedPath(req)
	p.Clean = source.CleanPath(p.Raw)
}

// Find returns the index of the rule that req falls under: of the first match by the
// clean path or by the raw path, whichever is less generous, the earlier one if they
// are equally so. The last entry is for all requests, whatever its conditions. Without
// an entry Find returns -1.
func Find(matches []*Match, req *http.Request, p *Path) int {
	path := p.Clean
	open := path + "/" // whole segments are compared where both end in a slash
	method, host := "", ""
	found := len(matches) - 1
	for i, m := range matches {
		if i == found {
			break
		}
		// What was written otherwise than clean is never met by a clean path, so both
		// forms of a request can be compared with both forms of a condition.
		if m.path != "" && path != m.path && path != m.pathWritten {
			continue
		}
		if m.prefix != "" && !strings.HasPrefix(open, m.prefix) {
			if m.prefixWritten == "" || !strings.HasPrefix(open, m.prefixWritten) {
				continue
			}
		}
		if m.more {
			if m.methods != nil && !m.methods[req.Method] {
				if method == "" {
					method = strings.ToUpper(req.Method)
				}
				if !m.methods[method] {
					continue
				}
			}
			if m.host != "" && m.host != req.Host {
				if host == "" {
					host = source.HostName(req.Host)
				}
				if m.host != host {
					continue
				}
			}
			if m.header != "" {
				value := source.HeaderValue(req, m.header)
				if value == "" || m.value != "" && m.value != value {
					continue
				}
			}
			if m.regex != nil && !m.regex.MatchString(path) {
				continue
			}
		}
		found = i
		break
	}
	if p.Raw != path {
		return lessGenerous(matches, req, p, found)
	}
	return found
}

// lessGenerous returns what Find does, where clean is what it finds by the clean path
// and the raw path differs from that.
func lessGenerous(matches []*Match, req *http.Request, p *Path, clean int) int {
	raw := Find(matches, req, &Path{Clean: p.Raw, Raw: p.Raw})
	if raw < 0 || matches[clean].Rate < matches[raw].Rate {
		return clean
	}
	if matches[raw].Rate < matches[clean].Rate || raw < clean {
		return raw
	}
	return clean
}

var (
	tokenPattern = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	hostPattern  = regexp.MustCompile(`^[a-z0-9._-]*[a-z0-9_-]$`)
	strayPercent = regexp.MustCompile(`%([^0-9A-Fa-f]|.[^0-9A-Fa-f]|.?$)`)
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
		if !tokenPattern.MatchString(name) {
			return nil, refusal(method, "a method of HTTP is wanted, such as POST")
		}
		set[name] = true
	}
	return set, nil
}
