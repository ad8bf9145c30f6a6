#!/bin/bash
# A lab host's first process. Runs as PID 1 in new PID, network, mount, UTS and IPC namespaces; makes the host's own
# view of the machine, waits until its network card is there, starts sshd and reaps what is left to it.
#
# From the environment: DLAMI_LAB_FOLDER (this host's: upper/ work/ root/), DLAMI_LAB_HOST (its name), DLAMI_LAB_ADDRESS
# (with prefix length), DLAMI_LAB_SHARED (the folder all hosts share) and DLAMI_LAB_MOUNT (where they see it),
# DLAMI_LAB_BINDS (further folders of this machine that the host sees as they are, one per line).
set -euo pipefail

mount --make-rprivate /
root=$DLAMI_LAB_FOLDER/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$DLAMI_LAB_FOLDER/upper,workdir=$DLAMI_LAB_FOLDER/work" "$root"
# The shared folder and the binds are taken hold of before the overlay hides them.
mkdir -p "$root$DLAMI_LAB_MOUNT"
mount --bind "$DLAMI_LAB_SHARED" "$root$DLAMI_LAB_MOUNT"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
mount --bind "$root/dev/pts/ptmx" "$root/dev/ptmx"
for own in dev/shm run tmp; do mount -t tmpfs -o mode=1777 tmpfs "$root/$own"; done
chmod 755 "$root/run"
while IFS= read -r bind; do
    [ -n "$bind" ] || continue
    mkdir -p "$root$bind"
    mount --bind "$bind" "$root$bind"
done <<<"$DLAMI_LAB_BINDS"
cd "$root"
mkdir -p .lab-old
pivot_root . .lab-old
umount -l /.lab-old
rmdir /.lab-old
hostname "$DLAMI_LAB_HOST"

read -r _ || exit 0      # the word from outside that eth0 is here; end of file if there is nobody any more
ip link set lo up
ip addr add "$DLAMI_LAB_ADDRESS" dev eth0
ip link set eth0 up
mkdir -p /run/sshd
/usr/sbin/sshd -D -e -f /etc/ssh/lab_sshd_config </dev/null >>/var/log/sshd.log 2>&1 &
# Until killed: wait for every child, also those whose parents ended before them. A plain `wait` with no child left
# would spin, so a sleeper stays.
sleep infinity &
while :; do wait -n || true; done
