"""Interface to the provider of a cluster's hosts: prices, hours paid for, replacement, and their stack's outputs."""

import importlib
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from cluster.errors import ClusterError
from cluster.hosts import Host

T = TypeVar("T")
# Found by its name: nothing here imports cfn, and a cluster without a stack loads no AWS library. It is no entry point,
# because on the nodes the project runs from its folder and is not installed.
_MODULE = "cfn.provider"


@dataclass(frozen=True, kw_only=True)
class Paid:
    """Instance that the cluster has or had, with the time it was paid for and its price."""

    begins: float  # seconds since 1970, as is `ends`
    ends: float | None  # None: it still costs money
    usd_per_hour: float | None  # None: unknown


class Provider(Protocol):
    """Owner of the stacks that clusters' hosts belong to.

    stack: region and name, as in `Cluster.stack`. Every method raises ClusterError if there is no answer.
    """

    def paid(self, stack: str) -> tuple[Paid, ...]:
        """Return the instances that the stack pays or paid for."""

    def hosts(self, stack: str) -> tuple[Host, ...]:
        """Return the stack's usable hosts, spares included."""

    def take(self, stack: str, address: str, rank: int, spare: str) -> None:
        """Give the dead host's rank to a spare."""

    def end(self, stack: str, address: str, rank: int) -> int:
        """Terminate a host so that a successor starts. Return the successor's rank."""

    def outputs(self, stack: str) -> Mapping[str, str]:
        """Return the outputs of the stack; {} if the stack is missing or incomplete."""


def provider() -> Provider:
    """Return the provider of stacks."""
    found: Provider = importlib.import_module(_MODULE).provider()
    return found


def within(limit_s: float, call: Callable[[], T]) -> T:
    """Return the result of a call to the provider. Raises ClusterError if it does not arrive in time.

    A call that is too late continues in its thread, and its result is dropped.
    """
    results = queue.SimpleQueue[tuple[T | None, BaseException | None]]()

    def run() -> None:
        try:
            results.put((call(), None))
        except BaseException as e:
            results.put((None, e))

    threading.Thread(target=run, daemon=True).start()
    try:
        result, error = results.get(timeout=limit_s)
    except queue.Empty:
        raise ClusterError(f"AWS gave no answer within {limit_s:g} s") from None
    if error:
        raise error
    return result  # type: ignore[return-value]
