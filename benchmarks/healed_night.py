"""A night in which things break, as its operator finds it in the morning: one job on a lab, its timeline as a picture.

    PYTHONPATH=. python benchmarks/healed_night.py            # as root, twenty minutes: makes a lab, breaks it, draws
    PYTHONPATH=. python benchmarks/healed_night.py --draw     # draws again what the last run kept

The run is kept as results/healed_night.json, the picture is docs/healed.png.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cluster.recovery.history import History
from cluster.inventory import ROOT
from lab import lab as labs
from lab.record import Lab
from cluster.ssh import connections
from cluster.typed import from_json

sys.path.insert(0, str(Path(__file__).parent))
from recovery import attempts, stop_a_rank_on, until
from rounds import RESULTS

LAB = "night"
KEPT, PICTURE = RESULTS / "healed_night.json", ROOT / "docs/healed.png"
TRAINING = (
    *("--model", "resnet18", "--image-size", "32", "--batch-size", "4", "--classes", "10", "--synthetic"),
    *("--threads", "1", "--num-batches", "1000000", "--display-every", "5"),
)
CALM_S, START_S, HEAL_S = 150.0, 240.0, 600.0
COLOURS = {
    "training": "#3b7a57",
    "done again": "#a9c9b6",
    "detecting": "#c0392b",
    "clearing": "#e08e79",
    "waiting": "#d9d9d9",
    "gate": "#e3b23c",
    "start": "#4a6fa5",
}


def night() -> None:
    """Train, break, heal; keep what is known of it."""
    lab = labs.up(LAB, 4, 1, spares=1)
    try:
        environment = {**os.environ, "CLUSTER": f"lab:{LAB}"}
        inv = [sys.executable, "-m", "invoke"]

        def said(*words: str) -> str:
            return subprocess.run(
                [*inv, *words], cwd=ROOT, env=environment, check=True, timeout=START_S, capture_output=True, text=True
            ).stdout

        said("train.resnet50", "--detach", "--unchecked", "--hosts", "0-3", "--min-np", "3", "--", *TRAINING)
        folder = next((lab.shared / "jobs").glob("*resnet50*"))
        told = []
        for number, (what, break_it) in enumerate(troubles(lab), start=1):
            steps(folder, number)
            time.sleep(CALM_S)
            told.append({"at": time.time(), "what": what})
            print(what, flush=True)
            break_it()
        steps(folder, len(told) + 1)
        time.sleep(CALM_S)
        job = folder.name
        said("jobs.stop", job)
        shown = {"show": said("jobs.show", job), "json": json.loads(said("jobs.show", job, "--json"))}
        curve = [(one["time"], one["step"]) for one in metrics(folder) if "time" in one and "step" in one]
        KEPT.write_text(json.dumps({"told": told, **shown, "curve": curve}, indent=1) + "\n")
    finally:
        connections.disconnect()
        labs.down(LAB)


def troubles(lab: Lab) -> list[tuple[str, Any]]:
    """What happens, one after another, each after a calm minute of training."""
    return [
        ("a host loses its power", lambda: labs.crash(lab, lab.hosts[2])),
        ("a rank is stopped", lambda: stop_a_rank_on(lab, 1)),
        ("a cable is pulled", lambda: labs.cut(lab, lab.hosts[3])),
        ("the cable is back", lambda: labs.heal(lab, lab.hosts[3:4])),
        ("the master loses its power, and boots", lambda: master_away(lab)),
    ]


def master_away(lab: Lab) -> None:
    """Gone for twenty seconds."""
    labs.crash(lab, lab.hosts[0])
    time.sleep(20)
    labs.heal(lab, lab.hosts[:1])


def steps(folder: Path, attempt: int) -> None:
    """Until this attempt, or a later one, has made its first step."""
    until(lambda: any(a.get("first_step_at") for a in attempts(folder)[attempt - 1 :]), HEAL_S)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of the training's numbers."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def draw() -> None:
    """The timeline: a bar per attempt by what its time went to, what broke, and how far the training was."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    kept = json.loads(KEPT.read_text())
    history = from_json(History, kept["json"]).attempts
    zero = history[0].began

    def minutes(at: float) -> float:
        return (at - zero) / 60

    figure, (bars, curve) = plt.subplots(
        2, 1, figsize=(11, 5.2), sharex=True, height_ratios=(len(history) + 1, 3), layout="constrained"
    )
    used: dict[str, Any] = {}
    best = 0
    for row, attempt in enumerate(history):
        following = history[row + 1].began if row + 1 < len(history) else attempt.cleared or attempt.ended
        for what, start, end in spans(attempt, best, following or attempt.began):
            bar = bars.barh(row, minutes(end) - minutes(start), left=minutes(start), color=COLOURS[what], height=0.62)
            used.setdefault(what, bar)
        best = max(best, attempt.step or 0)
        words = f"{attempt.np} ranks on hosts {', '.join(sorted(a.rpartition('.')[2] for a in attempt.hosts))}"
        bars.text(minutes(attempt.began), row - 0.42, words, fontsize=8, va="bottom")
    for one in kept["told"]:
        for axis in (bars, curve):
            axis.axvline(minutes(one["at"]), color="#c0392b", linewidth=0.8, linestyle=":")
        bars.text(
            minutes(one["at"]), len(history) - 0.25, one["what"], fontsize=8, color="#c0392b", rotation=0, ha="center"
        )
    bars.set_ylim(len(history) + 0.2, -0.9)
    bars.set_yticks(range(len(history)), [f"attempt {a.number}" for a in history])
    bars.legend([used[w] for w in COLOURS if w in used], [w for w in COLOURS if w in used], ncols=7, fontsize=8,
                loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)  # fmt: skip
    points = [(minutes(t), s) for t, s in kept["curve"]]
    curve.plot([t for t, _ in points], [s for _, s in points], ".", markersize=2, color=COLOURS["training"])
    curve.set_ylabel("step")
    curve.set_xlabel("minutes since the start")
    for axis in (bars, curve):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE, dpi=110)


def spans(attempt: Any, best: int, following: float) -> list[tuple[str, float, float]]:
    """What an attempt's time went to, in order: (what, from, to)."""
    begun = attempt.started or following
    waited = attempt.began + attempt.waited_s
    looked = waited + attempt.gate_s
    found = [("waiting", attempt.began, waited), ("gate", waited, looked), ("start", looked, begun)]
    if attempt.first_step_at:
        again = repeated_until(attempt, best)
        last = attempt.step_at or attempt.first_step_at
        noticed = attempt.noticed or last
        found += [
            ("start", begun, attempt.first_step_at),
            ("done again", attempt.first_step_at, again),
            ("training", again, last),
            ("detecting", last, noticed),
            ("clearing", noticed, min(attempt.cleared or following, following)),
        ]
    return [one for one in found if one[2] > one[1]]


def repeated_until(attempt: Any, best: int) -> float:
    """When an attempt had caught up with the one before, at its own pace."""
    done = max(1, attempt.step - attempt.first_step)
    share = min(1.0, max(0, best - attempt.first_step) / done)
    return float(attempt.first_step_at + share * (attempt.step_at - attempt.first_step_at))


def main() -> None:
    """Run, and draw; or only draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true", help="only draw what is kept")
    if not parser.parse_args().draw:
        night()
    draw()


if __name__ == "__main__":
    main()
