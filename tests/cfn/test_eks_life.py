"""The life of an EKS cluster on the fake AWS, by the tasks that a user types: plan, create, change, status, delete."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from cfn import orphans
from cfn.aws import Aws
from cfn.provider import Stacks
from cfn.stack import find
from cluster.errors import ConfigError, NothingToDo
from cluster.inventory import ROOT
from dlami.tasks import eks_actions
from dlami.tasks.stack_actions import load
from eks.document import read
from eks.stack import life, plan
from eks.stack.design import file_for_eks
from lab.aws import FakeAws
from tests.typed_words import typed

FILE = """name = "demo"
[access]
ssh_from = "203.0.113.7/32"
[nodes]
workers = 1
usd_per_hour = 5.0
[storage]
s3 = "s3://runs/demo"
"""
Scene = Callable[..., Any]


@pytest.fixture
def path(fake: FakeAws, tmp_path: Path) -> str:
    """A cluster file whose bucket is there."""
    boto3.client("s3").create_bucket(Bucket="runs")
    (tmp_path / "cluster.toml").write_text(FILE)
    return str(tmp_path / "cluster.toml")


def made(path: str, account: Aws) -> None:
    life.make(account, plan.make(account, load(path)), lambda _: None)


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_from_a_plan_to_what_is_left(path: str, account: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    """Each step says what a user must know: cost, what would change, what runs, what stays."""
    given = ("--file", path)
    assert 0 == typed("eks.plan", *given)
    text = capsys.readouterr().out
    assert "cost      10.10 USD per hour: 2 nodes (5.000 each) and 0.10 for the control plane" in text
    assert "API       from 203.0.113.7/32; arn:aws:iam::123456789012:user/operator may do everything" in text
    assert "guard     none: EKS keeps its node group itself" in text

    assert 0 == typed("eks.create", *given, "--yes", "--dry-run", "--json")
    assert 10.1 == told(capsys)["usd_per_hour"]
    assert find(account, "demo-eks") is None, "a dry run makes nothing"

    assert 0 == typed("eks.create", *given, "--yes")
    said = capsys.readouterr()
    assert "demo-eks is ready: 2 nodes\nnext: aws eks update-kubeconfig --region us-east-1 --name demo-eks" in said.out
    operator = re.findall(
        r"kubectl apply --server-side -f https://\S+/[0-9a-f]{40}/deploy/v2beta1/mpi-operator\.yaml", said.out
    )
    assert operator and all(line in (ROOT / "docs/eks.md").read_text() for line in operator)
    assert "Kubernetes               ready" in said.err

    assert 0 == typed("eks.plan", *given, "--json")
    assert [] == told(capsys)["changes"], "the same file renders the same template"
    assert "fs-" == Stacks(lambda region: account).outputs("us-east-1/demo-eks")["FileSystem"][:3]

    assert 0 == typed("eks.status", *given, "--json")
    now = told(capsys)
    assert {"wanted": 2, "running": 2} == now["nodes"]
    assert 10.1 == now["usd_per_hour"]
    assert 7 == len([p for p in now["parts"] if p["kind"] == "add-on" or p["kind"] == "nodes"])
    assert {"EFS", "NAT gateway", "public address", "key"} == {i["kind"] for i in now["besides"]}
    assert () == orphans.find(account, ["us-east-1"]).orphans, "what a living cluster has is no orphan"

    Path(path).write_text(FILE.replace("workers = 1", "workers = 2"))
    eks_actions.make_cluster(path, True, False, False, False, False)
    said = capsys.readouterr()
    assert "~ Nodes (AWS::EKS::Nodegroup)  ScalingConfig" in said.err
    assert "demo-eks is ready: 3 nodes" in said.out

    system = Stacks(lambda region: account).outputs("us-east-1/demo-eks")["FileSystem"]
    assert 0 == typed("eks.delete", *given, "--dry-run", "--json")
    would = told(capsys)
    assert {"SharedFileSystem": system} == would["keeps"] and "SharedFileSystem" not in would["deletes"]
    assert {"SecretsKey", "Nodes"} <= set(would["deletes"]) and 2 == len(would["yours"])
    assert 0 == typed("eks.delete", *given, "--dry-run")
    text = capsys.readouterr().out
    assert f"of demo-eks; kept: SharedFileSystem {system}\nyours, and still there: kubectl's context demo-eks" in text

    assert 0 == typed("eks.delete", *given, "--yes")
    text = capsys.readouterr().out
    assert f"demo-eks is deleted; kept: SharedFileSystem {system}" in text
    assert "yours, and still there: kubectl's context demo-eks: kubectl config delete-context demo-eks" in text
    assert "yours, and still there: objects in s3://runs/demo" in text
    assert "the key of its secrets is deleted by AWS in 7 days" in text and "FSx" not in text
    assert [system] == [o.thing.item.id for o in orphans.find(account, ["us-east-1"]).orphans]
    with pytest.raises(NothingToDo, match="there is no stack demo-eks in us-east-1"):
        eks_actions.remove_cluster(path, True, False, "", False)


def test_a_lustre_that_stays_is_named_with_what_ends_it(
    path: str, account: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is dear, and of no use once nobody knows of it; the question before the deletion names it, too."""
    Path(path).write_text(FILE.replace("[storage]", "[storage]\nfsx_gib = 1200"))
    made(path, account)
    was = Stacks(lambda region: account).outputs("us-east-1/demo-eks")
    assert 0 == typed("eks.delete", "--file", path, "--yes")
    text = capsys.readouterr().out
    lustre = was["FastFileSystem"]
    assert f"FastFileSystem {lustre}" in text.splitlines()[0]
    assert f"aws fsx delete-file-system --region us-east-1 --file-system-id {lustre}" in text
    assert f'eks.fsx = "{lustre}:{was["FastName"]}"' in text


def test_the_zone_with_room_is_found(path: str, fake: FakeAws, account: Aws, scene: Scene) -> None:
    """As for the bare stack: each zone is tried in turn and left clean; where none has room, all are named."""
    scene("capacity", {"g5.12xlarge@us-east-1a": 0, "g5.12xlarge@us-east-1b": 1})
    heard: list[str] = []
    made_of = plan.make(account, load(path))
    assert "tries     g5.12xlarge in us-east-1a, us-east-1b" in str(made_of)
    now = life.make_where_there_is_room(account, made_of, heard.append)

    assert "us-east-1c" == now.outputs["Zone"]
    assert [f"trying g5.12xlarge in us-east-1{z}" for z in "abc"] == [h for h in heard if h.startswith("trying")]
    assert 2 <= len([h for h in heard if "no instance yet: We currently do not have sufficient" in h])
    systems = boto3.client("efs").describe_file_systems()["FileSystems"]
    assert [now.outputs["FileSystem"]] == [s["FileSystemId"] for s in systems], "none is left of the other zones"


def test_what_runs_there_is_for_the_type_that_had_room(
    path: str, account: Aws, scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pods that ask for the file's first type, its cards or its plugins would wait for good on nodes of the second."""
    Path(path).write_text(
        FILE.replace("[nodes]", '[nodes]\ninstance_type = ["p4d.24xlarge", "g5.12xlarge"]')
        + '[eks]\nimage = "registry.example/dlami:1"\n'
    )
    monkeypatch.chdir(Path(path).parent)
    train = ("eks.train.run", "--dry-run", "--per", "once", "--no-code", "--", "true")
    assert 2 == typed(*train)
    said = capsys.readouterr().err
    assert (
        "nodes.instance_type names several, and the stack could not be asked for its own: there is no cluster demo on EKS"
        in said
    )
    assert "leave the one that the nodes have in cluster.toml" in said

    scene("capacity", {"p4d.24xlarge": 0})
    life.make_where_there_is_room(account, plan.make(account, load(path)), lambda _: None)
    assert "g5.12xlarge" == Stacks(lambda region: account).outputs("us-east-1/demo-eks")["InstanceType"]

    assert 0 == typed(*train)
    (job,) = read(capsys.readouterr().out)
    (worker,) = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert (4, {"nvidia.com/gpu": "4", "vpc.amazonaws.com/efa": "1"}) == (
        job["spec"]["slotsPerWorker"],
        {name: n for name, n in worker["resources"]["limits"].items() if "/" in name},
    )
    assert 0 == typed("eks.stage", "s3://bucket/data", "/efs/data", "--dry-run")
    (staging,) = read(capsys.readouterr().out)
    node = {"node.kubernetes.io/instance-type": "g5.12xlarge"}
    assert node == staging["spec"]["template"]["spec"]["nodeSelector"]
    assert 0 == typed("eks.render", "k8s")
    plugins = read(Path("k8s/6-plugins.yaml").read_text())
    assert [node, node] == [one["spec"]["template"]["spec"]["nodeSelector"] for one in plugins]


def test_subnets_of_an_existing_network_are_used(path: str, account: Aws) -> None:
    """The nodes in the first, EKS's interfaces in both."""
    ec2 = boto3.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.9.{n}.0/24", AvailabilityZone=f"us-east-1{z}")["Subnet"]["SubnetId"]
        for n, z in enumerate("ba")
    ]
    names = ", ".join(f'"{s}"' for s in subnets)
    Path(path).write_text(
        f'{FILE}[network]\nvpc = "{vpc}"\npublic_subnet = {json.dumps(subnets)}\nprivate_subnet = [{names}]\n'
    )
    made_of = plan.make(account, load(path))
    network = json.loads(made_of.body)["Resources"]["Kubernetes"]["Properties"]["ResourcesVpcConfig"]
    assert subnets == network["SubnetIds"]
    assert ("us-east-1b", "us-east-1a") == (made_of.design.zone, made_of.design.second_zone)


def test_a_long_name_is_refused(path: str) -> None:
    Path(path).write_text(FILE.replace("demo", "d" * 39, 1))
    with pytest.raises(ConfigError, match=r"is too long for EKS; use 37 characters at most"):
        file_for_eks(load(path))
