"""Command `dlami`: every task of the project, from any folder."""

import copy
import importlib.metadata
from collections.abc import Sequence

from dlami import closed_streams, interrupts

closed_streams.open_closed_streams()
interrupts.install()

from invoke import Program  # noqa: E402

from dlami import invoke_words, output, own_name  # noqa: E402
from dlami.collection import ns  # noqa: E402


def made() -> Program:
    """Return the program with the project's tasks. It ignores the folder that it is started in."""
    invoke_words.install()
    output.install()
    try:
        version = importlib.metadata.version("dlami-cluster")
    except importlib.metadata.PackageNotFoundError:
        version = "of a checkout"
    tasks = copy.deepcopy(ns)  # a copy, because Invoke empties the tasks' help, which `docs` needs
    return Program(version=version, namespace=tasks, name="dlami", binary="dlami", binary_names=["dlami"])


def main(words: Sequence[str] | None = None) -> None:
    """Run the task that the command line names."""
    program = made()
    own_name.name_dlami(ns.task_names)
    program.run(list(words) if words is not None else None)


if __name__ == "__main__":
    main()
