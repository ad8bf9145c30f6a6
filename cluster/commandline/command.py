"""What every task is made with: errors as one line and an exit code, the words after `--`, a question, JSON."""

import functools
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

from invoke import Context, Exit, task

from cluster.errors import ClusterError, ConfigError

HOSTS_HELP = "which: 0,2-4, @all, @master, @workers, @failed, addresses, !X to leave out"


def command(body: Callable[..., None] | None = None, **options: Any) -> Any:
    """A task whose `ClusterError` becomes one message on stderr and an exit code."""
    if body is None:
        return functools.partial(command, **options)

    @functools.wraps(body)
    def run(c: Context, *args: Any, **kwargs: Any) -> None:
        for ending in (signal.SIGTERM, signal.SIGHUP):  # clean up as after Ctrl-C
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
    return sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []


def as_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2))


def agreed(what: str) -> bool:
    """Whether the operator says yes to it. Raises ConfigError where there is nobody to ask."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{what}? There is no terminal to ask on: add --yes if you mean it")
    return input(f"{what}? [y/N] ").strip().lower() in ("y", "yes")
