package resp

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// defaultPort is the port of an endpoint that names none.
const defaultPort = "6379"

// allowed ends every refusal of ParseEndpoint.
const allowed = "allowed are host, host:port, [IPv6]:port, an IPv6 address, and unix:///path"

// ParseEndpoint reads the address of a server as a user writes it: "host:port",
// "host" (port 6379), "[::1]:6379", "[::1]", "::1" or "unix:///path". It returns
// what net.Dial takes: "tcp" with host:port, or "unix" with a path. A text with
// more than one colon and without brackets is an IPv6 address as a whole.
//
// Everything else is refused, with ErrEndpoint and a text that names what was
// written and what is allowed: blanks, an empty text, URLs, user names and
// passwords, lists, ports other than 1 to 65535. What stands before an "@" is not
// shown, for it may be a password.
func ParseEndpoint(text string) (network, address string, err error) {
	if text == "" {
		return "", "", badEndpoint(text, "it is empty")
	}
	if strings.ContainsAny(text, " \t\r\n\v\f\u00a0") {
		return "", "", badEndpoint(text, "it holds a blank")
	}
	if strings.Contains(text, ",") {
		return "", "", badEndpoint(text, "it holds a comma, and one endpoint is one server")
	}
	if strings.HasPrefix(text, "unix://") {
		path := text[len("unix://"):]
		if len(path) < 2 || path[0] != '/' || path[len(path)-1] == '/' {
			return "", "", badEndpoint(text, "the path of a unix socket is absolute and names a file")
		}
		return "unix", path, nil
	}
	if i := strings.Index(text, "://"); i >= 0 {
		return "", "", badEndpoint(text, "it is a URL; user, password, database and TLS have options of their own")
	}
	if strings.Contains(text, "@") {
		return "", "", badEndpoint(text, "it holds a user or password, which have options of their own")
	}
	if text[0] == '[' {
		return bracketed(text)
	}
	if strings.Count(text, ":") > 1 {
		if !isIPv6(text) {
			return "", "", badEndpoint(text, "it is no IPv6 address and has more than one colon")
		}
		return "tcp", net.JoinHostPort(text, defaultPort), nil
	}
	host, port := text, defaultPort
	if i := strings.IndexByte(text, ':'); i >= 0 {
		host, port = text[:i], text[i+1:]
	}
	if !isHost(host) {
		return "", "", badEndpoint(text, "its host is neither a name nor an address")
	}
	if !isPort(port) {
		return "", "", badEndpoint(text, "its port is no number from 1 to 65535")
	}
	return "tcp", net.JoinHostPort(host, port), nil
}

// bracketed reads "[IPv6]" and "[IPv6]:port".
func bracketed(text string) (network, address string, err error) {
	end := strings.IndexByte(text, ']')
	if end < 0 || !isIPv6(text[1:end]) {
		return "", "", badEndpoint(text, "brackets hold an IPv6 address")
	}
	host, rest := text[1:end], text[end+1:]
	if rest == "" {
		return "tcp", net.JoinHostPort(host, defaultPort), nil
	}
	if rest[0] != ':' || !isPort(rest[1:]) {
		return "", "", badEndpoint(text, "its port is no number from 1 to 65535")
	}
	return "tcp", net.JoinHostPort(host, rest[1:]), nil
}

func badEndpoint(text, reason string) error {
	shown := text
	if at := strings.LastIndexByte(text, '@'); at >= 0 {
		begin := 0
		if i := strings.Index(text, "://"); i >= 0 && i < at {
			begin = i + len("://")
		}
		shown = text[:begin] + "***" + text[at:]
	}
	// What follows the parts of an address may be a password too.
	if i := strings.IndexAny(text, ",?=#;"); i >= 0 && shown == text {
		shown = text[:i+1] + "..."
	}
	return fmt.Errorf("%w %q: %s; %s", ErrEndpoint, shown, reason, allowed)
}

func isIPv6(text string) bool {
	address, err := netip.ParseAddr(text)
	return err == nil && address.Is6()
}

// isPort tells whether text is a number from 1 to 65535 as one writes it: digits
// without sign and without leading zero.
func isPort(text string) bool {
	if text == "" || len(text) > 5 || text[0] == '0' {
		return false
	}
	n := 0
	for i := 0; i < len(text); i++ {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
		n = n*10 + int(text[i]-'0')
	}
	return n <= 65535
}

// isHost tells whether text is an IPv4 address or a name that a resolver may know.
// A name whose last label is a number is a mistyped address, or a lone port.
func isHost(text string) bool {
	if address, err := netip.ParseAddr(text); err == nil {
		return address.Is4()
	}
	if text == "" || len(text) > 253 {
		return false
	}
	labels := strings.Split(strings.TrimSuffix(text, "."), ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := 0; i < len(label); i++ {
			b := label[i]
			letter := (b >= 'a' && b <= 'z') || (b >= 'A' && b <= 'Z')
			digit := b >= '0' && b <= '9'
			if !letter && !digit && b != '-' && b != '_' {
				return false
			}
		}
	}
	return strings.Trim(labels[len(labels)-1], "0123456789") != ""
}
