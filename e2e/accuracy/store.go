package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatequota/gatequota/window"
)

// A call is one call of an algorithm's script, for requests that cost 1.
type call struct {
	keys []string
	args []any
}

// callFor returns the call for n requests of a client at a time in unix milliseconds.
func callFor(l *window.Limit, client string, n, now, number int64) call {
	id, left := window.FixedAt(now/1000, l.Length)
	end := now/1000 + left
	key := func(kind, rest string) string {
		return fmt.Sprintf("rate:api@docker%s:{%x}%s", kind, sha256.Sum256([]byte(client)), rest)
	}
	at := func(id int64) string { return ":" + strconv.FormatInt(id, 10) }
	switch l.Algorithm {
	case window.Fixed:
		return call{[]string{key("", at(id))}, []any{n, 0, left, end}}
	case window.Sliding:
		return call{[]string{key(":sw", at(id)), key(":sw", at(id-1))}, []any{n, 1, now, l.Limit, l.Length, end, 0, 0, 0, 0}}
	case window.Bucket:
		return call{[]string{key(":tb", "")}, []any{n, 1, now, l.Limit, l.Length * 1000, l.Burst, 0, 0}}
	}
	return call{[]string{key(":log", "")}, []any{n, 1, now, fmt.Sprintf("%016x-%s", uint64(now), strconv.FormatInt(number, 36)), l.Limit, l.Length * 1000, ""}}
}

// scripts are in the order of the algorithms.
var scripts = []*redis.Script{
	redis.NewScript(window.FixedScript),
	redis.NewScript(window.SlidingScript),
	redis.NewScript(window.LogScript),
	redis.NewScript(window.BucketScript),
}

// work is what calls of a script are to the store.
type work struct {
	mean     float64            // microseconds of a call
	commands map[string]float64 // that one call runs, by name
}

// total returns how many commands one call runs.
func (w *work) total() float64 {
	sum := 0.0
	for _, n := range w.commands {
		sum += n
	}
	return sum
}

// names lists the commands of a call.
func (w *work) names() string {
	var parts []string
	for name, n := range w.commands {
		parts = append(parts, fmt.Sprintf("%s `%s`", strings.TrimSuffix(fmt.Sprintf("%.1f", n), ".0"), strings.ToUpper(name)))
	}
	slices.SortFunc(parts, func(a, b string) int {
		_, a, _ = strings.Cut(a, " ")
		_, b, _ = strings.Cut(b, " ")
		return strings.Compare(a, b)
	})
	return strings.Join(parts, ", ")
}

// stored is what an algorithm is to the store.
type stored struct {
	first, next, refused work
	memory               memory
}

const (
	storeRounds  = 5 // of which the median is taken: others use the machine as well
	storeCalls   = 4000
	storeClients = 2000
	pipelined    = 200
	mostMerged   = 1000 // requests of one call
)

// inStore measures the work and the memory of the store for one algorithm, and drops all
// else that the store has. Nobody else uses it.
func inStore(ctx context.Context, store *redis.Client, m *measure, now func() time.Time) (*stored, error) {
	clients := min(storeClients, m.clients)
	// A window that does not end soon, so that only what is called changes anything.
	limit := m.limit
	limit.Length = quiet(now().Unix())
	script := scripts[limit.Algorithm]
	if err := script.Load(ctx, store).Err(); err != nil {
		return nil, err
	}
	number := int64(0)
	// calls makes a number of calls for each client, all of whose requests are to be admitted
	// or refused, and returns what they were to the store.
	calls := func(each int, n int64, admitted bool) (work, error) {
		if err := store.ConfigResetStat(ctx).Err(); err != nil {
			return work{}, err
		}
		for done := 0; done < clients*each; done += pipelined {
			pipe := store.Pipeline()
			var answers []*redis.Cmd
			for i := done; i < min(done+pipelined, clients*each); i++ {
				number++
				c := callFor(&limit, strconv.Itoa(i%clients), n, now().UnixMilli(), number)
				answers = append(answers, script.EvalSha(ctx, pipe, c.keys, c.args...))
			}
			if _, err := pipe.Exec(ctx); err != nil {
				return work{}, err
			}
			for _, answer := range answers {
				if (leftOf(&limit, fmt.Sprint(answer.Val()), n) >= n) != admitted {
					return work{}, fmt.Errorf("%s: %d requests: %v", m.name, n, answer)
				}
			}
		}
		text, err := store.Info(ctx, "commandstats").Result()
		if err != nil {
			return work{}, err
		}
		return readWork(text, int64(clients*each))
	}
	// rounds makes these calls several times over.
	rounds := func(each int, admitted, anew bool) (work, error) {
		var found []work
		for range storeRounds {
			if anew {
				if err := store.FlushAll(ctx).Err(); err != nil {
					return work{}, err
				}
			}
			w, err := calls(each, 1, admitted)
			if err != nil {
				return work{}, err
			}
			found = append(found, w)
		}
		return median(found), nil
	}
	var s stored
	var err error
	each := storeCalls / clients
	if s.first, err = rounds(1, true, true); err != nil {
		return nil, err
	}
	if s.memory.one, err = bytesPerClient(ctx, store, clients); err != nil {
		return nil, err
	}
	if s.next, err = rounds(each, true, false); err != nil {
		return nil, err
	}
	for used := int64(1 + storeRounds*each); used < limit.Limit; {
		n := min(mostMerged, limit.Limit-used)
		if _, err = calls(1, n, true); err != nil {
			return nil, err
		}
		used += n
	}
	if s.memory.full, err = bytesPerClient(ctx, store, clients); err != nil {
		return nil, err
	}
	s.refused, err = rounds(each, false, false)
	return &s, err
}

// median returns the one whose calls took neither long nor short.
func median(found []work) work {
	slices.SortFunc(found, func(a, b work) int { return cmp.Compare(a.mean, b.mean) })
	return found[len(found)/2]
}

// leftOf returns how much of a limit was left before the first of n requests, by what the
// script answered.
func leftOf(l *window.Limit, answer string, n int64) int64 {
	var numbers []int64
	for _, field := range strings.Fields(answer) {
		number, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return -1
		}
		numbers = append(numbers, number)
	}
	switch {
	case l.Algorithm == window.Fixed && len(numbers) == 1:
		return l.Limit - numbers[0] + n
	case l.Algorithm == window.Sliding && len(numbers) == 3:
		_, left := window.FixedAt(numbers[0], l.Length*1000)
		return window.SlidingLeft(numbers[1], numbers[2], l.Limit, left, l.Length*1000)
	case l.Algorithm == window.Exact && len(numbers) == 4:
		return l.Limit - numbers[1]
	case l.Algorithm == window.Bucket && len(numbers) >= 2:
		return window.BucketLeft(numbers[len(numbers)-2], l.Burst, l.Length*1000)
	}
	return -1
}

// quiet returns a length of windows of at least a month, in seconds, of which one neither
// begins nor ends within an hour of a time in unix seconds.
func quiet(unix int64) int64 {
	const day = 24 * 3600
	for length := int64(30 * day); ; length += day {
		if at := unix % length; at >= 3600 && length-at >= 3600 {
			return length
		}
	}
}

// bytesPerClient returns what the store says that its keys take.
func bytesPerClient(ctx context.Context, store *redis.Client, clients int) (float64, error) {
	keys, err := store.Keys(ctx, "*").Result()
	if err != nil {
		return 0, err
	}
	sum := int64(0)
	for _, key := range keys {
		n, err := store.MemoryUsage(ctx, key, 0).Result()
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return float64(sum) / float64(clients), nil
}

// commandStat is a line of INFO commandstats.
var commandStat = regexp.MustCompile(`(?m)^cmdstat_([^:|]+)(?:\|[^:]*)?:calls=(\d+),usec=(\d+),`)

// readWork reads what so many calls of a script were out of INFO commandstats, which
// counts what a script runs like all else.
func readWork(text string, calls int64) (work, error) {
	w := work{commands: map[string]float64{}}
	for _, line := range commandStat.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.ParseInt(line[2], 10, 64)
		usec, _ := strconv.ParseInt(line[3], 10, 64)
		switch line[1] {
		case "evalsha":
			if n != calls {
				return w, fmt.Errorf("%d calls of a script, %d were made", n, calls)
			}
			w.mean = float64(usec) / float64(n)
		case "config", "info", "client", "hello", "select", "ping":
			// the client's own
		default:
			w.commands[line[1]] = float64(n) / float64(calls)
		}
	}
	if w.mean == 0 {
		return w, fmt.Errorf("no script in %q", text)
	}
	return w, nil
}
