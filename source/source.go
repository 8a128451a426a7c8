// Package source answers the question who is asking: it reduces a request to one
// identity of bounded size, under which the request is counted.
//
// An identity stays in the memory of this process. What leaves it is the digest of
// the identity, so that no secret of a client, such as an API key, reaches the store
// or a log in clear. Two name spaces exist and cannot meet:
//
//   - the value of a header that counts alone, digested as it is, so that an operator
//     who knows an API key finds its count with sha256sum;
//   - everything else, as parts behind a zero byte. A part is kind ":" length ":" text,
//     and kind ":" length ":" name ":" length ":" text where the kind has names, such
//     as those of cookies. No header of HTTP can carry a zero byte, and a value that
//     begins with one all the same is treated as missing, so a client without a key
//     cannot be charged to somebody by a made-up header, nor escape its own address.
//
// The lengths tell where a text ends, whatever it contains, so that two identities are
// the same only if all their parts are.
package source

import (
	"crypto/hmac"
	"crypto/sha256"
	"net/http"
	"net/netip"
	"sort"
	"strconv"
	"strings"
)

// What becomes of a request that lacks a part of the criterion.
const (
	// MissingAddress puts the client's address in the place of the part.
	MissingAddress = "address"
	// MissingSkip and MissingRefuse leave the request without an identity.
	MissingSkip   = "skip"
	MissingRefuse = "refuse"
	// MissingShared counts all requests that lack the part together.
	MissingShared = "shared"
)

// A Criterion says by what a request is counted: by one part of it or by several
// together, and by the client's address if no part is set. It is built once, from
// checked options, given to Prepare, and not changed while requests are served.
//
// # Missing parts
//
// A part is missing when a request does not have it or has it empty or blank, when it
// begins with a zero byte, and when the request has it more than once, where a proxy
// and the application could take different ones for the true one. OnMissing says what
// then. A client can make each part missing, the last way even where the application
// still finds it: what skips such requests trusts the application to refuse them. The
// address is never missing: requests without any, such as those over a unix
// socket, share the empty one, so that they are limited together rather than not at all.
//
// # Which address
//
// The address is the peer's: the other end of the connection, as the entry point
// sees it (with PROXY protocol, the one that it announced). Behind a trusted
// proxy or load balancer that is the proxy, and Depth, Excluded or Trusted says where
// in X-Forwarded-For the client stands. Two properties of Traefik matter to them:
//
//   - Middlewares run before Traefik appends the peer to X-Forwarded-For, so the
//     last entry is the one that the peer wrote, not the peer itself.
//   - The entry point removes X-Forwarded-For when the peer is not listed in its
//     forwardedHeaders.trustedIPs (unless forwardedHeaders.insecure is set, which
//     lets every client choose its address). Without that setting the header is
//     always absent here and everybody is counted by the peer.
//
// When the header is absent, too short, or holds no address where one is wanted,
// the peer counts. There is no empty key that strangers would share.
type Criterion struct {
	// Header is the one header that names the client, in the form of
	// textproto.CanonicalMIMEHeaderKey. It counts alone: where other parts are set,
	// it is one of Headers, to which Prepare moves it.
	Header string

	// Headers are headers that are parts, in the form of Header.
	Headers []string

	// Host is the host that was asked for, without port and trailing dot, in lower
	// case.
	Host bool

	// Cookie is the name of a cookie. Blanks and one pair of double quotes around its
	// value do not count. A request with more than 256 cookies has none.
	Cookie string

	// Query is the name of a parameter in the query of the URL. A query that is
	// malformed anywhere, as by a bare semicolon, has none: what it says is for each
	// server to guess.
	Query string

	// Segment is the number of a segment of the path as CleanPath has it, counted
	// from the left; 1 is the first. Zero: not used.
	Segment int

	// Claim is the name of a claim of the bearer token. See the function Claim: the
	// token is not verified.
	Claim string

	// TLSSubject is the subject of the client's certificate, if it was verified.
	TLSSubject bool

	// Address makes the client's address a part beside others.
	Address bool

	// OnMissing is one of MissingAddress, MissingSkip, MissingShared and
	// MissingRefuse. Empty: MissingAddress.
	OnMissing string

	// Depth is the position of the client in X-Forwarded-For, counted from the
	// right over all its lines; 1 is the last entry. Zero: not used.
	Depth int

	// Excluded are the proxies between the client and the gateway: the client is
	// the first address from the right that lies in none of them. Empty entries
	// are passed over. Not used when Depth is set.
	Excluded []netip.Prefix

	// Trusted are the proxies that are believed. A peer that is none of them is the
	// client, whatever X-Forwarded-For says. Else the client is the first address from
	// the right that lies in none of them; empty entries are passed over. Where there
	// is none such, the client is in their network itself, and the leftmost address
	// is its own, as in nginx (real_ip_recursive) and Express (trust proxy). Not used
	// when Depth or Excluded is set.
	Trusted []netip.Prefix

	// IPv4Subnet is the number of leading bits, 1 to 32, by which IPv4 addresses are
	// told apart. Zero: 32.
	IPv4Subnet int

	// IPv6Subnet is the number of leading bits, 1 to 128, by which IPv6 addresses
	// are told apart: whoever owns one address usually owns 64 bits of them.
	IPv6Subnet int

	// Set by Prepare; without them the same comes out, later. With plain, Header, Host
	// or the address counts alone, and the address if they are missing. With direct, the
	// address is the peer's, and IPv4 addresses are told apart one by one.
	plain, direct bool
}

// MaxIdentity is the length of the longest identity in bytes: no client decides how
// much memory it takes.
const MaxIdentity = 64

// Prepare brings c into the form in which Identify is fast and does not depend on the
// order in which headers were named. It is called again after each change of c.
func Prepare(c *Criterion) {
	names := append([]string{}, c.Headers...)
	if c.Header != "" {
		names = append(names, c.Header)
	}
	sort.Strings(names)
	c.Header = ""
	c.Headers = nil
	for i, name := range names {
		if i == 0 || name != names[i-1] {
			c.Headers = append(c.Headers, name)
		}
	}
	few := c.Cookie == "" && c.Query == "" && c.Segment == 0 && c.Claim == "" && !c.TLSSubject
	if len(c.Headers) == 1 && few && !c.Host && !c.Address {
		c.Header = c.Headers[0]
		c.Headers = nil
	}
	c.plain = few && len(c.Headers) == 0 && !(c.Host && c.Address) &&
		(c.OnMissing == "" || c.OnMissing == MissingAddress)
	c.direct = c.Depth == 0 && len(c.Excluded) == 0 && len(c.Trusted) == 0 && (c.IPv4Subnet == 0 || c.IPv4Subnet == 32)
}

// Identify returns the identity of whoever sent req: 1 to MaxIdentity bytes, or "" if
// the request lacks a part and c.OnMissing is MissingSkip or MissingRefuse, and only
// then.
//
// It is on the path of every request, and written for an interpreter in which a
// call of a function pays for all its variables: hence the small first function, and
// each of the next for what is rarer.
func Identify(c *Criterion, req *http.Request) string {
	// No request has a header with an empty name.
	lines := req.Header[c.Header]
	if len(lines) == 1 {
		value := lines[0]
		if length := len(value); length > 0 && length <= MaxIdentity && value[0] > ' ' && value[length-1] > ' ' {
			return value
		}
	}
	return identifyOther(c, req, lines)
}

// identifyOther returns the identity of a request that no plain header tells.
func identifyOther(c *Criterion, req *http.Request, lines []string) string {
	if len(lines) == 1 {
		value := strings.Trim(lines[0], " \t")
		if value >= "\x01" { // neither empty nor in the other name space
			return bounded(value)
		}
	}
	if !c.plain {
		return identifyParts(c, req)
	}
	kind, text := "\x00host:", ""
	if c.Host {
		text = HostName(req.Host)
	}
	if text == "" {
		kind = "\x00address:"
		text = address(c, req)
	}
	return bounded(kind + strconv.Itoa(len(text)) + ":" + text)
}

// identifyParts returns the identity of a request by all parts of c, of which a header
// that counts alone is known to be missing.
func identifyParts(c *Criterion, req *http.Request) string {
	parts := []string{} // kinds and values in turn
	if c.Header != "" {
		parts = append(parts, named("header:", c.Header), "")
	} else {
		parts = gather(c, req)
	}
	if len(parts) == 2 && len(c.Headers) == 1 && parts[1] != "" {
		return bounded(parts[1])
	}
	text := "\x00"
	for i := 0; i < len(parts); i += 2 {
		kind := parts[i]
		value := parts[i+1]
		if value == "" && kind != "address:" {
			if c.OnMissing == MissingSkip || c.OnMissing == MissingRefuse {
				return ""
			}
			if c.OnMissing == MissingShared {
				text += kind + "-:" // no length is written so
				continue
			}
			kind = "address:"
			value = address(c, req)
		}
		text += kind + strconv.Itoa(len(value)) + ":" + value
	}
	return bounded(text)
}

// gather returns the kinds of all parts of c with their values in req, "" where one is
// missing, in the one order in which identities have them.
func gather(c *Criterion, req *http.Request) []string {
	parts := []string{}
	for _, name := range c.Headers {
		parts = append(parts, named("header:", name), HeaderValue(req, name))
	}
	if c.Host {
		parts = append(parts, "host:", HostName(req.Host))
	}
	if c.Cookie != "" {
		parts = append(parts, named("cookie:", c.Cookie), cookie(req, c.Cookie))
	}
	if c.Query != "" {
		parts = append(parts, named("query:", c.Query), parameter(req, c.Query))
	}
	if c.Segment > 0 {
		parts = append(parts, "segment:"+strconv.Itoa(c.Segment)+":", segment(req, c.Segment))
	}
	if c.Claim != "" {
		parts = append(parts, named("claim:", c.Claim), Claim(req, c.Claim))
	}
	if c.TLSSubject {
		parts = append(parts, "subject:", subject(req))
	}
	if c.Address || len(parts) == 0 {
		parts = append(parts, "address:", address(c, req))
	}
	return parts
}

// named returns the kind of a part that has a name.
func named(kind, name string) string {
	return kind + strconv.Itoa(len(name)) + ":" + name + ":"
}

// digested stands before a digest that is an identity, and before no other.
const digested = "\x00sha256:"

// bounded replaces a text that is too long for an identity by its digest.
func bounded(text string) string {
	if len(text) <= MaxIdentity {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return digested + string(sum[:])
}

// Digest returns the SHA-256 of what an identity stands for: 32 bytes.
func Digest(identity string) string {
	if strings.HasPrefix(identity, digested) {
		return identity[len(digested):]
	}
	sum := sha256.Sum256([]byte(identity))
	return string(sum[:])
}

// KeyedDigest returns the HMAC-SHA256 of Digest(identity) under secret: 32 bytes, from
// which nobody who lacks the secret can tell the identity by trying all.
func KeyedDigest(secret, identity string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(Digest(identity)))
	return string(mac.Sum(nil))
}
