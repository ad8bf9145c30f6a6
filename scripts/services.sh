#!/usr/bin/env bash
# The services of a node, installed as root by its first boot; again by hand it brings them to this project's state.
#   dlami-notice   on every node: what its metadata service says of its end, kept in /run/dlami-notice.json
#   dlami-heal     on the master: after each boot its lost jobs go on
#   dlami-activity on every node of a stack: what is done here that the cluster is kept for, for the guard; its warnings to terminals
#   dlami-guard    on the master of a stack, every minute: the end of all nodes is put off while there is useful work
#   dlami-metadata on every node of a stack: the credentials of its role are for root alone; who may sudo gets them by node_role.py
#   dlami-names    on every node of a stack: $DEEPLEARNING_WORKERS_COUNT and its like, deeplearning-worker1 and so on
# From the environment, or else as first boot has left them in /etc/dlami-cluster.conf: ROLE (master or worker), SHARED, PROJECT; of a stack LIFE
# (its own shared folder), LOGIN, NAME, REGION. INTO is put in front of every path, and nothing is started then.
# Without systemd (a lab's host) /etc/rc.local starts them, which lab-host.sh runs at each boot.
set -euo pipefail
# shellcheck source=/dev/null
[ -n "${ROLE:-}" ] || . "${INTO:-}/etc/dlami-cluster.conf"
: "${ROLE:?}" "${SHARED:?}" "${PROJECT:?}" "${INTO:=}" "${LIFE:=}"
FROM=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
LIB=/usr/local/lib/dlami-cluster   # a copy of root's own: who may write the project does not thereby run programs as root
# The unit that mounts the shared folder. It is nofail, and so remote-fs.target does not wait for it; and where it is not
# there (of a stack it is always a mount), nobody makes folders in its place.
MOUNT=${SHARED#/} MOUNT=${MOUNT//-/\\x2d} MOUNT=${MOUNT//\//-}.mount
THERE="/usr/bin/mountpoint -q $SHARED"

has_systemd() { [ -n "$INTO" ] || [ "$(cat /proc/1/comm)" = systemd ]; }

unit() {   # NAME, its text on stdin
    mkdir -p "$INTO/etc/systemd/system"
    cat >"$INTO/etc/systemd/system/$1.service"
    [ -n "$INTO" ] || { systemctl daemon-reload && systemctl enable "$1.service" && systemctl restart --no-block "$1.service"; }
}

rc_local() {   # COMMAND...: at each boot from now on, and now; no cgroup tells the guard that it is a service
    set -- env DLAMI_SERVICE=1 "$@"
    [ -e /etc/rc.local ] || printf '#!/bin/bash\n' >/etc/rc.local
    grep -qxF "$* &" /etc/rc.local || echo "$* &" >>/etc/rc.local
    chmod 755 /etc/rc.local
    setsid "$@" </dev/null >>/var/log/dlami-services.log 2>&1 &
}

notice() {
    if ! has_systemd; then
        rc_local env "AWS_EC2_METADATA_SERVICE_ENDPOINT=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-}" python3 -I -S "$LIB/notice.py"
        return
    fi
    unit dlami-notice <<UNIT
[Unit]
Description=dlami-cluster: what this host's metadata service says of its end

[Service]
ExecStart=/usr/bin/python3 -I -S $LIB/notice.py
Restart=always
RestartSec=5
ProtectSystem=strict
ReadWritePaths=/run
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
MemoryMax=128M

[Install]
WantedBy=multi-user.target
UNIT
}

heal() {
    if ! has_systemd; then
        rc_local "$LIB/heal-lost.sh" "$SHARED" "$PROJECT"
        return
    fi
    unit dlami-heal <<UNIT
[Unit]
Description=dlami-cluster: jobs that were lost while this master was away go on
After=network-online.target remote-fs.target $MOUNT ssh.service sshd.service
Wants=network-online.target
StartLimitIntervalSec=1h
StartLimitBurst=5

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=$LIB/heal-lost.sh $SHARED $PROJECT
TimeoutStartSec=infinity
Restart=on-failure
RestartSec=30
KillMode=process
OOMPolicy=continue
TasksMax=infinity
LimitMEMLOCK=infinity
LimitNOFILE=1048576

[Install]
WantedBy=multi-user.target
UNIT
}

guarded() {   # the words of a program of the guard's, from root's own copy, as python -m takes them
    echo env "PYTHONPATH=$LIB/guard" /usr/bin/env python3 -s -S -m "cluster.guard.onhost.$1"
}

activity() {
    local words
    read -ra words < <(guarded activity)
    words+=("$SHARED/.dlami-cluster/$NAME/guard")
    if ! has_systemd; then
        rc_local "${words[@]}"
        return
    fi
    unit dlami-activity <<UNIT
[Unit]
Description=dlami-cluster: what is done on this host that the cluster is kept for
After=network-online.target remote-fs.target $MOUNT

[Service]
ExecStartPre=$THERE
ExecStart=/usr/bin/${words[@]}
WorkingDirectory=/
Restart=always
RestartSec=30
Nice=10
MemoryMax=256M

[Install]
WantedBy=multi-user.target
UNIT
}

guard() {
    local words
    read -ra words < <(guarded renew)
    words+=("$NAME" "${LIFE##*/}" "$REGION" "$SHARED" "$PROJECT" "$LOGIN")
    if ! has_systemd; then
        rc_local env "AWS_ENDPOINT_URL=${AWS_ENDPOINT_URL:-}" "AWS_EC2_METADATA_SERVICE_ENDPOINT=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-}" \
            "${words[@]}" 60
        return
    fi
    mkdir -p "$INTO/etc/systemd/system"
    cat >"$INTO/etc/systemd/system/dlami-guard.service" <<UNIT
[Unit]
Description=dlami-cluster: the end of all nodes is put off while there is useful work
After=$MOUNT

[Service]
Type=oneshot
ExecCondition=$THERE
ExecStart=/usr/bin/${words[@]}
WorkingDirectory=/
TimeoutStartSec=180
KillMode=process
MemoryMax=256M
UNIT
    cat >"$INTO/etc/systemd/system/dlami-guard.timer" <<UNIT
[Unit]
Description=dlami-cluster: a look of the guard every minute

[Timer]
OnBootSec=60
OnUnitActiveSec=60
AccuracySec=5

[Install]
WantedBy=timers.target
UNIT
    [ -n "$INTO" ] || { systemctl daemon-reload && systemctl enable --now dlami-guard.timer; }
}

metadata() {   # EC2 Instance Connect asks it, too, for the keys that it lends, as a user of its own
    has_systemd || return 0   # a lab's is elsewhere
    mkdir -p "$INTO/etc/systemd/networkd.conf.d"
    printf '[Network]\nManageForeignRoutingPolicyRules=no\n' >"$INTO/etc/systemd/networkd.conf.d/60-dlami-cluster.conf"
    local whom=ec2-instance-connect
    [ -z "${RANK_CREDENTIALS:-}" ] || whom=--open
    unit dlami-metadata <<UNIT
[Unit]
Description=dlami-cluster: the credentials of this node's role are for root alone
After=systemd-networkd.service
PartOf=systemd-networkd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=$LIB/metadata.sh $whom

[Install]
WantedBy=multi-user.target
UNIT
}

names() {
    local words=(/usr/bin/env python3 -I -S "$LIB/aws_node_names.py" "$LIFE/nodes" "$SHARED" "${LOGIN:?}")
    [ "$ROLE" != master ] || words+=("$PROJECT" "${REGION:?}" "${NAME:?}")
    if ! has_systemd; then
        rc_local env "AWS_ENDPOINT_URL=${AWS_ENDPOINT_URL:-}" "AWS_EC2_METADATA_SERVICE_ENDPOINT=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-}" "${words[@]}"
        return
    fi
    unit dlami-names <<UNIT
[Unit]
Description=dlami-cluster: the nodes by the names that scripts of the CloudFormation cluster use
After=network-online.target remote-fs.target $MOUNT

[Service]
ExecStartPre=$THERE
ExecStart=${words[@]}
Restart=always
RestartSec=30
MemoryMax=256M

[Install]
WantedBy=multi-user.target
UNIT
}

folders() {   # of all users: root's, so that nobody else replaces what is in them; an earlier version let the login user make them
    [ -z "$INTO" ] || return 0
    [ -z "$LIFE" ] || $THERE || return 0
    python3 -I -S "$LIB/shared_tree.py" "$SHARED" "${LOGIN:-root}" || echo "these stay as they are: see 'inv health'"
}

needrestart() {   # which Ubuntu runs after each update of a library: jobs, and the way to EFS, are not ended for it
    mkdir -p "$INTO/etc/needrestart/conf.d"
    echo "\$nrconf{override_rc}{qr(^dlami-)} = 0;" >"$INTO/etc/needrestart/conf.d/dlami-cluster.conf"
}

install -d "$INTO$LIB"
install -m 755 "$FROM/cluster/recovery/onhost/notice.py" "$FROM/cluster/launch/onhost/aws_node_names.py" "$FROM/cluster/guard/onhost/root_code.py" \
    "$FROM/cluster/ssh/onhost/shared_tree.py" "$FROM/cluster/ssh/onhost/node_role.py" "$FROM/scripts/heal-lost.sh" "$FROM/scripts/metadata.sh" "$INTO$LIB"
needrestart
notice
if [ -n "$LIFE" ]; then
    for module in guard/onhost/{history,policy,api,activity,renew,root_code} ssh/onhost/trusted_files; do
        install -D -m 644 "$FROM/cluster/$module.py" "$INTO$LIB/guard/cluster/$module.py"
    done
    metadata
    names
    activity
fi
if [ "$ROLE" = master ]; then
    folders
    heal
    [ -z "$LIFE" ] || guard
fi
touch "$INTO$LIB/.installed"   # `inv sync` has nothing to do
