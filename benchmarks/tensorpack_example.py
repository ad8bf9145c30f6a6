"""tensorpack's own Mask R-CNN example beside this trainer, step by step: a part of `benchmarks/maskrcnn.py`.

Both train R50-FPN with group norm from random weights in float32, one image a step and one update for each, on two
threads, from the same pictures; each sees every picture as often as the other, for how many regions learn decides what
a step costs. The example gets what it needs on this TensorFlow (peers/tensorpack.diff), oneDNN, and the NHWC rewrite,
without which a step takes it a hundred times as long.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.lockstep import Cost, Side, alternate
from benchmarks.maskrcnn_setup import FULL, sizes

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "benchmarks/peers"
COMMIT = "1547a54e"
GOALS = {256: 0.8, 800: 0.85}
LENGTH = ("TRAIN.STEPS_PER_EPOCH=100000", "TRAIN.BASE_LR=0.001", "TRAIN.WARMUP=1", "TRAIN.EVAL_PERIOD=0")
ENVIRONMENT = {
    "TF_ENABLE_ONEDNN_OPTS": "1",
    **os.environ,
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_USE_LEGACY_KERAS": "1",
}


def changed(checkout: Path, out: Path) -> Path:
    """A copy of the checkout that runs on this TensorFlow. Raises SystemExit if it is another revision."""
    for part in ("tensorpack", "examples/FasterRCNN"):
        if not (checkout / part).is_dir():
            raise SystemExit(f"{checkout} has no {part}: give a checkout of tensorpack at {COMMIT}")
        shutil.copytree(checkout / part, out / part)
    done = subprocess.run(
        ["git", "apply", str(PEERS / "tensorpack.diff")], cwd=out, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{checkout}: peers/tensorpack.diff is for tensorpack at {COMMIT}: {done.stderr.strip()}")
    return out


def of_one_shape(data: Path, out: Path) -> Path:
    """The pictures of the commonest size of a COCO folder, as another one."""
    for part in ("train2017", "val2017"):
        everything = json.loads((data / f"annotations/instances_{part}.json").read_text())
        with_object = {a["image_id"] for a in everything["annotations"] if not a["iscrowd"]}
        images = [i for i in everything["images"] if i["id"] in with_object]
        (size, _), *_ = Counter((i["width"], i["height"]) for i in images).most_common()
        everything["images"] = [i for i in images if (i["width"], i["height"]) == size]
        (out / "annotations").mkdir(parents=True, exist_ok=True)
        (out / part).symlink_to(data / part)
        (out / f"annotations/instances_{part}.json").write_text(json.dumps(everything))
    return out


def pictures(data: Path) -> int:
    """How many have an object to learn from."""
    annotations = json.loads((data / "annotations/instances_train2017.json").read_text())
    ids = {i["id"] for i in annotations["images"]}
    return len({a["image_id"] for a in annotations["annotations"] if not a["iscrowd"]} & ids)


def ours(data: Path, short: int, longest: int, out: Path, more: Sequence[str] = ()) -> Side:
    """This trainer; `more` flags and settings come last, so they are what counts."""
    settings = (
        *FULL,
        *LENGTH,
        "TRAIN.MAX_STEPS=100000",
        "TRAIN.EVAL_AT_END=False",
        "TRAIN.LOG_PERIOD=100000",
        *sizes(short, longest),
        "DATA.NUM_WORKERS=1",
        f"DATA.BASEDIR={data}",
    )
    words = [sys.executable, "-m", "benchmarks.maskrcnn_turns", "--threads", "2", *settings, *more]
    return Side(words, out / "ours.log", {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}, ROOT)


def theirs(example: Path, data: Path, short: int, longest: int, out: Path, more: Sequence[str] = ()) -> Side:
    """tensorpack's example, its folder of logs made anew; `more` as of ours."""
    settings = (
        *FULL,
        *LENGTH,
        "TRAINER=horovod",
        f"PREPROC.TRAIN_SHORT_EDGE_SIZE=[{short},{short}]",
        f"PREPROC.TEST_SHORT_EDGE_SIZE={short}",
        f"PREPROC.MAX_SIZE={longest}",
        "DATA.NUM_WORKERS=1",
        f"DATA.BASEDIR={data}",
    )
    words = [sys.executable, "train.py", "--logdir", str(out / "theirs"), "--config", *settings, *more]
    folder = example / "examples/FasterRCNN"
    environment = {
        **ENVIRONMENT,
        "PYTHONPATH": ":".join(map(str, (example, folder, PEERS, ROOT))),
        "NHWC": "1",
        "INTRA": "2",
        "NOACCUM": "1",
    }
    return Side(words, out / "theirs.log", environment, folder)


def rows(checkout: Path, data: Path, out: Path, passes: int, large: bool) -> list[dict[str, Any]]:
    """Both, on pictures of one shape and of several, so many times over each set after one that does not count."""
    out.mkdir()
    example = changed(checkout.resolve(), out / "tensorpack")
    sets = {"one shape": of_one_shape(data.resolve(), out / "one"), "mixed shapes": data.resolve()}
    found = []
    for short, longest in ((256, 320), (800, 1333)) if large else ((256, 320),):
        for name, folder in sets.items():
            count = pictures(folder)
            with ExitStack() as stack:
                sides = {
                    "ours": stack.enter_context(ours(folder, short, longest, out)),
                    "theirs": stack.enter_context(theirs(example, folder, short, longest, out)),
                }
                costs = alternate(sides, count, count * passes)
                peaks = {side: s.peak_gb() for side, s in sides.items()}
            what = f"train R50-FPN-GN {short}/{longest} float32 beside tensorpack's example, {name}"
            found += _rows(what, costs, peaks, GOALS[short])
    return found


def _rows(what: str, costs: dict[str, list[Cost]], peaks: dict[str, float], goal: float) -> list[dict[str, Any]]:
    wall_s = {side: [c.wall_s for c in of_side] for side, of_side in costs.items()}
    cpu_s = {side: [c.cpu_s for c in of_side] for side, of_side in costs.items()}
    return [
        _row(f"{what}: clock", wall_s["ours"], wall_s["theirs"], "s/image", goal),
        _row(f"{what}: processor", cpu_s["ours"], cpu_s["theirs"], "s/image", goal),
        _row(f"{what}: memory", [peaks["ours"]], [peaks["theirs"]], "GB", 0.9),
    ]


def _row(what: str, ours: Sequence[float], theirs: Sequence[float], unit: str, goal: float) -> dict[str, Any]:
    """Means, as only whole passes compare: each side has its own order of pictures. Spread: of the thirds' ratios."""
    thirds = [slice(i * len(ours) // 3, (i + 1) * len(ours) // 3) for i in range(3)] if len(ours) > 2 else [slice(None)]
    ratios = [statistics.mean(ours[t]) / statistics.mean(theirs[t]) for t in thirds]
    return {
        "what": what,
        "value": round(statistics.mean(ours), 3),
        "unit": unit,
        "against": f"tensorpack's example, {statistics.mean(theirs):.3f} {unit}",
        "ratio": round(statistics.mean(ours) / statistics.mean(theirs), 3),
        "goal": goal,
        "runs": len(ours),
        "spread": round(max(ratios) - min(ratios), 3),
    }
