"""Stacks on AWS as the provider of clusters' hosts, for packages that do not import this one (`cluster.provider`)."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from cfn import cost, in_stack, replace_instance
from cfn.aws import FAILED, Aws, aws_of_node
from cfn.stack import find
from cfn.stack import outputs as outputs_of
from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.provider import Paid, Provider


def provider() -> Provider:
    """Return the stacks of the account whose credentials are at hand: the operator's, or the node's role."""
    return Stacks(aws_of_node)


class Stacks:
    """Stacks of one account.

    aws_of: returns the client factory for a region.
    """

    def __init__(self, aws_of: Callable[[str], Aws]) -> None:
        self._aws_of = aws_of

    def paid(self, stack: str) -> tuple[Paid, ...]:
        with self._asked(stack) as (aws, name):
            hosts = cost.cluster_cost(aws, in_stack.file_of(aws, name), besides=False).hosts
        return tuple(
            Paid(
                begins=one.span.begins.timestamp(),
                ends=one.span.ends.timestamp() if one.span.ends else None,
                usd_per_hour=one.usd_per_hour,
            )
            for one in hosts
        )

    def hosts(self, stack: str) -> tuple[Host, ...]:
        with self._asked(stack) as (aws, name):
            return tuple(Host(**one) for one in replace_instance.hosts(aws, name, outputs_of(aws, name))["hosts"])

    def take(self, stack: str, address: str, rank: int, spare: str) -> None:
        with self._asked(stack) as (aws, name):
            replace_instance.take(aws, outputs_of(aws, name), address, rank, spare)

    def end(self, stack: str, address: str, rank: int) -> int:
        with self._asked(stack) as (aws, name):
            return replace_instance.end(aws, outputs_of(aws, name), address, rank)

    def outputs(self, stack: str) -> Mapping[str, str]:
        with self._asked(stack) as (aws, name):
            found = find(aws, name)
            return found.outputs if found else {}

    @contextmanager
    def _asked(self, stack: str) -> Iterator[tuple[Aws, str]]:
        """Yield the stack's AWS and name. A failed request, or an answer that lacks something, is a ClusterError."""
        region, _, name = stack.partition("/")
        try:
            yield self._aws_of(region), name
        except (*FAILED, OSError, ValueError, KeyError, TypeError) as e:
            raise ClusterError(f"the answer of AWS about stack {name} cannot be used: {e!r}"[:300]) from e
