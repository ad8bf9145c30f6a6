#!/usr/bin/env bash
# Makes .checkov: checkov by checksum in an environment of its own, since it wants another boto3 than ours (250 MB on
# disk). Only a test uses it, which is skipped without it, so what cannot be had here is said and is no failure.
# Safe to run again.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
folder=$root/.checkov
lock=$root/scripts/checkov.lock
from=()
[ -z "${DLAMI_CLUSTER_WHEELS:-}" ] || from=(--no-index --find-links "$DLAMI_CLUSTER_WHEELS")

if cmp -s "$lock" "$folder/.installed"; then exit 0; fi
rm -rf "$folder"
"$root/.venv/bin/python" -m venv --without-pip "$folder"
"$root/.venv/bin/pip" --python "$folder/bin/python" install -q --disable-pip-version-check --no-deps --require-hashes \
    "${from[@]}" -r "$lock" >/dev/null 2>&1 || {
    rm -rf "$folder"; printf '%s\n' "install: the test with checkov will be skipped: it cannot be fetched" >&2; exit 0
}
cp "$lock" "$folder/.installed"
