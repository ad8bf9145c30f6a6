"""[network] of a cluster file."""

from dataclasses import dataclass

from cluster.clusterfile.checks import REGION, FieldError, match, match_if_set, network_of, several


@dataclass(frozen=True, kw_only=True)
class Network:
    """Network of the nodes: a new VPC, or an existing one with its two subnets."""

    zone: str = ""
    """Availability Zone, as 'us-east-1d'. Empty: the first one that has room for the cluster."""
    cidr: str = "10.20.0.0/16"
    """Addresses of the new VPC."""
    public_cidr: str = "10.20.0.0/24"
    """Its public subnet: the NAT gateway and, with access over SSH, the master."""
    private_cidr: str = "10.20.64.0/18"
    """Its private subnet: the workers and the storage."""
    vpc: str = ""
    """An existing VPC to use instead; then the two subnets below are needed and no network is made."""
    public_subnet: str | tuple[str, ...] = ""
    """Existing subnet for the master, routed to an internet gateway. Not needed with access over SSM. A list like that
    of the private ones: one in each of their zones."""
    private_subnet: str | tuple[str, ...] = ""
    """Existing subnet for the workers, routed to a NAT, with an S3 gateway endpoint; in the same zone. A list of
    several, each in another zone: the first whose zone has room for the cluster is used."""

    @property
    def private_subnets(self) -> tuple[str, ...]:
        """Return the existing private subnets, in the order in which they are tried."""
        return several(self.private_subnet)

    @property
    def public_subnets(self) -> tuple[str, ...]:
        """Return the existing public subnets."""
        return several(self.public_subnet)

    def __post_init__(self) -> None:
        zone = REGION + "[a-z]"
        match_if_set("network.zone", self.zone, zone, "write it like 'us-east-1d' or leave it empty")
        for name, prefix in (("vpc", "vpc"), ("public_subnet", "subnet"), ("private_subnet", "subnet")):
            for value in several(getattr(self, name)):
                of_aws = prefix + r"-[0-9a-f]{8,17}"
                match(f"network.{name}", value, of_aws, f"write an id like '{prefix}-0123456789abcdef0'")
        if self.vpc and not self.private_subnet:
            raise FieldError(
                "network.private_subnet",
                "is empty although network.vpc is given",
                "give a subnet of that VPC, or leave network.vpc empty to have a network made",
            )
        if not self.vpc and (self.public_subnet or self.private_subnet):
            raise FieldError("network.vpc", "is empty although a subnet is given", "give the VPC of these subnets")
        if not self.vpc:
            self._check_ranges()

    def _check_ranges(self) -> None:
        whole, public, private = (
            network_of(f"network.{n}", getattr(self, n)) for n in ("cidr", "public_cidr", "private_cidr")
        )
        if not 16 <= whole.prefixlen <= 27:
            raise FieldError(
                "network.cidr", f"/{whole.prefixlen} is not a size for a VPC with two subnets", "use /16 to /27"
            )
        for name, part in (("public_cidr", public), ("private_cidr", private)):
            if not part.subnet_of(whole):
                raise FieldError(f"network.{name}", f"{part} is outside network.cidr {whole}", "choose a part of it")
            if part.prefixlen > 28:
                raise FieldError(
                    f"network.{name}", f"/{part.prefixlen} is smaller than a subnet can be", "use /28 or larger"
                )
        if public.overlaps(private):
            raise FieldError(
                "network.private_cidr", f"{private} overlaps network.public_cidr {public}", "choose separate parts"
            )
