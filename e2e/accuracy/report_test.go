package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/gatequota/gatequota/e2e/lab"
	"github.com/gatequota/gatequota/window"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(lab.Root(), "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The page shows the plan that the command replays, and its number of requests.
func TestPageIsOfThisPlan(t *testing.T) {
	page := read(t, "algorithms.md")
	for _, line := range full.lines() {
		if !strings.Contains(page, "\n- "+line+"\n") {
			t.Errorf("the page does not say: %s", line)
		}
	}
	if _, err := fill(page, map[string]string{}); err != nil {
		t.Error(err)
	}
	requests, sources := 0, 0
	var times []int64
	for kind := range traffics {
		k := &traffics[kind]
		for source := range full.count(k) {
			times = k.times(&full, rand.New(rand.NewPCG(full.seed, uint64(kind)<<32|uint64(source))), times[:0])
			requests += len(times)
			sources++
		}
	}
	if want := "\n- In all " + thousands(int64(requests)) + " requests of " + thousands(int64(sources)) + " sources;"; requests < 20_000_000 || !strings.Contains(page, want) {
		t.Errorf("the page does not say: %s", want)
	}
	for _, c := range counters(&full) {
		if !strings.Contains(page, "| "+c.name+" |") {
			t.Errorf("the page has no figures of %s", c.name)
		}
	}
	for _, picture := range []string{"algorithms-edge.svg", "algorithms-wrong.svg"} {
		if !strings.Contains(page, "]("+picture+")") {
			t.Errorf("the page does not show %s", picture)
		}
	}
}

// What each algorithm admits around an edge, and the picture of it.
func TestBurstAtEdge(t *testing.T) {
	found := burstAtEdge(counters(&edgePlan)[:4])
	if edgeSVG(found) != read(t, "algorithms-edge.svg") {
		t.Error("docs/algorithms-edge.svg is not what is drawn now: make accuracy")
	}
	limit := edgePlan.limit
	for i, want := range []struct{ secondLeast, secondMost, windowLeast, windowMost int64 }{
		{2 * limit, 2 * limit, 2 * limit, 2 * limit},
		// What the window before leaves free: a tenth of the limit a second.
		{limit, limit + limit/10, limit, 2 * limit},
		{limit, limit, limit, limit},
		{limit, limit + limit/10, limit, 2 * limit},
	} {
		a := found[i]
		if a.second < want.secondLeast || a.second > want.secondMost || a.window < want.windowLeast || a.window > want.windowMost {
			t.Errorf("%s: %d in a second, %d in a window", a.name, a.second, a.window)
		}
		for at, n := range a.bars {
			if n < 0 || n > edgeStep/edgeGap {
				t.Errorf("%s: %d in step %d", a.name, n, at)
			}
		}
	}
}

// fakeReport has everything that a report can have.
func fakeReport(t *testing.T) *report {
	r := &report{plan: small, counters: counters(&small), results: replayAll(t, &small, counters(&small), 2), valkey: "Valkey 0", measures: measured(&small)}
	for range r.measures {
		w := work{mean: 1.5, commands: map[string]float64{"get": 2, "incrby": 0.5}}
		r.gateway = append(r.gateway, memory{100.4, 2000})
		r.store = append(r.store, &stored{w, w, w, memory{128, 4096}})
	}
	return r
}

func TestWriting(t *testing.T) {
	r := fakeReport(t)
	dir := t.TempDir()
	if err := r.write(dir, io.Discard); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a page: %v", err)
	}
	path := filepath.Join(dir, "algorithms.md")
	if err := os.WriteFile(path, []byte("# A page without places\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.write(dir, io.Discard); err == nil {
		t.Error("a page without places was written")
	}
	text := "before\n"
	for _, name := range places {
		text += "<!-- Written by `make accuracy`: " + name + " -->\nold\n<!-- End -->\nbehind " + name + "\n"
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time over what the first has written
		if err := r.write(dir, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"before\n", "behind cost\n", "2 `GET`, 0.5 `INCRBY` | 2.5 | 1.5 |", "| 100 | 2,000 | 128 | 4,096 |", "| Cloudflare's, 2017 | 400 million |",
		"| all four | fixed-window |", "Limit 20 in 10 s", ": 0 of "} {
		if strings.Count(string(page), want) < 1 {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
	if strings.Contains(string(page), "old\n") || strings.Count(string(page), "| Cloudflare's, 2017 |") != 1 {
		t.Errorf("not replaced:\n%s", page)
	}
	for _, name := range []string{"algorithms-edge.svg", "algorithms-wrong.svg"} {
		picture, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := xml.Unmarshal(picture, new(struct{})); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	var out bytes.Buffer
	r.print(&out)
	for _, name := range places {
		if !strings.Contains(out.String(), r.parts()[name]) {
			t.Errorf("%s is not printed", name)
		}
	}
	if !strings.Contains(out.String(), "0.003 %") {
		t.Error("what was published is not printed")
	}
}

// A decision against an algorithm's own rule does not go unsaid.
func TestBrokenIsCounted(t *testing.T) {
	r := fakeReport(t)
	if err := r.verdict(); err != nil {
		t.Error(err)
	}
	r.results[1].figures[everyone][2].Broken = 3
	if r.broken() != 3 || r.verdict() == nil || !strings.Contains(r.sharesPart(), ": 3 of ") {
		t.Errorf("%d are counted", r.broken())
	}
}

func TestNumbers(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
	for _, c := range []struct {
		part, of int64
		want     string
	}{{0, 5, "0"}, {1, 4, "25.00 %"}, {1, 10_000, "0.01 %"}, {3, 100_000, "0.0030 %"}, {0, 0, "no such"}} {
		if got := share(c.part, c.of); got != c.want {
			t.Errorf("%d of %d: %s", c.part, c.of, got)
		}
	}
}

func TestReadWork(t *testing.T) {
	const info = "# Commandstats\r\ncmdstat_evalsha:calls=4,usec=50,usec_per_call=12.50,rejected_calls=0,failed_calls=0\r\n" +
		"cmdstat_get:calls=8,usec=4,usec_per_call=0.50,rejected_calls=0,failed_calls=0\r\n" +
		"cmdstat_incrby:calls=2,usec=4,usec_per_call=2.00,rejected_calls=0,failed_calls=0\r\n" +
		"cmdstat_config|resetstat:calls=1,usec=40,usec_per_call=40.00,rejected_calls=0,failed_calls=0\r\n"
	w, err := readWork(info, 4)
	if err != nil || w.mean != 12.5 || w.names() != "2 `GET`, 0.5 `INCRBY`" || w.total() != 2.5 {
		t.Errorf("%+v, %v", w, err)
	}
	if m := median([]work{{mean: 3}, {mean: 1}, {mean: 2}}); m.mean != 2 {
		t.Errorf("the median is %v", m.mean)
	}
	if _, err := readWork(info, 5); err == nil {
		t.Error("a call that was not made is not missed")
	}
	if _, err := readWork("# Commandstats\r\n", 5); err == nil {
		t.Error("no script is not missed")
	}
}

// The calls that are measured are calls that count: each limit admits as many as it should.
func TestCallsCount(t *testing.T) {
	server := miniredis.RunT(t)
	store := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = store.Close() })
	ctx := context.Background()
	for _, m := range measured(&plan{limit: 5, window: 60})[:4] {
		limit := m.limit
		limit.Length = quiet(time.Now().Unix())
		number := int64(0)
		try := func(client string, n int64) bool {
			t.Helper()
			number++
			c := callFor(&limit, client, n, time.Now().UnixMilli(), number)
			answer, err := scripts[limit.Algorithm].Run(ctx, store, c.keys, c.args...).Result()
			if err != nil {
				t.Fatalf("%s: %v", m.name, err)
			}
			return leftOf(&limit, asText(answer), n) >= n
		}
		for i := range 8 {
			if got := try("one by one", 1); got != (i < 5) {
				t.Errorf("%s: request %d: admitted %v", m.name, i+1, got)
			}
		}
		if !try("merged", 4) || !try("merged", 1) || try("merged", 1) {
			t.Errorf("%s: merged requests", m.name)
		}
	}
	if leftOf(&window.Limit{Algorithm: window.Sliding}, "1 x 2", 1) != -1 || leftOf(&window.Limit{}, "1 2", 1) != -1 {
		t.Error("what is no answer leaves something")
	}
}

func asText(answer any) string {
	if n, ok := answer.(int64); ok {
		return strconv.FormatInt(n, 10)
	}
	return answer.(string)
}

func TestQuiet(t *testing.T) {
	for _, unix := range []int64{0, 1, 1_700_000_000, 30 * 24 * 3600, 30*24*3600 - 1} {
		if length := quiet(unix + 7200*1000); (unix+7200*1000)%length < 3600 || length-(unix+7200*1000)%length < 3600 {
			t.Errorf("at %d a window of %d s has an edge", unix, length)
		}
	}
}

// More clients take more memory, and none less than their names.
func TestMemoryGrows(t *testing.T) {
	for _, m := range measured(&plan{limit: 20, window: 60})[:4] {
		m.clients = 2000
		got := inGateway(&m)
		if got.one < 16 || got.full < got.one/2 {
			t.Errorf("%s: %+v", m.name, got)
		}
		if m.limit.Algorithm == window.Exact && got.full < got.one+19*8 {
			t.Errorf("%s: %+v", m.name, got)
		}
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"-sources", "0"}, {"-tail", "0"}, {"-workers", "0"}, {"-nothing"}, {"more"}} {
		if got := command(context.Background(), args, io.Discard, io.Discard); got != 2 {
			t.Errorf("%v: status %d", args, got)
		}
	}
	if got := command(context.Background(), []string{"-help"}, io.Discard, io.Discard); got != 0 {
		t.Errorf("-help: status %d", got)
	}
	var out bytes.Buffer
	if got := command(context.Background(), []string{"-replay", "-sources", "1", "-tail", "100"}, &out, io.Discard); got != 0 || !strings.Contains(out.String(), "| all four |") {
		t.Errorf("-replay: status %d:\n%s", got, out.String())
	}
}
