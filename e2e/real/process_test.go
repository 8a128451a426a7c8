package real_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/host"
	"github.com/gatequota/gatequota/e2e/lab"
)

// ownProcessVariable names, in a process that ownProcess has started, the test that is to
// run there.
const ownProcessVariable = "GATEQUOTA_TEST_OF_THIS_PROCESS"

// ownProcess runs the test that calls it in a process of its own, which it shares
// with no other test: what interpreters leave behind for a while disturbs nobody
// else's measurements, nor theirs this one's. It reports whether this is that
// process; the caller returns where it is not.
func ownProcess(t *testing.T) bool {
	t.Helper()
	if os.Getenv(ownProcessVariable) == t.Name() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=15m")
	cmd.Env = append(os.Environ(), ownProcessVariable+"="+t.Name())
	output, err := cmd.CombinedOutput()
	// Without what each interpreter says of its settings.
	t.Logf("%s", regexp.MustCompile(`(?m)^gatequota: middleware .*\n`).ReplaceAll(output, nil))
	if err != nil {
		t.Errorf("in a process of its own: %v", err)
	}
	return false
}

// hosted is one gateway: an interpreter of its own with handlers of the plugin.
type hosted struct {
	t      *testing.T
	plugin *host.Plugin
}

func newHosted(t *testing.T) *hosted {
	t.Helper()
	plugin, err := host.Load(lab.Root(), io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return &hosted{t: t, plugin: plugin}
}

// handler returns what asks a middleware of the gateway for one request of a
// client. An allowed request is answered with 200.
func (g *hosted) handler(o options) func(key string) lab.Answer {
	g.t.Helper()
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	ctx, cancel := context.WithCancel(context.Background())
	g.t.Cleanup(cancel)
	h, err := g.plugin.New(ctx, next, "quota@file", o)
	if err != nil {
		g.t.Fatal(err)
	}
	return func(key string) lab.Answer {
		w := httptest.NewRecorder()
		start := time.Now()
		h.ServeHTTP(w, &http.Request{Header: http.Header{"X-Api-Key": {key}}, RemoteAddr: "192.0.2.1:4711"})
		return lab.Answer{Status: w.Code, Header: w.Header(), At: time.Now(), Took: time.Since(start)}
	}
}
