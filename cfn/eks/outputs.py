"""`python -m cfn.eks.outputs REGION NAME`: what an EKS stack tells of itself, for whoever may not import this."""

import json
import sys

from cfn.aws import Aws
from cfn.eks.design import SUFFIX
from cfn.stack import find
from cluster.errors import ClusterError


def told(aws: Aws, name: str) -> dict[str, str]:
    """Outputs of the EKS stack of the cluster NAME; empty where there is none or it is not made yet."""
    stack = find(aws, name + SUFFIX)
    return dict(stack.outputs) if stack else {}


def main(argv: list[str]) -> int:
    """Print them; the exit code."""
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
