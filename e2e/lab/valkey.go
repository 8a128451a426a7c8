package lab

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// StoreOptions say how a store is started. The zero value is a Valkey without
// password that persists nothing.
type StoreOptions struct {
	Redis     bool       // start redis-server instead of valkey-server
	Password  string     // requirepass
	Unix      bool       // listen on a unix socket as well
	TLS       *Authority // listen with TLS, certificates signed by this authority, and not in plain
	Pair      Pair       // the certificate to show, instead of one that is right
	TLSClient bool       // let in only who shows a certificate of the authority
	ReplicaOf *Store     // replicate this one, read-only
	Cluster   bool       // cluster mode, all slots assigned to this node
	Args      []string   // more options, such as "--maxmemory", "1mb"
	Env       []string   // more of the environment, as NAME=value
}

// Store is one running Valkey or Redis. It keeps its port over restarts.
type Store struct {
	Port int

	t       testing.TB
	options StoreOptions
	binary  string
	dir     string
	output  *Log
	proc    *process
	admin   *redis.Client

	identity tls.Certificate // of the lab's own client, where TLS is on
}

// Valkey starts a store on a free loopback port and waits until it answers.
func Valkey(t testing.TB, o StoreOptions) *Store {
	t.Helper()
	s := &Store{t: t, options: o, output: new(Log)}
	if o.Redis {
		s.binary = program(t, "redis-server", "REDIS_SERVER")
	} else {
		s.binary = program(t, "valkey-server", "VALKEY_SERVER")
	}
	s.dir = t.TempDir()
	if o.TLS != nil {
		pair := o.TLS.Issue(t, "lab", "lab")
		identity, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		s.identity = identity
	}
	t.Cleanup(func() {
		if s.admin != nil {
			_ = s.admin.Close()
		}
		if s.proc != nil {
			s.proc.signal(syscall.SIGCONT)
			s.proc.end(syscall.SIGKILL)
		}
	})
	var err error
	for range 5 {
		// A port may be taken by another test binary between choice and use.
		s.Port = FreePort(t)
		if err = s.start(); err == nil {
			return s
		}
		if !strings.Contains(s.Log(), "Address already in use") {
			break
		}
	}
	t.Fatalf("starting the store: %v\n%s", err, s.output)
	return nil
}

// Addr returns the store's host and port.
func (s *Store) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.Port) }

// Socket returns the path of the store's unix socket.
func (s *Store) Socket() string { return filepath.Join(s.dir, "store.sock") }

// Log returns what the store has printed.
func (s *Store) Log() string { return s.output.String() }

func (s *Store) start() error {
	o := s.options
	args := []string{"--bind", "127.0.0.1", "-::1", "--save", "", "--appendonly", "no", "--dir", s.dir,
		"--enable-debug-command", "yes", "--daemonize", "no"}
	if o.TLS != nil {
		pair := o.Pair
		if pair.CertFile == "" {
			pair = o.TLS.Issue(s.t, "store", "127.0.0.1", "localhost")
		}
		clients := "optional"
		if o.TLSClient {
			clients = "yes"
		}
		args = append(args, "--port", "0", "--tls-port", strconv.Itoa(s.Port), "--tls-cert-file", pair.CertFile,
			"--tls-key-file", pair.KeyFile, "--tls-ca-cert-file", o.TLS.CertFile, "--tls-auth-clients", clients)
	} else {
		args = append(args, "--port", strconv.Itoa(s.Port))
	}
	if o.Password != "" {
		args = append(args, "--requirepass", o.Password)
	}
	if o.Unix {
		args = append(args, "--unixsocket", s.Socket())
	}
	if o.ReplicaOf != nil {
		args = append(args, "--replicaof", fmt.Sprintf("127.0.0.1 %d", o.ReplicaOf.Port))
	}
	if o.Cluster {
		args = append(args, "--cluster-enabled", "yes", "--cluster-config-file", filepath.Join(s.dir, "nodes.conf"))
	}
	args = append(args, o.Args...)

	proc, err := startProcess(s.output, s.dir, o.Env, s.binary, args...)
	if err != nil {
		return err
	}
	s.proc = proc
	admin := s.newClient()
	up := eventually(patience, func() bool {
		if proc.exited() {
			return true
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return admin.Ping(ctx).Err() == nil
	})
	if !up || proc.exited() {
		err := admin.Ping(context.Background()).Err()
		_ = admin.Close()
		proc.end(syscall.SIGKILL)
		return fmt.Errorf("it does not answer: %w", err)
	}
	if s.admin == nil {
		s.admin = admin
	} else {
		_ = admin.Close()
	}
	if o.Cluster {
		if err := s.admin.Do(context.Background(), "CLUSTER", "ADDSLOTSRANGE", 0, 16383).Err(); err != nil && !strings.Contains(err.Error(), "already busy") {
			return err
		}
		eventually(patience, func() bool {
			return strings.Contains(s.admin.Do(context.Background(), "CLUSTER", "INFO").String(), "cluster_state:ok")
		})
	}
	return nil
}

func (s *Store) newClient() *redis.Client {
	options := &redis.Options{Addr: s.Addr(), Protocol: 2, Password: s.options.Password, ClientName: clientName,
		DisableIdentity: true, MaxRetries: 3, PoolSize: 4, ReadTimeout: patience, ContextTimeoutEnabled: true}
	if s.options.TLS != nil {
		// The lab trusts what it has started itself, right or wrong.
		options.TLSConfig = &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{s.identity}}
	}
	return redis.NewClient(options)
}

// clientName tells the lab's own connections from the plugin's.
const clientName = "lab"

// Start starts the store again, on the same port, with nothing in it.
func (s *Store) Start() {
	s.t.Helper()
	if err := s.start(); err != nil {
		s.t.Fatalf("starting the store again: %v\n%s", err, s.output)
	}
}

// Kill ends the store as a crash would.
func (s *Store) Kill() { s.proc.end(syscall.SIGKILL) }

// Stop ends the store as an operator would.
func (s *Store) Stop() { s.proc.end(syscall.SIGTERM) }

// Pause freezes the store: the kernel accepts connections for it, and nothing answers.
func (s *Store) Pause() { s.proc.signal(syscall.SIGSTOP) }

// Resume lets a frozen store go on.
func (s *Store) Resume() { s.proc.signal(syscall.SIGCONT) }

// Client returns a client of the lab's own, with every right.
func (s *Store) Client() *redis.Client { return s.admin }

// Do runs one command and returns its reply.
func (s *Store) Do(args ...any) any {
	s.t.Helper()
	reply, err := s.admin.Do(context.Background(), args...).Result()
	if err != nil {
		s.t.Fatalf("%v: %v", args, err)
	}
	return reply
}

// Keys returns all keys of a database but those in which gateways announce themselves:
// they come when they come.
func (s *Store) Keys() []string {
	s.t.Helper()
	return slices.DeleteFunc(s.allKeys(), func(key string) bool { return strings.HasSuffix(key, ":gateways") })
}

func (s *Store) allKeys() []string {
	s.t.Helper()
	keys, err := s.admin.Keys(context.Background(), "*").Result()
	if err != nil {
		s.t.Fatalf("listing the store's keys: %v", err)
	}
	return keys
}

// Sum adds up the numbers in all keys that match a pattern.
func (s *Store) Sum(pattern string) int {
	s.t.Helper()
	keys, err := s.admin.Keys(context.Background(), pattern).Result()
	if err != nil {
		s.t.Fatalf("listing the store's keys: %v", err)
	}
	sum := 0
	for _, key := range keys {
		n, err := s.admin.Get(context.Background(), key).Int()
		if err != nil {
			s.t.Fatalf("reading %s: %v", key, err)
		}
		sum += n
	}
	return sum
}

// WithoutExpiry returns the keys that would stay for ever.
func (s *Store) WithoutExpiry() []string {
	s.t.Helper()
	var stay []string
	for _, key := range s.allKeys() {
		ttl, err := s.admin.PTTL(context.Background(), key).Result()
		if err != nil {
			s.t.Fatalf("reading the expiry of %s: %v", key, err)
		}
		if ttl == -1 {
			stay = append(stay, key)
		}
	}
	return stay
}

// Info returns one figure of INFO, such as "total_connections_received".
func (s *Store) Info(field string) int {
	s.t.Helper()
	text, err := s.admin.Info(context.Background(), "everything").Result()
	if err != nil {
		s.t.Fatalf("asking the store: %v", err)
	}
	for _, line := range strings.Split(text, "\r\n") {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			n, err := strconv.Atoi(value)
			if err != nil {
				s.t.Fatalf("%s is %q", field, value)
			}
			return n
		}
	}
	s.t.Fatalf("the store's INFO has no field %s", field)
	return 0
}

// Clients returns how many connections others than the lab have open.
func (s *Store) Clients() int {
	s.t.Helper()
	text, err := s.admin.ClientList(context.Background()).Result()
	if err != nil {
		s.t.Fatalf("listing the store's clients: %v", err)
	}
	n := 0
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if !strings.Contains(line, " name="+clientName+" ") {
			n++
		}
	}
	return n
}

// Monitor records every command that the store executes, as MONITOR prints it,
// until the test ends or the returned function is called.
func (s *Store) Monitor() (log *Log, stop func()) {
	s.t.Helper()
	cli := program(s.t, filepath.Base(strings.TrimSuffix(s.binary, "-server"))+"-cli", "VALKEY_CLI")
	log = new(Log)
	args := []string{"-h", "127.0.0.1", "-p", strconv.Itoa(s.Port), "--no-auth-warning"}
	if s.options.Password != "" {
		args = append(args, "-a", s.options.Password)
	}
	proc, err := startProcess(log, s.dir, nil, cli, append(args, "MONITOR")...)
	if err != nil {
		s.t.Fatal(err)
	}
	stop = func() { proc.end(syscall.SIGKILL) }
	s.t.Cleanup(stop)
	Until(s.t, "MONITOR is on", func() bool { return strings.HasPrefix(log.String(), "OK") })
	return log, stop
}

// PasswordFile writes a secret to a file and returns its path.
func PasswordFile(t testing.TB, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(path, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// EndScript ends the script that blocks a store without password. It takes a
// connection of its own, since the opening of the client's connections is more
// than a blocked store permits.
func (s *Store) EndScript() {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, "SCRIPT KILL\r\n"); err != nil {
		s.t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); line != "+OK\r\n" {
		s.t.Fatalf("ending a script: %q, %v", line, err)
	}
}

// T returns the test that the store was started for.
func (s *Store) T() testing.TB { return s.t }

// Running tells whether the store has not ended.
func (s *Store) Running() bool { return !s.proc.exited() }
