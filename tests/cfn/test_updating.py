"""Hosts that go and come: updates, successors, spares, clusters at zero, and who is waited for."""

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from designs import design

from cfn import guard_deadline, hostfile, hosts, progress, ready, replace_instance, stop, update
from cfn.capacity import Room
from cfn.changes import ChangeSet, ResourceChange
from cfn.hosts import GroupMember
from cfn.progress import StackWatch
from cfn.stack import Stack, StackError
from cluster.clusterfile.model import Access, ClusterFile, Guard, Nodes
from cluster.errors import ClusterError, ConfigError, NothingToDo
from cluster.guard.onhost.api import ACTION
from tests.cfn.answers import BEGAN, account, member, nodes, refused, stack_of

DEMO = ClusterFile(name="demo", nodes=Nodes(workers=2), access=Access(ssh_from="203.0.113.7/32"))
OFF = replace(DEMO, guard=Guard(idle_minutes=0))
GUARDED = replace(DEMO, guard=Guard(idle_minutes=60))
OUTPUTS = {"MasterGroup": "demo-master", "WorkerGroup": "demo-workers", "Slots": "8"}
MADE = Stack(id="id-of-demo", name="demo", status="UPDATE_COMPLETE", outputs=OUTPUTS)


@pytest.fixture(autouse=True)
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for what never comes has waited at once."""
    clock = iter(range(0, 10**9, 10**6))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(progress.time, "sleep", lambda _: None)


class World:
    """Instances, and what is done to them by the operations that change them."""

    def __init__(self, *members: GroupMember, file: ClusterFile = DEMO, **said: Any) -> None:
        self.members, self.file, self.said = list(members), file, said
        self.ended: list[str] = []
        self.sizes: dict[str, tuple[int, int, int]] = {}
        self.ends: dict[str, datetime.datetime] = {}

    def account(self) -> Any:
        """It as an account."""
        changing = {
            "describe_auto_scaling_groups": self._groups,
            "describe_instances": lambda **_: self._nodes()["describe_instances"],
            "describe_scheduled_actions": lambda **_: {
                "ScheduledUpdateGroupActions": [
                    {"AutoScalingGroupName": name, "StartTime": at} for name, at in self.ends.items()
                ],
                "ResponseMetadata": {"HTTPHeaders": {"date": "Fri, 15 Jan 2027 12:00:00 GMT"}},
            },
            "put_scheduled_update_group_action": self._set_end,
            "delete_scheduled_action": lambda **given: self.ends.pop(given["AutoScalingGroupName"]),
            "update_auto_scaling_group": self._resize,
            "terminate_instance_in_auto_scaling_group": self._end,
            "create_tags": self._tag,
        }
        return account(**{**stack_of(self.file), **self._nodes(), **changing, **self.said})

    def ranks(self) -> dict[str, int | None]:
        return {m.instance_id: m.rank for m in self.members}

    def _nodes(self) -> dict[str, Any]:
        return nodes(*self.members)

    def _groups(self, **given: Any) -> dict[str, Any]:
        found = self._nodes()["describe_auto_scaling_groups"]["AutoScalingGroups"]
        return {"AutoScalingGroups": [g for g in found if g["AutoScalingGroupName"] in given["AutoScalingGroupNames"]]}

    def _set_end(self, **given: Any) -> None:
        assert (given["ScheduledActionName"], given["MaxSize"], given["MinSize"]) == (ACTION, 0, 0)
        assert given["DesiredCapacity"] == 0
        self.ends[given["AutoScalingGroupName"]] = given["StartTime"]

    def _resize(self, **given: Any) -> None:
        name = given["AutoScalingGroupName"]
        self.sizes[name] = (given["MinSize"], given["MaxSize"], given["DesiredCapacity"])
        if given["MaxSize"] == 0:
            role = "master" if name.endswith("-master") else "worker"
            self.members = [m for m in self.members if m.role != role]

    def _end(self, **given: Any) -> None:
        assert given["ShouldDecrementDesiredCapacity"] is False
        self.ended.append(given["InstanceId"])
        old = next(m for m in self.members if m.instance_id == given["InstanceId"])
        new = replace(old, instance_id="i-new", rank=None, launched=BEGAN + datetime.timedelta(hours=1))
        self.members = [new if m is old else m for m in self.members]

    def _tag(self, **given: Any) -> None:
        rank = int(given["Tags"][0]["Value"])
        self.members = [replace(m, rank=rank) if [m.instance_id] == given["Resources"] else m for m in self.members]


def changed(resource: str, *properties: str) -> ChangeSet:
    kind = "AWS::AutoScaling::AutoScalingGroup"
    change = ResourceChange(action="Modify", resource=resource, kind=kind, replacement="", properties=properties)
    return ChangeSet(id="c", stack=MADE, changes=(change,))


@pytest.mark.parametrize(
    ("change", "pool", "ended"),
    [
        (changed("WorkerNodes", "DesiredCapacity"), 1, ["i-b", "i-3"]),
        (changed("WorkerNodes", "DesiredCapacity"), 3, []),
        (changed("WorkerNodes", "DesiredCapacity"), 5, []),
        (changed("WorkerNodes", "Tags"), 1, []),
        (changed("MasterNodes", "DesiredCapacity"), 1, []),
    ],
)
def test_an_update_to_fewer_ends_the_newest_workers(change: ChangeSet, pool: int, ended: list[str]) -> None:
    """Of those that came together the last by id, never the master; no other change ends a node."""
    same = BEGAN + datetime.timedelta(minutes=3)
    world = World(
        member(0, launched=BEGAN + datetime.timedelta(days=1)),
        member(1),
        member(3),
        member(2, instance_id="i-b", launched=same),
    )

    found = update.ended_by(world.account(), change, replace(DEMO, nodes=Nodes(workers=pool)))

    assert [m.instance_id for m in found] == ended


@pytest.mark.parametrize("size", ["MinSize", "MaxSize", "DesiredCapacity"])
def test_of_a_cluster_at_zero_no_size_is_changed(size: str) -> None:
    """Another number of nodes would start some; any other change is let through."""
    with pytest.raises(ConfigError, match="demo is at zero, and another number of nodes would start some of them"):
        update.refuse_at_zero(changed("WorkerNodes", size), DEMO)
    update.refuse_at_zero(changed("WorkerNodes", "Tags"), DEMO)


def test_an_update_of_a_stack_that_is_not_complete_or_to_a_word_unknown_is_refused() -> None:
    """Before anything is looked up, with what to do."""
    busy = account(**stack_of(DEMO, "UPDATE_IN_PROGRESS"))

    with pytest.raises(ConfigError, match="--source 'newest' is not known: give latest"):
        update.prepare(busy, DEMO, source="newest")
    with pytest.raises(StackError, match="stack demo is UPDATE_IN_PROGRESS; wait until it is complete"):
        update.prepare(busy, DEMO, source="latest")
    with pytest.raises(StackError, match="stack demo is UPDATE_IN_PROGRESS; wait until it is complete"):
        update.replace(busy, DEMO, "1", print)


def test_a_replaced_host_leaves_its_rank_to_its_successor() -> None:
    """One of the group's is ended, everyone else stays, and both are told."""
    world, said = World(member(0), member(1), member(2)), []

    found = update.replace(world.account(), DEMO, "10.0.0.1", said.append)

    assert world.ended == ["i-1"]
    assert world.ranks() == {"i-0": 0, "i-new": 1, "i-2": 2}
    assert [h.rank for h in found] == [0, 1, 2]
    assert said == [
        "ending i-1 (10.0.0.1), rank 1; its group starts a successor",
        "i-new (10.0.0.1) has rank 1 now",
    ]


def test_a_successor_that_never_comes_is_an_error() -> None:
    """With what is in its way."""
    world = World(member(0), member(1), terminate_instance_in_auto_scaling_group={})

    with pytest.raises(StackError) as e:
        update.replace(world.account(), DEMO, "1", print)

    assert str(e.value).splitlines() == [
        f"no successor of i-1 is ready after {DEMO.nodes.boot_minutes} minutes",
        "Its group goes on trying; `inv stack.status` tells how far it is.",
    ]


@pytest.mark.parametrize("more", [{"boot": "running nfs"}, {"role": "master"}, {"lifecycle": "Pending"}])
def test_a_successor_is_ready_and_of_the_same_role(more: dict[str, Any]) -> None:
    """Anyone else is waited past."""
    world = World(member(0), member(1))

    def end(**_: Any) -> None:
        world.members.append(member(7, **more))

    world.said["terminate_instance_in_auto_scaling_group"] = end

    with pytest.raises(StackError, match="no successor of i-1 is ready"):
        update.replace(world.account(), DEMO, "1", print)


def test_a_spare_takes_the_rank_of_the_dead() -> None:
    """They change places; without one of them, or where both are one, nothing is changed."""
    world = World(member(0), member(1), member(2), member(3))
    aws = world.account()

    assert replace_instance.take(aws, OUTPUTS, "10.0.0.1", 1, "10.0.0.3") == 1
    assert world.ranks() == {"i-0": 0, "i-3": 1, "i-2": 2, "i-1": 3}
    for host, rank, spare in (("10.9.9.9", 9, "10.0.0.2"), ("10.0.0.2", 2, "10.9.9.9"), ("10.0.0.2", 2, "10.0.0.2")):
        assert replace_instance.take(aws, OUTPUTS, host, rank, spare) is None
    assert replace_instance.take(aws, OUTPUTS, "10.0.0.0", 9, "10.0.0.2") is None, "the master is no worker"
    assert world.ranks() == {"i-0": 0, "i-3": 1, "i-2": 2, "i-1": 3}


@pytest.mark.parametrize(
    ("one", "rank", "ended"),
    [
        (member(1), 1, ["i-1"]),
        (member(1, lifecycle="Terminating"), 1, []),
        (member(replace_instance.GONE + 4, address="10.0.0.1"), 4, []),
        (member(2), 7, []),
    ],
)
def test_an_ended_host_leaves_its_rank(one: GroupMember, rank: int, ended: list[str]) -> None:
    """Its own, or what it had before it was ended, or the given one of a host that is gone; it is ended once."""
    world = World(member(0), one)

    assert replace_instance.end(world.account(), OUTPUTS, "10.0.0.1", 7) == rank
    assert world.ended == ended


def test_nodes_that_do_not_end_are_named() -> None:
    """Each of them once it was counted."""
    world, said = World(member(0), member(1), update_auto_scaling_group={}), []

    with pytest.raises(StackError, match="i-0, i-1 of demo has not ended in 30 minutes; see `inv stack"):
        stop.stop(world.account(), DEMO, said.append)
    assert said == ["2 instances still to end"]


@pytest.mark.parametrize("act", [stop.stop, stop.start, lambda aws, file, show: stop.members(aws, file)])
def test_a_stack_that_is_not_complete_is_neither_stopped_nor_started(act: Any) -> None:
    """Nothing of it is changed."""
    with pytest.raises(StackError, match="stack demo is DELETE_IN_PROGRESS; wait until it is complete"):
        act(account(**stack_of(DEMO, "DELETE_IN_PROGRESS")), DEMO, print)


def test_what_was_told_before_a_start_is_not_told_again_and_what_follows_is() -> None:
    """A launch that failed earlier is no story of this start; one that fails now is shown."""
    launches: list[dict[str, str]] = [failed("1", "of yesterday")]

    def resize(**_: Any) -> None:
        launches.insert(0, failed("2", "of today"))

    world = World(
        member(0), describe_scaling_activities=lambda **_: {"Activities": launches}, update_auto_scaling_group=resize
    )
    said: list[str] = []

    with pytest.raises(StackError, match="1 of 3 hosts of demo are ready"):
        stop.start(world.account(), DEMO, said.append)
    assert any("of today" in line for line in said)
    assert not any("of yesterday" in line for line in said)


def test_a_cluster_that_runs_is_not_started() -> None:
    """As many nodes as the stack was made for may be there already."""
    groups = [
        {"AutoScalingGroupName": "demo-master", "MinSize": 1, "MaxSize": 1, "DesiredCapacity": 1, "Instances": []},
        {"AutoScalingGroupName": "demo-workers", "MinSize": 0, "MaxSize": 2, "DesiredCapacity": 2, "Instances": []},
    ]
    aws = account(**{**stack_of(DEMO), "describe_auto_scaling_groups": {"AutoScalingGroups": groups}})

    with pytest.raises(NothingToDo, match="demo is not stopped; `inv stack"):
        stop.start(aws, DEMO, print)


def failed(name: str, text: str) -> dict[str, str]:
    return {"ActivityId": name, "StatusCode": "Failed", "StatusMessage": text, "Description": "d"}


def waited(world: World, file: ClusterFile, *, is_refused: bool = False) -> tuple[list[Any], list[str]]:
    said: list[str] = []
    watch = StackWatch(world.account(), MADE, said.append)
    watch.refused = {"demo-workers": "no capacity"} if is_refused else {}
    watch.launches = ["no capacity", "no capacity"] if is_refused else []
    return ready.wait_for_nodes(watch, OUTPUTS, file), said


FEW = replace(DEMO, nodes=Nodes(workers=3, min_nodes=2))


@pytest.mark.parametrize(("there", "is_ready"), [(1, False), (2, True), (3, True)])
def test_a_cluster_that_may_begin_with_fewer_does_when_aws_has_no_more(there: int, is_ready: bool) -> None:
    """With no fewer than it may, and that is said."""
    world = World(*map(member, range(there)))

    if is_ready:
        found, said = waited(world, FEW, is_refused=True)
        assert len(found) == there
        assert said == [
            f"demo begins with {there} of 4 hosts: its group goes on trying, and `inv hosts.write` takes in who has come"
        ]
    else:
        with pytest.raises(StackError) as e:
            waited(world, FEW, is_refused=True)
        assert str(e.value).splitlines() == [
            f"1 of 4 hosts of demo are ready after {FEW.nodes.boot_minutes} minutes",
            "  no instance: no capacity",
            "The stack goes on trying; `inv stack.status` tells how far it is.",
        ]


NO_ROOM = "We currently do not have sufficient g5.12xlarge capacity"


def room(world: World, **refusals: str) -> Room:
    watch = StackWatch(world.account(), MADE, print)
    watch.refused = {f"demo-{role}": said for role, said in refusals.items()}
    return Room(watch, design(workers=3, nodes={"min_nodes": 3}))


@pytest.mark.parametrize(
    ("refusals", "there", "role"),
    [
        ({"workers": NO_ROOM}, [member(0), member(1)], "worker"),
        ({"workers": NO_ROOM}, [member(0), member(1), member(2)], ""),
        ({"workers": NO_ROOM}, [member(0), member(1), member(2, lifecycle="Terminating")], "worker"),
        ({"workers": "a quota was reached"}, [member(0)], ""),
        ({"workers": ""}, [member(0)], ""),
        ({}, [member(0)], ""),
        ({"master": NO_ROOM}, [], "master"),
        ({"master": NO_ROOM}, [member(0)], ""),
    ],
)
def test_a_create_is_given_up_for_hosts_that_it_cannot_begin_without(
    refusals: dict[str, str], there: list[GroupMember], role: str
) -> None:
    """A signal of failure goes to the group that is short for lack of room, and to no other."""
    signalled: list[tuple[str, str, str]] = []
    world = World(
        *there,
        signal_resource=lambda **given: signalled.append(
            (given["StackName"], given["LogicalResourceId"], given["Status"])
        ),
    )
    one = room(world, **refusals)

    one.look()
    one.look()

    assert (one.role, one.refusal) == (role, NO_ROOM if role else "")
    resource = {"worker": "WorkerNodes", "master": "MasterNodes"}.get(role)
    assert signalled == ([("id-of-demo", resource, "FAILURE")] if resource else [])


def test_a_create_that_takes_no_signal_yet_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """It is given up at a later look; what rolls back then is not told."""
    answers: list[Any] = [refused("ValidationError"), {}]
    one = room(World(member(0), signal_resource=lambda **_: answers.pop(0)), workers=NO_ROOM)
    one.look()
    assert one.refusal == ""

    one.look()
    one.watch.show("rolled back")

    assert (one.refusal, capsys.readouterr().out) == (NO_ROOM, "")


@pytest.mark.parametrize(
    ("file", "ends", "said"),
    [
        (GUARDED, ["demo-master", "demo-workers"], ""),
        (OFF, [], ""),
        (OFF, ["demo-master"], "its guard is off, but an end is set"),
        (GUARDED, ["demo-master"], "it has a guard, but no end is set on demo-workers, so"),
        (GUARDED, [], "it has a guard, but no end is set on demo-workers, demo-master, so"),
    ],
)
def test_an_end_that_is_not_as_the_guard_wants_it_is_told(file: ClusterFile, ends: list[str], said: str) -> None:
    """One too few, and one too many."""
    found = guard_deadline.trouble(file, ends)

    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_a_budget_is_counted_by_prices_that_are_known() -> None:
    """The master's own only where it is another; without a budget nothing is counted."""
    budget = design(guard=Guard(budget_usd=40.0))

    assert guard_deadline.priced(design(), None, None) == design()
    assert guard_deadline.priced(budget, 5.0, 5.0) == replace(budget, usd_per_hour=5.0, master_usd_per_hour=0.0)
    assert guard_deadline.priced(budget, 5.0, 1.0) == replace(budget, usd_per_hour=5.0, master_usd_per_hour=1.0)


@pytest.mark.parametrize(
    ("each", "master", "field", "instance"),
    [
        (None, 1.0, "nodes.usd_per_hour", "g5.12xlarge as on-demand"),
        (5.0, None, "master.usd_per_hour", "m7i.large as on-demand"),
    ],
)
def test_a_budget_without_a_price_is_refused(
    each: float | None, master: float | None, field: str, instance: str
) -> None:
    """Who has none, and the field that gives it one."""
    with pytest.raises(ConfigError, match=f"{instance}(.|\n)*set {field}"):
        guard_deadline.priced(design(guard=Guard(budget_usd=40.0), small_master="m7i.large"), each, master)


def begun(resource: str, reason: str = "Resource creation Initiated") -> Any:
    return progress.StackEvent(
        id=resource, time=BEGAN, resource=resource, kind="AWS::X", status="CREATE_IN_PROGRESS", reason=reason
    )


@pytest.mark.parametrize(
    ("source", "until"),
    [("", "`inv sync` brings this project to them"), ("s3://b/k.tar.gz", "useful work is seen")],
)
def test_new_groups_have_their_end_as_soon_as_they_are_there(source: str, until: str) -> None:
    """Each group once, told once, and nothing of what is only asked for or is no group."""
    file = replace(GUARDED, nodes=Nodes(source=source))
    world, said = World(), []
    ends = guard_deadline.OfNewGroups(world.account(), file, said.append)

    ends.look([begun("WorkerNodes", ""), begun("Vpc")])
    assert world.ends == {}
    ends.look([begun("MasterNodes")])
    assert list(world.ends) == ["demo-master"]
    world.ends.clear()
    ends.look([begun("MasterNodes"), begun("WorkerNodes")])

    assert list(world.ends) == ["demo-workers"]
    at = guard_deadline.first_end(file, BEGAN)
    assert said == [f"  guard: all nodes end at {at:%Y-%m-%d %H:%M} UTC unless {until}"]


def test_an_end_that_is_refused_is_told_once_and_set_later() -> None:
    """In AWS's words."""
    answers: list[Any] = [refused("Throttling", "too fast"), refused("Throttling", "too fast"), {}]
    world, said = World(put_scheduled_update_group_action=lambda **_: answers.pop(0)), []
    ends = guard_deadline.OfNewGroups(
        world.account(), replace(GUARDED, nodes=Nodes(source="s3://b/k.tar.gz")), said.append
    )

    ends.look([begun("MasterNodes")])
    ends.look([begun("MasterNodes")])
    assert said == ["  demo-master: the guard could not be set: too fast; it is tried again"]
    ends.look([begun("MasterNodes")])

    assert len(said) == 2
    assert "guard: all nodes end at" in said[1]


def test_who_takes_ctrl_c_for_an_end_is_told_that_aws_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that end or start do so without a watcher."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stop, "wait_for", interrupt)
    monkeypatch.setattr(stop, "wait_for_nodes", interrupt)

    with pytest.raises(StackError, match="stopped watching; the nodes of demo end all the same"):
        stop.stop(World(member(0)).account(), DEMO, print)
    with pytest.raises(StackError, match="stopped watching; the nodes of demo start all the same"):
        stop.start(World(member(0)).account(), DEMO, print)


def executed(status: str, *, is_at_zero: bool = False) -> tuple[list[GroupMember], World, list[str]]:
    """An update that comes to this end; its cluster, and what was told."""
    said: list[str] = []
    events: list[dict[str, Any]] = [told("0", "UPDATE_COMPLETE")]
    world = World(
        member(0),
        member(1),
        member(2),
        file=OFF,
        describe_stack_events=lambda **_: {"StackEvents": events},
        execute_change_set=lambda **given: events.insert(0, told(given["ChangeSetName"], "UPDATE_IN_PROGRESS")),
        describe_stacks=stack_of(OFF, status)["describe_stacks"],
    )
    world.ends = {"demo-master": BEGAN}
    try:
        found = update.execute(world.account(), changed("WorkerNodes"), OFF, said.append, is_at_zero=is_at_zero)
    except StackError as e:
        return [], world, [*said, str(e)]
    return found, world, said


def told(name: str, status: str) -> dict[str, Any]:
    return {
        "EventId": name,
        "Timestamp": BEGAN,
        "LogicalResourceId": "demo",
        "ResourceType": progress.STACK,
        "ResourceStatus": status,
    }


def test_an_update_is_waited_for_with_its_nodes() -> None:
    """Its own events are told, an earlier update's are not; the end of a guard that is off by now is taken away."""
    found, world, said = executed("UPDATE_COMPLETE")

    assert [h.rank for h in found] == [0, 1, 2]
    assert said == ["12:00:00 demo                     update in progress"]
    assert world.ends == {}
    assert executed("UPDATE_COMPLETE", is_at_zero=True)[0] == []


def test_an_update_that_fails_leaves_the_end_as_it_is() -> None:
    """And says what to do."""
    _, world, said = executed("UPDATE_ROLLBACK_COMPLETE")

    assert world.ends == {"demo-master": BEGAN}
    assert said[-1].splitlines() == [
        "update of stack demo failed (UPDATE_ROLLBACK_COMPLETE): AWS gives no reason",
        "The stack is as it was before. Correct the cause and run `inv stack.update` again.",
    ]


@pytest.mark.parametrize(
    ("ami", "source", "pinned", "named"),
    [
        ("", "", {"Ami": "ami-9", "SourceVersion": "old"}, DEMO.nodes.ami),
        ("latest", "", {"SourceVersion": "old"}, DEMO.nodes.ami),
        ("ami-0123456789abcdef0", "", {"SourceVersion": "old"}, "ami-0123456789abcdef0"),
        ("", "latest", {"Ami": "ami-9"}, DEMO.nodes.ami),
    ],
)
def test_an_update_keeps_image_and_source_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, ami: str, source: str, pinned: dict[str, str], named: str
) -> None:
    """What is not pinned is looked up by what the file names, or by what was given."""
    looked: list[Any] = []
    monkeypatch.setattr(
        update.preflight, "design_for", lambda aws, file, pinned: looked.append((file.nodes.ami, pinned)) or design()
    )
    monkeypatch.setattr(update, "with_design", lambda aws, design, plan: plan)
    monkeypatch.setattr(update, "propose", lambda aws, plan, stack: stack.name)

    found = update.prepare(account(**stack_of(DEMO, Ami="ami-9", SourceVersion="old")), DEMO, ami, source)

    kept = {k: v for k, v in looked[0][1].items() if k in ("Ami", "SourceVersion")}
    assert (found, looked[0][0], kept) == ("demo", named, pinned)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ([], "the master cannot be used: there is none; wait for it"),
        ([member(1)], "the master cannot be used: there is none; wait for it"),
        ([member(0, boot=""), member(1)], "the master cannot be used: i-0 is InService, Healthy, boot running; wait"),
        ([member(0, health="Unhealthy")], "the master cannot be used: i-0 is InService, Unhealthy, boot ready; wait"),
    ],
)
def test_without_a_master_there_are_no_hosts(there: list[GroupMember], said: str) -> None:
    """Whoever else can be used."""
    with pytest.raises(StackError, match=said):
        hosts.hosts(World(*there).account(), OUTPUTS)


def test_hosts_are_those_that_can_be_used_and_their_ranks_are_kept() -> None:
    """Of those in service alone; an instance that went away while they were listed is left out."""
    new = [member(0), member(1), member(2, lifecycle="Pending")]
    world = World(*(replace(m, rank=None) for m in new))

    found = hosts.hosts(world.account(), OUTPUTS)

    assert [(m.instance_id, m.rank) for m in found] == [("i-0", 0), ("i-1", 1)]
    assert world.ranks() == {"i-0": 0, "i-1": 1, "i-2": None}
    gone = [refused("InvalidInstanceID.NotFound"), nodes(member(0))["describe_instances"]]
    world.said["describe_instances"] = lambda **_: gone.pop(0)
    assert [m.instance_id for m in hosts.read(world.account(), OUTPUTS)] == ["i-0"]
    world.said["describe_instances"] = refused("AccessDenied")
    with pytest.raises(ClusterError, match="listing the cluster's instances: Asked was refused"):
        hosts.read(world.account(), OUTPUTS)


def test_a_clock_of_aws_that_cannot_be_read_is_this_machines() -> None:
    """An answer without a date."""
    before = datetime.datetime.now(datetime.UTC)
    aws = account(describe_scheduled_actions={"ResponseMetadata": {"HTTPHeaders": {}}})

    assert guard_deadline.begin(aws, GUARDED, []) >= guard_deadline.first_end(GUARDED, before)


def test_the_master_knows_itself_by_its_own_address_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On it there is no gateway; elsewhere the master is known under the address it is reached by, too."""
    key = "ssh-ed25519 " + "A" * 68
    aws = World(member(0, host_key=key), member(1)).account()
    (tmp_path / "cluster.toml").write_text("")
    known = []
    for is_here in (True, False):
        monkeypatch.setattr(hostfile, "is_the_master", lambda outputs, is_here=is_here: is_here)
        texts = [t.text for t in hostfile.targets(aws, tmp_path / "cluster.toml", DEMO)]
        known.append(["".join(line for line in t.splitlines(keepends=True) if line[0] != "#") for t in texts])

    assert known[0][1] == f"10.0.0.0 {key}\n"
    assert known[1][1] == f"10.0.0.0 {key}\n198.51.100.7 {key}\n"
    assert ("gateway" in known[0][2], "gateway" in known[1][2]) == (False, True)
