"""A check: a question asked on the host, and a pure judge of the answer."""

import xml.etree.ElementTree
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.health.instance import Instance
from cluster.health.verdict import Problem, Unreadable, Verdict, unknown
from cluster.hosts import Host


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of one question."""

    status: str  # ok, failed, timeout, missing (the tool), skipped (an earlier one made it pointless), damaged
    out: str = ""
    err: str = ""
    code: int | None = None
    seconds: float = 0.0
    stuck: bool = False  # could not even be killed
    disk_works: bool = False  # it ran out of time while the disk that it waited for did others' work


@dataclass(frozen=True, kw_only=True)
class About:
    """What a judge may know of the host besides the answer."""

    host: Host
    shared: str = "/shared"
    instance: Instance | None = None  # None: not EC2, or a type we do not know
    has_gpus: bool = False  # the PCI bus has them
    jobs: frozenset[str] | None = frozenset()  # ids of the jobs that have not ended; None: the master does not say
    kernel_log: str = ""  # what the driver said there
    mounts: str = ""  # its /proc/self/mounts
    seen_until_s: float | None = None  # seconds since boot of the last look at this boot of the host


Judge = Callable[[str, About], list[Problem]]
TROUBLE = (Unreadable, ValueError, KeyError, IndexError, TypeError, AttributeError, xml.etree.ElementTree.ParseError)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question and its judge. The judge raises for what it cannot read."""

    name: str
    about: str  # what it looks at, in words
    ask: str  # name of the question
    judge: Judge
    applies: Callable[[About], bool] = lambda about: True
    missing: str = ""  # how to get the tool
    on_timeout: Callable[[Answer, About], Problem] | None = None
    told_by: str = ""  # the check that says it when there is no answer in time
    reads_failure: bool = False  # the judge reads what a command that failed printed


@dataclass(frozen=True)
class Finding:
    """What a check says of one host."""

    verdict: Verdict
    problems: tuple[Problem, ...] = ()
    note: str = ""


def look(check: Check, answers: Mapping[str, Answer], about: About) -> Finding:
    """One check's finding on one host: problems, or why there is no verdict."""
    if not check.applies(about):
        return Finding(Verdict.NOT_APPLICABLE)
    answer = answers.get(check.ask)
    if answer is None:
        return Finding(Verdict.NOT_APPLICABLE, note="not asked on this host")
    if answer.status == "missing" or answer.code == 127:  # the shell's "command not found"
        return Finding(Verdict.NOT_APPLICABLE, note=check.missing)
    if answer.status == "damaged":
        return finding([_unsaid(check, f"its answer did not come whole: {answer.err}")])
    if answer.status == "skipped":
        return Finding(Verdict.UNKNOWN, note="not asked: an earlier question was not answered")
    if answer.status == "timeout" and check.told_by:
        return Finding(Verdict.UNKNOWN, note=f"no answer in time: see {check.told_by}")
    if answer.status == "timeout":
        problem = (
            check.on_timeout(answer, about)
            if check.on_timeout
            else _unsaid(check, f"no answer within {answer.seconds:.0f} s")
        )
        return Finding(problem.verdict, (problem,))
    if answer.status == "failed" and not check.reads_failure:
        last = (answer.err or answer.out).strip().splitlines()[-1:] or [f"exit code {answer.code}"]
        return finding([_unsaid(check, last[0][:100])])
    try:
        return finding(check.judge(answer.out, about))
    except TROUBLE as e:
        return finding([_unsaid(check, f"its answer cannot be read ({type(e).__name__}: {e})"[:120])])


def _unsaid(check: Check, why: str) -> Problem:
    return unknown(check.name, f"{check.name}: {why}", means=f"not known: {check.about}")


def finding(problems: Sequence[Problem]) -> Finding:
    """Problems with the worst of their verdicts; ok without any."""
    worst = max((p.verdict for p in problems), key=lambda v: v.rank, default=Verdict.OK)
    return Finding(worst, tuple(problems))


def read_answers(raw: Mapping[str, Mapping[str, Any]]) -> dict[str, Answer]:
    """The probe's JSON as answers; one that is not as long as it was, or not the same, is damaged and says nothing."""
    return {name: _read_answer(dict(fields)) for name, fields in raw.items()}


def _read_answer(fields: dict[str, Any]) -> Answer:
    size, crc = fields.pop("size", None), fields.pop("crc", None)
    answer = Answer(**fields)
    said = answer.out.encode()
    if answer.status == "ok" and (size, crc) != (len(said), zlib.crc32(said)):
        return Answer(status="damaged", err=f"{len(said)} bytes of it came, not the {size} that it had")
    return answer


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One question, as the probe takes it: a shell command, or a sense with its arguments, or several such senses.

    Several are asked in one child and answered by their own names: for what hardly can hang, as a child costs more.
    """

    name: str
    limit_s: float
    command: str = ""
    sense: str = ""
    arguments: tuple[Any, ...] = ()
    tool: str = ""  # must be on PATH, or the answer is `missing`
    unless: tuple[str, ...] = field(default=())  # an earlier question, and words in its answer that forbid this
    parts: tuple["Ask", ...] = ()
    disk_of: str = ""  # a local folder: what waits for its disk, while that works, is given more time

    def record(self) -> dict[str, Any]:
        """As the probe takes it."""
        said: dict[str, Any] = {"name": self.name, "limit_s": self.limit_s, "tool": self.tool, "unless": self.unless}
        if self.disk_of:
            said["disk_of"] = self.disk_of
        if self.command:
            return {**said, "command": self.command}
        if self.parts:
            return {**said, "parts": [part.record() for part in self.parts]}
        return {**said, "sense": self.sense, "arguments": self.arguments}
