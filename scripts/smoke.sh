# shellcheck shell=bash
# What smoke-aws.sh and smoke-eks.sh have in common; they source it. Nothing is spent before `agree`, and whatever ends
# a script after that (a step that fails, Ctrl-C, a closed window) deletes what it has made, or says what ends it.

look_s=1800 # for which one may look around; nobody who forgets it pays for the night

# begin WHAT FROM [REGION [TYPE]]: checks that it is meant, and writes the cluster file of one host into a new folder.
begin() {
    local what=$1
    from=${2:?the network you come from, as 203.0.113.7/32}
    region=${3:-us-east-1}
    kind=${4:-g5.xlarge}
    name=smoke-$(date +%m%d%H%M%S)
    meant "$what $kind"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cd "$work" || exit
    printf '%s\n' "name = \"$name\"" "region = \"$region\"" '[nodes]' "instance_type = \"$kind\"" 'workers = 0' \
        '[access]' "ssh_from = \"$from\"" >cluster.toml
}

# meant WHAT: that it is, that it would reach AWS, and that all programs are here.
meant() {
    local program
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    inv=("$root/.venv/bin/inv" --search-root "$root")
    if [ "${DLAMI_SMOKE_AWS:-}" != yes ]; then
        echo "this starts $1 in your account: set DLAMI_SMOKE_AWS=yes if you mean it" >&2
        exit 2
    fi
    if [ -n "$(compgen -e AWS_ENDPOINT_URL)" ]; then
        echo "$(compgen -e AWS_ENDPOINT_URL | head -1) is set: this would not reach AWS" >&2
        exit 2
    fi
    for program in aws ${needs:-}; do
        command -v "$program" >/dev/null || { echo "there is no $program here: install it first" >&2; exit 2; }
    done
    trap 'exit 130' INT # each by the trap of EXIT, once the step that runs has ended
    trap 'exit 143' TERM
    trap 'exit 129' HUP
    trap 'exit 141' PIPE
}

# keep_folder: the run's folder is where it was started, under the run's name, and stays.
keep_folder() {
    local own=$OLDPWD/$name
    mkdir "$own"
    cd "$own" || exit
    rm -rf "$work"
    work=$own
}

# resume FOLDER: goes on in the folder of a run that was begun; past its deadline there is nothing to do but to delete.
resume() {
    meant "what $1 names"
    [ -s "$1/deadline" ] && [ -s "$1/cluster.toml" ] || { echo "$1 is no folder of a run that was agreed to" >&2; exit 2; }
    work=$(cd "$1" && pwd)
    cd "$work" || exit
    name=$(sed -n 's/^name = "\(.*\)"/\1/p' cluster.toml)
    region=$(sed -n 's/^region = "\(.*\)"/\1/p' cluster.toml)
    echo "going on with $name in $region, until $(date -ud "@$(cat deadline)" +%FT%TZ)"
}

# asks QUESTION: goes on if the name is typed.
asks() {
    local answer
    read -r -p "$1" answer || answer=
    [ "$answer" = "$name" ] || { echo "nothing was made"; exit 1; }
}

# agree GROUP STACK BESIDES: what GROUP.plan says it costs is agreed to, and from now on it is deleted at the end.
agree() {
    "${inv[@]}" "$1.plan"
    asks "About an hour of that, with a NAT gateway (0.05 USD), $3. Type $name to spend it: "
    # shellcheck disable=SC2064  # as they are now
    trap "remove $1 $2" EXIT
}

# unchanged GROUP: fails where what is there is not what its file asks for.
unchanged() {
    local plan
    plan=$("${inv[@]}" "$1.plan" --json)
    "$root/.venv/bin/python" -c 'if True:
        import json, sys
        changes = json.load(sys.stdin)["changes"]
        sys.exit(f"what was made is not what its file says: {changes}" if changes else print("changes   none"))' <<<"$plan"
}

# look HOW: until Enter, the end of stdin, or the time is over.
look() {
    echo "look around now with $1; press Enter to delete everything, in $((look_s / 60)) minutes it is done without"
    read -r -t "$look_s" _ || true
}

# heard TEXT: says it; once nobody has the terminal any more, all that follows goes into the folder's log.
heard() {
    { echo "$1" >&3; } 3>&2 2>/dev/null || exec >>"$work/log" 2>&1
}

# left STACK: the command for each thing of its that is still there without it.
left() {
    { "${inv[@]}" stack.orphans --region "$region" --json || true; } | "$root/.venv/bin/python" -c 'if True:
        import json, sys
        found = json.loads(sys.stdin.read() or sys.exit(1))
        for one in found["orphans"]:
            if one["cluster"] == sys.argv[1]:
                print(one["command"])
        sys.exit(bool(found["unasked"]))' "$1"
}

# remove GROUP STACK [STATUS]: the stack, then what a deletion keeps; says what of it is left, and what ends that.
remove() {
    local status=${3:-$?} commands command ends=("${inv[@]}" "$1.delete" --yes)
    [ "$1" != stack ] || ends+=(--unsaved) # a job that a step has left
    trap '' INT HUP PIPE # for what is started here, too: a deletion that is half done costs on
    heard "deleting $2; Ctrl-C does not stop that"
    if ! "${ends[@]}" >&2; then
        heard "once more"
        if ! "${ends[@]}" >&2; then
            heard "NOT DELETED, and it costs: stack $2 in $region. Ends it: cd $work && ${inv[*]} $1.delete"
            heard "and then what it keeps: ${inv[*]} stack.orphans --delete --region $region"
            exit $((status ? status : 1))
        fi
    fi
    if ! commands=$(left "$2"); then
        heard "NOT SEEN whether anything of $2 is left: ${inv[*]} stack.orphans --delete --region $region"
        exit $((status ? status : 1))
    fi
    if [ "$status" = 0 ] && [[ $commands != *delete-file-system* ]]; then
        heard "its file system is gone with the stack: a deletion should have kept it"
        status=1
    fi
    while read -r command; do
        [ -n "$command" ] || continue
        heard "$command"
        bash -c "$command" >&2 </dev/null || { heard "NOT REMOVED, and it may cost: $command"; status=$((status ? status : 1)); }
    done <<<"$commands"
    [ -n "${keeps:-}" ] || { cd / && rm -rf "$work"; }
    heard "the end of $2"
    exit "$status"
}
