package real_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// No spelling of a path leads past a rule, to a more generous one or to an exemption,
// whatever the entry point lets through.
func TestNoSpellingOfAPathLeadsPastARule(t *testing.T) {
	t.Parallel()
	store := lab.Valkey(t, lab.StoreOptions{})
	// It takes each path as it comes, and redirects nobody to another.
	var hits atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	t.Cleanup(server.Close)
	app := &lab.App{URLs: []string{server.URL}}
	window, id := lab.QuietWindow(time.Now())
	const login, top, api, exempt, denied = "login", "top", "api", "exempt", "denied"
	limits := map[string]int{login: 3000, top: 10_000, api: 50_000}
	base := shared(store.Addr(), limits[top], window).with(
		"sourceCriterion", nil,
		"exempt.paths", []string{"/public/*", "/robots.txt"},
		"rules[0].name", login, "rules[0].path", "/login", "rules[0].limit", limits[login],
		"rules[1].name", api, "rules[1].pathPrefix", "/api", "rules[1].limit", limits[api],
	)
	tight := base.with("rules[0].limit", 3, "scope", "tight", "exempt", nil)
	s := only(app, base)
	s.middlewares["tight"] = tight
	s.routers["tight"] = router{rule: "Host(`tight.test`)", middlewares: []string{"tight"}}

	doors := map[string]string{} // by what the entry point does with paths
	var args []string
	for name, settings := range map[string][]string{
		"sanitized": nil, // the default
		"raw":       {"sanitizepath=false"},
		"strict": {
			"encodedcharacters.allowencodedslash=false", "encodedcharacters.allowencodedbackslash=false", "encodedcharacters.allowencodedpercent=false",
			"encodedcharacters.allowencodednullcharacter=false", "encodedcharacters.allowencodedsemicolon=false",
		},
		"lenient": {
			"sanitizepath=false",
			"encodedcharacters.allowencodedslash=true", "encodedcharacters.allowencodedbackslash=true", "encodedcharacters.allowencodedpercent=true",
			"encodedcharacters.allowencodednullcharacter=true", "encodedcharacters.allowencodedsemicolon=true",
		},
	} {
		doors[name] = net.JoinHostPort("127.0.0.1", strconv.Itoa(lab.FreePort(t)))
		args = append(args, "--entrypoints."+name+".address="+doors[name])
		for _, setting := range settings {
			args = append(args, "--entrypoints."+name+".http."+setting)
		}
	}
	tr := lab.NewTraefik(t, lab.TraefikOptions{Args: args}, s.yaml(t))

	counted := map[string]int{}
	paths := []struct {
		path                   string
		sanitized, raw, strict string // under which rule it is; lenient is as raw
	}{
		{"/login", login, login, login},
		{"/login?next=/api/x", login, login, login},
		{"/login/", login + "+" + top, login + "+" + top, login + "+" + top},
		{"//login", login, login + "+" + top, login},
		{"///login//", login + "+" + top, login + "+" + top, login + "+" + top},
		{"/./login", login, login + "+" + top, login},
		{"/login/.", login, login + "+" + top, login},
		{"/x/../login", login, login + "+" + top, login},
		{"/../login", login, login + "+" + top, login},
		{"/%6Cogin", login, login, login},
		{"/%6cogi%6E", login, login, login},
		{"/%2e/login", login, login + "+" + top, login},
		{"/x/%2e%2E/login", login, login + "+" + top, login},
		{"/public/../login", login, login + "+" + top, login},
		{"/public/%2e%2e/login", login, login + "+" + top, login},
		{"/robots.txt/../login", login, login + "+" + top, login},
		{"/api/../login", login, login + "+" + api, login},
		{"/api/..//%6cogin/", login + "+" + top, login + "+" + api, login + "+" + top},
		// In one form this is the login, in the other it is what has more: it is both.
		{"/login/../api/x", api, api + "+" + top, api},

		{"/", top, top, top},
		{"/logins", top, top, top},
		{"/login/x", top, top, top},
		{"/x/login", top, top, top},
		{"/robots.txt/x", top, top, top},
		{"/public", top, top, top},
		{"/apix", top, top, top},
		// What some applications take for the same is that too, but for the case of letters.
		{"/LOGIN", top, top, top},
		{"/login;x=1", top + "+" + login, top + "+" + login, top + "+" + login},
		{"/login%20", top, top, top},
		{"/login%00", top, top, denied},
		{"/login%3B", top + "+" + login, top + "+" + login, denied},
		{"/login%2F", top + "+" + login, top + "+" + login, denied},
		{"/%2Flogin", top + "+" + login, top + "+" + login, denied},
		{"/login%5C", top + "+" + login, top + "+" + login, denied},
		{"/%256Cogin", top, top, denied},

		{"/api", api, api, api},
		{"/api/x", api, api, api},
		{"/%61pi/x", api, api, api},
		// An encoded slash is part of a segment, and a slash to others.
		{"/api/..%2Flogin", api + "+" + login, api + "+" + login, denied},
		{"/api/", api, api, api},
		{"/api//x", api, api, api},
		{"/api/%2e/x", api, api, api},
		// More than others have only those whose path is under the rule in all forms.
		{"//api/x", api, api + "+" + top, api},
		{"/x/../api/x", api, api + "+" + top, api},

		{"/robots.txt", exempt, exempt, exempt},
		{"/robots%2Etxt", exempt, exempt, exempt}, // Traefik decodes it
		{"/robots.txt?x=//", exempt, exempt, exempt},
		{"/public/a", exempt, exempt, exempt},
		{"/public/%61", exempt, exempt, exempt},
		{"//public/a", exempt, top, exempt},
		{"/public//a", exempt, top, exempt},
		{"/public/./a", exempt, top, exempt},
		{"/public/b/../a", exempt, top, exempt},
		{"/x/../public/a", exempt, top, exempt},
		{"/public/", top, top, top},
		{"/public/a/", top, top, top},
		{"/ROBOTS.TXT", top, top, top},
		{"/robots.txt;x", top, top, top},
		{"/public/..%2Flogin", top + "+" + login, top + "+" + login, denied},
		{"/public/..%2flogin", top + "+" + login, top + "+" + login, denied},
		{"/public/..;/login", top + "+" + login, top + "+" + login, top + "+" + login},
		{"/public/..%3B/login", top + "+" + login, top + "+" + login, denied},
		{"/public/..%5Clogin", top + "+" + login, top + "+" + login, denied},
		{"/public/%252e%252e/login", top, top, denied},
		{"/public/a%2Fb", top, top, denied},
		{"/public/a%20b", top, top, top},
		{"/public/a%00", top, top, denied},
		{"http://test/public/../login", login, login + "+" + top, login},
		{"http://test//login", login, login + "+" + top, login},
		{"http://test/public/a", exempt, exempt, exempt},
	}
	policies := map[string]string{login: "quota@file:login", top: "quota@file", api: "quota@file:api"}
	for door, address := range doors {
		send := func(path, host string) lab.Answer {
			return peer{address, "127.0.0.1"}.send(t, false, "GET "+path+" HTTP/1.1", "Host: "+host)
		}
		for _, p := range paths {
			want := map[string]string{"sanitized": p.sanitized, "raw": p.raw, "strict": p.strict, "lenient": p.raw}[door]
			before := hits.Load()
			a := send(p.path, "test")
			switch want {
			case denied:
				if a.Status != http.StatusBadRequest || hits.Load() != before {
					t.Errorf("%s, %s: status %d, want %d", door, p.path, a.Status, http.StatusBadRequest)
				}
				// It may have been counted before.
				if got := a.Header.Get("X-RateLimit-Limit"); got != "" {
					t.Errorf("%s, %s: refused behind the limit %s", door, p.path, got)
				}
				continue
			case exempt:
				if got := a.Header.Get("X-RateLimit-Limit"); a.Status != http.StatusOK || got != "" {
					t.Errorf("%s, %s: status %d, limit %q, want an exemption", door, p.path, a.Status, got)
				}
				continue
			}
			var told []string
			least := limits[api]
			for _, rule := range strings.Split(want, "+") {
				counted[rule]++
				told = append(told, fmt.Sprintf(`"%s";q=%d;w=%d`, policies[rule], limits[rule], int(window/time.Second)))
				if left := limits[rule] - counted[rule]; left < least {
					least = left
				}
			}
			if got := a.Header.Get("RateLimit-Policy"); a.Status != http.StatusOK || got != strings.Join(told, ", ") {
				t.Errorf("%s, %s: status %d, policy %s, want %s", door, p.path, a.Status, got, strings.Join(told, ", "))
			}
			if left := a.Number("X-RateLimit-Remaining"); left != least {
				t.Errorf("%s, %s: %d left, want %d", door, p.path, left, least)
			}
		}
	}
	const address = "\x00address:9:127.0.0.1"
	for rule, key := range map[string]string{
		login: severalKey("quota@file", login, address, id), api: severalKey("quota@file", api, address, id), top: keyOf("quota@file", address, id),
	} {
		if got := store.Do("GET", key); got != strconv.Itoa(counted[rule]) {
			t.Errorf("the store has counted %v requests under %s, want %d", got, key, counted[rule])
		}
	}

	// However it is spelt, and over whatever entry point it comes, somebody gets at the
	// login as often as the rule says.
	allowed, refused := 0, 0
	for _, p := range paths {
		for door, address := range doors {
			if (door == "raw" && strings.Contains(p.raw, login) || door == "sanitized" && strings.Contains(p.sanitized, login)) && !strings.HasPrefix(p.path, "http:") {
				switch a := (peer{address, "127.0.0.1"}).send(t, false, "GET "+p.path+" HTTP/1.1", "Host: tight.test"); a.Status {
				case http.StatusOK:
					allowed++
				case http.StatusTooManyRequests:
					refused++
				default:
					t.Errorf("%s: status %d", p.path, a.Status)
				}
			}
		}
	}
	if allowed != 3 || refused < 20 {
		t.Errorf("%d spellings of the login were let in and %d refused, want 3; %s", allowed, refused, tr.RouterError("tight@file"))
	}
	mustNotPanic(t, tr)
}
