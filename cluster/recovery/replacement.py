"""Replacement of dead hosts while a job recovers.

The master calls AWS with its own role, in parallel to everything else.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cluster.errors import ClusterError
from cluster.hosts import Host
from cluster.provider import Provider, provider, within
from cluster.recovery.host_failures import own_failures
from cluster.recovery.liveness import silent_hosts
from cluster.recovery.placement import Placement

LOOK_S = 5.0  # between queries for successors, while one is awaited
_ANSWER_S = 120.0


@dataclass(frozen=True)
class _Request:
    """Request to the provider."""

    verb: str  # take, end or hosts
    address: str = ""  # of the dead host
    rank: int = 0
    spare: str = ""


class Replacement:
    """Replacement of a stack's instances, in a separate thread. Does nothing without a stack.

    stack: its region and name, as `us-east-1/training`. say: called from that thread with AWS's errors. stacks: their
    provider, AWS by default.
    """

    def __init__(
        self,
        stack: str,
        say: Callable[[str], None],
        stacks: Callable[[], Provider] = provider,
        look_s: float = LOOK_S,
        is_silent: Callable[[str], bool] = lambda address: bool(silent_hosts([address])),
    ) -> None:
        self._stack, self._say, self._look_s, self._is_silent = stack, say, look_s, is_silent
        self._stacks = stacks
        self._todo: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._begun: set[str] = set()  # addresses that are being replaced
        self._ranks: dict[str, int] = {}  # address of a terminated host -> the rank in the stack that its successor has
        self._hosts: list[Host] = []  # usable ones, by the last query
        self.news = 0  # how often the usable hosts have changed
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._is_sick: set[str] = set()  # hosts to replace although they answer
        self._said = ""

    def begin(self, chosen: Placement, job_hosts: Sequence[Host]) -> None:
        """Start the replacement of each host that is gone, once.

        If a spare took its place, its successor is the new spare.

        If most hosts are gone at once, the network failed, and none is replaced.
        """
        others = [h.address for h in job_hosts if not h.is_local]
        out = {**chosen.missing, **chosen.replaced}
        gone, silent = [a for a, u in out.items() if u.is_gone], {a for a, u in out.items() if u.is_silent}
        for address in own_failures(gone, others) if self._stack else ():
            if address not in self._begun:
                self._begun.add(address)
                self._is_sick |= {address} - silent
                spare = chosen.taken.get(address)
                seat = next(s for s in chosen.seats if s.address == (spare or address))
                if spare:
                    self._todo.put(_Request("take", address, seat.rank, spare))
                self._todo.put(_Request("end", address, seat.rank))
                self._todo.put(_Request("hosts"))
                if self._thread.ident is None:
                    self._thread.start()

    def successors(self, missing: Sequence[Host]) -> dict[str, Host]:
        """Return the ready successors of the missing hosts, by the address of the host that went."""
        ready = {h.rank: h for h in self._hosts}
        found = {m.address: ready.get(self._ranks.get(m.address, -1)) for m in missing}
        return {a: h for a, h in found.items() if h is not None and h.address != a}

    def spares(self) -> list[Host]:
        """Return the stack's spares that were ready at the last query."""
        return [h for h in self._hosts if h.is_spare]

    def close(self) -> None:
        """Stop querying AWS. Replacements that have begun continue there."""
        self._ended.set()
        self._todo.put(None)

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                request = self._todo.get(timeout=self._look_s if self._is_awaited() else None)
            except queue.Empty:
                request = _Request("hosts")
            if request is None:
                return
            try:
                self._send(request)
            except ClusterError as e:
                self._tell(f"{request.verb} {request.address}".strip(), str(e))

    def _send(self, request: "_Request") -> None:
        """Send one request to the provider and store the answer. Raises ClusterError if it fails."""
        stacks, stack = self._stacks(), self._stack
        address, rank = request.address, request.rank
        if request.verb == "hosts":
            before, self._hosts = self._hosts, list(within(_ANSWER_S, lambda: stacks.hosts(stack)))
            self.news += self._hosts != before
        elif request.verb == "take":
            within(_ANSWER_S, lambda: stacks.take(stack, address, rank, request.spare))
        elif self._is_still_gone(address):
            self._ranks[address] = within(_ANSWER_S, lambda: stacks.end(stack, address, rank))
        else:
            self._begun.discard(address)  # it is back and usable

    def _tell(self, what: str, trouble: str) -> None:
        if trouble != self._said:
            self._said = trouble
            self._say(f"{what}: {trouble}")

    def _is_awaited(self) -> bool:
        """Return True if a successor is not ready yet."""
        ready = {h.rank: h.address for h in self._hosts}
        return any(ready.get(rank, address) == address for address, rank in self._ranks.items())

    def _is_still_gone(self, address: str) -> bool:
        """Probe again: return True if the host may be terminated, which cannot be undone.

        A host found unfit is terminated even if it answers. Any other must fail two probes.
        """
        return address in self._is_sick or (self._is_silent(address) and self._is_silent(address))


def with_successors(seats: Sequence[Host], successors: dict[str, Host]) -> tuple[Host, ...]:
    """Return the seats with successors in place of the hosts that went."""
    return tuple(replace(s, address=successors[s.address].address) if s.address in successors else s for s in seats)
