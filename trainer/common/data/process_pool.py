"""Process pool, one process per core, for work that uses OpenCV."""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import cv2


@contextmanager
def process_pool(processes: int | None) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of `processes` processes, by default one per core. OpenCV computes on one thread in each.

    OpenCV's threads do not survive a fork, and a child that reduces their number waits for them for ever. So the number
    is set here, before there is a child.
    """
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        with ProcessPoolExecutor(processes or len(os.sched_getaffinity(0))) as pool:
            yield pool
    finally:
        cv2.setNumThreads(threads)
