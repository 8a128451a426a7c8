#!/bin/sh
# Installs what the end-to-end suite needs on Debian 12: Valkey, Redis 7, wrk,
# and a Docker engine with Compose. It does nothing where all of it is there,
# and says what is missing where it cannot install.
set -eu

missing=""
need() { # need PROGRAM PACKAGE: note the package unless the program is there
	command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need valkey-server valkey-server
need valkey-cli valkey-tools
need redis-server redis-server
need redis-cli redis-tools
need wrk wrk
need dockerd docker.io
need iptables iptables
need docker-compose docker-compose
need gcc gcc
need flock util-linux
[ -n "$missing" ] || exit 0

fail() {
	echo "install-e2e: $1; please install:$missing" >&2
	exit 1
}
[ "$(id -u)" = 0 ] || fail "only root can install packages"
command -v apt-get >/dev/null 2>&1 || fail "this system has no apt-get"

# Valkey is in the backports of Debian 12. Their source is written from the one
# that the machine already uses, so that any mirror in use stays in use.
case $missing in
*valkey*)
	release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	if [ "$release" = bookworm ] && ! grep -rqs "bookworm-backports" /etc/apt/sources.list /etc/apt/sources.list.d/; then
		if [ -s /etc/apt/sources.list.d/debian.sources ]; then
			awk '/^$/ { exit } /^Suites:/ { $0 = "Suites: bookworm-backports" } { print }' \
				/etc/apt/sources.list.d/debian.sources >/etc/apt/sources.list.d/backports.sources
		elif grep -qs '^deb .* bookworm ' /etc/apt/sources.list; then
			sed -n 's/^\(deb .*\) bookworm \(.*\)$/\1 bookworm-backports \2/p' /etc/apt/sources.list |
				head -n 1 >/etc/apt/sources.list.d/backports.list
		else
			fail "no Debian source to derive the backports from"
		fi
	fi
	;;
esac

export DEBIAN_FRONTEND=noninteractive
# Keeps the packages from starting their services: the suite starts its own.
export RUNLEVEL=1
apt-get update -q >&2 || fail "apt-get update failed"
for package in $missing; do
	case $package in
	valkey-*) apt-get install -qy --no-install-recommends -t "$release-backports" "$package" >&2 ||
		apt-get install -qy --no-install-recommends "$package" >&2 || fail "apt-get could not install $package" ;;
	*) apt-get install -qy --no-install-recommends "$package" >&2 || fail "apt-get could not install $package" ;;
	esac
done
missing=""
need valkey-server valkey-server
need valkey-cli valkey-tools
need redis-server redis-server
need redis-cli redis-tools
need wrk wrk
need dockerd docker.io
need docker-compose docker-compose
[ -z "$missing" ] || fail "some programs are still not on the PATH"
