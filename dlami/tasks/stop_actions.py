"""Actions of `inv stack.stop` and `inv stack.start`: print what will happen, confirm, act."""

from typing import Any

from cfn import fixed_costs, guard_deadline, hostfile, stop
from cfn.aws import Aws
from cfn.running import running_jobs
from cluster import written
from cluster.clusterfile.model import ClusterFile
from cluster.errors import ClusterError, ConfigError, NothingToDo
from cluster.inventory import Cluster, load_cluster
from cluster.jobs.client.client import JobsClient, opened
from cluster.jobs.client.show import how_it_was_left
from cluster.jobs.record import JobView
from cluster.locate import cluster_file
from cluster.terminal import counted
from dlami.tasks.stack_actions import answer, confirm, load, next_step, say


def stop_stack(path: str, yes: bool, dry_run: bool, unsaved: bool, as_json: bool) -> None:
    """Save and stop the running jobs, end all nodes, and print what is still billed."""
    file = load(path)
    aws = Aws(file.region)
    nodes = stop.members(aws, file)
    if not nodes and guard_deadline.is_at_zero(aws, file):
        raise NothingToDo(f"{file.name} is stopped already; `inv stack.start` brings it back")
    cluster = None if unsaved or not nodes else _cluster(path)
    jobs = running_jobs(cluster) if cluster else ()
    say(_what_ends(file, len(nodes), jobs, unsaved))
    if dry_run:
        ends = {"ends": [m.instance_id for m in nodes], "saves": [j.id for j in jobs]}
        return answer({**ends, **_billed(aws, file)}, True) if as_json else _show_billed(aws, file)
    confirm(f"This ends {counted(len(nodes), 'instance')} of {file.name}.", file.name, yes)
    saved = _save(cluster, jobs) if cluster and jobs else []
    stop.stop(aws, file, say)
    if as_json:
        return answer({"stopped": [m.instance_id for m in nodes], "saved": saved, **_billed(aws, file)}, True)
    print(f"{file.name} is stopped; `inv stack.start` brings it back")
    for job in saved:
        print(f"then inv jobs.resume {job}")
    return _show_billed(aws, file)


def start_stack(path: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Start all nodes again, and rewrite the hostfile and the files that belong to it."""
    file = load(path)
    aws = Aws(file.region)
    number = sum(s.desired for s in stop.sizes(file).values())
    if dry_run:
        text = f"would start {counted(number, 'instance')} of {file.name}"
        answer({"starts": number} if as_json else text, as_json)
        return
    confirm(f"This starts {counted(number, 'instance')} of {file.name}.", file.name, yes)
    hosts = stop.start(aws, file, say)
    targets = hostfile.targets(aws, cluster_file(path).resolve(), file)
    stale = ""
    try:
        written.write(targets, force=False)
    except NothingToDo:
        pass
    except ConfigError as e:
        stale = str(e)
    then = next_step(file, "", "inv jobs.list --all, inv jobs.resume JOB")
    text = f"{file.name} has {counted(len(hosts), 'host')} again\n{then}"
    answer([h.as_json() for h in hosts] if as_json else text, as_json)
    if stale:
        raise ConfigError(f"{file.name} runs, and its hosts have new addresses, which no task knows yet: {stale}")


def _cluster(path: str) -> Cluster:
    """Return the cluster whose jobs are to be saved. Raises ConfigError if it cannot be loaded here."""
    folder = cluster_file(path).resolve().parent
    try:
        return load_cluster(str(folder))
    except ConfigError as e:
        raise ConfigError(
            f"which jobs run cannot be asked: {e}\n"
            "`inv hosts.write` first, or add --unsaved: what runs is ended as it is"
        ) from e


def _save(cluster: Cluster, running: tuple[JobView, ...]) -> list[str]:
    """Make each job save and exit, and return their ids. Raises ClusterError if one cannot.

    No node has been ended by then.
    """
    saved = []
    with opened(cluster) as jobs:
        for job in running:
            say(f"{job.id}: saves and leaves")
            saved += _saved(jobs, job)
    return saved


def _saved(jobs: JobsClient, job: JobView) -> list[str]:
    try:
        say(how_it_was_left(jobs.stop(job.id)))
    except NothingToDo:
        return []  # the job has ended meanwhile
    except ClusterError as e:
        raise ClusterError(
            f"{e}\nno instance was ended; see to that job, or add --unsaved: what runs is ended as it is"
        ) from e
    return [job.id]


def _what_ends(file: ClusterFile, nodes: int, jobs: tuple[JobView, ...], unsaved: bool) -> str:
    lines = [f"{file.name}: {counted(nodes, 'instance')} end; what is on their own disks (NVMe, root) is lost"]
    lines += [f"  {j.id} ({j.owner}, {j.state}) saves and leaves" for j in jobs]
    if unsaved:
        lines.append("  jobs that run are ended as they are, without a last checkpoint")
    return "\n".join([*lines, f"{file.shared}, the network and the master's addresses stay"])


def _billed(aws: Aws, file: ClusterFile) -> dict[str, Any]:
    items = fixed_costs.standing(aws, file, stop.settled(aws, file))
    return {"billed": [i.as_json() for i in items], "usd_per_day": round(fixed_costs.total(items), 4)}


def _show_billed(aws: Aws, file: ClusterFile) -> None:
    print(fixed_costs.text(fixed_costs.standing(aws, file, stop.settled(aws, file))))
