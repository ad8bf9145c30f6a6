"""Tasks that write HTML pages about jobs: one job in detail, or several compared."""

import sys
from pathlib import Path
from typing import Any

from invoke import Context, Exit

from cluster.errors import ConfigError
from cluster.terminal import print_json
from dlami.tasks.command import command
from dlami.tasks.starting import opened_jobs

_MOST_COMPARED = 8


@command(
    name="report",
    help={
        "job": "its id, a part of it, or last, as without it: the one that you submitted or resumed last",
        "out": "the file to write; <id>.html here by default",
        "json": "print what the page says as JSON, write no file",
    },
    iterable=["job"],
)
def jobs_report(c: Context, job: Any = None, out: str = "", json: bool = False) -> None:
    """Put a job on one page, a file to open offline: inv jobs.report [JOB]."""
    from cluster.jobs.master.facts import with_cost
    from cluster.report.page import page

    if len(job or ()) > 1:
        raise ConfigError(f"one job at a time: for several there is 'inv jobs.compare {' '.join(job)}'")
    with opened_jobs() as jobs:
        (found,) = (with_cost(one) for one in jobs.facts(job or ["last"]))
    if json:
        print_json(found.to_json())
        return
    _write(Path(out or file_name(found.view.id)), page(found))


@command(
    name="compare",
    help={
        "job": "an id, a part of one, or last; every further word is one, too",
        "out": "the page to write; compare.html here by default",
        "json": "print the differences as JSON, write no page",
    },
    iterable=["job"],
)
def jobs_compare(c: Context, job: Any = None, out: str = "compare.html", json: bool = False) -> None:
    """Compare jobs, in a table here and on a page with their curves over each other: inv jobs.compare JOB JOB ..."""
    from cluster.jobs.master.facts import with_cost
    from cluster.report.compare import compared, differences_text, require_different

    if not 2 <= len(job or ()) <= _MOST_COMPARED:
        raise ConfigError(f"give 2 to {_MOST_COMPARED} jobs, of 'inv jobs.list --all': inv jobs.compare JOB JOB")
    with opened_jobs() as jobs:
        found = tuple(with_cost(one) for one in jobs.facts(job))
    require_different([one.view.id for one in found])
    if json:
        from cluster.report.compare import record

        print_json(record(found))
        return
    print(differences_text(found))
    _write(Path(out), compared(found))


@command(
    name="results",
    help={"job": "its id, a part of it, or last", "json": "as JSON"},
    positional=["job"],
)
def jobs_results(c: Context, job: str, json: bool = False) -> None:
    """Send a job's results to S3 once more: report, metrics, logs and best checkpoint."""
    with opened_jobs() as jobs:
        print("the master sends them to S3: 15 minutes at most, and a second more for each MB", file=sys.stderr)
        found = jobs.send_results(job)
    assert found.results
    if json:
        print_json(found.to_json()["sent"])
    else:
        print(f"{found.id}: results {found.results}")
    raise Exit(code=1 if found.results.error else 0)


def file_name(job_id: str) -> str:
    """Return the file name of a job's page. Raises ConfigError for an id that would leave the current folder.

    The id comes from the master, where another user may have made the job's folder.
    """
    from cluster.jobs.record import check_id

    return f"{check_id(job_id)}.html"


def _write(path: Path, page: str) -> None:
    """Write the page to a file atomically, and print the path. Raises ConfigError."""
    from cluster.files import write_atomically

    try:
        write_atomically(path, page)
    except OSError as e:
        raise ConfigError(f"{path} cannot be written: {e.strerror or e}; name another file with --out") from e
    print(f"{path}  ({len(page.encode()) / 1000:.0f} kB)", file=sys.stdout)
