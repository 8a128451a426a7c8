// Package browser shows the status page to a real browser: headless Chromium, driven by
// Playwright, which drive.js gives orders to.
package browser

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gatequota/gatequota/e2e/lab"
)

// Browser is one running Chromium. Each of its pages has cookies and caches of its own.
// Its methods may be called concurrently.
type Browser struct {
	t       testing.TB
	mu      sync.Mutex
	orders  io.Writer
	answers *bufio.Reader
}

// Start starts a browser, which is gone when the test ends. The environment variable
// CHROMIUM may name another one than the one on the PATH.
func Start(t testing.TB) *Browser {
	t.Helper()
	dir := filepath.Join(lab.Root(), "e2e", "browser")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "playwright-core")); err != nil {
		t.Fatalf("playwright-core is not there; npm ci in e2e/browser installs it: %v", err)
	}
	chromium := os.Getenv("CHROMIUM")
	if chromium == "" {
		path, err := exec.LookPath("chromium")
		if err != nil {
			t.Fatalf("chromium is not installed; scripts/install-e2e.sh installs it: %v", err)
		}
		chromium = path
	}
	cmd := exec.Command("node", filepath.Join(dir, "drive.js"), chromium)
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	orders, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting node: %v", err)
	}
	t.Cleanup(func() {
		_ = orders.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("ending the browser: %v", err)
		}
	})
	return &Browser{t: t, orders: orders, answers: bufio.NewReader(answers)}
}

// order has something done, and puts what comes of it into result.
func (b *Browser) order(what string, arguments map[string]any, result any) {
	b.t.Helper()
	order := map[string]any{"order": what}
	for name, value := range arguments {
		order[name] = value
	}
	line, err := json.Marshal(order)
	if err != nil {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := fmt.Fprintf(b.orders, "%s\n", line); err != nil {
		b.t.Fatalf("telling the browser to %s: %v", what, err)
	}
	text, err := b.answers.ReadBytes('\n')
	if err != nil {
		b.t.Fatalf("waiting for the browser to %s: %v", what, err)
	}
	var answer struct {
		Result json.RawMessage
		Error  string
	}
	if err := json.Unmarshal(text, &answer); err != nil || answer.Error != "" {
		b.t.Fatalf("the browser failed to %s: %s %v", what, answer.Error, err)
	}
	if result == nil || len(answer.Result) == 0 {
		return
	}
	if err := json.Unmarshal(answer.Result, result); err != nil {
		b.t.Fatalf("the browser answered %s when told to %s: %v", answer.Result, what, err)
	}
}

// Look says how a page is looked at. The zero value is a desk in daylight.
type Look struct {
	Width, Height int               // 1200 by 900 unless given
	Dark          bool              // the scheme that the user prefers
	Header        map[string]string // more fields of each request
	Scale         float64           // pixels of the screen for one of the page; 1 unless given
}

// Page is one page in a browser.
type Page struct {
	Status int               // of the first answer
	Header map[string]string // of the first answer, names in lower case

	b  *Browser
	id string
}

// Open opens an address and waits until what it answers is loaded.
func (b *Browser) Open(url string, look Look) *Page {
	b.t.Helper()
	if look.Width == 0 {
		look.Width, look.Height = 1200, 900
	}
	if look.Scale == 0 {
		look.Scale = 1
	}
	var opened struct {
		ID      string
		Status  int
		Headers map[string]string
	}
	b.order("open", map[string]any{"url": url, "width": look.Width, "height": look.Height, "scale": look.Scale,
		"scheme": scheme(look.Dark), "headers": look.Header}, &opened)
	return &Page{Status: opened.Status, Header: opened.Headers, b: b, id: opened.ID}
}

func scheme(dark bool) string {
	if dark {
		return "dark"
	}
	return "light"
}

// Eval evaluates JavaScript in the page and puts its value, which may be a promise, into
// result.
func (p *Page) Eval(expression string, result any) {
	p.b.t.Helper()
	p.b.order("eval", map[string]any{"id": p.id, "expression": expression}, result)
}

// Text returns the text that the first element of a selector shows, "" if there is none.
func (p *Page) Text(selector string) string {
	p.b.t.Helper()
	var text string
	p.Eval(fmt.Sprintf("(document.querySelector(%q) || { innerText: '' }).innerText", selector), &text)
	return text
}

// Resize gives the page another size.
func (p *Page) Resize(width, height int) {
	p.b.t.Helper()
	p.b.order("resize", map[string]any{"id": p.id, "width": width, "height": height}, nil)
}

// Prefer changes the scheme that the user prefers.
func (p *Page) Prefer(dark bool) {
	p.b.t.Helper()
	p.b.order("scheme", map[string]any{"id": p.id, "scheme": scheme(dark)}, nil)
}

// Events are what has happened in a page since it was opened.
type Events struct {
	Requests []struct{ Method, URL, Authorization string }
	Errors   []string // in its console, uncaught, or against its policy
}

// Events returns what has happened so far.
func (p *Page) Events() Events {
	p.b.t.Helper()
	var events Events
	p.b.order("events", map[string]any{"id": p.id}, &events)
	return events
}

// Screenshot writes a picture of the whole page, as PNG.
func (p *Page) Screenshot(path string) {
	p.b.t.Helper()
	absolute, err := filepath.Abs(path)
	if err != nil {
		p.b.t.Fatal(err)
	}
	p.b.order("screenshot", map[string]any{"id": p.id, "path": absolute}, nil)
}

// Close closes the page.
func (p *Page) Close() {
	p.b.t.Helper()
	p.b.order("close", map[string]any{"id": p.id}, nil)
}
