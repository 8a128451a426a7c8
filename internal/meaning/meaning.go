// Package meaning gives a fake store what the scripts of package window mean, in Go: of the
// sliding window, the log and the token bucket, for any number of limits. It is written from
// what their comments promise, and knows nothing of how they do it.
package meaning

import (
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/gatequota/gatequota/internal/fakevalkey"
	"github.com/gatequota/gatequota/window"
)

// Store holds what the scripts count. It may be used concurrently.
type Store struct {
	now    func() int64 // unix milliseconds
	report func(format string, args ...interface{})

	mu   sync.Mutex
	keys map[string]*value
}

// value is what stands under a key: a count, a log or a bucket.
type value struct {
	expires  int64 // unix milliseconds
	count    int64
	log      map[string]int64 // times of its members
	lack, at int64
}

// New returns an empty store with this clock. Calls that no gateway may make are reported.
func New(now func() int64, report func(format string, args ...interface{})) *Store {
	return &Store{now: now, report: report, keys: map[string]*value{}}
}

// Scripts are what Call knows.
var Scripts = []string{window.SlidingScript, window.LogScript, window.BucketScript}

// Call answers a call of a script with these keys and arguments.
func (s *Store) Call(script string, args []string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for key, v := range s.keys {
		if v.expires <= now {
			delete(s.keys, key)
		}
	}
	var answer []int64
	switch script {
	case window.SlidingScript:
		answer = s.sliding(args, now)
	case window.LogScript:
		answer = s.log(args, now)
	case window.BucketScript:
		answer = s.bucket(args, now)
	}
	if answer == nil {
		s.report("a script is called with %q", args)
		return fakevalkey.Error("ERR wrong arguments")
	}
	return "+" + strings.Trim(fmt.Sprint(answer), "[]") + "\r\n"
}

// Flush forgets everything.
func (s *Store) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = map[string]*value{}
}

// Units returns how many units stand under a key: of a count and a log all, of a bucket for
// windows of length seconds those that it lacked when it was last written, rounded up.
func (s *Store) Units(key string, length int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.keys[key]
	if v == nil {
		return 0
	}
	return v.count + int64(len(v.log)) + (v.lack+length*1000-1)/(length*1000)
}

// Keys returns all keys that hold a text, sorted.
func (s *Store) Keys(text string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for key := range s.keys {
		if strings.Contains(key, text) {
			keys = append(keys, key)
		}
	}
	sort.Strings(keys)
	return keys
}

// at returns what stands under a key, which is made if there is nothing.
func (s *Store) at(key string) *value {
	if s.keys[key] == nil {
		s.keys[key] = &value{log: map[string]int64{}}
	}
	return s.keys[key]
}

// split parts a call of a script that has so many keys and arguments for each limit, and so
// many arguments before them. The arguments are numbers, but for those at these places.
func split(args []string, keys, before, each int, texts ...int) (limits int, head []int64, rest [][]int64) {
	limits = (len(args) - before) / (keys + each)
	if limits < 1 || len(args) != before+limits*(keys+each) {
		return 0, nil, nil
	}
	var numbers []int64
	for i, arg := range args[limits*keys:] {
		n, err := strconv.ParseInt(arg, 10, 64)
		place := i
		if i >= before {
			place = before + (i-before)%each
		}
		text := false
		for _, t := range texts {
			text = text || t == place
		}
		if !text && (err != nil || n < 0) {
			return 0, nil, nil
		}
		numbers = append(numbers, n)
	}
	for i := 0; i < limits; i++ {
		rest = append(rest, numbers[before+i*each:before+(i+1)*each])
	}
	return limits, numbers[:before], rest
}

func larger(a, b int64) int64 {
	if a > b {
		return a
	}
	return b
}

func (s *Store) sliding(args []string, now int64) []int64 {
	limits, head, rest := split(args, 2, 3, 7)
	if limits == 0 || head[1] < 1 {
		return nil
	}
	answer, lefts := []int64{now}, []int64(nil)
	for i, a := range rest {
		end, length := a[2]*1000, a[1]*1000
		if end <= now {
			for range rest {
				answer = append(answer, window.FixedOver, window.FixedOver)
			}
			return answer[:1+2*limits]
		}
		running, before := s.at(args[2*i]), s.at(args[2*i+1])
		running.count = larger(running.count, a[4]) + a[3]
		before.count = larger(before.count, a[6]) + a[5]
		running.expires, before.expires = end+length, end
		answer = append(answer, running.count, before.count)
		lefts = append(lefts, window.SlidingLeft(running.count, before.count, a[0], end-now, length))
	}
	for i := range rest {
		s.at(args[2*i]).count += window.Admitted(lefts, head[0], head[1]) * head[1]
	}
	return answer
}

var passed = regexp.MustCompile(`^([0-9]+)/([0-9A-Za-z-]+)/([0-9]+)/([0-9]+)$`)

func (s *Store) log(args []string, now int64) []int64 {
	limits, head, rest := split(args, 1, 4, 3, 3, 6)
	if limits == 0 || head[1] < 1 {
		return nil
	}
	name := args[limits+3]
	var counts, lefts []int64
	for i, a := range rest {
		length, v := a[1], s.at(args[i])
		for member, at := range v.log {
			if at <= now-length {
				delete(v.log, member)
			}
		}
		for _, text := range strings.Fields(args[limits+4+3*i+2]) {
			match := passed.FindStringSubmatch(text)
			if match == nil {
				return nil
			}
			at, _ := strconv.ParseInt(match[1], 10, 64)
			first, _ := strconv.ParseInt(match[3], 10, 64)
			last, _ := strconv.ParseInt(match[4], 10, 64)
			for unit := first; unit <= last && at > now-length; unit++ {
				v.log[match[2]+"-"+strconv.FormatInt(unit, 10)] = at
				v.expires = now + length
			}
		}
		counts = append(counts, int64(len(v.log)))
		lefts = append(lefts, a[0]-int64(len(v.log)))
	}
	units := window.Admitted(lefts, head[0], head[1]) * head[1]
	answer := []int64{now}
	for i, a := range rest {
		v := s.at(args[i])
		for unit := int64(1); unit <= units; unit++ {
			v.log[name+"-"+strconv.FormatInt(unit, 10)] = now
			v.expires = now + a[1]
		}
		var times []int64
		for _, at := range v.log {
			times = append(times, at)
		}
		sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
		free, newest := int64(0), int64(0)
		if needed := counts[i] + units + head[1] - a[0]; needed > 0 && needed <= int64(len(times)) {
			free = times[needed-1] + a[1]
		}
		if len(times) > 0 {
			newest = times[len(times)-1]
		}
		answer = append(answer, counts[i], free, newest)
	}
	return answer
}

func (s *Store) bucket(args []string, now int64) []int64 {
	limits, head, rest := split(args, 1, 3, 5)
	if limits == 0 || head[1] < 1 {
		return nil
	}
	answer, lefts := []int64{now}, []int64(nil)
	for i, a := range rest {
		v := s.at(args[i])
		t := larger(now, v.at)
		if a[3] > 0 {
			t = larger(t, a[4])
		}
		v.lack = larger(window.BucketLack(v.lack, v.at, t, a[0]), window.BucketLack(a[3], a[4], t, a[0]))
		v.at = t
		answer = append(answer, v.lack, t)
		lefts = append(lefts, window.BucketLeft(v.lack, a[2], a[1]))
	}
	for i, a := range rest {
		v := s.at(args[i])
		v.lack += window.Admitted(lefts, head[0], head[1]) * head[1] * a[1]
		v.expires = v.at + v.lack/a[0] + 1
	}
	return answer
}
