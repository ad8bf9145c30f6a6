"""`python -m trainer.resnet50.export --job-dir DIR --out OUT`: a trained classifier for others to run.

OUT ends in .onnx: an ONNX file; in .npz or .safetensors: weights, by torchvision's or Keras' names where the training
had `--variant` torchvision or keras, else by this trainer's; else it is the new folder of a SavedModel. The model takes
`images` [N, height, width, 3] uint8, red green blue, and gives `logits` and `probabilities` [N, classes]; with a moving
average of the weights it is that.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.common.checkpoints.checkpoint import CheckpointFolder
from trainer.common.files.atomic_write import written_whole
from trainer.common.files.commandline import TrainerParser
from trainer.common.files.errors import ConfigError, TrainerError, entry
from trainer.resnet50 import pretrained
from trainer.resnet50.config import MODELS
from trainer.resnet50.network import OWN, VARIANTS
from trainer.resnet50.pretrained import Arrays


@dataclass(frozen=True)
class Trained:
    """Network with its weights."""

    model: str
    variant: str
    arrays: Arrays  # as `pretrained.expected` names them

    @property
    def classes(self) -> int:
        """Return the width of the last layer."""
        return len(self.arrays[pretrained.BIAS])


def of_job(job_dir: Path, step: int | None, *, best: bool) -> Trained:
    """Load the job's newest checkpoint, or that of a step, or the best by top-1.

    Raises:
        ConfigError: there is no such checkpoint, or it is another trainer's.
        TrainerError: it is damaged.
    """
    folder = CheckpointFolder(job_dir / "checkpoints")
    if best:
        found = folder.best()
        step = found.step if found else None
    if (step is None and best) or (step is not None and step not in folder.steps()):
        which = "that an evaluation called the best" if best else f"of step {step}"
        there = ", ".join(str(s) for s in sorted(folder.steps())) or "none"
        raise ConfigError(f"{job_dir} has no checkpoint {which}; those that are there are of step: {there}")
    facts = folder.newest_or_refuse() if step is None else folder.facts(step)
    if facts is None:
        raise ConfigError(f"{job_dir}/checkpoints holds no valid checkpoint: train first")
    arrays = folder.load(facts)
    variant, model = pretrained.variant_of(arrays), facts.more.get("model")
    if variant is None or model not in MODELS:
        raise ConfigError(f"{job_dir} is not of trainer.resnet50: only its checkpoints are exported")
    return Trained(model, variant, pretrained.as_ours(arrays, str(model), variant, str(folder.arrays_file(facts.step))))


def write(trained: Trained, out: Path) -> None:
    """Write the network to `out`, in the format of its extension.

    Raises:
        ConfigError: `out` exists already.
        TrainerError: it cannot be written.
    """
    if out.exists():
        raise ConfigError(f"{out} exists already: give another --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix == ".onnx":
            from trainer.resnet50 import onnx_graph

            onnx_graph.write(out, trained.arrays, trained.model, VARIANTS[trained.variant])
        elif out.suffix in (".npz", ".safetensors"):
            _write_weights(trained, out)
        else:
            _write_saved_model(trained, out)
    except OSError as e:
        raise TrainerError(f"{out} cannot be written ({e.strerror}): make room or give another --out") from e


def _write_weights(trained: Trained, out: Path) -> None:
    from trainer.common.checkpoints import npz_writer, weight_files

    arrays = pretrained.as_theirs(trained.arrays, trained.model, trained.variant)
    if out.suffix == ".safetensors":
        weight_files.write_safetensors(out, arrays)
        return
    with written_whole(out) as partial, partial.open("wb") as file:
        npz_writer.write(file, arrays)


def _write_saved_model(trained: Trained, out: Path) -> None:
    import tensorflow as tf

    from trainer.resnet50.augment import normalise
    from trainer.resnet50.model import ResNet

    variant = VARIANTS[trained.variant]
    network = ResNet(trained.model, trained.classes, variant=variant)
    variables = network.trainable() + network.averages()
    for variable in variables:
        variable.assign(trained.arrays[variable.name.split(":")[0]])

    def serve(images: Any) -> dict[str, Any]:
        logits = network(normalise(images, tf.float32, variant.pixels))
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    module = tf.Module()
    module.held = variables
    module.serve = tf.function(serve, input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8, "images")])
    try:
        with written_whole(out) as partial:
            tf.saved_model.save(module, str(partial), {"serving_default": module.serve})
    except tf.errors.OpError as e:
        raise TrainerError(f"{out} cannot be written ({e.message}): make room or give another --out") from e


@entry
def main(argv: Sequence[str]) -> None:
    """Export a job's checkpoint, or a file of weights."""
    p = TrainerParser(
        prog="python -m trainer.resnet50.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = p.add_mutually_exclusive_group(required=True)
    source.add_argument("--job-dir", type=Path, help="of a training")
    source.add_argument("--load", type=Path, help="a file of weights, as the training takes it")
    which = p.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, help="of a job: the checkpoint of this step; default: the newest")
    which.add_argument("--best", action="store_true", help="of a job: the checkpoint of the best top-1")
    p.add_argument("--model", choices=MODELS, default="resnet50", help="of a file (default resnet50)")
    p.add_argument("--variant", choices=VARIANTS, default=OWN, help=f"of a file (default {OWN})")
    p.add_argument("--out", type=Path, required=True, help="FILE.onnx, FILE.npz, FILE.safetensors or a new folder")
    a = p.parse_args(argv)
    if a.load:
        trained = Trained(a.model, a.variant, pretrained.read(a.load, a.model, a.variant))
    else:
        trained = of_job(a.job_dir, a.step, best=a.best)
    write(trained, a.out)
    print(f"{a.out} written: {trained.model}, {trained.classes} classes")


if __name__ == "__main__":
    sys.exit(main())
