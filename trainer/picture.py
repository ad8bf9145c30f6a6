"""Pictures into files, without a display."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.errors import TrainerError


@contextmanager
def picture(out: Path, rows: int = 1, columns: int = 1, **options: Any) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes to draw on, written at the end. Raises TrainerError if `out` cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, layout="constrained", **options)
    try:
        yield figure, axes
        _save(figure, out)
    finally:
        plt.close(figure)


def _save(figure: Any, out: Path) -> None:
    try:
        figure.savefig(out, dpi=120)
    except (OSError, ValueError) as e:
        raise TrainerError(f"{out} cannot be written: {e}") from e
