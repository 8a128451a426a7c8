package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// report is what was found.
type report struct {
	plan     plan
	counters []counter
	results  []*result // of each kind of traffic
	measures []measure
	gateway  []memory  // by measure
	store    []*stored // by measure; nil: not measured
	valkey   string    // its version
}

// What was published of this estimate: "How we built rate limiting capable of scaling to
// millions of domains", Cloudflare, 2017.
var published = []string{
	"400 million requests of 270,000 sources",
	"0.003 % of the requests wrongly allowed or refused",
	"6 % between the real and the estimated rate, on average",
	"none refused that was below the limit, 3 sources allowed that were above, by less than 15 %",
}

// publishedAt is where.
const publishedAt = "https://blog.cloudflare.com/counting-things-a-lot-of-different-things/"

// document is a text that grows line by line.
type document struct{ strings.Builder }

func (d *document) line(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

// table adds a table, the first columns of which are text.
func (d *document) table(text int, head []string, rows [][]string) {
	d.line("| %s |", strings.Join(head, " | "))
	rule := "|"
	for i := range head {
		if i < text {
			rule += "---|"
		} else {
			rule += "---:|"
		}
	}
	d.line("%s", rule)
	for _, row := range rows {
		d.line("| %s |", strings.Join(row, " | "))
	}
}

// share writes a share of requests, in percent, or that there are none.
func share(part, of int64) string {
	if of == 0 {
		return "no such"
	}
	if part == 0 {
		return "0"
	}
	p := percent(part, of)
	if p < 0.01 {
		return fmt.Sprintf("%.4f %%", p)
	}
	return fmt.Sprintf("%.2f %%", p)
}

// ofThese writes a share, and behind it that of a part of it.
func ofThese(part, far, of int64) string {
	if part == 0 {
		return "0"
	}
	return share(part, of) + " (" + share(far, of) + ")"
}

// thousands writes a number with commas between groups of three digits.
func thousands(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// broken returns how many decisions were not as an algorithm's own rule says.
func (r *report) broken() int64 {
	sum := int64(0)
	for _, f := range total(r.results).figures[everyone] {
		sum += f.Broken
	}
	return sum
}

// verdict is what makes the command fail.
func (r *report) verdict() error {
	if n := r.broken(); n > 0 {
		return fmt.Errorf("%d decisions are not as the algorithm's own rule says", n)
	}
	return nil
}

// parts are what the page shows, by the name of their place in it. Where the store was not
// measured its part is missing.
func (r *report) parts() map[string]string {
	parts := map[string]string{
		"traffic":  r.trafficPart(),
		"shares":   r.sharesPart(),
		"estimate": r.estimatePart(),
	}
	if r.store != nil {
		parts["cost"] = r.costPart()
	}
	return parts
}

func (r *report) trafficPart() string {
	d := &document{}
	for _, line := range r.plan.lines() {
		d.line("- %s", line)
	}
	sum := total(r.results)
	f, n, w := sum.figures[everyone][0], sum.figures[near][0], sum.figures[within][0]
	d.line("- In all %s requests of %s sources; near are %s sources with %s requests, within the limit %s sources with %s requests.",
		thousands(f.Requests), thousands(f.Sources), thousands(n.Sources), thousands(n.Requests), thousands(w.Sources), thousands(w.Requests))
	return d.String()
}

func (r *report) sharesPart() string {
	d := &document{}
	var rows [][]string
	for _, x := range append(r.results, total(r.results)) {
		title := x.traffic
		for i, c := range r.counters {
			f, n, w := &x.figures[everyone][i], &x.figures[near][i], &x.figures[within][i]
			rows = append(rows, []string{title, c.name,
				share(f.WronglyAllowed, f.Requests), share(f.WronglyRefused, f.Requests),
				ofThese(n.WronglyAllowed, n.FarAllowed, n.Requests), ofThese(n.WronglyRefused, n.FarRefused, n.Requests),
				share(w.Requests-w.Admitted, w.Requests), fmt.Sprintf("+%d", max(0, f.Most-c.limit.Limit))})
			title = ""
		}
	}
	d.table(2, []string{"traffic", "algorithm", "wrongly allowed", "wrongly refused", "near: allowed", "near: refused",
		"within the limit: refused", "worst overshoot"}, rows)
	d.line("")
	d.line("Decisions that differ from an algorithm's own rule, recomputed from what it had admitted (for the bucket: burst +")
	d.line("rate * t in any interval): %d of %s.", r.broken(), thousands(int64(len(r.counters))*total(r.results).figures[everyone][0].Requests))
	return d.String()
}

// at returns which of the counters has this name.
func (r *report) at(name string) int {
	return slices.IndexFunc(r.counters, func(c counter) bool { return c.name == name })
}

func (r *report) estimatePart() string {
	d := &document{}
	i := r.at("sliding-window")
	var rows [][]string
	for _, x := range append(r.results, total(r.results)) {
		f, n := &x.figures[everyone][i], &x.figures[near][i]
		log := &x.figures[everyone][r.at("sliding-log")]
		rows = append(rows, []string{x.traffic, thousands(f.Requests), thousands(f.Sources), share(log.Requests-log.Admitted, log.Requests),
			share(f.WronglyAllowed+f.WronglyRefused, f.Requests), apart(f), apart(n)})
	}
	rows = append(rows, []string{"Cloudflare's, 2017", "400 million", "270,000", "?", "0.003 %", "6 %", "?"})
	d.table(1, []string{"traffic", "requests", "sources", "refused by an exact log", "wrong decisions", "estimate off by, on average", "the same, near"}, rows)
	return d.String()
}

// apart writes the mean difference between the estimate and the count of the log.
func apart(f *figures) string {
	if f.Compared == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f %%", float64(f.Apart)/float64(f.Compared)/10_000)
}

func (r *report) costPart() string {
	d := &document{}
	d.line("%s.", r.valkey)
	d.line("")
	var memories, works [][]string
	bytes := func(x float64) string { return thousands(int64(x + 0.5)) }
	for i, m := range r.measures {
		g, s := r.gateway[i], r.store[i]
		memories = append(memories, []string{m.name, bytes(g.one), bytes(g.full), bytes(s.memory.one), bytes(s.memory.full)})
		title := m.name
		for _, of := range []struct {
			name string
			work work
		}{{"first of a client", s.first}, {"admitted", s.next}, {"refused", s.refused}} {
			works = append(works, []string{title, of.name, of.work.names(), fmt.Sprintf("%.1f", of.work.total()), fmt.Sprintf("%.1f", of.work.mean)})
			title = ""
		}
	}
	d.table(1, []string{"bytes of a client", "gateway, one request", "gateway, limit used up", "store, one request", "store, limit used up"}, memories)
	d.line("")
	d.table(3, []string{"algorithm", "call", "commands of its script", "in all", "µs of the store"}, works)
	return d.String()
}

// print writes all of it for people who look at a terminal.
func (r *report) print(out io.Writer) {
	parts := r.parts()
	for _, name := range places {
		if parts[name] != "" {
			fmt.Fprintf(out, "\n%s", parts[name])
		}
	}
	fmt.Fprintf(out, "\nPublished by Cloudflare in 2017, %s:\n", publishedAt)
	for _, line := range published {
		fmt.Fprintf(out, "- %s\n", line)
	}
	fmt.Fprintln(out)
}

// places are those of the page that are written by this command, in their order.
var places = []string{"traffic", "shares", "estimate", "cost"}

// fill returns the page with these parts in their places.
func fill(page string, parts map[string]string) (string, error) {
	for _, name := range places {
		begins := fmt.Sprintf("<!-- Written by `make accuracy`: %s -->\n", name)
		const ends = "<!-- End -->\n"
		before, rest, begun := strings.Cut(page, begins)
		_, after, ended := strings.Cut(rest, ends)
		if !begun || !ended {
			return "", fmt.Errorf("the page has no place for %q", name)
		}
		page = before + begins + "\n" + parts[name] + "\n" + ends + after
	}
	return page, nil
}
