package reply

import (
	"strings"
	"testing"
)

func TestAcceptForm(t *testing.T) {
	const much = 512 // bytes that are read
	for _, test := range []struct {
		lines []string
		json  bool
	}{
		{nil, false},
		{[]string{}, false},
		{[]string{""}, false},
		{[]string{"*/*"}, false},
		{[]string{"text/html"}, false},
		{[]string{"text/plain, */*;q=0.5"}, false},
		{[]string{"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"}, false},

		{[]string{"application/json"}, true},
		{[]string{"Application/JSON"}, true},
		{[]string{"application/problem+json"}, true},
		{[]string{"application/*"}, true},
		{[]string{"APPLICATION/*"}, true},
		{[]string{"application/vnd.api+json"}, true},
		{[]string{"application/vnd.github.v3+json; charset=utf-8"}, true},
		{[]string{"model/gltf+JSON"}, true},
		{[]string{"application/json, text/plain, */*"}, true},
		{[]string{"text/html, application/json;q=0.1"}, true},
		{[]string{"text/html", "application/json"}, true},
		{[]string{"text/html", "*/*"}, false},
		{[]string{"*/*", "application/json"}, true},
		{[]string{"*/*", "*/*"}, false},
		{[]string{"application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}, true},
		{[]string{" application/json "}, true},
		{[]string{"\tapplication/json\t;\tq=1\t,\ttext/html"}, true},
		{[]string{",,application/json,"}, true},
		{[]string{"application/json ; ;q=0.5"}, true},

		{[]string{"application/json;q=0"}, false},
		{[]string{"application/json;Q=0.000"}, false},
		{[]string{"application/json;q=0."}, false},
		{[]string{"application/json;q=0.001"}, true},
		{[]string{"application/json;q=0.01"}, true},
		{[]string{"application/json;q=0.010"}, true},
		{[]string{"application/json;q=0.9"}, true},
		{[]string{"application/json;q=1.000"}, true},
		{[]string{"application/json;charset=utf-8;q=0"}, false},
		{[]string{"application/json;q=0;charset=utf-8"}, false},
		{[]string{"application/json;q=0, application/*"}, true},
		{[]string{"application/json;q=0, application/hal+json;q=0.3"}, true},
		{[]string{"application/problem+json;q=0, application/json"}, false},
		{[]string{"application/json, application/Problem+json;v=1;q=0.0"}, false},
		{[]string{"application/problem+json, application/*;q=0"}, true},
		{[]string{"application/problem+json;q=0.2, application/json;q=0"}, true},
		{[]string{`text/html;x="application/problem+json;q=0", application/json`}, true},
		{[]string{`text/html;x=", application/json, "`}, false},
		{[]string{`text/html;x="\", application/json, \""`}, false},
		{[]string{`application/json;x=";q=0"`}, true},
		{[]string{`application/json;qq=0`}, true},

		{[]string{"json"}, false},
		{[]string{"text/json"}, false},
		{[]string{"application/jsonp"}, false},
		{[]string{"application/json+xml"}, false},
		{[]string{"application/jsonseq, x/json"}, false},
		{[]string{"application/*+xml"}, false},
		{[]string{"application"}, false},

		{[]string{"application/json;"}, true},
		{[]string{"application/json;q"}, false},
		{[]string{"application/json;q=2"}, false},
		{[]string{"application/json;q=1.1"}, false},
		{[]string{"application/json;q=.5"}, false},
		{[]string{"application/json;q=-1"}, false},
		{[]string{"application/json;q=0.5555"}, false},
		{[]string{"application/json;q = 0.5"}, false},
		{[]string{`application/json;q="1"`}, false},
		{[]string{"application/json, text/html;q=high"}, false},
		{[]string{"application/json; charset"}, false},
		{[]string{"application/json text/html"}, false},
		{[]string{"application / json"}, false},
		{[]string{"application/json, text"}, false},
		{[]string{"application/json, *; q=.2"}, false},
		{[]string{`application/json;x="open`}, false},
		{[]string{"application/json", "(broken"}, false},
		{[]string{"application/json\x00"}, false},
		{[]string{"application/jsön"}, false},
		{[]string{"application/json;x=ü"}, false},

		{[]string{"application/json," + strings.Repeat(" ", much-17)}, true},
		{[]string{"application/json," + strings.Repeat(" ", much-16)}, false},
		{[]string{strings.Repeat("application/json,", 1<<16)}, false},
	} {
		shown := strings.Join(test.lines, " | ")
		if len(shown) > 80 {
			shown = shown[:80] + "..."
		}
		want := ""
		if test.json {
			want = "application/problem+json"
		}
		if got := acceptForm(test.lines); got != want {
			t.Errorf("%q: %q, want %q", shown, got, want)
		}
	}
}

// What is sent twice is accepted as it is when sent once, and what refuses everything
// accepts nothing.
func FuzzAccept(f *testing.F) {
	for _, seed := range []string{"application/json", "*/*", "text/html;q=0.5, application/*;q=0", `a/b;c="d,\"e"`, "application/problem+json;q=0.0", ",;=/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		got := acceptForm([]string{line})
		if got != "" && got != problemJSON {
			t.Fatalf("%q: %q", line, got)
		}
		if 2*len(line) < maxAccept && !strings.Contains(line, `"`) {
			if twice := acceptForm([]string{line, line}); twice != got {
				t.Errorf("%q: %q, and sent twice %q", line, got, twice)
			}
		}
		if got != "" && !strings.Contains(strings.ToLower(line), "json") && !strings.Contains(strings.ToLower(line), "application/*") {
			t.Errorf("%q accepts JSON", line)
		}
		if refused := acceptForm([]string{line, "application/problem+json;q=0"}); refused != "" {
			t.Errorf("%q refuses problem details, and gets %q", line, refused)
		}
	})
}
