package scope

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/gatequota/gatequota/window"
)

// A Standing is where a client stands under one limit.
type Standing struct {
	Count
	Client string `json:"client"`
	// Allowed says that Limit is one that was set for this client.
	Allowed bool `json:"allowed"`
	// Used is how much of the limit is used up. It may be more than the limit where
	// refused requests count too.
	Used int64 `json:"used"`
	Left int64 `json:"left"`
	// Reset is after how many seconds, rounded up, all of the limit is free again, if the
	// client stays silent, and Wait after how many a request of cost 1 passes. 0: now.
	Reset int64 `json:"reset"`
	Wait  int64 `json:"wait"`
}

// A question is asked of the store for one Standing.
type question struct {
	standing *Standing
	keys     []string
	asked    []redis.Cmder
}

// Standings returns where clients stand under all their limits. What is no count counts as
// none, as it does for the gateways.
func (s *Scope) Standings(ctx context.Context, st *State, clients []Client) ([]Standing, error) {
	var all []Standing
	for _, c := range clients {
		for _, count := range c.Counts {
			standing := Standing{Count: count, Client: c.Hash}
			st.allow(&standing, c.isTop(st, &count))
			all = append(all, standing)
		}
	}
	err := s.fill(ctx, st, all)
	return all, err
}

// isTop tells whether a count of c is one of the top level.
func (c *Client) isTop(st *State, count *Count) bool {
	return c.Top && slices.Contains(st.TopCounts(), count.Name)
}

// TopCounts returns the names of the counts of the top level.
func (st *State) TopCounts() []string {
	var names []string
	for _, p := range st.Policies() {
		if p.Rule.Rule != "" {
			continue
		}
		for _, c := range p.Counts {
			names = append(names, c.Name)
		}
	}
	return names
}

// allow puts the limit into s that is set for its client, if one is. top says that its
// count is one of the top level.
func (st *State) allow(s *Standing, top bool) {
	for _, c := range st.Set.Clients {
		if c.Hash != s.Client || c.AllowUntil <= st.Now/1000 {
			continue
		}
		limit := c.Limits[s.Name]
		if limit == 0 && top {
			limit = c.Limit
		}
		if limit > 0 {
			s.Limit = limit
			s.Allowed = true
			if s.Burst > 0 {
				s.Burst = limit // as the gateways have it
			}
		}
	}
}

// fill finds out what is used of each of all.
func (s *Scope) fill(ctx context.Context, st *State, all []Standing) error {
	for part := range slices.Chunk(all, keysAtOnce) {
		questions := make([]question, len(part))
		err := s.pipeline(ctx, func(p redis.Pipeliner) {
			for i := range part {
				questions[i] = question{standing: &part[i]}
				s.question(ctx, p, st.Now, &questions[i])
			}
		})
		if err != nil {
			return fmt.Errorf("reading counts: %w", err)
		}
		for i := range questions {
			questions[i].answer(st.Now)
		}
		if err := s.awaited(ctx, st.Now, questions); err != nil {
			return err
		}
	}
	return nil
}

// pipeline sends commands at once. Errors of single ones are not its own, unless the user
// lacks a right.
func (s *Scope) pipeline(ctx context.Context, commands func(p redis.Pipeliner)) error {
	sent, err := s.store.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		commands(p)
		return nil
	})
	if err == nil {
		return nil
	}
	for _, cmd := range sent {
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return err
		}
	}
	return nil
}

// keysFor returns the keys of a client under c that matter at a time in unix milliseconds.
func (s *Scope) keysFor(c *Count, client string, now int64) []string {
	id, _ := window.FixedAt(now/1000, c.Window)
	switch c.Algorithm {
	case "sliding-window":
		return []string{s.keyOf(c, client, id), s.keyOf(c, client, id-1)}
	case "sliding-log", "token-bucket":
		return []string{s.keyOf(c, client, c.Window)}
	}
	return []string{s.keyOf(c, client, id)}
}

func (s *Scope) question(ctx context.Context, p redis.Pipeliner, now int64, q *question) {
	c := &q.standing.Count
	q.keys = s.keysFor(c, q.standing.Client, now)
	switch c.Algorithm {
	case "sliding-log":
		since := "(" + strconv.FormatInt(now-c.Window*1000, 10)
		q.asked = []redis.Cmder{p.ZCount(ctx, q.keys[0], since, "+inf"), p.ZRevRangeWithScores(ctx, q.keys[0], 0, 0)}
	case "token-bucket":
		q.asked = []redis.Cmder{p.HMGet(ctx, q.keys[0], "lack", "at")}
	default:
		for _, key := range q.keys {
			q.asked = append(q.asked, p.Get(ctx, key))
		}
	}
}

// answer reads the answers to q.
func (q *question) answer(now int64) {
	s := q.standing
	l := s.windowLimit()
	if s.Algorithm == "sliding-log" {
		count, newest := q.asked[0].(*redis.IntCmd).Val(), q.asked[1].(*redis.ZSliceCmd).Val()
		s.Used, s.Left = count, max(0, s.Limit-count)
		if count > 0 && len(newest) > 0 {
			s.Reset = seconds(int64(newest[0].Score) + s.Window*1000 - now)
		}
		return
	}
	a := &window.Account{}
	if s.Algorithm == "token-bucket" {
		a.Entry = &window.Entry{At: now}
		if fields := q.asked[0].(*redis.SliceCmd).Val(); len(fields) == 2 {
			lack, at := number(fields[0]), number(fields[1])
			if lack > 0 && at > 0 {
				a.Entry.Lack, a.Entry.At = lack, at
			}
		}
	} else {
		id, _ := window.FixedAt(now/1000, s.Window)
		a.Running = &window.FixedCount{Known: number(q.asked[0].(*redis.StringCmd).Val()), End: (id + 1) * s.Window}
		if len(q.asked) > 1 {
			a.Before = &window.FixedCount{Known: number(q.asked[1].(*redis.StringCmd).Val()), End: id * s.Window}
		}
	}
	left := window.Left(l, a, now)
	s.Used, s.Left = window.Capacity(l)-left, max(0, left)
	if s.Used > 0 {
		s.Reset = seconds(window.Wait(l, a, window.Capacity(l), now))
		if s.Algorithm == "fixed-window" {
			s.Reset = seconds(a.Running.End*1000 - now)
		}
	}
	if left < 1 {
		s.Wait = seconds(window.Wait(l, a, 1, now))
	}
}

// awaited finds out for logs that are full when they have room again: when the oldest unit
// is a window old that has to go.
func (s *Scope) awaited(ctx context.Context, now int64, questions []question) error {
	var full []*question
	err := s.pipeline(ctx, func(p redis.Pipeliner) {
		for i := range questions {
			q := &questions[i]
			if q.standing.Algorithm != "sliding-log" || q.standing.Left > 0 {
				continue
			}
			full = append(full, q)
			q.asked = []redis.Cmder{p.ZRangeByScoreWithScores(ctx, q.keys[0], &redis.ZRangeBy{
				Min: "(" + strconv.FormatInt(now-q.standing.Window*1000, 10), Max: "+inf", Offset: q.standing.Used - q.standing.Limit, Count: 1})}
		}
	})
	if err != nil {
		return fmt.Errorf("reading logs: %w", err)
	}
	for _, q := range full {
		if found := q.asked[0].(*redis.ZSliceCmd).Val(); len(found) > 0 {
			q.standing.Wait = seconds(int64(found[0].Score) + q.standing.Window*1000 - now)
		}
	}
	return nil
}

// number reads a count, 0 where it is none.
func number(value any) int64 {
	text, _ := value.(string)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > window.MaxExact {
		return 0
	}
	return n
}

// seconds returns milliseconds in whole seconds, rounded up, at least 1.
func seconds(ms int64) int64 { return max(1, (ms+999)/1000) }

// A KeyValue is what stands in one key.
type KeyValue struct {
	Key
	// Value is the number in it, the units of a log, or what a bucket lacks in parts of
	// which a token has as many as the window has milliseconds.
	Value int64 `json:"value"`
	TTL   int64 `json:"ttl"` // seconds until it goes, rounded up; -1: never
}

// Keys returns all that stands in the keys of a client, by name. It searches all keys of the
// store, some at a time.
func (s *Scope) Keys(ctx context.Context, client string) ([]KeyValue, error) {
	var all []KeyValue
	_, err := s.store.scan(ctx, s.key+":*{"+client+"}:*", func(names []string) (bool, error) {
		for _, name := range names {
			if k, ok := s.parseKey(name); ok {
				all = append(all, KeyValue{Key: k})
			}
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b KeyValue) int { return strings.Compare(a.Name, b.Name) })
	all = slices.CompactFunc(all, func(a, b KeyValue) bool { return a.Name == b.Name })
	return all, s.values(ctx, all)
}

// values finds out what stands in keys. A key that is gone has a TTL of 0.
func (s *Scope) values(ctx context.Context, keys []KeyValue) error {
	for part := range slices.Chunk(keys, keysAtOnce) {
		asked, ttls := make([]redis.Cmder, len(part)), make([]*redis.DurationCmd, len(part))
		err := s.pipeline(ctx, func(p redis.Pipeliner) {
			for i := range part {
				ttls[i] = p.PTTL(ctx, part[i].Name)
				switch part[i].Algorithm {
				case "sliding-log":
					asked[i] = p.ZCard(ctx, part[i].Name)
				case "token-bucket":
					asked[i] = p.HMGet(ctx, part[i].Name, "lack")
				default:
					asked[i] = p.Get(ctx, part[i].Name)
				}
			}
		})
		if err != nil {
			return fmt.Errorf("reading keys: %w", err)
		}
		for i := range part {
			switch cmd := asked[i].(type) {
			case *redis.IntCmd:
				part[i].Value = cmd.Val()
			case *redis.SliceCmd:
				if len(cmd.Val()) == 1 {
					part[i].Value = number(cmd.Val()[0])
				}
			case *redis.StringCmd:
				part[i].Value = number(cmd.Val())
			}
			part[i].TTL = -1
			if ttl := ttls[i].Val(); ttl >= 0 {
				part[i].TTL = (ttl.Milliseconds() + 999) / 1000
			} else if ttl == -2 {
				part[i].TTL = 0
			}
		}
	}
	return nil
}
