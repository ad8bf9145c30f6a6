#!/bin/bash
# A pod of the lab's Kubernetes, in two kinds of process trees:
#   sandbox    in the pod's own network, UTS, IPC and mount namespaces: waits for its network card, then stays
#   container  PID 1 in further PID and mount namespaces: makes the container's view of the machine, becomes its command
#
# From the environment of a sandbox: DLAMI_LAB_HOST (its host name), DLAMI_LAB_ADDRESS (with prefix length) and
# DLAMI_LAB_MEMORY (lines of a size in bytes, 0 for any, a tab, and a folder that is to be in memory).
# From that of a container: DLAMI_LAB_FOLDER (with upper/ work/ root/), DLAMI_LAB_LOWER (what its root is),
# DLAMI_LAB_MOUNTS (lines of ro or rw, a folder or file of this machine, where the container
# sees it; tabs between), DLAMI_LAB_WORKDIR, DLAMI_LAB_IDS (uid:gid:groups with commas), DLAMI_LAB_CAPABILITIES,
# DLAMI_LAB_NO_NEW_PRIVILEGES, DLAMI_LAB_READ_ONLY_ROOT and DLAMI_LAB_INIT (1 or 0; the last: PID 1 is one that reaps, and
# the command its child); the rest of the environment is the container's.
set -euo pipefail
# shellcheck source=scripts/lab-host.sh
. "${0%/*}/lab-host.sh"

sandbox() {
    local size folder
    read -r _ || exit 0      # the word from outside that eth0 is here; end of file if there is nobody any more
    hostname "$DLAMI_LAB_HOST"
    ip link set lo up
    ip addr add "$DLAMI_LAB_ADDRESS" dev eth0
    ip link set eth0 up
    mount --make-rprivate /
    while IFS=$'\t' read -r size folder; do
        [ -z "$folder" ] || mount -t tmpfs -o "mode=1777,size=$size" tmpfs "$folder"
    done <<<"$DLAMI_LAB_MEMORY"
    echo ready
    exec sleep infinity
}

container() {
    local own_path=$PATH has_init=$DLAMI_LAB_INIT code root=$DLAMI_LAB_FOLDER/root kind source target uid gid groups how=()
    shift
    PATH=/usr/sbin:/usr/bin:/sbin:/bin
    mount --make-rprivate /
    mount -t overlay overlay \
        -o "lowerdir=$DLAMI_LAB_LOWER,upperdir=$DLAMI_LAB_FOLDER/upper,workdir=$DLAMI_LAB_FOLDER/work,volatile" "$root"
    mkdir -p "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/tmp" "$root$DLAMI_LAB_WORKDIR"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    for target in run tmp; do mount -t tmpfs -o mode=1777 tmpfs "$root/$target"; done
    chmod 755 "$root/run"
    mkdir "$root/run/sshd"
    devices "$root/dev"
    while IFS=$'\t' read -r kind source target; do
        [ -n "$kind" ] || continue
        if [ -d "$source" ]; then
            mkdir -p "$root$target"
        else
            mkdir -p "$root${target%/*}"
            [ -e "$root$target" ] || : >"$root$target"
        fi
        mount --bind "$source" "$root$target"
        [ "$kind" = rw ] || mount -o remount,bind,ro "$root$target"
    done <<<"$DLAMI_LAB_MOUNTS"
    cd "$root"
    mkdir -p .lab-old
    pivot_root . .lab-old
    umount -l /.lab-old
    rmdir /.lab-old
    machine_read_only
    [ "$DLAMI_LAB_READ_ONLY_ROOT" = 0 ] || mount -o remount,bind,ro /
    cd "$DLAMI_LAB_WORKDIR"
    IFS=: read -r uid gid groups <<<"$DLAMI_LAB_IDS"
    how=(--reuid "$uid" --regid "$gid" --inh-caps=-all --bounding-set="-all$DLAMI_LAB_CAPABILITIES")
    if [ -n "$groups" ]; then how+=(--groups "$groups"); else how+=(--clear-groups); fi
    [ "$DLAMI_LAB_NO_NEW_PRIVILEGES" = 0 ] || how+=(--no-new-privs)
    unset "${!DLAMI_LAB@}"
    if [ "$has_init" = 0 ]; then PATH=$own_path exec /usr/bin/setpriv "${how[@]}" -- "$@"; fi
    set -m      # else the command would ignore Ctrl-C
    PATH=$own_path /usr/bin/setpriv "${how[@]}" -- "$@" &
    exec 2>/dev/null      # what bash says of a killed child is nothing that the container has said
    code=0
    wait $! || code=$?      # and everybody else whose parent has ended; with this process all of them end
    exit "$code"
}

"$1" "$@"
