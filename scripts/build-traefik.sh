#!/bin/sh
# Builds the real Traefik that the end-to-end suite runs the plugin in, at most
# once a machine, and prints the path of the binary. The first build takes some
# ten minutes on two cores; afterwards the answer comes at once. With --built it
# builds none, and fails where there is none yet.
set -eu

module=$(cd "$(dirname "$0")/../e2e/traefik" && pwd)
version=$(sed -n 's|^[[:space:]]*github.com/traefik/traefik/v3 \(v[^ ]*\).*|\1|p' "$module/go.mod" | head -n 1)
if [ -z "$version" ]; then
	echo "build-traefik: $module/go.mod names no version of Traefik" >&2
	exit 1
fi

# Everything that decides what the binary is goes into the name of its folder.
hash=$({
	cat "$module/go.mod" "$module/go.sum" "$module/ext/ext.go" "$module/ext/go.mod"
	go version
	go env CGO_ENABLED
} | sha256sum | cut -c 1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gatequota
folder=$cache/traefik-$version-$hash
binary=$folder/traefik

if [ "${1:-}" = --built ]; then
	[ -x "$binary" ] && echo "$binary"
	exit
fi
if [ ! -x "$binary" ]; then
	mkdir -p "$folder"
	# Whoever comes second waits here, and finds the binary built.
	exec 9>"$cache/traefik.lock"
	flock 9
	if [ ! -x "$binary" ]; then
		echo "build-traefik: building Traefik $version, which takes some ten minutes the first time" >&2
		start=$(date +%s)
		# A name of its own until it is whole: a build that was cut off leaves nothing that looks finished.
		nice go build -C "$module" -buildvcs=false \
			-ldflags "-s -w -X github.com/traefik/traefik/v3/pkg/version.Version=$version" \
			-o "$binary.part" github.com/traefik/traefik/v3/cmd/traefik >&2
		mv "$binary.part" "$binary"
		echo "build-traefik: built in $(($(date +%s) - start)) s" >&2
	fi
	exec 9>&-
fi
echo "$binary"
