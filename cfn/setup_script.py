"""Printer of a stack's set-up script: `python -m cfn.setup_script STACK REGION DIGEST`, at first boot."""

import sys

from cfn import in_stack
from cfn.aws import Aws
from cluster.errors import ClusterError


def main(name: str, region: str, digest: str) -> int:
    """Print the script if it has this digest. Return the exit code."""
    try:
        script = in_stack.setup_of(Aws(region), name)
    except ClusterError as e:
        print(e, file=sys.stderr)
        return 1
    if script is None or script.digest != digest:
        print(f"stack {name} carries another set-up script by now: replace this node", file=sys.stderr)
        return 1
    sys.stdout.write(script.text)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
