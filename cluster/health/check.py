"""A check: a question asked on the host, and a pure judge of the answer."""

import xml.etree.ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cluster.health.instance import Instance
from cluster.health.verdict import Problem, Unreadable, Verdict, unknown
from cluster.hosts import Host


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one question, or why there is none."""

    status: str  # ok, failed, timeout, missing (the tool), skipped (an earlier one made it pointless), damaged
    out: str = ""
    err: str = ""
    code: int | None = None
    seconds: float = 0.0
    stuck: bool = False  # could not even be killed
    disk_works: bool = False  # it ran out of time while the disk that it waited for did others' work


@dataclass(frozen=True, kw_only=True)
class About:
    """What a judge may know about the host besides the answer."""

    host: Host
    shared: str = "/shared"
    instance: Instance | None = None  # None: not EC2, or a type we do not know
    has_gpus: bool = False  # the PCI bus has them
    jobs: frozenset[str] | None = frozenset()  # ids of the jobs that have not ended; None: the master does not say
    over: frozenset[str] = frozenset()  # ids of the jobs that have ended, by their records on the master
    kernel_log: str = ""  # what the driver said there
    mounts: str = ""  # its /proc/self/mounts
    needs_no_reset: bool = False  # as the driver says of all its GPUs now
    seen_until_s: float | None = None  # seconds since boot of the last look at this boot of the host


Judge = Callable[[str, About], list[Problem]]
TROUBLE = (Unreadable, ValueError, KeyError, IndexError, TypeError, AttributeError, xml.etree.ElementTree.ParseError)


@dataclass(frozen=True, kw_only=True)
class Check:
    """A question and its judge. The judge raises an exception for an answer that it cannot read."""

    name: str
    about: str  # what it looks at, in words
    question: str  # name of the question
    judge: Judge
    applies: Callable[[About], bool] = lambda about: True
    missing: str = ""  # how to get the tool
    on_timeout: Callable[[Answer, About], Problem] | None = None
    told_by: str = ""  # the check that says it when there is no answer in time
    reads_failure: bool = False  # the judge reads what a command that failed printed


@dataclass(frozen=True)
class Finding:
    """What one check says about one host."""

    verdict: Verdict
    problems: tuple[Problem, ...] = ()
    note: str = ""


def finding_on(check: Check, answers: Mapping[str, Answer], about: About) -> Finding:
    """Judge one check on one host: its problems, or why there is no verdict."""
    if not check.applies(about):
        return Finding(Verdict.NOT_APPLICABLE)
    answer = answers.get(check.question)
    if answer is None:
        return Finding(Verdict.NOT_APPLICABLE, note="not asked on this host")
    if answer.status == "missing" or answer.code == 127:  # the shell's "command not found"
        return Finding(Verdict.NOT_APPLICABLE, note=check.missing)
    if answer.status == "damaged":
        return finding_of([_unsaid(check, f"its answer did not come whole: {answer.err}")])
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
        return finding_of([_unsaid(check, last[0][:100])])
    try:
        return finding_of(check.judge(answer.out, about))
    except TROUBLE as e:
        return finding_of([_unsaid(check, f"its answer cannot be read ({type(e).__name__}: {e})"[:120])])


def _unsaid(check: Check, why: str) -> Problem:
    return unknown(check.name, f"{check.name}: {why}", means=f"not known: {check.about}")


def finding_of(problems: Sequence[Problem]) -> Finding:
    """These problems with the worst of their verdicts, or ok if there are none."""
    worst = max((p.verdict for p in problems), key=lambda v: v.rank, default=Verdict.OK)
    return Finding(worst, tuple(problems))
