"""Replacement of dead hosts while a job recovers.

The master calls AWS with its own role, in parallel to everything else.
"""

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cluster.healing.choice import Chosen
from cluster.healing.memory import own_failures
from cluster.hosts import Host
from cluster.inventory import ROOT
from cluster.jobs.presence import silent_hosts
from cluster.ssh.onhost.telling_line import telling_line

LOOK_S = 5.0  # between queries for successors, while one is awaited
_ANSWER_S = 120.0
Ask = Callable[[Sequence[str]], Any]


class Replacing:
    """Replacement of a stack's instances, in a thread of its own. Does nothing without a stack.

    stack: its region and name, as `us-east-1/training`. say: called from that thread with AWS's errors.
    """

    def __init__(
        self,
        stack: str,
        say: Callable[[str], None],
        ask: Ask | None = None,
        look_s: float = LOOK_S,
        is_silent: Callable[[str], bool] = lambda address: bool(silent_hosts([address])),
    ) -> None:
        self._is_of_a_stack, self._say, self._look_s, self._is_silent = bool(stack), say, look_s, is_silent
        self._ask = ask or (lambda words: _ask_aws(stack, words))
        self._todo: queue.SimpleQueue[tuple[str, ...] | None] = queue.SimpleQueue()
        self._begun: set[str] = set()  # addresses that are being replaced
        self._ranks: dict[str, int] = {}  # address of a terminated host -> the rank in the stack that its successor has
        self._hosts: list[Host] = []  # usable ones, by the last query
        self.news = 0  # how often the usable hosts have changed
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._is_sick: set[str] = set()  # hosts to replace although they answer
        self._said = ""

    def begin(self, chosen: Chosen, job_hosts: Sequence[Host]) -> None:
        """Start the replacement of each host that is gone, once.

        If a spare took its place, its successor is the new spare.

        If most hosts are gone at once, the network failed, and none is replaced.
        """
        others = [h.address for h in job_hosts if not h.is_local]
        out = {**chosen.missing, **chosen.replaced}
        gone, silent = [a for a, u in out.items() if u.is_gone], {a for a, u in out.items() if u.is_silent}
        for address in own_failures(gone, others) if self._is_of_a_stack else ():
            if address not in self._begun:
                self._begun.add(address)
                self._is_sick |= {address} - silent
                spare = chosen.taken.get(address)
                seat = next(s for s in chosen.seats if s.address == (spare or address))
                if spare:
                    self._todo.put(("take", address, str(seat.rank), spare))
                self._todo.put(("end", address, str(seat.rank)))
                self._todo.put(("hosts",))
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
                words = self._todo.get(timeout=self._look_s if self._is_awaited() else None)
            except queue.Empty:
                words = ("hosts",)
            if words is None:
                return
            try:
                if words[0] == "end" and not self._is_still_gone(words[1]):
                    self._begun.discard(words[1])  # it is back and usable
                    continue
                self._heard(words, self._ask(words))
            except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError) as e:
                self._tell(" ".join(words[:2]), str(e))

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

    def _heard(self, words: tuple[str, ...], said: Any) -> None:
        if words[0] == "hosts":
            before, self._hosts = self._hosts, [Host(**one) for one in said["hosts"]]
            self.news += self._hosts != before
        elif words[0] == "end":
            self._ranks[words[1]] = int(said["rank"])


def with_successors(seats: Sequence[Host], successors: dict[str, Host]) -> tuple[Host, ...]:
    """Return the seats with successors in place of the hosts that went."""
    return tuple(replace(s, address=successors[s.address].address) if s.address in successors else s for s in seats)


def _ask_aws(stack: str, words: Sequence[str]) -> Any:
    """Return the answer of `cfn.succession`. Raises ValueError with AWS's message if it fails."""
    region, _, name = stack.partition("/")
    asked = subprocess.run(
        [sys.executable, "-m", "cfn.succession", region, name, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_ANSWER_S,
        stdin=subprocess.DEVNULL,
    )
    if asked.returncode:
        raise ValueError(telling_line(asked.stderr) or f"exit code {asked.returncode}")
    return json.loads(asked.stdout)
