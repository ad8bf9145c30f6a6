"""Precheck for a supervisor about to start its next attempt: finds within seconds the hosts that cannot train."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cluster.health import checks, history
from cluster.health.check import finding_on
from cluster.health.questions import SMI_S, Answers, Question, put_questions, quick_questions
from cluster.health.quick_check import about_host
from cluster.health.verdict import Problem, Severity
from cluster.health.xid import HANGS
from cluster.hosts import Host
from cluster.inventory import Cluster
from cluster.ssh.fanout import Executor
from cluster.ssh.limits import Limits

GLANCE_S = 5.0  # limit for a host to answer all questions
_QUESTION_S = 4.0
_ASKED = {"kernel-log", "smi", "instance", "basics", "devices"}
_HERE = Host(rank=-1, address="localhost", slots=1)


@dataclass(frozen=True, kw_only=True)
class HealthIssue:
    """Reason why a host must not train."""

    why: str
    verdict: Severity = Severity.UNKNOWN

    @property
    def must_go(self) -> bool:
        """Return True if only another machine helps."""
        return self.verdict is Severity.REPLACE

    @property
    def is_its_own(self) -> bool:
        """Return True if the machine itself must be repaired, not its jobs or mounts."""
        return self.verdict.rank > Severity.RESTART_JOB.rank


def glance(shared: Path, hosts: Sequence[Host], *, is_shared: bool = True) -> dict[str, HealthIssue]:
    """Return those of these hosts that must not train, by address. A host that times out twice is one of them.

    Runs on the master. The questions cover the GPUs' driver, the kernel log, memory, devices and the folders. Checks
    that compare hosts are left out.
    """
    cluster = Cluster(
        name="glance",
        hosts=(_HERE, *hosts),
        folder=Path(),
        shared=str(shared),
        project=str(shared),
        is_shared=is_shared,
    )
    with Executor(cluster) as reach:
        return in_two_looks(lambda some, patient: _look(reach, cluster, some, patient=patient), hosts)


def in_two_looks(
    look: Callable[[Sequence[Host], bool], Mapping[str, HealthIssue | None]], hosts: Sequence[Host]
) -> dict[str, HealthIssue]:
    """Return the reasons of two rounds, by address.

    Hosts that may only have been slow in the first round (None) are checked again, with more patience.
    """
    first = look(hosts, False)
    late = [h for h in hosts if h.address in first and first[h.address] is None]
    seen = {a: sight for a, sight in first.items() if sight} | dict(look(late, True) if late else {})
    return {a: sight or HealthIssue(why="did not answer in time, asked twice") for a, sight in seen.items()}


def _look(reach: Executor, cluster: Cluster, hosts: Sequence[Host], *, patient: bool) -> dict[str, HealthIssue | None]:
    """Return the reason for each host that must not train, None for a host that may only have been too slow.

    Args:
        patient: give nvidia-smi the time that it needs where persistence mode is off.
    """
    more_s = SMI_S if patient else 0.0
    limits = Limits(connect_s=3, total_s=GLANCE_S + more_s)
    answers, silent = put_questions(reach, (_HERE, *hosts), lambda h: _questions(cluster, h, more_s), limits=limits)
    past = history.read(answers.get(_HERE, {}).get("history"))
    seen: dict[str, HealthIssue | None] = {h.address: None for h in hosts if h in silent}
    for host in hosts:
        if host not in silent:
            problems = _problems(cluster, host, answers[host], past)
            if not patient and _is_late(answers[host]):
                seen[host.address] = None
                continue
            unfit = sorted((p for p in problems if p.unfit), key=lambda p: p.verdict.rank)
            if unfit:
                seen[host.address] = HealthIssue(why=unfit[-1].what, verdict=unfit[-1].verdict)
            elif any(a.status in ("timeout", "damaged") for a in answers[host].values()):
                seen[host.address] = None
    return seen


def _problems(cluster: Cluster, host: Host, mine: Answers, past: Sequence[history.QuickCheckRecord]) -> list[Problem]:
    about = about_host(cluster, host, mine, {}, past)
    found = [p for c in checks.quick_checks(cluster.shared) for p in finding_on(c, mine, about).problems]
    return [*found, *checks.driver_missing(mine, about)]


def _is_late(mine: Answers) -> bool:
    """Return True if nvidia-smi timed out and there is no sign that it hangs."""
    smi, log = mine.get("smi"), mine.get("kernel-log")
    hangs = any(words in (log.out if log else "") for words in HANGS)
    return smi is not None and smi.status == "timeout" and not smi.stuck and not hangs


def _questions(cluster: Cluster, host: Host, more_s: float) -> list[list[Question]]:
    """Return the subset of the quick level's questions that the precheck uses."""
    wanted = {"history"} if host == _HERE else _ASKED
    chains = [
        [_narrowed(q, wanted, more_s if q.name == "smi" else 0.0) for q in chain]
        for chain in quick_questions(cluster, host)
    ]
    kept = [[q for q in chain if q.parts or q.name in wanted or _is_place(q, host)] for chain in chains]
    return [chain for chain in kept if chain]


def _narrowed(question: Question, wanted: set[str], more_s: float) -> Question:
    """Return the question with a short limit, and of its parts only the wanted ones."""
    limit_s = min(question.limit_s, _QUESTION_S + more_s)
    parts = tuple(replace(p, limit_s=limit_s) for p in question.parts if p.name in wanted)
    return replace(question, limit_s=limit_s, parts=parts)


def _is_place(question: Question, host: Host) -> bool:
    return question.name.startswith("place:") and host != _HERE
