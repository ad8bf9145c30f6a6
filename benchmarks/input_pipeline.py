"""Images per second from TFRecords to uint8 batches of random crops, against the raw decode limit of the same cores.

`python benchmarks/input_pipeline.py`, writes results/input_pipeline.json. Photographs are drawn noise of natural
statistics unless a folder of JPEG files is named by --images; the limit is libjpeg-turbo through OpenCV, one process
per core, whole pictures. Both sides run in every round, in turn, each as a new process.
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
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rounds  # noqa: E402
from trainer import dataset, records  # noqa: E402

SHORTER_SIDE = 400  # the drawn originals are near 450 pixels, as ImageNet's most are near the 480 they are shrunk to
CORES = len(os.sched_getaffinity(0))
GOALS = {"originals": 1.0, "shrunk": 1.15}
TF_CNN = {"originals": 1312, "shrunk": 1795}  # images/s measured on another day on a machine of this kind


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


def pipeline(shards: Path, times: int) -> float:
    """Seconds per image of the trainer's own input, decode to batch, after a first batch."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    from trainer.resnet50 import images
    from trainer.resnet50.reader import Reader

    reader = Reader(dataset.find_split(shards, "train").index())
    batch = 64
    steps = max(4, len(reader) * times // batch)
    share = images.Share(rank=0, ranks=1, batch=batch, size=224, threads=CORES)
    found = iter(
        images.training(reader, share, steps=range(steps + 4), first_image=0, crop_area=0.08, seed=1, classes=1000)
    )
    for _ in range(4):  # what prefetching has ready is not counted
        next(found)
    began = time.perf_counter()
    for _ in range(steps - 3):
        next(found)
    return (time.perf_counter() - began) / ((steps - 3) * batch)


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


def in_a_process(what: str, shards: Path, times: int) -> float:
    """One side of a round."""
    words = [sys.executable, __file__, "--one", what, "--shards", str(shards), "--times", str(times)]
    return float(json.loads(subprocess.run(words, check=True, capture_output=True, text=True, timeout=600).stdout))


def prepare(raw: Path, out: Path, shorter_side: int) -> None:
    """The photographs as eight shards."""
    words = ["--raw", str(raw), "--out", str(out), "--shorter-side", str(shorter_side), "--train-shards", "8"]
    subprocess.run([sys.executable, "-m", "trainer.imagenet", *words], check=True, cwd=ROOT, capture_output=True)


def main() -> None:
    """Measures and writes the rows."""
    parser = argparse.ArgumentParser(description="Input pipeline against the raw decode limit.")
    parser.add_argument("--count", type=int, default=300, help="photographs")
    parser.add_argument("--images", type=Path, help="a folder of JPEG files, instead of drawn photographs")
    parser.add_argument("--times", type=int, default=4, help="times that each is decoded in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", choices=("raw", "pipeline"))
    parser.add_argument("--shards", type=Path)
    a = parser.parse_args()
    if a.one:
        print((raw_decode if a.one == "raw" else pipeline)(a.shards, a.times))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_raw(Path(folder) / "raw", a.count, a.images)
        for name, side in (("originals", 0), ("shrunk", SHORTER_SIDE)):
            out = Path(folder) / name
            prepare(Path(folder) / "raw", out, side)
            ours, limit = f"ours, {name}", f"raw decode of whole pictures, {CORES} processes, {name}"
            runs = rounds.rounds(
                {
                    limit: lambda out=out: in_a_process("raw", out, a.times),
                    ours: lambda out=out: in_a_process("pipeline", out, a.times),
                },
                a.rounds,
            )
            kilobytes = sum(p.stat().st_size for p in out.glob("train-*")) / a.count / 1000
            label = f"TFRecord to uint8 batch of random crops, {kilobytes:.0f} kB a photograph ({name})"
            rows.append(rounds.row(runs, ours, limit, GOALS[name], unit="s/image", label=label))
            peer = f"tf_cnn_benchmarks' pipeline: not measured here ({TF_CNN[name]} images/s on another day)"
            rows.append({**rows[-1], "against": peer, "ratio": None, "goal": None})
        shards, synthetic = "training from shards", "training on synthetic images"
        shrunk = Path(folder) / "shrunk"
        runs = rounds.rounds({synthetic: lambda: training(None), shards: lambda: training(shrunk)}, min(a.rounds, 3))
        rows.append(rounds.row(runs, shards, synthetic, 1.05, unit="s/image", label=f"ResNet-50 {shards}"))
    rounds.write("input_pipeline", rows)


if __name__ == "__main__":
    main()
