"""Specification of a job: the operator's request, kept whole in `job.json` and used again when the job is resumed."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.hosts import Host
from cluster.jobs.program import Program, seats
from cluster.jobs.terms import Terms
from cluster.packages.interpreter import EnvironmentRequest


@dataclass(frozen=True, kw_only=True)
class JobSpec(Terms):
    """Operator's request: the program, its hosts and its terms. The same on bare hosts and on Kubernetes."""

    name: str  # the job's name
    program: Program
    hosts: tuple[Host, ...] = ()  # with one slot per rank that they may have
    idle: tuple[Host, ...] = ()  # others that it may have; without a stack they are spares
    np: int | None = None  # ranks; None: one per slot
    profile: str | None = None  # launch profile; None: detected anew for each attempt
    environment: Mapping[str, str] = field(default_factory=dict)  # variables for every rank
    begins_from: str = ""  # id of the job whose checkpoints a new job begins with
    queue: bool = False  # it waits for its turn, and any of `hosts` will do then
    unchecked: bool = False  # its hosts are not checked when its turn comes
    exclusive: bool = False  # it takes whole hosts, even if it has fewer ranks there than slots
    code: str = ""  # digest of the delivered code; "": none
    below: str = ""  # folder of the code in which ranks run; "": its top
    own_disk: str = ""  # in records of older versions: digest of code that ranks run from their host's disk
    workdir: str = ""  # folder on the hosts where ranks run; "": in the job's copy of the code
    packages: EnvironmentRequest | None = None  # environment of its own

    def on(self, hosts: Sequence[Host]) -> "JobSpec":
        """Return the request on these hosts, with a slot for each start. One that starts once uses the first host."""
        per = self.program.per
        return dataclasses.replace(self, hosts=seats(hosts[:1] if per == "once" else hosts, per))

    @property
    def given_terms(self) -> dict[str, Any]:
        """Return the terms without those that are left to their defaults by None."""
        terms = {f.name: getattr(self, f.name) for f in dataclasses.fields(Terms)}
        return {name: value for name, value in terms.items() if value is not None}

    @property
    def shares_no_host(self) -> bool:
        """Return True if the job takes whole hosts: it was started with --exclusive, or it starts once per host."""
        return self.exclusive or self.program.per != "gpu"

    @property
    def brings_code(self) -> bool:
        """Return True if ranks run code of the operator, taken along or on the hosts already."""
        return bool(self.code or self.workdir)
