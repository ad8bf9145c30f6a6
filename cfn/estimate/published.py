"""Published measurements of similar trainings: some fix the model's constants, the others test it."""

import statistics
from dataclasses import dataclass

from cfn.estimate.layers import network
from cfn.estimate.machines import Machine
from cfn.estimate.step import TrainingSettings, step

NVIDIA = "github.com/NVIDIA/DeepLearningExamples, TensorFlow/Classification/ConvNets/resnet50v1.5, README of 2020"
CURVE = "github.com/horovod/horovod/issues/779: synthetic images on p3.16xlarge"
USER = "github.com/aws-samples/deep-learning-models/issues/2: ImageNet from EBS on p3.16xlarge"
GUIDE = "AWS DLAMI guide, tutorial-horovod-tensorflow, with the step lines that it shows"
PADDLE = "github.com/PaddlePaddle/Perf: NGC TensorFlow 1.15 on DGX-1, 100 Gbit/s InfiniBand"
MLPERF = "MLPerf Training 3.0 as silvertonconsulting.com/2023/07/12 quotes Dell's runs; 37 epochs assumed"
EKS = "the logs beside AWS's EKS tutorial for deep learning benchmarks: tf_cnn_benchmarks on p3"
BACKBONE = (
    "github.com/aws-samples/deep-learning-models, results of train_backbone.py: 7.3 iterations/s of 8 x 128 images"
)
HOROVOD = "github.com/horovod/horovod, docs/benchmarks.rst: 4 P100 a host, 25 Gbit/s RoCE"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Published throughput of a training, with its settings and source."""

    what: str
    images_per_s: float
    source: str
    machine: Machine
    hosts: int = 1
    batch: int = 256
    precision: str = "float16"
    xla: bool = True
    model: str = "resnet50"
    photographs: str | None = None
    fixes: bool = False
    """True if the model's constants were fixed by this figure. The others were compared only afterwards."""

    def predicted(self) -> float:
        """Return the images/s that the model predicts."""
        training = TrainingSettings(
            layers=network(self.model, 224),
            batch=self.batch,
            precision=self.precision,
            xla=self.xla,
            photographs=self.photographs,
        )
        return step(training, self.machine, self.hosts).images_per_s

    @property
    def error(self) -> float:
        """Return the relative error of the prediction."""
        return self.predicted() / self.images_per_s - 1.0


def _host(gpu: str, gpus: int, gbit: float = 25.0, vcpus: int = 64, efa: bool = False) -> Machine:
    return Machine(name="", gpu=gpu, gpus=gpus, vcpus=vcpus, gbit=gbit, efa=efa)


_ONE, _P3, _IB, _P100 = _host("V100", 1), _host("V100", 8), _host("V100", 8, 100.0), _host("P100", 4, 25.0)
_MLPERF_IMAGES = 37 * 1_281_167

_OF_USER = (  # GPUs, hosts, images/s
    (1, 1, 740),
    (2, 1, 1481),
    (8, 1, 5000),
    (16, 2, 9860),
    (32, 4, 21300),
    (64, 8, 37000),
)

FIGURES = (
    *(
        Figure(
            what=f"{gpus} V100, float16, ImageNet from EBS",
            images_per_s=images_per_s,
            source=USER,
            machine=_host("V100", gpus // hosts),
            hosts=hosts,
            xla=False,
            photographs="original",
        )
        for gpus, hosts, images_per_s in _OF_USER
    ),
    Figure(
        what="1 V100, float32, XLA",
        images_per_s=412,
        source=NVIDIA,
        machine=_ONE,
        batch=128,
        precision="float32",
        fixes=True,
    ),
    Figure(what="1 V100, float16, XLA", images_per_s=1270, source=NVIDIA, machine=_ONE, fixes=True),
    Figure(
        what="1 A100, TF32, XLA",
        images_per_s=909,
        source=NVIDIA,
        machine=_host("A100", 1),
        precision="tf32",
        fixes=True,
    ),
    Figure(what="1 V100, float16", images_per_s=872, source=CURVE, machine=_ONE, xla=False, fixes=True),
    Figure(what="8 V100, float16", images_per_s=6679, source=CURVE, machine=_P3, xla=False, fixes=True),
    Figure(what="32 V100, float16", images_per_s=23870, source=CURVE, machine=_P3, hosts=4, xla=False, fixes=True),
    Figure(what="8 V100, float16, XLA", images_per_s=9510, source=NVIDIA, machine=_P3),
    Figure(what="8 V100, float32, XLA", images_per_s=3170, source=NVIDIA, machine=_P3, batch=128, precision="float32"),
    Figure(what="16 V100 of a DGX-2, float16, XLA", images_per_s=17250, source=NVIDIA, machine=_host("V100", 16)),
    Figure(what="1 A100, float16, XLA", images_per_s=2375, source=NVIDIA, machine=_host("A100", 1)),
    Figure(what="8 A100, float16, XLA", images_per_s=17400, source=NVIDIA, machine=_host("A100", 8)),
    Figure(what="8 A100, TF32, XLA", images_per_s=7000, source=NVIDIA, machine=_host("A100", 8), precision="tf32"),
    Figure(what="16 V100, float16", images_per_s=12828, source=CURVE, machine=_P3, hosts=2, xla=False),
    Figure(what="64 V100, float16", images_per_s=47195, source=CURVE, machine=_P3, hosts=8, xla=False),
    Figure(what="128 V100, float16", images_per_s=89783, source=CURVE, machine=_P3, hosts=16, xla=False),
    Figure(what="4 V100, float16, synthetic", images_per_s=3010, source=GUIDE, machine=_host("V100", 4), xla=False),
    Figure(
        what="32 V100, float16, ImageNet",
        images_per_s=19200,
        source=GUIDE,
        machine=_P3,
        hosts=4,
        xla=False,
        photographs="original",
    ),
    Figure(
        what="256 V100, float16, ImageNet",
        images_per_s=143000,
        source=GUIDE,
        machine=_P3,
        hosts=32,
        xla=False,
        photographs="original",
    ),
    Figure(what="8 V100, float16, synthetic", images_per_s=6411, source=EKS, machine=_P3, xla=False),
    Figure(
        what="8 V100 on two hosts, float16, VGG-16, ImageNet from EFS",
        images_per_s=483.6,
        source=EKS,
        machine=_host("V100", 4, 10.0, 32),
        hosts=2,
        batch=64,
        xla=False,
        model="vgg16",
        photographs="original",
    ),
    Figure(
        what="8 V100, float16, ImageNet, v1b",
        images_per_s=7.3 * 8 * 128,
        source=BACKBONE,
        machine=_P3,
        batch=128,
        xla=False,
        photographs="original",
    ),
    Figure(what="8 V100, float32", images_per_s=3105.3, source=PADDLE, machine=_IB, batch=128, precision="float32"),
    Figure(
        what="32 V100, float32",
        images_per_s=11622.9,
        source=PADDLE,
        machine=_IB,
        hosts=4,
        batch=128,
        precision="float32",
    ),
    Figure(what="32 V100, float16", images_per_s=23280.9, source=PADDLE, machine=_IB, hosts=4),
    Figure(
        what="16 A100, float16",
        images_per_s=_MLPERF_IMAGES / (14.4 * 60),
        source=MLPERF,
        machine=_host("A100", 8, 1600.0, 128, efa=True),
        hosts=2,
        batch=400,
    ),
    Figure(
        what="16 H100, float16",
        images_per_s=_MLPERF_IMAGES / (7.8 * 60),
        source=MLPERF,
        machine=_host("H100", 8, 3200.0, 128, efa=True),
        hosts=2,
        batch=400,
    ),
    Figure(
        what="16 P100, float32, ResNet-101",
        images_per_s=1656.82,
        source=HOROVOD,
        machine=_P100,
        hosts=4,
        batch=64,
        precision="float32",
        xla=False,
        model="resnet101",
    ),
)


def judged() -> list[Figure]:
    """Return the figures that were not used to fix the model's constants."""
    return [f for f in FIGURES if not f.fixes]


def median_error() -> float:
    """Return the median absolute error over the figures that were not used to fix the model."""
    return statistics.median(abs(f.error) for f in judged())


def median_error_elsewhere() -> float:
    """Return the same median over those figures whose source was not used to fix the model either."""
    known = {f.source for f in FIGURES if f.fixes}
    return statistics.median(abs(f.error) for f in judged() if f.source not in known)
