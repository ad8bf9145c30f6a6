"""Jobs, as the master does them for an operator anywhere: `python -m cluster.jobs --shared DIR VERB …`.

Answers are JSON in frames on stdout, except `logs`, which prints the log. Errors are a sentence on stderr and an exit
code.
"""

import argparse
import json
import sys
from typing import Any

from cluster.errors import ClusterError
from cluster.jobs import follow, record, stop, submit
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
    try:
        return _do(asked)
    except ClusterError as e:
        print(e, file=sys.stderr)
        return e.exit_code if e.exit_code else 3  # 3: nothing to do, which is no failure but is to be said
    except KeyboardInterrupt:
        return 130


def _do(asked: argparse.Namespace) -> int:
    folder = record.jobs_folder(asked.shared)
    if asked.verb == "logs":
        paths = record.find(folder, asked.which)
        state = follow.console(paths, follow=asked.follow, rank=asked.rank)
        if asked.follow:
            print(follow.ending(state, paths.folder.name), file=sys.stderr)
        return 0 if state.state not in ("failed", "lost") or not asked.follow else 1
    say(_answer(folder, asked))
    return 0


def _answer(folder: Any, asked: argparse.Namespace) -> Any:
    if asked.verb == "submit":
        job = record.job_from(json.load(sys.stdin))
        return {"id": job.id, "folder": str(submit.submit(folder, job).folder)}
    if asked.verb == "list":
        return [record.as_json(job, state, folder / job.id) for job, state in submit.all_jobs(folder)]
    if asked.verb == "stop":
        job_id, _ = stop.stop(folder, asked.which)
        paths = record.find(folder, job_id)
    elif asked.verb == "remove":
        return {"removed": submit.remove(folder, asked.which).folder.name}
    else:
        paths = record.find(folder, asked.which)
    return record.as_json(record.read_job(paths), record.read_state(paths), paths.folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
