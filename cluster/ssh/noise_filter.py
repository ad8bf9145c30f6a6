"""Output of a shell script on a host, separated from what a start-up file of its shell prints before it.

Our Python programs answer in frames. This is for scripts that must work where no Python does. An answer without its end
mark does not count.
"""

from cluster.ssh.onhost.telling_line import telling_line
from cluster.ssh.result import Result

_BEGIN, _END = "\x1edlami-begin\n", "\x1edlami-end\n"  # neither is the mark of a frame


def marked(script: str) -> str:
    """Return the script with a mark before and after its stdout, and before its stderr.

    Its exit code stays the same.
    """
    begin, end = (mark.replace("\x1e", r"\036").replace("\n", r"\n") for mark in (_BEGIN, _END))
    return f"printf '{begin}'; printf '{begin}' >&2; (\n{script}\n); code=$?; printf '{end}'; exit $code"


def output_between_marks(result: Result) -> str | None:
    """Return what the script printed between its marks. Return None if a mark is missing."""
    _, begin, rest = result.whole_stdout.decode(errors="replace").rpartition(_BEGIN)
    text, end, _ = rest.partition(_END)
    return text if begin and end else None


def complaint(result: Result) -> str:
    """Return what the script printed to stderr."""
    return result.stderr.decode(errors="replace").rpartition(_BEGIN)[2].strip()


def trouble(result: Result) -> str:
    """Return in one line why there is no answer. Return an empty string if there is one."""
    if result.exit_code is None:
        return result.problem
    if not result.ok:
        line = telling_line(complaint(result)) or telling_line(output_between_marks(result) or "")
        return f"exited {result.exit_code}" + (f"   | {line}" if line else "")
    return "" if output_between_marks(result) is not None else "its answer did not arrive whole"
