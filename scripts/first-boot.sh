#!/usr/bin/env bash
# What every node does once, as root, from its user data: mounts, keys, sshd, project, runtime; then it says ready or failed.
# The launch template puts the settings (NAME, ROLE, SHARED, ...) in front. What a machine lacks is probed, never assumed.
# Run again by hand it skips what is done. Report and log: $SHARED/.dlami-cluster/$NAME/boot/<instance>.json and .log
set -Eeuo pipefail

: "${NAME:?}" "${ROLE:?}" "${RESOURCE:?}" "${STACK:?}" "${REGION:?}" "${SHARED:?}" "${PROJECT:?}" "${LOGIN:?}"
: "${EFS_ADDRESS:=}" "${EFS_ID:=}" "${EFS_TLS:=}" "${FSX_ADDRESS:=}" "${FSX_NAME:=}" "${FSX_MOUNT:=}" "${SOURCE:=}"
: "${SOURCE_VERSION:=}" "${PUBLIC_KEY:=}" "${SETUP:=}" "${OTHER_MASTER:=}"
: "${BOOT_SECONDS:=1800}" "${DOMAIN:=amazonaws.com}"
export PATH=$PATH:/usr/sbin:/sbin NAME ROLE REGION DOMAIN SOURCE_VERSION SHARED PROJECT
export IMDS=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}
STATE=$SHARED/.dlami-cluster/$NAME
# of this stack alone: on a file system used again, what an earlier one left is not waited for and found
LIFE=$STATE/${STACK##*/}
LOCAL=/run/dlami-cluster
LOG=$LOCAL/first-boot.log
INSTANCE=unknown ADDRESS=unknown STEP=start SHARED_OK='' BUILDS=''
mkdir -p "$LOCAL"
: >"$LOCAL/steps"
exec >>"$LOG" 2>&1

# One signed AWS request with nothing but Python's standard library: the CLI may be missing, boto3 is not there yet.
#   aws_call SERVICE VERSION Action=Name Key=Value ...   or   aws_call s3 BUCKET KEY FILE   or   aws_call imds PATH
aws_call() {
    python3 - "$@" <<'PYTHON'
import hashlib, hmac, json, re, shutil, sys, time, urllib.error, urllib.parse
from os import environ as env
from urllib.request import Request, urlopen
def imds(path, token=None):
    head = {"X-aws-ec2-metadata-token": token} if token else {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    url = env["IMDS"].rstrip("/") + "/latest/" + path
    return urlopen(Request(url, headers=head, method="GET" if token else "PUT"), timeout=5).read().decode()
def credentials():
    if env.get("AWS_ACCESS_KEY_ID"):
        return env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], env.get("AWS_SESSION_TOKEN")
    token = imds("api/token")
    base = "meta-data/iam/security-credentials/"
    c = json.loads(imds(base + imds(base, token).split()[0], token))
    return c["AccessKeyId"], c["SecretAccessKey"], c["Token"]
def request(service, args):
    region = env["REGION"]
    base = env.get("AWS_ENDPOINT_URL") or "https://%s.%s.%s" % (service, region, env["DOMAIN"])
    method, path, body = "POST", "/", b""
    if service == "s3":
        method, path = "GET", "/" + urllib.parse.quote("/".join(args[:2]))
    else:
        body = urllib.parse.urlencode([("Version", args[0])] + [a.split("=", 1) for a in args[1:]]).encode()
    key, secret, token = credentials()
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    digest = hashlib.sha256(body).hexdigest()
    head = {"host": urllib.parse.urlsplit(base).netloc, "x-amz-content-sha256": digest, "x-amz-date": now}
    if token:
        head["x-amz-security-token"] = token
    names = ";".join(sorted(head))
    canonical = "\n".join([method, path, ""] + [k + ":" + head[k] for k in sorted(head)] + ["", names, digest])
    scope = "/".join([now[:8], region, service, "aws4_request"])
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    sign = ("AWS4" + secret).encode()
    for part in scope.split("/") + [text]:
        sign = hmac.new(sign, part.encode(), hashlib.sha256).digest()
    head["Authorization"] = "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s" % (key, scope, names, sign.hex())
    if service == "s3" and env["SOURCE_VERSION"]:
        head["If-Match"] = '"%s"' % env["SOURCE_VERSION"]
    return Request(base.rstrip("/") + path, data=body or None, headers=head)
service, args = sys.argv[1], sys.argv[2:]
for attempt in range(6):
    try:
        if service == "imds":
            sys.exit(print(imds(args[0], imds("api/token"))))
        with urlopen(request(service, args), timeout=60) as answer:
            if service == "s3":
                with open(args[2], "wb") as out:
                    shutil.copyfileobj(answer, out)
            elif "=Describe" in args[1]:
                print(answer.read().decode())
        sys.exit(0)
    except urllib.error.HTTPError as e:
        said = e.read().decode(errors="replace")
        said = ": ".join(re.findall("<(?:Code|Message)>([^<]+)", said)) or " ".join(said.split())[:300]
        final = e.code < 500 and "hrottl" not in said and "LimitExceeded" not in said
    except OSError as e:
        said, final = str(e), False
    if final:
        break
    time.sleep(min(20, 2 ** attempt))
sys.exit("%s %s: %s" % (service, args[:2][-1], said))
PYTHON
}

# what the operator reads without reaching the node
tag() {
    aws_call ec2 2016-11-15 Action=CreateTags "ResourceId.1=$INSTANCE" "Tag.1.Key=dlami-cluster:$1" "Tag.1.Value=$2"
}

signal() { aws_call cloudformation 2010-05-15 Action=SignalResource "StackName=$STACK" "LogicalResourceId=$RESOURCE" "UniqueId=$INSTANCE" "Status=$1"; }

# STATUS: the node's report, locally and, once it is mounted, on the shared file system
report() {
    STATUS=$1 STEP=$STEP INSTANCE=$INSTANCE ADDRESS=$ADDRESS LOG=$LOG STEPS=$LOCAL/steps python3 - >"$LOCAL/report.json" <<'PYTHON'
import json, os, time
e = os.environ
steps = [dict(zip(("step", "result", "seconds"), line.split())) for line in open(e["STEPS"])]
tail = open(e["LOG"], errors="replace").read().splitlines()[-20:]
print(json.dumps({"cluster": e["NAME"], "role": e["ROLE"], "instance": e["INSTANCE"], "address": e["ADDRESS"], "status": e["STATUS"],
                  "step": e["STEP"], "steps": steps, "time": int(time.time()), "log_tail": tail}, indent=1))
PYTHON
    [ -n "$SHARED_OK" ] || return 0
    publish "$LOCAL/report.json" "$STATE/boot/$INSTANCE.json"
    publish "$LOG" "$STATE/boot/$INSTANCE.log"
}

# whole or not at all, also for a reader elsewhere
publish() { cp "$1" "$2.$INSTANCE.new" && mv "$2.$INSTANCE.new" "$2"; }

failed() {
    # the shell around a $(...) tells it
    [ "$BASH_SUBSHELL" = 0 ] || exit 1
    trap - ERR
    local last
    last=$(grep -v '^+' "$LOG" | tail -n 1 | tr -cd 'A-Za-z0-9 _.:/=+@-' | cut -c1-180)
    echo "$STEP failed $((SECONDS - BEGAN))" >>"$LOCAL/steps"
    echo "first-boot: step $STEP failed"
    # what outlives the node and its file system: `aws ec2 get-console-output`
    timeout 20 tail -n 80 "$LOG" >/dev/console || true
    report failed || true
    if [ "$ROLE" = master ] && [ -n "$SHARED_OK" ]; then publish "$LOCAL/report.json" "$LIFE/master.failed" || true; fi
    # another worker may
    [ -z "$BUILDS" ] || rmdir "$LIFE/wheels.by" || true
    tag boot "failed $STEP: $last" || true
    signal FAILURE || true
    exit 1
}
trap failed ERR

step() {
    STEP=$1 BEGAN=$SECONDS
    echo "first-boot: $STEP"
    report running
    # the steps that take their time
    case $STEP in mount-shared | project | runtime | setup) tag boot "running $STEP" || true ;; esac
    shift
    "$@"
    echo "$STEP ok $((SECONDS - BEGAN))" >>"$LOCAL/steps"
}

say() { echo "first-boot: $*"; }

# What the login user may write is run, and unpacked, as that user. Root runs what it has unpacked for itself.
as_login() { runuser -u "$LOGIN" -- env HOME="${LOGIN_HOME:-}" "$@"; }

# FILE: one that the master makes; a deadline, not a hope
wait_for() {
    until [ -e "$1" ] || [ -e "${2:-$1}" ]; do
        [ $SECONDS -lt "$BOOT_SECONDS" ] || { echo "$1 did not appear: look at the master's report in $STATE/boot"; return 1; }
        [ ! -e "$LIFE/master.failed" ] || { echo "the master failed: see $LIFE/master.failed"; return 1; }
        sleep 2
    done
}

identity() {
    INSTANCE=$(aws_call imds meta-data/instance-id)
    ADDRESS=$(aws_call imds meta-data/local-ipv4)
    AMI=$(aws_call imds meta-data/ami-id) || true
    say "$INSTANCE $ADDRESS, $ROLE of $NAME"
    LOGIN_HOME=$(getent passwd "$LOGIN" | cut -d: -f6) || { echo "there is no user $LOGIN: set ssh.user"; return 1; }
}

scaling() { aws_call autoscaling 2011-01-01 "Action=$1" "${@:2}"; }

# When all nodes end, where nobody has said it: who watched the stack may be gone, and without the project there is no guard.
first_end() {
    local group there end
    [ "$ROLE" = master ] || return 0
    there=$(scaling DescribeAutoScalingGroups "AutoScalingGroupNames.member.1=$NAME-master") || return 0
    [[ $there =~ first_minutes=([0-9]+) ]] || return 0
    end=$(date -ud "${BASH_REMATCH[1]} min" +%FT%TZ)
    for group in "$NAME-workers" "$NAME-master"; do
        there=$(scaling DescribeScheduledActions "AutoScalingGroupName=$group") || continue
        [[ $there = *dlami-guard* ]] || scaling PutScheduledUpdateGroupAction "AutoScalingGroupName=$group" \
            ScheduledActionName=dlami-guard "StartTime=$end" MinSize=0 MaxSize=0 DesiredCapacity=0 || true
    done
}

# PATH COMMAND...: mounts with retries, since a new file system's address answers late
mounted() {
    local path=$1 pause=2
    shift
    mkdir -p "$path"
    if mountpoint -q "$path"; then say "$path is mounted already"; return 0; fi
    until timeout 150 "$@" "$path"; do
        [ $((SECONDS - BEGAN)) -lt 600 ] || return 1
        sleep $pause
        pause=$((pause < 20 ? pause * 2 : 20))
    done
}

# PROGRAM PACKAGE: from the distribution's own archive, where it is missing. A new node begins with an apt of its own: apt-get
# waits for who installs, not for who fetches the lists.
needs() {
    local said
    until command -v "$1" >/dev/null || said=$({ apt "$2" || { apt-get update && apt "$2"; }; } 2>&1); do
        echo "$said"
        [[ $said =~ lock|to\ fetch|[Tt]emporary && $((SECONDS - BEGAN)) -lt 300 ]] || { echo "$1 is missing and $2 cannot be installed"; return 1; }
        sleep 2
    done
}

apt() { DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y "$1"; }

# TLS to EFS: a local port whose other end is the file system, its certificate checked. amazon-efs-utils would do the same, and is in
# no archive of Ubuntu's. Source: EFS User Guide, "Encrypting data in transit"; the options are those that its mount helper sets.
tunnel() {
    needs stunnel stunnel4
    printf '%s\n' 'fips = no' 'foreground = yes' 'pid =' 'socket = l:SO_REUSEADDR=yes' 'socket = a:SO_BINDTODEVICE=lo' '[efs]' 'client = yes' \
        'accept = 127.0.0.1:20049' "connect = $EFS_ADDRESS:2049" 'sslVersionMin = TLSv1.2' 'renegotiation = no' 'TIMEOUTbusy = 20' 'TIMEOUTclose = 0' \
        'TIMEOUTidle = 70' 'delay = yes' 'verifyChain = yes' 'CAfile = /etc/ssl/certs/ca-certificates.crt' "checkHost = $EFS_ID.efs.$REGION.$DOMAIN" \
        >/etc/dlami-efs.conf
    if [ "$(cat /proc/1/comm)" = systemd ]; then
        printf '%s\n' '[Unit]' 'After=network-online.target' 'Wants=network-online.target' '[Service]' 'ExecStart=/usr/bin/env stunnel /etc/dlami-efs.conf' \
            'Restart=always' 'RestartSec=1' '[Install]' 'WantedBy=multi-user.target' >/etc/systemd/system/dlami-efs.service
        systemctl daemon-reload
        systemctl enable --now dlami-efs.service
    else
        setsid stunnel /etc/dlami-efs.conf &
    fi
}

# PATH: root's folder. On a file system that was used before, another user's would let that user replace keys and the project.
own_folder() {
    mkdir "$1" 2>/dev/null || true
    [ "$(stat -c '%u %F' "$1")" = '0 directory' ] || { echo "$1 is not a folder of root's: remove it"; return 1; }
    chmod go-w "$1"
}

mount_shared() {
    local from=$EFS_ADDRESS options=nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport more=
    if ! mountpoint -q "$SHARED"; then
        needs mount.nfs4 nfs-common
        if [ -n "$EFS_TLS" ]; then
            tunnel
            # after and no more: with requires a restart of the tunnel would take the mount away, and x-systemd.wants is too new
            from=127.0.0.1 options+=,port=20049 more=,x-systemd.after=dlami-efs.service
        fi
        mounted "$SHARED" mount -t nfs4 -o "$options" "$from:/"
        grep -q " $SHARED nfs4 " /etc/fstab || echo "$from:/ $SHARED nfs4 $options$more,_netdev,nofail 0 0" >>/etc/fstab
    fi
    own_folder "$SHARED/.dlami-cluster"
    own_folder "$STATE"
    own_folder "$LIFE"
    mkdir -p "$STATE/boot" "$STATE/known_hosts.d"
    if [ "$ROLE" = master ]; then
        rm -f "$LIFE/master.failed"
        # Everybody may make folders in it; nobody but root may put another in the place of this script's own.
        [ "$(stat -c %U "$SHARED")" != root ] || chmod 1777 "$SHARED"
    fi
    SHARED_OK=1
}

# Lustre's client is a kernel module, which FSx's archive has for some kernels: without it no retry helps.
# Source: FSx for Lustre User Guide, "Installing the Lustre client".
lustre_client() {
    local kernel from=https://fsx-lustre-client-repo key=/usr/share/keyrings/fsx-ubuntu-public-key.asc
    kernel=$(uname -r)
    ! modinfo lustre >/dev/null 2>&1 || return 0
    if timeout 60 curl -fsSo $key $from-public-keys.s3.amazonaws.com/fsx-ubuntu-public-key.asc; then
        echo "deb [signed-by=$key] $from.s3.amazonaws.com/ubuntu $(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release) main" \
            >/etc/apt/sources.list.d/fsx.list
        timeout 300 apt-get update || true
    fi
    apt "lustre-client-modules-$kernel" || true
    modinfo lustre >/dev/null 2>&1 || { echo "no Lustre client for kernel $kernel: set nodes.ami to an image with one, or storage.fsx_gib to 0"; return 1; }
}

mount_fsx() {
    [ -n "$FSX_ADDRESS" ] || { say "no FSx in this cluster"; return 0; }
    lustre_client
    mounted "$FSX_MOUNT" mount -t lustre -o relatime,flock "$FSX_ADDRESS@tcp:/$FSX_NAME"
    grep -q " $FSX_MOUNT lustre " /etc/fstab || echo "$FSX_ADDRESS@tcp:/$FSX_NAME $FSX_MOUNT lustre relatime,flock,_netdev,nofail 0 0" >>/etc/fstab
}

# the key that sshd really shows, else the files it will show
host_key() {
    local keys
    keys=$(ssh-keyscan -T 5 "$ADDRESS" 2>/dev/null | awk -v a="$ADDRESS" '!/^#/ {print a, $2, $3}' || true)
    if [ -z "$keys" ]; then
        ssh-keygen -A >/dev/null
        keys=$(awk -v a="$ADDRESS" '{print a, $1, $2}' /etc/ssh/ssh_host_*_key.pub)
    fi
    echo "$keys" >"$LOCAL/host_key"
    # Nodes boot at once: who writes the list looks at it again, and does so until it holds everybody's key; one that has
    # seen that is done, though another may write an older list just then and look again. Publishing one's own key anew
    # makes an NFS client read the folder and not what it remembers of it. A file that another replaces while it is read
    # is a stale handle there: it is read again.
    local whole=
    for _ in $(seq 50); do
        publish "$LOCAL/host_key" "$STATE/known_hosts.d/$ADDRESS" || true
        if cat "$STATE"/known_hosts.d/*[0-9] >"$LOCAL/known_hosts"; then
            if cmp -s "$LOCAL/known_hosts" "$STATE/known_hosts"; then whole=1; break; fi
            publish "$LOCAL/known_hosts" "$STATE/known_hosts" || true
        fi
        sleep "0.$((RANDOM % 10))"
    done
    [ -n "$whole" ] || { echo "other nodes rewrite $STATE/known_hosts without end"; return 1; }
    tag host-key "$(echo "$keys" | awk '$2 == "ssh-ed25519" {print $2 " " $3; exit}')"
}

cluster_key() {
    local ssh=$LOGIN_HOME/.ssh keys=$LOGIN_HOME/.ssh/authorized_keys
    if [ "$ROLE" = master ] && [ ! -e "$STATE/key.pub" ]; then
        rm -f "$LOCAL/key" "$LOCAL/key.pub"
        ssh-keygen -q -t ed25519 -N '' -C "dlami-cluster $NAME" -f "$LOCAL/key"
        (umask 077 && publish "$LOCAL/key" "$STATE/key")
        publish "$LOCAL/key.pub" "$STATE/key.pub"
    fi
    wait_for "$STATE/key.pub"
    install -d -m 700 -o "$LOGIN" "$ssh"
    install -m 600 -o "$LOGIN" "$STATE/key" "$ssh/dlami-cluster"
    touch "$keys"
    grep -qxF "$(cat "$STATE/key.pub")" "$keys" || cat "$STATE/key.pub" >>"$keys"
    [ -z "$PUBLIC_KEY" ] || grep -qxF "$PUBLIC_KEY" "$keys" || echo "$PUBLIC_KEY" >>"$keys"
    chown "$LOGIN": "$keys"
    chmod 600 "$keys"
    mkdir -p /etc/ssh/ssh_config.d
    printf 'Host *\n    GlobalKnownHostsFile /etc/ssh/ssh_known_hosts %s\n    IdentityFile ~/.ssh/id_ed25519\n    IdentityFile ~/.ssh/dlami-cluster\n' \
        "$STATE/known_hosts" >/etc/ssh/ssh_config.d/60-dlami-cluster.conf
}

# 64 ranks' daemons and a fan-out come at once; the default drops connections beyond 10
sshd_limits() {
    [ -d /etc/ssh/sshd_config.d ] || { say "this sshd reads no sshd_config.d, its limits stay"; return 0; }
    printf 'MaxStartups 512:30:1024\nMaxSessions 256\n' >/etc/ssh/sshd_config.d/60-dlami-cluster.conf
    systemctl reload ssh 2>/dev/null || systemctl reload sshd 2>/dev/null || { [ -s /run/sshd.pid ] && kill -HUP "$(cat /run/sshd.pid)"; } ||
        say "sshd takes the new limits when it starts next"
}

# by stack.create, over ssh, from where it is typed
take_checkout() {
    local from=$LOCAL/arriving
    install -d -m 700 -o "$LOGIN" "$from"
    until [ -e "$from/project.tar.gz" ]; do
        [ $SECONDS -lt $((BOOT_SECONDS / 2)) ] || { echo "no checkout came: leave inv stack.create running until the nodes are ready"; return 1; }
        sleep 1
    done
    as_login cat "$from/project.tar.gz" >"$LOCAL/project.tar.gz"
    rm -f "$from/project.tar.gz"
}

fetch_project() {
    local got=$LOCAL/project.tar.gz
    case $SOURCE in
        checkout) [ ! -e "$LIFE/project.tar.gz" ] || return 0; take_checkout ;;
        s3://*) local rest=${SOURCE#s3://}; aws_call s3 "${rest%%/*}" "${rest#*/}" "$got" ;;
        https://*) rm -rf "$LOCAL/project"; git init -q "$LOCAL/project"; cd "$LOCAL/project"
            timeout 600 git fetch -q --depth 1 "$SOURCE" "$SOURCE_VERSION" || timeout 600 git fetch -q "$SOURCE" '+refs/*:refs/all/*'
            git archive --format=tar.gz -o "$got" "$SOURCE_VERSION"; cd / ;;
    esac
    publish "$got" "$LIFE/project.tar.gz"
}

project() {
    local packed=$LIFE/project.tar.gz none=$LIFE/project.none
    if [ -f "$PROJECT/tasks.py" ]; then say "$PROJECT is there already"; touch "$none"; return 0; fi
    if [ "$ROLE" = master ] && [ -n "$SOURCE" ]; then fetch_project; fi
    if [ "$ROLE" = master ] && [ ! -e "$packed" ]; then touch "$none"; fi
    wait_for "$packed" "$none"
    if [ ! -e "$packed" ]; then say "no nodes.source in the cluster file: the project is not installed"; return 0; fi
    [ -z "$(ls -A "$PROJECT" 2>/dev/null)" ] || { echo "$PROJECT holds something else: name an empty folder in the cluster file"; return 1; }
    # shellcheck disable=SC2016
    as_login sh -c 'mkdir -p "$0" && [ -w "$0" ]' "$PROJECT" 2>/dev/null || { [ ! -L "$PROJECT" ] && install -d -o "$LOGIN" "$PROJECT"; }
    as_login tar -C "$PROJECT" -xz <"$packed"
    # what `inv sync` may take away again
    tar -tzf "$packed" | as_login tee "$PROJECT/.synced" >/dev/null
    # of whoever packed it: another machine's way in
    as_login rm -f "$PROJECT/cluster.toml" "$PROJECT/hosts"
}

# What root runs from now on: unpacked for root alone, of the archive; of a project that was here, as it is at this boot.
root_copy() {
    OWN=$LOCAL/project
    [ ! -d "$OWN" ] || return 0
    install -d -m 700 "$OWN"
    if [ -f "$LIFE/project.tar.gz" ]; then
        tar -C "$OWN" --no-same-owner -xzf "$LIFE/project.tar.gz"
    elif [ -f "$PROJECT/tasks.py" ]; then
        (cd "$PROJECT" && tar -c --exclude .venv --exclude .git .) | tar -C "$OWN" --no-same-owner -x
    fi
    chmod -R go-w "$OWN"
}

runtime() {
    [ -f "$PROJECT/tasks.py" ] || { say "no project, no runtime"; return 0; }
    local venv=$PROJECT/.venv wheels=$LIFE/wheels install=$PROJECT/scripts/install.sh
    if as_login "$venv/bin/python" -c 'import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, ("tensorflow", "horovod"))))' 2>/dev/null; then
        say "the runtime is there already"
        return 0
    fi
    root_copy
    "$OWN/scripts/install.sh" packages
    export DLAMI_CLUSTER_CACHE=$STATE/cache
    install -d "$DLAMI_CLUSTER_CACHE"
    chown -R "$LOGIN": "$DLAMI_CLUSTER_CACHE"
    if [ "$ROLE" = master ] && [ -n "$OTHER_MASTER" ]; then
        # for itself alone: without a GPU
        as_login "$install"
    elif [ "$ROLE" = master ] || { [ -n "$OTHER_MASTER" ] && mkdir "$wheels.by" 2>/dev/null; }; then
        BUILDS=1
        as_login "$install"
        install -d -o "$LOGIN" "$wheels"
        as_login "$venv/bin/pip" wheel -q --no-deps -w "$wheels" -r "$venv/requirements.txt"
        as_login cp "$(as_login cat "$venv/.horovod")" "$wheels/"
        as_login cp "$venv/.installed" "$wheels/.new"
        as_login mv "$wheels/.new" "$wheels/.installed"
        BUILDS=''
    else
        wait_for "$wheels/.installed"
        as_login DLAMI_CLUSTER_WHEELS="$wheels" "$install"
    fi
    # a missing library or symbol is told now, not by every rank later
    as_login "$venv/bin/python" -c 'import horovod.tensorflow'
}

# so that the stack's tasks work on the master; kept if it was edited since
cluster_file() {
    if [ "$ROLE" != master ] || [ -e "$PROJECT/cluster.toml" ] || [ ! -e "$LIFE/project.tar.gz" ] || [ ! -x "$PROJECT/.venv/bin/inv" ]; then
        say "none to write here"
        return 0
    fi
    (cd "$PROJECT" && as_login .venv/bin/inv stack.init --from-stack "$NAME" --region "$REGION") || say "inv stack.init --from-stack $NAME writes it later"
}

# that run from now on
services() {
    # for `inv sync`, on a node without the project; AWS_E*: a lab's AWS
    declare -p NAME ROLE REGION SHARED PROJECT LIFE LOGIN ${AMI:+AMI} "${!AWS_E@}" "${!RANK_C@}" >/etc/dlami-cluster.conf
    root_copy
    if [ -f "$OWN/scripts/services.sh" ]; then LIFE=$LIFE LOGIN=$LOGIN bash "$OWN/scripts/services.sh" || say "they are not all there"; fi
}

# the operator's own script
setup() {
    root_copy
    export LOGIN LOGIN_HOME SETUP STATE LIFE LOCAL INSTANCE BOOT_SECONDS OWN
    export -f wait_for publish as_login
    bash "$OWN/scripts/setup.sh"
}

ready() {
    # of a group that was not there yet
    first_end
    report ready
    tag boot ready
    signal SUCCESS || say "the stack waits for no signal any more: this node came later"
}

step identity identity
step guard first_end
step mount-shared mount_shared
step mount-fsx mount_fsx
step host-key host_key
step cluster-key cluster_key
step sshd sshd_limits
step project project
step runtime runtime
step cluster-file cluster_file
step services services
[ -z "$SETUP" ] || step setup setup
STEP=ready BEGAN=$SECONDS
ready
