"""A job: the operator's request, and what was planned from it for the current attempt."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.hosts import Host
from cluster.jobs.spec import JobSpec


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of a job's announced or running attempt, made from the job's specification and its cluster."""

    command: tuple[str, ...]  # what each rank runs
    mpirun: tuple[str, ...] = ()  # full command line; () for other users, since it contains the environment
    attempt: int = 1  # the attempt that this command line starts
    np: int
    hosts: tuple[Host, ...]  # hosts that have ranks; () while the job waits in the queue
    profile: str  # launch profile
    versions: Mapping[str, str]  # of the ranks' software: Python, Open MPI, TensorFlow, PyTorch …
    revision: str = ""  # git revision of the project's code, with "+changes" if it had any
    steps: int | None = None  # steps of the whole training, if its trainer reports them
    whole_np: int = 0  # ranks asked for; `np` if none is missing
    whole_hosts: tuple[Host, ...] = ()  # hosts of those ranks; `hosts` if none is missing
    spares: tuple[Host, ...] = ()  # hosts that may replace a dead one
    starter: str = ""  # address of the master if it has no rank and only starts mpirun
    slots: Mapping[str, int] = field(default_factory=dict)  # all slots of each host, by address
    grow_after: float = 60.0  # seconds that an attempt with fewer hosts trains before it restarts with more
    stack: str = ""  # region and name of the hosts' stack, which replaces dead ones; "": none
    notify: str = ""  # recipient of notifications, as in cluster.toml; "" for other users
    results: str = ""  # S3 destination of its results, as in cluster.toml
    is_shared: bool = (
        True  # all hosts share its folder; False: only the master has it (cluster/jobs/supervisor/no_shared_fs.py)
    )
    python: str = ""  # path of the project's interpreter on all hosts, which starts each rank
    prefix: tuple[str, ...] = ()  # command before the program's, such as a container's
    # Variables of its packages; PATH: folders put before the host's.
    variables: Mapping[str, str] = field(default_factory=dict)
    # Slots claimed for it, by host address. What counts is the host's own answer (cluster/jobs/claim.py).
    claimed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Job:
    """Record of a job: the operator's request, and what was planned from it for the current attempt."""

    id: str
    created: str  # UTC, ISO 8601, by the operator's clock
    sequence: int = 0  # number among this cluster's jobs, counted by the master
    ticket: int = 0  # position in the queue, the smallest first, counted by the master
    spec: JobSpec
    plan: Plan

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Return the hosts of this attempt."""
        return self.plan.hosts

    @property
    def np(self) -> int:
        """Return the number of ranks of this attempt."""
        return self.plan.np

    @property
    def attempt(self) -> int:
        """Return the number of this attempt."""
        return self.plan.attempt

    def slots_of(self, host: Host) -> int:
        """Return all slots of this host: 0 for a master that does not train.

        A host that joined since has as many as the job's largest host.
        """
        return self.plan.slots.get(host.address, max(self.plan.slots.values(), default=host.slots))

    @property
    def need(self) -> int:
        """Return the requested number of ranks, each of which needs a slot."""
        return self.plan.whole_np or self.np

    def takes_whole(self, host: Host) -> bool:
        """Return True if the job needs the whole host: it must share none, or needs all of its slots."""
        return self.spec.shares_no_host or self.need >= self.slots_of(host)

    def slots_on(self, host: Host) -> int:
        """Return how many slots of this host the job may use."""
        return self.slots_of(host) if self.takes_whole(host) else self.need

    @property
    def all_hosts(self) -> tuple[Host, ...]:
        """Return the hosts of this attempt, and those that the job returns to as soon as it can."""
        own = {h.address for h in self.hosts}
        return (*self.hosts, *(h for h in self.plan.whole_hosts if h.address not in own))

    @property
    def wanted(self) -> tuple[Host, ...]:
        """Return the hosts that a queued job may get when its turn comes; () if it was not queued."""
        return self.spec.hosts if self.spec.queue else ()

    @property
    def waits_for_hosts(self) -> bool:
        """Return True if the job has no hosts yet because it waits for its turn in the queue."""
        return bool(self.wanted) and not self.hosts

    @property
    def fewest_np(self) -> int:
        """Return the least number of ranks with which the job continues."""
        return self.spec.min_np or self.need

    def planned(self, **changes: Any) -> "Job":
        """Return the job with these fields of its plan changed."""
        return dataclasses.replace(self, plan=dataclasses.replace(self.plan, **changes))
