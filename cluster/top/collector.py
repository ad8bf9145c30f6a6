"""Gathering of frames of a whole cluster: queries all hosts in parallel, and shows a frame once most have answered."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh.agent_exchange import AWAITED
from cluster.ssh.fanout import Executor
from cluster.ssh.program import program
from cluster.ssh.remote_agent import AgentAnswer, Dialogue
from cluster.top.outliers import with_odd
from cluster.top.reading import Nonsense, jobs_of, rates, vitals_of, with_metrics
from cluster.top.snapshot import ClusterSnapshot, HostState, JobSeen, Rates, Visibility, Vitals

FRAME_S = 0.3  # time from the queries to the frame
SILENT_S = 3.0  # after this time without an answer a host counts as silent
LOOK_S = 20.0  # time limit of a single frame, connections included; a busy host answers within it
TRIES = 2  # failed attempts after which a host's first answers are no longer awaited
FIRST_S = 10.0  # the same limit for the first answer, for which Python has to start there
SPREAD_S = 0.12  # queries are spread over this time, so that answers do not queue here


class _Memory:
    """Recent answers of a host."""

    def __init__(self) -> None:
        self.vitals: Vitals | None = None
        self.rates: Rates | None = None
        self.nonsense = ""
        self.took_s: tuple[float, ...] = ()  # round-trip times of its last two answers
        self.ping_s: tuple[float, ...] = ()  # ping times in these answers

    def note(self, told: AgentAnswer) -> None:
        """Take in an answer."""
        try:
            now = vitals_of(told.answer)
        except Nonsense as e:
            self.nonsense = str(e)
            return
        if self.vitals:
            self.rates = rates(self.vitals, now)
        self.vitals, self.nonsense = now, ""
        self.took_s = (*self.took_s[-1:], told.took_s)
        self.ping_s = () if now.ping_s is None else (*self.ping_s[-1:], now.ping_s)


class Gatherer:
    """Collector of the hosts' answers: `with Gatherer(reach, cluster, hosts) as g: g.frame()`."""

    def __init__(self, reach: Executor, cluster: Cluster, hosts: Sequence[Host]) -> None:
        self._cluster, self._hosts = cluster, tuple(hosts)
        asked = program("cluster.top.onhost.host", cluster.shared)
        everyone = dict.fromkeys((cluster.master, *hosts))  # the master reports the jobs, even if it is not shown
        self._dialogue = Dialogue(reach, everyone, asked, lambda h: [pinged_by(h, cluster.hosts)])
        self._memory = {h: _Memory() for h in everyone}
        self._jobs: tuple[JobSeen, ...] = ()
        self._metrics: Mapping[str, Mapping[str, Any]] = {}
        self._jobs_trouble = ""

    def __enter__(self) -> "Gatherer":
        self._dialogue.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._dialogue.__exit__(*exc)

    def ask(self) -> None:
        """Query every host that owes no answer, and take in answers that arrive meanwhile."""
        self._ask(list(self._memory))

    def _ask(self, hosts: Sequence[Host]) -> None:
        began, gap_s = time.monotonic(), SPREAD_S / len(self._memory)
        for n, host in enumerate(hosts):
            self._dialogue.ask(host, host == self._cluster.master)
            self.listen(max(0.0, began + (n + 1) * gap_s - time.monotonic()))

    def listen(self, timeout_s: float) -> None:
        """Take in answers that arrive within this time."""
        deadline = time.monotonic() + timeout_s
        while True:
            for told in self._dialogue.listen(deadline - time.monotonic()):
                self._memory[told.host].note(told)
                if told.host == self._cluster.master and isinstance(told.answer, dict) and told.answer.get("jobs"):
                    self._note_jobs(told.answer["jobs"])
            if time.monotonic() >= deadline:
                return

    def listen_until_answered(self, timeout_s: float) -> None:
        """Take in answers until no host that has answered before owes one, or the time is over."""
        deadline = time.monotonic() + timeout_s
        while self._owing() and time.monotonic() < deadline:
            self.listen(min(0.01, deadline - time.monotonic()))

    def first_answers(self, timeout_s: float) -> None:
        """Query until every host has answered twice or is known to be missing, or the time is over.

        Slow hosts are waited for. Hosts that have answered are not queried meanwhile, so that they owe no answer.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            lacking = [h for h, memory in self._memory.items() if not memory.rates]
            self._ask(lacking)
            self.listen(0.2)
            if all(self._memory[h].rates or self._is_hopeless(h) for h in lacking):
                return

    def frame(self) -> ClusterSnapshot:
        """Return a frame of all hosts in their current state."""
        seen = tuple(self._seen(host) for host in self._hosts)
        return ClusterSnapshot(
            time=time.time(),
            cluster=self._cluster.name,
            hosts=with_odd(seen),
            jobs=tuple(self._with_beats(job) for job in self._jobs),
            jobs_trouble=self._jobs_trouble or self._master_trouble(),
        )

    def _owing(self) -> bool:
        """Return True if a host that has answered before owes an answer."""
        heard = (h for h, memory in self._memory.items() if memory.vitals and not self._dialogue.trouble(h))
        return any(self._dialogue.waits_s(h) > 0 for h in heard)

    def _is_hopeless(self, host: Host) -> bool:
        """Return True if it is no use to wait longer for the host."""
        return self._sight(host)[0] is Visibility.NONSENSE or self._dialogue.failures(host) >= TRIES

    def _sight(self, host: Host) -> tuple[Visibility, str]:
        """Return the host's visibility, and why it is not seen."""
        trouble, waits_s = self._dialogue.trouble(host), self._dialogue.waits_s(host)
        if nonsense := self._memory[host].nonsense:
            return Visibility.NONSENSE, nonsense
        if said := self._dialogue.nonsense(host):
            return Visibility.NONSENSE, f"what it says is no answer: {said}"
        if trouble not in ("", AWAITED):
            return Visibility.GONE, trouble
        if waits_s > (FIRST_S if trouble else SILENT_S):
            return Visibility.SILENT, f"no answer for {waits_s:.0f} s"
        return (Visibility.AWAITED, trouble) if trouble else (Visibility.SEEN, "")

    def _seen(self, host: Host) -> HostState:
        memory, waits_s = self._memory[host], self._dialogue.waits_s(host)
        sight, why = self._sight(host)
        vitals = memory.vitals
        if vitals and vitals.ranks:
            ranks = tuple(with_metrics(r, self._metrics.get(r.job, {})) for r in vitals.ranks)
            vitals = Vitals(**{**vars(vitals), "ranks": ranks})
        recent = (*memory.took_s[-2:], *([waits_s] if waits_s > 0 else []))[-2:]
        return HostState(
            host=host,
            sight=sight,
            why=why,
            answer_s=min(recent) if recent else None,
            ping_s=max(memory.ping_s, default=None),
            vitals=vitals,
            rates=memory.rates if sight is Visibility.SEEN else None,
        )

    def _note_jobs(self, told: Any) -> None:
        try:
            self._jobs, self._metrics, self._jobs_trouble = jobs_of(told)
        except Nonsense as e:
            self._jobs_trouble = f"the master: {e}"

    def _with_beats(self, job: JobSeen) -> JobSeen:
        """Return the job with the step from its ranks' heartbeats, which are newer than its metrics."""
        steps = [
            rank.step
            for memory in self._memory.values()
            for rank in (memory.vitals.ranks if memory.vitals else ())
            if (rank.job, rank.attempt) == (job.id, job.attempt)
        ]
        step = max(steps, default=0) or job.step
        return JobSeen(**{**vars(job), "step": step})

    def _master_trouble(self) -> str:
        trouble = self._dialogue.trouble(self._cluster.master)
        return "" if trouble in ("", AWAITED) else f"jobs are not known: the master ({self._cluster.master}): {trouble}"


def pinged_by(host: Host, hosts: Sequence[Host]) -> list[str]:
    """Return the addresses of up to three other hosts to ping, so that each host is pinged by three."""
    at, number = hosts.index(host), len(hosts)
    places = {(at + step) % number for step in (1, number // 2, number - 1)} - {at}
    return [hosts[place].address for place in sorted(places)]


def one_frame(reach: Executor, cluster: Cluster, hosts: Sequence[Host], timeout_s: float = LOOK_S) -> ClusterSnapshot:
    """Return one frame, as soon as all hosts that are there have answered twice."""
    with Gatherer(reach, cluster, hosts) as gatherer:
        with contextlib.suppress(KeyboardInterrupt):
            gatherer.first_answers(timeout_s)
        return gatherer.frame()
