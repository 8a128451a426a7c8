// The command gatequota: a module of its own, compiled, so that none of its
// dependencies reach the plugin.
module github.com/gatequota/gatequota/ctl

go 1.26.0

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/gatequota/gatequota v0.0.0-00010101000000-000000000000
	github.com/redis/go-redis/v9 v9.21.0
	github.com/spf13/cobra v1.10.2
	golang.org/x/sys v0.50.0
	golang.org/x/term v0.48.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/spf13/pflag v1.0.9 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.11.0 // indirect
)

replace github.com/gatequota/gatequota => ../
