#!/usr/bin/env bash
# The operator's own script at a node's first boot, started by first-boot.sh with its settings and two of its functions.
# The master takes it from the stack's template and publishes it; every node runs it once for its content, as root.
set -euo pipefail
: "${ROLE:?}" "${NAME:?}" "${REGION:?}" "${PROJECT:?}" "${SETUP:?}" "${LIFE:?}" "${LOCAL:?}"

cd "$PROJECT"
if [ "$ROLE" = master ]; then
    .venv/bin/python -m cfn.setup_script "$NAME" "$REGION" "$SETUP" >"$LOCAL/setup"
    publish "$LOCAL/setup" "$LIFE/setup-$SETUP"
fi
wait_for "$LIFE/setup-$SETUP"
exec .venv/bin/python -m cluster.setup.at_boot "$LIFE/setup-$SETUP"
