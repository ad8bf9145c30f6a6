"""Commands timed side by side: every round runs each once, so that a busy machine is busy for all of them."""

import json
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")
Runs = dict[str, list[float]]


def seconds_of(words: list[str], timeout_s: float = 300, **options: Any) -> float:
    """How long a command takes, whole process. Raises CalledProcessError if it fails."""
    began = time.perf_counter()
    subprocess.run(words, check=True, capture_output=True, timeout=timeout_s, **options)
    return time.perf_counter() - began


def rounds(candidates: Mapping[str, Callable[[], float]], times: int) -> Runs:
    """Seconds of each candidate in each of `times` rounds."""
    runs: Runs = {name: [] for name in candidates}
    for _ in range(times):
        for name, measure in candidates.items():
            runs[name].append(measure())
    return runs


def row(
    runs: Runs, what: str, against: str = "", goal: float | None = None, *, label: str = "", unit: str = "s"
) -> dict[str, Any]:
    """One row of a result file: the medians' ratio. A peer that was not measured makes a row without a ratio."""
    ours = runs[what]
    result = {
        "what": label or what,
        "value": round(statistics.median(ours), 4),
        "unit": unit,
        "against": against,
        "ratio": None,
        "goal": goal,
        "runs": len(ours),
        "spread": [round(min(ours), 4), round(max(ours), 4)],
    }
    if against and against in runs:
        result["ratio"] = round(statistics.median(ours) / statistics.median(runs[against]), 3)
    elif against:
        result["against"] = f"{against}: not installed, not measured"
    return result


def committed(name: str, peer: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A result file's rows: those against a peer that is measured in runs of its own, and the others."""
    path = RESULTS / f"{name}.json"
    found = json.loads(path.read_text()) if path.exists() else []
    return [r for r in found if r["against"].startswith(peer)], [r for r in found if not r["against"].startswith(peer)]


def write(name: str, rows: list[dict[str, Any]]) -> Path:
    """Keep the rows, and print them."""
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(rows, indent=1) + "\n")
    for r in rows:
        value = "–" if r["value"] is None else f"{r['value']:.3f}"
        ratio = "" if r["ratio"] is None else f"{r['ratio']:>7.3f} x {r['against']}"
        goal = "" if r["goal"] is None else f"  (goal {r['goal']})"
        print(f"{r['what']:<46} {value:>9} {r['unit']:<6} {ratio}{goal}")
    return path
