"""Last stderr lines of a rank before it ended, and the cause that they show. Pure parsing, without I/O."""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_TAIL = 40  # lines kept per rank
_SAID = re.compile(r"^\[1,(?P<rank>\d+)\]<stderr>:(?P<line>.*)$", re.MULTILINE)
_OF_TORCH = re.compile(r"\[rank(?P<rank>\d+)\]:\s?")  # PyTorch's prefix of its own lines and of tracebacks
_NOTICE = re.compile(
    r"\[?[IW]\d{4} \d\d:|WARNING: All log messages before absl|\d{4}-\d\d-\d\d \S+: [IW] "  # TensorFlow's, PyTorch's
    # PyTorch's older ones.
    r"|\[[IW] [^\]]+\.(?:cpp|cc|cu):\d+\]|WARNING:torch\.|WARNING:__main__:$|Setting OMP_NUM_THREADS "
    r"|\S+\.py:\d+: \w*Warning: |warnings\.warn\("  # Python's
    r"|frame #\d+: |CUDA kernel errors might be|For debugging consider passing CUDA_|Compile with `TORCH_USE_CUDA_DSA`"
    r"|\[[^\s\]]+:\d+\] (?:\*\*\* (?:Process received signal|End of error message)"  # Open MPI's of a crash
    r"|Signal: |Signal code: |Failing at address: |\[ ?\d+\] )|Extension modules: |@\s+0x[0-9a-f]+ "
    r"|\W*$"  # rulers
)
_ANOTHER_LOST = re.compile(
    r"HorovodInternalError|ncclRemoteError|remote process exited|another rank ended, so the (?:reduction|exchange)"
)
_CONNECTION = re.compile(r"[Cc]onnection (?:was )?(?:reset|closed) by (?:remote )?peer|Broken pipe")
_BETWEEN_RANKS = re.compile(
    r"gloo/|NCCL|nccl[A-Z]|socketProgress|NET/(?:Socket|IB|OFI)|c10d|torch\.distributed|TCPStore|\bMPI|mca_btl|Horovod"
)
_GPU_FAULT = re.compile(
    r"uncorrectable (?:ECC|NVLink) error|fallen off the bus|GPU is lost|CUDA_ERROR_(?:ECC_UNCORRECTABLE|UNKNOWN)\b"
    r"|CUDA (?:driver )?error: (?:unknown error|system not yet initialized)"
    r"|\bXid\b[^\d]*(?:\([^)]*\): ?)?(?:48|63|64|74|79|94|95|119|120)\b"
)
_LAUNCHER_SPEAKS = re.compile(r"failed \(exitcode: -?\d+\) local_rank: \d+ \(pid: \d+\)|errors\.ChildFailedError:")
_ROOT_CAUSE = re.compile(
    r"^Root Cause \(first observed failure\):.*?^rank\s*: (?P<rank>\d+).*?^exitcode\s*: (?P<code>-?\d+)",
    re.MULTILINE | re.DOTALL,
)
_LAUNCHER_TOLD = re.compile(r"SignalException: Process \d+ got signal: (?P<signal>\d+)")


@dataclass(frozen=True, kw_only=True)
class FailedWorker:
    """Worker process of a torchrun that failed first, as torchrun's summary reports it."""

    rank: int
    code: int  # negative: a signal's number

    def __str__(self) -> str:
        what = f"was ended by {_named(-self.code)}" if self.code < 0 else f"exited {self.code}"
        return f"torchrun's worker {self.rank} {what}"


@dataclass(frozen=True, kw_only=True)
class LastWords:
    """Last stderr lines of a rank, without libraries' notices and rulers. For a torchrun: those of its workers."""

    lines: tuple[str, ...] = ()
    worker: FailedWorker | None = None

    def __str__(self) -> str:
        """Return the most telling line, preceded by torchrun's failed worker if there is one."""
        said = self.gpu_fault or self.crash or (self.lines[-1] if self.lines else "")
        return ": ".join(filter(None, (str(self.worker or ""), said)))

    @property
    def gpu_fault(self) -> str:
        """Return the line that reports a fault of the GPU or its driver, which no program causes; "" without one."""
        return self.line_with(_GPU_FAULT)

    @property
    def crash(self) -> str:
        """Return the message of Python's fault handler with the innermost frame; "" without one."""
        at = next((n for n, line in enumerate(self.lines) if line.startswith("Fatal Python error: ")), None)
        if at is None:
            return ""
        frame = next((line for line in self.lines[at:] if line.startswith("File ")), "")
        return ", ".join(filter(None, (self.lines[at], frame)))

    def line_with(self, pattern: re.Pattern[str]) -> str:
        """Return the last line that matches the pattern; "" without a match."""
        return next((line for line in reversed(self.lines) if pattern.search(line)), "")

    @property
    def tell_of_another_s_loss(self) -> bool:
        """Return True if communication between ranks failed. A program's own connections do not count."""
        return any(
            _ANOTHER_LOST.search(line) or (_CONNECTION.search(line) and _BETWEEN_RANKS.search(line))
            for line in self.lines
        )

    @property
    def signal(self) -> int | None:
        """Return the signal that ended torchrun's worker or that torchrun itself received, or None."""
        if self.worker:
            return -self.worker.code if self.worker.code < 0 else None
        m = _LAUNCHER_TOLD.search(self.lines[-1]) if self.lines else None
        return int(m["signal"]) if m else None

    @property
    def tell_what_happened(self) -> bool:
        """Return True if these lines show a root cause, of which other ranks' errors may be a consequence."""
        return bool(self.gpu_fault) or bool(self.worker and self.worker.code < 0)


def last_words(console: str) -> dict[int, LastWords]:
    """Return the last stderr lines of each rank that wrote any."""
    said: dict[int, list[str]] = {}
    for m in _SAID.finditer(console):
        said.setdefault(int(m["rank"]), []).append(m["line"].strip())
    return {rank: _words(lines) for rank, lines in said.items()}


def first_to_fail(rank: int, words: Mapping[int, LastWords]) -> int:
    """Return the rank that failed first. It differs from the given one if that rank only reports the loss of a peer.

    rank: the rank that mpirun saw end first.
    """
    own = words.get(rank, LastWords())
    if own.tell_what_happened or not own.tell_of_another_s_loss:
        return rank
    return next((r for r, w in sorted(words.items()) if w.tell_what_happened), rank)


def _words(said: Sequence[str]) -> LastWords:
    worker = None
    if m := _ROOT_CAUSE.search("\n".join(said)):
        worker = FailedWorker(rank=int(m["rank"]), code=int(m["code"]))
        said = said[: next((i for i, line in enumerate(said) if _LAUNCHER_SPEAKS.search(line)), len(said))]
        of_rank = [(int(t["rank"]) if (t := _OF_TORCH.match(line)) else None, line) for line in said]
        said = [line for r, line in of_rank if r == worker.rank] or [line for r, line in of_rank if r is None]
    plain = (_OF_TORCH.sub("", line, count=1).strip() for line in said)
    return LastWords(lines=tuple(line for line in plain if not _NOTICE.match(line))[-_TAIL:], worker=worker)


def _named(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
