// Package reply writes what the client gets: the rate-limit fields of an answer,
// and the answer itself where the gateway gives it.
package reply

import (
	"net/http"
	"net/textproto"
	"regexp"
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
	all          bool     // these both and the decision, and nothing else
	names        []string // of the policies, quoted
	policy       string   // RateLimit-Policy, as members of a list
	remaining    string   // RateLimit up to the number that remains, of the first policy
	limit        string   // of the first policy
	remainings   []string // the same of each policy
	limits       []string
	decision     string // canonical name of the decision header, or ""
	dryRun       bool
	expose       bool
	counted      []string // names to expose where there is a count
	uncounted    []string // and where there is none
	quick        bool     // a refusal may take the short way
	refusal      *answer
	status       int // of it
}

// Policy is one limit in force.
type Policy struct {
	// Name is what the client sees: letters, digits and @._-: only.
	Name string
	// Limit is the quota, Window its length in seconds: each 1 to 999999999999999,
	// the largest integer of a structured field.
	Limit, Window int64
}

// Settings say what all answers of one middleware have in common.
type Settings struct {
	Style Style
	// DecisionHeader is the name of the field that tells the way of a decision.
	// Empty: none.
	DecisionHeader string
	// Expose lists the fields that are sent in Access-Control-Expose-Headers, so that
	// the scripts of a browser may read them.
	Expose bool
	// DryRun sends X-RateLimit-Dry-Run.
	DryRun bool
	// Status of a refusal, 400 to 599. 0: 429.
	Status int
	// Body of a refusal, and its type. Empty: ours.
	Body, ContentType string
}

// New prepares the answers of a middleware under policies, one at least, no two of the
// same name.
func New(policies []Policy, s *Settings) *Fields {
	f := &Fields{
		ietf:     s.Style == Both || s.Style == IETF,
		legacy:   s.Style == Both || s.Style == Legacy,
		all:      s.Style == Both && s.DecisionHeader != "" && !s.Expose,
		decision: textproto.CanonicalMIMEHeaderKey(s.DecisionHeader),
		dryRun:   s.DryRun,
		expose:   s.Expose,
		quick:    s.Body == "" && !s.Expose,
	}
	var members []string
	for _, p := range policies {
		name, quota := `"`+p.Name+`"`, strconv.FormatInt(p.Limit, 10)
		f.names = append(f.names, name)
		f.remainings = append(f.remainings, name+";r=")
		f.limits = append(f.limits, quota)
		members = append(members, name+";q="+quota+";w="+strconv.FormatInt(p.Window, 10))
	}
	f.policy = strings.Join(members, ", ")
	f.remaining = f.remainings[0]
	f.limit = f.limits[0]
	if f.ietf {
		f.counted = append(f.counted, "RateLimit-Policy", "RateLimit")
		f.uncounted = append(f.uncounted, "RateLimit-Policy")
	}
	if f.legacy {
		f.counted = append(f.counted, "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
	}
	if f.decision != "" {
		f.counted = append(f.counted, s.DecisionHeader)
		f.uncounted = append(f.uncounted, s.DecisionHeader)
	}
	f.refusal = newRefusal(f.names, s)
	f.status = f.refusal.status
	return f
}

// Silent reports whether these fields are none at all, so that Write, WriteSeveral and
// WriteUncounted have nothing to do.
func Silent(f *Fields) bool {
	return !f.ietf && !f.legacy && f.decision == ""
}

// ready is how many numbers have their decimal digits ready, in decimals: most limits
// and windows are short, and a look is cheaper here than a call.
const ready = 1024

var decimals []string

func init() {
	for n := 0; n < ready; n++ {
		decimals = append(decimals, strconv.Itoa(n))
	}
}

// Write tells the client where it stands, in the header of an answer that was not
// sent yet: whether it was allowed, how many requests remain (less than zero is
// zero), that it can make no more than these within the next reset seconds, and by
// which way that was decided, shared or local. There is one policy; for several, see
// WriteSeveral.
//
// RateLimit-Policy and RateLimit follow draft-ietf-httpapi-ratelimit-headers-11:
// lists of items whose value is the name of a policy, a string, with the quota q
// and the window w in the one field, the available quota r and the effective
// window t in the other. In that draft t promises nothing about what comes after;
// here it is the time to the next reset, as is X-RateLimit-Reset, which is a number
// of seconds too and not a date. Where Retry-After is sent besides (see Refuse),
// it must not be shorter than reset, and clients obey it first.
//
// Another limiter further out may have written its fields into the same header.
// Then the lists name both; a policy of the same name is replaced, since the same
// middleware was run twice, and a line that is no list of such items is dropped,
// since clients must ignore the whole of a field that is malformed anywhere. The
// older fields can tell of one limit only and show the tighter: the one with less
// remaining, at equality the one that resets later. A refusal shows the refuser.
// The decision header shows the innermost.
//
// Each value is stored as a new slice. Whoever handles the answer after us may
// replace it, as http.Header.Set does, append to it, as http.Header.Add and
// Traefik's proxy do for fields that the application sends too, or even write into
// it: no other answer is touched by that.
func Write(f *Fields, h http.Header, allowed bool, remaining, reset int64, way string) {
	if len(h) > 0 || remaining < 0 || !f.all {
		writeBeside(f, h, "", "", allowed, remaining, reset, way)
		return
	}
	left, seconds := "", ""
	if remaining < ready {
		left = decimals[remaining]
	} else {
		left = strconv.FormatInt(remaining, 10)
	}
	if reset < ready && reset >= 0 {
		seconds = decimals[reset]
	} else {
		seconds = strconv.FormatInt(reset, 10)
	}
	h["Ratelimit-Policy"] = []string{f.policy}
	h["Ratelimit"] = []string{f.remaining + left + ";t=" + seconds}
	h["X-Ratelimit-Limit"] = []string{f.limit}
	h["X-Ratelimit-Remaining"] = []string{left}
	h["X-Ratelimit-Reset"] = []string{seconds}
	h[f.decision] = []string{way}
}

// writeBeside is Write where the header is not empty or not all fields are sent.
// An interpreter pays for all that stands in a function, reached or not. Where there
// are several policies, limit is that of the one which the older fields tell of, and
// state holds the members of RateLimit; else both are empty.
func writeBeside(f *Fields, h http.Header, limit, state string, allowed bool, remaining, reset int64, way string) {
	if remaining < 0 {
		remaining = 0
	}
	left, seconds := strconv.FormatInt(remaining, 10), strconv.FormatInt(reset, 10)
	if state == "" {
		limit = f.limit
		state = f.remaining + left + ";t=" + seconds
	}
	policy, legacy := f.policy, f.legacy
	if len(h) > 0 {
		if h["Ratelimit-Policy"] != nil {
			policy = list(h["Ratelimit-Policy"], f.names, policy)
		}
		if h["Ratelimit"] != nil {
			state = list(h["Ratelimit"], f.names, state)
		}
		if allowed && h["X-Ratelimit-Remaining"] != nil && tighter(h, remaining, reset) {
			legacy = false
		}
	}
	if f.ietf {
		h["Ratelimit-Policy"] = []string{policy}
		h["Ratelimit"] = []string{state}
	}
	if legacy {
		h["X-Ratelimit-Limit"] = []string{limit}
		h["X-Ratelimit-Remaining"] = []string{left}
		h["X-Ratelimit-Reset"] = []string{seconds}
	}
	if f.decision != "" {
		h[f.decision] = []string{way}
	}
	if f.expose {
		expose(h, f.counted)
	}
}

// WriteSeveral is Write for several policies, with one entry for each of them, in the
// order in which New had them: what remains, and when it resets. The lists name all of
// them. The older fields tell of the one that binds.
func WriteSeveral(f *Fields, h http.Header, allowed bool, remaining, resets []int64, binding int, way string) {
	state := ""
	for i, start := range f.remainings {
		left := remaining[i]
		if left < 0 {
			left = 0
		}
		if i > 0 {
			state += ", "
		}
		state += start + strconv.FormatInt(left, 10) + ";t=" + strconv.FormatInt(resets[i], 10)
	}
	writeBeside(f, h, f.limits[binding], state, allowed, remaining[binding], resets[binding], way)
}

// WriteUncounted tells the client the policies, and the way of a decision that was
// made without a count: open, closed or gateway. Nothing is said about what remains,
// since nothing is known.
func WriteUncounted(f *Fields, h http.Header, way string) {
	if f.ietf {
		h["Ratelimit-Policy"] = []string{list(h["Ratelimit-Policy"], f.names, f.policy)}
		others := list(h["Ratelimit"], f.names, "")
		if others == "" {
			delete(h, "Ratelimit")
		} else {
			h["Ratelimit"] = []string{others}
		}
	}
	if f.decision != "" {
		h[f.decision] = []string{way}
	}
	if f.expose {
		expose(h, f.uncounted)
	}
}

// WriteDryRun tells what would have become of a request that is let pass in any case,
// if the settings say that such a middleware tells. Where several tell, one refusal
// is enough.
func WriteDryRun(f *Fields, h http.Header, refused bool) {
	if !f.dryRun {
		return
	}
	if refused {
		h["X-Ratelimit-Dry-Run"] = []string{"refused"}
	} else if told := h["X-Ratelimit-Dry-Run"]; len(told) != 1 || told[0] != "refused" {
		h["X-Ratelimit-Dry-Run"] = []string{"allowed"}
	}
	if f.expose {
		expose(h, dryRunName)
	}
}

// Names to expose, each list of them where its fields are sent.
var (
	dryRunName = []string{"X-RateLimit-Dry-Run"}
	retryName  = []string{"Retry-After"}
	grpcNames  = []string{"Grpc-Status", "Grpc-Message"}
)

// expose lets the scripts of a browser read the fields called names, beside those that
// they may read already.
func expose(h http.Header, names []string) {
	lines := h["Access-Control-Expose-Headers"]
	if lines == nil {
		if len(names) > 0 {
			h["Access-Control-Expose-Headers"] = []string{strings.Join(names, ", ")}
		}
		return
	}
	line := strings.Join(lines, ", ")
	known := strings.Split(line, ",")
	for _, name := range names {
		found := false
		for _, other := range known {
			found = found || strings.EqualFold(strings.TrimSpace(other), name)
		}
		if !found && strings.TrimSpace(line) == "" {
			line = name
		} else if !found {
			line += ", " + name
		}
	}
	h["Access-Control-Expose-Headers"] = []string{line}
}

// The grammar of RFC 9651 as far as it is needed here: a list whose items are
// strings with parameters of any type.
const (
	sfString = `"(?:[ !#-\[\]-~]|\\["\\])*"`
	sfNumber = `-?[0-9]{1,15}(?:\.[0-9]{1,3})?`
	sfToken  = "[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*"
	sfBytes  = `:[A-Za-z0-9+/=]*:`
	sfOther  = `\?[01]|@-?[0-9]{1,15}|%"(?:[ !#$&-~]|%[0-9a-f]{2})*"`
	sfMember = sfString +
		`(?:; *[a-z*][a-z0-9_.*-]*(?:=(?:` + sfString + `|` + sfNumber + `|` + sfToken + `|` + sfBytes + `|` + sfOther + `))?)*`
)

var (
	member  = regexp.MustCompile(sfMember)
	members = regexp.MustCompile(`^ *` + sfMember + `(?:[ \t]*,[ \t]*` + sfMember + `)* *$`)
)

// list returns the one line that lists the members of lines, without those that have
// one of names, each in quotes, and after them own, unless that is empty.
func list(lines, names []string, own string) string {
	if len(lines) == 0 {
		return own
	}
	if len(lines) == 1 && own != "" && !mentions(lines[0], names) && members.MatchString(lines[0]) {
		return lines[0] + ", " + own // the usual case: nothing to take out
	}
	var kept []string
	for _, line := range lines {
		if !members.MatchString(line) {
			continue
		}
		for _, item := range member.FindAllString(line, -1) {
			if !begins(item, names) {
				kept = append(kept, item)
			}
		}
	}
	if own != "" {
		kept = append(kept, own)
	}
	return strings.Join(kept, ", ")
}

// mentions reports whether one of names stands anywhere in line.
func mentions(line string, names []string) bool {
	for _, name := range names {
		if strings.Contains(line, name) {
			return true
		}
	}
	return false
}

// begins reports whether item begins with one of names. The quote at the end of a name
// keeps it apart from a longer one.
func begins(item string, names []string) bool {
	for _, name := range names {
		if strings.HasPrefix(item, name) {
			return true
		}
	}
	return false
}

// tighter reports whether h already tells of a limit, in whole and readable older
// fields, that leaves less than remaining, or as much for longer than reset.
func tighter(h http.Header, remaining, reset int64) bool {
	limits, lefts, resets := h["X-Ratelimit-Limit"], h["X-Ratelimit-Remaining"], h["X-Ratelimit-Reset"]
	if len(limits) != 1 || len(lefts) != 1 || len(resets) != 1 {
		return false
	}
	left, err := strconv.ParseUint(lefts[0], 10, 63)
	if err != nil {
		return false
	}
	later, err := strconv.ParseUint(resets[0], 10, 63)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(limits[0], 10, 63)
	return err == nil && (int64(left) < remaining || int64(left) == remaining && int64(later) > reset)
}
