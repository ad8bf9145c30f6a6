"""What Mask R-CNN costs on this machine: `python benchmarks/maskrcnn.py`, writes results/maskrcnn.json.

tensorpack's own example, the peer of these goals, is not part of its package: `--tensorpack DIR` runs it from a
checkout, step by step beside this trainer (tensorpack_example.py: beside) and until box and mask AP are 0.5
(tensorpack_race.py: race). Other rows against it quote figures of another day on the same kind of machine (2 cores),
say so and have no ratio; the yardstick says how fast that machine was.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import cv2
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import tensorpack_example, tensorpack_race, yardstick  # noqa: E402
from benchmarks.maskrcnn_setup import FULL, MPIRUN, REDUCED, sizes  # noqa: E402
from trainer.common.ranks import metrics  # noqa: E402
from trainer.coco.annotations import CocoSet, AnnotatedImage, read_set  # noqa: E402
from trainer.coco.sample import write_sample  # noqa: E402
from trainer.maskrcnn.config import Config  # noqa: E402
from trainer.maskrcnn.examples import object_masks, read_image, resize  # noqa: E402
from trainer.maskrcnn.keys import apply_settings  # noqa: E402
from trainer.maskrcnn.loader import batches, training_pictures  # noqa: E402

ALONE, BESIDE = ("full", "half", "ranks", "loader"), ("beside", "race")  # parts; the latter run tensorpack's example


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the result file; `ratio` is our cost over theirs, None where theirs was not run in this run."""

    what: str
    value: float
    unit: str
    against: str
    ratio: float | None
    goal: float | None
    runs: int
    spread: float


@dataclass(frozen=True)
class Launch:
    """What one training launch cost."""

    images_per_s: float
    seconds: float
    peak_gb: float
    job: Path


def start(settings: Sequence[str], job: Path, prefix: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
    """A training in the background."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    with (job.parent / f"{job.name}.log").open("wb") as log:
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "trainer.maskrcnn", "--job-dir", str(job), *settings],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
        )


def ended(process: "subprocess.Popen[bytes]", job: Path, began: float, limit_s: float = 1500) -> Launch:
    """What it cost; the rate is the median of the second half of its log lines."""
    deadline = time.monotonic() + limit_s
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline:
            process.kill()
            raise SystemExit(f"{job}: not done after {limit_s:.0f} s")
        time.sleep(0.05)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit((job.parent / f"{job.name}.log").read_text()[-2000:])
    rates = [r["images_per_s"] for r in metrics.read(job) if r["kind"] == "train"]
    return Launch(statistics.median(rates[len(rates) // 2 :]), time.monotonic() - began, usage.ru_maxrss / 1e6, job)


def launch(settings: Sequence[str], job: Path, prefix: Sequence[str] = ()) -> Launch:
    """One training from start to end."""
    began = time.monotonic()
    return ended(start(settings, job, prefix), job, began)


def quick(steps: int, log: int) -> tuple[str, ...]:
    """So many steps, nothing evaluated."""
    return (
        f"TRAIN.MAX_STEPS={steps}",
        f"TRAIN.STEPS_PER_EPOCH={steps}",
        f"TRAIN.LOG_PERIOD={log}",
        "TRAIN.WARMUP=1",
        "TRAIN.BASE_LR=0.001",
        "TRAIN.EVAL_PERIOD=0",
        "TRAIN.EVAL_AT_END=False",
        "DATA.NUM_WORKERS=1",
    )


def spread(values: Sequence[float]) -> float:
    """Largest less smallest, over the median."""
    return round((max(values) - min(values)) / statistics.median(values), 3)


def full_model(data: Path, out: Path, runs: int) -> list[Row]:
    """R50-FPN with group norm, default region counts, one rank on two threads."""
    rows = []
    for short, longest, steps, log, theirs in (
        (256, 320, 48, 4, "tensorpack's example, NHWC rewrite: 1.12 to 1.25 images/s, not in the same run"),
        (800, 1333, 8, 2, "tensorpack's example, NHWC rewrite: 0.23 images/s, 7.1 GB, not in the same run"),
    ):
        for precision in ("float32", "bfloat16"):
            settings = (
                *FULL,
                *sizes(short, longest),
                *quick(steps, log),
                f"DATA.BASEDIR={data}",
                f"TRAIN.PRECISION={precision}",
            )
            got = [launch(settings, out / f"full-{short}-{precision}-{i}") for i in range(runs if short < 800 else 1)]
            what = f"train R50-FPN-GN {short}/{longest} {precision}, one rank, two threads"
            rates = [g.images_per_s for g in got]
            rows.append(
                Row(
                    what=what,
                    value=round(statistics.median(rates), 3),
                    unit="images/s",
                    against=theirs,
                    ratio=None,
                    goal=0.8,
                    runs=len(got),
                    spread=spread(rates),
                )
            )
            rows.append(
                Row(
                    what=f"{what}: memory",
                    value=round(max(g.peak_gb for g in got), 2),
                    unit="GB",
                    against=theirs,
                    ratio=None,
                    goal=0.9 if short == 800 else None,
                    runs=len(got),
                    spread=spread([g.peak_gb for g in got]),
                )
            )
    return rows


def evaluation(data: Path, out: Path) -> list[Row]:
    """The newest checkpoint of the 800/1333 run on the validation images."""
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom trainer.coco.annotations import read_set\n"
        "from trainer.maskrcnn.checkpoint_loader import detector_of_job\n"
        "_, d = detector_of_job(Path(sys.argv[1]), [], threads=2)\n"
        "p = read_set(Path(sys.argv[2]), 'val2017').pictures\n"
        "times = []\nfor _ in range(2):\n    times.clear()\n    before = time.monotonic()\n"
        "    for _ in d.detect_all(p[:8]):\n        times.append(time.monotonic() - before)\n"
        "        before = time.monotonic()\nprint(sorted(times)[len(times) // 2])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(out / "full-800-float32-0"), str(data)],
        cwd=ROOT,
        check=True,
        text=True,
        capture_output=True,
        timeout=900,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    return [
        Row(
            what="evaluate R50-FPN-GN 800/1333 float32, one image, two threads",
            value=round(float(done.stdout), 3),
            unit="s",
            against="tensorpack's example: not measured",
            ratio=None,
            goal=0.8,
            runs=8,
            spread=0.0,
        )
    ]


def time_to_half(out: Path) -> list[Row]:
    """The reduced model on 16 drawn images until their box and mask AP are over 0.5, start and evaluations included."""
    write_sample(out / "shapes16", train=16, val=1, size=256, seed=0)
    got = launch(
        (
            *REDUCED,
            *sizes(192, 256),
            f"DATA.BASEDIR={out / 'shapes16'}",
            "DATA.VAL=coco_train2017",
            "BACKBONE.CHANNELS=64",
            "TRAIN.BASE_LR=0.16",
            "TRAIN.WARMUP=100",
            "TRAIN.STEPS_PER_EPOCH=100",
            "TRAIN.EVAL_PERIOD=2",
            "TRAIN.LR_SCHEDULE=[112,150]",
            "TRAIN.GRADIENT_CLIP=10",
            "DATA.NUM_WORKERS=1",
            "TEST.BOX_TARGET=0.5",
            "TEST.MASK_TARGET=0.5",
        ),
        out / "half",
    )
    last = [r for r in metrics.read(got.job) if r["kind"] == "eval"][-1]
    reached = f"box AP {last['box_ap']:.2f}, mask AP {last['mask_ap']:.2f}, step {last['step']}"
    return [
        Row(
            what=f"reduced model, 16 drawn images: time to {reached}",
            value=round(got.seconds, 1),
            unit="s",
            against="tensorpack's example: 89 s to 0.77 and 0.88, not in the same run",
            ratio=None,
            goal=0.9,
            runs=1,
            spread=0.0,
        )
    ]


def two_ranks(out: Path, runs: int) -> list[Row]:
    """2 ranks of one thread against two processes that know nothing of each other, alternating."""
    write_sample(out / "shapes64", train=64, val=1, size=192, seed=0)
    settings = (*REDUCED, *sizes(192, 256), f"DATA.BASEDIR={out / 'shapes64'}", *quick(200, 20))
    together, apart = [], []
    for i in range(runs):
        together.append(launch(settings, out / f"mpi-{i}", (*MPIRUN, "-np", "2")).images_per_s)
        began = time.monotonic()
        jobs = [out / f"alone-{i}-{k}" for k in range(2)]
        processes = [start(settings, job, ("taskset", "-c", str(k))) for k, job in enumerate(jobs)]
        apart.append(sum(ended(p, job, began).images_per_s for p, job in zip(processes, jobs, strict=True)))
    return [
        Row(
            what="reduced model, 2 ranks of one thread under mpirun",
            value=round(statistics.median(together), 2),
            unit="images/s",
            against=f"two independent processes, {statistics.median(apart):.2f} images/s",
            ratio=round(statistics.median(apart) / statistics.median(together), 3),
            goal=1.15,
            runs=runs,
            spread=spread(together),
        )
    ]


def loader(data: Path, runs: int) -> list[Row]:
    """Batches with masks at 800/1333 on one core, against masks that are resized with the image."""
    config = apply_settings(Config(), ["DATA.NUM_WORKERS=1", "PREPROC.FLIP=True"])
    coco: CocoSet = read_set(data, "train2017")
    pictures = training_pictures([coco], config)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    def ours() -> None:
        for _ in islice(batches(pictures, config, rank=0, ranks=1), len(pictures)):
            pass

    def resized() -> None:
        for picture in pictures:
            _with_resized_masks(picture)

    ours()
    a, b = [], []
    for _ in range(runs):
        a.append(_seconds(ours) / len(pictures))
        b.append(_seconds(resized) / len(pictures))
    plain = f"decode, rasterise and resize every mask: {1 / statistics.median(b):.1f} images/s"
    return [
        Row(
            what="loader with masks at 800/1333, one core",
            value=round(1 / statistics.median(a), 1),
            unit="images/s",
            against=f"{plain}; tensorpack's own loader not measured",
            ratio=round(statistics.median(a) / statistics.median(b), 3),
            goal=0.6,
            runs=runs,
            spread=spread(a),
        )
    ]


def _with_resized_masks(picture: AnnotatedImage) -> None:
    image = resize(read_image(picture), 800, 1333)
    for mask in object_masks(picture):
        np.ascontiguousarray(cv2.resize(mask, image.shape[1::-1])[:, ::-1])


def _seconds(body: Callable[[], None]) -> float:
    began = time.monotonic()
    body()
    return time.monotonic() - began


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what was asked for and writes the rows beside this file."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, default=Path(os.environ.get("DLAMI_TEST_DATA", ROOT.parent / "shared/data")))
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--only", nargs="*", choices=(*ALONE, *BESIDE), help="beside and race need --tensorpack")
    p.add_argument("--tensorpack", type=Path, metavar="DIR", help="a checkout of tensorpack to run the example of")
    p.add_argument("--passes", type=int, default=2, help="over each set of pictures beside tensorpack's example")
    p.add_argument("--large", action="store_true", help="beside tensorpack's example at 800/1333 as well")
    a = p.parse_args(argv)
    wanted = a.only if a.only is not None else [*ALONE, *(BESIDE if a.tensorpack else ())]
    if not a.tensorpack and set(wanted) & set(BESIDE):
        p.error("beside and race run tensorpack's example: give --tensorpack DIR, a checkout of it")
    rows: list[Row] = []
    data = a.data / "coco-mini"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        if "full" in wanted:
            rows += [*full_model(data, out, a.runs), *evaluation(data, out)]
        if "half" in wanted:
            rows += time_to_half(out)
        if "ranks" in wanted:
            rows += two_ranks(out, a.runs)
        if "loader" in wanted:
            rows += loader(data, a.runs)
        if "beside" in wanted:
            found = tensorpack_example.rows(a.tensorpack, data, out / "beside", a.passes, a.large)
            rows += [Row(**row) for row in found]
        if "race" in wanted:
            rows += [Row(**row) for row in tensorpack_race.rows(a.tensorpack, data, out / "race")]
    target = Path(__file__).with_name("results") / "maskrcnn.json"
    target.parent.mkdir(exist_ok=True)
    kept = json.loads(target.read_text()) if target.exists() else []
    measured = {r.what.partition(":")[0] for r in rows}
    kept = [r for r in kept if r["what"].partition(":")[0] not in {*measured, "yardstick"}]
    target.write_text(json.dumps([*kept, *map(asdict, rows), yardstick.row()], indent=1) + "\n")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
