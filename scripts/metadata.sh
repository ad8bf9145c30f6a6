#!/bin/bash
# Closes the instance's metadata service, and with it the credentials of the node's role, to all but root and USER...:
#   metadata.sh USER...    the rules replace those of an earlier run; a USER that is not here is left out
#   metadata.sh --open     opens it to everybody again
# By routing rules, which every Linux has: a packet to it from another user's socket finds no route.
set -euo pipefail
OPEN=100 CLOSED=101   # preferences: behind the local addresses (0), before every rule of the system's own

rules() {   # FAMILY ADDRESS USER...
    local family=$1 to=$2 user id
    shift 2
    for preference in $OPEN $CLOSED; do
        while ip "-$family" rule del pref "$preference" to "$to" 2>/dev/null; do :; done
    done
    [ "${1:-}" != --open ] || return 0
    # Closed before it is opened to some: whatever ends this in between leaves it closed.
    ip "-$family" rule add pref $CLOSED to "$to" prohibit
    for user in root "$@"; do
        id=$(id -u "$user" 2>/dev/null) || continue
        ip "-$family" rule add pref $OPEN to "$to" uidrange "$id-$id" lookup main
    done
}

rules 4 169.254.169.254/32 "$@"
rules 6 fd00:ec2::254/128 "$@" || echo "no IPv6 here, so nothing to close"
