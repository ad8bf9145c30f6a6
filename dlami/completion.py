"""Shell completion of job ids, hosts and labs. Invoke completes tasks and options."""

import contextlib
import os
import shlex
import threading
from collections.abc import Callable, Sequence
from typing import Any

import invoke.program
from invoke import Exit

# Tasks that take any number of words, and the option that each word is a value of.
TAKE_WORDS = {
    "hosts.join": "host",
    "jobs.report": "job",
    "jobs.compare": "job",
    "jobs.show": "job",
    "jobs.logs": "job",
    "jobs.watch": "job",
    "keep": "time",
    "tensorboard": "job",
    "tunnels": "id",
}
_ASKING_S = 4.0  # limit on querying the master for jobs, because somebody waits at a prompt
_complete = invoke.program.complete
_print_script = invoke.program.print_completion_script


def install() -> None:
    """Make Invoke's completion include job ids, hosts and labs."""
    invoke.program.complete = complete
    invoke.program.print_completion_script = print_script


def complete(names: Sequence[str], core: Any, initial_context: Any, collection: Any, parser: Any) -> None:
    """Print the candidates for the last word of a command line. Raises Exit after that."""
    with contextlib.suppress(ValueError):  # an open quote
        found = candidates(core.remainder, parser.contexts)
        if found is not None:
            print("\n".join(found))
            raise Exit
    _complete(names, core, initial_context, collection, parser)


def candidates(line: str, contexts: Any) -> list[str] | None:
    """Return the candidates for the last word; None for a task or an option, which Invoke completes.

    Args:
        line: command line with the program's name; it ends with a blank if a new word begins.
    """
    words = [word for word in shlex.split(line)[1:] if word != "="]
    if "--" in words or not words:
        return None
    partial = "" if line.endswith(" ") else words.pop()
    context = next((contexts[word] for word in words if word in contexts), None)
    if context is None:
        return None
    option, _, value = partial.partition("=")
    if option in context.flags and value:
        return None if not (found := _values(context, context.flags[option].name, value)) else found
    before = context.flags.get(words[-1])
    if before is not None and before.takes_value:
        return _values(context, before.name, partial)
    if partial.startswith("-"):
        return None
    first = next((argument.name for argument in context.positional_args), TAKE_WORDS.get(context.name, ""))
    return _values(context, first, partial)


def _values(context: Any, option: str, partial: str) -> list[str] | None:
    """Return the candidates for the value of a task's option; None if there are none."""
    is_of_labs = context.name.startswith("lab.")
    known: dict[str, Callable[[], list[str]]] = {"job": job_ids, "hosts": host_names, "host": host_names}
    if is_of_labs:
        known = {"name": lab_names, "host": lab_hosts}
    if option not in known or context.name.startswith("eks."):
        return None
    head = partial[: partial.rfind(",") + 1]
    from cluster.errors import ClusterError

    with contextlib.suppress(ClusterError, OSError):
        return [head + one for one in known[option]()]
    return []


def lab_names() -> list[str]:
    """Return the labs of this machine."""
    from cluster import locate

    return locate.lab_names()


def lab_hosts() -> list[str]:
    """Return the ranks and names of the chosen lab's hosts."""
    from cluster.locate import chosen_lab
    from lab.lab import named

    return [one for host in named(chosen_lab()).hosts for one in (str(host.rank), host.name)]


def host_names() -> list[str]:
    """Return the ranks and addresses of the cluster's hosts, and the names of sets of them."""
    from cluster.inventory import load_cluster

    hosts = load_cluster().hosts
    return ["@all", "@master", "@workers", "@failed", *(one for h in hosts for one in (str(h.rank), h.address))]


def job_ids() -> list[str]:
    """Return the ids of the cluster's jobs, newest first; none if the master does not answer quickly."""
    found: list[str] = []

    def ask() -> None:
        from cluster.errors import ClusterError
        from cluster.inventory import load_cluster
        from cluster.jobs.client.client import opened

        with contextlib.suppress(ClusterError, OSError), opened(load_cluster()) as jobs:
            found.extend(job.id for job in reversed(jobs.list().jobs))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_ASKING_S)
    return ["last", *found]


def print_script(shell: str, names: Sequence[str]) -> None:
    """Print Invoke's completion script for a shell, changed so that an empty last word is passed on."""
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        _print_script(shell, list(names))
    text = out.getvalue()
    for before, after in (("${COMP_WORDS[*]}", '"${COMP_WORDS[@]}"'), ("-- ${words}", '-- "${(@)words}"')):
        text = text.replace(before, after)
    print(text, end="" if text.endswith(os.linesep) else "\n")
