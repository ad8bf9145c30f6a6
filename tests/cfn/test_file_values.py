"""The values of a cluster file: the last that is taken, the first that is not, and what follows from them."""

import os
import subprocess
from dataclasses import replace as with_
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError

from cfn import init_values
from cluster.clusterfile import text
from cluster.clusterfile.checks import FieldError, check_folder
from cluster.clusterfile.model import Access, ClusterFile, Guard, Master, Nodes, Ssh, Storage, is_of_a_stack
from cluster.clusterfile.network import Network
from cluster.clusterfile.reader import decode
from cluster.errors import ConfigError
from tests.cfn.answers import Service

CR = {"capacity": "reservation", "reservation": "cr-0123456789abcdef0"}
BLOCK = {**CR, "capacity": "capacity-block"}
VPC, SUBNET, OTHER = "vpc-0123456789abcdef0", "subnet-0123456789abcdef0", "subnet-01234567"
KEY = "ssh-ed25519 " + "A" * 68
TYPE = "nodes.instance_type"

TAKEN: list[tuple[type, dict[str, Any]]] = [
    *((Storage, {"fsx_gib": n}) for n in (0, 1200, 2400, 2_400_000)),
    *((Storage, {"fsx_throughput": n}) for n in (125, 250, 500, 1000)),
    *((Storage, {"efs": efs}) for efs in ("", "fs-01234567", "fs-0123456789abcdef0")),
    (Storage, {"fsx_s3": "s3://bucket/x", "fsx_gib": 1200}),
    (Storage, {"s3": "s3://abc/x/y.z"}),
    (Access, {"mode": "ssm", "key_pair": "k" * 255}),
    (Access, {"mode": "eic"}),
    (Access, {"mode": "ssm", "public_key": KEY}),
    (Access, {"ssh_from": "10.1.0.0/16"}),
    (Access, {"ssh_from": "10.0.0.0/8", "allow_wide": True}),
    *((Guard, {"idle_minutes": n}) for n in (None, 0, 20, 10080)),
    *((Guard, {"max_hours": n}) for n in (0.0, 8760.0)),
    *((Guard, {"budget_usd": n}) for n in (0.0, 1e8)),
    *((Nodes, {"root_gib": n}) for n in (75, 16384)),
    *((Nodes, {"boot_minutes": n}) for n in (5, 120)),
    *((Nodes, {"usd_per_hour": n}) for n in (0.0, 999_999.0)),
    *((Nodes, {"workers": n}) for n in (0, 1, 63)),
    *((Nodes, {"workers": 3, "min_nodes": n}) for n in (0, 2, 4)),
    (Nodes, {"workers": 0, "min_nodes": 1}),
    (Nodes, {"workers": 60, "spares": 3}),
    *((Nodes, {"ami": ami}) for ami in ("ami-01234567", "ami-0123456789abcdef0", "/aws/service/x")),
    *((Nodes, {"capacity": name}) for name in ("on-demand", "spot")),
    (Nodes, CR),
    (Nodes, BLOCK),
    *(
        (Nodes, {"source": s})
        for s in ("", "checkout", "https://example.org/x.git#main", "https://example.org/x", "s3://bucket/a/b.tar.gz")
    ),
    *((Master, {"capacity": name}) for name in ("", "on-demand")),
    *((Master, {"usd_per_hour": n}) for n in (0.0, 999_999.0)),
    (Network, {"cidr": "10.0.0.0/16", "public_cidr": "10.0.0.0/28", "private_cidr": "10.0.0.16/28"}),
    (Network, {"cidr": "10.0.0.0/27", "public_cidr": "10.0.0.0/28", "private_cidr": "10.0.0.16/28"}),
    (Network, {"vpc": VPC, "private_subnet": (SUBNET, OTHER), "public_subnet": SUBNET}),
    (Network, {"vpc": VPC, "private_subnet": SUBNET, "cidr": "anything"}),
    *((Network, {"zone": zone}) for zone in ("", "us-east-1d", "us-gov-west-1a")),
    *((Ssh, {"user": user}) for user in ("admin", "a" * 32)),
]

# of a table, what is wrong with it and the field that is named
REFUSED: list[tuple[type, dict[str, Any], str, str]] = [
    *(
        (Storage, {"fsx_gib": n}, "storage.fsx_gib", f"{n} is not a size")
        for n in (1201, -2400, 3600, 2_402_400)
    ),
    (Storage, {"fsx_throughput": 0}, "storage.fsx_throughput", "0 is not offered"),
    (Storage, {"efs": "fs-0123456789"}, "storage.efs", "does not fit"),
    (Storage, {"fsx_s3": "bucket/x", "fsx_gib": 1200}, "storage.fsx_s3", "a whole bucket is never granted"),
    (Access, {"mode": "ssm", "key_pair": "k" * 256}, "access.key_pair", "is longer than 255 characters"),
    (Access, {"mode": "eic", "ssh_from": "203.0.113.7/32"}, "access.ssh_from", "although access.mode is 'eic'"),
    (Access, {"ssh_from": "10.0.0.0/15"}, "access.ssh_from", "lets 131072 addresses in"),
    (Access, {"ssh_from": "10.0.0.0/7", "allow_wide": True}, "access.ssh_from", "opens the master to the internet"),
    *(
        (Guard, {"idle_minutes": n}, "guard.idle_minutes", f"{n} is outside 20 to 10080")
        for n in (-1, 1, 19, 10081)
    ),
    *((Guard, {"max_hours": n}, "guard.max_hours", f"{n} is outside 0 to 8760") for n in (-1.0, 8760.5)),
    *((Guard, {"budget_usd": n}, "guard.budget_usd", "is outside 0 to 100000000") for n in (-0.5, 1.1e8)),
    *((Nodes, {"root_gib": n}, "nodes.root_gib", f"{n} is outside 75 to 16384") for n in (74, 16385)),
    *((Nodes, {"boot_minutes": n}, "nodes.boot_minutes", f"{n} is outside 5 to 120") for n in (4, 121)),
    *((Nodes, {"usd_per_hour": n}, "nodes.usd_per_hour", "is no price") for n in (-0.5, 1e6)),
    *((Master, {"usd_per_hour": n}, "master.usd_per_hour", "is no price") for n in (-0.5, 1e6)),
    *((Nodes, {"workers": 3, "min_nodes": n}, "nodes.min_nodes", f"{n} is outside 2 to 4") for n in (-1, 1, 5)),
    (Nodes, {"instance_type": ()}, TYPE, "is empty, or has a type twice"),
    (Nodes, {"instance_type": ""}, TYPE, "is empty, or has a type twice"),
    (Nodes, {"instance_type": ("g5.xlarge", "g5.xlarge")}, TYPE, "is empty, or has a type twice"),
    (Nodes, {"instance_type": ("g5.xlarge", "large")}, TYPE, "'large' does not fit"),
    (Nodes, {**CR, "instance_type": ("g5.xlarge", "g6.xlarge")}, TYPE, "is a list although a reservation"),
    (Nodes, {**CR, "reservation": "cr-1"}, "nodes.reservation", "'cr-1' does not fit"),
    (Nodes, {"capacity": "reservation"}, "nodes.reservation", "is empty although capacity is 'reservation'"),
    (Nodes, {"reservation": CR["reservation"]}, "nodes.capacity", "is 'on-demand' although a reservation is given"),
    *(
        (Nodes, {"source": s}, "nodes.source", "is neither an https git address nor")
        for s in ("s3://bucket/x.zip", "checkouts", "https://example.org/x#" + "b" * 101)
    ),
    *(
        (Nodes, {"source": s}, "nodes.source", "has a user, a token or a query in it")
        for s in ("https://example.org/x#ghp_0123456789abcdef", "https://a@example.org/x")
    ),
    (Network, {"cidr": "10.0.0.0/15"}, "network.cidr", "/15 is not a size for a VPC with two subnets"),
    (
        Network,
        {"cidr": "10.0.0.0/28", "public_cidr": "10.0.0.0/28", "private_cidr": "10.0.0.0/28"},
        "network.cidr",
        "/28 is not a size for a VPC with two subnets",
    ),
    (
        Network,
        {"cidr": "10.0.0.0/27", "public_cidr": "10.0.0.0/28", "private_cidr": "10.0.0.0/28"},
        "network.private_cidr",
        "10.0.0.0/28 overlaps network.public_cidr 10.0.0.0/28",
    ),
    (Network, {"public_cidr": "10.20.0.0/29"}, "network.public_cidr", "/29 is smaller than a subnet can be"),
    (Network, {"private_cidr": "10.20.64.0/29"}, "network.private_cidr", "/29 is smaller than a subnet can be"),
    (Network, {"public_cidr": "10.21.0.0/24"}, "network.public_cidr", "10.21.0.0/24 is outside network.cidr"),
    (Network, {"private_cidr": "10.20.0.1/24"}, "network.private_cidr", "has bits set after the prefix"),
    (Network, {"private_cidr": "10.20.0.256/24"}, "network.private_cidr", "is not an IPv4 network"),
    (Network, {"vpc": VPC}, "network.private_subnet", "is empty although network.vpc is given"),
    (Network, {"vpc": VPC, "private_subnet": (SUBNET, "vpc-01234567")}, "network.private_subnet", "does not fit"),
    (Network, {"vpc": VPC, "private_subnet": SUBNET, "public_subnet": "x"}, "network.public_subnet", "does not fit"),
    (Network, {"public_subnet": SUBNET}, "network.vpc", "is empty although a subnet is given"),
    (Network, {"private_subnet": SUBNET}, "network.vpc", "is empty although a subnet is given"),
    (Ssh, {"user": "a" * 33}, "ssh.user", "does not fit"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "values"), TAKEN)
def test_the_last_value_that_can_be_had_is_taken(table: Any, values: dict[str, Any]) -> None:
    """At its limits every field is what was written."""
    given = {"ssh_from": "203.0.113.7/32", **values} if table is Access and "mode" not in values else values
    made = table(**given)
    assert values == {name: getattr(made, name) for name in values}


@pytest.mark.parametrize(("table", "values", "named", "said"), REFUSED)
def test_the_first_value_that_cannot_be_had_is_refused(
    table: Any, values: dict[str, Any], named: str, said: str
) -> None:
    """By the name of its field, with what is wrong with it."""
    with pytest.raises(FieldError) as error:
        made = table(**values)
        if hasattr(made, "check_stack"):
            made.check_stack()
    assert str(error.value).startswith(f"{named}: ")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("path", "depth", "is_taken"),
    [
        ("/data", 1, True),
        ("/data", 2, False),
        ("/opt/x", 2, True),
        ("/home/a", 1, False),
        ("/home/a/b", 1, True),
        ("/root", 1, False),
        ("/root/x", 1, True),
        ("/tmp", 1, False),
        ("/tmp/x", 1, True),
        ("/var/lib/x", 1, False),
        ("/var/lib/x/y", 1, True),
        ("/data/../x", 1, False),
        ("/data/./x", 1, False),
        ("/lib64/x", 1, False),
        ("/library", 1, False),
        ("/snap/x", 1, False),
        ("/data/", 1, False),
        ("data", 1, False),
    ],
)
def test_a_folder_for_data_is_below_a_home_or_beside_the_system(path: str, depth: int, is_taken: bool) -> None:
    """As deep as is asked for; a home itself and what is the system's is refused."""
    if is_taken:
        check_folder("shared", path, "/efs", depth)
    else:
        with pytest.raises(FieldError, match=r"^shared: .*'/efs'"):
            check_folder("shared", path, "/efs", depth)


def file(**parts: Any) -> ClusterFile:
    """A cluster of one master and three workers, but for these."""
    given = {"nodes": Nodes(workers=3), "access": Access(ssh_from="203.0.113.7/32"), **parts}
    return ClusterFile(**{"name": "demo", **given})


SMALL = Network(cidr="10.0.0.0/24", public_cidr="10.0.0.0/28", private_cidr="10.0.0.16/28")
OWN = Network(vpc=VPC, private_subnet=SUBNET)


@pytest.mark.parametrize(
    ("parts", "named", "said"),
    [
        ({"name": "a" * 42}, "name", "up to 40 letters"),
        ({"name": "1a"}, "name", "use a letter"),
        ({"region": "us-east"}, "region", "write it like 'us-east-1'"),
        ({"network": Network(zone="us-west-2a")}, "network.zone", "is not in region us-east-1"),
        ({"shared": "/fsx", "storage": Storage(fsx_gib=1200)}, "storage.fsx_mount", "already the shared folder"),
        ({"project": "/x"}, "project", "'/opt/dlami-cluster'"),
        (
            {"network": SMALL, "nodes": Nodes(workers=5, spares=2)},
            "network.private_cidr",
            "has room for 7 nodes, 8 are asked for",
        ),
        (
            {"network": with_(OWN, public_subnet=OTHER), "access": Access(mode="eic")},
            "access.mode",
            "although network.vpc is given",
        ),
        ({"network": OWN}, "network.public_subnet", "is empty although the master is reached over SSH"),
        ({"access": Access(mode="eic"), "ssh": Ssh(port=2222)}, "ssh.port", "leads to port 22"),
        (
            {"master": Master(instance_type="m7i.large"), "nodes": Nodes(workers=0)},
            "master.instance_type",
            "nobody would",
        ),
        *(
            (
                {"master": Master(capacity="on-demand"), "nodes": Nodes(**how)},
                "master.capacity",
                f"although nodes.capacity is {how['capacity']!r}",
            )
            for how in (CR, BLOCK)
        ),
        ({"nodes": Nodes(source="checkout")}, "access.public_key", "the checkout comes to the nodes over SSH"),
        ({"notify": "arn:aws:sns:x"}, "notify", "is not the ARN"),
        ({"results": "bucket"}, "results", "bucket"),
    ],
)
def test_what_does_not_go_together_is_refused(parts: dict[str, Any], named: str, said: str) -> None:
    """By the field that has to change."""
    with pytest.raises(FieldError) as error:
        file(**parts).check_stack()
    assert str(error.value).startswith(f"{named}: ")
    assert said in str(error.value)


def test_a_file_of_other_hosts_is_no_stacks(tmp_path: Path) -> None:
    """`shared_by` is for hosts without a stack; a table that only a stack needs makes it one."""
    path = tmp_path / "cluster.toml"
    for words, is_one in (
        ('name = "x"\n[ssh]\nuser = "me"\n[eks]\n', False),
        ('name = "x"\nregion = "us-east-1"\n', False),
        ("[nodes]\nworkers = 1\n", True),
    ):
        path.write_text(words)
        assert is_one is is_of_a_stack(decode(path)[1])
    with pytest.raises(FieldError, match="shared_by: is for hosts without a stack"):
        text.parse({"shared_by": "master", "access": {"mode": "ssm"}})
    with pytest.raises(FieldError, match=r"worker: no such field"):
        text.parse({"nodes": {"worker": 1}})


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment without a region, without credentials and without a way to either."""
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    unknown = Service("ec2", {"describe_key_pairs": NoCredentialsError()})
    monkeypatch.setattr("cfn.aws.Aws.client", lambda self, service: unknown)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return monkeypatch


def _git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def test_what_a_new_file_has_of_its_surroundings(nobody: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The profile's region and an address that everybody may read; what is given is before it, what is empty is not."""
    assert {} == init_values.looked_up(tmp_path, {"name": ""})
    with pytest.raises(ConfigError, match="no AWS region is set here: give --region, or set AWS_DEFAULT_REGION"):
        init_values.region()
    nobody.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert "eu-west-1" == init_values.region()
    assert {"region": "eu-west-1", "name": "x"} == init_values.looked_up(tmp_path, {"name": "x", "region": None})

    _git(tmp_path, "init", "-q")
    _git(tmp_path, "remote", "add", "origin", "https://example.org/x.git")
    given = {"region": "us-west-2", "nodes.workers": 0}
    assert {**given, "nodes.source": "https://example.org/x.git"} == init_values.looked_up(tmp_path, given)
    for secret in ("https://me@example.org/x.git", "git@example.org:x.git", "http://example.org/x.git"):
        _git(tmp_path, "remote", "set-url", "origin", secret)
        assert given == init_values.looked_up(tmp_path, given), secret


@pytest.mark.parametrize(("names", "found"), [((), ""), (("mine",), "mine"), (("mine", "yours"), "")])
def test_the_only_key_pair_is_taken(names: tuple[str, ...], found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody chooses among several."""
    answers = {"describe_key_pairs": {"KeyPairs": [{"KeyName": name} for name in names]}}
    monkeypatch.setattr("cfn.aws.Aws.client", lambda self, service: Service(service, answers))
    looked = init_values.looked_up(Path("/"), {"region": "us-east-1"})
    assert {"region": "us-east-1", **({"access.key_pair": found} if found else {})} == looked
