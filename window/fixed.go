package window

import "math/rand"

// MaxCount is the largest limit: what an integer of a structured header field
// can hold (RFC 9651, section 3.3.1), and well below the 2^53 up to which the
// store's Lua counts exactly.
const MaxCount = 999999999999999

// FixedScript counts requests in a fixed window, in the store. It is one atomic
// step, so any number of gateways together are told each count exactly once.
//
//	KEYS[1]  the count of one client in one window
//	ARGV[1]  how many requests to add; 0 only tells the store what is known
//	ARGV[2]  the count that the caller knows to have been reached, 0 if none
//	ARGV[3]  the seconds left in the window, by the gateway's reckoning
//	ARGV[4]  the end of the window, in unix seconds
//
// It answers the count with the new requests in it, or FixedOver. A store that lost
// what it once answered, since it was restarted empty or replaced by a replica that
// lagged behind, goes on from what the caller knows.
//
// The expiry is set with the first request and again wherever it is missing, to
// the seconds that are left by the store's own clock: a key that expired before
// its window ended would hand out the limit twice. For the same reason a request
// that arrives when its window is already over, and its key perhaps gone, is not
// counted there. Where the store's user may not call TIME, the gateway's
// reckoning has to do. A value that is no count (another type, no integer, too
// large, below zero) is replaced; an error that is not the value's is answered as
// it is.
const FixedScript = `local n = tonumber(ARGV[1])
local known = tonumber(ARGV[2])
local count = redis.pcall('INCRBY', KEYS[1], ARGV[1])
local sick = type(count) ~= 'number'
if sick then
  local value = redis.pcall('GET', KEYS[1])
  if value == false or type(value) == 'string' and #value < 16 and string.find(value, '^[1-9]%d*$') then
    return count
  end
  if type(value) == 'table' and not string.find(value.err, '^%-?WRONGTYPE') then
    return count
  end
end
if sick or count < n then
  redis.call('DEL', KEYS[1])
  count = redis.call('INCRBY', KEYS[1], ARGV[1])
end
local first = count == n
if count - n < known then
  count = redis.call('INCRBY', KEYS[1], string.format('%.0f', known + n - count))
end
if first or redis.call('TTL', KEYS[1]) < 0 then
  local left = tonumber(ARGV[3])
  local time = redis.pcall('TIME')
  if not time.err then
    left = tonumber(ARGV[4]) - tonumber(time[1])
  end
  if left < 1 then
    redis.call('DEL', KEYS[1])
    return -1
  end
  redis.call('EXPIRE', KEYS[1], left)
end
return count
`

// FixedOver is what FixedScript answers instead of a count when the window is
// over by the store's clock: the request belongs to the next one.
const FixedOver = -1

// FixedAt returns the window that holds a point of time, as its number since
// 1970, and the whole seconds until it ends, rounded up. Windows start on the
// clock, at multiples of their length, and not at a client's first request.
// Both arguments are in seconds; length is at least 1.
func FixedAt(unix, length int64) (id, left int64) {
	id = unix / length
	if unix < 0 && unix%length != 0 {
		id--
	}
	return id, (id+1)*length - unix
}

// FixedCount is what one gateway knows of one client in one window.
//
// While the store answers, that is the count of all gateways. While it does not,
// the gateway decides alone, and keeps apart what of its own passes the store may
// know and what it cannot: see FixedAlone. Of Known, Lost and Unsettled are parts;
// the rest is the largest count that the store has answered.
type FixedCount struct {
	// Known is how many requests are known to have been counted.
	Known int64
	// Unsettled of them passed alone, and the store was never told. They are to be
	// added to its count.
	Unsettled int64
	// Lost of them passed alone after the store was told and before it answered: it
	// may have counted them or not. They are never added again, but the store is
	// told to go on from no less.
	Lost int64
	// Spent is how many requests passed alone in this window, over all outages.
	Spent int64
	// Settling of the unsettled ones are on their way to the store.
	Settling int64
	// End is when its window is over, in unix seconds.
	End int64

	// Key, Turn and Slot are for whoever asks the store; nothing here reads them. They
	// stand here since to look for them elsewhere would cost a second search.
	Key  string
	Turn int64
	Slot int

	// Account is the account that has this count as the running one, once it was found.
	Account *Account

	client string
	place  int // in the order of its window
}

// FixedClient returns whose count it is.
func FixedClient(f *FixedCount) string {
	return f.client
}

// FixedApart is Apart for one count.
func FixedApart(f *FixedCount) *FixedCount {
	return &FixedCount{End: f.End, Key: f.Key, client: f.client}
}

// FixedAlone decides one request at a time in unix seconds without the store, and
// counts it if it passes. asked says that the store was told of this request and
// did not answer.
//
// What is left of the limit, when the store was last heard of, is shared by a number
// of gateways (less than 1 counts as 1), and each takes its part, rounded up. Where
// own is above 0, that is instead how many requests of a client in a window this
// gateway lets pass alone, but never more than are left.
func FixedAlone(f *FixedCount, unix, limit, own, gateways int64, asked bool, d *Decision) {
	left := share(limit-f.Known, f.Lost+f.Unsettled, f.Spent, 1, &Share{Own: own, Gateways: gateways})
	d.Reset = f.End - unix
	if left < 1 {
		d.RetryAfter = d.Reset
		return
	}
	f.Known++
	f.Spent++
	if asked {
		f.Lost++
	} else {
		f.Unsettled++
	}
	d.Allowed = true
	d.Remaining = left - 1
}

// FixedSettle returns how many unsettled passes a call to the store is to add, and
// takes note that they are on their way. There are none while others are: one of them
// would be added twice. FixedAnswered or FixedLost must follow.
func FixedSettle(f *FixedCount) int64 {
	if f.Settling > 0 {
		return 0
	}
	f.Settling = f.Unsettled
	return f.Unsettled
}

// FixedAnswered notes that the store answered count to a call that told it what
// was known and had it add, beside new requests, settled passes, as FixedSettle said.
func FixedAnswered(f *FixedCount, count, settled int64) {
	total := f.Known - f.Unsettled
	if count > total {
		total = count
	}
	f.Lost = 0
	f.Unsettled -= settled
	f.Settling -= settled
	f.Known = total + f.Unsettled
}

// FixedLost notes that such a call was sent, and not answered: what it was to
// settle may be in the store's count or not.
func FixedLost(f *FixedCount, settled int64) {
	f.Unsettled -= settled
	f.Settling -= settled
	f.Lost += settled
}

// FixedCounts is the twin of FixedScript: the counts of many clients in one
// gateway's memory, for one length of window. All clients' windows end together,
// so what is over is dropped at once, without a search. The window before the
// newest is kept until room is needed or the next one begins, for requests that
// read the clock just before an edge, and for a clock that steps back over one.
//
// It holds at most max counts. When it is full, an ended window goes first, else
// the lowest count of a small random sample: a client near its limit outlives a
// crowd of newcomers. A client whose count is evicted starts again at zero in
// this gateway's memory.
//
// A FixedCounts is not safe for concurrent use.
type FixedCounts struct {
	// Newest has the counts of the newest window by client, and Start and End are its
	// bounds in unix seconds, End excluded. They are there to be read without a call,
	// where each one costs; FixedFind says what they do not.
	Newest     map[string]*FixedCount
	Start, End int64

	length   int64 // of a window, in seconds
	max      int
	both     bool         // the window before the newest is needed
	current  *fixedWindow // the newest
	previous *fixedWindow // the one before
}

// fixedWindow is one window of a FixedCounts.
type fixedWindow struct {
	id         int64 // as of FixedAt
	start, end int64 // in unix seconds, end excluded
	counts     map[string]*FixedCount
	order      []*FixedCount // the same, to be picked from, and visited part by part
}

// evictionSample is how many counts an eviction compares. For it to hit one of
// the tenth of clients with the highest counts, all eight must be among them: a
// chance of 1 in 10^8.
const evictionSample = 8

// NewFixedCounts returns an empty table for windows of length seconds and at most
// max clients, both at least 1.
func NewFixedCounts(length int64, max int) *FixedCounts {
	c := &FixedCounts{length: length, max: max}
	FixedClear(c)
	return c
}

// NewSlidingCounts is NewFixedCounts for sliding windows: twice as many counts are held,
// since each client has two. Those of the ended window are needed like others: where room
// is made, it is in the window that has more of them.
func NewSlidingCounts(length int64, max int) *FixedCounts {
	c := NewFixedCounts(length, 2*max)
	c.both = true
	return c
}

func newFixedWindow(id, length int64) *fixedWindow {
	return &fixedWindow{id: id, start: id * length, end: (id + 1) * length, counts: map[string]*FixedCount{}}
}

// FixedTake counts one request of a client at a time in unix seconds and decides
// it, all in one: it runs for every request, in an interpreter that pays most for
// calls, and for all that stands in a function whether it is reached or not. So a
// client that is new, or another window, is left to FixedFind.
func FixedTake(c *FixedCounts, client string, unix, limit int64, d *Decision) {
	f := c.Newest[client]
	if f == nil || unix < c.Start || unix >= c.End {
		f = FixedFind(c, client, unix)
	}
	f.Known++
	d.Reset = f.End - unix
	if f.Known > limit {
		d.RetryAfter = d.Reset
		return
	}
	d.Allowed = true
	d.Remaining = limit - f.Known
}

// FixedFind returns the count of a client in the window of a time in unix seconds.
// It is zero if there was none. It stays valid, if of no use to others, when it is
// evicted.
func FixedFind(c *FixedCounts, client string, unix int64) *FixedCount {
	id, _ := FixedAt(unix, c.length)
	w := fixedMove(c, id)
	f := w.counts[client]
	if f != nil {
		return f
	}
	return fixedAdd(c, w, client)
}

// fixedAdd adds a count to window w.
func fixedAdd(c *FixedCounts, w *fixedWindow, client string) *FixedCount {
	if FixedLen(c) >= c.max {
		fixedEvict(c, w)
	}
	f := &FixedCount{End: w.end, client: client, place: len(w.order)}
	w.counts[client] = f
	w.order = append(w.order, f)
	return f
}

// FixedPart returns up to count of the counts in the newest window, unless it is over at
// a time in unix seconds, for a walk over all that were there when it began. next is
// 0 to begin with and then what the call before returned as after; a negative after
// ends the walk. A count that is evicted meanwhile is left out.
func FixedPart(c *FixedCounts, unix int64, count, next int) (part []*FixedCount, after int) {
	w := c.current
	if unix >= w.end {
		return nil, -1
	}
	// From the newest to the oldest: an eviction moves the newest into the gap, which
	// this walk has then either visited or will find there.
	if next == 0 {
		next = len(w.order)
	}
	if next > len(w.order) {
		next = len(w.order)
	}
	from := next - count
	if from < 0 {
		from = 0
	}
	part = append([]*FixedCount(nil), w.order[from:next]...)
	if from == 0 {
		return part, -1
	}
	return part, from
}

// FixedClear drops all counts.
func FixedClear(c *FixedCounts) {
	c.previous = newFixedWindow(-1, c.length)
	fixedAdvance(c, 0)
}

// FixedLen returns how many counts are held.
func FixedLen(c *FixedCounts) int {
	return len(c.current.order) + len(c.previous.order)
}

// FixedRunning returns how many counts of the newest window are held.
func FixedRunning(c *FixedCounts) int {
	return len(c.current.order)
}

// FixedSetMax changes how many counts may be held, at least 1. Where more are held,
// they go two for each one that comes, or with their window, and not all at once:
// that could take seconds.
func FixedSetMax(c *FixedCounts, max int) {
	c.max = max
}

// fixedMove returns window id and moves on when it is a new one. A step of more
// than one window in either direction is a new start: a clock that jumped back must
// not refuse anybody until it has caught up.
func fixedMove(c *FixedCounts, id int64) *fixedWindow {
	if id == c.current.id {
		return c.current
	}
	if id == c.previous.id {
		return c.previous
	}
	if id == c.current.id+1 {
		c.previous = c.current
	} else {
		c.previous = newFixedWindow(id-1, c.length)
	}
	fixedAdvance(c, id)
	return c.current
}

// fixedAdvance makes window id the newest one.
func fixedAdvance(c *FixedCounts, id int64) {
	c.current = newFixedWindow(id, c.length)
	c.Newest = c.current.counts
	c.Start = c.current.start
	c.End = c.current.end
}

// fixedEvict makes room for one count in window w.
func fixedEvict(c *FixedCounts, w *fixedWindow) {
	old := c.previous
	if len(old.order) > 0 && w == c.current && !c.both {
		c.previous = newFixedWindow(old.id, c.length)
		if len(w.order) < c.max {
			return
		}
	}
	from := c.current
	if len(c.previous.order) > 0 && (!c.both || len(c.previous.order) >= len(from.order)) {
		from = c.previous
	}
	evictOne(from)
	if FixedLen(c) >= c.max {
		evictOne(from)
	}
}

// evictOne drops the lowest of a few counts.
func evictOne(from *fixedWindow) {
	count := len(from.order)
	if count == 0 {
		return
	}
	victim := from.order[rand.Intn(count)]
	for i := 1; i < evictionSample; i++ {
		f := from.order[rand.Intn(count)]
		if f.Known < victim.Known {
			victim = f
		}
	}
	fixedRemove(from, victim)
}

// fixedRemove drops a count.
func fixedRemove(from *fixedWindow, f *FixedCount) {
	end := len(from.order) - 1
	last := from.order[end]
	last.place = f.place
	from.order[f.place] = last
	from.order[end] = nil
	from.order = from.order[:end]
	delete(from.counts, f.client)
}
