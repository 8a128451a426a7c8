package suite

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
)

// storeFailures is about what happens while the store does not count.
var storeFailures = tests{
	{"a refused connection is no fault of the client", unreachable},
	{"a silent store is no fault of the client", silent},
	{"a store that says no is no fault of the client", refusals},
	{"a store that answers garbage is no fault of the client", garbage},
	{"a store that hangs up is no fault of the client", hangUps},
	{"a gateway goes on from the last shared count", warmHandOver},
	{"counting resumes when the store is back", resumes},
	{"a store that comes and goes hands out no quota", togglingHandsOutNothing},
	{"a dead store does not cost every request its patience", breakerOpens},
	{"rights on one key prefix concern no other", forbiddenPrefix},
	{"an outage is a handful of log lines", handfulOfLines},
	{"the store may come and go under load", comesAndGoes},
}

// impatient makes a request give up on the store soon.
func impatient(options map[string]any) map[string]any {
	return with(options, "valkey.timeout", "40ms", "valkey.dialTimeout", "60ms")
}

// withoutStore sends requests to a middleware whose store fails in the way that
// strike sets up, once for each value of onStoreFailure.
func (t *T) withoutStore(name string, strike func(v *valkey)) {
	t.Helper()
	t.sub(name, func(t *T) {
		for _, mode := range []string{"local", "closed", "open"} {
			v := t.valkey()
			strike(v)
			h := t.handler(t.name(), impatient(t.options(v, "onStoreFailure", mode)))
			for i := int64(1); i <= 8; i++ {
				got := t.ask(h, "key")
				status, decision, remaining := http.StatusOK, mode, int64(-1)
				switch {
				case mode == "closed":
					status = http.StatusServiceUnavailable
				case mode == "open":
					decision = ""
				case i <= 5:
					remaining = 5 - i
				default:
					status, remaining = http.StatusTooManyRequests, 0
				}
				if got.status != status || got.decision != decision || got.remaining != remaining {
					t.Errorf("onStoreFailure %s, request %d: %d, decision %q, remaining %d; want %d, %q, %d",
						mode, i, got.status, got.decision, got.remaining, status, decision, remaining)
					break
				}
				if got.header.Get("RateLimit-Policy") == "" || mode != "local" && got.header.Get("RateLimit") != "" {
					t.Errorf("onStoreFailure %s, request %d: %v", mode, i, got.header)
				}
			}
		}
	})
}

func unreachable(t *T) {
	t.withoutStore("refused connection", func(v *valkey) { v.Stop() })
}

func silent(t *T) {
	t.withoutStore("from the first byte", func(v *valkey) { v.Usually(fakevalkey.Behaviour{Swallow: true}) })
	t.withoutStore("paused", func(v *valkey) { v.Pause() })
	t.withoutStore("scripts alone", func(v *valkey) {
		v.Handle("EVALSHA", func(*fakevalkey.Server, []string) string { return "" })
	})
	t.withoutStore("in the middle of an answer", func(v *valkey) {
		v.Handle("EVALSHA", func(*fakevalkey.Server, []string) string { return ":1" })
	})
}

// refusalLines are what stores say instead of a count. %s is the product.
var refusalLines = []string{
	"READONLY You can't write against a read only replica of %s.",
	"LOADING %s is loading the dataset in memory",
	"MASTERDOWN Link with MASTER is down and %s has replica-serve-stale-data set to 'no'.",
	"OOM command not allowed when %s used memory > 'maxmemory'.",
	"BUSY %s is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"NOAUTH Authentication required by %s.",
	"WRONGPASS %s knows no such username-password pair or user is disabled.",
	"CLUSTERDOWN %s: the cluster is down",
	"MOVED 3999 127.0.0.1:6381 %s",
	"NOPERM %s user has no permissions to run the 'evalsha' command",
	"UNKILLABLE %s: the busy script was sent by a master instance",
	"TRYAGAIN %s: multiple keys request during rehashing of slot",
	"NOREPLICAS Not enough good replicas for %s to write.",
	"MISCONF %s is configured to save RDB snapshots, but it's currently unable to persist to disk.",
	"NOSCRIPT No matching script in %s.",
	"ERR Error running script (call to f_0) in %s: @user_script:1: attempt to index a nil value",
	"ERR unknown command 'EVALSHA', with args beginning with: %s",
	"FOO bar %s",
	"%s",
}

func refusals(t *T) {
	for _, line := range refusalLines {
		for _, product := range []string{"Valkey", "Redis"} {
			text := fmt.Sprintf(line, product)
			t.withoutStore(text, func(v *valkey) { v.Refuse(text) })
		}
	}
}

func garbage(t *T) {
	for _, answer := range []string{
		"+OK\r\n", "$1\r\n1\r\n", "$-1\r\n", "*0\r\n", "*-1\r\n", "*1\r\n:1\r\n", ":\r\n", ":one\r\n", ":1.5\r\n", ":1\n",
		":99999999999999999999\r\n", ":-9223372036854775809\r\n", "-\r\n", "1\r\n", "\r\n", "\x00\xff\x15\x03\r\n",
		":0\r\n", ":-2\r\n", ":-7\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n", "%1\r\n", ":" + strings.Repeat("1", 8192),
	} {
		text := answer
		t.withoutStore(fmt.Sprintf("%.20q for a count", text), func(v *valkey) {
			v.Handle("EVALSHA", func(*fakevalkey.Server, []string) string { return text })
		})
	}
	for _, answer := range []string{"+OK\r\n", ":1\r\n", "*1\r\n$1\r\n1\r\n", "*2\r\n$3\r\none\r\n$3\r\ntwo\r\n", "*2\r\n:1\r\n:-1\r\n", "-OOM no\r\n"} {
		text := answer
		t.withoutStore(fmt.Sprintf("%.20q for the time", text), func(v *valkey) {
			v.Handle("TIME", func(*fakevalkey.Server, []string) string { return text })
		})
	}
	t.withoutStore("a greeting", func(v *valkey) { v.Usually(fakevalkey.Behaviour{Greeting: ":1\r\n"}) })
	t.withoutStore("an answer too many", func(v *valkey) { v.Usually(fakevalkey.Behaviour{Extra: ":7\r\n"}) })
}

func hangUps(t *T) {
	t.withoutStore("at once", func(v *valkey) { v.Usually(fakevalkey.Behaviour{CloseAfter: -1}) })
	now := fakevalkey.Array(fakevalkey.Bulk(strconv.FormatInt(time.Now().Unix(), 10)), fakevalkey.Bulk("7"))
	for after := 1; after < len(now+":1\r\n"); after++ {
		after := after
		t.withoutStore(fmt.Sprintf("after %d bytes", after), func(v *valkey) {
			v.Handle("TIME", func(*fakevalkey.Server, []string) string { return now })
			v.Handle("EVALSHA", func(*fakevalkey.Server, []string) string { return ":1\r\n" })
			v.Usually(fakevalkey.Behaviour{CloseAfter: after})
		})
	}
}

func warmHandOver(t *T) {
	v := t.valkey()
	name := t.name()
	length := roomy(600)
	h := t.handler(name, t.options(v, "limit", "10", "window", seconds(length)))
	t.ask(h, "key")
	// Meanwhile other gateways have counted six.
	v.set(headerKey(name, "key", v.now(), length), 7)
	if got := t.ask(h, "key"); got.remaining != 2 || got.decision != "shared" {
		t.Fatalf("remaining %d, %s", got.remaining, got.decision)
	}
	v.Stop()
	for i := int64(1); i <= 6; i++ {
		got := t.ask(h, "key")
		status, remaining := http.StatusOK, 2-i
		if i > 2 {
			status, remaining = http.StatusTooManyRequests, 0
		}
		if got.status != status || got.remaining != remaining || got.decision != "local" {
			t.Errorf("request %d without the store: %d, remaining %d, %s", i, got.status, got.remaining, got.decision)
		}
	}
	if got := t.ask(h, "another client"); got.remaining != 9 {
		t.Errorf("another client has %d left", got.remaining)
	}
}

// cures are ways in which a store fails, and recovers.
var cures = []struct {
	name         string
	strike, cure func(t *T, v *valkey)
}{
	{"stopped", func(_ *T, v *valkey) { v.Stop() }, restart},
	{"paused", func(_ *T, v *valkey) { v.Pause() }, func(_ *T, v *valkey) { v.Resume() }},
	{"a replica", refuse("READONLY You can't write against a read only replica."), refuse("")},
	{"loading", refuse("LOADING Valkey is loading the dataset in memory"), refuse("")},
	{"out of memory", refuse("OOM command not allowed when used memory > 'maxmemory'."), refuse("")},
	{"of unknown mood", refuse("FOO bar"), refuse("")},
	{"out of reach of this user", refuse("NOPERM this user has no permissions to run the 'evalsha' command"), refuse("")},
	{"another server", func(_ *T, v *valkey) {
		v.CloseConnections()
		v.Usually(fakevalkey.Behaviour{Greeting: "HTTP/1.1 400 Bad Request\r\n\r\n"})
	}, func(_ *T, v *valkey) {
		v.Usually(fakevalkey.Behaviour{})
		v.CloseConnections()
	}},
}

func refuse(line string) func(*T, *valkey) {
	return func(_ *T, v *valkey) { v.Refuse(line) }
}

// restart waits where a connection to somebody else has meanwhile been given the
// server's port as its own.
func restart(t *T, v *valkey) {
	t.eventually("the store starts again", func() bool { return v.Restart() == nil })
}

func resumes(t *T) {
	for _, each := range cures {
		for _, mode := range []string{"local", "closed"} {
			each := each
			t.sub(each.name+", "+mode, func(t *T) {
				// These wait for the plugin's pauses, so they wait together.
				t.Parallel()
				v := t.valkey()
				name := t.name()
				h := t.handler(name, t.options(v, "onStoreFailure", mode, "valkey.timeout", "250ms", "limit", "1000000"))
				t.eventually("the first count in the store", func() bool { return t.ask(h, "key").decision == "shared" })
				each.strike(t, v)
				for i := 0; i < 6; i++ {
					if got := t.ask(h, "key"); got.decision != mode {
						t.Errorf("request %d while the store is %s: %d, %s", i+1, each.name, got.status, got.decision)
					}
				}
				before := v.counted(name)
				each.cure(t, v)
				t.eventually("a count in the store again", func() bool { return t.ask(h, "key").decision == "shared" })
				if v.counted(name) <= before {
					t.Errorf("%d are counted in the store, as before", before)
				}
			})
		}
	}
}

func togglingHandsOutNothing(t *T) {
	v := t.valkey()
	h := t.handler(t.name(), t.options(v, "limit", "10"))
	allowed := 0
	for round := 0; round < 4; round++ {
		for i := 0; i < 5; i++ {
			if t.ask(h, "key").status == http.StatusOK {
				allowed++
			}
		}
		v.Stop()
		for i := 0; i < 5; i++ {
			if t.ask(h, "key").status == http.StatusOK {
				allowed++
			}
		}
		restart(t, v)
		newcomer := 0
		t.eventually("a count in the store again", func() bool {
			newcomer++
			return t.ask(h, fmt.Sprintf("newcomer %d of round %d", newcomer, round)).decision == "shared"
		})
	}
	// What was allowed without the store is not known to the store; what the store
	// counted is known to the gateway. So one gateway lets twice the limit pass at
	// most, however often the store comes and goes.
	if allowed < 10 || allowed > 20 {
		t.Errorf("%d of limit 10 were allowed over four outages", allowed)
	}
}

func breakerOpens(t *T) {
	for _, mode := range []string{"local", "closed"} {
		v := t.valkey()
		name := t.name()
		h := t.handler(name, t.options(v, "onStoreFailure", mode, "valkey.timeout", "100ms"))
		newcomer := 0
		t.eventually("a count in the store", func() bool {
			newcomer++
			return t.ask(h, fmt.Sprintf("newcomer %d", newcomer)).decision == "shared"
		})
		before, _ := v.calls(name)
		v.Handle("EVALSHA", func(*fakevalkey.Server, []string) string { return "" })
		for i := 0; i < 100; i++ {
			if got := t.ask(h, fmt.Sprintf("client %d", i)); got.decision != mode {
				t.Errorf("request %d is decided %s", i+1, got.decision)
			}
		}
		if after, _ := v.calls(name); after-before > 5 {
			t.Errorf("%d of 100 requests waited for a silent store", after-before)
		}
	}
}

func forbiddenPrefix(t *T) {
	v := t.valkey()
	v.forbid("secret:")
	mine, theirs := t.name(), t.name()
	allowed := t.handler(mine, t.options(v))
	forbidden := t.handler(theirs, t.options(v, "valkey.keyPrefix", "secret"))
	for i := 0; i < 8; i++ {
		key := fmt.Sprintf("client %d", i)
		if got := t.ask(forbidden, key); got.decision != "local" || got.status != http.StatusOK {
			t.Errorf("the forbidden prefix, request %d: %d, %s", i+1, got.status, got.decision)
		}
		if got := t.ask(allowed, key); got.decision != "shared" || got.status != http.StatusOK {
			t.Errorf("the allowed prefix, request %d: %d, %s", i+1, got.status, got.decision)
		}
	}
	if lines := t.logged(v.Addr()); !anyContains(lines, "NOPERM") {
		t.Errorf("the log does not name the refusal: %q", lines)
	}
}

func handfulOfLines(t *T) {
	v := t.valkey()
	name := t.name()
	options := t.options(v, "limit", "1000")
	var h http.Handler
	for i := 0; i < 20; i++ {
		h = t.handler(name, options)
	}
	if lines := t.logged(name); len(lines) != 1 || !strings.Contains(lines[0], v.Addr()) || !strings.Contains(lines[0], "1000") {
		t.Errorf("20 routers announce their settings so: %q", lines)
	}
	before := len(t.logged(v.Addr()))
	for i := 0; i < 50; i++ {
		t.ask(h, "key")
	}
	if lines := t.logged(v.Addr()); len(lines) != before {
		t.Errorf("normal operation is logged: %q", lines)
	}
	v.Stop()
	rush(8, 200, func(int) answer { return t.ask(h, "key") })
	if lines := t.logged(v.Addr())[before:]; len(lines) != 1 {
		t.Errorf("the outage is logged so: %q", lines)
	}
	restart(t, v)
	t.eventually("a line that it is over", func() bool {
		t.ask(h, "key")
		return len(t.logged(v.Addr())) >= before+2
	})
	for i := 0; i < 50; i++ {
		t.ask(h, "key")
	}
	if lines := t.logged(v.Addr())[before:]; len(lines) != 2 {
		t.Errorf("the outage and its end are logged so: %q", lines)
	}
}

func anyContains(lines []string, text string) bool {
	for _, line := range lines {
		if strings.Contains(line, text) {
			return true
		}
	}
	return false
}

func comesAndGoes(t *T) {
	stress(t, 2000)
}
