package limiter

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/internal/fakevalkey"
	"github.com/gatequota/gatequota/resp"
)

func TestStoreThatIsAwayIsLeftAlone(t *testing.T) {
	store := fakeStore(t)
	store.Refuse("OOM command not allowed when used memory > 'maxmemory'.")
	l := open(t, settings("away", store))
	take(l, "client", 3, start)
	store.ForgetCommands()
	_, ways := take(l, "client", 1000, start)
	if ways[Local] != 1000 {
		t.Errorf("ways %v, want local alone", ways)
	}
	scripts := 0
	for _, command := range store.Commands() {
		if strings.HasPrefix(command.Args[0], "EVAL") && !strings.Contains(strings.Join(command.Args, " "), ":probe:") {
			scripts++
		}
	}
	if scripts != 0 {
		t.Errorf("%d requests asked a store that was away", scripts)
	}
	store.Refuse("")
	eventually(t, "counting in the store again", func() bool {
		return newcomer(l) == Shared
	})
	lines := logged.about("store away:")
	if len(lines) != 2 || !strings.Contains(lines[0], `"OOM"`) || !strings.Contains(lines[1], "answers again") {
		t.Errorf("log %q, want one line for going and one for coming back", lines)
	}
}

func TestTimeoutsWeighMoreThanRefusals(t *testing.T) {
	s := newStore(&StoreSettings{Endpoint: "weights"}, &ledger{})
	for _, c := range []struct {
		errs []error
		want int64
	}{
		{[]error{errors.New("refused"), errors.New("refused")}, 2},
		{[]error{resp.ErrTimeout}, 2},
		{[]error{fmt.Errorf("%w: %w", resp.ErrDial, resp.ErrTimeout)}, 2},
		{[]error{errCrowded, errCrowded, errCrowded}, 0}, // others were in the way
	} {
		setHealth(s, 0)
		for _, err := range c.errs {
			failed(s, "rate", "", err)
		}
		if got := healthOf(s); got != c.want {
			t.Errorf("after %q the health is %d, want %d", c.errs, got, c.want)
		}
	}
	setHealth(s, 2)
	failed(s, "rate", "NOPERM no permissions to access a key", nil)
	if got := healthOf(s); got != 2 {
		t.Errorf("after NOPERM for one prefix the health is %d, want 2 as before", got)
	}
	answered(s)
	if got := healthOf(s); got != 0 {
		t.Errorf("after an answer the health is %d, want 0", got)
	}
	setHealth(s, away)
	answered(s)
	if got := healthOf(s); got != away {
		t.Errorf("after a late answer of a store that is away the health is %d, want %d: a probe decides", got, away)
	}
}

func TestUnsteadyStoreDoesNotFloodTheLog(t *testing.T) {
	forget()
	s := newStore(&StoreSettings{Endpoint: "unsteady"}, &ledger{})
	for i := 0; i < 50; i++ {
		failed(s, "rate", "", resp.ErrTimeout)
		failed(s, "rate", []string{"OOM a", "BUSY b", "FOO c"}[i%3], nil)
		recovered(s)
	}
	lines := logged.about("store unsteady:")
	if len(lines) != 4 || !strings.Contains(lines[0], "away (") || !strings.Contains(lines[1], "answers again") ||
		!strings.Contains(lines[2], "not steady") || !strings.Contains(lines[3], "answers again") {
		t.Errorf("log %q, want going and coming back twice, the second time with a word about the rest", lines)
	}
	s.mu.Lock()
	s.wentAway, s.cameBack = time.Now().Add(-time.Hour), time.Now()
	s.told = false
	s.mu.Unlock()
	setHealth(s, away)
	recovered(s)
	if lines := logged.about("answers again after 1h"); len(lines) != 1 {
		t.Errorf("log %q, want a line for the end of a long outage", lines)
	}
}

func TestPausesGrowToFiveSecondsAndVary(t *testing.T) {
	pause := firstPause
	for i := 0; i < 10; i++ {
		for _, chance := range []float64{0, 0.5, 0.999} {
			if got := jittered(pause, chance); got > pause || got < pause/2 || got > longestPause || chance > 0 && got == pause {
				t.Errorf("a pause of %s becomes %s", pause, got)
			}
		}
		next := longer(pause)
		if next <= pause && next != longestPause || next > longestPause {
			t.Errorf("after %s comes %s", pause, next)
		}
		pause = next
	}
	if pause != 5*time.Second {
		t.Errorf("pauses grow to %s, want 5 s", pause)
	}
}

func TestLastingTroubleIsRepeated(t *testing.T) {
	forget()
	s := newStore(&StoreSettings{Endpoint: "lasting"}, &ledger{})
	lasting(s, "away", "first")
	lasting(s, "away", "too soon")
	s.repeatAfter = 0
	lasting(s, "away", "again")
	lasting(s, "other", "another trouble")
	if lines := logged.about("store lasting:"); len(lines) != 3 {
		t.Errorf("log %q, want three lines", lines)
	}
}

func TestReasonsHoldNothingButTheFirstWord(t *testing.T) {
	for refusal, want := range map[string]string{
		"WRONGPASS invalid username-password pair": `"WRONGPASS": wrong valkey.username, valkey.password or valkey.passwordFile`,
		"FOO hunter2":              `"FOO"`,
		"MOVED 1234 10.0.0.1:6379": `"MOVED": it is a node of a cluster, which is not supported`,
	} {
		if got := reason(refusal, nil); got != want {
			t.Errorf("reason(%q) = %q, want %q", refusal, got, want)
		}
	}
}

func TestReasonsOfARefusedOpeningSayWhatToDo(t *testing.T) {
	for _, c := range []struct {
		config fakevalkey.Config
		db     int
		want   string
	}{
		{fakevalkey.Config{Password: "secret"}, 0, "WRONGPASS: wrong valkey.username"},
		{fakevalkey.Config{}, 99, "ERR: check valkey.db"},
	} {
		server := fakevalkey.Start(t, c.config)
		o := &resp.Options{Network: "tcp", Address: server.Addr(), DB: c.db, DialTimeout: time.Minute}
		if c.config.Password != "" {
			o.Password = "hunter2"
		}
		_, err := resp.Connect(resp.NewLink(o, nil), time.Now().Add(time.Minute))
		if got := reason("", err); !strings.Contains(got, c.want) || strings.Contains(got, "hunter2") {
			t.Errorf("reason %q, want it to hold %q", got, c.want)
		}
	}
}

func TestReasonNamesTheCommandThatIsRefused(t *testing.T) {
	for refusal, want := range map[string]string{
		"NOPERM User limiter has no permissions to run the 'evalsha' command":                        "EVALSHA",
		"NOPERM this user has no permissions to run the 'evalsha' command or its subcommand":         "EVALSHA",
		"ERR ACL failure in script: User limiter has no permissions to run the 'incrby' command":     "INCRBY",
		"ERR unknown command 'EVALSHA', with args beginning with: '0a4d' '1' 'rate:quota:{6ab9}:1' ": "EVALSHA",
	} {
		if got := reason(refusal, nil); !strings.HasSuffix(got, "names the command "+want) {
			t.Errorf("reason(%q) = %q, want the command %s", refusal, got, want)
		}
	}
}
