"""Terms of a job that a person can set when it starts and when it is resumed. Each field brings its own flag.

A field that is added here is an option of every task that starts a job, on hosts and on Kubernetes. It is recorded in
`job.json` and kept when the job is resumed. What uses it reads `job.spec`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from cluster.errors import ConfigError
from cluster.terminal import counted

LEAST_HANG_S = 5  # hosts report every 3 s


def number_of_ranks(text: str, name: str = "--np") -> int | None:
    """Parse a number of ranks; None if nothing was typed. Raises ConfigError."""
    if text and not (_is_number(text) and int(text) > 0):
        raise ConfigError(f"{name} is {text!r}, expected one number of ranks, such as 4")
    return int(text) if text else None


def seconds(text: str, name: str, least: int = LEAST_HANG_S) -> float | None:
    """Parse seconds, 0 or at least so many; None if nothing was typed. Raises ConfigError."""
    if text and not (_is_number(text) and (int(text) >= least or int(text) == 0)):
        raise ConfigError(f"{name} is {text!r}, expected seconds: 0, or {least} and more")
    return float(text) if text else None


def duration_s(text: str, name: str) -> float | None:
    """Parse a duration such as 90s, 10m, 2h or 1d, in seconds; None if nothing was typed. Raises ConfigError."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    if text and not (_is_number(text[:-1]) and text[-1] in units):
        raise ConfigError(f"{name} is {text!r}, expected a time as 90s, 10m, 2h or 1d")
    return float(int(text[:-1]) * units[text[-1]]) if text else None


def _attempts(text: str, name: str) -> int:
    if not _is_number(text):
        raise ConfigError(f"{name} is {text}, expected a number, 0 or more")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 7


def term(default: Any, help: str, parse: Callable[[str, str], Any]) -> Any:
    """Declare a term.

    help: text of its flag in `--help` and docs/tasks.md.
    parse: makes the value from the text and the flag's name. Raises ConfigError.
    """
    return field(default=default, metadata={"help": help, "parse": parse})


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Terms on which a job runs and is retried."""

    heal: bool = True  # retry failed attempts; flags --no-heal, and --heal of `inv jobs.resume`
    min_np: int | None = term(
        None, "ranks that it may go on with while hosts are missing; all by default", number_of_ranks
    )
    attempts_per_hour: int = term(
        6, "how often it may begin again by itself, 0: as often as it takes; by default 6", _attempts
    )
    hang_after: float | None = term(
        None, "seconds without progress that are a hang, 0: nothing is; by default as docs/jobs.md says", seconds
    )

    time_limit: float | None = term(
        None, "end the job after this time over all attempts, as 90s, 10m, 2h or 1d; never by default", duration_s
    )

    def check(self, np: int) -> None:
        """Raise ConfigError if a job with so many ranks cannot run on these terms."""
        if self.min_np is not None and self.min_np > np:
            raise ConfigError(f"--min-np is {self.min_np}, and {counted(np, 'rank')} are to train: give at most {np}")


FLAGS = tuple(f for f in fields(Terms) if f.metadata)
"""Terms that are typed as `--name value`."""


def typed_terms(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the terms that were typed, by field. Raises ConfigError.

    given: text of each flag by field, "" where it was not typed.
    """
    typed = {f: str(given[f.name]) for f in FLAGS if given[f.name] not in ("", None)}  # scripts may give numbers
    return {f.name: f.metadata["parse"](text, f"--{f.name.replace('_', '-')}") for f, text in typed.items()}
