"""Plan of an attempt: the hosts are probed and mpirun's command line is made. Used by the client and on the master."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.errors import ClusterError
from cluster.files import write_atomically
from cluster.hosts import Host, hostfile
from cluster.inventory import ROOT, Cluster
from cluster.jobs.record import Job, JobPaths
from cluster.jobs.supervisor.no_shared_fs import own_disk_folder
from cluster.launch.facts import HostFacts, survey
from cluster.launch.mpirun import SLOTS, JobTags, Launch, command_line, hosts_for, plan_launch
from cluster.ssh.fanout import Executor
from cluster.terminal import counted


def launched(job: Job, launch: Launch, paths: JobPaths, attempt: int) -> Job:
    """Return the job with this attempt's mpirun command line, hosts, ranks and launch profile."""
    is_own = not job.spec.program.is_built_in
    words = _started_by_wrapper(job, paths) if is_own else list(job.plan.command)
    told = _told(job, launch, paths) if is_own else {}
    if not job.takes_whole(min(launch.hosts)):  # filled by the claim
        words, told = [job.plan.python, "-IS", str(paths.slots_program), *words], {**told, SLOTS: ""}
    mpirun = command_line(
        launch,
        words,
        hostfile=str(paths.hostfile),
        workdir=str(paths.folder if is_own else paths.code),
        output=str(paths.rank_logs(attempt)),
        job=JobTags(id=job.id, folder=str(paths.folder), attempt=attempt),
        told=told,
    )
    return job.planned(
        mpirun=tuple(mpirun),
        np=launch.np,
        hosts=launch.hosts,
        profile=launch.profile.name,
        attempt=attempt,
    )


def write_hostfiles(job: Job, paths: JobPaths) -> None:
    """Write the attempt's hostfile for mpirun, and those for a program that starts more processes by itself."""
    write_atomically(paths.hostfile, hostfile(job.hosts))
    write_atomically(paths.nodes, hostfile(dataclasses.replace(h, slots=max(1, job.slots_on(h))) for h in job.hosts))
    write_atomically(paths.workers, "".join(f"{h.address}\n" for h in job.hosts))


def _started_by_wrapper(job: Job, paths: JobPaths) -> list[str]:
    """Return the command that starts a program's rank: `cluster/launch/onhost/rank.py`, as copied at submission."""
    wrapper = [job.plan.python, "-IS", str(paths.rank_program), working_directory(job, paths)]
    return [*wrapper, *job.plan.prefix, *job.plan.command]


def working_directory(job: Job, paths: JobPaths) -> str:
    """Return the folder in which ranks run: in the job's copy of the code, or the operator's own. They expand a ~."""
    spec = job.spec
    return spec.workdir or str(Path(own_disk_folder(job) if spec.own_disk else paths.code) / spec.below)


def _told(job: Job, launch: Launch, paths: JobPaths) -> dict[str, str | None]:
    """Return the program's variables, and those from which the wrapper derives PyTorch's and other launchers'."""
    local = launch.rendezvous[0] if launch.rendezvous else "127.0.0.1"
    nodes = [f"{local if h.is_local else h.address}:{max(1, job.slots_on(h))}" for h in sorted(launch.hosts)]
    return {
        "DLAMI_NODES": ",".join(nodes),
        "DLAMI_PER": job.spec.program.per,
        "DLAMI_JOB_DIR": str(paths.folder),
        "DLAMI_HOSTFILE": str(paths.nodes),
        "DLAMI_RESUME": None,  # set by the launcher, which finds the newest checkpoint
        "DLAMI_PATH": str(Path(job.plan.python).parent),
        **{("DLAMI_PATH" if name == "PATH" else name): value for name, value in job.plan.variables.items()},
    }


class HostsUnfit(ClusterError):
    """Error: hosts cannot take part in an attempt now. `why` has the reasons by address."""

    def __init__(self, why: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{address}: {reason}" for address, reason in why.items()))
        self.why = dict(why)


def planned_on_master(job: Job, paths: JobPaths, hosts: Sequence[Host], np: int, attempt: int) -> Job:
    """Plan this attempt of the job with so many ranks on these hosts. Runs on the master, in the supervisor.

    Raises HostsUnfit for hosts that do not answer, or lack the shared folder or the program's packages. Raises
    ClusterError if the hosts differ.
    """
    used = hosts_for(hosts, np)
    shared = str(paths.folder.parent.parent)
    cluster = Cluster(name=job.id, hosts=used, folder=Path(), shared=shared, project=str(ROOT))
    master = Host(rank=0, address=job.plan.starter, slots=0) if job.plan.starter else None
    with Executor(cluster) as reach:
        results, facts = survey(reach, cluster, (*used, *([master] if master else [])))
    silent = {h.address: r.problem for h, r in results.items() if not r.ok and h != master}  # the master runs this code
    needed = facts if job.plan.is_shared else {}
    without = {h.address: f"{shared} {f.shared}" for h, f in needed.items() if f.shared != "yes"}
    if silent or without:
        raise HostsUnfit({**silent, **without})
    launch = plan_launch(
        hosts,
        facts,
        np=np,
        profile=job.spec.profile,
        environment=job.spec.environment,
        master=master if master in facts else None,
    )
    return launched(_with_packages(job, used, shared), launch, paths, attempt)


def _with_packages(job: Job, hosts: Sequence[Host], shared: str) -> Job:
    """Return the job with its packages' environment, which is installed on hosts that joined since.

    Raises HostsUnfit.
    """
    if not job.spec.packages:
        return job
    from cluster.packages.ready import ready

    made = ready(job.spec.packages, None, hosts, shared, say=lambda text: print(f"packages: {text}", flush=True))
    if made.lacking:
        raise HostsUnfit(made.lacking)
    found = made.interpreter
    return job.planned(prefix=found.prefix, variables=found.variables)


def require_shared(cluster: Cluster, facts: Mapping[Host, HostFacts]) -> None:
    """Raise ClusterError if the shared folder does not work on all hosts. The text names those where it does not."""
    needed = {h: f for h, f in facts.items() if cluster.is_shared or h.rank == 0}
    bad = [f"  {host}  {cluster.shared} {f.shared}" for host, f in needed.items() if f.shared != "yes"]
    if bad:
        raise ClusterError(
            "\n".join(
                [
                    f"the shared folder does not work on {len(bad)} of {counted(len(needed), 'host')}; "
                    "jobs, checkpoints and logs are kept there:",
                    *bad,
                ]
            )
        )
