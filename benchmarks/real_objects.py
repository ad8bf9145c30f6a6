"""Objects on real photographs learnt by heart by Mask R-CNN: `python benchmarks/real_objects.py`.

Writes results/real_objects.json and docs/objects.png. Of COCO's small real set (`--coco`) photographs with the fewest
objects are learnt from random weights by the reduced model (maskrcnn_setup.py), on one rank of two threads; with
`--tensorpack DIR` beside tensorpack's own example from the same weights, in turns; with `--hosts` (as root) also by
`inv train.maskrcnn` on two hosts of a lab, a rank of one thread on each. Judged are the same photographs, since so few
teach nothing of others.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rounds, tensorpack_race  # noqa: E402
from benchmarks.lockstep import Side  # noqa: E402
from benchmarks.maskrcnn_setup import PHOTOGRAPHS, chosen, sizes  # noqa: E402
from benchmarks.tensorpack_example import changed, ours, theirs  # noqa: E402
from lab import lab as labs  # noqa: E402
from lab.record import SHARED  # noqa: E402
from trainer.common.ranks import metrics  # noqa: E402

SHORT, LONG, STEPS, DROP, EVERY, TIMEOUT_S = 192, 256, 2400, 1800, 200, 3000
"""Steps are of one image; an evaluation comes after every so many."""
LAB, HOSTS = "bphotos", 2
ONE_RANK, TWO_HOSTS, EXAMPLE = "one rank", "two hosts", "tensorpack's example"
Curve = list[tuple[int, float, float]]


def schedule(images: int, end: int) -> tuple[str, str]:
    """Settings of steps of so many images: the rates, in units of 8 images, and an evaluation every `EVERY` images."""
    return f"TRAIN.LR_SCHEDULE=[{DROP // 8},{end // 8}]", f"TRAIN.STEPS_PER_EPOCH={EVERY // images}"


def start(data: Path, out: Path) -> tuple[str, str]:
    """Flags by which every program begins with the same random weights."""
    told = json.loads((data / "annotations/instances_train2017.json").read_text())
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as child:
        settings = (*tensorpack_race.OURS, f"DATA.NUM_CATEGORY={len(told['categories'])}")
        child.submit(tensorpack_race.write_start, settings, out).result()
    return "--load", str(out)


def in_turns(data: Path, load: tuple[str, str], out: Path, example: Path | None) -> dict[str, Curve]:
    """(images seen, box AP, mask AP) of each evaluation, here on one rank and, with a folder of it, in the example."""
    told = (data, SHORT, LONG, out)
    more = (*schedule(1, STEPS + 8), *load)  # an end that is not reached: who compares ends them
    starts: dict[str, Callable[[], Side]] = {ONE_RANK: partial(ours, *told, (*tensorpack_race.OURS, *more))}
    if example:
        starts[EXAMPLE] = partial(theirs, example, *told, (*tensorpack_race.THEIRS, *more))
    curves: dict[str, Curve] = {name: [] for name in starts}
    with ExitStack() as stack:
        sides, _, spent = tensorpack_race.lined_up(starts, stack)
        if example:
            tensorpack_race.check_loaded(out / "theirs.log")
        for judged in tensorpack_race.evaluations(sides, spent, EVERY, STEPS):
            for name, now in judged.items():
                curves[name].append((now.steps, now.box_ap, now.mask_ap))
    return curves


def on_hosts(data: Path, load: tuple[str, str]) -> Curve:
    """The same of a job as anybody starts it, on two hosts of a lab; a step is of two images."""
    lab = labs.up(LAB, HOSTS, 1)
    try:
        shutil.copytree(data, lab.shared / "photographs")
        shutil.copy(load[1], lab.shared / "start.npz")
        settings = (
            *tensorpack_race.OURS,
            *sizes(SHORT, LONG),
            *schedule(HOSTS, STEPS),
            f"DATA.BASEDIR={SHARED}/photographs",
            "DATA.NUM_WORKERS=1",
        )
        words = ["train.maskrcnn", "--np", str(HOSTS), "--no-heal", "--", "--threads", "1"]
        words += ["--load", f"{SHARED}/start.npz", *settings]
        done = subprocess.run(
            [sys.executable, "-m", "invoke", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**os.environ, "CLUSTER": f"lab:{LAB}"},
        )
        if done.returncode:
            raise SystemExit(f"exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
        (job,) = (lab.shared / "jobs").glob("*/metrics.jsonl")
        evaluations = [line for line in metrics.read(job.parent) if line["kind"] == "eval"]
        return [(line["step"] * HOSTS, line["box_ap"], line["mask_ap"]) for line in evaluations]
    finally:
        labs.down(LAB)


def draw(curves: dict[str, Curve], what: str, out: Path) -> None:
    """Both APs over the images seen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), dpi=110)
    for label, curve in curves.items():
        seen, box, mask = zip(*curve, strict=True)
        (line,) = axes.plot(seen, box, marker="o", label=f"{label}, boxes")
        axes.plot(seen, mask, marker="s", linestyle="--", color=line.get_color(), label=f"{label}, masks")
    axes.set_xlabel("images seen")
    axes.set_ylabel("COCO's AP")
    axes.set_ylim(0, 1)
    axes.set_title(f"{what} learnt by heart: reduced R50-FPN-GN, {SHORT} pixels", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(out)


def main() -> None:
    """Trainings, rows and picture."""
    parser = argparse.ArgumentParser(description="Objects on real photographs learnt by heart.")
    parser.add_argument("--coco", type=Path, default=Path("../shared/data/coco-mini"))
    parser.add_argument("--tensorpack", type=Path, metavar="DIR", help="a checkout of tensorpack to run the example of")
    parser.add_argument("--hosts", action="store_true", help="also on two hosts of a lab, as root")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        example = changed(a.tensorpack.resolve(), Path(made) / "tensorpack") if a.tensorpack else None
        data = Path(made) / "data"
        of = chosen(a.coco.resolve(), data)
        told = json.loads((a.coco / "annotations/instances_train2017.json").read_text())
        tensorpack_race.as_example_reads(data / "annotations/instances_train2017.json", told["categories"])
        load = start(data, Path(made) / "start.npz")
        curves: dict[str, Curve] = {}
        if a.hosts:
            curves[TWO_HOSTS] = on_hosts(data, load)
            print(TWO_HOSTS, json.dumps(curves[TWO_HOSTS]), flush=True)
        curves = in_turns(data, load, Path(made), example) | curves
    tell(curves, f"{of.total()} objects of {len(of)} kinds on {PHOTOGRAPHS} photographs")


def tell(curves: dict[str, Curve], what: str) -> None:
    """Picture and rows."""
    draw(curves, what, ROOT / "docs/objects.png")
    rows: list[dict[str, Any]] = []
    for label, curve in curves.items():
        seen, *reached = curve[-1]
        for part, value in zip(("box", "mask"), reached, strict=True):
            named = f"{what}, reduced R50-FPN-GN, {SHORT} pixels, {seen} images seen, {label}, {part} AP"
            said = {"what": named, "value": round(value, 3), "unit": "AP", "against": "", "ratio": None, "goal": None}
            rows.append({**said, "runs": 1, "spread": [round(value, 3)] * 2})
    rounds.write("real_objects", rows)


if __name__ == "__main__":
    main()
