"""Results of a matrix: `python -m trainer.matrix FOLDER` makes CSV, JSON and a chart from its `state.json`.

`python -m trainer.matrix --job-dir DIR` prints the results of one of its jobs.
"""

import csv
import io
import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.common.checkpoints.checkpoint import write_atomically
from trainer.common.files.commandline import TrainerParser
from trainer.common.files.errors import ConfigError, TrainerError, entry
from trainer.plot import picture
from trainer.scaling import point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SPEED = "images_per_s"
_TAG = re.compile(r"^\[\d+,\d+\]<std(?:out|err)>:", re.M)
_TOTAL = r"^total images/sec: ([0-9.]+)"  # of trainer.benchmark and of tf_cnn_benchmarks
_AFTER = ("job", "state", SPEED, "per_rank", "seconds")  # columns after the axes


def measure(job_dir: Path, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return a job's results: images/s from its metrics or output, seconds, and each column's match in the output."""
    said = printed(job_dir)
    found: dict[str, Any] = {}
    try:
        reached = point(job_dir)
        found = {SPEED: round(reached.images_per_s, 2), "per_rank": round(reached.images_per_s / reached.ranks, 2)}
    except TrainerError:
        if (total := last_match(_TOTAL, said)) is not None:
            found = {SPEED: total}
    try:
        attempt = json.loads((job_dir / "attempts.json").read_text())["attempts"][-1]
        found["seconds"] = round(attempt["ended"] - attempt["started"], 1)
    except (OSError, ValueError, LookupError, TypeError):
        pass  # optional: a job's results do not depend on it
    return found | {name: last_match(pattern, said) for name, pattern in columns.items()}


def printed(job_dir: Path) -> str:
    """Return the output of the job's last attempt, without the tags of ranks."""
    logs = sorted(job_dir.glob("logs/attempt-*"), key=lambda p: int(p.name.rpartition("-")[2]))
    try:
        return _TAG.sub("", (logs[-1] / "console.log").read_text(errors="replace"))
    except (IndexError, OSError):
        return ""


def last_match(pattern: str, text: str) -> float | str | None:
    """Return the last match of a pattern with one group, as a number if it is one."""
    found = re.findall(pattern, text, re.M)
    if not found:
        return None
    try:
        return float(found[-1])
    except ValueError:
        return str(found[-1])


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table's columns: axes, standard columns, the patterns' columns, and the cause last."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    axes = names[: names.index("job")]
    known = [name for name in _AFTER if name in names]
    others = [name for name in names if name not in (*axes, *known, "cause")]
    return [*axes, *known, *others, *(["cause"] if "cause" in names else [])]


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the table as CSV with a header line."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the table for a terminal."""
    names = columns_of(rows)
    cells = [[_shown(row.get(name)) for name in names] for row in rows]
    widths = [max(len(row[i]) for row in (names, *cells)) for i in range(len(names))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in (names, *cells)
    )


def draw(ax: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw images/s: over ranks, one line per other combination, if ranks vary; otherwise one bar per cell."""
    names = columns_of(rows)
    axes = names[: names.index("job")]
    reached = [row for row in rows if isinstance(row.get(SPEED), int | float)]
    if len({row.get("np") for row in reached}) > 1:
        for label in dict.fromkeys(_label(row, axes, without="np") for row in reached):
            line = sorted((row["np"], row[SPEED]) for row in reached if _label(row, axes, without="np") == label)
            ax.plot(*zip(*line, strict=True), marker="o", label=label)
        ax.set_xscale("log", base=2)
        ranks = sorted({row["np"] for row in reached})
        ax.set_xticks(ranks, [str(n) for n in ranks])
        ax.set_xlabel("ranks")
        ax.set_ylabel("images/s")
        ax.legend(frameon=False)
    else:
        ax.barh([_label(row, axes) for row in reached], [row[SPEED] for row in reached])
        ax.invert_yaxis()
        ax.set_xlabel("images/s")
    ax.grid(alpha=0.3)


def write(folder: Path) -> list[dict[str, Any]]:
    """Write `results.csv`, `results.json` and, if a speed was measured, `results.png` beside the state.

    Returns the rows.

    Raises:
        TrainerError: the state cannot be read, or the results cannot be written.
    """
    try:
        rows: list[dict[str, Any]] = json.loads((folder / "state.json").read_text())["rows"]
        write_atomically(folder / "results.csv", as_csv(rows))
        write_atomically(folder / "results.json", json.dumps(rows, indent=1) + "\n")
    except (OSError, ValueError, KeyError) as e:
        raise TrainerError(f"{folder}: no results can be made of its state.json: {e}") from e
    speeds = [row[SPEED] for row in rows if isinstance(row.get(SPEED), int | float)]
    if speeds:
        with picture(folder / "results.png", figsize=(7, max(3.0, 0.25 * len(speeds) + 1.5))) as (_, ax):
            draw(ax, rows)
            ax.set_title(f"{folder.name}: median {statistics.median(speeds):.1f} images/s over {len(speeds)} cells")
    return rows


def _label(row: Mapping[str, Any], axes: Sequence[str], without: str = "") -> str:
    return " ".join(f"{axis}={_shown(row.get(axis))}" for axis in axes if axis != without) or "all"


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:.1f}" if isinstance(value, float) and value >= 100 else str(value)


@entry
def main(argv: Sequence[str]) -> None:
    """Write the results of a matrix, or print the results of one job."""
    parser = TrainerParser(prog="python -m trainer.matrix", description="The results of a matrix of jobs.")
    parser.add_argument("folder", nargs="?", type=Path, help="of the matrix, with its state.json")
    parser.add_argument("--job-dir", type=Path, help="a job's folder, to measure it alone")
    parser.add_argument("--column", action="append", default=[], help="NAME=PATTERN to look for in what it printed")
    a = parser.parse_args(argv)
    if a.job_dir:
        columns = dict(word.split("=", 1) for word in a.column if "=" in word)
        print(json.dumps(measure(a.job_dir, columns)))
    elif a.folder:
        print(as_text(write(a.folder)))
    else:
        raise ConfigError("give the folder of a matrix, or --job-dir")


if __name__ == "__main__":
    sys.exit(main())
