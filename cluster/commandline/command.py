"""What every task is made with: errors as one line and an exit code, options as one value, the words after `--`."""

import dataclasses
import errno
import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from invoke import Context, Exit, task

from cluster.errors import ClusterError

HOSTS_HELP = "which: 0,2-4, @all, @master, @workers, @failed, addresses, !X to leave out"
INTERRUPTED = 130
NOBODY_READS = 141  # the exit code of what writes into a closed pipe, as a shell has it


def command(body: Callable[..., None] | None = None, **options: Any) -> Any:
    """A task whose `ClusterError` becomes one message on stderr and an exit code.

    A body may take its options as one value: a dataclass whose fields are made by `option`.
    """
    if body is None:
        return functools.partial(command, **options)
    fields = _option_fields(body)

    @functools.wraps(body)
    def ended_well(c: Context, *args: Any, **kwargs: Any) -> None:
        for ending in (signal.SIGTERM, signal.SIGHUP):  # clean up as after Ctrl-C
            signal.signal(ending, signal.default_int_handler)
        try:
            body(c, fields(**kwargs)) if fields else body(c, *args, **kwargs)
            flush_output()
        except ClusterError as e:
            if e.exit_code == INTERRUPTED:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said and done: one more Ctrl-C changes nothing
            raise Exit(str(e), code=e.exit_code) from e
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            raise Exit("interrupted", code=INTERRUPTED) from None
        except OSError as e:
            raise unwritten(e) or e from None

    if fields:
        own = dataclasses.fields(fields)
        ended_well.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter("c", inspect.Parameter.POSITIONAL_OR_KEYWORD),
                *(inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default) for f in own),
            ]
        )
        options["help"] = {f.name: f.metadata["help"] for f in own}
        options["iterable"] = [f.name for f in own if f.metadata["repeats"]]
    return task(ended_well, **options)


def option(default: Any, help: str, *, repeats: bool = False) -> Any:
    """A field of a dataclass that holds a task's options. One that `repeats` is None or a list."""
    return dataclasses.field(default=default, metadata={"help": help, "repeats": repeats})


def rest() -> list[str]:
    """The words after `--`, as the shell split them."""
    return sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []


def flush_output() -> None:
    """Write what waits to be written. Raises OSError if nobody takes it."""
    if sys.stdout and not sys.stdout.closed:
        sys.stdout.flush()


def unwritten(e: OSError) -> Exit | None:
    """What ends the command line when nobody takes what it says or writes: a pipe that was closed, a full disk.

    None if the error is another one. What still waits for stdout is dropped.
    """
    if e.filename is not None or e.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return None
    if sys.stdout:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if e.errno == errno.EPIPE:
        return Exit(code=NOBODY_READS)
    return Exit(f"its output, or a file, could not be written: {e.strerror}", code=1)


def _option_fields(body: Callable[..., None]) -> Any:
    """The dataclass that the body takes as its second argument; None if it takes its options one by one."""
    kinds = [kind for name, kind in body.__annotations__.items() if name not in ("c", "return")]
    return kinds[0] if len(kinds) == 1 and dataclasses.is_dataclass(kinds[0]) else None
