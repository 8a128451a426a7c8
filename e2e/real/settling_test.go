package real_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/lab"
)

// Two middlewares of one scope that reach the store by other settings, as before
// and after a reload that changes valkey.timeout, settle what passed exactly once,
// though both meet the store again at the same time.
func TestTwoWaysToOneStoreSettleOnce(t *testing.T) {
	t.Parallel()
	const limit, passes = 1000, 20
	store := lab.Valkey(t, lab.StoreOptions{})
	proxy := lab.NewProxy(t, store.Addr())
	window, id := lab.QuietWindow(time.Now())
	gateway := newHosted(t)
	base := shared(proxy.Addr(), limit, window)
	ways := []func(string) lab.Answer{
		gateway.handler(base.with("valkey.timeout", "4s")),
		gateway.handler(base.with("valkey.timeout", "5s")),
	}
	newcomers := 0
	counts := func(ask func(string) lab.Answer) bool {
		newcomers++
		return ask(fmt.Sprint("newcomer-", newcomers)).Header.Get("X-RateLimit-Decision") == "shared"
	}
	for _, ask := range ways {
		lab.Until(t, "the store counts", func() bool { return counts(ask) })
	}
	proxy.Close()
	proxy.Cut()
	for range passes / 2 {
		for _, ask := range ways {
			if way := ask("key").Header.Get("X-RateLimit-Decision"); way != "local" {
				t.Fatalf("decided %s without the store", way)
			}
		}
	}
	// So slow that what is settled by one way is still under way when the other begins.
	proxy.Set(lab.Faults{Delay: 400 * time.Millisecond})
	proxy.Open()
	for _, ask := range ways {
		lab.Until(t, "the store counts again", func() bool { return counts(ask) })
	}
	// Whatever was under way on either comes before this.
	proxy.Set(lab.Faults{})
	for i, ask := range ways {
		a := ask("key")
		if want := limit - passes - 1 - i; a.Number("X-RateLimit-Remaining") != want {
			t.Errorf("%d requests remain, decided %s, want %d", a.Number("X-RateLimit-Remaining"), a.Header.Get("X-RateLimit-Decision"), want)
		}
	}
	if got := countIn(t, store, 0, keyOf("quota@file", "key", id)); got != passes+2 {
		t.Errorf("the store has counted %d, want %d", got, passes+2)
	}
}

// A store that restarts empty while a gateway has nothing to ask it is told what
// the gateway knows, as soon as the gateway meets it again.
func TestRestartInAQuietMomentIsMadeGood(t *testing.T) {
	t.Parallel()
	const limit, passes = 20, 15
	store := lab.Valkey(t, lab.StoreOptions{})
	window, id := lab.QuietWindow(time.Now())
	ask := newHosted(t).handler(shared(store.Addr(), limit, window))
	var answers lab.Answers
	for range passes {
		answers = append(answers, ask("key"))
	}
	mustDecide(t, "before", answers, "shared")
	store.Kill()
	store.Start()
	// A connection that rested for a second is looked at before it is used, so that no
	// request notices the restart. This is longer on a slow machine, too.
	time.Sleep(3 * time.Second)
	if way := ask("newcomer").Header.Get("X-RateLimit-Decision"); way != "shared" {
		t.Errorf("decided %s", way)
	}
	lab.Until(t, "the other client's count is there", func() bool {
		return countIn(t, store, 0, keyOf("quota@file", "key", id)) == passes
	})
}
