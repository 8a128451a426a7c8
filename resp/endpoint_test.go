package resp

import (
	"errors"
	"strings"
	"testing"
)

func TestParseEndpointAccepts(t *testing.T) {
	for _, test := range []struct{ text, network, address string }{
		{"valkey:6379", "tcp", "valkey:6379"},
		{"valkey", "tcp", "valkey:6379"},
		{"valkey.svc.cluster.local:7000", "tcp", "valkey.svc.cluster.local:7000"},
		{"valkey.example.", "tcp", "valkey.example.:6379"},
		{"my_valkey-1:1", "tcp", "my_valkey-1:1"},
		{"h:65535", "tcp", "h:65535"},
		{"127.0.0.1", "tcp", "127.0.0.1:6379"},
		{"10.1.2.3:6380", "tcp", "10.1.2.3:6380"},
		{"::1", "tcp", "[::1]:6379"},
		{"[::1]", "tcp", "[::1]:6379"},
		{"[::1]:6379", "tcp", "[::1]:6379"},
		{"2001:db8::7", "tcp", "[2001:db8::7]:6379"},
		{"[2001:db8::7]:7000", "tcp", "[2001:db8::7]:7000"},
		{"[fe80::1%eth0]:7000", "tcp", "[fe80::1%eth0]:7000"},
		{"unix:///run/valkey/valkey.sock", "unix", "/run/valkey/valkey.sock"},
	} {
		network, address, err := ParseEndpoint(test.text)
		if err != nil || network != test.network || address != test.address {
			t.Errorf("ParseEndpoint(%q) = %q, %q, %v, want %q, %q", test.text, network, address, err, test.network, test.address)
		}
	}
}

func TestParseEndpointRefuses(t *testing.T) {
	for _, text := range []string{
		"", " ", " valkey:6379", "valkey:6379 ", "valkey :6379", "valkey\t", "valkey\n", "val key", "valkey\u00a0",
		"redis://valkey:6379", "rediss://valkey", "valkey://h", "tcp://h:6379", "http://h", "REDIS://h:1",
		"a:6379,b:6379", "a,b", ",",
		"h:", ":6379", ":", "h:0", "h:70000", "h:65536", "h:-1", "h:+6379", "h:06379", "h:6379x", "h:port", "h:0x18eb", "h:999999999999999999999",
		"[::1", "[::1]6379", "[::1]:", "[::1]:0", "[]", "[]:6379", "[127.0.0.1]:6379", "[valkey]:6379", "::1]:6379",
		"a:b:c", "1:2:3", ":::",
		"6379", "300.1.1.1", "1.2.3", "-h", "h-", "a..b", ".a", ".", "h/0", "h:6379/0", "h?x", "h#1", "vålkey", "h\x00", strings.Repeat("a", 64), strings.Repeat("a.", 130),
		"unix://", "unix:///", "unix://run/valkey.sock", "unix:///run/", "unix:/run/valkey.sock", "/run/valkey.sock",
		"user@h:6379", "user:password@h",
	} {
		network, address, err := ParseEndpoint(text)
		if err == nil {
			t.Errorf("ParseEndpoint(%q) = %q, %q, want an error", text, network, address)
			continue
		}
		demand(t, err, ErrEndpoint)
		if !strings.Contains(err.Error(), allowed) {
			t.Errorf("ParseEndpoint(%q): %q does not say what is allowed", text, err)
		}
	}
}

func TestParseEndpointNamesTheTextButNoPassword(t *testing.T) {
	for _, test := range []struct{ text, shown string }{
		{"h:70000", `"h:70000"`},
		{" valkey:6379 ", `" valkey:6379 "`},
		{"redis://user:hunter2@h:6379/1", `"redis://***@h:6379/1"`},
		{"user:hunter2@h", `"***@h"`},
		{"redis://u:hunter2@hunter2@h", `"redis://***@h"`},
		{"user:hunter2@h, b", `"***@h, b"`},
		{"", `""`},
	} {
		_, _, err := ParseEndpoint(test.text)
		if !errors.Is(err, ErrEndpoint) || !strings.Contains(err.Error(), test.shown) {
			t.Errorf("ParseEndpoint(%q): %v does not show %s", test.text, err, test.shown)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("ParseEndpoint(%q) shows the password: %v", test.text, err)
		}
	}
}
