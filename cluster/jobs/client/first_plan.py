"""Plan of a new job, or of the first attempt after a resume, made on the operator's machine."""

import contextlib
import json
import re
import shlex
from collections.abc import Callable, Mapping

from cluster.errors import ConfigError
from cluster.inventory import ROOT, Cluster
from cluster.jobs.client.on_master import error_of
from cluster.jobs.job import Job, Plan
from cluster.jobs.record import JobPaths
from cluster.jobs.spec import JobSpec
from cluster.launch.facts import HostFacts
from cluster.launch.mpirun import Launch
from cluster.packages.interpreter import Interpreter
from cluster.ssh.limits import Limits
from cluster.ssh.noise_filter import output_between_marks
from cluster.ssh.result import Result

OnMaster = Callable[[str, bytes, Limits], Result]
"""Runs a command on the master."""

_VERSIONS_S = 20.0  # it may have to start a container
_CHECK_S = 60.0
_VERSIONS = ROOT / "cluster/packages/onhost/versions.py"
# Trainers whose --check supports --json.
_PLAN_AS_JSON = ("trainer.resnet50", "trainer.resnet50_torch", "trainer.maskrcnn")


def first_plan(
    spec: JobSpec,
    cluster: Cluster,
    launch: Launch,
    paths: JobPaths,
    versions: Mapping[str, str],
    interpreter: Interpreter | None,
) -> Plan:
    """Return the plan of a job on this cluster, without the parts that `launched` makes for each attempt."""
    used = {h.address for h in launch.hosts}
    # In a stack a spare takes a dead host's rank permanently. A host with a rank of its own must not do so.
    idle = () if cluster.stack else (*spec.hosts, *spec.idle)
    spares = tuple(h for h in cluster.hosts if (h.is_spare or h in idle) and h.address not in used)
    return Plan(
        command=spec.program.command(cluster.python, str(paths.folder)),
        np=launch.np,
        hosts=launch.hosts,
        profile=launch.profile.name,
        versions=versions,
        whole_np=launch.np,
        whole_hosts=launch.hosts,
        spares=() if spec.program.per == "once" else spares,
        starter="" if cluster.master in launch.hosts else cluster.master.address,
        slots={h.address: h.slots for h in cluster.hosts},
        stack=cluster.stack,
        notify=cluster.notify,
        results=cluster.results,
        is_shared=cluster.is_shared,
        python=cluster.python,
        prefix=interpreter.prefix if interpreter else (),
        variables=interpreter.variables if interpreter else {},
    )


def versions_of(
    spec: JobSpec, first: HostFacts, interpreter: Interpreter | None, on_master: OnMaster
) -> dict[str, str]:
    """Return the versions of the software that the ranks will run with.

    They come from the first rank's host, or from the master if the ranks have their own environment. If that
    environment does not report any, returns only Open MPI's.
    """
    mpi = {"open mpi": first.mpirun_version or ""}
    python = spec.program.python
    if not (spec.packages or python):
        return {"python": first.python, **mpi, **first.packages}
    if not (python or interpreter):
        return mpi  # the environment is not installed yet
    own = dict(interpreter.variables) if interpreter else {}
    path = [f'export PATH={shlex.quote(own.pop("PATH"))}:"$PATH";'] if "PATH" in own else []
    words = [*(interpreter.prefix if interpreter else ()), python or "python", "-c", _VERSIONS.read_text()]
    told = [f"{name}={value}" for name, value in own.items()]
    command = " ".join([*path, "exec", shlex.join(["env", *told, *words])])
    with contextlib.suppress(ValueError, AttributeError):
        return {**json.loads(output_between_marks(on_master(command, b"", Limits(total_s=_VERSIONS_S))) or ""), **mpi}
    return mpi


def check_flags(job: Job, project: str, on_master: OnMaster) -> int | None:
    """Run a trainer's `--check` of its flags and data on the master, before mpirun starts anything.

    Returns its number of steps, if it reports one. Programs of the operator's own have no such check.
    """
    program = job.spec.program
    if not program.is_built_in:
        return None
    words = [*job.plan.command, "--check", "--ranks", str(job.np)]
    words += ["--json"] if program.trainer in _PLAN_AS_JSON else []
    result = on_master(f"cd {shlex.quote(project)} && exec {shlex.join(words)}", b"", Limits(total_s=_CHECK_S))
    if result.exit_code in (126, 127) and program.python:
        raise ConfigError(
            f"{program.python} cannot be started on the master ({result.host}): name an interpreter with "
            "PyTorch that every host has, with --python"
        )
    if lacking := re.search(rb"ModuleNotFoundError: No module named '([\w.]+)'", result.stderr):
        raise ConfigError(
            f"the environment of the master ({result.host}) has no {lacking[1].decode()}, which this trainer "
            "needs: 'inv setup' installs it; for a lab, install it beside this command: "
            "pip install 'dlami-cluster[train]'"
        )
    if not result.ok:
        raise error_of(result)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        plan = output_between_marks(result) or ""
        return int(json.loads(plan[plan.index("{") :])["steps"])
    return None
