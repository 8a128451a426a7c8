package source

import (
	"fmt"
	"net/netip"
	"strings"
)

// ParsePrefix reads one entry of a list of networks: an address, which stands for
// itself alone, or a range in CIDR notation. Blanks around it are dropped, bits
// behind the mask are cleared, and IPv4 in IPv6 is IPv4, as it is in the addresses
// that are compared with it. The error quotes text.
func ParsePrefix(text string) (netip.Prefix, error) {
	text = strings.TrimSpace(text)
	if !strings.Contains(text, "/") {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%q is neither an address nor a CIDR range", text)
		}
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	network, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is neither an address nor a CIDR range", text)
	}
	if network.Addr().Is4In6() {
		if network.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("%q mixes IPv4 with IPv6", text)
		}
		network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-96)
	}
	return network.Masked(), nil
}
