"""What a plan looks up, refuses and says before anything is made."""

import re
from dataclasses import replace
from typing import Any

import pytest
from designs import design

from cfn import image, plan, preflight, quotas
from cfn.instances import instance_type
from cfn.plan import ClusterPlan
from cfn.prices import PriceList
from cfn.stack import Stack
from cfn.template.design import Design, first_minutes
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import Access, ClusterFile, Guard, Master, Network, Nodes, Storage
from tests.cfn.answers import account, refused, stack_of

AMI = "ami-0123456789abcdef0"


def a_plan(made: Design | None = None, **more: Any) -> ClusterPlan:
    return ClusterPlan(
        **{
            "design": made or design(workers=3),
            "body": "é" * 10,
            "stack": None,
            "usd_per_hour": 5.672,
            "master_usd_per_hour": 5.672,
            **more,
        }
    )


def lines(made: ClusterPlan) -> dict[str, str]:
    return {line[:10].strip(): line[10:] for line in str(made).splitlines()}


def test_a_plan_says_what_its_file_has_besides() -> None:
    """Spares, another market, a master of its own, FSx, a door without a port, a network that is there."""
    there = Stack(id="s", name="demo", status="CREATE_COMPLETE")
    spare = a_plan(design("g5.xlarge", 2, nodes={"spares": 2}), stack=there)
    kept = a_plan(design(nodes={"capacity": "spot"}, master=Master(capacity="on-demand")))
    small = a_plan(
        design(
            "p5.48xlarge", 3, nodes={"capacity": "spot"}, master=Master(instance_type="m7i.large", capacity="on-demand")
        ),
    )
    small = replace(small, design=replace(small.design, master=design(small_master="m7i.large").master))
    stored = a_plan(
        design(storage=Storage(fsx_gib=1200, efs="fs-0123456789abcdef0"), access=Access(mode="ssm"), network=Network(vpc="vpc-0123456789abcdef0", private_subnet="subnet-0123456789abcdef1"))
    )  # fmt: skip

    assert lines(spare)["cluster"] == "demo in us-east-1d (stack is CREATE_COMPLETE)"
    assert lines(spare)["nodes"].startswith(
        "1 master + 2 workers + 2 spares, g5.xlarge, on-demand: 3 GPUs in all; each host has 1 GPU, 1 slot and 0 EFA"
    )
    assert ", spot, the master on demand: " in lines(kept)["nodes"]
    assert lines(small)["nodes"].startswith(
        "1 master (m7i.large on demand, does not train) + 3 workers, p5.48xlarge, spot: 24"
    )
    assert lines(stored)["network"] == "vpc-0123456789abcdef0; no open port, Session Manager"
    assert lines(stored)["storage"].startswith("EFS fs-0123456789abcdef0 at ")
    assert lines(stored)["storage"].endswith(", FSx 1200 GiB at /fsx")
    assert lines(a_plan(design(access=Access(mode="eic"))))["network"].endswith(
        "; no open port, Instance Connect Endpoint"
    )
    assert "speed" not in lines(a_plan(design("c6i.large", 1)))


@pytest.mark.parametrize(
    ("made", "each", "master", "total", "said"),
    [
        (design(), None, 1.0, None, "unknown: set nodes.usd_per_hour to see it"),
        (design(), 1.0, None, None, "unknown for the master: set master.usd_per_hour to see it"),
        (design(workers=3), 2.0, 0.5, 6.5, "6.50 USD per hour for 4 instances (2.000 each, the master 0.500), storage and NAT extra"),
        (design(workers=3, nodes={"spares": 2}), 2.0, 2.0, 12.0, "12.00 USD per hour for 6 instances (2.000 each, 4.00 of it for 2 spares), storage and NAT extra"),
        (design(workers=1, nodes={"spares": 1}), 2.0, 0.5, 4.5, "4.50 USD per hour for 3 instances (2.000 each, the master 0.500, 2.00 of it for 1 spare), storage and NAT extra"),
    ],
)  # fmt: skip
def test_a_plan_costs_what_its_instances_do(
    made: Design, each: float | None, master: float | None, total: float | None, said: str
) -> None:
    """By the hour, with spares and a master of its own price; a price that is missing is named."""
    one = a_plan(made, usd_per_hour=each, master_usd_per_hour=master)

    assert (one.cost, one.total_usd_per_hour, one.as_json()["usd_per_hour"]) == (said, total, total)


def warned(kind: str = "g5.xlarge", **parts: Any) -> list[str]:
    """The beginnings of what a plan warns of, beside what such a file always does."""
    quiet = {
        "nodes": {"source": "s3://b/k.tar.gz"},
        "guard": Guard(idle_minutes=0),
        "access": Access(ssh_from="203.0.113.7/32", key_pair="mine"),
    }
    found = a_plan(design(kind, **{**quiet, **parts})).warnings
    return [w.removeprefix("warning: ")[:28] for w in found]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({}, []),
        ({"guard": Guard(idle_minutes=60)}, []),
        ({"nodes": {}}, ["nodes.source is empty: unles"]),
        ({"nodes": {}, "guard": Guard(idle_minutes=60)}, ["nodes.source is empty: unles", "the guard is on, and nodes w"]),
        ({"access": Access(ssh_from="10.0.0.0/8", allow_wide=True, key_pair="mine")}, ["access.ssh_from lets all of "]),
        ({"storage": Storage(fsx_gib=1200)}, ["storage.fsx_gib: FSx's archi"]),
        ({"storage": Storage(tls=False)}, ["storage.tls is false: the cl"]),
        ({"access": Access(ssh_from="203.0.113.7/32")}, ["access.key_pair and access.p"]),
        ({"access": Access(ssh_from="203.0.113.7/32", public_key="ssh-ed25519 " + "A" * 68)}, []),
        ({"access": Access(mode="ssm")}, []),
    ],
)  # fmt: skip
def test_a_plan_warns_of_what_may_not_be_meant_and_of_nothing_else(parts: dict[str, Any], said: list[str]) -> None:
    """Each by itself."""
    assert warned(**parts) == said


@pytest.mark.parametrize(
    ("kind", "mode", "is_warned"),
    [
        ("g5.12xlarge", "ssh", True),
        ("g5.12xlarge", "ssm", False),
        ("g5.xlarge", "ssh", False),
        ("p5.48xlarge", "ssh", False),
    ],
)
def test_an_efa_in_two_subnets_is_warned_of(kind: str, mode: str, is_warned: bool) -> None:
    """Of types with one card, whose first interface is the EFA; those with several have theirs beside it."""
    access = Access(ssh_from="203.0.113.7/32" if mode == "ssh" else "", mode=mode, key_pair="mine")
    assert is_warned == ("access.mode is ssh: the mast" in warned(kind, access=access))


@pytest.mark.parametrize(
    ("parts", "role_of", "usd"),
    [
        ({}, "worker", 1.0),
        ({"nodes": {"capacity": "spot"}}, "worker", 0.25),
        ({"nodes": {"capacity": "spot"}, "master": Master(capacity="on-demand")}, "master", 1.0),
        ({"nodes": {"usd_per_hour": 3.0}}, "worker", 3.0),
        ({"nodes": {"capacity": "reservation", "reservation": "cr-0123456789abcdef0"}}, "worker", None),
    ],
)
def test_an_instance_costs_what_its_market_asks(parts: dict[str, Any], role_of: str, usd: float | None) -> None:
    """What the file gives is believed; what is reserved has no price of a list."""
    known = {("on-demand", "g5.12xlarge"): 1.0, ("spot us-east-1d", "g5.12xlarge"): 0.25}

    assert plan.instance_usd_per_hour(PriceList(account(), known), design(**parts), role_of) == usd


DESCRIBED: dict[str, Any] = {
    "InstanceType": "x9.large",
    "NetworkInfo": {},
    "VCpuInfo": {"DefaultVCpus": 4},
    "ProcessorInfo": {"SupportedArchitectures": ["arm64"]},
}


@pytest.mark.parametrize(
    ("name", "gpus", "quota"),
    [
        ("p5.48xlarge", 8, "P"),
        ("g5.xlarge", 1, "G"),
        ("gr6.4xlarge", 1, "G"),
        ("f1.2xlarge", 1, ""),
        ("m7i.large", 0, "standard"),
        ("c7i.large", 0, "standard"),
        ("z1d.large", 0, "standard"),
        ("trn1.2xlarge", 0, ""),
        ("hpc7a.12xlarge", 0, ""),
        ("dl1.24xlarge", 0, ""),
        ("x2idn.16xlarge", 0, ""),
        ("9", 0, ""),
    ],
)
def test_the_quota_that_a_type_counts_against(name: str, gpus: int, quota: str) -> None:
    """By its letters; those with quotas of their own are none that we know."""
    assert replace(instance_type(DESCRIBED), name=name, gpus=gpus).quota == quota


def limited(value: float, made: Design) -> str:
    """What is said of this limit of vCPUs; "" for nothing."""
    said = {"Quota": {"QuotaName": "Running instances", "Value": value}}
    try:
        quotas.check_quotas(account(get_service_quota=said), made)
    except FieldError as e:
        return str(e)
    return ""


G5 = design("g5.12xlarge", 3)  # 48 vCPUs each


@pytest.mark.parametrize(
    ("value", "made", "field", "said"),
    [
        (192.0, G5, "", ""),
        (191.0, G5, "nodes.workers", "4 x g5.12xlarge are 192 vCPUs, the account's limit (Running instances) is 191; use at most 2 workers, or ask for more of L-DB2E81BA in Service Quotas"),
        (95.0, G5, "nodes.workers", "use at most 0 workers, or ask"),
        (47.0, G5, "nodes.workers", "is 47; ask for more of L-DB2E81BA"),
        (100.0, design("g5.12xlarge", 3, nodes={"spares": 1}), "nodes.workers", "use at most 1 worker and spares, or ask"),
        (47.0, design("g5.12xlarge", 0), "nodes.workers", "1 x g5.12xlarge are 48 vCPUs"),
    ],
)  # fmt: skip
def test_more_than_the_accounts_limit_is_refused(value: float, made: Design, field: str, said: str) -> None:
    """With how many workers would fit."""
    found = limited(value, made)

    assert said in found
    if made.file.nodes.workers:
        assert found.startswith(field)
    assert bool(found) == bool(said)


def test_a_new_stack_needs_room_for_its_vpc_and_its_addresses() -> None:
    """A network of one's own and a closed door need none; an unknown limit passes."""
    said = {"describe_vpcs": {"Vpcs": [{}] * 5}, "describe_addresses": {"Addresses": [{}] * 4}}
    full = account(get_service_quota={"Quota": {"Value": 5.0}}, **said)
    with pytest.raises(FieldError, match=r"network.vpc: 1 VPC more would be needed, 5 of the account's 5 .*L-F678F1CE"):
        quotas.check_network_quotas(full, FILE)
    roomy = account(
        get_service_quota=lambda **of: {"Quota": {"Value": 9.0 if of["ServiceCode"] == "vpc" else 5.0}}, **said
    )
    with pytest.raises(FieldError, match=r"access.mode: 2 public addresses more would be needed, 4 of the account's 5"):
        quotas.check_network_quotas(roomy, FILE)
    quotas.check_network_quotas(account(get_service_quota=refused("AccessDenied")), FILE)
    own = Network(
        vpc="vpc-0123456789abcdef0", public_subnet="subnet-0123456789abcdef0", private_subnet="subnet-0123456789abcdef1"
    )
    quotas.check_network_quotas(full, replace(FILE, network=own))


FILE = ClusterFile(name="demo", nodes=Nodes(ami=AMI), access=Access(ssh_from="203.0.113.7/32"))
KIND = G5.instance


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"describe_images": {"Images": []}}, f"{AMI} does not exist in us-east-1, or not for this account"),
        ({"describe_images": refused("InvalidAMIID.NotFound")}, f"{AMI} does not exist in us-east-1"),
        ({"describe_images": {"Images": [{"Architecture": "arm64"}]}}, f"{AMI} is for arm64, g5.12xlarge is x86_64"),
        ({"describe_images": {"Images": [{"Name": "al2023"}]}}, "al2023 is no Debian or Ubuntu"),
        ({"describe_images": {"Images": [{"Name": "ubuntu 22.04"}]}}, "ubuntu 22.04 has neither Python 3.11 nor 3.12"),
    ],
)
def test_an_image_that_cannot_be_is_refused(said: dict[str, Any], text: str) -> None:
    """Which is not there, of another processor or another system; a release only where the project is installed."""
    installed = replace(FILE, nodes=replace(FILE.nodes, source="s3://b/k.tar.gz"))

    with pytest.raises(FieldError, match=re.escape(f"nodes.ami: {text}")):
        image.image(account(**said), installed, KIND, "")
    if "neither" in text:
        assert image.image(account(**said), installed, KIND, "ami-9")[0] == "ami-9", "a running stack's is known"
        assert image.image(account(**said), FILE, KIND, "")[0] == AMI


def offered(**zones: str) -> Any:
    """The zones that offer each type, by the names of both with `_` for the dot."""
    by_type = {name.replace("_", "."): where.split() for name, where in zones.items()}

    def answer(**given: Any) -> dict[str, Any]:
        kinds = given["Filters"][0]["Values"] if "Filters" in given else list(by_type)
        return {
            "InstanceTypeOfferings": [
                {"InstanceType": kind, "Location": f"us-east-1{zone}"} for kind in kinds for zone in by_type[kind]
            ]
        }

    return answer


ALL = "b a c"


@pytest.mark.parametrize(
    ("parts", "fixed", "reserved", "offers", "said"),
    [
        ({}, "", "", "", "nodes.instance_type: g5.12xlarge is offered in no zone of us-east-1"),
        ({"small_master": "m7i.large"}, "", "", "z", "master.instance_type: no zone of us-east-1 offers both m7i.large and g5"),
        ({"network": Network(zone="us-east-1c")}, "a", "", ALL, "network.zone: is us-east-1c but the subnets are in us-east-1a"),
        ({"network": Network(zone="us-east-1c")}, "", "b", ALL, "nodes.reservation: is in us-east-1b, the cluster in us-east-1c"),
        ({"network": Network(zone="us-east-1z")}, "", "", ALL, "network.zone: g5.12xlarge is not offered in us-east-1z; use one of us-east-1a, us"),
        ({}, "y z", "", ALL, "network.private_subnet: g5.12xlarge is not offered in us-east-1y or us-east-1z"),
        ({"small_master": "m7i.large"}, "b", "", ALL, "g5.12xlarge with a m7i.large is not offered in us-east-1b"),
    ],
)  # fmt: skip
def test_zones_that_do_not_agree_are_refused(
    parts: dict[str, Any], fixed: str, reserved: str, offers: str, said: str
) -> None:
    """With the field that is to be changed."""
    aws = account(describe_instance_type_offerings=offered(g5_12xlarge=offers, m7i_large="c a"))
    reservation = {"AvailabilityZone": f"us-east-1{reserved}"} if reserved else {}

    with pytest.raises(FieldError, match=re.escape(said)):
        preflight._zones(aws, design(**parts), tuple(f"us-east-1{z}" for z in fixed.split()), reservation)


@pytest.mark.parametrize(
    ("key_pair", "there", "said"),
    [
        ("", [], ""),
        ("mine", ["mine", "others"], ""),
        ("mine", ["b", "a", "c", "f", "e", "d"], "there is no key pair 'mine' in us-east-1; use one of a, b, c, d, e, or leave"),
        ("mine", [], "import one with `aws ec2 import-key-pair`"),
    ],
)  # fmt: skip
def test_a_key_pair_is_one_of_the_accounts(key_pair: str, there: list[str], said: str) -> None:
    """Else some that there are."""
    file = replace(FILE, access=Access(ssh_from="203.0.113.7/32", key_pair=key_pair))
    aws = account(describe_key_pairs={"KeyPairs": [{"KeyName": n} for n in there]})
    if said:
        with pytest.raises(FieldError, match=re.escape(said)):
            preflight._key_pair(aws, file)
    else:
        preflight._key_pair(aws, file)


def whole_account(file: ClusterFile, **more: Any) -> Any:
    """An account in which a file of g5.12xlarge can be planned."""
    kinds = {
        name: {**DESCRIBED, "InstanceType": name, "ProcessorInfo": {}, "VCpuInfo": {"DefaultVCpus": 48}}
        for name in ("g5.12xlarge", "p5.48xlarge")
    }
    return account(
        **{
            "describe_instance_types": lambda **given: {"InstanceTypes": [kinds[given["InstanceTypes"][0]]]},
            "describe_instance_type_offerings": offered(**{"g5_12xlarge": ALL, "p5_48xlarge": "a"}),
            "describe_images": {"Images": [{"Name": "ubuntu 24.04"}]},
            "get_ebs_default_kms_key_id": refused("AccessDenied"),
            "get_service_quota": refused("AccessDenied"),
            "get_products": refused("AccessDenied"),
            **more,
        }
    )


def test_a_plan_is_made_of_each_type_and_zone() -> None:
    """In their order; of a stack that is there its own type, zone and image stay."""
    file = replace(FILE, nodes=Nodes(ami=AMI, instance_type=("p5.48xlarge", "g5.12xlarge"), workers=1))
    none = {"describe_stacks": refused("ValidationError", "it does not exist")}
    there = stack_of(file, InstanceType="g5.12xlarge", Zone="us-east-1b", Ami="ami-9")

    made = plan.make(whole_account(file, **none), file)
    again = plan.make(whole_account(file, **there), file)

    assert [(c.instance.name, c.zone[-1], c.ami) for c in made.choices] == [
        ("p5.48xlarge", "a", AMI),
        *(("g5.12xlarge", z, AMI) for z in "abc"),
    ]
    assert (made.stack, made.usd_per_hour, made.master_usd_per_hour) == (None, None, None)
    assert made.design.zone == "us-east-1a"
    assert made.body.startswith("{")
    assert [(c.instance.name, c.zone[-1], c.ami) for c in again.choices] == [("g5.12xlarge", "b", "ami-9")]
    assert again.stack.name == "demo"


def test_a_master_of_another_processor_is_refused() -> None:
    """It boots the nodes' image."""
    file = replace(FILE, nodes=Nodes(ami=AMI, instance_type="g5.12xlarge"), master=Master(instance_type="m7g.large"))
    kinds = {
        "g5.12xlarge": {**DESCRIBED, "InstanceType": "g5.12xlarge", "ProcessorInfo": {}},
        "m7g.large": {**DESCRIBED, "InstanceType": "m7g.large"},
    }
    aws = whole_account(
        file,
        describe_instance_types=lambda **given: {"InstanceTypes": [kinds[given["InstanceTypes"][0]]]},
        describe_instance_type_offerings=offered(g5_12xlarge=ALL, m7g_large=ALL),
    )

    with pytest.raises(FieldError, match="master.instance_type: m7g.large is arm64, the nodes' image is for x86_64"):  # noqa: RUF043
        preflight.design_for(aws, file)
    assert preflight.choices(aws, replace(file, master=Master()), with_image=False)[0].ami == ""


@pytest.mark.parametrize(
    ("parts", "minutes"),
    [
        ({"guard": Guard(idle_minutes=20)}, 24 * 60),
        ({"guard": Guard(idle_minutes=20), "nodes": {"source": "s3://b/k.tar.gz", "boot_minutes": 30}}, 50),
        (
            {
                "guard": Guard(idle_minutes=0, budget_usd=9.0),
                "nodes": {"source": "s3://b/k.tar.gz", "boot_minutes": 30},
            },
            60,
        ),
        ({"guard": Guard(idle_minutes=0, max_hours=0.1), "nodes": {"boot_minutes": 30}}, 30),
        ({"guard": Guard(idle_minutes=0, max_hours=2.5), "nodes": {"boot_minutes": 30}}, 150),
        (
            {
                "guard": Guard(idle_minutes=60, max_hours=1.0),
                "nodes": {"source": "s3://b/k.tar.gz", "boot_minutes": 30},
            },
            60,
        ),
    ],
)
def test_the_first_end_leaves_time_to_boot(parts: dict[str, Any], minutes: int) -> None:
    """The nearest of the limits, none before the nodes may be ready."""
    assert first_minutes(design(**parts).file) == minutes
