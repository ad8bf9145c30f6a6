#!/usr/bin/env bash
# One small GPU node in a real account: created, looked at, deleted. Nothing runs this by itself, and it costs money:
# it prints how much first, and does nothing unless DLAMI_SMOKE_AWS=yes is set and the cost is confirmed.
#
#   DLAMI_SMOKE_AWS=yes scripts/smoke-aws.sh 203.0.113.7/32 [region] [instance type]
#
# It proves what the fake cannot: that the role's permissions suffice for a bare node, user data boots on a DLAMI, EFS mounts, signals arrive.
# The runtime, the services, a worker and mpirun it does not try (docs/stack.md, "What no fake proves").
# tests/cfn/test_smoke_steps.py runs all of its steps against the fake.
set -euo pipefail
# shellcheck source=scripts/smoke.sh
. "$(dirname "$0")/smoke.sh"

begin one "$@"
agree stack "$name" "two public addresses"
"${inv[@]}" stack.create --yes --keep-failed
"${inv[@]}" stack.status
"${inv[@]}" hosts.write --source stack
unchanged stack
look "'inv ssh' in $work"
