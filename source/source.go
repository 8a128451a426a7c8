// Package source answers the question who is asking: it reduces a request to one
// identity of bounded size, under which the request is counted.
//
// An identity stays in the memory of this process. What leaves it is the digest of
// the identity, so that no secret of a client, such as an API key, reaches the store
// or a log in clear. Two name spaces exist and cannot meet:
//
//   - the value of a header, digested as it is, so that an operator who knows an API
//     key finds its count with sha256sum;
//   - everything else, as parts of the form kind ":" length ":" text behind a zero
//     byte. No header of HTTP can carry a zero byte, and a value that begins with
//     one all the same is treated as missing, so a client without a key cannot be
//     charged to somebody by a made-up header, nor escape its own address.
package source

import (
	"crypto/sha256"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
)

// maxHops is the number of entries of X-Forwarded-For that a search past excluded
// addresses looks at. No chain of proxies is so long, and a header of a megabyte
// must not buy a client a second of the gateway's time.
const maxHops = 64

// A Criterion says by what a request is counted: by Header if it is set, else by
// Host if it is set, else by the client's address. It is built once, from checked
// options, and not changed while requests are served.
//
// # Which address
//
// The address is the peer's: the other end of the connection, as the entry point
// sees it (with PROXY protocol, the one that it announced). Behind a trusted
// proxy or load balancer that is the proxy, and Depth or Excluded say where in
// X-Forwarded-For the client stands. Two properties of Traefik matter to them:
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
	// Header is the header that names the client, in the form of
	// textproto.CanonicalMIMEHeaderKey. Empty: not by header. A request without
	// the header counts by its address. So does one that has it empty, blank or
	// on several lines, where a proxy and the application could take different
	// ones for the true one.
	Header string

	// Host counts by the host that was asked for, without port and trailing dot,
	// in lower case. A request that names none counts by its address.
	Host bool

	// Depth is the position of the client in X-Forwarded-For, counted from the
	// right over all its lines; 1 is the last entry. Zero: not used.
	Depth int

	// Excluded are the proxies between the client and the gateway: the client is
	// the first address from the right that lies in none of them. Empty entries
	// are passed over. Not used when Depth is set.
	Excluded []netip.Prefix

	// IPv6Subnet is the number of leading bits, 1 to 128, by which IPv6 addresses
	// are told apart: whoever owns one address usually owns 64 bits of them.
	IPv6Subnet int
}

// MaxIdentity is the length of the longest identity in bytes: no client decides how
// much memory it takes.
const MaxIdentity = 64

// Identify returns the identity of whoever sent req: 1 to MaxIdentity bytes. Requests
// that say nothing usable about their sender, such as those over a unix socket, share
// the identity of the empty address, so that they are limited together rather than not
// at all.
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
	kind, text := "\x00host:", ""
	if c.Host {
		text = hostName(req.Host)
	}
	if text == "" {
		kind = "\x00address:"
		text = address(c, req)
	}
	return bounded(kind + strconv.Itoa(len(text)) + ":" + text)
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

// address returns the client's address in its one canonical form, an IPv6 address
// as the network of c.IPv6Subnet bits that it lies in, or "" when the request has
// none.
func address(c *Criterion, req *http.Request) string {
	if c.Depth > 0 || len(c.Excluded) > 0 {
		addr := forwarded(c, strings.Join(req.Header["X-Forwarded-For"], ","))
		if addr.IsValid() {
			return canonical(c, addr)
		}
	}
	peer := req.RemoteAddr
	colon := strings.IndexByte(peer, ':')
	if colon > 0 && peer[0] != '[' {
		_, err := netip.ParseAddr(peer[:colon])
		if err == nil {
			return peer[:colon] // IPv4, which has one way to be written only
		}
	}
	return otherPeer(c, peer)
}

// otherPeer returns what address does, for a peer that is not plain IPv4.
func otherPeer(c *Criterion, peer string) string {
	whole, err := netip.ParseAddrPort(peer)
	if err == nil {
		return canonical(c, whole.Addr().Unmap())
	}
	return canonical(c, parseAddr(peer))
}

// canonical returns the text of addr, or of the network that it lies in if it is an
// IPv6 address (which has no zone any more), or "" if it is the zero Addr.
func canonical(c *Criterion, addr netip.Addr) string {
	if addr.Is4() {
		return addr.String()
	}
	network, err := addr.Prefix(c.IPv6Subnet)
	if err != nil || !network.IsValid() {
		return ""
	}
	return network.String()
}

// forwarded finds the client in list, all lines of X-Forwarded-For joined, as
// c.Depth or c.Excluded says. The zero Addr means that the header does not tell.
func forwarded(c *Criterion, list string) netip.Addr {
	if c.Depth > 0 {
		for i := 1; i < c.Depth; i++ {
			comma := strings.LastIndexByte(list, ',')
			if comma < 0 {
				return netip.Addr{}
			}
			list = list[:comma]
		}
		return parseAddr(list[strings.LastIndexByte(list, ',')+1:])
	}
	for hop := 0; hop < maxHops; hop++ {
		list = strings.TrimRight(list, ", \t")
		comma := strings.LastIndexByte(list, ',')
		addr := parseAddr(list[comma+1:])
		if !addr.IsValid() {
			return addr
		}
		excluded := false
		for _, network := range c.Excluded {
			if network.Contains(addr) {
				excluded = true
				break
			}
		}
		if !excluded {
			return addr
		}
		if comma < 0 {
			break
		}
		list = list[:comma]
	}
	return netip.Addr{}
}

// parseAddr reads an address as proxies write it: alone, with a port, in square
// brackets, in double quotes. The zone is dropped, and IPv4 in IPv6 is IPv4. An
// IPv6 address without brackets is taken whole, since nothing tells its end from
// a port. The zero Addr means that text is no address.
func parseAddr(text string) netip.Addr {
	text = strings.Trim(text, " \t")
	addr, err := netip.ParseAddr(text)
	if err != nil {
		addr = parseDecorated(text)
	}
	if addr.Is4() {
		return addr
	}
	return addr.WithZone("").Unmap()
}

// parseDecorated reads an address with a port, in square brackets, in double
// quotes, or any of them together, with blanks neither inside nor around.
func parseDecorated(text string) netip.Addr {
	if len(text) > 1 && text[0] == '"' && text[len(text)-1] == '"' {
		text = text[1 : len(text)-1]
	}
	withPort, err := netip.ParseAddrPort(text)
	if err == nil {
		return withPort.Addr()
	}
	bracketed := len(text) > 1 && text[0] == '[' && text[len(text)-1] == ']'
	if bracketed {
		text = text[1 : len(text)-1]
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || bracketed && addr.Is4() {
		return netip.Addr{}
	}
	return addr
}

// hostName returns the one form of a host as it stands in a request: lower case,
// without port and without the dot that ends a fully qualified name, an IPv6
// address without brackets and in its canonical form. It is empty when host
// names nothing.
func hostName(host string) string {
	host = strings.ToLower(host)
	colon := strings.LastIndexByte(host, ':')
	if colon >= 0 {
		if host[0] == '[' || strings.IndexByte(host, ':') != colon {
			addr := parseAddr(host)
			if addr.IsValid() {
				return addr.String()
			}
			return host // no host at all, and not to be mistaken for one
		}
		host = host[:colon]
	}
	return strings.TrimSuffix(host, ".")
}
