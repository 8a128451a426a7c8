// Package k6run runs a k6 script where k6 itself is not to be had: the script
// is bundled by esbuild and executed by sobek, the engine that k6 uses, against
// the small part of the k6 API that the scripts of this project need.
//
// What it offers behaves as in k6: each virtual user has a runtime of its own,
// the set-up's result reaches the users as JSON, and thresholds decide the
// outcome. What it does not offer is refused with [ErrNotOffered] and the name
// of the thing, never passed over in silence. It is no replacement for k6: it
// measures no durations and knows one executor.
package k6run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// ErrNotOffered is in the error of a run whose script uses a part of k6
	// that this runner lacks.
	ErrNotOffered = errors.New("not offered by this runner")

	// ErrScript is in the error of a run whose script does not build, or threw
	// before its first iteration.
	ErrScript = errors.New("the script failed")

	// ErrOptions is in the error of a run whose options, thresholds included,
	// are wrong.
	ErrOptions = errors.New("the script's options are wrong")
)

// gracefulStop is how long iterations under way may go on after the scenario's
// maxDuration; k6's default.
const gracefulStop = 30 * time.Second

// Options say what to run.
type Options struct {
	// Script is the path of the script.
	Script string

	// Env is what the script finds in __ENV. Nothing of the process's own
	// environment is added.
	Env map[string]string

	// Log receives what the script writes to its console and the exceptions of
	// its iterations, a line each. Nil discards them.
	Log io.Writer

	// Sleep stands in for the waiting of the script's sleep(). It returns early,
	// with the context's error, when ctx ends. Nil really waits.
	Sleep func(ctx context.Context, d time.Duration) error

	// Now stands in for the clock that the script's Date reads. Nil is the machine's.
	Now func() time.Time
}

// run is what the virtual users of one run share.
type run struct {
	options Options
	program *program
	metrics *registry

	logMu sync.Mutex

	fatalMu sync.Mutex
	fatal   error
	cancel  context.CancelFunc
}

// Run runs the script to its end. The error tells of a run that could not be
// held; whether a run that was held has passed is the Result's to say.
func Run(ctx context.Context, options Options) (*Result, error) {
	if options.Sleep == nil {
		options.Sleep = wait
	}
	program, err := compile(options.Script)
	if err != nil {
		return nil, err
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{options: options, program: program, metrics: newRegistry(), cancel: cancel}

	// The first user also tells what the options are; it runs the set-up.
	first, err := r.newUser(ctx)
	if err != nil {
		return nil, err
	}
	defer first.close()
	plan, err := first.plan()
	if err != nil {
		return nil, r.because(err)
	}
	if err := r.metrics.expect(plan.thresholds); err != nil {
		return nil, err
	}

	users := make([]*user, plan.vus)
	for i := range users {
		if users[i], err = r.newUser(ctx); err != nil {
			return nil, err
		}
		defer users[i].close()
	}

	data, err := r.setup(ctx, first, plan.setupTimeout)
	if err != nil {
		return nil, r.because(err)
	}
	for _, u := range users {
		if err := u.receive(data); err != nil {
			return nil, r.because(err)
		}
	}
	if err := r.iterate(ctx, users, plan); err != nil {
		return nil, r.because(err)
	}
	if err := r.because(nil); err != nil {
		return nil, err
	}
	return r.metrics.result(), nil
}

func (r *run) setup(ctx context.Context, u *user, timeout time.Duration) (string, error) {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	data, err := u.setup(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return "", fmt.Errorf("%w: the set-up took longer than %s", ErrScript, timeout)
	}
	return data, err
}

// iterate shares the iterations among the users, as k6's shared-iterations
// executor does: who is done with one takes the next.
func (r *run) iterate(ctx context.Context, users []*user, plan *plan) error {
	bounded, cancel := context.WithTimeout(ctx, plan.maxDuration+gracefulStop)
	defer cancel()
	end := time.Now().Add(plan.maxDuration)

	var next atomic.Int64
	var group sync.WaitGroup
	for _, u := range users {
		group.Go(func() {
			for bounded.Err() == nil && time.Now().Before(end) {
				number := next.Add(1) - 1
				if number >= plan.iterations {
					return
				}
				err := u.iterate(bounded, number)
				if bounded.Err() != nil {
					return
				}
				if err != nil {
					r.log("ERRO", err.Error())
				}
				r.metrics.iterations.add(1, nil)
			}
		})
	}
	group.Wait()
	return ctx.Err()
}

// abort ends the run with err, even if the script catches the exception that
// goes with it.
func (r *run) abort(err error) {
	r.fatalMu.Lock()
	defer r.fatalMu.Unlock()
	if r.fatal == nil {
		r.fatal = err
		r.cancel()
	}
}

// because returns what the run was aborted for, or else err.
func (r *run) because(err error) error {
	r.fatalMu.Lock()
	defer r.fatalMu.Unlock()
	if r.fatal != nil {
		return r.fatal
	}
	return err
}

func (r *run) log(level, text string) {
	if r.options.Log == nil {
		return
	}
	r.logMu.Lock()
	defer r.logMu.Unlock()
	fmt.Fprintf(r.options.Log, "%s %s\n", level, text)
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
