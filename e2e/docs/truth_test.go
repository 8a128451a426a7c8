package docs

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/traefik/paerser/parser"

	"github.com/gatequota/gatequota"
	"github.com/gatequota/gatequota/e2e/host"
	"github.com/gatequota/gatequota/source"
)

// secret is the one that the page digests with.
const secret = "correct horse battery staple"

// with returns the least options and those that the option at path, as the tables write
// it, needs beside itself, with that one set.
func with(path string, value any) map[string]any {
	options := map[string]any{
		"limit": "100", "window": "1m",
		"valkey": map[string]any{"endpoints": "valkey:6379"},
	}
	group, _, _ := strings.Cut(path, ".")
	switch strings.TrimSuffix(group, "[]") {
	case "limits":
		options = map[string]any{"valkey": options["valkey"], "limits": []any{map[string]any{"name": "one", "limit": "100", "window": "1m"}}}
	case "rules":
		options["rules"] = []any{map[string]any{"name": "rule", "path": "/"}}
	case "plans":
		options["plans"] = map[string]any{"header": "X-Plan", "values": map[string]any{"<plan>": map[string]any{"limit": "1"}}}
	case "overrides":
		options["overrides"] = []any{map[string]any{"value": "192.0.2.1", "limit": "1"}}
	case "response":
		options["response"] = map[string]any{"body": "no"}
	case "metrics", "status":
		options[group] = map[string]any{"path": "/-/gatequota"}
	case "gatewayLimit":
		options["gatewayLimit"] = map[string]any{"limit": "1", "window": "1s"}
	}
	level := options
	parts := strings.Split(path, ".")
	if parts[len(parts)-1] == "burst" {
		// It is one of a bucket, and the shorter the window the higher it may be.
		options["algorithm"] = "token-bucket"
		if limits, several := options["limits"].([]any); several {
			limits[0].(map[string]any)["window"] = "1s"
		} else {
			options["window"] = "1s"
		}
	}
	for _, part := range parts[:len(parts)-1] {
		name, list := strings.CutSuffix(part, "[]")
		if level[name] == nil {
			level[name] = map[string]any{}
		}
		if list {
			level = level[name].([]any)[0].(map[string]any)
		} else {
			level = level[name].(map[string]any)
		}
	}
	level[parts[len(parts)-1]] = value
	return options
}

// accepts makes a middleware of options.
func accepts(options map[string]any) error {
	config, err := decode(options)
	if err != nil {
		return err
	}
	_, err = gatequota.New(context.Background(), http.NotFoundHandler(), config, "docs@docs")
	return err
}

var (
	span   = regexp.MustCompile(`^([0-9]+)([a-z]*) to ([0-9]+)([a-z]*)(, in whole seconds)?$`)
	words  = regexp.MustCompile("^`[^`]*`(, `[^`]*`)*$")
	number = map[string]bool{"integer": true, "duration": true}
)

// The bounds of a table are those of the plugin: what stands at their ends is taken, and
// what lies beyond is not; of words, each is taken, and no other.
func TestBoundsAndDefaultsAreTrue(t *testing.T) {
	tried := 0
	for _, r := range rows(t) {
		try := func(value string, good bool) {
			t.Helper()
			tried++
			if err := accepts(with(r.option, value)); (err == nil) != good {
				t.Errorf("%s: %s: %v", r.option, value, err)
			}
		}
		if words.MatchString(r.otherwise) && r.kind != "group" && !strings.HasPrefix(r.kind, "list") {
			try(strings.Trim(r.otherwise, "`"), true)
		}
		if bounds := span.FindStringSubmatch(r.bounds); bounds != nil && number[r.kind] {
			least, unit, most, mostUnit := bounds[1], bounds[2], bounds[3], bounds[4]
			try(least+unit, true)
			try(most+mostUnit, true)
			if r.kind == "integer" {
				low, _ := strconv.Atoi(least)
				high, _ := strconv.Atoi(most)
				try(strconv.Itoa(low-1), false)
				try(strconv.Itoa(high+1), false)
			} else {
				try("0"+unit, false)
				try(most+mostUnit+"1"+unit, false)
				if bounds[5] != "" {
					try("1500ms", false)
				}
			}
		}
		if words.MatchString(r.bounds) && r.kind == "text" {
			for _, word := range strings.Split(r.bounds, ", ") {
				try(strings.Trim(word, "`"), true)
			}
			try("anything", false)
		}
		if r.kind == "boolean" {
			try("true", true)
			try("false", true)
			try("yes", false)
		}
		if r.kind == "integer" {
			try("010", false)
			try("1.5", false)
		}
	}
	if tried < 100 {
		t.Errorf("only %d values were found to try: the tables are not read as they are written", tried)
	}
}

func TestMessagesOnThePageAreThoseOfThePlugin(t *testing.T) {
	costly := with("rules[].cost", "700")
	costly["limit"] = "600"
	for _, options := range []map[string]any{costly, with("endpoints", "valkey:6379")} {
		err := accepts(options)
		if err == nil {
			t.Fatalf("%v are accepted", options)
		}
		message := strings.TrimPrefix(err.Error(), "gatequota: middleware docs@docs: ")
		if !strings.Contains(page(t), "\n"+message+"\n") {
			t.Errorf("the page does not have the message: %s", message)
		}
	}
}

// The interpreter must find the same hints.
func TestUnknownOptionsGetTheSameMessageInterpreted(t *testing.T) {
	plugin, err := host.Load(root, os.Stdout, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	for path, hint := range map[string]string{
		"endpoints":                   "it belongs into valkey, as valkey.endpoints",
		"average":                     "did you mean limit?",
		"été":                         "see the list of options",
		"valkey.endpoint":             "did you mean valkey.endpoints?",
		"rules[].depth":               "as rules[0].sourceCriterion.ipStrategy.depth",
		"rules[].scope":               "it belongs on the top level, as scope",
		"limits[].quota":              "see the list of options",
		"sourceCriterion.header":      "did you mean sourceCriterion.requestHeaderName?",
		"plans.values.<plan>.limitts": "did you mean plans.values.<plan>.limits?",
		"log.formats":                 "did you mean log.format?",
		"log.level":                   "unknown option log.level: see the list of options",
		"metrics.tokenfiles":          "did you mean metrics.tokenFile?",
		"path":                        "it belongs into rules[0], as rules[0].path",
		"rules[].status":              "it belongs into response, as response.status",
	} {
		options := with(path, "x")
		compiled := accepts(options)
		_, interpreted := plugin.New(context.Background(), http.NotFoundHandler(), "docs@docs", options)
		if compiled == nil || interpreted == nil {
			t.Errorf("%s is accepted: compiled %v, interpreted %v", path, compiled, interpreted)
			continue
		}
		if compiled.Error() != interpreted.Error() || !strings.Contains(compiled.Error(), hint) {
			t.Errorf("%s: %q compiled and %q interpreted, want %q in both", path, compiled, interpreted, hint)
		}
	}
}

func TestDigestsOnThePageAreThoseOfThePlugin(t *testing.T) {
	text := page(t)
	for _, digest := range []string{source.Digest("alice-7f3a"), source.KeyedDigest(secret, "alice-7f3a")} {
		if !strings.Contains(text, "\n"+hex.EncodeToString([]byte(digest))+"\n") {
			t.Errorf("the page does not have the digest %x of alice-7f3a", digest)
		}
	}
	request, err := http.NewRequest(http.MethodGet, "http://shop.example.com:8080/", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.RemoteAddr = "203.0.113.7:1234"
	for _, tt := range []struct {
		criterion source.Criterion
		want      string
	}{
		{source.Criterion{IPv6Subnet: 64}, `\0address:11:203.0.113.7`},
		{source.Criterion{Host: true}, `\0host:16:shop.example.com`},
	} {
		source.Prepare(&tt.criterion)
		identity := source.Identify(&tt.criterion, request)
		if got := strings.Replace(identity, "\x00", `\0`, 1); got != tt.want || !strings.Contains(text, tt.want) {
			t.Errorf("an identity is %q, want %q, which is on the page: %t", got, tt.want, strings.Contains(text, tt.want))
		}
	}
}

// What the page says of labels: they are sorted as text, and the order of rules matters.
func TestRulesInLabelsAreSortedAsText(t *testing.T) {
	const prefix = "traefik.http.middlewares.quota.plugin.gatequota.rules"
	for _, digits := range []string{"%d", "%02d"} {
		labels := map[string]string{}
		for i := range 12 {
			labels[prefix+fmt.Sprintf("["+digits+"].name", i)] = strconv.Itoa(i)
		}
		c := &configuration{}
		if err := parser.Decode(labels, c, parser.DefaultRootName); err != nil {
			t.Fatal(err)
		}
		_, options, err := c.only()
		if err != nil {
			t.Fatal(err)
		}
		rules := options["rules"].([]any)
		sorted := true
		for i, rule := range rules {
			sorted = sorted && rule.(map[string]any)["name"] == strconv.Itoa(i)
		}
		if want := digits == "%02d"; len(rules) != 12 || sorted != want {
			t.Errorf("%s: %d rules, in order: %t, want %t", digits, len(rules), sorted, want)
		}
	}
}
