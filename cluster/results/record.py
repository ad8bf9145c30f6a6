"""What has become of a job's results: `results.json` in its folder."""

import contextlib
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from cluster.files import write_json
from cluster.ssh.onhost import trusted_files
from cluster.typed import from_json

FILE = "results.json"


@dataclass(frozen=True, kw_only=True)
class Results:
    """The last time they were sent, or were to be."""

    url: str  # of the folder that they have in S3
    time: str  # UTC
    attempt: int  # that had ended
    files: int = 0  # that are there
    bytes: int = 0  # that were moved; what was there already is not moved again
    error: str = ""  # why not all of it is there

    def __str__(self) -> str:
        if self.error:
            return f"not all in {self.url}: {self.error}"
        return f"in {self.url}, until attempt {self.attempt}, {self.time}"


def read_results(folder: Path) -> Results | None:
    """Of the job in this folder; None if none were sent."""
    try:
        return from_json(Results, json.loads(trusted_files.read_file(folder / FILE)))
    except (OSError, ValueError, RecursionError):
        return None


def write_results(folder: Path, results: Results) -> None:
    """Keep it, if that is possible: no job fails for it."""
    with contextlib.suppress(OSError):
        write_json(folder / FILE, dataclasses.asdict(results))
