package gatequota

// Config holds the options of one middleware as the user wrote them. Scalars are
// taken as the provider has them and checked by New, so that nothing is rounded,
// cut or guessed on the way; what no field is named after ends up in Unknown and
// is refused. docs/configuration.md is the page on them for users.
type Config struct {
	// Limit is the number of requests that a client may make in a window: 1 to
	// 999999999999999. Required, or Limits.
	Limit interface{} `json:"limit,omitempty"`
	// Window is the length of a window, in whole seconds: 1s to 366d. Windows
	// start on the clock, at multiples of their length. Required, or Limits.
	Window interface{} `json:"window,omitempty"`
	// Limits are several limits on one request, 1 to 8, in place of Limit and Window. A
	// request counts in all of them or in none.
	Limits []LimitConfig `json:"limits,omitempty"`
	// Algorithm says how requests are counted: fixed-window, sliding-window, sliding-log or
	// token-bucket. Default: fixed-window.
	Algorithm interface{} `json:"algorithm,omitempty"`
	// Burst is the size of a token bucket: how many requests may come at once. Default: the
	// limit.
	Burst interface{} `json:"burst,omitempty"`
	// MaxLog bounds the limits of sliding logs, which keep so many times for each client:
	// 1 to 1000000. Default: 10000.
	MaxLog interface{} `json:"maxLog,omitempty"`
	// Cost is what a request takes from the limits: 1 to the least of them. Default: 1.
	Cost interface{} `json:"cost,omitempty"`
	// Scope names whose count it is: middlewares of one scope share their counts.
	// Letters, digits and @._- are allowed. Default: the middleware's name as
	// Traefik gives it, such as quota@docker.
	Scope interface{} `json:"scope,omitempty"`
	// Mode is shared, one count over all gateways, or local, one for each gateway.
	// Default: shared.
	Mode interface{} `json:"mode,omitempty"`
	// OnStoreFailure says what happens to a request that the store does not count:
	// local counts it in the gateway's memory, closed answers 503, open lets it
	// pass. Default: local.
	OnStoreFailure interface{} `json:"onStoreFailure,omitempty"`
	// Fallback says how much a gateway lets pass that counts in its memory because the
	// store failed.
	Fallback FallbackConfig `json:"fallback,omitempty"`
	// SourceCriterion says by what clients are told apart. Default: by address.
	SourceCriterion SourceCriterion `json:"sourceCriterion,omitempty"`
	// IPStrategy says which address is a client's where SourceCriterion does not: for
	// Exempt, for requests that lack a part, and without any part. Default: the peer's.
	IPStrategy *IPStrategy `json:"ipStrategy,omitempty"`
	// Exempt are the requests that are neither counted nor refused. Default: none.
	Exempt ExemptConfig `json:"exempt,omitempty"`
	// Rules say what is different for some requests. The first whose conditions hold
	// applies; where none does, the options beside Rules do.
	Rules []RuleConfig `json:"rules,omitempty"`
	// Plans replace limits by what a header or a claim says.
	Plans PlansConfig `json:"plans,omitempty"`
	// Overrides replace limits for single clients. They beat Plans.
	Overrides []OverrideConfig `json:"overrides,omitempty"`
	// GatewayLimit bounds what all clients of the scope together make of requests on
	// one gateway. It is asked before any other limit, and answers 503.
	GatewayLimit GatewayLimitConfig `json:"gatewayLimit,omitempty"`
	// DryRun counts and reports, and refuses nothing. Default: false.
	DryRun interface{} `json:"dryRun,omitempty"`
	// Headers says which rate-limit fields are sent: both, ietf, legacy or none.
	// Default: both.
	Headers interface{} `json:"headers,omitempty"`
	// DecisionHeader names the field that says by which way a request was decided;
	// empty sends none. Default: X-RateLimit-Decision, but none where
	// OnStoreFailure is open.
	DecisionHeader interface{} `json:"decisionHeader,omitempty"`
	// ExposeHeaders lets scripts in browsers read the fields of an answer from another
	// origin. Default: false.
	ExposeHeaders interface{} `json:"exposeHeaders,omitempty"`
	// Response replaces what a refused client gets.
	Response ResponseConfig `json:"response,omitempty"`
	// MaxClients bounds the clients that a gateway keeps in memory for each count:
	// 1 to 16777216. Default: 65536.
	MaxClients interface{} `json:"maxClients,omitempty"`
	// Valkey is the store that the gateways share.
	Valkey ValkeyConfig `json:"valkey,omitempty"`
	// Metrics is where this middleware answers with what all middlewares of the gateway
	// count, in the text format of Prometheus. Default: nowhere.
	Metrics WatchConfig `json:"metrics,omitempty"`
	// Status is where it answers with a page for people, or the same as JSON.
	// Default: nowhere.
	Status WatchConfig `json:"status,omitempty"`
	// Log is text or json, or both options of a LogConfig. Default: text.
	Log interface{} `json:"log,omitempty"`
	// Control lets the command gatequota change limits, let single clients through or
	// block them, and switch the limiter off, through the store and while it runs.
	// Default: false.
	Control interface{} `json:"control,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// LimitConfig is one of several limits on a request.
type LimitConfig struct {
	// Name tells it from the others, in the store and for the client. Letters, digits
	// and @._- are allowed. Required.
	Name interface{} `json:"name,omitempty"`
	// Limit and Window are as of Config. Both are required; in plans and overrides
	// Limit alone is, and Window has no place.
	Limit  interface{} `json:"limit,omitempty"`
	Window interface{} `json:"window,omitempty"`
	// Burst is as of Config.
	Burst interface{} `json:"burst,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// RuleConfig is a rule: conditions, all of which must hold and of which there is at
// least one, and what is different where they do. What it does not set is as in Config.
// With Limit, Window, Limits, Algorithm, Burst or SourceCriterion it counts apart, under
// its own name; without them it shares the counts of Config, and has its Overrides. Its
// Plans it has unless it has limits of its own.
type RuleConfig struct {
	// Name tells it from other rules and from Limits. Letters, digits and @._- are
	// allowed. Required.
	Name interface{} `json:"name,omitempty"`

	// Path is the whole path of a request, in its clean form.
	Path interface{} `json:"path,omitempty"`
	// PathPrefix is the beginning of a path, by whole segments: /api is one of /api/x and
	// of /api, not of /apix.
	PathPrefix interface{} `json:"pathPrefix,omitempty"`
	// PathRegex is a regular expression that is found in the path. Go's syntax.
	PathRegex interface{} `json:"pathRegex,omitempty"`
	// Methods are methods, one of which it is.
	Methods []string `json:"methods,omitempty"`
	// Host is the host that is asked for, without port.
	Host interface{} `json:"host,omitempty"`
	// Header is a header that is there, with this value if one is given.
	Header HeaderConfig `json:"header,omitempty"`

	Limit           interface{}      `json:"limit,omitempty"`
	Window          interface{}      `json:"window,omitempty"`
	Limits          []LimitConfig    `json:"limits,omitempty"`
	Algorithm       interface{}      `json:"algorithm,omitempty"`
	Burst           interface{}      `json:"burst,omitempty"`
	Cost            interface{}      `json:"cost,omitempty"`
	SourceCriterion *SourceCriterion `json:"sourceCriterion,omitempty"`
	OnStoreFailure  interface{}      `json:"onStoreFailure,omitempty"`
	Exempt          *ExemptConfig    `json:"exempt,omitempty"`
	Plans           *PlansConfig     `json:"plans,omitempty"`
	Overrides       []OverrideConfig `json:"overrides,omitempty"`
	DryRun          interface{}      `json:"dryRun,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// HeaderConfig is a condition on a header of a request.
type HeaderConfig struct {
	Name interface{} `json:"name,omitempty"`
	// Value is its whole value. Default: any.
	Value interface{} `json:"value,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// ExemptConfig holds what exempts a request, each by itself.
type ExemptConfig struct {
	// IPs are addresses and CIDR ranges of clients. Who is told by a proxy that says
	// nothing usable is not exempt.
	IPs []string `json:"ips,omitempty"`
	// Paths are paths, or with /* at their end all that lie below. A path that a
	// client did not write in its clean form is not exempt.
	Paths []string `json:"paths,omitempty"`
	// Methods are methods.
	Methods []string `json:"methods,omitempty"`
	// Preflight exempts the requests by which a browser asks, before another, whether it
	// may make it: OPTIONS with Origin and Access-Control-Request-Method.
	// Default: false.
	Preflight interface{} `json:"preflight,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// PlansConfig holds limits by what a request says of its client's plan. Whoever can
// write that header or sign that token chooses the plan.
type PlansConfig struct {
	// Header names the header that names the plan.
	Header interface{} `json:"header,omitempty"`
	// Claim names the claim of the bearer token that does, in its place. The token is
	// not verified.
	Claim interface{} `json:"claim,omitempty"`
	// Default is the plan of a request that names none of Values. Default: the
	// ordinary limits.
	Default interface{} `json:"default,omitempty"`
	// Values are the plans.
	Values map[string]AllowanceConfig `json:"values,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// AllowanceConfig replaces limits.
type AllowanceConfig struct {
	// Limit replaces the one limit.
	Limit interface{} `json:"limit,omitempty"`
	// Burst replaces the size of its bucket. Default: what the limit says.
	Burst interface{} `json:"burst,omitempty"`
	// Limits replace those of the same name.
	Limits []LimitConfig `json:"limits,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// OverrideConfig replaces limits for one client.
type OverrideConfig struct {
	// Value is what tells the client apart: the value of the header, the address, ...
	Value interface{} `json:"value,omitempty"`
	// Hash is the 64 hexadecimal digits under which the store counts it, in its place.
	Hash   interface{}   `json:"hash,omitempty"`
	Limit  interface{}   `json:"limit,omitempty"`
	Burst  interface{}   `json:"burst,omitempty"`
	Limits []LimitConfig `json:"limits,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// GatewayLimitConfig bounds all clients together on one gateway. Both options or none.
type GatewayLimitConfig struct {
	// Limit is the number of requests in a window, each as many as it costs.
	Limit interface{} `json:"limit,omitempty"`
	// Window is as of Config, by the gateway's own clock.
	Window interface{} `json:"window,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// ResponseConfig replaces what a client gets that is over a limit.
type ResponseConfig struct {
	// Status is the status of the answer: 400 to 599. Default: 429.
	Status interface{} `json:"status,omitempty"`
	// Body is the whole of it. Default: a line of text, or problem details in JSON for
	// whoever accepts them.
	Body interface{} `json:"body,omitempty"`
	// ContentType is that of Body. Default: text/plain; charset=utf-8.
	ContentType interface{} `json:"contentType,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// FallbackConfig holds the options of a gateway that counts alone, because the store
// failed and OnStoreFailure is local. It goes on from the last count of a client that
// it has seen, and holds the client to a share of what was left.
type FallbackConfig struct {
	// Limit is how much of a client's requests in a window this gateway lets pass alone,
	// but never more than is left: 1 to the least of the limits. Default: what Gateways
	// says.
	Limit interface{} `json:"limit,omitempty"`
	// Gateways is the number of gateways that share what is left, each its part, rounded
	// up: 1 to 10000. Default: as many as have announced themselves in the store in
	// the last 15 seconds before it failed, 1 if that was never learnt.
	Gateways interface{} `json:"gateways,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// SourceCriterion holds the options that say who is counted. What is named by several
// of them is told apart by all of these parts together.
type SourceCriterion struct {
	// RequestHeaderName names the header whose value tells clients apart.
	RequestHeaderName interface{} `json:"requestHeaderName,omitempty"`
	// RequestHeaderNames name several such headers.
	RequestHeaderNames []string `json:"requestHeaderNames,omitempty"`
	// RequestHost counts by the host that is asked for.
	RequestHost interface{} `json:"requestHost,omitempty"`
	// IPStrategy counts by address, beside other parts too, and says which one counts.
	IPStrategy *IPStrategy `json:"ipStrategy,omitempty"`
	// CookieName names a cookie.
	CookieName interface{} `json:"cookieName,omitempty"`
	// QueryParameter names a parameter of the query.
	QueryParameter interface{} `json:"queryParameter,omitempty"`
	// PathSegment is the place of a segment in the path: 1 to 100; 1 is acme in /acme/x.
	PathSegment interface{} `json:"pathSegment,omitempty"`
	// JWTClaim names a claim of the bearer token, which is not verified.
	JWTClaim interface{} `json:"jwtClaim,omitempty"`
	// TLSClientSubject counts by the subject of the client's verified certificate.
	TLSClientSubject interface{} `json:"tlsClientSubject,omitempty"`
	// OnMissing says what happens where a part is missing: address puts the client's
	// address in its place, skip lets the request pass uncounted, shared counts all
	// such requests together, refuse answers 400. Default: address.
	OnMissing interface{} `json:"onMissing,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// IPStrategy holds the options that say which address is the client's. At most one of
// Depth, ExcludedIPs and TrustedIPs is set; with none it is the peer's.
type IPStrategy struct {
	// Depth is the client's place in X-Forwarded-For, counted from the right: 1 to
	// 1000; 0 does not look there. Default: 0.
	Depth interface{} `json:"depth,omitempty"`
	// ExcludedIPs are addresses and CIDR ranges of proxies: the client is the first
	// address in X-Forwarded-For, from the right, that is not among them.
	ExcludedIPs []string `json:"excludedIPs,omitempty"`
	// TrustedIPs are addresses and CIDR ranges of proxies: the client is the first that
	// is not among them, beginning with the peer and then in X-Forwarded-For from the
	// right.
	TrustedIPs []string `json:"trustedIPs,omitempty"`
	// IPv4Subnet is the number of leading bits by which IPv4 addresses are told
	// apart: 1 to 32. Default: 32.
	IPv4Subnet interface{} `json:"ipv4Subnet,omitempty"`
	// IPv6Subnet is the number of leading bits by which IPv6 addresses are told
	// apart: 1 to 128. Default: 64.
	IPv6Subnet interface{} `json:"ipv6Subnet,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// WatchConfig says where those who watch over the gateway are answered, and who they are.
// All others get what they would have got without it.
type WatchConfig struct {
	// Path is the whole path of such a request, in its clean form. Default: none.
	Path interface{} `json:"path,omitempty"`
	// Allow are the addresses and CIDR ranges of peers that are answered. The peer is the
	// other end of the connection, whatever a header says. Default: loopback.
	Allow []string `json:"allow,omitempty"`
	// Token is what a request must show besides, as a bearer token. Default: none.
	Token interface{} `json:"token,omitempty"`
	// TokenFile is a file that holds it instead. Line ends behind it do not count.
	TokenFile interface{} `json:"tokenFile,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// LogConfig holds the options of Log.
type LogConfig struct {
	// Format is text or json, where each line is one JSON object. It is for all lines of
	// the gateway: one middleware that says json is enough. Default: text.
	Format interface{} `json:"format,omitempty"`
	// Refusals is how many of the refused requests of this middleware are logged, 1/1 to
	// 1/1000000: of each rule the first, and from then on each so many-th. Default: none.
	Refusals interface{} `json:"refusals,omitempty"`
}

// ValkeyConfig holds the options of the store.
type ValkeyConfig struct {
	// Endpoints is the one server: host:port, host, [IPv6]:port or unix:///path.
	// Required in mode shared.
	Endpoints []string `json:"endpoints,omitempty"`
	// Username and Password log in. A username needs a password.
	Username interface{} `json:"username,omitempty"`
	Password interface{} `json:"password,omitempty"`
	// PasswordFile is a file that holds the password, in place of Password. One
	// line end at its end is dropped.
	PasswordFile interface{} `json:"passwordFile,omitempty"`
	// DB is the number of the database: 0 to 1000000. Default: 0.
	DB interface{} `json:"db,omitempty"`
	// Timeout is how long a request waits for the store at most, its turn
	// and the answer together: 1ms to 10s. Default: 100ms.
	Timeout interface{} `json:"timeout,omitempty"`
	// DialTimeout is how long opening a connection may take, log-in included: 1ms
	// to 60s. Default: 1s.
	DialTimeout interface{} `json:"dialTimeout,omitempty"`
	// KeyPrefix is what all keys begin with. Letters, digits and @._-: are allowed.
	// Default: rate.
	KeyPrefix interface{} `json:"keyPrefix,omitempty"`
	// KeySecret makes the digest of a client in a key one that only who has the secret
	// can compute: at least 16 bytes. Default: none.
	KeySecret interface{} `json:"keySecret,omitempty"`
	// KeySecretFile is a file that holds it, in place of KeySecret. One line end at its
	// end is dropped.
	KeySecretFile interface{} `json:"keySecretFile,omitempty"`
	// TLS encrypts the connections, if any of its options is there.
	TLS *TLSConfig `json:"tls,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// TLSConfig holds the options of encrypted connections to the store.
type TLSConfig struct {
	// CA, Cert and Key are files in PEM form, or such a text itself: who signs the
	// server's certificate (default: the system's authorities), and the client's
	// certificate and key, if the server wants one.
	CA   interface{} `json:"ca,omitempty"`
	Cert interface{} `json:"cert,omitempty"`
	Key  interface{} `json:"key,omitempty"`
	// ServerName is the name that the server's certificate must have. Default: the
	// host of the endpoint.
	ServerName interface{} `json:"serverName,omitempty"`
	// InsecureSkipVerify accepts any certificate. Default: false.
	InsecureSkipVerify interface{} `json:"insecureSkipVerify,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// CreateConfig returns the options for Traefik to fill in. They are empty, and
// check knows the defaults: where a default stood already, Traefik would bend what
// the user wrote into its type, true into "1".
func CreateConfig() *Config {
	return &Config{}
}
