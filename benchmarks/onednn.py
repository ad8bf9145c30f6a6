"""What oneDNN gives where TensorFlow leaves it off: `python benchmarks/onednn.py`, writes results/onednn.json.

TensorFlow 2.18 turns it on by itself only where there is AVX-512 with VNNI; the trainers turn it on everywhere. Each
network trains with and without, in turn, on this processor and with oneDNN held to what older ones have
(ONEDNN_MAX_CPU_ISA; what TensorFlow itself was compiled for stays). Values are seconds per image, one rank of two
threads, so a ratio below 1 is a gain.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import maskrcnn, maskrcnn_setup, resnet50, rounds, yardstick  # noqa: E402
from trainer.coco.sample import write_sample  # noqa: E402

PROCESSORS = {"this processor": "", "AVX-512 without VNNI": "AVX512_CORE", "AVX2": "AVX2"}
NETWORKS = {
    "ResNet-18, 64 pixels, batch 16": ("resnet18", 64, 16, 20),
    "ResNet-50, 224 pixels": ("resnet50", 224, 8, 3),
}
MASK = "Mask R-CNN, reduced, 256 / 320"
MASK_STEPS = 8


def set_environment(isa: str, is_on: bool) -> None:
    """For the launches from now on."""
    for environment in (os.environ, resnet50.ENVIRONMENT):
        environment["TF_ENABLE_ONEDNN_OPTS"] = str(int(is_on))
        environment.pop("ONEDNN_MAX_CPU_ISA", None)
        if isa:
            environment["ONEDNN_MAX_CPU_ISA"] = isa


def resnet(name: str) -> float:
    """Seconds per image."""
    model, size, batch, steps = NETWORKS[name]
    flags = f"--model {model} --image-size {size} --batch-size {batch} --num-batches {steps} --num-warmup-batches 2"
    return 1 / resnet50.speed_of([sys.executable, "-m", "trainer.benchmark", *flags.split(), "--threads", "2"])


def mask(data: Path) -> float:
    """Seconds per image."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [
            *maskrcnn_setup.REDUCED,
            *maskrcnn_setup.sizes(256, 320),
            *maskrcnn.quick(MASK_STEPS, 1),
            f"DATA.BASEDIR={data}",
        ]
        return 1 / maskrcnn.launch([*settings, "--threads", "2"], Path(folder) / "job").images_per_s


def main() -> None:
    """Measures and writes the rows."""
    parser = argparse.ArgumentParser(description="What oneDNN gives.")
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "shapes"
        write_sample(data, train=16, val=2, size=256, seed=1)
        measures: dict[str, Callable[[], float]] = {}
        for network in (*NETWORKS, MASK):
            for processor, isa in PROCESSORS.items():
                for is_on in (False, True):
                    key = f"{network}, {processor}{'' if is_on else ', off'}"
                    measures[key] = _measure(network, isa, is_on, data)
        runs = rounds.rounds(measures, a.rounds)
    rows: list[dict[str, Any]] = [
        rounds.row(runs, key, f"{key}, off", unit="s/image") for key in measures if not key.endswith(", off")
    ]
    rounds.write("onednn", [*rows, yardstick.row()])


def _measure(network: str, isa: str, is_on: bool, data: Path) -> Callable[[], float]:
    def measure() -> float:
        set_environment(isa, is_on)
        return mask(data) if network == MASK else resnet(network)

    return measure


if __name__ == "__main__":
    main()
