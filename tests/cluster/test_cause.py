"""mpirun's messages in words: rank, host, what happened. The texts are what Open MPI 4.1.4 printed on lab hosts."""

from typing import Any

import pytest

from cluster.recovery.cause import plain, read_cause
from cluster.recovery.failure_kinds import FailureKind

HOSTS = {0: "10.0.0.1", 1: "10.0.0.1", 2: "10.0.0.2", 3: "10.0.0.2"}

KILLED = """\
[1,0]<stdout>:   10   1.2    24.6  2.227   2.467 0.00133
--------------------------------------------------------------------------
mpirun noticed that process rank 2 with PID 1845 on node 10.0.0.2 exited on signal 9 (Killed).
--------------------------------------------------------------------------
"""
EXITED = """\
[1,3]<stderr>:trainer: /shared/x/train-00001-of-00002: cut off in the record at byte 77
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[20837,1],3]
  Exit code:    1
--------------------------------------------------------------------------
"""
LOST = """\
--------------------------------------------------------------------------
ORTE has lost communication with a remote daemon.

  HNP daemon   : [[26117,0],0] on node lab-0
  Remote daemon: [[26117,0],2] on node 10.0.0.2

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself. We cannot recover from this failure, and
therefore will terminate the job.
--------------------------------------------------------------------------
"""
NO_RANK = """\
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
"""
NO_SSH = """\
ssh: connect to host 10.0.0.2 port 22: Connection refused
--------------------------------------------------------------------------
ORTE was unable to reliably start one or more daemons.
This usually is caused by:
"""
NO_FOLDER = """\
--------------------------------------------------------------------------
mpirun was unable to launch the specified application as it could not
change to the specified working directory:

Working directory: /shared/jobs/x/code
Node: 10.0.0.2

while attempting to start process rank 1.
--------------------------------------------------------------------------
"""
WOKEN = """\
mpirun: Forwarding signal 18 to job
--------------------------------------------------------------------------
ORTE does not know how to route a message to the specified daemon
located on the indicated node:

  my node:   lab-0
  target node:  10.0.0.2
"""
NO_ORTED = NO_SSH.replace(
    "ssh: connect to host 10.0.0.2 port 22: Connection refused", "env: '/usr/bin/orted': Permission denied"
)


@pytest.mark.parametrize(
    ("console", "code", "text", "rank", "host"),
    [
        ("", 0, "", None, ""),
        (
            NO_FOLDER,
            1,
            "10.0.0.2 has no /shared/jobs/x/code: is the shared folder mounted there, and on the master?",
            None,
            "10.0.0.2",
        ),
        (WOKEN, 0, "mpirun ended before any rank had begun: see the log", None, ""),
        ("[1,0]<stdout>:Finished in 9.5\n" + WOKEN, 0, "", None, ""),
        (
            NO_ORTED,
            1,
            "mpirun could not reach every host: env: '/usr/bin/orted': Permission denied",
            None,
            "",
        ),
        (KILLED, 137, "rank 2 on 10.0.0.2 ended by signal 9 (Killed)", 2, "10.0.0.2"),
        (
            EXITED,
            1,
            "rank 3 on 10.0.0.2 exited 1: trainer: /shared/x/train-00001-of-00002: cut off in the record at byte 77",
            3,
            "10.0.0.2",
        ),
        (LOST, 205, "host 10.0.0.2 was lost in mid-run", None, "10.0.0.2"),
        (
            NO_SSH,
            1,
            "mpirun could not reach every host: ssh: connect to host 10.0.0.2 port 22: Connection refused",
            None,
            "",
        ),
        ("what is this", 77, "mpirun ended with 77: see the log", None, ""),
    ],
)
def test_read_cause(console: Any, code: Any, text: Any, rank: Any, host: Any) -> None:
    """One line that names rank and host, and the rank's own last words."""
    cause = read_cause(console, code, HOSTS)

    assert (text, rank, host) == (cause.text, cause.rank, cause.host)


def rank_3_says(words: str) -> str:
    """It leaves with an error."""
    return f"[1,3]<stderr>:{words}\n" + EXITED.partition("\n")[2]


@pytest.mark.parametrize(
    ("console", "code", "kind"),
    [
        ("", 0, FailureKind.DONE),
        (KILLED, 137, FailureKind.RANK_SIGNAL),
        (EXITED, 1, FailureKind.PROGRAM),
        (EXITED.replace("Exit code:    1", "Exit code:    143"), 143, FailureKind.TOLD),
        (EXITED.replace("Exit code:    1", "Exit code:    137"), 137, FailureKind.RANK_SIGNAL),
        (rank_3_says("horovod.common.exceptions.HorovodInternalError: it is gone"), 1, FailureKind.RANK_SIGNAL),
        (rank_3_says("error: /shared/jobs/x: No space left on device"), 1, FailureKind.SHARED_FOLDER),
        (rank_3_says("error: /var/tmp/x: No space left on device"), 1, FailureKind.PROGRAM),
        (LOST, 205, FailureKind.HOST),
        (NO_SSH, 1, FailureKind.LAUNCH),
        (NO_RANK, 137, FailureKind.RANK_SIGNAL),
        (NO_RANK, 143, FailureKind.TOLD),
        (NO_RANK, 2, FailureKind.PROGRAM),
        ("what is this", 77, FailureKind.LAUNCH),
        ("", -9, FailureKind.DAEMON),
    ],
)
def test_the_kind_of_an_end(console: Any, code: Any, kind: Any) -> None:
    """What is done about it follows from this."""
    assert kind is read_cause(console, code, HOSTS, shared="/shared").kind


IMPROPERLY = """\
--------------------------------------------------------------------------
mpirun has exited due to process rank 2 with PID 0 on
node 10.0.0.2 exiting improperly. There are three reasons this could occur:

1. this process did not call "init" before exiting, but others in
the job did. This can cause a job to hang indefinitely while it waits
for all processes to call "init". By rule, if one process calls "init",
then ALL processes must call "init" prior to termination.
--------------------------------------------------------------------------
"""


def test_a_rank_that_leaves_with_0_before_the_others_is_the_program_s_own_error() -> None:
    """Open MPI ends the job with 1, and names the rank in words of its own."""
    cause = read_cause("[1,2]<stdout>:done\n" + IMPROPERLY, 1, HOSTS)
    assert (FailureKind.PROGRAM, 2, "10.0.0.2") == (cause.kind, cause.rank, cause.host)
    assert cause.text.startswith("rank 2 on 10.0.0.2 exited without MPI_Finalize")


@pytest.mark.parametrize("old", [KILLED, LOST, NO_RANK, NO_SSH, NO_FOLDER, WOKEN, NO_ORTED, IMPROPERLY, EXITED])
@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "[1,0]<stderr>:", "dlami: "])
@pytest.mark.parametrize("cut", ["\n", "\r", "\x0b", "\u2028"])
def test_what_a_rank_prints_is_never_the_cause(old: str, tag: str, cut: str) -> None:
    """An old log, whatever line ends it has; what mpirun itself says of rank 3 counts."""
    said = tag + old.replace("\n", "\n" + tag if cut == "\n" else cut) + "\n"
    cause = read_cause(said + rank_3_says("ValueError: 3"), 3, HOSTS, shared="/shared")
    assert (FailureKind.PROGRAM, 3, "10.0.0.2") == (cause.kind, cause.rank, cause.host)
    assert "rank 3 on 10.0.0.2 exited 1: ValueError: 3" == cause.text
    assert FailureKind.DONE is read_cause(said, 0, HOSTS).kind


@pytest.mark.parametrize(
    ("code", "text"), [(137, "137 (SIGKILL, often for lack of memory)"), (139, "139 (SIGSEGV)"), (3, "3")]
)
def test_an_exit_code_of_a_signal_is_explained(code: int, text: str) -> None:
    """A shell's 128 and the signal's number."""
    said = EXITED.partition("\n")[2].replace("Exit code:    1", f"Exit code:    {code}")
    assert f"rank 3 on 10.0.0.2 exited {text}" == read_cause(said, code, HOSTS).text
    assert f"a rank exited {text}: see the log" == read_cause(NO_RANK, code, HOSTS).text


CRASH = """\
[1,2]<stderr>:loading the model
[1,2]<stderr>:[gpu-2:1234] *** Process received signal ***
[1,2]<stderr>:[gpu-2:1234] Signal: Segmentation fault (11)
[1,2]<stderr>:[gpu-2:1234] Signal code: Address not mapped (1)
[1,2]<stderr>:[gpu-2:1234] Failing at address: (nil)
[1,2]<stderr>:[gpu-2:1234] [ 0] /lib/x86_64-linux-gnu/libc.so.6(+0x3c050)[0x7f]
[1,2]<stderr>:[gpu-2:1234] [12] ./a.out(main+0x10)[0x55]
[1,2]<stderr>:[gpu-2:1234] *** End of error message ***
"""
FAULT = """\
[1,2]<stderr>:Fatal Python error: Segmentation fault
[1,2]<stderr>:
[1,2]<stderr>:Current thread 0x00007f (most recent call first):
[1,2]<stderr>:  File "train.py", line 7 in step
[1,2]<stderr>:  File "train.py", line 9 in <module>
[1,2]<stderr>:
[1,2]<stderr>:Extension modules: numpy._core (total: 1)
"""


@pytest.mark.parametrize(
    ("said", "words"),
    [(CRASH, "loading the model"), (FAULT, 'Fatal Python error: Segmentation fault, File "train.py", line 7 in step')],
)
def test_a_crash_is_not_told_by_its_report_s_last_line(said: str, words: str) -> None:
    """Not by the end of Open MPI's report of the signal, nor by the modules that were loaded."""
    assert f"rank 2 on 10.0.0.2 ended by signal 9 (Killed): {words}" == read_cause(said + KILLED, 137, HOSTS).text


def test_what_all_ranks_found_alike_is_in_rank_0_s_words() -> None:
    """The rank that left first says nothing; another rank's line that is no common error is not its."""
    left = EXITED.partition("\n")[2]
    said = "[1,0]<stderr>:error: SIGTERM came to rank 2 (10.0.0.2), and nobody had asked for a stop: saved\n"

    assert "rank 3 on 10.0.0.2 exited 1: error: SIGTERM came to rank 2" in read_cause(said + left, 1, HOSTS).text
    assert "rank 3 on 10.0.0.2 exited 1" == read_cause("[1,0]<stderr>:a notice\n" + left, 1, HOSTS).text


NOTICES = """\
[1,2]<stderr>:WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
[1,2]<stderr>:I0000 00:00:1795370179.040221     387 mlir_graph_optimization_pass.cc:401] MLIR V1 optimization pass
[1,2]<stderr>:2026-11-22 17:55:00.123456: W tensorflow/core/framework/op.cc:1] deprecated
"""


def test_a_library_s_notices_are_nobody_s_last_words() -> None:
    """They say nothing about the end; what the rank said before them does."""
    assert "rank 2 on 10.0.0.2 ended by signal 9 (Killed)" == read_cause(NOTICES + KILLED, 137, HOSTS).text
    said = "[1,2]<stderr>:out of memory\n" + NOTICES
    assert "ended by signal 9 (Killed): out of memory" in read_cause(said + KILLED, 137, HOSTS).text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[1,0]<stdout>:Horovod size: 4", "Horovod size: 4"),
        ("[1,3]<stderr>:no such file", "rank 3: no such file"),
        ("[1,0]<stdout>:   5   0.6[1,0]<stdout>:", "   5   0.6"),
        ("mpirun noticed", "mpirun noticed"),
    ],
)
def test_plain(line: Any, expected: Any) -> None:
    """Rank 0 speaks for the job; the others say who they are."""
    assert expected == plain(line)


@pytest.mark.parametrize(
    ("console", "where"),
    [
        (
            "[gpu-3:00038] PMIX ERROR: OUT-OF-RESOURCE in file ../../src/mca/common/dstore/dstore_segment.c at line 208\n"
            "ORTE was unable to reliably start one or more daemons.\n",
            "on gpu-3",
        ),
        ("mkdir: cannot create directory '/tmp/ompi.gpu-3.0': No space left on device\n", "on a host"),
        (
            "mkdir: cannot create directory '/tmp/ompi.gpu-3.0': No space left on device\n"
            "[gpu-3:00038] PMIX ERROR: OUT-OF-RESOURCE in file ../../src/mca/common/dstore/dstore_segment.c at line 208\n",
            "on gpu-3",
        ),
        (
            "[1,3]<stderr>:[gpu-3:00082] PMIX ERROR: ERROR in file ../src/mca/gds/ds12/gds_ds12_lock_pthread.c at line 169\n",
            "on a host",
        ),
        (
            "[1,3]<stderr>:[gpu-3:00082] PMIX ERROR: ERROR in file ../src/mca/gds/ds12/gds_ds12_lock_pthread.c at line 169\n"
            "It looks like MPI_INIT failed for some reason\n[1,3]<stderr>:[gpu-3:00082] Local abort before MPI_INIT\n",
            "on a host",
        ),
    ],
)
def test_a_full_tmp_is_named(console: Any, where: Any) -> None:
    """Not "see the log": what is full, and what to look at."""
    assert f"there is no room {where}" in read_cause(console, 213, {}).text
    assert "df /tmp /dev/shm" in read_cause(console, 213, {}).text


def test_a_full_disk_is_the_one_that_the_line_names() -> None:
    """A rank that cannot write to the shared folder is no lack of room for Open MPI's files on its host."""
    of_rank = "[1,2]<stderr>:error: /shared/jobs/a/checkpoints: cannot be written (No space left on device)\n"
    on_disk = "[1,2]<stderr>:OSError: [Errno 28] No space left on device: '/opt/nvme/x'\n"
    hosts = {2: "10.0.0.3"}

    shared = read_cause(of_rank, -9, hosts, "/shared")
    assert (FailureKind.SHARED_FOLDER, 2, "10.0.0.3") == (shared.kind, shared.rank, shared.host)
    assert "rank 2 on 10.0.0.3: error: /shared/jobs/a/checkpoints: cannot be written" in shared.text
    own = read_cause(on_disk, -9, hosts, "/shared")
    assert (FailureKind.DAEMON, "rank 2 on 10.0.0.3: OSError") == (own.kind, own.text[:27])
    untagged = read_cause("cat: write error: /shared/jobs/a/x: No space left on device\n", 1, hosts, "/shared")
    assert FailureKind.SHARED_FOLDER is untagged.kind
    assert "Open MPI" not in shared.text + own.text + untagged.text
