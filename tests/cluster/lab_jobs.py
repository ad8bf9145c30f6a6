"""Jobs on lab hosts whose ranks are shell lines."""

from typing import Any

from cluster.inventory import Cluster
from cluster.jobs.record import JobPaths, jobs_folder, new_id
from cluster.launch.facts import survey
from cluster.launch.mpirun import JobTags, command_line, plan_launch
from cluster.ssh.fanout import Executor
from cluster.ssh.tagged_processes import list_script
from tests.cluster.flat_jobs import job_of
from tests.conftest import wait_for

ENDLESS = ("sleep", "4321")


def a_job(reach: Executor, cluster: Cluster, hosts: Any, command: Any = ENDLESS, mpirun: Any = None) -> Any:
    """A job whose ranks are one small program."""
    results, facts = survey(reach, cluster, cluster.hosts)
    results.check()
    launch = plan_launch(hosts, facts)
    job_id = new_id("small")
    paths = JobPaths(jobs_folder(cluster.shared) / job_id)
    words = command_line(
        launch,
        command,
        hostfile=str(paths.hostfile),
        workdir=str(paths.code),
        output=str(paths.rank_logs(1)),
        job=JobTags(id=job_id, folder=str(paths.folder)),
    )
    ran = tuple(mpirun or words)
    return job_of(id=job_id, command=tuple(command), mpirun=ran, np=launch.np, hosts=launch.hosts, revision="none")


def started(jobs: Any, reach: Executor, job: Any) -> None:
    """Submitted, and its ranks run on every host."""
    jobs.submit(job)
    wait_for(
        lambda: all(
            "sleep 4321" in r.text for r in reach.run(job.hosts, list_script("DLAMI_JOB", job.id)).check().values()
        ),
        60,
        "its ranks run on every host",
    )
