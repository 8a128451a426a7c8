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
    return value
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

// FixedAdmitted returns how many of a number of requests were counted, each of this cost,
// by what was left of each limit before the first of them.
func FixedAdmitted(lefts []int64, requests, cost int64) int64 {
	for _, left := range lefts {
		if left < cost {
			return 0
		}
		if left/cost < requests {
			requests = left / cost
		}
	}
	return requests
}

// FixedJudge decides a request under several limits that costs so much, at a time in unix
// seconds, by what was left of each limit before it: it passes where all have room for
// it. It counts nothing.
//
// The decision is that of the limit that binds: of those that refuse the one that lasts
// longest, else the one that has least left, and if two have, the one that lasts longer.
func FixedJudge(counts []*FixedCount, lefts []int64, cost, unix int64, d *Decision) {
	n := len(lefts)
	d.Allowed = true
	all := &Standings{Remaining: make([]int64, n), Reset: make([]int64, n), Refused: make([]bool, n)}
	d.Several = all
	for i, left := range lefts {
		if left < cost {
			d.Allowed = false
			all.Refused[i] = true
		}
	}
	binding := -1
	for i, left := range lefts {
		if d.Allowed {
			left -= cost
		}
		if left < 0 {
			left = 0
		}
		all.Remaining[i] = left
		reset := counts[i].End - unix
		all.Reset[i] = reset
		if all.Refused[i] == d.Allowed {
			continue
		}
		if binding < 0 || !d.Allowed && reset > all.Reset[binding] || d.Allowed && tighter(all, i, binding) {
			binding = i
		}
	}
	d.Remaining = all.Remaining[binding]
	d.Reset = all.Reset[binding]
	if !d.Allowed {
		d.RetryAfter = d.Reset
	}
}

// tighter reports whether limit i leaves less than limit j, or as much for longer.
func tighter(all *Standings, i, j int) bool {
	if all.Remaining[i] != all.Remaining[j] {
		return all.Remaining[i] < all.Remaining[j]
	}
	return all.Reset[i] > all.Reset[j]
}

// FixedTakeSeveral is the twin of FixedSeveralScript for one request at a time in unix
// seconds, and decides it.
func FixedTakeSeveral(counts []*FixedCount, limits []int64, cost, unix int64, d *Decision) {
	lefts := make([]int64, len(counts))
	for i, f := range counts {
		lefts[i] = limits[i] - f.Known
	}
	FixedJudge(counts, lefts, cost, unix, d)
	if d.Allowed {
		for _, f := range counts {
			f.Known += cost
		}
	}
}

// FixedAloneSeveral is FixedAlone for a request that counts in several counts, in all or
// in none, and costs so much.
func FixedAloneSeveral(counts []*FixedCount, limits []int64, cost, unix, own, gateways int64, asked bool, d *Decision) {
	lefts := make([]int64, len(counts))
	for i, f := range counts {
		lefts[i] = fixedShare(f, limits[i], own, gateways)
	}
	FixedJudge(counts, lefts, cost, unix, d)
	if !d.Allowed {
		return
	}
	for _, f := range counts {
		f.Known += cost
		f.Spent += cost
		if asked {
			f.Lost += cost
		} else {
			f.Unsettled += cost
		}
	}
}

// fixedShare returns how much of a limit a gateway may let pass alone: see FixedAlone.
func fixedShare(f *FixedCount, limit, own, gateways int64) int64 {
	left := limit - f.Known
	if own > 0 {
		if own-f.Spent < left {
			left = own - f.Spent
		}
	} else if gateways > 1 {
		alone := f.Lost + f.Unsettled
		left = (left+alone+gateways-1)/gateways - alone
	}
	return left
}

// FixedUnsent notes that a call that was to settle so much changed nothing in the store.
func FixedUnsent(f *FixedCount, settled int64) {
	f.Settling -= settled
}
