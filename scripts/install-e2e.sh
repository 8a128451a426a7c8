#!/bin/sh
# Installs what the end-to-end suite needs on Debian 12: Valkey, Redis 7, wrk, Prometheus,
# Chromium, a Docker engine with Compose, a C compiler and Node. It does nothing where all of
# it is there, whoever put it there, and says what is missing where it cannot
# install.
set -eu

# lacking prints the packages of what is not there: programs on the PATH, and
# files. Recommended packages are not installed, so the C library's headers, which
# the race detector needs, are named themselves.
lacking() {
	while read -r part package; do
		case $part in
		/*) [ -e "$part" ] ;;
		*) command -v "$part" >/dev/null 2>&1 ;;
		esac || printf ' %s' "$package"
	done <<-END
		valkey-server valkey-server
		valkey-cli valkey-tools
		redis-server redis-server
		redis-cli redis-tools
		wrk wrk
		prometheus prometheus
		promtool prometheus
		chromium chromium
		/usr/share/fonts/truetype/liberation/LiberationSans-Regular.ttf fonts-liberation
		dockerd docker.io
		iptables iptables
		docker-compose docker-compose
		gcc gcc
		/usr/include/stdlib.h libc6-dev
		flock util-linux
		node nodejs
		npm npm
	END
}
missing=$(lacking)
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
missing=$(lacking)
[ -z "$missing" ] || fail "some of it is still not there"
