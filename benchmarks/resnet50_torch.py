"""The PyTorch trainer's cost beside torchvision's reference loop: `python benchmarks/resnet50_torch.py`.

Writes results/resnet50_torch.json. Synthetic ResNet-50, one rank of one thread; values are seconds of processor time an
image, which a busy machine changes little. Theirs is torchvision's own network in the loop of its
references/classification/train.py: forward, cross-entropy, backward, SGD with momentum, top-1 and top-5, the loss read.
Every round launches each once, in the interpreter that `make torch` made (or --python).

`--gpu` writes results/resnet50_torch_gpu.json instead: milliseconds an image on the first GPU, some steps of each in
turn in one process; theirs with `--amp`'s autocast where it is not float32, channels first as it has them, and last.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

THEIRS = "torchvision's reference loop"
TIMEOUT_S = 1800


def ours(batch: int, size: int, *flags: str, device: str = "cpu") -> Callable[[], float]:
    """A step of the trainer, read."""
    import torch

    from trainer.common.ranks.horovod_rank import Ranks
    from trainer.resnet50.start import parse
    from trainer.resnet50_torch.config import TorchResNetConfig
    from trainer.resnet50_torch.images import synthetic
    from trainer.resnet50_torch.process_group import ProcessGroup
    from trainer.resnet50_torch.step import TorchLearner

    words = ["--synthetic", "--num-batches", "1", "--batch-size", str(batch), "--image-size", str(size), *flags]
    config, _ = parse(words, TorchResNetConfig, "", "")
    learner = TorchLearner(config, 1000, ProcessGroup(Ranks(0, 1, 0, 1, threads=1), torch.device(device)))
    batches = synthetic(batch=batch, size=size, classes=1000, seed=1, rank=0, is_pinned=device != "cpu")
    return lambda: learner.result(learner.train(next(batches), 0.01)).loss


def theirs(
    batch: int, size: int, *, device: str = "cpu", autocast: str = "", channels_last: bool = False
) -> Callable[[], float]:
    """An iteration of `train_one_epoch`."""
    import torch
    import torchvision

    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = torchvision.models.resnet50().to(device, memory_format=layout)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    images, targets = torch.randn(batch, 3, size, size).to(memory_format=layout), torch.randint(1000, (batch,))
    if device != "cpu":
        images, targets = images.pin_memory(), targets.pin_memory()

    def step() -> float:
        image, target = images.to(device, non_blocking=True), targets.to(device, non_blocking=True)
        with torch.autocast(device, getattr(torch, autocast or "bfloat16"), enabled=bool(autocast)):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.inference_mode():
            best = output.topk(5, 1).indices == target[:, None]
            (best[:, :1].sum().item(), best.sum().item())
        return float(loss.item())

    return step


def measure(what: str, batch: int, size: int, steps: int) -> None:
    """Prints processor seconds per image after two steps that build primitives."""
    import torch

    torch.set_num_threads(1)
    kinds: dict[str, Callable[[], Callable[[], float]]] = {
        "theirs": lambda: theirs(batch, size),
        "last": lambda: ours(batch, size),
        "first": lambda: ours(batch, size, "--no-channels-last"),
    }
    step = kinds[what]()
    for _ in range(2):
        step()
    began = time.process_time()
    for _ in range(steps):
        step()
    print(json.dumps((time.process_time() - began) / (steps * batch)))


def on_gpu(batch: int, size: int, steps: int, times: int, precisions: Sequence[str]) -> None:
    """Some steps of each in turn, and the rows."""
    import torch

    from benchmarks import rounds

    torch.backends.cudnn.benchmark = True  # as the trainer has it; theirs has it unless it is told to be deterministic
    name, rows = torch.cuda.get_device_name(), []
    for precision in precisions:
        mixed = "" if precision == "float32" else precision
        flags = ("--precision", precision)
        kinds = {
            THEIRS: theirs(batch, size, device="cuda", autocast=mixed),
            f"{THEIRS}, channels last": theirs(batch, size, device="cuda", autocast=mixed, channels_last=True),
            "channels last": ours(batch, size, *flags, device="cuda"),
        }
        timed = {way: partial(_ms_an_image, step, batch, steps) for way, step in kinds.items()}
        runs = rounds.rounds(timed, times + 1)
        runs = {way: own[1:] for way, own in runs.items()}  # in the first cuDNN tries its ways
        head = f"ResNet-50 on PyTorch {torch.__version__}, {name}, {precision}, {size} pixels, batch {batch}, "
        best = min(list(kinds)[:2], key=lambda way: statistics.median(runs[way]))
        rows += [rounds.row(runs, way, unit="ms/image", label=head + way) for way in list(kinds)[:2]]
        rows.append(rounds.row(runs, "channels last", best, 1.0, unit="ms/image", label=head + "channels last"))
    rounds.write("resnet50_torch_gpu", rows)


def _ms_an_image(step: Callable[[], float], batch: int, steps: int) -> float:
    """Of steps whose losses are read."""
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return 1e3 * (time.perf_counter() - began) / (steps * batch)


def main() -> None:
    """Launches in turn and writes the rows."""
    parser = argparse.ArgumentParser(description="The PyTorch trainer's cost.")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default=str(ROOT / ".torch/bin/python"))
    parser.add_argument("--measure", help="be one launch: theirs, last, first; as it calls itself")
    parser.add_argument("--gpu", action="store_true", help="in this process, on its first GPU")
    parser.add_argument("--precisions", default="bfloat16,float16,float32", help="with --gpu")
    a = parser.parse_args()
    if a.gpu:
        on_gpu(a.batch, a.size, a.steps, a.rounds, a.precisions.split(","))
        return
    if a.measure:
        measure(a.measure, a.batch, a.size, a.steps)
        return
    from benchmarks import rounds

    def launch(what: str) -> float:
        sizes: list[Any] = ["--batch", a.batch, "--size", a.size, "--steps", a.steps]
        words = [a.python, __file__, "--measure", what, *map(str, sizes)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            words, check=True, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, cwd=ROOT
        )
        return float(json.loads(done.stdout.splitlines()[-1]))

    last, first = "channels last", "channels first"
    ways = {THEIRS: lambda: launch("theirs"), last: lambda: launch("last"), first: lambda: launch("first")}
    runs = rounds.rounds(ways, a.rounds)
    version = subprocess.run(
        [a.python, "-c", "import torch; print(torch.__version__)"], check=True, capture_output=True, text=True
    ).stdout.strip()
    head = f"ResNet-50 on PyTorch {version}, float32, {a.size} pixels, batch {a.batch}, "
    rows = [
        rounds.row(runs, way, THEIRS, 1.0, unit="CPU s/image", label=head + way) for way in (last, first) if way in runs
    ]
    rounds.write("resnet50_torch", rows)


if __name__ == "__main__":
    main()
