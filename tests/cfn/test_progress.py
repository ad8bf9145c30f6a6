"""What is told while AWS works on a stack, who is waited for, and why it failed."""

from dataclasses import replace
from typing import Any

import pytest

from cfn import progress, stack
from cfn.aws import AwsError
from cfn.progress import StackWatch
from cfn.stack import Stack, StackError, StackEvent
from tests.cfn.answers import BEGAN, account, member, nodes, refused

MADE = Stack(id="id-of-demo", name="demo", status="CREATE_IN_PROGRESS")


def event(
    name: str, resource: str, status: str = "CREATE_COMPLETE", kind: str = "AWS::EC2::VPC", reason: str = ""
) -> StackEvent:
    return StackEvent(id=name, time=BEGAN, resource=resource, kind=kind, status=status, reason=reason)


def told(one: StackEvent) -> dict[str, Any]:
    """An event as CloudFormation tells it."""
    said = {
        "EventId": one.id,
        "Timestamp": one.time,
        "LogicalResourceId": one.resource,
        "ResourceType": one.kind,
        "ResourceStatus": one.status,
    }
    return {**said, **({"ResourceStatusReason": one.reason} if one.reason else {})}


def described(status: str, **more: Any) -> dict[str, Any]:
    return {"Stacks": [{"StackId": "id-of-demo", "StackName": "demo", "StackStatus": status, **more}]}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that are made; a clock that only they move on."""
    pauses: list[float] = []
    monkeypatch.setattr(progress.time, "sleep", pauses.append)
    monkeypatch.setattr(progress.time, "monotonic", lambda: sum(pauses))
    return pauses


PARTS = {"Vpc": "network", "Subnet": "network", "Files": "storage"}


@pytest.mark.parametrize(
    ("one", "line"),
    [
        (event("1", "demo", "CREATE_IN_PROGRESS", progress.STACK, "User Initiated"), "demo                     create in progress"),
        (event("1", "demo", "CREATE_FAILED", progress.STACK, "no"), "demo                     create failed  no"),
        (event("1", "Vpc", "CREATE_FAILED", reason="a limit"), "Vpc                      create failed  a limit"),
        (event("1", "Else"), "Else                     create complete"),
        (event("1", "Else", "CREATE_IN_PROGRESS"), ""),
        (event("1", "Vpc", "CREATE_IN_PROGRESS"), ""),
        (event("1", "Files"), "storage                  ready"),
        (event("1", "Vpc"), ""),
    ],
)  # fmt: skip
def test_what_is_done_is_told_by_parts(one: StackEvent, line: str) -> None:
    """The stack's own events and failures always; a part once all of it is there, what is of none by itself."""
    said: list[str] = []
    watch = StackWatch(account(**nodes(), describe_stack_events={"StackEvents": [told(one)]}), MADE, said.append)
    watch.parts = dict(PARTS)

    assert watch.look() is True

    assert said == ([f"12:00:00 {line}"] if line else [])
    assert (watch.last_event, [e.id for e in watch.story]) == ("1", ["1"])


def activity(name: str, code: str = "Failed", **more: str) -> dict[str, str]:
    return {"ActivityId": name, "StatusCode": code, "Description": f"of {name}", **more}


def test_launches_that_fail_are_told_by_group_the_oldest_first() -> None:
    """Each once, in AWS's words; the newest of a group is what refuses it."""
    launches = {
        "demo-master": [],
        "demo-workers": [activity("2", StatusMessage="no room"), activity("1"), activity("0", "Successful")],
    }
    said: list[str] = []
    watch = StackWatch(
        account(
            **{
                **nodes(),
                "describe_stack_events": {"StackEvents": []},
                "describe_scaling_activities": lambda **given: {"Activities": launches[given["AutoScalingGroupName"]]},
            }
        ),
        MADE,
        said.append,
        groups=("demo-master", "demo-workers"),
    )

    assert [watch.look(), watch.look()] == [True, False]
    launches["demo-master"] = [activity("3")]
    assert watch.look() is True

    assert said == [
        "  demo-workers: no instance yet: of 1",
        "  demo-workers: no instance yet: no room",
        "  demo-master: no instance yet: of 3",
    ]
    assert watch.launches == ["of 1", "no room", "of 3"]
    assert watch.refused == {"demo-workers": "no room", "demo-master": "of 3"}


KILLED = "Instance became unhealthy while waiting for instance to be in InService state. Termination Reason: "


@pytest.mark.parametrize(
    ("code", "description", "message", "is_failed"),
    [
        ("Failed", "Launching a new EC2 instance", "no room", True),
        ("Failed", "Launching a new EC2 instance", "", True),
        (
            "Cancelled",
            "Launching a new EC2 instance: i-1",
            KILLED + "Client.InternalError: Client error on launch",
            True,
        ),
        ("Cancelled", "Launching a new EC2 instance: i-1", KILLED + "Client.VolumeLimitExceeded: Volume limit", True),
        ("Cancelled", "Launching a new EC2 instance: i-1", KILLED + "Server.InsufficientInstanceCapacity", True),
        ("Cancelled", "Launching a new EC2 instance: i-1", KILLED + "Client.UserInitiatedShutdown: by user", False),
        ("Cancelled", "Launching a new EC2 instance: i-1", "", False),
        ("Cancelled", "Terminating EC2 instance: i-1", "abandoned", False),
        ("Successful", "Launching a new EC2 instance: i-1", "", False),
        ("InProgress", "Launching a new EC2 instance: i-1", "", False),
    ],
)
def test_an_instance_that_ec2_ends_as_it_starts_is_a_failed_launch(
    code: str, description: str, message: str, is_failed: bool
) -> None:
    """Auto Scaling calls it Cancelled, as it does an end that somebody asked for."""
    said = {"StatusMessage": message} if message else {}
    one = {"ActivityId": "1", "StatusCode": code, "Description": description, **said}
    assert is_failed == progress.is_failed_launch(one)


def test_nodes_are_counted_by_the_step_at_which_they_are() -> None:
    """A new count is told, a boot that failed once; the step of each node is known by its name."""
    there = [member(0, boot="running nfs"), member(1, boot="running nfs"), member(2, boot="running apt")]
    said: list[str] = []
    looks: list[int] = []
    watch = StackWatch(
        account(
            describe_stack_events={"StackEvents": []},
            describe_instances=lambda **_: nodes(*there)["describe_instances"],
        ),
        MADE,
        said.append,
        on_nodes=lambda: looks.append(len(watch.nodes)),
    )

    assert [watch.look(), watch.look()] == [True, False]
    assert said == ["  first boot: 1 at apt, 2 at nfs"]
    assert watch.nodes == {"i-0 (master)": "nfs", "i-1 (worker)": "nfs", "i-2 (worker)": "apt"}
    there[2] = member(2, boot="failed apt: no network")
    assert [watch.look(), watch.look()] == [True, False]
    assert said[1:] == ["  i-2 (worker): first boot failed apt: no network", "  first boot: 2 at nfs"]
    there.clear()
    assert [watch.look(), watch.look()] == [True, False]
    assert len(said) == 3
    assert watch.boots == {"i-2 (worker)": "failed apt: no network"}
    assert looks == [3, 3, 2, 2, 0, 0]


def following(story: list[StackEvent], *states: Any, **more: Any) -> tuple[Any, StackWatch]:
    """What a stack is found to be in the end, by a watch over it."""
    answers = list(states)
    watch = StackWatch(
        account(
            **nodes(),
            describe_stack_events={"StackEvents": [told(e) for e in story]},
            describe_stacks=lambda **_: answers.pop(0) if len(answers) > 1 else answers[0],
        ),
        MADE,
        lambda _: None,
    )
    return progress.follow(watch, **more), watch


BEGUN = event("1", "demo", "CREATE_IN_PROGRESS", progress.STACK)


def test_a_stack_is_followed_until_it_is_done(clock: list[float]) -> None:
    """What is to be done between is done after each look at one that is busy."""
    done: list[int] = []

    found, _ = following(
        [BEGUN],
        described("CREATE_IN_PROGRESS"),
        described("CREATE_IN_PROGRESS"),
        described("CREATE_COMPLETE"),
        each=lambda: done.append(1),
    )

    assert found.status == "CREATE_COMPLETE"
    assert len(done) == 2
    assert len(clock) <= 3


def test_an_old_status_is_not_believed_before_the_operation_has_begun(clock: list[float]) -> None:
    """Its own first event says that it has; after a minute the status alone is believed."""
    following([BEGUN], described("UPDATE_COMPLETE"))
    assert sum(clock) < 1
    following([BEGUN], described("UPDATE_COMPLETE"), what="UPDATE")
    assert 60 <= sum(clock) < 70


@pytest.mark.parametrize("tasks", ["stack", "eks"])
def test_who_stops_watching_is_told_how_to_look_again(tasks: str) -> None:
    """AWS goes on."""
    with pytest.raises(StackError, match=f"stopped watching; AWS goes on with demo: `inv {tasks}[.]status` tells"):
        following([BEGUN], described("CREATE_IN_PROGRESS"), each=_interrupt, tasks=tasks)


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("story", "reason", "lines"),
    [
        ([], "", ["create of stack demo failed (CREATE_FAILED): AWS gives no reason", "  no instance: no room", "  i-1: first boot failed"]),
        ([], "by hand", ["create of stack demo failed (CREATE_FAILED): by hand", "  no instance: no room", "  i-1: first boot failed"]),
        ([event("1", "Vpc", "CREATE_FAILED", reason="a limit")], "", ["create of stack demo failed (CREATE_FAILED): Vpc (AWS::EC2::VPC): a limit"]),
        ([event("1", "WorkerNodes", "CREATE_FAILED", "AWS::X", "late")], "", ["create of stack demo failed (CREATE_FAILED): WorkerNodes (AWS::X): late", "  no instance: no room", "  i-1: first boot failed"]),
    ],
)  # fmt: skip
def test_a_failure_has_its_first_cause_and_what_lies_behind_it(
    story: list[StackEvent], reason: str, lines: list[str]
) -> None:
    """Launches and boots where the nodes did not come, each once."""
    watch = StackWatch(None, MADE, print, story=story, launches=["no room", "no room"], boots={"i-1": "failed"})

    error = progress.failure(watch, "create", replace(MADE, status="CREATE_FAILED", reason=reason), "Mend it.")

    assert str(error).splitlines() == [*lines, "Mend it."]


def test_what_a_deletion_left_is_known_by_its_events() -> None:
    """Each once, by name."""
    story = [
        event("1", "B", "DELETE_SKIPPED"),
        event("2", "A", "DELETE_SKIPPED"),
        event("3", "B", "DELETE_SKIPPED"),
        event("4", "C", "DELETE_COMPLETE"),
    ]

    assert progress.retained(story) == ["A", "B"]


def test_the_first_cause_is_no_cancellation() -> None:
    """Of what failed the earliest that was not ended for another's sake; of cancellations alone the first."""
    whole = event("0", "demo", "CREATE_FAILED", progress.STACK, "the following resource(s) failed to create")
    cancelled = event("1", "A", "CREATE_FAILED", reason="Resource creation cancelled")
    real, later = event("2", "B", "CREATE_FAILED", reason="a limit"), event("3", "C", "CREATE_FAILED", reason="another")

    assert stack.first_cause([whole, cancelled, real, later]) == real
    assert stack.first_cause([whole, cancelled]) == cancelled
    assert stack.first_cause([whole, event("4", "D")]) is None


def test_a_stack_is_found_by_its_name() -> None:
    """None where there is none; another refusal is an error."""
    outputs = [{"OutputKey": "Slots", "OutputValue": "8"}]
    there = account(
        describe_stacks=described(
            "CREATE_COMPLETE", Outputs=outputs, StackStatusReason="by hand", EnableTerminationProtection=True
        )
    )
    nowhere = account(describe_stacks=refused("ValidationError", "Stack with id demo does not exist"))

    assert stack.find(there, "demo") == Stack(
        id="id-of-demo", name="demo", status="CREATE_COMPLETE", reason="by hand", outputs={"Slots": "8"}, protected=True
    )
    assert stack.get(there, "demo") == stack.find(there, "demo")
    assert stack.outputs(there, "demo") == {"Slots": "8"}
    assert stack.find(account(describe_stacks=described("CREATE_COMPLETE")), "demo").protected is False
    assert stack.find(nowhere, "demo") is None
    with pytest.raises(StackError, match="there is no stack demo in us-east-1; `inv stack"):
        stack.get(nowhere, "demo")
    with pytest.raises(StackError, match="stack demo is CREATE_IN_PROGRESS and has no outputs"):
        stack.outputs(account(describe_stacks=described("CREATE_IN_PROGRESS")), "demo")
    for code, message in (("ValidationError", "it is too long"), ("AccessDenied", "it does not exist for you")):
        with pytest.raises(AwsError, match=f"looking for stack demo: Asked was refused: {message}"):
            stack.find(account(describe_stacks=refused(code, message)), "demo")


@pytest.mark.parametrize(
    ("status", "is_busy", "is_usable"),
    [
        ("CREATE_COMPLETE", False, True),
        ("UPDATE_COMPLETE", False, True),
        ("UPDATE_ROLLBACK_COMPLETE", False, True),
        ("ROLLBACK_COMPLETE", False, False),
        ("CREATE_FAILED", False, False),
        ("UPDATE_IN_PROGRESS", True, False),
    ],
)
def test_a_stack_is_usable_when_it_is_complete(status: str, is_busy: bool, is_usable: bool) -> None:
    """Also after an update that was taken back; not after a create that was."""
    one = replace(MADE, status=status)

    assert (one.is_busy, one.is_usable) == (is_busy, is_usable)
