package source

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

func TestTrustedAddress(t *testing.T) {
	const own = "198.51.100.9"
	tests := []struct {
		name, remote string
		lines        []string
		counted      string
		certain      bool
	}{
		{"peer not trusted", peer, []string{"203.0.113.7"}, own, true},
		{"peer not trusted, trusted chain", peer, []string{"203.0.113.7, 10.0.0.1"}, own, true},
		{"peer not trusted, no header", peer, nil, own, true},
		{"one hop", "10.0.0.1:1", []string{"203.0.113.7"}, "203.0.113.7", true},
		{"forged entries on the left", "10.0.0.1:1", []string{"192.0.2.66, 10.0.0.9, 203.0.113.7"}, "203.0.113.7", true},
		{"two hops", "10.0.0.1:1", []string{"203.0.113.7, 10.0.0.2"}, "203.0.113.7", true},
		{"over lines", "10.0.0.1:1", []string{"192.0.2.66", "203.0.113.7", "10.0.0.2"}, "203.0.113.7", true},
		{"forged second line", "10.0.0.1:1", []string{"203.0.113.7, 10.0.0.2", "192.0.2.66"}, "192.0.2.66", true},
		{"empty entries and lines", "10.0.0.1:1", []string{"203.0.113.7,, ", "", " ,10.0.0.2,"}, "203.0.113.7", true},
		{"trusted IPv6 peer", "[2001:db8:ffff::1%eth0]:1", []string{"203.0.113.7"}, "203.0.113.7", true},
		{"trusted peer as IPv4 in IPv6", "[::ffff:10.0.0.1]:1", []string{"203.0.113.7"}, "203.0.113.7", true},
		{"ports, brackets, quotes", "10.0.0.1:1", []string{`"203.0.113.7:51234", [2001:db8:ffff::2]:443`}, "203.0.113.7", true},
		{"IPv4 in IPv6", "10.0.0.1:1", []string{"::ffff:203.0.113.7, ::ffff:10.0.0.2"}, "203.0.113.7", true},
		{"all trusted: the leftmost", "10.0.0.1:1", []string{"10.0.0.4, 10.0.0.3, 10.0.0.2"}, "10.0.0.4", true},
		{"all trusted behind empty entries", "10.0.0.1:1", []string{" ,, 10.0.0.4, 10.0.0.3"}, "10.0.0.4", true},
		{"one trusted", "10.0.0.1:1", []string{"10.0.0.4"}, "10.0.0.4", true},

		{"header absent", "10.0.0.1:1", nil, "10.0.0.1", false},
		{"header empty", "10.0.0.1:1", []string{""}, "10.0.0.1", false},
		{"commas alone", "10.0.0.1:1", []string{" , ,"}, "10.0.0.1", false},
		{"garbage", "10.0.0.1:1", []string{"unknown, _hidden"}, "10.0.0.1", false},
		{"garbage behind a proxy", "10.0.0.1:1", []string{"203.0.113.7, unknown, 10.0.0.2"}, "10.0.0.1", false},
		{"garbage before trusted ones alone", "10.0.0.1:1", []string{"unknown, 10.0.0.2"}, "10.0.0.1", false},
		{"no peer", "@", []string{"203.0.113.7"}, "", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			header := http.Header{}
			if test.lines != nil {
				header["X-Forwarded-For"] = test.lines
			}
			req := request(test.remote, header)
			c := &Criterion{Trusted: prefixes(t, "10.0.0.0/8", "2001:db8:ffff::/48"), IPv6Subnet: 64}
			if got := identified(c, req); got != byAddress(test.counted) {
				t.Errorf("identity is %q, want that of address %q", Identify(c, req), test.counted)
			}
			addr, certain := ClientAddr(c, req)
			if certain != test.certain || test.counted != "" && addr.String() != test.counted || test.counted == "" && addr.IsValid() {
				t.Errorf("address %v, certain %t; want %s, %t", addr, certain, test.counted, test.certain)
			}
		})
	}
}

func TestTrustedListIsNotSearchedForEver(t *testing.T) {
	c := &Criterion{Trusted: prefixes(t, "10.0.0.0/8"), IPv6Subnet: 64}
	within := "203.0.113.7" + strings.Repeat(",10.0.0.2", maxHops-1)
	if got := identified(c, request("10.0.0.1:1", http.Header{"X-Forwarded-For": {within}})); got != byAddress("203.0.113.7") {
		t.Errorf("a chain of %d proxies is not followed to its end", maxHops-1)
	}
	for _, first := range []string{"203.0.113.7", "10.0.0.9"} {
		beyond := first + strings.Repeat(",10.0.0.2", maxHops)
		req := request("10.0.0.1:1", http.Header{"X-Forwarded-For": {beyond}})
		if addr, certain := ClientAddr(c, req); addr.String() != "10.0.0.1" || certain {
			t.Errorf("behind %d proxies: %v, %t", maxHops, addr, certain)
		}
	}
}

func TestClientAddr(t *testing.T) {
	excluded := Criterion{Excluded: prefixes(t, "10.0.0.0/8")}
	tests := []struct {
		name, remote, list string
		c                  Criterion
		want               string // "invalid IP" if there is none
		certain            bool
	}{
		{"peer", peer, "203.0.113.7", Criterion{}, "198.51.100.9", true},
		{"peer, whole under a mask", peer, "", Criterion{IPv4Subnet: 24}, "198.51.100.9", true},
		{"IPv6 peer, whole under a mask", "[2001:db8::1:2:3:4]:1", "", Criterion{IPv6Subnet: 64}, "2001:db8::1:2:3:4", true},
		{"zone", "[fe80::1%eth0]:1", "", Criterion{}, "fe80::1", true},
		{"IPv4 in IPv6", "[::ffff:203.0.113.7%eth0]:1", "", Criterion{}, "203.0.113.7", true},
		{"without port", "2001:db8::1", "", Criterion{}, "2001:db8::1", true},
		{"no peer", "@", "", Criterion{}, "invalid IP", false},
		{"depth", peer, "203.0.113.7, 10.0.0.1", Criterion{Depth: 2}, "203.0.113.7", true},
		{"depth without peer", "@", "203.0.113.7", Criterion{Depth: 1}, "203.0.113.7", true},
		{"depth beyond the list", peer, "203.0.113.7", Criterion{Depth: 2}, "198.51.100.9", false},
		{"depth, garbage", peer, "unknown", Criterion{Depth: 1}, "198.51.100.9", false},
		{"depth, nothing at all", "@", "", Criterion{Depth: 1}, "invalid IP", false},
		{"excluded", peer, "203.0.113.7, 10.0.0.1", excluded, "203.0.113.7", true},
		{"excluded, IPv6 with zone", peer, "fe80::1%eth0, 10.0.0.1", excluded, "fe80::1", true},
		{"excluded, none other", peer, "10.0.0.2, 10.0.0.1", excluded, "198.51.100.9", false},
		{"excluded, empty", peer, "", excluded, "198.51.100.9", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			addr, certain := ClientAddr(&test.c, request(test.remote, http.Header{"X-Forwarded-For": {test.list}}))
			if addr.String() != test.want || certain != test.certain {
				t.Errorf("%v, certain %t; want %s, %t", addr, certain, test.want, test.certain)
			}
			if addr != addr.WithZone("").Unmap() {
				t.Errorf("%v is not canonical", addr)
			}
		})
	}
}

func TestIPv4Subnet(t *testing.T) {
	forwarded := http.Header{"X-Forwarded-For": {"203.0.113.200"}}
	tests := []struct {
		name    string
		subnet  int
		req     *http.Request
		depth   int
		counted string
	}{
		{"not set", 0, request("203.0.113.200:1", nil), 0, "203.0.113.200"},
		{"32", 32, request("203.0.113.200:1", nil), 0, "203.0.113.200"},
		{"31", 31, request("203.0.113.201:1", nil), 0, "203.0.113.200/31"},
		{"24", 24, request("203.0.113.200:1", nil), 0, "203.0.113.0/24"},
		{"24, other address", 24, request("203.0.113.7:2", nil), 0, "203.0.113.0/24"},
		{"24, next network", 24, request("203.0.114.7:2", nil), 0, "203.0.114.0/24"},
		{"1", 1, request("203.0.113.200:1", nil), 0, "128.0.0.0/1"},
		{"IPv4 in IPv6", 24, request("[::ffff:203.0.113.200]:1", nil), 0, "203.0.113.0/24"},
		{"without port", 24, request("203.0.113.200", nil), 0, "203.0.113.0/24"},
		{"IPv6 does not mind", 24, request("[2001:db8::1]:1", nil), 0, "2001:db8::/64"},
		{"forwarded", 24, request(peer, forwarded), 1, "203.0.113.0/24"},
		{"forwarded, not set", 0, request(peer, forwarded), 1, "203.0.113.200"},
		{"forwarded, 32", 32, request(peer, forwarded), 1, "203.0.113.200"},
		{"no address", 24, request("@", nil), 0, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := &Criterion{IPv4Subnet: test.subnet, IPv6Subnet: 64, Depth: test.depth}
			if got := identified(c, test.req); got != byAddress(test.counted) {
				t.Errorf("identity is %q, want that of address %q", Identify(c, test.req), test.counted)
			}
			Prepare(c)
			if got := identified(c, test.req); got != byAddress(test.counted) {
				t.Errorf("prepared: identity is %q, want that of address %q", Identify(c, test.req), test.counted)
			}
		})
	}
}

// All ways to write one address are one client, wherever it is written.
func TestOneAddressIsOneClient(t *testing.T) {
	for _, forms := range [][]string{
		{"203.0.113.7", "203.0.113.7:1", "203.0.113.7:65535", "::ffff:203.0.113.7", "[::ffff:203.0.113.7]:80", "[::ffff:cb00:7107%eth0]:80"},
		{"2001:db8::7", "2001:DB8:0::7", "[2001:db8::7]", "[2001:db8::7]:443", "[2001:db8::7%eth0]:443", "2001:db8::7%1"},
	} {
		want := netip.MustParseAddr(forms[0])
		for _, form := range forms {
			asPeer, _ := ClientAddr(&Criterion{}, request(form, nil))
			if asPeer != want {
				t.Errorf("the peer %q is %v, want %v", form, asPeer, want)
			}
			for _, written := range []string{form, " " + form + "\t", `"` + form + `"`} {
				req := request(peer, http.Header{"X-Forwarded-For": {written}})
				if asEntry, _ := ClientAddr(&Criterion{Depth: 1}, req); asEntry != want {
					t.Errorf("the entry %q is %v, want %v", written, asEntry, want)
				}
			}
		}
	}
}
