#!/usr/bin/env bash
# Makes .torch: the distribution's PyTorch, in an environment of its own since it wants another NumPy than TensorFlow's.
# Only tests use it, and those that do are skipped without it, so what cannot be had here is said and is no failure.
# As root it installs what is missing; safe to run again.
#
#   install-torch.sh environment    the environment alone, or exit 1: the stage of an image that runs it gets the packages
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
torch=$root/.torch
python=/usr/bin/python3   # the one that the distribution's packages are for
packages=(python3-torch python3-torchvision)

only=${1:-}
wheels=${DLAMI_CLUSTER_WHEELS:-}   # as for install.sh

give_up() {
    if [ "$only" = environment ]; then printf '%s\n' "install: no environment for PyTorch: $*" >&2; exit 1; fi
    printf '%s\n' "install: tests with PyTorch will be skipped: $*" >&2
    exit 0
}

has_torch() { "$1" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("torch") and u.find_spec("torchvision")))' 2>/dev/null; }

# Nothing here has to outlive a power cut, so dpkg need not wait for the disk after each file.
install_packages() {
    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
        -o Dpkg::Options::=--force-unsafe-io "${packages[@]}"
}

[ ! -e "$torch/.installed" ] || ! has_torch "$torch/bin/python" || exit 0
if [ "$only" != environment ] && ! has_torch "$python"; then
    [ "$(id -u)" = 0 ] || give_up "run 'sudo apt-get install --no-install-recommends ${packages[*]}', then this again"
    install_packages >"$root/.torch.log" 2>&1 || give_up "${packages[*]} cannot be installed ($(tail -1 "$root/.torch.log"))"
fi
rm -rf "$torch"
"$python" -m venv --system-site-packages --without-pip "$torch"
# The trainer's own needs beside PyTorch's, as locked for TensorFlow's environment.
grep -E '^(google-crc32c|simplejpeg)==' "$root/requirements.lock" |
    "$root/.venv/bin/pip" --python "$torch/bin/python" install -q --disable-pip-version-check --no-deps --require-hashes \
        ${wheels:+--no-index --find-links "$wheels"} -r /dev/stdin || give_up "its other packages cannot be installed"
touch "$torch/.installed"
