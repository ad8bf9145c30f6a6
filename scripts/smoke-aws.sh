#!/usr/bin/env bash
# One small GPU node in a real account: created, looked at, deleted. Nothing runs this by itself, and it costs money:
# it prints how much first, and does nothing unless DLAMI_SMOKE_AWS=yes is set and the cost is confirmed.
#
#   DLAMI_SMOKE_AWS=yes scripts/smoke-aws.sh 203.0.113.7/32 [region] [instance type]
#
# It proves what the fake cannot: that the role's permissions suffice, user data boots on a DLAMI, EFS mounts, signals arrive.
set -euo pipefail

from=${1:?the network you come from, as 203.0.113.7/32}
region=${2:-us-east-1}
kind=${3:-g5.xlarge}
root=$(cd "$(dirname "$0")/.." && pwd)
inv=("$root/.venv/bin/inv" --search-root "$root")
work=$(mktemp -d)
name=smoke-$(date +%m%d%H%M%S)

if [ "${DLAMI_SMOKE_AWS:-}" != yes ]; then
    echo "this starts one $kind in your account: set DLAMI_SMOKE_AWS=yes if you mean it" >&2
    exit 2
fi
if [ -n "${AWS_ENDPOINT_URL:-}" ]; then
    echo "AWS_ENDPOINT_URL is set: this would not reach AWS" >&2
    exit 2
fi

cd "$work"
"${inv[@]}" stack.init --name "$name" --ssh-from "$from"
sed -i -e "s/^region = .*/region = \"$region\"/" -e "s/^instance_type = .*/instance_type = \"$kind\"/" -e 's/^workers = .*/workers = 0/' cluster.toml
"${inv[@]}" stack.plan
read -r -p "About an hour of that, with a NAT gateway (0.05 USD) and two addresses. Type $name to spend it: " answer
[ "$answer" = "$name" ] || { echo "nothing was made"; exit 1; }

remove() {
    status=$?
    echo "deleting $name; its file system is kept, remove it with: aws efs delete-file-system --region $region --file-system-id ID" >&2
    "${inv[@]}" stack.delete --yes || echo "NOT DELETED: run 'inv stack.delete' in $work, or delete stack $name in the console" >&2
    exit "$status"
}
trap remove EXIT

"${inv[@]}" stack.create --yes --keep-failed
"${inv[@]}" stack.status
"${inv[@]}" hosts.write --source stack
if "${inv[@]}" stack.update --dry-run; then echo "no drift"; fi
echo "look around now with 'inv ssh' in $work; press Enter to delete everything"
read -r _
