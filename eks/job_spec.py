"""Order of a training, as the operator's MPIJob carries it to the launcher pod. The launcher adds the hosts."""

import dataclasses
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.errors import ConfigError
from cluster.hosts import Host
from cluster.jobs.program import Program, Trainer, seats
from cluster.jobs.training import HealingTerms, Training
from cluster.typed import from_json

ORDER_VARIABLE = "DLAMI_ORDER"  # of the launcher's container: the order as JSON
_LONGEST = 63 - len("-worker-63")  # a pod's name is also its host name, which has 63 characters at most


@dataclass(frozen=True, kw_only=True)
class Code:
    """Reference to the operator's code, which comes with the job as an archive (eks/code.py)."""

    digest: str
    below: str = ""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Request for one training by `inv train.*`, without the hosts."""

    job: str  # its id, which is the MPIJob's name
    submission: str  # new each time an operator starts the job; a failed job runs again only with a new one
    name: str
    words: tuple[str, ...]  # the trainer's flags, or the program
    module: str = ""  # the trainer; "" for a program
    python: str = ""  # the trainer's own interpreter
    per: str = "gpu"  # of a program
    code: Code | None = None  # of a program
    workdir: str = ""  # of a program that takes no code along
    np: int | None = None
    profile: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    heal: bool = True
    min_np: int | None = None
    attempts_per_hour: int = 6
    hang_after: float | None = None
    begins_from: str = ""  # id of the job whose newest checkpoint a new job begins with
    from_scratch: bool = False  # its first attempt may begin at step 0 if no checkpoint can be read
    unchecked: bool = False
    skip_unfit: bool = False
    shared: str = "/efs"
    notify: str = ""
    results: str = ""

    def training(self, hosts: tuple[Host, ...]) -> Training:
        """Return the training of this order on these hosts."""
        what: Trainer | Program
        if self.module:
            what = Trainer(module=self.module, arguments=self.words, python=self.python)
        else:
            what = Program(words=self.words, per=self.per)
        is_program = not self.module
        chosen = hosts[:1] if is_program and self.per == "once" else hosts
        return Training(
            exclusive=True,  # of its pods
            name=self.name,
            what=what,
            hosts=seats(chosen, self.per if is_program else "gpu"),
            np=self.np,
            profile=self.profile,
            environment=self.environment,
            terms=HealingTerms(heal=self.heal, min_np=self.min_np, attempts_per_hour=self.attempts_per_hour),
            hang_after=self.hang_after,
            slots={h.address: h.slots for h in hosts} if is_program else {},
            code=self.code.digest if self.code else "",
            below=self.code.below if self.code else "",
            workdir=self.workdir,
            begins_from=self.begins_from,
        )

    def to_json(self) -> str:
        """Return the order as readable JSON without fields that have their default."""
        said = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name in _REQUIRED}
        said |= {name: value for name, value in dataclasses.asdict(self).items() if value != _DEFAULTS.get(name, value)}
        return json.dumps(said, indent=1, default=dataclasses.asdict)

    @classmethod
    def from_json(cls, text: str) -> "Order":
        """Parse an order. Raises ConfigError if the text is not one."""
        try:
            return from_json(cls, json.loads(text))
        except ValueError as e:
            raise ConfigError(f"{ORDER_VARIABLE} of this pod is no order: {e}") from e


_DEFAULTS = {
    f.name: {} if f.default is dataclasses.MISSING else f.default
    for f in dataclasses.fields(Order)
    if f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
}
_REQUIRED = {f.name for f in dataclasses.fields(Order)} - set(_DEFAULTS)


def new_id(name: str) -> str:
    """Return a job id that is also valid in host names, such as resnet50-20261120-231500-x7ab.

    Raises ConfigError for a name that cannot be part of one.
    """
    if not re.match(r"[a-z]", name):
        raise ConfigError(f"job name {name!r}: on Kubernetes it begins with a letter, it becomes a host's name")
    made = f"{name.rstrip('-')}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    assert len(made) <= _LONGEST
    return made
