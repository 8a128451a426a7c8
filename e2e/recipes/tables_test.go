package recipes_test

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gatequota/gatequota"
	"github.com/gatequota/gatequota/e2e/lab"
)

var quoted = regexp.MustCompile("`([A-Za-z0-9.-]+)`")

// names returns what stands in backquotes in a cell.
func names(cell string) []string {
	var all []string
	for _, found := range quoted.FindAllStringSubmatch(cell, -1) {
		all = append(all, found[1])
	}
	return all
}

// options returns the paths of all options below a type, as the pages write them.
func options(path string, of reflect.Type, all map[string]bool) {
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice:
		options(path, of.Elem(), all)
	case reflect.Struct:
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if name == "-" {
				continue
			}
			all[path+name] = true
			options(path+name+".", of.Field(i).Type, all)
		}
	}
}

func TestTablesNameOptionsThatExist(t *testing.T) {
	known := map[string]bool{}
	options("", reflect.TypeFor[gatequota.Config](), known)
	for _, one := range []string{"limit", "rules.sourceCriterion.ipStrategy.trustedIPs", "valkey.tls.ca"} {
		if !known[one] {
			t.Fatalf("of the options %s is not found", one)
		}
	}
	p := readPage(t)
	for name, rows := range map[string]int{"ratelimit": 22, "ingress-nginx": 11} {
		if len(p.tables[name]) != rows {
			t.Errorf("the table %s has %d rows, want %d", name, len(p.tables[name]), rows)
		}
		for _, row := range p.tables[name] {
			if len(row) != 3 {
				t.Fatalf("the table %s has a row of %d cells: %q", name, len(row), row)
			}
			ours := names(row[1])
			if len(ours) == 0 && !strings.Contains(row[2], "no equivalent") && !strings.Contains(row[2], "the same") {
				t.Errorf("%s: neither an option nor why there is none", row[0])
			}
			for _, option := range ours {
				if !known[option] {
					t.Errorf("%s: there is no option %s", row[0], option)
				}
			}
		}
	}
}

// everyOption returns a rateLimit with each option that the page's table has of it.
// Traefik does not load a file with one that it does not know.
func everyOption(t *testing.T, p page) lab.Map {
	t.Helper()
	samples := map[string]any{
		"average": 1, "period": "1s", "burst": 1, "requestHeaderName": "X-Key", "requestHost": true,
		"depth": 1, "excludedIPs": []string{"127.0.0.1"}, "ipv6Subnet": 64,
		"endpoints": []string{"localhost:6379"}, "username": "x", "password": "x", "db": 1,
		"ca": "x", "cert": "x", "key": "x", "insecureSkipVerify": true,
		"dialTimeout": "1s", "readTimeout": "1s", "writeTimeout": "1s",
		"poolSize": 1, "minIdleConns": 1, "maxActiveConns": 1,
	}
	limit := lab.Map{}
	for _, row := range p.tables["ratelimit"] {
		for _, name := range names(row[0]) {
			keys := strings.Split(name, ".")
			last := keys[len(keys)-1]
			if samples[last] == nil {
				t.Fatalf("there is no sample of %s", name)
			}
			inner := limit
			for _, key := range keys[:len(keys)-1] {
				if inner[key] == nil {
					inner[key] = lab.Map{}
				}
				inner = inner[key].(lab.Map)
			}
			inner[last] = samples[last]
			delete(samples, last)
		}
	}
	if len(samples) > 0 {
		t.Errorf("the table leaves out %v", samples)
	}
	return lab.Map{"rateLimit": limit}
}

// The page says how annotations are reckoned into buckets, and does it in an example.
func TestAnnotationsComeToTheBucketsOfTheRecipe(t *testing.T) {
	var annotations, middleware lab.Map
	for _, b := range readPage(t).blocks {
		if b.name == "ingress-nginx" {
			document := b.decode(t, strings.NewReplacer())[0]
			if b.kind == "annotations" {
				annotations = at(document, "metadata", "annotations")
			} else {
				middleware = at(document, "spec", "plugin", lab.PluginName)
			}
		}
	}
	value := func(name string) string { return fmt.Sprint(annotations["nginx.ingress.kubernetes.io/"+name]) }
	number := func(name string) int {
		n, err := strconv.Atoi(value(name))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	multiplier := number("limit-burst-multiplier")
	var want []any
	for _, rate := range []struct{ name, annotation, unit string }{{"seconds", "limit-rps", "s"}, {"minutes", "limit-rpm", "m"}} {
		limit := number(rate.annotation)
		want = append(want, lab.Map{"name": rate.name, "limit": limit, "window": "1" + rate.unit, "burst": limit * multiplier})
	}
	if middleware["algorithm"] != "token-bucket" {
		t.Errorf("the algorithm is %v", middleware["algorithm"])
	}
	if got := middleware["limits"]; !reflect.DeepEqual(got, want) {
		t.Errorf("the recipe has the limits %v, want %v", got, want)
	}
	if got, want := at(middleware, "exempt")["ips"], []any{value("limit-whitelist")}; !reflect.DeepEqual(got, want) {
		t.Errorf("the recipe exempts %v, want %v", got, want)
	}
}

// And so it does with the rates of Traefik's own limiter.
func TestRatesComeToTheBucketOfTheRecipe(t *testing.T) {
	before, after := lab.Map{}, lab.Map{}
	for _, b := range readPage(t).blocks {
		switch b.name {
		case "ratelimit-before":
			before = at(b.decode(t, strings.NewReplacer())[0], "http", "middlewares", "before", "rateLimit")
		case "ratelimit-after":
			after = at(b.decode(t, strings.NewReplacer())[0], "http", "middlewares", "after", "plugin", lab.PluginName)
		}
	}
	for theirs, ours := range map[string]string{"average": "limit", "period": "window", "burst": "burst"} {
		if before[theirs] == nil || after[ours] != before[theirs] {
			t.Errorf("the recipe has the %s %v, want %v", ours, after[ours], before[theirs])
		}
	}
	if after["algorithm"] != "token-bucket" {
		t.Errorf("the algorithm is %v", after["algorithm"])
	}
}
