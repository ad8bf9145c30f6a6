"""Kinds of ends of an attempt. `policy` decides what to do about each."""

import enum


class FailureKind(enum.StrEnum):
    """Kind of an attempt's end, spelled as in its record."""

    DONE = "done"
    STOPPED = "stopped"  # by 'inv jobs.stop'
    TOLD = "told"  # ranks saved and left: one of them received a SIGTERM that was not ours
    HOST = "host"  # a host was lost
    DAEMON = "daemon"  # mpirun's daemon failed, on a host that answers
    RANK_SIGNAL = "rank-signal"  # a signal ended a rank (out of memory, a segmentation fault), or another had lost it
    GPU = "gpu"  # a rank's GPU or its driver failed
    PROGRAM = "program"  # the program itself failed in a rank
    HANG = "hang"  # ranks stood still
    LAUNCH = "launch"  # the attempt could not start
    SHARED_FOLDER = "shared-folder"  # it is full, read-only or gone
    WHOLE = "whole"  # ranks saved and left an attempt on fewer hosts, because all are available again
    NOTICE = "notice"  # a host has a preemption notice
    MASTER = "master"  # the master went down, and the supervisor with it, before it could record why
    SUPERVISOR = "supervisor"  # the supervisor failed, or a signal ended it, such as at a shutdown of the master
