// Package control says what an operator has changed of a scope while it runs: it reads
// the hash in the store that gateways obey, and knows neither the store nor requests.
//
// The hash of a scope has these fields, all of them optional. <count> is the name of a
// count as it stands in keys, a rule's, a limit's, or both with a colon between; <hash>
// are the 64 hexadecimal digits in a client's keys; times are unix seconds of the store.
//
//	version          raised by each change: gateways report which one they obey
//	enabled          true or false: everything passes
//	dryRun           true or false, whatever the options say
//	limit            of the count without a name
//	limit:<count>    of another
//	window           seconds, or a time such as 1h; of the count without a name
//	window:<count>   of another
//	allow:<hash>     "<until> <limit>" or "<until> <count>=<limit> ...", or both
//	block:<hash>     "<until>"
//	epoch            "<version> <time>": everything known of the scope is to be forgotten
//	epoch:<hash>     the same for one client
//
// What is over counts as absent. What cannot be read is ignored, and told.
package control

import (
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gatequota/gatequota/window"
)

// HoldFor is for how long after the time of an epoch, in seconds, nothing is remembered of
// the clients that it is for, so that their keys can be deleted meanwhile.
const HoldFor = 10

// A State is what is set for a scope. It is not changed once it was read.
type State struct {
	Version int64
	Off     bool   // everything passes
	DryRun  string // "true", "false", or "": as the options say
	Limits  map[string]int64
	Windows map[string]int64   // seconds
	Clients map[string]*Client // by digest, as bytes
	Epoch   Epoch              // of the scope
}

// A Client is what is set for one client.
type Client struct {
	Hash       string // the digest in hexadecimal digits
	AllowUntil int64  // unix seconds; 0: nothing is set
	// Limit is for all limits that Limits does not name; 0: for none.
	Limit      int64
	Limits     map[string]int64 // by count
	BlockUntil int64            // unix seconds; 0: it is not blocked
	Epoch      Epoch
}

// An Epoch is a point in time before which nothing is to be known. The zero Epoch is none.
type Epoch struct {
	Version int64 // of the change that made it
	At      int64 // unix seconds of the store
}

// A Problem is a field that cannot be read. Want says what is wanted. What stands in place of
// a hash is left out of Field.
type Problem struct {
	Field, Value, Want string
}

var (
	countPattern = regexp.MustCompile(`^[A-Za-z0-9@._-]+(:[A-Za-z0-9@._-]+)?$`)
	hashPattern  = regexp.MustCompile(`^[0-9a-f]{64}$`)
	numbers      = regexp.MustCompile(`^(0|[1-9][0-9]{0,15})$`)
)

const (
	wantBoolean = "true or false is wanted"
	wantLimit   = "a whole number from 1 to 999999999999999 is wanted"
	wantWindow  = "a time in whole seconds from 1s to 366d is wanted"
	wantUntil   = "a time in unix seconds is wanted"
	wantEpoch   = "a version and a time in unix seconds are wanted"
	wantHash    = "64 hexadecimal digits in lower case are wanted behind the colon"
	wantCount   = "the name of a count is wanted behind the colon"
	wantAllow   = "a time in unix seconds is wanted, and a limit or some of the form count=limit behind it"
	wantField   = "no field is called so"
)

// Parse reads the fields of the hash of a scope: names and values in turn.
func Parse(fields []string) (*State, []Problem) {
	s := &State{Limits: map[string]int64{}, Windows: map[string]int64{}, Clients: map[string]*Client{}}
	var problems []Problem
	for i := 0; i+1 < len(fields); i += 2 {
		want := parseField(s, fields[i], fields[i+1])
		if want == "" {
			continue
		}
		field := fields[i]
		if want == wantHash {
			// In place of a client's hash its value may stand there, which nobody is to see.
			name, _, _ := strings.Cut(field, ":")
			field = name + ":..."
		}
		problems = append(problems, Problem{Field: field, Value: fields[i+1], Want: want})
	}
	return s, problems
}

// parseField reads one field, and returns what is wanted if it cannot.
func parseField(s *State, field, value string) string {
	name, of, has := strings.Cut(field, ":")
	switch name {
	case "version", "enabled", "dryRun":
		if has {
			return wantField
		}
		return parseScope(s, name, value)
	case "limit", "window":
		if has && !countPattern.MatchString(of) {
			return wantCount
		}
		return parseCount(s, name, of, value)
	case "epoch":
		if !has {
			return parseEpoch(&s.Epoch, value)
		}
	case "allow", "block":
		if !has {
			return wantHash
		}
	default:
		return wantField
	}
	if !hashPattern.MatchString(of) {
		return wantHash
	}
	raw, _ := hex.DecodeString(of)
	digest := string(raw)
	c := s.Clients[digest]
	if c == nil {
		c = &Client{Hash: of}
	}
	want := ""
	switch name {
	case "allow":
		want = parseAllow(c, value)
	case "block":
		want = parseUntil(&c.BlockUntil, value)
	default:
		want = parseEpoch(&c.Epoch, value)
	}
	if want == "" {
		s.Clients[digest] = c
	}
	return want
}

func parseScope(s *State, name, value string) string {
	if name == "version" {
		return parseNumber(&s.Version, value, 0, "a whole number is wanted")
	}
	if value != "true" && value != "false" {
		return wantBoolean
	}
	if name == "enabled" {
		s.Off = value == "false"
	} else {
		s.DryRun = value
	}
	return ""
}

func parseCount(s *State, name, count, value string) string {
	n := int64(0)
	if name == "limit" {
		want := parseNumber(&n, value, 1, wantLimit)
		if want == "" {
			s.Limits[count] = n
		}
		return want
	}
	n = Seconds(value)
	if n == 0 {
		return wantWindow
	}
	s.Windows[count] = n
	return ""
}

func parseUntil(until *int64, value string) string {
	return parseNumber(until, value, 1, wantUntil)
}

func parseEpoch(e *Epoch, value string) string {
	version, at, _ := strings.Cut(value, " ")
	read := Epoch{}
	if parseNumber(&read.Version, version, 1, "x") != "" || parseNumber(&read.At, at, 1, "x") != "" {
		return wantEpoch
	}
	*e = read
	return ""
}

func parseAllow(c *Client, value string) string {
	words := strings.Split(value, " ")
	read := Client{Limits: map[string]int64{}}
	if len(words) < 2 || parseUntil(&read.AllowUntil, words[0]) != "" {
		return wantAllow
	}
	for _, word := range words[1:] {
		count, text, named := strings.Cut(word, "=")
		if !named {
			if read.Limit > 0 || parseNumber(&read.Limit, word, 1, "x") != "" {
				return wantAllow
			}
			continue
		}
		n := int64(0)
		if read.Limits[count] > 0 || !countPattern.MatchString(count) || parseNumber(&n, text, 1, "x") != "" {
			return wantAllow
		}
		read.Limits[count] = n
	}
	c.AllowUntil = read.AllowUntil
	c.Limit = read.Limit
	c.Limits = read.Limits
	return ""
}

// parseNumber reads a number from least to window.MaxCount in plain digits, and returns
// want if it is none.
func parseNumber(n *int64, text string, least int64, want string) string {
	if !numbers.MatchString(text) {
		return want
	}
	read, err := strconv.ParseInt(text, 10, 64)
	if err != nil || read < least || read > window.MaxCount {
		return want
	}
	*n = read
	return ""
}

var (
	timePattern = regexp.MustCompile(`^([0-9]{1,9}[smhd])+$`)
	timePart    = regexp.MustCompile(`[0-9]+[smhd]`)
	timeUnits   = map[string]int64{"s": 1, "m": 60, "h": 3600, "d": 86400}
)

// maxWindow is the longest window, in seconds.
const maxWindow = 366 * int64(24*time.Hour/time.Second)

// Seconds reads the length of a window, such as 60, 60s, 1h30m or 1d, in seconds: 1 to 366
// days. It returns 0 for what is none.
func Seconds(text string) int64 {
	if numbers.MatchString(text) {
		text += "s"
	}
	if len(text) > 64 || !timePattern.MatchString(text) {
		return 0
	}
	total := int64(0)
	for _, part := range timePart.FindAllString(text, -1) {
		last := len(part) - 1
		n, err := strconv.ParseInt(part[:last], 10, 64)
		if err != nil {
			return 0
		}
		total += n * timeUnits[part[last:]]
		if total > maxWindow {
			return 0
		}
	}
	return total
}

// InForce returns what of a state is in force at a time in unix seconds, nil if nothing is,
// and when that changes by itself, 0 if never. Epochs are no part of it: see Holds.
func InForce(s *State, now int64) (*State, int64) {
	f := &State{Version: s.Version, Off: s.Off, DryRun: s.DryRun, Limits: s.Limits, Windows: s.Windows, Clients: map[string]*Client{}}
	next := int64(0)
	for digest, c := range s.Clients {
		left := &Client{Hash: c.Hash}
		if c.AllowUntil > now {
			left.AllowUntil = c.AllowUntil
			left.Limit = c.Limit
			left.Limits = c.Limits
			next = sooner(next, c.AllowUntil)
		}
		if c.BlockUntil > now {
			left.BlockUntil = c.BlockUntil
			next = sooner(next, c.BlockUntil)
		}
		if left.AllowUntil > 0 || left.BlockUntil > 0 {
			f.Clients[digest] = left
		}
	}
	if !f.Off && f.DryRun == "" && len(f.Limits) == 0 && len(f.Windows) == 0 && len(f.Clients) == 0 {
		return nil, 0
	}
	return f, next
}

// A Hold says of whom nothing is remembered, and until when, in unix seconds of the store.
// It is not changed once it was made.
type Hold struct {
	All     int64            // of nobody; 0: there is no such time
	Clients map[string]int64 // by digest, in hexadecimal digits
	Last    int64            // when all of it is over
}

// Holds returns of whom nothing is to be remembered at a time in unix seconds, nil if there
// is no such client.
func Holds(s *State, now int64) *Hold {
	h := &Hold{Clients: map[string]int64{}}
	if s.Epoch.Version > 0 && Held(s.Epoch.At+HoldFor, now) {
		h.All = s.Epoch.At + HoldFor
		h.Last = h.All
	}
	for _, c := range s.Clients {
		until := c.Epoch.At + HoldFor
		if c.Epoch.Version == 0 || !Held(until, now) {
			continue
		}
		h.Clients[c.Hash] = until
		if until > h.Last {
			h.Last = until
		}
	}
	if h.Last == 0 {
		return nil
	}
	return h
}

// Held reports whether what is not to be remembered until a time, by a Hold, is not to be
// now. By a clock that is behind the one that made an epoch, the epoch may lie ahead, if
// not by much.
func Held(until, now int64) bool {
	return now < until && now > until-2*HoldFor
}

// sooner returns the earlier of two times, of which 0 is never.
func sooner(a, b int64) int64 {
	if a == 0 || b < a {
		return b
	}
	return a
}
