"""What IAM policies are made of: statements that allow, and the names and conditions by which they end at one cluster.

What CloudFormation makes it makes with its caller's rights: these hold through CloudFormation alone (`aws:CalledVia`),
and for what is there already only where it carries the cluster's tag.
"""

from typing import Any

from cfn.clusterfile.fields import ClusterFile
from cfn.template.design import TAG

Statement = dict[str, Any]
SIZE = 6144  # characters of a managed policy that IAM takes, white space aside


def document(*statements: Statement) -> dict[str, Any]:
    """A policy."""
    return {"Version": "2012-10-17", "Statement": list(statements)}


def allow(sid: str, actions: list[str], resources: Any, condition: dict[str, Any] | None = None) -> Statement:
    """A statement."""
    given = {"Sid": sid, "Effect": "Allow", "Action": sorted(actions), "Resource": resources}
    return {**given, "Condition": condition} if condition else given


def of(service: str, names: tuple[str, ...]) -> list[str]:
    """A service's actions by name."""
    return [f"{service}:{name}" for name in names]


def arn(file: ClusterFile, service: str, rest: str) -> str:
    """In whichever account the policy is: it holds for no other."""
    partition = "aws-cn" if file.region.startswith("cn-") else "aws-us-gov" if "-gov-" in file.region else "aws"
    region = "" if service in ("iam", "s3") else file.region
    return f"arn:{partition}:{service}:{region}:{'' if service == 's3' else '*'}:{rest}"


def tagged(file: ClusterFile) -> dict[str, dict[str, Any]]:
    """For what carries the cluster's tag."""
    return {"StringEquals": {f"aws:ResourceTag/{TAG}cluster": file.name}}


def by_cloudformation(more: dict[str, Any] | None = None) -> dict[str, Any]:
    """For what CloudFormation does for the caller."""
    return {"ForAnyValue:StringEquals": {"aws:CalledVia": "cloudformation.amazonaws.com"}, **(more or {})}
