#!/usr/bin/env bash
# Builds scripts/image/Dockerfile by buildah without a daemon, a registry or root: the base is made of Debian packages.
#
#   build.sh TAG FILE [FOLDER]    FILE: the image as an OCI archive; FOLDER: its files as rootfs/, and config.json
#
# From the environment: BASE, an image from a registry instead of Debian packages; VARIANT, cpu or gpu; TORCH, yes
# for one with PyTorch; WHEELS, a folder with all locked packages and Horovod; REVISION, a commit, by default HEAD;
# SUITE, Debian's, by default bookworm; WORK, a folder with room, by default /var/tmp. Only committed files go in.
# Nothing stays mounted, and nothing in WORK, also when it is interrupted. What is needed here: docs/eks.md, Image.
set -euo pipefail

say() { printf '%s\n' "image: $*" >&2; }
die() { say "$*"; exit 1; }

# pack FOLDER FILE EPOCH: an archive that holds what the folder does and nothing of when, by whom and in which order.
pack() {
    local names
    mapfile -t names < <(LC_ALL=C ls -A "$1")
    tar --create --format=ustar --sort=name --mtime="@$3" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
        --file "$2" --directory "$1" "${names[@]}"
}

[ "${BASH_SOURCE[0]}" = "$0" ] || return 0      # sourced by a test

for tool in buildah git; do command -v "$tool" >/dev/null || die "$tool is missing: apt-get install buildah git"; done
[ -n "${BASE:-}" ] || command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: apt-get install mmdebstrap"

# In mounts of our own: whatever ends this, nothing stays mounted. Who is not root is it from here on in a namespace of
# users, where files may have other owners than himself.
if [ -z "${DLAMI_IMAGE_APART:-}" ]; then
    export DLAMI_IMAGE_APART=1
    if [ "$(id -u)" = 0 ]; then exec unshare --mount --propagation private "$0" "$@"; fi
    [ -z "${3:-}" ] || die "the files of an image keep their owners only where root unpacks them"
    exec buildah unshare "$0" "$@"
fi
for map in uid gid; do
    awk '{ n += $3 } END { exit n < 65536 }' "/proc/self/${map}_map" ||
        die "this user has no 65536 numbers for users and groups: add a line NAME:FIRST:65536 to /etc/subuid and /etc/subgid"
done

root=$(cd "$(dirname "$0")/../.." && pwd)
tag=$1 file=$2 folder=${3:-}
suite=${SUITE:-bookworm}
umask 022
export LC_ALL=C.UTF-8 TZ=UTC   # nothing of this machine's goes into the image

revision=$(git -C "$root" rev-parse "${REVISION:-HEAD}")
epoch=$(git -C "$root" log -1 --format=%ct "$revision")
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/pyproject.toml")
export SOURCE_DATE_EPOCH=$epoch

work=$(mktemp -d "${WORK:-/var/tmp}/dlami-image.XXXXXX")
buildah=(buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs)
export TMPDIR=$work/tmp
mkdir "$TMPDIR"

clean() {
    trap - EXIT
    "${buildah[@]}" rm --all >/dev/null 2>&1 || true
    rm -rf --one-file-system "$work" "$file.part"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

base=${BASE:-}
if [ -z "$base" ]; then
    say "Debian $suite from packages"
    # mmdebstrap copies this machine's name and resolvers into what it makes, and only root can make devices. What it says
    # is of interest where it fails: in a namespace of users mounts are refused that it then does in another way.
    # shellcheck disable=SC2016  # its own $1
    mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io --include=ca-certificates --skip=output/dev \
        --customize-hook='rm -f "$1/etc/hostname" "$1/etc/resolv.conf"' "$suite" "$work/base.tar" 2>"$work/said" ||
        { cat "$work/said" >&2; die "no base of Debian's packages: why is above"; }
    base=localhost/debian-from-packages:$suite
    made=$("${buildah[@]}" from scratch)
    "${buildah[@]}" add --quiet "$made" "$work/base.tar" / >/dev/null
    rm "$work/base.tar"
    "${buildah[@]}" config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --cmd /bin/bash "$made"
    "${buildah[@]}" commit --quiet --rm --timestamp "$epoch" "$made" "$base" >/dev/null
fi

context=$work/context
mkdir "$context"
git -C "$root" archive "$revision" -- cfn cluster dlami eks lab trainer scripts tasks.py setup.py pyproject.toml requirements.lock \
    README.md LICENSE hosts.example docs/troubleshooting.md | tar -x -C "$context"
if [ -n "${WHEELS:-}" ]; then cp -r "$WHEELS" "$context/wheels"; fi
find "$context" -exec touch --no-dereference --date="@$epoch" {} +

say "$tag: the project at ${revision:0:12}, for ${VARIANT:-cpu}"
"${buildah[@]}" bud --quiet --isolation chroot --layers=false --timestamp "$epoch" --tag "$tag" --file "$context/scripts/image/Dockerfile" \
    --build-arg "BASE=$base" --build-arg "VARIANT=${VARIANT:-cpu}" --build-arg "TORCH=${TORCH:-no}" --build-arg "SOURCE_DATE_EPOCH=$epoch" \
    --build-arg "REVISION=$revision" --build-arg "VERSION=$version" "$context" >&2
say "writing $file"
"${buildah[@]}" push --quiet "$tag" "oci:$work/oci:$tag"
pack "$work/oci" "$file.part" "$epoch"
mv -fT "$file.part" "$file"
if [ -n "$folder" ]; then
    say "unpacking into $folder"
    mkdir -p "$folder/rootfs"
    made=$("${buildah[@]}" from "$tag")
    "${buildah[@]}" inspect "$made" >"$folder/config.json"
    cp -a "$("${buildah[@]}" mount "$made")/." "$folder/rootfs/"
    "${buildah[@]}" umount "$made" >/dev/null
fi
