package suite

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// operators are about the options of those who watch over a gateway and change it.
var operators = tests{
	{"a wrong option of those who watch is refused", wrongWatching},
	{"options of those who watch that do not fit together are refused", watchingMisfits},
	{"an unknown option in a text or group is told the nearest known one", unknownLogOptions},
	{"a token is in no refusal and in no log", tokensNotShown},
	{"each form of a right option of those who watch is taken", rightWatching},
	{"refusals are logged as often as is said", refusalsLogged},
}

func wrongWatching(t *T) {
	texts := []any{float64(5), true, list}
	booleans := []any{"", "yes", "1", "TRUE", float64(1), list, group}
	for _, watch := range []string{"metrics", "status"} {
		for _, value := range append([]any{
			"", "metrics", "metrics/", "/metrics/", "//metrics", "/a/../metrics", "/a/./b", "/metrics?x", "/metrics#x", "/%6detrics", "/a%2Fb", "/metrics/*", "/{x}", "/a b", " /metrics", "/metrics ",
		}, texts...) {
			want := []string{watch + ".path"}
			if text, is := value.(string); is {
				want = append(want, fmt.Sprintf("%q", text))
			}
			t.refused(t.shared(watch+".path", value), want...)
		}
		for _, value := range []any{[]any{}, "10.0.0.0/33", "nonsense", "10.0.0.1,,10.0.0.2", []any{""}, "", "fe80::1%eth0", "localhost", "127.0.0.1:80"} {
			t.refused(t.shared(watch+".path", "/x", watch+".allow", value), watch+".allow")
		}
		for _, value := range append([]any{"", " ", "two words", "schlüssel", "line\nend", "tab\t"}, texts...) {
			t.refused(t.shared(watch+".path", "/x", watch+".token", value), watch+".token")
		}
		for _, value := range append([]any{"", "/no/such/file", "no-path"}, texts...) {
			t.refused(t.shared(watch+".path", "/x", watch+".tokenFile", value), watch+".tokenFile")
		}
		for _, option := range []string{"allow", "token", "tokenFile"} {
			t.refused(t.shared(watch+"."+option, "127.0.0.1"), watch+".path is missing", watch+"."+option)
		}
		t.refused(t.shared(watch, "/x"), watch)
		t.refused(t.shared(watch+".tokens", "x"), "unknown option "+watch+".tokens", "did you mean "+watch+".token?")
	}
	for _, value := range booleans {
		t.refused(t.shared("control", value), "control")
	}
	for _, value := range []any{"", "JSON", "logfmt", float64(5), true, list} {
		want := []string{"log"}
		if text, is := value.(string); is {
			want = append(want, fmt.Sprintf("%q", text), "text, json")
		}
		t.refused(t.shared("log", value), want...)
		t.refused(t.shared("log.format", value), append(want, "log.format")...)
	}
	for _, value := range []any{"", "100", "1/0", "0/1", "2/100", "1/1000001", "1/-1", "1/+5", "1/010", "1 / 100", "1/100 ", "1%", "0.01", "1/", "/100", "1/1/1", "1/9999999999999999999", float64(100), true, list, group} {
		want := []string{"log.refusals"}
		if text, is := value.(string); is {
			want = append(want, fmt.Sprintf("%q", text), "1000000")
		}
		t.refused(t.shared("log.refusals", value), want...)
	}
}

func watchingMisfits(t *T) {
	t.refused(t.shared("metrics.path", "/x", "status.path", "/x"), "status.path", `"/x"`, "metrics.path")
	t.refused(t.options(nil, "control", "true"), "control", `"true"`, "shared")
	t.refused(t.options(nil, "control", true), "control", `"true"`, "shared")
	file := filepath.Join(t.TempDir(), "token")
	for content, good := range map[string]bool{"s3cr3t-token": true, "s3cr3t-token\n": true, "s3cr3t-token\r\n\n": true, "": false, "\n": false, "two words\n": false, "two\nlines": false} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		options := t.shared("metrics.path", "/x", "metrics.tokenFile", file)
		if good {
			t.handler(t.name(), options)
		} else {
			t.refused(options, "metrics.tokenFile")
		}
		t.refused(with(options, "metrics.token", "s3cr3t-token"), "metrics.tokenFile", file, "metrics.token is set too")
	}
}

func unknownLogOptions(t *T) {
	for option, hint := range map[string]string{
		"log.formats": "did you mean log.format?", "log.refusal": "did you mean log.refusals?", "log.level": "see the list of options",
		"format": "it belongs into log, as log.format", "logs": "did you mean log?", "log.control": "it belongs on the top level, as control",
		"tokenFile": "it belongs into metrics, as metrics.tokenFile", "metrics.log": "it belongs on the top level, as log",
	} {
		t.refused(t.shared(option, "x"), "unknown option "+option, hint)
	}
}

func tokensNotShown(t *T) {
	const token = "s3cr3t-7b1e"
	before := len(t.plugin.Output())
	t.handler(t.name(), t.shared("metrics.path", "/m", "metrics.token", token, "status.path", "/s", "status.token", token+"x"))
	if logged := t.plugin.Output()[before:]; strings.Contains(logged, token) || !strings.Contains(logged, "metrics on /m for [127.0.0.0/8 ::1/128] token true, status on /s for [127.0.0.0/8 ::1/128] token true") {
		t.Errorf("the log has the token, or not what is in force: %s", logged)
	}
	for _, options := range []map[string]any{
		t.shared("metrics.token", token),
		t.shared("metrics.path", "/m", "metrics.token", token+" "+token),
		t.shared("metrics.path", "/m", "metrics.token", []any{token}),
		t.shared("metrics.path", "/m", "metrics.tokenFile", token),
		t.shared("metrics.path", "/m", "metrics.token", token, "metrics.tokenFile", token),
	} {
		newHandler, err := t.plugin.Configure(t.ctx, t.name(), options)
		if err == nil {
			_, err = newHandler(served)
		}
		// A relative path is shown where nothing was read of it.
		if err == nil || strings.Contains(strings.Replace(err.Error(), `option metrics.tokenFile: "`+token+`"`, "", 1), token) {
			t.Errorf("%v: %v", options, err)
		}
	}
}

func rightWatching(t *T) {
	for _, tt := range []struct {
		option string
		values []any
	}{
		{"metrics", []any{map[string]any{}, map[string]any{"path": "/-/gatequota/metrics"}, map[string]any{"PATH": "/m", "Allow": "::1", "tokenfile": absent}}},
		{"status", []any{map[string]any{}, map[string]any{"path": "/"}, map[string]any{"path": "/-/gätequota"}, map[string]any{"path": "/x;y"}}},
		{"metrics.path", []any{"/m", "/a/b.c/~d"}},
		{"control", []any{"true", "false", true, false}},
		{"log", []any{"text", map[string]any{}, map[string]any{"format": "text"}, map[string]any{"refusals": "1/1"}, map[string]any{"Format": "text", "REFUSALS": "1/1000000"}}},
	} {
		for _, value := range tt.values {
			options, is := value.(map[string]any)
			if is {
				for name, each := range options {
					if each == any(absent) {
						delete(options, name)
					}
				}
			}
			t.handler(t.name(), t.shared(tt.option, value))
		}
	}
	for _, value := range []any{"10.0.0.0/8", "::1", "::ffff:10.0.0.1", "::ffff:10.0.0.0/104", []any{"127.0.0.1", " 2001:db8::/32"}, "127.0.0.1, 10.0.0.1"} {
		t.handler(t.name(), t.shared("metrics.path", "/m", "metrics.allow", value))
	}
}

// The first refusal under each rule is logged, and from then on each so many-th, whatever
// router it came by.
func refusalsLogged(t *T) {
	name := t.name()
	options := t.options(nil, "limit", "1", "log.refusals", "1/3", "rules", []any{entry("name", "login", "path", "/login", "limit", "1")})
	one, other := t.handler(name, options), t.handler(name, options)
	before := len(t.plugin.Output())
	logged := func(rule string) int {
		return strings.Count(t.plugin.Output()[before:], "gatequota: refused: scope="+name+" rule="+rule+" client=2c70e12b7a06 way=local\n")
	}
	for i, want := range []int{0, 1, 1, 1, 2, 2, 2, 3} {
		h := one
		if i%2 == 1 {
			h = other
		}
		t.ask(h, "key")
		if got := logged(""); got != want {
			t.Errorf("after %d requests under a limit of 1 there are %d lines, want %d", i+1, got, want)
		}
	}
	for i, want := range []int{0, 1, 1} {
		request := keyed("key")
		request.URL.Path = "/login"
		t.exchange(one, request)
		if got := logged("login"); got != want {
			t.Errorf("after %d requests under the rule there are %d lines, want %d", i+1, got, want)
		}
	}
	if got := logged(""); got != 3 {
		t.Errorf("%d lines of the top level", got)
	}
}
