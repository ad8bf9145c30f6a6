"""Building blocks of IAM policies: statements, and the names and conditions that limit them to one cluster.

CloudFormation creates resources with its caller's rights. So these rights are valid only through CloudFormation
(`aws:CalledVia`), and for existing resources only if they carry the cluster's tag.
"""

from typing import Any

from cfn.template.design import TAG
from cluster.clusterfile.model import ClusterFile

Statement = dict[str, Any]
SIZE = 6144  # maximum characters of a managed policy, without white space


def document(*statements: Statement) -> dict[str, Any]:
    """Return a policy document with these statements."""
    return {"Version": "2012-10-17", "Statement": list(statements)}


def allow(sid: str, actions: list[str], resources: Any, condition: dict[str, Any] | None = None) -> Statement:
    """Return an Allow statement."""
    given = {"Sid": sid, "Effect": "Allow", "Action": sorted(actions), "Resource": resources}
    return {**given, "Condition": condition} if condition else given


def actions_of(service: str, names: tuple[str, ...]) -> list[str]:
    """Return a service's actions by name, as "service:name"."""
    return [f"{service}:{name}" for name in names]


def arn(file: ClusterFile, service: str, rest: str) -> str:
    """Return an ARN pattern in any account. A policy applies only to the account that it is in."""
    partition = "aws-cn" if file.region.startswith("cn-") else "aws-us-gov" if "-gov-" in file.region else "aws"
    region = "" if service in ("iam", "s3") else file.region
    return f"arn:{partition}:{service}:{region}:{'' if service == 's3' else '*'}:{rest}"


def tagged(file: ClusterFile) -> dict[str, dict[str, Any]]:
    """Return the condition that the resource carries the cluster's tag."""
    return {"StringEquals": {f"aws:ResourceTag/{TAG}cluster": file.name}}


def by_cloudformation(more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the condition that CloudFormation makes the request for the caller, together with `more`."""
    return {"ForAnyValue:StringEquals": {"aws:CalledVia": "cloudformation.amazonaws.com"}, **(more or {})}
