// The end-to-end suite: a module of its own, so that none of its dependencies
// reach the plugin.
module github.com/gatequota/gatequota/e2e

go 1.26.0

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/dunglas/httpsfv v1.1.2
	github.com/gatequota/gatequota v0.0.0-00010101000000-000000000000
	github.com/gorilla/websocket v1.5.3
	github.com/mitchellh/mapstructure v1.5.1-0.20231216201459-8508981c8b6c
	github.com/redis/go-redis/v9 v9.21.0
	github.com/traefik/yaegi v0.16.1
)

require (
	github.com/yuin/gopher-lua v1.1.1 // indirect
	golang.org/x/net v0.53.0 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)

replace github.com/gatequota/gatequota => ../
