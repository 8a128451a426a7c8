package source

import (
	"net/http"
	"net/netip"
	"strings"
)

// maxHops is the number of entries of X-Forwarded-For that a search past trusted or
// excluded addresses looks at. No chain of proxies is so long, and a header of a
// megabyte must not buy a client a second of the gateway's time.
const maxHops = 64

// ClientAddr returns the address of the client that sent req, as c says where it stands:
// whole, without a zone, IPv4 in IPv6 as IPv4. It is the zero Addr when the request has
// none, such as one over a unix socket.
//
// It is certain unless there is none, or the peer stands in for a client that
// X-Forwarded-For should have told and did not. Whoever gives something away by
// address, such as an exemption, asks for certainty: the peer may be a proxy, and its
// address that of everybody behind it.
func ClientAddr(c *Criterion, req *http.Request) (addr netip.Addr, certain bool) {
	peer := peerAddr(req.RemoteAddr)
	if c.Depth == 0 && len(c.Excluded) == 0 && !within(c.Trusted, peer) {
		return peer, peer.IsValid()
	}
	client := forwarded(c, req)
	if client.IsValid() {
		return client, true
	}
	return peer, false
}

// address returns the client's address in its one canonical form, as the network that
// it lies in where c tells no single addresses apart, or "" when the request has none.
func address(c *Criterion, req *http.Request) string {
	if !c.direct {
		return otherAddress(c, req)
	}
	peer := req.RemoteAddr
	colon := strings.IndexByte(peer, ':')
	if colon > 0 && peer[0] != '[' {
		_, err := netip.ParseAddr(peer[:colon])
		if err == nil {
			return peer[:colon] // IPv4, which has one way to be written only
		}
	}
	return canonical(c, peerAddr(peer))
}

// otherAddress returns what address does, wherever the client's address stands.
func otherAddress(c *Criterion, req *http.Request) string {
	if c.Depth > 0 || len(c.Excluded) > 0 {
		// Who the peer is matters only if the header does not tell.
		client := forwarded(c, req)
		if client.IsValid() {
			return canonical(c, client)
		}
		return canonical(c, peerAddr(req.RemoteAddr))
	}
	client, _ := ClientAddr(c, req)
	return canonical(c, client)
}

// peerAddr reads the other end of a connection. The zero Addr means that it has no
// address.
func peerAddr(peer string) netip.Addr {
	whole, err := netip.ParseAddrPort(peer)
	if err == nil {
		return whole.Addr().WithZone("").Unmap()
	}
	return parseAddr(peer)
}

// canonical returns the text of addr, or of the network that it lies in if c tells only
// networks of its kind apart, or "" if it is the zero Addr.
func canonical(c *Criterion, addr netip.Addr) string {
	bits := c.IPv6Subnet
	if addr.Is4() {
		bits = c.IPv4Subnet
		if bits == 0 || bits == 32 {
			return addr.String()
		}
	}
	network, err := addr.Prefix(bits)
	if err != nil || !network.IsValid() {
		return ""
	}
	return network.String()
}

// within tells whether addr lies in one of networks.
func within(networks []netip.Prefix, addr netip.Addr) bool {
	for _, network := range networks {
		if network.Contains(addr) {
			return true
		}
	}
	return false
}

// forwarded finds the client in X-Forwarded-For, as c.Depth, c.Excluded or c.Trusted
// says. The zero Addr means that the header does not tell.
func forwarded(c *Criterion, req *http.Request) netip.Addr {
	list := strings.Join(req.Header["X-Forwarded-For"], ",")
	if c.Depth == 0 {
		return behind(c, list)
	}
	for i := 1; i < c.Depth; i++ {
		comma := strings.LastIndexByte(list, ',')
		if comma < 0 {
			return netip.Addr{}
		}
		list = list[:comma]
	}
	return parseAddr(list[strings.LastIndexByte(list, ',')+1:])
}

// behind returns the first address of list, from the right, that is none of the proxies
// of c, and where all are trusted ones, the last.
func behind(c *Criterion, list string) netip.Addr {
	proxies := c.Excluded
	trusting := len(proxies) == 0
	if trusting {
		proxies = c.Trusted
	}
	farthest := netip.Addr{}
	for hop := 0; hop < maxHops; hop++ {
		list = strings.TrimRight(list, ", \t")
		if list == "" {
			return farthest
		}
		comma := strings.LastIndexByte(list, ',')
		addr := parseAddr(list[comma+1:])
		if !addr.IsValid() || !within(proxies, addr) {
			return addr
		}
		if trusting {
			farthest = addr
		}
		list = list[:comma+1]
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

// HostName returns the one form of a host as it stands in a request: lower case,
// without port and without the dot that ends a fully qualified name, an IPv6
// address without brackets and in its canonical form. It is empty when host
// names nothing.
func HostName(host string) string {
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
