"""Record of a job's upload: `results.json` in the job's folder."""

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
    """Outcome of the last upload."""

    url: str  # URL of their folder in S3
    time: str  # UTC
    attempt: int  # last attempt that had ended
    files: int = 0  # files in S3
    bytes: int = 0  # bytes that were uploaded; files already there are skipped
    error: str = ""  # why the upload is incomplete

    def __str__(self) -> str:
        if self.error:
            return f"not all in {self.url}: {self.error}"
        return f"in {self.url}, until attempt {self.attempt}, {self.time}"


def read_results(folder: Path) -> Results | None:
    """Return the last upload of the job in this folder; None if there is no readable record."""
    try:
        return from_json(Results, json.loads(trusted_files.read_file(folder / FILE)))
    except (OSError, ValueError, RecursionError):
        return None


def write_results(folder: Path, results: Results) -> None:
    """Write the record. An OSError is ignored: it must not fail the job."""
    with contextlib.suppress(OSError):
        write_json(folder / FILE, dataclasses.asdict(results))
