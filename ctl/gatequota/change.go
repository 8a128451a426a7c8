package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gatequota/gatequota/control"
	"github.com/gatequota/gatequota/ctl/scope"
	"github.com/gatequota/gatequota/window"
)

// A plan is a change to be made.
type plan struct {
	scope   *scope.Scope
	clients []scope.Client // that it is for; none: all
	edit    func(st *scope.State, version int64) ([]scope.Edit, error)
	// check says in which way a gateway does not do what the change says, though it obeys
	// it: nil where a report does not tell.
	check func(r *scope.Report) string
	// already says what is so where nothing is to be changed; empty: that it is so.
	already string
}

// A changeView is what became of a change.
type changeView struct {
	Scope   string         `json:"scope"`
	Version int64          `json:"version"` // to be obeyed
	Changes []scope.Entry  `json:"changes"` // none: it was so already
	Clients []scope.Client `json:"clients,omitempty"`
	// Obeyed says that all gateways report that version, after Waited seconds.
	Obeyed   bool          `json:"obeyed"`
	Waited   float64       `json:"waited"`
	Gateways []gatewayView `json:"gateways"`
	Reset    *resetView    `json:"reset,omitempty"`

	state   *scope.State
	already string
}

// make makes a change and waits until the gateways obey it. Its second error says which of
// them do not.
func (a *app) make(ctx context.Context, p *plan) (view *changeView, err, disobeyed error) {
	version, entries, err := p.scope.Change(ctx, a.by, p.edit)
	if errors.Is(err, scope.ErrUnknown) {
		return nil, fmt.Errorf("%w: gatequota log --scope %s tells", err, p.scope.Name), nil
	}
	if err != nil {
		return nil, err, nil
	}
	began := time.Now()
	st, err := p.scope.Await(ctx, version, a.patience)
	if st == nil || err != nil {
		return nil, exit(exitPartly, "the change is made (version %d), and whether it is obeyed cannot be read: %w", version, err), nil
	}
	view = &changeView{Scope: p.scope.Name, Version: version, Changes: entries, Clients: p.clients, Obeyed: st.Obeyed(version),
		Waited: time.Since(began).Seconds(), Gateways: viewGateways(st, version), state: st, already: p.already}
	if view.Changes == nil {
		view.Changes = []scope.Entry{}
	}
	if disobeyed = a.disobedience(st, version, p.check); disobeyed != nil {
		view.Obeyed = false
	}
	return view, nil, disobeyed
}

// disobedience says which gateways do not do what a version says.
func (a *app) disobedience(st *scope.State, version int64, check func(r *scope.Report) string) error {
	var texts []string
	for i, name := range gatewayNames(st.Gateways) {
		switch r := st.Gateways[i].Report; {
		case r == nil:
			texts = append(texts, name+" reports nothing: control is not true there, or it just ended")
		case r.Version < version:
			texts = append(texts, fmt.Sprintf("%s obeys version %d, %s ago", name, r.Version, span(st.Now/1000-r.At)))
		case check != nil && check(r) != "":
			texts = append(texts, name+" "+check(r)+": its log says why")
		}
	}
	if texts == nil {
		return nil
	}
	return exit(exitPartly, "the change is made (version %d), and not all gateways obey it after %s: %s", version, a.patience, strings.Join(texts, "; "))
}

// apply makes a change and prints what became of it.
func (a *app) apply(ctx context.Context, p *plan) error {
	view, err, disobeyed := a.make(ctx, p)
	if err != nil {
		return err
	}
	if a.json {
		err = a.printJSON(view)
	} else {
		a.printChange(view)
	}
	return errors.Join(err, disobeyed)
}

func (a *app) printChange(v *changeView) {
	now := v.state.Now / 1000
	if len(v.Changes) == 0 {
		already := v.already
		if already == "" {
			already = "that is so already"
		}
		fmt.Fprintf(a.out, "scope %s: %s (version %d)\n", v.Scope, already, v.Version)
	} else {
		fmt.Fprintf(a.out, "scope %s, version %d\n", v.Scope, v.Version)
	}
	var rows [][]string
	for _, e := range v.Changes {
		rows = append(rows, []string{a.entryTitle(&e, v.Clients), entryValue(e.What, e.Old, now), "->", entryValue(e.What, e.New, now)})
	}
	if rows != nil {
		grid(a.out, "  ", "llll", rows)
	}
	if v.Obeyed {
		fmt.Fprintf(a.out, "obeyed by %s after %.1fs: %s\n", plural(len(v.Gateways), "gateway"), v.Waited, strings.Join(gatewayNames(v.state.Gateways), ", "))
	}
}

// entryTitle says what an entry is about, and who the client is, if it is known.
func (a *app) entryTitle(e *scope.Entry, clients []scope.Client) string {
	title := plain(e.What)
	if e.Client == "" {
		return title
	}
	title += " " + brief(plain(e.Client))
	for _, c := range clients {
		if c.Hash == e.Client && c.By != "hash" {
			title += " (" + plain(c.By) + ")"
		}
	}
	return title
}

// entryValue returns the value of a field for people, at a time in unix seconds.
func entryValue(what, value string, now int64) string {
	if value == "" {
		return "-"
	}
	first, rest, _ := strings.Cut(value, " ")
	at, err := strconv.ParseInt(first, 10, 64)
	switch {
	case what == "block" && err == nil:
		return "until " + clock(at, now)
	case what == "allow" && err == nil:
		return "limit " + plain(rest) + " until " + clock(at, now)
	case what == "epoch":
		return plain(first)
	}
	return plain(value)
}

// begin returns a plan for a scope whose gateways obey.
func (a *app) begin(ctx context.Context) (*plan, *scope.State, error) {
	s, st, err := a.read(ctx)
	if err != nil {
		return nil, nil, err
	}
	if st.Reporting() == 0 {
		if len(st.Gateways) == 0 {
			return nil, nil, exit(exitFailed, "nobody would obey a change of scope %s: no gateway announces it; scopes that gateways announce: %s", s.Name, a.announced(ctx))
		}
		return nil, nil, exit(exitFailed, "nobody would obey a change of scope %s (%s announced and none obeying): set control: true in the middleware", s.Name, plural(len(st.Gateways), "gateway"))
	}
	return &plan{scope: s}, st, nil
}

// forClient begins a plan for one client.
func (a *app) forClient(ctx context.Context, args []string) (*plan, *scope.State, error) {
	p, st, err := a.begin(ctx)
	if err != nil {
		return nil, nil, err
	}
	p.clients, err = a.clients(st, args)
	return p, st, err
}

// until reads --for.
func until(text string) (int64, error) {
	if text == "" {
		return 0, usage("--for is missing: say for how long, such as --for 1h")
	}
	seconds := control.Seconds(text)
	if last := text[len(text)-1]; '0' <= last && last <= '9' { // of a window these are seconds, and here hardly what is meant
		seconds = 0
	}
	if seconds == 0 {
		return 0, usage("--for %q: a time with a unit from 1s to 366d is wanted, such as 30m, 1h or 7d", text)
	}
	return seconds, nil
}

func (a *app) allowCommand() *cobra.Command {
	var limits []string
	var duration string
	cmd := &cobra.Command{
		Use: "allow VALUE --limit N --for TIME", GroupID: "client", Short: "Give one client another limit for a while",
		Long: `Give one client another limit for a while. --limit N is for the limits of the top level and
of the rules that share their counts, --limit COUNT=N for the limit of that name. What was
counted stays counted: to let in at once who has used up a limit, raise it above that, or
reset the client besides.`,
		Example: `  gatequota allow "$API_KEY" --limit 1000 --for 1h
  gatequota allow "$API_KEY" --limit login=50 --for 30m`,
	}
	cmd.Flags().StringArrayVarP(&limits, "limit", "l", nil, "the limit, as `N` or COUNT=N; may be given several times")
	cmd.Flags().StringVar(&duration, "for", "", "for how long, such as 1h (at most 366d)")
	a.hashFlag(cmd)
	a.byFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := a.oneClient(cmd, args); err != nil {
			return err
		}
		seconds, err := until(duration)
		if err != nil {
			return err
		}
		bare, named, err := readLimits(limits)
		if err != nil {
			return err
		}
		p, st, err := a.forClient(cmd.Context(), args)
		if err != nil {
			return err
		}
		if err := knownCounts(st, p.clients, bare, named); err != nil {
			return err
		}
		p.edit = func(st *scope.State, _ int64) ([]scope.Edit, error) {
			var edits []scope.Edit
			for _, c := range p.clients {
				if words := allowance(&c, bare, named); words != "" {
					edits = append(edits, scope.Edit{Field: "allow:" + c.Hash, Value: strconv.FormatInt(st.Now/1000+seconds, 10) + words})
				}
			}
			return edits, nil
		}
		return a.apply(cmd.Context(), p)
	}
	return cmd
}

// readLimits reads what --limit says: a limit, and limits by count.
func readLimits(texts []string) (bare int64, named map[string]int64, err error) {
	if len(texts) == 0 {
		return 0, nil, usage("--limit is missing: say how many requests, such as --limit 1000")
	}
	named = map[string]int64{}
	for _, text := range texts {
		count, number, hasName := strings.Cut(text, "=")
		if !hasName {
			count, number = "", text
		}
		n, err := readLimit("--limit", number)
		if err != nil {
			return 0, nil, err
		}
		switch {
		case hasName && count == "":
			return 0, nil, usage("--limit %q: the name of a count is wanted before =", text)
		case hasName && named[count] > 0 || !hasName && bare > 0:
			return 0, nil, usage("--limit %q: it is given twice", text)
		case hasName:
			named[count] = n
		default:
			bare = n
		}
	}
	return bare, named, nil
}

func readLimit(option, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > window.MaxCount || strconv.FormatInt(n, 10) != text {
		return 0, usage("%s %q: a whole number from 1 to %d is wanted", option, text, int64(window.MaxCount))
	}
	return n, nil
}

// allowance returns the limits that are meant for a client, each behind a blank.
func allowance(c *scope.Client, bare int64, named map[string]int64) string {
	words := ""
	if bare > 0 && c.Top {
		words = " " + strconv.FormatInt(bare, 10)
	}
	seen := map[string]bool{}
	for _, count := range c.Counts {
		if n := named[count.Name]; n > 0 && !seen[count.Name] {
			seen[count.Name] = true
			words += " " + count.Name + "=" + strconv.FormatInt(n, 10)
		}
	}
	return words
}

// knownCounts refuses limits for counts that the clients do not have.
func knownCounts(st *scope.State, clients []scope.Client, bare int64, named map[string]int64) error {
	var names []string
	top := false
	for _, c := range clients {
		top = top || c.Top
		for _, count := range c.Counts {
			if count.Name != "" && !slices.Contains(names, count.Name) {
				names = append(names, count.Name)
			}
			n := named[count.Name]
			if n == 0 && c.Top && slices.Contains(st.TopCounts(), count.Name) {
				n = bare
			}
			if n > 0 {
				count.Limit = n
				if err := countable(&count); err != nil {
					return err
				}
			}
		}
	}
	for name := range named {
		if !slices.Contains(names, name) {
			return usage("--limit %s=%d: the client is under no limit of that name; there are: %s", name, named[name], list(names))
		}
	}
	if bare > 0 && !top {
		return usage("--limit %d: this client is told apart by a rule alone, whose limits have names: give --limit COUNT=N; there are: %s", bare, list(names))
	}
	return nil
}

// list names counts.
func list(names []string) string {
	if len(names) == 0 {
		return "none with a name"
	}
	return strings.Join(names, ", ")
}

// maxLog is the highest limit of a log that gateways can be made to accept.
const maxLog = 1000000

// countable refuses a limit that gateways would refuse, since they cannot count it.
func countable(c *scope.Count) error {
	most := int64(window.MaxCount)
	switch c.Algorithm {
	case "sliding-window", "token-bucket":
		most = min(most, window.MaxExact/(c.Window*1000))
	case "sliding-log":
		most = maxLog
	}
	if c.Limit > most {
		return usage("a limit of %d cannot be counted by %s in windows of %s: at most %d can", c.Limit, c.Algorithm, windowText(c.Window), most)
	}
	return nil
}

func (a *app) blockCommand() *cobra.Command {
	var duration string
	cmd := &cobra.Command{
		Use: "block VALUE --for TIME", GroupID: "client", Short: "Refuse all requests of one client for a while",
		Example: `  gatequota block 203.0.113.7 --for 1h
  gatequota block --hash 481c55a1b2c3... --for 1d`,
	}
	cmd.Flags().StringVar(&duration, "for", "", "for how long, such as 1h (at most 366d)")
	a.hashFlag(cmd)
	a.byFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := a.oneClient(cmd, args); err != nil {
			return err
		}
		seconds, err := until(duration)
		if err != nil {
			return err
		}
		p, _, err := a.forClient(cmd.Context(), args)
		if err != nil {
			return err
		}
		p.edit = func(st *scope.State, _ int64) ([]scope.Edit, error) {
			var edits []scope.Edit
			for _, c := range p.clients {
				edits = append(edits, scope.Edit{Field: "block:" + c.Hash, Value: strconv.FormatInt(st.Now/1000+seconds, 10)})
			}
			return edits, nil
		}
		return a.apply(cmd.Context(), p)
	}
	return cmd
}

func (a *app) clearCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "clear VALUE", GroupID: "client", Short: "End what allow and block have set for one client",
		Example: `  gatequota clear "$API_KEY"`,
	}
	a.hashFlag(cmd)
	a.byFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := a.oneClient(cmd, args); err != nil {
			return err
		}
		p, _, err := a.forClient(cmd.Context(), args)
		if err != nil {
			return err
		}
		p.already = "nothing is set for this client"
		p.edit = func(*scope.State, int64) ([]scope.Edit, error) {
			var edits []scope.Edit
			for _, c := range p.clients {
				edits = append(edits, scope.Edit{Field: "allow:" + c.Hash}, scope.Edit{Field: "block:" + c.Hash})
			}
			return edits, nil
		}
		return a.apply(cmd.Context(), p)
	}
	return cmd
}

// forAll makes a change that is for all clients of a scope, after it asked.
func (a *app) forAll(ctx context.Context, question string, prepare func(p *plan, st *scope.State) error) error {
	p, st, err := a.begin(ctx)
	if err != nil {
		return err
	}
	if err := prepare(p, st); err != nil {
		return err
	}
	if err := a.confirm(fmt.Sprintf(question, fmt.Sprintf("for all clients of scope %s, on %s", p.scope.Name, plural(len(st.Gateways), "gateway")))); err != nil {
		return err
	}
	return a.apply(ctx, p)
}

// set returns an edit of one field.
func set(field, value string) func(*scope.State, int64) ([]scope.Edit, error) {
	return func(*scope.State, int64) ([]scope.Edit, error) {
		return []scope.Edit{{Field: field, Value: value}}, nil
	}
}

func (a *app) offCommand() *cobra.Command {
	return a.switchCommand("off", "Let everything pass without a limit, at once",
		"Switch the limiter off %s? Everything passes then.", false)
}

func (a *app) onCommand() *cobra.Command {
	return a.switchCommand("on", "Limit again after off", "Switch the limiter on %s?", true)
}

func (a *app) switchCommand(name, short, question string, enabled bool) *cobra.Command {
	cmd := &cobra.Command{Use: name, GroupID: "all", Short: short, Args: cobra.NoArgs, Example: "  gatequota " + name + " --scope apikey"}
	a.yesFlag(cmd)
	a.byFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.forAll(cmd.Context(), question, func(p *plan, st *scope.State) error {
			p.edit = set("enabled", strconv.FormatBool(enabled))
			if _, was := st.Fields["enabled"]; !was && enabled {
				p.edit = set("enabled", "") // nobody ever switched it off
			}
			p.check = func(r *scope.Report) string {
				if r.Enabled != enabled {
					return "reports that it is " + map[bool]string{true: "on", false: "off"}[r.Enabled]
				}
				return ""
			}
			return nil
		})
	}
	return cmd
}

func (a *app) dryRunCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "dry-run on|off|default", GroupID: "all", Short: "Only report who would be refused, or refuse again",
		Long: `With on, requests are counted and reported and none is refused, whatever the options of the
middlewares say; with off they are refused, whatever these say; default goes by them again.`,
		Example: "  gatequota dry-run on", ValidArgs: []string{"on", "off", "default"},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] != "on" && args[0] != "off" && args[0] != "default" {
				return usage("dry-run: say on, off or default")
			}
			return nil
		},
	}
	a.yesFlag(cmd)
	a.byFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		value := map[string]string{"on": "true", "off": "false"}[args[0]]
		question := map[string]string{"on": "Refuse nobody any more, and report only, %s?", "off": "Refuse, whatever the option dryRun says, %s?", "default": "Go by the option dryRun %s?"}[args[0]]
		return a.forAll(cmd.Context(), question, func(p *plan, _ *scope.State) error {
			p.edit = set("dryRun", value)
			if value == "" {
				return nil
			}
			p.check = func(r *scope.Report) string {
				for _, m := range r.Middlewares {
					for _, rule := range m.Rules {
						if rule.DryRun != (value == "true") {
							return "reports dry run " + map[bool]string{true: "on", false: "off"}[rule.DryRun] + " for " + m.Name
						}
					}
				}
				return ""
			}
			return nil
		})
	}
	return cmd
}

func (a *app) limitCommand() *cobra.Command {
	var name, length string
	cmd := &cobra.Command{
		Use: "limit N|default", GroupID: "all", Short: "Change a limit for all clients, or go back to that of the options",
		Long: `Change a limit, and with --window the length of its window, until it is changed again; limit
default goes back to what the options say. Another window begins new counts.`,
		Example: `  gatequota limit 200
  gatequota limit 20 --count login --window 5m
  gatequota limit default --count login`,
		ValidArgs: []string{"default"},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("limit: say one limit, such as 200, or default")
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&name, "count", "c", "", "the count whose limit it is (default: that without a name)")
	cmd.Flags().StringVarP(&length, "window", "w", "", "the length of its window, such as 60s or 1h")
	a.yesFlag(cmd)
	a.byFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		limit, seconds := int64(0), int64(0)
		if args[0] != "default" {
			n, err := readLimit("limit", args[0])
			if err != nil {
				return err
			}
			limit = n
		}
		if length != "" {
			if seconds = control.Seconds(length); seconds == 0 || limit == 0 {
				return usage("--window %q: a time in whole seconds from 1s to 366d is wanted, and a limit with it", length)
			}
		}
		question := fmt.Sprintf("Set the limit of %s to %s %%s?", countName(name), args[0])
		return a.forAll(cmd.Context(), question, func(p *plan, st *scope.State) error {
			if err := limitFits(st, name, limit, seconds); err != nil {
				return err
			}
			suffix := ""
			if name != "" {
				suffix = ":" + name
			}
			p.edit = func(*scope.State, int64) ([]scope.Edit, error) {
				if limit == 0 {
					return []scope.Edit{{Field: "limit" + suffix}, {Field: "window" + suffix}}, nil
				}
				edits := []scope.Edit{{Field: "limit" + suffix, Value: args[0]}}
				if seconds > 0 {
					edits = append(edits, scope.Edit{Field: "window" + suffix, Value: windowText(seconds)})
				}
				return edits, nil
			}
			p.check = func(r *scope.Report) string { return limitDiffers(r, name, limit, seconds) }
			return nil
		})
	}
	_ = cmd.RegisterFlagCompletionFunc("count", a.completeCounts)
	return cmd
}

// limitFits refuses a limit for a count that no gateway has, or that cannot be counted.
func limitFits(st *scope.State, name string, limit, seconds int64) error {
	var names []string
	found := false
	for _, c := range st.Counts() {
		if !slices.Contains(names, c.Name) && c.Name != "" {
			names = append(names, c.Name)
		}
		if c.Name != name {
			continue
		}
		found = true
		if c.Limit = limit; seconds > 0 {
			c.Window = seconds
		}
		if err := countable(&c); err != nil {
			return err
		}
	}
	switch {
	case found || limit == 0:
		return nil
	case name == "":
		return usage("no limit is without a name in this scope: name one with --count: %s", list(names))
	}
	return usage("--count %q: there is no such count; there are: %s", name, list(names))
}

// limitDiffers says which limit a gateway has in place of the one that was set.
func limitDiffers(r *scope.Report, name string, limit, seconds int64) string {
	for _, m := range r.Middlewares {
		for _, rule := range m.Rules {
			for _, c := range rule.Counts {
				if c.Name == name && (limit > 0 && c.Limit != limit || seconds > 0 && c.Window != seconds) {
					return fmt.Sprintf("still has the limit %d in %s", c.Limit, windowText(c.Window))
				}
			}
		}
	}
	return ""
}

// completeCounts completes the name of a count.
func (a *app) completeCounts(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	if a.prepare(cmd) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
	defer cancel()
	_, st, err := a.read(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, c := range st.Counts() {
		if c.Name != "" && !slices.Contains(names, c.Name) {
			names = append(names, c.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
