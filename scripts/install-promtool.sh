#!/usr/bin/env bash
# Gets Prometheus' tool that reads what `inv metrics` writes into .venv/bin, out of Debian's package and without its server.
# A test alone runs it, which is skipped without it, so what cannot be had here is said and is no failure. Safe to run again.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
to=$root/.venv/bin/promtool

[ ! -x "$to" ] && ! command -v promtool >/dev/null || exit 0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"   # apt reads and writes there as a user of its own

get() {
    cd "$folder"
    apt-get download -q prometheus || { apt-get update -q && apt-get download -q prometheus; } || return
    dpkg -x prometheus_*.deb . && cp usr/bin/promtool "$to.new" && mv "$to.new" "$to"
}
get >/dev/null 2>&1 || printf '%s\n' "install: the test of metrics with promtool will be skipped: it cannot be had here" >&2
