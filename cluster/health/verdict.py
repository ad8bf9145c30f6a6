"""What a check may conclude: a verdict, what was seen, what it means, and the one next action."""

import enum
from dataclasses import dataclass


class Verdict(enum.Enum):
    """How serious it is, by how much the remedy costs. The worst is last."""

    OK = "ok"
    NOT_APPLICABLE = "not-applicable"  # nothing to look at here, or no tool to look with
    WATCH = "watch"  # may train; look again
    UNKNOWN = "unknown"  # no answer, or one that cannot be read: never ok
    RESTART_JOB = "restart-job"  # the machine is good: do the action, then start the job (again)
    RESET_GPU = "reset-gpu"
    REBOOT = "reboot"
    REPLACE = "replace"

    @property
    def rank(self) -> int:
        """Larger is worse."""
        return list(Verdict).index(self)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something wrong on a host, and the one thing to do about it."""

    check: str  # which check found it
    what: str  # what was seen
    means: str  # why that matters
    verdict: Verdict
    do: str  # the next action, in words
    command: str = ""  # the action's command; {ranks} and {addresses} become those of all hosts that have it
    unfit: bool = True  # the host must not train before the action is done

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for problems that a report shows as one, because they differ only in what was seen."""
        return (self.check, self.verdict, self.means, self.do, self.command, self.unfit)


class Unreadable(ValueError):
    """A judge cannot read an answer, so the check's verdict is unknown."""


def unknown(check: str, what: str, *, means: str = "", command: str = "", unfit: bool = False) -> Problem:
    """The problem for a check without a readable answer."""
    return Problem(
        check=check,
        what=what,
        means=means or "this check cannot say whether the host is well",
        verdict=Verdict.UNKNOWN,
        do="ask the host yourself",
        unfit=unfit,
        command=command or "inv run --hosts {ranks} -- uptime",
    )
