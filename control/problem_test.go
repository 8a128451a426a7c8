package control

import (
	"strings"
	"testing"
)

// What stands in place of a hash may be what tells a client apart.
func TestProblemsShowNoClient(t *testing.T) {
	const key = "SECRET-41aa"
	for _, field := range []string{"allow:" + key, "block:" + key, "epoch:" + key, "allow:" + strings.Repeat("A", 64)} {
		_, problems := Parse([]string{field, "1764526000 5"})
		if len(problems) != 1 || problems[0].Field != field[:6]+"..." || problems[0].Value != "1764526000 5" {
			t.Errorf("%s: %+v", field, problems)
		}
	}
	for _, field := range []string{"allow:" + strings.Repeat("a", 64), "limit:a b", "colour"} {
		_, problems := Parse([]string{field, "x"})
		if len(problems) != 1 || problems[0].Field != field {
			t.Errorf("%s: %+v", field, problems)
		}
	}
}
