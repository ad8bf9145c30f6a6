"""What is said of a cluster on EKS, and what is looked up for it: status, plan, zones, operator, balancers, leftovers."""

import stat
from dataclasses import replace as with_
from pathlib import Path
from typing import Any

import pytest
from designs import VARIANTS

from cfn.fixed_costs import DailyCost
from cfn.prices import PriceList
from cfn.provider import Stacks
from cfn.removal import ApiCall
from cfn.stack import Stack, StackError
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import EksSettings, Storage
from cluster.errors import ClusterError, ConfigError
from dlami.tasks import eks_actions
from eks.stack import life, preflight, status
from eks.stack.design import file_for_eks
from eks.stack.load_balancers import Balancer, balancers
from eks.stack.plan import EksPlan
from eks.stack.status import EksStatus, Part
from tests.cfn.answers import account, answering, refused
from tests.cfn.conftest import cluster
from tests.cfn.eks_cases import CASES, TWO

READY = Stack(id="id-1", name="demo-eks", status="CREATE_COMPLETE", outputs={"FileSystem": "fs-1"})
PARTS = (
    Part(kind="Kubernetes", name="demo-eks", status="ACTIVE", version="1.35"),
    Part(kind="nodes", name="Nodes", status="UPDATING", version="1.35"),
)


def state(**changed: Any) -> EksStatus:
    given: dict[str, Any] = {"stack": READY, "parts": PARTS, "wanted": 2, "nodes": 2, "usd_per_hour": 20.12346}
    return EksStatus(**{**given, "billed": (DailyCost(kind="EFS", id="fs-1", usd_per_day=1.23456),), **changed})


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"nodes": 1}, "1 of 2 nodes run; EKS goes on trying"),
        ({"nodes": 3}, "3 of 2 nodes run; EKS goes on trying"),
        ({"parts": PARTS[1:]}, "the Kubernetes itself is gone: `inv eks.delete`, then create it anew"),
        ({"parts": (PARTS[0], with_(PARTS[1], status="DEGRADED"))}, "nodes Nodes is DEGRADED"),
    ],
)
def test_what_is_wrong_is_a_line(changed: dict[str, Any], problem: str) -> None:
    """For a reader and for a program."""
    found = state(**changed)
    assert [problem] == found.problems == found.as_json()["problems"]
    assert f"wrong      {problem}" in str(found).split("\n")
    assert found.as_json()["healthy"] is False


def stack_said(**changed: Any) -> dict[str, Any]:
    """An EKS stack as CloudFormation describes it."""
    named = [{"OutputKey": "FileSystem", "OutputValue": "fs-1"}]
    return {
        "Stacks": [
            {"StackId": "id-1", "StackName": "demo-eks", "StackStatus": "CREATE_COMPLETE", "Outputs": named, **changed}
        ]
    }


def there(**eks: Any) -> Any:
    """An account with an EKS cluster of two nodes, one of which runs."""
    node = {"InstanceType": "g5.12xlarge", "Placement": {"AvailabilityZone": "us-east-1a"}}
    issue = {"code": "Odd", "message": "it is"}
    said: dict[str, Any] = {
        "describe_cluster": {"cluster": {"status": "ACTIVE", "version": "1.35"}},
        "list_nodegroups": {"nodegroups": ["a", "b"]},
        "describe_nodegroup": {
            "nodegroup": {"status": "ACTIVE", "version": "1.34", "scalingConfig": {"desiredSize": 1}}
        },
        "list_addons": {"addons": ["dns"]},
        "describe_addon": {"addon": {"status": "DEGRADED", "addonVersion": "v1", "health": {"issues": [issue]}}},
    }
    return answering(
        cloudformation={"describe_stacks": stack_said(), "list_stack_resources": {"StackResourceSummaries": []}},
        eks={**said, **eks},
        ec2={"describe_instances": {"Reservations": [{"Instances": [node]}]}},
    )


def test_the_status_is_what_eks_and_ec2_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part with its version and its troubles; nodes and control plane are what an hour costs."""
    monkeypatch.setattr(PriceList, "on_demand", lambda self, kind: 10.0)
    monkeypatch.setattr(PriceList, "spot", lambda self, kind, zone: None)
    found = status.read_status(there(), cluster())

    assert ("demo-eks", 2, 1, 10.1) == (found.stack.name, found.wanted, found.nodes, found.usd_per_hour)
    assert [
        ("Kubernetes", "demo-eks", "1.35", ()), ("nodes", "a", "1.34", ()), ("nodes", "b", "1.34", ()),
        ("add-on", "dns", "v1", ("Odd: it is",)),
    ] == [(p.kind, p.name, p.version, p.issues) for p in found.parts]  # fmt: skip
    assert "add-on     dns  v1  DEGRADED  Odd: it is" == str(found.parts[-1])
    gone = status.read_status(there(describe_cluster=refused("ResourceNotFoundException")), cluster())
    assert ((), 0, 10.0) == (gone.parts, gone.wanted, gone.usd_per_hour), "no control plane is billed"
    assert status.read_status(there(), cluster(capacity="spot")).usd_per_hour is None


def test_a_status_that_nobody_may_see_is_refused() -> None:
    """It is not that of a Kubernetes that is gone; and a stack that is not there has none."""
    with pytest.raises(ClusterError, match=r"looking at demo-eks: .*AccessDenied"):
        status.read_status(there(describe_cluster=refused("AccessDenied")), cluster())
    nothing = answering(cloudformation={"describe_stacks": refused("ValidationError", "demo-eks does not exist")})
    with pytest.raises(StackError, match=r"there is no stack demo-eks in us-east-1; `inv eks.create` makes it"):
        status.read_status(nothing, cluster())
    assert {} == Stacks(lambda region: nothing).outputs("us-east-1/demo-eks")
    assert {"FileSystem": "fs-1"} == Stacks(lambda region: there()).outputs("us-east-1/demo-eks")


def test_no_outputs_are_told_where_nobody_may_look() -> None:
    """With the reason; an answer that lacks what AWS's have is none either."""
    for trouble, why in ((refused("AccessDenied"), "looking for stack demo-eks"), ({"Stacks": [{}]}, "cannot be used")):
        account = answering(cloudformation={"describe_stacks": trouble})
        with pytest.raises(ClusterError, match=why):
            Stacks(lambda region, account=account: account).outputs("us-east-1/demo-eks")


def planned(case: str, **changed: Any) -> EksPlan:
    given: dict[str, Any] = {"design": CASES[case], "body": "é{}", "stack": None, "usd_per_hour": 2.5}
    return EksPlan(**{**given, **changed})


def test_what_the_operator_may_not_have_meant_is_a_warning() -> None:
    """An API that nobody reaches from outside; storage in plain NFS."""
    assert [] == planned("default").warnings
    (closed,) = planned("ssm").warnings
    assert closed.startswith("warning: access.ssh_from and eks.allow_cidrs are empty")
    plain = with_(CASES["default"], file=with_(CASES["default"].file, storage=Storage(tls=False)))
    (said,) = planned("default", design=plain).warnings
    assert said.startswith("warning: storage.tls is false")


def zones(*known: tuple[str, str, str]) -> Any:
    """An account with these zones: name, id, kind."""
    found = [{"ZoneName": n, "ZoneId": i, **({"ZoneType": k} if k else {})} for n, i, k in known]
    return answering(ec2={"describe_availability_zones": {"AvailabilityZones": found}})


ONE = VARIANTS["default"]  # in us-east-1d


def test_the_operator_is_a_user_or_the_role_of_a_session() -> None:
    """A role with its path, as IAM has it."""
    user = "arn:aws:iam::123456789012:user/me"
    assert user == preflight.operator(answering(sts={"get_caller_identity": {"Arn": user}}))
    session = "arn:aws-us-gov:sts::123456789012:assumed-role/Admin/me"
    role = {"get_role": lambda **of: {"Role": {"Arn": f"arn:aws:iam::123456789012:role/path/{of['RoleName']}"}}}
    found = preflight.operator(answering(sts={"get_caller_identity": {"Arn": session}}, iam=role))
    assert "arn:aws:iam::123456789012:role/path/Admin" == found


def test_designs_are_completed_for_eks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the zones that EKS can use; the running stack's operator stays; none of them is a mistake of the file's."""
    there = zones(("us-east-1d", "use1-az6", ""), ("us-east-1b", "use1-az2", ""))
    designs = (with_(ONE, zone="us-east-1e"), ONE)
    monkeypatch.setattr("cfn.preflight.choices", lambda aws, file, pinned, with_image: designs)
    file = cluster()

    (made,) = preflight.choices(there, file, {"Operator": "arn:of-old", "SecondZone": "us-east-1b"})
    assert ("us-east-1d", "us-east-1b", "", "10.20.1.0/28", "arn:of-old", ("203.0.113.7/32",), "/dev/xvda") == (
        made.zone, made.second_zone, made.second_subnet, made.control_cidr, made.operator, made.api_cidrs, made.root_device,
    )  # fmt: skip
    who = account(**there.said, get_caller_identity={"Arn": "arn:me"})
    assert ["arn:me"] == [one.operator for one in preflight.choices(who, file)]
    monkeypatch.setattr("cfn.preflight.choices", lambda aws, file, pinned, with_image: designs[:1])
    with pytest.raises(
        FieldError, match=r"us-east-1e has the nodes' type and no room .*; choose one of us-east-1b, us-east-1d"
    ):
        preflight.choices(there, file)


def balancer(name: str, vpc: str = "", **tags: str) -> Balancer:
    end = ApiCall("elb", "delete_load_balancer", {"LoadBalancerName": name})
    return Balancer(name=name, vpc=vpc, tags={k.replace("__", "/"): v for k, v in tags.items()}, end=end)


def test_balancers_of_both_kinds_are_listed_by_name() -> None:
    """With what ends each; their tags are asked for 20 at a time."""
    names = [f"n{number:02}" for number in range(21, 0, -1)]
    asked: list[int] = []

    def tags(**of: Any) -> Any:
        (arns,) = of.values()
        asked.append(len(arns))
        key = "ResourceArn" if "ResourceArns" in of else "LoadBalancerName"
        return {
            "TagDescriptions": [
                {key: arn, "Tags": [{"Key": "kubernetes.io/cluster/k", "Value": "owned"}]} for arn in arns
            ]
        }

    new = [{"LoadBalancerArn": f"arn:{name}", "LoadBalancerName": name, "VpcId": "vpc-1"} for name in names]
    old = [{"LoadBalancerName": "classic", "VPCId": "vpc-2"}]
    found = balancers(
        answering(
            elbv2={"describe_load_balancers": {"LoadBalancers": new}, "describe_tags": tags},
            elb={"describe_load_balancers": {"LoadBalancerDescriptions": old}, "describe_tags": tags},
        )
    )
    assert ["classic", *sorted(names)] == [one.name for one in found]
    assert [20, 1, 1] == asked
    assert (("vpc-2", {"k"}), ("vpc-1", {"k"})) == tuple((one.vpc, one.clusters) for one in found[:2])
    assert "delete-load-balancer --region r --load-balancer-name classic" in found[0].end.command("r")
    assert "aws elbv2 delete-load-balancer --region r --load-balancer-arn arn:n01" == found[1].end.command("r")


OWN = file_for_eks(cluster())


def holding(*names: str, service: str = "") -> dict[str, Any]:
    """Classic load balancers with these names that this cluster's Kubernetes made, and none of the other kind."""
    tags = [{"Key": "kubernetes.io/cluster/demo-eks", "Value": "owned"}]
    tags += [{"Key": "kubernetes.io/service-name", "Value": service}] if service else []
    return {
        "elbv2": {"describe_load_balancers": {"LoadBalancers": []}},
        "elb": {
            "describe_load_balancers": {"LoadBalancerDescriptions": [{"LoadBalancerName": name} for name in names]},
            "describe_tags": {"TagDescriptions": [{"LoadBalancerName": name, "Tags": tags} for name in names]},
        },
    }


@pytest.mark.parametrize(
    ("service", "ends"),
    [
        ("dlami/x", "`kubectl delete service --namespace dlami x` ends what is opened there"),
        ("", "`kubectl delete namespace dlami` ends what is opened there"),
    ],
)
def test_a_balancer_that_would_hold_the_network_is_named(service: str, ends: str) -> None:
    """With what ends it: its service, or where its tags do not say all of the namespace; nothing is deleted."""
    there = answering(cloudformation={"describe_stacks": stack_said()}, **holding("a", "b", service=service))
    with pytest.raises(StackError) as error:
        life.remove(there, OWN, lambda _: None, [])
    said = str(error.value)
    assert said.startswith(f"a, b was made by a Kubernetes service and would hold the network of demo-eks: {ends};")
    assert said.endswith(
        "Where the Kubernetes is gone: aws elb delete-load-balancer --region us-east-1 --load-balancer-name a && "
        "aws elb delete-load-balancer --region us-east-1 --load-balancer-name b"
    )
    shared = with_(VARIANTS["ssm"].file, name="demo-eks", network=TWO)
    with pytest.raises(StackError, match="would be billed on without anybody's knowing of it"):
        life.remove(there, shared, lambda _: None, [])


def test_what_a_deletion_left_is_told_with_its_use() -> None:
    """What is billed on, what ends it, and what is the operator's own."""
    own = with_(OWN, storage=Storage())
    eks = EksSettings(context="mine", image="registry.example/x:1", namespace="team")
    file = with_(
        cluster(), eks=eks, storage=Storage(s3="s3://runs/b", fsx_gib=1200, fsx_s3="s3://runs/c"), results="s3://runs/d"
    )
    kept = {"SharedFileSystem": "fs-1", "FastFileSystem": "fs-2"}

    said = eks_actions.kept_text(file, own, kept, mount_name="abc", has_key=True).split("\n")
    assert [
        "demo-eks is deleted; kept: SharedFileSystem fs-1, FastFileSystem fs-2",
        'to use the files again: storage.efs = "fs-1" in a cluster file, for EKS or for the bare cluster; until then EFS '
        "bills its size",
        "FSx bills all of fs-2 until you end it: aws fsx delete-file-system --region us-east-1 --file-system-id fs-2; "
        'a Kubernetes in its network mounts it by eks.fsx = "fs-2:abc"',
        "the key of its secrets is deleted by AWS in 7 days, and not billed until then",
        "yours, and still there: kubectl's context mine: kubectl config delete-context mine",
        "yours, and still there: the image registry.example/x:1 in its registry",
        "yours, and still there: objects in s3://runs/b",
        "yours, and still there: objects in s3://runs/c",
        "yours, and still there: objects in s3://runs/d",
        "what else carries our tags: inv stack.orphans",
    ] == said
    assert [
        "demo-eks is deleted; kept: nothing of the stack",
        "yours, and still there: kubectl's context demo-eks: kubectl config delete-context demo-eks",
        "what else carries our tags: inv stack.orphans",
    ] == eks_actions.kept_text(cluster(), own, {}, mount_name="", has_key=False).split("\n")
    given = eks_actions.kept_text(
        cluster(), with_(own, storage=Storage(efs="fs-01234567")), {}, mount_name="", has_key=False
    )
    assert 'storage.efs = "fs-01234567"' in given
    assert (["a", "b"], []) == (eks_actions._given("a,,b"), eks_actions._given(""))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo one >&2; echo last >&2; exit 3", r"the cluster is ready, but \S+/cli --x failed: one ... last"),
        ("exit 3", "failed: no reason given"),
    ],
)
def test_a_cli_that_fails_is_told_by_its_last_words(script: str, said: str, tmp_path: Path) -> None:
    """What it did is the operator's to do again; one that is not there has to be installed."""
    cli = program(tmp_path, script)
    with pytest.raises(StackError, match=said):
        eks_actions.write_kubeconfig([cli, "--x"])
    with pytest.raises(ConfigError, match="there is no AWS CLI here: install it, then /nowhere/aws --x"):
        eks_actions.write_kubeconfig(["/nowhere/aws", "--x"])


def program(folder: Path, script: str) -> str:
    path = folder / "cli"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)
