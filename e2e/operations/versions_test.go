package operations_test

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// before is the plugin as it was when it knew nothing of metrics, the status page, live
// control and the form of the log: a version that gateways may still run beside this one.
const before = "testdata/before.tar.gz"

// older returns a folder with the plugin as it was then.
func older(t *testing.T) string {
	t.Helper()
	file, err := os.Open(before)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	archive, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for r := tar.NewReader(archive); ; {
		entry, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.FromSlash(entry.Name))
		switch entry.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeReg:
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, content, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Gateways of two versions count together exactly, by each algorithm and several limits,
// and share what is left while the store is away.
func TestTwoVersionsCountTogether(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.StoreOptions{})
	all := map[string]options{"quota": nil, "several": {"limit": nil, "window": nil, "limits": []options{
		{"name": "hour", "limit": limit, "window": s.window.String()}, {"name": "day", "limit": 10 * limit, "window": "366d"},
	}}}
	for _, algorithm := range []string{"sliding-window", "sliding-log", "token-bucket"} {
		all[algorithm] = options{"algorithm": algorithm, "scope": algorithm, "window": "366d"}
	}
	all["several"]["scope"] = "several"
	s.open(s.dynamic(all), lab.TraefikOptions{Plugin: older(t)})
	s.open(s.dynamic(all), lab.TraefikOptions{})
	s.acquaint()
	for name := range all {
		mustAllow(t, name, s.askAt("/"+name, limit+50, "key"), limit, "shared")
		burst := s.client.Burst(16, lab.Alternate(2*limit, "another key", s.doors[0].URL+"/"+name, s.doors[1].URL+"/"+name))
		mustAllow(t, name+", at once", burst, limit, "shared")
	}
	s.store.Kill()
	s.await("local")
	mustAllow(t, "alone, the older", s.ask(limit, "late key", 0), limit/2, "local")
	mustAllow(t, "alone, the newer", s.ask(limit, "late key", 1), limit/2, "local")
	s.store.Start()
	s.await("shared")
	lab.Until(t, "both have told what passed", func() bool { return s.count("late key") >= limit })
	mustAllow(t, "afterwards", s.ask(10, "late key"), 0, "shared")
}

// The older version refuses options that it does not know, and with them the routes.
func TestOlderVersionRefusesNewerOptions(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.StoreOptions{})
	plugin := older(t)
	for name, value := range map[string]any{
		"control": true, "log": "json", "metrics": options{"path": "/m"}, "status": options{"path": "/s"},
	} {
		door := s.open(s.one(options{name: value}), lab.TraefikOptions{Plugin: plugin})
		if a := s.client.Get(lab.Keyed(door.URL+"/quota", "key")); a.Status != http.StatusNotFound {
			t.Errorf("%s: status %d, want 404", name, a.Status)
		}
		if wrong := door.RouterError("quota@file"); !strings.Contains(wrong, name) || !strings.Contains(wrong, "unknown option") {
			t.Errorf("%s: the router's error is %q", name, wrong)
		}
	}
}

// One gateway after the other ends and is started again with the other version, under
// load, and back: no request beyond the limit passes, and none fails but those that had no
// gateway.
func TestRollingUpgradeUnderLoad(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.StoreOptions{})
	versions := []string{older(t), lab.Root(), lab.Root(), older(t)}
	dynamic := s.one(options{"limit": 200})
	for range 3 {
		s.open(dynamic, lab.TraefikOptions{Plugin: versions[0]})
	}
	s.acquaint()
	var passed int
	for step, plugin := range versions {
		g := step % 2
		// The third gateway stays, so that somebody serves all the time.
		load := s.client.Steady(t, 4, 20*time.Millisecond, func(int) lab.Request { return lab.Keyed(s.doors[2].URL+"/quota", "key") })
		s.doors[g].Kill()
		s.doors[g] = s.start(dynamic, lab.TraefikOptions{Plugin: plugin})
		answers := append(load.Stop(), s.ask(20, "key", g)...)
		if a, wrong := answers.Wrong(http.StatusOK, http.StatusTooManyRequests); wrong {
			t.Errorf("step %d: status %d (%v)", step, a.Status, a.Err)
		}
		passed += answers.Count(http.StatusOK)
	}
	if passed != 200 {
		t.Errorf("%d requests passed, want 200", passed)
	}
	s.silent()
}
