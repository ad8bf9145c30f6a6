"""What eks.create leaves when it is left by hand is found and removed; nothing of others, nor of a cluster that lives."""

import json
from pathlib import Path
from typing import Any

import boto3
import pytest

from cfn import orphans
from cfn.aws import Aws
from cfn.progress import wait_for
from dlami.tasks.stack_actions import load
from eks.stack import life, plan
from lab.aws import FakeAws

HERE, THERE = "us-east-1", "eu-west-1"
FILE = """name = "demo"
[access]
ssh_from = "203.0.113.7/32"
[nodes]
workers = 1
"""
TRUST = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "eks.amazonaws.com"}}
RIGHT = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}
KINDS = {"node group", "Kubernetes", "key", "role", "log group"}


def left_by_hand(fake: FakeAws, region: str, cluster: str) -> dict[str, str]:
    """One of everything, made by hand: id by kind. Somebody else's without a cluster."""
    ours = {"dlami-cluster:cluster": cluster, "dlami-cluster:region": region} if cluster else {"team": "other"}
    listed = [{"Key": k, "Value": v} for k, v in ours.items()]
    name = cluster or f"theirs-{region}"
    eks, iam, kms = (boto3.client(s, region_name=region) for s in ("eks", "iam", "kms"))
    role = f"{name}-ControlRole-{region}"
    trusts, allows = (json.dumps({"Version": "2012-10-17", "Statement": [one]}) for one in (TRUST, RIGHT))
    arn = iam.create_role(RoleName=role, AssumeRolePolicyDocument=trusts, Tags=listed)["Role"]["Arn"]
    managed = iam.create_policy(PolicyName=f"{role}-more", PolicyDocument=allows)["Policy"]["Arn"]
    iam.attach_role_policy(RoleName=role, PolicyArn=managed)
    iam.put_role_policy(RoleName=role, PolicyName="jobs", PolicyDocument=allows)
    subnets = boto3.client("ec2", region_name=region).describe_subnets()["Subnets"][:2]
    network = {"subnetIds": [s["SubnetId"] for s in subnets]}
    eks.create_cluster(name=name, roleArn=arn, resourcesVpcConfig=network, tags=ours)
    fake.world.kubernetes[region, name] = {"group": "", "access": {}, "addons": {}, "identities": {}}
    eks.create_nodegroup(
        clusterName=name,
        nodegroupName="nodes",
        nodeRole=arn,
        subnets=network["subnetIds"],
        scalingConfig={"minSize": 0, "maxSize": 3, "desiredSize": 3},
    )
    key = kms.create_key(Tags=[{"TagKey": k, "TagValue": v} for k, v in ours.items()])["KeyMetadata"]["KeyId"]
    log = f"/aws/eks/{name}/cluster"
    boto3.client("logs", region_name=region).create_log_group(logGroupName=log, tags=ours)
    return {"node group": f"{name}/nodes", "Kubernetes": name, "key": key, "role": role, "log group": log}


def by_kind(found: orphans.Found, region: str = HERE) -> dict[str, str]:
    return {o.thing.item.kind: o.thing.item.id for o in found.orphans if o.region == region}


@pytest.fixture
def living(fake: FakeAws, account: Aws, tmp_path: Path) -> None:
    """A cluster that has a stack."""
    (tmp_path / "cluster.toml").write_text(FILE)
    life.make(account, plan.make(account, load(str(tmp_path / "cluster.toml"))), lambda _: None)


def test_what_a_kubernetes_left_is_found_and_removed(fake: FakeAws, account: Aws, living: None) -> None:
    """In its own region, priced, in an order in which each can go; roles too, though IAM knows no regions."""
    left = left_by_hand(fake, HERE, "gone-eks")
    far = left_by_hand(fake, THERE, "demo-eks")  # whose stack is in another region
    left_by_hand(fake, HERE, "")

    found = orphans.find(account, [HERE, THERE])
    assert () == found.unasked
    assert (left, far) == (by_kind(found), by_kind(found, THERE))
    assert 2 * len(KINDS) == len(found.orphans)
    usd = {o.thing.item.kind: o.thing.item.usd_per_day for o in found.orphans if o.region == HERE}
    assert {"node group": 0.0, "Kubernetes": 2.4, "key": 24 / 730, "role": 0.0, "log group": 0.0} == pytest.approx(usd)
    assert "aws eks delete-nodegroup --region us-east-1 --cluster-name gone-eks --nodegroup-name nodes" in str(found)
    assert "keeps 3 instances running" in str(found)

    for orphan in found.orphans:
        orphans.remove(account, orphan, wait_s=0)
    assert () == orphans.find(account, [HERE, THERE]).orphans
    clusters: list[Any] = boto3.client("eks", region_name=HERE).list_clusters()["clusters"]
    assert ["demo-eks", f"theirs-{HERE}"] == sorted(clusters)

    _leave_the_group(fake, account)


def _leave_the_group(fake: FakeAws, account: Aws) -> None:
    """The stack goes with the control plane, the group goes on; EKS gives it none of our tags, its instances have them."""
    eks = boto3.client("eks", region_name=HERE)
    (nodes,) = eks.list_nodegroups(clusterName="demo-eks")["nodegroups"]
    (group,) = eks.describe_nodegroup(clusterName="demo-eks", nodegroupName=nodes)["nodegroup"]["resources"][
        "autoScalingGroups"
    ]
    assert () == orphans.find(account, [HERE]).orphans
    goes_on = fake.world.groups.pop((HERE, group["name"]))
    eks.delete_nodegroup(clusterName="demo-eks", nodegroupName=nodes)
    eks.delete_cluster(name="demo-eks")
    fake.world.stacks.clear()
    fake.world.groups[HERE, group["name"]] = goes_on

    found = orphans.find(account, [HERE])
    assert group["name"] == by_kind(found)["Auto Scaling group"]
    assert "of a Kubernetes that is gone; keeps 2 instances" in str(found)
    (one,) = (o for o in found.orphans if o.thing.item.kind == "Auto Scaling group")
    orphans.remove(account, one, wait_s=0)
    assert goes_on.removing  # and, as soon as its instances have ended, no longer of the account's groups
    assert wait_for(lambda: (HERE, group["name"]) not in fake.world.groups, 300, lambda: None)
