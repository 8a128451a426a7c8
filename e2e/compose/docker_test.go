package compose_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// engine is a Docker daemon of the test's own: its images, containers and
// networks are no others', and all of it is gone at the end.
type engine struct {
	dir    string
	socket string
	api    *http.Client
	log    *output
}

// startEngine starts the daemon and waits until it answers. When the test ends,
// the daemon ends, and the test fails if anything of it stays.
func startEngine(t *testing.T) *engine {
	t.Helper()
	dockerd, err := exec.LookPath("dockerd")
	if err != nil {
		t.Fatalf("a Docker engine is needed (scripts/install-e2e.sh installs one): %v", err)
	}
	// Not t.TempDir: the path of a socket must be short.
	dir, err := os.MkdirTemp("", "gatequota-")
	if err != nil {
		t.Fatal(err)
	}
	before := interfaces(t)

	e := &engine{dir: dir, socket: filepath.Join(dir, "docker.sock"), log: new(output)}
	e.api = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", e.socket)
		},
	}}
	// Neither packet filter nor routing of the machine are changed: containers
	// reach each other through their bridge, and their ports are published by
	// Docker's own proxy.
	cmd := exec.Command(dockerd,
		"--host", "unix://"+e.socket,
		"--data-root", filepath.Join(dir, "data"),
		"--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "docker.pid"),
		"--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false",
	)
	cmd.Stdout, cmd.Stderr = e.log, e.log
	// Docker ends in good order even when the test binary is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	exited := make(chan error, 1)
	started := make(chan error)
	go func() {
		// The signal is bound to the thread that starts the daemon; it must stay.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			exited <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("starting dockerd: %v", err)
	}

	t.Cleanup(func() {
		e.api.CloseIdleConnections()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-exited:
		case <-time.After(time.Minute):
			t.Error("dockerd did not end within a minute")
			_ = cmd.Process.Kill()
			<-exited
		}
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", e.log.tail(60))
		}
		if mounts := mountsBelow(t, dir); len(mounts) > 0 {
			t.Errorf("mounts are left: %v", mounts)
			return // removing files through a mount would be worse
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("files are left: %v", err)
		}
		if after := interfaces(t); !slices.Equal(before, after) {
			t.Errorf("network interfaces were %v and are %v", before, after)
		}
	})

	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if response, err := e.api.Get("http://docker/_ping"); err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return e
			}
		}
		select {
		case err := <-exited:
			exited <- err
			t.Fatalf("dockerd ended at once: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("dockerd does not answer")
		}
	}
}

// image is what an image is made of: programs of this machine with the
// libraries that they need, and nothing else.
type image struct {
	name     string            // as the Compose file calls it
	programs map[string]string // path in the image -> path here
	changes  []string          // instructions of a Dockerfile
}

// build makes the image, as FROM scratch would.
func (e *engine) build(t *testing.T, i image) {
	t.Helper()
	files := map[string]string{}
	for target, path := range i.programs {
		files[target] = path
		for _, library := range libraries(t, path) {
			files[library] = library
		}
	}
	reader, writer := io.Pipe()
	go func() { writer.CloseWithError(writeTar(writer, files)) }()

	name, tag, _ := strings.Cut(i.name, ":")
	query := url.Values{"fromSrc": {"-"}, "repo": {name}, "tag": {tag}, "changes": i.changes}
	if tag == "" {
		query.Set("tag", "latest")
	}
	response, err := e.api.Post("http://docker/images/create?"+query.Encode(), "application/x-tar", reader)
	if err != nil {
		t.Fatalf("building %s: %v", i.name, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || bytes.Contains(answer, []byte(`"error"`)) {
		t.Fatalf("building %s: status %d, %v: %s", i.name, response.StatusCode, err, answer)
	}
}

// containers returns how many there are, stopped ones included.
func (e *engine) containers(t *testing.T) int {
	t.Helper()
	response, err := e.api.Get("http://docker/containers/json?all=true")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var all []json.RawMessage
	if err := json.NewDecoder(response.Body).Decode(&all); err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// libraries returns what the dynamic linker loads for a program, itself
// included; nothing for a static one.
func libraries(t *testing.T, program string) []string {
	t.Helper()
	out, err := exec.Command("ldd", program).CombinedOutput()
	if err != nil {
		if bytes.Contains(out, []byte("not a dynamic executable")) {
			return nil
		}
		t.Fatalf("ldd %s: %v: %s", program, err, out)
	}
	var paths []string
	for _, word := range strings.Fields(string(out)) {
		if strings.HasPrefix(word, "/") {
			paths = append(paths, word)
		}
	}
	return paths
}

// writeTar writes the files with their folders, and an empty /tmp.
func writeTar(w io.Writer, files map[string]string) error {
	archive := tar.NewWriter(w)
	if err := archive.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}); err != nil {
		return err
	}
	for target, path := range files {
		if err := writeFile(archive, strings.TrimPrefix(target, "/"), path); err != nil {
			return err
		}
	}
	return archive.Close()
}

func writeFile(archive *tar.Writer, target, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(&tar.Header{Name: target, Mode: 0o755, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(archive, file)
	return err
}

func interfaces(t *testing.T) []string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	slices.Sort(names)
	return names
}

func mountsBelow(t *testing.T, dir string) []string {
	t.Helper()
	file, err := os.Open("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var below []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 1 && strings.HasPrefix(fields[1], dir+"/") {
			below = append(below, fields[1])
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return below
}

// output collects what a program writes. It is safe for concurrent use.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// tail returns the last n lines.
func (o *output) tail(n int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := strings.Split(strings.TrimRight(o.text.String(), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// project is one docker-compose project over the example's file.
type project struct {
	engine *engine
	env    []string
}

// run calls docker-compose, for at most the given time, and returns what it
// wrote to its standard output.
func (p *project) run(limit time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker-compose",
		append([]string{"--project-name", "gatequota-e2e", "--file", composeFile}, args...)...)
	cmd.Env = append(os.Environ(), append(p.env,
		"DOCKER_HOST=unix://"+p.engine.socket, "DOCKER_SOCK="+p.engine.socket, "DOCKER_CONFIG="+p.engine.dir)...)
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("docker-compose %s: %w\n%s", strings.Join(args, " "), errors.Join(err, ctx.Err()), stderr.String())
	}
	return stdout.String(), err
}
