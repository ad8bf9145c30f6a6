"""Client of the guard for `inv keep`: postpones the end of an idle cluster, and reads the guard's last report."""

import json
import re
import secrets
import shlex
import time
from dataclasses import dataclass
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S = 14 * 86400.0
_LIMITS = Limits(connect_s=10, total_s=20)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Last report of the guard: when the cluster ends, why, and the last useful work."""

    end: float | None  # seconds since 1970 by AWS's clock; None: nothing ends the cluster
    why: str
    useful_at: float
    what: str
    hours: float  # hours of all instances so far

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> "Seen":
        """Build the report from its JSON object. Raises KeyError, TypeError or ValueError if that is malformed."""
        end = told["end"]
        return cls(
            end=None if end is None else float(end),
            why=str(told["why"]),
            useful_at=float(told["useful_at"]),
            what=str(told["what"]),
            hours=float(told["hours"]),
        )

    def __str__(self) -> str:
        last = f"useful work was seen last at {_clock(self.useful_at)}: {self.what}"
        if self.end is None:
            return f"nothing ends this cluster by itself; {last}"
        return f"all nodes end at {_clock(self.end)} unless something is done until then; {last}"


def seconds_of(text: str) -> float:
    """Return the seconds of '90m', '2h' or '1d'. Raises ConfigError for any other text and for more than 14 days."""
    found = re.fullmatch(r"(\d{1,5}(?:\.\d+)?)([mhd])", text)
    if not found:
        raise ConfigError(f"{text!r} is no time: write 90m, 2h or 1d")
    seconds = float(found[1]) * _UNITS[found[2]]
    if not 0 < seconds <= _LONGEST_S:
        raise ConfigError(f"{text} is not within 14 days: turn the guard off instead, guard.idle_minutes = 0")
    return seconds


def keep(cluster: Cluster, seconds: float) -> None:
    """Write a keep request into the guard's folder on the master. Raises ClusterError if there is no guard."""
    wish = json.dumps({"id": secrets.token_hex(8), "seconds": seconds})
    folder = f"{_folder(cluster)}/keep"
    # Every user may write there: a request is a new file, and the guard attributes requests by the file's owner.
    command = (
        f"cd {shlex.quote(folder)} && new=$(mktemp ./.wish.XXXXXXXXXX) && cat >$new && chmod 644 $new && "
        'find . -maxdepth 1 -name "*.json" -user "$(id -u)" -delete && mv $new "./$(id -u)-${new##*.}.json"'
    )
    with Executor(cluster) as reach:
        result = reach.run([cluster.master], command, stdin=wish.encode(), limits=_LIMITS)[cluster.master]
    if not result.ok:
        raise ClusterError(
            f"{result.host}: {result.problem}: there is no guard on this master; it comes with this project, to the "
            "nodes of a stack at their first boot (nodes.source) or by `inv sync`"
        )


def seen(cluster: Cluster) -> Seen:
    """Return the guard's last report, read from the master. Raises ClusterError without a report."""
    with Executor(cluster) as reach:
        command = f"cat {shlex.quote(_folder(cluster))}/told.json"
        result = reach.run([cluster.master], command, limits=_LIMITS)[cluster.master]
    try:
        if result.ok:
            return Seen.from_json(json.loads(result.text.rpartition("\n")[2]))
    except (ValueError, KeyError, TypeError):
        pass
    raise ClusterError(f"{cluster.master}: its guard has not said anything yet; look again in a minute")


def _folder(cluster: Cluster) -> str:
    if not cluster.stack:
        raise ConfigError(f"{cluster.name} is no stack: nothing but you ends it")
    return f"{cluster.shared}/.dlami-cluster/{cluster.stack.partition('/')[2]}/guard"


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))
