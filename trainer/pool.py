"""A process for each core, for work that OpenCV has a part in."""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import cv2


@contextmanager
def process_pool(processes: int | None) -> Iterator[ProcessPoolExecutor]:
    """So many processes, or one per core, in each of which OpenCV computes on one thread.

    Its threads do not outlive a fork, and a child that asks it for fewer waits for them for ever. So it is asked here,
    before there is a child.
    """
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        with ProcessPoolExecutor(processes or len(os.sched_getaffinity(0))) as pool:
            yield pool
    finally:
        cv2.setNumThreads(threads)
