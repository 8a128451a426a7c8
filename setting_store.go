package gatequota

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gatequota/gatequota/limiter"
	"github.com/gatequota/gatequota/resp"
)

// minKeySecret is the length in bytes from which on a secret is worth the name.
const minKeySecret = 16

// store checks the options of the store also where mode is local, so that changing
// the mode brings no surprise; only then the endpoint may be missing.
func (o *options) store(config *ValkeyConfig, shared bool) *limiter.StoreSettings {
	s := &limiter.StoreSettings{
		Username:    o.text("valkey.username", config.Username),
		Password:    o.secret("valkey.password", config.Password, config.PasswordFile),
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
	s.KeySecret = o.keySecret
	if s.KeySecret != "" && len(s.KeySecret) < minKeySecret {
		o.fail(fmt.Errorf("option valkey.keySecret: at least %d bytes are wanted, and it has %d", minKeySecret, len(s.KeySecret)))
	}
	if s.Username != "" && s.Password == "" {
		o.refuse("valkey.username", s.Username, "a username needs valkey.password or valkey.passwordFile")
	}
	if config.TLS != nil {
		o.tls(config.TLS, s)
	}
	return s
}

// secret reads a secret, or takes it from a file. Errors name the file and never what
// stands in it.
func (o *options) secret(option string, value, file interface{}) string {
	secret := o.text(option, value)
	path := o.text(option+"File", file)
	if path == "" || o.err != nil {
		return secret
	}
	if secret != "" {
		o.refuse(option+"File", path, option+" is set too; only one of them can be")
		return ""
	}
	content := o.file(option+"File", path)
	if o.err != nil {
		return ""
	}
	secret = strings.TrimSuffix(strings.TrimSuffix(content, "\n"), "\r")
	if secret == "" {
		o.refuse(option+"File", path, "the file is empty")
	}
	return secret
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
