"""Load balancers that Kubernetes has created for services, outside CloudFormation, found by their tags."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cfn.aws import Aws, pages
from cfn.orphan_kinds import tags_of
from cfn.removal import ApiCall

_AT_ONCE = 20  # load balancers per query of tags
_SERVICE = ("kubernetes.io/service-name", "service.k8s.aws/stack")  # tags that hold the service's namespace and name
_OF = "kubernetes.io/cluster/"  # as EKS's own controller marks what it makes
_OF_CONTROLLER = "elbv2.k8s.aws/cluster"  # as the AWS Load Balancer Controller does


@dataclass(frozen=True, kw_only=True)
class Balancer:
    """Load balancer."""

    name: str
    vpc: str
    tags: Mapping[str, str]
    end: ApiCall

    @property
    def clusters(self) -> set[str]:
        """Return the Kubernetes clusters that created it; none if something else did."""
        marked = {name.removeprefix(_OF) for name in self.tags if name.startswith(_OF)}
        return marked | ({self.tags[_OF_CONTROLLER]} if _OF_CONTROLLER in self.tags else set())

    @property
    def service(self) -> str:
        """Return the service that it was created for, as NAMESPACE/NAME; "" if its tags do not say."""
        return next((self.tags[name] for name in _SERVICE if "/" in self.tags.get(name, "")), "")


def balancers(aws: Aws) -> list[Balancer]:
    """Return all load balancers of the region, whoever created them. Raises ClientError if they may not be listed."""
    return sorted([*_new(aws), *_classic(aws)], key=lambda b: b.name)


def held_by(found: list[Balancer], cluster: str, own_vpc: str) -> list[Balancer]:
    """Return the load balancers that a Kubernetes cluster created, and all in the network that is deleted with it.

    Args:
        own_vpc: the stack's own VPC; "" if the network is not part of the stack.
    """
    return [b for b in found if cluster in b.clusters or (own_vpc and b.vpc == own_vpc)]


def _new(aws: Aws) -> Iterator[Balancer]:
    elb = aws.client("elbv2")
    found = {b["LoadBalancerArn"]: b for b in pages(elb, "describe_load_balancers", "LoadBalancers")}
    for arns in _portions(list(found)):
        for one in elb.describe_tags(ResourceArns=arns)["TagDescriptions"]:
            arn = one["ResourceArn"]
            end = ApiCall("elbv2", "delete_load_balancer", {"LoadBalancerArn": arn})
            yield _balancer(found[arn]["LoadBalancerName"], found[arn].get("VpcId", ""), one["Tags"], end)


def _classic(aws: Aws) -> Iterator[Balancer]:
    elb = aws.client("elb")
    described = pages(elb, "describe_load_balancers", "LoadBalancerDescriptions")
    found = {b["LoadBalancerName"]: b for b in described}
    for names in _portions(list(found)):
        for one in elb.describe_tags(LoadBalancerNames=names)["TagDescriptions"]:
            name = one["LoadBalancerName"]
            end = ApiCall("elb", "delete_load_balancer", {"LoadBalancerName": name})
            yield _balancer(name, found[name].get("VPCId", ""), one.get("Tags", []), end)


def _balancer(name: str, vpc: str, tags: Any, end: ApiCall) -> Balancer:
    return Balancer(name=name, vpc=vpc, tags=tags_of(tags), end=end)


def _portions(names: list[str]) -> list[list[str]]:
    return [names[n : n + _AT_ONCE] for n in range(0, len(names), _AT_ONCE)]
