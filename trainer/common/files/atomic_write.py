"""Atomic writing of files and folders."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, renamed to it on success, removed on failure."""
    partial = path.with_name(f".{path.name}.partial")
    _remove(partial)  # a killed writer's
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        _remove(partial)
        raise


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
