"""Every committed figure: `inv bench --report` prints them with what misses its goal; a picture per file of results."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
REACHING = ("fanout", "mpirun_start", "broadcast", "stage", "fold")
PICTURE = RESULTS.parents[1] / "docs" / "reaching.png"


def rows_of(name: str) -> list[dict[str, Any]]:
    """The rows of one benchmark's committed result, [] before its first run."""
    path = RESULTS / f"{name}.json"
    found = json.loads(path.read_text()) if path.exists() else []
    return list(found.get("rows", ()) if isinstance(found, dict) else found)  # some keep more than rows


def names() -> list[str]:
    """The benchmarks that have figures."""
    return sorted(p.stem for p in RESULTS.glob("*.json") if rows_of(p.stem))


def misses(row: Mapping[str, Any]) -> bool:
    """Whether a row has a ratio, a goal, and is over it."""
    return row.get("ratio") is not None and row.get("goal") is not None and row["ratio"] > row["goal"]


def table(found: Sequence[str]) -> str:
    """All rows as text: figure, peer, ratio, goal, and MISSED where the goal is not met."""
    lines = []
    for name in found:
        lines.append(name)
        for row in rows_of(name):
            ratio = "not measured" if row.get("ratio") is None else f"{row['ratio']:.3g} x"
            goal = "" if row.get("goal") is None else f"  goal {row['goal']:.3g}"
            value = "not measured" if row.get("value") is None else f"{row['value']:.4g} {row['unit']}"
            missed = "  MISSED" if misses(row) else ""
            lines.append(f"  {row['what']}: {value}; against {row['against']}: {ratio}{goal}{missed}")
    return "\n".join(lines) or "no results yet: inv bench --name NAME"


def draw(name: str) -> Path | None:
    """A bar per ratio with its goal as a grey mark; the picture's path, None if the result has no ratio."""
    rows = [r for r in rows_of(name) if r.get("ratio") is not None]
    if not rows:
        return None
    path = RESULTS / f"{name}.png"
    _save(rows, f"{name}: our cost / theirs, same run, medians; grey: the goal", path)
    return path


def draw_reaching() -> Path:
    """The README's picture: what it takes to reach every host, of all files of REACHING that have results."""
    rows = [r for name in REACHING for r in rows_of(name) if r.get("ratio") is not None and r.get("goal") is not None]
    _save(rows, "reaching every host: our time / theirs, same run, medians; grey: the goal", PICTURE)
    return PICTURE


def _save(rows: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, ax = pyplot.subplots(figsize=(9, 1.2 + 0.42 * len(rows)), layout="constrained")
    _bars(ax, rows)
    ax.set_title(title, fontsize=10)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _bars(ax: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    places = range(len(rows))
    ax.barh(places, [r["ratio"] for r in rows], color=["#c0392b" if misses(r) else "#2e86ab" for r in rows], height=0.6)
    for place, row in zip(places, rows, strict=True):
        if row.get("goal") is not None:
            ax.plot([row["goal"]] * 2, [place - 0.42, place + 0.42], color="0.45", linewidth=2)
        ax.annotate(f" {row['ratio']:.2f}", (row["ratio"], place), va="center", fontsize=8)
    ax.set_yticks(places, [f"{r['what']}\nagainst {r['against']}" for r in rows], fontsize=7)
    ax.invert_yaxis()
    ax.set_xlabel("ratio (lower is better)")
    ax.margins(x=0.12)
