"""Plot of a job's training curves: `python -m trainer.plot JOBDIR --out curves.png`. Reads metrics.jsonl only."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.common.files.commandline import TrainerParser
from trainer.common.files.errors import TrainerError, entry
from trainer.common.files.plural import counted
from trainer.common.ranks import metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Records = list[dict[str, Any]]
TRAIN, EVAL = "tab:blue", "tab:orange"


def curve(ax: "Axes", records: Records, kind: str, name: str, label: str, colour: str, marker: str = "") -> None:
    """Draw one value over the steps, from the records of that kind that have it."""
    points = [(r["step"], r[name]) for r in records if r["kind"] == kind and name in r]
    if points:
        ax.plot(*zip(*points, strict=True), label=label, color=colour, marker=marker, linewidth=1.2)


def draw_loss(ax: "Axes", records: Records) -> None:
    """Draw the cross-entropy of training and validation."""
    curve(ax, records, "train", "loss", "training", TRAIN)
    curve(ax, records, "eval", "loss", "validation", EVAL, "o")
    ax.set_ylabel("loss (cross-entropy)")


def draw_top1(ax: "Axes", records: Records) -> None:
    """Draw the top-1 accuracy of training batches and validation set."""
    curve(ax, records, "train", "top1", "training batch", TRAIN)
    curve(ax, records, "eval", "top1", "validation", EVAL, "o")
    ax.set_ylabel("top-1 (%)")
    ax.set_ylim(0, 100)


def draw_rate(ax: "Axes", records: Records) -> None:
    """Draw the learning rate."""
    curve(ax, records, "train", "lr", "learning rate", TRAIN)
    ax.set_ylabel("learning rate")


def draw_speed(ax: "Axes", records: Records) -> None:
    """Draw the images per second over all ranks, and their median as a grey line."""
    import numpy as np

    curve(ax, records, "train", "images_per_s", "all ranks", TRAIN)
    speeds = [r["images_per_s"] for r in records if r["kind"] == "train" and r["step"] > 1]
    if speeds:
        ax.axhline(float(np.median(speeds)), color="grey", linewidth=0.8, label="median")
    ax.set_ylabel("images/s")
    ax.set_ylim(bottom=0)


def plot(job_dir: Path, out: Path) -> None:
    """Write the plot: loss, top-1, learning rate and throughput over the steps.

    Raises:
        TrainerError: the job has no metrics yet, or the plot cannot be written.
    """
    records = metrics.read(job_dir)
    if not records:
        raise TrainerError(f"{job_dir / metrics.FILE} is empty: the job has not shown a step yet")
    with picture(out, 2, 2, figsize=(10, 6.5), sharex=True) as (figure, axes):
        for ax, draw in zip(axes.flat, (draw_loss, draw_top1, draw_rate, draw_speed), strict=True):
            draw(ax, records)
            ax.grid(alpha=0.3)
            ax.legend(frameon=False, fontsize=8)
        for ax in axes[1]:
            ax.set_xlabel("step")
        figure.suptitle(f"{job_dir.resolve().name}: {counted(max(r['step'] for r in records), 'step')}")


@contextmanager
def picture(out: Path, rows: int = 1, columns: int = 1, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its axes to draw on, and write it at the end. Raises TrainerError if that fails."""
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


@entry
def main(argv: Sequence[str]) -> None:
    """Draw the curves and print the picture's path."""
    parser = TrainerParser(prog="python -m trainer.plot", description="Draws a job's training curves.")
    parser.add_argument("job_dir", type=Path, help="job folder with metrics.jsonl")
    parser.add_argument("--out", type=Path, help="picture to write (default JOBDIR/curves.png)")
    a = parser.parse_args(argv)
    out = a.out or a.job_dir / "curves.png"
    plot(a.job_dir, out)
    print(out)


if __name__ == "__main__":
    sys.exit(main())
