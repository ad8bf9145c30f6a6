"""Setup of this rank: starts Horovod and gives TensorFlow the rank's threads and GPU."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.common.files.errors import TrainerError
from trainer.common.ranks.gc_freeze import spare_start
from trainer.common.ranks.tf_notices import aside, quiet

GatherBytes = Callable[[bytes], list[bytes]]  # returns all ranks' bytes in rank order; all must call it


@dataclass(frozen=True)
class Ranks:
    """Rank of this process, number of ranks, and this rank's threads and GPU."""

    rank: int
    size: int
    local_rank: int
    local_size: int  # ranks on this host
    threads: int  # given to TensorFlow's operations
    gpu: int | None = None  # its number on this host

    @property
    def is_first(self) -> bool:
        """Return True on rank 0, which prints and writes the files."""
        return self.rank == 0


def owned_cores(allowed: int, present: int, local_size: int) -> int:
    """Return the number of a rank's cores: those it is bound to, or an equal share of the host's for unbound ranks."""
    return allowed if allowed < present else max(1, present // local_size)


def own_gpu(gpus: int, local_rank: int) -> int | None:
    """Return the GPU number of one of a host's ranks. If there are more ranks than GPUs, they share."""
    return local_rank % gpus if gpus else None


def check_together(size: int, environment: Mapping[str, str]) -> None:
    """Raise TrainerError if mpirun started more ranks than Horovod finds: each of them would train alone."""
    told = int(environment.get("OMPI_COMM_WORLD_SIZE", size))
    if told != size:
        raise TrainerError(
            f"mpirun started ranks: {told}, Horovod finds: {size}. It was built with another Open MPI than the mpirun "
            "that starts it; run scripts/install.sh on the hosts, which builds it with theirs"
        )


def start(threads: int | None = None, *, deterministic: bool = False) -> Ranks:
    """Start Horovod and set up TensorFlow. Without mpirun there is one rank.

    Raises TrainerError if Horovod finds other ranks than mpirun started.

    Args:
        deterministic: the same inputs give the same bits; slower.
    """
    if deterministic:
        # Which tensors are fused depends on when they come, and with it the order in which ranks are added up.
        os.environ["HOROVOD_FUSION_THRESHOLD"] = "0"
    spare_start()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    check_together(hvd.size(), os.environ)
    owned = threads or owned_cores(len(os.sched_getaffinity(0)), os.cpu_count() or 1, hvd.local_size())
    tf.config.threading.set_intra_op_parallelism_threads(owned)
    tf.config.threading.set_inter_op_parallelism_threads(1)  # more gains nothing on CPUs and takes cores from the input
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    gpus = tf.config.list_physical_devices("GPU")
    gpu = own_gpu(len(gpus), hvd.local_rank())
    if gpu is not None:
        tf.config.set_visible_devices(gpus[gpu], "GPU")
    quiet(owned)
    return Ranks(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), owned, gpu)


def mean_over_ranks(value: Any, name: str, *, ranks: int, half: bool = False) -> Any:
    """Return the mean of a tensor over the ranks, sent as float16 if `half`. A single rank needs no copies of it."""
    if ranks == 1:
        return value
    import horovod.tensorflow as hvd

    compression = hvd.Compression.fp16 if half else hvd.Compression.none
    return hvd.allreduce(value, op=hvd.Average, name=name, compression=compression)


class Gather:
    """Gathers bytes from every rank on every rank, without a shared folder.

    It uses a small separate graph, so that it works beside eager training and when a training's graph is closed.
    """

    def __init__(self, threads: int) -> None:
        """Build the graph that gathers.

        Args:
            threads: of this rank's operations.
        """
        import horovod.tensorflow as hvd

        self._ranks = hvd.size()
        if self._ranks > 1:
            self._build(threads)

    def _build(self, threads: int) -> None:
        import horovod.tensorflow as hvd
        import tensorflow as tf

        tf1 = tf.compat.v1
        with tf.Graph().as_default() as graph:
            self._data = tf1.placeholder(tf.uint8, [None])
            self._all = hvd.allgather(self._data, name="gather_data")
            self._sizes = hvd.allgather(tf.reshape(tf.size(self._data), [1]), name="gather_sizes")
            self._session = tf1.Session(graph=graph, config=aside(threads))

    def __call__(self, data: bytes) -> list[bytes]:
        """Return every rank's bytes in the order of the ranks. All ranks must call it, each with at least one byte."""
        if self._ranks == 1:
            return [data]
        feed = {self._data: np.frombuffer(data, np.uint8)}
        sizes = self._session.run(self._sizes, feed)
        everything = self._session.run(self._all, feed).tobytes()
        ends = np.cumsum(sizes)
        return [everything[end - size : end] for end, size in zip(ends, sizes, strict=True)]


@contextmanager
def lost_ranks_named() -> Iterator[None]:
    """Raise a one-sentence TrainerError in place of Horovod's error if another rank never joined a reduction."""
    import tensorflow as tf

    try:
        yield
    except (tf.errors.OpError, RuntimeError) as e:
        if "orovod" not in str(e):
            raise
        raise TrainerError("another rank ended, so the reduction with it failed; its own message says why") from e
