package interpreted

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/traefik/yaegi/interp"
	"github.com/traefik/yaegi/stdlib"

	"github.com/gatequota/gatequota/status"
)

// example is a view, as interpreted code makes one.
const example = `
package example

import (
	"net/http"
	"time"

	"github.com/gatequota/gatequota/status"
	"github.com/gatequota/gatequota/tally"
)

func Serve(w http.ResponseWriter, req *http.Request) {
	status.Serve(w, req, &status.View{
		Gateway: "00112233445566ff", Host: "gw1", Started: time.Unix(1764526000, 0),
		Scopes: []status.Scope{
			{Name: "api", Share: "1/2", Control: &status.Control{Version: 3, Age: 1.5, Enabled: true, Allows: 1}, Limits: []status.Limit{
				{Middleware: "quota@file", Algorithm: "fixed-window", Limit: 100, Window: 60, OnStoreFailure: "local"},
				{Middleware: "quota@file", Rule: "login", Count: "login", Algorithm: "token-bucket", Limit: 5, Window: 60, Burst: 2, DryRun: true},
			}},
			{Name: "none"},
		},
	})
}

func Count() {
	tally.Add(tally.Open("api", ""), tally.AllowedShared)
	tally.Add(tally.Open("api", "login"), tally.RefusedMemory)
}
`

// The status says the same whether it is interpreted or compiled, but for what each
// process counts by itself.
func TestStatus(t *testing.T) {
	goPath := t.TempDir()
	link := filepath.Join(goPath, "src", "github.com", "gatequota", "gatequota")
	checkout, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(checkout, link); err != nil {
		t.Fatal(err)
	}
	i := interp.New(interp.Options{GoPath: goPath})
	if err := i.Use(stdlib.Symbols); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Eval(example); err != nil {
		t.Fatal(err)
	}
	value := func(name string) reflect.Value {
		v, err := i.Eval("example." + name)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	serve := value("Serve").Interface().(func(http.ResponseWriter, *http.Request))
	value("Count").Interface().(func())()

	page := httptest.NewRecorder()
	serve(page, httptest.NewRequest(http.MethodGet, "/-/gatequota", nil))
	compiled := httptest.NewRecorder()
	status.Serve(compiled, httptest.NewRequest(http.MethodGet, "/-/gatequota", nil), &status.View{})
	if page.Body.String() != status.Page || !reflect.DeepEqual(page.Header(), compiled.Header()) {
		t.Errorf("the page differs when it is interpreted: %d bytes for %d, fields %v for %v",
			page.Body.Len(), len(status.Page), page.Header(), compiled.Header())
	}

	answer := httptest.NewRecorder()
	serve(answer, httptest.NewRequest(http.MethodGet, "/-/gatequota?format=json", nil))
	var got map[string]any
	if err := json.Unmarshal(answer.Body.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, answer.Body)
	}
	now, _ := got["time"].(float64)
	if age := time.Since(time.UnixMilli(int64(now))); age < -time.Minute || age > time.Minute {
		t.Errorf("the status is %v old", age)
	}
	delete(got, "time")
	delete(got, "version")
	var want map[string]any
	if err := json.Unmarshal([]byte(`{
		"gateway": "00112233445566ff", "host": "gw1", "started": 1764526000000, "stores": [],
		"scopes": [
			{"scope": "api", "gateways": 0, "share": "1/2",
				"control": {"version": 3, "age": 1.5, "enabled": true, "dryRun": false, "allows": 1, "blocks": 0},
				"limits": [
					{"middleware": "quota@file", "rule": "", "count": "", "algorithm": "fixed-window", "limit": 100,
						"window": 60, "burst": 0, "onStoreFailure": "local", "dryRun": false},
					{"middleware": "quota@file", "rule": "login", "count": "login", "algorithm": "token-bucket", "limit": 5,
						"window": 60, "burst": 2, "onStoreFailure": "", "dryRun": true}],
				"clients": [],
				"decisions": [
					{"rule": "", "outcome": "allowed", "way": "shared", "total": 1},
					{"rule": "login", "outcome": "refused", "way": "memory", "total": 1}],
				"nearest": []},
			{"scope": "none", "gateways": 0, "share": "", "control": null, "limits": [], "clients": [], "decisions": [], "nearest": []}]
	}`), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the status is %s", answer.Body)
	}
}
