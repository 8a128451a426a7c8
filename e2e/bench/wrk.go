package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"time"
)

// wrkDone makes wrk end with one line that is easy to read. wrk counts in
// microseconds, and takes answers of 400 and above for errors.
const wrkDone = `function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\nRESULT {"requests":%d,"microseconds":%d,"refused":%d,"failed":%d,"p50":%d,"p95":%d,"p99":%d}\n',
    summary.requests, summary.duration, e.status, e.connect + e.read + e.write + e.timeout,
    latency:percentile(50), latency:percentile(95), latency:percentile(99)))
end
`

// wrkOne makes all requests those of one client.
const wrkOne = `wrk.headers["X-API-Key"] = "` + clientKey + `"
`

// wrkMany makes each request that of another client, until all of them had their
// turn, in an order that is drawn anew for each run. The requests are written
// beforehand, so that wrk has no more to do than with one.
var wrkMany = fmt.Sprintf(`local requests, last, clients = {}, 0, %d
function init()
  math.randomseed(os.time())
  for i = 1, clients do
    wrk.headers["X-API-Key"] = "`+clientKey+`-" .. i
    requests[i] = wrk.format()
  end
  for i = clients, 2, -1 do
    local j = math.random(i)
    requests[i], requests[j] = requests[j], requests[i]
  end
end
function request()
  last = last %% clients + 1
  return requests[last]
end
`, manyKeys)

// load is what one run of wrk found, and what it cost.
type load struct {
	Requests     int64 `json:"requests"`
	Microseconds int64 `json:"microseconds"`
	Refused      int64 `json:"refused"` // answered with 400 or above
	Failed       int64 `json:"failed"`  // not answered
	P50          int64 `json:"p50"`     // microseconds, as the next two
	P95          int64 `json:"p95"`
	P99          int64 `json:"p99"`

	// What wrk does not know: the processor time of the gateway and of the store,
	// in microseconds, for all requests together.
	Gateway, Store int64
}

// perSecond returns the requests in a second.
func (l load) perSecond() float64 { return float64(l.Requests) / (float64(l.Microseconds) / 1e6) }

// problem says why the load is not the one that was meant to be measured. The
// first request of a route that refuses may be allowed, and one more whenever a
// new window begins.
func (l load) problem(r route) error {
	if l.Failed > 0 {
		return fmt.Errorf("%s: %d of %d requests got no answer", r.name, l.Failed, l.Requests)
	}
	if !r.refused && l.Refused > 0 {
		return fmt.Errorf("%s: %d of %d requests were refused, want none", r.name, l.Refused, l.Requests)
	}
	if r.refused && l.Refused < l.Requests-2 {
		return fmt.Errorf("%s: only %d of %d requests were refused", r.name, l.Refused, l.Requests)
	}
	return nil
}

// runWrk loads a URL from one thread.
func runWrk(ctx context.Context, wrk, script, url string, connections int, duration time.Duration) (load, error) {
	ctx, cancel := context.WithTimeout(ctx, duration+30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, wrk, "-t1", "-c"+strconv.Itoa(connections),
		fmt.Sprintf("-d%ds", int(duration.Seconds())), "-s", script, url)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return load{}, fmt.Errorf("running wrk: %w\n%s", err, out)
	}
	return parseWrk(out)
}

func parseWrk(out []byte) (load, error) {
	var l load
	for _, line := range bytes.Split(out, []byte("\n")) {
		if text, ok := bytes.CutPrefix(line, []byte("RESULT ")); ok {
			if err := json.Unmarshal(text, &l); err != nil {
				return l, fmt.Errorf("reading what wrk found: %w", err)
			}
			if l.Requests < 1 || l.Microseconds < 1 {
				return l, errors.New("wrk made no request")
			}
			return l, nil
		}
	}
	return l, fmt.Errorf("wrk printed no result:\n%s", out)
}
