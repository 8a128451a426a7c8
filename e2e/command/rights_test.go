package command_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gatequota/gatequota/e2e/lab"
)

// rule is a rule of one count, as gateways report it.
const rule = `{"rule":"%[1]s","dryRun":false,"source":{"Header":"X-Api-Key","IPv6Subnet":64},"counts":[{"count":"%[1]s","algorithm":"%[2]s","limit":%[3]d,"window":%[4]d,"burst":%[5]d}]}`

// everyAlgorithm are rules with one count of each algorithm.
func everyAlgorithm() string {
	return strings.Join([]string{fmt.Sprintf(rule, "", "fixed-window", 100, 3600, 0), fmt.Sprintf(rule, "slide", "sliding-window", 100, 3600, 0),
		fmt.Sprintf(rule, "exact", "sliding-log", 100, 3600, 0), fmt.Sprintf(rule, "pail", "token-bucket", 100, 3600, 100)}, ",")
}

// standIn has a gateway report that obeys every version as soon as it sees it, until the test
// ends: what is tried here is the command.
func standIn(t *testing.T, store *lab.Store) {
	stop := make(chan struct{})
	var wait sync.WaitGroup
	ctx, client := context.Background(), store.Client()
	report := func() {
		version, _ := client.HGet(ctx, "rate:api:control", "version").Int()
		off := client.HGet(ctx, "rate:api:control", "enabled").Val() == "false"
		at := client.Time(ctx).Val().Unix()
		client.HSet(ctx, "rate:api:reports", "01", fmt.Sprintf(`{"version":%d,"at":%d,"host":"gw1","software":"0.1.0","enabled":%t,"middlewares":[{"name":"quota","rules":[%s]}]}`,
			version, at, !off, everyAlgorithm()))
		client.ZAdd(ctx, "rate:api:gateways", redis.Z{Score: float64(at), Member: "01"})
	}
	report()
	wait.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				report()
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		wait.Wait()
	})
}

var watching = []string{
	"status", "top --once", "show greedy", "log",
}

var changing = []string{
	"block greedy --for 1h", "clear greedy", "clear greedy", "allow greedy --limit 7 --for 1h", "off --yes", "on --yes", "reset greedy", "reset --all --yes",
}

// fill counts something of the client greedy under each algorithm, to the limit.
func fill(t *testing.T, store *lab.Store) {
	ctx, client := context.Background(), store.Client()
	now := client.Time(ctx).Val()
	key := func(name string, id int64) string {
		return fmt.Sprintf("rate:api:%s{%s}:%d", name, hashOf("greedy"), id)
	}
	client.Set(ctx, key("", now.Unix()/3600), 100, time.Hour)
	client.Set(ctx, key("slide:sw:", now.Unix()/3600), 100, time.Hour)
	for i := range 100 {
		store.Do("ZADD", key("exact:log:", 3600), now.UnixMilli(), i)
	}
	client.HSet(ctx, key("pail:tb:", 3600), "lack", 360000000, "at", now.UnixMilli())
}

// denied runs commands, and follows the log where it is wanted, and returns what the store
// has denied the operator meanwhile.
func denied(d *desk, store *lab.Store, commands []string, follow bool) string {
	store.Do("ACL", "LOG", "RESET")
	fill(d.t.(*testing.T), store)
	for _, command := range commands {
		d.run(strings.Fields(command)...)
	}
	if follow {
		d.follow(time.Second)
	}
	var all []string
	for _, entry := range store.Do("ACL", "LOG").([]any) {
		text, _ := json.Marshal(fmt.Sprint(entry))
		all = append(all, string(text))
	}
	return strings.Join(all, "\n")
}

func TestLeastRights(t *testing.T) {
	store := lab.Valkey(t, lab.StoreOptions{})
	standIn(t, store)
	all := rights(t)
	addUser(store, "operator", all)
	d := newDesk(t, store, "operator")
	for _, command := range append(append([]string{}, changing...), watching...) {
		fill(t, store)
		if code, out, errs := d.run(strings.Fields(command)...); code != 0 || errs != "" {
			t.Errorf("%s: exit status %d\n%s%s", command, code, out, errs)
		}
	}
	commands := append(append([]string{}, watching...), changing...)
	if text := denied(d, store, commands, true); text != "" {
		t.Errorf("denied with all rights: %s", text)
	}
	for i, right := range all {
		var others []string
		others = append(append(others, all[:i]...), all[i+1:]...)
		addUser(store, "operator", others)
		if text := denied(d, store, commands, right == "+xrange"); !strings.Contains(text, strings.TrimPrefix(right, "+")) {
			t.Errorf("%s is not needed; denied is %q", right, text)
		}
	}
}

func TestRightsToWatch(t *testing.T) {
	store := lab.Valkey(t, lab.StoreOptions{})
	standIn(t, store)
	store.Do("XADD", "rate:api:changes", "*", "what", "limit")
	reader := []any{"ACL", "SETUSER", "reader", "on", ">password", "%R~rate:*"}
	for _, right := range rightsIn(t, "reader", `%R~rate:\*`) {
		reader = append(reader, right)
	}
	store.Do(reader...)
	d := newDesk(t, store, "reader")
	fill(t, store)
	for _, command := range watching {
		if code, out, errs := d.run(strings.Fields(command)...); code != 0 || errs != "" || out == "" {
			t.Errorf("%s: exit status %d\n%s%s", command, code, out, errs)
		}
	}
	for _, command := range changing {
		code, _, errs := d.run(strings.Fields(command)...)
		if code != 1 || !strings.Contains(errs, "NOPERM") || !strings.Contains(errs, "lacks a right") {
			t.Errorf("%s: exit status %d\n%s", command, code, errs)
		}
	}
	if fields := store.Do("EXISTS", "rate:api:control"); fields != int64(0) {
		t.Error("something was changed")
	}
}

func TestOtherWaysToTheStore(t *testing.T) {
	t.Run("socket", func(t *testing.T) {
		store := lab.Valkey(t, lab.StoreOptions{Unix: true})
		standIn(t, store)
		d := &desk{t: t, binary: newDesk(t, store, "").binary, env: []string{"GATEQUOTA_ENDPOINT=unix://" + store.Socket()}}
		if code, out, errs := d.run("block", "x", "--for", "1h"); code != 0 {
			t.Errorf("exit status %d\n%s%s", code, out, errs)
		}
	})
	t.Run("TLS", func(t *testing.T) {
		authority := lab.NewAuthority(t)
		store := lab.Valkey(t, lab.StoreOptions{TLS: authority, TLSClient: true, Password: "s3cret"})
		standIn(t, store)
		pair := authority.Issue(t, "operator", "operator")
		d := &desk{t: t, binary: newDesk(t, store, "").binary, env: []string{"GATEQUOTA_ENDPOINT=" + store.Addr(), "GATEQUOTA_PASSWORD=s3cret"}}
		flags := []string{"--tls-ca", authority.CertFile, "--tls-cert", pair.CertFile, "--tls-key", pair.KeyFile}
		if code, out, errs := d.run(append([]string{"status"}, flags...)...); code != 0 {
			t.Errorf("exit status %d\n%s%s", code, out, errs)
		}
		for args, want := range map[string]string{
			"status": "give --tls", "status --tls": "--tls-ca", "status --tls-ca " + authority.CertFile: "certificate",
			"status --server-name elsewhere " + strings.Join(flags, " "): "--server-name",
		} {
			if code, _, errs := d.run(strings.Fields(args)...); code != 1 || !strings.Contains(errs, want) {
				t.Errorf("%s: exit status %d\n%s", args, code, errs)
			}
		}
		plain := lab.Valkey(t, lab.StoreOptions{})
		if code, _, errs := d.run("status", "--tls", "--endpoint", plain.Addr()); code != 1 || !strings.Contains(errs, "drop --tls") {
			t.Errorf("TLS to a store without: exit status %d\n%s", code, errs)
		}
	})
	t.Run("replica", func(t *testing.T) {
		store := lab.Valkey(t, lab.StoreOptions{})
		standIn(t, store)
		replica := lab.Valkey(t, lab.StoreOptions{ReplicaOf: store})
		d := &desk{t: t, binary: newDesk(t, store, "").binary, env: []string{"GATEQUOTA_ENDPOINT=" + replica.Addr()}}
		lab.Until(t, "the replica knows the gateway", func() bool { return replica.Do("EXISTS", "rate:api:reports") == int64(1) })
		if code, out, _ := d.run("status"); code != 0 || !strings.Contains(out, "A REPLICA") {
			t.Errorf("status: exit status %d\n%s", code, out)
		}
		if code, _, errs := d.run("block", "x", "--for", "1h"); code != 1 || !strings.Contains(errs, "READONLY") || !strings.Contains(errs, "name the primary") {
			t.Errorf("block: exit status %d\n%s", code, errs)
		}
	})
	t.Run("full store", func(t *testing.T) {
		store := lab.Valkey(t, lab.StoreOptions{})
		standIn(t, store)
		d := &desk{t: t, binary: newDesk(t, store, "").binary, env: []string{"GATEQUOTA_ENDPOINT=" + store.Addr()}}
		store.Do("CONFIG", "SET", "maxmemory", "1")
		if code, _, errs := d.run("block", "x", "--for", "1h"); code != 1 || !strings.Contains(errs, "OOM") {
			t.Errorf("exit status %d\n%s", code, errs)
		}
		if store.Do("EXISTS", "rate:api:control", "rate:api:changes") != int64(0) {
			t.Error("something was changed")
		}
	})
}
