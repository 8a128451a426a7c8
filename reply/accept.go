package reply

import (
	"regexp"
	"strings"
)

// maxAccept bounds what is read of the fields Accept, in bytes: those of browsers and
// libraries stay below 300, and whoever sends more gets plain text.
const maxAccept = 512

// The grammar of the field Accept, RFC 9110 sections 5.6 and 12.5, in ASCII: a list of
// media ranges with parameters, of which q is the weight.
const (
	tchar     = "[!#$%&'*+.^_`|~0-9A-Za-z-]"
	notQ      = "(?:[!#$%&'*+.^_`|~0-9A-PR-Za-pr-z-]|" + tchar + tchar + "+)" // a token
	parameter = notQ + "=(?:" + tchar + `+|"(?:[\t !#-\[\]-~]|\\[\t -~])*")`
	weight    = `(?:1(?:\.0{0,3})?|0(?:\.[0-9]{0,3})?)`
	some      = `(?:1(?:\.0{0,3})?|0\.(?:[1-9][0-9]{0,2}|0[1-9][0-9]?|00[1-9]))` // above zero
	none      = `0(?:\.0{0,3})?`

	semicolon = `[ \t]*;[ \t]*`
	comma     = `[ \t]*,[ \t]*`
	others    = `(?:` + semicolon + `(?:` + parameter + `|[qQ]=` + weight + `)?)*`
	anyRange  = tchar + `+/` + tchar + `+` + others
	wanted    = `(?i:application/(?:json|\*)|` + tchar + `+/` + tchar + `+\+json)(?:` + semicolon + `(?:` + parameter + `|[qQ]=` + some + `)?)*`
	unwanted  = `(?i:application/problem\+json)` + others + semicolon + `[qQ]=` + none + others

	before = `^[ \t]*(?:(?:` + anyRange + `)?` + comma + `)*`
	after  = `(?:` + comma + `(?:` + anyRange + `)?)*[ \t]*$`
)

var (
	wantsJSON      = regexp.MustCompile(before + wanted + after)
	refusesProblem = regexp.MustCompile(before + unwanted + after)
)

// acceptForm returns in which form a client with these fields Accept gets an answer:
// problem details, or, empty, plain text.
//
// The former it gets if the fields name a JSON type or all types of application, with a
// weight above zero. */* alone names nothing, and whoever gives the problem details
// themselves the weight zero does not get them. Fields that are malformed anywhere say
// nothing. The loops over their bytes are those of the library: interpreted ones would
// let a client buy much time with one field.
func acceptForm(lines []string) string {
	if len(lines) == 0 || lines[0] == "*/*" && len(lines) == 1 {
		return ""
	}
	line := strings.Join(lines, ",")
	if line == "application/json" {
		return problemJSON
	}
	if len(line) <= maxAccept && acceptsJSON(line, strings.ToLower(line)) {
		return problemJSON
	}
	return ""
}

func acceptsJSON(line, lower string) bool {
	if !strings.Contains(lower, "json") && !strings.Contains(lower, "application/*") {
		return false // most clients that do not want JSON do not mention it
	}
	return wantsJSON.MatchString(line) && !(strings.Contains(lower, problemJSON) && refusesProblem.MatchString(line))
}
