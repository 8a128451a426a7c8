package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gatequota/gatequota/ctl/scope"
)

// A statusView is what the command status prints.
type statusView struct {
	Store  *scope.Health `json:"store"`
	Scopes []scopeView   `json:"scopes"`
}

// A scopeView is one scope.
type scopeView struct {
	Scope   string `json:"scope"`
	Version int64  `json:"version"` // the newest; 0: nothing was ever changed
	Enabled bool   `json:"enabled"`
	DryRun  *bool  `json:"dryRun"` // null: as the options say
	// Changed are limits and windows that are set, Allows and Blocks what is in force for
	// clients.
	Changed  []changedView `json:"changed"`
	Allows   []allowView   `json:"allows"`
	Blocks   []blockView   `json:"blocks"`
	Problems []problemView `json:"problems"` // what gateways ignore
	Gateways []gatewayView `json:"gateways"`
	Counts   []countView   `json:"counts"` // that are in force

	names []string // of the gateways
	now   int64    // unix seconds
}

type changedView struct {
	Count  string `json:"count"`
	Limit  int64  `json:"limit,omitempty"`
	Window int64  `json:"window,omitempty"`
}

type allowView struct {
	Client string           `json:"client"`
	Until  int64            `json:"until"`
	Limit  int64            `json:"limit,omitempty"` // of the top level
	Limits map[string]int64 `json:"limits,omitempty"`
}

type blockView struct {
	Client string `json:"client"`
	Until  int64  `json:"until"`
}

type problemView struct {
	Field string `json:"field"`
	Value string `json:"value"`
	Want  string `json:"want"`
}

// A countView is a limit, with the rules that it is for.
type countView struct {
	scope.Count
	Middleware string `json:"middleware"`
	Rule       string `json:"rule"`
	By         string `json:"by"`
	DryRun     bool   `json:"dryRun"`
}

func (a *app) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", GroupID: "see", Args: cobra.NoArgs, Short: "Show gateways, limits in force, what was changed, and the store",
		Example: "  gatequota status --endpoint valkey:6379",
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		health, err := a.store.Health(ctx)
		if err != nil {
			return err
		}
		names := []string{a.scopeName}
		if a.scopeName == "" {
			if names, err = a.store.Scopes(ctx); err != nil {
				return err
			}
		}
		view := &statusView{Store: health, Scopes: []scopeView{}}
		for _, name := range names {
			s, err := a.viewScope(ctx, name)
			if err != nil {
				return err
			}
			view.Scopes = append(view.Scopes, *s)
		}
		if a.json {
			return a.printJSON(view)
		}
		a.printHealth(health)
		for i := range view.Scopes {
			fmt.Fprintln(a.out)
			a.printScope(&view.Scopes[i])
		}
		if a.scopeName != "" && len(view.Scopes[0].Gateways) == 0 {
			fmt.Fprintf(a.out, "  scopes that gateways announce: %s\n", plain(a.announced(ctx)))
		}
		if len(names) == 0 {
			fmt.Fprintf(a.out, "\nno gateway announces a scope under the prefix %s\n", a.prefix)
		}
		return nil
	}
	return cmd
}

func (a *app) viewScope(ctx context.Context, name string) (*scopeView, error) {
	st, err := a.store.Scope(name).Read(ctx)
	if err != nil {
		return nil, err
	}
	v := &scopeView{Scope: name, Version: st.Set.Version, Enabled: !st.Set.Off, Changed: []changedView{}, Allows: []allowView{}, Blocks: []blockView{},
		Problems: []problemView{}, Gateways: viewGateways(st, st.Set.Version), Counts: []countView{}, names: gatewayNames(st.Gateways), now: st.Now / 1000}
	if st.Set.DryRun != "" {
		dry := st.Set.DryRun == "true"
		v.DryRun = &dry
	}
	counts := map[string]bool{}
	for name := range st.Set.Limits {
		counts[name] = true
	}
	for name := range st.Set.Windows {
		counts[name] = true
	}
	for name := range counts {
		v.Changed = append(v.Changed, changedView{Count: name, Limit: st.Set.Limits[name], Window: st.Set.Windows[name]})
	}
	slices.SortFunc(v.Changed, func(a, b changedView) int { return cmp.Compare(a.Count, b.Count) })
	for _, c := range st.Set.Clients {
		if c.AllowUntil > v.now {
			v.Allows = append(v.Allows, allowView{Client: c.Hash, Until: c.AllowUntil, Limit: c.Limit, Limits: c.Limits})
		}
		if c.BlockUntil > v.now {
			v.Blocks = append(v.Blocks, blockView{Client: c.Hash, Until: c.BlockUntil})
		}
	}
	slices.SortFunc(v.Allows, func(a, b allowView) int { return cmp.Compare(a.Client, b.Client) })
	slices.SortFunc(v.Blocks, func(a, b blockView) int { return cmp.Compare(a.Client, b.Client) })
	for _, p := range st.Problems {
		v.Problems = append(v.Problems, problemView{Field: p.Field, Value: p.Value, Want: p.Want})
	}
	for _, p := range st.Policies() {
		for _, c := range p.Counts {
			view := countView{Count: c, Middleware: p.Middleware, Rule: p.Rule.Rule, By: scope.Describe(&p.Source), DryRun: p.DryRun}
			if !slices.Contains(v.Counts, view) {
				v.Counts = append(v.Counts, view)
			}
		}
	}
	return v, nil
}

func (a *app) printHealth(h *scope.Health) {
	fmt.Fprintf(a.out, "store %s: ", h.Endpoint)
	if h.Version != "" {
		fmt.Fprintf(a.out, "%s %s, ", h.Software, plain(h.Version))
	}
	fmt.Fprintf(a.out, "answers in %.2f ms", h.Latency*1000)
	if h.Role == "slave" {
		fmt.Fprint(a.out, ", A REPLICA: gateways cannot count here")
	}
	if h.Policy != "" {
		fmt.Fprintf(a.out, "; memory %s", bytesText(h.Memory))
		if h.MaxMemory > 0 {
			fmt.Fprintf(a.out, " of %s", bytesText(h.MaxMemory))
		}
		fmt.Fprintf(a.out, ", %s; %s", plain(h.Policy), plural(int(h.Clients), "client"))
	}
	fmt.Fprintln(a.out)
	if h.Policy != "" && h.Policy != "noeviction" {
		fmt.Fprintf(a.out, "  WARNING: maxmemory-policy is %s: a full store forgets counts, and hands out quota in silence; set it to noeviction\n", plain(h.Policy))
	}
	if h.ClockOffset > 1 || h.ClockOffset < -1 {
		fmt.Fprintf(a.out, "  its clock differs from that of this machine by %.1f s\n", h.ClockOffset)
	}
	if h.Denied != "" {
		fmt.Fprintf(a.out, "  it does not tell all: %s\n", plain(h.Denied))
	}
}

func (a *app) printScope(v *scopeView) {
	state := []string{"on"}
	if !v.Enabled {
		state = []string{"OFF: everything passes"}
	}
	if v.DryRun != nil {
		state = append(state, "dry run "+map[bool]string{true: "ON: nobody is refused", false: "off"}[*v.DryRun])
	}
	fmt.Fprintf(a.out, "scope %s: version %d, %s\n", v.Scope, v.Version, strings.Join(state, ", "))
	rows := [][]string{{"GATEWAY", "ID", "SOFTWARE", "REPORTED", "VERSION", "OBEYS"}}
	for i, g := range v.Gateways {
		row := []string{v.names[i], plain(g.ID), plain(g.Software), "never", "-", "NO"}
		if g.Reported != nil {
			row[3], row[4] = span(*g.Reported)+" ago", strconv.FormatInt(*g.Version, 10)
		}
		if g.Obeys {
			row[5] = "yes"
		}
		rows = append(rows, row)
	}
	if len(rows) > 1 {
		grid(a.out, "  ", "lllrrl", rows)
	} else {
		fmt.Fprintln(a.out, "  no gateway is there")
	}
	rows = [][]string{{"LIMIT", "WINDOW", "COUNT", "ALGORITHM", "RULE", "MIDDLEWARE", "CLIENTS BY"}}
	for _, c := range v.Counts {
		rule, limit := countName(c.Rule), strconv.FormatInt(c.Limit, 10)
		if c.DryRun {
			rule += ", dry run"
		}
		if c.Algorithm == "token-bucket" {
			limit += fmt.Sprintf(" (burst %d)", c.Burst)
		}
		rows = append(rows, []string{limit, windowText(c.Window), plain(countName(c.Name)), plain(c.Algorithm), plain(rule), plain(c.Middleware), plain(c.By)})
	}
	if len(rows) > 1 {
		fmt.Fprintln(a.out)
		grid(a.out, "  ", "rllllll", rows)
	}
	a.printSet(v)
}

// printSet prints what was changed in a scope and is in force.
func (a *app) printSet(v *scopeView) {
	rows := [][]string{}
	for _, c := range v.Changed {
		text := ""
		if c.Limit > 0 {
			text = "limit " + strconv.FormatInt(c.Limit, 10)
		}
		if c.Window > 0 {
			text = strings.TrimPrefix(text+", window "+windowText(c.Window), ", ")
		}
		rows = append(rows, []string{"changed", plain(countName(c.Count)), text})
	}
	for _, c := range v.Allows {
		words := []string{}
		if c.Limit > 0 {
			words = append(words, strconv.FormatInt(c.Limit, 10))
		}
		names := []string{}
		for name := range c.Limits {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			words = append(words, fmt.Sprintf("%s=%d", name, c.Limits[name]))
		}
		rows = append(rows, []string{"allowed", brief(c.Client), "limit " + strings.Join(words, " ") + " until " + clock(c.Until, v.now)})
	}
	for _, c := range v.Blocks {
		rows = append(rows, []string{"blocked", brief(c.Client), "until " + clock(c.Until, v.now)})
	}
	for _, p := range v.Problems {
		rows = append(rows, []string{"IGNORED", plain(p.Field), fmt.Sprintf("%q: %s", plain(p.Value), p.Want)})
	}
	if len(rows) > 0 {
		fmt.Fprintln(a.out)
		grid(a.out, "  ", "lll", rows)
	}
}
