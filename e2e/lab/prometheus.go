package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Prometheus is one running Prometheus with data of its own.
type Prometheus struct {
	URL string

	t      testing.TB
	output *Log
	proc   *process
}

// NewPrometheus starts a Prometheus and waits until it is ready. The files are its
// configuration, prometheus.yml, and whatever that names.
func NewPrometheus(t testing.TB, files map[string]string) *Prometheus {
	t.Helper()
	p := &Prometheus{t: t, output: new(Log)}
	binary := program(t, "prometheus", "PROMETHEUS")
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if p.proc != nil {
			p.proc.end(syscall.SIGKILL)
		}
		if t.Failed() {
			t.Logf("Prometheus's log:\n%s", tail(p.output.String(), 40))
		}
	})
	for range 5 {
		address := "127.0.0.1:" + strconv.Itoa(FreePort(t))
		p.URL = "http://" + address
		proc, err := startProcess(p.output, dir, nil, binary, "--config.file="+filepath.Join(dir, "prometheus.yml"),
			"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
		if err != nil {
			t.Fatal(err)
		}
		p.proc = proc
		if eventually(patience, func() bool { return proc.exited() || answers(p.URL+"/-/ready") }) && !proc.exited() {
			return p
		}
		proc.end(syscall.SIGKILL)
		if !strings.Contains(p.output.String(), "address already in use") {
			break
		}
	}
	t.Fatalf("Prometheus did not get ready:\n%s", p.output)
	return nil
}

func answers(url string) bool {
	resp, err := http.Get(url)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// API asks Prometheus's API, and decodes the data that it answers.
func (p *Prometheus) API(path string, parameters url.Values, data any) error {
	resp, err := http.Get(p.URL + "/api/v1/" + path + "?" + parameters.Encode())
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", path, answer.Error)
	}
	return nil
}

// Promtool runs promtool in a folder, with an input, and returns all that it printed.
func Promtool(t testing.TB, dir, input string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(program(t, "promtool", "PROMTOOL"), args...)
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(input)
	output, err := cmd.CombinedOutput()
	return string(output), err
}
