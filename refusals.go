package gatequota

import (
	"encoding/hex"
	"sync"
	"sync/atomic"

	"github.com/gatequota/gatequota/journal"
	"github.com/gatequota/gatequota/window"
)

// A sampler picks those of the refusals under a rule that are logged.
type sampler struct {
	every  int64 // each so many-th, and the first
	count  *int64
	scope  string
	rule   string
	secret string // for digests of clients; "": none
}

var (
	refusalsMu sync.Mutex
	refusals   = map[string]*int64{} // by scope and rule: they outlive a reload
)

// newSampler returns nil where none is to be logged.
func newSampler(s *setting, p *policy) *sampler {
	if s.refusals == 0 {
		return nil
	}
	refusalsMu.Lock()
	defer refusalsMu.Unlock()
	key := s.scope + " " + p.name
	if refusals[key] == nil {
		refusals[key] = new(int64)
	}
	return &sampler{every: s.refusals, count: refusals[key], scope: s.scope, rule: p.name, secret: s.secret}
}

// due counts a refusal, and reports whether it is one of those that are logged.
func due(s *sampler) bool {
	return (atomic.AddInt64(s.count, 1)-1)%s.every == 0
}

// shownDigits is how many digits of a client's digest are shown: enough to find its keys,
// and to tell it from a million others.
const shownDigits = 12

// noteRefusal logs a refusal. The client is shown by its digest alone.
func noteRefusal(s *sampler, client string, d *window.Decision) {
	way := d.Way
	if d.Known {
		way = "memory"
	}
	digest := hex.EncodeToString([]byte(keyDigest(client, s.secret)))[:shownDigits]
	journal.Note(journal.Refusal, "refused: scope="+s.scope+" rule="+s.rule+" client="+digest+" way="+way,
		"scope", s.scope, "rule", s.rule, "client", digest, "way", way)
}
