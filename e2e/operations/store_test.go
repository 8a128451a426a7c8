package operations_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// The example of a store's configuration is one that real gateways count and are changed
// with, and that goes on where its disk does not.
func TestExampleOfAStore(t *testing.T) {
	t.Parallel()
	text := readFile(t, "examples", "valkey.conf")
	var rest []string
	var users [][]any
	for _, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || strings.HasPrefix(line, "#") || words[0] == "bind":
		case words[0] == "user" && words[1] != "default":
			user := []any{"ACL", "SETUSER"}
			for _, word := range words[1:] {
				user = append(user, word)
			}
			users = append(users, user)
		case words[0] != "user":
			rest = append(rest, "--"+words[0])
			for _, word := range words[1:] {
				rest = append(rest, strings.Trim(word, `"`))
			}
		}
	}
	if len(users) != 3 || len(rest) < 8 {
		t.Fatalf("the example has the users %v, and %v", users, rest)
	}
	s := newSite(t, lab.StoreOptions{Args: append(rest, mayMove...)})
	_, rights, _ := strings.Cut(text, "\nuser gatequota on >change-me-1 ")
	rights, _, _ = strings.Cut(rights, "\n")
	if command := "\nACL SETUSER gatequota on >password " + rights + "\n"; !strings.Contains(readFile(t, "docs", "operations.md"), command) {
		t.Errorf("the page has not the rights of the example: %s", command)
	}
	for _, user := range users {
		s.store.Do(user...)
	}
	own := map[string]options{}
	for _, algorithm := range []string{"fixed-window", "sliding-window", "sliding-log", "token-bucket"} {
		own[algorithm] = options{"algorithm": algorithm, "window": "366d", "control": true, "valkey": options{"username": "gatequota", "password": "change-me-1"}}
	}
	own["quota"] = own["fixed-window"]
	s.open(s.dynamic(own), lab.TraefikOptions{})
	for name := range own {
		mustAllow(t, name, s.askAt("/"+name, 5, name), 5, "shared")
	}
	s.set(1, "block:"+hash("bad"), time.Now().Add(time.Hour).Unix())
	s.obeyed(1, 1)
	mustAllow(t, "blocked", s.ask(2, "bad"), 0, "control")
	s.loseDisk()
	mustAllow(t, "without a disk", s.ask(5, "another key"), 5, "shared")
	for _, line := range lines(s.doors[0]) {
		if !strings.Contains(line, "control: version 1 is obeyed") {
			t.Errorf("logged: %s", line)
		}
	}
}

// mayMove are options of a store whose folder can be changed.
var mayMove = []string{"--enable-protected-configs", "yes"}

// loseDisk takes the store's folder away, and waits until it cannot make a snapshot there.
func (s *site) loseDisk() {
	s.t.Helper()
	dir := s.t.TempDir()
	s.store.Do("CONFIG", "SET", "dir", dir)
	if err := os.RemoveAll(dir); err != nil {
		s.t.Fatal(err)
	}
	lab.Until(s.t, "a snapshot fails", func() bool {
		// While one is being made there is no other.
		_ = s.store.Client().BgSave(context.Background()).Err()
		return strings.Contains(fmt.Sprint(s.store.Do("INFO", "persistence")), "rdb_last_bgsave_status:err")
	})
}

// A store that refuses writes since it cannot make a snapshot is named as that.
func TestStoreWithoutADisk(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.StoreOptions{Args: append([]string{"--save", "3600", "1"}, mayMove...)})
	s.openAlike(1, nil)
	s.await("shared")
	s.loseDisk()
	s.await("local")
	lab.Until(t, "the log names it", func() bool {
		return strings.Contains(strings.Join(lines(s.doors[0]), "\n"), `away ("MISCONF": it cannot write to its disk and refuses writes)`)
	})
	s.store.Do("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
	s.await("shared")
}

// Each first word for which the plugin has an advice stands on the page.
func TestPageHasEachFirstWord(t *testing.T) {
	source := readFile(t, "limiter", "breaker.go")
	_, source, _ = strings.Cut(source, "var advices = ")
	source, _, _ = strings.Cut(source, "\n}\n")
	known := regexp.MustCompile(`(?m)^\t"([A-Z]+)":`).FindAllStringSubmatch(source, -1)
	if len(known) < 10 {
		t.Fatalf("the plugin knows %v", known)
	}
	var told []string
	for _, row := range table(t, "words") {
		for _, word := range regexp.MustCompile("`([A-Z]+)").FindAllStringSubmatch(row[0], -1) {
			told = append(told, word[1])
		}
	}
	for _, word := range known {
		if !slices.Contains(told, word[1]) {
			t.Errorf("the page says nothing of %s", word[1])
		}
	}
}

// A table that is full costs no exactness in the store: who was pushed out is counted
// there. Alone, the gateway counts such a client from zero.
func TestTableThatIsFull(t *testing.T) {
	t.Parallel()
	const few = 5
	s := newSite(t, lab.StoreOptions{})
	s.openAlike(2, options{"limit": few, "maxClients": 8, "fallback": options{"gateways": 2}})
	s.acquaint()
	for round := range few + 2 {
		passed := 2
		switch {
		case 2*round >= few:
			passed = 0
		case 2*round+2 > few:
			passed = few - 2*round
		}
		for n := range 40 {
			mustAllow(t, fmt.Sprintf("round %d, client %d", round, n), s.ask(2, fmt.Sprint("client-", n)), passed, "shared")
		}
	}
	s.store.Kill()
	s.await("local")
	extra := 0
	for n := range 40 {
		extra += s.ask(10, fmt.Sprint("client-", n)).Count(http.StatusOK)
	}
	// Half of the limit for each gateway, rounded up, of those that it does not know.
	if most := 40 * 2 * 3; extra < most/2 || extra > most {
		t.Errorf("alone, the gateways let %d requests pass of clients that had used their limit, want up to %d", extra, most)
	}
}

// What a client takes in the store, all in all, is what the page says; and however many
// middlewares use a store, a gateway has one connection to it.
func TestWhatTheStoreBears(t *testing.T) {
	t.Parallel()
	const clients = 3000
	s := newSite(t, lab.StoreOptions{})
	all := map[string]options{"quota": nil}
	for _, algorithm := range []string{"fixed-window", "sliding-window", "token-bucket"} {
		all[algorithm] = options{"algorithm": algorithm, "scope": algorithm[:len(scope)], "window": "366d", "headers": "none"}
	}
	s.open(s.dynamic(all), lab.TraefikOptions{})
	s.await("shared")
	for _, row := range table(t, "memory") {
		name := strings.Trim(row[0], "`")
		if all[name] == nil {
			continue
		}
		before := s.store.Info("used_memory")
		var requests []lab.Request
		for n := range clients {
			requests = append(requests, lab.Keyed(s.doors[0].URL+"/"+name, fmt.Sprint("client-", n)))
		}
		mustAllow(t, name, s.client.Burst(8, requests), clients, "shared")
		told := 0
		if _, err := fmt.Sscanf(row[len(row)-1], "%d", &told); err != nil {
			t.Fatalf("%s: %v", row, err)
		}
		grown := (s.store.Info("used_memory") - before) / clients
		if name == "sliding-window" {
			grown *= 2 // in the next window there are two counts
		}
		t.Logf("%s: %d bytes a client", name, grown)
		// Tables of the store double now and then.
		if grown < told*2/3 || grown > told*3/2 {
			t.Errorf("%s: a client takes %d bytes in the store, and the page says %d", name, grown, told)
		}
	}
	if n := s.store.Clients(); n != 1 {
		t.Errorf("%d middlewares have %d connections, want 1", len(all), n)
	}
}

// readFile returns what stands in a file of the repository.
func readFile(t testing.TB, path ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(append([]string{lab.Root()}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// table returns the rows of a table on the page, without their head.
func table(t testing.TB, name string) [][]string {
	t.Helper()
	_, rest, found := strings.Cut(readFile(t, "docs", "operations.md"), "<!-- table: "+name+" -->\n")
	if !found {
		t.Fatalf("the page has no table %s", name)
	}
	var rows [][]string
	for _, line := range strings.Split(rest, "\n") {
		if !strings.HasPrefix(line, "|") {
			break
		}
		var row []string
		for _, cell := range strings.Split(strings.Trim(line, "|"), "|") {
			row = append(row, strings.TrimSpace(cell))
		}
		rows = append(rows, row)
	}
	if len(rows) < 3 {
		t.Fatalf("the table %s has the rows %v", name, rows)
	}
	return rows[2:]
}
