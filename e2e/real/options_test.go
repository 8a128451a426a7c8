package real_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/gatequota/gatequota"
	"github.com/gatequota/gatequota/e2e/host"
	"github.com/gatequota/gatequota/e2e/lab"
)

// labelled returns the labels of middlewares and of routers that lead the path
// "/name" through each.
func labelled(middlewares map[string]options) map[string]string {
	all := map[string]string{}
	for name, o := range middlewares {
		for label, value := range o.labels(name) {
			all[label] = value
		}
		all["traefik.http.routers."+name+".rule"] = "Path(`/" + name + "`)"
		all["traefik.http.routers."+name+".middlewares"] = name + "@docker"
		all["traefik.http.routers."+name+".service"] = "labelled"
	}
	return all
}

// A limit is what was written, or it is refused with its name and value.
func TestLimitIsAsWrittenOrRefused(t *testing.T) {
	t.Parallel()
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	type want struct {
		value any
		limit string // in force; empty where it is refused
		shown string // how the refusal shows the value, unless as written
	}
	byYAML := map[string]want{
		"five":        {5, "5", ""},
		"quoted":      {"5", "5", ""},
		"negative":    {-1, "", ""},
		"zero":        {0, "", ""},
		"wide":        {plain("4294967297"), "4294967297", ""},
		"wider":       {plain("18446744073709551617"), "", "184467440737095516"},
		"fraction":    {plain("1.9"), "", ""},
		"truth":       {true, "", ""},
		"zeros":       {"010", "", ""},
		"hex":         {"0x10", "", ""},
		"underscore":  {"1_000", "", ""},
		"empty":       {"", "", ""},
		"blank":       {" 5", "", ""},
		"exponent":    {"1e3", "", ""},
		"plus":        {"+5", "", ""},
		"word":        {"many", "", ""},
		"list":        {[]int{5}, "", ""},
		"group":       {options{"a": 1}, "", ""},
		"null":        {plain("null"), "", "missing"},
		"largest":     {plain("999999999999999"), "999999999999999", ""},
		"too-large":   {plain("1000000000000000"), "", ""},
		"other-digit": {"٥", "", ""},
		// What YAML makes of it before anybody sees how it was written.
		"octal": {plain("010"), "8", ""},
	}
	byLabel := map[string]want{
		"l-five": {"5", "5", ""}, "l-negative": {"-1", "", ""}, "l-wide": {"4294967297", "4294967297", ""},
		"l-fraction": {"1.9", "", ""}, "l-truth": {"true", "", ""}, "l-zeros": {"010", "", ""}, "l-hex": {"0x10", "", ""},
		"l-underscore": {"1_000", "", ""}, "l-empty": {"", "", ""}, "l-blank": {" 5", "", ""}, "l-exponent": {"1e3", "", ""},
		"l-list": {"5,6", "", ""},
	}
	middlewares := func(wants map[string]want) map[string]options {
		all := map[string]options{}
		for name, w := range wants {
			all[name] = local(0, window).with("limit", w.value)
		}
		return all
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{Docker: lab.Labels(t, app.URLs[0], labelled(middlewares(byLabel)))},
		each(app, middlewares(byYAML)).yaml(t))
	check := func(name, provider string, w want) {
		t.Helper()
		answers := client.Sequence(lab.Alternate(20, "key", tr.URL+"/"+name))
		if w.limit == "" {
			mustBe(t, name, answers, http.StatusNotFound)
			shown := fmt.Sprintf("%v", w.value)
			if w.shown != "" {
				shown = w.shown
			}
			if got := tr.RouterError(name + "@" + provider); !strings.Contains(got, "option limit") || !strings.Contains(got, shown) {
				t.Errorf("%s: the refusal names neither the option nor %q: %s", name, shown, got)
			}
			return
		}
		mustBe(t, name, answers, http.StatusOK, http.StatusTooManyRequests)
		if got := answers[0].Header.Get("X-RateLimit-Limit"); got != w.limit {
			t.Errorf("%s: the limit is %s, want %s; %s", name, got, w.limit, tr.RouterError(name+"@"+provider))
		}
		if settings := tr.LogLines("middleware " + name + "@" + provider + ": limit " + w.limit + " in "); len(settings) != 1 {
			t.Errorf("%s: the effective limit is logged %d times", name, len(settings))
		}
		var expected int
		if _, err := fmt.Sscan(w.limit, &expected); err != nil {
			t.Fatal(err)
		}
		if got := answers.Count(http.StatusOK); got != min(20, expected) {
			t.Errorf("%s: %d of 20 were allowed", name, got)
		}
	}
	for name, w := range byYAML {
		check(name, "file", w)
	}
	for name, w := range byLabel {
		check(name, "docker", w)
	}
}

// optionPaths returns the paths of all options that a configuration type has.
func optionPaths(of reflect.Type, prefix string) []string {
	var paths []string
	for i := range of.NumField() {
		field := of.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		inner := field.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			paths = append(paths, optionPaths(inner, prefix+name+".")...)
			continue
		}
		paths = append(paths, prefix+name)
	}
	return paths
}

func (o options) paths(prefix string) []string {
	var paths []string
	for name, value := range o {
		if nested, ok := value.(options); ok {
			paths = append(paths, nested.paths(prefix+name+".")...)
			continue
		}
		paths = append(paths, prefix+name)
	}
	return paths
}

// Every option arrives from every provider.
func TestEveryOptionArrivesFromEveryProvider(t *testing.T) {
	t.Parallel()
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	authority := lab.NewAuthority(t)
	own := authority.Issue(t, "gateway", "gateway")
	store := lab.Valkey(t, lab.StoreOptions{
		TLS: authority, Pair: authority.Issue(t, "store", "store.test"),
		TLSClient: true, Password: "unused",
	})
	store.Do("ACL", "SETUSER", "gateway", "on", ">"+password, "~*", "+@all")

	// Together these have every option, each with a value that is not its default.
	sets := map[string]struct {
		o    options
		says []string // of the settings that are logged
	}{
		"all": {
			options{
				"limit": 7, "window": "2h", "scope": "common", "mode": "shared", "onStoreFailure": "closed", "headers": "legacy",
				"decisionHeader": "X-Way", "maxClients": 1234, "sourceCriterion": options{"requestHeaderName": "X-Customer"},
				"valkey": options{
					"endpoints": []string{store.Addr()}, "username": "gateway", "password": password, "db": 3, "timeout": "4321ms",
					"dialTimeout": "5432ms", "keyPrefix": "pre:fix",
					"tls": options{"ca": authority.CertFile, "cert": own.CertFile, "key": own.KeyFile, "serverName": "store.test"},
				},
			},
			[]string{"limit 7 in 2h0m0s", "scope common", "header X-Customer", "headers legacy", "maxClients 1234", "mode shared",
				"store " + store.Addr(), "db 3", `user "gateway"`, "tls true", "timeout 4.321s", "dialTimeout 5.432s",
				"keyPrefix pre:fix", "onStoreFailure closed"},
		},
		"file": {
			options{
				"limit": 8, "window": "3h", "fallback": options{"limit": 3},
				"valkey": options{
					"endpoints": []string{store.Addr()}, "username": "gateway", "passwordFile": lab.PasswordFile(t, password+"\n"),
					"tls": options{"insecureSkipVerify": true, "cert": own.CertFile, "key": own.KeyFile},
				},
			},
			[]string{"limit 8 in 3h0m0s", "mode shared", "tls true", "onStoreFailure local up to 3"},
		},
		"gateways": {
			options{
				"limit": 12, "window": "7h", "fallback": options{"gateways": 4},
				"valkey": options{
					"endpoints": []string{store.Addr()}, "username": "gateway", "password": password,
					"tls": options{"insecureSkipVerify": true, "cert": own.CertFile, "key": own.KeyFile},
				},
			},
			[]string{"limit 12 in 7h0m0s", "onStoreFailure local shared by 4 gateways"},
		},
		"host": {
			options{"limit": 9, "window": "4h", "mode": "local", "sourceCriterion": options{"requestHost": true}},
			[]string{"limit 9 in 4h0m0s", "by host", "mode local"},
		},
		"depth": {
			options{"limit": 10, "window": "5h", "mode": "local",
				"sourceCriterion": options{"ipStrategy": options{"depth": 2, "ipv6Subnet": 56}}},
			[]string{"limit 10 in 5h0m0s", "depth 2", "/56"},
		},
		"excluded": {
			options{"limit": 11, "window": "6h", "mode": "local",
				"sourceCriterion": options{"ipStrategy": options{"excludedIPs": []string{"10.0.0.0/8"}}}},
			[]string{"limit 11 in 6h0m0s", "10.0.0.0/8"},
		},
	}
	middlewares := map[string]options{}
	missing := optionPaths(reflect.TypeFor[gatequota.Config](), "")
	for name, set := range sets {
		middlewares[name] = set.o
		had := set.o.paths("")
		missing = slices.DeleteFunc(missing, func(path string) bool { return slices.Contains(had, path) })
	}
	if len(missing) > 0 {
		t.Fatalf("options that this test does not set: %q", missing)
	}

	asLabels := func(change func(string) string) map[string]string {
		flat := map[string]options{}
		for name, o := range middlewares {
			flat[name] = o.clone()
			if valkey, ok := flat[name]["valkey"].(options); ok {
				valkey["endpoints"] = store.Addr()
			}
		}
		flat["excluded"] = flat["excluded"].with("sourceCriterion.ipStrategy.excludedIPs", "10.0.0.0/8")
		all := map[string]string{}
		for label, value := range labelled(flat) {
			all[change(label)] = value
		}
		return all
	}
	asTOML := func() string {
		var text strings.Builder
		if err := toml.NewEncoder(&text).Encode(each(app, middlewares).tree()); err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	noRouters := setup{app: app, routers: map[string]router{"none": {rule: "Path(`/none`)"}}}
	same := func(label string) string { return label }
	for provider, start := range map[string]func() *lab.Traefik{
		"YAML": func() *lab.Traefik { return lab.NewTraefik(t, lab.TraefikOptions{}, each(app, middlewares).yaml(t)) },
		"TOML": func() *lab.Traefik { return lab.NewTraefik(t, lab.TraefikOptions{TOML: true}, asTOML()) },
		"labels": func() *lab.Traefik {
			return lab.NewTraefik(t, lab.TraefikOptions{Docker: lab.Labels(t, app.URLs[0], asLabels(same))}, noRouters.yaml(t))
		},
		"labels in lower case": func() *lab.Traefik {
			return lab.NewTraefik(t, lab.TraefikOptions{Docker: lab.Labels(t, app.URLs[0], asLabels(strings.ToLower))}, noRouters.yaml(t))
		},
	} {
		t.Run(provider, func(t *testing.T) {
			tr := start()
			for name, set := range sets {
				lines := tr.LogLines("gatequota: middleware " + name + "@")
				if len(lines) != 1 {
					t.Errorf("the settings of %s are logged %d times", name, len(lines))
					continue
				}
				for _, want := range set.says {
					if !strings.Contains(lines[0], want) {
						t.Errorf("%s: the settings lack %q:\n%s", name, want, lines[0])
					}
				}
			}
			if strings.Contains(tr.Log(), password) {
				t.Error("the password is in the log")
			}

			// What the log does not tell: the password and the certificates, since the
			// store lets nobody in without them, and the name of the decision header.
			a := client.Get(lab.Request{URL: tr.URL + "/all", Header: map[string]string{"X-Customer": provider}})
			if a.Status != http.StatusOK || a.Header.Get("X-Way") != "shared" || a.Header.Get("RateLimit") != "" {
				t.Errorf("all: status %d, %v\n%s", a.Status, a.Header, strings.Join(pluginLines(tr, 0), "\n"))
			}
			if a := client.Get(lab.Request{URL: tr.URL + "/file"}); a.Header.Get("X-RateLimit-Decision") != "shared" {
				t.Errorf("file: status %d, %v", a.Status, a.Header)
			}
		})
	}

	// Kubernetes delivers what JSON knows: numbers and truth values.
	t.Run("JSON", func(t *testing.T) {
		plugin, err := host.Load(lab.Root(), io.Discard, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		for name, set := range sets {
			text, err := json.Marshal(set.o)
			if err != nil {
				t.Fatal(err)
			}
			var o map[string]any
			if err := json.Unmarshal(text, &o); err != nil {
				t.Fatal(err)
			}
			h, err := plugin.New(context.Background(), http.NotFoundHandler(), name+"@kubernetescrd", o)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("X-Customer", "json")
			h.ServeHTTP(w, r)
			want := fmt.Sprint(set.o["limit"])
			if got := w.Header().Get("X-RateLimit-Limit"); got != want {
				t.Errorf("%s: limit %q, want %s", name, got, want)
			}
		}
	})
}

// A slip in an option's name or level is refused by name, whoever provides it.
func TestUnknownOptionsAreRefusedAtEveryLevel(t *testing.T) {
	t.Parallel()
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	base := shared("127.0.0.1:6379", 5, window)
	byAddress := base.with("sourceCriterion.requestHeaderName", nil)
	cases := map[string]struct {
		o    options
		says string
	}{
		"slip":            {base.with("limitt", 5), "limitt"},
		"slip-criterion":  {base.with("sourceCriterion.requestHeader", "X"), "sourceCriterion.requestHeader"},
		"slip-ip":         {byAddress.with("sourceCriterion.ipStrategy.dept", 1), "sourceCriterion.ipStrategy.dept"},
		"slip-valkey":     {base.with("valkey.adress", "x"), "valkey.adress"},
		"slip-tls":        {base.with("valkey.tls.certt", "x"), "valkey.tls.certt"},
		"too-high":        {base.with("timeout", "1s"), "timeout"},
		"too-high-header": {base.with("requestHeaderName", "X"), "requestHeaderName"},
		"too-high-depth":  {byAddress.with("sourceCriterion.depth", 1), "sourceCriterion.depth"},
		"too-high-ca":     {base.with("valkey.ca", "x"), "valkey.ca"},
		"too-low":         {base.with("valkey.limit", 5), "valkey.limit"},
		"too-low-window":  {base.with("window", nil, "valkey.window", "1m"), "valkey.window"},
		"all-too-low":     {options{"options": base}, "options"},
		"redis":           {base.with("redis.endpoints", "x"), "redis"},
		"no-limit":        {base.with("limit", nil), "option limit is missing"},
		"no-window":       {base.with("window", nil), "option window is missing"},
		"no-endpoint":     {base.with("valkey.endpoints", nil), "option valkey.endpoints is missing"},
		"nothing":         {options{}, "option limit is missing"},
	}
	middlewares, labels := map[string]options{}, map[string]options{}
	for name, c := range cases {
		middlewares[name] = c.o
		if name != "nothing" { // no label, no middleware
			o := c.o.clone()
			if v, ok := o["valkey"].(options); ok && v["endpoints"] != nil {
				o = o.with("valkey.endpoints", "127.0.0.1:6379")
			}
			labels[name] = o
		}
	}
	delete(labels, "all-too-low")
	tr := lab.NewTraefik(t, lab.TraefikOptions{Docker: lab.Labels(t, app.URLs[0], labelled(labels))}, each(app, middlewares).yaml(t))
	for name, c := range cases {
		for _, provider := range []string{"file", "docker"} {
			if _, ok := labels[name]; provider == "docker" && !ok {
				continue
			}
			if got := tr.RouterError(name + "@" + provider); !strings.Contains(strings.ToLower(got), strings.ToLower(c.says)) {
				t.Errorf("%s@%s: %q, want it to name %q", name, provider, got, c.says)
			}
		}
		mustBe(t, name, lab.Answers{client.Get(lab.Request{URL: tr.URL + "/" + name})}, http.StatusNotFound)
	}
	mustNotPanic(t, tr)
}

// A list is the same list in every form that providers know.
func TestListsArriveInEveryForm(t *testing.T) {
	t.Parallel()
	app, client := lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	base := local(2, window).with("sourceCriterion.requestHeaderName", nil)
	form := func(list any) options { return base.with("sourceCriterion.ipStrategy.excludedIPs", list) }
	inFile := map[string]options{
		"block":     form([]string{"10.0.0.0/8", "192.168.0.0/16"}),
		"inline":    form(plain("[10.0.0.0/8, 192.168.0.0/16]")),
		"scalar":    form("10.0.0.0/8,192.168.0.0/16"),
		"blanks":    form(" 10.0.0.0/8 , 192.168.0.0/16 "),
		"host-bits": form([]string{"10.9.8.7/8", "192.168.3.4/16"}),
		"addresses": form([]string{"10.1.1.1", "192.168.3.4"}),
		"empty":     form([]string{}),
		"nothing":   form(""),
		"typo":      form([]string{"10.0.0.0/8", "10.0.0.0/33"}),
		"word":      form("proxy"),
		"hole":      form("10.0.0.0/8,,192.168.0.0/16"),
	}
	inLabels := labelled(map[string]options{
		"l-list":  form("10.0.0.0/8,192.168.0.0/16"),
		"l-blank": form("10.0.0.0/8, 192.168.0.0/16"),
		"l-typo":  form("10.0.0.0/8, 10.0.0.0/33"),
		"l-empty": form(""),
		"l-index": base,
	})
	for i, network := range []string{"10.0.0.0/8", "192.168.0.0/16"} {
		inLabels[fmt.Sprintf("traefik.http.middlewares.l-index.plugin.%s.sourceCriterion.ipStrategy.excludedIPs[%d]", lab.PluginName, i)] = network
	}
	// The flow sequence is written as it stands.
	text := strings.ReplaceAll(each(app, inFile).yaml(t), "'[10.0.0.0/8, 192.168.0.0/16]'", "[10.0.0.0/8, 192.168.0.0/16]")
	tr := lab.NewTraefik(t, lab.TraefikOptions{
		Args:   []string{"--entrypoints.web.forwardedheaders.insecure=true"},
		Docker: lab.Labels(t, app.URLs[0], inLabels),
	}, text)

	from := func(path, client string) lab.Request {
		return lab.Request{URL: tr.URL + "/" + path, Header: map[string]string{"X-Forwarded-For": client + ", 10.1.1.1, 192.168.3.4"}}
	}
	for _, path := range []string{"block", "inline", "scalar", "blanks", "host-bits", "addresses", "l-list", "l-blank", "l-index"} {
		answers := client.Sequence([]lab.Request{
			from(path, "203.0.113.1"), from(path, "203.0.113.1"), from(path, "203.0.113.1"), from(path, "203.0.113.2"),
		})
		for i, want := range []int{200, 200, 429, 200} {
			if answers[i].Status != want {
				t.Errorf("%s: request %d got %d, want %d", path, i+1, answers[i].Status, want)
			}
		}
	}
	for path, says := range map[string]string{"typo@file": "10.0.0.0/33", "l-typo@docker": "10.0.0.0/33", "word@file": "proxy", "hole@file": `""`} {
		if got := tr.RouterError(path); !strings.Contains(got, "excludedIPs") || !strings.Contains(got, says) {
			t.Errorf("%s: %q", path, got)
		}
	}
	// Nobody is excluded: the peer counts, whatever it says.
	for path, provider := range map[string]string{"empty": "file", "nothing": "file", "l-empty": "docker"} {
		answers := client.Sequence([]lab.Request{from(path, "203.0.113.1"), from(path, "203.0.113.2"), from(path, "203.0.113.3")})
		if got := answers.Tally(); got != "200: 2, 429: 1" {
			t.Errorf("%s: %s; %s", path, got, tr.RouterError(path+"@"+provider))
		}
	}
}
