package source

import (
	"crypto/sha256"
	"fmt"
	"math/rand"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/quick"
)

const peer = "198.51.100.9:40000"

// hashed is the identity that a text of either name space should have.
func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return string(sum[:])
}

// identified is the digest of the identity of whoever sent req, which is the same
// whether c is prepared or not.
func identified(c *Criterion, req *http.Request) string {
	identity := Identify(c, req)
	prepared := *c
	Prepare(&prepared)
	if again := Identify(&prepared, req); again != identity {
		return "prepared: " + again
	}
	return Digest(identity)
}

func byAddress(text string) string {
	return hashed(fmt.Sprintf("\x00address:%d:%s", len(text), text))
}

func byHost(text string) string {
	return hashed(fmt.Sprintf("\x00host:%d:%s", len(text), text))
}

func request(remote string, header http.Header) *http.Request {
	if header == nil {
		header = http.Header{}
	}
	return &http.Request{RemoteAddr: remote, Header: header}
}

func prefixes(t testing.TB, texts ...string) []netip.Prefix {
	t.Helper()
	var list []netip.Prefix
	for _, text := range texts {
		network, err := ParsePrefix(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, network)
	}
	return list
}

func TestHeaderValueIsHashedAsItIs(t *testing.T) {
	long := strings.Repeat("k", 8191)
	tests := []struct{ name, value, counted string }{
		{"plain", "SECRET-e3f1", "SECRET-e3f1"},
		{"one byte", "k", "k"},
		{"case matters", "Secret", "Secret"},
		{"blanks around", " \tkey\t ", "key"},
		{"blanks inside", "a \t b", "a \t b"},
		{"no-break space is no blank", "\u00a0key", "\u00a0key"},
		{"line break is no blank", "key\n", "key\n"},
		{"placeholder", "anonymous", "anonymous"},
		{"an address", "198.51.100.9", "198.51.100.9"},
		{"UTF-8", "schlüssel", "schlüssel"},
		{"invalid UTF-8", "\xff\xfe\x80", "\xff\xfe\x80"},
		{"control bytes", "\x01\x1b[31m\x7f", "\x01\x1b[31m\x7f"},
		{"zero byte inside", "a\x00b", "a\x00b"},
		{"8 KB", long + "a", long + "a"},
		{"8 KB, last byte differs", long + "b", long + "b"},
		{"900 KB", strings.Repeat("A", 900<<10), strings.Repeat("A", 900<<10)},
	}
	c := &Criterion{Header: "X-Api-Key", IPv6Subnet: 64}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := identified(c, request(peer, http.Header{"X-Api-Key": {test.value}}))
			if got != hashed(test.counted) {
				t.Errorf("identity is %x, want the digest of %.40q", got, test.counted)
			}
			identity := Identify(c, request(peer, http.Header{"X-Api-Key": {test.value}}))
			if len(identity) < 1 || len(identity) > MaxIdentity {
				t.Errorf("identity has %d bytes, want 1 to %d", len(identity), MaxIdentity)
			}
		})
	}
}

func TestMissingHeaderCountsByAddress(t *testing.T) {
	tests := []struct {
		name  string
		lines []string
	}{
		{"absent", nil},
		{"no line", []string{}},
		{"empty", []string{""}},
		{"space", []string{" "}},
		{"blanks", []string{" \t \t"}},
		{"two lines", []string{"key", "other"}},
		{"the same twice", []string{"key", "key"}},
		{"second line empty", []string{"key", ""}},
		{"zero byte", []string{"\x00"}},
		{"somebody's address", []string{"\x00address:11:203.0.113.7"}},
		{"somebody's address behind a blank", []string{" \x00address:11:203.0.113.7"}},
	}
	c := &Criterion{Header: "X-Api-Key", IPv6Subnet: 64}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			header := http.Header{}
			if test.lines != nil {
				header["X-Api-Key"] = test.lines
			}
			if got := identified(c, request(peer, header)); got != byAddress("198.51.100.9") {
				t.Errorf("identity is %x, want that of the peer", got)
			}
			if got := identified(c, request("203.0.113.7:1", header)); got != byAddress("203.0.113.7") {
				t.Errorf("another client's identity is %x, want that of its own address", got)
			}
		})
	}
}

func TestPeerAddress(t *testing.T) {
	tests := []struct {
		name, remote string
		subnet       int
		counted      string
	}{
		{"IPv4", "203.0.113.7:51234", 64, "203.0.113.7"},
		{"IPv4, another port", "203.0.113.7:51235", 64, "203.0.113.7"},
		{"IPv4 without port", "203.0.113.7", 64, "203.0.113.7"},
		{"IPv4, IPv6 subnet does not matter", "203.0.113.7:1", 1, "203.0.113.7"},
		{"IPv6", "[2001:db8:1:2::1]:443", 64, "2001:db8:1:2::/64"},
		{"IPv6, same network", "[2001:db8:1:2:ffff:ffff:ffff:ffff]:443", 64, "2001:db8:1:2::/64"},
		{"IPv6, next network", "[2001:db8:1:3::1]:443", 64, "2001:db8:1:3::/64"},
		{"IPv6 by 56", "[2001:db8:1:2ff::1]:443", 56, "2001:db8:1:200::/56"},
		{"IPv6 by 128", "[2001:db8:1:2::1]:443", 128, "2001:db8:1:2::1/128"},
		{"IPv6, capital letters", "[2001:DB8:0:0::1]:443", 128, "2001:db8::1/128"},
		{"IPv6 without port", "[2001:db8::1]", 128, "2001:db8::1/128"},
		{"bare IPv6", "2001:db8::1", 128, "2001:db8::1/128"},
		{"bare IPv6 is not cut", "2001:db8::1:8080", 128, "2001:db8::1:8080/128"},
		{"IPv6 with zone", "[fe80::1%eth0]:443", 128, "fe80::1/128"},
		{"IPv6 with another zone", "[fe80::1%eth1]:443", 128, "fe80::1/128"},
		{"IPv4 in IPv6", "[::ffff:203.0.113.7]:443", 64, "203.0.113.7"},
		{"IPv4 in IPv6 in hexadecimal", "[::ffff:cb00:7107]:443", 64, "203.0.113.7"},
		{"IPv4 in IPv6 with zone", "[::ffff:203.0.113.7%eth0]:443", 64, "203.0.113.7"},
		{"empty", "", 64, ""},
		{"unix socket", "@", 64, ""},
		{"unix socket with a path", "/run/gateway.sock", 64, ""},
		{"name", "localhost:80", 64, ""},
		{"port alone", ":80", 64, ""},
		{"no IPv4", "203.0.113.256:80", 64, ""},
		{"leading zero", "203.0.113.07:80", 64, ""},
		{"IPv4 in brackets", "[203.0.113.7]:80", 64, ""},
		{"open bracket", "[2001:db8::1:80", 64, ""},
		{"bracket alone", "[", 64, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := identified(&Criterion{IPv6Subnet: test.subnet}, request(test.remote, http.Header{"X-Forwarded-For": {"192.0.2.1"}}))
			if got != byAddress(test.counted) {
				t.Errorf("identity is %x, want that of address %q", got, test.counted)
			}
		})
	}
}

func TestForwardedAddress(t *testing.T) {
	trusted := prefixes(t, "10.0.0.0/8", "2001:db8:ffff::/48", "192.0.2.1")
	const own = "198.51.100.9"
	tests := []struct {
		name     string
		depth    int
		excluded []netip.Prefix
		lines    []string
		counted  string
	}{
		{"depth 1", 1, nil, []string{"203.0.113.7, 203.0.113.8"}, "203.0.113.8"},
		{"depth 2", 2, nil, []string{"203.0.113.7, 203.0.113.8"}, "203.0.113.7"},
		{"depth 1 of one", 1, nil, []string{"203.0.113.7"}, "203.0.113.7"},
		{"depth beyond the list", 3, nil, []string{"203.0.113.7, 203.0.113.8"}, own},
		{"depth over lines", 3, nil, []string{"203.0.113.7", "203.0.113.8, 203.0.113.9"}, "203.0.113.7"},
		{"depth within the last line", 1, nil, []string{"203.0.113.7", "203.0.113.8"}, "203.0.113.8"},
		{"depth, header absent", 1, nil, nil, own},
		{"depth, header empty", 1, nil, []string{""}, own},
		{"depth, commas alone", 2, nil, []string{" , ,"}, own},
		{"depth counts empty entries", 2, nil, []string{"203.0.113.7,,203.0.113.8"}, own},
		{"depth, garbage", 1, nil, []string{"unknown, _hidden"}, own},
		{"depth wins over excluded", 1, trusted, []string{"203.0.113.7, 10.0.0.1"}, "10.0.0.1"},

		{"excluded, header absent", 0, trusted, nil, own},
		{"excluded, header empty", 0, trusted, []string{""}, own},
		{"excluded, only trusted", 0, trusted, []string{"10.0.0.1, 10.0.0.2"}, own},
		{"excluded, one trusted", 0, trusted, []string{"10.0.0.1"}, own},
		{"excluded, commas alone", 0, trusted, []string{" , ,"}, own},
		{"excluded, garbage", 0, trusted, []string{"unknown, _hidden"}, own},
		{"excluded, garbage behind a proxy", 0, trusted, []string{"203.0.113.7, unknown, 10.0.0.1"}, own},
		{"excluded, first from the right", 0, trusted, []string{"203.0.113.1, 203.0.113.7, 10.0.0.1,10.0.0.2"}, "203.0.113.7"},
		{"excluded, not at all", 0, trusted, []string{"10.0.0.1, 203.0.113.7"}, "203.0.113.7"},
		{"excluded, empty entries", 0, trusted, []string{"203.0.113.7,, 10.0.0.1 , \t,"}, "203.0.113.7"},
		{"excluded, over lines", 0, trusted, []string{"203.0.113.7", "10.0.0.1"}, "203.0.113.7"},
		{"excluded, empty lines", 0, trusted, []string{"203.0.113.7", "", "10.0.0.1", ""}, "203.0.113.7"},
		{"excluded, single address", 0, trusted, []string{"203.0.113.7, 192.0.2.1"}, "203.0.113.7"},
		{"excluded, IPv6", 0, trusted, []string{"2001:db8:1::5, 2001:db8:ffff::1"}, "2001:db8:1::/64"},
		{"excluded, IPv6 with zone and port", 0, trusted, []string{"203.0.113.7, [2001:db8:ffff::1%eth0]:443"}, "203.0.113.7"},
		{"excluded, IPv4 in IPv6", 0, trusted, []string{"203.0.113.7, ::ffff:10.0.0.1"}, "203.0.113.7"},
		{"excluded, everything", 0, prefixes(t, "0.0.0.0/0"), []string{"203.0.113.7"}, own},

		{"port", 1, nil, []string{"203.0.113.7:51234"}, "203.0.113.7"},
		{"another port", 1, nil, []string{"203.0.113.7:51235"}, "203.0.113.7"},
		{"quoted", 1, nil, []string{`"203.0.113.7"`}, "203.0.113.7"},
		{"quoted with port", 1, nil, []string{`"203.0.113.7:51234"`}, "203.0.113.7"},
		{"IPv6 in brackets with port", 1, nil, []string{"[2001:db8::1]:443"}, "2001:db8::/64"},
		{"IPv6 in brackets", 1, nil, []string{"[2001:db8::1]"}, "2001:db8::/64"},
		{"quoted IPv6 in brackets with port", 1, nil, []string{`"[2001:db8::1]:443"`}, "2001:db8::/64"},
		{"bare IPv6 is not cut", 1, nil, []string{"2001:db8:0:0:1::8080"}, "2001:db8::/64"},
		{"zone", 1, nil, []string{"fe80::1%eth0"}, "fe80::/64"},
		{"IPv4 in IPv6", 1, nil, []string{"::ffff:203.0.113.7"}, "203.0.113.7"},
		{"lone quote", 1, nil, []string{`"`}, own},
		{"unbalanced quote", 1, nil, []string{`"203.0.113.7`}, own},
		{"IPv4 in brackets", 1, nil, []string{"[203.0.113.7]"}, own},
		{"empty brackets", 1, nil, []string{"[]"}, own},
		{"port out of range", 1, nil, []string{"203.0.113.7:99999"}, own},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			header := http.Header{}
			if test.lines != nil {
				header["X-Forwarded-For"] = test.lines
			}
			c := &Criterion{Depth: test.depth, Excluded: test.excluded, IPv6Subnet: 64}
			if got := identified(c, request(peer, header)); got != byAddress(test.counted) {
				t.Errorf("identity is %x, want that of address %q", got, test.counted)
			}
		})
	}
}

func TestForwardedListIsNotSearchedForEver(t *testing.T) {
	c := &Criterion{Excluded: prefixes(t, "10.0.0.0/8"), IPv6Subnet: 64}
	within := "203.0.113.7" + strings.Repeat(",10.0.0.1", maxHops-1)
	if got := identified(c, request(peer, http.Header{"X-Forwarded-For": {within}})); got != byAddress("203.0.113.7") {
		t.Errorf("a chain of %d proxies is not followed to its end", maxHops-1)
	}
	beyond := within + ",10.0.0.1"
	if got := identified(c, request(peer, http.Header{"X-Forwarded-For": {beyond}})); got != byAddress("198.51.100.9") {
		t.Errorf("a chain of %d proxies is followed", maxHops)
	}
}

func TestHostHasOneForm(t *testing.T) {
	tests := []struct{ name, host, counted string }{
		{"plain", "api.example.com", "api.example.com"},
		{"capital letters", "API.Example.com", "api.example.com"},
		{"port", "api.example.com:80", "api.example.com"},
		{"empty port", "api.example.com:", "api.example.com"},
		{"dot at the end", "api.example.com.", "api.example.com"},
		{"dot and port", "API.example.com.:8080", "api.example.com"},
		{"another name", "api.example.org", "api.example.org"},
		{"punycode", "XN--Bcher-Kva.example", "xn--bcher-kva.example"},
		{"IPv4", "203.0.113.7:80", "203.0.113.7"},
		{"IPv6", "[2001:db8::1]", "2001:db8::1"},
		{"IPv6 with port", "[2001:DB8:0::1]:443", "2001:db8::1"},
		{"bare IPv6", "2001:db8::1", "2001:db8::1"},
		{"no host", "[2001:db8::", "[2001:db8::"},
		{"another no host", "a:1:2", "a:1:2"},
	}
	c := &Criterion{Host: true, IPv6Subnet: 64}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			req := request(peer, nil)
			req.Host = test.host
			if got := identified(c, req); got != byHost(test.counted) {
				t.Errorf("identity is %x, want that of host %q", got, test.counted)
			}
		})
	}
	for _, host := range []string{"", ".", ":80", ".:80"} {
		req := request(peer, nil)
		req.Host = host
		if got := identified(c, req); got != byAddress("198.51.100.9") {
			t.Errorf("host %q: identity is %x, want that of the peer", host, got)
		}
	}
}

func TestRotatingWithinOneIPv6Network(t *testing.T) {
	count := func(subnet int) int {
		seen := map[string]bool{}
		for i := 0; i < 200; i++ {
			remote := fmt.Sprintf("[2001:db8:1:2:%x::%x]:443", i*7, i)
			seen[identified(&Criterion{IPv6Subnet: subnet}, request(remote, nil))] = true
		}
		return len(seen)
	}
	if got := count(64); got != 1 {
		t.Errorf("200 addresses of one /64 are %d clients, want 1", got)
	}
	if got := count(128); got != 200 {
		t.Errorf("by 128 bits 200 addresses are %d clients, want 200", got)
	}
}

// The two name spaces: whatever a client sends as its key, it is never counted as
// an address or a host, save as its own address.
func TestNoHeaderValueReachesTheOtherNameSpace(t *testing.T) {
	key := &Criterion{Header: "X-Api-Key", IPv6Subnet: 64}
	host := &Criterion{Host: true, IPv6Subnet: 64}
	own := byAddress("198.51.100.9")
	check := func(value, name string, v4 [4]byte, v6 [16]byte) bool {
		req := request(peer, nil)
		req.Host = name
		others := []string{
			identified(host, req),
			identified(key, request(netip.AddrPortFrom(netip.AddrFrom4(v4), 1).String(), nil)),
			identified(key, request(netip.AddrPortFrom(netip.AddrFrom16(v6), 1).String(), nil)),
			identified(key, request("", nil)),
		}
		plain := fmt.Sprintf("address:%d:%s", len(name), name)
		for _, crafted := range []string{
			value, name, plain, "\x00" + plain, "\x00host:" + name, "\x00" + value,
			netip.AddrFrom4(v4).String(), netip.AddrFrom16(v6).String(),
		} {
			got := identified(key, request(peer, http.Header{"X-Api-Key": {crafted}}))
			for _, other := range others {
				if got == other && got != own {
					return false
				}
			}
		}
		return true
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 500, Rand: rand.New(rand.NewSource(1))}); err != nil {
		t.Error(err)
	}
}

// Length and kind in front keep the parts apart: an identity leads back to exactly
// one kind and one text.
func TestPartsAreToldApart(t *testing.T) {
	seen := map[string]string{}
	note := func(what, identity string) {
		t.Helper()
		if before, ok := seen[identity]; ok && before != what {
			t.Errorf("%s and %s have one identity", before, what)
		}
		seen[identity] = what
	}
	host, addr := &Criterion{Host: true, IPv6Subnet: 128}, &Criterion{IPv6Subnet: 128}
	names := []string{"1", "10", "1.1", "203.0.113.7", "address", "address1", "a", "aa", "11:a", "2001:db8::1"}
	for _, name := range names {
		req := request(peer, nil)
		req.Host = name
		note("host "+HostName(name), identified(host, req))
	}
	for i := 0; i < 256; i++ {
		v4 := netip.AddrFrom4([4]byte{1, 1, byte(i), byte(255 - i)})
		note("address "+v4.String(), identified(addr, request(netip.AddrPortFrom(v4, 1).String(), nil)))
		v6 := netip.AddrFrom16([16]byte{0x20, 1, byte(i), 15: byte(255 - i)})
		note("address "+v6.String(), identified(addr, request(netip.AddrPortFrom(v6, 1).String(), nil)))
	}
	for _, subnet := range []int{48, 56, 64, 127} {
		c := &Criterion{IPv6Subnet: subnet}
		note(fmt.Sprintf("network of %d bits", subnet), identified(c, request("[2001:db8::]:1", nil)))
	}
	note("no address", identified(addr, request("", nil)))
	if want := len(names) + 2*256 + 4 + 1; len(seen) != want {
		t.Errorf("%d identities, want %d", len(seen), want)
	}
}

func FuzzParseAddr(f *testing.F) {
	for _, seed := range []string{
		"203.0.113.7", "203.0.113.7:51234", "[2001:db8::1]:443", "2001:db8::1:8080", `"203.0.113.7"`,
		`"[2001:db8::1]"`, "::ffff:203.0.113.7", "fe80::1%eth0", "[fe80::1%]:1", "", " ", `""`, "[]", `"[`, "unknown", "@",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		addr := parseAddr(text)
		if !addr.IsValid() {
			return
		}
		if addr.Zone() != "" || addr.Is4In6() {
			t.Errorf("%q is read as %v, which is not canonical", text, addr)
		}
		plain := addr.String()
		for _, form := range []string{plain, " " + plain + "\t", `"` + plain + `"`, netip.AddrPortFrom(addr, 443).String()} {
			if again := parseAddr(form); again != addr {
				t.Errorf("%q is read as %v, but %q as %v", text, addr, form, again)
			}
		}
	})
}
