package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gatequota/gatequota/ctl/scope"
)

// A showView is what the command show prints.
type showView struct {
	Scope   string       `json:"scope"`
	Clients []clientView `json:"clients"`
}

// A clientView is one client: where it stands, and what else is in the store of it.
type clientView struct {
	scope.Client
	AllowedUntil int64            `json:"allowedUntil"` // unix seconds; 0: nothing is set
	BlockedUntil int64            `json:"blockedUntil"`
	Standings    []scope.Standing `json:"counts"`
	Keys         []scope.KeyValue `json:"keys"` // all of them
}

func (a *app) showCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show VALUE", GroupID: "see", Short: "Show what one client has used, and what is set for it",
		Long: `Show what one client has used of each limit, when it is free again, and whether it is allowed
more or blocked. VALUE is what tells clients apart, such as an API key or an address, and is
digested as the gateways do. Limits are those that all clients have, or that allow has set:
plans and overrides of the options are not known here.`,
		Example: `  gatequota show "$API_KEY"
  gatequota show - < key.txt
  gatequota show --hash 481c55a1b2c3...`,
	}
	a.hashFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := a.oneClient(cmd, args); err != nil {
			return err
		}
		ctx := cmd.Context()
		s, st, err := a.read(ctx)
		if err != nil {
			return err
		}
		clients, err := a.clients(st, args)
		if err != nil {
			return err
		}
		view := &showView{Scope: s.Name}
		for _, c := range clients {
			v := clientView{Client: c}
			if v.Standings, err = s.Standings(ctx, st, []scope.Client{c}); err != nil {
				return err
			}
			if v.Keys, err = s.Keys(ctx, c.Hash); err != nil {
				return err
			}
			for _, set := range st.Set.Clients {
				if set.Hash == c.Hash {
					v.AllowedUntil, v.BlockedUntil = inForce(set.AllowUntil, st.Now), inForce(set.BlockUntil, st.Now)
				}
			}
			for i := range v.Standings {
				v.Standings[i].Wait = max(v.Standings[i].Wait, v.BlockedUntil-st.Now/1000) // who is blocked waits for that as well
			}
			v.Rules, v.Standings, v.Keys = orEmpty(v.Rules), orEmpty(v.Standings), orEmpty(v.Keys)
			view.Clients = append(view.Clients, v)
		}
		if a.json {
			return a.printJSON(view)
		}
		for i := range view.Clients {
			if i > 0 {
				fmt.Fprintln(a.out)
			}
			a.printClient(&view.Clients[i], st)
		}
		if st.Reporting() == 0 {
			why := fmt.Sprintf("no gateway of scope %s reports its limits (control: true makes it do so)", s.Name)
			if len(st.Gateways) == 0 {
				why = fmt.Sprintf("no gateway announces scope %s (scopes that gateways announce: %s)", s.Name, a.announced(ctx))
			}
			fmt.Fprintf(a.err, "gatequota: %s: the value was taken for that of a header\n", plain(why))
		}
		return nil
	}
	return cmd
}

// inForce returns a time in unix seconds, or 0 where it is over at a time in milliseconds.
func inForce(until, now int64) int64 {
	if until <= now/1000 {
		return 0
	}
	return until
}

// orEmpty keeps lists from being null in JSON.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func (a *app) printClient(v *clientView, st *scope.State) {
	fmt.Fprintf(a.out, "client %s, by %s\n", v.Hash, plain(v.By))
	if len(v.Rules) > 0 {
		var names []string
		for _, name := range v.Rules {
			names = append(names, plain(countName(name)))
		}
		fmt.Fprintf(a.out, "  rules    %s\n", strings.Join(names, ", "))
	}
	if st.Set.Off {
		fmt.Fprintln(a.out, "  OFF      everything passes, until gatequota on")
	}
	if st.Set.DryRun == "true" {
		fmt.Fprintln(a.out, "  dry run  nobody is refused")
	}
	if v.BlockedUntil > 0 {
		fmt.Fprintf(a.out, "  BLOCKED  until %s\n", clock(v.BlockedUntil, st.Now/1000))
	}
	if v.AllowedUntil > 0 {
		fmt.Fprintf(a.out, "  allowed  until %s\n", clock(v.AllowedUntil, st.Now/1000))
	}
	rows := [][]string{{"COUNT", "ALGORITHM", "WINDOW", "USED", "LIMIT", "LEFT", "PASSES", "ALL FREE"}}
	for _, s := range v.Standings {
		limit := fmt.Sprint(s.Limit)
		if s.Allowed {
			limit += " (allowed)"
		}
		passes, free := "now", "now"
		if s.Wait > 0 {
			passes = "in " + span(s.Wait)
		}
		if s.Reset > 0 {
			free = "in " + span(s.Reset)
		}
		rows = append(rows, []string{plain(countName(s.Name)), plain(s.Algorithm), windowText(s.Window), fmt.Sprint(s.Used), limit, fmt.Sprint(s.Left), passes, free})
	}
	if len(rows) > 1 {
		grid(a.out, "  ", "lllrrrrr", rows)
	}
	keys := slices.Clone(v.Keys)
	title := "KEY"
	if len(v.Standings) > 0 {
		keys = slices.DeleteFunc(keys, func(k scope.KeyValue) bool {
			return slices.ContainsFunc(v.Counts, func(c scope.Count) bool { return scope.Matches(&c, &k.Key, st.Now) })
		})
		title = "OTHER KEY"
	}
	rows = [][]string{{title, "VALUE", "GOES"}}
	for _, k := range keys {
		goes := "never"
		if k.TTL >= 0 {
			goes = "in " + span(k.TTL)
		}
		rows = append(rows, []string{plain(k.Name), fmt.Sprint(k.Value), goes})
	}
	if len(rows) > 1 {
		grid(a.out, "  ", "lrr", rows)
	}
	if len(v.Standings) == 0 && len(v.Keys) == 0 {
		fmt.Fprintln(a.out, "  nothing is counted of it")
	}
}

func (a *app) logCommand() *cobra.Command {
	most, follow := int64(0), false
	cmd := &cobra.Command{
		Use: "log", GroupID: "see", Args: cobra.NoArgs, Short: "Show what was changed, when and by whom, the newest last",
		Example: "  gatequota log --scope apikey --follow",
	}
	cmd.Flags().Int64VarP(&most, "lines", "n", 20, "how many of the last changes")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what comes, until interrupted")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if most < 1 || most > 100000 {
			return usage("--lines %d: a number from 1 to 100000 is wanted", most)
		}
		ctx := cmd.Context()
		s, err := a.openScope(ctx)
		if err != nil {
			return err
		}
		entries, err := s.Log(ctx, most)
		last := "0"
		for {
			if err != nil {
				return err
			}
			for i := range entries {
				last = entries[i].ID
				if err := a.printEntry(s, &entries[i]); err != nil {
					return err
				}
			}
			if !follow {
				if last == "0" && !a.json {
					fmt.Fprintf(a.err, "gatequota: no change of scope %s is remembered in this store\n", s.Name)
				}
				return nil
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Second / 2):
			}
			if entries, err = s.LogAfter(ctx, last); ctx.Err() != nil {
				return nil
			}
		}
	}
	return cmd
}

func (a *app) printEntry(s *scope.Scope, e *scope.Entry) error {
	if a.json {
		return a.printJSON(struct {
			Scope string `json:"scope"`
			*scope.Entry
		}{s.Name, e})
	}
	at := e.Time / 1000
	_, err := fmt.Fprintf(a.out, "%s  %-20s  %s -> %s  by %s\n", time.Unix(at, 0).Format(time.DateTime), a.entryTitle(e, nil),
		entryValue(e.What, e.Old, at), entryValue(e.What, e.New, at), plain(e.By))
	return err
}
