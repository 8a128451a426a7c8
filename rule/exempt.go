package rule

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/gatequota/gatequota/source"
)

// An Exempt says which requests are not limited: those for which any of its conditions
// holds. It is built once, by the functions that add conditions, and not changed while
// requests are served.
//
// All of it but the networks is written by the client, so it exempts only in the exact
// form in which the operator wrote it.
type Exempt struct {
	// Networks are those from which clients are not limited.
	Networks []netip.Prefix
	// Preflight exempts the requests by which a browser asks beforehand what a script
	// may do: OPTIONS with one Origin and one Access-Control-Request-Method.
	Preflight bool

	methods  map[string]bool // nil: none
	paths    map[string]bool // nil: neither paths nor prefixes
	prefixes []string        // with a slash at the end
}

// ambiguous are characters by which a path can lead out of where it seems to be, though
// it is clean: some servers resolve "..%2F", and some "..;/".
const ambiguous = "%;"

// Empty says that e exempts nothing.
func Empty(e *Exempt) bool {
	return len(e.Networks) == 0 && !e.Preflight && e.paths == nil && len(e.methods) == 0
}

// AddPath exempts a path, or, when it ends in "/*", all paths below that: "/assets/*"
// exempts /assets/logo.png, and neither /assets nor /assets/. The error says what can be
// exempt: no path is that does not arrive in its clean form, or holds a percent sign or
// a semicolon below what is exempt, since the application might take it for another one.
func AddPath(e *Exempt, path string) error {
	below := strings.HasSuffix(path, "/*")
	exact := strings.TrimSuffix(path, "/*")
	if below && exact == "" {
		exact = "/"
	}
	if strings.Contains(exact, "*") {
		return refusal(path, "an asterisk stands only at the end and behind a slash, as in /assets/*")
	}
	if err := checkPath(exact); err != nil {
		return err
	}
	plain := source.CleanPath(exact)
	if below {
		plain = strings.TrimSuffix(plain, "/") + "/*"
	}
	if sent(plain) != plain || below && strings.ContainsAny(plain, ambiguous) {
		return refusal(path, "a path with such characters can be taken for another one, and is never exempt")
	}
	if plain != path {
		return refusal(path, "a path is exempt only as it is written most simply; write "+plain)
	}
	if e.paths == nil {
		e.paths = map[string]bool{}
	}
	if below {
		e.prefixes = append(e.prefixes, strings.TrimSuffix(path, "*"))
	} else {
		e.paths[path] = true
	}
	return nil
}

// AddMethods exempts methods, which arrive in upper case: "get" is not GET. The error
// quotes what is no method.
func AddMethods(e *Exempt, methods []string) error {
	set, err := methodSet(methods)
	if err != nil {
		return err
	}
	if e.methods == nil {
		e.methods = set
		return nil
	}
	for method := range set {
		e.methods[method] = true
	}
	return nil
}

// Exempted says whether req is exempt. addr is the address that the client is known
// to have, in the form in which package source counts it; the zero Addr is none that
// can be relied on, and lies in no network.
func Exempted(e *Exempt, req *http.Request, p *Path, addr netip.Addr) bool {
	if e.methods != nil && e.methods[req.Method] {
		return true
	}
	if e.paths != nil && p.Raw == p.Clean && pathExempted(e, p.Raw) {
		return true
	}
	if e.Networks != nil && addressExempted(e, addr) {
		return true
	}
	return e.Preflight && req.Method == http.MethodOptions && isPreflight(req)
}

// pathExempted says whether a path is exempt that is clean and was sent so.
func pathExempted(e *Exempt, path string) bool {
	for _, prefix := range e.prefixes {
		n := len(prefix)
		if len(path) >= n && path[:n] == prefix && !strings.ContainsAny(path, ambiguous) {
			return true
		}
	}
	return e.paths[path]
}

func addressExempted(e *Exempt, addr netip.Addr) bool {
	for _, network := range e.Networks {
		if network.Contains(addr) {
			return true
		}
	}
	return false
}

// isPreflight says whether an OPTIONS request has what a browser sends with it before
// the request of a script.
func isPreflight(req *http.Request) bool {
	return source.HeaderValue(req, "Origin") != "" && source.HeaderValue(req, "Access-Control-Request-Method") != ""
}
