"""Result of a check: a verdict, what was seen, what it means, and the one next action."""

import enum
from dataclasses import dataclass


class Severity(enum.Enum):
    """Severity of a problem, by the cost of the remedy. The worst is last."""

    OK = "ok"
    NOT_APPLICABLE = "not-applicable"  # nothing to look at here, or no tool to look with
    WATCH = "watch"  # may train; look again
    UNKNOWN = "unknown"  # no answer, or one that cannot be read: never ok
    RESTART_JOB = "restart-job"  # the machine is good: run the action, then start the job (again)
    RESET_GPU = "reset-gpu"
    REBOOT = "reboot"
    REPLACE = "replace"

    @property
    def rank(self) -> int:
        """Return the severity as a number. Larger is worse."""
        return list(Severity).index(self)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Problem of a host, and the one action against it."""

    check: str  # which check found it
    what: str  # what was seen
    means: str  # why that matters
    verdict: Severity
    do: str  # the next action, in words
    command: str = ""  # the action's command; {ranks} and {addresses} stand for those of the affected hosts
    unfit: bool = True  # the host must not train before the action is done

    @property
    def kind(self) -> tuple[object, ...]:
        """Return a key that is equal for problems that a report groups. They differ only in what was seen."""
        return (self.check, self.verdict, self.means, self.do, self.command, self.unfit)


class Unreadable(ValueError):
    """Error of a judge that cannot read an answer, so that the check's verdict is unknown."""


def unknown(check: str, what: str, *, means: str = "", command: str = "", unfit: bool = False) -> Problem:
    """Return the problem for a check without a readable answer."""
    return Problem(
        check=check,
        what=what,
        means=means or "this check cannot say whether the host is well",
        verdict=Severity.UNKNOWN,
        do="ask the host yourself",
        unfit=unfit,
        command=command or "inv run --hosts {ranks} -- uptime",
    )
