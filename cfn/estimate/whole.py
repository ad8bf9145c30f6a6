"""Estimate of a whole training on a number of hosts: images/s, bottleneck, hours, dollars."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cfn.estimate.goodput import FailureCost, goodput
from cfn.estimate.machines import Machine
from cfn.estimate.step import FORWARD, StepTimes, TrainingSettings, step

HOURS_S = 3600.0
START_S = 60.0  # maximum from the launch to the first step
VALIDATION = 50_000  # images of ImageNet's validation set


@dataclass(frozen=True, kw_only=True)
class Work:
    """Amount of work of a training."""

    images: float
    """Images that training reads in total."""
    evaluations: int = 0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimate for one number of hosts of one instance type."""

    machine: Machine
    hosts: int
    step: StepTimes
    efficiency: float
    """Images/s relative to as many independent GPUs."""
    hours: float
    goodput: float
    usd: float | None
    """Cost in total; None if the price per hour is unknown."""

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as a JSON object, in SI units except for `hours`."""
        return {
            "instance_type": self.machine.name,
            "hosts": self.hosts,
            "gpus": self.hosts * self.machine.gpus,
            "images_per_s": self.step.images_per_s,
            "efficiency": self.efficiency,
            "bound": self.step.bound,
            "step": asdict(self.step) | {"seconds": self.step.seconds},
            "goodput": self.goodput,
            "hours": self.hours,
            "usd": self.usd,
        }


def estimate(
    training: TrainingSettings, work: Work, machine: Machine, hosts: int, usd_per_hour: float | None
) -> Estimate:
    """Return the estimate for this many hosts.

    Args:
        usd_per_hour: price of one host.
    """
    one = step(training, machine, hosts)
    alone = step(training, _with_one_gpu(machine), 1).images_per_s
    share = goodput(hosts, 0, FailureCost())
    evaluating_s = work.evaluations * VALIDATION * FORWARD / one.images_per_s
    hours = (START_S + (work.images / one.images_per_s + evaluating_s) / share) / HOURS_S
    return Estimate(
        machine=machine,
        hosts=hosts,
        step=one,
        efficiency=one.images_per_s / (alone * hosts * machine.gpus),
        hours=hours,
        goodput=share,
        usd=None if usd_per_hour is None else usd_per_hour * hosts * hours,
    )


def bend(found: Sequence[Estimate], least: float = 0.8) -> int | None:
    """Return the smallest number of hosts whose efficiency is below `least`, or None."""
    return next((e.hosts for e in sorted(found, key=lambda e: e.hosts) if e.efficiency < least), None)


def _with_one_gpu(machine: Machine) -> Machine:
    """Return a host with one such GPU and its share of the vCPUs."""
    return replace(machine, gpus=1, vcpus=max(1, machine.vcpus // machine.gpus))
