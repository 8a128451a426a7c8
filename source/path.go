package source

import (
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"
)

// EscapedPath returns the path that was asked for as it stands in the request line,
// and "/" for the empty one, which means the same.
func EscapedPath(req *http.Request) string {
	escaped := req.URL.EscapedPath()
	if escaped == "" {
		return "/"
	}
	return escaped
}

// CleanPath returns the one form of all paths that a server may take for the same:
// percent-decoded, with single slashes, without the segments "." and "..", and
// without a slash at its end unless it is "/". It never leads above the root, and
// cleaning it again changes nothing.
//
// An escaped slash is no separator and an escaped percent sign begins no escape, so
// that nothing is decoded twice: these two stay escaped, as %2F and %25. A percent
// sign that begins no escape is a plain one, and becomes %25. What else some servers
// take for the end of a segment, such as a backslash or a semicolon, is part of it.
//
// The path "*", by which OPTIONS asks about the server itself, stays as it is.
//
// The loops are those of the standard library, which is compiled where this is
// interpreted.
func CleanPath(escaped string) string {
	if strings.IndexByte(escaped, '%') < 0 && strings.HasPrefix(escaped, "/") {
		return path.Clean(escaped) // the same string, if it is clean
	}
	return cleanOther(escaped)
}

// staysEscaped escapes once more what decoding must leave alone.
var staysEscaped = strings.NewReplacer("%25", "%2525", "%2F", "%252F", "%2f", "%252F")

// cleanOther returns what CleanPath does, for a path with escapes or without a slash
// at its beginning.
func cleanOther(escaped string) string {
	if escaped == "*" {
		return escaped
	}
	decoded, err := url.PathUnescape(staysEscaped.Replace(escaped))
	if err != nil {
		decoded, _ = url.PathUnescape(staysEscaped.Replace(escapeStray(escaped)))
	}
	return path.Clean("/" + decoded)
}

// escapeStray escapes each percent sign that begins no escape. No request has one:
// what does not parse as a URL is refused before, and EscapedPath returns what does.
func escapeStray(text string) string {
	parts := strings.Split(text, "%")
	for i, part := range parts {
		if i > 0 && (len(part) < 2 || strings.Trim(part[:2], "0123456789abcdefABCDEF") != "") {
			parts[i] = "25" + part
		}
	}
	return strings.Join(parts, "%")
}

// parameters are what some servers do not take for a part of a segment.
var parameters = regexp.MustCompile(`;[^/]*`)

// Lenient says whether some servers make other paths of one than CleanPath does.
func Lenient(escaped string) bool {
	return strings.ContainsAny(escaped, "%;\\") && escaped != "*"
}

// LenientPaths returns the paths that servers may make of one which decode escaped
// slashes too, take a backslash for a slash, or cut off a semicolon and what follows it in
// a segment: one for each two or three of these together, and for each alone. For the
// rest they are as CleanPath has it.
func LenientPaths(escaped string) []string {
	decoded, err := url.PathUnescape(staysEscaped.Replace(escaped))
	if err != nil {
		decoded, _ = url.PathUnescape(staysEscaped.Replace(escapeStray(escaped)))
	}
	decoded = "/" + decoded
	var paths []string
	for ways := 1; ways < 8; ways++ {
		text := decoded
		if ways&1 != 0 {
			text = strings.ReplaceAll(text, "%2F", "/")
		}
		if ways&2 != 0 {
			text = strings.ReplaceAll(text, "\\", "/")
		}
		if ways&4 != 0 {
			text = parameters.ReplaceAllString(text, "")
		}
		text = path.Clean(text)
		known := false
		for _, other := range paths {
			known = known || other == text
		}
		if !known {
			paths = append(paths, text)
		}
	}
	return paths
}
