package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// PluginModule is the plugin's module path, under which Traefik looks for it.
const PluginModule = "github.com/gatequota/gatequota"

// PluginName is the plugin's name in configurations: plugin.gatequota.
const PluginName = "gatequota"

// TraefikOptions say how a Traefik is started. The zero value is a Traefik with
// the plugin, the file provider and log level INFO.
type TraefikOptions struct {
	LogLevel string   // INFO unless given
	TOML     bool     // the dynamic configuration is TOML instead of YAML
	Docker   string   // address of a Docker API whose labels are read as well
	Args     []string // more static options, as on the command line
	Env      []string // more of the environment, as NAME=value
	Plugin   string   // folder of the plugin; this checkout unless given
	Host     string   // name of the machine as the gateway sees it, which only root can change
}

// Traefik is one running gateway.
type Traefik struct {
	URL string // of the entry point that the routers listen on
	API string // of the API, with /api and /debug/pprof below it

	t          testing.TB
	options    TraefikOptions
	dir        string
	output     *Log
	proc       *process
	generation int
}

var buildTraefik = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("TRAEFIK"); path != "" {
		return path, nil
	}
	cmd := exec.Command(filepath.Join(Root(), "scripts", "build-traefik.sh"))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("building Traefik: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
})

// TraefikBinary returns the path of the real Traefik, which is built when this
// machine has none yet. The environment variable TRAEFIK may name another one.
func TraefikBinary(t testing.TB) string {
	t.Helper()
	path, err := buildTraefik()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// NewTraefik starts a gateway with a dynamic configuration and waits until that
// is in force. The entry point is called "web"; routers need not name it.
func NewTraefik(t testing.TB, o TraefikOptions, dynamic string) *Traefik {
	t.Helper()
	binary := TraefikBinary(t)
	tr := &Traefik{t: t, options: o, dir: t.TempDir(), output: new(Log)}

	// The plugin lies where a local plugin lies, as a link to its folder.
	plugin := o.Plugin
	if plugin == "" {
		plugin = Root()
	}
	link := filepath.Join(tr.dir, "plugins-local", "src", filepath.FromSlash(PluginModule))
	for _, err := range []error{
		os.MkdirAll(filepath.Dir(link), 0o755),
		os.Symlink(plugin, link),
		os.Mkdir(filepath.Join(tr.dir, "dynamic"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if tr.proc != nil {
			tr.proc.signal(syscall.SIGCONT)
			tr.proc.end(syscall.SIGKILL)
		}
		if t.Failed() {
			t.Logf("the gateway's log:\n%s", tail(tr.output.String(), 40))
		}
	})
	tr.write(dynamic)

	level := o.LogLevel
	if level == "" {
		level = "INFO"
	}
	for range 5 {
		web, api := FreePort(t), FreePort(t)
		tr.URL, tr.API = "http://127.0.0.1:"+strconv.Itoa(web), "http://127.0.0.1:"+strconv.Itoa(api)
		args := []string{
			"--global.checknewversion=false", "--global.sendanonymoususage=false",
			"--entrypoints.web.address=127.0.0.1:" + strconv.Itoa(web),
			"--entrypoints.traefik.address=127.0.0.1:" + strconv.Itoa(api),
			"--api.insecure=true", "--api.debug=true", "--ping=true", "--ping.manualrouting=true",
			"--log.level=" + level, "--log.nocolor=true",
			"--experimental.localplugins." + PluginName + ".modulename=" + PluginModule,
			"--experimental.abortonpluginfailure=true",
			// Reloaded on SIGHUP instead of by watching: one write, one reload.
			"--providers.file.directory=" + filepath.Join(tr.dir, "dynamic"), "--providers.file.watch=false",
			"--providers.providersthrottleduration=10ms",
		}
		if o.Docker != "" {
			args = append(args, "--providers.docker.endpoint="+o.Docker, "--providers.docker.exposedbydefault=false")
		}
		path, args := binary, append(args, o.Args...)
		if o.Host != "" {
			path, args = "unshare", append([]string{"--uts", "sh", "-c", `hostname "$0" && exec "$@"`, o.Host, binary}, args...)
		}
		proc, err := startProcess(tr.output, tr.dir, o.Env, path, args...)
		if err != nil {
			t.Fatal(err)
		}
		tr.proc = proc
		if eventually(patience, func() bool { return proc.exited() || tr.inForce() }) && !proc.exited() {
			return tr
		}
		proc.end(syscall.SIGKILL)
		if !strings.Contains(tr.output.String(), "address already in use") {
			break
		}
	}
	t.Fatalf("Traefik did not get ready:\n%s", tr.output)
	return nil
}

// write puts the dynamic configuration in place, with a router beside it whose
// answer proves that this generation of the configuration is the one in force.
func (tr *Traefik) write(dynamic string) {
	tr.t.Helper()
	tr.generation++
	name := "dynamic.yaml"
	if tr.options.TOML {
		name = "dynamic.toml"
	}
	marker := fmt.Sprintf("http:\n  routers:\n    generation:\n      rule: Path(`%s`)\n      priority: 1000000\n      service: ping@internal\n", tr.marker())
	for file, text := range map[string]string{name: dynamic, "generation.yaml": marker} {
		if err := os.WriteFile(filepath.Join(tr.dir, "dynamic", file), []byte(text), 0o600); err != nil {
			tr.t.Fatal(err)
		}
	}
}

func (tr *Traefik) marker() string { return "/lab-generation-" + strconv.Itoa(tr.generation) }

// inForce tells whether the entry point follows the newest configuration of
// each provider.
func (tr *Traefik) inForce() bool {
	return found(tr.URL+tr.marker()) && (tr.options.Docker == "" || found(tr.URL+labelsMarker))
}

func found(url string) bool {
	resp, err := http.Get(url)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	// A catch-all router answers 200 too; Traefik's ping says OK.
	body, err := io.ReadAll(io.LimitReader(resp.Body, 16))
	return err == nil && resp.StatusCode == http.StatusOK && string(body) == "OK"
}

// Reload replaces the dynamic configuration and waits until the new one is in force.
func (tr *Traefik) Reload(dynamic string) {
	tr.t.Helper()
	tr.write(dynamic)
	tr.proc.signal(syscall.SIGHUP)
	Until(tr.t, "the new configuration is in force", tr.inForce)
}

// Kill ends the gateway as a crash would.
func (tr *Traefik) Kill() { tr.proc.end(syscall.SIGKILL) }

// Running tells whether the gateway has not ended.
func (tr *Traefik) Running() bool { return !tr.proc.exited() }

// Log returns what the gateway has printed.
func (tr *Traefik) Log() string { return tr.output.String() }

// LogSize returns how much the gateway has printed, a mark for LogSince.
func (tr *Traefik) LogSize() int { return tr.output.Len() }

// LogSince returns the lines printed after a mark that contain a text.
func (tr *Traefik) LogSince(mark int, text string) []string {
	var lines []string
	for _, line := range strings.Split(tr.output.String()[mark:], "\n") {
		if line != "" && strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

// LogLines returns all lines that contain a text.
func (tr *Traefik) LogLines(text string) []string { return tr.LogSince(0, text) }

// Get reads one path of the API.
func (tr *Traefik) Get(path string) string {
	tr.t.Helper()
	resp, err := http.Get(tr.API + path)
	if err != nil {
		tr.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		tr.t.Fatalf("%s: status %d, %v", path, resp.StatusCode, err)
	}
	return string(body)
}

// RouterError returns what the API says is wrong with a router, empty when it
// is in order.
func (tr *Traefik) RouterError(name string) string {
	tr.t.Helper()
	var router struct {
		Status string   `json:"status"`
		Errors []string `json:"error"`
	}
	if err := json.Unmarshal([]byte(tr.Get("/api/http/routers/"+name)), &router); err != nil {
		tr.t.Fatal(err)
	}
	if router.Status == "enabled" {
		return ""
	}
	return strings.Join(router.Errors, "; ")
}

// Goroutines returns how many goroutines the gateway has.
func (tr *Traefik) Goroutines() int {
	tr.t.Helper()
	var n int
	if _, err := fmt.Sscanf(tr.Get("/debug/pprof/goroutine?debug=1"), "goroutine profile: total %d", &n); err != nil {
		tr.t.Fatal(err)
	}
	return n
}

// PluginGoroutines returns how many of the gateway's goroutines are in interpreted
// code: requests that the plugin has in hand, and what it does in the background.
func (tr *Traefik) PluginGoroutines() int {
	tr.t.Helper()
	sum := 0
	for _, record := range strings.Split(tr.Get("/debug/pprof/goroutine?debug=1"), "\n\n") {
		if !strings.Contains(record, "traefik/yaegi/interp") {
			continue
		}
		// A record begins with the number of goroutines; before the first one stands
		// a line about all of them.
		_, counted, found := strings.Cut(record, "\n")
		if !strings.HasPrefix(record, "goroutine profile:") || !found {
			counted = record
		}
		n, _, _ := strings.Cut(counted, " @")
		count, err := strconv.Atoi(n)
		if err != nil {
			tr.t.Fatalf("a record of goroutines begins with %q", n)
		}
		sum += count
	}
	return sum
}

// Files returns how many files and connections the gateway has open.
func (tr *Traefik) Files() int {
	tr.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", tr.proc.cmd.Process.Pid))
	if err != nil {
		tr.t.Fatal(err)
	}
	return len(entries)
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
