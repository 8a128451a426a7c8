package operations_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota/e2e/lab"
)

var update = flag.Bool("update", false, "write what the commands print into docs/operations.md")

// desk is where an operator sits who reads docs/operations.md: what stands there by name
// leads to the parts of a test.
type desk struct {
	*site
	name   *lab.Proxy // the name of the store, which leads to the first
	second *lab.Store // its replica, where there is one
	inner  []string   // addresses of the gateways for those who watch
	dir    string     // with the files of the page
	vars   string     // that were set by commands before
	load   *lab.Load  // that is sent, where there is one
}

// newDesk returns a desk with two gateways, whose middlewares have these options besides
// the usual ones.
func newDesk(t *testing.T, gatequota string, own ...options) *desk {
	t.Helper()
	d := &desk{site: newSite(t, lab.StoreOptions{}), dir: t.TempDir()}
	if err := os.Symlink(gatequota, filepath.Join(d.dir, "gatequota")); err != nil {
		t.Fatal(err)
	}
	d.window = 2 * time.Hour
	lab.AwaitRoom(d.window, time.Minute)
	d.name = lab.NewProxy(t, d.store.Addr())
	d.store.Do("ACL", "SETUSER", "deaf", "on", ">"+password, "~*", "+@all", "-hgetall")
	for g := range 2 {
		var middleware options
		if g < len(own) {
			middleware = own[g]
		}
		host, inner := "gateway"+strconv.Itoa(g+1), "127.0.0.1:"+strconv.Itoa(lab.FreePort(t))
		d.inner = append(d.inner, inner)
		d.doors = append(d.doors, lab.NewTraefik(t, lab.TraefikOptions{
			LogLevel: "ERROR", Host: host, Args: []string{
				"--entrypoints.web.asdefault=true", "--entrypoints.inner.address=" + inner,
				"--accesslog.filepath=" + filepath.Join(d.dir, host+".access.log"), "--accesslog.format=json",
				"--accesslog.fields.headers.names.X-RateLimit-Decision=keep",
			},
		}, d.config(middleware)))
	}
	lab.Until(t, "both gateways report", func() bool { return len(d.store.Do("HVALS", "rate:"+scope+":reports").([]any)) == 2 })
	d.write("keys.txt", "carol\nalice-7f3a\nbob\n")
	return d
}

// config is the configuration of a gateway: the middleware quota before all paths of the
// entry point web, and what watches at another.
func (d *desk) config(own options) string {
	d.t.Helper()
	all := options{"control": true, "window": "2h", "decisionHeader": nil}
	maps.Copy(all, own)
	quota := d.quota(all)
	quota["valkey"] = options{"endpoints": []string{d.name.Addr()}}
	if more, ok := own["valkey"].(options); ok {
		maps.Copy(quota["valkey"].(options), more)
	}
	watch := options{"limit": 10, "window": "1m", "mode": "local", "metrics": options{"path": "/-/gatequota/metrics"}, "status": options{"path": "/-/gatequota"}}
	text, err := yaml.Marshal(options{"http": options{
		"middlewares": options{"quota": lab.Quota(quota), "watch": lab.Quota(watch)},
		"routers": options{
			"app":   options{"rule": "PathPrefix(`/`)", "entryPoints": []string{"web"}, "service": "app", "middlewares": []string{"quota"}},
			"watch": options{"rule": "PathPrefix(`/-/gatequota`)", "entryPoints": []string{"inner"}, "service": "noop@internal", "middlewares": []string{"watch"}},
		},
		"services": options{"app": options{"loadBalancer": options{"servers": []options{{"url": d.app.URLs[0]}}}}},
	}})
	if err != nil {
		d.t.Fatal(err)
	}
	return string(text)
}

func (d *desk) write(file, text string) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.dir, file), []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// run runs a command of the page as it stands there, and returns what it prints, with the
// names of the page.
func (d *desk) run(command string) string {
	d.t.Helper()
	var here, there []string
	name := func(page, real string) {
		here, there = append(here, page, real), append(there, real, page)
	}
	for g := range d.doors {
		host := "gateway" + strconv.Itoa(g+1)
		name("http://"+host+"/", d.doors[g].URL+"/")
		name(host+":8090", d.inner[g])
	}
	name("-h valkey1", "-p "+strconv.Itoa(d.store.Port))
	if d.second != nil {
		name("-h valkey2", "-p "+strconv.Itoa(d.second.Port))
	}
	here = append(here, "-h valkey", "-p "+strconv.Itoa(d.store.Port))
	there = append(there, "dial tcp "+d.name.Addr(), "dial tcp 192.0.2.10:6379", d.name.Addr(), "valkey:6379", d.store.Addr(), "valkey:6379", "127.0.0.1:"+strconv.Itoa(d.name.Port()), "valkey:6379")
	if machine, err := os.Hostname(); err == nil {
		there = append(there, "@"+machine, "@desk")
	}
	back := strings.NewReplacer(there...)
	for g, door := range d.doors {
		d.write(fmt.Sprintf("gateway%d.log", g+1), back.Replace(door.Log()))
	}
	command = strings.NewReplacer(here...).Replace(command)
	cmd := exec.Command("bash", "-c", d.vars+command)
	cmd.Dir = d.dir
	cmd.Env = append(os.Environ(), "PATH="+d.dir+":"+os.Getenv("PATH"), "USER=ops", "TZ=UTC",
		"GATEQUOTA_ENDPOINT="+d.name.Addr())
	output, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		d.t.Fatalf("%s: %v", command, err)
	}
	if regexp.MustCompile(`^[a-z]+=\S`).MatchString(command) {
		d.vars += command + "\n"
	}
	return back.Replace(strings.ReplaceAll(string(output), "\r", ""))
}

// situations are what is before commands of the page are run, by the names that stand
// there.
var situations = map[string]func(t *testing.T, d *desk, gatequota string) *desk{
	"-": func(_ *testing.T, d *desk, _ string) *desk { return d }, // as they left it
	"limited": func(t *testing.T, _ *desk, gatequota string) *desk {
		d := newDesk(t, gatequota)
		for _, c := range []struct {
			key string
			n   int
		}{{"alice-7f3a", 130}, {"bob", 40}, {"carol", 7}} {
			d.askAt("/", c.n, c.key)
		}
		return d
	},
	"users": func(t *testing.T, _ *desk, gatequota string) *desk { return newDesk(t, gatequota) },
	"replica": func(t *testing.T, _ *desk, gatequota string) *desk {
		d := newDesk(t, gatequota)
		d.acquaint()
		d.second = lab.Valkey(t, lab.StoreOptions{ReplicaOf: d.store})
		lab.Until(t, "the replica is in step", func() bool {
			return strings.Contains(fmt.Sprint(d.second.Do("INFO", "replication")), "master_link_status:up") &&
				strings.Contains(fmt.Sprint(d.store.Do("INFO", "replication")), "state=online")
		})
		return d
	},
	"renamed": func(_ *testing.T, d *desk, _ string) *desk {
		d.name.Redirect(d.second.Addr())
		d.load = d.client.Steady(d.t, 4, 5*time.Millisecond, func(n int) lab.Request { return lab.Keyed(d.doors[n%2].URL+"/", "somebody") })
		return d
	},
	"failed over": func(t *testing.T, d *desk, _ string) *desk {
		d.await("shared")
		lab.Until(t, "the second store counts", func() bool { return d.second.Clients() >= 2 && len(d.second.Keys()) > 5 })
		// Until the store is back at work for a client that is over its limit.
		lab.Until(t, "the client is refused", func() bool { return d.load.Since(0).Count(http.StatusTooManyRequests) > 100 })
		answers := d.load.Stop()
		passed := answers.Count(http.StatusOK)
		t.Logf("%d of %d requests passed, decided %s", passed, len(answers), answers.Decisions())
		// While one gateway is back, the other may give its share besides; and under way were
		// four requests at most, in up to three calls of each that the store refused before it was
		// left alone.
		if a, wrong := answers.Wrong(http.StatusOK, http.StatusTooManyRequests); wrong || passed < limit || passed > limit+limit/2+2*3*4 {
			t.Errorf("%d requests passed, want %d; status %d (%v)", passed, limit, a.Status, a.Err)
		}
		return d
	},
	"by hand": func(t *testing.T, _ *desk, gatequota string) *desk { return newDesk(t, gatequota) },
	"by hand, one client": func(_ *testing.T, d *desk, _ string) *desk {
		return d
	},
	"flooded": func(_ *testing.T, d *desk, _ string) *desk {
		d.askAt("/", 120, "mallory")
		return d
	},
	"away": func(t *testing.T, _ *desk, gatequota string) *desk {
		d := newDesk(t, gatequota)
		d.askAt("/", 40, "bob")
		d.name.Close()
		d.name.Cut()
		d.store.Kill()
		d.await("local")
		d.askAt("/", 20, "bob")
		lab.Until(t, "the first gateway has left it alone", func() bool { return len(d.doors[0].LogLines(": away (")) > 0 })
		return d
	},
	"back": func(t *testing.T, d *desk, _ string) *desk {
		d.store.Start()
		d.name.Open()
		d.await("shared")
		lab.Until(t, "both gateways have told what passed", func() bool {
			d.askAt("/", 1, "somebody", 0)
			return len(d.doors[0].LogLines("answers again")) > 0 && d.store.Sum("rate:"+scope+":{"+hash("bob")+"}*") >= 55
		})
		return d
	},
	"slow": func(t *testing.T, _ *desk, gatequota string) *desk {
		d := newDesk(t, gatequota)
		d.askAt("/", 20, "bob")
		d.run("valkey-cli -h valkey EVAL 'for i = 1, 3e7 do end return 1' 0")
		return d
	},
	"differ": func(t *testing.T, _ *desk, gatequota string) *desk {
		d := newDesk(t, gatequota, options{}, options{"limit": 50, "valkey": options{"keySecret": "correct horse battery staple"}})
		d.askAt("/", 10, "gina")
		return d
	},
	"deaf": func(t *testing.T, _ *desk, gatequota string) *desk {
		return newDesk(t, gatequota, options{"valkey": options{"username": "deaf", "password": password}})
	},
	"off": func(t *testing.T, _ *desk, gatequota string) *desk {
		d := newDesk(t, gatequota)
		d.run("gatequota off --yes")
		d.run("gatequota dry-run on --yes")
		return d
	},
	"full": func(t *testing.T, _ *desk, gatequota string) *desk {
		d := newDesk(t, gatequota, options{"maxClients": 20}, options{"maxClients": 20})
		for n := range 60 {
			d.askAt("/", 2, fmt.Sprint("invented-", n))
		}
		return d
	},
}

// Each command on the page prints what stands there, but for numbers, digests and times;
// with -update, it is what stands there from then on.
func TestCommandsOfThePage(t *testing.T) {
	gatequota := filepath.Join(t.TempDir(), "gatequota")
	build := exec.Command("go", "build", "-o", gatequota, "./gatequota")
	build.Dir = filepath.Join(lab.Root(), "ctl")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the command: %v\n%s", err, output)
	}
	lines := strings.Split(readFile(t, "docs", "operations.md"), "\n")
	tried := regexp.MustCompile(`^<!-- try: (.*) -->$`)
	var page []string
	var d *desk
	known := map[string]bool{}
	for i := 0; i < len(lines); i++ {
		page = append(page, lines[i])
		name := tried.FindStringSubmatch(lines[i])
		if name == nil {
			if strings.TrimSpace(lines[i]) == "```console" {
				t.Errorf("line %d: nothing says what is before these commands", i+1)
			}
			continue
		}
		known[name[1]] = true
		prepare := situations[name[1]]
		if prepare == nil || lines[i+1] != "```console" {
			t.Fatalf("line %d: %s", i+1, lines[i])
		}
		t.Log(name[1])
		d = prepare(t, d, gatequota)
		page = append(page, lines[i+1])
		for i += 2; lines[i] != "```"; {
			command, ok := strings.CutPrefix(lines[i], "$ ")
			if !ok {
				t.Fatalf("line %d is no command: %s", i+1, lines[i])
			}
			page = append(page, lines[i])
			at := i + 1
			var want []string
			for i++; lines[i] != "```" && !strings.HasPrefix(lines[i], "$ "); i++ {
				want = append(want, lines[i])
			}
			got := strings.Split(strings.TrimRight(d.run(command), "\n"), "\n")
			if got[0] == "" && len(got) == 1 {
				got = nil
			}
			page = append(page, got...)
			if !*update && shape(got) != shape(want) {
				t.Errorf("line %d: %s prints\n%s\nwant\n%s", at, command, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		page = append(page, lines[i])
	}
	for name := range situations {
		if !known[name] {
			t.Errorf("the page has no command for %q", name)
		}
	}
	if *update && !t.Failed() {
		if err := os.WriteFile(filepath.Join(lab.Root(), "docs", "operations.md"), []byte(strings.Join(page, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

var shapes = []struct {
	of   *regexp.Regexp
	mark string
}{
	{regexp.MustCompile(`[#.]{20}`), "<bar>"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\dZ?`), "<time>"},
	{regexp.MustCompile(`\d\d:\d\d:\d\d`), "<time>"},
	{regexp.MustCompile(`\b[0-9a-f]{12,64}\b`), "<digest>"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(ms|[dhms]) ?)+\b`), "<span>"},
	{regexp.MustCompile(`\d+(\.\d+)?(e[+-]?\d+)?`), "<n>"},
	{regexp.MustCompile(`[ \t]+`), " "},
}

// shape returns what is the same in the output of a command whenever it is run.
func shape(lines []string) string {
	var b bytes.Buffer
	for _, line := range lines {
		for _, s := range shapes {
			line = s.of.ReplaceAllString(line, s.mark)
		}
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}
