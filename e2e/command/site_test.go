// Package command_test has an operator call the command gatequota while two real gateways
// serve requests, and looks at what these do.
package command_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/lab"
)

const (
	limit    = 20              // of the top level, in windows that are long
	obedient = 3 * time.Second // after so long all gateways do what was said
)

// binary is the command, built once.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "gatequota")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "gatequota")
	cmd := exec.Command("go", "build", "-o", path, "./gatequota")
	cmd.Dir = filepath.Join(lab.Root(), "ctl")
	output, err := cmd.CombinedOutput()
	if err != nil {
		return "", errors.New(string(output))
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := binary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// site is two gateways in front of one application, and a desk with the command. Clients
// are told apart by their keys.
type site struct {
	t      *testing.T
	store  *lab.Store
	app    *lab.App
	client *lab.Client
	doors  []*lab.Traefik
	desk   *desk
}

// rights returns the rights that docs/command.md says the command's user needs.
func rights(t testing.TB) []string { return rightsIn(t, "operator", `~rate:\*`) }

// rightsIn returns the rights that the page gives a user with these keys.
func rightsIn(t testing.TB, user, keys string) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(lab.Root(), "docs", "command.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`ACL SETUSER ` + user + ` on >password ` + keys + ` ([^\n]+)`).FindSubmatch(page)
	if found == nil {
		t.Fatalf("docs/command.md does not say which rights the user %s needs", user)
	}
	return strings.Fields(string(found[1]))
}

// addUser adds a user with these rights to a store.
func addUser(store *lab.Store, name string, rights []string) {
	args := []any{"ACL", "SETUSER", name, "reset", "on", ">password", "~rate:*"}
	for _, right := range rights {
		args = append(args, right)
	}
	store.Do(args...)
}

// newSite starts a site with a rule for each algorithm beside the top level, which counts in
// fixed windows.
func newSite(t *testing.T) *site {
	t.Helper()
	length, _ := lab.QuietWindow(time.Now())
	window := length.String()
	return newSiteOf(t, lab.Map{"limit": limit, "window": window, "rules": []lab.Map{
		{"name": "slide", "path": "/slide", "algorithm": "sliding-window", "limit": limit, "window": window},
		{"name": "exact", "path": "/exact", "algorithm": "sliding-log", "limit": limit, "window": "1h"},
		{"name": "pail", "path": "/pail", "algorithm": "token-bucket", "limit": limit, "window": "10h"},
	}})
}

// newSiteOf starts a site whose middleware has these options, of which it adds the scope api,
// the store, control, and that keys tell clients apart. Its machines are called gw1 and gw2.
func newSiteOf(t *testing.T, quota lab.Map) *site {
	t.Helper()
	s := &site{t: t, store: lab.Valkey(t, lab.StoreOptions{}), app: lab.NewApp(t, 1), client: lab.NewClient(t)}
	addUser(s.store, "operator", rights(t))
	s.desk = newDesk(t, s.store, "operator")
	maps.Copy(quota, lab.Map{
		"scope": "api", "control": true,
		"sourceCriterion": lab.Map{"requestHeaderName": "X-API-Key"},
		"valkey":          lab.Map{"endpoints": []string{s.store.Addr()}, "timeout": "500ms", "dialTimeout": "2s"},
	})
	text, err := yaml.Marshal(lab.Map{"http": lab.Map{
		"routers":     lab.Map{"app": lab.Map{"rule": "PathPrefix(`/`)", "middlewares": []string{"quota"}, "service": "app"}},
		"middlewares": lab.Map{"quota": lab.Quota(quota)},
		"services":    lab.Map{"app": lab.Map{"loadBalancer": lab.Map{"servers": []lab.Map{{"url": s.app.URLs[0]}}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"gw1", "gw2"} {
		s.doors = append(s.doors, lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR", Host: host}, string(text)))
	}
	lab.Until(t, "both gateways report", func() bool { return s.store.Do("HLEN", "rate:api:reports") == int64(2) })
	return s
}

// send sends n requests of a key to a path through both gateways in turn.
func (s *site) send(n int, path, key string) lab.Answers {
	s.t.Helper()
	return s.client.Sequence(lab.Alternate(n, key, s.doors[0].URL+path, s.doors[1].URL+path))
}

// load has keys send to a path through both gateways, about a hundred times a second in
// all, until it is stopped.
func (s *site) load(path string, keys ...string) *lab.Load {
	s.t.Helper()
	return s.client.Steady(s.t, 4, 40*time.Millisecond, func(n int) lab.Request {
		n /= 4
		return lab.Keyed(s.doors[n%2].URL+path, keys[n/2%len(keys)])
	})
}

// exhaust uses up the limit of a key on a path, so that both gateways know it.
func (s *site) exhaust(path, key string) {
	s.t.Helper()
	answers := s.send(limit+10, path, key)
	if answers.Count(200) != limit || answers.Count(429) != 10 {
		s.t.Fatalf("%s: %s of %d requests under a limit of %d", path, answers.Tally(), limit+10, limit)
	}
}

// must fails the test unless all answers have a status.
func (s *site) must(what string, answers lab.Answers, status int) {
	s.t.Helper()
	if a, wrong := answers.Wrong(status); wrong {
		s.t.Errorf("%s: %s, want %d alone (%v)", what, answers.Tally(), status, a.Err)
	}
}

// noErrors fails the test if a request of a load got anything but an answer of the
// application or a refusal.
func (s *site) noErrors(answers lab.Answers) {
	s.t.Helper()
	if a, wrong := answers.Wrong(200, 429); wrong {
		s.t.Errorf("of %d requests: %s (%v)", len(answers), answers.Tally(), a.Err)
	}
	if len(answers) < 20 {
		s.t.Errorf("only %d requests were sent", len(answers))
	}
}

// since returns the answers to requests that were sent after a time.
func since(answers lab.Answers, at time.Time) lab.Answers {
	var later lab.Answers
	for _, a := range answers {
		if a.At.Add(-a.Took).After(at) {
			later = append(later, a)
		}
	}
	return later
}

func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// desk is where an operator calls the command.
type desk struct {
	t      testing.TB
	binary string
	env    []string
}

func newDesk(t testing.TB, store *lab.Store, user string) *desk {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return &desk{t: t, binary: path, env: []string{
		"GATEQUOTA_ENDPOINT=" + store.Addr(), "GATEQUOTA_USERNAME=" + user, "GATEQUOTA_PASSWORD=password", "USER=ann", "HOME=" + t.TempDir(),
	}}
}

// run calls the command.
func (d *desk) run(args ...string) (code int, out, errs string) {
	d.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(d.binary, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = d.env, &stdout, &stderr
	err := cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		d.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// follow has the command follow the log for a while, and returns its exit status.
func (d *desk) follow(long time.Duration) int {
	d.t.Helper()
	cmd := exec.Command(d.binary, "log", "--follow")
	cmd.Env = d.env
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	timer := time.AfterFunc(long, func() { _ = cmd.Process.Signal(os.Interrupt) })
	defer timer.Stop()
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode()
}

// A change is what the command prints as JSON of one.
type change struct {
	Version  int64
	Changes  []entry
	Obeyed   bool
	Waited   float64
	Gateways []struct{ Obeys bool }
	Reset    *struct {
		Keys          int
		Before, After []standing
		Restored      []standing
		Left          int
	}
}

type entry struct{ What, Client, Old, New, By string }

type standing struct {
	Count, Algorithm, Client          string
	Used, Limit, Left, Reset, Wait    int64
	Allowed                           bool
	AllowedUntil, BlockedUntil, Burst int64
}

// do makes a change that all gateways must obey in time.
func (d *desk) do(args ...string) *change {
	d.t.Helper()
	code, out, errs := d.run(append(args, "--json")...)
	c := &change{}
	if err := json.Unmarshal([]byte(out), c); err != nil || code != 0 || errs != "" {
		d.t.Fatalf("gatequota %s: exit status %d, %v\n%s%s", strings.Join(args, " "), code, err, out, errs)
	}
	if !c.Obeyed || len(c.Gateways) != 2 || c.Waited > obedient.Seconds() {
		d.t.Fatalf("gatequota %s: obeyed %t by %d gateways after %.1f s", strings.Join(args, " "), c.Obeyed, len(c.Gateways), c.Waited)
	}
	return c
}

// show returns where a client stands, by count.
func (d *desk) show(args ...string) map[string]standing {
	d.t.Helper()
	code, out, errs := d.run(append([]string{"show", "--json"}, args...)...)
	var view struct{ Clients []struct{ Counts []standing } }
	if err := json.Unmarshal([]byte(out), &view); err != nil || code != 0 || errs != "" || len(view.Clients) != 1 {
		d.t.Fatalf("gatequota show: exit status %d, %v\n%s%s", code, err, out, errs)
	}
	all := map[string]standing{}
	for _, s := range view.Clients[0].Counts {
		all[s.Count] = s
	}
	return all
}
