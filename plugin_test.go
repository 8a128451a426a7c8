package gatequota_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gatequota/gatequota"
	"github.com/gatequota/gatequota/internal/suite"
)

func TestMiddleware(t *testing.T) {
	suite.Run(t, suite.Plugin{Configure: configure, Output: output(t)})
}

var next = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })

func TestNewDemandsAHandlerAndOptions(t *testing.T) {
	config := local()
	if h, err := gatequota.New(context.Background(), nil, config, "quota@file"); h != nil || err == nil {
		t.Errorf("without a next handler: %v, %v", h, err)
	}
	if h, err := gatequota.New(context.Background(), next, nil, "quota@file"); h != nil || err == nil {
		t.Errorf("without options: %v, %v", h, err)
	}
}

func TestNewNamesTheMiddleware(t *testing.T) {
	config := local()
	config.Limit = "none"
	h, err := gatequota.New(context.Background(), next, config, "door@file")
	if h != nil || err == nil || !strings.HasPrefix(err.Error(), "gatequota: middleware door@file: option limit: ") {
		t.Errorf("%v, %v", h, err)
	}
}

var runs atomic.Int64

// Traefik cancels the context of New before the handlers made with it are done.
func TestHandlersOutliveTheirContext(t *testing.T) {
	output(t)
	ctx, cancel := context.WithCancel(context.Background())
	// Counts outlive a test, so that each run has a scope of its own.
	name := "outlives" + strconv.FormatInt(runs.Add(1), 10) + "@file"
	h, err := gatequota.New(ctx, next, local(), name)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for i, want := range []int{http.StatusNoContent, http.StatusTooManyRequests} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		if w.Code != want {
			t.Errorf("request %d: %d, want %d", i+1, w.Code, want)
		}
	}
}

// All routers of a middleware are made with the same options.
func TestNewDoesNotChangeItsOptions(t *testing.T) {
	output(t)
	config, same := gatequota.CreateConfig(), gatequota.CreateConfig()
	for _, c := range []*gatequota.Config{config, same} {
		c.Limit, c.Window, c.DecisionHeader = float64(5), "1m", "x-way"
		c.SourceCriterion.IPStrategy = &gatequota.IPStrategy{ExcludedIPs: []string{" 10.1.2.3/8 ", "::ffff:192.0.2.1"}}
		c.Valkey.Endpoints = []string{"valkey"}
		c.Valkey.Password = "secret"
		c.Valkey.TLS = &gatequota.TLSConfig{InsecureSkipVerify: "true"}
	}
	for i := 0; i < 3; i++ {
		if _, err := gatequota.New(context.Background(), next, config, "same@file"); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(config, same) {
		t.Errorf("the options became %+v", config)
	}
}

// local returns options with which a client may make one request in a day.
func local() *gatequota.Config {
	config := gatequota.CreateConfig()
	config.Limit, config.Window, config.Mode = "1", "366d", "local"
	return config
}

// output sends what the plugin logs to a file until the end of the test, and
// returns what reads it.
func output(t *testing.T) func() string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	os.Stderr = file
	log.SetOutput(file)
	t.Cleanup(func() {
		os.Stderr = stderr
		log.SetOutput(stderr)
		_ = file.Close()
	})
	return func() string {
		text, err := os.ReadFile(file.Name())
		if err != nil {
			t.Errorf("reading the output: %v", err)
		}
		return string(text)
	}
}

func configure(ctx context.Context, name string, options map[string]any) (suite.New, error) {
	config := gatequota.CreateConfig()
	if err := decodeGroup("", options, reflect.ValueOf(config).Elem()); err != nil {
		return nil, err
	}
	return func(next http.Handler) (http.Handler, error) {
		return gatequota.New(ctx, next, config, name)
	}, nil
}

// decode does what Traefik's decoder does with the options of a plugin, as far as
// there are such: names match without case, one text becomes a list at its commas, a
// value that is wanted as a text becomes one, and what has no field goes to Unknown.
func decode(path string, value any, field reflect.Value) error {
	switch field.Kind() {
	case reflect.Interface:
		if value == nil {
			return nil
		}
		if field.IsNil() {
			field.Set(reflect.ValueOf(value))
			return nil
		}
		// A value takes the type of the default.
		typed := reflect.New(field.Elem().Type()).Elem()
		if err := decode(path, value, typed); err != nil {
			return err
		}
		field.Set(typed)
		return nil
	case reflect.String:
		text, err := weakText(path, value)
		field.SetString(text)
		return err
	case reflect.Slice:
		return decodeList(path, value, field)
	case reflect.Map:
		return decodeMap(path, value, field)
	case reflect.Ptr:
		field.Set(reflect.New(field.Type().Elem()))
		return decode(path, value, field.Elem())
	case reflect.Struct:
		return decodeGroup(path, value, field)
	}
	return fmt.Errorf("%s: a field of type %s", path, field.Type())
}

func weakText(path string, value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case bool:
		if v {
			return "1", nil
		}
		return "0", nil
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), nil
	}
	return "", fmt.Errorf("'%s' expected type 'string', got %T", path, value)
}

func decodeList(path string, value any, field reflect.Value) error {
	var elements []any
	switch v := value.(type) {
	case string:
		if v != "" {
			for _, part := range strings.Split(v, ",") {
				elements = append(elements, part)
			}
		}
	case []string:
		for _, part := range v {
			elements = append(elements, part)
		}
	case []any:
		elements = v
	default:
		elements = []any{value}
	}
	list := reflect.MakeSlice(field.Type(), len(elements), len(elements))
	for i, element := range elements {
		if err := decode(path+"["+strconv.Itoa(i)+"]", element, list.Index(i)); err != nil {
			return err
		}
	}
	field.Set(list)
	return nil
}

func decodeMap(path string, value any, field reflect.Value) error {
	group, ok := value.(map[string]any)
	if !ok {
		return fmt.Errorf("'%s' expected a map, got %T", path, value)
	}
	field.Set(reflect.MakeMap(field.Type()))
	for name, inner := range group {
		element := reflect.New(field.Type().Elem()).Elem()
		if err := decode(path+"["+name+"]", inner, element); err != nil {
			return err
		}
		field.SetMapIndex(reflect.ValueOf(name), element)
	}
	return nil
}

func decodeGroup(path string, value any, field reflect.Value) error {
	group, ok := value.(map[string]any)
	if !ok {
		return fmt.Errorf("'%s' expected a map, got %T", strings.TrimPrefix(path, "."), value)
	}
	unknown := map[string]interface{}{}
	var problems []error
	for name, inner := range group {
		known := field.FieldByNameFunc(func(own string) bool { return own != "Unknown" && strings.EqualFold(own, name) })
		if !known.IsValid() {
			unknown[name] = inner
			continue
		}
		problems = append(problems, decode(strings.TrimPrefix(path+"."+name, "."), inner, known))
	}
	if len(unknown) > 0 {
		field.FieldByName("Unknown").Set(reflect.ValueOf(unknown))
	}
	return errors.Join(problems...)
}

// The catalog of plugins shows the options by their json names, and Traefik reads
// them by the names of the fields: the two have to be one.
func TestOptionsAreNamedAlike(t *testing.T) {
	text, err := json.Marshal(gatequota.CreateConfig())
	if err != nil {
		t.Fatal(err)
	}
	var options map[string]any
	if err := json.Unmarshal(text, &options); err != nil {
		t.Fatal(err)
	}
	back := gatequota.CreateConfig()
	if err := decodeGroup("", options, reflect.ValueOf(back).Elem()); err != nil {
		t.Fatal(err)
	}
	if back.Unknown != nil || back.Valkey.Unknown != nil {
		t.Errorf("unknown: %v, %v", back.Unknown, back.Valkey.Unknown)
	}
	names := reflect.TypeOf(gatequota.Config{})
	for _, group := range []reflect.Type{names, reflect.TypeOf(gatequota.SourceCriterion{}), reflect.TypeOf(gatequota.IPStrategy{}),
		reflect.TypeOf(gatequota.ValkeyConfig{}), reflect.TypeOf(gatequota.TLSConfig{}), reflect.TypeOf(gatequota.RuleConfig{}),
		reflect.TypeOf(gatequota.LimitConfig{}), reflect.TypeOf(gatequota.HeaderConfig{}), reflect.TypeOf(gatequota.ExemptConfig{}),
		reflect.TypeOf(gatequota.PlansConfig{}), reflect.TypeOf(gatequota.AllowanceConfig{}), reflect.TypeOf(gatequota.OverrideConfig{}),
		reflect.TypeOf(gatequota.GatewayLimitConfig{}), reflect.TypeOf(gatequota.ResponseConfig{}), reflect.TypeOf(gatequota.FallbackConfig{})} {
		for i := 0; i < group.NumField(); i++ {
			field := group.Field(i)
			tag := strings.TrimSuffix(field.Tag.Get("json"), ",omitempty")
			if field.Name != "Unknown" && !strings.EqualFold(tag, field.Name) {
				t.Errorf("%s.%s is %q in json", group.Name(), field.Name, tag)
			}
		}
	}
}
