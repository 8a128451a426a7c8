package window

import (
	"strconv"
	"strings"
)

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
// counted. Where a clock stepped back by more than a window, what came later than that
// counts from now on: no time lies further ahead than a window.
const LogScript = `local admitted, cost = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = tonumber(ARGV[3])
local time = redis.pcall('TIME')
if not time.err then
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local answer = {string.format('%.0f', now)}
local counts = {}
local more = {}
local function newest(key)
  local member = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  return tonumber(member[2] or 0), member[1]
end
for i = 1, #KEYS do
  local limit, length = tonumber(ARGV[3 * i + 2]), tonumber(ARGV[3 * i + 3])
  local old = string.format('%.0f', now - length)
  local dropped = redis.pcall('ZREMRANGEBYSCORE', KEYS[i], '-inf', old)
  if type(dropped) == 'table' then
    if not string.find(dropped.err, '^%-?WRONGTYPE') then
      return redis.error_reply('NOPERM changing a log: ' .. dropped.err)
    end
    redis.call('DEL', KEYS[i])
  end
  local last, member = newest(KEYS[i])
  while last > now + length do
    redis.call('ZADD', KEYS[i], string.format('%.0f', now), member)
    last, member = newest(KEYS[i])
  end
  for at, name, first, last in string.gmatch(ARGV[3 * i + 4], '(%d+)/(%S-)/(%d+)/(%d+) ') do
    local passed = tonumber(at)
    if passed > now + length then
      passed = now
    end
    if passed > now - length then
      for unit = tonumber(first), tonumber(last) do
        redis.call('ZADD', KEYS[i], string.format('%.0f', passed), name .. '-' .. unit)
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
  if admitted > 0 or more[i] or redis.call('PTTL', KEYS[i]) == -1 then
    redis.call('PEXPIRE', KEYS[i], ARGV[3 * i + 3])
  end
  local free = 0
  local needed = counts[i] + admitted * cost + cost - limit
  if needed > 0 then
    local member = redis.call('ZRANGE', KEYS[i], needed - 1, needed - 1, 'WITHSCORES')
    free = member[2] and tonumber(member[2]) + length or 0
  end
  answer[3 * i - 1] = string.format('%.0f', counts[i])
  answer[3 * i] = string.format('%.0f', free)
  answer[3 * i + 1] = string.format('%.0f', (newest(KEYS[i])))
end
return redis.status_reply(table.concat(answer, ' '))
`

// Log is what one gateway knows of a log.
type Log struct {
	// own is what passed this gateway within the last window, in the order of time.
	own []logEntry
	// count is how many units own has, and alone how many of them passed without the store,
	// which has not answered since.
	count, alone int64
	// others is how many units of other gateways the store has told of, and until when
	// the last of them may count, in unix milliseconds.
	others, othersUntil int64
	// free is when a log of at most so many units has room for a request that costs
	// freeCost, as the store has told, in unix milliseconds.
	free, freeCost, freeLimit int64
	newest                    int64 // time of the newest unit known
	added                     int64 // entries ever added to own
	unsent                    int   // entries of own that the store was never told, or may have lost
}

// A logEntry is what one call admitted here.
type logEntry struct {
	at          int64 // unix milliseconds
	name        string
	first, last int64 // numbers of its members
	number      int64 // of this entry, from 1
	unsent      bool
	alone       bool // it passed without the store, which has not answered since
}

// logExpire drops what is older than a window, at a time in unix milliseconds. What came
// more than a window later than that, by a clock that has stepped back, counts from now on.
func logExpire(g *Log, now, length int64) {
	gone := 0
	for gone < len(g.own) && g.own[gone].at <= now-length {
		e := &g.own[gone]
		logSent(g, e)
		g.count -= e.last - e.first + 1
		gone++
	}
	if gone > 0 {
		g.own = g.own[gone:]
	}
	if now >= g.othersUntil {
		g.others = 0
	}
	if g.newest > now+length {
		logStepBack(g, now, length)
	}
}

// logSent notes that the store has an entry, or does not need it any more.
func logSent(g *Log, e *logEntry) {
	if e.unsent {
		e.unsent = false
		g.unsent--
	}
	if e.alone {
		e.alone = false
		g.alone -= e.last - e.first + 1
	}
}

// logStepBack sees to it that nothing lies further ahead than a window.
func logStepBack(g *Log, now, length int64) {
	ahead := len(g.own)
	for ahead > 0 && g.own[ahead-1].at > now+length {
		ahead--
	}
	late := append([]logEntry(nil), g.own[ahead:]...)
	g.own = g.own[:ahead]
	for i := range late {
		late[i].at = now
		logInsert(g, late[i])
	}
	g.newest = now
	if len(g.own) > 0 {
		g.newest = g.own[len(g.own)-1].at
	}
	if g.othersUntil > now+length {
		g.othersUntil = now + length
	}
	if g.free > now+length {
		g.free = now + length
	}
}

// logInsert puts an entry where its time is.
func logInsert(g *Log, e logEntry) {
	i := len(g.own)
	g.own = append(g.own, e)
	for i > 0 && g.own[i-1].at > e.at { // by a clock that is behind
		g.own[i] = g.own[i-1]
		i--
	}
	g.own[i] = e
}

// logAdd notes units that passed here, alone or not.
func logAdd(g *Log, now int64, name string, first, last int64, alone bool) {
	g.added++
	e := logEntry{at: now, name: name, first: first, last: last, number: g.added, unsent: alone, alone: alone}
	if alone {
		g.unsent++
		g.alone += last - first + 1
	}
	if n := len(g.own); n > 0 && g.own[n-1].at > now {
		logInsert(g, e)
	} else {
		g.own = append(g.own, e)
	}
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
	if now < g.free && limit <= g.freeLimit && left >= g.freeCost {
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
	if short > 0 && short == g.count {
		until = g.own[len(g.own)-1].at + length // all of them, found without a search
		short = 0
	}
	for i := 0; short > 0 && i < len(g.own); i++ {
		e := &g.own[i]
		short -= e.last - e.first + 1
		until = e.at + length
	}
	if cost >= g.freeCost && limit <= g.freeLimit && g.free > until {
		until = g.free
	}
	if cost > g.freeCost && g.free > now && g.others > 0 && g.othersUntil > until {
		until = g.othersUntil // by then for certain: when in between, the store did not say
	}
	if cost == limit && g.others > 0 && g.othersUntil > until {
		until = g.othersUntil
	}
	if until > now+length { // see Wait
		return length
	}
	return until - now
}

// logTold is how many units of a log the store is told of in one call, or those of one
// entry: it must be done well before a request gives up.
const logTold = 1000

// LogForgotten notes that the store may have lost all that passed here.
func LogForgotten(g *Log) {
	g.unsent = len(g.own)
	for i := range g.own {
		g.own[i].unsent = true
	}
}

// LogUnsent returns what the store is to be told that it may not know, as the calls of
// LogScript that it came from, a part of it if that is much. told is what LogAnswered is
// to be given.
func LogUnsent(g *Log) (calls string, told int64) {
	if g.unsent == 0 {
		return "", g.added
	}
	told = g.added
	units := int64(0)
	var text strings.Builder
	for i := range g.own {
		e := &g.own[i]
		if !e.unsent {
			continue
		}
		if units >= logTold {
			if e.number <= told {
				told = e.number - 1
			}
			continue
		}
		units += e.last - e.first + 1
		_, _ = text.WriteString(strconv.FormatInt(e.at, 10) + "/" + e.name + "/" + strconv.FormatInt(e.first, 10) + "/" + strconv.FormatInt(e.last, 10) + " ")
	}
	return text.String(), told
}

// LogAlone returns how many units passed without the store and are not settled with it.
func LogAlone(g *Log) int64 {
	return g.alone
}

// LogOwed reports whether there is something to tell the store.
func LogOwed(g *Log) bool {
	return g.unsent > 0
}

// A LogAnswer is what the store says of a log.
type LogAnswer struct {
	Now    int64 // unix milliseconds
	Count  int64 // units before the first of the requests
	Free   int64 // when there is room for one more after them, in unix milliseconds; 0: there is
	Newest int64 // time of its newest member
}

// LogAnswered notes what the store answered to a call of this name for requests of a cost,
// of which it admitted so many units; told is as of LogUnsent.
func LogAnswered(e *Entry, l *Limit, a *LogAnswer, cost, units int64, name string, told int64) {
	g, length := e.Log, l.Length*1000
	logExpire(g, a.Now, length)
	known := g.count
	if g.unsent > 0 {
		for i := range g.own {
			if o := &g.own[i]; o.number <= told {
				logSent(g, o)
			} else if o.unsent {
				known -= o.last - o.first + 1
			}
		}
	}
	g.others = a.Count - known
	if g.others < 0 {
		// It has less than passed here: it lost some of it, and is to be told again.
		g.others = 0
		LogForgotten(g)
	}
	g.othersUntil = a.Newest + length
	g.free = a.Free
	g.freeCost = cost
	g.freeLimit = l.Limit
	if a.Newest > g.newest {
		g.newest = a.Newest
	}
	if units > 0 {
		logAdd(g, a.Now, name, 1, units, false)
	}
	e.until = g.newest + length
}

// LogAdded returns a mark of all that passed here until now, for LogKnown.
func LogAdded(g *Log) int64 {
	return g.added
}

// LogKnown returns how many units a log has at least at a time in unix milliseconds, in
// windows of length milliseconds: count, as the store has answered, or more, where the
// store lost some of what had passed here before a mark.
func LogKnown(g *Log, mark, now, length, count int64) int64 {
	if g.count <= count {
		return count // the usual case: nothing to look for
	}
	known := int64(0)
	for i := range g.own {
		e := &g.own[i]
		if e.number <= mark && e.at > now-length {
			known += e.last - e.first + 1
		}
	}
	if known > count {
		return known
	}
	return count
}
