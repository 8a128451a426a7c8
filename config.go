package gatequota

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/textproto"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/reply"
	"github.com/gatequota/gatequota/resp"
	"github.com/gatequota/gatequota/source"
	"github.com/gatequota/gatequota/window"
)

// Config holds the options of one middleware as the user wrote them. Scalars are
// taken as the provider has them and checked by New, so that nothing is rounded,
// cut or guessed on the way; what no field is named after ends up in Unknown and
// is refused.
type Config struct {
	// Limit is the number of requests that a client may make in a window: 1 to
	// 999999999999999. Required.
	Limit interface{} `json:"limit,omitempty"`
	// Window is the length of a window, in whole seconds: 1s to 366d. Windows
	// start on the clock, at multiples of their length. Required.
	Window interface{} `json:"window,omitempty"`
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
	// Headers says which rate-limit fields are sent: both, ietf, legacy or none.
	// Default: both.
	Headers interface{} `json:"headers,omitempty"`
	// DecisionHeader names the field that says by which way a request was decided;
	// empty sends none. Default: X-RateLimit-Decision, but none where
	// OnStoreFailure is open.
	DecisionHeader interface{} `json:"decisionHeader,omitempty"`
	// MaxClients bounds the clients that a gateway keeps in memory for the scope:
	// 1 to 16777216. Default: 65536.
	MaxClients interface{} `json:"maxClients,omitempty"`
	// Valkey is the store that the gateways share.
	Valkey ValkeyConfig `json:"valkey,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// FallbackConfig holds the options of a gateway that counts alone, because the store
// failed and OnStoreFailure is local. It goes on from the last count of a client that
// it has seen, and holds the client to a share of what was left.
type FallbackConfig struct {
	// Limit is how many requests of a client in a window this gateway lets pass alone,
	// but never more than are left: 1 to the option limit. Default: what Gateways says.
	Limit interface{} `json:"limit,omitempty"`
	// Gateways is the number of gateways that share what is left, each its part, rounded
	// up: 1 to 10000. Default: as many as have announced themselves in the store in
	// the last 15 seconds before it failed, 1 if that was never learnt.
	Gateways interface{} `json:"gateways,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// SourceCriterion holds the options that say who is counted. At most one of the
// three is set.
type SourceCriterion struct {
	// RequestHeaderName names the header whose value tells clients apart. A request
	// that lacks it is counted by its address.
	RequestHeaderName interface{} `json:"requestHeaderName,omitempty"`
	// RequestHost counts by the host that is asked for.
	RequestHost interface{} `json:"requestHost,omitempty"`
	// IPStrategy says which address counts.
	IPStrategy *IPStrategy `json:"ipStrategy,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
}

// IPStrategy holds the options that say which address is the client's. Depth and
// ExcludedIPs exclude each other; with neither it is the peer's.
type IPStrategy struct {
	// Depth is the client's place in X-Forwarded-For, counted from the right: 1 to
	// 1000; 0 does not look there. Default: 0.
	Depth interface{} `json:"depth,omitempty"`
	// ExcludedIPs are addresses and CIDR ranges of proxies: the client is the first
	// address in X-Forwarded-For, from the right, that is not among them.
	ExcludedIPs []string `json:"excludedIPs,omitempty"`
	// IPv6Subnet is the number of leading bits by which IPv6 addresses are told
	// apart: 1 to 128. Default: 64.
	IPv6Subnet interface{} `json:"ipv6Subnet,omitempty"`

	Unknown map[string]interface{} `json:"-" mapstructure:",remain"`
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

// setting is what became of the options: checked, and never changed after that.
type setting struct {
	limiter   limiter.Settings
	criterion source.Criterion
	fields    *reply.Fields
	summary   string // for the log, without secrets
}

const (
	maxWindow  = 366 * 24 * time.Hour
	maxClients = 1 << 24
)

var (
	scopePattern  = regexp.MustCompile(`^[A-Za-z0-9@._-]+$`)
	prefixPattern = regexp.MustCompile(`^[A-Za-z0-9@._:-]+$`)
	tokenPattern  = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	headerStyles  = map[string]reply.Style{"both": reply.Both, "ietf": reply.IETF, "legacy": reply.Legacy, "none": reply.None}
)

// takenNames are headers of an answer whose meaning is not ours to change.
var takenNames = map[string]bool{
	"Age": true, "Allow": true, "Alt-Svc": true, "Cache-Control": true, "Connection": true, "Content-Encoding": true,
	"Content-Length": true, "Content-Range": true, "Content-Type": true, "Date": true, "Etag": true, "Expires": true,
	"Keep-Alive": true, "Last-Modified": true, "Location": true, "Proxy-Authenticate": true, "Proxy-Connection": true,
	"Ratelimit": true, "Ratelimit-Policy": true, "Retry-After": true, "Server": true, "Set-Cookie": true, "Te": true,
	"Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "Vary": true, "Www-Authenticate": true,
	"X-Content-Type-Options": true, "X-Ratelimit-Limit": true, "X-Ratelimit-Remaining": true, "X-Ratelimit-Reset": true,
}

// check turns the options of the middleware called name into a setting, or says
// which option is wrong, what it says and what would be right. It does not change
// config, which belongs to all routers of the middleware.
func check(config *Config, name string) (*setting, error) {
	o := &options{}
	o.noUnknown(config)
	limit := o.integer("limit", config.Limit, 1, window.MaxCount)
	length := o.duration("window", config.Window, time.Second, maxWindow, time.Second)
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
	shared := o.choice("mode", or(config.Mode, "shared"), "shared", "local") == "shared"
	onStoreFailure := o.choice("onStoreFailure", or(config.OnStoreFailure, limiter.Local), limiter.Local, limiter.Closed, limiter.Open)
	fallbackLimit, fallbackGateways := o.fallback(&config.Fallback, limit)
	criterion := o.criterion(&config.SourceCriterion)
	style := o.choice("headers", or(config.Headers, "both"), "both", "ietf", "legacy", "none")
	decision := "X-RateLimit-Decision"
	if onStoreFailure == limiter.Open {
		decision = ""
	}
	if config.DecisionHeader != nil {
		decision = o.text("decisionHeader", config.DecisionHeader)
		if decision != "" && !tokenPattern.MatchString(decision) {
			o.refuse("decisionHeader", decision, "it must be the name of a header, or empty to send none")
		}
		if takenNames[textproto.CanonicalMIMEHeaderKey(decision)] {
			o.refuse("decisionHeader", decision, "this header means something else")
		}
	}
	clients := o.integer("maxClients", or(config.MaxClients, 65536), 1, maxClients)
	store := o.store(&config.Valkey, shared)
	if o.err != nil {
		return nil, o.err
	}

	s := &setting{
		limiter: limiter.Settings{
			Scope:            scope,
			Limit:            limit,
			Window:           int64(length / time.Second),
			MaxClients:       int(clients),
			OnStoreFailure:   onStoreFailure,
			FallbackLimit:    fallbackLimit,
			FallbackGateways: fallbackGateways,
		},
		criterion: criterion,
		fields: reply.New([]reply.Policy{{Name: scope, Limit: limit, Window: int64(length / time.Second)}},
			&reply.Settings{Style: headerStyles[style], DecisionHeader: decision}),
	}
	where := "mode local"
	if shared {
		s.limiter.Store = store
		where = fmt.Sprintf("mode shared, store %s db %d user %q tls %t timeout %s dialTimeout %s keyPrefix %s, onStoreFailure %s",
			store.Endpoint, store.DB, store.Username, store.TLS != nil, store.Timeout, store.DialTimeout, store.KeyPrefix, onStoreFailure)
		if onStoreFailure == limiter.Local {
			where += describeFallback(&s.limiter)
		}
	}
	s.summary = fmt.Sprintf("limit %d in %s, scope %s, by %s, headers %s, maxClients %d, %s",
		limit, length, scope, describe(&criterion), style, clients, where)
	return s, nil
}

// noUnknown refuses options that nothing is named after, before any is missed that
// may stand on the wrong level.
func (o *options) noUnknown(config *Config) {
	o.unknown("", config.Unknown)
	o.unknown("fallback.", config.Fallback.Unknown)
	o.unknown("sourceCriterion.", config.SourceCriterion.Unknown)
	if config.SourceCriterion.IPStrategy != nil {
		o.unknown("sourceCriterion.ipStrategy.", config.SourceCriterion.IPStrategy.Unknown)
	}
	o.unknown("valkey.", config.Valkey.Unknown)
	if config.Valkey.TLS != nil {
		o.unknown("valkey.tls.", config.Valkey.TLS.Unknown)
	}
}

// describe says for the log by what clients are told apart.
func describe(c *source.Criterion) string {
	if c.Header != "" {
		return "header " + c.Header
	}
	if c.Host {
		return "host"
	}
	text := "address"
	if c.Depth > 0 {
		text += " at depth " + strconv.Itoa(c.Depth)
	}
	if len(c.Excluded) > 0 {
		text += fmt.Sprintf(" behind %v", c.Excluded)
	}
	return text + ", IPv6 by /" + strconv.Itoa(c.IPv6Subnet)
}

// describeFallback says for the log what a gateway lets pass alone.
func describeFallback(s *limiter.Settings) string {
	switch {
	case s.FallbackLimit > 0:
		return " up to " + strconv.FormatInt(s.FallbackLimit, 10)
	case s.FallbackGateways > 0:
		return " shared by " + strconv.FormatInt(s.FallbackGateways, 10) + " gateways"
	}
	return " shared by the gateways announced"
}

// fallback returns 0 for what is not set.
func (o *options) fallback(config *FallbackConfig, limit int64) (own, gateways int64) {
	if config.Limit != nil {
		if o.err != nil {
			return 0, 0 // the limit, its bound, is not known
		}
		own = o.integer("fallback.limit", config.Limit, 1, limit)
	}
	if config.Gateways != nil {
		gateways = o.integer("fallback.gateways", config.Gateways, 1, 10000)
	}
	return own, gateways
}

func (o *options) criterion(config *SourceCriterion) source.Criterion {
	c := source.Criterion{IPv6Subnet: 64}
	set := 0
	if config.RequestHeaderName != nil {
		set++
		header := o.text("sourceCriterion.requestHeaderName", config.RequestHeaderName)
		if !tokenPattern.MatchString(header) {
			o.refuse("sourceCriterion.requestHeaderName", header, "the name of a header is wanted")
		}
		c.Header = textproto.CanonicalMIMEHeaderKey(header)
		switch c.Header {
		case "Host":
			o.refuse("sourceCriterion.requestHeaderName", header, "Host is no header here; use sourceCriterion.requestHost")
		case "Connection", "Content-Length", "Transfer-Encoding", "Trailer":
			o.refuse("sourceCriterion.requestHeaderName", header, "this header is about the connection and not about the client")
		}
	}
	if config.RequestHost != nil {
		c.Host = o.boolean("sourceCriterion.requestHost", config.RequestHost)
		if c.Host {
			set++
		}
	}
	if config.IPStrategy != nil {
		set++
		ip := config.IPStrategy
		c.Depth = int(o.integer("sourceCriterion.ipStrategy.depth", or(ip.Depth, 0), 0, 1000))
		c.IPv6Subnet = int(o.integer("sourceCriterion.ipStrategy.ipv6Subnet", or(ip.IPv6Subnet, 64), 1, 128))
		for i, text := range ip.ExcludedIPs {
			network, err := source.ParsePrefix(text)
			if err != nil {
				o.refuse("sourceCriterion.ipStrategy.excludedIPs["+strconv.Itoa(i)+"]", text, "an address or a CIDR range is wanted")
			}
			c.Excluded = append(c.Excluded, network)
		}
		if c.Depth > 0 && len(c.Excluded) > 0 {
			o.refuse("sourceCriterion.ipStrategy.depth", strconv.Itoa(c.Depth), "excludedIPs is set too; only one of them can find the client")
		}
	}
	if set > 1 {
		o.fail(errors.New("option sourceCriterion: only one of requestHeaderName, requestHost and ipStrategy can be set"))
	}
	return c
}

// store checks the options of the store also where mode is local, so that changing
// the mode brings no surprise; only then the endpoint may be missing.
func (o *options) store(config *ValkeyConfig, shared bool) *limiter.StoreSettings {
	s := &limiter.StoreSettings{
		Username:    o.text("valkey.username", config.Username),
		Password:    o.text("valkey.password", config.Password),
		DB:          int(o.integer("valkey.db", or(config.DB, 0), 0, 1000000)),
		Timeout:     o.duration("valkey.timeout", or(config.Timeout, "100ms"), time.Millisecond, 10*time.Second, time.Millisecond),
		DialTimeout: o.duration("valkey.dialTimeout", or(config.DialTimeout, "1s"), time.Millisecond, time.Minute, time.Millisecond),
		KeyPrefix:   o.text("valkey.keyPrefix", or(config.KeyPrefix, "rate")),
	}
	if !prefixPattern.MatchString(s.KeyPrefix) {
		o.refuse("valkey.keyPrefix", s.KeyPrefix, "only letters, digits and @._-: are allowed, and at least one of them")
	}
	switch {
	case len(config.Endpoints) == 1:
		network, address, err := resp.ParseEndpoint(config.Endpoints[0])
		if err != nil {
			o.fail(fmt.Errorf("option valkey.endpoints: %w", err))
		}
		s.Endpoint, s.Network, s.Address = config.Endpoints[0], network, address
	case len(config.Endpoints) > 1:
		o.refuse("valkey.endpoints", strconv.Itoa(len(config.Endpoints))+" entries", "exactly one endpoint is supported")
	case shared:
		o.fail(errors.New("option valkey.endpoints is missing: name one store, such as valkey:6379, or set mode to local"))
	}
	o.passwordFile(config, s)
	if s.Username != "" && s.Password == "" {
		o.refuse("valkey.username", s.Username, "a username needs valkey.password or valkey.passwordFile")
	}
	if config.TLS != nil {
		o.tls(config.TLS, s)
	}
	return s
}

// passwordFile takes the password from a file. Errors name the file and never what
// stands in it.
func (o *options) passwordFile(config *ValkeyConfig, s *limiter.StoreSettings) {
	path := o.text("valkey.passwordFile", config.PasswordFile)
	if path == "" || o.err != nil {
		return
	}
	if s.Password != "" {
		o.refuse("valkey.passwordFile", path, "valkey.password is set too; only one of them can be")
		return
	}
	content := o.file("valkey.passwordFile", path)
	if o.err != nil {
		return
	}
	s.Password = strings.TrimSuffix(strings.TrimSuffix(content, "\n"), "\r")
	if s.Password == "" {
		o.refuse("valkey.passwordFile", path, "the file is empty")
	}
}

func (o *options) tls(config *TLSConfig, s *limiter.StoreSettings) {
	ca := o.pem("valkey.tls.ca", config.CA)
	cert := o.pem("valkey.tls.cert", config.Cert)
	key := o.pem("valkey.tls.key", config.Key)
	s.TLS = &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         o.text("valkey.tls.serverName", config.ServerName),
		InsecureSkipVerify: o.boolean("valkey.tls.insecureSkipVerify", config.InsecureSkipVerify),
	}
	if s.Network == "unix" {
		o.refuse("valkey.tls", s.Endpoint, "a socket is not encrypted; drop valkey.tls or name a host")
	}
	if ca != "" {
		s.TLS.RootCAs = x509.NewCertPool()
		if !s.TLS.RootCAs.AppendCertsFromPEM([]byte(ca)) {
			o.fail(errors.New("option valkey.tls.ca: there is no certificate in it"))
		}
	}
	if (cert == "") != (key == "") {
		o.fail(errors.New("option valkey.tls.cert: cert and key are only of use together"))
	}
	if cert != "" {
		pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
		if err != nil {
			o.fail(fmt.Errorf("option valkey.tls.cert: %w", err))
		}
		s.TLS.Certificates = []tls.Certificate{pair}
	}
	digest := sha256.Sum256([]byte(fmt.Sprintf("%q", []string{ca, cert, key, s.TLS.ServerName, strconv.FormatBool(s.TLS.InsecureSkipVerify)})))
	s.TLSIdentity = hex.EncodeToString(digest[:])
}

// pem reads a PEM text, or the file that a path names.
func (o *options) pem(option string, value interface{}) string {
	text := o.text(option, value)
	if text == "" || strings.Contains(text, "-----BEGIN ") {
		return text
	}
	return o.file(option, text)
}

// file reads a file. What is no path that begins with / or . may be the secret
// itself, and is not repeated.
func (o *options) file(option, path string) string {
	content, err := os.ReadFile(path)
	if err == nil {
		return string(content)
	}
	shown := strconv.Quote(path)
	if path[0] != '/' && path[0] != '.' || len(path) > 200 {
		shown = "a value that is not shown, as it looks like no path"
	}
	o.fail(fmt.Errorf("option %s: reading %s: %w", option, shown, errors.Unwrap(err)))
	return ""
}
