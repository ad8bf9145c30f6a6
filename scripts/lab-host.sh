#!/bin/bash
# A lab host, in three parts that start one another:
#   power   in the host's own network namespace: waits for its network card, boots the host, and again when it reboots
#   boot    PID 1 in new PID, mount, UTS and IPC namespaces: makes the host's own view of the machine
#   serve   still PID 1, with few capabilities left: starts sshd and reaps what is left to it
#
# From the environment: DLAMI_LAB_FOLDER (this host's: upper/ work/ root/), DLAMI_LAB_HOST (its name), DLAMI_LAB_ADDRESS
# (with prefix length), DLAMI_LAB_SHARED (the folder all hosts share) and DLAMI_LAB_MOUNT (where they see it),
# DLAMI_LAB_BINDS (further folders of this machine that the host sees as they are and cannot change, one per line),
# DLAMI_LAB_MAY_MOUNT (1: its root may mount, for tests of full and missing file systems).
set -euo pipefail

rebooted=129   # the exit code of a host that is to boot again, as if SIGHUP had ended it

power() {
    local code
    read -r _ || exit 0      # the word from outside that eth0 is here; end of file if there is nobody any more
    while :; do
        ip route flush table main 2>/dev/null || true      # there is none at first
        ip addr flush dev eth0
        ip link set lo up
        ip addr add "$DLAMI_LAB_ADDRESS" dev eth0
        ip link set eth0 up
        code=0
        unshare --pid --uts --ipc --mount --fork --kill-child "$0" boot </dev/null || code=$?
        [ "$code" = "$rebooted" ] || exit "$code"
    done
}

boot() {
    local root=$DLAMI_LAB_FOLDER/root bind
    mount --make-rprivate /
    # Volatile: else a host that dies waits until all that this machine wrote, whoever wrote it, is on its disk.
    rm -rf "$DLAMI_LAB_FOLDER/work/work/incompat"      # says that it was mounted so before
    mount -t overlay overlay -o "lowerdir=/,upperdir=$DLAMI_LAB_FOLDER/upper,workdir=$DLAMI_LAB_FOLDER/work,volatile" "$root"
    # The shared folder and the binds are taken hold of before the overlay hides them.
    mkdir -p "$root$DLAMI_LAB_MOUNT"
    mount --bind "$DLAMI_LAB_SHARED" "$root$DLAMI_LAB_MOUNT"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    for own in run tmp; do mount -t tmpfs -o mode=1777 tmpfs "$root/$own"; done
    chmod 755 "$root/run"
    devices "$root/dev"
    while IFS= read -r bind; do
        [ -n "$bind" ] || continue
        mkdir -p "$root$bind"
        mount --bind "$bind" "$root$bind"
        mount -o remount,bind,ro "$root$bind"
    done <<<"$DLAMI_LAB_BINDS"
    cd "$root"
    mkdir -p .lab-old
    pivot_root . .lab-old
    umount -l /.lab-old
    rmdir /.lab-old
    hostname "$DLAMI_LAB_HOST"
    machine_read_only
    local may=chown,dac_override,fowner,fsetid,kill,setgid,setuid,setpcap,net_bind_service,net_admin,net_raw
    may+=,sys_chroot,sys_ptrace,sys_nice,audit_write
    [ "${DLAMI_LAB_MAY_MOUNT:-0}" = 0 ] || may+=,sys_admin
    exec setpriv --inh-caps=-all --bounding-set="-all,+${may//,/,+}" "$0" serve
}

# What every program expects and a GPU's, if there is one; no disk, no memory, no console of this machine.
devices() {
    local name gpu
    mount -t tmpfs -o mode=755,size=1m tmpfs "$1"
    for name in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do
        IFS=: read -r name major minor <<<"$name"
        mknod -m 666 "$1/$name" c "$major" "$minor"
    done
    [ "${DLAMI_LAB_MAY_MOUNT:-0}" = 0 ] || mknod -m 666 "$1/fuse" c 10 229
    for gpu in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm*; do
        [ -c "$gpu" ] || continue
        touch "$1/${gpu#/dev/}"
        mount --bind "$gpu" "$1/${gpu#/dev/}"
    done
    mkdir "$1/pts" "$1/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$1/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$1/shm"
    ln -s pts/ptmx "$1/ptmx"
    ln -s /proc/self/fd "$1/fd"
    ln -s /proc/self/fd/0 "$1/stdin"
    ln -s /proc/self/fd/1 "$1/stdout"
    ln -s /proc/self/fd/2 "$1/stderr"
}

# What /proc lets root change of the kernel that all hosts and this machine share.
machine_read_only() {
    local part
    for part in sys sysrq-trigger irq bus fs acpi scsi mtrr driver; do
        [ -e "/proc/$part" ] || continue
        mount --bind "/proc/$part" "/proc/$part"
        mount -o remount,bind,ro "/proc/$part"
    done
    for part in kcore kmsg keys timer_list; do
        [ ! -e "/proc/$part" ] || mount --bind /dev/null "/proc/$part"
    done
}

serve() {
    mkdir -p /run/sshd
    /usr/sbin/sshd -D -e -f /etc/ssh/lab_sshd_config </dev/null >>/var/log/sshd.log 2>&1 &
    # What a real host's systemd would start; not with this process's environment, by which a lab's hosts are found.
    [ ! -x /etc/rc.local ] || env -i HOME=/root USER=root LOGNAME=root LANG=C.UTF-8 PATH="$PATH" \
        setsid /etc/rc.local </dev/null >>/var/log/rc.local.log 2>&1 &
    trap 'exit "$rebooted"' HUP      # /usr/sbin/reboot sends it
    trap 'exit 0' TERM               # and /usr/sbin/poweroff this
    # Until killed: wait for every child, also those whose parents ended before them. A plain `wait` with no child left
    # would spin, so a sleeper stays.
    sleep infinity &
    while :; do wait -n || true; done
}

[ "${BASH_SOURCE[0]}" != "$0" ] || "$1"     # scripts/lab-pod.sh takes functions of it
