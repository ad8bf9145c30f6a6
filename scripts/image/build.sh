#!/usr/bin/env bash
# Builds scripts/image/Dockerfile by buildah without a daemon, a registry or root: the base is made of Debian packages.
#
#   build.sh TAG FILE [FOLDER]    FILE: the image as an OCI archive; FOLDER: its files as rootfs/, and config.json
#
# From the environment: BASE, an image from a registry instead of Debian packages; VARIANT, cpu or gpu; TORCH, yes
# for one with PyTorch; WHEELS, a folder with all locked packages and Horovod; REVISION, a commit, by default HEAD;
# SUITE, Debian's, by default bookworm; WORK, a folder with 15 GB free, by default below /var/tmp. Only committed files go in. Nothing stays mounted, and nothing in WORK, also when it is interrupted.
set -euo pipefail

# As root in mounts of our own: whatever ends this, nothing stays mounted. Others are in a user namespace's anyway.
if [ "$(id -u)" = 0 ] && [ -z "${DLAMI_IMAGE_APART:-}" ]; then
    DLAMI_IMAGE_APART=1 exec unshare --mount --propagation private "$0" "$@"
fi

root=$(cd "$(dirname "$0")/../.." && pwd)
tag=$1 file=$2 folder=${3:-}
suite=${SUITE:-bookworm}

say() { printf '%s\n' "image: $*" >&2; }
die() { say "$*"; exit 1; }

for tool in buildah git; do command -v "$tool" >/dev/null || die "$tool is missing: apt-get install buildah git"; done
[ -n "${BASE:-}" ] || command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: apt-get install mmdebstrap"

work=$(mktemp -d "${WORK:-/var/tmp}/dlami-image.XXXXXX")
buildah=(buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs)
export TMPDIR=$work/tmp
mkdir "$TMPDIR"

clean() {
    trap - EXIT
    "${buildah[@]}" rm --all >/dev/null 2>&1 || true
    # In a user namespace of one's own: files of other users than oneself are in there.
    if [ "$(id -u)" = 0 ]; then rm -rf --one-file-system "$work"; else buildah unshare rm -rf "$work"; fi
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

revision=$(git -C "$root" rev-parse "${REVISION:-HEAD}")
epoch=$(git -C "$root" log -1 --format=%ct "$revision")
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/pyproject.toml")
export SOURCE_DATE_EPOCH=$epoch

base=${BASE:-}
if [ -z "$base" ]; then
    say "Debian $suite from packages"
    mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io --include=ca-certificates "$suite" "$work/base.tar"
    base=localhost/debian-from-packages:$suite
    made=$("${buildah[@]}" from scratch)
    "${buildah[@]}" add --quiet "$made" "$work/base.tar" / >/dev/null
    rm "$work/base.tar"
    "${buildah[@]}" config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --cmd /bin/bash "$made"
    "${buildah[@]}" commit --quiet --rm --timestamp "$epoch" "$made" "$base" >/dev/null
fi

context=$work/context
mkdir "$context"
git -C "$root" archive "$revision" -- cfn cluster dlami trainer scripts tasks.py setup.py pyproject.toml requirements.lock \
    README.md LICENSE hosts.example | tar -x -C "$context"
if [ -n "${WHEELS:-}" ]; then cp -r "$WHEELS" "$context/wheels"; fi
find "$context" -exec touch --no-dereference --date="@$epoch" {} +

say "$tag: the project at ${revision:0:12}, for ${VARIANT:-cpu}"
"${buildah[@]}" bud --quiet --isolation chroot --layers=false --timestamp "$epoch" --tag "$tag" --file "$context/scripts/image/Dockerfile" \
    --build-arg "BASE=$base" --build-arg "VARIANT=${VARIANT:-cpu}" --build-arg "TORCH=${TORCH:-no}" --build-arg "SOURCE_DATE_EPOCH=$epoch" \
    --build-arg "REVISION=$revision" --build-arg "VERSION=$version" "$context" >&2
say "writing $file"
rm -f "$file"
"${buildah[@]}" push --quiet "$tag" "oci-archive:$file:$tag"
if [ -n "$folder" ]; then
    say "unpacking into $folder"
    mkdir -p "$folder/rootfs"
    made=$("${buildah[@]}" from "$tag")
    "${buildah[@]}" inspect "$made" >"$folder/config.json"
    cp -a "$("${buildah[@]}" mount "$made")/." "$folder/rootfs/"
    "${buildah[@]}" umount "$made" >/dev/null
fi
