"""[guard] of a cluster file."""

from dataclasses import dataclass

from cluster.clusterfile.checks import FieldError
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
        if self.idle_minutes and not 20 <= self.idle_minutes <= 10080:
            raise FieldError(
                "guard.idle_minutes",
                f"{self.idle_minutes} is outside 20 to 10080",
                "60 suits most clusters; 0 turns it off",
            )
        for name, most in (("max_hours", 8760.0), ("budget_usd", 1e8)):
            if not 0 <= getattr(self, name) <= most:
                raise FieldError(f"guard.{name}", f"{getattr(self, name)} is outside 0 to {most:.0f}", "0 turns it off")
