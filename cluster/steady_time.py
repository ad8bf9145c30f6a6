"""Steady time of day: the wall clock at this process's start, advanced by the monotonic clock.

A supervisor dates its records by it. So setting the master's clock, by NTP or by hand, neither freezes a job's progress
nor turns minutes into hours.
"""

import time

_SLEWED_S = 5.0
_OFFSET_S = time.time() - time.monotonic()


def steady_now() -> float:
    """Return the time in seconds since 1970, by the wall clock as it was when this process began."""
    return time.monotonic() + _OFFSET_S


def offset_s() -> float:
    """Return the seconds to add to this boot's monotonic clock for that time.

    Other processes may use the value, too.
    """
    return _OFFSET_S


def clock_set_by_s() -> float:
    """Return by how many seconds the wall clock was set since this process began.

    Up to 5 s, as NTP slews, count as 0.
    """
    by_s = time.time() - steady_now()
    return by_s if abs(by_s) > _SLEWED_S else 0.0
