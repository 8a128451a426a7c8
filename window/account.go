package window

// An Algorithm is a way to count.
type Algorithm int

const (
	// Fixed counts in windows that stand on the clock: see FixedScript.
	Fixed Algorithm = iota
	// Sliding estimates what lies in the window that ends now: see SlidingScript.
	Sliding
	// Exact keeps the time of each request: see LogScript.
	Exact
	// Bucket takes tokens out of a bucket that fills evenly: see BucketScript.
	Bucket
)

// A Limit is how much a client may make of requests. An Account is held to one.
type Limit struct {
	Algorithm Algorithm
	Limit     int64 // in a window, 1 to MaxCount
	Length    int64 // of a window, in seconds
	Burst     int64 // of a bucket, in tokens
}

// An Account is what one gateway knows of one client under one limit. Which of it is
// there depends on the algorithm of its limit.
type Account struct {
	Running *FixedCount // fixed and sliding window: the window that runs
	Before  *FixedCount // sliding window: the one before
	Entry   *Entry      // the others

	// Turn and Group, and what follows, are for whoever asks the store; nothing here reads
	// them.
	Turn  int64
	Group int
	// From Since, in unix milliseconds, until Until all requests of the limiter By are
	// refused, and at Full the limit is whole again, by what was known when one was.
	Since, Until, Full int64
	Left               int64 // what was left, less than a request costs
	Known              int64 // of Running
	By                 string
}

// Find returns the account of a client under a limit at a time in unix milliseconds, by
// the counts or the entries in which it is kept, whichever the algorithm has. It is the
// same one as long as the window runs and nothing is evicted.
func Find(l *Limit, counts *FixedCounts, entries *Entries, client string, now int64) *Account {
	if entries != nil {
		e := EntryFind(entries, client, now)
		if e.Account == nil {
			e.Account = &Account{Entry: e}
		}
		return e.Account
	}
	if l.Algorithm == Fixed {
		f := FixedFind(counts, client, now/1000)
		if f.Account == nil {
			f.Account = &Account{Running: f}
		}
		return f.Account
	}
	running, before := SlidingFind(counts, client, now/1000)
	if running.Account == nil {
		running.Account = &Account{Running: running, Before: before}
	}
	return running.Account
}

// Left returns how much of a limit is left by what is known, at a time in unix
// milliseconds: less than zero where the client is over it.
func Left(l *Limit, a *Account, now int64) int64 {
	switch l.Algorithm {
	case Fixed:
		return l.Limit - a.Running.Known
	case Sliding:
		return SlidingLeft(a.Running.Known, a.Before.Known, l.Limit, a.Running.End*1000-now, l.Length*1000)
	case Bucket:
		e := a.Entry
		if e.At-now > l.Length*1000 {
			e.At = now // as the script has it
		}
		lack := BucketLack(e.Lack, e.At, now, l.Limit)
		if most := l.Burst * l.Length * 1000; lack > most {
			// It was a larger one.
			lack = most
			e.Lack = lack
			if now > e.At {
				e.At = now
			}
		}
		return BucketLeft(lack, l.Burst, l.Length*1000)
	}
	return LogLeft(a.Entry.Log, l.Limit, now, l.Length*1000)
}

// Wait returns after how many milliseconds a client that stays silent has so much of a
// limit left, by what is known; cost is at most what a limit can hold. What is known may be
// ahead of the clock, mostly by the few milliseconds by which a gateway errs about the
// store's: then it is no longer to be waited for than if it had just come.
func Wait(l *Limit, a *Account, cost, now int64) int64 {
	switch l.Algorithm {
	case Fixed:
		if l.Limit-a.Running.Known >= cost {
			return 0
		}
		return a.Running.End*1000 - now
	case Sliding:
		return SlidingWait(a.Running.Known, a.Before.Known, l.Limit, cost, a.Running.End*1000-now, l.Length*1000)
	case Bucket:
		e := a.Entry
		wait := BucketWait(BucketLack(e.Lack, e.At, now, l.Limit), cost, l.Limit, l.Burst, l.Length*1000)
		if wait > 0 && e.At > now {
			return waitAhead(wait, e.At-now, LongestWait(l, cost)*1000)
		}
		return wait
	}
	return LogWait(a.Entry.Log, l.Limit, cost, now, l.Length*1000)
}

// waitAhead returns a wait that begins so much later, but not for longer than the longest.
func waitAhead(wait, ahead, longest int64) int64 {
	if wait+ahead <= longest {
		return wait + ahead
	}
	if wait < longest {
		return longest
	}
	return wait
}

// Capacity returns the most that a limit can have left.
func Capacity(l *Limit) int64 {
	if l.Algorithm == Bucket {
		return l.Burst
	}
	return l.Limit
}

// LongestWait returns the longest time in seconds after which a refused client that stays
// silent is allowed again, for requests that cost so much, at most what the limit can hold.
func LongestWait(l *Limit, cost int64) int64 {
	switch l.Algorithm {
	case Sliding:
		return 2 * l.Length
	case Bucket:
		return (cost*l.Length + l.Limit - 1) / l.Limit
	}
	return l.Length
}

// Alone reports whether a part of what is known comes from this gateway alone.
func Alone(a *Account) bool {
	if a.Entry == nil {
		return a.Running.Lost+a.Running.Unsettled > 0 || a.Before != nil && a.Before.Lost+a.Before.Unsettled > 0
	}
	return a.Entry.aloneAt > 0 || a.Entry.Log != nil && a.Entry.Log.alone > 0
}

// TakeOne is Take for one limit. It does not fill in d.Several.
func TakeOne(l *Limit, a *Account, cost, now int64, d *Decision) {
	left := Left(l, a, now)
	if left < cost {
		Refuse(l, a, left, cost, now, d)
		return
	}
	count(l, a, cost, now, "", 1, false)
	d.Allowed = true
	d.Remaining = left - cost
	d.Reset = seconds(Wait(l, a, Capacity(l), now))
}

// Refuse decides a request under one limit that has so little left, by what is known. It
// does not fill in d.Several.
func Refuse(l *Limit, a *Account, left, cost, now int64, d *Decision) {
	if left > 0 {
		d.Remaining = left
	}
	d.Reset = seconds(Wait(l, a, Capacity(l), now))
	d.RetryAfter = d.Reset
	if cost <= Capacity(l) {
		d.RetryAfter = seconds(Wait(l, a, cost, now))
	}
}

// Take counts one request in several accounts of one client, in all of them or in none, at
// a time in unix milliseconds, and decides it: the twin of the scripts.
func Take(limits []*Limit, accounts []*Account, cost, now int64, d *Decision) {
	lefts := make([]int64, len(limits))
	for i, l := range limits {
		lefts[i] = Left(l, accounts[i], now)
	}
	if fits(lefts, cost) {
		for i, l := range limits {
			count(l, accounts[i], cost, now, "", 1, false)
		}
	}
	resets, waits := Waits(limits, accounts, cost, now)
	Judge(lefts, resets, waits, cost, d)
}

// fits reports whether every limit has room for a request.
func fits(lefts []int64, cost int64) bool {
	for _, left := range lefts {
		if left < cost {
			return false
		}
	}
	return true
}

// count notes what passed, alone or not, in a log under a name, from the member first on.
func count(l *Limit, a *Account, units, now int64, name string, first int64, alone bool) {
	switch l.Algorithm {
	case Fixed, Sliding:
		a.Running.Known += units
		return
	case Bucket:
		e := a.Entry
		e.Lack = BucketLack(e.Lack, e.At, now, l.Limit) + units*l.Length*1000
		if now > e.At {
			e.At = now
		}
		e.until = e.At + e.Lack/l.Limit
		e.limit = l.Limit
		e.burst = l.Burst
		return
	}
	logAdd(a.Entry.Log, now, name, first, first+units-1, alone)
	a.Entry.until = a.Entry.Log.newest + l.Length*1000
}

// Waits returns after how many whole seconds, at least 1, a client that stays silent has
// all of each limit again, and after how many it has room for a request, by what is known
// at a time in unix milliseconds. In a fixed window the first is when it ends, also for
// who has all of it now.
func Waits(limits []*Limit, accounts []*Account, cost, now int64) (resets, waits []int64) {
	resets = nil
	waits = nil
	for i, l := range limits {
		reset := Wait(l, accounts[i], Capacity(l), now)
		if l.Algorithm == Fixed {
			reset = accounts[i].Running.End*1000 - now
		}
		resets = append(resets, seconds(reset))
		if cost > Capacity(l) {
			waits = append(waits, resets[i])
		} else {
			waits = append(waits, seconds(Wait(l, accounts[i], cost, now)))
		}
	}
	return resets, waits
}

// seconds returns milliseconds in whole seconds, rounded up, at least 1.
func seconds(ms int64) int64 {
	if ms < 1 {
		return 1
	}
	return (ms + 999) / 1000
}

// Judge decides a request that costs so much by what was left of each limit before it: it
// passes where all have room for it. resets and waits are as of Waits. It counts nothing.
//
// The decision is that of the limit that binds: of those that refuse the one that lasts
// longest, else the one that has least left, and if two have, the one that lasts longer.
func Judge(lefts, resets, waits []int64, cost int64, d *Decision) {
	n := len(lefts)
	all := &Standings{Remaining: make([]int64, n), Reset: resets, Refused: make([]bool, n)}
	d.Several = all
	d.Allowed = fits(lefts, cost)
	binding := -1
	for i, left := range lefts {
		all.Refused[i] = left < cost
		if d.Allowed {
			left -= cost
		}
		if left < 0 {
			left = 0
		}
		all.Remaining[i] = left
		if all.Refused[i] == d.Allowed {
			continue
		}
		if binding < 0 || !d.Allowed && waits[i] > waits[binding] || d.Allowed && tighter(all, i, binding) {
			binding = i
		}
	}
	all.Binding = binding
	d.Remaining = all.Remaining[binding]
	d.Reset = resets[binding]
	if !d.Allowed {
		d.RetryAfter = waits[binding]
	}
}

// tighter reports whether limit i leaves less than limit j, or as much for longer.
func tighter(all *Standings, i, j int) bool {
	if all.Remaining[i] != all.Remaining[j] {
		return all.Remaining[i] < all.Remaining[j]
	}
	return all.Reset[i] > all.Reset[j]
}

// A Share says how much one gateway lets pass alone: see FixedAlone.
type Share struct {
	Own      int64 // units in a window; 0: Gateways says it
	Gateways int64 // less than 1 counts as 1
}

// TakeAlone is Take for one gateway without the store, which gives out its share of what
// is left. asked says that the store was told of this request and did not answer; a log
// was told its units under that name, beginning with the member first.
func TakeAlone(limits []*Limit, accounts []*Account, s *Share, cost, now int64, asked bool, name string, first int64, d *Decision) {
	lefts := make([]int64, len(limits))
	for i, l := range limits {
		lefts[i] = shareLeft(l, accounts[i], s, cost, now)
	}
	if fits(lefts, cost) {
		for i, l := range limits {
			addAlone(l, accounts[i], s, cost, now, asked, name, first)
		}
	}
	resets, waits := Waits(limits, accounts, cost, now)
	for i, l := range limits {
		if lefts[i] < cost {
			waits[i] = seconds(aloneWait(l, accounts[i], s, cost, now))
		}
	}
	Judge(lefts, resets, waits, cost, d)
}

// aloneWait returns after how many milliseconds the share of this gateway has room again.
func aloneWait(l *Limit, a *Account, s *Share, cost, now int64) int64 {
	if l.Algorithm == Sliding && s.Own == 0 && s.Gateways > 1 {
		return slidingAloneWait(l, a, s, cost, now)
	}
	until := now
	if cost <= Capacity(l) {
		until += Wait(l, a, cost, now)
	}
	next := now
	switch {
	case l.Algorithm == Fixed || l.Algorithm == Sliding:
		next = a.Running.End * 1000
	case s.Own > 0:
		next = a.Entry.spentEnd
	case l.Algorithm == Exact && s.Gateways > 1:
		next = now + l.Length*1000
	case l.Algorithm == Exact:
		next = a.Entry.Log.othersUntil
	case cost <= l.Burst && a.Entry.aloneAt > 0:
		next = now + BucketWait(BucketLack(a.Entry.alone, a.Entry.aloneAt, now, l.Limit), cost, l.Limit, l.Burst, l.Length*1000)
	}
	if next > until {
		until = next
	}
	return until - now
}

// slidingAloneWait is aloneWait for a sliding window that several gateways share.
func slidingAloneWait(l *Limit, a *Account, s *Share, cost, now int64) int64 {
	left, length := a.Running.End*1000-now, l.Length*1000
	alone := a.Running.Lost + a.Running.Unsettled
	if cost > l.Limit {
		return left // it never has room
	}
	// The share has room for the cost where so much is left of the limit: see share.
	needed := cost*(s.Gateways*((alone+cost-1)/cost)+1) - alone
	if needed <= l.Limit-a.Running.Known {
		return SlidingWait(a.Running.Known, slidingBefore(a.Before, s), l.Limit, needed, left, length)
	}
	return left + SlidingWait(0, slidingBefore(a.Running, s), l.Limit, cost, length, length)
}

// slidingBefore returns what stands in the window before, if all gateways let pass as much
// alone there as this one.
func slidingBefore(f *FixedCount, s *Share) int64 {
	alone := f.Lost + f.Unsettled
	if s.Own > 0 || s.Gateways < 2 || alone == 0 {
		return f.Known
	}
	return f.Known + ofAll(alone, s.Gateways-1)
}

// shareLeft returns how much of a limit this gateway may let pass alone.
func shareLeft(l *Limit, a *Account, s *Share, cost, now int64) int64 {
	left := Left(l, a, now)
	switch l.Algorithm {
	case Sliding:
		left = SlidingLeft(a.Running.Known, slidingBefore(a.Before, s), l.Limit, a.Running.End*1000-now, l.Length*1000)
		return share(left, a.Running.Lost+a.Running.Unsettled, a.Running.Spent, cost, s)
	case Fixed:
		return share(left, a.Running.Lost+a.Running.Unsettled, a.Running.Spent, cost, s)
	}
	e := a.Entry
	if e.spentEnd <= now || e.spentEnd > now+l.Length*1000 {
		e.spent = 0
		e.spentEnd = (now/(l.Length*1000) + 1) * l.Length * 1000
	}
	if l.Algorithm == Exact {
		return share(left-e.Log.others, e.Log.alone, e.spent, cost, s)
	}
	if s.Own > 0 {
		return share(left, 0, e.spent, cost, s)
	}
	if e.aloneAt > 0 {
		if e.aloneAt-now > l.Length*1000 {
			e.aloneAt = now
		}
		alone := BucketLeft(BucketLack(e.alone, e.aloneAt, now, l.Limit), l.Burst, l.Length*1000)
		if alone < left {
			return alone
		}
	}
	return left
}

// share returns the part of what is left that falls to one gateway, which has let pass so
// much alone since the store was last heard of, and so much in this window. It is rounded
// up to whole requests: else none would pass that costs more than the share.
func share(left, alone, spent, cost int64, s *Share) int64 {
	if s.Own > 0 {
		if s.Own-spent < left {
			return s.Own - spent
		}
		return left
	}
	if s.Gateways > 1 {
		return ((left+alone)/cost+s.Gateways-1)/s.Gateways*cost - alone
	}
	return left
}

// addAlone counts what passed alone.
func addAlone(l *Limit, a *Account, s *Share, units, now int64, asked bool, name string, first int64) {
	if l.Algorithm == Fixed || l.Algorithm == Sliding {
		f := a.Running
		f.Known += units
		f.Spent += units
		if asked {
			f.Lost += units
		} else {
			f.Unsettled += units
		}
		return
	}
	e := a.Entry
	e.spent += units
	if l.Algorithm == Exact {
		count(l, a, units, now, name, first, true)
		return
	}
	if e.aloneAt == 0 {
		e.alone = e.Lack
		e.aloneAt = e.At
	}
	e.alone = BucketLack(e.alone, e.aloneAt, now, l.Limit) + ofAll(units*l.Length*1000, s.Gateways)
	if now > e.aloneAt {
		e.aloneAt = now
	}
	count(l, a, units, now, "", 1, true)
}

// ofAll returns what a number of gateways take if each takes so much, at most 2^62.
func ofAll(parts, gateways int64) int64 {
	if gateways < 1 {
		return parts
	}
	if gateways > 1<<62/parts {
		return 1 << 62
	}
	return gateways * parts
}

// Admitted returns how many of a number of requests were counted, each of this cost, by
// what was left of each limit before the first of them.
func Admitted(lefts []int64, requests, cost int64) int64 {
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

// Clients returns up to count of those who have a sliding window, or an entry if counts is
// nil, at a time in unix milliseconds, for a walk over all that were there when it began,
// as FixedPart does.
func Clients(counts *FixedCounts, entries *Entries, now int64, count, next int) (clients []string, after int) {
	clients = nil
	if counts == nil {
		part, after := EntriesPart(entries, count, next)
		for _, e := range part {
			if e.until > now {
				clients = append(clients, e.client)
			}
		}
		return clients, after
	}
	// What stands in the ended window comes last in this order.
	old := counts.previous.order
	total := len(old) + len(counts.current.order)
	if next == 0 || next > total {
		next = total
	}
	from := next - count
	if from < 0 {
		from = 0
	}
	for i := from; i < next; i++ {
		if i < len(old) {
			clients = append(clients, old[i].client)
		} else {
			clients = append(clients, counts.current.order[i-len(old)].client)
		}
	}
	if from == 0 {
		return clients, -1
	}
	return clients, from
}

// Running returns up to count clients with their accounts in the running window, or their
// entries if counts is nil, at a time in unix milliseconds, for a walk as of FixedPart. It
// makes none.
func Running(counts *FixedCounts, entries *Entries, now int64, count, next int) (clients []string, accounts []*Account, after int) {
	clients = nil
	accounts = nil
	if counts == nil {
		part, after := EntriesPart(entries, count, next)
		for _, e := range part {
			if e.until > now && e.Account != nil {
				clients = append(clients, e.client)
				accounts = append(accounts, e.Account)
			}
		}
		return clients, accounts, after
	}
	part, after := FixedPart(counts, now/1000, count, next)
	for _, f := range part {
		a := f.Account
		if a == nil && !counts.both {
			a = &Account{Running: f}
		}
		if a != nil {
			clients = append(clients, f.client)
			accounts = append(accounts, a)
		}
	}
	return clients, accounts, after
}

// Forget drops what is known of a client: its counts, or its entry if counts is nil. Who
// uses them goes on with what nobody finds any more.
func Forget(counts *FixedCounts, entries *Entries, client string) {
	if counts == nil {
		if e := entries.Clients[client]; e != nil {
			entryRemove(entries, e)
		}
		return
	}
	for _, w := range []*fixedWindow{counts.current, counts.previous} {
		if f := w.counts[client]; f != nil {
			fixedRemove(w, f)
		}
	}
}

// Apart returns an account for the same client and windows that nothing is known of, and
// that nobody finds: whatever is noted in it is forgotten with it.
func Apart(a *Account) *Account {
	if a.Entry == nil {
		apart := &Account{Running: FixedApart(a.Running)}
		if a.Before != nil {
			apart.Before = FixedApart(a.Before)
		}
		return apart
	}
	e := &Entry{Key: a.Entry.Key, client: a.Entry.client}
	if a.Entry.Log != nil {
		e.Log = &Log{}
	}
	return &Account{Entry: e}
}
