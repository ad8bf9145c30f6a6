"""Run by test_torch_pieces with the interpreter that has PyTorch: facts about its trainer's parts, one JSON object."""

import io
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from PIL import Image

from trainer.common.data import records
from trainer.common.files.errors import TrainerError
from trainer.common.ranks.horovod_rank import Ranks
from trainer.common.ranks.precision import GROWS_AFTER, LARGEST_SCALE
from trainer.resnet50.network import BLOCKS, Init
from trainer.resnet50_torch import augment, decoding, images
from trainer.resnet50_torch import rng as draws
from trainer.resnet50_torch.config import TorchResNetConfig
from trainer.resnet50_torch.decoders import Decoders
from trainer.resnet50_torch.images import ImageBatch
from trainer.resnet50_torch.metrics_allreduce import Shared
from trainer.resnet50_torch.model import TorchBlock, TorchResNet
from trainer.resnet50_torch.optimizer import LossScale
from trainer.resnet50_torch.process_group import ProcessGroup, _no_meeting, lost_ranks_named, start_ranks
from trainer.resnet50_torch.step import TorchLearner, _places

few: Any = {"resnet18": (1, 2), "resnet50": (2, 1)}  # stages; two say as much as four, and cost a fortieth
BLOCKS.update(few)
ALONE = ProcessGroup(Ranks(0, 1, 0, 1, threads=1), torch.device("cpu"))
COMMON: dict[str, Any] = {"model": "resnet18", "synthetic": True, "image_size": 32, "batch_size": 4, "num_batches": 1}


def layers() -> dict[str, Any]:
    """Kernels, strides, paddings, norms and shortcuts of a block of either kind, and what the whole network has."""
    found: dict[str, Any] = {}
    for bottleneck in (False, True):
        for channels_in, stride in ((64, 1), (256, 1), (128, 2)):
            block = TorchBlock(
                Init.of(1, zero_gamma=True, he_init=True), channels_in, 64, stride, bottleneck=bottleneck
            )
            convs = [(*c.weight.shape, *c.stride, *c.padding) for c in block.convs]
            norms = [(n.num_features, n.eps, n.momentum, float(n.weight.mean())) for n in block.norms]
            shortcut = block.shortcut and (*block.shortcut[0].weight.shape, *block.shortcut[0].stride)
            found[f"{bottleneck} {channels_in} {stride}"] = (convs, norms, shortcut, block.channels)
    for model in ("resnet18", "resnet50"):
        network = TorchResNet(model, 7, Init.of(1, zero_gamma=False, he_init=True))
        found[model] = {
            "parameters": sum(p.numel() for p in network.parameters()),
            "kernels": len(network.kernels()),
            "norms": len(list(network.norms())),
            "blocks": [(b.convs[0].in_channels, b.channels) for b in network.blocks],
            "logits": list(network(torch.zeros(2, 3, 32, 32)).shape),
            "stem": [*network.stem.weight.shape, *network.stem.stride, *network.stem.padding],
            "bias": float(network.dense.bias.abs().max()),
        }
    return found


def step(**flags: Any) -> dict[str, Any]:
    """How far a step is from what autograd and NumPy make of the same batch, and what it found."""
    torch.manual_seed(0)
    config = TorchResNetConfig(**{**COMMON, "adv_bn_init": False, "momentum": 0.8, "weight_decay": 0.01, **flags})
    learner, twin = TorchLearner(config, 5, ALONE), TorchLearner(config, 5, ALONE)
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (4, 32, 32, 3), np.uint8))
    batch = ImageBatch(pixels, torch.tensor([0, 1, 2, 3]), np.stack([np.full(4, 1), np.arange(4)], 1))
    size = 4 // config.accumulate
    losses = []
    for at in range(0, 4, size):
        logits = twin.model(augment.normalised(pixels[at : at + size], torch.float32))
        loss = torch.nn.functional.cross_entropy(logits, batch.labels[at : at + size])
        losses.append(float(loss))
        (loss / config.accumulate).backward()
    before = learner.arrays()
    result = learner.result(learner.train(batch, 0.1, (0.0, 1.0, 0.5), step=3))
    after, far, kernels = learner.arrays(), 0.0, {id(k) for k in twin.model.kernels()}
    for name, weight in twin.weights.items():
        assert weight.grad is not None
        wanted = weight.grad.numpy() + (0.01 * before[name] if id(weight) in kernels else 0)
        far = max(far, float(np.abs(after[f"{name}/momentum"] - wanted).max() / (np.abs(wanted).max() + 1e-12)))
        moved = before[name] - 0.1 * (wanted + 0.8 * wanted)
        far = max(far, float(np.abs(after[name] - moved).max()))
        if config.ema_decay:
            smooth = before[f"{name}/ema"] + (after[name] - before[f"{name}/ema"]) * (1 - min(config.ema_decay, 4 / 13))
            far = max(far, float(np.abs(after[f"{name}/ema"] - smooth).max()))
    kept: dict[str, Any] = {
        "layers": {
            n: float(after[n].mean()) for n in after if n in ("stem_norm/moving_mean", "stem_norm/moving_variance")
        }
    }
    x = torch.nn.functional.conv2d(
        augment.normalised(pixels, torch.float32), torch.from_numpy(before["stem.weight"]), None, 2, 3
    )
    kept["mean"] = 0.1 * float(x.mean())
    learner.load(before)
    back = all((learner.arrays()[n] == before[n]).all() for n in before)
    return {
        "far": far, "losses": losses, "result": asdict(result), "penalty": learner.penalty(), "back": back,
        "squares": float(sum(k.square().sum() for k in learner.model.kernels())), "kept": kept, "scale": learner.scale,
        "names": sorted(n.rpartition("/")[2] for n in before if n.startswith("stem")), "shapes": len(learner.shapes()),
        "type": str(learner.dtype),
    }  # fmt: skip


def scales() -> list[list[float]]:
    """Values and good steps after a step, from a value and so many good ones before it; of a fixed one at last."""
    scale, rows = LossScale(None), []
    rows.append(scale.state.tolist())
    for value, good, is_finite in (
        (64, 9, False), (64, 9, True), (64, GROWS_AFTER - 2, True), (64, GROWS_AFTER - 1, True),
        (LARGEST_SCALE, GROWS_AFTER - 1, True), (1, 5, False),
    ):  # fmt: skip
        scale.state.copy_(torch.tensor([float(value), float(good)]))
        scale.update(is_finite)
        rows.append(scale.state.tolist())
    fixed = LossScale(3.0)
    fixed.update(False)
    return [*rows, fixed.state.tolist()]


def overflow() -> list[float]:
    """Of a step whose gradients overflow, then of one that is sound: whether it was skipped, the scale, whether a weight moved."""
    learner = TorchLearner(TorchResNetConfig(**COMMON), 5, ALONE)
    learner.loss_scale = LossScale(None)
    learner.loss_scale.state[0] = float("inf")
    batch = ImageBatch(
        torch.ones(4, 32, 32, 3, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64), np.zeros((4, 2), np.int64)
    )
    found = []
    for _ in range(2):
        before = learner.model.dense.bias.clone()
        found.append(float(learner.train(batch, 0.1).skipped))
        found.append(float((learner.model.dense.bias != before).any()))
        learner.loss_scale.state[0] = 8.0
    return found


def colours() -> dict[str, Any]:
    """Pixels that nothing varies, and each change alone; losses of mixed images; normalised pixels."""
    rng = np.random.default_rng(2)
    pixels = torch.from_numpy(rng.integers(40, 200, (3, 4, 4, 3), np.uint8))
    seeds = np.stack([np.full(3, 5), np.arange(3)], 1)
    off = {"brightness": 0.0, "hue": 0.0, "saturation": 0.0, "contrast": 0.0}

    def varied(**some: float) -> torch.Tensor:
        return augment.vary_colours(pixels, seeds, TorchResNetConfig(**{**COMMON, **off, **some}))

    drawn = {s: 2 * draws.uniform(seeds, s)[:, None, None, None] - 1 for s in range(5)}
    x, floats = pixels.numpy().astype(np.float32), pixels.float()
    mean = x.mean((1, 2), keepdims=True)
    gray = (x @ np.array([0.299, 0.587, 0.114], np.float32))[..., None]
    wanted = {
        "nothing": (varied(), x),
        "brightness": (varied(brightness=0.1), x + 25.5 * drawn[draws.BRIGHTNESS]),
        "contrast": (varied(contrast=0.1), mean + (x - mean) * (1 + 0.1 * drawn[draws.CONTRAST])),
        "saturation": (varied(saturation=0.1), gray + (x - gray) * (1 + 0.1 * drawn[draws.SATURATION])),
    }
    logits, labels = torch.from_numpy(rng.normal(size=(3, 5)).astype(np.float32)), torch.tensor([0, 1, 4])
    parts = [augment.loss(logits, one, 1.0, 0.1) for one in (labels, labels.flip(0))]
    turned = varied(hue=0.2)
    bright = varied(brightness=1.0)
    return {
        "far": {name: float(np.abs(found.numpy() - there).max()) for name, (found, there) in wanted.items()},
        "gray kept": float(np.abs((turned - floats).numpy() @ np.array([0.299, 0.587, 0.114])).max()),
        "turned": float((turned - floats).abs().max()),
        "range": [float(bright.min()), float(bright.max())],
        "mixed": float(augment.loss(logits, labels, 0.3, 0.1) - (0.3 * parts[0] + 0.7 * parts[1])),
        "shares": [augment.mixup_share(seeds, 0.0), augment.mixup_share(seeds, 0.4), augment.mixup_share(seeds, 0.4)],
        "normalised": augment.normalised(torch.tensor([[[[121, 115 + 68, 100 - 71]]]]), torch.float32).flatten().tolist(),
    }  # fmt: skip


class Rows:
    """As a reader: records by number, each a picture with a white left half."""

    def __len__(self) -> int:
        return 10

    def __call__(self, numbers: Any, *, replace: bool = False) -> Any:
        out = np.empty(len(numbers), object)
        out[:] = [record(int(n)) for n in numbers]
        return out


def record(label: int, encoded: Any = None) -> bytes:
    """Of a picture of 40 x 60 pixels."""
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:, :30] = 255
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    return records.example({"image/class/label": label + 1, "image/encoded": encoded or file.getvalue()})


def loaded() -> dict[str, Any]:
    """Labels and seeds of batches, which of them are mirrored, and what is said of records that cannot be used."""
    share = images.TorchInputShare(rank=1, ranks=2, batch=3, size=8, classes=10, is_pinned=False)
    reader: Any = Rows()
    with Decoders(2) as decoders:
        trained = list(
            images.training(reader, share, decoders, steps=range(2, 7), first_image=12, crop_area=0.9, seed=4)
        )
        judged = list(images.evaluation(reader, share, decoders, crop="centre"))
    drawn = images.synthetic(batch=2, size=8, classes=3, seed=1, rank=0)
    one, again = next(drawn), next(drawn)
    other = next(images.synthetic(batch=2, size=8, classes=3, seed=1, rank=1))
    wrong = []
    seen = np.zeros((8, 8, 3), np.uint8)
    for text in (
        record(10),
        record(-1),
        record(0, b"text"),
        record(0, 7),
        b"text",
        records.example({"image/class/label": 1}),
    ):
        try:
            decoding.decode_one(text, decoding.central_crop, 10, seen, False)
            wrong.append("taken")
        except TrainerError as e:
            wrong.append(str(e))
    ends = []
    for mirrored in (False, True):
        label = decoding.decode_one(record(9), decoding.central_crop, 10, seen, mirrored)
        ends.append([label, int(seen[4, 0, 0] > 128), int(seen[4, 7, 0] > 128)])
    encoded: Any = records.parse(record(0))["image/encoded"][0]
    crops = {name: crop(encoded, 8).shape for name, crop in decoding.CROPS.items()}
    return {
        "labels": [b.labels.tolist() for b in trained],
        "seeds": [b.seeds.tolist() for b in trained],
        "mirrored": [[bool(i[4, 0, 0] < 128) for i in b.images] for b in trained],
        "drawn mirrored": [(draws.uniform(b.seeds, draws.FLIP) < 0.5).tolist() for b in trained],
        "judged": [b.labels.tolist() for b in judged],
        "types": [str(trained[0].images.dtype), list(trained[0].images.shape), str(trained[0].labels.dtype)],
        "synthetic": [list(one.images.shape), one is again, bool((one.images != other.images).any()),
                      int(one.images.max()), int(one.labels.max() < 3)],
        "wrong": wrong,
        "ends": ends,
        "crops": crops,
    }  # fmt: skip


def said(body: Callable[[], Any]) -> str:
    """What the error of it says, with its kind."""
    try:
        body()
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return "nothing"


def raising(error: Exception) -> None:
    """Inside of what names lost ranks."""
    with lost_ranks_named():
        raise error


def places() -> dict[str, Any]:
    """Where a process alone stands, what it says where it cannot be, places of labels, and what a rank shares with itself."""
    world = start_ranks(TorchResNetConfig(**COMMON, threads=2))
    found: dict[str, Any] = {
        "alone": [
            str(world.device),
            world.group is None,
            world.ranks.size,
            world.ranks.threads,
            torch.get_num_threads(),
        ],
        "free": torch.are_deterministic_algorithms_enabled(),
        "gathered": len(world.gather(b"x")),
    }
    start_ranks(TorchResNetConfig(**COMMON, threads=1, deterministic=True))
    found["bound"] = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    found["float16"] = said(lambda: start_ranks(TorchResNetConfig(**COMMON, precision="float16")))
    os.environ |= {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    found["untold"] = said(lambda: start_ranks(TorchResNetConfig(**COMMON)))
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"}
    found["odd"] = said(lambda: start_ranks(TorchResNetConfig(**COMMON)))
    found["taken"] = str(_no_meeting(RuntimeError("bind: Address already in use")))
    found["other"] = str(_no_meeting(ValueError("no such\nhost")))
    found["lost"] = [
        said(lambda e=e: raising(e)) for e in (RuntimeError("Connection closed by peer"), RuntimeError("a bug"))
    ]
    logits = torch.tensor([[1.0, 3.0, 2.0], [1.0, 1.0, 1.0], [float("nan"), 1.0, 0.0]])
    found["places"] = [_places(logits, torch.tensor([label] * 3)).tolist()[:2] for label in range(3)]
    found["unsound"] = _places(logits, torch.tensor([1] * 3)).tolist()[2] > 1000
    shared = Shared(ALONE, torch.tensor([0.0, 1.0, 0.5]))
    for loss in (2.0, 4.0):
        shared.add(torch.tensor(loss), torch.tensor(loss / 8), torch.tensor([loss, 10.0]))
    shared.begin(2)
    shared.finish()
    found["shared"] = [shared.numbers.tolist(), shared.statistics.tolist(), float(shared.own_loss)]
    return found


def main() -> None:
    """All of it."""
    torch.set_num_threads(1)
    scores = TorchLearner(TorchResNetConfig(**COMMON), 5, ALONE).scores(
        [
            ImageBatch(
                torch.zeros(4, 32, 32, 3, dtype=torch.uint8), torch.tensor([0, 0, 1, 4]), np.zeros((4, 2), np.int64)
            )
        ]
        * 2
    )
    print(
        json.dumps(
            {
                "layers": layers(),
                "plain": step(),
                "parts": step(accumulate=2),
                "averaged": step(ema_decay=0.9),
                "planar": step(channels_last=False),
                "scales": scales(),
                "overflow": overflow(),
                "colours": colours(),
                "loaded": loaded(),
                "places": places(),
                "scores": scores.tolist(),
            }
        )
    )


if __name__ == "__main__":  # the processes that decode import this file, too
    main()
