package interpreted

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// An interpreted gateway whose store is away answers with metrics that Prometheus can read.
func TestMetrics(t *testing.T) {
	plugin, _ := load(t)
	middleware, err := plugin.Middleware("watched@file", map[string]any{
		"limit": 4, "window": "366d",
		"metrics": map[string]any{"path": "/metrics", "token": "secret"},
		"rules":   []any{map[string]any{"name": "slow", "path": "/slow", "limit": 1}},
		"valkey":  map[string]any{"endpoints": []any{"127.0.0.1:1"}}, // where nothing listens
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	handler, err := middleware.NewHandler(ctx, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	if err != nil {
		t.Fatal(err)
	}
	get := func(path, peer, token string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(http.MethodGet, path, nil)
		req.RemoteAddr = peer + ":1234"
		req.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, req)
		return w
	}
	for range 6 {
		get("/", "192.0.2.1", "")
	}
	for range 3 {
		get("/slow", "192.0.2.1", "")
	}
	for peer, token := range map[string]string{"192.0.2.2": "secret", "127.0.0.1": "secrets"} {
		if w := get("/metrics", peer, token); w.Code != http.StatusTeapot || w.Header().Get("X-Ratelimit-Remaining") == "" {
			t.Errorf("%s with %s gets %d, %v", peer, token, w.Code, w.Header())
		}
	}

	w := get("/metrics", "127.0.0.1", "secret")
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" || w.Header().Get("X-Ratelimit-Remaining") != "" {
		t.Fatalf("%d, %v", w.Code, w.Header())
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, pair := range m.GetLabel() {
				name += " " + pair.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	for name, want := range map[string]float64{
		"gatequota_decisions_total watched@file  allowed local":     4 + 2, // two peers asked for the metrics in vain
		"gatequota_decisions_total watched@file  refused local":     2,
		"gatequota_decisions_total watched@file slow allowed local": 1,
		"gatequota_decisions_total watched@file slow refused local": 2,
		"gatequota_decisions_total watched@file  allowed shared":    0,
		"gatequota_store_up 127.0.0.1:1":                            0,
		"gatequota_store_changes_total 127.0.0.1:1 away":            1,
		"gatequota_outage_allowed_total watched@file ":              4 + 2,
		"gatequota_outage_allowed_total watched@file slow":          1,
		"gatequota_clients watched@file  31622400":                  3,
		"gatequota_clients_max watched@file slow 31622400":          65536,
	} {
		if n, found := got[name]; !found || n != want {
			t.Errorf("%s is %v (there: %t), want %v", name, n, found, want)
		}
	}
	if n := got["gatequota_store_errors_total 127.0.0.1:1 dial"]; n < 3 {
		t.Errorf("%v failures to connect", n)
	}
}
