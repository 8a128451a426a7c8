package limiter

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gatequota/gatequota/journal"
	"github.com/gatequota/gatequota/resp"
)

const (
	// away is the health from which a store is not asked. A time-out adds two, as
	// it cost a request its whole patience, any other failure one, and an answer
	// sets the health back to zero.
	away = 3

	// The pauses between probes of a store that is away grow from firstPause to
	// longestPause, which also bounds the Retry-After of requests that are held
	// back meanwhile.
	firstPause   = 250 * time.Millisecond
	longestPause = 5 * time.Second
	// stableAfter is how long a store must have answered for the pauses to begin
	// small again, and for the next change of its state to be news for the log.
	stableAfter = 30 * time.Second
	// repeatAfter is the time between two log lines about a trouble that lasts.
	repeatAfter = time.Minute
)

// failed notes a batch that brought no count, and stops asking the store when it was
// one too many in a row.
func failed(s *store, prefix, refusal string, err error) {
	countError(s, classOf(refusal, err))
	word := resp.Word(refusal)
	if word == "NOPERM" || word == "WRONGTYPE" {
		// One prefix, or one command, that this user may not touch; or a key that holds
		// something else, and that this user may not replace. Others may work all the same.
		lasting(s, word+" "+prefix, fmt.Sprintf("refuses the count of keys with the prefix %q (%s)", prefix, reason(refusal, nil)))
		return
	}
	if err == errCrowded {
		// Others had the connection for long: no sign that the store is ill.
		s.mu.Lock()
		s.settleDue = true // for those who do not return
		s.mu.Unlock()
		lasting(s, "crowded", "is slow: the turn of some requests came too late; they are decided by onStoreFailure")
		return
	}
	late := errors.Is(err, resp.ErrTimeout)
	weight := int64(1)
	if late {
		weight = 2
	}
	now := time.Now()
	s.mu.Lock()
	s.pushDue = true
	s.ledger.mu.Lock()
	before := s.health
	s.health += weight
	if before < away && s.health >= away {
		s.passed = 0
	}
	s.ledger.mu.Unlock()
	if before >= away || before+weight < away {
		s.mu.Unlock()
		return
	}
	s.unsteady = now.Sub(s.cameBack) < stableAfter
	if !s.unsteady || s.pause == 0 {
		s.pause = firstPause
	}
	if prefix != "" {
		s.prefix = prefix
	}
	s.wentAway = now
	s.wentCount++
	noteChange(s, Change{At: now, Away: true, Why: reason(refusal, err)})
	unsteady := s.unsteady
	s.told = true
	s.mu.Unlock()

	if unsteady {
		told := lasting(s, "unsteady", fmt.Sprintf("away again (%s); while it is not steady only some changes are logged", reason(refusal, err)))
		s.mu.Lock()
		s.told = told
		s.mu.Unlock()
	} else {
		why := reason(refusal, err)
		journal.Error(journal.StoreAway, fmt.Sprintf("store %s: away (%s); requests are decided by onStoreFailure until it answers", s.endpoint, why),
			"store", s.endpoint, "reason", why)
	}
}

// answered notes a count after failures. A store that is away already comes back
// by a probe alone, and not by an answer that was under way.
func answered(s *store) {
	s.ledger.mu.Lock()
	if s.health < away {
		s.health = 0
	}
	s.ledger.mu.Unlock()
}

// healthOf returns the health of a store.
func healthOf(s *store) int64 {
	s.ledger.mu.Lock()
	defer s.ledger.mu.Unlock()
	return s.health
}

// passedBy returns how many requests were decided without the store.
func passedBy(s *store) int64 {
	s.ledger.mu.Lock()
	defer s.ledger.mu.Unlock()
	return s.passed
}

// recovered notes that a probe was answered. The next batch is let through; one more
// failure, and the store is away again.
func recovered(s *store) {
	now := time.Now()
	s.ledger.mu.Lock()
	s.health = away - 1
	s.ledger.mu.Unlock()
	s.mu.Lock()
	s.cameBack = now
	s.cameCount++
	noteChange(s, Change{At: now})
	s.pushed = time.Time{} // it is told at once what it may have lost
	lasted := now.Sub(s.wentAway)
	news := s.told || lasted >= stableAfter
	s.mu.Unlock()
	if news {
		passed := passedBy(s)
		lasted = lasted.Round(time.Millisecond)
		journal.Error(journal.StoreBack, fmt.Sprintf("store %s: answers again after %s; %d further requests were decided without it", s.endpoint, lasted, passed),
			"store", s.endpoint, "seconds", strconv.FormatFloat(lasted.Seconds(), 'f', 3, 64), "requests", strconv.FormatInt(passed, 10))
	}
}

// untilProbe returns the seconds until the store is tried again, 1 to 5.
func untilProbe(s *store) int64 {
	left := time.Duration(s.probeAt.Load() - time.Now().UnixNano())
	if left > longestPause {
		left = longestPause
	}
	seconds := int64((left + time.Second - 1) / time.Second)
	if seconds < 1 {
		return 1
	}
	return seconds
}

// jittered shortens a pause by up to half, so that gateways which lost the store
// together do not come back together. chance lies in [0, 1).
func jittered(pause time.Duration, chance float64) time.Duration {
	return pause - time.Duration(chance*float64(pause/2))
}

// longer returns the pause after one that ended in vain.
func longer(pause time.Duration) time.Duration {
	pause *= 2
	if pause > longestPause {
		return longestPause
	}
	return pause
}

// lasting logs a trouble that may last, once and then again each repeatAfter, and
// reports whether it did.
func lasting(s *store, kind, line string) bool {
	now := time.Now()
	s.mu.Lock()
	last, before := s.said[kind]
	if kind == "away" && last.Before(s.wentAway) {
		// The change itself was just logged.
		last = s.wentAway
		before = true
	}
	due := !before || now.Sub(last) >= s.repeatAfter
	if due {
		s.said[kind] = now
	}
	s.mu.Unlock()
	if due {
		tell(s, kind, line)
	}
	return due
}

// once logs a trouble the first time only.
func once(s *store, kind, line string) {
	s.mu.Lock()
	_, before := s.said[kind]
	s.said[kind] = time.Now()
	s.mu.Unlock()
	if !before {
		tell(s, kind, line)
	}
}

// tell writes a line about a trouble of a store. The first word of its kind says which.
func tell(s *store, kind, line string) {
	event := journal.StoreTrouble
	if kind == "unsteady" {
		event = journal.StoreAway
	}
	trouble, _, _ := strings.Cut(kind, " ")
	journal.Error(event, "store "+s.endpoint+": "+line, "store", s.endpoint, "trouble", strings.ToLower(trouble))
}

// reason puts a failure into few words: of what the store said only the first word
// and the command that it names, of ours all. None of them holds a secret.
func reason(refusal string, err error) string {
	if errors.Is(err, resp.ErrRefused) {
		// It ends with the command of the opening and the word that refused it.
		text := err.Error()
		switch {
		case strings.HasSuffix(text, "SELECT answered with ERR"):
			return text + ": check valkey.db"
		case strings.HasSuffix(text, "SELECT answered with NOPERM"):
			return text + ": give the user the right +select"
		case strings.HasSuffix(text, "AUTH answered with ERR"):
			return text + ": it may want no password; check valkey.username and valkey.password"
		}
		return text + ": " + advices[text[strings.LastIndexByte(text, ' ')+1:]]
	}
	if errors.Is(err, resp.ErrDial) && errors.Is(err, resp.ErrTimeout) {
		return err.Error() + ": it hangs, or is not there; if it never answered, check the address, and whether valkey.tls is what the server wants"
	}
	if err != nil {
		return err.Error()
	}
	word := resp.Word(refusal)
	text := strconv.Quote(word)
	if advice := advices[word]; advice != "" {
		text += ": " + advice
	}
	if named := namedCommand.FindStringSubmatch(refusal); named != nil {
		text += "; it names the command " + strings.ToUpper(named[1]+named[2])
	}
	return text
}

// namedCommand finds the command that a server says it refuses or does not know.
var namedCommand = regexp.MustCompile(`'([A-Za-z]{2,16})' command|command '([A-Za-z]{2,16})'`)

// advices say what an operator can do about what a store says.
var advices = map[string]string{
	"READONLY":    "it is a replica; name the primary in valkey.endpoints",
	"LOADING":     "it is starting",
	"MASTERDOWN":  "it is a replica without its primary",
	"BUSY":        "a script blocks it",
	"OOM":         "its memory is full; raise maxmemory",
	"NOAUTH":      "it wants a password; set valkey.password or valkey.passwordFile",
	"WRONGPASS":   "wrong valkey.username, valkey.password or valkey.passwordFile",
	"NOPERM":      "check the rights of the user",
	"MOVED":       "it is a node of a cluster, which is not supported",
	"ASK":         "it is a node of a cluster, which is not supported",
	"CROSSSLOT":   "it is a node of a cluster, which is not supported",
	"CLUSTERDOWN": "it is a node of a cluster, which is not supported",
	"NOREPLICAS":  "it has too few replicas to accept writes",
	"DENIED":      "it is in protected mode; give it a password or set protected-mode no",
	"WRONGTYPE":   "the key holds no count; give the user the rights +get and +del, or delete it",
	"MISCONF":     "it cannot write to its disk and refuses writes",
	"ERR":         "it cannot run the script; check its version, the rights of the user, and its maxclients",
}

func panicked(r interface{}) error {
	return fmt.Errorf("panic: %v", r)
}
