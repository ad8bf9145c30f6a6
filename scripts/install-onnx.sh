#!/usr/bin/env bash
# Gets ONNX's runtime (28 MB) into .venv, by checksum: the tests of exported classifiers run them with it, nothing else
# does. They are skipped without it, so what cannot be had here is said and is no failure. Safe to run again.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv
locked='onnxruntime==1.32.0
--hash=sha256:5a34fc4dfeb5a7b4a74c95dcba1e773d722abda720b474edf1b0c419dc6d163d
--hash=sha256:99e1074c4b2197accd5073052a465361be17b89c093b8ffb6e6bd8f986c52df8'   # of Python 3.11 and 3.12

stamp=$venv/.onnx   # pip takes a package that was cut off while it was installed for a whole one

if [ "$(cat "$stamp" 2>/dev/null)" = "$locked" ]; then exit 0; fi
from=()
[ -z "${DLAMI_CLUSTER_WHEELS:-}" ] || from=(--no-index --find-links "$DLAMI_CLUSTER_WHEELS")
tr '\n' ' ' <<<"$locked" | "$venv/bin/pip" install -q --disable-pip-version-check --no-deps --force-reinstall --require-hashes \
    "${from[@]}" -r /dev/stdin >/dev/null 2>&1 || {
    printf '%s\n' "install: tests with ONNX will be skipped: its runtime cannot be fetched" >&2; exit 0
}
printf '%s\n' "$locked" >"$stamp"
