package archive_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatequota/gatequota/e2e/lab"
	"github.com/gatequota/gatequota/e2e/release/archive"
)

// laidOut returns where this project's last commit lies as a local plugin.
func laidOut(t *testing.T) string {
	t.Helper()
	plugin, err := archive.Local(context.Background(), lab.Root(), "HEAD", lab.PluginModule, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return plugin
}

func TestTraefikServesTheArchive(t *testing.T) {
	if err := archive.Serve(context.Background(), laidOut(t)); err != nil {
		t.Error(err)
	}
}

func TestTraefikRefusesWhatIsBroken(t *testing.T) {
	for name, example := range map[string]string{
		"a limit that is none":        "limit: 0",
		"an option that is not there": "limit: 100\n  limitt: 100",
	} {
		t.Run(name, func(t *testing.T) {
			plugin := laidOut(t)
			path := filepath.Join(plugin, ".traefik.yml")
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			broken := strings.Replace(string(text), "limit: 100", example, 1)
			if broken == string(text) {
				t.Fatal("the manifest has another limit")
			}
			if err := os.WriteFile(path, []byte(broken), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := archive.Serve(context.Background(), plugin); err == nil || !strings.Contains(err.Error(), "404") {
				t.Errorf("the error is %v, want one of an answer 404", err)
			}
		})
	}
}
