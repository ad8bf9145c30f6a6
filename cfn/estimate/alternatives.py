"""Choice of another instance type with the same GPUs, whose steps wait less for network or input."""

import math
from dataclasses import dataclass

from cfn.estimate.machines import Machine, machines_with
from cfn.estimate.step import StepTimes, TrainingSettings, step

MOST_HOSTS = 64
WORTH = 1.1  # times the images/s; less is within the model's error


@dataclass(frozen=True)
class InstanceChoice:
    """Number of hosts of an instance type, and one training step on them."""

    machine: Machine
    hosts: int
    step: StepTimes


def better(training: TrainingSettings, machine: Machine, hosts: int) -> InstanceChoice | None:
    """Return hosts with at least as many GPUs of the same kind whose steps wait less, or None if none are worth it.

    The fewest additional GPUs come first, then the most images/s. Returns None if the GPUs themselves are the
    bottleneck.
    """
    now = step(training, machine, hosts)
    if now.bound == "GPU":
        return None
    gpus = hosts * machine.gpus
    found = []
    for other in machines_with(machine.gpu):
        many = math.ceil(gpus / other.gpus)
        if other.name != machine.name and many <= MOST_HOSTS:
            found.append(InstanceChoice(other, many, step(training, other, many)))
    worth = [c for c in found if c.step.images_per_s / (c.hosts * c.machine.gpus) > WORTH * now.images_per_s / gpus]
    return min(worth, key=lambda c: (c.hosts * c.machine.gpus, -c.step.images_per_s), default=None)
