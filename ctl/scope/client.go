package scope

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/gatequota/gatequota/source"
)

// A Client is one as gateways count it, under the rules that tell clients apart in the same
// way.
type Client struct {
	Hash string `json:"hash"`
	// By says what about a request tells it apart, such as "header X-Api-Key"; "hash" where
	// that is not known.
	By     string   `json:"by"`
	Rules  []string `json:"rules"` // "" is the top level
	Counts []Count  `json:"-"`
	Top    bool     `json:"-"` // it is counted by the top level
}

// Clients returns who a value may be in a scope: one client for each way in which its rules
// tell clients apart, and the reasons why some of these ways do not fit. secret is for
// gateways that digest with one; without any report, value is taken for that of a header.
func (st *State) Clients(value, secret string) (clients []Client, unfit []error) {
	if st.Reporting() == 0 {
		identity, err := source.ValueIdentity(&source.Criterion{Header: "-"}, value)
		if err != nil {
			return nil, []error{err}
		}
		return []Client{{Hash: digest(identity, secret), By: "the value alone, as of a header"}}, nil
	}
	for _, p := range st.Policies() {
		by := Describe(&p.Source)
		if p.Keyed && secret == "" {
			unfit = append(unfit, fmt.Errorf("by %s: gateways digest clients with valkey.keySecret: name the same file with --key-secret-file", by))
			continue
		}
		used := ""
		if p.Keyed {
			used = secret
		}
		identity, err := source.ValueIdentity(&p.Source, value)
		if err != nil {
			// The value may be a secret.
			unfit = append(unfit, fmt.Errorf("by %s: %s", by, strings.ReplaceAll(err.Error(), fmt.Sprintf("%q", value), "it")))
		} else {
			clients = join(clients, Client{Hash: digest(identity, used), By: by}, &p)
		}
		if standIn := byAddress(&p.Source); standIn != nil {
			if _, err := netip.ParseAddr(strings.TrimSpace(value)); err == nil {
				identity, _ := source.ValueIdentity(standIn, value)
				clients = join(clients, Client{Hash: digest(identity, used), By: "address, without " + by}, &p)
			}
		}
	}
	return clients, compact(unfit)
}

// ByHash returns the client with that digest, under all rules.
func (st *State) ByHash(hash string) Client {
	clients := []Client{{Hash: hash, By: "hash"}}
	for _, p := range st.Policies() {
		clients = join(clients, clients[0], &p)
	}
	return clients[0]
}

// join adds a client of a rule to those that are known.
func join(clients []Client, c Client, p *Policy) []Client {
	i := slices.IndexFunc(clients, func(other Client) bool { return other.Hash == c.Hash })
	if i < 0 {
		i = len(clients)
		clients = append(clients, c)
	}
	known := &clients[i]
	if !slices.Contains(known.Rules, p.Rule.Rule) {
		known.Rules = append(known.Rules, p.Rule.Rule)
	}
	known.Top = known.Top || p.Rule.Rule == ""
	for _, count := range p.Counts {
		if !slices.Contains(known.Counts, count) {
			known.Counts = append(known.Counts, count)
		}
	}
	sortCounts(known.Counts)
	return clients
}

// compact drops errors that say the same.
func compact(errs []error) []error {
	var kept []error
	for _, err := range errs {
		if !slices.ContainsFunc(kept, func(other error) bool { return other.Error() == err.Error() }) {
			kept = append(kept, err)
		}
	}
	return kept
}

func digest(identity, secret string) string {
	if secret != "" {
		return hex.EncodeToString([]byte(source.KeyedDigest(secret, identity)))
	}
	return hex.EncodeToString([]byte(source.Digest(identity)))
}

// byAddress returns the criterion by which those are counted who lack the one part of c,
// nil where that is not their address.
func byAddress(c *source.Criterion) *source.Criterion {
	parts := parts(c)
	if len(parts) != 1 || parts[0] == "address" || c.OnMissing != "" && c.OnMissing != source.MissingAddress {
		return nil
	}
	return &source.Criterion{IPv4Subnet: c.IPv4Subnet, IPv6Subnet: c.IPv6Subnet}
}

// Describe says by what c tells clients apart.
func Describe(c *source.Criterion) string { return strings.Join(parts(c), " and ") }

func parts(c *source.Criterion) []string {
	var all []string
	if c.Header != "" {
		all = append(all, "header "+c.Header)
	}
	for _, name := range c.Headers {
		all = append(all, "header "+name)
	}
	if c.Host {
		all = append(all, "host")
	}
	if c.Cookie != "" {
		all = append(all, "cookie "+c.Cookie)
	}
	if c.Query != "" {
		all = append(all, "query parameter "+c.Query)
	}
	if c.Segment > 0 {
		all = append(all, fmt.Sprintf("segment %d of the path", c.Segment))
	}
	if c.Claim != "" {
		all = append(all, "claim "+c.Claim)
	}
	if c.TLSSubject {
		all = append(all, "subject of the certificate")
	}
	if c.Address || len(all) == 0 {
		all = append(all, "address")
	}
	return all
}
