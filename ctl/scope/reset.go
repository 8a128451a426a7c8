package scope

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatequota/gatequota/window"
)

// Deleted is what became of the counts of clients that were to be forgotten.
type Deleted struct {
	Keys   int        // that were deleted
	Before []Standing // in use then
	After  []Standing // the same a moment later
	// Restored are those of After that came back as if they had not been deleted, each
	// time: a gateway still knew them.
	Restored []Standing
}

const (
	restoreTries  = 3
	restoreRounds = 8
	restoreRound  = 20 * time.Millisecond
)

// Delete deletes all counts of clients and watches whether they stay deleted. Gateways must
// know by then that they are to forget them, and not for longer than control.HoldFor.
//
// A client that goes on sending is counted anew meanwhile. A count that at once has about as
// much again as was deleted was restored by a gateway.
func (s *Scope) Delete(ctx context.Context, st *State, clients []Client) (*Deleted, error) {
	d := &Deleted{}
	var err error
	// First what is in use now, by its names: a search for the rest takes longer.
	for try := range restoreTries {
		before, n, err := s.unlink(ctx, st, clients)
		if err != nil {
			return nil, err
		}
		d.Keys += n
		if try == 0 {
			d.Before = before
		}
		if d.After, d.Restored, err = s.watch(ctx, st, clients, before); err != nil {
			return nil, err
		}
		if len(d.Restored) == 0 {
			break
		}
	}
	for _, c := range clients {
		_, err = s.store.scan(ctx, s.key+":*{"+c.Hash+"}:*", func(names []string) (bool, error) {
			names = slices.DeleteFunc(names, func(name string) bool {
				k, ok := s.parseKey(name)
				return !ok || slices.ContainsFunc(c.Counts, func(count Count) bool { return Matches(&count, &k, st.Now) })
			})
			n, err := s.unlinkAll(ctx, names)
			d.Keys += n
			return true, err
		})
		if err != nil {
			return nil, err
		}
	}
	return d, nil
}

// unlink deletes what is in use of the counts of clients, and returns what that was and how
// many keys.
func (s *Scope) unlink(ctx context.Context, st *State, clients []Client) ([]Standing, int, error) {
	if err := s.tick(ctx, st); err != nil {
		return nil, 0, err
	}
	before, err := s.Standings(ctx, st, clients)
	if err != nil {
		return nil, 0, err
	}
	var names []string
	for _, c := range clients {
		for _, count := range c.Counts {
			names = append(names, s.keysFor(&count, c.Hash, st.Now)...)
			if count.Algorithm == "fixed-window" || count.Algorithm == "sliding-window" { // the clock goes on
				id, _ := window.FixedAt(st.Now/1000, count.Window)
				names = append(names, s.keyOf(&count, c.Hash, id+1))
			}
		}
	}
	slices.Sort(names)
	n, err := s.unlinkAll(ctx, slices.Compact(names))
	return before, n, err
}

// watch looks for a while at counts that were deleted, and returns what they are at its end,
// and those that came back.
func (s *Scope) watch(ctx context.Context, st *State, clients []Client, before []Standing) (after, restored []Standing, err error) {
	last := make([]int64, len(before))
	back := make([]bool, len(before))
	for range restoreRounds {
		if err := s.tick(ctx, st); err != nil {
			return nil, nil, err
		}
		if after, err = s.Standings(ctx, st, clients); err != nil {
			return nil, nil, err
		}
		for i := range after {
			back[i] = back[i] || before[i].Used > 0 && 10*(after[i].Used-last[i]) >= 9*before[i].Used
			last[i] = after[i].Used
		}
		time.Sleep(restoreRound)
	}
	for i := range after {
		if back[i] {
			restored = append(restored, after[i])
		}
	}
	return after, restored, nil
}

// tick sets the time of st to now.
func (s *Scope) tick(ctx context.Context, st *State) error {
	now, err := s.store.client.Time(ctx).Result()
	if err != nil {
		return fmt.Errorf("asking for the time: %w", err)
	}
	st.Now = now.UnixMilli()
	return nil
}

// unlinkAll deletes keys, one command for each so that the store may do others between
// them, and returns how many were there.
func (s *Scope) unlinkAll(ctx context.Context, names []string) (int, error) {
	if len(names) == 0 {
		return 0, nil
	}
	var cmds []*redis.IntCmd
	_, err := s.store.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, name := range names {
			cmds = append(cmds, p.Unlink(ctx, name))
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("deleting keys: %w", err)
	}
	n := 0
	for _, cmd := range cmds {
		n += int(cmd.Val())
	}
	return n, nil
}

// DeleteAll deletes the counts of all clients, from a place in the search on, 0 at first, and
// for no longer than until a deadline. It returns how many keys that were, and where to go
// on, 0 at the end.
func (s *Scope) DeleteAll(ctx context.Context, from uint64, deadline time.Time) (keys int, next uint64, err error) {
	for {
		names, next, err := s.store.client.Scan(ctx, from, s.key+":*{*}:*", keysAtOnce).Result()
		if err != nil {
			return keys, from, fmt.Errorf("searching keys: %w", err)
		}
		names = slices.DeleteFunc(names, func(name string) bool {
			_, ok := s.parseKey(name)
			return !ok
		})
		n, err := s.unlinkAll(ctx, names)
		keys += n
		if err != nil || next == 0 || time.Now().After(deadline) {
			return keys, next, err
		}
		from = next
	}
}

// CountKeys returns how many keys of clients there are.
func (s *Scope) CountKeys(ctx context.Context) (int, error) {
	n := 0
	_, err := s.store.scan(ctx, s.key+":*{*}:*", func(names []string) (bool, error) {
		for _, name := range names {
			if _, ok := s.parseKey(name); ok {
				n++
			}
		}
		return true, nil
	})
	return n, err
}
