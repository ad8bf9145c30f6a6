"""[guard] of a cluster file."""

from dataclasses import dataclass

from cluster.clusterfile.checks import in_range
from cluster.clusterfile.schema import unset


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Limits that end a forgotten cluster: all its nodes end, its storage and addresses stay. 0 turns a limit off."""

    idle_minutes: int | None = unset(60)
    """Minutes without useful work, 20 or more. Not set: 60, but 0 for a capacity block, which is paid in advance."""
    max_hours: float = 0.0
    """Hours since its nodes were started, whatever they do."""
    budget_usd: float = 0.0
    """USD for the hours of its instances, by nodes.usd_per_hour or AWS's price list. Storage and NAT are extra."""

    def __post_init__(self) -> None:
        if self.idle_minutes:
            in_range("guard.idle_minutes", self.idle_minutes, 20, 10080, "60 suits most clusters; 0 turns it off")
        in_range("guard.max_hours", self.max_hours, 0, 8760, "0 turns it off")
        in_range("guard.budget_usd", self.budget_usd, 0, 1e8, "0 turns it off")
