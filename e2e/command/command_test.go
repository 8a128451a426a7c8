package command_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

func TestOffAndOn(t *testing.T) {
	s := newSite(t)
	s.exhaust("/", "greedy")
	load := s.load("/", "greedy")
	defer load.Stop()
	lab.Until(t, "the load is refused", func() bool { return load.Len() > 20 })

	began := time.Now()
	s.desk.do("off", "--yes")
	ended := time.Now()
	s.must("after off", s.send(limit, "/", "greedy"), 200)
	sent := load.Len()
	lab.Until(t, "the load goes on", func() bool { return load.Len() > sent+50 })
	s.must("under load after off", since(load.Since(0), ended), 200)
	if took := ended.Sub(began); took > obedient+time.Second {
		t.Errorf("off took %s", took)
	}

	s.desk.do("on", "--yes")
	ended = time.Now()
	s.must("after on", s.send(limit, "/", "greedy"), 429)
	sent = load.Len()
	lab.Until(t, "the load goes on", func() bool { return load.Len() > sent+50 })
	answers := load.Stop()
	s.must("under load after on", since(answers, ended), 429)
	s.noErrors(answers)
}

func TestAllow(t *testing.T) {
	s := newSite(t)
	for _, path := range []string{"/", "/exact"} {
		s.exhaust(path, "vip")
	}
	s.exhaust("/", "other")
	load := s.load("/", "vip", "other")
	defer load.Stop()
	hits := s.app.Hits()

	s.desk.do("allow", "vip", "--limit", fmt.Sprint(limit+30), "--for", "1h")
	lab.Until(t, "what is allowed is used up", func() bool { return s.desk.show("vip")[""].Left == 0 })
	s.must("beyond what is allowed", s.send(4, "/", "vip"), 429)
	s.must("another client", s.send(4, "/", "other"), 429)
	s.must("under a limit of its own", s.send(4, "/exact", "vip"), 429)
	// Of those before, refusals count until a gateway knows of the limit.
	if got := s.app.Hits() - hits; got < 26 || got > 30 {
		t.Errorf("a limit that is 30 higher let %d more pass", got)
	}
	if at := s.desk.show("vip")[""]; !at.Allowed || at.Limit != limit+30 {
		t.Errorf("shown is %+v", at)
	}

	s.desk.do("allow", "vip", "--limit", fmt.Sprint(limit+1000), "--limit", fmt.Sprintf("exact=%d", limit+5), "--for", "1h")
	s.must("allowed under a limit of its own", s.send(5, "/exact", "vip"), 200)
	s.must("beyond that", s.send(2, "/exact", "vip"), 429)
	s.must("allowed much", s.send(10, "/", "vip"), 200)
	c := s.desk.do("clear", "vip")
	ended := time.Now()
	if len(c.Changes) != 1 || c.Changes[0].What != "allow" {
		t.Errorf("clear changed %v", c.Changes)
	}
	s.must("after clear", s.send(4, "/", "vip"), 429)
	s.must("after clear, under the other limit", s.send(4, "/exact", "vip"), 429)
	answers := load.Stop()
	s.must("under load after clear", since(answers, ended), 429)
	s.noErrors(answers)
}

func TestWhatIsAllowedEnds(t *testing.T) {
	s := newSite(t)
	s.exhaust("/", "vip")
	s.desk.do("allow", "vip", "--limit", "100000", "--for", "10s")
	s.must("allowed", s.send(4, "/", "vip"), 200)
	s.desk.do("block", "bad", "--for", "10s")
	s.must("blocked", s.send(4, "/", "bad"), 429)
	lab.Until(t, "it is over", func() bool { return s.send(2, "/", "vip").Count(429) == 2 && s.send(2, "/", "bad").Count(200) == 2 })
	s.desk.do("limit", "50", "--yes")
	for _, field := range s.store.Do("HKEYS", "rate:api:control").([]any) {
		if strings.Contains(field.(string), hashOf("vip")) || strings.Contains(field.(string), hashOf("bad")) {
			t.Errorf("%v is still set", field)
		}
	}
}

func TestBlock(t *testing.T) {
	s := newSite(t)
	s.desk.do("limit", "1000000", "--yes")
	load := s.load("/", "bad", "good")
	defer load.Stop()
	lab.Until(t, "the load passes", func() bool { return load.Len() > 20 })
	s.desk.do("block", "bad", "--for", "1h")
	for _, path := range []string{"/", "/slide", "/exact", "/pail"} {
		s.must("blocked on "+path, s.send(4, path, "bad"), 429)
		s.must("another client on "+path, s.send(4, path, "good"), 200)
	}
	answers := s.send(1, "/", "bad")
	if wait := answers[0].Number("Retry-After"); wait < 3500 || wait > 3600 {
		t.Errorf("Retry-After is %d", wait)
	}
	s.desk.do("clear", "bad")
	s.must("after clear", s.send(10, "/", "bad"), 200)
	s.noErrors(load.Stop())
}

func TestReset(t *testing.T) {
	s := newSite(t)
	paths := map[string]string{"/": "", "/slide": "slide", "/exact": "exact", "/pail": "pail"}
	for path := range paths {
		s.exhaust(path, "greedy")
		s.exhaust(path, "other")
	}
	for path, count := range paths {
		if at := s.desk.show("greedy")[count]; at.Left != 0 || at.Used < limit || at.Wait < 1 || at.Reset < at.Wait {
			t.Errorf("before, shown of %s is %+v", path, at)
		}
	}
	load := s.load("/", "greedy", "other")
	defer load.Stop()
	lab.Until(t, "the load is refused", func() bool { return load.Len() > 20 })
	hits := s.app.Hits()
	c := s.desk.do("reset", "greedy")
	if c.Reset == nil || len(c.Reset.Restored) > 0 || c.Reset.Keys < 4 {
		t.Errorf("reset says %+v", c.Reset)
	}
	lab.Until(t, "the client has used up its limit again", func() bool { return s.desk.show("greedy")[""].Left == 0 })
	s.must("when that is so", s.send(4, "/", "greedy"), 429)
	answers := load.Stop()
	s.noErrors(answers)
	// Until its keys are deleted it is refused, and from then on counted from nothing: it
	// gets its limit once more.
	if got := s.app.Hits() - hits; got != limit {
		t.Errorf("the reset let %d requests pass, of a limit of %d", got, limit)
	}
	for path := range paths {
		s.must("another client on "+path, s.send(4, path, "other"), 429)
		if path != "/" {
			s.exhaust(path, "greedy")
		}
	}
	// After the time in which nothing is remembered all is as ever.
	lab.Until(t, "the gateways remember again", func() bool {
		before := s.store.Info("total_commands_processed")
		s.send(20, "/", "greedy")
		return s.store.Info("total_commands_processed")-before < 20
	})
	s.must("and refuse", s.send(4, "/", "greedy"), 429)
}

func TestResetAll(t *testing.T) {
	s := newSite(t)
	for _, path := range []string{"/", "/exact"} {
		s.exhaust(path, "one")
		s.exhaust(path, "two")
	}
	c := s.desk.do("reset", "--all", "--yes")
	if c.Reset == nil || c.Reset.Keys != 4 || c.Reset.Left != 0 {
		t.Errorf("reset says %+v", c.Reset)
	}
	for _, path := range []string{"/", "/exact"} {
		s.exhaust(path, "one")
		s.exhaust(path, "two")
	}
}

func TestDeletingKeysByHandFreesNobody(t *testing.T) {
	s := newSite(t)
	s.exhaust("/", "greedy")
	s.desk.do("block", "bad", "--for", "1h")
	for _, key := range s.store.Keys() {
		if strings.Contains(key, "{") {
			s.store.Do("DEL", key)
		}
	}
	s.must("after DEL", s.send(10, "/", "greedy"), 429)
	s.store.Do("FLUSHALL")
	s.must("after FLUSHALL", s.send(10, "/", "greedy"), 429)
	// What was set is put back by the gateways, which go on obeying it meanwhile.
	s.must("a blocked client after FLUSHALL", s.send(4, "/", "bad"), 429)
	lab.Until(t, "what was set is back", func() bool { return s.store.Do("HEXISTS", "rate:api:control", "block:"+hashOf("bad")) == int64(1) })
}

func TestDryRun(t *testing.T) {
	s := newSite(t)
	s.exhaust("/", "greedy")
	load := s.load("/", "greedy")
	defer load.Stop()
	s.desk.do("dry-run", "on", "--yes")
	answers := s.send(10, "/", "greedy")
	s.must("in a dry run", answers, 200)
	if told := answers[9].Header.Get("X-RateLimit-Dry-Run"); told != "refused" {
		t.Errorf("it tells %q", told)
	}
	s.desk.do("dry-run", "off", "--yes")
	s.must("with dry run off", s.send(10, "/", "greedy"), 429)
	s.desk.do("dry-run", "default", "--yes")
	s.must("by the options", s.send(10, "/", "greedy"), 429)
	s.noErrors(load.Stop())
}

func TestLimit(t *testing.T) {
	s := newSite(t)
	for _, path := range []string{"/", "/exact"} {
		s.exhaust(path, "greedy")
	}
	load := s.load("/", "idle")
	defer load.Stop()
	s.desk.do("limit", "40", "--yes")
	if answers := s.send(60, "/", "greedy"); answers.Count(200) < 16 || answers.Count(200) > 20 {
		t.Errorf("a limit of 40 in place of 20: %s more", answers.Tally())
	}
	s.must("under another limit", s.send(4, "/exact", "greedy"), 429)
	s.desk.do("limit", "25", "--count", "exact", "--window", "2h", "--yes")
	if answers := s.send(40, "/exact", "greedy"); answers.Count(200) != 25 {
		t.Errorf("a window of its own: %s", answers.Tally())
	}
	if at := s.desk.show("greedy")["exact"]; at.Limit != 25 || at.Used != 25 {
		t.Errorf("shown is %+v", at)
	}
	s.desk.do("limit", "default", "--count", "exact", "--yes")
	s.must("by the options again", s.send(4, "/exact", "greedy"), 429)
	s.desk.do("limit", "default", "--yes")
	s.must("by the options again", s.send(4, "/", "greedy"), 429)
	// What a gateway must refuse is told to the operator.
	code, _, errs := s.desk.run("limit", "20000", "--count", "exact", "--yes")
	if code != 3 || !strings.Contains(errs, "still has the limit 20") {
		t.Errorf("more than maxLog: exit status %d\n%s", code, errs)
	}
	s.noErrors(load.Stop())
}

func TestLog(t *testing.T) {
	s := newSite(t)
	s.desk.do("off", "--yes")
	s.desk.do("on", "--yes", "--by", "bob")
	s.desk.do("block", "bad", "--for", "1h")
	s.desk.do("reset", "bad")
	code, out, errs := s.desk.run("log", "--json")
	if code != 0 || errs != "" {
		t.Fatalf("exit status %d\n%s", code, errs)
	}
	var got []string
	for line := range strings.Lines(out) {
		var e entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(e.By, "ann@") {
			e.What += " by " + e.By
		}
		got = append(got, e.What+" "+strings.Replace(e.Client, hashOf("bad"), "bad", 1))
	}
	if want := []string{"enabled ", "enabled by bob ", "block bad", "epoch bad"}; !slices.Equal(got, want) {
		t.Errorf("logged is %q, want %q", got, want)
	}
}

func TestTheStoreIsRestartedEmpty(t *testing.T) {
	s := newSite(t)
	s.exhaust("/", "greedy")
	s.desk.do("block", "bad", "--for", "1h")
	s.desk.do("off", "--yes")
	load := s.load("/", "greedy")
	defer load.Stop()
	s.store.Kill()
	if code, _, errs := s.desk.run("status"); code != 1 || !strings.Contains(errs, "connection refused") {
		t.Errorf("with the store away: exit status %d\n%s", code, errs)
	}
	s.must("with the store away", s.send(20, "/", "greedy"), 200)
	s.store.Start()
	addUser(s.store, "operator", rights(t))
	s.must("with the store back", s.send(20, "/", "greedy"), 200)
	// The next change ends nothing that was set, though the store knows nothing of it.
	lab.Until(t, "both gateways report again", func() bool { return s.store.Do("HLEN", "rate:api:reports") == int64(2) })
	c := s.desk.do("limit", "30", "--yes")
	if c.Version != 3 {
		t.Errorf("the version is %d after three changes", c.Version)
	}
	s.must("after a change", s.send(20, "/", "greedy"), 200)
	s.noErrors(load.Stop())
	s.desk.do("on", "--yes")
	s.must("a blocked client", s.send(4, "/", "bad"), 429)
}

func TestTheStoreSeesWhatItIsSpared(t *testing.T) {
	s := newSite(t)
	for _, path := range []string{"/", "/slide", "/exact", "/pail"} {
		s.exhaust(path, "greedy")
	}
	s.desk.do("reset", "--all", "--yes")
	s.desk.do("reset", "greedy")
	s.desk.show("greedy")
	for _, args := range []string{"top --once", "status", "log"} {
		if code, _, errs := s.desk.run(strings.Fields(args)...); code != 0 {
			t.Errorf("%s: exit status %d\n%s", args, code, errs)
		}
	}
	text := s.store.Do("INFO", "commandstats").(string)
	for _, command := range []string{"keys", "flushall", "flushdb", "smembers", "sort", "script", "config|set"} {
		if strings.Contains(text, "cmdstat_"+command+":") {
			t.Errorf("%s was called", command)
		}
	}
	for _, command := range []string{"scan", "unlink", "multi", "watch"} {
		if !strings.Contains(text, "cmdstat_"+command+":") {
			t.Errorf("%s was not called", command)
		}
	}
}

func TestAGatewayThatEndedIsWaitedForInVain(t *testing.T) {
	s := newSite(t)
	s.doors[1].Kill()
	code, out, errs := s.desk.run("block", "bad", "--for", "1h")
	if code != 3 || !strings.Contains(errs, ": gw2 obeys version 0, ") || strings.Contains(out, "obeyed by") {
		t.Errorf("exit status %d\n%s%s", code, out, errs)
	}
	if a := s.client.Get(lab.Keyed(s.doors[0].URL+"/", "bad")); a.Status != 429 {
		t.Errorf("the other gateway answers %d", a.Status)
	}
	lab.Until(t, "it is forgotten", func() bool {
		code, out, _ := s.desk.run("off", "--yes")
		return code == 0 && strings.Contains(out, "obeyed by 1 gateway after")
	})
}

func TestTop(t *testing.T) {
	s := newSite(t)
	s.exhaust("/", "greedy")
	s.send(limit/2, "/exact", "other")
	code, out, errs := s.desk.run("top", "--json")
	var view struct{ Clients []standing }
	if err := json.Unmarshal([]byte(out), &view); err != nil || code != 0 || len(view.Clients) != 2 {
		t.Fatalf("exit status %d, %v\n%s%s", code, err, out, errs)
	}
	if c := view.Clients[0]; c.Client != hashOf("greedy") || c.Used < limit || c.Left != 0 || c.Reset < 1 {
		t.Errorf("first is %+v", c)
	}
	if c := view.Clients[1]; c.Client != hashOf("other") || c.Count != "exact" || c.Used != limit/2 || c.Left != limit/2 {
		t.Errorf("second is %+v", c)
	}
}
