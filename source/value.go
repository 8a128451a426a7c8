package source

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// ValueIdentity returns the identity of the client whom an operator names by value: the
// value of the header, the cookie or whatever else is the one part of c, a host in any
// of its forms, or any address of the network that c counts as one client. Its error says
// why the value names nobody, which is so for each one when c has several parts: clients
// are then named by digest.
func ValueIdentity(c *Criterion, value string) (string, error) {
	parts := []string{named("header:", c.Header), ""}
	if c.Header == "" {
		parts = gather(c, &http.Request{URL: &url.URL{}})
	}
	if len(parts) > 2 {
		return "", errors.New("clients are told apart by several parts of a request, and one value does not name them")
	}
	kind := parts[0]
	text := usable(value)
	if kind == "host:" {
		text = HostName(text)
	} else if kind == "address:" {
		text = canonical(c, parseAddr(text))
		if text == "" {
			return "", fmt.Errorf("%q is no address", value)
		}
	} else if strings.HasPrefix(kind, "segment:") && strings.Contains(text, "/") {
		return "", fmt.Errorf("%q is more than one segment of a path", value)
	}
	if text == "" {
		return "", fmt.Errorf("%q counts as missing", value)
	}
	if strings.HasPrefix(kind, "header:") {
		return bounded(text), nil
	}
	return bounded("\x00" + kind + strconv.Itoa(len(text)) + ":" + text), nil
}
