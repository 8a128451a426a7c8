package k6run

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/grafana/sobek"
)

// user is a virtual user: a JavaScript runtime and a HTTP client of its own.
// It is not safe for concurrent use.
type user struct {
	run    *run
	vm     *sobek.Runtime
	client *http.Client

	// ctx is the context of what the user is doing now, nil while the script's
	// top level runs.
	ctx context.Context

	iteration int64 // the number that exec.scenario.iterationInTest returns
	data      sobek.Value
	expected  statuses
	body      sobek.Callable // the script's default function
}

// newUser runs the top level of the script in a new runtime.
func (r *run) newUser(ctx context.Context) (*user, error) {
	u := &user{
		run:       r,
		vm:        sobek.New(),
		client:    &http.Client{Transport: &http.Transport{}, Timeout: time.Minute},
		iteration: -1,
		data:      sobek.Undefined(),
		expected:  statuses{{min: 200, max: 399}},
	}
	stop := u.interruptedBy(ctx)
	defer stop()
	if r.options.Now != nil {
		u.vm.SetTimeSource(r.options.Now)
	}

	u.provide()
	if _, err := u.vm.RunProgram(r.program.main); err != nil {
		return nil, r.because(scriptError("its top level", err))
	}
	body, ok := sobek.AssertFunction(u.export("default"))
	if !ok {
		return nil, fmt.Errorf("%w: it exports no default function", ErrScript)
	}
	if given(u.export("handleSummary")) {
		return nil, fmt.Errorf("handleSummary() is %w", ErrNotOffered)
	}
	u.body = body
	return u, nil
}

func (u *user) close() { u.client.CloseIdleConnections() }

func (u *user) export(name string) sobek.Value {
	return u.vm.Get(exports).ToObject(u.vm).Get(name)
}

// setup calls the script's setup(), if there is one, and returns its result as
// JSON: "" for nothing.
func (u *user) setup(ctx context.Context) (string, error) {
	setup, ok := sobek.AssertFunction(u.export("setup"))
	if !ok {
		return "", nil
	}
	result, err := u.call(ctx, setup)
	if err != nil {
		return "", scriptError("setup()", err)
	}
	if !given(result) {
		return "", nil
	}
	text, err := u.json("stringify", result)
	if err != nil {
		return "", scriptError("the result of setup()", err)
	}
	return text.String(), nil
}

// receive takes the set-up's result for the iterations to come.
func (u *user) receive(data string) error {
	if data == "" {
		return nil
	}
	value, err := u.json("parse", u.vm.ToValue(data))
	if err != nil {
		return scriptError("the result of setup()", err)
	}
	u.data = value
	return nil
}

// iterate calls the script's default function once. The error is an exception
// of the script, or that of ctx.
func (u *user) iterate(ctx context.Context, number int64) error {
	u.iteration = number
	_, err := u.call(ctx, u.body, u.data)
	return err
}

func (u *user) call(ctx context.Context, function sobek.Callable, args ...sobek.Value) (sobek.Value, error) {
	u.ctx = ctx
	defer func() { u.ctx = nil }()
	stop := u.interruptedBy(ctx)
	defer stop()
	return function(sobek.Undefined(), args...)
}

// interruptedBy ends the running JavaScript when ctx ends, until stop is called.
func (u *user) interruptedBy(ctx context.Context) (stop func()) {
	ended := context.AfterFunc(ctx, func() { u.vm.Interrupt(context.Cause(ctx)) })
	return func() { ended() }
}

func (u *user) json(method string, value sobek.Value) (sobek.Value, error) {
	function, ok := sobek.AssertFunction(u.vm.Get("JSON").ToObject(u.vm).Get(method))
	if !ok {
		return nil, fmt.Errorf("JSON.%s is gone", method)
	}
	return function(sobek.Undefined(), value)
}

// throw raises err as an exception in the script.
func (u *user) throw(err error) { panic(u.vm.NewGoError(err)) }

// refuse ends the run: the script has used something that this runner lacks.
func (u *user) refuse(what string) {
	err := fmt.Errorf("%s is %w%s", what, ErrNotOffered, u.position())
	u.run.abort(err)
	u.throw(err)
}

// position is where the script is, as " (at file:line:column)".
func (u *user) position() string {
	for _, frame := range u.vm.CaptureCallStack(0, nil) {
		if at := frame.Position(); at.Line > 0 {
			return fmt.Sprintf(" (at %s)", at)
		}
	}
	return ""
}

// scriptError tells of an exception, with its stack where there is one.
func scriptError(where string, err error) error {
	var exception *sobek.Exception
	if errors.As(err, &exception) {
		return fmt.Errorf("%w: %s: %s", ErrScript, where, strings.TrimSpace(exception.String()))
	}
	return fmt.Errorf("%w: %s: %w", ErrScript, where, err)
}

// given reports whether a value is there and neither undefined nor null.
func given(value sobek.Value) bool {
	return value != nil && !sobek.IsUndefined(value) && !sobek.IsNull(value)
}

// plan is what the script's options ask for.
type plan struct {
	vus          int
	iterations   int64
	maxDuration  time.Duration
	setupTimeout time.Duration
	thresholds   map[string][]string
}

// plan reads the options. It takes the names that it knows, and refuses others.
func (u *user) plan() (*plan, error) {
	p := &plan{vus: 1, iterations: 1, maxDuration: 10 * time.Minute, setupTimeout: time.Minute}
	options := u.export("options")
	if !given(options) {
		return p, nil
	}
	err := u.each("options", options, fields{
		"setupTimeout": func(v sobek.Value) (err error) { p.setupTimeout, err = duration(v); return err },
		"thresholds":   func(v sobek.Value) error { return u.vm.ExportTo(v, &p.thresholds) },
		"scenarios": func(v sobek.Value) error {
			scenarios := v.ToObject(u.vm)
			names := scenarios.Keys()
			if len(names) != 1 {
				return fmt.Errorf("%d scenarios instead of one are %w", len(names), ErrNotOffered)
			}
			return u.scenario(p, names[0], scenarios.Get(names[0]))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	return p, nil
}

func (u *user) scenario(p *plan, name string, value sobek.Value) error {
	executor := ""
	err := u.each("scenarios."+name, value, fields{
		"executor":    func(v sobek.Value) error { executor = v.String(); return nil },
		"vus":         func(v sobek.Value) error { return u.vm.ExportTo(v, &p.vus) },
		"iterations":  func(v sobek.Value) error { return u.vm.ExportTo(v, &p.iterations) },
		"maxDuration": func(v sobek.Value) (err error) { p.maxDuration, err = duration(v); return err },
	})
	if err != nil {
		return err
	}
	if executor != "shared-iterations" {
		return fmt.Errorf("scenarios.%s: the executor %q is %w", name, executor, ErrNotOffered)
	}
	if p.vus < 1 || p.iterations < int64(p.vus) {
		return fmt.Errorf("scenarios.%s: %d vus and %d iterations: at least one user, and one iteration for each, are needed",
			name, p.vus, p.iterations)
	}
	return nil
}

// fields are the names that an object of the script may have, and who takes the
// value of each.
type fields map[string]func(sobek.Value) error

// each hands every property of an object to its taker, and refuses a property
// that has none.
func (u *user) each(what string, value sobek.Value, takers fields) error {
	object := value.ToObject(u.vm)
	keys := object.Keys()
	slices.Sort(keys)
	for _, key := range keys {
		take, ok := takers[key]
		if !ok {
			return fmt.Errorf("%s.%s is %w", what, key, ErrNotOffered)
		}
		if err := take(object.Get(key)); err != nil {
			return fmt.Errorf("%s.%s: %w", what, key, err)
		}
	}
	return nil
}

func duration(value sobek.Value) (time.Duration, error) { return time.ParseDuration(value.String()) }
