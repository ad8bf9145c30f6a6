"""Images per second from TFRecords to uint8 batches of random crops, against the raw decode limit of the same cores.

`python benchmarks/input_pipeline.py`, writes results/input_pipeline.json. Photographs are drawn noise of natural
statistics unless a folder of JPEG files is named by --images; the limit is libjpeg-turbo through OpenCV, one process
per core, whole pictures. Both sides run in every round, in turn, each as a new process.

`--tf-cnn DIR` measures the rows against tf_cnn_benchmarks alone, from a checkout (tf_cnn.py): its batches are
normalised float32, so ours are mirrored and normalised, too, which a training leaves to the device. A run without it
leaves those rows as they are.
"""

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import cv2
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rounds, tf_cnn  # noqa: E402
from benchmarks.lockstep import Cost  # noqa: E402
from trainer.common.data import dataset, records  # noqa: E402

SHORTER_SIDE = 400  # the drawn originals are near 450 pixels, as ImageNet's most are near the 480 they are shrunk to
CORES = len(os.sched_getaffinity(0))
SIDES = {"originals": 0, "shrunk": SHORTER_SIDE}
GOALS = {"originals": 1.0, "shrunk": 1.15}
BATCH, SIZE = 64, 224
WARM_UP = 4  # batches: what prefetching has ready is not counted
LEAST_AREA = 0.08  # of a photograph in a crop
THEIR_LEAST_AREA = 0.1  # of tf_cnn_benchmarks: from 0.05 on, but a tenth of the photograph has to be covered


def photograph(rng: np.random.Generator, kilobytes: float) -> bytes:
    """About 450 x 450 pixels with a natural fall-off over frequencies, at the quality that gives this size."""
    height, width = (int(n) for n in rng.integers(400, 500, 2))
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)) + 1 / max(height, width)
    noise = np.fft.ifft2(np.fft.fft2(rng.normal(size=(3, height, width))) / frequency).real
    picture = np.clip(noise.transpose(1, 2, 0) / noise.std() * 50 + 120, 0, 255).astype(np.uint8)
    quality = 95
    while quality > 40:
        data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()
        if len(data) < kilobytes * 1000:
            break
        quality -= 3
    return data


def photographs(count: int, given: Path | None) -> Iterator[bytes]:
    """Drawn ones of about 110 kB; or those of the JPEG files below a folder, again and again."""
    files = sorted(p for p in given.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg")) if given else []
    if given and not files:
        raise SystemExit(f"{given}: no JPEG file below it")
    rng = np.random.default_rng(0)
    for i in range(count):
        yield files[i % len(files)].read_bytes() if files else photograph(rng, 110)


def write_raw(folder: Path, count: int, given: Path | None = None) -> None:
    """A raw folder of one class."""
    for name in ("train/n01", "val"):
        (folder / name).mkdir(parents=True)
    for i, data in enumerate(photographs(count, given)):
        (folder / f"train/n01/{i:05d}.JPEG").write_bytes(data)
    (folder / "val/0.JPEG").write_bytes(data)
    (folder / "synsets.txt").write_text("n01\n")
    (folder / "val_synsets.txt").write_text("n01\n")


def decode_part(part: tuple[list[bytes], int]) -> int:
    """Decodes a list of images so many times."""
    images, times = part
    cv2.setNumThreads(1)
    for _ in range(times):
        for data in images:
            cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    return len(images) * times


def raw_decode(shards: Path, times: int) -> float:
    """Seconds per image of nothing but decoding, one process per core."""
    files = dataset.find_split(shards, "train").shards
    images = [records.parse(r)["image/encoded"][0] for path in files for r in records.read_all(path)]
    with multiprocessing.get_context("fork").Pool(CORES) as pool:
        parts = [(images[i::CORES], times) for i in range(CORES)]
        pool.map(decode_part, [(images[:4], 1)] * CORES)
        began = time.perf_counter()
        count = sum(pool.map(decode_part, parts, chunksize=1))
        return (time.perf_counter() - began) / count


def batches_of(shards: Path, times: int) -> int:
    """Measured batches of one side in a round."""
    return max(1, len(dataset.find_split(shards, "train").index()) * times // BATCH)


def pipeline(shards: Path, times: int, *, like_tf_cnn: bool = False) -> Cost:
    """An image's cost in the trainer's own input, decode to batch, after the first batches.

    Args:
        like_tf_cnn: crops as large as those of tf_cnn_benchmarks, mirrored and normalised to float32 as by a step.
    """
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf
    from trainer.resnet50 import augment, images
    from trainer.resnet50.reader import RecordReader

    def finished(pixels: tf.Tensor, label: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        return augment.normalise(augment.flip_half(pixels, seeds), tf.float32)

    reader = RecordReader(dataset.find_split(shards, "train").index())
    steps, area = batches_of(shards, times), THEIR_LEAST_AREA if like_tf_cnn else LEAST_AREA
    share = images.InputShare(rank=0, ranks=1, batch=BATCH, size=SIZE, threads=CORES)
    ahead = 3  # that are being made when the last measured one comes
    total = range(WARM_UP + steps + ahead)
    found = iter(images.training(reader, share, steps=total, first_image=0, crop_area=area, seed=1, classes=1000))
    finish = tf.function(finished, autograph=False)
    for number in range(WARM_UP + steps):
        if number == WARM_UP:
            began = time.perf_counter(), time.process_time()
        batch = next(found)
        if like_tf_cnn:
            made = finish(*batch)
            assert (made.dtype, made.shape) == (tf.float32, (BATCH, SIZE, SIZE, 3)), made
    count = steps * BATCH
    return Cost((time.perf_counter() - began[0]) / count, (time.process_time() - began[1]) / count)


def training(shards: Path | None) -> float:
    """Seconds per image of ResNet-50 steps, 32 images each, on all cores: from shards, or on synthetic images."""
    words = [
        sys.executable,
        "-m",
        "trainer.benchmark",
        "--model",
        "resnet50_v1.5",
        "--batch-size",
        "32",
        "--num-batches",
        "4",
        "--num-warmup-batches",
        "2",
        *(["--data-dir", str(shards)] if shards else []),
    ]
    said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=900, cwd=ROOT).stdout
    found = re.search(r"^total images/sec: ([\d.]+)", said, re.M)
    assert found, said
    return 1 / float(found[1])


ONE: dict[str, Callable[[Path, int], float | tuple[float, ...]]] = {
    "raw": raw_decode,
    "pipeline": lambda shards, times: pipeline(shards, times).wall_s,
    "like_tf_cnn": lambda shards, times: astuple(pipeline(shards, times, like_tf_cnn=True)),
}


def in_a_process(what: str, shards: Path, times: int) -> Any:
    """One side of a round."""
    words = [sys.executable, __file__, "--one", what, "--shards", str(shards), "--times", str(times)]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=600, env=tf_cnn.ENVIRONMENT)
    return json.loads(done.stdout)


def prepare(raw: Path, out: Path, shorter_side: int) -> None:
    """The photographs as eight shards."""
    words = ["--raw", str(raw), "--out", str(out), "--shorter-side", str(shorter_side), "--train-shards", "8"]
    subprocess.run([sys.executable, "-m", "trainer.imagenet", *words], check=True, cwd=ROOT, capture_output=True)


def kilobytes(shards: Path) -> str:
    """Of a photograph, in a row's words."""
    found = dataset.find_split(shards, "train")
    return f"{sum(p.stat().st_size for p in found.shards) / len(found.index()) / 1000:.0f} kB a photograph"


def rows_of(a: argparse.Namespace, sets: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Against the limit of the same cores, and a training against one on synthetic images."""
    rows = []
    for name, out in sets.items():
        ours, limit = f"ours, {name}", f"raw decode of whole pictures, {CORES} processes, {name}"
        runs = rounds.rounds(
            {
                limit: lambda out=out: in_a_process("raw", out, a.times),
                ours: lambda out=out: in_a_process("pipeline", out, a.times),
            },
            a.rounds,
        )
        label = f"TFRecord to uint8 batch of random crops, {kilobytes(out)} ({name})"
        rows.append(rounds.row(runs, ours, limit, GOALS[name], unit="s/image", label=label))
    shards, synthetic = "training from shards", "training on synthetic images"
    runs = rounds.rounds(
        {synthetic: lambda: training(None), shards: lambda: training(sets["shrunk"])}, min(a.rounds, 3)
    )
    return [*rows, rounds.row(runs, shards, synthetic, 1.05, unit="s/image", label=f"ResNet-50 {shards}")]


def rows_beside_tf_cnn(a: argparse.Namespace, sets: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Both make batches of normalised float32 of the same shards, with as many threads, each in turn a new process."""
    rows = []
    for name, out in sets.items():
        steps = batches_of(out, a.times)
        costs: dict[str, list[Cost]] = {"ours": [], "theirs": []}
        for _ in range(a.rounds):
            costs["theirs"].append(tf_cnn.input_cost(a.tf_cnn, out, batch=BATCH, steps=steps, threads=CORES))
            costs["ours"].append(Cost(*in_a_process("like_tf_cnn", out, a.times)))
        label = f"TFRecord to normalised float32 batch of random crops, {kilobytes(out)} ({name})"
        rows += tf_cnn.cost_rows(label, costs, "its input", tf_cnn.INPUT_GOAL)
    return rows


def main() -> None:
    """Measures and writes the rows."""
    parser = argparse.ArgumentParser(description="Input pipeline against the raw decode limit.")
    parser.add_argument("--count", type=int, default=300, help="photographs")
    parser.add_argument("--images", type=Path, help="a folder of JPEG files, instead of drawn photographs")
    parser.add_argument("--times", type=int, default=4, help="times that each is decoded in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--tf-cnn", type=Path, help="checkout of tensorflow/benchmarks: measure beside it, nothing else"
    )
    parser.add_argument("--one", choices=tuple(ONE))
    parser.add_argument("--shards", type=Path)
    a = parser.parse_args()
    if a.one:
        print(json.dumps(ONE[a.one](a.shards, a.times)))
        return
    beside, others = rounds.committed("input_pipeline", tf_cnn.NAME)
    with tempfile.TemporaryDirectory() as folder:
        write_raw(Path(folder) / "raw", a.count, a.images)
        sets = {name: Path(folder) / name for name in SIDES}
        for name, side in SIDES.items():
            prepare(Path(folder) / "raw", sets[name], side)
        rows = [*others, *rows_beside_tf_cnn(a, sets)] if a.tf_cnn else [*rows_of(a, sets), *beside]
    rounds.write("input_pipeline", rows)


if __name__ == "__main__":
    main()
