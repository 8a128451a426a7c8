package window

// FixedSeveralScript counts requests of one cost in several counts of one client at
// once, in the store: each request in all of them or in none. It is one atomic step, and
// goes with FixedScript, with which it may share its counts.
//
//	KEYS[i]  a count of the client
//	ARGV[1]  how many requests to add; 0 only tells the store what is known
//	ARGV[2]  what each of them costs
//
// and then for each key, five arguments in a row,
//
//	the limit
//	how much to add that passed elsewhere, whatever the limit says
//	the count that the caller knows to have been reached, 0 if none
//	the seconds left in the window, by the gateway's reckoning
//	the end of the window, in unix seconds
//
// It answers the counts as they were before the first of the requests, in one line. From
// them follows how many requests were counted: as many as fit into what every limit
// leaves. Where a window is over by the store's clock its count is FixedOver, and then
// nothing was changed. Counts that a store lost, keys without expiry and values that are
// no count are treated as FixedScript does.
const FixedSeveralScript = `local admitted, cost = tonumber(ARGV[1]), tonumber(ARGV[2])
local stored, counts, lefts, over = {}, {}, {}, false
local time = nil
for i = 1, #KEYS do
  local at = 5 * i - 2
  local value = redis.pcall('GET', KEYS[i])
  if type(value) == 'table' and not string.find(value.err, '^%-?WRONGTYPE') then
    return redis.error_reply('NOPERM reading a count: ' .. value.err)
  end
  if type(value) == 'string' and #value < 16 and string.find(value, '^[1-9]%d*$') then
    stored[i] = tonumber(value)
  elseif value then
    redis.call('DEL', KEYS[i])
  end
  if not stored[i] or redis.call('TTL', KEYS[i]) < 0 then
    lefts[i] = tonumber(ARGV[at + 3])
    time = time or redis.pcall('TIME')
    if not time.err then
      lefts[i] = tonumber(ARGV[at + 4]) - tonumber(time[1])
    end
  end
  if lefts[i] and lefts[i] < 1 then
    redis.call('DEL', KEYS[i])
    counts[i] = -1
    over = true
  else
    counts[i] = math.max(stored[i] or 0, tonumber(ARGV[at + 2])) + tonumber(ARGV[at + 1])
    admitted = math.min(admitted, math.max(0, math.floor((tonumber(ARGV[at]) - counts[i]) / cost)))
  end
end
local answer = {}
for i = 1, #KEYS do
  answer[i] = string.format('%.0f', counts[i])
  if not over then
    local more = counts[i] + admitted * cost - (stored[i] or 0)
    if more > 0 then
      redis.call('INCRBY', KEYS[i], string.format('%.0f', more))
    end
    if lefts[i] then
      redis.call('EXPIRE', KEYS[i], lefts[i])
    end
  end
end
return redis.status_reply(table.concat(answer, ' '))
`

// FixedUnsent notes that a call that was to settle so much changed nothing in the store.
func FixedUnsent(f *FixedCount, settled int64) {
	f.Settling -= settled
}
