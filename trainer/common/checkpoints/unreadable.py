"""Refusal to start from scratch over checkpoints that exist but cannot be read, unless the operator requests it."""

import argparse
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from trainer.common.checkpoints.write_lease import check_lease, own_attempt, own_folder
from trainer.common.files.errors import CommonError
from trainer.common.files.plural import counted

SHOWN = 3  # maximum number of checkpoints in a message


def add_from_scratch_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that allow a training to start from scratch although there are unreadable checkpoints."""
    text = "where checkpoints exist and none can be read: set them aside and begin at step 0"
    parser.add_argument("--from-scratch", action="store_true", help=f"{text}; in a job: its first attempt only")
    parser.add_argument("--from-scratch-attempt", type=int, metavar="N", help="the same, of a job's attempt N only")


def may_begin_anew(arguments: argparse.Namespace) -> bool:
    """Return True if this attempt may start from scratch. A job's retry may not: its attempt has another number."""
    attempt = own_attempt()
    return (arguments.from_scratch and attempt <= 1) or (attempt > 0 and attempt == arguments.from_scratch_attempt)


def refuse(folder: Path, damage: Sequence[str]) -> NoReturn:
    """Raise the refusal to start at step 0. Its message names the files and the command that starts from scratch."""
    job = own_folder() if own_attempt() else None
    remedy = f"'inv jobs.resume {job.name} --from-scratch'" if job else "--from-scratch"
    raise CommonError(
        f"{folder}: {unreadable_summary(damage)}. Nothing was begun and all files are kept. Bring readable files "
        f"back, or begin anew beside them with {remedy}"
    )


def unreadable_summary(damage: Sequence[str]) -> str:
    """Return the number of unreadable checkpoints, and the errors of the first ones."""
    more = f"; {len(damage) - SHOWN} more" if len(damage) > SHOWN else ""
    return f"{counted(len(damage), 'checkpoint')} found and none can be read: {'; '.join(damage[:SHOWN])}{more}"


def set_aside(folder: Path) -> Path:
    """Rename a folder of unreadable checkpoints to the first free of `NAME.unreadable-1`, `-2`, ... and return that.

    Raises:
        CommonError: it cannot be renamed.
    """
    check_lease()
    names = (folder.with_name(f"{folder.name}.unreadable-{number}") for number in itertools.count(1))
    aside = next(name for name in names if not os.path.lexists(name))
    try:
        folder.rename(aside)
    except OSError as e:
        raise CommonError(f"{folder} cannot be renamed to {aside.name}: {e.strerror}") from e
    return aside


def listed(folder: Path) -> list[str]:
    """Return the names of the files in a folder of checkpoints, or [] if the folder does not exist.

    Raises:
        CommonError: the folder cannot be listed, or is a broken link. Its content is then unknown.
    """
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError as e:
        if folder.is_symlink():
            raise CommonError(f"{folder} is a link to {folder.readlink()}, which is missing: mount it first") from e
        return []
    except OSError as e:
        raise CommonError(f"{folder} cannot be listed: {e.strerror}") from e
