"""The command line of dlami-cluster: each task is a few lines that turn arguments into one call."""

import functools
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

from invoke import Collection, Context, Exit, task

from cluster.errors import ClusterError, ConfigError
from cluster.inventory import Cluster, load_cluster

LOOK_HELP = {"unchecked": "start it on hosts that nobody looked at", "skip_unfit": "train on the hosts that are fit"}
HOSTS_HELP = "which: 0,2-4, @all, @master, @workers, @failed, addresses, !X to leave out"


def command(body: Callable[..., None] | None = None, **options: Any) -> Any:
    """A task whose `ClusterError` becomes one message on stderr and an exit code."""
    if body is None:
        return functools.partial(command, **options)

    @functools.wraps(body)
    def run(c: Context, *args: Any, **kwargs: Any) -> None:
        for ending in (signal.SIGTERM, signal.SIGHUP):    # clean up as after Ctrl-C
            signal.signal(ending, signal.default_int_handler)
        try:
            body(c, *args, **kwargs)
        except ClusterError as e:
            raise Exit(str(e), code=e.exit_code) from e
        except KeyboardInterrupt:
            raise Exit("interrupted", code=130) from None

    return task(run, **options)


def rest() -> list[str]:
    """The words after `--`, as the shell split them."""
    return sys.argv[sys.argv.index("--") + 1:] if "--" in sys.argv else []


def as_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2))


# Hosts -------------------------------------------------------------------------------------------------------------


@command(name="list", help={"hosts": HOSTS_HELP, "json": "as JSON"})
def hosts_list(c: Context, hosts: str = "", json: bool = False) -> None:
    """Show the cluster's hosts: rank, address, slots."""
    from cluster import hostset, show

    chosen = hostset.select(load_cluster().hosts, hosts or None)
    if json:
        as_json([{"rank": h.rank, "address": h.address, "slots": h.slots} for h in chosen])
    else:
        print(show.host_table(chosen))


@command(name="write", help={"source": "stack, lab or lab:NAME; else the cluster file's stack or the only lab",
                             "file": "the stack's cluster file",
                             "force": "replace a hosts file that differs",
                             "dry_run": "show the hostfile only"})
def hosts_write(c: Context, source: str = "", force: bool = False, dry_run: bool = False,
                file: str = "cluster.toml") -> None:
    """Write ./hosts and ./cluster.toml, so that every task means this cluster."""
    from cfn import desk
    from cluster import adopt

    source = source or desk.source_of_hosts(file)
    if source == "stack":
        desk.write_hosts(file, force, dry_run)
        return

    print(adopt.hosts(source, force=force, dry_run=dry_run))


# Every node ---------------------------------------------------------------------------------------------------------


@command(name="run", iterable=["env"], help={
    "hosts": HOSTS_HELP, "failed": "only where the last run failed; the same command unless another is given",
    "json": "one JSON record per host, as each ends", "live": "lines as they come, not folded",
    "diff": "other answers as a difference to the majority's", "mask": "hosts' own names make no difference",
    "outdir": "a folder for a file per host", "script": "a file to run there; words after -- are its arguments",
    "stdin": "a file every host reads, - for this task's own stdin", "sudo": "run it as root",
    "env": "NAME=VALUE for the command, may be repeated", "fanout": "connections at once",
    "connect_timeout": "seconds to reach a host", "timeout": "seconds the command may take",
    "silence": "seconds without output before it is given up"})
def run_command(c: Context, hosts: str = "", failed: bool = False, json: bool = False, live: bool = False,
                diff: bool = False, mask: bool = False, outdir: str = "", script: str = "", stdin: str = "",
                sudo: bool = False, env: Any = None, fanout: int = 64, connect_timeout: float = 10.0,
                timeout: float = 0.0, silence: float = 0.0) -> None:
    """Run a command on every host at once: inv run -- 'df /'."""
    from pathlib import Path

    from cluster import everywhere
    from cluster.session import Limits, check_environment

    if failed and hosts:
        raise ConfigError("--failed and --hosts exclude each other: --hosts @failed,!3 narrows it")
    raise Exit(code=everywhere.run(load_cluster(), everywhere.Asked(
        command=" ".join(rest()), hosts="@failed" if failed else hosts or None, as_json=json, live=live, diff=diff,
        mask=mask, outdir=Path(outdir).resolve() if outdir else None, script=Path(script) if script else None,
        stdin=stdin, sudo=sudo, environment=check_environment(env or []), fanout=fanout,
        limits=Limits(connect_s=connect_timeout, total_s=timeout or None, silence_s=silence or None))))


@command(help={"host": "rank, address or any term that names one host"}, positional=["host"])
def login(c: Context, host: str) -> None:
    """Log in to one host, agent forwarded, or run a command there with a terminal: inv login 1 -- htop."""
    from cluster import hostset
    from cluster.login import login

    cluster = load_cluster()
    chosen = hostset.select(cluster.hosts, host)
    if len(chosen) > 1:
        raise ConfigError(f"{host!r} names {len(chosen)} hosts: name one, or use inv run")
    raise Exit(code=login(cluster, chosen[0], rest()))


@command(help={"hosts": HOSTS_HELP})
def disconnect(c: Context, hosts: str = "") -> None:
    """End the SSH connections that tasks leave open for the next one; all of this user's without --hosts."""
    from cluster import connections, hostset
    from cluster.ssh import way_to

    ways = None
    if hosts:
        cluster = load_cluster()
        ways = [way_to(h, cluster.access) for h in hostset.select(cluster.hosts, hosts)]
    print(f"{connections.disconnect(ways)} connections ended")


@command(name="copy", positional=["src", "dst"], iterable=["exclude"], help={
    "src": "a file or folder on the master, or on this machine if it is not the master",
    "dst": "its absolute path on every host; with a slash at the end, the folder it goes into", "hosts": HOSTS_HELP,
    "exclude": "a name or path with wildcards, may be repeated", "everything": "a code folder's .git and caches too",
    "encrypt": "TLS between the hosts", "delete": "remove what the source does not have, after asking",
    "yes": "do not ask", "dry_run": "only say what each host would get", "json": "one JSON record per host"})
def copy_files(c: Context, src: str, dst: str, hosts: str = "", exclude: Any = None, everything: bool = False,
               encrypt: bool = False, delete: bool = False, yes: bool = False, dry_run: bool = False,
               json: bool = False) -> None:
    """Copy a file or folder from the master to every host, each passing it on while it receives."""
    from cluster.copying import task as copying

    raise Exit(code=copying.run(load_cluster(), copying.Asked(
        src=src, dst=dst, hosts=hosts or None, excludes=tuple(exclude or ()), everything=everything, encrypt=encrypt,
        delete=delete, dry_run=dry_run, as_json=json), lambda what: yes or _agreed(what)))


@command(help={"hosts": HOSTS_HELP, "all_mine": "everything training-like of this user, running jobs too",
               "grace": "seconds between TERM and KILL", "yes": "do not ask", "dry_run": "only show",
               "json": "as JSON; ends nothing without --yes"})
def kill(c: Context, hosts: str = "", all_mine: bool = False, grace: float = 5.0, yes: bool = False,
         dry_run: bool = False, json: bool = False) -> None:
    """Show, then end what crashed trainings left on the hosts: processes of our jobs, shared memory."""
    from cluster import hostset, slate
    from cluster.reach import Reach

    cluster = load_cluster()
    chosen = hostset.select(cluster.hosts, hosts or None)
    with Reach(cluster) as reach:
        jobs = [] if all_mine else [j["id"] for j in slate.running_jobs(reach, cluster)]
        before = slate.remains(reach, cluster, chosen, jobs, all_mine=all_mine)
        if not json:
            print(slate.shown(before))
        wanted = not dry_run and bool(before.num_to_end or before.num_segments) and (yes or not json)
        after = before
        if wanted and (yes or _agreed(f"end {before.num_to_end} processes, remove {before.num_segments} segments")):
            after = slate.remains(reach, cluster, chosen, jobs, all_mine=all_mine, end=True, grace_s=grace)
            if not json:
                print(slate.proof(after))
    if json:
        as_json(after.record())
    raise Exit(code=1 if after.num_left or after.unanswered else 0)


@command(help={"hosts": HOSTS_HELP, "timeout": "seconds to wait for them", "yes": "do not ask"})
def reboot(c: Context, hosts: str, timeout: float = 600.0, yes: bool = False) -> None:
    """Reboot hosts and wait until they answer; refused while a job runs on them."""
    from cluster import hostset
    from cluster import reboot as boots
    from cluster.reach import Reach

    cluster = load_cluster()
    chosen = hostset.select(cluster.hosts, hosts)
    with Reach(cluster) as reach:
        boots.refuse_while_a_job_runs(reach, cluster, chosen)
        if yes or _agreed(f"reboot {hostset.fold(h.address for h in chosen)} ({len(chosen)})"):
            missing = boots.reboot(reach, chosen, timeout, lambda h, s: print(f"{h}  back after {s:.0f} s", flush=True))
            for host, why in missing.items():
                print(f"{host}  {why}", file=sys.stderr)
            raise Exit(code=1 if missing else 0)


@command(optional=["since"], help={
    "hosts": HOSTS_HELP, "json": "as JSON", "deep": "measure each host, run MPI over all (minutes; hosts must be free)",
    "net": "measure the network between hosts (a minute, hosts must be free)",
    "since": "only what changed since the last look, or since 30m, 2h, 1d ago",
    "watch": "look again and again, print only changes", "interval": "seconds between looks"})
def health(c: Context, hosts: str = "", json: bool = False, deep: bool = False, net: bool = False, since: Any = "",
           watch: bool = False, interval: float = 60.0) -> None:
    """Look at every host before training: name the one that will not hold, and what to do. Exit code 0, 1 or 2."""
    from cluster.health import command as look

    rung = "deep" if deep else "net" if net else "quick"
    raise Exit(code=look.run(load_cluster(), hosts=hosts or None, as_json=json, rung=rung,
                             since="last" if since is True else since or None, interval_s=interval if watch else None))


# Data ---------------------------------------------------------------------------------------------------------------


@command(name="stage", positional=["source", "target"], help={
    "source": "s3://BUCKET/PREFIX; with --upload a folder on the hosts", "target": "a folder on the hosts, or S3",
    "hosts": HOSTS_HELP, "untar": "each tar becomes a folder of its name", "upload": "the other way",
    "endpoint": "URL of an S3 that is not AWS's", "json": "one JSON record per host"})
def stage(c: Context, source: str, target: str, hosts: str = "", untar: bool = False, upload: bool = False,
          endpoint: str = "", json: bool = False) -> None:
    """Bring data from S3 to every host, each by itself; on a shared folder every host a part."""
    from cluster import hostset
    from cluster.staging import stage as staging

    cluster = load_cluster()
    asked = staging.asked_for(source, target, upload=upload, untar=untar, endpoint=endpoint or None)
    raise Exit(code=staging.run(cluster, hostset.select(cluster.hosts, hosts or None), asked, as_json=json))


@command(name="status", positional=["folder"], help={"folder": "on every host", "hosts": HOSTS_HELP, "json": "as JSON"})
def data_status(c: Context, folder: str, hosts: str = "", json: bool = False) -> None:
    """Show what data each host has, so that a short copy is found before training starts."""
    from cluster import hostset
    from cluster.reach import Reach
    from cluster.staging import stage as staging

    cluster = load_cluster()
    with Reach(cluster) as reach:
        results = staging.status(reach, cluster, hostset.select(cluster.hosts, hosts or None), folder)
    text, is_fine = staging.status_lines(results)
    if json:
        as_json([r.record() for r in results.values()])
    else:
        print(text)
    raise Exit(code=0 if is_fine else 1)


@command(name="sample", help={"out": "folder on the cluster's shared file system"})
def data_sample(c: Context, out: str = "") -> None:
    """Draw a small image set on the master: inv data.sample [-- flags of trainer.sample]."""
    cluster = load_cluster()
    _on_master(cluster, "trainer.sample", ["--out", out or f"{cluster.shared}/data/sample", *rest()])


@command(name="imagenet", help={"raw": "folder with the official archives, or with train/<synset>/ and val/",
                                "out": "folder for the shards", "hosts": "share the work among these hosts, as a job; "
                                       "the master alone without it"})
def data_imagenet(c: Context, raw: str, out: str, hosts: str = "") -> None:
    """Make TFRecord shards from ImageNet's archives or folders: inv data.imagenet --raw DIR --out DIR [-- flags]."""
    words = ["--raw", raw, "--out", out, *rest()]
    if hosts:
        _train("trainer.imagenet", "imagenet", hosts, 0, "", [], False, False, True, False, words)
    else:
        _on_master(load_cluster(), "trainer.imagenet", words)


@command(name="verify", help={"folder": "the shards and their manifest.json", "decode": "decode every image, too"},
         positional=["folder"])
def data_verify(c: Context, folder: str, decode: bool = False) -> None:
    """Check TFRecord shards against their manifest on the master: counts, sizes, checksums."""
    _on_master(load_cluster(), "trainer.verify", [folder, *(["--decode"] if decode else [])])


@command(name="coco", help={"out": "folder for COCO's layout; zips in OUT/archives are used, the others downloaded"})
def data_coco(c: Context, out: str) -> None:
    """Fetch, unpack and verify COCO 2017 on the master: inv data.coco --out DIR [-- --no-download]."""
    _on_master(load_cluster(), "trainer.coco.archives", [out, *rest()])


@command(name="bundle", help={"folder": "a folder in COCO's layout", "out": "the tar to write"})
def data_bundle(c: Context, folder: str, out: str) -> None:
    """Make one tar of COCO with a manifest of checksums, to be staged to the nodes."""
    _on_master(load_cluster(), "trainer.coco.bundle", [folder, "--out", out])


@command(name="shapes", help={"out": "new folder on the cluster's shared file system"})
def data_shapes(c: Context, out: str = "") -> None:
    """Draw a small instance segmentation set in COCO's layout: inv data.shapes [-- flags of trainer.coco.sample]."""
    cluster = load_cluster()
    _on_master(cluster, "trainer.coco.sample", ["--out", out or f"{cluster.shared}/data/shapes", *rest()])


# Training -----------------------------------------------------------------------------------------------------------


@command(name="resnet50", help={
    "hosts": HOSTS_HELP, "np": "ranks, one per slot by default", "profile": "tcp, ena or efa; by detection without it",
    "env": "NAME=VALUE for every rank, may be repeated", "dry_run": "print the mpirun command, start nothing",
    "detach": "start it and return", "name": "the job's name", **LOOK_HELP}, iterable=["env"])
def train_resnet50(c: Context, hosts: str = "", np: int = 0, profile: str = "", env: Any = None, dry_run: bool = False,
                   detach: bool = False, name: str = "resnet50", unchecked: bool = False,
                   skip_unfit: bool = False) -> None:
    """Train a ResNet over all slots as a job: inv train.resnet50 -- --data-dir DIR [its flags]."""
    _train("trainer.resnet50", name, hosts, np, profile, env, dry_run, detach, unchecked, skip_unfit)


@command(name="benchmark", help={
    "hosts": HOSTS_HELP, "np": "ranks, one per slot by default", "profile": "tcp, ena or efa; by detection without it",
    "env": "NAME=VALUE for every rank, may be repeated", "dry_run": "print the mpirun command, start nothing",
    "detach": "start it and return", **LOOK_HELP}, iterable=["env"])
def train_benchmark(c: Context, hosts: str = "", np: int = 0, profile: str = "", env: Any = None, dry_run: bool = False,
                    detach: bool = False, unchecked: bool = False, skip_unfit: bool = False) -> None:
    """Measure images/s as tf_cnn_benchmarks does: inv train.benchmark -- --model vgg16 --num-batches 100 --fp16."""
    _train("trainer.benchmark", "benchmark", hosts, np, profile, env, dry_run, detach, unchecked, skip_unfit)


@command(name="plot", help={"job": "its id, a part of it, or last", "out": "picture on the master; in the job's folder "
                                                                          "by default"}, positional=["job"])
def train_plot(c: Context, job: str, out: str = "") -> None:
    """Draw a job's loss, top-1, learning rate and speed."""
    cluster = load_cluster()
    with _jobs(cluster) as jobs:
        folder = str(jobs.call("show", job)["folder"])
    _on_master(cluster, "trainer.plot", [folder, *(["--out", out] if out else [])])


@command(name="scaling", help={"np": "numbers of ranks, like 1,2,4: trains with each first", "job": "a job that has "
                               "ended, may be repeated: only reports", "hosts": HOSTS_HELP}, iterable=["job"])
def train_scaling(c: Context, np: str = "", job: Any = None, hosts: str = "") -> None:
    """Report images/s and efficiency over ranks: inv train.scaling --np 1,2,4 -- --synthetic --num-batches 200."""
    cluster = load_cluster()
    if not (np or job) or not all(n.isdigit() for n in np.split(",") if n):
        raise ConfigError("give --np 1,2,4 to train with each number of ranks, or --job ID for each that has ended")
    with _jobs(cluster) as jobs:
        ids = [*(job or []), *(_trained(jobs, cluster, hosts, int(n)) for n in np.split(",") if n)]
        folders = [str(jobs.call("show", which)["folder"]) for which in ids]
    _on_master(cluster, "trainer.scaling", folders)


@command(name="maskrcnn", help={
    "hosts": HOSTS_HELP, "np": "ranks, one per slot by default", "profile": "tcp, ena or efa; by detection without it",
    "env": "NAME=VALUE for every rank, may be repeated", "dry_run": "print the mpirun command, start nothing",
    "detach": "start it and return", "name": "the job's name", **LOOK_HELP}, iterable=["env"])
def train_maskrcnn(c: Context, hosts: str = "", np: int = 0, profile: str = "", env: Any = None, dry_run: bool = False,
                   detach: bool = False, name: str = "maskrcnn", unchecked: bool = False,
                   skip_unfit: bool = False) -> None:
    """Train Mask R-CNN over all slots as a job: inv train.maskrcnn -- DATA.BASEDIR=DIR [KEY=VALUE ...]."""
    _train("trainer.maskrcnn", name, hosts, np, profile, env, dry_run, detach, unchecked, skip_unfit)


# Using a detector ----------------------------------------------------------------------------------------------------


@command(name="predict")
def maskrcnn_predict(c: Context) -> None:
    """Draw detections into PNGs: inv maskrcnn.predict -- --job-dir DIR --out DIR IMAGE ..."""
    _on_master(load_cluster(), "trainer.maskrcnn.predict", rest())


@command(name="evaluate")
def maskrcnn_evaluate(c: Context) -> None:
    """Score a checkpoint on COCO: inv maskrcnn.evaluate -- --job-dir DIR [--step N] [--per-category]."""
    _on_master(load_cluster(), "trainer.maskrcnn.evaluate", rest())


@command(name="export")
def maskrcnn_export(c: Context) -> None:
    """Write a SavedModel or an npz: inv maskrcnn.export -- --job-dir DIR --out DIR."""
    _on_master(load_cluster(), "trainer.maskrcnn.export", rest())


# Jobs ----------------------------------------------------------------------------------------------------------------


@command(name="list", help={"all": "ended ones too", "json": "as JSON"})
def jobs_list(c: Context, all: bool = False, json: bool = False) -> None:
    """Show the jobs: id, state, ranks, hosts."""
    from cluster.jobs import show

    with _jobs() as jobs:
        found = [j for j in jobs.call("list") if all or j["state"] in show.UNFINISHED]
    if json:
        as_json(found)
    else:
        print(show.table(found, all))


@command(name="show", help={"job": "its id, a part of it, or last", "json": "as JSON"}, positional=["job"])
def jobs_show(c: Context, job: str, json: bool = False) -> None:
    """Show one job: what was asked for, how it goes or how it ended."""
    from cluster.jobs import show

    with _jobs() as jobs:
        found = jobs.call("show", job)
    if json:
        as_json(found)
    else:
        print(show.one(found))


@command(name="logs", help={"job": "its id, a part of it, or last", "follow": "go on until it ends",
                            "rank": "one rank's own output"}, positional=["job"])
def jobs_logs(c: Context, job: str, follow: bool = False, rank: int = -1) -> None:
    """Print a job's output; Ctrl-C ends the printing, not the job."""
    with _jobs() as jobs:
        raise Exit(code=jobs.logs(job, follow=follow, rank=rank if rank >= 0 else None))


@command(name="stop", help={"job": "its id, a part of it, or last"}, positional=["job"])
def jobs_stop(c: Context, job: str) -> None:
    """End a job on every host: ranks save and leave, the rest is ended, and hosts are searched for remains."""
    from cluster.jobs import show

    with _jobs() as jobs:
        stopped = jobs.call("stop", job, total_s=150)
    print(show.one_line(stopped))
    raise Exit(code=1 if stopped["left"] else 0)


@command(name="resume", help={"job": "its id, a part of it, or last", "hosts": HOSTS_HELP,
                              "np": "ranks, as before by default", "dry_run": "print the mpirun command, start nothing",
                              "detach": "start it and return"},
         positional=["job"])
def jobs_resume(c: Context, job: str, hosts: str = "", np: int = 0, dry_run: bool = False,
                detach: bool = False) -> None:
    """Start a job's next attempt from its newest checkpoint, on today's hosts."""
    from cluster.jobs import client

    cluster = load_cluster()
    with _jobs(cluster) as jobs:
        _start(jobs, *client.next_attempt(jobs, cluster, job, hosts or None, np or None), dry_run, detach)


@command(name="remove", help={"job": "its id or a part of it", "yes": "really remove its logs and checkpoints"},
         positional=["job"])
def jobs_remove(c: Context, job: str, yes: bool = False) -> None:
    """Remove a job's folder: record, logs, checkpoints."""
    with _jobs() as jobs:
        found = jobs.call("show", job)
        if not yes:
            raise ConfigError(f"this removes {found['folder']} with its checkpoints: add --yes if you mean it")
        print(f"removed {jobs.call('remove', found['id'])['removed']}")


# Lab ----------------------------------------------------------------------------------------------------------------

LAB_NAME_HELP = {"name": "which lab"}
LAB_HOST_HELP = {"host": "rank, name or address", **LAB_NAME_HELP}


@command(name="up", help={"n": "hosts", "slots": "ranks a host may hold", **LAB_NAME_HELP})
def lab_up(c: Context, n: int = 4, slots: int = 2, name: str = "lab") -> None:
    """Start a cluster of namespaces on this machine (as root)."""
    from cluster.lab import lab

    made = lab.up(name, n, slots)
    print(f"lab {name} is up: {n} hosts of {slots} slots in {made.network}, shared folder {made.shared}\n"
          f"use it: export CLUSTER=lab:{name}   then: inv hosts.list, inv run -- hostname, inv health")


@command(name="down", help=LAB_NAME_HELP)
def lab_down(c: Context, name: str = "lab") -> None:
    """End a lab: every process, namespace, cable and file of it."""
    from cluster.lab import lab

    lab.down(name)
    print(f"lab {name} is gone")


@command(name="status", help={**LAB_NAME_HELP, "json": "as JSON"})
def lab_status(c: Context, name: str = "lab", json: bool = False) -> None:
    """Show a lab's hosts: up, silent or down."""
    from cluster import show
    from cluster.lab import lab

    states = list(lab.statuses(lab.named(name)))
    if json:
        as_json([{**vars(h), "state": state} for h, state in states])
    else:
        print(show.lab_table(states))


@command(name="crash", help=LAB_HOST_HELP, positional=["host"])
def lab_crash(c: Context, host: str, name: str = "lab") -> None:
    """A lab host loses its power."""
    from cluster.lab import lab

    made = lab.named(name)
    lab.crash(made, made.find(host))


@command(name="cut", help=LAB_HOST_HELP, positional=["host"])
def lab_cut(c: Context, host: str, name: str = "lab") -> None:
    """A lab host's network goes silent."""
    from cluster.lab import lab

    made = lab.named(name)
    lab.cut(made, made.find(host))


@command(name="slow", help={**LAB_HOST_HELP, "mbit": "Mbit/s each way", "delay_ms": "milliseconds each way"},
         positional=["host"])
def lab_slow(c: Context, host: str, mbit: float = 0.0, delay_ms: float = 0.0, name: str = "lab") -> None:
    """A lab host's network gets slow."""
    from cluster.lab import lab

    made = lab.named(name)
    lab.slow(made, made.find(host), mbit=mbit or None, delay_ms=delay_ms or None)


@command(name="heal", help={"host": "rank, name, address, or all", **LAB_NAME_HELP}, positional=["host"])
def lab_heal(c: Context, host: str, name: str = "lab") -> None:
    """Lab hosts as they were made: booted, connected, at full speed."""
    from cluster.lab import lab

    made = lab.named(name)
    lab.heal(made, made.hosts if host == "all" else [made.find(host)])


@command(name="ssh", help=LAB_HOST_HELP, positional=["host"])
def lab_ssh(c: Context, host: str, name: str = "lab") -> None:
    """Log in to a lab host, or run a command there: inv lab.ssh 1 -- uptime."""
    from cluster.lab import lab
    from cluster.login import login

    rank = lab.named(name).find(host).rank
    cluster = load_cluster(f"lab:{name}")
    raise Exit(code=login(cluster, cluster.hosts[rank], rest()))


# The demo -----------------------------------------------------------------------------------------------------------


@command(help={"keep": "leave the lab up at the end"})
def demo(c: Context, keep: bool = False) -> None:
    """Make a cluster on this machine, draw images, train a ResNet on them over all hosts, evaluate, take it down."""
    from cluster import demo as show_it

    show_it.run(keep=keep)


@command(help={"name": "a file of benchmarks/ without .py", "report": "only show all committed results"})
def bench(c: Context, name: str = "", report: bool = False) -> None:
    """Measure one of the figures the README quotes and keep the result: inv bench --name fanout."""
    from benchmarks import report as results

    if not report:
        if not (results.RESULTS.parent / f"{name}.py").exists() or name in ("", "report"):
            raise ConfigError(f"there is no benchmark {name!r}: benchmarks/ has the files to choose from")
        c.run(f"{sys.executable} benchmarks/{name}.py", pty=False, env={"PYTHONPATH": str(results.RESULTS.parents[1])})
        results.draw(name)
        if name in results.REACHING:
            results.draw_reaching()
    print(results.table(results.names() if report else [name]))


@command
def docs(c: Context) -> None:
    """Write docs/tasks.md, the page of every task, from the tasks themselves."""
    from cluster.files import write_atomically
    from cluster.inventory import ROOT
    from cluster.taskpage import page

    write_atomically(ROOT / "docs/tasks.md", page(ns))


@command(name="maskrcnn", help={"keep": "leave the lab up at the end"})
def demo_maskrcnn(c: Context, keep: bool = False) -> None:
    """Make a cluster on this machine, draw shapes, train a reduced Mask R-CNN over two hosts, show what it sees."""
    from cluster import demo_maskrcnn as show_it

    show_it.run(keep_lab=keep)


@command(name="ssh", help={"file": "the cluster file"})
def ssh_master(c: Context, file: str = "cluster.toml") -> None:
    """Log in to the stack's master, agent forwarded, host key known."""
    from cfn import desk
    desk.go_to_master(file)


# The stack: a cluster on AWS -------------------------------------------------------------------------------------

FILE = {"file": "the cluster file"}
SURE = {**FILE, "yes": "do not ask", "dry_run": "show what would be done and stop", "json": "answer as JSON on stdout"}


@command(name="init", help={
    **FILE, "name": "name of the cluster", "ssh_from": "network you come from, as 203.0.113.7/32"})
def stack_init(c: Context, file: str = "cluster.toml", name: str = "", ssh_from: str = "") -> None:
    """Write a cluster file with every field explained."""
    from cfn import desk
    desk.write_file(file, name=name, access__ssh_from=ssh_from)


@command(name="plan", help={**FILE, "json": SURE["json"]})
def stack_plan(c: Context, file: str = "cluster.toml", json: bool = False) -> None:
    """Check the cluster file against the account; show what would be made or changed, and its cost."""
    from cfn import desk
    desk.show_plan(file, json)


@command(name="create", help={**SURE, "keep_failed": "leave the nodes for a look if it fails"})
def stack_create(c: Context, file: str = "cluster.toml", yes: bool = False, dry_run: bool = False,
                 keep_failed: bool = False, json: bool = False) -> None:
    """Create the cluster, showing progress resource by resource until every node is ready."""
    from cfn import desk
    desk.make_stack(file, yes, dry_run, keep_failed, json)


@command(name="status", help={**FILE, "json": SURE["json"]})
def stack_status(c: Context, file: str = "cluster.toml", json: bool = False) -> None:
    """Show the stack, both groups, and each node's health and first boot; exit 1 if something is missing."""
    from cfn import desk
    if not desk.show_status(file, json):
        raise Exit(code=1)


@command(name="update", help={**SURE, "ami": "move to another image: an id, an SSM parameter, or 'latest'"})
def stack_update(c: Context, file: str = "cluster.toml", ami: str = "", yes: bool = False, dry_run: bool = False,
                 json: bool = False) -> None:
    """Bring the stack to what the cluster file says: changes first, never a replaced network or storage."""
    from cfn import desk
    desk.change_stack(file, ami, yes, dry_run, json)


@command(name="replace", help={**SURE, "host": "rank, private address or instance id"}, positional=["host"])
def stack_replace(c: Context, host: str, file: str = "cluster.toml", yes: bool = False, dry_run: bool = False,
                  json: bool = False) -> None:
    """End one host and wait for its successor, which takes its place in the hostfile."""
    from cfn import desk
    desk.replace_host(file, host, yes, dry_run, json)


@command(name="delete", help={
    **SURE, "retain": "resources to leave, by comma, after a delete that failed on them"})
def stack_delete(c: Context, file: str = "cluster.toml", yes: bool = False, dry_run: bool = False, retain: str = "",
                 json: bool = False) -> None:
    """Delete the cluster after a question; EFS is kept and its id is said."""
    from cfn import desk
    desk.remove_stack(file, yes, dry_run, retain, json)


@command(name="aws", help={
    "port": "0: a free one", "scale": "seconds here for one second of AWS's time-outs", "name": "the lab's name",
    "nodes": "lab: instances are lab hosts, the default as root; ready: they report ready by themselves; none"})
def lab_aws(c: Context, port: int = 0, scale: float = 0.0, nodes: str = "", name: str = "aws") -> None:
    """Run a fake AWS to try the stack tasks on; Ctrl-C ends it."""
    from cfn import lab_aws as fake

    fake.serve(name, port, scale, nodes)


def _agreed(what: str) -> bool:
    """Whether the operator says yes to it. Raises ConfigError where there is nobody to ask."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{what}? There is no terminal to ask on: add --yes if you mean it")
    return input(f"{what}? [y/N] ").strip().lower() in ("y", "yes")


def _jobs(cluster: Cluster | None = None) -> Any:
    from cluster.jobs.client import opened

    return opened(cluster or load_cluster())


def _on_master(cluster: Cluster, module: str, arguments: list[str]) -> None:
    from cluster import everywhere

    raise Exit(code=everywhere.on_master(cluster, module, arguments))


def _train(module: str, name: str, hosts: str, np: int, profile: str, env: list[str], dry_run: bool,
           detach: bool, unchecked: bool, skip_unfit: bool, arguments: list[str] | None = None) -> None:
    from cluster import hostset
    from cluster.health.gate import fit_hosts
    from cluster.jobs.client import Training
    from cluster.session import check_environment

    cluster = load_cluster()
    chosen = hostset.select(cluster.hosts, hosts or None)
    environment = check_environment(env)
    if skip_unfit or not (unchecked or dry_run):
        chosen = fit_hosts(cluster, chosen, np=np or None, skip_unfit=skip_unfit)
    training = Training(name=name, module=module, arguments=tuple(rest() if arguments is None else arguments),
                        np=np or None, profile=profile or None, hosts=chosen, environment=environment)
    with _jobs(cluster) as jobs:
        _start(jobs, training, None, dry_run, detach)


def _trained(jobs: Any, cluster: Cluster, hosts: str, np: int) -> str:
    """The id of a job that has trained on this many ranks."""
    from cluster import hostset
    from cluster.jobs.client import Training

    job = jobs.plan(Training(name=f"scaling-{np}", module="trainer.resnet50", arguments=tuple(rest()), np=np,
                             hosts=hostset.select(cluster.hosts, hosts or None)))
    jobs.submit(job)
    code = jobs.logs(job.id, follow=True)
    if code or jobs.call("show", job.id)["state"] != "succeeded":   # Ctrl-C ends the following only
        raise Exit(f"{job.id} has not succeeded, so there is nothing to compare yet; when it has: "
                   f"inv train.scaling --job {job.id} --job OTHER", code=code or 130)
    return str(job.id)


def _start(jobs: Any, training: Any, resume: str | None, dry_run: bool, detach: bool) -> None:
    from cluster.mpirun import shown

    job = jobs.plan(training, resume=resume)
    if dry_run:
        print(shown(job.mpirun))
        return
    answer = jobs.submit(job)
    print(f"job {job.id}: {job.np} ranks on {len(job.hosts)} hosts, in {answer['folder']}", file=sys.stderr)
    if not detach:
        raise Exit(code=jobs.logs(job.id, follow=True))


ns = Collection()
ns.add_task(run_command)
ns.add_task(login)
ns.add_task(disconnect)
ns.add_task(copy_files)
ns.add_task(stage)
ns.add_task(kill)
ns.add_task(reboot)
ns.add_task(health)
ns.add_task(ssh_master)
ns.add_task(docs)
ns.add_task(bench)
for group, tasks in {
    "hosts": (hosts_list, hosts_write),
    "data": (data_status, data_sample, data_imagenet, data_verify, data_coco, data_bundle, data_shapes),
    "train": (train_resnet50, train_maskrcnn, train_benchmark, train_plot, train_scaling),
    "maskrcnn": (maskrcnn_predict, maskrcnn_evaluate, maskrcnn_export),
    "jobs": (jobs_list, jobs_show, jobs_logs, jobs_stop, jobs_resume, jobs_remove),
    "lab": (lab_up, lab_down, lab_status, lab_crash, lab_cut, lab_slow, lab_heal, lab_ssh, lab_aws),
    "stack": (stack_init, stack_plan, stack_create, stack_status, stack_update, stack_replace, stack_delete),
}.items():
    ns.add_collection(Collection(group, *tasks))
demos = Collection("demo")
demos.add_task(demo, name="resnet50", default=True)   # `inv demo`
demos.add_task(demo_maskrcnn)
ns.add_collection(demos)
