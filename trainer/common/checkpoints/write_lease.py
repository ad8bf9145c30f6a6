"""Write permission for a job's folder: only the newest attempt may write. An older attempt is refused before it writes.

The job's supervisor passes each attempt its number and the job's folder in environment variables. It records the number
of the current attempt in `lease.json` in that folder. Outside a job there is no lease, and every process may write.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from trainer.common.files.errors import TrainerError

ATTEMPT, FILE = "DLAMI_ATTEMPT", "lease.json"
JOB_FOLDERS = ("DLAMI_JOB_FOLDER", "DLAMI_JOB_DIR")  # either may name the job's folder


class Replaced(TrainerError):
    """Error for an attempt that may not write any more, because a newer attempt of its job has begun."""


def own_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the job's folder; None outside a job."""
    return next((Path(environment[name]) for name in JOB_FOLDERS if environment.get(name)), None)


def own_attempt(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of this attempt; 0 outside a job."""
    own = environment.get(ATTEMPT, "")
    return int(own) if own.isdecimal() else 0


def check_lease(environment: Mapping[str, str] = os.environ) -> None:
    """Check that this process belongs to its job's current attempt, or to no job.

    Raises:
        Replaced: the job's `lease.json` names a newer attempt.
    """
    folder = own_folder(environment)
    own = own_attempt(environment)
    if not folder or not own:
        return
    current = _current_attempt(folder / FILE)
    if current is not None and own < current:
        raise Replaced(
            f"attempt {own} of {folder.name} may not write any more: attempt {current} has begun "
            f"({folder / FILE}); this one ends without saving"
        )


def _current_attempt(file: Path) -> int | None:
    try:
        found = json.loads(file.read_text())["attempt"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        print(f"warning: {file} cannot be read ({e!r}); this attempt goes on", file=sys.stderr, flush=True)
        return None
    return found if type(found) is int else None
