package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gatequota/gatequota/ctl/scope"
)

// options are what all commands have in common.
type options struct {
	endpoint, username, passwordFile    string
	db                                  int
	tls                                 bool
	tlsCA, tlsCert, tlsKey, serverName  string
	timeout                             time.Duration
	prefix, scopeName, secretFile, hash string
	by                                  string
	json, yes                           bool

	store  *scope.Store
	secret string // for digests of clients; "": none
}

// fromEnvironment are the flags that an environment variable may set in their place.
var fromEnvironment = []string{"endpoint", "username", "password-file", "db", "tls", "tls-ca", "tls-cert", "tls-key", "server-name",
	"timeout", "prefix", "scope", "key-secret-file", "by"}

// variable returns the name of the environment variable of a flag.
func variable(flag string) string {
	return "GATEQUOTA_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func (a *app) flags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.SortFlags = false
	f.StringVarP(&a.endpoint, "endpoint", "e", "127.0.0.1:6379", "the store, as in valkey.endpoints: `host:port` or unix:///path")
	f.StringVarP(&a.scopeName, "scope", "s", "", "the scope (default: the only one that gateways announce)")
	f.StringVar(&a.prefix, "prefix", "rate", "what keys begin with, as valkey.keyPrefix")
	f.StringVar(&a.username, "username", "", "the user of the store")
	f.StringVar(&a.passwordFile, "password-file", "", "a `file` that holds the password (or the password in GATEQUOTA_PASSWORD)")
	f.IntVar(&a.db, "db", 0, "the database, as valkey.db")
	f.BoolVar(&a.tls, "tls", false, "encrypt the connection, as each other option of TLS does too")
	f.StringVar(&a.tlsCA, "tls-ca", "", "a `file` with who signs the store's certificate (default: whom the system trusts)")
	f.StringVar(&a.tlsCert, "tls-cert", "", "a `file` with the certificate to show")
	f.StringVar(&a.tlsKey, "tls-key", "", "a `file` with its key")
	f.StringVar(&a.serverName, "server-name", "", "the name in the store's certificate (default: the host)")
	f.DurationVar(&a.timeout, "timeout", 3*time.Second, "how long to wait for the store")
	f.StringVar(&a.secretFile, "key-secret-file", "", "the `file` of valkey.keySecretFile, where gateways have one")
	f.BoolVar(&a.json, "json", false, "print JSON")
	_ = root.RegisterFlagCompletionFunc("scope", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		if a.prepare(cmd) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
		defer cancel()
		names, _ := a.store.Scopes(ctx)
		return names, cobra.ShellCompDirectiveNoFileComp
	})
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%w\nRun %s --help for what is allowed.", err, cmd.CommandPath())
	})
}

var (
	scopePattern  = regexp.MustCompile(`^[A-Za-z0-9@._-]+$`)
	prefixPattern = regexp.MustCompile(`^[A-Za-z0-9@._:-]+$`)
)

// prepare reads the environment and the files that flags name, and checks what they say. It
// does not connect yet.
func (a *app) prepare(cmd *cobra.Command) error {
	for _, name := range fromEnvironment {
		flag, value := cmd.Flag(name), a.env(variable(name))
		if flag == nil || flag.Changed || value == "" {
			continue
		}
		if err := flag.Value.Set(value); err != nil {
			return usage("%s is %q: %w", variable(name), value, err)
		}
	}
	if a.scopeName != "" && !scopePattern.MatchString(a.scopeName) {
		return usage("--scope %q: only letters, digits and @._- are allowed", a.scopeName)
	}
	if !prefixPattern.MatchString(a.prefix) {
		return usage("--prefix %q: only letters, digits and @._-: are allowed", a.prefix)
	}
	if a.timeout <= 0 {
		return usage("--timeout %s: a time above zero is wanted", a.timeout)
	}
	if a.db < 0 {
		return usage("--db %d: a number from 0 on is wanted", a.db)
	}
	var err error
	if a.secret, err = secretIn("--key-secret-file", a.secretFile); err != nil {
		return err
	}
	o := &scope.Options{Endpoint: a.endpoint, Username: a.username, DB: a.db, Timeout: a.timeout, Prefix: a.prefix}
	if o.Password, err = secretIn("--password-file", a.passwordFile); err != nil {
		return err
	}
	if a.passwordFile == "" {
		o.Password = a.env("GATEQUOTA_PASSWORD")
	}
	if o.Username != "" && o.Password == "" {
		return usage("--username %s needs --password-file, or GATEQUOTA_PASSWORD", o.Username)
	}
	if o.TLS, err = a.encryption(); err != nil {
		return err
	}
	if a.store, err = scope.Open(o); err != nil {
		return usage("--endpoint: %w", err)
	}
	return nil
}

// secretIn returns what stands in a file, without one line end at its end, as the gateways
// read it.
func secretIn(flag, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", usage("%s: %w", flag, err)
	}
	secret := strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
	if secret == "" {
		return "", usage("%s: %s is empty", flag, path)
	}
	return secret, nil
}

// encrypted tells whether the connection is to be encrypted.
func (a *app) encrypted() bool {
	return a.tls || a.tlsCA != "" || a.tlsCert != "" || a.tlsKey != "" || a.serverName != ""
}

// encryption returns nil where there is none.
func (a *app) encryption() (*tls.Config, error) {
	if !a.encrypted() {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.serverName}
	if a.tlsCA != "" {
		pem, err := os.ReadFile(a.tlsCA)
		if err != nil {
			return nil, usage("--tls-ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usage("--tls-ca: there is no certificate in %s", a.tlsCA)
		}
	}
	if (a.tlsCert == "") != (a.tlsKey == "") {
		return nil, usage("--tls-cert and --tls-key are only of use together")
	}
	if a.tlsCert != "" {
		pair, err := tls.LoadX509KeyPair(a.tlsCert, a.tlsKey)
		if err != nil {
			return nil, usage("--tls-cert: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// openScope returns the scope that the command is for.
func (a *app) openScope(ctx context.Context) (*scope.Scope, error) {
	if a.scopeName != "" {
		return a.store.Scope(a.scopeName), nil
	}
	names, err := a.store.Scopes(ctx)
	if err != nil {
		return nil, err
	}
	switch len(names) {
	case 0:
		return nil, exit(exitFailed, "no gateway announces a scope under the prefix %s at %s: set control: true in its middleware, or name the scope with --scope, or another prefix with --prefix", a.prefix, a.endpoint)
	case 1:
		return a.store.Scope(names[0]), nil
	}
	return nil, usage("there are several scopes: choose one with --scope: %s", strings.Join(names, ", "))
}

// read returns the scope that the command is for, and what is known of it.
func (a *app) read(ctx context.Context) (*scope.Scope, *scope.State, error) {
	s, err := a.openScope(ctx)
	if err != nil {
		return nil, nil, err
	}
	st, err := s.Read(ctx)
	return s, st, err
}

// announced names the scopes that gateways announce, for who has named another one.
func (a *app) announced(ctx context.Context) string {
	names, err := a.store.Scopes(ctx)
	switch {
	case err != nil:
		return "not known: " + err.Error()
	case len(names) == 0:
		return fmt.Sprintf("none, under the prefix %s at %s", a.prefix, a.endpoint)
	}
	return strings.Join(names, ", ")
}

// hint says what to do about an error of the store.
func (a *app) hint(err error) string {
	text := err.Error()
	var dial *net.OpError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	has := func(part string) bool { return strings.Contains(text, part) }
	switch {
	case errors.Is(err, context.Canceled):
		return ""
	case errors.As(err, &unknown):
		return "Name who signs the store's certificate with --tls-ca."
	case errors.As(err, &host):
		return "Say which name the store's certificate has with --server-name."
	case has("first record does not look like a TLS handshake"):
		return "The store does not speak TLS there: drop --tls and what goes with it."
	case has("NOAUTH"), has("WRONGPASS"):
		return "Log in with --username and --password-file, or GATEQUOTA_USERNAME and GATEQUOTA_PASSWORD."
	case has("NOPERM"):
		return "The user of the store lacks a right: docs/command.md lists those that are needed."
	case has("READONLY"):
		return "That is a replica: name the primary with --endpoint."
	case has("MOVED"), has("CLUSTERDOWN"):
		return "The store runs in cluster mode, which Gatequota does not support."
	case errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Sprintf("Tried %s: is the store there? --endpoint or GATEQUOTA_ENDPOINT names it.", a.endpoint)
	case has("redis: can't parse"):
		return fmt.Sprintf("What answers at %s is no Valkey: --endpoint or GATEQUOTA_ENDPOINT names the store.", a.endpoint)
	case (errors.Is(err, io.EOF) || has("connection reset") || has("broken pipe")) && a.encrypted():
		return "The store hung up: it may want a certificate: give --tls-cert and --tls-key."
	case errors.Is(err, io.EOF), has("connection reset"), has("broken pipe"):
		return "The store hung up: if it speaks TLS there, give --tls."
	case has("i/o timeout"), errors.Is(err, context.DeadlineExceeded):
		hint := fmt.Sprintf("Tried %s for %s: --timeout sets how long.", a.endpoint, a.timeout)
		if a.encrypted() {
			hint += " If the store does not speak TLS there, drop --tls and what goes with it."
		}
		return hint
	}
	return ""
}

// clients returns who a command is for: args holds the value of a client or nothing, where
// --hash names it.
func (a *app) clients(st *scope.State, args []string) ([]scope.Client, error) {
	if a.hash != "" {
		hash := strings.ToLower(a.hash)
		if !scope.IsHash(hash) {
			return nil, usage("--hash %q: the 64 hexadecimal digits are wanted that stand in braces in a client's keys", a.hash)
		}
		return []scope.Client{st.ByHash(hash)}, nil
	}
	value, err := a.value(args[0])
	if err != nil {
		return nil, err
	}
	clients, unfit := st.Clients(value, a.secret)
	if len(clients) == 0 {
		return nil, exit(exitFailed, "the value names no client: %w; --hash takes the digest in its keys, which gatequota top shows", errors.Join(unfit...))
	}
	for _, err := range unfit {
		fmt.Fprintf(a.err, "gatequota: not counted %s\n", plain(err.Error()))
	}
	return clients, nil
}

// value returns the value of a client. "-" takes it from the first line of the input, so that
// no secret stands in a list of processes or in the history of a shell.
func (a *app) value(arg string) (string, error) {
	if arg != "-" {
		return arg, nil
	}
	if file, ok := a.in.(*os.File); ok && a.inTerminal {
		fmt.Fprint(a.err, "Value (it is not shown): ")
		value, err := term.ReadPassword(int(file.Fd()))
		fmt.Fprintln(a.err)
		return string(value), err
	}
	line, err := bufio.NewReader(a.in).ReadString('\n')
	if err != nil && (line == "" || !errors.Is(err, io.EOF)) {
		return "", usage("no value on the standard input: %w", err)
	}
	return strings.TrimRight(line, "\r\n"), nil
}

// oneClient checks that exactly one of VALUE and --hash is there.
func (a *app) oneClient(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) > 1:
		return usage("%s takes one VALUE, and %d are there: put quotes around one with a blank in it", cmd.CommandPath(), len(args))
	case len(args) == 1 && a.hash != "":
		return usage("VALUE and --hash both name a client: give one of them")
	case len(args) == 0 && a.hash == "":
		return usage("VALUE is missing: what tells the client apart, such as its API key; - reads it from the standard input, and --hash takes its digest")
	}
	return nil
}

// hashFlag adds --hash to a command for one client.
func (a *app) hashFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.hash, "hash", "", "the client by its digest, the 64 `hex` digits in its keys, in place of VALUE")
}

// confirm asks before something is done to all clients.
func (a *app) confirm(question string) error {
	if a.yes {
		return nil
	}
	if !a.inTerminal {
		return exit(exitDeclined, "nothing was changed: this is for all clients, and nobody is there to confirm it; give --yes")
	}
	fmt.Fprintf(a.err, "%s [y/N] ", question)
	line, _ := bufio.NewReader(a.in).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return exit(exitDeclined, "nothing was changed")
}

// yesFlag adds --yes to a command that asks.
func (a *app) yesFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&a.yes, "yes", "y", false, "do not ask")
}

// byFlag adds --by to a command that changes something.
func (a *app) byFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.by, "by", a.user, "who is remembered for the change")
}
