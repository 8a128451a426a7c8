package k6run_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/k6run"
)

func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.js")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func run(t *testing.T, text string) (*k6run.Result, string, error) {
	t.Helper()
	var log bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	result, err := k6run.Run(ctx, k6run.Options{
		Script: script(t, text), Log: &log, Env: map[string]string{"ANSWER": "42"},
	})
	return result, log.String(), err
}

func TestRefusesWhatItDoesNotOffer(t *testing.T) {
	tests := map[string]struct{ script, names string }{
		"a module":                {`import ws from 'k6/ws'; export default () => {}`, `k6/ws`},
		"a remote module":         {`import x from 'https://example.test/x.js'; export default () => x`, `https://example.test/x.js`},
		"a named import":          {`import { group } from 'k6'; export default () => group('a', () => {})`, `group`},
		"a metric":                {`import { Trend } from 'k6/metrics'; new Trend('a'); export default () => {}`, `Trend`},
		"a method":                {`import http from 'k6/http'; export default () => { http.post('http://localhost') }`, `"post" of k6/http`},
		"a method in a try block": {`import http from 'k6/http'; export default () => { try { http.post('') } catch {} }`, `"post" of k6/http`},
		"a property":              {`import exec from 'k6/execution'; export default () => exec.vu.idInTest`, `"vu" of k6/execution`},
		"an option":               {`export const options = { duration: '1s' }; export default () => {}`, `options.duration`},
		"an option of a scenario": {`export const options = { scenarios: { a: { executor: 'shared-iterations', rate: 1 } } }; export default () => {}`, `scenarios.a.rate`},
		"an executor":             {`export const options = { scenarios: { a: { executor: 'constant-vus' } } }; export default () => {}`, `constant-vus`},
		"two scenarios":           {`export const options = { scenarios: { a: {}, b: {} } }; export default () => {}`, `2 scenarios`},
		"a threshold's method":    {`export const options = { thresholds: { checks: ['count>1'] } }; export default () => {}`, `count>1`},
		"handleSummary":           {`export function handleSummary() {} export default () => {}`, `handleSummary`},
		"open":                    {`open('file'); export default () => {}`, `open()`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			result, _, err := run(t, test.script)
			if !errors.Is(err, k6run.ErrNotOffered) || !strings.Contains(err.Error(), test.names) {
				t.Errorf("got %+v, %v: want an error that names %s", result, err, test.names)
			}
		})
	}
}

func TestRefusesParametersOfARequest(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	_, _, err := run(t, `import http from 'k6/http'; export default () => { http.get('`+server.URL+`', { redirects: 0 }) }`)
	if !errors.Is(err, k6run.ErrNotOffered) || !strings.Contains(err.Error(), "params.redirects") {
		t.Errorf("got %v", err)
	}
	_, _, err = run(t, `import http from 'k6/http'; export default () => { http.get('`+server.URL+`').json() }`)
	if !errors.Is(err, k6run.ErrNotOffered) || !strings.Contains(err.Error(), `"json" of the response`) {
		t.Errorf("got %v", err)
	}
}

func TestSaysWhatIsWrongWithAScript(t *testing.T) {
	tests := map[string]struct {
		script, says string
		is           error
	}{
		"syntax":           {`export default () => {`, `Unexpected end of file`, k6run.ErrScript},
		"no default":       {`export const options = {}`, `no default function`, k6run.ErrScript},
		"a throw on top":   {`throw new Error('too early')`, `too early`, k6run.ErrScript},
		"a throw in setup": {`export function setup() { throw new Error('no gateway') } export default () => {}`, `no gateway`, k6run.ErrScript},
		"fail in setup":    {`import { fail } from 'k6'; export function setup() { fail('no gateway') } export default () => {}`, `no gateway`, k6run.ErrScript},
		"a slow setup": {
			`import { sleep } from 'k6'; export const options = { setupTimeout: '50ms' };
			 export function setup() { sleep(60) } export default () => {}`, `longer than 50ms`, k6run.ErrScript,
		},
		"an endless setup": {
			`export const options = { setupTimeout: '50ms' }; export function setup() { for (;;) {} } export default () => {}`,
			`longer than 50ms`, k6run.ErrScript,
		},
		"a request on top":         {`import http from 'k6/http'; http.get('http://localhost'); export default () => {}`, `top level`, k6run.ErrScript},
		"a threshold on nothing":   {`export const options = { thresholds: { nothing: ['count==1'] } }; export default () => {}`, `no metric "nothing"`, k6run.ErrOptions},
		"a threshold unreadable":   {`export const options = { thresholds: { iterations: ['count is 1'] } }; export default () => {}`, `count is 1`, k6run.ErrOptions},
		"a submetric unreadable":   {`export const options = { thresholds: { 'iterations{a}': ['count==1'] } }; export default () => {}`, `"a" is no tag:value`, k6run.ErrOptions},
		"fewer turns than users":   {`export const options = { scenarios: { a: { executor: 'shared-iterations', vus: 2, iterations: 1 } } }; export default () => {}`, `one iteration for each`, k6run.ErrOptions},
		"a duration without unit":  {`export const options = { setupTimeout: '5' }; export default () => {}`, `options.setupTimeout`, k6run.ErrOptions},
		"a metric in an iteration": {`import { Counter } from 'k6/metrics'; export function setup() { new Counter('a') } export default () => {}`, `top level`, k6run.ErrScript},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, _, err := run(t, test.script)
			if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v: want %q", err, test.says)
			}
		})
	}
}

func TestSharesTheIterationsAmongTheUsers(t *testing.T) {
	result, log, err := run(t, `
		import exec from 'k6/execution';
		import { check } from 'k6';
		import { Counter } from 'k6/metrics';
		const turns = new Counter('turns');
		export const options = {
			scenarios: { all: { executor: 'shared-iterations', vus: 4, iterations: 10 } },
			thresholds: {
				iterations: ['count==10'],
				'turns{number:0}': ['count==1'],
				'turns{number:9,data:from setup}': ['count==1'],
				'turns{number:10}': ['count==0'],
			},
		};
		export function setup() { return { text: 'from setup' } }
		export default function (data) {
			turns.add(1, { number: String(exec.scenario.iterationInTest), data: data.text });
			check(__ENV.ANSWER, { 'the environment is there': (answer) => answer === '42' });
		}`)
	if err != nil {
		t.Fatal(err)
	}
	if !result.Passed() {
		t.Errorf("did not pass: %+v\n%s", result.Thresholds, log)
	}
	want := k6run.Check{Name: "the environment is there", Passes: 10}
	if len(result.Checks) != 1 || result.Checks[0] != want {
		t.Errorf("checks %+v, want %+v", result.Checks, want)
	}
}

func TestThresholdsCompareAsTheySay(t *testing.T) {
	const of = `
		import { check } from 'k6';
		import { Counter } from 'k6/metrics';
		const three = new Counter('three');
		export const options = { thresholds: { METRIC: ['EXPRESSION'] } };
		export default () => { three.add(3); check(1, { yes: true }); check(1, { no: false }) }`
	tests := []struct {
		metric, expression string
		ok                 bool
	}{
		{"three", "count==3", true},
		{"three", "count===3", true},
		{"three", "count != 3", false},
		{"three", "count<3", false},
		{"three", "count<=3", true},
		{"three", "count>3", false},
		{"three", "count>=3", true},
		{"three", "count==2", false},
		{"checks", "rate==0.5", true},
		{"checks", "rate==1", false},
		{"checks", "rate>0.4", true},
		{"http_req_failed", "rate==0", true},
		{"http_reqs", "count>0", false},
	}
	for _, test := range tests {
		t.Run(test.metric+" "+test.expression, func(t *testing.T) {
			text := strings.NewReplacer("METRIC", test.metric, "EXPRESSION", test.expression).Replace(of)
			result, _, err := run(t, text)
			if err != nil {
				t.Fatal(err)
			}
			if result.Passed() != test.ok {
				t.Errorf("passed is %v: %+v", result.Passed(), result.Thresholds)
			}
		})
	}
}

func TestAnExceptionOfAnIterationIsLoggedAndTheRunGoesOn(t *testing.T) {
	result, log, err := run(t, `
		export const options = { scenarios: { all: { executor: 'shared-iterations', iterations: 3 } } };
		export default () => { throw new Error('this one went wrong') }`)
	if err != nil || result.Count("iterations") != 3 {
		t.Fatalf("got %+v, %v", result, err)
	}
	if strings.Count(log, "this one went wrong") != 3 || !strings.Contains(log, "script.js:3") {
		t.Errorf("the log does not tell of three exceptions and their place:\n%s", log)
	}
}

func TestARequestThatGetsNoAnswerIsAFailedOne(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	url := server.URL
	server.Close()
	result, log, err := run(t, `
		import http from 'k6/http';
		import { check } from 'k6';
		export default () => { check(http.get('`+url+`'), { 'no status': (r) => r.status === 0 && r.error !== '' }) }`)
	if err != nil || result.Metrics["http_req_failed"] != 1 || result.Metrics["checks"] != 1 {
		t.Errorf("got %+v, %v\n%s", result, err, log)
	}
}

func TestHeadersReachTheServerAndComeBack(t *testing.T) {
	var seen atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Header.Get("X-Api-Key"))
		w.Header().Add("X-RateLimit-Limit", "1")
		w.Header().Add("X-RateLimit-Limit", "2")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	result, log, err := run(t, `
		import http from 'k6/http';
		import { check } from 'k6';
		export default () => {
			const response = http.get('`+server.URL+`', { headers: { 'X-API-Key': 'one' } });
			check(response, {
				'names are in the canonical form of Go, values joined': (r) => r.headers['X-Ratelimit-Limit'] === '1, 2',
			});
		}`)
	if err != nil || result.Metrics["checks"] != 1 {
		t.Errorf("got %+v, %v\n%s", result, err, log)
	}
	if seen.Load() != "one" {
		t.Errorf("the server saw the key %v", seen.Load())
	}
	if result.Metrics["http_req_failed"] != 1 {
		t.Error("429 is a failed request until the script expects it")
	}
}

func TestEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	path := script(t, `export default () => { for (;;) {} }`)
	ended := make(chan error, 1)
	go func() {
		_, err := k6run.Run(ctx, k6run.Options{Script: path})
		ended <- err
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
