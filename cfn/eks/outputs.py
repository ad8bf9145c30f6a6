"""Outputs of an EKS stack as JSON, for callers that may not import this: `python -m cfn.eks.outputs REGION NAME`."""

import json
import sys

from cfn.aws import Aws
from cfn.eks.design import SUFFIX
from cfn.stack import find
from cluster.errors import ClusterError


def told(aws: Aws, name: str) -> dict[str, str]:
    """Return the outputs of the EKS stack of the cluster NAME; {} if there is none or it is incomplete."""
    stack = find(aws, name + SUFFIX)
    return dict(stack.outputs) if stack else {}


def main(argv: list[str]) -> int:
    """Print the outputs. Return the exit code."""
    if len(argv) != 2:
        print("usage: python -m cfn.eks.outputs REGION NAME", file=sys.stderr)
        return 2
    try:
        print(json.dumps(told(Aws(argv[0]), argv[1])))
    except ClusterError as e:
        print(e, file=sys.stderr)
        return e.exit_code or 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
