package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExitStatusIsThatOfK6(t *testing.T) {
	tests := map[string]struct {
		script string
		args   []string
		status int
		out    string
	}{
		"all held": {
			`export const options = { thresholds: { iterations: ['count==1'] } }; export default () => {}`,
			nil, 0, "✓ iterations",
		},
		"one did not": {
			`export const options = { thresholds: { iterations: ['count==' + __ENV.WANT] } }; export default () => {}`,
			[]string{"-e", "WANT=2"}, 99, "✗ iterations",
		},
		"options": {
			`export const options = { thresholds: { nothing: ['count==1'] } }; export default () => {}`,
			nil, 104, `no metric "nothing"`,
		},
		"exception": {
			`throw new Error('too early')`,
			nil, 107, "too early",
		},
		"not offered": {
			`import ws from 'k6/ws'; export default () => ws`,
			nil, 107, "k6/ws",
		},
		"environment": {
			`if (__ENV.SHELL_SAYS !== 'hello') { throw new Error('not said') } export default () => {}`,
			nil, 0, "iterations",
		},
		"usage": {
			`export default () => {}`,
			[]string{"-e", "nothing"}, 1, "NAME=value",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "script.js")
			if err := os.WriteFile(path, []byte(test.script), 0o600); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			status := run(context.Background(), append(test.args, path), []string{"SHELL_SAYS=hello", "=x"}, &out, &out)
			if status != test.status || !strings.Contains(out.String(), test.out) {
				t.Errorf("status %d, want %d; output %q, want %q in it", status, test.status, out.String(), test.out)
			}
		})
	}
}
