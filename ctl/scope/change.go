package scope

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// keptChanges is about how many changes of a scope are remembered.
	keptChanges = 1000
	// keptEpochs is for how many seconds an epoch is: gateways need it for some of them.
	keptEpochs = 24 * 60 * 60
	// maxTries is how often a change is begun anew because another one came first.
	maxTries = 100
	// maxFields is how many fields are set at most while one for a client is added, and
	// maxBytes how long they may be together. Gateways refuse more than 4096, and more than
	// 900000 bytes, and obey nothing then: what is left is for what concerns all clients,
	// such as to switch the limiter off.
	maxFields = 4000
	maxBytes  = 800000
	// restoredIn is how long gateways may take to put back what the store lost.
	restoredIn = 3 * time.Second
)

// errLost says that gateways know of changes that the store has lost.
var errLost = errors.New("scope: the store has lost changes")

// ErrUnknown says that the store did not answer to a change, which it may have made or not.
var ErrUnknown = errors.New("scope: the store did not answer, and may have made the change or not")

// An Edit sets a field of what gateways obey, or removes it where Value is empty.
type Edit struct {
	Field string
	Value string
}

// An Entry is what one change did to one field, as it is remembered.
type Entry struct {
	ID     string `json:"id"`
	Time   int64  `json:"time"`   // unix milliseconds of the store
	What   string `json:"what"`   // the field, without the client
	Client string `json:"client"` // as in keys, or ""
	Old    string `json:"old"`    // "" where there was none
	New    string `json:"new"`    // "" where there is none any more
	By     string `json:"by"`
}

// Change makes one change: edit is given what is known of s, and the version that the change
// will have, and returns what to do. It is called anew when another change came first, and
// none is made unless it returns what is not so already. Its error is returned as it is.
//
// What it did is remembered in the same step, with by, and fields that are over are removed.
// Returned are the version to be obeyed and what was done. The error is ErrUnknown where
// nobody knows.
func (s *Scope) Change(ctx context.Context, by string, edit func(st *State, version int64) ([]Edit, error)) (int64, []Entry, error) {
	patient := time.Now().Add(restoredIn)
	for tries := 0; tries < maxTries; {
		version, entries, err := s.tryChange(ctx, by, edit, time.Now().Before(patient))
		switch {
		case errors.Is(err, errLost):
			time.Sleep(50 * time.Millisecond)
			continue
		case !errors.Is(err, redis.TxFailedErr):
			return version, entries, err
		}
		tries++
		time.Sleep(time.Duration(rand.Int64N(int64(20 * time.Millisecond))))
	}
	return 0, nil, fmt.Errorf("changing scope %s: %d times in a row somebody else was faster", s.Name, maxTries)
}

// tryChange is one attempt at Change. patient makes it wait for what the store lost.
func (s *Scope) tryChange(ctx context.Context, by string, edit func(st *State, version int64) ([]Edit, error), patient bool) (int64, []Entry, error) {
	version := int64(0)
	var entries []Entry
	err := s.store.client.Watch(ctx, func(tx *redis.Tx) error {
		var r *reading
		_, err := tx.Pipelined(ctx, func(p redis.Pipeliner) error {
			r = s.ask(ctx, p)
			p.XRevRangeN(ctx, s.key+":changes", "+", "-", 1) // fails here where it is no stream, and not in the middle of the change
			return nil
		})
		if err != nil {
			return fmt.Errorf("reading scope %s: %w", s.Name, err)
		}
		st := r.state()
		version = st.next()
		if patient && version > st.Set.Version+1 {
			return errLost // and a change made now would end what was set
		}
		edits, err := edit(st, version)
		if err != nil {
			return err
		}
		edits = slices.DeleteFunc(edits, func(e Edit) bool { return st.Fields[e.Field] == e.Value })
		if len(edits) == 0 {
			version = st.Set.Version
			return nil
		}
		entries = entriesOf(st, edits, by)
		for _, field := range st.over() {
			if !slices.ContainsFunc(edits, func(e Edit) bool { return e.Field == field }) {
				edits = append(edits, Edit{Field: field})
			}
		}
		if err := roomFor(st, edits); err != nil {
			return fmt.Errorf("scope %s %w", s.Name, err)
		}
		return s.write(ctx, tx, version, edits, entries)
	}, s.key+":control")
	if err != nil {
		return 0, nil, err
	}
	return version, entries, nil
}

// write makes edits and remembers entries, whose IDs it sets, in one step, unless somebody
// else was faster.
func (s *Scope) write(ctx context.Context, tx *redis.Tx, version int64, edits []Edit, entries []Entry) error {
	set, gone := []any{"version", version}, []string{}
	for _, e := range edits {
		if e.Value == "" {
			gone = append(gone, e.Field)
		} else {
			set = append(set, e.Field, e.Value)
		}
	}
	var added []*redis.StringCmd
	sent, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.HSet(ctx, s.key+":control", set...)
		if len(gone) > 0 {
			p.HDel(ctx, s.key+":control", gone...)
		}
		for _, e := range entries {
			added = append(added, p.XAdd(ctx, &redis.XAddArgs{Stream: s.key + ":changes", MaxLen: keptChanges, Approx: true,
				Values: []any{"what", e.What, "client", e.Client, "old", e.Old, "new", e.New, "by", e.By}}))
		}
		return nil
	})
	if err != nil && !isServerError(err) && !errors.Is(err, redis.TxFailedErr) {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if err != nil {
		for _, cmd := range sent { // the one that the store refused says why
			if redis.HasErrorPrefix(err, "EXECABORT") && cmd.Err() != nil {
				err = cmd.Err()
			}
		}
		return fmt.Errorf("changing scope %s: %w", s.Name, err)
	}
	for i, cmd := range added {
		entries[i].ID = cmd.Val()
		entries[i].Time = idTime(cmd.Val())
	}
	return nil
}

// roomFor refuses edits for clients that would leave too little room for others.
func roomFor(st *State, edits []Edit) error {
	after := maps.Clone(st.Fields)
	clients := false
	for _, e := range edits {
		delete(after, e.Field)
		if e.Value != "" {
			after[e.Field] = e.Value
			clients = clients || clientOf(e.Field) != ""
		}
	}
	size := sizeOf(after)
	const end = "end what is not needed, with gatequota clear"
	switch {
	case !clients:
	case len(after) > max(maxFields, len(st.Fields)):
		return fmt.Errorf("would have %d fields set, and %d are allowed while one for a client is added: %s", len(after), maxFields, end)
	case size > max(maxBytes, sizeOf(st.Fields)):
		return fmt.Errorf("would have %d bytes set, and %d are allowed while some for a client are added: %s", size, maxBytes, end)
	}
	return nil
}

// sizeOf returns how long fields are as gateways read them: as strings of one list in JSON.
func sizeOf(fields map[string]string) int {
	size := 0
	for field, value := range fields {
		size += len(field) + len(value) + len(`"","",`)
	}
	return size
}

// clientOf returns the digest of the client that a field is for, "" where it is for all.
func clientOf(field string) string {
	kind, client, _ := strings.Cut(field, ":")
	if IsHash(client) && kind != "limit" && kind != "window" {
		return client
	}
	return ""
}

// next returns the version of the next change: above all that gateways may have obeyed,
// also where the store lost it.
func (st *State) next() int64 {
	version := st.Set.Version
	for _, g := range st.Gateways {
		if g.Report != nil {
			version = max(version, g.Report.Version)
		}
	}
	return version + 1
}

// over returns the fields that say nothing any more.
func (st *State) over() []string {
	var fields []string
	now := st.Now / 1000
	for field := range st.Fields {
		kind, client, _ := strings.Cut(field, ":")
		if kind == "epoch" && client == "" && st.Set.Epoch.At > 0 && st.Set.Epoch.At+keptEpochs <= now {
			fields = append(fields, field)
		}
	}
	for _, c := range st.Set.Clients {
		if c.AllowUntil > 0 && c.AllowUntil <= now {
			fields = append(fields, "allow:"+c.Hash)
		}
		if c.BlockUntil > 0 && c.BlockUntil <= now {
			fields = append(fields, "block:"+c.Hash)
		}
		if c.Epoch.At > 0 && c.Epoch.At+keptEpochs <= now {
			fields = append(fields, "epoch:"+c.Hash)
		}
	}
	return fields
}

// entriesOf says what edits change.
func entriesOf(st *State, edits []Edit, by string) []Entry {
	var entries []Entry
	for _, e := range edits {
		entry := Entry{What: e.Field, Old: st.Fields[e.Field], New: e.Value, By: by}
		if entry.Client = clientOf(e.Field); entry.Client != "" {
			entry.What, _, _ = strings.Cut(e.Field, ":")
		}
		entries = append(entries, entry)
	}
	return entries
}

// Log returns the last changes of s, at most so many, the newest last.
func (s *Scope) Log(ctx context.Context, most int64) ([]Entry, error) {
	messages, err := s.store.client.XRevRangeN(ctx, s.key+":changes", "+", "-", most).Result()
	if err != nil {
		return nil, fmt.Errorf("reading the changes of scope %s: %w", s.Name, err)
	}
	slices.Reverse(messages)
	return entriesIn(messages), nil
}

// LogAfter returns the changes of s that came after the one with this ID; "0" is before the
// first.
func (s *Scope) LogAfter(ctx context.Context, id string) ([]Entry, error) {
	messages, err := s.store.client.XRange(ctx, s.key+":changes", "("+id, "+").Result()
	if err != nil {
		return nil, fmt.Errorf("reading the changes of scope %s: %w", s.Name, err)
	}
	return entriesIn(messages), nil
}

func entriesIn(messages []redis.XMessage) []Entry {
	var entries []Entry
	for _, m := range messages {
		text := func(name string) string {
			value, _ := m.Values[name].(string)
			return value
		}
		entries = append(entries, Entry{ID: m.ID, Time: idTime(m.ID),
			What: text("what"), Client: text("client"), Old: text("old"), New: text("new"), By: text("by")})
	}
	return entries
}

// idTime returns the time of an entry, in unix milliseconds.
func idTime(id string) int64 {
	ms, _, _ := strings.Cut(id, "-")
	at, _ := strconv.ParseInt(ms, 10, 64)
	return at
}
