"""How soon this trainer and tensorpack's example are at box and mask AP 0.5: a part of `benchmarks/maskrcnn.py`.

Both train the reduced model from the same random weights, one picture a step on two threads, in float32 with oneDNN and
at the same rates, and are judged after the same steps on the pictures that they learn. They take turns until both are
there, each step of one after one of the other. What counts is the clock of a program's own turns, its steps and its
evaluations; its start is a row of its own. This trainer builds the graph that detects in its first evaluation, the
example at its start.

Both know COCO's 80 categories, cut regions by one number and paste masks the fast way, as the example can. Pictures
come in each program's own order, mirrored by its own chance, so the steps that one race takes are one sample.
"""

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from benchmarks.lockstep import Side, alternate
from benchmarks.maskrcnn_setup import REDUCED, chosen
from benchmarks.tensorpack_example import changed, ours, theirs
from trainer.coco import masks
from trainer.coco.sample import write_sample

SHORT, LONG = 192, 256
EVERY, DROP, LIMIT = 100, 1200, 1600
"""Steps between two evaluations, to the tenth of the rate, and after which a program that is not there is given up."""
WANTED_AP, GOAL = 0.5, 0.9
RECIPE = (
    *(setting for setting in REDUCED if "_TOPK=" not in setting),
    "DATA.VAL=('coco_train2017',)",
    "TRAIN.BASE_LR=0.16",
    "TRAIN.WARMUP=100",
    f"TRAIN.LR_SCHEDULE=[{DROP // 8},{(LIMIT + 2 * EVERY) // 8}]",  # of 8 images; its end is never reached
    f"TRAIN.STEPS_PER_EPOCH={EVERY}",
    "TRAIN.EVAL_PERIOD=1",
    "MRCNN.ACCURATE_PASTE=False",
)
REGIONS = {"TRAIN": 300, "TEST": 200}
THEIRS = (*RECIPE, *(f"RPN.{when}_PER_LEVEL_NMS_TOPK={n}" for when, n in REGIONS.items()))
OURS = (
    *THEIRS,
    *(f"RPN.{when}_{what}_TOPK={n}" for when, n in REGIONS.items() for what in ("PER_LEVEL_PRE_NMS", "IMAGE")),
    "RPN.NPZ_ANCHOR_CENTER=0.5",  # the bias that conversion would shift is zero at the start
)
NOT_LOADED = ("not found in the", "Cannot load")
"""What tensorpack says of variables that it leaves as they are, and goes on."""
COUNTERS = "not found in the dict: global_step, learning_rate"
"""What it rightly says of those that are no weights."""


@dataclass(frozen=True)
class Judged:
    """Where a program stands after an evaluation; its start is not in the seconds."""

    steps: int
    spent_s: float
    box_ap: float
    mask_ap: float

    @property
    def is_there(self) -> bool:
        """Whether both AP are reached."""
        return min(self.box_ap, self.mask_ap) >= WANTED_AP

    def __str__(self) -> str:
        return f"step {self.steps}, box AP {self.box_ap:.2f}, mask AP {self.mask_ap:.2f}"


def rows(checkout: Path, data: Path, out: Path) -> list[dict[str, Any]]:
    """A race on 16 drawn pictures and one on 8 photographs."""
    out.mkdir()
    example = changed(checkout.resolve(), out / "tensorpack")
    categories = json.loads((data / "annotations/instances_train2017.json").read_text())["categories"]
    write_sample(out / "drawn", train=16, val=1, size=LONG, seed=0)
    chosen(data, out / "real")
    weights = out / "start.npz"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as child:
        child.submit(write_start, (*OURS, f"DATA.NUM_CATEGORY={len(categories)}"), weights).result()
    found = []
    for what, name in (("16 drawn pictures", "drawn"), ("8 photographs", "real")):
        as_example_reads(out / name / "annotations/instances_train2017.json", categories)
        logs = out / f"{name}-logs"
        logs.mkdir()
        told = (out / name, SHORT, LONG, logs)
        load = ("--load", str(weights))
        started, judged = race(
            {"ours": partial(ours, *told, (*OURS, *load)), "theirs": partial(theirs, example, *told, (*THEIRS, *load))},
            partial(check_loaded, logs / "theirs.log"),
        )
        found += _rows(f"reduced model beside tensorpack's example, {what}", started, judged)
    return found


def write_start(settings: Sequence[str], out: Path) -> None:
    """Random weights as an npz that both read. For a process of its own, as it loads TensorFlow."""
    from trainer.maskrcnn.config import Config
    from trainer.maskrcnn.detector import Detector
    from trainer.maskrcnn.keys import apply_settings
    from trainer.maskrcnn.weights import write_npz

    config = apply_settings(Config(), settings)
    write_npz(out, Detector(config).weights(), config)


def as_example_reads(annotations: Path, categories: Sequence[Mapping[str, Any]]) -> None:
    """The file with all of COCO's categories, and with polygons where an object that is no crowd has run lengths."""
    told = json.loads(annotations.read_text())
    sizes = {i["id"]: (i["height"], i["width"]) for i in told["images"]}
    for a in told["annotations"]:
        if not a["iscrowd"] and isinstance(a["segmentation"], dict):
            a["segmentation"] = outlines(masks.decode(a["segmentation"], *sizes[a["image_id"]]))
    annotations.write_text(json.dumps({**told, "categories": categories}))


def outlines(mask: NDArray[np.uint8], finer: int = 4) -> list[list[float]]:
    """Polygons around the parts of a mask [height, width], good to an eighth of a pixel; holes are filled."""
    large = np.kron(mask, np.ones((finer, finer), np.uint8))
    found, _ = cv2.findContours(large, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    return [((c.ravel() + 0.5) / finer).tolist() for c in found if len(c) >= 3]


def check_loaded(log: Path) -> None:
    """Raises SystemExit if the example began with other weights than it was given."""
    for line in log.read_text(errors="replace").splitlines():
        if any(words in line for words in NOT_LOADED) and not line.endswith(COUNTERS):
            raise SystemExit(f"{log}: not the same start: {line[:500]}")


def race(
    starts: Mapping[str, Callable[[], Side]], check: Callable[[], None] = lambda: None
) -> tuple[dict[str, float], dict[str, Judged]]:
    """Seconds of each program's start to its first step, and its first evaluation with both AP, or its last one.

    Who is there goes on until the others are, so that a step finds the machine as the other's step leaves it, first and
    last.
    """
    judged: dict[str, Judged] = {}
    with ExitStack() as stack:
        sides, started, spent = lined_up(starts, stack)
        check()
        for now in evaluations(sides, spent, EVERY, LIMIT):
            judged |= {n: j for n, j in now.items() if n not in judged or not judged[n].is_there}
            if all(j.is_there for j in judged.values()):
                break
    return started, judged


def lined_up(
    starts: Mapping[str, Callable[[], Side]], stack: ExitStack
) -> tuple[dict[str, Side], dict[str, float], dict[str, float]]:
    """The programs, one started after the other and its first step done; seconds of each start, and of that step."""
    sides: dict[str, Side] = {}
    started: dict[str, float] = {}
    spent: dict[str, float] = {}
    for name, start in starts.items():
        began = time.monotonic()
        sides[name] = stack.enter_context(start())
        spent[name] = sides[name].step().wall_s
        started[name] = time.monotonic() - began - spent[name]
    return sides, started, spent


def evaluations(
    sides: Mapping[str, Side], spent: Mapping[str, float], every: int, limit: int
) -> Iterator[dict[str, Judged]]:
    """What programs say of each of their evaluations. They take turns, and have `spent` so much on their first step."""
    total = dict(spent)
    for steps in range(every, limit + 1, every):
        costs = alternate(sides, 0, every - 1 if steps == every else every)
        judged = {}
        for name, side in sides.items():
            evaluation = side.step()
            total[name] += sum(c.wall_s for c in costs[name]) + evaluation.wall_s
            now = Judged(steps, total[name], *(evaluation.scores[f"{kind}_ap"] for kind in ("box", "mask")))
            print(f"{name}: {now}, {now.spent_s:.0f} s ({evaluation.wall_s:.1f} s for this evaluation)", flush=True)
            judged[name] = now
        yield judged


def _rows(what: str, started: Mapping[str, float], judged: Mapping[str, Judged]) -> list[dict[str, Any]]:
    us, them = judged["ours"], judged["theirs"]
    counted = f"clock of steps and evaluations to box and mask AP {WANTED_AP}"
    until = {name: f"{'' if j.is_there else 'not there at '}{j}" for name, j in judged.items()}
    both = us.is_there and them.is_there
    common = {"unit": "s", "runs": 1, "spread": 0.0}
    return [
        {
            "what": f"{what}, {counted}: {until['ours']}",
            "value": round(us.spent_s, 1),
            "against": f"tensorpack's example from the same start, {them.spent_s:.1f} s: {until['theirs']}",
            "ratio": round(us.spent_s / them.spent_s, 3) if both else None,
            "goal": GOAL,
            **common,
        },
        {
            "what": f"{what}, start to the first step, in none of the seconds above",
            "value": round(started["ours"], 1),
            "against": f"tensorpack's example, {started['theirs']:.1f} s",
            "ratio": round(started["ours"] / started["theirs"], 3),
            "goal": None,
            **common,
        },
    ]
