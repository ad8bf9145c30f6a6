"""What a shell script on a host says, apart from what a start-up file of the shell there prints before it.

Programs of ours answer in frames; this is for scripts that must work where no Python does. An answer without its end is
none.
"""

from cluster.ssh.onhost.telling_line import telling_line
from cluster.ssh.result import Result

_BEGIN, _END = "\x1edlami-begin\n", "\x1edlami-end\n"  # neither is the mark of a frame


def marked(script: str) -> str:
    """The script with a mark before and after what it prints, and before what it complains of; it ends as it does."""
    begin, end = (mark.replace("\x1e", r"\036").replace("\n", r"\n") for mark in (_BEGIN, _END))
    return f"printf '{begin}'; printf '{begin}' >&2; (\n{script}\n); code=$?; printf '{end}'; exit $code"


def said(result: Result) -> str | None:
    """What the script printed between its marks; None if that is not here whole."""
    _, begin, rest = result.whole_stdout.decode(errors="replace").rpartition(_BEGIN)
    text, end, _ = rest.partition(_END)
    return text if begin and end else None


def complaint(result: Result) -> str:
    """What the script printed to stderr."""
    return result.stderr.decode(errors="replace").rpartition(_BEGIN)[2].strip()


def trouble(result: Result) -> str:
    """Why there is no answer, in one line; "" if there is one."""
    if result.exit_code is None:
        return result.problem
    if not result.ok:
        line = telling_line(complaint(result)) or telling_line(said(result) or "")
        return f"exited {result.exit_code}" + (f"   | {line}" if line else "")
    return "" if said(result) is not None else "its answer did not arrive whole"
