"""Scale-up: detects when a job that runs on fewer hosts could restart on more of them."""

import threading
from collections.abc import Callable

from cluster.errors import ClusterError
from cluster.jobs.record import Job, JobPaths
from cluster.jobs.supervisor.admission import could_be_had
from cluster.jobs.supervisor.launcher import newest_checkpoint
from cluster.recovery.replacement import Replacement
from cluster.steady_time import steady_now

_LOOK_S = 30.0
_WOULD_LOSE = "more of its hosts can be had again; it has no checkpoint and would begin anew, so it goes on as it is"


class Growing:
    """Thread that looks for free hosts from `start` to `close`, for an attempt on fewer hosts than the job wants."""

    def __init__(self, job: Job, paths: JobPaths, replacing: Replacement, say: Callable[[str], None]) -> None:
        """Create the thread, without starting it.

        say: prints a line to the job's console.
        """
        self._job, self._paths, self._replacing, self._say = job, paths, replacing, say
        self._has_said = False
        self._said: set[str] = set()
        self._look_s, self._end = min(_LOOK_S, job.plan.grow_after / 2), threading.Event()
        self._is_possible = False
        self._thread = threading.Thread(target=self._look_until_closed, name="growing", daemon=True)

    def start(self) -> "Growing":
        """Start looking, if a host is missing and the job recovers by itself."""
        if self._job.spec.heal and self._job.np < self._job.plan.whole_np:
            self._thread.start()
        return self

    def close(self) -> None:
        """Stop looking."""
        self._end.set()

    def is_due(self, first_step_at: float | None) -> bool:
        """Return True if the attempt should save and restart with more hosts.

        first_step_at: when it made its first step. It may restart only after it has trained for `grow_after` seconds.
        """
        return (
            self._is_possible and first_step_at is not None and steady_now() - first_step_at > self._job.plan.grow_after
        )

    def _look_until_closed(self) -> None:
        while not self._is_possible and not self._end.wait(self._look_s):
            try:
                self._is_possible = self._can_have_more() and not self._would_lose()
            except (ClusterError, OSError) as e:  # the attempt continues with the hosts it has
                print(f"growing: {e}", flush=True)

    def _can_have_more(self) -> bool:
        """Return True if there are hosts for more ranks. Otherwise print once why hosts that answer are not used."""
        chosen = could_be_had(
            self._paths.folder.parent.parent,
            self._job,
            seats=self._job.plan.whole_hosts,
            spares=self._job.plan.spares,
            np=self._job.plan.whole_np,
            replacing=self._replacing,
        )
        if chosen is None or chosen.np > self._job.np:
            return chosen is not None
        for address, unfit in chosen.missing.items():
            if not unfit.is_silent and (why := f"{address} answers and is not used: {unfit.why}") not in self._said:
                self._said.add(why)
                forgive = f"; 'inv hosts.forgive {address}' takes it back" if unfit.failed_before else ""
                self._say(why + forgive)
        return False

    def _would_lose(self) -> bool:
        """Return True if the job is a program without a checkpoint, which would repeat all of its work."""
        if self._job.spec.program.is_built_in or newest_checkpoint(self._paths):
            return False
        if not self._has_said:
            self._has_said = True
            self._say(_WOULD_LOSE)
        return True
