// Screenshot takes the picture of the status page that stands in the documentation: of
// two real gateways that serve made-up clients for three minutes, with an outage of the
// store in between. It needs root, since the gateways get names of machines of their own.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatequota/gatequota/e2e/browser"
	"github.com/gatequota/gatequota/e2e/lab"
)

func main() {
	path := flag.String("o", filepath.Join(lab.Root(), "docs", "status.png"), "the picture")
	more := flag.String("more", "", "a directory for pictures by night, on a phone and during the outage")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	if err := lab.Outside(ctx, func(t testing.TB) { take(t, *path, *more) }); err != nil {
		fmt.Fprintln(os.Stderr, "screenshot:", err)
		os.Exit(1)
	}
}

// statusPath is where the gateways have their status.
const statusPath = "/-/gatequota"

// clients make requests at these rates, each minute.
var clients = []int{420, 330, 290, 240, 170, 120, 90, 40, 15}

func take(t testing.TB, path, more string) {
	nameMachines(t)
	store := lab.Valkey(t, lab.StoreOptions{})
	dynamic := routes(t, store)
	one, two := gateway(t, "gw1", dynamic), gateway(t, "gw2", dynamic)
	chromium := browser.Start(t)
	page := chromium.Open(one.URL+statusPath, browser.Look{})

	client := lab.NewClient(t)
	for i, rate := range clients {
		client.Steady(t, 1, time.Minute/time.Duration(rate), func(n int) lab.Request {
			url := one.URL + "/"
			if n%3 == 0 {
				url = two.URL + "/"
			}
			if n%9 == 4 {
				url += "search"
			}
			return lab.Keyed(url, "client-"+strconv.Itoa(i))
		})
	}
	client.Steady(t, 1, 25*time.Second, func(_ int) lab.Request { return lab.Keyed(one.URL+"/login", "client-3") })

	time.Sleep(100 * time.Second)
	store.Stop()
	time.Sleep(12 * time.Second)
	if more != "" {
		page.Screenshot(filepath.Join(more, "away.png"))
	}
	store.Start()
	// The picture is taken late in a minute, when clients have used something of it.
	time.Sleep(60 * time.Second)
	time.Sleep(lab.UntilEdge(time.Now().Add(15*time.Second), time.Minute))
	page.Screenshot(path)
	if err := shrink(path); err != nil {
		t.Fatal(err)
	}
	if more != "" {
		page.Prefer(true)
		page.Screenshot(filepath.Join(more, "dark.png"))
		page.Resize(320, 700)
		time.Sleep(3 * time.Second)
		page.Screenshot(filepath.Join(more, "phone-dark.png"))
		page.Prefer(false)
		page.Screenshot(filepath.Join(more, "phone.png"))
	}
	if problems := page.Events().Errors; len(problems) > 0 {
		t.Errorf("in the page: %v", problems)
	}
}

// routes is an API with a search and a login.
func routes(t testing.TB, store *lab.Store) string {
	quota := func(options lab.Map) lab.Map {
		options["sourceCriterion"] = lab.Map{"requestHeaderName": "X-API-Key"}
		options["valkey"] = lab.Map{"endpoints": []string{store.Addr()}}
		return lab.Quota(options)
	}
	return lab.Routes{
		Routers: map[string]lab.Route{
			"api":   {Rule: "PathPrefix(`/`)", Middlewares: []string{"quota"}, Service: "app"},
			"login": {Rule: "PathPrefix(`/login`)", Middlewares: []string{"login"}, Service: "app"},
		},
		Middlewares: map[string]lab.Map{
			"quota": quota(lab.Map{
				"scope": "apikey", "limit": 300, "window": "60s", "control": true, "status": lab.Map{"path": statusPath},
				"rules": []lab.Map{{"name": "search", "pathPrefix": "/search", "limit": 30, "window": "60s", "algorithm": "token-bucket",
					"burst": 10, "onStoreFailure": "open"}},
			}),
			"login": quota(lab.Map{"scope": "login", "limit": 5, "window": "15m", "algorithm": "sliding-log", "onStoreFailure": "closed"}),
		},
		Services: map[string]string{"app": lab.NewApp(t, 1).URLs[0]},
	}.YAML(t)
}

// gateway starts a gateway on what it takes for a machine of this name.
func gateway(t testing.TB, name, dynamic string) *lab.Traefik {
	return lab.NewTraefik(t, lab.TraefikOptions{Env: []string{"MACHINE=" + name}}, dynamic)
}

// nameMachines makes gateways obey the environment variable MACHINE.
func nameMachines(t testing.TB) {
	build := exec.Command(filepath.Join(lab.Root(), "scripts", "build-traefik.sh"))
	build.Stderr = os.Stderr
	binary, err := build.Output()
	if err != nil {
		t.Fatalf("building Traefik: %v", err)
	}
	script := filepath.Join(t.TempDir(), "traefik")
	text := "#!/bin/sh\nexec unshare --uts sh -c 'hostname \"$MACHINE\" && exec \"$0\" \"$@\"' '" + strings.TrimSpace(string(binary)) + "' \"$@\"\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Setenv("TRAEFIK", script); err != nil {
		t.Fatal(err)
	}
}
