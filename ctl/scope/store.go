// Package scope is what the command gatequota and the gateways say to each other through
// the store: it reads what gateways report of a scope and what clients have used there,
// and changes what the gateways obey. What the fields of that conversation mean is said
// in the plugin's own package control.
//
// Time is the store's everywhere. Nothing here asks the store for more than a part of its
// keys at a time.
package scope

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/gatequota/gatequota/resp"
)

// Options say where the store is and how one logs in there.
type Options struct {
	Endpoint string // as in valkey.endpoints
	Username string
	Password string
	DB       int
	TLS      *tls.Config   // nil: not encrypted
	Timeout  time.Duration // of opening a connection, and of each answer
	Prefix   string        // as valkey.keyPrefix
}

// A Store is where gateways count and what they read. It may be used by several goroutines
// at once.
type Store struct {
	client   *redis.Client
	endpoint string
	prefix   string
}

// keysAtOnce is how many keys the store is asked to look at in one step of a search, a
// fraction of a millisecond of its time, and how many commands go to it in one batch.
const keysAtOnce = 500

// quiet is for what the client library would print.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(quiet{}) }

// Open returns the store of o. Nothing is dialled before it is first used. Its error says
// what is wrong with o.Endpoint.
func Open(o *Options) (*Store, error) {
	network, address, err := resp.ParseEndpoint(o.Endpoint)
	if err != nil {
		return nil, err
	}
	if network == "unix" && o.TLS != nil {
		return nil, errors.New("a socket is not encrypted: drop the options of TLS or name a host")
	}
	return &Store{endpoint: o.Endpoint, prefix: o.Prefix, client: redis.NewClient(&redis.Options{
		Network: network, Addr: address, Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLS,
		DialTimeout: o.Timeout, ReadTimeout: o.Timeout, WriteTimeout: o.Timeout, ContextTimeoutEnabled: true,
		// What was sent and not answered may have been done, and is not sent twice.
		MaxRetries: -1, DialerRetries: 1,
		// Nothing that a user with few rights may not call.
		Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		PoolSize:                 2,
	})}, nil
}

// Close closes the connections of s.
func (s *Store) Close() { _ = s.client.Close() }

// scan calls each with the keys that match a pattern, some at a time and now and then one
// of them twice, until each returns false, and reports whether it has seen all of them.
func (s *Store) scan(ctx context.Context, pattern string, each func(keys []string) (bool, error)) (all bool, err error) {
	cursor := uint64(0)
	for {
		keys, next, err := s.client.Scan(ctx, cursor, pattern, keysAtOnce).Result()
		if err != nil {
			return false, fmt.Errorf("searching keys: %w", err)
		}
		more := true
		if len(keys) > 0 {
			more, err = each(keys)
		}
		if err != nil || next == 0 || !more {
			return next == 0, err
		}
		cursor = next
	}
}

// Scopes returns the scopes that gateways announce, in order.
func (s *Store) Scopes(ctx context.Context) ([]string, error) {
	head, tail := s.prefix+":", ":gateways"
	var names []string
	_, err := s.scan(ctx, head+"*"+tail, func(keys []string) (bool, error) {
		for _, key := range keys {
			name := strings.TrimSuffix(strings.TrimPrefix(key, head), tail)
			if !strings.Contains(name, ":") && !slices.Contains(names, name) { // one with a colon has another prefix
				names = append(names, name)
			}
		}
		return true, nil
	})
	slices.Sort(names)
	return names, err
}

// Health is how the store fares. What its user may not ask for is empty.
type Health struct {
	Endpoint string  `json:"endpoint"`
	Software string  `json:"software,omitempty"` // Valkey or Redis
	Version  string  `json:"version,omitempty"`
	Latency  float64 `json:"latency"` // of one answer, in seconds
	// ClockOffset is how far its clock is ahead of this machine's, in seconds.
	ClockOffset float64 `json:"clockOffset"`
	Memory      int64   `json:"memory,omitempty"`    // in use, in bytes
	MaxMemory   int64   `json:"maxMemory,omitempty"` // 0: no bound
	Policy      string  `json:"maxMemoryPolicy,omitempty"`
	Clients     int64   `json:"clients,omitempty"`
	Role        string  `json:"role,omitempty"` // master or slave
	// Denied says why the rest is empty.
	Denied string `json:"denied,omitempty"`
}

// Health asks how the store fares.
func (s *Store) Health(ctx context.Context) (*Health, error) {
	h := &Health{Endpoint: s.endpoint}
	if _, err := s.client.Time(ctx).Result(); err != nil { // opens the connection
		return nil, fmt.Errorf("asking for the time: %w", err)
	}
	asked := time.Now()
	now, err := s.client.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("asking for the time: %w", err)
	}
	took := time.Since(asked)
	h.Latency = took.Seconds()
	h.ClockOffset = now.Sub(asked.Add(took / 2)).Seconds()
	info := map[string]string{}
	for _, section := range []string{"server", "memory", "clients", "replication"} {
		text, err := s.client.Info(ctx, section).Result()
		if err != nil && !isServerError(err) {
			return nil, fmt.Errorf("asking for information: %w", err)
		}
		if err != nil {
			h.Denied = err.Error()
			continue
		}
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			info[name] = value
		}
	}
	h.Software, h.Version = "Redis", info["redis_version"]
	if info["valkey_version"] != "" {
		h.Software, h.Version = "Valkey", info["valkey_version"]
	}
	if h.Version == "" {
		h.Software = ""
	}
	h.Memory, _ = strconv.ParseInt(info["used_memory"], 10, 64)
	h.MaxMemory, _ = strconv.ParseInt(info["maxmemory"], 10, 64)
	h.Policy = info["maxmemory_policy"]
	h.Clients, _ = strconv.ParseInt(info["connected_clients"], 10, 64)
	h.Role = info["role"]
	return h, nil
}

// isServerError tells whether the store answered, if with an error.
func isServerError(err error) bool {
	var answered redis.Error
	return errors.As(err, &answered) && !errors.Is(err, redis.Nil)
}
