"""Learning real photographs beside a plain PyTorch loop from the same weights: `python benchmarks/real_photographs.py`.

Writes results/real_photographs.json and docs/photographs.png. 130 photographs of 14 kinds (crops of COCO's images in
ImageNet's layout, `--raw`) are learnt by heart by ResNet-18 at 64 pixels, 16 a step: ours on one rank and on two, with
`--variant torchvision --load`, theirs torchvision's own network with torch.optim.SGD, given the same order of images;
both also with the 16 in two parts of 8, whose gradients are added up: all that two ranks change for batch norm. Each
once for every seed of the order and the crops. Judged are all 130 in central crops, which training never shows. Theirs
runs in the interpreter that `make torch` made.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

MODEL, SIZE, BATCH, EPOCHS, EVERY, LR, WARMUP = "resnet18", 64, 16, 40, 4, 0.05, 2
CROP_AREA, DECAY, TIMEOUT_S = 0.5, 1e-4, 3000
MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
OURS = {
    "this trainer, one rank of 16": (1, 1),
    "this trainer, two ranks of 8": (2, 1),
    "this trainer, one rank of 2 x 8": (1, 2),
}
"""Ranks, and the parts that each computes its images in."""
THEIRS = {"torchvision's network in a plain loop, 16": 1, "torchvision's network in a plain loop, 2 x 8": 2}
Curve = list[list[float]]
FLAGS = (
    *("--model", MODEL, "--image-size", SIZE, "--num-epochs", EPOCHS, "--lr", LR),
    *("--warmup-epochs", WARMUP, "--lr-decay-mode", "cosine", "--crop-area", CROP_AREA, "--weight-decay", DECAY),
    *("--eval-every", EVERY, "--variant", "torchvision"),
)


def prepared(raw: Path, folder: Path) -> Path:
    """Shards whose validation images are the training ones."""
    shutil.copytree(raw / "train", folder / "raw/train")
    shutil.copy(raw / "synsets.txt", folder / "raw")
    (folder / "raw/val").mkdir()
    photographs = sorted((folder / "raw/train").rglob("*.JPEG"))
    for number, file in enumerate(photographs, 1):
        shutil.copy(file, folder / f"raw/val/ILSVRC2012_val_{number:08}.JPEG")
    (folder / "raw/val_synsets.txt").write_text("".join(f"{file.parent.name}\n" for file in photographs))
    sides = ("--shorter-side", 96, "--train-shards", 2, "--validation-shards", 2)
    run(sys.executable, "-m", "trainer.imagenet", "--raw", folder / "raw", "--out", folder / "shards", *sides)
    return folder / "shards"


def run(*words: object) -> str:
    """What a program prints."""
    done = subprocess.run([str(w) for w in words], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise SystemExit(f"{words[0]} …: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


def ours(shards: Path, start: Path, folder: Path, *, ranks: int, parts: int, seed: int) -> Curve:
    """[epoch, top-1] of each evaluation, on two threads in all."""
    from tests.trainer.conftest import MPIRUN
    from trainer.common.ranks import metrics

    words = ("--data-dir", shards, "--load", start, "--job-dir", folder, *FLAGS)
    words += ("--batch-size", BATCH // ranks, "--accumulate", parts, "--threads", 2 // ranks, "--seed", seed)
    run(*MPIRUN, "-np", ranks, sys.executable, "-m", "trainer.resnet50", *words)
    return [[line["epoch"], line["top1"]] for line in metrics.read(folder) if line["kind"] == "eval"]


def theirs(shards: Path, start: Path, parts: int, seed: int) -> Curve:
    """The same of a loop as anybody writes it; in PyTorch's interpreter."""
    import numpy as np
    import torch
    import torchvision

    from trainer.common.data import dataset
    from trainer.resnet50.reader import RecordReader
    from trainer.resnet50_torch import images
    from trainer.resnet50_torch.decoders import Decoders
    from trainer.common.ranks.schedule import Schedule

    torch.set_num_threads(1)
    train, judged = (RecordReader(dataset.find_split(shards, split).index()) for split in ("train", "validation"))
    with np.load(start) as state:
        classes = len(state["fc.bias"])
        model = torchvision.models.resnet18(num_classes=classes)
        model.load_state_dict({name: torch.from_numpy(state[name]) for name in state.files})
    per_epoch, steps = len(train) // BATCH, len(train) * EPOCHS // BATCH
    schedule = Schedule(mode="cosine", peak=LR, steps=steps, warmup_steps=WARMUP * per_epoch, warmup_start=0.001)
    kernels = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": kernels, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=LR, momentum=0.9, nesterov=True)
    share = images.TorchInputShare(rank=0, ranks=1, batch=BATCH, size=SIZE, classes=classes, is_pinned=False)
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (MEAN, DEVIATION))

    def pixels(batch: Any) -> Any:
        return (batch.images.permute(0, 3, 1, 2).float() - mean) / deviation

    def top1(decoders: Decoders) -> float:
        model.eval()
        with torch.no_grad():
            batches = images.evaluation(judged, share, decoders, crop="centre")
            hits = sum(int((model(pixels(b)).argmax(1) == b.labels).sum()) for b in batches)
        return 100 * hits / len(judged)

    found, period = [], EVERY * len(train) / BATCH
    with Decoders(2) as decoders:
        batches = images.training(
            train, share, decoders, steps=range(steps), first_image=0, crop_area=CROP_AREA, seed=seed
        )
        for step, batch in enumerate(batches):
            model.train()
            for group in optimizer.param_groups:
                group["lr"] = schedule(step)
            optimizer.zero_grad()
            for x, labels in zip(pixels(batch).chunk(parts), batch.labels.chunk(parts), strict=True):
                (torch.nn.functional.cross_entropy(model(x), labels) / parts).backward()
            optimizer.step()
            if (step + 1) // round(period) > step // round(period) or step + 1 == steps:
                found.append([(step + 1) * BATCH / len(train), top1(decoders)])
    return found


def first_weights(out: Path, classes: int) -> None:
    """torchvision's own, drawn; in PyTorch's interpreter."""
    import numpy as np
    import torch
    import torchvision

    torch.manual_seed(1)
    state = torchvision.models.resnet18(num_classes=classes).state_dict()
    np.savez(out, **{name: tensor.numpy() for name, tensor in state.items()})


def draw(curves: dict[str, list[Curve]], out: Path) -> None:
    """Top-1 over epochs, the first seed's drawn through, others' broken."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=110)
    for label, runs in curves.items():
        (line,) = axes.plot(*zip(*runs[0], strict=True), marker="o", label=label)
        for curve in runs[1:]:
            axes.plot(*zip(*curve, strict=True), linestyle="--", color=line.get_color())
    axes.set_xlabel("epoch")
    axes.set_ylabel("top-1, %")
    axes.set_title(f"130 real photographs learnt by heart: ResNet-18, {SIZE} pixels")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(out)


def main() -> None:
    """All trainings, rows and picture."""
    parser = argparse.ArgumentParser(description="Learning real photographs beside a plain loop.")
    parser.add_argument("--raw", type=Path, default=Path("../shared/data/imagenet-mini"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--python", default=str(ROOT / ".torch/bin/python"))
    parser.add_argument("--peer", nargs="+", help="be PyTorch's part, as it calls itself")
    a = parser.parse_args()
    if a.peer:
        what, *words = a.peer
        if what == "weights":
            first_weights(Path(words[0]), int(words[1]))
        else:
            print(json.dumps(theirs(Path(words[0]), Path(words[1]), int(words[2]), int(words[3]))))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        shards = prepared(a.raw.resolve(), folder)
        classes = len(json.loads((shards / "manifest.json").read_text())["classes"])
        start = folder / "start.npz"
        run(a.python, __file__, "--peer", "weights", start, classes)
        curves: dict[str, list[Curve]] = {label: [] for label in (*OURS, *THEIRS)}
        for seed in range(1, a.seeds + 1):
            for label, (ranks, parts) in OURS.items():
                job = folder / f"{seed}-{ranks}-{parts}"
                curves[label].append(ours(shards, start, job, ranks=ranks, parts=parts, seed=seed))
                print(seed, label, json.dumps(curves[label][-1]), flush=True)
            for label, parts in THEIRS.items():
                told = run(a.python, __file__, "--peer", "train", shards, start, parts, seed)
                curves[label].append(json.loads(told.splitlines()[-1]))
                print(seed, label, json.dumps(curves[label][-1]), flush=True)
    draw(curves, ROOT / "docs/photographs.png")
    tell(curves)


def tell(curves: dict[str, list[Curve]]) -> None:
    """A row for each way and seed, since seeds are further apart than ways."""
    from benchmarks import rounds

    head = f"130 real photographs learnt by heart, ResNet-18, {SIZE} pixels, {EPOCHS} epochs"
    rows = []
    for label, seed, curve in ((n, s, c) for n, runs in curves.items() for s, c in enumerate(runs, 1)):
        reached = round(curve[-1][1], 1)
        said = {"what": f"{head}, {label}, seed {seed}, top-1", "value": reached, "unit": "%", "against": ""}
        rows.append({**said, "ratio": None, "goal": None, "runs": 1, "spread": [reached, reached]})
    rounds.write("real_photographs", rows)


if __name__ == "__main__":
    main()
