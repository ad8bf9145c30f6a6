"""Kinds of ends of an attempt. `policy` decides what to do about each."""

import enum


class Ending(enum.StrEnum):
    """Kind of an attempt's end, spelled as in its record."""

    DONE = "done"
    STOPPED = "stopped"  # asked for, by 'inv jobs.stop'
    TOLD = "told"  # ranks left in good order because somebody else's SIGTERM came to one of them
    HOST = "host"  # it was lost
    DAEMON = "daemon"  # mpirun's, on a host that answers
    RANK_SIGNAL = "rank-signal"  # a signal ended a rank (out of memory, a segmentation fault), or another had lost it
    GPU = "gpu"  # one failed below a rank, or its driver did
    PROGRAM = "program"  # a rank ended with an error of its own
    HANG = "hang"  # ranks stood still
    LAUNCH = "launch"  # it could not start
    SHARED_FOLDER = "shared-folder"  # full, read-only or gone
    WHOLE = "whole"  # it had fewer hosts than the job, and left in good order because all can be had again
    NOTICE = "notice"  # a host said that it will go
    MASTER = "master"  # it was away, and the supervisor ended with it without a last word
    SUPERVISOR = "supervisor"  # who watches it failed, or was told to end, such as by a shutdown of the master
