"""What is said of a cluster's cost: hosts by line, sums, what is unknown, what is left out; without an account."""

import datetime
import json
from dataclasses import replace as with_
from typing import Any

import pytest

from cfn import cost
from cfn.cost import ControlPlane, Cost, HostCost
from cfn.prices import PriceList
from cfn.provider import Stacks
from cfn.stack import StackError
from cluster.clusterfile.model import ClusterFile
from cluster.errors import ClusterError, NothingToDo
from cluster.guard.onhost.history import Span
from eks.stack import cost as eks_cost
from tests.cfn.answers import answering, refused
from tests.cfn.conftest import cluster

T = datetime.datetime(2027, 1, 1, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)
KIND, ZONE = "g5.12xlarge", "us-east-1a"
CR = {"capacity": "reservation", "reservation": "cr-0123456789abcdef0"}
BLOCK = {**CR, "capacity": "capacity-block"}
PLANE = ControlPlane(name="demo-eks", begins=T, hours=20.0, usd_per_hour=0.1)


def host(rank: int | None = 0, **changed: Any) -> HostCost:
    """Ten hours at 10 USD on demand, 4 on spot; it runs."""
    given: dict[str, Any] = {
        "instance_id": f"i-{rank}",
        "role": "worker" if rank else "master",
        "address": f"10.0.0.{rank}" if rank is not None else "",
        "instance_type": KIND,
        "market": "on-demand",
        "span": Span(instance_id=f"i-{rank}", begins=T, ends=None if rank is not None else T + 10 * HOUR),
        "hours": 10.0,
        "usd_per_hour": 10.0,
        "other_usd_per_hour": 4.0,
    }
    return HostCost(rank=rank, **{**given, **changed})


def bill(*hosts: HostCost, **more: Any) -> Cost:
    return Cost(cluster="demo", hosts=hosts, items=more.pop("items", ()), **more)


def test_what_a_bill_does_not_know_is_said() -> None:
    """A price, a host, a capacity block's part; an hour that costs nothing is not mentioned."""
    unknown = bill(host(), host(1, usd_per_hour=None))
    assert (None, None, None) == (unknown.usd, unknown.usd_per_hour, unknown.until("j", 60).usd)
    assert "total     20.00 hours, unknown USD\n" in str(unknown)
    assert "a price is unknown: set nodes.usd_per_hour or master.usd_per_hour in the cluster file" in str(unknown)
    assert "unknown USD when j is done, in 0.1 hours" == str(unknown.until("j", 360))

    assert str(bill()).startswith("no instance in the last six weeks\ntotal     0.00 hours, 0.00 USD\nbesides")
    assert "a price is unknown" not in str(bill(host()))
    for market, usd, is_prepaid in (
        ("capacity-block", 0.0, True),
        ("capacity-block", 5.0, False),
        ("spot", 0.0, False),
    ):
        one = host(market=market, usd_per_hour=usd)
        assert is_prepaid is one.is_prepaid
        assert is_prepaid is ("10.00 h  paid in advance" in str(bill(one)))
        assert is_prepaid is ("the capacity block was paid in advance: it is in no sum" in str(bill(one)))


def test_a_control_plane_is_billed_beside_its_nodes() -> None:
    """Without an address a node that runs is a node; both markets ask the same for the plane."""
    node = host(None, role="node", address="10.0.0.9", span=Span(instance_id="i-9", begins=T))
    found = bill(node, control_plane=PLANE)

    assert (102.0, 42.0, 10.1) == (found.usd, found.other_usd, found.usd_per_hour)
    lines = str(found).split("\n")
    assert lines[0].startswith("node 10.0.0.9            i-None   ")
    assert "control plane            demo-eks             2027-01-01 00:00 to now  20.00 h  2.00 USD" == lines[1]
    assert (2.0, "2027-01-01T00:00:00+00:00", 20.0) == tuple(PLANE.as_json()[n] for n in ("usd", "begins", "hours"))


def test_a_forecast_adds_what_is_left_at_the_pace_of_now() -> None:
    """By seconds; the last line of the bill."""
    found = bill(host(), host(1))
    then = found.until("job", 1800)
    assert ("job", 1800, 210.0) == (then.job, then.left_s, then.usd)
    assert str(with_(found, forecast=then)).endswith("\nforecast  210.00 USD when job is done, in 0.5 hours")


def listed(on_demand: float | None = 10.0, spot: float | None = 4.0, kind: str = KIND) -> PriceList:
    """A price list that knows one type."""
    return PriceList(answering(), {("on-demand", kind): on_demand, (f"spot {ZONE}", kind): spot})


@pytest.mark.parametrize(
    ("nodes", "own", "other"),
    [
        ({}, 10.0, 4.0),
        ({"capacity": "spot"}, 4.0, 10.0),
        (CR, 10.0, None),
        (BLOCK, 0.0, 10.0),
        ({"usd_per_hour": 7.0}, 7.0, 4.0),
        ({**BLOCK, "usd_per_hour": 7.0}, 7.0, 10.0),
    ],
)
def test_an_hour_costs_what_its_market_asks(nodes: dict[str, Any], own: float, other: float | None) -> None:
    """The file's own price is before it; a block's was paid in advance."""
    file = cluster(**nodes)
    assert (own, other) == cost.usd_per_hour(file, listed(), "worker", KIND, ZONE)
    span = Span(instance_id="i-1", begins=T)
    one = cost.host_cost(file, listed(), "worker", span, 3.0, KIND, ZONE)
    assert HostCost(
        instance_id="i-1", role="worker", rank=None, address="", instance_type=KIND, market=file.nodes.capacity,
        span=span, hours=3.0, usd_per_hour=own, other_usd_per_hour=other,
    ) == one  # fmt: skip
    assert (None, None) == cost.usd_per_hour(cluster(), listed(None, None), "worker", KIND, ZONE)


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every type costs 10 USD on demand, one with `large` at its end a fifth; 4 on spot."""
    monkeypatch.setattr(PriceList, "on_demand", lambda self, kind: 2.0 if kind.endswith(".large") else 10.0)
    monkeypatch.setattr(PriceList, "spot", lambda self, kind, zone: 4.0)


def launched(name: str, start: float) -> dict[str, Any]:
    text = f"Launching a new EC2 instance: {name}"
    return {"Description": text, "StartTime": T + start * HOUR, "EndTime": T + start * HOUR, "StatusCode": "Successful"}


def ended(name: str, start: float) -> dict[str, Any]:
    return {**launched(name, start), "Description": f"Terminating EC2 instance: {name}"}


OUTPUTS = {"MasterGroup": "m", "WorkerGroup": "w", "InstanceType": KIND, "Zone": ZONE, "FileSystem": "fs-1"}


def running(**outputs: str) -> Any:
    """An account with a stack of one master and one worker, whose predecessor ended after two hours."""
    said = [{"OutputKey": k, "OutputValue": v} for k, v in {**OUTPUTS, **outputs}.items()]
    stack = {"StackId": "id-1", "StackName": "demo", "StackStatus": "CREATE_COMPLETE", "Outputs": said}
    held = {"m": "i-a", "w": "i-b2"}
    story = {"m": [launched("i-a", 0)], "w": [launched("i-b2", 2), ended("i-b1", 2), launched("i-b1", 0)]}

    def groups(**of: Any) -> Any:
        return {
            "AutoScalingGroups": [
                {
                    "AutoScalingGroupName": name,
                    "Instances": [{"InstanceId": held[name], "LifecycleState": "InService", "HealthStatus": "Healthy"}],
                }
                for name in of["AutoScalingGroupNames"]
            ]
        }

    instances = [
        {
            "InstanceId": name, "PrivateIpAddress": address, "LaunchTime": T + at * HOUR, "InstanceType": KIND,
            "Tags": [
                {"Key": "dlami-cluster:role", "Value": role}, {"Key": "dlami-cluster:boot", "Value": "ready"},
                {"Key": "aws:autoscaling:groupName", "Value": group},
            ],
        }
        for name, address, at, role, group in (("i-a", "10.0.0.1", 0, "master", "m"), ("i-b2", "10.0.0.3", 2, "worker", "w"))
    ]  # fmt: skip
    return answering(
        cloudformation={"describe_stacks": {"Stacks": [stack]}, "list_stack_resources": {"StackResourceSummaries": []}},
        autoscaling={
            "describe_auto_scaling_groups": groups,
            "describe_scaling_activities": lambda **of: {"Activities": story[of["AutoScalingGroupName"]]},
        },
        ec2={"describe_instances": {"Reservations": [{"Instances": instances}]}},
    )


@pytest.mark.parametrize(("raised", "code"), [(ClusterError("no"), 1), (StackError("no"), 1), (NothingToDo("no"), 1)])
def test_whoever_asks_a_process_is_told_that_there_is_no_answer(
    raised: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its exit status, though nothing to do is no error elsewhere."""

    def refuse(*_: object) -> ClusterFile:
        raise raised

    monkeypatch.setattr("cfn.in_stack.file_of", refuse)
    assert code == cost.main(["us-east-1", "demo"])
    assert ("", "no\n") == tuple(capsys.readouterr())


def test_a_process_answers_with_the_bill_between_two_times(
    priced: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON; nothing that is billed besides, which needs rights of the operator's."""
    monkeypatch.setattr("cfn.in_stack.file_of", lambda aws, name: cluster(workers=1))
    monkeypatch.setattr("cfn.cost.Aws", lambda region: running())
    assert 0 == cost.main(["us-east-1", "demo", "--since", "2027-01-01T01:00Z", "--until", "2027-01-01T03:00Z"])
    said = json.loads(capsys.readouterr().out)
    assert (4.0, 40.0, 0.0, 3) == (said["hours"], said["usd"], said["usd_per_day_besides"], len(said["hosts"]))


def test_the_provider_s_bill_is_that_of_the_instances(priced: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their times as a job's cost needs them; a refusal is one line that says whom it is about."""
    monkeypatch.setattr("cfn.in_stack.file_of", lambda aws, name: cluster(workers=1))
    found = Stacks(lambda region: running()).paid("us-east-1/demo")
    assert 3 == len(found) and {10.0} == {one.usd_per_hour for one in found}
    assert [True, True, False] == sorted((one.ends is None for one in found), reverse=True)
    assert all(one.begins >= T.timestamp() for one in found)
    monkeypatch.setattr("cfn.in_stack.file_of", lambda aws, name: {}["ClusterFile"])
    with pytest.raises(ClusterError, match=r"AWS about stack demo cannot be used: KeyError"):
        Stacks(lambda region: running()).paid("us-east-1/demo")


def on_eks(cluster_said: Any) -> Any:
    """An account with an EKS stack of two nodes, one of which is gone."""
    said = [{"OutputKey": k, "OutputValue": v} for k, v in {"InstanceType": KIND, "Zone": ZONE}.items()]
    stack = {"StackId": "id-1", "StackName": "demo-eks", "StackStatus": "CREATE_COMPLETE", "Outputs": said}
    node = {
        "InstanceId": "i-1", "InstanceType": "g5.xlarge", "PrivateIpAddress": "10.0.0.5", "LaunchTime": T + HOUR,
        "Tags": [{"Key": "Name", "Value": "x"}, {"Key": "aws:autoscaling:groupName", "Value": "eks-1"}],
    }  # fmt: skip
    story = [launched("i-1", 1), launched("i-0", 0), ended("i-0", 1)]
    return answering(
        cloudformation={"describe_stacks": {"Stacks": [stack]}, "list_stack_resources": {"StackResourceSummaries": []}},
        eks={
            "describe_cluster": cluster_said,
            "list_nodegroups": {"nodegroups": ["g"]},
            "describe_nodegroup": {"nodegroup": {"resources": {"autoScalingGroups": [{"name": "eks-1"}]}}},
        },
        autoscaling={"describe_scaling_activities": {"Activities": story}},
        ec2={"describe_instances": {"Reservations": [{"Instances": [node]}]}},
    )


def test_a_bill_of_eks_has_nodes_and_control_plane(priced: None) -> None:
    """Nodes that are there with their own type and address, those that are gone as the stack says, at the end."""
    found = eks_cost.cluster_cost(on_eks({"cluster": {"createdAt": T}}), cluster(workers=1), until=T + 4 * HOUR)

    assert [("i-1", "g5.xlarge", "10.0.0.5", 3.0), ("i-0", KIND, "", 1.0)] == [
        (h.instance_id, h.instance_type, h.address, h.hours) for h in found.hosts
    ]
    assert {("node", None)} == {(h.role, h.rank) for h in found.hosts}
    plane = ControlPlane(name="demo-eks", begins=T, hours=4.0, usd_per_hour=0.1)
    assert ("demo-eks", plane) == (found.cluster, found.control_plane)
    before = eks_cost.cluster_cost(on_eks({"cluster": {"createdAt": T}}), cluster(workers=1), until=T - HOUR)
    assert before.control_plane and 0.0 == before.control_plane.hours


def test_a_kubernetes_that_is_gone_bills_nothing(priced: None) -> None:
    """One that may not be looked at is another thing, and so is a stack that is not there."""
    gone = eks_cost.cluster_cost(on_eks(refused("ResourceNotFoundException")), cluster(workers=1), until=T + HOUR)
    assert (None, ()) == (gone.control_plane, gone.hosts)
    with pytest.raises(ClusterError, match=r"looking at demo-eks: .*AccessDenied"):
        eks_cost.cluster_cost(on_eks(refused("AccessDenied")), cluster(workers=1))
    nothing = answering(cloudformation={"describe_stacks": refused("ValidationError", "demo-eks does not exist")})
    with pytest.raises(StackError, match=r"no stack demo-eks in us-east-1; `inv eks.create` makes it"):
        eks_cost.cluster_cost(nothing, cluster(workers=1))
