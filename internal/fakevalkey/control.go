package fakevalkey

import (
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
)

// Controls are the hashes by which operators change what gateways do, and those in which
// gateways report. Its Call is a Handler for the script that reads and writes them. It is
// written from what the comment of that script promises.
type Controls struct {
	// After, unless it is nil, is called with each call that was carried out: the gateway
	// and its report.
	After func(gateway, report string)

	mu      sync.Mutex
	hashes  map[string]map[string]string // by key
	answers []string                     // sent in place of its own
	refusal string
	calls   int
}

// Set sets fields of a hash: names and values in turn.
func (c *Controls) Set(key string, pairs ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := 0; i+1 < len(pairs); i += 2 {
		c.set(key, pairs[i], pairs[i+1])
	}
}

func (c *Controls) set(key, field, value string) {
	if c.hashes == nil {
		c.hashes = map[string]map[string]string{}
	}
	if c.hashes[key] == nil {
		c.hashes[key] = map[string]string{}
	}
	c.hashes[key][field] = value
}

// Change sets fields, and takes those away whose value is "", and raises the version, which
// it returns. In a value, VERSION stands for the new one.
func (c *Controls) Change(key string, pairs ...string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, _ := strconv.ParseInt(c.hashes[key]["version"], 10, 64)
	version := strconv.FormatInt(old+1, 10)
	c.set(key, "version", version)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			delete(c.hashes[key], pairs[i])
		} else {
			c.set(key, pairs[i], strings.ReplaceAll(pairs[i+1], "VERSION", version))
		}
	}
	return old + 1
}

// Hash returns a copy of a hash.
func (c *Controls) Hash(key string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	fields := map[string]string{}
	for name, value := range c.hashes[key] {
		fields[name] = value
	}
	return fields
}

// Replace has these fields, and no others, be those of a hash.
func (c *Controls) Replace(key string, fields map[string]string) {
	c.mu.Lock()
	delete(c.hashes, key)
	c.mu.Unlock()
	for name, value := range fields {
		c.Set(key, name, value)
	}
}

// Flush forgets all of them.
func (c *Controls) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hashes = nil
}

// Answer sends these answers, one for each call in turn, in place of its own.
func (c *Controls) Answer(each ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers = each
}

// Refuse answers each call with an error line; empty ends it.
func (c *Controls) Refuse(line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusal = line
}

// Calls returns how many calls there were.
func (c *Controls) Calls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// The most that is read of a hash: fields, and bytes of them all.
const (
	maxFields    = 4096
	maxFieldText = 900000
)

var reportedAt = regexp.MustCompile(`"at":([0-9]+)`)

// Call carries out one call of the script.
func (c *Controls) Call(s *Server, args []string) string {
	answer := c.call(s, args)
	c.mu.Lock()
	after := c.After
	c.mu.Unlock()
	if after != nil && !strings.HasPrefix(answer, "-") {
		after(args[2], args[3])
	}
	return answer
}

func (c *Controls) call(s *Server, args []string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	if problem := controlProblem(args); problem != "" {
		s.config.Report("fakevalkey: the script of controls is called with %q: %s", args, problem)
		return Error("ERR wrong arguments")
	}
	if c.refusal != "" {
		return Error(c.refusal)
	}
	if len(c.answers) > 0 {
		answer := c.answers[0]
		c.answers = c.answers[1:]
		return answer
	}
	key, reports, gateway, report, digest, fields := args[0], args[1], args[2], args[3], args[5], args[8]
	before, _ := strconv.ParseInt(args[6], 10, 64)
	keep, _ := strconv.ParseInt(args[4], 10, 64)
	if len(c.hashes[key]) > maxFields {
		return Error("CONTROL has more than 4096 fields")
	}
	if fields != "" {
		known, _ := strconv.ParseInt(args[7], 10, 64)
		version, _ := strconv.ParseInt(c.hashes[key]["version"], 10, 64)
		if version < known {
			var list []string
			_ = json.Unmarshal([]byte(fields), &list)
			delete(c.hashes, key)
			for i := 0; i+1 < len(list); i += 2 {
				c.set(key, list[i], list[i+1])
			}
		}
	}
	c.set(reports, gateway, report)
	for other, text := range c.hashes[reports] {
		at := int64(0)
		if match := reportedAt.FindStringSubmatch(text); match != nil {
			at, _ = strconv.ParseInt(match[1], 10, 64)
		}
		if before > 0 && (at < before || at > before+2*keep) {
			delete(c.hashes[reports], other)
		}
	}
	text := listed(c.hashes[key])
	sum := sha1.Sum([]byte(text))
	now := hex.EncodeToString(sum[:])
	if now == digest {
		return Bulk(now)
	}
	if len(text) > maxFieldText {
		return Error("CONTROL is larger than 900000 bytes")
	}
	return Bulk(now + " " + text)
}

// listed returns the fields of a hash as a list in JSON, sorted by name.
func listed(fields map[string]string) string {
	var names []string
	for name := range fields {
		names = append(names, name)
	}
	sort.Strings(names)
	list := []string{}
	for _, name := range names {
		list = append(list, name, fields[name])
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(list)
	// As the server's Lua writes it.
	return strings.ReplaceAll(strings.TrimSuffix(text.String(), "\n"), "/", `\/`)
}

// controlProblem says what is wrong with a call, "" if nothing is.
func controlProblem(args []string) string {
	if len(args) != 9 {
		return "two keys and seven arguments are wanted"
	}
	if !strings.HasSuffix(args[0], ":control") || strings.TrimSuffix(args[0], "control")+"reports" != args[1] {
		return "the keys are not those of one scope"
	}
	if len(args[2]) != 16 || !json.Valid([]byte(args[3])) {
		return "a gateway, and its report as JSON, are wanted"
	}
	for _, i := range []int{4, 6, 7} {
		if n, err := strconv.ParseInt(args[i], 10, 64); err != nil || n < 0 || i == 4 && n < 1 {
			return "a number is wanted"
		}
	}
	if args[8] != "" && !json.Valid([]byte(args[8])) {
		return "the fields are no JSON"
	}
	return ""
}
