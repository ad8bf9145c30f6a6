"""Scaling report: images per second over ranks, and their share of the ideal.

Run it with `python -m trainer.scaling JOBDIR JOBDIR …`.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.common.files.commandline import TrainerParser
from trainer.common.files.errors import ConfigError, TrainerError, entry
from trainer.common.ranks import metrics
from trainer.plot import picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WARM_UP_STEPS = 2  # excluded: the graph is built and the input is filled


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """Speed and efficiency at one number of ranks."""

    ranks: int
    images_per_s: float  # median over the lines of the table
    low: float  # quartiles of the lines
    high: float
    lines: int
    efficiency: float = 1.0  # against the smallest number of ranks, per rank


def point(job_dir: Path) -> ScalingPoint:
    """Return the speed of one job.

    Raises:
        TrainerError: the job's metrics have no line after the warm-up, or have lines of several numbers of ranks.
    """
    lines = [r for r in metrics.read(job_dir) if r["kind"] == "train" and r["step"] >= WARM_UP_STEPS]
    ranks = {int(r["ranks"]) for r in lines if "ranks" in r}
    if len(ranks) != 1:
        what = "no line after the warm-up" if not ranks else f"lines of {sorted(ranks)} ranks"
        raise TrainerError(
            f"{job_dir / metrics.FILE} has {what}: give one job per number of ranks, of some hundred steps each"
        )
    speeds = [float(r["images_per_s"]) for r in lines]
    low, high = (min(speeds), max(speeds)) if len(speeds) < 4 else statistics.quantiles(speeds, n=4)[::2]
    return ScalingPoint(
        ranks=ranks.pop(), images_per_s=statistics.median(speeds), low=low, high=high, lines=len(speeds)
    )


def report(points: Sequence[ScalingPoint]) -> list[ScalingPoint]:
    """Return the points ordered by ranks, with their efficiency.

    Raises:
        ConfigError: two jobs have the same number of ranks.
    """
    ordered = sorted(points, key=lambda p: p.ranks)
    if len({p.ranks for p in ordered}) < len(ordered):
        raise ConfigError("two of the jobs have the same number of ranks: give one per number")
    unit = ordered[0].images_per_s / ordered[0].ranks
    return [ScalingPoint(**{**asdict(p), "efficiency": p.images_per_s / (unit * p.ranks)}) for p in ordered]


def text(points: Sequence[ScalingPoint]) -> str:
    """Format one line per number of ranks."""
    lines = [f"{'ranks':>6} {'images/s':>10} {'quartiles':>19} {'per rank':>9} {'efficiency':>10}"]
    lines += [
        f"{p.ranks:6} {p.images_per_s:10.1f} {p.low:9.1f}-{p.high:9.1f} {p.images_per_s / p.ranks:9.1f} "
        f"{100 * p.efficiency:9.1f}%"
        for p in points
    ]
    return "\n".join(lines)


def draw(ax: "Axes", points: Sequence[ScalingPoint]) -> None:
    """Draw images per second over ranks with quartiles, the ideal as a grey line, and each point's efficiency."""
    ranks = [p.ranks for p in points]
    unit = points[0].images_per_s / points[0].ranks
    ax.plot(ranks, [unit * r for r in ranks], color="grey", linewidth=0.8, label="ideal")
    spread = [[p.images_per_s - p.low for p in points], [p.high - p.images_per_s for p in points]]
    ax.errorbar(ranks, [p.images_per_s for p in points], yerr=spread, marker="o", capsize=3, label="median, quartiles")
    for p in points:
        ax.annotate(
            f"{100 * p.efficiency:.0f}%", (p.ranks, p.images_per_s), textcoords="offset points", xytext=(6, -12)
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(ranks, [str(r) for r in ranks])
    ax.set_xlabel("ranks")
    ax.set_ylabel("images/s")
    ax.grid(alpha=0.3)
    ax.legend(frameon=False)


def plot(points: Sequence[ScalingPoint], title: str, out: Path) -> None:
    """Write the plot.

    Raises:
        TrainerError: it cannot be written.
    """
    with picture(out, figsize=(6, 4.5)) as (_, ax):
        draw(ax, points)
        ax.set_title(title)


@entry
def main(argv: Sequence[str]) -> None:
    """Print the report and draw it."""
    parser = TrainerParser(prog="python -m trainer.scaling", description="Reports how speed grows with ranks.")
    parser.add_argument("job_dirs", nargs="+", type=Path, help="a job's folder per number of ranks")
    parser.add_argument("--out", type=Path, help="picture to write (default: scaling.png beside the first job)")
    parser.add_argument("--title", default="training speed", help="of the picture")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    a = parser.parse_args(argv)
    points = report([point(folder) for folder in a.job_dirs])
    print(json.dumps([asdict(p) for p in points], indent=1) if a.json else text(points))
    out = a.out or a.job_dirs[0].resolve().parent / "scaling.png"
    plot(points, a.title, out)
    print(out, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
