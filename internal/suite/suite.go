// Package suite holds the tests of the whole middleware, from its options and a
// request to an answer. It knows the plugin by its documented behaviour alone, so
// that the same tests run against the compiled plugin and against the one that an
// interpreter has loaded.
//
// The store is a fake server on a loopback address. Time is the store's, which a
// test sets as it likes; a test of what a gateway counts by its own clock picks a
// length of window for which plenty is left. Scopes and server addresses are used
// once in a process, because what the plugin keeps for them outlives a test.
package suite

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// New makes the handler of one router in front of next.
type New func(next http.Handler) (http.Handler, error)

// Plugin is the plugin under test.
type Plugin struct {
	// Configure decodes the options of the middleware called name as Traefik does,
	// and returns what makes a handler of it for each of its routers, which are in force
	// until the context is done. An option's
	// value is as a provider delivers it: a string, bool, float64, []any or
	// map[string]any. Configure does not change options.
	Configure func(ctx context.Context, name string, options map[string]any) (New, error)
	// Output returns all that the plugin has logged so far.
	Output func() string
}

// Run runs all tests.
func Run(t *testing.T, plugin Plugin) {
	// What is watched is all that the others count, so those who watch come first.
	for _, group := range []tests{watches, counting, answers, storeFailures, connections, clients, passage, memory, load, rules, severalLimits, algorithms, plans, identity, guards, told, refusedOptions, operators, controls} {
		for _, each := range group {
			run := each.run
			t.Run(each.name, func(inner *testing.T) { run(newT(inner, plugin)) })
		}
	}
}

// tests are tests by the name of what they guard.
type tests []struct {
	name string
	run  func(t *T)
}

// T is a running test.
type T struct {
	*testing.T
	plugin Plugin
	ctx    context.Context // of the configuration in force
}

// newT returns a test whose configuration is in force until its end.
func newT(inner *testing.T, plugin Plugin) *T {
	ctx, cancel := context.WithCancel(context.Background())
	inner.Cleanup(cancel)
	return &T{T: inner, plugin: plugin, ctx: ctx}
}

// sub runs a part of a test.
func (t *T) sub(name string, run func(t *T)) {
	t.Helper()
	t.Run(name, func(inner *testing.T) { run(newT(inner, t.plugin)) })
}

// patience bounds the wait for what must happen at some time: it is no
// expectation of how long it takes.
const patience = time.Minute

// eventually asks again and again until ok, and fails the test if that takes
// longer than patience.
func (t *T) eventually(what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

var names atomic.Int64

// name returns the name of a middleware that no other test has.
func (t *T) name() string {
	return "quota" + strconv.FormatInt(names.Add(1), 10) + "@file"
}

// options returns the options of a middleware that counts by the header X-Api-Key,
// in the store or, if v is nil, in memory: 5 requests in a window of which more
// than half, some minutes, is left. The store has all the time that it
// needs on a busy machine. The pairs are options by their path, such as
// "valkey.timeout", and what they are set to.
func (t *T) options(v *valkey, pairs ...any) map[string]any {
	t.Helper()
	options := map[string]any{
		"limit":           "5",
		"window":          seconds(roomy(600)),
		"sourceCriterion": map[string]any{"requestHeaderName": "X-Api-Key"},
	}
	if v == nil {
		options["mode"] = "local"
	} else {
		options["valkey"] = map[string]any{"endpoints": []any{v.Addr()}, "timeout": "10s", "dialTimeout": "30s"}
	}
	return with(options, pairs...)
}

// roomy returns the length in seconds, a little less than most, of a window of which
// more than half is left.
func roomy(most int64) int64 {
	for now := time.Now().Unix(); now%most >= most/2-1; {
		most--
	}
	return most
}

// seconds writes a length of time as an option has it.
func seconds(n int64) string {
	return strconv.FormatInt(n, 10) + "s"
}

// absent, as the value of an option, takes the option away.
var absent = new(int)

// with returns a copy of options in which each path is set to the value behind it.
func with(options map[string]any, pairs ...any) map[string]any {
	options = clone(options)
	for i := 0; i < len(pairs); i += 2 {
		path := strings.Split(pairs[i].(string), ".")
		group := options
		for _, name := range path[:len(path)-1] {
			inner, _ := group[name].(map[string]any)
			if inner == nil {
				inner = map[string]any{}
				group[name] = inner
			}
			group = inner
		}
		last := path[len(path)-1]
		if pairs[i+1] == any(absent) {
			delete(group, last)
		} else {
			group[last] = pairs[i+1]
		}
	}
	return options
}

func clone(options map[string]any) map[string]any {
	copied := map[string]any{}
	for name, value := range options {
		if group, ok := value.(map[string]any); ok {
			value = clone(group)
		}
		copied[name] = value
	}
	return copied
}

// configure returns what makes handlers of one middleware.
func (t *T) configure(name string, options map[string]any) New {
	t.Helper()
	newHandler, err := t.plugin.Configure(t.ctx, name, options)
	if err != nil {
		t.Fatalf("configuring %s: %v", name, err)
	}
	return newHandler
}

// handler returns a handler in front of served.
func (t *T) handler(name string, options map[string]any) http.Handler {
	t.Helper()
	return t.before(served, name, options)
}

// making is held while a handler is made: Traefik makes one after another, and an
// interpreter is not ready for more.
var making sync.Mutex

// before returns a handler in front of next.
func (t *T) before(next http.Handler, name string, options map[string]any) http.Handler {
	t.Helper()
	newHandler := t.configure(name, options)
	making.Lock()
	defer making.Unlock()
	h, err := newHandler(next)
	if err != nil {
		t.Fatalf("making a handler of %s: %v", name, err)
	}
	return h
}

// logged returns the lines of the plugin's output that have text in them.
func (t *T) logged(text string) []string {
	var lines []string
	for _, line := range strings.Split(t.plugin.Output(), "\n") {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}
