package window

// SlidingScript counts requests of one cost in several sliding windows of one client at
// once, in the store: each request in all of them or in none. It estimates, from two
// counters for each limit, how many requests lie in the window that ends now: those of
// the fixed window before, as if they had come evenly, as far as it still lies in, and
// those of the fixed window that runs. Source: "How we built rate limiting capable of
// scaling to millions of domains", Cloudflare 2017.
//
//	KEYS[2i-1], KEYS[2i]  the counts of the window that runs and of the one before
//	ARGV[1]  how many requests to add; 0 only tells the store what is known
//	ARGV[2]  what each of them costs
//	ARGV[3]  the time in unix milliseconds by the gateway's reckoning
//
// and then for each limit, seven arguments in a row,
//
//	the limit, and the length of the window in seconds
//	the end of the window that runs, in unix seconds
//	how much to add that passed elsewhere, and the count that is known, of the window
//	that runs, and the same of the one before
//
// It answers in one line the time in unix milliseconds, and the counts as they were before
// the first of the requests. From them follows how many were counted: a request that
// costs c passes where before * left / length + running + c - 1 < limit, left being what
// is left of the running window. All of that is in integers, exactly, for no before says
// more than 2^53 / length. Where a window is over its count is FixedOver, and then nothing was changed.
//
// Counts that a store lost, keys without expiry and values that are no count are treated
// as FixedScript does. A count is kept until the window after its own is over.
const SlidingScript = `local admitted, cost = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = tonumber(ARGV[3])
local time = redis.pcall('TIME')
if not time.err then
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local stored, counts, expiries = {}, {}, {}
local over = false
for i = 1, #KEYS do
  local value = redis.pcall('GET', KEYS[i])
  if type(value) == 'table' and not string.find(value.err, '^%-?WRONGTYPE') then
    return redis.error_reply('NOPERM reading a count: ' .. value.err)
  end
  if type(value) == 'string' and #value < 16 and string.find(value, '^[1-9]%d*$') then
    stored[i] = tonumber(value)
  elseif value then
    redis.call('DEL', KEYS[i])
  end
end
for i = 1, #KEYS, 2 do
  local at = (i - 1) / 2 * 7 + 4
  local limit, length = tonumber(ARGV[at]), tonumber(ARGV[at + 1]) * 1000
  local left = tonumber(ARGV[at + 2]) * 1000 - now
  if left < 1 then
    over = true
    counts[i] = -1
    counts[i + 1] = -1
  else
    left = math.min(left, length)
    counts[i] = math.max(stored[i] or 0, tonumber(ARGV[at + 4])) + tonumber(ARGV[at + 3])
    counts[i + 1] = math.max(stored[i + 1] or 0, tonumber(ARGV[at + 6])) + tonumber(ARGV[at + 5])
    expiries[i] = left + length
    expiries[i + 1] = left
    local share = math.min(counts[i + 1], math.floor(9007199254740992 / length)) * left
    share = (share - share % length) / length
    admitted = math.min(admitted, math.max(0, math.floor((limit - counts[i] - share) / cost)))
  end
end
local answer = {string.format('%.0f', now)}
for i = 1, #KEYS do
  answer[i + 1] = string.format('%.0f', counts[i])
  if not over then
    local more = counts[i] - (stored[i] or 0)
    if i % 2 == 1 then
      more = more + admitted * cost
    end
    if more > 0 then
      redis.call('INCRBY', KEYS[i], string.format('%.0f', more))
    end
    if (more > 0 or stored[i]) and redis.call('PTTL', KEYS[i]) < 0 then
      redis.call('PEXPIRE', KEYS[i], expiries[i])
    end
  end
end
return redis.status_reply(table.concat(answer, ' '))
`

// SlidingLeft returns how much of a limit a client has left at a time, by its counts in
// the window that runs and in the one before: less than zero where it is over the limit.
// left is what is left of the running window and length the whole of it, in milliseconds.
// limit * length is at most 2^53.
func SlidingLeft(running, before, limit, left, length int64) int64 {
	if left > length {
		left = length // by a clock that is ahead
	}
	if before > MaxExact/length {
		before = MaxExact / length
	}
	return limit - running - before*left/length
}

// SlidingWait returns after how many milliseconds a client that stays silent has at least
// so much of a limit left, 0 if it has it now: less than two windows. cost is at most the
// limit. The rest is as of SlidingLeft.
func SlidingWait(running, before, limit, cost, left, length int64) int64 {
	if SlidingLeft(running, before, limit, left, length) >= cost {
		return 0
	}
	most := MaxExact / length
	if before > most {
		before = most
	}
	room := limit - running - cost
	if running > most {
		running = most
	}
	if room >= 0 {
		// before * later / length < room + 1
		return left - ((room+1)*length-1)/before
	}
	return left + length - ((limit-cost+1)*length-1)/running
}

// SlidingFind returns the counts of a client in the window of a time in unix seconds and in
// the one before. They are zero if there were none. That of the window before is not held
// where it would have to make room for itself.
func SlidingFind(c *FixedCounts, client string, unix int64) (running, before *FixedCount) {
	running = FixedFind(c, client, unix)
	before = nil
	if running.End == c.End { // by a clock that is behind, what was before is not held any more
		before = c.previous.counts[client]
		if before == nil && FixedLen(c) < c.max {
			before = fixedAdd(c, c.previous, client)
		}
	}
	if before == nil {
		before = &FixedCount{End: running.End - c.length, client: client}
	}
	return running, before
}
