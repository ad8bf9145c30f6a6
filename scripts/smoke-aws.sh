#!/usr/bin/env bash
# One small GPU node in a real account: created, looked at, deleted. Nothing runs this by itself, and it costs money:
# it prints how much first, and does nothing unless DLAMI_SMOKE_AWS=yes is set and the cost is confirmed.
#
#   DLAMI_SMOKE_AWS=yes scripts/smoke-aws.sh 203.0.113.7/32 [region] [instance type]
#
# It proves what the fake cannot: that the role's permissions suffice, user data boots on a DLAMI, EFS mounts, signals arrive.
set -euo pipefail
# shellcheck source=scripts/smoke.sh
. "$(dirname "$0")/smoke.sh"

begin one "$@"
agree stack "$name" "two addresses"
"${inv[@]}" stack.create --yes --keep-failed
"${inv[@]}" stack.status
"${inv[@]}" hosts.write --source stack
if "${inv[@]}" stack.update --dry-run; then echo "no drift"; fi
echo "look around now with 'inv ssh' in $work; press Enter to delete everything"
read -r _
