package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gatequota/gatequota/ctl/scope"
)

// A topView is what the command top prints once.
type topView struct {
	Scope   string           `json:"scope"`
	Time    int64            `json:"time"` // unix milliseconds of the store
	Keys    int              `json:"keys"` // that were looked at
	All     bool             `json:"all"`  // there were no more of them
	Clients []scope.Standing `json:"clients"`
	// Largest is there in place of Clients where no gateway reports its limits.
	Largest []scope.KeyValue `json:"largest,omitempty"`

	gateways int
	off, dry bool
	marks    map[string]string // of clients for which something is set
	took     time.Duration
}

func (a *app) topCommand() *cobra.Command {
	once := false
	interval := 2 * time.Second
	lines, most := 20, 200000
	cmd := &cobra.Command{
		Use: "top", GroupID: "see", Args: cobra.NoArgs, Short: "Show the clients that are nearest to their limits, live in a terminal",
		Long: `Show the clients that are nearest to their limits: live in a terminal, until q or Ctrl-C, and
once where the output is none or with --once. The store is asked part by part, and for no more
than half of the time.`,
		Example: `  gatequota top --scope apikey
  gatequota top --once --json`,
	}
	cmd.Flags().BoolVar(&once, "once", false, "print once and end")
	cmd.Flags().DurationVarP(&interval, "interval", "i", interval, "how often to look")
	cmd.Flags().IntVarP(&lines, "lines", "n", lines, "how many clients, where it prints once")
	cmd.Flags().IntVar(&most, "max-keys", most, "how many keys to look at each time")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if interval < 100*time.Millisecond || lines < 1 || most < 1 {
			return usage("--interval is 100ms at least, --lines and --max-keys are 1 at least")
		}
		ctx := cmd.Context()
		s, err := a.openScope(ctx)
		if err != nil {
			return err
		}
		look := func(n int) (*topView, error) { return lookAtTop(ctx, s, n, most) }
		out, isFile := a.out.(*os.File)
		if !once && !a.json && a.outTerminal && isFile && !dumb(a.env("TERM")) {
			screen := &screen{in: a.in, out: out, inTerminal: a.inTerminal, interval: interval, look: look, style: styleOf(a.env)}
			return screen.run(ctx)
		}
		v, err := look(lines)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(v)
		}
		width := 0
		if a.outTerminal && isFile {
			width, _, _ = term.GetSize(int(out.Fd()))
		}
		for _, line := range topLines(v, width, style{}) {
			fmt.Fprintln(a.out, line)
		}
		return nil
	}
	return cmd
}

// lookAtTop finds the nearest clients of s.
func lookAtTop(ctx context.Context, s *scope.Scope, lines, most int) (*topView, error) {
	began := time.Now()
	st, err := s.Read(ctx)
	if err != nil {
		return nil, err
	}
	v := &topView{Scope: s.Name, Time: st.Now, gateways: len(st.Gateways), off: st.Set.Off, dry: st.Set.DryRun == "true", marks: map[string]string{}}
	if st.Reporting() == 0 {
		v.Largest, v.Keys, v.All, err = s.Largest(ctx, lines, most)
	} else {
		var near *scope.Near
		if near, err = s.Nearest(ctx, st, lines, most); near != nil {
			v.Clients, v.Keys, v.All = near.Clients, near.Keys, near.All
		}
	}
	if err != nil {
		return nil, err
	}
	v.Clients = orEmpty(v.Clients)
	for _, c := range st.Set.Clients {
		switch {
		case c.BlockUntil > st.Now/1000:
			v.marks[c.Hash] = "blocked"
		case c.AllowUntil > st.Now/1000:
			v.marks[c.Hash] = "allowed"
		}
	}
	v.took = time.Since(began)
	return v, nil
}

// style is what a terminal can show.
type style struct {
	color, unicode bool
}

// dumb tells whether a terminal cannot place what it is sent.
func dumb(terminal string) bool { return terminal == "" || terminal == "dumb" }

func styleOf(env func(string) string) style {
	s := style{color: env("NO_COLOR") == ""}
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if value := strings.ToLower(env(name)); value != "" {
			s.unicode = strings.Contains(value, "utf-8") || strings.Contains(value, "utf8")
			break
		}
	}
	return s
}

const (
	red    = "31"
	yellow = "33"
	green  = "32"
	strong = "1"
	faint  = "2"
)

func (s style) paint(code, text string) string {
	if !s.color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// bar draws a share as so many cells.
func (s style) bar(share float64, cells int) string {
	full, empty := "#", "."
	if s.unicode {
		full, empty = "█", "░"
	}
	n := min(cells, int(share*float64(cells)+0.5))
	code := green
	switch {
	case share >= 1:
		code = red
	case share >= 0.8:
		code = yellow
	}
	return s.paint(code, strings.Repeat(full, n)) + s.paint(faint, strings.Repeat(empty, cells-n))
}

// short returns a number in at most six characters.
func short(n int64) string {
	if n < 100000 {
		return strconv.FormatInt(n, 10)
	}
	value, unit := float64(n), -1
	for value >= 999.95 && unit < 4 { // what would be rounded up to 1000
		value /= 1000
		unit++
	}
	return strconv.FormatFloat(value, 'f', 1, 64) + "kMGTP"[unit:unit+1]
}

// fit cuts or fills a text to so many characters.
func fit(text string, width int) string {
	n := utf8.RuneCountInString(text)
	if n > width {
		return string([]rune(text)[:max(0, width-1)]) + "~"
	}
	return text + strings.Repeat(" ", width-n)
}

// topLines returns the lines of v: for a terminal of so many columns, or, with 0, as many as
// needed.
func topLines(v *topView, width int, s style) []string {
	title := fmt.Sprintf("scope %s, %s, %s", v.Scope, plural(v.gateways, "gateway"), time.UnixMilli(v.Time).Format(time.TimeOnly))
	if v.off {
		title += ", OFF: everything passes"
	} else if v.dry {
		title += ", dry run: nobody is refused"
	}
	lines := []string{s.paint(strong, cutTo(title, width)), ""}
	if len(v.Clients) == 0 && len(v.Largest) == 0 {
		return append(lines, cutTo("nothing is counted", width))
	}
	if len(v.Largest) > 0 {
		return append(lines, largestLines(v, width)...)
	}
	nameWidth := len("COUNT")
	for i := range v.Clients {
		nameWidth = max(nameWidth, utf8.RuneCountInString(countName(v.Clients[i].Name)))
	}
	// What stands beside the bar: the client, three numbers of 6, a time of 7, the share, the
	// mark, and the blanks between them.
	const fixed = 12 + 2 + 2 + 6 + 1 + 6 + 2 + 6 + 2 + 7 + 2 + 1 + 4 + 1 + 7
	const leastBar = 8
	nameWidth = min(nameWidth, 24)
	cells := 20
	if width > 0 {
		nameWidth = min(nameWidth, max(5, width-fixed-leastBar))
		if cells = width - fixed - nameWidth; cells < leastBar {
			cells = 0
		}
	}
	lines = append(lines, s.paint(strong, cutTo(fit("CLIENT", 12)+"  "+fit("COUNT", nameWidth)+"    USED  LIMIT    LEFT     FREE", width)))
	for i := range v.Clients {
		c := &v.Clients[i]
		free := "now"
		if c.Reset > 0 {
			free = span(c.Reset)
		}
		share := c.Share()
		line := fmt.Sprintf("%s  %s  %6s %6s  %6s  %7s  ", fit(brief(c.Client), 12), fit(plain(countName(c.Name)), nameWidth), short(c.Used), short(c.Limit), short(c.Left), fit7(free))
		tail := fmt.Sprintf(" %4s %s", fmt.Sprintf("%d%%", min(999, int(share*100))), v.marks[c.Client])
		if cells == 0 {
			line = cutTo(strings.TrimRight(line+tail[1:], " "), width)
		} else {
			line += s.bar(share, cells) + strings.TrimRight(tail, " ")
		}
		lines = append(lines, line)
	}
	return lines
}

// fit7 puts a time to the right of 7 characters.
func fit7(text string) string {
	text = strings.ReplaceAll(text, " ", "")
	return strings.Repeat(" ", max(0, 7-len(text))) + text
}

// largestLines returns what is known where no limits are.
func largestLines(v *topView, width int) []string {
	lines := []string{cutTo("no gateway reports its limits: control: true makes it do so", width), "",
		cutTo("CLIENT        COUNT           ALGORITHM            VALUE  GOES", width)}
	for _, k := range v.Largest {
		goes := "never"
		if k.TTL >= 0 {
			goes = "in " + span(k.TTL)
		}
		lines = append(lines, cutTo(fmt.Sprintf("%s  %s  %s  %9s  %s", fit(brief(k.Client), 12), fit(plain(countName(k.Count)), 14), fit(k.Algorithm, 14), short(k.Value), goes), width))
	}
	return lines
}

// cutTo cuts a text to so many characters; 0: to none.
func cutTo(text string, width int) string {
	if width > 0 && utf8.RuneCountInString(text) > width {
		return fit(text, width)
	}
	return text
}

// screen shows the top of a scope in a terminal until it is told to end.
type screen struct {
	in         any // *os.File where somebody sits there
	out        *os.File
	inTerminal bool
	interval   time.Duration
	look       func(lines int) (*topView, error)
	style      style

	last   *topView
	failed error
	drawn  []string
	width  int
	height int
}

const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[2J"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	beginFrame  = "\x1b[?2026h" // drawn at once, by terminals that know it
	endFrame    = "\x1b[?2026l"
)

// run returns when q or Ctrl-C is pressed or ctx ends, with the terminal as it was.
func (s *screen) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if in, ok := s.in.(*os.File); ok && s.inTerminal {
		before, err := term.MakeRaw(int(in.Fd()))
		if err == nil {
			defer func() { _ = term.Restore(int(in.Fd()), before) }()
			go awaitKey(in, cancel)
		}
	}
	fmt.Fprint(s.out, enterScreen)
	defer fmt.Fprint(s.out, leaveScreen)

	type looked struct {
		view *topView
		err  error
	}
	results := make(chan looked)
	go func() {
		for {
			began := time.Now()
			v, err := s.look(200)
			select {
			case results <- looked{v, err}:
			case <-ctx.Done():
				return
			}
			select {
			case <-time.After(max(s.interval-time.Since(began), time.Since(began))):
			case <-ctx.Done():
				return
			}
		}
	}()
	sizes := time.NewTicker(200 * time.Millisecond) // works where no signal tells of another size
	defer sizes.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-results:
			s.failed = r.err
			if r.err == nil {
				s.last = r.view
			}
		case <-sizes.C:
		}
		s.draw()
	}
}

// awaitKey ends a screen at q, Q, Ctrl-C or Ctrl-D, and at the end of the input.
func awaitKey(in *os.File, end func()) {
	buffer := make([]byte, 16)
	for {
		n, err := in.Read(buffer)
		if err != nil || n == 0 || slices.ContainsFunc(buffer[:n], func(b byte) bool { return strings.IndexByte("qQ\x03\x04", b) >= 0 }) {
			end()
			return
		}
	}
}

// draw shows what is known, and sends the terminal only the lines that are new.
func (s *screen) draw() {
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width < 1 || height < 1 {
		width, height = 80, 24
	}
	if width != s.width || height != s.height {
		s.drawn = nil
		s.width, s.height = width, height
	}
	lines := s.frame(width, height)
	text := ""
	if s.drawn == nil {
		text = "\x1b[2J"
	}
	for i, line := range lines {
		if i >= len(s.drawn) || s.drawn[i] != line {
			text += fmt.Sprintf("\x1b[%d;1H%s\x1b[K", i+1, line)
		}
	}
	s.drawn = lines
	if text != "" {
		fmt.Fprint(s.out, beginFrame+text+endFrame)
	}
}

// frame returns as many lines as a terminal has, none of them wider than it.
func (s *screen) frame(width, height int) []string {
	var lines []string
	foot := "q ends"
	if s.last != nil {
		lines = topLines(s.last, width, s.style)
		foot += fmt.Sprintf("; every %s; %d keys in %s", s.interval, s.last.Keys, s.last.took.Round(time.Millisecond))
		if !s.last.All {
			foot += ", and there are more: --max-keys"
		}
	} else if s.failed == nil {
		lines = []string{cutTo("looking...", width)}
	}
	code := faint
	if s.failed != nil {
		foot, code = cutTo("FAILED: "+strings.ReplaceAll(plain(s.failed.Error()), "\n", " "), width), red
	}
	if len(lines) > height-1 {
		lines = lines[:max(0, height-1)]
	}
	for len(lines) < height-1 {
		lines = append(lines, "")
	}
	return append(lines, s.style.paint(code, cutTo(foot, width)))
}
