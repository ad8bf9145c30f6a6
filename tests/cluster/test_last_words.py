"""What a rank's last words tell of its end. The texts of torchrun, gloo and NCCL are PyTorch's own."""

from typing import Any

import pytest

from cluster.recovery.cause import Cause, read_cause
from cluster.recovery.failure_kinds import FailureKind
from cluster.recovery.last_words import FailedWorker, LastWords

HOSTS = {0: "10.0.0.1", 1: "10.0.0.2"}
TORCHRUN = """\
{warns}Sending process 4320 closing signal SIGTERM
{fails}failed (exitcode: {code}) local_rank: 1 (pid: 4321) of binary: /usr/bin/python
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
             ^^^^^^
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-24_10:00:00
  host      : ip-10-0-0-5
  rank      : {rank} (local_rank: 1)
  exitcode  : {code} (pid: 4321)
  error_file: <N/A>
  traceback : {traceback}
============================================================
"""
GLOO = "RuntimeError: [./gloo/transport/tcp/pair.cc:589] Read error [10.0.0.1]:42148: Connection reset by peer"
NCCL = """\
[rank1]: torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1691, remote process exited or there was a network error, NCCL version 2.19.3
[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
[rank1]: Last error:
[rank1]: socketProgress: Connection closed by remote peer ip-10-0-0-1.ec2.internal<43210>
"""
NOT_DESTROYED = (
    "[rank1]:[W1122 10:00:00.000000000 ProcessGroupNCCL.cpp:1250] Warning: WARNING: destroy_process_group() was not "
    "called before program exit, which can leak resources. (function operator())\n"
)
ECC = """\
RuntimeError: CUDA error: uncorrectable ECC error encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
DOWNLOAD = "ConnectionError: HTTPSConnectionPool(host='example.com', port=443): Connection reset by peer\n"
KEY = "Traceback (most recent call last):\n  File \"train.py\", line 6, in <module>\nKeyError: 'x'\n"


def torchrun(code: int, is_new: bool = True, rank: int = 1) -> str:
    """Its words as it leaves; those of PyTorch before 2.4 begin in another way."""
    new = "1124 10:00:00.000000 4300 torch/distributed/elastic/multiprocessing/api.py:869] "
    old = "torch.distributed.elastic.multiprocessing.api:"
    said = {-9: "Signal 9 (SIGKILL) received by PID 4321", -11: "Signal 11 (SIGSEGV) received by PID 4321"}
    return TORCHRUN.format(
        warns="W" + new if is_new else "WARNING:" + old,
        fails="E" + new if is_new else "ERROR:" + old,
        code=code,
        rank=rank,
        traceback=said.get(code, "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"),
    )


def exited(*said: str, first: int = 0, code: int = 1) -> str:
    """A console in which each rank said so, and this one left first."""
    tagged = "".join(f"[1,{rank}]<stderr>:{line}\n" for rank, text in enumerate(said) for line in text.splitlines())
    return tagged + f"  Process name: [[20837,1],{first}]\n  Exit code:    {code}\n"


def cause(*said: str, is_alone: bool = False, first: int = 0, code: int = 1) -> Cause:
    return read_cause(exited(*said, first=first, code=code), code, HOSTS, "/shared", is_alone)


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize(
    ("before", "code", "kind", "text"),
    [
        ("", -9, FailureKind.RANK_SIGNAL, "torchrun's worker 1 was ended by signal 9 (SIGKILL)"),
        ("", -11, FailureKind.RANK_SIGNAL, "torchrun's worker 1 was ended by signal 11 (SIGSEGV)"),
        ("", 137, FailureKind.RANK_SIGNAL, "torchrun's worker 1 exited 137"),
        (KEY, 1, FailureKind.PROGRAM, "torchrun's worker 1 exited 1: KeyError: 'x'"),
        (GLOO, 1, FailureKind.RANK_SIGNAL, f"torchrun's worker 1 exited 1: {GLOO}"),
        (ECC, 1, FailureKind.GPU, "torchrun's worker 1 exited 1: RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ],
)  # fmt: skip
def test_a_torchrun_s_end_is_its_worker_s(before: Any, code: Any, kind: Any, text: Any, is_new: Any) -> None:
    """Not the ruler below its summary, and not the exit code that all its ends have."""
    found = cause(before + "\n" + torchrun(code, is_new))
    assert (kind, f"rank 0 on 10.0.0.1 exited 1: {text}", 0, "10.0.0.1") == (
        found.kind, found.text, found.rank, found.host
    )  # fmt: skip


def test_who_lost_another_is_not_who_failed() -> None:
    """The torchrun that is first to go may only have lost the other one's worker, or the GPU of another rank."""
    lost = GLOO + "\n" + torchrun(1)
    killed = cause(lost, torchrun(-9, rank=9))
    assert (FailureKind.RANK_SIGNAL, 1, "10.0.0.2") == (killed.kind, killed.rank, killed.host)
    assert "rank 1 on 10.0.0.2 failed: torchrun's worker 9 was ended by signal 9 (SIGKILL)" == killed.text
    faulty = cause(GLOO, ECC)
    assert (FailureKind.GPU, "10.0.0.2") == (faulty.kind, faulty.host)
    own = cause(KEY, ECC)
    assert (FailureKind.PROGRAM, 0) == (own.kind, own.rank)


def test_a_torchrun_that_was_told_to_end_has_no_error_of_its_own() -> None:
    """SIGTERM came to it, which says nothing of the program."""
    said = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 23978 got signal: 15\n"
    assert FailureKind.TOLD is cause(said).kind
    assert FailureKind.RANK_SIGNAL is cause(said.replace("15", "1")).kind


@pytest.mark.parametrize(
    ("said", "kind", "text"),
    [
        (KEY + NOT_DESTROYED, FailureKind.PROGRAM, "KeyError: 'x'"),
        ("[rank1]: KeyError: 'x'\n", FailureKind.PROGRAM, "KeyError: 'x'"),
        (GLOO + "\n" + NOT_DESTROYED, FailureKind.RANK_SIGNAL, GLOO),
        (NCCL + NOT_DESTROYED, FailureKind.RANK_SIGNAL, "socketProgress: Connection closed by remote peer ip-10-0-0-1"),
        (NCCL + "RuntimeError: the training failed\n", FailureKind.RANK_SIGNAL, "RuntimeError: the training failed"),
        (ECC, FailureKind.GPU, "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        ("GPU 3: GPU has fallen off the bus.\nKeyError: 3\n", FailureKind.GPU, "GPU 3: GPU has fallen off the bus."),
        ("RuntimeError: CUDA error: device-side assert triggered\n", FailureKind.PROGRAM, "device-side assert triggered"),
        ("error: another rank ended, so the exchange with it failed; its own message says why\n", FailureKind.RANK_SIGNAL, ""),
        (DOWNLOAD, FailureKind.PROGRAM, "HTTPSConnectionPool"),
        ("ConnectionResetError: [Errno 104] Connection reset by peer\n", FailureKind.PROGRAM, "ConnectionResetError"),
    ],
)  # fmt: skip
def test_what_a_rank_says_tells_whose_end_it_is(said: Any, kind: Any, text: Any) -> None:
    """Its own, another rank's, or its GPU's; notices after the error hide neither the error nor the kind."""
    found = cause("", said, first=1)
    assert (kind, 1, "10.0.0.2") == (found.kind, found.rank, found.host)
    assert text in found.text and "destroy_process_group" not in found.text


def test_a_gpu_s_fault_is_one_where_its_library_aborts_too() -> None:
    """NCCL's watchdog ends the process by SIGABRT."""
    said = "".join(f"[1,1]<stderr>:{line}\n" for line in ECC.splitlines())
    ended = "mpirun noticed that process rank 1 with PID 1845 on node b exited on signal 6 (Aborted).\n"
    found = read_cause(said + ended, 134, HOSTS)
    assert (FailureKind.GPU, "10.0.0.2") == (found.kind, found.host)
    assert "ended by signal 6 (Aborted): RuntimeError: CUDA error: uncorrectable ECC" in found.text
    assert FailureKind.RANK_SIGNAL is read_cause(ended, 134, HOSTS).kind


@pytest.mark.parametrize(("code", "signal"), [(-9, 9), (-1, 1), (0, None), (1, None)])
def test_a_worker_s_code_below_zero_is_a_signal(code: int, signal: int | None) -> None:
    """By it alone others' errors may follow from its end."""
    words = LastWords(worker=FailedWorker(rank=0, code=code))
    assert (signal, signal is not None) == (words.signal, words.tell_what_happened)
