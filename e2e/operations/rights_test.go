package operations_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/gatequota/gatequota/e2e/lab"
)

const password = "correct horse battery staple"

// countingRights are those that counting needs, and controlRights what live control needs
// besides, as the documentation has them.
var (
	countingRights = []string{"+evalsha", "+eval", "+incrby", "+expire", "+ttl", "+get", "+del", "+time", "+zadd", "+zremrangebyscore", "+zcard"}
	controlRights  = []string{"+hlen", "+hgetall", "+hget", "+hset", "+hdel"}
)

// A gateway whose user has the least rights obeys, reports, removes old reports and puts
// back what the store lost. Without any one of them its log names it, counting goes on,
// and what the gateway obeyed stays.
func TestLeastRightsOfControl(t *testing.T) {
	s := newSite(t, lab.StoreOptions{})
	middlewares := map[string]options{}
	without := append([]string{"+nothing", "+del"}, controlRights...)
	for _, lacks := range without {
		name := lacks[1:]
		user := []any{"ACL", "SETUSER", name, "reset", "on", ">" + password, "~rate:*", "-@all"}
		for _, right := range slices.Concat(countingRights, controlRights) {
			if right != lacks {
				user = append(user, right)
			}
		}
		s.store.Do(user...)
		middlewares[name] = options{"scope": name, "control": true, "valkey": options{"username": name, "password": password}}
		// A gateway that ended long ago.
		s.store.Do("HSET", "rate:"+name+":reports", "0123456789abcdef", `{"version":1,"at":1}`)
		s.store.Do("HSET", "rate:"+name+":control", "version", 1, "enabled", "false")
	}
	door := s.open(s.dynamic(middlewares), lab.TraefikOptions{})

	said := func(scope string) bool {
		for _, line := range door.LogLines("refuses to say what is set for the scope " + scope + " (") {
			if strings.Contains(line, "it names the command "+strings.ToUpper(scope)+"); what was set before stays") {
				return true
			}
		}
		return false
	}
	off := func(scope string) bool {
		a := s.askAt("/"+scope, 1, "key")[0]
		return a.Status == http.StatusOK && decision(a) == ""
	}
	for _, name := range []string{"nothing", "hget", "del", "hdel"} {
		lab.Until(t, name+" is switched off", func() bool { return off(name) })
	}
	for _, name := range []string{"hlen", "hgetall", "hset"} {
		lab.Until(t, "the log names "+name, func() bool { return said(name) })
		mustAllow(t, "without "+name, s.askAt("/"+name, limit+5, "key"), limit, "shared")
	}
	lab.Until(t, "the log names hdel", func() bool { return said("hdel") })
	reports := func(name string) map[string]string {
		return s.store.Client().HGetAll(context.Background(), "rate:"+name+":reports").Val()
	}
	for name, want := range map[string]int{"nothing": 1, "hget": 1, "del": 1, "hdel": 2} {
		lab.Until(t, name+" is reported", func() bool {
			all := reports(name)
			old := all["0123456789abcdef"]
			return len(all) == want && (old == "") == (want == 1)
		})
	}

	for _, name := range []string{"nothing", "hget", "del"} {
		s.store.Do("DEL", "rate:"+name+":control")
	}
	lab.Until(t, "it is put back", func() bool {
		return s.store.Client().HGet(context.Background(), "rate:nothing:control", "enabled").Val() == "false"
	})
	for _, name := range []string{"hget", "del"} {
		lab.Until(t, "the log names "+name, func() bool { return said(name) })
		if n := s.store.Client().Exists(context.Background(), "rate:"+name+":control").Val(); n != 0 {
			t.Errorf("without %s something was put back", name)
		}
	}
	for _, name := range []string{"nothing", "hget", "del"} {
		if !off(name) {
			t.Errorf("%s: what was obeyed is forgotten", name)
		}
	}
	s.store.Do("ACL", "SETUSER", "hgetall", "+hgetall")
	lab.Until(t, "a right that is given takes effect", func() bool { return off("hgetall") })
	if len(door.LogLines("set for the scope nothing")) > 0 || len(door.LogLines(": away")) > 0 {
		t.Errorf("the log: %q", lines(door))
	}
}
