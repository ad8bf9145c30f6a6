"""Cluster files of Kubernetes clusters."""

from dataclasses import fields
from typing import Any

from designs import SSM, VARIANTS, design

from cfn.template.design import Design
from cluster.clusterfile.model import EksSettings, Network, Storage
from eks.stack.design import EksDesign, control_cidr, file_for_eks
from eks.stack.nodes import ROOT_DEVICE

OPERATOR = "arn:aws:iam::123456789012:role/Operator"


TWO = Network(vpc="vpc-0123456789abcdef0", private_subnet=("subnet-0123456789abcdef1", "subnet-0123456789abcdef2"))


def on_eks(d: Design) -> EksDesign:
    """The design of the same cluster file on EKS, as `eks.stack.preflight` completes it."""
    own = file_for_eks(d.file)
    has_vpc = bool(d.file.network.vpc)
    given: dict[str, Any] = {f.name: getattr(d, f.name) for f in fields(Design)}
    given |= {
        "file": own,
        "ami": "",
        "root_device": ROOT_DEVICE,
        "second_zone": "us-east-1b",
        "second_subnet": "subnet-0123456789abcdef2" if has_vpc else "",
        "control_cidr": "" if has_vpc else control_cidr(own),
        "api_cidrs": d.file.api_from,
        "operator": OPERATOR,
    }
    return EksDesign(**given)


OPEN = EksSettings(allow_cidrs=("198.51.100.0/24",), efs="fs-0123456789abcdef0", namespace="team")


CASES: dict[str, EksDesign] = {
    **{
        name: on_eks(VARIANTS[name])
        for name in ("default", "no-efa", "p5-64", "p5-block", "p5-everything", "reserved", "spot", "ssm", "fsx-s3")
    },
    "existing-vpc": on_eks(design(network=TWO, access=SSM)),
    "existing-efs": on_eks(design(storage=Storage(efs="fs-0123456789abcdef0"))),
    "open": on_eks(design(eks=OPEN)),
    "no-gpus": on_eks(design("c6i.4xlarge", 1)),
}
