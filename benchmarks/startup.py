"""How long `inv --list` takes, whole process: against 0.3 s and against Python alone (`inv bench --name startup`)."""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNS = 11
LIMIT_S = 0.3


def seconds(words: list[str]) -> float:
    """One run of a command, start to end."""
    started = time.perf_counter()
    subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    """Measure, alternating, and write the rows."""
    ours, bare = [str(Path(sys.executable).with_name("inv")), "--list"], [sys.executable, "-c", "import invoke.program"]
    seconds(ours), seconds(bare)
    pairs = [(seconds(ours), seconds(bare)) for _ in range(RUNS)]
    list_s, bare_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    spread = [round(min(p[0] for p in pairs), 3), round(max(p[0] for p in pairs), 3)]
    rows = [
        {
            "what": "inv --list, whole process",
            "value": round(list_s, 3),
            "unit": "s",
            "against": f"limit {LIMIT_S} s",
            "ratio": round(list_s / LIMIT_S, 3),
            "goal": 1.0,
            "runs": RUNS,
            "spread": spread,
        },
        {
            "what": "inv --list, whole process",
            "value": round(list_s, 3),
            "unit": "s",
            "against": "Python importing invoke and nothing else",
            "ratio": round(list_s / bare_s, 3),
            "goal": None,
            "runs": RUNS,
            "spread": spread,
        },
    ]
    (ROOT / "benchmarks/results/startup.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
