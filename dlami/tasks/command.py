"""Decorator for tasks: errors become one line and an exit code, and the options arrive as one dataclass."""

import contextlib
import dataclasses
import errno
import functools
import inspect
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

from invoke import Context, Exit, task

from cluster.errors import ClusterError
from cluster.guard.line import say_line

HOSTS_HELP = "which: 0,2-4, @all, @master, @workers, @spares, @failed, addresses, !X to leave out"
REQUIRED = dataclasses.MISSING  # the default of an option that has none: a positional one, that has to be given
INTERRUPTED = 130
NOBODY_READS = 141  # the exit code of what writes into a closed pipe, as a shell has it


def command(body: Callable[..., None] | None = None, **options: Any) -> Any:
    """Make a function a task whose `ClusterError` becomes one message on stderr and an exit code.

    A body may take its options as one value: a dataclass whose fields are made by `option`.
    """
    if body is None:
        return functools.partial(command, **options)
    fields = _option_fields(body)

    @functools.wraps(body)
    def ended_well(c: Context, *args: Any, **kwargs: Any) -> None:
        for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # clean up as after Ctrl-C
            if signal.getsignal(ending) is not signal.SIG_IGN:  # as nohup has it, or who deletes what costs
                signal.signal(ending, signal.default_int_handler)
        try:
            body(c, fields(**kwargs)) if fields else body(c, *args, **kwargs)
            flush_output()
        except ClusterError as e:
            if e.exit_code == INTERRUPTED:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said and done: one more Ctrl-C changes nothing
            raise Exit(as_typed(str(e)), code=e.exit_code) from e
        except KeyboardInterrupt as e:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            raise Exit(as_typed(_report_of(e)), code=INTERRUPTED) from None
        except OSError as e:
            raise unwritten(e) or folder_is_gone(e) or e from None
        except RuntimeError as e:
            if "home directory" not in str(e):  # of pathlib, for a path that begins with ~
                raise
            raise Exit(
                "this user has no home folder here: set HOME, or give whole paths instead of ~", code=2
            ) from None
        finally:
            say_line()

    if fields:
        own = dataclasses.fields(fields)
        ended_well.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter("c", inspect.Parameter.POSITIONAL_OR_KEYWORD),
                *(inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=_default(f)) for f in own),
            ]
        )
        options["help"] = {f.name: f.metadata["help"] for f in own}
        options["iterable"] = [f.name for f in own if f.metadata["repeats"]]
    return task(ended_well, **options)


def _report_of(e: BaseException) -> str:
    """Return the message for a task that Ctrl-C ended. A second Ctrl-C meanwhile does not replace the first message."""
    before = e.__context__
    while before and not (isinstance(before, ClusterError) and before.exit_code == INTERRUPTED):
        before = before.__context__
    return str(before or "interrupted")


def option(default: Any, help: str, *, repeats: bool = False) -> Any:
    """Return a dataclass field for one option of a task.

    repeats: the option may be given several times; its value is a list, or None by default.
    """
    return dataclasses.field(default=default, metadata={"help": help, "repeats": repeats})


def as_typed(text: str) -> str:
    """Replace `inv TASK` in a text by `dlami TASK` if this process was started by `dlami`."""
    is_ours = os.path.basename(sys.argv[0]) in ("dlami", "program.py")  # noqa: PTH119 - it may be just a name
    return re.sub(r"\binv (?=[a-z])", "dlami ", text) if is_ours else text


def rest() -> list[str]:
    """Return the words after `--`, as the shell split them."""
    return sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []


def flush_output() -> None:
    """Flush stdout. Raises OSError if the output cannot be written."""
    if sys.stdout and not sys.stdout.closed:
        sys.stdout.flush()


def unwritten(e: OSError) -> Exit | None:
    """Return the exit for output that cannot be written: a closed pipe, a gone terminal or a full disk.

    Returns None for any other error. Output that stdout has not written yet is dropped.
    """
    if e.filename is not None or e.errno not in (errno.EPIPE, errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return None
    if sys.stdout:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if e.errno == errno.EPIPE:
        return Exit(code=NOBODY_READS)
    return Exit(f"its output, or a file, could not be written: {e.strerror}", code=1)


def folder_is_gone(e: OSError) -> Exit | None:
    """Return the exit for a task whose current folder was deleted, or None for any other error."""
    with contextlib.suppress(FileNotFoundError):
        os.getcwd()  # noqa: PTH109 - it is only tried
        return None
    return Exit("the folder that this was typed in is gone: cd to one that exists, and type it again", code=2)


def _default(field: dataclasses.Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is REQUIRED else field.default


def _option_fields(body: Callable[..., None]) -> Any:
    """Return the dataclass of the task's options; None if the task takes its options one by one."""
    kinds = [kind for name, kind in body.__annotations__.items() if name not in ("c", "return")]
    return kinds[0] if len(kinds) == 1 and dataclasses.is_dataclass(kinds[0]) else None
