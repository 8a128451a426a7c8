package real_test

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// percentile returns the time within which so many of a hundred answers arrived.
func percentile(as lab.Answers, percent float64) time.Duration {
	took := make([]time.Duration, len(as))
	for i, a := range as {
		took[i] = a.Took
	}
	slices.Sort(took)
	return took[min(len(took)-1, int(float64(len(took))*percent/100))]
}

// changes returns how often the answers went over from the store's count to the
// gateway's own and back, by what most answers of each length of time were.
func changes(as lab.Answers, length time.Duration) int {
	shared, all := map[int64]int{}, map[int64]int{}
	for _, a := range as {
		at := a.At.UnixNano() / int64(length)
		all[at]++
		if a.Header.Get("X-RateLimit-Decision") == "shared" {
			shared[at]++
		}
	}
	times := make([]int64, 0, len(all))
	for at := range all {
		times = append(times, at)
	}
	slices.Sort(times)
	n, was := 0, true
	for i, at := range times {
		is := 2*shared[at] > all[at]
		if i > 0 && is != was {
			n++
		}
		was = is
	}
	return n
}

// However slow the store is, no request waits for it much longer than it may, and
// the gateway does not go back and forth between two ways all the time.
func TestSlowStoreHoldsNoRequestUp(t *testing.T) {
	const (
		timeout = 100 * time.Millisecond
		// margin is what a request may take besides, at most, beyond what one that
		// nobody limits takes on the same gateway at the same time.
		margin = 500 * time.Millisecond
		lasts  = 5 * time.Second
	)
	type slowness struct {
		fault
		tooSlow bool // for any answer in time
	}
	late := func(d time.Duration) slowness {
		return slowness{tooSlow: d > timeout, fault: fault{
			name:  fmt.Sprintf("replies %s late", d),
			begin: func(_ *lab.Store, p *lab.Proxy) { p.Set(lab.Faults{Delay: d}) },
			end:   func(_ *lab.Store, p *lab.Proxy) { p.Set(lab.Faults{}) },
		}}
	}
	for _, f := range []slowness{
		{tooSlow: true, fault: fault{
			// It ends by itself: CLIENT UNPAUSE would be held up as well.
			name:  "CLIENT PAUSE",
			begin: func(s *lab.Store, _ *lab.Proxy) { s.Do("CLIENT", "PAUSE", (lasts + 2*time.Second).Milliseconds()) },
			end:   func(*lab.Store, *lab.Proxy) {},
		}},
		{tooSlow: true, fault: fault{
			name: "DEBUG SLEEP",
			begin: func(s *lab.Store, _ *lab.Proxy) {
				go s.Client().Do(t.Context(), "DEBUG", "SLEEP", lasts.Seconds())
			},
			end: func(*lab.Store, *lab.Proxy) {},
		}},
		late(80 * time.Millisecond), late(99 * time.Millisecond), late(150 * time.Millisecond), late(400 * time.Millisecond),
	} {
		t.Run(f.name, func(t *testing.T) {
			store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
			proxy := lab.NewProxy(t, store.Addr())
			window, _ := lab.QuietWindow(time.Now())
			s := each(app, map[string]options{"limited": shared(proxy.Addr(), 1_000_000, window).with("valkey.timeout", timeout.String())})
			s.routers["free"] = router{rule: "Path(`/free`)"}
			tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, s.yaml(t))
			request := func(path string) func(int) lab.Request {
				return func(n int) lab.Request { return lab.Keyed(tr.URL+path, fmt.Sprintf("client-%d", n%50)) }
			}
			// About 300 requests a second, and 50 that nobody limits.
			const workers, others = 24, 4
			load := client.Steady(t, workers, 80*time.Millisecond, request("/limited"))
			free := client.Steady(t, others, 80*time.Millisecond, request("/free"))
			lab.Until(t, "the store counts", func() bool {
				got := load.Since(0)
				return len(got) > 200 && got[len(got)-50:].Decisions() == "shared: 50" && free.Len() > 0
			})
			goroutines := tr.Goroutines()
			mark, freeMark := load.Len(), free.Len()
			f.begin(store, proxy)
			time.Sleep(lasts)
			during, without := load.Since(mark), free.Since(freeMark)
			atWorst := tr.Goroutines()
			f.end(store, proxy)
			lab.Until(t, "the store counts again", func() bool {
				got := load.Since(mark + len(during))
				return len(got) > 50 && got[len(got)-50:].Decisions() == "shared: 50"
			})
			load.Stop()
			free.Stop()
			mustBe(t, f.name, during, http.StatusOK)
			mustBe(t, f.name+", without a limit", without, http.StatusOK)
			back := changes(during[len(during)/2:], 250*time.Millisecond)
			t.Logf("%d answers, %s: p50 %s, p99 %s, worst %s, without a limit %s; %d goroutines, %d before; %d changes of way, %d of them in the second half; %d connections; %d lines",
				len(during), during.Decisions(), percentile(during, 50).Round(time.Millisecond), percentile(during, 99).Round(time.Millisecond),
				during.Slowest().Round(time.Millisecond), without.Slowest().Round(time.Millisecond), atWorst, goroutines,
				changes(during, 250*time.Millisecond), back, proxy.Accepted(), len(pluginLines(tr, 0)))
			alone := 0
			for _, a := range during {
				if a.Header.Get("X-RateLimit-Decision") == "local" {
					alone++
				}
			}
			if f.tooSlow && alone == 0 {
				t.Error("no request was decided without the store: this shows nothing")
			}
			if got := during.Slowest(); got > timeout+without.Slowest()+margin {
				t.Errorf("a request took %s, %s without a limit; the store has %s", got, without.Slowest(), timeout)
			}
			// What grows beyond the requests under way grows without bound.
			if atWorst > goroutines+4*(workers+others) {
				t.Errorf("%d goroutines, %d before", atWorst, goroutines)
			}
			if back > 3 {
				t.Errorf("the way changed %d times in the second half", back)
			}
			if lines := pluginLines(tr, 0); len(lines) > handful {
				t.Errorf("%d lines:\n%s", len(lines), strings.Join(lines, "\n"))
			}
		})
	}
}

// Many routers, many clients at once, and a store that is not near: that takes few
// connections, and the throughput is not that of one request at a time.
func TestConnectionsAreFewAndTheirLatencyIsShared(t *testing.T) {
	const routers, workers, requests = 14, 200, 8000
	store, app, client := lab.Valkey(t, lab.StoreOptions{}), lab.NewApp(t, 1), lab.NewClient(t)
	window, _ := lab.QuietWindow(time.Now())
	measure := func(name, base string) (rps float64, answers lab.Answers) {
		all := make([]lab.Request, requests)
		for n := range all {
			all[n] = lab.Keyed(fmt.Sprintf("%s/%s%d", base, name, n%routers), fmt.Sprintf("client-%d", n%1000))
		}
		client.Burst(workers, all[:2*workers]) // connections of the client and to the application
		start := time.Now()
		answers = client.Burst(workers, all)
		rps = requests / time.Since(start).Seconds()
		mustBe(t, name, answers, http.StatusOK)
		return rps, answers
	}
	for _, latency := range []time.Duration{time.Millisecond, 20 * time.Millisecond} {
		proxy := lab.NewProxy(t, store.Addr())
		proxy.Set(lab.Faults{Delay: latency})
		s := setup{app: app, middlewares: map[string]options{}, routers: map[string]router{}}
		for n := range routers {
			limited, free := fmt.Sprintf("limited%d", n), fmt.Sprintf("free%d", n)
			s.middlewares[limited] = shared(proxy.Addr(), 1_000_000, window)
			s.routers[limited] = router{rule: "Path(`/" + limited + "`)", middlewares: []string{limited}}
			s.routers[free] = router{rule: "Path(`/" + free + "`)"}
		}
		tr := lab.NewTraefik(t, lab.TraefikOptions{LogLevel: "ERROR"}, s.yaml(t))
		before, waiting := store.Info("total_connections_received"), timeWait(t, store.Port)
		free, without := measure("free", tr.URL)
		limited, with := measure("limited", tr.URL)
		connections := store.Info("total_connections_received") - before
		waited := timeWait(t, store.Port) - waiting
		t.Logf("%s away: %.0f requests a second, %.0f without the limiter; p99 %s and %s; %d connections to the store, %d in TIME_WAIT",
			latency, limited, free, percentile(with, 99).Round(time.Millisecond), percentile(without, 99).Round(time.Millisecond), connections, waited)
		mustDecide(t, "limited", with, "shared")
		// The lab's own client may open one or two.
		if connections > 8 || waited > 8 {
			t.Errorf("%d connections to the store, %d in TIME_WAIT", connections, waited)
		}
		if alone := 1 / latency.Seconds(); latency > time.Millisecond && limited < 5*alone {
			t.Errorf("%.0f requests a second, one at a time would be %.0f", limited, alone)
		}
		if lines := pluginLines(tr, 0); len(lines) > 0 {
			t.Errorf("logged: %q", lines)
		}
	}
}

// timeWait returns how many connections to a port of this machine are closed and
// still occupied.
func timeWait(t *testing.T, port int) int {
	t.Helper()
	n := 0
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(text), "\n") {
			fields := strings.Fields(line)
			if len(fields) < 4 || fields[3] != "06" {
				continue
			}
			end := fmt.Sprintf(":%04X", port)
			if strings.HasSuffix(fields[1], end) || strings.HasSuffix(fields[2], end) {
				n++
			}
		}
	}
	return n
}
