package scope

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatequota/gatequota/control"
	"github.com/gatequota/gatequota/source"
	"github.com/gatequota/gatequota/window"
)

// goodFor is for how many seconds a gateway counts as there after it was last heard of.
const goodFor = 15

// A Scope is one scope in a store.
type Scope struct {
	Name  string
	store *Store
	key   string // what its keys begin with, without the colon behind it
}

// Scope returns a scope by its name, whether anything is known of it or not.
func (s *Store) Scope(name string) *Scope {
	return &Scope{Name: name, store: s, key: s.prefix + ":" + name}
}

// A Report is what a gateway says of itself in a scope.
type Report struct {
	Version     int64        `json:"version"` // that it obeys
	At          int64        `json:"at"`      // unix seconds of the store
	Host        string       `json:"host"`
	Software    string       `json:"software"`
	Enabled     bool         `json:"enabled"`
	DryRun      bool         `json:"dryRun"`
	Keyed       bool         `json:"keyed"` // clients are digested with a secret
	Middlewares []Middleware `json:"middlewares"`
}

// A Middleware of a gateway has rules.
type Middleware struct {
	Name  string `json:"name"`
	Rules []Rule `json:"rules"`
}

// A Rule says who is counted by what.
type Rule struct {
	Rule   string           `json:"rule"` // "" is the top level
	DryRun bool             `json:"dryRun"`
	Source source.Criterion `json:"source"`
	Counts []Count          `json:"counts"`
}

// A Count is a limit as it is in force, and how it is counted.
type Count struct {
	Name      string `json:"count"`
	Algorithm string `json:"algorithm"` // as in the option
	Limit     int64  `json:"limit"`
	Window    int64  `json:"window"` // seconds
	Burst     int64  `json:"burst"`  // of a bucket
}

// A Gateway is one that was heard of in the last 15 seconds.
type Gateway struct {
	ID        string
	Announced int64   // unix seconds; 0: it reports and did not announce itself
	Report    *Report // nil: it does not report
}

// A State is what is known of a scope at one time.
type State struct {
	Now      int64             // unix milliseconds of the store
	Fields   map[string]string // what is set, as it stands in the store
	Set      *control.State    // the same as the gateways read it
	Problems []control.Problem // what they cannot read, by field
	Gateways []Gateway         // by host and identity
	Garbled  []string          // gateways whose report cannot be read
}

// reading is a State on its way.
type reading struct {
	fields, reports *redis.MapStringStringCmd
	announced       *redis.ZSliceCmd
	now             *redis.TimeCmd
}

func (s *Scope) ask(ctx context.Context, p redis.Pipeliner) *reading {
	return &reading{
		now:       p.Time(ctx),
		fields:    p.HGetAll(ctx, s.key+":control"),
		reports:   p.HGetAll(ctx, s.key+":reports"),
		announced: p.ZRangeWithScores(ctx, s.key+":gateways", 0, -1),
	}
}

// Read returns what is known of s now.
func (s *Scope) Read(ctx context.Context) (*State, error) {
	var r *reading
	_, err := s.store.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		r = s.ask(ctx, p)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading scope %s: %w", s.Name, err)
	}
	return r.state(), nil
}

// state makes sense of the answers.
func (r *reading) state() *State {
	st := &State{Now: r.now.Val().UnixMilli(), Fields: r.fields.Val()}
	var pairs []string
	for field, value := range st.Fields {
		pairs = append(pairs, field, value)
	}
	st.Set, st.Problems = control.Parse(pairs)
	slices.SortFunc(st.Problems, func(a, b control.Problem) int { return strings.Compare(a.Field, b.Field) })
	since := st.Now/1000 - goodFor
	known := map[string]*Gateway{}
	for _, z := range r.announced.Val() {
		if at := int64(z.Score); at > since {
			known[z.Member.(string)] = &Gateway{ID: z.Member.(string), Announced: at}
		}
	}
	for id, text := range r.reports.Val() {
		report := &Report{}
		if err := json.Unmarshal([]byte(text), report); err != nil || !report.sound() {
			if known[id] != nil {
				st.Garbled = append(st.Garbled, id)
			}
			continue
		}
		if report.At <= since {
			continue
		}
		if known[id] == nil {
			known[id] = &Gateway{ID: id}
		}
		known[id].Report = report
	}
	for _, g := range known {
		st.Gateways = append(st.Gateways, *g)
	}
	slices.SortFunc(st.Gateways, func(a, b Gateway) int {
		if c := strings.Compare(a.Host(), b.Host()); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	slices.Sort(st.Garbled)
	return st
}

// longestWindow bounds the windows that are believed in, in seconds, far above those that a
// gateway can have.
const longestWindow = 10000000000

// sound tells whether one can reckon with a report: whoever may write into the store may
// have written anything.
func (r *Report) sound() bool {
	if r.Version < 0 || r.Version >= window.MaxCount {
		return false
	}
	for _, m := range r.Middlewares {
		for _, rule := range m.Rules {
			for _, c := range rule.Counts {
				if c.Limit < 1 || c.Limit > window.MaxCount || c.Window < 1 || c.Window > longestWindow || c.Burst < 0 || c.Burst > window.MaxCount {
					return false
				}
			}
		}
	}
	return true
}

// Host returns the host that g reports, or "".
func (g *Gateway) Host() string {
	if g.Report == nil {
		return ""
	}
	return g.Report.Host
}

// Obeys tells whether g obeys a version, or a later one.
func (g *Gateway) Obeys(version int64) bool {
	return g.Report != nil && g.Report.Version >= version
}

// Obeyed tells whether all gateways obey a version.
func (st *State) Obeyed(version int64) bool {
	for i := range st.Gateways {
		if !st.Gateways[i].Obeys(version) {
			return false
		}
	}
	return true
}

// Reporting returns how many gateways report.
func (st *State) Reporting() int {
	n := 0
	for i := range st.Gateways {
		if st.Gateways[i].Report != nil {
			n++
		}
	}
	return n
}

// Await reads s until all gateways obey a version, at most for so long, and returns what
// it read last. Its error is that of the last reading.
func (s *Scope) Await(ctx context.Context, version int64, most time.Duration) (*State, error) {
	deadline := time.Now().Add(most)
	for {
		st, err := s.Read(ctx)
		if err == nil && st.Obeyed(version) {
			return st, nil
		}
		if ctx.Err() != nil {
			return st, ctx.Err()
		}
		if time.Now().After(deadline) {
			return st, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// A Policy is what gateways report of one rule, together with all that report the same.
type Policy struct {
	Middleware string
	Rule
	Keyed bool
}

// Policies returns the rules of s as gateways report them, each different one once.
func (st *State) Policies() []Policy {
	var all []Policy
	seen := map[string]bool{}
	for _, g := range st.Gateways {
		if g.Report == nil {
			continue
		}
		for _, m := range g.Report.Middlewares {
			for _, r := range m.Rules {
				p := Policy{Middleware: m.Name, Rule: r, Keyed: g.Report.Keyed}
				text, _ := json.Marshal(p)
				if !seen[string(text)] {
					seen[string(text)] = true
					all = append(all, p)
				}
			}
		}
	}
	return all
}

// Counts returns the limits of s as gateways report them, each different one once, by name
// and length of the window.
func (st *State) Counts() []Count {
	var all []Count
	for _, p := range st.Policies() {
		for _, c := range p.Counts {
			if !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	sortCounts(all)
	return all
}

func sortCounts(counts []Count) {
	slices.SortStableFunc(counts, func(a, b Count) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return int(min(max(a.Window-b.Window, -1), 1))
	})
}

// algorithms are the ways to count, by what stands for them in keys.
var algorithms = map[string]string{"": "fixed-window", "sw": "sliding-window", "log": "sliding-log", "tb": "token-bucket"}

// infix returns what stands for the algorithm of c in keys.
func (c *Count) infix() string {
	for infix, name := range algorithms {
		if name == c.Algorithm {
			return infix
		}
	}
	return ""
}

// windowLimit returns c in the terms of the gateways.
func (c *Count) windowLimit() *window.Limit {
	l := &window.Limit{Limit: c.Limit, Length: c.Window, Burst: c.Burst}
	switch c.Algorithm {
	case "sliding-window":
		l.Algorithm = window.Sliding
	case "sliding-log":
		l.Algorithm = window.Exact
	case "token-bucket":
		l.Algorithm = window.Bucket
	}
	return l
}

// A Key is one key of a client's counts.
type Key struct {
	Name      string `json:"key"`
	Count     string `json:"count"`
	Algorithm string `json:"algorithm"`
	Client    string `json:"client"` // 64 hexadecimal digits
	// ID is the number of a window, or the length of one in seconds where the algorithm
	// is a log or a bucket.
	ID int64 `json:"id"`
}

// keyOf returns the key of a client under c, of the window with this number where windows
// have numbers.
func (s *Scope) keyOf(c *Count, client string, id int64) string {
	name := s.key
	if c.Name != "" {
		name += ":" + c.Name
	}
	if infix := c.infix(); infix != "" {
		name += ":" + infix
	}
	return name + ":{" + client + "}:" + strconv.FormatInt(id, 10)
}

// parseKey reads the name of a key of a client's counts.
func (s *Scope) parseKey(name string) (Key, bool) {
	rest, ours := strings.CutPrefix(name, s.key+":")
	head, rest, braced := strings.Cut(rest, "{")
	client, id, ended := strings.Cut(rest, "}:")
	n, err := strconv.ParseInt(id, 10, 64)
	if !ours || !braced || !ended || err != nil || !IsHash(client) {
		return Key{}, false
	}
	k := Key{Name: name, Client: client, ID: n, Algorithm: algorithms[""]}
	head = strings.TrimSuffix(head, ":")
	colon := strings.LastIndexByte(head, ':')
	if algorithm := algorithms[head[colon+1:]]; algorithm != "" && head != "" {
		k.Algorithm = algorithm
		head = head[:max(colon, 0)]
	}
	k.Count = head
	return k, true
}

// IsHash tells whether text is the digest of a client, as 64 hexadecimal digits in lower
// case.
func IsHash(text string) bool {
	return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == ""
}
