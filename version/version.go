// Package version says which release this is.
package version

// Number is the version of the plugin and of all that is released with it, as of
// https://semver.org, without a v before it.
const Number = "0.1.0"
