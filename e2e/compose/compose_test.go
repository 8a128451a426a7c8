// Package compose holds the examples against the real thing: the files for
// Traefik and Kubernetes are loaded by a real Traefik, and the Compose file runs
// under a real Docker engine, with the experiments of the k6 folder against it. The
// Compose file is used as it is; only the images are made here, out of this
// machine's programs, under the names that the file uses.
package compose_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"

	"github.com/gatequota/gatequota/e2e/k6run"
	"github.com/gatequota/gatequota/e2e/lab"
)

var (
	composeFile = filepath.Join(lab.Root(), "examples", "compose.yaml")
	k6Script    = filepath.Join(lab.Root(), "k6", "rate-limit.js")
	edgeScript  = filepath.Join(lab.Root(), "k6", "edge-burst.js")
)

func TestComposeFileHoldsOneQuotaOverTwoGateways(t *testing.T) {
	e := startEngine(t)
	e.build(t, image{
		name:     "traefik:v3.7.10",
		programs: map[string]string{"/usr/local/bin/traefik": lab.TraefikBinary(t)},
		changes:  []string{"ENV PATH=/usr/local/bin", `ENTRYPOINT ["/usr/local/bin/traefik"]`},
	})
	e.build(t, image{
		name: "valkey/valkey:9.1.1-alpine3.24",
		programs: map[string]string{
			"/usr/local/bin/valkey-server": installed(t, "valkey-server"),
			"/usr/local/bin/valkey-cli":    installed(t, "valkey-cli"),
		},
		changes: []string{"ENV PATH=/usr/local/bin"},
	})
	e.build(t, image{
		name:     "gatequota/example-app",
		programs: map[string]string{"/app": buildApplication(t)},
		changes:  []string{`ENTRYPOINT ["/app"]`, "USER 65534:65534"},
	})

	tests := []struct {
		mode              string
		allowed, rejected int
		least, most       int // the store's count of the run's client
	}{
		// Refusals may be counted, or answered without asking the store.
		{"shared", 100, 150, 100, 250},
		{"local", 200, 50, 0, 0},
	}
	for _, test := range tests {
		t.Run(test.mode, func(t *testing.T) {
			p := up(t, e, "RATE_LIMIT_MODE="+test.mode)
			result := experiment(t, k6Script, map[string]string{"MODE": test.mode})
			for metric, want := range map[string]int{
				"iterations": 250, "allowed": test.allowed, "rejected": test.rejected, "unexpected": 0,
			} {
				if got := result.Count(metric); got != want {
					t.Errorf("%s is %d, want %d", metric, got, want)
				}
			}
			for _, replica := range []string{"1", "2"} {
				if result.Count("instance_requests{replica:"+replica+"}") == 0 {
					t.Errorf("replica %s saw no request", replica)
				}
			}
			if !result.Passed() {
				t.Errorf("the script's thresholds did not hold: %+v", result.Thresholds)
			}
			if count := highestCount(t, p); count < test.least || count > test.most {
				t.Errorf("the store counted %d, want %d to %d", count, test.least, test.most)
			}
			if refused := watched(t); refused != test.rejected {
				t.Errorf("the gateways show that %d requests were refused, want %d", refused, test.rejected)
			}
			if test.mode == "shared" {
				outage(t, p)
			}
		})
	}
	for _, test := range []struct {
		algorithm   string
		least, most int // allowed after the edge
	}{
		{"fixed-window", 100, 100},
		{"sliding-window", 0, 10},
	} {
		t.Run("edge/"+test.algorithm, func(t *testing.T) {
			up(t, e, "RATE_LIMIT_ALGORITHM="+test.algorithm, "RATE_LIMIT_WINDOW_SECONDS=10")
			result := experiment(t, edgeScript, map[string]string{"ALGORITHM": test.algorithm, "WINDOW_SECONDS": "10"})
			if !result.Passed() {
				t.Errorf("the script's thresholds did not hold: %+v", result.Thresholds)
			}
			before, after := result.Count("allowed{side:before}"), result.Count("allowed{side:after}")
			if before != 100 || after < test.least || after > test.most {
				t.Errorf("%d were allowed before the edge and %d after it, want 100, and %d to %d", before, after, test.least, test.most)
			}
		})
	}
}

// up starts the containers, with these variables, for as long as the test goes on.
func up(t *testing.T, e *engine, env ...string) *project {
	t.Helper()
	p := &project{engine: e, env: env}
	t.Cleanup(func() {
		if t.Failed() {
			logs, err := p.run(time.Minute, "logs", "--no-color", "--tail", "60")
			t.Logf("the containers' logs (%v):\n%s", err, logs)
		}
		if _, err := p.run(2*time.Minute, "down", "--volumes", "--timeout", "5"); err != nil {
			t.Error(err)
		}
		if n := e.containers(t); n != 0 {
			t.Errorf("%d containers are left", n)
		}
	})
	if _, err := p.run(3*time.Minute, "up", "--detach"); err != nil {
		t.Fatal(err)
	}
	return p
}

// outage stops the store and starts it again, while clients go on asking. In
// between its name does not resolve, and afterwards its address may be another.
func outage(t *testing.T, p *project) {
	t.Helper()
	const gateway = "http://localhost:8081"
	clients := 0
	decided := func(way string) func() bool {
		return func() bool {
			// A client that nobody has seen: nothing is known of it without a count.
			clients++
			got := get(t, gateway, "/", http.Header{"X-Api-Key": {"outage-" + strconv.Itoa(clients)}})
			if got.status != http.StatusOK {
				t.Fatalf("status %d while the store comes and goes", got.status)
			}
			return got.way == way
		}
	}
	lab.Until(t, "the store counts", decided("shared"))
	if _, err := p.run(time.Minute, "stop", "--timeout", "2", "valkey"); err != nil {
		t.Fatal(err)
	}
	lab.Until(t, "the gateway counts in its memory", decided("local"))
	if _, err := p.run(time.Minute, "start", "valkey"); err != nil {
		t.Fatal(err)
	}
	lab.Until(t, "the store counts again", decided("shared"))
}

// watched returns how many requests the gateways refused together, as they show it to this
// machine, on the ports for that alone.
func watched(t *testing.T) int {
	t.Helper()
	const path = "/-/gatequota"
	refused := regexp.MustCompile(`gatequota_decisions_total\{scope="apikey",rule="",outcome="refused",way="[a-z]+"\} (\d+)`)
	total := 0
	for _, gateway := range []string{"http://localhost:8091", "http://localhost:8092"} {
		for _, found := range refused.FindAllStringSubmatch(read(t, gateway+path+"/metrics"), -1) {
			n, err := strconv.Atoi(found[1])
			if err != nil {
				t.Fatal(err)
			}
			total += n
		}
		if page := read(t, gateway+path); !strings.Contains(page, "<!doctype html>") {
			t.Errorf("%s: no page, but %.80q", gateway, page)
		}
	}
	if page := read(t, "http://localhost:8081"+path); strings.Contains(page, "<!doctype html>") {
		t.Errorf("the page is shown where everybody comes")
	}
	return total
}

// read returns the body of an answer.
func read(t *testing.T, address string) string {
	t.Helper()
	response, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// experiment runs a k6 script with its defaults: the ports and limits are
// those of the Compose file.
func experiment(t *testing.T, script string, env map[string]string) *k6run.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	var log bytes.Buffer
	result, err := k6run.Run(ctx, k6run.Options{Script: script, Env: env, Log: &log})
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	var summary bytes.Buffer
	if err := result.WriteSummary(&summary); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s%s", log.String(), summary.String())
	return result
}

var storeKey = regexp.MustCompile(`^rate:apikey:\{[0-9a-f]{64}\}:[0-9]+$`)

// highestCount returns the highest count in the store, 0 when it is empty. It
// is the run's client's: those of the set-up come once. A key of another form, or
// one that would stay for ever, fails the test.
func highestCount(t *testing.T, p *project) int {
	t.Helper()
	const script = `local r = {} for _, k in ipairs(redis.call('KEYS', '*{*')) do ` +
		`r[#r + 1] = k .. ' ' .. redis.call('GET', k) .. ' ' .. redis.call('TTL', k) end return r`
	out, err := p.run(time.Minute, "exec", "-T", "valkey", "valkey-cli", "--raw", "-e", "EVAL", script, "0")
	if err != nil {
		t.Fatal(err)
	}
	highest := 0
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if line == "" {
			continue
		}
		var key string
		var count, ttl int
		if _, err := fmt.Sscan(line, &key, &count, &ttl); err != nil {
			t.Fatalf("reading %q: %v", line, err)
		}
		if !storeKey.MatchString(key) {
			t.Errorf("the key %q has not the form that it should have", key)
		}
		if ttl < 0 || ttl > 60 {
			t.Errorf("the key %q stays for %d s, in a window of 60", key, ttl)
		}
		highest = max(highest, count)
	}
	return highest
}

// The file is run by docker-compose 1.29 above; this is the reader of today's
// `docker compose`.
func TestComposeFileIsReadByTodaysCompose(t *testing.T) {
	options, err := cli.NewProjectOptions([]string{composeFile},
		cli.WithName("examples"), cli.WithProfiles([]string{"k6"}), cli.WithEnv([]string{"RATE_LIMIT_MAX=7"}))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Join(project.ServiceNames(), " ")
	if names != "app gateway-a gateway-b k6 valkey" {
		t.Errorf("services %q", names)
	}
	app := project.Services["app"]
	if app.GetScale() != 2 {
		t.Errorf("%d replicas of the application", app.GetScale())
	}
	for option, want := range map[string]string{"limit": "7", "window": "60s", "mode": "shared", "scope": "apikey", "algorithm": "fixed-window"} {
		label := "traefik.http.middlewares.quota.plugin.gatequota." + option
		if got := app.Labels[label]; got != want {
			t.Errorf("%s is %q, want %q", label, got, want)
		}
	}
	if k6 := project.Services["k6"]; k6.Environment["LIMIT"] == nil || *k6.Environment["LIMIT"] != "7" {
		t.Error("the script does not hear of the limit")
	}
}

func installed(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v (scripts/install-e2e.sh installs it)", err)
	}
	return path
}

// buildApplication builds the example's application as its Dockerfile does.
func buildApplication(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "app")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "main.go")
	cmd.Dir = filepath.Join(lab.Root(), "examples", "app")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the application: %v\n%s", err, out)
	}
	return path
}
