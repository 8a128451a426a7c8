package gatequota

import (
	"encoding/hex"
	"fmt"
	"net/textproto"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/reply"
	"github.com/gatequota/gatequota/rule"
	"github.com/gatequota/gatequota/source"
	"github.com/gatequota/gatequota/tally"
	"github.com/gatequota/gatequota/window"
)

// setting is what became of the options: checked, and never changed after that.
type setting struct {
	policies []*policy // the rules in their order, and behind them what applies to the rest
	guard    *guard    // nil: none
	scope    string
	maxLog   int64            // the highest limit of a sliding log
	common   limiter.Settings // what the limiters of all policies have in common
	secret   string           // for digests of clients; "": none
	summary  string           // for the log, without secrets

	metrics  *watch // nil: none
	status   *watch // nil: none
	control  bool
	refusals int64 // of how many refused requests one is logged; 0: none
	json     bool  // the form of the log
}

// guard is what all clients together may make of requests on this gateway.
type guard struct {
	limit  int64
	window int64 // seconds
}

// policy is a rule: which requests it is for, who is counted and by which limits.
type policy struct {
	name           string // "": what applies where no rule does
	title          string // for the log, with the name of the middleware
	match          *rule.Match
	exempt         *rule.Exempt      // nil: nobody
	exemptBy       *source.Criterion // by which the addresses of exempt are found
	criterion      source.Criterion
	onStoreFailure string
	algorithm      window.Algorithm
	cost           int64
	dryRun         bool
	ordinary       *tier
	plans          *plans           // nil: none
	values         map[string]*tier // overrides by the client's identity
	hashes         map[string]*tier // overrides by the digest of it, as keys have it
	personal       *personal        // nil: nothing was set for single clients since
	tally          *tally.Tally
	sampler        *sampler // of its refusals; nil: none is logged

	options *RuleConfig    // what it was made of
	told    reply.Settings // what its answers have in common
}

// plans are tiers by what a request says of its client's plan.
type plans struct {
	header    string // canonical; "": by claim
	claim     string
	values    map[string]*tier
	otherwise *tier
}

// tier is a set of limits with what its clients are told. The tiers of one policy differ
// in how high their limits are alone, and share their counts.
type tier struct {
	limits []limit
	fields *reply.Fields

	// These are made by New: one where there is one limit and a request costs 1.
	one     *limiter.Limiter
	several *limiter.Several
}

// limit is one limit of a tier.
type limit struct {
	name   string // of its count, as of limiter.Settings
	own    string // of it among several
	limit  int64
	window int64 // seconds
	burst  int64 // of a bucket; 0: none
	given  bool  // the burst was, and is not what the limit says
}

// algorithms are the ways to count, by the names that options have for them.
var algorithms = map[string]window.Algorithm{
	"fixed-window": window.Fixed, "sliding-window": window.Sliding, "sliding-log": window.Exact, "token-bucket": window.Bucket,
}

const (
	maxWindow  = 366 * 24 * time.Hour
	maxClients = 1 << 24
	maxLimits  = 8 // on one request
)

var (
	scopePattern  = regexp.MustCompile(`^[A-Za-z0-9@._-]+$`)
	prefixPattern = regexp.MustCompile(`^[A-Za-z0-9@._:-]+$`)
	mediaPattern  = regexp.MustCompile(`^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( *;[ -~]*)?$`)
	tokenPattern  = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	hashPattern   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	headerStyles  = map[string]reply.Style{"both": reply.Both, "ietf": reply.IETF, "legacy": reply.Legacy, "none": reply.None}
)

// takenNames are headers of an answer whose meaning is not ours to change.
var takenNames = map[string]bool{
	"Age": true, "Allow": true, "Alt-Svc": true, "Cache-Control": true, "Connection": true, "Content-Disposition": true, "Content-Encoding": true,
	"Content-Length": true, "Content-Range": true, "Content-Security-Policy": true, "Content-Type": true, "Date": true, "Etag": true, "Expires": true,
	"Grpc-Message": true, "Grpc-Status": true,
	"Keep-Alive": true, "Last-Modified": true, "Link": true, "Location": true, "Proxy-Authenticate": true, "Proxy-Connection": true,
	"Ratelimit": true, "Ratelimit-Policy": true, "Retry-After": true, "Server": true, "Set-Cookie": true, "Strict-Transport-Security": true, "Te": true,
	"Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "Vary": true, "Www-Authenticate": true,
	"X-Content-Type-Options": true, "X-Ratelimit-Dry-Run": true,
	"X-Ratelimit-Limit": true, "X-Ratelimit-Remaining": true, "X-Ratelimit-Reset": true,
}

// check turns the options of the middleware called name into a setting, or says
// which option is wrong, what it says and what would be right. It does not change
// config, which belongs to all routers of the middleware.
func check(config *Config, name string) (*setting, error) {
	o := &options{names: map[string]bool{}, whence: config.IPStrategy}
	o.noUnknown(config)
	o.maxLog = o.integer("maxLog", or(config.MaxLog, 10000), 1, 1000000)
	if config.IPStrategy != nil {
		o.address("ipStrategy.", config.IPStrategy, &source.Criterion{}) // also where nobody needs it
	}
	s := &setting{scope: o.scope(config, name), maxLog: o.maxLog}
	shared := o.choice("mode", or(config.Mode, "shared"), "shared", "local") == "shared"
	base := &RuleConfig{
		Limit: config.Limit, Window: config.Window, Limits: config.Limits, Algorithm: config.Algorithm, Burst: config.Burst, Cost: config.Cost,
		SourceCriterion: &config.SourceCriterion, OnStoreFailure: config.OnStoreFailure, Exempt: &config.Exempt,
		Plans: &config.Plans, Overrides: config.Overrides, DryRun: config.DryRun,
	}
	o.keySecret = o.secret("valkey.keySecret", config.Valkey.KeySecret, config.Valkey.KeySecretFile)
	told := o.told(config)
	top := o.policy("", base, nil, s.scope, told)
	for i := range config.Rules {
		path := "rules[" + strconv.Itoa(i) + "]."
		s.policies = append(s.policies, o.policy(path, &config.Rules[i], top, s.scope, told))
	}
	s.policies = append(s.policies, top)
	s.guard = o.guard(&config.GatewayLimit, s.policies)
	s.common = limiter.Settings{
		Scope:      s.scope,
		MaxClients: int(o.integer("maxClients", or(config.MaxClients, 65536), 1, maxClients)),
	}
	o.watching(s, config, shared)
	store := o.store(&config.Valkey, shared)
	if o.err == nil {
		s.common.FallbackLimit, s.common.FallbackGateways = o.fallback(&config.Fallback, lowest(top.ordinary.limits))
		for _, p := range s.policies {
			if config.Fallback.Limit != nil && p.cost > s.common.FallbackLimit {
				o.refuse("fallback.limit", strconv.FormatInt(s.common.FallbackLimit, 10), "no request would pass that costs "+strconv.FormatInt(p.cost, 10))
			}
		}
	}
	if o.err != nil {
		return nil, o.err
	}
	s.secret = store.KeySecret
	if shared {
		s.common.Store = store
	}
	s.summary = summarize(s, config)
	return s, nil
}

// scope returns whose count it is.
func (o *options) scope(config *Config, name string) string {
	scope := name
	if config.Scope != nil {
		scope = o.text("scope", config.Scope)
	}
	if o.err == nil && !scopePattern.MatchString(scope) {
		if config.Scope == nil {
			o.refuse("scope", scope, "the middleware's name cannot serve as one; set a scope out of letters, digits and @._-")
		}
		o.refuse("scope", scope, "only letters, digits and @._- are allowed, and at least one of them")
	}
	return scope
}

// told is what the answers of all policies have in common.
type told struct {
	reply    reply.Settings
	decision *string // the header that tells it; nil: what is usual
}

func (o *options) told(config *Config) *told {
	t := &told{}
	t.reply.Style = headerStyles[o.choice("headers", or(config.Headers, "both"), "both", "ietf", "legacy", "none")]
	t.reply.Expose = o.boolean("exposeHeaders", config.ExposeHeaders)
	if config.DecisionHeader != nil {
		decision := o.text("decisionHeader", config.DecisionHeader)
		if decision != "" && !tokenPattern.MatchString(decision) {
			o.refuse("decisionHeader", decision, "it must be the name of a header, or empty to send none")
		}
		canonical := textproto.CanonicalMIMEHeaderKey(decision)
		if takenNames[canonical] || strings.HasPrefix(canonical, "Access-Control-") {
			o.refuse("decisionHeader", decision, "this header means something else")
		}
		t.decision = &decision
	}
	r := &config.Response
	t.reply.Status = int(o.integer("response.status", or(r.Status, 429), 400, 599))
	t.reply.Body = o.text("response.body", r.Body)
	t.reply.ContentType = o.text("response.contentType", r.ContentType)
	if t.reply.ContentType != "" {
		if !mediaPattern.MatchString(t.reply.ContentType) {
			o.refuse("response.contentType", t.reply.ContentType, "a media type is wanted, such as text/html; charset=utf-8")
		}
		if t.reply.Body == "" {
			o.refuse("response.contentType", t.reply.ContentType, "it is that of response.body, which is missing")
		}
	}
	return t
}

// policy checks a rule whose options stand under path. What it does not set it has from
// top; without top it is that itself.
func (o *options) policy(path string, r *RuleConfig, top *policy, scope string, t *told) *policy {
	p := &policy{options: r, match: &rule.Match{}, cost: 1, onStoreFailure: limiter.Local}
	limited, apart := true, true // limits and counts of its own
	if top != nil {
		*p = *top
		p.options = r
		p.match = &rule.Match{}
		p.name = o.name(path+"name", r.Name, o.names)
		o.conditions(path, r, p.match)
		limited = r.Limit != nil || r.Window != nil || len(r.Limits) > 0 || r.Algorithm != nil || r.Burst != nil
		// Under the same names, other clients would be taken for those of the top level.
		apart = limited || r.SourceCriterion != nil
	}
	if r.Algorithm != nil {
		p.algorithm = algorithms[o.choice(path+"algorithm", r.Algorithm, "fixed-window", "sliding-window", "sliding-log", "token-bucket")]
	}
	if r.SourceCriterion != nil {
		p.criterion = o.criterion(path+"sourceCriterion.", r.SourceCriterion, o.whence)
	}
	if r.Exempt != nil {
		p.exempt = o.exempt(path+"exempt.", r.Exempt)
		p.exemptBy = &p.criterion
	}
	if r.OnStoreFailure != nil {
		p.onStoreFailure = o.choice(path+"onStoreFailure", r.OnStoreFailure, limiter.Local, limiter.Closed, limiter.Open)
	}
	if r.DryRun != nil {
		p.dryRun = o.boolean(path+"dryRun", r.DryRun)
	}
	var limits []limit
	if apart {
		limits = o.limits(path, r, top, p.algorithm)
	} else if top.ordinary != nil {
		limits = top.ordinary.limits
	}
	if r.Cost != nil {
		p.cost = o.integer(path+"cost", r.Cost, 1, window.MaxCount)
	}
	for _, l := range limits {
		name, most := "limit", l.limit
		if p.algorithm == window.Bucket {
			name = "burst"
			most = l.burst
		}
		if o.err == nil && p.cost > most {
			want := "a request may cost no more than the " + name + ", which is " + strconv.FormatInt(most, 10)
			if r.Cost == nil {
				want = "this is the cost of the top level, and " + want
			}
			o.refuse(path+"cost", strconv.FormatInt(p.cost, 10), want)
		}
	}
	if o.err != nil {
		return p
	}
	p.told = t.reply
	p.told.DryRun = p.dryRun
	p.told.DecisionHeader = "X-RateLimit-Decision"
	if t.decision != nil {
		p.told.DecisionHeader = *t.decision
	} else if p.onStoreFailure == limiter.Open {
		p.told.DecisionHeader = ""
	}
	p.ordinary = newTier(p, scope, limits)
	p.plans = nil
	switch {
	case r.Plans != nil:
		p.plans = o.plans(path+"plans.", r.Plans, p, scope)
	case !limited:
		p.plans = o.plans("plans.", top.options.Plans, p, scope)
	}
	p.values = nil
	p.hashes = nil
	switch {
	case len(r.Overrides) > 0:
		o.overrides(path, r.Overrides, p, scope)
	case !apart:
		o.overrides("", top.options.Overrides, p, scope)
	}
	return p
}

// conditions checks when a rule applies.
func (o *options) conditions(path string, r *RuleConfig, m *rule.Match) {
	set := 0
	if r.Path != nil {
		set++
		o.wrap(path+"path", rule.SetPath(m, o.text(path+"path", r.Path)))
	}
	if r.PathPrefix != nil {
		set++
		o.wrap(path+"pathPrefix", rule.SetPathPrefix(m, o.text(path+"pathPrefix", r.PathPrefix)))
	}
	if r.PathRegex != nil {
		set++
		o.wrap(path+"pathRegex", rule.SetPathRegex(m, o.text(path+"pathRegex", r.PathRegex)))
	}
	if r.Methods != nil {
		set++
		o.wrap(path+"methods", rule.SetMethods(m, o.list(path+"methods", r.Methods)))
	}
	if r.Host != nil {
		set++
		o.wrap(path+"host", rule.SetHost(m, o.text(path+"host", r.Host)))
	}
	if r.Header.Name != nil || r.Header.Value != nil {
		set++
		o.wrap(path+"header", rule.SetHeader(m, o.text(path+"header.name", r.Header.Name), o.given(path+"header.value", r.Header.Value)))
	}
	if set == 0 {
		o.fail(fmt.Errorf("option %s has no condition: set at least one of path, pathPrefix, pathRegex, methods, host and header", strings.TrimSuffix(path, ".")))
	}
}

// limits checks the limits of a policy that counts apart.
func (o *options) limits(path string, r *RuleConfig, top *policy, algorithm window.Algorithm) []limit {
	name, base := "", r
	names := o.names // those of the top level and of the rules are in one name space
	if top != nil {
		base = top.options
		name = o.text(path+"name", r.Name)
		names = map[string]bool{}
	}
	list := r.Limits
	if len(list) == 0 && r.Limit == nil && r.Window == nil && r.Burst == nil {
		list = base.Limits
	}
	if len(list) == 0 {
		l := limit{name: name, limit: o.limit(path+"limit", or(r.Limit, base.Limit)), window: o.window(path+"window", or(r.Window, base.Window))}
		burst := r.Burst
		if r.Limit == nil && algorithm == window.Bucket {
			burst = or(r.Burst, base.Burst) // that of another limit would be none of this one
		}
		o.burst(path+"burst", burst, algorithm, &l)
		o.countable(path, algorithm, &l)
		return []limit{l}
	}
	if r.Limit != nil || r.Window != nil || r.Burst != nil {
		o.fail(fmt.Errorf("option %slimits: limit, window or burst is set beside it; put them into the list", path))
	}
	if len(list) > maxLimits {
		o.refuse(path+"limits", strconv.Itoa(len(list))+" entries", "up to "+strconv.Itoa(maxLimits)+" limits are supported")
	}
	var limits []limit
	for i := range list {
		l := &list[i]
		at := path + "limits[" + strconv.Itoa(i) + "]."
		own := o.name(at+"name", l.Name, names)
		full := own
		if name != "" {
			full = name + ":" + own
		}
		each := limit{name: full, own: own, limit: o.limit(at+"limit", l.Limit), window: o.window(at+"window", l.Window)}
		burst := l.Burst
		if len(r.Limits) == 0 && algorithm != window.Bucket {
			burst = nil // the top level has buckets, and this rule has none
		}
		o.burst(at+"burst", burst, algorithm, &each)
		o.countable(at, algorithm, &each)
		limits = append(limits, each)
	}
	return limits
}

// burst sets the size of a bucket, which is its limit where none is given.
func (o *options) burst(option string, value interface{}, algorithm window.Algorithm, l *limit) {
	if algorithm != window.Bucket {
		if value != nil {
			o.fail(fmt.Errorf("option %s has a meaning for algorithm token-bucket alone", option))
		}
		return
	}
	l.burst = l.limit
	if value != nil {
		l.burst = o.limit(option, value)
		l.given = true
	}
}

// countable refuses what an algorithm cannot count exactly, or not within the memory that
// the operator allows.
func (o *options) countable(path string, algorithm window.Algorithm, l *limit) {
	if o.err != nil {
		return
	}
	shown, most := strconv.FormatInt(l.limit, 10), window.MaxExact/(l.window*1000)
	switch {
	case algorithm == window.Sliding && l.limit > most:
		o.refuse(path+"limit", shown, "for windows of this length a sliding window counts up to "+strconv.FormatInt(most, 10))
	case algorithm == window.Bucket && l.burst > most && l.given:
		o.refuse(path+"burst", strconv.FormatInt(l.burst, 10), "for windows of this length a bucket holds up to "+strconv.FormatInt(most, 10))
	case algorithm == window.Bucket && l.burst > most:
		o.refuse(path+"limit", shown, "for windows of this length a bucket holds up to "+strconv.FormatInt(most, 10)+"; set a burst")
	case algorithm == window.Exact && l.limit > o.maxLog:
		o.refuse(path+"limit", shown, "a sliding log keeps as many times for each client, and maxLog allows "+strconv.FormatInt(o.maxLog, 10))
	}
}

func (o *options) limit(option string, value interface{}) int64 {
	return o.integer(option, value, 1, window.MaxCount)
}

// window returns seconds.
func (o *options) window(option string, value interface{}) int64 {
	return int64(o.duration(option, value, time.Second, maxWindow, time.Second) / time.Second)
}

// name checks what tells a count apart from the others in names, and takes it among them.
func (o *options) name(option string, value interface{}, names map[string]bool) string {
	name := o.text(option, value)
	if !scopePattern.MatchString(name) {
		if value == nil {
			o.fail(fmt.Errorf("option %s is missing: a name out of letters, digits and @._- is wanted", option))
		}
		o.refuse(option, name, "only letters, digits and @._- are allowed, and at least one of them")
	}
	if names[name] {
		o.refuse(option, name, "this name is given to something else already")
	}
	if name == "sw" || name == "log" || name == "tb" {
		o.refuse(option, name, "sw, log and tb stand in keys for the algorithms")
	}
	names[name] = true
	return name
}

// lowest returns the lowest of some limits.
func lowest(limits []limit) int64 {
	limit := int64(window.MaxCount)
	for _, l := range limits {
		if l.limit < limit {
			limit = l.limit
		}
	}
	return limit
}

// newTier returns a tier of a policy.
func newTier(p *policy, scope string, limits []limit) *tier {
	var told []reply.Policy
	for _, l := range limits {
		name := scope
		if l.name != "" {
			name += ":" + l.name
		}
		told = append(told, reply.Policy{Name: name, Limit: l.limit, Window: l.window})
	}
	return &tier{limits: limits, fields: reply.New(told, &p.told)}
}

// plans returns nil where none are set.
func (o *options) plans(path string, config *PlansConfig, p *policy, scope string) *plans {
	if config.Header == nil && config.Claim == nil && config.Default == nil && len(config.Values) == 0 {
		return nil
	}
	l := &plans{claim: o.text(path+"claim", config.Claim), values: map[string]*tier{}, otherwise: p.ordinary}
	header := o.text(path+"header", config.Header)
	if (header == "") == (l.claim == "") {
		o.fail(fmt.Errorf("option %sheader: exactly one of header and claim says which plan a client has", path))
	}
	if header != "" {
		l.header = o.header(path+"header", header)
	}
	if len(config.Values) == 0 {
		o.fail(fmt.Errorf("option %svalues is missing: name at least one plan", path))
	}
	for _, name := range sorted(config.Values) {
		if name == "" || strings.Trim(name, " \t") != name {
			o.refuse(path+"values", name, "a plan has a name, without blanks around it, since no request could name it else")
		}
		a := config.Values[name]
		l.values[name] = newTier(p, scope, o.allowance(path+"values."+name+".", a.Limit, a.Burst, a.Limits, p))
	}
	if config.Default != nil {
		name := o.text(path+"default", config.Default)
		l.otherwise = l.values[name]
		if l.otherwise == nil {
			o.refuse(path+"default", name, "it is none of the plans in values: "+strings.Join(sorted(config.Values), ", "))
		}
	}
	return l
}

func sorted(values map[string]AllowanceConfig) []string {
	var names []string
	for name := range values {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// allowance returns the limits of a policy, with those replaced that the options under
// path name.
func (o *options) allowance(path string, value, burst interface{}, named []LimitConfig, p *policy) []limit {
	limits := append([]limit(nil), p.ordinary.limits...)
	if value == nil && burst == nil && len(named) == 0 {
		o.fail(fmt.Errorf("option %slimit is missing: say what the limit is instead, or in limits which limits are", path))
	}
	if value != nil || burst != nil {
		if len(limits) > 1 {
			o.fail(fmt.Errorf("option %slimit: there are several limits; put those that are to be replaced into limits, by name", path))
			return limits
		}
		o.replace(path, value, burst, p, &limits[0])
	}
	seen := map[string]bool{}
	for i := range named {
		at := path + "limits[" + strconv.Itoa(i) + "]."
		name := o.text(at+"name", named[i].Name)
		if seen[name] {
			o.refuse(at+"name", name, "this limit is replaced already")
		}
		seen[name] = true
		if named[i].Window != nil {
			o.fail(fmt.Errorf("option %swindow has no place here: the windows are the same for all clients", at))
		}
		found := false
		for j := range limits {
			if limits[j].own != "" && limits[j].own == name {
				found = true
				o.replace(at, named[i].Limit, named[i].Burst, p, &limits[j])
			}
		}
		if !found {
			o.refuse(at+"name", name, "there is no limit of this name to replace")
		}
	}
	return limits
}

// replace replaces the height of a limit, and its burst: where none is given for it nor for
// the limit that it replaces, the burst is the limit.
func (o *options) replace(path string, value, burst interface{}, p *policy, l *limit) {
	if value != nil || burst == nil {
		l.limit = o.limit(path+"limit", value)
	}
	if burst != nil || !l.given {
		o.burst(path+"burst", burst, p.algorithm, l)
	}
	o.countable(path, p.algorithm, l)
}

// overrides checks the limits of single clients. What tells a client apart may be a
// secret, and is not repeated.
func (o *options) overrides(path string, configs []OverrideConfig, p *policy, scope string) {
	p.values = map[string]*tier{}
	p.hashes = map[string]*tier{}
	seen := map[string]bool{}
	for i := range configs {
		config := &configs[i]
		at := path + "overrides[" + strconv.Itoa(i) + "]."
		t := newTier(p, scope, o.allowance(at, config.Limit, config.Burst, config.Limits, p))
		value, hash := o.text(at+"value", config.Value), o.text(at+"hash", config.Hash)
		if (value == "") == (hash == "") {
			o.fail(fmt.Errorf("option %svalue: exactly one of value and hash names the client", at))
			return
		}
		digest := ""
		if value != "" {
			identity, err := source.ValueIdentity(&p.criterion, value)
			if err != nil {
				o.fail(fmt.Errorf("option %svalue: %s", at, strings.Replace(err.Error(), strconv.Quote(value), "the value", 1)))
			}
			p.values[identity] = t
			digest = keyDigest(identity, o.keySecret)
		} else {
			hash = strings.ToLower(hash)
			if !hashPattern.MatchString(hash) {
				o.fail(fmt.Errorf("option %shash: the 64 hexadecimal digits are wanted that stand in braces in the client's keys", at))
			}
			raw, _ := hex.DecodeString(hash)
			digest = string(raw)
			p.hashes[digest] = t
		}
		if seen[digest] {
			o.fail(fmt.Errorf("option %svalue: another override is for the same client", at))
		}
		seen[digest] = true
	}
}

// guard returns nil where none is set.
func (o *options) guard(config *GatewayLimitConfig, policies []*policy) *guard {
	if config.Limit == nil && config.Window == nil {
		return nil
	}
	g := &guard{limit: o.limit("gatewayLimit.limit", config.Limit), window: o.window("gatewayLimit.window", config.Window)}
	for _, p := range policies {
		if p.cost > g.limit {
			o.refuse("gatewayLimit.limit", strconv.FormatInt(g.limit, 10), "no request would pass that costs "+strconv.FormatInt(p.cost, 10))
		}
	}
	return g
}

// exempt returns nil where nothing is exempt.
func (o *options) exempt(path string, config *ExemptConfig) *rule.Exempt {
	e := &rule.Exempt{Networks: o.networks(path+"ips", config.IPs), Preflight: o.boolean(path+"preflight", config.Preflight)}
	for i, text := range o.list(path+"paths", config.Paths) {
		o.wrap(path+"paths["+strconv.Itoa(i)+"]", rule.AddPath(e, text))
	}
	o.wrap(path+"methods", rule.AddMethods(e, o.list(path+"methods", config.Methods)))
	if rule.Empty(e) {
		return nil
	}
	return e
}

// fallback returns 0 for what is not set.
func (o *options) fallback(config *FallbackConfig, limit int64) (own, gateways int64) {
	own = 0
	gateways = 0
	if config.Limit != nil {
		own = o.integer("fallback.limit", config.Limit, 1, limit)
	}
	if config.Gateways != nil {
		gateways = o.integer("fallback.gateways", config.Gateways, 1, 10000)
	}
	return own, gateways
}
