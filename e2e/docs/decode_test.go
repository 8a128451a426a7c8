package docs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/compose-spec/compose-go/v2/template"
	"github.com/mitchellh/mapstructure"
	"github.com/traefik/paerser/file"
	"github.com/traefik/paerser/parser"
	"gopkg.in/yaml.v3"

	"github.com/gatequota/gatequota"
)

// configuration is that part of Traefik's dynamic configuration, of v3.7.10, which
// holds plugins.
type configuration struct {
	HTTP *struct {
		Middlewares map[string]*struct {
			Plugin map[string]pluginConf
		}
	}
}

type pluginConf map[string]any

// only returns the options of the one middleware of a configuration, and its name.
func (c *configuration) only() (string, map[string]any, error) {
	if c.HTTP == nil || len(c.HTTP.Middlewares) != 1 {
		return "", nil, errors.New("one middleware is wanted")
	}
	for name, middleware := range c.HTTP.Middlewares {
		if options := middleware.Plugin["gatequota"]; len(options) > 0 {
			return name, options, nil
		}
	}
	return "", nil, errors.New("there are no options of gatequota")
}

// fromLabels reads labels of a Compose file as Traefik's Docker provider does.
func fromLabels(text string) (string, map[string]any, error) {
	var part struct {
		Labels map[string]string
	}
	if err := yaml.Unmarshal([]byte(text), &part); err != nil {
		return "", nil, err
	}
	for name, value := range part.Labels {
		plain, err := template.Substitute(value, func(string) (string, bool) { return "", false })
		if err != nil {
			return "", nil, fmt.Errorf("label %s: %w", name, err)
		}
		part.Labels[name] = plain
	}
	c := &configuration{}
	if err := parser.Decode(part.Labels, c, parser.DefaultRootName, "traefik.http", "traefik.tcp", "traefik.udp"); err != nil {
		return "", nil, err
	}
	return c.only()
}

// fromFile reads a file as Traefik's file provider does; extension says of which kind.
func fromFile(text, extension string) (string, map[string]any, error) {
	c := &configuration{}
	if err := file.DecodeContent(text, extension, c); err != nil {
		return "", nil, err
	}
	return c.only()
}

// fromKubernetes reads a Middleware as Traefik's provider for Kubernetes resources does,
// with the Secrets that stand before it.
func fromKubernetes(text string) (string, map[string]any, error) {
	secrets := map[string]string{}
	documents := yaml.NewDecoder(strings.NewReader(text))
	for {
		var document struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     struct {
				Plugin map[string]any
			}
			StringData map[string]string `yaml:"stringData"`
		}
		err := documents.Decode(&document)
		if errors.Is(err, io.EOF) {
			return "", nil, errors.New("there is no Middleware")
		}
		if err != nil {
			return "", nil, err
		}
		switch document.Kind {
		case "Secret":
			for key, value := range document.StringData {
				secrets["urn:k8s:secret:"+document.Metadata.Name+":"+key] = value
			}
		case "Middleware":
			data, err := json.Marshal(document.Spec.Plugin)
			if err != nil {
				return "", nil, err
			}
			plugins := map[string]pluginConf{}
			if err := json.Unmarshal(data, &plugins); err != nil {
				return "", nil, err
			}
			options := replaced(map[string]any(plugins["gatequota"]), secrets).(map[string]any)
			if left, err := json.Marshal(options); err != nil || strings.Contains(string(left), "urn:k8s:") {
				return "", nil, fmt.Errorf("a secret is missing: %s (%w)", left, err)
			}
			return document.Metadata.Name, options, nil
		}
	}
}

// replaced returns options with each text that is a key of with replaced by its value.
func replaced(options any, with map[string]string) any {
	switch v := options.(type) {
	case map[string]any:
		copied := map[string]any{}
		for name, value := range v {
			copied[name] = replaced(value, with)
		}
		return copied
	case []any:
		copied := make([]any, len(v))
		for i, value := range v {
			copied[i] = replaced(value, with)
		}
		return copied
	case string:
		if text, found := with[v]; found {
			return text
		}
	}
	return options
}

// decode does with options what Traefik does when it makes a middleware of a plugin,
// which package host does for an interpreted one.
func decode(options map[string]any) (*gatequota.Config, error) {
	config := gatequota.CreateConfig()
	decoder, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		DecodeHook:       mapstructure.StringToSliceHookFunc(","),
		WeaklyTypedInput: true,
		Result:           config,
	})
	if err != nil {
		return nil, err
	}
	return config, decoder.Decode(options)
}
