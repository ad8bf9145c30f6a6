"""Preparing ImageNet against bare loops that do only the image work: `python benchmarks/prepare_imagenet.py`.

Writes results/prepare_imagenet.json. Three ways: header check, full decode check, shrinking and encoding again. The
bare loops read files and write the bytes one after the other, without records, labels, checksums, manifest. Two
processes on each side, new ones in every round, alternating; process start is counted on both sides.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import cv2
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import rounds  # noqa: E402
from benchmarks.input_pipeline import write_raw  # noqa: E402
from trainer.imagenet.convert import Options, convert  # noqa: E402
from trainer.common.data.jpeg import read_header  # noqa: E402
from trainer.imagenet.raw import read_raw  # noqa: E402
from trainer.imagenet.shards import ImageOptions  # noqa: E402

PROCESSES, SIDE, QUALITY, GOAL = 2, 400, 85, 1.15
WAYS = {
    "header check": ImageOptions(shorter_side=0, check="header"),
    "full decode check": ImageOptions(shorter_side=0, check="decode"),
    f"shrink to {SIDE} and encode again": ImageOptions(shorter_side=SIDE, quality=QUALITY),
}


def bare(job: tuple[list[Path], Path, str]) -> int:
    """The image work alone on some files."""
    files, out, way = job
    cv2.setNumThreads(1)
    with out.open("wb", buffering=1 << 20) as target:
        for path in files:
            data = path.read_bytes()
            if way == "header check":
                assert read_header(data)
            else:
                pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
                if way.startswith("shrink"):
                    height, width = pixels.shape[:2]
                    scale = min(1.0, SIDE / min(height, width))
                    small = cv2.resize(
                        pixels, (round(width * scale), round(height * scale)), interpolation=cv2.INTER_AREA
                    )
                    data = cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()
            target.write(data)
    return len(files)


def bare_loop(raw: Path, way: str) -> float:
    """Seconds per image and process of the bare loop."""
    files = sorted(raw.glob("train/*/*"))
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with ProcessPoolExecutor(PROCESSES) as pool:
            jobs = [(files[i::PROCESSES], Path(folder) / str(i), way) for i in range(PROCESSES)]
            count = sum(pool.map(bare, jobs))
        return (time.perf_counter() - began) / count


def ours(raw: Path, way: str) -> float:
    """The same of the whole conversion: labels, records, checksums, manifest."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        found = read_raw(raw)
        convert(
            found,
            Path(folder) / "out",
            Options(images=WAYS[way], train_shards=8, validation_shards=1, processes=PROCESSES),
        )
        return (time.perf_counter() - began) / (len(found.train) + len(found.validation))


def main() -> None:
    """Measures and writes the rows."""
    parser = argparse.ArgumentParser(description="Conversion against bare loops.")
    parser.add_argument("--count", type=int, default=1000, help="photographs")
    parser.add_argument("--images", type=Path, help="a folder of JPEG files, instead of drawn photographs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", nargs=3, metavar=("SIDE", "WAY", "RAW"))
    a = parser.parse_args()
    if a.one:
        print((ours if a.one[0] == "ours" else bare_loop)(Path(a.one[2]), a.one[1]))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_raw(Path(folder) / "raw", a.count, a.images)

        def one(side: str, way: str) -> float:
            words = [sys.executable, __file__, "--one", side, way, f"{folder}/raw"]
            return float(subprocess.run(words, check=True, capture_output=True, text=True, timeout=600).stdout)

        for way in WAYS:
            limit = f"bare loop, {PROCESSES} processes: {way}"
            runs = rounds.rounds(
                {limit: lambda way=way: one("bare", way), way: lambda way=way: one("ours", way)}, a.rounds
            )
            rows.append(rounds.row(runs, way, limit, GOAL, unit="s/image", label=f"prepare: {way}"))
    rounds.write("prepare_imagenet", rows)


if __name__ == "__main__":
    main()
