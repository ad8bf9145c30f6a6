#!/usr/bin/env bash
# Makes .venv ready to run everything: system packages, the locked Python packages, the Horovod wheel.
# Safe to run again; a second run changes nothing and takes a second or two.
#
#   install.sh            all of it
#   install.sh python     all but Horovod, whose build takes minutes: the next run without this word builds it
#   install.sh packages   the system's packages alone, as root for a user who may not install them
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv
cache=${DLAMI_CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dlami-cluster}
builds=${XDG_CACHE_HOME:-~/.cache}/dlami-cluster/build   # of this machine: a cache that first boot gives is on EFS, slow for a compiler
cudas=/usr/local
nccls="/usr/include /usr/local/include"   # beside CUDA's own folder
wheels=${DLAMI_CLUSTER_WHEELS:-}   # a folder with all of it, Horovod too: nothing is fetched or compiled then
lock=$root/requirements.lock
log=$venv/install.log   # what apt and pip say
policy=/usr/sbin/policy-rc.d   # says whether a package's daemon may be started by its installation
ours='# written by dlami-cluster scripts/install.sh while it installs packages'

say() { printf '%s\n' "install: $*" >&2; }
die() { say "$*"; exit 1; }

# quietly COMMAND...: its output goes to the log, and the end of that is shown if it fails.
quietly() {
    mkdir -p "${log%/*}"
    "$@" >>"$log" 2>&1 && return
    local code=$?
    tail -30 "$log" >&2
    say "this failed; all it said: $log"
    return "$code"
}

packages=(build-essential ca-certificates cmake libopenmpi-dev openmpi-bin openssh-client openssh-server
          iproute2 procps python3-dev python3-venv rsync)
amazon_mpi=/opt/amazon/openmpi/bin

# Where it is (the DLAMI, EFA's installer), launches take its mpirun before any other: a Horovod that is built with another
# Open MPI does not find the other ranks there. No login shell put it into this PATH.
choose_mpi() {
    [ -x "$amazon_mpi/mpicxx" ] || return 0
    PATH=$amazon_mpi:$PATH
    mapfile -t packages < <(printf '%s\n' "${packages[@]}" | grep -v openmpi)
}

missing_packages() {
    local p
    for p in "${packages[@]}"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || printf '%s ' "$p"
    done
}

apt_waits_s=300
packages_come=   # apt's process, while it runs beside pip
only=
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo -n)

# Daemons are not started by their installation: the tests start sshd on their own hosts, nobody opens port 22 here.
hold_daemons() {
    [ ! -e "$policy" ] || return 0
    printf '#!/bin/sh\n%s %s\nexit 101\n' "$ours" $$ | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
    trap release_daemons EXIT
}

# Also what an installation that was killed left: every package of this machine would stay without its daemon. One that
# still runs, of another checkout, needs its own.
release_daemons() {
    local line holder
    line=$(grep -sF "$ours" "$policy") || return 0
    holder=${line##* }
    if [ "$holder" = $$ ] || [ ! -d "/proc/$holder" ]; then "${as_root[@]}" rm -f "$policy"; fi
}

# Another apt is waited for: a new host begins with updates of its own.
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -q -o DPkg::Lock::Timeout="$apt_waits_s" "$@" >&2; }

update_lists() {   # whose lock apt-get itself does not wait for
    local until=$((SECONDS + apt_waits_s)) said
    until said=$(apt update 2>&1); do
        if [[ $said != *"Could not get lock"* ]] || [ "$SECONDS" -ge "$until" ]; then
            die "the lists of packages cannot be fetched: $(grep -m1 '^E:' <<<"$said" || tail -1 <<<"$said")"
        fi
        sleep 1
    done
}

install_packages() {
    local missing
    missing=$(missing_packages)
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
        die "these packages are missing and this user cannot install them: run 'sudo apt-get install $missing' first"
    fi
    say "apt installs $missing(log: $log)"
    update_lists
    hold_daemons
    # shellcheck disable=SC2086  # one word per package
    quietly apt install -y --no-install-recommends $missing || {
        say "completing what an installation that was cut off may have left"
        quietly "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive dpkg --configure -a
        quietly apt install -y --no-install-recommends $missing
    }
    release_daemons
    if [ "${missing#*openssh-server}" != "$missing" ] && command -v systemctl >/dev/null; then
        "${as_root[@]}" systemctl disable --quiet ssh.service ssh.socket 2>/dev/null || true
    fi
}

# Packages are installed while pip fetches wheels, which need no compiler, where Python is here without them.
begin_packages() {
    if [ -n "$(missing_packages)" ] && (find_python) >/dev/null 2>&1; then
        install_packages &
        packages_come=$!
        trap '[ -z "$packages_come" ] || wait "$packages_come" || true' EXIT   # whatever fails, nothing goes on unseen
    else
        install_packages
    fi
}

packages_are_here() {
    [ -n "$packages_come" ] || return 0
    if kill -0 "$packages_come" 2>/dev/null; then say "waiting for apt: what follows needs its compilers"; fi
    wait "$packages_come" || die "the system's packages could not be installed: see above"
    packages_come=
}

# TensorFlow 2.18 has wheels for Python 3.11 and 3.12 that we tested; an existing .venv keeps its own.
find_python() {
    local p
    for p in "$venv/bin/python" python3 /usr/bin/python3 python3.12 python3.11; do
        if "$p" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
            command -v "$p"; return 0
        fi
    done
    die "no Python 3.11 or 3.12 with its venv module was found: install python3 and python3-venv"
}

# DLAMI_CLUSTER_VARIANT: for another machine than this one, as in an image.
variant() { if [ -n "${DLAMI_CLUSTER_VARIANT:-}" ]; then echo "$DLAMI_CLUSTER_VARIANT"; elif command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then echo gpu; else echo cpu; fi; }

# The newest CUDA of those that TensorFlow 2.18 is built for (12), beside which a DLAMI has others, and one of those as the
# default; nothing where there is none, or no GPU.
cuda_home() {
    local nvcc
    [ "$(variant)" = gpu ] || return 0
    nvcc=$(compgen -G "$cudas/cuda-12.*/bin/nvcc" | sort -V | tail -1) || return 0
    echo "${nvcc%/bin/nvcc}"
}

# with_cuda COMMAND...: with what Horovod's build looks at to find CUDA, and the NCCL that a DLAMI has in the same folder.
with_cuda() {
    local cuda
    cuda=$(cuda_home)
    if [ "$(variant)" = gpu ]; then local -x HOROVOD_GPU_OPERATIONS=NCCL; fi
    if [ -n "$cuda" ]; then
        local -x CUDA_HOME=$cuda HOROVOD_CUDA_HOME=$cuda CUDACXX=$cuda/bin/nvcc PATH=$cuda/bin:$PATH
        if [ -e "$cuda/include/nccl.h" ]; then local -x HOROVOD_NCCL_HOME=$cuda; fi
    fi
    "$@"
}

# Fails before pip fetches gigabytes where Horovod cannot be built for this machine's GPUs: a prebuilt wheel needs none of this.
check_cuda() {
    local cuda found folder
    [ "$(variant)" = gpu ] && [ -z "$wheels" ] || return 0
    cuda=$(cuda_home)
    if [ -z "$cuda" ]; then
        found=$(compgen -G "$cudas/cuda-*" | sed 's|.*/||' | tr '\n' ' ') || true
        die "no CUDA 12 with nvcc below $cudas (found: ${found:-none }), which Horovod for TensorFlow 2.18 is built with: use AWS's" \
            "'Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04)', or install CUDA 12 and run this again: 'apt-get install cuda-toolkit-12-8'"
    fi
    for folder in "$cuda/include" $nccls; do [ ! -e "$folder/nccl.h" ] || return 0; done
    die "no nccl.h in $cuda/include $nccls, which Horovod is built with: install NCCL for CUDA 12 and run this again: 'apt-get install libnccl-dev'"
}

# build_horovod FOLDER LOCKED: its wheel in FOLDER. The sources lie there too: a folder of pip's own has another name each
# time, which the compiler writes down, and the same sources would never be the same wheel.
build_horovod() {
    local quiet=(-q --no-cache-dir --no-build-isolation --no-deps)
    rm -rf "$1"
    mkdir -p "$1/source" &&
        "$venv/bin/pip" download "${quiet[@]}" --no-binary horovod -d "$1" --require-hashes -r "$2" &&
        tar -xzf "$1"/horovod-*.tar.gz -C "$1/source" --strip-components=1 --no-same-owner &&
        HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
            PATH=$venv/bin:$PATH "$venv/bin/pip" wheel "${quiet[@]}" -w "$1" "$1/source"
}

horovod_wheel() {
    local version key dir built
    version=$(sed -n 's/^horovod==\([^ ]*\).*/\1/p' "$lock")
    key=$({ "$venv/bin/python" -VV; grep -E '^(tensorflow|numpy|horovod)' "$lock" | sed 's/ --hash=sha256:[0-9a-f]*//g'; variant; cuda_home; mpirun --version | head -1; } | sha256sum | cut -c1-16)
    dir=$cache/horovod-$version-$key
    mkdir -p "$dir"
    exec 9>"$dir/.lock"; flock 9        # two checkouts at once: one builds, the other waits
    if ! ls "$dir"/horovod-*.whl >/dev/null 2>&1; then
        grep '^horovod==' "$lock" >"$dir/horovod.txt"
        say "building the Horovod $version wheel, once for this machine: six minutes or so on two cores; log: $dir/build.log"
        mkdir -p "$builds"
        exec 7>"$builds/.lock"; flock 7     # for another cache, too
        with_cuda build_horovod "$builds/horovod" "$dir/horovod.txt" >"$dir/build.log" 2>&1 || { tail -15 "$dir/build.log" >&2; die "Horovod did not build; the whole log is $dir/build.log"; }
        built=$(ls "$builds"/horovod/horovod-*.whl)
        cp "$built" "$dir/.new" && mv "$dir/.new" "$dir/${built##*/}"
        rm -rf "$builds/horovod"
        exec 7>&-
    fi
    ls "$dir"/horovod-*.whl
}

# Another Open MPI than it was built with is another environment, said only of Amazon's: those of others stay as they are.
stamp() { { cat "$lock"; variant; "$venv/bin/python" -VV; if [ -x "$amazon_mpi/mpicxx" ]; then mpirun --version | head -1; fi; } | sha256sum; }

install_python() {
    local python other pip
    python=$(find_python)
    check_cuda
    [ -x "$venv/bin/pip" ] || "$python" -m venv "$venv"
    say "pip installs the locked Python packages ($(variant)) into .venv, 1.5 GB or more; log: $log"
    other=$([ "$(variant)" = gpu ] && echo cpu || echo gpu)
    grep -vE "^horovod|# ($other|tests)\$" "$lock" >"$venv/requirements.txt"
    pip=("$venv/bin/pip" install -q --no-deps --disable-pip-version-check)
    # pip takes a package that was cut off while it was installed for a whole one.
    [ ! -e "$venv/.installing" ] || pip+=(--force-reinstall)
    touch "$venv/.installing"
    if [ -n "$wheels" ]; then
        grep -v '# source$' "$venv/requirements.txt" >"$venv/wheels.txt"
        quietly "${pip[@]}" --no-index --find-links "$wheels" --require-hashes -r "$venv/wheels.txt"
        packages_are_here
        # What the master built from the locked sources has checksums of its own.
        grep '# source$' "$lock" | sed 's/ --hash=sha256:[0-9a-f]*//g' >"$venv/built.txt"
        quietly "${pip[@]}" --no-index --find-links "$wheels" -r "$venv/built.txt"
    else
        quietly "${pip[@]}" --require-hashes -r "$venv/requirements.txt"   # of these Horovod alone is built
        packages_are_here
        rm "$venv/.installing"   # a Horovod that does not build is no reason to install the others again
        if [ "$only" = python ]; then return; fi
        horovod_wheel >"$venv/.horovod"
        touch "$venv/.installing"
        quietly "${pip[@]}" "$(cat "$venv/.horovod")"
    fi
    rm -f "$venv/.installing" "$venv/.bare"
    stamp >"$venv/.installed.new" && mv "$venv/.installed.new" "$venv/.installed"
}

is_installed() { [ "$(cat "$venv/.installed" 2>/dev/null)" = "$(stamp 2>/dev/null)" ]; }

[ "${BASH_SOURCE[0]}" = "$0" ] || return 0      # sourced by a test
only=${1:-}
choose_mpi
release_daemons
if [ "$only" = packages ]; then
    install_packages
    exit
fi
begin_packages
if ! is_installed; then
    mkdir -p "$venv"
    exec 8>"$venv/.lock"; flock 8   # two at once in one checkout: one installs, the other waits
    if ! is_installed; then install_python; fi
fi
packages_are_here
# Hosts that see this folder, and users that are not its owner, cannot: each of their processes would compile anew.
(cd "$root" && "$venv/bin/python" -m compileall -q cfn cluster dlami eks lab trainer >&2) || true
