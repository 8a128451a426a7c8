package window

import "strconv"

// LogScript counts requests of one cost in several logs of one client at once, in the
// store: each request in all of them or in none. A log has the time of each unit of cost
// for as long as a window, so it is exact over any interval of a window's length.
//
//	KEYS[i]  a log: a sorted set by time in unix milliseconds
//	ARGV[1]  how many requests to add; 0 only tells the store what is known
//	ARGV[2]  what each of them costs
//	ARGV[3]  the time in unix milliseconds by the gateway's reckoning
//	ARGV[4]  a name that no other call has; the members that this one adds have it with
//	         -1, -2, ... behind it
//
// and then for each log, three arguments in a row,
//
//	the limit, and the length of the window in milliseconds
//	what passed elsewhere, or may have been lost: for each such call its time, a slash,
//	its name, a slash, and the numbers of its first and its last member with a slash
//	between them, and a blank behind it all
//
// It answers in one line the time in unix milliseconds, and then for each log how many
// units it had before the first of the requests, when it will have room for one more
// after them, or 0 if it has, and the time of its newest member. From the first of these
// follows how many requests were counted: as many as fit into each log.
//
// To add a member that is there changes nothing but its time, so nothing counts twice. What
// is no log is replaced. A log is kept for a window after the last request that was
// counted.
const LogScript = `local admitted, cost = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = tonumber(ARGV[3])
local time = redis.pcall('TIME')
if not time.err then
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local answer = {string.format('%.0f', now)}
local counts = {}
local more = {}
for i = 1, #KEYS do
  local limit, length = tonumber(ARGV[3 * i + 2]), tonumber(ARGV[3 * i + 3])
  local old = string.format('%.0f', now - length)
  local dropped = redis.pcall('ZREMRANGEBYSCORE', KEYS[i], '-inf', old)
  if type(dropped) == 'table' then
    if not string.find(dropped.err, '^%-?WRONGTYPE') then
      return dropped
    end
    redis.call('DEL', KEYS[i])
  end
  for at, name, first, last in string.gmatch(ARGV[3 * i + 4], '(%d+)/(%S-)/(%d+)/(%d+) ') do
    if tonumber(at) > now - length then
      for unit = tonumber(first), tonumber(last) do
        redis.call('ZADD', KEYS[i], at, name .. '-' .. unit)
      end
      more[i] = true
    end
  end
  counts[i] = redis.call('ZCARD', KEYS[i])
  admitted = math.min(admitted, math.max(0, math.floor((limit - counts[i]) / cost)))
end
for i = 1, #KEYS do
  local limit, length = tonumber(ARGV[3 * i + 2]), tonumber(ARGV[3 * i + 3])
  for unit = 1, admitted * cost do
    redis.call('ZADD', KEYS[i], string.format('%.0f', now), ARGV[4] .. '-' .. unit)
  end
  if admitted > 0 or more[i] then
    redis.call('PEXPIRE', KEYS[i], ARGV[3 * i + 3])
  end
  local free, newest = 0, 0
  local needed = counts[i] + admitted * cost + cost - limit
  if needed > 0 then
    local member = redis.call('ZRANGE', KEYS[i], needed - 1, needed - 1, 'WITHSCORES')
    free = member[2] and tonumber(member[2]) + length or 0
  end
  local member = redis.call('ZRANGE', KEYS[i], -1, -1, 'WITHSCORES')
  newest = member[2] and tonumber(member[2]) or 0
  answer[3 * i - 1] = string.format('%.0f', counts[i])
  answer[3 * i] = string.format('%.0f', free)
  answer[3 * i + 1] = string.format('%.0f', newest)
end
return redis.status_reply(table.concat(answer, ' '))
`

// Log is what one gateway knows of a log.
type Log struct {
	// own is what passed this gateway within the last window, in the order of time.
	own []logEntry
	// count is how many units own has.
	count int64
	// others is how many units of other gateways the store has told of, and until when
	// the last of them may count, in unix milliseconds.
	others, othersUntil int64
	// free is when the log has room for a request that costs freeCost, as the store has
	// told, in unix milliseconds.
	free, freeCost int64
	newest         int64 // time of the newest unit known
	unsent         int   // the last entries of own that the store was never told, or may have lost
	alone          int64 // units that passed alone since the store last answered
}

// A logEntry is what one call admitted here.
type logEntry struct {
	at          int64 // unix milliseconds
	name        string
	first, last int64 // numbers of its members
}

// logExpire drops what is older than a window, at a time in unix milliseconds.
func logExpire(g *Log, now, length int64) {
	gone := 0
	for gone < len(g.own) && g.own[gone].at <= now-length {
		g.count -= g.own[gone].last - g.own[gone].first + 1
		gone++
	}
	if gone > 0 {
		g.own = append([]logEntry(nil), g.own[gone:]...)
		if g.unsent > len(g.own) {
			g.unsent = len(g.own)
		}
	}
	if now >= g.othersUntil {
		g.others = 0
	}
}

// logAdd notes units that passed here.
func logAdd(g *Log, now int64, name string, first, last int64) {
	if n := len(g.own); n > 0 && g.own[n-1].at > now {
		now = g.own[n-1].at // a clock that steps back changes no order
	}
	g.own = append(g.own, logEntry{at: now, name: name, first: first, last: last})
	g.count += last - first + 1
	if now > g.newest {
		g.newest = now
	}
}

// LogLeft returns how much of a limit is left at most by what is known, at a time in unix
// milliseconds, for windows of length milliseconds: others may have taken more of it.
func LogLeft(g *Log, limit, now, length int64) int64 {
	logExpire(g, now, length)
	left := limit - g.count
	if now < g.free && left >= g.freeCost {
		return g.freeCost - 1
	}
	return left
}

// LogWait returns after how many milliseconds a client that stays silent has so much of a
// limit left, by what is known; cost is at most the limit.
func LogWait(g *Log, limit, cost, now, length int64) int64 {
	logExpire(g, now, length)
	until := now
	short := g.count + cost - limit
	for _, e := range g.own {
		if short <= 0 {
			break
		}
		short -= e.last - e.first + 1
		until = e.at + length
	}
	if cost >= g.freeCost && g.free > until {
		until = g.free
	}
	if cost == limit && g.others > 0 && g.othersUntil > until {
		until = g.othersUntil
	}
	return until - now
}

// LogUnsent returns what the store is to be told that it may not know, as the calls of
// LogScript that it came from: all that passed here within a window if all is set.
func LogUnsent(g *Log, all bool) string {
	from := len(g.own) - g.unsent
	if all {
		from = 0
	}
	text := ""
	for _, e := range g.own[from:] {
		text += strconv.FormatInt(e.at, 10) + "/" + e.name + "/" + strconv.FormatInt(e.first, 10) + "/" + strconv.FormatInt(e.last, 10) + " "
	}
	return text
}

// LogAnswered notes what the store answered at a time to a call that told it all of
// LogUnsent: how many units it had, when it has room for so much more, and when its newest
// member came; and that it admitted so many of this call.
func LogAnswered(e *Entry, now, length, count, free, cost, newest int64, name string, units int64) {
	g := e.Log
	logExpire(g, now, length)
	g.unsent = 0
	g.alone = 0
	g.others = count - g.count
	if g.others < 0 {
		// It has less than passed here: it lost some of it, and is to be told again.
		g.others = 0
		g.unsent = len(g.own)
	}
	g.othersUntil = now + length
	if newest > 0 && newest+length < g.othersUntil {
		g.othersUntil = newest + length
	}
	g.free = free
	g.freeCost = cost
	if newest > g.newest {
		g.newest = newest
	}
	if units > 0 {
		logAdd(g, now, name, 1, units)
	}
	e.until = g.newest + length
}
