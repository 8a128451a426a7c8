package real_test

import (
	"os"
	"os/exec"
	"regexp"
	"testing"
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
