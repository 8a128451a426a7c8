package window

// MaxCount is the largest limit: what an integer of a structured header field
// can hold (RFC 9651, section 3.3.1), and well below the 2^53 up to which the
// store's Lua counts exactly.
const MaxCount = 999999999999999

// FixedScript counts requests in a fixed window, in the store. It is one atomic
// step, so any number of gateways together are told each count exactly once.
//
//	KEYS[1]  the count of one client in one window
//	ARGV[1]  how many requests to add, at least 1
//	ARGV[2]  the seconds left in the window, by the gateway's reckoning
//	ARGV[3]  the end of the window, in unix seconds
//
// It answers the count with the new requests in it, or FixedOver.
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
local count = redis.pcall('INCRBY', KEYS[1], ARGV[1])
local sick = type(count) ~= 'number'
if sick then
  local value = redis.pcall('GET', KEYS[1])
  if value == false or type(value) == 'string' and #value < 16 and string.find(value, '^%d+$') then
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
if count == n or redis.call('TTL', KEYS[1]) < 0 then
  local left = tonumber(ARGV[2])
  local time = redis.pcall('TIME')
  if not time.err then
    left = tonumber(ARGV[3]) - tonumber(time[1])
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

// FixedDecide judges a request whose count, itself included, is count.
func FixedDecide(count, limit, left int64) Decision {
	if count > limit {
		return Decision{Reset: left, RetryAfter: left}
	}
	return Decision{Allowed: true, Remaining: limit - count, Reset: left}
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
	length     int64 // of a window, in seconds
	max        int
	id         int64 // of the newest window
	start, end int64 // of the newest window, in unix seconds
	current    map[string]int64
	previous   map[string]int64
}

// evictionSample is how many counts an eviction compares. For it to hit one of
// the tenth of clients with the highest counts, all eight must be among them: a
// chance of 1 in 10^8.
const evictionSample = 8

// NewFixedCounts returns an empty table for windows of length seconds and at most
// max clients, both at least 1.
func NewFixedCounts(length int64, max int) *FixedCounts {
	return &FixedCounts{length: length, max: max, end: length, current: map[string]int64{}}
}

// FixedTake counts one request of a client at a time in unix seconds and decides
// it, all in one: it runs for every request, in an interpreter that pays most for
// calls, and for all that stands in a function whether it is reached or not. So a
// client that is new, or another window, is left to fixedTakeFirst.
func FixedTake(c *FixedCounts, client string, unix, limit int64) Decision {
	count := c.current[client]
	if count == 0 || unix < c.start || unix >= c.end {
		return fixedTakeFirst(c, client, unix, limit)
	}
	count++
	c.current[client] = count
	left := c.end - unix
	if count > limit {
		return Decision{Reset: left, RetryAfter: left}
	}
	return Decision{Allowed: true, Remaining: limit - count, Reset: left}
}

func fixedTakeFirst(c *FixedCounts, client string, unix, limit int64) Decision {
	id, left := FixedAt(unix, c.length)
	counts := fixedWindow(c, id)
	if _, known := counts[client]; !known && FixedLen(c) >= c.max {
		counts = fixedEvict(c, id)
	}
	counts[client]++
	return FixedDecide(counts[client], limit, left)
}

// FixedKnown returns the count that is known of a client in the window of a time in
// unix seconds, 0 if there is none or the window is not the newest.
func FixedKnown(c *FixedCounts, client string, unix int64) int64 {
	if unix < c.start || unix >= c.end {
		return 0
	}
	return c.current[client]
}

// FixedRaise makes known that the store has counted a client up to count in
// window id. A count never falls, and what is said of a window other than the
// newest is not kept.
func FixedRaise(c *FixedCounts, client string, id, count int64) {
	if id < c.id {
		return
	}
	if id == c.id {
		known := c.current[client]
		if known > 0 {
			if count > known {
				c.current[client] = count
			}
			return
		}
	}
	fixedRaiseFirst(c, client, id, count)
}

func fixedRaiseFirst(c *FixedCounts, client string, id, count int64) {
	counts := fixedWindow(c, id)
	if FixedLen(c) >= c.max {
		counts = fixedEvict(c, id)
	}
	counts[client] = count
}

// FixedLen returns how many counts are held.
func FixedLen(c *FixedCounts) int {
	return len(c.current) + len(c.previous)
}

// FixedMax returns how many counts may be held.
func FixedMax(c *FixedCounts) int {
	return c.max
}

// FixedSetMax changes how many counts may be held, at least 1. Where more are held,
// they go two for each one that comes, or with their window, and not all at once:
// that could take seconds.
func FixedSetMax(c *FixedCounts, max int) {
	c.max = max
}

// fixedWindow returns the counts of window id and moves on when it is a new one.
// A step of more than one window in either direction is a new start: a clock
// that jumped back must not refuse anybody until it has caught up.
func fixedWindow(c *FixedCounts, id int64) map[string]int64 {
	if id == c.id {
		return c.current
	}
	if id == c.id-1 {
		if c.previous == nil {
			c.previous = map[string]int64{}
		}
		return c.previous
	}
	c.previous = nil
	if id == c.id+1 {
		c.previous = c.current
	}
	c.id = id
	c.start = id * c.length
	c.end = c.start + c.length
	c.current = map[string]int64{}
	return c.current
}

// fixedEvict makes room for one count in window id and returns the counts of that
// window.
func fixedEvict(c *FixedCounts, id int64) map[string]int64 {
	if len(c.previous) > 0 && id == c.id {
		c.previous = nil
		if len(c.current) < c.max {
			return c.current
		}
	}
	from := c.current
	if len(c.previous) > 0 {
		from = c.previous
	}
	evictOne(from)
	if FixedLen(c) >= c.max {
		evictOne(from)
	}
	return fixedWindow(c, id)
}

// evictOne drops the lowest of a few counts.
func evictOne(from map[string]int64) {
	victim := ""
	lowest := int64(0)
	seen := 0
	for client, count := range from {
		if seen == 0 || count < lowest {
			victim = client
			lowest = count
		}
		seen++
		if seen == evictionSample {
			break
		}
	}
	delete(from, victim)
}
