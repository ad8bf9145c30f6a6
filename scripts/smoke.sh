# shellcheck shell=bash
# What smoke-aws.sh and smoke-eks.sh have in common; they source it. Nothing is spent before `agree`, and whatever ends
# a script after that (a step that fails, Ctrl-C, a closed window) deletes what it has made, or says what ends it.

look_s=1800 # for which one may look around; nobody who forgets it pays for the night

# begin WHAT FROM [REGION [TYPE]]: checks that it is meant, and writes the cluster file of one host into a new folder.
begin() {
    local what=$1 program
    from=${2:?the network you come from, as 203.0.113.7/32}
    region=${3:-us-east-1}
    kind=${4:-g5.xlarge}
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    inv=("$root/.venv/bin/inv" --search-root "$root")
    name=smoke-$(date +%m%d%H%M%S)
    if [ "${DLAMI_SMOKE_AWS:-}" != yes ]; then
        echo "this starts $what $kind in your account: set DLAMI_SMOKE_AWS=yes if you mean it" >&2
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
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cd "$work" || exit
    printf '%s\n' "name = \"$name\"" "region = \"$region\"" '[nodes]' "instance_type = \"$kind\"" 'workers = 0' \
        '[access]' "ssh_from = \"$from\"" >cluster.toml
}

# agree GROUP STACK BESIDES: what GROUP.plan says it costs is agreed to, and from now on it is deleted at the end.
agree() {
    local answer
    "${inv[@]}" "$1.plan"
    read -r -p "About an hour of that, with a NAT gateway (0.05 USD), $3. Type $name to spend it: " answer || answer=
    [ "$answer" = "$name" ] || { echo "nothing was made"; exit 1; }
    # shellcheck disable=SC2064  # as they are now
    trap "remove $1 $2" EXIT
}

# unchanged GROUP: fails where what is there is not what its file asks for.
unchanged() {
    "${inv[@]}" "$1.plan" --json | "$root/.venv/bin/python" -c 'if True:
        import json, sys
        changes = json.load(sys.stdin)["changes"]
        sys.exit(f"what was made is not what its file says: {changes}" if changes else print("changes   none"))'
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

# remove GROUP STACK: the stack, then what a deletion keeps; says what of it is left, and what ends that.
remove() {
    local status=$? commands command
    trap '' INT HUP PIPE # for what is started here, too: a deletion that is half done costs on
    heard "deleting $2; Ctrl-C does not stop that"
    if ! "${inv[@]}" "$1.delete" --yes >&2; then
        heard "once more"
        if ! "${inv[@]}" "$1.delete" --yes >&2; then
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
    cd / && rm -rf "$work"
    heard "the end of $2"
    exit "$status"
}
