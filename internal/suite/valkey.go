package suite

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
	"github.com/gatequota/gatequota/internal/meaning"
	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/window"
)

// valkey is a fake server that knows what the counting script means, and whose
// clock runs from where a test has set it.
type valkey struct {
	*fakevalkey.Server
	t *T

	mu        sync.Mutex
	ahead     time.Duration                   // of the clock
	counts    map[string]count                // by key
	gateways  map[string]map[string]time.Time // when they were announced, by key
	forbidden string                          // beginning of the keys that nobody may touch
	reports   map[string]gatewayReport        // the last on each middleware

	algorithms *meaning.Store       // what is not counted in fixed windows
	controls   *fakevalkey.Controls // what operators have changed
}

type count struct {
	n       int64
	expires time.Time // zero: never
}

var (
	addressesMu sync.Mutex
	addresses   = map[string]bool{}
)

// valkey starts a server that stops at the end of the test.
func (t *T) valkey() *valkey {
	t.Helper()
	return t.valkeyWith(fakevalkey.Config{})
}

func (t *T) valkeyWith(config fakevalkey.Config) *valkey {
	t.Helper()
	v := &valkey{t: t, counts: map[string]count{}, gateways: map[string]map[string]time.Time{}, controls: &fakevalkey.Controls{}, reports: map[string]gatewayReport{}}
	v.controls.After = v.note
	// The system may give the port of a server that was stopped to a new one, while
	// the plugin still knows the old one as failed, and goes on probing it.
	for ours := false; !ours; {
		inUse := new(atomic.Bool)
		c := config
		if c.Report == nil {
			c.Report = func(format string, args ...interface{}) {
				if inUse.Load() {
					t.Errorf(format, args...)
				}
			}
		}
		v.Server = fakevalkey.Start(t, c)
		ours = claim(v.Addr())
		inUse.Store(ours)
	}
	v.Register(window.FixedScript, func(_ *fakevalkey.Server, args []string) string { return v.fixed(args) })
	v.Register(window.FixedSeveralScript, func(_ *fakevalkey.Server, args []string) string { return v.several(args) })
	v.registerAlgorithms()
	v.Register(limiter.AnnounceScript, func(_ *fakevalkey.Server, args []string) string { return v.announce(args) })
	v.Register(limiter.ControlScript, v.controls.Call)
	v.Handle("TIME", func(*fakevalkey.Server, []string) string {
		now := v.now()
		return fakevalkey.Array(fakevalkey.Bulk(strconv.FormatInt(now.Unix(), 10)), fakevalkey.Bulk(strconv.Itoa(now.Nanosecond()/1000)))
	})
	return v
}

// claim tells whether the address is new to this process.
func claim(address string) bool {
	addressesMu.Lock()
	defer addressesMu.Unlock()
	used := addresses[address]
	addresses[address] = true
	return !used
}

var clientKey = regexp.MustCompile(`^[A-Za-z0-9@._:-]+:[A-Za-z0-9@._-]+(:[A-Za-z0-9@._-]+){0,2}:\{([0-9a-f]{64})\}:([0-9]+)$`)

// fixed is the meaning of the script of the fixed window. It fails the test if the
// call is not what the contract of keys and arguments says.
func (v *valkey) fixed(args []string) string {
	numbers := make([]int64, 5)
	for i := 1; i < len(args) && i < 5; i++ {
		numbers[i], _ = strconv.ParseInt(args[i], 10, 64)
	}
	n, known, left, end := numbers[1], numbers[2], numbers[3], numbers[4]
	if len(args) != 5 || n < 0 || known < 0 || n+known < 1 || left < 1 || end < 1 {
		v.t.Errorf("the script is called with %q: a key, a number, what is known, the seconds left and the end of the window are wanted", args)
		return fakevalkey.Error("ERR wrong arguments")
	}
	key := args[0]
	v.checkKey(key, left, end)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.forbidden != "" && strings.HasPrefix(key, v.forbidden) {
		return fakevalkey.Error("NOPERM No permissions to access a key")
	}
	now := time.Now().Add(v.ahead)
	c := v.counts[key]
	if !c.expires.IsZero() && !c.expires.After(now) {
		c = count{}
	}
	c.n += n
	if c.n < n {
		c = count{n: n}
	}
	first := c.n == n
	if c.n < known+n {
		c.n = known + n
	}
	if first || c.expires.IsZero() {
		left = end - now.Unix()
		if left < 1 {
			delete(v.counts, key)
			return fakevalkey.Int(window.FixedOver)
		}
		c.expires = now.Add(time.Duration(left) * time.Second)
	}
	v.counts[key] = c
	return fakevalkey.Int(c.n)
}

// checkKey fails the test if a key is not that of a client in the window that ends then.
// It returns the client's digest.
func (v *valkey) checkKey(key string, left, end int64) string {
	match := clientKey.FindStringSubmatch(key)
	if match == nil {
		if !strings.Contains(key, ":probe:") {
			v.t.Errorf("key %q is not prefix:scope:{sha256}:window", key)
		}
		return ""
	}
	id, err := strconv.ParseInt(match[3], 10, 64)
	if err != nil || end%(id+1) != 0 || left > end/(id+1) {
		v.t.Errorf("key %s is called with %d s left and the end at %d, which is not that window's", key, left, end)
	}
	return match[2]
}

// several is the meaning of the script of several fixed windows. It fails the test if the
// call is not what the contract of keys and arguments says.
func (v *valkey) several(args []string) string {
	keys := (len(args) - 2) / 6
	if keys < 1 || len(args) != 6*keys+2 {
		v.t.Errorf("the script is called with %q: for each key five arguments are wanted, and before them two", args)
		return fakevalkey.Error("ERR wrong arguments")
	}
	numbers := make([]int64, len(args))
	for i, arg := range args[keys:] {
		n, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || n < 0 {
			v.t.Errorf("the script is called with %q, where a number is wanted", arg)
		}
		numbers[keys+i] = n
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now().Add(v.ahead)
	admitted, cost := numbers[keys], numbers[keys+1]
	counts := make([]count, keys)
	before := make([]string, keys)
	over, client := false, ""
	for i, key := range args[:keys] {
		a := numbers[keys+2+5*i:]
		limit, settled, known, left, end := a[0], a[1], a[2], a[3], a[4]
		if digest := v.checkKey(key, left, end); i > 0 && digest != client {
			v.t.Errorf("keys %q are not of one client", args[:keys])
		} else {
			client = digest
		}
		if v.forbidden != "" && strings.HasPrefix(key, v.forbidden) {
			return fakevalkey.Error("NOPERM No permissions to access a key")
		}
		c := v.counts[key]
		if !c.expires.IsZero() && !c.expires.After(now) {
			c = count{}
		}
		if c.expires.IsZero() {
			c.expires = time.Unix(end, 0)
			over = over || end <= now.Unix()
		}
		if c.n < known {
			c.n = known
		}
		c.n += settled
		counts[i] = c
		before[i] = strconv.FormatInt(c.n, 10)
		if end <= now.Unix() {
			before[i] = strconv.Itoa(window.FixedOver)
		}
		for admitted > 0 && c.n+admitted*cost > limit {
			admitted--
		}
	}
	if !over {
		for i, key := range args[:keys] {
			counts[i].n += admitted * cost
			v.counts[key] = counts[i]
		}
	}
	return "+" + strings.Join(before, " ") + "\r\n"
}

// announce is the meaning of the script by which gateways make themselves known.
func (v *valkey) announce(args []string) string {
	if len(args) != 4 || !strings.HasSuffix(args[0], ":gateways") || args[1] == "" || args[2] != "15" {
		v.t.Errorf("a gateway is announced with %q", args)
		return fakevalkey.Error("ERR wrong arguments")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now().Add(v.ahead)
	set := v.gateways[args[0]]
	if set == nil {
		set = map[string]time.Time{}
		v.gateways[args[0]] = set
	}
	set[args[1]] = now
	for gateway, at := range set {
		if now.Sub(at) >= 15*time.Second {
			delete(set, gateway)
		}
	}
	return fakevalkey.Int(int64(len(set)))
}

// setTime sets the server's clock. A gateway that is connected does not notice.
func (v *valkey) setTime(now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ahead = time.Until(now)
}

// advance moves the server's clock.
func (v *valkey) advance(d time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ahead += d
}

func (v *valkey) now() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return time.Now().Add(v.ahead)
}

// forbid answers NOPERM for all keys that begin so.
func (v *valkey) forbid(prefix string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forbidden = prefix
}

// keys returns the keys of a scope, sorted.
func (v *valkey) keys(scope string) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var keys []string
	for key := range v.counts {
		if strings.Contains(key, ":"+scope+":") {
			keys = append(keys, key)
		}
	}
	sort.Strings(keys)
	return keys
}

// countOf returns what is counted under a key.
func (v *valkey) countOf(key string) int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.counts[key].n
}

// counted returns what is counted under the keys of a scope together.
func (v *valkey) counted(scope string) int64 {
	total := int64(0)
	for _, key := range v.keys(scope) {
		total += v.countOf(key)
	}
	return total
}

// set makes it that other gateways have counted a client up to n.
func (v *valkey) set(key string, n int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.counts[key] = count{n: n, expires: time.Now().Add(v.ahead + time.Hour)}
}

// calls returns how often a script was called for a key of the scope, and how often
// of these with its body.
func (v *valkey) calls(scope string) (all, whole int) {
	for _, command := range v.Commands() {
		if len(command.Args) > 3 && strings.HasPrefix(command.Args[0], "EVAL") && strings.Contains(command.Args[3], ":"+scope+":") {
			all++
			if command.Args[0] == "EVAL" {
				whole++
			}
		}
	}
	return all, whole
}

// headerKey is the key under which the value of a header is counted in the window
// of the length, in seconds, that it is at now.
func headerKey(scope, value string, now time.Time, length int64) string {
	return fmt.Sprintf("rate:%s:{%x}:%d", scope, sha256.Sum256([]byte(value)), now.Unix()/length)
}
