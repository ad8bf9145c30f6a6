# shellcheck shell=bash
# What smoke-aws.sh and smoke-eks.sh have in common; they source it. Nothing is spent before `agree`, and whatever ends
# a script after that deletes what it has made.

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
    if [ -n "${AWS_ENDPOINT_URL:-}" ]; then
        echo "AWS_ENDPOINT_URL is set: this would not reach AWS" >&2
        exit 2
    fi
    for program in ${needs:-}; do
        command -v "$program" >/dev/null || { echo "there is no $program here: install it first" >&2; exit 2; }
    done
    work=$(mktemp -d)
    cd "$work" || exit
    printf '%s\n' "name = \"$name\"" "region = \"$region\"" '[nodes]' "instance_type = \"$kind\"" 'workers = 0' \
        '[access]' "ssh_from = \"$from\"" >cluster.toml
}

# agree GROUP STACK BESIDES: what GROUP.plan says it costs is agreed to, and from now on it is deleted at the end.
agree() {
    local answer
    "${inv[@]}" "$1.plan"
    read -r -p "About an hour of that, with a NAT gateway (0.05 USD) and $3. Type $name to spend it: " answer
    [ "$answer" = "$name" ] || { echo "nothing was made"; exit 1; }
    # shellcheck disable=SC2064  # as they are now
    trap "remove $1 $2" EXIT
}

remove() {
    local status=$?
    echo "deleting $2; its file system is kept, remove it with: inv stack.orphans --delete" >&2
    "${inv[@]}" "$1.delete" --yes ||
        echo "NOT DELETED: run 'inv $1.delete' in $work, or delete stack $2 in the console" >&2
    exit "$status"
}
