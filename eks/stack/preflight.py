"""Preflight checks for EKS: look up what the cluster file leaves open, and reject what EKS would reject later."""

import re
from dataclasses import fields

from cfn import named_resources, preflight
from cfn.aws import Aws, asking
from cfn.template.design import Design
from cluster.clusterfile.checks import FieldError
from cluster.clusterfile.model import ClusterFile
from eks.eksctl import WITHOUT_EKS
from eks.stack.design import EksDesign, control_cidr, file_for_eks
from eks.stack.nodes import ROOT_DEVICE


def choices(aws: Aws, file: ClusterFile, pinned: dict[str, str] | None = None) -> tuple[EksDesign, ...]:
    """Return all designs of the EKS cluster, checked against the account, in the order in which they are tried.

    They are those of the bare cluster in zones where EKS can have its interfaces.

    Args:
        pinned: outputs of the running stack, whose zones, type and operator stay as they are.
    Raises ConfigError for what the user can correct, AwsError if AWS cannot be queried.
    """
    own = file_for_eks(file)
    designs = preflight.choices(aws, own, pinned, with_image=False)
    with asking("looking for two zones"):
        zones = _zones(aws)
        subnets = named_resources.subnets(aws, own, 0)
    usable = [d for d in designs if d.zone in zones]
    if not usable:
        raise FieldError(
            "network.zone",
            f"{', '.join(dict.fromkeys(d.zone for d in designs))} has the nodes' type and no room for EKS's interfaces",
            f"choose one of {', '.join(zones)}, or another type",
        )
    who = (pinned or {}).get("Operator") or operator(aws)
    made = []
    for design in usable:
        second = _second_zone(design, zones, list(subnets), pinned)
        made.append(
            EksDesign(
                **{f.name: getattr(design, f.name) for f in fields(Design) if f.name != "root_device"},
                root_device=ROOT_DEVICE,
                second_zone=second,
                second_subnet=subnets[second][1] if subnets else "",
                control_cidr="" if subnets else control_cidr(own),
                api_cidrs=file.api_from,
                operator=who,
            )
        )
    return tuple(made)


def _zones(aws: Aws) -> list[str]:
    """Return the zones of the region in which EKS can have interfaces."""
    found = aws.client("ec2").describe_availability_zones()["AvailabilityZones"]
    usable = [z for z in found if z.get("ZoneType", "availability-zone") == "availability-zone"]
    return sorted(z["ZoneName"] for z in usable if z.get("ZoneId") not in WITHOUT_EKS)


def _second_zone(first: Design, zones: list[str], of_subnets: list[str], pinned: dict[str, str] | None) -> str:
    """Return a zone other than the nodes', preferably the running stack's. Raises FieldError if there is none."""
    others = [z for z in of_subnets or zones if z != first.zone and z in zones]
    was = (pinned or {}).get("SecondZone", "")
    if was in others:
        return was
    if not others:
        raise FieldError(
            "network.private_subnet" if of_subnets else "region",
            f"offers no second zone beside {first.zone}, and EKS needs two",
            "give subnets of two zones that EKS can use" if of_subnets else "choose another region",
        )
    return others[0]


def operator(aws: Aws) -> str:
    """Return the ARN of the caller's IAM user or role, as access entries name it: the role instead of its session."""
    with asking("asking who you are"):
        arn: str = aws.client("sts").get_caller_identity()["Arn"]
        session = re.fullmatch(r"arn:[\w-]+:sts::\d+:assumed-role/([^/]+)/.*", arn)
        if not session:
            return arn
        return str(aws.client("iam").get_role(RoleName=session[1])["Role"]["Arn"])  # this ARN includes the role's path
