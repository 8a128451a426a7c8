package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// What somebody gets wrong who is in a hurry, and what the answer must tell.
func TestMistakesAreAnswered(t *testing.T) {
	d := newDesk(t)
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"block abc --for 1h --scope apy", exitFailed, "no gateway announces it; scopes that gateways announce: api\n"},
		{"off --yes --scope apy", exitFailed, "no gateway announces it; scopes that gateways announce: api\n"},
		{"show abc --scope apy", exitDone, "no gateway announces scope apy (scopes that gateways announce: api)"},
		{"off --yes --scope api --prefix rat", exitFailed, "scopes that gateways announce: none, under the prefix rat at "},
		{"block abc def --for 1h", exitUsage, "put quotes around one with a blank in it"},
		{"block abc 1h", exitUsage, "put quotes around"},
		{"block abc --for 30", exitUsage, "a time with a unit"},
		{"allow abc --limit 5 --for 60", exitUsage, "a time with a unit"},
		{"dry-run --yes", exitUsage, "say on, off or default"},
		{"dry-run maybe --yes", exitUsage, "say on, off or default"},
		{"limit --yes", exitUsage, "say one limit, such as 200, or default"},
		{"log", exitDone, "no change of scope api is remembered"},
	} {
		code, _, errors := d.run(strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(errors, c.says) {
			t.Errorf("%s: exit status %d, want %d\n%swant %q in it", c.args, code, c.code, errors, c.says)
		}
	}
	if out := d.done("status", "--scope", "apy"); !strings.HasSuffix(out, "no gateway is there\n  scopes that gateways announce: api\n") {
		t.Errorf("status: %s", out)
	}
	if out := d.done("clear", "--hash", abc); !strings.Contains(out, "nothing is set for this client (version 0)") {
		t.Errorf("clear: %s", out)
	}
	if n := d.store.Exists(ctx, "rate:api:control", "rate:apy:control").Val(); n != 0 {
		t.Error("something was changed")
	}
}

func TestAServerThatIsNoStoreIsSaidToBeNone(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	d := &desk{t: t, env: map[string]string{"GATEQUOTA_ENDPOINT": web.Listener.Addr().String()}}
	code, _, errors := d.run("status")
	if code != exitFailed || !strings.Contains(errors, "is no Valkey") {
		t.Errorf("exit status %d\n%s", code, errors)
	}
}

// Who is blocked does not pass before that ends, whatever is left of a limit.
func TestShowOfABlockedClient(t *testing.T) {
	d := newDesk(t)
	d.done("block", "--hash", abc, "--for", "2d")
	out := d.done("show", "--hash", abc)
	if fields := strings.Fields(out[strings.Index(out, "100"):]); !strings.HasPrefix(strings.Join(fields, " "), "100 100 in ") {
		t.Errorf("show: %s", out)
	}
	if out := d.done("show", "--hash", abc, "--json"); strings.Contains(out, `"wait":0`) {
		t.Errorf("show --json: %s", out)
	}
	d.done("off", "--yes")
	d.done("dry-run", "on", "--yes")
	if out := d.done("show", "--hash", abc); !strings.Contains(out, "OFF      everything passes") || !strings.Contains(out, "dry run  nobody is refused") {
		t.Errorf("show: %s", out)
	}
}
