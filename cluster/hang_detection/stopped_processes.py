"""Detection of a stopped mpirun process or a silent shared folder that holds up the whole attempt. Pure functions."""

from collections.abc import Mapping

from cluster.recovery.cause import Cause
from cluster.recovery.failure_kinds import FailureKind

MPIRUN = "mpirun"


class Frozen:
    """Detector of an attempt that a stopped process or a silent folder holds up while no rank makes progress."""

    def __init__(self) -> None:
        self._stopped_at: float | None = None
        self._progress_at: float | None = None
        self._progress: object = None

    def look(
        self, stopped: Mapping[str, str], folder_silent_s: float, progress: object, limit_s: float, now: float
    ) -> Cause | None:
        """Return the cause for ending the attempt, or None while it may continue.

        stopped: address -> the name of the mpirun process that is stopped there. folder_silent_s: 0 if the folder
        answers. progress: equal in two calls between which no rank made progress. None if that is unknown.
        """
        self._stopped_at = (now if self._stopped_at is None else self._stopped_at) if stopped else None
        if progress is None or progress != self._progress or self._progress_at is None:
            self._progress, self._progress_at = progress, now
        held_s = max(folder_silent_s, now - self._stopped_at if self._stopped_at is not None else 0.0)
        still_s = min(held_s, now - self._progress_at)
        if still_s <= limit_s:
            return None
        how_long = f"no rank has gone on for {still_s:.0f} s"
        if not stopped:
            text = f"the shared folder does not answer on the master, and {how_long}"
            return Cause(kind=FailureKind.SHARED_FOLDER, text=text)
        address, name = next(iter(stopped.items()))
        return Cause(kind=FailureKind.DAEMON, text=f"{_subject(name, address)}, and {how_long}", host=address)


def warning(name: str, address: str) -> str:
    """Return the warning about a stopped mpirun process while its ranks still run."""
    return (
        f"{_subject(name, address)}; its ranks go on, but the end of one will not be seen, and a stop takes longer: "
        "'kill -CONT' wakes it"
    )


def _subject(name: str, address: str) -> str:
    whose = "" if name == MPIRUN else "mpirun's "
    where = f" on {address}" if address else ""
    return f"{whose}{name}{where} is stopped (SIGSTOP or a debugger)"
