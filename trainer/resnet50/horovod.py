"""Engine of TensorFlow with Horovod."""

import tensorflow as tf

from trainer.common.files.errors import ConfigError
from trainer.common.ranks.horovod_rank import Gather, Ranks
from trainer.resnet50 import pretrained
from trainer.resnet50.config import ResNetConfig
from trainer.resnet50.engine import Engine
from trainer.resnet50.source import AttemptInput
from trainer.resnet50.step import TensorFlowLearner


def engine(ranks: Ranks) -> Engine:
    """Build the engine. Call it after Horovod has started."""
    if ranks.gpu is None:  # it takes a twentieth of the start, and on CPUs a step is no faster
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    return Engine(
        f"TF{tf.__version__}", "Horovod", ranks, Gather(ranks.threads), TensorFlowLearner, AttemptInput, begin
    )


def begin(config: ResNetConfig, learner: TensorFlowLearner) -> str:
    """Load the weights of `--load` into the learner. Returns the line that reports it.

    The last layer starts from scratch if its number of classes differs.

    Raises:
        ConfigError: the file cannot be read, does not fit, or has other classes in a run with `--eval-only`.
    """
    assert config.load
    arrays = pretrained.read(config.load, config.model, config.variant)
    classes = len(arrays[pretrained.BIAS])
    if classes == learner.classes:
        learner.begin_with(arrays)
        return f"Beginning with {config.load}"
    if config.eval_only:
        raise ConfigError(f"{config.load} tells {classes} classes apart, but this data has {learner.classes}")
    last = (pretrained.DENSE, pretrained.BIAS)
    learner.begin_with({name: array for name, array in arrays.items() if name not in last})
    return f"Beginning with {config.load}, but for its last layer: it has {classes} classes, not {learner.classes}"
