package k6run

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/grafana/sobek"
)

// members are the properties of an object that the script may use.
type members map[string]any

// provide sets the globals of k6 and what its modules export.
func (u *user) provide() {
	env := u.vm.NewObject()
	for name, value := range u.run.options.Env {
		u.set(env, name, value)
	}
	u.set(u.vm.GlobalObject(), "__ENV", env)
	u.set(u.vm.GlobalObject(), "console", u.object("console", members{"log": u.consoleLog}))
	u.set(u.vm.GlobalObject(), "open", func() { u.refuse("open()") })

	u.set(u.vm.GlobalObject(), host, u.object(host, members{
		"k6": u.object("k6", members{"check": u.check, "fail": u.fail, "sleep": u.sleep}),
		"execution": u.object("k6/execution", members{
			"scenario": u.object("k6/execution scenario", members{"iterationInTest": func() int64 { return u.iteration }}),
		}),
		"http": u.object("k6/http", members{
			"get":                 u.get,
			"expectedStatuses":    u.expectedStatuses,
			"setResponseCallback": u.setResponseCallback,
		}),
		"metrics": u.object("k6/metrics", members{"Counter": u.newCounter}),
	}))
}

func (u *user) set(object *sobek.Object, name string, value any) {
	if err := object.Set(name, value); err != nil {
		panic(fmt.Sprintf("k6run: setting %s: %v", name, err))
	}
}

// object makes an object that refuses, and so ends the run, when the script
// reads a property that it does not have. A func() int64 is read as a number
// that changes.
func (u *user) object(label string, m members) *sobek.Object {
	values := map[string]sobek.Value{}
	for name, value := range m {
		if _, changes := value.(func() int64); !changes {
			values[name] = u.vm.ToValue(value)
		}
	}
	return u.vm.NewDynamicObject(&strict{user: u, label: label, members: m, values: values})
}

// strict is such an object.
type strict struct {
	user    *user
	label   string
	members members
	values  map[string]sobek.Value
}

func (s *strict) Get(key string) sobek.Value {
	if value, ok := s.values[key]; ok {
		return value
	}
	if changes, ok := s.members[key].(func() int64); ok {
		return s.user.vm.ToValue(changes())
	}
	// What the language itself looks for is answered by the prototype.
	if !slices.Contains([]string{"constructor", "hasOwnProperty", "then", "toJSON", "toString", "valueOf"}, key) {
		known := strings.Join(s.Keys(), ", ")
		s.user.refuse(fmt.Sprintf("%q of %s (which has %s)", key, s.label, known))
	}
	return nil
}

func (s *strict) Has(key string) bool { _, ok := s.members[key]; return ok }
func (s *strict) Keys() []string      { return slices.Sorted(maps.Keys(s.members)) }
func (s *strict) Delete(string) bool  { return false }

func (s *strict) Set(key string, _ sobek.Value) bool {
	s.user.refuse(fmt.Sprintf("setting %q of %s", key, s.label))
	return false
}

func (u *user) consoleLog(call sobek.FunctionCall) sobek.Value {
	words := make([]string, len(call.Arguments))
	for i, argument := range call.Arguments {
		words[i] = argument.String()
	}
	u.run.log("INFO", strings.Join(words, " "))
	return sobek.Undefined()
}

// check(value, {name: test, ...}) notes the result of each test: a function of
// the value, or a plain value. It returns whether all of them held.
func (u *user) check(call sobek.FunctionCall) sobek.Value {
	u.inIteration("check()")
	if given(call.Argument(2)) {
		u.refuse("the third argument of check()")
	}
	tests := call.Argument(1).ToObject(u.vm)
	all := true
	for _, name := range tests.Keys() {
		result := tests.Get(name)
		if test, ok := sobek.AssertFunction(result); ok {
			value, err := test(sobek.Undefined(), call.Argument(0))
			if err != nil {
				u.run.metrics.check(name, false)
				u.rethrow(err)
			}
			result = value
		}
		u.run.metrics.check(name, result.ToBoolean())
		all = all && result.ToBoolean()
	}
	return u.vm.ToValue(all)
}

// rethrow goes on with an exception of the script that passed through Go.
func (u *user) rethrow(err error) {
	var exception *sobek.Exception
	if errors.As(err, &exception) {
		panic(exception.Value())
	}
	panic(err)
}

// fail(reason) throws.
func (u *user) fail(call sobek.FunctionCall) sobek.Value {
	reason := "fail() was called"
	if given(call.Argument(0)) {
		reason = call.Argument(0).String()
	}
	u.throw(errors.New(reason))
	return nil
}

// sleep(seconds) waits.
func (u *user) sleep(call sobek.FunctionCall) sobek.Value {
	u.inIteration("sleep()")
	d := time.Duration(call.Argument(0).ToFloat() * float64(time.Second))
	if err := u.run.options.Sleep(u.ctx, d); err != nil {
		u.throw(err)
	}
	return sobek.Undefined()
}

// inIteration throws while the script's top level runs, as k6 does.
func (u *user) inIteration(what string) {
	if u.ctx == nil {
		u.throw(fmt.Errorf("%s: not in the top level of the script", what))
	}
}

// newCounter is the constructor Counter(name), with add(value, tags).
func (u *user) newCounter(call sobek.ConstructorCall) *sobek.Object {
	if u.ctx != nil {
		u.throw(errors.New("a metric is made in the top level of the script only"))
	}
	if given(call.Argument(1)) {
		u.refuse("the second argument of Counter()")
	}
	m := u.run.metrics.declare(call.Argument(0).String(), false)
	if m.rate {
		u.throw(fmt.Errorf("the metric %q is there, and is no counter", call.Argument(0)))
	}
	return u.object("Counter", members{"add": func(call sobek.FunctionCall) sobek.Value {
		u.inIteration("add()")
		tags := map[string]string{}
		if given(call.Argument(1)) {
			if err := u.vm.ExportTo(call.Argument(1), &tags); err != nil {
				u.throw(err)
			}
		}
		m.add(call.Argument(0).ToFloat(), tags)
		return sobek.Undefined()
	}})
}

// statuses are the ranges of status codes that make a request no failure.
type statuses []struct{ min, max int }

// expectedStatuses(code, {min, max}, ...) makes what setResponseCallback takes.
func (u *user) expectedStatuses(call sobek.FunctionCall) sobek.Value {
	ranges := make(statuses, len(call.Arguments))
	for i, argument := range call.Arguments {
		if _, ok := argument.Export().(int64); ok {
			ranges[i].min, ranges[i].max = int(argument.ToInteger()), int(argument.ToInteger())
			continue
		}
		err := u.each("expectedStatuses", argument, fields{
			"min": func(v sobek.Value) error { ranges[i].min = int(v.ToInteger()); return nil },
			"max": func(v sobek.Value) error { ranges[i].max = int(v.ToInteger()); return nil },
		})
		if err != nil {
			u.throw(err)
		}
	}
	return u.vm.ToValue(ranges)
}

func (u *user) setResponseCallback(call sobek.FunctionCall) sobek.Value {
	ranges, ok := call.Argument(0).Export().(statuses)
	if !ok {
		u.refuse("setResponseCallback() with anything but expectedStatuses()")
	}
	u.expected = ranges
	return sobek.Undefined()
}

// get(url, {headers}) sends a request. An answer that does not come is no
// exception but a response with status 0 and an error, as in k6.
func (u *user) get(call sobek.FunctionCall) sobek.Value {
	u.inIteration("http.get()")
	request, err := http.NewRequestWithContext(u.ctx, http.MethodGet, call.Argument(0).String(), nil)
	if err != nil {
		u.throw(err)
	}
	request.Header.Set("User-Agent", "k6run")
	if given(call.Argument(1)) {
		err := u.each("params", call.Argument(1), fields{"headers": func(v sobek.Value) error {
			headers := v.ToObject(u.vm)
			for _, name := range headers.Keys() {
				request.Header.Set(name, headers.Get(name).String())
			}
			return nil
		}})
		if errors.Is(err, ErrNotOffered) {
			u.refuse(strings.TrimSuffix(err.Error(), " is "+ErrNotOffered.Error()))
		}
	}

	status, problem := 0, ""
	headers := u.vm.NewObject()
	response, err := u.client.Do(request)
	if err == nil {
		// Read to the end, or the connection cannot serve the next request.
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
	if err != nil {
		problem = err.Error()
	} else {
		status = response.StatusCode
		for _, name := range slices.Sorted(maps.Keys(response.Header)) {
			u.set(headers, name, strings.Join(response.Header[name], ", "))
		}
	}
	if u.ctx.Err() != nil {
		u.throw(u.ctx.Err())
	}

	failed := 1.0
	for _, r := range u.expected {
		if status >= r.min && status <= r.max {
			failed = 0
		}
	}
	u.run.metrics.requests.add(1, nil)
	u.run.metrics.failed.add(failed, nil)
	return u.object("the response", members{"status": status, "headers": headers, "error": problem})
}
