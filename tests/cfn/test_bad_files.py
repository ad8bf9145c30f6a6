"""Every bad cluster file is refused before anything is made, naming the field and the remedy."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from cfn import plan
from cluster.clusterfile import text as clusterfile
from cluster.errors import ConfigError
from lab.aws import FakeAws
from tests.cfn.reservations import reservation

GOOD = {"access.ssh_from": "203.0.113.7/32"}
CHANGING = ("Create", "Delete", "Update", "Run", "Terminate", "Put", "Modify", "Authorize", "Execute", "Allocate")

# what is wrong -> (fields, the field that is named, what the remedy says)
WRITTEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "no CIDR": ({"access.ssh_from": ""}, "access.ssh_from", "203.0.113.7/32"),
    "open CIDR": ({"access.ssh_from": "0.0.0.0/0"}, "access.ssh_from", "or use mode 'ssm'"),
    "half the internet": ({"access.ssh_from": "128.0.0.0/1"}, "access.ssh_from", "or use mode 'ssm'"),
    "open IPv6": ({"access.ssh_from": "::/0"}, "access.ssh_from", "IPv4"),
    "host bits": ({"access.ssh_from": "203.0.113.7/24"}, "access.ssh_from", "write '203.0.113.0/24'"),
    "not a CIDR": ({"access.ssh_from": "home"}, "access.ssh_from", "10.20.0.0/16"),
    "prefix too long": ({"access.ssh_from": "203.0.113.7/33"}, "access.ssh_from", "write it like"),
    "CIDR with ssm": ({"access.mode": "ssm"}, "access.ssh_from", "remove it"),
    "an endpoint in another's VPC": (
        {
            "access.mode": "eic",
            "access.ssh_from": "",
            "network.vpc": "vpc-0123456789abcdef0",
            "network.private_subnet": "subnet-0123456789abcdef0",
        },
        "access.mode",
        "use mode 'ssm'",
    ),
    "an endpoint and another port": (
        {"access.mode": "eic", "access.ssh_from": "", "ssh.port": 2222},
        "ssh.port",
        "use mode 'ssm'",
    ),
    "unknown access": ({"access.mode": "vpn"}, "access.mode", "'ssm' or 'eic'"),
    "wrong VPC range": ({"network.cidr": "10.20.0.0/33"}, "network.cidr", "10.20.0.0/16"),
    "VPC too large": ({"network.cidr": "10.0.0.0/8"}, "network.cidr", "/16 to /27"),
    "subnet outside the VPC": (
        {"network.private_cidr": "10.99.0.0/18"},
        "network.private_cidr",
        "choose a part of it",
    ),
    "subnets overlap": ({"network.public_cidr": "10.20.64.0/24"}, "network.private_cidr", "choose separate parts"),
    "subnet too small": (
        {"network.private_cidr": "10.20.64.0/28", "nodes.workers": 20},
        "network.private_cidr",
        "use a larger one",
    ),
    "a master that does not train, and nobody who does": (
        {"master.instance_type": "m5.large", "nodes.workers": 0},
        "master.instance_type",
        "give at least one worker",
    ),
    "a master's type misspelled": ({"master.instance_type": "large"}, "master.instance_type", "'m7i.large'"),
    "a master's price": ({"master.usd_per_hour": -1.0}, "master.usd_per_hour", "or 0"),
    "zone of another region": ({"network.zone": "eu-west-1a"}, "network.zone", "change one of them"),
    "zone misspelled": ({"network.zone": "us-east-1"}, "network.zone", "us-east-1d"),
    "VPC without subnets": ({"network.vpc": "vpc-0123456789abcdef0"}, "network.private_subnet", "give a subnet"),
    "subnet without VPC": ({"network.private_subnet": "subnet-0123456789abcdef0"}, "network.vpc", "give the VPC"),
    "no public subnet": (
        {"network.vpc": "vpc-0123456789abcdef0", "network.private_subnet": "subnet-0123456789abcdef0"},
        "network.public_subnet",
        "ssm",
    ),
    "VPC id misspelled": ({"network.vpc": "vpc-xyz"}, "network.vpc", "vpc-0123456789abcdef0"),
    "too many workers": ({"nodes.workers": 64}, "nodes.workers", "the master counts extra"),
    "too many spares": ({"nodes.workers": 60, "nodes.spares": 4}, "nodes.spares", "63 at most"),
    "spares of nobody": ({"nodes.workers": 0, "nodes.spares": 1}, "nodes.spares", "a spare takes a worker's place"),
    "negative spares": ({"nodes.spares": -1}, "nodes.spares", "63 at most"),
    "negative workers": ({"nodes.workers": -1}, "nodes.workers", "the master counts extra"),
    "small root volume": ({"nodes.root_gib": 20}, "nodes.root_gib", "75 GiB"),
    "unknown capacity": ({"nodes.capacity": "cheap"}, "nodes.capacity", "capacity-block"),
    "spot with capacity block": (
        {"nodes.capacity": "spot", "nodes.reservation": "cr-0123456789abcdef0"},
        "nodes.capacity",
        "remove nodes.reservation",
    ),
    "block without id": ({"nodes.capacity": "capacity-block"}, "nodes.reservation", "give its id"),
    "AMI id too short": ({"nodes.ami": "ami-123"}, "nodes.ami", "give an AMI id"),
    "boot too short": ({"nodes.boot_minutes": 1}, "nodes.boot_minutes", "30 suits"),
    "a user in the source": ({"nodes.source": "https://me@example.org/x"}, "nodes.source", "needs none"),
    "a token in the source": ({"nodes.source": "https://me:ghp_x@example.org/x"}, "nodes.source", "needs none"),
    "a token as a path": (
        {"nodes.source": "https://example.org/ghp_0123456789abcdef0/x"},
        "nodes.source",
        "needs none",
    ),
    "a query in the source": ({"nodes.source": "https://example.org/x?access_token=1"}, "nodes.source", "needs none"),
    "a user in an S3 source": ({"nodes.source": "s3://me:pw@bucket/x.tar.gz"}, "nodes.source", "needs none"),
    "project over the root": ({"project": "/.."}, "project", "/opt/dlami-cluster"),
    "project over the system": ({"project": "/usr"}, "project", "/opt/dlami-cluster"),
    "project up into the system": ({"project": "/opt/../etc"}, "project", "/opt/dlami-cluster"),
    "project is all of opt": ({"project": "/opt"}, "project", "/opt/dlami-cluster"),
    "project is a home": ({"project": "/home/ubuntu"}, "project", "/opt/dlami-cluster"),
    "share over the system": ({"shared": "/var/lib"}, "shared", "/efs"),
    "share over the homes": ({"shared": "/home"}, "shared", "/efs"),
    "FSx over the system": ({"storage.fsx_gib": 1200, "storage.fsx_mount": "/etc"}, "storage.fsx_mount", "/fsx"),
    "a wide CIDR": ({"access.ssh_from": "10.0.0.0/8"}, "access.ssh_from", "access.allow_wide = true"),
    "a quarter of the internet": (
        {"access.ssh_from": "64.0.0.0/2", "access.allow_wide": True},
        "access.ssh_from",
        "or use mode 'ssm'",
    ),
    "not a public key": ({"access.public_key": "-----BEGIN OPENSSH PRIVATE KEY-----"}, "access.public_key", ".pub"),
    "no price": ({"nodes.usd_per_hour": float("nan")}, "nodes.usd_per_hour", "give the price"),
    "source over http": ({"nodes.source": "http://example.org/x"}, "nodes.source", "leave it empty"),
    "EFS id misspelled": ({"storage.efs": "efs-1"}, "storage.efs", "fs-0123456789abcdef0"),
    "whole bucket": ({"storage.s3": "s3://bucket"}, "storage.s3", "a whole bucket is never granted"),
    "FSx size": ({"storage.fsx_gib": 1000}, "storage.fsx_gib", "1200 or a multiple of 2400"),
    "FSx throughput": ({"storage.fsx_gib": 1200, "storage.fsx_throughput": 200}, "storage.fsx_throughput", "125"),
    "FSx over EFS": ({"storage.fsx_gib": 1200, "storage.fsx_mount": "/efs"}, "storage.fsx_mount", "another path"),
    "link without FSx": ({"storage.fsx_s3": "s3://bucket/data"}, "storage.fsx_s3", "fsx_gib"),
    "bad name": ({"name": "my cluster"}, "name", "letters, digits and hyphens"),
    "bad region": ({"region": "virginia"}, "region", "us-east-1"),
    "relative share": ({"shared": "efs"}, "shared", "/efs"),
    "workers as text": ({"nodes.workers": "3"}, "nodes.workers", "write it like 1"),
    "port out of range": ({"ssh.port": 70000}, "ssh.port", "22"),
}


@pytest.mark.parametrize("what", WRITTEN)
def test_a_bad_value_is_refused_by_the_file_itself(what: str, tmp_path: Path) -> None:
    """With the line of the field and what to write; no account is asked."""
    values, named, remedy = WRITTEN[what]
    path = tmp_path / "cluster.toml"
    clusterfile.write(path, clusterfile.render({**GOOD, **values}))
    with pytest.raises(ConfigError) as error:
        clusterfile.read(path)

    table, _, field = named.rpartition(".")
    lines = path.read_text().split("\n")
    begin = lines.index(f"[{table}]") if table else 0
    line = next((n for n, x in enumerate(lines, 1) if n > begin and x.startswith(f"{field} = ")), 0)
    assert str(error.value).startswith(f"{path}:{line}: {named}: ")
    assert remedy in str(error.value)
    assert str(error.value).count("\n") == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('nmae = "x"', "nmae: no such field; did you mean 'name'?"),
        ("[nodes]\nworker = 3", "nodes.worker: no such field; did you mean 'nodes.workers'?"),
        ("[node]\nworkers = 3", "node: no such field; did you mean 'nodes'?"),
        ('[access]\nssh_form = "1.2.3.4/32"', "did you mean 'access.ssh_from'?"),
        ("nodes = 3", "cluster.toml:1: nodes: is a table; write [nodes]"),
        ('[ssh]\n\nkeyfile = "k"', "cluster.toml:3: ssh.keyfile: no such field; did you mean 'ssh.key'?"),
        ('[ssh]\nkey = ""', "cluster.toml:2: ssh.key: is empty"),
        ("[nodes]\nworkers = true", "nodes.workers: True is not a whole number"),
        ("name =", "is not valid TOML"),
        ("x = " + "[" * 5000, "cluster.toml:1: is nested too deeply"),
        ('name = "a"\n[nodes]\nworkers = ' + "9" * 5000, "cluster.toml:3: a number is too long"),
        ("[nodes]\nworkers = 0x" + "f" * 5000, "cluster.toml:2: nodes.workers: is too long a number"),
    ],
)
def test_a_mistyped_field_gets_the_nearest_right_one(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        clusterfile.read(path)
    assert said in str(error.value)


def test_a_file_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="is there already"):
        clusterfile.write(path, "x")
    assert "precious" == path.read_text()


# what only the account knows
def subnets() -> dict[str, str]:
    ec2 = boto3.client("ec2")
    one, other = (ec2.create_vpc(CidrBlock=f"10.{n}.0.0/16")["Vpc"]["VpcId"] for n in (50, 60))

    def subnet(vpc: str, cidr: str, zone: str) -> str:
        return ec2.create_subnet(VpcId=vpc, CidrBlock=cidr, AvailabilityZone=zone)["Subnet"]["SubnetId"]

    return {
        "vpc": one,
        "a": subnet(one, "10.50.0.0/24", "us-east-1a"),
        "b": subnet(one, "10.50.1.0/24", "us-east-1b"),
        "a2": subnet(one, "10.50.2.0/24", "us-east-1a"),
        "tiny": subnet(one, "10.50.3.0/28", "us-east-1a"),
        "far": subnet(other, "10.60.0.0/24", "us-east-1a"),
    }


def elsewhere() -> str:
    """An EFS that is mounted in another VPC."""
    efs = boto3.client("efs")
    system = efs.create_file_system(CreationToken="x", Encrypted=True)["FileSystemId"]
    efs.create_mount_target(FileSystemId=system, SubnetId=subnets()["far"])
    return system


BLOCK = {"nodes.capacity": "capacity-block", "nodes.instance_type": "p5.48xlarge"}
ASKED: dict[str, tuple[Callable[[Callable[..., Any]], dict[str, Any]], str, str]] = {
    "unknown instance type": (
        lambda s: {"nodes.instance_type": "g5.13xlarge"},
        "nodes.instance_type",
        "such as g5.16xlarge, g5.12xlarge",
    ),
    "retired instance type": (lambda s: {"nodes.instance_type": "p3.16xlarge"}, "nodes.instance_type", "choose"),
    "type not in the zone": (
        lambda s: {"nodes.instance_type": "p5en.48xlarge", "network.zone": "us-east-1e"},
        "network.zone",
        "use one of us-east-1",
    ),
    "zone that is not there": (lambda s: {"network.zone": "us-east-1z"}, "network.zone", "use one of us-east-1"),
    "vCPU quota": (
        lambda s: s("quotas", {"L-DB2E81BA": 100}) and {"nodes.workers": 3},
        "nodes.workers",
        "use at most 1 worker, or ask for more of L-DB2E81BA",
    ),
    "quota for not even one": (
        lambda s: s("quotas", {"L-DB2E81BA": 8}) and {},
        "nodes.workers",
        "ask for more of L-DB2E81BA",
    ),
    "quota for the master alone": (
        lambda s: s("quotas", {"L-DB2E81BA": 48}) and {"nodes.workers": 3, "nodes.spares": 1},
        "nodes.workers",
        "use at most 0 workers and spares, or ask for more of L-DB2E81BA",
    ),
    "quota of one vCPU less": (
        lambda s: s("quotas", {"L-DB2E81BA": 4 * 48 - 1}) and {"nodes.workers": 3},
        "nodes.workers",
        "use at most 2 workers, or ask for more of L-DB2E81BA",
    ),
    "spot quota": (
        lambda s: s("quotas", {"L-3819A6DF": 100}) and {"nodes.capacity": "spot", "nodes.workers": 3},
        "nodes.workers",
        "ask for more of L-3819A6DF",
    ),
    "quota of the P family": (
        lambda s: s("quotas", {"L-417A185B": 200}) and {"nodes.instance_type": "p4d.24xlarge", "nodes.workers": 3},
        "nodes.workers",
        "use at most 1 worker, or ask for more of L-417A185B",
    ),
    "quota of workers on spot, the master on demand": (
        lambda s: (
            s("quotas", {"L-3819A6DF": 100, "L-DB2E81BA": 48})
            and {"nodes.capacity": "spot", "nodes.workers": 3, "master.capacity": "on-demand"}
        ),
        "nodes.workers",
        "use at most 2 workers, or ask for more of L-3819A6DF",
    ),
    "quota of a master on demand": (
        lambda s: (
            s("quotas", {"L-3819A6DF": 1000, "L-DB2E81BA": 8})
            and {"nodes.capacity": "spot", "nodes.workers": 3, "master.capacity": "on-demand"}
        ),
        "master.capacity",
        "ask for more of L-DB2E81BA",
    ),
    "quota of a small master": (
        lambda s: s("quotas", {"L-1216C47A": 1}) and {"master.instance_type": "m5.large"},
        "master.instance_type",
        "ask for more of L-1216C47A",
    ),
    "a master that is not there": (
        lambda s: {"master.instance_type": "m5.lage"},
        "master.instance_type",
        "such as m5.large",
    ),
    "a master of another architecture": (
        lambda s: {"master.instance_type": "m6g.large"},
        "master.instance_type",
        "choose a type of that architecture",
    ),
    "a master not sold on spot": (
        lambda s: {"nodes.capacity": "spot", "master.instance_type": "mac2.metal"},
        "master.instance_type",
        "is not sold as spot",
    ),
    "key pair missing": (lambda s: {"access.key_pair": "mine"}, "access.key_pair", "EC2 Instance Connect"),
    "EFS that is not there": (lambda s: {"storage.efs": "fs-0123456789abcdef0"}, "storage.efs", "leave it empty"),
    "EFS not encrypted": (
        lambda s: {"storage.efs": boto3.client("efs").create_file_system(CreationToken="y")["FileSystemId"]},
        "storage.efs",
        "encrypted",
    ),
    "EFS of another VPC": (lambda s: {"storage.efs": elsewhere()}, "storage.efs", "set network.vpc to that VPC"),
    "AMI that is not there": (lambda s: {"nodes.ami": "ami-0123456789abcdef0"}, "nodes.ami", "differ by region"),
    "AMI parameter misspelled": (
        lambda s: {"nodes.ami": "/aws/service/deeplearning/ami/x86_64/tensorflow/latest/ami-id"},
        "nodes.ami",
        "release notes",
    ),
    "AMI of another architecture": (
        lambda s: {
            "nodes.ami": "/aws/service/deeplearning/ami/arm64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
        },
        "nodes.ami",
        "that architecture",
    ),
    "bucket that is not there": (lambda s: {"storage.s3": "s3://no-such-bucket/x"}, "storage.s3", "existing bucket"),
    "bucket of the fast file system": (
        lambda s: {"storage.fsx_gib": 1200, "storage.fsx_s3": "s3://no-such-bucket/x"},
        "storage.fsx_s3",
        "existing bucket",
    ),
    "VPC that is not there": (
        lambda s: {
            "network.vpc": "vpc-0123456789abcdef0",
            "network.private_subnet": subnets()["a"],
            "network.public_subnet": subnets()["b"],
        },
        "network.vpc",
        "give one that does",
    ),
    "subnet of another VPC": (
        lambda s: (
            (n := subnets())
            and {"network.vpc": n["vpc"], "network.private_subnet": n["far"], "network.public_subnet": n["a"]}
        ),
        "network.private_subnet",
        "give a subnet of that VPC",
    ),
    "subnet that is not there": (
        lambda s: (
            (n := subnets())
            and {
                "network.vpc": n["vpc"],
                "network.private_subnet": "subnet-0123456789abcdef0",
                "network.public_subnet": n["a"],
            }
        ),
        "network.private_subnet",
        "give a subnet of vpc-",
    ),
    "subnets of two zones": (
        lambda s: (
            (n := subnets())
            and {"network.vpc": n["vpc"], "network.private_subnet": n["b"], "network.public_subnet": n["a"]}
        ),
        "network.private_subnet",
        "choose two of one zone",
    ),
    "existing subnet too small": (
        lambda s: (
            (n := subnets())
            and {
                "network.vpc": n["vpc"],
                "network.private_subnet": n["tiny"],
                "network.public_subnet": n["a"],
                "nodes.workers": 12,
            }
        ),
        "network.private_subnet",
        "use a larger one",
    ),
    "type not sold as a block": (
        lambda s: {"nodes.capacity": "capacity-block", "nodes.reservation": reservation(s)},
        "nodes.capacity",
        "is not sold as capacity-block",
    ),
    "reservation that is not there": (
        lambda s: {**BLOCK, "nodes.reservation": "cr-0aaaaaaaaaaaaaaaa"},
        "nodes.reservation",
        "give the id of yours",
    ),
    "reservation of another type": (
        lambda s: {**BLOCK, "nodes.reservation": reservation(s, InstanceType="p4d.24xlarge")},
        "nodes.reservation",
        "make them agree",
    ),
    "reservation too small": (
        lambda s: {**BLOCK, "nodes.workers": 7, "nodes.reservation": reservation(s)},
        "nodes.workers",
        "use at most 3 workers",
    ),
    "reservation that others use": (
        lambda s: {**BLOCK, "nodes.workers": 3, "nodes.reservation": reservation(s, AvailableInstanceCount=2)},
        "nodes.workers",
        "use at most 1 worker",
    ),
    "reservation that is used up": (
        lambda s: {**BLOCK, "nodes.reservation": reservation(s, AvailableInstanceCount=0)},
        "nodes.workers",
        "end what uses it",
    ),
    "reservation is over": (
        lambda s: {**BLOCK, "nodes.reservation": reservation(s, State="expired")},
        "nodes.reservation",
        "one that is active",
    ),
    "reservation of another kind": (
        lambda s: {**BLOCK, "nodes.capacity": "reservation", "nodes.reservation": reservation(s)},
        "nodes.capacity",
        "write 'capacity-block'",
    ),
    "reservation in another zone": (
        lambda s: {**BLOCK, "network.zone": "us-east-1a", "nodes.reservation": reservation(s)},
        "nodes.reservation",
        "set network.zone",
    ),
}


@pytest.mark.parametrize("what", ASKED)
def test_what_the_account_cannot_give_is_refused_before_anything_is_made(
    account: Any, what: str, fake: FakeAws, scene: Callable[..., Any]
) -> None:
    """The plan asks AWS and stops at the field that is wrong; nothing was changed by then."""
    prepare, named, remedy = ASKED[what]
    values = prepare(scene)
    file = clusterfile.parse(tomllib.loads(clusterfile.render({**GOOD, **values})))
    before = len(fake.world.log)
    with pytest.raises(ConfigError) as error:
        plan.make(account, file)

    assert str(error.value).startswith(f"{named}: ")
    assert remedy in str(error.value)
    assert [] == [c["operation"] for c in fake.world.log[before:] if c["operation"].startswith(CHANGING)]
