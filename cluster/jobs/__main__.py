"""Jobs, as the master does them for an operator anywhere: `python -m cluster.jobs --shared DIR VERB …`.

Answers are JSON in frames on stdout, except `logs`, which prints the log. Errors are a sentence on stderr and an exit
code.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.jobs import follow
from cluster.jobs.lookup import find, read_all, view, view_all
from cluster.jobs.record import Job, JobPaths, jobs_folder
from cluster.jobs.stop import stop
from cluster.jobs.submit import remove, submit
from cluster.jobs.typed import from_json
from cluster.ssh.onhost.frame import say


def main(argv: list[str]) -> int:
    """Do one verb; the exit code."""
    parser = argparse.ArgumentParser(prog="cluster.jobs")
    parser.add_argument("--shared", required=True)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("submit")
    verbs.add_parser("list")
    for verb in ("show", "stop", "remove", "logs"):
        verbs.add_parser(verb).add_argument("which")
    verbs.choices["logs"].add_argument("--follow", action="store_true")
    verbs.choices["logs"].add_argument("--rank", type=int)
    asked = parser.parse_args(argv)
    folder = jobs_folder(asked.shared)
    try:
        if asked.verb == "logs":
            return _logs(find(folder, asked.which), follow_it=asked.follow, rank=asked.rank)
        say(_answer(folder, asked))
        return 0
    except ClusterError as e:
        print(e, file=sys.stderr)
        return e.exit_code if e.exit_code else 3  # 3: nothing to do, which is no failure but is to be said
    except OSError as e:
        print(f"{e.filename or folder}: {e.strerror or e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _answer(folder: Path, asked: argparse.Namespace) -> Any:
    if asked.verb == "submit":
        try:
            job = from_json(Job, json.load(sys.stdin))
        except ValueError as e:
            raise ConfigError(f"the job that was sent cannot be read: {e}") from e
        return {"id": job.id, "folder": str(submit(folder, job).folder)}
    if asked.verb == "list":
        return _all_jobs(folder)
    paths = find(folder, asked.which)
    if asked.verb == "stop":
        stop(paths)
    elif asked.verb == "remove":
        remove(folder, paths)
        return {"removed": paths.folder.name}
    return view(paths).to_json()


def _all_jobs(folder: Path) -> dict[str, Any]:
    records = read_all(folder)
    return {
        "jobs": [one.to_json() for one in view_all(folder, records)],
        "damaged": [str(e) for e in records.damaged],
        "damaged_ids": [e.path.parent.name for e in records.damaged],
    }


def _logs(paths: JobPaths, *, follow_it: bool, rank: int | None) -> int:
    status = follow.console(paths, follow=follow_it, rank=rank)
    if follow_it:
        print(follow.ending(status, paths.folder.name), file=sys.stderr)
    return 1 if follow_it and status.state.is_bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
