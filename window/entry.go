package window

import "math/rand"

// An Entry is what one gateway knows of one client's bucket or log.
type Entry struct {
	// Lack is how many parts a bucket lacked At a time in unix milliseconds.
	Lack, At int64
	// Log is there for a log.
	Log *Log

	// Key is for whoever asks the store; nothing here reads it.
	Key string

	// Account is the account that has this entry, once it was found.
	Account *Account

	// The limit and the burst of a bucket, when it was last asked for.
	limit, burst int64
	// What a bucket would lack if all gateways had let pass as much alone as this one,
	// while the store is away.
	alone, aloneAt int64
	// Units that passed alone in the window that ends then: see FixedAlone.
	spent, spentEnd int64

	until  int64 // from when on it says nothing, in unix milliseconds
	client string
	place  int // in the order of its table
}

// EntryLimit returns the limit by which an entry was last counted, or l itself.
func EntryLimit(e *Entry, l *Limit) *Limit {
	if e.limit == 0 {
		return l
	}
	return &Limit{Algorithm: l.Algorithm, Limit: e.limit, Length: l.Length, Burst: e.burst}
}

// EntryClient returns whose entry it is.
func EntryClient(e *Entry) string {
	return e.client
}

// Entries are the buckets or logs of many clients in one gateway's memory: the twins of
// BucketScript and LogScript. They are at most max. When they are, one that says nothing
// any more goes first, else of a small random sample the bucket that is full soonest, or the
// log that has least: who is near a limit outlives a crowd of newcomers. Whose entry is
// evicted starts anew in this gateway's memory.
//
// Entries are not safe for concurrent use.
type Entries struct {
	// Clients has the entries by client. It is there to be read without a call, where each
	// one costs.
	Clients map[string]*Entry

	logs  bool
	max   int
	order []*Entry // the same, to be picked from, and visited part by part
}

// NewEntries returns an empty table of logs or of buckets for at most max clients, at
// least 1.
func NewEntries(logs bool, max int) *Entries {
	return &Entries{logs: logs, max: max, Clients: map[string]*Entry{}}
}

// EntryFind returns the entry of a client at a time in unix milliseconds. It is zero if
// there was none. It stays valid, if of no use to others, when it is evicted.
func EntryFind(t *Entries, client string, now int64) *Entry {
	e := t.Clients[client]
	if e != nil {
		return e
	}
	if len(t.order) >= t.max {
		entryEvict(t, now)
		if len(t.order) >= t.max {
			entryEvict(t, now)
		}
	}
	e = &Entry{client: client, place: len(t.order)}
	if t.logs {
		e.Log = &Log{}
	}
	t.Clients[client] = e
	t.order = append(t.order, e)
	return e
}

// entryEvict drops one entry of a few.
func entryEvict(t *Entries, now int64) {
	count := len(t.order)
	if count == 0 {
		return
	}
	victim := t.order[rand.Intn(count)]
	for i := 1; i < evictionSample && victim.until > now; i++ {
		e := t.order[rand.Intn(count)]
		if e.until <= now || t.logs && logUnits(e) < logUnits(victim) || !t.logs && e.until < victim.until {
			victim = e
		}
	}
	entryRemove(t, victim)
}

// entryRemove drops an entry.
func entryRemove(t *Entries, e *Entry) {
	end := len(t.order) - 1
	last := t.order[end]
	last.place = e.place
	t.order[e.place] = last
	t.order[end] = nil
	t.order = t.order[:end]
	delete(t.Clients, e.client)
}

// logUnits returns how many units the log of an entry is known to have.
func logUnits(e *Entry) int64 {
	return e.Log.count + e.Log.others
}

// EntriesPart is to Entries what FixedPart is to FixedCounts.
func EntriesPart(t *Entries, count, next int) (part []*Entry, after int) {
	if next == 0 || next > len(t.order) {
		next = len(t.order)
	}
	from := next - count
	if from < 0 {
		from = 0
	}
	part = append([]*Entry(nil), t.order[from:next]...)
	if from == 0 {
		return part, -1
	}
	return part, from
}

// EntriesClear drops all entries.
func EntriesClear(t *Entries) {
	t.Clients = map[string]*Entry{}
	t.order = nil
}

// EntriesLen returns how many entries are held.
func EntriesLen(t *Entries) int {
	return len(t.order)
}

// EntriesSetMax changes how many entries may be held, at least 1. Where more are held,
// they go two for each one that comes.
func EntriesSetMax(t *Entries, max int) {
	t.max = max
}
