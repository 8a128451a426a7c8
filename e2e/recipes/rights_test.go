package recipes_test

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/lab"
)

var right = regexp.MustCompile(`\+[a-z]+`)

// The README's table of rights: with those in a row its way to count works, and without
// one of them the gateway decides alone; where it is the one to read with, nothing else is
// touched by that.
func TestRightsOfEachWayToCount(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(lab.Root(), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	_, least, _ := strings.Cut(text, "ACL SETUSER gatequota on ")
	least, _, _ = strings.Cut(least, "\n")
	_, table, _ := strings.Cut(text, "| used | reads with | and needs |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	if least == "" || table == "" {
		t.Fatal("the README has no rights, or no table of them")
	}
	_, all, _ := strings.Cut(text, "The rights for all of them together:\n\n```\nACL SETUSER gatequota on ")
	all, _, _ = strings.Cut(all, "\n")
	together := right.FindAllString(least, -1)
	for _, needed := range right.FindAllString(table, -1) {
		if !slices.Contains(together, needed) {
			together = append(together, needed)
		}
	}
	granted := right.FindAllString(all, -1)
	slices.Sort(together)
	slices.Sort(granted)
	if !slices.Equal(granted, together) {
		t.Errorf("the README has the rights %q for all ways together, and each needs of %q", granted, together)
	}
	ways := map[string]lab.Map{
		"`limits`":                    {"limits": []lab.Map{{"name": "a", "limit": 50, "window": "1m"}, {"name": "b", "limit": 500, "window": "1h"}}},
		"`cost`":                      {"cost": 2},
		"`algorithm: sliding-window`": {"algorithm": "sliding-window"},
		"`algorithm: sliding-log`":    {"algorithm": "sliding-log"},
		"`algorithm: token-bucket`":   {"algorithm": "token-bucket"},
	}
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	routers, middlewares := lab.Map{}, lab.Map{}
	add := func(rule lab.Map, granted []string, lacks string) (path string) {
		user := "user" + string(rune('a'+len(routers)))
		command := []any{"ACL", "SETUSER", user, "reset", "on", ">password", "~rate:*", "-@all"}
		for _, r := range granted {
			if r != lacks {
				command = append(command, r)
			}
		}
		store.Do(command...)
		options := lab.Map{"limit": 100, "window": "1m", "valkey": lab.Map{"endpoints": []string{store.Addr()}, "username": user, "password": "password", "timeout": "5s", "dialTimeout": "5s"}}
		of := lab.Map{"name": "way", "pathPrefix": "/" + user + "/way"}
		for option, value := range rule {
			of[option] = value
		}
		options["rules"] = []lab.Map{of}
		middlewares[user] = lab.Quota(options)
		routers[user] = lab.Map{"rule": "PathPrefix(`/" + user + "`)", "middlewares": []string{user}, "service": "app"}
		return "/" + user
	}
	type probe struct {
		name, path, way string
		rest            bool // what is counted by one fixed window is asked too
	}
	var probes []probe
	for _, line := range strings.Split(table, "\n") {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		reads, needs := right.FindAllString(cells[1], -1), right.FindAllString(cells[2], -1)
		granted := slices.Concat(right.FindAllString(least, -1), reads, needs)
		for name, rule := range ways {
			if !strings.Contains(cells[0], name) {
				continue
			}
			delete(ways, name)
			probes = append(probes, probe{name, add(rule, granted, ""), "shared", true})
			for _, lacks := range reads {
				probes = append(probes, probe{name + " without " + lacks, add(rule, granted, lacks), "local", true})
			}
			for _, lacks := range needs {
				if lacks == "+pttl" && !strings.Contains(name, "sliding-window") {
					continue // which it needs only for what a store knows and a gateway does not
				}
				probes = append(probes, probe{name + " without " + lacks, add(rule, granted, lacks), "local", false})
			}
		}
	}
	if len(ways) > 0 {
		t.Errorf("the table leaves out %v", ways)
	}
	dynamic, err := yaml.Marshal(lab.Map{"http": lab.Map{
		"routers": routers, "middlewares": middlewares,
		"services": lab.Map{"app": lab.Map{"loadBalancer": lab.Map{"servers": []lab.Map{{"url": app.URLs[0]}}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{}, string(dynamic))
	for _, p := range probes {
		mustBe := func(path, want string) {
			answer := client.Get(lab.Keyed(tr.URL+path, "key"))
			if got := answer.Header.Get("X-RateLimit-Decision"); got != want || answer.Status != http.StatusOK {
				t.Errorf("%s: %s: %d, decided by %q, want %q", p.name, path, answer.Status, got, want)
			}
		}
		for range 4 {
			mustBe(p.path+"/way", p.way)
			if p.rest {
				mustBe(p.path, "shared")
			}
		}
	}
	if lines := tr.LogLines("refuses the count of keys"); len(lines) == 0 {
		t.Error("the log does not say which rights are missing")
	}
}
