"""Every variant of the template: the designs that the template tests walk."""

from functools import cache
from typing import Any

from cfn.instances import InstanceType, instance_type
from cfn.template.design import Design
from cluster.clusterfile.model import Access, ClusterFile, Master, Network, Nodes, Ssh, Storage
from lab.aws.moto_client import client

AMI = "ami-0123456789abcdef0"


@cache
def described(name: str) -> InstanceType:
    """A type's facts from the recorded answer of DescribeInstanceTypes that moto carries."""
    return instance_type(client("ec2", "us-east-1").describe_instance_types(InstanceTypes=[name])["InstanceTypes"][0])


def design(
    kind: str = "g5.12xlarge",
    workers: int = 3,
    *,
    nodes: dict[str, Any] | None = None,
    efs: tuple[str, str] = ("", ""),
    version: str = "",
    ends: str = "",
    small_master: str = "",
    **parts: Any,
) -> Design:
    file = ClusterFile(
        **{
            "name": "demo",
            "access": Access(ssh_from="203.0.113.7/32"),
            "nodes": Nodes(**{"instance_type": kind, "workers": workers, **(nodes or {})}),
            **({"master": Master(instance_type=small_master)} if small_master else {}),
            **parts,
        }
    )
    return Design(
        file=file,
        ami=AMI,
        zone="us-east-1d",
        instance=described(kind),
        master=described(small_master) if small_master else None,
        vpc_cidr="10.20.0.0/16",
        efs_address=efs[0],
        efs_group=efs[1],
        block_ends=ends,
        source_version=version,
    )


SSM = Access(mode="ssm")
EXISTING = Network(
    vpc="vpc-0123456789abcdef0", public_subnet="subnet-0123456789abcdef0", private_subnet="subnet-0123456789abcdef1"
)
CR = "cr-0123456789abcdef0"

VARIANTS: dict[str, Design] = {
    "default": design(),
    "one-host": design("g5.xlarge", 0),
    "spares": design("g5.xlarge", 2, nodes={"spares": 2}),
    "no-efa": design("g6.xlarge", 2),
    "multi-card": design("g6e.24xlarge", 3),
    "p4d": design("p4d.24xlarge", 7),
    "p5-64": design("p5.48xlarge", 63),
    "p5-block": design(
        "p5.48xlarge", 7, ends="2027-01-15T11:30:00Z", nodes={"capacity": "capacity-block", "reservation": CR}
    ),
    "p5-everything": design(
        "p5.48xlarge",
        63,
        access=SSM,
        storage=Storage(fsx_gib=4800, fsx_s3="s3://bucket/data", s3="s3://bucket/runs"),
    ),
    "reserved": design(nodes={"capacity": "reservation", "reservation": CR}),
    "spot": design(
        nodes={"capacity": "spot"},
        notify="arn:aws:sns:us-east-1:123456789012:trainings",
        results="s3://kept/trainings/",
    ),
    "spot-workers": design(nodes={"capacity": "spot"}, master=Master(capacity="on-demand")),
    "small-master": design("p5.48xlarge", 3, small_master="m7i.large"),
    "small-master-block": design(
        "p5.48xlarge",
        7,
        small_master="m7i.large",
        ends="2027-01-15T11:30:00Z",
        nodes={"capacity": "capacity-block", "reservation": CR},
    ),
    "small-master-reserved": design(small_master="c6i.large", nodes={"capacity": "reservation", "reservation": CR}),
    "few": design(nodes={"min_nodes": 2}),
    "types": design(nodes={"instance_type": ("p5.48xlarge", "g5.12xlarge")}),
    "ssm": design(access=SSM),
    "eic": design(access=Access(mode="eic")),
    "ssm-existing-vpc": design(
        access=SSM, network=Network(vpc="vpc-0123456789abcdef0", private_subnet="subnet-0123456789abcdef1")
    ),
    "existing-vpc": design(network=EXISTING),
    "existing-efs": design(storage=Storage(efs="fs-0123456789abcdef0")),
    "existing-efs-and-target": design(
        network=EXISTING, storage=Storage(efs="fs-0123456789abcdef0"), efs=("10.0.0.9", "sg-0123456789abcdef0")
    ),
    "plain-nfs": design(storage=Storage(tls=False)),
    "git-source": design(nodes={"source": "https://example.org/team/project.git#v1"}, version="0" * 40),
    "fsx": design(storage=Storage(fsx_gib=1200)),
    "fsx-s3": design(storage=Storage(fsx_gib=2400, fsx_throughput=250, fsx_s3="s3://bucket/data")),
    "s3": design(
        storage=Storage(s3="s3://bucket/runs"), nodes={"source": "s3://bucket/runs/project.tar.gz"}, version="e7a9"
    ),
    "other-port": design(ssh=Ssh(port=2222)),
    "wide": design(access=Access(ssh_from="10.0.0.0/8", allow_wide=True)),
    "public-key": design(access=Access(ssh_from="203.0.113.7/32", public_key="ssh-ed25519 " + "A" * 68 + " me@home")),
    "key-pair": design(access=Access(ssh_from="203.0.113.7/32", key_pair="mine")),
    "master-in-the-name": design(name="master-test"),
}
