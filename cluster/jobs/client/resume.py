"""Request for the next attempt of an ended job: its own specification, with what a person typed anew."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from cluster import hostset
from cluster.errors import ConfigError
from cluster.inventory import Cluster
from cluster.jobs.program import UNKNOWN
from cluster.jobs.record import JobView
from cluster.jobs.spec import JobSpec


def next_attempt(
    job: JobView, cluster: Cluster, hosts: str | None, np: int | None, typed: Mapping[str, Any] | None = None
) -> JobSpec:
    """Return the request that resumes a job on the cluster's current hosts. What is left out is as before.

    hosts: None: the hosts of before, or all if one of them has gone.
    typed: other fields of the specification that were typed, such as terms.

    Raises ConfigError if the job is still active.
    """
    if not job.state.may_resume:
        raise ConfigError(
            f"{job.id} is {job.state}: there is nothing to resume; 'inv jobs.logs {job.id} --follow' follows it"
        )
    spec, plan = job.job.spec, job.job.plan
    if spec.program.trainer == UNKNOWN:
        raise ConfigError(f"{job.id} does not say which trainer it ran: start it anew")
    known = {h.address: h for h in cluster.hosts}
    whole = plan.whole_hosts or plan.hosts or job.job.wanted
    before = tuple(known[h.address] for h in whole if h.address in known)
    is_other = bool(hosts) or len(before) < len(whole)
    once = spec.program.per == "once"  # a master that does not train may run it, if it is named
    today = hostset.select(cluster.hosts, hosts, to_train=not once, for_ranks=once) if is_other else before
    return dataclasses.replace(
        spec.on(today),
        np=np or plan.whole_np or plan.np,
        queue=False,
        idle=(),
        **(typed or {}),
    )


def with_python(spec: JobSpec, python: str) -> JobSpec:
    """Return the request with another Python interpreter. Raises ConfigError if it is not a PyTorch trainer's."""
    if not spec.program.python:
        what = f"{spec.name} runs with the project's environment, or with packages of its own"
        raise ConfigError(f"--python is for PyTorch trainings: {what}")
    return dataclasses.replace(spec, program=dataclasses.replace(spec.program, python=python))


def from_scratch(spec: JobSpec, attempt: int) -> JobSpec:
    """Return a request whose given attempt starts anew if no checkpoint can be read. Later attempts do not.

    Raises ConfigError for a program of the user's own.
    """
    if not spec.program.is_built_in:
        raise ConfigError(f"--from-scratch is for this project's trainings: {spec.name} reads its own checkpoints")
    words = (*spec.program.words, "--from-scratch-attempt", str(attempt))
    return dataclasses.replace(spec, program=dataclasses.replace(spec.program, words=words))
