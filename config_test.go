package gatequota

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/internal/suite"
	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/source"
)

// least returns the options that a shared middleware needs, and no others.
func least() *Config {
	config := CreateConfig()
	config.Limit, config.Window = "100", "1m"
	config.Valkey.Endpoints = []string{"valkey"}
	return config
}

func checked(t *testing.T, config *Config) *setting {
	t.Helper()
	s, err := check(config, "quota@docker")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// last returns the policy for requests that no rule is for, and the settings of its one
// limiter.
func last(s *setting) (*policy, limiter.Settings) {
	p := s.policies[len(s.policies)-1]
	return p, *limiterSettings(&s.common, p, p.ordinary.limits[0])
}

func TestDefaults(t *testing.T) {
	s := checked(t, least())
	want := limiter.Settings{
		Scope:          "quota@docker",
		Limit:          100,
		Window:         60,
		MaxClients:     65536,
		OnStoreFailure: limiter.Local,
		Store: &limiter.StoreSettings{
			Endpoint:    "valkey",
			Network:     "tcp",
			Address:     "valkey:6379",
			Timeout:     100 * time.Millisecond,
			DialTimeout: time.Second,
			KeyPrefix:   "rate",
		},
	}
	p, got := last(s)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("limiter settings %+v, store %+v", got, got.Store)
	}
	byAddress := source.Criterion{IPv6Subnet: 64, OnMissing: source.MissingAddress}
	source.Prepare(&byAddress)
	if !reflect.DeepEqual(p.criterion, byAddress) {
		t.Errorf("criterion %+v", p.criterion)
	}
}

func TestModeLocalUsesNoStore(t *testing.T) {
	config := least()
	config.Mode = "local"
	if s := checked(t, config); s.common.Store != nil {
		t.Errorf("store %+v", s.common.Store)
	}
	config.Valkey.Endpoints = nil
	if s := checked(t, config); s.common.Store != nil {
		t.Errorf("store %+v", s.common.Store)
	}
}

func TestSourceCriteria(t *testing.T) {
	depth := &IPStrategy{Depth: "2", IPv6Subnet: float64(56)}
	for _, tt := range []struct {
		config SourceCriterion
		want   source.Criterion
		told   string
	}{
		{SourceCriterion{RequestHeaderName: "x-api-KEY"}, source.Criterion{Header: "X-Api-Key", IPv6Subnet: 64}, "by header X-Api-Key"},
		{SourceCriterion{RequestHost: true}, source.Criterion{Host: true, IPv6Subnet: 64}, "by host"},
		{SourceCriterion{RequestHost: "false"}, source.Criterion{IPv6Subnet: 64}, "by address, IPv6 by /64"},
		{SourceCriterion{IPStrategy: depth}, source.Criterion{Address: true, Depth: 2, IPv4Subnet: 32, IPv6Subnet: 56}, "by address at depth 2, IPv6 by /56"},
	} {
		config := least()
		config.SourceCriterion = tt.config
		s := checked(t, config)
		tt.want.OnMissing = source.MissingAddress
		source.Prepare(&tt.want)
		if p, _ := last(s); !reflect.DeepEqual(p.criterion, tt.want) {
			t.Errorf("criterion %+v, want %+v", p.criterion, tt.want)
		}
		if !strings.Contains(s.summary, tt.told) {
			t.Errorf("the summary lacks %q: %s", tt.told, s.summary)
		}
	}
}

func TestSummaryTellsWhatIsInForce(t *testing.T) {
	const secret = "hunter2-77a0"
	pki := suite.NewAuthority(t)
	pair := pki.Issue(t, "gateway", false)
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	config := least()
	config.Limit, config.Window, config.Scope, config.Headers, config.MaxClients = float64(4294967297), "1h30m", "api", "ietf", "10"
	config.OnStoreFailure = "closed"
	config.SourceCriterion.IPStrategy = &IPStrategy{ExcludedIPs: []string{"10.1.2.3/8", "192.0.2.1"}}
	config.Valkey = ValkeyConfig{
		Endpoints: []string{"[::1]:6380"}, Username: "app", PasswordFile: file, DB: "3", Timeout: "250ms", DialTimeout: "2s", KeyPrefix: "acme",
		TLS: &TLSConfig{CA: pki.PEM, Cert: pair.CertPEM, Key: pair.KeyPEM},
	}
	summary := checked(t, config).summary
	for _, told := range []string{
		"limit 4294967297 in 1h30m0s", "scope api", "10.0.0.0/8", "192.0.2.1/32", "headers ietf", "maxClients 10", "mode shared",
		"store [::1]:6380", "db 3", `user "app"`, "tls true", "timeout 250ms", "dialTimeout 2s", "keyPrefix acme", "onStoreFailure closed",
	} {
		if !strings.Contains(summary, told) {
			t.Errorf("the summary lacks %q: %s", told, summary)
		}
	}
	for _, kept := range []string{secret, file, "-----BEGIN"} {
		if strings.Contains(summary, kept) {
			t.Errorf("the summary has %q in it: %s", kept, summary)
		}
	}
	if strings.Contains(summary, "\n") {
		t.Errorf("the summary is more than a line: %q", summary)
	}
}

func TestPasswordFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	for _, tt := range []struct{ content, want string }{
		{"secret", "secret"},
		{"secret\n", "secret"},
		{"secret\r\n", "secret"},
		{"secret\n\n", "secret\n"},
		{" secret \n", " secret "},
		{"\nsecret", "\nsecret"},
		{"pässwörd✓\n", "pässwörd✓"},
		{strings.Repeat("x", 200) + "\n", strings.Repeat("x", 200)},
	} {
		if err := os.WriteFile(file, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		config := least()
		config.Valkey.Username, config.Valkey.PasswordFile = "app", file
		if got := checked(t, config).common.Store.Password; got != tt.want {
			t.Errorf("a file with %q gives the password %q, want %q", tt.content, got, tt.want)
		}
	}
	for _, content := range []string{"", "\n", "\r\n"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		config := least()
		config.Valkey.PasswordFile = file
		if _, err := check(config, "quota@docker"); err == nil || !strings.Contains(err.Error(), "valkey.passwordFile") {
			t.Errorf("a file with %q: %v", content, err)
		}
	}
}

func TestTLSFromFiles(t *testing.T) {
	pki := suite.NewAuthority(t)
	pair := pki.Issue(t, "gateway", false)
	dir := t.TempDir()
	path := func(name, content string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	config := least()
	config.Valkey.TLS = &TLSConfig{
		CA: path("ca.pem", pki.PEM), Cert: path("cert.pem", pair.CertPEM), Key: path("key.pem", pair.KeyPEM), ServerName: "store.example",
	}
	fromFiles := checked(t, config).common.Store
	if !fromFiles.TLS.RootCAs.Equal(pki.Pool) {
		t.Error("another authority is trusted")
	}
	if len(fromFiles.TLS.Certificates) != 1 || !reflect.DeepEqual(fromFiles.TLS.Certificates[0].Certificate, pair.Pair.Certificate) {
		t.Error("the gateway has another certificate")
	}
	if fromFiles.TLS.ServerName != "store.example" || fromFiles.TLS.InsecureSkipVerify {
		t.Errorf("server name %q, any certificate: %t", fromFiles.TLS.ServerName, fromFiles.TLS.InsecureSkipVerify)
	}

	// The text itself makes the same setting; a file with another text does not, so
	// that a new certificate is used after a reload.
	inline := *config.Valkey.TLS
	inline.CA, inline.Cert, inline.Key = pki.PEM, pair.CertPEM, pair.KeyPEM
	config.Valkey.TLS = &inline
	if got := checked(t, config).common.Store; got.TLSIdentity != fromFiles.TLSIdentity {
		t.Error("the same certificates in place of their files are another setting")
	}
	identities := map[string]string{fromFiles.TLSIdentity: "files"}
	for name, change := range map[string]func(c *TLSConfig){
		"another authority":   func(c *TLSConfig) { c.CA = suite.NewAuthority(t).PEM },
		"another certificate": func(c *TLSConfig) { c.Cert, c.Key = certAndKey(pki.Issue(t, "gateway", false)) },
		"another name":        func(c *TLSConfig) { c.ServerName = "other.example" },
		"any certificate":     func(c *TLSConfig) { c.InsecureSkipVerify = true },
		"no authority":        func(c *TLSConfig) { c.CA = nil },
		"nothing":             func(c *TLSConfig) { *c = TLSConfig{} },
	} {
		changed := inline
		change(&changed)
		config.Valkey.TLS = &changed
		got := checked(t, config).common.Store.TLSIdentity
		if same, known := identities[got]; known {
			t.Errorf("%s and %s are one setting", name, same)
		}
		identities[got] = name
	}
}

func certAndKey(c suite.Certificate) (cert, key string) { return c.CertPEM, c.KeyPEM }

func TestDurations(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "5": 5 * time.Second, "1ms": time.Millisecond, "1s": time.Second, "2m": 2 * time.Minute, "3h": 3 * time.Hour,
		"4d": 96 * time.Hour, "1d2h3m4s5ms": 26*time.Hour + 3*time.Minute + 4*time.Second + 5*time.Millisecond, "90m": 90 * time.Minute,
		"366d": maxWindow, "1m1m": 2 * time.Minute,
	} {
		if got, err := parseDuration(text); got != want || err != nil {
			t.Errorf("%q is %s, %v, want %s", text, got, err, want)
		}
	}
	// Sums beyond the largest duration are no small ones.
	for _, text := range []string{
		"", "s", "-1s", "+1s", "1.5s", "1 s", "1S", "1us", "1ns", "1w", "1y", "h1", "1h-1m", "0x1s", "١s", "99999999999s", "106752d",
		"9223372036854775808ms", strings.Repeat("732d", 200),
	} {
		if got, err := parseDuration(text); err == nil && got >= 0 && got <= maxWindow {
			t.Errorf("%.40q is %s", text, got)
		}
	}
}

func TestRefusalsAreShort(t *testing.T) {
	config := least()
	config.Limit = strings.Repeat("9", 1<<20)
	_, err := check(config, "quota@docker")
	if err == nil || len(err.Error()) > 400 || !strings.Contains(err.Error(), strings.Repeat("9", 100)) {
		t.Errorf("%d bytes: %.200v", len(fmt.Sprint(err)), err)
	}
}

// Names that would break an answer, or never reach the plugin, are refused.
func TestHeadersThatMeanSomethingElseAreRefused(t *testing.T) {
	for _, name := range []string{"Retry-After", "transfer-encoding", "content-length", "RateLimit", "ratelimit-policy", "X-RateLimit-Remaining", "Set-Cookie"} {
		_, err := check(&Config{Limit: "5", Window: "60s", Mode: "local", DecisionHeader: name}, "quota@file")
		if err == nil || !strings.Contains(err.Error(), "decisionHeader") || !strings.Contains(err.Error(), name) {
			t.Errorf("decisionHeader %s: error %v, want one that names both", name, err)
		}
	}
	for _, name := range []string{"Host", "content-length", "Transfer-Encoding", "connection"} {
		_, err := check(&Config{Limit: "5", Window: "60s", Mode: "local", SourceCriterion: SourceCriterion{RequestHeaderName: name}}, "quota@file")
		if err == nil || !strings.Contains(err.Error(), "requestHeaderName") || !strings.Contains(err.Error(), name) {
			t.Errorf("requestHeaderName %s: error %v, want one that names both", name, err)
		}
	}
}

// Who puts a secret where a file is wanted does not find it in the log.
func TestMisplacedSecretsAreNotShown(t *testing.T) {
	const secret = "hunter2hunter2"
	for name, valkey := range map[string]ValkeyConfig{
		"valkey.passwordFile": {Endpoints: []string{"valkey"}, PasswordFile: secret},
		"valkey.tls.key":      {Endpoints: []string{"valkey"}, TLS: &TLSConfig{Key: secret}},
		"valkey.endpoints":    {Endpoints: []string{"valkey:6379?password=" + secret}},
		"valkey.password":     {Endpoints: []string{"valkey"}, Password: 42},
	} {
		_, err := check(&Config{Limit: "5", Window: "60s", Valkey: valkey}, "quota@file")
		if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "42") {
			t.Errorf("%s: error %v, want one that names the option and not the secret", name, err)
		}
	}
	_, err := check(&Config{Limit: "5", Window: "60s", Valkey: ValkeyConfig{Endpoints: []string{"valkey"}, PasswordFile: "/no/such/file"}}, "quota@file")
	if err == nil || !strings.Contains(err.Error(), `"/no/such/file"`) {
		t.Errorf("error %v, want one that names the path", err)
	}
}

func TestNamesThatKeysNeedAreRefused(t *testing.T) {
	for _, name := range []string{"sw", "log", "tb"} {
		config := least()
		config.Rules = []RuleConfig{{Name: name, Path: "/x", Limit: "1"}}
		if _, err := check(config, "quota@docker"); err == nil || !strings.Contains(err.Error(), "rules[0].name") {
			t.Errorf("a rule called %s: %v", name, err)
		}
	}
}

func TestAddressesThatAreNoPartAreFoundAsTheTopLevelSays(t *testing.T) {
	config := least()
	config.IPStrategy = &IPStrategy{TrustedIPs: []string{"10.0.0.0/8"}, IPv4Subnet: "24"}
	config.SourceCriterion.RequestHeaderName = "X-Api-Key"
	config.Rules = []RuleConfig{
		{Name: "inherits", Path: "/a"},
		{Name: "cookie", Path: "/b", SourceCriterion: &SourceCriterion{CookieName: "sid"}},
		{Name: "own", Path: "/c", SourceCriterion: &SourceCriterion{IPStrategy: &IPStrategy{Depth: "2"}}},
	}
	for _, p := range checked(t, config).policies {
		c := p.criterion
		if p.name == "own" {
			if len(c.Trusted) != 0 || c.Depth != 2 || !c.Address {
				t.Errorf("rule %s: %+v", p.name, c)
			}
		} else if len(c.Trusted) != 1 || c.IPv4Subnet != 24 || c.Address {
			t.Errorf("rule %s: %+v", p.name, c)
		}
	}
	if s := checked(t, config).summary; !strings.Contains(s, "by header X-Api-Key, address behind trusted [10.0.0.0/8], IPv4 by /24") {
		t.Errorf("the summary does not say where addresses stand: %s", s)
	}
	config.IPStrategy.Depth = "1"
	config.SourceCriterion.IPStrategy = &IPStrategy{}
	if _, err := check(config, "quota@docker"); err == nil || !strings.Contains(err.Error(), "option ipStrategy.depth") {
		t.Errorf("depth and trustedIPs together: %v", err)
	}
}
