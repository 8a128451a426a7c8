package browser_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/browser"
	"github.com/gatequota/gatequota/e2e/lab"
)

// key is a client of the application.
const key = "tulip-and-hyacinth"

func keyed(s *site, path, key string, n int) []lab.Request {
	requests := make([]lab.Request, n)
	for i := range requests {
		requests[i] = lab.Keyed(s.traefik.URL+path, key)
	}
	return requests
}

// total returns how many requests of the scope api the page says became one thing.
func total(page *browser.Page, label, rule string) int {
	var n int
	page.Eval(fmt.Sprintf(`(() => {
		const scope = [...document.querySelectorAll('#scopes section')].find((s) => s.querySelector('h2').innerText.includes('api'));
		const row = scope && [...scope.querySelectorAll('tr')].find((r) => {
			const code = r.querySelector('code[data-is=label]'), rule = r.querySelector('[data-is=rule]');
			return code && code.textContent === %q && rule.textContent === %q;
		});
		return row ? Number(row.querySelector('[data-is=total]').textContent.replaceAll(',', '')) : 0;
	})()`, label, rule), &n)
	return n
}

// clean fails where something went wrong in a page, or it asked for anything but itself.
func clean(t *testing.T, page *browser.Page, address string) {
	t.Helper()
	events := page.Events()
	for _, problem := range events.Errors {
		t.Errorf("in the page: %s", problem)
	}
	for i, request := range events.Requests {
		if request.Method != http.MethodGet || request.URL != address && i > 0 {
			t.Errorf("the page asks for %s %s", request.Method, request.URL)
		}
	}
	if len(events.Requests) < 2 {
		t.Errorf("the page asks for %v", events.Requests)
	}
}

// wellSet fails where the page can be scrolled sideways, or a text is cut off or lies
// over another.
func wellSet(t *testing.T, page *browser.Page, what string) {
	t.Helper()
	var problems []string
	page.Eval(`(async () => {
		// What follows the size of the page is drawn in the next frame.
		for (let i = 0; i < 2; i++) await new Promise((drawn) => requestAnimationFrame(drawn));
		const found = [], width = document.documentElement.clientWidth;
		if (document.documentElement.scrollWidth > width) found.push('the page is ' + document.documentElement.scrollWidth + ' wide in ' + width);
		const texts = [];
		const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
		while (walk.nextNode()) {
			const node = walk.currentNode, element = node.parentElement;
			if (!node.textContent.trim() || element.closest('template, script, style, .unseen, noscript') || !element.checkVisibility()) continue;
			const range = document.createRange();
			range.selectNodeContents(node);
			for (const r of range.getClientRects()) {
				if (r.width < 1) continue;
				if (r.left < -0.5 || r.right > width + 0.5) found.push('cut off: ' + node.textContent);
				for (const [other, o] of texts) {
					const across = Math.min(r.right, o.right) - Math.max(r.left, o.left), down = Math.min(r.bottom, o.bottom) - Math.max(r.top, o.top);
					if (other !== node && across > 1 && down > 4) found.push(other.textContent + ' lies over ' + node.textContent);
				}
				texts.push([node, r]);
			}
		}
		if (texts.length < 20) found.push('only ' + texts.length + ' texts');
		return found;
	})()`, &problems)
	for _, problem := range problems {
		t.Errorf("%s: %s", what, problem)
	}
}

// eventually waits until the page shows something.
func eventually(t *testing.T, page *browser.Page, what, expression string) {
	t.Helper()
	lab.Until(t, what, func() bool {
		var holds bool
		page.Eval("Boolean("+expression+")", &holds)
		return holds
	})
}

func headline(t *testing.T, page *browser.Page, want string) {
	t.Helper()
	lab.Until(t, "the page says: "+want, func() bool { return page.Text("#headline") == want })
}

func TestStatusPage(t *testing.T) {
	site := newSite(t)
	chromium := browser.Start(t)
	client := lab.NewClient(t)
	address := site.traefik.URL + plainPath
	if got := client.Burst(4, keyed(site, "/", key, limit)).Tally(); got != "200: 60" {
		t.Fatalf("the first requests got %s", got)
	}

	page := chromium.Open(address, browser.Look{})
	headline(t, page, "All is well")
	if policy := page.Header["content-security-policy"]; page.Status != http.StatusOK || !strings.Contains(policy, "default-src 'none'") {
		t.Errorf("the page is answered %d, with the policy %q", page.Status, policy)
	}

	// What is in force, who is near to it, and what became of requests.
	eventually(t, page, "all requests are told of", `[...document.querySelectorAll('[data-is=total]')].some((e) => e.textContent === '60')`)
	text := page.Text("main")
	digest := sha256.Sum256([]byte(key))
	prefix := hex.EncodeToString(digest[:])[:12]
	for _, want := range []string{site.store.Addr() + " answers", "20 a minute", "api@file, rule search", "fixed window", "without the store: local", "without the store: open", prefix, "60 of 60"} {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), want) {
			t.Errorf("the page does not say %q:\n%s", want, text)
		}
	}
	var markup string
	page.Eval("document.documentElement.outerHTML", &markup)
	if strings.Contains(markup, key) || strings.Contains(markup, hex.EncodeToString(digest[:])) {
		t.Error("the page tells who the client is")
	}

	// It moves by itself.
	load := client.Steady(t, 2, 20*time.Millisecond, func(n int) lab.Request {
		return lab.Keyed(site.traefik.URL+"/search/"+strconv.Itoa(n), key)
	})
	eventually(t, page, "the chart shows what passes", `document.querySelector('#chart .passed').getBBox().height > 2`)
	eventually(t, page, "the chart shows what is held back", `document.querySelector('#chart .held').getBBox().height > 2 && Number(document.getElementById('held').textContent) > 1`)
	var before, after string
	page.Eval("document.querySelector('#chart .held').getAttribute('d')", &before)
	lab.Until(t, "the chart moves", func() bool {
		page.Eval("document.querySelector('#chart .held').getAttribute('d')", &after)
		return after != before
	})
	answers := load.Stop()
	lab.Until(t, "the totals are those of the clients", func() bool {
		refused := total(page, "refused memory", "rule search") + total(page, "refused shared", "rule search")
		return total(page, "allowed shared", "rule search") == answers.Count(http.StatusOK) && refused == answers.Count(http.StatusTooManyRequests)
	})

	// It fits a phone and a tablet, by day and by night.
	for _, width := range []int{320, 768, 1200} {
		page.Resize(width, 900)
		wellSet(t, page, fmt.Sprintf("%d wide", width))
	}
	var day, night []string
	colours := `['body', 'header', 'small'].map((s) => getComputedStyle(document.querySelector(s))).flatMap((s) => [s.backgroundColor, s.color])`
	page.Eval(colours, &day)
	page.Prefer(true)
	page.Eval(colours, &night)
	for i := range day {
		if day[i] == night[i] && day[i] != "rgba(0, 0, 0, 0)" {
			t.Errorf("the night has %v, the day %v", night, day)
		}
	}

	// The policy forbids what is not the page's own.
	clean(t, page, address)
	var ran bool
	page.Eval(`(() => {
		const script = document.createElement('script');
		script.textContent = 'window.foreign = true';
		document.body.append(script);
		return Boolean(window.foreign);
	})()`, &ran)
	lab.Until(t, "the policy forbids a script", func() bool { return len(page.Events().Errors) > 0 })
	if ran {
		t.Error("a script that is not the page's own runs")
	}
}

func TestStatusPageTellsOfTrouble(t *testing.T) {
	site := newSite(t)
	chromium := browser.Start(t)
	client := lab.NewClient(t)
	address := site.traefik.URL + plainPath
	page := chromium.Open(address, browser.Look{Width: 320, Height: 800})
	headline(t, page, "All is well")
	load := client.Steady(t, 1, 50*time.Millisecond, func(n int) lab.Request { return lab.Keyed(site.traefik.URL+"/", strconv.Itoa(n%7)) })

	site.store.Stop()
	headline(t, page, "The store is away")
	eventually(t, page, "the page says what happens meanwhile",
		`document.getElementById('notes').innerText.includes('requests of api (rule search) pass uncounted; those of api (the rest), foreign@file, secret@file are counted in the memory of each gateway')`)
	if level := page.Text("[data-state=away]"); !strings.HasPrefix(level, "away since ") {
		t.Errorf("the store's state is %q", level)
	}
	lab.Until(t, "the page tells of requests that pass meanwhile", func() bool { return total(page, "allowed local", "") > 0 })
	eventually(t, page, "the chart shows the outage", `document.querySelector('#chart .away-ground')`)
	wellSet(t, page, "away")

	site.store.Start()
	headline(t, page, "All is well")
	eventually(t, page, "the page says when it came back",
		`[...document.querySelectorAll('.changes li')].some((li) => /back\s*after/.test(li.innerText)) && document.getElementById('notes').innerText.includes('It came back at ')`)

	// A store can answer and yet count nothing.
	site.store.Do("ACL", "SETUSER", "default", "resetkeys", "~none:*")
	headline(t, page, "Some requests miss the store")
	wellSet(t, page, "without rights")
	site.store.Do("ACL", "SETUSER", "default", "allkeys")
	headline(t, page, "All is well")
	load.Stop()

	site.store.Do("HSET", "rate:api:control", "version", 1, "dryRun", "true")
	headline(t, page, "api is in a dry run")
	site.store.Do("HSET", "rate:api:control", "version", 2, "enabled", "false")
	headline(t, page, "api is switched off")
	wellSet(t, page, "switched off")
	site.store.Do("HSET", "rate:api:control", "version", 3, "enabled", "true", "dryRun", "false")
	headline(t, page, "All is well")
	clean(t, page, address)

	site.withoutStatus(t)
	headline(t, page, "Not the gateway's status")
	site.traefik.Kill()
	headline(t, page, "No answer from the gateway")
	if notes := page.Text("#notes"); !strings.Contains(notes, "What stands below is from ") {
		t.Errorf("the page says %q", notes)
	}
	wellSet(t, page, "without the gateway")
}

// status reads the status as JSON.
func status(client *http.Client, address string, header http.Header) (int, map[string]any) {
	req, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		return 0, nil
	}
	req.Header = header.Clone()
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil
	}
	defer func() { _ = resp.Body.Close() }()
	var answer map[string]any
	_ = json.NewDecoder(resp.Body).Decode(&answer)
	return resp.StatusCode, answer
}

// Who may not see the page gets the application, whatever they claim to be.
func TestStatusPageIsForThoseWhoMaySeeIt(t *testing.T) {
	site := newSite(t)
	chromium := browser.Start(t)
	for _, header := range []map[string]string{
		nil, {"X-Forwarded-For": "127.0.0.2", "X-Real-Ip": "127.0.0.2", "Forwarded": "for=127.0.0.2"},
	} {
		for _, path := range []string{foreignPath, foreignPath + "?format=json"} {
			page := chromium.Open(site.traefik.URL+path, browser.Look{Header: header})
			if text := strings.TrimSpace(page.Text("body")); page.Status != http.StatusOK || text != "ok" || page.Header["x-instance-id"] == "" {
				t.Errorf("from an address that is not allowed, with %v: %d, %q", header, page.Status, text)
			}
			page.Close()
		}
	}
	from := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext}
	t.Cleanup(from.CloseIdleConnections)
	if code, answer := status(&http.Client{Transport: from}, site.traefik.URL+foreignPath, http.Header{}); code != http.StatusOK || answer["gateway"] == nil {
		t.Errorf("from the address that is allowed: %d, %v", code, answer)
	}

	for _, query := range []string{"", "?token=", "?token=wrong", "?token=" + url.QueryEscape(token+"="), "?format=json&token=wrong"} {
		page := chromium.Open(site.traefik.URL+secretPath+query, browser.Look{})
		if text := strings.TrimSpace(page.Text("body")); text != "ok" || page.Header["x-instance-id"] == "" {
			t.Errorf("with %q: %d, %q", query, page.Status, text)
		}
		page.Close()
	}

	address := site.traefik.URL + secretPath
	page := chromium.Open(address+"?token="+url.QueryEscape(token), browser.Look{})
	headline(t, page, "All is well")
	eventually(t, page, "it is asked for again", `performance.getEntriesByType('resource').length >= 2`)
	var bar string
	page.Eval("location.href", &bar)
	if bar != address {
		t.Errorf("the address bar has %s", bar)
	}
	clean(t, page, address)
	for i, request := range page.Events().Requests {
		if i > 0 && request.Authorization != "Bearer "+token {
			t.Errorf("the page asks for %s with %q", request.URL, request.Authorization)
		}
	}
	if code, answer := status(http.DefaultClient, address, http.Header{"Authorization": {"Bearer " + token}}); code != http.StatusOK || answer["gateway"] == nil {
		t.Errorf("with the token: %d, %v", code, answer)
	}
}
