"""What can go wrong at AWS, row by row: each ends in the message or the state that an operator needs."""

from collections.abc import Callable
from dataclasses import replace as with_
from typing import Any

import boto3
import pytest
from botocore.config import Config

from cfn import aws, create, plan, progress, replace_instance, rollback, stack, status, stop, update
from cfn import hosts as members
from cfn.aws import Aws, AwsError
from cfn.stack import StackError
from cluster.clusterfile.model import ClusterFile, Guard
from cluster.errors import ConfigError, NothingToDo
from dlami.tasks import stack_actions
from lab.aws import FakeAws
from lab.aws.cloudformation import CloudFormation

Scene = Callable[..., Any]


def quiet(_: str) -> None:
    """Shows nothing."""


def made(account: Aws, file: ClusterFile) -> list[members.GroupMember]:
    return create.create(account, plan.make(account, file), quiet)


def calls(fake: FakeAws, operation: str) -> int:
    return sum(c["operation"] == operation for c in fake.world.log)


@pytest.mark.parametrize(
    ("service", "action", "code", "status_code"),
    [
        ("cloudformation", "DescribeStacks", "Throttling", 400),
        ("cloudformation", "DescribeStackEvents", "Throttling", 400),
        ("ec2", "DescribeInstances", "RequestLimitExceeded", 503),
        ("autoscaling", "DescribeAutoScalingGroups", "Throttling", 400),
        ("ec2", "DescribeInstanceTypes", "InternalError", 500),
    ],
)
def test_three_refusals_in_a_row_are_ridden_out(
    fake: FakeAws, scene: Scene, file: ClusterFile, service: str, action: str, code: str, status_code: int, account: Aws
) -> None:
    """Throttling and errors of AWS's own end in success, not in a message."""
    scene("faults", {"service": service, "action": action, "code": code, "status": status_code, "times": 3})
    assert 4 == len(made(account, file))
    assert 0 == fake.world.faults[0].times


def test_an_answer_that_never_comes_ends_in_a_sentence(
    fake: FakeAws, scene: Scene, file: ClusterFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read time-out is retried, then told."""
    monkeypatch.setattr(
        aws,
        "CONFIG",
        Config(retries={"mode": "standard", "total_max_attempts": 2}, connect_timeout=2, read_timeout=0.2),
    )
    scene("faults", {"service": "ec2", "action": "DescribeImages", "code": "", "delay_s": 2.0, "times": 2})
    with pytest.raises(AwsError, match=r"AWS did not answer: .*check the network"):
        plan.make(Aws("us-east-1"), file)


def test_no_capacity_is_told_at_once_and_ends_in_its_own_words(
    hurried: FakeAws, scene: Scene, file: ClusterFile, account: Aws
) -> None:
    """The scaling activity's message comes while CloudFormation still waits, and is in the error."""
    scene("capacity", {"g5.12xlarge": 0})
    told: list[str] = []
    with pytest.raises(StackError) as error:
        create.create(account, plan.make(account, file), told.append)

    first = next(n for n, line in enumerate(told) if "do not have sufficient g5.12xlarge capacity" in line)
    failed = next(n for n, line in enumerate(told) if "create failed" in line)
    assert first < failed
    assert "do not have sufficient g5.12xlarge capacity in the Availability Zone you requested" in str(error.value)
    assert "Failed to receive" in str(error.value)
    assert "inv stack.delete" in str(error.value)


def test_a_node_that_fails_to_boot_is_named_with_its_step(
    fake: FakeAws, scene: Scene, file: ClusterFile, account: Aws
) -> None:
    """The first cause, not the cascade: which node, which step, what it said last."""
    scene("nodes", {"role": "worker", "do": "fail", "step": "mount-shared", "last": "mount.nfs4: Connection timed out"})
    with pytest.raises(StackError) as error:
        made(account, file)

    lines = str(error.value).split("\n")
    assert "create of stack demo failed (ROLLBACK_COMPLETE): WorkerNodes" in lines[0]
    assert "FAILURE signal(s) out of 3" in lines[0]
    assert "(worker): first boot failed mount-shared: mount.nfs4: Connection timed out" in lines[1]
    assert "get-console-output" in lines[-1] and "/boot" not in lines[-1]  # the file system is gone with the nodes


def test_keep_failed_leaves_the_nodes_for_a_look(fake: FakeAws, scene: Scene, file: ClusterFile, account: Aws) -> None:
    scene("nodes", {"role": "worker", "do": "fail"})
    with pytest.raises(StackError, match=r"The nodes are kept; their logs are in /efs/.dlami-cluster/demo/boot"):
        create.create(account, plan.make(account, file), quiet, keep_failed=True)

    now = status.read_status(account, file)
    assert "CREATE_FAILED" == now.stack.status
    assert 4 == len(now.members)
    assert now.cause is not None and "WorkerNodes" == now.cause.resource
    assert "failed mount-shared" in str(now)
    kept = create.delete(account, file, quiet)
    assert "until then EFS bills its size" in stack_actions.kept_text(file, kept)


def test_a_silent_node_ends_in_a_time_out_and_the_stack_must_go_first(
    hurried: FakeAws, scene: Scene, file: ClusterFile, account: Aws
) -> None:
    scene("nodes", {"role": "master", "do": "silent"})
    with pytest.raises(StackError, match=r"MasterNodes .*Failed to receive 1 resource signal\(s\)"):
        made(account, file)
    with pytest.raises(StackError, match=r"stack demo is ROLLBACK_COMPLETE: .*run `inv stack.delete` first"):
        made(account, file)
    create.delete(account, file, quiet)
    hurried.world.scale = 0.05
    assert 4 == len(made(account, file))


def test_a_deletion_that_keeps_failing_says_what_holds_and_can_leave_it(
    fake: FakeAws, file: ClusterFile, account: Aws
) -> None:
    """An instance of somebody else in the subnet: AWS's words, then --retain."""
    made(account, file)
    subnet = stack.outputs(account, "demo")["PrivateSubnet"]
    image = boto3.client("ec2").describe_images()["Images"][0]["ImageId"]
    boto3.client("ec2").create_network_interface(SubnetId=subnet)
    boto3.client("ec2").run_instances(ImageId=image, MinCount=1, MaxCount=1, SubnetId=subnet, InstanceType="t3.micro")
    fake.world.delete_failures["PrivateSubnet"] = "has dependencies"

    def again(line: str) -> None:
        if "trying once more" in line:
            fake.world.delete_failures["PrivateSubnet"] = "has dependencies"

    with pytest.raises(
        StackError, match=r"PrivateSubnet .*has dependencies(.|\n)*inv stack.delete --retain PrivateSubnet"
    ):
        create.delete(account, file, again)
    fake.world.delete_failures["PrivateSubnet"] = "has dependencies"
    kept = create.delete(account, file, quiet, ["PrivateSubnet", "Vpc", "StorageGroup"])
    assert subnet == kept["PrivateSubnet"]
    assert stack.find(account, "demo") is None


def test_a_deletion_that_aws_never_begins_is_not_said_to_be_done(
    fake: FakeAws, file: ClusterFile, account: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who believed that would pay for it."""
    made(account, file)
    monkeypatch.setattr(CloudFormation, "delete_stack", lambda self, region, p: {})
    monkeypatch.setattr(progress, "_BEGINS_S", 0.5)
    with pytest.raises(
        StackError,
        match=r"delete of stack demo failed \(CREATE_COMPLETE\)(.|\n)*costs on: run `inv stack.delete` again",
    ):
        create.delete(account, file, quiet)


def test_a_failed_update_is_rolled_back_and_says_why(
    fake: FakeAws, scene: Scene, file: ClusterFile, account: Aws
) -> None:
    """UPDATE_ROLLBACK_COMPLETE: the stack is as before and can be updated again."""
    made(account, file)
    key = with_(file, access=with_(file.access, ssh_from="198.51.100.0/24"))
    change = update.prepare(account, key)
    group = stack.resource_ids(account, stack.get(account, "demo"))["AdminGroup"]
    boto3.client("ec2").revoke_security_group_ingress(
        GroupId=group,
        IpPermissions=[
            {
                "IpProtocol": "tcp",
                "FromPort": 22,
                "ToPort": 22,
                "IpRanges": [{"CidrIp": "203.0.113.7/32", "Description": "SSH from the operator"}],
            }
        ],
    )
    with pytest.raises(StackError, match=r"update of stack demo failed \(UPDATE_ROLLBACK_\w+\): AdminGroup"):
        update.execute(account, change, key, quiet)


def test_a_roll_back_that_failed_is_continued_or_left_and_its_nodes_can_be_stopped(
    fake: FakeAws, scene: Scene, file: ClusterFile, account: Aws
) -> None:
    """No circle of advice: each task names the way out, the bill can be ended, and the stack can be used again."""
    made(account, file)
    more = with_(file, access=with_(file.access, ssh_from="198.51.100.0/24"))
    change = update.prepare(account, more)
    scene("update_failures", {"AdminGroup": 3})
    with pytest.raises(StackError) as error:
        update.execute(account, change, more, quiet)
    assert "UPDATE_ROLLBACK_FAILED" == stack.get(account, "demo").status
    assert "as it was before" not in str(error.value) and "inv stack.update --roll-back" in str(error.value)

    for act in (
        lambda: update.prepare(account, more),
        lambda: update.replace(account, file, "1", quiet),
        lambda: create.begin(account, plan.make(account, file), False),
        lambda: stop.start(account, file, quiet),
    ):
        with pytest.raises(
            StackError, match=r"so did its roll-back; try that again with `inv stack.update --roll-back`"
        ):
            act()
    (problem,) = status.read_status(account, file).problems
    assert "inv stack.update --roll-back" in problem
    stop.stop(account, file, quiet)
    assert [] == stop.members(account, file)

    with pytest.raises(StackError, match=r"roll-back of stack demo failed .*: AdminGroup") as error:
        rollback.roll_back(account, file, quiet)
    assert "--skip AdminGroup" in str(error.value)
    skip = rollback.skipped(account, stack.get(account, "demo"), "AdminGroup")
    assert "UPDATE_ROLLBACK_COMPLETE" == rollback.roll_back(account, file, quiet, skip).status
    with pytest.raises(NothingToDo, match="no roll-back of demo has failed"):
        rollback.roll_back(account, file, quiet)
    assert stop.start(account, file, quiet)
    with pytest.raises(ConfigError, match="--skip Nope: stack demo has only"):
        rollback.skipped(account, stack.get(account, "demo"), "Nope")


def test_a_suspended_process_is_said_before_a_task_relies_on_it(
    fake: FakeAws, scene: Scene, file: ClusterFile, account: Aws
) -> None:
    """Nothing is ended that would have no successor, and a guard that cannot end its nodes does not look as if it could."""
    guarded = with_(file, guard=Guard(idle_minutes=60))
    hosts = made(account, guarded)
    scaling = boto3.client("autoscaling")

    def suspend(*processes: str, group: str = "demo-workers") -> None:
        scaling.resume_processes(AutoScalingGroupName=group)
        scaling.suspend_processes(AutoScalingGroupName=group, ScalingProcesses=list(processes))

    suspend("Launch", "AZRebalance")
    for act in (
        lambda: update.replace(account, guarded, "1", quiet),
        lambda: replace_instance.end(account, stack.outputs(account, "demo"), hosts[1].address, 1),
    ):
        with pytest.raises(StackError, match=r"nothing was changed: 'aws autoscaling resume-processes .*demo-workers"):
            act()
    assert {h.instance_id for h in hosts} == {m.instance_id for m in stop.members(account, guarded)}
    (problem,) = status.read_status(account, guarded).problems
    assert "Launch suspended: no instance is started" in problem and "AZRebalance" not in problem

    suspend("ScheduledActions")
    now = status.read_status(account, guarded)
    assert not now.is_healthy and "its guard ends nothing" in now.problems[0]
    assert "not demo-workers, as long as that is suspended" in str(now)
    suspend("Terminate")
    with pytest.raises(StackError, match="a stop would not come to its end"):
        stop.stop(account, guarded, quiet)
    fewer = with_(guarded, nodes=with_(guarded.nodes, workers=1))
    with pytest.raises(StackError, match="an update of the number of nodes would not come to its end"):
        update.execute(account, update.prepare(account, fewer), fewer, quiet)
    suspend("AZRebalance")
    assert status.read_status(account, guarded).is_healthy
    stop.stop(account, guarded, quiet)
    suspend("Launch", group="demo-master")
    with pytest.raises(StackError, match="demo-master has Launch suspended"):
        stop.start(account, guarded, quiet)


def test_what_was_deleted_by_hand_is_missed_by_every_task_that_needs_it(
    fake: FakeAws, scene: Scene, file: ClusterFile, account: Aws
) -> None:
    """CloudFormation calls it complete for ever; what is gone is not kept, either."""
    made(account, file)
    ids = stack.resource_ids(account, stack.get(account, "demo"))
    efs = boto3.client("efs")
    efs.delete_mount_target(MountTargetId=ids["SharedTarget"])
    efs.delete_file_system(FileSystemId=ids["SharedFileSystem"])
    boto3.client("ec2").delete_launch_template(LaunchTemplateId=ids["WorkerTemplate"])

    (problem,) = status.read_status(account, file).problems
    for name in ("SharedFileSystem", "SharedTarget", "WorkerTemplate"):
        assert f"{ids[name]} ({name})" in problem
    more = with_(file, nodes=with_(file.nodes, workers=4))
    for act in (
        lambda: update.prepare(account, file),
        lambda: update.prepare(account, more),
        lambda: update.replace(account, file, "1", quiet),
    ):
        with pytest.raises(StackError, match=r"deleted outside the stack: .*inv stack.delete"):
            act()
    stop.stop(account, file, quiet)
    with pytest.raises(StackError, match="deleted outside the stack"):
        stop.start(account, file, quiet)
    assert {} == create.delete(account, file, quiet)
    assert "kept: nothing" in stack_actions.kept_text(file, {})
