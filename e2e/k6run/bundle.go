package k6run

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
	"github.com/grafana/sobek"
)

// host is the global object through which the modules below reach this runner.
const host = "__k6run"

// exports is the global variable that holds what the script exports.
const exports = "__script"

// namespace marks the modules below in what the bundler says.
const namespace = "k6"

// modules are the modules of k6 that a script may import, as what they export.
// A name that is missing here is an error of the build, with its place in the
// script.
var modules = map[string]string{
	"k6": `
		export const { check, fail, sleep } = ` + host + `.k6;`,
	"k6/execution": `
		export default ` + host + `.execution;
		export const { scenario } = ` + host + `.execution;`,
	"k6/http": `
		export default ` + host + `.http;
		export const { get, expectedStatuses, setResponseCallback } = ` + host + `.http;`,
	"k6/metrics": `
		export const { Counter } = ` + host + `.metrics;`,
}

// program is a bundled script, compiled once for all virtual users.
type program struct {
	main *sobek.Program
}

// compile bundles the script with the files it imports.
func compile(script string) (*program, error) {
	built := api.Build(api.BuildOptions{
		EntryPoints: []string{script},
		Bundle:      true,
		Format:      api.FormatIIFE,
		GlobalName:  exports,
		Target:      api.ES2017,
		Charset:     api.CharsetUTF8,
		Sourcemap:   api.SourceMapInline,
		LogLevel:    api.LogLevelSilent,
		Plugins:     []api.Plugin{{Name: namespace, Setup: provideModules}},
	})
	// A warning tells of a name that will be undefined, among others: a script
	// that is run as a test has nothing of the kind.
	if messages := append(built.Errors, built.Warnings...); len(messages) > 0 {
		lines := api.FormatMessages(messages, api.FormatMessagesOptions{})
		err := fmt.Errorf("%w: bundling it:\n%s", ErrScript, strings.TrimSpace(strings.Join(lines, "")))
		if slices.ContainsFunc(messages, aboutModules) {
			err = fmt.Errorf("%w: %w", ErrNotOffered, err)
		}
		return nil, err
	}
	main, err := sobek.Compile(script, string(built.OutputFiles[0].Contents), true)
	if err != nil {
		return nil, fmt.Errorf("%w: compiling it: %w", ErrScript, err)
	}
	return &program{main: main}, nil
}

// aboutModules reports whether a message is about a module of k6 or a name in it.
func aboutModules(message api.Message) bool {
	return message.PluginName == namespace || strings.Contains(message.Text, `"`+namespace+":")
}

func provideModules(build api.PluginBuild) {
	build.OnResolve(api.OnResolveOptions{Filter: `^(k6(/.*)?|https?://.*)$`},
		func(args api.OnResolveArgs) (api.OnResolveResult, error) {
			if _, ok := modules[args.Path]; !ok {
				known := slices.Sorted(maps.Keys(modules))
				return api.OnResolveResult{}, fmt.Errorf("the module %q is not offered: there are %s",
					args.Path, strings.Join(known, ", "))
			}
			return api.OnResolveResult{Path: args.Path, Namespace: namespace}, nil
		})
	build.OnLoad(api.OnLoadOptions{Filter: `.*`, Namespace: namespace},
		func(args api.OnLoadArgs) (api.OnLoadResult, error) {
			source := modules[args.Path]
			return api.OnLoadResult{Contents: &source, Loader: api.LoaderJS}, nil
		})
}
