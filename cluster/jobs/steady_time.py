"""Time of day that is never set: the wall clock as this process began, carried on by the monotonic clock.

A supervisor dates its records by it, so that a master whose clock is set (by NTP, by hand) neither freezes a job's
progress nor makes minutes out of hours.
"""

import time

_SLEWED_S = 5.0
_OFFSET_S = time.time() - time.monotonic()


def steady_now() -> float:
    """Return the time in seconds since 1970, by the wall clock as it was when this process began."""
    return time.monotonic() + _OFFSET_S


def offset_s() -> float:
    """Return what has to be added to this boot's monotonic clock for that time; other processes may do so as well."""
    return _OFFSET_S


def clock_set_by_s() -> float:
    """Return by how many seconds the wall clock was set since this process began; 0 for what NTP slews."""
    by_s = time.time() - steady_now()
    return by_s if abs(by_s) > _SLEWED_S else 0.0
