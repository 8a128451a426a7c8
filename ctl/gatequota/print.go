package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gatequota/gatequota/ctl/scope"
)

// printJSON prints one object on one line.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// grid prints rows in columns; those of numbers stand to the right, as right tells by place.
func grid(w io.Writer, indent string, right string, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		line := indent
		for i, cell := range row {
			if i > 0 {
				line += "  "
			}
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if right[i] == 'r' {
				line += pad + cell
			} else {
				line += cell + pad
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

// plain returns a text that others wrote without what a terminal would obey.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// brief returns the beginning of a digest, as all commands show it.
func brief(hash string) string { return hash[:min(len(hash), 12)] }

// span returns whole seconds for people, with two units at most.
func span(seconds int64) string {
	if seconds < 0 {
		return "-" + span(-seconds)
	}
	units := []struct {
		name string
		size int64
	}{{"d", 86400}, {"h", 3600}, {"m", 60}, {"s", 1}}
	for i, u := range units {
		if seconds < u.size {
			continue
		}
		text := strconv.FormatInt(seconds/u.size, 10) + u.name
		if i+1 < len(units) && seconds%u.size >= units[i+1].size {
			text += " " + strconv.FormatInt(seconds%u.size/units[i+1].size, 10) + units[i+1].name
		}
		return text
	}
	return "0s"
}

// windowText returns the length of a window as an option would have it.
func windowText(seconds int64) string {
	for _, u := range []struct {
		name string
		size int64
	}{{"d", 86400}, {"h", 3600}, {"m", 60}} {
		if seconds%u.size == 0 {
			return strconv.FormatInt(seconds/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(seconds, 10) + "s"
}

// clock returns a point of time, in unix seconds, for people, by the day too unless it is
// that of now.
func clock(at, now int64) string {
	t, n := time.Unix(at, 0), time.Unix(now, 0)
	if t.Format(time.DateOnly) == n.Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}

// bytesText returns a number of bytes for people.
func bytesText(n int64) string {
	value, unit := float64(n), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for value >= 1024 && unit < len(units)-1 {
		value /= 1024
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}

// countName returns the name of a count or a rule, in words where it has none.
func countName(name string) string {
	if name == "" {
		return "(top level)"
	}
	return name
}

// plural returns a number with the word for it.
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + one + "s"
}

// gatewayNames returns what gateways are called: their hosts, with the beginning of their
// identities where that is not enough.
func gatewayNames(gateways []scope.Gateway) []string {
	hosts := map[string]int{}
	for i := range gateways {
		hosts[gateways[i].Host()]++
	}
	var names []string
	for i := range gateways {
		g := &gateways[i]
		name := g.Host()
		if name == "" {
			name = g.ID
		} else if hosts[name] > 1 {
			name += "/" + g.ID[:min(len(g.ID), 6)]
		}
		names = append(names, plain(name))
	}
	return names
}

// A gatewayView is a gateway as it is printed.
type gatewayView struct {
	ID       string `json:"id"`
	Host     string `json:"host"`
	Software string `json:"software"`
	// Announced and Reported say how many seconds ago it did; null: it did not.
	Announced *int64 `json:"announced"`
	Reported  *int64 `json:"reported"`
	Version   *int64 `json:"version"` // that it obeys; null: it does not say
	Obeys     bool   `json:"obeys"`   // the newest version
}

func viewGateways(st *scope.State, version int64) []gatewayView {
	views := []gatewayView{}
	for i := range st.Gateways {
		g := &st.Gateways[i]
		v := gatewayView{ID: g.ID, Obeys: g.Obeys(version)}
		if g.Announced > 0 {
			ago := max(0, st.Now/1000-g.Announced)
			v.Announced = &ago
		}
		if g.Report != nil {
			ago := max(0, st.Now/1000-g.Report.At)
			v.Reported, v.Version, v.Host, v.Software = &ago, &g.Report.Version, g.Report.Host, g.Report.Software
		}
		views = append(views, v)
	}
	return views
}
