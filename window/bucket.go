package window

// BucketScript takes requests of one cost out of several token buckets of one client at
// once, in the store: each request out of all of them or out of none. A bucket holds up to
// a burst of tokens and gains as many as its limit in each window, evenly. So that nothing
// drifts it is counted in parts of a token, of which a token has as many as the window has
// milliseconds: then it gains limit parts a millisecond, which is a whole number.
//
//	KEYS[i]  a bucket: how many parts it lacks, and when that was so
//	ARGV[1]  how many requests to take; 0 only tells the store what is known
//	ARGV[2]  what each of them costs, in tokens
//	ARGV[3]  the time in unix milliseconds by the gateway's reckoning
//
// and then for each bucket, five arguments in a row,
//
//	the limit, the length of the window in milliseconds, and the burst
//	how many parts the bucket is known to have lacked, and when, in unix milliseconds
//
// It answers in one line the time in unix milliseconds, and then for each bucket the parts
// that it lacked before the first of the requests and the time for which that is so. From
// them follows how many requests were taken: as many as each bucket has tokens for.
//
// What lacks more than its burst was a larger bucket, or is none: it lacks what the caller
// knows, or all. A clock that steps back mints nothing, and delays nothing for longer than a window. A
// bucket lacks what the store knows or what the caller knows, whichever is full later, so
// a store that lost it goes on from there. What is no bucket is replaced. A bucket is kept
// until it is full, and a refusal changes nothing in it.
const BucketScript = `local admitted, cost = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = tonumber(ARGV[3])
local time = redis.pcall('TIME')
if not time.err then
  now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local function lacked(lack, at, t, limit)
  if at >= t then
    return lack
  end
  return math.max(0, lack - (t - at) * limit)
end
local lacks, times, writes, answer = {}, {}, {}, {string.format('%.0f', now)}
for i = 1, #KEYS do
  local a = 5 * i - 1
  local limit, length, burst = tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  local lack, at = 0, now
  local value = redis.pcall('HMGET', KEYS[i], 'lack', 'at')
  if value.err then
    if not string.find(value.err, '^%-?WRONGTYPE') then
      return redis.error_reply('NOPERM reading a bucket: ' .. value.err)
    end
    redis.call('DEL', KEYS[i])
  elseif value[1] and value[2] and string.find(value[1] .. value[2], '^%d+$') and #value[1] < 17 and #value[2] < 17 and tonumber(value[1]) <= 9007199254740992 then
    lack, at = tonumber(value[1]), tonumber(value[2])
    if at - now > length then
      at = now
      writes[i] = true
    end
  elseif value[1] or value[2] then
    redis.call('DEL', KEYS[i])
  end
  local known, knownAt = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
  if known == 0 or knownAt - now > length then
    knownAt = now
  end
  local t = math.max(now, at, knownAt)
  local most = burst * length
  known = math.min(most, lacked(known, knownAt, t, limit))
  lack = lacked(lack, at, t, limit)
  if lack > most then
    lack = known > 0 and known or most
    writes[i] = true
  end
  times[i] = t
  lacks[i] = math.max(lack, known)
  writes[i] = writes[i] or known > lack
  admitted = math.min(admitted, math.max(0, math.floor((burst * length - lacks[i]) / (length * cost))))
  answer[2 * i] = string.format('%.0f', lacks[i])
  answer[2 * i + 1] = string.format('%.0f', t)
end
for i = 1, #KEYS do
  local a = 5 * i - 1
  local lack = lacks[i] + admitted * cost * tonumber(ARGV[a + 1])
  local full = math.ceil(lack / tonumber(ARGV[a])) + times[i] - now
  if lack > 0 and (admitted > 0 or writes[i]) then
    redis.call('HMSET', KEYS[i], 'lack', string.format('%.0f', lack), 'at', string.format('%.0f', times[i]))
    redis.call('PEXPIRE', KEYS[i], string.format('%.0f', full))
  elseif redis.call('PTTL', KEYS[i]) == -1 then
    full = math.max(full, math.ceil(tonumber(ARGV[a + 1]) * tonumber(ARGV[a + 2]) / tonumber(ARGV[a])))
    redis.call('PEXPIRE', KEYS[i], string.format('%.0f', full))
  end
end
return redis.status_reply(table.concat(answer, ' '))
`

// BucketLack returns how many parts a bucket lacks at a time, which lacked so many at
// another, both in milliseconds. It gains limit parts in each, at least 1.
func BucketLack(lack, at, now, limit int64) int64 {
	if now <= at {
		return lack
	}
	if now-at > lack/limit {
		return 0
	}
	return lack - (now-at)*limit
}

// BucketLeft returns how many tokens a bucket has that lacks so many parts: less than zero
// where it lacks more than its burst. length is that of the window in milliseconds.
func BucketLeft(lack, burst, length int64) int64 {
	left := burst*length - lack
	if left < 0 {
		return (left+1)/length - 1
	}
	return left / length
}

// BucketWait returns after how many milliseconds a bucket that lacks so many parts has so
// many tokens, at most its burst.
func BucketWait(lack, cost, limit, burst, length int64) int64 {
	short := lack - (burst-cost)*length
	if short <= 0 {
		return 0
	}
	return (short + limit - 1) / limit
}

// BucketAnswered notes that the store answered that a bucket lacked so many parts at a
// time, before it gave so many tokens. More may be known by now.
func BucketAnswered(e *Entry, l *Limit, lack, at, tokens int64) {
	known := BucketLack(e.Lack, e.At, at, l.Limit)
	lack += tokens * l.Length * 1000
	if known > lack {
		lack = known
	}
	e.Lack = lack
	e.At = at
	e.limit = l.Limit
	e.burst = l.Burst
	e.alone = 0
	e.aloneAt = 0
	e.until = at + lack/l.Limit + 1
}
