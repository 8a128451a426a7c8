package source

import (
	"strings"
	"testing"
)

func TestParsePrefix(t *testing.T) {
	tests := []struct{ text, want string }{
		{"10.0.0.0/8", "10.0.0.0/8"},
		{" 192.168.0.0/16\t", "192.168.0.0/16"},
		{"10.1.2.3/8", "10.0.0.0/8"},
		{"0.0.0.0/0", "0.0.0.0/0"},
		{"203.0.113.7", "203.0.113.7/32"},
		{" 203.0.113.7 ", "203.0.113.7/32"},
		{"2001:db8::1", "2001:db8::1/128"},
		{"2001:DB8::1/32", "2001:db8::/32"},
		{"::ffff:10.1.2.3", "10.1.2.3/32"},
		{"::ffff:10.1.2.3/104", "10.0.0.0/8"},
		{"::/0", "::/0"},
	}
	for _, test := range tests {
		got, err := ParsePrefix(test.text)
		if err != nil || got.String() != test.want {
			t.Errorf("ParsePrefix(%q) = %v, %v; want %s", test.text, got, err, test.want)
		}
	}
}

func TestParsePrefixRefuses(t *testing.T) {
	for _, text := range []string{
		"", " ", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/08", "10.0.0.0/", "/8", "10.0.0/8", "10.0.0.256", "010.0.0.1",
		"2001:db8::/129", "fe80::1%eth0", "fe80::%eth0/64", "[2001:db8::1]", "10.0.0.1:80", "example.com",
		"10.0.0.0/8, 192.168.0.0/16", "::ffff:10.0.0.0/95",
	} {
		got, err := ParsePrefix(text)
		if err == nil {
			t.Errorf("ParsePrefix(%q) = %v, want an error", text, got)
			continue
		}
		if !strings.Contains(err.Error(), `"`+strings.TrimSpace(text)+`"`) {
			t.Errorf("ParsePrefix(%q): the error %q does not quote it", text, err)
		}
	}
}
