// Package ext stands in for Traefik's extension point, which is not published
// as a module: two empty structs that Traefik embeds in its dynamic configuration.
package ext

// HTTP extends the dynamic HTTP configuration by nothing.
type HTTP struct{}

// Router extends a router's configuration by nothing.
type Router struct{}
