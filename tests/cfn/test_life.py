"""The life of a stack against the fake: create, hosts, update, replace, delete, as the tasks do it."""

from dataclasses import replace as with_
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from cfn import create, plan, stack, update
from cfn import hosts as members
from cfn.aws import Aws
from cluster.clusterfile.model import ClusterFile, Network, Storage
from cluster.errors import ConfigError, NothingToDo
from lab.aws import FakeAws


def quiet(_: str) -> None:
    """Shows nothing."""


def made(account: Aws, file: ClusterFile) -> list[members.GroupMember]:
    return create.create(account, plan.make(account, file), quiet)


def with_workers(file: ClusterFile, workers: int) -> ClusterFile:
    return with_(file, nodes=with_(file.nodes, workers=workers))


def test_a_created_cluster_has_all_its_hosts_ready_master_first(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """CREATE_COMPLETE means every node, and the outputs say where they are."""
    told: list[str] = []
    hosts = create.create(account, plan.make(account, file), told.append)

    assert ["master", "worker", "worker", "worker"] == [h.role for h in hosts]
    assert [0, 1, 2, 3] == [h.rank for h in hosts]
    outputs = stack.outputs(account, "demo")
    assert outputs["MasterPrivateAddress"] == hosts[0].address
    assert all(h.host_key.startswith("ssh-ed25519 ") for h in hosts)
    for part in ("network", "storage", "roles", "nodes", "create complete"):
        assert 1 == sum(f" {part} " in f" {line} " for line in told if "guard: " not in line), told
    assert len(told) < 10


def test_more_workers_leave_the_running_ones_alone(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """An update is one change set; hosts that run keep instance, address and rank."""
    before = made(account, file)
    change = update.prepare(account, with_workers(file, 5))
    assert ["WorkerNodes"] == [c.resource for c in change.changes]
    assert {"DesiredCapacity", "MaxSize"} == set(change.changes[0].properties)

    after = update.execute(account, change, with_workers(file, 5), quiet)

    assert 6 == len(after)
    assert [(h.instance_id, h.address, h.rank) for h in before] == [
        (h.instance_id, h.address, h.rank) for h in after[:4]
    ]


def test_fewer_workers_end_the_newest_which_are_named_before(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    before = made(account, file)
    change = update.prepare(account, with_workers(file, 1))
    ends = update.ended_by(account, change, with_workers(file, 1))
    assert 4 == len(members.read(account, stack.outputs(account, "demo")))  # named, not ended

    after = update.execute(account, change, with_workers(file, 1), quiet)

    left = {h.instance_id for h in after}
    launched = sorted(h.launched for h in before[1:])
    assert launched[-2:] == sorted(h.launched for h in ends)
    assert launched[-2:] == sorted(h.launched for h in before if h.instance_id not in left)  # any of the same second


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ({"network": Network(cidr="10.30.0.0/16", public_cidr="10.30.0.0/24", private_cidr="10.30.64.0/18")}, "Vpc"),
        ({"storage": Storage(fsx_gib=1200)}, None),
        ({"network": Network(private_cidr="10.20.128.0/18")}, "PrivateSubnet"),
    ],
)
def test_an_update_never_replaces_storage_or_network(
    fake: FakeAws, file: ClusterFile, part: dict[str, Any], names: str | None, account: Aws
) -> None:
    """A dangerous change set is dropped before anything is changed; adding storage is fine."""
    made(account, file)
    if names is None:
        assert "FastFileSystem" in {c.resource for c in update.prepare(account, with_(file, **part)).changes}
        return
    with pytest.raises(ConfigError, match=rf"would replace or remove what must stay:(.|\n)*{names}"):
        update.prepare(account, with_(file, **part))
    assert [] == [c for c in fake.world.log if c["operation"] == "ExecuteChangeSet"]
    assert {} == next(iter(fake.world.stacks.values())).change_sets


@pytest.mark.parametrize("rank", [2, 0])
def test_a_successor_takes_the_place_of_the_host_it_replaces(
    fake: FakeAws, file: ClusterFile, rank: int, account: Aws
) -> None:
    """Ranks of all others stay; the master keeps its addresses too."""
    before = made(account, file)
    after = update.replace(account, file, str(rank), quiet)

    assert [h.rank for h in before] == [h.rank for h in after]
    assert [rank] == [n for n in range(4) if before[n].instance_id != after[n].instance_id]
    assert before[0].address == after[0].address


@pytest.mark.promise("a stack")
def test_a_host_that_died_is_replaced_in_its_place_without_being_asked(
    fake: FakeAws, file: ClusterFile, account: Aws
) -> None:
    """The group starts a successor by itself; it gets the free rank, whoever looks."""
    before = made(account, file)
    boto3.client("ec2").terminate_instances(InstanceIds=[before[1].instance_id])
    assert fake.world.wait_until(
        lambda: (
            len(fake.world.groups["us-east-1", "demo-workers"].in_service) == 3
            and before[1].instance_id not in {m.id for m in fake.world.groups["us-east-1", "demo-workers"].members}
        ),
        300 / fake.world.scale,
    )
    after = members.read(account, stack.outputs(account, "demo"))

    assert [before[0].instance_id, before[2].instance_id, before[3].instance_id] == [
        after[n].instance_id for n in (0, 2, 3)
    ]
    assert (1, True) == (after[1].rank, after[1].instance_id != before[1].instance_id)


def test_delete_keeps_the_file_system_and_says_its_id(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """Nothing else stays, whatever protection was on; and what goes at once is not tried twice."""
    made(account, file)
    system = stack.outputs(account, "demo")["FileSystem"]

    told: list[str] = []
    assert {"SharedFileSystem": system} == create.delete(account, file, told.append)
    assert told and not any("once more" in line for line in told)
    assert stack.find(account, "demo") is None
    assert [system] == [f["FileSystemId"] for f in boto3.client("efs").describe_file_systems()["FileSystems"]]
    ec2 = boto3.client("ec2")
    own = [{"Name": "tag:dlami-cluster:cluster", "Values": ["demo"]}]
    assert [] == ec2.describe_vpcs(Filters=own)["Vpcs"] + ec2.describe_security_groups(Filters=own)["SecurityGroups"]
    live = ec2.describe_instances(Filters=[*own, {"Name": "instance-state-name", "Values": ["running", "pending"]}])
    assert [] == live["Reservations"]
    with pytest.raises(NothingToDo, match="there is no stack demo"):
        create.delete(account, file, quiet)


def test_a_kept_file_system_serves_the_next_cluster(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """Also the second cluster's delete leaves it."""
    made(account, file)
    system = create.delete(account, file, quiet)["SharedFileSystem"]
    second = with_(file, name="next", storage=Storage(efs=system))
    made(account, second)

    assert system == stack.outputs(account, "next")["FileSystem"]
    with pytest.raises(NothingToDo):
        update.prepare(account, second)
    assert {} == create.delete(account, second, quiet)
    assert 1 == len(boto3.client("efs").describe_file_systems()["FileSystems"])


def workers(fake: FakeAws) -> Any:
    return fake.world.groups["us-east-1", "demo-workers"]


@pytest.mark.parametrize("protect", [True, False])
def test_the_console_cannot_delete_a_protected_stack(
    fake: FakeAws, file: ClusterFile, account: Aws, protect: bool
) -> None:
    """Only `stack.delete`, after its question, takes the protection off."""
    own = with_(file, access=with_(file.access, protect=protect))
    made(account, own)
    assert protect == stack.get(account, "demo").protected
    if protect:
        with pytest.raises(ClientError, match="TerminationProtection is enabled"):
            boto3.client("cloudformation").delete_stack(StackName="demo")
    assert ["SharedFileSystem"] == list(create.delete(account, own, quiet))


def test_an_image_is_moved_to_although_cloudformation_says_conditional(
    fake: FakeAws, file: ClusterFile, account: Aws
) -> None:
    """A group whose launch template changes is 'conditionally' replaced: not without an update policy, and we set none."""
    made(account, file)
    fake.world.amis.clear()
    change = update.prepare(account, file, ami="latest")
    said = {c.resource: c.replacement for c in change.changes}
    assert ("Conditional", "Conditional") == (said["MasterNodes"], said["WorkerNodes"])
    assert not any(c.is_dangerous for c in change.changes)


def test_a_name_with_master_in_it_confuses_nobody(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """Roles come from tags and outputs, never from a name."""
    hosts = made(account, with_(file, name="master-test-worker"))
    assert ["master", "worker", "worker", "worker"] == [h.role for h in hosts]
