"""Check: a question asked on the host, and a judge, which is a pure function of the answer."""

import xml.etree.ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cluster.clusterfile.instance_types import Hardware
from cluster.health.verdict import Problem, Severity, Unreadable, unknown
from cluster.hosts import Host
from cluster.ssh.onhost.telling_line import telling_line


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer to one question, or the reason why it is missing."""

    status: str  # ok, failed, timeout, missing (the tool), skipped (because of an earlier answer), damaged
    out: str = ""
    err: str = ""
    code: int | None = None
    seconds: float = 0.0
    stuck: bool = False  # could not even be killed
    disk_works: bool = False  # it timed out while its disk worked for other processes


@dataclass(frozen=True, kw_only=True)
class About:
    """Facts about the host that a judge may use besides the answer."""

    host: Host
    shared: str = "/shared"
    instance: Hardware | None = None  # None: not EC2, or a type we do not know
    gpus_on_bus: int = 0  # GPUs that the PCI bus has
    efas_on_bus: int | None = None  # EFA cards that the PCI bus has; None: not known
    has_no_gpus: bool = False  # neither its EC2 type nor its PCI bus has any
    jobs: frozenset[str] | None = frozenset()  # ids of the jobs that have not ended; None: not reported by the master
    over: frozenset[str] = frozenset()  # ids of the jobs that have ended, by their records on the master
    kernel_log: str = ""  # filtered lines of its kernel log
    mounts: str = ""  # its /proc/self/mounts
    needs_no_reset: bool = False  # True if the driver reports this for all its GPUs now
    seen_until_s: float | None = None  # seconds from this boot of the host to the last quick check


Judge = Callable[[str, About], list[Problem]]
TROUBLE = (Unreadable, ValueError, KeyError, IndexError, TypeError, AttributeError, xml.etree.ElementTree.ParseError)


class PartlyRead(Unreadable):
    """Error of a judge that could read only a part of an answer. `problems` are the problems of that part."""

    def __init__(self, why: str, problems: Sequence[Problem], *, is_told: bool = False) -> None:
        super().__init__(why)
        self.problems = list(problems)
        self.is_told = is_told  # another check reports what could not be read


@dataclass(frozen=True, kw_only=True)
class Check:
    """Question and its judge. The judge raises an exception for an answer that it cannot read."""

    name: str
    about: str  # subject of the check, in words
    question: str  # name of the question
    judge: Judge
    applies: Callable[[About], bool] = lambda about: True
    missing: str = ""  # how to get the tool
    on_timeout: Callable[[Answer, About], Problem] | None = None
    told_by: "Check | None" = None  # reports a tool that fails, hangs or lost a GPU, for all checks that use the tool
    reads_failure: bool = False  # the judge also reads the output of a failed command
    is_answer: Callable[[str], bool] = lambda out: False  # True if a failed command printed a complete answer
    on_slow: Callable[[Answer], Problem | None] | None = None  # judges how long the answer took
    on_failure: Callable[[Answer, About], list[Problem]] | None = None  # judges an answer that holds no report


@dataclass(frozen=True)
class Finding:
    """Result of one check on one host."""

    verdict: Severity
    problems: tuple[Problem, ...] = ()
    note: str = ""


def finding_on(check: Check, answers: Mapping[str, Answer], about: About) -> Finding:
    """Judge one check on one host. Return its problems, or the reason why there is no verdict."""
    finding = _finding(check, answers, about)
    if check.told_by is None or finding.verdict is not Severity.UNKNOWN:
        return finding
    teller = _finding(check.told_by, answers, about)
    if not any(p.unfit or p.verdict is Severity.UNKNOWN for p in teller.problems):
        return finding
    read = tuple(p for p in finding.problems if p.verdict is not Severity.UNKNOWN)
    return Finding(Severity.UNKNOWN, read, f"no answer: see {check.told_by.name}")


def _finding(check: Check, answers: Mapping[str, Answer], about: About) -> Finding:
    answer = answers.get(check.question)
    if not check.applies(about):
        return Finding(Severity.NOT_APPLICABLE)
    if answer is None:
        return Finding(Severity.NOT_APPLICABLE, note="not asked on this host")
    if _is_missing(answer):
        return Finding(Severity.NOT_APPLICABLE, note=check.missing)
    if answer.status == "damaged":
        return finding_of([_unsaid(check, f"its answer did not come whole: {answer.err}")])
    if answer.status == "skipped":
        return Finding(Severity.UNKNOWN, note="not asked: an earlier question was not answered")
    if answer.status == "timeout":
        late = f"no answer within {answer.seconds:.0f} s"
        return finding_of([check.on_timeout(answer, about) if check.on_timeout else _unsaid(check, late)])
    return _judged(check, answer, about)


def _judged(check: Check, answer: Answer, about: About) -> Finding:
    """Judge a received answer. If the command failed, read only output that it is known to print on failure."""
    is_answer = check.is_answer(answer.out)
    try:
        if check.on_failure and not is_answer and (answer.status == "failed" or answer.out.strip()):
            return finding_of(check.on_failure(answer, about))
        if answer.status == "failed" and not is_answer and not check.reads_failure:
            said = telling_line(answer.err) or telling_line(answer.out) or f"exit code {answer.code}"
            return finding_of([_unsaid(check, said[:100])])
        slow = check.on_slow(answer) if check.on_slow else None
        return finding_of([*check.judge(answer.out, about), *([slow] if slow else [])])
    except PartlyRead as e:
        if e.is_told:
            return Finding(Severity.UNKNOWN, tuple(e.problems), str(e))
        return finding_of([*e.problems, _unreadable(check, e)])
    except TROUBLE as e:
        return finding_of([_unreadable(check, e)])


def _is_missing(answer: Answer) -> bool:
    """Return True if the host lacks the tool. A tool without one of its libraries is installed, but broken."""
    no_command = answer.code == 127 and "shared librar" not in answer.err + answer.out
    return answer.status == "missing" or no_command


def _unreadable(check: Check, e: Exception) -> Problem:
    return _unsaid(check, f"its answer cannot be read ({type(e).__name__}: {e})"[:120])


def _unsaid(check: Check, why: str) -> Problem:
    return unknown(check.name, f"{check.name}: {why}", means=f"not known: {check.about}")


def finding_of(problems: Sequence[Problem]) -> Finding:
    """Return a finding with these problems and the worst of their verdicts, or OK if there are none."""
    worst = max((p.verdict for p in problems), key=lambda v: v.rank, default=Severity.OK)
    return Finding(worst, tuple(problems))
