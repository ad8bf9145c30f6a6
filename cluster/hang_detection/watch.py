"""Watch over a job's ranks during an attempt: their progress, their hosts' notices, and the first hang explained."""

import contextlib
import dataclasses
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cluster.files import write_atomically
from cluster.folder_thread import FolderThread
from cluster.hang_detection import stopped_processes
from cluster.hang_detection.hang import STACKS, hang, outlived, stood_still
from cluster.hang_detection.limits import HANG_AFTER_S, JobPace, confirmed, overdue
from cluster.hang_detection.output_watchdog import OutputWatchdog
from cluster.hang_detection.rank_reports import EVERY_S, ReportListener
from cluster.hang_detection.rank_state import MISSING, RankPhase, RankSeen, rank_seen
from cluster.hang_detection.stack_dumps import StackAnswers, take_stacks
from cluster.hang_detection.standstill import RanksObservation
from cluster.hang_detection.standstill_watch import StandstillWatch
from cluster.hosts import Host
from cluster.jobs.record import Job, JobPaths
from cluster.launch.mpirun import ranks_on
from cluster.recovery.cause import Cause
from cluster.steady_time import steady_now

LEAD_S = 6.0  # before a limit: stacks are taken then, to be there when it is reached
_JUDGE_S = 1.0
_LOOK_AGAIN_S = 0.3
_FAREWELL_S = 3.0  # for the judging thread, which may be taking stacks
_STALE_S = 5 * EVERY_S  # since its last report, after which a host counts as silent
_AGAIN_S = 60.0  # between checks of ranks that may be held up
_PACE = "pace.json"  # beside an attempt's console: its longest silence in each phase


class RankWatch:
    """Watch over one attempt's ranks by two threads: one receives the hosts' reports, the other judges them.

    Both run from `start` to `close`.
    """

    def __init__(self, job: Job, paths: JobPaths, folder: FolderThread, say: Callable[[str], None]) -> None:
        """Prepare to watch one attempt.

        say: prints a line to the job's console.
        """
        self._job, self._paths, self._folder, self._say = job, paths, folder, say
        earlier: list[float] = []
        with contextlib.suppress(OSError):
            earlier = folder.do(lambda: _earlier_silences(paths, job.attempt))
        self._pace = JobPace(earlier, least_s=job.spec.hang_after or HANG_AFTER_S)
        self._quiet = OutputWatchdog(
            lambda: folder.do(lambda: paths.console(job.attempt).stat().st_size), job.spec.hang_after
        )
        self._standstill = StandstillWatch(self._look_at_bare, job.np if job.spec.program.per != "node" else 0)
        self._taken: StackAnswers | None = None  # the newest stacks of a program without heartbeats
        self._looks = ReportListener(job.hosts, job.id, job.attempt, self._heard)
        self._lock, self._end = threading.Lock(), threading.Event()
        hosts = [h.address for h, n in ranks_on(job.hosts, job.np).items() for _ in range(n)]
        self._host_of = dict(enumerate(hosts))
        self._ranks: dict[int, RankSeen] = {}
        self._heard_at: dict[str, float] = {}  # address -> when, by our own clock
        self._notices: dict[str, Mapping[str, Any]] = {}
        self._stopped: dict[str, str] = {}  # address -> mpirun's daemon there
        self._silence = ""
        self._warned: set[str] = set()
        self._all_ended_at: float | None = None
        self._first_step_at: float | None = None
        self._alive_at: float | None = None
        self._counts: list[tuple[int, int]] = []
        self._trouble: Cause | None = None
        self._not_before = 0.0  # before this time, ranks that may be held up are not looked at
        self._thread = threading.Thread(target=self._judge_until_closed, name="judge", daemon=True)

    def start(self) -> "RankWatch":
        """Start to watch."""
        self._began = time.monotonic()
        self._looks.start()
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop watching."""
        self._end.set()
        self._looks.close()
        if self._thread.is_alive():
            self._thread.join(_FAREWELL_S)

    def ask_once_more(self) -> None:
        """Stop judging, and query the hosts for the last heartbeats of ranks that have left, if there were any."""
        self._end.set()
        if self.step() is not None:
            self._looks.ask_once_more()

    def trouble(self) -> Cause | None:
        """Return the hang that was found, once its stacks have been taken. Return None without a hang."""
        return self._trouble

    def step(self) -> int | None:
        """Return how many steps the ranks have reported. Return None for a program without heartbeats.

        The highest count of any rank is returned. Ranks step together, and a host that is gone reports no more.
        """
        with self._lock:
            return max((r.step for r in self._ranks.values() if r.phase is not None or r.step), default=None)

    def first_step(self) -> int | None:
        """Return how many steps were done after the first one of this attempt."""
        with self._lock:
            return min((r.first for r in self._ranks.values() if r.first), default=None)

    def first_step_at(self) -> float | None:
        """Return when the first step of this attempt was done, in seconds since 1970."""
        return self._first_step_at

    def alive_at(self) -> float | None:
        """Return when ranks last showed progress, in seconds since 1970. A rank that hangs but is busy shows none."""
        return self._alive_at

    def notices(self) -> dict[str, Mapping[str, Any]]:
        """Return the hosts' preemption and maintenance notices, by address."""
        with self._lock:
            return dict(self._notices)

    def stopped(self) -> dict[str, str]:
        """Return the name of the mpirun process that is stopped on a host, by address."""
        with self._lock:
            return dict(self._stopped)

    def silence(self) -> str:
        """Return the last sentence about a program that neither sends heartbeats nor prints."""
        return self._silence

    def progress(self) -> object:
        """Return a value that is equal at two times between which no rank made progress.

        Return None where that is not known.

        It is known before any rank has started. For ranks without heartbeats it is known only if the operator gave a
        limit on silence.
        """
        with self._lock:
            ranks, is_known = list(self._ranks.values()), len(self._heard_at) == len(self._job.hosts)
        beats = [r for r in ranks if r.phase is not None]
        if not is_known or (ranks and not beats and not self._job.spec.hang_after):
            return None
        starting = [int(r.cpu_s) for r in ranks if r.phase in (None, RankPhase.START, RankPhase.COMPILE)]
        return len(ranks), [r.count for r in beats], starting

    def limit_s(self) -> float:
        """Return for how many seconds ranks may go without a step."""
        return self._pace.limit_s(RankPhase.STEP)

    def _heard(self, host: Host, told: Mapping[str, Any]) -> None:
        """Record a host's report."""
        with self._lock:
            self._heard_at[host.address] = time.monotonic()
            for one in told["ranks"]:
                rank = rank_seen(host.address, one, told["now"], self._heard_at[host.address])
                before = self._ranks.get(rank.rank)
                if before and before.phase is not None and rank.phase is not None:
                    self._pace.learn(before, rank)
                self._ranks[rank.rank] = rank
                if self._first_step_at is None and (rank.phase is RankPhase.STEP or rank.step):
                    first = rank.since if rank.phase is RankPhase.STEP else rank.beat_at
                    self._first_step_at = steady_now() - (told["now"] - first)
            if told["notice"]:
                self._notices[host.address] = told["notice"]
            else:
                self._notices.pop(host.address, None)  # the notice was withdrawn
            self._stopped.pop(host.address, None)
            if told["stopped"]:
                self._stopped[host.address] = told["stopped"]
        self._warn(stopped_processes.warning(told["stopped"], host.address) if told["stopped"] else "")

    def _judge_until_closed(self) -> None:
        while not self._end.wait(_JUDGE_S) and self._trouble is None:
            try:
                self._judge()
            except Exception as e:  # the training must not end because its watch does
                print(f"watching: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
        self._keep(_PACE, json.dumps({"longest": self._pace.longest, "step_s": self._pace.step_s}) + "\n")

    def _judge(self) -> None:
        ranks = self._seen()
        if not ranks:
            self._look_where_none_has_begun()
        if not _is_judged_by_beats(ranks):
            self._judge_quiet([r for r in ranks if not r.has_ended])
            if self._quiet.is_alive:
                self._alive_at = steady_now()
            return
        if self._go_on(ranks):
            self._alive_at = steady_now()
        if self._job.spec.hang_after == 0:
            return
        if (alone_s := self._without_ranks(ranks)) > self._pace.least_s:
            with self._lock:
                self._trouble = outlived(alone_s, self._stopped)
            return
        if suspects := overdue(ranks, self._pace, LEAD_S):
            self._see_out(suspects, lambda now: overdue(now, self._pace), self._take_stacks())
        elif (held := self._held(ranks)) and time.monotonic() > self._not_before:
            self._not_before = time.monotonic() + _AGAIN_S
            taken = self._take_stacks()
            if taken.folder_trouble:
                self._see_out(held, self._held, taken)

    def _go_on(self, ranks: Sequence[RankSeen]) -> bool:
        """Return True if ranks make progress.

        They do if a rank has sent a heartbeat since the last call, or is within the usual time of its step or phase.
        """
        beats = [r for r in ranks if r.phase is not None and not r.has_ended]
        counts, before = [(r.rank, r.count) for r in beats], self._counts
        self._counts = counts
        step_s = self._pace.step_s or 0.0
        within = (
            r.silent_s <= (2 * step_s if r.phase is RankPhase.STEP else self._pace.limit_s(r.phase))
            for r in beats
            if r.phase is not None
        )
        return bool(beats) and (counts != before or any(within))

    def _look_where_none_has_begun(self) -> None:
        """Look for trouble with the shared folder once no rank has appeared on any host for too long."""
        now = time.monotonic()
        if self._job.spec.hang_after == 0 or now < max(self._not_before, self._began + self._pace.least_s):
            return
        self._not_before = now + _AGAIN_S
        taken = self._take_stacks()
        if taken.folder_trouble and not self._seen():
            ranks = [
                RankSeen(rank=n, host=host, phase=RankPhase.START, state=MISSING, silent_s=now - self._began)
                for n, host in self._host_of.items()
            ]
            self._trouble = hang(ranks, ranks, taken.stacks, taken.folder_trouble)

    def _without_ranks(self, ranks: Sequence[RankSeen]) -> float:
        """Return for how many seconds all ranks have ended while mpirun still runs."""
        if not all(r.has_ended for r in ranks):
            self._all_ended_at = None
            return 0.0
        self._all_ended_at = self._all_ended_at or time.monotonic()
        return time.monotonic() - self._all_ended_at

    def _see_out(
        self,
        suspects: Sequence[RankSeen],
        late: Callable[[Sequence[RankSeen]], Sequence[RankSeen]],
        taken: StackAnswers,
    ) -> None:
        """Wait until a rank makes progress, or until the suspects' hosts have reported again that they are late."""
        counts = {r.rank: r.count for r in suspects}
        deadline = time.monotonic() + LEAD_S + _STALE_S
        while time.monotonic() < deadline and not self._end.wait(_LOOK_AGAIN_S):
            now = self._seen()
            if still := confirmed(suspects, late(now)):
                self._trouble = hang(now, still, taken.stacks, taken.folder_trouble)
                return
            if any(counts.get(r.rank, r.count) != r.count for r in now):
                return

    def _judge_quiet(self, ranks: Sequence[RankSeen]) -> None:
        """Judge a program without heartbeats: warn, or report a hang where the operator gave a limit on silence."""
        self._silence = self._quiet.look(ranks, time.monotonic())
        if not self._quiet.is_over:
            self._judge_standstill()
            self._warn(self._silence)
            return
        taken = self._take_stacks()
        if self._quiet.look(ranks, time.monotonic()) and not self._end.is_set():
            silent = [dataclasses.replace(r, silent_s=self._quiet.silent_s) for r in ranks]
            self._trouble = hang(silent, silent, taken.stacks, taken.folder_trouble)

    def _judge_standstill(self) -> None:
        """Look at ranks that print nothing. A standstill is a warning first, and ends the attempt once it is sure."""
        if self._job.spec.hang_after == 0:
            return
        now = time.monotonic()
        verdict = self._standstill.look(self._quiet.silent_s, now)
        standing_s = self._standstill.standing_s(now)
        if verdict is None or self._taken is None or standing_s < verdict.warn_after_s:
            return
        self._quiet.is_alive = False
        self._silence = f"the program stands still ({verdict.kind}): {verdict.text}; see {STACKS}"
        is_over = standing_s > verdict.end_after_s and not self._job.spec.hang_after
        if is_over or self._silence not in self._warned:
            self._keep(STACKS, str(self._taken))
        if is_over:
            self._trouble = stood_still(verdict, standing_s, self._taken.folder_trouble)

    def _look_at_bare(self, is_native: bool) -> RanksObservation | None:
        self._taken = take_stacks(self._job, self._paths, is_bare=True, is_native=is_native)
        return None if self._taken.unanswered else self._taken.look

    def _held(self, ranks: Sequence[RankSeen]) -> list[RankSeen]:
        """Return the ranks that a silent file server may hold up: in their start, an evaluation or a save."""
        beyond = [r for r in ranks if r.silent_s > self._pace.least_s and not r.has_ended]
        return [
            r
            for r in beyond
            if r.phase in (RankPhase.EVALUATE, RankPhase.SAVE)
            or (r.phase is RankPhase.START and (r.is_stuck or r.is_missing))
        ]

    def _seen(self) -> list[RankSeen]:
        """Return the state of every rank.

        Old reports are carried forward to now. Once one rank sends heartbeats, a rank that has sent none counts as
        starting.
        """
        now = time.monotonic()
        with self._lock:
            known, heard_at = dict(self._ranks), dict(self._heard_at)
        if any(r.phase is not None for r in known.values()):
            for n in range(self._job.np):
                host = self._host_of.get(n, "")
                one = known.get(n, RankSeen(rank=n, host=host, state=MISSING, heard_at=heard_at.get(host, 0.0)))
                if one.phase is None and not one.has_ended:
                    is_mute = not self._job.spec.program.is_built_in and not one.is_missing
                    known[n] = dataclasses.replace(
                        one, phase=RankPhase.START, silent_s=now - self._began, is_mute=is_mute
                    )
        return [self._now(r, now - heard_at.get(r.host, now)) for r in known.values()]

    @staticmethod
    def _now(rank: RankSeen, ago_s: float) -> RankSeen:
        if ago_s <= _STALE_S:
            return rank
        return dataclasses.replace(rank, silent_s=rank.silent_s + ago_s, is_heard=False)

    def _take_stacks(self) -> StackAnswers:
        """Take the stacks of all ranks, and write them to a file, too."""
        taken = take_stacks(self._job, self._paths)
        self._keep(STACKS, str(taken))
        return taken

    def _keep(self, name: str, text: str) -> None:
        """Write a file beside the attempt's console. Errors of the shared folder are ignored."""
        with contextlib.suppress(OSError):
            self._folder.do(lambda: write_atomically(self._paths.logs(self._job.attempt) / name, text), name)

    def _warn(self, text: str) -> None:
        """Print a warning to the console, once for each text."""
        if text and text not in self._warned:
            self._warned.add(text)
            self._say(f"warning: {text}")


def _is_judged_by_beats(ranks: Sequence[RankSeen]) -> bool:
    """Return True if a rank that sends heartbeats still runs.

    Once all ranks have ended, return True if one of them has sent heartbeats.
    """
    if all(r.has_ended for r in ranks):
        return any(r.phase is not None for r in ranks)
    return any(r.phase is not None and not r.is_mute and not r.has_ended for r in ranks)


def _earlier_silences(paths: JobPaths, attempt: int) -> list[float]:
    """Return the longest silence in each phase of the newest earlier attempt that recorded them."""
    for earlier in range(attempt - 1, 0, -1):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return [float(s) for s in json.loads((paths.logs(earlier) / _PACE).read_text())["longest"]]
    return []
