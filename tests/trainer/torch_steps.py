"""Run by test_torch with the interpreter that has PyTorch: steps, a forward pass, colours, batches, all into one npz.

`torch_steps.py OUT GIVEN SHARDS`: GIVEN is an npz of a batch that TensorFlow's trainer computes, too.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.common.data import dataset
from trainer.common.ranks.horovod_rank import Ranks
from trainer.common.ranks.precision import GROWS_AFTER
from trainer.resnet50.reader import InputError, RecordReader
from trainer.resnet50_torch import augment, images
from trainer.resnet50_torch.config import TorchResNetConfig
from trainer.resnet50_torch.decoders import Decoders
from trainer.resnet50_torch.decoding import CROPS
from trainer.resnet50_torch.images import ImageBatch
from trainer.resnet50_torch.optimizer import LossScale
from trainer.resnet50_torch.process_group import ProcessGroup, card_towards
from trainer.resnet50_torch.step import TorchLearner

ALONE = ProcessGroup(Ranks(0, 1, 0, 1, threads=1), torch.device("cpu"))
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"label_smoothing": 0.1, "momentum": 0.8, "weight_decay": 1e-3},
    "larc": {"larc": True, "larc_eta": 0.01, "accumulate": 2, "ema_decay": 0.9, "adv_conv_init": False},
    "colours": {"increased_aug": True, "channels_last": False},
}
CLASSES, SIZE, LR, STEPS = 5, 33, 0.05, 2


def learner(model: str = "resnet18", **flags: Any) -> TorchLearner:
    """A small one."""
    common = {"model": model, "synthetic": True, "image_size": SIZE, "batch_size": 6, "num_batches": 1}
    return TorchLearner(TorchResNetConfig(**{**common, **flags}), CLASSES, ALONE)


def steps(batch: ImageBatch) -> dict[str, NDArray[Any]]:
    """What some steps make of each variant, and what they found."""
    found: dict[str, NDArray[Any]] = {}
    for variant, flags in VARIANTS.items():
        ours = learner(**flags)
        results = [ours.result(ours.train(batch, LR, step=step)) for step in range(STEPS)]
        found |= {f"{variant}:{name}": array for name, array in ours.arrays().items()}
        found[f"{variant}:results"] = np.array([(r.loss, r.accuracy) for r in results])
        found[f"{variant}:penalty"] = np.array(ours.penalty())
        found[f"{variant}:scores"] = ours.scores([batch, batch])
        after = ours.arrays()
        assert all((after[n] == found[f"{variant}:{n}"]).all() for n in after), "an evaluation changed something"
    return found


def tied() -> NDArray[Any]:
    """Images and hits of a network that says the same of all of twelve classes, and of one that says no number."""
    flags = {"model": "resnet18", "synthetic": True, "image_size": SIZE, "batch_size": 6, "num_batches": 1}
    ours, rows = TorchLearner(TorchResNetConfig(**flags), 12, ALONE), []
    batch = ImageBatch(torch.zeros(12, SIZE, SIZE, 3, dtype=torch.uint8), torch.arange(12), np.zeros((12, 2), np.int64))
    torch.nn.init.zeros_(ours.model.dense.weight)
    for said in (0.0, float("nan")):
        torch.nn.init.constant_(ours.model.dense.bias, said)
        rows.append(ours.scores([batch])[:3])
    return np.array(rows)


def overflowed(batch: ImageBatch) -> NDArray[Any]:
    """Of three steps, the first with a scale that overflows: whether it was skipped, whether weights moved, the scale and its good steps."""
    ours = learner()
    ours.loss_scale = LossScale(None)
    ours.loss_scale.state[:] = torch.tensor([float("inf"), 7])
    rows = []
    for step in range(3):
        before = ours.arrays()
        result = ours.result(ours.train(batch, LR, step=step))
        moved = any((v != before[n]).any() for n, v in ours.arrays().items() if n != "loss_scale")
        rows.append((result.skipped, moved, *ours.loss_scale.state.tolist()))
        if step == 0:
            ours.loss_scale.state[0] = 1024
    return np.array(rows, float)


def scales() -> NDArray[Any]:
    """What a dynamic scale is after an overflow, after many good steps, after as many as one likes, and at the least."""
    scale, found = LossScale(None), []
    for is_finite, times in ((False, 1), (True, GROWS_AFTER), (True, 12 * GROWS_AFTER), (False, 40)):
        for _ in range(times):
            scale.update(is_finite)
        found.append(scale.value)
    return np.array(found)


def loaded(shards: Path, decoders: Decoders) -> dict[str, NDArray[Any]]:
    """Batches of two ranks and of one, both evaluations, and what is said of labels that do not fit."""
    found: dict[str, NDArray[Any]] = {}
    classes = dataset.classes_in(shards) or 0
    for ranks in (1, 2):
        for rank in range(ranks):
            share = images.TorchInputShare(
                rank=rank, ranks=ranks, batch=8 // ranks, size=40, classes=classes, is_pinned=False
            )
            reader = RecordReader(dataset.find_split(shards, "train").index())
            batches = images.training(reader, share, decoders, steps=range(5, 8), first_image=40, crop_area=0.3, seed=3)
            rows = list(batches)
            found[f"train{ranks}.{rank}:images"] = np.stack([b.images.numpy() for b in rows])
            found[f"train{ranks}.{rank}:labels"] = np.stack([b.labels.numpy() for b in rows])
    for crop in CROPS:
        reader = RecordReader(dataset.find_split(shards, "validation").index())
        rows = list(images.evaluation(reader, share, decoders, crop=crop))
        found[f"{crop}:images"] = np.concatenate([b.images.numpy() for b in rows])
        found[f"{crop}:labels"] = np.concatenate([b.labels.numpy() for b in rows])
    narrow = images.TorchInputShare(rank=0, ranks=1, batch=8, size=40, classes=2, is_pinned=False)
    try:
        list(images.evaluation(reader, narrow, decoders, crop="centre"))
    except InputError as e:
        found["error"] = np.array(str(e))
    return found


def main(out: str, given: str, shards: str) -> None:
    """Everything into one file."""
    torch.set_num_threads(1)
    with np.load(given) as arrays:
        pixels, labels, seeds = (arrays[name] for name in ("pixels", "labels", "seeds"))
    batch = ImageBatch(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)), seeds)
    colours = TorchResNetConfig(synthetic=True, num_batches=1, increased_aug=True)
    deep = learner("resnet50", adv_bn_init=False)
    logits = deep.model(augment.normalised(batch.images, torch.float32)).detach().numpy()
    with Decoders(2) as decoders:
        batches = loaded(Path(shards), decoders)
    np.savez(
        out,
        varied=augment.vary_colours(batch.images, seeds, colours).numpy(),
        deep=logits,
        parameters=np.array(sum(w.numel() for w in deep.weights.values())),
        overflowed=overflowed(batch),
        cards=np.array([card_towards(address) for address in ("127.0.0.1", "no.such.host.invalid")]),
        tied=tied(),
        scales=scales(),
        **steps(batch),
        **batches,
    )


if __name__ == "__main__":  # the processes that decode import this file, too
    main(*sys.argv[1:])
