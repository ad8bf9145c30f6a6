#!/usr/bin/env bash
# The operator's own script at a node's first boot, started by first-boot.sh with its settings and two of its functions.
# The master takes it from the stack's template and publishes it; every node runs it once for its content, as root: by
# root's own copy of the project, and if it has the digest that the stack states.
set -euo pipefail
: "${OWN:?}" "${ROLE:?}" "${NAME:?}" "${REGION:?}" "${PROJECT:?}" "${SETUP:?}" "${LIFE:?}" "${LOCAL:?}"

if [ "$ROLE" = master ]; then
    (cd "$PROJECT" && as_login .venv/bin/python -m cfn.setup_script "$NAME" "$REGION" "$SETUP") >"$LOCAL/setup"
    publish "$LOCAL/setup" "$LIFE/setup-$SETUP"
fi
wait_for "$LIFE/setup-$SETUP"
cd "$OWN"
exec python3 -B -s -m cluster.setup.at_boot "$LIFE/setup-$SETUP"
