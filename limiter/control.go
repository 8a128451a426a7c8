package limiter

import (
	"context"
	"encoding/json"
	"fmt"
	mathrand "math/rand"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gatequota/gatequota/control"
	"github.com/gatequota/gatequota/journal"
	"github.com/gatequota/gatequota/resp"
	"github.com/gatequota/gatequota/window"
)

const (
	// controlEvery is the longest time between two looks at what the operator has set for
	// a scope. It is shortened by up to a quarter, at random, so that gateways do not come
	// together.
	controlEvery = 2 * time.Second
	// reportedFor is how long a gateway's report is kept at least, and cleanEvery the
	// time between two times that older ones are removed.
	reportedFor = time.Minute
	cleanEvery  = time.Minute
	// forgetPart is how many clients are looked at before the requests get their turn.
	forgetPart = 64
)

// ControlScript reads what an operator has set for a scope, and leaves there what a gateway
// reports of itself. It answers the SHA-1 digest of the fields, and behind a blank the
// fields themselves, unless they are those that the gateway has: names and values in
// turn, as a list in JSON, sorted by name. It does not change them, unless the store has
// lost changes that the gateway knows of: then it puts back what the gateway has.
// It counts no requests, so it stands here and not in window; it is exported for tests that
// try it on real servers.
//
//	KEYS[1]  the hash of the scope: see package control
//	KEYS[2]  the reports, a hash by gateway
//	ARGV[1]  the gateway
//	ARGV[2]  its report
//	ARGV[3]  the seconds for which reports are kept
//	ARGV[4]  the digest of what it has
//	ARGV[5]  the unix seconds before which reports are removed, and those that are as far
//	         ahead of now as that is behind; 0 for none
//	ARGV[6]  the version that it has, and
//	ARGV[7]  the fields, to be put back if the store has an older version; empty: not now
const ControlScript = `local function read()
  local names, values = {}, {}
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    names[#names + 1] = all[i]
    values[all[i]] = all[i + 1]
  end
  table.sort(names)
  local list = {}
  for _, name in ipairs(names) do
    list[#list + 1] = name
    list[#list + 1] = values[name]
  end
  return #list == 0 and '[]' or cjson.encode(list)
end
if redis.call('HLEN', KEYS[1]) > 4096 then
  return redis.error_reply('CONTROL has more than 4096 fields')
end
if ARGV[7] ~= '' then
  local version = tonumber(redis.call('HGET', KEYS[1], 'version') or 0) or 0
  if version < tonumber(ARGV[6]) then
    local list = cjson.decode(ARGV[7])
    redis.call('DEL', KEYS[1])
    for i = 1, #list, 2 do
      redis.call('HSET', KEYS[1], list[i], list[i + 1])
    end
  end
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[2], ARGV[3])
local before = tonumber(ARGV[5])
if before > 0 then
  local all = redis.call('HGETALL', KEYS[2])
  for i = 1, #all, 2 do
    local at = tonumber(string.match(all[i + 1], '"at":(%d+)') or 0)
    if at < before or at > before + 2 * tonumber(ARGV[3]) then
      redis.call('HDEL', KEYS[2], all[i])
    end
  end
end
local text = read()
local digest = redis.sha1hex(text)
if digest == ARGV[4] then
  return digest
end
if #text > 900000 then
  return redis.error_reply('CONTROL is larger than 900000 bytes')
end
return digest .. ' ' .. text
`

var controlScript = resp.NewScript(ControlScript)

// noFields and noDigest are what the script answers where nothing is set.
const (
	noFields = "[]"
	noDigest = "97d170e1550eee4afc0af065b78cda302a97674c" // SHA-1 of it
)

// A Control is what an operator has changed of a scope while it runs, as this gateway
// knows it. It belongs to the process, and outlives a reload.
type Control struct {
	// Generation changes with what is in force; 0: nothing is. It is exported, and no
	// function, because every request reads it whose limiter does not yield.
	Generation atomic.Int64

	inTheWay bool // something is in force; guarded by the ledger's mutex

	name   string // of the scope
	head   string // of its keys
	ledger *ledger
	opened time.Time

	mu       sync.Mutex // guards what follows
	store    *store
	users    []context.Context
	describe func(version, at int64) string
	ended    func()
	due      time.Time // when it is to be read again
	cleaned  time.Time // when old reports were last removed
	heard    bool      // the store answered when it was last to be read
	readAt   time.Time // when it was last read; zero: never
	digest   string    // of the fields
	fields   string    // as they were read
	state    *control.State
	inForce  *control.State           // nil: nothing is
	expires  int64                    // when that changes by itself, in unix seconds; 0: never
	obeyed   map[string]control.Epoch // by hash; "" is the scope's
	said     map[string]bool          // problems that were logged
	count    int64                    // generations made
}

var (
	controlsMu sync.Mutex
	controls   = map[string]*Control{} // by store and scope
)

// OpenControl returns the control of a scope in a store, always the same one, and has it
// read as long as a context that was given for it is not done. describe returns what this
// gateway reports of itself, given the version that it obeys and the time in unix seconds
// of the store; ended is called when what was in force is no more. It opens no connection:
// the store's keeper does.
func OpenControl(ctx context.Context, s *Settings, describe func(c *Control, version, at int64) string, ended func(c *Control)) *Control {
	name := s.Store.Network + " " + s.Store.Address + " " + strconv.Itoa(s.Store.DB)
	l := openLedger(name)
	st := openStore(s.Store, l)
	head := s.Store.KeyPrefix + ":" + s.Scope
	controlsMu.Lock()
	c := controls[name+" "+head]
	if c == nil {
		c = &Control{name: s.Scope, head: head, ledger: l, opened: time.Now(), obeyed: map[string]control.Epoch{}, said: map[string]bool{}}
		c.state, _ = control.Parse(nil)
		c.digest, c.fields = noDigest, noFields
		controls[name+" "+head] = c
	}
	controlsMu.Unlock()
	c.mu.Lock()
	c.store = st
	c.describe = func(version, at int64) string { return describe(c, version, at) }
	c.ended = func() { ended(c) }
	var users []context.Context
	for _, u := range c.users {
		if u.Err() == nil && u != ctx {
			users = append(users, u)
		}
	}
	c.users = append(users, ctx)
	c.mu.Unlock()
	l.mu.Lock()
	if !st.kept {
		startKeeper(st)
	}
	l.mu.Unlock()
	return c
}

// InForce returns what an operator has set and is in force now, nil if nothing is, and the
// generation that it is. It is not to be changed.
func InForce(c *Control) (*control.State, int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inForce, c.Generation.Load()
}

// never is what a limiter yields to that gives way to nothing.
var never bool

// Yield has a limiter decide nothing while something is in force that c says, which must
// be of the same store: the way of each decision is Controlled then, and whoever asked goes
// by InForce. So a request pays for that with a look while the ledger is locked anyway. It
// must come before any request.
func Yield(l *Limiter, c *Control) {
	l.yields = &c.inTheWay
}

// YieldOne is Yield for TakeOne.
func YieldOne(q *Several, c *Control) {
	q.yields = &c.inTheWay
}

// yield leaves a decision to others. Who calls it holds the ledger's mutex, which it
// gives back.
func yield(l *ledger, d *window.Decision) {
	l.mu.Unlock()
	d.Way = Controlled
}

// ControlRead returns the scope of a control, the version that is obeyed, and the time
// since it was last read: since it was first wanted, with never, if that is so.
func ControlRead(c *Control) (scope string, version int64, age time.Duration, never bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readAt.IsZero() {
		return c.name, c.state.Version, time.Since(c.opened), true
	}
	return c.name, c.state.Version, time.Since(c.readAt), false
}

// ControlTime returns the time of the store of a control, in unix seconds.
func ControlTime(c *Control) int64 {
	c.mu.Lock()
	s := c.store
	c.mu.Unlock()
	return storeTime(s, time.Now()) / second
}

// complaints is how many fields with their values are named at most that cannot be obeyed,
// in a scope and while the process runs.
const complaints = 100

// Complain logs, once for each value, that a field of a control cannot be obeyed.
func Complain(c *Control, field, value, want string) {
	text := fmt.Sprintf("the field %s is ignored: %s: %s", short(field), short(value), want)
	c.mu.Lock()
	news := !c.said[text] && len(c.said) < complaints
	if news {
		c.said[text] = true
	}
	last := len(c.said) == complaints
	c.mu.Unlock()
	if !news {
		return
	}
	tellScope(c.name, text)
	if last {
		tellScope(c.name, "what else is ignored is not named any more")
	}
}

// short quotes a text that somebody wrote into the store.
func short(text string) string {
	if len(text) > 100 {
		return strconv.Quote(text[:100]) + "..."
	}
	return strconv.Quote(text)
}

// controlsOf returns the controls that are read from a store by the configuration in force.
func controlsOf(s *store) []*Control {
	controlsMu.Lock()
	defer controlsMu.Unlock()
	var found []*Control
	for _, c := range controls {
		c.mu.Lock()
		used := false
		for _, u := range c.users {
			used = used || u.Err() == nil
		}
		if used && c.store == s {
			found = append(found, c)
		}
		c.mu.Unlock()
	}
	return found
}

// obey reads the controls of a store that are due, or all of them, and sees to it that what
// is over is no more in force. It reports whether the store answered.
func obey(s *store, all bool) bool {
	heard := true
	for _, c := range controlsOf(s) {
		obeyOne(c, s, all)
		c.mu.Lock()
		heard = heard && c.heard
		c.mu.Unlock()
	}
	return heard
}

// obeyOne is obey for one control.
func obeyOne(c *Control, s *store, now bool) {
	defer disobeyed(c, s)
	c.mu.Lock()
	c.heard = true
	due := now || !time.Now().Before(c.due)
	over := c.expires > 0 && storeTime(s, time.Now())/second >= c.expires
	c.mu.Unlock()
	if over {
		enforce(c, s)
	}
	if due {
		readControl(c, s)
	}
}

// disobeyed ends a panic: the keeper has more to do than this.
func disobeyed(c *Control, s *store) {
	if r := recover(); r != nil {
		c.mu.Lock()
		c.due = time.Now().Add(controlEvery)
		c.mu.Unlock()
		lasting(s, "control "+c.head, fmt.Sprintf("what is set for the scope %s cannot be obeyed: %v", c.name, panicked(r)))
	}
}

// What came of asking a store for a control.
const (
	unchanged = iota
	changed
	lostSome // the store has lost changes, and was not told to put them back
	refused  // by the store
	unheard  // of the store
)

// readControl reads a control, and reports at once what has become of a change.
func readControl(c *Control, s *store) {
	came := askControl(c, s, false)
	if came == lostSome {
		came = askControl(c, s, true)
	}
	if came == changed {
		came = askControl(c, s, false)
	}
	pause := controlEvery - time.Duration(mathrand.Int63n(int64(controlEvery/4)))
	if came == unheard {
		pause = 0 // the keeper waits as it is
	}
	c.mu.Lock()
	c.due = time.Now().Add(pause)
	c.heard = came != unheard
	c.mu.Unlock()
}

// askControl asks the store once, and returns what came of it. It puts back what the store
// has lost if it may.
func askControl(c *Control, s *store, restore bool) int {
	// By the store's clock, which is known when there is a connection.
	err := connectFirst(s)
	if err != nil {
		return unheardOf(s, err)
	}
	now := time.Now()
	at := storeTime(s, now) / second
	c.mu.Lock()
	version, digest, fields, describe := c.state.Version, c.digest, "", c.describe
	before := int64(0)
	if now.Sub(c.cleaned) >= cleanEvery {
		before = at - int64(reportedFor)/second
		c.cleaned = now
	}
	if restore {
		fields = c.fields
	}
	c.mu.Unlock()
	reply, err := callReply(s, controlScript, []string{c.head + ":control", c.head + ":reports"}, []string{
		gatewayID, describe(version, at), strconv.FormatInt(int64(reportedFor)/second, 10), digest,
		strconv.FormatInt(before, 10), strconv.FormatInt(version, 10), fields,
	})
	if err != nil {
		return unheardOf(s, err)
	}
	if reply.Kind == '-' {
		countError(s, classOf(reply.Text, nil))
		lasting(s, "control "+c.head, fmt.Sprintf("refuses to say what is set for the scope %s (%s); what was set before stays", c.name, controlReason(c.head, reply.Text)))
		return refused
	}
	answered(s)
	return takeControl(c, s, reply.Text, restore)
}

// unheardOf notes that a store could not be asked.
func unheardOf(s *store, err error) int {
	if err != errCrowded {
		failed(s, "", "", err)
	}
	return unheard
}

// controlReason is reason for what is no count.
func controlReason(head, refusal string) string {
	switch resp.Word(refusal) {
	case "WRONGTYPE":
		return "the key " + head + ":control or " + head + ":reports holds something else: delete it"
	case "CONTROL":
		return "it has more than 4096 fields, or more than 900000 bytes"
	}
	return reason(refusal, nil)
}

// takeControl takes over what the store says of a control.
func takeControl(c *Control, s *store, text string, restored bool) int {
	digest, list, more := strings.Cut(text, " ")
	c.mu.Lock()
	known := c.state.Version
	same := !more && digest == c.digest
	if same {
		c.readAt = time.Now()
	}
	c.mu.Unlock()
	if same {
		return unchanged
	}
	var fields []string
	if json.Unmarshal([]byte(list), &fields) != nil {
		lasting(s, "control "+c.head, fmt.Sprintf("says something that cannot be read of what is set for the scope %s; what was set before stays", c.name))
		return refused
	}
	state, problems := control.Parse(fields)
	if state.Version < known && !restored {
		tellScope(c.name, fmt.Sprintf("the version went back from %d to %d: what this gateway has is put back", known, state.Version))
		return lostSome
	}
	for _, p := range problems {
		Complain(c, p.Field, p.Value, p.Want)
	}
	if state.Version != known {
		tellScope(c.name, "version "+strconv.FormatInt(state.Version, 10)+" is obeyed")
	}
	c.mu.Lock()
	c.readAt = time.Now()
	c.digest = digest
	c.fields = list
	c.state = state
	c.mu.Unlock()
	enforce(c, s)
	obeyEpochs(c, s, state)
	return changed
}

// enforce finds what is in force now, and has the requests obey it.
func enforce(c *Control, s *store) {
	c.mu.Lock()
	state := c.state
	c.mu.Unlock()
	now := storeTime(s, time.Now()) / second
	inForce, expires := control.InForce(state, now)
	hold := control.Holds(state, now)
	if hold != nil && (expires == 0 || hold.Last < expires) {
		expires = hold.Last
	}
	setHold(c, hold)
	c.mu.Lock()
	was := c.inForce
	c.inForce = inForce
	c.expires = expires
	generation := int64(0)
	if inForce != nil {
		c.count++
		generation = c.count
	}
	c.Generation.Store(generation)
	c.ledger.mu.Lock()
	c.inTheWay = inForce != nil
	c.ledger.mu.Unlock()
	ended := c.ended
	c.mu.Unlock()
	tellControl(c.name, was, inForce)
	if inForce == nil && was != nil {
		ended()
	}
}

// setHold sets of whom nothing is remembered. Their requests are counted in the store, and
// what it answers is noted nowhere, so that no later call can tell it to a store whose keys
// were deleted meanwhile. What passes without the store is noted: it is all that there is.
func setHold(c *Control, h *control.Hold) {
	c.ledger.mu.Lock()
	if h == nil {
		delete(c.ledger.holds, c.head)
	} else {
		c.ledger.holds[c.head] = h
	}
	c.ledger.mu.Unlock()
	for _, t := range tablesIn(c.ledger) {
		if t.scope == c.head {
			t.ledger.mu.Lock()
			t.hold = h
			t.ledger.mu.Unlock()
		}
	}
}

// held reports whether nothing is remembered of a client at a time in unix seconds. The
// table has a hold. Who calls it holds the ledger's mutex.
func held(t *table, client string, unix int64) bool {
	h := t.hold
	if unix >= h.Last {
		return false
	}
	if h.All > 0 && control.Held(h.All, unix) {
		return true
	}
	return len(h.Clients) > 0 && control.Held(h.Clients[hexDigest(t, client)], unix)
}

// tellScope writes a line about what an operator has set for a scope.
func tellScope(scope, line string) {
	journal.Error(journal.Control, "scope "+scope+": control: "+line, "scope", scope)
}

// tellControl logs what concerns all clients of a scope, when it changes.
func tellControl(scope string, was, is *control.State) {
	if was == nil {
		was = &control.State{}
	}
	if is == nil {
		is = &control.State{}
	}
	if was.Off != is.Off {
		if is.Off {
			tellScope(scope, "switched off, everything passes")
		} else {
			tellScope(scope, "switched on again")
		}
	}
	if was.DryRun != is.DryRun {
		words := map[string]string{"true": "on", "false": "off", "": "as the options say"}
		tellScope(scope, "dry run: "+words[is.DryRun])
	}
}

// obeyEpochs forgets what new epochs say. When it returns, no call is under way that could
// tell the store of it.
func obeyEpochs(c *Control, s *store, state *control.State) {
	c.mu.Lock()
	obeyed := map[string]control.Epoch{"": state.Epoch}
	all := state.Epoch.Version > 0 && state.Epoch != c.obeyed[""]
	hashes := map[string]bool{}
	for _, client := range state.Clients {
		obeyed[client.Hash] = client.Epoch
		if client.Epoch.Version > 0 && client.Epoch != c.obeyed[client.Hash] {
			hashes[client.Hash] = true
		}
	}
	c.obeyed = obeyed
	c.mu.Unlock()
	if !all && len(hashes) == 0 {
		return
	}
	for _, t := range tablesIn(c.ledger) {
		if t.scope != c.head {
			continue
		}
		if all {
			t.ledger.mu.Lock()
			empty(t)
			t.ledger.mu.Unlock()
			continue
		}
		forgetIn(t, hashes)
	}
	// The report waits for its turn behind what was written here. Others who log in at the
	// same store in another way have connections of their own.
	for _, other := range storesOf(c.ledger) {
		if other != s {
			other.turn.Lock()
			//lint:ignore SA2001 to have waited is all
			other.turn.Unlock()
		}
	}
}

// forgetIn forgets the clients of these digests in a table. It looks at each client, in
// small parts, since digests are not what they are found by.
func forgetIn(t *table, hashes map[string]bool) {
	for next := 0; next >= 0; {
		t.ledger.mu.Lock()
		now := int64(time.Since(Began)) / millisecond
		if t.clock != nil {
			now += *t.clock / millisecond
		}
		clients, after := window.Clients(t.counts, t.entries, now, forgetPart, next)
		t.ledger.mu.Unlock()
		giveWay()
		next = after
		for _, client := range clients {
			if hashes[hexDigest(t, client)] {
				t.ledger.mu.Lock()
				window.Forget(t.counts, t.entries, client)
				t.ledger.mu.Unlock()
			}
		}
	}
}

// connectFirst has a connection opened where there is none.
func connectFirst(s *store) error {
	if resp.Connected(s.link) {
		return nil
	}
	deadline := time.Now().Add(s.timeout)
	s.turn.Lock()
	defer s.turn.Unlock()
	return connectAside(s, deadline)
}

// callReply is callAside for a script that answers with a text.
func callReply(s *store, script *resp.Script, keys, args []string) (resp.Reply, error) {
	deadline := time.Now().Add(s.timeout)
	s.turn.Lock()
	defer s.turn.Unlock()
	err := connectAside(s, deadline)
	if err != nil {
		return resp.Reply{}, err
	}
	reply, err := resp.EvalReply(s.conn, deadline, script, keys, args)
	if !s.conn.Usable {
		s.conn = nil
	}
	return reply, err
}
