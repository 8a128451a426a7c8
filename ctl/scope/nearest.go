package scope

import (
	"cmp"
	"context"
	"slices"

	"github.com/gatequota/gatequota/window"
)

// Clients near their limits, of those that were looked at.
type Near struct {
	Now     int64 // unix milliseconds of the store
	Clients []Standing
	Keys    int  // that were looked at
	All     bool // there were no more of them
}

// Nearest returns the clients of s that have used up the largest shares of their limits, at
// most so many, looking at no more than maxKeys keys. Under which plan a client is, or which
// override of the options, is not known: shares are those of the ordinary limits, and of
// those that are set for clients while the gateways run.
func (s *Scope) Nearest(ctx context.Context, st *State, most, maxKeys int) (*Near, error) {
	counts, top := st.Counts(), st.TopCounts()
	n := &Near{Now: st.Now}
	seen := map[string]bool{}
	all, err := s.store.scan(ctx, s.key+":*{*}:*", func(names []string) (bool, error) {
		var found []Standing
		for _, name := range names {
			n.Keys++
			k, ok := s.parseKey(name)
			if !ok {
				continue
			}
			for i := range counts {
				c := &counts[i]
				if !Matches(c, &k, st.Now) {
					continue
				}
				// The two keys of a sliding window are one count, and keys may come twice.
				once := string(rune('0'+i)) + k.Client
				if seen[once] {
					continue
				}
				seen[once] = true
				standing := Standing{Count: *c, Client: k.Client}
				st.allow(&standing, slices.Contains(top, c.Name))
				found = append(found, standing)
			}
		}
		if err := s.fill(ctx, st, found); err != nil {
			return false, err
		}
		n.Clients = append(n.Clients, found...)
		if len(n.Clients) > 4*max(most, keysAtOnce) {
			n.cut(most)
		}
		return n.Keys < maxKeys, nil
	})
	n.All = all
	n.cut(most)
	return n, err
}

// Matches tells whether a key may say something of a count at a time in unix milliseconds.
func Matches(c *Count, k *Key, now int64) bool {
	if k.Count != c.Name || k.Algorithm != c.Algorithm {
		return false
	}
	id, _ := window.FixedAt(now/1000, c.Window)
	switch c.Algorithm {
	case "fixed-window":
		return k.ID == id
	case "sliding-window":
		return k.ID == id || k.ID == id-1
	}
	return k.ID == c.Window
}

// cut keeps the nearest.
func (n *Near) cut(most int) {
	n.Clients = slices.DeleteFunc(n.Clients, func(s Standing) bool { return s.Used <= 0 })
	slices.SortFunc(n.Clients, func(a, b Standing) int {
		return cmp.Or(cmp.Compare(b.Share(), a.Share()), cmp.Compare(b.Used, a.Used), cmp.Compare(a.Client, b.Client), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Window, b.Window))
	})
	n.Clients = n.Clients[:min(len(n.Clients), most)]
}

// Share returns how much of its limit a client has used: 1 is all of it.
func (s *Standing) Share() float64 {
	return float64(s.Used) / float64(max(1, window.Capacity(s.windowLimit())))
}

// Largest returns the keys of s with the largest numbers in them, at most so many, looking
// at no more than maxKeys: what is known where no gateway reports its limits.
func (s *Scope) Largest(ctx context.Context, most, maxKeys int) (largest []KeyValue, keys int, all bool, err error) {
	seen := map[string]bool{}
	cut := func() {
		slices.SortFunc(largest, func(a, b KeyValue) int {
			return cmp.Or(cmp.Compare(b.Value, a.Value), cmp.Compare(a.Name, b.Name))
		})
		largest = largest[:min(len(largest), most)]
	}
	all, err = s.store.scan(ctx, s.key+":*{*}:*", func(names []string) (bool, error) {
		var found []KeyValue
		for _, name := range names {
			keys++
			if k, ok := s.parseKey(name); ok && !seen[name] {
				seen[name] = true
				found = append(found, KeyValue{Key: k})
			}
		}
		if err := s.values(ctx, found); err != nil {
			return false, err
		}
		largest = append(largest, found...)
		if len(largest) > 4*max(most, keysAtOnce) {
			cut()
		}
		return keys < maxKeys, nil
	})
	cut()
	return largest, keys, all, err
}
