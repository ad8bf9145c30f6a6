"""Package commands that the master runs for an operator anywhere: `python -m cluster.packages --shared DIR VERB`.

The request is JSON on stdin. Progress messages and the answer are JSON frames on stdout.
"""

import argparse
import dataclasses
import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ClusterError, ConfigError
from cluster.hosts import Host
from cluster.packages import import_check
from cluster.packages.interpreter import EnvironmentRequest, Interpreter
from cluster.packages.recipe import Recipe
from cluster.ssh.onhost.frame import say
from cluster.ssh.onhost.heartbeat import heard_of
from cluster.typed import from_json


@dataclass(frozen=True, kw_only=True)
class VerbArguments:
    """Arguments of a verb; each verb uses some of them."""

    hosts: tuple[Host, ...] = ()
    wanted: EnvironmentRequest | None = None
    recipe: Recipe | None = None
    changes: bool = False
    words: tuple[str, ...] = ()
    folder: str = ""
    interpreter: Interpreter | None = None
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ids: tuple[str, ...] = ()


def main(argv: list[str]) -> int:
    """Run one verb and return the exit code."""
    parser = argparse.ArgumentParser(prog="cluster.packages")
    parser.add_argument("--shared", required=True)
    parser.add_argument("verb", choices=("ready", "check", "list", "remove"))
    words = parser.parse_args(argv)
    for ending in (signal.SIGTERM, signal.SIGHUP):  # clean up as after Ctrl-C
        signal.signal(ending, signal.default_int_handler)
    try:
        with heard_of():
            answer = _answer(words.verb, words.shared, from_json(VerbArguments, json.load(sys.stdin)))
    except ClusterError as e:
        answer = {"error": str(e), "is_config": isinstance(e, ConfigError)}
    except OSError as e:
        answer = {"error": f"{e.filename or words.shared}: {e.strerror or e}", "is_config": False}
    except KeyboardInterrupt:
        return 130
    say(answer)
    return 0


def _answer(verb: str, shared: str, given: VerbArguments) -> dict[str, Any]:
    if verb == "ready":
        from cluster.packages.ready import ready

        assert given.wanted
        made = ready(
            given.wanted,
            given.recipe,
            given.hosts,
            shared,
            changes=given.changes,
            say=lambda text: say({"said": text}),
        )
        return dataclasses.asdict(made)
    if verb == "check":
        return {"trouble": import_check.trouble(given.words, Path(given.folder), given.interpreter, given.variables)}
    from cluster.packages.env_list import remove, stock  # imported late, as above, to keep `check` fast

    if verb == "list":
        return dataclasses.asdict(stock(given.hosts, shared))
    return {"left": dict(remove(given.hosts, shared, given.ids))}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
