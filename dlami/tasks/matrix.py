"""Task that runs a matrix of trainings and makes one table of their results."""

import dataclasses
import json as json_
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke import Context, Exit

from cluster.errors import ClusterError, ConfigError
from cluster.inventory import Cluster, load_cluster
from cluster.terminal import print_json
from dlami.tasks.command import HOSTS_HELP, command
from dlami.tasks.running import TrainRunOptions, code_to_take, program_asked_for
from dlami.tasks.start_options import TrainOptions
from dlami.tasks.starting import asked_for, delivered, opened_jobs, prepared
from dlami.tasks.training import TorchOptions

if TYPE_CHECKING:
    from cluster.code.snapshot import Snapshot
    from cluster.jobs.client.client import JobsClient
    from cluster.jobs.record import Job, JobView
    from cluster.matrix.cells import Cell
    from cluster.matrix.file import Matrix
    from cluster.matrix.state import ResultStore
    from cluster.ssh.fanout import Executor


@command(
    name="matrix",
    positional=["file"],
    help={
        "file": "TOML: what runs, over which values; docs/running.md has an example",
        "hosts": HOSTS_HELP,
        "again": "run again what has succeeded with other code than is here now",
        "packed": "as many cells at once as there are free slots for; without it one after another",
        "upload": "s3://BUCKET/PREFIX for the results, over the file's own",
        "dry_run": "show the cells and what is left of them, start nothing",
        "json": "as JSON",
    },
)
def train_matrix(
    c: Context, file: str, hosts: str = "", packed: bool = False, again: bool = False, upload: str = "",
    dry_run: bool = False, json: bool = False,
) -> None:  # fmt: skip
    """Run a matrix of flags, ranks and programs, each cell a job, and make a table: inv train.matrix FILE.toml."""
    from cluster.matrix import cells as cells_of
    from cluster.matrix import file as files
    from cluster.matrix.run import MatrixRun, summary
    from cluster.matrix.state import ResultStore, rows
    from cluster.ssh.fanout import Executor

    matrix = files.read(Path(file))
    cells = cells_of.cells(matrix)
    upload = _checked(upload or matrix.upload)
    cluster = load_cluster()
    with Executor(cluster) as reach, opened_jobs(cluster) as jobs:
        store = ResultStore(reach, cluster, matrix.name)
        state = store.read()
        if dry_run:
            _show(cells, rows(cells, state), as_json=json)
            return
        snapshot = _code(cells)
        run = MatrixRun(
            cells, state, jobs=jobs, keeper=store, measure=_measure(jobs, matrix), packed=packed,
            code=snapshot.content if snapshot else "", again=again,
        )  # fmt: skip
        if (other := run.of_other_code()) and not again:
            numbers = ", ".join(str(cell.number) for cell in other)
            print(
                f"run with other code than is here now, and not again: cells {numbers}; --again does", file=sys.stderr
            )
        left = run.left()
        is_sent = snapshot and any(not cell.trainer for cell in left)
        folder = delivered(cluster, snapshot, is_read=True) if snapshot and is_sent else str(Path.cwd())
        planned = {c.digest: _planned(cluster, jobs, matrix, c, hosts, snapshot, folder) for c in left}
        try:
            state = run.run_to_end(planned)
        except (KeyboardInterrupt, ClusterError):  # Ctrl-C, or the master is out of sight
            print(f"\nits jobs go on; so does the matrix, with: inv train.matrix {shlex.quote(file)}", file=sys.stderr)
            raise
        _results(jobs, store)
        print(f"{summary(cells, state)}; results in {store.folder} on the master", file=sys.stderr)
        is_uploaded = not upload or _uploaded(cluster, reach, store.folder, upload)
    if json:
        print_json(rows(cells, state))
    raise Exit(code=0 if is_uploaded and all(state.is_done(cell) for cell in cells) else 1)


def _checked(upload: str) -> str:
    """Return the URL for the results, checked before anything runs. Raises ConfigError."""
    if upload:
        from cluster.stage.stage import request_of

        request_of("/", upload, upload=True)
    return upload


def _show(cells: "list[Cell]", found: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print the cells with their states and commands."""
    if as_json:
        print_json([{**row, "command": cell.command} for cell, row in zip(cells, found, strict=True)])
        return
    for cell, row in zip(cells, found, strict=True):
        print(f"{cell.number:4}  {row['state']:9}  {cell}:  {cell.command}")


def _code(cells: "list[Cell]") -> "Snapshot | None":
    """Return the snapshot of the current repository that the cells' programs run; None without one."""
    from cluster.code.git import repository_of

    if all(cell.trainer for cell in cells):
        return None
    return code_to_take(TrainRunOptions(no_code=not repository_of(Path.cwd())))


def _planned(
    cluster: Cluster,
    jobs: "JobsClient",
    matrix: "Matrix",
    cell: "Cell",
    hosts: str,
    snapshot: "Snapshot | None",
    folder: str,
) -> "Job":
    """Return the cell's job, planned as a queued one with checked flags. Raises ConfigError that names the cell."""
    from cluster import hostset
    from cluster.jobs.client.client import queued
    from cluster.jobs.program import Program

    name = f"{matrix.name}-{cell.number}"
    typed: Mapping[str, Any] = {
        "hosts": hosts,
        "np": str(cell.np or ""),
        "env": [f"{k}={v}" for k, v in cell.env.items()],
        "no_heal": True,  # what was interrupted measures nothing
        "queue": True,
    }
    try:
        if cell.trainer:
            module = f"trainer.{cell.trainer.replace('-', '_')}"
            python = (matrix.python or TorchOptions().python) if cell.trainer == "resnet50-torch" else ""
            program = Program(trainer=module, words=cell.words, python=python)
            chosen = hostset.select(cluster.hosts, hosts or None, to_train=True)
            spec = dataclasses.replace(asked_for(TrainOptions(**typed), name, program), hosts=chosen)
            return queued(jobs.plan(spec))
        options = TrainRunOptions(**{**typed, **cell.packages}, per=cell.per, name=name)
        asked = program_asked_for(cluster, cell.words, options, snapshot)
        spec, interpreter = prepared(cluster, asked, options, folder)
        return queued(jobs.plan(spec, interpreter=interpreter))
    except ConfigError as e:
        raise ConfigError(f"cell {cell.number}, {cell}: {e}\nnothing was started") from e


def _measure(jobs: "JobsClient", matrix: "Matrix") -> Any:
    """Return a function that reads a job's results on the master."""
    columns = [word for name, pattern in matrix.columns.items() for word in ("--column", f"{name}={pattern}")]

    def measured(job: "JobView") -> Mapping[str, Any]:
        result = jobs.on_master("trainer.matrix", ["--job-dir", job.folder, *columns])
        try:
            return dict(json_.loads(result.text.strip().splitlines()[-1]))
        except (ValueError, IndexError, TypeError):
            print(f"{job.id}: its results cannot be read: {result.problem or 'no answer'}", file=sys.stderr)
            return {}

    return measured


def _results(jobs: "JobsClient", store: "ResultStore") -> None:
    """Make CSV, JSON and a picture of the results on the master, and print the table here."""
    result = jobs.on_master("trainer.matrix", [store.folder])
    print(result.text if result.ok else f"no table could be made: {result.problem}", file=sys.stderr)


def _uploaded(cluster: Cluster, reach: "Executor", folder: str, url: str) -> bool:
    """Upload the results to S3 from the master, and print the outcome. Return True on success."""
    import os

    from cluster.stage import stage as staging

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    request = staging.request_of(folder, url, upload=True, endpoint=endpoint or None)
    staged = staging.stage(reach, [cluster.master], request, python=cluster.python)
    print(f"{url}: {staging.lines(staged)}", file=sys.stderr)
    return not any(one.error for one in staged)
