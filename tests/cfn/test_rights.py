"""What `stack.policy` prints: it follows the cluster file, ends at the cluster, and fits into a managed policy."""

import json
import re
from dataclasses import replace as with_
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore import xform_name
from designs import VARIANTS

from cfn import rights
from cfn.statements import SIZE
from cfn.template import template
from cluster.clusterfile.model import Access, ClusterFile, Storage
from cluster.inventory import ROOT
from eks.stack import rights as eks_rights
from lab.aws.schemas import schema
from lab.aws.state import ACCOUNT
from tests.cfn.policies import PREFIX, TAGGED, VIA, Request, grants, listed
from tests.walking import walked

STORED = Path(__file__).parent / "golden" / "policies.txt"


@pytest.mark.parametrize(
    ("parts", "more"),
    [
        ({}, set()),
        ({"access": Access(mode="ssm")}, {"ssm:StartSession", "iam:AttachRolePolicy", "iam:DetachRolePolicy"}),
        ({"access": Access(mode="eic")}, {"ec2-instance-connect:OpenTunnel", "ec2:CreateInstanceConnectEndpoint"}),
        ({"storage": Storage(fsx_gib=1200, fsx_s3="s3://ours/data")}, {"fsx:CreateFileSystem", "s3:ListBucket"}),
        (
            {
                "access": Access(mode="ssm"),
                "storage": Storage(fsx_gib=1200, fsx_s3="s3://ours/data", s3="s3://ours/runs"),
            },
            {"iam:PutRolePolicy", "fsx:CreateDataRepositoryAssociation"},
        ),
    ],
)
def test_the_policy_follows_the_cluster_file(parts: dict[str, Any], more: set[str]) -> None:
    """What a cluster does not have its operator may not make; each fits into a managed policy."""
    plain = ClusterFile(name="demo", access=Access(ssh_from="203.0.113.7/32"))
    own = rights.policy(with_(plain, **parts))
    actions = {a for s in own["Statement"] for a in s["Action"]}
    base = {a for s in rights.policy(plain)["Statement"] for a in s["Action"]}

    assert more <= actions and (not more or not more <= base)
    assert characters(own) <= SIZE
    assert characters(rights.policy(with_(plain, name="a" * 41, **parts))) <= SIZE
    assert characters(eks_rights.policy(with_(plain, name="a" * 37, **parts))) <= SIZE
    assert all(s["Effect"] == "Allow" and s["Sid"] for s in own["Statement"])


def test_a_session_is_ended_by_who_began_it() -> None:
    """What docs/stack.md asks for `ssm` is in the printed policy: sessions carry their user's name."""
    given = rights.policy(ClusterFile(name="demo", access=Access(mode="ssm")))["Statement"]
    own, others = (f"arn:aws:ssm:us-east-1:{ACCOUNT}:session/{who}-0a1b2c" for who in ("ada", "bob"))
    assert grants(given, Request("ssm:TerminateSession", own, {"aws:username": "ada"}))
    assert not grants(given, Request("ssm:TerminateSession", others, {"aws:username": "ada"}))


DOCUMENTED = {
    **{"aws:CalledVia": "", "aws:ResourceTag/": "", "aws:SourceAccount": "", "aws:SourceArn": "", "aws:TagKeys": ""},
    **{"autoscaling:MaxSize": "autoscaling", "aws:RequestTag/": "", "aws:SecureTransport": "", "aws:ViaAWSService": "", "aws:PrincipalArn": ""},
    **{"ec2:CreateAction": "ec2", "ec2:InstanceID": "ec2", "ec2:SourceInstanceARN": "ec2", "ec2:osuser": "ec2-instance-connect"},
    **{"iam:AWSServiceName": "iam", "iam:PassedToService": "iam", "iam:PermissionsBoundary": "iam"},
    **{"s3:prefix": "s3", "ssm:resourceTag/": "ssm", "elasticfilesystem:AccessedViaMountTarget": "elasticfilesystem"},
}  # fmt: skip
"""Condition keys of the Service Authorization Reference, each with the service whose actions have it ('' for all)."""


def conditions(value: Any) -> list[tuple[list[str], str]]:
    """The actions and the condition key of each condition, and of each policy variable, of every statement within."""
    if isinstance(value, list):
        return [c for v in value for c in conditions(v)]
    if not isinstance(value, dict):
        return []
    found = [c for v in value.values() for c in conditions(v)]
    if "Effect" in value:
        said = json.dumps([value.get("Condition", {}), value.get("Resource", "")])
        keys = {k for asked in value.get("Condition", {}).values() for k in asked}
        keys |= set(re.findall(r"\$\{!([^}]+)\}", said))
        found += [(listed(value["Action"]), k) for k in sorted(keys)]
    return found


@walked("variant", VARIANTS)
def test_conditions_ask_for_nothing_that_aws_does_not_document(variant: str) -> None:
    """A key that a request does not carry refuses it, and nothing but AWS itself would say so."""
    design = VARIANTS[variant]
    printed = [rights.policy(design.file), rights.orphans_policy(), rights.blocks_policy()]
    if not design.file.network.vpc:  # EKS needs two subnets
        printed.append(eks_rights.policy(design.file))
    asked = conditions([json.loads(template.body(design)), *printed])
    assert asked
    for actions, key in asked:
        name = key.partition("/")[0] + "/" if "/" in key else key
        service = DOCUMENTED.get(name)
        assert service is not None, f"{key} of {actions} is no documented condition key"
        assert not service or all(a.startswith(f"{service}:") for a in actions), f"{key} is no key of {actions}"


FOREIGN = {"ec2:AttachVpnGateway", "ec2:DetachVpnGateway", "ec2:AcceptAddressTransfer"}  # of no template of ours
UNUSED = {"ec2:ModifyPublicIpDnsNameOptions", "ec2:ReplaceRouteTableAssociation", "ec2:CreateVpcEncryptionControl"}


@pytest.mark.seconds
@walked("variant", VARIANTS)
def test_whatever_is_made_of_ec2_can_be_removed_again(variant: str) -> None:
    """All that CloudFormation's handlers of the file's own resources need, and no more but for placement groups."""
    file = VARIANTS[variant].file
    given = rights.policy(file)["Statement"]
    kinds = {r["Type"] for r in json.loads(template.body(VARIANTS[variant]))["Resources"].values()}
    handlers = [schema(kind, "us-east-1").get("handlers", {}) for kind in kinds]
    context = {**VIA, **dict.fromkeys(TAGGED, file.name)}

    needed = {p for one in handlers for verb in ("create", "delete") if verb in one for p in one[verb]["permissions"]}
    for permission in {p for p in needed if p.startswith("ec2:") and "*" not in p} - FOREIGN - UNUSED:
        assert grants(given, Request(permission, "*", context)), permission
    known = {p for one in handlers for verb in one.values() for p in verb["permissions"]}
    allowed = {a for s in given for a in listed(s["Action"]) if s["Sid"] in ("Make", "Change") and a.startswith("ec2:")}
    assert allowed - known <= {"ec2:CreatePlacementGroup", "ec2:DeletePlacementGroup"}


def characters(policy: dict[str, Any]) -> int:
    """As IAM counts them."""
    return len(re.sub(r"\s", "", json.dumps(policy)))


def test_it_ends_at_the_cluster() -> None:
    """Another's group, stack, role or network is out of reach, and nothing is made but through CloudFormation."""
    file = ClusterFile(name="demo", access=Access(ssh_from="203.0.113.7/32"))
    given = rights.policy(file)["Statement"]
    others = {**VIA, "aws:ResourceTag/dlami-cluster:cluster": "another"}
    group = f"arn:aws:autoscaling:us-east-1:{ACCOUNT}:autoScalingGroup:x:autoScalingGroupName"
    for request in (
        Request("ec2:RunInstances", "*"),
        Request("ec2:CreateVpc", "*", TAGGED),
        Request("ec2:DeleteVpc", "*", others),
        Request("ec2:TerminateInstances", "*", {**VIA, **TAGGED}),
        Request("autoscaling:UpdateAutoScalingGroup", f"{group}/another-workers"),
        Request("autoscaling:DeleteAutoScalingGroup", f"{group}/demo-workers"),
        Request("cloudformation:DeleteStack", f"arn:aws:cloudformation:us-east-1:{ACCOUNT}:stack/another/id"),
        Request("iam:PutRolePolicy", f"arn:aws:iam::{ACCOUNT}:role/admin", VIA),
        Request("iam:PutRolePolicy", f"arn:aws:iam::{ACCOUNT}:role/demo-MasterRole-1"),
        Request("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/demo-MasterRole-1", {"iam:PassedToService": "lambda.amazonaws.com"}),
        Request("ec2:CreateTags", f"arn:aws:ec2:us-east-1:{ACCOUNT}:instance/i-1", {**TAGGED, "aws:TagKeys": ["dlami-cluster:host-key"]}),
        Request("ec2:PurchaseCapacityBlock", "*"),
    ):  # fmt: skip
        assert not grants(given, request), request


def test_orphans_are_removed_and_blocks_bought_by_policies_of_their_own() -> None:
    """Only what carries our tag; of a purchase only its own tags."""
    remove, buy = rights.orphans_policy()["Statement"], rights.blocks_policy()["Statement"]
    kinds = [
        (ROOT / name).read_text()
        for name in ("cfn/orphan_kinds.py", "eks/stack/orphans.py", "eks/stack/load_balancers.py")
    ]
    steps = {step for text in kinds for step in re.findall(r'Step\(\s*"(\w+)", "(\w+)"', text)}
    for service, operation in steps:
        names = boto3.client(service, region_name="us-east-1").meta.service_model.operation_names
        action = next(n for n in names if xform_name(n) == operation)
        assert grants(remove, Request(f"{PREFIX.get(service, service)}:{action}", "*", TAGGED)), operation
        assert not grants(remove, Request(f"{PREFIX.get(service, service)}:{action}", "*"))
    group = "autoscaling:DeleteAutoScalingGroup"
    assert grants(remove, Request(group, "*", {"aws:ResourceTag/eks:cluster-name": "gone-eks"})), (
        "it has no tag of ours"
    )
    assert not grants(remove, Request(group, "*", {"aws:ResourceTag/eks:cluster-name": "theirs"}))
    interface = "ec2:DeleteNetworkInterface"  # of a mount target, which EFS tags with nothing
    assert grants(remove, Request(interface, "*", {"aws:ViaAWSService": "true"}))
    assert not grants(remove, Request(interface, "*", {"aws:ViaAWSService": "false"}))
    assert grants(buy, Request("ec2:PurchaseCapacityBlock", "*"))
    assert not grants(buy, Request("ec2:CreateTags", "*"))


def test_the_policies_are_the_stored_ones() -> None:
    """Of each variant what the default has not, and what it lacks.

    `python tests/cfn/test_rights.py` stores them anew.
    """
    assert STORED.read_text() == stored()


def stored() -> str:
    """The default's, line by line; of each variant the lines that differ."""
    plain = statements(rights.policy(VARIANTS["default"].file))
    found = ["= default", *plain, "= orphans", *statements(rights.orphans_policy())]
    found += ["= blocks", *statements(rights.blocks_policy())]
    for name, design in VARIANTS.items():
        own = statements(rights.policy(design.file))
        more = [f"+ {s}" for s in own if s not in plain] + [f"- {s}" for s in plain if s not in own]
        found += [f"= {name}", *more] if more else []
    return "\n".join(found) + "\n"


def statements(policy: dict[str, Any]) -> list[str]:
    """A line for what each statement is about, and one for each of its actions."""
    about = [json.dumps({k: v for k, v in s.items() if k != "Action"}, sort_keys=True) for s in policy["Statement"]]
    return about + [f"{s['Sid']} {action}" for s in policy["Statement"] for action in s["Action"]]


if __name__ == "__main__":
    STORED.write_text(stored())
