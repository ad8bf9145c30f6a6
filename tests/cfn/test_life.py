"""The life of a stack against the fake: create, hosts, update, replace, delete, as the tasks do it."""

from collections.abc import Callable
from dataclasses import replace as with_
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from cfn import create, plan, progress, ready, stack, status, update
from cfn import hosts as members
from cfn.aws import Aws
from cfn.changes import Change
from cfn.clusterfile.fields import ClusterFile, Network, Storage
from cfn.stack import StackError
from cluster.errors import ConfigError, NothingToDo
from cluster.lab.aws import FakeAws


def quiet(_: str) -> None:
    """Shows nothing."""


def made(account: Aws, file: ClusterFile) -> list[members.Member]:
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


def test_a_plan_changes_nothing(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """Only reading calls are made."""
    plan.make(account, file)

    verbs = {call["operation"].split(" ")[0] for call in fake.world.log}
    assert {v for v in verbs if not v.startswith(("Describe", "Get", "List", "HEAD"))} == set()


def test_a_second_create_says_that_there_is_one(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    made(account, file)
    with pytest.raises(NothingToDo, match=r"stack demo is there already \(CREATE_COMPLETE\)"):
        made(account, file)


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


def test_who_came_last_is_named_to_go_first(
    fake: FakeAws, file: ClusterFile, account: Aws, scene: Callable[..., Any]
) -> None:
    """Whatever their ranks; a change of anything else, or more workers, ends nobody."""
    before = {h.instance_id for h in made(account, with_workers(file, 2))}
    scene("clock", {"forward_s": 60})
    more = update.prepare(account, with_workers(file, 3))
    assert [] == update.ended_by(account, more, with_workers(file, 3))
    after = {h.instance_id for h in update.execute(account, more, with_workers(file, 3), quiet)}

    fewer = update.prepare(account, with_workers(file, 2))
    assert after - before == {h.instance_id for h in update.ended_by(account, fewer, with_workers(file, 2))}
    other = with_(fewer, changes=tuple(with_(c, properties=("MaxSize",)) for c in fewer.changes))
    assert [] == update.ended_by(account, other, with_workers(file, 2))


def test_nodes_that_are_ready_are_not_waited_for(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """One that boots is, however many there are."""
    one = made(account, file)[1].instance_id
    looks: list[int] = []

    def told(story: Any) -> None:
        looks.append(len(story))
        assert len(looks) < 2, "it waits although all are ready"
        boot(one, "ready")

    watch = progress.Watch(account, stack.get(account, "demo"), quiet, on_story=told)
    outputs = stack.outputs(account, "demo")
    assert 4 == len(ready.wait_for_nodes(watch, outputs, file))
    assert [] == looks

    boot(one, "running setup")
    assert 4 == len(ready.wait_for_nodes(watch, outputs, file))
    assert 1 == len(looks)


def boot(instance: str, how: str) -> None:
    boto3.client("ec2").create_tags(Resources=[instance], Tags=[{"Key": "dlami-cluster:boot", "Value": how}])


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


def test_the_same_file_again_is_nothing_to_do(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    made(account, file)
    with pytest.raises(NothingToDo, match="already as the cluster file says"):
        update.prepare(account, file)


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


def test_removing_fsx_by_update_is_refused(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    made(account, with_(file, storage=Storage(fsx_gib=1200)))
    with pytest.raises(ConfigError, match=r"- FastFileSystem"):
        update.prepare(account, file)


def test_the_image_and_zone_stay_pinned_until_they_are_moved(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """A new release of the DLAMI changes nothing by itself; --ami does, for new nodes."""
    made(account, file)
    old = stack.outputs(account, "demo")["Ami"]
    fake.world.amis.clear()  # the parameter names another image now
    with pytest.raises(NothingToDo):
        update.prepare(account, file)

    change = update.prepare(account, file, ami="latest")

    assert {"MasterTemplate", "WorkerTemplate", "MasterNodes", "WorkerNodes"} == {c.resource for c in change.changes}
    hosts = update.execute(account, change, file, quiet)
    assert 4 == len(hosts)
    assert old != stack.outputs(account, "demo")["Ami"]


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


def test_status_counts_healthy_nodes_and_shows_their_first_boot(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    made(account, file)
    now = status.look(account, file)

    assert now.is_healthy
    assert [("demo-master", 1, 1), ("demo-workers", 3, 3)] == [(g.name, g.desired, g.healthy) for g in now.groups]
    assert "CREATE_COMPLETE" in str(now)
    assert ["ready"] * 4 == [h["boot"] for h in now.as_json()["hosts"]]


def unusable(now: status.Status) -> str:
    """What the status says is wrong; it must not call that healthy."""
    assert not now.is_healthy and not now.as_json()["healthy"]
    return "\n".join(now.problems)


def test_a_group_that_was_told_to_have_fewer_is_not_healthy(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """Compared with what the stack was made for, not with what the group was told by hand."""
    made(account, file)
    boto3.client("autoscaling").set_desired_capacity(AutoScalingGroupName="demo-workers", DesiredCapacity=1)
    assert fake.world.wait_until(lambda: len(workers(fake).members) == 1, 300 / fake.world.scale)

    now = status.look(account, file)

    assert "demo-workers was told to have 1, the stack says 3: aws autoscaling set-desired-capacity" in unusable(now)
    assert "wrong    demo-workers was told to have 1" in str(now)


def workers(fake: FakeAws) -> Any:
    return fake.world.groups["us-east-1", "demo-workers"]


def test_a_missing_node_is_not_healthy(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """The group wants one more than it has."""
    before = made(account, file)
    boto3.client("autoscaling").suspend_processes(AutoScalingGroupName="demo-workers", ScalingProcesses=["Launch"])
    boto3.client("ec2").terminate_instances(InstanceIds=[before[1].instance_id])
    assert fake.world.wait_until(lambda: len(workers(fake).members) == 2, 300 / fake.world.scale)
    assert "demo-workers has 2 healthy of 3" in unusable(status.look(account, file))


def test_a_group_that_is_gone_is_not_healthy(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    made(account, file)
    boto3.client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName="demo-workers", ForceDelete=True)
    assert fake.world.wait_until(lambda: ("us-east-1", "demo-workers") not in fake.world.groups, 300 / fake.world.scale)
    assert "group demo-workers is gone" in unusable(status.look(account, file))


def test_a_node_whose_boot_failed_is_neither_healthy_nor_a_host(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """In service and healthy in Auto Scaling's eyes, it has no runtime in ours. No worker stands in for the master."""
    master, _, one, _ = made(account, file)
    failed = [{"Key": "dlami-cluster:boot", "Value": "failed runtime: x"}]
    boto3.client("ec2").create_tags(Resources=[one.instance_id], Tags=failed)
    assert f"{one.instance_id} ({one.address}), rank 2, cannot be used" in unusable(status.look(account, file))
    outputs = stack.outputs(account, "demo")
    assert [0, 1, 3] == [h.rank for h in members.hosts(account, outputs)]

    boto3.client("ec2").create_tags(Resources=[master.instance_id], Tags=failed)
    said = f"the master cannot be used: {master.instance_id} is InService, Healthy, boot failed runtime: x"
    with pytest.raises(stack.StackError, match=said):
        members.hosts(account, outputs)


def test_an_unhealthy_node_is_no_host(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """EC2's checks have found it dead, its successor is not there yet."""
    one, scaling = made(account, file)[2], boto3.client("autoscaling")
    scaling.suspend_processes(AutoScalingGroupName="demo-workers", ScalingProcesses=["ReplaceUnhealthy"])
    scaling.set_instance_health(InstanceId=one.instance_id, HealthStatus="Unhealthy")
    assert [0, 1, 3] == [h.rank for h in members.hosts(account, stack.outputs(account, "demo"))]
    assert one.instance_id in unusable(status.look(account, file))


def test_who_waits_is_told_how_far_the_nodes_are(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """Once for each step that is reached, with the number of nodes at it."""
    hosts, told = made(account, file), list[str]()
    watch = progress.Watch(account, stack.get(account, "demo"), told.append)
    watch.look()
    told.clear()
    for boot, some in (("running project", hosts), ("running runtime", hosts[:2])):
        ids = [h.instance_id for h in some]
        boto3.client("ec2").create_tags(Resources=ids, Tags=[{"Key": "dlami-cluster:boot", "Value": boot}])
        watch.look()
        watch.look()
    assert ["  first boot: 4 at project", "  first boot: 2 at project, 2 at runtime"] == told


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


def test_a_replacement_waits_for_a_successor_of_the_same_role(
    fake: FakeAws, file: ClusterFile, account: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that its group replaces meanwhile is nobody's successor but the master's."""
    before = made(account, file)
    fake.world.node_rules.append({"role": "worker", "do": "silent", "times": 1})

    def show(line: str) -> None:
        if line.startswith("ending "):
            boto3.client("ec2").terminate_instances(InstanceIds=[before[0].instance_id])

    def until_there_is_a_new_master(condition: Any, seconds: float, look: Any) -> bool:
        assert progress.wait_for(lambda: new_master_is_ready(account, before[0]), 300, look)
        return condition()

    monkeypatch.setattr(update, "wait_for", until_there_is_a_new_master)
    with pytest.raises(StackError, match=f"no successor of {before[1].instance_id} is ready"):
        update.replace(account, file, "1", show)


def new_master_is_ready(account: Aws, old: members.Member) -> bool:
    return any(
        m.role == "master" and m.instance_id != old.instance_id and m.is_usable
        for m in members.read(account, stack.outputs(account, "demo"))
    )


def test_ranks_are_written_before_a_host_is_ended(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """So that everybody else stays where they are, also a successor that nobody has looked at yet."""
    before = made(account, file)
    boto3.client("ec2").terminate_instances(InstanceIds=[before[1].instance_id])
    assert fake.world.wait_until(
        lambda: (
            len(workers(fake).in_service) == 3 and before[1].instance_id not in {m.id for m in workers(fake).members}
        ),
        300 / fake.world.scale,
    )
    seen: dict[str, Any] = {}

    def show(line: str) -> None:
        if line.startswith("ending ") and not seen:
            found = boto3.client("ec2").describe_tags(Filters=[{"Name": "key", "Values": ["dlami-cluster:rank"]}])
            seen.update({t["ResourceId"]: t["Value"] for t in found["Tags"]})

    now = members.read(account, stack.outputs(account, "demo"))
    update.replace(account, file, "2", show)
    assert {m.instance_id: str(m.rank) for m in now}.items() <= seen.items()


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


@pytest.mark.parametrize(
    ("action", "kind", "replacement", "is_dangerous"),
    [
        ("Modify", "AWS::EC2::Subnet", "False", False),
        ("Modify", "AWS::EC2::Subnet", "Conditional", True),
        ("Modify", "AWS::EC2::Subnet", "True", True),
        ("Modify", "AWS::EFS::FileSystem", "Conditional", True),
        ("Modify", "AWS::EC2::NetworkInterface", "Conditional", True),
        ("Modify", "AWS::AutoScaling::AutoScalingGroup", "Conditional", False),
        ("Modify", "AWS::AutoScaling::AutoScalingGroup", "True", True),
        ("Remove", "AWS::EFS::FileSystem", "", True),
        ("Add", "AWS::EFS::FileSystem", "", False),
        ("Modify", "AWS::IAM::Role", "True", False),
    ],
)
def test_what_may_cost_data_or_nodes_is_dangerous(action: str, kind: str, replacement: str, is_dangerous: bool) -> None:
    change = Change(action=action, resource="X", kind=kind, replacement=replacement, properties=())
    assert is_dangerous == change.is_dangerous


def test_a_name_with_master_in_it_confuses_nobody(fake: FakeAws, file: ClusterFile, account: Aws) -> None:
    """Roles come from tags and outputs, never from a name."""
    hosts = made(account, with_(file, name="master-test-worker"))
    assert ["master", "worker", "worker", "worker"] == [h.role for h in hosts]
