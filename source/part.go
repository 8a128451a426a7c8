package source

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"
)

// usable returns the value of a part without the blanks around it, or "" if it counts
// as missing.
func usable(value string) string {
	value = strings.Trim(value, " \t")
	if value >= "\x01" { // neither empty nor with a zero byte in front
		return value
	}
	return ""
}

// HeaderValue returns the value of a header of req without the blanks around it, or ""
// if the header is missing, empty or blank, begins with a zero byte, or stands on
// several lines. The name is in the form of textproto.CanonicalMIMEHeaderKey.
func HeaderValue(req *http.Request, canonicalName string) string {
	lines := req.Header[canonicalName]
	if len(lines) != 1 {
		return ""
	}
	return usable(lines[0])
}

// maxCookies is the number of cookies that are looked at. Browsers keep fewer for a
// site, and nobody shall buy time with more.
const maxCookies = 256

// cookie returns the value of the cookie called name, or "" if it is missing or not the
// only one of that name. It reads what http.Request.Cookies drops, since the
// application may read it too.
func cookie(req *http.Request, name string) string {
	pairs := strings.SplitN(strings.Join(req.Header["Cookie"], ";"), ";", maxCookies+1)
	if len(pairs) > maxCookies {
		return ""
	}
	found := ""
	for _, pair := range pairs {
		if !strings.Contains(pair, name) {
			continue
		}
		equals := strings.IndexByte(pair, '=')
		if equals < 0 || strings.Trim(pair[:equals], " \t") != name {
			continue
		}
		if found != "" {
			return ""
		}
		found = pair[equals:]
	}
	if found == "" {
		return ""
	}
	value := strings.Trim(found[1:], " \t")
	if len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"' {
		value = value[1 : len(value)-1]
	}
	return usable(value)
}

// parameter returns the value of the parameter called name in the query of the URL, or
// "" if it is missing or not the only one of that name, or the query is malformed.
func parameter(req *http.Request, name string) string {
	query, err := url.ParseQuery(req.URL.RawQuery)
	if err != nil {
		return ""
	}
	values := query[name]
	if len(values) != 1 {
		return ""
	}
	return usable(values[0])
}

// segment returns the n-th segment of the path, from 1, or "" if there are fewer.
func segment(req *http.Request, n int) string {
	segments := strings.SplitN(CleanPath(req.URL.EscapedPath()), "/", n+2)
	if len(segments) <= n {
		return ""
	}
	return usable(segments[n])
}

// maxToken is the length in bytes, 16 KiB, of the longest bearer token that is read.
const maxToken = 16 << 10

// Claim returns the claim called name of the bearer token of req, without the blanks
// around it, or "" if there is none: the request must have exactly one Authorization
// header, with the scheme Bearer and a JSON Web Token of three parts and at most 16 KiB,
// whose payload is an object that has the claim at its top level, as a text that is not
// empty or as a number without an exponent, which counts as the text that it is
// written in.
//
// The token is decoded and not verified: anybody can write any claim. It means something
// only behind a middleware that verifies it.
func Claim(req *http.Request, name string) string {
	value := HeaderValue(req, "Authorization")
	if len(value) < 8 || len(value) > maxToken+7 || value[6] != ' ' || !strings.EqualFold(value[:6], "Bearer") {
		return ""
	}
	token := strings.SplitN(value[7:], ".", 4)
	if len(token) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(token[1], "="))
	if err != nil {
		return ""
	}
	claims := map[string]json.RawMessage{}
	err = json.Unmarshal(payload, &claims)
	if err != nil {
		return ""
	}
	return claimText(claims[name])
}

// claimText returns a claim as text, or "" if it is neither text nor a plain number.
func claimText(raw json.RawMessage) string {
	text := string(raw)
	if strings.Trim(text, "0123456789.-") == "" {
		return text
	}
	text = ""
	err := json.Unmarshal(raw, &text)
	// What cannot be decoded comes out as the replacement character, so that two
	// texts which hold it may have been different ones.
	if err != nil || strings.ContainsRune(text, utf8.RuneError) {
		return ""
	}
	return usable(text)
}

// subject returns the subject of the client's certificate in the form of RFC 2253, or
// "" if there is no certificate, or it has no subject, or was not verified.
func subject(req *http.Request) string {
	if req.TLS == nil || len(req.TLS.VerifiedChains) == 0 || len(req.TLS.VerifiedChains[0]) == 0 {
		return ""
	}
	return usable(req.TLS.VerifiedChains[0][0].Subject.String())
}
