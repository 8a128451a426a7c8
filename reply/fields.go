// Package reply writes what the client gets: the rate-limit fields of an answer,
// and the answer itself where the gateway gives it.
package reply

import (
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// A Style says which rate-limit fields are sent.
type Style int

const (
	// Both sends the fields of the IETF draft and the older ones.
	Both Style = iota
	// IETF sends RateLimit-Policy and RateLimit alone.
	IETF
	// Legacy sends X-RateLimit-Limit, -Remaining and -Reset alone.
	Legacy
	// None sends neither.
	None
)

// Fields is what all answers of one middleware have in common. It is made once
// and not changed after that.
type Fields struct {
	ietf, legacy bool
	policy       string // RateLimit-Policy, as one member of a list
	policyLine   []string
	head         string // RateLimit up to the number of remaining requests
	limit        []string
	decision     string // canonical name of the decision header, or ""
	ways         map[string][]string
}

// NewFields prepares the fields of a middleware. The policy is a name of letters,
// digits and @._- as the client shall see it, limit and windowSeconds are between
// 1 and 999999999999999, the largest integer of a structured field. The way of a
// decision is told in decisionHeader, unless it is empty.
func NewFields(policy string, limit, windowSeconds int64, style Style, decisionHeader string) *Fields {
	quoted := `"` + policy + `"`
	member := quoted + ";q=" + strconv.FormatInt(limit, 10) + ";w=" + strconv.FormatInt(windowSeconds, 10)
	return &Fields{
		ietf:       style == Both || style == IETF,
		legacy:     style == Both || style == Legacy,
		policy:     member,
		policyLine: []string{member},
		head:       quoted + ";r=",
		limit:      []string{strconv.FormatInt(limit, 10)},
		decision:   textproto.CanonicalMIMEHeaderKey(decisionHeader),
		ways: map[string][]string{
			"shared": {"shared"}, "local": {"local"}, "open": {"open"}, "closed": {"closed"},
		},
	}
}

// Write tells the client where it stands, in the header of an answer that was not
// sent yet: whether it was allowed, how many requests remain (less than zero is
// zero), that this holds for reset seconds, and by which way it was decided, shared
// or local.
func Write(f *Fields, h http.Header, allowed bool, remaining, reset int64, way string) {
	if remaining < 0 {
		remaining = 0
	}
	r, t := strconv.FormatInt(remaining, 10), strconv.FormatInt(reset, 10)
	if f.ietf {
		h["Ratelimit-Policy"] = f.policyLine
		h["Ratelimit"] = []string{f.head + r + ";t=" + t}
	}
	if f.legacy {
		h["X-Ratelimit-Limit"] = f.limit
		h["X-Ratelimit-Remaining"] = []string{r}
		h["X-Ratelimit-Reset"] = []string{t}
	}
	if f.decision != "" {
		h[f.decision] = f.ways[way]
	}
}

// WriteUncounted tells the client the policy and the way of a decision that was
// made without a count, open or closed. Nothing is said about what remains, since
// nothing is known.
func WriteUncounted(f *Fields, h http.Header, way string) {
	if f.ietf {
		h["Ratelimit-Policy"] = f.policyLine
	}
	if f.decision != "" {
		h[f.decision] = f.ways[way]
	}
}

var _ = strings.Cut
