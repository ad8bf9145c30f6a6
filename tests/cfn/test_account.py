"""What an account says of a cluster file's own things, of offers and of changes; and AWS's refusals as sentences."""

import datetime
from dataclasses import replace as with_
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, NoCredentialsError, PartialCredentialsError
from designs import design

from cfn import capacity_blocks, changes, named_resources
from cfn.aws import Aws, AwsError, asking, pages
from cfn.changes import ChangeSet, ResourceChange
from cfn.plan import ClusterPlan
from cfn.stack import Stack, StackError
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import Access, ClusterFile, Network, Storage
from cluster.errors import ClusterError, ConfigError, NothingToDo
from tests.cfn.answers import Answer, answering, refused
from tests.cfn.conftest import cluster

VPC, CR, EFS = "vpc-0123456789abcdef0", "cr-0123456789abcdef0", "fs-0123456789abcdef0"
PRIVATE, OTHER, PUBLIC = (f"subnet-0123456789abcde{end}" for end in ("f1", "f2", "f3"))
T = datetime.datetime(2027, 1, 15, 11, 30, tzinfo=datetime.UTC)
KIND = "p5.48xlarge"


def subnet(name: str, zone: str, vpc: str = VPC, **more: int) -> dict[str, Any]:
    return {"SubnetId": name, "AvailabilityZone": f"us-east-1{zone}", "VpcId": vpc, **more}


def ec2_with(*subnets: dict[str, Any], **other: Answer) -> Aws:
    """An account with these subnets."""
    there = {one["SubnetId"]: one for one in subnets}

    def describe(**asked: Any) -> Any:
        (name,) = asked["SubnetIds"]
        if name not in there:
            raise refused("InvalidSubnetID.NotFound")
        return {"Subnets": [there[name]]}

    return answering(ec2={"describe_vpcs": {"Vpcs": [{}]}, "describe_subnets": describe, **other})


def in_vpc(private: Any = PRIVATE, public: Any = "") -> ClusterFile:
    network = Network(vpc=VPC, private_subnet=private, public_subnet=public)
    return ClusterFile(name="demo", network=network, access=Access(mode="ssm"))


def test_existing_subnets_are_told_by_zone() -> None:
    """In the file's order, each private one with the public one of its zone; exactly enough addresses are enough."""
    there = ec2_with(
        subnet(PRIVATE, "b", AvailableIpAddressCount=5), subnet(OTHER, "a"), subnet(PUBLIC, "b"),
    )  # fmt: skip

    both = named_resources.subnets(there, in_vpc((PRIVATE, OTHER)), 5)
    assert [("us-east-1b", ("", PRIVATE)), ("us-east-1a", ("", OTHER))] == list(both.items())
    assert {"us-east-1b": (PUBLIC, PRIVATE)} == named_resources.subnets(there, in_vpc(PRIVATE, PUBLIC), 5)
    assert {} == named_resources.subnets(answering(ec2={}), cluster(), 5), "the stack makes its own"


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (in_vpc(PUBLIC), rf"private_subnet: {PUBLIC} does not exist in us-east-1; give a subnet of {VPC}"),
        (in_vpc(PRIVATE, PUBLIC), rf"public_subnet: {PUBLIC} does not exist in us-east-1"),
        (in_vpc("subnet-01234567"), r"private_subnet: subnet-01234567 is in vpc-1, outside network.vpc vpc-0123"),
        (in_vpc((PRIVATE, OTHER)), rf"private_subnet: {OTHER} has 4 free addresses, 5 are needed; use a larger one"),
        (
            in_vpc((PRIVATE, "subnet-01234568"), "subnet-01234569"),
            r"private_subnet: the subnets are in different zones \(us-east-1a, us-east-1b\); choose two of one zone",
        ),
    ],
)
def test_subnets_that_do_not_fit_are_named(file: ClusterFile, said: str) -> None:
    """With what is wrong with them, and what would do."""
    there = ec2_with(
        subnet(PRIVATE, "a"),
        subnet(OTHER, "b", AvailableIpAddressCount=4),
        subnet("subnet-01234567", "a", vpc="vpc-1"),
        subnet("subnet-01234568", "b"),
        subnet("subnet-01234569", "a"),
    )
    with pytest.raises(FieldError, match=r"^network\." + said):
        named_resources.subnets(there, file, 5)


def test_other_refusals_are_not_taken_for_things_that_are_not_there() -> None:
    """Whoever may not look has not found out that nothing is there."""
    denied = refused("UnauthorizedOperation")
    with pytest.raises(FieldError, match=f"network.vpc: {VPC} does not exist in us-east-1"):
        named_resources.subnets(answering(ec2={"describe_vpcs": refused("InvalidVpcID.NotFound")}), in_vpc(), 5)
    for ec2 in ({"describe_vpcs": denied}, {"describe_vpcs": {}, "describe_subnets": denied}):
        with pytest.raises(type(denied), match="UnauthorizedOperation"):
            named_resources.subnets(answering(ec2=ec2), in_vpc(), 5)
    reserved = cluster(instance_type=KIND, capacity="reservation", reservation=CR)
    with pytest.raises(type(denied), match="UnauthorizedOperation"):
        named_resources.reservation(answering(ec2={"describe_capacity_reservations": denied}), reserved)
    with pytest.raises(type(denied), match="UnauthorizedOperation"):
        named_resources.mount_target(
            answering(efs={"describe_file_systems": denied}), with_efs(), "us-east-1a", VPC, None
        )


def reserving(**said: Any) -> Aws:
    """An account with a reservation of four p5.48xlarge, one of which this cluster has."""
    found = {
        "InstanceType": KIND,
        "State": "active",
        "ReservationType": "default",
        "TotalInstanceCount": 4,
        "AvailableInstanceCount": 3,
        **said,
    }
    own = {"CapacityReservationId": CR, "State": {"Name": "running"}}
    return answering(
        ec2={
            "describe_capacity_reservations": {"CapacityReservations": [found]},
            "describe_instances": {"Reservations": [{"Instances": [own]}]},
        }
    )


def wanting(workers: int, **nodes: Any) -> ClusterFile:
    given = {"capacity": "reservation", "instance_type": KIND, "reservation": CR, **nodes}
    return cluster(workers=workers, **given)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"State": "scheduled", "AvailableInstanceCount": 0},
        {"AvailableInstanceCount": 3, "TotalInstanceCount": 100},
    ],
)
def test_a_reservation_with_just_enough_room_is_taken(said: dict[str, Any]) -> None:
    """What the cluster has of it counts; all of one that has not begun does."""
    assert KIND == named_resources.reservation(reserving(**said), wanting(3))["InstanceType"]
    assert {} == named_resources.reservation(answering(ec2={}), cluster())


@pytest.mark.parametrize(
    ("said", "nodes", "refusal"),
    [
        ({}, {"workers": 4}, f"nodes.workers: {CR} has 4 instances, 5 are needed; use at most 3 workers"),
        (
            {"AvailableInstanceCount": 1},
            {"workers": 2, "spares": 1},
            f"nodes.workers: {CR} has 2 instances that others do not use, of 4, 4 are needed; "
            "use at most 1 worker and spares",
        ),
        (
            {"AvailableInstanceCount": 0},
            {"workers": 3},
            f"nodes.workers: {CR} has 1 instance that others do not use, of 4, 4 are needed; end what uses it",
        ),
        ({"State": "scheduled"}, {"workers": 4}, f"nodes.workers: {CR} has 4 instances, 5 are needed"),
        ({"InstanceType": "g5.xlarge"}, {"workers": 1}, f"nodes.reservation: {CR} is for g5.xlarge, not {KIND}"),
        ({"State": "expired"}, {"workers": 1}, f"nodes.reservation: {CR} is expired; use one that is active"),
        (
            {"ReservationType": "capacity-block"},
            {"workers": 1},
            f"nodes.capacity: is 'reservation', but {CR} is a capacity-block; write 'capacity-block'",
        ),
        (
            {},
            {"workers": 1, "capacity": "capacity-block"},
            f"nodes.capacity: is 'capacity-block', but {CR} is a reservation; write 'reservation'",
        ),
    ],
)
def test_a_reservation_that_does_not_fit_says_why(said: dict[str, Any], nodes: dict[str, Any], refusal: str) -> None:
    """And what would."""
    with pytest.raises(FieldError) as error:
        named_resources.reservation(reserving(**said), wanting(**nodes))
    assert str(error.value).startswith(refusal)


def test_a_reservation_that_nobody_has() -> None:
    """EC2 has several words for it."""
    for code in ("InvalidCapacityReservationId.NotFound", "InvalidCapacityReservationId.Malformed"):
        there = answering(ec2={"describe_capacity_reservations": refused(code)})
        with pytest.raises(FieldError, match=f"nodes.reservation: {CR} does not exist in us-east-1; give the id of"):
            named_resources.reservation(there, wanting(1))


def test_a_reservation_begins_when_ec2_says_so() -> None:
    """Of one that has begun nothing is waited for; too short a wait is refused with one that is long enough."""
    now = datetime.datetime.now(datetime.UTC)
    later = now + datetime.timedelta(minutes=90)
    at = named_resources.begins({"State": "scheduled", "StartDate": later})
    assert 0.0 == named_resources.check_begun("", CR) == named_resources.check_begun(f"{now:{named_resources.UTC}}", CR)
    assert 5000 < named_resources.check_begun(at, CR, 2 * 3600.0) <= 5400
    for wait_s in (0.0, 3600.0):
        with pytest.raises(
            FieldError, match=rf"nodes.reservation: {CR} begins at {later:%Y-%m-%d %H:%M} UTC.*--wait 2h"
        ):
            named_resources.check_begun(at, CR, wait_s)
    assert "" == named_resources.begins({"State": "active", "StartDate": later}) == named_resources.begins({})


def with_efs(efs: str = EFS) -> ClusterFile:
    return with_(cluster(), storage=Storage(efs=efs))


def mounted(*targets: dict[str, Any], encrypted: bool = True) -> Aws:
    """An account whose file system has these mount targets."""
    return answering(
        efs={
            "describe_file_systems": {"FileSystems": [{"Encrypted": encrypted}]},
            "describe_mount_targets": {"MountTargets": list(targets)},
            "describe_mount_target_security_groups": lambda **of: {
                "SecurityGroups": [f"sg-{of['MountTargetId']}", "x"]
            },
        }
    )


def target(name: str, zone: str | None, vpc: str = VPC) -> dict[str, Any]:
    where = {"AvailabilityZoneName": zone} if zone else {}
    return {"MountTargetId": name, "IpAddress": f"address of {name}", "VpcId": vpc, **where}


def test_the_mount_target_of_the_zone_is_used() -> None:
    """One that does not say where it is, too; none where the stack makes its own, or nobody has made one there."""
    two = mounted(target("a", "us-east-1a"), target("b", "us-east-1b"))

    assert ("address of b", "sg-b") == named_resources.mount_target(two, with_efs(), "us-east-1b", VPC, None)
    assert ("address of a", "sg-a") == named_resources.mount_target(two, with_efs(), "us-east-1a", VPC, {"Zone": "x"})
    assert ("", "") == named_resources.mount_target(two, with_efs(), "us-east-1c", VPC, None)
    assert ("address of c", "sg-c") == named_resources.mount_target(
        mounted(target("c", None)), with_efs(), "us-east-1d", VPC, {}
    )
    nobody = answering(efs={})
    assert ("", "") == named_resources.mount_target(nobody, with_efs(""), "us-east-1a", VPC, None)
    assert ("", "") == named_resources.mount_target(nobody, with_efs(), "us-east-1a", VPC, {"MountTarget": "fsmt-1"})


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (
            answering(efs={"describe_file_systems": refused("FileSystemNotFound")}),
            f"storage.efs: {EFS} does not exist in us-east-1; give one that does",
        ),
        (mounted(encrypted=False), f"storage.efs: {EFS} is not encrypted, and it holds the cluster's keys"),
        (
            mounted(target("a", "us-east-1a"), target("b", "us-east-1b", "vpc-2"), target("c", "us-east-1c", "vpc-1")),
            f"storage.efs: {EFS} is mounted in vpc-1, vpc-2, a file system serves one VPC at a time",
        ),
    ],
)
def test_a_file_system_that_cannot_be_used_says_why(there: Aws, said: str) -> None:
    """Before anything is made."""
    with pytest.raises(FieldError) as error:
        named_resources.mount_target(there, with_efs(), "us-east-1a", VPC, None)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("404", "does not exist"),
        ("NoSuchBucket", "does not exist"),
        ("403", "cannot be reached with your credentials"),
    ],
)
def test_a_bucket_that_cannot_be_reached_says_why(code: str, reason: str) -> None:
    """By the field that names it; a file that names none is not asked about."""
    refusing, own = answering(s3={"head_bucket": refused(code)}), Storage(s3="s3://xyz/a")
    named_resources.check_buckets(answering(s3={"head_bucket": {}}), with_(cluster(), storage=own))
    named_resources.check_buckets(refusing, cluster())
    for field, storage in (("s3", own), ("fsx_s3", Storage(fsx_gib=1200, fsx_s3="s3://xyz/b"))):
        with pytest.raises(
            FieldError, match=f"storage.{field}: bucket 'xyz' {reason}; give an existing bucket of yours"
        ):
            named_resources.check_buckets(refusing, with_(cluster(), storage=storage))


class Unreachable(BotoCoreError):
    """No answer at all."""

    fmt = "no route"


def long_ago(code: str) -> Exception:
    """Refused by an AWS whose clock says 2022."""
    error = refused(code)
    error.response["ResponseMetadata"] = {"HTTPHeaders": {"date": "Sat, 01 Jan 2022 00:00:00 GMT"}}
    return error


@pytest.mark.parametrize(
    ("raised", "said", "code"),
    [
        (refused("ExpiredToken"), "your credentials have expired", "ExpiredToken"),
        (refused("RequestExpired"), "your credentials have expired", "RequestExpired"),
        (refused("AccessDenied"), "your credentials lack the permission for Asked", "AccessDenied"),
        (refused("UnauthorizedOperation"), "your credentials lack the permission for Asked", "UnauthorizedOperation"),
        (refused("AuthFailure"), "AWS does not know these credentials: check AWS_PROFILE", "AuthFailure"),
        (refused("RequestTimeTooSkewed"), "the clock of this machine differs", "RequestTimeTooSkewed"),
        (
            refused("SignatureDoesNotMatch", "Signature expired: 2 is now earlier than 3"),
            "the clock",
            "SignatureDoesNotMatch",
        ),
        (long_ago("AuthFailure"), "the clock of this machine", "AuthFailure"),
        (long_ago("RequestExpired"), "the clock of this machine", "RequestExpired"),
        (refused("ThrottlingException"), "AWS is limiting requests: wait a minute", "ThrottlingException"),
        (refused("Throttling"), "AWS is limiting requests: wait a minute", "Throttling"),
        (refused("RequestLimitExceeded"), "AWS is limiting requests: wait a minute", "RequestLimitExceeded"),
        (refused("Other", "is odd"), r"looking: Asked was refused: is odd \(Other\); correct that", "Other"),
        (NoCredentialsError(), "looking: no AWS credentials were found; set AWS_PROFILE", ""),
        (PartialCredentialsError(provider="env", cred_var="X"), "looking: no AWS credentials were found", ""),
        (Unreachable(), "looking: AWS did not answer: no route; check the network and the region", ""),
    ],
)
def test_what_aws_refuses_is_a_sentence_with_a_remedy(raised: Exception, said: str, code: str) -> None:
    """And AWS's code, for whoever decides by it."""
    with pytest.raises(AwsError, match=said) as error, asking("looking"):
        raise raised
    assert code == error.value.code
    assert isinstance(error.value, ClusterError)


def test_all_pages_are_read() -> None:
    """One without the key has nothing."""
    there = answering(ec2={"describe_x": lambda **of: [{"Xs": [1, of["N"]]}, {}, {"Xs": [3]}]})
    assert [1, 2, 3] == pages(there.client("ec2"), "describe_x", "Xs", N=2)


def described(number: int, **changed: Any) -> dict[str, Any]:
    """An offer as EC2 describes it: 2 instances for 48 hours at 960 USD, one hour ahead of UTC."""
    ahead = datetime.timezone(datetime.timedelta(hours=1))
    return {
        "CapacityBlockOfferingId": f"cb-{number}",
        "InstanceType": KIND,
        "AvailabilityZone": "us-east-1a",
        "InstanceCount": 2,
        "StartDate": T.astimezone(ahead),
        "EndDate": (T + datetime.timedelta(hours=48)).astimezone(ahead),
        "CapacityBlockDurationHours": 48,
        "UpfrontFee": "960.0000",
        "CurrencyCode": "USD",
        **changed,
    }


def offering(*found: dict[str, Any]) -> Aws:
    """An account to which AWS offers these."""

    def describe(**asked: Any) -> Any:
        fits = [
            one
            for one in found
            if (one["InstanceType"], one["InstanceCount"], one["CapacityBlockDurationHours"])
            == (asked["InstanceType"], asked["InstanceCount"], asked["CapacityDurationHours"])
            and one["StartDate"] >= asked.get("StartDateRange", one["StartDate"])
        ]
        return [{"CapacityBlockOfferings": fits[:1]}, {"CapacityBlockOfferings": fits[1:]}]

    return answering(ec2={"describe_capacity_block_offerings": describe})


@pytest.mark.parametrize(("instances", "days"), [(0, 1), (65, 1), (-1, 1), (1, 0), (1, 15), (1, 16), (1, 189)])
def test_a_size_that_is_not_sold_is_refused(instances: int, days: int) -> None:
    """Before AWS is asked."""
    with pytest.raises(
        ConfigError, match=r"--instances .*: a block has 1 to 64|--days .*: AWS sells blocks of 1 to 14"
    ):
        capacity_blocks.offers(offering(), [KIND], instances, days)


GROUP = "AWS::AutoScaling::AutoScalingGroup"


def change(
    action: str = "Modify", kind: str = "AWS::EC2::VPC", replacement: str = "", *properties: str
) -> ResourceChange:
    return ResourceChange(action=action, resource="It", kind=kind, replacement=replacement, properties=properties)


@pytest.mark.parametrize(
    ("one", "is_dangerous", "said"),
    [
        (change("Add"), False, "+ It (AWS::EC2::VPC)"),
        (change("Remove"), True, "- It (AWS::EC2::VPC)"),
        (change(), False, "~ It (AWS::EC2::VPC)"),
        (change("Modify", "AWS::EC2::VPC", "False", "Tags"), False, "~ It (AWS::EC2::VPC)  Tags"),
        (change("Modify", "AWS::EC2::VPC", "True", "A", "B"), True, "~ It (AWS::EC2::VPC)  REPLACED  A, B"),
        (change("Modify", "AWS::EC2::VPC", "Conditional"), True, "~ It (AWS::EC2::VPC)  may be replaced"),
        (change("Modify", GROUP, "Conditional"), False, f"~ It ({GROUP})"),
        (change("Modify", GROUP, "True"), True, f"~ It ({GROUP})  REPLACED"),
        (change("Remove", "AWS::IAM::Role"), False, "- It (AWS::IAM::Role)"),
        (change("Modify", "AWS::IAM::Role", "True"), False, "~ It (AWS::IAM::Role)  REPLACED"),
    ],
)
def test_a_change_says_what_it_would_do(one: ResourceChange, is_dangerous: bool, said: str) -> None:
    """In a line; of what is precious nothing is removed or replaced."""
    assert (is_dangerous, said) == (one.is_dangerous, str(one))


STACK = Stack(id="id-1", name="demo", status="UPDATE_COMPLETE")


def row(action: str, kind: str, replacement: str = "", *targets: dict[str, str]) -> dict[str, Any]:
    found = {
        "Action": action,
        "LogicalResourceId": "It",
        "ResourceType": kind,
        "Details": [{"Target": t} for t in targets],
    }
    return {"Type": "Resource", "ResourceChange": {**found, **({"Replacement": replacement} if replacement else {})}}


def preparing(status: str, *rows: dict[str, Any], reason: str = "") -> tuple[Aws, list[str]]:
    """An account with a change set that waits, and the ids of those that were dropped."""
    dropped: list[str] = []
    sets = {"cs-1": {"Status": status, "Changes": list(rows), **({"StatusReason": reason} if reason else {})}}

    def drop(**of: Any) -> dict[str, Any]:
        dropped.append(of["ChangeSetName"])
        return {}

    there = answering(
        cloudformation={
            "create_change_set": {"Id": "cs-1"},
            "describe_change_set": lambda **of: sets[of["ChangeSetName"]],
            "delete_change_set": drop,
        }
    )
    return there, dropped


def proposed(there: Aws) -> ChangeSet:
    plan = ClusterPlan(design=design(), body='{"Parameters": {}}', stack=STACK, usd_per_hour=None)
    return changes.propose(there, plan, STACK)


@pytest.mark.parametrize(
    ("reason", "raised", "said"),
    [
        ("The submitted information didn't contain changes.", NothingToDo, "stack demo is already as the cluster file"),
        ("No updates are to be performed.", NothingToDo, "stack demo is already as the cluster file says"),
        ("Template error", StackError, "the update of demo cannot be prepared: Template error"),
        ("", StackError, "the update of demo cannot be prepared: "),
    ],
)
def test_a_change_set_that_failed_is_dropped(reason: str, raised: type[Exception], said: str) -> None:
    """And says whether there was nothing to do."""
    there, dropped = preparing("FAILED", reason=reason)
    with pytest.raises(raised, match=said):
        proposed(there)
    assert ["cs-1"] == dropped


def test_a_dangerous_change_set_is_dropped_and_named() -> None:
    """Only what is dangerous in it is; what it would do besides is not."""
    there, dropped = preparing(
        "CREATE_COMPLETE", row("Modify", "AWS::EFS::FileSystem", "True"), row("Remove", "AWS::IAM::Role")
    )
    with pytest.raises(ConfigError) as error:
        proposed(there)
    assert ["cs-1"] == dropped
    assert [
        "this update of demo would replace or remove what must stay:",
        "  ~ It (AWS::EFS::FileSystem)  REPLACED",
        "Nothing was changed. Undo that part of the cluster file, or make another cluster under a new name.",
    ] == str(error.value).split("\n")


def test_no_difference_is_none() -> None:
    """What is refused is still refused."""
    plan = ClusterPlan(design=design(), body='{"Parameters": {}}', stack=STACK, usd_per_hour=None)

    def asked(status: str, *rows: dict[str, Any]) -> ChangeSet | None:
        return changes.difference(preparing(status, *rows, reason="No updates")[0], plan, STACK)

    assert asked("FAILED") is None
    found = asked("CREATE_COMPLETE", row("Add", "AWS::IAM::Role"))
    assert found and 1 == len(found.changes)
    with pytest.raises(ConfigError):
        asked("CREATE_COMPLETE", row("Remove", "AWS::EC2::VPC"))
