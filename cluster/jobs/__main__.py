"""Entry point for jobs on the master, called from the operator's machine: `python -m cluster.jobs --shared DIR VERB …`.

Answers are JSON in frames on stdout, except for `logs`, which prints the log. Errors are a sentence on stderr and an
exit code.
"""

import argparse
import dataclasses
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.folder_thread import FolderThread, Unanswered
from cluster.jobs.log_connection import START
from cluster.jobs.log_filter import LineFilter
from cluster.jobs.master import follow
from cluster.jobs.occupancy import may_hold
from cluster.jobs.record import DamagedRecord, Job, JobPaths, JobRecords, jobs_folder, require_own
from cluster.jobs.records import find, read_all, read_going, view, view_all
from cluster.jobs.state import JobState
from cluster.jobs.status import is_seen_to_be_gone
from cluster.recovery.host_failures import left_out, read_memory
from cluster.ssh.onhost.frame import say
from cluster.terminal import counted
from cluster.typed import from_json


def main(argv: list[str]) -> int:
    """Run one verb and return its exit code."""
    parser = argparse.ArgumentParser(prog="cluster.jobs")
    parser.add_argument("--shared", required=True)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("submit")
    verbs.add_parser("list")
    verbs.add_parser("heal").add_argument("--dry-run", action="store_true")
    for verb in ("show", "stop", "remove", "logs", "curves", "results"):
        verbs.add_parser(verb).add_argument("which")
    verbs.add_parser("facts").add_argument("which", nargs="+")
    verbs.add_parser("bill").add_argument("stack")
    verbs.choices["logs"].add_argument("--follow", action="store_true")
    verbs.choices["logs"].add_argument("--rank", type=int)
    verbs.choices["logs"].add_argument("--since", type=float)
    verbs.choices["logs"].add_argument("--attempt", type=int)
    verbs.choices["logs"].add_argument("--last", type=int)
    verbs.choices["logs"].add_argument("--from", dest="start", default="")
    verbs.choices["logs"].add_argument("--skip", type=int, default=0)
    verbs.choices["logs"].add_argument("--grep", default="")
    verbs.choices["logs"].add_argument("--errors", action="store_true")
    asked = parser.parse_args(argv)
    folder = jobs_folder(asked.shared)
    try:
        _require_answer(folder, asked)
        if asked.verb == "logs":
            return _logs(find(folder, asked.which), asked)
        say(_answer(folder, asked))
        return 0
    except ClusterError as e:
        print(e, file=sys.stderr)
        return e.exit_code if e.exit_code else 3  # 3: nothing to do; not a failure, but the caller prints it
    except OSError as e:
        print(f"{e.filename or folder}: {e.strerror or e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _require_answer(folder: Path, asked: argparse.Namespace) -> None:
    """Raise ClusterError if the shared folder does not answer. For the verb `stop`, stop the job before raising."""
    try:
        FolderThread().do(lambda: os.statvfs(asked.shared))
    except Unanswered:
        silent = f"the shared folder, {asked.shared}, does not answer on the master ({socket.gethostname()})"
        if asked.verb == "stop":
            from cluster.jobs.master.stop import stop_unseen

            silent += f"; {stop_unseen(folder, asked.which)}"
        raise ClusterError(f"{silent}: look at its file server") from None
    except OSError:
        pass  # reported where the folder is used


def _answer(folder: Path, asked: argparse.Namespace) -> Any:
    """Run one verb and return its answer. Each verb imports its modules here, so that the others start faster."""
    if asked.verb == "submit":
        from cluster.jobs.master.submit import submit

        try:
            job = from_json(Job, json.load(sys.stdin))
        except ValueError as e:
            raise ConfigError(f"the job that was sent cannot be read: {e}") from e
        return {"id": job.id, "folder": str(submit(folder, job).folder)}
    if asked.verb == "list":
        wanted = json.loads(sys.stdin.read() or "{}") if not sys.stdin.isatty() else {}
        return _listed(folder, read_going if wanted.get("going") else read_all)
    if asked.verb == "heal":
        from cluster.jobs.master.lost_jobs import heal_lost

        return [dataclasses.asdict(one) for one in heal_lost(folder, dry_run=asked.dry_run)]
    if asked.verb == "facts":
        from cluster.jobs.master.facts import read_facts

        return [dataclasses.asdict(read_facts(find(folder, which))) for which in asked.which]
    if asked.verb == "bill":
        from cluster.jobs.cost import remembered

        bill = remembered(asked.stack)
        return bill and dataclasses.asdict(bill)
    paths = find(folder, asked.which)
    if asked.verb == "curves":
        from cluster.jobs.curves.metrics import read_metrics

        measured = dataclasses.replace(read_metrics(paths.metrics), ranks=None)
        return {"view": dataclasses.asdict(view(paths)), "measured": dataclasses.asdict(measured)}
    if asked.verb == "stop":
        from cluster.jobs.master.stop import stop

        status = stop(paths)
        try:
            return dataclasses.asdict(view(paths))
        except DamagedRecord as e:
            left = f"; left behind: {'; '.join(status.left)}" if status.left else ""
            raise ClusterError(f"{paths.folder.name} is {status.state}{left}; but {e}") from None
    elif asked.verb == "results":
        from cluster.results.send import send

        require_own(paths, "send the results of")
        send(paths)
    elif asked.verb == "remove":
        from cluster.jobs.master.submit import remove

        return {"removed": paths.folder.name, "left": remove(folder, paths)}
    return dataclasses.asdict(view(paths))


def _listed(folder: Path, read: Callable[[Path], JobRecords]) -> dict[str, Any]:
    records = read(folder)
    views, damaged = view_all(folder, records)
    return {
        "jobs": [dataclasses.asdict(one) for one in views],
        "over_ids": list(records.over),
        "damaged": [
            *map(str, damaged),
            *(f"{user} has {counted(count, 'more job')}: not read" for user, count in records.unread.items()),
        ],
        "damaged_ids": [e.path.parent.name for e in damaged],
        "holders": [dataclasses.asdict(one) for one in may_hold(records)],
        "unsure_ids": [
            job.id
            for job, status in records.jobs
            if status.state is JobState.LOST and not is_seen_to_be_gone(JobPaths(folder / job.id), status)
        ],
        "left_out": left_out(read_memory(folder.parent).entries, time.time()),
    }


def _logs(paths: JobPaths, asked: argparse.Namespace) -> int:
    choice = LineFilter(grep=asked.grep, errors=asked.errors)
    start = follow.start_of(paths, since_s=asked.since, attempt=asked.attempt, last=asked.last)
    if asked.start:
        attempt, _, position = asked.start.partition(":")
        start = follow.Start(attempt=int(attempt), position=int(position))
    elif asked.follow:
        print(f"{START}{paths.folder.name} {start.attempt} {start.position}", file=sys.stderr, flush=True)
    status = follow.console(paths, follow=asked.follow, rank=asked.rank, choice=choice, start=start, skip=asked.skip)
    if asked.follow:
        from cluster.jobs.supervisor.launcher import newest_checkpoint

        print(follow.ending(status, paths.folder.name, newest_checkpoint(paths)), file=sys.stderr)
        if status.state.is_bad and (unseen := follow.unseen_checkpoints(paths)):
            print(unseen, file=sys.stderr)
    return 1 if asked.follow and status.state.is_bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
