package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gatequota/gatequota/ctl/scope"
)

// A resetView is what became of counts that were to be forgotten.
type resetView struct {
	Keys int `json:"keys"` // that were deleted
	// Before and After are where the client stood before, and a moment after; for all
	// clients, Left is how many keys there are then: of those who went on sending.
	Before []scope.Standing `json:"before,omitempty"`
	After  []scope.Standing `json:"after,omitempty"`
	Left   *int             `json:"left,omitempty"`
	// Restored are those of After that came back as they were.
	Restored []scope.Standing `json:"restored"`
}

func (a *app) resetCommand() *cobra.Command {
	all := false
	cmd := &cobra.Command{
		Use: "reset VALUE | reset --all", GroupID: "client", Short: "Forget what one client has used, or all of them",
		Long: `Tell all gateways to forget a client, wait until they report that they did, at most three
seconds, and delete its counts. To delete keys by hand frees nobody before the window ends:
the gateways know what they counted, and tell the store.

--all does it for all clients of the scope, and asks first.`,
		Example: `  gatequota reset "$API_KEY"
  gatequota reset --all --scope login`,
	}
	cmd.Flags().BoolVar(&all, "all", false, "all clients of the scope")
	a.hashFlag(cmd)
	a.yesFlag(cmd)
	a.byFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if all {
			if len(args) > 0 || a.hash != "" {
				return usage("--all is for all clients: drop it, or VALUE and --hash")
			}
			return a.resetAll(cmd.Context())
		}
		if err := a.oneClient(cmd, args); err != nil {
			return err
		}
		return a.reset(cmd.Context(), args)
	}
	return cmd
}

// newEpoch returns edits that make gateways forget.
func newEpoch(fields ...string) func(st *scope.State, version int64) ([]scope.Edit, error) {
	return func(st *scope.State, version int64) ([]scope.Edit, error) {
		var edits []scope.Edit
		for _, field := range fields {
			edits = append(edits, scope.Edit{Field: field, Value: fmt.Sprintf("%d %d", version, st.Now/1000)})
		}
		return edits, nil
	}
}

func (a *app) reset(ctx context.Context, args []string) error {
	p, _, err := a.forClient(ctx, args)
	if err != nil {
		return err
	}
	var fields []string
	for _, c := range p.clients {
		fields = append(fields, "epoch:"+c.Hash)
	}
	p.edit = newEpoch(fields...)
	view, err, disobeyed := a.make(ctx, p)
	if err != nil {
		return err
	}
	deleted, err := p.scope.Delete(ctx, view.state, p.clients)
	if err != nil {
		return err
	}
	view.Reset = &resetView{Keys: deleted.Keys, Before: deleted.Before, After: deleted.After, Restored: deleted.Restored}
	if view.Reset.Restored == nil {
		view.Reset.Restored = []scope.Standing{}
	}
	if a.json {
		err = a.printJSON(view)
	} else {
		a.printChange(view)
		a.printReset(view)
	}
	if len(deleted.Restored) > 0 {
		var texts []string
		for _, s := range deleted.Restored {
			texts = append(texts, fmt.Sprintf("%s of %s has %d of %d", countName(s.Name), brief(s.Client), s.Used, s.Limit))
		}
		err = errors.Join(err, exit(exitRestored, "a gateway still knew the client and restored what was deleted: %s", strings.Join(texts, "; ")))
	}
	return errors.Join(err, disobeyed)
}

func (a *app) printReset(v *changeView) {
	fmt.Fprintf(a.out, "deleted %s\n", plural(v.Reset.Keys, "key"))
	rows := [][]string{{"COUNT", "BEFORE", "NOW", "LIMIT"}}
	for i, s := range v.Reset.After {
		if v.Reset.Before[i].Used > 0 || s.Used > 0 {
			rows = append(rows, []string{plain(countName(s.Name)), fmt.Sprint(v.Reset.Before[i].Used), fmt.Sprint(s.Used), fmt.Sprint(s.Limit)})
		}
	}
	if len(rows) > 1 {
		grid(a.out, "  ", "lrrr", rows)
	}
}

// deleteFor is for how long keys are deleted after an epoch: gateways remember nothing for
// control.HoldFor, beginning with a whole second before it.
const deleteFor = 7 * time.Second

func (a *app) resetAll(ctx context.Context) error {
	p, st, err := a.begin(ctx)
	if err != nil {
		return err
	}
	if err := a.confirm(fmt.Sprintf("Forget what all clients of scope %s have used, on %s?", p.scope.Name, plural(len(st.Gateways), "gateway"))); err != nil {
		return err
	}
	p.edit = newEpoch("epoch")
	total := &resetView{Restored: []scope.Standing{}}
	var view *changeView
	var disobeyed error
	var entries []scope.Entry
	for next := uint64(0); ; {
		began := time.Now()
		if view, err, disobeyed = a.make(ctx, p); err != nil {
			return err
		}
		entries = append(entries, view.Changes...)
		var keys int
		keys, next, err = p.scope.DeleteAll(ctx, next, began.Add(deleteFor))
		total.Keys += keys
		if err != nil {
			return err
		}
		if next == 0 {
			break
		}
	}
	left, err := p.scope.CountKeys(ctx)
	if err != nil {
		return err
	}
	total.Left = &left
	view.Changes, view.Reset = slices.Clip(entries), total
	if a.json {
		err = a.printJSON(view)
	} else {
		a.printChange(view)
		fmt.Fprintf(a.out, "deleted %s; %d are there again, of clients that went on\n", plural(total.Keys, "key"), left)
	}
	return errors.Join(err, disobeyed)
}
