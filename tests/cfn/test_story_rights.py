"""A cluster's story with the operator's own key: what `stack.policy` prints allows all of it, and nothing besides.

The story is told with the operator's own key. The fake writes down each request of it, and each call that its
CloudFormation makes for the stack, which AWS judges by the same user's rights; what the fake's resources do not show,
Auto Scaling's and FSx's, is what CloudFormation's own schemas say that their handlers need.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace as with_
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore import xform_name

from cfn import (
    capacity_blocks,
    cost,
    create,
    failover,
    guard_deadline,
    hostfile,
    in_stack,
    plan,
    rights,
    stack,
    status,
    stop,
    update,
)
from cfn import changes as changes_module
from cfn.aws import Aws
from cluster.clusterfile import text
from cluster.clusterfile.model import Access, ClusterFile, Guard, Nodes, Storage
from cluster.inventory import ROOT
from cluster.ssh import connections
from eks.stack import cost as eks_cost
from eks.stack import life
from eks.stack import plan as eks_plan
from eks.stack import rights as eks_rights
from eks.stack import status as eks_status
from eks.stack.design import file_for_eks
from lab.aws import FakeAws
from lab.aws.schemas import schema
from lab.aws.state import ACCOUNT
from tests.cfn.policies import PREFIX, TAGGED, VIA, Request, Statement, grants, listed
from tests.cfn.scenes import SECOND, Scene, quiet

S3 = {"HEAD": {True: "s3:GetObject", False: "s3:ListBucket"}, "GET": {True: "s3:GetObject", False: "s3:ListBucket"}}
EKS = f"arn:aws:eks:us-east-1:{ACCOUNT}"
OF_A_PATH = {"": "DescribeCluster", "node-groups": "ListNodegroups", "addons": "ListAddons"}  # of EKS, as REST has it
OF_ONE = {"node-groups": ("DescribeNodegroup", "nodegroup"), "addons": ("DescribeAddon", "addon")}


def asked_directly(entry: dict[str, Any]) -> Request:
    """A request of the operator's as IAM sees it."""
    service, operation, p = entry["service"], entry["operation"], entry["parameters"]
    action = f"{PREFIX.get(service, service)}:{operation}"
    arn = f"arn:aws:{PREFIX.get(service, service)}:us-east-1:{ACCOUNT}"
    if service == "s3":
        path = p["path"].strip("/")
        return Request(S3[operation]["/" in path], f"arn:aws:s3:::{path}")
    if service == "eks":
        return of_eks(operation)
    if operation.startswith("GET "):  # of a service whose operations are paths
        return Request(f"{PREFIX[service]}:Describe", "*")
    if service == "ssm":
        return Request(action, f"arn:aws:ssm:us-east-1::parameter{p['Name']}")
    if service == "cloudformation" and (name := p.get("StackName")):
        return Request(action, name if name.startswith("arn:") else f"{arn}:stack/{name}/id")
    if service == "autoscaling" and not operation.startswith("Describe"):
        group = p.get("AutoScalingGroupName") or entry["tags"][p["InstanceId"]]["aws:autoscaling:groupName"]
        return Request(action, f"{arn}:autoScalingGroup:fake:autoScalingGroupName/{group}")
    if action == "ec2:CreateTags":
        name = p["Resources"][0]
        found = {f"aws:ResourceTag/{k}": v for k, v in entry["tags"][name].items()}
        return Request(action, f"{arn}:instance/{name}", {**found, "aws:TagKeys": [t["Key"] for t in p["Tags"]]})
    if service == "ec2-instance-connect":
        return Request(action, f"arn:aws:ec2:us-east-1:{ACCOUNT}:instance/{p['InstanceId']}", TAGGED)
    return Request(action, "*")


def of_eks(operation: str) -> Request:
    """A question to EKS, whose operations are paths; or the end of a node group."""
    asked = re.fullmatch(r"(GET|DELETE) /clusters/([^/]+)/?([^/]*)/?([^/]*)", operation)
    assert asked, operation
    method, name, what, one = asked.groups()
    action, kind = OF_ONE[what] if one else (OF_A_PATH[what], "")
    if method == "DELETE":
        action = action.replace("Describe", "Delete")
    return Request(f"eks:{action}", f"{EKS}:{kind}/{name}/{one}/id" if one else f"{EKS}:cluster/{name}")


def made_by_cloudformation(call: dict[str, Any], cluster: str = "demo") -> list[Request]:
    """A call for the stack, and what else AWS judges with it: tags that are given at once, a role that is passed on."""
    service, p = PREFIX.get(call["service"], call["service"]), call["parameters"]
    operation = next(
        o
        for o in boto3.client(call["service"]).meta.service_model.operation_names
        if xform_name(o) == call["operation"]
    )
    where = "*"
    if service == "iam":
        name = p.get("RoleName") or p.get("InstanceProfileName")
        kind = "instance-profile" if "Profile" in operation else "role"
        where = f"arn:aws:iam::{ACCOUNT}:{kind}/{name}"
    if service == "eks":
        where = f"{EKS}:cluster/{p.get('clusterName') or p['name']}"
    if service == "logs":
        where = f"arn:aws:logs:us-east-1:{ACCOUNT}:log-group:{p['logGroupName']}"
    if service == "kms":
        where = f"arn:aws:kms:us-east-1:{ACCOUNT}:key/{p.get('KeyId', '')}"
    context = {**VIA, **({} if call.get("untagged") else dict.fromkeys(TAGGED, cluster))}
    found = [Request(f"{service}:{operation}", where, context)]
    if "TagSpecifications" in p:
        found.append(Request("ec2:CreateTags", "*", context))
    if operation in ("CreateRole", "CreateFileSystem") and p.get("Tags"):
        found.append(Request("iam:TagRole" if service == "iam" else f"{service}:TagResource", where, context))
    if operation == "AddRoleToInstanceProfile":
        role = f"arn:aws:iam::{ACCOUNT}:role/{p['RoleName']}"
        found.append(Request("iam:PassRole", role, {"iam:PassedToService": "ec2.amazonaws.com"}))
    return found


def needed_by_handlers(body: str, of: tuple[str, ...] = ("AWS::",), but_for: tuple[str, ...] = ()) -> set[str]:
    """All that AWS's schemas say that the handlers of a template's resources may ask for, but for some verbs.

    of: how the kinds of resources begin.
    """
    kinds = {r["Type"] for r in json.loads(body)["Resources"].values() if r["Type"].startswith(of)}
    handlers = [schema(kind, "us-east-1").get("handlers", {}) for kind in kinds]
    return {p for one in handlers for n, verb in one.items() if n not in but_for for p in verb["permissions"]}


def live(fake: FakeAws, scene: Scene, file: ClusterFile, tmp_path: Path) -> str:
    """The story of a cluster, by the tasks' own functions; the template that it was made from."""
    own = Aws("us-east-1")
    made = plan.make(own, file)
    scene("capacity", {f"{SECOND}@{made.choices[0].zone}": 0})
    failover.create_where_there_is_room(own, made, quiet)
    outputs = stack.outputs(own, "demo")
    assert status.read_status(own, file).is_healthy
    (tmp_path / "cluster.toml").write_text(text.render({"name": "demo", "access.ssh_from": "203.0.113.7/32"}))
    assert (
        3 == len(hostfile.targets(own, tmp_path / "cluster.toml", file))
        and in_stack.file_of(own, "demo").name == "demo"
    )
    key = tmp_path / "key.pub"
    key.write_text("ssh-ed25519 " + "A" * 68)
    hostfile.lend_key(own, file, key)
    assert cost.cluster_cost(own, file).hosts
    fewer = with_(file, nodes=with_(file.nodes, workers=1), guard=Guard(idle_minutes=0))
    changes = update.prepare(own, fewer)
    left = update.execute(own, changes, fewer, quiet)  # of two that were launched in one second either may have ended
    changes_module.drop(own, update.prepare(own, file))
    update.replace(own, fewer, str(left[1].rank), quiet)
    stop.stop(own, fewer, quiet)
    stop.start(own, file, quiet)
    assert capacity_blocks.offers(own, ("p5.48xlarge",), 1, 1) is not None
    assert guard_deadline.ends(own, file) is not None and outputs
    create.delete(own, file, quiet)
    return made.body or plan.with_design(own, made.choices[-1], made).body


@pytest.fixture
def as_operator(fake: FakeAws, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Requests from here are the operator's, and are written down."""
    boto3.client("s3").create_bucket(Bucket="ours")
    boto3.client("s3").put_object(Bucket="ours", Key="code/project.tar.gz", Body=b"x")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OPERATOR")
    yield
    connections.disconnect()


def test_each_use_is_allowed_and_each_allowance_is_used(
    fake: FakeAws, scene: Scene, as_operator: None, tmp_path: Path
) -> None:
    """From plan to delete, by way of a zone without room, an update, a replacement, a stop and a start."""
    file = ClusterFile(
        name="demo",
        nodes=Nodes(instance_type=SECOND, workers=2, source="s3://ours/code/project.tar.gz"),
        access=Access(ssh_from="203.0.113.7/32"),
        storage=Storage(s3="s3://ours/runs"),
        guard=Guard(idle_minutes=60),
    )
    body = live(fake, scene, file, tmp_path)
    given: list[Statement] = rights.policy(file)["Statement"]
    assert judged(fake, given, "demo") >= {
        *("Look", "Stack", "Groups", "Rank", "LendKey", "Image", "Buckets", "Source"),
        *("Make", "Change", "Roles", "PassRoles"),
    }
    check_against_schemas(given, body)


def judged(fake: FakeAws, given: list[Statement], cluster: str) -> set[str]:
    """The statements that the story has needed; each request of it is allowed by one."""
    used: set[tuple[int, str]] = set()
    asked = [e for e in fake.world.log if e.get("key") == "OPERATOR"]
    direct = [
        asked_directly(e) for e in asked if e["operation"] != "GetCallerIdentity"
    ]  # for which nobody needs a right
    for one in [*direct, *(r for c in fake.world.calls for r in made_by_cloudformation(c, cluster))]:
        granted = grants(given, one)
        assert granted, f"{one} is refused"
        used |= set(granted)
    assert direct and fake.world.calls
    return {given[number]["Sid"] for number, _ in used}


def test_so_it_is_with_a_cluster_on_eks(fake: FakeAws, scene: Scene, as_operator: None) -> None:
    """From eks.plan to eks.delete, by way of a zone without room and one node more; and what EKS's handlers ask for."""
    scene("capacity", {"g5.12xlarge@us-east-1a": 0})
    storage = Storage(s3="s3://ours/runs")
    plain = ClusterFile(name="demo", nodes=Nodes(workers=1), access=Access(ssh_from="203.0.113.7/32"), storage=storage)
    own = Aws("us-east-1")
    made = eks_plan.make(own, plain)
    life.make_where_there_is_room(own, made, quiet)
    assert not eks_status.read_status(own, plain).problems
    assert eks_cost.cluster_cost(own, plain).hosts
    more = eks_plan.make(own, with_(plain, nodes=Nodes(workers=2)))
    proposed = changes_module.difference(own, more, stack.get(own, "demo-eks"))
    assert proposed
    life.change(own, proposed, quiet)
    life.remove(own, file_for_eks(plain), quiet, [])

    given: list[Statement] = eks_rights.policy(plain)["Statement"]
    assert judged(fake, given, "demo-eks") >= {
        *("Look", "Stack", "Buckets", "Status", "Make", "Change", "MakeKubernetes", "ChangeKubernetes"),
        *("Key", "Log", "Roles"),
    }
    check_against_schemas(given, made.body)
    others = {"eks:ActivateCertificateAuthority", "kms:DisableKeyRotation", "kms:UntagResource"}  # no template of ours
    context = {**VIA, **dict.fromkeys(TAGGED, "demo-eks")}
    where = {"eks": f"{EKS}:cluster/demo-eks", "kms": f"arn:aws:kms:us-east-1:{ACCOUNT}:key/1"}
    for permission in needed_by_handlers(made.body, of=("AWS::EKS::", "AWS::KMS::"), but_for=("list",)) - others:
        service = permission.partition(":")[0]
        if service in where:
            assert grants(given, Request(permission, where[service], context)), f"{permission} is refused"
            is_ours = "Describe" in permission or permission == "eks:DeleteNodegroup"  # of one whose zone has no room
            assert is_ours or not grants(given, Request(permission, where[service])), permission
    for who in ("eks", "pods.eks", "ec2"):
        passed = {"iam:PassedToService": f"{who}.amazonaws.com"}
        assert grants(given, Request("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/demo-eks-NodeRole-1", passed))
        assert not grants(given, Request("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/demo-MasterRole-1", passed))
    assert not grants(given, Request("eks:DeleteCluster", f"{EKS}:cluster/another-eks", context))


def check_against_schemas(given: list[Statement], body: str) -> None:
    """What CloudFormation's handlers look at is allowed, and what is allowed they or our own code do."""
    handlers = needed_by_handlers(body)
    for permission in handlers:
        service, _, operation = permission.partition(":")
        if operation.startswith(("Describe", "List")) and service in ("autoscaling", "ec2", "elasticfilesystem"):
            assert grants(given, Request(permission.replace("*", ""), "*")), f"{permission} is refused"
    ours = "\n".join(
        p.read_text()
        for p in [*(ROOT / "cfn").rglob("*.py"), *(ROOT / "eks").rglob("*.py"), *(ROOT / "cluster/ssh").glob("*.py")]
    )
    of_a_mount_target = {f"ec2:{n}" for n in rights.INTERFACES}  # by EFS
    as_objects = {"s3:ListBucket": "head_bucket", "s3:GetObject": "head_object"}
    for action in {a for s in given for a in listed(s["Action"])}:
        by_handlers = action in of_a_mount_target or any(fnmatch(action, p) or fnmatch(p, action) for p in handlers)
        name = as_objects.get(action, xform_name(action.partition(":")[2].rstrip("*")))
        assert by_handlers or name in ours, f"{action} is allowed, and nobody uses it"
