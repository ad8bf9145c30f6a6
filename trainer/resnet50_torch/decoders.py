"""Pool of a rank's processes that decode images, and the memory through which they exchange batches with the rank."""

import contextlib
import mmap
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess

import numpy as np
from numpy.typing import NDArray

from trainer.common.files.errors import TrainerError
from trainer.resnet50_torch import decoding
from trainer.resnet50_torch.decoding import DecodeTask, Pixels, SharedBatch

# Sent to a rank's whole process group. Only the rank itself handles them.
_THE_RANKS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TASKS = 2  # of a batch for each process, so that none waits long for the last


class Arena:
    """Memory for one batch at a time: its pixels, and behind them its records.

    It has no name that could be left behind.
    """

    def __init__(self) -> None:
        self._fd = os.memfd_create("batch")
        self._map: mmap.mmap | None = None
        self._size = 0

    def __del__(self) -> None:
        os.close(self._fd)

    def fill(self, pixels: int, records: Sequence[bytes]) -> list[tuple[int, int]]:
        """Make room for so many bytes of pixels and put the records behind them.

        Returns offset and length of each record.
        """
        ends = np.cumsum([pixels, *map(len, records)]).tolist()
        if ends[-1] > self._size:
            self._size = ends[-1] + ends[-1] // 4
            os.ftruncate(self._fd, self._size)
            self._map = mmap.mmap(self._fd, self._size)
        assert self._map is not None
        places = list(zip(ends[:-1], map(len, records), strict=True))
        for (begin, length), record in zip(places, records, strict=True):
            self._map[begin : begin + length] = record
        return places

    def memory(self) -> SharedBatch:
        """Return the address of the shared memory for processes that this one started."""
        return SharedBatch(f"/proc/{os.getpid()}/fd/{self._fd}", os.fstat(self._fd).st_ino, self._size)

    def pixels(self, count: int, side: int) -> NDArray[np.uint8]:
        """Return the pixels in this memory as [count, side, side, 3]."""
        return np.ndarray((count, side, side, 3), np.uint8, self._map)


class _Process(SpawnProcess):
    """Pool process that is started with the rank's signals blocked, and so keeps them blocked."""

    def terminate(self) -> None:
        """Kill the process. The pool calls this on the others after one has died."""
        self.kill()


class _Context(SpawnContext):
    Process = _Process


class Decoders:
    """Decoding processes of this rank, started with the first batch. They end with the rank, however it ends."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._started: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Decoders":
        return self

    def __exit__(self, *_: object) -> None:
        if self._started:
            self._started.shutdown(cancel_futures=True)

    @property
    def pids(self) -> list[int]:
        """Return the ids of the running processes."""
        return sorted(self._started._processes if self._started else ())

    @property
    def _pool(self) -> ProcessPoolExecutor:
        if self._started is None:
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # else each starts as many threads as there are cores
            with _signals_held():
                self._started = ProcessPoolExecutor(self._processes, _Context(), decoding.prepare)
                for _ in range(self._processes):
                    self._started.submit(os.getpid)  # starts a process, where none is idle
        return self._started

    def begin(
        self,
        arena: Arena,
        records: Sequence[bytes],
        pixels: Sequence[Pixels],
        mirrored: Sequence[bool],
        *,
        side: int,
        classes: int,
    ) -> list[Future[list[int]]]:
        """Start to decode a batch into the arena. The futures return its labels, in the order of the images."""
        places = arena.fill(len(records) * side * side * 3, records)
        memory, share = arena.memory(), max(1, -(-len(records) // (_TASKS * self._processes)))
        tasks = [
            DecodeTask(
                memory=memory,
                first=first,
                records=places[first : first + share],
                pixels=pixels[first : first + share],
                mirrored=mirrored[first : first + share],
                side=side,
                classes=classes,
            )
            for first in range(0, len(records), share)
        ]
        with _signals_held():
            return [self._pool.submit(decoding.decode, task) for task in tasks]


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Block the rank's signals meanwhile, so that a process started inside never receives them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _THE_RANKS)
    try:
        resource_tracker.ensure_running()  # starting it unblocks some of these signals
        signal.pthread_sigmask(signal.SIG_BLOCK, _THE_RANKS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def lost_ones_told() -> Iterator[None]:
    """Raise TrainerError in place of the pool's error if a decoding process was killed."""
    try:
        yield
    except BrokenProcessPool as e:
        raise TrainerError(
            "a process that decodes images was ended from outside, perhaps for want of memory: see the kernel's log "
            "(dmesg); fewer --threads take less"
        ) from e
