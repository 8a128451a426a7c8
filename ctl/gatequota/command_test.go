package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/ctl/internal/standin"
	"github.com/gatequota/gatequota/ctl/scope"
	"github.com/gatequota/gatequota/source"
	"github.com/gatequota/gatequota/window"
)

const (
	long = 10 * 365 * 24 * 60 * 60                                            // a window that no test sees the end of
	abc  = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // sha256 of abc
)

var ctx = context.Background()

func byKey() []scope.Middleware {
	key := source.Criterion{Header: "X-Api-Key", IPv6Subnet: 64}
	return []scope.Middleware{{Name: "quota@file", Rules: []scope.Rule{
		{Rule: "login", Source: source.Criterion{IPv6Subnet: 64}, Counts: []scope.Count{{Name: "login", Algorithm: "sliding-window", Limit: 5, Window: 86400}}},
		{Rule: "", Source: key, Counts: []scope.Count{{Name: "", Algorithm: "fixed-window", Limit: 100, Window: long}}},
	}}}
}

// A desk is where somebody calls the command.
type desk struct {
	t        testing.TB
	store    *standin.Store
	env      map[string]string
	in       string
	terminal bool
	patience time.Duration
	gateways []*standin.Gateway
}

// newDesk returns one with two gateways of the scope api.
func newDesk(t testing.TB) *desk {
	d := &desk{t: t, store: standin.NewStore(t)}
	d.gateway(&standin.Gateway{ID: "0a0b0c0d01020304", Host: "gw1", Middlewares: byKey()})
	d.gateway(&standin.Gateway{ID: "1a1b1c1d11121314", Host: "gw2", Middlewares: byKey()})
	return d
}

func (d *desk) gateway(g *standin.Gateway) *standin.Gateway {
	g.Scope = "api"
	d.gateways = append(d.gateways, g)
	return standin.Start(d.t, d.store, g)
}

// stop ends all gateways, which count as there for some seconds more.
func (d *desk) stop() {
	for _, g := range d.gateways {
		g.Stop()
	}
}

// run calls the command and returns its exit status and what it wrote.
func (d *desk) run(args ...string) (code int, out, errors string) {
	d.t.Helper()
	var stdout, stderr bytes.Buffer
	env := map[string]string{"GATEQUOTA_TIMEOUT": "5s"}
	if d.store != nil {
		env["GATEQUOTA_ENDPOINT"] = d.store.Addr
	}
	for name, value := range d.env {
		env[name] = value
	}
	patience := d.patience
	if patience == 0 {
		patience = 10 * time.Second
	}
	a := &app{in: strings.NewReader(d.in), out: &stdout, err: &stderr, env: func(name string) string { return env[name] }, user: "ann@desk",
		inTerminal: d.terminal, outTerminal: d.terminal, patience: patience}
	code = a.run(ctx, args)
	if a.store != nil {
		a.store.Close()
	}
	return code, stdout.String(), stderr.String()
}

// done is run for what must succeed, and returns what it wrote.
func (d *desk) done(args ...string) string {
	d.t.Helper()
	code, out, errors := d.run(args...)
	if code != 0 || errors != "" {
		d.t.Fatalf("%q: exit status %d\n%s%s", args, code, out, errors)
	}
	return out
}

// fields returns what is set for the scope api, without the version.
func (d *desk) fields() map[string]string {
	fields := d.store.HGetAll(ctx, "rate:api:control").Val()
	delete(fields, "version")
	return fields
}

func (d *desk) now() int64 {
	at, err := d.store.Time(ctx).Result()
	if err != nil {
		d.t.Fatal(err)
	}
	return at.Unix()
}

// count puts a number into the count of a client that is counted by its key.
func (d *desk) count(hash string, n int) {
	id, _ := window.FixedAt(d.now(), long)
	d.store.Set(ctx, standin.Key("api", "", hash, id), n, 0)
}

var changing = []struct {
	pattern *regexp.Regexp
	text    string
}{
	{regexp.MustCompile(`(\d{4}-\d\d-\d\d )?\b\d\d:\d\d:\d\d`), "<time>"},
	{regexp.MustCompile(`after \d+\.\ds`), "after <n>s"},
	{regexp.MustCompile(`in \d+[dhms]( \d+[dhms])?`), "in <span>"},
	{regexp.MustCompile(`\d+s ago`), "<n>s ago"},
	{regexp.MustCompile(`([^\n ]) {2,}`), "$1  "}, // columns are as wide as what differs
}

// steady replaces what differs from run to run.
func steady(text string) string {
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.text)
	}
	return text
}

func expect(t testing.TB, what, got, want string) {
	t.Helper()
	if got, want := strings.TrimSpace(steady(got)), strings.TrimSpace(steady(want)); got != want {
		t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
	}
}

func TestBlockAndClear(t *testing.T) {
	d := newDesk(t)
	expect(t, "block", d.done("block", "--hash", strings.ToUpper(abc), "--for", "1h"), `
scope api, version 1
  block ba7816bf8f01  -  ->  until <time>
obeyed by 2 gateways after <n>s: gw1, gw2`)
	if until, _ := strconv.ParseInt(d.fields()["block:"+abc], 10, 64); until < d.now()+3590 || until > d.now()+3600 {
		t.Errorf("set is %v", d.fields())
	}
	expect(t, "clear", d.done("clear", "--hash", abc), `
scope api, version 2
  block ba7816bf8f01  until <time>  ->  -
obeyed by 2 gateways after <n>s: gw1, gw2`)
	expect(t, "clear again", d.done("clear", "--hash", abc), `
scope api: nothing is set for this client (version 2)
obeyed by 2 gateways after <n>s: gw1, gw2`)
	if len(d.fields()) != 0 {
		t.Errorf("set is %v", d.fields())
	}
}

func TestAllow(t *testing.T) {
	d := newDesk(t)
	code, out, errors := d.run("allow", "abc", "--limit", "1000", "--for", "90m")
	expect(t, "allow", out, `
scope api, version 1
  allow ba7816bf8f01 (header X-Api-Key)  -  ->  limit 1000 until <time>
obeyed by 2 gateways after <n>s: gw1, gw2`)
	expect(t, "its errors", errors, "gatequota: not counted by address: it is no address")
	if code != 0 || !strings.HasSuffix(d.fields()["allow:"+abc], " 1000") {
		t.Errorf("exit status %d, set is %v", code, d.fields())
	}
	// An address is counted by the rule for log-ins, and by the top level where it shows no key.
	code, out, errors = d.run("allow", "192.0.2.7", "--limit", "1000", "--limit", "login=50", "--for", "1d", "--json")
	var view changeView
	if err := json.Unmarshal([]byte(out), &view); err != nil || code != 0 || errors != "" {
		t.Fatalf("exit status %d, %v\n%s%s", code, err, out, errors)
	}
	var got []string
	for _, c := range view.Clients {
		got = append(got, c.By+": "+strings.Join(c.Rules, ",")+": "+strings.TrimLeft(d.fields()["allow:"+c.Hash], "0123456789"))
	}
	// Without its key a client is counted by its address, in another count but under the same name as in a rule by address.
	want := []string{"address: login:  login=50", "header X-Api-Key: :  1000", "address, without header X-Api-Key: :  1000"}
	merged := []string{"address: login,:  1000 login=50", "header X-Api-Key: :  1000"}
	if !slices.Equal(got, want) && !slices.Equal(got, merged) {
		t.Errorf("allowed are %q", got)
	}
	for _, test := range []struct{ args, want string }{
		{"allow abc --limit 5", "--for is missing"},
		{"allow abc --for 1h", "--limit is missing"},
		{"allow abc --limit 0 --for 1h", "a whole number from 1"},
		{"allow abc --limit 010 --for 1h", "a whole number from 1"},
		{"allow abc --limit 5 --limit 6 --for 1h", "given twice"},
		{"allow abc --limit =6 --for 1h", "name of a count is wanted"},
		{"allow abc --limit nix=6 --for 1h", "no limit of that name; there are: none with a name"},
		{"allow 192.0.2.7 --limit nix=6 --for 1h", "no limit of that name; there are: login"},
		{"allow 192.0.2.7 --limit login=999999999999999 --for 1h", "cannot be counted by sliding-window"},
		{"allow abc --limit 5 --for 1x", "a time with a unit from 1s to 366d"},
		{"allow --limit 5 --for 1h", "VALUE is missing"},
		{"allow abc --hash " + abc + " --limit 5 --for 1h", "both name a client"},
		{"block --hash abc --for 1h", "64 hexadecimal digits"},
	} {
		if code, _, errors := d.run(strings.Fields(test.args)...); code != exitUsage || !strings.Contains(errors, test.want) {
			t.Errorf("%s: exit status %d\n%s", test.args, code, errors)
		}
	}
}

func TestOffAndOn(t *testing.T) {
	d := newDesk(t)
	expect(t, "on, which it is", d.done("on", "--yes"), `
scope api: that is so already (version 0)
obeyed by 2 gateways after <n>s: gw1, gw2`)
	expect(t, "off", d.done("off", "--yes"), `
scope api, version 1
  enabled  -  ->  false
obeyed by 2 gateways after <n>s: gw1, gw2`)
	expect(t, "on", d.done("on", "-y"), `
scope api, version 2
  enabled  false  ->  true
obeyed by 2 gateways after <n>s: gw1, gw2`)
}

func TestDryRun(t *testing.T) {
	d := newDesk(t)
	for arg, want := range map[string]string{"on": "true", "off": "false", "default": ""} {
		d.done("dry-run", arg, "--yes")
		if got := d.fields()["dryRun"]; got != want {
			t.Errorf("dry-run %s sets %q", arg, got)
		}
	}
	for _, args := range [][]string{{"dry-run"}, {"dry-run", "maybe"}, {"dry-run", "on", "off"}} {
		if code, _, _ := d.run(args...); code != exitUsage {
			t.Errorf("%q: exit status %d", args, code)
		}
	}
}

func TestLimit(t *testing.T) {
	d := newDesk(t)
	expect(t, "limit", d.done("limit", "200", "--yes"), `
scope api, version 1
  limit  -  ->  200
obeyed by 2 gateways after <n>s: gw1, gw2`)
	expect(t, "limit of a count", d.done("limit", "20", "--count", "login", "--window", "300", "--yes"), `
scope api, version 2
  limit:login   -  ->  20
  window:login  -  ->  5m
obeyed by 2 gateways after <n>s: gw1, gw2`)
	expect(t, "default", d.done("limit", "default", "-c", "login", "--yes"), `
scope api, version 3
  limit:login   20  ->  -
  window:login  5m  ->  -
obeyed by 2 gateways after <n>s: gw1, gw2`)
	for _, test := range []struct{ args, want string }{
		{"limit 1e3 --yes", "a whole number"},
		{"limit default --window 5m --yes", "a limit with it"},
		{"limit 5 --window 1.5s --yes", "a time in whole seconds"},
		{"limit 5 --count nix --yes", "there is no such count; there are: login"},
		{"limit 999999999999999 --count login --yes", "cannot be counted by sliding-window in windows of 1d: at most 104249991"},
		{"limit --yes", "say one limit"},
	} {
		if code, _, errors := d.run(strings.Fields(test.args)...); code != exitUsage || !strings.Contains(errors, test.want) {
			t.Errorf("%s: exit status %d\n%s", test.args, code, errors)
		}
	}
}

func TestLimitThatAGatewayRefuses(t *testing.T) {
	d := newDesk(t)
	d.gateway(&standin.Gateway{ID: "ff", Host: "gw3", Middlewares: byKey(), Stubborn: true})
	code, out, errors := d.run("limit", "200", "--yes")
	if code != exitPartly || !strings.Contains(errors, "gw3 still has the limit 100 in 3650d: its log says why") || strings.Contains(out, "obeyed by") {
		t.Errorf("exit status %d\n%s%s", code, out, errors)
	}
}

func TestPartlyObeyed(t *testing.T) {
	d := newDesk(t)
	d.gateway(&standin.Gateway{ID: "2a", Host: "gw2", Middlewares: byKey(), Deaf: true})
	d.gateway(&standin.Gateway{ID: "3a3b3c", Silent: true})
	d.patience = 300 * time.Millisecond
	code, out, errors := d.run("block", "abc", "--for", "1h")
	expect(t, "partly", out, `
scope api, version 1
  block ba7816bf8f01 (header X-Api-Key)  -  ->  until <time>`)
	if code != exitPartly || !strings.Contains(steady(errors), "the change is made (version 1), and not all gateways obey it after 300ms: 3a3b3c reports nothing: control is not true there, or it just ended; gw2/2a obeys version 0, <n>s ago") {
		t.Errorf("exit status %d\n%s", code, errors)
	}
	code, out, _ = d.run("block", "abc", "--for", "2h", "--json")
	var view changeView
	if err := json.Unmarshal([]byte(out), &view); err != nil || code != exitPartly || view.Obeyed || len(view.Gateways) != 4 || view.Gateways[0].Version != nil || view.Gateways[1].Obeys == view.Gateways[3].Obeys && view.Gateways[2].Obeys == view.Gateways[3].Obeys {
		t.Errorf("exit status %d, %v: %s", code, err, out)
	}
}

func TestReset(t *testing.T) {
	d := newDesk(t)
	d.count(abc, 130)
	code, out, _ := d.run("reset", "abc")
	expect(t, "reset", out, `
scope api, version 1
  epoch ba7816bf8f01 (header X-Api-Key)  -  ->  1
obeyed by 2 gateways after <n>s: gw1, gw2
deleted 1 key
  COUNT        BEFORE  NOW  LIMIT
  (top level)     130    0    100`)
	if code != 0 || !strings.HasPrefix(d.fields()["epoch:"+abc], "1 ") {
		t.Errorf("exit status %d, set is %v", code, d.fields())
	}
	d.count(abc, 7)
	code, out, _ = d.run("reset", "--hash", abc, "--json")
	var view changeView
	if err := json.Unmarshal([]byte(out), &view); err != nil || code != 0 || view.Reset == nil || view.Reset.Keys != 1 || view.Reset.Before[0].Used != 7 || view.Reset.Restored == nil || view.Changes[0].Old == "" {
		t.Errorf("exit status %d, %v: %s", code, err, out)
	}
	for _, args := range [][]string{{"reset"}, {"reset", "a", "b"}, {"reset", "a", "--all"}} {
		if code, _, _ := d.run(args...); code != exitUsage {
			t.Errorf("%q: exit status %d", args, code)
		}
	}
}

func TestResetAll(t *testing.T) {
	d := newDesk(t)
	for n := range 2500 {
		d.count(fmt.Sprintf("%064x", n), 100)
	}
	if code, _, errors := d.run("reset", "--all"); code != exitDeclined || !strings.Contains(errors, "--yes") {
		t.Errorf("exit status %d\n%s", code, errors)
	}
	expect(t, "reset --all", d.done("reset", "--all", "--yes"), `
scope api, version 1
  epoch  -  ->  1
obeyed by 2 gateways after <n>s: gw1, gw2
deleted 2500 keys; 0 are there again, of clients that went on`)
	if !strings.HasPrefix(d.fields()["epoch"], "1 ") {
		t.Errorf("set is %v", d.fields())
	}
}

func TestResetSeesWhatAGatewayRestores(t *testing.T) {
	d := newDesk(t)
	d.count(abc, 100)
	id, _ := window.FixedAt(d.now(), long)
	key := standin.Key("api", "", abc, id)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for known := int64(100); ; {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				known++
				if d.store.Incr(ctx, key).Val() < known {
					d.store.Set(ctx, key, known, 0)
				}
			}
		}
	}()
	code, _, errors := d.run("reset", "--hash", abc)
	close(stop)
	<-ended
	if code != exitRestored || !strings.Contains(errors, "restored what was deleted: (top level) of ba7816bf8f01 has 1") {
		t.Errorf("exit status %d\n%s", code, errors)
	}
}

func TestConfirmation(t *testing.T) {
	d := newDesk(t)
	for _, args := range [][]string{{"off"}, {"on"}, {"dry-run", "on"}, {"limit", "5"}, {"reset", "--all"}} {
		if code, out, errors := d.run(args...); code != exitDeclined || out != "" || !strings.Contains(errors, "--yes") {
			t.Errorf("%q with nobody there: exit status %d\n%s%s", args, code, out, errors)
		}
		d.terminal = true
		for _, answer := range []string{"", "\n", "n\n", "nay\n"} {
			d.in = answer
			if code, out, errors := d.run(args...); code != exitDeclined || out != "" || !strings.Contains(errors, "on 2 gateways") || !strings.Contains(errors, "[y/N]") {
				t.Errorf("%q answered with %q: exit status %d\n%s%s", args, answer, code, out, errors)
			}
		}
		d.terminal, d.in = false, ""
	}
	if n := d.store.Exists(ctx, "rate:api:control", "rate:api:changes").Val(); n != 0 {
		t.Error("something was changed")
	}
	d.terminal, d.in = true, "y\n"
	if code, _, _ := d.run("off"); code != 0 || d.fields()["enabled"] != "false" {
		t.Errorf("exit status %d, set is %v", code, d.fields())
	}
	if code, _, _ := d.run("block", "abc", "--for", "1h"); code != 0 {
		t.Error("it asks for one client")
	}
}

func TestStatus(t *testing.T) {
	d := newDesk(t)
	d.gateway(&standin.Gateway{ID: "2a2b2c2d21222324", Host: "gw3", Middlewares: byKey(), Deaf: true})
	d.store.HSet(ctx, "rate:api:control", "version", 4, "enabled", "false", "dryRun", "true", "limit:login", 7, "window:login", "1h", "limit", "10x",
		"allow:"+abc, fmt.Sprint(d.now()+60, " 900 login=9"), "block:"+strings.Repeat("01", 32), d.now()+60, "block:"+strings.Repeat("02", 32), d.now()-60)
	standin.Until(t, "gw1 and gw2 obey", func() bool { return strings.Count(d.done("status"), "yes") == 2 })
	out := d.done("status")
	_, scopePart, _ := strings.Cut(out, "\n\n")
	expect(t, "status", scopePart, `
scope api: version 4, OFF: everything passes, dry run ON: nobody is refused
  GATEWAY  ID                SOFTWARE  REPORTED  VERSION  OBEYS
  gw1      0a0b0c0d01020304  0.1.0       <n>s ago        4  yes
  gw2      1a1b1c1d11121314  0.1.0       <n>s ago        4  yes
  gw3      2a2b2c2d21222324  0.1.0       <n>s ago        0  NO

  LIMIT  WINDOW  COUNT        ALGORITHM       RULE                  MIDDLEWARE  CLIENTS BY
      7  1h      login        sliding-window  login, dry run        quota@file  address
    100  3650d   (top level)  fixed-window    (top level), dry run  quota@file  header X-Api-Key
      5  1d      login        sliding-window  login                 quota@file  address
    100  3650d   (top level)  fixed-window    (top level)           quota@file  header X-Api-Key

  changed  login         limit 7, window 1h
  allowed  ba7816bf8f01  limit 900 login=9 until <time>
  blocked  010101010101  until <time>
  IGNORED  limit         "10x": a whole number from 1 to 999999999999999 is wanted`)
	if standin.Real() && !regexp.MustCompile(`^store unix:///\S+: (Valkey|Redis) \S+, answers in \d+\.\d\d ms; memory \d+\.\d \wiB, noeviction; \d+ clients?\n$`).MatchString(out[:strings.Index(out, "\n")+1]) {
		t.Errorf("status begins with %q", out[:strings.Index(out, "\n")])
	}
	var view statusView
	if err := json.Unmarshal([]byte(d.done("status", "--json")), &view); err != nil || len(view.Scopes) != 1 || view.Scopes[0].Enabled || !*view.Scopes[0].DryRun || len(view.Scopes[0].Gateways) != 3 {
		t.Errorf("%+v, %v", view, err)
	}
}

func TestStatusWithoutGateways(t *testing.T) {
	d := &desk{t: t, store: standin.NewStore(t)}
	if out := d.done("status"); !strings.Contains(out, "no gateway announces a scope under the prefix rate") {
		t.Error(out)
	}
	if out := d.done("status", "--scope", "api"); !strings.Contains(out, "no gateway is there") {
		t.Error(out)
	}
}

func TestEvictionIsWarnedOf(t *testing.T) {
	d := &desk{t: t}
	var out bytes.Buffer
	a := &app{out: &out}
	a.printHealth(&scope.Health{Endpoint: "e", Software: "Valkey", Version: "8.0.1", Memory: 3 << 20, MaxMemory: 64 << 20, Policy: "allkeys-lru", Clients: 1, Role: "slave", ClockOffset: -2})
	expect(d.t, "health", out.String(), `
store e: Valkey 8.0.1, answers in 0.00 ms, A REPLICA: gateways cannot count here; memory 3.0 MiB of 64.0 MiB, allkeys-lru; 1 client
  WARNING: maxmemory-policy is allkeys-lru: a full store forgets counts, and hands out quota in silence; set it to noeviction
  its clock differs from that of this machine by -2.0 s`)
}

func TestShow(t *testing.T) {
	d := newDesk(t)
	d.count(abc, 130)
	d.store.Set(ctx, standin.Key("api", "former", abc, 7), 3, time.Hour)
	d.store.HSet(ctx, "rate:api:control", "version", 1, "block:"+abc, d.now()+60, "allow:"+abc, fmt.Sprint(d.now()+60, " 500"))
	code, out, errors := d.run("show", "abc")
	expect(t, "show", out, `
client ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad, by header X-Api-Key
  rules    (top level)
  BLOCKED  until <time>
  allowed  until <time>
  COUNT        ALGORITHM     WINDOW  USED          LIMIT  LEFT     PASSES   ALL FREE
  (top level)  fixed-window  3650d    130  500 (allowed)   370  in <span>  in <span>
  OTHER KEY                                                                                    VALUE         GOES
  rate:api:former:{ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad}:7      3  in <span>`)
	if code != 0 || !strings.Contains(errors, "not counted by address") {
		t.Errorf("exit status %d\n%s", code, errors)
	}
	var view showView
	if err := json.Unmarshal([]byte(d.done("show", "--hash", abc, "--json")), &view); err != nil || len(view.Clients) != 1 {
		t.Fatalf("%+v, %v", view, err)
	}
	if c := view.Clients[0]; c.Hash != abc || c.BlockedUntil == 0 || c.AllowedUntil == 0 || len(c.Standings) != 2 || c.Standings[0].Used != 130 || len(c.Keys) != 2 {
		t.Errorf("%+v", c)
	}
}

func TestValueFromTheInput(t *testing.T) {
	d := newDesk(t)
	for _, in := range []string{"abc\n", "abc\r\nmore", "abc"} {
		d.in = in
		if code, out, _ := d.run("show", "-"); code != 0 || !strings.HasPrefix(out, "client "+abc) {
			t.Errorf("%q: exit status %d\n%s", in, code, out)
		}
	}
	d.in = ""
	if code, _, _ := d.run("show", "-"); code != exitUsage {
		t.Errorf("no input: exit status %d", code)
	}
}

func TestWithoutReports(t *testing.T) {
	d := &desk{t: t, store: standin.NewStore(t)}
	d.gateway(&standin.Gateway{ID: "01", Silent: true})
	d.count(abc, 130)
	code, out, errors := d.run("show", "abc")
	if code != 0 || !strings.Contains(out, "client "+abc+", by the value alone") || !strings.Contains(steady(out), " 130 ") || !strings.Contains(errors, "control: true") {
		t.Errorf("show: exit status %d\n%s%s", code, out, errors)
	}
	if out := d.done("top"); !strings.Contains(out, "no gateway reports its limits") || !strings.Contains(out, "ba7816bf8f01  (top level)     fixed-window          130  never") {
		t.Errorf("top: %s", out)
	}
	for _, args := range []string{"block abc --for 1h", "allow abc --limit 5 --for 1h", "clear abc", "reset abc", "off --yes", "on --yes", "limit 5 --yes", "dry-run on --yes", "reset --all --yes"} {
		code, _, errors := d.run(strings.Fields(args)...)
		if code != exitFailed || !strings.Contains(errors, "set control: true in the middleware") {
			t.Errorf("%s: exit status %d\n%s", args, code, errors)
		}
	}
	if n := d.store.Exists(ctx, "rate:api:control", "rate:api:changes").Val(); n != 0 {
		t.Error("something was changed")
	}
}

func TestKeyedDigests(t *testing.T) {
	d := &desk{t: t, store: standin.NewStore(t)}
	d.gateway(&standin.Gateway{ID: "01", Host: "gw1", Middlewares: byKey(), Keyed: true})
	if code, _, errors := d.run("show", "abc"); code != exitFailed || !strings.Contains(errors, "--key-secret-file") {
		t.Errorf("without the secret: exit status %d\n%s", code, errors)
	}
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := "client " + fmt.Sprintf("%x", source.KeyedDigest("0123456789abcdef", "abc"))
	if _, out, _ := d.run("show", "abc", "--key-secret-file", file); !strings.HasPrefix(out, want) {
		t.Errorf("%s\nwant %s", out, want)
	}
	if code, _, _ := d.run("show", "abc", "--key-secret-file", file+"x"); code != exitUsage {
		t.Errorf("no such file: exit status %d", code)
	}
}

func TestLog(t *testing.T) {
	d := newDesk(t)
	if code, out, _ := d.run("log"); code != exitDone || out != "" {
		t.Errorf("nothing was changed: exit status %d, %s", code, out)
	}
	d.done("limit", "200", "--yes")
	d.done("block", "--hash", abc, "--for", "1h", "--by", "bob\x1b[31m")
	d.done("off", "--yes")
	expect(t, "log", d.done("log"), `
<time>  limit                 - -> 200  by ann@desk
<time>  block ba7816bf8f01    - -> until <time>  by bob?[31m
<time>  enabled               - -> false  by ann@desk`)
	out := d.done("log", "-n", "1", "--json")
	var entry struct {
		Scope string
		scope.Entry
	}
	if err := json.Unmarshal([]byte(out), &entry); err != nil || strings.Count(out, "\n") != 1 || entry.What != "enabled" || entry.New != "false" || entry.Scope != "api" {
		t.Errorf("%s %v", out, err)
	}
	if code, _, _ := d.run("log", "-n", "0"); code != exitUsage {
		t.Errorf("no lines: exit status %d", code)
	}
}

func TestWhatAGatewayReportsIsPrintedPlainly(t *testing.T) {
	d := newDesk(t)
	mean := []scope.Middleware{{Name: "m\x1b[2J", Rules: []scope.Rule{{Rule: "r\x1b[2J", Source: source.Criterion{Header: "X\x1b[2J"},
		Counts: []scope.Count{{Name: "c\x1b[2J", Algorithm: "a\x1b[2J", Limit: 5, Window: 3600}}}}}}
	standin.Start(t, d.store, &standin.Gateway{ID: "66", Host: "a\x1b[2J", Scope: "api", Middlewares: mean})
	for _, args := range [][]string{{"status"}, {"show", "abc"}, {"top", "--once"}, {"block", "abc", "--for", "1h"}, {"reset", "abc"}, {"clear", "abc"}, {"log"}, {"limit", "1", "--count", "x", "--yes"}} {
		if _, out, errs := d.run(args...); strings.Contains(out+errs, "\x1b") {
			t.Errorf("%s prints %q", args[0], out+errs)
		}
	}
}

// A pipe hands out what is written into it, and is safe for two goroutines.
type pipe struct{ lines chan string }

func (p *pipe) Write(b []byte) (int, error) {
	p.lines <- string(b)
	return len(b), nil
}

func TestLogFollows(t *testing.T) {
	d := newDesk(t)
	d.done("limit", "200", "--yes")
	ctx, cancel := context.WithCancel(ctx)
	out := &pipe{lines: make(chan string)}
	ended := make(chan int)
	go func() {
		a := &app{in: strings.NewReader(""), out: out, err: out, env: func(string) string { return "" }}
		ended <- a.run(ctx, []string{"log", "--follow", "--endpoint", d.store.Addr})
	}()
	for i, want := range []string{"limit", "enabled", "dryRun"} {
		if line := <-out.lines; !strings.Contains(line, want) {
			t.Errorf("line %d is %q", i, line)
		}
		switch i {
		case 0:
			d.done("off", "--yes")
		case 1:
			d.done("dry-run", "on", "--yes")
		}
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("exit status %d", code)
	}
}

func TestChoiceOfTheScope(t *testing.T) {
	d := &desk{t: t, store: standin.NewStore(t)}
	code, _, errors := d.run("show", "abc")
	if code != exitFailed || !strings.Contains(errors, "no gateway announces a scope under the prefix rate") || !strings.Contains(errors, "control: true") {
		t.Errorf("no scope: exit status %d\n%s", code, errors)
	}
	standin.Start(t, d.store, &standin.Gateway{ID: "01", Scope: "one", Middlewares: byKey()})
	if code, _, _ := d.run("show", "abc"); code != 0 {
		t.Errorf("one scope: exit status %d", code)
	}
	standin.Start(t, d.store, &standin.Gateway{ID: "01", Scope: "two@file", Middlewares: byKey()})
	if code, _, errors := d.run("show", "abc"); code != exitUsage || !strings.Contains(errors, "one, two@file") {
		t.Errorf("two scopes: exit status %d\n%s", code, errors)
	}
	if code, _, _ := d.run("show", "abc", "-s", "one"); code != 0 {
		t.Errorf("one of two scopes: exit status %d", code)
	}
	d.env = map[string]string{"GATEQUOTA_SCOPE": "two@file"}
	if code, _, _ := d.run("show", "abc"); code != 0 {
		t.Errorf("one of two scopes by the environment: exit status %d", code)
	}
	if _, out, _ := d.run("__complete", "show", "--scope", ""); !strings.HasPrefix(out, "one\ntwo@file\n") {
		t.Errorf("completed is %q", out)
	}
	if code, _, _ := d.run("show", "abc", "--scope", "a b"); code != exitUsage {
		t.Errorf("no scope: exit status %d", code)
	}
}

func TestUsage(t *testing.T) {
	d := &desk{t: t, env: map[string]string{}}
	missing := filepath.Join(t.TempDir(), "missing")
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ args, want string }{
		{"nix", "unknown command"},
		{"status --nix", "unknown flag: --nix"},
		{"status more", "unknown command"},
		{"status --endpoint a,b", "one endpoint is one server"},
		{"status --endpoint redis://x", "it is a URL"},
		{"status --db x", "invalid argument"},
		{"status --db -1", "a number from 0 on"},
		{"status --timeout 0s", "above zero"},
		{"status --prefix a*", "only letters"},
		{"status --username ann", "--password-file"},
		{"status --password-file " + missing, "no such file"},
		{"status --password-file " + empty, "is empty"},
		{"status --tls-ca " + missing, "no such file"},
		{"status --tls-ca " + empty, "no certificate"},
		{"status --tls-cert " + empty, "together"},
		{"status --tls-cert " + empty + " --tls-key " + empty, "--tls-cert"},
		{"status --tls --endpoint unix:///x/y", "not encrypted"},
		{"top --interval 1ms", "100ms at least"},
		{"show", "VALUE is missing"},
		{"show a b", "one VALUE"},
	} {
		code, out, errors := d.run(strings.Fields(test.args)...)
		if code != exitUsage || !strings.Contains(errors, test.want) || !strings.HasPrefix(errors, "gatequota: ") || out != "" {
			t.Errorf("%s: exit status %d\n%s%s", test.args, code, out, errors)
		}
	}
	d.env["GATEQUOTA_DB"] = "x"
	if code, _, errors := d.run("status"); code != exitUsage || !strings.Contains(errors, `GATEQUOTA_DB is "x"`) {
		t.Errorf("exit status %d\n%s", code, errors)
	}
}

func TestFailures(t *testing.T) {
	d := &desk{t: t}
	for _, args := range []string{"status", "top --once", "show abc", "log", "off --yes"} {
		nowhere := standin.NoStore(t)
		code, _, errors := d.run(append(strings.Fields(args), "--endpoint", nowhere)...)
		if code != exitFailed || !strings.Contains(errors, "connection refused") || !strings.Contains(errors, "Tried "+nowhere) {
			t.Errorf("%s: exit status %d\n%s", args, code, errors)
		}
	}
	if code, _, errors := d.run("status", "--endpoint", "unix:///nowhere/socket"); code != exitFailed || !strings.Contains(errors, "no such file") {
		t.Errorf("no socket: exit status %d\n%s", code, errors)
	}
}

func TestPassword(t *testing.T) {
	d := newDesk(t)
	d.stop()
	d.store.SetPassword(t, "s3cret")
	code, _, errors := d.run("show", "--hash", abc)
	if code != exitFailed || !strings.Contains(errors, "NOAUTH") || !strings.Contains(errors, "--password-file") {
		t.Errorf("without: exit status %d\n%s", code, errors)
	}
	d.env = map[string]string{"GATEQUOTA_PASSWORD": "wrong"}
	code, _, errors = d.run("show", "--hash", abc)
	if code != exitFailed || !strings.Contains(errors, "WRONGPASS") || !strings.Contains(errors, "--password-file") || strings.Contains(errors, "wrong") && !strings.Contains(errors, "WRONGPASS") {
		t.Errorf("wrong: exit status %d\n%s", code, errors)
	}
	d.env = map[string]string{"GATEQUOTA_PASSWORD": "s3cret"}
	if code, _, errors := d.run("show", "--hash", abc); code != 0 {
		t.Errorf("right: exit status %d\n%s", code, errors)
	}
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.env = map[string]string{"GATEQUOTA_PASSWORD": "wrong"}
	if code, _, errors := d.run("show", "--hash", abc, "--password-file", file); code != 0 {
		t.Errorf("in a file: exit status %d\n%s", code, errors)
	}
}

func TestVersionAndCompletion(t *testing.T) {
	d := &desk{t: t}
	if out := d.done("--version"); !regexp.MustCompile(`^gatequota \d+\.\d+\.\d+\n$`).MatchString(out) {
		t.Errorf("version %q", out)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out := d.done("completion", shell); len(out) < 1000 {
			t.Errorf("completion of %s: %q", shell, out)
		}
	}
}
