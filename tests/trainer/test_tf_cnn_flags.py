"""tf_cnn_benchmarks' own command lines: taken as they stand in tutorials, or refused with what to do."""

from typing import Any

import pytest

from trainer.benchmark import parse
from trainer.common.files.errors import ConfigError
from trainer.tf_cnn_flags import OTHERWISE, REFUSED, SAME, SWITCHES, translated


def test_all_of_its_flags_are_known_once() -> None:
    """It has 137: each is taken or refused, none twice."""
    names = [*SAME, *OTHERWISE, *(name for flags in REFUSED.values() for name in flags)]

    assert 137 == len(names) == len(set(names))
    assert {n for n in names if n in SWITCHES} == SWITCHES


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (  # on EKS, with VGG16
            "--num_batches=100 --model vgg16 --batch_size 64 --data_name=imagenet --data_dir /mnt/data "
            "--variable_update horovod --horovod_device gpu --use_fp16",
            {"num_batches": 100, "model": "vgg16", "batch_size": 64, "fp16": True},
        ),
        (
            "--data_format=NCHW --batch_size=128 --model=resnet50 --optimizer=sgd --variable_update=horovod "
            "--use_fp16=true --nodistortions --gradient_repacking=0 --num_gpus=1 --summary_verbosity=0",
            {"batch_size": 128, "fp16": True, "momentum": 0.0},
        ),
        ("--optimizer=momentum --momentum=0.8 --weight_decay=1e-4", {"momentum": 0.8, "weight_decay": 1e-4}),
        ("--optimizer=sgd --momentum=0.8", {"momentum": 0.0}),  # its sgd has none
        ("--init_learning_rate 0.1 --num_intra_threads=2 --num_inter_threads 0", {"lr": 0.1, "threads": 2}),
        ("--use_fp16=False --batch_size=0", {"fp16": False, "batch": 64}),
        ("--model=alexnet", {"batch": 512, "size": 227}),  # each network's own
        ("--model=resnet101 --batch_size=0", {"batch": 32, "size": 224}),
        ("--model=inception3 --batch_size=8", {"batch": 8, "size": 299}),
        ("--nouse_fp16 --display_every 5 --num_warmup_batches=3", {"display_every": 5, "num_warmup_batches": 3}),
        ("--bf16 --threads 3 --no-fp16", {"bf16": True, "threads": 3, "fp16": False}),  # our own
    ],
)
def test_command_lines_of_tutorials(line: str, expected: Any) -> None:
    """Mean here what they mean there."""
    config, _ = parse(line.split())

    assert expected == {name: getattr(config, name) for name in expected}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--num_gpus=8", "--num_gpus=8: a rank drives one GPU: leave it out; --np N before the --"),
        ("--variable_update=replicated", "--variable_update=replicated: gradients are reduced by Horovod"),
        ("--variable_update parameter_server --ps_hosts=a:1", r"parameter_server: .*; --ps_hosts=a:1: hosts are those"),
        ("--train_dir /tmp/x", "--train_dir=/tmp/x: nothing is saved"),
        ("--eval", "--eval=true: training is what is measured"),
        ("--xla", "--env TF_XLA_FLAGS="),
        ("--optimizer rmsprop", "--optimizer=rmsprop: there are sgd and momentum"),
        ("--data_name=cifar10", "shards are ImageNet's"),
        ("--num_epochs=90", "--num_epochs=90: steps are counted: --num_batches=N"),
        ("--use_fp16=maybe", "--use_fp16=maybe: expected true or false"),
        ("--fp16_loss_scale=1024", "scales the loss by 128"),
    ],
)
def test_what_is_not_done_here_is_refused_by_name(line: str, says: str) -> None:
    """All of it at once, with what to do."""
    with pytest.raises(ConfigError, match=says):
        translated(line.split())


def test_values_stay_as_they_are() -> None:
    """Underscores in them, words that are no flag, flags of ours, a flag without its value."""
    words = ["--data_dir=/a_b", "my_model", "--no-fp16", "--model"]

    assert words == translated(words)
