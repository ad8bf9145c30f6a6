"""Task `train.estimate`: predicted speed and price of a training, from the trainer's flags and AWS's prices."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from invoke import Context

from cluster.errors import ConfigError
from cluster.terminal import counted, print_json
from dlami.tasks.command import command, option, rest

if TYPE_CHECKING:
    from cfn.estimate.whole import Estimate

TYPES = "g5.12xlarge,g6e.12xlarge,p4d.24xlarge,p5.48xlarge"
HOSTS = "1,2,4,8,16,32,64"


@dataclass(frozen=True, kw_only=True)
class Estimating:
    """Options of `inv train.estimate`."""

    types: str = option(TYPES, "instance types, by comma")
    hosts: str = option(HOSTS, "numbers of hosts, by comma")
    originals: bool = option(False, "the shards hold whole photographs (--shorter-side 0): twice the time to decode")
    dollars: bool = option(False, "ask AWS's price list what it costs on demand")
    region: str = option("us-east-1", "whose prices")
    json: bool = option(False, "answer as JSON on stdout")


@command(name="estimate")
def train_estimate(c: Context, given: Estimating) -> None:
    """Estimate a ResNet training on other machines: inv train.estimate -- --num-epochs 90 --precision float16."""
    found = estimates(given, rest())
    if given.json:
        print_json([e.to_json() for e in found])
        return
    for line in table(found):
        print(line)


def estimates(given: Estimating, flags: list[str]) -> "list[Estimate]":
    """Return an estimate for each instance type and number of hosts.

    Raises ConfigError for an unknown type or a flag that the trainer does not have.
    """
    from cfn.estimate.layers import network
    from cfn.estimate.machines import machine
    from cfn.estimate.step import TrainingSettings
    from cfn.estimate.whole import Work, estimate
    from trainer.common.files.errors import TrainerError
    from trainer.resnet50.config import IMAGENET_EXAMPLES, ResNetConfig
    from trainer.resnet50.start import parse

    counts = _counts(given.hosts)
    machines = [machine(name.strip()) for name in given.types.split(",")]
    try:
        run, _ = parse(_completed(flags), ResNetConfig, "python -m trainer.resnet50", "Flags of the ResNet trainer.")
    except TrainerError as e:
        raise ConfigError(str(e)) from e
    photographs = None if run.synthetic else "original" if given.originals else "shrunk"
    training = TrainingSettings(
        layers=network(run.model, run.image_size),
        batch=run.batch_size,
        precision=run.precision,
        xla=run.xla,
        compressed=run.fp16_compression,
        photographs=photographs,
    )
    usd = _prices(given, [m.name for m in machines])
    rows = []
    for kind in machines:
        for hosts in counts:
            global_batch = run.batch_size * hosts * kind.gpus
            epochs = run.num_epochs or (run.num_batches or 0) * global_batch / IMAGENET_EXAMPLES
            evaluated = int(epochs / run.eval_every) if run.eval_every else int(run.eval)
            work = Work(images=epochs * IMAGENET_EXAMPLES, evaluations=evaluated)
            rows.append(estimate(training, work, kind, hosts, usd.get(kind.name)))
    return rows


def _completed(flags: list[str]) -> list[str]:
    """Add flags that the trainer's own check requires: folders, which an estimate does not use, and 90 epochs."""
    given = {word.split("=")[0] for word in flags}
    data = [] if given & {"--data-dir", "--synthetic"} else ["--data-dir", "."]
    length = [] if given & {"--num-epochs", "--num-batches", "--recipe"} else ["--num-epochs", "90"]
    return ["--job-dir", ".", *data, *length, *flags]


def table(found: "list[Estimate]") -> list[str]:
    """Return the lines of the table: a row per estimate, where efficiency drops, and how good the model is."""
    from cfn.estimate.published import judged, median_error
    from cfn.estimate.whole import bend
    from cfn.prices import dollars

    head = f"{'type':<18} {'hosts':>5} {'GPUs':>5} {'images/s':>10} {'of ideal':>8}  "
    lines = [head + f"{'bound by':<8} {'hours':>8} {'USD':>10}"]
    for e in found:
        usd = dollars(e.usd) if e.usd is not None else "not asked"
        many = f"{e.machine.name:<18} {e.hosts:>5} {e.hosts * e.machine.gpus:>5} {e.step.images_per_s:>10,.0f}"
        lines.append(f"{many} {e.efficiency:>8.0%}  {e.step.bound:<8} {e.hours:>8.2f} {usd:>10}")
    for name in dict.fromkeys(e.machine.name for e in found):
        bends = bend([e for e in found if e.machine.name == name])
        if bends is not None:
            lines.append(f"{name}: under 80 % of its GPUs' own speed from {counted(bends, 'host')} on")
    off = f"{len(judged())} published figures (median {median_error():.0%})"
    lines.append(f"a model, not a measurement: docs/scale.md says how far it was from {off}")
    return lines


def _counts(text: str) -> list[int]:
    try:
        counts = [int(word) for word in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1 or max(counts) > 512:
        raise ConfigError(f"--hosts: {text!r} is no list of numbers from 1 to 512, like {HOSTS}")
    return counts


def _prices(given: Estimating, types: list[str]) -> dict[str, float | None]:
    """Return USD per hour of one host by type; {} unless --dollars is given."""
    if not given.dollars:
        return {}
    from cfn.aws import Aws
    from cfn.prices import PriceList

    prices = PriceList(Aws(given.region))
    return {name: prices.on_demand(name) for name in types}
