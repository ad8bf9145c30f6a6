"""A permissions boundary: every role of a cluster has it, and its operator can make none without it."""

import json
from typing import Any

import boto3
import pytest
from designs import design

from cfn import create, plan, rights
from cfn.aws import Aws
from cfn.statements import SIZE
from cfn.template import template
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import Access, ClusterFile, Nodes, Storage
from eks.stack import rights as eks_rights
from eks.stack import template as eks_template
from lab.aws import FakeAws
from lab.aws.state import ACCOUNT
from tests.cfn.eks_cases import on_eks
from tests.cfn.policies import VIA, Request, Statement, grants

BOUNDARY, OTHER = (f"arn:aws:iam::{ACCOUNT}:policy/{name}" for name in ("Bound", "Wider"))
BOUND = Access(ssh_from="203.0.113.7/32", permissions_boundary=BOUNDARY, role_path="/dlami/")
FILE = ClusterFile(name="demo", access=BOUND)
GIVING = ("CreateRole", "PutRolePermissionsBoundary", "PutRolePolicy")


def roles_of(body: str) -> list[dict[str, Any]]:
    resources = json.loads(body)["Resources"].values()
    return [r["Properties"] for r in resources if r["Type"] == "AWS::IAM::Role"]


@pytest.mark.parametrize("where", ["nodes", "eks"])
def test_every_role_of_a_cluster_has_it(where: str) -> None:
    """The master's and the workers', and on EKS those of the control plane, nodes, add-ons and pods."""
    made = design(access=BOUND, storage=Storage(s3="s3://ours/runs"))
    found = roles_of(template.body(made) if where == "nodes" else eks_template.body(on_eks(made)))

    assert len(found) >= (2 if where == "nodes" else 4)
    assert {(BOUNDARY, "/dlami/")} == {(p["PermissionsBoundary"], p["Path"]) for p in found}


@pytest.mark.parametrize(
    ("given", "name"), [(rights.policy(FILE)["Statement"], "demo"), (eks_rights.policy(FILE)["Statement"], "demo-eks")]
)
def test_who_holds_the_policy_gives_no_right_beyond_it(given: list[Statement], name: str) -> None:
    """Neither by a role without the boundary, or with another, nor by taking a role's boundary away."""
    role = f"arn:aws:iam::{ACCOUNT}:role/dlami/{name}-MasterRole-1"
    bound = {**VIA, "iam:PermissionsBoundary": BOUNDARY}
    for action in GIVING:
        assert grants(given, Request(f"iam:{action}", role, bound)), action
        for context in (VIA, {**VIA, "iam:PermissionsBoundary": OTHER}, {"iam:PermissionsBoundary": BOUNDARY}):
            assert not grants(given, Request(f"iam:{action}", role, context)), (action, context)
        elsewhere = role.replace("/dlami/", "/")
        assert not grants(given, Request(f"iam:{action}", elsewhere, bound))
    for action in ("DeleteRolePermissionsBoundary", "UpdateAssumeRolePolicy", "CreatePolicyVersion", "CreateUser"):
        for context in (VIA, bound):
            assert not grants(given, Request(f"iam:{action}", role, context)), action
    for action in ("DeleteRole", "DeleteRolePolicy", "GetRole", "TagRole"):
        assert grants(given, Request(f"iam:{action}", role, VIA)), action


def test_each_policy_with_a_boundary_fits_into_a_managed_policy() -> None:
    """With all storage and without an open port; a longer name than 8 characters then takes two policies."""
    for mode in ("ssm", "eic"):
        access = Access(mode=mode, permissions_boundary=BOUNDARY, role_path="/dlami/")
        storage = Storage(fsx_gib=1200, fsx_s3="s3://ours/data", s3="s3://ours/runs")
        for policy in (rights.policy, eks_rights.policy):
            own = policy(ClusterFile(name="training", access=access, storage=storage))
            assert len(json.dumps(own, separators=(",", ":"))) <= SIZE


def test_a_stack_is_made_with_bounded_roles(fake: FakeAws, account: Aws) -> None:
    """As CloudFormation makes them, at the path of the file."""
    file = ClusterFile(name="demo", access=BOUND, nodes=Nodes(instance_type="g5.12xlarge", workers=1))
    create.create(account, plan.make(account, file), lambda _: None)
    made = [r for r in boto3.client("iam").list_roles()["Roles"] if r["RoleName"].startswith("demo-")]

    assert 2 == len(made)
    for role in made:
        assert "/dlami/" == role["Path"]
        full = boto3.client("iam").get_role(RoleName=role["RoleName"])["Role"]
        assert BOUNDARY == full["PermissionsBoundary"]["PermissionsBoundaryArn"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("permissions_boundary", "Bound"),
        ("permissions_boundary", f"arn:aws:iam::{ACCOUNT}:role/Bound"),
        ("permissions_boundary", f"{BOUNDARY} x"),
        ("role_path", "dlami"),
        ("role_path", "/dlami"),
        ("role_path", "/a b/"),
    ],
)
def test_what_is_no_boundary_and_no_path_is_refused(field: str, value: str) -> None:
    """Before AWS is asked."""
    with pytest.raises(FieldError, match=f"access.{field}"):
        Access(ssh_from="203.0.113.7/32", **{field: value})
